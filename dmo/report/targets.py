"""What predictions of real targets look like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dmo.errors import UserError
from dmo.metrics import regression_scores
from dmo.report.canvas import BLUE, GRAY, HALO, panel_grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DOTS = 2000


def predicted_against_true(Y: np.ndarray, P: np.ndarray, names: Sequence[str], most: int = 15) -> Figure:
    """Predictions against true values, one small panel a target, best R2 first; the dashed line is a perfect prediction.

    Parameters
    ----------
    Y : ndarray of shape (n, L)
        Targets; NaN is one that is not known.
    P : ndarray of shape (n, L)
        Predictions.
    names : sequence of str
        L names.
    most : int, default=15
        The targets that are predicted best are shown, up to 2000 samples of each.

    Returns
    -------
    matplotlib.figure.Figure
        The figure, 5 inches wide.

    Raises
    ------
    UserError
        Where names do not fit, and as `dmo.metrics.regression_scores`.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.report import predicted_against_true
    >>> figure = predicted_against_true(np.array([[1.0], [2.0]]), np.array([[1.1], [1.8]]), ["depth"])
    >>> figure.axes[0].get_title(loc="left")
    'depth'
    """
    figure, panels = _panels("predicted_against_true", Y, P, names, most, ("true", "predicted"))
    for ax, y, p, r2 in panels:
        ends = float(min(np.nanmin(y), p.min())), float(max(np.nanmax(y), p.max()))
        ax.plot(ends, ends, color=GRAY, linewidth=1, linestyle=(0, (3, 2)))
        ax.scatter(y, p, s=6, color=BLUE, alpha=0.4, linewidths=0)
        ax.text(0.05, 0.85, f"R2 {r2:.2f}", transform=ax.transAxes, size=10, bbox=HALO)
    return figure


def residuals(Y: np.ndarray, P: np.ndarray, names: Sequence[str], most: int = 15) -> Figure:
    """True less predicted values against predictions, one small panel a target, best R2 first.

    Parameters
    ----------
    Y : ndarray of shape (n, L)
        Targets; NaN is one that is not known.
    P : ndarray of shape (n, L)
        Predictions.
    names : sequence of str
        L names.
    most : int, default=15
        The targets that are predicted best are shown, up to 2000 samples of each.

    Returns
    -------
    matplotlib.figure.Figure
        The figure, 5 inches wide.

    Raises
    ------
    UserError
        Where names do not fit, and as `dmo.metrics.regression_scores`.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.report import residuals
    >>> figure = residuals(np.array([[1.0], [2.0]]), np.array([[1.1], [1.8]]), ["depth"])
    >>> figure.axes[0].collections[0].get_offsets()[:, 1].round(1).tolist()
    [-0.1, 0.2]
    """
    figure, panels = _panels("residuals", Y, P, names, most, ("predicted", "true less predicted"))
    for ax, y, p, _ in panels:
        ax.axhline(0, color=GRAY, linewidth=1, linestyle=(0, (3, 2)))
        ax.scatter(p, y - p, s=6, color=BLUE, alpha=0.4, linewidths=0)
    return figure


def _panels(
    function: str, Y: np.ndarray, P: np.ndarray, names: Sequence[str], most: int, axes: tuple[str, str]
) -> tuple[Figure, list[tuple[Axes, np.ndarray, np.ndarray, float]]]:
    """A figure, and of every target drawn its axes, true and predicted values of some samples, and its R2."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    if len(names) != Y.shape[1]:
        raise UserError(f"{function}: {len(names)} names for {Y.shape[1]} targets; pass one each")
    r2 = regression_scores(Y, P).per_target[2]
    shown = np.argsort(-r2, kind="stable")[:most].tolist()
    figure, panels = panel_grid([names[j] for j in shown], *axes, share=False)
    some = np.linspace(0, len(Y) - 1, min(len(Y), _DOTS)).astype(int)
    for ax in panels:
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(2))
            axis.set_major_formatter(EngFormatter(sep=""))  # 200k: six digits would run into each other
    return figure, [(ax, Y[some, j], P[some, j], float(r2[j])) for ax, j in zip(panels, shown)]
