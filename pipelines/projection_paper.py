"""The protocols of the MORP and MLSI papers: their parameters, splits and support vector machines.

The projection learns from about 70 % of the categories. Setting I classifies these categories; setting II classifies
the other categories on samples that were not used for the projection. The classifiers are LIBSVM machines with a linear
kernel on the coordinates, one per category. A category that is missing from the training or test samples, or that all
of them have, is skipped. The papers print figures without numbers, so only their claims are compared.
Source: Yu, Yu, Tresp 2005, section 4; Yu, Yu, Tresp 2005 (SIGIR), section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from projection_protocol import METRICS, ORIGINAL, Learner, Row
from sklearn.svm import SVC

from dmo.metrics import auc_scores, f1_scores

Pair = tuple[np.ndarray, np.ndarray]
"""Training rows and test rows of a classifier."""


@dataclass(frozen=True)
class Trial:
    """Rows `learn` and categories `known` of a projection, and row pairs of both settings, whose scores are
    averaged."""

    learn: np.ndarray
    known: np.ndarray
    new: np.ndarray
    pairs: Mapping[str, Sequence[Pair]]


Machine = Callable[[Any, np.ndarray, Any], np.ndarray]
"""Function of rows, a binary target and new rows that returns the scores of the new rows."""


def svm(kernel: str, cost: float) -> Machine:
    """Create a support vector machine that returns zero scores if all samples have the same class."""

    def scores(Z: Any, y: np.ndarray, Z_new: Any) -> np.ndarray:
        if len(np.unique(y)) < 2:
            return np.zeros(Z_new.shape[0])
        return np.asarray(SVC(kernel=kernel, C=cost).fit(Z, y).decision_function(Z_new))

    return scores


def images(Y: np.ndarray, seed: int, labeled: int, known: int) -> Trial:
    """[MORP] Draw 25 of 35 categories and 500 of 1021 images; setting II trains on each of five folds of the other
    images."""
    rng = np.random.default_rng(seed)
    order, labels = rng.permutation(len(Y)), rng.permutation(Y.shape[1])
    learn, rest = order[:labeled], order[labeled:]
    folds = [np.sort(rest[start::5]) for start in range(5)]
    second = [(fold, np.setdiff1d(rest, fold)) for fold in folds]
    return Trial(np.sort(learn), labels[:known], labels[known:], {"I": [(learn, rest)], "II": second})


def documents(Y: np.ndarray, seed: int) -> Iterator[Trial]:
    """[MLSI] Draw 70 % of the categories; each fifth of the documents is the training set once. In setting II, another
    fifth, unused by the projection, is the training set for the other categories. The rest are test documents."""
    rng = np.random.default_rng(seed)
    order, labels = rng.permutation(len(Y)), rng.permutation(Y.shape[1])
    folds, first = [np.sort(order[start::5]) for start in range(5)], round(0.7 * Y.shape[1])
    for number, learn in enumerate(folds):
        rest, unseen = np.setdiff1d(order, learn), folds[(number + 1) % 5]
        pairs = {"I": [(learn, rest)], "II": [(unseen, np.setdiff1d(rest, unseen))]}
        yield Trial(learn, labels[:first], labels[first:], pairs)


def run_trial(
    X: Any, Y: np.ndarray, trial: Trial, learners: Mapping[str, Learner], dimensions: Sequence[int], cost: float
) -> list[Row]:
    """Score every projection, setting and dimension, and the original rows."""
    found: list[Row] = []
    for name, learner in learners.items():
        model = learner(X[trial.learn], Y[np.ix_(trial.learn, trial.known)])
        Z = np.asarray(model.transform(X))
        for k in dimensions:
            if k <= Z.shape[1]:
                found += _settings(name, k, Z[:, :k], Y, trial, cost)
    return found + _settings(ORIGINAL, X.shape[1], X, Y, trial, cost)


def _settings(name: str, dimension: int, Z: Any, Y: np.ndarray, trial: Trial, cost: float) -> list[Row]:
    rows = []
    for setting, labels in (("I", trial.known), ("II", trial.new)):
        scores = [machines(Z, Y[:, labels], pair, cost) for pair in trial.pairs[setting]]
        means = {metric: float(np.mean([score[metric] for score in scores])) for metric in METRICS}
        rows.append({"method": name, "setting": setting, "dimension": dimension, **means})
    return rows


def machines(Z: Any, Y: np.ndarray, pair: Pair, cost: float) -> Row:
    """Compute AUC and F1 of one linear SVM per column of Y, on rows scaled to a mean squared length of 1."""
    learn, judged = pair
    length = float(np.sqrt(np.mean(np.asarray((Z[learn] * Z[learn]).sum(axis=1))))) or 1.0
    Z_learn, Z_judged = Z[learn] / length, Z[judged] / length
    counted = [c for c in range(Y.shape[1]) if all(0 < Y[rows, c].sum() < len(rows) for rows in pair)]
    machine = svm("linear", cost)
    scores = np.column_stack([machine(Z_learn, Y[learn, c], Z_judged) for c in counted])
    truth = Y[np.ix_(judged, counted)]
    f1, auc = f1_scores(truth, (scores > 0).astype(np.uint8)), auc_scores(truth, scores)
    return {"auc_macro": auc.macro, "f1_macro": f1.macro, "f1_micro": f1.micro}
