"""Out-of-fold scores of training samples, for estimators without a closed form for leave-one-out scores.

Kernel ridge regression has a closed form for leave-one-out scores. `KGHA` has none, because its embedding depends on
the labels of all samples, including the sample that is left out. The closed form for a fixed embedding is too
optimistic. On the data set enron, with half as many components as labels and balance 0.01, the macro AUC of the closed
form was 0.80. The macro AUC of out-of-fold scores was 0.70, and the macro AUC of test samples was 0.73. With all
components, the three values were 0.73, 0.72 and 0.73.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
from sklearn.base import clone

from dmo.blocks import Block, PartialRows, Rows, Subset, crossed, sampled
from dmo.cluster.reading import hashes, on_workers
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
"""Pair of arrays: the mean and the standard deviation of the held-out scores of each label."""


@dataclass
class LeftOut:
    """Held-out scores of the training samples, or, if they are not computed yet, how to compute them."""

    # How the scores are computed: "known" if the attribute `scores` contains them, "folds" by cross-validation, "part"
    # by one fit on a part of the samples, and "" if no scores are needed. None means cross-validation if the estimator
    # has a decoder, otherwise one fit on a part of the samples.
    how: Literal["known", "folds", "part", ""] | None = None
    # Row indices of the m samples with scores.
    rows: np.ndarray = field(default_factory=lambda: np.zeros(0, np.intp))
    scores: list[np.ndarray] | None = None  # score matrices of shape (m, L), from which a decoder is learned
    statistics: Statistics | None = None  # mean and standard deviation of the scores, if the fit computes them
    maps: Mapping[str, FeatureMap] | None = None  # low-rank kernels of the fit, which a smaller fit can reuse


def out_of_fold_scores(
    estimator: Any, data: Data, rows: np.ndarray | None = None, model: Any = None
) -> list[np.ndarray]:
    """Compute out-of-fold score matrices of all samples, or of `rows`, by cross-validation.

    The views in `data` must have been prepared by the estimator.
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
"""Maximum numbers of rows with leave-one-out scores. The first applies to factorized exact kernels, whose factor
entries for these rows stay in memory. The second applies to larger kernels, for which an iterative solver needs one
right-hand side per row. On 3500 rows of the data set bibtex, micro F1 is 0.498 with scores of 1024 rows, 0.500 with
2048 and 0.504 with all."""
HELD_OUT_ROWS = 2000
"""Maximum number of training rows of the additional fit for label sets and probabilities."""
LEAST = 8
"""Minimum number of rows from which label sets and probabilities are learned by one fit on a part of the samples."""
FEW_ROWS, _MOST_FOLDS = 1000, 10
"""Maximum number of rows that are all scored by cross-validation, and maximum number of folds.

If only a random quarter of the rows were scored, the sample order would change probabilities of `KGHA` by 0.73 for 48
samples and by 0.15 for 1000. With cross-validation, the changes are 0.10 and 0.01."""
PASSED_ROWS, _RUN = 4096, 256
"""Number of rows that the moment engine reads again for held-out scores, and number of successive rows that it reads at
once. Successive rows are read because stores are organized in blocks of rows."""


def some_rows(keys: np.ndarray, factorized: bool) -> np.ndarray | None:
    """Choose the rows for leave-one-out scores by their keys; return None to use all rows."""
    if len(keys) <= (SOME_ROWS if factorized else SOLVED_ROWS):
        return None
    return smallest(keys, SOME_ROWS if factorized else SOLVED_SOME)


def smallest(keys: np.ndarray, count: int) -> np.ndarray:
    """Return the ascending row indices of the `count` smallest keys; among equal keys, the first rows are chosen."""
    return np.sort(np.argsort(keys, kind="stable")[:count])


def takes_folds(n: int, storage: Storage, kernels: Iterable[MultiKernel]) -> bool:
    """Return whether leave-one-out scores of n rows are too expensive, so that cross-validation is needed."""
    return storage != "memory" and n > SOLVED_ROWS and not all(kernel.linear for kernel in kernels)


def rows_in_runs(n: int, times: int = 1) -> np.ndarray | None:
    """Choose at most `times * PASSED_ROWS` of n rows in evenly spaced runs; return None to use all rows."""
    if n <= times * PASSED_ROWS:
        return None
    starts = np.linspace(0, n - _RUN, times * PASSED_ROWS // _RUN).astype(np.intp)
    return np.unique(starts[:, None] + np.arange(_RUN))


def held_out_part(
    estimator: Any, data: Data, rows: np.ndarray, most: int, maps: Mapping[str, FeatureMap] | None = None
) -> tuple[np.ndarray, list[np.ndarray]] | None:
    """Score some of the `rows` by one fit on at most `most` other rows; return the scored indices and their scores.

    Return None if there are too few rows, or if all training rows have the same labels.
    """
    # Small data sets are scored by cross-validation. From larger data sets, disjoint training rows and scored rows are
    # drawn, stratified by labels. At most three quarters of the rows are used for training and at most one quarter is
    # scored, so the fit is cheaper than a fit on all rows. From very large data sets, only evenly spaced runs of rows
    # are used. The rows are read into memory once. The low-rank kernels in `maps` do not depend on labels, and reusing
    # them saves most of the time.
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
        # There are so few rows that their kernels fit in memory, without stores or Dask workers.
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
    """Compute the 64-bit keys of the samples at `index`, from which folds and random subsets are derived.

    The key of a sample is a hash of its labels and features, so that it does not depend on the order of the samples.
    """
    # Features are hashed as float32, and duplicate samples have equal keys. The columns of a precomputed kernel depend
    # on the sample order, so the key of a sample is then a hash of its row index. The keys are cached, so a fit reads
    # each row only once.
    views = getattr(data.views, "raw", data.views)  # Scaling depends on the sample order, so hash unscaled values.
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
    """Compute the keys of all samples of a training set from their labels and features, as in `row_keys`."""
    if _identified_by_position(estimator, views):
        return mixed(np.arange(Y.shape[0]) + 1)
    keys = row_hashes(Y)
    for source in views.values():
        keys = mixed(keys) + hashes(source)
    return mixed(keys)


def _identified_by_position(estimator: Any, views: Mapping[str, Rows]) -> bool:
    kernel = getattr(getattr(estimator, "base_", estimator), "kernel", None)
    kernels = per_view("kernel", kernel, list(views))
    return any(is_pairwise(kernels[view]) for view in views)


def weight_of_copies(keys: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Sum the weights of each sample and its duplicates, which are left out together for leave-one-out scores."""
    _, place = np.unique(keys, return_inverse=True)
    return np.bincount(place.ravel(), weights)[place.ravel()]


def dealt(Y: Block, keys: np.ndarray, parts: int | Sequence[float]) -> np.ndarray:
    """Assign samples to stratified folds by their keys, independently of the sample order; duplicates share a fold."""
    distinct, first, place = np.unique(keys, return_index=True, return_inverse=True)
    if len(distinct) < (parts if isinstance(parts, int) else len(parts)):
        # With fewer distinct samples than folds, some folds would be empty if the duplicates of a sample shared a fold.
        return stratified_folds(Y, parts)
    return stratified_folds(Y[first], parts)[place.ravel()]


def folds_of_rows(Y: Block, keys: np.ndarray) -> np.ndarray:
    """Assign samples to stratified folds by their keys, with more folds for small data sets."""
    count = len(np.unique(keys))
    count = len(keys) if count == 1 else count  # If all samples are equal, folds depend on their positions.
    folds = FOLDS if count > FEW_ROWS else max(FOLDS, min(_MOST_FOLDS, FEW_ROWS // count))
    return dealt(Y, keys, min(folds, count))


def _read(source: Rows, index: np.ndarray, square: bool) -> Rows:
    """Read the rows at the ascending `index` into memory; of a kernel matrix, read only their columns."""
    if isinstance(source, PartialRows):
        return PartialRows(_read(source.source, index, square), source.present[index])
    read = partial(_columns_of, source, index) if square else partial(sampled, source)
    return on_workers("sampled rows", read, source, index)  # type: ignore[no-any-return]


def _columns_of(source: Rows, columns: np.ndarray, index: np.ndarray) -> np.ndarray:
    return crossed(Subset(source, index), Subset(source, columns))


def _part(views: Mapping[str, Rows], index: np.ndarray) -> dict[str, Rows]:
    return {name: Subset(source, index) for name, source in views.items()}


def learned_columns(estimator: Any) -> bool:
    """Return whether the preparation of the views was learned from all training rows, including held-out rows."""
    return any(part.to_arrays() for part in getattr(estimator, "preparations_", {}).values())


def _given(estimator: Any, views: Mapping[str, Rows]) -> Mapping[str, Rows]:
    """Return the raw views if their preparation was learned from rows, otherwise the prepared views."""
    return views.raw if learned_columns(estimator) and isinstance(views, PreparedViews) else views


def _scoring(estimator: Any) -> Any:
    """Clone an estimator to compute raw scores, without its decoder, class weights and fixed preparation."""
    bare: dict[str, Any] = {"decoder": None}  # Raw scores do not depend on the decoder.
    if not learned_columns(estimator):
        bare["prepare"] = Prepare("none", views=estimator._prepare.views)
    bare["class_weight"] = None  # The sample weights already include the class weights.
    model = clone(estimator)
    model.set_params(**{name: value for name, value in bare.items() if name in model.get_params(deep=False)})
    model._only_scores = True
    if hasattr(estimator, "target_weights_"):  # Reuse the hyperparameters found by the fit on all rows.
        model._given_by_target = estimator.target_weights_, estimator.target_ridges_
    model._told_classes = estimator.classes_ if estimator._tells_classes and not estimator.multilabel_ else None
    if "approximation" in model.get_params(deep=False):
        model.set_params(approximation=getattr(estimator, "approximation_", estimator.approximation))
    return model


def _fit(model: Any, data: Data) -> Any:
    """Fit a model on the rows in `data`, which may have weights and missing labels."""
    y = data.answers if model._told_classes is None else model._told_classes[data.Y.argmax(axis=1)]
    return model.fit(data.views, y) if data.complete else model.fit(data.views, y, sample_weight=data.weights)


def _scored(model: Any, views: Mapping[str, Rows]) -> list[np.ndarray]:
    """Compute the score matrices of new rows; classes without training rows have the lowest score of the row."""
    found: list[np.ndarray] = model._scores(prepare_views(model, views, reset=False))
    if model._told_classes is None or len(model.classes_) == len(model._told_classes):
        return found
    there = np.isin(model._told_classes, model.classes_)
    return [_widened(part, there) for part in found]


def _widened(scores: np.ndarray, there: np.ndarray) -> np.ndarray:
    out = np.repeat(scores.min(axis=1, keepdims=True), len(there), axis=1)
    out[:, there] = scores
    return out
