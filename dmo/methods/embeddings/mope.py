"""MOPE: projections onto directions in which samples of high combined proximity lie alike.

All forms solve max tr(Z' S Z) for a sparse symmetric S (n x n) of proximities; eigenvalues are the algebraically largest.
Source: Mu, Goulermas, Tsujii, Ananiadou 2012 [MOPE 30, 31, 43-46].
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import scipy.sparse
from scipy.sparse import csr_array

from dmo.errors import UserError
from dmo.graphs import laplacian
from dmo.linalg.eigen import CUTOFF, block_krylov, check_rank, fix_signs, solve_trace
from dmo.methods.embeddings.catalog import METHODS
from dmo.methods.embeddings.direct import solve_direct
from dmo.methods.embeddings.projected import solve_projected
from dmo.methods.embeddings.quadratic_forms import QuadraticForm, TraceProblem, mix
from dmo.methods.embeddings.samples import Options, Samples
from dmo.methods.embeddings.solvers import EmbeddingFit

Constraint = Literal["projection", "embedding", "coefficients"]
CONSTRAINTS: dict[str, float] = {"projection": 0.5, "embedding": 0.0, "coefficients": 1.0}
"""What is orthonormal, and the power of K's eigenvalues that belongs to it: P (in feature space, P'P = Gamma'K Gamma),
Z (Z'Z = Gamma'KK Gamma), or Gamma."""


def semi_supervised(
    psi: csr_array,
    labeled: np.ndarray,
    constraint: Constraint,
    ridge: float,
    center: bool,
    W: csr_array | None,
    mixing: float,
    method: Literal["pca", "olpp"],
) -> TraceProblem:
    """Mix proximities of labeled samples with an unsupervised term over all.

    psi, W (n, n); labeled (n,)
    """
    # mixing times Psi plus (1 - mixing) times A_un, A_un = I ("pca"; LSI of rows that are not centered) or -Lap(W)
    # ("olpp"); P'P = I, or the same mix of Z_l'Z_l and Z'Z plus a ridge.
    #
    # [MOPE 44, 45].
    if method not in ("pca", "olpp"):
        raise UserError(f"unsupervised = {method!r}; known: pca, olpp")
    n, index = len(labeled), np.flatnonzero(labeled)

    def problem(A: QuadraticForm) -> TraceProblem:
        if constraint == "embedding":
            return TraceProblem(A, QuadraticForm(A.n, identity=1.0), ridge, center)
        return TraceProblem(A, center=center)

    own = problem(QuadraticForm(len(index), csr_array(psi[index][:, index])))
    if center and len(index) < n:
        own = own.centered()
    own = own.spread(index, n)
    if W is None:
        return own
    other = QuadraticForm(n, identity=1.0) if method == "pca" else QuadraticForm(n, csr_array(-laplacian(W)))
    return mix(own, problem(other), mixing)


def project_labels(name: str, Y: np.ndarray, rank: int | None) -> np.ndarray | None:
    """Project label vectors by an unsupervised method, with the labels as its rows.

    Y (n, L) -> (n, rank)
    """
    # [MOPE 39, and below it].
    if name == "pca":
        return None
    labeled, entry = np.flatnonzero(Y.any(axis=1)), METHODS[name]
    rows = Y[labeled].astype(np.float64)
    k = int(np.linalg.matrix_rank(rows - rows.mean(axis=0))) if rank is None else rank
    problem = entry.problem(Samples(len(rows), rows, center=entry.center), Options())
    found = solve_direct(problem, k).vectors if entry.direct else rows @ solve_projected(problem, rows, k).coefficients
    Z = np.zeros((len(Y), found.shape[1]))
    Z[labeled] = found
    return Z


def project_long_rows(
    S: QuadraticForm, X: Any, k: int, mean: np.ndarray | None, tol: float, max_steps: int, random_state: int | None
) -> EmbeddingFit:
    """Solve X'SX | I by block Krylov, with products of X and S alone: for rows with many features.

    X (n, d); mean (d,)
    """

    def rows(B: np.ndarray) -> np.ndarray:
        Z = np.asarray(X @ B)
        return Z if mean is None else Z - mean @ B

    def apply(B: np.ndarray) -> np.ndarray:
        V = S @ rows(B)
        out = np.asarray(X.T @ V)
        return out if mean is None else out - np.outer(mean, V.sum(axis=0))

    width = min(k + 10, X.shape[1])
    start = np.random.default_rng(random_state).standard_normal((X.shape[0], width))
    found = block_krylov(apply, np.asarray(X.T @ start), k, tol, max_steps)
    return EmbeddingFit(found.values, found.vectors, found.steps, found.converged, float(found.residuals.max()))


def project_kernel(S: QuadraticForm, K: np.ndarray, k: int, constraint: Constraint, ridge: float = 0.0) -> EmbeddingFit:
    """Find coefficients Gamma of Z = K Gamma, in the eigenbasis of K: the kernel form.

    K (n, n)
    """
    # K = V diag(l) V', Gamma = V (s / l) q: q are the eigenvectors of s V'SV s, s = l^e with e of the constraint;
    # with a ridge, Gamma'(KK + ridge K)Gamma = I, s = (l / (l + ridge))^1/2.
    #
    # [MOPE 46].
    l, V = scipy.linalg.eigh(K, check_finite=False)
    keep = l > CUTOFF * max(l[-1], np.finfo(float).tiny)
    l, V = l[keep], V[:, keep]
    check_rank(len(l), k)
    scale = np.sqrt(l / (l + ridge)) if constraint == "embedding" else l ** CONSTRAINTS[constraint]
    weighted = V * scale
    found = solve_trace(weighted.T @ (S @ weighted), None, k)
    return EmbeddingFit(found.values, fix_signs(V @ ((scale / l)[:, None] * found.vectors)))
