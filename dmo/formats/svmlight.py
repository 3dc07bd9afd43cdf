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
from sklearn.datasets import load_svmlight_file

from dmo.formats.files import DataError, lines

_LARGEST = 1 << 48  # features
Labels = list[tuple[float, ...]]


@dataclass(frozen=True)
class Svmlight:
    """What one pass over a file found, and its rows block by block.

    Attributes: `path`; `shape` (n, d), d one more than the largest index (or as the first line says); `base`, the index
    of the first feature (0 or 1); `labels`, the label numbers of each row; `skip`, lines before the first row.
    """

    path: Path
    shape: tuple[int, int]
    base: int
    labels: Labels
    skip: int

    def blocks(self, size: int = 4096) -> Iterator[scipy.sparse.csr_array]:
        """The rows in order, at most `size` in a block: n_b x d, CSR float64."""
        for X, _ in _parse(self.path, self.skip, size):
            yield _fit(X, self.base, self.shape[1])

    def indicator(self, ids: Sequence[float] | None = None) -> np.ndarray:
        """The labels as an n x L uint8 matrix of 0 and 1, columns as `ids` (None: those of this file).

        Raises DataError where a row has a label that is not among `ids`.
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
    """Scan an svmlight file (multi-label, plain or compressed): one pass that keeps the labels alone.

    A first line of three numbers "rows features labels", as in the extreme-classification repository, gives the shape.
    Arguments: `path`; `base`, the index of the first feature (None: 0 if index 0 occurs, else 1); `n_features`, d
    (None: from the first line, else from the largest index).
    Raises DataError with the line where a row is not svmlight, an index exceeds d, or the rows are fewer than promised.
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
    """Read a whole svmlight file: X (n x d CSR float64), Y (n x L uint8, 0/1), the label number of each column.

    Arguments and errors as `open_svmlight`.
    """
    file = open_svmlight(path, base, n_features)
    X = scipy.sparse.csr_array(scipy.sparse.vstack(list(file.blocks()), format="csr"))
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
