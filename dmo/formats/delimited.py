"""Numbers in columns of text (.csv, .tsv), and lists of names.

pandas parses the numbers, some rows at a time. Where it finds anything else, an empty cell or a row of another length, the
rows from there on are parsed line by line, which says in which line and column the text is that is no number.
"""

from __future__ import annotations

import csv
import lzma
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from dmo.formats.files import DataError, csv_rows, decompressing, lines, open_binary, suffix, to_number

DELIMITERS = (",", ";", "\t")
_CELLS = 1 << 24  # of a block
_BYTES = 1 << 20  # read at a time to count lines
_BLANK = re.compile(rb"\n[\n\r \t\f\v]")  # a first byte that is alone is found 17 times as fast as two


@dataclass(frozen=True)
class Delimited:
    r"""What one look at a .csv or .tsv file found, and its rows block by block.

    Attributes
    ----------
    path : Path
        The file.
    delimiter : str
        What stands between two fields.
    names : tuple of str or None
        Names of the d columns; None: there is no header line.
    columns : int
        Their number, d.

    Examples
    --------
    >>> from pathlib import Path
    >>> from dmo.datasets import open_csv
    >>> _ = Path("a.csv").write_text("width,height\n1,2\n3,4\n")
    >>> file = open_csv("a.csv")
    >>> file.names, file.count(), next(file.blocks()).tolist()
    (('width', 'height'), 2, [[1.0, 2.0], [3.0, 4.0]])
    """

    path: Path
    delimiter: str
    names: tuple[str, ...] | None
    columns: int

    def count(self) -> int:
        """Count the rows: one pass over the lines, no number is parsed.

        Returns
        -------
        int
            Their number, n.
        """
        with decompressing(self.path, lambda: ""), open_binary(self.path) as file:
            rows, last = 0, b"\n"
            while piece := file.read(_BYTES):
                both = last + piece
                if _BLANK.search(both) or (b"\r" in both and b"\r\r" in both):  # lines that may be blank
                    return sum(1 for _ in self._data())
                rows, last = rows + piece.count(b"\n"), piece[-1:]
        return rows + (last != b"\n") - (self.names is not None)

    def blocks(self, size: int = 4096) -> Iterator[np.ndarray]:
        """Read the rows in order.

        Parameters
        ----------
        size : int, default=4096
            Rows in a block, at most; fewer where these would have more than 2^24 cells.

        Yields
        ------
        ndarray of shape (n_b, d), float64
            A block.

        Raises
        ------
        DataError
            With line and column where a field is no number, or a row has more or fewer than d fields.
        """
        size, done = max(min(size, _CELLS // self.columns), 1), 0
        try:
            for block in self._parsed(size):
                yield block
                done += len(block)
            return
        except (ValueError, OSError, EOFError, lzma.LZMAError, zlib.error):
            data = islice(self._data(), done, None)  # says what is wrong, and where
        while found := list(islice(data, size)):
            yield np.stack([self._row(number, line) for number, line in found])

    def _parsed(self, size: int) -> Iterator[np.ndarray]:
        """The rows as pandas parses them; ValueError where they are not numbers alone."""
        import pandas as pd

        # the parser of later versions rounds to the nearest number without being told
        exact: Any = {"float_precision": "round_trip"} if pd.__version__.startswith("2.") else {}
        with open_binary(self.path) as file:
            parts = pd.read_csv(
                file,
                sep=self.delimiter,
                header=None if self.names is None else 0,
                names=range(self.columns),
                keep_default_na=False,
                na_values=[],
                skipinitialspace=True,
                quoting=csv.QUOTE_NONE,
                encoding="latin-1",  # of names alone, which are known
                low_memory=False,
                chunksize=size,
                **exact,
            )
            with parts:
                for part in parts:
                    numbers = isinstance(part.index, pd.RangeIndex) and all(kind.kind in "iuf" for kind in part.dtypes)
                    values = part.to_numpy(np.float64) if numbers else None
                    if values is None or np.isnan(values).any():
                        raise ValueError("rows of other lengths, or cells that are no numbers")
                    if len(values):
                        yield values

    def _data(self) -> Iterator[tuple[int, bytes]]:
        rows = ((number, line) for number, line in lines(self.path) if line)
        return islice(rows, 0 if self.names is None else 1, None)

    def _row(self, number: int, line: bytes) -> np.ndarray:
        fields = _fields(line, self.delimiter)
        if len(fields) != self.columns:
            raise DataError(f"{self.path}: line {number} has {len(fields)} columns, expected {self.columns}")
        numbers = [to_number(field) for field in fields]
        if None in numbers:
            j = numbers.index(None)
            raise DataError(f"{self.path}: line {number}, column {j + 1} is {fields[j][:40]!r}, expected a number")
        return np.array(numbers, dtype=np.float64)


def open_csv(path: str | os.PathLike[str], delimiter: str | None = None, header: bool | None = None) -> Delimited:
    r"""Look at the first line of a .csv or .tsv file of numbers.

    Parameters
    ----------
    path : path-like
        The file, plain or compressed.
    delimiter : str, default=None
        None: a tab for .tsv, else the most frequent of comma, semicolon and tab.
    header : bool, default=None
        Whether the first line holds names; None: it does when none of its fields is a number.

    Returns
    -------
    Delimited
        What was found, and the way to the rows.

    Raises
    ------
    DataError
        Where there is no line, the first line is not text, or it mixes numbers and names.

    Examples
    --------
    >>> from pathlib import Path
    >>> from dmo.datasets import open_csv
    >>> _ = Path("a.csv").write_text("1;2\n3;4\n")
    >>> file = open_csv("a.csv")
    >>> file.delimiter, file.columns
    (';', 2)
    """
    first = next((line for _, line in lines(path) if line), None)
    if first is None or b"\0" in first:
        raise DataError(
            f"{path}: {'is empty' if first is None else 'byte 0 begins no text'}, expected lines of numbers"
        )
    if delimiter is None:
        counts = [first.count(mark.encode()) for mark in DELIMITERS]
        delimiter = "\t" if suffix(path) == ".tsv" else DELIMITERS[counts.index(max(counts))]
    fields = _fields(first, delimiter)
    numbers = sum(to_number(field) is not None for field in fields)
    if header is None:
        if 0 < numbers < len(fields):
            raise DataError(f"{path}: line 1 mixes numbers and names, expected a header of names or a row of numbers")
        header = numbers == 0
    return Delimited(Path(path), delimiter, tuple(fields) if header else None, len(fields))


def read_csv(path: str | os.PathLike[str], delimiter: str | None = None, header: bool | None = None) -> np.ndarray:
    r"""Read a whole .csv or .tsv file of numbers.

    Parameters
    ----------
    path : path-like
        The file, plain or compressed.
    delimiter : str, default=None
        As `open_csv`.
    header : bool, default=None
        As `open_csv`.

    Returns
    -------
    ndarray of shape (n, d), float64
        The numbers.

    Raises
    ------
    DataError
        As `open_csv` and `Delimited.blocks`, and where no row follows the header.

    Examples
    --------
    >>> from pathlib import Path
    >>> from dmo.datasets import read_csv
    >>> _ = Path("a.csv").write_text("width,height\n1,2\n3,4\n")
    >>> read_csv("a.csv")
    array([[1., 2.],
           [3., 4.]])
    """
    file = open_csv(path, delimiter, header)
    blocks = list(file.blocks())
    if not blocks:
        raise DataError(f"{path}: ends after its header in line 1, expected at least one row")
    return np.concatenate(blocks)


def read_names(path: str | os.PathLike[str]) -> list[str]:
    r"""Read the names in a text file, one a line (empty lines are left out).

    Parameters
    ----------
    path : path-like
        The file, plain or compressed, UTF-8.

    Returns
    -------
    list of str
        The names, in order.

    Raises
    ------
    DataError
        With the line where a name is not UTF-8 text or appears a second time, and where there is none.

    Examples
    --------
    >>> from pathlib import Path
    >>> from dmo.datasets import read_names
    >>> _ = Path("words.txt").write_text("sky\nsea\n")
    >>> read_names("words.txt")
    ['sky', 'sea']
    """
    seen: dict[str, int] = {}
    for number, line in lines(path):
        try:
            name = line.decode("utf-8")
        except UnicodeDecodeError:
            raise DataError(f"{path}: line {number} is not UTF-8 text, expected one name a line") from None
        if name in seen:
            raise DataError(f"{path}: line {number} repeats {name!r} of line {seen[name]}, expected each name once")
        if name:
            seen[name] = number
    if not seen:
        raise DataError(f"{path}: holds no line, expected one name a line")
    return list(seen)


def _fields(line: bytes, delimiter: str) -> list[str]:
    text = line.decode("utf-8", "replace")
    try:
        fields = next(csv_rows([text], delimiter), [""])
    except csv.Error:  # a carriage return or NUL inside the line
        fields = text.split(delimiter)
    return [field.strip() for field in fields]
