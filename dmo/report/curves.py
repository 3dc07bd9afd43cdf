"""Images of scores over all labels: calibration, thresholds, how many labels samples get, and models side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dmo.errors import UserError
from dmo.metrics import regression_scores, top_scores
from dmo.report.canvas import (
    BLUE,
    COLORS,
    GRAY,
    HALO,
    PALE,
    VERMILION,
    clean,
    new_figure,
    panel_grid,
    plain,
    shorten,
    styles,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STEPS = 300
_BINS = 10


def reliability(Y: np.ndarray, P: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """How often labels of some probability are there, all labels pooled in ten bins of equal width.

    Y, P (n, L) -> expected, observed (b,)
    """
    # Naeini, Cooper and Hauskrecht 2015, "Obtaining well calibrated probabilities using Bayesian binning", section 2.
    known = ~np.isnan(np.asarray(Y, np.float64))
    y, p = np.asarray(Y, np.float64)[known], np.asarray(P, np.float64)[known]
    bins = np.minimum((p * _BINS).astype(int), _BINS - 1)
    count = np.bincount(bins, minlength=_BINS)
    filled = count > 0
    expected, observed = (np.bincount(bins, v, _BINS)[filled] / count[filled] for v in (p, y))
    return expected, observed, float((np.abs(expected - observed) * count[filled]).sum() / max(count.sum(), 1))


def calibration_curves(Y: np.ndarray, P: Mapping[str, np.ndarray]) -> Figure:
    """Share of labels that are there against their probability, all labels pooled; the dashed line is perfect.

    Parameters
    ----------
    Y : ndarray of shape (n, L)
        Labels, 0/1; NaN is one that is not known.
    P : mapping of str to ndarray of shape (n, L)
        Probabilities, by the name of the model.

    Returns
    -------
    matplotlib.figure.Figure
        The figure, 5 inches wide.

    Raises
    ------
    UserError
        For what is no probability.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.report import calibration_curves
    >>> figure = calibration_curves(np.eye(2), {"ridge": np.array([[0.9, 0.2], [0.1, 0.8]])})
    >>> figure.axes[0].get_xlabel()
    'probability'
    """
    for name, p in P.items():
        if not ((p >= 0) & (p <= 1)).all():
            raise UserError(f"calibration_curves: {name} gives values outside 0..1; pass what predict_proba returns")
    figure = new_figure(3.4, layout="constrained")
    ax = clean(figure.add_subplot())
    ax.plot([0, 1], [0, 1], color=GRAY, linewidth=1, linestyle=(0, (3, 2)))
    for name, color, dashes in styles(list(P)):
        expected, observed, error = reliability(Y, P[name])
        words = f"{shorten(figure, name, 3.4, 10)}, error {error:.3f}"
        ax.plot(expected, observed, marker="o", markersize=4, color=color, linestyle=dashes, label=words)
    ax.set(xlabel="probability", ylabel="share of labels that are there", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    figure.legend(frameon=False, fontsize=10, loc="outside upper left")
    return figure


def threshold_curves(Y: np.ndarray, S: Mapping[str, np.ndarray], top: int, score: str = "score") -> Figure:
    """Precision, recall and F1 of the labels above a threshold, and of a number of labels a sample; of several models F1.

    On the left all pairs of a sample and a label are pooled, on the right samples are averaged.

    Parameters
    ----------
    Y : ndarray of shape (n, L)
        Labels, 0/1; NaN is one that is not known.
    S : mapping of str to ndarray of shape (n, L)
        Scores, by the name of the model.
    top : int
        Labels that a sample is given, marked.
    score : str, default="score"
        What the scores are.

    Returns
    -------
    matplotlib.figure.Figure
        The figure, 5 inches wide.

    Raises
    ------
    UserError
        Where no label occurs in Y.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.report import threshold_curves
    >>> figure = threshold_curves(np.eye(3), {"ridge": np.eye(3)}, top=1)
    >>> [ax.get_xlabel() for ax in figure.axes]
    ['threshold of the score', 'labels a sample']
    """
    several = len(S) > 1
    figure = new_figure(2.5 + (0.2 * len(S) if several else 0.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for name, color, dashes in styles(list(S)):
        measures = {"F1": (color, dashes)} if several else _MEASURES
        thresholds, pooled = pooled_measures(Y, S[name])
        counts = np.arange(1, min(Y.shape[1], max(2 * top, 8)) + 1)
        found = [top_scores(Y, S[name], int(k)) for k in counts]
        of_samples = {"precision": [f.precision for f in found], "recall": [f.recall for f in found]}
        of_samples |= {"F1": [f.f1 for f in found]}
        for measure, (tint, line) in measures.items():
            words = shorten(figure, name, 3.8, 10) if several else measure
            left.plot(thresholds, pooled[measure], color=tint, linestyle=line, linewidth=1.6, label=words)
            right.plot(counts, of_samples[measure], color=tint, linestyle=line, linewidth=1.6, marker="o", markersize=3)
    clean(left).set(xlabel=plain(f"threshold of the {score}"), ylabel="F1" if several else "", ylim=(0, 1.03))
    clean(right).set(xlabel="labels a sample", xlim=(0.7, None))
    right.axvline(top, color=GRAY, linewidth=1, linestyle=(0, (3, 2)))
    right.xaxis.get_major_locator().set_params(integer=True)
    figure.legend(loc="outside upper left", ncols=1 if several else 3, frameon=False, fontsize=10)
    return figure


_MEASURES = {"precision": (BLUE, "-"), "recall": (VERMILION, (0, (5, 2))), "F1": ("#000000", (0, (1, 1)))}


def pooled_measures(Y: np.ndarray, S: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Precision, recall and F1 of the labels with a score of a threshold or more, at up to 300 thresholds.

    Y, S (n, L) -> thresholds, measures (t,)
    """
    from sklearn.metrics import precision_recall_curve

    known = ~np.isnan(np.asarray(Y, np.float64))
    y, s = np.asarray(Y)[known], np.asarray(S)[known]
    if not (y == 1).any():
        raise UserError("no label occurs in Y; pass samples with labels")
    precision, recall, thresholds = precision_recall_curve(y, s)
    some = np.unique(np.linspace(0, len(thresholds) - 1, min(len(thresholds), _STEPS)).astype(int))
    p, r = precision[some], recall[some]
    return thresholds[some], {"precision": p, "recall": r, "F1": 2 * p * r / np.maximum(p + r, 1e-300)}


def label_counts(counts: Mapping[str, np.ndarray]) -> Figure:
    """How many samples have so many labels, side by side for the true labels and those of models.

    Parameters
    ----------
    counts : mapping of str to ndarray of int of shape (n,)
        Labels of every sample, by what gave them. More than 15 are drawn as 15.

    Returns
    -------
    matplotlib.figure.Figure
        The figure, 5 inches wide.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.report import label_counts
    >>> figure = label_counts({"true": np.array([0, 2, 2]), "ridge": np.array([1, 1, 2])})
    >>> figure.axes[0].get_ylabel()
    'samples'
    """
    most = min(15, max(int(values.max()) for values in counts.values()))
    figure = new_figure(2.2 + 0.2 * len(counts), layout="constrained")
    ax = clean(figure.add_subplot())
    wide = 0.8 / len(counts)
    tints = (GRAY, *COLORS)
    for place, (name, values) in enumerate(counts.items()):
        heights = np.bincount(np.minimum(values.astype(int), most), minlength=most + 1)
        x = np.arange(most + 1) + (place - (len(counts) - 1) / 2) * wide
        words = f"{shorten(figure, name, 3.4, 10)}, mean {values.mean():.1f}"
        ax.bar(x, heights, wide, color=tints[place % len(tints)], label=words)
    ax.set(xlabel="labels a sample", ylabel="samples", xticks=range(most + 1))
    figure.legend(loc="outside upper left", ncols=1, frameon=False, fontsize=10)
    return figure


def label_differences(differences: np.ndarray, names: Sequence[str], measure: str, most: int = 10) -> Figure:
    """Labels that gain most and lose most by the second of two models, as bars.

    Parameters
    ----------
    differences : ndarray of shape (L,)
        Of the second model's measure less the first one's; NaN where a label does not occur.
    names : sequence of str
        L names.
    measure : str
        What it is, with its unit.
    most : int, default=10
        Bars on each side.

    Returns
    -------
    matplotlib.figure.Figure
        The figure, 5 inches wide.

    Raises
    ------
    UserError
        Where names do not fit, or all are NaN.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.report import label_differences
    >>> figure = label_differences(np.array([4.0, -2.0, np.nan]), ["sea", "sky", "fir"], "F1 %")
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['sea', 'sky']
    """
    if len(names) != len(differences) or np.isnan(differences).all():
        raise UserError(
            f"label_differences: {len(names)} names for {len(differences)} differences, or none is a number"
        )
    order = np.argsort(-differences, kind="stable")[: np.isfinite(differences).sum()]
    if len(order) > 2 * most:
        order = np.r_[order[:most], order[-most:]]
    values = differences[order]
    figure = new_figure(0.25 * len(order) + 0.7, layout="constrained")
    ax: Axes = clean(figure.add_subplot())
    ax.barh(np.arange(len(order)), values, color=[BLUE if value >= 0 else VERMILION for value in values])
    ax.set_yticks(np.arange(len(order)), [shorten(figure, names[j], 1.6, 10) for j in order])
    if len(differences) > 2 * most == len(order):
        ax.axhline(most - 0.5, color=PALE, linewidth=1)  # those between are left out
    ax.axvline(0.0, color=GRAY, linewidth=0.8)
    ax.set_xlabel(plain(f"difference of {measure}"))
    ax.invert_yaxis()
    return figure


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
