"""Functions that all file readers share, the concatenation of files, and the exception `DataError`."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import logging
import lzma
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import numpy as np
import psutil

from dmo.blocks import ByRows, Rows, rows, stacked
from dmo.errors import UserError
from dmo.hashing import file_digest

if sys.platform != "win32":
    import resource

log = logging.getLogger("dmo")
Block = Any
"""Block of rows in memory: a NumPy array or a CSR array."""
LONGEST_LINE = 1 << 28
"""Maximum number of bytes per line of text. A small compressed file could otherwise expand to a line of any length."""
COMPRESSED: dict[str, Any] = {".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open}


class DataError(UserError):
    r"""Exception raised for invalid data. The message contains the file, the byte or line, and the expected content.

    Examples
    --------
    >>> from pathlib import Path
    >>> from dmo.datasets import DataError, read_csv
    >>> _ = Path("a.csv").write_text("1,2\n3,x\n")
    >>> try:
    ...     read_csv("a.csv")
    ... except DataError as error:
    ...     print(error)
    a.csv: line 2, column 2 is 'x', expected a number
    """


def existing(path: str | os.PathLike[str]) -> Path:
    r"""Return the path of an existing file, or of a temporary copy if `path` is a URL.

    Raise DataError if the path is a folder, a pipe or a device.
    """
    path = _fetched(os.fspath(path))[0] if "://" in os.fspath(path) else Path(path)
    if path.is_dir():
        raise DataError(f"{path}: is a folder, expected a file; pass the path of a file")
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file; check the path")
    if not path.is_file():
        raise DataError(f"{path}: is a pipe or a device, expected a file; write its contents to a file first")
    return path


def missing_array(
    path: str | os.PathLike[str], name: str | None, names: Iterable[str], kind: str = "array"
) -> DataError:
    """Create the error for an array, variable or column that a file does not contain."""
    names = list(names)
    cure = f"expected one of {', '.join(names)}; write {path}::{names[0]}" if names else "the file contains none"
    return DataError(f"{path}: the {kind} {name!r} is missing, {cure}")


@cache
def _fetched(url: str) -> tuple[Path, TemporaryDirectory[str]]:
    """Copy a file from a URL to a temporary folder, which is deleted when the process ends."""
    import fsspec

    fs, path = fsspec.core.url_to_fs(url)
    folder = TemporaryDirectory(prefix="dmo-")
    target = Path(folder.name, path.rpartition("/")[2])
    log.info("%s: downloading a temporary copy, because files of this format cannot be read from a URL directly", url)
    fs.get_file(path, os.fspath(target))
    return target, folder


def csv_rows(text: Iterable[str], mark: str = ",", spaced: bool = False) -> Any:
    """Create a `csv.reader` that accepts long fields and, if `spaced`, ignores spaces after delimiters."""
    csv.field_size_limit((1 << 31) - 1)  # a field can contain a whole document
    return csv.reader(text, delimiter=mark, skipinitialspace=spaced)


def check_memory(where: str | os.PathLike[str], needed: int, free: int | None = None) -> None:
    """Raise an error if `needed` bytes do not fit in the free memory, or in the memory limit of the process."""
    free = psutil.virtual_memory().available if free is None else free
    if needed > free:
        raise DataError(
            f"{where}: needs {needed} bytes of memory at once, this machine has {free} free; use a machine with more "
            "memory, split the file, or convert it to .npy or .zarr, which are read block by block"
        )
    if sys.platform != "win32":
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if 0 <= limit < needed + psutil.Process().memory_info().vms:
            raise MemoryError(f"{where}: needs {needed} bytes of memory at once, this process is limited to {limit}")


def open_binary(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file in binary mode, and decompress it if its name ends in .xz, .gz or .bz2."""
    path = existing(path)
    opener = COMPRESSED.get(path.suffix.lower(), open)
    return opener(path, "rb")


def suffix(path: str | os.PathLike[str]) -> str:
    """Return the file extension in lower case, without the extension of a compressed file (.xz, .gz or .bz2)."""
    path = Path(path)
    return (Path(path.stem) if path.suffix.lower() in COMPRESSED else path).suffix.lower()


@contextmanager
def decompressing(path: str | os.PathLike[str], place: Callable[[], str]) -> Iterator[None]:
    """Convert decompression errors within a `with` block to a DataError with the position that `place` returns."""
    try:
        yield
    except (FileNotFoundError, PermissionError):
        raise
    except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        reason = str(error).rstrip(".")
        raise DataError(f"{path}: cannot be decompressed{place()} ({reason}); fetch it again") from None


def lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the stripped text of each line of a text file, which may be compressed."""
    number = 0
    with decompressing(path, lambda: f" after line {number}"), open_binary(path) as file:
        while line := file.readline(LONGEST_LINE):
            number += 1
            if len(line) == LONGEST_LINE:
                raise DataError(
                    f"{path}: line {number} has {LONGEST_LINE} bytes or more; the file is of another format"
                )
            yield number, line.strip()


def sha256(path: str | os.PathLike[str]) -> str:
    r"""Compute the SHA-256 hash of a file after decompression, if its name ends in .xz, .gz or .bz2."""
    with decompressing(path, lambda: ""), open_binary(path) as file:
        return file_digest(file)


def decoded(data: bytes | bytearray) -> str:
    """Decode text in UTF-8 or UTF-16, or in Windows-1252 or Latin-1 if it is not valid UTF-8."""
    if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return data.decode("utf-16")
    some = data[:4096]
    for codec, first in (("utf-16-le", 1), ("utf-16-be", 0)):  # in most UTF-16 text, every second byte is zero
        if (
            len(data) % 2 == 0
            and some[first::2].count(0) > 0.7 * len(some[first::2])
            and some[1 - first :: 2].count(0) == 0
        ):
            return data.decode(codec)
    for codec in ("utf-8-sig", "cp1252"):
        with suppress(UnicodeDecodeError):
            return data.decode(codec)
    return data.decode("latin-1")


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def to_number(text: str) -> float | None:
    """Convert text to a number, or return None if it is not a number.

    Python parses "1_000" as a number, but text with an underscore is more likely a name and therefore rejected.
    """
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


class SequentialRows(ByRows):
    """Array-like for data that can only be read sequentially from the beginning.

    Slices in ascending order need one pass over the data. A slice that starts before the current block reads the data
    again from the first row.

    Parameters
    ----------
    shape : tuple of int
        Number of rows and columns.
    dtype : numpy.dtype
        Data type of the rows.
    start : callable
        Function that returns a new iterator over consecutive blocks of rows.
    where : str or Path
        Name of the file in error messages.

    Raises
    ------
    DataError
        When the object is sliced, if the iterator yields fewer rows than `shape` declares.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.datasets import SequentialRows
    >>> X = np.arange(6.0).reshape(3, 2)
    >>> source = SequentialRows((3, 2), X.dtype, lambda: iter([X[:2], X[2:]]), "numbers")
    >>> source[1:3]
    array([[2., 3.],
           [4., 5.]])
    """

    def __init__(
        self, shape: tuple[int, int], dtype: np.dtype, start: Callable[[], Iterator[Block]], where: str | Path
    ):
        self.shape, self.dtype, self._start, self._where = shape, np.dtype(dtype), start, where
        self._blocks: Iterator[Block] = iter(())
        self._block: Block | None = None
        self._first = 0

    def __getitem__(self, where: slice) -> Block:
        begin, stop, step = where.indices(self.shape[0])
        if step != 1:
            raise IndexError(f"{self._where}: got a slice with step {step}, expected step 1")
        if self._block is None or begin < self._first:
            self._blocks = self._start()
            self._first, self._block = 0, self._next(0)
        pieces: list[Block] = []
        while True:
            end = self._first + self._block.shape[0]
            if begin < end:
                pieces.append(self._block[begin - self._first : max(stop, begin) - self._first])
                begin = end
            if begin >= stop:
                break
            self._first, self._block = end, self._next(end)
        return stacked(pieces) if pieces else self._block[:0]

    def _next(self, position: int) -> Block:
        block = next(self._blocks, None)
        if block is None:
            raise DataError(
                f"{self._where}: ends after row {position}, expected {self.shape[0]} rows; "
                "the file has changed, open it again"
            )
        return block.astype(self.dtype, copy=False)


class Stacked(ByRows):
    """Vertical concatenation of arrays whose rows are read when the concatenation is sliced.

    Parameters
    ----------
    parts : sequence of array-like of shape (n_i, d)
        Arrays to concatenate, or other objects with a shape, a dtype and slices of rows.
    where : str
        Name of the data in error messages.
    names : sequence of str, default=()
        Names of the arrays in error messages.

    Raises
    ------
    DataError
        If the arrays have different numbers of columns.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.datasets import Stacked
    >>> both = Stacked([np.zeros((2, 3)), np.ones((1, 3))], "train and test")
    >>> both.shape, both[1:]
    ((3, 3), array([[0., 0., 0.],
           [1., 1., 1.]]))
    """

    def __init__(self, parts: Sequence[Rows], where: str, names: Sequence[str] = ()):
        columns = [part.shape[1] for part in parts]
        if len(set(columns)) != 1:
            raise DataError(f"{where}: the files have {columns} columns, expected the same number in each file")
        self.parts, self.names = list(parts), list(names)
        self.ends = np.cumsum([part.shape[0] for part in parts])
        self.shape = (int(self.ends[-1]), columns[0])
        self.dtype = np.result_type(*(part.dtype for part in parts))

    def __getitem__(self, where: slice) -> Block:
        begin, stop, step = where.indices(self.shape[0])
        if step != 1:
            raise IndexError(f"got a slice with step {step}, expected step 1")
        pieces = []
        for part, end in zip(self.parts, self.ends):
            first = int(end) - part.shape[0]
            low, high = max(begin, first), min(stop, int(end))
            if low < high:
                pieces.append(rows(part, slice(low - first, high - first)).astype(self.dtype, copy=False))
        return stacked(pieces) if pieces else rows(self.parts[0], slice(0, 0)).astype(self.dtype, copy=False)

    @property
    def shards(self) -> list[tuple[str, int]]:
        """Names and row counts of the arrays, or of nested arrays if the arrays have no names."""
        inner = [part.shards for part in self.parts if isinstance(part, Stacked)]
        counts = [(name, part.shape[0]) for name, part in zip(self.names, self.parts)]
        return counts or [shard for shards in inner for shard in shards]


def row_of_shard(shards: Sequence[tuple[str, int]], row: int) -> str | None:
    """Return the shard that contains a row and the row number within the shard as text, or None without shards."""
    first = 0
    for name, count in shards:
        if row < first + count:
            return f"{name}, row {row - first}"
        first += count
    return None
