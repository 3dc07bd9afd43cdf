"""Metrics that are selected by name, for hyperparameter search and evaluation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dmo.errors import UserError
from dmo.metrics.annotation import (
    annotation_scores,
    auc_macro,
    auc_micro,
    f1_macro,
    f1_micro,
    jaccard_accuracy,
    set_scores,
    top_label_sets,
)
from dmo.metrics.ranking import ranking_scores, regression_scores, top_scores

Metric = Callable[..., float]
"""Function of true labels, label scores and optional sample weights that returns a number to maximize."""


def _lrap(Y: np.ndarray, S: np.ndarray, sample_weight: np.ndarray | None = None) -> float:
    return ranking_scores(Y, S, sample_weight).lrap


def _ranking(Y: np.ndarray, S: np.ndarray, sample_weight: np.ndarray | None = None) -> float:
    used = slice(None) if sample_weight is None else sample_weight > 0
    mixed = (Y[used] == 1).any(axis=0) & (Y[used] == 0).any(axis=0)
    some = slice(None) if mixed.all() else mixed  # Copy only if the AUC of some label is undefined.
    area = auc_macro(Y[:, some], S[:, some], sample_weight) if mixed.any() else 1.0
    return (ranking_scores(Y, S, sample_weight).lrap + area) / 2


def rated(Y: np.ndarray, S: np.ndarray, multilabel: bool, weights: np.ndarray | None = None) -> float:
    """Compute the default metric of label scores.

    The default metric is "ranking" for several labels, "auc-macro" for a single label, and "accuracy" for multiclass
    targets.

    Parameters
    ----------
    Y : ndarray of shape (n, L)
        True labels, 0 or 1. Missing labels are NaN.
    S : ndarray of shape (n, L)
        Label scores.
    multilabel : bool
        Whether Y contains independent labels. False means a multiclass target.
    weights : ndarray of shape (n,) or None, default=None
        Sample weights.

    Returns
    -------
    float
        Value of the metric, from 0 to 1.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.metrics import rated
    >>> rated(np.eye(2), np.array([[0.9, 0.1], [0.8, 0.2]]), False, np.array([3.0, 1.0]))
    0.75
    """
    if not multilabel:
        return _accuracy(Y, S, weights)
    truth = Y if np.isnan(Y).any() else Y.astype(np.uint8)
    return auc_macro(truth, S, weights) if Y.shape[1] == 1 else _ranking(truth, S, weights)


def _accuracy(Y: np.ndarray, S: np.ndarray, sample_weight: np.ndarray | None = None) -> float:
    right = Y[np.arange(len(Y)), S.argmax(axis=1)]
    known = ~np.isnan(right)
    return float(np.average(right[known], weights=None if sample_weight is None else sample_weight[known]))


def _f1_samples(Y: np.ndarray, P: np.ndarray, sample_weight: np.ndarray | None = None) -> float:
    return set_scores(Y, P, sample_weight).f1_samples


OF_SCORES: dict[str, Metric] = {"auc-macro": auc_macro, "auc-micro": auc_micro, "lrap": _lrap}
OF_SCORES |= {"ranking": _ranking, "accuracy": _accuracy}
OF_SAMPLES = {"p": "precision", "r": "recall", "ndcg": "ndcg", "psp": "psp"}
"""Attributes of `TopScores`, by the name of the metric at k."""
OF_LABEL_SETS: dict[str, Metric] = {"f1-macro": f1_macro, "f1-micro": f1_micro, "jaccard": jaccard_accuracy}
OF_LABEL_SETS |= {"f1-samples": _f1_samples}
"""Metrics of label sets. With @k, a label set contains the k labels with the highest scores. Without @k, a label set
contains the labels with scores above 0."""
OF_ANNOTATIONS = {"f1": "f1", "precision": "precision", "recall": "recall", "n+": "n_plus"}
"""Attributes of `AnnotationScores`, by the name of the metric at k."""


ERRORS = ("rmse", "mae", "arrmse")
"""Attributes of `RegressionScores` that are errors, so that smaller values are better."""


def metric_of(name: str | Metric) -> Metric:
    """Return a metric by name, as a function whose value is to be maximized.

    Parameters
    ----------
    name : str or callable
        One of the following names, in which 5 stands for any number k. A function is returned unchanged.

        - Metrics of the k labels with the highest scores, averaged over labels: "f1@5", "precision@5", "recall@5" and
          "n+@5".
        - Metrics of the k labels with the highest scores, averaged over samples: "p@5", "r@5", "ndcg@5" and "psp@5".
        - Metrics of label sets with the k highest scores: "f1-macro@5", "f1-micro@5", "f1-samples@5" and "jaccard@5".
          Without @5, the label sets contain the labels with scores above 0, as predicted by `PlugIn("f1-macro")`.
        - Metrics of label scores: "auc-macro", "auc-micro", "lrap", and "ranking", the mean of "lrap" and "auc-macro".
          "lrap" compares the labels of a sample, and "auc-macro" compares the samples of a label.
        - Metric of multiclass targets: "accuracy" of the class with the highest score.
        - Metrics of regression targets: "r2", and "rmse", "mae" and "arrmse" with a negative sign.

    Returns
    -------
    callable
        Function of the true labels, the label scores and optional sample weights, which returns a float.

    Raises
    ------
    UserError
        If the name is unknown.

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
        return lambda Y, S, w=None: sign * float(getattr(regression_scores(Y, S, None, w), base))
    if name in OF_LABEL_SETS:
        return lambda Y, S, w=None: float(OF_LABEL_SETS[base](Y, (S > 0).astype(np.uint8), w))
    top = int(at) if at.isdigit() else 0
    if top and base in OF_ANNOTATIONS:
        return lambda Y, S, w=None: float(getattr(annotation_scores(Y, S, top, w), OF_ANNOTATIONS[base]))
    if top and base in OF_LABEL_SETS:
        return lambda Y, S, w=None: float(OF_LABEL_SETS[base](Y, top_label_sets(S, top), w))
    if top and base in OF_SAMPLES:
        return lambda Y, S, w=None: float(getattr(top_scores(Y, S, top, sample_weight=w), OF_SAMPLES[base]))
    of_top = [f"{key}@5" for key in (*OF_ANNOTATIONS, *OF_LABEL_SETS, *OF_SAMPLES)]
    known = ", ".join([*of_top, *OF_SCORES, *OF_LABEL_SETS, "r2", *ERRORS])
    raise UserError(f"metric {name!r} is unknown; known: {known}")
