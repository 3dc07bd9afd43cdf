"""Numbers in columns of text (.csv, .tsv), and lists of names.

NumPy parses the numbers, a block of lines at a time. pandas and pyarrow are faster by a factor of 1.2 in such blocks, and
by 1.3 to 1.6 on whole files (20 000 x 300 values), and were not taken: pandas reads an empty cell and a row that is cut
short as NaN (or, told not to, refuses a NaN that is written out), pyarrow reads empty cells as missing, and neither says
in which line and column the text is that is no number.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from dmo.formats.files import DataError, lines, suffix

DELIMITERS = (",", ";", "\t")


@dataclass(frozen=True)
class Delimited:
    """What one look at a file found, and its rows block by block.

    Attributes: `path`; `delimiter`; `names` of the d columns (None: no header line); `columns`, d.
    """

    path: Path
    delimiter: str
    names: tuple[str, ...] | None
    columns: int

    def count(self) -> int:
        """The number of rows: one pass over the lines, no number is parsed."""
        return sum(1 for _ in self._data())

    def blocks(self, size: int = 4096) -> Iterator[np.ndarray]:
        """The rows in order, at most `size` in a block: n_b x d float64.

        Raises DataError with line and column where a field is no number, or a row has more or fewer than d fields.
        """
        data = self._data()
        while block := list(islice(data, size)):
            try:
                text = [line.decode("ascii") for _, line in block]
                values = np.loadtxt(text, delimiter=self.delimiter, comments=None, ndmin=2)
            except ValueError:
                values = np.stack([self._row(number, line) for number, line in block])
            if values.shape[1] != self.columns:
                self._row(*block[0])
            yield values

    def _data(self) -> Iterator[tuple[int, bytes]]:
        rows = ((number, line) for number, line in lines(self.path) if line)
        return islice(rows, 0 if self.names is None else 1, None)

    def _row(self, number: int, line: bytes) -> np.ndarray:
        fields = _fields(line, self.delimiter)
        if len(fields) != self.columns:
            raise DataError(f"{self.path}: line {number} has {len(fields)} columns, expected {self.columns}")
        numbers = [_number(field) for field in fields]
        if None in numbers:
            j = numbers.index(None)
            raise DataError(f"{self.path}: line {number}, column {j + 1} is {fields[j][:40]!r}, expected a number")
        return np.array(numbers, dtype=np.float64)


def open_csv(path: str | os.PathLike[str], delimiter: str | None = None, header: bool | None = None) -> Delimited:
    """Look at the first line of a .csv or .tsv file (plain or compressed) of numbers.

    Arguments: `path`; `delimiter` (None: a tab for .tsv, else the most frequent of comma, semicolon and tab);
    `header`, whether the first line holds names (None: it does when none of its fields is a number).
    Raises DataError when there is no line, the first line is not text, or it mixes numbers and names.
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
    numbers = sum(_number(field) is not None for field in fields)
    if header is None:
        if 0 < numbers < len(fields):
            raise DataError(f"{path}: line 1 mixes numbers and names, expected a header of names or a row of numbers")
        header = numbers == 0
    return Delimited(Path(path), delimiter, tuple(fields) if header else None, len(fields))


def read_csv(path: str | os.PathLike[str], delimiter: str | None = None, header: bool | None = None) -> np.ndarray:
    """Read a whole .csv or .tsv file of numbers: n x d float64. Arguments and errors as `open_csv`."""
    file = open_csv(path, delimiter, header)
    blocks = list(file.blocks())
    if not blocks:
        raise DataError(f"{path}: ends after its header in line 1, expected at least one row")
    return np.concatenate(blocks)


def read_names(path: str | os.PathLike[str]) -> list[str]:
    """The names in a text file, one a line (empty lines left out).

    Raises DataError with the line where a name is not UTF-8 text or appears a second time, or when there is none.
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
        fields = next(csv.reader([text], delimiter=delimiter), [""])
    except csv.Error:  # a carriage return or NUL inside the line
        fields = text.split(delimiter)
    return [field.strip() for field in fields]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
