"""Rankings and predictions: LRAP, coverage, ranking loss; precision, recall, nDCG and PSP at k; errors of real targets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dmo.blocks import Rows, row_blocks, rows
from dmo.errors import UserError
from dmo.metrics.annotation import top_label_sets
from dmo.metrics.checked_blocks import added, counts_of, dense, known_pairs, numbers, shapes, whole

_ENTRIES = 2**15  # scores that are compared at a time: they stay in the cache


@dataclass(frozen=True)
class RankingScores:
    """How well scores rank the labels of every sample; a label counts as if it came last of those with its score.

    Attributes
    ----------
    lrap : float
        Label ranking average precision: of every true label the share of true ones among the labels that rank as high,
        averaged over the sample's true labels, then over samples; 1 for a sample with no label, or all.
    coverage : float
        Labels of the ranking that must be taken to have all true ones, averaged over samples (coverage error).
    ranking_loss : float
        Share of the pairs (true label, other label) in the wrong order, averaged over samples.

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
    """How good the k labels of highest score of every sample are, averaged over samples.

    Attributes
    ----------
    precision : float
        P@k: share of true labels among the k.
    recall : float
        R@k: share of the true labels that are among the k, over the samples that have labels.
    f1 : float
        F1@k: 2 hits / (k + true labels) over the samples that have labels.
    ndcg : float
        nDCG@k of 0/1 gains, where labels of one score share their places.
    psp : float
        Propensity-scored precision: a hit counts 1 / (probability that the label would have been noted), as a share of
        the most that could be had.
    top : int
        The k.

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
    """Label ranking average precision, coverage error and ranking loss.

    They are scikit-learn's `label_ranking_average_precision_score`, `coverage_error` and `label_ranking_loss`. Only true
    labels are ranked, each by one comparison with its row: n (labels per sample) L operations, and no sort.

    Parameters
    ----------
    Y : row source of shape (n, L)
        Labels, 0/1, dense or CSR; NaN is a label that is not known, which counts for nothing.
    S : row source of shape (n, L)
        Scores without NaN.
    sample_weight : array-like of shape (n,) or None, default=None
        How often every sample counts; None: once.

    Returns
    -------
    RankingScores
        The three figures.

    Raises
    ------
    UserError
        For shapes that differ, labels that are not 0/1, and NaN scores.

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
    """Precision, recall, F1, nDCG and propensity-scored precision of the k labels of highest score.

    Ties go to the lower label, as in `top_label_sets`; only nDCG shares their places, as scikit-learn's `ndcg_score` does.

    Parameters
    ----------
    Y : row source of shape (n, L)
        Labels, 0/1, dense or CSR; NaN is a label that is not known, which counts for nothing.
    S : row source of shape (n, L)
        Scores without NaN.
    top : int, default=5
        The k, 1..L.
    frequency : ndarray of shape (L,), default=None
        Share of the training samples that carry each label, for propensities; None: of Y.
    n_train : float, default=None
        Number of training samples, for propensities; None: n.
    sample_weight : array-like of shape (n,) or None, default=None
        How often every sample counts; None: once.

    Returns
    -------
    TopScores
        The five figures.

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
        some = np.maximum(count, 1)  # without a label there are no hits
        ndcg = np.bincount(sample, share, len(y)) / np.where(count > 0, ideal, 1.0)
        figures = np.stack([hits / taken, hits / some, 2 * hits / (some + taken), ndcg], axis=1)
        sums += added(figures, weights, where)
        labeled += float(added(count > 0, weights, where))
        own = np.where(y, gain, 0.0)
        gained += float(added(np.where(given, own, 0.0).sum(axis=1), weights, where))
        best_gain += float(added(-np.partition(-own, top - 1, axis=1)[:, :top].sum(axis=1), weights, where))
    if not labeled:
        raise UserError("top_scores: no label occurs in Y, so nothing can be scored; pass samples with labels")
    psp = gained / best_gain if best_gain > 0 else 0.0
    return TopScores(
        float(sums[0] / size), float(sums[1] / labeled), float(sums[2] / labeled), float(sums[3] / size), psp, top
    )


def suitable_top(cardinality: float, n_labels: int) -> int:
    """Choose the number of labels that figures at k take, by how many a sample has.

    Parameters
    ----------
    cardinality : float
        Labels per sample, on average.
    n_labels : int
        Labels that there are.

    Returns
    -------
    int
        The cardinality as a whole number; 5 where it is between 2.5 and 5, as papers on annotation take it; at most half
        of the labels, since the order of the labels means nothing where nearly all are taken.

    Examples
    --------
    >>> from dmo.metrics import suitable_top
    >>> suitable_top(1.07, 6), suitable_top(3.4, 260), suitable_top(19.02, 983), suitable_top(4.2, 7)
    (1, 5, 19, 4)
    """
    wanted = 5 if 2.5 <= cardinality <= 5 else max(1, round(cardinality))
    return max(1, min(wanted, max(round(cardinality), n_labels // 2), n_labels))


def _known_first(s: np.ndarray, known: np.ndarray | None) -> np.ndarray:
    """Scores by which labels that are not known come after all others."""
    return s if known is None else np.where(known, s, -np.inf)


def _places(y: np.ndarray, s: np.ndarray, ties: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of every true label of a block: its sample, its rank (ties: the last of them), how many true labels rank as high,
    and where `ties` are asked for how many labels have its score."""
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
    """Work out how much more a hit counts for a label that is often left out.

    Parameters
    ----------
    frequency : ndarray of shape (L,)
        Share of the training samples that carry each label.
    n : float
        Training samples, by their weights.

    Returns
    -------
    ndarray of shape (L,)
        1 / p_l = 1 + C (N_l + B)^-A with C = (log N - 1) (B + 1)^A: p_l is the probability that a true label was noted.

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
    """How good predictions of real-valued targets are: means over the targets.

    Attributes
    ----------
    rmse, mae, r2 : float
        Root mean squared error, mean absolute error, coefficient of determination.
    arrmse : float
        Average relative root mean squared error: of every target sqrt(squared error / squared error of the mean), averaged.
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
    """RMSE, MAE, R2 and aRRMSE of predictions, each averaged over the targets.

    RMSE, MAE and R2 are scikit-learn's `root_mean_squared_error`, `mean_absolute_error` and `r2_score`. A target that is
    constant in Y has R2 and relative RMSE of a perfect prediction where it is met exactly, else R2 0 and relative RMSE 1.

    Parameters
    ----------
    Y : row source of shape (n, L)
        Targets; NaN is one that is not known, which counts for nothing.
    P : row source of shape (n, L)
        Predictions.
    baseline : ndarray of shape (L,), default=None
        Training means, which aRRMSE compares with; None: the means of Y.
    sample_weight : array-like of shape (n,) or None, default=None
        How often every sample counts; None: once.

    Returns
    -------
    RegressionScores
        The means, and the figures per target.

    Raises
    ------
    UserError
        For shapes that differ, and for predictions that are NaN.

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
        raise UserError(f"no sample has a value of target {int(np.argmin(known))}; leave the target out")
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
