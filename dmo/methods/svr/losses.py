"""Losses of support vector regression: value, proximal map and conjugate, entry by entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from dmo.errors import UserError

POWERS = {"l1": 1.0, "l4/3": 4 / 3, "l3/2": 3 / 2}
"""Losses |r|^p with p < 2 whose proximal map has a closed form (for p = 2 a rotation changes nothing)."""
Cost = float | np.ndarray
"""Weight of the loss, of all entries or of each sample's (n x 1), above 0."""
LossName = Literal["epsilon-insensitive", "l1", "l4/3", "l3/2"]
EPSILON_INSENSITIVE: LossName = "epsilon-insensitive"


class Loss(Protocol):
    """A convex, even loss l(r) of one number; arrays are taken entry by entry."""

    @property
    def bounded(self) -> bool:
        """Whether (C l)* is finite on [-C, C] only, that is, whether dual coefficients are in a box."""
        ...

    def value(self, R: np.ndarray, C: Cost) -> float:
        """The sum of C l over the entries."""
        ...

    def prox(self, R: np.ndarray, weight: Cost) -> np.ndarray:
        """argmin_t weight l(t) + (t - r)^2 / 2, entry by entry."""
        ...

    def conjugate(self, W: np.ndarray, C: Cost) -> float:
        """The sum of (C l)*(w) = max_t w t - C l(t) over the entries, which are within the box where `bounded`."""
        ...


@dataclass(frozen=True)
class EpsilonInsensitive:
    """max(|r| - epsilon, 0). Source: Vapnik 1995."""

    epsilon: float

    @property
    def bounded(self) -> bool:
        return True

    def value(self, R: np.ndarray, C: Cost) -> float:
        return float((C * np.maximum(np.abs(R) - self.epsilon, 0.0)).sum())

    def prox(self, R: np.ndarray, weight: Cost) -> np.ndarray:
        size = np.abs(R)
        shrunk = np.where(size <= self.epsilon, size, np.maximum(size - weight, self.epsilon))
        return np.copysign(shrunk, R)

    def conjugate(self, W: np.ndarray, C: Cost) -> float:
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


def loss_named(name: str, epsilon: float) -> Loss:
    """Look up a loss."""
    if name == EPSILON_INSENSITIVE:
        if not (epsilon > 0 and np.isfinite(epsilon)):
            raise UserError(f"epsilon must be a positive number, got {epsilon!r}; for no tube take loss='l1'")
        return EpsilonInsensitive(float(epsilon))
    if name not in POWERS:
        raise UserError(f"loss = {name!r}; known: {', '.join(map(repr, [EPSILON_INSENSITIVE, *POWERS]))}")
    return Power(POWERS[name])
