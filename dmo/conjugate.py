"""Block conjugate gradients for (A + c I) X = B, with a Nystrom preconditioner that serves every ridge."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from dmo.blocks import orthonormalise, row_blocks
from dmo.lowrank import rpcholesky
from dmo.operators import Operator
from dmo.solution import CheckedSolver, IllConditioned, Solution

_STRIP = 4096


def default_rank(n: int) -> int:
    """Rank of the preconditioner: a fifth of n, at most 1000 (more costs more than it saves up to 20 000 samples)."""
    return max(1, min(1000, n // 5))


@dataclass(frozen=True, eq=False)
class NystromPreconditioner:
    """An approximation U diag(values) U' of A (U: n x r orthonormal, values ascending); one serves every ridge.

    Source: Frangella, Tropp, Udell 2023, eq. 1.3, on randomly pivoted Cholesky columns.
    """

    basis: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, A: Operator, rank: int, random_state: int | None = None) -> NystromPreconditioner:
        """From `rank` columns of A chosen by randomly pivoted Cholesky."""
        F = rpcholesky(A.diagonal(), A.columns, rank, random_state).factor
        blocks = row_blocks(A.n, _STRIP)
        square = np.zeros((F.shape[1], F.shape[1]))
        for where in blocks:
            strip = F[where].astype(np.float64)
            square += strip.T @ strip
        values, vectors = np.linalg.eigh(square)
        keep = values > 1e-10 * values.max(initial=0.0)
        turn = vectors[:, keep] / np.sqrt(values[keep])
        basis = np.empty((A.n, turn.shape[1]), F.dtype)
        for where in blocks:
            basis[where] = F[where] @ turn
        return cls(basis, values[keep])

    def apply(self, R: np.ndarray, ridge: float) -> np.ndarray:
        """P^-1 R with P the approximation plus the ridge, scaled so that the rest of the space stays as it is."""
        if not self.values.size:
            return R
        along = (self.basis.T @ R.astype(self.basis.dtype)).astype(np.float64)
        along *= ((self.values[0] + ridge) / (self.values + ridge) - 1.0)[:, None]
        return R + self.basis @ along.astype(self.basis.dtype)

    def products(self, ridge: float, tolerance: float) -> float:
        """Products that conjugate gradients are predicted to use: the bound for the condition number that is left."""
        left = 1.0 + float(self.values[0] if self.values.size else 0.0) / ridge
        return 1.0 + 0.5 * float(np.sqrt(left) * np.log(2.0 / tolerance))


class BlockCG(CheckedSolver):
    """Preconditioned block conjugate gradients: one Krylov space for all columns, orthonormalised at every step.

    Products run in A's own precision. Whenever the recursion has gained two digits (eight in float64), claims
    convergence or is out of products, its residual is replaced by the true one in float64; the search goes on from the
    direction it had. Columns that have truly converged are frozen; all are scaled to length one, so that small ones
    count as much. A start at the solution costs the one product that checks it and 0 iterations.
    Source: O'Leary 1980; residual replacement: van der Vorst, Ye 2000.
    """

    method = "cg"

    def __init__(
        self, A: Operator, ridge: float, preconditioner: NystromPreconditioner, tolerance: float, max_products: int
    ):
        super().__init__(A, ridge, tolerance)
        self.preconditioner, self.max_products = preconditioner, max_products

    def inverse_diagonal(self) -> np.ndarray:
        raise ValueError(
            "leave-one-out scores need a factorised kernel, and this one is solved by conjugate gradients; "
            "take standardise=0, or a kernel that fits in memory"
        )

    def _solve(self, B: np.ndarray, x0: np.ndarray | None, check: bool) -> Solution:
        scale = np.linalg.norm(B, axis=0)
        some = np.flatnonzero(scale > 0)  # zero columns have the solution zero
        X, residuals, iterations = np.zeros(B.shape), np.zeros(B.shape[1]), 0
        if some.size:
            length = scale[some]
            X[:, some], R = self._start(B[:, some], None if x0 is None else x0[:, some], length)
            X[:, some], residuals[some], iterations = self._search(B[:, some] / length, X[:, some] / length, R / length)
            X *= scale
        return Solution(X, iterations, residuals, bool((residuals <= self.tolerance).all()), self.method)

    def _start(self, B: np.ndarray, x0: np.ndarray | None, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where to start, and its residuals: at zero in the columns where x0 is no better."""
        if x0 is None:
            return np.zeros(B.shape), B
        R = self._residual(B, x0)
        better = np.linalg.norm(R, axis=0) < length
        return np.where(better, x0, 0.0), np.where(better, R, B)

    def _search(self, B: np.ndarray, X: np.ndarray, R: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """X, its true residuals' norms and the products used, from X with residuals R; columns of B have length one."""
        size = np.linalg.norm(R, axis=0)  # of the true residuals, as last computed
        active = np.flatnonzero(size > self.tolerance)
        P, used = self._directions(R[:, active]), 0
        gain = 1e-2 if self.A.dtype == np.float32 else 1e-8  # beyond it the recursion drifts from the true residual
        while active.size and used < self.max_products and P.shape[1]:
            Q = self.A @ P + self.ridge * P
            used += 1
            factor = self._curvature(P, Q)
            step = scipy.linalg.cho_solve((factor, True), P.T @ R[:, active], check_finite=False)
            X[:, active] += P @ step
            R[:, active] -= Q @ step
            claimed = np.linalg.norm(R[:, active], axis=0)
            done = used == self.max_products or claimed.max() <= 0.5 * self.tolerance
            if done or np.median(claimed / size[active]) <= gain:
                R[:, active] = self._residual(B[:, active], X[:, active])
                before, size[active] = size[active], np.linalg.norm(R[:, active], axis=0)
                if (size[active] > 0.5 * before).all():  # rounding lets the true residuals fall no further
                    break
                active = active[size[active] > self.tolerance]
            P = self._directions(R[:, active], P, Q, factor)
        if active.size and not P.shape[1]:
            size[active] = np.linalg.norm(self._residual(B[:, active], X[:, active]), axis=0)
        return X, size, used

    def _directions(
        self,
        R: np.ndarray,
        P: np.ndarray | None = None,
        Q: np.ndarray | None = None,
        factor: np.ndarray | None = None,
    ) -> np.ndarray:
        """The next block of directions (orthonormal): preconditioned residuals, conjugate to the last block P."""
        Z = self.preconditioner.apply(R, self.ridge)
        Z = Z / np.maximum(np.linalg.norm(Z, axis=0), np.finfo(float).tiny)
        if P is not None and Q is not None:
            Z -= P @ scipy.linalg.cho_solve((factor, True), Q.T @ Z, check_finite=False)
        return orthonormalise(Z, tolerance=1e-8)

    def _curvature(self, P: np.ndarray, Q: np.ndarray) -> np.ndarray:
        """The lower Cholesky factor of P'(A + c I) P."""
        curvature = P.T @ Q
        if not np.isfinite(curvature).all():
            raise ValueError("solve: a product with the operator is not finite; check the kernel for NaN and inf")
        factor, info = scipy.linalg.lapack.dpotrf((curvature + curvature.T) / 2, lower=1)
        if info != 0:
            raise IllConditioned(
                f"conjugate gradients met a direction of negative curvature: the kernel plus ridge {self.ridge:g} "
                f"is not positive definite in {self.A.dtype}; raise the ridge or take float64 kernels"
            )
        return factor
