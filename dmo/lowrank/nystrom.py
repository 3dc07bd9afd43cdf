"""Nystrom approximation of a kernel from its values at a few landmarks.

K ~ C W^+ C' with C = k(X, Z) and W = k(Z, Z), so the factor is F = C P with P P' = W^+. If landmarks are near each
other, W is nearly singular, and P multiplies the floating-point error of C by the inverse root of the smallest pivot.
Therefore, pivoted Cholesky of W in float64 drops landmarks with pivots that are zero within the precision of C, and a
small multiple of the trace is added to the diagonal of the rest. P is the inverse of a triangular matrix and is
computed once. Each block of rows then requires only two matrix products, C and C P, in the precision of C.
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
"""Maximum number of entries of prepared rows or tiles that are processed at a time."""
_LEAST_ROWS, _PANEL = 256, 256  # minimum number of rows processed at a time; columns of a panel
BANDWIDTH_ROWS = 1024
"""Maximum number of rows that determine a mean or median distance, within one or two percent of the value for all rows.

Twice as many rows reduce the error by a third, but require as much time as the choice of 500 landmarks."""
_GROUPS = 4


@dataclass(frozen=True, eq=False, repr=False)
class NystromMap(FeatureMap):
    """Nystrom map f(x) = P' k(Z, x).

    Parameters
    ----------
    kernel : Kernel
        Fitted kernel.
    dtype : dtype
        Type of the factor rows.
    landmarks : ndarray or csr_array of shape (r, d)
        Landmarks Z.
    projection : ndarray of shape (r, r)
        Matrix P, with P P' = k(Z, Z)^-1.
    error : dict, default={}
        Estimated errors, see `sampled_error`.

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
        """Whether rows can be arrays of other libraries, which requires a one-formula kernel and dense landmarks."""
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
        """Cache of the last coefficients, and P times these coefficients."""
        return []

    def _ready_beside(self, block: Any) -> tuple[Any, Any]:
        """Return landmarks and projection on the device of `block`, copying them on the first use of a device."""
        place = foreign(block).__name__, str(array_api_compat.device(block))
        if place not in self._elsewhere:
            landmarks = self.kernel.prepare(placed(self.landmarks, block), self.dtype)
            self._elsewhere[place] = landmarks, placed(self._ready[1], block)
        return self._elsewhere[place]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_elsewhere", "_last")}

    def raw(self, X: Rows) -> np.ndarray:
        """Compute factor rows of rows in memory.

        Parameters
        ----------
        X : ndarray, csr_array, or array of another library, of shape (m, d)
            Rows.

        Returns
        -------
        ndarray, or array of that library, of shape (m, rank)
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
        if coefficients.size <= PREPARED:  # cache the product, because reading P dominates the time of a single row
            if not self._last or self._last[0] is not coefficients:
                self._last[:] = coefficients, self.projection @ coefficients
            factors = self._last[1:]
        elif (
            block.shape[0] > coefficients.shape[1]
        ):  # for many rows, computing P times the coefficients first costs less
            factors = [self.projection @ coefficients]
        if foreign(block) is not None:
            tile = self.kernel.tile(self.kernel.prepare(block, self.dtype), self._ready_beside(block)[0])
            return multiplied(tile, factors)
        out = np.empty((block.shape[0], coefficients.shape[1]))
        for where in self._strips(block):
            out[where] = multiplied(self._tile(block[where]), factors)
        return out

    def _strips(self, block: Any) -> list[slice]:
        # Use prepared rows and tiles of a few MB, and release them after use, so that the allocator reuses the memory.
        # Larger arrays are new pages each time, and clearing these took an eighth of a fit.
        step = min(BLOCK, max(_LEAST_ROWS, PREPARED // max(1, *block.shape[1:], self.rank)))
        return row_blocks(block.shape[0], step)

    def _tile(self, rows: Any) -> np.ndarray:
        return self.kernel.tile(self.kernel.prepare(rows, self.dtype), self._ready[0])


@dataclass(frozen=True, eq=False, repr=False)
class LandmarkMap(FeatureMap):
    """Kernel values k(x, Z) at landmarks, used as features of functions in the span of k(., Z).

    The values are not a factor of the kernel. `dmo.methods.landmark_ridge` uses them without an r x r projection.

    Parameters
    ----------
    kernel : Kernel
        Fitted kernel.
    dtype : dtype
        Type of the values.
    landmarks : ndarray or csr_array of shape (r, d)
        Landmarks Z.
    shift : ndarray of shape (r,) or None, default=None
        Row that is subtracted from all rows of values. A shift near the mean of the values preserves the precision of
        sums of products if a broad kernel has almost constant values. None: no shift.
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
        """Number of columns, which is the number of landmarks."""
        return self.landmarks.shape[0]

    @cached_property
    def _ready(self) -> Any:
        return self.kernel.prepare(self.landmarks, self.dtype)

    def raw(self, X: Rows) -> np.ndarray:
        """Compute kernel values at the landmarks.

        Parameters
        ----------
        X : ndarray or csr_array of shape (m, d)
            Rows.

        Returns
        -------
        ndarray of shape (m, rank)
            k(x, Z) minus the shift.
        """
        block = self._block(X, self.landmarks.shape[1])
        found = self.kernel.tile(self.kernel.prepare(block, self.dtype), self._ready)
        if self.shift is not None:
            found -= self.shift
        return found

    @property
    def drop(self) -> float:
        """Pivot of `square`, relative to its largest diagonal entry, below which a landmark depends on others."""
        return cut_off(self.dtype)[0]

    @property
    def jitter(self) -> float:
        """Amount added to the diagonal of `square`, relative to its trace, as in a Nystrom map."""
        return cut_off(self.dtype)[1]

    def square(self, dtype: Any = np.float64) -> np.ndarray:
        """Compute the kernel matrix of the landmarks.

        Parameters
        ----------
        dtype : dtype, default=float64
            Type of the matrix.

        Returns
        -------
        ndarray of shape (rank, rank)
            k(Z, Z) in Fortran order, which LAPACK may overwrite.
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
    """Choose landmarks like `nystrom`, without computing the r x r projection to factor rows.

    Parameters
    ----------
    kernel : str or Kernel
        Kernel. It is fitted on X if necessary.
    X : row source of shape (n, d)
        Rows, in chunks of whole rows.
    rank : int
        Number of landmarks.
    landmarks : {"rpcholesky", "kmeans", "uniform"}, default="rpcholesky"
        Choice of landmarks, see `nystrom`.
    random_state : int, Generator or None, default=None
        Seed.
    dtype : dtype, default=float32
        Type of the kernel values.
    fit_rows : int or None, default=None
        Maximum number of rows for fitting, see `nystrom`.

    Returns
    -------
    LandmarkMap
        Map to kernel values at the landmarks.

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
    """Fit a Nystrom map on rows.

    Memory: fit_rows x (d + rank) numbers, independent of n. X is read once, or twice if the bandwidth of the kernel
    is the distance to the fifth neighbor. The map includes its estimated errors.

    Parameters
    ----------
    kernel : str or Kernel
        Kernel. It is fitted on X if necessary.
    X : row source of shape (n, d)
        Rows, in chunks of whole rows.
    rank : int or "auto", default=1000
        Number of landmarks, at most n. The map has fewer if the kernel matrix has a lower rank. "auto" uses `tol` and
        `memory`.
    landmarks : {"rpcholesky", "kmeans", "uniform"}, default="rpcholesky"
        Choice of landmarks: rows by randomly pivoted Cholesky, k-means centers, or random rows.
    random_state : int, Generator or None, default=None
        Seed.
    dtype : dtype, default=float32
        Type of the factor rows.
    tol : float or None, default=None
        Relative error to reach with rank="auto" (None: 0.01).
    memory : float or None, default=None
        Maximum size of the n x rank factor in bytes with rank="auto".
    fit_rows : int or None, default=None
        Maximum number of rows for fitting; if X has more, a random sample is used. None: 16 per column (8 with
        "rpcholesky"), but at least 4096 and at most 20 000.

    Returns
    -------
    FeatureMap
        Fitted map.

    Raises
    ------
    UserError
        For NaN, an empty X, or a precomputed kernel.

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
    """Return the fitted kernel, `size` rows for fitting, the seed of the error sample, and X with cached rows."""
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
        Landmarks. Those that depend on others are dropped.
    dtype : dtype, default=float32
        Type of the factor rows.

    Returns
    -------
    NystromMap
        Map with the remaining landmarks.

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
    """Compute out = tile @ triangle for an upper triangular matrix, in panels of columns that skip its zeros.

    The BLAS product with triangles is not used, because SciPy holds the GIL during this product.
    """
    for columns in row_blocks(triangle.shape[1], _PANEL):
        np.matmul(tile[:, : columns.stop], triangle[: columns.stop, columns], out=out[:, columns])


def cut_off(dtype: np.dtype) -> tuple[float, float]:
    """Return the `drop` and `jitter` of `inverse_root` for k(Z, Z) and factor rows of this type."""
    return (1e-7, 1e-9) if dtype == np.float32 else (1e-12, 1e-14)


def inverse_root(square: np.ndarray, drop: float, jitter: float) -> tuple[np.ndarray, np.ndarray]:
    """Return (keep, P) with P P' = A[keep, keep]^-1 for a positive semidefinite A (m x m, float64)."""
    # Pivoted Cholesky drops residual pivots below `drop` times the largest diagonal entry. `jitter` times the trace of
    # the remaining matrix is added to its diagonal.
    square = (square + square.T) / 2
    tol = drop * max(float(square.diagonal().max(initial=0.0)), 1e-300)
    every = np.arange(len(square))
    with suppress(np.linalg.LinAlgError):
        whole, added = inverse_triangle(square, jitter)
        # 1 / |P|^2 is a lower bound of the smallest eigenvalue, and no pivot is below this eigenvalue.
        if len(square) and 1 / np.vdot(whole, whole) > tol + added:
            return every, whole
    _, pivots, rank, _ = scipy.linalg.lapack.dpstrf(square, tol=tol, lower=1)
    keep = np.sort(pivots[:rank] - 1)
    return keep, inverse_triangle(square[np.ix_(keep, keep)], jitter)[0]


def inverse_triangle(square: np.ndarray, jitter: float) -> tuple[np.ndarray, float]:
    """Return the upper triangular P with P P' = (A + s I)^-1, and s, which is `jitter` times the trace."""
    added = jitter * float(np.trace(square))
    root = np.linalg.cholesky(square + added * np.eye(len(square)))
    inverse, _ = scipy.linalg.lapack.dtrtri(root, lower=1) if len(root) else (root, 0)
    return np.ascontiguousarray(inverse.T), added


def _bandwidth_rows(n: int, seed: int) -> np.ndarray:
    return draw(n, BANDWIDTH_ROWS, np.random.default_rng(seed))


def fit_kernel(kernel: str | Kernel, X: Rows, seed: int) -> Kernel:
    """Fit the kernel on X, with mean and median distances from BANDWIDTH_ROWS random rows only."""
    parsed = parse(kernel)
    if "mean-fifth-neighbor" in repr(parsed):  # use all rows, because this distance depends on the number of rows
        return parsed.fit(X, seed)
    index = _bandwidth_rows(X.shape[0], seed)
    sample = gather(X, index)
    check_finite(sample, index)
    if isinstance(parsed, BandwidthKernel) and isinstance(parsed.bandwidth, str) and len(index) == BANDWIDTH_ROWS:
        with suppress(UserError):  # rows of a group may be equal even if not all rows of the sample are
            return _fit_in_groups(parsed, sample, seed)
    return parsed.fit(sample, seed)


def _fit_in_groups(kernel: BandwidthKernel, sample: Any, seed: int) -> Kernel:
    """Fit the kernel with the mean of the bandwidths of a few groups of rows.

    The variance is due to the rows, so the fewer pairs within groups are as good a sample as all pairs.
    """
    first = kernel.fit(sample[::_GROUPS], seed)
    others = [replace(first, bandwidth=kernel.bandwidth).fit(sample[i::_GROUPS], seed) for i in range(1, _GROUPS)]
    return replace(first, bandwidth=float(np.mean([first.bandwidth, *(fitted.bandwidth for fitted in others)])))
