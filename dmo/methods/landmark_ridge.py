"""Ridge regression on kernel values at landmarks: its solvers, and the choice between them.

With C = k(X, Z), W = k(Z, Z) = T'T and coefficients a = T^-1 w on kernel values, the regression on the Nystrom factor
rows C T^-1 solves (T^-T C'C T^-1 + c I) w = T^-T C'y. For n rows and r landmarks, the direct solve needs n r^2
multiplications for the factor rows, the same number for their Gram matrix, and r^3 for landmarks and solve. Conjugate
gradients on kernel values need no factor rows; each iteration costs 4 n r k for k labels. There are two
preconditioners:

- `LandmarkFactors` uses the landmarks only. They are drawn like the rows, so C'C is about n / r W W, and
  (n / r) T T' + c I = (n / r) A A' is close to the system. About ten iterations are needed, which is efficient for few
  labels.
- `RowFactors` uses C'C + c W itself, which costs n r^2. It needs iterations only to correct floating-point error. In
  single precision, C'C has a relative error of 1e-6, which is too large if landmarks are close together or the ridge is
  small.

These systems are not views of `fit.ridge_solves`, because the penalty is W instead of the identity. A view would need T
and the factor rows, which conjugate gradients avoid.

Differences from the paper (Falkon):

1. One r x r matrix stores both triangles: T on and above its diagonal, and A below it. No other matrix of this size is
   needed. It uses single precision if the pivots of W allow it. Steps use products in the precision of the kernel
   values. The residual is computed in float64, and the iteration resumes from it if it is too large. With many labels,
   only a few random combinations are checked, because a product for every label costs as much as two steps.
2. In double precision, W is factored with pivoting, and linearly dependent landmarks are dropped. The paper adds a
   constant to the diagonal instead.
3. The intercept is a separate unknown in the system and in the preconditioner, so rows need not be centered.
4. Each label has its own step sizes and stops when it has converged.

Source: Rudi, Carratino, Rosasco 2017, algorithm 1.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import scipy.linalg
from sklearn.exceptions import ConvergenceWarning

from dmo.blocks import Rows, row_blocks
from dmo.fit.passes import FeatureRows, collect_moments, landmark_products
from dmo.fit.ridge_solves import column_gradients, ridge
from dmo.linalg.linear import Equilibrated, IllConditioned, cholesky_in_place
from dmo.linalg.tall import LinearMap
from dmo.lowrank import FeatureMap, LandmarkMap, from_landmarks
from dmo.memory import part_of_free
from dmo.threads import single_blas

_RESTARTS = 4
_MIRROR = 256  # rows and columns that are mirrored at a time
_PROBES = 4  # random combinations of labels
_NEAR = 0.1  # maximum residual, relative to the right-hand sides, of a solution that only needs correction of rounding
_PER_LABEL = 24  # landmarks per label: a Gram matrix costs n r^2, an iteration 4 n r k
PASSES = 40
"""Number of labels whose products take as long as reading the data."""
_SINGLE = 1e-3  # minimum pivot for 3 or 4 correct digits in single precision, relative to the largest diagonal entry


class LandmarkFactors:
    """Triangles T and A in one matrix: T'T = W and A A' = T T' + c r / n I, for linearly independent landmarks.

    square (m, m)
    """

    solves: ClassVar[bool] = False
    """Whether the preconditioner solves the system up to floating-point error."""

    def __init__(self, square: np.ndarray, drop: float, ridge: float):
        lauum, self._trtrs = scipy.linalg.get_lapack_funcs(("lauum", "trtrs"), (square,))
        largest = max(float(square.diagonal().max(initial=0.0)), 1e-300)
        if square.dtype == np.float64:
            self._both, self.keep = _pivoted(square, drop * largest)
        else:
            if least_pivot(square) < _SINGLE * largest:
                raise IllConditioned("landmarks are too close together for a float32 kernel")
            self._both, self.keep = square, np.arange(len(square))
        rank = len(self.keep)
        self._root = self._both.diagonal().copy()
        for i in range(0, rank, _MIRROR):
            for j in range(0, i + 1, _MIRROR):
                rows, columns = slice(i, min(i + _MIRROR, rank)), slice(j, min(j + _MIRROR, rank))
                below = self._both[rows, columns].T
                self._both[columns, rows] = below if i != j else np.triu(below) + np.tril(self._both[rows, columns], -1)
        self.ones = np.array([self._both[i, i:].sum() for i in range(rank)])  # T 1 for the stored triangle
        self._both, _ = lauum(self._both, lower=1, overwrite_c=1)
        self._both[np.diag_indices(rank)] += ridge
        if cholesky_in_place(self._both):
            raise IllConditioned("the preconditioner of the landmarks has no Cholesky factor; raise the ridge")
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
        """Multiply by the matrix of the ridge penalty, here the identity.

        B (r, k) -> (r, k)
        """
        return B

    def inverse(self, B: np.ndarray) -> np.ndarray:
        """Solve with A A'.

        B (r, k) -> (r, k)
        """
        return self._triangle(self._triangle(B, self._other, 1, 0), self._other, 1, 1)

    def preconditioner(self, n: int, center: bool) -> LinearMap:
        """Return an approximate inverse of the system."""
        per = n / len(self.keep)  # number of rows per landmark
        sums = per * self.ones
        toward = self.inverse(sums[:, None])[:, 0] / per
        rest = n - sums @ toward  # part of the ones that the landmarks do not explain

        def precondition(R: np.ndarray) -> np.ndarray:
            own = self.inverse(R[:-1]) / per
            if not center:
                return np.vstack([own, np.zeros((1, R.shape[1]))])
            b = (R[-1] - toward @ R[:-1]) / rest
            return np.vstack([own - np.outer(toward, b), b])

        return precondition


def _pivoted(square: np.ndarray, tol: float) -> tuple[np.ndarray, np.ndarray]:
    """Compute T' of the landmarks with pivots above `tol`, in the memory of W, and the indices of these landmarks."""
    factored, pivots, rank, _ = scipy.linalg.lapack.dpstrf(square, tol=tol, lower=1, overwrite_a=1)
    return corner(factored.T, int(rank)).T, pivots[:rank] - 1


def solved_by_rows(r: int, n_labels: int) -> bool:
    """Return whether the Gram matrix of the rows costs less than the products of about ten iterations."""
    return r <= _PER_LABEL * (n_labels + PASSES)


def least_pivot(square: np.ndarray) -> float:
    """Factor a positive definite matrix in its lower triangle, and return the smallest pivot.

    square (m, m)
    """
    return 0.0 if cholesky_in_place(square) else float(square.diagonal().min(initial=np.inf)) ** 2


def corner(square: np.ndarray, r: int) -> np.ndarray:
    """Move the leading rows and columns of a matrix together within its memory.

    square (m, m) -> (r, r)
    """
    memory = square.reshape(-1)
    for j in range(r if r < len(square) else 0):
        memory[j * r : (j + 1) * r] = square[j, :r]
    return memory[: r * r].reshape((r, r))


class RowFactors:
    """Cholesky factor of C'C + c W, for rows and an intercept together.

    gram, square (r, r); sums (r,)
    """

    solves: ClassVar[bool] = True

    def __init__(self, gram: np.ndarray, sums: np.ndarray, square: np.ndarray, n: int, c: float, center: bool):
        for rows in row_blocks(len(gram), _MIRROR):  # Avoid another matrix of this size.
            gram[rows] += c * square[rows]
            if not center:
                gram[rows] += np.outer(sums[rows] / n, sums)
        self.keep, self._square, self._sums, self._system = np.arange(len(gram)), square, sums, Equilibrated(gram)

    def root(self, B: np.ndarray, trans: bool = False) -> np.ndarray:
        """Return unknowns unchanged, because they are the coefficients.

        B (r, k) -> (r, k)
        """
        return B

    def penalty(self, B: np.ndarray) -> np.ndarray:
        """Multiply by the matrix of the ridge penalty, here W.

        B (r, k) -> (r, k)
        """
        return np.vstack([self._square[rows].astype(B.dtype) @ B for rows in row_blocks(len(B), _MIRROR)])

    def preconditioner(self, n: int, center: bool) -> LinearMap:
        """Return the inverse of the system."""
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
    """Solve ridge regression on kernel values at landmarks, equivalent to that on their Nystrom factor rows.

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
    # Random signs: the squared residuals of these combinations equal those of all labels on average.
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (k, _PROBES)) / np.sqrt(k) / least[:, None]

    def typical(found: np.ndarray) -> float:
        return float(np.sqrt(np.mean(length(target @ signs - apply(found @ signs, True)) ** 2)))

    rest, found, share = target, np.zeros_like(target), np.ones(k)  # residual, solution, and relative residuals
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
        # The recursive residual in float32 drifts from the true residual, so recompute it in float64.
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
            raise IllConditioned(f"the relative residual stays at {share.max():.1e}")
        warnings.warn(
            f"conjugate gradients on landmarks: {np.count_nonzero(share > 2 * tol)} of {k} labels stopped at a relative "
            f"residual of {share.max():.1e}, requested {tol:.0e}; raise the ridge, use fewer landmarks, or "
            "precision='float64'",
            ConvergenceWarning,
            stacklevel=2,
        )
    return _coefficients(factors, found, center)


def _coefficients(
    factors: LandmarkFactors | RowFactors, found: np.ndarray, center: bool
) -> tuple[np.ndarray, np.ndarray]:
    # Use the memory order of a model store, so that a saved model predicts bit-identical scores.
    offset = found[-1] if center else np.zeros(found.shape[1])
    return np.ascontiguousarray(factors.root(found[:-1]), np.float64), offset


_TOL = {"float32": 1e-4, "float64": 1e-10}
"""Relative residuals by precision of the kernel values."""
_WELL = 1e-3
"""Relative residual for landmarks with a well-conditioned kernel: it changes test errors in their fifth digit."""
_ROWS = 256  # rows of a square matrix processed at a time
_DIGITS = 100  # safety margin: ten times the error of a Gram matrix in roundings of a sum of squares
log = logging.getLogger("dmo")


def landmark_regression(
    values: LandmarkMap, source: Rows, Y: np.ndarray, c: float, center: bool, choose: bool = False
) -> tuple[FeatureMap, np.ndarray, np.ndarray]:
    """Fit ridge regression of labels (n x L) on kernel values at landmarks, by normal equations or conjugate gradients.

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
            log.info("ridge regression on landmarks: %s; using conjugate gradients", error)
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
    """Return the maximum size in bytes of kernel values at landmarks cached for the next pass in the client process."""
    return max(2**30, part_of_free(0.25))


@dataclass(frozen=True)
class _Values:
    """Products of kernel values at landmarks; their mean is subtracted while summing and added back afterwards."""

    raw: FeatureRows
    dtype: np.dtype
    shift: np.ndarray
    square: float

    @classmethod
    def of(cls, values: LandmarkMap, source: Rows) -> Self:
        """Estimate the mean and `square`, the mean square of centered values, from some of the landmarks."""
        some = values.raw(values.landmarks[:_ROWS])
        shift = some.mean(axis=0)
        raw = FeatureRows({"x": source}, {"x": replace(values, shift=shift)}, kept_bytes())
        return cls(raw, values.dtype, shift.astype(np.float64), float(some.var(axis=0).mean()))

    def keeps_digits(self, square: np.ndarray, n: int, c: float) -> bool:
        """Return whether C'C + c W is well above the rounding error of C'C, estimating C'C by n / r W W."""
        least = least_pivot(square.copy(order="F"))
        return least * (least * n / len(square) + c) > _DIGITS * np.finfo(square.dtype).eps * n * self.square

    def _unshifted(self, image: np.ndarray) -> np.ndarray:
        image[:-1] += np.outer(self.shift, image[-1])
        return image

    def products(self, B: np.ndarray, wide: bool) -> np.ndarray:
        """Compute [C, 1]'[C, 1] B."""
        shifted = np.vstack([B[:-1], B[-1:] + self.shift @ B[:-1]])
        return self._unshifted(landmark_products(self.raw, None, shifted, wide))

    def right(self, Y: np.ndarray, center: bool, wide: bool) -> np.ndarray:
        """Compute [C, 1]'Y, with centered labels if `center`."""
        image = self._unshifted(landmark_products(self.raw, Y, None, wide))
        return image[:, :-1] - np.outer(image[:, -1], image[-1, :-1] / len(Y)) if center else image[:, :-1]

    def system(self, Y: np.ndarray, center: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Compute C'C of centered rows, C'1 and `right`, in one pass if there are fewer labels than landmarks."""
        together = Y.shape[1] <= len(self.shift)
        # Convert the labels; otherwise the products of all panels use float64.
        beside = Y if Y.dtype.itemsize == 1 else Y.astype(self.dtype, copy=False)
        (moments,) = collect_moments(self.raw, beside if together else None)
        (where, *labels), n = moments.slices().values(), moments.n
        sums, products = moments.sums[where], moments.gram[where, labels[0]].copy() if together else None
        gram = corner(moments.gram, len(sums))
        for rows in row_blocks(len(gram), _ROWS):  # Avoid another matrix of this size.
            gram[rows] -= np.outer(sums[rows], sums / n)
        ones = sums + n * self.shift
        if products is None:
            return gram, ones, self.right(Y, center, False)
        total = moments.sums[labels[0]]
        right = np.vstack([products + np.outer(self.shift, total), total])
        return gram, ones, right - np.outer(np.append(ones, n), total / n) if center else right
