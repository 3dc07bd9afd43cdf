"""Scores of training samples by fits that have not seen them: which samples, and the fits where no closed form is known.

A kernel ridge has a closed form (leave-one-out). KGHA has none: given its coordinates its views are ridges too, but the
coordinates have seen every label. Leave-one-out scores of those ridges had a macro AUC of .80 on enron (half as many
components as labels, balance .01) where scores out of fold had .70 and test samples .73; with all components, .73, .72 and
.73.
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
from dmo.fit.exact import Exact, Storage, exact_engine, is_linear
from dmo.fit.fitted_views import SOLVED_ROWS
from dmo.hashing import mixed, row_hashes
from dmo.inputs import Data, Prepare, PreparedViews, per_view, prepare_views, row_parts
from dmo.kernels.composite import is_pairwise
from dmo.kernels.multikernel import MultiKernel
from dmo.labels.stratification import stratified_folds
from dmo.lowrank import FeatureMap
from dmo.progress import stage

Statistics: TypeAlias = tuple[np.ndarray, np.ndarray]
"""Mean and deviation of every label's held-out scores."""


@dataclass
class LeftOut:
    """What a fit says of training samples that it has not seen, or how `Annotator._decide` is to find their scores."""

    # "known": as `scores` says; "folds": by fits on folds; "part": by one on a part of the samples; "": none are needed; None:
    # by folds for a decoder, else by a part
    how: Literal["known", "folds", "part", ""] | None = None
    rows: np.ndarray = field(
        default_factory=lambda: np.zeros(0, np.intp)
    )  # (m,): of "known" the numbers of the samples
    scores: list[np.ndarray] | None = None  # (m, L) each: all that a decoder takes
    statistics: Statistics | None = None  # of all samples' scores, where the fit knows them
    maps: Mapping[str, FeatureMap] | None = None  # low-rank kernels for a fit on a part, which know nothing of labels


def out_of_fold_scores(
    estimator: Any, data: Data, rows: np.ndarray | None = None, model: Any = None
) -> list[np.ndarray]:
    """Score the labels of every sample, or of `rows`, by the fits on the other folds of these: all that a decoder takes.

    views (n, d), as the estimator prepared them -> (n, L) each
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
"""Rows of an exact kernel that are scored of more than these (their part of the factor is kept until label sets are asked
for; of 3500 rows of bibtex micro F1 is .498 by 1024, .500 by 2048 and .504 by all), and of more than `SOLVED_ROWS` where a
kernel is solved by iteration: as many further columns."""
HELD_OUT_ROWS = 2000
"""Rows of a further fit whose scores decide label sets and probabilities: a part of the whole fit's work."""
LEAST = 8
"""Rows below which no probabilities are learned from some of them."""
FEW_ROWS, _MOST_FOLDS = 1000, 10
"""Rows that are all scored, each by the fit on other folds, of which there are more the fewer they are: by scores of a random
quarter KGHA's probabilities moved by .73 with the order of 48 samples, and by .15 with that of 1000; so by .10 and .01."""
PASSED_ROWS, _RUN = 4096, 256
"""Rows that the moment engine reads again for held-out scores, in runs of some, since stores are read by blocks."""


def some_rows(keys: np.ndarray, factorized: bool) -> np.ndarray | None:
    """Choose rows for leave-one-out scores by smallest key; return None to use all rows."""
    if len(keys) <= (SOME_ROWS if factorized else SOLVED_ROWS):
        return None
    return smallest(keys, SOME_ROWS if factorized else SOLVED_SOME)


def smallest(keys: np.ndarray, count: int) -> np.ndarray:
    """Find the row indices of the `count` smallest keys, ascending; the first rows of equal ones.

    keys (n,) -> (count,)
    """
    return np.sort(np.argsort(keys, kind="stable")[:count])


def takes_folds(n: int, storage: Storage, kernels: Iterable[MultiKernel]) -> bool:
    """Whether held-out scores of all n rows take folds: there is no factor, and a solve per row is dear."""
    return storage != "memory" and n > SOLVED_ROWS and not all(is_linear(kernel) for kernel in kernels)


def rows_in_runs(n: int, times: int = 1) -> np.ndarray | None:
    """Numbers of at most so many `times` `PASSED_ROWS` of n rows, in runs that are spread evenly; None: all."""
    if n <= times * PASSED_ROWS:
        return None
    starts = np.linspace(0, n - _RUN, times * PASSED_ROWS // _RUN).astype(np.intp)
    return np.unique(starts[:, None] + np.arange(_RUN))


def held_out_part(
    estimator: Any, data: Data, rows: np.ndarray, most: int, maps: Mapping[str, FeatureMap] | None = None
) -> tuple[np.ndarray, list[np.ndarray]] | None:
    """Row indices of some of the `rows` and their scores by one fit on at most `most` others; None if that is impossible."""
    # At most half as many rows are scored as are fitted. Few rows are all scored, each by the fit on the other folds. The
    # result is None if there are too few rows, or if all have the same labels.
    # They are read once, into memory, where exact kernels of theirs are as well. Three of four rows are learned from,
    # with every label in its share, so that the fit costs less than the one whose scores it stands for. None where
    # there are not enough samples. `maps`: low-rank kernels to take, which know nothing of labels; finding them anew
    # took longer than all else. Of very many rows some are dealt out, with what is rare among them.
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
        # few rows: their kernels need neither stores nor workers, but the precision that was asked for
        model.set_params(approximation=replace(exact_engine(engine), storage="memory", path=None))
    elif maps is not None and not learned_columns(estimator):
        model._given_maps = maps
    old, new = (_part(read, np.searchsorted(index, some)) for some in (train, test))
    learned = replace(data.rows(train), views=old)
    with warnings.catch_warnings(), stage("label sets", 1) as advance:
        warnings.simplefilter("ignore")  # the fit on all rows has issued the same warnings
        if few:
            found = out_of_fold_scores(model, learned, model=model)
        else:
            _fit(model, learned)
            found = _scored(model, new)
        advance(1)
    return test, found


def row_keys(estimator: Any, data: Data, index: np.ndarray) -> np.ndarray:
    """Compute a content hash (key) of every sample; folds and random subsets are assigned by it.

    index (m,) -> (m,), uint64
    """
    # A key is a hash of the labels and feature values (as float32) of a sample, so it does not depend on the order of
    # samples, and repeated samples have the same one. Rows of a precomputed kernel, whose columns are samples too, are
    # identified by their position. A fit reads the rows once for all of its keys.
    views = getattr(data.views, "raw", data.views)  # scaled values differ in their last digits if the order does
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
    if len(distinct) < (parts if isinstance(parts, int) else len(parts)):  # too few to keep equal samples together
        return stratified_folds(Y, parts)
    return stratified_folds(Y[first], parts)[place.ravel()]


def folds_of_rows(Y: Block, keys: np.ndarray) -> np.ndarray:
    """Split samples into folds by key; small data sets get more folds.

    Y (n, L); keys (n,) -> (n,)
    """
    count = len(np.unique(keys))
    count = len(keys) if count == 1 else count  # equal rows alone are dealt out by their positions
    folds = FOLDS if count > FEW_ROWS else max(FOLDS, min(_MOST_FOLDS, FEW_ROWS // count))
    return dealt(Y, keys, min(folds, count))


def _read(source: Rows, index: np.ndarray, square: bool) -> Rows:
    """Rows `index` (ascending) in memory; of a kernel matrix in the columns of these samples."""
    if isinstance(source, PartialRows):
        return PartialRows(_read(source.source, index, square), source.present[index])
    some = Subset(source, index)
    return crossed(some, some) if square else sampled(source, index)


def _part(views: Mapping[str, Rows], index: np.ndarray) -> dict[str, Rows]:
    return {name: Subset(source, index) for name, source in views.items()}


def learned_columns(estimator: Any) -> bool:
    """Tell whether fillings or scales of columns were learned from the training rows, a left-out one among them."""
    return any(part.to_arrays() for part in getattr(estimator, "preparations_", {}).values())


def _given(estimator: Any, views: Mapping[str, Rows]) -> Mapping[str, Rows]:
    """Rows as they were before the estimator prepared them, where that was learned from rows."""
    return views.raw if learned_columns(estimator) and isinstance(views, PreparedViews) else views


def _scoring(estimator: Any) -> Any:
    """A clone that scores labels, and learns nothing besides but what is learned of columns."""
    bare: dict[str, Any] = {"decoder": None}  # raw scores are the same without held-out statistics
    if not learned_columns(estimator):
        bare["prepare"] = Prepare("none", views=estimator._prepare.views)
    bare["class_weight"] = None  # the weights of samples have it
    model = clone(estimator)
    model.set_params(**{name: value for name, value in bare.items() if name in model.get_params(deep=False)})
    model._only_scores = True
    if hasattr(estimator, "target_weights_"):  # a search is not part of what is judged, as no setting is
        model._given_by_target = estimator.target_weights_, estimator.target_ridges_
    model._told_classes = estimator.classes_ if estimator._tells_classes and not estimator.multilabel_ else None
    if "approximation" in model.get_params(deep=False):
        model.set_params(approximation=getattr(estimator, "approximation_", estimator.approximation))
    return model


def _fit(model: Any, data: Data) -> Any:
    """The model, fitted on some rows, with their weights and unknown labels."""
    y = data.answers if model._told_classes is None else model._told_classes[data.Y.argmax(axis=1)]
    return model.fit(data.views, y) if data.complete else model.fit(data.views, y, sample_weight=data.weights)


def _scored(model: Any, views: Mapping[str, Rows]) -> list[np.ndarray]:
    """What its decoder takes of new rows; a class that its part of the samples lacks comes last."""
    found: list[np.ndarray] = model._scores(prepare_views(model, views, reset=False))
    if model._told_classes is None or len(model.classes_) == len(model._told_classes):
        return found
    there = np.isin(model._told_classes, model.classes_)
    return [_widened(part, there) for part in found]


def _widened(scores: np.ndarray, there: np.ndarray) -> np.ndarray:
    out = np.repeat(scores.min(axis=1, keepdims=True), len(there), axis=1)
    out[:, there] = scores
    return out
