"""Ridge regression on kernel values at landmarks: its solvers, and which of them is taken.

Ridge regression on kernel values at landmarks, by conjugate gradients on the normal equations.

With C = k(X, Z), W = k(Z, Z) = T'T and coefficients a = T^-1 w on kernel values, the regression on Nystrom's factor
rows C T^-1 solves (T^-T C'C T^-1 + c I) w = T^-T C'y. The direct solve takes n r^2 multiplications for the factor rows
of n rows and r landmarks, as many for their Gram matrix, and r^3 for landmarks and solve. Kernel values need no factor
rows, and an iteration of 4 n r k for k labels; there are two preconditioners:

- `LandmarkFactors`, of the landmarks alone: drawn like the rows, they say what C'C is, about n / r W W, so that
  (n / r) T T' + c I = (n / r) A A' is close to the system: some ten iterations, which pay for few labels.
- `RowFactors`, of C'C + c W itself, for n r^2: no iteration, but for rounding. In single precision C'C is off by 1e-6
  of itself, which is more than some of the system where landmarks are near each other or the ridge is small.

How this differs from the paper's (Falkon):

1. One r x r matrix holds both triangles, T on and above its diagonal and A below it: nothing of that size is there
   twice. It is in single precision where W's pivots allow. Steps are found by products in the kernel values' precision;
   what is left is worked out in float64, and gone on from where it is more than it should be. Of many labels a few random
   combinations say so, as a product of each takes as long as two steps.
2. In double precision W is factored with pivots, and landmarks that depend on others are dropped, where the paper adds
   to the diagonal.
3. An intercept is an unknown of its own, in the system and in the preconditioner, so that rows need not be centered.
4. Every label has steps of its own and stops when it has converged.

Source: Rudi, Carratino, Rosasco 2017, algorithm 1.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import scipy.linalg
from sklearn.exceptions import ConvergenceWarning

from dmo.blocks import Rows, row_blocks
from dmo.cluster import current_client
from dmo.fit.passes import FeatureRows, collect_moments, landmark_products
from dmo.fit.ridge_solves import column_gradients, ridge
from dmo.linalg.linear import Equilibrated, IllConditioned, cholesky_in_place
from dmo.linalg.tall import LinearMap
from dmo.lowrank import FeatureMap, LandmarkMap, from_landmarks
from dmo.memory import free_memory
from dmo.threads import single_blas

_RESTARTS = 4
_MIRROR = 256  # rows and columns that are mirrored at a time
_PROBES = 4  # combinations of labels
_NEAR = 0.1  # of right-hand sides, that a solution but for rounding may leave
_PER_LABEL = 24  # landmarks: n r^2 for a Gram matrix, 4 n r k for an iteration
PASSES = 40
"""Labels whose products take as long as reading what is multiplied."""
_SINGLE = 1e-3  # of the largest diagonal entry: pivots above which solves in single precision keep 3 or 4 digits


class LandmarkFactors:
    """Triangles T and A in one matrix, T'T = W and A A' = T T' + c r / n I, for landmarks that depend on no others.

    square (m, m)
    """

    solves: ClassVar[bool] = False
    """Whether the preconditioner solves the system but for rounding."""

    def __init__(self, square: np.ndarray, drop: float, ridge: float):
        lauum, self._trtrs = scipy.linalg.get_lapack_funcs(("lauum", "trtrs"), (square,))
        largest = max(float(square.diagonal().max(initial=0.0)), 1e-300)
        if square.dtype == np.float64:
            self._both, self.keep = _pivoted(square, drop * largest)
        else:
            if least_pivot(square) < _SINGLE * largest:
                raise IllConditioned("landmarks are too near each other for their kernel in float32")
            self._both, self.keep = square, np.arange(len(square))
        rank = len(self.keep)
        self._root = self._both.diagonal().copy()
        for i in range(0, rank, _MIRROR):
            for j in range(0, i + 1, _MIRROR):
                rows, columns = slice(i, min(i + _MIRROR, rank)), slice(j, min(j + _MIRROR, rank))
                below = self._both[rows, columns].T
                self._both[columns, rows] = below if i != j else np.triu(below) + np.tril(self._both[rows, columns], -1)
        self.ones = np.array([self._both[i, i:].sum() for i in range(rank)])  # T 1, as the triangles are
        self._both, _ = lauum(self._both, lower=1, overwrite_c=1)
        self._both[np.diag_indices(rank)] += ridge
        if cholesky_in_place(self._both):
            raise IllConditioned("the landmarks' preconditioner has no Cholesky factor; raise the ridge")
        self._other = self._both.diagonal().copy()

    def _triangle(self, B: np.ndarray, diagonal: np.ndarray, lower: int, trans: int) -> np.ndarray:
        self._both[np.diag_indices(len(diagonal))] = diagonal
        return np.asarray(self._trtrs(self._both, B, lower=lower, trans=trans)[0])

    def root(self, B: np.ndarray, trans: bool = False) -> np.ndarray:
        """Solve with T.

        B (r, k) -> (r, k)
        """
        return self._triangle(B, self._root, 0, int(trans))

    def penalty(self, B: np.ndarray) -> np.ndarray:
        """Multiply by what the ridge stands on.

        B (r, k) -> (r, k)
        """
        return B

    def inverse(self, B: np.ndarray) -> np.ndarray:
        """Solve with A A'.

        B (r, k) -> (r, k)
        """
        return self._triangle(self._triangle(B, self._other, 1, 0), self._other, 1, 1)

    def preconditioner(self, n: int, center: bool) -> LinearMap:
        """Make an approximate inverse of the system."""
        per = n / len(self.keep)  # rows that a landmark stands for
        sums = per * self.ones
        toward = self.inverse(sums[:, None])[:, 0] / per
        rest = n - sums @ toward  # what of the ones the landmarks do not explain

        def precondition(R: np.ndarray) -> np.ndarray:
            own = self.inverse(R[:-1]) / per
            if not center:
                return np.vstack([own, np.zeros((1, R.shape[1]))])
            b = (R[-1] - toward @ R[:-1]) / rest
            return np.vstack([own - np.outer(toward, b), b])

        return precondition


def _pivoted(square: np.ndarray, tol: float) -> tuple[np.ndarray, np.ndarray]:
    """T' of the landmarks whose pivots are above `tol`, in the memory of W, and their numbers."""
    factored, pivots, rank, _ = scipy.linalg.lapack.dpstrf(square, tol=tol, lower=1, overwrite_a=1)
    return corner(factored.T, int(rank)).T, pivots[:rank] - 1


def solved_by_rows(r: int, n_labels: int) -> bool:
    """Tell whether the rows' own Gram matrix costs less than the products of some ten iterations."""
    return r <= _PER_LABEL * (n_labels + PASSES)


def least_pivot(square: np.ndarray) -> float:
    """Factor a positive definite matrix in its lower triangle.

    square (m, m)
    """
    return 0.0 if cholesky_in_place(square) else float(square.diagonal().min(initial=np.inf)) ** 2


def corner(square: np.ndarray, r: int) -> np.ndarray:
    """Move the first rows and columns of a matrix together within its memory.

    square (m, m) -> (r, r)
    """
    memory = square.reshape(-1)
    for j in range(r if r < len(square) else 0):
        memory[j * r : (j + 1) * r] = square[j, :r]
    return memory[: r * r].reshape((r, r))


class RowFactors:
    """The Cholesky factor of C'C + c W, rows and an intercept taken together.

    gram, square (r, r); sums (r,)
    """

    solves: ClassVar[bool] = True

    def __init__(self, gram: np.ndarray, sums: np.ndarray, square: np.ndarray, n: int, c: float, center: bool):
        for rows in row_blocks(len(gram), _MIRROR):  # nothing more of that size
            gram[rows] += c * square[rows]
            if not center:
                gram[rows] += np.outer(sums[rows] / n, sums)
        self.keep, self._square, self._sums, self._system = np.arange(len(gram)), square, sums, Equilibrated(gram)

    def root(self, B: np.ndarray, trans: bool = False) -> np.ndarray:
        """Take unknowns as coefficients.

        B (r, k) -> (r, k)
        """
        return B

    def penalty(self, B: np.ndarray) -> np.ndarray:
        """Multiply by what the ridge stands on.

        B (r, k) -> (r, k)
        """
        return np.vstack([self._square[rows].astype(B.dtype) @ B for rows in row_blocks(len(B), _MIRROR)])

    def preconditioner(self, n: int, center: bool) -> LinearMap:
        """Make the inverse of the system."""
        mean = self._sums / n

        def precondition(R: np.ndarray) -> np.ndarray:
            if not center:
                return np.vstack([self._system.solve(R[:-1]), np.zeros((1, R.shape[1]))])
            own = self._system.solve(R[:-1] - np.outer(mean, R[-1]))
            return np.vstack([own, R[-1] / n - mean @ own])

        return precondition


def landmark_ridge(
    factors: LandmarkFactors | RowFactors,
    products: Callable[[np.ndarray, bool], np.ndarray],
    right: np.ndarray,
    n: int,
    c: float,
    center: bool = True,
    tol: float = 1e-5,
) -> tuple[np.ndarray, np.ndarray]:
    """Ridge regression on kernel values at landmarks, as on the factor rows that Nystrom makes of them.

    right (r + 1, k) -> coefficients (r, k); offset (k,)
    """
    # Rudi, Carratino, Rosasco 2017, algorithm 1.
    k, precondition = right.shape[1], factors.preconditioner(n, center)

    def whitened(image: np.ndarray) -> np.ndarray:
        bottom = image[-1:] if center else np.zeros((1, image.shape[1]))
        return np.vstack([factors.root(image[:-1], True), bottom])

    def apply(X: np.ndarray, wide: bool) -> np.ndarray:
        found = whitened(products(np.vstack([factors.root(X[:-1]), X[-1:]]), wide))
        found[:-1] += c * factors.penalty(X[:-1])
        return found

    def length(R: np.ndarray) -> np.ndarray:
        return np.sqrt(np.einsum("ij,ij->j", R, precondition(R)))

    target = whitened(right)
    first = precondition(target)
    least = np.sqrt(np.maximum(np.einsum("ij,ij->j", target, first), np.finfo(float).tiny))
    # columns of random signs: the squares of what is left of these combinations are those of all labels, on average
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (k, _PROBES)) / np.sqrt(k) / least[:, None]

    def typical(found: np.ndarray) -> float:
        return float(np.sqrt(np.mean(length(target @ signs - apply(found @ signs, True)) ** 2)))

    rest, found, share = target, np.zeros_like(target), np.ones(k)  # shares of the right-hand sides, that are left
    if factors.solves:
        found, near = first, typical(first)
        if near > _NEAR:
            raise IllConditioned(f"products of rows in single precision leave {near:.1e} of the right-hand sides")
        if near <= tol:
            return _coefficients(factors, found, center)
        rest = target - apply(found, True)
        share = length(rest) / least
    for _ in range(_RESTARTS):
        if share.max() <= 2 * tol:
            break
        # a recursion in float32 believes in a residual that it has lost: what is left is said by float64
        found = found + column_gradients(
            lambda X, which: apply(X, False), rest, precondition, min(0.5, tol / share.max())
        )
        if k > 2 * _PROBES and typical(found) <= tol:
            return _coefficients(factors, found, center)
        rest = target - apply(found, True)
        before, share = share, length(rest) / least
        if share.max() > 0.5 * before.max():
            break
    if share.max() > 2 * tol:
        if factors.solves:
            raise IllConditioned(f"a share of {share.max():.1e} stays of the right-hand sides")
        warnings.warn(
            f"conjugate gradients on landmarks: {np.count_nonzero(share > 2 * tol)} of {k} labels stopped at a relative "
            f"residual of {share.max():.1e}, {tol:.0e} was asked for; raise the ridge, take fewer landmarks, or "
            "precision='float64'",
            ConvergenceWarning,
            stacklevel=2,
        )
    return _coefficients(factors, found, center)


def _coefficients(
    factors: LandmarkFactors | RowFactors, found: np.ndarray, center: bool
) -> tuple[np.ndarray, np.ndarray]:
    # in the order that a store gives back, so that a model scores alike to the last bit after it was saved
    offset = found[-1] if center else np.zeros(found.shape[1])
    return np.ascontiguousarray(factors.root(found[:-1]), np.float64), offset


_TOL = {"float32": 1e-4, "float64": 1e-10}
"""Relative residuals, by the precision of kernel values."""
_WELL = 1e-3
"""The same, of landmarks whose kernel is well conditioned: there it moves held-out errors in their fifth digit."""
_ROWS = 256  # of a square matrix that are worked on at a time
_DIGITS = 100  # roundings of a sum of squares by which its Gram matrix is off, tenfold
log = logging.getLogger("dmo")


def landmark_regression(
    values: LandmarkMap, source: Rows, Y: np.ndarray, c: float, center: bool, choose: bool = False
) -> tuple[FeatureMap, np.ndarray, np.ndarray]:
    """Ridge regression of labels (n x L) on kernel values at landmarks, by normal equations or conjugate gradients.

    source (n, d); Y (n, L) -> coefficients (r, L); offset (L,)
    """
    own, n, r = _Values.of(values, source), source.shape[0], values.rank
    square, tol = values.square(values.dtype), _TOL[values.dtype.name]
    few = solved_by_rows(r, Y.shape[1])
    if choose and (values.dtype.itemsize * n * r > kept_bytes() or (few and not own.keeps_digits(square, n, c))):
        return _on_factor_rows(values, source, Y, c, center)
    if few and (choose or own.keeps_digits(square, n, c)):
        try:
            square[np.diag_indices(r)] += values.jitter * np.trace(square)
            gram, sums, right = own.system(Y, center)
            rows = RowFactors(gram, sums, square, n, c, center)
            return values, *landmark_ridge(rows, own.products, right, n, c, center, tol)
        except IllConditioned as error:
            log.info("ridge regression on landmarks: %s; solved by steps", error)
            square = values.square(values.dtype)
    try:
        factors = LandmarkFactors(square, values.drop, c * r / n)
        if square.dtype == np.float32:
            tol = _WELL
    except IllConditioned:
        if values.dtype == np.float64:
            raise
        factors = LandmarkFactors(values.square(), values.drop, c * r / n)
    if len(factors.keep) < r or (factors.keep != np.arange(r)).any():
        values = LandmarkMap(values.kernel, values.dtype, values.landmarks[factors.keep])
        own = _Values.of(values, source)
    right = own.right(Y, center, wide=tol < _WELL)
    return values, *landmark_ridge(factors, own.products, right, n, c, center, tol)


def _on_factor_rows(
    values: LandmarkMap, source: Rows, Y: np.ndarray, c: float, center: bool
) -> tuple[FeatureMap, np.ndarray, np.ndarray]:
    found = from_landmarks(values.kernel, values.landmarks, values.dtype)
    with single_blas():
        (moments,) = collect_moments(FeatureRows({"x": source}, {"x": found}), Y)
        coefficients, offset = ridge(moments, {"x": 1.0}, c, center)
    return found, coefficients["x"], offset


def kept_bytes() -> int:
    """Count the bytes of kernel values at landmarks that are kept for the next pass of this process."""
    return max(2**30, int(free_memory()) // 4)


@dataclass(frozen=True)
class _Values:
    """Products of kernel values at landmarks, whose mean is taken off while they are added up, and put on afterwards."""

    raw: FeatureRows
    dtype: np.dtype
    shift: np.ndarray
    square: float
    client: Any

    @classmethod
    def of(cls, values: LandmarkMap, source: Rows) -> Self:
        """`square`: of the values less their mean, on average; both by some of the landmarks."""
        some = values.raw(values.landmarks[:_ROWS])
        shift = some.mean(axis=0)
        raw = FeatureRows({"x": source}, {"x": replace(values, shift=shift)}, kept_bytes())
        return cls(raw, values.dtype, shift.astype(np.float64), float(some.var(axis=0).mean()), current_client())

    def keeps_digits(self, square: np.ndarray, n: int, c: float) -> bool:
        """Whether C'C + c W is well above the rounding of C'C, by the kernel among the landmarks: C'C is about n / r W W."""
        least = least_pivot(square.copy(order="F"))
        return least * (least * n / len(square) + c) > _DIGITS * np.finfo(square.dtype).eps * n * self.square

    def _unshifted(self, image: np.ndarray) -> np.ndarray:
        image[:-1] += np.outer(self.shift, image[-1])
        return image

    def products(self, B: np.ndarray, wide: bool) -> np.ndarray:
        """[C, 1]'[C, 1] B."""
        shifted = np.vstack([B[:-1], B[-1:] + self.shift @ B[:-1]])
        return self._unshifted(landmark_products(self.raw, None, shifted, self.client, wide))

    def right(self, Y: np.ndarray, center: bool, wide: bool) -> np.ndarray:
        """[C, 1]'Y, of labels less their means with `center`."""
        image = self._unshifted(landmark_products(self.raw, Y, None, self.client, wide))
        return image[:, :-1] - np.outer(image[:, -1], image[-1, :-1] / len(Y)) if center else image[:, :-1]

    def system(self, Y: np.ndarray, center: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """C'C of rows less their mean, C'1, and `right`, from one pass where products among labels are the fewer."""
        together = Y.shape[1] <= len(self.shift)
        # or products of all panels are in float64
        beside = Y if Y.dtype.itemsize == 1 else Y.astype(self.dtype, copy=False)
        (moments,) = collect_moments(self.raw, beside if together else None, client=self.client)
        (where, *labels), n = moments.slices().values(), moments.n
        sums, products = moments.sums[where], moments.gram[where, labels[0]].copy() if together else None
        gram = corner(moments.gram, len(sums))
        for rows in row_blocks(len(gram), _ROWS):  # nothing more of that size
            gram[rows] -= np.outer(sums[rows], sums / n)
        ones = sums + n * self.shift
        if products is None:
            return gram, ones, self.right(Y, center, False)
        total = moments.sums[labels[0]]
        right = np.vstack([products + np.outer(self.shift, total), total])
        return gram, ones, right - np.outer(np.append(ones, n), total / n) if center else right
