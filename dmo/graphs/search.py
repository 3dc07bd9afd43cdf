"""Exact search of nearest neighbors by blocks of matrix products, with distances recomputed in float64.

1. |x_i - x_j|^2 = |x_i|^2 + |x_j|^2 - 2 x_i'x_j, and |x_i|^2 is the same for all candidates of row i. Therefore, the
   key h_j - 2 x_i'x_j with h_j = |x_j|^2 orders the candidates, and most of the work is one matrix product per tile.
2. A tile is used for its rows and its columns, so each pair of blocks is multiplied once. There is no n x n array: each
   row has a heap of its k + `_SPARE` best keys. For most entries of a tile, one comparison with the root is enough.
3. Keys of dense rows are float32 and suffer from cancellation if rows are long and near each other. Rows are centered
   first, which shortens them without changing distances. Keys only select candidates, whose distances are then
   recomputed from differences in float64 (`_finish`).
4. A neighbor is lost if its rounded key is worse than the last candidate's. The error of a key is bounded
   (`Ready.rounding`), so the rows where this is possible are known. They are searched again with float64 products
   (`_again`).
"""

from __future__ import annotations

import functools
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dmo.blocks import Rows, alike, row_blocks
from dmo.cluster import current_client
from dmo.cluster.workers import Broadcast, grouped, retried, submit
from dmo.errors import TooFewSamples, UserError
from dmo.graphs import loops
from dmo.graphs.distances import Ready, prepare, read
from dmo.linalg.tiles import lower_pairs
from dmo.progress import stage
from dmo.threads import blas_limited, over_rows, thread_count

Metric = Literal["euclidean", "cosine"]
_BLOCK = 1024  # rows and columns of a tile
_SPARE = 8
"""Number of additional candidates beyond k, for which float64 distances are computed."""
_PAIRS = 64
"""Minimum number of block pairs for a search on workers (some ten thousand rows).

Smaller searches finish before the rows are sent."""


@dataclass(frozen=True)
class Neighbors:
    """Nearest rows of each row.

    Parameters
    ----------
    indices : ndarray of shape (n, k), int64
        Row indices, nearest first; -1 for missing neighbors.
    distances : ndarray of shape (n, k), float64
        Distances; inf for missing neighbors.
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
        """Number of neighbors of each row."""
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
    """Find the k nearest other rows of each row; ties are resolved by the lower row index.

    Dense rows are centered and multiplied in float32. Rows for which floating-point error could hide a neighbor are
    searched again in float64, and all distances are computed in float64. Inside `dmo.cluster.connect`, the workers
    share the exact search of large data. Otherwise, the threads of the client process are used.

    Parameters
    ----------
    X : row source of shape (n, d)
        Rows, dense or CSR, read into memory.
    k : int
        Number of neighbors of each row, 1..n-1.
    metric : {"euclidean", "cosine"}, default="euclidean"
        "cosine" is 1 - cos. The distance of a row of zeros to any row is 1.
    block : int, default=1024
        Number of rows and columns of a tile. Each thread uses block x block numbers (float32 for dense rows, otherwise
        float64).
    method : {"exact", "approximate"}, default="exact"
        "approximate" requires pynndescent. `recall` measures its accuracy.
    random_state : int, default=0
        Seed of the approximate search.

    Returns
    -------
    Neighbors
        Row indices and distances, n x k.

    Raises
    ------
    UserError
        If k is outside 1..n-1, values are not finite, or the metric or method is unknown.
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
    client = current_client()
    if client is None or len(pairs) < _PAIRS:
        rows, keys = _in_threads(ready, pairs, m, block)
    else:
        rows, keys = _on_cluster(client, ready, pairs, m, block)
    return _finish(ready, ready, rows, keys, k, True)


def nearest(X_new: Rows, X: Rows, k: int, metric: Metric = "euclidean") -> Neighbors:
    """Find the k nearest known rows of each new row, including known rows that are equal to the new row.

    Parameters
    ----------
    X_new : row source of shape (m, d)
        New rows, dense or CSR, read into memory.
    X : row source of shape (n, d)
        Known rows, read into memory.
    k : int
        Number of neighbors of each new row, 1..n.
    metric : {"euclidean", "cosine"}, default="euclidean"
        "cosine" is 1 - cos. The distance of a row of zeros to any row is 1.

    Returns
    -------
    Neighbors
        Row indices of X and distances, m x k.

    Raises
    ------
    UserError
        If k is outside 1..n, the numbers of features differ, values are not finite, or the metric is unknown.

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
    """Compute the fraction of the true nearest rows in a neighbor list; rows as near as the k-th one count as true.

    Parameters
    ----------
    found : Neighbors
        Neighbor list, n x k.
    X : row source of shape (n, d)
        Rows of the list.
    sample : int, default=500
        Number of random rows to check.
    random_state : int, default=0
        Seed of the sample.

    Returns
    -------
    float
        Fraction, 0..1.

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
    foreign[foreign.all(axis=1), -1] = False  # the row itself may be missing if many rows are equal
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
    """Find the best m candidates of each row in the given pairs of blocks (row block <= column block)."""
    slices = row_blocks(len(ready), block)
    rows, keys = _heaps(len(ready), m, ready.dtype)
    held: tuple[int, Any] = (-1, None)
    for i, j in pairs:
        if held[0] != j:  # pairs are sorted by column block, so a transposed block is used for many tiles
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
    """Distribute the block pairs over independent threads, each with its own candidates, and merge the candidates."""
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
    """Find the best m candidates of the rows `new` among `ready`."""
    rows, keys = _heaps(len(new), m, ready.dtype)
    for columns in row_blocks(len(ready), _BLOCK):
        inner = ready.transposed(columns)
        for where in row_blocks(len(new), _BLOCK):
            S = new.products(where, inner)
            rest = (ready.h, False, keys, rows, where.start, columns.start)
            _over(S.shape[0], loops.scan_rows, S, rest)
    return rows, keys


def _finish(new: Ready, ready: Ready, rows: np.ndarray, keys: np.ndarray, k: int, own: bool) -> Neighbors:
    """Compute float64 distances of the candidates, search doubtful rows again, and return the k nearest in order."""
    indices, squared = _sorted(new, ready, rows)
    reach = squared[:, k - 1]
    rounding = max(new.rounding, ready.rounding)
    if rounding and rows.shape[1] < len(ready) - own:  # otherwise all rows are candidates, and none is lost
        # A neighbor nearer than the k-th has a true key below reach - |x|^2, and |y| <= |x| + sqrt(reach) = radius.
        # It is missing only if its rounded key is above the worst stored key, which requires an error of at least
        # this gap.
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
    """Search the rows `picked` again in float64, with one additional candidate for the row itself."""
    some = new.take(picked).doubled()  # known rows are converted block by block, because all may not fit in float64
    m = min(indices.shape[1] + own, len(ready))
    rows, _ = _search(some, ready.like64(), m)
    rows[rows == (picked[:, None] if own else -2)] = -1
    found, values = _sorted(some, ready, rows)
    indices[picked], squared[picked] = found[:, : indices.shape[1]], values[:, : indices.shape[1]]


def _sorted(new: Ready, ready: Ready, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort candidates (n x m) by squared float64 distance, ties by row index; missing candidates are last."""
    squared = ready.squared_to(new, rows)
    last = np.where(rows < 0, np.iinfo(np.int64).max, rows)
    order = np.lexsort((last, squared), axis=1)
    return np.take_along_axis(rows, order, 1), np.take_along_axis(squared, order, 1)


def _merge(a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    rows, keys = a[0].copy(), a[1].copy()
    loops.merge(keys, rows, b[1], b[0], 0, len(rows))
    return rows, keys


def _on_cluster(
    client: Any, ready: Ready, pairs: list[tuple[int, int]], m: int, block: int
) -> tuple[np.ndarray, np.ndarray]:
    """Distribute the block pairs over the workers' threads, and merge their candidates by tree reduction."""
    shared = Broadcast(client, ready)

    def work() -> tuple[np.ndarray, np.ndarray]:
        groups = grouped(pairs, sum(client.nthreads().values()))
        parts = [submit(client, _scan, shared.future(), part, m, block) for part in groups]
        while len(parts) > 1:
            odd = [parts[-1]] if len(parts) % 2 else []
            parts = [submit(client, _merge, a, b) for a, b in zip(parts[0:-1:2], parts[1::2])] + odd
        return parts[0].result()

    return retried(client, work, shared.forget)


def _descend(X: Any, k: int, metric: Any, random_state: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Find approximate k nearest other rows with pynndescent; return indices and float64 distances (n x k).

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
