"""A cross-validated sweep over the samples of a feature store, the best model saved, and a report of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dmo.report import PageFigure, Table, heat_map, write_report
from dmo.selection import SweepResult, sweep
from dmo.workflows.fitting import Training, save, with_auto_kernels


def tune(
    estimator: Any,
    training: Training,
    tried: Mapping[str, Sequence[Any]],
    path: str,
    overwrite: bool = False,
    folds: int = 4,
    metric: str = "f1@5",
    random_state: int | None = 0,
) -> SweepResult:
    """Score every setting of `tried` by cross-validation, refit the best one on all training samples and save it.

    A kernel, or kernels by view, may be "auto"; see `dmo.selection.sweep` for the rest.
    """
    if "kernel" in tried:
        tried = {**tried, "kernel": [with_auto_kernels(spec, training) for spec in tried["kernel"]]}
    result = sweep(estimator, dict(training.views), training.Y, tried, folds, metric, random_state)
    save(result.best_estimator, path, training, overwrite)
    return result


def write_sweep(result: SweepResult, tried: Mapping[str, Sequence[Any]], title: str, path: str) -> list[str]:
    """An HTML file with all settings, and a heat map where two parameters or more were tried."""
    keys = [*tried, "mean", "std"]
    ranked = sorted(result.table, key=lambda row: -row["mean"])
    table = Table("All settings, best first", keys, [[row[key] for key in keys] for row in ranked])
    figures = [_heat_map(result, tried)] if len(tried) > 1 else []
    return [str(written) for written in write_report(path, title, [table], figures)]


def _heat_map(result: SweepResult, tried: Mapping[str, Sequence[Any]]) -> PageFigure:
    """The best score for every pair of values of the two longest axes."""
    rows, columns = sorted(tried, key=lambda key: -len(tried[key]))[:2]
    best = np.array(
        [
            [max(row["mean"] for row in result.table if row[rows] == a and row[columns] == b) for b in tried[columns]]
            for a in tried[rows]
        ]
    )
    figure = heat_map(best, tried[rows], tried[columns], rows, columns, result.metric)
    return PageFigure("sweep", figure, f"{result.metric} over {rows} and {columns}, best over the other parameters")
