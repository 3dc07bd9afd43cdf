"""Kernels made of kernels, those that were computed elsewhere, and all of them from strings and JSON."""

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

_TRIED = 16  # rows on which a function is tried before it is taken as a kernel
_DIAGONAL = 64  # rows whose diagonal a function gives at a time, as the diagonal of their square
_STRIP = 1024  # rows of a kernel that are compared with its columns, or whose diagonal is read, at a time


@dataclass(frozen=True)
class PreparedParts:
    """The rows prepared for each kernel of a sum or product.

    Parameters
    ----------
    parts : tuple of prepared rows
        One per kernel.

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
        """Precision of the tiles."""
        return self.parts[0].dtype

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(part.nbytes for part in self.parts)


@dataclass(frozen=True)
class PreparedSquare:
    """Rows of a precomputed kernel, of which a tile reads the entries that it needs.

    Parameters
    ----------
    source : array of shape (m, n)
        The kernel of m samples with the n training samples.
    index : ndarray of int of shape (k,)
        Which of its rows these are.
    columns : ndarray of int of shape (k,) or None
        Which training samples they are; None: new ones.
    dtype : dtype
        Precision of the tiles.

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
        """Bytes in memory, beside the kernel."""
        return self.index.nbytes


@dataclass(frozen=True)
class _Composite(Kernel[PreparedParts]):
    """Kernels of the same rows, combined entry by entry."""

    kernels: tuple[Kernel, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "kernels", tuple(self.kernels))
        if not self.kernels:
            raise UserError(f"{self.name}: needs at least one kernel, got none")
        wrong = [k for k in self.kernels if not isinstance(k, Kernel)]
        if wrong:
            raise TypeError(f"{self.name}: needs kernels, got {wrong[0]!r}; write parse({wrong[0]!r})")
        if self.pairwise and not all(k.pairwise for k in self.kernels):
            raise UserError(
                f"{self.name}: rows of a precomputed kernel are no features of {', '.join(k.name for k in self.kernels)}; "
                "pass the kernel and the features as two views"
            )

    @property
    def pairwise(self) -> bool:
        """Whether rows are of a kernel matrix."""
        return any(kernel.pairwise for kernel in self.kernels)

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
        """Make the values of the first kernel the start of the result, in place."""

    def _add(self, K: np.ndarray, part: np.ndarray, k: int) -> None:
        """Combine the values of kernel k into K, in place."""
        raise NotImplementedError


@dataclass(frozen=True)
class Sum(_Composite):
    """A weighted sum of kernels, sum_k weights_k k_k(x, y).

    Parameters
    ----------
    kernels : tuple of Kernel
        Of the same rows.
    weights : tuple of float or None, default=None
        Above 0; None: all 1.

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
            raise UserError(f"sum: got {len(self.kernels)} kernels and {len(weights)} weights; give one weight each")
        if not all(np.isfinite(w) and w > 0 for w in weights):
            raise UserError(f"sum: weights must be positive to keep the kernel positive semidefinite, got {weights}")

    def to_dict(self) -> dict[str, Any]:
        """Describe the kernel as a JSON dict, which `parse` reads.

        Returns
        -------
        dict
            Its name and parameters.
        """
        return super().to_dict() | {"weights": list(self.weights or ())}

    def _begin(self, K: np.ndarray) -> None:
        K *= K.dtype.type((self.weights or ())[0])

    def _add(self, K: np.ndarray, part: np.ndarray, k: int) -> None:
        part *= K.dtype.type((self.weights or ())[k])
        K += part


@dataclass(frozen=True)
class Product(_Composite):
    """The product of kernels, prod_k k_k(x, y).

    Parameters
    ----------
    kernels : tuple of Kernel
        Of the same rows.

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
    """A kernel matrix that the user computed: X is the n x n kernel of the training rows, or m x n for new rows.

    Rows of a square matrix, and subsets of them (`dmo.blocks.Subset`), are training rows; `tile(x, y)` reads the columns of
    the training rows y in the rows x. Of a kernel in tiles or chunks (dask, Zarr, `KernelStore`) nothing else is read. Where
    only the columns count, `selection` stands for training rows.
    Whether the matrix is positive semidefinite is not checked: exp(-d^2) of L1 or chi-square distances d is not.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import Precomputed
    >>> p = Precomputed().prepare(np.eye(3))
    >>> Precomputed().tile(p[:2], p).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """

    name = "precomputed"

    @property
    def pairwise(self) -> bool:
        """True."""
        return True

    def fit(self, X: blocks.Rows, random_state: RandomState = None, sample_weight: np.ndarray | None = None) -> Self:
        """Set everything that depends on the data to numbers.

        Parameters
        ----------
        X : row source of shape (n, d)
            The training kernel, of which the shape is looked at.
        random_state : int, Generator, RandomState or None, default=None
            Of no effect.
        sample_weight : ndarray of shape (n,) or None, default=None
            Of no effect.

        Returns
        -------
        Kernel
            This kernel.

        Raises
        ------
        UserError
            For a matrix that is not square.
        """
        _check_square(blocks.numbered(rows.source(X))[0])
        return self

    def prepare(self, X: blocks.Rows, dtype: DTypeLike = np.float32) -> PreparedSquare:
        """Make rows ready once, for any number of tiles.

        Parameters
        ----------
        X : row source of shape (n, d)
            Kernel values, unread: NumPy, SciPy CSR, dask, Zarr, `KernelStore`, or a `Subset` of one.
        dtype : dtype, default=float32
            Of the tiles, float32 or float64.

        Returns
        -------
        prepared rows
            With `len`, row slices and `nbytes`.
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
        with np.errstate(over="ignore"):  # which is refused in the next line
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
        """Work out the kernel matrix of rows in memory, and fit the kernel on the way; see `gram_matrix`.

        Parameters
        ----------
        X : array of shape (n, n)
            The training kernel.
        dtype : dtype
            float32 or float64.
        random_state : int, Generator, RandomState or None
            Of no effect.

        Returns
        -------
        matrix : ndarray of shape (n, n)
            Symmetric, with an exact diagonal.
        kernel : Kernel
            Fitted.
        """
        p = self.fit(X).prepare(X, dtype)
        return self.tile(p, p), self

    def to_dict(self) -> dict[str, Any]:
        return {"kernel": self.name}


@dataclass(frozen=True)
class Function(Kernel[Prepared]):
    """A Python function k(A, B) of two matrices of rows, which gives the m x n kernel values of their pairs.

    Models hold no code: one with such a kernel is not saved.

    Parameters
    ----------
    function : callable
        Takes rows (m, d) and (n, d), NumPy in the precision of the fit or SciPy CSR as they are; has to be symmetric and
        positive semidefinite.

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
        """Try the function on a few rows: values of pairs, finite and symmetric.

        Parameters
        ----------
        X : row source of shape (n, d)
            Rows, of which the first are looked at.
        random_state : int, Generator, RandomState or None, default=None
            Of no effect.
        sample_weight : ndarray of shape (n,) or None, default=None
            Of no effect.

        Returns
        -------
        Kernel
            This one.

        Raises
        ------
        UserError
            Where the values have another shape, are no finite numbers, or differ for k(x, y) and k(y, x).
        """
        p = self.prepare(blocks.rows(rows.source(X), slice(0, _TRIED)), np.float64)
        K = self.tile(p, p)
        self.tile(p[:1], p)  # of unequal numbers of rows
        if not np.isfinite(K).all():
            raise UserError(f"kernel {self._called}: has values that are no finite numbers; check it on the first rows")
        if not np.allclose(K, K.T, rtol=1e-4, atol=1e-6 * float(np.abs(K).max(initial=0.0))):
            i, j = np.unravel_index(np.abs(K - K.T).argmax(), K.shape)
            raise UserError(
                f"kernel {self._called}: is not symmetric, k of rows {i} and {j} is {K[i, j]:.6g}, of {j} and {i} "
                f"{K[j, i]:.6g}; pass a symmetric function"
            )
        return self

    def prepare(self, X: blocks.Rows, dtype: DTypeLike = np.float32) -> Prepared:
        values = rows.read(X, self.name).astype(dtype)
        return Prepared(values, np.zeros(values.shape[0]), 0)

    def tile(self, x: Prepared, y: Prepared, out: np.ndarray | None = None) -> np.ndarray:
        K = output(out, (len(x), len(y)), x.dtype, self.name)
        found = self.function(x.values, y.values)
        found = found.toarray() if scipy.sparse.issparse(found) else np.asarray(found)
        if found.shape != K.shape or found.dtype.kind not in "biuf":
            raise UserError(
                f"kernel {self._called}: of {len(x)} and {len(y)} rows it gave {found.dtype} of shape {found.shape}, needed "
                f"are numbers of shape {K.shape}; pass a function of two matrices of rows"
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
            f"kernel {self._called}: a Python function is not saved, since models hold no code; take a kernel by its name, or "
            "pass the values of this one with kernel='precomputed'"
        )

    @property
    def _called(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)


def selection(source: blocks.Rows) -> scipy.sparse.csr_array:
    """What is left of rows of a training kernel where only new rows are compared with them: m x n, a 1 for their column."""
    prepared = Precomputed().prepare(source)
    if prepared.columns is None:
        _check_square(prepared.source)
    m = len(prepared)
    held = (np.ones(m, np.float32), prepared.columns, np.arange(m + 1))
    return scipy.sparse.csr_array(held, shape=(m, prepared.source.shape[1]))


def _selected(source: blocks.Rows) -> np.ndarray | None:
    """The columns of a `selection`; no kernel is one, but for the identity, which selects its own rows."""
    if not isinstance(source, scipy.sparse.csr_array) or source.nnz != source.shape[0]:
        return None
    one_each = (np.diff(source.indptr) == 1).all() and (source.data == 1).all()
    return source.indices if one_each else None


def _check_square(source: blocks.Rows) -> None:
    n, m = source.shape
    if n != m:
        raise UserError(
            f"precomputed: the training kernel must be square, got {n} x {m}; pass k(train, train), of the same samples in "
            "rows and columns"
        )


def _symmetric(K: np.ndarray) -> np.ndarray:
    """A square of the kernel with itself, without its rounding; refused where it is not symmetric but for that."""
    worst = max(
        (float(np.abs(K[w] - K[:, w].T).max(initial=0.0)) for w in blocks.row_blocks(len(K), _STRIP)), default=0.0
    )
    if worst > 1e-5 * float(np.abs(K).max(initial=0.0)):
        raise UserError(
            f"precomputed: the training kernel must be symmetric, got entries that differ by {worst:.2g}; "
            "pass k(x_i, x_j) of all pairs"
        )
    return K if worst == 0.0 else (K + K.T) / 2


NAMED: dict[str, type] = {**KERNELS, Precomputed.name: Precomputed}
COMPOSITES: dict[str, type] = {"sum": Sum, "product": Product}
PREFIXES = ("hellinger", "l1", "l2")


def parse(spec: str | Kernel | dict[str, Any] | Callable[[Any, Any], Any]) -> Kernel:
    """Make the kernel that a name, a dict of `to_dict`, a function of two matrices, or a kernel itself stands for.

    Parameters
    ----------
    spec : str, Kernel, dict or callable
        A function: see `Function`. Names: "rbf", "laplacian", "exponential", "chi2", "intersection", "linear",
        "polynomial", "cosine", "precomputed", each (but the last) with a prefix "hellinger-", "l1-" or "l2-" for the
        normalization of rows: "hellinger-rbf".

    Returns
    -------
    Kernel
        The kernel.

    Raises
    ------
    UserError
        For an unknown name, with the nearest known one, and for a distance that is no kernel.

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
            "kernel 'euclidean' is a distance, not a positive semidefinite kernel; it serves as relation features, with "
            "n_landmarks; else take 'exponential'"
        )
    if isinstance(spec, Kernel):
        return spec
    if callable(spec) and not isinstance(spec, type):
        return Function(spec)
    if not isinstance(spec, str):
        raise TypeError(f"kernel must be a name, a kernel or a dict, got {type(spec).__name__}; pass e.g. 'rbf'")
    prefix, dash, name = spec.partition("-")
    if not dash:
        prefix, name = "", spec
    if name not in NAMED or (dash and (prefix not in PREFIXES or name == "precomputed")):
        known = [*NAMED, *(f"{p}-{n}" for p in PREFIXES for n in NAMED if n != "precomputed")]
        raise UserError(
            f"kernel {spec!r} is unknown{nearest(spec.lower(), known)}; known are {', '.join(NAMED)}, with a prefix "
            f"{', '.join(p + '-' for p in PREFIXES)} as in 'hellinger-rbf'"
        )
    return NAMED[name](normalize=prefix) if dash else NAMED[name]()


def not_finite(kernel: str, K: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> UserError:
    """Describe the first entry of a block of a precomputed kernel that is not finite, its likely cause and the fix."""
    first, start = np.argwhere(~np.isfinite(K))[0]
    value, row, gap = K[first, start], int(rows[first]), np.isnan(K)
    column = int(columns[start])
    # A sample with NaN has NaN in its own row up to the diagonal; a missing triangle leaves every row NaN to its end.
    if gap[first, columns >= column].all() and not gap[rows[:, None] >= columns].any():
        return UserError(
            f"{kernel} has NaN from row {row}, column {column} on and none below the diagonal, likely because it is one "
            "triangle of a kernel store that was read without dmo; pass dmo.stores.open_kernel(path)"
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
    """Tell whether a kernel, or that of a view, is a matrix that the user computed, whose rows and columns are samples."""
    if isinstance(spec, (list, tuple)) or (isinstance(spec, dict) and "kernel" not in spec):
        return any(is_pairwise(one) for one in (spec.values() if isinstance(spec, dict) else spec))
    try:
        return parse(spec).pairwise
    except (UserError, TypeError):  # what is no kernel is told by whoever takes it for one
        return False


def parse_relation(spec: str | Kernel | dict[str, Any]) -> Kernel:
    """Make the kernel or distance that gives relation features.

    Parameters
    ----------
    spec : str, Kernel or dict
        As for `parse`, and "euclidean" (or "l2-euclidean" ... of normalized rows).

    Returns
    -------
    Kernel
        The kernel, or `Euclidean`.

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
    """Multiply the bandwidth of a kernel, or of the kernels of views.

    Parameters
    ----------
    spec : str, Kernel, dict, mapping of view to these, or list
        See `parse`.
    factor : float
        Above 0.

    Returns
    -------
    Kernel, dict or list
        As it was given, with other bandwidths.

    Raises
    ------
    UserError
        For a kernel that has none.

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
        raise UserError(f"kernel {kernel.name!r} has no bandwidth to scale; leave bandwidth out, or take 'rbf'")
    return replace(kernel, scale=factor * kernel.scale)


def from_dict(spec: dict[str, Any]) -> Kernel:
    """Make the kernel that `to_dict` wrote.

    Parameters
    ----------
    spec : dict
        JSON.

    Returns
    -------
    Kernel
        The kernel.

    Raises
    ------
    UserError
        For unknown kernels and parameters.

    Examples
    --------
    >>> from dmo.kernels import Linear, from_dict
    >>> from_dict(Linear().to_dict()) == Linear()
    True
    """
    rest = dict(spec)
    if "kernel" not in rest:
        keys = ", ".join(map(repr, rest))
        raise UserError(
            f"one kernel is needed, and a mapping of {keys[:60]} was given: kernels by view are for several views"
        )
    name = rest.pop("kernel")
    kinds = NAMED | DISTANCES | COMPOSITES
    if name not in kinds:
        known = list(kinds)
        raise UserError(f"kernel {name!r} is unknown{nearest(str(name), known)}; known are {', '.join(known)}")
    kind = kinds[name]
    parameters = [f.name for f in fields(kind)]
    wrong = [key for key in rest if key not in parameters]
    if wrong:
        hint = nearest(wrong[0], parameters)
        raise UserError(f"{name}: parameter {wrong[0]!r} is unknown{hint}; known are {', '.join(parameters) or 'none'}")
    if name in COMPOSITES:
        rest["kernels"] = tuple(from_dict(part) for part in rest["kernels"])
    return kind(**rest)
