"""Plot of the space of a fitted model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, clone

from dmo.errors import UserError
from dmo.inputs import Inputs, Outputs, are_real, check_partial_labels, paired
from dmo.report.canvas import COLORS, GRAY, MARKERS, clean, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DOTS, _NAMED = 50_000, 10
"""Maximum numbers of samples that are drawn and of labels with an own color."""
_COLORS = (*COLORS, "#8C564B", "#7B3FA0", "#9A9A00")


def plot_space(
    model: BaseEstimator,
    X: Inputs,
    y: Outputs | None = None,
    components: tuple[int, int] = (0, 1),
    ax: Axes | None = None,
) -> Axes:
    """Plot samples in the space of a fitted model, with colors for their labels, classes or target.

    At most ten labels have a color, those with the most samples. Markers of rarer labels cover markers of more frequent
    labels of the same sample. At most 50 000 evenly spaced samples are drawn.

    Parameters
    ----------
    model : estimator
        Fitted estimator with the method `transform`, such as `KGHA`, or a pipeline that ends with one.
    X : mapping of view to rows, list of rows, or rows
        Samples in a format that the model accepts.
    y : array-like of shape (n, L) or (n,), or n lists of labels, default=None
        Labels, classes or one regression target of the samples. Columns of a DataFrame name the labels. Floats other
        than 0, 1 and -1 are regression targets.
    components : tuple of int, default=(0, 1)
        Components on the horizontal and the vertical axis, counted from 0.
    ax : matplotlib.axes.Axes, default=None
        Axes to draw on. By default, the function creates a figure by `matplotlib.pyplot`, which notebooks show.

    Returns
    -------
    matplotlib.axes.Axes
        The axes with the plot.

    Raises
    ------
    UserError
        If the model has no space or fewer components, y does not match X, or there are several regression targets.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> import dmo
    >>> X, y = load_iris(return_X_y=True, as_frame=True)
    >>> model = dmo.KGHA(n_components=2).fit(X, y)
    >>> ax = dmo.plot_space(model, X, y)
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['0 (50)', '1 (50)', '2 (50)']
    """
    if not hasattr(model, "transform"):
        raise UserError(f"plot_space: {type(model).__name__} has no method transform; pass a model such as dmo.KGHA")
    y, _ = paired(X, y)
    if getattr(y, "ndim", 0) == 1 and np.asarray(y).dtype.kind == "f":
        y = np.asarray(y)[:, None]
    Z = np.asarray(model.transform(X))
    if Z.ndim != 2 or not all(0 <= component < Z.shape[1] for component in components):
        raise UserError(
            f"plot_space: components = {components}, but the space has {Z.shape[-1]} components; pass others, or fit the "
            "model with a larger n_components"
        )
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(layout="constrained")
    chosen = np.unique(np.linspace(0, len(Z) - 1, min(len(Z), _DOTS)).astype(int))
    points = Z[chosen][:, list(components)]
    size = float(np.clip(12_000 / len(points), 4, 28))
    if y is not None and are_real(y):
        _draw_values(ax, points, _target(y, len(Z))[chosen], size)
    else:
        _draw_labels(ax, points, None if y is None else _labels(model, y, len(Z)), chosen, size)
    horizontal, vertical = (f"component {component + 1}" for component in components)
    clean(ax).set(xlabel=horizontal, ylabel=vertical, title=f"{type(model).__name__}: {len(Z)} samples")
    return ax


def _target(y: Any, n: int) -> np.ndarray:
    """Return a regression target as a vector of n values."""
    values = np.asarray(y, np.float64)
    if values.size != n:
        raise UserError(f"plot_space: y has shape {values.shape}, expected one target of {n} samples; pass one column")
    return values.ravel()


def _labels(model: BaseEstimator, y: Any, n: int) -> dict[str, np.ndarray]:
    """Return the samples of each label as masks: the most frequent labels first, or classes in their order."""
    reader: Any = clone(model)
    Y, known = check_partial_labels(reader, y, n)
    Y = Y if known is None else Y * known
    counts = np.asarray(Y.sum(axis=0)).ravel().astype(int)
    names = getattr(reader, "label_names_", getattr(reader, "classes_", range(len(counts))))
    shown = np.argsort(-counts, kind="stable")[:_NAMED]
    shown = shown if getattr(reader, "multilabel_", True) else np.sort(shown)  # Classes do not overlap.
    columns = Y[:, shown].toarray() if hasattr(Y, "toarray") else np.asarray(Y[:, shown])
    return {f"{plain(names[j])} ({counts[j]})": columns[:, i] == 1 for i, j in enumerate(shown)}


def _draw_labels(
    ax: Axes, points: np.ndarray, labels: dict[str, np.ndarray] | None, chosen: np.ndarray, size: float
) -> None:
    """Draw the samples of each label in a color, and all other samples in gray."""
    masks = {name: mask[chosen] for name, mask in (labels or {}).items()}
    others = ~np.any([np.zeros(len(points), bool), *masks.values()], axis=0)
    dots: dict[str, Any] = {"s": size, "linewidths": 0, "rasterized": True}
    if others.any():
        ax.scatter(*points[others].T, color=GRAY, alpha=0.5, label="other" if masks else None, **dots)
    for (name, mask), color, marker in zip(masks.items(), _COLORS, MARKERS):
        ax.scatter(*points[mask].T, color=color, marker=marker, alpha=0.85, label=name, **dots)
    if masks:
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize="small", markerscale=1.5)


def _draw_values(ax: Axes, points: np.ndarray, values: np.ndarray, size: float) -> None:
    """Draw samples in the color of a regression target, with a color bar."""
    x, y = points.T
    dots = ax.scatter(x, y, c=values, s=size, cmap="viridis", linewidths=0, rasterized=True)
    ax.figure.colorbar(dots, ax=ax, label="target")
