"""Leading eigenpairs of a symmetric map known by its products: block Krylov with Rayleigh-Ritz."""

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
    """Leading eigenpairs, and how the search for them went."""

    values: np.ndarray  # (k,): eigenvalues, descending
    vectors: np.ndarray  # (n, k): eigenvectors of length 1
    residuals: np.ndarray  # (k,): |M u - theta u| relative to the largest |theta| found
    history: list[float]  # sum of the values after each step
    converged: bool  # whether all residuals are at most the tolerance

    @property
    def steps(self) -> int:
        """Applications of the map to a block."""
        return len(self.history)


def fix_signs(vectors: np.ndarray) -> np.ndarray:
    """Choose the sign of every column so that its entry of largest magnitude is positive.

    vectors (n, k) -> (n, k)
    """
    largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(vectors.shape[1])]
    return vectors * np.where(largest < 0, -1.0, 1.0)


_BLOCKS, _COLUMNS = 5, 60  # blocks, and columns beside those wanted, above which the basis restarts


def basis_columns(block: int, k: int) -> int:
    """Columns of a search's basis at most: of blocks of so many columns, for k pairs."""
    return max(_BLOCKS * block, _COLUMNS) + k


_PATIENCE = 12
"""Block steps without a halved residual after which a generalized problem is given up: its maps have no more digits."""
_INDEPENDENT = 1e-13
"""Basis vectors whose length in x'Cx is below this share of the largest are left out of a generalized projection."""
_SHARE = 0.25
"""Of the tolerance, what errors of the images of one block may take."""


def block_krylov(
    apply: LinearMap,
    start: np.ndarray,
    k: int,
    tol: float = 1e-7,
    max_steps: int = 30,
    inner: LinearMap | None = None,
    loosen: Callable[[float], None] | None = None,
) -> Eigenpairs:
    """Find the k algebraically largest eigenpairs of a symmetric map M, or of a product M = H C of two.

    start (n, s)
    """
    # On the numerics:
    #
    # 1. The basis V is orthonormal in the Euclidean product even where the problem's is x'Cy: C may be singular or
    #    badly conditioned, and Gram-Schmidt in it would lose what little the basis has. V'CV is then whitened, and
    #    directions on which C is all but zero stay out of the projection (they return with later blocks if they
    #    matter).
    # 2. Every block is orthogonalized twice against the whole basis. The three-term recurrence of Lanczos would need
    #    two blocks only, but loses orthogonality as soon as a pair converges, and returns it again as a copy.
    # 3. Residuals are worked out from the stored images, M V y - theta V y, not from the recurrence, at the price of
    #    one n x k product a step: what is reported is the true residual but for the rounding of the images
    #    themselves.
    # 4. A restart keeps 2 k Ritz vectors, of which the k beyond those wanted hold the search in place (with k alone,
    #    crowded eigenvalues are found over and over), and goes on with the residuals, which is where Krylov would go.
    # 5. An empty new block means that the basis is invariant: what is left of the residual is rounding in the maps.
    # 6. With `loosen` the images may be as inexact as the result allows. A block of residuals enters the Ritz vectors
    #    with coefficients s of the size of these residuals (over the distance of the eigenvalues), so that its images
    #    may be off by as much more than those of the first: near the answer, later blocks cost little. Two things
    #    make that safe. The projection takes the products of two blocks from the images of the earlier one, which are
    #    the more exact; their mean would bring the errors of the later ones in undiminished. And where the errors of
    #    all images, by the coefficients that they really got, add up to more than the tolerance (eigenvalues are
    #    crowded), the search begins anew at the Ritz vectors it has, with images that are exact enough for any
    #    coefficients.
    #
    # Two bases of 5 s + k columns (at least 60 + k) are the memory, float64; `inner` adds a third, with the images
    # under C.
    #
    # Saad 2011, chapters 6 and 7; inexact maps: Simoncini, Szyld 2003.
    V = orthonormalize(start)
    if k < 1:
        raise UserError(f"k = {k} eigenpairs; ask for at least 1")
    if inner is None and V.shape[1] < k:
        raise UserError(f"the start spans {V.shape[1]} dimensions, {k} eigenpairs need at least {k}")
    limit = basis_columns(start.shape[1], k)
    basis, block = Basis.of(V), V
    history: list[float] = []
    scale, best, since, worst = np.finfo(float).tiny, np.inf, 0, 1.0
    slack = _Slack(loosen, _SHARE * tol)
    with stage("eigenpairs (block steps)") as advance:
        while True:
            slack.before(block.shape[1], worst)
            basis = basis.mapped(block, apply, inner)
            advance(1)
            values, vectors = basis.ritz()
            # the largest |theta| so far estimates |M| from below; it never shrinks, so that no residual passes by a restart
            # that lost the far end of the spectrum
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
                basis, slack = Basis.of(block), _Slack(loosen, _SHARE * tol, tight=True)
                continue
            # halved, not merely smaller: residuals that only flicker in the last digits would never run out of patience
            best, since = (worst, 0) if worst < best / 2 else (best, since + 1)
            if converged or len(history) >= max_steps or (inner is not None and since >= _PATIENCE):
                break
            # the images of the last block alone: those of earlier blocks lie in the basis already
            following = basis.image[:, -block.shape[1] :]
            if basis.V.shape[1] + block.shape[1] > limit:
                basis, following = basis.restarted(kept), rest
                slack.restarted(kept)
            block = orthonormalize(following, against=basis.V)
            if not block.shape[1]:
                converged = len(values) == k
                break
            basis = basis.extended(block)
    check_rank(len(values), k)
    return Eigenpairs(values, fix_signs(np.asarray(ritz / size)), residuals, history, converged)


class _Slack:
    """What the images of a block may be off by, and what they are off by at most: `loosen` is told before every block."""

    def __init__(self, loosen: Callable[[float], None] | None, allowed: float, tight: bool = False):
        self._loosen, self._allowed, self._tight = loosen, allowed, tight
        self._errors = np.zeros(0)  # of every column of the basis

    def before(self, width: int, residual: float) -> None:
        """The next block has `width` columns and enters the Ritz vectors with about this residual."""
        error = 0.0
        if self._loosen is not None:
            error = self._allowed if self._tight else self._allowed / max(residual, self._allowed)
            self._loosen(error)
        self._errors = np.append(self._errors, np.full(width, error))

    def errors_of(self, vectors: np.ndarray) -> np.ndarray:
        """Of the images of combinations of the basis; those of its columns are independent of each other."""
        return np.linalg.norm(self._errors[:, None] * vectors, axis=0)

    def restarted(self, vectors: np.ndarray) -> None:
        """The basis was cut down to these combinations."""
        self._errors = self.errors_of(vectors)


@dataclass(frozen=True)
class Basis:
    """V (n x m, orthonormal), C V, M V and V'C M V; the last block of V may still lack its images. C V is V itself where
    C = I."""

    V: np.ndarray
    CV: np.ndarray
    image: np.ndarray
    projected: np.ndarray

    @classmethod
    def of(cls, block: np.ndarray) -> Basis:
        """A first block, which lacks its images."""
        none = np.zeros((len(block), 0))
        return cls(block, none, none, np.zeros((0, 0)))

    def mapped(self, block: np.ndarray, apply: LinearMap, inner: LinearMap | None) -> Basis:
        """With the images of the last block."""
        within = block if inner is None else inner(block)
        CV = self.V if inner is None else hstack([self.CV, within])
        image = hstack([self.image, apply(within)])
        # its products with earlier blocks from the images of those, which may be the more exact
        rows = gram(within, image)
        if not np.isfinite(rows).all():
            raise UserError("eigenpairs: the map returned values that are not finite; check its input for NaN and inf")
        before = len(self.projected)
        # rounding leaves it unsymmetric by its own size, and LAPACK would read one triangle of it
        rows[:, before:] = (rows[:, before:] + rows[:, before:].T) / 2
        return Basis(self.V, CV, image, np.block([[self.projected, rows[:, :before].T], [rows]]))

    def ritz(self) -> tuple[np.ndarray, np.ndarray]:
        """All eigenpairs of M projected on the basis, largest first; vectors are combinations of its columns."""
        if self.CV is self.V:
            return _largest(self.projected, len(self.projected))
        whiten = _whitening(gram(self.V, self.CV), _INDEPENDENT)
        return _whitened(self.projected, whiten, whiten.shape[1])

    def extended(self, block: np.ndarray) -> Basis:
        """With one block more, which lacks its images."""
        return Basis(hstack([self.V, block]), self.CV, self.image, self.projected)

    def restarted(self, vectors: np.ndarray) -> Basis:
        """Cut down to these combinations, orthonormal again: in x'Cy alone they are so by themselves, and drift."""
        # of an orthonormal V: the stored images are combined by it too, which saves applying the maps again
        change, _ = np.linalg.qr(vectors)
        projected = change.T @ self.projected @ change
        V, CV, image = (product(block, change) for block in (self.V, self.CV, self.image))
        return Basis(V, CV, image, (projected + projected.T) / 2)


CUTOFF = 1e-12
"""Directions of B below this share of its largest eigenvalue are no part of the problem.

Eigenvalues of a d x d matrix are exact to about d times 1e-16 of the largest: below 1e-12 they are rounding for d in the
thousands, and their inverse roots, by which the whitening multiplies, would be a million times those of the rest.
"""


@dataclass(frozen=True)
class TracePairs:
    """Solutions of a trace problem."""

    values: np.ndarray  # (k,): descending
    vectors: np.ndarray  # (d, k): B-orthonormal


def solve_trace(A: np.ndarray, B: np.ndarray | None, k: int) -> TracePairs:
    """Find the k algebraically largest solutions of A w = lambda B w with W'BW = I.

    A, B (d, d)
    """
    # Where B is singular, w is sought in the span of the eigenvectors of B above 1e-12 times its largest eigenvalue.
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
    """More components than there are directions."""

    rank: int


def check_rank(rank: int, k: int) -> None:
    """Refuse more components than there are directions."""
    if not rank:
        raise UserError(
            "the problem has no direction: features, labels or classes are constant over the samples that it is about"
        )
    if k > rank:
        few = f"n_components = {k}, but the problem has only {rank} directions; lower n_components to that"
        error = TooFewDirections(few)
        error.rank = rank
        raise error


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
    if k > _MANY * len(A):
        values, vectors = np.linalg.eigh(A)
    else:
        values, vectors = scipy.linalg.eigh(A, subset_by_index=[len(A) - k, len(A) - 1], check_finite=False)
    return values[::-1][:k], vectors[:, ::-1][:, :k]


_MANY = 0.25
"""Share of the pairs from which LAPACK's divide and conquer finds all of them in less time than its other methods these."""


def power_of(A: np.ndarray, exponent: float) -> np.ndarray:
    """Raise a symmetric positive semidefinite matrix to a power, on its range.

    A (d, d) -> (d, d)
    """
    values, vectors = scipy.linalg.eigh((A + A.T) / 2, check_finite=False)
    keep = values > CUTOFF * max(values[-1], np.finfo(float).tiny)
    return (vectors[:, keep] * values[keep] ** exponent) @ vectors[:, keep].T
