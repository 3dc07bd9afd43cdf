"""Unknown labels of samples that an embedding places: what a regression of each label on its own known samples predicts.

The space of KGHA, MORP and MLSI sees all labels of a sample at once, so that single unknown ones need a value. The exact
regression of a label on its known samples is the fixed point of filling its unknown entries with the regression's own
predictions and fitting again. Going on in the same way with the embedding's predictions made new samples worse: MORP on
half of yeast with 70 % of the labels hidden had a macro AUC of .617 with the labels' means in their place, .639 with the
regression's predictions, and .634 after a further round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.base import clone

from dmo.blocks import Rows, presence
from dmo.estimators.ridge import MultiViewRidge
from dmo.kernels import gram_matrix, parse
from dmo.validation import per_view

_SOME = 256  # samples whose kernel tells its scale


def filled_labels(
    regression: MultiViewRidge, views: Mapping[str, Rows], labels: np.ndarray, known: np.ndarray, sample_weight: Any
) -> np.ndarray:
    """Fill the unknown entries of labels with what ridge regressions of the known ones on the views predict.

    views (n, d); labels, known (n, L); sample_weight (n,) -> (n, L)
    """
    # The ridge of a view is the mean diagonal of its centered kernel: of ridges from a hundredth of that on it did
    # best, on yeast and on drawn ratings.
    model = clone(regression).set_params(prepare="none", targets="real", ridge=1.0)
    if model.kernel != "product":  # of which the diagonal is 1
        kernels = per_view("kernel", model.kernel, list(views))
        model.set_params(ridge={view: _mean_diagonal(kernels[view], source) for view, source in views.items()})
    full, some = np.where(known, labels, 0.0), known.any(axis=0)
    given = np.where(known, labels, np.nan)[:, some]
    predicted = model.fit(views, given, sample_weight=sample_weight).predict(views)
    clipped = np.clip(predicted, np.nanmin(given, axis=0), np.nanmax(given, axis=0))
    full[:, some] = np.where(known[:, some], given, clipped)
    return full


def _mean_diagonal(kernel: Any, source: Rows) -> float:
    """Of the centered kernel of some samples."""
    present = presence(source)
    index = np.arange(source.shape[0]) if present is None else np.flatnonzero(present)
    index = index[np.unique(np.linspace(0, len(index) - 1, min(len(index), _SOME)).astype(int))]
    kernel = parse(kernel)
    matrix = gram_matrix(kernel, kernel.part(source, index), np.float64)[0]
    found = float(np.trace(matrix) - matrix.sum() / len(matrix)) / len(matrix)
    return found if found > 0 else 1.0
