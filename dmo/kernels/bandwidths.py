"""Bandwidths from distances, over all pairs of rows or those of a random sample of rows."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from sklearn.utils import check_random_state

from dmo import blocks
from dmo.errors import UserError
from dmo.kernels import loops, pairs, rows, threads
from dmo.kernels.rows import Prepared

SAMPLE = 8192
"""Rows whose pairs decide a bandwidth, at most."""
RULES = ("mean", "median", "mean-fifth-neighbor")
"""Mean or median distance of the pairs i != j; mean distance to the fifth nearest neighbor (Liu, Lin, Yu 2009)."""
RandomState: TypeAlias = int | np.random.Generator | np.random.RandomState | None
"""A seed, a generator that goes on, or None: another draw every time."""


def check(bandwidth: float | str, owner: str) -> None:
    """Raise ValueError unless `bandwidth` is a rule or a positive number."""
    if isinstance(bandwidth, str):
        if bandwidth not in RULES:
            known = ", ".join(repr(rule) for rule in RULES)
            hint = rows.nearest(bandwidth, RULES)
            raise UserError(f"{owner}: bandwidth must be a number or one of {known}, got {bandwidth!r}{hint}")
    elif not (np.isfinite(bandwidth) and bandwidth > 0):
        raise UserError(f"{owner}: bandwidth must be a positive number, got {bandwidth!r}; give one, or a rule")


def sample(n: int, random_state: RandomState, most: int | None = None) -> np.ndarray | None:
    """Sorted row numbers of a random sample of `most` (None: SAMPLE) of n rows, None where all are taken."""
    most = SAMPLE if most is None else most
    if n <= most:
        return None
    generator = np.random.default_rng(random_state) if isinstance(random_state, np.random.Generator) else None
    generator = check_random_state(random_state) if generator is None else generator
    return np.sort(generator.choice(n, most, replace=False))


def counted(n: int, random_state: RandomState, weights: np.ndarray | None) -> np.ndarray | None:
    """`sample` of the rows whose weight is not 0; half as many with weights, whose medians sort all pairs."""
    if weights is None:
        return sample(n, random_state)
    some = np.flatnonzero(weights)
    index = sample(len(some), random_state, SAMPLE // 2)
    return (None if len(some) == n else some) if index is None else some[index]


def central_row(
    X: blocks.Rows, index: np.ndarray | None, normalize: str | None, owner: str, names: np.ndarray | None = None
) -> np.ndarray:
    """Mean (d, float64) of up to 512 normalized rows, evenly spaced among the rows `index` (all when None) of X.

    Any point amid the rows serves to center them. Errors name row i `names[i]`.
    """
    index = np.arange(X.shape[0]) if index is None else index
    index = index[:: max(1, -(-len(index) // 512))]
    names = index if names is None else names[index]
    needs = normalize == "hellinger"
    return rows.ready(X[index], normalize, None, np.float64, True, needs, owner, names)[0].mean(axis=0)


def strips(n: int) -> list[slice]:
    """Row strips of a lower triangle, of equal height up to 1024: the fastest in a product and while cached."""
    count = max(1, -(-n // 1024))
    return blocks.row_blocks(n, max(1, -(-n // count)))


def resolve(
    rule: str,
    pair: str,
    p: Prepared,
    K: np.ndarray,
    index: np.ndarray | None,
    floor: float,
    n_threads: int | None,
    owner: str,
    weights: np.ndarray | None = None,
) -> float:
    """The bandwidth that `rule` gives for the rows `index` (all when None) of p."""
    # Arguments: `K` n x n, its lower triangle holds the pair values of p ("dot": inner products, else distances);
    # `floor`: distances up to here are rounding; `weights` (n): how often each row counts, above 0. Raises ValueError
    # where there are too few rows, or all are equal.
    h = p.norms.astype(p.dtype)
    if index is not None:
        K, h = K[np.ix_(index, index)], h[index]
    n, least = len(h), 6 if rule == "mean-fifth-neighbor" else 2
    if n < least:
        raise UserError(f"{owner}: bandwidth {rule!r} needs at least {least} rows, got {n}; give it a number")
    euclidean = pair == "dot"
    if rule == "mean" and weights is None:
        value = _mean(K, h, euclidean, n_threads)
    else:
        if euclidean:
            K = K if index is not None else K.copy()
            change = pairs.EntryMap(loops.EUCLIDEAN)
            threads.over_rows(
                lambda start, stop: loops.map_lower(*change.numbers(K.dtype), K, start, stop, h, False), n, n_threads
            )
        if weights is not None:
            value = _WEIGHTED[rule](K, weights.astype(np.float64))
        else:
            value = _median(K) if rule == "median" else _fifth_neighbor(K)
    if not value > floor:
        raise UserError(
            f"{owner}: bandwidth {rule!r} is 0 because rows are equal (or all features constant, or too small: their "
            f"squares leave {p.dtype}); drop the constant view, multiply the features, or give the bandwidth as a number"
        )
    return value


def _mean(K: np.ndarray, h: np.ndarray, euclidean: bool, n_threads: int | None) -> float:
    n = len(h)
    sums: dict[int, float] = {}

    def task(start: int, stop: int) -> None:
        for where in blocks.row_blocks(stop - start, 32):  # fixed pieces: the sum does not depend on the threads
            begin = start + where.start
            sums[begin] = loops.lower_sum(K, begin, start + where.stop, h, euclidean)

    threads.over_rows(task, n, n_threads)
    return sum(sums[start] for start in sorted(sums)) / (n * (n - 1) / 2)


def _median(D: np.ndarray) -> float:
    n = len(D)
    values, end = np.empty(n * (n - 1) // 2, D.dtype), 0
    for i in range(1, n):
        values[end : end + i] = D[i, :i]
        end += i
    return float(np.median(values, overwrite_input=True))


def _fifth_neighbor(D: np.ndarray) -> float:
    """Mean of each row's fifth smallest distance to another row."""
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
    """Pairs of a row with itself, at distance 0: w (w - 1) / 2 of a row that counts w times, none where w is below 1."""
    return float(np.maximum(weights * (weights - 1), 0.0).sum() / 2)


def _weighted_mean(D: np.ndarray, weights: np.ndarray) -> float:
    total = sum(float(weights[i] * (D[i, :i].astype(np.float64) @ weights[:i])) for i in range(1, len(D)))
    pairs_of = (weights.sum() ** 2 - weights @ weights) / 2
    return total / float(pairs_of + _copies(weights))


def _weighted_median(D: np.ndarray, weights: np.ndarray) -> float:
    """The mean of the values at which half of the pairs' weights is reached and passed, as np.median of an even count."""
    lower = np.tril_indices(len(D), -1)
    values = np.append(D[lower], D.dtype.type(0))
    counts = np.append(weights[lower[0]] * weights[lower[1]], _copies(weights))
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(counts[order])
    half = reached[-1] / 2
    at = [min(int(np.searchsorted(reached, half, side)), len(order) - 1) for side in ("left", "right")]
    return float(values[order[at]].astype(np.float64).mean())


def _weighted_fifth(D: np.ndarray, weights: np.ndarray) -> float:
    """Of every row the distance to which there are five others; to the farthest, where all weigh less."""
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
