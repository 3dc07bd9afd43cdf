"""The plug-in rule: which k labels a sample should get so that the mean per-label F1 comes out highest.

Precision and recall averaged over labels (P, R and F1 = 2 P R / (P + R) of the annotation papers) are no sums over
samples: a hit on a label that few test samples carry counts much, a miss on one that is hardly ever predicted costs
much. Given probabilities p_il of labels, the rule ranks labels by the gain in F1 that predicting them is expected to
bring on N samples, by first-order expansion of F1 in P and R:

    score_il = q_il [a g(N f_l) + b g(m_l)] - b r_l [g(m_l) - exp(-m_l)],   g(x) = (1 - exp(-x)) / x,
    a = 2 P^2 / (P + R)^2,   b = 2 R^2 / (P + R)^2,

with f_l the frequency of label l, m_l the expected number of predictions of it among N samples and r_l their expected
precision, both of them and P, R found as the fixed point of the rule itself on held-out probabilities. g(N f_l) is the
mean of 1 / (number of positives) and g(m_l) that of 1 / (number of predictions), both taken as Poisson numbers.
The means run over labels that occur among the N samples: given that label l does, its odds are o_l = 1 / (1 -
exp(-N f_l)) times higher, q = p o / (1 - p + p o). Nothing is tuned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dmo.methods.calibration import label_frequency, row_counts, some_samples

_STEPS, _DAMPING = 30, 0.5
_MOST = 2**21  # sample-label pairs that are ranked in every step


def mean_inverse(x: np.ndarray) -> np.ndarray:
    """Work out the mean of 1 / (1 + a Poisson number): g(x)."""
    small = np.maximum(x, 1e-12)
    return -np.expm1(-small) / small


@dataclass(frozen=True)
class PlugInRule:
    """Scores whose best labels a sample should get."""

    size: int  # N
    frequency: np.ndarray  # (L,): f, m, r
    predictions: np.ndarray  # (L,): f, m, r
    precision: np.ndarray  # (L,): f, m, r
    mean_precision: float  # P and R that are expected
    mean_recall: float  # P and R that are expected

    @classmethod
    def fit(
        cls, probabilities: np.ndarray, Y: np.ndarray, top: int, size: int, counts: np.ndarray | None = None
    ) -> Self:
        """Find the fixed point of the rule.

        probabilities, Y, counts (n, L)
        """
        frequency, few = label_frequency(Y, counts), some_samples(Y, _MOST)
        probabilities, often = probabilities[few], row_counts(counts)
        n, L = probabilities.shape
        often = np.ones(n) if often is None else often[few]
        n, each = often.sum(), np.repeat(often, top)
        rule = cls(size, frequency, np.full(L, size * top / L), np.full(L, 0.5), 0.5, 0.5)
        q = rule._given_occurrence(probabilities)
        occurs = -np.expm1(
            -size * frequency
        )  # probability that the label occurs among N samples: its weight in the means
        for _ in range(_STEPS):
            best = np.argpartition(-rule._scores(q), top - 1, axis=1)[:, :top]
            count = np.bincount(best.ravel(), each, L)
            hits = np.bincount(best.ravel(), each * np.take_along_axis(q, best, axis=1).ravel(), L)
            expected = np.where(count > 0, hits / np.where(count > 0, count, 1.0), rule.precision)
            m = _mixed(rule.predictions, count * size / n)
            r = _mixed(rule.precision, expected)
            positives = np.where(occurs > 0, size * frequency / np.where(occurs > 0, occurs, 1.0), np.inf)
            P = float(occurs @ (-np.expm1(-m) * r) / occurs.sum())
            R = float(occurs @ np.minimum(1.0, m * r / positives) / occurs.sum())
            P, R = _mixed(rule.mean_precision, P), _mixed(rule.mean_recall, R)
            rule = cls(size, frequency, m, r, P, R)
        return rule

    def __call__(self, probabilities: np.ndarray) -> np.ndarray:
        """Scores (m x L) of samples with these probabilities (m x L); only their order within a row means anything."""
        return self._scores(self._given_occurrence(probabilities))

    def _given_occurrence(self, p: np.ndarray) -> np.ndarray:
        """q: the probabilities given that the label occurs among the N samples."""
        occurs = -np.expm1(-self.size * self.frequency)
        odds = 1.0 / np.where(occurs > 0, occurs, np.inf)
        return p * odds / (1 - p + p * odds)

    def _scores(self, q: np.ndarray) -> np.ndarray:
        total = (self.mean_precision + self.mean_recall) ** 2
        a, b = (2 * value**2 / total if total > 0 else 0.5 for value in (self.mean_precision, self.mean_recall))
        gain = a * mean_inverse(self.size * self.frequency) + b * mean_inverse(self.predictions)
        return q * gain - b * self.precision * (mean_inverse(self.predictions) - np.exp(-self.predictions))

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Describe the rule for a model store."""
        arrays = {key: getattr(self, key) for key in ("frequency", "predictions", "precision")}
        return arrays, {key: getattr(self, key) for key in ("size", "mean_precision", "mean_recall")}


def _mixed(old: Any, new: Any) -> Any:
    return (1 - _DAMPING) * old + _DAMPING * new
