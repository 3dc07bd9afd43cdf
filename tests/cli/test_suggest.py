"""Test suggestions of samples with unknown or probably wrong labels, and the files of annotation tools."""

import csv
import json
import os
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from cases import folds
from scenes import draw_images
from shell import record, run
from sklearn.base import clone

import dmo
from dmo import MultiViewRidge, Nystrom, stores
from dmo.datasets import Samples
from dmo.decoders import Calibration, Scores
from dmo.errors import UserError
from dmo.workflows.images import stored_image
from dmo.workflows.rows import open_trial
from dmo.workflows.suggest import as_csv, read_answers
from dmo.workflows.trial import Upload, corrections_csv

NAMES = ["sun", "sea", "fir"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Create a store with ten unlabeled and three mislabeled samples, and a model fitted to the labeled samples."""
    where, rng = tmp_path_factory.mktemp("suggest"), np.random.default_rng(0)
    X = rng.normal(size=(90, 3))
    Y = (X > 0.3).astype(np.uint8)
    Y[np.flatnonzero(~Y.any(axis=1)), 0] = 1
    Y[:80][[7, 19, 33]] = 1 - Y[[7, 19, 33]]
    Y[80:], X[85] = 0, 40.0
    Samples({"x": X}, Y, NAMES).write(str(where / "f.zarr"))
    MultiViewRidge("rbf", ridge=0.1, approximation="exact").fit({"x": X[:80]}, Y[:80]).save(str(where / "m.zarr"))
    return where


def test_wrong_labels_and_samples_unlike_the_others_are_found(folder):
    found = record("suggest", folder / "m.zarr", folder / "f.zarr", "--count", 6)["suggested"]
    by_kind = {
        why: [row["sample"] for row in found if row["why"] == why] for why in ("uncertain", "wrong", "different")
    }
    assert len({"7", "19", "33"} & set(by_kind["wrong"])) >= 2
    assert all(row["doubts"] for row in found if row["why"] == "wrong" and row["value"] > 0.5)
    assert {int(sample) for why in ("uncertain", "different") for sample in by_kind[why]} <= set(range(80, 90))
    values = [row["value"] for row in found if row["why"] == "different"]
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize(
    "given",
    [
        {"prepare": "l2"},
        {"prepare": "standard"},
        {"intercept": True, "prepare": "none"},
        {"decoder": Scores(standardize=1.0), "prepare": "none"},
        {"decoder": Calibration(), "prepare": "none"},
    ],
    ids=str,
)
def test_doubts_are_those_of_fits_that_have_not_seen_the_sample(given, folder, tmp_path):
    store = stores.open_features(str(folder / "f.zarr"))
    X, Y = store.views["x"][:80], store.labels[:80]
    model = MultiViewRidge("rbf", ridge=0.1, approximation="exact", **given).fit({"x": X}, Y)
    model.save(str(tmp_path / "m.zarr"))
    fold, raw = folds(X, Y), np.zeros(Y.shape)
    plain = clone(model).set_params(intercept=False, decoder=None)
    for number in range(fold.max() + 1):
        fitted = plain.fit({"x": X[fold != number]}, Y[fold != number])
        raw[fold == number] = fitted.decision_function({"x": X[fold == number]})
    p = model.decoding_.probabilities([raw if model.decoding_.ranks else model.rule_(raw)])
    found = record("suggest", tmp_path / "m.zarr", folder / "f.zarr", "--kind", "wrong", "--count", 80)["suggested"]
    values = {int(row["sample"]): row["value"] for row in found}
    assert values == pytest.approx(dict(enumerate(np.abs(Y - p).max(axis=1))), abs=1e-6)


def test_wrong_labels_are_found_by_votes_as_well(folder, tmp_path):
    store = stores.open_features(str(folder / "f.zarr"))
    dmo.NeighborVotes().fit({"x": store.views["x"][:80]}, store.labels[:80]).save(str(tmp_path / "m.zarr"))
    found = record("suggest", tmp_path / "m.zarr", folder / "f.zarr", "--kind", "wrong", "--count", 8)["suggested"]
    assert len({"7", "19", "33"} & {row["sample"] for row in found}) >= 2


def test_cells_that_a_spreadsheet_would_run_are_guarded():
    found = [{"sample": "=a.png", "why": "wrong", "value": 0.9, "labels": ["@sea", "sky"], "doubts": ["+1"]}]
    (row,) = csv.DictReader(as_csv(found, "").splitlines())
    assert row == {
        "filepath": "./=a.png",
        "sample": "'=a.png",
        "why": "wrong",
        "value": "0.9",
        "labels": "'@sea;sky",
        "doubts": "'+1",
        "suggested": "'@sea;sky",
    }


def test_files_of_annotation_tools_come_and_go(folder):
    tasks, table = folder / "tasks.json", folder / "look.csv"
    command = ["suggest", folder / "m.zarr", folder / "f.zarr"]
    run(*command, tasks, "--kind", "different", "--count", 2, "--prefix", "/pics/")
    run(*command, table, "--kind", "wrong", "--count", 3)
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["why"] for row in rows] == ["wrong"] * 3
    assert rows[0]["filepath"] == rows[0]["sample"]
    made = json.loads(tasks.read_text())
    assert made[0]["data"]["image"] == "/pics/" + made[0]["data"]["sample"]
    skipped = {"was_cancelled": True, "result": []}
    made[0]["annotations"] = [{"result": made[0]["predictions"][0]["result"]}, skipped]
    tasks.write_text(json.dumps(made))
    chosen = made[0]["predictions"][0]["result"][0]["value"]["choices"]
    assert read_answers(tasks) == {made[0]["data"]["sample"]: chosen}
    with pytest.raises(
        UserError, match=r"no label differs from dmo suggest; correct them, or remove the column 'suggested'"
    ):
        read_answers(table)
    table.write_text(table.read_text().replace(rows[0]["labels"], "fir;moss", 1))
    assert read_answers(table)[rows[0]["sample"]] == ["fir", "moss"]
    agreed = [",".join(line.split(",")[:-1]) for line in table.read_text().splitlines()]
    table.write_text("\n".join(agreed))
    assert read_answers(table)[rows[1]["sample"]] == rows[1]["labels"].split(";")
    assert "expected some of uncertain, wrong, different" in run(*command, "--kind", "odd", code=2).stderr


ANSWERED = {"1.jpg": ["sea", "sky"], "2.jpg": ["=fir"], "3.jpg": []}
TASKS = [
    {
        "id": 9,
        "data": {"image": "/d/x.jpg", "sample": name},
        "annotations": [{"result": [{"value": {"choices": labels}}]}],
    }
    for name, labels in ANSWERED.items()
]
MIN = {"id": 9, "annotator": 1, "annotation_id": 1, "created_at": "2024-01-01T00:00:00Z", "lead_time": 3.4}
FORMS = {
    "label studio.json": json.dumps(TASKS),
    "json-min.json": json.dumps(
        [{"id": 9, "image": "x", "sample": name, "labels": {"choices": labels}} for name, labels in ANSWERED.items()]
    ),
    "label studio.csv": 'id,sample,labels\n9,1.jpg,"{""choices"": [""sea"", ""sky""]}"\n10,2.jpg,=fir\n11,3.jpg,\n',
    "json-min of the templates.json": json.dumps(
        [
            MIN | {"image": "/data/upload/1/0b0f-1.jpg", "sample": "1.jpg", "choice": {"choices": ["sea", "sky"]}},
            MIN | {"image": "/data/upload/1/5a3e-2.jpg", "sample": "2.jpg", "choice": "=fir"},
            MIN | {"image": "/data/upload/1/7c11-3.jpg", "sample": "3.jpg"},  # this submission has no choice
        ]
    ),
    "label studio of the templates.csv": "annotation_id,annotator,choice,created_at,id,image,lead_time,sample,updated_at\n"
    '1,1,"{""choices"": [""sea"", ""sky""]}",2024-01-01T00:00:00Z,9,/data/upload/1/x.jpg,4.2,1.jpg,2024-01-01T00:00:00Z\n'
    "2,1,=fir,2024-01-01T00:00:00Z,10,/data/upload/1/y.jpg,1.2,2.jpg,2024-01-01T00:00:00Z\n"
    "3,1,,2024-01-01T00:00:00Z,11,/data/upload/1/z.jpg,1.2,3.jpg,2024-01-01T00:00:00Z\n",
    "fiftyone.csv": "filepath,label\n/d/1.jpg,sea;sky\n/d/2.jpg,=fir\n/d/3.jpg,\n".replace("/d/", ""),
    "suggested.csv": "filepath,sample,labels\n/d/1.jpg,1.jpg,sea;sky\n/d/2.jpg,2.jpg,=fir\n/d/3.jpg,3.jpg,\n",
    "corrections.csv": "\ufeffsample,labels\r\n1.jpg,sea;sky\r\n2.jpg,'=fir\r\n3.jpg,\r\n",
    "fiftyone.json": json.dumps(
        {
            "classes": ["sea", "sky", "=fir"],
            "labels": {"1.jpg": [0, 1], "2.jpg": {"label": 2}, "3.jpg": [], "4.jpg": None},
        }
    ),
    "named.json": json.dumps(
        {"classes": None, "labels": {k: [{"label": v} for v in vs] for k, vs in ANSWERED.items()}}
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_answers_come_in_the_forms_that_tools_write(name, tmp_path):
    (tmp_path / name).write_text(FORMS[name])
    assert read_answers(tmp_path / name) == ANSWERED


@pytest.mark.parametrize(
    ("name", "text"), [("a.json", "[1]"), ("a.json", "{}"), ("a.csv", "x,y\n1,2\n"), ("a.json", "no"), ("a.csv", None)]
)
def test_what_holds_no_answers_is_refused(name, text, tmp_path):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=r"contains no answers|cannot be read"):
        read_answers(tmp_path / name)


def test_cells_of_a_megabyte_are_read_and_pipes_refused(tmp_path):
    before, sky = csv.field_size_limit(1 << 17), "sky" * (1 << 19)
    (tmp_path / "long.csv").write_text(f"sample,labels,text\n1.jpg,sea;{sky},{sky}\n")
    (tmp_path / "long.json").write_text(json.dumps([{"sample": "1.jpg", "labels": {"choices": ["sea", sky]}}]))
    for name in ("long.csv", "long.json"):
        assert read_answers(tmp_path / name) == {"1.jpg": ["sea", sky]}
    csv.field_size_limit(before)
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(UserError, match=r"pipe.csv: is a pipe or a device, expected a file"):
        read_answers(tmp_path / "pipe.csv")


BOX = {"x": 10, "y": 20, "width": 30, "height": 40, "rectanglelabels": ["sea"]}


def task(*result, **data):
    return [{"id": 9, "data": {"sample": "1.jpg"} | data, "annotations": [{"result": list(result)}]}]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (task({"type": "rectanglelabels", "value": BOX}), "entry 0 holds rectanglelabels, expected choices"),
        (task({"type": "taxonomy", "value": {"taxonomy": [["a", "b"]]}}), "holds taxonomy"),
        (task({"type": "labels", "value": {"start": 0, "end": 3, "labels": ["PER"]}}), "holds labels"),
        ([MIN | {"sample": "1.jpg", "label": [BOX]}], "holds rectanglelabels"),
        (
            [MIN | {"sample": "1.jpg", "choice": "sea", "labels": "sky"}],
            "expected one field of labels, got choice and labels",
        ),
        ([MIN | {"sample": "1.jpg"}], "expected one field of labels, got none"),
        ([{"sample": "1.jpg", "choice": "sea"}, {"sample": "2.jpg"}], "entry 1 has no 'choice'"),
        ([MIN | {"img": "1.jpg", "choice": "sea"}], "entry 0 has no sample name"),
        ([{"sample": "1.jpg", "choice": None}], "entry 0 holds null"),
        ({"classes": ["a", "b"], "labels": {"1": -1}}, "image '1' is of class -1, there are 2 classes"),
        ({"classes": ["a", "b"], "labels": {"1": 2}}, "of class 2"),
        ({"classes": ["a", "b"], "labels": {"1": True}}, "holds true"),
        ({"classes": ["a", "b"], "labels": {"1": [0, None]}}, "holds null"),
        ({"images": [], "annotations": [], "categories": []}, "it has images, annotations, categories"),
        ('{"classes": ["a", "b"], "labels": {"1": 0, "1": 1}}', "'1' occurs twice"),
        ([{"sample": "1.jpg", "labels": ["a"]}, {"sample": "1.jpg", "labels": ["b"]}], "has the answers"),
        ("[" * 100_000, "RecursionError"),
        ("sample,labels\n1.jpg,sea,sky\n", "line 2 has 3 fields, the first line 2"),
        ("sample,labels\n1.jpg\n", "line 2 has 1 fields"),
        ("sample,labels\n1.jpg,sea\n1.jpg,sky\n", r"'1.jpg' has the answers \['sea'\] and \['sky'\]"),
        ("sample,labels,labels\n1.jpg,sea,sky\n", "has a column name twice"),
        ("sample,tags,when\n1.jpg,sea,now\n", "expected one field of labels, got none"),
    ],
)
def test_what_is_not_understood_is_refused_by_its_name_and_never_read_as_no_label(given, said, tmp_path):
    path = tmp_path / ("a.csv" if isinstance(given, str) and given.startswith("sample") else "a.json")
    path.write_text(given if isinstance(given, str) else json.dumps(given))
    with pytest.raises(UserError, match=rf"contains no answers \(.*{said}") as refused:
        read_answers(path)
    assert len(str(refused.value)) < 800


def test_labels_with_the_mark_between_labels_are_read_back(tmp_path):
    entry = {"sample": "1.jpg", "why": "wrong", "value": 0.9, "labels": ["a;b", "{c}", "d"], "doubts": ["a;b"]}
    (tmp_path / "a.csv").write_text(as_csv([entry], "").replace('d""]}",', 'e""]}",', 1))
    assert read_answers(tmp_path / "a.csv") == {"1.jpg": ["a;b", "{c}", "e"]}


def test_answers_are_counted_as_new_changed_and_empty(folder, tmp_path):
    (tmp_path / "a.csv").write_text("sample,labels\n84,sea\n85,sun\n0,\n")
    (tmp_path / "b.csv").write_text("sample,labels\n84,fir\n")
    command = ["update", folder / "m.zarr", folder / "f.zarr", tmp_path / "n.zarr", tmp_path / "a.csv"]
    found = record(*command)
    assert [found[name] for name in ("new_answers", "changed_answers", "empty_answers")] == [2, 1, 1]
    assert "3 answers (2 new, 1 changed, 1 without a label)" in run(*command, "--overwrite").stdout
    assert (
        "sample '84' has the answers ['sea'] and ['fir']"
        in run(*command, tmp_path / "b.csv", "--overwrite", code=2).stderr
    )
    (tmp_path / "c.csv").write_text("image,labels\n/x/84,fir\n/y/84,sea\n")
    assert "keep one answer" in run(*command[:-1], tmp_path / "c.csv", "--overwrite", code=2).stderr


def test_answers_go_into_the_next_model_and_are_not_asked_for_again(folder, tmp_path):
    X = dmo.stores.open_features(str(folder / "f.zarr")).views["x"][:]
    truth = (X > 0.3).astype(np.uint8)
    truth[~truth.any(axis=1), 0] = 1
    model, given = folder / "m.zarr", dmo.stores.open_features(str(folder / "f.zarr")).labels.copy()
    seen: set[int] = set()
    for number in range(2):
        tasks, answers, new = (tmp_path / f"{number}{what}" for what in ("t.json", "a.csv", "m.zarr"))
        run("suggest", model, folder / "f.zarr", tasks, "--count", 3, "--prefix", "http://pics/")
        asked = [int(task["data"]["sample"]) for task in json.loads(tasks.read_text())]
        assert not set(asked) & seen
        seen |= set(asked)
        labels = [";".join(np.array(NAMES)[truth[row] > 0]) for row in asked]
        rows = [f"http://pics/{row},{said}" for row, said in zip(asked, labels, strict=True)]
        answers.write_text("\n".join(["image,labels", *rows]))
        found = record("update", model, folder / "f.zarr", new, answers)
        given[asked] = truth[asked]
        assert found["answers"] == len(set(asked))
        model = new
    rows = sorted(seen | set(range(80)))
    wanted = MultiViewRidge("rbf", ridge=0.1, approximation="exact").fit({"x": X[rows]}, given[rows])
    np.testing.assert_allclose(
        dmo.load(str(model)).decision_function({"x": X}), wanted.decision_function({"x": X}), atol=1e-6
    )
    assert dmo.load(str(model)).label_names_ == NAMES
    assert f"labels assigned by people to {len(seen)} samples" in run("info", model).stdout


def test_a_model_that_goes_on_learns_from_new_answers_alone(folder, tmp_path):
    X = dmo.stores.open_features(str(folder / "f.zarr")).views["x"][:80]
    Y = dmo.stores.open_features(str(folder / "f.zarr")).labels[:80]
    make = lambda: MultiViewRidge("linear", approximation=Nystrom(rank=3)).partial_fit({"x": X}, Y)  # noqa: E731
    make().save(str(tmp_path / "m.zarr"))
    (tmp_path / "a.csv").write_text("sample,labels\n84,sea\n85,moon\n")
    command = ["update", tmp_path / "m.zarr", folder / "f.zarr", tmp_path / "n.zarr", tmp_path / "a.csv"]
    assert "'moon', which is not among the 3 labels" in run(*command, code=2).stderr
    assert record(*command, "--new-labels")["goes_on"]
    more = dmo.stores.open_features(str(folder / "f.zarr")).views["x"][84:86]
    wanted = make().partial_fit({"x": more}, np.array([[0, 1, 0, 0], [0, 0, 0, 1]]))
    found = dmo.load(str(tmp_path / "n.zarr"))
    np.testing.assert_allclose(found.decision_function({"x": X}), wanted.decision_function({"x": X}), atol=1e-6)
    assert found.label_names_ == [*NAMES, "moon"]
    (tmp_path / "a.csv").write_text("sample,labels\n3,sea\n")  # sample 3 is a training sample
    assert not record(*command[:-2], tmp_path / "o.zarr", tmp_path / "a.csv")["goes_on"]
    (tmp_path / "a.csv").write_text("sample,labels\nelsewhere,sea\n")
    assert "'elsewhere', which" in run(*command[:-2], tmp_path / "p.zarr", tmp_path / "a.csv", code=2).stderr


def test_a_model_of_a_command_keeps_its_training_samples_without_labels(tmp_path):
    """Training rows without labels are samples to which no label applies. They affect the label frequencies."""
    X = np.random.default_rng(1).normal(size=(40, 3))
    Y = (X > 1).astype(np.uint8)
    assert not Y.any(axis=1).all()
    Samples({"x": X}, Y, NAMES).write(str(tmp_path / "f.zarr"))
    run("fit", "ridge", tmp_path / "f.zarr", tmp_path / "m.zarr", "--no-label-sets")
    (tmp_path / "a.csv").write_text("sample,labels\n3,sea\n")
    found = record("update", tmp_path / "m.zarr", tmp_path / "f.zarr", tmp_path / "n.zarr", tmp_path / "a.csv")
    assert found["n_samples"] == 40


@pytest.mark.parametrize("classes", [["sun", "sea"], [1, 2]])
def test_answers_with_a_new_class(classes, tmp_path):
    X = np.random.default_rng(1).normal(size=(40, 3))
    y = np.array(classes)[(X[:, 0] > 0).astype(int)]
    Samples({"x": X}, np.eye(2)[(X[:, 0] > 0).astype(int)], [str(c) for c in classes]).write(str(tmp_path / "f.zarr"))
    order = np.unique(y)
    assert list(order) == sorted(classes)
    MultiViewRidge("linear").fit({"x": X}, y).save(str(tmp_path / "m.zarr"))
    (tmp_path / "a.csv").write_text("sample,labels\n3,marsh\n")
    command = [
        "update",
        tmp_path / "m.zarr",
        tmp_path / "f.zarr",
        tmp_path / "n.zarr",
        tmp_path / "a.csv",
        "--new-labels",
    ]
    if isinstance(classes[0], int):
        assert "classes of the model are numbers" in run(*command, code=2).stderr
    else:
        run(*command)
        assert dmo.load(str(tmp_path / "n.zarr")).classes_.tolist() == ["marsh", "sea", "sun"]


@pytest.fixture(scope="module")
def farm(tmp_path_factory):
    """Create a table of 120 animals of three kinds, and a model fitted to 30 animals, half of which are mislabeled."""
    where, rng = tmp_path_factory.mktemp("farm"), np.random.default_rng(3)
    kind = np.arange(120) % 3
    table = pd.DataFrame(rng.normal(size=(120, 3)) + 2.5 * np.eye(3)[kind], columns=["ear", "leg", "tail"])
    table.insert(0, "animal", [f"s{i:03d}" for i in range(120)])
    table["kind"] = np.array(["cow", "hen", "pig"])[kind]
    known = table[:60].copy()
    known["part"] = np.where(np.arange(60) < 30, "train", "test")
    known.loc[:30:2, "kind"] = np.array(["cow", "hen", "pig"])[(kind[:31:2] + 1) % 3]
    known.to_csv(where / "known.csv", index=False)
    table[60:].drop(columns="kind").to_csv(where / "new.csv", index=False)
    options = ["--label-columns", "kind", "--id", "animal", "--split-column", "part"]
    run("ingest", "files", where / "known.zarr", "--view", f"x={where / 'known.csv'}", *options)
    run("fit", "ridge", where / "known.zarr", where / "m.zarr")
    return where, table[60:]


def test_samples_that_a_split_holds_out_are_suggested_only_where_it_is_named(farm, tmp_path):
    where, _ = farm
    for split, rows in ((None, range(30)), ("test", range(30, 60)), ("all", range(60))):
        named = [] if split is None else ["--split", split]
        found = record("suggest", where / "m.zarr", where / "known.zarr", "--kind", "wrong", "--count", 60, *named)
        assert {row["sample"] for row in found["suggested"]} == {f"s{row:03d}" for row in rows}
        assert found["n_samples"] == len(rows)
    new, held = np.ones((2, 3)), str(tmp_path / "held.zarr")
    Samples({"x": new}, np.eye(3)[:2], ["cow", "hen", "pig"], split=np.array(["test", "val"]), classes=True).write(held)
    said = run("suggest", where / "m.zarr", held, code=2).stderr
    assert "has only samples of test, val; pass --split with one of them" in said


@pytest.mark.parametrize("named", [True, False])
def test_what_the_page_was_shown_goes_into_the_next_model_and_is_judged_on_the_test_samples(named, farm, tmp_path):
    where, table = farm
    file = tmp_path / "new.csv"
    table.drop(columns=["kind"] if named else ["kind", "animal"]).to_csv(file, index=False)
    shown = open_trial(str(where / "m.zarr"), None, None, 100).rows([Upload("new.csv", file)])
    ids = list(table.animal) if named else [f"new.csv:{i}" for i in range(60)]
    assert [one["id"] for one in shown] == ids
    right = list(zip(ids, ([kind] for kind in table.kind)))
    (tmp_path / "corrections.csv").write_text(corrections_csv([*right[:50], ("s000", ["cow"])]))
    command = "update", where / "m.zarr", where / "known.zarr", tmp_path / "next.zarr", tmp_path / "corrections.csv"
    assert "or --new with its table or folder" in run(*command, code=2).stderr
    done = run(*command, "--new", file)
    assert re.search(r"accuracy [\d.]+ % -> [\d.]+ % on 30 test samples", done.stdout)
    found = record(*command, "--new", file, "--overwrite")
    grown = stores.open_features(tmp_path / "next-samples.zarr")
    assert grown.sample_ids[60:] == ids[:50]
    assert list(grown.split[60:]) == ["train"] * 50
    known = stores.open_features(where / "known.zarr")
    rows = [0, *range(1, 30), *range(60, 110)]
    y = [*np.array(known.label_names)[known.labels[:30].argmax(axis=1)], *table.kind[:50]]
    y[0] = "cow"
    wanted = clone(dmo.load(str(where / "m.zarr"))).fit({"x": grown.views["x"][:][rows]}, y)
    X = grown.views["x"][:]
    np.testing.assert_allclose(
        dmo.load(str(tmp_path / "next.zarr")).decision_function({"x": X}), wanted.decision_function({"x": X}), atol=1e-6
    )
    truth = np.array(known.label_names)[known.labels[30:].argmax(axis=1)]
    for when, model in (("before", dmo.load(str(where / "m.zarr"))), ("after", wanted)):
        assert found["test"][when]["accuracy"] == (model.predict({"x": X[30:60]}) == truth).mean()
    assert found["test"]["after"]["accuracy"] > found["test"]["before"]["accuracy"]
    (tmp_path / "more.csv").write_text(corrections_csv([(ids[0], ["pig"])]))
    again = record(
        "update", tmp_path / "next.zarr", tmp_path / "next-samples.zarr", tmp_path / "last.zarr", tmp_path / "more.csv"
    )
    assert (again["changed_answers"], again["all_answers"], again["n_samples"]) == (1, 51, 80)
    assert again["test"]["before"]["samples"] == 30
    over = (
        "update",
        tmp_path / "next.zarr",
        tmp_path / "next-samples.zarr",
        tmp_path / "next.zarr",
        tmp_path / "more.csv",
    )
    assert "would be written while it is read" in run(*over, "--new", file, "--overwrite", code=2).stderr
    everything = run(
        "update", *command[1:3], tmp_path / "all.zarr", tmp_path / "more.csv", "--new", file, "--split", "all"
    )
    assert "test samples" not in everything.stdout  # all test samples were used in the fit


def test_images_that_the_page_was_shown_go_into_the_next_model(tmp_path):
    table = draw_images(tmp_path / "pics", 24)
    run("extract", tmp_path / "pics", tmp_path / "f.zarr", "--set", "moments,wavelets", "--labels", table)
    run("fit", "ridge", tmp_path / "f.zarr", tmp_path / "m.zarr")
    names, ids = (getattr(stores.open_features(tmp_path / "f.zarr"), what) for what in ("label_names", "sample_ids"))
    (tmp_path / "dropped").mkdir()
    (tmp_path / "dropped" / "no.jpg").write_text("no image")
    for number in range(3):
        shutil.copy(tmp_path / "pics" / ids[number], tmp_path / "dropped" / f"new{number}.png")
    (tmp_path / "corrections.csv").write_text(corrections_csv([(f"new{i}.png", [names[i]]) for i in range(2)]))
    command = tmp_path / "m.zarr", tmp_path / "f.zarr", tmp_path / "n.zarr", tmp_path / "corrections.csv"
    done = run("update", *command, "--new", tmp_path / "dropped")
    assert "no.jpg" in done.stderr
    grown = stores.open_features(tmp_path / "n-samples.zarr")
    assert grown.sample_ids == [*ids, "new0.png", "new1.png"]
    for view in grown.views.values():
        np.testing.assert_array_equal(view[:][24:], view[:][:2])
    # The new model can annotate image files, as the old model can.
    run("annotate", tmp_path / "n.zarr", tmp_path / "dropped", tmp_path / "n.csv")
    assert stored_image(grown, ids[0]) is not None
