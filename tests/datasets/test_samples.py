"""Read user files and tables as samples, and write the samples to stores."""

import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse
from PIL import Image
from sklearn.datasets import dump_svmlight_file
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import accuracy_score

import dmo
from dmo import KGHA, MultiViewRidge, Prepare
from dmo.blocks import dense
from dmo.datasets import DataError, ingest_files, read_samples
from dmo.errors import UserError
from dmo.features import list_images
from dmo.formats.labels import checked_numbers, label_matrix
from dmo.formats.schema import TableOptions
from dmo.stores import describe, open_features, open_results, verify
from dmo.workflows.suggest import read_answers
from tests.shell import record, run

RNG = np.random.default_rng(0)
N = 60
IDS = [f"img{i:02d}.jpg" for i in range(N)]
TABLE = pd.DataFrame(
    {
        "image": IDS,
        "width": RNG.normal(size=N).round(3),
        "area": (9000 * RNG.random(N)).round(1),
        "color": RNG.choice(["red", "dark blue"], N),
    }
)
NAMES = ["boat", "sea", "sky"]
Y = (RNG.random((N, 3)) < 0.5).astype(np.uint8)
Y[:3] = np.eye(3)
ORDER = RNG.permutation(N)
FEATURES = np.column_stack([TABLE["width"], TABLE["area"], TABLE["color"] == "dark blue", TABLE["color"] == "red"])
TAGS = pd.DataFrame({"image": IDS, "tags": ["|".join(np.array(NAMES)[row > 0]) for row in Y]}).iloc[ORDER]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    TABLE.to_csv("x.csv", index=False)
    TAGS.to_csv("tags.csv", index=False)


WRITERS = {
    "plain": lambda: TABLE.to_csv("t.csv", index=False),
    "semicolon, decimal comma, byte order mark": lambda: TABLE.to_csv(
        "t.csv", sep=";", decimal=",", index=False, encoding="utf-8-sig"
    ),
    "index column": lambda: TABLE.to_csv("t.csv"),
    "quotes and tabs": lambda: TABLE.to_csv("t.csv", sep="\t", index=False, quoting=1),
    "Latin-1": lambda: TABLE.rename(columns={"width": "breité"}).to_csv("t.csv", index=False, encoding="latin-1"),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_tables_are_read_as_they_are_written(kind):
    WRITERS[kind]()
    samples = read_samples("t.csv", labels="tags.csv", id="image", test_share=0.2)
    np.testing.assert_allclose(samples.views["x"], FEATURES)
    assert samples.feature_names["x"][1:] == ["area", "color=dark blue", "color=red"]
    assert (samples.ids, samples.label_names) == (IDS, NAMES)
    np.testing.assert_array_equal(samples.labels, Y)
    assert len(samples.test.ids) == N // 5
    assert any("first column counts the rows" in note for note in samples.notes) == (kind == "index column")
    fitted = MultiViewRidge().fit(samples.train.views, samples.train.labels)
    assert fitted.predict(samples.test.views).shape == (N // 5, 3)


def test_a_share_of_every_label_is_tested():
    samples = read_samples("x.csv", labels="tags.csv", id="image", test_share=0.25)
    for column in Y.T:
        assert abs(column[samples.split == "test"].sum() - column.sum() / 4) <= 1


@pytest.mark.parametrize(
    ("made", "names", "expected"),
    [
        (pd.DataFrame(Y, columns=NAMES), NAMES, Y),
        (pd.DataFrame(Y.astype(bool), columns=NAMES), NAMES, Y),
        (pd.DataFrame({"kind": np.where(Y[:, 0], "cat", "dog")}), ["cat", "dog"], np.stack([Y[:, 0], 1 - Y[:, 0]], 1)),
        (pd.DataFrame({"kind": 3 + Y[:, 0]}), ["3", "4"], np.stack([1 - Y[:, 0], Y[:, 0]], 1)),
        (pd.DataFrame({"a": RNG.normal(size=N), "b": 2.0}), ["a", "b"], None),
    ],
    ids=["0/1", "true and false", "words", "numbers of classes", "targets"],
)
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_labels_of_every_form_keep_their_names(made, names, expected, ending):
    table = made.assign(image=IDS).iloc[ORDER]
    table.to_csv("y.csv", index=False) if ending == "csv" else table.to_parquet("y.parquet")
    samples = read_samples("x.csv", labels=f"y.{ending}", id="image")
    assert (samples.label_names, samples.real) == (names, expected is None)
    np.testing.assert_allclose(samples.labels, made.to_numpy() if expected is None else expected)
    samples.write("s.zarr")
    store = open_features("s.zarr")
    assert store.real_labels == (expected is None)
    np.testing.assert_allclose(store.labels, samples.labels)
    assert store.feature_names("x") == samples.feature_names["x"]
    assert verify("s.zarr") == []


WORDS = np.array(["10", "9", "low"], dtype=object)[RNG.integers(3, size=N)]
WORDS[7] = "rare"  # this class has no training samples


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ridge", "kgha", "morp", "lltsvr"])
def test_one_column_of_classes_is_learned_annotated_and_judged_as_classes(name):
    place = {"10": 0.0, "9": 2.0, "low": 5.0, "rare": 9.0}
    table = TABLE.assign(width=[place[word] for word in WORDS] + RNG.normal(scale=0.7, size=N))
    table.assign(part=np.where(np.arange(N) % 3 == 1, "test", "train")).to_csv("x.csv", index=False)
    pd.DataFrame({"image": IDS, "kind": WORDS}).iloc[ORDER].to_csv("y.csv", index=False)
    samples = read_samples("x.csv", labels="y.csv", id="image", split="part")
    assert samples.classes
    assert samples.y.tolist() == WORDS.tolist()
    join = ["--view", "x=x.csv", "--labels", "y.csv", "--id", "image", "--split-column", "part"]
    assert "labels 4, classes, one a sample" in run("ingest", "files", "s.zarr", *join).stdout
    assert "classes, one a sample" in run("info", "s.zarr").stdout
    run("fit", name, "s.zarr", "m.zarr")
    model, new, truth = dmo.load("m.zarr"), {"x": samples.test.views["x"]}, samples.test.y
    predicted = model.predict(new)
    assert model.classes_.tolist() == ["10", "9", "low"]
    assert "3 classes" in run("info", "m.zarr").stdout
    expected = accuracy_score(truth, predicted)
    assert 0.4 < expected < 1.0  # the unknown class is never predicted
    judged = record("evaluate", "m.zarr", "s.zarr")
    assert judged["accuracy"] == pytest.approx(expected)
    assert judged["top"] == 1
    run("annotate", "m.zarr", "s.zarr", "a.zarr", "--csv", "a.csv")
    given = pd.read_csv("a.csv", dtype=str)
    assert given["label 1"].tolist() == predicted.tolist()
    assert list(given.columns) == ["sample", "label 1"]
    folds = record("evaluate", "m.zarr", "s.zarr", "--split", "train", "--cv", 2)
    assert 0.4 < folds["accuracy"] <= 1.0
    if name == "ridge":
        page = record("report", "m.zarr", "s.zarr", "p.html", "--jec")
        assert page["methods"]["MultiViewRidge (m)"]["accuracy"] == pytest.approx(expected)


@pytest.mark.parametrize("name", ["ridge", "lltsvr"])
def test_classes_are_tuned_by_what_their_predictions_are_judged_by(name):
    pd.DataFrame({"image": IDS, "kind": np.where(Y[:, 0], "cat", "dog")}).to_csv("y.csv", index=False)
    TABLE.assign(width=Y[:, 0] + 0.3 * TABLE["width"]).to_csv("x.csv", index=False)
    run("ingest", "files", "s.zarr", "--view", "x=x.csv", "--labels", "y.csv", "--id", "image", "--test-share", 0.25)
    grid = ["--ridge", "0.1,1"] if name == "ridge" else ["--C", "1,10", "--tol", "1e-2"]
    found = record("tune", name, "s.zarr", "m.zarr", *grid, "--folds", 2)
    assert found["metric"] == "accuracy"
    assert record("annotate", "m.zarr", "s.zarr", "a.zarr")["columns"] == 1


def test_machines_are_tuned_on_classes_given_by_name():
    names = np.where(Y[:, 0], "cat", "dog")
    model = dmo.tune(
        dmo.LLTSVR(tol=1e-2, frame="identity"), FEATURES + 9 * Y[:, :1], names, grid={"C": [1.0, 10.0]}, cv=2
    )
    assert (model.predict(FEATURES + 9 * Y[:, :1]) == names).mean() > 0.9


@pytest.mark.parametrize("kind", ["svm", "arff"])
def test_classes_of_formats_that_hold_them_are_classes(kind):
    if kind == "svm":
        dump_svmlight_file(FEATURES, 2 * Y[:, 0] - 1.0, "x.svm")
    else:
        rows = "".join(f"{x},{'ab'[y]}\n" for x, y in zip(FEATURES[:, 0], Y[:, 0]))
        Path("x.arff").write_text("@relation r\n@attribute x real\n@attribute class {a,b}\n@data\n" + rows)
    store = ingest_files({"x": f"x.{kind}"}, "s.zarr", labels=None if kind == "svm" else ["class"])
    assert store.class_labels
    np.testing.assert_array_equal(store.labels, np.column_stack([1 - Y[:, 0], Y[:, 0]]))
    assert read_samples(f"x.{kind}", labels=["class"] if kind == "arff" else None).classes


def test_0_and_1_in_one_column_are_two_classes_named_by_it():
    pd.DataFrame({"good": Y[:, 0]}).to_csv("y.csv", index=False)
    pd.DataFrame(FEATURES).add_prefix("f").to_csv("n.csv", index=False)
    store = ingest_files({"x": "n.csv"}, "s.zarr", labels="y.csv")
    assert (store.class_labels, store.label_names) == (True, ["good=0", "good=1"])
    np.testing.assert_array_equal(store.labels[:, 1], Y[:, 0])
    np.save("y.npy", Y[:, 0])
    assert read_samples("n.csv", labels=np.load("y.npy")).label_names == ["0", "1"]


def test_an_index_of_pandas_beside_numbers_alone_is_no_feature():
    pd.DataFrame(FEATURES).add_prefix("f").to_csv("n.csv")
    np.save("y.npy", Y)
    done = run("ingest", "files", "s.zarr", "--view", "x=n.csv", "--labels", "y.npy")
    assert "the first column counts the rows and has no name" in done.stderr
    assert open_features("s.zarr").feature_names("x") == ["f0", "f1", "f2", "f3"]


def test_labels_may_be_rows_of_any_length_lists_or_columns_of_the_features():
    ragged = [[one, *np.array(NAMES)[row > 0]] for one, row in zip(IDS, Y)]
    Path("r.csv").write_text("\n".join(map(",".join, ragged)))
    lists = [row[1:] for row in ragged]
    for samples in (
        read_samples("x.csv", labels="r.csv", id="image"),
        read_samples(TABLE.drop(columns="image"), labels=lists),
        read_samples(TABLE.assign(**dict(zip(NAMES, Y.T))), labels=NAMES, id="image"),
    ):
        np.testing.assert_array_equal(samples.labels, Y)
        assert samples.feature_names["x"][:2] == ["width", "area"]


REFUSED = {
    "dates": ({"taken": "2020-01-02"}, "column 'taken' has dates"),
    "free text": ({"note": [f"a long text number {i}" for i in range(N)]}, "column 'note' has free text"),
    "names": ({"code": [f"c{i}" for i in range(N)]}, "column 'code' has 60 different values"),
    "a typo": ({"width": ["1,5x", *TABLE["width"][1:]]}, "column 'width', row 0 is '1,5x', expected a number"),
    "an id twice": ({"image": ["img01.jpg", *IDS[1:]]}, "the id 'img01.jpg' occurs in 2 rows"),
    "an id that is missing": ({"image": [None, *IDS[1:]]}, "the id in row 0 is missing"),
    "other ids": ({"image": ["other.jpg", *IDS[1:]]}, "'labels' has no rows for 'other.jpg' of 'x'"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_feature_is_refused_by_name(kind):
    columns, match = REFUSED[kind]
    TABLE.assign(**columns).to_csv("t.csv", index=False)
    with pytest.raises(DataError, match=match):
        read_samples("t.csv", labels="tags.csv", id="image")


@pytest.mark.parametrize("first", ["", "kind\n"])
def test_words_one_a_line_are_classes_with_a_header_and_without(first):
    pd.DataFrame(VECTORS).add_prefix("a").to_csv("x.csv", index=False)
    Path("y.txt").write_text(first + "".join(f"{word}\n" for word in KINDS))
    samples = read_samples("x.csv", labels="y.txt")
    np.testing.assert_array_equal(np.array(samples.label_names)[samples.labels.argmax(axis=1)], KINDS)
    Path("y.txt").write_text("".join(f"{word}\n" for word in KINDS[1:]))
    with pytest.raises(
        UserError, match=f"view 'x' has {N} rows, but 'labels' has {N - 1}; pass the same samples in each"
    ):
        read_samples("x.csv", labels="y.txt")


def test_a_name_over_two_columns_and_a_header_of_numbers_are_noticed():
    Path("t.csv").write_text("a,b,a\n1,2,3\n")
    with pytest.raises(DataError, match="2 columns are named 'a', expected unique names"):
        ingest_files({"x": "t.csv"}, "s.zarr")
    pd.DataFrame(RNG.normal(size=(4, 3))).to_csv("t.csv", index=False)
    samples = read_samples("t.csv")
    assert samples.views["x"].shape == (4, 3)
    assert "the first line counts the columns" in samples.notes[0]


SEEN = np.where(np.arange(N)[:, None] == 7, np.nan, Y)


@pytest.mark.parametrize(
    ("made", "seen"),
    [
        (pd.DataFrame(SEEN, columns=NAMES), SEEN),
        (pd.DataFrame(np.where(np.isnan(SEEN), "", np.where(Y, "yes", "no")), columns=NAMES), SEEN),
        (pd.DataFrame({"kind": np.where(np.isnan(SEEN[:, 0]), "", np.where(Y[:, 0], "a", "b"))}), SEEN[:, [0]]),
        (pd.DataFrame({"kind": 3 - SEEN[:, 0]}), SEEN[:, [0]]),
        (pd.DataFrame({"depth": SEEN[:, 0] + 0.5, "width": SEEN[:, 1]}), SEEN[:, :2] + [0.5, 0]),
    ],
    ids=["0/1", "words for 0/1", "classes", "numbers of classes", "targets"],
)
def test_missing_labels_are_not_known_and_the_first_is_named(made, seen):
    made.assign(image=IDS).iloc[ORDER].to_csv("y.csv", index=False)
    samples = read_samples("x.csv", labels="y.csv", id="image")
    np.testing.assert_array_equal(samples.labels[:, : seen.shape[1]], seen)
    assert np.isnan(samples.labels[7]).all()
    assert any("(first: 'img07.jpg', column '" in note and "unknown labels" in note for note in samples.notes)
    store = samples.write("s.zarr")
    np.testing.assert_array_equal(store.labels, samples.labels)
    assert store.real_labels == samples.real
    assert verify("s.zarr") == []
    with pytest.raises(DataError, match="labels: row 3, column 'boat' is inf"):
        read_samples(
            TABLE[["width"]], labels=pd.DataFrame(np.where(np.arange(N)[:, None] == 3, np.inf, Y), columns=NAMES)
        )


@pytest.mark.slow
def test_a_view_that_lacks_samples_goes_through_every_command():
    """A row of NaN marks a sample that is missing in a view, in stores as in memory."""
    pixels = RNG.random((N, 4)) + Y[:, [0, 1, 2, 0]]
    pd.DataFrame(pixels).assign(image=IDS).drop(index=range(5, N, 6)).to_csv("b.csv", index=False)
    TAGS[TAGS["image"] != IDS[3]].to_csv("tags.csv", index=False)
    join = "--labels", "tags.csv", "--id", "image", "--how", "outer"
    said = run("ingest", "files", "s.zarr", "--view", "a=x.csv", "--view", "b=b.csv", *join, "--test-share", "0.3")
    assert "10 samples missing" in said.stdout
    assert "3 unknown" in said.stdout
    samples = read_samples({"a": "x.csv", "b": "b.csv"}, "tags.csv", id="image", how="outer", test_share=0.3)
    assert np.isnan(samples.labels[3]).all()
    store = open_features("s.zarr")
    np.testing.assert_array_equal(store.views["b"].present, ~np.isnan(samples.views["b"]).any(axis=1))
    np.testing.assert_array_equal(store.to_xarray()["b_present"], store.views["b"].present)
    info = run("info", "s.zarr").stdout
    assert "10 samples missing" in info
    assert "3 unknown (1 samples without known labels)" in info
    assert verify("s.zarr") == []
    for command, scored in (("ridge", MultiViewRidge), ("kgha", KGHA)):
        run("fit", command, "s.zarr", "m.zarr", "--overwrite")
        oracle = scored().fit(samples.train.views, samples.train.labels).decision_function(samples.test.views)
        run("annotate", "m.zarr", "s.zarr", "z.zarr", "--scores", "--overwrite")
        np.testing.assert_allclose(open_results("z.zarr")[:], oracle, rtol=1e-5, atol=1e-6)
    for command in (
        "transform m.zarr s.zarr t.zarr",
        "search m.zarr s.zarr --sample img05.jpg",
        "suggest m.zarr s.zarr",
    ):
        run(*command.split())
    assert record("evaluate", "m.zarr", "s.zarr", "--split", "all")["n_samples"] == N
    run("report", "m.zarr", "s.zarr", "page.html", "--split", "all")
    refused = run("fit", "embedding", "s.zarr", "n.zarr", "--view", "b", "--overwrite", code=2).stderr
    assert "in view 'b', 6 of 42 samples are missing" in refused


def test_arrays_with_missing_cells_rows_and_labels_are_ingested():
    X, seen = RNG.random((N, 3)).astype(np.float32), np.where(RNG.random((N, 3)) < 0.1, np.nan, Y)
    X[4, 1], X[6:8], X[9, 2] = np.nan, np.nan, np.nan
    np.savez("x.npz", X=X)
    np.save("y.npy", seen)
    store = ingest_files({"x": "x.npz", "words": "x.npz"}, "s.zarr", labels="y.npy")
    assert store.attributes["missing"]["x"] == {"1": 1, "2": 1}
    assert np.flatnonzero(~store.views["x"].present).tolist() == [6, 7]
    np.testing.assert_array_equal(store.labels, seen)
    assert "pass --impute mean, median or zero" in run("fit", "ridge", "s.zarr", "m.zarr", code=2).stderr
    run("fit", "ridge", "s.zarr", "m.zarr", "--impute", "median")


def test_tables_with_other_samples_are_joined_as_asked():
    TABLE[["image", "width"]].iloc[:-2].to_csv("b.csv", index=False)
    views = {"a": "x.csv", "b": "b.csv"}
    inner = read_samples(views, labels="tags.csv", id="image", how="inner")
    assert inner.ids == IDS[:-2]
    np.testing.assert_array_equal(inner.labels, Y[:-2])
    outer = read_samples(views, labels="tags.csv", id="image", how="outer")
    assert np.isnan(outer.views["b"]).all(axis=1).tolist() == [False] * (N - 2) + [True] * 2
    model = MultiViewRidge(prepare=Prepare(impute="mean")).fit(
        outer.views, outer.labels
    )  # view "b" has two missing samples
    assert np.isfinite(model.decision_function(outer.views)).all()


def test_many_rows_are_joined_by_their_ids_and_a_half_empty_column_is_half_unknown():
    n, order = 20_000, RNG.permutation(20_000)
    names = np.array([f"s{i}" for i in range(n)])
    table = pd.DataFrame({"id": names, "width": np.arange(n)})
    words = [None if i % 2 else ("sea", "sky")[i // 2 % 2] for i in range(n)]
    kinds = pd.DataFrame({"id": names, "kind": words})
    samples = read_samples(table, labels=kinds.iloc[order], id="id")
    expected = np.where(np.arange(n)[:, None] % 2, np.nan, np.arange(n)[:, None] // 2 % 2 == [0, 1])
    np.testing.assert_array_equal(samples.labels, expected)
    assert samples.ids == names.tolist()
    outer = read_samples(table, labels=kinds.iloc[order[: n // 2]], id="id", how="outer")
    without = np.ones(n, bool)
    without[order[: n // 2]] = False
    np.testing.assert_array_equal(np.isnan(outer.labels).all(axis=1), without | (np.arange(n) % 2 == 1))


def test_columns_of_numbers_between_words_keep_their_order_and_the_table_its_cells():
    table = pd.DataFrame({"a": [1, 2, 3], "b": [0.5, np.nan, 2], "word": ["x", "y", "x"], "c": [True, False, True]})
    table["d"], table["e"] = pd.array([1, None, 3], "Int64"), ["1", "2", None]
    samples = read_samples(table)
    assert samples.feature_names["x"] == ["a", "b", "word=x", "word=y", "c", "d", "e"]
    expected = [[1, 0.5, 1, 0, 1, 1, 1], [2, np.nan, 0, 1, 0, np.nan, 2], [3, 2, 1, 0, 1, 3, np.nan]]
    np.testing.assert_array_equal(samples.views["x"], expected)
    samples.views["x"][:] = 7
    assert table["a"].tolist() == [1, 2, 3]


@pytest.mark.slow
def test_tables_are_as_wide_and_cells_as_long_as_people_have_them(tmp_path):
    names = [f"ENSG{j:020}" for j in range(6000)]  # the header exceeds the 128 KiB limit of Python's csv module
    rows = RNG.integers(0, 9, (2, len(names)))
    lines = [f"s{i}," + ",".join(map(str, row)) for i, row in enumerate(rows)]
    (tmp_path / "genes.csv").write_text("\n".join(["id," + ",".join(names), *lines]))
    samples = read_samples("genes.csv", id="id")
    np.testing.assert_array_equal(samples.views["x"], rows)
    assert samples.feature_names["x"] == names
    long = ["wheat ship " * 100_000, "corn ship", "wheat"]  # the cell has 1.1 MB
    (tmp_path / "docs.csv").write_text("id,text\n" + "".join(f"s{i},{text}\n" for i, text in enumerate(long)))
    read = read_samples("docs.csv", id="id", text="text")
    assert read.views["text"].toarray().astype(bool).tolist() == [[0, 1, 1], [1, 1, 0], [0, 0, 1]]
    (tmp_path / "labels.csv").write_text("id;tags\ns0;" + "|".join(names) + "\ns1;sea\n")
    tags = read_samples(pd.DataFrame({"id": ["s0", "s1"], "w": [1, 2]}), labels="labels.csv", id="id", separator="|")
    assert tags.labels.sum(axis=1).tolist() == [6000, 1]


def test_lines_may_end_as_on_any_machine(tmp_path):
    for end in ("\n", "\r\n", "\r"):
        (tmp_path / "t.csv").write_text(end.join(["id,width", "a,1", '"b, c",2', ""]), newline="")
        samples = read_samples("t.csv", id="id")
        assert samples.ids == ["a", "b, c"]
        assert samples.views["x"].tolist() == [[1], [2]]


def test_documents_become_tfidf_rows_of_the_training_words(tmp_path):
    texts = [f"wheat {'ship' if i % 2 else 'corn'} market{'' if i < 50 else ' zebra'}" for i in range(N)]
    table = TABLE.assign(story=texts, part=["train"] * 50 + ["test"] * 10)
    samples = read_samples(table, labels=Y, id="image", split="part", text="story")
    oracle = TfidfVectorizer(sublinear_tf=True, stop_words="english").fit(texts[:50])
    assert samples.feature_names["story"] == sorted(oracle.vocabulary_)
    np.testing.assert_allclose(samples.views["story"].toarray(), oracle.transform(texts).toarray(), rtol=1e-6)
    samples.write("s.zarr")
    store = open_features("s.zarr")
    assert store.feature_names("story") == ["corn", "market", "ship", "wheat"]
    np.testing.assert_allclose(store.attributes["idf"]["story"], oracle.idf_)
    (tmp_path / "docs").mkdir()
    for one, text in zip(IDS, texts):
        (tmp_path / "docs" / f"{one}.txt").write_text(text)
    shared = run("ingest", "files", "docs.zarr", "--view", "text=docs", "--test-share", ".2")
    assert "12 test, 48 train" in shared.output
    assert open_features("docs.zarr").sample_ids == IDS
    read = read_samples("docs", labels=TAGS.assign(document=TAGS["image"]).drop(columns="image"), id="document")
    assert read.ids == IDS
    np.testing.assert_array_equal(read.labels, Y)


def test_transposed_arrays_are_told_by_their_shape():
    scipy.io.savemat("t.mat", {"X": FEATURES.T})
    np.save("y.npy", Y.T)
    read = [read_samples("t.mat", labels=Y).views["x"], read_samples(FEATURES, labels="y.npy").views["x"]]
    for X in read:
        np.testing.assert_allclose(X, FEATURES)
    pd.DataFrame(Y, columns=NAMES).to_csv("y.csv", index=False)
    store = ingest_files({"x": "t.mat"}, "s.zarr", labels="y.csv")
    assert (store.views["x"].shape, store.label_names) == (FEATURES.shape, NAMES)


ARFF = "@relation 'r{}'\n@attribute a {{cat,dog}}\n@attribute b real\n@attribute c {{0,1}}\n@data\ncat,?,1\ndog,2,0\ncat,3,1\n"


def test_arff_asks_for_its_labels_and_words_are_one_hot():
    Path("a.arff").write_text(ARFF.format(""))
    with pytest.raises(UserError, match=r"the label attributes are not declared; pass .* -6: the last"):
        ingest_files({"x": "a.arff"}, "s.zarr")
    store = ingest_files({"x": "a.arff"}, "s.zarr", labels=-1, test_share=0.4)
    assert store.label_names == ["c"]
    assert store.feature_names("x") == ["a=cat", "a=dog", "b"]
    np.testing.assert_array_equal(store.views["x"][:], [[1, 0, np.nan], [0, 1, 2], [1, 0, 3]])
    assert store.attributes["missing"] == {"x": {"b": 1}}
    assert sorted(store.split) == ["test", "train", "train"]
    Path("b.arff").write_text(ARFF.format(": -C -1"))  # MEKA uses this notation
    assert ingest_files({"x": "b.arff"}, "t.zarr").label_names == ["c"]


CLASSES = """@relation r
@attribute zone {1,2,3}
@attribute b {1,2}
@attribute class {setosa,'i. v.'}
@attribute c {F,T}
@data
3,2,setosa,T
1,1,'i. v.',F
2,?,setosa,?
"""


def test_categories_of_arff_files_are_columns_of_0_and_1_as_features_and_as_classes():
    Path("a.arff").write_text(CLASSES)
    store = ingest_files({"x": "a.arff"}, "s.zarr", labels=["class"])
    assert store.feature_names("x") == ["zone=1", "zone=2", "zone=3", "b", "c=F", "c=T"]
    nan = np.nan
    np.testing.assert_array_equal(
        store.views["x"][:], [[0, 0, 1, 2, 0, 1], [1, 0, 0, 1, 1, 0], [0, 1, 0, nan, nan, nan]]
    )
    assert (store.label_names, store.labels.tolist()) == (["setosa", "i. v."], [[1, 0], [0, 1], [1, 0]])
    with pytest.raises(
        DataError, match=r"the label 'class' has the values setosa, i. v., expected 0 and 1.*, -6 the last"
    ):
        ingest_files({"x": "a.arff"}, "t.zarr", labels=-2)
    Path("b.arff").write_text(
        "@relation r\n@attribute a real\n@attribute y {yes,no}\n@attribute z {0,1}\n@data\n1,yes,1\n2,no,?\n"
    )
    np.testing.assert_array_equal(ingest_files({"x": "b.arff"}, "t.zarr", labels=-2).labels, [[1, 1], [0, nan]])


def test_the_command_reads_joins_splits_and_says_what_a_store_holds():
    TABLE.assign(area=np.where(np.arange(N) == 3, np.nan, TABLE["area"])).to_csv("x.csv", index=False)
    run(
        "ingest", "files", "s.zarr", "--view", "x=x.csv", "--labels", "tags.csv", "--id", "image", "--test-share", "0.2"
    )
    assert describe("s.zarr")["split"] == {"train": 48, "test": 12}
    said = run("info", "s.zarr").stdout
    for words in ("3: boat, sea, sky", "a sample", "rarest: ", "1 missing values in 1 columns", "by a factor of"):
        assert words in said
    assert "'area' in 1 of 60 samples" in run("fit", "ridge", "s.zarr", "m.zarr", code=2).stderr
    run("fit", "ridge", "s.zarr", "m.zarr", "--impute", "mean+indicator")
    run("annotate", "m.zarr", "s.zarr", "z.zarr", "--csv", "z.csv")
    written = Path("z.csv").read_text()
    assert "img" in written
    assert any(name in written for name in NAMES)


# --- containers ------------------------------------------------------------------------------------------------------

VECTORS = RNG.normal(size=(N, 4)).astype(np.float32)
KINDS = np.array(["cat", "dog", "owl"])[np.arange(N) % 3]


def arrow_table(fixed):
    pa = pytest.importorskip("pyarrow")
    lists = pa.FixedSizeListArray.from_arrays(pa.array(VECTORS.ravel()), 4) if fixed else pa.array(list(VECTORS))
    columns = {"image": IDS, "embedding": lists, "width": TABLE["width"].to_numpy(), "kind": KINDS.tolist()}
    return pa.table(columns)


def polars_table():
    pl = pytest.importorskip("polars")
    columns = {"image": IDS, "embedding": pl.Series(VECTORS, dtype=pl.Array(pl.Float32, 4))}
    return pl.DataFrame(columns | {"width": TABLE["width"].to_numpy(), "kind": KINDS})


def in_parquet(fixed):
    pytest.importorskip("pyarrow.parquet").write_table(arrow_table(fixed), "e.parquet")
    return "e.parquet"


def in_feather():
    pytest.importorskip("pyarrow.feather").write_feather(arrow_table(True), "e.feather")
    return "e.feather"


def in_json_lines():
    table = TABLE[["image", "width"]].assign(embedding=VECTORS.tolist(), kind=KINDS)
    table.to_json("e.jsonl", orient="records", lines=True, double_precision=15)
    return "e.jsonl"


EMBEDDINGS = {
    "lists in Parquet": lambda: in_parquet(False),
    "lists of one size in Parquet": lambda: in_parquet(True),
    "Feather": in_feather,
    "JSON lines": in_json_lines,
    "a table of pyarrow": lambda: arrow_table(True),
    "polars": polars_table,
    "lists in polars": lambda: polars_table().with_columns(embedding=polars_table()["embedding"].arr.to_list()),
    "a lazy table of polars": lambda: polars_table().lazy(),
    "lists in pandas": lambda: pd.DataFrame(
        {"image": IDS, "embedding": list(VECTORS), "width": TABLE["width"], "kind": KINDS}
    ),
}


@pytest.mark.parametrize("kind", EMBEDDINGS)
def test_a_column_of_vectors_is_a_view_and_the_other_columns_are_another(kind):
    given = EMBEDDINGS[kind]()
    samples = read_samples({"t": given}, labels=["kind"], id="image")
    np.testing.assert_allclose(samples.views["embedding"], VECTORS, rtol=1e-6)
    np.testing.assert_array_equal(samples.views["t"], TABLE[["width"]])
    assert (samples.ids, samples.y.tolist()) == (IDS, KINDS.tolist())
    if isinstance(given, str):
        store = ingest_files({"t": given}, "e.zarr", labels=["kind"], id="image")
        np.testing.assert_allclose(store.views["embedding"][:], VECTORS, rtol=1e-6)
        return
    table = given.select(["embedding", "width"]) if hasattr(given, "select") else given[["embedding", "width"]]
    model = MultiViewRidge(ridge=0.1).fit(table, KINDS)
    plain = {"x": TABLE[["width"]].to_numpy(), "embedding": VECTORS}
    expected = MultiViewRidge(ridge=0.1).fit(plain, KINDS).decision_function(plain)
    np.testing.assert_allclose(model.decision_function(table), expected, atol=1e-6)


def test_a_table_of_vectors_alone_is_the_view_and_missing_ones_are_missing_samples():
    table = pd.DataFrame({"image": IDS, "e": [None if i == 3 else row.tolist() for i, row in enumerate(VECTORS)]})
    samples = read_samples({"gist": table, "x": "x.csv"}, labels="tags.csv", id="image")
    assert list(samples.views) == ["gist", "x"]
    assert np.isnan(samples.views["gist"]).all(axis=1).nonzero()[0].tolist() == [3]
    model = KGHA(n_components=2, random_state=0).fit(samples.views, samples.labels)
    assert model.predict(samples.views).shape == (N, 3)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ([[1, 2], [3]], "column 'e', row 1 lists 1 values, expected 2 in each"),
        ([[1, 2], "b"], "column 'e' lists numbers in most rows, row 1 is 'b'; write a list"),
        ([[1, {}], [2, 3]], "column 'e' lists values that are not numbers; leave it out"),
        ([[], []], "row 0 lists 0 values, expected some in each"),
        (
            [["a"], ["b"]],
            r"column 'e' has lists, expected one value per cell; pass it as labels \(--label-columns e\), or leave it out",
        ),
    ],
)
def test_a_column_of_lists_that_is_no_view_is_refused_by_its_row(cells, said):
    with pytest.raises(DataError, match=said):
        read_samples(pd.DataFrame({"e": cells, "a": [1.0, 2.0]}), labels=np.array(["u", "v"]))


def test_json_lines_that_are_no_table_are_refused_by_their_line():
    for text, said in (
        ('{"a": 1}\n{"a": \n', "line 2 is not valid JSON"),
        ("[1]\n", "line 1 is a list, expected an object"),
        ('{"a": {"b": 1}}\n', "column 'a', row 0 is an object"),
        ("\n", "is empty"),
        ("[" * 100_000, "line 1 is not valid JSON"),
    ):
        Path("bad.jsonl").write_text(text)
        with pytest.raises(DataError, match=said):
            read_samples("bad.jsonl")


def cell(*parts, down=False):
    found = np.empty((len(parts), 1) if down else (1, len(parts)), dtype=object)
    for i, part in enumerate(parts):
        found[(i, 0) if down else (0, i)] = part
    return found


@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_a_cell_of_matlab_is_a_view_for_each_of_its_matrices_samples_in_rows_or_in_columns(down, columns, packed):
    views = [VECTORS.astype(float), scipy.sparse.csc_array(np.round(VECTORS[:, :3]).astype(float))]
    given = cell(*(view.T if columns else view for view in views), down=down)
    classes = np.arange(N) % 3 + 1
    labels = cell(classes[None, :], classes[None, :]) if columns else classes[:, None]
    scipy.io.savemat("m.mat", {"X": given, "gt": labels, "name": "a set"}, do_compression=packed)
    for spec in ("m.mat", "m.mat::X"):
        samples = read_samples({"v": spec}, labels="m.mat::gt")
        store = ingest_files({"v": spec}, "m.zarr", labels="m.mat::gt", overwrite=True)
        for i, view in enumerate(views, 1):
            np.testing.assert_array_equal(dense(samples.views[f"v{i}"]), dense(view))
            np.testing.assert_array_equal(dense(store.views[f"v{i}"][:]), dense(view))
        assert samples.y.tolist() == [str(label) for label in classes]
        assert (store.class_labels, store.labels.argmax(axis=1).tolist()) == (True, (classes - 1).tolist())
    one = read_samples({"v": "m.mat::X{2}" + (".T" if columns else "")}, labels="m.mat::gt")
    np.testing.assert_array_equal(dense(one.views["v"]), dense(views[1]))


def test_a_cell_of_matlab_7_3_is_a_view_for_each_of_its_matrices():
    """MATLAB 7.3 stores a cell array as references into the group #refs#, with reversed dimensions."""
    h5py = pytest.importorskip("h5py")
    views = [VECTORS.astype(float), VECTORS[:, :2].astype(float)]
    with h5py.File("m.mat", "w", userblock_size=512) as file:
        held = file.create_group("#refs#")
        cells = file.create_dataset("X", (2, 1), dtype=h5py.ref_dtype)
        cells.attrs["MATLAB_class"] = np.bytes_("cell")
        for i, view in enumerate(views):
            part = held.create_dataset("ab"[i], data=view.T)
            part.attrs["MATLAB_class"] = np.bytes_("double")
            cells[i, 0] = part.ref
        y = file.create_dataset("Y", data=(np.arange(N) % 3 + 1.0)[None, :])
        y.attrs["MATLAB_class"] = np.bytes_("double")
    samples = read_samples({"v": "m.mat"}, labels="m.mat::Y")
    for i, view in enumerate(views, 1):
        np.testing.assert_array_equal(samples.views[f"v{i}"], view)
    assert samples.label_names == ["1", "2", "3"]


def test_cells_that_are_no_views_are_refused_with_what_to_write():
    scipy.io.savemat("m.mat", {"X": cell(VECTORS, VECTORS[:, :2]), "Z": cell("a", "b")})
    with pytest.raises(DataError, match=r"the cell 'Z' has|variable 'Z\{1\}' is a char"):
        ingest_files({"v": "m.mat::X"}, "m.zarr", labels="m.mat::Z")
    with pytest.raises(DataError, match=r"the cell 'X' has 2 different matrices, expected one; pass m.mat::X\{1\}"):
        ingest_files({"v": "m.mat::X"}, "m.zarr", labels="m.mat::X")
    with pytest.raises(DataError, match=r"the variable 'X\{3\}' is missing, expected one of X, Z, X\{1\}, X\{2\}"):
        ingest_files({"v": "m.mat::X{3}"}, "m.zarr", labels=0)


@pytest.mark.parametrize(
    ("name", "labels", "shapes", "classes"),
    [
        ("100Leaves", "Y", [(1600, 64)] * 3, 100),
        ("BBCSport", "truelabel", [(544, 3183), (544, 3203)], 5),
        ("MNIST-4", "y", [(4000, 30), (4000, 9), (4000, 30)], 4),
    ],
)
def test_multi_view_sets_as_they_are_passed_around_are_read(name, labels, shapes, classes, dmo_data):
    path = dmo_data / "multi_view" / f"{name}.mat"
    store = ingest_files({"v": path}, "m.zarr", labels=f"{path}::{labels}")
    samples = read_samples({"v": path}, labels=f"{path}::{labels}")
    assert [view.shape for view in store.views.values()] == shapes
    assert [view.shape for view in samples.views.values()] == shapes
    assert (store.class_labels, store.labels.shape, samples.labels.shape[1]) == (True, (shapes[0][0], classes), classes)
    held = scipy.io.loadmat(path)
    part = next(held[key] for key in ("X", "data") if key in held).ravel()[1]
    part = part if part.shape == shapes[1] else part.T
    np.testing.assert_array_equal(dense(store.views["v2"][:]), dense(part))


@pytest.mark.parametrize("form", ["mat", "csv", "targets"])
def test_columns_of_minus_one_and_one_are_labels(form):
    Y = np.where(np.arange(3 * N).reshape(N, 3) % 4 > 1, 1.0, -1.0)
    expected, real = Y > 0, form == "targets"
    if real:
        Y[0, 0] = expected = 0.5  # columns with a third value are numeric targets
    if form == "mat":
        scipy.io.savemat("s.mat", {"data": VECTORS, "target": Y.T})
        x, y = "s.mat::data", "s.mat::target.T"
    else:
        x, y = "x.csv", "y.csv"
        pd.DataFrame(VECTORS).add_prefix("a").to_csv(x, index=False)
        pd.DataFrame(Y).add_prefix("l").to_csv(y, index=False)
    samples, store = read_samples(x, labels=y), ingest_files({"x": x}, "s.zarr", labels=y)
    assert (samples.real, store.real_labels) == (real, real)
    np.testing.assert_array_equal(samples.labels, Y if real else expected)
    np.testing.assert_array_equal(store.labels, samples.labels)


@pytest.mark.parametrize("y", [KINDS, KINDS.astype("S3"), np.arange(N) % 3 + 4, (np.arange(N) % 3 + 4.0)[None, :]])
def test_a_vector_of_an_archive_is_the_labels(y):
    np.savez("s.npz", X=VECTORS, y=y)
    samples = read_samples("s.npz", labels="s.npz::y")
    store = ingest_files({"v": "s.npz"}, "s.zarr", labels="s.npz::y")
    names = ["cat", "dog", "owl"] if y.dtype.kind in "SU" else ["4", "5", "6"]
    assert (samples.label_names, store.label_names, store.class_labels) == (names, names, True)
    np.testing.assert_array_equal(store.labels, np.eye(3)[np.arange(N) % 3])
    np.testing.assert_array_equal(samples.labels, store.labels)
    with pytest.raises(DataError, match=r"contains the matrices X, y, expected one; write s.npz::NAME"):
        ingest_files({"v": "s.npz::X"}, "t.zarr", labels="s.npz")


def test_test_share_reports_deviations_of_labels(caplog):
    labels = np.zeros((20, 4), int)
    # The four labels apply to all samples, to half of the samples, to one sample and to no sample.
    labels[:, 0], labels[:10, 1], labels[0, 2] = 1, 1, 1
    frame = pd.DataFrame({"x": np.arange(20.0)})
    samples = read_samples(frame, labels=pd.DataFrame(labels, columns=list("abcd")), test_share=0.25)
    test = samples.split == "test"
    shares = labels[test, :3].sum(axis=0) / labels[:, :3].sum(axis=0)
    (note,) = (note for note in samples.notes if note.startswith("test split"))
    far, bare, whole = np.abs(shares - 0.25).max(), (shares == 0).sum(), (shares == 1).sum()
    assert note == (
        f"test split: 5 of 20 samples; the test share of a label differs from 0.25 by at most {far:.2g}; "
        f"{bare} of 3 labels have no test sample, {whole} no training sample"
    )
    ingest_files({"x": "x.csv"}, "s.zarr", labels="tags.csv", id="image", test_share=0.25)
    assert "test split: " in caplog.text


def test_a_column_that_looks_like_classes_and_is_not_named_is_asked_about(caplog):
    TABLE.assign(species=KINDS).to_csv("zoo.csv", index=False)
    said = "column 'species' looks like classes: --label-columns species (in Python labels=['species'])"
    assert said in read_samples("zoo.csv", id="image").notes
    ingest_files({"x": "zoo.csv"}, "z.zarr", id="image")
    assert said in caplog.text
    assert read_samples("zoo.csv", labels=["species"], id="image").notes == [
        "x: one column per value of 'color' (2 values)"
    ]
    TABLE[["width", "area"]].assign(target=np.arange(N) % 3).to_csv("plain.csv", index=False)
    caplog.clear()
    ingest_files({"x": "plain.csv"}, "p.zarr")
    assert "column 'target' looks like classes: --label-columns target" in caplog.text
    np.savez("s.npz", X=VECTORS, y=KINDS)
    caplog.clear()
    ingest_files({"v": "s.npz"}, "s.zarr")
    assert "s.npz also has the vector 'y'; if it has the labels, pass --labels s.npz::y" in caplog.text
    run("ingest", "files", "q.zarr", "--view", "x=zoo.csv", "--id", "image", "--label-columns", "species")
    assert open_features("q.zarr").label_names == ["cat", "dog", "owl"]


@pytest.mark.parametrize("ending", ["", ".txt"])
def test_texts_are_joined_by_names_with_and_without_their_ending(ending):
    Path("texts").mkdir()
    for name, kind in zip(IDS, KINDS):
        Path("texts", f"{name}.txt").write_text(f"a {kind} of the house")
    pd.DataFrame({"file": [one + ending for one in IDS[::-1]], "kind": KINDS[::-1]}).to_csv("kinds.csv", index=False)
    samples = read_samples({"words": "texts"}, labels="kinds.csv", id="file")
    assert (samples.ids, samples.y.tolist()) == (IDS, KINDS.tolist())


@pytest.mark.parametrize("mark", [";", ", ", "|", " "])
def test_lists_of_labels_are_read_alike_from_tables_images_and_answers(mark, tmp_path):
    separator = " " if mark == " " else None
    sets = [["sea", "sky"], ["sky"], ["boat", "sea"], []]
    rows = [f'"{mark.join(row)}"' for row in sets]
    for i in range(4):
        Image.new("RGB", (8, 8), (60 * i, 9, 9)).save(f"{i}.png")
    Path("l.csv").write_text("file,tags\n" + "".join(f"{i}.png,{row}\n" for i, row in enumerate(rows)))
    wide = [[int(name in row) for name in NAMES] for row in sets]
    Path("w.csv").write_text(
        "file,boat,sea,sky\n" + "".join(f"{i}.png,{a},{b},{c}\n" for i, (a, b, c) in enumerate(wide))
    )
    Path("f.csv").write_text("file,a\n" + "".join(f"{i}.png,{i}\n" for i in range(4)))
    for table in ("l.csv", "w.csv"):
        samples = read_samples("f.csv", labels=table, id="file", separator=separator)
        listing = list_images(".", table, separator)
        assert samples.label_names == listing.label_names == NAMES
        assert samples.labels.tolist() == listing.labels.tolist() == wide
        assert read_answers(table, separator=separator) == {f"{i}.png": row for i, row in enumerate(sets)}


def test_classes_targets_and_gaps_of_images_are_what_they_are_in_tables(tmp_path):
    for i in range(6):
        Image.new("RGB", (8, 8), (40 * i, 9, 9)).save(f"{i}.png")
    kinds, ages = ["cat", "dog", "", "cat", "dog", "cat"], [1.5, 2.5, 3.25, 4.0, 5.0, 6.0]
    Path("k.csv").write_text("file,kind\n" + "".join(f"{i}.png,{kind}\n" for i, kind in enumerate(kinds)))
    Path("a.csv").write_text("file,age\n" + "".join(f"{i}.png,{age}\n" for i, age in enumerate(ages)))
    run("extract", ".", "k.zarr", "--set", "moments", "--labels", "k.csv")
    run("extract", ".", "a.zarr", "--set", "moments", "--labels", "a.csv")
    store = open_features("k.zarr")
    assert (store.class_labels, store.label_names) == (True, ["cat", "dog"])
    assert np.isnan(store.labels[2]).all()
    assert open_features("a.zarr").real_labels
    assert open_features("a.zarr").labels[:, 0].tolist() == ages


def test_a_label_with_a_mark_in_it_is_one_answer_where_the_model_knows_it():
    Path("a.csv").write_text('sample,labels\n1,"Paris, France"\n2,sea\n')
    assert read_answers("a.csv", {"Paris, France", "sea"}) == {"1": ["Paris, France"], "2": ["sea"]}
    assert read_answers("a.csv") == {"1": ["Paris", "France"], "2": ["sea"]}


def test_whole_numbers_are_classes_if_few_or_counted():
    many = np.repeat(np.arange(1, 41), 2)
    alone = np.append(many, np.arange(41, 45))
    for values in (many, np.repeat([3, 9], 5)):
        assert read_samples({"v": np.zeros((len(values), 1))}, labels=values).classes
    years = np.repeat(np.arange(1950, 1990), 2)
    with pytest.raises(DataError, match="can be class codes or a regression target; pass --type y=category"):
        read_samples({"v": np.zeros((80, 1))}, labels=pd.DataFrame({"y": years}))
    assert read_samples({"v": np.zeros((84, 1))}, labels=alone).real
    for values in (years, alone):
        for kind in ("category", "number"):
            options = {"labels": pd.DataFrame({"y": values}), "types": {"y": kind}}
            assert read_samples({"v": np.zeros((len(values), 1))}, **options).classes == (kind == "category")
    codes = np.random.default_rng(0).choice(np.arange(100, 999), 30, replace=False)
    found = read_samples({"v": np.zeros((300, 1))}, labels=pd.DataFrame({"icd": np.tile(codes, 10)}))
    assert (found.classes, found.label_names) == (True, [str(code) for code in np.sort(codes)])
    assert "30 different integers in 300 rows, read as classes" in found.notes[0]
    found = read_samples({"v": np.zeros((50, 1))}, labels=pd.DataFrame({"price": np.arange(100, 600, 10)}))
    assert found.real


def test_files_that_declare_different_labels_are_refused_and_zero_says_that_there_are_none(tmp_path):
    for name, labels in (("a", "01"), ("b", "00")):
        rows = "".join(f"{i},{label}\n" for i, label in enumerate(labels))
        text = f"@relation x\n@attribute f numeric\n@attribute wet {{0,1}}\n@data\n{rows}"
        (tmp_path / f"{name}.arff").write_text(text)
    files = {name: str(tmp_path / f"{name}.arff") for name in "ab"}
    for read in (read_samples, lambda views, labels: ingest_files(views, tmp_path / "s.zarr", labels=labels)):
        with pytest.raises(DataError, match="the files of views 'a' and 'b' have different labels"):
            read(files, labels=-1)
    assert read_samples(files, labels=0).labels is None


def traced_peak(work):
    tracemalloc.start()
    try:
        found = work()
        return found, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("values", [(0.0, 1.0, 0.02), (-1.0, 1.0, 0.02), (0.0, 1.0, 0.6)])
def test_labels_of_an_array_need_two_bytes_per_cell(values):
    low, high, share = values
    given = np.where(np.random.default_rng(0).random((20000, 400)) < share, high, low)
    (Y, real), peak = traced_peak(lambda: checked_numbers("y", given, None))
    np.testing.assert_array_equal(dense(Y), given == 1)
    assert not real
    assert scipy.sparse.issparse(Y) == (share < 0.1)
    assert peak < 2 * given.size + (60 << 20)  # labels need two bytes per cell, plus blocks of floats


def test_one_unknown_cell_makes_no_floats_of_all_label_columns():
    Y = (np.random.default_rng(0).random((20000, 400)) < 0.01).astype(np.uint8)
    table = pd.DataFrame({f"label {j}": column for j, column in enumerate(Y.T)})
    table["label 3"] = np.where(np.arange(len(Y)) == 7, np.nan, table["label 3"])
    (found, names, kind), peak = traced_peak(lambda: label_matrix("y", table))
    expected = Y.astype(float)
    expected[7, 3] = np.nan
    np.testing.assert_array_equal(found.toarray(), expected)
    assert (names[3], kind) == ("label 3", "labels")
    assert peak < 5 * Y.size


def test_labels_of_an_arff_file_are_held_sparse(tmp_path):
    n, L = 20000, 300
    with open(tmp_path / "a.arff", "w") as file:
        file.write(f"@relation 'r: -C {L}'\n" + "".join(f"@attribute l{j} {{0,1}}\n" for j in range(L)))
        file.write("@attribute x numeric\n@data\n" + "".join(f"{{{i % L} 1,{L} {i + 1}}}\n" for i in range(n)))
    samples, peak = traced_peak(lambda: read_samples(tmp_path / "a.arff"))
    np.testing.assert_array_equal(samples.labels.toarray(), np.eye(L, dtype=np.uint8)[np.arange(n) % L])
    assert peak < 4 * n * L


def test_labels_of_a_sparse_matrix_need_sixteen_bytes_per_entry():
    given = scipy.sparse.random_array(
        (200000, 5000), density=0.002, rng=0, format="csr", data_sampler=lambda size: np.ones(size)
    )
    (Y, real), peak = traced_peak(lambda: checked_numbers("y", given, None))
    assert (given != Y).nnz == 0
    assert (Y.dtype, real) == (np.uint8, False)
    assert peak < 16 * given.nnz + 8 * given.shape[0]


@pytest.mark.parametrize("form", [np.array, scipy.sparse.csr_array, scipy.sparse.coo_array])
def test_labels_are_checked_alike_in_arrays_and_sparse_matrices(form):
    Y = (np.random.default_rng(0).random((600, 300)) < 0.03).astype(float)
    Y[5, 7], Y[9, 0] = np.nan, -1
    with pytest.raises(DataError, match="row 9, column 0 is -1, expected 0 or 1"):
        checked_numbers("y", form(Y), None)
    found, real = checked_numbers("y", form(Y), None, TableOptions(missing=("-1",)))
    np.testing.assert_array_equal(dense(found), np.where(Y == -1, np.nan, Y))
    assert not real
    Y[2, 3] = np.inf
    with pytest.raises(DataError, match="row 2, column 3 is inf"):
        checked_numbers("y", form(Y), None)
    Y[2, 3] = 2.5
    targets, real = checked_numbers("y", form(Y), None)
    np.testing.assert_array_equal(targets, Y)
    assert real


def test_a_sparse_archive_and_an_array_of_labels_make_one_store(tmp_path):
    Y = (np.random.default_rng(0).random((600, 300)) < 0.03).astype(np.uint8)
    np.save(tmp_path / "x.npy", np.ones((600, 2)))
    np.save(tmp_path / "y.npy", Y)
    scipy.sparse.save_npz(tmp_path / "y.npz", scipy.sparse.csc_array(Y))
    stores = [
        ingest_files({"x": str(tmp_path / "x.npy")}, tmp_path / f"{form}.zarr", labels=str(tmp_path / f"y.{form}"))
        for form in ("npy", "npz")
    ]
    assert stores[0].configuration == stores[1].configuration
    np.testing.assert_array_equal(stores[0].labels.toarray(), Y)


def test_many_classes_of_a_column_are_sparse_and_named(tmp_path):
    names = [f"class {i % 150}" for i in range(1500)]
    put = pd.DataFrame({"x": np.arange(1500.0), "kind": names})
    samples = read_samples(put, labels="kind")
    assert scipy.sparse.issparse(samples.labels)
    assert samples.y.tolist() == names
    put.loc[7, "kind"] = None
    assert np.isnan(read_samples(put, labels="kind").labels[[7]].toarray()).all()
