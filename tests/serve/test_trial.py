"""Check that predictions for user data match the estimator, and that unsuitable data raise a one-line error."""

import csv
import io
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from scenes import draw_images
from shell import run

import dmo
from dmo.datasets import Samples, read_samples
from dmo.errors import UserError
from dmo.features import Recipe, extract, list_images
from dmo.stores import open_features
from dmo.workflows.fitting import fit, open_training
from dmo.workflows.program import session
from dmo.workflows.rows import open_trial
from dmo.workflows.suggest import read_answers
from dmo.workflows.trial import Trial, Upload, corrections_csv
from tests.made_files import bombs, peaks, repeating_parquet


@pytest.fixture(scope="module")
def trial(shop):
    return open_trial(str(shop / "model.zarr"), None, None, 50)


def sent(folder, name, content):
    """Write an uploaded file whose name on disk differs from its original name, as on the page."""
    path = folder / f"{len(list(folder.iterdir()))}{name[name.rindex('.') :]}"
    (path.write_bytes if isinstance(content, bytes) else path.write_text)(content)
    return Upload(name, path)


def npy(**arrays):
    buffer = io.BytesIO()
    if list(arrays) == ["array"]:
        np.save(buffer, arrays["array"])
    else:
        np.savez(buffer, **arrays)
    return buffer.getvalue()


def test_rows_are_answered_as_the_estimator_answers_whatever_the_order_of_their_columns(trial, shop, tmp_path):
    store, model = open_features(shop / "set.zarr"), dmo.load(str(shop / "model.zarr"))
    X = store.views["shop"][:3]
    assert store.feature_names("shop") == ["weight", "color=blue", "color=green", "color=red", "price"]
    lines = (shop / "shop.csv").read_text().splitlines()
    cells = [line.split(";") for line in lines[1:4]]
    turned = "price,ID,other,color,weight\n" + "".join(f"{p},{i},x,{c},{w}\n" for i, w, c, p, _ in cells)
    found = trial.rows([sent(tmp_path, "any.csv", turned)])
    assert [answer["id"] for answer in found] == ["item 0", "item 1", "item 2"]
    P, given = model.predict_proba({"shop": X}), model.predict({"shop": X})
    for i, answer in enumerate(found):
        values = {label["name"]: label["value"] for label in answer["labels"]}
        assert values == {name: round(P[i, j], 4) for j, name in enumerate(store.label_names)}
        ticked = {label["name"] for label in answer["labels"] if label["given"]}
        assert ticked == {name for name, there in zip(store.label_names, given[i]) if there}
        assert answer["neighbors"][0]["sample"] == answer["id"]
        assert answer["neighbors"][0]["value"] == pytest.approx(1)
    by_array = trial.rows([sent(tmp_path, "new.npy", npy(array=X))])
    assert [answer["labels"] for answer in by_array] == [answer["labels"] for answer in found]
    assert [answer["id"] for answer in by_array] == ["new.npy:0", "new.npy:1", "new.npy:2"]
    trial.rows(
        [sent(tmp_path, "any.csv", turned.replace("red", "pink").replace("blue", "pink").replace("green", "pink"))]
    )
    assert trial.notes == ["any.csv: column 'color' has 1 unknown category ('pink') in 3 rows, encoded as all zeros"]
    no_header = "".join(",".join(map(str, row)) + "\n" for row in X)
    assert [a["labels"] for a in trial.rows([sent(tmp_path, "n.csv", no_header)])] == [a["labels"] for a in found]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "a.csv",
            "weight,color\n1,red\n",
            "a.csv: the column 'price' of the training data is missing, the columns are weight",
        ),
        (
            "a.csv",
            "weight,price,color\nmuch,1,red\n",
            "a.csv: column 'weight', row 0 is 'much', expected a number as in the training data; pass",
        ),
        ("a.csv", "id,word\na,b\n", "column 'word', row 0 is 'b', expected a number"),
        ("a.csv", "weight,price,color\n", "a.csv: ends after its header"),
        ("a.csv", b"\0\1\2", "is not text, expected a table"),
        ("a.csv", "1\n" * 60, "has 60 rows, but at most 50 are tried at once; use dmo annotate"),
        ("a.npy", npy(array=np.zeros((51, 5))), "has 51 rows, but at most 50"),
        ("a.npz", npy(shop=np.zeros((0, 5)), b=np.ones(2)), "a.npz"),
        ("a.npy", npy(array=np.zeros((5, 4))), "has 4 columns, the model was fitted on 5 of view 'shop'"),
        ("a.npy", b"\x93NUMPY", "a.npy"),
        ("a.npy", npy(array=np.array([[None]])), "object"),
        ("a.npz", npy(a=np.zeros((2, 5)), b=np.zeros((2, 1))), "holds the arrays a, b; name them shop"),
        ("a.zip", b"PK", "a.zip is not a data file that can be tried; expected one of .csv"),
        ("a.npy", npy(array=np.full((1, 5), np.nan)), "NaN"),
    ],
)
def test_errors_name_the_file_as_the_user_named_it(trial, tmp_path, name, content, words):
    upload = sent(tmp_path, name, content)
    with pytest.raises(UserError) as refused:
        trial.rows([upload])
    assert words in str(refused.value)
    assert str(tmp_path) not in str(refused.value)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a program is read from /proc")
def test_shapes_are_looked_at_before_values(tmp_path):
    setup = """
from pathlib import Path
from types import SimpleNamespace
from dmo.workflows.trial import Trial, Upload
trial = Trial(SimpleNamespace(view_widths_={"x": 5}), [], 1, None, {}, {}, None, 50)"""
    files = bombs(tmp_path)
    chosen = [files[name] for name in ("a.npz", "a.parquet", "wide.csv")]
    found = peaks(setup, "trial.rows([Upload(path, Path(path))])", chosen)
    assert max(grown for grown, _ in found.values()) < 10e6  # the files contain 40e6 bytes
    for name in ("a.npz", "a.parquet"):
        assert "has 1000000 rows, but at most 50 are tried at once" in found[name][1]
    assert "has 250000 columns, the model has 5; at most 1000 additional columns" in found["wide.csv"][1]
    words = Trial(SimpleNamespace(view_widths_={"x": 1}), [], 1, None, {}, {}, None, 50)
    np.savez(tmp_path / "x.npz", x=np.array([["word"]]))
    with pytest.raises(UserError, match=r"x.npz holds <U4 of shape \(1, 1\), expected rows of numbers"):
        words.rows([Upload("x.npz", tmp_path / "x.npz")])


@pytest.mark.slow
def test_user_files_are_read_with_memory_and_time_limits(trial, tmp_path, monkeypatch):
    few = sent(tmp_path, "any.csv", "id,weight,color,price\nx,1,red,2\n")
    row = sent(tmp_path, "any.csv", f"id,weight,color,price,other\nx,1,red,2,{'-' * 70_000}\n")
    # Small files are read in the server process without a time limit.
    assert trial.rows([row], 60) == trial.rows([row]) == trial.rows([few], 1e-9)
    with pytest.raises(UserError, match=r"a.csv: the column 'price'"):
        trial.rows([sent(tmp_path, "a.csv", "weight,color\n1,red\n")], 60)
    scipy.sparse.save_npz(tmp_path / "s.npz", scipy.sparse.csr_array(np.ones((2_000_000, 5))))
    with pytest.raises(UserError, match="has 2000000 rows"):
        trial.rows([Upload("s.npz", tmp_path / "s.npz")], 60)
    texts = repeating_parquet(tmp_path / "t.parquet", 40, 1 << 24)
    assert texts.stat().st_size < 1 << 20
    monkeypatch.setattr("dmo.workflows.trial._MEMORY", 1 << 28)
    with pytest.raises(UserError, match="reading the files needs more than 256 MiB of memory; send fewer rows"):
        trial.rows([Upload("t.parquet", texts)], 60)
    monkeypatch.setattr("dmo.workflows.trial._MEMORY", 1 << 26)
    with pytest.raises(UserError, match="reading the files needs more than 64 MiB of memory; send fewer rows"):
        trial.rows([Upload("s.npz", tmp_path / "s.npz")], 60)
    assert trial.rows([row], 60) == trial.rows([row])
    with pytest.raises(UserError, match=r"not read within 0.001 seconds; send less at once, or raise --seconds"):
        trial.rows([row], 0.001)
    monkeypatch.setattr("dmo.workflows.trial._read_within", ended)
    with pytest.raises(UserError, match="the process that reads them crashed"):
        trial.rows([row], 60)


def ended(*_):
    os._exit(11)


def test_views_come_in_a_file_each_or_in_one_archive(tmp_path):
    rng = np.random.default_rng(0)
    views, Y = {"a": rng.normal(size=(40, 3)), "b": rng.normal(size=(40, 2))}, np.eye(2)[np.arange(40) % 2]
    Samples(views, Y).write(str(tmp_path / "set.zarr"))
    dmo.KGHA("linear").fit(views, Y).save(str(tmp_path / "model.zarr"))
    trial = open_trial(str(tmp_path / "model.zarr"), str(tmp_path / "set.zarr"), 1, 50)
    a, b = views["a"][:2], views["b"][:2]
    together = trial.rows([sent(tmp_path, "new.npz", npy(a=a, b=b))])
    table = "\n".join(",".join(map(str, row)) for row in b)
    apart = trial.rows([sent(tmp_path, "a.npy", npy(array=a)), sent(tmp_path, "b.csv", table)])
    assert [one["labels"] for one in together] == [one["labels"] for one in apart]
    assert [one["neighbors"] for one in together] == [one["neighbors"] for one in apart]
    assert [sum(label["given"] for label in answer["labels"]) for answer in apart] == [1, 1]
    with pytest.raises(UserError, match=r"x.npy: unknown view; name the file a, b"):
        trial.rows([sent(tmp_path, "x.npy", npy(array=a))])
    with pytest.raises(UserError, match=r"a.npy: view 'a' is in another file too"):
        trial.rows([sent(tmp_path, "new.npz", npy(a=a, b=b)), sent(tmp_path, "a.npy", npy(array=a))])
    with pytest.raises(UserError, match=r"different numbers of rows \(a 2, b 1\)"):
        trial.rows([sent(tmp_path, "a.npy", npy(array=a)), sent(tmp_path, "b.npy", npy(array=b[:1]))])


def test_documents_are_weighed_with_the_words_of_the_training_documents(tmp_path):
    texts = [("wheat", "wheat prices rise"), ("ship", "a ship carries oil"), ("wheat", "more wheat")] * 6
    (tmp_path / "news.csv").write_text("topic,text\n" + "".join(f"{topic},{text}\n" for topic, text in texts))
    samples = read_samples(tmp_path / "news.csv", labels="topic", text="text")
    samples.write(tmp_path / "set.zarr")
    with session() as run:
        fit(
            run,
            dmo.MultiViewRidge("linear"),
            open_training(open_features(str(tmp_path / "set.zarr"))),
            str(tmp_path / "model.zarr"),
        )
    trial = open_trial(str(tmp_path / "model.zarr"), None, 1, 50)
    found = trial.rows([sent(tmp_path, "new.csv", "id,text\nx,the ship sails\ny,wheat again\n")])
    assert [answer["labels"][0]["name"] for answer in found] == ["ship", "wheat"]


def test_images_are_described_as_the_training_images_were(tmp_path):
    table = draw_images(tmp_path / "pics", 12)
    extract(list_images(tmp_path / "pics", table), tmp_path / "f.zarr", Recipe.of("moments"), threads=1)
    with session() as run:
        fit(run, dmo.KGHA("linear"), open_training(open_features(str(tmp_path / "f.zarr"))), str(tmp_path / "m.zarr"))
    trial, store = open_trial(str(tmp_path / "m.zarr"), None, 2, 50), open_features(tmp_path / "f.zarr")
    name = store.sample_ids[5]
    upload = Upload("photo.jpg", tmp_path / "pics" / name)
    (answer,) = trial.images([upload])
    assert answer["neighbors"][0]["sample"] == name
    assert trial.thumbnail(answer["neighbors"][0]["row"])[:3] == b"\xff\xd8\xff"  # JPEG files start with these bytes
    assert trial.thumbnail(12) is None
    assert trial.thumbnail(-1) is None
    with pytest.raises(UserError, match=r"^photo.png: cannot be read as an image"):
        trial.images([sent(tmp_path, "photo.png", b"no image")])
    (tmp_path / "pics" / name).unlink()
    assert trial.thumbnail(5) is None
    said = []
    (tmp_path / "f.zarr").rename(tmp_path / "elsewhere.zarr")
    assert open_trial(str(tmp_path / "m.zarr"), None, 2, 50, said.append).images([
        Upload("a.jpg", tmp_path / "pics" / store.sample_ids[0])
    ])[0]["neighbors"] == []  # fmt: skip
    assert "names as its origin, cannot be read" in said[0]


def test_real_targets_are_answered_as_numbers_in_their_units_beside_neighbors_with_theirs(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(40, 3)), columns=list("abc"))
    frame["price"], frame["weight"] = 1000 + 50 * frame.a, 1e-3 * frame.b
    frame.to_csv(tmp_path / "t.csv", index=False)
    work = [str(tmp_path / name) for name in ("f.zarr", "m.zarr")]
    run("ingest", "files", work[0], "--view", f"x={tmp_path / 't.csv'}", "--label-columns", "price,weight")
    run("fit", "ridge", *work)
    trial = open_trial(work[1], None, None, 50)
    frame[list("abc")][:5].to_csv(tmp_path / "new.csv", index=False)
    answers = trial.rows([Upload("new.csv", tmp_path / "new.csv")])
    wanted = trial.model.predict(frame[list("abc")][:5].to_numpy())
    assert [[label["name"] for label in one["labels"]] for one in answers] == [["price", "weight"]] * 5
    np.testing.assert_allclose([[label["value"] for label in one["labels"]] for one in answers], wanted, rtol=1e-5)
    assert trial.kind == "numbers"
    near = answers[2]["neighbors"][0]
    assert near["row"] == 2
    assert near["values"] == {"price": frame.price[2], "weight": frame.weight[2]}
    with pytest.raises(UserError, match="learned regression targets"):
        open_trial(work[1], None, 2, 50)


def test_models_without_labels_to_choose_from_are_refused(tmp_path):
    X = np.random.default_rng(0).normal(size=(20, 3))
    dmo.MultiSetCCA("linear", n_components=1).fit([X, X[:, :2]]).save(str(tmp_path / "space.zarr"))
    with pytest.raises(UserError, match="MultiSetCCA, which does not score labels"):
        open_trial(str(tmp_path / "space.zarr"), None, None, 50)


def test_corrections_are_labels_that_the_readers_of_labels_take(tmp_path):
    table = tmp_path / "corrections.csv"
    table.write_text(corrections_csv([("a, b.png", ["sea", 'the "sky"']), ("c.png", []), ("d.png", ["sea"])]))
    (tmp_path / "x.csv").write_text('sample,width\n"a, b.png",1\nc.png,2\nd.png,3\n')
    samples = read_samples(tmp_path / "x.csv", labels=table, id="sample", separator=";")
    assert samples.label_names == ["sea", 'the "sky"']
    assert samples.labels[[0, 2]].tolist() == [[1, 1], [1, 0]]
    (tmp_path / "guarded.csv").write_text(corrections_csv([("=x", ["@y", "z"])]))
    guarded = next(csv.DictReader(io.StringIO((tmp_path / "guarded.csv").read_text())))
    assert guarded == {"sample": "'=x", "labels": "'@y;z"}
    assert read_answers(tmp_path / "guarded.csv") == {"=x": ["@y", "z"]}
    assert read_answers(table) == {"a, b.png": ["sea", 'the "sky"'], "c.png": [], "d.png": ["sea"]}
    for label in ("a;b", "a\nb", " "):
        with pytest.raises(UserError, match="cannot be written"):
            corrections_csv([("a", [label])])


def test_fields_describe_an_example_row_that_can_be_read_again(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["size;color;organic;day;price"]
    for i in range(40):
        size = f"{rng.normal():.2f}".replace(".", ",") if i != 7 else ""
        lines.append(
            f"{size};{'red' if i % 2 else 'dark blue'};{'yes' if i % 3 else 'no'};2025-01-{1 + i % 28:02d};{i}"
        )
    (tmp_path / "t.csv").write_text("\n".join(lines))
    work = [str(tmp_path / name) for name in ("f.zarr", "m.zarr")]
    given = ("--view", f"x={tmp_path / 't.csv'}", "--label-columns", "price", "--type", "price=number")
    run("ingest", "files", work[0], *given, "--type", "day=date")
    run("fit", "ridge", *work, "--impute", "mean")
    trial = open_trial(work[1], None, None, 50)
    assert trial.task == "targets"
    fields = {field["name"]: field for field in trial.fields}
    assert [field["kind"] for field in fields.values()] == ["number", "category", "boolean", "date"]
    assert {field["decimal"] for field in fields.values()} == {","}
    assert all(field["missing"] for field in fields.values())
    example = {name: field["example"] for name, field in fields.items()}
    assert example == {"size": lines[1].split(";")[0].replace(",", "."), "color": "dark blue"} | {
        "organic": "false",
        "day": "2025-01-01",
    }
    cells = [text.replace(".", ",") if name == "size" else text for name, text in example.items()]
    written = ",".join(fields) + "\n" + ",".join(f'"{cell}"' for cell in cells) + "\n"
    (answer,) = trial.rows([sent(tmp_path, "row.csv", written)])
    assert answer["features"] == example
    assert answer["neighbors"][0]["sample"] == "0"
    (answer,) = trial.rows([sent(tmp_path, "row.csv", "size,color,organic,day\n,red,yes,2025-01-02\n")])
    assert answer["features"]["size"] is None


def test_all_labels_of_a_single_sample_are_predicted(tmp_path):
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(60, 4)), rng.random((60, 20)) < 0.2
    Samples({"x": X}, Y.astype(float)).write(str(tmp_path / "set.zarr"))
    dmo.MultiViewRidge().fit({"x": X}, Y).save(str(tmp_path / "model.zarr"))
    trial = open_trial(str(tmp_path / "model.zarr"), None, 3, 50)
    upload = sent(tmp_path, "new.npy", npy(array=X[:5]))
    few, (every,) = trial.rows([upload])[2], trial.rows([upload], only=2)
    assert (len(few["labels"]), len(every["labels"]), few["features"]) == (12, 20, {})
    assert every["labels"][:12] == few["labels"]
    assert (every["id"], trial.fields) == ("new.npy:2", [])
    with pytest.raises(UserError, match="there is no sample 5; pass a number below 5"):
        trial.rows([upload], only=5)
