"""Compiled loops for kernel values that are not matrix products. The loops release the GIL.

Every function processes a range of rows, so that callers can distribute the rows over threads. Output matrices are
passed as whole C-contiguous arrays with row and column offsets, because numba does not vectorize writes to slices.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from threading import RLock
from typing import Any

import numpy as np

DOT, MIN, CHI2, L1_DIRECT, CHI2_DIRECT = range(5)
"""Functions of two numbers x and y that are summed over the features of two rows.

In this order, the functions are xy, min(x, y), xy / (x + y), |x - y| and (x - y)^2 / (x + y)."""
IDENTITY, GAUSSIAN, EUCLIDEAN, EXPONENTIAL, POLYNOMIAL = range(5)
"""Functions that map the inner product or distance of two rows to a kernel value. `_map_row` defines them."""
WIDTH = 128
"""Number of rows of the second matrix that are processed together. A block of their columns fits in the second-level
cache."""


class _Compiled:
    """Function that numba compiles on its first call. Importing numba together with dmo would take 0.25 s."""

    def __init__(self, function: Callable[..., Any], flags: tuple[str, ...]):
        self.function, self.flags, self.ready = function, flags, None

    def __call__(self, *arguments: Any) -> Any:
        return self.dispatcher()(*arguments)

    def dispatcher(self) -> Any:
        """Compile the function and all such functions of its module, so that compiled loops can call each other."""
        with _ONE_BY_ONE:
            if self.ready is None:
                self.ready = _by_numba(self.function, self.flags)
                beside = self.function.__globals__
                beside.update({name: f.dispatcher() for name, f in list(beside.items()) if isinstance(f, _Compiled)})
            return self.ready


_ONE_BY_ONE = RLock()


@cache
def _numba() -> Any:
    import numba
    from numba.extending import overload

    overload(_exp2, jit_options={"fastmath": set(EXACT_ORDER), "error_model": "numpy"})(_exp2_compiled)
    return numba


def _by_numba(function: Callable[..., Any], flags: tuple[str, ...]) -> Any:
    options: Any = {"nogil": True, "error_model": "numpy", "fastmath": set(flags)}
    try:
        return _numba().njit(cache=True, **options)(function)
    except RuntimeError:  # Numba cannot write to any cache folder.
        return _numba().njit(**options)(function)


def compiled(*flags: str) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles a function with numba and fast-math flags, without the GIL."""
    return lambda function: _Compiled(function, flags)


EXACT_ORDER = ("contract", "nsz", "nnan", "ninf")
ANY_ORDER = (*EXACT_ORDER, "reassoc", "arcp")


# Coefficients of Chebyshev approximations of 2^f for f in [-1/2, 1/2], with the highest power first, computed with 60
# digits. Coefficients that LAPACK computes at run time would depend on the CPU.
_A6, _A5, _A4, _A3, _A2, _A1, _A0 = (
    np.float32(c)
    for c in (
        0.00015469731977475548,
        0.0013400432165385696,
        0.009618025602955837,
        0.05550327214209201,
        0.2402265121359523,
        0.6931472067106199,
        0.9999999999595482,
    )
)
_B11, _B10, _B9, _B8, _B7, _B6, _B5, _B4, _B3, _B2, _B1, _B0 = (
    4.456675463639861e-10,
    7.074194562613105e-09,
    1.0178051192117847e-07,
    1.3215432534254118e-06,
    1.5252733856295574e-05,
    0.00015403530463727982,
    0.001333355814639035,
    0.009618129107587253,
    0.0555041086648217,
    0.24022650695910158,
    0.6931471805599453,
    1.0,
)
_ROUND32, _ROUND64 = np.float32(1.5 * 2**23), 1.5 * 2**52


def _exp2(y: float) -> float:
    """Compute 2^y for y <= 0. The compiled version returns 0 if the result is below the smallest normal number."""
    return np.exp2(y)


def _exp2_compiled(y):  # type: ignore[no-untyped-def]
    # Adding 1.5 * 2^(number of mantissa bits) rounds y to an integer, which appears in the low bits of the sum. The low
    # bits are then shifted to the exponent of the result.
    def single(y):  # type: ignore[no-untyped-def]
        shifted = max(y, np.float32(-127.0)) + _ROUND32
        f = max(y, np.float32(-127.0)) - (shifted - _ROUND32)
        p = (((((_A6 * f + _A5) * f + _A4) * f + _A3) * f + _A2) * f + _A1) * f + _A0
        power = np.int32((np.float32(shifted).view(np.int32) + np.int32(127)) << np.int32(23)).view(np.float32)
        return p * power if y > np.float32(-126.0) else np.float32(0.0)

    def double(y):  # type: ignore[no-untyped-def]
        shifted = max(y, -1023.0) + _ROUND64
        f = max(y, -1023.0) - (shifted - _ROUND64)
        p = (((((_B11 * f + _B10) * f + _B9) * f + _B8) * f + _B7) * f + _B6) * f + _B5
        p = ((((p * f + _B4) * f + _B3) * f + _B2) * f + _B1) * f + _B0
        power = np.int64((np.float64(shifted).view(np.int64) + np.int64(1023)) << np.int64(52)).view(np.float64)
        return p * power if y > -1022.0 else 0.0

    return single if str(y) == "float32" else double


@compiled(*EXACT_ORDER)
def _map_row(op, a, b, power, row, h, hy):  # type: ignore[no-untyped-def]
    """Map the inner products or distances in one row of K to kernel values, in place."""
    # The value h + hy[j] is the sum of the norms of two rows. For the Gaussian kernel, the norms are multiplied by
    # -a / 2.
    zero = row.dtype.type(0)
    if op == GAUSSIAN:
        for j in range(row.shape[0]):
            row[j] = _exp2(min(row[j] * a + (h + hy[j]), zero))
    elif op == EUCLIDEAN:
        for j in range(row.shape[0]):
            row[j] = np.sqrt(max((h + hy[j]) - (row[j] + row[j]), zero))
    elif op == EXPONENTIAL:
        for j in range(row.shape[0]):
            row[j] = _exp2(min(-a * row[j], zero))
    elif op == POLYNOMIAL:
        for j in range(row.shape[0]):
            base = a * row[j] + b
            value = base
            for _ in range(power - 1):
                value *= base
            row[j] = value


@compiled(*EXACT_ORDER)
def map_tile(op, a, b, power, K, start, stop, hx, hy):  # type: ignore[no-untyped-def]
    """Apply `_map_row` to rows start..stop of K."""
    for i in range(start, stop):
        _map_row(op, a, b, power, K[i], hx[i], hy)


@compiled(*EXACT_ORDER)
def map_lower(op, a, b, power, K, start, stop, h, mirror):  # type: ignore[no-untyped-def]
    """Apply `_map_row` to the lower triangle of K in rows start..stop, and copy it to the upper triangle if `mirror`.

    The loop processes blocks of 16 x 1024 entries, which are copied while they are in the CPU cache.
    """
    for i0 in range(start, stop, 16):
        i1 = min(i0 + 16, stop)
        for j0 in range(0, i0, 1024):
            j1 = min(j0 + 1024, i0)
            for i in range(i0, i1):
                _map_row(op, a, b, power, K[i, j0:j1], h[i], h[j0:j1])
            if mirror:
                for j in range(j0, j1):
                    above = K[j, i0:i1]
                    for i in range(above.shape[0]):
                        above[i] = K[i0 + i, j]
        for i in range(i0, i1):
            _map_row(op, a, b, power, K[i, i0 : i + 1], h[i], h[i0 : i + 1])
            if mirror:
                for j in range(i0, i):
                    K[j, i] = K[i, j]


@compiled(*ANY_ORDER)
def lower_sum(K, start, stop, h, euclidean):  # type: ignore[no-untyped-def]
    """Sum the distances below the diagonal in rows start..stop of K. With `euclidean`, K contains inner products."""
    zero, total = K.dtype.type(0), 0.0
    for i in range(start, stop):
        row, hi = K[i, :i], h[i]
        if euclidean:
            for j in range(i):
                total += np.float64(np.sqrt(max((hi + h[j]) - (row[j] + row[j]), zero)))
        else:
            for j in range(i):
                total += np.float64(row[j])
    return total


@compiled(*ANY_ORDER)
def _sum_features(pair, block, where, value, count, total):  # type: ignore[no-untyped-def]
    """Compute total[j], the sum of pair(value[k], block[where[k], j]) over k < count, a multiple of 4."""
    zero, tiny = block.dtype.type(0), block.dtype.type(1e-30)
    total[:] = zero
    for k in range(0, count, 4):
        a, b, c, d = value[k], value[k + 1], value[k + 2], value[k + 3]
        A, B, C, D = block[where[k]], block[where[k + 1]], block[where[k + 2]], block[where[k + 3]]
        if pair == DOT:
            for j in range(WIDTH):
                total[j] += (a * A[j] + b * B[j]) + (c * C[j] + d * D[j])
        elif pair == MIN:
            for j in range(WIDTH):
                total[j] += (min(a, A[j]) + min(b, B[j])) + (min(c, C[j]) + min(d, D[j]))
        elif pair == CHI2:
            for j in range(WIDTH):
                left = a * A[j] / (a + A[j]) + b * B[j] / (b + B[j])
                total[j] += left + (c * C[j] / (c + C[j]) + d * D[j] / (d + D[j]))
        elif pair == L1_DIRECT:
            for j in range(WIDTH):
                total[j] += (abs(a - A[j]) + abs(b - B[j])) + (abs(c - C[j]) + abs(d - D[j]))
        else:
            for j in range(WIDTH):
                left = (a - A[j]) ** 2 / max(a + A[j], tiny) + (b - B[j]) ** 2 / max(b + B[j], tiny)
                right = (c - C[j]) ** 2 / max(c + C[j], tiny) + (d - D[j]) ** 2 / max(d + D[j], tiny)
                total[j] += left + right


@compiled(*ANY_ORDER)
def _write_row(K, row, column, total, count, factor, sx, sy):  # type: ignore[no-untyped-def]
    """Write s_x + s_y - factor * total to a row of K, or the totals if the factor is 0."""
    for j in range(count):
        if factor == 0.0:
            K[row, column + j] = total[j]
        else:
            K[row, column + j] = max(sx + sy[column + j] - factor * np.float64(total[j]), 0.0)


@compiled(*ANY_ORDER)
def sparse_pairs(pair, factor, x, y, n_columns, start, stop, sx, sy, K, first, lower):  # type: ignore[no-untyped-def]
    """Write sums over the common features of CSR rows x_i and y_j to K[first + i, j], for i in start..stop."""
    # `x` and `y` are CSR triples (data, indices, indptr) without explicit zeros. For every 128 rows of `y`, the columns
    # with nonzero entries are copied to a dense block. Each row of `x` then selects its nonzero columns from this
    # block. With `lower`, only entries with j <= first + i are written.
    (xd, xi, xp), (yd, yi, yp) = x, y
    longest, most, n_y = 0, 0, yp.shape[0] - 1
    for i in range(start, stop):
        longest = max(longest, xp[i + 1] - xp[i])
    for j0 in range(0, n_y, WIDTH):
        most = max(most, yp[min(j0 + WIDTH, n_y)] - yp[j0])
    position = np.full(n_columns, -1, np.int32)
    block = np.empty((min(n_columns, most) + 1, WIDTH), K.dtype)
    where, value, total = np.empty(longest + 4, np.int64), np.empty(longest + 4, K.dtype), np.empty(WIDTH, K.dtype)
    for j0 in range(0, n_y, WIDTH):
        begin, j1 = max(start, j0 - first) if lower else start, min(j0 + WIDTH, n_y)
        if begin >= stop:
            break
        used = 0
        for k in range(yp[j0], yp[j1]):
            if position[yi[k]] < 0:
                position[yi[k]] = used
                block[used] = 0
                used += 1
        block[used] = 0
        for j in range(j0, j1):
            for k in range(yp[j], yp[j + 1]):
                block[position[yi[k]], j - j0] = yd[k]
        for i in range(begin, stop):
            count = 0
            for k in range(xp[i], xp[i + 1]):
                where[count], value[count] = position[xi[k]], xd[k]
                count += position[xi[k]] >= 0
            # Append columns of zeros, which do not change the sum, until the number of columns is a multiple of 4.
            while count % 4:
                where[count], value[count] = used, 1
                count += 1
            _sum_features(pair, block, where, value, count, total)
            end = min(j1, first + i + 1) if lower else j1
            _write_row(K, first + i, j0, total, end - j0, factor, sx[i], sy)
        for k in range(yp[j0], yp[j1]):
            position[yi[k]] = -1


@compiled(*ANY_ORDER)
def dense_pairs(pair, x, y, start, stop, K, first, lower):  # type: ignore[no-untyped-def]
    """Write sums over all features of dense rows x_i and y_j to K[first + i, j], for i in start..stop."""
    d = x.shape[1]
    padded = d + (-d) % 4
    block, total = np.zeros((padded, WIDTH), K.dtype), np.empty(WIDTH, K.dtype)
    where, value = np.empty(padded, np.int64), np.empty(padded, K.dtype)
    # Numba compiles this loop much faster than np.arange and a slice assignment.
    for f in range(padded):
        where[f], value[f] = f, 0
    for j0 in range(0, y.shape[0], WIDTH):
        begin, j1 = max(start, j0 - first) if lower else start, min(j0 + WIDTH, y.shape[0])
        if begin >= stop:
            break
        for j in range(j0, j1):
            for f in range(d):
                block[f, j - j0] = y[j, f]
        for i in range(begin, stop):
            for f in range(d):
                value[f] = x[i, f]
            _sum_features(pair, block, where, value, padded, total)
            end = min(j1, first + i + 1) if lower else j1
            for j in range(j0, end):
                K[first + i, j] = total[j - j0]


@compiled(*ANY_ORDER)
def refine_dense(x, y, start, stop, hx, hy, near, K, first, lower):  # type: ignore[no-untyped-def]
    """Recompute Euclidean distances from differences of rows if their squares are below near * (h_x + h_y)."""
    for i in range(start, stop):
        for j in range(first + i + 1 if lower else y.shape[0]):
            if np.float64(K[first + i, j]) ** 2 < near * (hx[i] + hy[j]):
                total = 0.0
                for f in range(x.shape[1]):
                    total += np.float64(x[i, f] - y[j, f]) ** 2
                K[first + i, j] = np.sqrt(total)


@compiled(*ANY_ORDER)
def refine_sparse(x, y, start, stop, hx, hy, near, K, first, lower):  # type: ignore[no-untyped-def]
    """Perform `refine_dense` for rows in CSR format with sorted column indices."""
    (xd, xi, xp), (yd, yi, yp) = x, y
    for i in range(start, stop):
        for j in range(first + i + 1 if lower else yp.shape[0] - 1):
            if np.float64(K[first + i, j]) ** 2 < near * (hx[i] + hy[j]):
                total, k, l = 0.0, xp[i], yp[j]
                while k < xp[i + 1] or l < yp[j + 1]:
                    left = xi[k] if k < xp[i + 1] else yi[l] + 1
                    right = yi[l] if l < yp[j + 1] else left + 1
                    difference = 0.0
                    if left <= right:
                        difference += np.float64(xd[k])
                        k += 1
                    if right <= left:
                        difference -= np.float64(yd[l])
                        l += 1
                    total += difference * difference
                K[first + i, j] = np.sqrt(total)


@compiled()
def fill_sparse(source, indptr, indices, data):  # type: ignore[no-untyped-def]
    """Write the column indices and values of nonzero entries to CSR arrays with space for one additional entry."""
    for i in range(source.shape[0]):
        k, row = indptr[i], source[i]
        for f in range(row.shape[0]):
            indices[k], data[k] = f, row[f]
            k += row[f] != 0


@compiled("contract", "nsz", "reassoc")
def ready_rows(source, how, offset, squared, out, norms):  # type: ignore[no-untyped-def]
    """Write normalized rows minus `offset` to `out`, and their squared L2 norms or L1 norms to `norms`.

    `how` is 0 for no normalization, 1 for "l1", 2 for "l2" or 3 for "hellinger". NaN propagates to `norms`.
    """
    for i in range(source.shape[0]):
        row, target, total = source[i], out[i], 0.0
        if how == 1 or how == 3:
            for f in range(row.shape[0]):
                total += np.float64(abs(row[f]))
        elif how == 2:
            for f in range(row.shape[0]):
                total += np.float64(row[f]) * np.float64(row[f])
            total = np.sqrt(total)
        scale = 1.0 if how == 0 or total == 0.0 else 1.0 / total
        if how == 3:
            for f in range(row.shape[0]):
                target[f] = np.float64(row[f]) * scale
                # A float64 square root is much slower than a float32 one, so compute the root in the precision of the
                # output.
                target[f] = np.sqrt(target[f]) - offset[f]
        else:
            for f in range(row.shape[0]):
                target[f] = np.float64(row[f]) * scale - offset[f]
        norm = 0.0
        if squared:
            for f in range(row.shape[0]):
                norm += np.float64(target[f]) * np.float64(target[f])
        else:
            for f in range(row.shape[0]):
                norm += np.float64(abs(target[f]))
        norms[i] = norm


@compiled()
def sketch_rows(values, shift, sign, out):  # type: ignore[no-untyped-def]
    """Add each feature of a row, multiplied by its sign, to one of m sums.

    Feature c m + r is added to the sum with the index (r + shift[c]) mod m.
    """
    m = out.shape[1]
    for i in range(values.shape[0]):
        row, target = values[i], out[i]
        for c in range(shift.shape[0]):
            many, s = min(m, row.shape[0] - c * m), shift[c]
            x, signs, front = row[c * m : c * m + many], sign[c * m : c * m + many], min(many, m - s)
            later = target[s:]
            # Two loops over contiguous ranges of features can be vectorized, unlike one loop over all features.
            for j in range(front):
                later[j] += signs[j] * x[j]
            x, signs = x[front:], signs[front:]
            for j in range(many - front):
                target[j] += signs[j] * x[j]
