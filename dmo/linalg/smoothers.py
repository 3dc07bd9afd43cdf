"""Smoothers H = K (K + c I)^-1 of kernels and of linear views."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

import numpy as np
import scipy.linalg
from sklearn.exceptions import ConvergenceWarning

from dmo.linalg.solution import Solver
from dmo.linalg.tall import gram


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
        if not solution.converged:
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
    """The smoother of a linear kernel K = F F', by push-through: F (F'F + c I)^-1 F'B; nothing n x n.

    Arguments: `F` n x d, the labels or the features (centered by the caller where they should be); `ridge` c > 0.
    """

    def __init__(self, F: np.ndarray, ridge: float):
        self.F = np.asarray(F, np.float64)
        small = gram(self.F)
        small.flat[:: len(small) + 1] += ridge
        self._factor = scipy.linalg.cho_factor(small, lower=True)

    def loadings(self, B: np.ndarray) -> np.ndarray:
        """Q = F'(F F' + c I)^-1 B = (F'F + c I)^-1 F'B (d x p); of the labels: Y'alpha_Y of eq. 31."""
        return scipy.linalg.cho_solve(self._factor, gram(self.F, B))

    def __call__(self, B: np.ndarray) -> np.ndarray:
        return self.F @ self.loadings(B)
