"""A cross-validated sweep over the samples of a feature store, the best model saved, and a report of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

import numpy as np
from sklearn.base import clone, is_regressor
from sklearn.utils import _safe_indexing

import dmo
from dmo.blocks import Subset
from dmo.errors import UserError
from dmo.methods.annotator import Annotator
from dmo.report import Table, write_report
from dmo.report.canvas import is_number, shown
from dmo.select.sweeps import SweepResult, stratified_folds, sweep
from dmo.select.tuning import search
from dmo.workflows.fitting import Training, save, with_auto_kernels
from dmo.workflows.report_figures import learning_figures, sweep_figures, varied


def tune(
    estimator: Any,
    training: Training,
    tried: Mapping[str, Sequence[Any]] | None,
    path: str,
    overwrite: bool = False,
    folds: int = 4,
    metric: str | None = None,
) -> SweepResult:
    """Score settings by cross-validation, refit the best one on all training samples and save it."""
    if tried is not None and "kernel" in tried:
        tried = {**tried, "kernel": [with_auto_kernels(spec, training) for spec in tried["kernel"]]}
    training = training.known()  # by which settings are compared
    Y: Any = _learned(estimator, training)  # where there are none, the search says so
    result = search(estimator, dict(training.views), Y, tried, metric, folds, getattr(estimator, "random_state", 0))
    save(result.best_estimator, path, training, overwrite)
    return result


def _learned(estimator: Any, training: Training) -> Any:
    """Labels as the estimator takes them."""
    by_columns = is_regressor(estimator) and not isinstance(estimator, Annotator)
    return training.Y if by_columns else training.learned_by(estimator)


def learning_curve(result: SweepResult, training: Training, folds: int = 4) -> list[tuple[int, float, float]]:
    """Score the best setting of a sweep on eighths, quarters, halves and all of the samples."""
    training = training.known()
    assert training.Y is not None
    n, grid = len(training.Y), {key: [value] for key, value in result.best_params.items()}
    model, learned = result.best_estimator, _learned(result.best_estimator, training)
    random_state = getattr(model, "random_state", 0)
    parts, curve = stratified_folds(np.nan_to_num(training.Y), 8, random_state), []
    for eighths in (1, 2, 4, 8):
        rows = np.flatnonzero(parts < eighths)
        if n > _CURVE:
            rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), _CURVE * eighths // 8)).astype(int)]
        if len(rows) < 5 * folds or not grid:
            continue
        views = {name: Subset(view, rows) for name, view in training.views.items()}
        try:
            some = _safe_indexing(learned, rows)
            found = sweep(clone(model), views, some, grid, folds, result.metric, random_state, refit=False)
        except UserError:  # no label occurs in a fold, say
            continue
        row = found.table[0]
        curve.append((len(rows) * (folds - 1) // folds, float(row["mean"]), float(row["std"])))
    return curve


_CURVE = 5000
"""Samples of a learning curve at most."""


def write_sweep(
    result: SweepResult, title: str, path: str, curve: Sequence[tuple[int, float, float]] = ()
) -> list[str]:
    """Write an HTML file with a heat map of two parameters, or the curve of one, the learning curve, and all settings."""
    keys = [*varied(result.table), "mean", "std"]
    ranked = sorted(result.table, key=lambda row: -row["mean"])
    rows = [[_cell(row.get(key)) for key in keys] for row in ranked]
    table = Table("All settings, best first", keys, rows, interactive=True)
    facts = {"metric": result.metric, "settings": result.tried, "best": f"{result.best_score:.4f}"}
    facts |= {"best setting": ", ".join(f"{key} {shown(value)}" for key, value in result.best_params.items())}
    facts |= {"dmo": dmo.__version__, "date": date.today().isoformat()}
    figures = [*sweep_figures(result.table, result.metric), *learning_figures(curve, result.metric)]
    return [str(written) for written in write_report(path, title, [*figures, table], facts)]


def _cell(value: Any) -> Any:
    """Numbers as they are, else text."""
    return value if value is None or is_number(value) else str(value)
