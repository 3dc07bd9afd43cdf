"""Scores of training samples by fits that have not seen them, for estimators without a closed form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.base import clone

from dmo.blocks import Rows, Subset
from dmo.engines.lowrank import FOLDS
from dmo.labels.stratification import stratified_folds
from dmo.progress import stage


def out_of_fold_scores(estimator: Any, views: Mapping[str, Rows], Y: np.ndarray, folds: int = FOLDS) -> np.ndarray:
    """Raw label scores (n x L) of every sample by the fit on the other folds; labels they never carry score 0.

    Arguments: `estimator`, cloned without its decoder for each of the `folds` (every label has its share in them);
    `views` of n rows; `Y` n x L of 0/1.
    """
    n = len(Y)
    fold = stratified_folds(Y, min(folds, n))
    scores = np.zeros(Y.shape)
    with stage("out-of-fold scores", int(fold.max()) + 1) as advance:
        for number in range(int(fold.max()) + 1):
            train, test = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
            model = clone(estimator).set_params(decoder=None)
            model.fit({name: Subset(source, train) for name, source in views.items()}, Y[train])
            scores[test] = model._raw_scores({name: Subset(source, test) for name, source in views.items()})
            advance(1)
    return scores
