"""Neighbors by the distances of several views, block by block: nothing n x n is held."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np

from dmo.blocks import Rows, Subset, row_blocks, rows
from dmo.cluster.workers import each
from dmo.errors import UserError
from dmo.kernels import ChiSquare, Exponential, Kernel, Laplacian, log_distance, parse
from dmo.progress import stage

QUERIES, _VOTERS = 512, 4096  # rows of a block of distances
DISTANCES = ("l1", "l2", "chi2")
_ZERO = 1e-6  # distances, in means, below which rows are equal up to the rounding of |x|^2 + |y|^2 - 2 xy


def distance_kernel(distance: str, gamma: float = 1.0) -> Kernel:
    """Make the kernel exp(-gamma d / mean d) of a distance by name.

    Parameters
    ----------
    distance : {"l1", "l2", "chi2"}
        "l1" and "chi2" compare histograms, rows scaled to sum 1; "l2" is the Euclidean distance of rows as they are.
    gamma : float, default=1.0
        Sharpness, above 0.

    Returns
    -------
    Kernel
        Not yet fitted.

    Raises
    ------
    UserError
        For an unknown distance.

    Examples
    --------
    >>> from dmo.engines.view_neighbors import distance_kernel
    >>> type(distance_kernel("chi2")).__name__
    'ChiSquare'
    """
    if distance not in DISTANCES:
        raise UserError(f"distance {distance!r}; known: {', '.join(map(repr, DISTANCES))}")
    scale = 1.0 / gamma
    if distance == "l2":
        return Exponential(scale=scale)
    return (Laplacian if distance == "l1" else ChiSquare)(normalize="l1", scale=scale)


def named_distances(given: str | Mapping[str, str], views: Mapping[str, Rows]) -> dict[str, str]:
    """Spread names of distances over views.

    Parameters
    ----------
    given : str or mapping of view to str
        One for all views, or some by view.
    views : mapping of str to row source of shape (n, d)
        The views.

    Returns
    -------
    dict of str to str
        Name of every view's distance. "auto", and every view that a mapping does not name: "chi2" where the rows are
        of a feature store that calls them histograms, else "l2".

    Raises
    ------
    UserError
        For a view that is unknown.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.engines.view_neighbors import named_distances
    >>> named_distances({"hue": "l1"}, {"hue": np.ones((2, 3)), "gist": np.ones((2, 4))})
    {'hue': 'l1', 'gist': 'l2'}
    """
    chosen = dict.fromkeys(views, given) if isinstance(given, str) else dict.fromkeys(views, "auto") | dict(given)
    for view in chosen:
        if view not in views:
            raise UserError(f"distances name the view {view!r}, but there are {', '.join(map(repr, views))}")
    return {view: _by_kind(views[view]) if name == "auto" else name for view, name in chosen.items()}


def _by_kind(source: Rows) -> str:
    """The distance of a view where none is named: by what its store says of its rows."""
    while isinstance(source, Subset):
        source = source.source
    return "chi2" if getattr(source, "histogram", False) else "l2"


@dataclass(frozen=True)
class ViewDistances:
    """Distances d_v(x, x_i) of new rows to n training rows, every view's divided by its mean over the training rows.

    Parameters
    ----------
    kernels : mapping of str to Kernel
        Fitted kernels exp(-d / mean d) by view.
    sources : mapping of str to row source of shape (n, d)
        The training rows by view.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.engines.view_neighbors import ViewDistances
    >>> views = {"x": np.array([[0.0], [1.0], [5.0]])}
    >>> index, found = ViewDistances.fit({"x": "l2"}, views, 0).nearest(views, k=1, same=True)
    >>> index.ravel().tolist()
    [1, 0, 1]
    """

    kernels: Mapping[str, Kernel]
    sources: Mapping[str, Rows]

    @classmethod
    def fit(cls, distances: Mapping[str, str], views: Mapping[str, Rows], random_state: Any) -> Self:
        """Fit distances on training rows.

        Parameters
        ----------
        distances : mapping of str to str
            Names by view.
        views : mapping of str to row source of shape (n, d)
            The training rows by view.
        random_state : int or None
            Seed of the samples that mean distances are taken from.

        Returns
        -------
        ViewDistances
            The distances.
        """
        fitted = {view: distance_kernel(name).fit(views[view], random_state) for view, name in distances.items()}
        return cls(fitted, {view: views[view] for view in distances})

    @property
    def n(self) -> int:
        """Training rows."""
        return next(iter(self.sources.values())).shape[0]

    def block(self, views: Mapping[str, Rows], where: slice) -> np.ndarray:
        """Work out the distances of some rows.

        Parameters
        ----------
        views : mapping of str to row source of shape (m, d)
            Rows by view.
        where : slice
            Which of them.

        Returns
        -------
        ndarray of shape (V, len(where), n), float32
            Distances.
        """
        out = np.empty((len(self.kernels), where.stop - where.start, self.n), np.float32)
        for v, (name, kernel) in enumerate(self.kernels.items()):
            new = kernel.prepare(rows(views[name], where), np.float64)
            for old in row_blocks(self.n, _VOTERS):
                found = log_distance(kernel.tile(new, kernel.prepare(rows(self.sources[name], old), np.float64)))
                # float64 rounded to float32: equal distances are equal, whether rows are dense or sparse
                out[v, :, old] = np.where(found < _ZERO, 0.0, found)
        return out

    def blocks(self, views: Mapping[str, Rows]) -> Iterator[tuple[slice, np.ndarray]]:
        """Go through the distances of all rows, block by block.

        Parameters
        ----------
        views : mapping of str to row source of shape (m, d)
            Rows by view.

        Yields
        ------
        slice
            Rows.
        ndarray of shape (V, rows, n), float32
            Their distances.
        """
        parts = row_blocks(next(iter(views.values())).shape[0], QUERIES)
        with stage("neighbors of all views", len(parts)) as advance:
            for where in parts:
                yield where, self.block(views, where)
                advance(1)

    def nearest(self, views: Mapping[str, Rows], k: int, same: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Find the nearest training rows of every row, by the mean of the views' distances.

        Blocks of rows are tasks on the workers of the current cluster, where there is one.

        Parameters
        ----------
        views : mapping of str to row source of shape (m, d)
            Rows by view.
        k : int
            Neighbors.
        same : bool, default=False
            The rows are the training rows, and none is its own neighbor.

        Returns
        -------
        index : ndarray of shape (m, k), int
            Numbers of the training rows, nearest first.
        distances : ndarray of shape (V, m, k), float32
            Their distances.
        """
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
        # by distance, ties by number: the same neighbors in the same order whatever the blocks
        best = np.take_along_axis(best, np.lexsort((best, np.take_along_axis(total, best, axis=1))), axis=1)
        return best, np.take_along_axis(d, best[None], axis=2)

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Describe the distances for a model store.

        Returns
        -------
        arrays : dict of str to ndarray or csr_array
            The training rows.
        meta : dict
            Its JSON.
        """
        arrays = {f"rows/{view}": rows(source) for view, source in self.sources.items()}
        return arrays, {"kernels": {view: kernel.to_dict() for view, kernel in self.kernels.items()}}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> Self:
        """Make the distances that `to_arrays` described.

        Parameters
        ----------
        arrays : mapping of str to ndarray or csr_array
            The training rows.
        meta : mapping
            Its JSON.

        Returns
        -------
        ViewDistances
            The distances.
        """
        kernels = {view: parse(kernel) for view, kernel in meta["kernels"].items()}
        return cls(kernels, {view: arrays[f"rows/{view}"] for view in kernels})
