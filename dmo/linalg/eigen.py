"""Leading eigenpairs of a symmetric map, given by its products, from a block Krylov space with Rayleigh-Ritz."""

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
    """Leading eigenpairs with their residuals and the history of convergence."""

    values: np.ndarray  # Eigenvalues (k) in descending order.
    vectors: np.ndarray  # Eigenvectors (n x k) of unit norm.
    residuals: np.ndarray  # Residual norm of each eigenpair, relative to the largest |eigenvalue| found.
    history: list[float]  # Sum of the eigenvalues after each step.
    converged: bool  # Whether all residuals are at most the tolerance.

    @property
    def steps(self) -> int:
        """Number of block steps, each of which applies the map to one block."""
        return len(self.history)


def fix_signs(vectors: np.ndarray) -> np.ndarray:
    """Flip the sign of each column so that its entry of largest magnitude is positive."""
    largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(vectors.shape[1])]
    return vectors * np.where(largest < 0, -1.0, 1.0)


# The search restarts before its basis exceeds the larger of 5 blocks and 60 columns, plus k columns for k eigenpairs.
_BLOCKS, _COLUMNS = 5, 60


def basis_columns(block: int, k: int) -> int:
    """Return the maximum number of columns of the search basis for blocks of `block` columns and k eigenpairs."""
    return max(_BLOCKS * block, _COLUMNS) + k


_PATIENCE = 12
"""Number of successive block steps that do not halve the residual, after which a generalized eigenproblem stops."""
_INDEPENDENT = 1e-13
"""Fraction of the largest squared norm x'Cx, below which basis vectors x are excluded from a Rayleigh-Ritz
projection."""
SHARE = 0.25
"""Maximum error in the product of the map with one block, as a fraction of the tolerance."""


def block_krylov(
    apply: LinearMap,
    start: np.ndarray,
    k: int,
    tol: float = 1e-7,
    max_steps: int = 30,
    inner: LinearMap | None = None,
    loosen: Callable[[float], None] | None = None,
) -> Eigenpairs:
    """Compute the k algebraically largest eigenpairs of a symmetric map M, or of a product M = H C of two maps.

    The search starts from the columns of `start` (n x s).
    """
    # In the following, the images of a block are its products with the maps.
    #
    # 1. The basis V is orthonormal in the Euclidean inner product, even if the eigenproblem uses the inner product
    #    x'Cy. The map C may be singular or ill-conditioned, so that Gram-Schmidt orthogonalization in x'Cy would lose
    #    accuracy. Instead, the Rayleigh-Ritz projection whitens V'CV. Directions on which C almost vanishes are
    #    excluded from this projection, but later blocks can contain these directions again.
    # 2. Every block is orthogonalized twice against the whole basis. The three-term Lanczos recurrence needs only two
    #    blocks, but it loses orthogonality when an eigenpair converges, and then finds copies of this eigenpair.
    # 3. The residual of a Ritz pair (theta, V y) is computed as M V y - theta V y from stored images, not from a
    #    recurrence. The residuals cost one n x k product per step, and are exact up to rounding errors in the images.
    # 4. A restart keeps 2 k Ritz vectors and continues with their residuals. With only k Ritz vectors, the search would
    #    repeatedly lose clustered eigenvalues and find them again.
    # 5. If `loosen` is given, images may have errors. The coefficients of a block in a Ritz vector are about as large
    #    as the residuals before this block, divided by the gap between eigenvalues. The allowed error of the images is
    #    inversely proportional to these residuals, so that blocks are cheap near convergence. Inner products of two
    #    blocks are computed from the images of the earlier block, which are more accurate. The search also bounds the
    #    total error of all images with the coefficients of the current Ritz vectors. If this bound exceeds the
    #    tolerance, as for clustered eigenvalues, the search restarts from the current Ritz vectors, with images that
    #    are accurate enough for any coefficients.
    #
    # For a start of s columns, the search needs memory for two float64 bases of at most max(5 s, 60) + k columns, and
    # for a third basis if `inner` is given.
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
            # Residuals are relative to the norm of M, and the largest |theta| is a lower bound of this norm. A restart
            # may lose the negative end of the spectrum, so keep the largest |theta| of all steps.
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
            # Small fluctuations of the residual would reset the counter forever, so only a halved residual counts as
            # progress.
            best, since = (worst, 0) if worst < best / 2 else (best, since + 1)
            if converged or len(history) >= max_steps or (inner is not None and since >= _PATIENCE):
                break
            # The basis already contains the images of earlier blocks, so continue with the images of the last block.
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
    """Error bounds for products of a map with blocks. Before each product, its allowed error is passed to `loosen`."""

    def __init__(self, loosen: Callable[[float], None] | None, allowed: float, tight: bool = False):
        self._loosen, self._allowed, self._tight = loosen, allowed, tight
        self._errors = np.zeros(0)

    def before(self, width: int, residual: float) -> None:
        """Choose the allowed error for the next product, whose block has `width` columns.

        `residual` is the largest residual of the Ritz vectors.
        """
        error = 0.0
        if self._loosen is not None:
            error = self._allowed if self._tight else self._allowed / max(residual, self._allowed)
            self._loosen(error)
        self._errors = np.append(self._errors, np.full(width, error))

    def errors_of(self, vectors: np.ndarray) -> np.ndarray:
        """Bound the errors in products of the map with combinations of basis columns, assuming independent errors."""
        return np.linalg.norm(self._errors[:, None] * vectors, axis=0)

    def restarted(self, vectors: np.ndarray) -> None:
        """Replace the basis columns with linear combinations of these columns."""
        self._errors = self.errors_of(vectors)


@dataclass(frozen=True)
class Basis:
    """Orthonormal basis V (n x m) with its images C V and M V, and the projection V'C M V.

    The images of the last block may not be computed yet. Without a map C, `CV` is V.
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
        # The images of earlier blocks may be more accurate, so compute inner products with earlier blocks from these
        # images.
        rows = gram(within, image)
        if not np.isfinite(rows).all():
            raise UserError("eigenpairs: the map returned values that are not finite; check its input for NaN and inf")
        before = len(self.projected)
        # Rounding makes the last diagonal block of the projection slightly asymmetric. LAPACK reads only one triangle,
        # so symmetrize the block.
        rows[:, before:] = (rows[:, before:] + rows[:, before:].T) / 2
        return Basis(self.V, CV, image, np.block([[self.projected, rows[:, :before].T], [rows]]))

    def ritz(self) -> tuple[np.ndarray, np.ndarray]:
        """Compute all eigenpairs of the projection in descending order, as coefficients of the basis columns."""
        if self.CV is self.V:
            return _largest(self.projected, len(self.projected))
        whiten = _whitening(gram(self.V, self.CV), _INDEPENDENT)
        return _whitened(self.projected, whiten, whiten.shape[1])

    def extended(self, block: np.ndarray) -> Basis:
        """Return a basis with an additional block, whose images are not computed yet."""
        return Basis(hstack([self.V, block]), self.CV, self.image, self.projected)

    def restarted(self, vectors: np.ndarray) -> Basis:
        """Reduce the basis to orthonormalized combinations of its columns."""
        # Ritz vectors are orthonormal only in the inner product x'Cy, so orthonormalize their coefficients. The stored
        # images are combined with the same coefficients, so that no map is applied again.
        change, _ = np.linalg.qr(vectors)
        projected = change.T @ self.projected @ change
        V, CV, image = (product(block, change) for block in (self.V, self.CV, self.image))
        return Basis(V, CV, image, (projected + projected.T) / 2)


CUTOFF = 1e-12
"""Fraction of the largest eigenvalue of B, below which directions are excluded from an eigenproblem.

Eigenvalues of a d x d matrix are accurate to about d times 1e-16 of the largest. For d in the thousands, values below
1e-12 are rounding errors. Whitening would multiply these directions by the inverse square roots of their eigenvalues,
which are a million times larger than for other directions.
"""


@dataclass(frozen=True)
class TracePairs:
    """Solutions of a trace optimization problem."""

    values: np.ndarray  # Eigenvalues (k) in descending order.
    vectors: np.ndarray  # Eigenvectors (d x k), orthonormal in the inner product x'By.


def solve_trace(A: np.ndarray, B: np.ndarray | None, k: int) -> TracePairs:
    """Compute the k algebraically largest solutions of A w = lambda B w with W'BW = I for d x d matrices."""
    # If B is singular, restrict w to the span of the eigenvectors whose eigenvalues exceed 1e-12 times the largest
    # eigenvalue of B.
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
    """Compute a matrix T (d x r) with T'BT = I for the range of B."""
    # Rounding errors can make a pivot of a Cholesky factorization negative, so use eigenvectors.
    values, vectors = scipy.linalg.eigh((B + B.T) / 2, check_finite=False)
    # For a zero matrix B, `tiny` excludes all directions.
    keep = values > cutoff * max(values[-1], np.finfo(float).tiny)
    return vectors[:, keep] / np.sqrt(values[keep])


def _whitened(A: np.ndarray, whiten: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    inner = whiten.T @ A @ whiten
    values, vectors = _largest((inner + inner.T) / 2, k)
    return values, whiten @ vectors


def _largest(A: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    # The eigenvalues of largest magnitude may be negative, so select the algebraically largest eigenpairs by index.
    if k > _MANY * len(A):
        values, vectors = np.linalg.eigh(A)
    else:
        values, vectors = scipy.linalg.eigh(A, subset_by_index=[len(A) - k, len(A) - 1], check_finite=False)
    return values[::-1][:k], vectors[:, ::-1][:, :k]


_MANY = 0.25
"""Fraction of all eigenpairs above which divide and conquer is faster than a partial eigensolver."""


def power_of(A: np.ndarray, exponent: float) -> np.ndarray:
    """Raise a symmetric positive semidefinite matrix to a power, restricted to the range of the matrix."""
    values, vectors = scipy.linalg.eigh((A + A.T) / 2, check_finite=False)
    keep = values > CUTOFF * max(values[-1], np.finfo(float).tiny)
    return (vectors[:, keep] * values[keep] ** exponent) @ vectors[:, keep].T
