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
    """The rows of a file of the .hvecs family as a row source; the file is mapped, and only the rows asked for are read.

    Each read checks the dimension that leads every row.

    Attributes
    ----------
    path : Path
        The file.
    shape : tuple of int
        (n, d).
    head : int
        Bytes of the dimension before each row.
    dtype : numpy.dtype
        Of the values.

    Raises
    ------
    DataError
        On slicing, with the byte of a row whose dimension is not d.

    Examples
    --------
    >>> import struct
    >>> from pathlib import Path
    >>> from dmo.datasets import open_vecs
    >>> _ = Path("a.hvecs").write_bytes(struct.pack("<3H3H", 2, 5, 6, 2, 7, 8))
    >>> open_vecs("a.hvecs")[1:]
    array([[7, 8]], dtype=uint16)
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
    """Open a file of the .hvecs family; the shape follows from the file's size and its first bytes.

    Parameters
    ----------
    path : path-like
        Its ending says the type of the values: .hvec(s) uint16, .hvec(s)32 uint32, .fvec(s) float32, .dvec(s) float64.

    Returns
    -------
    Vecs
        Its rows.

    Raises
    ------
    DataError
        Where the ending is another one, the file is empty, or its size is no whole number of rows.

    References
    ----------
    Guillaumin et al., TagProp (ICCV 2009), the distributed features.

    Examples
    --------
    >>> import struct
    >>> from pathlib import Path
    >>> from dmo.datasets import open_vecs
    >>> _ = Path("a.fvec").write_bytes(struct.pack("<IffIff", 2, 0.5, 1, 2, 2, 4))
    >>> open_vecs("a.fvec").shape
    (2, 2)
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
