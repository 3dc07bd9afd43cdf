"""Evaluation of models on the samples of a store, for `dmo evaluate` and `dmo report`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone

from dmo import metrics, stores
from dmo.blocks import Rows, Subset, cell_blocks, rows
from dmo.errors import UserError
from dmo.formats.sources import is_rows
from dmo.labels.stratification import stratified_folds
from dmo.methods.annotator import Decision
from dmo.methods.jec import JEC
from dmo.metrics.annotation import average_precisions, precision_recall_f1
from dmo.metrics.checked_blocks import count_labels
from dmo.persistence import load_sample_keys
from dmo.progress import stage
from dmo.stores.temporary import disk_array, rows_on_disk
from dmo.workflows.apply import (
    ALL,
    AppliedModel,
    SampleIds,
    blocks_of,
    checked_top,
    chosen_split,
    class_columns,
    known_labels,
    learned_values,
    rows_of,
)
from dmo.workflows.images import stored_image
from dmo.workflows.rows import open_applied

log = logging.getLogger("dmo")


TARGET_METRICS = ("rmse", "mae", "r2", "relative_rmse")
"""Names of the metrics of each target, in the order of `RegressionScores.per_target`."""


@dataclass(frozen=True, eq=False)
class EvaluatedModel:
    """Evaluation of one model: its name, label scores, metrics, costs of the fit, and predicted label sets.

    `sets` is a 0/1 matrix of shape (m, L), or of shape (m, 0) if the model does not predict label sets.
    """

    name: str
    applied: AppliedModel
    scores: np.ndarray
    measures: dict[str, Any]
    costs: Mapping[str, Any]
    sets: np.ndarray

    def given(self, top: int) -> np.ndarray:
        """Return the predicted labels as a 0/1 matrix on disk: label sets, or the `top` labels with the best scores."""
        if self.sets.shape[1]:
            return self.sets
        places = cell_blocks(self.scores.shape)
        blocks = ((where, [metrics.top_label_sets(self.scores[where], top)]) for where in places)
        return rows_on_disk(len(self.scores), blocks)[0]

    def by_label(self, features: str) -> list[dict[str, Any]]:
        """Compute the metrics of every label or target for the JSON output; undefined values are None."""
        names, known = self.applied.label_names(), known_labels(self.applied, features)
        if self.applied.store.real_labels:
            found = dict(zip(TARGET_METRICS, metrics.regression_scores(known, self.scores).per_target))
            found["support"] = count_labels(known)[1]
        else:
            found = precision_recall_f1(known, self.given(self.measures["top"]))
            positives, judged = count_labels(known)
            mixed = ((positives > 0) & (positives < judged)).any()
            found["auc"] = metrics.auc_scores(known, self.scores).per_label if mixed else np.full(len(names), np.nan)
            found["support"] = positives
        columns = {key: [None if value != value else value for value in each.tolist()] for key, each in found.items()}
        return [dict(zip(("label", *columns), row)) for row in zip(names, *columns.values())]

    @cached_property
    def probabilities(self) -> np.ndarray | None:
        """Label probabilities, which need an additional pass over the samples, or None for models without them."""
        model = self.applied.model
        if isinstance(model, Annotations) or model.decoding_ is None:
            return None
        return rows_of(self.applied, lambda views: np.asarray(model.predict_proba(views)), "probabilities")


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Evaluation of several models on the same samples; most figures show only the first model."""

    models: list[EvaluatedModel]
    names: list[str]
    known: np.ndarray
    """True labels, 0 or 1. Missing labels are NaN and are excluded from the metrics."""
    top: int

    @cached_property
    def Y(self) -> np.ndarray:
        """True labels, with 0 for missing labels."""
        if self.known.dtype.kind != "f":
            return self.known
        places = cell_blocks(self.known.shape)
        return rows_on_disk(len(self.known), ((where, [np.nan_to_num(self.known[where])]) for where in places))[0]

    @cached_property
    def comparable(self) -> tuple[np.ndarray, str]:
        """Values of the first model that rank the samples of a label, and their name: probabilities or scores."""
        # Some decoders produce scores that can be compared only within a sample, so prefer probabilities.
        found = self.first.probabilities
        return (self.first.scores, "score") if found is None else (found, "probability")

    @cached_property
    def average_precision(self) -> np.ndarray:
        """Average precision of every label for the first model, or NaN for labels without positive samples."""
        return average_precisions(self.known, self.first.scores)

    @cached_property
    def planes(self) -> dict[str, np.ndarray]:
        """Maps of the samples: the own spaces of the models, and the plane in which label scores differ most."""
        found = {}
        for each in self.models:
            if hasattr(each.applied.model, "transform"):
                found[f"space of {each.name}"] = rows_of(each.applied, each.applied.model.transform, "embedding")[:, :2]
        scores = plane_of(self.first.scores)
        found |= {} if scores is None else {f"label scores of {self.first.name}": scores}
        return {name: plane for name, plane in found.items() if plane.shape[1] == 2 and _is_spread(plane)}

    @property
    def first(self) -> EvaluatedModel:
        return self.models[0]

    @property
    def store(self) -> stores.FeatureStore:
        return self.first.applied.store

    def image(self, i: int) -> np.ndarray | None:
        """Return the image of a sample, or None if the store was not extracted from images that still exist."""
        return stored_image(self.store, self.first.applied.ids[i])


_SPREAD = 1e-6
"""Minimum spread of scores in the second direction, relative to the first direction, for a map of the samples."""


def plane_of(scores: np.ndarray) -> np.ndarray | None:
    """Project label scores to their first two principal components; return None if they vary in one direction only."""
    places, mean = cell_blocks(scores.shape), scores.mean(axis=0)
    products = np.zeros((scores.shape[1], scores.shape[1]))
    for where in places:
        centered = scores[where] - mean
        products += centered.T @ centered
    squares, directions = np.linalg.eigh(products)
    if len(squares) < 2 or squares[-2] <= _SPREAD**2 * squares[-1]:
        return None
    return np.concatenate([(scores[where] - mean) @ directions[:, :-3:-1] for where in places])


def _is_spread(plane: np.ndarray) -> bool:
    """Return whether samples occupy at least 10 of 20 x 20 cells of a map; fewer dots show nothing."""
    low, high = plane.min(axis=0), plane.max(axis=0)
    cells = np.minimum(20 * (plane - low) / np.where(high > low, high - low, 1.0), 19).astype(int)
    return len(np.unique(cells @ [20, 1])) >= 10


def judge_together(
    paths: Sequence[str], features: str, split: str | None, top: int | None, reading: Mapping[str, Any] | None = None
) -> tuple[EvaluatedModel, ...]:
    """Evaluate several models on the same samples, by default without samples on which any model was trained."""
    # If `top` is None, metrics at k use the default k of the models; if the defaults differ, the smallest one.
    opened = [(path, _opened(path, features, split, reading)) for path in paths]
    if len({(applied.split, applied.n) for _, applied in opened}) > 1:
        has = ", ".join(f"{Path(path).stem} {applied.n}" for path, applied in opened)
        raise UserError(f"models must be compared on the same samples, but their samples differ: {has}; pass --split")
    opened = _unlearned(opened, features, split)
    judged = tuple(_judge(path, applied, features, top, top) for path, applied in opened)
    counts = {int(each.measures["top"]) for each in judged if "top" in each.measures}
    if len(counts) > 1:
        judged = tuple(_judge(path, applied, features, top, min(counts)) for path, applied in opened)
    labels = [each.applied.label_names() for each in judged]
    if any(names != labels[0] for names in labels):
        raise UserError(
            "models must be compared on the same labels, but these models learned different labels; fit them on one "
            "store"
        )
    return judged


def judge(
    path: str,
    features: str,
    split: str | None,
    top: int | None,
    cv: int | None = None,
    reading: Mapping[str, Any] | None = None,
) -> EvaluatedModel:
    """Evaluate a model, or the results written by `dmo annotate`, on samples of a store or of data files."""
    # If `split` is passed, all of its samples are evaluated. Otherwise, training samples of the model are excluded. If
    # `cv` is passed, the model is evaluated by cross-validation.
    opened = [(path, _opened(path, features, split, reading))]
    ((_, applied),) = opened if cv is not None else _unlearned(opened, features, split)
    return _judge(path, applied, features, top, top, cv)


def _opened(path: str, features: str, split: str | None, reading: Mapping[str, Any] | None) -> AppliedModel:
    if stores.describe(path)["kind"] == "results":
        return _opened_results(path, features, split, reading)
    return open_applied(path, features, split, "test", reading=reading, labeled=True)


def _unlearned(
    opened: Sequence[tuple[str, AppliedModel]], features: str, split: str | None
) -> list[tuple[str, AppliedModel]]:
    """Exclude samples on which any of the models was trained, unless a split is passed; log the number of samples."""
    marks = {path: applied.learned for path, applied in opened}
    for path in (path for path, learned in marks.items() if learned is None):
        log.warning("%s has no record of its training samples; their scores are too optimistic", path)
    applied = opened[0][1]
    by = {path: learned for path, learned in marks.items() if learned is not None and learned.any()}
    learned = np.any([np.zeros(applied.n, bool), *by.values()], axis=0)
    count, names = int(learned.sum()), " and ".join(by)
    samples = f"{applied.n} samples" + (f" of split {applied.split}" if applied.split else "")
    wanted = f"--split {applied.split or ALL}"
    if not count:
        return list(opened)
    if split is not None:
        text = (
            "%s was trained on %d of these %s: the metrics do not hold for new samples; choose other samples, or run "
            "dmo evaluate --cv 4"
        )
        log.warning(text, names, count, samples)
        return list(opened)
    if count == applied.n:
        raise UserError(
            f"{names} was trained on all {samples} of {features}, so that none remain for an evaluation; pass a store "
            f"with other samples, {wanted} to evaluate training samples, or dmo evaluate --cv 4 to cross-validate"
        )
    log.warning(
        "%d of %s are excluded, because %s was trained on them; %s includes them", count, samples, names, wanted
    )
    rows = np.flatnonzero(~learned)
    return [(path, replace(applied.keep(rows), excluded=count)) for path, applied in opened]


def _judge(
    path: str, applied: AppliedModel, features: str, top: int | None, count: int | None, cv: int | None = None
) -> EvaluatedModel:
    """Compute the scores and the metrics of a model; metrics at k use `count` labels per sample."""
    if isinstance(applied, AppliedResults):
        return _judge_results(path, applied, features, count)
    Y = known_labels(applied, features)
    real = applied.store.real_labels
    if real and not learned_values(applied.model):
        raise UserError(f"{features} has regression targets, but {path} scores labels; fit a model on {features}")
    shown = 0 if real else checked_top(count, applied.model) or _suitable(applied.model, Y)
    found = stores.describe(path)
    made = found["provenance"]["parameters"]
    asked = checked_top(top, applied.model)
    if cv is None:

        def decided(where: slice) -> list[np.ndarray]:
            return decided_rows(applied.model, applied.some(where), asked)

        scores, sets = rows_on_disk(applied.n, blocks_of(applied, decided, "score samples"))
        trained = [Trained(applied.model.rule_.frequency, applied.model.rule_.n_train)]
    else:
        scores, sets, trained = _cross_validated(applied, Y, cv, asked)
    if real:
        measures = regression_figures(Y, scores)
    else:
        measures = figures(Y, scores, shown) | set_figures(applied.model, Y, scores, sets, shown)
        measures["psp"] = _propensity_scored(Y, scores, shown, trained)
    measures |= accuracy(applied.store, sets, measures)
    measures |= _learned_figures(None if cv is not None else applied.learned, applied.excluded) | {"cv": cv}
    costs = dict(made.get("costs") or {}) | {"model_bytes": found["bytes"]}
    return EvaluatedModel(f"{type(applied.model).__name__} ({Path(path).stem})", applied, scores, measures, costs, sets)


@dataclass(frozen=True)
class Annotations:
    """Placeholder for a model whose saved results are evaluated, with the attributes of an estimator."""

    label_names_: list[str]
    n_seen_labels_: int  # Maximum number of labels per sample.
    multilabel_: bool  # Whether a sample can have several labels.
    _sample_keys: np.ndarray | None = None  # Keys that identify the training samples of the model.


@dataclass(frozen=True)
class AppliedResults(AppliedModel):
    """Results of `dmo annotate` together with their samples."""

    kind: str = "labels"
    written: Rows = field(default_factory=lambda: np.zeros((0, 0)))  # Saved rows, one per sample.

    def keep(self, rows: np.ndarray) -> AppliedResults:
        """Return the same results for a subset of the samples."""
        return replace(self, views=self.some(rows), index=self.index[rows], written=Subset(self.written, rows))


def _opened_results(path: str, features: str, split: str | None, reading: Mapping[str, Any] | None) -> AppliedResults:
    """Open the results of `dmo annotate` together with their samples."""
    results = stores.open_results(path)
    if is_rows(features):  # Read data files like the training data of the model that computed the results.
        store = open_applied(results.provenance["parents"][0], features, ALL, ALL, reading=reading, labeled=True).store
    else:
        store = stores.open_features(features)
    names = results.attributes.get("label_names")
    if results.kind not in ("scores", "labels", "values") or names is None:
        raise stores.StoreError(f"{path} holds {results.kind}, not labels or scores; write it with dmo annotate")
    if store.real_labels != (results.kind == "values"):
        has = "real targets" if store.real_labels else "labels"
        raise stores.StoreError(f"{path} holds {results.kind}, but {features} has {has}; pass the samples of {path}")
    where = split or results.attributes.get("split")
    views, _, index = store.select(chosen_split(store, where, "test"), with_labels=False)
    ids = results.sample_ids
    if results.shape[0] != len(index) or (ids is not None and ids != SampleIds(store.sample_ids, index)):
        raise stores.StoreError(
            f"{path} has {results.shape[0]} samples, {features} {len(index)} others; pass the --split of {path}"
        )
    written = len(names) if results.kind == "scores" else results.shape[1]
    contents = results.provenance["parameters"].get("contents", {})
    used = {name: view for name, view in views.items() if name in contents} or views
    model = Annotations(list(names), written, not store.class_labels, _keys_behind(results.provenance, contents))
    columns = class_columns(model, store, path)
    return AppliedResults(model, "", store, used, index, where, columns, kind=results.kind, written=results)


def _keys_behind(provenance: Mapping[str, Any], contents: Mapping[str, str]) -> np.ndarray | None:
    """Load the keys of the training samples of the model that computed the results, if the model is unchanged."""
    for parent in provenance["parents"]:
        with suppress(FileNotFoundError, stores.StoreError):
            if stores.model_contents(parent) == contents.get("the model"):
                return load_sample_keys(parent)
    return None


def _judge_results(path: str, applied: AppliedResults, features: str, top: int | None) -> EvaluatedModel:
    """Evaluate the results of `dmo annotate`, in which labels that were not saved have the score 0."""
    names, kind, store, written = applied.label_names(), applied.kind, applied.store, applied.model.n_seen_labels_
    nothing = np.zeros((applied.n, 0), np.uint8)

    def given(where: slice) -> list[np.ndarray]:
        block = rows(applied.written, where)
        if kind != "labels":
            return [block.astype(np.float64)]
        # Short lists of labels are padded with -1, which refers to the additional last column of the scores.
        scores = np.zeros((len(block), len(names) + 1))
        np.put_along_axis(scores, block.astype(np.intp), np.linspace(1.0, 0.0, block.shape[1], endpoint=False), axis=1)
        return [scores[:, :-1], (scores[:, :-1] > 0).astype(np.uint8)]

    scores, *chosen = rows_on_disk(applied.n, ((where, given(where)) for where in cell_blocks((applied.n, len(names)))))
    sets = chosen[0] if chosen else nothing
    known = known_labels(applied, features)
    costs = {"model_bytes": stores.describe(path)["bytes"]}
    name = f"{kind} ({Path(path).stem})"
    unseen = _learned_figures(applied.learned, applied.excluded) | {"cv": None}
    if store.real_labels:
        return EvaluatedModel(name, applied, scores, regression_figures(known, scores) | unseen, costs, nothing)
    if top is not None and top > written:
        raise UserError(f"--top {top}: {path} holds {written} labels per sample; pass a number from 1 to {written}")
    count = min(_suitable(applied.model, known), written) if top is None else top
    measures = figures(known, scores, count, area=kind == "scores")
    measures |= unseen | chosen_figures(known, sets)
    measures |= accuracy(store, sets, measures)
    return EvaluatedModel(name, applied, scores, measures, costs, sets)


def leading(measures: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that fit the task: accuracy of classes, F1 of label sets, or R2 of targets, with titles."""
    titles = {"accuracy": "accuracy", "f1_micro": "micro F1", "f1_macro": "macro F1", "r2": "R2, mean over targets"}
    if "accuracy" in measures:
        del titles["f1_micro"]
    return {title: measures[key] for key, title in titles.items() if key in measures}


def trained_on(measures: Mapping[str, Any]) -> str:
    """Return a suffix for titles of evaluations that include training samples."""
    known = {"all": ", training samples", "some": ", training samples among them"}
    return known.get(str(measures.get("training_samples")), "")


def decided_rows(model: Any, views: Mapping[str, Rows], top: int | None = None) -> list[np.ndarray]:
    """Compute the scores and the predicted label sets of samples; regression models have sets of shape (m, 0)."""
    found: Decision = model.decide(views, top)
    sets = np.zeros((len(found.scores), 0), np.uint8) if found.sets is None else found.sets.astype(np.uint8)
    return [np.asarray(found.scores), sets]


def set_figures(model: Any, Y: np.ndarray, scores: np.ndarray, sets: np.ndarray, top: int) -> dict[str, Any]:
    """Compute metrics of label rankings and label sets for the JSON output."""
    ranking, best = metrics.ranking_scores(Y, scores), metrics.top_scores(Y, scores, top)
    found: dict[str, Any] = {"p_at_k": best.precision, "r_at_k": best.recall, "f1_at_k": best.f1}
    found |= {"ndcg": best.ndcg, "lrap": ranking.lrap}
    found |= {"coverage": ranking.coverage, "ranking_loss": ranking.ranking_loss}
    if getattr(getattr(model, "decoding_", None), "rule", None) is not None:
        found["auc_micro"] = None
    return found | chosen_figures(Y, sets)


def accuracy(store: stores.FeatureStore, sets: np.ndarray, measures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the accuracy if exactly one class is predicted for every sample, otherwise an empty dictionary."""
    one = store.class_labels and all((sets[where].sum(axis=1) == 1).all() for where in cell_blocks(sets.shape))
    return {"accuracy": measures["subset_accuracy"]} if one else {}


def chosen_figures(Y: np.ndarray, sets: np.ndarray) -> dict[str, Any]:
    """Compute metrics of label sets for the JSON output; the result is empty if `sets` has no columns."""
    if not sets.shape[1]:
        return {}
    chosen = metrics.set_scores(Y, sets)
    found = {"f1_micro": chosen.f1_micro, "f1_macro": chosen.f1_macro, "f1_samples": chosen.f1_samples}
    found |= {"precision_samples": chosen.precision_samples, "recall_samples": chosen.recall_samples}
    return found | {"hamming": chosen.hamming, "subset_accuracy": chosen.subset, "set_size": chosen.cardinality}


def regression_figures(Y: np.ndarray, predictions: np.ndarray) -> dict[str, Any]:
    """Compute the means over targets of metrics without a unit, for the JSON output."""
    found = metrics.regression_scores(Y, predictions)
    return {"n_targets": Y.shape[1], "r2": found.r2, "arrmse": found.arrmse}


def _suitable(model: Any, Y: np.ndarray) -> int:
    """Choose the number k of metrics at k from the average number of labels per sample."""
    if not model.multilabel_:
        return 1
    if isinstance(model, Annotations):
        carried = count_labels(Y)[0] / len(Y)
        return min(metrics.suitable_top(float(carried.sum()), len(carried)), model.n_seen_labels_)
    carried = model.rule_.frequency
    return min(
        metrics.suitable_top(float(carried.sum()), len(carried)), getattr(model, "n_seen_labels_", None) or len(carried)
    )


def _learned_figures(learned: np.ndarray | None, excluded: int) -> dict[str, Any]:
    """Count the evaluated training samples and the excluded samples for the JSON output."""
    count = None if learned is None else int(learned.sum())
    which = None if learned is None or not count else "all" if count == len(learned) else "some"
    return {"training_samples": which, "learned_samples": count, "excluded_samples": excluded}


@dataclass(frozen=True)
class Trained:
    """Label frequencies and number of training samples of one fit, and the rows that the fit scored."""

    frequency: np.ndarray
    n: float
    scored: np.ndarray | None = None


def _propensity_scored(Y: np.ndarray, scores: np.ndarray, top: int, trained: Sequence[Trained]) -> float:
    """Compute propensity-scored precision at k with the propensities of the training set, averaged over fits."""
    found, weights = [], []
    for fit in trained:
        some: tuple[Rows, Rows] = Y, scores
        if fit.scored is not None:
            some = Subset(Y, fit.scored), Subset(scores, fit.scored)
        if count_labels(some[0])[0].any():
            found.append(metrics.top_scores(some[0], some[1], top, fit.frequency, fit.n).psp)
            weights.append(some[0].shape[0])
    return float(np.average(found, weights=weights))


def _cross_validated(
    applied: AppliedModel, Y: np.ndarray, cv: int, top: int | None
) -> tuple[np.ndarray, np.ndarray, list[Trained]]:
    """Compute out-of-fold scores and label sets, which are kept on disk, and the label frequencies of each fit."""
    fold, found, trained = stratified_folds(np.nan_to_num(Y), cv), list[np.ndarray](), []
    classes = None if getattr(applied.model, "multilabel_", True) else np.array(applied.label_names())
    labeled = np.nansum(Y, axis=1) > 0
    with stage("cross-validated fits", cv) as advance:
        for number in range(cv):
            train = np.flatnonzero((fold != number) & (labeled | (classes is None)))
            test = np.flatnonzero(fold == number)
            model = clone(applied.model)
            known = Y[train] if classes is None else classes[Y[train].argmax(axis=1)]
            model.fit(applied.some(train), known)
            parts = decided_rows(model, applied.some(test), top)
            if classes is not None:
                parts = _in_columns(parts[0], parts[1], np.searchsorted(classes, model.classes_), len(classes))
            found = found or [disk_array((len(Y), part.shape[1]), part.dtype) for part in parts]
            for array, part in zip(found, parts, strict=True):
                array[test] = part
            there = ~np.isnan(Y[train])
            frequency = np.nansum(Y[train], axis=0) / np.maximum(there.sum(axis=0), 1)
            trained.append(Trained(frequency, float(there.any(axis=1).sum()), test))
            advance(1)
    return found[0], found[1], trained


def _in_columns(scores: np.ndarray, sets: np.ndarray, columns: np.ndarray, L: int) -> list[np.ndarray]:
    """Expand the scores and sets of some classes to all L classes; the other classes rank last and are in no set."""
    found = np.full((len(scores), L), scores.min() - 1.0)
    found[:, columns] = scores
    chosen = np.zeros((len(sets), L if sets.shape[1] else 0), sets.dtype)
    if sets.shape[1]:
        chosen[:, columns] = sets
    return [found, chosen]


def store_labels(applied: AppliedModel, split: str | None = None) -> np.ndarray | None:
    """Return the labels of all samples of the store or of a split, in the label order of the model."""
    index = applied.store.split_rows(split)
    return AppliedModel(applied.model, "", applied.store, {}, index, None, applied.columns).Y


def label_frequency(evidence: Evaluation) -> np.ndarray:
    """Compute the fraction of samples with each label, in the split 'train' or in all samples if there is none."""
    split = "train" if "train" in evidence.store.splits else None
    labels = store_labels(evidence.first.applied, split)
    positives, known = count_labels(evidence.Y if labels is None else labels)
    return np.asarray(positives / np.maximum(known, 1))


def nearest_scores(evidence: Evaluation) -> np.ndarray:
    """Compute the label scores of `JEC` fitted on the split 'train', as a baseline."""
    store = evidence.store
    if store.split is None or "train" not in store.split or evidence.first.applied.split in (None, "train"):
        raise UserError(
            f"--jec: {store.url} needs training samples apart from the evaluated samples; pass --split test"
        )
    views, Y, _ = store.select("train")
    applied = evidence.first.applied
    new = {name: Subset(view, applied.index) for name, view in store.views.items()}
    assert Y is not None  # Evaluated samples have labels.
    columns, scores = applied.columns, JEC().fit(views, Y).decision_function(new)
    return scores if columns is None else scores[:, columns]


def sample_precision(Y: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Compute the average precision of the label ranking of each sample, or 0 for samples without labels."""
    ranked = np.take_along_axis(Y, np.argsort(-scores, axis=1, kind="stable"), axis=1).astype(np.float64)
    precision = np.cumsum(ranked, axis=1) / np.arange(1, Y.shape[1] + 1)
    return (precision * ranked).sum(axis=1) / np.maximum(Y.sum(axis=1), 1)


def by_quality(Y: np.ndarray, scores: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Sort samples from best to worst predictions, with samples without labels last.

    Samples are compared by the F1 score of their predicted labels, and then by the ranking of all labels.
    """
    keys = np.empty((3, len(Y)))
    for where in cell_blocks(Y.shape):
        counts = Y[where].sum(axis=1)
        f1 = 2 * (Y[where] * given[where]).sum(axis=1) / np.maximum(counts + given[where].sum(axis=1), 1)
        keys[:, where] = -sample_precision(Y[where], scores[where]), -f1, counts == 0
    return np.lexsort(keys)


def figures(Y: np.ndarray, scores: np.ndarray, top: int, area: bool = True) -> dict[str, Any]:
    """Compute metrics at k and AUC for the JSON output."""
    annotated = metrics.annotation_scores(Y, scores, top)
    positives, known = count_labels(Y)
    mixed = area and ((positives > 0) & (positives < known)).any()
    auc = metrics.auc_scores(Y, scores) if mixed else None
    return {
        "top": annotated.top,
        "n_labels": len(annotated.per_label_recall),
        "n_labels_present": annotated.n_labels,
        "precision": annotated.precision,
        "recall": annotated.recall,
        "f1": annotated.f1,
        "n_plus": annotated.n_plus,
        "auc_macro": None if auc is None else auc.macro,
        "auc_micro": None if auc is None else auc.micro,
    }
