"""Images of many samples at once: which labels go together, and the samples themselves where the model puts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dmo.errors import UserError
from dmo.report.canvas import PALE, WIDTH, clean, limits, new_figure, plain, shorten
from dmo.report.figures import label_matrix, two_columns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THUMBNAIL = 0.42
"""The longer side of a sample's image in inches."""
_SPAN = 0.78 * WIDTH
"""Inches between the outermost samples of a map, at least."""


def label_cooccurrence(Y: Any, label_names: Sequence[str], most: int = 20) -> Figure:
    """How often a label comes with another: the share of the samples of the row's label that carry the column's.

    Parameters
    ----------
    Y : array-like or sparse of shape (n, L)
        Labels, 0/1.
    label_names : sequence of str
        L names.
    most : int, default=20
        The labels with most positives are shown, those that come together next to each other.

    Returns
    -------
    matplotlib.figure.Figure
        The figure, 5 inches wide.

    Raises
    ------
    UserError
        Where names do not fit, or no label occurs.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.report import label_cooccurrence
    >>> figure = label_cooccurrence(np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]]), ["sea", "boat", "fir"])
    >>> sorted(text.get_text() for text in figure.axes[0].get_yticklabels())
    ['boat', 'fir', 'sea']
    """
    Y = label_matrix("label_cooccurrence", Y, label_names)
    counts = Y.sum(axis=0, dtype=np.int64)
    picked = np.argsort(-counts, kind="stable")[:most]
    picked = picked[counts[picked] > 0]
    if not len(picked):
        raise UserError("label_cooccurrence: no label occurs in Y; pass samples with labels")
    shares = cooccurrence(Y[:, picked])
    order = _seriate(shares)
    shares, picked = shares[np.ix_(order, order)], picked[order]
    figure = new_figure(1.9 + 0.2 * len(picked), layout="constrained")
    ax = figure.add_subplot()
    np.fill_diagonal(shares, np.nan)
    ax.set_facecolor("#F3F4F6")
    image = ax.imshow(np.ma.masked_invalid(shares), cmap="cividis", vmin=0, vmax=1, aspect="auto")
    names = [shorten(figure, label_names[label], 1.2, 9) for label in picked]
    ax.set_xticks(range(len(names)), names, size=9, rotation=90)
    ax.set_yticks(range(len(names)), names, size=9)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=ax, pad=0.02)
    bar.set_label("share of the row's samples", size=9.5)
    bar.ax.spines[:].set_visible(False)
    return figure


def cooccurrence(Y: np.ndarray) -> np.ndarray:
    """Entry (a, b): of the samples with label a, the share that has b too; 0 where none has a. Y n x L, 0/1."""
    together = Y.T.astype(np.float64) @ Y
    counts = np.diag(together).copy()
    return together / np.maximum(counts, 1)[:, None]


def _seriate(shares: np.ndarray) -> np.ndarray:
    """An order of the labels that puts those that come together side by side: leaves of average linkage."""
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    if len(shares) < 3:
        return np.arange(len(shares))
    distance = 1 - (shares + shares.T) / 2
    np.fill_diagonal(distance, 0)
    return leaves_list(linkage(squareform(distance, checks=False), "average", optimal_ordering=True))


def thumbnail_map(Z: np.ndarray, images: Sequence[np.ndarray | None], xlabel: str = "", ylabel: str = "") -> Figure:
    """The first two components with the samples' own images where these do not overlap, dots for all others.

    Parameters
    ----------
    Z : ndarray of shape (n, k)
        Components, k >= 2.
    images : sequence of ndarray
        n images, h x w or h x w x 3 (gray, dark is 0), or None for a dot.
    xlabel, ylabel : str, default=""
        What the components are.

    Returns
    -------
    matplotlib.figure.Figure
        The figure, 5 inches wide.

    Raises
    ------
    UserError
        Where shapes do not fit, or no sample has an image.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.report import thumbnail_map
    >>> figure = thumbnail_map(np.array([[0.0, 0.0], [1.0, 1.0]]), [np.zeros((8, 8)), None], "hue")
    >>> figure.axes[0].get_xlabel()
    'hue'
    """
    Z = two_columns("thumbnail_map", Z)
    if len(images) != len(Z) or all(image is None for image in images):
        raise UserError(
            f"thumbnail_map: {sum(image is not None for image in images)} images for {len(Z)} samples; pass one or "
            "None for each, and at least one"
        )
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage

    figure = new_figure(5.0, layout="constrained")
    ax = clean(figure.add_subplot())
    ax.set(xlim=_wide(Z[:, 0]), ylim=_wide(Z[:, 1]), xticks=[], yticks=[])
    ax.set_xlabel(plain(xlabel), size=10)
    ax.set_ylabel(plain(ylabel), size=10)
    ax.scatter(Z[:, 0], Z[:, 1], s=5, color=PALE, linewidths=0)
    shown = {i: np.asarray(image) for i, image in enumerate(images) if image is not None}
    sides = [max(image.shape[:2]) for image in shown.values()]
    wide, tall = (max(image.shape[axis] / side for image, side in zip(shown.values(), sides)) for axis in (1, 0))
    share = 1.05 * THUMBNAIL / _SPAN
    for i in spaced(Z, list(shown), (share * wide, share * tall)):
        image = shown[i]
        zoom = THUMBNAIL * 72 / max(image.shape[:2])
        box = AnnotationBbox(
            OffsetImage(image, zoom=zoom, cmap="gray"), Z[i], frameon=False, pad=0, annotation_clip=True
        )
        ax.add_artist(box)
    return figure


def _wide(values: np.ndarray) -> tuple[float, float]:
    """The range of the values with room for half an image on both sides."""
    low, high = limits(values)
    return low - 0.03 * (high - low), high + 0.03 * (high - low)


def spaced(Z: np.ndarray, candidates: Sequence[int], gap: tuple[float, float]) -> list[int]:
    """Some of the candidates, first come first, no two nearer in both axes than `gap`, shares of width and height."""
    low, span = Z.min(axis=0), np.maximum(np.ptp(Z, axis=0), 1e-12)
    places = (Z - low) / span
    kept: list[int] = []
    for i in candidates:
        if not kept or (np.abs(places[kept] - places[i]) >= gap).any(axis=1).all():
            kept.append(i)
    return kept
