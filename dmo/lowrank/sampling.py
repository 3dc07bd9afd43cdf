"""Estimates of the error of low-rank kernels from random samples, and the choice of a rank by these estimates."""

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
"""Minimum and maximum of the default number of rows for fitting a feature map."""
# Default number of rows for fitting per column of the factor, and per landmark of pivoted Cholesky.
_PER_COLUMN, _PER_PIVOT = 16, 8


def learning_rows(fit_rows: int | None, rank: int | Literal["auto"], landmarks: str | None, clusters: int = 1) -> int:
    """Return the maximum number of rows for fitting a feature map with `rank` columns per cluster."""
    # With fewer than 16 rows per column, MEKA has a larger error (by a tenth with 6 rows). More than 16 rows per column
    # do not reduce the error. With 8 rows per landmark, pivoted Cholesky finds as good landmarks as with 16 rows, in
    # half the time. With 4 rows per landmark, pivoted Cholesky misses small clusters, such as ten rows in ten thousand.
    columns = 0 if rank == "auto" else clusters * int(check_parameter("rank", rank, COUNT))
    if fit_rows is not None:
        return int(check_parameter("fit_rows", fit_rows, COUNT))
    each = _PER_PIVOT if landmarks == "rpcholesky" and clusters == 1 else _PER_COLUMN
    return int(np.clip(each * columns, _LEAST, MOST_ROWS)) if columns else MOST_ROWS


def gather(source: Rows, index: np.ndarray) -> Block:
    """Read rows with ascending indices into memory, and hold at most one more chunk of the source in memory."""
    return source.take(index) if isinstance(source, SampledRows) else read_sample(source, index)


@dataclass(frozen=True, eq=False)
class SampledRows(RowsOf):
    """Row source that holds selected rows in memory, so that `gather` does not read them again."""

    lists: Sequence[np.ndarray]
    blocks: Sequence[Block]

    @classmethod
    def of(cls, source: Rows, *lists: np.ndarray) -> Rows:
        """Read several lists of rows at once. A source that is already in memory is returned unchanged."""
        if in_memory(source):
            return source
        together = np.unique(np.concatenate(lists))
        block = gather(source, together)
        return cls(source, lists, [block[np.searchsorted(together, index)] for index in lists])

    def take(self, index: np.ndarray) -> Block:
        """Return rows by their indices. Lists of rows that are already in memory are not read again."""
        for known, block in zip(self.lists, self.blocks, strict=True):
            if np.array_equal(known, index):
                return block
        return gather(self.source, index)


def draw(n: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Draw `size` of n row indices without replacement, and sort them. All indices are returned if size >= n."""
    return np.arange(n) if size >= n else np.sort(rng.choice(n, size=size, replace=False))


def check_finite(block: Any, index: np.ndarray | None = None) -> None:
    """Raise UserError if a block of rows has NaN or infinity. The error reports row numbers from `index`."""
    values = stored_values(block)
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return
    row, column, value = first_entry(block, ~np.isfinite(values))
    number = row if index is None else int(index[row])
    raise UserError(f"row {number}, column {column} is {value}; impute missing values or drop the sample")


def check_rows(kernel: str | Kernel, X: Rows) -> None:
    """Raise UserError if the kernel is precomputed or the data are not a nonempty matrix."""
    if parse(kernel).pairwise:
        raise UserError("cannot choose landmarks from a precomputed kernel; use approximation='exact'")
    if len(X.shape) != 2 or 0 in X.shape:
        raise UserError(f"rows have shape {tuple(X.shape)}; pass samples x features, at least one of each")


# Number of rows from which an error is estimated. Twice as many rows would reduce the standard deviation of the
# estimate by less than a third, but would take more than twice as long.
_ROWS = 256


def sampled_error(
    feature_map: FeatureMap,
    X: Rows,
    random_state: int | np.random.Generator | None = None,
    probes: np.ndarray | None = None,
) -> dict[str, float]:
    """Estimate the approximation error of a feature map from a random sample of kernel values.

    Parameters
    ----------
    feature_map : FeatureMap
        Feature map with a fitted kernel.
    X : row source of shape (n, d)
        Samples as rows. Chunks must contain whole rows.
    random_state : int, Generator or None, default=None
        Seed of the random sample.
    probes : ndarray of int or None, default=None
        Indices of rows whose kernel values are tested, by default 256 random rows. Fewer than 256 probes are also
        tested against additional random rows, for 256 rows in total.

    Returns
    -------
    dict
        Estimated errors of the approximation F F' of the kernel matrix K, and the size of the sample. "relative_error"
        is |K - F F'|_F / |K|_F. "residual_diagonal" is the mean of k(x, x) - |f(x)|^2, relative to the mean of k(x, x).
        "probes" and "rows" are the numbers of probes and of all sampled rows.

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
    # The diagonal has only n of the n^2 entries, so its errors are added separately.
    difference[mine, mine] = exact[mine, mine] = 0.0
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
    """Return the sorted indices of the rows that `sampled_error` reads."""
    return np.sort(np.concatenate(_drawn(n, random_state, None)))


def _drawn(
    n: int, random_state: int | np.random.Generator | None, probes: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted indices of the probes and the sorted indices of the additional random rows."""
    rng = np.random.default_rng(random_state)
    first = draw(n, min(_ROWS, n), rng) if probes is None else np.sort(probes)
    # To avoid an array of all row indices, draw positions among the rows that are not probes, and convert the positions
    # to row indices.
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
    """Fit a map of the given rank or, with rank="auto", of the smallest tried rank that reaches the tolerance."""
    # The function `fit` must return a map with its error. `limit` is the largest useful rank, and `memory_rank` is the
    # largest rank that fits in memory. With "auto", the rank doubles from 64 until the relative error is at most `tol`,
    # or until the rank of the kernel matrix or a limit is reached. Then one rank between the last two ranks is tried.
    # With a memory limit and no tolerance, "auto" uses the largest rank that fits in memory.
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
        if larger.rank <= found.rank:  # The kernel matrix has no larger rank.
            return larger
        found = larger
    reached = found.error["relative_error"]
    if failed is None or reached > tol:
        return found
    # The error is roughly a power of the rank, so interpolate between the last two ranks. The interpolation is inexact,
    # so aim at 0.9 times the tolerance.
    share = np.log(failed[1] / (0.9 * tol)) / max(np.log(failed[1] / max(reached, 1e-16)), 1e-12)
    between = round(failed[0] * (rank / failed[0]) ** float(np.clip(share, 0, 1)))
    if between >= 0.9 * rank:
        return found
    smaller = fit(max(between, failed[0] + 1))
    return smaller if smaller.error["relative_error"] <= tol else found
