"""Weights of views: given, equal, by alignment, or learned from distances; and the kernel of the product.

Weights of views by centered alignment: the sum of kernels that is nearest in direction to that of the labels.

With kernels A_v and the label kernel T = Y Y', both centered by H, w >= 0 maximizes the cosine <sum_v w_v HA_vH, HTH>;
up to its scale it is the minimum of w'M w - 2 w'a with M_uv = <HA_uH, HA_vH> and a_v = <HA_vH, HTH>, a problem of
nonnegative least squares. Here A_v = -d_v, the negative distances: sum_v w_v d_v is what a product kernel is made of.

Source: Cortes, Mohri, Rostamizadeh 2012, proposition 9 (alignf).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.linalg
import scipy.optimize

from dmo.errors import UserError
from dmo.fit.view_neighbors import ViewDistances, distance_kernel
from dmo.inputs import NOT_NEGATIVE, per_view
from dmo.kernels.multikernel import MultiKernel
from dmo.methods.tagprop import NEIGHBORS, Neighborhoods, fit_tagprop


def aligned_weights(blocks: Iterable[tuple[slice, np.ndarray]], Y: np.ndarray) -> np.ndarray:
    """Weights of views from their distances, in one pass.

    blocks (V, rows, n); Y (n, L) -> (V,)
    """
    n = len(Y)
    centered = (Y - Y.mean(axis=0)).astype(np.float32)
    products: np.ndarray = np.zeros(())
    with_labels: np.ndarray = np.zeros(())
    parts = []
    for where, d in blocks:
        a = 1.0 - np.asarray(d, np.float32)  # the mean is taken off before the squares: float32 keeps its digits
        flat = a.reshape(len(a), -1)
        products = products + (flat @ flat.T).astype(np.float64)
        with_labels = with_labels + np.array([np.vdot(centered[where], part @ centered) for part in a], np.float64)
        parts.append(a.sum(axis=2, dtype=np.float64))
    sums = np.concatenate(parts, axis=1)
    total = sums.sum(axis=1)
    M = products - 2 / n * sums @ sums.T + np.outer(total, total) / n**2
    scale = np.sqrt(np.maximum(np.diagonal(M), np.finfo(float).tiny))
    M, a = M / np.outer(scale, scale), with_labels / scale
    # a ridge for views that repeat each other
    root = scipy.linalg.cholesky(M + 1e-8 * np.eye(len(M)))
    found, _ = scipy.optimize.nnls(root, scipy.linalg.solve_triangular(root, a, trans="T"))
    weights = found / scale
    length = float(np.linalg.norm(weights))
    return weights / length if length > 0 else weights


LEARNERS = ("tagprop", "alignment")
"""Weights that are learned, by name."""


def learns(given: Any) -> bool:
    """Tell whether weights are learned."""
    return isinstance(given, str) and given in LEARNERS


def given_weights(given: Mapping[str, float] | Sequence[float] | str | None, views: Sequence[str]) -> dict[str, float]:
    """Spread weights that are given over views."""
    if isinstance(given, str) and given != "equal":
        raise UserError(f"weights = {given!r}; known: a weight per view, {', '.join(map(repr, ('equal', *LEARNERS)))}")
    found = per_view("weights", 1.0 if given is None or isinstance(given, str) else given, views, NOT_NEGATIVE)
    total = sum(found.values())
    if not total > 0:
        raise UserError(f"weights {found} are all zero; give at least one view a positive weight")
    return {view: weight / total for view, weight in found.items()}


def view_weights(
    given: Mapping[str, float] | Sequence[float] | str | None, near: ViewDistances, Y: np.ndarray
) -> dict[str, float]:
    """Take the weights of views, or learn them.

    Y (n, L)
    """
    views = list(near.kernels)
    if not learns(given):
        return given_weights(given, views)
    if given == "alignment":
        learned = aligned_weights(near.blocks(near.sources), Y)
    else:
        k = min(NEIGHBORS, len(Y) - 1)
        learned = fit_tagprop(Neighborhoods.of(*near.nearest(near.sources, k, same=True), Y), Y).weights
    return given_weights(learned.tolist() if learned.any() else None, views)


def product_kernel(distances: Mapping[str, str], weights: Mapping[str, float], gamma: float) -> MultiKernel:
    """Make the kernel exp(-gamma sum_v w_v d_v), every d_v divided by its mean over the training samples."""
    used = {view: weight for view, weight in weights.items() if weight > 0}
    return MultiKernel({view: distance_kernel(distances[view], gamma) for view in used}, used, "product")
