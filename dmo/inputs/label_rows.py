"""Row sources for label matrices: sparse or stored labels, masks of known entries, and entry weights.

Indexing such a source returns a NumPy array, so that methods read blocks of it like blocks of a matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import scipy.sparse

from dmo.blocks import Block, ByRows, Rows, Subset, cell_blocks, dense, in_memory, rows


class EntryRows(ByRows):
    """Base class of row sources that describe a label matrix; selected rows are NumPy arrays."""

    __array_ufunc__ = None  # makes NumPy use `__rmatmul__` for `weights @ labels`
    ndim = 2
    shape: Any  # (n, L)
    dtype: Any  # data type of the entries

    def read(self, where: slice | np.ndarray) -> np.ndarray:
        """Read the rows of a slice, or rows by their indices."""
        raise NotImplementedError

    def __getitem__(self, where: Any) -> np.ndarray:
        if isinstance(where, tuple):  # scikit-learn indexes with [rows, ...]
            return self[where[0]][(slice(None), *where[1:])]
        if isinstance(where, slice):
            return self.read(where)
        index = np.asarray(where)
        if index.ndim == 0:
            return self[index[None]][0]
        return self.read(np.flatnonzero(index) if index.dtype == bool else index)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.read(slice(None)), dtype)

    def take(self, index: np.ndarray) -> Self:
        """Select rows without reading the others; stored rows stay in the store."""
        parts = {part.name: getattr(self, part.name) for part in fields(self)}  # type: ignore[arg-type]
        tall = {name: picked(part, index) for name, part in parts.items() if len(getattr(part, "shape", ())) == 2}
        return replace(self, **tall)  # type: ignore[type-var]

    def __rmatmul__(self, weights: np.ndarray) -> np.ndarray:
        return np.sum([weights[where] @ self[where] for where in cell_blocks(self.shape)], axis=0)


def picked(part: Any, index: np.ndarray) -> Any:
    """Select rows of an array or a row source without changing its type."""
    if isinstance(part, EntryRows):
        return part.take(index)
    return part[index] if in_memory(part) else Subset(part, index)


def row_parts(labels: Any, index: np.ndarray) -> Block:
    """Read rows of labels; sparse labels are returned as CSR."""
    return rows(picked(getattr(labels, "source", labels), index))


def densified(part: Any) -> Any:
    """Convert sparse labels or a label row source to an array; return None and arrays unchanged."""
    if scipy.sparse.issparse(part):
        return part.toarray()
    return np.asarray(part) if isinstance(part, EntryRows) else part


def entry_blocks(part: Any) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield slices of rows with the matching blocks of a label matrix, each with a bounded number of entries."""
    for where in cell_blocks(part.shape):
        yield where, part[where]


@dataclass(frozen=True, eq=False)
class LabelRows(EntryRows):
    """Labels of 0 and 1 that are sparse or in a store (`source`); indexing returns arrays.

    source (n, L)
    """

    source: Rows

    @classmethod
    def of(cls, labels: Any) -> Any:
        """Create label rows from sparse labels; return arrays unchanged."""
        return cls(labels) if scipy.sparse.issparse(labels) else labels

    @property
    def shape(self) -> tuple[int, int]:
        """(n, L)."""
        return self.source.shape[0], self.source.shape[1]

    @property
    def dtype(self) -> np.dtype:
        """Data type of the source."""
        return self.source.dtype

    @property
    def chunks(self) -> Any:
        """Chunks of the source, or None."""
        return getattr(self.source, "chunks", None)

    def read(self, where: slice | np.ndarray) -> np.ndarray:
        """Read rows as an array."""
        return dense(rows(self.source, where) if isinstance(where, slice) else row_parts(self, where))

    @cached_property
    def _sums(self) -> np.ndarray:
        kind = np.int64 if self.dtype.kind in "biu" else np.float64
        return np.sum([rows(self.source, where).sum(axis=0, dtype=kind) for where in cell_blocks(self.shape)], axis=0)

    def sum(self, axis: int, dtype: Any) -> np.ndarray:
        """Count the samples of every label.

        -> (L,)
        """
        return self._sums.astype(dtype)

    def mean(self, axis: int) -> np.ndarray:
        """Compute the fraction of the samples that carry every label.

        -> (L,)
        """
        return self._sums / len(self)

    def __rmatmul__(self, weights: np.ndarray) -> np.ndarray:
        return np.sum([weights[where] @ rows(self.source, where) for where in cell_blocks(self.shape)], axis=0)


@dataclass(frozen=True, eq=False)
class KnownRows(EntryRows):
    """Mask of the known entries of a label matrix, stored as the sparse matrix of unknown entries.

    missing (n, L), CSR without stored zeros
    """

    missing: scipy.sparse.csr_array
    dtype = np.dtype(bool)

    @property
    def shape(self) -> tuple[int, int]:
        """(n, L)."""
        return self.missing.shape

    def read(self, where: slice | np.ndarray) -> np.ndarray:
        """Read rows as an array of bool."""
        return ~self.missing[where].toarray()

    def any(self, axis: int) -> np.ndarray:
        """Find the labels (axis 0) or samples (axis 1) with a known entry."""
        count = (
            np.bincount(self.missing.indices, minlength=self.shape[1]) if axis == 0 else np.diff(self.missing.indptr)
        )
        return count < self.shape[axis]

    def all(self) -> bool:
        """Whether every entry is known."""
        return self.missing.nnz == 0


@dataclass(frozen=True, eq=False)
class ClassCounts(EntryRows):
    """Class weights of the entries of a label matrix: `carried` for positives, `lacked` for negatives.

    labels (n, L); carried, lacked (L,)
    """

    labels: Any
    carried: np.ndarray
    lacked: np.ndarray
    dtype = np.dtype(np.float64)

    @property
    def shape(self) -> tuple[int, int]:
        """(n, L)."""
        return self.labels.shape

    def read(self, where: slice | np.ndarray) -> np.ndarray:
        """Compute the weights of rows."""
        return np.where(self.labels[where] > 0, self.carried, self.lacked)


@dataclass(frozen=True, eq=False)
class ProductRows(EntryRows):
    """Elementwise product of two matrices, computed when rows are read.

    first, second (n, L)
    """

    first: Any
    second: Any
    dtype = np.dtype(np.float64)

    @property
    def shape(self) -> tuple[int, int]:
        """(n, L)."""
        return self.first.shape

    def read(self, where: slice | np.ndarray) -> np.ndarray:
        """Multiply the entries of rows."""
        return np.multiply(self.first[where], self.second[where], dtype=np.float64)
