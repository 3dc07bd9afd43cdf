"""Process seven typical user files with shell commands, from ingestion to a CSV file of predictions and a report."""

import csv
import re
import shutil
from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest
from scenes import draw_images
from shell import figures_emptied, record, run

from dmo import stores

RNG = np.random.default_rng(7)
N = 60
IDS = [f"s{i:03d}" for i in range(N)]
CLASSES = np.array(["cat", "dog", "owl"])[np.arange(N) % 3]
X = RNG.normal(size=(N, 4)) + 2.0 * np.eye(4)[np.arange(N) % 3]
WORDS = {"cat": "purr whiskers milk", "dog": "bark leash bone", "owl": "night wings hoot"}
PLAIN = ["the", "animal", "of", "this", "house", "was", "seen", "again", "today"]


def _table(**columns):
    return pd.DataFrame({"id": IDS, **{f"f{j}": X[:, j].round(3) for j in range(4)}, **columns})


def classes_with_gaps(folder):
    table = _table(species=CLASSES)
    table.loc[3, "f1"] = table.loc[9, "f2"] = np.nan
    table.loc[[5, 17], "species"] = None
    table.to_csv(folder / "zoo.csv", index=False)
    return [
        "ingest",
        "files",
        "--view",
        "zoo=zoo.csv",
        "--id",
        "id",
        "--label-columns",
        "species",
        "--test-share",
        0.25,
    ]


def label_lists(folder):
    """Write a table with a column of label lists separated by semicolons."""
    lists = [";".join(sorted({CLASSES[i], CLASSES[(i * i) % N]})) for i in range(N)]
    _table(tags=lists).to_csv(folder / "tags.csv", index=False)
    return ["ingest", "files", "--view", "f=tags.csv", "--id", "id", "--label-columns", "tags", "--test-share", 0.25]


def photos(folder):
    """Draw 12 images, and write a table with label lists separated by commas."""
    table = draw_images(folder / "pics", 12)
    with open(table, newline="") as file:
        rows = list(csv.DictReader(file))
    named = pd.DataFrame(
        {"image": [row["file"] for row in rows], "tags": [row["labels"].replace(";", ", ") for row in rows]}
    )
    named.to_csv(folder / "photos.csv", index=False)
    return ["extract", "pics", "--set", "moments,wavelets", "--labels", "photos.csv", "--test-share", 0.25]


def texts(folder):
    """Write 300 text files, and a table with their file names and classes."""
    (folder / "texts").mkdir()
    kinds = CLASSES[np.arange(300) % 3]
    for i, kind in enumerate(kinds):
        words = [*RNG.choice(PLAIN, 8), *RNG.choice(WORDS[kind].split(), 3)]
        (folder / "texts" / f"{i:03d}.txt").write_text(" ".join(words))
    pd.DataFrame({"file": [f"{i:03d}.txt" for i in range(300)], "animal": kinds}).to_csv(
        folder / "kinds.csv", index=False
    )
    return ["ingest", "files", "--view", "words=texts", "--labels", "kinds.csv", "--id", "file", "--test-share", 0.25]


def npz_with_a_vector(folder):
    np.savez(folder / "set.npz", X=X, y=CLASSES)
    return ["ingest", "files", "--view", "x=set.npz", "--labels", "set.npz::y", "--test-share", 0.25]


def embeddings(folder):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(X.astype(np.float32).ravel()), 4)
    table = pa.table({"id": IDS, "embedding": vectors, "age": RNG.random(N), "species": CLASSES.tolist()})
    parquet.write_table(table, folder / "zoo.parquet")
    return [
        "ingest",
        "files",
        "--view",
        "zoo=zoo.parquet",
        "--id",
        "id",
        "--label-columns",
        "species",
        "--test-share",
        0.25,
    ]


def real_targets(folder):
    noise = 0.1 * RNG.normal(size=(N, 2))
    table = _table(height=170 + 10 * X[:, 0] + noise[:, 0], weight=70 + 5 * X[:, 1] + noise[:, 1])
    table.to_csv(folder / "people.csv", index=False)
    return [
        "ingest",
        "files",
        "--view",
        "f=people.csv",
        "--id",
        "id",
        "--label-columns",
        "height,weight",
        "--test-share",
        0.25,
    ]


FILES = [classes_with_gaps, label_lists, photos, texts, npz_with_a_vector, embeddings, real_targets]
REPEATED = [texts, npz_with_a_vector, embeddings]
"""Cases with multiclass targets, whose reports contain the same figures as the report of `classes_with_gaps`."""


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.__name__)
def test_a_strangers_file_becomes_predictions_and_a_report_by_four_commands(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    read = file(tmp_path)
    said = run(*read[:2], "set.zarr", *read[2:]).stdout
    gaps = ["--impute", "mean"] if "fit with --impute mean" in said else []
    run("fit", "ridge", "set.zarr", "model.zarr", *gaps)
    run("annotate", "model.zarr", "set.zarr", "out.zarr", "--csv", "predictions.csv")
    with figures_emptied() if file in REPEATED else nullcontext():
        run("report", "model.zarr", "set.zarr", "report.html")
    store = stores.open_features("set.zarr")
    test = np.asarray(store.split) == "test"
    with open("predictions.csv", newline="") as written:
        rows = list(csv.reader(written))[1:]
    assert len(rows) == test.sum()
    assert all(any(field for field in row[1:]) for row in rows)
    assert "</html>" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.__name__)
def test_a_strangers_file_becomes_a_model_and_labels_of_new_rows_by_two_commands(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, *read = file(tmp_path)
    path, options = (read[0], read[3:]) if read[0] == "pics" else (read[2].partition("=")[2], read[3:])
    gaps = ["--impute", "mean"] if file is classes_with_gaps else []
    said = run("fit", "ridge", path, "model.zarr", *options, *gaps).stderr
    store = f"{path.partition('.')[0]}.zarr"
    assert f"created {store} from {path}" in said
    assert f"using {store}, which was made from {path} earlier" in run("fit", "ridge", path, "again.zarr", *gaps).stderr
    run("annotate", "model.zarr", store, "known.csv", "--split", "all")
    shutil.move(store, "elsewhere.zarr")  # the model contains a description of its columns
    run("annotate", "model.zarr", path, "new.csv")
    known, new = (pd.read_csv(name, dtype=str).set_index("sample") for name in ("known.csv", "new.csv"))
    assert len(new) >= 12
    pd.testing.assert_frame_equal(new, known.loc[new.index])


def test_a_search_tells_the_error_of_real_targets_as_the_positive_number_that_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    real_targets(tmp_path)
    asked = (
        "tune",
        "ridge",
        "people.csv",
        "m.zarr",
        "--label-columns",
        "height,weight",
        "--id",
        "id",
        "--ridge",
        "0.1,1",
    )
    assert re.search(r": arrmse 0\.\d+ on 4 folds", run(*asked).stdout)
    assert record(*asked, "--overwrite")["best"]["mean"] < 0  # the score is the negated error


def test_a_table_in_the_place_of_a_store_says_what_it_lacks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = _table(species=CLASSES)
    table.to_csv("zoo.csv", index=False)
    named = "fit", "ridge", "zoo.csv", "m.zarr", "--label-columns", "species", "--id", "id"
    said = run("fit", "ridge", "zoo.csv", "m.zarr", code=2).stderr
    assert "zoo.csv: the labels are not specified; pass --label-columns with some of its columns: id, f0" in said
    assert not (tmp_path / "zoo.zarr").exists()
    run(*named)
    other = "fit", "ridge", "zoo.csv", "n.zarr", "--label-columns", "f0"
    assert "--overwrite to replace it" in run(*other, code=2).stderr
    table.iloc[:30].to_csv("zoo.csv", index=False)
    assert "zoo.zarr was made from other files than zoo.csv" in run(*other[:4], code=2).stderr
    run(*named, "--overwrite")
    assert stores.open_features("zoo.zarr").n_samples == 30
    assert "omit the option" in run("tune", "ridge", "zoo.zarr", "t.zarr", "--id", "id", code=2).stderr
    table.drop(columns="f2").to_csv("less.csv", index=False)
    said = run("annotate", "m.zarr", "less.csv", "out.csv", code=2).stderr
    assert "less.csv: the column 'f2' of the training data is missing" in said
    table.loc[[0, 1], "id"] = "twice"
    table.to_csv("twice.csv", index=False)
    assert "the id 'twice' is in 2 rows" in run("annotate", "m.zarr", "twice.csv", "out.csv", code=2).stderr
    assert not (tmp_path / "out.csv").exists()


def test_a_search_fills_cells_a_store_without_labels_says_what_it_lacks_and_yes_is_a_class_of_its_name(tmp_path):
    table = _table(owl=np.where(CLASSES == "owl", "yes", "no"))
    table.loc[3, "f1"] = np.nan
    table.to_csv(tmp_path / "t.csv", index=False)
    named = ["--view", f"f={tmp_path / 't.csv'}", "--id", "id", "--label-columns", "owl"]
    run("ingest", "files", tmp_path / "f.zarr", *named, "--test-share", 0.25)
    assert (
        "missing values are replaced by the means"
        in run("tune", "ridge", tmp_path / "f.zarr", tmp_path / "m.zarr").stderr
    )
    run("annotate", tmp_path / "m.zarr", tmp_path / "f.zarr", tmp_path / "a.zarr", "--csv", tmp_path / "a.csv")
    assert set(pd.read_csv(tmp_path / "a.csv")["label 1"]) == {"yes", "no"}
    table.drop(columns=["owl", "id"]).to_csv(tmp_path / "x.csv", index=False)
    run("ingest", "files", tmp_path / "x.zarr", "--view", f"f={tmp_path / 'x.csv'}")
    for command in ("tune", "fit"):
        said = run(command, "ridge", tmp_path / "x.zarr", tmp_path / "n.zarr", code=2).stderr
        assert "x.zarr has no labels, which MultiViewRidge needs" in said


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ridge", "kgha", "mesd", "labelpropagation"])
def test_classes_of_which_some_are_not_known_are_predicted_as_classes_for_every_sample(name, tmp_path):
    table = _table(species=CLASSES)
    table.loc[::7, "species"] = None
    table.to_csv(tmp_path / "t.csv", index=False)
    named = ["--view", f"f={tmp_path / 't.csv'}", "--id", "id", "--label-columns", "species"]
    run("ingest", "files", tmp_path / "f.zarr", *named)
    run("fit", name, tmp_path / "f.zarr", tmp_path / "m.zarr")
    run("annotate", tmp_path / "m.zarr", tmp_path / "f.zarr", tmp_path / "a.zarr", "--csv", tmp_path / "a.csv")
    said = pd.read_csv(tmp_path / "a.csv").set_index("sample")
    assert list(said.columns) == ["label 1"]
    known = table.species.notna().to_numpy()
    right = (said.loc[table.id, "label 1"].to_numpy() == CLASSES)[known].mean()
    assert right > 0.8
    judged = record("evaluate", tmp_path / "m.zarr", tmp_path / "f.zarr", "--split", "all")
    assert judged["accuracy"] == pytest.approx(right)
    assert record("tune", name, tmp_path / "f.zarr", tmp_path / "t.zarr", "--folds", 2)["best"]["mean"] > 0.7
