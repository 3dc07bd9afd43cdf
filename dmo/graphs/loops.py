"""Compiled loops of the neighbor search and of edge weights, which release the GIL.

Each row has a heap of candidates, with the worst candidate at the root. A heap consists of keys (inf if empty) and row
indices (-1 if empty). A smaller key is better, and ties are resolved by the lower row index. Therefore, the result does
not depend on the order in which blocks are processed.

After the first blocks, almost all keys are worse than the root. Therefore, matrices of inner products are scanned in
pieces of 64 entries. A vectorized loop without branches checks whether any key of a piece is better than the root. Only
then are the keys of the piece checked one by one. `scan_columns` copies the roots of 64 columns, in order to read the
matrix row by row in memory order.
"""

from __future__ import annotations

import numpy as np

from dmo.kernels.loops import ANY_ORDER, compiled

_PIECE = 64
# Fast-math flags that support infinity, which is the key of empty heap entries.
_PLAIN = ("contract", "nsz")


@compiled(*_PLAIN)
def push(keys, rows, key, row):  # type: ignore[no-untyped-def]
    """Replace the worst candidate of a heap with the row index `row` and the key `key`."""
    m, at = keys.shape[0], 0
    while True:
        child = 2 * at + 1
        if child >= m:
            break
        other = child + 1
        if other < m and (keys[other] > keys[child] or (keys[other] == keys[child] and rows[other] > rows[child])):
            child = other
        if key > keys[child] or (key == keys[child] and row > rows[child]):
            break
        keys[at] = keys[child]
        rows[at] = rows[child]
        at = child
    keys[at] = key
    rows[at] = row


@compiled(*_PLAIN)
def _some_below(h, s, worst):  # type: ignore[no-untyped-def]
    """Return whether any key h_j - 2 s_j is at most `worst`."""
    found = np.int32(0)
    for j in range(h.shape[0]):
        found |= np.int32(h[j] - (s[j] + s[j]) <= worst)
    return found


@compiled(*_PLAIN)
def _some_below_own(worst, s, h):  # type: ignore[no-untyped-def]
    """Return whether any key h - 2 s_j is at most the threshold worst_j."""
    found = np.int32(0)
    for j in range(worst.shape[0]):
        found |= np.int32(h - (s[j] + s[j]) <= worst[j])
    return found


@compiled(*_PLAIN)
def scan_rows(S, start, stop, h, own, keys, rows, row0, col0):  # type: ignore[no-untyped-def]
    """Update the heaps of rows start..stop with keys h_j - 2 s_ij from a matrix S of inner products.

    Row i of S has the row index row0 + i, and column j has col0 + j. With `own`, a row is not its own candidate.
    """
    width = S.shape[1]
    for i in range(start, stop):
        row = row0 + i
        worst = keys[row, 0]
        for j0 in range(0, width, _PIECE):
            j1 = min(j0 + _PIECE, width)
            if not _some_below(h[col0 + j0 : col0 + j1], S[i, j0:j1], worst):
                continue
            for j in range(j0, j1):
                key = h[col0 + j] - (S[i, j] + S[i, j])
                column = col0 + j
                if key > worst or (key == worst and column > rows[row, 0] >= 0):
                    continue
                if own and column == row:
                    continue
                push(keys[row], rows[row], key, column)
                worst = keys[row, 0]


@compiled(*_PLAIN)
def scan_columns(S, start, stop, h, keys, rows, row0, col0):  # type: ignore[no-untyped-def]
    """Update the heaps of columns start..stop with the rows of S, which must be different samples."""
    worst = np.empty(_PIECE, keys.dtype)
    for c0 in range(start, stop, _PIECE):
        c1 = min(c0 + _PIECE, stop)
        for c in range(c0, c1):
            worst[c - c0] = keys[col0 + c, 0]
        for i in range(S.shape[0]):
            hi, row = h[row0 + i], row0 + i
            if not _some_below_own(worst[: c1 - c0], S[i, c0:c1], hi):
                continue
            for c in range(c0, c1):
                key, column = hi - (S[i, c] + S[i, c]), col0 + c
                if key > worst[c - c0] or (key == worst[c - c0] and row > rows[column, 0] >= 0):
                    continue
                push(keys[column], rows[column], key, row)
                worst[c - c0] = keys[column, 0]


@compiled(*_PLAIN)
def merge(keys, rows, more_keys, more_rows, start, stop):  # type: ignore[no-untyped-def]
    """Insert more candidates into the heaps of rows start..stop."""
    for i in range(start, stop):
        for c in range(keys.shape[1]):
            key, row = more_keys[i, c], more_rows[i, c]
            if row >= 0 and (key < keys[i, 0] or (key == keys[i, 0] and row < rows[i, 0])):
                push(keys[i], rows[i], key, row)


@compiled(*_PLAIN)
def sparse_products(S, start, stop, indptr, indices, data, inner_ptr, inner_rows, inner_data):  # type: ignore[no-untyped-def]
    """Compute rows start..stop of S = X Z', where X has CSR format and Z has CSC format."""
    for i in range(start, stop):
        S[i, :] = 0
        for a in range(indptr[i], indptr[i + 1]):
            value, c = data[a], indices[a]
            for b in range(inner_ptr[c], inner_ptr[c + 1]):
                S[i, inner_rows[b]] += value * inner_data[b]


@compiled(*ANY_ORDER)
def dense_distances(x, y, sx, sy, pairs, start, stop, out):  # type: ignore[no-untyped-def]
    """Compute squared distances out[i, c] = |sx_i x_i - sy_j y_j|^2 in float64, where j = pairs[i, c]."""
    for i in range(start, stop):
        a = sx[i]
        for c in range(pairs.shape[1]):
            j = pairs[i, c]
            if j < 0:
                continue
            b, total = sy[j], 0.0
            for t in range(x.shape[1]):
                gap = np.float64(x[i, t]) * a - np.float64(y[j, t]) * b
                total += gap * gap
            out[i, c] = total


@compiled("contract")
def sparse_distances(xp, xi, xv, yp, yi, yv, sx, sy, pairs, start, stop, out):  # type: ignore[no-untyped-def]
    """Compute the result of `dense_distances` for CSR rows with sorted column indices."""
    for i in range(start, stop):
        for c in range(pairs.shape[1]):
            j = pairs[i, c]
            if j < 0:
                continue
            a, a_end, b, b_end, total = xp[i], xp[i + 1], yp[j], yp[j + 1], 0.0
            while a < a_end or b < b_end:
                left = xi[a] if a < a_end else np.iinfo(np.int64).max
                right = yi[b] if b < b_end else np.iinfo(np.int64).max
                gap = 0.0
                if left <= right:
                    gap += xv[a] * sx[i]
                    a += 1
                if right <= left:
                    gap -= yv[b] * sy[j]
                    b += 1
                total += gap * gap
            out[i, c] = total


@compiled("contract")
def sparse_dots(xp, xi, xv, yp, yi, yv, left, right, start, stop, out):  # type: ignore[no-untyped-def]
    """Compute out[e], the inner product of rows x_left[e] and y_right[e], for CSR rows with sorted column indices."""
    for e in range(start, stop):
        a, a_end, b, b_end, total = xp[left[e]], xp[left[e] + 1], yp[right[e]], yp[right[e] + 1], 0.0
        while a < a_end and b < b_end:
            if xi[a] == yi[b]:
                total += xv[a] * yv[b]
                a += 1
                b += 1
            elif xi[a] < yi[b]:
                a += 1
            else:
                b += 1
        out[e] = total


@compiled(*ANY_ORDER)
def dense_dots(x, y, left, right, start, stop, out):  # type: ignore[no-untyped-def]
    """Compute out[e], the inner product of rows x_left[e] and y_right[e], in float64."""
    for e in range(start, stop):
        i, j, total = left[e], right[e], 0.0
        for t in range(x.shape[1]):
            total += np.float64(x[i, t]) * np.float64(y[j, t])
        out[e] = total


@compiled("contract")
def kendall(x, left, right, start, stop, out):  # type: ignore[no-untyped-def]
    """Compute Kendall's tau-b for pairs of rows, or 0 if a row is constant."""
    for e in range(start, stop):
        i, j, both, in_x, in_y = left[e], right[e], 0, 0, 0
        for s in range(x.shape[1]):
            for t in range(s):
                a = int(x[i, s] > x[i, t]) - int(x[i, s] < x[i, t])
                b = int(x[j, s] > x[j, t]) - int(x[j, s] < x[j, t])
                both += a * b
                in_x += a * a
                in_y += b * b
        out[e] = both / np.sqrt(float(in_x) * float(in_y)) if in_x > 0 and in_y > 0 else 0.0
