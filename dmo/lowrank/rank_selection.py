"""Ranks chosen by the error that they leave."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

import numpy as np

from dmo.errors import UserError
from dmo.lowrank.feature_maps import FeatureMap
from dmo.validation import COUNT, check_parameter

log = logging.getLogger("dmo")
Rank = int | Literal["auto"]
_START = 64
TOLERANCE = 0.01


def fit_rank(
    fit: Callable[[int], FeatureMap],
    rank: Rank,
    limit: int,
    tol: float | None,
    memory_rank: int | None,
) -> FeatureMap:
    """The map of the rank asked for, or with rank "auto" the smallest one tried that meets the tolerance."""
    # Arguments: `fit(rank)` -> a map with its error; `limit`: the largest rank that makes sense; `tol`: relative
    # error wanted; `memory_rank`: the rank that the memory allows. With "auto" the rank doubles from 64 until the
    # error is met, the kernel's rank or the limit is reached, then one rank is tried between the last two; without a
    # tolerance the rank is what the memory allows. Raises ValueError for a tolerance or memory with a given rank.
    if rank != "auto":
        if tol is not None or memory_rank is not None:
            raise UserError(f"rank = {rank} leaves nothing to choose; pass rank='auto' with tol or memory")
        found = fit(min(int(check_parameter("rank", rank, COUNT)), limit))
    elif tol is None and memory_rank is not None:
        found = fit(min(memory_rank, limit))
    else:
        if tol is not None and not tol > 0:
            raise UserError(f"tol = {tol}; needs a positive number, it is a relative error, such as 0.01")
        most = limit if memory_rank is None else min(memory_rank, limit)
        found = _grow(fit, most, TOLERANCE if tol is None else tol)
        if found.error["relative_error"] > (TOLERANCE if tol is None else tol):
            log.warning(
                "relative error %.2g at rank %d, the largest allowed, misses the tolerance %g; allow more memory",
                *(found.error["relative_error"], found.rank, tol or TOLERANCE),
            )
    error = found.error
    log.info(
        "rank %d, relative error %.2g, residual diagonal %.2g",
        *(found.rank, error["relative_error"], error["residual_diagonal"]),
    )
    return found


def _grow(fit: Callable[[int], FeatureMap], limit: int, tol: float) -> FeatureMap:
    rank, failed = min(_START, limit), None
    found = fit(rank)
    while found.error["relative_error"] > tol and rank < limit:
        failed, rank = (rank, found.error["relative_error"]), min(2 * rank, limit)
        larger = fit(rank)
        if larger.rank <= found.rank:  # the kernel has no more
            return larger
        found = larger
    reached = found.error["relative_error"]
    if failed is None or reached > tol:
        return found
    # errors fall about as a power of the rank: aim a tenth below the tolerance
    share = np.log(failed[1] / (0.9 * tol)) / max(np.log(failed[1] / max(reached, 1e-16)), 1e-12)
    between = round(failed[0] * (rank / failed[0]) ** float(np.clip(share, 0, 1)))
    if between >= 0.9 * rank:
        return found
    smaller = fit(max(between, failed[0] + 1))
    return smaller if smaller.error["relative_error"] <= tol else found
