"""Neighbor lists as sparse matrices, their Laplacians and geodesic distances."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import scipy.sparse.csgraph
from scipy.sparse import csr_array

from dmo.blocks import Rows, row_blocks
from dmo.errors import UserError
from dmo.graphs.rows import distances_to, prepare, product, read, transposed
from dmo.graphs.search import Metric, Neighbors

Mode = Literal["union", "mutual", "directed", "sum"]


def adjacency(neighbors: Neighbors, mode: Mode = "union") -> csr_array:
    """The n x n matrix of a neighbor list, CSR with sorted columns; the one place where lists become symmetric.

    Argument `mode`: "directed": 1 where j is among i's neighbors; "union": 1 where either is among the other's;
    "mutual": 1 where both are; "sum": the directed matrix plus its transpose, which is 2 where "mutual" has 1, and
    the "union" elsewhere. Raises ValueError for another mode.
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


def threshold_graph(X: Rows, radius: float, metric: Metric = "euclidean", block: int = 2048) -> csr_array:
    """1 for every pair of different rows (n x d, read into memory) at a distance of at most `radius`, CSR.

    Raises ValueError for a radius that is not a positive number. Memory is the graph's: choose `radius` accordingly.
    """
    if not radius > 0 or not np.isfinite(radius):
        raise UserError(f"threshold_graph: radius must be a positive number, got {radius!r}")
    X = read(X)
    if metric not in ("euclidean", "cosine"):
        raise UserError(f"threshold_graph: metric = {metric!r}; known: euclidean, cosine")
    ready = prepare(X, metric)
    limit, left, right = (2 * radius if metric == "cosine" else radius**2), [], []
    slack = (ready.rounding or 1e-12) * (ready.length + np.sqrt(limit)) ** 2
    slices = row_blocks(len(ready), block)
    for b, columns in enumerate(slices):
        inner = transposed(ready, columns)
        for rows in slices[: b + 1]:
            squared = ready.h64[rows, None] + ready.h64[None, columns] - 2 * product(ready, rows, inner)
            i, j = np.nonzero(squared <= limit + slack[rows, None])
            i, j = i + rows.start, j + columns.start
            keep = i < j
            left.append(i[keep])
            right.append(j[keep])
    i, j = np.concatenate(left), np.concatenate(right)
    exact = np.concatenate(
        [distances_to(ready.take(i[w]), ready, j[w, None]).ravel() for w in row_blocks(len(i), 65536)] or [np.zeros(0)]
    )
    i, j = i[exact <= limit], j[exact <= limit]
    n = len(ready)
    return csr_array((np.ones(2 * len(i)), (np.concatenate([i, j]), np.concatenate([j, i]))), shape=(n, n))


def check_symmetric(W: Any, n: int, what: str = "the weight matrix") -> csr_array:
    """A user's matrix as CSR of float64. Raises ValueError where it is not n x n, finite and symmetric."""
    given = csr_array(W if scipy.sparse.issparse(W) else np.asarray(W), dtype=np.float64)
    if given.shape != (n, n):
        raise UserError(f"{what} has shape {given.shape}, the samples are {n}; pass one row and one column per sample")
    if not np.isfinite(given.data).all():
        raise UserError(f"{what} holds NaN or infinity; pass finite weights, 0 for none")
    gap = abs(given - given.T)
    if gap.nnz and gap.max() > 1e-8 * abs(given).max():
        worst = gap.tocoo()
        i, j = (int(c[worst.data.argmax()]) for c in worst.coords)
        raise UserError(
            f"{what} is not symmetric: {given[i, j]:g} at ({i}, {j}), {given[j, i]:g} at ({j}, {i}); "
            f"pass (W + W.T) / 2 if that is what you mean"
        )
    given.sort_indices()
    return given


def laplacian(W: csr_array, normalized: bool = False) -> csr_array:
    """diag(W 1) - W (n x n, CSR); `normalized`: D^-1/2 (D - W) D^-1/2, whose rows are 0 where W's are.

    Raises ValueError for a normalized Laplacian of weights whose row sums are negative.
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


def geodesics(graph: csr_array, symmetric: bool = True) -> np.ndarray:
    """Lengths (n x n, float64, dense) of the shortest paths along edges of the lengths in `graph`, by Dijkstra.

    Argument `graph`: n x n CSR of lengths, as `weigh(graph, X, "distance")` gives them; a stored 0 is an edge;
    `symmetric`: an edge leads both ways, whichever way it is stored.
    Raises ValueError for negative lengths, and for a disconnected graph, with the sizes of its components.
    """
    graph = csr_array(graph, dtype=np.float64)
    if graph.nnz and graph.data.min() < 0:
        raise UserError(f"geodesics: the graph has a length of {graph.data.min():.3g}; lengths must not be negative")
    check_connected(graph, "geodesics")
    return np.asarray(scipy.sparse.csgraph.dijkstra(scipy.sparse.csr_matrix(graph), directed=not symmetric))


def check_connected(graph: csr_array, who: str) -> None:
    """Raise ValueError for a graph of several components, with their number and sizes."""
    count, member = scipy.sparse.csgraph.connected_components(scipy.sparse.csr_matrix(graph), directed=False)
    if count > 1:
        sizes = np.sort(np.bincount(member))[::-1]
        shown = ", ".join(str(size) for size in sizes[:8]) + (", ..." if count > 8 else "")
        raise UserError(
            f"{who}: the neighbor graph has {count} components of {shown} samples; raise the number of neighbors, "
            f"or embed each component by itself"
        )
