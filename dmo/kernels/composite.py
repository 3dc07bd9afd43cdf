"""Sums and products of kernels, precomputed kernels, Python functions as kernels, and parsing of all kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import scipy.sparse
from numpy.typing import DTypeLike

from dmo import blocks
from dmo.errors import UserError
from dmo.kernels import rows
from dmo.kernels.base import Kernel, output
from dmo.kernels.functions import DISTANCES, KERNELS, Euclidean
from dmo.kernels.pairs import RandomState
from dmo.kernels.rows import Prepared, nearest

_TRIED = 16  # Number of rows on which `fit` tests a Python function.
# Number of rows per block for the diagonal of a Python function, which computes all kernel values within a block.
_DIAGONAL = 64
_STRIP = 1024  # Number of rows per block in which a precomputed kernel is read.


@dataclass(frozen=True)
class PreparedParts:
    """Rows that were prepared for every kernel of a sum or product of kernels.

    Parameters
    ----------
    parts : tuple of prepared rows
        The same rows, prepared by each kernel in turn.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import Linear
    >>> len((Linear() + Linear()).prepare(np.ones((3, 2))).parts)
    2
    """

    parts: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, where: slice | np.ndarray) -> PreparedParts:
        return PreparedParts(tuple(part[where] for part in self.parts))

    @property
    def dtype(self) -> np.dtype:
        """Data type of the kernel values."""
        return self.parts[0].dtype

    @property
    def nbytes(self) -> int:
        """Size of the prepared rows in bytes."""
        return sum(part.nbytes for part in self.parts)


@dataclass(frozen=True)
class PreparedSquare:
    """Selected rows of a precomputed kernel matrix, which are read only when kernel values are requested.

    Parameters
    ----------
    source : array of shape (m, n)
        Kernel matrix between m samples and the n training samples.
    index : ndarray of int of shape (k,)
        Indices of the selected rows in `source`.
    columns : ndarray of int of shape (k,) or None
        Column indices of the selected samples, or None if the samples are not training samples.
    dtype : dtype
        Data type of the kernel values.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import Precomputed
    >>> Precomputed().prepare(np.eye(3))[1:].columns.tolist()
    [1, 2]
    """

    source: blocks.Rows
    index: np.ndarray
    columns: np.ndarray | None
    dtype: np.dtype

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, where: slice | np.ndarray) -> PreparedSquare:
        return replace(self, index=self.index[where], columns=None if self.columns is None else self.columns[where])

    @property
    def nbytes(self) -> int:
        """Size of the row indices in bytes. The kernel matrix is not included."""
        return self.index.nbytes


@dataclass(frozen=True)
class _Composite(Kernel[PreparedParts]):
    """Entrywise combination of several kernels of the same rows."""

    kernels: tuple[Kernel, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "kernels", tuple(self.kernels))
        if not self.kernels:
            raise UserError(f"{self.name}: needs at least one kernel, got none")
        wrong = [k for k in self.kernels if not isinstance(k, Kernel)]
        if wrong:
            raise TypeError(f"{self.name}: needs kernels, got {wrong[0]!r}; write parse({wrong[0]!r})")
        object.__setattr__(self, "pairwise", any(kernel.pairwise for kernel in self.kernels))
        object.__setattr__(self, "scalable", all(kernel.scalable for kernel in self.kernels))
        if self.pairwise and not all(k.pairwise for k in self.kernels):
            raise UserError(
                f"{self.name}: rows of a precomputed kernel are not features of "
                f"{', '.join(k.name for k in self.kernels)}; pass the kernel and the features as two views"
            )

    def to_dict(self) -> dict[str, Any]:
        return {"kernel": self.name, "kernels": [kernel.to_dict() for kernel in self.kernels]}

    def fit(self, X: blocks.Rows, random_state: RandomState = None, sample_weight: np.ndarray | None = None) -> Self:
        return replace(self, kernels=tuple(kernel.fit(X, random_state, sample_weight) for kernel in self.kernels))

    def prepare(self, X: blocks.Rows, dtype: DTypeLike = np.float32) -> PreparedParts:
        X = X if self.pairwise else rows.read(X, self.name)
        return PreparedParts(tuple(kernel.prepare(X, dtype) for kernel in self.kernels))

    def tile(self, x: PreparedParts, y: PreparedParts, out: np.ndarray | None = None) -> np.ndarray:
        K = output(out, (len(x), len(y)), x.dtype, self.name)
        for k, (kernel, left, right) in enumerate(zip(self.kernels, x.parts, y.parts)):
            if k == 0:
                kernel.tile(left, right, K)
                self._begin(K)
            else:
                self._add(K, kernel.tile(left, right), k)
        return K

    def diagonal(self, x: PreparedParts) -> np.ndarray:
        total = self.kernels[0].diagonal(x.parts[0])
        self._begin(total)
        for k in range(1, len(self.kernels)):
            self._add(total, self.kernels[k].diagonal(x.parts[k]), k)
        return total

    def gram(self, X: blocks.Rows, dtype: DTypeLike, random_state: RandomState) -> tuple[np.ndarray, Self]:
        K, first = self.kernels[0].gram(X, dtype, random_state)
        self._begin(K)
        fitted = [first]
        for k in range(1, len(self.kernels)):
            part, kernel = self.kernels[k].gram(X, dtype, random_state)
            self._add(K, part, k)
            fitted.append(kernel)
        return K, replace(self, kernels=tuple(fitted))

    def _begin(self, K: np.ndarray) -> None:
        """Multiply the values of the first kernel by its weight, if it has one, in place."""

    def _add(self, K: np.ndarray, part: np.ndarray, k: int) -> None:
        """Combine the values of kernel k with K, in place."""
        raise NotImplementedError


@dataclass(frozen=True)
class Sum(_Composite):
    """Weighted sum of kernels, sum_k weights_k k_k(x, y).

    Parameters
    ----------
    kernels : tuple of Kernel
        Kernels that are computed from the same rows.
    weights : tuple of float or None, default=None
        Positive weight of each kernel. By default, all weights are 1.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import Linear
    >>> (Linear() + 2.0 * Linear())(np.array([[2.0], [1.0]])).tolist()
    [[12.0, 6.0], [6.0, 3.0]]
    """

    weights: tuple[float, ...] | None = None
    name = "sum"

    def __post_init__(self) -> None:
        super().__post_init__()
        weights = (1.0,) * len(self.kernels) if self.weights is None else tuple(float(w) for w in self.weights)
        object.__setattr__(self, "weights", weights)
        if len(weights) != len(self.kernels):
            raise UserError(f"sum: got {len(self.kernels)} kernels and {len(weights)} weights; pass one weight each")
        if not all(np.isfinite(w) and w > 0 for w in weights):
            raise UserError(f"sum: weights must be positive to keep the kernel positive semidefinite, got {weights}")

    def to_dict(self) -> dict[str, Any]:
        """Convert the kernel to a JSON-compatible dict, from which `parse` creates an equal kernel.

        Returns
        -------
        dict
            Name of the kernel and values of its parameters.
        """
        return super().to_dict() | {"weights": list(self.weights or ())}

    def _begin(self, K: np.ndarray) -> None:
        K *= K.dtype.type((self.weights or ())[0])

    def _add(self, K: np.ndarray, part: np.ndarray, k: int) -> None:
        part *= K.dtype.type((self.weights or ())[k])
        K += part


@dataclass(frozen=True)
class Product(_Composite):
    """Product of kernels, prod_k k_k(x, y).

    Parameters
    ----------
    kernels : tuple of Kernel
        Kernels that are computed from the same rows.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import Linear
    >>> (Linear() * Linear())(np.array([[2.0], [1.0]])).tolist()
    [[16.0, 4.0], [4.0, 1.0]]
    """

    name = "product"

    def _add(self, K: np.ndarray, part: np.ndarray, k: int) -> None:
        K *= part


@dataclass(frozen=True)
class Precomputed(Kernel[PreparedSquare]):
    """Precomputed kernel matrix, which is passed to estimators instead of features.

    The kernel matrix has shape (n, n) for n training samples, and shape (m, n) for m new samples. It may be stored in
    dask, Zarr or a `KernelStore`; `tile` then reads only the requested entries. The matrix must be positive
    semidefinite, which is not checked. For example, exp(-d^2) is not positive semidefinite for L1 or chi-square
    distances d.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import Precomputed
    >>> p = Precomputed().prepare(np.eye(3))
    >>> Precomputed().tile(p[:2], p).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """

    name = "precomputed"

    pairwise = True
    scalable = False

    def fit(self, X: blocks.Rows, random_state: RandomState = None, sample_weight: np.ndarray | None = None) -> Self:
        """Check that the kernel matrix of the training samples is square.

        Parameters
        ----------
        X : row source of shape (n, d)
            Kernel matrix of the training samples, of which only the shape is used.
        random_state : int, Generator, RandomState or None, default=None
            Ignored.
        sample_weight : ndarray of shape (n,) or None, default=None
            Ignored.

        Returns
        -------
        Kernel
            This kernel.

        Raises
        ------
        UserError
            If the matrix is not square.
        """
        _check_square(blocks.numbered(rows.source(X))[0])
        return self

    def prepare(self, X: blocks.Rows, dtype: DTypeLike = np.float32) -> PreparedSquare:
        """Select rows of the kernel for use in any number of tiles, without reading them.

        Parameters
        ----------
        X : row source of shape (n, d)
            Kernel values: NumPy, SciPy CSR, dask, Zarr, `KernelStore`, or a `Subset` of one.
        dtype : dtype, default=float32
            Type of the tiles, float32 or float64.

        Returns
        -------
        prepared rows
            Prepared rows, which support `len`, slicing and `nbytes`.
        """
        source, index = blocks.numbered(rows.source(X))
        if len(source.shape) != 2:
            raise UserError(
                f"precomputed: needs a matrix of kernel values, got shape {tuple(source.shape)}; reshape it"
            )
        index = np.arange(source.shape[0]) if index is None else index
        columns = _selected(source)
        if columns is not None:
            columns = columns[index]
        elif source.shape[0] == source.shape[1]:
            columns = index
        return PreparedSquare(source, index, columns, np.dtype(dtype))

    def tile(self, x: PreparedSquare, y: PreparedSquare, out: np.ndarray | None = None) -> np.ndarray:
        if x.source.shape[1] != y.source.shape[1]:
            raise UserError(
                f"precomputed: x has {x.source.shape[1]} columns, the training kernel {y.source.shape[1]}; "
                "pass k(new, train) with a column per training row"
            )
        if y.columns is None:
            raise UserError("precomputed: y must be rows of the square training kernel; pass new rows as x")
        K = output(out, (len(x), len(y)), x.dtype, self.name)
        with np.errstate(over="ignore"):  # The next lines raise an error for infinite values.
            K[:] = blocks.entries(x.source, x.index, y.columns)
        if not np.isfinite(K).all():
            raise not_finite("precomputed: the kernel", K, x.index, y.columns)
        return _symmetric(K) if x is y else K

    def diagonal(self, x: PreparedSquare) -> np.ndarray:
        if x.columns is None:
            raise UserError("precomputed: the diagonal of new rows is unknown; pass rows of the square training kernel")
        if isinstance(x.source, np.ndarray):
            return x.source[x.index, x.columns].astype(x.dtype)
        strips = blocks.row_blocks(len(x), _STRIP)
        found = [blocks.entries(x.source, x.index[where], x.columns[where]).diagonal() for where in strips]
        return np.concatenate(found or [np.empty(0)]).astype(x.dtype)

    def gram(self, X: blocks.Rows, dtype: DTypeLike, random_state: RandomState) -> tuple[np.ndarray, Self]:
        """Read the kernel matrix into memory and check that it is square and symmetric; see `gram_matrix`.

        Parameters
        ----------
        X : array of shape (n, n)
            Training kernel.
        dtype : dtype
            Type of the matrix, float32 or float64.
        random_state : int, Generator, RandomState or None
            Ignored.

        Returns
        -------
        matrix : ndarray of shape (n, n)
            Symmetric matrix with an exact diagonal.
        kernel : Kernel
            This kernel.
        """
        p = self.fit(X).prepare(X, dtype)
        return self.tile(p, p), self

    def to_dict(self) -> dict[str, Any]:
        return {"kernel": self.name}


@dataclass(frozen=True)
class Function(Kernel[Prepared]):
    """Kernel given by a Python function k(A, B) that returns the m x n kernel values of two matrices of rows.

    A model with such a kernel cannot be saved, because model files contain no code.

    Parameters
    ----------
    function : callable
        Function of two matrices of shapes (m, d) and (n, d), which are NumPy or SciPy CSR arrays. The kernel must be
        symmetric and positive semidefinite.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.metrics.pairwise import laplacian_kernel
    >>> from dmo import MultiViewRidge
    >>> X = np.random.default_rng(0).normal(size=(20, 3))
    >>> MultiViewRidge(laplacian_kernel).fit(X, X[:, 0] > 0).predict(X).shape
    (20,)
    """

    function: Callable[[Any, Any], Any]
    name = "function"

    def fit(self, X: blocks.Rows, random_state: RandomState = None, sample_weight: np.ndarray | None = None) -> Self:
        """Check that the function returns finite and symmetric values for the first 16 rows.

        Parameters
        ----------
        X : row source of shape (n, d)
            Training rows, of which only the first 16 are used.
        random_state : int, Generator, RandomState or None, default=None
            Ignored.
        sample_weight : ndarray of shape (n,) or None, default=None
            Ignored.

        Returns
        -------
        Kernel
            This kernel.

        Raises
        ------
        UserError
            If the values have a wrong shape, are not finite, or differ between k(x, y) and k(y, x).
        """
        p = self.prepare(blocks.rows(rows.source(X), slice(0, _TRIED)), np.float64)
        K = self.tile(p, p)
        self.tile(p[:1], p)  # Also test the function with unequal numbers of rows.
        if not np.isfinite(K).all():
            raise UserError(f"kernel {self._called}: returned non-finite values; check the function on the first rows")
        if not np.allclose(K, K.T, rtol=1e-4, atol=1e-6 * float(np.abs(K).max(initial=0.0))):
            i, j = np.unravel_index(np.abs(K - K.T).argmax(), K.shape)
            raise UserError(
                f"kernel {self._called}: is not symmetric, k of rows {i} and {j} is {K[i, j]:.6g}, but k of rows {j} "
                f"and {i} is {K[j, i]:.6g}; pass a symmetric function"
            )
        return self

    def prepare(self, X: blocks.Rows, dtype: DTypeLike = np.float32) -> Prepared:
        values = rows.read(X, self.name).astype(dtype)
        return Prepared(values, np.zeros(values.shape[0]), 0)

    def tile(self, x: Prepared, y: Prepared, out: np.ndarray | None = None) -> np.ndarray:
        K = output(out, (len(x), len(y)), x.dtype, self.name)
        found = self.function(x.values, y.values)
        found = blocks.dense(found)
        if found.shape != K.shape or found.dtype.kind not in "biuf":
            raise UserError(
                f"kernel {self._called}: returned {found.dtype} of shape {found.shape} for {len(x)} and {len(y)} rows, "
                f"expected numbers of shape {K.shape}; pass a function of two matrices of rows"
            )
        K[...] = found
        return K

    def diagonal(self, x: Prepared) -> np.ndarray:
        strips = blocks.row_blocks(len(x), _DIAGONAL)
        return np.concatenate([self.tile(x[where], x[where]).diagonal() for where in strips] or [np.empty(0, x.dtype)])

    def gram(self, X: blocks.Rows, dtype: DTypeLike, random_state: RandomState) -> tuple[np.ndarray, Self]:
        p = self.fit(X).prepare(X, dtype)
        K = np.empty((len(p), len(p)), p.dtype)
        for where in blocks.row_blocks(len(p), _STRIP):
            K[where, : where.stop] = self.tile(p[where], p[: where.stop])
            K[: where.start, where] = K[where, : where.start].T
        lower = np.tril_indices(len(p), -1)
        K.T[lower] = K[lower]
        return K, self

    def to_dict(self) -> dict[str, Any]:
        raise UserError(
            f"kernel {self._called}: a Python function cannot be saved, because models contain no code; use a named "
            "kernel, or pass the values of this one with kernel='precomputed'"
        )

    @property
    def _called(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)


def selection(source: blocks.Rows) -> scipy.sparse.csr_array:
    """Replace training rows with an m x n matrix that has a 1 in the column of each row.

    This matrix suffices to compute kernel values of new rows.
    """
    prepared = Precomputed().prepare(source)
    if prepared.columns is None:
        _check_square(prepared.source)
    m = len(prepared)
    held = (np.ones(m, np.float32), prepared.columns, np.arange(m + 1))
    return scipy.sparse.csr_array(held, shape=(m, prepared.source.shape[1]))


def _selected(source: blocks.Rows) -> np.ndarray | None:
    """Return the column indices of a matrix from `selection`, or None for other matrices.

    An identity matrix selects all rows.
    """
    if not isinstance(source, scipy.sparse.csr_array) or source.nnz != source.shape[0]:
        return None
    one_each = (np.diff(source.indptr) == 1).all() and (source.data == 1).all()
    return source.indices if one_each else None


def _check_square(source: blocks.Rows) -> None:
    n, m = source.shape
    if n != m:
        raise UserError(
            f"precomputed: the training kernel must be square, got {n} x {m}; pass k(train, train), with the same "
            "samples in rows and columns"
        )


def _symmetric(K: np.ndarray) -> np.ndarray:
    """Symmetrize a square block of the kernel. Raise an error if the asymmetry exceeds floating-point errors."""
    worst = max(
        (float(np.abs(K[w] - K[:, w].T).max(initial=0.0)) for w in blocks.row_blocks(len(K), _STRIP)), default=0.0
    )
    if worst > 1e-5 * float(np.abs(K).max(initial=0.0)):
        raise UserError(
            f"precomputed: the training kernel must be symmetric, got entries that differ by {worst:.2g}; "
            "pass k(x_i, x_j) for all pairs"
        )
    return K if worst == 0.0 else (K + K.T) / 2


NAMED: dict[str, type] = {**KERNELS, Precomputed.name: Precomputed}
COMPOSITES: dict[str, type] = {"sum": Sum, "product": Product}
PREFIXES = ("hellinger", "l1", "l2")


def parse(spec: str | Kernel | dict[str, Any] | Callable[[Any, Any], Any]) -> Kernel:
    """Create a kernel from a name, a dict or a Python function of two matrices.

    Parameters
    ----------
    spec : str, Kernel, dict or callable
        Description of the kernel. The names are "rbf", "laplacian", "exponential", "chi2", "intersection", "linear",
        "polynomial", "cosine" and "precomputed". The prefixes "hellinger-", "l1-" and "l2-" normalize the rows, as in
        "hellinger-rbf". Dicts are described in `from_dict`, functions in `Function`. Kernels are returned unchanged.

    Returns
    -------
    Kernel
        The kernel.

    Raises
    ------
    UserError
        If the name is unknown, or is the name of a distance that is not a kernel.

    Examples
    --------
    >>> from dmo.kernels import parse
    >>> parse("hellinger-rbf").normalize
    'hellinger'
    """
    if isinstance(spec, dict):
        spec = from_dict(spec)
    if isinstance(spec, Euclidean) or (isinstance(spec, str) and spec.rpartition("-")[2] in DISTANCES):
        raise UserError(
            "kernel 'euclidean' is a distance, not a positive semidefinite kernel; use 'exponential', or use "
            "'euclidean' for relation features with n_landmarks"
        )
    if isinstance(spec, Kernel):
        return spec
    if callable(spec) and not isinstance(spec, type):
        return Function(spec)
    if not isinstance(spec, str):
        raise TypeError(
            f"kernel must be a name, a kernel or a dict, got {type(spec).__name__}; pass a name such as 'rbf'"
        )
    prefix, dash, name = spec.partition("-")
    if not dash:
        prefix, name = "", spec
    if name not in NAMED or (dash and (prefix not in PREFIXES or name == "precomputed")):
        known = [*NAMED, *(f"{p}-{n}" for p in PREFIXES for n in NAMED if n != "precomputed")]
        raise UserError(
            f"kernel {spec!r} is unknown; known: {', '.join(NAMED)}, with a prefix "
            f"{', '.join(p + '-' for p in PREFIXES)} as in 'hellinger-rbf'{nearest(spec.lower(), known)}"
        )
    return NAMED[name](normalize=prefix) if dash else NAMED[name]()


def not_finite(kernel: str, K: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> UserError:
    """Return an error with the first non-finite entry of a precomputed kernel, its likely cause and the fix."""
    first, start = np.argwhere(~np.isfinite(K))[0]
    value, row, gap = K[first, start], int(rows[first]), np.isnan(K)
    column = int(columns[start])
    # A sample with missing features causes NaN in its row of the kernel, also below the diagonal. If a whole triangle
    # is missing, every row has NaN only to the right of the diagonal.
    if gap[first, columns >= column].all() and not gap[rows[:, None] >= columns].any():
        return UserError(
            f"{kernel} has NaN from row {row}, column {column} on and none below the diagonal, likely because it is "
            "one triangle of a kernel store that was read without dmo; pass dmo.stores.open_kernel(path)"
        )
    if np.isnan(value):
        found, cause = "NaN", "the features of a sample hold NaN or were divided by a norm of 0; correct these features"
    else:
        found, cause = str(value), f"values overflow, in exp or in {value.dtype}; divide the features by a constant"
    return UserError(
        f"{kernel} has {found} at row {row}, column {column}, likely because {cause} and compute the kernel again, or "
        "remove the samples with such entries from its rows and columns"
    )


def is_pairwise(spec: Any) -> bool:
    """Return whether a kernel, or the kernel of any view, is a precomputed matrix."""
    if isinstance(spec, (list, tuple)) or (isinstance(spec, dict) and "kernel" not in spec):
        return any(is_pairwise(one) for one in (spec.values() if isinstance(spec, dict) else spec))
    try:
        return parse(spec).pairwise
    except (UserError, TypeError):  # Invalid kernels are reported when they are used.
        return False


def parse_relation(spec: str | Kernel | dict[str, Any]) -> Kernel:
    """Create a kernel or distance for relation features.

    Parameters
    ----------
    spec : str, Kernel or dict
        Any description of a kernel that `parse` accepts, or "euclidean". A prefix normalizes the rows, as in
        "l2-euclidean".

    Returns
    -------
    Kernel
        The kernel, or the distance `Euclidean`.

    Examples
    --------
    >>> from dmo.kernels import Euclidean, parse_relation
    >>> parse_relation("euclidean") == Euclidean()
    True
    """
    if isinstance(spec, Euclidean):
        return spec
    prefix, dash, name = spec.rpartition("-") if isinstance(spec, str) else ("", "", "")
    if name in DISTANCES and (prefix in PREFIXES or not dash):
        return DISTANCES[name](normalize=prefix or None)  # type: ignore[no-any-return]
    return parse(spec)


def rescaled(spec: Any, factor: float) -> Any:
    """Multiply the bandwidth of a kernel, or of the kernels of all views, by a factor.

    Parameters
    ----------
    spec : str, Kernel, dict, mapping of view to these, or list
        Kernel, or kernels of several views, in any form that `parse` accepts.
    factor : float
        Positive factor by which the bandwidth is multiplied.

    Returns
    -------
    Kernel, dict or list
        Kernels with the new bandwidths, in the same structure as `spec`.

    Raises
    ------
    UserError
        If a kernel has no bandwidth.

    Examples
    --------
    >>> from dmo.kernels import rescaled
    >>> rescaled("rbf", 0.5).scale
    0.5
    """
    if isinstance(spec, (list, tuple)):
        return [rescaled(part, factor) for part in spec]
    if isinstance(spec, dict) and "kernel" not in spec:
        return {view: rescaled(part, factor) for view, part in spec.items()}
    kernel: Any = parse(spec)
    if isinstance(kernel, (Sum, Product)):
        return replace(kernel, kernels=tuple(rescaled(part, factor) for part in kernel.kernels))
    if not hasattr(kernel, "scale"):
        raise UserError(f"kernel {kernel.name!r} has no bandwidth to scale; omit bandwidth, or use 'rbf'")
    return replace(kernel, scale=factor * kernel.scale)


def from_dict(spec: dict[str, Any]) -> Kernel:
    """Create a kernel from the output of `to_dict`.

    Parameters
    ----------
    spec : dict
        Description of the kernel.

    Returns
    -------
    Kernel
        The kernel.

    Raises
    ------
    UserError
        If a kernel or parameter is unknown.

    Examples
    --------
    >>> from dmo.kernels import Linear, from_dict
    >>> from_dict(Linear().to_dict()) == Linear()
    True
    """
    rest = dict(spec)
    if "kernel" not in rest:
        keys = ", ".join(map(repr, rest))
        raise UserError(f"expected one kernel, got a mapping of {keys[:60]}; kernels by view require several views")
    name = rest.pop("kernel")
    kinds = NAMED | DISTANCES | COMPOSITES
    if name not in kinds:
        known = list(kinds)
        raise UserError(f"kernel {name!r} is unknown; known: {', '.join(known)}{nearest(str(name), known)}")
    kind = kinds[name]
    parameters = [f.name for f in fields(kind)]
    wrong = [key for key in rest if key not in parameters]
    if wrong:
        hint = nearest(wrong[0], parameters)
        raise UserError(f"{name}: parameter {wrong[0]!r} is unknown; known: {', '.join(parameters) or 'none'}{hint}")
    if name in COMPOSITES:
        rest["kernels"] = tuple(from_dict(part) for part in rest["kernels"])
    return kind(**rest)
