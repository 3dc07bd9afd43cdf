"""Leading eigenpairs of a symmetric map known by its products: block Krylov with Rayleigh-Ritz."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from dmo.errors import UserError
from dmo.linalg.tall import gram, orthonormalize
from dmo.progress import stage


@dataclass(frozen=True)
class Eigenpairs:
    """`values` (k, descending), `vectors` (n x k, orthonormal), relative `residuals` (k), objective after each step."""

    values: np.ndarray
    vectors: np.ndarray
    residuals: np.ndarray
    history: list[float]
    converged: bool

    @property
    def steps(self) -> int:
        """Applications of the map to a block."""
        return len(self.history)


def fix_signs(vectors: np.ndarray) -> np.ndarray:
    """The columns with their sign chosen so that the entry of largest magnitude is positive."""
    largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(vectors.shape[1])]
    return vectors * np.where(largest < 0, -1.0, 1.0)


def block_krylov(
    apply: Callable[[np.ndarray], np.ndarray],
    start: np.ndarray,
    k: int,
    tol: float = 1e-7,
    max_steps: int = 30,
    max_basis: int | None = None,
) -> Eigenpairs:
    """The k algebraically largest eigenpairs of a symmetric map.

    Arguments: `apply`: an n x m block to its image; `start`: n x s block of rank k at least that spans a good guess;
    `tol`: residual |M u - theta u| relative to the largest |theta| found, at which a pair counts as converged;
    `max_steps`: blocks to apply the map to; `max_basis`: columns (default 5 s + k) above which the basis restarts from
    its 2 k best vectors. Two bases of that size are the memory, n x max_basis float64 each.
    Raises ValueError for a start of rank below k, or a map whose values are not finite.
    """
    basis = orthonormalize(start)
    if k < 1:
        raise UserError(f"k = {k} eigenpairs; ask for at least 1")
    if basis.shape[1] < k:
        raise UserError(f"the start spans {basis.shape[1]} dimensions, {k} eigenpairs need at least {k}")
    limit = max_basis or 5 * start.shape[1] + k
    image = np.zeros((len(basis), 0))
    block, history, scale = basis, [], np.finfo(float).tiny
    with stage("eigenpairs (block steps)") as advance:
        while True:
            new = apply(block)
            image = np.hstack([image, new])
            advance(1)
            values, vectors = _leading(basis.T @ image)
            ritz, mapped = basis @ vectors[:, :k], image @ vectors[:, :k]
            scale = max(scale, np.abs(values).max())
            residuals = np.linalg.norm(mapped - ritz * values[:k], axis=0) / scale
            history.append(float(values[:k].sum()))
            converged = bool((residuals <= tol).all())
            if converged or len(history) >= max_steps:
                break
            if basis.shape[1] + new.shape[1] > limit:
                keep = min(basis.shape[1], 2 * k)
                basis, image = basis @ vectors[:, :keep], image @ vectors[:, :keep]
                new = mapped - ritz * values[:k]
            block = orthonormalize(new, against=basis)
            if not block.shape[1]:
                break
            basis = np.hstack([basis, block])
    return Eigenpairs(values[:k], fix_signs(ritz), residuals, history, converged)


def _leading(projected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenpairs of the symmetric part of a small matrix, largest first."""
    if not np.isfinite(projected).all():
        raise UserError("eigenpairs: the map returned values that are not finite; check its input for NaN and inf")
    values, vectors = np.linalg.eigh((projected + projected.T) / 2)
    return values[::-1], vectors[:, ::-1]


CUTOFF = 1e-12
"""Directions of B below this share of its largest eigenvalue are no part of the problem."""


@dataclass(frozen=True)
class TracePairs:
    """`values` (k, descending) and B-orthonormal `vectors` (d x k)."""

    values: np.ndarray
    vectors: np.ndarray


def solve_trace(A: np.ndarray, B: np.ndarray | None, k: int, cutoff: float = CUTOFF) -> TracePairs:
    """The k algebraically largest solutions of A w = lambda B w with W'BW = I.

    Arguments: `A` d x d symmetric, definite or not; `B` d x d symmetric positive semidefinite, None for I; where B is
    singular, w is sought in the span of the eigenvectors of B above `cutoff` times its largest eigenvalue.
    Raises ValueError where that span has fewer than k dimensions.
    Source: [MOPE 30, 31]; Golub, Van Loan, section 8.7.
    """
    A = (A + A.T) / 2
    if B is None:
        check_rank(len(A), k)
        values, vectors = _largest(A, k)
        return TracePairs(values, fix_signs(vectors))
    whiten = _whitening(B, cutoff)
    check_rank(whiten.shape[1], k)
    values, vectors = _whitened(A, whiten, k)
    return TracePairs(values, fix_signs(vectors))


def check_rank(rank: int, k: int) -> None:
    """Refuse more components than there are directions."""
    if k > rank:
        raise UserError(f"n_components = {k}, but the problem has only {rank} directions; lower n_components to that")


def _whitening(B: np.ndarray, cutoff: float) -> np.ndarray:
    """T (d x r) with T'BT = I, over the range of B."""
    values, vectors = scipy.linalg.eigh((B + B.T) / 2, check_finite=False)
    keep = values > cutoff * max(values[-1], np.finfo(float).tiny)
    return vectors[:, keep] / np.sqrt(values[keep])


def _whitened(A: np.ndarray, whiten: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    inner = whiten.T @ A @ whiten
    values, vectors = _largest((inner + inner.T) / 2, k)
    return values, whiten @ vectors


def _largest(A: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    values, vectors = scipy.linalg.eigh(A, subset_by_index=[len(A) - k, len(A) - 1], check_finite=False)
    return values[::-1], vectors[:, ::-1]


def power_of(A: np.ndarray, exponent: float, cutoff: float = CUTOFF) -> np.ndarray:
    """A^exponent of a symmetric positive semidefinite matrix on its range (the pseudo-inverse for exponent -1)."""
    values, vectors = scipy.linalg.eigh((A + A.T) / 2, check_finite=False)
    keep = values > cutoff * max(values[-1], np.finfo(float).tiny)
    return (vectors[:, keep] * values[keep] ** exponent) @ vectors[:, keep].T


Map = Callable[[np.ndarray], np.ndarray]
_PATIENCE = 12


def pencil_krylov(
    inner: Map, outer: Map, start: np.ndarray, k: int, tol: float = 1e-7, max_steps: int = 100
) -> Eigenpairs:
    """The k algebraically largest eigenpairs of x -> outer(inner(x)), by block Krylov with Rayleigh-Ritz.

    Arguments: `inner`: n x m blocks to C x, C symmetric positive semidefinite; `outer`: to H x, H symmetric: H C is
    self-adjoint in the product x'Cy, in which it is projected; `start` n x s, s >= k; `tol`: residual
    |HCx - theta x| relative to |theta_1||x|; `max_steps`: blocks that the map is applied to. It also stops where rounding
    in the maps lets the residual fall no further (by half in `_PATIENCE` steps).
    Returns vectors of Euclidean length 1, orthogonal in the product x'Cy. Raises ValueError where C's rank is below k.
    """
    V = orthonormalize(start)
    limit, history = max(5 * V.shape[1], 60) + k, []
    best, since = np.inf, 0
    CV, image, block = np.zeros((len(V), 0)), np.zeros((len(V), 0)), V
    with stage("eigenpairs (block steps)") as advance:
        while True:
            new = inner(block)
            CV, image = np.hstack([CV, new]), np.hstack([image, outer(new)])
            advance(1)
            projected, whiten = gram(CV, image), _whitening(gram(V, CV), 1e-13)
            values, vectors = _whitened((projected + projected.T) / 2, whiten, min(2 * k, whiten.shape[1]))
            values = values[:k]
            ritz, mapped = V @ vectors[:, :k], image @ vectors[:, :k]
            lengths = np.linalg.norm(ritz, axis=0)
            rest = mapped - ritz * values
            residuals = np.linalg.norm(rest, axis=0) / (lengths * max(abs(values[0]), np.finfo(float).tiny))
            history.append(float(values.sum()))
            converged = len(values) == k and bool((residuals <= tol).all())
            best, since = (residuals.max(), 0) if residuals.max() < best / 2 else (best, since + 1)
            if converged or len(history) >= max_steps or since >= _PATIENCE:
                break
            if V.shape[1] + block.shape[1] > limit:
                V, CV, image = _restart(V, CV, image, vectors)
                following = rest
            else:
                following = image[:, -block.shape[1] :]
            block = orthonormalize(following, against=V)
            if not block.shape[1]:  # an invariant space: what is left of the residual is rounding in the maps
                converged = len(values) == k
                break
            V = np.hstack([V, block])
    check_rank(len(values), k)
    return Eigenpairs(values, fix_signs(ritz / lengths), residuals, history, converged)


def _restart(
    V: np.ndarray, CV: np.ndarray, image: np.ndarray, vectors: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The basis, and its images, cut down to the Ritz vectors, orthonormal again."""
    Q, R = np.linalg.qr(V @ vectors)
    change = scipy.linalg.solve_triangular(R, vectors.T, trans="T").T
    return Q, CV @ change, image @ change
