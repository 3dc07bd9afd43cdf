"""A Cholesky factorization in place, by blocks of columns."""

from __future__ import annotations

import numpy as np
import scipy.linalg

from dmo.blocks import row_blocks

_BLOCK = 2048  # columns; below it LAPACK's own factorization works, and is the fastest


def cholesky_in_place(A: np.ndarray) -> int:
    """The lower Cholesky factor of a column-major symmetric A (n x n, float32 or float64) in its lower triangle; 0, or
    the row at which A is found not positive definite (counted from 1). The upper triangle keeps what it had.

    By blocks of columns: OpenBLAS 0.3.30's own factorization ends the process from about n = 16 000 on two threads.
    """
    n = len(A)
    potrf = scipy.linalg.get_lapack_funcs("potrf", (A,))
    trsm = scipy.linalg.get_blas_funcs("trsm", (A,))
    for columns in row_blocks(n, _BLOCK):
        start, stop = columns.start, columns.stop
        corner, info = potrf(A[columns, columns], lower=1, clean=0)
        if info != 0:
            return start + int(info)
        A[columns, columns] = corner
        panel = trsm(1.0, corner, A[stop:, columns], side=1, lower=1, trans_a=1)
        A[stop:, columns] = panel
        for rest in row_blocks(n - stop, _BLOCK):
            A[stop + rest.start :, stop + rest.start : stop + rest.stop] -= panel[rest.start :] @ panel[rest].T
    return 0
