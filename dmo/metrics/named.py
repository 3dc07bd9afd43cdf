"""Metrics of label scores by name, for tuning and evaluation."""

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
"""Function of labels (n, L), scores (n, L) and optional sample weights that returns a number to maximize."""


def _lrap(Y: np.ndarray, S: np.ndarray, sample_weight: np.ndarray | None = None) -> float:
    return ranking_scores(Y, S, sample_weight).lrap


def _ranking(Y: np.ndarray, S: np.ndarray, sample_weight: np.ndarray | None = None) -> float:
    used = slice(None) if sample_weight is None else sample_weight > 0
    mixed = (Y[used] == 1).any(axis=0) & (Y[used] == 0).any(axis=0)
    some = slice(None) if mixed.all() else mixed  # a copy only if some label has no area
    area = auc_macro(Y[:, some], S[:, some], sample_weight) if mixed.any() else 1.0
    return (ranking_scores(Y, S, sample_weight).lrap + area) / 2


def rated(Y: np.ndarray, S: np.ndarray, multilabel: bool, weights: np.ndarray | None = None) -> float:
    """Compute the default metric of label scores.

    The metric is "ranking" for several labels, "auc-macro" for one label, and "accuracy" for classes.

    Parameters
    ----------
    Y : ndarray of shape (n, L)
        Labels, 0/1. NaN marks an unknown label.
    S : ndarray of shape (n, L)
        Label scores.
    multilabel : bool
        False for a multiclass target.
    weights : ndarray of shape (n,) or None, default=None
        Sample weights. None uses equal weights.

    Returns
    -------
    float
        Value of the metric, 0..1.

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
"""Attributes of `TopScores`."""
OF_LABEL_SETS: dict[str, Metric] = {"f1-macro": f1_macro, "f1-micro": f1_micro, "jaccard": jaccard_accuracy}
OF_LABEL_SETS |= {"f1-samples": _f1_samples}
"""Metrics of label sets. With @k, the sets are the k labels with the highest scores, otherwise the labels with scores
above 0."""
OF_ANNOTATIONS = {"f1": "f1", "precision": "precision", "recall": "recall", "n+": "n_plus"}
"""Attributes of `AnnotationScores`."""


ERRORS = ("rmse", "mae", "arrmse")
"""Attributes of `RegressionScores` for which smaller is better."""


def metric_of(name: str | Metric) -> Metric:
    """Return the metric to maximize with a given name.

    Parameters
    ----------
    name : str or callable
        One of the following names, in which 5 stands for any number, or a function (Y, scores), which is returned:

        - Labels with the highest scores, averaged over labels: "f1@5", "precision@5", "recall@5", "n+@5".
        - Label sets of the highest scores: "f1-macro@5", "f1-micro@5", "f1-samples@5", "jaccard@5". Without @, the sets
          contain the labels with scores above 0, as predicted by `PlugIn("f1-macro")`.
        - Labels with the highest scores, averaged over samples: "p@5", "r@5", "ndcg@5", "psp@5".
        - Label scores: "auc-macro", "auc-micro", "lrap", and "ranking", the mean of "lrap" and "auc-macro", which ranks
          the labels of a sample and the samples of a label.
        - Multiclass targets: "accuracy" of the class with the highest score.
        - Regression targets: "r2", and "rmse", "mae" and "arrmse" with a negative sign.

    Returns
    -------
    callable
        Function (Y of shape (n, L), scores of shape (n, L), sample_weight of shape (n,) or None) -> float.

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
    raise UserError(f"unknown metric {name!r}; known: {known}")
