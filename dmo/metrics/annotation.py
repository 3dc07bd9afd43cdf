"""Metrics of label scores and label sets, such as precision, recall and F1 at k, AUC, and precision-recall curves.

Labels Y and predictions P contain 0 and 1, and scores S contain any numbers. Labels, predictions and scores are read
block by block. Counts are integers, so that the result does not depend on the block size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dmo.blocks import Rows, row_blocks, rows
from dmo.errors import UserError
from dmo.metrics.checked_blocks import (
    added,
    binary,
    counts_of,
    known_pairs,
    matrix,
    numbers,
    ratio,
    shapes,
    whole,
)


@dataclass(frozen=True, eq=False)
class AnnotationScores:
    """Precision, recall, F1 and N+ with a fixed number of predicted labels per sample.

    Attributes
    ----------
    precision, recall : float
        Precision and recall averaged over the labels that occur in Y, from 0 to 1.
    f1 : float
        Harmonic mean 2PR / (P + R) of the mean precision P and the mean recall R.
    n_plus : int
        Number of labels whose recall is above 0.
    per_label_precision, per_label_recall : ndarray of shape (L,)
        Precision and recall of every label. The recall of a label that never occurs is NaN.
    top : int
        Number of predicted labels per sample.
    n_labels : int
        Number of labels that occur in Y.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.metrics import annotation_scores
    >>> annotation_scores(np.array([[1, 0], [0, 1]]), np.array([[0.9, 0.1], [0.8, 0.2]]), top=1).n_plus
    1
    """

    precision: float
    recall: float
    f1: float
    n_plus: int
    per_label_precision: np.ndarray
    per_label_recall: np.ndarray
    top: int
    n_labels: int


@dataclass(frozen=True, eq=False)
class F1Scores:
    """F1 scores of predicted labels.

    Attributes
    ----------
    macro : float
        F1 score averaged over all L labels.
    micro : float
        F1 score of the counts pooled over labels.
    per_label : ndarray of shape (L,)
        F1 score of every label.

    Examples
    --------
    >>> from dmo.metrics import f1_scores
    >>> import numpy as np
    >>> f1_scores(np.array([[1, 0], [1, 1]]), np.array([[1, 0], [0, 1]])).per_label.round(2)
    array([0.67, 1.  ])
    """

    macro: float
    micro: float
    per_label: np.ndarray


@dataclass(frozen=True, eq=False)
class AUCScores:
    """Areas under ROC curves (AUC) of labels with positive and negative samples.

    Attributes
    ----------
    macro : float
        Area under the ROC curve, averaged over the labels with positive and negative samples.
    micro : float
        Area under the ROC curve of all sample-label pairs of these labels.
    per_label : ndarray of shape (L,)
        Area under the ROC curve of every label, or NaN if the label lacks positive or negative samples.
    left_out : int
        Number of labels without positive or without negative samples.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.metrics import auc_scores
    >>> auc_scores(np.array([[1, 1], [0, 1]]), np.array([[0.9, 0.1], [0.8, 0.2]])).left_out
    1
    """

    macro: float
    micro: float
    per_label: np.ndarray
    left_out: int


@dataclass(frozen=True, eq=False)
class TopNAccuracy:
    """Fractions of positives among the rows with the highest scores of each label.

    Attributes
    ----------
    mean : float
        Fraction averaged over the labels with at least one positive candidate.
    per_label : ndarray of shape (L,)
        Fraction of every label, or NaN if the label has no positive candidate.
    top : int
        Number of rows selected for each label.
    left_out : int
        Number of labels without a positive candidate.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.metrics import top_n_accuracy
    >>> top_n_accuracy(np.array([[1, 0], [0, 0]]), np.array([[0.9, 0.1], [0.8, 0.2]]), top=1)
    TopNAccuracy(mean=1.0, per_label=array([ 1., nan]), top=1, left_out=1)
    """

    mean: float
    per_label: np.ndarray
    top: int
    left_out: int


@dataclass(frozen=True, eq=False)
class PrecisionRecall:
    """Precision-recall curve of one label, with one point per distinct score.

    Attributes
    ----------
    label : int
        Column index of the label in Y.
    precision, recall : ndarray of shape (m,)
        Precision and recall at the m thresholds.
    thresholds : ndarray of shape (m,)
        Distinct scores in descending order.
    average_precision : float
        Sum of (R_i - R_(i-1)) P_i over the thresholds, with precision P_i and recall R_i.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.metrics import precision_recall_curves
    >>> curve, = precision_recall_curves(np.array([[1], [0], [1]]), np.array([[0.9], [0.8], [0.7]]))
    >>> curve.recall
    array([0.5, 0.5, 1. ])
    """

    label: int
    precision: np.ndarray
    recall: np.ndarray
    thresholds: np.ndarray
    average_precision: float


@dataclass(frozen=True)
class SetScores:
    """Metrics of predicted label sets.

    Attributes
    ----------
    f1_micro, f1_macro, f1_samples : float
        F1 score of the counts pooled over labels, and F1 score averaged over labels and over samples. F1 is 0 if there
        are neither positives nor predictions.
    hamming : float
        Hamming loss, the fraction of sample-label pairs with a wrong prediction.
    subset : float
        Subset accuracy, the fraction of samples whose label set is predicted exactly.
    cardinality : float
        Mean number of predicted labels per sample.
    precision_samples : float
        Fraction of the predicted labels of a sample that are correct, averaged over samples. The fraction is 1 for
        samples without predicted labels.
    recall_samples : float
        Fraction of the true labels of a sample that are predicted, averaged over samples. The fraction is 1 for samples
        without true labels.

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


_PAIRS = 1 << 20
"""Maximum number of positive sample-label pairs whose scores are in memory at the same time."""


class _Positives:
    """Sorted scores of positive samples, with the weights of these samples."""

    def __init__(self, values: np.ndarray, counts: np.ndarray):
        self.values, self.counts = values, counts
        self._below = np.concatenate([[0], np.cumsum(counts)]).astype(counts.dtype)

    def twice_below(self, negatives: np.ndarray, counts: np.ndarray | None) -> Any:
        """Return twice the number of pairs whose negative sample has the higher score, plus the number of ties."""
        if counts is None:
            negatives = np.sort(negatives)  # Binary search is faster for sorted values.
            if len(self.values) < len(negatives):  # Search for the fewer values in the longer array.
                return 2 * len(negatives) * len(self.values) - _twice_below(negatives, self.values)
            return _twice_below(self.values, negatives)
        places = (np.searchsorted(self.values, negatives, side) for side in ("left", "right"))
        return sum(float(counts @ self._below[place]) for place in places)


def _twice_below(ordered: np.ndarray, found: np.ndarray) -> int:
    """Return twice the number of pairs with a value of `ordered` below a value of `found`, plus the number of ties."""
    place = np.searchsorted(ordered, found)
    if not len(ordered):
        return 0
    # Only tied values need a second search, and there are few of them.
    equal = ordered[np.minimum(place, len(ordered) - 1)] == found
    ties = np.searchsorted(ordered, found[equal], "right") - place[equal]
    return 2 * int(place.sum()) + int(ties.sum())


def annotation_scores(Y: Rows, S: Rows, top: int = 5, sample_weight: ArrayLike | None = None) -> AnnotationScores:
    """Compute precision, recall, F1 and N+ with a fixed number of predicted labels per sample.

    The `top` labels with the highest scores are predicted for every sample. The mean precision P and the mean recall R
    are averages over the labels that occur in Y, and F1 = 2PR / (P + R). The precision of a label that is never
    predicted is 0. N+ is the number of labels with recall above 0.

    Parameters
    ----------
    Y : row source of shape (n, L)
        True labels, 0 or 1. Missing labels (NaN) are ignored.
    S : row source of shape (n, L)
        Label scores without NaN.
    top : int, default=5
        Number of predicted labels per sample, from 1 to L.
    sample_weight : array-like of shape (n,) or None, default=None
        Sample weights.

    Returns
    -------
    AnnotationScores
        Averaged metrics, and the precision and the recall of every label.

    Raises
    ------
    UserError
        If Y and S differ in shape, labels are not 0 or 1, scores are NaN, `top` is outside 1..L, or no label occurs in
        Y.

    References
    ----------
    Guillaumin et al. 2009 (TagProp), section 4; Makadia et al. 2008 (JEC).

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.metrics import annotation_scores
    >>> Y = np.array([[1, 0, 0], [0, 1, 0], [1, 0, 1]])
    >>> S = np.array([[0.9, 0.2, 0.1], [0.3, 0.6, 0.5], [0.8, 0.1, 0.7]])
    >>> found = annotation_scores(Y, S, top=2)
    >>> round(found.precision, 3), found.recall, found.n_plus
    (0.667, 1.0, 3)
    """
    _, n_labels = shapes(Y, S, "scores")
    top = whole("top", top, n_labels, "labels")
    hits, given, positives = _counts(Y, S, top, sample_weight)
    occurs = positives > 0
    if not occurs.any():
        raise UserError("annotation_scores: no label occurs in Y; pass samples with labels")
    precision = ratio(hits, given, 0.0)
    recall = ratio(hits, positives, np.nan)
    p, r = float(precision[occurs].mean()), float(recall[occurs].mean())
    f1 = 2 * p * r / (p + r) if p + r > 0 else 0.0
    return AnnotationScores(p, r, f1, int((hits > 0).sum()), precision, recall, top, int(occurs.sum()))


def top_label_sets(S: np.ndarray, top: int) -> np.ndarray:
    """Select the `top` labels with the highest scores in every row.

    Parameters
    ----------
    S : ndarray of shape (n, L)
        Label scores without NaN. Of labels with equal scores, those with lower indices are selected.
    top : int
        Number of selected labels per row, from 1 to L.

    Returns
    -------
    ndarray of shape (n, L), uint8
        Matrix with 1 for selected labels and 0 for other labels.

    Raises
    ------
    UserError
        If scores are NaN, or `top` is outside 1..L.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.metrics import top_label_sets
    >>> top_label_sets(np.array([[0.1, 0.9, 0.9], [0.5, 0.2, 0.4]]), top=1)
    array([[0, 1, 0],
           [1, 0, 0]], dtype=uint8)
    """
    matrix(S, "scores")
    S = numbers(S, "scores", slice(0, len(S)))
    return _highest(S, whole("top", top, S.shape[1], "labels")).view(np.uint8)


def _highest(S: np.ndarray, top: int) -> np.ndarray:
    """Select the `top` labels with the highest scores in every row of validated scores."""
    threshold = np.partition(S, -top, axis=1)[:, -top, None]
    reached = threshold <= S
    if np.count_nonzero(reached) == top * len(S):  # No ties need to be resolved.
        return reached
    above, tied = threshold < S, threshold == S
    room = top - above.sum(axis=1, keepdims=True)
    return above | (tied & (tied.cumsum(axis=1) <= room))


def f1_scores(Y: Rows, P: Rows, sample_weight: ArrayLike | None = None) -> F1Scores:
    """Compute macro and micro F1 scores of predicted labels.

    F1 = 2 TP / (2 TP + FP + FN) with the numbers of true positives, false positives and false negatives. The F1 score
    of a label without positives and predictions is 0 and contributes to the macro average.

    Parameters
    ----------
    Y : row source of shape (n, L)
        True labels, 0 or 1. Missing labels (NaN) are ignored.
    P : row source of shape (n, L)
        Predicted labels, 0 or 1.
    sample_weight : array-like of shape (n,) or None, default=None
        Sample weights.

    Returns
    -------
    F1Scores
        Macro and micro F1 scores, and the F1 score of every label.

    Raises
    ------
    UserError
        If Y and P differ in shape, or contain values other than 0 and 1.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.metrics import f1_scores
    >>> found = f1_scores(np.array([[1, 0], [1, 1]]), np.array([[1, 0], [0, 1]]))
    >>> round(found.macro, 3), found.micro
    (0.833, 0.8)
    """
    shapes(Y, P, "predictions")
    hits, given, positives = _counts(Y, P, None, sample_weight)
    per_label = ratio(2 * hits, given + positives, 0.0)
    total = given.sum() + positives.sum()
    return F1Scores(float(per_label.mean()), float(2 * hits.sum() / total) if total else 0.0, per_label)


def precision_recall_f1(Y: Rows, P: Rows) -> dict[str, np.ndarray]:
    """Compute precision, recall and F1 of every label.

    As in scikit-learn with `zero_division=0`, ratios of nothing are 0.
    """
    shapes(Y, P, "predictions")
    hits, given, positives = _counts(Y, P, None, None)
    found = {"precision": ratio(hits, given, 0.0), "recall": ratio(hits, positives, 0.0)}
    return found | {"f1": ratio(2 * hits, given + positives, 0.0)}


def f1_macro(Y: Rows, P: Rows, sample_weight: ArrayLike | None = None) -> float:
    """Compute the F1 score of predicted labels, averaged over labels.

    Parameters
    ----------
    Y, P : row source of shape (n, L)
        True and predicted labels, 0 or 1.
    sample_weight : array-like of shape (n,) or None, default=None
        Sample weights.

    Returns
    -------
    float
        Macro F1 score, from 0 to 1.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.metrics import f1_macro
    >>> f1_macro(np.array([[1, 0], [1, 1]]), np.array([[1, 0], [1, 1]]))
    1.0
    """
    return f1_scores(Y, P, sample_weight).macro


def f1_micro(Y: Rows, P: Rows, sample_weight: ArrayLike | None = None) -> float:
    """Compute the F1 score of predicted labels from counts pooled over labels.

    Parameters
    ----------
    Y, P : row source of shape (n, L)
        True and predicted labels, 0 or 1.
    sample_weight : array-like of shape (n,) or None, default=None
        Sample weights.

    Returns
    -------
    float
        Micro F1 score, from 0 to 1.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.metrics import f1_micro
    >>> f1_micro(np.array([[1, 0], [1, 1]]), np.array([[1, 0], [0, 1]]))
    0.8
    """
    return f1_scores(Y, P, sample_weight).micro


def with_ancestors(Y: np.ndarray, ancestors: np.ndarray) -> np.ndarray:
    """Add the ancestors of all labels to label sets.

    Parameters
    ----------
    Y : ndarray of shape (n, L)
        Labels, 0 or 1. A missing label (NaN) becomes 1 if any of its descendants is present.
    ancestors : ndarray of shape (E, 2)
        Pairs of the column indices of a label and of one of its ancestors, such as the attribute `ancestors_` of a
        fitted model.

    Returns
    -------
    ndarray of shape (n, L)
        Labels including all ancestors.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.metrics import with_ancestors
    >>> with_ancestors(np.array([[0, 1, 0], [0, 0, 1]]), np.array([[2, 0]]))
    array([[0, 1, 0],
           [1, 0, 1]])
    """
    out = Y.copy()
    for above in np.unique(ancestors[:, 1]):
        below = ancestors[ancestors[:, 1] == above, 0]
        out[(Y[:, below] == 1).any(axis=1), above] = 1
    return out


def f1_hierarchical(Y: np.ndarray, P: np.ndarray, ancestors: np.ndarray) -> float:
    """Compute the micro F1 score after adding all ancestors to true and predicted labels.

    Parameters
    ----------
    Y, P : ndarray of shape (n, L)
        True and predicted labels, 0 or 1. Missing labels (NaN) are ignored.
    ancestors : ndarray of shape (E, 2)
        Pairs of column indices, as in `with_ancestors`.

    Returns
    -------
    float
        Hierarchical F1 score, from 0 to 1.

    References
    ----------
    Kiritchenko, Matwin, Nock, Famili 2006 (hierarchical precision and recall; a common root is not a label).

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.metrics import f1_hierarchical, f1_micro
    >>> Y, P = np.array([[0, 1, 0]]), np.array([[0, 0, 1]])  # predict a sibling
    >>> f1_micro(Y, P), f1_hierarchical(Y, P, np.array([[1, 0], [2, 0]]))
    (0.0, 0.5)
    """
    return set_scores(with_ancestors(Y, ancestors), with_ancestors(P, ancestors)).f1_micro


def auc_scores(Y: Rows, S: Rows, sample_weight: ArrayLike | None = None) -> AUCScores:
    """Compute the exact area under the ROC curve (AUC), averaged over labels (macro) or of pooled pairs (micro).

    Labels without positive or without negative samples are excluded. The AUC is the probability that a positive sample
    has a higher score than a negative one, where ties count as 1/2 (Mann-Whitney). Labels are processed in groups with
    at most 2^20 positive sample-label pairs, or one at a time. For each group, all rows are read twice, and the scores
    of its positive pairs are kept in memory.

    Parameters
    ----------
    Y : row source of shape (n, L)
        True labels, 0 or 1. Missing labels (NaN) are ignored.
    S : row source of shape (n, L)
        Label scores without NaN.
    sample_weight : array-like of shape (n,) or None, default=None
        Sample weights.

    Returns
    -------
    AUCScores
        Macro and micro AUC, the AUC of every label, and the number of excluded labels.

    Raises
    ------
    UserError
        If Y and S differ in shape, labels are not 0 or 1, scores are NaN, or no label has positive and negative
        samples.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.metrics import auc_scores
    >>> Y = np.array([[1, 0], [0, 1], [1, 0]])
    >>> S = np.array([[0.9, 0.2], [0.6, 0.7], [0.5, 0.1]])
    >>> auc_scores(Y, S).per_label
    array([0.5, 1. ])
    """
    return _areas(Y, S, sample_weight, True)


def _areas(Y: Rows, S: Rows, sample_weight: ArrayLike | None, micro: bool) -> AUCScores:
    """Compute the result of `auc_scores`; if `micro` is false, skip the micro AUC, which takes half of the time."""
    n, n_labels = shapes(Y, S, "scores")
    weights = counts_of(sample_weight, n)
    kind = np.int64 if weights is None else np.float64
    total, positives, pairs = np.zeros(n_labels, kind), np.zeros(n_labels, kind), np.zeros(n_labels, np.int64)
    for where, y, _, known in known_pairs("AUC, counts", Y, S, "scores"):
        total += added(np.ones(y.shape, bool) if known is None else known, weights, where)
        positives += added(y, weights, where)
        pairs += added(y, None, where)
    both = (positives > 0) & (positives < total)
    if not both.any():
        raise UserError("auc_scores: no label has both positive and negative samples; pass samples of both classes")
    # Pairs in which a negative sample has a higher score than a positive one count twice, and ties count once. Unlike
    # sums of fractions, the integer counts do not depend on the order of the samples.
    lost, pooled_lost = np.zeros(n_labels, total.dtype), total.dtype.type(0)
    for group in _groups(np.flatnonzero(both), pairs):
        found, pooled = _positives(Y, S, weights, group, micro)
        for where, y, s, known in known_pairs("AUC, negatives", Y, S, "scores"):
            negative = ~y if known is None else ~y & known
            own = None if weights is None else np.broadcast_to(weights[where][:, None], s.shape)
            columns, absent = np.ascontiguousarray(s[:, group].T), np.ascontiguousarray(negative[:, group].T)
            for k, l in enumerate(group):
                some = absent[k]
                lost[l] += found[k].twice_below(columns[k, some], None if own is None else own[some, l])
            if pooled is not None:
                some = negative & both
                pooled_lost += pooled.twice_below(s[some], None if own is None else own[some])
    area = np.full(n_labels, np.nan)
    area[both] = 1.0 - lost[both] / (2.0 * positives[both] * (total - positives)[both])
    wins = 2.0 * float(positives[both].sum()) * float((total - positives)[both].sum())
    pooled_area = float(1.0 - pooled_lost / wins) if micro else np.nan
    return AUCScores(float(area[both].mean()), pooled_area, area, int((~both).sum()))


def _groups(labels: np.ndarray, pairs: np.ndarray) -> list[np.ndarray]:
    """Split labels into groups with at most `_PAIRS` positive sample-label pairs, or with a single label."""
    place = np.cumsum(pairs[labels])
    groups, first = [], 0
    while first < len(labels):
        before = place[first - 1] if first else 0
        last = max(int(np.searchsorted(place, before + _PAIRS, "right")), first + 1)
        groups.append(labels[first:last])
        first = last
    return groups


def _positives(
    Y: Rows, S: Rows, weights: np.ndarray | None, group: np.ndarray, micro: bool
) -> tuple[list[_Positives], _Positives | None]:
    """Collect the scores of the positive samples of every label in a group, and of all these labels together."""
    labels, values, counts = [], [], []
    for where, y, s, _ in known_pairs("AUC, positives", Y, S, "scores"):
        sample, label = np.nonzero(y[:, group])
        labels.append(label.astype(np.int32))
        values.append(s[sample, group[label]])
        counts.append(np.broadcast_to(np.int64(1), len(label)) if weights is None else weights[where][sample])
    label, value, count = np.concatenate(labels), np.concatenate(values), np.concatenate(counts)
    order = np.lexsort((value, label))
    edges = np.cumsum(np.bincount(label, minlength=len(group)))[:-1]
    found = [_Positives(v, c) for v, c in zip(np.split(value[order], edges), np.split(count[order], edges))]
    if not micro:
        return found, None
    order = np.argsort(value, kind="stable")
    return found, _Positives(value[order], count[order])


def auc_macro(Y: Rows, S: Rows, sample_weight: ArrayLike | None = None) -> float:
    """Compute the area under the ROC curve, averaged over labels with positive and negative samples.

    Parameters
    ----------
    Y, S : row source of shape (n, L)
        True labels, 0 or 1, and label scores.
    sample_weight : array-like of shape (n,) or None, default=None
        Sample weights.

    Returns
    -------
    float
        Macro AUC, from 0 to 1.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.metrics import auc_macro
    >>> auc_macro(np.array([[1], [0], [1]]), np.array([[0.9], [0.6], [0.5]]))
    0.5
    """
    return _areas(Y, S, sample_weight, False).macro


def auc_micro(Y: Rows, S: Rows, sample_weight: ArrayLike | None = None) -> float:
    """Compute the area under the ROC curve of all sample-label pairs, for labels with positive and negative samples.

    Parameters
    ----------
    Y, S : row source of shape (n, L)
        True labels, 0 or 1, and label scores.
    sample_weight : array-like of shape (n,) or None, default=None
        Sample weights.

    Returns
    -------
    float
        Micro AUC, from 0 to 1.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.metrics import auc_micro
    >>> auc_micro(np.array([[1], [0], [1]]), np.array([[0.9], [0.6], [0.5]]))
    0.5
    """
    return auc_scores(Y, S, sample_weight).micro


def top_n_accuracy(Y: Rows, S: Rows, top: int = 10, candidates: Rows | None = None) -> TopNAccuracy:
    """Compute the fraction of positives among the rows with the highest scores, averaged over labels.

    In recommendation, rows are items and labels are users. Of rows with equal scores, those with lower indices are
    selected first. If a label has fewer than `top` candidates, all of them are selected. Labels without a positive
    candidate are excluded from the average.

    Parameters
    ----------
    Y : row source of shape (n, L)
        Matrix of 0 and 1 without missing values. For example, 1 means that user l likes item i.
    S : row source of shape (n, L)
        Scores, which must not contain NaN.
    top : int, default=10
        Number of selected rows per label, from 1 to n.
    candidates : row source of shape (n, L), default=None
        Matrix with 1 for pairs that can be selected, and 0 for other pairs, such as ratings used in training. By
        default, all pairs can be selected.

    Returns
    -------
    TopNAccuracy
        Average fraction, and the fraction of every label.

    Raises
    ------
    UserError
        If the arrays differ in shape, Y or `candidates` have values other than 0 and 1, scores are NaN, `top` is
        outside 1..n, or no label has a positive candidate.

    References
    ----------
    Yu, Yu, Tresp 2005 (MORP), preference prediction.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.metrics import top_n_accuracy
    >>> Y = np.array([[1, 0], [0, 1], [1, 1]])
    >>> S = np.array([[0.9, 0.8], [0.7, 0.6], [0.1, 0.7]])
    >>> top_n_accuracy(Y, S, top=2).mean
    0.5
    """
    n, n_labels = shapes(Y, S, "scores")
    top = whole("top", top, n, "rows")
    if candidates is not None:
        shapes(Y, candidates, "candidates")
    allowed, positive = np.zeros((0, n_labels), dtype=bool), np.zeros((0, n_labels), dtype=bool)
    score, liked = np.zeros((0, n_labels)), np.zeros(n_labels, dtype=np.int64)
    for where, y, s, _ in known_pairs("top-N accuracy", Y, S, "scores", gaps=False):
        may = np.ones_like(y) if candidates is None else binary(rows(candidates, where), "candidates", where)
        liked += (y & may).sum(axis=0)
        # The rows selected so far precede the new rows, so that the stable sort prefers lower row indices in ties.
        allowed, positive, score = np.vstack([allowed, may]), np.vstack([positive, y]), np.vstack([score, s])
        best = np.lexsort((-score, ~allowed), axis=0)[:top]
        allowed, positive, score = (np.take_along_axis(a, best, axis=0) for a in (allowed, positive, score))
    if not liked.any():
        raise UserError("top_n_accuracy: no label has a positive among its candidates; pass rows with positives")
    per_label = ratio((positive & allowed).sum(axis=0), allowed.sum(axis=0), np.nan)
    per_label[liked == 0] = np.nan
    return TopNAccuracy(float(per_label[liked > 0].mean()), per_label, top, int((liked == 0).sum()))


def set_scores(Y: Rows, P: Rows, sample_weight: ArrayLike | None = None) -> SetScores:
    """Compute F1 scores, Hamming loss, subset accuracy, precision and recall of predicted label sets.

    The results equal those of scikit-learn's `f1_score` (zero_division=0), `hamming_loss` and `accuracy_score`, and of
    `precision_score` and `recall_score` (average="samples", zero_division=1).

    Parameters
    ----------
    Y : row source of shape (n, L)
        True labels, 0 or 1. Missing labels (NaN) are ignored.
    P : row source of shape (n, L)
        Predicted labels, 0 or 1.
    sample_weight : array-like of shape (n,) or None, default=None
        Sample weights.

    Returns
    -------
    SetScores
        The metrics of label sets.

    Raises
    ------
    UserError
        If Y and P differ in shape, or contain values other than 0 and 1.

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
    by_sample, size, wrong, right, compared = np.zeros(3), 0.0, 0.0, 0.0, 0.0
    for where, y, p, known in known_pairs("label sets", Y, P, "predictions"):
        p, told = (p, np.full(len(p), L)) if known is None else (p & known, known.sum(axis=1))
        both, different = y & p, (y != p).sum(axis=1)
        hits, given = hits + added(both, weights, where), given + added(p, weights, where)
        positives, compared = positives + added(y, weights, where), compared + float(added(told, weights, where))
        found, chosen, true = both.sum(axis=1), p.sum(axis=1), y.sum(axis=1)
        judged = told > 0
        size += float(added(judged, weights, where))
        shares = ratio(2 * found, true + chosen, 0.0), ratio(found, chosen, 1.0), ratio(found, true, 1.0)
        by_sample += added(np.stack(shares, axis=1) * judged[:, None], weights, where)
        wrong += float(added(different, weights, where))
        right += float(added((different == 0) & (told > 0), weights, where))
    per_label, total = ratio(2 * hits, given + positives, 0.0), given.sum() + positives.sum()
    micro, size = float(2 * hits.sum() / total) if total else 0.0, size or 1.0
    f1, precision, recall = (by_sample / size).tolist()
    hamming = wrong / compared if compared else 0.0
    cardinality = float(given.sum() / size)
    return SetScores(micro, float(per_label.mean()), f1, hamming, right / size, cardinality, precision, recall)


def jaccard_accuracy(Y: Rows, P: Rows, sample_weight: ArrayLike | None = None) -> float:
    """Compute the Jaccard index of true and predicted label sets, averaged over samples.

    The Jaccard index of two sets is the size of their intersection divided by the size of their union. It is 1 for two
    empty sets.

    Parameters
    ----------
    Y, P : row source of shape (n, L)
        True and predicted labels, 0 or 1. Missing labels (NaN) are ignored.
    sample_weight : array-like of shape (n,) or None, default=None
        Sample weights.

    Returns
    -------
    float
        Mean Jaccard index, from 0 to 1.

    Raises
    ------
    UserError
        If Y and P differ in shape, or contain values other than 0 and 1.

    References
    ----------
    Liu, Lin, Yu 2009 (LLT): accuracy in the multi-label experiments.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.metrics import jaccard_accuracy
    >>> jaccard_accuracy(np.array([[1, 1], [0, 0]]), np.array([[1, 0], [0, 0]]))
    0.75
    """
    n, _ = shapes(Y, P, "predictions")
    ratios = np.empty(n)
    for where, y, p, known in known_pairs("Jaccard accuracy", Y, P, "predictions"):
        p = p if known is None else p & known
        ratios[where] = ratio((y & p).sum(axis=1), (y | p).sum(axis=1), 1.0)
    return float(np.average(ratios, weights=counts_of(sample_weight, n)))


def precision_recall_curves(
    Y: Rows, S: Rows, labels: Sequence[int] | None = None, sample_weight: ArrayLike | None = None
) -> list[PrecisionRecall]:
    """Compute the precision-recall curves of labels.

    The average precision of a curve is the sum of (R_i - R_(i-1)) P_i over descending thresholds, with precision P_i
    and recall R_i. The n x len(labels) scores are kept in memory.

    Parameters
    ----------
    Y : row source of shape (n, L)
        True labels, 0 or 1. Missing labels (NaN) are ignored.
    S : row source of shape (n, L)
        Label scores without NaN.
    labels : sequence of int, default=None
        Column indices of the labels. By default, the curves of all labels are computed.
    sample_weight : array-like of shape (n,) or None, default=None
        Sample weights.

    Returns
    -------
    list of PrecisionRecall
        One curve for each of the `labels`, in their order, without labels that have no positive sample.

    Raises
    ------
    UserError
        If Y and S differ in shape, labels are not 0 or 1, scores are NaN, or a column index is outside 0..L-1.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.metrics import precision_recall_curves
    >>> Y, S = np.array([[1, 0], [0, 0], [1, 0]]), np.array([[0.9, 1], [0.6, 2], [0.5, 3]])
    >>> [(curve.label, round(curve.average_precision, 3)) for curve in precision_recall_curves(Y, S)]
    [(0, 0.833)]
    """
    n, n_labels = shapes(Y, S, "scores")
    picked = np.arange(n_labels) if labels is None else np.asarray(labels, dtype=np.intp).reshape(-1)
    if ((picked < 0) | (picked >= n_labels)).any():
        raise UserError(f"labels must be column indices in 0..{n_labels - 1}, got {picked.tolist()}; pass columns of Y")
    truth, has, score = *np.ones((2, len(picked), n), bool), np.empty((len(picked), n))
    for where, y, s, known in known_pairs("precision-recall curves", Y, S, "scores"):
        truth[:, where], score[:, where] = y[:, picked].T, s[:, picked].T
        has[:, where] = True if known is None else known[:, picked].T
    weights = counts_of(sample_weight, n)
    each = np.ones(n, np.int64) if weights is None else weights
    has &= each > 0
    found = zip(picked, truth, has, score, strict=True)
    return [_curve(int(l), t[k], s[k], each[k]) for l, t, k, s in found if (t & k).any()]


def average_precisions(Y: Rows, S: Rows) -> np.ndarray:
    """Compute the average precision of every label, or NaN for labels without a positive sample."""
    n, n_labels = shapes(Y, S, "scores")
    found = np.full(n_labels, np.nan)
    for some in row_blocks(n_labels, max(1, _PAIRS // n)):
        for curve in precision_recall_curves(Y, S, range(some.start, some.stop)):
            found[curve.label] = curve.average_precision
    return found


def _curve(label: int, truth: np.ndarray, score: np.ndarray, counts: np.ndarray) -> PrecisionRecall:
    order = np.argsort(-score, kind="stable")
    score, counts = score[order], counts[order]
    hits, given = np.cumsum(counts * truth[order]), np.cumsum(counts)
    last = np.append(np.flatnonzero(score[1:] != score[:-1]), len(score) - 1)
    precision, recall = hits[last] / given[last], hits[last] / hits[-1]
    average = float(np.sum(np.diff(recall, prepend=0.0) * precision))
    return PrecisionRecall(label, precision, recall, score[last], average)


def _counts(
    Y: Rows, S: Rows, top: int | None, sample_weight: ArrayLike | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count the true positives, the predictions and the positives of every label.

    `S` contains predictions if `top` is None. Otherwise it contains scores, and the `top` highest are predictions.
    """
    what = "predictions" if top is None else "scores"
    weights = counts_of(sample_weight, Y.shape[0])
    hits, given, positives = np.zeros((3, Y.shape[1]), np.int64 if weights is None else np.float64)
    for where, y, s, known in known_pairs("counting labels", Y, S, what):
        p = s if top is None else _highest(s, top)
        hits += added(y & p, weights, where)
        given += added(p if known is None else p & known, weights, where)
        positives += added(y, weights, where)
    return hits, given, positives
