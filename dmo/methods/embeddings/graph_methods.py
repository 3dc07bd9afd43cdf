"""Unsupervised methods on a neighbor graph: embeddings of the samples themselves, and projections."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse import csr_array

from dmo.errors import UserError
from dmo.graphs import adjacency, geodesics, laplacian, neighbors, reconstruction_weights, weigh
from dmo.graphs.adjacency import check_symmetric
from dmo.methods.embeddings.quadratic_forms import QuadraticForm, TraceProblem
from dmo.methods.embeddings.samples import Options, Samples

NEIGHBORS = 15
"""Neighbors where none are asked for."""


def reach(k: int | None, n: int) -> int:
    """The number of neighbors: k as given, else 15 or as many as there are."""
    if k is None:
        return min(NEIGHBORS, n - 1)
    if k >= n:
        raise UserError(f"n_neighbors = {k} of {n} samples; needed is a whole number from 1 to {n - 1}")
    return k


def weight_graph(X: Any, options: Options) -> csr_array:
    """W (n x n CSR, symmetric): the user's matrix, or weights on the neighbor graph of X."""
    n = X.shape[0]
    if not isinstance(options.weight, str):
        return check_symmetric(options.weight, n)
    graph = adjacency(neighbors(X, reach(options.n_neighbors, n), options.metric), options.adjacency)
    return weigh(graph, X, options.weight, options.bandwidth, tau=options.tau)


def degrees(W: csr_array) -> np.ndarray:
    """W 1 (n); raises ValueError for a sample without positive weight."""
    found = np.asarray(W.sum(axis=1), np.float64).ravel()
    if (found <= 0).any():
        i = int(found.argmin())
        raise UserError(
            f"the weights of sample {i} sum to {found[i]:.3g}, and are divided by; raise n_neighbors, take "
            "adjacency='union', or weights that are positive"
        )
    return found


def residual(X: Any, options: Options) -> QuadraticForm:
    """-(I - S)'(I - S), S the reconstruction weights of the neighbors."""
    n = X.shape[0]
    found = neighbors(X, reach(options.n_neighbors, n), options.metric)
    C = scipy.sparse.eye_array(n) - reconstruction_weights(X, found, options.regularization)
    return QuadraticForm(n, csr_array(-(C.T @ C)))


def smooth(X: Any, options: Options) -> QuadraticForm:
    """Lap(W)."""
    return QuadraticForm(X.shape[0], laplacian(weight_graph(X, options)))


def lpp(samples: Samples, options: Options) -> TraceProblem:
    """-X'Lap(W)X | X'DX + c I."""
    W = weight_graph(samples.rows, options)
    D = QuadraticForm(samples.n, diagonal=degrees(W))
    return TraceProblem(QuadraticForm(samples.n, csr_array(-laplacian(W))), D, options.ridge, center=False)


def olpp(samples: Samples, options: Options) -> TraceProblem:
    """-X'Lap(W)X | I."""
    return TraceProblem(smooth(samples.rows, options).times(-1.0))


def npp(samples: Samples, options: Options) -> TraceProblem:
    """-X'(I - S)'(I - S)X | X'X + c I."""
    constraint = QuadraticForm(samples.n, identity=1.0)
    return TraceProblem(residual(samples.rows, options), constraint, options.ridge, center=False)


def onpp(samples: Samples, options: Options) -> TraceProblem:
    """-X'(I - S)'(I - S)X | I."""
    return TraceProblem(residual(samples.rows, options))


def usc(samples: Samples, options: Options) -> TraceProblem:
    """-Lap(W) | I on Z itself, without the constant."""
    return _embedding(smooth(samples.rows, options).times(-1.0), constant=True)


def eigenmaps(samples: Samples, options: Options) -> TraceProblem:
    """-Lap(W) | D on Z itself, without the constant."""
    W = weight_graph(samples.rows, options)
    D = QuadraticForm(samples.n, diagonal=degrees(W))
    return _embedding(QuadraticForm(samples.n, csr_array(-laplacian(W))), D, constant=True)


def nsc(samples: Samples, options: Options) -> TraceProblem:
    """D^-1/2 W D^-1/2 | I on Z itself, rows of length 1."""
    W = weight_graph(samples.rows, options)
    return _embedding(QuadraticForm(samples.n, W).weighted(1 / np.sqrt(degrees(W))), unit_rows=True)


def lle(samples: Samples, options: Options) -> TraceProblem:
    """-(I - S)'(I - S) | I on Z itself, without the constant."""
    return _embedding(residual(samples.rows, options), constant=True)


def mds(samples: Samples, options: Options) -> TraceProblem:
    """-1/2 H D2 H | I on Z itself, columns scaled by sqrt(lambda); of Euclidean distances: Xc Xc'."""
    X = samples.rows.toarray() if scipy.sparse.issparse(samples.rows) else samples.rows
    return _embedding(QuadraticForm(samples.n, factor=X - X.mean(axis=0)), scaled=True)


def isomap(samples: Samples, options: Options) -> TraceProblem:
    """-1/2 H D2 H | I on Z itself with geodesic distances D, columns scaled by sqrt(lambda)."""
    found = neighbors(samples.rows, reach(options.n_neighbors, samples.n), options.metric)
    squared = geodesics(weigh(adjacency(found, options.adjacency), samples.rows, "distance")) ** 2
    return _embedding(double_centered(squared), scaled=True)


def double_centered(squared: np.ndarray) -> QuadraticForm:
    """-1/2 H D2 H of squared distances D2 (n x n, dense)."""
    means = squared.mean(axis=0)
    B = -0.5 * (squared - means - means[:, None] + means.mean())
    return QuadraticForm(len(B), (B + B.T) / 2)


def _embedding(A: QuadraticForm, B: QuadraticForm | None = None, **more: bool) -> TraceProblem:
    """Of Z itself; without a regression of new rows."""
    return TraceProblem(A, B, ridge=0.0, center=False, direct=True, **more)
