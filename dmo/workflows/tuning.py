"""A cross-validated sweep over the samples of a feature store, the best model saved, and a report of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.base import is_regressor

from dmo.report import PageFigure, Table, heat_map, write_report
from dmo.selection import SweepResult
from dmo.tuning import search
from dmo.workflows.fitting import Training, save, with_auto_kernels


def tune(
    estimator: Any,
    training: Training,
    tried: Mapping[str, Sequence[Any]] | None,
    path: str,
    overwrite: bool = False,
    folds: int = 4,
    metric: str | None = None,
    random_state: int | None = 0,
) -> SweepResult:
    """Score settings by cross-validation, refit the best one on all training samples and save it.

    Parameters
    ----------
    estimator : estimator
        What the settings leave as it is.
    training : Training
        The samples.
    tried : mapping of str to sequence, or None
        Values by parameter; kernels may be "auto". None: see `dmo.tuning.search`.
    path : str
        Where the model is saved.
    overwrite : bool, default=False
        Replace a model there.
    folds : int, default=4
        Of the cross-validation.
    metric : str, optional
        See `dmo.selection.metric_of`; by default what suits the labels.
    random_state : int, optional
        Of the folds.

    Returns
    -------
    SweepResult
        All settings, and the best.

    Examples
    --------
    >>> import numpy as np
    >>> import dmo
    >>> from dmo.datasets.writing import Source, write
    >>> X, Y = np.random.default_rng(0).normal(size=(30, 3)), np.eye(2)[np.arange(30) % 2]
    >>> store = write(Source({"x": X}, Y), "set.zarr")
    >>> from dmo.workflows.fitting import open_training
    >>> from dmo.workflows.tuning import tune
    >>> ridges = {"ridge": [0.1, 1.0]}
    >>> found = tune(dmo.MultiViewRidge("linear"), open_training("set.zarr"), ridges, "model.zarr", folds=2, metric="f1@1")
    >>> len(found.table), dmo.load("model.zarr").ridge == found.best_params["ridge"]
    (3, True)
    """
    if tried is not None and "kernel" in tried:
        tried = {**tried, "kernel": [with_auto_kernels(spec, training) for spec in tried["kernel"]]}
    Y = training.Y if is_regressor(estimator) else training.learned_by(estimator)
    result = search(estimator, dict(training.views), Y, tried, metric, folds, random_state)
    save(result.best_estimator, path, training, overwrite)
    return result


def write_sweep(result: SweepResult, tried: Mapping[str, Sequence[Any]] | None, title: str, path: str) -> list[str]:
    """Write an HTML file with all settings, and a heat map where two parameters or more were tried.

    Parameters
    ----------
    result : SweepResult
        Of the sweep.
    tried : mapping of str to sequence
        Values by parameter.
    title : str
        Of the page.
    path : str
        The file.

    Returns
    -------
    list of str
        Files written.

    Examples
    --------
    >>> import numpy as np
    >>> import dmo
    >>> from dmo.selection import sweep
    >>> from dmo.workflows.tuning import write_sweep
    >>> X, Y = np.random.default_rng(0).normal(size=(30, 3)), np.eye(2)[np.arange(30) % 2]
    >>> ridges = {"ridge": [0.1, 1.0]}
    >>> result = sweep(dmo.MultiViewRidge("linear"), X, Y, ridges, 2, "f1@1", 0)
    >>> write_sweep(result, ridges, "ridges", "sweep.html")
    ['sweep.html']
    """
    names = (
        list(tried)
        if tried is not None
        else [key.removeprefix("param_") for key in result.cv_results_ if "param_" in key]
    )
    keys = [*names, "mean", "std"]
    ranked = sorted(result.table, key=lambda row: -row["mean"])
    table = Table("All settings, best first", keys, [[row.get(key, "-") for key in keys] for row in ranked])
    figures = [_heat_map(result, tried)] if tried is not None and len(tried) > 1 else []
    return [str(written) for written in write_report(path, title, [table], figures)]


def _heat_map(result: SweepResult, tried: Mapping[str, Sequence[Any]]) -> PageFigure:
    """The best score for every pair of values of the two longest axes."""
    rows, columns = sorted(tried, key=lambda key: -len(tried[key]))[:2]
    best = np.array(
        [
            [
                max(row["mean"] for row in result.table if row.get(rows) == a and row.get(columns) == b)
                for b in tried[columns]
            ]
            for a in tried[rows]
        ]
    )
    figure = heat_map(best, tried[rows], tried[columns], rows, columns, result.metric)
    return PageFigure("sweep", figure, f"{result.metric} over {rows} and {columns}, best over the other parameters")
