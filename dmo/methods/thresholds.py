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


def learn_thresholds(probabilities: np.ndarray, Y: np.ndarray, known: np.ndarray | None = None) -> np.ndarray:
    """Learn the threshold of every label.

    Which kind is decided by the micro F1 of each half of the samples under the thresholds of the other one.

    Parameters
    ----------
    probabilities : ndarray of shape (n, L)
        Held-out probabilities.
    Y : ndarray of shape (n, L), 0/1
        Labels.
    known : ndarray of shape (n, L), bool, or None, default=None
        The entries of Y that are known; None: all.

    Returns
    -------
    ndarray of shape (L,)
        Thresholds, above 0.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.methods.thresholds import learn_thresholds
    >>> learn_thresholds(np.array([[0.9], [0.8], [0.2], [0.1]]), np.array([[1], [1], [0], [0]])).tolist()
    [0.5]
    """
    few = some_samples(Y, _MOST)
    probabilities, Y, known = probabilities[few], np.asarray(Y[few], dtype=bool), None if known is None else known[few]
    if known is not None:  # a label that is neither given nor carried counts nowhere
        probabilities, Y = np.where(known, probabilities, 0.0), Y & known
    half = np.random.default_rng(0).permutation(len(Y)) % 2 == 0
    counts = np.zeros((2, 2), dtype=np.int64)  # hits, labels given plus positives: of one threshold, of one per label
    for learned in (half, ~half) if len(Y) > 1 else ():
        p, y = probabilities[~learned], Y[~learned]
        for kind, threshold in enumerate(_both(probabilities[learned], Y[learned])):
            given = p > threshold
            counts[kind] += (given & y).sum(), given.sum() + y.sum()
    f1 = 2 * counts[:, 0] / np.maximum(counts[:, 1], 1)
    common, single = _both(probabilities, Y)
    return single if f1[1] > f1[0] else common


def _both(p: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    common = _logit(best_threshold(p.ravel(), Y.ravel()))
    count = Y.sum(axis=0)
    own = np.array([_logit(best_threshold(p[:, l], Y[:, l])) if count[l] else common for l in range(Y.shape[1])])
    return np.full(Y.shape[1], expit(common)), expit(common + (own - common) * count / (count + _PRIOR))


def _logit(p: float) -> float:
    return float(logit(np.clip(p, 1e-4, 1 - 1e-4)))


def best_threshold(values: np.ndarray, truth: np.ndarray) -> float:
    """Find the threshold above which F1 is highest, halfway between two values.

    Parameters
    ----------
    values : ndarray of shape (m,)
        Of (sample, label) pairs.
    truth : ndarray of shape (m,)
        Whether the sample carries the label.

    Returns
    -------
    float
        The threshold.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.methods.thresholds import best_threshold
    >>> best_threshold(np.array([3.0, 2.0, 1.0]), np.array([True, True, False]))
    1.5
    """
    order = np.argsort(-values, kind="stable")
    ranked, hits = values[order], np.cumsum(truth[order])
    f1 = 2 * hits / (np.arange(1, len(ranked) + 1) + hits[-1])
    f1[:-1][ranked[:-1] == ranked[1:]] = -1.0  # a threshold does not part equal values
    best = int(f1.argmax())
    return float((ranked[best] + (ranked[best + 1] if best + 1 < len(ranked) else 0.0)) / 2)
