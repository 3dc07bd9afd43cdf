"""MATLAB version 5 files (v5, v6, v7): numeric, logical and sparse matrices, alone and in cells.

Source: MathWorks, MAT-File Format (R2014b), "Level 5 MAT-File Format". A reader of its own because SciPy's trusts the
counts inside a file: a damaged one ends the process (segmentation fault or bus error, in SciPy 1.17 too) instead of
raising an error.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse

from dmo.formats.files import DataError, check_memory

HEADER = 128
MATRIX, COMPRESSED = 14, 15
TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
CLASSES = {
    **{1: "cell", 2: "struct", 3: "object", 4: "char", 5: "sparse", 6: "double", 7: "single"},
    **{8: "int8", 9: "uint8", 10: "int16", 11: "uint16", 12: "int32", 13: "uint32", 14: "int64", 15: "uint64"},
    **{16: "function", 17: "opaque"},
}
NUMERIC = {kind for code, kind in CLASSES.items() if 5 <= code <= 15}
COMPLEX = 0x0800
ENOUGH = 4096
"""Bytes that hold the flags, dimensions and name of any matrix of a few dimensions."""
ROWS_PER_BYTE = 1024
"""Rows of a sparse matrix per byte that it takes in the file, above which its dimensions are taken as damaged."""


class _Parts:
    """The parts of one matrix, read one after the other from its bytes; DataError where one runs over their end."""

    def __init__(self, data: bytes | memoryview, order: str, where: str):
        self.data, self.order, self.where, self.position = data, order, where, 0

    def fail(self, expected: str) -> DataError:
        return DataError(f"{self.where}, byte {self.position} in it: expected {expected}; the file is damaged")

    def next(self, what: str, allowed: str = "iuf") -> np.ndarray:
        """The numbers of the next part; `allowed`: kinds of number that `what` may have."""
        start, order = self.position, self.order
        if start + 8 > len(self.data):
            raise self.fail(f"{what}, the matrix ends")
        kind, count = struct.unpack_from(order + "II", self.data, start)
        small = kind >> 16
        if small:
            kind, count, first, following = kind & 0xFFFF, small, start + 4, start + 8
        else:
            first = start + 8
            following = first + count + -count % 8
        dtype = np.dtype(order + TYPES[kind]) if kind in TYPES else None
        if dtype is None or dtype.kind not in allowed or count % dtype.itemsize or (small and count > 4):
            raise self.fail(f"{what}, got {count} bytes of type {kind}")
        if first + count > len(self.data):
            raise self.fail(f"{what} of {count} bytes, the matrix has {len(self.data) - first} more")
        self.position = following
        return np.frombuffer(self.data, dtype, count // dtype.itemsize, first)

    def inner(self) -> memoryview:
        """The bytes of the next part, a matrix in a cell."""
        if self.position + 8 > len(self.data):
            raise self.fail("a matrix of a cell, the cell ends")
        kind, count = struct.unpack_from(self.order + "II", self.data, self.position)
        first = self.position + 8
        if kind != MATRIX or first + count > len(self.data):
            raise self.fail(f"a matrix of a cell, got {count} bytes of type {kind}")
        self.position = first + count
        return memoryview(self.data)[first : first + count]


@dataclass(frozen=True)
class _Matrix:
    """Where a matrix lies in a file, and what it is."""

    path: Path
    position: int
    count: int
    compressed: bool
    order: str

    @property
    def where(self) -> str:
        return f"{self.path}: the {'compressed ' if self.compressed else ''}matrix at byte {self.position}"

    def parts(self, limit: int = 0) -> _Parts:
        """Its (first `limit`) bytes, decompressed."""
        with open(self.path, "rb") as file:
            file.seek(self.position + 8)
            data = file.read(min(2 * limit, self.count) if limit else self.count)
        if not self.compressed:
            return _Parts(data, self.order, self.where)
        try:
            stream = zlib.decompressobj()
            inner = stream.decompress(data, 8)
            kind, count = struct.unpack(self.order + "II", inner) if len(inner) == 8 else (0, 0)
            if not limit:
                check_memory(self.where, count)
            inner += stream.decompress(stream.unconsumed_tail, max(1, min(limit or count, count)))  # 0 means no limit
            if not limit:  # to the end, where the checksum of the values is
                inner += stream.decompress(stream.unconsumed_tail, 1)
            if not limit and not stream.eof:
                raise zlib.error("it holds more or less than its matrix")
        except zlib.error as error:
            raise DataError(f"{self.where} cannot be decompressed ({error}); fetch it again") from None
        if kind != MATRIX or (not limit and len(inner) < 8 + count):
            raise DataError(
                f"{self.where} holds {len(inner)} bytes of type {kind}, expected a matrix; the file is damaged"
            )
        return _Parts(inner[8:], self.order, self.where)

    def describe(self, parts: _Parts) -> tuple[str, tuple[int, ...], str, int]:
        """Name, shape, class and flags, from the first parts."""
        words = parts.next("array flags", "u")
        if len(words) != 2:
            raise parts.fail("two words of array flags")
        flags = int(words[0])
        shape = () if CLASSES.get(flags & 0xFF) == "opaque" else tuple(int(d) for d in parts.next("dimensions", "i"))
        name = parts.next("a name", "i").tobytes().decode("latin-1")
        if flags & 0xFF not in CLASSES or any(d < 0 for d in shape):
            raise parts.fail(f"a class from 1 to 17 and dimensions, got {flags & 0xFF} and {shape}")
        return name, shape, CLASSES[flags & 0xFF], flags


@dataclass(frozen=True)
class _Inside(_Matrix):
    """A matrix in a cell, whose bytes are in memory."""

    data: memoryview

    def parts(self, limit: int = 0) -> _Parts:
        return _Parts(self.data, self.order, self.where)


def _matrices(path: Path) -> Iterator[_Matrix]:
    """The matrices of a file; every one lies within it."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        head = file.read(HEADER)
        if len(head) < HEADER or head[126:128] not in (b"IM", b"MI"):
            raise DataError(f"{path}: no byte order mark at byte 126, expected the header of a MATLAB version 5 file")
        order = "<" if head[126:128] == b"IM" else ">"
        position = HEADER
        while position < size:
            file.seek(position)
            tag = file.read(8)
            if len(tag) < 8:
                raise DataError(
                    f"{path}: ends at byte {size}, expected an 8-byte tag from byte {position} on; truncated"
                )
            kind, count = struct.unpack(order + "II", tag)
            if kind not in (MATRIX, COMPRESSED):
                raise DataError(
                    f"{path}: element of type {kind} at byte {position}, expected a matrix ({MATRIX}) or a compressed "
                    f"one ({COMPRESSED})"
                )
            if position + 8 + count > size:
                raise DataError(
                    f"{path}: ends at byte {size}, expected {count} bytes from byte {position + 8} on; truncated"
                )
            yield _Matrix(path, position, count, kind == COMPRESSED, order)
            position += 8 + count


@dataclass(frozen=True)
class Variable:
    """A variable of a file: its `name`, `shape` and class (`kind`)."""

    name: str
    shape: tuple[int, ...]
    kind: str
    _matrix: _Matrix

    def read(self) -> np.ndarray | scipy.sparse.csr_array:
        """Its values."""
        parts = self._matrix.parts()
        _, shape, _, flags = self._matrix.describe(parts)
        if flags & COMPLEX:
            raise DataError(f"{self._matrix.path}: variable {self.name!r} holds complex numbers, expected real ones")
        return _sparse(parts, shape) if self.kind == "sparse" else _dense(parts, shape)

    def cells(self) -> list[Variable]:
        """What a cell holds, in MATLAB's order: NAME{1}, NAME{2}, ..."""
        parts, whole, found = self._matrix.parts(), self._matrix, []
        _, shape, _, _ = whole.describe(parts)
        for number in range(1, math.prod(shape) + 1):
            inside = _Inside(whole.path, whole.position, whole.count, whole.compressed, whole.order, parts.inner())
            _, own, kind, _ = inside.describe(inside.parts()) if inside.data else ("", (0, 0), "double", 0)
            found.append(Variable(f"{self.name}{{{number}}}", own, kind, inside))
        return found


def variables(path: Path) -> dict[str, Variable]:
    """The variables of a file by name; reads no values."""
    found = {}
    for matrix in _matrices(path):
        name, shape, kind, _ = matrix.describe(matrix.parts(ENOUGH))
        if name:  # without a name: MATLAB's own data about objects
            found[name] = Variable(name, shape, kind, matrix)
    return found


def _dense(parts: _Parts, shape: tuple[int, ...]) -> np.ndarray:
    values = parts.next("values")
    if len(values) != math.prod(shape):
        raise parts.fail(f"{math.prod(shape)} values of a matrix {shape} before it, got {len(values)}")
    return np.ascontiguousarray(values.reshape(shape, order="F"), dtype=values.dtype.newbyteorder("="))


def _sparse(parts: _Parts, shape: tuple[int, ...]) -> scipy.sparse.csr_array:
    if len(shape) != 2:
        raise parts.fail(f"two dimensions of a sparse matrix, got {shape}")
    rows = parts.next("row numbers", "iu")
    starts = parts.next("column starts", "iu")
    return checked_csr(shape, rows, starts, parts.next("values"), len(parts.data), parts.where, parts.fail)


def checked_csr(
    shape: tuple[int, ...],
    rows: np.ndarray,
    starts: np.ndarray,
    values: np.ndarray,
    size: int,
    where: str,
    fail: Callable[[str], DataError],
) -> scipy.sparse.csr_array:
    """The CSR matrix of MATLAB's compressed columns, which take `size` bytes; the error of `fail` where they do not fit."""
    if shape[0] > ROWS_PER_BYTE * size:
        raise fail(f"a matrix of {size} bytes to have fewer than {shape[0]} rows")
    check_memory(where, 8 * shape[0])
    rows, starts = rows.astype(np.int64), starts.astype(np.int64)
    n = int(starts[-1]) if len(starts) else -1
    sound = len(starts) == shape[1] + 1 and starts[0] == 0 and np.all(np.diff(starts) >= 0)
    if not sound or n > min(len(rows), len(values)) or (n > 0 and not 0 <= rows[:n].min() <= rows[:n].max() < shape[0]):
        raise fail(f"row numbers below {shape[0]} and {shape[1] + 1} rising column starts before it")
    values = values[:n].astype(values.dtype.newbyteorder("="))
    matrix = scipy.sparse.csr_array(scipy.sparse.csc_array((values, rows[:n], starts), shape=shape))
    matrix.sum_duplicates()
    return matrix
