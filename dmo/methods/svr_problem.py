"""Support vector regression of many outputs: losses, objective, dual, certificate.

Support vector regression of many outputs with locally rotated losses [LLT 3, 4]: objective, dual, certificate.

    min_{A, b}  1/2 tr(A' K A S) + sum_i C_i sum_j l(u_ij' (f_i - y_i)),     F = K A S + 1 b',

with the columns u_ij of U_i (orthonormal) as coordinates of sample i. S = I and U_i from the neighborhood of y_i is
LLT-SVR; S = I and U_i = I are independent support vector regressions; another S couples the outputs (Vazquez, Walter
2003). C_i is C times how often sample i counts. The dual is

    max_A  tr(A' Y) - 1/2 tr(A' K A S) - sum_i sum_j (C_i l)*(u_ij' a_i)     subject to 1'A = 0,

with the same A: its rows a_i are the dual coefficients.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from dmo.errors import UserError
from dmo.linalg.operators import Operator

POWERS = {"l1": 1.0, "l4/3": 4 / 3, "l3/2": 3 / 2}
"""Losses |r|^p with p < 2 whose proximal map has a closed form (for p = 2 a rotation changes nothing)."""
Cost = float | np.ndarray
"""Weight of the loss, of all entries or of each sample's (n x 1), above 0."""
LossName = Literal["epsilon-insensitive", "l1", "l4/3", "l3/2"]
EPSILON_INSENSITIVE: LossName = "epsilon-insensitive"


@dataclass(frozen=True)
class EpsilonInsensitive:
    """max(|r| - epsilon, 0). Source: Vapnik 1995."""

    epsilon: float

    @property
    def bounded(self) -> bool:
        """Whether (C l)* is finite on [-C, C] only, that is, whether dual coefficients are in a box."""
        return True

    def value(self, R: np.ndarray, C: Cost) -> float:
        """The sum of C l over the entries."""
        return float((C * np.maximum(np.abs(R) - self.epsilon, 0.0)).sum())

    def prox(self, R: np.ndarray, weight: Cost) -> np.ndarray:
        """argmin_t weight l(t) + (t - r)^2 / 2, entry by entry."""
        size = np.abs(R)
        shrunk = np.where(size <= self.epsilon, size, np.maximum(size - weight, self.epsilon))
        return np.copysign(shrunk, R)

    def conjugate(self, W: np.ndarray, C: Cost) -> float:
        """The sum of (C l)*(w) = max_t w t - C l(t) over the entries, which are within the box where `bounded`."""
        return self.epsilon * float(np.abs(W).sum())


@dataclass(frozen=True)
class Power:
    """|r|^p with p = 1, 4/3 or 3/2. Proximal maps: Chaux, Combettes, Pesquet, Wajs 2007, example 4.4."""

    power: float

    @property
    def bounded(self) -> bool:
        return self.power == 1.0

    def value(self, R: np.ndarray, C: Cost) -> float:
        return float((C * np.abs(R) ** self.power).sum())

    def prox(self, R: np.ndarray, weight: Cost) -> np.ndarray:
        size, slope = np.abs(R), self.power * weight
        if self.power == 1.0:
            shrunk = np.maximum(size - weight, 0.0)
        elif self.power == 3 / 2:  # t = u^2 with u^2 + slope u = |r|
            # the positive root as a quotient: as a difference it cancels where the slope is large
            shrunk = (2 * size / (slope + np.sqrt(slope * slope + 4 * size))) ** 2
        else:  # t = u^3 with u^3 + slope u = |r|
            # the one real root by hyperbolic functions: Cardano's two cube roots cancel for small |r|
            scale = np.sqrt(slope / 3)
            shrunk = (2 * scale * np.sinh(np.arcsinh(size / (2 * scale**3)) / 3)) ** 3
        return np.copysign(shrunk, R)

    def conjugate(self, W: np.ndarray, C: Cost) -> float:
        p = self.power
        if p == 1.0:
            return 0.0
        return float(((p - 1) * C * (np.abs(W) / (C * p)) ** (p / (p - 1))).sum())


Loss: TypeAlias = EpsilonInsensitive | Power
"""A convex, even loss l(r) of one number; arrays are taken entry by entry."""


def loss_named(name: str, epsilon: float) -> Loss:
    """Look up a loss."""
    if name == EPSILON_INSENSITIVE:
        if not (epsilon > 0 and np.isfinite(epsilon)):
            raise UserError(f"epsilon must be a positive number, got {epsilon!r}; for no tube take loss='l1'")
        return EpsilonInsensitive(float(epsilon))
    if name not in POWERS:
        raise UserError(f"loss = {name!r}; known: {', '.join(map(repr, [EPSILON_INSENSITIVE, *POWERS]))}")
    return Power(POWERS[name])


_REPAIRS = 3


@dataclass(frozen=True)
class Problem:
    """One regression.

    targets (n, L); frames (n, L, L); coupling (L, L); weights (n,)
    """

    kernel: Operator  # n x n
    targets: np.ndarray  # (n, L): Y
    loss: Loss  # of residuals
    C: float  # above 0
    frames: np.ndarray | None = None  # (n, L, L): U; None: the identity
    coupling: np.ndarray | None = None  # (L, L): S, positive semidefinite; None: the identity
    weights: np.ndarray | None = None  # (n,): how often every sample counts, above 0; None: once

    @property
    def costs(self) -> Cost:
        """C, or C_i (n x 1)."""
        return self.C if self.weights is None else self.C * self.weights[:, None]

    def rotate(self, R: np.ndarray) -> np.ndarray:
        """Turn residuals into the frames.

        R (n, L) -> (n, L)
        """
        return R if self.frames is None else np.matmul(R[:, None, :], self.frames)[:, 0, :]

    def rotate_back(self, T: np.ndarray) -> np.ndarray:
        """Turn coordinates in the frames into outputs.

        T (n, L) -> (n, L)
        """
        return T if self.frames is None else np.matmul(self.frames, T[:, :, None])[:, :, 0]

    @cached_property
    def _metric(self) -> tuple[np.ndarray, np.ndarray | None]:
        if self.coupling is None:
            return np.ones(self.targets.shape[1]), None
        values, vectors = np.linalg.eigh(self.coupling)
        return np.where(values > 1e-10 * values[-1], values, 0.0), vectors

    @property
    def scales(self) -> np.ndarray:
        """Eigenvalues of S (L), tiny ones as 0."""
        return self._metric[0]

    def to_latent(self, M: np.ndarray) -> np.ndarray:
        """Turn columns into the eigenbasis of S.

        M (n, L)
        """
        return M if self._metric[1] is None else M @ self._metric[1]

    def from_latent(self, M: np.ndarray) -> np.ndarray:
        """Turn columns back from the eigenbasis of S.

        M (n, L)
        """
        return M if self._metric[1] is None else M @ self._metric[1].T


@dataclass(frozen=True)
class Certificate:
    """Values of both objectives at feasible points: the optimum lies between.

    `unit`: sum C_i |y_ij|; objectives below 1e-9 of it are rounding.
    """

    objective: float
    dual_objective: float
    unit: float

    @property
    def gap(self) -> float:
        """Primal minus dual objective, relative to the larger of them."""
        scale = max(abs(self.objective), abs(self.dual_objective), 1e-9 * self.unit)
        return max(self.objective - self.dual_objective, 0.0) / scale if scale > 0 else 0.0


def objective(problem: Problem, A: np.ndarray, bias: np.ndarray, KA: np.ndarray) -> float:
    """The primal objective [LLT 3] at dual coefficients A (any n x L) and bias (L), given the product K A."""
    KAS = KA if problem.coupling is None else KA @ problem.coupling
    residual = problem.rotate(KAS + bias - problem.targets)
    return 0.5 * float(np.vdot(A, KAS)) + problem.loss.value(residual, problem.costs)


def dual_objective(problem: Problem, A: np.ndarray, KA: np.ndarray) -> float:
    """The dual objective [LLT 4] at a feasible A (see `dual_feasible`), given the product K A."""
    KAS = KA if problem.coupling is None else KA @ problem.coupling
    value = float(np.vdot(A, problem.targets)) - 0.5 * float(np.vdot(A, KAS))
    return value - problem.loss.conjugate(problem.rotate(A), problem.costs)


def dual_feasible(problem: Problem, A: np.ndarray) -> np.ndarray:
    """A point near A with 1'A = 0 and, for a bounded loss, |u_ij' a_i| <= C_i."""
    # The sums are made 0 by the smallest change of the coefficients inside the box, those that are 0 or C_i stay;
    # what that leaves is taken from all, and a common factor below 1 brings the whole into the box.
    if not problem.loss.bounded:
        return A - A.mean(axis=0)
    C = problem.costs
    W = np.clip(problem.rotate(A), -C, C)
    for _ in range(_REPAIRS):
        free = (np.abs(W) < C) & (W != 0)
        change = _smallest_change(problem, free, problem.rotate_back(W).sum(axis=0))
        W = np.clip(W - free * problem.rotate(np.broadcast_to(change, W.shape)), -C, C)
    A = problem.rotate_back(W)
    A -= A.mean(axis=0)
    excess = float((np.abs(problem.rotate(A)) / C).max())
    return A / excess if excess > 1 else A


def _smallest_change(problem: Problem, free: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Solve sum_i U_i diag(free_i) U_i' x = sums (L), 0 where nothing is free."""
    if problem.frames is None:
        often = free.sum(axis=0)
        return np.divide(sums, often, out=np.zeros(len(sums)), where=often > 0)
    parts = (problem.frames * free[:, None, :]).transpose(1, 0, 2).reshape(free.shape[1], -1)
    return np.linalg.lstsq(parts @ parts.T, sums)[0]


def certificate(problem: Problem, A: np.ndarray, bias: np.ndarray, multiplier: np.ndarray | None = None) -> Certificate:
    """Primal objective at (A, bias) and dual objective at the feasible point near `multiplier` (A); one product with K."""
    feasible = dual_feasible(problem, A if multiplier is None else multiplier)
    L = A.shape[1]
    products = problem.kernel.product(np.hstack([A, feasible]))
    primal = objective(problem, A, bias, products[:, :L])
    unit = float((problem.costs * np.abs(problem.targets)).sum())
    return Certificate(primal, dual_objective(problem, feasible, products[:, L:]), unit)
