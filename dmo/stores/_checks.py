"""The checks that every writer makes of the names, shapes, dtypes and values it is given."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse

from dmo.errors import UserError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def check_name(name: str, what: str) -> str:
    """`name` if it can be a folder and a Zarr name everywhere."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise UserError(
            f"{what} name {name!r} is not usable; start with a letter or digit, then letters, digits, '_', '-', '.'"
        )
    return name


def check_strings(name: str, given: Sequence[str], length: int | None) -> list[str]:
    if length is None:
        raise UserError(f"{name} were passed without labels; pass labels as well")
    values = [str(value) for value in given]
    if len(values) != length:
        raise UserError(f"{name} has {len(values)} entries, needs {length}; pass one for each")
    return values


def real_dtype(dtype: Any) -> np.dtype:
    """A little-endian real dtype that a store can hold; TypeError for others."""
    found = np.dtype(dtype)
    if found.kind not in "iufb" or found.itemsize > 8:
        raise TypeError(
            f"a store holds booleans, integers and floats of at most 8 bytes, got {found}; convert the rows"
        )
    return found.newbyteorder("<")


def check_block(title: str, block: int, rows: Any, n: int, size: int, width: int) -> slice:
    """The rows of `block` out of n in blocks of `size`; refuses a wrong block number or shape of `rows`."""
    count = -(-n // size)
    if not 0 <= block < count:
        raise UserError(f"{title} has blocks 0 to {count - 1}, got block {block}; pass one of missing()")
    where = slice(block * size, min((block + 1) * size, n))
    needed = (where.stop - where.start, width)
    if rows.shape != needed:
        raise UserError(f"{title}, block {block} has shape {rows.shape}, needs {needed}; write whole blocks of rows")
    return where


def check_count(name: str, value: Any) -> int:
    """`value` as a positive int; ValueError or TypeError, naming the argument `name`, where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be a whole number, got {value!r}; pass an int")
    if value < 1:
        raise UserError(f"{name} must be at least 1, got {value}; pass a positive number")
    return int(value)


def cast(values: Any, dtype: np.dtype, where: str) -> Any:
    """`values` (array or CSR) in `dtype`; refuses what would lose whole numbers or fractions, "same kind" otherwise."""
    if values.dtype == dtype:
        return values
    if not np.can_cast(values.dtype, dtype, casting="same_kind"):
        raise TypeError(
            f"{where} has dtype {values.dtype}, the store holds {dtype}; convert the rows before writing them"
        )
    with np.errstate(over="ignore"):
        changed = values.astype(dtype)
    if dtype.kind in "iu":
        before, after = (part.data if scipy.sparse.issparse(part) else part for part in (values, changed))
        if not np.array_equal(before, after):
            raise UserError(f"{where} holds numbers beyond {dtype}; choose a wider dtype for the store")
    return changed


def check_values(
    values: np.ndarray | scipy.sparse.csr_array,
    where: str,
    first_row: int,
    positive: bool = False,
    missing: bool = False,
) -> None:
    """Refuse non-finite (and, where `positive`, negative) values, naming the row (plus `first_row`) and the column; NaN is let
    through where cells may be `missing`."""
    stored: np.ndarray = np.asarray(values.data if scipy.sparse.issparse(values) else values)
    wrong = np.isinf if missing else lambda cells: ~np.isfinite(cells)
    if stored.dtype.kind in "fc" and not _all_finite(stored) and wrong(stored).any():
        row, column, value = _first(values, wrong(stored))
        raise UserError(
            f"{where}, row {first_row + row}, column {column} is {value}; replace or drop values that are not finite"
        )
    if positive and stored.dtype.kind in "if" and stored.size and stored.min() < 0:
        row, column, value = _first(values, stored < 0)
        raise UserError(
            f"{where} is a histogram, but row {first_row + row}, column {column} is {value}; "
            "histograms are never negative, declare it with histogram=False"
        )


def _all_finite(stored: np.ndarray) -> bool:
    """One cheap pass: a sum is finite only if every term is; a sum that overflows is looked at again."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(stored.sum()):
            return True
    return bool(np.isfinite(stored).all())


def _first(values: Any, bad: np.ndarray) -> tuple[int, int, Any]:
    if scipy.sparse.issparse(values):
        position = int(np.flatnonzero(bad)[0])
        row = int(np.searchsorted(values.indptr, position, side="right")) - 1
        return row, int(values.indices[position]), values.data[position]
    row, column = (int(axis[0]) for axis in np.nonzero(bad))
    return row, column, values[row, column]
