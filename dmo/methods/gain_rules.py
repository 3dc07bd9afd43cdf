"""Plug-in rules that are linear in the probability: which k labels a sample should get, by p_il gain_l - cost_l.

A label's gain and cost follow from how often it is among N samples (N f_l), how often it is given there (m_l) and how often
rightly (h_l); m and h are those of the rule itself on held-out probabilities, found as its fixed point:

    recall, mean over labels      p g(N f),   g(x) = (1 - exp(-x)) / x the mean of 1 / (1 + a Poisson number of others)
    N+, labels that are hit once  p exp(-h), the probability that no other sample hits the label
    F1, mean over labels          2 p / (m + N f) - F / (m + N f), F = 2 h / (m + N f), the derivative of the sum of F
    propensity-scored precision   p / (probability that the label would have been noted)

Precision at k, F1 of pooled counts, mean F1 and mean Jaccard index of samples need no rule where k is given: exchanging a
label of a sample for one of higher probability never lowers their expectation (labels independent given the scores).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dmo.methods.calibration import label_frequency, row_counts
from dmo.methods.plugin_rule import mean_inverse
from dmo.metrics import inverse_propensities

BY_PROBABILITY = ("precision", "f1-micro", "f1-samples", "jaccard")
"""What the k labels of highest probability are best for."""
METRICS = ("recall", "n+", "f1-macro", "psp")
"""What a `GainRule` is for."""
_STEPS = 60


@dataclass(frozen=True)
class GainRule:
    """Scores p * gain - cost, whose best labels a sample should get."""

    gain: np.ndarray  # (L,): of every label
    cost: np.ndarray  # (L,): of every label

    @classmethod
    def fit(
        cls,
        metric: str,
        probabilities: np.ndarray,
        Y: np.ndarray,
        top: int,
        size: int,
        counts: np.ndarray | None = None,
    ) -> Self:
        """Find the rule of a metric.

        probabilities, Y, counts (n, L)
        """
        frequency, often = label_frequency(Y, counts), row_counts(counts)
        often = np.ones(len(Y)) if often is None else often
        expected, none = size * frequency, np.zeros(len(frequency))
        if metric == "recall":
            return cls(mean_inverse(expected), none)
        if metric == "psp":
            return cls(inverse_propensities(frequency, float(often.sum())), none)
        if metric == "n+":
            return cls(*_fixed_point(probabilities, often, top, size, lambda m, h: (np.exp(-h), none)))

        def macro(m: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            total = np.maximum(m + expected, 1e-12)
            return 2 / total, 2 * h / total**2

        return cls(*_fixed_point(probabilities, often, top, size, macro))

    def __call__(self, probabilities: np.ndarray) -> np.ndarray:
        """Scores (m x L) of samples with these probabilities (m x L); only their order within a row means anything."""
        return probabilities * self.gain - self.cost

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Describe the rule for a model store."""
        return {"gain": self.gain, "cost": self.cost}, {}


def _fixed_point(
    p: np.ndarray,
    often: np.ndarray,
    top: int,
    size: int,
    derive: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]],
) -> tuple[np.ndarray, np.ndarray]:
    """Gain and cost that `derive` gives for the numbers m and h of the rule that they make; rows count `often` (n)."""
    # Means over the steps, since the answer to a gain that falls with h is to give all others: steps of one half went
    # to and fro for N+, which came out below the ranking by probability.
    n, L, each = often.sum(), p.shape[1], np.repeat(often, top)
    m = np.full(L, size * top / L)
    h = m * (often @ p) / n
    for step in range(_STEPS):
        gain, cost = derive(m, h)
        best = np.argpartition(cost - p * gain, top - 1, axis=1)[:, :top]
        given = np.bincount(best.ravel(), each, L)
        hits = np.bincount(best.ravel(), each * np.take_along_axis(p, best, axis=1).ravel(), L)
        m += (given * size / n - m) / (step + 2)
        h += (hits * size / n - h) / (step + 2)
    return derive(m, h)
