"""Unsupervised and global methods of the catalog, as forms of kernels, label factors and neighbor graphs.

The first line of the docstring of a method states its objective and, after "|", its constraint. Global methods maximize
tr(W'X'A X W), where X contains n samples, centered by default. The form A = a I + b K + T M T' + diag(d) consists of
the identity, the kernel K = X X', and a factor T of the labels or of their kernel. The constraint is W'W = I or
W'(w X'X + c I)W = I. Direct problems maximize over the coordinates Z with Z'Z = I, and a ridge regression of Z on X
embeds new samples. `trace_solvers` solves these problems, and `catalog` lists the sources.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import scipy.sparse
from scipy.sparse import csr_array

from dmo.blocks import dense
from dmo.errors import TooFewSamples, UserError
from dmo.graphs import adjacency, geodesics, laplacian, neighbors, reconstruction_weights, weigh
from dmo.graphs.edges import check_symmetric
from dmo.linalg.eigen import power_of
from dmo.methods.quadratic_forms import Options, QuadraticForm, TraceProblem, TraceSamples


def pca(samples: TraceSamples, options: Options) -> TraceProblem:
    """X'X | I (with a kernel: kernel PCA; without centering: latent semantic indexing)."""
    return TraceProblem(QuadraticForm(samples.n, identity=1.0), center=samples.center)


def pls(samples: TraceSamples, options: Options) -> TraceProblem:
    """X'K_Y X | I, K_Y = Y Y' or any label kernel."""
    return TraceProblem(_labels(samples), center=samples.center)


def opls(samples: TraceSamples, options: Options) -> TraceProblem:
    """X'Y Y'X | X'X + c I."""
    return _correlated(samples, _labels(samples), options.ridge)


def cca(samples: TraceSamples, options: Options) -> TraceProblem:
    """X'Y (Y'Y)^-1 Y'X | X'X + c I, with a ridge for X only and the pseudo-inverse for dependent labels."""
    Y, rooted = samples.factor, samples.rooted(samples.factor)
    form = QuadraticForm(samples.n, factor=Y @ power_of(rooted.T @ rooted, -0.5))
    return _correlated(samples, form, options.ridge)


def mddm(samples: TraceSamples, options: Options) -> TraceProblem:
    """X'H K_Y H X | (1 - s) X'X + s I, s the shrinkage; the paper's mu is 1 - s."""
    s = options.shrinkage
    if s == 1:
        return pls(samples, options)
    return TraceProblem(_labels(samples), QuadraticForm(samples.n, identity=1 - s), s, samples.center)


def hsic_biased(samples: TraceSamples, options: Options) -> TraceProblem:
    """X'H K_Y H X / (n - 1)^2 | I: the eigenvalues are estimates HSIC_0."""
    factor = samples.factor / max(samples.size - 1, 1)
    return TraceProblem(QuadraticForm(samples.n, factor=factor), center=samples.center)


def hsic_unbiased(samples: TraceSamples, options: Options) -> TraceProblem:
    """X'Q X | I with the unbiased estimate HSIC_1 = tr(K Q); Q is indefinite and Q1 = 0.

    Q = [L + s/((n-1)(n-2)) (11' - I) - (l1' + 1l' - 2 diag(l))/(n-2)] / (n(n-3)), L = K_Y - diag(K_Y), l = L1, s = 1'l.
    """
    n, T = samples.size, samples.factor  # The matrix Q is invariant to centering of the labels.
    if n < 4:
        raise TooFewSamples(f"hsic-1 needs at least 4 samples, got {n:g}; use hsic-0")
    own = np.einsum("ij,ij->i", T, T)
    sums = T @ samples.total(T) - own
    total = samples.total(sums) / ((n - 1) * (n - 2))
    q = T.shape[1]
    core = np.zeros((q + 2, q + 2))
    core[:q, :q] = np.eye(q)
    core[q, q + 1] = core[q + 1, q] = -1 / (n - 2)
    core[q + 1, q + 1] = total
    scale = n * (n - 3)
    diagonal = (2 * sums / (n - 2) - own - total) / scale
    factor = np.column_stack([T, sums, np.ones(samples.n)])
    form = QuadraticForm(samples.n, factor=factor, core=core / scale, diagonal=diagonal)
    return TraceProblem(form, center=samples.center)


def hypergraph(expansion: Literal["clique", "star", "zhou"]) -> Callable[[TraceSamples, Options], TraceProblem]:
    """X'S X | X'X + c I with S = Dv^-1/2 Y W Y' Dv^-1/2 of the hypergraph whose edges are the labels."""

    def problem(samples: TraceSamples, options: Options) -> TraceProblem:
        Y = samples.Y
        if ((Y != 0) & (Y != 1)).any():
            raise UserError("hypergraph methods need labels of 0 and 1 without a label kernel; binarize y")
        size = samples.total(Y)
        inverse = np.divide(1.0, size, out=np.zeros_like(size), where=size > 0)
        weights = {"clique": np.ones_like(size), "star": inverse**2, "zhou": inverse}[expansion]
        degrees = Y @ {"clique": size, "star": inverse, "zhou": np.ones_like(size)}[expansion]
        shares = np.divide(1.0, np.sqrt(degrees), out=np.zeros_like(degrees), where=degrees > 0)
        T = shares[:, None] * Y * np.sqrt(weights)
        form = QuadraticForm(samples.n, factor=T - samples.mean(T) if samples.center else T)
        return _correlated(samples, form, options.ridge)

    problem.__doc__ = f"X'Dv^-1/2 Y W Y'Dv^-1/2 X | X'X + c I, the {expansion} expansion."
    return problem


def slvm(samples: TraceSamples, options: Options) -> TraceProblem:
    """(1 - beta) X X' + beta Y Y' | Z'Z = I, new rows by regression."""
    beta = options.mixing
    form = QuadraticForm(samples.n, factor=np.sqrt(beta) * samples.factor, kernel=1 - beta)
    return TraceProblem(form, None, options.ridge, samples.center, direct=True)


def kde(samples: TraceSamples, options: Options) -> TraceProblem:
    """K_Y | Z'Z = I, coordinates scaled by sqrt(eigenvalue): kernel PCA of the outputs, regressed on X."""
    return TraceProblem(_labels(samples), None, options.ridge, samples.center, scaled=True, direct=True)


def morp_direct(samples: TraceSamples, options: Options) -> TraceProblem:
    """X'C X | X'X + c I, C = (1 - beta) K + beta (tr K / tr K_Y) K_Y [MORP 6]."""
    beta = options.mixing
    form = QuadraticForm(samples.n, kernel=1 - beta)
    if beta:
        form = form + _labels(samples).times(beta * samples.label_scale)
    return replace(_correlated(samples, form, options.ridge), scaled=True)


def morp_simplified(samples: TraceSamples, options: Options) -> TraceProblem:
    """Z'CZ | Z'Z = I, coefficients K^-1 Z by ridge c, scaled by sqrt(lambda) [MORP 14 approximated, 15, 16]."""
    return replace(morp_direct(samples, options), B=None, direct=True)


def _labels(samples: TraceSamples) -> QuadraticForm:
    """Return the form K_Y of the label kernel, which is centered if the samples are."""
    return QuadraticForm(samples.n, factor=samples.factor)


def _correlated(samples: TraceSamples, A: QuadraticForm, ridge: float) -> TraceProblem:
    """Return the problem with the form A as objective and X'X + c I as constraint."""
    return TraceProblem(A, QuadraticForm(samples.n, identity=1.0), ridge, samples.center)


NEIGHBORS = 15
"""Default number of neighbors of each sample."""


def reach(k: int | None, n: int) -> int:
    """Return the number of neighbors k or, if k is None, the default of 15, limited to the n - 1 other samples."""
    if k is None:
        return min(NEIGHBORS, n - 1)
    if k >= n:
        raise TooFewSamples(f"n_neighbors = {k} of {n} samples; expected a whole number from 1 to {n - 1}")
    return k


def weight_graph(X: Any, options: Options) -> csr_array:
    """Return the symmetric n x n weights that the user passed, or the weights of the neighbor graph of the rows X."""
    n = X.shape[0]
    if not isinstance(options.weight, str):
        return check_symmetric(options.weight, n)
    graph = adjacency(neighbors(X, reach(options.n_neighbors, n), options.metric), options.adjacency)
    return weigh(graph, X, options.weight, options.bandwidth, tau=options.tau)


def degrees(W: csr_array) -> np.ndarray:
    """Compute the sum of the weights of each sample; raise UserError if a sum is not positive."""
    found = np.asarray(W.sum(axis=1), np.float64).ravel()
    if (found <= 0).any():
        i = int(found.argmin())
        raise UserError(
            f"the weights of sample {i} sum to {found[i]:.3g}, expected a positive sum; raise n_neighbors, or use "
            "adjacency='union' or positive weights"
        )
    return found


def residual(X: Any, options: Options) -> QuadraticForm:
    """Return the form -(I - S)'(I - S), where S contains the weights that reconstruct samples from their neighbors."""
    n = X.shape[0]
    found = neighbors(X, reach(options.n_neighbors, n), options.metric)
    C = scipy.sparse.eye_array(n) - reconstruction_weights(X, found, options.regularization)
    return QuadraticForm(n, csr_array(-(C.T @ C)))


def smooth(X: Any, options: Options) -> QuadraticForm:
    """Return the form Lap(W), the Laplacian of the weighted neighbor graph."""
    return QuadraticForm(X.shape[0], laplacian(weight_graph(X, options)))


def lpp(samples: TraceSamples, options: Options) -> TraceProblem:
    """-X'Lap(W)X | X'DX + c I."""
    W = weight_graph(samples.rows, options)
    D = QuadraticForm(samples.n, diagonal=degrees(W))
    return TraceProblem(QuadraticForm(samples.n, csr_array(-laplacian(W))), D, options.ridge, center=False)


def olpp(samples: TraceSamples, options: Options) -> TraceProblem:
    """-X'Lap(W)X | I."""
    return TraceProblem(smooth(samples.rows, options).times(-1.0))


def npp(samples: TraceSamples, options: Options) -> TraceProblem:
    """-X'(I - S)'(I - S)X | X'X + c I."""
    constraint = QuadraticForm(samples.n, identity=1.0)
    return TraceProblem(residual(samples.rows, options), constraint, options.ridge, center=False)


def onpp(samples: TraceSamples, options: Options) -> TraceProblem:
    """-X'(I - S)'(I - S)X | I."""
    return TraceProblem(residual(samples.rows, options))


def usc(samples: TraceSamples, options: Options) -> TraceProblem:
    """-Lap(W) | I on Z itself, without the constant."""
    return _embedding(smooth(samples.rows, options).times(-1.0), constant=True)


def eigenmaps(samples: TraceSamples, options: Options) -> TraceProblem:
    """-Lap(W) | D on Z itself, without the constant."""
    W = weight_graph(samples.rows, options)
    D = QuadraticForm(samples.n, diagonal=degrees(W))
    return _embedding(QuadraticForm(samples.n, csr_array(-laplacian(W))), D, constant=True)


def nsc(samples: TraceSamples, options: Options) -> TraceProblem:
    """D^-1/2 W D^-1/2 | I on Z itself, rows of length 1."""
    W = weight_graph(samples.rows, options)
    return _embedding(QuadraticForm(samples.n, W).weighted(1 / np.sqrt(degrees(W))), unit_rows=True)


def lle(samples: TraceSamples, options: Options) -> TraceProblem:
    """-(I - S)'(I - S) | I on Z itself, without the constant."""
    return _embedding(residual(samples.rows, options), constant=True)


def mds(samples: TraceSamples, options: Options) -> TraceProblem:
    """-1/2 H D2 H | I on Z itself, columns scaled by sqrt(lambda); of Euclidean distances: Xc Xc'."""
    X = dense(samples.rows)
    return _embedding(QuadraticForm(samples.n, factor=X - X.mean(axis=0)), scaled=True)


def isomap(samples: TraceSamples, options: Options) -> TraceProblem:
    """-1/2 H D2 H | I on Z itself with geodesic distances D, columns scaled by sqrt(lambda)."""
    found = neighbors(samples.rows, reach(options.n_neighbors, samples.n), options.metric)
    squared = geodesics(weigh(adjacency(found, options.adjacency), samples.rows, "distance")) ** 2
    return _embedding(double_centered(squared), scaled=True)


def double_centered(squared: np.ndarray) -> QuadraticForm:
    """Return the form -1/2 H D2 H for the centering matrix H and a dense matrix D2 of squared distances."""
    means = squared.mean(axis=0)
    B = -0.5 * (squared - means - means[:, None] + means.mean())
    return QuadraticForm(len(B), (B + B.T) / 2)


def _embedding(A: QuadraticForm, B: QuadraticForm | None = None, **more: bool) -> TraceProblem:
    """Return a problem for the coordinates Z of the training samples, which cannot embed new samples."""
    return TraceProblem(A, B, ridge=0.0, center=False, direct=True, **more)
