"""Samples dealt out so that every label, rare ones first, is in every part in its share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse

from dmo.errors import UserError


def stratified_folds(
    Y: Any, folds: int | Sequence[float], random_state: int | np.random.Generator | None = 0, order: int = 1
) -> np.ndarray:
    """Deal samples out to parts in which every label, and with `order` 2 every pair of labels, has its share.

    Y (n, L), dense or sparse -> (n,)
    """
    # The label with the fewest samples left is dealt out first, each of its samples to the part that lacks the label
    # most, then the one that lacks samples most. Labels of one per sample come out as by a stratified k-fold. Columns
    # that are not 0/1 cannot be counted: targets of other numbers are dealt out at random.
    #
    # Sechidis, Tsoumakas, Vlahavas 2011, "On the stratification of multi-label data", algorithm 1. Pairs are dealt as
    # labels of their own: Szymanski, Kajdanowicz 2017, "A network perspective on stratification of multi-label data".
    n = Y.shape[0]
    shares = np.full(folds, 1.0) if isinstance(folds, (int, np.integer)) and folds > 0 else np.asarray(folds, float)
    if shares.ndim != 1 or not 2 <= len(shares) <= n:
        raise UserError(f"folds = {folds} for {n} samples; needed is 2 <= folds <= samples")
    if not (shares > 0).all():
        raise UserError(f"folds = {folds}; every part needs a share above 0")
    shares, rng = shares / shares.sum(), np.random.default_rng(random_state)
    turn = rng.permutation(n)
    by_chance = np.empty(n, dtype=np.intp)
    by_chance[turn] = np.searchsorted(np.cumsum(shares)[:-1], (np.arange(n) + 0.5) / n)
    entries = Y.data if scipy.sparse.issparse(Y) else Y
    if not ((entries == 0) | (entries == 1)).all():
        return by_chance
    part = np.empty(n, dtype=np.intp)
    labels = scipy.sparse.csr_array(Y if scipy.sparse.issparse(Y) else np.asarray(Y, dtype=bool))[turn]
    labels.eliminate_zeros()
    part[turn] = _dealt(labels if order == 1 else _with_pairs(labels), shares, rng)
    return part if len(np.unique(part)) == len(shares) else by_chance  # a handful of samples: no part stays empty


def _with_pairs(Y: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """Labels and, as labels of their own, the pairs that samples have."""
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
    """The part of every sample, in the order in which they are dealt.

    Y (n, L) -> (n,)
    """
    n, part, columns = Y.shape[0], np.full(Y.shape[0], -1, dtype=np.intp), Y.tocsc()
    columns.sort_indices()
    left = np.diff(columns.indptr).astype(np.int64)  # samples not yet dealt out
    lacking, room = np.outer(shares, left), shares * n  # of every label, by part
    chance = rng.permutation(len(shares))
    while left.any():
        label = int(np.where(left > 0, left, n + 1).argmin())
        some = columns.indices[columns.indptr[label] : columns.indptr[label + 1]]
        some = some[part[some] < 0]
        part[some] = to = _in_turn(len(some), lacking[:, label], room, chance)
        for p in np.unique(to):
            given = Y[some[to == p]]
            found, times = np.unique(given.indices, return_counts=True)
            room[p] -= given.shape[0]
            lacking[p, found] -= times
            left[found] -= times
    rest = np.flatnonzero(part < 0)
    part[rest] = _in_turn(len(rest), room, room, chance)
    return part


def _in_turn(count: int, wish: np.ndarray, room: np.ndarray, chance: np.ndarray) -> np.ndarray:
    """The parts that `count` samples go to, each to the one that wishes most, then has most room, then by `chance`."""
    # A part that gets a sample has one less of both. So each part's wishes fall one by one, and the parts' sequences
    # are merged by one sort, up to the level that `count` samples cannot go below.
    most = np.clip(np.ceil(wish - (wish.sum() - count) / len(wish)) + 2, 0, count).astype(np.intp)
    part = np.repeat(np.arange(len(wish)), most)
    nth = np.arange(len(part)) - np.repeat(np.cumsum(most) - most, most)
    keys = np.round(wish[part] - nth, 9), np.round(room[part] - nth, 9)  # ties are ties: a third is no exact number
    return part[np.lexsort((chance[part], *reversed(keys)))[::-1][:count]]
