"""svmlight / libsvm text: one row per line, "label,label index:value index:value"."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import scipy.sparse

from dmo.blocks import stacked
from dmo.formats.files import DataError, lines

_LARGEST = 1 << 48  # features
Labels = list[tuple[float, ...]]


@dataclass(frozen=True)
class Svmlight:
    r"""What one pass over an svmlight file found, and its rows block by block.

    Attributes
    ----------
    path : Path
        The file.
    shape : tuple of int
        (n, d), d one more than the largest index, or as the first line says.
    base : int
        The index of the first feature, 0 or 1.
    labels : list of tuple of float
        The label numbers of each row.
    skip : int
        Lines before the first row.

    Examples
    --------
    >>> from pathlib import Path
    >>> from dmo.datasets import open_svmlight
    >>> _ = Path("a.svm").write_text("1,2 1:0.5 3:2\n2 2:1\n")
    >>> file = open_svmlight("a.svm")
    >>> file.shape, file.labels
    ((2, 3), [(1.0, 2.0), (2.0,)])
    """

    path: Path
    shape: tuple[int, int]
    base: int
    labels: Labels
    skip: int

    def blocks(self, size: int = 4096) -> Iterator[scipy.sparse.csr_array]:
        """Read the rows in order.

        Parameters
        ----------
        size : int, default=4096
            Rows in a block, at most.

        Yields
        ------
        csr_array of shape (n_b, d), float64
            A block.
        """
        for X, _ in _parse(self.path, self.skip, size):
            yield _fit(X, self.base, self.shape[1])

    def indicator(self, ids: Sequence[float] | None = None) -> np.ndarray:
        """The labels as a matrix.

        Parameters
        ----------
        ids : sequence of float, default=None
            Label number of each column; None: those of this file, ascending.

        Returns
        -------
        ndarray of shape (n, L), uint8
            1 where a row has the label.

        Raises
        ------
        DataError
            Where a row has a label that is not among `ids`.
        """
        ids = label_ids([self]) if ids is None else list(ids)
        column = {label: j for j, label in enumerate(ids)}
        Y = np.zeros((self.shape[0], len(ids)), dtype=np.uint8)
        for i, row in enumerate(self.labels):
            for label in row:
                if label not in column:
                    raise DataError(
                        f"{self.path}: row {i} has label {label:g}, expected one of {len(ids)} known labels"
                    )
                Y[i, column[label]] = 1
        return Y


def label_ids(files: Sequence[Svmlight]) -> list[float]:
    """The label numbers that occur in any of the files, ascending."""
    return sorted({label for file in files for row in file.labels for label in row})


def open_svmlight(path: str | os.PathLike[str], base: int | None = None, n_features: int | None = None) -> Svmlight:
    r"""Scan an svmlight file, multi-label or not: one pass that keeps the labels alone.

    A first line of three numbers "rows features labels", as in the extreme-classification repository, gives the shape.

    Parameters
    ----------
    path : path-like
        The file, plain or compressed.
    base : int, default=None
        The index of the first feature; None: 0 if index 0 occurs, else 1.
    n_features : int, default=None
        d; None: from the first line, else from the largest index.

    Returns
    -------
    Svmlight
        Shape and labels, and the way to the rows.

    Raises
    ------
    DataError
        With the line where a row is not svmlight, where an index exceeds d, or the rows are fewer than promised.

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
    if len(head) == 3 and all(part.isdigit() for part in head):
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
        raise DataError(f"{path}: has {n} rows, expected {promised or 'at least one'}; truncated or of another format")
    if base is None:
        base = 0 if low == 0 else 1
    if low is not None and low < base:
        raise DataError(f"{path}: the smallest index is {low}, expected at least {base}, that of the first feature")
    d = top + 1 - base
    if n_features is not None:
        if d > n_features:
            raise DataError(
                f"{path}: the largest index is {top}, "
                f"expected at most {n_features - 1 + base} for {n_features} features"
            )
        d = n_features
    if d > _LARGEST:
        raise DataError(f"{path}: says {d} features, expected at most {_LARGEST}; the first line is damaged")
    if d < 1:
        raise DataError(f"{path}: no row has a feature, expected pairs index:value")
    return Svmlight(path, (n, d), base, labels, skip)


def read_svmlight(
    path: str | os.PathLike[str], base: int | None = None, n_features: int | None = None
) -> tuple[scipy.sparse.csr_array, np.ndarray, list[float]]:
    r"""Read a whole svmlight file.

    Parameters
    ----------
    path : path-like
        The file, plain or compressed.
    base : int, default=None
        As `open_svmlight`.
    n_features : int, default=None
        As `open_svmlight`.

    Returns
    -------
    X : csr_array of shape (n, d), float64
        Features.
    Y : ndarray of shape (n, L), uint8
        Labels, 0/1.
    ids : list of float
        The label number of each column of Y.

    Raises
    ------
    DataError
        As `open_svmlight`.

    Examples
    --------
    >>> from pathlib import Path
    >>> from dmo.datasets import read_svmlight
    >>> _ = Path("a.svm").write_text("1,2 1:0.5 3:2\n2 2:1\n")
    >>> X, Y, ids = read_svmlight("a.svm")
    >>> Y.tolist(), ids
    ([[1, 1], [0, 1]], [1.0, 2.0])
    """
    file = open_svmlight(path, base, n_features)
    X = stacked(list(file.blocks()))
    return X, file.indicator(), label_ids([file])


def _parse(path: Path, skip: int, size: int) -> Iterator[tuple[scipy.sparse.csr_array, Labels]]:
    """Blocks of rows as written: CSR whose columns are the indices of the file, and the labels of each row."""
    data = ((n, line) for n, line in lines(path) if n > skip and line.partition(b"#")[0].strip())
    while block := list(islice(data, size)):
        try:
            yield _load(b"\n".join(line for _, line in block))
        except (ValueError, OverflowError):
            number, line = next((n, line) for n, line in block if not _readable(line))
            raise DataError(
                f'{path}: line {number} begins {line[:40].decode("latin-1")!r}, expected "label,label index:value ..." '
                "with rising indices"
            ) from None


def _load(text: bytes) -> tuple[scipy.sparse.csr_array, Labels]:
    from sklearn.datasets import load_svmlight_file  # here: other files are read without scikit-learn

    X, labels = load_svmlight_file(io.BytesIO(text), multilabel=True, zero_based=True)
    return scipy.sparse.csr_array(X), labels


def _readable(line: bytes) -> bool:
    try:
        _load(line)
    except (ValueError, OverflowError):
        return False
    return True


def _fit(X: scipy.sparse.csr_array, base: int, d: int) -> scipy.sparse.csr_array:
    return scipy.sparse.csr_array((X.data, X.indices - base, X.indptr), shape=(X.shape[0], d))
