"""The .hvecs family of the LEAR group: rows of fixed dimension, each led by that dimension."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dmo.formats.files import DataError, existing

# suffix -> (type of the dimension, type of the values), both little-endian
FORMATS = {
    ".hvec": ("<u2", "<u2"),
    ".hvec32": ("<u4", "<u4"),
    ".fvec": ("<u4", "<f4"),
    ".dvec": ("<u4", "<f8"),
}
FORMATS |= {f".{name}": FORMATS[short] for name, short in [("hvecs", ".hvec"), ("fvecs", ".fvec"), ("dvecs", ".dvec")]}
FORMATS[".hvecs32"] = FORMATS[".hvec32"]


@dataclass(frozen=True)
class Vecs:
    """The rows of one file as a row source; the file is mapped, and only the rows asked for are read.

    Attributes: `path`; `shape` (n, d); `head`, bytes of the dimension before each row; `dtype` of the values.
    Each read checks the dimension that leads every row and raises DataError with its byte where it is not d.
    """

    path: Path
    shape: tuple[int, int]
    head: int
    dtype: np.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, where: slice) -> np.ndarray:
        n, d = self.shape
        row = np.dtype([("d", f"<u{self.head}"), ("values", self.dtype.newbyteorder("<"), (d,))])
        begin, stop, step = where.indices(n)
        block = np.memmap(self.path, row, mode="r", shape=(n,))[begin:stop:step]
        wrong = np.flatnonzero(block["d"] != d)
        if len(wrong):
            i = begin + step * int(wrong[0])
            raise DataError(
                f"{self.path}: row {i} at byte {i * row.itemsize} says {block['d'][wrong[0]]} values, "
                f"expected {d} as in the first row; the file is damaged or of another format"
            )
        return np.array(block["values"], dtype=self.dtype)


def open_vecs(path: str | os.PathLike[str]) -> Vecs:
    """Open a .hvec(s) (uint16), .hvec(s)32 (uint32), .fvec(s) (float32) or .dvec(s) (float64) file.

    Arguments: `path`; its ending says the format. Costs one read of the first bytes: the shape follows from the size.
    Raises DataError when the ending is another one, the file is empty, or its size is no whole number of rows.
    Source: Guillaumin et al., TagProp (ICCV 2009), the distributed features.
    """
    path = existing(path)
    if path.suffix.lower() not in FORMATS:
        raise DataError(f"{path}: expected a name that ends in one of {', '.join(sorted(FORMATS))}")
    head, value = (np.dtype(code) for code in FORMATS[path.suffix.lower()])
    size = path.stat().st_size
    with open(path, "rb") as file:
        first = file.read(head.itemsize)
    if len(first) < head.itemsize:
        raise DataError(
            f"{path}: ends at byte {size}, expected {head.itemsize} bytes with the dimension of the first row"
        )
    d = int(np.frombuffer(first, head)[0])
    if d == 0:
        raise DataError(f"{path}: the dimension at byte 0 is 0, expected at least 1 value in each row")
    row = head.itemsize + d * value.itemsize
    n, rest = divmod(size, row)
    if rest:
        raise DataError(
            f"{path}: row {n} breaks off at byte {size}, expected {row} bytes from byte {n * row} on "
            f"(dimension {d} at byte 0); the file is truncated or of another format"
        )
    return Vecs(path, (n, d), head.itemsize, value.newbyteorder("="))
