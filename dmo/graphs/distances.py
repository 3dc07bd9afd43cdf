"""Preparation of samples for the neighbor search, and float64 distances of given pairs of samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse

from dmo.blocks import Rows, canonical, double, row_blocks, rows, scaled_rows, squared_norms, stored_values
from dmo.errors import UserError
from dmo.graphs import loops
from dmo.threads import over_rows

Matrix = Any
"""Data matrix of shape (n, d) in memory, which is a NumPy array or a SciPy CSR array."""


@dataclass(frozen=True)
class Ready:
    """Samples after scaling and centering, for the computation of inner products."""

    source: Matrix  # Original rows (n x d).
    scale: np.ndarray  # Factor of each row, which is 1 / norm for the cosine metric and otherwise 1.
    offset: np.ndarray | None  # Mean of the rows if they are centered, otherwise None.
    values: Matrix  # Rows `scale` * `source` - `offset`, in the precision of the inner products.
    # Float64 term h of each row y. The search keys h - 2 x'y order the rows y by their distance to a row x.
    h64: np.ndarray
    length: np.ndarray  # Norm of each row of `values`.
    rounding: float  # Bound of the floating-point error of search keys, relative to squared norms.
    metric: Any  # "euclidean" or "cosine"

    def __len__(self) -> int:
        return len(self.scale)

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    @property
    def h(self) -> np.ndarray:
        return self.h64.astype(self.dtype)

    def take(self, picked: np.ndarray) -> Ready:
        """Select rows by their indices."""
        return replace(
            self,
            source=self.source[picked],
            scale=self.scale[picked],
            values=self.values[picked],
            h64=self.h64[picked],
            length=self.length[picked],
        )

    def doubled(self) -> Ready:
        """Return a copy with float64 values, for inner products in float64."""
        if self.dtype == np.float64:
            return self
        return replace(self, values=_dense_values(self.source, self.scale, self.offset, np.float64))

    def like64(self) -> Ready:
        """Return a copy that converts blocks of values to float64 on access, in order to save memory."""
        if self.dtype == np.float64:
            return self
        lazy = _Lazy(self)
        h = self.h64.copy()
        if self.metric != "cosine":
            for where in row_blocks(len(h), 4096):
                h[where] = np.square(lazy[where]).sum(axis=1)
        return replace(self, values=lazy, h64=h)

    def transposed(self, where: slice) -> Any:
        """Return a transposed block of rows, for use as the right factor in `products`."""
        return self.values[where].T

    def products(self, where: slice, inner: Any) -> np.ndarray:
        """Compute inner products of a block of rows with the rows that `transposed` returned."""
        return self.values[where] @ inner

    def _loop(self, new: Ready) -> tuple[Any, tuple[Any, ...]]:
        """Return the compiled loop that computes squared distances, and the arrays of new and known rows."""
        return loops.dense_distances, (new.source, self.source)

    def squared_to(self, new: Ready, pairs: np.ndarray) -> np.ndarray:
        """Compute squared float64 distances of row i of `new` to own rows pairs[i, c], or inf if pairs[i, c] is -1."""
        out = np.full(pairs.shape, np.inf)
        loop, arrays = self._loop(new)
        over_rows(lambda start, stop: loop(*arrays, new.scale, self.scale, pairs, start, stop, out), len(out))
        if self.metric == "cosine":
            empty = (new.scale == 0)[:, None] | (self.scale == 0)[pairs]
            out[empty & (pairs >= 0)] = 2.0
        return out

    def as_distances(self, squared: np.ndarray) -> np.ndarray:
        """Convert squared Euclidean distances of the scaled rows to distances in the metric of the search."""
        return squared / 2 if self.metric == "cosine" else np.sqrt(squared)


@dataclass(frozen=True)
class ReadyCsr(Ready):
    """CSR samples, which are scaled but not centered. Inner products use compiled loops."""

    def transposed(self, where: slice) -> Any:
        return scipy.sparse.csc_array(self.values[where])

    def products(self, where: slice, inner: Any) -> np.ndarray:
        block = self.values[where]
        S = np.empty((block.shape[0], inner.shape[0]))
        x, z = (block.indptr, block.indices, block.data), (inner.indptr, inner.indices, inner.data)
        over_rows(lambda start, stop: loops.sparse_products(S, start, stop, *x, *z), len(S))
        return S

    def _loop(self, new: Ready) -> tuple[Any, tuple[Any, ...]]:
        x, y = new.source, self.source
        return loops.sparse_distances, (x.indptr, x.indices, x.data, y.indptr, y.indices, y.data)


class _Lazy:
    """Scaled and centered rows in float64, computed on access."""

    dtype = np.dtype(np.float64)

    def __init__(self, ready: Ready) -> None:
        self.ready = ready

    def __getitem__(self, where: slice) -> np.ndarray:
        r = self.ready
        return _dense_values(r.source[where], r.scale[where], r.offset, np.float64)


def read(X: Rows) -> Matrix:
    """Read all samples into memory, as a dense array or a CSR array, and check that they are finite."""
    block: Any = rows(X if hasattr(X, "shape") else np.asarray(X))
    if len(block.shape) != 2 or block.dtype.kind not in "buif":
        raise UserError(f"graphs: needs a matrix of numbers, got shape {block.shape} of {block.dtype}")
    values = stored_values(block)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise UserError("graphs: the rows hold NaN or infinity; impute missing values, or drop those rows")
    if scipy.sparse.issparse(block):
        return canonical(double(block))
    return np.ascontiguousarray(block, block.dtype if block.dtype in (np.float32, np.float64) else np.float64)


def prepare(X: Matrix, metric: str, like: Ready | None = None) -> Ready:
    """Scale and center samples for a search. New samples use the offset of the known samples `like`."""
    kind: type[Ready] = Ready
    squares, cosine = squared_norms(X), metric == "cosine"
    with np.errstate(divide="ignore"):
        scale = np.where(squares > 0, 1 / np.sqrt(squares), 0.0) if cosine else np.ones(X.shape[0])
    if scipy.sparse.issparse(X):
        kind, offset, values, rounding = ReadyCsr, None, scaled_rows(X, scale), 0.0
    else:
        exact = not cosine and (like is None or like.rounding == 0.0) and _whole_numbers(X, squares)
        if like is not None:
            offset = like.offset
        else:
            offset = None if cosine or exact else X.mean(axis=0, dtype=np.float64)
        values = _dense_values(X, scale, offset, np.float32)
        rounding = 0.0 if exact else float(np.finfo(np.float32).eps / 2 * (16 + 4 * np.sqrt(X.shape[1])))
    lengths = squared_norms(values)
    h = np.ones(len(lengths)) if cosine else lengths
    return kind(X, scale, offset, values, h, np.sqrt(lengths), rounding, metric)


def _whole_numbers(X: np.ndarray, squares: np.ndarray) -> bool:
    """Return whether float32 inner products of the rows are exact, because they are integers of small norm."""
    if squares.max(initial=0.0) >= 2**22 or not np.array_equal(X[:64], np.rint(X[:64])):
        return False
    return all(np.array_equal(X[where], np.rint(X[where])) for where in row_blocks(len(X), 4096))


def _dense_values(X: np.ndarray, scale: np.ndarray, offset: np.ndarray | None, dtype: Any) -> np.ndarray:
    out = np.empty(X.shape, dtype)
    for where in row_blocks(len(X), 4096):
        block = X[where].astype(np.float64) * scale[where, None]
        out[where] = block if offset is None else block - offset
    return out
