"""How good predicted label sets are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dmo.blocks import Rows
from dmo.metrics.checked_blocks import known_pairs, ratio, shapes


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


def set_scores(Y: Rows, P: Rows) -> SetScores:
    """Micro, macro and sample F1, Hamming loss and subset accuracy of predicted label sets.

    They are scikit-learn's `f1_score` (zero_division=0), `hamming_loss` and `accuracy_score`.

    Parameters
    ----------
    Y : row source of shape (n, L)
        Labels, 0/1, dense or CSR; NaN is a label that is not known, which counts for nothing.
    P : row source of shape (n, L)
        Predictions, 0/1, dense or CSR.

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
    hits, given, positives = np.zeros((3, L), dtype=np.int64)
    by_sample, wrong, right, compared = np.empty(n), 0, 0, 0
    for where, y, p, known in known_pairs("label sets", Y, P, "predictions"):
        p, compared = (p, compared + p.size) if known is None else (p & known, compared + int(known.sum()))
        both = y & p
        hits, given, positives = hits + both.sum(axis=0), given + p.sum(axis=0), positives + y.sum(axis=0)
        by_sample[where] = ratio(2 * both.sum(axis=1), y.sum(axis=1) + p.sum(axis=1), 0.0)
        different = (y != p).sum(axis=1)
        wrong, right = wrong + int(different.sum()), right + int((different == 0).sum())
    per_label, total = ratio(2 * hits, given + positives, 0.0), int(given.sum() + positives.sum())
    micro = float(2 * hits.sum() / total) if total else 0.0
    samples = float(by_sample.mean())
    return SetScores(
        micro, float(per_label.mean()), samples, wrong / max(compared, 1), right / n, float(given.sum() / n)
    )
