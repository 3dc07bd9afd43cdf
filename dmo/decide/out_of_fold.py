"""Out-of-fold scores of training samples: choose the samples, and fit the models if there is no closed form.

Kernel ridge regression has a closed form for leave-one-out scores. KGHA has none: given its coordinates, its views are
ridge regressions too, but the coordinates depend on all labels. On enron with half as many components as labels and
balance 0.01, leave-one-out scores of these ridge regressions had a macro AUC of 0.80, but out-of-fold scores 0.70 and
test samples 0.73. With all components, the values were 0.73, 0.72 and 0.73.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from sklearn.base import clone

from dmo.blocks import Block, PartialRows, Rows, Subset, crossed, sampled
from dmo.fit.engine import FOLDS
from dmo.fit.exact import Exact, Storage, exact_engine
from dmo.fit.fitted_views import SOLVED_ROWS
from dmo.hashing import mixed, row_hashes
from dmo.inputs import Data, Prepare, PreparedViews, per_view, prepare_views, row_parts
from dmo.kernels.composite import is_pairwise
from dmo.kernels.multikernel import MultiKernel
from dmo.labels.stratification import stratified_folds
from dmo.lowrank import FeatureMap
from dmo.progress import stage

Statistics: TypeAlias = tuple[np.ndarray, np.ndarray]
"""Mean and standard deviation of the held-out scores of every label."""


@dataclass
class LeftOut:
    """Held-out scores of training samples, or the way in which `Annotator._decide` computes them."""

    # "known": `scores` has them. "folds": by cross-validation. "part": by one fit on a part of the samples. "": they
    # are not needed. None: by cross-validation for a decoder, otherwise by one fit on a part.
    how: Literal["known", "folds", "part", ""] | None = None
    rows: np.ndarray = field(
        default_factory=lambda: np.zeros(0, np.intp)
    )  # (m,): Row indices of the samples if `how` is "known".
    scores: list[np.ndarray] | None = None  # (m, L) each: Score matrices, the input of a decoder.
    statistics: Statistics | None = None  # Statistics of the scores of all samples, if the fit computes them.
    maps: Mapping[str, FeatureMap] | None = None  # Low-rank kernels for a fit on a part; they do not depend on labels.


def out_of_fold_scores(
    estimator: Any, data: Data, rows: np.ndarray | None = None, model: Any = None
) -> list[np.ndarray]:
    """Compute out-of-fold scores of all samples, or of `rows`, by cross-validation; they are the input of a decoder.

    views (n, d), prepared by the estimator -> (n, L) each
    """
    scores: dict[int, np.ndarray] = {}
    index = np.flatnonzero(data.any_weight) if rows is None else rows
    fold = folds_of_rows(row_parts(data.Y, index), row_keys(estimator, data, index))
    data = replace(data, views=_given(estimator, data.views))
    with stage("out-of-fold scores", int(fold.max()) + 1) as advance:
        for number in range(int(fold.max()) + 1):
            train, test = index[fold != number], index[fold == number]
            own = _scoring(estimator) if model is None else model
            _fit(own, data.rows(train))
            for which, found in enumerate(_scored(own, _part(data.views, test))):
                scores.setdefault(which, np.zeros(data.Y.shape))[test] = found
            advance(1)
    return list(scores.values())


SOME_ROWS, SOLVED_SOME = 2048, 256
"""Maximum numbers of rows with leave-one-out scores, for exact kernels with a factor and for larger kernels solved by
iteration. With a factor, its entries for these rows are kept until label sets are needed. In an iteration, each row is
an additional right-hand side. On 3500 rows of bibtex, micro F1 is 0.498 with 1024 rows, 0.500 with 2048 and 0.504 with
all."""
HELD_OUT_ROWS = 2000
"""Maximum number of training rows of the additional fit for label sets and probabilities, which limits its cost."""
LEAST = 8
"""Minimum number of rows to learn probabilities from a part of them."""
FEW_ROWS, _MOST_FOLDS = 1000, 10
"""Up to this number of rows, all rows are scored by cross-validation, with more folds for fewer rows. If only a random
quarter was scored, the probabilities of KGHA changed with the order of the samples by 0.73 for 48 samples and by 0.15
for 1000. With cross-validation, they change by 0.10 and 0.01."""
PASSED_ROWS, _RUN = 4096, 256
"""Rows that the moment engine reads again for held-out scores, and rows per run, because stores are read in blocks."""


def some_rows(keys: np.ndarray, factorized: bool) -> np.ndarray | None:
    """Choose the rows with the smallest keys for leave-one-out scores; return None to use all rows."""
    if len(keys) <= (SOME_ROWS if factorized else SOLVED_ROWS):
        return None
    return smallest(keys, SOME_ROWS if factorized else SOLVED_SOME)


def smallest(keys: np.ndarray, count: int) -> np.ndarray:
    """Return the row indices of the `count` smallest keys in ascending order; of equal keys, the first rows are used.

    keys (n,) -> (count,)
    """
    return np.sort(np.argsort(keys, kind="stable")[:count])


def takes_folds(n: int, storage: Storage, kernels: Iterable[MultiKernel]) -> bool:
    """Return whether held-out scores of n rows need cross-validation, because solving for each row is too expensive."""
    return storage != "memory" and n > SOLVED_ROWS and not all(kernel.linear for kernel in kernels)


def rows_in_runs(n: int, times: int = 1) -> np.ndarray | None:
    """Choose at most `times * PASSED_ROWS` of n row indices, in evenly spaced runs; return None to use all rows."""
    if n <= times * PASSED_ROWS:
        return None
    starts = np.linspace(0, n - _RUN, times * PASSED_ROWS // _RUN).astype(np.intp)
    return np.unique(starts[:, None] + np.arange(_RUN))


def held_out_part(
    estimator: Any, data: Data, rows: np.ndarray, most: int, maps: Mapping[str, FeatureMap] | None = None
) -> tuple[np.ndarray, list[np.ndarray]] | None:
    """Score some of the `rows` by one fit on at most `most` other rows; return their indices and scores.

    Returns None if there are too few rows, or if all training rows have the same labels.
    """
    # Few rows are all scored, by cross-validation. Otherwise, at most three of four rows are fitted, and at most half
    # as many are scored, stratified by labels. The fit is therefore cheaper than the fit on all rows. The rows are read
    # once into memory, where exact kernels are stored, too. `maps` are low-rank kernels to reuse, which do not depend
    # on labels; learning them again took most of the time. Of very many rows, only some evenly spaced runs are used.
    some, Y = rows_in_runs(len(rows), 16), data.Y
    rows = rows if some is None else rows[some]
    share = min(0.75, most / len(rows)), min(0.25, most / 2 / len(rows))
    if len(rows) < LEAST:
        return None
    few, train, test = len(rows) <= FEW_ROWS, rows, rows
    if not few:
        labels = row_parts(Y, rows)
        part = dealt(labels, row_keys(estimator, data, rows), (*share, 1 - sum(share)) if sum(share) < 1 else share)
        train, test = rows[part == 0], rows[part == 1]
    if (Y[train] == Y[train[0]]).all():
        return None
    index = np.unique(np.concatenate([train, test]))
    kernels = per_view("kernel", getattr(getattr(estimator, "base_", estimator), "kernel", None), list(data.views))
    given = _given(estimator, data.views)
    read = {name: _read(source, index, is_pairwise(kernels[name])) for name, source in given.items()}
    model = _scoring(estimator)
    engine = getattr(model, "approximation", None)
    if getattr(estimator, "is_exact", isinstance(engine, Exact)):
        # Kernels of few rows fit in memory, without stores and workers. The precision of the engine is kept.
        model.set_params(approximation=replace(exact_engine(engine), storage="memory", path=None))
    elif maps is not None and not learned_columns(estimator):
        model._given_maps = maps
    old, new = (_part(read, np.searchsorted(index, some)) for some in (train, test))
    learned = replace(data.rows(train), views=old)
    with warnings.catch_warnings(), stage("label sets", 1) as advance:
        warnings.simplefilter("ignore")  # The fit on all rows has issued the same warnings.
        if few:
            found = out_of_fold_scores(model, learned, model=model)
        else:
            _fit(model, learned)
            found = _scored(model, new)
        advance(1)
    return test, found


def row_keys(estimator: Any, data: Data, index: np.ndarray) -> np.ndarray:
    """Compute a content hash (key) of every sample, which determines its fold and random subsets.

    index (m,) -> (m,), uint64
    """
    # A key is a hash of the labels and feature values (as float32) of a sample, so it does not depend on the order of
    # samples, and duplicates have the same key. Rows of a precomputed kernel, whose columns are samples too, are
    # identified by their position. A fit reads the rows once for all of its keys.
    views = getattr(data.views, "raw", data.views)  # The last digits of scaled values depend on the sample order.
    if _identified_by_position(estimator, views):
        return mixed(index + 1)
    found, known = data.__dict__.setdefault("_row_keys", (np.zeros(data.n, np.uint64), np.zeros(data.n, bool)))
    new = index[~known[index]]
    if len(new):
        some = {view: Subset(source, new) for view, source in views.items()}
        labels = Subset(getattr(data.Y, "source", data.Y), new)
        found[new], known[new] = sample_keys(estimator, labels, some), True
    return np.asarray(found[index])


def sample_keys(estimator: Any, Y: Rows, views: Mapping[str, Rows]) -> np.ndarray:
    """Compute the content hashes of all samples of a training set, see `row_keys`.

    Y (n, L) -> (n,), uint64
    """
    if _identified_by_position(estimator, views):
        return mixed(np.arange(Y.shape[0]) + 1)
    keys = row_hashes(Y)
    for source in views.values():
        keys = mixed(keys) + row_hashes(source)
    return mixed(keys)


def _identified_by_position(estimator: Any, views: Mapping[str, Rows]) -> bool:
    kernel = getattr(getattr(estimator, "base_", estimator), "kernel", None)
    kernels = per_view("kernel", kernel, list(views))
    return any(is_pairwise(kernels[view]) for view in views)


def weight_of_copies(keys: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Sum the weights of all duplicates of each sample; leave-one-out scores omit the sample with its duplicates.

    keys, weights (n,) -> (n,)
    """
    _, place = np.unique(keys, return_inverse=True)
    return np.bincount(place.ravel(), weights)[place.ravel()]


def dealt(Y: Block, keys: np.ndarray, parts: int | Sequence[float]) -> np.ndarray:
    """Split samples into stratified folds by key, so that sample order does not matter and duplicates share a fold.

    Y (n, L); keys (n,) -> (n,)
    """
    distinct, first, place = np.unique(keys, return_index=True, return_inverse=True)
    if len(distinct) < (parts if isinstance(parts, int) else len(parts)):
        # There are too few distinct samples to keep duplicates together.
        return stratified_folds(Y, parts)
    return stratified_folds(Y[first], parts)[place.ravel()]


def folds_of_rows(Y: Block, keys: np.ndarray) -> np.ndarray:
    """Split samples into folds by key; small data sets get more folds.

    Y (n, L); keys (n,) -> (n,)
    """
    count = len(np.unique(keys))
    count = len(keys) if count == 1 else count  # If all rows are equal, they are assigned by position.
    folds = FOLDS if count > FEW_ROWS else max(FOLDS, min(_MOST_FOLDS, FEW_ROWS // count))
    return dealt(Y, keys, min(folds, count))


def _read(source: Rows, index: np.ndarray, square: bool) -> Rows:
    """Read rows `index` (ascending) into memory; for a kernel matrix, read only the columns of these samples."""
    if isinstance(source, PartialRows):
        return PartialRows(_read(source.source, index, square), source.present[index])
    some = Subset(source, index)
    return crossed(some, some) if square else sampled(source, index)


def _part(views: Mapping[str, Rows], index: np.ndarray) -> dict[str, Rows]:
    return {name: Subset(source, index) for name, source in views.items()}


def learned_columns(estimator: Any) -> bool:
    """Return whether imputed values or column scales were learned from all training rows, including held-out rows."""
    return any(part.to_arrays() for part in getattr(estimator, "preparations_", {}).values())


def _given(estimator: Any, views: Mapping[str, Rows]) -> Mapping[str, Rows]:
    """Return the views, without the preparation of the estimator if it was learned from rows."""
    return views.raw if learned_columns(estimator) and isinstance(views, PreparedViews) else views


def _scoring(estimator: Any) -> Any:
    """Clone an estimator for scores only: without decoder, class weights and preparation that is not learned."""
    bare: dict[str, Any] = {"decoder": None}  # Raw scores do not depend on the decoder.
    if not learned_columns(estimator):
        bare["prepare"] = Prepare("none", views=estimator._prepare.views)
    bare["class_weight"] = None  # The sample weights already include the class weights.
    model = clone(estimator)
    model.set_params(**{name: value for name, value in bare.items() if name in model.get_params(deep=False)})
    model._only_scores = True
    if hasattr(estimator, "target_weights_"):  # Hyperparameter searches are not repeated in folds.
        model._given_by_target = estimator.target_weights_, estimator.target_ridges_
    model._told_classes = estimator.classes_ if estimator._tells_classes and not estimator.multilabel_ else None
    if "approximation" in model.get_params(deep=False):
        model.set_params(approximation=getattr(estimator, "approximation_", estimator.approximation))
    return model


def _fit(model: Any, data: Data) -> Any:
    """Fit a model on some rows, with their weights and unknown labels."""
    y = data.answers if model._told_classes is None else model._told_classes[data.Y.argmax(axis=1)]
    return model.fit(data.views, y) if data.complete else model.fit(data.views, y, sample_weight=data.weights)


def _scored(model: Any, views: Mapping[str, Rows]) -> list[np.ndarray]:
    """Compute the score matrices of new rows; classes missing in the training part get the lowest score of the row."""
    found: list[np.ndarray] = model._scores(prepare_views(model, views, reset=False))
    if model._told_classes is None or len(model.classes_) == len(model._told_classes):
        return found
    there = np.isin(model._told_classes, model.classes_)
    return [_widened(part, there) for part in found]


def _widened(scores: np.ndarray, there: np.ndarray) -> np.ndarray:
    out = np.repeat(scores.min(axis=1, keepdims=True), len(there), axis=1)
    out[:, there] = scores
    return out
