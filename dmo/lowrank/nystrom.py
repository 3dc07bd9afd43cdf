"""The Nystrom approximation: a kernel seen through its values at a few landmarks.

K ~ C W^+ C' for C = k(X, Z) and W = k(Z, Z), so F = C P with P P' = W^+. Near landmarks make W nearly singular, and P
would multiply the rounding of C by the inverse root of the smallest pivot: so pivots of W are found in float64 by
pivoted Cholesky, those below what the precision of C can tell from zero are dropped with their landmarks, and the rest
has a little added to the diagonal. P is the inverse of a triangle, made once: a block of rows then costs two matrix
products, C and C P, in C's precision, and no solve.
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
"""Numbers that are mapped at a time."""
_LEAST_ROWS, _PANEL = 256, 256  # rows that are mapped at a time, at least; columns of a panel
BANDWIDTH_ROWS = 1024
"""Rows whose pairs decide the mean or median distance, at most: within a percent or two of all rows'.

Twice as many come a third nearer to it, for as much time as finding 500 landmarks takes."""
_GROUPS = 4


@dataclass(frozen=True, eq=False, repr=False)
class NystromMap(FeatureMap):
    """A Nystrom map: f(x) = P' k(Z, x).

    Parameters
    ----------
    kernel : Kernel
        Fitted.
    dtype : dtype
        Of the factor rows.
    landmarks : ndarray or csr_array of shape (r, d)
        Z.
    projection : ndarray of shape (r, r)
        P, with P P' = k(Z, Z)^-1.
    error : dict, default={}
        Its sampled errors, see `sampled_error`.

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
        """Whether rows may be those of another library: for kernels of one formula, and dense landmarks."""
        return self.kernel.portable and isinstance(self.landmarks, np.ndarray)

    @property
    def rank(self) -> int:
        """Columns of the factor: the landmarks."""
        return self.projection.shape[1]

    @cached_property
    def _ready(self) -> tuple[Any, np.ndarray]:
        return self.kernel.prepare(self.landmarks, self.dtype), self.projection.astype(self.dtype)

    @cached_property
    def _elsewhere(self) -> dict[tuple[str, str], tuple[Any, Any]]:
        return {}

    @cached_property
    def _last(self) -> list[Any]:
        """The coefficients that rows were last multiplied by, and P times them."""
        return []

    def _ready_beside(self, block: Any) -> tuple[Any, Any]:
        """Landmarks and projection where the rows are, taken there once."""
        place = foreign(block).__name__, str(array_api_compat.device(block))
        if place not in self._elsewhere:
            landmarks = self.kernel.prepare(placed(self.landmarks, block), self.dtype)
            self._elsewhere[place] = landmarks, placed(self._ready[1], block)
        return self._elsewhere[place]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_elsewhere", "_last")}

    def raw(self, X: Rows) -> np.ndarray:
        """Map rows in memory to factor rows.

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
        if coefficients.size <= PREPARED:  # a single row takes longer to read P than to be multiplied by both
            if not self._last or self._last[0] is not coefficients:
                self._last[:] = coefficients, self.projection @ coefficients
            factors = self._last[1:]
        elif block.shape[0] > coefficients.shape[1]:  # then it is less work to multiply these first
            factors = [self.projection @ coefficients]
        if foreign(block) is not None:
            tile = self.kernel.tile(self.kernel.prepare(block, self.dtype), self._ready_beside(block)[0])
            return multiplied(tile, factors)
        out = np.empty((block.shape[0], coefficients.shape[1]))
        for where in self._strips(block):
            out[where] = multiplied(self._tile(block[where]), factors)
        return out

    def _strips(self, block: Any) -> list[slice]:
        # prepared rows and tiles of a few MB, none of them kept: the allocator gives the same memory again, where larger
        # ones are fresh pages each time, and clearing those took an eighth of a fit
        step = min(BLOCK, max(_LEAST_ROWS, PREPARED // max(1, *block.shape[1:], self.rank)))
        return row_blocks(block.shape[0], step)

    def _tile(self, rows: Any) -> np.ndarray:
        return self.kernel.tile(self.kernel.prepare(rows, self.dtype), self._ready[0])


@dataclass(frozen=True, eq=False, repr=False)
class LandmarkMap(FeatureMap):
    """Kernel values at landmarks, k(x, Z): what a function of the span of k(., Z) has coefficients on.

    Not a factor of the kernel: for `dmo.methods.landmark_ridge`, whose r x r matrix it does not hold.

    Parameters
    ----------
    kernel : Kernel
        Fitted.
    dtype : dtype
        Of the values.
    landmarks : ndarray or csr_array of shape (r, d)
        Z.
    shift : ndarray of shape (r,) or None, default=None
        Taken off all rows of values; None: nothing. Near their mean it leaves sums of products their digits: values of a
        broad kernel are all alike.
    error : dict, default={}
        None: the span has no error of its own.

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
        """Columns: the landmarks."""
        return self.landmarks.shape[0]

    @cached_property
    def _ready(self) -> Any:
        return self.kernel.prepare(self.landmarks, self.dtype)

    def raw(self, X: Rows) -> np.ndarray:
        """Work out kernel values.

        Parameters
        ----------
        X : ndarray or csr_array of shape (m, d)
            Rows.

        Returns
        -------
        ndarray of shape (m, rank)
            k(x, Z), less the shift.
        """
        block = self._block(X, self.landmarks.shape[1])
        found = self.kernel.tile(self.kernel.prepare(block, self.dtype), self._ready)
        if self.shift is not None:
            found -= self.shift
        return found

    @property
    def drop(self) -> float:
        """Pivots of `square`, in the largest entry of its diagonal, below which a landmark depends on others."""
        return cut_off(self.dtype)[0]

    @property
    def jitter(self) -> float:
        """What the diagonal of `square` grows by, in its trace, as that of a Nystrom map does."""
        return cut_off(self.dtype)[1]

    def square(self, dtype: Any = np.float64) -> np.ndarray:
        """Work out the kernel among the landmarks.

        Parameters
        ----------
        dtype : dtype, default=float64
            Of it.

        Returns
        -------
        ndarray of shape (rank, rank)
            k(Z, Z), Fortran-ordered, for LAPACK to overwrite.
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
    """Choose landmarks as `nystrom` does, without the r x r projection that makes factor rows of kernel values.

    Parameters
    ----------
    kernel : str or Kernel
        Fitted here where it is not.
    X : row source of shape (n, d)
        Rows, in chunks of whole rows.
    rank : int
        Landmarks wanted.
    landmarks : {"rpcholesky", "kmeans", "uniform"}, default="rpcholesky"
        As for `nystrom`.
    random_state : int, Generator or None, default=None
        Seed.
    dtype : dtype, default=float32
        Of the kernel values.
    fit_rows : int or None, default=None
        As for `nystrom`.

    Returns
    -------
    LandmarkMap
        Kernel values at the landmarks.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.lowrank.nystrom import landmark_map
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> landmark_map("rbf", X, rank=10, random_state=0).raw(X[:2]).shape
    (2, 10)
    """
    if not isinstance(rank, int):
        raise UserError(f"conjugate gradients need a number of landmarks, got rank = {rank!r}; give one")
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

    Memory: fit_rows x (d + rank) numbers, whatever n is. X is read once, and a second time where the kernel's
    bandwidth is to
    be the distance to the fifth neighbor. The map carries its sampled error.

    Parameters
    ----------
    kernel : str or Kernel
        Fitted here where it is not.
    X : row source of shape (n, d)
        Rows, in chunks of whole rows.
    rank : int or "auto", default=1000
        Landmarks wanted: n of them where rank > n, fewer where the kernel does not have that rank; "auto": as many as the
        `tol` needs and as the `memory` allows.
    landmarks : {"rpcholesky", "kmeans", "uniform"}, default="rpcholesky"
        Rows by randomly pivoted Cholesky, centers of k-means, or random rows.
    random_state : int, Generator or None, default=None
        Seed.
    dtype : dtype, default=float32
        Of the factor rows.
    tol : float or None, default=None
        Relative error for rank="auto" (None: 0.01).
    memory : float or None, default=None
        Bytes of the n x rank factor for rank="auto".
    fit_rows : int or None, default=None
        Landmarks come from a random sample of this size where X has more rows (None: 16 per column, 8 for
        "rpcholesky", 4096 to 20 000 in all).

    Returns
    -------
    FeatureMap
        The map.

    Raises
    ------
    UserError
        For NaN, for no rows, and for a precomputed kernel.

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
            f"memory = {memory:.3g} bytes is below one column of {X.shape[0]} rows; allow "
            f"{X.shape[0] * np.dtype(dtype).itemsize} bytes per column"
        )
    return fit_rank(fit, rank, sample.shape[0], tol, allowed)


def begun(kernel: str | Kernel, X: Rows, size: int, rng: np.random.Generator) -> tuple[Kernel, Any, int, Rows]:
    """The fitted kernel, `size` rows that a map is learned from, the seed of its errors, and X with what was read of it."""
    check_rows(kernel, X)
    n = X.shape[0]
    index = draw(n, size, rng)
    seed, seed_of_errors = int(rng.integers(2**31)), int(rng.integers(2**31))
    X = SampledRows.of(X, index, _bandwidth_rows(n, seed), error_rows(n, seed_of_errors))
    sample = gather(X, index)
    check_finite(sample, index)
    return fit_kernel(kernel, X, seed), sample, seed_of_errors, X


def from_landmarks(kernel: Kernel, Z: np.ndarray | scipy.sparse.csr_array, dtype: Any = np.float32) -> NystromMap:
    """Make the Nystrom map of a fitted kernel from given landmarks.

    Parameters
    ----------
    kernel : Kernel
        Fitted.
    Z : ndarray or csr_array of shape (m, d)
        Landmarks; those that depend on others are dropped.
    dtype : dtype, default=float32
        Of the factor rows.

    Returns
    -------
    NystromMap
        The map.

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
    """out = tile @ triangle, an upper one, by panels of columns that leave out its zeros.

    BLAS's own product with triangles would do, but SciPy holds the interpreter's lock for it.
    """
    for columns in row_blocks(triangle.shape[1], _PANEL):
        np.matmul(tile[:, : columns.stop], triangle[: columns.stop, columns], out=out[:, columns])


def cut_off(dtype: np.dtype) -> tuple[float, float]:
    """The `drop` and `jitter` of `inverse_root` that k(Z, Z) needs where factor rows are of that precision."""
    return (1e-7, 1e-9) if dtype == np.float32 else (1e-12, 1e-14)


def inverse_root(square: np.ndarray, drop: float, jitter: float) -> tuple[np.ndarray, np.ndarray]:
    """(keep, P) with P P' = A[keep, keep]^-1 for a positive semidefinite A (m x m, float64)."""
    # Pivoted Cholesky drops residual pivots below `drop` times the largest diagonal entry; the diagonal of what is
    # kept grows by `jitter` times its trace.
    square = (square + square.T) / 2
    tol = drop * max(float(square.diagonal().max(initial=0.0)), 1e-300)
    every = np.arange(len(square))
    with suppress(np.linalg.LinAlgError):
        whole, added = inverse_triangle(square, jitter)
        # 1 / |P|^2 is below the least eigenvalue, and no pivot is below that
        if len(square) and 1 / np.vdot(whole, whole) > tol + added:
            return every, whole
    _, pivots, rank, _ = scipy.linalg.lapack.dpstrf(square, tol=tol, lower=1)
    keep = np.sort(pivots[:rank] - 1)
    return keep, inverse_triangle(square[np.ix_(keep, keep)], jitter)[0]


def inverse_triangle(square: np.ndarray, jitter: float) -> tuple[np.ndarray, float]:
    """P, upper triangular, with P P' = (A + s I)^-1, and s, `jitter` times the trace."""
    added = jitter * float(np.trace(square))
    root = np.linalg.cholesky(square + added * np.eye(len(square)))
    inverse, _ = scipy.linalg.lapack.dtrtri(root, lower=1) if len(root) else (root, 0)
    return np.ascontiguousarray(inverse.T), added


def _bandwidth_rows(n: int, seed: int) -> np.ndarray:
    return draw(n, BANDWIDTH_ROWS, np.random.default_rng(seed))


def fit_kernel(kernel: str | Kernel, X: Rows, seed: int) -> Kernel:
    """The kernel with its data-dependent parameters resolved on X: mean and median distances on BANDWIDTH_ROWS of them."""
    parsed = parse(kernel)
    if "mean-fifth-neighbor" in repr(parsed):  # shrinks with the rows that are looked at
        return parsed.fit(X, seed)
    index = _bandwidth_rows(X.shape[0], seed)
    sample = gather(X, index)
    check_finite(sample, index)
    if isinstance(parsed, BandwidthKernel) and isinstance(parsed.bandwidth, str) and len(index) == BANDWIDTH_ROWS:
        with suppress(UserError):  # rows of a group may be equal where those of the sample are not
            return _fit_in_groups(parsed, sample, seed)
    return parsed.fit(sample, seed)


def _fit_in_groups(kernel: BandwidthKernel, sample: Any, seed: int) -> Kernel:
    """The kernel with the mean of the bandwidths of a few groups of the rows: the pairs within them are as good a sample as
    all, for the rows make the difference, and fewer by the number of groups."""
    first = kernel.fit(sample[::_GROUPS], seed)
    others = [replace(first, bandwidth=kernel.bandwidth).fit(sample[i::_GROUPS], seed) for i in range(1, _GROUPS)]
    return replace(first, bandwidth=float(np.mean([first.bandwidth, *(fitted.bandwidth for fitted in others)])))
