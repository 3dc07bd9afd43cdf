"""From label probabilities to label sets: the threshold that is expected to give the highest micro F1.

Held-out probabilities choose between one threshold for all labels and one per label, which is drawn towards the common
one the fewer positives a label has: logit t_l = w_l logit t*_l + (1 - w_l) logit t, w_l = n_l / (n_l + 20). With true
probabilities one threshold is the best there is [Lipton, Elkan, Narayanaswamy 2014]; thresholds per label that are not
drawn together took micro F1 on enron from .58 to .38.
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit, logit

from dmo.methods.calibration import some_samples

_PRIOR = 20.0
_MOST = 2**21  # sample-label pairs that are sorted


def learn_thresholds(probabilities: np.ndarray, Y: np.ndarray, counts: np.ndarray | None = None) -> np.ndarray:
    """Learn the threshold of every label.

    probabilities, Y, counts (n, L) -> (L,)
    """
    # Which kind is decided by the micro F1 of each half of the samples under the thresholds of the other one.
    few = some_samples(Y, _MOST)
    p, Y, often = probabilities[few], np.asarray(Y[few], dtype=bool), np.ones(1) if counts is None else counts[few]
    often = np.broadcast_to(often, Y.shape)
    # by digits of the probabilities: neither the order of samples and labels nor copies of samples move a half
    half = np.floor(1e7 * np.asarray(p, np.float64).sum(axis=1)) % 2 == 0
    halves = (half, ~half) if half.any() and not half.all() else ()
    hits, all_of = np.zeros(2), np.zeros(2)  # of one threshold, of one per label; all: labels given plus positives
    for learned in halves:
        y, c = Y[~learned], often[~learned]
        for kind, threshold in enumerate(_both(p[learned], Y[learned], often[learned])):
            given = p[~learned] > threshold
            hits[kind] += c[given & y].sum()
            all_of[kind] += c[given].sum() + c[y].sum()
    common, single = _both(p, Y, often)
    # in whole hits where they are whole: F1 of the same predictions is the same
    return single if hits[1] * all_of[0] > hits[0] * all_of[1] else common


def _both(p: np.ndarray, Y: np.ndarray, often: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    common = _logit(best_threshold(p.ravel(), Y.ravel(), often.ravel()))
    count = (often * Y).sum(axis=0)
    own = np.array(
        [_logit(best_threshold(p[:, l], Y[:, l], often[:, l])) if count[l] > 0 else common for l in range(Y.shape[1])]
    )
    return np.full(Y.shape[1], expit(common)), expit(common + (own - common) * count / (count + _PRIOR))


def _logit(p: float) -> float:
    return float(logit(np.clip(p, 1e-4, 1 - 1e-4)))


def best_threshold(values: np.ndarray, truth: np.ndarray, counts: np.ndarray | None = None) -> float:
    """Find the threshold above which F1 is highest, halfway between two values.

    values, truth, counts (m,)
    """
    if counts is not None:
        some = counts > 0
        values, truth, counts = values[some], truth[some], counts[some]
        if not len(values):
            return 0.0
    order = np.argsort(-values, kind="stable")
    ranked, often = values[order], np.ones(len(values)) if counts is None else counts[order].astype(np.float64)
    hits, given = np.cumsum(truth[order] * often), np.cumsum(often)
    f1 = 2 * hits / (given + hits[-1])
    f1[:-1][ranked[:-1] == ranked[1:]] = -1.0  # a threshold does not part equal values
    best = int(f1.argmax())
    return float((ranked[best] + (ranked[best + 1] if best + 1 < len(ranked) else 0.0)) / 2)
