"""Cross-validated grid search that shares computations between fits. `dmo.selection` describes the methods."""

from __future__ import annotations

import itertools
import warnings
from collections import defaultdict
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, clone, is_regressor
from sklearn.utils import _safe_indexing, get_tags

from dmo.blocks import SINGLE, Rows, Subset, crossed, presence, rows, stored_values
from dmo.decide.decoders import PlugIn, Scores, as_decoder
from dmo.decide.out_of_fold import sample_keys
from dmo.decide.rules import SET_METRICS
from dmo.decide.score_rule import ScoreRule, unseen_last
from dmo.errors import UserError
from dmo.fit.engine import by_gradients, choose_engine, decided, is_exact
from dmo.hashing import digest, fingerprint
from dmo.inputs import (
    Inputs,
    LabelRows,
    Outputs,
    are_real,
    check_outputs,
    check_parameter,
    check_partial_labels,
    check_raw_views,
    is_label_sets,
    known_values,
    naming,
    needs_of,
    paired,
    per_view,
    sample_count,
)
from dmo.inputs.outputs import RealOutputs, hierarchy_of
from dmo.kernels import rescaled
from dmo.labels.stratification import stratified_folds as stratified_folds
from dmo.memory import Memory, remembered, remembering
from dmo.methods.annotator import label_scores, targets
from dmo.methods.base import Estimator
from dmo.methods.base import SweepResult as SweepResult
from dmo.methods.shared_fits import ExactFolds, HeldOut, MomentFolds, SharedFits, SharedMaps, told
from dmo.methods.view_weights import learns
from dmo.metrics import Metric, metric_of
from dmo.parameters import nested
from dmo.persistence import encode
from dmo.progress import stage
from dmo.stores.checkpoints import Checkpoint, part_of_more
from dmo.threads import in_threads, thread_count

__all__ = ["sweep"]


def default_metric(labels: np.ndarray, multilabel: bool = True, real: bool = False) -> str:
    """Return the default metric for a type of y: "arrmse", "accuracy", "auc-macro" or "ranking"."""
    if real:  # In a fold with nearly constant targets, R2 can be -10 and dominate the mean R2.
        return "arrmse"
    if not multilabel:
        return "accuracy"
    return "auc-macro" if labels.shape[1] == 1 else "ranking"


def searched_labels(estimator: BaseEstimator, y: Outputs, n: int) -> tuple[Any, bool]:
    """Read y for scoring, and return whether y holds regression targets.

    Labels are bytes or `LabelRows`, or floats with NaN if some labels are unknown.
    """
    asked = getattr(estimator, "targets", "auto")
    if asked != "labels" and (asked == "real" or are_real(y) or (is_regressor(estimator) and not _of_two_values(y))):
        Y, flat, _ = check_outputs(y, n, unknown=True)
        RealOutputs.of(Y, flat)  # `RealOutputs.of` raises an error if an output is unknown in all samples.
        return Y, True
    labels, known = check_partial_labels(estimator, y, n)
    if known is not None:
        return known_values(labels, known), False
    return LabelRows.of(labels), False


def has_gaps(labels: Any) -> bool:
    """Return whether labels from `searched_labels` have unknown entries."""
    return labels.dtype.kind == "f" and bool(np.isnan(labels).any())


def counted_labels(labels: Any) -> Any:
    """Convert labels from `searched_labels` to an array or CSR matrix, with 0 for unknown entries."""
    return np.nan_to_num(labels) if labels.dtype.kind == "f" else getattr(labels, "source", labels)


def _of_two_values(y: Any) -> bool:
    """Return whether y holds labels for a regressor, as numbers 0 and 1 or as values that are not numbers."""
    if is_label_sets(y):
        return True
    values = np.asarray(stored_values(y.compute() if hasattr(y, "compute") else y))
    return values.dtype.kind not in "iuf" or bool(((values == 0) | (values == 1)).all())


@dataclass(frozen=True)
class _Task:
    """Targets, folds and metric of a cross-validation."""

    labels: Any  # labels or targets as returned by `searched_labels`
    given: Any
    fold: np.ndarray
    metric: Metric
    real: bool
    name: str | Metric  # name of the metric, or the metric itself

    @property
    def folds(self) -> int:
        return int(self.fold.max()) + 1

    def truth(self, number: int) -> np.ndarray:
        """Return the targets of a fold; labels are converted to bytes if all of them are known."""
        truth = self.labels[self.fold == number]
        return truth if self.real or has_gaps(truth) else truth.astype(np.uint8, copy=False)


def sweep(
    estimator: BaseEstimator,
    views: Inputs,
    Y: Outputs,
    grid: Mapping[str, Sequence[Any]],
    folds: int = 4,
    metric: str | Metric | None = None,
    random_state: int | None = 0,
    refit: bool = True,
) -> SweepResult:
    """Score every candidate of a grid by cross-validation, and refit the best candidate.

    Inside the context `dmo.stores.checkpoints.checkpoints`, the scores of finished folds are stored, and an interrupted
    search resumes with the remaining folds. If `metric` is a function, nothing is stored, because changes of its code
    cannot be detected.

    Parameters
    ----------
    estimator : estimator
        Estimator of dmo or scikit-learn that scores labels by `decision_function`, or a regressor. A regressor is
        fitted to labels of +1 and -1.
    views : mapping of view to rows, list of rows, or rows
        Views of n samples, in any form that `fit` of the estimator accepts.
    Y : array-like of shape (n, L) or (n,)
        Labels or regression targets. Metrics ignore unknown entries.
    grid : mapping of str to sequence
        Candidate values of each parameter. For estimators with kernels, "bandwidth" lists factors that multiply the
        bandwidths of the kernels. Nystrom approximations use the landmarks of factor 1 for all factors.
    folds : int, default=4
        Number of cross-validation folds, which are stratified by the labels.
    metric : str or callable, default=None
        Metric that ranks the candidates; see `dmo.metrics.metric_of`. None selects "r2" for regression targets, and
        otherwise "f1@5", or "f1@k" if there are only k < 5 labels. The score of a candidate is its mean over folds. A
        fold ignores labels without a positive among its samples. If candidates have equal scores, the first one in the
        order of the grid is selected.
    random_state : int or None, default=0
        Seed that determines the assignment of samples to folds.
    refit : bool, default=True
        Whether to fit the best candidate on all samples.

    Returns
    -------
    SweepResult
        Scores of all candidates, and the estimator with the best parameters.

    Raises
    ------
    UserError
        If a parameter or metric is unknown, the grid is empty, or no candidate can be fitted and scored. If only some
        candidates fail, a warning names them, and the result does not contain them.

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from dmo import MultiViewRidge
    >>> from dmo.selection import sweep
    >>> X, Y = make_multilabel_classification(n_samples=100, n_classes=5, random_state=0)
    >>> grid = {"ridge": [0.1, 10.0], "decoder__prior_power": [0.0, 0.5]}
    >>> found = sweep(MultiViewRidge("linear"), X, Y, grid, metric="f1@2")
    >>> len(found.table), sorted(found.best_params)
    (4, ['decoder__prior_power', 'ridge'])
    """
    Y, _ = paired(views, Y)
    with remembering():
        found, real = compared(estimator, views, Y, grid, folds, metric, random_state)
    if refit:
        given: Any = Y
        found.best_estimator.fit(views, given if real else targets(found.best_estimator, given))
    return found


def compared(
    estimator: BaseEstimator,
    views: Inputs,
    Y: Outputs,
    grid: Mapping[str, Sequence[Any]],
    folds: int,
    metric: str | Metric | None,
    random_state: int | None,
    floors: Sequence[float] | None = None,
) -> tuple[SweepResult, bool]:
    """Score the candidates of a grid without refitting, and return whether y holds regression targets.

    Candidates below the `floors` after one and two folds are dropped. A floor of -inf keeps the leading candidates.
    """
    _check_grid(estimator, grid)
    estimator = making_sets(estimator, metric) if "decoder" not in grid else estimator
    probe = clone(estimator)
    with naming(estimator):
        for name, need in needs_of(type(estimator)).items() if isinstance(estimator, Estimator) else ():
            for value in grid.get(name, ()):
                check_parameter(name, value, need)
        if "prepare__impute" in grid:  # Missing values are allowed if any candidate imputes them.
            probe.set_params(
                prepare__impute=next((value for value in grid["prepare__impute"] if value is not None), None)
            )
        raw = check_raw_views(probe, views, reset=True, partial=getattr(probe, "_takes_partial_views", False))
        n = sample_count(raw)
        labels, real = searched_labels(probe, Y, n)
    if metric is None:
        metric = "r2" if real else f"f1@{min(5, labels.shape[1])}"
    score = metric_of(metric)
    unknown, lacking = has_gaps(labels), any(presence(source) is not None for source in raw.values())
    task = _Task(labels, Y, _dealt(labels, folds, random_state), score, real, metric)
    together = getattr(estimator, "_swept_together", ())
    fast = [key for key in grid if key in together]
    slow = [key for key in grid if key not in fast]
    outer, inner = list(settings({key: grid[key] for key in slow})), {key: grid[key] for key in fast}
    tables: list[list[dict[str, Any]]] = [[] for _ in outer]
    failed: dict[int, Exception] = {}
    scores = _Scores(_description(estimator, raw, task, grid, metric), len(outer), len(list(settings(inner))), folds)
    last, maps = None, defaultdict[int, SharedMaps](SharedMaps)
    with stage("settings x folds", len(outer) * scores.inner * folds) as advance:
        turns = sorted((_but_bandwidth(estimator, fixed), i) for i, fixed in enumerate(outer))
        heats = sorted({1, min(2, folds), folds} if floors is not None else {folds})
        for heat, (kind, number) in itertools.product(heats, turns):
            if number == turns[0][1]:
                scores.race(heat, floors, failed)
            if number in failed:
                continue
            fixed = outer[number]
            if kind != last:  # Consecutive candidates that differ only in the bandwidth share their low-rank kernels.
                last, maps = kind, defaultdict(SharedMaps)
            try:
                model = with_setting(estimator, fixed)
                if getattr(model, "approximation", None) == "auto":
                    model.set_params(approximation=choose_engine("auto", n, len(raw), getattr(model, "kernel", None)))
                shared = isinstance(model, SharedFits)
                ruled = _ruled(model, inner) if shared else []
                decodes = any(own._decoder is not None for own in ruled)
                shared = shared and (model._decoder_uses_left_out or not decodes)
                # Shared fits do not support weights or missing samples.
                shared = shared and not lacking and getattr(model, "class_weight", None) is None
                # Fits by conjugate gradients have no moments that could be shared.
                engines = per_view("approximation", getattr(model, "approximation", None), list(raw)).values()
                shared = shared and not any(by_gradients(engine) for engine in engines)
                exact = shared and is_exact(decided(model))
                shared = shared and model._shares_fits(exact)
                loo = shared and (decodes or any(own._by_scores.standardize for own in ruled))
                runs: Callable[..., list[dict[str, Any]]] = _one_by_one
                if shared and not (loo and not exact):
                    runs = _shared
                if unknown:  # Moments and leave-one-out scores in closed form do not support unknown entries.
                    learned = learns(getattr(model, "weights", None))
                    some = not np.isnan(labels).all(axis=1).any()
                    single = shared and exact and not (loo or learned) and some
                    runs = runs if single else _one_by_one
                scores.begin(number, advance)
                with part_of_more(scores.save), naming(estimator):
                    if runs is _shared:
                        tried = _shared(model, raw, maps, _factor(estimator, fixed), task, inner, scores, ruled, loo)
                    else:
                        tried = runs(model, raw, task, inner, scores)
                found = zip(tried, scores.values[number], scores.left_out[number].any(axis=1), strict=True)
                tables[number] = [
                    {**fixed, **setting, **_summary(values)} for setting, values, lost in found if not lost
                ]
            except (UserError, np.linalg.LinAlgError) as error:
                failed[number] = error
    table = [row for part in tables for row in part]
    if not table and failed:
        raise failed[min(failed)]
    for number, reason in sorted(failed.items()):
        warnings.warn(f"sweep: {outer[number]} is left out: {reason}", stacklevel=2)
    scores.finish()
    place = {key: i for i, key in enumerate(grid)}
    table = [dict(sorted(row.items(), key=lambda item: place.get(item[0], len(place)))) for row in table]
    name = metric if isinstance(metric, str) else getattr(metric, "__name__", "metric")
    if not table:  # No candidate reached the minimum score.
        return SweepResult(table, name, {}, -np.inf, estimator), real
    best = max(table, key=lambda row: row["mean"])
    params = {key: best[key] for key in grid}
    final = with_setting(estimator, params)
    return SweepResult(table, name, params, best["mean"], final), real


def input_of(views: Mapping[str, Rows], index: np.ndarray, columns: np.ndarray, pairwise: bool) -> Any:
    """Select samples of checked views as the input of an estimator: an array if X was an array, otherwise a mapping.

    A kernel matrix is restricted to the training samples `columns`.
    """
    # Test the names of the views instead of the type of X, because one array, table or store can contain several views.
    some: dict[str, Rows] = {name: Subset(source, index) for name, source in views.items()}
    if list(some) != [SINGLE]:
        return some
    source = views[SINGLE]
    return crossed(some[SINGLE], Subset(source, columns)) if pairwise else rows(some[SINGLE])


def making_sets(estimator: BaseEstimator, metric: str | Metric | None) -> Any:
    """Return the estimator with a decoder that predicts label sets, if the metric evaluates label sets."""
    if metric not in SET_METRICS or is_regressor(estimator):
        return estimator
    if "decoder" not in estimator.get_params(deep=False):
        raise UserError(
            f"{type(estimator).__name__} has no decoder and predicts no label sets; pass a metric such as '{metric}@5'"
        )
    tree = hierarchy_of(estimator)
    sets = metric if tree is None else PlugIn(str(metric), hierarchy=tree)
    return clone(estimator).set_params(decoder=sets) if Scores._takes(estimator.decoder) else estimator


def names_rule(metric: str | Metric | None) -> bool:
    """Return whether a metric is also the name of a decoder that ranks labels by the expected metric."""
    try:
        return isinstance(metric, str) and isinstance(as_decoder(metric), PlugIn)
    except UserError:
        return False


def settings(grid: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Yield all combinations of the values of a grid."""
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def with_setting(estimator: BaseEstimator, setting: Mapping[str, Any]) -> Any:
    """Return a clone of an estimator with the parameters of a candidate."""
    made, rest = clone(estimator), dict(setting)
    if "bandwidth" not in made.get_params() and "bandwidth" in rest:
        made.set_params(kernel=rescaled(rest.get("kernel", made.kernel), rest.pop("bandwidth")))
        rest.pop("kernel", None)
    return made.set_params(**rest)


def _factor(estimator: BaseEstimator, setting: Mapping[str, Any]) -> float | None:
    """Return the bandwidth factor of a candidate, as `with_setting` applies it, or None."""
    return None if "bandwidth" in estimator.get_params() else setting.get("bandwidth")


def _but_bandwidth(estimator: BaseEstimator, setting: Mapping[str, Any]) -> str:
    """Return a key that is equal for candidates which differ only in the bandwidth factor."""
    given = _factor(estimator, setting) is not None
    return repr({key: value for key, value in setting.items() if key != "bandwidth" or not given})


def _check_grid(estimator: BaseEstimator, grid: Mapping[str, Sequence[Any]]) -> None:
    known = nested(estimator)
    if "kernel" in known:
        known = known | {"bandwidth": None}
    if not grid:
        raise UserError("sweep: the grid is empty; pass at least one parameter with its values")
    for key, values in grid.items():
        if key not in known:
            near = get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise UserError(f"sweep: {type(estimator).__name__} has no parameter {key!r}; {hint}")
        if isinstance(values, (str, bytes)) or not isinstance(values, Sequence) or not len(values):
            one = isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable)
            cure = f"pass [{values!r}]" if one else "pass a list with at least one value"
            raise UserError(f"sweep: {key} needs a list of values, got {values!r}; {cure}")


def _summary(scores: Sequence[float]) -> dict[str, Any]:
    return {"mean": float(np.mean(scores)), "std": float(np.std(scores)), "folds": [float(s) for s in scores]}


def _dealt(labels: Any, folds: int, random_state: int | None) -> np.ndarray:
    """Return the fold number of each sample."""
    return remembered(
        lambda: stratified_folds(counted_labels(labels), folds, random_state),
        8.0 * len(labels),
        lambda memory: ("folds", memory.name(labels), folds, random_state),
    )


def _description(
    estimator: Any,
    sources: Mapping[str, Rows],
    task: _Task,
    grid: Mapping[str, Sequence[Any]],
    metric: str | Metric,
) -> Callable[[], str] | None:
    """Return a function that hashes all inputs of the scores, or None if an input cannot be hashed."""
    if not isinstance(metric, str):
        return None
    try:
        known = encode(estimator), [(key, encode(list(values))) for key, values in grid.items()], metric
    except ValueError:  # Only numbers, strings and objects from dmo can be encoded.
        return None

    def describe() -> str:
        # The automatic choice of the engine depends on the free memory, so the digest includes the chosen engine.
        engine = encode(choose_engine("auto", len(task.labels), len(sources)))
        rows = {name: fingerprint(source) for name, source in sources.items()}
        return digest(known, engine, rows, fingerprint(task.labels), task.fold)

    return describe


class _Scores:
    """Scores of all candidates and folds, with a mask of known scores, which are stored in a checkpoint."""

    # A candidate consists of an outer setting, which needs its own fits, and an inner setting that shares these fits.

    def __init__(self, describe: Callable[[], str] | None, outer: int, inner: int, folds: int):
        self.inner, self.outer = inner, 0
        self.values, self.known = np.zeros((outer, inner, folds)), np.zeros((outer, inner, folds), bool)
        # `left_out` marks scores that the race skips, `lost` marks dropped candidates, and `heat` is the number of
        # folds that are scored in the current heat of the race.
        self.left_out, self.lost, self.heat = np.zeros_like(self.known), np.zeros((outer, inner), bool), 0
        self._kept = Checkpoint("sweep", describe)
        self._advance: Callable[[int], None] = lambda steps: None
        found = self._kept.load()
        if found is not None:
            self.values, self.known = found[0]["values"].copy(), found[0]["known"].copy()
        self._found = self.known.copy()  # scores from the checkpoint that the progress does not count yet

    def begin(self, outer: int, advance: Callable[[int], None]) -> None:
        """Select the outer setting for the following calls, and count its scores from the checkpoint as progress."""
        self.outer, self._advance = outer, advance
        advance(int(self._found[outer].sum()))
        self._found[outer] = False

    def wanted(self, inner: int, fold: int) -> bool:
        """Return whether the score of an inner setting on a fold is still needed."""
        return not (self.known | self.left_out)[self.outer, inner, fold]

    def race(self, folds: int, floors: Sequence[float] | None, failed: Container[int]) -> None:
        """Start a heat on some folds, and drop candidates whose mean score on the previous folds is below the floor.

        A floor of -inf keeps half of the candidates after one fold, a quarter after two, and the best of each setting.
        """
        done = self.heat
        if done and floors is not None:
            means = self.values[..., :done].mean(axis=2)
            means[self.lost | np.array([[number in failed] for number in range(len(means))])] = -np.inf
            least: Any = floors[done - 1]
            if np.isinf(least):
                leading = np.sort(means, axis=None)[-max(2, -(-means.size // (2 * done))) :][0]
                least = np.minimum(leading, means.max(axis=1, keepdims=True))
            self.lost = (means < least) | np.isneginf(means)
        self.heat, self.left_out[:], self.left_out[..., folds:] = folds, self.lost[..., None], True
        if folds == self.known.shape[2]:
            self._advance(int((self.left_out & ~self.known).sum()))

    def put(self, inner: int, fold: int, score: float) -> None:
        """Add a score of the current outer setting, and save a checkpoint if it is due."""
        self.values[self.outer, inner, fold], self.known[self.outer, inner, fold] = score, True
        self._advance(1)
        if self._kept.due():
            self.save()

    def save(self) -> None:
        """Save all known scores in the checkpoint."""
        self._kept.save({"values": self.values, "known": self.known}, {})

    def finish(self) -> None:
        """Save the scores of a finished search in the checkpoint."""
        self._kept.finish({"values": self.values, "known": self.known}, {})


def _shared(
    model: Any,
    sources: Mapping[str, Rows],
    maps: Mapping[int, SharedMaps],
    factor: float | None,
    task: _Task,
    grid: Mapping[str, Sequence[Any]],
    scores: _Scores,
    ruled: Sequence[Any],
    loo: bool,
) -> list[dict[str, Any]]:
    """Score and return candidates that share exact kernels, or moments of low-rank kernels."""
    solved = model._factored_by + model._solved_by
    algebra = list(settings({key: grid[key] for key in grid if key in solved}))
    decoders = list(settings({key: grid[key] for key in grid if key in model._decoded_by}))
    rules = [told((getattr(own, "intercept", None), getattr(own, "decoder", None))) for own in ruled]

    wanted = ~(scores.known | scores.left_out)[scores.outer].reshape(len(algebra), len(decoders), -1).all(axis=1).T
    truths = [task.truth(number) for number in range(task.folds)]
    keys = sample_keys(model, task.labels, sources) if loo and not task.real else None
    pairwise = get_tags(model).input_tags.pairwise  # With a kernel matrix, keys are positions of the training samples.

    def scored(fit: tuple[int, int, HeldOut]) -> list[tuple[int, float]]:
        number, i, held = fit
        by_components: dict[float | None, list[int]] = {}
        for j, decoder in enumerate(decoders):
            if scores.wanted(i * len(decoders) + j, number):
                count = decoder.get("n_components", getattr(model, "n_components", None))
                by_components.setdefault(count, []).append(j)
        center = model._centers and algebra[i].get("center", model.center)
        n_train = len(task.labels) - len(truths[number])

        def score(j: int, raw: np.ndarray, loo: np.ndarray | None) -> float:
            if held.units is None:
                some = None if keys is None else keys[:n_train] if pairwise else keys[task.fold != number]
                values = _decoded(ruled[j], held, raw, loo, some, n_train)
            else:
                values = (raw + held.frequency if center else raw) * held.units.scale + held.units.shift
            return task.metric(truths[number], values)

        def key(count: float | None, j: int, memory: Memory) -> Hashable:
            if held.key is None or not isinstance(task.name, str):
                return object()
            return held.key, held.components[count], rules[j], task.name, memory.name(truths[number])

        return [
            (i * len(decoders) + j, remembered(partial(score, j, raw, loo), 8.0, partial(key, count, j)))
            for count, raw, loo in held.scores(by_components)
            for j in by_components[count]
        ]

    fits = _fits(model, sources, maps, factor, task, algebra, decoders, wanted, loo)
    while batch := list(itertools.islice(fits, thread_count())):
        for (number, _, _), found in zip(batch, in_threads(scored, batch), strict=True):
            for inner, score in found:
                scores.put(inner, number, score)
    return [{**setting, **decoder} for setting in algebra for decoder in decoders]


def _fits(
    model: Any,
    sources: Mapping[str, Rows],
    maps: Mapping[int, SharedMaps],
    factor: float | None,
    task: _Task,
    algebra: Sequence[Mapping[str, Any]],
    decoders: Sequence[Mapping[str, Any]],
    wanted: np.ndarray,
    loo: bool,
) -> Iterator[tuple[int, int, HeldOut]]:
    """Yield the fold, the candidate index and the held-out scores of fits, for at least the `wanted` candidates."""

    def in_turn(some: np.ndarray) -> list[int]:
        """Order candidates so that those that share factorizations are adjacent, by increasing other parameters."""
        kinds = [tuple(str(algebra[i].get(key)) for key in model._factored_by) for i in some]
        numbers = [tuple(algebra[i].get(key, 0.0) for key in model._solved_by) for i in some]
        return [int(i) for *_, i in sorted(zip(kinds, numbers, some, strict=True))]

    # With exact kernels, each fold fits only its wanted candidates. With low-rank kernels, every fold fits all
    # candidates that are wanted in any fold.
    exact = is_exact(decided(model))
    groups = [[number] for number in np.flatnonzero(wanted.any(axis=1)).tolist()]
    if not exact:
        groups = [[number for group in groups for number in group]] if groups else []
    for numbers in groups:
        left = in_turn(np.flatnonzero(wanted[numbers].any(axis=0)))
        given = model, sources, task.labels, task.fold, [algebra[i] for i in left], decoders, loo, numbers, task.real
        for number, i, held in ExactFolds(*given) if exact else MomentFolds(*given, maps, factor):
            yield number, left[i], held


def _decoded(
    model: Any, held: HeldOut, raw: np.ndarray, loo: np.ndarray | None, keys: np.ndarray | None, n_train: int
) -> np.ndarray:
    """Decode scores of held-out samples with the decoder of a candidate, learned from `n_train` samples."""
    decoder = as_decoder(model._decoder)
    if decoder is not None:
        assert loo is not None
        assert held.labels is not None
        with remembering(0.0):
            return unseen_last(decoder.learn([loo], held.labels, keys=keys)([raw]), held.frequency > 0)
    by = model._by_scores
    rule = getattr(model, "intercept", False), by.standardize, by.prior_power, by.propensity
    return ScoreRule.learn(held.frequency, n_train, loo, *rule)(raw)


def _ruled(model: Any, grid: Mapping[str, Sequence[Any]]) -> list[Any]:
    """Return a clone of a model for each candidate in the decoding parameters of a grid."""
    return [with_setting(model, own) for own in settings({key: grid[key] for key in grid if key in model._decoded_by})]


def _one_by_one(
    model: Any,
    sources: Mapping[str, Rows],
    task: _Task,
    grid: Mapping[str, Sequence[Any]],
    scores: _Scores,
) -> list[dict[str, Any]]:
    """Score every candidate by separate fits, and return the candidates."""
    tried, pairwise = list(settings(grid)), get_tags(model).input_tags.pairwise
    for number in range(task.folds):
        left = [i for i in range(len(tried)) if scores.wanted(i, number)]
        if not left:
            continue
        train, test = np.flatnonzero(task.fold != number), np.flatnonzero(task.fold == number)
        old, new = (input_of(sources, index, train, pairwise) for index in (train, test))
        y = _safe_indexing(task.given, train)
        with part_of_more(scores.save):
            for i in left:
                fitted = with_setting(model, tried[i])
                fitted._only_scores = True  # Scores suffice, so the fit does not learn label sets.
                fitted.fit(old, y if task.real else targets(fitted, y))
                scores.put(i, number, task.metric(task.truth(number), label_scores(fitted, new)))
    return tried
