"""Smoothers H = K (K + c I)^-1 of kernels and of linear views."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from dmo.linalg.factors import DenseFactor
from dmo.linalg.linear import FactorSystem, LinearSolver, warn_of_leverage
from dmo.linalg.rows import WorkerRows, beside, lengths, mapped
from dmo.linalg.tall import Factor, gram
from dmo.memory import fits

# Number of blocks whose solutions are cached. The basis of an eigenvalue search has the same number of blocks.
_KNOWN = 5
# Maximum fraction of the free memory for cached blocks of one view. Other views cache blocks too.
_SHARE = 1 / 32


@dataclass
class Smoother:
    """Kernel smoother H B = K (K + c I)^-1 B = B - c (K + c I)^-1 B, given a solver of K + c I."""

    # Conjugate gradients start from earlier solutions. Solutions are linear in B, so the solutions of the last blocks
    # determine the solution for every linear combination of their columns. Eigenvectors are such combinations, so they
    # need no additional solve. Each cached block needs two n x k arrays. Five blocks are cached if they need only a
    # small fraction of the free memory, otherwise one block.

    solver: LinearSolver
    ridge: float
    _loose: float | None = field(default=None, init=False, repr=False)
    _known: list[tuple[Any, Any]] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        self.iterative = self.solver.method == "cg"
        """Whether the solver uses conjugate gradients."""
        self.adaptive = self.solver.method in ("cg", "mixed")
        """Whether less accurate solutions cost less, as with conjugate gradients and iterative refinement."""

    def dual(self, B: np.ndarray) -> np.ndarray:
        """Compute (K + c I)^-1 B for a block B (n x k), with a warning if conjugate gradients do not converge."""
        return self._solved(B, None)

    def _solved(self, B: Any, tol: float | None) -> Any:
        start = self._known_part(B) if self.iterative and self._known else None
        solution = self.solver.solve(B, start, check=False, tol=tol)
        if not solution.converged and self.iterative:  # Direct solvers issue their own warnings.
            worst = np.nan if solution.residuals is None else solution.residuals.max()
            warnings.warn(
                f"a kernel solve with ridge {self.ridge:g} stopped at a relative residual of {worst:.1e}; "
                f"raise the ridge, or use float64 kernels or kernels that fit in memory",
                ConvergenceWarning,
                stacklevel=2,
            )
        if self.iterative:
            before = self._known[1 - _KNOWN :] if fits(2 * _KNOWN * B.nbytes, _SHARE) else []
            self._known = [*before, (B, solution.value)]
        return solution.value

    def forget(self) -> None:
        """Discard known solutions because their workers were lost."""
        self._known = []

    def _known_part(self, B: Any) -> Any:
        """Return an initial solution for B from cached solutions, at the location (client or workers) of B."""
        first = next((block for block, _ in self._known if isinstance(block, WorkerRows)), None)
        if isinstance(B, WorkerRows) or first is None:
            return self._start(B)

        def work() -> np.ndarray | None:
            start = self._start(first.home.send(B)) if self._known else None
            return None if start is None else np.asarray(start)

        return first.home.retried(work)

    def _start(self, B: Any) -> Any:
        """Solve for the part of B in the span of the blocks with known solutions."""
        # If at least half of every column of B is outside the span of the cached blocks, return None. Zero is then
        # about as good an initial solution, and needs no product to compute its residual.
        rest, start = B, mapped(np.zeros_like, B)
        # If blocks change slowly, the last block is the most similar to B, so project on the last block first.
        for block, solution in reversed(self._known):
            block, solution = beside(B, block), beside(B, solution)
            share = np.linalg.lstsq(gram(block), block.T @ rest, rcond=1e-12)[0]
            rest, start = rest - block @ share, start + solution @ share
        near = lengths(rest) < 0.5 * lengths(B)
        return start if near.any() else None

    def loosen(self, tol: float) -> None:
        """Reduce the accuracy of smoothed values from now on. Coefficients keep their accuracy."""
        self._loose = tol

    def __call__(self, B: Any) -> Any:
        # The residual r of a solve causes the error c (K + c I)^-1 r in H B, and the norm of this error is at most |r|.
        return B - self.ridge * self._solved(B, self._loose)

    def inverse_diagonal(self) -> np.ndarray:
        """Compute the diagonal (n) of (K + c I)^-1 for leave-one-out scores, which needs a direct solver."""
        return self.solver.inverse_diagonal()


class LinearSmoother:
    """Smoother H B = F W of a linear kernel F F' (F: n x d) with the coefficients W = (F'F + c I)^-1 F'B."""

    # The formulas H B = B - c (K + c I)^-1 B and W = F'(K + c I)^-1 B would suffer from cancellation (see
    # `FactorSystem`).

    iterative = False  # Whether the solver uses conjugate gradients.

    def __init__(self, F: np.ndarray | Factor, ridge: float):
        self.F: Factor = DenseFactor(np.asarray(F, np.float64)) if isinstance(F, np.ndarray) else F
        self._solver = FactorSystem(self.F, ridge)

    def loadings(self, B: np.ndarray) -> np.ndarray:
        """Compute the coefficients W (d x p) of the columns of F. For labels, they are Y'alpha_Y of [KGHA 31]."""
        return self._solver.loadings(B)

    def __call__(self, B: np.ndarray) -> np.ndarray:
        return self._solver.smooth(B)

    def left_out(
        self, B: np.ndarray, W: np.ndarray, part: np.ndarray | float = 1.0, where: np.ndarray | None = None
    ) -> np.ndarray:
        """Compute leave-one-out predictions for all rows of B (n x p), or for the row indices `where`.

        `W` (d x p) holds the coefficients of B, and `part` (n) is the fraction of each row's weight that is left out.
        """
        rows = slice(None) if where is None else where
        own = part[rows] if isinstance(part, np.ndarray) else part
        return leave_one_out(B[rows], self._solver.residuals(B, W, where), self._solver.unfitted(where), own)


def leave_one_out(
    targets: np.ndarray, residuals: np.ndarray, left: np.ndarray, part: np.ndarray | float = 1.0
) -> np.ndarray:
    """Compute leave-one-out predictions t_i - r_i / (1 - h_i) of kernel ridge regression for every training row.

    `targets` and `residuals` have shape (n, k). `left` (n) is one minus the leverages h_i.
    """
    # If only the fraction `part` of a row's weight is left out, the leverage h_i of the row is multiplied by this
    # fraction.
    #
    # Rifkin, Lippert 2007, section 3.
    divisor = part * left + (1 - part)
    warn_of_leverage(divisor)
    # If the leverage h_i is 1, no other row determines the prediction. The residual is then subtracted without
    # division.
    return np.asarray(targets - residuals / np.where(divisor == 0, 1.0, divisor)[:, None])
