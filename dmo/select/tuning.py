"""Automatic choice of kernel, bandwidth, ridge and decoder by cross-validation.

A search consists of several rounds of cross-validation. The first round compares kernels, bandwidths and scalings with
a few ridges, on a subset if there are many samples. The second round uses more samples, and varies bandwidths and
ridges around the best two kinds of model as long as the score improves. Later rounds vary the ridge on still more
samples, and finally the decoder. The parameters of the given estimator are also candidates, so the cross-validation
score cannot decrease.

A round is a race, which drops candidates that cannot win after one and after two folds. The first round keeps a quarter
of the candidates, and later rounds drop candidates with a score far below the best score.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from sklearn.base import BaseEstimator, clone, is_regressor
from sklearn.utils import _safe_indexing, get_tags

import dmo
from dmo.blocks import SINGLE, Rows, Subset, presence, reads_sparse, rows, spread
from dmo.decide.decoders import Calibration, PlugIn, Scores
from dmo.errors import MissingValues, UserError
from dmo.fit.engine import is_exact, reasoned_engine
from dmo.fit.view_neighbors import named_distances
from dmo.inputs import (
    Inputs,
    Outputs,
    check_raw_views,
    densified,
    is_label_sets,
    label_rank,
    naming,
    paired,
    per_view,
    prepare_views,
    sample_count,
)
from dmo.inputs.needs import warn_caller
from dmo.inputs.outputs import hierarchy_of
from dmo.inputs.preparation import scalable
from dmo.inputs.views import KeptRows
from dmo.kernels import Linear, parse, rescaled
from dmo.kernels.base import BandwidthKernel
from dmo.kernels.composite import is_pairwise
from dmo.kernels.product import ProductKernel, is_product
from dmo.memory import remembering
from dmo.methods.annotator import Annotator, targets
from dmo.methods.catalog import METHODS
from dmo.methods.ridge import MultiViewRidge
from dmo.methods.view_weights import PER_TARGET
from dmo.parameters import nested
from dmo.progress import shown
from dmo.registry import REGISTRY
from dmo.select.sweeps import (
    Metric,
    SweepResult,
    compared,
    counted_labels,
    default_metric,
    has_gaps,
    input_of,
    making_sets,
    names_rule,
    searched_labels,
    settings,
    stratified_folds,
    with_setting,
)

log = logging.getLogger("dmo")
Grid = Mapping[str, Sequence[Any]]
_WIDTHS = (0.4, 1.0, 2.5)
_RIDGES = (0.03, 0.1, 0.3, 1.0, 3.0)
_SIZES = (600, 1500, 5000)  # maximum number of samples in the first round, the second round and later rounds
_ROUGH = 1e-3  # relative duality gap at which support vector regressions stop in a comparison
_STEP = {"ridge": 3.0, "bandwidth": 1.6, "gamma": 1.6}
_NEAR, _FAR = 0.5, 2.0  # numbers of standard deviations over folds below the best score at which candidates are dropped
_STEPS, _FACTOR = 4, 3.0  # maximum number of values that extend a grid, and the factor between them


def tune(
    estimator: str | BaseEstimator,
    X: Inputs,
    Y: Outputs,
    grid: Grid | None = None,
    metric: str | Metric | None = None,
    cv: int = 4,
    random_state: int | None = 0,
) -> Any:
    """Choose the parameters of an estimator by cross-validation, and fit it on all samples.

    Parameters
    ----------
    estimator : str or estimator
        Estimator, or its name in the command `dmo tune`, such as "ridge", "kgha" or "morp". Parameters that `grid` does
        not list keep their values.
    X : mapping of view to rows, list of rows, or rows
        Views of the n training samples. If arrays or tables have missing values and the estimator imputes nothing, they
        are replaced by the means of the training rows, as by `prepare=Prepare(impute="mean")`, with a warning.
    Y : array-like of shape (n, L) or (n,), or n lists of labels
        Labels or regression targets, in any form that `fit` of the estimator accepts.
    grid : mapping of str to sequence, default=None
        Candidate values of each parameter. The search scores all their combinations and the parameters of the
        estimator. If the best of at least three values of `ridge`, `bandwidth`, `C` or `balance` is the smallest or the
        largest, more values are tried. With None, the search tries the kernel of the estimator and a linear kernel,
        with several bandwidths, column scalings, ridges, intercepts and decoders. It tries a Laplacian kernel for dense
        rows that are not histograms. For several views, it also tries product kernels of their distances, with equal
        weights and with weights learned from y.
    metric : str or callable, default=None
        Metric that ranks the candidates; see `dmo.metrics.metric_of`. None selects a metric for the type of y; see
        `dmo.select.sweeps.default_metric`. If the metric is also the name of a decoder, such as "f1@5", the search
        tries this decoder, unless the estimator already has a decoder.
    cv : int, default=4
        Number of cross-validation folds, which are stratified by the labels.
    random_state : int or None, default=0
        Seed that determines the assignment of samples to folds.

    Returns
    -------
    estimator
        Best estimator, fitted on all samples. Its attribute `tuning_` is a SweepResult with `best_params_`,
        `best_score_`, `best_estimator_` and `cv_results_`.

    Raises
    ------
    UserError
        If the name of the estimator, a parameter or the metric is unknown.

    Notes
    -----
    Searches and fits that take longer than a second show progress bars in terminals and notebooks. To disable them,
    call `dask.config.set({"dmo.progress": False})`, or set the environment variable `DASK_DMO__PROGRESS=false`.

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> import dmo
    >>> X, Y = make_multilabel_classification(n_samples=120, n_classes=5, random_state=0)
    >>> model = dmo.tune("ridge", X, Y, grid={"ridge": [0.1, 1.0, 10.0]})
    >>> model.predict(X[:2]).shape, model.tuning_.metric, {row["ridge"] for row in model.tuning_.table} > {0.1, 1.0, 10.0}
    ((2, 5), 'ranking', True)
    """
    return search(_named(estimator), X, Y, grid, metric, cv, random_state).best_estimator


def search(
    estimator: BaseEstimator,
    X: Inputs,
    Y: Outputs,
    grid: Grid | None = None,
    metric: str | Metric | None = None,
    cv: int = 4,
    random_state: int | None = 0,
) -> SweepResult:
    """Choose parameters like `tune`, and return a SweepResult that contains the fitted estimator."""
    estimator = making_sets(estimator, metric) if "decoder" not in (grid or ()) else estimator
    Y, _ = paired(X, Y)
    if "prepare__impute" not in (grid or ()):
        estimator = _imputing(estimator, X)
    problem = _Problem.of(estimator, X, Y, metric, cv, random_state)
    how = getattr(estimator, "_search", "grid")
    with shown(), remembering():
        if grid is None and how == "kernels":
            found = _kernel_search(problem)
        elif grid is None and how == "machines":
            found = _machine_search(problem)
        else:
            grid = problem.held(_default_grid(estimator) if grid is None else grid)
            found = problem.with_own(problem.extended([grid]), grid)
            asked = [values for name, values in grid.items() if name.startswith("decoder")]
            if problem.rule is not None and "decoder" not in grid and all(len(values) > 1 for values in asked):
                chosen = {key: value for key, value in _fixed(found).items() if not key.startswith("decoder")}
                if getattr(estimator, "_decoder_uses_left_out", False) and len(grid.get("ridge", ())) > 1:
                    chosen["ridge"] = _around(found["ridge"])
                found = problem.extended([{**chosen, **problem.decoders}])
        return problem.finished(found)  # Inside the context, the final fit reuses distances from the last round.


def _imputing(estimator: Any, X: Any) -> Any:
    """Return the estimator, which imputes means if it imputes nothing and X in memory has missing values."""
    if "prepare" not in estimator.get_params(deep=False) or estimator._prepare.impute is not None:
        return estimator
    try:
        with naming(estimator):
            check_raw_views(clone(estimator), X, reset=True, partial=getattr(estimator, "_takes_partial_views", False))
    except MissingValues:
        warn_caller(
            "tune: missing values are replaced by the means of their columns; pass an estimator with "
            "prepare=Prepare(impute='mean'), 'median' or 'zero' to choose the replacement"
        )
        return clone(estimator).set_params(prepare__impute="mean")
    return estimator


@dataclass
class _Problem:
    """Data and options of a search, the samples that it uses, and a table of all scored candidates."""

    estimator: Any
    X: Any
    Y: Any
    views: Mapping[str, Rows]
    labels: Any  # labels or targets as returned by `searched_labels`
    real: bool
    metric: str | Metric
    cv: int
    random_state: int | None
    rule: str | None = None  # decoder with the name of the metric; None: no such decoder, or the estimator has its own
    chosen: np.ndarray | None = None  # indices of the samples in use; None: all samples
    table: list[dict[str, Any]] = field(default_factory=list)
    tried: set[str] = field(default_factory=set)  # candidates that were scored on any number of samples

    @classmethod
    def of(
        cls, estimator: Any, X: Any, Y: Any, metric: str | Metric | None, cv: int, random_state: int | None
    ) -> _Problem:
        probe = clone(estimator)
        with naming(estimator):
            if "prepare" in probe.get_params():
                probe.set_params(prepare__impute="mean")
            views = check_raw_views(probe, X, reset=True, partial=getattr(probe, "_takes_partial_views", False))
            labels, real = searched_labels(probe, Y, sample_count(views))
        if not (real or isinstance(probe, Annotator)) and is_regressor(probe) and (is_label_sets(Y) or np.ndim(Y) == 1):
            Y = labels  # Regressors get one column of targets per label.
        if metric is None:
            metric = default_metric(labels, getattr(probe, "multilabel_", True), real)
        if not is_pairwise(getattr(probe, "kernel", None)):
            views = KeptRows.held(views)
        takes = "decoder" in probe.get_params(deep=False) and Scores._takes(probe.decoder)
        ranks = takes and not real and getattr(probe, "multilabel_", True) and names_rule(metric)
        return cls(estimator, X, Y, views, labels, real, metric, cv, random_state, str(metric) if ranks else None)

    @property
    def leaves_out(self) -> bool:
        """Whether fits provide leave-one-out scores in closed form, so that decoders need no additional fits."""
        model = self.estimator
        exact = getattr(model, "_decoder_uses_left_out", False) and model.approximation in ("auto", "exact")
        whole = all(presence(source) is None for source in self.views.values()) and not has_gaps(self.labels)
        return exact and whole and getattr(model, "class_weight", None) is None

    @property
    def decoders(self) -> Grid:
        """Candidate values of the decoder."""
        tree = hierarchy_of(self.estimator)
        if tree is not None:
            return {
                "decoder": [Calibration(hierarchy=tree) if self.rule is None else PlugIn(self.rule, hierarchy=tree)]
            }
        return {"decoder": ["calibrated" if self.rule is None else self.rule]}

    def known(self, grid: Grid) -> dict[str, Sequence[Any]]:
        """Return the part of a grid that lists parameters of the estimator."""
        own = nested(self.estimator)
        return {name: values for name, values in grid.items() if name in own}

    def held(self, grid: Grid) -> Grid:
        """Limit default values of `n_components` to the maximum for a training fold, and drop unused ridges."""
        defaults, held = _grid_of_class(type(self.estimator)), dict(grid)
        methods = [METHODS[name].parameters for name in grid.get("method", ()) if name in METHODS]
        if held.get("ridge") == defaults.get("ridge") and not all("ridge" in known for known in methods):
            del held["ridge"]
        own = grid.get("n_components", ())
        if own != defaults.get("n_components") or not all(isinstance(value, int) for value in own):
            return held
        n, L = self.labels.shape
        most = n - -(-n // self.cv) - 1
        kernels = grid.get("kernel", (getattr(self.estimator, "kernel", "linear"),))
        by_view = [part for kernel in kernels for part in per_view("kernel", kernel, list(self.views)).values()]
        if any(isinstance(parse(part), Linear) for part in by_view):
            most = min(most, sum(source.shape[1] for source in self.views.values()))
        if methods:  # Supervised methods cannot have more components than the labels have dimensions.
            most = min(most, label_rank(densified(counted_labels(self.labels))), L - 1)
        held["n_components"] = tuple(dict.fromkeys(min(value, max(1, most)) for value in own))
        if held["n_components"] != own:
            log.info("tune: n_components is at most %d, the maximum for the samples of a fold, columns or labels", most)
        return held

    def on(self, most: int) -> _Problem:
        """Return the problem on a stratified subset of at most `most` samples, with an empty table."""
        n = len(self.labels)
        chosen = None
        if n > most:
            part = stratified_folds(counted_labels(self.labels), (most / n, 1 - most / n), self.random_state)
            chosen = np.flatnonzero(part == 0)
        return replace(self, chosen=chosen, table=[])

    def sweep(self, grids: Sequence[Grid], race: float | None = None) -> dict[str, Any]:
        """Score the candidates of some grids, and return the best row of the table.

        Candidates more than `race` standard deviations below the best are dropped; inf keeps the leading ones.
        """
        X, Y = self.X, self.Y
        if self.chosen is not None:
            pairwise = get_tags(self.estimator).input_tags.pairwise
            X, Y = input_of(self.views, self.chosen, self.chosen, pairwise), _safe_indexing(Y, self.chosen)
        elif list(self.views) != [SINGLE]:
            X = self.views
        # Low-rank fits share passes over the data, so dropping some candidates would not save time.
        exact = getattr(self.estimator, "approximation", None) in ("auto", "exact")
        failed: list[UserError] = []
        for grid in grids:
            try:
                floors = None
                if exact and race is not None and (np.isinf(race) or self.table):
                    floors = [-race if np.isinf(race) else self._behind(race, folds) for folds in (1, 2)]
                found, _ = compared(self.estimator, X, Y, grid, self.cv, self.metric, self.random_state, floors)
                self.table += found.table
                self.tried |= {str(setting) for setting in settings(grid)}
            except UserError as error:
                failed.append(error)
        if not self.table:
            raise failed[0]
        for reason in failed:
            warnings.warn(f"tune: some candidates are left out: {reason}", stacklevel=2)
        return self.best()

    def _behind(self, deviations: float, folds: int) -> float:
        """Return the mean score of the best row over the first folds, minus a number of standard deviations."""
        best = self.best()
        return float(np.mean(best["folds"][:folds]) - deviations * best["std"] / np.sqrt(folds))

    def grown(self, most: int, rows: Sequence[dict[str, Any]]) -> _Problem:
        """Score some candidates, and neighboring ridges, on more samples; return self if all samples are in use."""
        if self.chosen is None:
            return self
        more = self.on(most)
        more.sweep([_fixed(row) | {"ridge": _around(row["ridge"])} for row in rows], _NEAR)
        return more

    def kinds(self) -> list[dict[str, Any]]:
        """Return the best row for each kind of model, with the best kind first; `_kind` defines the kinds."""
        ranked = sorted(self.table, key=lambda row: row["mean"])
        return sorted({_kind(row): row for row in ranked}.values(), key=lambda row: -row["mean"])

    def best(self) -> dict[str, Any]:
        return max(self.table, key=lambda row: row["mean"])

    def extended(self, grids: Sequence[Grid], more: Sequence[str] = ()) -> dict[str, Any]:
        """Score grids, extend a grid while its smallest or largest value is the best, and return the best row."""
        best = self.sweep(grids)
        for name in dict.fromkeys(name for grid in grids for name in grid if name in (*_OPEN, *more)):
            more_values: list[float] = []
            while len(more_values) < _STEPS and (beyond := self._beyond(best, name)) is not None:
                more_values.append(beyond)
                best = self.sweep([_fixed(best) | {name: [beyond]}])
            if more_values:
                listed = ", ".join(f"{value:g}" for value in more_values)
                log.info("tune: the best %s was at the edge of its candidates; also tried: %s", name, listed)
        return best

    def _beyond(self, best: Mapping[str, Any], name: str) -> float | None:
        """Return a value beyond the tried values of a parameter, or None if the best value is not at the edge."""
        at: Any = best.get(name)
        rest = {key: value for key, value in setting_of(best).items() if key not in (name, *_OPEN)}
        tried = {row[name] for row in self.table if _agrees(row, rest) and _is_number(row.get(name))}
        if not _is_number(at) or len(tried) < 3 or min(tried) < at < max(tried):
            return None
        return float(f"{at * _FACTOR if at == max(tried) else at / _FACTOR:.3g}")

    def with_own(self, best: dict[str, Any], grid: Grid) -> dict[str, Any]:
        """Score the original parameters, unless the grid fixes their values, and return the best row of the table."""
        if not getattr(self.estimator, "_decodes", True):  # The original estimator does not predict labels.
            return best
        own = nested(self.estimator)
        free = {key: own[key] for key, values in grid.items() if len(values) > 1 and key in own}
        setting = {key: values[0] for key, values in grid.items() if len(values) == 1} | free
        if not setting or any(setting_of(row) == setting for row in self.table):
            return best
        if not getattr(with_setting(self.estimator, setting), "_decodes", True):  # Method "pca" predicts no outputs.
            return best
        found = self.sweep([{key: [value] for key, value in setting.items()}])
        if found is not best:
            log.info("tune: no candidate was better than the original parameters")
        return found

    def climbed(self, row: dict[str, Any], names: Sequence[str] = ("bandwidth", "gamma", "ridge")) -> dict[str, Any]:
        """Improve a row by hill climbing in its ridge and bandwidth, and return the best row of the table."""
        for _ in range(2 * _STEPS):
            given = setting_of(row)
            around = {name: _around(given[name], _STEP[name]) for name in names if _is_number(given.get(name))}
            fixed = {key: value for key, value in given.items() if key not in around}
            known = [other for other in self.table if _agrees(other, fixed) and other.keys() == row.keys()]
            new = [
                setting
                for setting in settings(around)
                if not any(all(np.isclose(other[key], setting[key], rtol=0.15) for key in around) for other in known)
            ]
            ridges: dict[tuple[Any, ...], list[Any]] = {}
            for setting in new:
                width = tuple((key, value) for key, value in setting.items() if key != "ridge")
                ridges.setdefault(width, []).append(setting["ridge"])
            self.sweep([_fixed(fixed | dict(width)) | {"ridge": values} for width, values in ridges.items()], _NEAR)
            alike = [other for other in self.table if _agrees(other, fixed) and other.keys() == row.keys()]
            best = max(alike, key=lambda other: other["mean"])
            if best is row or best["mean"] <= row["mean"]:
                break
            row = best
        return self.best()

    def finished(self, best: Mapping[str, Any]) -> SweepResult:
        """Fit the best candidate on all samples, and return the result of the search."""
        params = setting_of(best)
        final = with_setting(self.estimator, params)
        final.fit(self.X, self.Y if self.real else targets(final, self.Y))
        name = self.metric if isinstance(self.metric, str) else getattr(self.metric, "__name__", "metric")
        result = SweepResult(self.table, name, params, best["mean"], final, len(self.tried))
        final.tuning_ = result
        return result


_OPEN = ("ridge", "bandwidth", "C", "balance")
"""Parameters whose grids are extended: positive numbers without an upper bound, on a logarithmic scale."""


def setting_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a candidate from its row of the table, without its scores."""
    return {key: value for key, value in row.items() if key not in ("mean", "std", "folds")}


def _agrees(row: Mapping[str, Any], setting: Mapping[str, Any]) -> bool:
    return all(key in row and row[key] == value for key, value in setting.items())


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _named(estimator: Any) -> Any:
    if not isinstance(estimator, str):
        return estimator
    tuned = [entry for entry in REGISTRY.values() if entry.grid]
    names = {entry.command: entry.name for entry in tuned} | {entry.name.lower(): entry.name for entry in tuned}
    if estimator.lower() not in names:
        raise UserError(f"tune: estimator {estimator!r} is unknown; pass one of {', '.join(names)}, or an object")
    return getattr(dmo, names[estimator.lower()])()


def _grid_of_class(kind: type) -> Grid:
    """Return the default grid of a class or of its nearest base class with one, or an empty grid."""
    return next((REGISTRY[base.__name__].grid for base in kind.__mro__ if base.__name__ in REGISTRY), {})


def _default_grid(estimator: BaseEstimator) -> Grid:
    """Return the default grid of an estimator; raise an error if there is none."""
    found = _grid_of_class(type(estimator))
    if not found:
        name = type(estimator).__name__
        raise UserError(
            f"tune: {name} has no default grid; pass the values to try, such as grid={{'ridge': [0.1, 1.0]}}"
        )
    return found


def _kernel_search(problem: _Problem) -> dict[str, Any]:
    """Search in rounds for kernel, bandwidth, scaling, ridge and decoder, and return the best row."""
    by_target = getattr(problem.estimator, "weights", None) == PER_TARGET
    if by_target:  # Weights per target are tried at the end, so search without view weights first.
        problem.estimator = clone(problem.estimator).set_params(weights=None, combine="kernels")
    estimator, first = problem.estimator, problem.on(_SIZES[0])
    first.sweep(_first_round(problem), race=np.inf)
    if not by_target and _takes_products(problem):
        if "combine" in nested(estimator):
            for best in first.kinds()[:2]:
                powers = _takes_powers(best.get("kernel", estimator.kernel), problem)
                how = ["kernels", "product"] if powers else ["kernels"]
                first.sweep([_fixed(best) | {"ridge": _RIDGES, "combine": how}], race=np.inf)
        first.sweep([_product(problem, first.best())], race=np.inf)
    kinds = first.kinds()
    middle = first.grown(_SIZES[1], kinds[:3])
    best, *others = middle.kinds()
    for row in (best, *(other for other in others[:1] if other["mean"] + other["std"] > best["mean"])):
        middle.climbed(row)  # With a suitable bandwidth, the second kind of model may become the best one.
    last = middle.grown(_SIZES[2], middle.kinds()[:2])
    if last is not middle:
        last.climbed(last.best(), ("ridge",))
    chosen = _fixed(last.best())
    if space := problem.known({"n_components": [0.8, 1.0], "balance": [0.001, 0.01, 0.1]}):
        chosen = _fixed(last.sweep([chosen | space]))
    if not problem.real:
        decoded = {**chosen, **problem.known(problem.decoders)}
        others = [] if "decoder" in chosen else [chosen | problem.known({"intercept": [False]}), decoded]
        last.sweep([*others, decoded | {"center": [False]}], _NEAR)
        last.climbed(last.best(), ("ridge",))  # Scores and probabilities have different best ridges.
    found = last.sweep([{"ridge": [estimator.ridge]}], _FAR)  # The original parameters are also candidates.
    if by_target:
        last.sweep([_fixed(found) | {"weights": [PER_TARGET]}])
        found = next((row for row in last.table if "weights" in row), found)
    problem.table, problem.chosen = last.table, last.chosen
    if last.chosen is not None:
        log.info("tune: chosen on %d of %d samples", len(last.chosen), len(problem.labels))
    kind = "" if len(kinds) == 1 else f", best of {len(kinds)} kernels and scales"
    log.info("tune: %d candidates%s, the leading ones on %d folds", len(problem.tried), kind, problem.cv)
    return found


def _takes_products(problem: _Problem) -> bool:
    """Return whether a single exact kernel can combine the views: all are complete, and their kernels fit in memory."""
    estimator, names = problem.estimator, list(problem.views)
    if (
        len(names) == 1
        or not hasattr(estimator, "_product")
        or is_product(estimator.kernel)
        or any(presence(view) is not None for view in problem.views.values())
    ):
        return False
    engine, _ = reasoned_engine(estimator.approximation, len(problem.labels), len(names))
    return all(is_exact(own) for own in per_view("approximation", engine, names).values())


def _product(problem: _Problem, best: Mapping[str, Any]) -> Grid:
    """Return a grid of product kernels with equal or learned weights, and with the scaling of the best row."""
    estimator = problem.estimator
    learned: Literal["tagprop", "alignment"] = "alignment" if problem.real else "tagprop"
    own: dict[str, Sequence[Any]]
    if {"distances", "weights", "gamma"} <= nested(estimator).keys():
        distances = estimator.distances
        own = {"kernel": ["product"], "weights": [None, learned], "gamma": [estimator.gamma]}
    else:
        distances, own = "auto", {"kernel": [ProductKernel(), ProductKernel(weights=learned)]}
    named = named_distances(distances, problem.views).values()
    scale = best["prepare__scale"] if set(named) == {"l2"} else estimator._prepare.scale
    kept = {key: [best[key]] for key in ("intercept", "n_components", "balance", "decoder") if key in best}
    return own | kept | {"prepare__scale": [scale], "ridge": _RIDGES}


def _takes_powers(kernel: Any, problem: _Problem) -> bool:
    """Return whether all kernels are exponential functions, whose powers and products are kernels as well."""
    return all(
        isinstance(parse(one), BandwidthKernel) for one in per_view("kernel", kernel, list(problem.views)).values()
    )


def _kind(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the kind of a candidate, which consists of kernel, scaling, combination and weights of the views."""
    return tuple(str(row.get(key)) for key in ("kernel", "prepare__scale", "combine", "weights"))


def _fixed(row: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
    """Return a grid that contains only the candidate of a row."""
    return {key: [value] for key, value in setting_of(row).items()}


def _around(value: float, factor: float = _FACTOR) -> list[float]:
    return [float(f"{value * step:.3g}") for step in (1 / factor, 1.0, factor)]


def _machine_search(problem: _Problem) -> dict[str, Any]:
    """Choose kernel, bandwidth and scaling by ridge regression, then C, epsilon and frame; return the best row.

    C is tried around 1 / ridge, because the squared loss error^2 / (2 ridge) has the slope C at the error C ridge.
    """
    machine = problem.estimator
    like = {"prepare": machine._prepare, "random_state": machine.random_state}
    regression = MultiViewRidge(machine.kernel, combine="kernels", targets="real" if problem.real else "labels", **like)
    best = _kernel_search(replace(problem, estimator=regression, table=[]))
    grid: dict[str, Sequence[Any]] = {
        key: [best[key]] for key in ("kernel", "bandwidth", "prepare__scale") if key in best
    }
    grid |= {"C": [float(f"{share / best['ridge']:.3g}") for share in (0.1, 0.3, 1.0)], "epsilon": [0.01, 0.1]}
    if "frame" in nested(machine):
        grid["frame"] = ["local", "identity"]
    own = {name: [getattr(machine, name)] for name in ("C", "epsilon")}
    last = replace(problem, estimator=clone(machine).set_params(tol=max(machine.tol, _ROUGH))).on(_SIZES[1])
    last.sweep([own])
    found = last.extended([grid])
    problem.table, problem.chosen = last.table, last.chosen
    return found


def _first_round(problem: _Problem) -> list[Grid]:
    """Return the grids of the first round, which combine kernels, bandwidths and scalings with a few ridges."""
    estimator = problem.estimator
    grids: list[Grid] = []
    asked: dict[str, Sequence[Any]] = {} if problem.real else {"intercept": [True]}
    more = problem.known(asked | {"n_components": [1.0], "balance": [0.01]})
    if problem.rule is not None and problem.leaves_out:
        # With this decoder, the best kernel may be one whose plain predictions have a low score.
        more = {**more, **problem.decoders}
    given = is_pairwise(estimator.kernel)
    own_scale = estimator._prepare.scale
    scales = ["auto", "standard"] if own_scale == "auto" and not given else [own_scale]
    free = all(scalable(estimator, list(problem.views)).values())  # whether all kernels allow scaled columns
    sparse = any(reads_sparse(part) for part in problem.views.values())
    if len(scales) > 1 and (sparse or any(spread(source)[1] for source in problem.views.values())):
        scales.append("l2")  # The length of a document should not matter for word counts.
    for scale in scales:
        own: dict[str, Sequence[Any]] = {"prepare__scale": [scale]} | more
        if not given and estimator.kernel != "linear":
            try:
                rescaled(estimator.kernel, 1.0)
                own = own | {"bandwidth": _WIDTHS}
            except (UserError, TypeError, AttributeError):  # The kernel has no bandwidth.
                pass
        if estimator.kernel != "linear" and (free or scale != "standard"):
            grids.append(own | {"ridge": _RIDGES})
        if "bandwidth" in own and free and not sparse and scale == scales[-1] and estimator.kernel != "laplacian":
            # A Laplacian kernel is a smooth alternative to tree ensembles. A single bandwidth suffices, because the
            # ridge has nearly the same effect.
            grids.append(own | {"kernel": ["laplacian"], "bandwidth": [1.0], "ridge": _RIDGES})
        if not given and not is_product(estimator.kernel) and getattr(estimator, "combine", "") != "product":
            unit = _mean_square(problem, scale)
            ridges = [float(f"{unit * ridge:.3g}") for ridge in (0.01, *_RIDGES)]
            linear: dict[str, Sequence[Any]] = {"kernel": ["linear"], "prepare__scale": [scale]}
            grids.append(linear | more | {"ridge": ridges})
    return grids


def _mean_square(problem: _Problem, scale: Any) -> float:
    """Compute the mean squared norm of centered rows over all views, which is the unit for ridges of linear kernels."""
    probe = clone(problem.estimator).set_params(kernel="linear", prepare__scale=scale)
    n = len(problem.labels)
    some = np.arange(n) if n <= 1000 else np.sort(np.random.default_rng(0).choice(n, 1000, replace=False))
    part: dict[str, Rows] = {name: Subset(source, some) for name, source in problem.views.items()}
    found = []
    for source in prepare_views(probe, part, reset=True).values():
        block = rows(source)
        mean = np.asarray(block.mean(axis=0)).ravel()
        squares = block.multiply(block) if hasattr(block, "multiply") else np.square(block, dtype=np.float64)
        found.append(
            float(np.nansum(squares) if isinstance(squares, np.ndarray) else squares.sum()) / len(some) - mean @ mean
        )
    return max(float(np.mean(found)), np.finfo(float).tiny)
