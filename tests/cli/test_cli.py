"""Run `dmo` commands from input files to annotated samples, and check that every error message has one line."""

import csv
import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from shell import disk_full, figures_emptied, record, run
from sklearn.metrics import (
    f1_score,
    label_ranking_average_precision_score,
    mean_absolute_error,
    precision_recall_fscore_support,
    r2_score,
    roc_auc_score,
    root_mean_squared_error,
)
from starlette.testclient import TestClient

import dmo.cli
import dmo.methods
import dmo.workflows.apply
from dmo import KGHA, MultiSetCCA, MultiViewRidge, stores
from dmo.blocks import row_blocks
from dmo.cli import estimator_options, help_pages, signatures
from dmo.cli.app import COMMANDS, ESTIMATORS, TUNED, fit
from dmo.cli.commands import OF_TABLE
from dmo.cli.estimator_options import engine, engine_options, options_of
from dmo.cli.learn import fit_command, plan_command, tune_command
from dmo.datasets import Samples
from dmo.decoders import Scores
from dmo.errors import visible
from dmo.labels.stratification import stratified_folds
from dmo.methods.annotator import label_scores
from dmo.metrics import annotation_scores, auc_scores, f1_hierarchical, top_label_sets, top_scores
from dmo.parameters import flat, parts_of
from dmo.parameters import places as flat_names
from dmo.persistence import load
from dmo.serve.app import make_app
from dmo.workflows.rows import open_trial

N_TRAIN, N_TEST, N_LABELS, TOP = 90, 40, 6, 2
NAMES = ["sun", "sea", "sand", "snow", "fir", "fox"]


@pytest.fixture(scope="module")
def data():
    """Generate samples with six labels and two views, real-valued features "shape" and counts "words"."""
    rng = np.random.default_rng(5)
    n = N_TRAIN + N_TEST
    kind = rng.integers(0, 3, n)
    shape = rng.normal(size=(3, 8))[kind] + 0.8 * rng.normal(size=(n, 8))
    words = rng.poisson(rng.gamma(1.0, 2.0, size=(3, 20))[kind])
    Y = np.zeros((n, N_LABELS), dtype=np.uint8)
    for label in range(N_LABELS):
        Y[:, label] = (kind == label // 2) & (rng.random(n) < (0.95 if label % 2 else 0.6))
    return {"shape": shape.astype(np.float32), "words": words.astype(np.uint16)}, Y


@pytest.fixture(scope="module")
def work(data, tmp_path_factory):
    """Create a folder with files of training and test samples, the feature store `f.zarr` and the model `m.zarr`."""
    folder = tmp_path_factory.mktemp("cli")
    views, Y = data
    for split, where in (("train", slice(0, N_TRAIN)), ("test", slice(N_TRAIN, None))):
        np.save(folder / f"shape_{split}.npy", views["shape"][where])
        np.savez(folder / f"words_{split}.npz", counts=views["words"][where])
        np.save(folder / f"labels_{split}.npy", Y[where])
    (folder / "names.txt").write_text("\n".join(NAMES))
    run(*ingest_files(folder), folder / "f.zarr")
    run("fit", "kgha", folder / "f.zarr", folder / "m.zarr", "--n-components", "0.5", "--ridge", "0.2")
    return folder


def ingest_files(folder):
    """Return the arguments of `dmo ingest files` for the files in `folder`, without the output store."""
    arguments = ["ingest", "files", "--label-names", folder / "names.txt", "--histogram", "words", "--block", "32"]
    for split in ("train", "test"):
        arguments += ["--view", f"shape:{split}={folder}/shape_{split}.npy"]
        arguments += ["--view", f"words:{split}={folder}/words_{split}.npz"]
        arguments += ["--labels", f"{split}={folder}/labels_{split}.npy"]
    return arguments


def by_hand(data, train=slice(0, N_TRAIN)):
    """Fit the model of the fixture in Python, without shell commands."""
    views, Y = data
    kernel = {"shape": "rbf", "words": "hellinger-rbf"}
    model = KGHA(kernel, ridge=0.2, n_components=0.5)
    return model.fit({name: view[train] for name, view in views.items()}, Y[train])


def held_out(data):
    views, Y = data
    return {name: view[N_TRAIN:] for name, view in views.items()}, Y[N_TRAIN:]


@pytest.mark.parametrize(
    ("given", "cure"),
    {
        ("a.csv",): "dmo info a.csv",
        ("ingest", "a.csv"): "dmo ingest files STORE.zarr --view NAME=a.csv",
        ("fit", "f.zarr"): "dmo fit ridge f.zarr",
        ("tune", "f.zarr"): "dmo tune ridge f.zarr",
    }.items(),
)
def test_a_file_in_place_of_a_command_is_told_where_it_goes(given, cure):
    said = " ".join(run(*given, code=2).stderr.replace("│", " ").split())
    assert f"{given[-1]!r} is a file, and a command comes first: {cure}" in said


def test_ingest_keeps_values_labels_names_and_splits(work, data):
    store, (views, Y) = stores.open_features(work / "f.zarr"), data
    for name, view in views.items():
        np.testing.assert_array_equal(store.views[name][:], view)
    np.testing.assert_array_equal(store.labels, Y)
    assert store.label_names == NAMES
    assert store.split.tolist() == ["train"] * N_TRAIN + ["test"] * N_TEST
    assert (store.view_info("shape").histogram, store.view_info("words").histogram) == (False, True)


def test_evaluate_gives_the_librarys_figures_as_json_and_as_table(work, data):
    found = record("evaluate", work / "m.zarr", work / "f.zarr", "--top", TOP)
    views, Y = held_out(data)
    scores = by_hand(data).decision_function(views)
    expected, area = annotation_scores(Y, scores, TOP), auc_scores(Y, scores)
    for key in ("precision", "recall", "f1", "n_plus"):
        assert found[key] == pytest.approx(getattr(expected, key), abs=1e-9)
    # Propensities are estimated from the training samples.
    frequency = data[1][:N_TRAIN].mean(axis=0)
    assert found["psp"] == pytest.approx(top_scores(Y, scores, TOP, frequency, N_TRAIN).psp, abs=1e-9)
    assert (found["auc_macro"], found["auc_micro"]) == pytest.approx((area.macro, area.micro), abs=1e-9)
    assert (found["n_samples"], found["split"], found["top"]) == (N_TEST, "test", TOP)
    table = run("evaluate", work / "m.zarr", work / "f.zarr", "--top", TOP, "--split", "test").stdout
    lines = {line.rsplit("  ", 1)[0].strip(): line.rsplit("  ", 1)[-1].strip() for line in table.rstrip().split("\n")}
    for title, key in (("precision", "precision"), ("recall", "recall"), ("F1", "f1")):
        line = next(line for line in table.split("\n") if line.startswith(f"{title} at top {TOP}"))
        assert f"{100 * found[key]:.1f} %" in line, lines
    assert f"{100 * found['auc_macro']:.1f} %" in table
    assert found["peak_memory_bytes"] > 2**20
    assert found["stages"]["score samples"] <= found["seconds"]


def test_propensities_are_those_of_the_training_samples_whatever_store_is_evaluated(data, tmp_path):
    views, Y = {"shape": data[0]["shape"]}, data[1]
    Samples({"shape": views["shape"][N_TRAIN:]}, Y[N_TRAIN:], NAMES).write(str(tmp_path / "others.zarr"))
    Samples({"shape": views["shape"][:N_TRAIN]}, Y[:N_TRAIN], NAMES).write(str(tmp_path / "f.zarr"))
    frequency = Y[:N_TRAIN].mean(axis=0)
    for name in ("ridge", "jec", "morp", "lltsvr"):
        run("fit", name, tmp_path / "f.zarr", tmp_path / f"{name}.zarr")
        found = record("evaluate", tmp_path / f"{name}.zarr", tmp_path / "others.zarr", "--top", TOP)
        scores = label_scores(load(str(tmp_path / f"{name}.zarr")), {"shape": views["shape"][N_TRAIN:]})
        expected = top_scores(Y[N_TRAIN:], scores, TOP, frequency, N_TRAIN).psp
        assert found["psp"] == pytest.approx(expected, abs=1e-9), name


def test_cross_validated_propensities_are_those_of_every_folds_training_samples(work, data):
    found = record("evaluate", work / "m.zarr", work / "f.zarr", "--split", "train", "--cv", 3, "--top", TOP)
    views, Y = {name: view[:N_TRAIN] for name, view in data[0].items()}, data[1][:N_TRAIN]
    fold, each = stratified_folds(Y, 3), []
    for number in range(3):
        train, test = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        scores = by_hand(data, train).decision_function({name: view[test] for name, view in views.items()})
        each.append(top_scores(Y[test], scores, TOP, Y[train].mean(axis=0), len(train)).psp)
    assert found["psp"] == pytest.approx(np.average(each, weights=np.bincount(fold)), abs=1e-9)


@pytest.mark.slow
def test_evaluate_and_report_say_where_they_judge_training_samples_and_how_to_judge_others(work, tmp_path):
    """The output must mark scores of training samples, because in-sample scores are too optimistic."""
    found = record("evaluate", work / "m.zarr", work / "f.zarr", "--split", "train")
    honest = record("evaluate", work / "m.zarr", work / "f.zarr", "--split", "train", "--cv", 3)
    assert (found["training_samples"], honest["training_samples"], honest["cv"]) == ("all", None, 3)
    assert record("evaluate", work / "m.zarr", work / "f.zarr", "--split", "all")["training_samples"] == "some"
    assert record("evaluate", work / "m.zarr", work / "f.zarr")["training_samples"] is None
    assert honest["lrap"] < found["lrap"]
    said = run("evaluate", work / "m.zarr", work / "f.zarr", "--split", "train")
    assert "training samples" in said.stdout.split("\n")[0]
    assert "--cv" in said.stderr
    page = tmp_path / "page.html"
    told = run("report", work / "m.zarr", work / "f.zarr", page, "--split", "train")
    assert "<h1>KGHA (m) on f.zarr, training samples</h1>" in page.read_text()
    assert "dmo evaluate --cv" in told.stderr


def test_evaluate_prints_rankings_and_label_sets_as_scikit_learn_has_them(work, data):
    found = record("evaluate", work / "m.zarr", work / "f.zarr")
    views, Y = held_out(data)
    model = by_hand(data)
    scores, sets = model.decision_function(views), model.predict(views)
    assert found["lrap"] == pytest.approx(label_ranking_average_precision_score(Y, scores), abs=1e-9)
    for how in ("micro", "macro", "samples"):
        assert found[f"f1_{how}"] == pytest.approx(f1_score(Y, sets, average=how, zero_division=0), abs=1e-9)
    rows = [list(each.values()) for each in found["by_label"]]
    *ratios, support = precision_recall_fscore_support(Y, sets, zero_division=0)
    areas = roc_auc_score(Y, scores, average=None)
    assert [row[0] for row in rows] == NAMES
    np.testing.assert_allclose(np.array([row[1:] for row in rows]).T, [*ratios, areas, support], atol=1e-9)
    lines = run("evaluate", work / "m.zarr", work / "f.zarr", "--by-label").stdout.splitlines()
    assert [line.split()[:3] for line in lines[1:3]] == [
        [how, "F1", f"{100 * found[f'f1_{how}']:.1f}"] for how in ("micro", "macro")
    ]
    assert [line.split()[-1] for line in lines[-len(NAMES) :]] == [str(count) for count in support]


def test_annotate_writes_the_best_labels_in_words(work, data, tmp_path):
    found = record(
        "annotate", work / "m.zarr", work / "f.zarr", tmp_path / "a.zarr", "--top", TOP, "--csv", tmp_path / "a.csv"
    )
    scores = by_hand(data).decision_function(held_out(data)[0])
    best = np.argsort(-scores, axis=1)[:, :TOP]
    out = stores.open_results(tmp_path / "a.zarr")
    np.testing.assert_array_equal(out[:], best)
    assert out.attributes["label_names"] == NAMES
    assert out.provenance["parents"] == [str(work / "m.zarr"), str(work / "f.zarr")]
    words = [[NAMES[label] for label in row] for row in best]
    with open(tmp_path / "a.csv", newline="") as file:
        lines = list(csv.reader(file))
    assert lines[0] == ["sample", "label 1", "label 2"]
    assert lines[1:] == [[str(N_TRAIN + i), *row] for i, row in enumerate(words)]
    assert list(found["examples"].values()) == words[:5]
    assert (
        ", ".join(words[0])
        in run("annotate", work / "m.zarr", work / "f.zarr", tmp_path / "a.zarr", "--top", TOP, "--overwrite").stdout
    )


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_tables_of_annotate_hold_what_predict_says(work, data, tmp_path, monkeypatch, ending):
    monkeypatch.setattr(dmo.workflows.apply, "BLOCK", 2)
    monkeypatch.setattr(dmo.workflows.tables, "_BLOCK", 3)
    monkeypatch.setattr(dmo.workflows.tables, "_GROUP", 100)
    model, (views, _) = by_hand(data), held_out(data)
    run("annotate", work / "m.zarr", work / "f.zarr", tmp_path / f"a.{ending}", "--proba")
    sets, chances = model.predict(views), model.predict_proba(views)
    ids, columns = [str(N_TRAIN + i) for i in range(N_TEST)], [f"probability of {name}" for name in NAMES]
    if ending == "parquet":
        table = pd.read_parquet(tmp_path / "a.parquet")
        given = [set(row) for row in table["labels"]]
    else:
        table = pd.read_csv(tmp_path / "a.csv", dtype={"sample": str}, keep_default_na=False)
        words = [name for name in table.columns if name.startswith("label ")]
        assert len(words) == sets.sum(axis=1).max()
        given = [set(row) - {""} for row in table[words].to_numpy().tolist()]
    assert table["sample"].tolist() == ids
    assert given == [{NAMES[j] for j in np.flatnonzero(row)} for row in sets]
    np.testing.assert_allclose(table[columns].to_numpy(), chances, rtol=1e-5, atol=1e-7)
    assert [path.name for path in tmp_path.iterdir()] == [f"a.{ending}"]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_tables_of_transform_hold_the_embedding(work, data, tmp_path, monkeypatch, ending):
    monkeypatch.setattr(dmo.workflows.apply, "BLOCK", 2)
    run("transform", work / "m.zarr", work / "f.zarr", tmp_path / f"z.{ending}")
    if ending == "parquet":
        found = np.stack(pd.read_parquet(tmp_path / "z.parquet")["embedding"])
    else:
        found = pd.read_csv(tmp_path / "z.csv").filter(like="component ").to_numpy()
    np.testing.assert_allclose(found, by_hand(data).transform(data[0]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_stopped_tables_do_not_appear(work, tmp_path, monkeypatch, ending):
    monkeypatch.setattr(dmo.workflows.apply, "BLOCK", 2)
    score, calls = KGHA.decide, []

    def dies(self, X, top=None):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return score(self, X, top)

    out = tmp_path / f"a.{ending}"
    with monkeypatch.context() as patch:
        patch.setattr(KGHA, "decide", dies)
        run("annotate", work / "m.zarr", work / "f.zarr", out, code=130)
    with disk_full(100):
        assert "File too large" in run("annotate", work / "m.zarr", work / "f.zarr", out, code=3).stderr
    assert list(tmp_path.iterdir()) == []
    run("annotate", work / "m.zarr", work / "f.zarr", out)
    assert "exists; pass --overwrite" in run("annotate", work / "m.zarr", work / "f.zarr", out, code=2).stderr


def test_annotate_reads_no_labels(work, tmp_path):
    shutil.copytree(work / "f.zarr", tmp_path / "f.zarr")
    for chunk in (tmp_path / "f.zarr" / "labels").glob("c.*"):
        chunk.unlink()
    given = work / "m.zarr", tmp_path / "f.zarr"
    run("annotate", *given, tmp_path / "a.zarr", "--top", TOP)
    run("annotate", work / "m.zarr", work / "f.zarr", tmp_path / "b.zarr", "--top", TOP)
    np.testing.assert_array_equal(
        stores.open_results(tmp_path / "a.zarr")[:], stores.open_results(tmp_path / "b.zarr")[:]
    )
    run("evaluate", *given, code=2)


COLUMNS = {"labels": ["a", "b", "c", "d"], "classes": ["species"], "real": ["height", "weight"]}


@pytest.mark.slow
@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("name", ["ridge", "lltsvr"])
def test_every_door_says_of_a_sample_what_predict_says(name, kind, tmp_path):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(160, 5)).round(4)
    signal = X @ rng.normal(size=(5, 4)) + 0.5 * rng.normal(size=(160, 4))
    Y = {"labels": (signal > [0.0, 0.5, 1.0, 1.5]).astype(int), "real": 170 + 10 * signal[:, :2].round(4)}
    Y["classes"] = np.array(["cat", "dog", "owl"])[signal[:, :3].argmax(axis=1)][:, None]
    table = pd.DataFrame({"id": [f"s{i:03d}" for i in range(160)]} | {f"f{j}": X[:, j] for j in range(5)})
    table[COLUMNS[kind]] = Y[kind]
    table.to_csv(tmp_path / "x.csv", index=False)
    store, model, out, text = (tmp_path / end for end in ("s.zarr", "m.zarr", "a.zarr", "a.csv"))
    chosen = "--label-columns", ",".join(COLUMNS[kind]), "--id", "id", "--test-share", 0.3
    run("ingest", "files", store, "--view", f"x={tmp_path}/x.csv", *chosen)
    run("fit", name, store, model, "--split", "train")
    opened = stores.open_features(store)
    views, truth, index = opened.select("test")
    fitted, new = dmo.load(str(model)), views["x"][:]
    said, everything = fitted.predict(new), fitted.predict(opened.views["x"][:])
    words = {
        "labels": lambda row: {COLUMNS[kind][j] for j in np.flatnonzero(row)},
        "classes": lambda row: {str(row)},
        "real": lambda row: [float(f"{value:.6g}") for value in row],
    }[kind]

    run("annotate", model, store, out, "--csv", text, *(["--proba"] if kind != "real" else []))
    with open(text, newline="") as file:
        rows = list(csv.DictReader(file))
    for row, own in zip(rows, said, strict=True):
        if kind == "real":
            assert [float(row[target]) for target in COLUMNS[kind]] == words(own)
        else:
            assert {label for key, label in row.items() if key.startswith("label ") and label} == words(own)
    if kind != "real":
        names = [key for key in rows[0] if key.startswith("probability of ")]
        written = [[float(row[name]) for name in names] for row in rows]
        np.testing.assert_allclose(written, fitted.predict_proba(new), rtol=1e-5, atol=1e-12)

    measure, value = {
        "labels": lambda: ("f1_micro", f1_score(truth, said, average="micro")),
        "classes": lambda: ("accuracy", np.mean(said == Y[kind][index, 0])),
        "real": lambda: ("r2", r2_score(truth, said)),
    }[kind]()
    for judged in (model, out):
        measured = record("evaluate", judged, store)[measure]
        assert measured == pytest.approx(value)
        with figures_emptied():
            page = record("report", judged, store, tmp_path / "page.html")["methods"]
        assert next(iter(page.values()))[measure] == pytest.approx(value)

    trial = open_trial(str(model), None, None, 200)
    page = TestClient(make_app(trial, "m.zarr", "token"), "http://127.0.0.1:8000/token/")
    assert page.get("model.json").json()["values"] == ("numbers" if kind == "real" else "probabilities")
    sent = {"file": ("x.csv", (tmp_path / "x.csv").read_bytes())}
    for own, answer in zip(everything, page.post("describe", files=sent).json()["samples"], strict=True):
        if kind == "real":
            assert [label["value"] for label in answer["labels"]] == words(own)
            assert [label["name"] for label in answer["labels"]] == COLUMNS[kind]
            assert all(set(near["values"]) == set(COLUMNS[kind]) for near in answer["neighbors"])
        else:
            assert {label["name"] for label in answer["labels"] if label["given"]} == words(own)

    trained = int(np.flatnonzero(np.asarray(opened.split) == "train")[0])
    first = words(Y[kind][trained, 0] if kind == "classes" else Y[kind][trained])
    (tmp_path / "answers.csv").write_text(f"sample,labels\ns{trained:03d},{';'.join(sorted(map(str, first)))}\n")
    update = "update", model, store, tmp_path / "next.zarr", tmp_path / "answers.csv"
    if kind == "real":
        assert "run dmo ingest and dmo fit again" in run(*update, code=2).stderr
        for door in (("annotate", model, store, tmp_path / "b.zarr"), ("evaluate", model, store), ("serve", model)):
            assert (
                "--top applies to labels, but the model learned regression targets"
                in run(*door, "--top", 1, code=2).stderr
            )
        assert run("search", model, store, "--sample", "s003").stdout.count("height") > 5
        return
    assert record(*update)["changed_answers"] == 0
    np.testing.assert_array_equal(dmo.load(str(tmp_path / "next.zarr")).predict(new), said)
    if kind == "labels":
        two = f1_score(truth, fitted.predict(new, top=2), average="micro")
        run("annotate", model, store, tmp_path / "two.zarr", "--top", 2)
        assert record("evaluate", tmp_path / "two.zarr", store)["f1_micro"] == pytest.approx(two)
        assert record("evaluate", model, store, "--top", 2)["f1_micro"] == pytest.approx(two)
        assert "pass --csv too" in run("annotate", model, store, tmp_path / "b.zarr", "--proba", code=2).stderr


def test_annotate_scores_and_transform_equal_the_library(work, data, tmp_path):
    model, (views, _) = by_hand(data), data
    run("annotate", work / "m.zarr", work / "f.zarr", tmp_path / "s.zarr", "--scores", "--split", "all", "--block", 50)
    run("transform", work / "m.zarr", work / "f.zarr", tmp_path / "z.zarr", "--block", 50)
    scores, Z = stores.open_results(tmp_path / "s.zarr"), stores.open_results(tmp_path / "z.zarr")
    assert scores.columns == NAMES
    np.testing.assert_allclose(scores[:], model.decision_function(views), atol=1e-6)
    np.testing.assert_allclose(Z[:], model.transform(views), atol=1e-6)
    np.testing.assert_array_equal(top_label_sets(scores[:], TOP), model.predict(views, top=TOP))


def test_model_keeps_label_names_and_where_it_comes_from(work):
    assert dmo.load(str(work / "m.zarr")).label_names_ == NAMES
    found = record("info", work / "m.zarr")
    assert found["provenance"]["parents"] == [str(work / "f.zarr")]
    origin = found["provenance"]["parameters"]
    assert origin["split"] == "train"
    assert origin["features"] == record("info", work / "f.zarr")["provenance"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("ridge", "--ridge", 0.5, "--combine", "kernels", "--kernel", "linear", "--kernel", "words=l1-rbf"),
            MultiViewRidge({"shape": "linear", "words": "l1-rbf"}, ridge=0.5, combine="kernels"),
        ),
        (
            ("ridge", "--ridge", "shape=0.5", "--weights", "words=3", "--prior-power", 0.5, "--standardize", 1),
            MultiViewRidge(
                {"shape": "rbf", "words": "hellinger-rbf"},
                ridge={"shape": 0.5, "words": 0.01},
                weights={"shape": 1.0, "words": 3.0},
                decoder=Scores(prior_power=0.5, standardize=1.0),
            ),
        ),
        (
            ("kgha", "--views", "words", "--n-components", "3", "--intercept", "--no-center", "--balance", 0.1),
            KGHA({"words": "hellinger-rbf"}, n_components=3, intercept=True, center=False, balance=0.1),
        ),
        (
            ("multisetcca", "--n-components", 3, "--ridge", 1, "--precision", "float64"),
            MultiSetCCA({"shape": "rbf", "words": "hellinger-rbf"}, ridge=1.0, n_components=3),
        ),
    ],
)
def test_fit_options_reach_the_estimator(work, data, tmp_path, arguments, expected):
    method, *options = arguments
    run("fit", method, work / "f.zarr", tmp_path / "m.zarr", *options)
    views = {name: view for name, view in data[0].items() if name in expected.kernel}
    expected.fit({name: view[:N_TRAIN] for name, view in views.items()}, data[1][:N_TRAIN])
    found = dmo.load(str(tmp_path / "m.zarr"))
    for call in ("decision_function", "transform"):
        if hasattr(expected, call):
            np.testing.assert_allclose(getattr(found, call)(views), getattr(expected, call)(views), atol=2e-4)


def test_auto_kernels_are_said_with_their_reason(work, tmp_path):
    said = run("fit", "kgha", work / "f.zarr", tmp_path / "m.zarr").stderr
    assert "kernels rbf (shape), hellinger-rbf (words, histograms)" in said


def test_a_command_says_in_one_line_what_was_chosen_and_more_when_asked(work, tmp_path):
    command = "fit", "kgha", work / "f.zarr", tmp_path / "m.zarr", "--overwrite"
    (line,) = run(*command).stderr.strip().split("\n")
    assert line.startswith(f"KGHA on {N_TRAIN} samples of split train; kernels rbf (shape)")
    assert "engine exact (2 kernels of 90 x 90 with factors need 253.1 KiB, " in line
    said = run(*command, "-v")
    assert "solve: cholesky" in said.stderr
    assert "kernels and factors" in said.stderr
    assert "kernels and factors" in said.stdout


def test_every_command_that_writes_ends_with_one_line_of_what_it_made(work, tmp_path):
    """Without a terminal, the output contains no progress bars, tables or costs."""
    m, f, out = work / "m.zarr", work / "f.zarr", tmp_path / "out.zarr"
    lines = {
        (
            "ingest",
            "digits",
            out,
        ): rf"{out}: samples 1797 \(597 test, 1200 train\); labels 14, .* a sample; .*; [\d.]+ s",
        (
            "fit",
            "ridge",
            f,
            out,
            "--views",
            "shape",
        ): rf"{out}: MultiViewRidge of 6 labels; view shape \(.*\); [\d.]+ s",
        (
            "tune",
            "ridge",
            f,
            out,
            "--ridge",
            "1,2",
        ): rf"{out}: ranking [\d.]+ on 4 folds, best of \d+ settings: ridge .*",
        ("transform", m, f, out): rf"{out}: embedding of {N_TRAIN + N_TEST} samples, 3 columns; [\d.]+ s",
        ("annotate", m, f, out, "--top", 2): rf"{out}: annotation of {N_TEST} samples .*, 2 columns; first .*; .*",
        ("report", m, f, tmp_path / "r.html"): rf"{tmp_path / 'r.html'}: KGHA \(m\) F1 [\d.]+ %; .*; [\d.]+ s",
    }
    for command, pattern in lines.items():
        shutil.rmtree(out, ignore_errors=True)
        said = run(*command)
        assert re.fullmatch(pattern, said.stdout.strip()), said.stdout
        assert len(said.stderr.splitlines()) <= 2, said.stderr
        assert not re.search(r"(?<!\d)0\.0 GiB|[━█]|1 kernels|peak memory", said.stdout + said.stderr)
    assert "peak memory" not in run("evaluate", m, f).stdout
    assert "peak memory" in run("evaluate", m, f, "-v").stdout


def test_warnings_are_notes(work, tmp_path):
    said = run("fit", "kgha", work / "f.zarr", tmp_path / "m.zarr", "--solver", "als", "--max-iter", 2).stderr
    assert "warning: KGHA: als stopped after 2 steps" in said


def test_storage_and_scheduler_do_not_change_the_answer(work, data, tmp_path):
    model = (
        "fit",
        "kgha",
        work / "f.zarr",
        tmp_path / "m.zarr",
        "--n-components",
        "0.5",
        "--ridge",
        "0.2",
        "--overwrite",
    )
    expected = by_hand(data).decision_function(data[0])
    for options in (
        ("--storage", "stored", "--path", tmp_path / "kernels", "--block", 32),
        ("--storage", "recomputed"),
    ):
        run(*model, *options, "--scheduler", "in-process")
        np.testing.assert_allclose(dmo.load(str(tmp_path / "m.zarr")).decision_function(data[0]), expected, atol=1e-5)
    assert len(list((tmp_path / "kernels").iterdir())) == 2


def test_many_samples_are_written_in_larger_blocks(work, monkeypatch, tmp_path):
    monkeypatch.setattr(dmo.workflows.apply, "BLOCK", 10)
    written = []
    for many, block in ((N_TRAIN + N_TEST + 1, 10), (N_TRAIN + N_TEST, 40)):
        monkeypatch.setattr(dmo.workflows.apply, "MANY", many)
        run("transform", work / "m.zarr", work / "f.zarr", tmp_path / "rows.zarr", "--overwrite")
        assert stores.describe(tmp_path / "rows.zarr")["block"] == block
        written.append(stores.open_results(tmp_path / "rows.zarr")[:])
    np.testing.assert_allclose(*written, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("command", ["annotate", "transform"])
def test_dry_run_plans_and_writes_nothing(work, tmp_path, command):
    arguments = {
        "annotate": (
            "annotate",
            work / "m.zarr",
            work / "f.zarr",
            tmp_path / "out.zarr",
            "--csv",
            tmp_path / "out.csv",
        ),
        "transform": ("transform", work / "m.zarr", work / "f.zarr", tmp_path / "out.zarr"),
    }[command]
    plan = record(*arguments, "--dry-run")["plan"]
    table = run(*arguments, "--dry-run").stdout
    assert "nothing was written" in table
    assert list(tmp_path.iterdir()) == []
    assert plan["blocks"] == 1


def test_annotate_goes_on_where_it_stopped(work, tmp_path, monkeypatch):
    whole = ("annotate", work / "m.zarr", work / "f.zarr", tmp_path / "whole.zarr", "--block", 8, "--top", TOP)
    run(*whole)
    again = [str(tmp_path / "part.zarr") if a == tmp_path / "whole.zarr" else a for a in whole]
    score, calls = KGHA.decide, []

    def dies(self, X, top=None):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return score(self, X, top)

    monkeypatch.setattr(KGHA, "decide", dies)
    stopped = run(*again, code=130)
    assert stopped.stderr.rstrip().endswith("repeat the command to resume or restart it")
    blocks = len(row_blocks(N_TEST, 8))
    assert f"{blocks - 2} of {blocks} blocks" in run("info", tmp_path / "part.zarr").stdout
    run("evaluate", tmp_path / "part.zarr", work / "f.zarr", code=2)
    calls.clear()
    monkeypatch.setattr(KGHA, "decide", lambda self, X, top=None: calls.append(1) or score(self, X, top))
    assert f"2 of {blocks} blocks are there already" in run(*again).stderr
    assert len(calls) == blocks - 2
    np.testing.assert_array_equal(
        stores.open_results(tmp_path / "part.zarr")[:], stores.open_results(tmp_path / "whole.zarr")[:]
    )


def test_rows_are_made_once_and_refused_for_another_model_or_other_features(work, tmp_path):
    folder = shutil.copytree(work, tmp_path / "copy")
    model, features, rows = (folder / name for name in ("m.zarr", "f.zarr", "z.zarr"))
    run("transform", model, features, rows)
    before = sorted((path, path.stat().st_mtime_ns) for path in rows.rglob("*"))
    assert "is complete already" in run("transform", model, features, rows).stderr
    assert sorted((path, path.stat().st_mtime_ns) for path in rows.rglob("*")) == before
    assert "was made with block" in run("transform", model, features, rows, "--block", 7, code=2).stderr
    run("fit", "kgha", features, model, "--ridge", 0.7, "--n-components", 0.5, "--overwrite")
    assert "was made from other contents of the model than" in run("transform", model, features, rows, code=2).stderr
    run("transform", model, features, rows, "--overwrite")
    np.save(folder / "shape_train.npy", np.load(folder / "shape_train.npy") + 1)
    run(*ingest_files(folder), features, "--overwrite")
    assert "was made with provenance.parameters.features" in run("transform", model, features, rows, code=2).stderr


def test_rows_record_the_model_that_made_them_where_it_is_replaced_meanwhile(work, tmp_path, monkeypatch):
    model, other = (shutil.copytree(work / "m.zarr", tmp_path / name) for name in ("m.zarr", "other.zarr"))
    run("fit", "kgha", work / "f.zarr", other, "--ridge", 0.7, "--n-components", 0.5, "--overwrite")
    expected, first = stores.model_contents(other), []

    def replaced(path):
        found = load(path)
        if not first:
            first.append(found)
            shutil.rmtree(model)
            shutil.copytree(other, model)
        return found

    monkeypatch.setattr(dmo, "load", replaced)
    applied = dmo.workflows.rows.open_applied(str(model), str(work / "f.zarr"), None, "test", transforms=True)
    assert (first[0].ridge, applied.model.ridge, applied.contents) == (0.2, 0.7, expected)


def test_annotating_again_leaves_a_csv_that_says_the_same(work, tmp_path):
    again = "annotate", work / "m.zarr", work / "f.zarr", tmp_path / "a.zarr", "--csv", tmp_path / "a.csv"
    run(*again)
    written = (tmp_path / "a.csv").read_bytes()
    run(*again)
    assert (tmp_path / "a.csv").read_bytes() == written
    (tmp_path / "a.csv").write_bytes(b"mine")
    assert "a.csv exists and has different content" in run(*again, code=2).stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.zarr"]
    run(*again, "--overwrite")
    assert (tmp_path / "a.csv").read_bytes() == written


FORMULAS = ["=cmd|' /C calc'!A0", "@sum", "+1", "-1", "'quoted", "sky\x1b]0;owned\x07"]


def test_names_of_others_are_no_formulas_in_a_csv_and_no_commands_to_a_terminal(data, tmp_path):
    views, Y = data
    writer = stores.create_features(
        tmp_path / "f.zarr",
        len(Y),
        {"shape": stores.ViewSpec(8)},
        Y,
        FORMULAS,
        block=len(Y),
        sample_ids=[f"=s{i}\x1b[2J" for i in range(len(Y))],
    )
    writer.write("shape", 0, views["shape"])
    writer.finish()
    run("fit", "ridge", tmp_path / "f.zarr", tmp_path / "m.zarr")
    arguments = ["annotate", tmp_path / "m.zarr", tmp_path / "f.zarr", tmp_path / "a.zarr", "--top", N_LABELS]
    shown = run(*arguments, "--csv", tmp_path / "a.csv")
    assert "\x1b" not in shown.stdout + shown.stderr
    assert r"sky\x1b]0;owned\x07" in shown.stdout
    error = run("fit", "ridge", tmp_path / "f.zarr", tmp_path / "n.zarr", "--views", "\x1b[2J", code=2).stderr
    assert "\x1b" not in error
    with open(tmp_path / "a.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert not [cell for row in rows for cell in row if cell[0] in "=+-@"]
    assert "\x1b" not in (tmp_path / "a.csv").read_text(encoding="utf-8")
    assert {cell.removeprefix("'") for cell in rows[1][1:]} == {visible(name) for name in FORMULAS}
    assert [row[0].removeprefix("'") for row in rows[1:]] == [rf"=s{i}\x1b[2J" for i in range(len(Y))]


def test_info_of_every_kind(work, tmp_path):
    run("transform", work / "m.zarr", work / "f.zarr", tmp_path / "z.zarr")
    over = run("fit", "kgha", work / "f.zarr", tmp_path / "z.zarr", "--overwrite", code=2).stderr
    assert "is a result store, it is not replaced by a model" in over
    kernel = stores.create_kernel(tmp_path / "k.zarr", 40, 32, "float32", {})
    kernel.write(0, 0, np.eye(32, dtype=np.float32))
    for path, words in {
        work / "f.zarr": (f"{N_TRAIN} train", f"{N_TEST} test", "20 x uint16, histogram", "complete"),
        work / "m.zarr": ("KGHA", "shape: rbf, words: hellinger-rbf", "sun, sea, sand", str(work / "f.zarr")),
        tmp_path / "z.zarr": (
            f"{N_TRAIN + N_TEST} x 3 float32",
            "results (version 2)",
            "embedding",
            str(work / "m.zarr"),
        ),
        tmp_path / "k.zarr": ("40 x 40 float32", "unfinished", "2 of 3 blocks"),
    }.items():
        table = run("info", path).stdout
        for word in words:
            assert word in table
        assert record("info", path)["bytes"] > 0


BAD = {
    "missing store": (("fit", "kgha", "{no}", "{out}"), "no store at"),
    "store of another kind": (("fit", "kgha", "{m}", "{out}"), "is a model, expected a feature store"),
    "no such model": (("evaluate", "{no}", "{f}"), "no store at"),
    "unknown view": (("fit", "kgha", "{f}", "{out}", "--views", "shape,hue"), "has no view 'hue'; it has shape, words"),
    "unknown kernel": (("fit", "kgha", "{f}", "{out}", "--kernel", "rbff"), "--kernel rbff: kernel 'rbff' is unknown"),
    "kernel of no view": (("fit", "kgha", "{f}", "{out}", "--kernel", "hue=rbf"), "view 'hue' is not used"),
    "unknown split": (("fit", "kgha", "{f}", "{out}", "--split", "dev"), "has no split 'dev'; pass one of test, train"),
    "ridge not positive": (("fit", "kgha", "{f}", "{out}", "--ridge", "0"), "needs a positive number"),
    "ridge no number": (("fit", "ridge", "{f}", "{out}", "--ridge", "x"), "--ridge x: expected a number"),
    "components no number": (
        ("fit", "kgha", "{f}", "{out}", "--n-components", "few"),
        "--n-components few: expected a whole number or a number",
    ),
    "a misspelt method": (
        ("fit", "embedding", "{f}", "{out}", "--view", "shape", "--method", "lfad"),
        "did you mean 'lfda'?",
    ),
    "a misspelt choice": (
        ("fit", "kgha", "{f}", "{out}", "--solver", "krlyov"),
        "; did you mean krylov?",
    ),
    "too many components": (("fit", "kgha", "{f}", "{out}", "--n-components", "500"), "n_components = 500"),
    "stored without a folder": (("fit", "kgha", "{f}", "{out}", "--storage", "stored"), "needs a path"),
    "model exists": (("fit", "kgha", "{f}", "{m}"), "exists; pass --overwrite"),
    "out is another store": (
        ("transform", "{m}", "{f}", "{f}"),
        "it is not replaced by a result store; choose another path",
    ),
    "a model over its features": (
        ("fit", "kgha", "{f}", "{f}", "--overwrite"),
        "is a feature store, it is not replaced by",
    ),
    "rows over a model": (("transform", "{m}", "{f}", "{m}", "--overwrite"), "is a model, it is not replaced by"),
    "no cluster": (("fit", "kgha", "{f}", "{out}", "--scheduler", "moon"), "cluster 'moon' is unknown"),
    "lacking view": (("annotate", "{m}", "{other}", "{out}"), "the view 'words', on which"),
    "another width": (("transform", "{m}", "{narrow}", "{out}"), "has 5 features"),
    "other labels": (("evaluate", "{ms}", "{other}", "--split", "all"), "label 1 is 'lake', the model has 'sea' there"),
    "fewer labels": (("evaluate", "{ms}", "{few}"), "has 3 labels, the model scores 6"),
    "no labels": (("evaluate", "{ms}", "{bare}"), "has no labels to compare with"),
    "fit without labels": (("fit", "kgha", "{bare}", "{out}"), "has no labels, which KGHA needs"),
    "top above labels": (("evaluate", "{m}", "{f}", "--top", "7"), "--top 7: 6 labels have a training sample"),
    "not a store": (("info", "{txt}"), "ends in 'nothing', expected one of"),
    "unequal rows": (
        ("ingest", "files", "{out}", "--view", "a={a}", "--view", "b={b}"),
        "pass the same samples in each",
    ),
    "not finite": (("ingest", "files", "{out}", "--view", "a={inf}"), "view 'a', row 3, column 1 is inf"),
    "no such file": (("ingest", "files", "{out}", "--view", "a={out}.npy"), "no such file"),
    "no view": (("ingest", "files", "{out}"), "pass --view NAME=FILE at least once"),
    "view twice": (("ingest", "files", "{out}", "--view", "a={a}", "--view", "a:test={b}"), "view 'a' is given twice"),
    "bad type": (("ingest", "files", "{out}", "--view", "a={a}", "--dtype", "a=text"), "not a type of real numbers"),
    "no such set": (
        ("ingest", "coral", "{tmp}", "{out}"),
        "data set 'coral' is unknown, expected one of bibtex, corel5k,",
    ),
    "no such card": (("ingest", "{out}.toml", "{tmp}", "{out}"), "out.zarr.toml: no such file"),
    "folder lacks files": (("ingest", "corel5k", "{tmp}", "{out}"), "does not contain features/corel5k_RgbV3H1.npz"),
    "model over rows": (
        ("fit", "ridge", "{f}", "{rows}", "--overwrite"),
        "is a result store, it is not replaced by a model",
    ),
    "features over rows": (
        ("ingest", "files", "{rows}", "--view", "a={a}", "--overwrite"),
        "is a result store, it is not replaced by a feature store",
    ),
    "rows in memory": (
        ("transform", "{m}", "{f}", "memory://z.zarr"),
        "memory://z.zarr exists only in the memory of this process",
    ),
    "model in memory": (("fit", "ridge", "{f}", "memory://m"), "memory://m exists only in the memory of this process"),
    "rows in an unknown format": (
        ("transform", "{m}", "{f}", "{out}.json"),
        "ends in '.json', which is not a known format; use .csv, .parquet or .zarr",
    ),
    "labels in no format": (("annotate", "{m}", "{f}", "{tmp}/labels"), "has no ending, which is not a known format"),
    "page is a folder": (("report", "{m}", "{f}", "{tmp}"), "is a folder or a device, but the output is a file"),
    "no such protocol": (("info", "s4://bucket/store"), "s4://bucket/store: Protocol not known: s4"),
    "unknown view of a set": (("ingest", "yeast", "{tmp}", "{out}", "--views", "hue"), "got view 'hue'"),
}


@pytest.fixture(scope="module")
def places(work, data, tmp_path_factory):
    """Create stores and files with one fault each, for tests of invalid calls."""
    folder = tmp_path_factory.mktemp("bad")
    views, Y = data
    shape = views["shape"]

    def store(name, X, labels, names):
        spec = stores.ViewSpec(X.shape[1], X.dtype)
        writer = stores.create_features(folder / name, len(X), {"shape": spec}, labels, names, block=len(X))
        writer.write("shape", 0, X)
        writer.finish()

    store("other.zarr", shape, Y, ["sun", "lake", *NAMES[2:]])
    store("few.zarr", shape, Y[:, :3], NAMES[:3])
    store("bare.zarr", shape, None, None)
    both = stores.create_features(
        folder / "narrow.zarr", 9, {"shape": stores.ViewSpec(5), "words": stores.ViewSpec(20)}, block=9
    )
    both.write("shape", 0, np.ones((9, 5), np.float32))
    both.write("words", 0, np.ones((9, 20), np.float32))
    both.finish()
    run("fit", "ridge", work / "f.zarr", folder / "ms.zarr", "--views", "shape")
    run("transform", work / "m.zarr", work / "f.zarr", folder / "rows.zarr")
    np.save(folder / "a.npy", shape[:9])
    np.save(folder / "b.npy", shape[:8])
    np.save(folder / "inf.npy", np.where(np.arange(18).reshape(9, 2) == 7, np.inf, 1.0))
    (folder / "txt").write_text("text")
    names = {name: folder / f"{name}.zarr" for name in ("other", "few", "bare", "narrow", "ms", "no", "out", "rows")}
    files = {name: folder / f"{name}.npy" for name in ("a", "b", "inf")}
    stores_ = {"f": work / "f.zarr", "m": work / "m.zarr"}
    return names | files | stores_ | {"txt": folder / "txt", "tmp": folder}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_gives_one_sentence_and_code_2_and_writes_nothing(places, case):
    arguments, sentence = BAD[case]
    before = sorted(places["tmp"].iterdir())
    result = run(*(argument.format(**places) for argument in arguments), code=2)
    assert result.stdout == ""
    said = [line for line in result.stderr.split("\n") if line.startswith("dmo: ")]
    assert len(said) == 1
    assert sentence in said[0]
    assert "Traceback" not in result.stderr
    assert sorted(places["tmp"].iterdir()) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("fit", "ridge", "{f}", "{no}/m.zarr"),
        ("tune", "ridge", "{f}", "{no}/m.zarr"),
        ("transform", "{m}", "{f}", "{no}/z.zarr"),
        ("annotate", "{m}", "{f}", "{good}/a.zarr", "--csv", "{no}/a.csv"),
        ("report", "{m}", "{f}", "{no}/r.html"),
    ],
    ids=lambda arguments: arguments[0],
)
@pytest.mark.parametrize(("no", "said"), [("/proc", "cannot write there"), ("{f}/zarr.json", "is a file")])
def test_an_output_that_cannot_be_written_is_told_before_the_work(work, tmp_path, monkeypatch, arguments, no, said):
    names = {"f": work / "f.zarr", "m": work / "m.zarr", "good": tmp_path}
    names["no"] = no.format(**names)
    monkeypatch.setattr(dmo, "load", lambda path: pytest.fail("the model was loaded"))
    monkeypatch.setattr(MultiViewRidge, "fit", lambda *_: pytest.fail("the work began"))
    error = run(*(argument.format(**names) for argument in arguments), code=2).stderr
    assert said in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_full_disk_names_the_file_and_leaves_no_part(annotated, tmp_path):
    page = tmp_path / "page" / "report.html"
    with disk_full(20_000):
        error = run("report", annotated / "m.zarr", annotated / "f.zarr", page, code=3).stderr
    assert re.search(rf"{page.parent}/\S+: cannot write the file \(File too large\); free disk space", error)
    assert all(path.suffix in (".png", ".html") for path in page.parent.iterdir())
    command = ["annotate", annotated / "m.zarr", annotated / "pics", tmp_path / "a.csv"]
    with disk_full(3000):
        error = run(*command, code=3).stderr
    assert f"{tmp_path / 'a.csv.journal'}: cannot write what is annotated (File too large); free disk space" in error
    assert {path.name for path in tmp_path.iterdir()} == {"page", "a.csv.journal"}
    assert record(*command)["n_samples"] == 60


def test_overwrite_replaces_and_a_second_ingest_is_refused(work, tmp_path):
    arguments = [*ingest_files(work), tmp_path / "f.zarr"]
    run(*arguments)
    assert "exists; pass --overwrite" in run(*arguments, code=2).stderr
    run(*arguments, "--overwrite")
    assert stores.verify(tmp_path / "f.zarr") == []


def test_from_a_description(work, tmp_path):
    views = {"shape": {split: f"shape_{split}.npy" for split in ("train", "test")}}
    (work / "all.json").write_text(
        json.dumps({"views": views, "labels": {"train": "labels_train.npy", "test": "labels_test.npy"}})
    )
    found = record("ingest", "files", tmp_path / "f.zarr", "--from", work / "all.json")
    assert (found["n_samples"], found["n_labels"]) == (N_TRAIN + N_TEST, N_LABELS)
    assert found["split"] == {"test": N_TEST, "train": N_TRAIN}
    assert list(found["views"]) == ["shape"]


@pytest.mark.slow
def test_as_a_process(work, tmp_path):
    command = [str(Path(sys.executable).with_name("dmo"))]
    good = subprocess.run(
        [*command, "evaluate", work / "m.zarr", work / "f.zarr", "--json"], capture_output=True, text=True, check=True
    )
    assert json.loads(good.stdout)["n_samples"] == N_TEST
    assert good.stderr == ""
    bad = subprocess.run([*command, "info", tmp_path / "none.zarr"], capture_output=True, text=True, check=False)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith("dmo: no store at ")
    assert bad.stderr.count("\n") == 1


INTERRUPTED = """
import os, signal, sys

class Finder:
    def find_spec(self, name, *_):
        if name == module:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

class Late:
    def __del__(self, kill=os.kill, pid=os.getpid()):  # as Python is taken down
        kill(pid, 2)

path, module = sys.argv[1:]
late = Late() if module == "end" else None
sys.meta_path.insert(0, Finder())
from dmo.cli import main
sys.argv[1:] = ["info", path]
main()
"""


@pytest.mark.parametrize(
    ("module", "code", "said"),
    [
        ("typer", 130, "dmo: stopped before it began\n"),
        ("dmo.cli.info", 130, "dmo: stopped; finished parts are kept; repeat the command to resume or restart it\n"),
        ("end", 0, ""),
    ],
    ids=["of commands", "of a command", "after the end"],
)
def test_an_interrupt_of_the_start_is_one_sentence_and_one_after_the_end_is_none(work, module, code, said):
    command = [sys.executable, "-c", INTERRUPTED, work / "m.zarr", module]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, said)
    assert bool(done.stdout) == (code == 0)


READY = """
import sys

class Ready:
    def find_spec(self, name, *_):
        if name == "dmo.cli.app":
            print("ready", flush=True)

sys.meta_path.insert(0, Ready())
from dmo.cli import main
main()
"""


def interrupted(seconds, *command):
    """Send Ctrl-C to `dmo COMMAND` after `seconds`, and return whether the command stopped before completion."""
    started = [sys.executable, "-c", READY, *map(str, command)]
    with subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        try:
            _, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate()
    stopped = process.returncode == 130
    assert stopped or process.returncode == 0, errors
    assert ("dmo: stopped" in errors, "Traceback" in errors) == (stopped, False), errors
    return stopped


@pytest.mark.slow
@pytest.mark.parametrize("made", ["model", "features"])
def test_what_ctrl_c_stops_in_its_first_seconds_goes_on_to_the_same_bits(work, tmp_path, made):
    for i in range(12):
        pixels = np.random.default_rng(i).integers(0, 255, (40, 60, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")

    def command(out):
        if made == "features":
            return "extract", tmp_path, out
        return "tune", "kgha", work / "f.zarr", out, "--folds", 2, "--ridge", ".1,1", "--checkpoint", tmp_path / "kept"

    def content(out):
        if made == "features":
            return {name: rows[:] for name, rows in stores.open_features(out).views.items()}
        return stores.load_model(out)[0]

    moments = (0.0, 1.2, None)
    stopped = list(takewhile(bool, (interrupted(seconds, *command(tmp_path / "a.zarr")) for seconds in moments)))
    assert stopped
    run(*command(tmp_path / "b.zarr"))
    found, expected = content(tmp_path / "a.zarr"), content(tmp_path / "b.zarr")
    assert len(expected) > 3
    np.testing.assert_equal(found, expected)


def test_debug_shows_the_traceback(tmp_path):
    assert "Traceback" in run("--debug", "info", tmp_path / "none.zarr", code=2).stderr


def test_version():
    assert run("--version").stdout.strip() == dmo.__version__


def test_a_shell_completes_commands_and_the_options_of_estimators(tmp_path):
    """Run the completion script of `dmo --install-completion` in bash."""
    script = """
    eval "$(_DMO_COMPLETE=source_bash dmo)"
    complete -p dmo
    for line in "dmo fit k" "dmo fit kgha --ker"; do
      COMP_WORDS=($line)
      COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
      $(complete -p dmo | sed 's/.*-F \\([^ ]*\\) .*/\\1/') dmo
      echo "${COMPREPLY[*]}"
    done
    """
    (tmp_path / "dmo").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dmo "$@"\n')
    (tmp_path / "dmo").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    how, *found = done.stdout.split("\n")
    assert "-o default" in how  # bash completes all other words as file names
    assert found == ["kgha", "--kernel", ""]
    assert done.stderr == ""


HEAVY = {"numpy", "scipy", "dask", "distributed", "sklearn", "zarr", "numba", "rich", "matplotlib"}
UNSHOWN = {"numba", "dask.array", "distributed", "matplotlib", "http", "typer"}


def error_lines(code):
    """Run code in a new interpreter, and return the lines of standard error. The last line lists imported modules."""
    ending = "import atexit, sys; atexit.register(lambda: print('imported', *sys.modules, file=sys.stderr))"
    done = subprocess.run([sys.executable, "-c", f"{ending}\n{code}"], capture_output=True, text=True, check=True)
    return done.stderr.splitlines()


def parts_of_modules(line):
    """Split a line into module names, and add the names of their top-level packages."""
    return {part for name in line.split() for part in (name, name.partition(".")[0])}


def imported(code):
    """Return the modules and top-level packages that a new interpreter imports while it runs `code`."""
    return parts_of_modules(error_lines(code)[-1])


def dmo_process(*arguments):
    """Return the code of a program that runs `python -m dmo ARGUMENTS`."""
    return f"import runpy; sys.argv[1:] = {list(arguments)}; runpy.run_module('dmo', run_name='__main__')"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "left_out"),
    [
        ("import dmo", HEAVY),
        (dmo_process("--version"), HEAVY),
        (dmo_process("--help"), HEAVY - {"rich"}),
        ("from dmo import KGHA", UNSHOWN),
    ],
    ids=["dmo", "version", "help", "KGHA"],
)
def test_nothing_heavy_is_imported_before_it_is_needed(code, left_out):
    assert imported(code) & left_out == set()
    assert "numpy" in imported("import numpy")  # check that `imported` finds modules


COMPUTING = {"sklearn", "pandas", "numba", "distributed", "matplotlib", "pynndescent", "pyarrow", "scipy.stats"}
APPLIED = [[command, "none.zarr", "f.zarr"] for command in ("evaluate", "suggest", "serve", "report")]
APPLIED += [[command, "none.zarr", "f.zarr", "out.zarr"] for command in ("transform", "annotate")]
APPLIED += [["search", "none.zarr", "f.zarr", "--sample", "1"], ["update", "none.zarr", "f.zarr", "out.zarr", "a.csv"]]


# Pairs of a command and the modules that must not be imported. Commands that import more modules run later.
LEFT_OUT = [
    *((["fit", kind, "--help"], HEAVY - {"rich"} | COMPUTING) for kind in ("kgha", "mesd")),
    (["plan", "ridge", "--help"], HEAVY - {"rich"} | COMPUTING),
    (["tune", "kgha", "--help"], HEAVY - {"rich"} | COMPUTING),
    (["fit", "kgha", "f.zarr", "m.zarr", "--ridg", "1"], HEAVY - {"rich"} | COMPUTING),
    (["info", "--help"], COMPUTING | {"dask", "zarr"}),
    (["info", "none.zarr"], COMPUTING | {"dask", "zarr"}),
    (["info", "f.zarr"], COMPUTING | {"dask", "zarr"}),
    *(([command, "kgha", "none.zarr", "m.zarr"], COMPUTING | {"dask", "zarr"}) for command in ("fit", "tune")),
    (["plan", "kgha", "none.zarr"], COMPUTING | {"dask", "zarr"}),
    (["ingest", "files", "--help"], COMPUTING | {"dask"}),
    *(([command, "--help"], COMPUTING | {"dask.array"}) for command in COMMANDS if command != "info"),
    *((command, COMPUTING | {"dask.array"}) for command in APPLIED),
    *((["fit", "ridge", "f.zarr", "m.zarr", "--ridge", word], COMPUTING | {"dask.array"}) for word in ("few", "y=1")),
    (["plan", "ridge", "f.zarr"], {"numba", "dask.array", "distributed", "matplotlib", "pynndescent"}),
    (["fit", "ridge", "f.zarr", "m.zarr"], {"dask.array", "distributed", "matplotlib", "pynndescent"}),
]


@pytest.mark.slow
def test_help_and_what_is_refused_import_nothing_that_computes(monkeypatch, tmp_path):
    """Run all commands in a single process, and check the imported modules after each command."""
    estimator_options.surfaces()  # write the cache of options
    monkeypatch.chdir(tmp_path)
    Samples({"x": np.eye(6, 2)}, np.eye(6, 2, dtype=np.uint8)).write("f.zarr")
    commands = "from contextlib import suppress\nfrom dmo.cli import main\n"
    for arguments, _ in LEFT_OUT:
        commands += f"with suppress(SystemExit):\n    sys.argv[1:] = {arguments}\n    main()\n"
        commands += "print('imported', *sys.modules, file=sys.stderr)\n"
    *seen, _ = (parts_of_modules(line) for line in error_lines(commands) if line.startswith("imported "))
    found = {" ".join(arguments): names & left_out for (arguments, left_out), names in zip(LEFT_OUT, seen, strict=True)}
    assert found == {command: set() for command in found}


def test_the_options_that_are_kept_are_those_of_the_classes(monkeypatch, tmp_path):
    monkeypatch.setattr(estimator_options, "cache_from_source", lambda file: str(tmp_path / "kept.pyc"))
    made = estimator_options.surfaces.__wrapped__()
    with monkeypatch.context() as without:
        without.setattr(signatures, "surface", None)
        assert estimator_options.surfaces.__wrapped__() == made  # the options are read from the cache
    monkeypatch.setattr(estimator_options, "_sources", lambda: "changed")
    monkeypatch.setattr(signatures, "surface", lambda kind: made[kind.__name__])
    assert estimator_options.surfaces.__wrapped__() == made
    assert json.loads((tmp_path / "kept.json").read_text())["key"] == "changed"


def test_every_public_name_is_there_and_listed():
    for package in (dmo, dmo.methods):
        assert set(package.__all__) <= set(dir(package))
        assert all(getattr(package, name) is not None for name in package.__all__)
    assert {name for name in dmo.__all__ if name in dmo.methods.__all__} == set(dmo.methods.__all__)
    with pytest.raises(AttributeError):
        dmo.KGAH  # noqa: B018


FITTED = {kind: name for name, kind in ESTIMATORS.items()}


@pytest.mark.parametrize("kind", dmo.methods.__all__)
def test_every_parameter_of_every_estimator_is_an_option_of_its_command(kind):
    estimator = getattr(dmo, kind)
    objects = {part.parameter for part in parts_of(estimator) if part.kind._short} - set(flat_names(estimator))
    parameters = set(inspect.signature(estimator).parameters) - objects | set(flat_names(estimator))
    parameters -= {"views"}  # stores have named views, so there is no option
    options = inspect.signature(fit_command(kind)).parameters
    # A command option cannot contain a covariance matrix.
    assert parameters - set(options) == ({"covariance"} if kind == "CoupledSVR" else set())
    shared = {
        "store",
        "model",
        "split",
        "scheduler",
        "overwrite",
        *OF_TABLE,
    }
    engines = {"rank", "storage"} if "approximation" in parameters else set()
    assert engines <= set(options)
    assert set(options) - parameters - shared - set(engine_options(estimator.__name__)) in ({"view"}, {"views"})
    for name, option in options_of(estimator.__name__).items():
        assert option.help, name
        assert option.default == ("auto" if option.default == "auto" else flat(estimator())[name])
    said = run("fit", FITTED[kind], "--help").stdout.replace("--[no-]", "--")
    assert all(f"  --{name.replace('_', '-')}" in said for name in options_of(estimator.__name__))


HELPED = [[], *([name] for name in COMMANDS), *(["ingest", name] for name in ("CARD", "digits", "files"))]
HELPED += [
    [name, kind] for name, kinds in (("fit", ESTIMATORS), ("tune", TUNED), ("plan", ESTIMATORS)) for kind in kinds
]


@pytest.mark.parametrize("command", HELPED, ids=" ".join)
def test_help_fits_on_one_screen(command, monkeypatch):
    """In a terminal with 80 columns, the help text has at most 80 lines and describes every option in one line."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = run(*command, "--help").stdout.rstrip("\n").split("\n")
    assert len(lines) <= 80
    assert max(map(len, lines)) <= 80
    assert lines[-1].startswith(f"Documentation: reference/commands/{(command or ['index'])[0]}.html")
    options = lines[next(i for i, line in enumerate(lines) if line.startswith(("Defaults are", "Options:"))) :]
    assert [line for line in options[:-1] if line.startswith(" " * 8)] == []


def test_every_short_text_of_an_option_is_used():
    names = {name for kind in ESTIMATORS.values() for name in {**options_of(kind), **engine_options(kind)}}
    for key in help_pages.SHORT:
        kind, _, name = key.rpartition(".")
        assert name in ({**options_of(kind), **engine_options(kind)} if kind else names)


def test_help_states_defaults_in_command_line_terms(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    said = run("fit", "kgha", "--help").stdout
    assert "  --[no-]center         Center kernels and labels [true]" in said
    assert "  --kernel*             Kernel: linear, rbf, laplacian, ... [auto]" in said
    assert "  --regularization      Ridge of the reconstruction weights [0.001]" in run("fit", "mesd", "--help").stdout
    assert "  --folds               Folds of the cross-validation [4]" in run("tune", "kgha", "--help").stdout
    assert "  --rank                Rank of the Nystrom approximation [1000]" in run("plan", "kgha", "--help").stdout


def test_texts_of_options_become_the_arguments_that_python_would_take():
    KGHA_, MOPE = options_of("KGHA"), options_of("MOPE")
    assert [KGHA_["n_components"].parse(text) for text in ("3", "0.5", "1.0")] == [3, 0.5, 1.0]
    assert isinstance(KGHA_["n_components"].parse("1.0"), float)
    assert MOPE["n_neighbors"].parse("all") == "all"
    assert options_of("MESD")["n_neighbors"].parse("none") is None
    assert MOPE["bandwidth"].parse("mean") == "mean"
    assert options_of("MLSI")["dual"].parse("true") is True
    assert KGHA_["ridge"].value(["0.5", "hue=2"], ["hue", "gist"]) == {"hue": 2.0, "gist": 0.5}
    assert KGHA_["ridge"].value(["0.5"], ["hue", "gist"]) == 0.5
    assert engine("KGHA", None, {}) == "auto"
    assert engine("KGHA", None, {"storage": "recomputed", "block": "64"}) == dmo.Exact("recomputed", block=64)
    for found, asked in (
        (engine("KGHA", None, {"rank": "30"}), dmo.Nystrom(rank=30)),
        (engine("KGHA", "meka", {"rank": "30", "clusters": "4"}), dmo.Meka(rank=30, clusters=4)),
        (engine("KGHA", "best", {}), dmo.BestLowRank()),
    ):
        assert (type(found), found.get_params()) == (type(asked), asked.get_params())
    with pytest.raises(
        dmo.UserError, match="--approximation nystrom does not support --clusters; its options are --rank, --landmarks"
    ):
        engine("KGHA", "nystrom", {"clusters": "4"})


SCORERS = ["morp", "mlsi", "lltsvr", "coupledsvr", "labelpropagation", "twopassknn", "fasttag"]


@pytest.fixture(scope="module")
def nameless(tmp_path_factory):
    """Create a feature store with one view of counts and five unnamed labels."""
    rng = np.random.default_rng(3)
    X, folder = rng.poisson(2.0, size=(60, 6)), tmp_path_factory.mktemp("nameless")
    np.save(folder / "x.npy", X.astype(np.float32))
    np.save(folder / "y.npy", (X[:, :5] > 2).astype(np.uint8))
    run("ingest", "files", folder / "f.zarr", "--view", f"x={folder}/x.npy", "--labels", folder / "y.npy")
    return folder, X, (X[:, :5] > 2).astype(np.uint8)


@pytest.mark.slow
@pytest.mark.parametrize("method", SCORERS)
def test_every_model_that_scores_labels_is_evaluated_and_annotates(nameless, tmp_path, method):
    folder, X, Y = nameless
    store, model, kind = folder / "f.zarr", tmp_path / "m.zarr", getattr(dmo, ESTIMATORS[method])
    run("fit", method, store, model)
    scores = kind().fit(X.astype(np.float32), Y).decision_function(X)
    found = record("evaluate", model, store, "--split", "all")
    assert found["auc_macro"] == pytest.approx(auc_scores(Y, scores).macro, abs=1e-3)
    run("annotate", model, store, tmp_path / "s.zarr", "--scores")
    np.testing.assert_allclose(stores.open_results(tmp_path / "s.zarr")[:], scores, atol=1e-4)
    run("annotate", model, store, tmp_path / "a.zarr", "--top", 1, "--csv", tmp_path / "a.csv")
    with open(tmp_path / "a.csv", newline="") as file:
        assert list(csv.reader(file))[1] == ["0", str(scores[0].argmax())]


@pytest.mark.parametrize("method", ["homogeneityanalysis", "mope", "mesd", "embedding", "multisetcca"])
def test_every_model_with_a_space_transforms(nameless, tmp_path, method):
    folder, X, Y = nameless
    store, model, kind = folder / "f.zarr", tmp_path / "m.zarr", getattr(dmo, ESTIMATORS[method])
    run("fit", method, store, model)
    run("transform", model, store, tmp_path / "z.zarr", "--block", 16)
    expected = kind().fit({"x": X.astype(np.float32)}, Y).transform({"x": X.astype(np.float32)})
    np.testing.assert_allclose(stores.open_results(tmp_path / "z.zarr")[:], expected, atol=1e-4)


def test_a_model_of_one_array_is_applied_to_a_store_of_one_view(nameless, tmp_path):
    folder, X, _ = nameless
    fitted = dmo.HomogeneityAnalysis().fit(X)
    fitted.save(str(tmp_path / "m.zarr"))
    run("transform", tmp_path / "m.zarr", folder / "f.zarr", tmp_path / "z.zarr")
    np.testing.assert_allclose(stores.open_results(tmp_path / "z.zarr")[:], fitted.transform(X), atol=1e-6)


def test_the_help_of_fit_says_of_estimators_what_their_docstrings_say():
    said = fit.info.cls(name="fit").commands
    assert {name: found.help for name, found in said.items()} == {
        name: inspect.getdoc(getattr(dmo, kind)).partition("\n")[0] for name, kind in ESTIMATORS.items()
    }


@pytest.mark.parametrize(("names", "command"), [(TUNED, tune_command), (ESTIMATORS, plan_command)])
def test_estimators_are_tuned_and_planned_with_options_of_their_own_names(names, command):
    for name in names:
        found = set(inspect.signature(command(ESTIMATORS[name])).parameters)
        options = set(options_of(ESTIMATORS[name]))
        assert (options if command is tune_command else {"kernel"} & options) <= found


def test_a_model_on_a_graph_is_tuned(nameless, tmp_path):
    folder, _, _ = nameless
    grid = "--n-neighbors", "3,9", "--smoothness", "1", "--metric", "cosine", "--folds", 2, "--scoring", "auc-macro"
    found = record("tune", "labelpropagation", folder / "f.zarr", tmp_path / "m.zarr", *grid)
    assert {row["graph__n_neighbors"] for row in found["table"]} == {3, 9, 15}  # 15 is the default of the estimator
    fitted = dmo.load(str(tmp_path / "m.zarr"))
    assert (fitted._graph.metric, fitted._graph.n_neighbors) == ("cosine", found["best"]["graph__n_neighbors"])


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_of_commands_says_what_their_docstrings_say(name):
    found = COMMANDS[name].load()
    text = found.info.help if hasattr(found, "info") else inspect.getdoc(found).partition("\n\n")[0]
    assert " ".join(text.split()) == COMMANDS[name].help


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "out"
    return folder, record("demo", "--out", folder)


@pytest.mark.slow
def test_demo_annotates_well_and_leaves_stores_and_report(demo):
    folder, found = demo
    scores = found["methods"]
    assert list(scores) == ["votes", "KGHA", "r-MLR", "r-KMLR"]
    assert scores["votes"]["f1"] > max(scores["r-MLR"]["f1"] + 0.02, scores["KGHA"]["f1"] - 0.01)
    kgha, pca, every = found["space"].values()
    assert kgha > max(pca, every) + 0.02
    assert scores["KGHA"]["f1"] > scores["r-MLR"]["f1"] + 0.02
    assert scores["KGHA"]["f1"] > scores["r-KMLR"]["f1"] - 0.005
    assert scores["KGHA"]["digit_right"] > 0.88
    for name in ("digits.zarr", "kgha.zarr", "votes.zarr", "annotations.zarr"):
        assert stores.verify(folder / name) == []
    page = (folder / "report.html").read_text()
    assert f"{100 * scores['KGHA']['f1']:.1f}" in page
    drawn = {path.stem for path in folder.glob("*.png")}
    assert {"co-occurrence", "precision-recall", "difference-1"} <= drawn
    assert "data:image/png" in page  # the page contains digit images
    assert "Jaccard index" in page
    cluster = found["cluster"]
    assert (cluster["workers"], cluster["n_train"], cluster["n_samples"]) == (2, 1200, 1797)
    assert cluster["tiles"] == 4 * 6  # lower tiles of 400 rows, for four views
    assert cluster["difference"] < 1e-4
    assert stores.verify(folder / "cluster" / "embedding.zarr") == []
    evaluated = record("evaluate", folder / "kgha.zarr", folder / "digits.zarr", "--top", 3)
    assert evaluated["f1"] == pytest.approx(scores["KGHA"]["f1"], abs=1e-9)


def test_demo_refuses_a_folder_of_others(tmp_path):
    (tmp_path / "thesis.txt").write_text("do not touch")
    assert "is not a demo" in run("demo", "--out", tmp_path, code=2).stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_corel5k_from_its_files(dmo_data, tmp_path):
    found = record("ingest", "corel5k", dmo_data / "corel5k", tmp_path / "c.zarr", "--views", "dense_hue,harris_hue")
    assert (found["n_samples"], found["n_labels"], found["split"]) == (4999, 260, {"test": 499, "train": 4500})
    run("fit", "ridge", tmp_path / "c.zarr", tmp_path / "m.zarr", "--split", "test", "--ridge", 0.1)
    result = record("evaluate", tmp_path / "m.zarr", tmp_path / "c.zarr", "--split", "test")
    assert result["f1"] > 0.6
    assert run("annotate", tmp_path / "m.zarr", tmp_path / "c.zarr", tmp_path / "a.zarr").stdout.count("sky") >= 1


@pytest.mark.parametrize("name", ["ridge", "kgha", "lltsvr"])
def test_real_targets_are_learned_and_judged_in_their_units(name, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 5))
    T = np.c_[1000 + 100 * X[:, 0] + X[:, 1], 0.01 * X[:, 2]]
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "t.npy", T)
    store, model = tmp_path / "s.zarr", tmp_path / "m.zarr"
    run("ingest", "files", store, "--view", f"x={tmp_path}/x.npy", "--labels", tmp_path / "t.npy", "--test-share", 0.25)
    run("fit", name, store, model, "--split", "train")
    found = json.loads(run("evaluate", model, store, "--json").stdout)
    views, truth, _ = stores.open_features(store).select("test")
    predicted = load(str(model)).predict({"x": views["x"][:]})
    errors = {"rmse": root_mean_squared_error, "mae": mean_absolute_error}
    for key, error in errors.items():
        expected = error(truth, predicted, multioutput="raw_values")
        assert [each[key] for each in found["by_label"]] == pytest.approx(expected.tolist())
    lines = run("evaluate", model, store).stdout.splitlines()
    assert [line.split()[:3] for line in lines[1:3]] == [["RMSE", "of", "0"], ["RMSE", "of", "1"]]
    assert found["r2"] == pytest.approx(r2_score(truth, predicted))
    assert found["r2"] > 0.5
    if name == "ridge":
        page = record("report", model, store, tmp_path / "page.html", "--split", "all")
        assert page["methods"]["MultiViewRidge (m)"]["training_samples"] == "some"
        text = (tmp_path / "page.html").read_text()
        assert "<h1>MultiViewRidge (m) on s.zarr, training samples among them</h1>" in text
        assert f"{page['methods']['MultiViewRidge (m)']['arrmse']:.3f}"[1:4] in text
        assert [Path(path).name for path in page["report"]] == [
            "page.html",
            "predicted-against-true.png",
            "residuals.png",
        ]
    run("annotate", model, store, tmp_path / "rows.zarr", "--csv", tmp_path / "rows.csv")
    np.testing.assert_allclose(stores.open_results(tmp_path / "rows.zarr")[:], predicted)
    with open(tmp_path / "rows.csv", newline="") as file:
        lines = list(csv.reader(file))
    assert lines[0] == ["sample", "0", "1"]
    np.testing.assert_allclose([[float(cell) for cell in line[1:]] for line in lines[1:]], predicted, rtol=1e-5)
    for option in (("--top", 1), ("--proba", "--csv", tmp_path / "p.csv")):
        refused = run("annotate", model, store, tmp_path / "other.zarr", *option, code=2)
        assert "leave" in refused.stderr
    assert "mae" in json.loads(run("evaluate", model, store, "--cv", 3, "--json").stdout)["by_label"][1]


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        (("train",), "fit"),
        (("anotate",), "annotate"),
        (("score",), "evaluate"),
        (("fit", "logistic"), "ridge"),
        (("fit", "ridge-regression"), "ridge"),
        (("fit", "KGH"), "kgha"),
        (("plan", "CCA"), "multisetcca"),
        (("tune", "knn"), "tagprop"),
        (("fit", "TruncatedSVD"), "mlsi"),
    ],
)
def test_names_that_people_guess_end_in_the_right_one(command, meant):
    assert f"did you mean '{meant}'?" in " ".join(run(*command, "a", "b", code=2).stderr.replace("│", " ").split())


def test_predict_is_another_name_of_annotate_and_an_odd_name_lists_what_there_is():
    assert "Write the predicted labels of samples" in run("predict", "--help").stdout
    assert "dmo predict is another name of dmo annotate" in run("--help").stdout
    assert "the commands are ingest, extract" in run("zzzz", code=2).stderr


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("Nystroem", "Nystrom"),
        ("CCA", "MultiSetCCA"),
        ("KRR", "MultiViewRidge"),
        ("kgha", "KGHA"),
        ("load_model", "load"),
        ("gcca", "MultiSetCCA"),
    ],
)
def test_python_names_that_people_guess_end_in_the_right_one(name, meant):
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; did you mean dmo.{meant}") as refused:
        getattr(dmo, name)
    assert hasattr(dmo, meant)
    assert refused.value.name == name
    with pytest.raises(AttributeError, match=r"no attribute 'zzzz'$"):
        dmo.zzzz  # noqa: B018


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"key": KEY}', '{"key": KEY, "surfaces": {"KGHA": 3}}'])
def test_kept_options_of_another_shape_are_made_anew(text, monkeypatch, tmp_path):
    place = tmp_path / "kept.pyc"
    monkeypatch.setattr(estimator_options, "cache_from_source", lambda _: str(place))
    place.with_suffix(".json").write_text(text.replace("KEY", json.dumps(estimator_options._sources())))
    estimator_options.surfaces.cache_clear()
    try:
        assert "ridge" in estimator_options.surfaces()["KGHA"].options
    finally:
        estimator_options.surfaces.cache_clear()


def test_a_store_without_labels_is_told_by_its_name(tmp_path):
    store, model = tmp_path / "s.zarr", tmp_path / "m.zarr"
    Samples({"x": np.random.default_rng(0).normal(size=(30, 3))}, None).write(str(store))
    said = run("fit", "ridge", store, model, code=2).stderr
    assert f"{store} has no labels, which MultiViewRidge needs; add them" in " ".join(said.split())
    run("fit", "embedding", store, model)


@pytest.mark.parametrize("decoder", [(), ("--decoder", "f1-micro")])
def test_a_hierarchy_of_labels_is_a_file_that_fit_reads_and_evaluate_judges_by(work, data, tmp_path, decoder):
    tree, out = tmp_path / "tree.csv", tmp_path / "m.zarr"
    tree.write_text(f"parent,child\n{NAMES[5]},{NAMES[0]}\n{NAMES[4]},{NAMES[5]}\n")
    run("fit", "ridge", work / "f.zarr", out, "--hierarchy", tree, *decoder)
    model = dmo.load(str(out))
    assert sorted(model.ancestors_.tolist()) == [[0, 4], [0, 5], [5, 4]]
    views, Y = held_out(data)
    sets = model.predict(views)
    assert (sets[:, 0] <= sets[:, 5]).all()
    assert (sets[:, 5] <= sets[:, 4]).all()
    truth = Y.copy()
    truth[:, 5] |= Y[:, 0]
    truth[:, 4] |= truth[:, 5]
    found = record("evaluate", out, work / "f.zarr")
    assert found["f1_micro"] == pytest.approx(f1_score(truth, sets, average="micro"))
    assert found["f1_micro"] == pytest.approx(f1_hierarchical(Y, sets, model.ancestors_))
