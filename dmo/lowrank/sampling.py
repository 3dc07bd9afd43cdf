"""Rows of a row source by number, read block by block, and checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

from dmo.blocks import Rows, row_blocks, rows
from dmo.kernels import Kernel, Precomputed, parse

_BLOCK = 8192


def gather(source: Rows, index: np.ndarray) -> np.ndarray | scipy.sparse.csr_array:
    """Rows `index` (ascending row numbers) of a row source in memory, holding one block of the others at a time."""
    if isinstance(source, np.ndarray):
        return source[index]
    if scipy.sparse.issparse(source):
        return scipy.sparse.csr_array(source)[index]
    parts = []
    for where in row_blocks(source.shape[0], _BLOCK):
        first, last = np.searchsorted(index, (where.start, where.stop))
        if last > first:
            parts.append(rows(source, where)[index[first:last] - where.start])
    if not parts:
        return rows(source, slice(0, 0))
    return scipy.sparse.vstack(parts, format="csr") if scipy.sparse.issparse(parts[0]) else np.concatenate(parts)


def draw(n: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Ascending numbers of `size` of n rows, drawn without replacement (all rows where size >= n)."""
    return np.arange(n) if size >= n else np.sort(rng.choice(n, size=size, replace=False))


def check_finite(who: str, block: Any, index: np.ndarray | None = None) -> None:
    """Raise ValueError where a block of rows has NaN or infinity; `index`: the rows' numbers in their source."""
    values = block.data if scipy.sparse.issparse(block) else block
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return
    dense = block.toarray() if scipy.sparse.issparse(block) else block
    row, column = np.argwhere(~np.isfinite(dense))[0]
    number = int(row if index is None else index[row])
    raise ValueError(
        f"{who}: row {number}, column {column} is {dense[row, column]}; fill missing values or drop the sample"
    )


def check_count(who: str, what: str, value: Any) -> int:
    """`value` as an integer of at least 1, or a ValueError that names it."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{who}: {what} must be an integer of at least 1, got {value!r}")
    return int(value)


def check_rows(who: str, kernel: str | Kernel, X: Rows) -> None:
    """Raise ValueError for rows that no landmark can be taken from."""
    if isinstance(parse(kernel), Precomputed):
        raise ValueError(f"{who}: a precomputed kernel has no rows to take landmarks from; take approximation='exact'")
    if len(X.shape) != 2 or 0 in X.shape:
        raise ValueError(f"{who}: rows have shape {tuple(X.shape)}; pass samples x features, at least one of each")
