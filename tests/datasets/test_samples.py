"""Files and tables as people have them, into samples and into stores."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.io
from sklearn.datasets import dump_svmlight_file
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import accuracy_score

import dmo
from dmo import KGHA, MultiViewRidge, Prepare
from dmo.datasets import DataError, ingest_files, read_samples
from dmo.errors import UserError
from dmo.stores import describe, open_features, open_results, verify
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
WORDS[7] = "rare"  # a class that no training sample has


@pytest.mark.parametrize("name", ["ridge", "kgha", "morp", "lltsvr"])
def test_one_column_of_classes_is_learned_annotated_and_judged_as_classes(name):
    """As a classifier of scikit-learn is by accuracy_score on the same vector."""
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
    if name == "lltsvr":  # a regression of +1 and -1
        predicted = np.array(samples.label_names)[model.predict(new).argmax(axis=1)]
    else:
        predicted = model.predict(new)
        assert model.classes_.tolist() == ["10", "9", "low"]
        assert "3 classes" in run("info", "m.zarr").stdout
    expected = accuracy_score(truth, predicted)
    assert 0.4 < expected < 1.0  # of the class that it does not know none is right
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
    assert found["metric"] == ("accuracy" if name == "ridge" else "ranking")
    assert record("annotate", "m.zarr", "s.zarr", "a.zarr")["columns"] == 1


def test_machines_are_tuned_on_classes_given_by_name():
    names = np.where(Y[:, 0], "cat", "dog")
    model = dmo.tune(
        dmo.LLTSVR(tol=1e-2, frame="identity"), FEATURES + 9 * Y[:, :1], names, grid={"C": [1.0, 10.0]}, cv=2
    )
    assert ((model.predict(FEATURES + 9 * Y[:, :1])[:, 0] > 0) == (names == "cat")).mean() > 0.9


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
    "dates": ({"taken": "2020-01-02"}, "column 'taken' holds dates"),
    "free text": ({"note": [f"a long text number {i}" for i in range(N)]}, "column 'note' holds free text"),
    "names": ({"code": [f"c{i}" for i in range(N)]}, "column 'code' holds 60 different words"),
    "a typo": ({"width": ["1,5x", *TABLE["width"][1:]]}, "column 'width', row 0 is '1,5x', expected a number"),
    "an id twice": ({"image": ["img01.jpg", *IDS[1:]]}, "the id 'img01.jpg' stands in 2 rows"),
    "an id that is missing": ({"image": [None, *IDS[1:]]}, "the id in row 0 is missing"),
    "other ids": ({"image": ["other.jpg", *IDS[1:]]}, "'labels' lacks 'other.jpg', which 'x' has"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_feature_is_refused_by_name(kind):
    columns, match = REFUSED[kind]
    TABLE.assign(**columns).to_csv("t.csv", index=False)
    with pytest.raises(DataError, match=match):
        read_samples("t.csv", labels="tags.csv", id="image")


def test_a_name_over_two_columns_and_a_header_of_numbers_are_noticed():
    Path("t.csv").write_text("a,b,a\n1,2,3\n")
    with pytest.raises(DataError, match="the name 'a' stands over 2 columns"):
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
    assert any("('img07.jpg', column '" in note and "not known" in note for note in samples.notes)
    store = samples.write("s.zarr")
    np.testing.assert_array_equal(store.labels, samples.labels)
    assert store.real_labels == samples.real
    assert verify("s.zarr") == []
    with pytest.raises(DataError, match="the cell in row 3, column 'boat' is inf"):
        read_samples(
            TABLE[["width"]], labels=pd.DataFrame(np.where(np.arange(N)[:, None] == 3, np.inf, Y), columns=NAMES)
        )


def test_a_view_that_lacks_samples_goes_through_every_command():
    """As in memory, where rows of NaN are samples that the view lacks."""
    pixels = RNG.random((N, 4)) + Y[:, [0, 1, 2, 0]]
    pd.DataFrame(pixels).assign(image=IDS).drop(index=range(5, N, 6)).to_csv("b.csv", index=False)
    TAGS[TAGS["image"] != IDS[3]].to_csv("tags.csv", index=False)
    join = "--labels", "tags.csv", "--id", "image", "--how", "outer"
    said = run("ingest", "files", "s.zarr", "--view", "a=x.csv", "--view", "b=b.csv", *join, "--test-share", "0.3")
    assert "10 samples missing" in said.stdout
    assert "3 not known" in said.stdout
    samples = read_samples({"a": "x.csv", "b": "b.csv"}, "tags.csv", id="image", how="outer", test_share=0.3)
    assert np.isnan(samples.labels[3]).all()
    store = open_features("s.zarr")
    np.testing.assert_array_equal(store.views["b"].present, ~np.isnan(samples.views["b"]).any(axis=1))
    np.testing.assert_array_equal(store.to_xarray()["b_present"], store.views["b"].present)
    info = run("info", "s.zarr").stdout
    assert "lacks 10 samples" in info
    assert "3 not known (1 samples without any that is)" in info
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
    assert "view 'b' lacks" in refused


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
    )  # the view b lacks two samples
    assert np.isfinite(model.decision_function(outer.views)).all()


def test_many_rows_are_joined_by_their_ids_and_a_half_empty_column_is_half_unknown():
    n, order = 100_000, RNG.permutation(100_000)
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


def test_tables_are_as_wide_and_cells_as_long_as_people_have_them(tmp_path):
    names = [f"gene{j}" for j in range(30_000)]
    rows = RNG.integers(0, 9, (2, len(names)))
    lines = [f"s{i}," + ",".join(map(str, row)) for i, row in enumerate(rows)]
    (tmp_path / "genes.csv").write_text("\n".join(["id," + ",".join(names), *lines]))
    samples = read_samples("genes.csv", id="id")
    np.testing.assert_array_equal(samples.views["x"], rows)
    assert samples.feature_names["x"] == names
    long = ["wheat ship " * 100_000, "corn ship", "wheat"]  # 1.1 MB
    (tmp_path / "docs.csv").write_text("id,text\n" + "".join(f"s{i},{text}\n" for i, text in enumerate(long)))
    read = read_samples("docs.csv", id="id", text="text")
    assert read.views["text"].toarray().astype(bool).tolist() == [[0, 1, 1], [1, 1, 0], [0, 0, 1]]
    (tmp_path / "labels.csv").write_text("id;tags\ns0;" + "|".join(names) + "\ns1;sea\n")
    tags = read_samples(pd.DataFrame({"id": ["s0", "s1"], "w": [1, 2]}), labels="labels.csv", id="id", separator="|")
    assert tags.labels.sum(axis=1).tolist() == [30_000, 1]


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
    with pytest.raises(UserError, match=r"which attributes are labels is not said; pass .* -6: the last"):
        ingest_files({"x": "a.arff"}, "s.zarr")
    store = ingest_files({"x": "a.arff"}, "s.zarr", labels=-1, test_share=0.4)
    assert store.label_names == ["c"]
    assert store.feature_names("x") == ["a=cat", "a=dog", "b"]
    np.testing.assert_array_equal(store.views["x"][:], [[1, 0, np.nan], [0, 1, 2], [1, 0, 3]])
    assert store.attributes["missing"] == {"x": {"b": 1}}
    assert sorted(store.split) == ["test", "train", "train"]
    Path("b.arff").write_text(ARFF.format(": -C -1"))  # as MEKA says it
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
    for words in ("3: boat, sea, sky", "a sample", "rarest: ", "1 missing cells in 1 columns", "by a factor of"):
        assert words in said
    assert "'area' in 1 of 60 samples" in run("fit", "ridge", "s.zarr", "m.zarr", code=2).stderr
    run("fit", "ridge", "s.zarr", "m.zarr", "--impute", "mean+indicator")
    run("annotate", "m.zarr", "s.zarr", "z.zarr", "--csv", "z.csv")
    written = Path("z.csv").read_text()
    assert "img" in written
    assert any(name in written for name in NAMES)
