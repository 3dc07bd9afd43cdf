"""Run small versions of the projection experiments, and check tables, figures, claims and error messages."""

import csv
import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from sklearn.svm import SVC, LinearSVC

from dmo.metrics import auc_macro


@pytest.fixture
def pipeline(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "pipelines"))
    return importlib.import_module


def test_a_trial_keeps_categories_and_samples_apart(pipeline):
    protocol = pipeline("projection_protocol")
    Y = (np.random.default_rng(0).random((60, 10)) < 0.4).astype(np.uint8)
    Y[:, 9] = 0
    split = protocol.Split.of(Y, 3)
    assert sorted([*split.train, *split.test]) == list(range(60))
    assert sorted([*split.known, *split.new]) == list(range(9)), "a category without samples is left out"
    assert (len(split.known), len(split.new)) == (6, 3)
    with pytest.raises(ValueError, match="0 categories have at least 2 samples in both halves"):
        protocol.Split.of(Y[:, 9:], 0)


def test_the_judge_is_a_linear_svm_per_category(pipeline):
    protocol = pipeline("projection_protocol")
    rng = np.random.default_rng(1)
    Z, Y = rng.standard_normal((80, 3)), (rng.random((80, 2)) < 0.5).astype(np.uint8)
    Y[:, 0] = Z[:, 0] > 0
    found = protocol.classify(Z[:40], Y[:40], Z[40:], Y[40:])
    scale = np.sqrt((Z[:40] ** 2).sum(axis=1).mean())
    machines = [LinearSVC(dual=False, class_weight="balanced", tol=1e-3).fit(Z[:40] / scale, y) for y in Y[:40].T]
    scores = np.column_stack([machine.decision_function(Z[40:] / scale) for machine in machines])
    assert found["auc_macro"] == pytest.approx(auc_macro(Y[40:], scores), abs=1e-6)


def test_claims_say_where_they_fail(pipeline):
    protocol = pipeline("projection_protocol")
    lines = [
        {"method": m, "setting": "I", "dimension": d, "auc_macro": a}
        for m, d, a in [("A", 5, 0.8), ("A", 10, 0.7), ("B", 5, 0.7), ("B", 10, 0.75), ("B", 20, 0.9)]
    ]
    table = protocol.summarize(lines + lines, ("method", "setting", "dimension"), ["auc_macro"])
    assert table[0] == {
        "method": "A", "setting": "I", "dimension": 5, "trials": 2, "auc_macro": 0.8, "auc_macro_std": 0.0
    }  # fmt: skip
    (claim,) = protocol.compare(table, "A", "B", ["auc_macro"], settings=["I"])
    assert not claim["holds"]
    assert claim["compared"] == [5, 10]
    assert claim["not_above_at"] == [10]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "images"),
    [
        ("morp_images", ["--seeds", "1"], ["morp_images.png"]),
        ("morp_preferences", [], ["morp_preferences.png", "morp_preferences_roc.png"]),
        ("mlsi_text", ["--sets", "rcv1"], ["mlsi_rcv1.png", "mlsi_rcv1_mixing.png", "mlsi_rcv1_ridge.png"]),
    ],
)
def test_a_quick_run_writes_table_claims_and_images(pipeline, dmo_data, tmp_path, capsys, name, options, images):
    needed = {"mlsi_text": dmo_data / "rcv1"}.get(name, dmo_data / "corel5k" / "features")
    if not needed.exists():
        pytest.skip(f"no {needed}")
    data = dmo_data if name == "mlsi_text" else dmo_data / "corel5k"
    module = pipeline(name)
    assert module.main(["--work", str(tmp_path), "--data", str(data), "--quick", *options]) == 0
    with open(tmp_path / f"{name}.csv", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    written = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
    assert len(lines) == len(written["table"])
    assert all(0 <= float(line["auc_macro"]) <= 1 for line in lines)
    assert {"original"} < {line["method"] for line in lines}
    printed = capsys.readouterr().out
    for claim in written["claims"]:
        assert claim["holds"] == (not claim["not_above_at"])
    assert printed.count("holds: ") + printed.count("DOES NOT HOLD: ") == len(written["claims"])
    for image in images:
        assert (tmp_path / image).stat().st_size > 5000


def test_the_papers_trials_deal_samples_as_they_say(pipeline):
    """MORP trains on 30 of 50 rows and tests on 20 rows, and MLSI trains on each fifth of the rows once."""
    paper = pipeline("projection_paper")
    Y = np.zeros((50, 10), np.uint8)
    trial = paper.images(Y, 0, 30, 7)
    ((learn, rest),) = trial.pairs["I"]
    assert sorted([*learn, *rest]) == list(range(50))
    assert (len(learn), sorted(learn)) == (30, trial.learn.tolist())
    assert sorted([*trial.known, *trial.new]) == list(range(10))
    assert len(trial.known) == 7
    assert [(len(a), len(b)) for a, b in trial.pairs["II"]] == [(4, 16)] * 5
    assert all(sorted([*a, *b]) == sorted(rest) for a, b in trial.pairs["II"])
    trials = list(paper.documents(Y, 0))
    assert sorted(np.concatenate([trial.learn for trial in trials])) == list(range(50))
    for trial in trials:
        ((learn, rest),), ((unseen, judged),) = trial.pairs["I"], trial.pairs["II"]
        assert learn is trial.learn
        assert sorted([*learn, *rest]) == list(range(50))
        assert sorted([*learn, *unseen, *judged]) == list(range(50))


def test_the_papers_machines_are_libsvm_per_category(pipeline):
    """Compare the AUC with sklearn.svm.SVC on rows of mean squared norm 1. A constant category is ignored."""
    paper = pipeline("projection_paper")
    rng = np.random.default_rng(1)
    Z = rng.standard_normal((60, 3))
    Y = np.column_stack([Z[:, 0] > 0, np.ones(60), rng.random(60) < 0.5]).astype(np.uint8)
    learn, judged = np.arange(40), np.arange(40, 60)
    unit = Z / np.sqrt((Z[:40] ** 2).sum(axis=1).mean())
    scores = [SVC(kernel="linear", C=10.0).fit(unit[:40], y[:40]).decision_function(unit[40:]) for y in Y.T[[0, 2]]]
    for rows in (Z, scipy.sparse.csr_array(Z)):
        found = paper.machines(rows, Y, (learn, judged), 10.0)
        assert found["auc_macro"] == pytest.approx(auc_macro(Y[40:][:, [0, 2]], np.column_stack(scores)), abs=1e-6)


def test_withdrawn_ratings_are_judged_and_no_others(pipeline):
    """A user rated six of eight items, and three of the ratings are hidden. The top two contain one hidden like."""
    preferences = pipeline("morp_preferences")
    likes = np.array([1, 0, 1, 1, 0, 0, 1, 1], np.uint8)
    seen = np.array([1, 1, 0, 0, 0, 0, 1, 0], bool)
    rated = np.array([1, 1, 1, 0, 1, 1, 1, 0], bool)
    given = np.array([0, 0, 5, 4, 1, 2, 0, 3], float)

    def machine(Z, y, Z_new):
        assert y.tolist() == [1, -1, 1]
        return given

    found = preferences.judge_user(np.eye(8), likes, seen, rated, 2, machine)
    assert found == {"top_n": 0.5, "auc_macro": 1.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "table", "methods"),
    [
        ("morp_images", [], "morp_paper", {"MORP", "kernel PCA", "kernel CCA", "original"}),
        ("morp_preferences", [], "morp_preferences_paper", {"MORP", "kernel PCA", "kernel CCA", "original"}),
        ("mlsi_text", ["--sets", "rcv1"], "mlsi_paper", {"MLSI", "LSI", "original"}),
    ],
)
def test_the_papers_protocols_write_tables(pipeline, dmo_data, tmp_path, name, options, table, methods):
    needed = dmo_data / "rcv1" if name == "mlsi_text" else dmo_data / "corel5k" / "features"
    if not needed.exists():
        pytest.skip(f"no {needed}")
    data = dmo_data if name == "mlsi_text" else dmo_data / "corel5k"
    command = ["--work", str(tmp_path), "--data", str(data), "--quick", "--protocol", "paper", "--seeds", "1", *options]
    assert pipeline(name).main(command) == 0
    written = json.loads((tmp_path / f"{table}.json").read_text(encoding="utf-8"))
    assert {row["method"] for row in written["table"]} == methods
    assert all(0 <= row["auc_macro"] <= 1 for row in written["table"])
    assert all(claim["holds"] == (not claim["not_above_at"]) for claim in written["claims"])


@pytest.mark.parametrize("name", ["morp_images", "morp_preferences", "mlsi_text"])
def test_a_folder_without_data_is_one_sentence(pipeline, tmp_path, capsys, name):
    assert pipeline(name).main(["--work", str(tmp_path / "out"), "--data", str(tmp_path / "absent"), "--quick"]) == 2
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert message.startswith(f"{name}.py: ")
    assert "absent" in message
