"""Figures of data, scores and predictions, as matplotlib `Figure` objects that do not use pyplot.

All figures are 5 inches wide with text of about 10 points, so that they are legible on a phone. The colors are those of
Okabe and Ito, which color-blind people can distinguish. Shapes, signs or numbers repeat the information.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dmo.blocks import cell_blocks
from dmo.errors import UserError
from dmo.metrics import PrecisionRecall, precision_recall_curves, regression_scores, top_scores
from dmo.metrics.checked_blocks import count_labels
from dmo.report.canvas import (
    BLUE,
    COLORS,
    GRAY,
    HALO,
    PALE,
    VERMILION,
    clean,
    decimals_of,
    limits,
    name_at,
    new_figure,
    new_plot,
    panel_grid,
    plain,
    shorten,
    shown,
    styles,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike


def precision_recall_per_label(Y: Any, S: Any, label_names: Sequence[str], most: int = 15) -> Figure:
    """Plot the precision-recall curve of each label in its own panel, sorted by average precision.

    The dashed gray line is the chance level, which is the fraction of samples with the label.

    Parameters
    ----------
    Y : array-like or sparse of shape (n, L)
        True labels, 0 or 1, which are read into memory.
    S : row source of shape (n, L), or mapping of str to row source
        Label scores of one model, or a mapping of model names to label scores. Each panel shows the curves of all
        models and the average precision of the first model.
    label_names : sequence of str
        Names of the L labels.
    most : int, default=15
        Maximum number of panels. The labels with the most positive samples are shown.

    Returns
    -------
    matplotlib.figure.Figure
        The figure, 5 inches wide.

    Raises
    ------
    UserError
        If Y, S and the names do not match in shape, labels are not 0 or 1, scores are NaN, or no label occurs in Y.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.report import precision_recall_per_label
    >>> Y, S = np.array([[1, 0], [0, 1], [1, 1]]), np.array([[0.9, 0.2], [0.4, 0.8], [0.7, 0.3]])
    >>> figure = precision_recall_per_label(Y, S, ["sky", "sea"])
    >>> [ax.get_title(loc="left") for ax in figure.axes if ax.axison]
    ['sky', 'sea']
    """
    Y = label_matrix("precision_recall_per_label", Y, label_names)
    models = S if isinstance(S, Mapping) else {"": S}
    positives, known = count_labels(Y)
    picked = np.argsort(-positives, kind="stable")[:most].tolist()
    first, *others = (_thin_curves(Y, scores, picked) for scores in models.values())
    if not first:
        raise UserError("precision_recall_per_label: no label occurs in Y; pass samples with labels")
    first.sort(key=lambda curve: -curve.average_precision)
    figure, axes = panel_grid([label_names[curve.label] for curve in first], "recall", "precision")
    chances = positives / np.maximum(known, 1)
    for ax, curve in zip(axes, first):
        chance = chances[curve.label]
        _curve_panel(ax, curve, chance, filled=not others)
        for (_, color, dashes), curves in zip(itertools.islice(styles(list(models)), 1, None), others):
            other = next(found for found in curves if found.label == curve.label)
            ax.step(*_steps(other), where="pre", color=color, linestyle=dashes, linewidth=1.4)
    if others:
        for name, color, dashes in styles(list(models)):
            axes[0].plot([], [], color=color, linestyle=dashes, label=shorten(figure, name, 4.0, 10))
        figure.legend(loc="outside upper left", ncols=1, frameon=False, fontsize=10)
    return figure


def _thin_curves(Y: np.ndarray, S: Any, labels: Sequence[int]) -> list[PrecisionRecall]:
    """Compute the precision-recall curves of labels, each with at most `_CORNERS` evenly spaced points."""
    found = []
    for label in labels:
        for curve in precision_recall_curves(Y, S, [label]):
            some = np.unique(np.linspace(0, len(curve.recall) - 1, min(len(curve.recall), _CORNERS)).astype(int))
            parts = curve.precision[some], curve.recall[some], curve.thresholds[some]
            found.append(PrecisionRecall(label, *parts, curve.average_precision))
    return found


def _steps(curve: PrecisionRecall) -> tuple[np.ndarray, np.ndarray]:
    """Return recall and precision at the corners of a curve: the first and the last point at each recall."""
    recall, precision = np.r_[0.0, curve.recall], np.r_[curve.precision[0], curve.precision]
    moves = np.diff(recall) > 0
    corners = np.r_[True, moves] | np.r_[moves, True]
    return recall[corners], precision[corners]


def _curve_panel(ax: Axes, curve: PrecisionRecall, chance: float, filled: bool) -> None:
    """Draw the precision-recall curve of one label, its average precision and the chance level."""
    if filled:
        ax.fill_between(*_steps(curve), step="pre", color=BLUE, alpha=0.15, linewidth=0)
    ax.step(*_steps(curve), where="pre", color=BLUE, linewidth=1.6)
    ax.axhline(chance, color=GRAY, linewidth=1, linestyle=(0, (3, 2)))
    ax.set(xlim=(0, 1.03), ylim=(0, 1.05), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    ax.set_xticklabels(["0", ".5", "1"])
    ax.set_yticklabels(["0", ".5", "1"])
    words = f"AP {curve.average_precision:.2f}"
    if curve.average_precision < 0.6:  # The upper right corner is empty if the average precision is low.
        ax.text(1.0, 0.85, words, ha="right", size=10, bbox=HALO)
    else:  # Write below the curve, but not over the line of the chance level.
        ax.text(0.08, 0.2 if chance > 0.35 else 0.6, words, size=10, bbox=HALO)


def biplot(Z: np.ndarray, loadings: np.ndarray, names: Sequence[str], most: int = 10) -> Figure:
    """Plot the first two components of an embedding, with an arrow for each of the most correlated columns.

    Parameters
    ----------
    Z : ndarray of shape (n, k)
        Coordinates of the samples on at least two components.
    loadings : ndarray of shape (d, k)
        Correlations of the d columns with the components, as computed by `dmo.space.describe_space`.
    names : sequence of str
        Names of the d columns.
    most : int, default=10
        Maximum number of arrows. The longest arrows are shown.

    Returns
    -------
    matplotlib.figure.Figure
        The figure, 5 inches wide. In each direction, a correlation of 1 has the length of the largest coordinate.

    Raises
    ------
    UserError
        If Z or `loadings` have fewer than two columns, Z is not finite, or the names do not match the loadings.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.report import biplot
    >>> Z = np.random.default_rng(0).normal(size=(30, 2))
    >>> figure = biplot(Z, np.array([[0.9, 0.1], [-0.2, 0.7]]), ["wide", "tall"])
    >>> [text.get_text() for text in figure.axes[0].texts if text.get_text()]
    ['wide', 'tall']
    """
    Z, loadings = two_columns("biplot", Z), _loadings("biplot", loadings, names)
    if loadings.shape[1] < 2:
        raise UserError(f"biplot: loadings have shape {loadings.shape}, expected at least two columns (components)")
    arrows = loadings[:, :2] * np.abs(Z[:, :2]).max(axis=0)
    picked = np.argsort(-(loadings[:, :2] ** 2).sum(axis=1), kind="stable")[:most]
    figure, ax = new_plot(5.0)
    shown_at = np.concatenate([Z[:, :2], arrows[picked]])
    ax.set(xlabel="component 1", ylabel="component 2", xlim=limits(shown_at[:, 0]), ylim=limits(shown_at[:, 1]))
    ax.scatter(Z[:, 0], Z[:, 1], s=6, color=PALE, linewidths=0)
    for x, y in arrows[picked]:
        ax.annotate("", (x, y), (0.0, 0.0), arrowprops={"arrowstyle": "->", "color": BLUE})
    name_at(ax, list(arrows[picked]), [shorten(figure, names[j], 1.0, 10) for j in picked])
    return figure


def loading_plot(loadings: np.ndarray, names: Sequence[str], component: int = 0, most: int = 15) -> Figure:
    """Plot the largest correlations between one component and the columns of a view as bars.

    Parameters
    ----------
    loadings : ndarray of shape (d, k)
        Correlations of the d columns with the components, as computed by `dmo.space.describe_space`.
    names : sequence of str
        Names of the d columns.
    component : int, default=0
        Index of the component, counted from 0.
    most : int, default=15
        Maximum number of bars. The longest bars are shown.

    Returns
    -------
    matplotlib.figure.Figure
        The figure, 5 inches wide.

    Raises
    ------
    UserError
        If the names do not match the loadings, or the component does not exist.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.report import loading_plot
    >>> figure = loading_plot(np.array([[0.9], [-0.2]]), ["wide", "tall"])
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['wide', 'tall']
    """
    loadings = _loadings("loading_plot", loadings, names)
    if not 0 <= component < loadings.shape[1]:
        raise UserError(
            f"loading_plot: component = {component}, but loadings have {loadings.shape[1]} components, counted from 0"
        )
    values = loadings[:, component]
    picked = np.argsort(-np.abs(values), kind="stable")[:most]
    figure, ax = _bars(values[picked], [names[j] for j in picked], 0.26)
    ax.set(xlabel=f"correlation with component {component + 1}", xlim=(-1.0, 1.0))
    return figure


def _bars(values: np.ndarray, names: Sequence[str], height: float) -> tuple[Figure, Axes]:
    """Draw horizontal bars with a given height in inches, in blue for positive and red for negative values."""
    figure, ax = new_plot(height * len(values) + 0.7)
    ax.barh(np.arange(len(values)), values, color=[BLUE if value >= 0 else VERMILION for value in values])
    ax.set_yticks(np.arange(len(values)), [shorten(figure, name, 1.6, 10) for name in names])
    ax.axvline(0.0, color=GRAY, linewidth=0.8)
    ax.invert_yaxis()
    return figure, ax


def _loadings(function: str, loadings: np.ndarray, names: Sequence[str]) -> np.ndarray:
    found = np.asarray(loadings, np.float64)
    if found.ndim != 2 or len(found) != len(names):
        raise UserError(f"{function}: loadings have shape {found.shape}, expected {len(names)} rows, one per name")
    return found


def embedding_per_label(
    Z: np.ndarray,
    Y: np.ndarray,
    label_names: Sequence[str],
    most: int = 15,
    axes: tuple[str, str] = ("component 1", "component 2"),
) -> Figure:
    """Plot the first two components of an embedding in one panel per label.

    Samples with the label are blue and other samples are gray. At most 50 000 evenly spaced samples are drawn.

    Parameters
    ----------
    Z : ndarray of shape (n, k)
        Coordinates of the samples on at least two components.
    Y : array-like or sparse of shape (n, L)
        Labels of the samples, 0 or 1.
    label_names : sequence of str
        Names of the L labels.
    most : int, default=15
        Maximum number of panels. The labels with the most positive samples are shown, but none without such samples.
    axes : tuple of str, default=("component 1", "component 2")
        Titles of the two axes.

    Returns
    -------
    matplotlib.figure.Figure
        The figure, 5 inches wide.

    Raises
    ------
    UserError
        If Z has fewer than two columns or is not finite, or if Z, Y and the names do not match.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.report import embedding_per_label
    >>> Z, Y = np.random.default_rng(0).normal(size=(30, 2)), np.arange(60).reshape(30, 2) % 3 == 0
    >>> figure = embedding_per_label(Z, Y, ["sky", "sea"])
    >>> [ax.get_title(loc="left") for ax in figure.axes if ax.axison]
    ['sky', 'sea']
    """
    Z, Y = two_columns("embedding_per_label", Z), label_matrix("embedding_per_label", Y, label_names)
    if len(Y) != len(Z):
        raise UserError(
            f"embedding_per_label: Z has {len(Z)} rows, labels have {len(Y)}; pass the same samples in both"
        )
    picked = np.argsort(-Y.sum(axis=0, dtype=np.int64), kind="stable")[:most]
    picked = picked[(Y[:, picked] == 1).any(axis=0)]
    figure, panels = panel_grid([label_names[l] for l in picked], plain(axes[0]), plain(axes[1]))
    if len(Z) > _POINTS:
        some = np.linspace(0, len(Z) - 1, _POINTS).astype(int)
        Z, Y = Z[some], Y[some]
    size = float(np.clip(1200 / len(Z), 3, 14))
    for ax, l in zip(panels, picked):
        # Many vector objects would be slow, so rasterize the dots. Gray dots are visible on light and dark backgrounds.
        has = Y[:, l] == 1
        ax.scatter(Z[~has, 0], Z[~has, 1], s=size, color=GRAY, alpha=0.35, linewidths=0, rasterized=True)
        ax.scatter(Z[has, 0], Z[has, 1], s=1.5 * size, color="#2A8FD0", linewidths=0, rasterized=True)
        ax.set(xticks=[], yticks=[])
    return figure


def heat_map(
    values: np.ndarray,
    row_names: Sequence[object],
    column_names: Sequence[object],
    row_title: str = "",
    column_title: str = "",
    value_title: str = "",
    mark: bool = True,
    span: tuple[float, float] | None = None,
) -> Figure:
    """Plot a matrix as a heat map with a frame around the largest value.

    Parameters
    ----------
    values : array-like of shape (r, c)
        Values of the cells, or NaN for missing values. The numbers are written into the cells if there are at most 10
        columns.
    row_names, column_names : sequence
        Names of the r rows and c columns.
    row_title, column_title, value_title : str, default=""
        Titles of the rows, the columns and the color bar.
    mark : bool, default=True
        Whether to draw the frame.
    span : tuple of float, default=None
        Values with the first and the last color. By default, these are the smallest and the largest value.

    Returns
    -------
    matplotlib.figure.Figure
        The figure, 5 inches wide.

    Raises
    ------
    UserError
        If the names do not match the shape of the values, a value is infinite, or all values are NaN.

    Examples
    --------
    >>> from dmo.report import heat_map
    >>> figure = heat_map([[0.31, 0.33], [0.36, 0.34]], [0.01, 0.1], [50, 100], "ridge", "components", "F1")
    >>> figure.axes[0].get_ylabel()
    'ridge'
    """
    values = np.asarray(values, dtype=np.float64)
    wanted = (len(row_names), len(column_names))
    if values.shape != wanted or np.isinf(values).any() or np.isnan(values).all():
        raise UserError(
            f"heat_map: values have shape {values.shape}, expected {wanted[0]} rows and {wanted[1]} columns as in the "
            "names; pass finite numbers, or NaN for missing values, with at least one number"
        )
    figure = new_figure(max(2.2, 0.9 + 0.34 * len(row_names)))  # The title of the color bar needs this height.
    across, down = ([plain(shown(name)) for name in names] for names in (column_names, row_names))
    low, high = span or (None, None)
    ax = _color_table(figure, values, across, down, plain(value_title), 10, vmin=low, vmax=high)
    ax.set_xlabel(plain(column_title), size=10.5)
    ax.set_ylabel(plain(row_title), size=10.5)
    if len(across) <= 10:
        _write_cells(ax, values, *(span or (np.nanmin(values), np.nanmax(values))))
    if mark:
        row, column = np.unravel_index(np.nanargmax(values), values.shape)
        frame = np.array([(-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5), (-0.5, -0.5)]) + (column, row)
        ax.plot(*frame.T, color=VERMILION, linewidth=2.5, clip_on=False, scalex=False, scaley=False)
    return figure


def _color_table(
    figure: Figure,
    values: np.ndarray,
    across: Sequence[str],
    down: Sequence[str],
    title: str,
    size: int,
    **scale: Any,
) -> Axes:
    """Draw a heat map with row names, column names and a color bar; missing values (NaN) are gray."""
    ax = figure.add_subplot(facecolor="#F3F4F6")
    image = ax.imshow(np.ma.masked_invalid(values), cmap="cividis", aspect="auto", **scale)
    ax.set_xticks(range(len(across)), across, size=size, rotation=90 if len("".join(across)) > 40 else 0)
    ax.set_yticks(range(len(down)), down, size=size)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=ax, pad=0.02)
    bar.set_label(title, size=size + 0.5)
    bar.ax.spines[:].set_visible(False)
    return ax


def label_cooccurrence(Y: Any, label_names: Sequence[str], most: int = 20) -> Figure:
    """Plot a heat map of label co-occurrence.

    Each cell shows which fraction of the samples with the label of its row also have the label of its column.
    Frequently co-occurring labels are adjacent.

    Parameters
    ----------
    Y : array-like or sparse of shape (n, L)
        Labels of the samples, 0 or 1.
    label_names : sequence of str
        Names of the L labels.
    most : int, default=20
        Maximum number of labels. The labels with the most positive samples are shown.

    Returns
    -------
    matplotlib.figure.Figure
        The figure, 5 inches wide.

    Raises
    ------
    UserError
        If the names do not match the labels, or no label occurs in Y.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.report import label_cooccurrence
    >>> figure = label_cooccurrence(np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]]), ["sea", "boat", "fir"])
    >>> sorted(text.get_text() for text in figure.axes[0].get_yticklabels())
    ['boat', 'fir', 'sea']
    """
    Y = label_matrix("label_cooccurrence", Y, label_names)
    counts, _ = count_labels(Y)
    picked = np.argsort(-counts, kind="stable")[:most]
    picked = picked[counts[picked] > 0]
    if not len(picked):
        raise UserError("label_cooccurrence: no label occurs in Y; pass samples with labels")
    shares = cooccurrence(together(Y, Y)[np.ix_(picked, picked)])
    order = _seriate(shares)
    shares, picked = shares[np.ix_(order, order)], picked[order]
    np.fill_diagonal(shares, np.nan)
    figure = new_figure(1.9 + 0.2 * len(picked))
    names = [shorten(figure, label_names[label], 1.2, 9) for label in picked]
    _color_table(figure, shares, names, names, "fraction of the row's samples", 9, vmin=0, vmax=1)
    return figure


def together(Y: np.ndarray, P: np.ndarray) -> np.ndarray:
    """Count the samples with label a in Y and label b in P, for all pairs of labels; missing labels count as 0."""
    found = np.zeros((Y.shape[1], P.shape[1]))
    for where in cell_blocks(Y.shape):
        found += (Y[where] == 1).T.astype(np.float32) @ (P[where] == 1).astype(np.float32)
    return found


def cooccurrence(counts: np.ndarray) -> np.ndarray:
    """Compute the fraction of the samples with label a that also have label b, as entry (a, b) of a matrix."""
    return counts / np.maximum(np.diag(counts), 1)[:, None]


def _seriate(shares: np.ndarray) -> np.ndarray:
    """Order labels by hierarchical clustering (average linkage), so that co-occurring labels are adjacent."""
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    if len(shares) < 3:
        return np.arange(len(shares))
    distance = 1 - (shares + shares.T) / 2
    np.fill_diagonal(distance, 0)
    return leaves_list(linkage(squareform(distance, checks=False), "average", optimal_ordering=True))


def score_curve(
    values: Sequence[object],
    mean: ArrayLike,
    std: ArrayLike,
    value_title: str = "",
    score: str = "",
    mark: bool = True,
) -> Figure:
    """Plot the scores of parameter values, with standard deviations as error bars.

    Parameters
    ----------
    values : sequence
        Values of the parameter, numbers or names, which are drawn at equal distances.
    mean, std : array-like of shape (v,)
        Mean and standard deviation of the score for every value, or NaN for missing scores.
    value_title, score : str, default=""
        Titles of the horizontal and the vertical axis.
    mark : bool, default=True
        Whether to draw a ring around the best score.

    Returns
    -------
    matplotlib.figure.Figure
        The figure, 5 inches wide.

    Raises
    ------
    UserError
        If `values`, `mean` and `std` differ in length, or all means are NaN.

    Examples
    --------
    >>> from dmo.report import score_curve
    >>> figure = score_curve([0.1, 1.0], [0.31, 0.36], [0.02, 0.01], "ridge", "F1")
    >>> figure.axes[0].get_xlabel()
    'ridge'
    """
    means, deviations = np.asarray(mean, np.float64), np.asarray(std, np.float64)
    if not len(values) == len(means) == len(deviations) or np.isnan(means).all():
        raise UserError(
            f"score_curve: got {len(values)} values, {len(means)} means and {len(deviations)} standard deviations; "
            f"pass one mean and one standard deviation per value, and at least one mean that is not NaN"
        )
    figure, ax = new_plot(2.8)
    ax.errorbar(range(len(means)), means, deviations, color=BLUE, marker="o", markersize=4, linewidth=1.6, elinewidth=1)
    best = int(np.nanargmax(means))
    if mark:
        ring: dict[str, Any] = {"marker": "o", "markersize": 11, "markerfacecolor": "none", "markeredgewidth": 2}
        ax.plot([best], means[[best]], color=VERMILION, **ring)
    names = [shorten(figure, shown(value), 1.6, 10) for value in values]
    ax.set_xticks(range(len(names)), names, size=10, rotation=90 if len("".join(names)) > 50 else 0)
    ax.set_xlabel(plain(value_title), size=10.5)
    ax.set_ylabel(plain(score), size=10.5)
    return figure


def _write_cells(ax: Axes, values: np.ndarray, low: float, high: float) -> None:
    decimals = decimals_of(values)
    for (row, column), value in np.ndenumerate(values):
        words = "–" if np.isnan(value) else f"{value:.{decimals}f}"
        # Report pages replace white and black with colors of their theme, so use almost white and almost black.
        color = "#FEFEFE" if value < low + 0.55 * (high - low) else "#010101"
        ax.text(column, row, words, ha="center", va="center", size=9, color=color)


def label_matrix(function: str, Y: Any, names: Sequence[str]) -> np.ndarray:
    """Convert labels to a dense array; raise an error if the names do not match its columns."""
    Y = Y.toarray() if hasattr(Y, "toarray") else np.asarray(Y)
    if Y.ndim != 2 or Y.shape[1] != len(names):
        raise UserError(f"{function}: {len(names)} label names for labels of shape {Y.shape}; pass one name per column")
    return Y


def two_columns(function: str, Z: np.ndarray) -> np.ndarray:
    """Return the first two columns of Z; raise an error if they are missing or not finite."""
    Z = np.asarray(Z)
    if Z.ndim != 2 or Z.shape[0] < 1 or Z.shape[1] < 2:
        raise UserError(
            f"{function}: Z has shape {Z.shape}, expected (samples, components) with at least two components"
        )
    if not np.isfinite(Z[:, :2]).all():
        raise UserError(f"{function}: Z contains NaN or infinite values; check the model that computed them")
    return Z[:, :2]


_STEPS = 300
_BINS = 10
_POINTS, _CORNERS = 50_000, 2000
"""Maximum number of samples in a scatter plot, and maximum number of points in a precision-recall curve."""
_SORTED = 1 << 22
"""Maximum number of scores from which the thresholds of threshold curves are chosen."""


def reliability(Y: np.ndarray, P: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Compute mean probability, label frequency and size of ten bins of probabilities, and the calibration error.

    The calibration error is the mean absolute difference between probability and frequency, weighted by bin sizes.
    """
    # The expected calibration error is defined in Naeini, Cooper and Hauskrecht 2015, "Obtaining well calibrated
    # probabilities using Bayesian binning", section 2.
    sums = np.zeros((3, _BINS))
    for where in cell_blocks(Y.shape):
        known = ~np.isnan(np.asarray(Y[where], np.float64))
        y, p = np.asarray(Y[where], np.float64)[known], np.asarray(P[where], np.float64)[known]
        bins = np.minimum((p * _BINS).astype(int), _BINS - 1)
        sums += [np.bincount(bins, v, _BINS) for v in (np.ones(len(p)), p, y)]
    count, filled = sums[0], sums[0] > 0
    expected, observed = (part[filled] / count[filled] for part in sums[1:])
    error = float((np.abs(expected - observed) * count[filled]).sum() / max(count.sum(), 1))
    return expected, observed, count[filled], error


def calibration_curves(Y: np.ndarray, P: Mapping[str, np.ndarray]) -> Figure:
    """Plot the observed frequency of labels against their predicted probability (reliability diagram).

    The predictions of all labels are pooled. The legend shows the expected calibration error of each model.

    Parameters
    ----------
    Y : ndarray of shape (n, L)
        True labels, 0 or 1. Missing labels (NaN) are ignored.
    P : mapping of str to ndarray of shape (n, L)
        Label probabilities of each model, by model name.

    Returns
    -------
    matplotlib.figure.Figure
        The figure, 5 inches wide.

    Raises
    ------
    UserError
        If a probability is not between 0 and 1.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.report import calibration_curves
    >>> figure = calibration_curves(np.eye(2), {"ridge": np.array([[0.9, 0.2], [0.1, 0.8]])})
    >>> figure.axes[0].get_xlabel()
    'probability'
    """
    for name, p in P.items():
        if not (p.min() >= 0 and p.max() <= 1):
            raise UserError(f"calibration_curves: {name} has values outside 0..1; pass the output of predict_proba")
    figure, ax = new_plot(3.4)
    ax.plot([0, 1], [0, 1], color=GRAY, linewidth=1, linestyle=(0, (3, 2)))
    for name, color, dashes in styles(list(P)):
        expected, observed, _, error = reliability(Y, P[name])
        words = f"{shorten(figure, name, 3.4, 10)}, error {error:.3f}"
        ax.plot(expected, observed, marker="o", markersize=4, color=color, linestyle=dashes, label=words)
    ax.set(xlabel="probability", ylabel="observed frequency of labels", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    figure.legend(frameon=False, fontsize=10, loc="outside upper left")
    return figure


def threshold_curves(Y: np.ndarray, S: Mapping[str, np.ndarray], top: int, score: str = "score") -> Figure:
    """Plot precision, recall and F1 against the score threshold and against the number of labels per sample.

    For several models, only F1 is plotted. The left panel pools all sample-label pairs. The right panel averages over
    samples.

    Parameters
    ----------
    Y : ndarray of shape (n, L)
        True labels, 0 or 1. Missing labels (NaN) are ignored.
    S : mapping of str to ndarray of shape (n, L)
        Label scores of each model, by model name.
    top : int
        Number of labels per sample that is marked by a vertical line.
    score : str, default="score"
        Name of the scores in the axis title.

    Returns
    -------
    matplotlib.figure.Figure
        The figure, 5 inches wide.

    Raises
    ------
    UserError
        If no label occurs in Y.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.report import threshold_curves
    >>> figure = threshold_curves(np.eye(3), {"ridge": np.eye(3)}, top=1)
    >>> [ax.get_xlabel() for ax in figure.axes]
    ['threshold of the score', 'labels a sample']
    """
    several = len(S) > 1
    figure = new_figure(2.5 + (0.2 * len(S) if several else 0.2))
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
    """Compute precision, recall and F1 of the labels whose score reaches a threshold, for up to 300 thresholds."""
    if Y.shape[0] * Y.shape[1] > _SORTED:
        return _measures_at(Y, S)
    from sklearn.metrics import precision_recall_curve

    known = ~np.isnan(np.asarray(Y, np.float64))
    y, s = np.asarray(Y)[known], np.asarray(S)[known]
    if not (y == 1).any():
        raise UserError("no label occurs in Y; pass samples with labels")
    precision, recall, thresholds = precision_recall_curve(y, s)
    some = np.unique(np.linspace(0, len(thresholds) - 1, min(len(thresholds), _STEPS)).astype(int))
    return thresholds[some], _with_f1(precision[some], recall[some])


def _with_f1(p: np.ndarray, r: np.ndarray) -> dict[str, np.ndarray]:
    return {"precision": p, "recall": r, "F1": 2 * p * r / np.maximum(p + r, 1e-300)}


def _measures_at(Y: np.ndarray, S: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Compute `pooled_measures` of large data sets, with thresholds from a subset of the samples and exact counts."""
    some = np.linspace(0, len(Y) - 1, min(len(Y), max(1, _SORTED // Y.shape[1]))).astype(int)
    scores = np.unique(np.asarray(S[some])[~np.isnan(np.asarray(Y[some], np.float64))])
    thresholds = scores[np.unique(np.linspace(0, len(scores) - 1, min(len(scores), _STEPS)).astype(int))]
    # Count the pairs of a sample and a label by the number of thresholds that their score reaches. The second row
    # counts only the positive pairs.
    counts = np.zeros((2, len(thresholds) + 1))
    for where in cell_blocks(Y.shape):
        known = ~np.isnan(np.asarray(Y[where], np.float64))
        reached = np.searchsorted(thresholds, np.asarray(S[where])[known], "right")
        counts += [np.bincount(reached, v, counts.shape[1]) for v in (None, np.asarray(Y[where])[known])]
    given, hits = np.cumsum(counts[:, :0:-1], axis=1)[:, ::-1]
    positives = counts[1].sum()
    if not positives:
        raise UserError("no label occurs in Y; pass samples with labels")
    return thresholds, _with_f1(hits / np.maximum(given, 1), hits / positives)


def label_counts(counts: Mapping[str, np.ndarray]) -> Figure:
    """Plot histograms of the number of labels per sample, for example of true and predicted labels.

    Parameters
    ----------
    counts : mapping of str to ndarray of int of shape (n,)
        Number of labels of every sample, by the name of the model or data. Numbers above 15 are counted as 15.

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
    figure, ax = new_plot(2.2 + 0.2 * len(counts))
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
    """Plot the labels with the largest differences between two models as bars.

    Parameters
    ----------
    differences : ndarray of shape (L,)
        Metric of the second model minus the metric of the first model for every label, or NaN for missing metrics.
    names : sequence of str
        Names of the L labels.
    measure : str
        Name and unit of the metric.
    most : int, default=10
        Maximum number of bars for the largest and for the smallest differences.

    Returns
    -------
    matplotlib.figure.Figure
        The figure, 5 inches wide.

    Raises
    ------
    UserError
        If the names do not match the differences, or all differences are NaN.

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
            f"label_differences: got {len(names)} names and {len(differences)} differences; pass one name per "
            f"difference, and at least one difference that is not NaN"
        )
    order = np.argsort(-differences, kind="stable")[: np.isfinite(differences).sum()]
    if len(order) > 2 * most:
        order = np.r_[order[:most], order[-most:]]
    figure, ax = _bars(differences[order], [names[j] for j in order], 0.25)
    if len(differences) > 2 * most == len(order):
        # Draw a line between the labels with the largest and the smallest differences. The labels between them are
        # omitted.
        ax.axhline(most - 0.5, color=PALE, linewidth=1)
    ax.set_xlabel(plain(f"difference of {measure}"))
    return figure


_DOTS = 2000


def predicted_against_true(Y: np.ndarray, P: np.ndarray, names: Sequence[str], most: int = 15) -> Figure:
    """Plot predicted against true values in one panel per target, sorted by R2.

    Parameters
    ----------
    Y : ndarray of shape (n, L)
        True values of the targets. Missing values (NaN) are ignored.
    P : ndarray of shape (n, L)
        Predicted values of the targets.
    names : sequence of str
        Names of the L targets.
    most : int, default=15
        Maximum number of panels. The targets with the highest R2 are shown, with up to 2000 samples each.

    Returns
    -------
    matplotlib.figure.Figure
        The figure, 5 inches wide.

    Raises
    ------
    UserError
        If Y, P and the names do not match in shape, predictions are NaN, or a target has no known value.

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
    """Plot residuals (true minus predicted values) against predicted values in one panel per target, sorted by R2.

    Parameters
    ----------
    Y : ndarray of shape (n, L)
        True values of the targets. Missing values (NaN) are ignored.
    P : ndarray of shape (n, L)
        Predicted values of the targets.
    names : sequence of str
        Names of the L targets.
    most : int, default=15
        Maximum number of panels. The targets with the highest R2 are shown, with up to 2000 samples each.

    Returns
    -------
    matplotlib.figure.Figure
        The figure, 5 inches wide.

    Raises
    ------
    UserError
        If Y, P and the names do not match in shape, predictions are NaN, or a target has no known value.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.report import residuals
    >>> figure = residuals(np.array([[1.0], [2.0]]), np.array([[1.1], [1.8]]), ["depth"])
    >>> figure.axes[0].collections[0].get_offsets()[:, 1].round(1).tolist()
    [-0.1, 0.2]
    """
    figure, panels = _panels("residuals", Y, P, names, most, ("predicted", "true minus predicted"))
    for ax, y, p, _ in panels:
        ax.axhline(0, color=GRAY, linewidth=1, linestyle=(0, (3, 2)))
        ax.scatter(p, y - p, s=6, color=BLUE, alpha=0.4, linewidths=0)
    return figure


def _panels(
    function: str, Y: np.ndarray, P: np.ndarray, names: Sequence[str], most: int, axes: tuple[str, str]
) -> tuple[Figure, list[tuple[Axes, np.ndarray, np.ndarray, float]]]:
    """Create a figure with one panel per target; return the axes, some true and predicted values, and R2 of each."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    if len(names) != Y.shape[1]:
        raise UserError(f"{function}: {len(names)} names for {Y.shape[1]} targets; pass one name per target")
    r2 = regression_scores(Y, P).per_target[2]
    shown = np.argsort(-r2, kind="stable")[:most].tolist()
    figure, panels = panel_grid([names[j] for j in shown], *axes, share=False)
    some = np.linspace(0, len(Y) - 1, min(len(Y), _DOTS)).astype(int)
    for ax in panels:
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(2))
            axis.set_major_formatter(EngFormatter(sep=""))  # Long numbers would overlap, so write 200k for 200000.
    return figure, [(ax, Y[some, j], P[some, j], float(r2[j])) for ax, j in zip(panels, shown)]
