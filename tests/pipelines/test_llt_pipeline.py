"""Run small versions of the experiments of the LLT-SVR paper, and check functions, settings and tables."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def pipeline(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "pipelines"))
    return importlib.import_module


def test_the_printed_functions_by_hand(pipeline):
    """Compare the functions f1 and f2 of section 4.2 with values computed by hand.

    f1 = 0.25 [1.5 (1 - a) + e^(2a - 1) sin(3 pi (a - 0.6)^2) + e^(3 (b - 0.5)) sin(4 pi (b - 0.9)^2)]
    """
    found = pipeline("llt_paper").printed_functions(np.array([[0.6, 0.9], [0.1, 0.4], [1.1, 0.9]]))
    sines = np.exp(-0.8) * np.sin(0.75 * np.pi), np.exp(-0.3) * np.sin(np.pi), np.exp(1.2) * np.sin(0.75 * np.pi)
    first = [0.25 * 0.6, 0.25 * (1.35 + sines[0] + sines[1]), 0.25 * (-0.15 + sines[2])]
    second = [np.sin(1.2 * np.pi) + 0.64, np.sin(0.2 * np.pi) + 0.04, np.sin(2.2 * np.pi) + 0.64]
    np.testing.assert_allclose(found, np.column_stack([first, second]), rtol=1e-12)


def test_tables_show_the_paper_and_how_far_ours_is_from_it(pipeline, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(pipeline("llt_paper"), "SAMPLES", 300)
    command = ["--work", str(tmp_path), "--protocol", "paper", "--seeds", "2", "--only", "table1", "table2"]
    assert pipeline("llt_tables").main(command) == 0
    found = json.loads((tmp_path / "llt_paper_table1.json").read_text())
    rows = {(row["manifold"], row["method"], row["error"]): row for row in found["table"]}
    assert rows["Swiss Roll", "LLT-SVR", "l1"]["paper"] == 0.524
    for row in rows.values():
        assert row["ours - paper"] == pytest.approx(row["ours"] - row["paper"])
    for manifold in ("Twin Peaks", "Swiss Roll"):  # an l1 norm is at least as large as the l2 norm
        assert rows[manifold, "LLT-SVR", "l1"]["ours"] > rows[manifold, "LLT-SVR", "l2"]["ours"]
    better = [rows[m, "LLT-SVR", e]["ours"] < rows[m, "Naive SVR", e]["ours"] for m, _, e in rows]
    assert found["claims"][0]["holds"] == all(better)
    assert found["facts"]["seeds"] == "0 to 1"
    assert len(json.loads((tmp_path / "llt_paper_table2.json").read_text())["table"]) == 6
    assert "llt_paper_table2" in capsys.readouterr().out


def test_accuracy_curves_and_folds_on_the_published_sets(pipeline, dmo_data, monkeypatch, tmp_path):
    paper = pipeline("llt_paper")
    labeled = paper.labeled
    monkeypatch.setattr(paper, "labeled", lambda data, name: tuple((X[::20], Y[::20]) for X, Y in labeled(data, name)))
    for name, value in (("SAMPLES", 250), ("KAPPAS", (3, 7)), ("SIZES", (10, 20))):
        monkeypatch.setattr(paper, name, value)
    monkeypatch.setattr(paper, "tuned", lambda X, Y: (0.5, 1.0, 0.5))
    command = ["--work", str(tmp_path), "--protocol", "paper", "--seeds", "2", "--data", str(dmo_data)]
    assert pipeline("llt_tables").main([*command, "--only", "table4", "figure5"]) == 0
    rows = json.loads((tmp_path / "llt_paper_table4.json").read_text())["table"]
    assert [row["paper"] for row in rows] == [0.5082, 0.5605, 0.4421, 0.6537, 0.7344, 0.6065]
    assert all(0.2 < row["ours"] < 1 for row in rows)
    curves = json.loads((tmp_path / "llt_paper_figure5.json").read_text())["table"]
    assert [row["value"] for row in curves] == [3, 3, 7, 3, 3, 7, 10, 10, 20, 20]
