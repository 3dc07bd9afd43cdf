"""Nystrom approximation of a kernel from its values at a few landmarks.

Let C = k(X, Z) contain the kernel values of samples X at landmarks Z, and let W = k(Z, Z). The kernel matrix is
approximated by C W^+ C', which equals F F' for the factor F = C P with P P' = W^+. If landmarks are close to each
other, W is nearly singular, and P amplifies the floating-point error of C. Therefore, pivoted Cholesky in float64 drops
landmarks whose pivots are zero within the precision of C. A small multiple of the trace of W is also added to its
diagonal. P is computed once. Each block of samples then requires only the kernel values C and the product C P, in the
precision of C.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import array_api_compat
import numpy as np
import scipy.sparse

from dmo.blocks import Rows, row_blocks
from dmo.devices import foreign, placed
from dmo.errors import UserError
from dmo.kernels import Kernel, parse
from dmo.kernels.base import BandwidthKernel
from dmo.lowrank.feature_maps import BLOCK, FeatureMap, multiplied
from dmo.lowrank.landmarks import Landmarks, choose_landmarks
from dmo.lowrank.sampling import (
    Rank,
    SampledRows,
    check_finite,
    check_rows,
    draw,
    error_rows,
    fit_rank,
    gather,
    learning_rows,
    sampled_error,
)
from dmo.progress import stage

PREPARED = 1 << 20
"""Maximum number of entries of a temporary array, such as a block of kernel values."""
# Minimum number of samples per block, and number of columns that `times_triangle` computes at a time.
_LEAST_ROWS, _PANEL = 256, 256
BANDWIDTH_ROWS = 1024
"""Maximum number of samples from which a mean or median distance is estimated.

The estimate differs by one or two percent from the value for all samples. Twice as many samples would reduce this error
by a third, but would take as long as the choice of 500 landmarks."""
_GROUPS = 4


@dataclass(frozen=True, eq=False, repr=False)
class NystromMap(FeatureMap):
    """Nystrom feature map f(x) = P' k(Z, x) with landmarks Z and a projection matrix P.

    Parameters
    ----------
    kernel : Kernel
        Fitted kernel.
    dtype : dtype
        Data type of the factor rows.
    landmarks : ndarray or csr_array of shape (r, d)
        Landmarks Z as rows.
    projection : ndarray of shape (r, r)
        Upper triangular matrix P, where P P' is the inverse of k(Z, Z) after a small constant is added to its diagonal.
    error : dict, default={}
        Estimated approximation errors from `sampled_error`.

    References
    ----------
    Williams, Seeger 2001.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.lowrank import nystrom
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> nystrom("rbf", X, rank=10, random_state=0).landmarks.shape
    (10, 3)
    """

    landmarks: np.ndarray | scipy.sparse.csr_array
    projection: np.ndarray

    kind = "nystrom"

    @property
    def portable(self) -> bool:  # type: ignore[override]
        """Whether the map accepts arrays of other libraries, which requires a portable kernel and dense landmarks."""
        return self.kernel.portable and isinstance(self.landmarks, np.ndarray)

    @property
    def rank(self) -> int:
        """Number of columns of the factor, which is the number of landmarks."""
        return self.projection.shape[1]

    @cached_property
    def _ready(self) -> tuple[Any, np.ndarray]:
        return self.kernel.prepare(self.landmarks, self.dtype), self.projection.astype(self.dtype)

    @cached_property
    def _elsewhere(self) -> dict[tuple[str, str], tuple[Any, Any]]:
        return {}

    @cached_property
    def _last(self) -> list[Any]:
        """Cache of the last regression coefficients and their product with the projection matrix."""
        return []

    def _ready_beside(self, block: Any) -> tuple[Any, Any]:
        """Return copies of the landmarks and the projection on the device of `block`, made once per device."""
        place = foreign(block).__name__, str(array_api_compat.device(block))
        if place not in self._elsewhere:
            landmarks = self.kernel.prepare(placed(self.landmarks, block), self.dtype)
            self._elsewhere[place] = landmarks, placed(self._ready[1], block)
        return self._elsewhere[place]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_elsewhere", "_last")}

    def raw(self, X: Rows) -> np.ndarray:
        """Compute the factor rows of samples in memory.

        Parameters
        ----------
        X : ndarray, csr_array, or array of another library, of shape (m, d)
            Samples as rows.

        Returns
        -------
        ndarray, or array of the library of X, of shape (m, rank)
            Factor rows, on the device of X.
        """
        block = self._block(X, self.landmarks.shape[1])
        if (xp := foreign(block)) is not None:
            landmarks, projection = self._ready_beside(block)
            return xp.matmul(self.kernel.tile(self.kernel.prepare(block, self.dtype), landmarks), projection)
        out = np.empty((block.shape[0], self.rank), self.dtype)
        for where in self._strips(block):
            times_triangle(self._tile(block[where]), self._ready[1], out[where])
        return out

    def times(self, X: Rows, coefficients: np.ndarray) -> np.ndarray:
        block = self._block(X, self.landmarks.shape[1])
        factors = [self.projection, coefficients]
        # Reading P would dominate the prediction of single rows, so cache the product of P and the coefficients.
        if coefficients.size <= PREPARED:
            if not self._last or self._last[0] is not coefficients:
                self._last[:] = coefficients, self.projection @ coefficients
            factors = self._last[1:]
        elif block.shape[0] > coefficients.shape[1]:
            # For many samples, multiplying P by the coefficients first requires fewer operations.
            factors = [self.projection @ coefficients]
        if foreign(block) is not None:
            tile = self.kernel.tile(self.kernel.prepare(block, self.dtype), self._ready_beside(block)[0])
            return multiplied(tile, factors)
        out = np.empty((block.shape[0], coefficients.shape[1]))
        for where in self._strips(block):
            out[where] = multiplied(self._tile(block[where]), factors)
        return out

    def _strips(self, block: Any) -> list[slice]:
        # Keep temporary arrays below a few MB, so that the allocator reuses their memory. Larger arrays require new
        # memory pages each time, and clearing these pages took an eighth of the time of a fit.
        step = min(BLOCK, max(_LEAST_ROWS, PREPARED // max(1, *block.shape[1:], self.rank)))
        return row_blocks(block.shape[0], step)

    def _tile(self, rows: Any) -> np.ndarray:
        return self.kernel.tile(self.kernel.prepare(rows, self.dtype), self._ready[0])


@dataclass(frozen=True, eq=False, repr=False)
class LandmarkMap(FeatureMap):
    """Feature map from samples x to their kernel values k(x, Z) at landmarks Z.

    Inner products of these features do not approximate the kernel, unlike those of other feature maps. Ridge regression
    with the Nystrom solver "cg" uses the features.

    Parameters
    ----------
    kernel : Kernel
        Fitted kernel.
    dtype : dtype
        Data type of the kernel values.
    landmarks : ndarray or csr_array of shape (r, d)
        Landmarks Z as rows.
    shift : ndarray of shape (r,) or None, default=None
        Row that is subtracted from the kernel values of every sample. If the kernel values are almost constant, a shift
        near their mean preserves the precision of sums of products. None is no shift.
    error : dict, default={}
        Empty, because kernel values have no approximation error.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import RBF
    >>> from dmo.lowrank.nystrom import LandmarkMap
    >>> Z = np.array([[0.0], [1.0]])
    >>> LandmarkMap(RBF(bandwidth=1.0), np.dtype("float64"), Z).raw(Z).round(2).tolist()
    [[1.0, 0.61], [0.61, 1.0]]
    """

    landmarks: np.ndarray | scipy.sparse.csr_array
    shift: np.ndarray | None = None

    kind = "landmarks"

    @property
    def rank(self) -> int:
        """Number of features, which is the number of landmarks."""
        return self.landmarks.shape[0]

    @cached_property
    def _ready(self) -> Any:
        return self.kernel.prepare(self.landmarks, self.dtype)

    def raw(self, X: Rows) -> np.ndarray:
        """Compute the kernel values of samples at the landmarks.

        Parameters
        ----------
        X : ndarray or csr_array of shape (m, d)
            Samples as rows.

        Returns
        -------
        ndarray of shape (m, rank)
            Kernel values minus the shift.
        """
        block = self._block(X, self.landmarks.shape[1])
        found = self.kernel.tile(self.kernel.prepare(block, self.dtype), self._ready)
        if self.shift is not None:
            found -= self.shift
        return found

    @property
    def drop(self) -> float:
        """Pivot below which a landmark is dropped, relative to the largest diagonal entry of the kernel matrix."""
        return cut_off(self.dtype)[0]

    @property
    def jitter(self) -> float:
        """Constant that is added to the diagonal of the landmarks' kernel matrix, relative to its trace."""
        return cut_off(self.dtype)[1]

    def square(self, dtype: Any = np.float64) -> np.ndarray:
        """Compute the kernel matrix of the landmarks.

        Parameters
        ----------
        dtype : dtype, default=float64
            Data type of the matrix.

        Returns
        -------
        ndarray of shape (rank, rank)
            New matrix k(Z, Z) in Fortran order, which LAPACK can overwrite.
        """
        prepared = self.kernel.prepare(self.landmarks, np.dtype(dtype))
        return self.kernel.tile(prepared, prepared).T


def landmark_map(
    kernel: str | Kernel,
    X: Rows,
    rank: int,
    landmarks: Landmarks = "rpcholesky",
    random_state: int | np.random.Generator | None = None,
    dtype: Any = np.float32,
    fit_rows: int | None = None,
) -> LandmarkMap:
    """Choose landmarks like `nystrom`, but do not compute the projection to factor rows.

    Parameters
    ----------
    kernel : str or Kernel
        Kernel to approximate, which is fitted on X if necessary.
    X : row source of shape (n, d)
        Samples as rows. Chunks must contain whole rows.
    rank : int
        Number of landmarks.
    landmarks : {"rpcholesky", "kmeans", "uniform"}, default="rpcholesky"
        Choice of landmarks, as in `nystrom`.
    random_state : int, Generator or None, default=None
        Seed for choosing samples and landmarks.
    dtype : dtype, default=float32
        Data type of the kernel values.
    fit_rows : int or None, default=None
        Maximum number of rows for fitting, as in `nystrom`.

    Returns
    -------
    LandmarkMap
        Map from samples to their kernel values at the landmarks.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.lowrank.nystrom import landmark_map
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> landmark_map("rbf", X, rank=10, random_state=0).raw(X[:2]).shape
    (2, 10)
    """
    if not isinstance(rank, int):
        raise UserError(f"conjugate gradients need a number of landmarks, got rank = {rank!r}; pass an integer")
    rng = np.random.default_rng(random_state)
    fitted, sample, seed, _ = begun(kernel, X, learning_rows(fit_rows, rank, landmarks), rng)
    with stage("Nystrom landmarks"):
        Z = choose_landmarks(fitted, sample, rank, landmarks, np.random.default_rng(seed))
    return LandmarkMap(fitted, np.dtype(dtype), Z)


def nystrom(
    kernel: str | Kernel,
    X: Rows,
    rank: Rank = 1000,
    landmarks: Landmarks = "rpcholesky",
    random_state: int | np.random.Generator | None = None,
    dtype: Any = np.float32,
    tol: float | None = None,
    memory: float | None = None,
    fit_rows: int | None = None,
) -> FeatureMap:
    """Fit a Nystrom feature map on samples, and estimate its approximation error.

    The fit holds about `fit_rows` x (d + rank) numbers in memory, regardless of the number of samples n. X is read
    once, or twice if the bandwidth of the kernel is the mean distance to the fifth neighbor.

    Parameters
    ----------
    kernel : str or Kernel
        Kernel to approximate, which is fitted on X if necessary.
    X : row source of shape (n, d)
        Samples as rows. Chunks must contain whole rows.
    rank : int or "auto", default=1000
        Number of landmarks, at most the number of rows for fitting. The map has fewer landmarks if the kernel matrix
        has a lower rank. With "auto", the number depends on `tol` and `memory`.
    landmarks : {"rpcholesky", "kmeans", "uniform"}, default="rpcholesky"
        Choice of landmarks. "rpcholesky" selects rows by randomly pivoted Cholesky, "kmeans" computes cluster centers,
        and "uniform" draws random rows.
    random_state : int, Generator or None, default=None
        Seed for choosing samples and landmarks.
    dtype : dtype, default=float32
        Data type of the factor rows.
    tol : float or None, default=None
        Relative error to reach with rank="auto". If neither `tol` nor `memory` is given, the
        tolerance is 0.01.
    memory : float or None, default=None
        Maximum size of the n x rank factor in bytes, which requires rank="auto".
    fit_rows : int or None, default=None
        Maximum number of rows for fitting, drawn at random. The default is 20 000 with rank="auto". Otherwise,
        the default is 8 rows per landmark with "rpcholesky" or 16 with other landmarks, but from 4096 to 20 000 rows.

    Returns
    -------
    FeatureMap
        Fitted Nystrom map with its estimated errors.

    Raises
    ------
    UserError
        If a row contains NaN or infinity, X is empty, the kernel is precomputed, or `memory` is too small for one
        column. The error is also raised if `tol` or `memory` is given without rank="auto".

    References
    ----------
    Williams, Seeger 2001; landmarks: Zhang, Tsang, Kwok 2008 (k-means), Chen et al. 2025 (pivoted Cholesky).

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.lowrank import nystrom
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> found = nystrom("rbf", X, rank=40, random_state=0)
    >>> found.rank, found.error["relative_error"] < 0.1
    (40, True)
    """
    rng = np.random.default_rng(random_state)
    fitted, sample, seed, X = begun(kernel, X, learning_rows(fit_rows, rank, landmarks), rng)

    def fit(r: int) -> FeatureMap:
        with stage("Nystrom landmarks"):
            Z = choose_landmarks(fitted, sample, r, landmarks, np.random.default_rng(seed))
            found = from_landmarks(fitted, Z, dtype)
        return found.with_error(sampled_error(found, X, seed))

    allowed = None if memory is None else int(memory // (X.shape[0] * np.dtype(dtype).itemsize))
    if allowed == 0:
        raise UserError(
            f"memory = {memory:.3g} bytes is below one column of {X.shape[0]} rows; pass at least "
            f"{X.shape[0] * np.dtype(dtype).itemsize} bytes per column"
        )
    return fit_rank(fit, rank, sample.shape[0], tol, allowed)


def begun(kernel: str | Kernel, X: Rows, size: int, rng: np.random.Generator) -> tuple[Kernel, Any, int, Rows]:
    """Fit the kernel and sample rows. Return the kernel, the rows, a seed for error estimates, and X with a cache."""
    check_rows(kernel, X)
    n = X.shape[0]
    index = draw(n, size, rng)
    seed, seed_of_errors = int(rng.integers(2**31)), int(rng.integers(2**31))
    X = SampledRows.of(X, index, _bandwidth_rows(n, seed), error_rows(n, seed_of_errors))
    sample = gather(X, index)
    check_finite(sample, index)
    return fit_kernel(kernel, X, seed), sample, seed_of_errors, X


def from_landmarks(kernel: Kernel, Z: np.ndarray | scipy.sparse.csr_array, dtype: Any = np.float32) -> NystromMap:
    """Create the Nystrom map of a fitted kernel from given landmarks.

    Parameters
    ----------
    kernel : Kernel
        Fitted kernel.
    Z : ndarray or csr_array of shape (m, d)
        Landmarks as rows. Landmarks that are linearly dependent in the feature space of the kernel are dropped.
    dtype : dtype, default=float32
        Data type of the factor rows.

    Returns
    -------
    NystromMap
        Nystrom map with the remaining landmarks.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import RBF
    >>> from dmo.lowrank.nystrom import from_landmarks
    >>> Z = np.array([[0.0], [1.0], [1.0]])
    >>> from_landmarks(RBF(bandwidth=1.0), Z).rank
    2
    """
    prepared = kernel.prepare(Z, np.float64)
    keep, projection = inverse_root(kernel.tile(prepared, prepared), *cut_off(np.dtype(dtype)))
    return NystromMap(kernel, np.dtype(dtype), Z[keep], projection)


def times_triangle(tile: np.ndarray, triangle: np.ndarray, out: np.ndarray) -> None:
    """Compute out = tile @ triangle for an upper triangular matrix, and skip most of its zeros.

    The triangular product of BLAS is not used, because SciPy holds the GIL during this product.
    """
    for columns in row_blocks(triangle.shape[1], _PANEL):
        np.matmul(tile[:, : columns.stop], triangle[: columns.stop, columns], out=out[:, columns])


def cut_off(dtype: np.dtype) -> tuple[float, float]:
    """Return the `drop` and `jitter` arguments of `inverse_root` for factor rows of a data type."""
    return (1e-7, 1e-9) if dtype == np.float32 else (1e-12, 1e-14)


def inverse_root(square: np.ndarray, drop: float, jitter: float) -> tuple[np.ndarray, np.ndarray]:
    """Return indices `keep` and P with P P' = A[keep, keep]^-1 for the positive semidefinite matrix A = `square`."""
    # Pivoted Cholesky drops rows whose pivots are below `drop` times the largest diagonal entry. Then `jitter` times
    # the trace is added to the diagonal of the remaining matrix.
    square = (square + square.T) / 2
    tol = drop * max(float(square.diagonal().max(initial=0.0)), 1e-300)
    every = np.arange(len(square))
    with suppress(np.linalg.LinAlgError):
        whole, added = inverse_triangle(square, jitter)
        # For s = `added`, all eigenvalues of A + s I are at least 1 / |P|^2. If 1 / |P|^2 exceeds `tol` + s, all pivots
        # of A exceed `tol`, so that no row is dropped.
        if len(square) and 1 / np.vdot(whole, whole) > tol + added:
            return every, whole
    _, pivots, rank, _ = scipy.linalg.lapack.dpstrf(square, tol=tol, lower=1)
    keep = np.sort(pivots[:rank] - 1)
    return keep, inverse_triangle(square[np.ix_(keep, keep)], jitter)[0]


def inverse_triangle(square: np.ndarray, jitter: float) -> tuple[np.ndarray, float]:
    """Return the upper triangular P with P P' = (A + s I)^-1, and the added constant s = `jitter` trace(A)."""
    added = jitter * float(np.trace(square))
    root = np.linalg.cholesky(square + added * np.eye(len(square)))
    inverse, _ = scipy.linalg.lapack.dtrtri(root, lower=1) if len(root) else (root, 0)
    return np.ascontiguousarray(inverse.T), added


def _bandwidth_rows(n: int, seed: int) -> np.ndarray:
    return draw(n, BANDWIDTH_ROWS, np.random.default_rng(seed))


def fit_kernel(kernel: str | Kernel, X: Rows, seed: int) -> Kernel:
    """Fit the kernel on X, and estimate mean and median distances from a random sample."""
    parsed = parse(kernel)
    # The distance to the fifth neighbor depends on the number of rows, so use all rows.
    if "mean-fifth-neighbor" in repr(parsed):
        return parsed.fit(X, seed)
    index = _bandwidth_rows(X.shape[0], seed)
    sample = gather(X, index)
    check_finite(sample, index)
    if isinstance(parsed, BandwidthKernel) and isinstance(parsed.bandwidth, str) and len(index) == BANDWIDTH_ROWS:
        with suppress(UserError):  # A group of equal rows has no bandwidth.
            return _fit_in_groups(parsed, sample, seed)
    return parsed.fit(sample, seed)


def _fit_in_groups(kernel: BandwidthKernel, sample: Any, seed: int) -> Kernel:
    """Fit the bandwidth of a kernel as the mean of the bandwidths of a few groups of rows.

    The groups have fewer pairs of rows than the whole sample, but the variance is about the same.
    """
    first = kernel.fit(sample[::_GROUPS], seed)
    others = [replace(first, bandwidth=kernel.bandwidth).fit(sample[i::_GROUPS], seed) for i in range(1, _GROUPS)]
    return replace(first, bandwidth=float(np.mean([first.bandwidth, *(fitted.bandwidth for fitted in others)])))
