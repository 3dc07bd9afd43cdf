"""Scores of training samples by fits that have not seen them, for estimators without a closed form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.base import clone

from dmo.blocks import Rows, Subset
from dmo.engines.lowrank import FOLDS
from dmo.estimators.label_gaps import LabelGaps
from dmo.labels.stratification import stratified_folds
from dmo.progress import stage
from dmo.validation.weights import LABEL_WEIGHTS


def out_of_fold_scores(
    estimator: Any, views: Mapping[str, Rows], Y: np.ndarray, folds: int = FOLDS, gaps: LabelGaps | None = None
) -> np.ndarray:
    """Raw label scores (n x L) of every sample by the fit on the other folds; labels they never carry score 0.

    Arguments: `estimator`, cloned without its decoder for each of the `folds` (every label has its share in them);
    `views` of n rows, prepared where the estimator prepares them; `Y` n x L of 0/1; `gaps`: weights of samples and
    unknown labels. Samples without any weight score 0.
    """
    if gaps is not None and not gaps.any_weight.all():
        index, scores = np.flatnonzero(gaps.any_weight), np.zeros(Y.shape)
        some = {name: Subset(source, index) for name, source in views.items()}
        scores[index] = out_of_fold_scores(estimator, some, Y[index], folds, gaps.rows(index))
        return scores
    n = len(Y)
    bare = {"decoder": None, "scale": "none", "impute": None}
    bare = {name: value for name, value in bare.items() if name in estimator.get_params(deep=False)}
    fold = stratified_folds(Y, min(folds, n))
    scores = np.zeros(Y.shape)
    with stage("out-of-fold scores", int(fold.max()) + 1) as advance:
        for number in range(int(fold.max()) + 1):
            train, test = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
            model = clone(estimator).set_params(**bare)
            old = {name: Subset(source, train) for name, source in views.items()}
            if gaps is None:
                model.fit(old, Y[train])
            else:  # raw scores are the same without held-out statistics
                model.set_params(standardize=0.0)
                part = gaps.rows(train)
                known = Y[train] if part.known is None else np.where(part.known, Y[train], np.nan)
                model.fit(old, known, sample_weight=part.weights.views | {LABEL_WEIGHTS: part.weights.labels})
            scores[test] = model._raw_scores({name: Subset(source, test) for name, source in views.items()})
            advance(1)
    return scores
