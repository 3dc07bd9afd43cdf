"""Samples dealt out so that every label, rare ones first, is in every part in its share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dmo.errors import UserError


def stratified_folds(Y: np.ndarray, folds: int | Sequence[float], random_state: int | None = 0) -> np.ndarray:
    """Deal samples out to parts in which every label has its share: iterative stratification.

    The label with the fewest samples left is dealt out first, each of its samples to the part that lacks the label most,
    then the one that lacks samples most. Labels of one per sample come out as by a stratified k-fold. Columns that are not
    0/1 cannot be counted: targets of other numbers are dealt out at random.

    Parameters
    ----------
    Y : ndarray of shape (n, L)
        Labels, 0/1; or real targets.
    folds : int, or sequence of float
        Number of parts of equal sizes, from 2 to n; or the share of every part, such as (0.9, 0.1).
    random_state : int or None, default=0
        Seed of the order in which samples are taken.

    Returns
    -------
    ndarray of shape (n,), int
        Part of every sample, 0 to parts - 1.

    Raises
    ------
    UserError
        For fewer than two parts, more parts than samples, and shares that are not positive.

    References
    ----------
    Sechidis, Tsoumakas, Vlahavas 2011, "On the stratification of multi-label data", algorithm 1.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.selection import stratified_folds
    >>> Y = np.zeros((12, 2), int)
    >>> Y[:3, 0] = 1  # a rare label: one sample in each of three folds
    >>> sorted(stratified_folds(Y, 3)[:3].tolist())
    [0, 1, 2]
    """
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
    carried = [np.flatnonzero(row) for row in Y]
    chance = rng.permutation(len(shares))

    def best(*wishes: np.ndarray) -> int:
        return int(np.lexsort((chance, *wishes))[-1])

    while left.any():
        label = int(np.where(left > 0, left, len(Y) + 1).argmin())
        for i in order[Y[order, label] & (part[order] < 0)]:
            to = best(room, np.round(lacking[:, label], 9))  # ties are ties: shares of a third are no exact numbers
            part[i] = to
            room[to] -= 1
            lacking[to, carried[i]] -= 1
            left[carried[i]] -= 1
    for i in order[part[order] < 0]:
        to = best(np.round(room, 9))
        part[i] = to
        room[to] -= 1
    return part
