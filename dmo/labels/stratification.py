"""Stratified splits of multi-label data, which preserve the frequency of every label in each part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse

from dmo.blocks import known_sums, stored_values
from dmo.errors import UserError


def stratified_folds(
    Y: Any, folds: int | Sequence[float], random_state: int | np.random.Generator | None = 0, order: int = 1
) -> np.ndarray:
    """Assign samples to parts such that every label has nearly the same frequency in each part.

    With order=2, the frequencies of pairs of labels are also preserved. Regression targets are assigned at random.
    """
    # The size of each part is fixed in advance. The algorithm repeatedly chooses the label with the fewest unassigned
    # samples. Each of these samples is assigned to the part that still lacks the most samples of this label. If a part
    # lacks less than one sample, the numbers of lacking samples are rounded down to integers, and ties are resolved by
    # the largest fraction of free places. Without rounding, a small part would receive hardly any samples of rare
    # labels. For multiclass targets, the parts are as balanced as in stratified k-fold cross-validation.
    #
    # Source: Sechidis, Tsoumakas, Vlahavas 2011, "On the stratification of multi-label data", algorithm 1. Pairs are
    # treated as additional labels as in Szymanski, Kajdanowicz 2017, "A network perspective on stratification of
    # multi-label data".
    n = Y.shape[0]
    shares = np.full(folds, 1.0) if isinstance(folds, (int, np.integer)) and folds > 0 else np.asarray(folds, float)
    if shares.ndim != 1 or not 2 <= len(shares) <= n:
        raise UserError(f"folds = {folds} for {n} samples; expected a number of folds from 2 to {n}")
    if not (shares > 0).all():
        raise UserError(f"folds = {folds}; every part needs a fraction above 0")
    shares, rng = shares / shares.sum(), np.random.default_rng(random_state)
    turn = rng.permutation(n)
    by_chance = np.empty(n, dtype=np.intp)
    by_chance[turn] = np.searchsorted(np.cumsum(shares)[:-1], (np.arange(n) + 0.5) / n)
    entries = stored_values(Y)
    if not ((entries == 0) | (entries == 1)).all():
        return by_chance
    part = np.empty(n, dtype=np.intp)
    labels = scipy.sparse.csr_array(Y, dtype=bool)[turn]
    labels.eliminate_zeros()
    part[turn] = _dealt(labels if order == 1 else _with_pairs(labels), shares, rng)
    return part


def describe_test_split(Y: Any, test: np.ndarray, share: float) -> str:
    """Describe the size of a test split, and how far the test fraction of any label differs from `share`."""
    counts, held = known_sums(Y)[0], known_sums(Y[test])[0]
    there = counts > 0
    counts, held = counts[there], held[there]
    far = np.abs(held / counts - share).max(initial=0.0)
    return (
        f"test split: {test.sum()} of {len(test)} samples; the test share of a label differs from {share:g} by at most "
        f"{far:.2g}; {(held == 0).sum()} of {len(counts)} labels have no test sample, {(held == counts).sum()} no "
        "training sample"
    )


def _with_pairs(Y: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """Append a column for each pair of labels that occurs in a sample."""
    sizes, L = np.diff(Y.indptr).astype(np.int64), Y.shape[1]
    rows, first, second = [], [], []
    for size in np.unique(sizes[sizes > 1]):
        among = np.flatnonzero(sizes == size)
        held = np.sort(Y.indices[Y.indptr[among][:, None] + np.arange(size)], axis=1).astype(np.int64)
        a, b = np.triu_indices(size, 1)
        rows.append(np.repeat(among, len(a)))
        first.append(held[:, a].ravel())
        second.append(held[:, b].ravel())
    if not rows:
        return Y
    kinds, pair = np.unique(np.concatenate(first) * L + np.concatenate(second), return_inverse=True)
    pairs = scipy.sparse.csr_array((np.ones(len(pair), bool), (np.concatenate(rows), pair)), (Y.shape[0], len(kinds)))
    return scipy.sparse.hstack([Y, pairs], format="csr")


def _dealt(Y: scipy.sparse.csr_array, shares: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Assign samples to parts by iterative stratification."""
    n, part, columns = Y.shape[0], np.full(Y.shape[0], -1, dtype=np.intp), Y.tocsc()
    columns.sort_indices()
    left = np.diff(columns.indptr).astype(np.int64)  # Number of unassigned samples of each label.
    # `lacking` contains the number of samples of each label that each part still lacks.
    lacking, chance = np.outer(shares, left), rng.permutation(len(shares))
    size = _sizes(shares * n, chance)
    room = size.copy()
    while left.any():
        label = int(np.where(left > 0, left, n + 1).argmin())
        some = columns.indices[columns.indptr[label] : columns.indptr[label + 1]]
        some = some[part[some] < 0]
        wish = lacking[:, label].round(9)  # Fractions such as 1/3 have rounding errors.
        wish = np.floor(wish) if (wish < 1).any() else wish
        part[some] = to = _in_turn(len(some), wish, room, size, chance)
        for p in np.unique(to):
            given = Y[some[to == p]]
            found, times = np.unique(given.indices, return_counts=True)
            room[p] -= given.shape[0]
            lacking[p, found] -= times
            left[found] -= times
    rest = np.flatnonzero(part < 0)
    part[rest] = _in_turn(len(rest), room, room, size, chance)
    return part


def _sizes(wish: np.ndarray, chance: np.ndarray) -> np.ndarray:
    """Round the sizes of the parts to positive integers by largest remainders, with ties resolved by `chance`."""
    n, size = round(wish.sum()), np.maximum(np.floor(wish.round(9)), 1).astype(np.intp)
    while size.sum() < n:
        size[np.lexsort((chance, (wish - size).round(9)))[-1]] += 1
    while size.sum() > n:
        size[np.argmin(np.where(size > 1, wish - size, np.inf).round(9))] -= 1
    return size


def _in_turn(count: int, wish: np.ndarray, room: np.ndarray, size: np.ndarray, chance: np.ndarray) -> np.ndarray:
    """Assign each of `count` samples to the part with the most remaining `wish`, then free places, then `chance`."""
    # Each assignment changes the sort keys of a part by a known amount, so a single sort of all keys yields the order
    # of the assignments.
    most = np.clip(room, 0, count)
    part = np.repeat(np.arange(len(wish)), most)
    nth = np.arange(len(part)) - np.repeat(np.cumsum(most) - most, most)
    keys = (wish[part] - nth).round(9), ((room[part] - nth - 0.5) / size[part]).round(9)
    return part[np.lexsort((chance[part], *reversed(keys)))[::-1][:count]]
