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
    """Tell whether weights are learned.

    Parameters
    ----------
    given : object
        As `view_weights` takes it.

    Returns
    -------
    bool
        Whether samples are needed for them.

    Examples
    --------
    >>> from dmo.methods.view_weights import learns
    >>> learns("tagprop"), learns([1.0, 2.0])
    (True, False)
    """
    return isinstance(given, str) and given in LEARNERS


def given_weights(given: Mapping[str, float] | Sequence[float] | str | None, views: Sequence[str]) -> dict[str, float]:
    """Spread weights that are given over views.

    Parameters
    ----------
    given : mapping of view to float, list, "equal" or None
        None and "equal": equal ones.
    views : sequence of str
        Names of the views.

    Returns
    -------
    dict of str to float
        Of sum 1.

    Raises
    ------
    UserError
        For unknown views or names, negative weights, and where all are zero.

    Examples
    --------
    >>> from dmo.methods.view_weights import given_weights
    >>> given_weights({"hue": 3, "gist": 1}, ["hue", "gist"])
    {'hue': 0.75, 'gist': 0.25}
    """
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

    Parameters
    ----------
    given : mapping of view to float, list, {"equal", "tagprop", "alignment"} or None
        "tagprop": those under which neighbors predict labels best; "alignment": those under which the sum of distances
        aligns best with labels; else see `given_weights`.
    near : ViewDistances
        Of the training samples.
    Y : ndarray of shape (n, L), 0/1
        Their labels.

    Returns
    -------
    dict of str to float
        Of sum 1; equal where no view tells anything of the labels.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.engines.view_neighbors import ViewDistances
    >>> from dmo.methods.view_weights import view_weights
    >>> y = np.arange(40) % 2
    >>> views = {"good": y[:, None] + 0.0, "noise": np.random.default_rng(0).normal(size=(40, 1))}
    >>> near = ViewDistances.fit({"good": "l2", "noise": "l2"}, views, 0)
    >>> view_weights("alignment", near, y[:, None])["good"] > 0.9
    True
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
    """Make the kernel exp(-gamma sum_v w_v d_v), every d_v divided by its mean over the training samples.

    Parameters
    ----------
    distances : mapping of view to {"l1", "l2", "chi2"}
        d_v.
    weights : mapping of view to float
        w_v; views of weight 0 are left out.
    gamma : float
        Above 0.

    Returns
    -------
    MultiKernel
        Not yet fitted.

    Examples
    --------
    >>> from dmo.methods.view_weights import product_kernel
    >>> list(product_kernel({"hue": "chi2", "gist": "l2"}, {"hue": 1.0, "gist": 0.0}, 2.0).kernels)
    ['hue']
    """
    used = {view: weight for view, weight in weights.items() if weight > 0}
    return MultiKernel({view: distance_kernel(distances[view], gamma) for view in used}, used, "product")
