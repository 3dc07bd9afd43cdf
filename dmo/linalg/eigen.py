"""Leading eigenpairs of a symmetric map given by its products: block Krylov with Rayleigh-Ritz."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from dmo.errors import UserError
from dmo.linalg.rows import hstack, lengths
from dmo.linalg.tall import LinearMap, gram, orthonormalize
from dmo.progress import stage
from dmo.threads import product


@dataclass(frozen=True)
class Eigenpairs:
    """Leading eigenpairs with residuals and convergence history."""

    values: np.ndarray  # (k,): eigenvalues in descending order
    vectors: np.ndarray  # (n, k): eigenvectors of unit norm
    residuals: np.ndarray  # (k,): |M u - theta u| relative to the largest |theta| found
    history: list[float]  # sum of the eigenvalues after each step
    converged: bool  # whether all residuals are at most the tolerance

    @property
    def steps(self) -> int:
        """Number of block steps, each of which applies the map to a block."""
        return len(self.history)


def fix_signs(vectors: np.ndarray) -> np.ndarray:
    """Flip the sign of each column so that its entry of largest magnitude is positive.

    vectors (n, k) -> (n, k)
    """
    largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(vectors.shape[1])]
    return vectors * np.where(largest < 0, -1.0, 1.0)


# The basis restarts when it would exceed max(5 blocks, 60 columns) plus k columns, for k requested pairs.
_BLOCKS, _COLUMNS = 5, 60


def basis_columns(block: int, k: int) -> int:
    """Return the maximum number of columns of the search basis for blocks of `block` columns and k eigenpairs."""
    return max(_BLOCKS * block, _COLUMNS) + k


_PATIENCE = 12
"""Block steps without halving the residual after which a generalized problem stops: its maps have reached their
accuracy."""
_INDEPENDENT = 1e-13
"""Basis vectors whose length in x'Cx is below this fraction of the largest are excluded from a generalized
projection."""
SHARE = 0.25
"""Fraction of the tolerance that errors in the images of one block may use."""


def block_krylov(
    apply: LinearMap,
    start: np.ndarray,
    k: int,
    tol: float = 1e-7,
    max_steps: int = 30,
    inner: LinearMap | None = None,
    loosen: Callable[[float], None] | None = None,
) -> Eigenpairs:
    """Compute the k algebraically largest eigenpairs of a symmetric map M, or of a product M = H C of two.

    start (n, s)
    """
    # Numerical design:
    #
    # 1. The basis V is orthonormal in the Euclidean product even if the problem uses x'Cy. C may be singular or
    #    ill-conditioned, and Gram-Schmidt in this product would lose accuracy. Instead, V'CV is whitened. Directions
    #    on which C almost vanishes stay out of the projection; they return with later blocks if they matter.
    # 2. Every block is orthogonalized twice against the whole basis. The three-term Lanczos recurrence needs only two
    #    blocks, but it loses orthogonality as soon as a pair converges and then finds copies of that pair.
    # 3. Residuals are computed from the stored images as M V y - theta V y, not from the recurrence. This costs one n
    #    x k product per step and reports the true residual up to rounding errors in the images.
    # 4. A restart keeps 2 k Ritz vectors and continues with the residuals, as the Krylov method would. The k extra
    #    vectors stabilize the search: with k vectors alone, clustered eigenvalues are found repeatedly.
    # 5. An empty new block means that the basis is invariant. The remaining residual is rounding error in the maps.
    # 6. With `loosen`, the images may be as inexact as the result allows. A block of residuals enters the Ritz
    #    vectors with coefficients s of the size of these residuals (divided by the distance of the eigenvalues). The
    #    errors of its images may be larger than those of the first block by the same factor, so that later blocks are
    #    cheap near convergence. Two measures make this safe. First, the projection computes products of two blocks
    #    from the images of the earlier block, which are more exact; averaging both would add the full errors of the
    #    later block. Second, the search checks the total error of all images with the coefficients that were actually
    #    used. If it exceeds the tolerance (clustered eigenvalues), the search restarts from the current Ritz vectors.
    #    The new images are exact enough for any coefficients.
    #
    # Memory: two float64 bases of 5 s + k columns (at least 60 + k). `inner` adds a third basis for the images under
    # C.
    #
    # Saad 2011, chapters 6 and 7; inexact maps: Simoncini, Szyld 2003.
    V = orthonormalize(start)
    if k < 1:
        raise UserError(f"k = {k} eigenpairs; request at least 1")
    if inner is None and V.shape[1] < k:
        raise UserError(f"the start spans {V.shape[1]} dimensions, {k} eigenpairs need at least {k}")
    limit = basis_columns(start.shape[1], k)
    basis, block = Basis.of(V), V
    history: list[float] = []
    scale, best, since, worst = np.finfo(float).tiny, np.inf, 0, 1.0
    slack = Slack(loosen, SHARE * tol)
    with stage("eigenpairs (block steps)") as advance:
        while True:
            slack.before(block.shape[1], worst)
            basis = basis.mapped(block, apply, inner)
            advance(1)
            values, vectors = basis.ritz()
            # The largest |theta| so far is a lower bound of |M|. It must not decrease if a restart loses the far
            # end of the spectrum, because the residuals are relative to it.
            scale = max(scale, np.abs(values).max(initial=0.0))
            values, kept = values[:k], vectors[:, : 2 * k]
            ritz, images = product(basis.V, vectors[:, :k]), product(basis.image, vectors[:, :k])
            rest = images - ritz * values
            size = lengths(ritz)
            residuals = lengths(rest) / (scale * size)
            worst = residuals.max(initial=0.0)
            history.append(float(values.sum()))
            converged = len(values) == k and bool((residuals <= tol).all())
            if slack.errors_of(kept[:, :k]).max(initial=0.0) > tol and len(history) < max_steps:
                block = orthonormalize(product(basis.V, kept))
                basis, slack = Basis.of(block), Slack(loosen, SHARE * tol, tight=True)
                continue
            # Require a halved residual: fluctuations in the last digits would reset the counter forever.
            best, since = (worst, 0) if worst < best / 2 else (best, since + 1)
            if converged or len(history) >= max_steps or (inner is not None and since >= _PATIENCE):
                break
            # Use only the images of the last block because the basis already contains those of earlier blocks.
            following = basis.image[:, -block.shape[1] :]
            if basis.V.shape[1] + block.shape[1] > limit:
                basis, following = basis.restarted(kept), rest
                slack.restarted(kept)
            block = orthonormalize(following, against=basis.V)
            if not block.shape[1]:
                converged = len(values) == k
                break
            basis = basis.extended(block)
    if len(values) < k:
        raise _too_few(len(values), k)
    return Eigenpairs(values, fix_signs(np.asarray(ritz / size)), residuals, history, converged)


class Slack:
    """Error bounds of block images: passes the allowed error to `loosen` before every block and adds up the errors."""

    def __init__(self, loosen: Callable[[float], None] | None, allowed: float, tight: bool = False):
        self._loosen, self._allowed, self._tight = loosen, allowed, tight
        self._errors = np.zeros(0)  # error bound of every column of the basis

    def before(self, width: int, residual: float) -> None:
        """Announce a block of `width` columns that enters the Ritz vectors with about this residual."""
        error = 0.0
        if self._loosen is not None:
            error = self._allowed if self._tight else self._allowed / max(residual, self._allowed)
            self._loosen(error)
        self._errors = np.append(self._errors, np.full(width, error))

    def errors_of(self, vectors: np.ndarray) -> np.ndarray:
        """Bound the image errors of combinations of basis columns, assuming independent errors."""
        return np.linalg.norm(self._errors[:, None] * vectors, axis=0)

    def restarted(self, vectors: np.ndarray) -> None:
        """Replace the basis columns by these combinations of them."""
        self._errors = self.errors_of(vectors)


@dataclass(frozen=True)
class Basis:
    """Orthonormal V (n x m) with C V, M V and V'C M V; the last block of V may still need its images.

    C V is V itself if C = I.
    """

    V: np.ndarray
    CV: np.ndarray
    image: np.ndarray
    projected: np.ndarray

    @classmethod
    def of(cls, block: np.ndarray) -> Basis:
        """Create a basis from a first block without images."""
        none = np.zeros((len(block), 0))
        return cls(block, none, none, np.zeros((0, 0)))

    def mapped(self, block: np.ndarray, apply: LinearMap, inner: LinearMap | None) -> Basis:
        """Return a basis that includes the images of the last block."""
        within = block if inner is None else inner(block)
        CV = self.V if inner is None else hstack([self.CV, within])
        image = hstack([self.image, apply(within)])
        # Compute products with earlier blocks from the images of the earlier ones, which may be more exact.
        rows = gram(within, image)
        if not np.isfinite(rows).all():
            raise UserError("eigenpairs: the map returned values that are not finite; check its input for NaN and inf")
        before = len(self.projected)
        # Rounding makes this block slightly unsymmetric; symmetrize it because LAPACK reads only one triangle.
        rows[:, before:] = (rows[:, before:] + rows[:, before:].T) / 2
        return Basis(self.V, CV, image, np.block([[self.projected, rows[:, :before].T], [rows]]))

    def ritz(self) -> tuple[np.ndarray, np.ndarray]:
        """Compute all eigenpairs of M projected on the basis, largest first; vectors combine its columns."""
        if self.CV is self.V:
            return _largest(self.projected, len(self.projected))
        whiten = _whitening(gram(self.V, self.CV), _INDEPENDENT)
        return _whitened(self.projected, whiten, whiten.shape[1])

    def extended(self, block: np.ndarray) -> Basis:
        """Return a basis with an additional block, whose images are not computed yet."""
        return Basis(hstack([self.V, block]), self.CV, self.image, self.projected)

    def restarted(self, vectors: np.ndarray) -> Basis:
        """Reduce the basis to these combinations; orthonormalize them because they are orthonormal in x'Cy only."""
        # With an orthonormal V, the same combination applies to the stored images, so that no map is applied again.
        change, _ = np.linalg.qr(vectors)
        projected = change.T @ self.projected @ change
        V, CV, image = (product(block, change) for block in (self.V, self.CV, self.image))
        return Basis(V, CV, image, (projected + projected.T) / 2)


CUTOFF = 1e-12
"""Fraction of B's largest eigenvalue below which directions are excluded from the problem.

Eigenvalues of a d x d matrix are accurate to about d times 1e-16 of the largest. For d in the thousands, values below
1e-12 are rounding errors. Whitening multiplies by their inverse square roots, which would be a million times larger
than the others.
"""


@dataclass(frozen=True)
class TracePairs:
    """Solutions of a trace optimization problem."""

    values: np.ndarray  # (k,): in descending order
    vectors: np.ndarray  # (d, k): B-orthonormal


def solve_trace(A: np.ndarray, B: np.ndarray | None, k: int) -> TracePairs:
    """Compute the k algebraically largest solutions of A w = lambda B w with W'BW = I.

    A, B (d, d)
    """
    # If B is singular, restrict w to the span of the eigenvectors of B above 1e-12 times its largest eigenvalue.
    #
    # [MOPE 30, 31]; Golub, Van Loan, section 8.7.
    A = (A + A.T) / 2
    if B is None:
        check_rank(len(A), k)
        values, vectors = _largest(A, k)
        return TracePairs(values, fix_signs(vectors))
    whiten = _whitening(B, CUTOFF)
    check_rank(whiten.shape[1], k)
    values, vectors = _whitened(A, whiten, k)
    return TracePairs(values, fix_signs(vectors))


class TooFewDirections(UserError):
    """Error for more components than the problem has directions."""

    rank: int


def check_rank(rank: int, k: int) -> None:
    """Raise an error if more components are requested than there are directions."""
    if k > rank or not rank:
        raise _too_few(rank, k)


def _too_few(rank: int, k: int) -> UserError:
    if not rank:
        return UserError(
            "no direction can be computed, because the features, labels or classes are constant; pass samples that "
            "differ"
        )
    few = f"n_components = {k}, but the problem has only {rank} directions; lower n_components to {rank}"
    error = TooFewDirections(few)
    error.rank = rank
    return error


def _whitening(B: np.ndarray, cutoff: float) -> np.ndarray:
    """Compute T (d x r) with T'BT = I over the range of B."""
    # Use eigenvectors because Cholesky stops at the first pivot that rounding makes negative.
    values, vectors = scipy.linalg.eigh((B + B.T) / 2, check_finite=False)
    keep = values > cutoff * max(values[-1], np.finfo(float).tiny)  # `tiny` excludes all directions of a zero matrix B.
    return vectors[:, keep] / np.sqrt(values[keep])


def _whitened(A: np.ndarray, whiten: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    inner = whiten.T @ A @ whiten
    values, vectors = _largest((inner + inner.T) / 2, k)
    return values, whiten @ vectors


def _largest(A: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    # Select the algebraically largest pairs by index; for an indefinite A, the pairs of largest magnitude differ.
    if k > _MANY * len(A):
        values, vectors = np.linalg.eigh(A)
    else:
        values, vectors = scipy.linalg.eigh(A, subset_by_index=[len(A) - k, len(A) - 1], check_finite=False)
    return values[::-1][:k], vectors[:, ::-1][:, :k]


_MANY = 0.25
"""Fraction of the pairs above which LAPACK's divide and conquer, which computes all pairs, is faster than a partial
solver."""


def power_of(A: np.ndarray, exponent: float) -> np.ndarray:
    """Raise a symmetric positive semidefinite matrix to a power, on its range.

    A (d, d) -> (d, d)
    """
    values, vectors = scipy.linalg.eigh((A + A.T) / 2, check_finite=False)
    keep = values > CUTOFF * max(values[-1], np.finfo(float).tiny)
    return (vectors[:, keep] * values[keep] ** exponent) @ vectors[:, keep].T
