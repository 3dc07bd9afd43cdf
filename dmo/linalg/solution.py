"""What every solver of (A + c I) X = B takes and gives: checked blocks of right-hand sides, a `Solution`."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from dmo.errors import UserError
from dmo.linalg.operators import Operator


class IllConditioned(UserError):
    """A + c I is not positive definite in the arithmetic at hand."""


class InaccurateSolve(ConvergenceWarning):
    """A direct solve whose solution does not satisfy its equation as well as float64 numbers should."""


TOLERATED = 1e-6
"""Relative residual of a direct solve above which there is a warning: the smoothed values are off by up to as much."""


PROBES = 3
"""Columns whose residual is computed where nobody asked for residuals: a wrong factor spoils all of them."""


def relative_error(R: np.ndarray, B: np.ndarray) -> float:
    """max_j |r_j| / |b_j|, of the columns that are not zero."""
    # Not the norm-wise backward error |r| / (|A + c I| |x| + |b|), which every backward stable factorization keeps at
    # a few roundings, however small the ridge: with |x| up to |b| / c it passes an r as large as b. What is used of x
    # are values A x, whose error A (A + c I)^-1 r is at most |r|: the relative residual bounds it in units of the
    # labels.
    scale = np.linalg.norm(B, axis=0)
    return float((np.linalg.norm(R, axis=0)[scale > 0] / scale[scale > 0]).max(initial=0.0))


def warn_of_error(what: str, ridge: float, error: float) -> None:
    """An InaccurateSolve where the relative error is more than rounding."""
    if not error <= TOLERATED:  # NaN as well
        warnings.warn(
            f"{what} with ridge {ridge:g} has a relative residual of {error:.1e}, above {TOLERATED:g}: the ridge is too "
            f"small for the scale of the data; raise it, or take float64 kernels",
            InaccurateSolve,
            stacklevel=2,
        )


LEAST = 1e-10
"""1 - leverage below which a left-out score is a quotient of roundings, or of what the ridge alone keeps apart."""


def warn_of_leverage(left: np.ndarray) -> None:
    """Warn by an InaccurateSolve where rows are fitted so closely that hardly anything is left of their residuals.

    left (n,)
    """
    few = int(np.count_nonzero(~(left >= LEAST)))  # NaN as well
    if few:
        warnings.warn(
            f"{few} of {len(left)} samples are fitted up to {LEAST:g} of their residuals (1 - leverage is down to "
            f"{np.nanmin(left):.1e}), so that their left-out scores depend on the last digits of the data; raise the ridge, "
            f"or scale the features down",
            InaccurateSolve,
            stacklevel=2,
        )


@dataclass(frozen=True)
class Solution:
    """What a solver found."""

    value: np.ndarray  # X, of the shape of the right-hand side
    iterations: int
    residuals: np.ndarray | None  # (k,): |B - (A + c I) X| / |B| per column, true ones in float64; None if unchecked
    converged: bool  # whether all of them are at most the tolerance
    method: str  # its name


class Solver(Protocol):
    """What solves (A + c I) X = B for many B."""

    method: str

    def solve(
        self, B: np.ndarray, x0: np.ndarray | None = None, check: bool = True, tol: float | None = None
    ) -> Solution:
        """Solve for some right-hand sides.

        B (n,)
        """
        ...

    def inverse_diagonal(self) -> np.ndarray:
        """Work out the diagonal of the inverse.

        -> (n,)
        """
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

    def solve(
        self, B: np.ndarray, x0: np.ndarray | None = None, check: bool = True, tol: float | None = None
    ) -> Solution:
        block = _block("the right-hand side", B, self.A.n)
        start = None if x0 is None else _block("the start", x0, self.A.n)
        if start is not None and start.shape != block.shape:
            raise UserError(f"solve: the start has shape {start.shape}, the right-hand side {block.shape}")
        solution = self._solve(block, start, check, self.tol if tol is None else tol)
        return replace(solution, value=solution.value.reshape(np.shape(B)))

    def _solve(self, B: np.ndarray, x0: np.ndarray | None, check: bool, tol: float) -> Solution:
        raise NotImplementedError

    def _residual(self, B: np.ndarray, X: np.ndarray) -> np.ndarray:
        R = self.A.product(X)
        R += self.ridge * X
        return np.subtract(B, R, out=R)
