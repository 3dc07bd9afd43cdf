"""MOPE: projections onto directions in which samples of high combined proximity lie alike.

All forms solve max tr(Z' S Z) for a sparse symmetric S (n x n) of proximities; eigenvalues are the algebraically largest.
Source: Mu, Goulermas, Tsujii, Ananiadou 2012 [MOPE 30, 31, 43-46].
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import scipy.linalg
import scipy.sparse
from scipy.sparse import csr_array

from dmo.eigen import block_krylov, fix_signs
from dmo.graphs import laplacian
from dmo.methods.forms import LinearFit, Pencil, SampleForm, solve_projected
from dmo.methods.trace import CUTOFF, check_rank, solve_trace
from dmo.methods.trace_engines import Fit

Constraint = Literal["projection", "embedding", "coefficients"]
CONSTRAINTS: dict[str, float] = {"projection": 0.5, "embedding": 0.0, "coefficients": 1.0}
"""What is orthonormal, and the power of K's eigenvalues that belongs to it: P (in feature space, P'P = Gamma'K Gamma),
Z (Z'Z = Gamma'KK Gamma), or Gamma."""


def semi_supervised(psi: csr_array, W: csr_array, supervision: float, method: Literal["pca", "olpp"]) -> csr_array:
    """supervision Psi + (1 - supervision) A_un (n x n, CSR): A_un = I ("pca", of centred rows; LSI) or -Lap(W) ("olpp").

    Source: [MOPE 44]. Raises ValueError for another method.
    """
    if method not in ("pca", "olpp"):
        raise ValueError(f"unsupervised = {method!r}; known: pca, olpp")
    if supervision == 1:
        return psi
    unsupervised = scipy.sparse.eye_array(psi.shape[0], format="csr") if method == "pca" else -laplacian(W)
    return csr_array(supervision * psi + (1 - supervision) * unsupervised)


def project_rows(S: csr_array, X: Any, k: int, constraint: Constraint, center: bool) -> LinearFit:
    """Coefficients (d x k) of features: X'SX | I, or | X'X for "embedding", through matrices of min(n, d) rows.

    Arguments: `S` n x n; `X` n x d, dense or CSR; `center`: less its mean. Raises ValueError where k is above its rank.
    """
    n = S.shape[0]
    B = SampleForm(n, diagonal=np.ones(n)) if constraint == "embedding" else None
    ridge = 1.0 if B is None else 0.0
    return solve_projected(Pencil(SampleForm(n, S), B, ridge, center=center), X, k)


def project_long_rows(
    S: csr_array, X: Any, k: int, mean: np.ndarray | None, tolerance: float, max_steps: int, random_state: int | None
) -> Fit:
    """The problem X'SX | I of rows less their `mean` (d, or None) by block Krylov: products with X and S alone."""

    def rows(B: np.ndarray) -> np.ndarray:
        Z = np.asarray(X @ B)
        return Z if mean is None else Z - mean @ B

    def apply(B: np.ndarray) -> np.ndarray:
        V = S @ rows(B)
        out = np.asarray(X.T @ V)
        return out if mean is None else out - np.outer(mean, V.sum(axis=0))

    width = min(k + 10, X.shape[1])
    start = np.random.default_rng(random_state).standard_normal((X.shape[0], width))
    found = block_krylov(apply, np.asarray(X.T @ start), k, tolerance, max_steps)
    return Fit(found.values, found.vectors, found.steps, found.converged, float(found.residuals.max()))


def project_kernel(S: csr_array, K: np.ndarray, k: int, constraint: Constraint) -> Fit:
    """Coefficients Gamma (n x k) of Z = K Gamma: the kernel form, in the eigenbasis of K (n x n, centred or not).

    K = V diag(l) V', Gamma = V l^(e-1) q: q are the eigenvectors of l^e V'SV l^e, e of the constraint. Source: [MOPE 46].
    Raises ValueError where K's rank is below k.
    """
    l, V = scipy.linalg.eigh(K, check_finite=False)
    keep = l > CUTOFF * max(l[-1], np.finfo(float).tiny)
    l, V = l[keep], V[:, keep]
    check_rank(len(l), k)
    power = CONSTRAINTS[constraint]
    weighted = V * l**power
    found = solve_trace(weighted.T @ (S @ weighted), None, k)
    return Fit(found.values, fix_signs(V @ (l[:, None] ** (power - 1) * found.vectors)))
