"""The protocols of the MORP and MLSI papers: their parameters, splits and support vector machines.

Both project with 70 % (or so) of the categories and classify them (setting I), then the other categories on samples that
the projection has not seen (setting II), by LIBSVM with a linear kernel on the coordinates, one machine per category. A
category that one side lacks is not counted there. The printed results are figures without numbers, so that claims are
compared. Source: Yu, Yu, Tresp 2005, section 4; Yu, Yu, Tresp 2005 (SIGIR), section 4.
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
"""Rows that a machine learns from, and those that it is judged on."""


@dataclass(frozen=True)
class Trial:
    """`learn`: rows of the projection, with the categories `known`; pairs of both settings, whose scores are averaged."""

    learn: np.ndarray
    known: np.ndarray
    new: np.ndarray
    pairs: Mapping[str, Sequence[Pair]]


Machine = Callable[[Any, np.ndarray, Any], np.ndarray]
"""(rows, two classes, new rows) -> scores of the new rows."""


def svm(kernel: str, cost: float) -> Machine:
    """A support vector machine; where all samples are of one class, scores are 0."""

    def scores(Z: Any, y: np.ndarray, Z_new: Any) -> np.ndarray:
        if len(np.unique(y)) < 2:
            return np.zeros(Z_new.shape[0])
        return np.asarray(SVC(kernel=kernel, C=cost).fit(Z, y).decision_function(Z_new))

    return scores


def images(Y: np.ndarray, seed: int, labeled: int, known: int) -> Trial:
    """[MORP] 25 of 35 categories and 500 of 1021 images; setting II: five folds of the other images, one of them to learn."""
    rng = np.random.default_rng(seed)
    order, labels = rng.permutation(len(Y)), rng.permutation(Y.shape[1])
    learn, rest = order[:labeled], order[labeled:]
    folds = [np.sort(rest[start::5]) for start in range(5)]
    second = [(fold, np.setdiff1d(rest, fold)) for fold in folds]
    return Trial(np.sort(learn), labels[:known], labels[known:], {"I": [(learn, rest)], "II": second})


def documents(Y: np.ndarray, seed: int) -> Iterator[Trial]:
    """[MLSI] 70 % of the categories; each fifth of the documents learns once, the others are judged; setting II: another
    fifth, which the projection has not seen, learns the other categories, the rest are judged."""
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
    """Scores of every projection, setting and dimension, and of the rows as they are."""
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
    """AUC and F1 of a linear machine per column of Y, on rows scaled to a mean squared length of 1."""
    learn, judged = pair
    length = float(np.sqrt(np.mean(np.asarray((Z[learn] * Z[learn]).sum(axis=1))))) or 1.0
    Z_learn, Z_judged = Z[learn] / length, Z[judged] / length
    counted = [c for c in range(Y.shape[1]) if all(0 < Y[rows, c].sum() < len(rows) for rows in pair)]
    machine = svm("linear", cost)
    scores = np.column_stack([machine(Z_learn, Y[learn, c], Z_judged) for c in counted])
    truth = Y[np.ix_(judged, counted)]
    f1, auc = f1_scores(truth, (scores > 0).astype(np.uint8)), auc_scores(truth, scores)
    return {"auc_macro": auc.macro, "f1_macro": f1.macro, "f1_micro": f1.micro}
