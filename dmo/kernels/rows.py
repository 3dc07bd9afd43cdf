"""Checks, normalization, centering and norms of rows, before kernel values are computed."""

from __future__ import annotations

import difflib
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import DTypeLike

from dmo import blocks
from dmo.errors import UserError
from dmo.kernels import loops

Matrix = Any
"""Data matrix of shape (n, d) in memory, which is a NumPy array or a SciPy CSR array."""
NORMALIZATIONS = {None: 0, "l1": 1, "l2": 2, "hellinger": 3}
SPARSE_BELOW = 0.5
"""Fraction of nonzero entries below which dense rows are converted to CSR."""


@dataclass(frozen=True)
class Prepared:
    """Normalized and centered rows with their norms, as returned by `kernel.prepare`.

    The object supports `len`, slicing, indexing by arrays, and pickling.

    Parameters
    ----------
    values : ndarray, csr_array, or array of another library, of shape (n, d)
        Rows after normalization and subtraction of the offset of the kernel.
    norms : ndarray, or array of the same library, of shape (n,), float64
        Squared L2 norm or L1 norm of each row of `values`, depending on the kernel.
    origin : int
        Checksum of the normalization and the offset, which detects rows that were prepared by another kernel.
    part_of : Subset or None, default=None
        Source of the rows and their indices, which identify cached distances in hyperparameter searches.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import Linear
    >>> p = Linear().prepare(np.ones((5, 3)))
    >>> len(p[1:4]), p.shape, p.dtype.name
    (3, (5, 3), 'float32')
    """

    values: Matrix
    norms: np.ndarray
    origin: int
    part_of: blocks.Subset | None = None

    def __len__(self) -> int:
        return int(self.norms.shape[0])

    def __getitem__(self, where: slice | np.ndarray) -> Prepared:
        part = None if self.part_of is None else blocks.Subset(self.part_of.source, self.part_of.index[where])
        return replace(self, values=self.values[where, :], norms=self.norms[where], part_of=part)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and number of features."""
        return self.values.shape

    @property
    def dtype(self) -> np.dtype:
        """Data type of the rows, which is also the data type of kernel values."""
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        """Size of the prepared rows in bytes."""
        return blocks.byte_count(self.values) + self.norms.nbytes


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a suffix for error messages that suggests a similar name, or an empty string."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def unknown_normalization(how: str | None, owner: str) -> UserError:
    known = ", ".join(repr(k) for k in NORMALIZATIONS)
    return UserError(
        f"{owner}: normalize must be one of {known}, got {how!r}{nearest(str(how), ('l1', 'l2', 'hellinger'))}"
    )


def origin(pair: str, normalize: str | None, offset: np.ndarray | None) -> int:
    """Compute a checksum of the parameters that affect the preparation of rows by a kernel."""
    start = zlib.crc32(f"{pair} {normalize}".encode())
    return start if offset is None else zlib.crc32(offset.tobytes(), start)


def source(X: Any) -> blocks.Rows:
    """Convert sparse matrices to CSR arrays, and lists to NumPy arrays. Other inputs are returned unchanged."""
    if scipy.sparse.issparse(X):
        return scipy.sparse.csr_array(X)
    return X if hasattr(X, "shape") else np.asarray(X)


def read(X: blocks.Rows, owner: str) -> Matrix:
    """Read all rows into memory as a real matrix, which is a dense array or a CSR array."""
    X = source(X)
    if len(X.shape) != 2:
        raise UserError(f"{owner}: needs a matrix of n rows x d columns, got shape {tuple(X.shape)}; reshape it")
    block = blocks.rows(X)
    if block.dtype.kind not in "buif":
        raise TypeError(f"{owner}: needs rows of real numbers, got dtype {block.dtype}; convert them")
    return block


def readable(block: np.ndarray) -> np.ndarray:
    """Convert dense rows to a C-contiguous array of float32 if this is exact, and otherwise of float64."""
    if block.dtype.kind == "f" and block.dtype.itemsize in (4, 8):
        return np.ascontiguousarray(block, dtype=block.dtype.newbyteorder("="))
    return np.ascontiguousarray(block, dtype=np.float32 if block.dtype.itemsize <= 2 else np.float64)


NOT_FINITE = "{owner}: needs finite rows, got {value:.6g} at row {row}, column {column}; repair or drop the row"
NEGATIVE = (
    "{owner}: needs non-negative rows, got {value:.6g} at row {row}, column {column}; "
    "shift the features or use a kernel such as 'rbf'"
)
TOO_LARGE = (
    "{owner}: rows are too large for {dtype}, got {value:.6g} at row {row}, column {column}; "
    "scale the features or use dtype float64"
)


def _not_finite(block: np.ndarray, fits: np.ndarray, dtype: np.dtype, names: np.ndarray, owner: str) -> UserError:
    """Return the error for the first entry that is not finite or too large for `dtype`."""
    bad, what = ~np.isfinite(block), NOT_FINITE
    if not bad.any():
        bad, what = ~fits[:, None] & (np.abs(block) == np.abs(block).max(axis=1, keepdims=True)), TOO_LARGE
    row, column = (int(k) for k in np.argwhere(bad)[0])
    return UserError(what.format(owner=owner, value=block[row, column], row=names[row], column=column, dtype=dtype))


def ready(
    X: Matrix,
    how: str | None,
    offset: np.ndarray | None,
    dtype: DTypeLike,
    squared: bool,
    non_negative: bool,
    owner: str,
    names: np.ndarray | None = None,
) -> tuple[Matrix, np.ndarray]:
    """Normalize rows and subtract `offset`. Return the rows in `dtype`, and their norms in float64."""
    # A UserError is raised for entries that are not finite and, with `non_negative`, for negative entries. The error
    # reports the column of the entry and its row number in `names`. Rows are processed in blocks that fit in the CPU
    # cache.
    if offset is not None and X.shape[1] != len(offset):
        raise UserError(f"{owner}: was fitted on {len(offset)} columns, got {X.shape[1]}; pass the same features")
    n, d = X.shape
    names = np.arange(n) if names is None else names
    if scipy.sparse.issparse(X) and offset is None:
        return _ready_sparse(X, how, np.dtype(dtype), squared, non_negative, owner, names)
    out, norms = np.empty((n, d), dtype), np.empty(n)
    shift = np.zeros(d) if offset is None else offset
    for where in blocks.row_blocks(n, max(1, 2**18 // max(d, 1))):
        block = readable(blocks.dense(X[where]))
        if non_negative and X.dtype.kind not in "bu" and block.size and block.min() < 0:
            row, column = (int(k) for k in np.argwhere(block < 0)[0])
            place = {"value": block[row, column], "row": names[where.start + row], "column": column}
            raise UserError(NEGATIVE.format(owner=owner, **place))
        loops.ready_rows(block, NORMALIZATIONS[how], shift, squared, out[where], norms[where])
        fits = norms[where] <= np.finfo(out.dtype).max / 16  # Comparisons with NaN are also false.
        if not fits.all():
            raise _not_finite(block, fits, out.dtype, names[where], owner)
    return out, norms


def _ready_sparse(
    X: scipy.sparse.csr_array,
    how: str | None,
    dtype: np.dtype,
    squared: bool,
    non_negative: bool,
    owner: str,
    names: np.ndarray,
) -> tuple[scipy.sparse.csr_array, np.ndarray]:
    X = X if X.has_canonical_format else X.copy()
    X.sum_duplicates()
    n, row, values = X.shape[0], np.repeat(np.arange(X.shape[0]), np.diff(X.indptr)), X.data.astype(np.float64)

    def refuse(bad: np.ndarray, what: str) -> None:
        if bad.any():
            k = int(np.argmax(bad))
            place = {"value": X.data[k], "row": names[row[k]], "column": X.indices[k], "dtype": dtype}
            raise UserError(what.format(owner=owner, **place))

    refuse(~np.isfinite(values), NOT_FINITE)
    refuse((values < 0) & non_negative, NEGATIVE)
    if how is not None:
        total = np.bincount(row, values**2 if how == "l2" else np.abs(values), minlength=n)
        total = np.sqrt(total) if how == "l2" else total
        values /= np.where(total == 0, 1.0, total)[row]
        values = np.sqrt(values) if how == "hellinger" else values
    with np.errstate(over="ignore"):
        kept = values.astype(dtype)
        norms = np.bincount(row, kept.astype(np.float64) ** 2 if squared else np.abs(kept), minlength=n)
    refuse(~(norms <= np.finfo(dtype).max / 16)[row] & (kept != 0), TOO_LARGE)
    made = scipy.sparse.csr_array((kept, X.indices.copy(), X.indptr.copy()), shape=X.shape)
    made.eliminate_zeros()
    return made, norms


def normalize_rows(X: blocks.Rows, how: str | None, dtype: DTypeLike | None = None) -> Matrix:
    """Scale every row to unit L1 or L2 norm. Rows of zeros are not changed.

    Parameters
    ----------
    X : row source of shape (n, d)
        Data matrix, which is read into memory. CSR arrays stay sparse.
    how : {"l1", "l2", "hellinger"} or None
        "l1" scales rows to unit L1 norm, "l2" to unit L2 norm. "hellinger" scales rows to unit L1 norm and computes the
        square root of every entry. With None, rows are not scaled.
    dtype : dtype, default=None
        Data type of the result. The default is float32 for integers of up to 16 bits and floats of up to 32 bits, and
        otherwise float64.

    Returns
    -------
    ndarray or csr_array of shape (n, d)
        Scaled rows.

    Raises
    ------
    UserError
        If `how` is unknown, X contains NaN or infinity, or X has negative entries and `how` is "hellinger".

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import normalize_rows
    >>> normalize_rows(np.array([[1.0, 3.0], [0.0, 0.0]]), "l1").tolist()
    [[0.25, 0.75], [0.0, 0.0]]
    """
    owner = "normalize_rows"
    if how not in NORMALIZATIONS:
        raise unknown_normalization(how, owner)
    block = read(X, owner)
    if dtype is None:
        exact = np.promote_types(getattr(X, "dtype", block.dtype), np.float32) == np.float32
        dtype = np.float32 if exact else np.float64
    return ready(block, how, None, dtype, False, how == "hellinger", owner)[0]


def as_common(values: Matrix, signed: bool) -> scipy.sparse.csr_array:
    """Convert to CSR. With `signed`, store the absolute values of positive and negative entries in separate columns.

    Two entries x and y of opposite signs then share no column, which yields |x - y| = |x| + |y|.
    """
    sparse = scipy.sparse.csr_array(values)
    if not signed:
        return sparse
    indices = 2 * sparse.indices.astype(np.int64) + (sparse.data < 0)
    small = 2 * sparse.shape[1] < np.iinfo(np.int32).max
    shape = (sparse.shape[0], 2 * sparse.shape[1])
    return scipy.sparse.csr_array(
        (np.abs(sparse.data), indices.astype(np.int32) if small else indices, sparse.indptr), shape=shape
    )


def signed_sums(X: Matrix, signs: scipy.sparse.csr_array, shift: np.ndarray, sign: np.ndarray) -> np.ndarray:
    """Compute the product of float32 rows (n x d) and the sparse matrix `signs` (d x k), which has one entry per row.

    Dense rows are processed by a compiled loop, which describes the same matrix by `shift` and `sign`.
    """
    if scipy.sparse.issparse(X):
        return blocks.dense(X @ signs)
    out = np.zeros((len(X), signs.shape[1]), np.float32)
    loops.sketch_rows(X, shift, sign, out)
    return out
