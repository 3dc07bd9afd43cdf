"""Reader of numeric, logical and sparse matrices in MATLAB files of version 5 (v5, v6, v7) and 7.3.

Files of version 5 are parsed without SciPy, which trusts the sizes inside a file. A damaged file crashes SciPy (with a
segmentation fault or a bus error, also in SciPy 1.17) instead of raising an exception.

Files of version 7.3 are HDF5 files, which are read with h5py. The attribute MATLAB_class of a variable is its class,
MATLAB_sparse is the number of rows of a sparse matrix, and MATLAB_empty marks an empty matrix, whose values are its
dimensions. The elements of a cell array are references to objects in the group #refs# of the file. The reader never
follows links, and never reads values that are stored in other files.

References: MathWorks, MAT-File Format (R2014b), "Level 5 MAT-File Format"; MAT-File Versions.
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse

from dmo.errors import UserError
from dmo.formats.files import DataError, check_memory, existing, first_line, missing_array

if TYPE_CHECKING:
    import h5py


def matlab_variables(path: str | os.PathLike[str]) -> dict[str, tuple[tuple[int, ...], str]]:
    """List the variables of a MATLAB file without reading their values.

    Parameters
    ----------
    path : path-like
        MATLAB file of version 5 (v5, v6, v7) or 7.3. Version 7.3 requires `dmo-learn[matlab]`.

    Returns
    -------
    dict of str to (tuple of int, str)
        Shape and class of each variable by name. A class is a string such as "double", "sparse" or "char". Logical
        arrays have the class "uint8".

    Raises
    ------
    DataError
        If the file is truncated, damaged or of another format. For version 5, the message contains the byte position.
    ImportError
        If the file has version 7.3 and h5py is not installed.

    Examples
    --------
    >>> import numpy as np, scipy.io
    >>> from dmo.datasets import matlab_variables
    >>> scipy.io.savemat("set.mat", {"X": np.ones((3, 2))})
    >>> matlab_variables("set.mat")
    {'X': ((3, 2), 'double')}
    """
    return {name: (variable.shape, variable.kind) for name, variable in _variables(existing(path)).items()}


def read_matlab(
    path: str | os.PathLike[str], names: list[str] | None = None
) -> dict[str, np.ndarray | scipy.sparse.csr_array]:
    """Read numeric matrices from a MATLAB file.

    Parameters
    ----------
    path : path-like
        MATLAB file of version 5 (v5, v6, v7) or 7.3. Version 7.3 requires `dmo-learn[matlab]`.
    names : list of str, default=None
        Names of the variables to read. For example, "X{2}" is the second element of the cell array X. If None, all
        numeric variables outside cell arrays are read.

    Returns
    -------
    dict of str to ndarray or csr_array
        Matrix of each variable by name. A dense matrix has the data type in which the file stores its values; files of
        version 5 use the smallest type that represents all values. Sparse matrices are CSR arrays.

    Raises
    ------
    DataError
        If the file is truncated, damaged or of another format, or if a requested variable is missing, complex or not
        numeric. For a damaged file of version 5, the message contains the byte position.
    ImportError
        If the file has version 7.3 and h5py is not installed.

    Examples
    --------
    >>> import numpy as np, scipy.io
    >>> from dmo.datasets import read_matlab
    >>> scipy.io.savemat("set.mat", {"X": np.ones((3, 2)), "name": "corel"})
    >>> {name: matrix.shape for name, matrix in read_matlab("set.mat").items()}
    {'X': (3, 2)}
    """
    path = existing(path)
    variables = dict(_variables(path))
    for cell in dict.fromkeys(name.partition("{")[0] for name in names or () if name.endswith("}")):
        variables |= {part.name: part for part in _cells(variables.get(cell))}
    found = {}
    for name in [name for name, v in variables.items() if v.kind in NUMERIC] if names is None else names:
        if name not in variables:
            raise missing_array(path, name, variables, "variable")
        if variables[name].kind not in NUMERIC:
            raise DataError(
                f"{path}: variable {name!r} is a {variables[name].kind}, expected a numeric or sparse matrix; choose "
                "another variable"
            )
        found[name] = variables[name].read()
    return found


def matlab_cells(path: str | os.PathLike[str]) -> dict[str, dict[str, tuple[tuple[int, ...], str]]]:
    """Return the shape and class of the elements "X{1}", "X{2}", ... of each cell array X, by name of the array."""
    found = {name: _cells(variable) for name, variable in _variables(existing(path)).items() if variable.kind == "cell"}
    return {name: {part.name: (part.shape, part.kind) for part in parts} for name, parts in found.items()}


def _cells(variable: Any) -> list[Any]:
    return variable.cells() if variable is not None and variable.kind == "cell" else []


def _variables(path: Path) -> Mapping[str, Variable | HdfVariable]:
    return _of_hdf5(path) if is_hdf5(path) else _of_level5(path)


HEADER = 128
MATRIX, COMPRESSED = 14, 15
TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_NUMBERS = ["sparse", "double", "single", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
CLASSES = dict(enumerate(["cell", "struct", "object", "char", *_NUMBERS, "function", "opaque"], 1))
NUMERIC = set(_NUMBERS)
COMPLEX = 0x0800
ENOUGH = 4096
"""Number of bytes that suffice to read the flags, the dimensions and the name of a matrix."""
ROWS_PER_BYTE = 1024
"""Maximum number of rows of a sparse matrix per byte of its data. More rows indicate damaged dimensions."""


class _Parts:
    """Sequential reader of the parts of one matrix in a file of version 5."""

    def __init__(self, data: bytes | memoryview, order: str, where: str):
        self.data, self.order, self.where, self.position = data, order, where, 0

    def fail(self, expected: str) -> DataError:
        return DataError(f"{self.where}, byte {self.position} in it: expected {expected}; the file is damaged")

    def next(self, what: str, allowed: str = "iuf") -> np.ndarray:
        """Read the numbers of the next part; raise DataError if the part is damaged."""
        start, order = self.position, self.order
        if start + 8 > len(self.data):
            raise self.fail(f"{what}, reached the end of the matrix")
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
            raise self.fail(f"{what} of {count} bytes, the matrix has only {len(self.data) - first} more bytes")
        self.position = following
        return np.frombuffer(self.data, dtype, count // dtype.itemsize, first)

    def inner(self) -> memoryview:
        if self.position + 8 > len(self.data):
            raise self.fail("a matrix in the cell array, reached its end")
        kind, count = struct.unpack_from(self.order + "II", self.data, self.position)
        first = self.position + 8
        if kind != MATRIX or first + count > len(self.data):
            raise self.fail(f"a matrix in the cell array, got {count} bytes of type {kind}")
        self.position = first + count
        return memoryview(self.data)[first : first + count]


@dataclass(frozen=True)
class _Matrix:
    """Position, size and encoding of a matrix in a file."""

    path: Path
    position: int
    count: int
    compressed: bool
    order: str

    @property
    def where(self) -> str:
        return f"{self.path}: the {'compressed ' if self.compressed else ''}matrix at byte {self.position}"

    def parts(self, limit: int = 0) -> _Parts:
        """Return a reader for the first `limit` bytes of the decompressed matrix, or for the whole matrix if 0."""
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
            # The size passed to `decompress` must be positive, because 0 means that the size is not limited.
            inner += stream.decompress(stream.unconsumed_tail, max(1, min(limit or count, count)))
            if not limit:  # read to the end of the stream, where zlib verifies the checksum
                inner += stream.decompress(stream.unconsumed_tail, 1)
            if not limit and not stream.eof:
                raise zlib.error("its size differs from the declared size of the matrix")
        except zlib.error as error:
            raise DataError(f"{self.where} cannot be decompressed ({error}); fetch it again") from None
        if kind != MATRIX or (not limit and len(inner) < 8 + count):
            raise DataError(
                f"{self.where} holds {len(inner)} bytes of type {kind}, expected a matrix; the file is damaged"
            )
        return _Parts(inner[8:], self.order, self.where)

    def describe(self, parts: _Parts) -> tuple[str, tuple[int, ...], str, int]:
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
    """Element of a cell array, whose bytes are in memory."""

    data: memoryview

    def parts(self, limit: int = 0) -> _Parts:
        return _Parts(self.data, self.order, self.where)


def _matrices(path: Path) -> Iterator[_Matrix]:
    """Yield the matrices of a file; raise DataError if a matrix extends beyond the end of the file."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        head = file.read(HEADER)
        if len(head) < HEADER or head[126:128] not in (b"IM", b"MI"):
            raise DataError(
                f"{path}: no byte order mark at byte 126, expected the header of a MATLAB version 5 file; fetch it "
                "again, or save it with -v7"
            )
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
                    f"matrix ({COMPRESSED})"
                )
            if position + 8 + count > size:
                raise DataError(
                    f"{path}: ends at byte {size}, expected {count} bytes from byte {position + 8} on; truncated"
                )
            yield _Matrix(path, position, count, kind == COMPRESSED, order)
            position += 8 + count


@dataclass(frozen=True)
class Variable:
    name: str
    shape: tuple[int, ...]
    kind: str
    _matrix: _Matrix

    def read(self) -> np.ndarray | scipy.sparse.csr_array:
        parts = self._matrix.parts()
        _, shape, _, flags = self._matrix.describe(parts)
        if flags & COMPLEX:
            raise DataError(
                f"{self._matrix.path}: variable {self.name!r} contains complex numbers, expected real ones; save "
                "its real and imaginary parts as two variables"
            )
        return _sparse(parts, shape) if self.kind == "sparse" else _dense(parts, shape)

    def cells(self) -> list[Variable]:
        """List the elements NAME{1}, NAME{2}, ... of a cell array."""
        parts, whole, found = self._matrix.parts(), self._matrix, []
        _, shape, _, _ = whole.describe(parts)
        for number in range(1, math.prod(shape) + 1):
            inside = _Inside(whole.path, whole.position, whole.count, whole.compressed, whole.order, parts.inner())
            _, own, kind, _ = inside.describe(inside.parts()) if inside.data else ("", (0, 0), "double", 0)
            found.append(Variable(f"{self.name}{{{number}}}", own, kind, inside))
        return found


def _of_level5(path: Path) -> dict[str, Variable]:
    """Return the variables of a file of version 5 by name, without reading their values."""
    found = {}
    for matrix in _matrices(path):
        name, shape, kind, _ = matrix.describe(matrix.parts(ENOUGH))
        if name:  # a matrix without a name contains internal data of MATLAB
            found[name] = Variable(name, shape, kind, matrix)
    return found


def _dense(parts: _Parts, shape: tuple[int, ...]) -> np.ndarray:
    values = parts.next("values")
    if len(values) != math.prod(shape):
        raise parts.fail(f"{math.prod(shape)} values before it for a matrix of shape {shape}, got {len(values)}")
    return np.ascontiguousarray(values.reshape(shape, order="F"), dtype=values.dtype.newbyteorder("="))


def _sparse(parts: _Parts, shape: tuple[int, ...]) -> scipy.sparse.csr_array:
    if len(shape) != 2:
        raise parts.fail(f"two dimensions for a sparse matrix, got {shape}")
    rows = parts.next("row indices", "iu")
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
    """Convert a sparse matrix in MATLAB's column format to a CSR array; raise the error of `fail` if it is invalid."""
    if shape[0] > ROWS_PER_BYTE * size:
        raise fail(f"fewer than {shape[0]} rows for a matrix of {size} bytes")
    check_memory(where, 8 * shape[0])
    rows, starts = rows.astype(np.int64), starts.astype(np.int64)
    n = int(starts[-1]) if len(starts) else -1
    sound = len(starts) == shape[1] + 1 and starts[0] == 0 and np.all(np.diff(starts) >= 0)
    if not sound or n > min(len(rows), len(values)) or (n > 0 and not 0 <= rows[:n].min() <= rows[:n].max() < shape[0]):
        raise fail(f"row indices below {shape[0]} and {shape[1] + 1} non-decreasing column starts before it")
    values = values[:n].astype(values.dtype.newbyteorder("="))
    matrix = scipy.sparse.csr_array(scipy.sparse.csc_array((values, rows[:n], starts), shape=shape))
    matrix.sum_duplicates()
    return matrix


USERBLOCK = 512
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
MOST_VALUES = 1100
"""Maximum number of bytes of values per byte of the file. MATLAB compresses with deflate, by a factor of up to 1032."""
_CELLS = "#refs#"
"""Name of the HDF5 group that contains the elements of cell arrays."""
_FILTERS = {1: "deflate", 2: "shuffle", 3: "fletcher32"}
"""HDF5 filters that the reader supports. Other filters load plugins, which may produce output of any size."""
_DAMAGED = (OSError, KeyError, RuntimeError, ValueError, TypeError, AttributeError, OverflowError, MemoryError)


def is_hdf5(path: Path) -> bool:
    """Check whether the HDF5 signature is at the beginning of the file or after MATLAB's header."""
    with open(path, "rb") as file:
        head = file.read(USERBLOCK + len(_SIGNATURE))
    return _SIGNATURE in (head[: len(_SIGNATURE)], head[USERBLOCK:])


@dataclass(frozen=True)
class HdfVariable:
    name: str
    shape: tuple[int, ...]
    kind: str
    _path: Path
    _cell: str | None = None

    def read(self) -> np.ndarray | scipy.sparse.csr_array:
        with _opened(self._path) as file:
            node = _child(file, self.name) if self._cell is None else _child(_child(file, _CELLS), self._cell)
            if self.kind == "sparse":
                return self._sparse(node)
            if "MATLAB_empty" in node.attrs:
                return np.zeros(self.shape, self.kind)
            return np.ascontiguousarray(self._values(node).T)

    def cells(self) -> list[HdfVariable]:
        """List the elements NAME{1}, NAME{2}, ... of a cell array."""
        import h5py

        with _opened(self._path) as file:
            node = _child(file, self.name)
            if h5py.check_ref_dtype(node.dtype) is not h5py.Reference or node.external or node.is_virtual:
                raise UserError(f"{self.name!r} is not a cell array of references")
            if node.nbytes > MOST_VALUES * self._path.stat().st_size:
                raise self._damaged("fewer elements in the cell array")
            found, group = [], _child(file, _CELLS)
            for number, reference in enumerate(node[()].ravel(), 1):
                cell = str(file[reference].name).removeprefix(f"/{_CELLS}/")
                about = _described(_child(group, cell))
                found.append(HdfVariable(f"{self.name}{{{number}}}", *about, self._path, cell))
        return found

    def _sparse(self, group: h5py.Group) -> scipy.sparse.csr_array:
        parts = {name: self._values(_child(group, name)) for name in ("ir", "jc", "data") if name in group}
        nothing = np.zeros(0)  # MATLAB does not store empty arrays
        rows, starts, values = (parts.get(name, nothing) for name in ("ir", "jc", "data"))
        size = sum(part.nbytes for part in parts.values())
        return checked_csr(self.shape, rows, starts, values, size, f"{self._path}::{self.name}", self._damaged)

    def _values(self, dataset: h5py.Dataset) -> np.ndarray:
        if dataset.dtype.names == ("real", "imag"):
            raise DataError(
                f"{self._path}: variable {self.name!r} contains complex numbers, expected real ones; save its real and "
                "imaginary parts as two variables"
            )
        if dataset.dtype.kind not in "iuf":
            raise self._damaged(f"numbers, got {dataset.dtype}")
        if dataset.external or dataset.is_virtual:
            raise self._damaged("values in this file, got a reference to another file")
        plan = dataset.id.get_create_plist()
        filters = [plan.get_filter(i)[0] for i in range(plan.get_nfilters())]
        if not set(filters) <= set(_FILTERS) or len(set(filters)) < len(filters):
            named = ", ".join(_FILTERS.get(code, f"number {code}") for code in filters)
            raise DataError(
                f"{self._path}: variable {self.name!r} is stored with the filters {named}, expected each of "
                f"{', '.join(_FILTERS.values())} at most once; save it again with MATLAB's -v7.3"
            )
        size = self._path.stat().st_size
        chunk = math.prod(dataset.chunks or ()) * dataset.dtype.itemsize  # HDF5 decompresses whole chunks
        most = max(dataset.nbytes, chunk)
        if most > MOST_VALUES * size:
            raise self._damaged(f"at most {MOST_VALUES * size} bytes of values in a file of {size} bytes, got {most}")
        check_memory(f"{self._path}::{self.name}", dataset.nbytes)
        return np.asarray(dataset[()], dtype=dataset.dtype.newbyteorder("="))

    def _damaged(self, expected: str) -> DataError:
        return DataError(f"{self._path}: variable {self.name!r}: expected {expected}; the file is damaged")


def _of_hdf5(path: Path) -> dict[str, HdfVariable]:
    """Return the variables of a file of version 7.3 by name, without reading their values."""
    with _opened(path) as file:
        # Groups whose names start with # contain internal data of MATLAB and the elements of cell arrays.
        names = [name for name in file if not name.startswith("#")]
        return {name: HdfVariable(name, *_described(_child(file, name)), path) for name in names}


def _described(node: h5py.Dataset | h5py.Group) -> tuple[tuple[int, ...], str]:
    """Read the shape and the class of a variable. An HDF5 file contains the dimensions in reverse order."""
    kind = bytes(node.attrs["MATLAB_class"]).decode("latin-1").replace("logical", "uint8")
    if "MATLAB_sparse" in node.attrs:
        return (int(node.attrs["MATLAB_sparse"]), len(_child(node, "jc")) - 1), "sparse"
    if kind not in NUMERIC:
        return (), kind
    if "MATLAB_empty" in node.attrs:
        if node.chunks or node.external or node.is_virtual:  # MATLAB never stores this shape in chunks
            raise UserError("the shape of an empty matrix is chunked or stored in another file")
        shape = tuple(int(d) for d in node[:32])
        if math.prod(shape):
            raise UserError(f"an empty matrix of shape {shape}")
        return shape, kind
    return node.shape[::-1], kind


def _child(group: h5py.Group, name: str) -> Any:
    """Return the object with this name in a group; raise UserError if it is a link to another object or file."""
    import h5py

    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise UserError(f"{name!r} is missing, or a link to another file")
    return group[name]


@contextmanager
def _opened(path: Path) -> Iterator[h5py.File]:
    try:
        import h5py
    except ImportError as error:
        raise ImportError(
            f"{path}: MATLAB 7.3 files need h5py, which is not installed; run: pip install dmo-learn[matlab], or save "
            "with -v7"
        ) from error
    try:
        with h5py.File(path, "r") as file:
            yield file
    except DataError:
        raise
    except _DAMAGED as error:
        raise DataError(f"{path}: is not a complete MATLAB 7.3 file ({first_line(error)}); fetch it again") from None
