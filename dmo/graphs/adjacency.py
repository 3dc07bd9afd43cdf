"""Neighbor lists as sparse matrices, their Laplacians and geodesic distances."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import scipy.sparse.csgraph
from scipy.sparse import csr_array

from dmo.errors import UserError
from dmo.graphs.search import Neighbors

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
