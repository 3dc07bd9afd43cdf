"""Base classes of kernels, with the caches that fits of the same rows share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

import numpy as np
import scipy.sparse
from numpy.typing import DTypeLike

from dmo import blocks
from dmo.devices import foreign
from dmo.errors import UserError
from dmo.kernels import loops, pairs, portable, rows
from dmo.kernels.pairs import RandomState
from dmo.kernels.rows import Prepared
from dmo.memory import memory
from dmo.progress import stage

LOG2_E = math.log2(math.e)
_DOUBLE = 2048  # up to this number of rows, distances that several fits share are float64
_KEPT = 16  # number of distance matrices that must fit into the cache before one is shared
P = TypeVar("P")
"""Type of a kernel's prepared rows."""


class Kernel(ABC, Generic[P]):
    """Base class of symmetric positive semidefinite kernels k(x, y) of rows.

    Kernels are compared and hashed by their parameters. Use a kernel in three steps: `fitted = kernel.fit(X)` replaces
    rules such as "median" by numbers, `p = fitted.prepare(X)` checks and normalizes rows once, and
    `fitted.tile(p[i:j], p[k:l])` computes any tile of the Gram matrix. `a + b`, `a * b` and `2.0 * a` are kernels, too.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import RBF, Linear
    >>> X = np.random.default_rng(0).normal(size=(6, 2))
    >>> fitted = (RBF("median") + 0.5 * Linear()).fit(X)
    >>> p = fitted.prepare(X)
    >>> fitted.tile(p[:2], p).shape
    (2, 6)
    """

    name: ClassVar[str]
    portable: ClassVar[bool] = False  # whether arrays of other libraries than NumPy are supported
    pairwise: bool = False  # whether the rows of X are rows of a kernel matrix, whose columns are also samples
    scalable: bool = True  # whether the columns of X may be scaled: rows may be negative and are not normalized
    _cached: ClassVar[bool] = False  # whether fits of the same rows share distances inside `remembering`
    # Sums and products are defined in a module that imports this one, so + and * look up their classes by name here.
    _kinds: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" in cls.__dict__:
            Kernel._kinds[cls.name] = cls

    @abstractmethod
    def fit(self, X: blocks.Rows, random_state: RandomState = None, sample_weight: np.ndarray | None = None) -> Self:
        """Replace all rules and parameters that depend on the data by numbers.

        Parameters
        ----------
        X : row source of shape (n, d)
            Rows. All are used if there are at most 8192 (4096 with sample weights), otherwise a random sample of this
            size.
        random_state : int, Generator, RandomState or None, default=None
            Seed of the sample.
        sample_weight : ndarray of shape (n,) or None, default=None
            Non-negative sample weights, which act as repetition counts. None: 1 for every row.

        Returns
        -------
        Kernel
            The fitted kernel. A bandwidth rule needs a float32 matrix of the distances, at most 268 MB.
        """

    @abstractmethod
    def prepare(self, X: blocks.Rows, dtype: DTypeLike = np.float32) -> P:
        """Check and normalize rows once, for use in any number of tiles.

        Parameters
        ----------
        X : row source of shape (n, d)
            Rows, read into memory: NumPy, SciPy CSR, dask or Zarr. CSR rows stay sparse unless the kernel subtracts an
            offset. Kernels of a single formula also accept arrays of other libraries, such as torch or CuPy, and then
            compute the tiles in that library.
        dtype : dtype, default=float32
            Type of the tiles, float32 or float64.

        Returns
        -------
        prepared rows
            Prepared rows, which support `len`, slicing and `nbytes`.

        Raises
        ------
        UserError
            If an entry is invalid for the kernel (the error names row and column), or if rows are so far from the
            origin that distances are lost to floating-point error. In the latter case, fit the kernel on dense rows
            or use float64.
        """

    @abstractmethod
    def tile(self, x: P, y: P, out: np.ndarray | None = None) -> np.ndarray:
        """Compute k(x_i, y_j) of prepared rows; safe to call from several threads.

        Parameters
        ----------
        x : prepared rows
            The m rows of the tile.
        y : prepared rows
            The n columns of the tile.
        out : ndarray of shape (m, n) or None, default=None
            C-contiguous array for the result.

        Returns
        -------
        ndarray of shape (m, n)
            Kernel values.

        Raises
        ------
        UserError
            If a rule, such as bandwidth="mean", has not been replaced by `fit`, or if x and y were prepared by
            different kernels, from different numbers of features or in different types.
        """

    @abstractmethod
    def diagonal(self, x: P) -> np.ndarray:
        """Compute k(x_i, x_i) exactly for the prepared rows.

        Parameters
        ----------
        x : prepared rows
            The m rows.

        Returns
        -------
        ndarray of shape (m,)
            Kernel values.
        """

    @abstractmethod
    def gram(self, X: blocks.Rows, dtype: DTypeLike, random_state: RandomState) -> tuple[np.ndarray, Self]:
        """Compute the kernel matrix of rows in memory and fit the kernel; see `gram_matrix`.

        Parameters
        ----------
        X : ndarray or csr_array of shape (n, d)
            Rows.
        dtype : dtype
            Type of the matrix, float32 or float64.
        random_state : int, Generator, RandomState or None
            Seed of the sample that determines a bandwidth.

        Returns
        -------
        matrix : ndarray of shape (n, n)
            Symmetric matrix with an exact diagonal.
        kernel : Kernel
            Fitted kernel.
        """

    def part(self, X: blocks.Rows, where: slice | np.ndarray | None = None) -> blocks.Rows:
        """Select rows in a form that `prepare` accepts; rows of a kernel matrix are not read.

        Parameters
        ----------
        X : row source of shape (n, d)
            Rows.
        where : slice, ndarray of int, or None, default=None
            Rows to select; None selects all.

        Returns
        -------
        row source
            The selected rows, in memory. For kernel matrices, a `Subset` with the row indices.
        """
        if self.pairwise:
            return X if where is None else blocks.Subset(X, np.arange(X.shape[0])[where])
        if self._cached and memory() is not None:
            source, index = (X.source, X.index) if isinstance(X, blocks.Subset) else (X, np.arange(X.shape[0]))
            # The cache identifies rows by source and index. They are read only on a cache miss.
            return blocks.Subset(source, index if where is None else index[where])
        return blocks.sampled(X, where) if isinstance(where, np.ndarray) else blocks.rows(X, where)

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Describe the kernel as a JSON dict that `parse` reads.

        Returns
        -------
        dict
            Name and parameters.
        """

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name, as required by searches in scikit-learn over, say, `kernel__bandwidth`.

        Parameters
        ----------
        deep : bool, default=True
            Ignored.

        Returns
        -------
        dict
            Parameters.
        """
        return {f.name: getattr(self, f.name) for f in fields(cast(Any, self))}

    def set_params(self, **params: Any) -> Self:
        """Set parameters of this kernel in place, as required by searches in scikit-learn.

        Parameters
        ----------
        **params : object
            New values by name.

        Returns
        -------
        Kernel
            This kernel.

        Raises
        ------
        UserError
            If a name is unknown or a value is invalid.

        Examples
        --------
        >>> from dmo.kernels import RBF
        >>> RBF().set_params(bandwidth=2.0).bandwidth
        2.0
        """
        known = self.get_params()
        for key in params:
            if key not in known:
                near = rows.nearest(key, known)
                raise UserError(f"{self.name}: parameter {key!r} is unknown; known: {', '.join(known) or 'none'}{near}")
        made = replace(cast(Any, self), **params)
        self.__dict__.clear()  # also remove values that were computed from the old parameters
        self.__dict__.update(made.__dict__)
        return self

    def __sklearn_clone__(self) -> Self:
        return replace(cast(Any, self))

    def __add__(self, other: Kernel) -> Kernel:
        Sum = self._kinds["sum"]
        if not isinstance(other, Kernel):
            return NotImplemented
        mine = self if isinstance(self, Sum) else Sum((self,))
        theirs = other if isinstance(other, Sum) else Sum((other,))
        return Sum(mine.kernels + theirs.kernels, (mine.weights or ()) + (theirs.weights or ()))

    def __mul__(self, other: Kernel | float) -> Kernel:
        Sum, Product = self._kinds["sum"], self._kinds["product"]
        if isinstance(other, Kernel):
            mine, theirs = (k.kernels if isinstance(k, Product) else (k,) for k in (self, other))
            return Product(mine + theirs)
        if not isinstance(other, (int, float, np.number)):
            return NotImplemented
        terms = self if isinstance(self, Sum) else Sum((self,))
        return Sum(terms.kernels, tuple(float(other) * weight for weight in terms.weights or ()))

    __rmul__ = __mul__

    def __call__(self, X: blocks.Rows, Y: blocks.Rows | None = None, dtype: DTypeLike = np.float32) -> np.ndarray:
        """Compute k of small arrays: n x n for X, or n x m for X and Y. Rules are fitted on X."""
        X = rows.read(X, self.name)
        if Y is None:
            return self.gram(X, np.dtype(dtype), None)[0]
        fitted = self.fit(X)
        return fitted.tile(fitted.prepare(X, dtype), fitted.prepare(Y, dtype))


class RowKernel(Kernel[Prepared]):
    """Base class of kernels that depend on one number per pair of rows, such as their distance (see `pairs`).

    `normalize` is described in `normalize_rows`.
    """

    normalize: str | None
    pair: ClassVar[str]
    portable: ClassVar[bool] = True
    non_negative: ClassVar[bool] = False
    _offset: ClassVar[np.ndarray | None] = None  # subtracted from normalized rows

    def __post_init__(self) -> None:
        if self.normalize not in rows.NORMALIZATIONS:
            raise rows.unknown_normalization(self.normalize, self.name)
        object.__setattr__(self, "scalable", self.scalable and self.normalize is None and not self.non_negative)

    def to_dict(self) -> dict[str, Any]:
        values = {f.name: getattr(self, f.name) for f in fields(cast(Any, self))}
        return {"kernel": self.name} | {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    def fit(self, X: blocks.Rows, random_state: RandomState = None, sample_weight: np.ndarray | None = None) -> Self:
        return self

    def prepare(self, X: blocks.Rows, dtype: DTypeLike = np.float32) -> Prepared:
        return self._prepare(X, dtype, None)

    def _prepare(self, X: blocks.Rows, dtype: DTypeLike, names: np.ndarray | None) -> Prepared:
        """Prepare rows; error messages refer to row i as `names[i]`."""
        dtype = np.dtype(dtype)
        if dtype not in (np.float32, np.float64):
            raise TypeError(f"{self.name}: tiles are float32 or float64, got dtype {dtype}; pass one of these")
        squared = self.pair in ("dot", "l2")
        needs = self.non_negative or self.normalize == "hellinger"
        if foreign(X) is not None:
            made = portable.ready(X, self.normalize, self._offset, dtype, squared, needs, self.name)
            return Prepared(*made, rows.origin(self.pair, self.normalize, self._offset))
        block = rows.read(X, self.name)
        if self.pair in pairs.FEATURE_BY_FEATURE:
            block = pairs.go_sparse(block)
        values, norms = rows.ready(block, self.normalize, self._offset, dtype, squared, needs, self.name, names)
        part = X if isinstance(X, blocks.Subset) and memory() is not None else None
        return Prepared(values, norms, rows.origin(self.pair, self.normalize, self._offset), part)

    def tile(self, x: Prepared, y: Prepared, out: np.ndarray | None = None) -> np.ndarray:
        self._check(x, y)
        if foreign(x.values) is not None:
            return portable.tile(self.pair, self._map(), x, y)
        K = output(out, (len(x), len(y)), x.dtype, self.name)
        self._fill(x, y, K)
        pairs.finish(self._map(), x, y, K)
        return K

    def _fill(self, x: Prepared, y: Prepared, K: np.ndarray) -> None:
        """Write the inner products or distances of x and y to K."""
        pairs.fill(self.pair, x, y, K)

    def gram(self, X: blocks.Rows, dtype: DTypeLike, random_state: RandomState) -> tuple[np.ndarray, Self]:
        p, K, kernel = self._pairs(X, dtype, random_state)
        change = kernel._map()
        pairs.map_lower(change, K, change.norms(p), True)
        K.flat[:: len(p) + 1] = kernel.diagonal(p)
        return K, kernel

    def _pairs(self, X: blocks.Rows, dtype: DTypeLike, random_state: RandomState) -> tuple[Prepared, np.ndarray, Self]:
        """Return prepared rows, the lower triangle of their inner products or distances, and the fitted kernel."""
        index = pairs.sample(X.shape[0], random_state)
        kernel = self._prefit(X, index)
        p = kernel._prepare(X, dtype, None)
        n = len(p)
        K = np.empty((n, n), p.dtype)
        with stage(f"{self.name} kernel", n) as advance:
            for where in pairs.strips(n):
                pairs.fill(self.pair, p[where], p[: where.stop], K, where.start, True)
                advance(where.stop - where.start)
        return p, K, kernel._resolved(p, K, index)

    def _check(self, x: Prepared, y: Prepared) -> None:
        if x.shape[1] != y.shape[1]:
            raise UserError(f"{self.name}: x has {x.shape[1]} columns, y has {y.shape[1]}; pass the same features")
        if x.dtype != y.dtype:
            raise UserError(f"{self.name}: x is {x.dtype}, y is {y.dtype}; prepare both with the same dtype")
        mine = rows.origin(self.pair, self.normalize, self._offset)
        if x.origin != mine or y.origin != mine:
            raise UserError(f"{self.name}: rows were prepared by another kernel; prepare x and y with this one")

    def _prefit(self, X: blocks.Rows, index: np.ndarray | None, names: np.ndarray | None = None) -> Self:
        """Fit the parameters that do not depend on distances, such as an offset, from rows `index` (None: all)."""
        return self

    def _resolved(
        self, p: Prepared, K: np.ndarray, index: np.ndarray | None, weights: np.ndarray | None = None
    ) -> Self:
        """Fit the bandwidth from the inner products or distances in the lower triangle of K."""
        return self

    def diagonal(self, x: Prepared) -> np.ndarray:
        return x.norms.astype(x.dtype)

    def _map(self) -> pairs.EntryMap:
        return pairs.EntryMap()


@dataclass(frozen=True)
class BandwidthKernel(RowKernel):
    """Base class of kernels exp(-f(distance / width)) with width = scale * bandwidth, such as `RBF` and `Laplacian`."""

    bandwidth: float | str = "mean"  # number above 0 in units of the distance, or a rule that `fit` resolves
    normalize: str | None = None  # normalization of the rows, see `normalize_rows`
    scale: float = 1.0  # factor on the bandwidth, above 0
    _cached: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.bandwidth, str):
            if not (np.isfinite(self.bandwidth) and self.bandwidth > 0):
                raise UserError(
                    f"{self.name}: bandwidth must be a positive number, got {self.bandwidth!r}; pass one, or a rule"
                )
            object.__setattr__(self, "bandwidth", float(self.bandwidth))
        elif self.bandwidth not in pairs.RULES:
            known, hint = ", ".join(map(repr, pairs.RULES)), rows.nearest(self.bandwidth, pairs.RULES)
            raise UserError(f"{self.name}: bandwidth must be a number or one of {known}, got {self.bandwidth!r}{hint}")
        if not (np.isfinite(self.scale) and self.scale > 0):
            raise UserError(f"{self.name}: scale must be a positive number, got {self.scale!r}")

    @property
    def width(self) -> float:
        """Effective bandwidth, scale * bandwidth."""
        if isinstance(self.bandwidth, str):
            raise UserError(f"{self.name}: bandwidth {self.bandwidth!r} is a rule; call fit first, or pass a number")
        return self.scale * self.bandwidth

    def exponents(self, x: Prepared, y: Prepared) -> np.ndarray:
        """Compute -log2 k(x_i, y_j) of prepared rows.

        A change of the bandwidth multiplies these exponents by a constant, see `power_of`.

        Parameters
        ----------
        x : prepared rows
            The m rows of the matrix.
        y : prepared rows
            The n columns of the matrix.

        Returns
        -------
        ndarray of shape (m, n)
            Exponents, at least 0.

        Examples
        --------
        >>> import numpy as np
        >>> from dmo.kernels import Laplacian
        >>> kernel = Laplacian(bandwidth=1.0)
        >>> p = kernel.prepare(np.array([[0.0], [1.0]]))
        >>> bool(np.allclose(2.0 ** -kernel.exponents(p, p), kernel.tile(p, p)))
        True
        """
        self._check(x, y)
        K = np.empty((len(x), len(y)), x.dtype)
        pairs.fill(self.pair, x, y, K)
        change = self._map()
        if change.op == loops.GAUSSIAN:  # see `loops._map_row`
            K *= x.dtype.type(-change.a)
            K -= change.norms(x)[:, None]
            K -= change.norms(y)
        else:
            K *= x.dtype.type(change.a)
        return np.maximum(K, 0.0, out=K)

    def power_of(self, other: BandwidthKernel) -> float:
        """Compute the power p for which this kernel equals `other` to the power p.

        Parameters
        ----------
        other : BandwidthKernel
            Kernel of the same class with another bandwidth.

        Returns
        -------
        float
            The power. It is also the ratio of the kernels' exponents.

        Examples
        --------
        >>> from dmo.kernels import RBF
        >>> RBF(bandwidth=2.0).power_of(RBF(bandwidth=1.0))
        0.25
        """
        return self._map().a / other._map().a

    def fit(self, X: blocks.Rows, random_state: RandomState = None, sample_weight: np.ndarray | None = None) -> Self:
        if not self._needs_fit():
            return self
        X = rows.source(X)
        if memory() is not None and sample_weight is None and X.shape[0] <= pairs.SAMPLE:
            return self._pairs(X, np.float32, random_state)[2]
        index = pairs.counted(X.shape[0], random_state, sample_weight)
        X = rows.read(X if index is None else blocks.sampled(X, index), self.name)
        kernel = self._prefit(X, None, index)
        if not isinstance(kernel.bandwidth, str):
            return kernel
        p = kernel._prepare(X, np.float32, index)
        K = np.empty((len(p), len(p)), p.dtype)
        for where in pairs.strips(len(p)):
            pairs.fill(self.pair, p[where], p[: where.stop], K, where.start, True)
        weights = sample_weight if sample_weight is None or index is None else sample_weight[index]
        return kernel._resolved(p, K, None, weights)

    def _pairs(self, X: blocks.Rows, dtype: DTypeLike, random_state: RandomState) -> tuple[Prepared, np.ndarray, Self]:
        own = memory()
        if own is None:
            return super()._pairs(X, dtype, random_state)
        # The distances, and a bandwidth rule's result, do not depend on the scale, so leave it out of the key.
        key = "pairs", replace(self, scale=1.0), own.name(X), str(dtype), str(random_state)
        size = float(np.prod(X.shape))
        whole = self._whole(X, X) if isinstance(X, blocks.Subset) else None
        if whole is None:
            make = super()._pairs
            p, found, fitted = own.get(
                lambda: make(rows.read(X, self.name), dtype, random_state),
                (size + X.shape[0] ** 2) * np.dtype(dtype).itemsize,
                key,
            )
            K = found.copy()
        else:
            K = whole.astype(dtype, copy=False)
            index = pairs.sample(X.shape[0], random_state)
            p, fitted = own.get(lambda: self._fitted(X, K, index), size * K.itemsize, (*key, "whole"))
        kernel = replace(fitted, scale=self.scale)
        kernel._check_digits(p)
        return p, K, kernel

    def _prepare(self, X: blocks.Rows, dtype: DTypeLike, names: np.ndarray | None) -> Prepared:
        own, make = memory(), super()._prepare
        if own is None or names is not None or not isinstance(X, blocks.Subset):
            p = make(X, dtype, names)
        else:
            offset = getattr(self, "offset", None)
            key = "prepared", self.pair, self.normalize, offset, own.name(X), str(np.dtype(dtype))
            p = own.get(lambda: make(X, dtype, None), float(np.prod(X.shape)) * np.dtype(dtype).itemsize, key)
        self._check_digits(p)
        return p

    def _fitted(self, X: blocks.Rows, K: np.ndarray, index: np.ndarray | None) -> tuple[Prepared, Self]:
        """Return prepared rows, and the kernel fitted to their distances in K."""
        p = self._prepare(X, K.dtype, None)
        return p, self._resolved(p, K, index)

    def _whole(self, x: blocks.Subset, y: blocks.Subset) -> np.ndarray | None:
        """Select the distances of x and y from the cached matrix of their common source, or None without a matrix."""
        own, source = memory(), x.source
        n = source.shape[0]
        if own is None or self.pair not in pairs.FEATURE_BY_FEATURE or own.name(source) != own.name(y.source):
            return None
        # Compute the distances of all rows once: cross-validation folds contain most rows, and a distance depends only
        # on its two rows. Use float32 for large matrices.
        dtype = np.dtype(np.float64 if n <= _DOUBLE else np.float32)
        if 2 * max(len(x), len(y)) < n or _KEPT * dtype.itemsize * n * n > own.room:
            return None

        def made() -> np.ndarray:
            p, K, _ = super(BandwidthKernel, replace(self, bandwidth=1.0))._pairs(source, dtype, None)
            change = pairs.EntryMap()
            pairs.map_lower(change, K, change.norms(p), True)
            return K

        K = own.get(made, float(dtype.itemsize * n * n), ("whole", self.pair, self.normalize, own.name(source)))
        return K[np.ix_(np.asarray(x.index), np.asarray(y.index))]

    def _fill(self, x: Prepared, y: Prepared, K: np.ndarray) -> None:
        own = memory()
        if own is None:
            super()._fill(x, y, K)
            return
        whole = None if x.part_of is None or y.part_of is None else self._whole(x.part_of, y.part_of)
        if whole is not None:
            K[:] = whole
            return
        names = [own.name(part.values if part.part_of is None else part.part_of) for part in (x, y)]
        key = "tile", self.pair, *names, x.origin, y.origin, str(x.dtype)
        K[:] = own.get(partial(self._filled, x, y), K.nbytes, key)

    def _filled(self, x: Prepared, y: Prepared) -> np.ndarray:
        K = np.empty((len(x), len(y)), x.dtype)
        super()._fill(x, y, K)
        return K

    def _check_digits(self, p: Prepared) -> None:
        """Raise an error if floating-point error hides the distances of the rows; the default does nothing."""

    def _needs_fit(self) -> bool:
        return isinstance(self.bandwidth, str)

    def _resolved(
        self, p: Prepared, K: np.ndarray, index: np.ndarray | None, weights: np.ndarray | None = None
    ) -> Self:
        kernel = self
        if isinstance(self.bandwidth, str):
            floor = self._floor(p)
            value = pairs.resolve(self.bandwidth, self.pair, p, K, index, floor, self.name, weights)
            kernel = replace(self, bandwidth=value)
        kernel._check_digits(p)
        return kernel

    def _floor(self, p: Prepared) -> float:
        """Return the distance up to which a bandwidth is floating-point error."""
        return 1e-6 * float(p.norms.mean()) if scipy.sparse.issparse(p.values) else 0.0

    def diagonal(self, x: Prepared) -> np.ndarray:
        return np.ones(len(x), x.dtype)

    def _map(self) -> pairs.EntryMap:
        return pairs.EntryMap(loops.EXPONENTIAL, LOG2_E / self.width)


@dataclass(frozen=True)
class CenteredKernel(BandwidthKernel):
    """Base class of kernels of the Euclidean distance, which subtract an offset from dense rows for precision."""

    # `fit` sets `offset`, one number per feature, which is subtracted after normalization. It is None for CSR rows,
    # which stay sparse. A kernel that was fitted on dense rows converts CSR rows to dense ones.

    offset: tuple[float, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.offset is not None:
            # Every copy of the kernel converts the offset. Via an array, this takes a tenth of the time.
            object.__setattr__(self, "offset", tuple(np.asarray(self.offset, np.float64).tolist()))

    def _floor(self, p: Prepared) -> float:
        if scipy.sparse.issparse(p.values):
            return float(np.sqrt(16 * np.finfo(p.dtype).eps * p.norms.mean()))
        return 1e-12 * float(np.linalg.norm(self.offset or 0.0))

    def _needs_fit(self) -> bool:
        return super()._needs_fit() or self.offset is None

    def _prefit(self, X: blocks.Rows, index: np.ndarray | None, names: np.ndarray | None = None) -> Self:
        if self.offset is not None or scipy.sparse.issparse(X):
            return self
        return replace(self, offset=tuple(pairs.central_row(X, index, self.normalize, self.name, names).tolist()))

    @cached_property
    def _offset(self) -> np.ndarray | None:  # type: ignore[override]
        return None if self.offset is None else np.asarray(self.offset)


def output(out: np.ndarray | None, shape: tuple[int, int], dtype: np.dtype, owner: str) -> np.ndarray:
    """Return `out`, or a new array if it is None; raise an error if the tile does not fit `out`."""
    if out is None:
        return np.empty(shape, dtype)
    if out.shape != shape or out.dtype != dtype or not out.flags.c_contiguous:
        raise UserError(f"{owner}: out must be a C-contiguous {shape} array of {dtype}, got {out.shape} {out.dtype}")
    return out


def log_distance(values: np.ndarray) -> np.ndarray:
    """Compute the distances from the values of a kernel exp(-distance).

    Parameters
    ----------
    values : ndarray of float32
        Kernel values. Values above 1 are treated as floating-point error.

    Returns
    -------
    ndarray of float32
        -log of the values, at least 0. The distance stays finite if the kernel value has underflowed.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import log_distance
    >>> log_distance(np.array([1.0, np.exp(-2.0)], np.float32)).round(3)
    array([0., 2.], dtype=float32)
    """
    return -np.log(np.clip(values, np.finfo(np.float32).tiny, 1.0)) + 0.0  # adding 0.0 turns -0.0 into 0.0
