"""Direct solvers of (A + c I) X = B: Cholesky, mixed precision, Woodbury."""

from __future__ import annotations

import logging

import numpy as np
import scipy.linalg

from dmo.blocks import row_blocks
from dmo.errors import UserError
from dmo.linalg.factors import Factor, low_rank_factor
from dmo.linalg.operators import Operator
from dmo.linalg.solution import CheckedSolver, IllConditioned, Solution

_STRIP = 4096
log = logging.getLogger("dmo")


class _Direct(CheckedSolver):
    """A factorization, refined against the true residual where that is asked for and above the tolerance."""

    _refinements = 3

    def _apply(self, B: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def _solve(self, B: np.ndarray, x0: np.ndarray | None, check: bool) -> Solution:
        X = self._apply(B)
        if not check:
            return Solution(X, 0, None, True, self.method)
        scale = np.linalg.norm(B, axis=0)
        scale[scale == 0] = 1.0
        R, steps = self._residual(B, X), 0
        size = np.linalg.norm(R, axis=0)
        while (size > self.tol * scale).any() and steps < self._refinements:
            X, steps, before = X + self._apply(R), steps + 1, size
            R = self._residual(B, X)
            size = np.linalg.norm(R, axis=0)
            if (size / scale).max() > 0.25 * (before / scale).max():
                break
        residuals = size / scale
        return Solution(X, steps, residuals, bool((residuals <= self.tol).all()), self.method)


def cholesky_in_place(A: np.ndarray, block: int = 2048) -> int:
    """The lower Cholesky factor of a column-major symmetric A (n x n, float32 or float64) in its lower triangle; 0, or
    the row at which A is found not positive definite (counted from 1). The upper triangle keeps what it had.

    By blocks of columns: OpenBLAS 0.3.30's own factorization ends the process from about n = 16 000 on two threads.
    """
    n = len(A)
    potrf = scipy.linalg.get_lapack_funcs("potrf", (A,))
    trsm = scipy.linalg.get_blas_funcs("trsm", (A,))
    for columns in row_blocks(n, block):
        start, stop = columns.start, columns.stop
        corner, info = potrf(A[columns, columns], lower=1, clean=0)
        if info != 0:
            return start + int(info)
        A[columns, columns] = corner
        panel = trsm(1.0, corner, A[stop:, columns], side=1, lower=1, trans_a=1)
        A[stop:, columns] = panel
        for rest in row_blocks(n - stop, block):
            A[stop + rest.start :, stop + rest.start : stop + rest.stop] -= panel[rest.start :] @ panel[rest].T
    return 0


class CholeskySolver(_Direct):
    """One float64 Cholesky factorization: n^3 / 3 multiplications, 8 n^2 bytes, then 2 n^2 per right-hand side."""

    method = "cholesky"

    def __init__(self, A: Operator, ridge: float, tol: float = 1e-8):
        super().__init__(A, ridge, tol)
        self._factor = self._factorized(np.float64)

    def _factorized(self, dtype: type[np.floating]) -> np.ndarray:
        matrix = self.A.dense(dtype)
        matrix.flat[:: self.A.n + 1] += self.ridge
        # LAPACK works on columns: the transpose of this symmetric row-major array is the same matrix without a copy
        factor = matrix.T
        info = cholesky_in_place(factor)
        if info != 0:
            raise IllConditioned(
                f"the kernel plus ridge {self.ridge:g} is not positive definite (Cholesky stopped at row {info} of "
                f"{self.A.n}); raise the ridge, take float64 kernels, or check that the kernel is positive semidefinite"
            )
        return factor

    def _apply(self, B: np.ndarray) -> np.ndarray:
        X, _ = scipy.linalg.lapack.dpotrs(self._factor, B, lower=1)
        return X

    def inverse_diagonal(self) -> np.ndarray:
        """diag((A + c I)^-1) (n): what leave-one-out predictions need. Takes 8 n^2 bytes more while it runs."""
        inverse, _ = scipy.linalg.lapack.dtrtri(self._factor, lower=1)
        out = np.zeros(self.A.n)
        for where in row_blocks(self.A.n, 512):
            strip = np.tril(inverse[where], k=where.start)
            out += np.einsum("ij,ij->j", strip, strip)
        return out


class MixedSolver(CholeskySolver):
    """A float32 Cholesky factorization, every solution refined to the tolerance against its float64 residual.

    Half the time and memory of the float64 factor; each refinement costs one float64 product with A. Where rounding
    makes the factor useless (a ridge below about 1e-7 of the largest eigenvalue) a float64 one takes its place.
    """

    method = "mixed"
    _refinements = 8

    def __init__(self, A: Operator, ridge: float, tol: float = 1e-8):
        _Direct.__init__(self, A, ridge, tol)
        try:
            self._factor = self._factorized(np.float32)
        except IllConditioned:
            self._factor = self._factorized(np.float64)

    def _apply(self, B: np.ndarray) -> np.ndarray:
        if self._factor.dtype == np.float64:
            return super()._apply(B)
        scale = np.linalg.norm(B, axis=0).clip(min=np.finfo(float).tiny)
        X, _ = scipy.linalg.lapack.spotrs(self._factor, (B / scale).astype(np.float32), lower=1)
        return X * scale

    def _solve(self, B: np.ndarray, x0: np.ndarray | None, check: bool) -> Solution:
        single = self._factor.dtype == np.float32
        found = super()._solve(B, x0, check or single)
        if found.converged or not single:
            return found
        log.info("solve: rounding stops the refinement of the float32 factor; taking a float64 one")
        self._double()
        return super()._solve(B, x0, check)

    def _double(self) -> None:
        del self._factor
        self._factor = self._factorized(np.float64)

    def inverse_diagonal(self) -> np.ndarray:
        """diag((A + c I)^-1) (n), from a float64 factor, which is kept."""
        if self._factor.dtype == np.float32:
            self._double()
        return super().inverse_diagonal()


class WoodburySolver(_Direct):
    """Push-through for A = F F': (B - F (F'F + c I)^-1 F'B) / c, with one step of refinement.

    `factor`: F where it is at hand. With F = W T sparse by clusters, F'F costs n k_s^2 and the products n k_s.
    """

    method = "woodbury"

    def __init__(self, A: Operator, ridge: float, factor: Factor | None = None, tol: float = 1e-8):
        super().__init__(A, ridge, tol)
        F = low_rank_factor(A) if factor is None else factor
        if F is None:
            raise UserError(f"woodbury needs a low-rank operator, got {type(A).__name__}; take 'cholesky' or 'cg'")
        self._F = F
        small = F.gram()
        small.flat[:: len(small) + 1] += ridge
        self._small = scipy.linalg.cho_factor(small, lower=True, check_finite=False)

    def _once(self, B: np.ndarray) -> np.ndarray:
        inner = scipy.linalg.cho_solve(self._small, self._F.t_dot(B), check_finite=False)
        return (B - self._F.dot(inner)) / self.ridge

    def _apply(self, B: np.ndarray) -> np.ndarray:
        X = self._once(B)
        return X + self._once(B - self._F.dot(self._F.t_dot(X)) - self.ridge * X)

    def inverse_diagonal(self) -> np.ndarray:
        """diag((A + c I)^-1) (n)."""
        out = np.empty(self.A.n)
        for where in row_blocks(self.A.n, _STRIP):
            rows = self._F.rows(where).T
            half = scipy.linalg.solve_triangular(self._small[0], rows, lower=True, check_finite=False)
            out[where] = (1 - np.einsum("ij,ij->j", half, half)) / self.ridge
        return out
