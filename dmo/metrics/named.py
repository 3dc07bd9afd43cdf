"""Metrics by name, of label scores: what sweeps maximize."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from sklearn.metrics import roc_auc_score

from dmo.errors import UserError
from dmo.metrics.annotation import (
    annotation_scores,
    auc_macro,
    auc_micro,
    f1_macro,
    f1_micro,
    jaccard_accuracy,
    top_label_sets,
)
from dmo.metrics.label_sets import set_scores
from dmo.metrics.ranking import ranking_scores, top_scores
from dmo.metrics.regression import regression_scores

Metric = Callable[[np.ndarray, np.ndarray], float]
"""(labels of shape (n, L), scores of shape (n, L)) -> a number to maximize."""


def _lrap(Y: np.ndarray, S: np.ndarray) -> float:
    return ranking_scores(Y, S).lrap


def _ranking(Y: np.ndarray, S: np.ndarray) -> float:
    mixed = (Y == 1).any(axis=0) & (Y == 0).any(axis=0)
    return (ranking_scores(Y, S).lrap + (auc_macro(Y[:, mixed], S[:, mixed]) if mixed.any() else 1.0)) / 2


def rated(Y: np.ndarray, S: np.ndarray, multilabel: bool, weights: np.ndarray | None = None) -> float:
    """Rate label scores by what suits the labels: "ranking", "auc-macro" of one label, "accuracy" of classes.

    Parameters
    ----------
    Y : ndarray of shape (n, L)
        Labels, 0/1; NaN is a label that is not known.
    S : ndarray of shape (n, L)
        Scores.
    multilabel : bool
        False for classes.
    weights : ndarray of shape (n,) or None, default=None
        How often every sample counts; None: once.

    Returns
    -------
    float
        From 0 to 1.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.metrics import rated
    >>> rated(np.eye(2), np.array([[0.9, 0.1], [0.8, 0.2]]), False, np.array([3.0, 1.0]))
    0.75
    """
    if not multilabel:
        return float(np.average(Y[np.arange(len(Y)), S.argmax(axis=1)], weights=weights))
    if weights is None:
        truth = Y if np.isnan(Y).any() else Y.astype(np.uint8)
        return auc_macro(truth, S) if Y.shape[1] == 1 else _ranking(truth, S)
    used = weights > 0
    Y, S, weights = Y[used], S[used], weights[used]
    areas = []
    for y, s in zip(Y.T, S.T, strict=True):
        known = ~np.isnan(y)
        if len(np.unique(y[known])) == 2:
            areas.append(roc_auc_score(y[known], s[known], sample_weight=weights[known]))
    area = float(np.mean(areas)) if areas else 1.0
    return area if Y.shape[1] == 1 else (ranking_scores(Y, S, weights).lrap + area) / 2


def _accuracy(Y: np.ndarray, S: np.ndarray) -> float:
    return float(np.nanmean(Y[np.arange(len(Y)), S.argmax(axis=1)]))


def _f1_samples(Y: np.ndarray, P: np.ndarray) -> float:
    return set_scores(Y, P).f1_samples


OF_SCORES: dict[str, Metric] = {"auc-macro": auc_macro, "auc-micro": auc_micro, "lrap": _lrap}
OF_SCORES |= {"ranking": _ranking, "accuracy": _accuracy}
OF_SAMPLES = {"p": "precision", "r": "recall", "ndcg": "ndcg", "psp": "psp"}
"""Fields of `TopScores`."""
OF_LABEL_SETS: dict[str, Metric] = {"f1-macro": f1_macro, "f1-micro": f1_micro, "jaccard": jaccard_accuracy}
OF_LABEL_SETS |= {"f1-samples": _f1_samples}
"""Of label sets: with @k of those that the top scores set, else of the labels whose scores are above 0."""
OF_ANNOTATIONS = {"f1": "f1", "precision": "precision", "recall": "recall", "n+": "n_plus"}
"""Fields of `AnnotationScores`."""


ERRORS = ("rmse", "mae", "arrmse")
"""Fields of `RegressionScores` that are better the smaller they are."""


def metric_of(name: str | Metric) -> Metric:
    """Look up a score to maximize by its name.

    Parameters
    ----------
    name : str or callable
        "f1@5" (any number), "precision@5", "recall@5", "n+@5", "f1-macro@5", "f1-micro@5", "f1-samples@5", "jaccard@5" (of
        the labels that the top scores set), the last four without @ (of the labels whose scores are above 0, as
        `PlugIn("f1-macro")` makes them), "auc-macro", "auc-micro", "lrap", "p@5", "r@5", "ndcg@5", "psp@5" (means over
        samples), "accuracy" (of the best class), "ranking" (mean of "lrap" and "auc-macro": the labels of a sample, and
        the samples of a label); of real outputs "r2", and "rmse", "mae", "arrmse", which count as negative; or a
        function (Y, scores), which is returned.

    Returns
    -------
    callable
        (Y of shape (n, L), scores of shape (n, L)) -> float.

    Raises
    ------
    UserError
        For an unknown name.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.metrics import metric_of
    >>> Y = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]])
    >>> metric_of("f1@1")(Y, Y + 0.5)
    1.0
    """
    if callable(name):
        return name
    base, _, at = name.partition("@")
    if base in OF_SCORES and not at:
        return OF_SCORES[base]
    if (base in ERRORS or base == "r2") and not at:
        sign = -1.0 if base in ERRORS else 1.0
        return lambda Y, S: sign * float(getattr(regression_scores(Y, S), base))
    if name in OF_LABEL_SETS:
        return lambda Y, S: float(OF_LABEL_SETS[base](Y, (S > 0).astype(np.uint8)))
    top = int(at) if at.isdigit() else 0
    if top and base in OF_ANNOTATIONS:
        return lambda Y, S: float(getattr(annotation_scores(Y, S, top), OF_ANNOTATIONS[base]))
    if top and base in OF_LABEL_SETS:
        return lambda Y, S: float(OF_LABEL_SETS[base](Y, top_label_sets(S, top)))
    if top and base in OF_SAMPLES:
        return lambda Y, S: float(getattr(top_scores(Y, S, top), OF_SAMPLES[base]))
    of_top = [f"{key}@5" for key in (*OF_ANNOTATIONS, *OF_LABEL_SETS, *OF_SAMPLES)]
    known = ", ".join([*of_top, *OF_SCORES, *OF_LABEL_SETS, "r2", *ERRORS])
    raise UserError(f"unknown metric {name!r}; known: {known}")
