"""Plug-in rules: which labels are expected to do best by a measure, from their probabilities.

The plug-in rule: which k labels a sample should get so that the mean per-label F1 comes out highest.

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

Plug-in rules that are linear in the probability: which k labels a sample should get, by p_il gain_l - cost_l.

A label's gain and cost follow from how often it is among N samples (N f_l), how often it is given there (m_l) and how often
rightly (h_l); m and h are those of the rule itself on held-out probabilities, found as its fixed point:

    recall, mean over labels      p g(N f),   g(x) = (1 - exp(-x)) / x the mean of 1 / (1 + a Poisson number of others)
    N+, labels that are hit once  p exp(-h), the probability that no other sample hits the label
    F1, mean over labels          2 p / (m + N f) - F / (m + N f), F = 2 h / (m + N f), the derivative of the sum of F
    propensity-scored precision   p / (probability that the label would have been noted)

Precision at k, F1 of pooled counts, mean F1 and mean Jaccard index of samples need no rule where k is given: exchanging a
label of a sample for one of higher probability never lowers their expectation (labels independent given the scores).

Plug-in rules for label sets of any size: which labels are expected to do best, from their probabilities.

With p_il the probability that sample i carries label l, independent of the other labels given the sample:

    micro F1     one threshold, or one per label, see `dmo.decide.probabilities`
    macro F1     labels with q_il > F_l / 2, where F_l is the expected F1 of the label's own best set of samples, the
                 highest 2 sum of the k largest q / (k + sum of all q) [Lipton, Elkan, Narayanaswamy 2014]; q is p given
                 that the label occurs among the N samples that are judged, since its F1 is 0 otherwise
    sample F1    the k labels of highest p, for the k of highest 2 sum_{j <= k} p_j E 1 / (k + 1 + labels of the others)
    Jaccard      the same with sum_{j <= k} p_j E 1 / (k + labels beyond the k); no label at all where none are likely

    recall >= q      one threshold: a sample's labels are found to a share of q, in expectation
    recall-macro >= q  a threshold per label: each label is found in a share q of the samples that carry it
    precision >= q   one threshold: a share q of the labels that a sample is given is right, and of its likeliest ones alone

The means of inverses are integrals, E 1 / (a + M) = int_0^1 t^(a - 1) E t^M dt, of E t^M = prod_j (1 - p_j (1 - t)), a
polynomial: a Gauss rule takes the place of the distributions of all sums, at the cost of one product per node.

The last three are promises, kept by conformal risk control [Angelopoulos, Bates, Fisch, Lei, Schuster 2024, theorem 1]: of n
held-out samples with losses l_i(t) between 0 and 1 that do not grow as the threshold t falls, the largest t with
(sum_i l_i(t) + 1) / (n + 1) <= 1 - q has an expected loss of at most 1 - q on a sample that is exchangeable with them. The
loss of recall is the share of a sample's labels that is missed, 0 where it has none; that of one label's recall is a miss,
over the samples that carry it. The share of wrong labels among those given may fall as t falls, so that its largest value at
any threshold above t is the loss of precision, 0 where nothing is given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dmo.blocks import row_blocks
from dmo.decide.probabilities import label_frequency, learn_thresholds, row_counts, some_samples
from dmo.metrics import inverse_propensities

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
        # probability that the label occurs among N samples: its weight in the means
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


BY_PROBABILITY = ("precision", "f1-micro", "f1-samples", "jaccard")
"""What the k labels of highest probability are best for."""
METRICS = ("recall", "n+", "f1-macro", "psp")
"""What a `GainRule` is for."""
_GAIN_STEPS = 60


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
    for step in range(_GAIN_STEPS):
        gain, cost = derive(m, h)
        best = np.argpartition(cost - p * gain, top - 1, axis=1)[:, :top]
        given = np.bincount(best.ravel(), each, L)
        hits = np.bincount(best.ravel(), each * np.take_along_axis(p, best, axis=1).ravel(), L)
        m += (given * size / n - m) / (step + 2)
        h += (hits * size / n - h) / (step + 2)
    return derive(m, h)


OF_SAMPLES = ("f1-samples", "jaccard")
"""Metrics of every sample for itself."""
SET_METRICS = ("f1-micro", "f1-macro", *OF_SAMPLES)
"""What a `SetRule` is for."""
PROMISES = ("recall", "recall-macro", "precision")
"""What a decoder may promise of its sets, such as "recall>=0.9"; "fnr<=0.1" says the same."""
_NODES = 32
_ENTRIES = 2**18  # labels x samples x nodes in memory at a time


def promised(metric: Any) -> tuple[str, float] | None:
    """What a name such as "recall>=0.9" promises, and how much of it, between 0 and 1; None for other names."""
    found = re.fullmatch(r"([a-z-]+)\s*(>=|<=)\s*(\d*\.?\d+)", metric.strip()) if isinstance(metric, str) else None
    if found is None:
        return None
    what, sign, level = found[1], found[2], float(found[3])
    if what == "fnr" and sign == "<=":
        what, sign, level = "recall", ">=", 1 - level
    return (what, level) if what in PROMISES and sign == ">=" and 0 < level < 1 else None


@dataclass(frozen=True)
class SetRule:
    """Margins of labels: those above 0 make the set of a sample."""

    metric: str  # what sets are judged by
    threshold: np.ndarray  # (L,): probabilities above which labels are given; empty for the metrics of samples

    @classmethod
    def fit(
        cls, metric: str, probabilities: np.ndarray, Y: np.ndarray, size: int, counts: np.ndarray | None = None
    ) -> Self:
        """Learn the rule of a metric.

        probabilities, Y, counts (n, L)
        """
        if metric in OF_SAMPLES:
            return cls(metric, np.empty(0))
        if metric == "f1-micro":
            return cls(metric, learn_thresholds(probabilities, Y, counts))
        if (promise := promised(metric)) is not None:
            return cls(metric, _promised_thresholds(*promise, probabilities, np.asarray(Y, bool), counts))
        few, frequency = some_samples(Y, _MOST), label_frequency(Y, counts)
        often = None if counts is None else counts[few]
        return cls(metric, _macro_thresholds(probabilities[few], frequency, size, often))

    def __call__(self, probabilities: np.ndarray) -> np.ndarray:
        """Margins (m x L) of samples with these probabilities (m x L)."""
        if self.metric not in OF_SAMPLES:
            return probabilities - self.threshold
        m, L = probabilities.shape
        out = np.empty((m, L))
        for where in row_blocks(m, max(1, _ENTRIES // (_NODES * L))):
            out[where] = probabilities[where] - _cuts(probabilities[where], self.metric)[:, None]
        return out

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Describe the rule for a model store."""
        return {"threshold": self.threshold}, {"metric": self.metric}


def _promised_thresholds(
    what: str, level: float, p: np.ndarray, Y: np.ndarray, counts: np.ndarray | None
) -> np.ndarray:
    """The highest thresholds (L) that keep a promise on held-out samples and one more that loses all.

    p, Y, counts (n, L)
    """
    L, known = Y.shape[1], np.ones(Y.shape) if counts is None else np.asarray(counts, np.float64)
    often = np.asarray(row_counts(known))
    if what == "precision":
        return np.full(L, _precise_threshold(level, p, Y, often, known > 0))
    rows, labels = np.nonzero(Y & (known > 0))
    pooled = what == "recall"  # every label of a sample is an equal part of it; samples without labels lose nothing
    part = (often / np.maximum(np.bincount(rows, minlength=len(Y)), 1))[rows] if pooled else known[rows, labels]
    kind = np.zeros(len(rows), np.intp) if pooled else labels
    held = np.bincount(kind, part, 1 if pooled else L)
    needed = held + 1 - (1 - level) * ((often.sum() if pooled else held) + 1) - 1e-9
    order = np.lexsort((-p[rows, labels], kind))
    values, parts = p[rows, labels][order], part[order]
    threshold, stops = np.full(len(held), -1.0), np.cumsum(np.bincount(kind, minlength=len(held)))
    for number, (start, stop) in enumerate(zip(np.append(0, stops), stops, strict=False)):
        found = start + np.searchsorted(np.cumsum(parts[start:stop]), needed[number])
        if found < stop:  # else there are too few samples for the promise, and all labels are given
            threshold[number] = np.nextafter(values[found], -1)
    return np.broadcast_to(threshold, L).copy()


def _precise_threshold(level: float, p: np.ndarray, Y: np.ndarray, often: np.ndarray, known: np.ndarray) -> float:
    """The probability above which labels are right to a share `level`, at it and at all higher ones."""
    order = np.argsort(-p, axis=1, kind="stable")
    values, told, right = (np.take_along_axis(part, order, axis=1) for part in (p, known, Y & known))
    count = np.maximum(np.cumsum(told, axis=1), 1)
    share = np.cumsum(told & ~right, axis=1) / count
    share[:, :-1][values[:, :-1] == values[:, 1:]] = 0  # a threshold does not part equal values
    lost = np.diff(np.maximum.accumulate(share, axis=1), axis=1, prepend=0.0) * often[:, None]
    rows, places = np.nonzero(lost)
    order = np.argsort(-values[rows, places], kind="stable")
    over = 1 + np.append(0.0, np.cumsum(lost[rows, places][order])) > (1 - level) * (often.sum() + 1) + 1e-9
    if over[0]:  # too few samples for the promise: none is given
        return 1.0
    return float(values[rows, places][order[np.argmax(over) - 1]]) if over.any() else -1.0


def _macro_thresholds(p: np.ndarray, frequency: np.ndarray, size: int, counts: np.ndarray | None) -> np.ndarray:
    """Half of the expected F1 of every label (L), as probabilities that do not know whether the label occurs."""
    occurs = -np.expm1(-size * frequency)
    odds = 1.0 / np.where(occurs > 0, occurs, 1.0)
    q = p * odds / (1 - p + p * odds)
    if counts is None:
        hits, given = np.cumsum(-np.sort(-q, axis=0), axis=0), np.arange(1.0, len(q) + 1)[:, None]
    else:
        order = np.argsort(-np.where(counts > 0, q, -1.0), axis=0, kind="stable")  # the unknown last: they add nothing
        often = np.take_along_axis(counts, order, axis=0).astype(np.float64)
        hits, given = np.cumsum(often * np.take_along_axis(q, order, axis=0), axis=0), np.cumsum(often, axis=0)
    f1 = 2 * hits / np.maximum(given + hits[-1], 1e-300)
    half = f1.max(axis=0) / 2
    return np.asarray(np.where(half > 0, half / (half + (1 - half) * odds), 1.0))


def _cuts(p: np.ndarray, metric: str) -> np.ndarray:
    """Probabilities (m) above which labels are given, between those of the last label given and the next."""
    order = -np.sort(-p, axis=1)
    first, total = order[:, 0], order.sum(axis=1)
    # no label is given whose probability is far below half of the score that the first alone is expected to have
    most = max(1, int((order >= 0.5 * (first / (2 + total))[:, None]).sum(axis=1).max()))
    count = np.argmax(np.stack(list(_expected(order, metric, most)), axis=1), axis=1)
    if metric != "jaccard":  # which begins with the empty set
        count = count + 1
    ends = np.column_stack([np.ones(len(p)), order, np.zeros(len(p))])
    last, beyond = (np.take_along_axis(ends, (count + step)[:, None], axis=1)[:, 0] for step in (0, 1))
    return np.asarray(np.where(last > beyond, (last + beyond) / 2, np.nextafter(last, -1)))  # all of equal ones


def _expected(order: np.ndarray, metric: str, most: int) -> Iterator[np.ndarray]:
    """Expected score (m) of the best 1, 2 ... `most` labels; for "jaccard" of none first. `order`: sorted p (m x L)."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    t, weights = (nodes + 1) / 2, weights / 2
    absent = 1 - order[:, :, None] * (1 - t)  # E t^y of every label (m x L x nodes)
    left = absent.prod(axis=1)
    if metric == "jaccard":
        yield np.asarray((1 - order).prod(axis=1))
        rest = np.cumprod(absent[:, ::-1], axis=1)[:, ::-1]  # of the labels from each on
        given = np.cumsum(order, axis=1)
        for k in range(1, most + 1):
            beyond = rest[:, k] if k < order.shape[1] else np.ones_like(left)
            yield given[:, k - 1] * (beyond @ (weights * t ** (k - 1)))
        return
    share = np.zeros_like(left)
    for k in range(1, most + 1):
        share += order[:, k - 1, None] / absent[:, k - 1]
        yield 2 * (left * share) @ (weights * t**k)
