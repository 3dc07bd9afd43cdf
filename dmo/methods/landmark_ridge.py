"""Ridge regression on kernel values at landmarks, by conjugate gradients or normal equations.

For n samples X, r landmarks Z and the ridge c, let C = k(X, Z) and W = k(Z, Z) = T'T. The rows of C T^-1 are the
Nystrom features of the samples. Their ridge regression solves (T^-T C'C T^-1 + c I) w = T^-T C'y, and the coefficients
of the kernel values are T^-1 w. A direct solution needs n r^2 multiplications for the features and n r^2 for their Gram
matrix. Conjugate gradients do not need the features, and one iteration costs 4 n r k multiplications for k labels.
There are two preconditioners:

- `LandmarkFactors` uses only W. Landmarks are random samples, so C'C is close to n / r W W, and the system is close to
  (n / r) T T' + c I = (n / r) A A', where A is a triangular matrix. About ten iterations are needed, which is efficient
  for few labels.
- `RowFactors` uses the exact matrix C'C + c W, which costs n r^2 multiplications. Iterations are needed only to correct
  floating-point error. In single precision, C'C has a relative error of 1e-6, which is too large if landmarks are close
  together or the ridge is small.

The algorithm differs from the paper (Falkon) in four points:

1. A single r x r matrix stores T on and above its diagonal and A below. It uses single precision if the pivots of W
   allow it. The true residual is computed in float64 after the iteration, which resumes if the residual is too large.
   For many labels, the true residual is computed only for a few random combinations of labels to save products.
2. In double precision, W is factorized with pivoting, and linearly dependent landmarks are dropped. The paper adds a
   constant to the diagonal instead.
3. The intercept is an additional unknown, so the kernel values need not be centered.
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
_MIRROR = 256  # number of rows of a matrix that are processed together
_PROBES = 4  # number of random combinations of labels for which the true residual is computed
_NEAR = 0.1  # relative residual above which a solution with `RowFactors` is rejected
_PER_LABEL = 24  # number of landmarks per label up to which a Gram matrix costs less than about ten iterations
PASSES = 40
"""Number of labels for which the products of an iteration take as long as reading the data."""
_SINGLE = 1e-3  # relative pivot of W below which single precision has fewer than 3 correct digits


class LandmarkFactors:
    """Preconditioner from the triangular matrices T and A with T'T = W and A A' = T T' + (c r / n) I.

    The argument `square` is the kernel matrix W of the landmarks, which is overwritten.
    """

    solves: ClassVar[bool] = False
    """Whether the preconditioner is the exact inverse of the system, except for floating-point error."""

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
        self.ones = np.array([self._both[i, i:].sum() for i in range(rank)])  # Row sums of T.
        self._both, _ = lauum(self._both, lower=1, overwrite_c=1)
        self._both[np.diag_indices(rank)] += ridge
        if cholesky_in_place(self._both):
            raise IllConditioned("the preconditioner of the landmarks has no Cholesky factor; raise the ridge")
        self._other = self._both.diagonal().copy()

    def _triangle(self, B: np.ndarray, diagonal: np.ndarray, lower: int, trans: int) -> np.ndarray:
        self._both[np.diag_indices(len(diagonal))] = diagonal
        return np.asarray(self._trtrs(self._both, B, lower=lower, trans=trans)[0])

    def root(self, B: np.ndarray, trans: bool = False) -> np.ndarray:
        """Multiply B by the inverse of T, or by the inverse of the transpose of T if `trans` is true."""
        return self._triangle(B, self._root, 0, int(trans))

    def penalty(self, B: np.ndarray) -> np.ndarray:
        """Multiply B by the matrix of the ridge penalty, which is the identity."""
        return B

    def inverse(self, B: np.ndarray) -> np.ndarray:
        """Multiply B by the inverse of A A'."""
        return self._triangle(self._triangle(B, self._other, 1, 0), self._other, 1, 1)

    def preconditioner(self, n: int, center: bool) -> LinearMap:
        """Return a function that multiplies by an approximate inverse of the system."""
        per = n / len(self.keep)
        sums = per * self.ones
        toward = self.inverse(sums[:, None])[:, 0] / per
        rest = n - sums @ toward  # Schur complement of the intercept.

        def precondition(R: np.ndarray) -> np.ndarray:
            own = self.inverse(R[:-1]) / per
            if not center:
                return np.vstack([own, np.zeros((1, R.shape[1]))])
            b = (R[-1] - toward @ R[:-1]) / rest
            return np.vstack([own - np.outer(toward, b), b])

        return precondition


def _pivoted(square: np.ndarray, tol: float) -> tuple[np.ndarray, np.ndarray]:
    """Compute the pivoted Cholesky factor of W in place, and the indices of landmarks with pivots above `tol`."""
    factored, pivots, rank, _ = scipy.linalg.lapack.dpstrf(square, tol=tol, lower=1, overwrite_a=1)
    return corner(factored.T, int(rank)).T, pivots[:rank] - 1


def solved_by_rows(r: int, n_labels: int) -> bool:
    """Return whether the Gram matrix of the kernel values costs less than about ten iterations."""
    return r <= _PER_LABEL * (n_labels + PASSES)


def least_pivot(square: np.ndarray) -> float:
    """Compute the Cholesky factor of a matrix in place, and return the smallest pivot, or 0 if there is no factor."""
    return 0.0 if cholesky_in_place(square) else float(square.diagonal().min(initial=np.inf)) ** 2


def corner(square: np.ndarray, r: int) -> np.ndarray:
    """Return the leading r x r block of a matrix as a contiguous array in the memory of the matrix."""
    memory = square.reshape(-1)
    for j in range(r if r < len(square) else 0):
        memory[j * r : (j + 1) * r] = square[j, :r]
    return memory[: r * r].reshape((r, r))


class RowFactors:
    """Preconditioner from the Cholesky factor of C'C + c W, including the intercept.

    The argument `gram` is C'C of centered kernel values, `sums` contains the column sums of C, and `square` is W.
    """

    solves: ClassVar[bool] = True

    def __init__(self, gram: np.ndarray, sums: np.ndarray, square: np.ndarray, n: int, c: float, center: bool):
        for rows in row_blocks(len(gram), _MIRROR):  # Add in blocks, which avoids another r x r matrix.
            gram[rows] += c * square[rows]
            if not center:
                gram[rows] += np.outer(sums[rows] / n, sums)
        self.keep, self._square, self._sums, self._system = np.arange(len(gram)), square, sums, Equilibrated(gram)

    def root(self, B: np.ndarray, trans: bool = False) -> np.ndarray:
        """Return B unchanged, because the unknowns of this system are the coefficients of the kernel values."""
        return B

    def penalty(self, B: np.ndarray) -> np.ndarray:
        """Multiply B by the matrix of the ridge penalty, which is W."""
        return np.vstack([self._square[rows].astype(B.dtype) @ B for rows in row_blocks(len(B), _MIRROR)])

    def preconditioner(self, n: int, center: bool) -> LinearMap:
        """Return a function that multiplies by the inverse of the system."""
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
    """Solve a ridge regression on kernel values at r landmarks, which is equivalent to one on Nystrom features.

    For k right-hand sides of length r + 1, return coefficients of shape (r, k) and k intercepts.
    """
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
    # The expected squared residual of a random combination of labels is the mean over all labels, so the residuals of a
    # few combinations are an estimate of the mean.
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (k, _PROBES)) / np.sqrt(k) / least[:, None]

    def typical(found: np.ndarray) -> float:
        return float(np.sqrt(np.mean(length(target @ signs - apply(found @ signs, True)) ** 2)))

    rest, found, share = target, np.zeros_like(target), np.ones(k)  # Residuals, solution and relative residuals.
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
        # In float32, the recursive residual of conjugate gradients drifts from the true residual, so stop early and
        # compute the true residual in float64.
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
    # A saved model uses the same memory order, so the scores of a loaded model are bit-identical.
    offset = found[-1] if center else np.zeros(found.shape[1])
    return np.ascontiguousarray(factors.root(found[:-1]), np.float64), offset


_TOL = {"float32": 1e-4, "float64": 1e-10}
"""Tolerance for relative residuals, by the precision of the kernel values."""
_WELL = 1e-3
"""Tolerance for relative residuals if W is well-conditioned; test errors change only in the fifth digit."""
_ROWS = 256  # number of rows of a matrix that are processed together
_DIGITS = 100  # safety factor for the floating-point error of a Gram matrix
log = logging.getLogger("dmo")


def landmark_regression(
    values: LandmarkMap, source: Rows, Y: np.ndarray, c: float, center: bool, choose: bool = False
) -> tuple[FeatureMap, np.ndarray, np.ndarray]:
    """Fit a ridge regression of labels on kernel values at landmarks, by normal equations or conjugate gradients.

    Return the feature map, the coefficients and the intercepts. If `choose` is true, Nystrom features can be used.
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
    """Return the maximum size in bytes of the kernel values that the client process caches between iterations."""
    return max(2**30, part_of_free(0.25))


@dataclass(frozen=True)
class _Values:
    """Products with the matrix C of kernel values, which are computed from centered values for precision."""

    raw: FeatureRows
    dtype: np.dtype
    shift: np.ndarray
    square: float

    @classmethod
    def of(cls, values: LandmarkMap, source: Rows) -> Self:
        """Use some landmarks to estimate the means of the kernel values and their mean variance."""
        some = values.raw(values.landmarks[:_ROWS])
        shift = some.mean(axis=0)
        raw = FeatureRows({"x": source}, {"x": replace(values, shift=shift)}, kept_bytes())
        return cls(raw, values.dtype, shift.astype(np.float64), float(some.var(axis=0).mean()))

    def keeps_digits(self, square: np.ndarray, n: int, c: float) -> bool:
        """Return whether the smallest pivot of C'C + c W is well above the floating-point error of C'C."""
        # Landmarks are random samples, so (n / r) W W is an estimate of C'C.
        least = least_pivot(square.copy(order="F"))
        return least * (least * n / len(square) + c) > _DIGITS * np.finfo(square.dtype).eps * n * self.square

    def _unshifted(self, image: np.ndarray) -> np.ndarray:
        image[:-1] += np.outer(self.shift, image[-1])
        return image

    def products(self, B: np.ndarray, wide: bool) -> np.ndarray:
        """Compute the product [C, 1]'[C, 1] B."""
        shifted = np.vstack([B[:-1], B[-1:] + self.shift @ B[:-1]])
        return self._unshifted(landmark_products(self.raw, None, shifted, wide))

    def right(self, Y: np.ndarray, center: bool, wide: bool) -> np.ndarray:
        """Compute the product [C, 1]'Y, with centered labels if `center` is true."""
        image = self._unshifted(landmark_products(self.raw, Y, None, wide))
        return image[:, :-1] - np.outer(image[:, -1], image[-1, :-1] / len(Y)) if center else image[:, :-1]

    def system(self, Y: np.ndarray, center: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Compute C'C of centered rows, the column sums of C, and the right-hand sides of the labels."""
        # One pass over the data computes all matrices, unless there are more labels than landmarks.
        together = Y.shape[1] <= len(self.shift)
        # Labels in float64 would turn all products into float64, so convert them to the precision of the kernel values.
        beside = Y if Y.dtype.itemsize == 1 else Y.astype(self.dtype, copy=False)
        (moments,) = collect_moments(self.raw, beside if together else None)
        (where, *labels), n = moments.slices().values(), moments.n
        sums, products = moments.sums[where], moments.gram[where, labels[0]].copy() if together else None
        gram = corner(moments.gram, len(sums))
        for rows in row_blocks(len(gram), _ROWS):  # Subtract in blocks, which avoids another r x r matrix.
            gram[rows] -= np.outer(sums[rows], sums / n)
        ones = sums + n * self.shift
        if products is None:
            return gram, ones, self.right(Y, center, False)
        total = moments.sums[labels[0]]
        right = np.vstack([products + np.outer(self.shift, total), total])
        return gram, ones, right - np.outer(np.append(ones, n), total / n) if center else right
