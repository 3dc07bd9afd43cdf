"""What every kernel can do, and the kernels that are one formula of a pair of rows."""

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
_DOUBLE = 2048  # rows up to which distances that many fits share are float64
_KEPT = 16  # matrices of distances for which there has to be room
P = TypeVar("P")
"""The type of a kernel's prepared rows."""


class Kernel(ABC, Generic[P]):
    """A symmetric positive semidefinite function k(x, y) of rows: a value, compared and hashed by its parameters.

    Life: `fitted = kernel.fit(X)` turns rules into numbers, `p = fitted.prepare(X)` makes rows ready once,
    `fitted.tile(p[i:j], p[k:l])` gives any tile of the Gram matrix. `a + b`, `a * b` and `2.0 * a` are kernels again.

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
    portable: ClassVar[bool] = False  # takes rows of other libraries than NumPy
    # classes by name: how + and * find sums and products, which build on this module
    _kinds: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" in cls.__dict__:
            Kernel._kinds[cls.name] = cls

    @abstractmethod
    def fit(self, X: blocks.Rows, random_state: RandomState = None, sample_weight: np.ndarray | None = None) -> Self:
        """Set everything that depends on the data to numbers.

        Parameters
        ----------
        X : row source of shape (n, d)
            All its rows are looked at up to 8192, else a random sample of so many.
        random_state : int, Generator, RandomState or None, default=None
            Seed of the sample.
        sample_weight : ndarray of shape (n,) or None, default=None
            How often every row counts, at least 0; None: once.

        Returns
        -------
        Kernel
            The fitted kernel. A bandwidth rule holds the distances of these rows in float32, 268 MB at the most.
        """

    @abstractmethod
    def prepare(self, X: blocks.Rows, dtype: DTypeLike = np.float32) -> P:
        """Make rows ready once, for any number of tiles.

        Parameters
        ----------
        X : row source of shape (n, d)
            Read whole: NumPy, SciPy CSR (which stays CSR), dask or Zarr; for kernels of one formula also an array of
            another library, such as torch or CuPy, where its tiles are then made.
        dtype : dtype, default=float32
            Of the tiles, float32 or float64.

        Returns
        -------
        prepared rows
            With `len`, row slices and `nbytes`.

        Raises
        ------
        UserError
            For entries the kernel has no value for, naming row and column, and where `fit` is missing.
        """

    @abstractmethod
    def tile(self, x: P, y: P, out: np.ndarray | None = None) -> np.ndarray:
        """Work out k(x_i, y_j) of prepared rows; safe to call from many threads.

        Parameters
        ----------
        x : prepared rows
            m of them.
        y : prepared rows
            n of them.
        out : ndarray of shape (m, n) or None, default=None
            Where to write, C-contiguous.

        Returns
        -------
        ndarray of shape (m, n)
            Kernel values.
        """

    @abstractmethod
    def diagonal(self, x: P) -> np.ndarray:
        """Work out k(x_i, x_i), exact for the prepared rows.

        Parameters
        ----------
        x : prepared rows
            m of them.

        Returns
        -------
        ndarray of shape (m,)
            Kernel values.
        """

    @abstractmethod
    def gram(self, X: blocks.Rows, dtype: DTypeLike, random_state: RandomState) -> tuple[np.ndarray, Self]:
        """Work out the kernel matrix of rows in memory, and fit the kernel on the way; see `gram_matrix`.

        Parameters
        ----------
        X : ndarray or csr_array of shape (n, d)
            Rows.
        dtype : dtype
            float32 or float64.
        random_state : int, Generator, RandomState or None
            Seed of the sample that decides a bandwidth.

        Returns
        -------
        matrix : ndarray of shape (n, n)
            Symmetric, with an exact diagonal.
        kernel : Kernel
            Fitted.
        """

    @property
    def pairwise(self) -> bool:
        """Whether rows are those of a kernel matrix, whose columns are samples too."""
        return False

    def part(self, X: blocks.Rows, where: slice | np.ndarray | None = None) -> blocks.Rows:
        """Some rows as `prepare` takes them: in memory; of a kernel matrix unread, with their numbers.

        Parameters
        ----------
        X : row source of shape (n, d)
            Rows.
        where : slice, ndarray of int, or None, default=None
            Which of them; None: all.

        Returns
        -------
        row source
            The rows.
        """
        if self.pairwise:
            return X if where is None else blocks.Subset(X, np.arange(X.shape[0])[where])
        return blocks.sampled(X, where) if isinstance(where, np.ndarray) else blocks.rows(X, where)

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Describe the kernel as a JSON dict, which `parse` reads.

        Returns
        -------
        dict
            Its name and parameters.
        """

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """List the parameters by name, as scikit-learn's searches ask for them: `kernel__bandwidth` is one.

        Parameters
        ----------
        deep : bool, default=True
            Of no effect.

        Returns
        -------
        dict
            Parameters.
        """
        return {f.name: getattr(self, f.name) for f in fields(cast(Any, self))}

    def set_params(self, **params: Any) -> Self:
        """Change parameters of this very object, which scikit-learn's searches do to copies.

        Parameters
        ----------
        **params : object
            Values by name.

        Returns
        -------
        Kernel
            This one.

        Raises
        ------
        UserError
            For an unknown name, and for a value that the kernel cannot have.

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
                raise UserError(
                    f"{self.name}: parameter {key!r} is unknown{near}; known are {', '.join(known) or 'none'}"
                )
        made = replace(cast(Any, self), **params)
        self.__dict__.clear()  # what was worked out from the old parameters too
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
        """k of small arrays: n x n for X, or n x m for X and Y; rules are fitted on X."""
        X = rows.read(X, self.name)
        if Y is None:
            return self.gram(X, np.dtype(dtype), None)[0]
        fitted = self.fit(X)
        return fitted.tile(fitted.prepare(X, dtype), fitted.prepare(Y, dtype))


class RowKernel(Kernel[Prepared]):
    """A kernel that is a function of one number per pair of rows (see `pairs`), such as their distance.

    Argument `normalize` of all of them: see `normalize_rows`.
    """

    normalize: str | None
    pair: ClassVar[str]
    portable: ClassVar[bool] = True
    non_negative: ClassVar[bool] = False
    _offset: ClassVar[np.ndarray | None] = None  # what rows are taken less

    def __post_init__(self) -> None:
        rows.check_normalization(self.normalize, self.name)

    def to_dict(self) -> dict[str, Any]:
        values = {f.name: getattr(self, f.name) for f in fields(cast(Any, self))}
        return {"kernel": self.name} | {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    def fit(self, X: blocks.Rows, random_state: RandomState = None, sample_weight: np.ndarray | None = None) -> Self:
        return self

    def prepare(self, X: blocks.Rows, dtype: DTypeLike = np.float32) -> Prepared:
        return self._prepare(X, dtype, None)

    def _prepare(self, X: blocks.Rows, dtype: DTypeLike, names: np.ndarray | None) -> Prepared:
        """`prepare`, errors naming row i `names[i]`."""
        dtype = np.dtype(dtype)
        if dtype not in (np.float32, np.float64):
            raise TypeError(f"{self.name}: tiles are float32 or float64, got dtype {dtype}; pass one of these")
        squared = self.pair in ("dot", "l2")
        needs = self.non_negative or self.normalize == "hellinger"
        if foreign(X) is not None:
            made = portable.ready(X, self.normalize, self._offset, dtype, squared, needs, self.name)
            return Prepared(*made, rows.origin(self.pair, self.normalize, self._offset))
        block = pairs.go_sparse(self.pair, rows.read(X, self.name))
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
        """Write the pair values of some rows."""
        pairs.fill(self.pair, x, y, K)

    def gram(self, X: blocks.Rows, dtype: DTypeLike, random_state: RandomState) -> tuple[np.ndarray, Self]:
        p, K, kernel = self._pairs(X, dtype, random_state)
        pairs.finish_lower(kernel._map(), p, K)
        K.flat[:: len(p) + 1] = kernel.diagonal(p)
        return K, kernel

    def _pairs(self, X: blocks.Rows, dtype: DTypeLike, random_state: RandomState) -> tuple[Prepared, np.ndarray, Self]:
        """Prepared rows, their pair values in a lower triangle (n x n), and the kernel fitted to them."""
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
        """Parameters that come from the rows `index` (all when None) without distances; errors name row i `names[i]`."""
        return self

    def _resolved(
        self, p: Prepared, K: np.ndarray, index: np.ndarray | None, weights: np.ndarray | None = None
    ) -> Self:
        """The kernel with that parameter, from the pair values in the lower triangle of K."""
        return self

    def diagonal(self, x: Prepared) -> np.ndarray:
        return x.norms.astype(x.dtype)

    def _map(self) -> pairs.EntryMap:
        return pairs.EntryMap()


@dataclass(frozen=True)
class BandwidthKernel(RowKernel):
    """A kernel exp(-f(distance / width)), width = scale * bandwidth: the base of `RBF`, `Laplacian` and others."""

    bandwidth: float | str = "mean"  # in units of the distance: a number above 0, or a rule that `fit` resolves
    normalize: str | None = None  # how rows are normalized first, see `normalize_rows`
    scale: float = 1.0  # A factor on the bandwidth, above 0

    def __post_init__(self) -> None:
        super().__post_init__()
        pairs.check(self.bandwidth, self.name)
        if not isinstance(self.bandwidth, str):
            object.__setattr__(self, "bandwidth", float(self.bandwidth))
        if not (np.isfinite(self.scale) and self.scale > 0):
            raise UserError(f"{self.name}: scale must be a positive number, got {self.scale!r}")

    @property
    def width(self) -> float:
        """scale * bandwidth as a number."""
        if isinstance(self.bandwidth, str):
            raise UserError(f"{self.name}: bandwidth {self.bandwidth!r} is a rule; call fit first, or give a number")
        return self.scale * self.bandwidth

    def exponents(self, x: Prepared, y: Prepared) -> np.ndarray:
        """Work out -log2 k(x_i, y_j) of prepared rows, whose multiples are those of other bandwidths (see `power_of`).

        Parameters
        ----------
        x : prepared rows
            m of them.
        y : prepared rows
            n of them.

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
        """Work out of which power of a kernel with another bandwidth this one is.

        Parameters
        ----------
        other : BandwidthKernel
            Of the same kind.

        Returns
        -------
        float
            The power, by which exponents are multiplied.

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
        # kernels that differ in the scale of their bandwidth have the same distances, and the same rule's number
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
        """Prepared rows, and the kernel fitted to their pair values."""
        p = self._prepare(X, K.dtype, None)
        return p, self._resolved(p, K, index)

    def part(self, X: blocks.Rows, where: slice | np.ndarray | None = None) -> blocks.Rows:
        if memory() is None:
            return super().part(X, where)
        source, index = (X.source, X.index) if isinstance(X, blocks.Subset) else (X, np.arange(X.shape[0]))
        # told apart by numbers, read when it must be
        return blocks.Subset(source, index if where is None else index[where])

    def _whole(self, x: blocks.Subset, y: blocks.Subset) -> np.ndarray | None:
        """Pair values of x and y from those of all rows that both are parts of; None where there are none."""
        own, source = memory(), x.source
        n = source.shape[0]
        if own is None or self.pair not in pairs.FEATURE_BY_FEATURE or own.name(source) != own.name(y.source):
            return None
        # folds have most of the rows, and nothing of a pair follows from other rows; float32 as kernels of so many have
        dtype = np.dtype(np.float64 if n <= _DOUBLE else np.float32)
        if 2 * max(len(x), len(y)) < n or _KEPT * dtype.itemsize * n * n > own.room:
            return None

        def made() -> np.ndarray:
            p, K, _ = super(BandwidthKernel, replace(self, bandwidth=1.0))._pairs(source, dtype, None)
            pairs.finish_lower(pairs.EntryMap(), p, K)
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
        """Refuse rows whose distances the precision loses, where the bandwidth is a number."""

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
        """Distances up to here are rounding: differences of norms lose the digits that direct ones keep."""
        return 1e-6 * float(p.norms.mean()) if scipy.sparse.issparse(p.values) else 0.0

    def diagonal(self, x: Prepared) -> np.ndarray:
        return np.ones(len(x), x.dtype)

    def _map(self) -> pairs.EntryMap:
        return pairs.EntryMap(loops.EXPONENTIAL, LOG2_E / self.width)


@dataclass(frozen=True)
class CenteredKernel(BandwidthKernel):
    """A kernel of the Euclidean distance: dense rows are taken less an offset learned by `fit`, which keeps digits."""

    # Argument `offset`: a number per feature, subtracted after normalization; None for CSR rows. A kernel that was
    # fitted on dense rows makes CSR rows dense.

    offset: tuple[float, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.offset is not None:
            # by an array: thousands of numbers are converted in a tenth of the time, at every copy of the kernel
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
    """`out` if it can hold the tile, else a new array; raises ValueError where it cannot."""
    if out is None:
        return np.empty(shape, dtype)
    if out.shape != shape or out.dtype != dtype or not out.flags.c_contiguous:
        raise UserError(f"{owner}: out must be a C-contiguous {shape} array of {dtype}, got {out.shape} {out.dtype}")
    return out


def log_distance(values: np.ndarray) -> np.ndarray:
    """Turn values of a kernel exp(-distance) back into distances.

    Parameters
    ----------
    values : ndarray of float32
        Kernel values; above 1 by rounding alone.

    Returns
    -------
    ndarray of float32
        -log of the values, from 0; finite where they have underflowed.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import log_distance
    >>> log_distance(np.array([1.0, np.exp(-2.0)], np.float32)).round(3)
    array([0., 2.], dtype=float32)
    """
    return -np.log(np.clip(values, np.finfo(np.float32).tiny, 1.0)) + 0.0  # + 0.0: no negative zeros
