"""Weights of views: given, equal, or learned from the distances of the training samples; and the kernel of the product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dmo.engines.view_neighbors import ViewDistances, distance_kernel
from dmo.errors import UserError
from dmo.kernels.multikernel import MultiKernel
from dmo.methods.alignment import aligned_weights
from dmo.methods.tagprop import NEIGHBORS, Neighborhoods, fit_tagprop
from dmo.validation import NOT_NEGATIVE, per_view

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
