"""Check the HTML representations of objects in notebooks."""

import xml.etree.ElementTree as ET

import numpy as np
import pandas as pd
import pytest

from dmo import Views
from dmo.methods.base import SweepResult


def parsed(html):
    """Parse HTML that is also well-formed XML, and return its rows of cells and its text."""
    root = ET.fromstring(f"<div>{html}</div>")
    rows = [["".join(cell.itertext()) for cell in row] for row in root.iter("tr")]
    return root, rows


def test_views_are_represented_by_a_table():
    frame = pd.DataFrame({"a": [1, 2], "b": [0.5, 1.0]})
    root, rows = parsed(Views({"<b>": np.zeros((2, 3), np.float32), "mixed": frame})._repr_html_())
    assert rows == [
        ["view", "columns", "data type", "container"],
        ["<b>", "3", "float32", "ndarray"],
        ["mixed", "2", "int64, float64", "DataFrame"],
    ]
    assert "Views of 2 samples" in "".join(root.itertext())


@pytest.mark.parametrize(("metric", "sign"), [("ranking", 1), ("arrmse", -1)])
def test_results_are_represented_by_parameters_chart_and_table(metric, sign):
    means = [0.5, 0.75, 0.25] if sign > 0 else [-0.5, -0.25, -0.75]
    scores = [{"mean": mean, "std": 0.1, "folds": [mean]} for mean in means]
    candidates = [{"ridge": ridge, "center": True, **row} for ridge, row in zip((0.1, 1.0, 10.0), scores)]
    best = {"ridge": 1.0, "center": True}
    root, rows = parsed(SweepResult(candidates, metric, best, max(means), None, 20)._repr_html_())
    assert rows[:3] == [["best parameter", "value"], ["ridge", "1"], ["center", "True"]]
    assert rows[3] == ["ridge", metric, "standard deviation"]
    assert [row[0] for row in rows[4:]] == ["1", "0.1", "10"]
    assert [float(row[1]) for row in rows[4:]] == [sign * mean for mean in sorted(means, reverse=True)]
    assert f"{metric} {sign * max(means)}, best of 20 candidates" in "".join(root.itertext())
    (chart,) = root.iter("svg")
    assert chart.get("aria-label").startswith(f"{metric} of 3 candidates")
    assert len(list(chart.iter("circle"))) == 3


def test_results_without_scores_are_represented_by_parameters():
    root, _ = parsed(SweepResult([], "f1@5", {}, -np.inf, None)._repr_html_())
    assert list(root.iter("svg")) == []
