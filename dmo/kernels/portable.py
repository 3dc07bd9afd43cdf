"""Kernel values of arrays of other libraries, such as CuPy or PyTorch, which are computed on the device of the arrays.

The functions return the same values as the NumPy functions in `rows`, `pairs` and `loops`, but use only the array API
standard. Each step allocates a new array, whereas the compiled loops work in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from dmo.devices import foreign, placed, to_numpy
from dmo.errors import UserError
from dmo.kernels import loops
from dmo.kernels.rows import NEGATIVE, NOT_FINITE, TOO_LARGE, Prepared

_ENTRIES = 1 << 24
"""Maximum number of entries of a temporary array with the features of all pairs of rows."""
LN_2 = math.log(2.0)


def ready(
    X: Any,
    how: str | None,
    offset: np.ndarray | None,
    dtype: np.dtype,
    squared: bool,
    non_negative: bool,
    owner: str,
) -> tuple[Any, Any]:
    """Normalize rows, subtract `offset` and compute norms, like `rows.ready`."""
    xp = foreign(X)
    if offset is not None and X.shape[1] != len(offset):
        raise UserError(f"{owner}: was fitted on {len(offset)} columns, got {X.shape[1]}; pass the same features")
    wide = xp.astype(X, xp.float64)
    if non_negative:
        _refuse(wide < 0, wide, NEGATIVE, owner, dtype)
    if how is not None:
        total = xp.sqrt(xp.sum(wide * wide, axis=1)) if how == "l2" else xp.sum(xp.abs(wide), axis=1)
        wide = wide / xp.where(total == 0, xp.ones_like(total), total)[:, None]
        wide = xp.sqrt(wide) if how == "hellinger" else wide
    if offset is not None:
        wide = wide - placed(offset, wide)[None, :]
    values = xp.astype(wide, getattr(xp, dtype.name))
    wide = xp.astype(values, xp.float64)
    norms = xp.sum(wide * wide if squared else xp.abs(wide), axis=1)
    largest = float(np.finfo(dtype).max) / 16
    if not bool(xp.all(norms <= largest)):  # Comparisons with NaN are also false.
        _refuse(~xp.isfinite(xp.astype(X, xp.float64)), X, NOT_FINITE, owner, dtype)
        _refuse(xp.broadcast_to(norms[:, None] > largest, X.shape), X, TOO_LARGE, owner, dtype)
    return values, norms


def _refuse(bad: Any, X: Any, what: str, owner: str, dtype: np.dtype) -> None:
    places = np.argwhere(to_numpy(bad))
    if len(places):
        row, column = (int(k) for k in places[0])
        raise UserError(what.format(owner=owner, value=float(X[row, column]), row=row, column=column, dtype=dtype))


def of_length_1(p: Prepared) -> Prepared:
    """Scale prepared rows to unit L2 norm. Rows of zeros are not changed."""
    xp = foreign(p.values)
    length = xp.sqrt(p.norms)
    scale = xp.astype(1.0 / xp.where(length > 0, length, xp.ones_like(length)), p.dtype)
    return replace(p, values=p.values * scale[:, None], norms=xp.astype(length > 0, xp.float64))


def tile(pair: str, change: Any, x: Any, y: Any) -> Any:
    """Compute the kernel values (m x n) of m prepared rows x and n prepared rows y."""
    xp, kind = foreign(x.values), x.dtype
    v = _VALUES[pair](xp, x, y)
    if change.op == loops.GAUSSIAN:
        h = -0.5 * change.a * (x.norms[:, None] + y.norms[None, :])
        return xp.exp(LN_2 * _at_most_0(xp, change.a * v + xp.astype(h, kind)))
    if change.op == loops.EXPONENTIAL:
        return xp.exp(LN_2 * _at_most_0(xp, -change.a * v))
    return (change.a * v + change.b) ** change.power if change.op == loops.POLYNOMIAL else v


def _at_most_0(xp: Any, v: Any) -> Any:
    return xp.where(v < 0, v, xp.zeros_like(v))


def _euclidean(xp: Any, x: Any, y: Any) -> Any:
    """Compute Euclidean distances from inner products in float64."""
    # In float32, cancellation would lose the distances of close rows. In float64, only distances below 1e-8 times the
    # norms of the rows are lost.
    wide = [xp.astype(p.values, xp.float64) for p in (x, y)]
    squares = x.norms[:, None] + y.norms[None, :] - 2.0 * xp.matmul(wide[0], xp.matrix_transpose(wide[1]))
    return xp.astype(xp.sqrt(xp.where(squares > 0, squares, xp.zeros_like(squares))), x.dtype)


def _by_features(term: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """Return a function that sums a term of two numbers over the features, in blocks of features to save memory."""

    def value(xp: Any, x: Any, y: Any) -> Any:
        m, n, d = x.shape[0], y.shape[0], x.shape[1]
        step, total = max(1, _ENTRIES // max(m * n, 1)), None
        for start in range(0, d, step):
            a, b = (p.values[:, start : min(start + step, d)] for p in (x, y))
            part = xp.sum(term(xp, a[:, None, :], b[None, :, :]), axis=2)
            total = part if total is None else total + part
        return total

    return value


def _chi_square(xp: Any, a: Any, b: Any) -> Any:
    total = a + b
    return (a - b) ** 2 / xp.where(total > 0, total, xp.ones_like(total))


_VALUES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "dot": lambda xp, x, y: xp.matmul(x.values, xp.matrix_transpose(y.values)),
    "l2": _euclidean,
    "l1": _by_features(lambda xp, a, b: xp.abs(a - b)),
    "chi2": _by_features(_chi_square),
    "min": _by_features(lambda xp, a, b: xp.where(a < b, a, b)),
}
