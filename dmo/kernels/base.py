"""Base classes of kernels. Repeated fits of the same rows reuse cached distances."""

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
_DOUBLE = 2048  # Maximum number of rows for which cached distances are stored in float64.
# Minimum free space in the cache for a distance matrix, as a multiple of the size of the matrix.
_KEPT = 16
P = TypeVar("P")
"""Type of a kernel's prepared rows."""


class Kernel(ABC, Generic[P]):
    """Base class of symmetric positive semidefinite kernels k(x, y).

    A kernel is used in three steps. First, `fitted = kernel.fit(X)` replaces rules such as "median" by numbers. Then
    `p = fitted.prepare(X)` checks and normalizes the rows of X. Finally, `fitted.tile(p[i:j], p[k:l])` computes a
    rectangular part of the Gram matrix. Kernels can be added, multiplied, and multiplied by positive numbers. Two
    kernels are equal if they have the same class and parameters.

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
    portable: ClassVar[bool] = False  # Whether the kernel supports arrays of libraries other than NumPy.
    pairwise: bool = False  # Whether X is a kernel matrix instead of a matrix of features.
    scalable: bool = True  # Whether features may be standardized before the kernel is computed.
    _cached: ClassVar[bool] = False  # Whether repeated fits of the same rows reuse cached distances.
    # The operators + and * look up the classes of sums and products by name, which avoids a circular import.
    _kinds: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" in cls.__dict__:
            Kernel._kinds[cls.name] = cls

    @abstractmethod
    def fit(self, X: blocks.Rows, random_state: RandomState = None, sample_weight: np.ndarray | None = None) -> Self:
        """Compute the parameters that depend on the data, such as the median distance of the rows.

        Parameters
        ----------
        X : row source of shape (n, d)
            Training rows. If there are more than 8192 rows, or more than 4096 rows with nonzero sample weight, a random
            sample of this size is used.
        random_state : int, Generator, RandomState or None, default=None
            Seed for drawing the random sample of rows.
        sample_weight : ndarray of shape (n,) or None, default=None
            Non-negative sample weights, which act as repetition counts. By default, all weights are 1.

        Returns
        -------
        Kernel
            The fitted kernel. Bandwidth rules compute a float32 matrix of pairwise distances of at most 268 MB.
        """

    @abstractmethod
    def prepare(self, X: blocks.Rows, dtype: DTypeLike = np.float32) -> P:
        """Check and normalize rows, so that `tile` can be called repeatedly.

        Parameters
        ----------
        X : row source of shape (n, d)
            NumPy, SciPy CSR, dask or Zarr array, which is read into memory. CSR rows stay sparse unless the kernel
            subtracts an offset. Named kernels such as `RBF` also accept torch and CuPy arrays, and compute the kernel
            values with the same library.
        dtype : dtype, default=float32
            Type of the kernel values, float32 or float64.

        Returns
        -------
        prepared rows
            The checked and normalized rows. The object supports `len`, slicing and `nbytes`.

        Raises
        ------
        UserError
            If an entry is invalid for the kernel; the error message contains its row and column. Also if the rows are
            so far from the origin that floating-point error hides their distances. To avoid this error, fit the kernel
            on dense rows or use float64.
        """

    @abstractmethod
    def tile(self, x: P, y: P, out: np.ndarray | None = None) -> np.ndarray:
        """Compute the kernel values k(x_i, y_j) of all pairs of prepared rows.

        Parameters
        ----------
        x : prepared rows
            The m samples that correspond to the rows of the result.
        y : prepared rows
            The n samples that correspond to the columns of the result.
        out : ndarray of shape (m, n) or None, default=None
            C-contiguous array to which the result is written. By default, a new array is allocated.

        Returns
        -------
        ndarray of shape (m, n)
            Kernel values. The method can be called from several threads.

        Raises
        ------
        UserError
            If the kernel has not been fitted and its bandwidth is a rule such as "mean". Also if x and y were prepared
            by different kernels, or have different numbers of features or data types.
        """

    @abstractmethod
    def diagonal(self, x: P) -> np.ndarray:
        """Compute the kernel value k(x_i, x_i) of each prepared row with itself.

        Parameters
        ----------
        x : prepared rows
            The m prepared rows.

        Returns
        -------
        ndarray of shape (m,)
            Diagonal of the kernel matrix of these rows.
        """

    @abstractmethod
    def gram(self, X: blocks.Rows, dtype: DTypeLike, random_state: RandomState) -> tuple[np.ndarray, Self]:
        """Fit the kernel and compute the kernel matrix of rows in memory.

        Parameters
        ----------
        X : ndarray or csr_array of shape (n, d)
            Training rows.
        dtype : dtype
            Type of the kernel matrix, float32 or float64.
        random_state : int, Generator, RandomState or None
            Seed for drawing the random sample of rows from which the bandwidth is computed.

        Returns
        -------
        matrix : ndarray of shape (n, n)
            Symmetric kernel matrix.
        kernel : Kernel
            The fitted kernel.

        See Also
        --------
        gram_matrix : Equivalent function that also accepts kernel names and rows that are not in memory.
        """

    def part(self, X: blocks.Rows, where: slice | np.ndarray | None = None) -> blocks.Rows:
        """Select rows of X in a form that `prepare` accepts.

        Parameters
        ----------
        X : row source of shape (n, d)
            Array whose rows are selected.
        where : slice, ndarray of int, or None, default=None
            Slice or indices of the selected rows. By default, all rows are selected.

        Returns
        -------
        row source
            The selected rows in memory. A kernel matrix is not read: the result is X or a `Subset` of its rows.
        """
        if self.pairwise:
            return X if where is None else blocks.Subset(X, np.arange(X.shape[0])[where])
        if self._cached and memory() is not None:
            source, index = (X.source, X.index) if isinstance(X, blocks.Subset) else (X, np.arange(X.shape[0]))
            # The cache identifies rows by their source and indices, so that rows are read only if they are not cached.
            return blocks.Subset(source, index if where is None else index[where])
        return blocks.sampled(X, where) if isinstance(where, np.ndarray) else blocks.rows(X, where)

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Convert the kernel to a JSON-compatible dict, from which `parse` creates an equal kernel.

        Returns
        -------
        dict
            Name of the kernel and values of its parameters.
        """

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters of the kernel by name.

        Scikit-learn calls this method to search over parameters such as `kernel__bandwidth`.

        Parameters
        ----------
        deep : bool, default=True
            Ignored. The parameter exists for compatibility with scikit-learn.

        Returns
        -------
        dict
            Parameter names mapped to their values.
        """
        return {f.name: getattr(self, f.name) for f in fields(cast(Any, self))}

    def set_params(self, **params: Any) -> Self:
        """Set parameters of this kernel in place.

        Parameters
        ----------
        **params : object
            Parameter names and their new values.

        Returns
        -------
        Kernel
            This kernel.

        Raises
        ------
        UserError
            If a parameter name is unknown or a value is invalid.

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
        self.__dict__.clear()  # Remove cached values that were computed from the old parameters.
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
        """Fit the kernel on X and compute its values for all pairs of rows of X and Y. Y defaults to X."""
        X = rows.read(X, self.name)
        if Y is None:
            return self.gram(X, np.dtype(dtype), None)[0]
        fitted = self.fit(X)
        return fitted.tile(fitted.prepare(X, dtype), fitted.prepare(Y, dtype))


class RowKernel(Kernel[Prepared]):
    """Base class of kernels that are functions of the inner product or distance of two rows."""

    normalize: str | None
    pair: ClassVar[str]
    portable: ClassVar[bool] = True
    non_negative: ClassVar[bool] = False
    _offset: ClassVar[np.ndarray | None] = None  # Vector that is subtracted from all normalized rows.

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
        """Prepare rows. Error messages show `names[i]` as the index of row i."""
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
        """Write the inner products or distances of the rows of x and y to the matrix K."""
        pairs.fill(self.pair, x, y, K)

    def gram(self, X: blocks.Rows, dtype: DTypeLike, random_state: RandomState) -> tuple[np.ndarray, Self]:
        p, K, kernel = self._pairs(X, dtype, random_state)
        change = kernel._map()
        pairs.map_lower(change, K, change.norms(p), True)
        K.flat[:: len(p) + 1] = kernel.diagonal(p)
        return K, kernel

    def _pairs(self, X: blocks.Rows, dtype: DTypeLike, random_state: RandomState) -> tuple[Prepared, np.ndarray, Self]:
        """Return the prepared rows, a matrix whose lower triangle has their distances, and the fitted kernel."""
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
        """Fit parameters such as the offset, which do not depend on distances. By default, all rows are used."""
        return self

    def _resolved(
        self, p: Prepared, K: np.ndarray, index: np.ndarray | None, weights: np.ndarray | None = None
    ) -> Self:
        """Compute the bandwidth from the inner products or distances in the lower triangle of the matrix K."""
        return self

    def diagonal(self, x: Prepared) -> np.ndarray:
        return x.norms.astype(x.dtype)

    def _map(self) -> pairs.EntryMap:
        return pairs.EntryMap()


@dataclass(frozen=True)
class BandwidthKernel(RowKernel):
    """Base class of kernels such as `RBF` and `Laplacian`, which decrease with the distance divided by a bandwidth."""

    bandwidth: float | str = "mean"  # Positive distance, or the name of a rule by which `fit` computes it.
    normalize: str | None = None  # Name of the normalization of the rows, as in `normalize_rows`, or None.
    scale: float = 1.0  # Positive factor by which the bandwidth is multiplied.
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
        """Effective bandwidth of the kernel, which is the product of `scale` and `bandwidth`."""
        if isinstance(self.bandwidth, str):
            raise UserError(f"{self.name}: bandwidth {self.bandwidth!r} is a rule; call fit first, or pass a number")
        return self.scale * self.bandwidth

    def exponents(self, x: Prepared, y: Prepared) -> np.ndarray:
        """Compute the negative binary logarithms -log2 k(x_i, y_j) of the kernel values.

        A change of the bandwidth multiplies all logarithms by the same constant, which `power_of` computes.

        Parameters
        ----------
        x : prepared rows
            The m samples that correspond to the rows of the result.
        y : prepared rows
            The n samples that correspond to the columns of the result.

        Returns
        -------
        ndarray of shape (m, n)
            Non-negative exponents e, such that the kernel values are 2^-e.

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
        if change.op == loops.GAUSSIAN:  # For Gaussian kernels, K contains inner products.
            K *= x.dtype.type(-change.a)
            K -= change.norms(x)[:, None]
            K -= change.norms(y)
        else:
            K *= x.dtype.type(change.a)
        return np.maximum(K, 0.0, out=K)

    def power_of(self, other: BandwidthKernel) -> float:
        """Compute the power p for which this kernel is equal to the p-th power of another kernel.

        Parameters
        ----------
        other : BandwidthKernel
            Kernel of the same class with a different bandwidth.

        Returns
        -------
        float
            The power p.

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
        # The distances and the fitted bandwidth do not depend on the scale, so set the scale to 1 in the cache key.
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
        """Return the prepared rows of X, and the kernel fitted to their distances, which the matrix K contains."""
        p = self._prepare(X, K.dtype, None)
        return p, self._resolved(p, K, index)

    def _whole(self, x: blocks.Subset, y: blocks.Subset) -> np.ndarray | None:
        """Return the distances of x and y from a cached matrix of all distances, or None if it cannot be cached."""
        own, source = memory(), x.source
        n = source.shape[0]
        if own is None or self.pair not in pairs.FEATURE_BY_FEATURE or own.name(source) != own.name(y.source):
            return None
        # Most rows occur in several cross-validation folds, so computing all distances once is faster than computing
        # the distances for each fold.
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
        """Raise an error if floating-point errors exceed the distances of the rows. Subclasses override this method."""

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
        """Return the distance below which a computed bandwidth is indistinguishable from floating-point error."""
        return 1e-6 * float(p.norms.mean()) if scipy.sparse.issparse(p.values) else 0.0

    def diagonal(self, x: Prepared) -> np.ndarray:
        return np.ones(len(x), x.dtype)

    def _map(self) -> pairs.EntryMap:
        return pairs.EntryMap(loops.EXPONENTIAL, LOG2_E / self.width)


@dataclass(frozen=True)
class CenteredKernel(BandwidthKernel):
    """Base class of kernels of the Euclidean distance, which center dense rows to reduce floating-point errors."""

    # `fit` sets `offset` to approximately the mean of the normalized training rows. If the training rows are a CSR
    # array, `offset` is None, because centered rows would not be sparse. A kernel that was fitted on dense rows
    # converts CSR rows to dense rows.

    offset: tuple[float, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.offset is not None:
            # Converting the values through a NumPy array is ten times as fast as converting them one by one.
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
    """Return the array `out` after checking its shape and type. If `out` is None, allocate a new array."""
    if out is None:
        return np.empty(shape, dtype)
    if out.shape != shape or out.dtype != dtype or not out.flags.c_contiguous:
        raise UserError(f"{owner}: out must be a C-contiguous {shape} array of {dtype}, got {out.shape} {out.dtype}")
    return out


def log_distance(values: np.ndarray) -> np.ndarray:
    """Compute the distances d from the values exp(-d) of a kernel.

    Parameters
    ----------
    values : ndarray of float32
        Kernel values. Values above 1 are treated as 1, because they result from floating-point error.

    Returns
    -------
    ndarray of float32
        Non-negative distances. A kernel value of 0 results in a large finite distance.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import log_distance
    >>> log_distance(np.array([1.0, np.exp(-2.0)], np.float32)).round(3)
    array([0., 2.], dtype=float32)
    """
    return -np.log(np.clip(values, np.finfo(np.float32).tiny, 1.0)) + 0.0  # Adding 0.0 changes -0.0 to 0.0.
