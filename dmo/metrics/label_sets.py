"""How good predicted label sets are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dmo.blocks import Rows
from dmo.metrics.checked_blocks import added, counts_of, known_pairs, ratio, shapes


@dataclass(frozen=True)
class SetScores:
    """How good predicted label sets are.

    Attributes
    ----------
    f1_micro, f1_macro, f1_samples : float
        F1 of pooled counts, its mean over labels, and over samples; 0 where there is neither a positive nor a prediction.
    hamming : float
        Hamming loss: share of the wrong entries.
    subset : float
        Subset accuracy: share of the samples whose set is right as a whole.
    cardinality : float
        Labels given per sample.
    precision_samples, recall_samples : float
        Means over samples of the share of the labels given that is right, and of the sample's labels that is given; 1 where
        there are none of these.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.metrics import set_scores
    >>> set_scores(np.array([[1, 0], [1, 1]]), np.array([[1, 0], [0, 1]])).hamming
    0.25
    """

    f1_micro: float
    f1_macro: float
    f1_samples: float
    hamming: float
    subset: float
    cardinality: float
    precision_samples: float
    recall_samples: float


def set_scores(Y: Rows, P: Rows, sample_weight: ArrayLike | None = None) -> SetScores:
    """Micro, macro and sample F1, Hamming loss and subset accuracy of predicted label sets.

    They are scikit-learn's `f1_score` (zero_division=0), `hamming_loss` and `accuracy_score`, and of samples
    `precision_score` and `recall_score` (zero_division=1).

    Parameters
    ----------
    Y : row source of shape (n, L)
        Labels, 0/1, dense or CSR; NaN is a label that is not known, which counts for nothing.
    P : row source of shape (n, L)
        Predictions, 0/1, dense or CSR.
    sample_weight : array-like of shape (n,) or None, default=None
        How often every sample counts; None: once.

    Returns
    -------
    SetScores
        The figures.

    Raises
    ------
    UserError
        For shapes that differ, and values that are not 0/1.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.metrics import set_scores
    >>> found = set_scores(np.array([[1, 0], [1, 1]]), np.array([[1, 0], [0, 1]]))
    >>> found.f1_micro, found.subset
    (0.8, 0.5)
    """
    n, L = shapes(Y, P, "predictions")
    weights = counts_of(sample_weight, n)
    hits, given, positives = np.zeros((3, L), np.int64 if weights is None else np.float64)
    by_sample, wrong, right, compared = np.empty((3, n)), 0.0, 0.0, 0.0
    for where, y, p, known in known_pairs("label sets", Y, P, "predictions"):
        p, told = (p, np.full(len(p), L)) if known is None else (p & known, known.sum(axis=1))
        both, different = y & p, (y != p).sum(axis=1)
        hits, given = hits + added(both, weights, where), given + added(p, weights, where)
        positives, compared = positives + added(y, weights, where), compared + float(added(told, weights, where))
        found, chosen, true = both.sum(axis=1), p.sum(axis=1), y.sum(axis=1)
        by_sample[:, where] = ratio(2 * found, true + chosen, 0.0), ratio(found, chosen, 1.0), ratio(found, true, 1.0)
        wrong += float(added(different, weights, where))
        right += float(added(different == 0, weights, where))
    per_label, total = ratio(2 * hits, given + positives, 0.0), given.sum() + positives.sum()
    micro, size = float(2 * hits.sum() / total) if total else 0.0, n if weights is None else float(weights.sum())
    f1, precision, recall = np.average(by_sample, axis=1, weights=weights).tolist()
    hamming = wrong / compared if compared else 0.0
    cardinality = float(given.sum() / size)
    return SetScores(micro, float(per_label.mean()), f1, hamming, right / size, cardinality, precision, recall)
