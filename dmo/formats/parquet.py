"""Array-like objects that read numeric columns or a vector column of a Parquet file when they are sliced."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from dmo.blocks import ByRows
from dmo.errors import UserError
from dmo.formats.files import DataError, existing, first_line, missing_array

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

_BATCH = 8 << 20
"""Number of bytes of the values that are decoded together."""


@contextmanager
def by_pyarrow(path: str | os.PathLike[str], kind: str) -> Iterator[None]:
    """Convert errors of pyarrow within a `with` block to a DataError."""
    try:
        yield
    except (MemoryError, UserError, FileNotFoundError):
        raise
    except Exception as error:  # pyarrow raises many types of exceptions
        raise DataError(f"{path}: cannot be read as {kind} ({first_line(error)}); fetch it again") from None


def open_parquet(path: str | os.PathLike[str]) -> ParquetFile:
    """Open a local Parquet file as a memory map, or a Parquet file at a URL with fsspec."""
    from pyarrow.parquet import ParquetFile

    with by_pyarrow(path, "Parquet"):
        if "://" not in os.fspath(path):
            return ParquetFile(existing(path), memory_map=True)
        import fsspec

        return ParquetFile(fsspec.open(os.fspath(path)).open(), buffer_size=_BATCH)


def top_columns(file: ParquetFile) -> list[str]:
    """Return the name of the table column to which each physical column of the file belongs."""
    names, found = dict.fromkeys(file.schema_arrow.names), []
    for j in range(file.metadata.num_columns):
        path = file.metadata.schema.column(j).path
        found.append(path if path in names else next(name for name in names if path.startswith(f"{name}.")))
    return found


def vector_columns(file: ParquetFile) -> list[str]:
    """List the columns that contain vectors of floats, or vectors of integers without missing values."""
    found, tops = [], top_columns(file)
    for field in file.schema_arrow:
        if (inner := _value_type(field.type)) is not None:
            column = tops.index(field.name)
            chunks = [file.metadata.row_group(i).column(column) for i in range(file.num_row_groups)]
            whole = all(chunk.statistics is not None and chunk.statistics.null_count == 0 for chunk in chunks)
            found += [field.name] if inner.kind == "f" or whole else []
    return found


def _value_type(kind: pa.DataType) -> np.dtype | None:
    """Return the dtype of the vectors in a column, or None if the column does not contain vectors."""
    import pyarrow.types as types

    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if not lists or not (types.is_integer(kind.value_type) or types.is_floating(kind.value_type)):
        return None
    return np.dtype(kind.value_type.to_pandas_dtype())


def number_columns(path: str | os.PathLike[str]) -> dict[str, np.dtype]:
    """Return the dtypes of the numeric and boolean columns by name, without the index of a pandas DataFrame."""
    import pyarrow.types as types

    file = open_parquet(path)
    schema = file.schema_arrow
    index = (schema.pandas_metadata or {}).get("index_columns", [])
    found = {}
    for field in schema:
        real = types.is_floating(field.type) or types.is_integer(field.type) or types.is_boolean(field.type)
        if real and field.name not in index and schema.names.count(field.name) == 1:
            found[field.name] = np.dtype(field.type.to_pandas_dtype())
    return found


class _ParquetRows(ByRows):
    """Base class of array-like objects that read columns of a Parquet file.

    Each thread keeps one batch of decoded rows in memory. Slices in ascending order decode every row group once.
    """

    shape: tuple[int, int]
    dtype: np.dtype

    def __init__(self, path: str | os.PathLike[str], names: Sequence[str], where: str, file: ParquetFile):
        self._path, self._names, self._where, self._own = path, list(names), where, threading.local()
        counts = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        self._ends, self._most = np.cumsum([0, *counts]), max(counts, default=0)

    @property
    def largest(self) -> int:
        """Size in bytes of the largest row group after decoding."""
        return self._most * self.shape[1] * self.dtype.itemsize

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_own"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _own=threading.local())

    def __getitem__(self, where: slice) -> np.ndarray:
        begin, stop, step = where.indices(self.shape[0])
        out = np.empty((max(stop - begin, 0), self.shape[1]), self.dtype)
        done = begin
        while done < stop:
            first, block = self._block(done)
            part = block[done - first : stop - first]
            out[done - begin : done - begin + len(part)] = part
            done += len(part)
        return out[::step]

    def _block(self, row: int) -> tuple[int, np.ndarray]:
        """Return the decoded batch that contains a row, and the index of the first row in the batch."""
        own = self._own
        first, block = getattr(own, "block", (0, np.empty((0, 0))))
        group = int(np.searchsorted(self._ends, row, side="right")) - 1
        # Start a new iterator over batches if the row precedes the batch or belongs to a later row group.
        if len(block) == 0 or row < first or self._ends[group] > first + len(block):
            own.batches, first, block = self._batches(group), int(self._ends[group]), block[:0]
        while row >= first + len(block):
            found = next(own.batches, None)
            if found is None:
                raise DataError(f"{self._where}: ends after row {first + len(block)}, expected {self.shape[0]} rows")
            first, block = first + len(block), found
            own.block = first, block
        return first, block

    def _batches(self, group: int) -> Iterator[np.ndarray]:
        """Decode the rows of the file batch by batch, starting with a row group."""
        file, first = open_parquet(self._path), int(self._ends[group])
        size = max(1, _BATCH // max(1, self.shape[1] * self.dtype.itemsize))
        groups = range(group, file.num_row_groups)
        with by_pyarrow(self._where, "Parquet"):
            for batch in file.iter_batches(size, row_groups=list(groups), columns=self._names, use_threads=False):
                block = self._numbers(batch, first)
                first += len(block)
                yield block

    def _numbers(self, batch: pa.RecordBatch, first: int) -> np.ndarray:
        """Convert a batch to an array. The row number `first` of its first row is used in error messages."""
        raise NotImplementedError


class ParquetNumbers(_ParquetRows):
    """Array-like for the numeric columns of a Parquet file. Missing values become NaN."""

    def __init__(self, path: str | os.PathLike[str], columns: Sequence[str], dtype: np.dtype):
        file = open_parquet(path)
        super().__init__(path, columns, f"{path}", file)
        self.columns, self.dtype, self.shape = list(columns), dtype, (file.metadata.num_rows, len(columns))

    def _numbers(self, batch: pa.RecordBatch, first: int) -> np.ndarray:
        import pyarrow.compute as pc
        import pyarrow.types as types

        out = np.empty((len(batch), len(self.columns)), self.dtype)
        for j, name in enumerate(self.columns):
            cells = batch.column(batch.schema.get_field_index(name))
            if not types.is_floating(cells.type):  # only floats can represent missing values (NaN)
                cells = pc.cast(cells.cast("uint8") if types.is_boolean(cells.type) else cells, "float64", safe=False)
            out[:, j] = cells.to_numpy(zero_copy_only=False)
        return out


class ParquetVectors(_ParquetRows):
    """Array-like for a column of vectors in a Parquet file. A missing vector becomes a row of NaN."""

    def __init__(self, path: str | os.PathLike[str], column: str):
        file = open_parquet(path)
        super().__init__(path, [column], f"{path}::{column}", file)
        names = file.schema_arrow.names
        if column not in names:
            raise missing_array(path, column, names, "column")
        kind = file.schema_arrow.field(column).type
        dtype = _value_type(kind)
        if dtype is None:
            raise DataError(f"{self._where}: is of type {kind}, expected lists of numbers")
        self.dtype, self.shape = dtype, (file.metadata.num_rows, self._width(file, kind))

    def _width(self, file: ParquetFile, kind: pa.DataType) -> int:
        if hasattr(kind, "list_size"):
            return int(kind.list_size)
        with by_pyarrow(self._path, "Parquet"):
            for batch in file.iter_batches(16, columns=self._names):
                lengths = np.diff(np.asarray(batch.column(0).offsets))[np.asarray(batch.column(0).is_valid())]
                if len(lengths):
                    return int(lengths[0])
        return 0

    def _numbers(self, batch: pa.RecordBatch, first: int) -> np.ndarray:
        cells: Any = batch.column(0)
        d, present = self.shape[1], np.asarray(cells.is_valid())
        if not hasattr(cells.type, "list_size"):
            wrong = np.flatnonzero(present & (np.diff(np.asarray(cells.offsets)) != d))
            if len(wrong):
                length = len(cells[int(wrong[0])])
                raise DataError(f"{self._where}: row {first + wrong[0]} has {length} values, expected {d} in every row")
        numbers = cells.flatten()
        if self.dtype.kind != "f" and (numbers.null_count or not present.all()):
            raise DataError(f"{self._where}: integer vectors have missing values; write the vectors as floats")
        values = numbers.to_numpy(zero_copy_only=False).astype(self.dtype, copy=False).reshape(-1, d)
        if present.all():
            return values
        found = np.full((len(cells), d), np.nan, self.dtype)
        found[present] = values
        return found
