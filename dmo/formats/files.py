"""Bytes, lines and row sources that every reader shares, and the one error they raise."""

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
"""Some rows in memory: a NumPy array, or CSR."""
LONGEST_LINE = 1 << 28
"""Bytes of a line of text: some kilobytes may decompress to any number of them."""
COMPRESSED: dict[str, Any] = {".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open}


class DataError(UserError):
    r"""A data file that is not what it should be: one sentence with file, byte or line, and what was expected.

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
    r"""Take a path to a file that is there, or fetch a URL: a pipe would wait for its writer, a device may have no end."""
    path = _fetched(os.fspath(path))[0] if "://" in os.fspath(path) else Path(path)
    if path.is_dir():
        raise DataError(f"{path}: is a folder, expected a file")
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if not path.is_file():
        raise DataError(f"{path}: is a pipe or a device, expected a file; write its contents to a file first")
    return path


@cache
def _fetched(url: str) -> tuple[Path, TemporaryDirectory[str]]:
    """Copy a file from a URL to a temporary folder that exists until this process ends."""
    import fsspec

    fs, path = fsspec.core.url_to_fs(url)
    folder = TemporaryDirectory(prefix="dmo-")
    target = Path(folder.name, path.rpartition("/")[2])
    log.info("%s: a copy is made here, because its format is not read at a URL", url)
    fs.get_file(path, os.fspath(target))
    return target, folder


def csv_rows(text: Iterable[str], mark: str = ",", spaced: bool = False) -> Any:
    """Build a `csv.reader` of lines with long fields; `spaced`: spaces after a delimiter belong to it."""
    csv.field_size_limit((1 << 31) - 1)  # a document is one cell, a wrong mark makes a line one field
    return csv.reader(text, delimiter=mark, skipinitialspace=spaced)


def check_memory(where: str | os.PathLike[str], needed: int, free: int | None = None) -> None:
    """DataError where values of `needed` bytes, as a file says before they are read, do not fit into what memory is free."""
    free = psutil.virtual_memory().available if free is None else free
    if needed > free:
        raise DataError(
            f"{where}: holds {needed} bytes that are needed at once, this machine has {free} free; take one with more memory, "
            "or split the file, or write it as .npy or .zarr, which are read block by block"
        )
    if sys.platform != "win32":
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if 0 <= limit < needed + psutil.Process().memory_info().vms:
            raise MemoryError(
                f"{where}: holds {needed} bytes that are needed at once, the limit of this process is {limit}"
            )


def open_binary(path: str | os.PathLike[str]) -> BinaryIO:
    """Open the bytes of a file, decompressed where its name ends in .xz, .gz or .bz2."""
    path = existing(path)
    opener = COMPRESSED.get(path.suffix.lower(), open)
    return opener(path, "rb")


def suffix(path: str | os.PathLike[str]) -> str:
    """The ending that names the format, lower case, without that of a compression."""
    path = Path(path)
    return (Path(path.stem) if path.suffix.lower() in COMPRESSED else path).suffix.lower()


@contextmanager
def decompressing(path: str | os.PathLike[str], place: Callable[[], str]) -> Iterator[None]:
    """Turn what a decompressor raises inside the `with` block into one sentence with the place that was reached."""
    try:
        yield
    except (FileNotFoundError, PermissionError):
        raise
    except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        reason = str(error).rstrip(".")
        raise DataError(f"{path}: cannot be decompressed{place()} ({reason}); fetch it again") from None


def lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, bytes]]:
    """Numbered lines (from 1, without white space at either end) of a text file, plain or compressed."""
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
    r"""SHA-256 of a file's bytes, decompressed where its name ends in .xz, .gz or .bz2."""
    with decompressing(path, lambda: ""), open_binary(path) as file:
        return file_digest(file)


def decoded(data: bytes | bytearray) -> str:
    """Decode text in UTF-8 or UTF-16, with or without a byte order mark, otherwise in Windows-1252 or Latin-1."""
    if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return data.decode("utf-16")
    some = data[:4096]
    for codec, first in (("utf-16-le", 1), ("utf-16-be", 0)):  # every other byte of most text is zero
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
    """What a library says first of an error."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def to_number(text: str) -> float | None:
    """The number that a field of text is; None where it is none.

    Digits may not be grouped: Python alone reads 1_000 as a number, and what Python alone reads is rather a name.
    """
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


class SequentialRows(ByRows):
    """A row source over something that can only be read from its beginning, block after block.

    Slices in ascending order are one pass; a slice before the last one read starts again from the first row.

    Parameters
    ----------
    shape : tuple of int
        (n, d).
    dtype : numpy.dtype
        Of the values.
    start : callable
        Returns an iterator over the row blocks, first to last.
    where : str or Path
        The name of the file, for errors.

    Raises
    ------
    DataError
        On slicing, where fewer rows come than `shape` promises.

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
            raise IndexError(f"{self._where}: rows are read in steps of 1, got {step}")
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
            raise DataError(f"{self._where}: ends after row {position}, expected {self.shape[0]} rows; it has changed")
        return block.astype(self.dtype, copy=False)


class Stacked(ByRows):
    """Row sources with the same columns, one below the other, as one row source.

    Parameters
    ----------
    parts : sequence of row source
        n_i x d each.
    where : str
        What they are, for errors.
    names : sequence of str, default=()
        Names of the parts, for errors.

    Raises
    ------
    DataError
        If the parts differ in columns.

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
            raise DataError(f"{where}: the files have {columns} columns, expected the same number in each")
        self.parts, self.names = list(parts), list(names)
        self.ends = np.cumsum([part.shape[0] for part in parts])
        self.shape = (int(self.ends[-1]), columns[0])
        self.dtype = np.result_type(*(part.dtype for part in parts))

    def __getitem__(self, where: slice) -> Block:
        begin, stop, step = where.indices(self.shape[0])
        if step != 1:
            raise IndexError(f"rows are read in steps of 1, got {step}")
        pieces = []
        for part, end in zip(self.parts, self.ends):
            first = int(end) - part.shape[0]
            low, high = max(begin, first), min(stop, int(end))
            if low < high:
                pieces.append(rows(part, slice(low - first, high - first)).astype(self.dtype, copy=False))
        return stacked(pieces) if pieces else rows(self.parts[0], slice(0, 0)).astype(self.dtype, copy=False)

    @property
    def shards(self) -> list[tuple[str, int]]:
        """Names and row counts of the innermost parts; empty if they have no names."""
        inner = [part.shards for part in self.parts if isinstance(part, Stacked)]
        counts = [(name, part.shape[0]) for name, part in zip(self.names, self.parts)]
        return counts or [shard for shards in inner for shard in shards]


def row_of_shard(shards: Sequence[tuple[str, int]], row: int) -> str | None:
    """Name the shard that holds a row, and the row inside of it; None if there are no shards."""
    first = 0
    for name, count in shards:
        if row < first + count:
            return f"{name}, row {row - first}"
        first += count
    return None
