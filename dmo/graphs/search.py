"""Exact search for nearest neighbors by blocks of matrix products, with distances recomputed in float64.

1. The search computes a key h_j - 2 x_i'x_j with h_j = |x_j|^2 for each row x_i and candidate x_j. The key differs from
   the squared distance by |x_i|^2, so it orders the candidates of x_i by distance. Most of the time is spent in matrix
   products of blocks of rows.
2. Each pair of blocks is multiplied once, because a product yields keys for the rows of both blocks. No n x n array is
   stored. Instead, each row has a heap of its k + 8 smallest keys. Most keys are discarded after one comparison.
3. Keys of dense rows have float32 precision, and suffer from cancellation if rows have large norms and small distances.
   Centering reduces the norms without changing the distances. Keys only select candidates, whose distances are then
   recomputed in float64.
4. Floating-point error of a key may hide a neighbor. The error is bounded, so the rows with possibly hidden neighbors
   are known. These rows are searched again with float64 products.
"""

from __future__ import annotations

import functools
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dmo.blocks import Rows, alike, row_blocks
from dmo.cluster.workers import grouped, merged
from dmo.errors import TooFewSamples, UserError
from dmo.graphs import loops
from dmo.graphs.distances import Ready, prepare, read
from dmo.linalg.tiles import lower_pairs
from dmo.progress import stage
from dmo.threads import blas_limited, over_rows, thread_count

Metric = Literal["euclidean", "cosine"]
_BLOCK = 1024
_SPARE = 8
"""Number of candidates in addition to the k nearest neighbors."""
_PAIRS = 64
"""Minimum number of pairs of blocks for a search on workers, which corresponds to about ten thousand rows.

A smaller search takes less time than sending the rows to the workers."""


@dataclass(frozen=True)
class Neighbors:
    """Indices and distances of the nearest neighbors of n samples.

    Parameters
    ----------
    indices : ndarray of shape (n, k), int64
        Row indices of the neighbors of each sample, with the nearest first. Missing neighbors are -1.
    distances : ndarray of shape (n, k), float64
        Distances to the neighbors, which are inf for missing neighbors.
    metric : {"euclidean", "cosine"}, default="euclidean"
        Metric of the distances.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.graphs import neighbors
    >>> found = neighbors(np.array([[0.0], [1.0], [3.0]]), k=1)
    >>> found.indices.ravel(), found.distances.ravel()
    (array([1, 0, 1]), array([1., 1., 2.]))
    """

    indices: np.ndarray
    distances: np.ndarray
    metric: Metric = "euclidean"

    @property
    def k(self) -> int:
        """Number of neighbors per sample."""
        return self.indices.shape[1]

    def __len__(self) -> int:
        return len(self.indices)


def neighbors(
    X: Rows,
    k: int,
    metric: Metric = "euclidean",
    block: int = _BLOCK,
    method: Literal["exact", "approximate"] = "exact",
    random_state: int | None = 0,
) -> Neighbors:
    """Find the k nearest neighbors of each sample among all other samples.

    The exact search selects candidates by float32 matrix products of dense rows. Samples for which floating-point error
    could hide a neighbor are searched again in float64. All distances are computed in float64. Ties are resolved by the
    lower row index. Within `dmo.cluster.connect`, the workers search large data.

    Parameters
    ----------
    X : row source of shape (n, d)
        Dense or CSR samples, which are read into memory.
    k : int
        Number of neighbors per sample, from 1 to n - 1.
    metric : {"euclidean", "cosine"}, default="euclidean"
        Distance between samples. "cosine" is one minus the cosine of two rows, or 1 if one of them is zero.
    block : int, default=1024
        Number of rows per block. Each thread holds a matrix of block x block numbers, in float32 for dense rows and in
        float64 for CSR rows.
    method : {"exact", "approximate"}, default="exact"
        Search method. "approximate" requires pynndescent, and `recall` measures its accuracy.
    random_state : int, default=0
        Seed of the approximate search.

    Returns
    -------
    Neighbors
        Indices and distances of the neighbors of each sample.

    Raises
    ------
    UserError
        If k is not from 1 to n - 1, X is not finite, or the metric or method is unknown.
    ImportError
        If method="approximate" and pynndescent is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.graphs import neighbors
    >>> X = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 3.0], [1.0, 3.0]])
    >>> neighbors(X, k=1).indices.ravel()
    array([1, 0, 3, 2])
    """
    X = read(X)
    n = X.shape[0]
    _check(n, k, metric)
    if method not in ("exact", "approximate"):
        raise UserError(f"neighbors: method = {method!r}; known: exact, approximate")
    if method == "approximate":
        return Neighbors(*_descend(X, k, metric, random_state), metric)
    ready = prepare(X, metric)
    m = min(k + _SPARE, n - 1)
    pairs = [(j, i) for i, j in lower_pairs(n, block)]
    found = merged(_scan, ready, pairs, _merge, m, block) if len(pairs) >= _PAIRS else None
    rows, keys = _in_threads(ready, pairs, m, block) if found is None else found
    return _finish(ready, ready, rows, keys, k, True)


def nearest(X_new: Rows, X: Rows, k: int, metric: Metric = "euclidean") -> Neighbors:
    """Find the k nearest neighbors of new samples among known samples.

    A known sample that equals the new sample is also returned as its neighbor.

    Parameters
    ----------
    X_new : row source of shape (m, d)
        New dense or CSR samples, which are read into memory.
    X : row source of shape (n, d)
        Known samples, which are read into memory.
    k : int
        Number of neighbors per new sample, from 1 to n.
    metric : {"euclidean", "cosine"}, default="euclidean"
        Distance between samples. "cosine" is one minus the cosine of two rows, or 1 if one of them is zero.

    Returns
    -------
    Neighbors
        Row indices of the neighbors in X, and distances to them.

    Raises
    ------
    UserError
        If k is not from 1 to n, the numbers of features differ, an input is not finite, or the metric is unknown.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.graphs import nearest
    >>> nearest(np.array([[0.9]]), np.array([[0.0], [1.0], [3.0]]), k=2).indices
    array([[1, 0]])
    """
    X = read(X)
    X_new = read(alike(read(X_new), X))
    if X_new.shape[1] != X.shape[1]:
        raise UserError(f"nearest: the new rows have {X_new.shape[1]} features, the known rows {X.shape[1]}")
    _check(X.shape[0] + 1, k, metric)
    ready = prepare(X, metric)
    new = prepare(X_new, metric, like=ready)
    m = min(k + _SPARE, len(ready))
    return _finish(new, ready, *_search(new, ready, m), k, False)


def recall(found: Neighbors, X: Rows, sample: int = 500, random_state: int | None = 0) -> float:
    """Compute the fraction of correct neighbors in the result of an approximate search.

    A neighbor is correct if its distance is at most the distance of the k-th exact neighbor.

    Parameters
    ----------
    found : Neighbors
        Result of the approximate search, with k neighbors per sample.
    X : row source of shape (n, d)
        Samples among which the neighbors were searched for.
    sample : int, default=500
        Number of random samples whose neighbors are checked.
    random_state : int, default=0
        Seed of the choice of these samples.

    Returns
    -------
    float
        Fraction of correct neighbors, from 0 to 1.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.graphs import neighbors, recall
    >>> X = np.random.default_rng(0).normal(size=(50, 3))
    >>> recall(neighbors(X, k=5), X)
    1.0
    """
    X = read(X)
    n, k = found.indices.shape
    picked = np.random.default_rng(random_state).choice(n, min(sample, n), replace=False)
    exact = nearest(X[picked], X, min(k + 1, n), found.metric)
    foreign = exact.indices != picked[:, None]
    # A sample may be missing among its own neighbors if other samples are equal to it.
    foreign[foreign.all(axis=1), -1] = False
    true = exact.distances[foreign].reshape(len(picked), k)
    mine = found.distances[picked]
    return float((mine <= true[:, -1:] * (1 + 1e-6) + 1e-12).mean())


def _check(n: int, k: int, metric: str) -> None:
    if metric not in ("euclidean", "cosine"):
        raise UserError(f"neighbors: metric = {metric!r}; known: euclidean, cosine")
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 1 <= k <= n - 1:
        raise TooFewSamples(f"neighbors: k = {k!r} of {n} samples; expected a whole number from 1 to {n - 1}")


def _heaps(n: int, m: int, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    return np.full((n, m), -1, np.int64), np.full((n, m), np.inf, dtype)


def _scan(
    ready: Ready, pairs: list[tuple[int, int]], m: int, block: int, advance: Any = None
) -> tuple[np.ndarray, np.ndarray]:
    """Find the m best candidates of each row by products of the given pairs of blocks."""
    slices = row_blocks(len(ready), block)
    rows, keys = _heaps(len(ready), m, ready.dtype)
    held: tuple[int, Any] = (-1, None)
    for i, j in pairs:
        # The pairs are sorted by their second block, so reuse the transpose of this block.
        if held[0] != j:
            held = j, ready.transposed(slices[j])
        S = ready.products(slices[i], held[1])
        r, c, h = slices[i].start, slices[j].start, ready.h
        _over(S.shape[0], loops.scan_rows, S, (h, i == j, keys, rows, r, c))
        if i != j:
            _over(S.shape[1], loops.scan_columns, S, (h, keys, rows, r, c))
        if advance is not None:
            advance(1)
    return rows, keys


def _in_threads(ready: Ready, pairs: list[tuple[int, int]], m: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Distribute the pairs of blocks over threads, and merge the candidates that each thread finds."""
    parts = grouped(pairs, thread_count())
    with stage("neighbors (block pairs)", len(pairs)) as advance:
        if len(parts) == 1:
            return _scan(ready, pairs, m, block, advance)
        with blas_limited(1), ThreadPoolExecutor(len(parts)) as pool:
            tasks = [pool.submit(_scan, ready, part, m, block, advance) for part in parts]
            return functools.reduce(_merge, (task.result() for task in tasks))


def _over(n: int, loop: Any, S: np.ndarray, rest: tuple[Any, ...]) -> None:
    over_rows(lambda start, stop: loop(S, start, stop, *rest), n, least=64)


def _search(new: Ready, ready: Ready, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the m best candidates among the known samples `ready` for each sample of `new`."""
    rows, keys = _heaps(len(new), m, ready.dtype)
    for columns in row_blocks(len(ready), _BLOCK):
        inner = ready.transposed(columns)
        for where in row_blocks(len(new), _BLOCK):
            S = new.products(where, inner)
            rest = (ready.h, False, keys, rows, where.start, columns.start)
            _over(S.shape[0], loops.scan_rows, S, rest)
    return rows, keys


def _finish(new: Ready, ready: Ready, rows: np.ndarray, keys: np.ndarray, k: int, own: bool) -> Neighbors:
    """Return the k nearest neighbors of each row, after a second search for rows whose neighbors may be missing."""
    indices, squared = _sorted(new, ready, rows)
    reach = squared[:, k - 1]
    rounding = max(new.rounding, ready.rounding)
    # If all samples are candidates, no neighbor can be missing.
    if rounding and rows.shape[1] < len(ready) - own:
        # Suppose that a sample y is closer to x than the k-th candidate, whose squared distance is `reach`. The exact
        # key of y is then below reach - |x|^2. If y is not a candidate, its computed key exceeds the worst stored key,
        # so that the error of the key is at least the difference of these two values. The error of a key is at most
        # `rounding` times radius^2, because |y| <= radius.
        radius = new.length + np.sqrt(reach)
        doubt = rounding * radius**2 > keys.max(axis=1) - (reach - new.h64)
        doubt &= new.scale > 0
        again = np.flatnonzero(doubt)
        for part in row_blocks(len(again), 1024):
            _again(new, ready, again[part], indices, squared, own)
    indices, squared = indices[:, :k], squared[:, :k]
    return Neighbors(indices, ready.as_distances(squared), ready.metric)


def _again(
    new: Ready,
    ready: Ready,
    picked: np.ndarray,
    indices: np.ndarray,
    squared: np.ndarray,
    own: bool,
) -> None:
    """Search for the neighbors of the rows `picked` again, with float64 products."""
    # To save memory, convert the known samples to float64 block by block, and only the rows `picked` at once.
    some = new.take(picked).doubled()
    m = min(indices.shape[1] + own, len(ready))
    rows, _ = _search(some, ready.like64(), m)
    rows[rows == (picked[:, None] if own else -2)] = -1
    found, values = _sorted(some, ready, rows)
    indices[picked], squared[picked] = found[:, : indices.shape[1]], values[:, : indices.shape[1]]


def _sorted(new: Ready, ready: Ready, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort the candidates of each row by squared float64 distance and then by row index."""
    squared = ready.squared_to(new, rows)
    last = np.where(rows < 0, np.iinfo(np.int64).max, rows)
    order = np.lexsort((last, squared), axis=1)
    return np.take_along_axis(rows, order, 1), np.take_along_axis(squared, order, 1)


def _merge(a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    rows, keys = a[0].copy(), a[1].copy()
    loops.merge(keys, rows, b[1], b[0], 0, len(rows))
    return rows, keys


def _descend(X: Any, k: int, metric: Any, random_state: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Find the indices and distances of approximate nearest neighbors with pynndescent.

    Source: Dong, Charikar, Li 2011.
    """
    try:
        from pynndescent import NNDescent
    except ImportError as error:
        raise ImportError(
            "neighbors: method='approximate' needs pynndescent, which is not installed; run: pip install "
            "dmo-learn[approximate], or use method='exact'"
        ) from error
    n = X.shape[0]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Failed to correctly find n_neighbors.*")
        index = NNDescent(X, metric=metric, n_neighbors=min(k + 1, n), random_state=random_state, n_jobs=thread_count())
    found = index.neighbor_graph[0].astype(np.int64)
    found[found == np.arange(n)[:, None]] = -1
    ready: Ready = prepare(X, metric)
    squared = ready.squared_to(ready, found)
    order = np.argsort(squared, axis=1, kind="stable")[:, :k]
    indices = np.take_along_axis(found, order, 1)
    return indices, ready.as_distances(np.take_along_axis(squared, order, 1))
