"""Test commands that read files of rows instead of a store, with labels parsed by the recipe of the model."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import zarr
from shell import figures_emptied, record, run

import dmo
from dmo.formats.schema import LearnedLabels

N, D, SHARDS = 240, 5, 8
EACH = N // SHARDS
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, D)).astype(np.float32)
Y = (X[:, :3] + 0.5 * RNG.standard_normal((N, 3)) > 0).astype(np.uint8)
Y[~Y.any(axis=1), 0] = 1
IDS = [f"scan-{i}" for i in range(N)]
NAMES = ["sea", "sky, blue", "sun"]
TRAIN = 160
TABLE = pd.DataFrame({f"f{j}": X[:, j] for j in range(D)}).assign(color=np.where(X[:, 3] > 0, "red", "blue"))
KINDS = {
    "words": TABLE.assign(kind=np.array(["no", "none", "some"])[Y[:, :2].sum(axis=1)]),
    "numbers": TABLE.assign(kind=Y[:, 1]),
    "codes": TABLE.assign(kind=Y[:, :2].sum(axis=1)),
    "lists": TABLE.assign(kind=[";".join(np.array(NAMES)[row > 0]) for row in Y]),
    "columns": TABLE.assign(**dict(zip(("kind a", "kind b", "kind c"), Y.T))),
    "targets": TABLE.assign(kind=X @ np.arange(D) + np.arange(N) % 2),
}
FIGURES = ("n_samples", "f1", "r2", "accuracy", "f1_micro", "lrap", "n_labels_present")


def fitted(table, folder):
    """Write train.csv, test.csv and the feature store store.zarr, and fit a model to the training rows."""
    table[:TRAIN].to_csv(folder / "train.csv", index=False)
    table[TRAIN:].to_csv(folder / "test.csv", index=False)
    run("fit", "ridge", "train.csv", "model.zarr", "--label-columns", "kind*", "--kernel", "linear")
    whole = table.assign(part=["train"] * TRAIN + ["test"] * (N - TRAIN))
    whole.to_csv(folder / "all.csv", index=False)
    run(
        "ingest", "files", "store.zarr", "--view", "train=all.csv", "--label-columns", "kind*", "--split-column", "part"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_evaluate_reads_tables_as_a_store_of_them(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fitted(KINDS[kind], tmp_path)
    expected = record("evaluate", "model.zarr", "store.zarr", "--split", "test")
    found = record("evaluate", "model.zarr", "test.csv")
    assert [found.get(name) for name in FIGURES] == pytest.approx([expected.get(name) for name in FIGURES])
    assert found["n_samples"] == N - TRAIN


@pytest.mark.parametrize("kind", KINDS)
def test_labels_of_few_rows_are_those_of_the_model(kind, tmp_path, monkeypatch):
    """Without the recipe of the model, a file with only two rows would be parsed differently."""
    monkeypatch.chdir(tmp_path)
    fitted(KINDS[kind], tmp_path)
    store = dmo.stores.open_features("store.zarr")
    for first in range(TRAIN, N, 20):
        KINDS[kind][first : first + 2].to_csv("few.csv", index=False)
        applied = dmo.workflows.rows.open_applied("model.zarr", "few.csv", None, "test", labeled=True)
        expected = store.labels_of(np.arange(first, first + 2))
        expected = expected if isinstance(expected, np.ndarray) else expected.toarray()
        np.testing.assert_allclose(applied.Y, expected, rtol=1e-12)


def test_labels_that_the_model_did_not_learn_are_reported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fitted(KINDS["lists"], tmp_path)
    KINDS["lists"][TRAIN:].replace({"kind": {"sea": "sea;moon"}}).to_csv("more.csv", index=False)
    found = run("evaluate", "model.zarr", "more.csv")
    assert "more.csv: ignoring labels that the model did not learn: 'moon'" in found.stderr
    KINDS["columns"][TRAIN:].drop(columns="kind b").to_csv("less.csv", index=False)
    fitted_columns = tmp_path / "columns"
    fitted_columns.mkdir()
    monkeypatch.chdir(fitted_columns)
    fitted(KINDS["columns"], fitted_columns)
    found = run("evaluate", "model.zarr", "../less.csv", "--label-columns", "kind*", code=2)
    assert "has no column for the label 'kind b' that the model learned" in found.stderr
    found = run("evaluate", "model.zarr", "../less.csv", "--label-columns", "kin", code=2)
    assert "has no label column 'kin'; did you mean 'kind " in found.stderr


def test_updated_models_keep_the_recipe_of_tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fitted(KINDS["lists"], tmp_path)
    (tmp_path / "answers.csv").write_text("sample,labels\n0,sea\n")
    assert record("update", "model.zarr", "test.csv", "new.zarr", "answers.csv")["n_samples"] == N - TRAIN
    turned = KINDS["lists"][:TRAIN][[*sorted(KINDS["lists"], reverse=True)]]
    turned.to_csv("turned.csv", index=False)
    found = record("evaluate", "new.zarr", "turned.csv")
    expected = record("evaluate", "new.zarr", "store.zarr", "--split", "train")
    assert [found[name] for name in FIGURES[4:]] == pytest.approx([expected[name] for name in FIGURES[4:]])


def test_training_table_stands_for_its_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    KINDS["words"].to_csv("all.csv", index=False)
    run("fit", "ridge", "all.csv", "model.zarr", "--label-columns", "kind", "--test-share", 0.25)
    found = record("evaluate", "model.zarr", "all.csv")
    assert (found["split"], found["n_samples"]) == ("test", 60)
    (tmp_path / "answers.csv").write_text("sample,labels\n0,none\n")
    run("update", "model.zarr", "all.csv", "new.zarr", "answers.csv")
    assert dmo.stores.describe("new.zarr")["provenance"]["parents"][0].endswith("all.zarr")
    shutil.rmtree("all.zarr")
    found = run("evaluate", "model.zarr", "all.csv")
    assert "model.zarr was trained on samples of all.csv that cannot be excluded" in found.stderr


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Create shards of vectors and labels, an array in a Zarr group, Parquet shards, and a description of two views."""
    monkeypatch.chdir(tmp_path)
    for name in ("emb", "meta", "pq"):
        (tmp_path / name).mkdir()
    tags = ["|".join(np.array(NAMES)[row > 0]) for row in Y]
    for i in range(SHARDS):
        rows = slice(i * EACH, (i + 1) * EACH)
        np.save(f"emb/part.{i}.npy", X[rows])
        about = pd.DataFrame({"id": IDS[rows], "tags": tags[rows]})
        about.to_parquet(f"meta/part.{i}.parquet")
        about.assign(vector=list(X[rows])).to_parquet(f"pq/part.{i}.parquet")
    np.save("y.npy", Y)
    np.save("other.npy", X[:, ::-1] ** 2)
    zarr.open_group("x.zarr", mode="w").create_array("clip", data=X, chunks=(50, D))
    views = {"emb": "emb", "other": "other.npy"}
    (tmp_path / "set.json").write_text(json.dumps({"views": views, "labels": "meta::tags"}))
    (tmp_path / "answers.csv").write_text("sample,labels\n3,sea\n8,sun\n")
    (tmp_path / "named.csv").write_text("sample,labels\nscan-3,sea\nscan-8,sun\n")
    return tmp_path


def new_rows(folder):
    """Overwrite the files with new samples, which are unknown to the model."""
    for i in range(SHARDS):
        np.save(folder / f"emb/part.{i}.npy", np.load(folder / f"emb/part.{i}.npy") + np.float32(0.01))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "labels", "answers"),
    [
        ("x.zarr::clip", ["--labels", "y.npy"], None),
        ("emb", ["--labels", "meta::tags"], "answers.csv"),
        ("pq::vector", ["--label-columns", "tags", "--id", "id"], "named.csv"),
        ("set.json", [], "answers.csv"),
    ],
)
def test_sources_of_arrays_are_tuned_evaluated_and_updated(source, labels, answers, files):
    run("tune", "ridge", source, "model.zarr", *labels, "--kernel", "linear", "--ridge", "1,0.1")
    found = record("evaluate", "model.zarr", source, *labels, "--split", "all")
    model = dmo.load("model.zarr")
    views = {"emb": X, "other": X[:, ::-1] ** 2} if source == "set.json" else {next(iter(model.view_widths_)): X}
    assert found["f1_micro"] == pytest.approx(dmo.metrics.set_scores(Y, model.decide(views).sets).f1_micro)
    assert found["learned_samples"] == N
    with figures_emptied():
        run("report", "model.zarr", source, "page.html", *labels, "--split", "all")
    assert (files / "page.html").exists()
    assert record("evaluate", "model.zarr", source, *labels, "--cv", "3")["n_samples"] == N
    if answers is not None:
        taken = record("update", "model.zarr", source, "new.zarr", answers, *labels)
        assert (taken["answers"], taken["n_samples"]) == (2, N)
        assert record("suggest", "new.zarr", source, *labels)["n_samples"] == N
        assert record("evaluate", "new.zarr", source, *labels, "--split", "all")["learned_samples"] == N
    assert not list(files.glob("emb*.zarr"))


def test_results_are_evaluated_on_files(files):
    run("fit", "ridge", "emb", "model.zarr", "--labels", "meta::tags")
    run("annotate", "model.zarr", "emb", "scores.zarr", "--scores")
    of_model = record("evaluate", "model.zarr", "emb", "--labels", "meta::tags", "--split", "all")
    of_results = record("evaluate", "scores.zarr", "emb", "--labels", "meta::tags", "--split", "all")
    assert of_results["auc_macro"] == pytest.approx(of_model["auc_macro"])


def test_missing_labels_are_asked_for(files):
    run("fit", "ridge", "emb", "model.zarr", "--labels", "meta::tags")
    new_rows(files)
    needed = "emb has no labels to compare with; pass --label-columns NAMES or --labels FILE"
    for command in (["evaluate", "model.zarr", "emb"], ["report", "model.zarr", "emb", "page.html"]):
        assert needed in run(*command, code=2).stderr
    assert needed in run("update", "model.zarr", "emb", "new.zarr", "answers.csv", code=2).stderr
    assert not (files / "new.zarr").exists()
    assert record("suggest", "model.zarr", "emb")["n_samples"] == N
    run("ingest", "files", "store.zarr", "--view", "emb=emb")
    refused = run("evaluate", "model.zarr", "store.zarr", "--labels", "y.npy", code=2).stderr
    assert "store.zarr is a feature store, but table options apply only to data files" in refused


def test_several_views_are_read_from_a_description(files):
    run("fit", "kgha", "set.json", "model.zarr", "--kernel", "linear", "--n-components", 2)
    run("transform", "model.zarr", "set.json", "out.zarr")
    views = {"emb": X, "other": X[:, ::-1] ** 2}
    np.testing.assert_allclose(
        dmo.stores.open_results("out.zarr")[:], dmo.load("model.zarr").transform(views), atol=1e-5
    )
    run("annotate", "model.zarr", "set.json", "out.csv")
    assert len(pd.read_csv("out.csv")) == N
    assert set(record("info", "set.json")["arrays"]) == {"emb", "other"}


def test_tables_of_a_description_are_joined_by_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    left, right = TABLE[["f0", "f1", "color"]].assign(key=IDS), TABLE[["f2", "f3"]].assign(key=IDS, kind=Y[:, 0])
    for name, rows in (("train", slice(0, TRAIN)), ("test", slice(TRAIN, N))):
        left[rows].to_csv(f"{name}-a.csv", index=False)
        right[rows].sample(frac=1, random_state=0).to_csv(f"{name}-b.csv", index=False)
        views = {"a": f"{name}-a.csv", "b": f"{name}-b.csv"}
        (tmp_path / f"{name}.json").write_text(json.dumps({"views": views, "labels": ["kind"], "id": "key"}))
    run("fit", "ridge", "train.json", "model.zarr", "--kernel", "linear")
    run("annotate", "model.zarr", "test.json", "out.csv")
    found = pd.read_csv("out.csv")
    model = dmo.load("model.zarr")
    colors = np.stack([TABLE.color == "blue", TABLE.color == "red"], axis=1)
    views = {"a": np.hstack([X[:, :2], colors])[TRAIN:], "b": X[TRAIN:, 2:4]}
    assert found["sample"].tolist() == IDS[TRAIN:]
    assert found["label 1"].tolist() == model.predict(views).tolist()
    accuracy = (model.predict(views) == [f"kind={value}" for value in Y[TRAIN:, 0]]).mean()
    assert record("evaluate", "model.zarr", "test.json")["accuracy"] == pytest.approx(accuracy)


def truncated(folder):
    path = folder / "emb/part.3.npy"
    path.write_bytes(path.read_bytes()[:-10])


def repeated(folder):
    shutil.copy(folder / "meta/part.2.parquet", folder / "meta/part.3.parquet")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda at: (at / "emb/part.3.npy").unlink(), "number 3 is missing from the shards part.0.npy to part.7.npy"),
        (truncated, "emb/part.3.npy: ends at byte"),
        (lambda at: np.save(at / "emb/part.3.npy", X[:0]), "emb/part.3.npy: has shape (0, 5)"),
        (lambda at: np.save(at / "emb/part.3.npy", X[:EACH, :4]), "emb/part.3.npy: has 4 columns of type float32"),
        (
            lambda at: np.save(at / "emb/part.3.npy", X[:EACH].astype(float)),
            "emb/part.3.npy: has 5 columns of type float64",
        ),
        (lambda at: np.save(at / "emb/part.3.npy", X[: EACH - 1]), "emb/part.3.npy has 29"),
        (lambda at: np.save(at / "emb/part.3.npy", X[:EACH] / 0), "emb/part.3.npy, row 0, column 0 is "),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize("command", ["evaluate", "report", "update"])
def test_bad_shards_are_rejected_by_name(command, change, message, files):
    run("fit", "ridge", "emb", "model.zarr", "--labels", "meta::tags")
    change(files)
    before = sorted(files.iterdir())
    out = {"evaluate": [], "report": ["page.html"], "update": ["new.zarr", "answers.csv"]}[command]
    refused = run(command, "model.zarr", "emb", *out, "--labels", "meta::tags", code=2)
    assert message in refused.stderr
    assert sorted(files.iterdir()) == before


@pytest.mark.parametrize("command", ["evaluate", "report", "update"])
def test_ids_that_repeat_are_rejected_by_shard(command, files):
    run("fit", "ridge", "pq::vector", "model.zarr", "--label-columns", "tags", "--id", "id")
    shutil.copy(files / "pq/part.2.parquet", files / "pq/part.3.parquet")
    out = {"evaluate": [], "report": ["page.html"], "update": ["new.zarr", "named.csv"]}[command]
    refused = run(command, "model.zarr", "pq::vector", *out, code=2)
    assert "the id 'scan-60' is in 2 rows (pq/part.2.parquet, row 0 and pq/part.3.parquet, row 0)" in refused.stderr
    assert not (files / "new.zarr").exists()


def test_missing_values_are_counted_by_shard(files):
    run("fit", "ridge", "emb", "model.zarr", "--labels", "meta::tags", "--impute", "mean")
    rows = X[3 * EACH : 4 * EACH].copy()
    rows[4, 2] = np.nan
    np.save("emb/part.3.npy", rows)
    found = run("evaluate", "model.zarr", "emb", "--labels", "meta::tags")
    assert "emb/part.3.npy has NaN in 1 rows, which are treated as missing values" in found.stderr


@pytest.mark.parametrize(
    ("cells", "mark"),
    [
        (["a, b|c", "c"], "|"),
        (["a, b", "c"], "\0"),
        (["a, b;c", "x;c"], ";"),
        (["c d", "d"], " "),
        (["['c', 'd']"], None),
        (["<c> <d>"], None),
    ],
)
def test_separator_follows_from_learned_names(cells, mark):
    assert LearnedLabels(names=["a, b", "c", "d"]).label_separator(cells) == mark
