"""Neighbor lists as sparse matrices: Laplacians, geodesic distances, weights of edges, reconstruction weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import scipy.sparse.csgraph
import scipy.stats
from scipy.sparse import csr_array

from dmo.blocks import Rows, row_blocks
from dmo.errors import UserError
from dmo.graphs import loops
from dmo.graphs.distances import Matrix, distances_to, prepare, read
from dmo.graphs.search import Neighbors, neighbors
from dmo.threads import over_rows

Mode = Literal["union", "mutual", "directed", "sum"]


def adjacency(neighbors: Neighbors, mode: Mode = "union") -> csr_array:
    """Turn a neighbor list into a graph; the one place where lists become symmetric.

    Parameters
    ----------
    neighbors : Neighbors
        The list, n x k.
    mode : {"union", "mutual", "directed", "sum"}, default="union"
        "directed": 1 where j is among i's neighbors; "union": 1 where either is among the other's; "mutual": 1 where both
        are; "sum": the directed matrix plus its transpose, which is 2 where "mutual" has 1, and the "union" elsewhere.

    Returns
    -------
    csr_array of shape (n, n), float64
        Columns are sorted.

    Raises
    ------
    UserError
        For another mode.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.graphs import adjacency, neighbors
    >>> found = neighbors(np.array([[0.0], [1.0], [3.0]]), k=1)
    >>> adjacency(found, "sum").toarray()
    array([[0., 2., 0.],
           [2., 0., 1.],
           [0., 1., 0.]])
    """
    if mode not in ("union", "mutual", "directed", "sum"):
        raise UserError(f"adjacency: mode = {mode!r}; known: union, mutual, directed, sum")
    n, k = neighbors.indices.shape
    there = neighbors.indices.ravel() >= 0
    rows = np.repeat(np.arange(n), k)[there]
    A = csr_array((np.ones(len(rows)), (rows, neighbors.indices.ravel()[there])), shape=(n, n))
    A.sum_duplicates()
    if mode == "directed":
        return A
    B = csr_array(A.T)
    made = csr_array(A.maximum(B) if mode == "union" else A.multiply(B) if mode == "mutual" else A + B)
    made.sort_indices()
    return made


def check_symmetric(W: Any, n: int) -> csr_array:
    """Take a user's weight matrix, where it is one of the samples, finite and symmetric.

    Parameters
    ----------
    W : array-like or sparse of shape (n, n)
        The weights.
    n : int
        Number of samples.

    Returns
    -------
    csr_array of shape (n, n), float64
        The same weights, columns sorted.

    Raises
    ------
    UserError
        Where it is not n x n, finite and symmetric (to 1e-8 of its largest entry).

    Examples
    --------
    >>> from dmo.graphs import check_symmetric
    >>> check_symmetric([[0, 2], [2, 0]], n=2).nnz
    2
    """
    given = csr_array(W if scipy.sparse.issparse(W) else np.asarray(W), dtype=np.float64)
    if given.shape != (n, n):
        raise UserError(
            f"the weight matrix has shape {given.shape}, the samples are {n}; pass one row and one column per sample"
        )
    if not np.isfinite(given.data).all():
        raise UserError("the weight matrix holds NaN or infinity; pass finite weights, 0 for none")
    gap = abs(given - given.T)
    if gap.nnz and gap.max() > 1e-8 * abs(given).max():
        worst = gap.tocoo()
        i, j = (int(c[worst.data.argmax()]) for c in worst.coords)
        raise UserError(
            f"the weight matrix is not symmetric: {given[i, j]:g} at ({i}, {j}), {given[j, i]:g} at ({j}, {i}); "
            f"pass (W + W.T) / 2 if that is what you mean"
        )
    given.sort_indices()
    return given


def laplacian(W: csr_array, normalized: bool = False) -> csr_array:
    """The Laplacian diag(W 1) - W of a graph.

    Parameters
    ----------
    W : csr_array of shape (n, n)
        Edge weights.
    normalized : bool, default=False
        D^-1/2 (D - W) D^-1/2 with D = diag(W 1), whose rows are 0 where W's are.

    Returns
    -------
    csr_array of shape (n, n), float64
        The Laplacian.

    Raises
    ------
    UserError
        For a normalized Laplacian of weights whose row sums are negative.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.sparse import csr_array
    >>> from dmo.graphs import laplacian
    >>> laplacian(csr_array(np.array([[0.0, 2.0], [2.0, 0.0]]))).toarray()
    array([[ 2., -2.],
           [-2.,  2.]])
    """
    W = csr_array(W)
    degree = np.asarray(W.sum(axis=1), np.float64).ravel()
    L = csr_array(scipy.sparse.diags_array(degree) - W)
    if not normalized:
        return L
    if (degree < 0).any():
        i = int(degree.argmin())
        raise UserError(
            f"laplacian: the weights of sample {i} sum to {degree[i]:.3g}; a normalized Laplacian needs sums that are "
            f"not negative"
        )
    root = scipy.sparse.diags_array(1 / np.sqrt(np.where(degree > 0, degree, 1.0)))
    return csr_array(root @ L @ root)


def geodesics(graph: csr_array) -> np.ndarray:
    """Lengths of the shortest paths between all pairs of samples, by Dijkstra's algorithm.

    Parameters
    ----------
    graph : csr_array of shape (n, n)
        Lengths of the edges, as `weigh(graph, X, "distance")` gives them; a stored 0 is an edge.

    Returns
    -------
    ndarray of shape (n, n), float64
        The lengths, dense: 8 n^2 bytes.

    Raises
    ------
    UserError
        For negative lengths, and for a disconnected graph, with the sizes of its components.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.graphs import adjacency, geodesics, neighbors, weigh
    >>> X = np.array([[0.0], [1.0], [3.0]])
    >>> geodesics(weigh(adjacency(neighbors(X, k=1)), X, "distance"))
    array([[0., 1., 3.],
           [1., 0., 2.],
           [3., 2., 0.]])
    """
    graph = csr_array(graph, dtype=np.float64)
    if graph.nnz and graph.data.min() < 0:
        raise UserError(f"geodesics: the graph has a length of {graph.data.min():.3g}; lengths must not be negative")
    check_connected(graph)
    # One search per sample with a heap of its edges, n^2 k log n: with k neighbors each far below Floyd and Warshall's n^3.
    # Lengths of 0 between repeated rows are stored entries, which SciPy's sparse graphs keep as edges and dense ones drop.
    return np.asarray(scipy.sparse.csgraph.dijkstra(scipy.sparse.csr_matrix(graph), directed=False))


def check_connected(graph: csr_array) -> None:
    """Refuse a graph of several components.

    Parameters
    ----------
    graph : csr_array of shape (n, n)
        Its stored entries are edges, both ways.

    Raises
    ------
    UserError
        Where there are several, with their number and sizes.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> from dmo.graphs import check_connected
    >>> check_connected(csr_array([[0, 1], [1, 0]]))
    """
    count, member = scipy.sparse.csgraph.connected_components(scipy.sparse.csr_matrix(graph), directed=False)
    if count > 1:
        sizes = np.sort(np.bincount(member))[::-1]
        shown = ", ".join(str(size) for size in sizes[:8]) + (", ..." if count > 8 else "")
        raise UserError(
            f"the neighbor graph has {count} components of {shown} samples; raise the number of neighbors, "
            f"or embed each component by itself"
        )


KINDS = (
    "constant",
    "distance",
    "gaussian",
    "local",
    "inverse",
    "cosine",
    "pearson",
    "spearman",
    "kendall",
)
_KENDALL = 4096


def weigh(
    graph: csr_array,
    X: Rows,
    kind: Any = "constant",
    bandwidth: float | str = "mean",
    local: int = 7,
    scales: np.ndarray | None = None,
    tau: float = 1.0,
) -> csr_array:
    """Weights of the edges of a graph, from the rows that it joins.

    With d_ij the Euclidean distance, the kinds are

    - "constant": 1;
    - "distance": d_ij, for `geodesics`;
    - "gaussian": exp(-d_ij^2 / (2 s^2)), s = `bandwidth` [MOPE 7];
    - "local": exp(-d_ij^2 / (s_i s_j)), s_i the distance to the `local`-th neighbor [MOPE 8; Zelnik-Manor, Perona 2004];
    - "inverse": 1 / (tau + d_ij^2 / (|x_i|^2 + |x_j|^2)), at most 1 / tau [MOPE 9; Kokiopoulou, Saad 2009];
    - "cosine", "pearson", "spearman", "kendall" (tau-b): similarities of the two rows, which may be negative;
    - an n x n matrix, dense or sparse, whose values on the graph are taken once it is found symmetric.

    A zero or constant row has cosine or correlation 0; in "local" a zero scale counts as the smallest other scale.

    Parameters
    ----------
    graph : csr_array of shape (n, n)
        The edges; its values do not count.
    X : row source of shape (n, d)
        Dense or CSR, read into memory.
    kind : str or matrix of shape (n, n), default="constant"
        One of `KINDS`, or the weights.
    bandwidth : float or "mean", default="mean"
        Of "gaussian", in units of the distance; "mean": the mean length of the edges.
    local : int, default=7
        Of "local": which neighbor gives the scale, at most the n - 1st.
    scales : ndarray of shape (n,), default=None
        Of "local": the scales themselves.
    tau : float, default=1.0
        Of "inverse", above 0.

    Returns
    -------
    csr_array of shape (n, n), float64
        The weights on the graph's pattern.

    Raises
    ------
    UserError
        For another kind or shape, a bandwidth or tau that is not positive, negative scales.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.graphs import adjacency, neighbors, weigh
    >>> X = np.array([[0.0], [1.0], [3.0]])
    >>> weigh(adjacency(neighbors(X, k=1)), X, "gaussian", bandwidth=1.0).toarray().round(2)
    array([[0.  , 0.61, 0.  ],
           [0.61, 0.  , 0.14],
           [0.  , 0.14, 0.  ]])
    """
    graph = csr_array(graph, dtype=np.float64)
    graph.sort_indices()
    n = graph.shape[0]
    if not isinstance(kind, str):
        return _given(graph, check_symmetric(kind, n))
    if kind not in KINDS:
        raise UserError(f"weigh: kind = {kind!r}; known: {', '.join(KINDS)}, or a symmetric matrix")
    if kind == "constant":
        return _on(graph, np.ones(graph.nnz))
    X = read(X)
    if X.shape[0] != n:
        raise UserError(f"weigh: the graph has {n} samples, X has {X.shape[0]} rows; pass the rows it was made from")
    left, right = ends(graph)
    if kind in _CORRELATIONS:
        return _on(graph, _CORRELATIONS[kind](X, left, right))
    squared = _squared(X, graph)
    if kind == "distance":
        return _on(graph, np.sqrt(squared))
    if kind == "gaussian":
        return _on(graph, np.exp(-squared / (2 * _bandwidth(squared, bandwidth) ** 2)))
    if kind == "local":
        s = local_scales(X, local) if scales is None else np.asarray(scales, np.float64)
        if s.shape != (n,) or (s < 0).any() or not s.any():
            raise UserError(
                "weigh: the local scales must be n numbers of at least 0, some above; raise `local` where rows are repeated"
            )
        s = np.maximum(s, s[s > 0].min())
        return _on(graph, np.exp(-squared / (s[left] * s[right])))
    if not tau > 0:
        raise UserError(f"weigh: tau must be above 0, got {tau!r}")
    each = np.arange(n)
    own = edge_dots(X, each, each)
    both = own[left] + own[right]
    return _on(graph, 1 / (tau + np.divide(squared, both, out=np.zeros(len(both)), where=both > 0)))


def local_scales(X: Rows, local: int = 7) -> np.ndarray:
    """Distance of every row to one of its neighbors, or to its farthest where there are fewer rows.

    Parameters
    ----------
    X : row source of shape (n, d)
        Dense or CSR, read into memory.
    local : int, default=7
        Which neighbor, 1 for the nearest.

    Returns
    -------
    ndarray of shape (n,), float64
        The distances.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.graphs import local_scales
    >>> local_scales(np.array([[0.0], [1.0], [3.0]]), local=2)
    array([3., 2., 3.])
    """
    X = read(X)
    return neighbors(X, min(local, X.shape[0] - 1)).distances[:, -1]


def root_mean_square(X: Rows) -> float:
    """Root mean square of the distances of all pairs of different rows, from the rows' variances alone.

    Parameters
    ----------
    X : row source of shape (n, d)
        Dense or CSR, read into memory.

    Returns
    -------
    float
        The distance.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.graphs import root_mean_square
    >>> root_mean_square(np.array([[0.0], [2.0]]))
    2.0
    """
    own = read(X)
    n, mean = own.shape[0], np.asarray(own.mean(axis=0, dtype=np.float64)).ravel()
    if not scipy.sparse.issparse(own):
        return float(np.sqrt(2 * np.square(own - mean).sum() / (n - 1)))
    return float(np.sqrt(max(0.0, 2 * (np.square(own.data).sum() - n * (mean @ mean)) / (n - 1))))


def ends(graph: csr_array) -> tuple[np.ndarray, np.ndarray]:
    """The two ends of every edge.

    Parameters
    ----------
    graph : csr_array of shape (n, n)
        Its stored entries are edges.

    Returns
    -------
    rows, columns : ndarray of shape (edges,), int64
        In the order of the stored entries.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> from dmo.graphs import ends
    >>> ends(csr_array([[0, 1], [1, 0]]))
    (array([0, 1]), array([1, 0]))
    """
    return np.repeat(np.arange(graph.shape[0]), np.diff(graph.indptr)), graph.indices.astype(np.int64)


def _on(graph: csr_array, values: np.ndarray) -> csr_array:
    return csr_array((values, graph.indices.copy(), graph.indptr.copy()), shape=graph.shape)


def _given(graph: csr_array, W: csr_array) -> csr_array:
    left, right = ends(graph)
    found = np.asarray(W[left, right]).ravel() if graph.nnz else np.zeros(0)
    return _on(graph, np.asarray(found, np.float64))


def _squared(X: Matrix, graph: csr_array) -> np.ndarray:
    """Squared lengths of the edges, summed in float64; of nearly all pairs: from inner products of centered rows."""
    left, right = ends(graph)
    if _crowded(left, X.shape[0]) and not scipy.sparse.issparse(X):
        centered = X - X.mean(axis=0, dtype=np.float64)
        h = np.einsum("ij,ij->i", centered, centered)
        squared = h[left] + h[right] - 2 * edge_dots(centered, left, right)
        squared[squared < 1e-13 * h.max()] = 0.0
        return squared
    ready, out, counts = prepare(X, "euclidean"), np.empty(graph.nnz), np.diff(graph.indptr)
    for where in row_blocks(graph.shape[0], 256):
        edges = slice(graph.indptr[where.start], graph.indptr[where.stop])
        own = counts[where, None]
        there = np.arange(own.max()) < own
        pairs = np.full(there.shape, -1)
        pairs[there] = right[edges]
        out[edges] = distances_to(ready.take(np.arange(where.start, where.stop)), ready, pairs)[there]
    return out


def _crowded(left: np.ndarray, n: int) -> bool:
    """Whether pairs are most of all pairs of the rows from the first to the last of `left` with n others."""
    return len(left) > 0 and len(left) > 0.5 * n * (left.max() - left.min() + 1)


def _bandwidth(squared: np.ndarray, bandwidth: float | str) -> float:
    value = float(np.sqrt(squared).mean()) if isinstance(bandwidth, str) and bandwidth == "mean" else bandwidth
    if isinstance(value, str) or not value > 0 or not np.isfinite(value):
        raise UserError(f"weigh: bandwidth must be a positive number or 'mean' of distances above 0, got {bandwidth!r}")
    return float(value)


def edge_dots(X: Matrix, left: np.ndarray, right: np.ndarray, Z: Matrix | None = None) -> np.ndarray:
    """Inner products of given pairs of rows, by a matrix product where the pairs are most of those of a range of rows.

    Parameters
    ----------
    X : ndarray or csr_array of shape (n, d)
        Rows of the left ends; CSR with sorted columns.
    left, right : ndarray of int of shape (edges,)
        Row numbers of X and of Z.
    Z : ndarray or csr_array of shape (m, d), default=None
        Rows of the right ends, dense where X is; None: X.

    Returns
    -------
    ndarray of shape (edges,), float64
        The inner products.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.graphs import edge_dots
    >>> edge_dots(np.array([[1.0, 0.0], [2.0, 3.0]]), np.array([0, 1]), np.array([1, 1]))
    array([ 2., 13.])
    """
    Z = X if Z is None else Z
    if _crowded(left, Z.shape[0]):
        first, last = left.min(), left.max()
        S = X[first : last + 1].astype(np.float64) @ Z.T
        return np.asarray((S.toarray() if scipy.sparse.issparse(S) else S)[left - first, right])
    out = np.empty(len(left))
    if scipy.sparse.issparse(X):
        parts = (X.indptr, X.indices, X.data, Z.indptr, Z.indices, Z.data, left, right)
        over_rows(lambda start, stop: loops.sparse_dots(*parts, start, stop, out), len(out))
    else:
        over_rows(lambda start, stop: loops.dense_dots(X, Z, left, right, start, stop, out), len(out))
    return out


def _cosine(X: Matrix, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    each = np.arange(X.shape[0])
    lengths = np.sqrt(edge_dots(X, each, each))
    product = lengths[left] * lengths[right]
    return np.divide(edge_dots(X, left, right), product, out=np.zeros(len(left)), where=product > 0)


def _pearson(X: Matrix, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    if not scipy.sparse.issparse(X):
        centered = X.astype(np.float64)
        centered -= centered.mean(axis=1, keepdims=True)
        centered[np.ptp(X, axis=1) == 0] = 0.0
        return _cosine(centered, left, right)
    d, each = X.shape[1], np.arange(X.shape[0])
    means = np.asarray(X.sum(axis=1)).ravel() / d
    spread = edge_dots(X, each, each) - d * means**2
    spread[spread <= 1e-14 * d * means**2] = 0.0
    product = np.sqrt(spread[left] * spread[right])
    shared = edge_dots(X, left, right) - d * means[left] * means[right]
    return np.divide(shared, product, out=np.zeros(len(left)), where=product > 0)


def _spearman(X: Matrix, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Pearson's correlation of the rows' ranks; sparse rows keep rank 0 for their zeros, which shifts them alike."""
    if not scipy.sparse.issparse(X):
        return _pearson(np.asarray(scipy.stats.rankdata(X, axis=1)), left, right)
    ranks = X.copy()
    for i in range(X.shape[0]):
        own = slice(X.indptr[i], X.indptr[i + 1])
        values = X.data[own]
        zeros = X.shape[1] - np.count_nonzero(values)
        rank = scipy.stats.rankdata(values) + (zeros - (values == 0).sum()) * (values > 0)
        ranks.data[own] = np.where(values == 0, 0.0, rank - (values < 0).sum() - (zeros + 1) / 2)
    return _pearson(ranks, left, right)


def _kendall(X: Matrix, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    if X.shape[1] > _KENDALL:
        raise UserError(
            f"weigh: kendall compares all pairs of {X.shape[1]} features for every edge; at most {_KENDALL} are taken, "
            f"use 'spearman'"
        )
    dense = X.toarray() if scipy.sparse.issparse(X) else X
    out = np.empty(len(left))
    over_rows(lambda start, stop: loops.kendall(dense, left, right, start, stop, out), len(out))
    return out


_CORRELATIONS: dict[str, Callable[[Matrix, np.ndarray, np.ndarray], np.ndarray]] = {
    "cosine": _cosine,
    "pearson": _pearson,
    "spearman": _spearman,
    "kendall": _kendall,
}


def reconstruction_weights(X: Rows, neighbors: Neighbors, reg: float = 1e-3) -> csr_array:
    """Weights with sum 1 by which the neighbors of a row reconstruct it best.

    Parameters
    ----------
    X : row source of shape (n, d)
        Dense or CSR, read into memory.
    neighbors : Neighbors
        Of every row; also of its own class alone.
    reg : float, default=1e-3
        Ridge of the local Gram matrix, relative to its trace.

    Returns
    -------
    csr_array of shape (n, n), float64
        Row i holds the weights of its neighbors; a row without neighbors stays 0.

    Raises
    ------
    UserError
        For another number of rows.

    References
    ----------
    Roweis, Saul 2000; SONPP with the neighbors of one class.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.graphs import neighbors, reconstruction_weights
    >>> X = np.array([[0.0], [1.0], [2.0]])
    >>> reconstruction_weights(X, neighbors(X, k=2)).toarray()[1].round(2)
    array([0.5, 0. , 0.5])
    """
    X = read(X)
    n, k = neighbors.indices.shape
    if X.shape[0] != n:
        raise UserError(f"reconstruction_weights: {n} neighbor lists for {X.shape[0]} rows; pass the same samples")
    W = np.zeros((n, k))
    for where in row_blocks(n, max(1, 2**24 // (k * max(k, 1 if scipy.sparse.issparse(X) else X.shape[1])))):
        indices = neighbors.indices[where]
        G = _local_grams(X, np.arange(where.start, where.stop), indices)
        W[where] = _barycenters(G, indices < 0, reg)
    there = neighbors.indices >= 0
    S = csr_array((W[there], (np.nonzero(there)[0], neighbors.indices[there])), shape=(n, n))
    S.sort_indices()
    return S


def _local_grams(X: Matrix, rows: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Gram matrices (b x k x k, float64) of the neighbors' rows less the row itself."""
    if not scipy.sparse.issparse(X):
        Z = X[indices].astype(np.float64) - X[rows][:, None, :]
        return Z @ Z.transpose(0, 2, 1)
    G = np.empty((len(rows), indices.shape[1], indices.shape[1]))
    for at, row in enumerate(rows):
        block = X[np.concatenate([[row], indices[at]])]
        P = (block @ block.T).toarray()
        G[at] = P[1:, 1:] - P[1:, :1] - P[:1, 1:] + P[0, 0]
    return G


def _barycenters(G: np.ndarray, missing: np.ndarray, reg: float) -> np.ndarray:
    k = G.shape[1]
    G = np.where(missing[:, :, None] | missing[:, None, :], 0.0, G)
    trace = np.trace(G, axis1=1, axis2=2)
    ridge = np.where(trace > 0, reg * trace, reg)
    G[:, np.arange(k), np.arange(k)] += np.where(missing, 1.0, ridge[:, None])
    w = np.linalg.solve(G, (~missing).astype(np.float64)[:, :, None])[:, :, 0]
    sums = w.sum(axis=1, keepdims=True)
    return np.divide(w, sums, out=np.zeros_like(w), where=sums != 0)
