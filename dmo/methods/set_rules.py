"""Plug-in rules for label sets of any size: which labels are expected to do best, from their probabilities.

With p_il the probability that sample i carries label l, independent of the other labels given the sample:

    micro F1     one threshold, or one per label, see `dmo.methods.thresholds`
    macro F1     labels with q_il > F_l / 2, where F_l is the expected F1 of the label's own best set of samples, the
                 highest 2 sum of the k largest q / (k + sum of all q) [Lipton, Elkan, Narayanaswamy 2014]; q is p given
                 that the label occurs among the N samples that are judged, since its F1 is 0 otherwise
    sample F1    the k labels of highest p, for the k of highest 2 sum_{j <= k} p_j E 1 / (k + 1 + labels of the others)
    Jaccard      the same with sum_{j <= k} p_j E 1 / (k + labels beyond the k); no label at all where none are likely

The means of inverses are integrals, E 1 / (a + M) = int_0^1 t^(a - 1) E t^M dt, of E t^M = prod_j (1 - p_j (1 - t)), a
polynomial: a Gauss rule takes the place of the distributions of all sums, at the cost of one product per node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dmo.blocks import row_blocks
from dmo.methods.calibration import label_frequency, some_samples
from dmo.methods.thresholds import learn_thresholds

OF_SAMPLES = ("f1-samples", "jaccard")
"""Metrics of every sample for itself."""
SET_METRICS = ("f1-micro", "f1-macro", *OF_SAMPLES)
"""What a `SetRule` is for."""
_NODES = 32
_ENTRIES = 2**18  # labels x samples x nodes in memory at a time
_MOST = 2**21  # sample-label pairs that a rule is learned from


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
