"""Functions that read rows of arrays, stores and other row sources into memory.

A *row source* is any object with `shape`, `dtype` and row slicing, such as a NumPy array, a SciPy CSR matrix, a Dask
array, a Zarr array, a view of a feature store, or a `Subset` of another row source.

Rows in memory are an array or CSR. The operations of this module accept both, so that other modules do not distinguish
them.
"""

from __future__ import annotations

import itertools
import math
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import scipy

from dmo.errors import UserError

SINGLE = "x"
"""Name of the view if X is a single array."""
APART = 100.0
"""Ratio of the largest to the smallest column scale above which the columns of a view are scaled automatically."""
MOSTLY = 2 / 3
"""Fraction of zeros above which a column or a view is treated as mostly zero."""
_FIRST = 256
"""Number of first rows from which column scales are estimated, so that only the first chunk of a store is read."""


class RowSource(Protocol):
    """Protocol of objects that are read by rows, such as NumPy, SciPy, pandas, Dask, Zarr and xarray objects."""

    @property
    def shape(self) -> tuple[Any, ...]:
        """Number of samples, and number of columns."""

    def __getitem__(self, where: Any, /) -> Any: ...


class Rows(RowSource, Protocol):
    """Protocol of row sources with two dimensions and a single data type."""

    @property
    def dtype(self) -> Any:
        """Data type of the entries."""


class ByRows:
    """Base class of the row sources in this package."""

    def __len__(self: RowSource) -> int:
        return self.shape[0]  # type: ignore[no-any-return]


Block: TypeAlias = "np.ndarray | scipy.sparse.csr_array"
"""Dense or sparse rows in memory."""
_REST = 1 << 28  # maximum size in bytes of rows that remain from a chunk and are kept for the next block
_CELLS = 1 << 20
"""Maximum number of entries in a block of labels."""
_PACKED = 1 << 16
"""Size in bytes up to which a matrix is not converted to CSR, because the saving would be negligible."""
_MANY, _BITS = 1 << 16, 512  # minimum number of row indices that are stored as bits, and number of bits per group


def row_blocks(n: int, size: int) -> list[slice]:
    """Split n rows into slices of at most `size` rows."""
    if size < 1:
        raise UserError(f"block size must be at least 1, got {size}; pass a positive number")
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


class RowMask(ByRows):
    """Array of ascending row indices that is stored as one bit per candidate row to save memory."""

    def __init__(self, index: np.ndarray):
        bits = np.zeros(-(-(int(index[-1]) + 1) // _BITS) * _BITS, bool)
        bits[index] = True
        self._bits = np.packbits(bits).reshape(-1, _BITS // 8)
        self._before = np.concatenate([[0], np.cumsum(np.count_nonzero(bits.reshape(-1, _BITS), axis=1))])
        self.shape, self.nbytes = (len(index),), self._bits.nbytes + self._before.nbytes

    def __getitem__(self, where: Any) -> np.ndarray:
        if isinstance(where, slice):
            start, stop, step = where.indices(len(self))
            if step != 1:
                return self[start:stop][::step] if step > 0 else self[:][where]
            first = int(np.searchsorted(self._before, start, "right")) - 1
            last = int(np.searchsorted(self._before, stop, "left"))
            found = np.flatnonzero(np.unpackbits(self._bits[first:last])) + first * _BITS
            return found[start - self._before[first] : max(start, stop) - self._before[first]]
        index = np.asarray(where)
        groups, own = np.unique(np.searchsorted(self._before, index, "right") - 1, return_inverse=True)
        counts = self._before[groups + 1] - self._before[groups]
        starts = np.cumsum(counts) - counts - self._before[groups]  # offset of each group of bits in the array `found`
        found = np.flatnonzero(np.unpackbits(self._bits[groups]))[starts[own] + index]
        return groups[found // _BITS] * _BITS + found % _BITS

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(np.intp if dtype is None else dtype, copy=False)


@dataclass(frozen=True, eq=False)
class Subset(ByRows):
    """Row source that consists of selected rows of another row source, in the order of `index`."""

    # For each slice, every chunk with selected rows is read once, and only one chunk is in memory at a time.

    source: Rows  # row source from which rows are selected
    index: np.ndarray | RowMask  # row indices in any order, possibly with duplicates

    def __post_init__(self) -> None:
        if isinstance(self.index, RowMask):
            return
        index = np.asarray(self.index)
        if index.size == 0:
            index = index.astype(np.intp)
        if index.ndim != 1 or index.dtype.kind not in "iu":
            raise UserError(f"a subset needs a list of row indices, got {index.dtype} of shape {index.shape}")
        if index.size and (index.min() < 0 or index.max() >= self.source.shape[0]):
            raise UserError(
                f"a subset of {self.source.shape[0]} rows has row indices {index.min()} to {index.max()}; "
                f"they must be in 0 to {self.source.shape[0] - 1}"
            )
        object.__setattr__(self, "index", row_numbers(index))

    @property
    def shape(self) -> tuple[int, int]:
        """Number of selected rows, and number of columns."""
        return len(self.index), self.source.shape[1]

    @property
    def dtype(self) -> np.dtype:
        """Data type of the entries of the source."""
        return self.source.dtype

    def __getitem__(self, where: slice) -> Block:
        picked = self.index[where]
        if len(picked) == 0:
            return rows(self.source, slice(0, 0))
        if np.all(np.diff(picked) == 1):
            return rows(self.source, slice(int(picked[0]), int(picked[-1]) + 1))
        source = self.source.source if isinstance(self.source, PartialRows) else self.source
        kept = getattr(source, "kept", None)  # Some sources cache their rows in memory.
        source = source if kept is None else kept
        if in_memory(source):
            return source[picked]
        return _gather(source, picked)


def row_numbers(index: np.ndarray) -> np.ndarray | RowMask:
    """Convert a long array of ascending row indices to a `RowMask`; return other arrays unchanged."""
    return RowMask(index) if len(index) >= _MANY and (index[1:] > index[:-1]).all() else index


@dataclass(frozen=True, eq=False)
class RowsOf(ByRows):
    """Base class of row sources that describe or transform the rows of another row source."""

    source: Rows  # row source that is read

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and columns of the source."""
        return self.source.shape[0], self.source.shape[1]

    @property
    def dtype(self) -> np.dtype:
        """Data type of the entries of the source."""
        return self.source.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions, which is always 2."""
        return 2

    @property
    def chunks(self) -> Any:
        """Chunk sizes of the source, or None if it has no chunks."""
        return getattr(self.source, "chunks", None)

    def __getitem__(self, where: slice) -> Block:
        return rows(self.source, where)


@dataclass(frozen=True, eq=False)
class PartialRows(RowsOf):
    """Row source in which some samples are missing; the rows of missing samples have arbitrary contents."""

    present: np.ndarray  # mask of the samples that are not missing


def presence(source: Rows) -> np.ndarray | None:
    """Return a mask of the samples that a row source contains, or None if no samples are missing."""
    if isinstance(source, Subset):
        inner = presence(source.source)
        some = None if inner is None else inner[np.asarray(source.index)]
        return None if some is None or some.all() else some
    present: np.ndarray | None = getattr(source, "present", None)
    return None if present is None or present.all() else present


def _gather(source: Rows, picked: np.ndarray) -> Block:
    """Read the rows `picked` from a source that supports only slices, one chunk at a time."""
    order = np.argsort(picked, kind="stable")
    rising = picked[order]
    parts = []
    for run in np.split(rising, np.flatnonzero(np.diff(rising // chunk_rows(source))) + 1):
        low = int(run[0])
        parts.append(rows(source, slice(low, int(run[-1]) + 1))[run - low])
    return stacked(parts)[np.argsort(order)]


def chunk_rows(source: Rows) -> int:
    """Return the number of rows per chunk of an array or per block of a stored view; 1024 for other sources."""
    chunks = getattr(source, "chunks", None)
    if not chunks:
        return int(getattr(source, "block", 1024))
    return chunks[0] if isinstance(chunks[0], int) else max(chunks[0])


def _chunk_end(source: Rows, row: int) -> int:
    """Return the end of the chunk that contains a row, or `row + 1` if the rows are not in the order of chunks."""
    if isinstance(source, Subset):
        first = int(source.index[row : row + 1][0])
        last = _chunk_end(source.source, first)
        index = source.index[row : row + last - first]  # The chunk contains at most `last - first` ascending rows.
        later = index >= last
        count = int(np.argmax(later)) if later.any() else len(index)
        return row + count if (np.diff(index[:count]) > 0).all() else row + 1
    chunks = getattr(source, "chunks", None)
    if chunks and not isinstance(chunks[0], int):  # Chunks of Dask arrays can differ in size.
        edges = np.cumsum(chunks[0])
        return int(edges[np.searchsorted(edges, row, side="right")])
    size = chunk_rows(source) if chunks or hasattr(source, "block") else 1
    return min((row // size + 1) * size, source.shape[0])


class InOrder:
    """Reader of successive blocks of a row source, which reads each chunk once even if two blocks share it."""

    # Each thread keeps the remaining rows of the last chunk that it read, up to a maximum size. Blocks can also be read
    # in another order, but then chunks are read repeatedly.

    def __init__(self, source: Rows):
        self.source = source
        self._own = threading.local()

    def __getstate__(self) -> Rows:
        return self.source

    def __setstate__(self, source: Rows) -> None:
        self.__init__(source)  # type: ignore[misc]

    def __getitem__(self, where: slice) -> Block:
        if in_memory(self.source) or where.stop <= where.start:
            return rows(self.source, where)
        parts, start = [], where.start
        first, rest = getattr(self._own, "rest", (0, None))
        if rest is not None and first <= start < first + rest.shape[0]:
            parts.append(rest[start - first :])
            start += parts[0].shape[0]
        if start < where.stop:
            parts.append(rows(self.source, slice(start, _chunk_end(self.source, where.stop - 1))))
        block = stacked(parts)
        rest = block[where.stop - where.start :]
        keep = rest.shape[0] > 0 and rest.data.nbytes <= _REST
        # A view of few remaining rows would keep the whole block in memory, so copy these rows.
        rest = rest.copy() if keep and 2 * rest.data.nbytes < _whole_bytes(rest) else rest
        self._own.rest = (where.stop, rest if keep else None)
        return block[: where.stop - where.start]


def _whole_bytes(block: Any) -> float:
    """Return the size in bytes of the array of which a block is a view, or infinity for CSR blocks."""
    return getattr(getattr(block, "base", None), "nbytes", math.inf)


def byte_count(block: Any) -> int:
    """Return the size of a dense or CSR block in bytes."""
    parts = (block.data, block.indices, block.indptr) if scipy.sparse.issparse(block) else (block,)
    return sum(part.nbytes for part in parts)


def stacked(parts: Sequence[Any]) -> Any:
    """Concatenate blocks of rows, which must be all dense or all CSR."""
    if len(parts) == 1:
        return parts[0]
    return scipy.sparse.vstack(parts, format="csr") if scipy.sparse.issparse(parts[0]) else np.concatenate(parts)


def dense(block: Any) -> np.ndarray:
    """Convert a dense or sparse block of rows to a NumPy array."""
    return block.toarray() if scipy.sparse.issparse(block) else np.asarray(block)


def as_block(rows: Any) -> Block:
    """Convert a matrix in memory to an array, or to CSR if it is sparse."""
    if scipy.sparse.issparse(rows):
        return rows if isinstance(rows, scipy.sparse.csr_array) else scipy.sparse.csr_array(rows)
    return np.asarray(rows)


def in_memory(source: Any) -> bool:
    """Check whether rows are an array or a sparse matrix in memory, from which any rows can be selected."""
    return isinstance(source, np.ndarray) or scipy.sparse.issparse(source)


def reads_sparse(source: Rows) -> bool:
    """Check whether the rows of a source are read as CSR."""
    return scipy.sparse.issparse(rows(source, slice(0, 0)))


def alike(block: Any, other: Block) -> Any:
    """Convert a row block to CSR if another one is CSR, otherwise to an array."""
    return as_csr(block) if scipy.sparse.issparse(other) else dense(block)


def canonical(block: Any) -> Any:
    """Sum duplicate entries of CSR and sort its indices, in a copy if necessary; return arrays unchanged."""
    if scipy.sparse.issparse(block) and not block.has_canonical_format:
        block = block.copy()
        block.sum_duplicates()
    return block


def transposed(block: Any) -> Block:
    """Transpose a matrix in memory."""
    return scipy.sparse.csr_array(block.T) if scipy.sparse.issparse(block) else np.ascontiguousarray(block.T)


def stored_values(block: Any) -> np.ndarray:
    """Return the stored entries of a CSR block, or an array unchanged."""
    return block.data if scipy.sparse.issparse(block) else block


def with_stored(block: Any, values: np.ndarray) -> Any:
    """Replace the stored entries of a row block; other entries of CSR remain 0."""
    if scipy.sparse.issparse(block):
        return scipy.sparse.csr_array((values, block.indices, block.indptr), shape=block.shape)
    return values


def stored_rows(block: Any) -> np.ndarray:
    """Return the row index of each entry in `stored_values`; for an array, the indices are a column."""
    if scipy.sparse.issparse(block):
        return np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))
    return np.arange(block.shape[0])[:, None]


def stored_columns(block: Any) -> np.ndarray:
    """Return the column index of each entry in `stored_values`; for an array, the indices are a row."""
    return block.indices if scipy.sparse.issparse(block) else np.arange(block.shape[1])


def column_sums(block: Any, values: np.ndarray) -> np.ndarray:
    """Sum the numbers `values`, one for each entry in `stored_values`, by column."""
    return np.bincount(block.indices, values, block.shape[1]) if scipy.sparse.issparse(block) else values.sum(axis=0)


def first_entry(block: Any, chosen: np.ndarray) -> tuple[int, int, Any]:
    """Return row, column and value of the first entry that a mask over `stored_values` selects."""
    at = int(chosen.argmax())
    if scipy.sparse.issparse(block):
        return int(np.searchsorted(block.indptr, at, side="right")) - 1, int(block.indices[at]), block.data[at]
    row, column = divmod(at, chosen.shape[1])
    return row, column, block[row, column]


def nullable(labels: Any) -> Any:
    """Convert labels to floats, which can be NaN for unknown labels: float32 in CSR, float64 in an array."""
    return labels.astype(np.float32 if scipy.sparse.issparse(labels) else np.float64, copy=False)


def unknown_rows(labels: Any, where: np.ndarray) -> Any:
    """Set the labels of some rows to NaN; return the labels unchanged if `where` is empty."""
    if not len(where):
        return labels
    n, L = labels.shape
    known = np.ones(n, np.float32)
    known[where] = 0
    if not scipy.sparse.issparse(labels):
        return np.where(known[:, None], nullable(labels), np.nan)
    ends = np.cumsum(np.concatenate([[0], np.where(known == 0, L, 0)]))
    gaps = scipy.sparse.csr_array(
        (np.full(ends[-1], np.float32("nan")), np.tile(np.arange(L), len(where)), ends), (n, L)
    )
    found = scipy.sparse.csr_array(scipy.sparse.diags_array(known) @ labels)
    found.eliminate_zeros()
    return found + gaps


def strips(block: Any, size: int) -> list[slice]:
    """Split the rows of an array into slices of at most `size` rows, which fit in the cache; CSR is one slice."""
    return row_blocks(block.shape[0], max(1, block.shape[0]) if scipy.sparse.issparse(block) else size)


def csr_parts(value: Any) -> Any:
    """Convert a sparse matrix to a tuple of its shape and sorted arrays; return other values unchanged."""
    if not scipy.sparse.issparse(value):
        return value
    csr = scipy.sparse.csr_array(value).sorted_indices()
    return "csr", csr.shape, csr.indptr.astype(np.int64), csr.indices.astype(np.int64), csr.data


def array_bytes(source: Rows) -> int:
    """Return the memory that the rows of a source need as an array; 0 if they are read as CSR."""
    return 0 if reads_sparse(source) else math.prod(source.shape) * np.dtype(source.dtype).itemsize


def zeroed_rows(block: Any, kept: np.ndarray) -> Block:
    """Set the rows of a block to 0 where the mask `kept` is False."""
    if scipy.sparse.issparse(block):
        return scipy.sparse.csr_array(scipy.sparse.diags_array(kept.astype(block.dtype)) @ block)
    return np.where(kept[:, None], block, block.dtype.type(0))


def dense_means(block: Any) -> np.ndarray | None:
    """Compute the column means of an array in float64; return None for CSR, which centering would make dense."""
    return None if scipy.sparse.issparse(block) else block.mean(axis=0, dtype=np.float64)


def shifted(block: Any, mean: np.ndarray | None) -> tuple[Any, np.ndarray | None]:
    """Subtract a vector from the rows of an array; for CSR, return the vector, which products must subtract instead."""
    if mean is None or scipy.sparse.issparse(block):
        return block, mean
    return block - mean, None


def scaled_rows(block: Any, factors: np.ndarray) -> Any:
    """Multiply each row by its factor."""
    return with_stored(block, stored_values(block) * factors[stored_rows(block)])


def squared_norms(block: Any) -> np.ndarray:
    """Compute the squared Euclidean norm of every row, summed in float64."""
    if scipy.sparse.issparse(block):
        return np.asarray(block.multiply(block).sum(axis=1), np.float64).ravel()
    out = np.empty(len(block))
    for where in row_blocks(len(block), 4096):
        strip = double(block[where])
        out[where] = np.einsum("ij,ij->i", strip, strip)
    return out


def scatter(block: Any) -> float:
    """Compute the sum of squared distances of rows from their mean."""
    mean, values = np.asarray(block.mean(axis=0, dtype=np.float64)).ravel(), stored_values(block)
    if scipy.sparse.issparse(block):
        return max(0.0, float(np.square(values).sum() - block.shape[0] * (mean @ mean)))
    return float(np.square(values - mean).sum())


def joined_columns(parts: Sequence[Any]) -> Block:
    """Concatenate blocks of the same rows horizontally: as CSR if all are CSR, otherwise as an array."""
    if all(map(scipy.sparse.issparse, parts)):
        return scipy.sparse.csr_array(scipy.sparse.hstack(parts, format="csr"))
    return np.hstack([dense(part) for part in parts])


def as_csr(block: Any) -> scipy.sparse.csr_array:
    """Convert a row block to CSR."""
    return scipy.sparse.csr_array(block) if scipy.sparse.issparse(block) else compressed(block)


def add_to(out: np.ndarray, block: Any) -> None:
    """Add a block to an array in place; for CSR, only the stored entries are added."""
    if scipy.sparse.issparse(block):
        found = scipy.sparse.coo_array(block)
        out[found.coords] += found.data
    else:
        out += block


def centered_rows(block: Any) -> tuple[Any, np.ndarray]:
    """Subtract the mean of each row from its entries; for CSR, return the means, which products must subtract."""
    if scipy.sparse.issparse(block):
        return block, np.asarray(block.mean(axis=1, dtype=np.float64)).ravel()
    centered = block - block.mean(axis=1, dtype=np.float64, keepdims=True)
    centered[np.ptp(block, axis=1) == 0] = 0.0
    return centered, np.zeros(len(block))


def row_ranks(block: Any) -> Any:
    """Rank the entries of each row; for CSR, ranks are shifted so that zeros have rank 0."""
    if not scipy.sparse.issparse(block):
        return np.asarray(scipy.stats.rankdata(block, axis=1))
    ranks = np.empty(block.nnz)
    for first, stop in itertools.pairwise(block.indptr):
        values = block.data[first:stop]
        zeros = block.shape[1] - np.count_nonzero(values)
        rank = scipy.stats.rankdata(values) + (zeros - (values == 0).sum()) * (values > 0)
        ranks[first:stop] = np.where(values == 0, 0.0, rank - (values < 0).sum() - (zeros + 1) / 2)
    return with_stored(block, ranks)


def nonzero_count(block: Any) -> int:
    """Count the nonzero entries of a row block."""
    return int(np.count_nonzero(stored_values(block)))


def is_smaller_sparse(shape: tuple[int, int], stored: int, dtype: Any) -> bool:
    """Return whether CSR format saves a relevant amount of memory compared to a dense array."""
    size, index = np.dtype(dtype).itemsize, 4 if max(stored, *shape) < 1 << 31 else 8
    whole = math.prod(shape) * size
    return whole > _PACKED and stored * (size + index) + (shape[0] + 1) * index < whole


def compressed(values: np.ndarray) -> scipy.sparse.csr_array:
    """Convert an array to CSR, several times as fast as SciPy."""
    values = np.ascontiguousarray(values)
    m, L = values.shape
    places = np.flatnonzero(values != 0)
    edges = np.searchsorted(places, np.arange(0, (m + 1) * L, L)) if L else np.zeros(m + 1, np.intp)
    return scipy.sparse.csr_array((values.ravel()[places], places % max(1, L), edges), shape=(m, L))


def gathered(blocks: Iterable[Any], shape: tuple[int, int], stored: int, dtype: Any) -> Block:
    """Join blocks of rows with `stored` nonzero entries in total to a CSR matrix or an array, whichever is smaller."""
    start = 0
    if not is_smaller_sparse(shape, stored, dtype):
        out = np.empty(shape, dtype)
        for block in blocks:
            out[start : start + block.shape[0]] = dense(block)
            start += block.shape[0]
        return out
    # Stacking all blocks at the end would need twice the memory, so allocate the arrays once.
    index = np.int32 if max(stored, *shape) < 1 << 31 else np.int64
    data, indices, indptr = np.empty(stored, dtype), np.empty(stored, index), np.zeros(shape[0] + 1, index)
    for block in blocks:
        if scipy.sparse.issparse(block):
            part = scipy.sparse.csr_array(block, copy=True)
            part.eliminate_zeros()
        else:
            part = compressed(block)
        first, stop = indptr[start], start + part.shape[0]
        indptr[start + 1 : stop + 1] = first + part.indptr[1:]
        data[first : first + part.nnz], indices[first : first + part.nnz] = part.data, part.indices
        start = stop
    return scipy.sparse.csr_array((data, indices, indptr), shape=shape)


def packed(Y: Any) -> Block:
    """Convert a matrix in memory to CSR or to an array, whichever is smaller."""
    stored = nonzero_count(Y)
    if not is_smaller_sparse(Y.shape, stored, Y.dtype):
        return dense(Y)
    if scipy.sparse.issparse(Y):
        return Y
    return gathered((Y[where] for where in cell_blocks(Y.shape)), Y.shape, stored, Y.dtype)


def cell_blocks(shape: Sequence[int]) -> list[slice]:
    """Split the rows of a matrix into blocks with a limited number of entries."""
    return row_blocks(shape[0], max(1, _CELLS // max(1, shape[1])))


def filled(Y: Any, value: float = 0.0) -> Any:
    """Replace missing values (NaN) of a matrix with `value`; matrices of integers are returned unchanged."""
    if Y.dtype.kind != "f":
        return Y
    values = stored_values(Y)
    return with_stored(Y, np.where(np.isnan(values), value, values))


def known_sums(Y: Block) -> tuple[np.ndarray, np.ndarray, int]:
    """Compute the sum and number of known (not NaN) values of each label, and the number of samples without them."""
    sums, counts, unlabeled = np.zeros(Y.shape[1]), np.full(Y.shape[1], Y.shape[0]), 0
    for where in cell_blocks(Y.shape):
        block: Any = Y[where]
        sums += np.asarray(filled(block).sum(axis=0, dtype=np.float64)).ravel()
        if Y.dtype.kind == "f":
            gaps = with_stored(block, np.isnan(stored_values(block)))
            counts -= np.asarray(gaps.sum(axis=0)).ravel()
            unlabeled += int((np.asarray(gaps.sum(axis=1)).ravel() == Y.shape[1]).sum())
    return sums, counts, unlabeled


def sampled(source: Rows, index: np.ndarray) -> Block:
    """Read the rows at `index` of a source that will be read completely later."""
    # A source with a method `sample` reads only the given rows, and can postpone checks until all rows are read. For
    # any other source, each chunk that contains some of the given rows is read once.
    if isinstance(source, Subset):
        inner = source.index[index]
        order = np.argsort(inner, kind="stable")
        return sampled(source.source, inner[order])[np.argsort(order)]
    if hasattr(source, "sample"):
        return source.sample(index)
    if isinstance(source, np.ndarray):
        return source[index]
    return rows(Subset(source, index))


def rows(source: Rows, where: slice | None = None) -> Block:
    """Read rows of a row source into memory; the result must not be modified, because it can be a view."""
    if where is None and type(source) in (np.ndarray, scipy.sparse.csr_array):
        return source  # `Memory` caches a hash for this object, so do not create another object.
    block = source[slice(None) if where is None else where]
    if hasattr(block, "compute"):
        block = _computed(block)
    return as_block(block)


def numbered(source: Rows) -> tuple[Rows, np.ndarray | None]:
    """Return the innermost source of nested subsets and wrappers, and the indices of the rows that they select."""
    index: np.ndarray | None = None
    while isinstance(source, Subset | RowsOf):
        if isinstance(source, Subset):
            index = np.asarray(source.index) if index is None else source.index[index]
        source = source.source
    return source, index


def entries(source: Rows, down: np.ndarray, across: np.ndarray) -> np.ndarray:
    """Read the entries in the rows `down` and the columns `across`; chunks without such entries are not read."""
    given: Any = source
    first, second, chunks = _span(down), _span(across), getattr(source, "chunks", None)
    by_rows = in_memory(given) or hasattr(given, "compute")
    if by_rows or not chunks:
        block: Any = (given[first] if by_rows else rows(Subset(given, down)))[:, second]
        return dense(_computed(block) if hasattr(block, "compute") else block)
    if isinstance(first, slice) and isinstance(second, slice):
        return np.asarray(given[first, second])
    out = np.empty((len(down), len(across)), source.dtype)
    for here, some in _chunk_runs(down, chunks[0]):
        for there, others in _chunk_runs(across, chunks[1]):
            part = given[some.min() : some.max() + 1, others.min() : others.max() + 1]
            out[np.ix_(here, there)] = part[np.ix_(some - some.min(), others - others.min())]
    return out


def crossed(source: Rows, others: Rows) -> np.ndarray:
    """Read the entries of a kernel matrix for all pairs of samples from two subsets of its rows."""
    (kernel, own), (_, columns) = numbered(source), numbered(others)
    every = np.arange(kernel.shape[1])
    return entries(kernel, every if own is None else own, every if columns is None else columns)


def _span(index: np.ndarray) -> Any:
    """Convert consecutive indices to a slice; return other indices unchanged."""
    if len(index) and (np.diff(index) == 1).all():
        return slice(int(index[0]), int(index[-1]) + 1)
    return index


def _chunk_runs(index: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Group indices by the chunk that contains them; yield the positions and the indices of each group."""
    order = np.argsort(index, kind="stable")
    for places in np.split(order, np.flatnonzero(np.diff(index[order] // size)) + 1):
        yield places, index[places]


def double(block: Any) -> Any:
    """Convert numbers of any type to float64, which represents all values except very large integers exactly."""
    return block.astype(np.float64, copy=False) if scipy.sparse.issparse(block) else np.asarray(block, np.float64)


def _computed(block: Any) -> Any:
    """Compute a Dask array in local threads, or in the current thread of a Dask task.

    An array that is persisted on a cluster is computed there.
    """
    try:
        return block.compute(scheduler="sync" if in_task() else "threads")
    except ValueError as error:
        if "Missing dependency" not in str(error):
            raise
        return block.compute()


def in_task() -> bool:
    """Return whether this code runs in a task on a Dask worker."""
    if "distributed" not in sys.modules:
        return False
    from distributed import get_worker

    try:
        get_worker()
    except ValueError:
        return False
    return True


def iterate(source: Rows, size: int) -> Iterator[tuple[slice, Block]]:
    """Iterate over blocks of `size` rows; yield the slice and the rows of each block."""
    for where in row_blocks(source.shape[0], size):
        yield where, rows(source, where)


def spread(source: Rows, weights: np.ndarray | None = None) -> tuple[float, bool]:
    """Compute the ratio of the largest to the smallest column scale, and whether most entries are 0.

    Only the first rows are used. The scale of a column is its standard deviation, or its size if it is mostly zero.
    """
    block: Any = sampled(source, np.arange(min(_FIRST, source.shape[0])))
    d = block.shape[1]
    w = np.ones(block.shape[0]) if weights is None else weights[: block.shape[0]]
    n = w.sum()
    with np.errstate(invalid="ignore", over="ignore"):
        if scipy.sparse.issparse(block):
            block = scipy.sparse.csc_array(double(block))
            kept = ~np.isnan(block.data) & (block.data != 0)
            data, columns = block.data[kept], np.repeat(np.arange(d), np.diff(block.indptr))[kept]
            own = w[block.indices[kept]]
            known, filled = np.full(d, n), np.bincount(columns, own, d)
            square = np.bincount(columns, own * data**2, d)
            mean = np.bincount(columns, own * data, d) / n
            about = np.bincount(columns, own * (data - mean[columns]) ** 2, d) + (n - filled) * mean**2
        else:
            values = double(block)
            gap, own = np.isnan(values), w[:, None]
            known = (own * ~gap).sum(axis=0)
            known[known == 0] = 1.0
            values = np.where(gap, 0.0, values)
            filled, square = (own * (values != 0)).sum(axis=0), (own * values**2).sum(axis=0)
            mean = (own * values).sum(axis=0) / known
            about = (own * np.where(gap, 0.0, values - mean) ** 2).sum(axis=0)
        deviation = np.sqrt(about / known)
        size = np.where(filled < known * (1 - MOSTLY), np.sqrt(square / np.where(filled > 0, filled, 1.0)), deviation)
        size = size[deviation > rounding(n, mean, deviation)]
    ratio = float(size.max() / size.min()) if size.size else 1.0
    return ratio, bool(filled.sum() < known.sum() * (1 - MOSTLY))


def rounding(n: float, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Compute the standard deviation that floating-point error can cause in a constant column, as in StandardScaler."""
    eps = np.finfo(np.float64).eps
    return np.sqrt(n * eps * deviation**2 + (n * mean * eps) ** 2)


def weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    """Compute the weighted median of values."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    half = reached[-1] / 2
    # Average the first value at which half of the total weight is reached, and the first value at which it is exceeded.
    at = [min(int(np.searchsorted(reached, half, side)), len(order) - 1) for side in ("left", "right")]
    return float(values[order[at]].astype(np.float64).mean())


def spaced_rows(n: int, most: int, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray | None]:
    """Choose at most `most` evenly spaced rows, and return their indices and weights.

    A row with an integer weight is treated as that number of equal rows.
    """
    whole = weights is not None and bool((weights == np.rint(weights)).all())
    count = int(weights.sum()) if weights is not None and whole else n
    index = np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.intp))
    if weights is None or not whole:
        return index, None if weights is None else weights[index]
    return np.unique(np.searchsorted(np.cumsum(weights), index, side="right"), return_counts=True)
