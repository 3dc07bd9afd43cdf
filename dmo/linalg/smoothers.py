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
from dmo.memory import free_memory

_KNOWN = 5  # blocks whose solutions are kept: as many as the basis of an eigenvalue search has
_SHARE = 32  # of the free memory that they may take, in each of several views


@dataclass
class Smoother:
    """H B = K (K + c I)^-1 B = B - c (K + c I)^-1 B, by a solver of K + c I."""

    # Conjugate gradients start at what is known: solutions are linear in B, so that those of the last blocks give
    # that of every combination of their columns. Eigenvectors are such combinations of the blocks of their search,
    # and need no solve of their own. Two n x k arrays a block are the memory, of the last five blocks where they are
    # little of what is free, else of the last one.

    solver: LinearSolver  # of K + c I
    ridge: float  # c > 0
    _loose: float | None = field(default=None, init=False, repr=False)
    _known: list[tuple[Any, Any]] = field(default_factory=list, init=False, repr=False)

    def dual(self, B: np.ndarray) -> np.ndarray:
        """Solve with K + c I; a warning tells where conjugate gradients did not converge.

        B (n, k) -> (n, k)
        """
        return self._solved(B, None)

    def _solved(self, B: Any, tol: float | None) -> Any:
        start = self._known_part(B) if self.iterative and self._known else None
        solution = self.solver.solve(B, start, check=False, tol=tol)
        if not solution.converged and self.iterative:  # direct methods have told of it themselves
            worst = np.nan if solution.residuals is None else solution.residuals.max()
            warnings.warn(
                f"a kernel solve with ridge {self.ridge:g} stopped at a relative residual of {worst:.1e}; "
                f"raise the ridge, or take float64 kernels or ones that fit in memory",
                ConvergenceWarning,
                stacklevel=2,
            )
        if self.iterative:
            room = 2 * _KNOWN * B.nbytes <= free_memory() / _SHARE
            self._known = [*self._known[1 - _KNOWN :], (B, solution.value)] if room else [(B, solution.value)]
        return solution.value

    def forget(self) -> None:
        """Solve without the solutions that are known, which lie on workers that were lost."""
        self._known = []

    def _known_part(self, B: Any) -> Any:
        """A start for B, in this process where B is."""
        first = next((block for block, _ in self._known if isinstance(block, WorkerRows)), None)
        if isinstance(B, WorkerRows) or first is None:
            return self._start(B)

        def work() -> np.ndarray | None:
            start = self._start(first.home.send(B)) if self._known else None
            return None if start is None else np.asarray(start)

        return first.home.retried(work)

    def _start(self, B: Any) -> Any:
        """The solution for the part of B that lies in the span of the blocks whose solutions are known."""
        # None where that is less than half of every column, as of blocks that are orthogonal to those before: the
        # product that looks at a start would only find that zero is as good.
        rest, start = B, mapped(np.zeros_like, B)
        # block by block, the last one first: those of a search are orthogonal to each other, and of blocks that change slowly
        # the last one says most
        for block, solution in reversed(self._known):
            block, solution = beside(B, block), beside(B, solution)
            share = np.linalg.lstsq(gram(block), block.T @ rest, rcond=1e-12)[0]
            rest, start = rest - block @ share, start + solution @ share
        near = lengths(rest) < 0.5 * lengths(B)
        return start if near.any() else None

    @property
    def iterative(self) -> bool:
        """Whether solutions are found by conjugate gradients, so that less exact ones cost less."""
        return self.solver.method == "cg"

    @property
    def adaptive(self) -> bool:
        """Whether less exact solutions cost less: those by conjugate gradients, and those that are refined."""
        return self.solver.method in ("cg", "mixed")

    def loosen(self, tol: float) -> None:
        """Let values be less exact from now on; coefficients stay as they were."""
        self._loose = tol

    def __call__(self, B: Any) -> Any:
        # the residual r of the solve is an error c (K + c I)^-1 r of H B, which is no longer than r
        return B - self.ridge * self._solved(B, self._loose)

    def inverse_diagonal(self) -> np.ndarray:
        """Work out the diagonal of the inverse, for leave-one-out scores; needs a direct solver.

        -> (n,)
        """
        return self.solver.inverse_diagonal()


class LinearSmoother:
    """The smoother of a linear kernel K = F F', by its coefficients W = (F'F + c I)^-1 F'B: H B = F W.

    F (n, d)
    """

    # Never B - c (K + c I)^-1 B, nor W as F' (K + c I)^-1 B from that: see `FactorSystem`. Nothing is larger than the
    # smaller side of F squared.

    def __init__(self, F: np.ndarray | Factor, ridge: float):
        self.F: Factor = DenseFactor(np.asarray(F, np.float64)) if isinstance(F, np.ndarray) else F
        self._solver = FactorSystem(self.F, ridge)

    def loadings(self, B: np.ndarray) -> np.ndarray:
        """Work out the coefficients of the columns of F; of the labels, they are Y'alpha_Y of [KGHA 31].

        B (n, p) -> (d, p)
        """
        return self._solver.loadings(B)

    def __call__(self, B: np.ndarray) -> np.ndarray:
        return self._solver.smooth(B)

    def left_out(
        self, B: np.ndarray, W: np.ndarray, part: np.ndarray | float = 1.0, where: np.ndarray | None = None
    ) -> np.ndarray:
        """Compute leave-one-out values of the function that smooths B, at all rows or at those with indices `where`.

        B (n, p); W (d, p); part (n,); where (m,) -> (n, p) or (m, p)
        """
        rows = slice(None) if where is None else where
        own = part[rows] if isinstance(part, np.ndarray) else part
        return leave_one_out(B[rows], self._solver.residuals(B, W, where), self._solver.unfitted(where), own)


def leave_one_out(
    targets: np.ndarray, residuals: np.ndarray, left: np.ndarray, part: np.ndarray | float = 1.0
) -> np.ndarray:
    """Predict every training row by the kernel ridge that is fitted without it: t_i - r_i / (1 - h_i).

    targets, residuals (n, k); left, part (n,) -> (n, k)
    """
    # Of a row of weight w of which a part is left out, h_i is that part of what it is for the whole row.
    #
    # Rifkin, Lippert 2007, section 3.
    divisor = part * left + (1 - part)
    warn_of_leverage(divisor)
    # a row of which nothing else tells: its own residual is all there is
    return np.asarray(targets - residuals / np.where(divisor == 0, 1.0, divisor)[:, None])
