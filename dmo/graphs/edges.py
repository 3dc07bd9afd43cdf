"""Neighbor graphs, their edge weights, Laplacians and geodesic distances, and reconstruction weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import scipy.sparse.csgraph
from scipy.sparse import csr_array

from dmo.blocks import Rows, centered_rows, dense, dense_means, double, row_blocks, row_ranks, scatter, stored_values
from dmo.errors import UserError
from dmo.graphs import loops
from dmo.graphs.distances import Matrix, prepare, read
from dmo.graphs.search import Neighbors, neighbors
from dmo.threads import over_rows

Mode = Literal["union", "mutual", "directed", "sum"]


def adjacency(neighbors: Neighbors, mode: Mode = "union") -> csr_array:
    """Convert the nearest neighbors of n samples to a sparse adjacency matrix.

    Parameters
    ----------
    neighbors : Neighbors
        Nearest neighbors of each sample.
    mode : {"union", "mutual", "directed", "sum"}, default="union"
        Rule for the edges. In a "directed" graph, entry (i, j) is 1 if j is a neighbor of i. In the "union", the entry
        is 1 if i is a neighbor of j or j is a neighbor of i. In a "mutual" graph, the entry is 1 if i and j are
        neighbors of each other. The "sum" is the directed matrix plus its transpose, so entries of mutual neighbors are
        2.

    Returns
    -------
    csr_array of shape (n, n), float64
        Adjacency matrix, which is symmetric except for mode="directed".

    Raises
    ------
    UserError
        If the mode is unknown.

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
    """Check that a weight matrix is n x n, finite and symmetric, and convert it to CSR.

    Parameters
    ----------
    W : array-like or sparse of shape (n, n)
        Edge weights between all pairs of samples.
    n : int
        Number of samples.

    Returns
    -------
    csr_array of shape (n, n), float64
        Same weights in CSR format, with sorted column indices.

    Raises
    ------
    UserError
        If the matrix is not n x n, not finite, or not symmetric. Asymmetries up to 1e-8 times the largest absolute
        entry are tolerated.

    Examples
    --------
    >>> from dmo.graphs import check_symmetric
    >>> check_symmetric([[0, 2], [2, 0]], n=2).nnz
    2
    """
    given = csr_array(double(W))
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
    """Compute the Laplacian diag(W 1) - W of a graph.

    Parameters
    ----------
    W : csr_array of shape (n, n)
        Edge weights of the graph.
    normalized : bool, default=False
        Whether to return the normalized Laplacian D^-1/2 (D - W) D^-1/2, where D = diag(W 1) has the degrees of the
        samples. Samples without edges have zero rows.

    Returns
    -------
    csr_array of shape (n, n), float64
        Laplacian of the graph.

    Raises
    ------
    UserError
        If a normalized Laplacian is requested and the weights of a sample have a negative sum.

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
    """Compute the lengths of the shortest paths between all pairs of samples by Dijkstra's algorithm.

    Parameters
    ----------
    graph : csr_array of shape (n, n)
        Edge lengths, for example from `weigh(graph, X, "distance")`. A stored 0 is an edge of length 0.

    Returns
    -------
    ndarray of shape (n, n), float64
        Lengths of the shortest paths, in a dense array of 8 n^2 bytes.

    Raises
    ------
    UserError
        If an edge length is negative, or the graph is not connected.

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
    # With k neighbors per sample, Dijkstra's algorithm takes about n^2 k log n operations, far fewer than the n^3
    # operations of the Floyd-Warshall algorithm. SciPy treats zeros of a dense graph as missing edges, but equal rows
    # have distance 0, so the graph must be sparse.
    return np.asarray(scipy.sparse.csgraph.dijkstra(scipy.sparse.csr_matrix(graph), directed=False))


def check_connected(graph: csr_array) -> None:
    """Check that a graph is connected.

    Parameters
    ----------
    graph : csr_array of shape (n, n)
        Graph, where every stored entry is an undirected edge.

    Raises
    ------
    UserError
        If the graph has more than one connected component. The error reports the sizes of the components.

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
            f"or embed each component separately"
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
    """Compute the edge weights of a graph from the samples that the edges connect.

    Let d_ij be the Euclidean distance of the samples x_i and x_j. The kinds of weights are:

    - "constant": the weight of every edge is 1.
    - "distance": d_ij, for example for `geodesics`.
    - "gaussian": exp(-d_ij^2 / (2 s^2)), where s is `bandwidth` [MOPE 7].
    - "local": exp(-d_ij^2 / (s_i s_j)), where s_i is the distance from x_i to its `local`-th neighbor
      [MOPE 8; Zelnik-Manor, Perona 2004].
    - "inverse": 1 / (tau + d_ij^2 / (|x_i|^2 + |x_j|^2)), which is at most 1 / tau [MOPE 9; Kokiopoulou, Saad 2009].
    - "cosine", "pearson", "spearman" or "kendall" (tau-b): similarity of x_i and x_j, which may be negative. The cosine
      with a zero row and the correlation with a constant row are 0.
    - a symmetric n x n matrix, dense or sparse: entry (i, j) is the weight of the edge.

    Parameters
    ----------
    graph : csr_array of shape (n, n)
        Graph whose stored entries are edges. The values of the entries are ignored.
    X : row source of shape (n, d)
        Dense or CSR samples, which are read into memory.
    kind : str or matrix of shape (n, n), default="constant"
        Kind of weights, or a matrix that contains the weights.
    bandwidth : float or "mean", default="mean"
        Bandwidth s of "gaussian". "mean" is the mean length of the edges.
    local : int, default=7
        Number of the neighbor whose distance is the scale s_i of "local". Numbers above n - 1 are reduced to n - 1.
    scales : ndarray of shape (n,), default=None
        Scales s_i of "local", instead of distances to neighbors. Scales of 0 are replaced by the smallest nonzero
        scale.
    tau : float, default=1.0
        Positive constant of "inverse".

    Returns
    -------
    csr_array of shape (n, n), float64
        Graph with the computed edge weights.

    Raises
    ------
    UserError
        If a shape or parameter is invalid, all scales are 0, or "kendall" is requested for more than 4096 features.

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
                "weigh: the local scales must be n numbers of at least 0, not all 0; raise `local` if rows are repeated"
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
    """Compute the distance of each sample to its `local`-th nearest neighbor.

    Parameters
    ----------
    X : row source of shape (n, d)
        Dense or CSR samples, which are read into memory.
    local : int, default=7
        Number of the neighbor, where 1 is the nearest. Numbers above n - 1 are reduced to n - 1.

    Returns
    -------
    ndarray of shape (n,), float64
        Distance of each sample to this neighbor.

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
    """Compute the root mean square distance over all pairs of different samples.

    The distance is computed from the variances of the features, without evaluating pairs.

    Parameters
    ----------
    X : row source of shape (n, d)
        Dense or CSR samples, which are read into memory.

    Returns
    -------
    float
        Root mean square distance.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.graphs import root_mean_square
    >>> root_mean_square(np.array([[0.0], [2.0]]))
    2.0
    """
    own = read(X)
    return float(np.sqrt(2 * scatter(own) / (own.shape[0] - 1)))


def ends(graph: csr_array) -> tuple[np.ndarray, np.ndarray]:
    """Return the row and column indices of all edges.

    Parameters
    ----------
    graph : csr_array of shape (n, n)
        Graph whose stored entries are edges.

    Returns
    -------
    rows, columns : ndarray of shape (edges,), int64
        Row and column index of each stored entry.

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
    """Compute squared edge lengths in float64. Nearly complete graphs use inner products of centered rows."""
    left, right = ends(graph)
    if _crowded(left, X.shape[0]) and (mean := dense_means(X)) is not None:
        centered = X - mean
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
        out[edges] = ready.squared_to(ready.take(np.arange(where.start, where.stop)), pairs)[there]
    return out


def _crowded(left: np.ndarray, n: int) -> bool:
    """Return whether the edges cover more than half of a matrix with the row range of `left` and n columns."""
    return len(left) > 0 and len(left) > 0.5 * n * (left.max() - left.min() + 1)


def _bandwidth(squared: np.ndarray, bandwidth: float | str) -> float:
    value = float(np.sqrt(squared).mean()) if isinstance(bandwidth, str) and bandwidth == "mean" else bandwidth
    if isinstance(value, str) or not value > 0 or not np.isfinite(value):
        raise UserError(f"weigh: bandwidth must be a positive number or 'mean' of distances above 0, got {bandwidth!r}")
    return float(value)


def edge_dots(X: Matrix, left: np.ndarray, right: np.ndarray, Z: Matrix | None = None) -> np.ndarray:
    """Compute inner products of given pairs of rows of two matrices.

    Parameters
    ----------
    X : ndarray or csr_array of shape (n, d)
        First matrix. CSR rows must have sorted column indices.
    left, right : ndarray of int of shape (edges,)
        Row indices into X and into Z for each pair.
    Z : ndarray or csr_array of shape (m, d), default=None
        Second matrix, which is dense if and only if X is dense. None uses X.

    Returns
    -------
    ndarray of shape (edges,), float64
        Inner product of each pair.

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
        return dense(S)[left - first, right]
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
    d, each = X.shape[1], np.arange(X.shape[0])
    X, means = centered_rows(X)
    spread = edge_dots(X, each, each) - d * means**2
    spread[spread <= 1e-14 * d * means**2] = 0.0
    product = np.sqrt(spread[left] * spread[right])
    shared = edge_dots(X, left, right) - d * means[left] * means[right]
    return np.divide(shared, product, out=np.zeros(len(left)), where=product > 0)


def _spearman(X: Matrix, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return _pearson(row_ranks(X), left, right)


def _kendall(X: Matrix, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    if X.shape[1] > _KENDALL:
        raise UserError(
            f"weigh: kendall compares all pairs of {X.shape[1]} features for every edge; at most {_KENDALL} are "
            f"supported, use 'spearman'"
        )
    values = dense(X)
    out = np.empty(len(left))
    over_rows(lambda start, stop: loops.kendall(values, left, right, start, stop, out), len(out))
    return out


_CORRELATIONS: dict[str, Callable[[Matrix, np.ndarray, np.ndarray], np.ndarray]] = {
    "cosine": _cosine,
    "pearson": _pearson,
    "spearman": _spearman,
    "kendall": _kendall,
}


def reconstruction_weights(X: Rows, neighbors: Neighbors, reg: float = 1e-3) -> csr_array:
    """Compute weights that reconstruct each sample from its neighbors by least squares, as in LLE.

    Parameters
    ----------
    X : row source of shape (n, d)
        Dense or CSR samples, which are read into memory.
    neighbors : Neighbors
        Neighbors of each sample, which can be restricted to samples of the same class.
    reg : float, default=1e-3
        Constant that is added to the diagonal of the local Gram matrix, relative to its trace.

    Returns
    -------
    csr_array of shape (n, n), float64
        Matrix whose row i contains the weights of the neighbors of sample i. Each row has sum 1, but is 0 for samples
        without neighbors.

    Raises
    ------
    UserError
        If the number of rows differs from the number of neighbor lists.

    References
    ----------
    Roweis, Saul 2000. SONPP uses neighbors of the same class.

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
    width = stored_values(X).size // n  # Average number of stored entries per row.
    for where in row_blocks(n, max(1, 2**24 // (k * max(k, width)))):
        indices = neighbors.indices[where]
        G = _local_grams(X, np.arange(where.start, where.stop), indices)
        W[where] = _barycenters(G, indices < 0, reg)
    there = neighbors.indices >= 0
    S = csr_array((W[there], (np.nonzero(there)[0], neighbors.indices[there])), shape=(n, n))
    S.sort_indices()
    return S


def _local_grams(X: Matrix, rows: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Compute the Gram matrix of the differences between each row and its neighbors."""
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
