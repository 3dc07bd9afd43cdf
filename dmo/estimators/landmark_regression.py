"""Ridge regression on kernel values at landmarks: which road is taken, and the products that it needs."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import psutil

from dmo.blocks import Rows, row_blocks
from dmo.cluster import current_client
from dmo.engines.passes import FeatureRows, collect_moments, landmark_products
from dmo.kernels.threads import single_blas
from dmo.linalg.solution import IllConditioned
from dmo.lowrank import FeatureMap, LandmarkMap, from_landmarks
from dmo.methods.landmark_ridge import LandmarkFactors, RowFactors, corner, landmark_ridge, least_pivot, solved_by_rows
from dmo.methods.ridge import ridge

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
        values = values.of_landmarks(factors.keep)
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
    return max(2**30, psutil.virtual_memory().available // 4)


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
        beside = Y if Y.itemsize == 1 else Y.astype(self.dtype, copy=False)  # or products of all panels are in float64
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
