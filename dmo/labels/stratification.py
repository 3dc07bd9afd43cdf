"""Samples dealt out so that every label, rare ones first, is in every part in its share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dmo.errors import UserError


def stratified_folds(Y: np.ndarray, folds: int | Sequence[float], random_state: int | None = 0) -> np.ndarray:
    """Deal samples out to parts in which every label has its share: iterative stratification.

    Y (n, L) -> (n,)
    """
    # The label with the fewest samples left is dealt out first, each of its samples to the part that lacks the label
    # most, then the one that lacks samples most. Labels of one per sample come out as by a stratified k-fold. Columns
    # that are not 0/1 cannot be counted: targets of other numbers are dealt out at random.
    #
    # Sechidis, Tsoumakas, Vlahavas 2011, "On the stratification of multi-label data", algorithm 1.
    n = len(Y)
    shares = np.full(folds, 1.0) if isinstance(folds, (int, np.integer)) and folds > 0 else np.asarray(folds, float)
    if shares.ndim != 1 or not 2 <= len(shares) <= n:
        raise UserError(f"folds = {folds} for {n} samples; needed is 2 <= folds <= samples")
    if not (shares > 0).all():
        raise UserError(f"folds = {folds}; every part needs a share above 0")
    shares, rng = shares / shares.sum(), np.random.default_rng(random_state)
    order = rng.permutation(n)
    by_chance = np.empty(n, dtype=np.intp)
    by_chance[order] = np.searchsorted(np.cumsum(shares)[:-1], (np.arange(n) + 0.5) / n)
    if not ((Y == 0) | (Y == 1)).all():
        return by_chance
    part = _dealt(np.asarray(Y, dtype=bool), shares, order, rng)
    return part if len(np.unique(part)) == len(shares) else by_chance  # a handful of samples: no part stays empty


def _dealt(Y: np.ndarray, shares: np.ndarray, order: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    part = np.full(len(Y), -1, dtype=np.intp)
    lacking, left = np.outer(shares, Y.sum(axis=0)), Y.sum(axis=0)  # of every label, by part; samples not yet dealt out
    room = shares * len(Y)
    chance = rng.permutation(len(shares))
    while left.any():
        label = int(np.where(left > 0, left, len(Y) + 1).argmin())
        some = order[Y[order, label] & (part[order] < 0)]
        part[some] = to = _in_turn(len(some), lacking[:, label], room, chance)
        for p in np.unique(to):
            given = Y[some[to == p]]
            room[p] -= len(given)
            lacking[p] -= given.sum(axis=0)
            left -= given.sum(axis=0)
    rest = order[part[order] < 0]
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
