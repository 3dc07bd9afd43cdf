"""The experiments on projections as a user runs them, small: tables, figures, claims, and one sentence for a bad input."""

import csv
import importlib
import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.svm import LinearSVC

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
    with pytest.raises(ValueError, match="0 categories have samples on both sides"):
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
    assert module.main([str(tmp_path), "--data", str(data), "--quick", *options]) == 0
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


@pytest.mark.parametrize("name", ["morp_images", "morp_preferences", "mlsi_text"])
def test_a_folder_without_data_is_one_sentence(pipeline, tmp_path, capsys, name):
    assert pipeline(name).main([str(tmp_path / "out"), "--data", str(tmp_path / "absent"), "--quick"]) == 2
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert message.startswith(f"{name}.py: ")
    assert "absent" in message
