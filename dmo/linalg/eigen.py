"""Leading eigenpairs of a symmetric map known by its products: block Krylov with Rayleigh-Ritz."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from dmo.errors import UserError
from dmo.linalg.tall import LinearMap, gram, orthonormalize
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


_PATIENCE = 12
"""Block steps without a halved residual after which a generalized problem is given up: its maps have no more digits."""
_INDEPENDENT = 1e-13
"""Basis vectors whose length in x'Cx is below this share of the largest are left out of a generalized projection."""


def block_krylov(
    apply: LinearMap,
    start: np.ndarray,
    k: int,
    tol: float = 1e-7,
    max_steps: int = 30,
    max_basis: int | None = None,
    inner: LinearMap | None = None,
) -> Eigenpairs:
    """The k algebraically largest eigenpairs of a symmetric map M, or of a product M = H C of two.

    Arguments: `apply`: an n x m block to its image under M; `start`: n x s block of rank k at least that spans a good
    guess; `tol`: residual |M u - theta u| relative to the largest |theta| found and to |u|, at which a pair counts as
    converged; `max_steps`: blocks to apply the map to; `max_basis`: columns (default 5 s + k, 60 + k at least) above which
    the basis restarts from its 2 k best vectors. Two bases of that size are the memory, n x max_basis float64 each.
    `inner`: a block to its image under C, symmetric positive semidefinite; `apply` is then that of H, symmetric, and M = H C
    is self-adjoint in the product x'Cy. A third basis holds the images under C. Pairs that have stopped improving while
    their residual is above `tol` are returned as not converged.
    Returns vectors of Euclidean length 1, orthogonal in that product. Raises ValueError for a start of rank below k, for a
    C of rank below k, and for a map whose values are not finite.

    On the numerics:
    1. The basis V is orthonormal in the Euclidean product even where the problem's is x'Cy: C may be singular or badly
       conditioned, and Gram-Schmidt in it would lose what little the basis has. V'CV is then whitened, and directions on
       which C is all but zero stay out of the projection (they return with later blocks if they matter).
    2. Every block is orthogonalized twice against the whole basis. The three-term recurrence of Lanczos would need two
       blocks only, but loses orthogonality as soon as a pair converges, and returns it again as a copy.
    3. Residuals are worked out from the stored images, M V y - theta V y, not from the recurrence, at the price of one
       n x k product a step: what is reported is the true residual but for the rounding of the images themselves.
    4. A restart keeps 2 k Ritz vectors, of which the k beyond those wanted hold the search in place (with k alone,
       crowded eigenvalues are found over and over), and goes on with the residuals, which is where Krylov would go.
    5. An empty new block means that the basis is invariant: what is left of the residual is rounding in the maps.
    """
    V = orthonormalize(start)
    if k < 1:
        raise UserError(f"k = {k} eigenpairs; ask for at least 1")
    if inner is None and V.shape[1] < k:
        raise UserError(f"the start spans {V.shape[1]} dimensions, {k} eigenpairs need at least {k}")
    limit = max_basis or max(5 * start.shape[1], 60) + k
    basis, block = _Basis(V, np.zeros((len(V), 0)), np.zeros((len(V), 0))), V
    history: list[float] = []
    scale, best, since = np.finfo(float).tiny, np.inf, 0
    with stage("eigenpairs (block steps)") as advance:
        while True:
            basis = basis.mapped(block, apply, inner)
            advance(1)
            values, vectors = basis.ritz()
            # the largest |theta| so far estimates |M| from below; it never shrinks, so that no residual passes by a restart
            # that lost the far end of the spectrum
            scale = max(scale, np.abs(values).max(initial=0.0))
            values, kept = values[:k], vectors[:, : 2 * k]
            ritz, images = basis.V @ vectors[:, :k], basis.image @ vectors[:, :k]
            rest = images - ritz * values
            lengths = np.linalg.norm(ritz, axis=0)
            residuals = np.linalg.norm(rest, axis=0) / (scale * lengths)
            history.append(float(values.sum()))
            converged = len(values) == k and bool((residuals <= tol).all())
            # halved, not merely smaller: residuals that only flicker in the last digits would never run out of patience
            best, since = (
                (residuals.max(initial=0.0), 0) if residuals.max(initial=0.0) < best / 2 else (best, since + 1)
            )
            if converged or len(history) >= max_steps or (inner is not None and since >= _PATIENCE):
                break
            # the images of the last block alone: those of earlier blocks lie in the basis already
            following = basis.image[:, -block.shape[1] :]
            if basis.V.shape[1] + block.shape[1] > limit:
                basis, following = basis.restarted(kept), rest
            block = orthonormalize(following, against=basis.V)
            if not block.shape[1]:
                converged = len(values) == k
                break
            basis = basis.extended(block)
    check_rank(len(values), k)
    return Eigenpairs(values, fix_signs(ritz / lengths), residuals, history, converged)


@dataclass(frozen=True)
class _Basis:
    """V (n x m, orthonormal), C V and M V; the last block of V may still lack its images. C V is V itself where C = I."""

    V: np.ndarray
    CV: np.ndarray
    image: np.ndarray

    def mapped(self, block: np.ndarray, apply: LinearMap, inner: LinearMap | None) -> _Basis:
        """With the images of the last block."""
        if inner is None:
            return _Basis(self.V, self.V, np.hstack([self.image, apply(block)]))
        within = inner(block)
        return _Basis(self.V, np.hstack([self.CV, within]), np.hstack([self.image, apply(within)]))

    def ritz(self) -> tuple[np.ndarray, np.ndarray]:
        """All eigenpairs of M projected on the basis, largest first; vectors are combinations of its columns."""
        projected = gram(self.CV, self.image)
        if not np.isfinite(projected).all():
            raise UserError("eigenpairs: the map returned values that are not finite; check its input for NaN and inf")
        # rounding leaves V'MV unsymmetric by its own size, and LAPACK would read one triangle of it
        projected = (projected + projected.T) / 2
        if self.CV is self.V:
            return _largest(projected, len(projected))
        whiten = _whitening(gram(self.V, self.CV), _INDEPENDENT)
        return _whitened(projected, whiten, whiten.shape[1])

    def extended(self, block: np.ndarray) -> _Basis:
        """With one block more, which lacks its images."""
        return _Basis(np.hstack([self.V, block]), self.CV, self.image)

    def restarted(self, vectors: np.ndarray) -> _Basis:
        """Cut down to these combinations, orthonormal again: in x'Cy alone they are so by themselves, and drift."""
        Q, R = np.linalg.qr(self.V @ vectors)
        # change = vectors R^-1: the stored images are combined by it too, which saves applying the maps again
        change = scipy.linalg.solve_triangular(R, vectors.T, trans="T").T
        return _Basis(Q, self.CV @ change, self.image @ change)


CUTOFF = 1e-12
"""Directions of B below this share of its largest eigenvalue are no part of the problem.

Eigenvalues of a d x d matrix are exact to about d times 1e-16 of the largest: below 1e-12 they are rounding for d in the
thousands, and their inverse roots, by which the whitening multiplies, would be a million times those of the rest.
"""


@dataclass(frozen=True)
class TracePairs:
    """`values` (k, descending) and B-orthonormal `vectors` (d x k)."""

    values: np.ndarray
    vectors: np.ndarray


def solve_trace(A: np.ndarray, B: np.ndarray | None, k: int) -> TracePairs:
    """The k algebraically largest solutions of A w = lambda B w with W'BW = I.

    Arguments: `A` d x d symmetric, definite or not; `B` d x d symmetric positive semidefinite, None for I; where B is
    singular, w is sought in the span of the eigenvectors of B above CUTOFF times its largest eigenvalue.
    Raises ValueError where that span has fewer than k dimensions.
    Source: [MOPE 30, 31]; Golub, Van Loan, section 8.7.
    """
    A = (A + A.T) / 2
    if B is None:
        check_rank(len(A), k)
        values, vectors = _largest(A, k)
        return TracePairs(values, fix_signs(vectors))
    whiten = _whitening(B, CUTOFF)
    check_rank(whiten.shape[1], k)
    values, vectors = _whitened(A, whiten, k)
    return TracePairs(values, fix_signs(vectors))


def check_rank(rank: int, k: int) -> None:
    """Refuse more components than there are directions."""
    if not rank:
        raise UserError(
            "the problem has no direction: features, or labels, are constant over the samples that it is about"
        )
    if k > rank:
        raise UserError(f"n_components = {k}, but the problem has only {rank} directions; lower n_components to that")


def _whitening(B: np.ndarray, cutoff: float) -> np.ndarray:
    """T (d x r) with T'BT = I, over the range of B."""
    # by eigenvectors, not by Cholesky, which stops at the first pivot that rounding made negative
    values, vectors = scipy.linalg.eigh((B + B.T) / 2, check_finite=False)
    keep = values > cutoff * max(values[-1], np.finfo(float).tiny)  # `tiny`: nothing is kept of a B that is zero
    return vectors[:, keep] / np.sqrt(values[keep])


def _whitened(A: np.ndarray, whiten: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    inner = whiten.T @ A @ whiten
    values, vectors = _largest((inner + inner.T) / 2, k)
    return values, whiten @ vectors


def _largest(A: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    # algebraically largest, from the upper end: A may be indefinite, where those of largest magnitude are other pairs
    values, vectors = scipy.linalg.eigh(A, subset_by_index=[len(A) - k, len(A) - 1], check_finite=False)
    return values[::-1], vectors[:, ::-1]


def power_of(A: np.ndarray, exponent: float) -> np.ndarray:
    """A^exponent of a symmetric positive semidefinite matrix on its range (the pseudo-inverse for exponent -1)."""
    values, vectors = scipy.linalg.eigh((A + A.T) / 2, check_finite=False)
    keep = values > CUTOFF * max(values[-1], np.finfo(float).tiny)
    return (vectors[:, keep] * values[keep] ** exponent) @ vectors[:, keep].T
