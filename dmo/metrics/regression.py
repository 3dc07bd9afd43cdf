"""How good predictions of real-valued targets are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dmo.blocks import Rows, row_blocks, rows
from dmo.errors import UserError
from dmo.metrics.checked_blocks import added, counts_of, dense, numbers, shapes

_BLOCK = 8192


@dataclass(frozen=True, eq=False)
class RegressionScores:
    """How good predictions of real-valued targets are: means over the targets.

    Attributes
    ----------
    rmse, mae, r2 : float
        Root mean squared error, mean absolute error, coefficient of determination.
    arrmse : float
        Average relative root mean squared error: of every target sqrt(squared error / squared error of the mean), averaged.
    per_target : ndarray of shape (4, L)
        RMSE, MAE, R2 and relative RMSE of every target.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.metrics import regression_scores
    >>> regression_scores(np.array([[1.0], [3.0]]), np.array([[1.0], [2.0]])).mae
    0.5
    """

    rmse: float
    mae: float
    r2: float
    arrmse: float
    per_target: np.ndarray


def regression_scores(
    Y: Rows, P: Rows, baseline: np.ndarray | None = None, sample_weight: ArrayLike | None = None
) -> RegressionScores:
    """RMSE, MAE, R2 and aRRMSE of predictions, each averaged over the targets.

    RMSE, MAE and R2 are scikit-learn's `root_mean_squared_error`, `mean_absolute_error` and `r2_score`. A target that is
    constant in Y has R2 and relative RMSE of a perfect prediction where it is met exactly, else R2 0 and relative RMSE 1.

    Parameters
    ----------
    Y : row source of shape (n, L)
        Targets; NaN is one that is not known, which counts for nothing.
    P : row source of shape (n, L)
        Predictions.
    baseline : ndarray of shape (L,), default=None
        Training means, which aRRMSE compares with; None: the means of Y.
    sample_weight : array-like of shape (n,) or None, default=None
        How often every sample counts; None: once.

    Returns
    -------
    RegressionScores
        The means, and the figures per target.

    Raises
    ------
    UserError
        For shapes that differ, and for predictions that are NaN.

    References
    ----------
    Spyromitros-Xioufis et al. 2016, "Multi-target regression via input space expansion", section 5.2 (aRRMSE).

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.metrics import regression_scores
    >>> found = regression_scores(np.array([[1.0], [2.0], [3.0]]), np.array([[1.0], [2.0], [2.0]]))
    >>> round(found.r2, 2), round(found.arrmse, 2)
    (0.5, 0.71)
    """
    n, L = shapes(Y, P, "predictions")
    weights = counts_of(sample_weight, n)
    known, total = np.zeros(L), np.zeros(L)
    for where, y, _ in _blocks(Y, P):
        known, total = known + added(~np.isnan(y), weights, where), total + added(np.nan_to_num(y), weights, where)
    if not known.all():
        raise UserError(f"no sample has a value of target {int(np.argmin(known))}; leave the target out")
    mean = total / known
    center = mean if baseline is None else np.asarray(baseline, float)
    squared, absolute, around, variance = np.zeros((4, L))
    for where, y, p in _blocks(Y, P):
        error, far, spread = (np.where(np.isnan(y), 0.0, y - other) for other in (p, center, mean))
        squared, absolute = squared + added(error**2, weights, where), absolute + added(np.abs(error), weights, where)
        around, variance = around + added(far**2, weights, where), variance + added(spread**2, weights, where)
    perfect = (squared == 0).astype(float)
    r2 = np.where(variance > 0, 1 - squared / np.where(variance > 0, variance, 1.0), perfect)
    relative = np.where(around > 0, np.sqrt(squared / np.where(around > 0, around, 1.0)), 1 - perfect)
    per_target = np.stack([np.sqrt(squared / known), absolute / known, r2, relative])
    rmse, mae, mean_r2, arrmse = (float(figure.mean()) for figure in per_target)
    return RegressionScores(rmse, mae, mean_r2, arrmse, per_target)


def _blocks(Y: Rows, P: Rows) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    for where in row_blocks(Y.shape[0], _BLOCK):
        y = np.asarray(dense(rows(Y, where), "targets"), np.float64)
        yield where, y, numbers(rows(P, where), "predictions", where)
