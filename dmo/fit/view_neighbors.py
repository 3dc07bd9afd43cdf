"""Nearest neighbors by distances in several views, computed block by block without an n x n matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np

from dmo.blocks import Rows, Subset, row_blocks, rows
from dmo.cluster.workers import each
from dmo.errors import UserError
from dmo.fit.training_rows import KeepsRows
from dmo.kernels import ChiSquare, Exponential, Kernel, Laplacian, log_distance, parse
from dmo.progress import stage

QUERIES, _VOTERS = 512, 4096  # Maximum number of rows and of columns in a block of distances.
DISTANCES = ("l1", "l2", "chi2")
_ZERO = 1e-6  # Fraction of the mean distance below which a distance is a rounding error between equal rows.


def distance_kernel(distance: str, gamma: float = 1.0) -> Kernel:
    """Return the kernel exp(-gamma d / mean d) of a distance d, given by its name."""
    if distance not in DISTANCES:
        raise UserError(f"distance = {distance!r}, expected one of {', '.join(map(repr, DISTANCES))}")
    scale = 1.0 / gamma
    if distance == "l2":
        return Exponential(scale=scale)
    return (Laplacian if distance == "l1" else ChiSquare)(normalize="l1", scale=scale)


def named_distances(given: str | Mapping[str, str], views: Mapping[str, Rows]) -> dict[str, str]:
    """Choose the name of the distance for each view, and resolve "auto"."""
    chosen = dict.fromkeys(views, given) if isinstance(given, str) else dict.fromkeys(views, "auto") | dict(given)
    for view in chosen:
        if view not in views:
            raise UserError(f"distances name the view {view!r}, expected one of {', '.join(map(repr, views))}")
    return {view: _by_kind(views[view]) if name == "auto" else name for view, name in chosen.items()}


def _by_kind(source: Rows) -> str:
    """Choose "chi2" if the store of a view describes it as a histogram, otherwise "l2"."""
    while isinstance(source, Subset):
        source = source.source
    return "chi2" if getattr(source, "histogram", False) else "l2"


@dataclass(frozen=True)
class ViewDistances(KeepsRows):
    """Distances of new rows to n training rows in each view, divided by the mean distance of the training rows."""

    kernels: Mapping[str, Kernel]  # Fitted kernel exp(-d / mean d) of each view.
    sources: Mapping[str, Rows]

    @classmethod
    def fit(cls, distances: Mapping[str, str], views: Mapping[str, Rows], random_state: Any) -> Self:
        """Fit the kernels of the distances to training rows of shape (n, d)."""
        fitted = {view: distance_kernel(name).fit(views[view], random_state) for view, name in distances.items()}
        return cls(fitted, {view: views[view] for view in distances})

    @property
    def n(self) -> int:
        """Number of training rows."""
        return next(iter(self.sources.values())).shape[0]

    def block(self, views: Mapping[str, Rows], where: slice) -> np.ndarray:
        """Compute the distances of the m rows `where` to all n training rows, as an array (views, m, n)."""
        out = np.empty((len(self.kernels), where.stop - where.start, self.n), np.float32)
        for v, (name, kernel) in enumerate(self.kernels.items()):
            new = kernel.prepare(kernel.part(views[name], where), np.float64)
            for old in row_blocks(self.n, _VOTERS):
                voters = kernel.prepare(kernel.part(self.sources[name], old), np.float64)
                found = log_distance(kernel.tile(new, voters))
                # Distances of dense and sparse rows differ by float64 rounding errors, which rounding to float32
                # removes.
                out[v, :, old] = np.where(found < _ZERO, 0.0, found)
        return out

    def blocks(self, views: Mapping[str, Rows]) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield slices of the new rows, with the distances of these rows as arrays of shape (views, rows, n)."""
        parts = row_blocks(next(iter(views.values())).shape[0], QUERIES)
        with stage("neighbors of all views", len(parts)) as advance:
            for where in parts:
                yield where, self.block(views, where)
                advance(1)

    def nearest(self, views: Mapping[str, Rows], k: int, same: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Find the k nearest training rows of m new rows by the mean distance over the views.

        Return indices (m x k) and distances (views x m x k). With `same`, a training row is not its own neighbor.
        """
        # Each block of rows is one task, on the workers of the current cluster if there is one.
        parts = row_blocks(next(iter(views.values())).shape[0], QUERIES)
        work = partial(self._nearest, views, parts, k, same)
        found = [one for _, one in each("neighbors of all views", work, range(len(parts)))]
        return np.concatenate([index for index, _ in found]), np.concatenate([d for _, d in found], axis=1)

    def _nearest(
        self, views: Mapping[str, Rows], parts: Sequence[slice], k: int, same: bool, number: int
    ) -> tuple[np.ndarray, np.ndarray]:
        where = parts[number]
        d = self.block(views, where)
        total = d.sum(axis=0)
        if same:
            total[np.arange(len(total)), np.arange(where.start, where.stop)] = np.inf
        best = np.argpartition(total, k - 1, axis=1)[:, :k]
        # Sort by distance and break ties by index, so that the result does not depend on the block size.
        best = np.take_along_axis(best, np.lexsort((best, np.take_along_axis(total, best, axis=1))), axis=1)
        return best, np.take_along_axis(d, best[None], axis=2)

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays = {f"rows/{view}": rows(source) for view, source in self.sources.items()}
        return arrays, {"kernels": {view: kernel.to_dict() for view, kernel in self.kernels.items()}}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> Self:
        kernels = {view: parse(kernel) for view, kernel in meta["kernels"].items()}
        return cls(kernels, {view: arrays[f"rows/{view}"] for view in kernels})
