"""The one error of the stores, and the checks of values that every writer makes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import scipy.sparse


class StoreError(ValueError):
    """A store that cannot be used as asked; the message says what is wrong and what to do about it."""


@contextmanager
def writing(url: str, what: str) -> Iterator[None]:
    """Say of any OSError inside (disk full, no permission) what was being written, and that the store can be resumed."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        text = f"{url}: cannot write {what} ({reason}); make room or mend the permissions and run again, finished blocks are kept"
        raise (OSError(text) if error.errno is None else OSError(error.errno, text)) from error


def check_count(name: str, value: Any) -> int:
    """`value` as a positive int; ValueError or TypeError, naming the argument `name`, where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be a whole number, got {value!r}; pass an int")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}; pass a positive number")
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
        before, after = (
            getattr(part, "data", part) if scipy.sparse.issparse(part) else part for part in (values, changed)
        )
        if not np.array_equal(before, after):
            raise ValueError(f"{where} holds numbers beyond {dtype}; choose a wider dtype for the store")
    return changed


def check_values(
    values: np.ndarray | scipy.sparse.csr_array, where: str, first_row: int, positive: bool = False
) -> None:
    """Refuse non-finite (and, where `positive`, negative) values, naming the row (plus `first_row`) and the column."""
    stored = values.data if scipy.sparse.issparse(values) else np.asarray(values)
    if stored.dtype.kind in "fc" and not _all_finite(stored):
        row, column, value = _first(values, ~np.isfinite(stored))
        raise ValueError(
            f"{where}, row {first_row + row}, column {column} is {value}; replace or drop values that are not finite"
        )
    if positive and stored.dtype.kind in "if" and stored.size and stored.min() < 0:
        row, column, value = _first(values, stored < 0)
        raise ValueError(
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
