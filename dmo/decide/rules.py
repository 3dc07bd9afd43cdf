"""Plug-in rules, which use label probabilities to select the labels with the best expected value of a metric.

**F1 of label-averaged precision and recall, for k labels per sample.** Papers on image annotation average the precision
P and the recall R over labels and report F1 = 2 P R / (P + R). A correct prediction of a label with few test samples
increases R considerably. A wrong prediction of a label that is rarely predicted decreases P considerably. Let p_il be
the probability of label l for sample i. The rule ranks labels by their expected gain in F1 on N samples, by first-order
expansion of F1 in P and R:

    score_il = q_il [a g(N f_l) + b g(m_l)] - b r_l [g(m_l) - exp(-m_l)],   g(x) = (1 - exp(-x)) / x,
    a = 2 P^2 / (P + R)^2,   b = 2 R^2 / (P + R)^2,

with the frequency f_l of label l, the expected number m_l of its predictions in N samples, and the expected precision
r_l of these predictions. The values m_l, r_l, P and R are computed from held-out probabilities by fixed-point
iteration. The numbers of positives and of predictions are modeled as Poisson variables. Then g(N f_l) is the mean of 1
/ (number of positives), and g(m_l) is the mean of 1 / (number of predictions). P and R are averaged over the labels
that occur in the N samples. If label l occurs, its odds increase by the factor o_l = 1 / (1 - exp(-N f_l)), so that its
probability is q = p o / (1 - p + p o). The rule has no hyperparameters.

**Other metrics of k labels per sample.** These rules rank labels by p_il gain_l - cost_l, which is linear in the
probability p_il. In N samples, label l has N f_l positives, m_l predictions and h_l correct predictions. The gain and
the cost depend on these numbers. The values m and h are computed from held-out probabilities by fixed-point iteration:

    recall, mean over labels         p g(N f),  g(x) = (1 - exp(-x)) / x, the mean of 1 / (1 + Poisson number of others)
    N+, labels predicted correctly   p exp(-h), the probability that no other sample has a correct prediction
    F1, mean over labels             2 p / (m + N f) - F / (m + N f), F = 2 h / (m + N f), derivative of the sum of F
    propensity-scored precision      p / (probability that the label would have been annotated)

For precision, micro F1, sample F1 and the Jaccard index at k, the k most probable labels are optimal if labels are
independent given the scores. These metrics therefore need no rule.

**Metrics of label sets of any size.** Let p_il be the probability that sample i has label l. Labels are assumed to be
independent given the sample:

    micro F1     a common threshold, or one threshold per label, see `dmo.decide.probabilities`
    macro F1     labels with q_il > F_l / 2. F_l is the expected F1 of the best set of samples for label l, the maximum
                 over k of 2 (sum of the k largest q) / (k + sum of all q) [Lipton, Elkan, Narayanaswamy 2014]. q is p
                 given that the label occurs in the N test samples, because its F1 is 0 otherwise
    sample F1    the k most probable labels, for the k with the largest 2 sum_{j <= k} p_j E 1 / (k + 1 + other labels)
    Jaccard      the same with sum_{j <= k} p_j E 1 / (k + labels beyond the k); the empty set if no labels are probable

Let M be the number of other labels. The expectation of 1 / (a + M) is the integral E 1 / (a + M) = int_0^1 t^(a - 1) E
t^M dt of the polynomial E t^M = prod_j (1 - p_j (1 - t)). The integral is computed by Gauss quadrature, which avoids
the distribution of M.

**Guarantees for label sets of new samples.** The threshold of each guarantee is learned from held-out probabilities:

    recall >= q           one threshold: fraction of the labels of a sample that are predicted, averaged over samples;
                          1 for samples without labels
    recall-macro >= q     one threshold per label: fraction of the samples with the label for which it is predicted
    precision >= q        one threshold: fraction of the predicted labels of a sample that are correct, averaged over
                          samples; 1 for empty sets
    precision-micro >= q  one threshold: fraction of all predicted labels that are correct

The first three guarantees hold in expectation, by conformal risk control [Angelopoulos, Bates, Fisch, Lei, Schuster
2024, theorem 1] with weights [Tibshirani, Barber, Candes, Ramdas 2019]. Let sample i of n held-out samples have weight
w_i and a loss l_i(t) between 0 and B that is monotone in the threshold t. The best threshold with

    sum_i w_i l_i(t) + max_i w_i B <= (1 - q) (sum_i w_i + max_i w_i)

has an expected loss of at most 1 - q on an exchangeable sample whose weight is at most max_i w_i. Multiplying all
weights by a constant does not change the threshold. One sample of weight 2 and two samples of weight 1 can have
different thresholds, because max_i w_i differs. The loss of recall is the fraction of the true labels of a sample that
are missed, or 0 for samples without labels. The loss of recall-macro is 1 for a missed label and is averaged over the
samples with the label. The fraction of wrong labels of a sample is not monotone in the threshold. The loss of precision
is therefore the maximum of this fraction over all thresholds of at least t.

**Missing values.** A value in the label matrix is assumed to be missing independently of the labels and features of its
sample. The fraction r_l of known values may differ between labels l. The sum over known values, divided by r_l, then
estimates the sum over all values. For recall, each missed label has the loss 1 / (r_l k_i), where k_i is the number of
known positive labels of the sample. The sample may have further labels, so that the expected loss is at least the true
expected loss. For precision, each wrong label has the loss 1 / r_l divided by the size of the label set, and the
expected loss is exact. The bound B is max_l 1 / r_l. Samples without known values are excluded, also from the estimate
of r_l.

**Micro precision.** The fraction of all predicted labels that are correct is a ratio of two sums and not the mean of a
monotone loss per sample. Its guarantee holds with a probability of 90 % over the held-out samples, by fixed-sequence
testing [Angelopoulos, Bates, Candes, Jordan, Lei 2025, Learn then test]. Let R_i(t) be the sum of (1 if wrong, else 0)
- (1 - q) over the predicted labels of sample i, weighted by w_i / r_l. A threshold passes the test if sum_i R_i + 1.28
sqrt(sum_i R_i^2) + (one wrong label) <= 0. Thresholds are tested in descending order until one fails. The order of the
tests does not depend on labels. The first threshold is the one whose test is expected to be the most significant
according to the probabilities. The p-values use the normal approximation, so that the guarantee is approximate for
small samples.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dmo.blocks import row_blocks
from dmo.decide.probabilities import PRECISION, just_below, label_frequency, learn_thresholds, row_counts, some_samples
from dmo.metrics import inverse_propensities

_STEPS, _DAMPING = 30, 0.5
_MOST = 2**21  # Maximum number of sample-label pairs that are ranked in each step of the fixed-point iteration.


def mean_inverse(x: np.ndarray) -> np.ndarray:
    """Compute the expectation of 1 / (1 + M) for a Poisson variable M with mean x."""
    small = np.maximum(x, 1e-12)
    return -np.expm1(-small) / small


@dataclass(frozen=True)
class PlugInRule:
    """Rule that ranks labels by their expected gain in the F1 of label-averaged precision and recall."""

    size: int  # Number N of samples for which the expected F1 is maximized.
    frequency: np.ndarray  # Frequency of each label, an array of shape (L,).
    predictions: np.ndarray  # Expected number of predictions of each label in N samples.
    precision: np.ndarray  # Expected precision of each label, an array of shape (L,).
    mean_precision: float  # Expected mean of the precision over labels.
    mean_recall: float  # Expected mean of the recall over labels.

    @classmethod
    def fit(
        cls,
        probabilities: np.ndarray,
        Y: np.ndarray,
        top: int,
        size: int,
        counts: np.ndarray | None = None,
        keys: np.ndarray | None = None,
    ) -> Self:
        """Learn the rule from held-out probabilities by fixed-point iteration."""
        frequency, few = label_frequency(Y, counts), some_samples(Y, _MOST, counts, keys)
        probabilities, often = probabilities[few], row_counts(counts)
        n, L = probabilities.shape
        often = np.ones(n) if often is None else often[few]
        n, each = often.sum(), np.repeat(often, top)
        rule = cls(size, frequency, np.full(L, size * top / L), np.full(L, 0.5), 0.5, 0.5)
        q = rule._given_occurrence(probabilities)
        # In the means over labels, the weight of a label is the probability that the label occurs in N samples.
        occurs = -np.expm1(-size * frequency)
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
        """Compute scores of shape (m, L) that rank the labels of each sample, from probabilities of the same shape."""
        return self._scores(self._given_occurrence(probabilities))

    def _given_occurrence(self, p: np.ndarray) -> np.ndarray:
        """Compute the probabilities given that each label occurs in the N samples."""
        occurs = -np.expm1(-self.size * self.frequency)
        odds = 1.0 / np.where(occurs > 0, occurs, np.inf)
        return p * odds / (1 - p + p * odds)

    def _scores(self, q: np.ndarray) -> np.ndarray:
        total = (self.mean_precision + self.mean_recall) ** 2
        a, b = (2 * value**2 / total if total > 0 else 0.5 for value in (self.mean_precision, self.mean_recall))
        gain = a * mean_inverse(self.size * self.frequency) + b * mean_inverse(self.predictions)
        return q * gain - b * self.precision * (mean_inverse(self.predictions) - np.exp(-self.predictions))

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Convert the rule to arrays and JSON values that can be saved with a model."""
        arrays = {key: getattr(self, key) for key in ("frequency", "predictions", "precision")}
        return arrays, {key: getattr(self, key) for key in ("size", "mean_precision", "mean_recall")}


def _mixed(old: Any, new: Any) -> Any:
    return (1 - _DAMPING) * old + _DAMPING * new


BY_PROBABILITY = ("precision", "f1-micro", "f1-samples", "jaccard")
"""Metrics at k for which the k most probable labels are optimal."""
METRICS = ("recall", "n+", "f1-macro", "psp")
"""Metrics at k for which a `GainRule` ranks the labels."""
_GAIN_STEPS = 60


@dataclass(frozen=True)
class GainRule:
    """Rule that ranks the labels of a sample by a linear function of their probabilities: p * gain - cost."""

    gain: np.ndarray  # Factor on the probability of each label, an array of shape (L,).
    cost: np.ndarray  # Term subtracted for each label, an array of shape (L,).

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
        """Compute the gain and the cost of each label for a metric, from arrays of shape (n, L)."""
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
        """Compute scores of shape (m, L) that rank the labels of each sample, from probabilities of the same shape."""
        return probabilities * self.gain - self.cost

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Convert the rule to arrays and JSON values that can be saved with a model."""
        return {"gain": self.gain, "cost": self.cost}, {}


def _fixed_point(
    p: np.ndarray,
    often: np.ndarray,
    top: int,
    size: int,
    derive: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]],
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the gain and the cost of each label by fixed-point iteration.

    `derive` computes both from the numbers of predictions and correct predictions; `often` contains sample weights.
    """
    # For the metric "n+", whose gain decreases with the number of correct predictions, exponential averaging with a
    # factor of 1/2 oscillated and was worse than a ranking by probability. Therefore, the numbers of predictions and of
    # correct predictions are averaged over all steps.
    n, L, each = often.sum(), p.shape[1], np.repeat(often, top)
    m = np.full(L, size * top / L)
    h = m * (often @ p) / n
    for step in range(_GAIN_STEPS):
        gain, cost = derive(m, h)
        best = np.argpartition(cost - p * gain, top - 1, axis=1)[:, :top]
        given = np.bincount(best.ravel(), each, L)
        hits = np.bincount(best.ravel(), each * np.take_along_axis(p, best, axis=1).ravel(), L)
        m += (given * size / n - m) / (step + 2)
        h += (hits * size / n - h) / (step + 2)
    return derive(m, h)


OF_SAMPLES = ("f1-samples", "jaccard")
"""Metrics of label sets that are computed for each sample and averaged over samples."""
SET_METRICS = ("f1-micro", "f1-macro", *OF_SAMPLES)
"""Metrics for which a `SetRule` predicts label sets."""
PROMISES = ("recall", "recall-macro", "precision", "precision-micro")
"""Quantities that can be guaranteed for label sets, for example by "recall>=0.9"."""
_NODES = 32
_ENTRIES = 2**18  # Maximum number of array elements per block of samples: samples x labels x quadrature nodes.


def promised(metric: Any) -> tuple[str, float] | None:
    """Split a guarantee such as "recall>=0.9" into its quantity and level; return None for other names."""
    found = re.fullmatch(r"([a-z-]+)\s*(>=|<=)\s*(\d*\.?\d+)", metric.strip()) if isinstance(metric, str) else None
    if found is None:
        return None
    what, sign, level = found[1], found[2], float(found[3])
    if what == "fnr" and sign == "<=":
        what, sign, level = "recall", ">=", 1 - level
    return (what, level) if what in PROMISES and sign == ">=" and 0 < level < 1 else None


@dataclass(frozen=True)
class SetRule:
    """Rule that predicts label sets: every label whose probability exceeds a threshold."""

    metric: str  # Name of the metric or guarantee.
    threshold: np.ndarray  # Threshold of each label, or an empty array if thresholds depend on the sample.
    # Fraction of the labels predicted for held-out samples that are correct; only for guarantees.
    right: float | None = None
    empty: float | None = None  # fraction of held-out samples without predicted labels; only for guarantees

    @classmethod
    def fit(
        cls,
        metric: str,
        probabilities: np.ndarray,
        Y: np.ndarray,
        size: int,
        counts: np.ndarray | None = None,
        keys: np.ndarray | None = None,
    ) -> Self:
        """Learn the thresholds of a metric or guarantee from held-out probabilities."""
        if metric in OF_SAMPLES:
            return cls(metric, np.empty(0))
        if metric == "f1-micro":
            return cls(metric, learn_thresholds(probabilities, Y, counts, keys))
        if (guarantee := promised(metric)) is not None:
            held = HeldOut.of(probabilities, Y, counts)
            threshold = held.thresholds(*guarantee)
            return cls(metric, threshold, *held.right_and_empty(threshold))
        few, frequency = some_samples(Y, _MOST, counts, keys), label_frequency(Y, counts)
        often = None if counts is None else counts[few]
        return cls(metric, _macro_thresholds(probabilities[few], frequency, size, often))

    def __call__(self, probabilities: np.ndarray) -> np.ndarray:
        """Compute probability minus threshold of all labels, of shape (m, L); positive for predicted labels."""
        if self.metric not in OF_SAMPLES:
            return probabilities - self.threshold
        m, L = probabilities.shape
        out = np.empty((m, L))
        for where in row_blocks(m, max(1, _ENTRIES // (_NODES * L))):
            out[where] = probabilities[where] - _cuts(probabilities[where], self.metric)[:, None]
        return out

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Convert the rule to arrays and JSON values that can be saved with a model."""
        return {"threshold": self.threshold}, {"metric": self.metric, "right": self.right, "empty": self.empty}


@dataclass(frozen=True)
class HeldOut:
    """Held-out samples from which the thresholds of guarantees are learned."""

    p: np.ndarray  # Label probabilities, an array of shape (n, L).
    Y: np.ndarray  # Known positive labels, a boolean array of shape (n, L).
    often: np.ndarray  # Sample weights of shape (n,), scaled to a maximum of 1.
    # Weights of known label values of shape (n, L), divided by the fraction of known values of the label. The weight
    # of a missing value is 0.
    entries: np.ndarray

    @classmethod
    def of(cls, p: np.ndarray, Y: np.ndarray, counts: np.ndarray | None) -> Self:
        """Select the samples with known label values from arrays of shape (n, L)."""
        if counts is None:
            return cls(p, np.asarray(Y, bool), np.ones(len(p)), np.ones(p.shape))
        some = counts.any(axis=1)
        known = np.asarray(counts[some], np.float64)
        known = known / known.max(initial=0.0)
        often = known.max(axis=1, initial=0.0)
        total = known.sum(axis=0)
        rate = np.divide(often.sum(), total, out=np.zeros(len(total)), where=total > 0)
        return cls(p[some], np.asarray(Y[some], bool) & (known > 0), often, known * rate)

    @property
    def most(self) -> float:
        """Largest possible loss of a sample: the largest inverse fraction of known values over the labels."""
        return float((self.entries / self.often[:, None]).max(initial=1.0))

    def thresholds(self, what: str, level: float) -> np.ndarray:
        """Compute the threshold of every label that guarantees a level of a quantity such as "recall"."""
        if what == "recall-macro":
            return self._recall_by_label(level)
        find = {"recall": self._recall, "precision": self._precision, "precision-micro": self._precision_micro}[what]
        return np.full(self.p.shape[1], find(level))

    def _recall(self, level: float) -> float:
        rows, labels = np.nonzero(self.Y)
        parts = (self.entries / np.maximum(self.Y.sum(axis=1), 1)[:, None])[rows, labels]
        allowed = (1 - level) * (self.often.sum() + 1)
        return _found(self.p[rows, labels], parts, parts.sum() + self.most - allowed)

    def _recall_by_label(self, level: float) -> np.ndarray:
        out = np.full(self.p.shape[1], -1.0)
        for label in np.flatnonzero(self.Y.any(axis=0)):
            rows = self.Y[:, label]
            parts = self.entries[rows, label] / self.entries[rows, label].max()
            out[label] = _found(self.p[rows, label], parts, parts.sum() + 1 - (1 - level) * (parts.sum() + 1))
        return out

    def _precision(self, level: float) -> float:
        values, wrong = self._ranked(self.entries * ~self.Y)
        loss = np.cumsum(wrong, axis=1) / np.arange(1, wrong.shape[1] + 1)
        loss[:, :-1][just_below(values[:, :-1]) < values[:, 1:]] = (
            0  # No threshold separates labels of equal probability.
        )
        lost = np.diff(np.maximum.accumulate(loss, axis=1), axis=1, prepend=0.0)
        order = np.argsort(-values, axis=None, kind="stable")
        values, total = values.ravel()[order], self.often.sum() + 1
        thresholds = np.append(1.0, just_below(values))
        sums = np.append(0.0, np.cumsum(lost.ravel()[order]))[np.searchsorted(-values, -thresholds)]
        kept = sums + self.most <= (1 - level + 1e-9) * total
        return -1.0 if kept.all() else float(thresholds[np.flatnonzero(kept).max(initial=0)])

    def _precision_micro(self, level: float) -> float:
        values, known = self._ranked(self.entries)
        excess = known * level - self._ranked(self.entries * self.Y)[1]  # weight times (wrong - (1 - level))
        squares = np.diff(np.cumsum(excess, axis=1) ** 2, axis=1, prepend=0.0)
        weight = np.broadcast_to(self.often[:, None], values.shape)
        order = np.argsort(-values, axis=None, kind="stable")
        ranked, given = values.ravel()[order], np.cumsum(weight.ravel()[order])
        places = np.searchsorted(given, _FRACTIONS * given[-1])
        thresholds = just_below(ranked[np.minimum(places, len(ranked) - 1)])
        thresholds[-1] = -1.0
        stops = np.searchsorted(-ranked, -thresholds)
        of = lambda terms: np.append(0.0, np.cumsum(terms.ravel()[order]))[stops]  # noqa: E731
        one_wrong = level * self.most
        expected, variance = of(weight * (level - values)), of(weight**2 * values * (1 - values))
        first = int(np.argmin((expected + one_wrong) / np.sqrt(variance + self.most**2)))
        test = (of(excess) + _ONE_SIDED * np.sqrt(of(squares)) + one_wrong)[first:]
        thresholds, failed = thresholds[first:], np.flatnonzero(test > 0)
        if not len(failed):
            return -1.0
        if failed[0] == 0:
            return 1.0
        # The threshold is interpolated between the last passed test and the first failed test, and then moved back by
        # one step. Therefore, small changes of the test statistic change the threshold only slightly.
        before, after = test[failed[0] - 1 : failed[0] + 1]
        place = max(0.0, failed[0] - 1 - after / (after - before))
        return float(np.interp(place, np.arange(len(thresholds)), thresholds))

    def _ranked(self, part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sort the probabilities of every sample in descending order, and apply the same order to `part`."""
        order = np.argsort(-self.p, axis=1, kind="stable")
        return np.take_along_axis(self.p, order, axis=1), np.take_along_axis(part, order, axis=1)

    def right_and_empty(self, thresholds: np.ndarray) -> tuple[float | None, float]:
        """Estimate the fraction of predicted labels that are correct, and the fraction of empty label sets.

        The fraction of correct labels is None if no labels are predicted.
        """
        given = self.p > thresholds
        total = float(self.entries[given].sum())
        right = float(self.entries[given & self.Y].sum()) / total if total else None
        return right, float(self.often @ ~given.any(axis=1) / self.often.sum())


_ONE_SIDED = 1.2815515655446004
"""The 0.90 quantile of the standard normal distribution."""
_FRACTIONS = 1.05 ** -np.arange(280.0)[::-1]
"""Fractions of all sample-label pairs that are predicted at the thresholds tested for micro precision."""


def _found(p: np.ndarray, parts: np.ndarray, needed: float) -> float:
    """Find the highest threshold such that the `parts` with larger p sum to `needed`.

    The result is 1 if `needed` is not positive, and -1 if all parts together are too small.
    """
    rounding = 1e-9 * (1 + parts.sum())
    if needed <= rounding:
        return 1.0
    order = np.argsort(-p, kind="stable")
    found = np.searchsorted(np.cumsum(parts[order]), needed - rounding)
    return float(just_below(p[order][found])) if found < len(p) else -1.0


def _macro_thresholds(p: np.ndarray, frequency: np.ndarray, size: int, counts: np.ndarray | None) -> np.ndarray:
    """Compute the threshold of every label for macro F1: half of its expected F1, as an unconditional probability."""
    occurs = -np.expm1(-size * frequency)
    odds = 1.0 / np.where(occurs > 0, occurs, 1.0)
    q = p * odds / (1 - p + p * odds)
    if counts is None:
        hits, given = np.cumsum(-np.sort(-q, axis=0), axis=0), np.arange(1.0, len(q) + 1)[:, None]
    else:
        # Missing values have the weight 0 and are sorted last.
        order = np.argsort(-np.where(counts > 0, q, -1.0), axis=0, kind="stable")
        often = np.take_along_axis(counts, order, axis=0).astype(np.float64)
        hits, given = np.cumsum(often * np.take_along_axis(q, order, axis=0), axis=0), np.cumsum(often, axis=0)
    f1 = 2 * hits / np.maximum(given + hits[-1], 1e-300)
    half = f1.max(axis=0) / 2
    return np.asarray(np.where(half > 0, half / (half + (1 - half) * odds), 1.0))


def _cuts(p: np.ndarray, metric: str) -> np.ndarray:
    """Compute the threshold of each sample that maximizes the expected value of a metric.

    Labels of equal probability are predicted together. Among sets with equal expected values, the smallest is chosen.
    """
    order = -np.sort(-p, axis=1)
    first, total = order[:, 0], order.sum(axis=1)
    # Labels with low probabilities cannot belong to an optimal set, so skip these labels.
    most = max(1, int((order >= 0.5 * (first / (2 + total))[:, None]).sum(axis=1).max()))
    expected = np.stack(list(_expected(order, metric, most)), axis=1)
    counts = np.arange(metric != "jaccard", most + 1)  # The Jaccard index also allows empty sets.
    ends = np.column_stack([np.ones(len(p)), order, np.full(len(p), -1.0)])
    separate = (just_below(ends[:, counts]) >= ends[:, counts + 1]) | (counts == 0)
    separate[:, -1] |= ~separate.any(axis=1)
    expected = np.where(separate, expected, -np.inf)
    best = counts[np.argmax(expected >= expected.max(axis=1, keepdims=True) - PRECISION / 10, axis=1)]
    last, beyond = (np.take_along_axis(ends, (best + step)[:, None], axis=1)[:, 0] for step in (0, 1))
    return np.minimum((last + beyond) / 2, just_below(last))


def _expected(order: np.ndarray, metric: str, most: int) -> Iterator[np.ndarray]:
    """Yield the expected values of a metric for the sets of the 1, 2, ..., `most` most probable labels.

    `order` of shape (m, L) has descending probabilities. For "jaccard", the first set is empty.
    """
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    t, weights = (nodes + 1) / 2, weights / 2
    absent = 1 - order[:, :, None] * (1 - t)  # expectation of t^y for each label y, of shape (m, L, nodes)
    left = absent.prod(axis=1)
    if metric == "jaccard":
        yield np.asarray((1 - order).prod(axis=1))
        rest = np.cumprod(absent[:, ::-1], axis=1)[:, ::-1]  # product over a label and all less probable labels
        given = np.cumsum(order, axis=1)
        for k in range(1, most + 1):
            beyond = rest[:, k] if k < order.shape[1] else np.ones_like(left)
            yield given[:, k - 1] * (beyond @ (weights * t ** (k - 1)))
        return
    share = np.zeros_like(left)
    for k in range(1, most + 1):
        share += order[:, k - 1, None] / absent[:, k - 1]
        yield 2 * (left * share) @ (weights * t**k)
