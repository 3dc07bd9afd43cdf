"""The kernels by name: each a formula of a pair of rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import scipy.sparse

from dmo import blocks
from dmo.errors import UserError
from dmo.kernels import loops, rows
from dmo.kernels.base import BandwidthKernel, CenteredKernel, RowKernel
from dmo.kernels.pairs import EntryMap
from dmo.kernels.rows import Prepared, check_normalization

LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class RBF(CenteredKernel):
    """exp(-|x - y|^2 / (2 sigma^2)), sigma = scale * bandwidth.

    Arguments: `bandwidth` a number, "mean" (the mean distance of all pairs i != j), "median", or
    "mean-fifth-neighbor"; `normalize` None, "l1", "l2" or "hellinger" (square roots of L1-normalized rows); `scale` a
    factor on the bandwidth. `fit` also learns the offset that keeps float32 exact far from the origin.
    """

    name = "rbf"
    pair = "dot"

    def _map(self) -> EntryMap:
        return EntryMap(loops.GAUSSIAN, LOG2_E / self.width**2)

    def _prepare(self, X: blocks.Rows, dtype: Any, names: np.ndarray | None) -> Prepared:
        p = super()._prepare(X, dtype, names)
        if not self._ruled():
            self._check_digits(p)
        return p

    def _resolved(self, p: Prepared, K: np.ndarray, index: np.ndarray | None, n_threads: int | None) -> Self:
        kernel = super()._resolved(p, K, index, n_threads)
        kernel._check_digits(p)
        return kernel

    def _check_digits(self, p: Prepared) -> None:
        if self.offset is not None or not len(p):
            return
        lost = np.finfo(p.dtype).eps / 2 * float(np.median(p.norms)) / self.width**2
        if lost > 1e-3:
            raise UserError(
                f"rbf: rows lie so far from the origin that {p.dtype} loses the distances (error about "
                f"{lost:.0e}); fit the kernel on dense rows, or take dtype float64"
            )


@dataclass(frozen=True)
class Exponential(CenteredKernel):
    """exp(-|x - y|_2 / b), b = scale * bandwidth; arguments as for `RBF`."""

    name = "exponential"
    pair = "l2"

    def _map(self) -> EntryMap:
        return EntryMap(loops.EXPONENTIAL, LOG2_E / self.width)


@dataclass(frozen=True)
class Laplacian(BandwidthKernel):
    """exp(-|x - y|_1 / b), b = scale * bandwidth, distances in the L1 norm; arguments as for `RBF`."""

    name = "laplacian"
    pair = "l1"

    def _map(self) -> EntryMap:
        return EntryMap(loops.EXPONENTIAL, LOG2_E / self.width)


@dataclass(frozen=True)
class ChiSquare(BandwidthKernel):
    """exp(-chi2(x, y) / b), chi2 = sum (x - y)^2 / (x + y), for non-negative rows; arguments as for `RBF`.

    b = scale * bandwidth. Positive definite as it stands; exp(-chi2^2 / (2 b^2)) would not be.
    """

    name = "chi2"
    pair = "chi2"
    non_negative = True

    def _map(self) -> EntryMap:
        return EntryMap(loops.EXPONENTIAL, LOG2_E / self.width)


@dataclass(frozen=True)
class Intersection(RowKernel):
    """sum min(x, y), for non-negative rows such as histograms (Swain and Ballard 1991)."""

    normalize: str | None = None
    name = "intersection"
    pair = "min"
    non_negative = True

    def diagonal(self, x: Prepared) -> np.ndarray:
        return x.norms.astype(x.dtype)


@dataclass(frozen=True)
class Linear(RowKernel):
    """x'y."""

    normalize: str | None = None
    name = "linear"
    pair = "dot"

    def diagonal(self, x: Prepared) -> np.ndarray:
        return x.norms.astype(x.dtype)


@dataclass(frozen=True)
class Euclidean(RowKernel):
    """|x - y|: a distance, which is no kernel; its values to seed samples serve as relation features [MOPE 3.5]."""

    normalize: str | None = None
    name = "euclidean"
    pair = "l2"

    def diagonal(self, x: Prepared) -> np.ndarray:
        return np.zeros(len(x), x.dtype)


@dataclass(frozen=True)
class Cosine(RowKernel):
    """x'y / (|x| |y|); 0 for rows of zeros."""

    normalize: str | None = None
    name = "cosine"
    pair = "dot"

    def _prepare(self, X: blocks.Rows, dtype: Any, names: np.ndarray | None) -> Prepared:
        p = super()._prepare(X, dtype, names)
        length = np.sqrt(p.norms)
        weights = np.divide(1.0, length, out=np.zeros_like(length), where=length > 0).astype(p.dtype)
        values = p.values
        if scipy.sparse.issparse(values):
            values.data *= np.repeat(weights, np.diff(values.indptr))
        else:
            values *= weights[:, None]
        return replace(p, norms=(length > 0).astype(np.float64))

    def diagonal(self, x: Prepared) -> np.ndarray:
        return x.norms.astype(x.dtype)


@dataclass(frozen=True)
class Polynomial(RowKernel):
    """(gamma x'y + coef0)^degree.

    Arguments: `degree` a whole number >= 1; `gamma` > 0, None for 1 / number of features, set by `fit`; `coef0` >= 0
    (below 0 the kernel would not be positive semidefinite).
    """

    degree: int = 3
    gamma: float | None = None
    coef0: float = 1.0
    normalize: str | None = None
    name = "polynomial"
    pair = "dot"

    def __post_init__(self) -> None:
        check_normalization(self.normalize, self.name)
        if int(self.degree) != self.degree or self.degree < 1:
            raise UserError(f"polynomial: degree must be a whole number >= 1, got {self.degree!r}")
        if self.gamma is not None and not (np.isfinite(self.gamma) and self.gamma > 0):
            raise UserError(f"polynomial: gamma must be a positive number or None, got {self.gamma!r}")
        if not (np.isfinite(self.coef0) and self.coef0 >= 0):
            raise UserError(f"polynomial: coef0 must be a number >= 0, got {self.coef0!r}")

    def fit(self, X: blocks.Rows, random_state: Any = None) -> Self:
        return self._prefit(rows.source(X), None)

    def _prefit(self, X: Any, index: np.ndarray | None, names: np.ndarray | None = None) -> Self:
        return self if self.gamma is not None else replace(self, gamma=1.0 / X.shape[1])

    def _number(self) -> float:
        if self.gamma is None:
            raise UserError("polynomial: gamma None is a rule; call fit first, or give a number")
        return float(self.gamma)

    def _map(self) -> EntryMap:
        return EntryMap(loops.POLYNOMIAL, self._number(), float(self.coef0), int(self.degree))

    def diagonal(self, x: Prepared) -> np.ndarray:
        return ((self._number() * x.norms + self.coef0) ** int(self.degree)).astype(x.dtype)
