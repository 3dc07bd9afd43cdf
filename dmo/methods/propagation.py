"""Label propagation with class similarities: one diagonalization of an L x L matrix, then L sparse systems.

With W (n x n) the weights of a graph, Sigma (L x L) the similarities of the classes, Y the labels of the samples l, and
Lap, Ln the Laplacian and the normalized one, Z (n x L) minimizes
  smse1    lam1 tr(Z' Lap(W) Z) + lam2 tr(Z Lap(Sigma) Z')  subject to Z_l = Y_l                  [MOPE 23]
  smse2    |Z_l - Y_l|^2 + |Z_u|^2 + lam1 tr(Z' Ln(W) Z) + lam2 tr(Z Ln(Sigma) Z')                [MOPE 24]
  ml-grf   |Z_l - Y_l|^2 + lam1 tr(Z' Lap(W) Z) - lam2 tr(Z Sigma Z')                             [MOPE 25]
  ml-lgc   |Z_l - Y_l|^2 + |Z_u|^2 + lam1 tr(Z' Ln(W) Z) - lam2 tr(Z Sigma Z')                    [MOPE 25]
so that A Z + Z C = R with A sparse, C = Q diag(s) Q': (A + s_j I) v_j = R q_j, Z = V Q'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.sparse.csgraph
from scipy.sparse import csr_array
from scipy.sparse.linalg import ArpackNoConvergence, eigsh

from dmo.errors import UserError
from dmo.graphs import laplacian
from dmo.linalg.cg import solve_shifted

Propagation = Literal["smse1", "smse2", "ml-grf", "ml-lgc"]
METHODS = ("smse1", "smse2", "ml-grf", "ml-lgc")
_DENSE = 1500


@dataclass(frozen=True)
class Propagated:
    """`scores` (n x L); `correlation`, the lam2 that was used; steps and largest relative residual of the systems."""

    scores: np.ndarray
    correlation: float
    steps: int
    residual: float


def propagate(
    method: Propagation,
    W: csr_array,
    Y: np.ndarray,
    known: np.ndarray,
    sigma: np.ndarray,
    smoothness: float,
    correlation: float | None,
    tol: float = 1e-8,
    max_steps: int = 10_000,
) -> Propagated:
    """Work out label scores of all samples from those of some, over a graph.

    W (n, n); Y (n, L); known (n,); sigma (L, L)
    """
    # [MOPE 23-25].
    if method not in METHODS:
        raise UserError(f"method = {method!r}; known: {', '.join(METHODS)}")
    if W.nnz and W.data.min() < 0:
        raise UserError(
            f"the graph has a weight of {W.data.min():.3g}, and propagation needs weights of at least 0; take 'gaussian'"
        )
    if method in ("smse1", "ml-grf"):
        _check_reached(W, known)
    Y = np.where(known[:, None], Y, 0.0)
    L = laplacian(W, normalized=method in ("smse2", "ml-lgc")) * smoothness
    unknown = np.flatnonzero(~known)
    if method == "smse1":
        A, R = csr_array(L[unknown][:, unknown]), -np.asarray(L[unknown] @ Y)
    else:
        fit = known.astype(np.float64) if method == "ml-grf" else np.ones(len(Y))
        A, R = csr_array(L + scipy.sparse.diags_array(fit)), Y
    if method.startswith("smse"):
        correlation = 0.1 if correlation is None else correlation
        C = laplacian(csr_array(sigma), normalized=method == "smse2").toarray()
        shifts, Q = scipy.linalg.eigh((C + C.T) / 2)
        if shifts[0] < -1e-9 * max(abs(shifts).max(), 1.0) and correlation:
            raise UserError("the Laplacian of the class similarities is indefinite; take similarities of at least 0")
        shifts = correlation * np.maximum(shifts, 0.0)
    else:
        values, Q = scipy.linalg.eigh((sigma + sigma.T) / 2)
        correlation = _bounded(method, A, values[-1], correlation)
        shifts = -correlation * values
    if not A.shape[0]:
        return Propagated(Y, correlation, 0, 0.0)
    V, steps, residual = solve_shifted(A, shifts, R @ Q, tol, max_steps)
    if method != "smse1":
        return Propagated(V @ Q.T, correlation, steps, residual)
    Z = Y.copy()
    Z[unknown] = V @ Q.T
    return Propagated(Z, correlation, steps, residual)


def _check_reached(W: csr_array, known: np.ndarray) -> None:
    """Every component of the graph needs a sample with known labels, or its system is singular."""
    count, member = scipy.sparse.csgraph.connected_components(scipy.sparse.csr_matrix(W), directed=False)
    reached = np.bincount(member, weights=known, minlength=count) > 0
    if not reached.all():
        sizes = np.bincount(member)[~reached]
        raise UserError(
            f"{len(sizes)} of the graph's {count} components have no sample with known labels ({sizes.sum()} samples); "
            f"raise n_neighbors, label one sample of each, or take method 'ml-lgc' or 'smse2'"
        )


def _bounded(method: str, A: csr_array, largest: float, correlation: float | None) -> float:
    """lam2, below the smallest eigenvalue of A over the largest of Sigma."""
    if correlation == 0:
        return correlation
    smallest = 1.0 if method == "ml-lgc" else _smallest(A)  # I + lam1 Ln: Ln has the eigenvalue 0
    bound = smallest / largest
    if correlation is None:
        return bound / 2
    if correlation >= bound:
        raise UserError(
            f"correlation = {correlation:g} makes {method} unbounded; it must be below {bound:.4g}, the smallest "
            f"eigenvalue of the graph's matrix ({smallest:.3g}) over the largest of the class similarities ({largest:.3g})"
        )
    return correlation


def _smallest(A: csr_array) -> float:
    n = A.shape[0]
    if n <= _DENSE:
        return float(scipy.linalg.eigvalsh(A.toarray(), subset_by_index=[0, 0])[0])
    try:
        start = np.random.default_rng(0).standard_normal(n)
        found = eigsh(A, 1, which="SA", ncv=60, tol=1e-3, maxiter=500, v0=start, return_eigenvectors=False)
    except ArpackNoConvergence as error:
        raise UserError(
            "the smallest eigenvalue of the graph's matrix, which bounds correlation, was not found; take correlation=0, "
            "or method 'ml-lgc'"
        ) from error
    return float(found[0])
