"""Rows of a row source by number, read block by block, and checked; how many of them a map is learned from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse

from dmo.blocks import Block, Rows, RowsOf, sampled
from dmo.errors import UserError
from dmo.kernels import Kernel, parse
from dmo.validation import COUNT, check_parameter

_LEAST, MOST_ROWS = 4096, 20_000
"""Rows that a map is learned from where their number is not given."""
_PER_COLUMN, _PER_PIVOT = 16, 8  # of them per column of its factor, and per landmark by pivoted Cholesky


def learning_rows(fit_rows: int | None, rank: int | Literal["auto"], landmarks: str | None, clusters: int = 1) -> int:
    """Count the rows that a map of so many columns per cluster is learned from, at most."""
    # With fewer than 16 per column, MEKA's error grows (by a tenth at 6 per column); with more, the time does.
    # Pivoted Cholesky finds as good landmarks among 8 per landmark as among 16, in half the time; among 4, clusters
    # of ten rows in ten thousand are missed.
    columns = 0 if rank == "auto" else clusters * int(check_parameter("rank", rank, COUNT))
    if fit_rows is not None:
        return int(check_parameter("fit_rows", fit_rows, COUNT))
    each = _PER_PIVOT if landmarks == "rpcholesky" and clusters == 1 else _PER_COLUMN
    return int(np.clip(each * columns, _LEAST, MOST_ROWS)) if columns else MOST_ROWS


def gather(source: Rows, index: np.ndarray) -> Block:
    """Rows `index` (ascending row numbers) of a row source in memory, holding one chunk of the others at a time."""
    return source.take(index) if isinstance(source, SampledRows) else sampled(source, index)


@dataclass(frozen=True, eq=False)
class SampledRows(RowsOf):
    """A row source of which some lists of rows are in memory: `gather` of such a list reads nothing."""

    lists: Sequence[np.ndarray]
    blocks: Sequence[Block]

    @classmethod
    def of(cls, source: Rows, *lists: np.ndarray) -> Rows:
        """The source with these lists of ascending row numbers, read in one go; itself where it is in memory anyway."""
        if isinstance(source, np.ndarray) or scipy.sparse.issparse(source):
            return source
        together = np.unique(np.concatenate(lists))
        block = gather(source, together)
        return cls(source, lists, [block[np.searchsorted(together, index)] for index in lists])

    def take(self, index: np.ndarray) -> Block:
        """Rows of one list."""
        for known, block in zip(self.lists, self.blocks, strict=True):
            if np.array_equal(known, index):
                return block
        return gather(self.source, index)


def draw(n: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Ascending numbers of `size` of n rows, drawn without replacement (all rows where size >= n)."""
    return np.arange(n) if size >= n else np.sort(rng.choice(n, size=size, replace=False))


def check_finite(block: Any, index: np.ndarray | None = None) -> None:
    """Raise ValueError where a block of rows has NaN or infinity; `index`: the rows' numbers in their source."""
    values = block.data if scipy.sparse.issparse(block) else block
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return
    dense = block.toarray() if scipy.sparse.issparse(block) else block
    row, column = np.argwhere(~np.isfinite(dense))[0]
    number = int(row if index is None else index[row])
    raise UserError(f"row {number}, column {column} is {dense[row, column]}; fill missing values or drop the sample")


def check_rows(kernel: str | Kernel, X: Rows) -> None:
    """Raise ValueError for rows that no landmark can be taken from."""
    if parse(kernel).pairwise:
        raise UserError("a precomputed kernel has no rows to take landmarks from; take approximation='exact'")
    if len(X.shape) != 2 or 0 in X.shape:
        raise UserError(f"rows have shape {tuple(X.shape)}; pass samples x features, at least one of each")
