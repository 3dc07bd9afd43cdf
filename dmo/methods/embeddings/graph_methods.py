"""Unsupervised methods on a neighbor graph: embeddings of the samples themselves, and projections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse import csr_array

from dmo.errors import UserError
from dmo.graphs import adjacency, geodesics, laplacian, neighbors, reconstruction_weights, weigh
from dmo.graphs.adjacency import Mode, check_symmetric
from dmo.graphs.search import Metric
from dmo.linalg.eigen import CUTOFF, TracePairs, check_rank
from dmo.methods.embeddings.quadratic_forms import Pencil, SampleForm, centering, solve_direct

NEIGHBORS = 15
"""Neighbors where none are asked for."""


@dataclass(frozen=True)
class Options:
    """What the neighborhood methods may use.

    `n_neighbors` k or k1 (None: 15, or all samples of the class), `n_repelled` k2; `weight`: a kind of `graphs.weigh` or
    an n x n matrix; `bandwidth` of Gaussian weights; `adjacency`: the mode of `graphs.adjacency`; `metric`;
    `regularization` of reconstruction weights; `penalty`: beta, lam or mu; `smoothness` of the Laplacian term; `balance`
    and `ridge`.
    """

    n_neighbors: int | None = None
    n_repelled: int | None = None
    weight: Any = "constant"
    bandwidth: float | str = "mean"
    adjacency: Mode = "union"
    metric: Metric = "euclidean"
    regularization: float = 1e-3
    penalty: float = 1.0
    smoothness: float = 0.1
    balance: float = 0.5
    ridge: float = 1e-3


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
    return weigh(graph, X, options.weight, options.bandwidth)


def degrees(W: csr_array) -> np.ndarray:
    """W 1 (n); raises ValueError for a sample without positive weight."""
    found = np.asarray(W.sum(axis=1), np.float64).ravel()
    if (found <= 0).any():
        i = int(found.argmin())
        raise UserError(
            f"the weights of sample {i} sum to {found[i]:.3g}, and are divided by; raise n_neighbors, take adjacency='union', "
            f"or weights that are positive"
        )
    return found


def residual(X: Any, options: Options) -> SampleForm:
    """-(I - S)'(I - S), S the reconstruction weights of the neighbors."""
    n = X.shape[0]
    found = neighbors(X, reach(options.n_neighbors, n), options.metric)
    C = scipy.sparse.eye_array(n) - reconstruction_weights(X, found, options.regularization)
    return SampleForm(n, csr_array(-(C.T @ C)))


def smooth(X: Any, options: Options) -> SampleForm:
    """Lap(W)."""
    return SampleForm(X.shape[0], laplacian(weight_graph(X, options)))


def lpp(X: Any, options: Options) -> Pencil:
    """-X'Lap(W)X | X'DX + c I."""
    W = weight_graph(X, options)
    D = SampleForm(X.shape[0], diagonal=degrees(W))
    return Pencil(SampleForm(X.shape[0], csr_array(-laplacian(W))), D, options.ridge, center=False)


def olpp(X: Any, options: Options) -> Pencil:
    """-X'Lap(W)X | I."""
    return Pencil(smooth(X, options).times(-1.0))


def npp(X: Any, options: Options) -> Pencil:
    """-X'(I - S)'(I - S)X | X'X + c I."""
    return Pencil(
        residual(X, options), SampleForm(X.shape[0], diagonal=np.ones(X.shape[0])), options.ridge, center=False
    )


def onpp(X: Any, options: Options) -> Pencil:
    """-X'(I - S)'(I - S)X | I."""
    return Pencil(residual(X, options))


def total(X: Any, options: Options) -> Pencil:
    """X'HX | I."""
    return Pencil(centering(X.shape[0]))


def usc(X: Any, options: Options, k: int) -> TracePairs:
    """-Lap(W) | I on Z itself, without the constant."""
    return solve_direct(smooth(X, options).times(-1.0), k, constant=True)


def eigenmaps(X: Any, options: Options, k: int) -> TracePairs:
    """-Lap(W) | D on Z itself, without the constant."""
    W = weight_graph(X, options)
    return solve_direct(SampleForm(X.shape[0], csr_array(-laplacian(W))), k, degrees(W), constant=True)


def nsc(X: Any, options: Options, k: int) -> TracePairs:
    """D^-1/2 W D^-1/2 | I on Z itself, rows of length 1."""
    W = weight_graph(X, options)
    form = SampleForm(X.shape[0], W).scaled(1 / np.sqrt(degrees(W)))
    found = solve_direct(form, k)
    lengths = np.linalg.norm(found.vectors, axis=1, keepdims=True)
    return TracePairs(found.values, found.vectors / np.where(lengths > 0, lengths, 1.0))


def lle(X: Any, options: Options, k: int) -> TracePairs:
    """-(I - S)'(I - S) | I on Z itself, without the constant."""
    return solve_direct(residual(X, options), k, constant=True)


def mds(X: Any, options: Options, k: int) -> TracePairs:
    """-1/2 H D2 H | I on Z itself, columns scaled by sqrt(lambda); of Euclidean distances: Xc Xc'."""
    Xc = X.toarray() if scipy.sparse.issparse(X) else X
    return _scaled(SampleForm(X.shape[0], None, Xc - Xc.mean(axis=0)), k)


def isomap(X: Any, options: Options, k: int) -> TracePairs:
    """-1/2 H D2 H | I on Z itself with geodesic distances D, columns scaled by sqrt(lambda)."""
    n = X.shape[0]
    found = neighbors(X, reach(options.n_neighbors, n), options.metric)
    squared = geodesics(weigh(adjacency(found, options.adjacency), X, "distance")) ** 2
    return _scaled(double_centered(squared), k)


def double_centered(squared: np.ndarray) -> SampleForm:
    """-1/2 H D2 H of squared distances D2 (n x n, dense)."""
    means = squared.mean(axis=0)
    B = -0.5 * (squared - means - means[:, None] + means.mean())
    return SampleForm(len(B), (B + B.T) / 2)


def _scaled(form: SampleForm, k: int) -> TracePairs:
    found = solve_direct(form, k)
    check_rank(int((found.values > CUTOFF * found.values[0]).sum()), k)
    return TracePairs(found.values, found.vectors * np.sqrt(found.values))
