"""Row sources for label matrices: sparse or stored labels, masks of known entries, and weights of entries.

An index into a row source returns a NumPy array, so methods can read blocks of rows as from a matrix.
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
    """Base class of row sources that represent a label matrix and return selected rows as NumPy arrays."""

    __array_ufunc__ = None  # If None, NumPy calls `__rmatmul__` for the product `weights @ labels`.
    ndim = 2
    shape: Any  # numbers of samples and labels
    dtype: Any  # data type of the entries

    def read(self, where: slice | np.ndarray) -> np.ndarray:
        """Read rows, which are selected by a slice or by their indices."""
        raise NotImplementedError

    def __getitem__(self, where: Any) -> np.ndarray:
        if isinstance(where, tuple):  # scikit-learn indexes labels as [rows, ...].
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
        """Select rows without reading other rows; labels in a store are not loaded."""
        parts = {part.name: getattr(self, part.name) for part in fields(self)}  # type: ignore[arg-type]
        tall = {name: picked(part, index) for name, part in parts.items() if len(getattr(part, "shape", ())) == 2}
        return replace(self, **tall)  # type: ignore[type-var]

    def __rmatmul__(self, weights: np.ndarray) -> np.ndarray:
        return np.sum([weights[where] @ self[where] for where in cell_blocks(self.shape)], axis=0)


def picked(part: Any, index: np.ndarray) -> Any:
    """Select rows of an array or of a row source, and return an object of the same kind."""
    if isinstance(part, EntryRows):
        return part.take(index)
    return part[index] if in_memory(part) else Subset(part, index)


def row_parts(labels: Any, index: np.ndarray) -> Block:
    """Read some rows of labels, as a CSR matrix if the labels are sparse."""
    return rows(picked(getattr(labels, "source", labels), index))


def densified(part: Any) -> Any:
    """Convert sparse labels or a label row source to an array; arrays and None are returned unchanged."""
    if scipy.sparse.issparse(part):
        return part.toarray()
    return np.asarray(part) if isinstance(part, EntryRows) else part


def entry_blocks(part: Any) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield row slices of a label matrix with the corresponding blocks, which have a limited number of entries."""
    for where in cell_blocks(part.shape):
        yield where, part[where]


@dataclass(frozen=True, eq=False)
class LabelRows(EntryRows):
    """Labels of 0 and 1 that are sparse or in a store; selected rows are NumPy arrays."""

    source: Rows

    @classmethod
    def of(cls, labels: Any) -> Any:
        """Create a row source from sparse labels; arrays are returned unchanged."""
        return cls(labels) if scipy.sparse.issparse(labels) else labels

    @property
    def shape(self) -> tuple[int, int]:
        return self.source.shape[0], self.source.shape[1]

    @property
    def dtype(self) -> np.dtype:
        return self.source.dtype

    @property
    def chunks(self) -> Any:
        return getattr(self.source, "chunks", None)

    def read(self, where: slice | np.ndarray) -> np.ndarray:
        return dense(rows(self.source, where) if isinstance(where, slice) else row_parts(self, where))

    @cached_property
    def _sums(self) -> np.ndarray:
        kind = np.int64 if self.dtype.kind in "biu" else np.float64
        return np.sum([rows(self.source, where).sum(axis=0, dtype=kind) for where in cell_blocks(self.shape)], axis=0)

    def sum(self, axis: int, dtype: Any) -> np.ndarray:
        """Count the positive samples of each label."""
        return self._sums.astype(dtype)

    def mean(self, axis: int) -> np.ndarray:
        """Compute the fraction of positive samples of each label."""
        return self._sums / len(self)

    def __rmatmul__(self, weights: np.ndarray) -> np.ndarray:
        return np.sum([weights[where] @ rows(self.source, where) for where in cell_blocks(self.shape)], axis=0)


@dataclass(frozen=True, eq=False)
class KnownRows(EntryRows):
    """Mask of the known entries of a label matrix, which stores the positions of unknown entries.

    `missing` is a CSR matrix without stored zeros.
    """

    missing: scipy.sparse.csr_array
    dtype = np.dtype(bool)

    @property
    def shape(self) -> tuple[int, int]:
        return self.missing.shape

    def read(self, where: slice | np.ndarray) -> np.ndarray:
        return ~self.missing[where].toarray()

    def any(self, axis: int) -> np.ndarray:
        """Return which labels (axis 0) or samples (axis 1) have at least one known entry."""
        count = (
            np.bincount(self.missing.indices, minlength=self.shape[1]) if axis == 0 else np.diff(self.missing.indptr)
        )
        return count < self.shape[axis]

    def all(self) -> bool:
        return self.missing.nnz == 0


@dataclass(frozen=True, eq=False)
class ClassCounts(EntryRows):
    """Class weights of the entries of a label matrix: `carried` for positive entries, `lacked` for negative ones."""

    labels: Any
    carried: np.ndarray
    lacked: np.ndarray
    dtype = np.dtype(np.float64)

    @property
    def shape(self) -> tuple[int, int]:
        return self.labels.shape

    def read(self, where: slice | np.ndarray) -> np.ndarray:
        return np.where(self.labels[where] > 0, self.carried, self.lacked)


@dataclass(frozen=True, eq=False)
class ProductRows(EntryRows):
    """Elementwise product of two matrices of equal shape, which is computed when rows are read."""

    first: Any
    second: Any
    dtype = np.dtype(np.float64)

    @property
    def shape(self) -> tuple[int, int]:
        return self.first.shape

    def read(self, where: slice | np.ndarray) -> np.ndarray:
        return np.multiply(self.first[where], self.second[where], dtype=np.float64)
