"""Smoothers H = K (K + c I)^-1 of kernels and of linear views."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from dmo.linalg.factors import DenseFactor, Factor
from dmo.linalg.linear import FactorSystem
from dmo.linalg.solution import Solver


@dataclass
class Smoother:
    """H B = K (K + c I)^-1 B = B - c (K + c I)^-1 B, by a solver of K + c I; warm-started from its last solution."""

    solver: Solver
    ridge: float
    _last: np.ndarray | None = field(default=None, repr=False)

    def dual(self, B: np.ndarray) -> np.ndarray:
        """(K + c I)^-1 B, eq. 33."""
        start = self._last if self.solver.method == "cg" and self._last is not None else None
        if start is not None and start.shape != B.shape:
            start = None
        solution = self.solver.solve(B, start, check=False)
        if not solution.converged and self.solver.method == "cg":  # direct methods have told of it themselves
            worst = np.nan if solution.residuals is None else solution.residuals.max()
            warnings.warn(
                f"a kernel solve with ridge {self.ridge:g} stopped at a relative residual of {worst:.1e}; "
                f"raise the ridge, or take float64 kernels or ones that fit in memory",
                ConvergenceWarning,
                stacklevel=2,
            )
        self._last = solution.value if self.solver.method == "cg" else None
        return solution.value

    def __call__(self, B: np.ndarray) -> np.ndarray:
        return B - self.ridge * self.dual(B)

    def inverse_diagonal(self) -> np.ndarray:
        """diag((K + c I)^-1) (n), for leave-one-out scores; needs a direct solver."""
        return self.solver.inverse_diagonal()


class LinearSmoother:
    """The smoother of a linear kernel K = F F', by its coefficients W = (F'F + c I)^-1 F'B: H B = F W.

    Never B - c (K + c I)^-1 B, nor W as F' (K + c I)^-1 B from that: see `FactorSystem`. Nothing is larger than the
    smaller side of F squared.

    Arguments: `F` n x d, an array or a `Factor` (the labels or features; centered by the caller where they should be);
    `ridge` c > 0.
    """

    def __init__(self, F: np.ndarray | Factor, ridge: float):
        self.F: Factor = DenseFactor(np.asarray(F, np.float64)) if isinstance(F, np.ndarray) else F
        self._solver = FactorSystem(self.F, ridge)

    def loadings(self, B: np.ndarray) -> np.ndarray:
        """Q = F'(F F' + c I)^-1 B = (F'F + c I)^-1 F'B (d x p); of the labels: Y'alpha_Y of eq. 31."""
        return self._solver.loadings(B)

    def __call__(self, B: np.ndarray) -> np.ndarray:
        return self._solver.smooth(B)

    def leave_one_out(self, B: np.ndarray, W: np.ndarray, centered: bool = False) -> np.ndarray:
        """Values at every row of the function that smooths B (with loadings W) without that row: b - (b - s) / (1 - h).

        `centered`: the function has an intercept, which F's centering and B's stand for; it adds 1 / n to the leverage.
        """
        left = 1 - self._solver.leverages() - (1 / len(B) if centered else 0.0)
        return B - (B - self.F.dot(W)) / left[:, None]


def leave_one_out(
    targets: np.ndarray, dual: np.ndarray, inverse_diagonal: np.ndarray, intercept: float = 0.0
) -> np.ndarray:
    """Predictions of a kernel ridge for every training row when that row is left out: t_i - a_i / [(K + c I)^-1]_ii.

    Arguments: `targets` n x k; `dual` a = (K + c I)^-1 targets; `inverse_diagonal` n; `intercept`: 1 / (n c) where K and
    the targets are centered. The left-out regression has an intercept of its own then: with M = (K + c I)^-1 of the plain
    kernel the divisor is m_ii - (M1)_i^2 / 1'M1, that of the centered one less 1 / (n c).
    Source: Rifkin, Lippert 2007, section 3.
    """
    return targets - dual / (inverse_diagonal - intercept)[:, None]
