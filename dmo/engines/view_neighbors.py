"""Neighbors by the distances of several views, block by block: nothing n x n is held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dmo.blocks import Rows, row_blocks, rows
from dmo.errors import UserError
from dmo.kernels import ChiSquare, Exponential, Kernel, Laplacian, parse
from dmo.progress import stage

_QUERIES, _VOTERS = 512, 4096  # rows of a block of distances
DISTANCES = ("l1", "l2", "chi2")


def distance_kernel(distance: str, gamma: float = 1.0) -> Kernel:
    """exp(-gamma d / mean d) of a distance by name.

    "l1" and "chi2" compare histograms, rows scaled to sum 1; "l2" is the Euclidean distance of rows as they are.
    """
    if distance not in DISTANCES:
        raise UserError(f"distance {distance!r}; known: {', '.join(map(repr, DISTANCES))}")
    scale = 1.0 / gamma
    if distance == "l2":
        return Exponential(scale=scale)
    return (Laplacian if distance == "l1" else ChiSquare)(normalize="l1", scale=scale)


def named_distances(given: str | Mapping[str, str], views: list[str]) -> dict[str, str]:
    """View -> name of its distance; views that a mapping does not name take "l2"."""
    if isinstance(given, str):
        return dict.fromkeys(views, given)
    for view in given:
        if view not in views:
            raise UserError(f"distances name the view {view!r}, but there are {', '.join(map(repr, views))}")
    return {view: given.get(view, "l2") for view in views}


@dataclass(frozen=True)
class ViewDistances:
    """d_v(x, x_i) of new rows to n training rows, every view's divided by its mean over the training rows.

    Arguments: `kernels`: view -> fitted kernel exp(-d / mean d); `sources`: view -> training rows.
    """

    kernels: Mapping[str, Kernel]
    sources: Mapping[str, Rows]

    @classmethod
    def fit(cls, distances: Mapping[str, str], views: Mapping[str, Rows], random_state: Any) -> Self:
        """From the distances' names by view, on training rows."""
        fitted = {view: distance_kernel(name).fit(views[view], random_state) for view, name in distances.items()}
        return cls(fitted, {view: views[view] for view in distances})

    @property
    def n(self) -> int:
        """Training rows."""
        return next(iter(self.sources.values())).shape[0]

    def block(self, views: Mapping[str, Rows], where: slice) -> np.ndarray:
        """V x len(where) x n (float32) for the rows `where` of `views`."""
        out = np.empty((len(self.kernels), where.stop - where.start, self.n), np.float32)
        for v, (name, kernel) in enumerate(self.kernels.items()):
            new = kernel.prepare(rows(views[name], where), np.float32)
            for old in row_blocks(self.n, _VOTERS):
                found = kernel.tile(new, kernel.prepare(rows(self.sources[name], old), np.float32))
                out[v, :, old] = -np.log(np.maximum(found, np.finfo(np.float32).tiny))
        return out

    def nearest(self, views: Mapping[str, Rows], k: int, same: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """The k nearest training rows of every row by the mean of the views' distances: (m x k, V x m x k float32).

        `same`: the rows are the training rows, and none is its own neighbor.
        """
        m = next(iter(views.values())).shape[0]
        index, found = np.empty((m, k), np.int64), np.empty((len(self.kernels), m, k), np.float32)
        blocks = row_blocks(m, _QUERIES)
        with stage("neighbors of all views", len(blocks)) as advance:
            for where in blocks:
                d = self.block(views, where)
                total = d.sum(axis=0)
                if same:
                    total[np.arange(len(total)), np.arange(where.start, where.stop)] = np.inf
                best = np.argpartition(total, k - 1, axis=1)[:, :k]
                # by distance, ties by number: the same neighbors in the same order whatever the blocks
                best = np.take_along_axis(best, np.lexsort((best, np.take_along_axis(total, best, axis=1))), axis=1)
                index[where] = best
                found[:, where] = np.take_along_axis(d, best[None], axis=2)
                advance(1)
        return index, found

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The training rows and their kernels as (arrays, JSON meta) for a store."""
        arrays = {f"rows/{view}": rows(source) for view, source in self.sources.items()}
        return arrays, {"kernels": {view: kernel.to_dict() for view, kernel in self.kernels.items()}}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> Self:
        """The distances that `to_arrays` described."""
        kernels = {view: parse(kernel) for view, kernel in meta["kernels"].items()}
        return cls(kernels, {view: arrays[f"rows/{view}"] for view in kernels})
