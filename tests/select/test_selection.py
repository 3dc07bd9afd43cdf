"""Compare sweeps and tuning with separate fits of every candidate."""

from dataclasses import KW_ONLY
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import xarray as xr
from sklearn.base import clone
from sklearn.datasets import load_iris, make_multilabel_classification
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.metrics import (
    f1_score,
    jaccard_score,
    mean_absolute_error,
    r2_score,
    roc_auc_score,
    root_mean_squared_error,
)
from sklearn.model_selection import StratifiedKFold
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
from sklearn.svm import SVR

import dmo
import dmo.fit.fitted_views
import dmo.fit.row_sums
import dmo.methods.kgha
import dmo.methods.shared_fits
import dmo.select.tuning
from dmo import (
    JEC,
    KGHA,
    LLTSVR,
    Exact,
    Meka,
    MultiViewRidge,
    NeighborVotes,
    Nystrom,
    Prepare,
    ProductKernel,
    Solver,
    TagProp,
    TwoPassKNN,
    Views,
)
from dmo.blocks import Subset
from dmo.datasets import Samples
from dmo.decide.out_of_fold import LeftOut, dealt, row_keys
from dmo.decoders import Scores
from dmo.errors import UserError
from dmo.fit import ridge_solves
from dmo.fit.engine import FOLDS, fit_maps, pass_of
from dmo.fit.fitted_views import Groups
from dmo.fit.functions import FactorExpansion, added
from dmo.fit.moments import LABELS as OUTPUTS
from dmo.fit.view_neighbors import named_distances
from dmo.formats.arff import read_arff, read_label_list
from dmo.hashing import fingerprint
from dmo.inputs import Data
from dmo.inputs.views import KeptRows
from dmo.kernels import RBF, Laplacian, Product, parse
from dmo.kernels.base import RowKernel
from dmo.kernels.composite import NAMED
from dmo.kernels.multikernel import MultiKernel
from dmo.memory import remembered, remembering
from dmo.methods.annotator import Annotator
from dmo.methods.homogeneity_maps import LabelSubspace
from dmo.methods.shared_fits import HeldOut, SharedFit, SharedFits
from dmo.metrics import annotation_scores, metric_of
from dmo.parameters import Part, parametrized
from dmo.select.sweeps import compared, default_metric, making_sets, stratified_folds
from dmo.selection import sweep
from dmo.stores import ViewSpec, create_features, open_features
from dmo.workflows.evaluation import judge

RNG = np.random.default_rng(0)
VIEWS = {"a": RNG.standard_normal((160, 6)), "b": RNG.standard_normal((160, 4))}
LABELS = ((np.hstack(list(VIEWS.values())) @ RNG.standard_normal((10, 7))) > 1.5).astype(np.uint8)
LOW_RANK = Nystrom(rank=60, random_state=0)


def f1_of_two(Y, S):
    return annotation_scores(Y, S, top=2).f1


def separately(model, setting, folds=3, views=VIEWS, metric=f1_of_two):
    """Cross-validate one candidate with an explicit loop."""
    number = stratified_folds(LABELS, folds, 0)
    scores = []
    for fold in range(folds):
        train, test = number != fold, number == fold
        fitted = clone(model).set_params(**setting).fit({v: X[train] for v, X in views.items()}, LABELS[train])
        scored = fitted.decision_function({v: X[test] for v, X in views.items()})
        scores.append(metric(LABELS[test], scored))
    return scores


@pytest.mark.parametrize("seed", range(3))
def test_every_fold_has_its_share_of_every_label_which_chance_does_not_give(seed):
    rng = np.random.default_rng(seed)
    Y = rng.random((400, 30)) < np.geomspace(0.01, 0.4, 30)
    spread = lambda fold: (np.stack([Y[fold == i].sum(axis=0) for i in range(4)]) - Y.sum(axis=0) / 4).std()  # noqa: E731
    fold = stratified_folds(Y, 4, seed)
    assert spread(fold) < spread(rng.permutation(np.arange(400) % 4)) / 2
    rare = Y.sum(axis=0) <= 8
    assert np.ptp([Y[fold == i][:, rare].sum(axis=0) for i in range(4)], axis=0).max() <= 2
    assert np.bincount(fold).tolist() == [100] * 4
    assert np.bincount(stratified_folds(Y, (0.9, 0.1), seed)).tolist() == [360, 40]


@pytest.mark.parametrize("seed", range(20))
def test_stratified_folds_follow_the_published_algorithm(seed):
    """Compare folds with Algorithm 1 of Sechidis, Tsoumakas and Vlahavas (2011), applied to one sample at a time."""
    rng = np.random.default_rng(seed)
    n, shares = int(rng.integers(10, 300)), [np.full(3, 1 / 3), np.full(7, 1 / 7), np.array([0.7, 0.2, 0.1])][seed % 3]
    Y = rng.random((n, 12)) < rng.random(12) / 2
    rng = np.random.default_rng(seed)
    order, chance, part = rng.permutation(n), rng.permutation(len(shares)), np.full(n, -1)
    size = np.floor((shares * n).round(9)).astype(int)
    for p in sorted(range(len(shares)), key=lambda p: ((size - shares * n)[p].round(9), -chance[p]))[: n - size.sum()]:
        size[p] += 1
    wanted, room = np.outer(shares, Y.sum(axis=0)), size.copy()
    while (part < 0).any():
        left = (Y & (part < 0)[:, None]).sum(axis=0)
        rarest = np.where(left > 0, left, n + 1).argmin() if left.any() else None
        some = [i for i in order if part[i] < 0 and (rarest is None or Y[i, rarest])]
        whole = rarest is not None and (wanted[:, rarest].round(9) < 1).any()
        for i in some:
            wish = room if rarest is None else wanted[:, rarest]
            wish = np.floor(wish.round(9)) if whole else wish
            free = [p for p in range(len(shares)) if room[p] > 0]
            to = max(free, key=lambda p: (wish[p].round(9), ((room[p] - 0.5) / size[p]).round(9), chance[p]))
            part[i], room[to] = to, room[to] - 1
            wanted[to] -= Y[i]
    np.testing.assert_array_equal(stratified_folds(Y.astype(int), tuple(shares), seed), part)


@pytest.mark.parametrize("n_labels", [2, 100, 374, 1000])
@pytest.mark.parametrize("n", [7, 36, 601])
def test_stratified_parts_have_their_sizes(n, n_labels):
    rng = np.random.default_rng(n + n_labels)
    Y = rng.random((n, n_labels)) < np.geomspace(0.5 / n, 0.3, n_labels)
    Y[rng.random(n) < 0.2] = False
    for shares in ((0.9, 0.1), (0.5, 0.3, 0.2), (1, 1, 1, 1)):
        sizes = np.bincount(stratified_folds(Y, shares), minlength=len(shares))
        wanted = n * np.array(shares) / sum(shares)
        assert sizes.sum() == n
        assert (np.abs(sizes - wanted) < 1).all()
        assert (sizes > 0).all()


def test_stratified_parts_get_their_share_of_rare_labels():
    labels = np.random.default_rng(0).integers(0, 3000, (600, 5))
    Y = np.zeros((600, 3000))
    Y[np.arange(600)[:, None], labels] = 1
    rare = Y.sum(axis=0) < 5
    for share in (0.1, 0.2):
        small = stratified_folds(Y, (1 - share, share)) == 1
        assert abs(Y[small][:, rare].sum() / Y[:, rare].sum() - share) < 0.03


def test_folds_of_one_class_a_sample_are_scikit_learns_stratified_folds():
    y = np.random.default_rng(0).choice(4, 203, p=[0.03, 0.17, 0.3, 0.5])
    fold = stratified_folds(np.eye(4)[y], 5)
    split = StratifiedKFold(5).split(np.zeros((203, 1)), y)
    theirs = np.stack([np.bincount(y[test], minlength=4) for _, test in split])
    ours = np.stack([np.bincount(y[fold == i], minlength=4) for i in range(5)])
    np.testing.assert_array_equal(np.sort(ours, axis=0), np.sort(theirs, axis=0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "grid"),
    [
        (
            KGHA(),
            {
                "ridge": [0.05, 0.5],
                "balance": [0.01, 0.2],
                "n_components": [3, 1.0],
                "decoder__prior_power": [0.0, 0.5],
            },
        ),
        (KGHA(), {"center": [True, False], "intercept": [True, False], "decoder__standardize": [0.0, 1.0]}),
        (MultiViewRidge(combine="kernels"), {"ridge": [0.05, 0.5], "decoder__standardize": [0.0, 0.5]}),
        (MultiViewRidge(), {"combine": ["predictions", "product"], "ridge": [0.1, 1.0]}),
    ],
    ids=["kgha", "decoder", "ridge", "outer"],
)
def test_every_setting_scores_as_when_fitted_for_itself(model, grid):
    result = sweep(model, VIEWS, LABELS, grid, folds=2, metric="f1@2")
    assert len(result.table) == np.prod([len(values) for values in grid.values()])
    for row in result.table[:: max(1, len(result.table) // 5)]:
        np.testing.assert_allclose(row["folds"], separately(model, {key: row[key] for key in grid}, 2), atol=1e-12)
    assert result.best_score == max(row["mean"] for row in result.table)
    assert {key: result.best_estimator.get_params()[key] for key in grid} == result.best_params
    assert result.best_estimator.decision_function(VIEWS).shape == LABELS.shape


def separation(Y, S):
    """Compute a metric that is smooth in the scores, whereas F1 jumps when two labels swap ranks."""
    return float(S[Y > 0].mean() - S[Y == 0].mean())


@pytest.mark.parametrize("approximation", ["exact", LOW_RANK])
def test_propensities_of_a_fold_are_those_of_its_training_samples(approximation):
    """The propensities of a training fold with half of the samples differ from the propensities of all samples."""
    model = MultiViewRidge(decoder=Scores(propensity=True, label_sets=False), approximation=approximation)
    for row in sweep(model, VIEWS, LABELS, {"ridge": [0.1, 1.0]}, 2, separation, refit=False).table:
        alone = separately(model, {"ridge": row["ridge"]}, 2, VIEWS, separation)
        np.testing.assert_allclose(row["folds"], alone, rtol=1e-5)  # the solver and float32 limit the accuracy


@pytest.mark.parametrize(
    ("model", "grid"),
    [
        (KGHA(approximation=LOW_RANK), {"balance": [0.2, 0.05, 0.01], "ridge": [0.05, 0.5], "n_components": [3, 1.0]}),
        (MultiViewRidge(combine="kernels", approximation=LOW_RANK), {"ridge": [0.05, 0.5], "center": [True, False]}),
        (
            KGHA(approximation=Meka(clusters=2, rank=20, random_state=0)),
            {"balance": [0.01, 0.05, 0.2], "ridge": [0.05]},
        ),
    ],
    ids=["kgha", "ridge", "meka"],
)
@pytest.mark.parametrize("memory", [2**30, 50_000], ids=["", "little memory"])
def test_moments_score_every_setting_as_fits_on_the_same_feature_maps(model, grid, memory, monkeypatch):
    """The reference fits use linear kernels of feature maps that are learned from the training rows of a fold.
    With little memory, a sweep keeps only part of the features between passes and splits the candidates into groups.
    """
    monkeypatch.setattr(dmo.methods.shared_fits, "_MEMORY", memory)
    monkeypatch.setattr(dmo.methods.shared_fits, "BLOCK", 50)
    monkeypatch.setattr(dmo.fit.row_sums, "BLOCK", 50)
    result = sweep(model, VIEWS, LABELS, grid, folds=2, metric=separation, refit=False)
    exact = clone(model).set_params(kernel="linear", approximation="exact", prepare="none")
    exact.set_params(decoder=Scores(label_sets=False))
    number = stratified_folds(LABELS, 2, 0)
    for fold in range(2):
        train, test = number != fold, number == fold
        maps = {view: model.approximation.feature_map("rbf", X[train], model.random_state) for view, X in VIEWS.items()}
        old, new = ({v: maps[v](X[part]).astype(float) for v, X in VIEWS.items()} for part in (train, test))
        for row in result.table:
            fitted = clone(exact).set_params(**{key: row[key] for key in grid}).fit(old, LABELS[train])
            score = separation(LABELS[test], fitted.decision_function(new))
            np.testing.assert_allclose(row["folds"][fold], score, rtol=2e-4)  # feature maps use float32
    best = max(result.table, key=lambda row: row["mean"])
    assert result.best_params == {key: best[key] for key in grid}


@pytest.mark.parametrize(("scale", "passes"), [("none", 1), ("l2", 1), ("auto", 1), ("standard", 3), ("maxabs", 3)])
def test_moments_of_linear_kernels_serve_all_folds_where_no_scale_is_learned_from_rows(scale, passes, monkeypatch):
    made, collect = [], dmo.methods.shared_fits.collect_moments
    monkeypatch.setattr(dmo.methods.shared_fits, "collect_moments", lambda *given: made.append(1) or collect(*given))
    views = {view: X * np.geomspace(1, 10, X.shape[1]) + 3.0 for view, X in VIEWS.items()}
    model = MultiViewRidge("linear", approximation=Nystrom(rank=10), prepare=scale, decoder=Scores(label_sets=False))
    found = sweep(model, views, LABELS, {"ridge": [0.1, 1.0, 10.0]}, 3, separation, refit=False)
    assert len(made) == passes
    for row in found.table:
        alone = separately(model, {"ridge": row["ridge"]}, 3, views, separation)
        np.testing.assert_allclose(row["folds"], alone, rtol=1e-6)


def test_settings_of_one_ridge_share_a_subspace_whatever_the_order_of_the_grid(monkeypatch):
    made, begin = [], LabelSubspace.of
    monkeypatch.setattr(LabelSubspace, "of", lambda *args: made.append(1) or begin(*args))
    grid = {"balance": [0.2, 0.05, 0.01], "ridge": [0.05, 0.5]}
    sweep(KGHA(approximation=LOW_RANK), VIEWS, LABELS, grid, folds=3, refit=False)
    assert len(made) == 3 * 2


def test_a_label_that_a_training_set_lacks_leaves_its_settings_in_the_subspace(monkeypatch):
    Y = np.hstack([LABELS, np.eye(len(LABELS), 1, dtype=np.uint8)])
    alone = []
    monkeypatch.setattr(KGHA, "_solve", lambda *args, **options: alone.append(args))
    grid = {"balance": [0.01, 0.05], "n_components": [3, 1.0]}
    found = sweep(KGHA(approximation=LOW_RANK), VIEWS, Y, grid, folds=3, metric="lrap", refit=False)
    assert not alone
    assert found.best_score > 0.7


class _Counted:
    """Array of rows that counts the rows that are read."""

    def __init__(self, X):
        self.X, self.shape, self.dtype, self.read = X, X.shape, X.dtype, 0

    def __getitem__(self, where):
        found = self.X[where]
        self.read += len(found)
        return found


@pytest.mark.parametrize("kernel", ["rbf", "laplacian", "exponential"])
def test_several_bandwidths_read_rows_once_and_score_as_maps_of_the_same_landmarks(kernel, monkeypatch):
    model = MultiViewRidge(kernel, approximation=Nystrom(rank=20), prepare="none", decoder=Scores(label_sets=False))
    tried = partial(sweep, model, Y=LABELS, folds=3, metric=separation, refit=False)
    tables, reads = [], []
    for widths, kept in (([1.5], 2**29), ([2.5, 0.5, 1.5], 2**29), ([2.5, 0.5, 1.5], 0)):
        monkeypatch.setattr(dmo.methods.shared_fits, "_EXPONENTS", kept)
        views = {view: _Counted(X) for view, X in VIEWS.items()}
        found = tried(views, grid={"bandwidth": widths, "ridge": [0.05, 0.5]})
        tables.append({(row["bandwidth"], row["ridge"]): row["folds"] for row in found.table})
        reads.append(views["a"].read)
    one, several, again = tables
    assert reads[1] == reads[0] < reads[2]
    assert all(one[setting] == several[setting] for setting in one)
    assert list(several) == [(width, ridge) for width in (2.5, 0.5, 1.5) for ridge in (0.05, 0.5)]
    for setting, folds in several.items():
        np.testing.assert_allclose(folds, again[setting], rtol=2e-3)


@pytest.mark.parametrize("dependent", [False, True])
def test_leading_components_are_decoded_by_the_pseudo_inverse_of_their_loadings(dependent):
    rng = np.random.default_rng(0)
    loadings, turn, values, loo = (rng.standard_normal(shape) for shape in ((9, 6), (8, 6), (700, 10), (30, 10)))
    if dependent:
        loadings[:, 4] = loadings[:, 1]
    held = HeldOut({1.0: 6, 0.5: 3, 2: 2, 0.9: 6}, np.full(9, 0.2), values, loadings, loo, turn=turn)
    seen = []
    for count, scores, left_out in held.scores([1.0, 0.5, 2, 0.9]):
        k = held.components[count]
        D = turn[:, :k] @ np.linalg.pinv(loadings[:, :k], rcond=1e-8)
        np.testing.assert_allclose(scores, values[:, :8] @ D, atol=1e-12)
        np.testing.assert_allclose(left_out, loo[:, :8] @ D, atol=1e-12)
        seen.append(count)
    assert seen == [2, 0.5, 1.0, 0.9]


def test_eigenpairs_have_to_serve_more_ridges_where_factors_may_be_float32(monkeypatch):
    made, decompose = [], dmo.fit.fitted_views.Spectrum
    monkeypatch.setattr(dmo.fit.fitted_views, "Spectrum", lambda A: made.append(A) or decompose(A))
    X = {"a": np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32)}
    for precision, factorizations, tol, wanted in (
        ("float32", 16.0, 1e-5, 0),
        ("float32", 31.0, 1e-5, 1),
        ("float32", 16.0, 1e-8, 1),
        ("float64", 16.0, 1e-5, 1),
    ):
        with remembering(factorizations):
            engine, kernel = Exact("memory", precision), MultiKernel.of("a", RBF())
            Groups(engine, {"a": kernel}, {"a": 0.1}, Data.of(X), True, 0, tol=tol)["a"]
        assert len(made) == wanted
        made.clear()


@pytest.mark.parametrize(
    "model", [KGHA("rbf", solver=Solver(tol=1e-9)), MultiViewRidge("rbf", decoder="calibrated")], ids=str
)
def test_many_ridges_are_solved_by_eigenpairs_as_by_a_factor_each(model, monkeypatch):
    X, Y = make_multilabel_classification(n_samples=80, n_features=6, n_classes=5, random_state=0)
    grid = {"ridge": list(np.logspace(-2, 1, 8)), "center": [True, False], "decoder__standardize": [0.0, 1.0]}
    if model.decoder is not None:
        del grid["decoder__standardize"]
    decoder = Scores(label_sets=False) if model.decoder is None else model.decoder
    model = clone(model).set_params(approximation="exact", decoder=decoder)
    made = []
    decompose = dmo.fit.fitted_views.Spectrum
    monkeypatch.setattr(dmo.fit.fitted_views, "Spectrum", lambda A: made.append(A) or decompose(A))
    found = sweep(model, X, Y, grid, folds=2, metric="lrap", refit=False)
    assert len(made) == 2 * 2  # each fold and each value of `center` needs one spectrum
    monkeypatch.setattr(dmo.fit.fitted_views, "EIGENPAIRS", np.inf)
    wanted = sweep(model, X, Y, grid, folds=2, metric="lrap", refit=False)
    assert len(made) == 2 * 2
    np.testing.assert_allclose([row["folds"] for row in found.table], [row["folds"] for row in wanted.table], rtol=1e-6)


def test_bandwidth_factors_and_ridges_of_views_are_swept():
    grid = {"bandwidth": [0.5, 2.0], "ridge": [0.1, {"a": 0.05, "b": 0.5}]}
    kernels = [RBF(), Product((Laplacian(scale=3.0), RBF()))]
    result = sweep(KGHA(kernels), VIEWS, LABELS, grid, folds=2, metric="f1@2")
    assert len(result.table) == 4
    for row in result.table:
        f = row["bandwidth"]
        scaled = [RBF(scale=f), Product((Laplacian(scale=3 * f), RBF(scale=f)))]
        np.testing.assert_allclose(row["folds"], separately(KGHA(scaled), {"ridge": row["ridge"]}, 2), atol=1e-12)
    f = result.best_params["bandwidth"]
    assert result.best_estimator.kernel[0] == RBF(scale=f)


def test_any_estimator_with_a_decision_function_can_be_swept():
    class Chain(MultiOutputClassifier):
        def decision_function(self, X):
            return np.column_stack([part.decision_function(X) for part in self.estimators_])

    result = sweep(
        Chain(RidgeClassifier()), VIEWS["a"], LABELS, {"estimator__alpha": [0.1, 10.0]}, folds=3, metric="auc-macro"
    )
    assert 0.5 < result.best_score <= 1


@parametrized
class SumRidge(Annotator):
    """Ridge regression on the mean kernel of all views, without support for shared fits."""

    _centers = True
    _by_scores = Part(Scores, "decoder")
    fits: ClassVar[list[float]] = []

    kernel: Any = "rbf"
    _: KW_ONLY
    ridge: float = 0.1
    center: bool = True
    intercept: bool = False
    decoder: Any = None
    approximation: Any = "exact"
    random_state: int | None = 0
    prepare: Any = "auto"

    def fit(self, X, y):
        return self._fit(X, y)

    def _learn(self, data):
        self.fits.append(self.ridge)
        if self.approximation == "exact":
            return LeftOut("known", np.arange(data.n), [self._learn_exact(data)])
        maps = fit_maps(self.approximation, self.kernel, data.views, self.random_state, self.center)
        B, offset = self._solve(pass_of(maps, data.views, data.Y, 1, self.random_state).total)
        self.expansions_ = {v: FactorExpansion.of(v, maps[v], B[v], offset / len(maps)) for v in maps}
        return LeftOut("")

    def _learn_exact(self, data):
        shares = dict.fromkeys(data.views, 1 / len(data.views))
        kernels = {"all": MultiKernel({view: parse(self.kernel) for view in data.views}, shares, "sum")}
        groups = Groups(Exact("memory", "float64"), kernels, {"all": self.ridge}, data, self.center, 0)
        group, targets = groups["all"], data.Y - data.frequency * self.center
        coefficients = group.coefficients(targets)
        self.expansions_ = group.expansions(coefficients)
        return group.left_out(targets, coefficients)

    def _solve(self, moments):
        views = [view for view in moments.widths if view != OUTPUTS]
        return ridge_solves.ridge(moments, dict.fromkeys(views, 1 / len(views)), self.ridge, self.center)

    def _raw_scores(self, views):
        return added(self.expansions_, views)


class ExactRidge(SharedFits, SumRidge):
    """Ridge regression on the mean kernel that shares fits of exact kernels."""

    shared: ClassVar[list[float]] = []

    def _held_out_fit(self, data, new, components, needs_loo):
        self.shared.append(self.ridge)
        left_out = self._learn_exact(data)
        return HeldOut(components, data.frequency, self._raw_scores(new), None, left_out if needs_loo else None, data.Y)


class SharingRidge(ExactRidge):
    """Ridge regression on the mean kernel that shares fits of exact and low-rank kernels."""

    def _fit_together(self, moments, center, models, k):
        for j, model in enumerate(models):
            self.shared.append(model.ridge)
            yield SharedFit(*model._solve(moments), [(j, None, None)])


@pytest.fixture
def factorized(monkeypatch):
    """Record the factorizations of exact kernels, and the fits of the estimators above."""
    SumRidge.fits.clear()
    SharingRidge.shared.clear()
    made, decompose, factorize = [], dmo.fit.fitted_views.Spectrum, dmo.fit.fitted_views.factorize
    monkeypatch.setattr(dmo.fit.fitted_views, "Spectrum", lambda A: made.append("pairs") or decompose(A))
    monkeypatch.setattr(
        dmo.fit.fitted_views, "factorize", lambda *given, **how: made.append("factor") or factorize(*given, **how)
    )
    return made


@pytest.mark.parametrize(
    "decoding",
    [
        {"decoder__prior_power": [0.0, 0.5]},
        {"decoder": ["probabilities", "f1@2"]},
        {"decoder__standardize": [0.0, 1.0]},
    ],
    ids=str,
)
@pytest.mark.parametrize("model", [SumRidge(), SharingRidge()], ids=["plain", "shared"])
def test_sweep_of_unknown_estimator_equals_plain_fits(model, decoding, factorized):
    grid = {"ridge": list(np.logspace(-2, 1, 8)), "center": [True, False]} | decoding
    found = sweep(model, VIEWS, LABELS, grid, 2, separation, refit=False)
    assert len(found.table) == 32
    if isinstance(model, SharedFits):
        assert (len(model.shared), model.fits) == (2 * 16, [])
        leaves_out = "decoder__prior_power" not in decoding
        # Leave-one-out scores double the cost of a factorization, so one eigendecomposition for all ridges is cheaper.
        assert factorized == (["pairs"] * 2 * 2 if leaves_out else ["factor"] * 2 * 16)
    else:
        assert len(model.fits) == len(factorized) == 2 * 32
    for row in found.table[::9]:
        alone = separately(model, {key: row[key] for key in grid}, 2, metric=separation)
        np.testing.assert_allclose(row["folds"], alone, rtol=1e-9)


@pytest.mark.parametrize("kind", [SumRidge, ExactRidge, SharingRidge])
def test_low_rank_sweep_of_unknown_estimator_equals_plain_fits(kind, factorized, monkeypatch):
    model = kind(approximation=LOW_RANK)
    passes, collect = [], dmo.methods.shared_fits.collect_moments
    monkeypatch.setattr(dmo.methods.shared_fits, "collect_moments", lambda *given: passes.append(1) or collect(*given))
    grid = {"ridge": [0.1, 1.0, 10.0], "intercept": [True, False]}
    found = sweep(model, VIEWS, LABELS, grid, 3, separation, refit=False)
    assert (len(passes), len(model.fits)) == ((3, 0) if kind is SharingRidge else (0, 3 * 6))
    for row in found.table:
        alone = separately(model, {key: row[key] for key in grid}, metric=separation)
        np.testing.assert_allclose(row["folds"], alone, rtol=1e-4)  # feature maps use float32


def test_subclass_under_another_name_is_swept_as_its_base(factorized):
    class Renamed(KGHA):
        pass

    grid = {"ridge": [0.1, 1.0], "balance": [0.01, 0.1], "n_components": [2, 4]}
    tables, counts = [], []
    for kind in (KGHA, Renamed):
        tables.append(sweep(kind(), VIEWS, LABELS, grid, 3, separation, refit=False).table)
        counts.append(len(factorized))
    assert tables[0] == tables[1]
    assert counts[1] == 2 * counts[0] == 2 * 3 * 2 * len(VIEWS)  # the factors are folds, ridges and views


@pytest.mark.parametrize("kind", [SumRidge, SharingRidge])
def test_unknown_estimator_is_tuned_on_a_grid(kind, factorized):
    X, Y = scattered(n=60)
    model = dmo.tune(kind(), X, Y, grid={"ridge": [0.03, 0.3, 3.0]}, cv=3)
    assert isinstance(model, kind)
    assert {row["ridge"] for row in model.tuning_.table} > {0.03, 0.3, 3.0}
    assert len(kind.fits) == (1 if kind is SharingRidge else 1 + 3 * len(model.tuning_.table))
    for row in model.tuning_.table:
        alone = [kind(ridge=row["ridge"], decoder=Scores(label_sets=False)) for _ in range(3)]
        fold = stratified_folds(Y, 3, 0)
        fitted = [own.fit(X[fold != i], Y[fold != i]) for i, own in enumerate(alone)]
        scores = [own.score(X[fold == i], Y[fold == i]) for i, own in enumerate(fitted)]
        np.testing.assert_allclose(row["folds"], scores, atol=1e-12)


def test_default_search_depends_on_the_protocol(factorized):
    X, Y = scattered(n=60)
    model = dmo.tune(SharingRidge(), X, Y, metric="f1@2", cv=2)
    assert len(model.fits) == 1
    assert {"bandwidth", "ridge", "decoder", "prepare__scale"} <= {key for row in model.tuning_.table for key in row}
    with pytest.raises(UserError, match="SumRidge has no default grid; pass the values to try"):
        dmo.tune(SumRidge(), X, Y)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"grid": {}}, "the grid is empty"),
        ({"grid": {"rigde": [0.1]}}, "KGHA has no parameter 'rigde'"),
        ({"grid": {"ridge": 0.1}}, r"ridge needs a list of values, got 0\.1; pass \[0\.1\]"),
        ({"grid": {"ridge": [0.1]}, "metric": "f2@5"}, "metric 'f2@5' is unknown"),
        ({"grid": {"ridge": [0.1]}, "folds": 1}, "folds = 1"),
        ({"grid": {"kernel": ["linear"], "bandwidth": [2.0]}}, "kernel 'linear' has no bandwidth to scale"),
    ],
)
def test_bad_sweeps(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        sweep(KGHA(), VIEWS, LABELS, **arguments)


@pytest.mark.parametrize(
    ("approximation", "how"),
    [
        ("exact", {}),
        (Nystrom(rank=30), {}),
        ("exact", {"kernel": "product", "weights": "tagprop"}),
    ],
)
def test_a_decoder_in_a_sweep_learns_in_every_fold_as_a_fit_of_the_fold_does(approximation, how):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 6))
    Y = (X[:, :4] + 0.5 * rng.normal(size=(80, 4)) > 0.3).astype(np.uint8)
    model = MultiViewRidge(approximation=approximation, **how)
    grid = {"ridge": [0.1, 1.0], "decoder": ["probabilities", "f1@2"]}
    found = sweep(model, X, Y, grid, folds=3, metric="f1@2", refit=False)
    fold = stratified_folds(Y, 3)
    for row in found.table:
        alone = clone(model).set_params(ridge=row["ridge"], decoder=row["decoder"])
        scores = []
        for number in range(3):
            fitted = clone(alone).fit(X[fold != number], Y[fold != number])
            scores.append(annotation_scores(Y[fold == number], fitted.decision_function(X[fold == number]), top=2).f1)
        np.testing.assert_allclose(row["folds"], scores, atol=1e-9)


NEIGHBORS = {
    "votes": (NeighborVotes(MultiViewRidge(ridge=0.5)), {"sharpness": [5.0, 30.0], "visual": [0.0, 5.0]}),
    "votes, two decoders": (NeighborVotes(MultiViewRidge(ridge=0.5)), {"decoder": ["probabilities", "f1@2"]}),
    "TagProp": (TagProp(decoder="f1@2"), {"n_neighbors": [5, 20], "sigma": [True, False]}),
    "2PKNN": (TwoPassKNN(), {"sharpness": [1.0, 20.0], "weights": [None, "alignment"]}),
    "JEC": (JEC(), {"n_neighbors": [3, 7]}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NEIGHBORS)
def test_annotators_by_neighbors_are_tuned_by_fits_of_the_other_folds(name, monkeypatch):
    model, grid = NEIGHBORS[name]
    fits = []
    original = MultiViewRidge.fit
    monkeypatch.setattr(MultiViewRidge, "fit", lambda self, X, y: fits.append(1) or original(self, X, y))
    found = sweep(model, VIEWS, LABELS, grid, folds=2, metric="f1@2", refit=False)
    assert len(fits) == (2 * (1 + FOLDS) if "votes" in name else 0)  # all candidates of a fold share the base fits
    for row in found.table:
        np.testing.assert_allclose(row["folds"], separately(model, {key: row[key] for key in grid}, 2), atol=1e-9)


def test_a_tuned_annotator_scores_new_samples_as_its_folds_say():
    rng = np.random.default_rng(1)
    new = {"a": rng.standard_normal((400, 6)), "b": rng.standard_normal((400, 4))}
    mixing = np.random.default_rng(0)
    mixing.standard_normal((160, 6)), mixing.standard_normal((160, 4))
    truth = ((np.hstack(list(new.values())) @ mixing.standard_normal((10, 7))) > 1.5).astype(np.uint8)
    found = sweep(TagProp(decoder="f1@2"), VIEWS, LABELS, {"n_neighbors": [5, 20]}, folds=3, metric="lrap")
    worth = metric_of("lrap")(truth, found.best_estimator.decision_function(new))
    deviation = max(found.table, key=lambda row: row["mean"])["std"] / np.sqrt(3)
    assert abs(worth - found.best_score) < 3 * max(deviation, 0.01)


def scattered(seed=0, n=160):
    """Return features and labels of nonlinear regions, whose frequencies range from 0.5 to 0.05."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    S = np.sin(2 * X) @ rng.normal(size=(4, 6)) + 0.5 * rng.normal(size=(n, 6))
    return X, (S.std(axis=0) * np.linspace(0, 1.6, 6) < S).astype(np.uint8)


@pytest.mark.parametrize("name", ["ridge", "kgha"])
def test_tuning_without_options_is_at_least_as_good_as_the_default_on_its_folds(name):
    X, Y = scattered(n=120)
    model = dmo.tune(name, X, Y, cv=2)
    found = model.tuning_
    assert found.metric == "ranking"
    assert found.best_estimator_ is model
    assert found.best_score_ == max(found.cv_results_["mean_test_score"])
    default = sweep(type(model)(), X, Y, {"ridge": [type(model)().ridge]}, 2, "ranking", refit=False)
    assert found.best_score_ >= default.best_score
    assert model.predict(X).shape == Y.shape
    assert model.predict_proba(X).shape == Y.shape


def test_of_many_samples_most_settings_are_tried_on_few(monkeypatch, caplog):
    monkeypatch.setattr(dmo.select.tuning, "_SIZES", (60, 90, 120))
    X, Y = scattered()
    X = {"a": X[:, :2], "b": X[:, 2:]}
    rows = []
    monkeypatch.setattr(dmo.select.tuning, "compared", lambda *given: rows.append(len(given[2])) or compared(*given))
    with caplog.at_level("INFO", logger="dmo"):
        found = dmo.tune("ridge", X, Y, cv=2).tuning_
    assert set(rows) == {60, 90, 120}
    assert rows == sorted(rows)
    assert "chosen on 120 of 160 samples" in caplog.text
    assert found.best_score_ == max(row["mean"] for row in found.table)
    assert all(len(row["folds"]) == 2 for row in found.table)  # candidates that lost a race are not in the table


def test_tuning_goes_beyond_an_edge_and_says_so(caplog):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    Y = X @ rng.normal(size=(3, 2))  # noise-free targets favor small ridges
    ridges = [row["ridge"] for row in dmo.tune(MultiViewRidge("linear", prepare="none"), X, Y, cv=3).tuning_.table]
    assert min(ridges) < 1e-3 * ridges[0]  # the search extends beyond the initial candidates
    given = {"ridge": [1e-4, 2e-4, 3e-4], "bandwidth": [4.0, 5.0, 6.0]}
    with caplog.at_level("INFO", logger="dmo"):
        found = dmo.tune("ridge", X, Y, grid=given, cv=3).tuning_
    beyond = sorted({row["ridge"] for row in found.table if "bandwidth" in row} - set(given["ridge"]))
    assert beyond == pytest.approx([1e-4 / 3**step for step in (4, 3, 2, 1)], rel=0.01)
    assert caplog.text.count("the best ridge was at the edge of its candidates; also tried: 3.33e-05, 1.11e-05, ") == 1
    assert {row["bandwidth"] for row in found.table if "bandwidth" in row} > {4.0, 5.0, 6.0}


def near_in_one_view(n=90):
    """Return three views and labels. The labels depend on clusters in view "near", and the other views are noise."""
    rng = np.random.default_rng(0)
    place = rng.integers(0, 6, n)
    views = {"near": rng.normal(size=(6, 3))[place] + 0.2 * rng.normal(size=(n, 3))}
    views |= {name: rng.normal(size=(n, 8)) for name in ("noise", "more")}
    return views, (place[:, None] == np.arange(6)).astype(np.uint8) | (place[:, None] == (np.arange(6) + 1) % 6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ridge", "kgha"])
def test_a_search_without_options_finds_the_product_of_distances_that_count_as_the_labels_say(name):
    X, Y = near_in_one_view()
    found = dmo.tune(name, X, Y, cv=2).tuning_
    learned = {"kernel": "product", "weights": "tagprop"}
    if name == "kgha":
        learned = {"kernel": ProductKernel(weights="tagprop")}
    assert learned.items() <= found.best_params.items()
    found.best_estimator.fit(X, Y)
    assert found.best_estimator.view_weights_["near"] > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("approximation", [LOW_RANK, "exact"])
def test_products_of_kernels_are_not_tried_of_low_rank_kernels_or_views_that_lack_samples(approximation):
    X, Y = near_in_one_view(60)
    if approximation == "exact":
        X["near"][3] = np.nan
    found = dmo.tune(MultiViewRidge(approximation=approximation), X, Y, cv=2).tuning_
    assert not any(row.get("kernel") == "product" or row.get("combine") for row in found.table)


@pytest.mark.parametrize("name", ["ridge", "kgha", "tagprop", "jec", "ridge, own"])
def test_a_metric_that_names_a_rule_is_tuned_with_its_decoder(name):
    X, Y = scattered(n=60)
    own = MultiViewRidge(decoder="calibrated") if "own" in name else name
    grid = {"n_neighbors": [3, 5]} if name in ("tagprop", "jec") else {"ridge": [0.1, 1.0]}
    found = dmo.tune(own, X, Y, grid, "f1@2", cv=2).tuning_
    tried = {str(row.get("decoder")) for row in found.table}
    assert tried == ({"None"} if "own" in name else {"None", "f1@2"})
    assert found.best_score == max(row["mean"] for row in found.table)
    other = dmo.tune(own, X, Y, grid, "lrap", cv=2).tuning_
    assert {str(row.get("decoder")) for row in other.table} == {"None"}


def test_settings_that_fall_behind_on_the_first_fold_see_no_other(monkeypatch):
    grid = {"ridge": [1e-6, 1e-3, 0.1, 1.0, 10.0], "bandwidth": [0.1, 1.0]}
    given = MultiViewRidge("rbf"), VIEWS, LABELS, grid, 3, f1_of_two, 0
    whole = compared(*given)[0].table
    fits = []
    score = dmo.select.sweeps._Scores.put
    monkeypatch.setattr(dmo.select.sweeps._Scores, "put", lambda *a: fits.append(1) or score(*a))
    floor = sorted(row["folds"][0] for row in whole)[-3]
    assert compared(*given, [floor, 0.0])[0].table == [row for row in whole if row["folds"][0] >= floor]
    assert len(fits) == 10 + 2 * 3
    leaders = compared(*given, [-np.inf, -np.inf])[0].table
    assert all(row in whole for row in leaders)
    assert len(leaders) < 6
    assert {row["bandwidth"] for row in leaders} == {0.1, 1.0}
    assert compared(*given, [2.0, 2.0])[0].table == []
    assert [row["folds"] for row in compared(*given[:4], 2, *given[5:], [2.0, 2.0])[0].table] == []


def test_the_number_of_settings_that_is_told_is_that_of_all_rounds(monkeypatch, caplog):
    monkeypatch.setattr(dmo.select.tuning, "_SIZES", (60, 90, 120))
    X, Y = scattered()
    with caplog.at_level("INFO", logger="dmo"):
        found = dmo.tune("ridge", X, Y, cv=2).tuning_
    assert f"tune: {found.tried} candidates" in caplog.text
    assert found.tried > len(found.table)
    assert dmo.tune("ridge", X, Y, {"ridge": [0.1]}, cv=2).tuning_.tried == 1


def test_labels_of_boxes_are_tuned_to_the_laplacian_kernel():
    """The labels are axis-aligned boxes in two of eight columns, which suit kernels of the 1-norm."""
    X = np.random.default_rng(0).uniform(0, 1, (160, 8))
    Y = ((X[:, :4] > 0.4) & (X[:, [1, 2, 3, 0]] > 0.3)).astype(np.uint8)
    found = dmo.tune("ridge", X, Y, cv=2).tuning_
    assert found.best_params_["kernel"] == "laplacian"
    assert found.best_score_ > 0.02 + max(row["mean"] for row in found.table if row.get("kernel") != "laplacian")


def test_rows_of_one_length_are_tried_of_dense_views_that_are_mostly_zeros():
    X, Y = scattered(n=60)
    rare = np.where(np.random.default_rng(0).random(X.shape) < 0.8, 0.0, X)
    for rows, scales in ((X, {"auto", "standard"}), (rare, {"auto", "standard", "l2"})):
        table = dmo.tune("ridge", rows, Y, cv=2).tuning_.table
        assert {row["prepare__scale"] for row in table if "prepare__scale" in row} == scales


def test_the_laplacian_kernel_is_not_tried_of_sparse_rows_and_histograms():
    X, Y = scattered(n=60)
    for model, rows in ((MultiViewRidge(), scipy.sparse.csr_array(X)), (MultiViewRidge("hellinger-rbf"), X**2)):
        assert {row.get("kernel") for row in dmo.tune(model, rows, Y, cv=2).tuning_.table} == {None, "linear"}


def test_tuning_never_ends_below_the_estimators_own_settings_whatever_the_grid(caplog):
    X, Y = scattered()
    for model, grid in (
        (MultiViewRidge("rbf", ridge=0.1), {"ridge": [1e5, 1e6]}),
        (dmo.MORP(), {"mixing": [0.999, 0.9999]}),
    ):
        own = sweep(model, X, Y, {"random_state": [0]}, 3, "ranking", refit=False)
        with caplog.at_level("INFO", logger="dmo"):
            tuned = dmo.tune(model, X, Y, grid=grid, cv=3)
        assert tuned.tuning_.best_score_ >= own.best_score
        assert own.best_score in [pytest.approx(row["mean"]) for row in tuned.tuning_.table]
    assert "no candidate was better than the original parameters" in caplog.text


def test_what_tuning_found_is_saved_with_the_model(tmp_path):
    X, Y = scattered(n=60)
    kernels = ["linear", RBF(bandwidth=2.0)]
    model = dmo.tune("ridge", X, Y, grid={"kernel": kernels, "ridge": [0.1, 1.0]}, cv=2)
    model.save(str(tmp_path / "m.zarr"))
    loaded = dmo.load(str(tmp_path / "m.zarr"))
    assert loaded.tuning_.table == model.tuning_.table
    assert loaded.tuning_.best_params_ == model.tuning_.best_params_
    assert loaded.tuning_.best_estimator_ is loaded
    np.testing.assert_array_equal(
        loaded.tuning_.cv_results_["rank_test_score"], model.tuning_.cv_results_["rank_test_score"]
    )


FORMS = {
    "array, 0/1": (lambda X: X, lambda Y: Y),
    "sparse, classes": (scipy.sparse.csr_array, lambda Y: np.array(["a", "b"])[Y[:, 0]]),
    "DataFrame, lists": (
        lambda X: pd.DataFrame(X, columns=[*"abcd"]),
        lambda Y: [{"sky", "sea"} if row[0] and row[1] else {"sky"} if row[0] else {"sand"} for row in Y],
    ),
    "views, targets": (
        lambda X: {"left": X[:, :2], "right": X[:, 2:]},
        lambda Y: Y + np.linspace(0.1, 1, len(Y))[:, None],
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_tune_takes_what_a_fit_takes_and_returns_the_fitted_best(form):
    X, Y = scattered(n=60)
    as_views, as_labels = FORMS[form]
    views, labels, X2 = as_views(X[:50]), as_labels(Y[:50]), as_views(X[50:])
    model = dmo.tune("ridge", views, labels, cv=2)
    assert len(model.predict(X2)) == 10
    assert len(model.tuning_.cv_results_["params"]) > 5
    if "targets" in form:
        assert model.predict(X2).shape == (10, Y.shape[1])
        return
    L = len(model.classes_)
    assert (model.predict(X2, top=2).sum(axis=1) == 2).all()
    assert model.predict_proba(X2).shape == (10, L)
    assert model.decision_function(X2).shape == ((10,) if L == 2 and not model.multilabel_ else (10, L))


def two_level_table(views):
    return pd.concat({name: pd.DataFrame(X) for name, X in views.items()}, axis=1)


def as_dataset(views):
    return xr.Dataset({name: (("sample", f"column of {name}"), X) for name, X in views.items()})


SEVERAL = {
    "Views": (Views, None),
    "list": (lambda views: list(views.values()), None),
    "two levels of columns": (two_level_table, None),
    "Dataset": (as_dataset, None),
    "one array": (lambda views: np.hstack(list(views.values())), {"a": slice(0, 2), "b": slice(2, 4)}),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", SEVERAL)
def test_searches_take_views_in_every_form(form, monkeypatch):
    monkeypatch.setattr(dmo.select.tuning, "_SIZES", (40, 50, 60))
    X, Y = scattered(n=70)
    views, (made, columns) = {"a": X[:, :2], "b": X[:, 2:]}, SEVERAL[form]
    tables = []
    for given, cut in ((views, None), (made(views), columns)):
        prepare = Prepare(views=cut)
        tuned = dmo.tune(MultiViewRidge("linear", prepare=prepare), given, Y, cv=2)
        assert set(tuned.view_widths_.values()) == {2}
        grid = {"n_neighbors": [2, 5]}
        swept = sweep(TagProp(prepare=prepare), given, Y, grid, folds=2, metric="ranking", refit=False)
        tables.append([row["folds"] for found in (tuned.tuning_, swept) for row in found.table])
    for expected, found in zip(*tables, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize("engine", ["exact", dmo.Nystrom(rank=4)])
def test_searches_of_sparse_labels_score_as_of_arrays(engine, unknown):
    X, Y = scattered(n=90)
    Y = Y.astype(float)
    missing = scipy.sparse.csr_array(unknown * (np.arange(Y.size).reshape(Y.shape) % 17 == 0).astype(float))
    missing.data[:] = np.nan
    sparse = scipy.sparse.csr_array(np.where(missing.toarray() == 0, Y, 0)) + missing
    model = MultiViewRidge("linear", approximation=engine)
    swept = [sweep(model, X, y, {"ridge": [0.1, 10.0]}, folds=3, metric="ranking") for y in (sparse.toarray(), sparse)]
    tuned = [dmo.tune(model, X, y, grid={"ridge": [0.1, 10.0]}, cv=3).tuning_ for y in (sparse.toarray(), sparse)]
    for expected, found in (swept, tuned):
        for one, other in zip(expected.table, found.table, strict=True):
            np.testing.assert_allclose(other["folds"], one["folds"], rtol=1e-12)


@pytest.mark.parametrize("gap", ["view", "cells", "targets"])
def test_tuning_with_gaps_scores_what_is_known_as_fits_of_the_folds_do(gap):
    """Compare the score of each fold with a MultiViewRidge that is fitted on the other folds."""
    rng = np.random.default_rng(1)
    X, Y = scattered(n=90)
    views, seen, metric = {"a": X[:, :2], "b": X[:, 2:].copy()}, Y.astype(float), "ranking"
    model = MultiViewRidge("rbf", prepare=Prepare(impute="mean" if gap == "cells" else None, scale="none"))
    if gap == "view":
        views["b"][rng.random(90) < 0.3] = np.nan
    if gap == "cells":
        views["b"][rng.random(90) < 0.3, 0] = np.nan
    if gap == "targets":
        seen, metric = seen + X[:, [0]], "arrmse"
    if gap == "targets":
        seen[rng.random(seen.shape) < 0.2] = np.nan
    found = dmo.tune(model, views, seen, grid={"ridge": [0.1, 3.0]}, cv=3).tuning_
    assert found.metric == metric
    fold = stratified_folds(seen, 3)
    for row in found.table[:2]:
        for number in range(3):
            train, test = fold != number, fold == number
            old, new = ({name: rows[part] for name, rows in views.items()} for part in (train, test))
            fitted = clone(model).set_params(ridge=row["ridge"]).fit(old, seen[train])
            scores = fitted.predict(new) if gap == "targets" else fitted.decision_function(new)
            assert row["folds"][number] == pytest.approx(metric_of(metric)(seen[test], scores), rel=1e-6)


def test_the_default_metric_tells_settings_apart_with_few_labels():
    """F1@5 is constant for at most five labels, because every sample is then assigned all labels."""
    X, Y = scattered()
    Y = Y[:, :4]
    table = sweep(MultiViewRidge("rbf"), X, Y, {"ridge": [1e-2, 1e4]}, 3, default_metric(Y), refit=False).table
    assert table[0]["mean"] != table[1]["mean"]
    assert default_metric(np.eye(3), multilabel=False) == "accuracy"
    classes = np.array(["a", "b", "c"])[np.arange(160) % 3]
    X = X + np.eye(3, 4)[np.arange(160) % 3] * 3
    assert dmo.tune("ridge", X, classes, cv=3).tuning_.metric == "accuracy"


@pytest.mark.parametrize(
    ("metric", "oracle"),
    [
        ("r2", r2_score),
        ("rmse", lambda Y, P: -root_mean_squared_error(Y, P)),
        ("mae", lambda Y, P: -mean_absolute_error(Y, P)),
    ],
)
@pytest.mark.parametrize(
    "estimator", [MultiViewRidge("linear", prepare="none"), LLTSVR("linear", prepare="none", tol=1e-8)]
)
def test_settings_are_compared_by_real_outputs_in_their_units(estimator, metric, oracle):
    """Compare the score of each fold with scikit-learn's ridge regression and support vector regressions."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    Y = (X @ rng.normal(size=(3, 2)) + 0.3 * rng.normal(size=(60, 2))) * [10.0, 2.0] + [100.0, 0.0]
    ridge = isinstance(estimator, MultiViewRidge)
    grid = {"ridge": [0.1, 10.0]} if ridge else {"C": [0.1, 1.0], "frame": ["identity"], "target_scale": ["none"]}
    fold = stratified_folds(Y, 3)
    for row in sweep(estimator, X, Y, grid, 3, metric, refit=False).table:
        theirs = Ridge(row["ridge"]) if ridge else MultiOutputRegressor(SVR(kernel="linear", C=row["C"], tol=1e-8))
        for number in range(3):
            fitted = theirs.fit(X[fold != number], Y[fold != number])
            expected = oracle(Y[fold == number], fitted.predict(X[fold == number]))
            assert row["folds"][number] == pytest.approx(expected, rel=1e-6 if ridge else 1e-3)


@pytest.mark.parametrize("name", ["kgha", "lltsvr"])
def test_real_outputs_are_tuned_without_options(name):
    X, _ = scattered(n=60)
    Y = np.column_stack([np.sin(X[:, 0]) * 100, X[:, 1]]) + 0.2 * np.random.default_rng(1).normal(size=(60, 2))
    model = dmo.tune(name, X, Y, cv=2)
    assert model.tuning_.metric == "arrmse"
    default = sweep(type(model)(), X, Y, {"random_state": [0]}, 2, "arrmse", refit=False)
    assert model.tuning_.best_score_ >= default.best_score
    assert r2_score(Y, model.predict(X)) > 0.7


@pytest.mark.parametrize("name", ["scene", "yeast"])
def test_tuning_picks_the_ridge_that_macro_auc_picks(name, dmo_data):
    folder = dmo_data / "mulan" / name
    X, Y = read_arff(folder / f"{name}-train.arff.xz", read_label_list(folder / f"{name}.xml.xz"))
    some = np.random.default_rng(0).permutation(len(Y))[:300]
    grid = {"ridge": [1e-2, 0.1, 1.0, 10.0, 1e4]}
    found, by_auc = (
        dmo.tune(MultiViewRidge(decoder=Scores(label_sets=False)), X[some], Y[some], grid, metric).tuning_
        for metric in (None, "auc-macro")
    )
    assert found.metric == "ranking"
    assert found.best_params_ == by_auc.best_params_
    spread = [row["mean"] for row in by_auc.table]
    assert max(spread) > min(spread) + 0.02  # the scores depend on the ridge


@pytest.mark.parametrize("estimator", [MultiViewRidge("rbf"), KGHA("rbf", n_components=2)])
def test_settings_are_compared_by_known_labels_alone(estimator):
    X, Y = scattered()
    given = np.where(np.random.default_rng(3).random(Y.shape) < 0.3, np.nan, Y)
    result = sweep(estimator, X, given, {"ridge": [0.1, 3.0]}, 2, "auc-macro")
    fold = stratified_folds(np.nan_to_num(given), 2, 0)
    for row in result.table:
        for number, score in enumerate(row["folds"]):
            old, new = fold != number, fold == number
            fitted = (
                clone(estimator)
                .set_params(ridge=row["ridge"], decoder=Scores(label_sets=False))
                .fit(X[old], given[old])
            )
            scores, areas = fitted.decision_function(X[new]), []
            for y, s in zip(given[new].T, scores.T):
                known = ~np.isnan(y)
                if len(np.unique(y[known])) == 2:
                    areas.append(roc_auc_score(y[known], s[known]))
            assert score == pytest.approx(np.mean(areas), abs=1e-6)
    alone = clone(estimator).set_params(**result.best_params).fit(X, given).decision_function(X)
    np.testing.assert_allclose(result.best_estimator.decision_function(X), alone, atol=1e-8)
    assert np.isfinite(dmo.tune(estimator, X[:60], given[:60], {"ridge": [0.1, 1.0]}, cv=2).tuning_.best_score_)


def test_tuning_takes_names_of_labels():
    X = np.random.default_rng(0).normal(size=(30, 3))
    names = [["sky"] if i % 2 else ["sea", "boat"] for i in range(30)]
    assert set(dmo.tune("ridge", X, names, grid={"ridge": [0.1, 1.0]}).classes_) == {"sky", "sea", "boat"}


@pytest.mark.parametrize("metric", ["f1-micro", "f1-macro", "f1-samples", "jaccard", "psp@2", "f1-samples@2"])
def test_a_model_that_is_tuned_by_a_metric_is_scored_by_it(metric):
    X, Y = make_multilabel_classification(120, 6, n_classes=4, random_state=0)
    found = dmo.tune("ridge", X, Y, {"ridge": [0.1, 10.0]}, metric, cv=3)
    worth = found.tuning_.best_score_
    if "@" not in metric:
        fold = stratified_folds(Y, 3, 0)
        sets = np.empty(Y.shape, np.uint8)
        for number in range(3):
            model = clone(found).fit(X[fold != number], Y[fold != number])
            sets[fold == number] = model.predict(X[fold == number])
        oracle = {
            "f1-micro": partial(f1_score, average="micro"),
            "f1-macro": partial(f1_score, average="macro"),
            "f1-samples": partial(f1_score, average="samples", zero_division=0),
            "jaccard": partial(jaccard_score, average="samples", zero_division=1),
        }[metric]
        expected = np.mean([oracle(Y[fold == number], sets[fold == number]) for number in range(3)])
        assert worth == pytest.approx(expected, abs=1e-6)
    assert 0.3 < worth <= 1
    assert found.decoder == (None if "@" in metric else metric)


def test_an_estimator_without_a_decoder_is_not_tuned_by_label_sets():
    with pytest.raises(UserError, match=r"MultiSetCCA has no decoder .* 'f1-macro@5'"):
        making_sets(dmo.MultiSetCCA(), "f1-macro")


def small_problem(kind, views):
    """Return 40 samples with `views` views of positive numbers, and targets that depend on the first view."""
    rng = np.random.default_rng(0)
    X = rng.gamma(2.0, 1.0, size=(40, 3, 3))
    z = X[:, 0, :2] - 2 + 0.3 * rng.normal(size=(40, 2))
    Y = {"labels": (z > 0).astype(int), "classes": np.array(["a", "b"])[(z[:, 0] > 0).astype(int)], "real": z}[kind]
    return X[:, 0] if views == 1 else {f"v{i}": X[:, i] for i in range(views)}, Y


KERNELS = sorted({*NAMED, "product"} - {"precomputed"})
PROBLEMS = [(1, "labels"), (2, "classes"), (3, "real")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "views", "kind"),
    [  # one kind of problem per kernel, and all kinds for the kernels "rbf" and "product"
        (kernel, *problem)
        for number, kernel in enumerate(KERNELS)
        for problem in (PROBLEMS if kernel in ("rbf", "product") else [PROBLEMS[number % 3]])
    ],
)
def test_tuning_ends_with_an_answer_whatever_the_kernel(kernel, views, kind):
    X, Y = small_problem(kind, views)
    found = dmo.tune(MultiViewRidge(kernel), X, Y, cv=2)
    assert np.isfinite([row["mean"] for row in found.tuning_.table]).all()
    # Predicting the mean of real targets scores -1.
    assert found.tuning_.best_score_ > (-0.9 if kind == "real" else 0.5)


@pytest.mark.parametrize("kernel", ["linear", "polynomial", {"v0": "rbf", "v1": "cosine"}])
def test_a_product_of_kernels_with_negative_values_is_refused_and_its_cure_works(kernel):
    X, Y = small_problem("labels", 2)
    X = {view: rows - rows.mean(axis=0) for view, rows in X.items()}
    with pytest.raises(
        UserError, match="has negative ones; use kernels without negative values, such as 'rbf', or combine='kernels'"
    ):
        MultiViewRidge(kernel, combine="product").fit(X, Y)
    for cure in ({"kernel": "rbf", "combine": "product"}, {"kernel": kernel, "combine": "kernels"}):
        assert np.isfinite(MultiViewRidge(**cure).fit(X, Y).decision_function(X)).all()


def test_a_setting_that_fails_is_left_out_with_a_warning_that_names_it_and_where_all_fail_there_is_an_error():
    X, Y = small_problem("labels", 2)
    X = {view: rows - rows.mean(axis=0) for view, rows in X.items()}
    model, grid = MultiViewRidge("linear"), {"ridge": [1.0], "combine": ["product", "kernels"]}
    with pytest.warns(UserWarning, match=r"\{'combine': 'product'\} is left out: .* has negative ones"):
        found = sweep(model, X, Y, grid, folds=2, metric="lrap")
    assert [row["combine"] for row in found.table] == ["kernels"]
    with pytest.warns(UserWarning, match="is left out"):
        assert dmo.tune(model, X, Y, grid, cv=2).combine == "kernels"
    for tried in (sweep, dmo.tune):
        with pytest.raises(UserError, match="has negative ones"):
            tried(model, X, Y, {"combine": ["product"]})


def drawn_by_lot(how, n=120, seed=0):
    """Return features and independent labels, which are either random or permuted."""
    rng = np.random.default_rng(seed)
    if how == "permuted":
        X, Y = scattered(seed, n)
        return X, rng.permutation(Y[:, :3])
    return rng.normal(size=(n, 4)), (rng.random((n, 3)) < 0.4).astype(np.uint8)


def chance(Y, parts):
    """Compute the standard deviation of the mean AUC over labels and folds for random scores (Mann-Whitney)."""
    m, ones = len(Y) / parts, Y.sum(axis=0) / parts
    return float(np.sqrt(((m + 1) / (12 * ones * (m - ones))).mean() / (parts * Y.shape[1])))


WITHOUT_SIGNAL = {
    "ridge": (MultiViewRidge(), {"ridge": [0.01, 1.0], "decoder__standardize": [0.0, 1.0]}),
    "ridge, scaled": (MultiViewRidge("linear", prepare="standard"), {"ridge": [1.0], "decoder": [None, "calibrated"]}),
    "ridge, weights": (MultiViewRidge("product", weights="alignment"), {"decoder": ["calibrated", "probabilities"]}),
    "ridge, low rank": (MultiViewRidge(approximation=Nystrom(rank=20)), {"ridge": [0.01, 1.0]}),
    "KGHA": (KGHA(), {"n_components": [1, 1.0], "decoder": [None, "calibrated"]}),
    "KGHA, low rank": (KGHA(approximation=Nystrom(rank=20)), {"balance": [0.01, 1.0]}),
    "votes": (NeighborVotes(MultiViewRidge(ridge=0.1), decoder="calibrated"), {"visual": [0.0, 5.0]}),
    "votes, linear": (NeighborVotes(MultiViewRidge("linear"), visual=0.0), {"sharpness": [5.0, 60.0]}),
    "TagProp": (TagProp(decoder="calibrated"), {"n_neighbors": [5, 40]}),
    "2PKNN": (TwoPassKNN(decoder="probabilities"), {"weights": [None, "alignment"]}),
    "JEC": (JEC(decoder="calibrated"), {"n_neighbors": [3, 10]}),
    "FastTag": (dmo.FastTag(MultiViewRidge(), decoder="probabilities"), {"strength": [0.1, 10.0]}),
    "propagation": (dmo.LabelPropagation(), {"graph__n_neighbors": [5, 15]}),
    "ridge, distances of all folds": (MultiViewRidge("laplacian"), {"ridge": [0.1, 1.0], "bandwidth": [0.5, 1.0]}),
    "ridge, products of them": (
        MultiViewRidge("product", weights="tagprop", distances="l1"),
        {"gamma": [1.0, 2.0], "ridge": [0.1, 1.0]},
    ),
    "MORP": (dmo.MORP(n_components=3), {"mixing": [0.1, 0.9]}),
    "MLSI": (dmo.MLSI(n_components=3), {"mixing": [0.1, 0.9]}),
    "MESD": (dmo.MESD(), {"n_components": [2]}),
    "MOPE": (dmo.MOPE(), {"n_components": [2, 3]}),
    "CCA": (dmo.TraceEmbedding("cca"), {"ridge": [0.1, 10.0]}),
    "LLTSVR": (LLTSVR("rbf", frame="identity", tol=1e-2), {"C": [0.1, 1.0]}),
    "CoupledSVR": (dmo.CoupledSVR("rbf", tol=1e-2), {"C": [0.1, 1.0]}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WITHOUT_SIGNAL)
def test_labels_without_a_signal_come_out_as_chance(name, tmp_path):
    model, grid = WITHOUT_SIGNAL[name]
    X, Y = drawn_by_lot(["drawn", "permuted"][[*WITHOUT_SIGNAL].index(name) % 2])
    swept = sweep(model, X, Y, grid, 3, "auc-macro")
    tuned = dmo.tune(model, X, Y, grid, "auc-macro", cv=3).tuning_
    for found in (swept, tuned):
        assert np.abs([row["mean"] - 0.5 for row in found.table]).max() < 3 * chance(Y, 3)
    best = swept.best_estimator
    if hasattr(best, "held_out_votes_"):
        for scores in (best.held_out_scores_, best.held_out_votes_):
            assert abs(roc_auc_score(Y, scores) - 0.5) < 3 * chance(Y, 1)
    elif hasattr(best, "held_out_scores_"):  # leave-one-out means anti-correlate with the held-out label
        assert roc_auc_score(Y, best.held_out_scores_) < 0.5 + 3 * chance(Y, 1)
    best.save(str(tmp_path / "m.zarr"))
    Samples({"x": X}, Y).write(str(tmp_path / "s.zarr"))
    judged = judge(str(tmp_path / "m.zarr"), str(tmp_path / "s.zarr"), None, None, cv=3)
    assert judged.measures["auc_macro"] < 0.5 + 3 * chance(Y, 1)


@pytest.mark.parametrize("n", [60, 120, 300])
@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_votes_among_samples_know_nothing_of_the_label_that_they_are_for(kernel, n):
    """Votes that use scores of the fit on all samples leak labels, even if the scores are leave-one-out scores.
    In experiments, such votes had an AUC from 0.003 to 0.12, and the rules learned from them an AUC from 0.65 to 0.998.
    """
    X, Y = drawn_by_lot("drawn", n, seed=1)
    model = NeighborVotes(MultiViewRidge(kernel, ridge=0.1), visual=0.0, decoder="probabilities").fit(X, Y)
    assert abs(roc_auc_score(Y, model.held_out_votes_) - 0.5) < 3 * chance(Y, 1)
    worth = sweep(model, X, Y, {"sharpness": [30.0]}, 3, "auc-macro", refit=False).best_score
    assert abs(worth - 0.5) < 3 * chance(Y, 3)


def test_votes_that_were_held_out_are_those_of_the_other_parts_by_brute_force():
    X, Y = drawn_by_lot("permuted", 40)
    base = MultiViewRidge("linear", ridge=0.5, prepare="none")
    model = NeighborVotes(base, sharpness=7.0, visual=0.0, decoder="probabilities").fit(X, Y)
    fold = dealt(Y.astype(np.uint8), row_keys(model, Data.of({"x": X}, Y.astype(np.uint8)), np.arange(40)), FOLDS)
    for number in range(FOLDS):
        old, new = fold != number, fold == number
        alone = clone(base).set_params(decoder="probabilities").fit(X[old], Y[old])
        raw = alone._raw_scores({"x": X[new]})
        np.testing.assert_allclose(model.held_out_scores_[new], raw, atol=1e-6)
        p, q = (alone.decoding_.probabilities([scores]) for scores in (alone.held_out_scores_, raw))
        for i, own in zip(np.flatnonzero(new), q, strict=True):
            alike = [np.sqrt(own) @ np.sqrt(other) / np.sqrt(own.sum() * other.sum()) for other in p]
            shares = np.average(Y[old], axis=0, weights=np.exp(7.0 * np.array(alike)))
            expected = np.log(shares + Y[old].mean(axis=0))
            np.testing.assert_allclose(model.held_out_votes_[i], expected, atol=1e-4)


POISONED = {
    "standard": (MultiViewRidge("rbf", prepare="standard"), {"ridge": [0.1]}),
    "maxabs, decoder": (MultiViewRidge("linear", prepare="maxabs", decoder="calibrated"), {"ridge": [0.1]}),
    "filled": (MultiViewRidge("rbf", prepare=Prepare(impute="median", scale="none")), {"ridge": [0.1]}),
    "filled, decided": (KGHA(prepare=Prepare(impute="mean")), {"ridge": [0.1]}),
    "weights": (MultiViewRidge("product", weights="tagprop", decoder="f1@2"), {"ridge": [0.1]}),
    "propensity": (
        MultiViewRidge(decoder=Scores(propensity=True, prior_power=0.5, standardize=1.0)),
        {"ridge": [0.1]},
    ),
    "landmarks": (MultiViewRidge(approximation=Nystrom(rank=20)), {"ridge": [0.1]}),
    "bandwidths": (KGHA(approximation=Nystrom(rank=20), prepare="standard"), {"bandwidth": [0.5, 2.0]}),
    "clusters": (KGHA(approximation=Meka(clusters=2, rank=5)), {"ridge": [0.1]}),
    "votes": (NeighborVotes(MultiViewRidge(prepare="standard")), {"visual": [0.0, 5.0]}),
    "TagProp": (TagProp(decoder="f1@2"), {"n_neighbors": [10]}),
    "JEC": (JEC(decoder="calibrated"), {"n_neighbors": [3]}),
    "2PKNN": (TwoPassKNN(weights="alignment"), {"n_neighbors": [3]}),
    "outputs": (KGHA(targets="real", prepare="standard"), {"ridge": [0.1]}),
    "outputs, low rank": (MultiViewRidge("linear", targets="real", approximation=Nystrom(rank=9)), {"ridge": [0.1]}),
    "machines": (LLTSVR("rbf", prepare="standard", frame="identity", tol=1e-3), {"C": [1.0]}),
}


@pytest.mark.parametrize("name", [*POISONED, "linear, low rank"])
def test_a_poisoned_test_part_leaves_the_models_of_its_fold_as_they_were(name, monkeypatch):
    """Replace the features and labels of half of a test fold. The scores of the other half must not change."""
    model, grid = POISONED.get(
        name, (MultiViewRidge("linear", prepare="none", approximation=Nystrom(rank=9)), {"ridge": [0.1]})
    )
    X, Y = scattered(n=60)
    Y[:, 0] = np.arange(60) % 2
    fold = np.repeat([0, 1], [34, 26])
    fold[[3, 50]] = 1, 0
    bad = np.flatnonzero(fold == 0)[::2]
    monkeypatch.setattr(dmo.select.sweeps, "stratified_folds", lambda *_: fold)
    rng = np.random.default_rng(0)
    absurd, other = X.copy(), Y.astype(float)
    absurd[bad] = rng.normal(size=(len(bad), 4)) * 1e8
    if "filled" in name:
        for rows in (X, absurd):
            rows[::5, 0] = np.nan
        absurd[bad, :2] = np.nan
    other[bad] = 1e6 if "outputs" in name else 1 - other[bad]
    said = []
    for rows, labels in ((X, Y.astype(float)), (absurd, other)):
        scores = []
        sweep(model, rows, labels, grid, 2, lambda truth, S, to=scores: to.append(S.copy()) or 0.0, refit=False)
        said.append(
            [part[~np.isin(np.flatnonzero(fold == 0), bad)] for part in scores if len(part) == (fold == 0).sum()]
        )
    assert len(said[0]) == len(next(iter(grid.values())))
    for one, another in zip(*said, strict=True):
        if name == "linear, low rank":  # the folds share an origin, which affects float32 rounding
            np.testing.assert_allclose(one, another, atol=1e-6)
        else:
            np.testing.assert_array_equal(one, another)


def unknown_here(Y):
    """Mark some labels as unknown, but keep at least one known label per sample."""
    given = np.where(np.random.default_rng(3).random(Y.shape) < 0.2, np.nan, Y.astype(float))
    given[np.isnan(given).all(axis=1), 0] = 1.0
    return given


REMEMBERED = {
    "KGHA": (
        KGHA("rbf", solver=Solver(tol=1e-9)),
        {"ridge": [0.1, 1.0], "balance": [0.01, 0.1], "n_components": [2, 4], "bandwidth": [0.5, 1.0, 2.0]},
    ),
    "ridge": (
        MultiViewRidge("rbf"),
        {
            "ridge": [0.1, 1.0],
            "center": [True, False],
            "bandwidth": [0.5, 1.0, 2.0],
            "prepare__scale": ["auto", "none"],
        },
    ),
    "ridge, one kernel": (
        MultiViewRidge("laplacian", combine="product"),
        {"ridge": [0.1, 1.0], "bandwidth": [0.5, 2.0], "intercept": [False, True], "prepare__scale": ["standard"]},
    ),
    "ridge, distances of all folds": (MultiViewRidge("laplacian"), {"ridge": [0.1, 1.0], "bandwidth": [0.5, 1.0]}),
    "ridge, products of them": (
        MultiViewRidge("product", weights="tagprop", distances="l1"),
        {"gamma": [1.0, 2.0], "ridge": [0.1, 1.0]},
    ),
    "MORP": (dmo.MORP(n_components=3), {"mixing": [0.1, 0.9], "ridge": [0.1, 10.0]}),
    "MORP, exact": (dmo.MORP(n_components=3, kernel="rbf"), {"ridge": [0.1, 10.0], "bandwidth": [0.5, 1.0, 2.0]}),
    "KGHA, Nystrom": (
        KGHA("rbf", approximation=LOW_RANK, solver=Solver(tol=1e-9)),
        {"ridge": [0.1, 1.0], "balance": [0.01, 0.1]},
    ),
    "ridge, Nystrom": (MultiViewRidge("rbf", approximation=LOW_RANK), {"ridge": [0.1, 1.0], "center": [True, False]}),
}


@pytest.mark.slow
@pytest.mark.parametrize("gaps", [False, True], ids=["", "unknown labels"])
@pytest.mark.parametrize("name", REMEMBERED)
def test_a_sweep_that_remembers_scores_as_a_plain_loop_of_clones(name, gaps):
    model, grid = REMEMBERED[name]
    several = "MORP" not in name
    if gaps and "products" in name:
        pytest.skip("learned weights require complete labels")
    X = VIEWS if several else np.hstack(list(VIEWS.values()))
    if "decoder" in model.get_params():
        model = clone(model).set_params(decoder=Scores(label_sets=False))
    if gaps and not several:
        pytest.skip("MORP requires complete labels")
    Y = unknown_here(LABELS) if gaps else LABELS
    pick = lambda rows: {view: x[rows] for view, x in X.items()} if several else X[rows]  # noqa: E731
    known = lambda Y, S: float(S[Y == 1].mean() - S[Y == 0].mean())  # noqa: E731
    found = sweep(model, X, Y, grid, 3, known, refit=False)
    assert len(found.table) == np.prod([len(values) for values in grid.values()])
    fold = stratified_folds(np.nan_to_num(Y), 3, 0)
    for row in found.table[:: 1 if len(found.table) < 9 else 5]:
        setting = {key: row[key] for key in grid}
        if "bandwidth" in setting:
            kind = {"rbf": RBF, "laplacian": Laplacian}[model.kernel]
            setting["kernel"] = kind(scale=setting.pop("bandwidth"))
        alone = []
        for number in range(3):
            fitted = clone(model).set_params(**setting).fit(pick(fold != number), Y[fold != number])
            alone.append(known(Y[fold == number], fitted.decision_function(pick(fold == number))))
        # Low-rank factors are float32, and eigenvectors are accurate to the tolerance of the solver.
        np.testing.assert_allclose(row["folds"], alone, rtol=1e-3 if "Nystrom" in name else 1e-6)


def test_distances_are_worked_out_once_for_all_bandwidths_ridges_and_scales_that_are_the_same(monkeypatch):
    made, pairs = [], RowKernel._pairs
    monkeypatch.setattr(RowKernel, "_pairs", lambda self, *given: made.append(1) or pairs(self, *given))
    grid = {"bandwidth": [0.5, 1.0, 2.0], "ridge": [0.1, 1.0], "prepare__scale": ["none", "auto"]}
    found = sweep(MultiViewRidge("rbf"), VIEWS, LABELS, grid, 3, separation, refit=False)
    assert len(made) == 3 * len(VIEWS)
    by_scale = [[row["folds"] for row in found.table if row["prepare__scale"] == scale] for scale in ("none", "auto")]
    assert by_scale[0] == by_scale[1]
    assert len({row["mean"] for row in found.table}) == 6


@pytest.mark.parametrize("scale", ["none", "standard"])
def test_folds_have_their_distances_from_one_matrix_where_no_scale_is_learned(scale, monkeypatch):
    made, pairs = [], RowKernel._pairs
    monkeypatch.setattr(RowKernel, "_pairs", lambda self, *given: made.append(1) or pairs(self, *given))
    model = MultiViewRidge("laplacian", prepare=scale)
    sweep(model, VIEWS, LABELS, {"bandwidth": [0.5, 1.0], "ridge": [0.1, 1.0]}, 3, separation, refit=False)
    assert len(made) == len(VIEWS) * (1 if scale == "none" else 3)


def test_ridges_of_a_linear_kernel_of_many_columns_share_one_matrix_of_products():
    rng = np.random.default_rng(0)
    X, ridges = {"a": rng.normal(3.0, 1.0, (160, 300))}, {"ridge": [1.0, 30.0]}
    found = sweep(MultiViewRidge("linear"), X, LABELS, ridges, 3, f1_of_two, refit=False)
    for row in found.table:
        np.testing.assert_allclose(row["folds"], separately(MultiViewRidge("linear"), {"ridge": row["ridge"]}, 3, X))


def test_rows_of_a_store_that_a_search_holds_in_memory_keep_their_name_and_kind(tmp_path):
    X = np.abs(VIEWS["a"])
    writer = create_features(str(tmp_path / "s.zarr"), len(X), {"a": ViewSpec(6, histogram=True)}, block=50)
    for view, i in writer.missing():
        writer.write(view, i, X[writer.rows(i)])
    writer.finish()
    some = Subset(open_features(str(tmp_path / "s.zarr")).views["a"], np.arange(0, 160, 3))
    held = KeptRows.held({"a": some})["a"]
    assert held.histogram
    assert fingerprint(held) == fingerprint(some)
    assert named_distances("auto", {"a": Subset(held, np.arange(5))}) == {"a": "chi2"}
    np.testing.assert_array_equal(Subset(held, np.array([4, 2]))[:], some[:][[4, 2]])


def test_what_is_remembered_goes_by_contents_and_makes_room_by_age():
    made = []
    with remembering() as memory:
        memory.room = 20.0
        ask = lambda rows: remembered(lambda: made.append(1) or len(made), 8.0, lambda memory: memory.name(rows))  # noqa: E731
        X = np.arange(6.0).reshape(3, 2)
        assert ask(X) == ask(X.copy()) == ask(Subset(X, np.arange(3))[:]) == 1
        assert ask(X + 1) == 2
        assert ask(X) == 1
        assert ask(Subset(X, np.array([0, 2]))) == 3  # X + 1 is the oldest and is evicted
        assert ask(X + 1) == 4
    assert remembered(lambda: 5, 8.0, lambda memory: 1 / 0) == 5


@pytest.mark.parametrize("n_labels", [1, 3, 7])
def test_the_metric_of_a_sweep_asks_for_no_more_labels_than_there_are(n_labels):
    X, y = VIEWS["a"], LABELS[:, np.argsort(-LABELS.sum(axis=0))[:n_labels]]
    found = sweep(MultiViewRidge(), X, y, {"ridge": [0.1, 1.0]}, 2)
    assert found.metric == f"f1@{min(5, n_labels)}"
    assert sweep(MultiViewRidge(), X, X[:, :2] ** 3, {"ridge": [0.1, 1.0]}, 2).metric == "r2"


@pytest.mark.parametrize("name", ["morp", "mlsi", "mope", "mesd", "embedding"])
def test_projections_are_tuned_on_as_many_components_as_few_rows_columns_and_classes_have(name):
    X, y = load_iris(return_X_y=True)
    some = np.arange(0, 150, 4)
    model = dmo.tune(name, X[some], y[some])
    tried = {row["n_components"] for row in model.tuning_.table}
    assert max(tried) == {"morp": len(some) - 10 - 1, "mlsi": 4, "mope": 4, "mesd": 2, "embedding": 2}[name]
    assert (model.predict(X) == y).mean() > 0.85
    if name == "embedding":
        with pytest.raises(UserError, match="does not learn from labels"):
            dmo.tune(dmo.TraceEmbedding("pca"), X[some], y[some], grid={"n_components": [1, 2]})


@pytest.mark.parametrize("grid", [None, {"ridge": [0.1, 1.0]}, {"ridge": [0.1], "prepare__impute": ["median"]}])
def test_tune_imputes_missing_values_with_a_warning(grid):
    X, Y = make_multilabel_classification(n_samples=60, n_classes=3, random_state=0)
    X = pd.DataFrame(X.astype(float))
    X.iloc[3, 1:], chosen = np.nan, grid is not None and "prepare__impute" in grid
    if chosen:
        model = dmo.tune("ridge", X, Y, grid=grid)
    else:
        with pytest.warns(UserWarning, match=r"missing values are replaced by the means.*prepare=Prepare\(impute"):
            model = dmo.tune("ridge", X, Y, grid=grid)
    assert model.prepare.impute == ("median" if chosen else "mean")
    given = dmo.MultiViewRidge(prepare=dmo.Prepare(impute="median"))
    assert dmo.tune(given, X, Y, grid={"ridge": [0.1]}).prepare.impute == "median"
    X.iloc[3, 1] = np.inf
    with pytest.raises(UserError, match="has inf"):
        dmo.tune("ridge", X.fillna(0.0), Y, grid={"ridge": [0.1]})
