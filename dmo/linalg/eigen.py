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


# The basis restarts when it would exceed 5 blocks or 60 columns (the larger number), plus k columns for k eigenpairs.
_BLOCKS, _COLUMNS = 5, 60


def basis_columns(block: int, k: int) -> int:
    """Return the maximum number of columns of the search basis for blocks of `block` columns and k eigenpairs."""
    return max(_BLOCKS * block, _COLUMNS) + k


_PATIENCE = 12
"""A generalized problem stops after this number of block steps that do not halve the residual."""
_INDEPENDENT = 1e-13
"""Basis vectors whose squared norm x'Cx is below this fraction of the largest one are excluded from a projection."""
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
    """Compute the k algebraically largest eigenpairs of a symmetric map M, or of a product M = H C of two maps.

    The search starts from the columns of `start` (n x s).
    """
    # In the following, the images of a block are its products with the maps.
    #
    # 1. The basis V is orthonormal in the Euclidean product, even if the problem uses x'Cy. Because C may be singular
    #    or ill-conditioned, Gram-Schmidt in x'Cy would lose accuracy. The search whitens V'CV instead. Directions on
    #    which C almost vanishes are excluded from the projection, but later blocks can contain them again.
    # 2. Every block is orthogonalized twice against the whole basis. The three-term Lanczos recurrence needs only two
    #    blocks, but it loses orthogonality as soon as a pair converges and then finds copies of that pair.
    # 3. Residuals are computed from the stored images as M V y - theta V y, not from the recurrence. They cost
    #    one n x k product per step and equal the true residuals up to rounding errors in the images.
    # 4. A restart keeps 2 k Ritz vectors and continues with the residuals, as the Krylov method would. With only k
    #    vectors, the search would repeatedly find clustered eigenvalues.
    # 5. With `loosen`, images may be as inexact as the result allows. A block of residuals enters the Ritz vectors with
    #    coefficients of the size of these residuals, divided by the gap between eigenvalues. The errors of its images
    #    may therefore be larger in inverse proportion, and blocks are cheap near convergence. Products of two blocks
    #    are computed from the images of the earlier block, which are more exact. The search also checks the total error
    #    of all images with the coefficients that were used. If this error exceeds the tolerance, as for clustered
    #    eigenvalues, the search restarts from the current Ritz vectors, with images that are exact enough for any
    #    coefficients.
    #
    # The search needs memory for two float64 bases of at most max(5 s, 60) + k columns, and for a third one if `inner`
    # is given.
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
            # Residuals are relative to the norm of M, for which the largest |theta| is a lower bound. Keep the largest
            # |theta| so far, because a restart may lose the other end of the spectrum.
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
            # Count only halved residuals as progress, because small fluctuations would reset the counter forever.
            best, since = (worst, 0) if worst < best / 2 else (best, since + 1)
            if converged or len(history) >= max_steps or (inner is not None and since >= _PATIENCE):
                break
            # Use only the images of the last block, because the basis already contains those of earlier blocks.
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
    """Error bounds of block images. Before each block, the allowed error of its images is passed to `loosen`."""

    def __init__(self, loosen: Callable[[float], None] | None, allowed: float, tight: bool = False):
        self._loosen, self._allowed, self._tight = loosen, allowed, tight
        self._errors = np.zeros(0)

    def before(self, width: int, residual: float) -> None:
        """Choose the allowed error of a block of `width` columns, given the residual of the Ritz vectors."""
        error = 0.0
        if self._loosen is not None:
            error = self._allowed if self._tight else self._allowed / max(residual, self._allowed)
            self._loosen(error)
        self._errors = np.append(self._errors, np.full(width, error))

    def errors_of(self, vectors: np.ndarray) -> np.ndarray:
        """Bound the errors of the images of combinations of basis columns, assuming independent errors."""
        return np.linalg.norm(self._errors[:, None] * vectors, axis=0)

    def restarted(self, vectors: np.ndarray) -> None:
        """Replace the basis columns by combinations of these columns."""
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
        # Compute products with earlier blocks from the images of the earlier blocks, which may be more exact.
        rows = gram(within, image)
        if not np.isfinite(rows).all():
            raise UserError("eigenpairs: the map returned values that are not finite; check its input for NaN and inf")
        before = len(self.projected)
        # Rounding makes this block slightly unsymmetric. Symmetrize it, because LAPACK reads only one triangle.
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
        # The combinations are orthonormal only in x'Cy. The stored images are combined in the same way, so that no map
        # is applied again.
        change, _ = np.linalg.qr(vectors)
        projected = change.T @ self.projected @ change
        V, CV, image = (product(block, change) for block in (self.V, self.CV, self.image))
        return Basis(V, CV, image, (projected + projected.T) / 2)


CUTOFF = 1e-12
"""Directions below this fraction of the largest eigenvalue of B are excluded from a problem.

Eigenvalues of a d x d matrix are accurate to about d times 1e-16 of the largest. For d in the thousands, values below
1e-12 are rounding errors. Whitening would multiply these directions by the inverse square roots of their eigenvalues,
which are a million times larger than for other directions.
"""


@dataclass(frozen=True)
class TracePairs:
    """Solutions of a trace optimization problem."""

    values: np.ndarray  # Eigenvalues (k) in descending order.
    vectors: np.ndarray  # Eigenvectors (d x k), orthonormal in the product x'By.


def solve_trace(A: np.ndarray, B: np.ndarray | None, k: int) -> TracePairs:
    """Compute the k algebraically largest solutions of A w = lambda B w with W'BW = I for d x d matrices."""
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
    """Compute a matrix T (d x r) with T'BT = I for the range of B."""
    # Use eigenvectors, because Cholesky stops at the first pivot that rounding makes negative.
    values, vectors = scipy.linalg.eigh((B + B.T) / 2, check_finite=False)
    keep = values > cutoff * max(values[-1], np.finfo(float).tiny)  # `tiny` excludes all directions of a zero matrix B.
    return vectors[:, keep] / np.sqrt(values[keep])


def _whitened(A: np.ndarray, whiten: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    inner = whiten.T @ A @ whiten
    values, vectors = _largest((inner + inner.T) / 2, k)
    return values, whiten @ vectors


def _largest(A: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    # Select the algebraically largest pairs by index, because the pairs of largest magnitude may be negative.
    if k > _MANY * len(A):
        values, vectors = np.linalg.eigh(A)
    else:
        values, vectors = scipy.linalg.eigh(A, subset_by_index=[len(A) - k, len(A) - 1], check_finite=False)
    return values[::-1][:k], vectors[:, ::-1][:, :k]


_MANY = 0.25
"""If more than this fraction of all pairs is requested, divide and conquer is faster than a partial eigensolver."""


def power_of(A: np.ndarray, exponent: float) -> np.ndarray:
    """Raise a symmetric positive semidefinite matrix to a power, restricted to the range of the matrix."""
    values, vectors = scipy.linalg.eigh((A + A.T) / 2, check_finite=False)
    keep = values > CUTOFF * max(values[-1], np.finfo(float).tiny)
    return (vectors[:, keep] * values[keep] ** exponent) @ vectors[:, keep].T
