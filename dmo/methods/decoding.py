"""From raw label scores to scores that rank labels: means, prior and per-label scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dmo.errors import UserError


@dataclass(frozen=True)
class ScoreRule:
    """scores = (s + intercept - standardize * mean) / deviation^standardize / frequency^prior_power, per label.

    Arguments (arrays of length L): `intercept`, added label means or 0; `mean`, `deviation`: of the leave-one-out scores
    of the training samples; `frequency`: share of training samples that carry the label. `standardize` and
    `prior_power` in 0..1; at 0 and 0 the rule is eq. 31 of [KGHA] as it stands.
    """

    intercept: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray
    frequency: np.ndarray
    standardize: float = 0.0
    prior_power: float = 0.0

    @classmethod
    def learn(
        cls,
        frequency: np.ndarray,
        loo: np.ndarray | None,
        intercept: bool,
        standardize: float = 0.0,
        prior_power: float = 0.0,
    ) -> ScoreRule:
        """From the labels' frequencies (L) and leave-one-out scores `loo` (n x L; needed where standardize > 0)."""
        if loo is None or not standardize:
            return cls.of(frequency, np.zeros_like(frequency), np.ones_like(frequency), intercept, 0.0, prior_power)
        return cls.of(frequency, loo.mean(axis=0), loo.std(axis=0), intercept, standardize, prior_power)

    @classmethod
    def of(
        cls,
        frequency: np.ndarray,
        mean: np.ndarray,
        deviation: np.ndarray,
        intercept: bool,
        standardize: float,
        prior_power: float,
    ) -> ScoreRule:
        """From statistics of the raw held-out scores (before the intercept); a constant label keeps its scale."""
        for what, value in (("standardize", standardize), ("prior_power", prior_power)):
            if not 0 <= value <= 1:
                raise UserError(f"{what} = {value}; needed is a power between 0 and 1")
        added = frequency if intercept else np.zeros_like(frequency)
        scale = np.where(deviation > 0, deviation, 1.0)
        return cls(added, mean + added, scale, frequency, standardize, prior_power)

    @property
    def seen(self) -> np.ndarray:
        """Whether any training sample carries the label (L)."""
        return self.frequency > 0

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        """Apply to raw scores (m x L); labels without a training sample get the lowest scores of their row."""
        shift = self.intercept - self.standardize * self.mean
        out = scores + shift if shift.any() else scores
        if self.standardize:
            out = out / self.deviation**self.standardize
        if self.prior_power:
            out = out / np.where(self.seen, self.frequency, 1.0) ** self.prior_power
        return unseen_last(out, self.seen)

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(arrays, JSON meta) for a model store."""
        arrays = {key: getattr(self, key) for key in ("intercept", "mean", "deviation", "frequency")}
        return arrays, {"standardize": self.standardize, "prior_power": self.prior_power}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any], meta: dict[str, Any]) -> ScoreRule:
        """The rule that `to_arrays` described."""
        return cls(**arrays, **meta)


def unseen_last(scores: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Scores (m x L) with every label that is not `seen` (L) below the others of its row.

    Nothing is known of such a label, but its raw score, 0, would rank above the negative scores of the others. It gets
    a finite score, so that means and sorts of scores stay defined, and one that depends on its own row alone, so that
    blocks of rows do not matter.
    """
    if seen.all() or not seen.any():
        return scores
    least, most = scores[:, seen].min(axis=1), scores[:, seen].max(axis=1)
    gap = np.where(least == most, 1.0, most - least) + np.abs(least)  # far more than the rounding of `least`
    out = scores.copy()
    out[:, ~seen] = (least - gap)[:, None]
    return out


def top_labels(scores: np.ndarray, top: int) -> np.ndarray:
    """The numbers of the `top` highest labels of every row (m x top, best first); equal scores: the lower number first."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :top]
