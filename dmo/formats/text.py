"""Readers of numbers in .csv and .tsv files, of svmlight files, and of lists of names.

In .csv and .tsv files, pandas parses blocks of rows. If a block contains text that is not a number, or rows of
different lengths, the remaining rows are parsed line by line, so that the error contains the line and column.
"""

from __future__ import annotations

import csv
import io
import lzma
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from dmo.blocks import Block, packed, stacked
from dmo.formats.files import DataError, csv_rows, decompressing, lines, open_binary, suffix, to_number

DELIMITERS = (",", ";", "\t")
_CELLS = 1 << 24  # Maximum number of cells per block.
_BYTES = 1 << 20  # Number of bytes that are read at once to count lines.
_LARGEST = 1 << 48  # Maximum number of features.
# A pattern that starts with the byte \n is 17 times faster than a pattern that starts with the class [\n\r].
_BLANK = re.compile(rb"\n[\n\r \t\f\v]")
Labels = list[tuple[str, ...]]


@dataclass(frozen=True)
class Delimited:
    r"""Opened text file of numbers (.csv or .tsv), which is read block by block.

    Attributes
    ----------
    path : Path
        Path of the file.
    delimiter : str
        Delimiter between the fields of a row.
    names : tuple of str or None
        Names of the columns, or None if the file has no header.
    columns : int
        Number of columns d.

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
        """Count the rows in one pass over the file, without parsing the numbers.

        Returns
        -------
        int
            Number of rows, without the header.
        """
        with decompressing(self.path, lambda: ""), open_binary(self.path) as file:
            rows, last = 0, b"\n"
            while piece := file.read(_BYTES):
                both = last + piece
                if _BLANK.search(both) or (b"\r" in both and b"\r\r" in both):  # There may be blank lines.
                    return sum(1 for _ in self._data())
                rows, last = rows + piece.count(b"\n"), piece[-1:]
        return rows + (last != b"\n") - (self.names is not None)

    def blocks(self, size: int = 4096) -> Iterator[np.ndarray]:
        """Read the rows of the file block by block.

        Parameters
        ----------
        size : int, default=4096
            Maximum number of rows per block. A block has at most 2^24 values.

        Yields
        ------
        ndarray of shape (n_b, d), float64
            Block of n_b rows.

        Raises
        ------
        DataError
            If a field is not a number, or if a row does not have d fields. The message contains the line number.
        """
        size, done = max(min(size, _CELLS // self.columns), 1), 0
        try:
            for block in self._parsed(size):
                yield block
                done += len(block)
            return
        except (ValueError, OSError, EOFError, lzma.LZMAError, zlib.error):
            data = islice(self._data(), done, None)  # To locate the error, parse the remaining rows one by one.
        while found := list(islice(data, size)):
            yield np.stack([self._row(number, line) for number, line in found])

    def _parsed(self, size: int) -> Iterator[np.ndarray]:
        """Parse the rows with pandas; raise ValueError if a cell is not a number or if the rows differ in length."""
        import pandas as pd

        # The default float parser of pandas 2 does not round correctly.
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
                encoding="latin-1",  # The encoding does not matter, because the names of the columns are known.
                low_memory=False,
                chunksize=size,
                **exact,
            )
            with parts:
                for part in parts:
                    numbers = isinstance(part.index, pd.RangeIndex) and all(kind.kind in "iuf" for kind in part.dtypes)
                    values = part.to_numpy(np.float64) if numbers else None
                    if values is None or np.isnan(values).any():
                        raise ValueError("row lengths differ, or cells are not numbers")
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
    r"""Open a .csv or .tsv file of numbers, and read its first line.

    Parameters
    ----------
    path : path-like
        Path of the file, which may be compressed.
    delimiter : str, default=None
        Delimiter between the fields of a row. The default is a tab in .tsv files, and otherwise the most frequent of
        comma, semicolon and tab in the first line.
    header : bool, default=None
        Whether the first line contains column names. By default, a line without numbers contains column names.

    Returns
    -------
    Delimited
        Opened file, whose rows are read by its method `blocks`.

    Raises
    ------
    DataError
        If the file is empty, or if its first line is not text or contains both numbers and names.

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
        raise DataError(f"{path}: {'is empty' if first is None else 'is not a text file'}, expected lines of numbers")
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
        Path of the file, which may be compressed.
    delimiter : str, default=None
        Delimiter between the fields of a row, see `open_csv`.
    header : bool, default=None
        Whether the first line contains column names, see `open_csv`.

    Returns
    -------
    ndarray of shape (n, d), float64
        Matrix of all rows in the file.

    Raises
    ------
    DataError
        If the file contains no rows, rows of different lengths, or a field that is not a number.

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
        raise DataError(f"{path}: ends after its header in line 1, expected at least one row; write one row per sample")
    return np.concatenate(blocks)


def read_names(path: str | os.PathLike[str]) -> list[str]:
    r"""Read names from a text file with one name per line.

    Parameters
    ----------
    path : path-like
        Path of a UTF-8 text file, which may be compressed. Empty lines are ignored.

    Returns
    -------
    list of str
        Names in the order of the lines.

    Raises
    ------
    DataError
        If a line is not UTF-8 text, a name occurs twice, or the file contains no names.

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
            raise DataError(f"{path}: line {number} is not UTF-8 text, expected one name per line") from None
        if name in seen:
            raise DataError(f"{path}: line {number} repeats {name!r} of line {seen[name]}, expected each name once")
        if name:
            seen[name] = number
    if not seen:
        raise DataError(f"{path}: has no names, expected one per line")
    return list(seen)


def _fields(line: bytes, delimiter: str) -> list[str]:
    text = line.decode("utf-8", "replace")
    try:
        fields = next(csv_rows([text], delimiter), [""])
    except csv.Error:  # The line contains a carriage return or NUL.
        fields = text.split(delimiter)
    return [field.strip() for field in fields]


@dataclass(frozen=True)
class Svmlight:
    r"""Opened svmlight file, whose labels are in memory and whose features are read block by block.

    Attributes
    ----------
    path : Path
        Path of the file.
    shape : tuple of int
        Number of rows n and number of features d.
    base : int
        Index of the first feature in the file, 0 or 1.
    labels : list of tuple of str
        Labels of each row as text.
    skip : int
        Number of lines before the first row.

    Examples
    --------
    >>> from pathlib import Path
    >>> from dmo.datasets import open_svmlight
    >>> _ = Path("a.svm").write_text("1,2 1:0.5 3:2\n2 2:1\n")
    >>> file = open_svmlight("a.svm")
    >>> file.shape, file.labels
    ((2, 3), [('1', '2'), ('2',)])
    """

    path: Path
    shape: tuple[int, int]
    base: int
    labels: Labels
    skip: int

    def blocks(self, size: int = 4096) -> Iterator[scipy.sparse.csr_array]:
        """Read the features of the file block by block.

        Parameters
        ----------
        size : int, default=4096
            Maximum number of rows per block.

        Yields
        ------
        csr_array of shape (n_b, d), float64
            Features of n_b rows.
        """
        for X, _ in _parse(self.path, self.skip, size):
            yield _fit(X, self.base, self.shape[1])

    def indicator(self, ids: Sequence[str] | None = None) -> Block:
        """Convert the labels to an indicator matrix.

        Parameters
        ----------
        ids : sequence of str, default=None
            Label of each column of the matrix. By default, these are the labels of the file in ascending order.

        Returns
        -------
        ndarray or csr_array of shape (n, L), uint8
            Matrix with 1 if a row has a label, otherwise 0. The matrix is a CSR array if this needs less memory.

        Raises
        ------
        DataError
            If a row has a label that is not in `ids`.
        """
        ids = label_ids([self]) if ids is None else list(ids)
        column = {label: j for j, label in enumerate(ids)}
        found, ends = list[int](), [0]
        for i, row in enumerate(self.labels):
            for label in row:
                if label not in column:
                    raise DataError(f"{self.path}: row {i} has label {label}, expected one of {len(ids)} known labels")
            found += sorted({column[label] for label in row})
            ends.append(len(found))
        marks = np.ones(len(found), np.uint8), np.array(found, np.int32), np.array(ends, np.int64)
        return packed(scipy.sparse.csr_array(marks, shape=(self.shape[0], len(ids))))


def label_ids(files: Sequence[Svmlight]) -> list[str]:
    return sorted(
        {label for file in files for row in file.labels for label in row}, key=lambda label: (float(label), label)
    )


def open_svmlight(path: str | os.PathLike[str], base: int | None = None, n_features: int | None = None) -> Svmlight:
    r"""Open a single-label or multi-label svmlight file, and read its shape and labels in one pass.

    The first line may declare the numbers of rows, of features and, optionally, of labels, as in files of the Extreme
    Classification Repository.

    Parameters
    ----------
    path : path-like
        Path of the file, which may be compressed.
    base : int, default=None
        Index of the first feature in the file. The default is 0 if the first line declares the shape or if index 0
        occurs, otherwise 1.
    n_features : int, default=None
        Number of features d. The default is the number in the first line, or is derived from the largest index.

    Returns
    -------
    Svmlight
        Opened file, whose features are read by its method `blocks`.

    Raises
    ------
    DataError
        If a row is not valid svmlight, if an index is too large for `n_features`, or if the number of rows differs
        from the first line.

    Examples
    --------
    >>> from pathlib import Path
    >>> from dmo.datasets import open_svmlight
    >>> _ = Path("a.svm").write_text("1,2 1:0.5 3:2\n2 2:1\n")
    >>> open_svmlight("a.svm", n_features=5).shape
    (2, 5)
    """
    path, skip, promised = Path(path), 0, None
    head = next((line for _, line in lines(path)), b"").split()
    if len(head) in (2, 3) and all(part.isdigit() for part in head):
        skip, promised = 1, int(head[0])
        base, n_features = 0 if base is None else base, int(head[1]) if n_features is None else n_features
    n, top, low, labels = 0, -1, None, Labels()
    for X, block in _parse(path, skip, 4096):
        n += X.shape[0]
        if X.nnz:
            top = max(top, int(X.indices.max()))
            low = int(X.indices.min()) if low is None else min(low, int(X.indices.min()))
        labels += block
    if n == 0 or (promised is not None and n != promised):
        raise DataError(
            f"{path}: has {n} rows, expected {promised or 'at least one'}; fetch the file again, or correct it"
        )
    if base is None:
        base = 0 if low == 0 else 1
    if low is not None and low < base:
        raise DataError(
            f"{path}: the smallest index is {low}, expected at least {base}, the index of the first feature"
        )
    d = top + 1 - base
    if n_features is not None:
        if d > n_features:
            raise DataError(
                f"{path}: the largest index is {top}, "
                f"expected at most {n_features - 1 + base} for {n_features} features"
            )
        d = n_features
    if d > _LARGEST:
        raise DataError(f"{path}: declares {d} features, expected at most {_LARGEST}; the first line is damaged")
    if d < 1:
        raise DataError(f"{path}: has no feature values, expected pairs index:value")
    return Svmlight(path, (n, d), base, labels, skip)


def read_svmlight(
    path: str | os.PathLike[str], base: int | None = None, n_features: int | None = None
) -> tuple[scipy.sparse.csr_array, np.ndarray, list[str]]:
    r"""Read a whole svmlight file.

    Parameters
    ----------
    path : path-like
        Path of the file, which may be compressed.
    base : int, default=None
        Index of the first feature in the file, see `open_svmlight`.
    n_features : int, default=None
        Number of features d, see `open_svmlight`.

    Returns
    -------
    X : csr_array of shape (n, d), float64
        Feature matrix.
    Y : ndarray or csr_array of shape (n, L), uint8
        Label matrix of 0 and 1. The matrix is a CSR array if this needs less memory.
    ids : list of str
        Label of each column of `Y`.

    Raises
    ------
    DataError
        If the file is not valid, see `open_svmlight`.

    Examples
    --------
    >>> from pathlib import Path
    >>> from dmo.datasets import read_svmlight
    >>> _ = Path("a.svm").write_text("1,2 1:0.5 3:2\n2 2:1\n")
    >>> X, Y, ids = read_svmlight("a.svm")
    >>> Y.tolist(), ids
    ([[1, 1], [0, 1]], ['1', '2'])
    """
    file = open_svmlight(path, base, n_features)
    X = stacked(list(file.blocks()))
    return X, file.indicator(), label_ids([file])


def _parse(path: Path, skip: int, size: int) -> Iterator[tuple[scipy.sparse.csr_array, Labels]]:
    """Yield the features of each block of rows as a CSR matrix, and the labels of these rows."""
    data = ((n, line) for n, line in lines(path) if n > skip and line.partition(b"#")[0].strip())
    while block := list(islice(data, size)):
        try:
            yield _load(b"\n".join(line for _, line in block))
        except (ValueError, OverflowError):
            number, line = next((n, line) for n, line in block if not _readable(line))
            raise DataError(
                f'{path}: line {number} begins with {line[:40].decode("latin-1")!r}, expected "label,label index:value '
                '..." with ascending indices; correct the line'
            ) from None


def _load(text: bytes) -> tuple[scipy.sparse.csr_array, Labels]:
    from sklearn.datasets import load_svmlight_file  # imported here because the other readers do not need scikit-learn

    X, _ = load_svmlight_file(io.BytesIO(text), multilabel=True, zero_based=True)
    heads = [line.split(None, 1)[0] for line in text.split(b"\n")]
    labels = [() if b":" in head or head[:1] == b"#" else tuple(head.decode().split(",")) for head in heads]
    return scipy.sparse.csr_array(X), labels


def _readable(line: bytes) -> bool:
    try:
        _load(line)
    except (ValueError, OverflowError):
        return False
    return True


def _fit(X: scipy.sparse.csr_array, base: int, d: int) -> scipy.sparse.csr_array:
    return scipy.sparse.csr_array((X.data, X.indices - base, X.indptr), shape=(X.shape[0], d))
