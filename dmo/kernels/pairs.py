"""Inner products and distances of all pairs of rows, kernel values computed from them, and bandwidth rules.

The argument `pair` names a function of two rows x and y. "dot" is x'y, "l2" is |x - y|, "l1" is sum |x - y|, "chi2" is
sum (x - y)^2 / (x + y), and "min" is sum min(x, y).

Inner products of dense rows are computed by BLAS. For CSR rows, only features that are nonzero in both rows are
evaluated, because |x - y|_1 = |x|_1 + |y|_1 - 2 sum min(x, y) and chi2 = sum x + sum y - 4 sum x y / (x + y). For "l1",
"chi2" and "min", dense rows with many zeros are converted to CSR. Other dense rows are compared feature by feature, in
order to avoid cancellation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import scipy.sparse

from dmo import blocks, threads
from dmo.errors import UserError
from dmo.kernels import loops, rows
from dmo.kernels.rows import SPARSE_BELOW, Matrix, Prepared, as_common, readable

THROUGH_COMMON = {
    "dot": (loops.DOT, 0.0),
    "l2": (loops.DOT, 0.0),
    "min": (loops.MIN, 0.0),
    "l1": (loops.MIN, 2.0),
    "chi2": (loops.CHI2, 4.0),
}
"""Function that is summed over the features that are nonzero in both rows x and y, and a factor of the sum.

The value is norm(x) + norm(y) - factor * sum, or the sum if the factor is 0.
"""
FEATURE_BY_FEATURE = {"min": loops.MIN, "l1": loops.L1_DIRECT, "chi2": loops.CHI2_DIRECT}
NEAR = 1e-4
"""Fraction of |x|^2 + |y|^2 below which a squared Euclidean distance is recomputed from differences of the rows.

Smaller squared distances lose precision by cancellation.
"""


@dataclass(frozen=True)
class EntryMap:
    """Function that maps the inner product or distance of two rows to a kernel value, with its parameters."""

    op: int = loops.IDENTITY
    a: float = 1.0
    b: float = 0.0
    power: int = 1

    def norms(self, prepared: Prepared) -> np.ndarray:
        """Return the norm of each row, scaled as the function requires, in the data type of the kernel values."""
        weight = -0.5 * self.a if self.op == loops.GAUSSIAN else 1.0
        return (weight * prepared.norms).astype(prepared.dtype)

    def numbers(self, dtype: np.dtype) -> tuple[int, float, float, int]:
        return self.op, dtype.type(self.a), dtype.type(self.b), self.power


def go_sparse(X: Matrix) -> Matrix:
    """Convert a dense matrix to CSR if most entries are zero. Other matrices are returned unchanged."""
    if scipy.sparse.issparse(X) or X.size == 0:
        return X
    X = np.ascontiguousarray(X) if X.dtype.isnative and X.dtype.kind in "iu" else readable(X)
    indptr = np.append(0, np.cumsum(np.count_nonzero(X, axis=1)))
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
) -> None:
    """Write inner products or distances of rows x_i and y_j to K[first + i, j].

    With `lower`, x consists of the rows of y from row `first`, and only the lower triangle of K must be written.
    """
    dense = not scipy.sparse.issparse(x.values) and not scipy.sparse.issparse(y.values)
    if dense and pair in ("dot", "l2"):
        if lower:
            # NumPy uses a faster symmetric BLAS product for the diagonal block, so multiply this block separately.
            if first:
                np.matmul(x.values, y.values[:first].T, out=K[first : first + len(x), :first])
            np.matmul(x.values, x.values.T, out=K[first : first + len(x), first : first + len(x)])
        else:
            np.matmul(x.values, y.values.T, out=K[first : first + len(x), : len(y)])
    elif dense:
        task = partial(_dense, FEATURE_BY_FEATURE[pair], x, y, K, first, lower)
        threads.over_rows(task, len(x), least=64)
    else:
        _fill_common(pair, x, y, K, first, lower)
    if pair == "l2":
        _euclidean(x, y, K, first, lower)


def _dense(pair: int, x: Prepared, y: Prepared, K: np.ndarray, first: int, lower: bool, start: int, stop: int) -> None:
    loops.dense_pairs(pair, x.values, y.values, start, stop, K, first, lower)


def _triple(values: scipy.sparse.csr_array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return values.data, values.indices, values.indptr


def _fill_common(pair: str, x: Prepared, y: Prepared, K: np.ndarray, first: int, lower: bool) -> None:
    code, factor = THROUGH_COMMON[pair]
    left = as_common(x.values, pair == "l1")
    right = left if y is x else as_common(y.values, pair == "l1")

    def task(start: int, stop: int) -> None:
        loops.sparse_pairs(
            code, factor, _triple(left), _triple(right), left.shape[1], start, stop, x.norms, y.norms, K, first, lower
        )

    threads.over_rows(task, len(x), least=256)


def _euclidean(x: Prepared, y: Prepared, K: np.ndarray, first: int, lower: bool) -> None:
    """Convert inner products to Euclidean distances, and recompute small distances from the differences of rows."""
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

    threads.over_rows(task, len(x))


def finish(change: EntryMap, x: Prepared, y: Prepared, K: np.ndarray) -> None:
    """Convert inner products or distances in K to kernel values in place."""
    if change.op == loops.IDENTITY:
        return
    hx, hy = change.norms(x), change.norms(y)
    threads.over_rows(lambda start, stop: loops.map_tile(*change.numbers(K.dtype), K, start, stop, hx, hy), len(x))


def map_lower(change: EntryMap, K: np.ndarray, h: np.ndarray, mirror: bool) -> None:
    """Convert the lower triangle of K to kernel values in place, and copy it to the upper triangle if `mirror`."""
    numbers = change.numbers(K.dtype)
    threads.over_rows(lambda start, stop: loops.map_lower(*numbers, K, start, stop, h, mirror), len(h))


SAMPLE = 8192
"""Maximum number of rows from which a bandwidth is computed."""
RULES = ("mean", "median", "mean-fifth-neighbor")
"""Names of rules that set a bandwidth to a mean or median distance. The last rule is from Liu, Lin, Yu 2009."""
RandomState: TypeAlias = int | np.random.Generator | np.random.RandomState | None
"""Seed or random number generator. None draws a different sample in every call."""


def sample(n: int, random_state: RandomState, most: int | None = None) -> np.ndarray | None:
    """Draw sorted indices of `most` of n rows, by default 8192, or return None if no more rows exist."""
    most = SAMPLE if most is None else most
    if n <= most:
        return None
    from sklearn.utils import check_random_state  # A local import speeds up the import of this module.

    generator = np.random.default_rng(random_state) if isinstance(random_state, np.random.Generator) else None
    generator = check_random_state(random_state) if generator is None else generator
    return np.sort(generator.choice(n, most, replace=False))


def counted(n: int, random_state: RandomState, weights: np.ndarray | None) -> np.ndarray | None:
    """Draw a sample of the rows with nonzero weight, or return None for all rows."""
    # A weighted median sorts the distances of all pairs, so draw half as many rows if there are weights.
    if weights is None:
        return sample(n, random_state)
    some = np.flatnonzero(weights)
    index = sample(len(some), random_state, SAMPLE // 2)
    return (None if len(some) == n else some) if index is None else some[index]


def central_row(
    X: blocks.Rows, index: np.ndarray | None, normalize: str | None, owner: str, names: np.ndarray | None = None
) -> np.ndarray:
    """Compute the mean of up to 512 evenly spaced rows after normalization, as an offset for centering.

    The rows are chosen from `index`, or from all rows if `index` is None. Error messages refer to row i as `names[i]`.
    """
    index = np.arange(X.shape[0]) if index is None else index
    index = index[:: max(1, -(-len(index) // 512))]
    names = index if names is None else names[index]
    needs = normalize == "hellinger"
    return rows.ready(X[index], normalize, None, np.float64, True, needs, owner, names)[0].mean(axis=0)


def strips(n: int) -> list[slice]:
    """Split n rows into nearly equal blocks of at most 1024 rows, a size that is fast in matrix products."""
    count = max(1, -(-n // 1024))
    return blocks.row_blocks(n, max(1, -(-n // count)))


def resolve(
    rule: str,
    pair: str,
    p: Prepared,
    K: np.ndarray,
    index: np.ndarray | None,
    floor: float,
    owner: str,
    weights: np.ndarray | None = None,
) -> float:
    """Compute the bandwidth by a rule from the rows `index` of p, or from all rows. Raise UserError if it is 0."""
    # The lower triangle of `K` (n x n) contains inner products of the rows if `pair` is "dot", and otherwise distances.
    # A bandwidth of at most `floor` is indistinguishable from floating-point error. `weights` contains the positive
    # number of repetitions of each row.
    h = p.norms.astype(p.dtype)
    if index is not None:
        K, h = K[np.ix_(index, index)], h[index]
    n, least = len(h), 6 if rule == "mean-fifth-neighbor" else 2
    if n < least:
        raise UserError(f"{owner}: bandwidth {rule!r} needs at least {least} rows, got {n}; pass it as a number")
    euclidean = pair == "dot"
    if rule == "mean" and weights is None:
        value = _mean(K, h, euclidean)
    else:
        if euclidean:
            K = K if index is not None else K.copy()
            map_lower(EntryMap(loops.EUCLIDEAN), K, h, False)
        if weights is not None:
            value = _WEIGHTED[rule](K, weights.astype(np.float64))
        else:
            value = _median(K) if rule == "median" else _fifth_neighbor(K)
    if not value > floor:
        raise UserError(
            f"{owner}: bandwidth {rule!r} is 0 because rows are equal (or all features are constant, or too small: "
            f"their squares underflow in {p.dtype}); drop the constant view, scale the features, or pass a number"
        )
    return value


def _mean(K: np.ndarray, h: np.ndarray, euclidean: bool) -> float:
    n = len(h)
    sums: dict[int, float] = {}

    def task(start: int, stop: int) -> None:
        # With blocks of fixed size, the sum does not depend on the number of threads.
        for where in blocks.row_blocks(stop - start, 32):
            begin = start + where.start
            sums[begin] = loops.lower_sum(K, begin, start + where.stop, h, euclidean)

    threads.over_rows(task, n)
    return sum(sums[start] for start in sorted(sums)) / (n * (n - 1) / 2)


def _median(D: np.ndarray) -> float:
    n = len(D)
    values, end = np.empty(n * (n - 1) // 2, D.dtype), 0
    for i in range(1, n):
        values[end : end + i] = D[i, :i]
        end += i
    return float(np.median(values, overwrite_input=True))


def _fifth_neighbor(D: np.ndarray) -> float:
    """Compute the mean distance of rows to their fifth nearest neighbors."""
    n, total = len(D), 0.0
    for where in blocks.row_blocks(n, 256):
        block = np.empty((where.stop - where.start, n), D.dtype)
        block[:, : where.stop] = D[where, : where.stop]
        block[:, where.stop :] = D[where.stop :, where].T
        square = np.tril(D[where, where], -1)
        block[:, where] = square + square.T
        block[np.arange(len(block)), np.arange(where.start, where.stop)] = np.inf
        total += float(np.partition(block, 4, axis=1)[:, 4].sum(dtype=np.float64))
    return total / n


def _copies(weights: np.ndarray) -> float:
    """Count the pairs of copies of the same row, which are w (w - 1) / 2 pairs for a row that is repeated w times."""
    return float(np.maximum(weights * (weights - 1), 0.0).sum() / 2)


def _weighted_mean(D: np.ndarray, weights: np.ndarray) -> float:
    total = sum(float(weights[i] * (D[i, :i].astype(np.float64) @ weights[:i])) for i in range(1, len(D)))
    pairs_of = (weights.sum() ** 2 - weights @ weights) / 2
    return total / float(pairs_of + _copies(weights))


def _weighted_median(D: np.ndarray, weights: np.ndarray) -> float:
    """Compute the median distance over all pairs of rows, where row i is repeated weights[i] times."""
    lower = np.tril_indices(len(D), -1)
    values = np.append(D[lower], D.dtype.type(0))
    counts = np.append(weights[lower[0]] * weights[lower[1]], _copies(weights))
    return blocks.weighted_median(values, counts)


def _weighted_fifth(D: np.ndarray, weights: np.ndarray) -> float:
    """Compute the mean distance to the fifth nearest neighbor, where row i is repeated weights[i] times."""
    total = 0.0
    for i in range(len(D)):
        own = np.concatenate([D[i, :i], [0.0], D[i + 1 :, i]])
        counts = weights.copy()
        counts[i] = max(counts[i] - 1, 0.0)
        order = np.argsort(own, kind="stable")
        at = min(int(np.searchsorted(np.cumsum(counts[order]), 5.0)), len(order) - 1)
        total += float(weights[i] * own[order[at]])
    return total / float(weights.sum())


_WEIGHTED = {"mean": _weighted_mean, "median": _weighted_median, "mean-fifth-neighbor": _weighted_fifth}
