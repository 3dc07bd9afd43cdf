"""What every solver of (A + c I) X = B takes and gives: checked blocks of right-hand sides, a `Solution`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from dmo.errors import UserError
from dmo.linalg.operators import Operator


class IllConditioned(UserError):
    """A + c I is not positive definite in the arithmetic at hand."""


@dataclass(frozen=True)
class Solution:
    """What a solver found.

    `value` (B's shape, float64); `iterations`: products with A that the search took (conjugate gradients; the products
    that check residuals come on top) or refinements (direct methods); `residuals`: |B - (A + c I) X| / |B| per column,
    true ones in float64 (None if unchecked); `converged`: all of them at most the tolerance; `method`.
    """

    value: np.ndarray
    iterations: int
    residuals: np.ndarray | None
    converged: bool
    method: str


class Solver(Protocol):
    method: str

    def solve(self, B: np.ndarray, x0: np.ndarray | None = None, check: bool = True) -> Solution:
        """Solve for B (n, or n x k) from the start `x0`; `check=False` spares a direct method its residual.

        Raises ValueError where B or x0 has another number of rows, or holds NaN or inf.
        """
        ...

    def inverse_diagonal(self) -> np.ndarray:
        """diag((A + c I)^-1) (n)."""
        ...


def _block(what: str, B: np.ndarray, n: int) -> np.ndarray:
    """B as an n x k float64 array, checked."""
    B = np.asarray(B, np.float64)
    if B.ndim not in (1, 2) or len(B) != n:
        raise UserError(f"solve: {what} has shape {B.shape}, the operator is {n} x {n}; pass one row per sample")
    if not np.isfinite(B).all():
        raise UserError(f"solve: {what} holds NaN or inf in row {int(np.argwhere(~np.isfinite(B))[0, 0])}")
    return B.reshape(n, -1)


class CheckedSolver:
    """Checks and shapes of a solve; what follows is each method's own."""

    method: str

    def __init__(self, A: Operator, ridge: float, tol: float):
        self.A, self.ridge, self.tol = A, ridge, tol

    def solve(self, B: np.ndarray, x0: np.ndarray | None = None, check: bool = True) -> Solution:
        block = _block("the right-hand side", B, self.A.n)
        start = None if x0 is None else _block("the start", x0, self.A.n)
        if start is not None and start.shape != block.shape:
            raise UserError(f"solve: the start has shape {start.shape}, the right-hand side {block.shape}")
        solution = self._solve(block, start, check)
        return replace(solution, value=solution.value.reshape(np.shape(B)))

    def _solve(self, B: np.ndarray, x0: np.ndarray | None, check: bool) -> Solution:
        raise NotImplementedError

    def _residual(self, B: np.ndarray, X: np.ndarray) -> np.ndarray:
        return B - self.A.product(X) - self.ridge * X
