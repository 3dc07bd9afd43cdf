"""MATLAB version 7.3 files, which are HDF5: numeric, logical and sparse matrices, alone and in cells, through h5py.

Source: MathWorks, MAT-File Versions; the attributes MATLAB_class, MATLAB_sparse (number of rows) and MATLAB_empty (the
values are the dimensions). What HDF5 offers beyond values in this one file (links and data in other files, virtual data
sets, references to regions) is never followed; a cell refers to what lies in the group #refs# of its own file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse

from dmo.errors import UserError
from dmo.formats.files import DataError, check_memory
from dmo.formats.matlab5 import NUMERIC, checked_csr

if TYPE_CHECKING:
    import h5py

HEADER = 512
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
MOST_VALUES = 1100
"""Bytes of values per byte of the file: deflate, the one compression that MATLAB writes, reaches 1032."""
_CELLS = "#refs#"
"""The group that holds what is in cells."""
_FILTERS = {1: "deflate", 2: "shuffle", 3: "fletcher32"}
"""Of HDF5 itself; others it looks for among the plugins of the machine, and what they unpack has no bound."""
_DAMAGED = (OSError, KeyError, RuntimeError, ValueError, TypeError, AttributeError, OverflowError, MemoryError)


def is_hdf5(path: Path) -> bool:
    """Whether HDF5 begins after the header that MATLAB writes, or at once. The header's text does not say it: it names
    the version of MATLAB, 7.0 and 7.3 alike."""
    with open(path, "rb") as file:
        head = file.read(HEADER + len(_SIGNATURE))
    return _SIGNATURE in (head[: len(_SIGNATURE)], head[HEADER:])


@dataclass(frozen=True)
class Variable:
    """A variable of a file: its `name`, `shape` and class (`kind`)."""

    name: str
    shape: tuple[int, ...]
    kind: str
    _path: Path
    _cell: str | None = None

    def read(self) -> np.ndarray | scipy.sparse.csr_array:
        """Its values."""
        with _opened(self._path) as file:
            node = _child(file, self.name) if self._cell is None else _child(_child(file, _CELLS), self._cell)
            if self.kind == "sparse":
                return self._sparse(node)
            if "MATLAB_empty" in node.attrs:
                return np.zeros(self.shape, self.kind)
            return np.ascontiguousarray(self._values(node).T)

    def cells(self) -> list[Variable]:
        """What a cell holds, in MATLAB's order: NAME{1}, NAME{2}, ..."""
        import h5py

        with _opened(self._path) as file:
            node = _child(file, self.name)
            if h5py.check_ref_dtype(node.dtype) is not h5py.Reference or node.external or node.is_virtual:
                raise UserError(f"{self.name!r} is no cell of references")
            if node.nbytes > MOST_VALUES * self._path.stat().st_size:
                raise self._damaged("fewer matrices in a cell")
            found, group = [], _child(file, _CELLS)
            for number, reference in enumerate(node[()].ravel(), 1):
                cell = str(file[reference].name).removeprefix(f"/{_CELLS}/")
                about = _described(_child(group, cell))
                found.append(Variable(f"{self.name}{{{number}}}", *about, self._path, cell))
        return found

    def _sparse(self, group: h5py.Group) -> scipy.sparse.csr_array:
        parts = {name: self._values(_child(group, name)) for name in ("ir", "jc", "data") if name in group}
        nothing = np.zeros(0)  # MATLAB leaves out what is empty
        rows, starts, values = (parts.get(name, nothing) for name in ("ir", "jc", "data"))
        size = sum(part.nbytes for part in parts.values())
        return checked_csr(self.shape, rows, starts, values, size, f"{self._path}::{self.name}", self._damaged)

    def _values(self, dataset: h5py.Dataset) -> np.ndarray:
        if dataset.dtype.names == ("real", "imag"):
            raise DataError(f"{self._path}: variable {self.name!r} holds complex numbers, expected real ones")
        if dataset.dtype.kind not in "iuf":
            raise self._damaged(f"numbers, got {dataset.dtype}")
        if dataset.external or dataset.is_virtual:
            raise self._damaged("values in this file, got a reference to another one")
        plan = dataset.id.get_create_plist()
        filters = [plan.get_filter(i)[0] for i in range(plan.get_nfilters())]
        if not set(filters) <= set(_FILTERS) or len(set(filters)) < len(filters):
            named = ", ".join(_FILTERS.get(code, f"number {code}") for code in filters)
            raise DataError(
                f"{self._path}: variable {self.name!r} is stored by the filters {named}, expected each of "
                f"{', '.join(_FILTERS.values())} once at most; save it again with MATLAB's -v7.3"
            )
        size = self._path.stat().st_size
        chunk = math.prod(dataset.chunks or ()) * dataset.dtype.itemsize  # is unpacked whole
        most = max(dataset.nbytes, chunk)
        if most > MOST_VALUES * size:
            raise self._damaged(f"at most {MOST_VALUES * size} bytes of values in {size}, got {most}")
        check_memory(f"{self._path}::{self.name}", dataset.nbytes)
        return np.asarray(dataset[()], dtype=dataset.dtype.newbyteorder("="))

    def _damaged(self, expected: str) -> DataError:
        return DataError(f"{self._path}: variable {self.name!r}: expected {expected}; the file is damaged")


def variables(path: Path) -> dict[str, Variable]:
    """The variables of a file by name; reads no values."""
    with _opened(path) as file:
        names = [name for name in file if not name.startswith("#")]  # MATLAB's own data about cells and objects
        return {name: Variable(name, *_described(_child(file, name)), path) for name in names}


def _described(node: h5py.Dataset | h5py.Group) -> tuple[tuple[int, ...], str]:
    """Shape and class; HDF5 has the dimensions of a MATLAB array in the opposite order."""
    kind = bytes(node.attrs["MATLAB_class"]).decode("latin-1").replace("logical", "uint8")
    if "MATLAB_sparse" in node.attrs:
        return (int(node.attrs["MATLAB_sparse"]), len(_child(node, "jc")) - 1), "sparse"
    if kind not in NUMERIC:
        return (), kind
    if "MATLAB_empty" in node.attrs:
        if node.chunks or node.external or node.is_virtual:  # MATLAB writes a few numbers, in one piece
            raise UserError("an empty matrix whose shape is in chunks or in another file")
        shape = tuple(int(d) for d in node[:32])
        if math.prod(shape):
            raise UserError(f"an empty matrix of shape {shape}")
        return shape, kind
    return node.shape[::-1], kind


def _child(group: h5py.Group, name: str) -> Any:
    """What lies under a name in this very file."""
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
            f"{path}: MATLAB 7.3 files need h5py; pip install dmo-learn[matlab], or save with -v7"
        ) from error
    try:
        with h5py.File(path, "r") as file:
            yield file
    except DataError:
        raise
    except _DAMAGED as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise DataError(f"{path}: is no whole MATLAB 7.3 file ({reason}); truncated or damaged") from None
