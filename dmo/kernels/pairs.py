"""Inner products and distances of all pairs of prepared rows, and what kernels make of them.

pair "dot" x'y; "l2" |x - y|; "l1" sum |x - y|; "chi2" sum (x - y)^2 / (x + y); "min" sum min(x, y).

Dense inner products are BLAS products. "l1", "chi2" and "min" of rows that are mostly zeros, and every product of CSR
rows, go through the features that both rows have: |x - y|_1 = |x|_1 + |y|_1 - 2 sum min(x, y), and
chi2 = sum x + sum y - 4 sum x y / (x + y); other dense rows are compared feature by feature, which loses no digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import scipy.sparse

from dmo.kernels import loops, threads
from dmo.kernels.rows import SPARSE_BELOW, Matrix, Prepared, as_common, readable

THROUGH_COMMON = {
    "dot": (loops.DOT, 0.0),
    "l2": (loops.DOT, 0.0),
    "min": (loops.MIN, 0.0),
    "l1": (loops.MIN, 2.0),
    "chi2": (loops.CHI2, 4.0),
}
"""What is summed over common features, and its factor in norm + norm - factor * sum (0: the sum itself)."""
FEATURE_BY_FEATURE = {"min": loops.MIN, "l1": loops.L1_DIRECT, "chi2": loops.CHI2_DIRECT}
NEAR = 1e-4
"""Squared Euclidean distances below this share of |x|^2 + |y|^2 are recomputed from the rows: products lose them."""


@dataclass(frozen=True)
class EntryMap:
    """What a kernel makes of a pair's value (`loops._map_row`): the operation and its numbers."""

    op: int = loops.IDENTITY
    a: float = 1.0
    b: float = 0.0
    power: int = 1

    def norms(self, prepared: Prepared) -> np.ndarray:
        """The part of the value that belongs to one row, in the dtype of the tile."""
        weight = -0.5 * self.a if self.op == loops.GAUSSIAN else 1.0
        return (weight * prepared.norms).astype(prepared.dtype)

    def numbers(self, dtype: np.dtype) -> tuple[int, float, float, int]:
        return self.op, dtype.type(self.a), dtype.type(self.b), self.power


def go_sparse(pair: str, X: Matrix) -> Matrix:
    """X as CSR where it is dense, mostly zeros, and the pair's value goes through common features."""
    if scipy.sparse.issparse(X) or pair not in FEATURE_BY_FEATURE or X.size == 0:
        return X
    X = np.ascontiguousarray(X) if X.dtype.isnative and X.dtype.kind in "iu" else readable(X)
    counts = np.zeros(len(X) + 1, np.int64)
    loops.count_entries(X, counts[1:])
    indptr = np.cumsum(counts)
    total = int(indptr[-1])
    if total >= SPARSE_BELOW * X.size:
        return X
    small = max(total, X.shape[1]) < np.iinfo(np.int32).max
    indices, data = np.empty(total + 1, np.int32 if small else np.int64), np.empty(total + 1, X.dtype)
    loops.fill_sparse(X, indptr, indices, data)
    held = (data[:-1], indices[:-1], indptr.astype(indices.dtype))
    made = scipy.sparse.csr_array(held, shape=X.shape)
    made.has_canonical_format = True
    return made


def fill(
    pair: str,
    x: Prepared,
    y: Prepared,
    K: np.ndarray,
    first: int = 0,
    lower: bool = False,
    n_threads: int | None = None,
) -> None:
    """Write the pair values of x_i and y_j to K[first + i, j]; with `lower` at least those with j <= first + i.

    With `lower`, x is the rows first, first + 1 ... of y. BLAS products use BLAS's threads, loops use `n_threads`.
    """
    dense = not scipy.sparse.issparse(x.values) and not scipy.sparse.issparse(y.values)
    if dense and pair in ("dot", "l2"):
        if lower:  # the square on the diagonal apart: NumPy takes BLAS's symmetric product for it
            if first:
                np.matmul(x.values, y.values[:first].T, out=K[first : first + len(x), :first])
            np.matmul(x.values, x.values.T, out=K[first : first + len(x), first : first + len(x)])
        else:
            np.matmul(x.values, y.values.T, out=K[first : first + len(x), : len(y)])
    elif dense:
        task = partial(_dense, FEATURE_BY_FEATURE[pair], x, y, K, first, lower)
        threads.over_rows(task, len(x), n_threads, least=64)
    else:
        _fill_common(pair, x, y, K, first, lower, n_threads)
    if pair == "l2":
        _euclidean(x, y, K, first, lower, n_threads)


def _dense(pair: int, x: Prepared, y: Prepared, K: np.ndarray, first: int, lower: bool, start: int, stop: int) -> None:
    loops.dense_pairs(pair, x.values, y.values, start, stop, K, first, lower)


def _triple(values: scipy.sparse.csr_array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return values.data, values.indices, values.indptr


def _fill_common(
    pair: str, x: Prepared, y: Prepared, K: np.ndarray, first: int, lower: bool, n_threads: int | None
) -> None:
    code, factor = THROUGH_COMMON[pair]
    left = as_common(x.values, pair == "l1")
    right = left if y is x else as_common(y.values, pair == "l1")

    def task(start: int, stop: int) -> None:
        loops.sparse_pairs(
            code, factor, _triple(left), _triple(right), left.shape[1], start, stop, x.norms, y.norms, K, first, lower
        )

    threads.over_rows(task, len(x), n_threads, least=256)


def _euclidean(x: Prepared, y: Prepared, K: np.ndarray, first: int, lower: bool, n_threads: int | None) -> None:
    """Turn inner products into distances, those of near rows recomputed from the rows."""
    sparse = scipy.sparse.issparse(x.values) or scipy.sparse.issparse(y.values)
    left, right = x.values, y.values
    if sparse:
        left, right = _triple(scipy.sparse.csr_array(left)), _triple(scipy.sparse.csr_array(right))
    refine = loops.refine_sparse if sparse else loops.refine_dense
    change = EntryMap(loops.EUCLIDEAN)
    hx, hy = change.norms(x), change.norms(y)

    def task(start: int, stop: int) -> None:
        if lower:
            loops.map_lower(*change.numbers(K.dtype), K, first + start, first + stop, hy, False)
        else:
            loops.map_tile(*change.numbers(K.dtype), K[first : first + len(x)], start, stop, hx, hy)
        refine(left, right, start, stop, x.norms, y.norms, NEAR, K, first, lower)

    threads.over_rows(task, len(x), n_threads)


def finish(change: EntryMap, x: Prepared, y: Prepared, K: np.ndarray, n_threads: int | None = None) -> None:
    """Turn a tile of pair values into kernel values."""
    if change.op == loops.IDENTITY:
        return
    hx, hy = change.norms(x), change.norms(y)
    threads.over_rows(
        lambda start, stop: loops.map_tile(*change.numbers(K.dtype), K, start, stop, hx, hy), len(x), n_threads
    )


def finish_lower(change: EntryMap, x: Prepared, K: np.ndarray, n_threads: int | None = None) -> None:
    """Turn the pair values in the lower triangle into kernel values and copy them above the diagonal."""
    h = change.norms(x)
    threads.over_rows(
        lambda start, stop: loops.map_lower(*change.numbers(K.dtype), K, start, stop, h, True), len(x), n_threads
    )
