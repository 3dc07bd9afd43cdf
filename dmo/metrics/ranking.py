"""Metrics of rankings and regression: LRAP, coverage, ranking loss; precision, recall, nDCG and PSP at k; errors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dmo.blocks import Rows, row_blocks, rows
from dmo.errors import UserError
from dmo.metrics.annotation import top_label_sets
from dmo.metrics.checked_blocks import added, counts_of, dense, known_pairs, numbers, shapes, whole

_ENTRIES = 2**15  # number of scores compared at a time, which fit in the cache


@dataclass(frozen=True)
class RankingScores:
    """Metrics of the ranking of labels within every sample; among tied labels, each counts as the last.

    Attributes
    ----------
    lrap : float
        Label ranking average precision: for every true label, the fraction of true labels among the labels ranked at
        least as high, averaged over the sample's true labels and then over samples. It is 1 for a sample with no label
        or all labels.
    coverage : float
        Coverage error: number of top-ranked labels needed to include all true labels, averaged over samples.
    ranking_loss : float
        Fraction of (true label, other label) pairs in the wrong order, averaged over samples.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.metrics import ranking_scores
    >>> ranking_scores(np.array([[1, 0, 0]]), np.array([[0.5, 0.9, 0.1]])).lrap
    0.5
    """

    lrap: float
    coverage: float
    ranking_loss: float


@dataclass(frozen=True)
class TopScores:
    """Metrics of the k labels with the highest scores of every sample, averaged over samples.

    Attributes
    ----------
    precision : float
        P@k: fraction of the k labels that are true.
    recall : float
        R@k: fraction of the true labels that are among the k, averaged over samples with labels.
    f1 : float
        F1@k: 2 hits / (k + true labels), averaged over samples with labels.
    ndcg : float
        nDCG@k with 0/1 gains; labels with equal scores share the discounts of their ranks.
    psp : float
        Propensity-scored precision. A hit counts 1 / (probability that an annotator records the label), and the sum is
        divided by its maximum.
    top : int
        The number k.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.metrics import top_scores
    >>> top_scores(np.array([[1, 0, 1]]), np.array([[0.5, 0.9, 0.1]]), top=2).recall
    0.5
    """

    precision: float
    recall: float
    f1: float
    ndcg: float
    psp: float
    top: int


def ranking_scores(Y: Rows, S: Rows, sample_weight: ArrayLike | None = None) -> RankingScores:
    """Compute label ranking average precision, coverage error and ranking loss.

    They equal scikit-learn's `label_ranking_average_precision_score`, `coverage_error` and `label_ranking_loss`. Only
    true labels are ranked, by comparing each with its row. This needs n (labels per sample) L operations and no
    sorting.

    Parameters
    ----------
    Y : row source of shape (n, L)
        Labels, 0/1, dense or CSR. NaN marks an unknown label, which is ignored.
    S : row source of shape (n, L)
        Scores without NaN.
    sample_weight : array-like of shape (n,) or None, default=None
        Sample weights. None uses equal weights.

    Returns
    -------
    RankingScores
        The three metrics.

    Raises
    ------
    UserError
        If shapes differ, labels are not 0/1, or scores are NaN.

    References
    ----------
    Tsoumakas, Katakis, Vlahavas 2010, "Mining multi-label data", section 7.2.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.metrics import ranking_scores
    >>> Y, S = np.array([[1, 0, 0], [0, 1, 1]]), np.array([[0.9, 0.2, 0.1], [0.3, 0.6, 0.1]])
    >>> ranking_scores(Y, S)
    RankingScores(lrap=0.9166666666666666, coverage=2.0, ranking_loss=0.25)
    """
    n, L = shapes(Y, S, "scores")
    weights = counts_of(sample_weight, n)
    sums = np.zeros(3)
    for where, y, s, known in known_pairs("label ranking", Y, S, "scores"):
        count, total = y.sum(axis=1), L if known is None else known.sum(axis=1)
        sample, rank, above, _ = _places(y, _known_first(s, known), False)
        m = len(y)
        mixed = (count > 0) & (count < total)
        found = np.bincount(sample, above / rank, m) / np.maximum(count, 1)
        wrong = np.bincount(sample, rank - above, m) / np.maximum(count * (total - count), 1)
        deepest = np.zeros(m)
        np.maximum.at(deepest, sample, rank)
        sums += [
            added(own, weights, where) for own in (np.where(mixed, found, 1.0), deepest, np.where(mixed, wrong, 0.0))
        ]
    return RankingScores(*(sums / (n if weights is None else weights.sum())).tolist())


def top_scores(
    Y: Rows,
    S: Rows,
    top: int = 5,
    frequency: np.ndarray | None = None,
    n_train: float | None = None,
    sample_weight: ArrayLike | None = None,
) -> TopScores:
    """Compute precision, recall, F1, nDCG and propensity-scored precision of the k highest-scored labels.

    Ties favor the lower label index, as in `top_label_sets`. Only nDCG shares ranks among ties, like scikit-learn's
    `ndcg_score`.

    Parameters
    ----------
    Y : row source of shape (n, L)
        Labels, 0/1, dense or CSR. NaN marks an unknown label, which is ignored.
    S : row source of shape (n, L)
        Scores without NaN.
    top : int, default=5
        The number k, 1..L.
    frequency : ndarray of shape (L,), default=None
        Fraction of training samples with each label, for propensities. None uses the fractions in Y.
    n_train : float, default=None
        Number of training samples, for propensities. None uses n.
    sample_weight : array-like of shape (n,) or None, default=None
        Sample weights. None uses equal weights.

    Returns
    -------
    TopScores
        The five metrics.

    Raises
    ------
    UserError
        As `annotation_scores`.

    References
    ----------
    Jain, Prabhu, Varma 2016, "Extreme multi-label loss functions", section 5: A = 0.55, B = 1.5.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.metrics import top_scores
    >>> Y, S = np.array([[1, 0, 0], [0, 1, 1]]), np.array([[0.9, 0.2, 0.1], [0.3, 0.6, 0.1]])
    >>> found = top_scores(Y, S, top=2)
    >>> found.precision, found.recall, round(found.ndcg, 3)
    (0.5, 0.75, 0.807)
    """
    n, L = shapes(Y, S, "scores")
    top = whole("top", top, L, "labels")
    weights = counts_of(sample_weight, n)
    size = n if weights is None else float(weights.sum())
    if frequency is None:
        positives = np.zeros(L)
        for where, y, _, _ in known_pairs("counting labels", Y, S, "scores"):
            positives += added(y, weights, where)
        frequency = positives / size
    gain = inverse_propensities(np.asarray(frequency, float), size if n_train is None else n_train)
    discount = np.concatenate([[0.0], np.cumsum(1 / np.log2(np.arange(2, top + 2)))])
    sums, labeled, gained, best_gain = np.zeros(4), 0.0, 0.0, 0.0
    for where, y, s, known in known_pairs("best labels", Y, S, "scores"):
        s = _known_first(s, known)
        given, count = top_label_sets(s, top).astype(bool), y.sum(axis=1)
        hits = (y & given).sum(axis=1)
        sample, rank, _, tied = _places(y, s, True)
        share = (discount[np.minimum(rank, top)] - discount[np.minimum(rank - tied, top)]) / tied
        ideal = discount[np.minimum(count, top)]
        taken = top if known is None else np.clip(known.sum(axis=1), 1, top)
        some = np.maximum(count, 1)  # Avoid a zero divisor; a sample without labels has no hits.
        ndcg = np.bincount(sample, share, len(y)) / np.where(count > 0, ideal, 1.0)
        figures = np.stack([hits / taken, hits / some, 2 * hits / (some + taken), ndcg], axis=1)
        sums += added(figures, weights, where)
        labeled += float(added(count > 0, weights, where))
        own = np.where(y, gain, 0.0)
        gained += float(added(np.where(given, own, 0.0).sum(axis=1), weights, where))
        best_gain += float(added(-np.partition(-own, top - 1, axis=1)[:, :top].sum(axis=1), weights, where))
    if not labeled:
        raise UserError("top_scores: no label occurs in Y; pass samples with labels")
    psp = gained / best_gain if best_gain > 0 else 0.0
    return TopScores(
        float(sums[0] / size), float(sums[1] / labeled), float(sums[2] / labeled), float(sums[3] / size), psp, top
    )


def suitable_top(cardinality: float, n_labels: int) -> int:
    """Choose the number k of metrics at k from the mean number of labels per sample.

    Parameters
    ----------
    cardinality : float
        Mean number of labels per sample.
    n_labels : int
        Total number of labels.

    Returns
    -------
    int
        The cardinality rounded to an integer, or 5 if it is between 2.5 and 5, as is usual in papers on annotation. The
        number is at most half of the labels, unless the cardinality is higher, because the order of the labels is
        meaningless if nearly all are selected.

    Examples
    --------
    >>> from dmo.metrics import suitable_top
    >>> suitable_top(1.07, 6), suitable_top(3.4, 260), suitable_top(19.02, 983), suitable_top(4.2, 7)
    (1, 5, 19, 4)
    """
    wanted = 5 if 2.5 <= cardinality <= 5 else max(1, round(cardinality))
    return max(1, min(wanted, max(round(cardinality), n_labels // 2), n_labels))


def _known_first(s: np.ndarray, known: np.ndarray | None) -> np.ndarray:
    """Return scores with which unknown labels rank last."""
    return s if known is None else np.where(known, s, -np.inf)


def _places(y: np.ndarray, s: np.ndarray, ties: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return sample and rank (the last among ties) of every true label, and the number of true labels ranked as high.

    The last array counts labels with the same score; it is filled only with `ties`.
    """
    sample, label = np.nonzero(y)
    own = s[sample, label]
    rank, above, tied = np.empty((3, len(sample)), dtype=np.int64)
    size = max(1, _ENTRIES // s.shape[1])
    for start in range(0, len(sample), size):
        part = slice(start, start + size)
        rows = s[sample[part]]
        reached = rows >= own[part, None]
        rank[part] = np.count_nonzero(reached, axis=1)
        reached &= y[sample[part]]
        above[part] = np.count_nonzero(reached, axis=1)
        if ties:
            tied[part] = np.count_nonzero(rows == own[part, None], axis=1)
    return sample, rank, above, tied


def inverse_propensities(frequency: np.ndarray, n: float) -> np.ndarray:
    """Compute the inverse propensities of labels, which weight hits on labels that are often not annotated.

    Parameters
    ----------
    frequency : ndarray of shape (L,)
        Fraction of training samples with each label.
    n : float
        Number of training samples, or sum of their weights.

    Returns
    -------
    ndarray of shape (L,)
        1 / p_l = 1 + C (N_l + B)^-A with C = (log N - 1) (B + 1)^A, where p_l is the probability that a true label was
        annotated.

    References
    ----------
    Jain, Prabhu, Varma 2016, "Extreme multi-label loss functions", section 5: A = 0.55, B = 1.5.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.metrics import inverse_propensities
    >>> inverse_propensities(np.array([0.5, 0.01]), 1000).round(2).tolist()
    [1.32, 3.55]
    """
    A, B = 0.55, 1.5
    C = max(np.log(n) - 1, 0.0) * (B + 1) ** A
    return np.asarray(1 + C * (frequency * n + B) ** -A)


_BLOCK = 8192


@dataclass(frozen=True, eq=False)
class RegressionScores:
    """Errors of real-valued predictions, averaged over targets.

    Attributes
    ----------
    rmse, mae, r2 : float
        Root mean squared error, mean absolute error and coefficient of determination.
    arrmse : float
        Average relative root mean squared error: mean over targets of sqrt(squared error / squared error of the mean).
    per_target : ndarray of shape (4, L)
        RMSE, MAE, R2 and relative RMSE of every target.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.metrics import regression_scores
    >>> regression_scores(np.array([[1.0], [3.0]]), np.array([[1.0], [2.0]])).mae
    0.5
    """

    rmse: float
    mae: float
    r2: float
    arrmse: float
    per_target: np.ndarray


def regression_scores(
    Y: Rows, P: Rows, baseline: np.ndarray | None = None, sample_weight: ArrayLike | None = None
) -> RegressionScores:
    """Compute RMSE, MAE, R2 and aRRMSE of predictions, each averaged over the targets.

    RMSE, MAE and R2 equal scikit-learn's `root_mean_squared_error`, `mean_absolute_error` and `r2_score`. If a target
    is constant in Y, an exact prediction has R2 1 and relative RMSE 0; any other prediction has R2 0 and relative RMSE
    1.

    Parameters
    ----------
    Y : row source of shape (n, L)
        Targets. NaN marks an unknown value, which is ignored.
    P : row source of shape (n, L)
        Predictions without NaN.
    baseline : ndarray of shape (L,), default=None
        Training means as the baseline of aRRMSE. None uses the means of Y.
    sample_weight : array-like of shape (n,) or None, default=None
        Sample weights. None uses equal weights.

    Returns
    -------
    RegressionScores
        Means, and errors per target.

    Raises
    ------
    UserError
        If shapes differ, predictions are NaN, or a target has no known value.

    References
    ----------
    Spyromitros-Xioufis et al. 2016, "Multi-target regression via input space expansion", section 5.2 (aRRMSE).

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.metrics import regression_scores
    >>> found = regression_scores(np.array([[1.0], [2.0], [3.0]]), np.array([[1.0], [2.0], [2.0]]))
    >>> round(found.r2, 2), round(found.arrmse, 2)
    (0.5, 0.71)
    """
    n, L = shapes(Y, P, "predictions")
    weights = counts_of(sample_weight, n)
    known, total = np.zeros(L), np.zeros(L)
    for where, y, _ in _blocks(Y, P):
        known, total = known + added(~np.isnan(y), weights, where), total + added(np.nan_to_num(y), weights, where)
    if not known.all():
        raise UserError(f"target {int(np.argmin(known))} has no known value; remove this target")
    mean = total / known
    center = mean if baseline is None else np.asarray(baseline, float)
    squared, absolute, around, variance = np.zeros((4, L))
    for where, y, p in _blocks(Y, P):
        error, far, spread = (np.where(np.isnan(y), 0.0, y - other) for other in (p, center, mean))
        squared, absolute = squared + added(error**2, weights, where), absolute + added(np.abs(error), weights, where)
        around, variance = around + added(far**2, weights, where), variance + added(spread**2, weights, where)
    perfect = (squared == 0).astype(float)
    r2 = np.where(variance > 0, 1 - squared / np.where(variance > 0, variance, 1.0), perfect)
    relative = np.where(around > 0, np.sqrt(squared / np.where(around > 0, around, 1.0)), 1 - perfect)
    per_target = np.stack([np.sqrt(squared / known), absolute / known, r2, relative])
    rmse, mae, mean_r2, arrmse = (float(figure.mean()) for figure in per_target)
    return RegressionScores(rmse, mae, mean_r2, arrmse, per_target)


def _blocks(Y: Rows, P: Rows) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    for where in row_blocks(Y.shape[0], _BLOCK):
        y = np.asarray(dense(rows(Y, where), "targets"), np.float64)
        yield where, y, numbers(rows(P, where), "predictions", where)
