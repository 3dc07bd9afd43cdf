"""Cross-validated sweeps that share what their fits have in common.

Settings that only change small algebra (ridge, balance, n_components, center, and the decoder's intercept, prior_power,
standardise) are swept together: one pass over the rows per set of kernels with a low-rank kernel, one set of kernels per
fold with exact ones. Every other parameter, and every other estimator, is fitted setting by setting.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from dmo.blocks import Rows, Subset
from dmo.estimators.folds import ExactFolds, Held, MomentFolds
from dmo.estimators.kgha import KGHA
from dmo.estimators.lowrank_engine import choose_engine
from dmo.estimators.ridge import MultiViewRidge
from dmo.estimators.views import check_labels, check_views
from dmo.methods.decoding import ScoreRule
from dmo.metrics import annotation_scores, auc_macro, auc_micro, f1_macro, f1_micro, jaccard_accuracy, top_labels
from dmo.progress import stage

Metric = Callable[[np.ndarray, np.ndarray], float]
_ALGEBRA = ("ridge", "balance", "center", "label_ridge")
_DECODER = ("n_components", "intercept", "prior_power", "standardise")


@dataclass(frozen=True)
class SweepResult:
    """`table`: one dict per setting (parameters, "mean", "std", "folds"); the best setting and the model refitted with it."""

    table: list[dict[str, Any]]
    metric: str
    best_params: dict[str, Any]
    best_score: float
    best_estimator: Any


def metric_of(name: str | Metric) -> Metric:
    """A score to maximise, by name: "f1@5" (any number), "precision@5", "recall@5", "n+@5", "f1-macro@5",
    "f1-micro@5", "jaccard@5" (of the labels that the top scores set), "auc-macro", "auc-micro"; or a function (Y, scores)."""
    if callable(name):
        return name
    base, _, at = name.partition("@")
    curves: dict[str, Metric] = {"auc-macro": auc_macro, "auc-micro": auc_micro}
    if base in curves and not at:
        return curves[base]
    annotation = {"f1": "f1", "precision": "precision", "recall": "recall", "n+": "n_plus"}
    assigned: dict[str, Metric] = {"f1-macro": f1_macro, "f1-micro": f1_micro, "jaccard": jaccard_accuracy}
    if at.isdigit() and int(at) > 0 and base in annotation:
        return lambda Y, S: float(getattr(annotation_scores(Y, S, top=int(at)), annotation[base]))
    if at.isdigit() and int(at) > 0 and base in assigned:
        return lambda Y, S: float(assigned[base](Y, top_labels(S, int(at))))
    known = ", ".join([*(f"{key}@5" for key in (*annotation, *assigned)), *curves])
    raise ValueError(f"unknown metric {name!r}; known: {known}")


def fold_numbers(n: int, folds: int, random_state: int | None = 0) -> np.ndarray:
    """Fold 0..folds-1 of every sample (n), of equal sizes, at random."""
    if not 2 <= folds <= n:
        raise ValueError(f"folds = {folds} for {n} samples; needed is 2 <= folds <= samples")
    return np.random.default_rng(random_state).permutation(np.arange(n) % folds)


def sweep(
    estimator: Any,
    views: Any,
    Y: Any,
    grid: Mapping[str, Sequence[Any]],
    folds: int = 4,
    metric: str | Metric = "f1@5",
    random_state: int | None = 0,
    refit: bool = True,
) -> SweepResult:
    """Score every setting of `grid` by `folds`-fold cross-validation and refit the best.

    Arguments: `estimator`: a dmo or scikit-learn estimator with `decision_function`; `views`, `Y` as for its `fit`;
    `grid`: parameter -> values; `metric`: see `metric_of`, averaged over folds (labels without a positive in a held-out
    fold do not count there). Ties go to the first setting in the grid's order.
    Raises ValueError for unknown parameters or metrics and for an empty grid.
    """
    _check_grid(estimator, grid)
    score = metric_of(metric)
    probe = clone(estimator)
    sources = check_views(probe, views, reset=True)
    n = next(iter(sources.values())).shape[0]
    labels = check_labels(probe, Y, n)
    fold = fold_numbers(n, folds, random_state)
    fast = [key for key in grid if key in _ALGEBRA + _DECODER] if isinstance(estimator, (KGHA, MultiViewRidge)) else []
    slow = [key for key in grid if key not in fast]
    total = int(np.prod([len(values) for values in grid.values()]))
    table: list[dict[str, Any]] = []
    with stage("settings x folds", total * folds) as advance:
        for outer in settings({key: grid[key] for key in slow}):
            model = clone(estimator).set_params(**outer)
            if getattr(model, "approximation", None) == "auto":
                model.set_params(approximation=choose_engine("auto", n, len(sources)))
            inner = {key: grid[key] for key in fast}
            shared = isinstance(model, (KGHA, MultiViewRidge))
            loo = shared and any(inner.get("standardise", [model.standardise]))
            runs = _shared if shared and not (loo and not model.is_exact) else _one_by_one
            found = runs(model, sources, views, labels, Y, inner, fold, score, advance)
            table += [{**outer, **setting, **_summary(scores)} for setting, scores in found]
    order = {key: i for i, key in enumerate(grid)}
    table = [dict(sorted(row.items(), key=lambda item: order.get(item[0], len(order)))) for row in table]
    best = max(table, key=lambda row: row["mean"])
    params = {key: best[key] for key in grid}
    final = clone(estimator).set_params(**params)
    if refit:
        final.fit(views, Y)
    name = metric if isinstance(metric, str) else getattr(metric, "__name__", "metric")
    return SweepResult(table, name, params, best["mean"], final)


def settings(grid: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Every combination of the grid's values; one empty setting for an empty grid."""
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _check_grid(estimator: Any, grid: Mapping[str, Sequence[Any]]) -> None:
    known = estimator.get_params(deep=True)
    if not grid:
        raise ValueError("sweep: the grid is empty; pass at least one parameter with its values")
    for key, values in grid.items():
        if key not in known:
            raise ValueError(f"sweep: {type(estimator).__name__} has no parameter {key!r}; known: {', '.join(known)}")
        if isinstance(values, (str, bytes)) or not isinstance(values, Sequence) or not len(values):
            raise ValueError(f"sweep: {key} needs a list of values, got {values!r}")


def _summary(scores: Sequence[float]) -> dict[str, Any]:
    return {"mean": float(np.mean(scores)), "std": float(np.std(scores)), "folds": [float(s) for s in scores]}


Scored = list[tuple[dict[str, Any], list[float]]]


def _shared(
    model: Any,
    sources: Mapping[str, Rows],
    views: Any,
    labels: np.ndarray,
    Y: Any,
    grid: Mapping[str, Sequence[Any]],
    fold: np.ndarray,
    score: Metric,
    advance: Callable[[int], None],
) -> Scored:
    """All settings from shared kernels (exact) or shared moments (low rank)."""
    algebra = list(settings({key: grid[key] for key in grid if key in _ALGEBRA}))
    decoders = list(settings({key: grid[key] for key in grid if key in _DECODER}))
    scores: dict[tuple[int, int], list[float]] = {}
    needs_loo = any(setting.get("standardise", model.standardise) for setting in decoders)
    engine = (ExactFolds if model.is_exact else MomentFolds)(model, sources, labels, fold, algebra, decoders, needs_loo)
    for number, i, held in engine:
        truth = labels[fold == number].astype(np.uint8)
        for j, decoder in enumerate(decoders):
            scores.setdefault((i, j), []).append(score(truth, _decoded(model, held, decoder)))
        advance(len(decoders))
    return [({**algebra[i], **decoders[j]}, values) for (i, j), values in sorted(scores.items())]


def _decoded(model: Any, held: Held, setting: Mapping[str, Any]) -> np.ndarray:
    """Scores of held-out samples under one setting of the decoder."""
    raw, loo = held.scores(setting.get("n_components", getattr(model, "n_components", None)))
    value = {key: setting.get(key, getattr(model, key)) for key in ("intercept", "standardise", "prior_power")}
    return ScoreRule.learn(held.frequency, loo, value["intercept"], value["standardise"], value["prior_power"])(raw)


def _one_by_one(
    model: Any,
    sources: Mapping[str, Rows],
    views: Any,
    labels: np.ndarray,
    Y: Any,
    grid: Mapping[str, Sequence[Any]],
    fold: np.ndarray,
    score: Metric,
    advance: Callable[[int], None],
) -> Scored:
    """Every setting fitted for itself: estimators without a shared road."""
    found: Scored = []
    for setting in settings(grid):
        scores = []
        for number in range(int(fold.max()) + 1):
            train, test = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
            part: Any = {name: Subset(source, train) for name, source in sources.items()}
            new: Any = {name: Subset(source, test) for name, source in sources.items()}
            fitted = clone(model).set_params(**setting)
            if not isinstance(views, (Mapping, list, tuple)):
                part, new = next(iter(part.values()))[:], next(iter(new.values()))[:]
            fitted.fit(part, np.asarray(Y)[train])
            scores.append(score(labels[test].astype(np.uint8), np.asarray(fitted.decision_function(new))))
            advance(1)
        found.append((setting, scores))
    return found
