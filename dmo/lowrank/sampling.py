"""Random samples of rows, errors of low-rank kernels on such samples, and ranks chosen by these errors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dmo.blocks import Block, Rows, RowsOf, first_entry, in_memory, stored_values
from dmo.cluster.reading import read_sample
from dmo.errors import UserError
from dmo.inputs import COUNT, check_parameter
from dmo.kernels import Kernel, parse
from dmo.lowrank.feature_maps import FeatureMap

_LEAST, MOST_ROWS = 4096, 20_000
"""Bounds of the default number of rows for fitting a map."""
_PER_COLUMN, _PER_PIVOT = 16, 8  # rows per column of the factor, and per landmark of pivoted Cholesky


def learning_rows(fit_rows: int | None, rank: int | Literal["auto"], landmarks: str | None, clusters: int = 1) -> int:
    """Return the maximum number of rows for fitting a map of `rank` columns per cluster."""
    # With fewer than 16 rows per column, the error of MEKA grows (by a tenth with 6 rows). More rows only take longer.
    # For pivoted Cholesky, 8 rows per landmark yield as good landmarks as 16 in half the time. With 4 rows per
    # landmark, it misses clusters of ten rows in ten thousand.
    columns = 0 if rank == "auto" else clusters * int(check_parameter("rank", rank, COUNT))
    if fit_rows is not None:
        return int(check_parameter("fit_rows", fit_rows, COUNT))
    each = _PER_PIVOT if landmarks == "rpcholesky" and clusters == 1 else _PER_COLUMN
    return int(np.clip(each * columns, _LEAST, MOST_ROWS)) if columns else MOST_ROWS


def gather(source: Rows, index: np.ndarray) -> Block:
    """Read rows `index` (ascending) of a row source into memory, with at most one additional chunk in memory."""
    return source.take(index) if isinstance(source, SampledRows) else read_sample(source, index)


@dataclass(frozen=True, eq=False)
class SampledRows(RowsOf):
    """Row source with selected lists of rows in memory; `gather` of such a list reads nothing."""

    lists: Sequence[np.ndarray]
    blocks: Sequence[Block]

    @classmethod
    def of(cls, source: Rows, *lists: np.ndarray) -> Rows:
        """Read lists of ascending row indices at once; sources that are in memory are returned unchanged."""
        if in_memory(source):
            return source
        together = np.unique(np.concatenate(lists))
        block = gather(source, together)
        return cls(source, lists, [block[np.searchsorted(together, index)] for index in lists])

    def take(self, index: np.ndarray) -> Block:
        """Return rows `index`, from memory if it is one of the lists."""
        for known, block in zip(self.lists, self.blocks, strict=True):
            if np.array_equal(known, index):
                return block
        return gather(self.source, index)


def draw(n: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Draw `size` of n row indices without replacement, in ascending order (all rows if size >= n)."""
    return np.arange(n) if size >= n else np.sort(rng.choice(n, size=size, replace=False))


def check_finite(block: Any, index: np.ndarray | None = None) -> None:
    """Raise UserError if a block of rows has NaN or infinity; `index` are the indices of its rows in their source."""
    values = stored_values(block)
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return
    row, column, value = first_entry(block, ~np.isfinite(values))
    number = row if index is None else int(index[row])
    raise UserError(f"row {number}, column {column} is {value}; impute missing values or drop the sample")


def check_rows(kernel: str | Kernel, X: Rows) -> None:
    """Raise UserError if landmarks cannot be chosen from rows."""
    if parse(kernel).pairwise:
        raise UserError("cannot choose landmarks from a precomputed kernel; use approximation='exact'")
    if len(X.shape) != 2 or 0 in X.shape:
        raise UserError(f"rows have shape {tuple(X.shape)}; pass samples x features, at least one of each")


_ROWS = 256  # 256 additional rows reduce the spread of the estimate by less than a third, but more than double the time


def sampled_error(
    feature_map: FeatureMap,
    X: Rows,
    random_state: int | np.random.Generator | None = None,
    probes: np.ndarray | None = None,
) -> dict[str, float]:
    """Estimate the errors of a feature map on random entries of the kernel.

    Parameters
    ----------
    feature_map : FeatureMap
        Feature map with a fitted kernel.
    X : row source of shape (n, d)
        Rows, in chunks of whole rows.
    random_state : int, Generator or None, default=None
        Seed of the sample.
    probes : ndarray of int or None, default=None
        Row indices whose kernel values are compared with each other and, if there are fewer than 256, with additional
        random rows, 256 rows in total. None: 256 random rows.

    Returns
    -------
    dict
        "relative_error": |K - F F'|_F / |K|_F, estimated in float64 from diagonal and off-diagonal entries, weighted by
        their numbers in K. "residual_diagonal": mean of k(x, x) - |f(x)|^2 over the probes, relative to the mean of
        k(x, x). "probes", "rows": numbers of probes and rows of the sample.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.lowrank import nystrom, sampled_error
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> found = nystrom("rbf", X, rank=200, random_state=0, dtype=np.float64)
    >>> sampled_error(found, X, random_state=0)["relative_error"] < 1e-4
    True
    """
    n, kernel = X.shape[0], feature_map.kernel
    first, others = _drawn(n, random_state, probes)
    index = np.concatenate([first, others])
    order = np.argsort(index)
    sample = gather(X, index[order])
    front = np.empty(len(index), dtype=np.int64)
    front[order] = np.arange(len(index))
    b = sample[front]
    prepared, probed = kernel.prepare(b, np.float64), slice(0, len(first))
    exact = kernel.tile(prepared[probed], prepared)
    rows = feature_map(b).astype(np.float64)
    difference = exact - rows[: len(first)] @ rows.T
    diagonal = np.asarray(kernel.diagonal(prepared[probed]), np.float64)
    residual = diagonal - np.einsum("ij,ij->i", rows[: len(first)], rows[: len(first)])
    mine = np.arange(len(first))
    difference[mine, mine] = exact[mine, mine] = 0.0  # weight the diagonal separately: it is n of the n^2 entries
    pairs = max(len(first) * (len(index) - 1), 1)
    off = n * (n - 1) / pairs
    error = off * (difference**2).sum() + n * (residual**2).mean()
    total = off * (exact**2).sum() + n * (diagonal**2).mean()
    return {
        "relative_error": float(np.sqrt(error / total)) if total > 0 else 0.0,
        "residual_diagonal": float(residual.mean() / diagonal.mean()) if diagonal.mean() > 0 else 0.0,
        "probes": len(first),
        "rows": len(index),
    }


def error_rows(n: int, random_state: int) -> np.ndarray:
    """Return the ascending indices of the rows that `sampled_error` reads."""
    return np.sort(np.concatenate(_drawn(n, random_state, None)))


def _drawn(
    n: int, random_state: int | np.random.Generator | None, probes: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Draw the indices of the probes and of the other rows, each in ascending order."""
    rng = np.random.default_rng(random_state)
    first = draw(n, min(_ROWS, n), rng) if probes is None else np.sort(probes)
    # Draw positions among the remaining rows and shift them past the probes, which avoids a list of all rows.
    others = draw(n - len(first), max(_ROWS - len(first), 0), rng)
    return first, others + np.searchsorted(first - np.arange(len(first)), others, side="right")


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
    """Fit the map of the given rank, or with rank="auto" the smallest tried rank that reaches the tolerance."""
    # `fit(rank)` returns a map with its error. `limit` is the largest useful rank, `tol` the relative error to reach,
    # and `memory_rank` the largest rank that fits in memory. With "auto", the rank doubles from 64 until the error, the
    # rank of the kernel or the limit is reached. Then one rank between the last two is tried. Without a tolerance,
    # "auto" uses the largest rank that fits in memory.
    if rank != "auto":
        if tol is not None or memory_rank is not None:
            raise UserError(f"tol and memory require rank='auto', got rank = {rank}; pass rank='auto', or neither")
        found = fit(min(int(check_parameter("rank", rank, COUNT)), limit))
    elif tol is None and memory_rank is not None:
        found = fit(min(memory_rank, limit))
    else:
        if tol is not None and not tol > 0:
            raise UserError(f"tol = {tol}; needs a positive number, a relative error such as 0.01")
        most = limit if memory_rank is None else min(memory_rank, limit)
        found = _grow(fit, most, TOLERANCE if tol is None else tol)
        if found.error["relative_error"] > (TOLERANCE if tol is None else tol):
            log.warning(
                "relative error %.2g at rank %d, the largest allowed, exceeds the tolerance %g; allow more memory",
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
        if larger.rank <= found.rank:  # the kernel matrix has no larger rank
            return larger
        found = larger
    reached = found.error["relative_error"]
    if failed is None or reached > tol:
        return found
    # The error falls roughly like a power of the rank. Aim a tenth below the tolerance.
    share = np.log(failed[1] / (0.9 * tol)) / max(np.log(failed[1] / max(reached, 1e-16)), 1e-12)
    between = round(failed[0] * (rank / failed[0]) ** float(np.clip(share, 0, 1)))
    if between >= 0.9 * rank:
        return found
    smaller = fit(max(between, failed[0] + 1))
    return smaller if smaller.error["relative_error"] <= tol else found
