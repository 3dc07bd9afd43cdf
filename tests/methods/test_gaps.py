"""Test sample weights, unknown labels and missing views: a fit uses exactly the known values."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from cases import folds
from numpy.testing import assert_allclose
from scipy.linalg import eigh, null_space
from scipy.sparse import csr_array, issparse
from sklearn import config_context
from sklearn.base import clone
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge
from sklearn.metrics import label_ranking_average_precision_score, roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.utils.class_weight import compute_class_weight, compute_sample_weight

import dmo
import dmo.select.sweeps as selection
import dmo.select.tuning as tuning
from dmo import (
    KGHA,
    LLTSVR,
    MESD,
    MLSI,
    MORP,
    CoupledSVR,
    Exact,
    FastTag,
    HomogeneityAnalysis,
    Krylov,
    MultiSetCCA,
    MultiViewRidge,
    Nystrom,
    Prepare,
    Solver,
    TraceEmbedding,
)
from dmo.decide import out_of_fold
from dmo.decoders import Scores
from dmo.errors import UserError
from dmo.fit import exact, fitted_views
from dmo.fit.engine import fit_maps
from dmo.fit.fitted_views import Groups
from dmo.fit.moments import LABELS, Moments
from dmo.fit.ridge_solves import masked_ridge
from dmo.inputs import Data, SampleWeights
from dmo.kernels import RBF, gram_matrix
from dmo.kernels.multikernel import MultiKernel
from dmo.linalg.operators import Operator
from dmo.methods.filling import filled_labels
from dmo.metrics import inverse_propensities
from dmo.selection import sweep

N, L = 90, 4
RNG = np.random.default_rng(0)
VIEWS = {"a": RNG.normal(size=(N, 5)) + 2, "b": RNG.normal(size=(N, 120))}
NEW = {"a": RNG.normal(size=(7, 5)) + 2, "b": RNG.normal(size=(7, 120))}
Y = ((VIEWS["a"] - 2) @ RNG.normal(size=(5, L)) + RNG.normal(size=(N, L)) > 0.5).astype(float)
WEIGHTS = RNG.integers(0, 4, N).astype(float)


def with_gaps() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return views with missing rows and labels with missing entries. One sample has no known label."""
    views = {view: X.copy() for view, X in VIEWS.items()}
    views["a"][5:20] = np.nan
    views["b"][15:40] = np.nan
    views["b"][15:20] = VIEWS["b"][15:20]
    labels = Y.copy()
    labels[np.random.default_rng(1).random(Y.shape) < 0.4] = np.nan
    labels[50] = np.nan
    return views, labels


@pytest.mark.parametrize("approximation", ["exact", Nystrom(rank=200)])
@pytest.mark.parametrize("sparse", [False, True])
def test_every_label_is_the_ridge_regression_on_its_own_samples_in_every_view(approximation: Any, sparse: bool) -> None:
    views, labels = with_gaps()
    given = {view: csr_array(X) if sparse else X for view, X in views.items()}
    model = MultiViewRidge("linear", ridge=0.3, intercept=True, approximation=approximation)
    model.fit(given, labels, sample_weight=WEIGHTS)
    wanted = {}
    for view, X in views.items():
        known = ~np.isnan(X[:, :1]) & ~np.isnan(labels)
        parts = [
            Ridge(0.3, solver="cholesky").fit(X[has], y[has], sample_weight=WEIGHTS[has]).predict(NEW[view])
            for has, y in zip(known.T, labels.T, strict=True)
        ]
        wanted[view] = np.stack(parts, axis=1)
    assert_allclose(model.decision_function(NEW), (wanted["a"] + wanted["b"]) / 2, atol=1e-8)
    assert_allclose(model.decision_function({"b": NEW["b"]}), wanted["b"], atol=1e-8)
    assert_allclose(model.decision_function({"a": NEW["a"], "b": None}), wanted["a"], atol=1e-8)


def test_unknown_labels_of_a_kernel_without_centering_are_solved_as_scikit_learn_solves_each() -> None:
    _, labels = with_gaps()
    model = MultiViewRidge(RBF(bandwidth=2.0), ridge=0.05, center=False, approximation="exact").fit(VIEWS["a"], labels)
    for label, y in enumerate(labels.T):
        has = ~np.isnan(y)
        oracle = KernelRidge(alpha=0.05, kernel="rbf", gamma=1 / 8).fit(VIEWS["a"][has], y[has])
        assert_allclose(model.decision_function(NEW["a"])[:, label], oracle.predict(NEW["a"]), atol=1e-8)


@pytest.mark.parametrize("approximation", ["exact", Nystrom(rank=200)])
def test_unknown_labels_of_rows_without_centering_are_solved_as_scikit_learn_solves_each(approximation: Any) -> None:
    _, labels = with_gaps()
    model = MultiViewRidge("linear", ridge=0.3, center=False, approximation=approximation).fit(VIEWS["a"], labels)
    for label, y in enumerate(labels.T):
        has = ~np.isnan(y)
        oracle = Ridge(0.3, fit_intercept=False).fit(VIEWS["a"][has], y[has])
        assert_allclose(model.decision_function(NEW["a"])[:, label], oracle.predict(NEW["a"]), atol=1e-8)


@pytest.mark.parametrize("approximation", ["exact", Nystrom(rank=200)])
@pytest.mark.parametrize("center", [True, False])
def test_weights_are_repeated_samples(approximation: Any, center: bool) -> None:
    repeated = np.repeat(np.arange(N), WEIGHTS.astype(int))
    rows = {view: X[repeated] for view, X in VIEWS.items()}
    model = MultiViewRidge("linear", ridge=0.3, center=center, intercept=center, decoder=Scores(prior_power=0.3))
    model.set_params(approximation=approximation)
    weighted = model.fit(VIEWS, Y, sample_weight=WEIGHTS).decision_function(NEW)
    assert_allclose(weighted, model.fit(rows, Y[repeated]).decision_function(NEW), atol=1e-8)


@pytest.mark.parametrize(
    "model",
    [
        MultiViewRidge("rbf", ridge=0.3),
        MultiViewRidge(RBF("median"), ridge=0.3, approximation=Nystrom(rank=200, landmarks="uniform")),
        KGHA("laplacian", n_components=3),
        MultiSetCCA(n_components=2),
    ],
    ids=["ridge", "ridge, moments", "KGHA", "CCA"],
)
def test_bandwidths_take_samples_as_often_as_they_count(model: Any) -> None:
    repeated = np.repeat(np.arange(N), WEIGHTS.astype(int))
    rows = {view: X[repeated] for view, X in VIEWS.items()}
    method = "decision_function" if hasattr(model, "decision_function") else "transform"
    weighted = getattr(clone(model).fit(VIEWS, Y, sample_weight=WEIGHTS), method)(NEW)
    assert_allclose(np.abs(weighted), np.abs(getattr(model.fit(rows, Y[repeated]), method)(NEW)), atol=2e-4)


@pytest.mark.parametrize("approximation", ["exact", Nystrom(rank=200)])
@pytest.mark.parametrize("weights", [WEIGHTS, WEIGHTS * 1.1], ids=["whole numbers", "others"])
def test_held_out_scores_with_weights_are_those_of_fits_without_the_sample(
    approximation: Any, weights: np.ndarray
) -> None:
    views, _ = with_gaps()
    model = MultiViewRidge("linear", ridge=0.3, intercept=True, approximation=approximation)
    held = model.set_params(decoder="probabilities").fit(views, Y, sample_weight=weights).held_out_scores_
    used = np.flatnonzero(weights)
    assert held.shape == (len(used), L)
    model.set_params(decoder=None)
    for place in (0, 7, 30):
        without = weights.copy()
        without[used[place]] = 0.0  # remove the sample completely, so that its labels cannot leak
        row = {view: X[used[[place]]] for view, X in views.items()}
        said = model.fit(views, Y, sample_weight=without).decision_function(row)[0]
        mean = weights @ Y / weights.sum()  # held-out scores exclude the intercept
        assert_allclose(held[place], said - mean, atol=1e-8)


WHOLE = Nystrom(rank=200, landmarks="uniform", precision="float64")
EXACT = Solver(tol=1e-10)
DECIDING = {
    "kernel": MultiViewRidge(RBF(3.0), ridge=0.3, decoder=Scores(standardize=0.5)),
    "linear": MultiViewRidge("linear", ridge=0.3, decoder=Scores(propensity=True), intercept=True),
    "moments": MultiViewRidge("linear", ridge=0.3, approximation=Nystrom(rank=200)),
    "one kernel": MultiViewRidge(RBF(3.0), ridge=0.3, combine="kernels"),
    "decoder": MultiViewRidge(RBF(3.0), ridge=0.3, decoder=dmo.decoders.PlugIn("f1@2")),
    "sets": MultiViewRidge("linear", ridge=0.3, decoder="f1-macro"),
    "classes": MultiViewRidge(RBF(3.0), ridge=0.3),
    "weights of classes": MultiViewRidge(RBF(3.0), ridge=0.3, class_weight="balanced"),
    "bandwidth and classes": MultiViewRidge("rbf", ridge=0.3, class_weight="balanced"),
    "low-rank classes": MultiViewRidge("rbf", ridge=0.3, class_weight="balanced", approximation=WHOLE),
    "KGHA classes": KGHA("rbf", n_components=2, solver=EXACT, class_weight="balanced"),
    "KGHA one of two directions of classes": KGHA(RBF(3.0), solver=EXACT, n_components=1),
    "KGHA standardized": KGHA(RBF(3.0), n_components=3, solver=EXACT, decoder=Scores(standardize=0.5)),
    "KGHA low rank": KGHA("rbf", ridge=0.5, n_components=2, solver=EXACT, approximation=WHOLE),
    "prepared": MultiViewRidge("linear", ridge=0.3, prepare=Prepare("standard")),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DECIDING)
def test_weights_are_repeated_samples_in_all_that_is_decided(name: str) -> None:
    model, repeated = DECIDING[name], np.random.default_rng(2).permutation(np.repeat(np.arange(N), WEIGHTS.astype(int)))
    y = Y if "classes" not in name else Y[:, 0] + Y[:, 1]
    weighted = clone(model).fit(VIEWS, y, sample_weight=WEIGHTS)
    whole = clone(model).fit({view: X[repeated] for view, X in VIEWS.items()}, y[repeated])
    assert_allclose(weighted.decision_function(NEW), whole.decision_function(NEW), atol=1e-5)
    assert_allclose(weighted.predict_proba(NEW), whole.predict_proba(NEW), atol=1e-5)
    np.testing.assert_array_equal(weighted.predict(NEW), whole.predict(NEW))
    plain = clone(model).fit(VIEWS, y)
    assert np.abs(plain.predict_proba(NEW) - whole.predict_proba(NEW)).max() > 0.01


@pytest.mark.parametrize(
    ("model", "factor"),
    [
        # Integer weights are counts, so that leaving out one of 9 copies keeps the other 8. A factor of 1.1 avoids
        # this.
        (MultiViewRidge(RBF(1.0)), 1.1),
        (MultiViewRidge(RBF(1.0), decoder="probabilities"), 1.1),
        (MultiViewRidge("linear", approximation=Nystrom(rank=20)), 1.1),
        (MultiViewRidge("linear", decoder="probabilities", approximation="exact"), 1.1),
        (KGHA(RBF(1.0)), 1.0),
        (KGHA(RBF(1.0), decoder="probabilities"), 1.0),
        (KGHA("linear", approximation=Nystrom(rank=20)), 1.0),
    ],
    ids=str,
)
def test_probabilities_of_noise_are_the_shares_by_weight(model: Any, factor: float) -> None:
    rng = np.random.default_rng(0)
    X, labels = rng.normal(size=(120, 3)), np.column_stack([np.arange(120) % 2, rng.integers(0, 2, 120)])
    weights = factor * np.where(labels[:, 0] == 1, 9.0, 1.0)
    found = model.fit(X, labels, sample_weight=weights).predict_proba(rng.normal(size=(50, 3)))
    shares = weights @ labels / weights.sum()
    assert shares[0] == pytest.approx(0.9)
    # Over 16 seeds, the standard deviation was 0.019 with a decoder and 0.008 without a decoder.
    assert np.abs(found.mean(axis=0) - shares).max() < 0.07


def test_frequencies_of_labels_are_means_by_weight_over_the_samples_that_know_them() -> None:
    _, labels = with_gaps()
    for model in (
        MultiViewRidge("linear", decoder=Scores(label_sets=False)),
        KGHA("linear", decoder=Scores(label_sets=False), n_components=2),
    ):
        found = model.fit(VIEWS, labels, sample_weight=WEIGHTS).rule_.frequency
        known = ~np.isnan(labels)
        wanted = [np.average(y[has], weights=WEIGHTS[has]) for y, has in zip(labels.T, known.T, strict=True)]
        assert_allclose(found, wanted)


def test_classes_without_weight_take_no_part_in_balanced_weights() -> None:
    y = np.arange(N) % 3
    some = y < 2
    for model in (MultiViewRidge("linear", ridge=5.0), KGHA("linear", ridge=5.0, n_components=1)):
        model.set_params(class_weight="balanced", decoder=Scores(label_sets=False))
        weighted = clone(model).fit(VIEWS, y, sample_weight=1.0 * some).decision_function(NEW)[:, :2]
        alone = clone(model).fit({view: X[some] for view, X in VIEWS.items()}, y[some]).decision_function(NEW)
        assert_allclose(weighted[:, 1] - weighted[:, 0], alone, atol=1e-6)


@pytest.mark.parametrize("gaps", ["weights", "labels"])
def test_a_fit_of_gaps_keeps_no_moments_of_the_rows_before_it(gaps: str) -> None:
    model = MultiViewRidge("linear", approximation=Nystrom(rank=5)).partial_fit(VIEWS["a"], Y)
    labels, weights = (Y, WEIGHTS) if gaps == "weights" else (with_gaps()[1], None)
    model.fit(VIEWS["a"], labels, sample_weight=weights)
    fresh = MultiViewRidge("linear", approximation=Nystrom(rank=5)).fit(VIEWS["a"], labels, sample_weight=weights)
    assert_allclose(model.decision_function(NEW["a"]), fresh.decision_function(NEW["a"]))
    with pytest.raises(UserError, match="a model of fit cannot be continued by partial_fit"):
        model.partial_fit(VIEWS["a"], Y)


def test_views_that_say_nothing_are_imputed_with_the_largest_ridge() -> None:
    rng = np.random.default_rng(0)
    views = {"a": rng.normal(size=(60, 4)), "b": rng.normal(size=(60, 3))}
    lacking = {"a": np.where(np.arange(60)[:, None] < 6, np.nan, views["a"]), "b": views["b"]}
    wanted = dmo.impute_views(lacking, estimator=MultiViewRidge("rbf", ridge=1.0))
    assert_allclose(dmo.impute_views(lacking)["a"], wanted["a"])
    clear = {"a": views["a"], "b": views["a"][:, :3] @ rng.normal(size=(3, 3))}
    lacking = {"a": clear["a"], "b": np.where(np.arange(60)[:, None] < 6, np.nan, clear["b"])}
    wanted = dmo.impute_views(lacking, estimator=MultiViewRidge("rbf", ridge=0.03))
    assert_allclose(dmo.impute_views(lacking)["b"], wanted["b"])


def test_partial_fit_decides_by_weights_as_by_repeated_samples() -> None:
    index = np.repeat(np.arange(N), WEIGHTS.astype(int))
    rows = np.vstack([VIEWS["a"]] * 2), np.vstack([Y] * 2), np.tile(WEIGHTS, 2)
    model = MultiViewRidge("linear", ridge=0.3, approximation=Nystrom(rank=5))
    weighted = clone(model).partial_fit(rows[0], rows[1], sample_weight=rows[2]).predict_proba(NEW["a"])
    index = np.repeat(np.arange(2 * N), rows[2].astype(int))
    assert_allclose(
        weighted, clone(model).partial_fit(rows[0][index], rows[1][index]).predict_proba(NEW["a"]), atol=1e-6
    )


@pytest.mark.filterwarnings("ignore::dmo.linalg.linear.InaccurateSolve")
@pytest.mark.parametrize("d", [N - 1, N, N + 1, 200])
@pytest.mark.parametrize("scale", [1.0, 1e6, 1e8])
@pytest.mark.parametrize("sparse", [False, True])
def test_left_out_scores_of_rows_that_columns_determine_are_those_of_refits(d: int, scale: float, sparse: bool) -> None:
    rng = np.random.default_rng(d)
    X = scale * (rng.poisson(1.0, (N, d)) if sparse else rng.normal(size=(N, d)))
    model = MultiViewRidge("linear", decoder="probabilities", approximation="exact", prepare="none")
    held = clone(model).fit(csr_array(X) if sparse else X, Y).held_out_scores_
    refits = np.empty((10, L))
    for i in range(10):
        rows = np.arange(N) != i
        plain, mean = X[rows] - X[rows].mean(axis=0), Y[rows].mean(axis=0)
        U, s, Vt = np.linalg.svd(plain, full_matrices=False)
        keep = s > 1e-10 * s[0]
        U, s, Vt = U[:, keep], s[keep], Vt[keep]
        weights = Vt.T @ ((s / (s**2 + 0.01))[:, None] * (U.T @ (Y[rows] - mean)))
        refits[i] = (X[i] - X[rows].mean(axis=0)) @ weights + mean - Y.mean(axis=0)
    assert_allclose(held[:10], refits, rtol=1e-5, atol=1e-5 * np.abs(refits).max())


def test_samples_that_are_fitted_whole_are_told_of() -> None:
    X = 1e6 * np.random.default_rng(0).normal(size=(40, 60))
    with pytest.warns(dmo.linalg.linear.InaccurateSolve, match="40 of 40 samples are fitted almost exactly"):
        MultiViewRidge("linear", prepare="none").fit(X, Y[:40])
    MultiViewRidge("linear", prepare="none", ridge=1e10).fit(X, Y[:40]).predict(X)


def test_decoders_and_standardized_scores_learn_from_known_labels_alone() -> None:
    views, labels = with_gaps()
    frequency = np.nanmean(labels[~np.isnan(labels).all(axis=1)], axis=0)
    for decoder in (Scores(standardize=0.5), "f1@2"):
        model = MultiViewRidge("linear", ridge=1.0, decoder=decoder, approximation="exact").fit(views, labels)
        assert_allclose(model.rule_.frequency, frequency)
        assert_allclose(model.predict_proba(NEW).shape, (7, L))
    blind = MultiViewRidge("linear", ridge=1.0, decoder="probabilities", approximation="exact").fit(VIEWS, Y)
    hidden = np.where(RNG.random(Y.shape) < 0.7, np.nan, Y)  # labels missing at random keep probabilities calibrated
    seeing = MultiViewRidge("linear", ridge=1.0, decoder="probabilities", approximation="exact").fit(VIEWS, hidden)
    assert abs(blind.predict_proba(VIEWS).mean() - seeing.predict_proba(VIEWS).mean()) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    "unknown",
    [
        lambda: np.ma.masked_array(np.nan_to_num(with_gaps()[1]), np.isnan(with_gaps()[1])),
        lambda: pd.DataFrame(with_gaps()[1], columns=list("wxyz")),
        lambda: pd.DataFrame(with_gaps()[1], columns=list("wxyz")).astype("Int64"),
        lambda: [[None if v != v else int(v) for v in row] for row in with_gaps()[1]],
    ],
    ids=["masked array", "DataFrame of NaN", "DataFrame of NA", "lists of None"],
)
def test_unknown_labels_come_in_all_forms(unknown: Any) -> None:
    wanted = MultiViewRidge("linear").fit(VIEWS, with_gaps()[1]).decision_function(NEW)
    assert_allclose(MultiViewRidge("linear").fit(VIEWS, unknown()).decision_function(NEW), wanted, atol=1e-9)


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        (np.full(N, -1.0), "sample_weight is -1.0 at sample 0, expected finite numbers of at least 0"),
        (np.ones(3), r"sample_weight has shape \(3,\), expected \(90,\); pass one weight per sample"),
        ({"c": 1.0}, "sample_weight has an entry for 'c', expected 'labels' or one of the views"),
        ({"a": np.zeros(N)}, "view 'a': the weights of all samples are zero"),
    ],
)
def test_weights_that_do_not_fit_are_refused(weights: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        MultiViewRidge("linear").fit(VIEWS, Y, sample_weight=weights)


def test_what_gaps_make_impossible_is_refused() -> None:
    views, labels = with_gaps()
    with pytest.raises(UserError, match="a combined kernel does not support; use combine='predictions'"):
        MultiViewRidge("linear", combine="kernels").fit(views, Y)
    with pytest.raises(UserError, match="sample 5 has none of the views"):
        MultiViewRidge("linear").fit(VIEWS, Y).decision_function({"a": views["a"][:9], "b": np.full((9, 120), np.nan)})
    views["a"][3, 1] = np.nan
    with pytest.raises(UserError, match="view 'a' has NaN at row 3, column 1; pass prepare=Prepare"):
        MultiViewRidge("linear").fit(views, labels)


def test_weights_by_view_are_rows_that_the_view_lacks() -> None:
    views, labels = with_gaps()
    has = {view: ~np.isnan(X[:, 0]) for view, X in views.items()}
    by_rows = MultiViewRidge("linear").fit(views, labels).decision_function(NEW)
    by_weights = MultiViewRidge("linear").fit(VIEWS, labels, sample_weight=has).decision_function(NEW)
    assert_allclose(by_weights, by_rows, atol=1e-12)


def test_weights_reach_a_fit_through_scikit_learns_routing() -> None:
    with config_context(enable_metadata_routing=True):
        model = MultiViewRidge("linear").set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        search = GridSearchCV(model, {"ridge": [0.1, 1.0]}, cv=2)
        weighted = search.fit(VIEWS["a"], Y[:, 0], sample_weight=WEIGHTS).best_estimator_
    alone = MultiViewRidge("linear", ridge=search.best_params_["ridge"]).fit(VIEWS["a"], Y[:, 0], sample_weight=WEIGHTS)
    assert_allclose(weighted.decision_function(NEW["a"]), alone.decision_function(NEW["a"]))


@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_a_model_of_gaps_comes_back_from_disk(kernel: str, tmp_path: Path) -> None:
    views, labels = with_gaps()
    model = MultiViewRidge(kernel, approximation="exact").fit(views, labels, sample_weight=WEIGHTS)
    model.save(str(tmp_path / "model.zarr"))
    back = dmo.load(str(tmp_path / "model.zarr"))
    for part in (NEW, {"b": NEW["b"]}):
        np.testing.assert_array_equal(back.decision_function(part), model.decision_function(part))


def passive_eigenproblem(
    groups: dict[str, np.ndarray], weights: dict[str, np.ndarray], shares: dict[str, float], ridge: float, center: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Solve the generalized eigenproblem of KGHA with missing views and sample weights by dense matrices.
    Return the eigenvalues in descending order and the eigenvectors.
    """
    n, total = len(next(iter(weights.values()))), sum(shares.values())
    A, M = np.zeros((n, n)), np.zeros(n)
    for name, F in groups.items():
        D = weights[name]
        F = np.where(D[:, None] > 0, F, 0.0)
        F = F - D @ F / D.sum() if center else F
        image = D[:, None] * F
        A += shares[name] / total * image @ np.linalg.solve(F.T @ image + ridge * np.eye(F.shape[1]), image.T)
        M += shares[name] / total * D
    used = M > 0
    basis = null_space(M[used][None, :])  # basis of the vectors x with 1'M x = 0
    values, Z = eigh(basis.T @ A[np.ix_(used, used)] @ basis, basis.T @ (M[used][:, None] * basis))
    X = np.zeros((n, len(values)))
    X[used] = basis @ Z
    return values[::-1], X[:, ::-1]


@pytest.mark.parametrize("approximation", ["exact", Nystrom(rank=200)])
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("labels", [True, False])
def test_missing_views_are_passive_as_gifi_has_them(approximation: Any, center: bool, labels: bool) -> None:
    views, _ = with_gaps()
    model: Any = MultiSetCCA(
        "linear", ridge=0.7, n_components=3, center=center, approximation=approximation, solver=Solver(tol=1e-12)
    )
    groups, shares = dict(VIEWS), dict.fromkeys(VIEWS, 1.0)
    weights = {view: WEIGHTS * ~np.isnan(X[:, 0]) for view, X in views.items()}
    known = Y.copy()
    if labels:
        known[60:70] = np.nan  # these samples have no labels
        model = KGHA(
            "linear", ridge=0.7, n_components=3, center=center, approximation=approximation, solver=Solver(tol=1e-12)
        )
        model.set_params(balance=0.2, label_ridge=0.7)
        groups, shares = groups | {"y": Y}, dict.fromkeys(VIEWS, 0.2) | {"y": 1.0}
        weights["y"] = WEIGHTS * ~np.isnan(known[:, 0])
    model.fit(views, known, sample_weight=WEIGHTS)
    values, X = passive_eigenproblem(groups, weights, shares, 0.7, center)
    assert_allclose(model.eigenvalues_, values[:3], rtol=1e-10)
    parts = {}
    for view, F in VIEWS.items():
        D = weights[view]
        mean = D @ F / D.sum() if center else 0.0
        image = D[:, None] * (F - mean)
        parts[view] = (NEW[view] - mean) @ np.linalg.solve(
            (F - mean).T @ image + 0.7 * np.eye(F.shape[1]), image.T @ X[:, :3]
        )
    both = (parts["a"] + parts["b"]) / 2
    for given, wanted in ((NEW, both), ({"b": NEW["b"]}, parts["b"])):
        got = model.transform(given)
        signs = np.sign((got * wanted).sum(axis=0))
        assert_allclose(got * signs, wanted, atol=1e-7)


@pytest.mark.parametrize("approximation", ["exact", Nystrom(rank=200)])
def test_weights_of_an_embedding_are_repeated_samples(approximation: Any) -> None:
    repeated = np.repeat(np.arange(N), WEIGHTS.astype(int))
    rows = {view: X[repeated] for view, X in VIEWS.items()}
    model = KGHA(
        "linear", ridge=0.7, n_components=3, solver=Solver(tol=1e-10), intercept=True, approximation=approximation
    )
    weighted = model.fit(VIEWS, Y, sample_weight=WEIGHTS).decision_function(NEW)
    assert_allclose(weighted, model.fit(rows, Y[repeated]).decision_function(NEW), atol=1e-8)


GLOBAL = [entry["name"] for entry in TraceEmbedding.methods() if entry["family"] == "global"]
PROJECTIONS = {
    **{f"MORP {form}": MORP(RBF(2.0), form=form, ridge=0.2) for form in ("simplified", "direct")},
    "MORP linear": MORP("linear", ridge=0.2),
    "MORP low rank": MORP(
        RBF(2.0), ridge=0.2, approximation=Nystrom(rank=40, landmarks="uniform", precision="float64")
    ),
    "MLSI words": MLSI(ridge=0.3, dual=False),
    "MLSI documents": MLSI(ridge=0.3, dual=True),
    "MLSI dual without a ridge": MLSI(dual=True),
    "MLSI subspace": MLSI(ridge=0.3, approximation=Krylov(steps=40, extra=5, tol=1e-15)),
    "kernel CCA": TraceEmbedding("cca", kernel=RBF(2.0), ridge=0.2),
    **{f"TraceEmbedding {name}": TraceEmbedding(name) for name in [*GLOBAL, "fda", "mmc"]},
    **{f"MESD {name}": MESD(name) for name in ("fda", "mmc")},
    **{f"MESD {name} kernel": MESD(name, kernel=RBF("median")) for name in ("fda", "mmc")},
    "MESD fda variance": MESD("fda", variance=0.9),
    "MESD fda kernel variance": MESD("fda", kernel="rbf", variance=0.9),
    "TraceEmbedding fda kernel": TraceEmbedding("fda", kernel="laplacian"),
}


# The solver warns if the subspace is already complete.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", PROJECTIONS)
def test_weights_of_a_projection_are_repeated_samples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    repeated = np.repeat(np.arange(N), WEIGHTS.astype(int))
    X, new = VIEWS["b"][:, :6], NEW["b"][:, :6]
    model = clone(PROJECTIONS[name]).set_params(n_components=2)
    if "tol" in model.get_params():
        model.set_params(tol=1e-10)
    if "low rank" in name:  # otherwise, repeated samples would change the landmarks
        maps = fit_maps(model.approximation, model.kernel, {"x": X}, 0, True)
        monkeypatch.setattr("dmo.fit.one_view.fit_maps", lambda *given: maps)
    weighted, wanted = model.fit(X, Y, sample_weight=WEIGHTS), clone(model).fit(X[repeated], Y[repeated])
    signs = np.sign((weighted.transform(new) * wanted.transform(new)).sum(axis=0))
    scale = np.abs(wanted.transform(new)).max()
    assert_allclose(weighted.transform(new) * signs, wanted.transform(new), atol=1e-6 * scale)
    if hasattr(model, "decoder_"):
        scale = np.abs(wanted.decision_function(new)).max()
        assert_allclose(weighted.decision_function(new), wanted.decision_function(new), atol=3e-6 * max(scale, 1.0))


@pytest.mark.parametrize("model", [MultiViewRidge("linear", ridge=0.3), KGHA("linear", ridge=0.7, n_components=2)])
def test_weights_of_classes_are_scikit_learns_of_their_samples(model: Any, tmp_path: Path) -> None:
    y = np.array(["sea", "sky", "tree"])[(VIEWS["a"][:, 0] > 2).astype(int) + (VIEWS["a"][:, 1] > 3)]
    for given in ("balanced", {"sky": 2.0, "tree": 0.5}):
        weights = compute_sample_weight(given, y)
        wanted = clone(model).set_params(intercept=True).fit(VIEWS, y, sample_weight=weights)
        found = clone(model).set_params(class_weight=given).fit(VIEWS, y)
        assert_allclose(found.decision_function(NEW), wanted.decision_function(NEW), atol=1e-6)
    found.save(str(tmp_path / "m.zarr"))
    assert dmo.load(str(tmp_path / "m.zarr")).class_weight == given
    repeated = np.repeat(np.arange(N), WEIGHTS.astype(int))
    whole = clone(model).set_params(class_weight="balanced")
    weighted = clone(whole).fit(VIEWS, y, sample_weight=WEIGHTS).decision_function(NEW)
    rows = {view: X[repeated] for view, X in VIEWS.items()}
    assert_allclose(weighted, whole.fit(rows, y[repeated]).decision_function(NEW), atol=1e-6)
    scores = sweep(model, VIEWS, y, {"class_weight": [None, "balanced"]}, 2, "accuracy", refit=False).table
    assert [row["class_weight"] for row in scores] == [None, "balanced"]
    with pytest.raises(UserError, match="class_weight has an entry for 'lake', but the classes are"):
        found.set_params(class_weight={"lake": 2.0}).fit(VIEWS, y)


WEIGHED = [
    MORP(RBF(3.0), n_components=2, prepare="none"),
    MORP(RBF(3.0), n_components=2, prepare="none", approximation=WHOLE),
    MLSI(n_components=2),
    MESD("fda", n_components=1, prepare="none"),
    MESD("mmc", n_components=2, kernel=RBF(3.0), prepare="none"),
    CoupledSVR(RBF(3.0), C=0.1, tol=1e-8, prepare="none"),
]


@pytest.mark.slow
@pytest.mark.parametrize("model", WEIGHED, ids=lambda model: f"{type(model).__name__} {model.approximation}"[:12])
def test_class_weights_multiply_sample_weights(model: Any, tmp_path: Path) -> None:
    X, new = VIEWS["a"], NEW["a"]
    y = np.array(["sea", "sky", "tree"])[(X[:, 0] > 2).astype(int) + (X[:, 1] > 3)]
    repeated = np.repeat(y, WEIGHTS.astype(int))
    balanced = dict(zip(CLASSES, compute_class_weight("balanced", classes=CLASSES, y=repeated), strict=True))
    for given, by_class in (("balanced", balanced), ({"sky": 2.0, "tree": 0.5}, {"sea": 1.0, "sky": 2.0, "tree": 0.5})):
        found = clone(model).set_params(class_weight=given).fit(X, y, sample_weight=WEIGHTS)
        wanted = clone(model).fit(X, y, sample_weight=WEIGHTS * np.array([by_class[name] for name in y]))
        assert_allclose(found.decision_function(new), wanted.decision_function(new), atol=2e-6)
        plain = clone(model).fit(X, y, sample_weight=WEIGHTS)
        assert np.abs(found.decision_function(new) - plain.decision_function(new)).max() > 1e-3
    found.save(str(tmp_path / "m.zarr"))
    assert dmo.load(str(tmp_path / "m.zarr")).class_weight == given
    with pytest.raises(UserError, match="class_weight needs a vector of classes"):
        found.fit(X, Y)
    with pytest.raises(UserError, match="class_weight has an entry for 'lake', but the classes are"):
        found.set_params(class_weight={"lake": 2.0}).fit(X, y)
    with pytest.raises(UserError, match="class_weight is 0 for the classes of all samples"):
        found.set_params(class_weight=dict.fromkeys(CLASSES, 0.0)).fit(X, y)


CLASSES = np.array(["sea", "sky", "tree"])
ENTRIES = np.random.default_rng(3).choice([0.0, 0.2, 1.0, 30.0], Y.shape, p=[0.2, 0.3, 0.3, 0.2])


@pytest.mark.parametrize("approximation", ["exact", Nystrom(rank=200)])
@pytest.mark.parametrize("given", [ENTRIES, "balanced", {1: 5.0, 3: 0.1}], ids=["matrix", "balanced", "by label"])
def test_weights_of_labels_are_those_of_one_regression_a_label(approximation: Any, given: Any) -> None:
    views, labels = with_gaps()
    model = MultiViewRidge("linear", ridge=0.3, intercept=True, approximation=approximation)
    by_view: dict[str, Any] = dict.fromkeys(views, WEIGHTS) | {"labels": WEIGHTS}
    if isinstance(given, np.ndarray):
        model.fit(views, labels, sample_weight=by_view | {"labels": given})
    else:
        model.set_params(class_weight=given).fit(views, labels, sample_weight=by_view)
    wanted = np.zeros((7, L))
    for label, y in enumerate(labels.T):
        known = ~np.isnan(y) & (WEIGHTS > 0)
        factor = np.zeros(N)
        if isinstance(given, np.ndarray):
            factor[known] = given[known, label]
        elif isinstance(given, dict):
            factor[known] = np.where(y[known] > 0, given.get(label, 1.0), 1.0)
        else:
            repeated = np.repeat(y[known], WEIGHTS[known].astype(int))
            factor[known] = compute_class_weight("balanced", classes=np.arange(2.0), y=repeated)[y[known].astype(int)]
        for view, X in views.items():
            has = ~np.isnan(X[:, 0]) & (factor > 0)
            oracle = Ridge(0.3, solver="cholesky").fit(X[has], y[has], sample_weight=(WEIGHTS * factor)[has])
            wanted[:, label] += oracle.predict(NEW[view]) / 2
    assert_allclose(model.decision_function(NEW), wanted, atol=1e-8)


def test_decoders_learn_from_folds_that_have_the_weights_of_labels() -> None:
    model = MultiViewRidge("linear", ridge=0.3, decoder="probabilities", class_weight="balanced", approximation="exact")
    held = model.fit(VIEWS["a"], Y).held_out_scores_
    fold = folds(VIEWS["a"], Y.astype(np.uint8)) == 0
    oracle = Ridge(0.3)
    for label in range(L):
        weights = compute_sample_weight("balanced", Y[:, label])
        oracle.fit(VIEWS["a"][~fold], Y[~fold, label], sample_weight=weights[~fold])
        said = oracle.predict(VIEWS["a"][fold])
        assert np.corrcoef(held[fold, label], said)[0, 1] > 1 - 1e-9


def test_weights_of_labels_that_do_not_fit_are_refused() -> None:
    ridge = MultiViewRidge("linear")
    for model, y, weights, sentence in (
        (KGHA("linear"), Y, {"labels": ENTRIES}, "is a matrix, which only MultiViewRidge with dense labels supports"),
        (KGHA("linear", class_weight="balanced"), Y, None, "class_weight needs a vector of classes"),
        (ridge, Y, {"labels": ENTRIES[:, :2]}, r"labels has shape \(90, 2\), the labels \(90, 4\)"),
        (ridge, Y, {"labels": -ENTRIES}, "expected finite numbers of at least 0"),
        (
            clone(ridge).set_params(class_weight={"sea": 2.0}),
            Y,
            None,
            "class_weight has an entry for 'sea', but the labels are",
        ),
    ):
        with pytest.raises(UserError, match=sentence):
            model.fit(VIEWS, y, sample_weight=weights)


def test_neighbors_take_no_weights() -> None:
    with pytest.raises(UserError, match="method 'lfda' does not support sample_weight; repeat rows, or use one of pca"):
        TraceEmbedding("lfda").fit(VIEWS["a"], Y.argmax(axis=1), sample_weight=WEIGHTS)
    with pytest.raises(UserError, match="method 'fda' with weighted=True does not support sample_weight and class"):
        MESD("fda", weighted=True).fit(VIEWS["a"], Y, sample_weight=WEIGHTS)


def test_unknown_labels_of_kgha_are_filled_alike_in_both_engines() -> None:
    views, labels = with_gaps()
    model = KGHA("linear", ridge=1.0, balance=0.3, n_components=3, intercept=True, approximation="exact")
    exact = model.fit(views, labels).decision_function(NEW)
    low_rank = model.set_params(approximation=Nystrom(rank=200)).fit(views, labels).decision_function(NEW)
    assert_allclose(low_rank, exact, atol=1e-6)


def test_unknown_labels_of_kgha_are_what_the_regressions_of_their_known_samples_say() -> None:
    _, labels = with_gaps()
    labels[:, 3], X = np.nan, VIEWS["a"]
    mean = np.average(X, axis=0, weights=WEIGHTS)
    full, alpha = labels.copy(), WEIGHTS @ ((X - mean) ** 2).sum(axis=1) / WEIGHTS.sum()
    for y in full.T[:3]:
        has = ~np.isnan(y) & (WEIGHTS > 0)
        said = Ridge(alpha).fit(X[has], y[has], sample_weight=WEIGHTS[has]).predict(X)
        y[np.isnan(y)] = np.clip(said, 0, 1)[np.isnan(y)]
    weights = SampleWeights({"x": WEIGHTS}, WEIGHTS)
    found = filled_labels(MultiViewRidge("linear"), {"x": X}, labels, ~np.isnan(labels), weights)
    assert_allclose(found, np.nan_to_num(full), atol=1e-8)


@pytest.mark.parametrize(
    "model", [KGHA("rbf", n_components=2), MORP("rbf"), MLSI(ridge=0.3)], ids=lambda model: type(model).__name__
)
def test_filled_labels_of_weighted_samples_are_those_of_repeats(model: Any) -> None:
    _, labels = with_gaps()
    repeated, X = np.repeat(np.arange(N), WEIGHTS.astype(int)), VIEWS["a"]
    model = clone(model).set_params(decoder=Scores(label_sets=False))
    weighted = clone(model).fit(X, labels, sample_weight=WEIGHTS).decision_function(NEW["a"])
    wanted = model.fit(X[repeated], labels[repeated]).decision_function(NEW["a"])
    assert_allclose(weighted, wanted, atol=2e-5 * np.abs(wanted).max())


def test_very_many_sparse_labels_are_ridge_regressions_and_their_best_come_by_blocks(tmp_path: Path) -> None:
    places = np.random.default_rng(2).choice(20, (N, 2)) * 700 + np.arange(2)  # 40 of the 14 001 labels occur
    many = csr_array((np.ones(2 * N), (np.repeat(np.arange(N), 2), places.ravel())), shape=(N, 14_001))
    some = np.unique(places)
    oracle = Ridge(0.3).fit(VIEWS["b"], many[:, some].toarray(), sample_weight=WEIGHTS).predict(NEW["b"])
    for features in (VIEWS["b"], csr_array(VIEWS["b"])):
        model = MultiViewRidge("linear", ridge=0.3, intercept=True).fit(features, many, sample_weight=WEIGHTS)
        assert_allclose(model.decision_function(NEW["b"])[:, some], oracle, atol=1e-9)
        labels, scores = model.top_labels(NEW["b"], 3)
        assert_allclose(scores, -np.sort(-oracle, axis=1)[:, :3], atol=1e-9)
        np.testing.assert_array_equal(labels, some[np.argsort(-oracle, axis=1)[:, :3]])
        predicted = model.predict(NEW["b"], top=3)
        assert issparse(predicted)
        np.testing.assert_array_equal(np.sort(labels, axis=1).ravel(), predicted.indices)
        model.save(str(tmp_path / "m.zarr"))
        np.testing.assert_array_equal(dmo.load(str(tmp_path / "m.zarr")).top_labels(NEW["b"], 3)[0], labels)
    with pytest.raises(UserError, match="labels must be 0 or 1, got 2 at row 0"):
        MultiViewRidge("linear").fit(VIEWS, 2 * many)
    with pytest.raises(UserError, match="a decoder needs dense labels, got a sparse matrix of 14001"):
        MultiViewRidge("linear", decoder="f1@2").fit(VIEWS, many)


def test_propensity_is_a_fit_of_labels_that_are_divided_by_their_propensities() -> None:
    labels = Y.copy()
    labels[20:, 2] = 0  # make the label rare
    inverse = inverse_propensities(WEIGHTS @ labels / WEIGHTS.sum(), WEIGHTS.sum())
    oracle = Ridge(0.3).fit(VIEWS["a"], labels * inverse, sample_weight=WEIGHTS).predict(NEW["a"])
    for approximation in ("exact", Nystrom(rank=200)):
        model = MultiViewRidge(
            "linear", ridge=0.3, intercept=True, decoder=Scores(propensity=True), approximation=approximation
        )
        found = model.fit(VIEWS["a"], labels, sample_weight=WEIGHTS).decision_function(NEW["a"])
        assert_allclose(found, oracle, atol=1e-8)


@pytest.mark.parametrize(
    ("model", "grid"),
    [
        (
            MultiViewRidge(RBF(2.0)),
            {"ridge": [0.1, 1.0], "center": [True, False], "decoder__propensity": [False, True]},
        ),
        (
            KGHA(RBF(2.0), solver=Solver(tol=1e-9)),
            {"ridge": [0.3, 1.0], "balance": [0.1], "n_components": [2, 3], "intercept": [True]},
        ),
    ],
    ids=["ridge", "KGHA"],
)
def test_a_sweep_over_unknown_labels_shares_kernels_and_scores_as_single_fits_do(
    model: Any, grid: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = np.where(np.random.default_rng(1).random(Y.shape) < 0.3, np.nan, Y)
    labels[np.isnan(labels).all(axis=1), 0] = 1.0
    model.set_params(approximation="exact")
    built: list[int] = []
    monkeypatch.setattr(exact, "_built", lambda *given, build=exact._built: built.append(1) or build(*given))
    shared = sweep(model, VIEWS, labels, grid, 2, "psp@2", refit=False).table
    filled = isinstance(model, KGHA)  # KGHA imputes labels by a regression with separate kernels
    assert len(built) == 2 * (len(VIEWS) * (1 + filled) + filled)  # the factor 2 is the number of folds
    one_by_one = selection._one_by_one
    monkeypatch.setattr(selection, "_shared", lambda model, _, maps, factor, *how: one_by_one(model, VIEWS, *how[:3]))
    alone = sweep(model, VIEWS, labels, grid, 2, "psp@2", refit=False).table
    assert_allclose([row["mean"] for row in shared], [row["mean"] for row in alone], rtol=1e-9)
    assert len({row["mean"] for row in shared}) > 1


@pytest.mark.parametrize("combine", ["kernels", "predictions"])
@pytest.mark.parametrize("weights", [None, WEIGHTS, {"labels": WEIGHTS}], ids=["", "weights", "weights of labels"])
def test_very_many_labels_of_low_rank_kernels_are_those_of_dense_labels(combine: Any, weights: Any) -> None:
    places = np.random.default_rng(2).choice(30, N) * 200
    many = csr_array((np.ones(N), (np.arange(N), places)), shape=(N, 6000))
    seen = np.unique(places)
    model = MultiViewRidge(RBF(3.0), ridge=0.1, combine=combine, approximation=Nystrom(rank=20), intercept=True)
    views = VIEWS if combine == "kernels" else with_gaps()[0]
    wanted = model.fit(views, many[:, seen].toarray(), sample_weight=weights).decision_function(NEW)
    found = model.fit(views, many, sample_weight=weights).decision_function(NEW)
    assert_allclose(found[:, seen], wanted, atol=1e-5)


def test_low_rank_regressions_stand_in_for_a_view_that_new_samples_lack_as_exact_ones_do() -> None:
    lacking = {"a": NEW["a"] * np.where(np.arange(7) < 3, np.nan, 1.0)[:, None], "b": NEW["b"]}
    models = [MultiViewRidge("linear", ridge=0.5, approximation=how) for how in ("exact", Nystrom(rank=120))]
    exact, low = (model.fit(VIEWS, Y).decision_function(lacking) for model in models)
    assert_allclose(low, exact, atol=1e-4)


MANY = {
    "KGHA": KGHA("linear", ridge=0.7, n_components=3, solver=Solver(tol=1e-10), intercept=True),
    "KGHA low rank": KGHA(
        "linear", ridge=0.7, n_components=3, solver=Solver(tol=1e-10), approximation=Nystrom(rank=200)
    ),
    "MORP": MORP(RBF(2.0), ridge=0.2, tol=1e-10),
    "MLSI": MLSI(ridge=0.3),
}


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["", "weights"])
@pytest.mark.parametrize("name", MANY)
def test_very_many_labels_of_a_space_are_those_of_dense_labels(name: str, weights: Any) -> None:
    places = np.random.default_rng(2).choice(20, (N, 2)) * 700 + np.arange(2)
    many = csr_array((np.ones(2 * N), (np.repeat(np.arange(N), 2), places.ravel())), shape=(N, 14_001))
    seen, X, new = np.unique(places), VIEWS["b"][:, :30], NEW["b"][:, :30]
    model = clone(MANY[name])
    dense = clone(model).fit(X, many[:, seen].toarray(), sample_weight=weights)
    model.fit(X, many, sample_weight=weights)
    scores = model.decision_function(new)
    assert scores.shape == (7, 14_001)
    assert_allclose(scores[:, seen], dense.decision_function(new), atol=1e-6)
    assert_allclose(np.abs(model.transform(new)), np.abs(dense.transform(new)), atol=1e-6)
    wanted = np.zeros((7, 14_001))
    wanted[:, seen] = dense.predict(new, top=3)
    predicted = model.predict(new, top=3)
    np.testing.assert_array_equal(predicted.toarray() if issparse(predicted) else predicted, wanted)


def test_homogeneity_analysis_leaves_missing_categories_out_and_counts_samples_by_weight() -> None:
    table = RNG.integers(0, 4, (N, 3)).astype(float)
    table[:, 1] = np.where(RNG.random(N) < 0.6, table[:, 0], table[:, 1])
    gaps = table.copy()
    gaps[3:25, 0] = np.nan
    model = HomogeneityAnalysis(n_components=3, ridge=1e-9).fit(gaps, sample_weight=WEIGHTS)
    groups = {str(j): (column[:, None] == np.arange(4)).astype(float) for j, column in enumerate(table.T)}
    weights = {str(j): WEIGHTS * ~np.isnan(column) for j, column in enumerate(gaps.T)}
    values, _ = passive_eigenproblem(groups, weights, dict.fromkeys(groups, 1.0), 1e-9 * WEIGHTS.sum(), False)
    assert_allclose(model.eigenvalues_, values[:3], rtol=1e-8)
    repeated = np.repeat(np.arange(N), WEIGHTS.astype(int))
    plain = HomogeneityAnalysis(n_components=3, ridge=1e-9).fit(table[repeated]).eigenvalues_
    assert_allclose(model.fit(table, sample_weight=WEIGHTS).eigenvalues_, plain, rtol=1e-8)
    words = np.array(["a", "b", None, "a", "b", "c"], object)[:, None]
    names = HomogeneityAnalysis(n_components=1).fit(np.hstack([words, words[::-1]]))
    assert names.transform(np.array([["a", None]], object)).shape == (1, 1)
    with pytest.raises(UserError, match="sample 1 has no category in any column"):
        names.transform(np.array([["a", "b"], [None, None]], object))


@pytest.mark.parametrize("model", [MultiViewRidge(RBF(2.0)), KGHA(RBF(2.0), n_components=2), MultiSetCCA(RBF(2.0))])
def test_samples_that_all_count_once_are_fitted_without_weights(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def weighted(*args: Any) -> None:
        raise AssertionError("a weighted kernel of samples that all count once")

    monkeypatch.setattr(Operator, "weighted", weighted)
    model.set_params(approximation="exact").fit(VIEWS, Y, sample_weight=np.ones(N))
    with pytest.raises(AssertionError, match="all count once"):
        model.fit(VIEWS, Y, sample_weight=np.full(N, 2.0))


@pytest.mark.filterwarnings("ignore:a kernel solve with ridge")
def test_kernels_in_tiles_take_weights_and_views_that_lack_samples() -> None:
    views, _ = with_gaps()
    model = MultiViewRidge(RBF(2.0), ridge=0.5, approximation="exact").fit(views, Y, sample_weight=WEIGHTS)
    tiles = MultiViewRidge(RBF(2.0), ridge=0.5, approximation=Exact(storage="recomputed", block=32))
    tiles.fit(views, Y, sample_weight=WEIGHTS)
    assert_allclose(tiles.decision_function(NEW), model.decision_function(NEW), atol=1e-6)
    np.testing.assert_array_equal(tiles.predict(NEW), model.predict(NEW))


@pytest.mark.filterwarnings("ignore:a kernel solve with ridge")
def test_held_out_scores_of_kernels_that_are_solved_by_iteration_are_those_of_factorized_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[tuple[np.ndarray, np.ndarray, list[int]]] = []
    monkeypatch.setattr(
        MultiViewRidge, "_learn_decoder", lambda self, d, held, Y, _, keys: found.append((held[0], Y, keys.tolist()))
    )
    monkeypatch.setattr("dmo.fit.fitted_views.SOLVED_ROWS", 50)  # of more than 50 rows, only 30 are scored
    monkeypatch.setattr(out_of_fold, "SOLVED_ROWS", 50)
    monkeypatch.setattr(out_of_fold, "SOLVED_SOME", 30)
    views, _ = with_gaps()
    model = MultiViewRidge(RBF(2.0), ridge=0.5)
    for given, weights in ((views, WEIGHTS), (VIEWS, None)):
        for storage in ("memory", "recomputed"):
            model.set_params(approximation=Exact(storage=storage, precision="float64", block=32))
            model.fit(given, Y, sample_weight=weights)
        (held, labels, keys), (some, some_labels, some_keys) = found[-2:]
        assert 20 < len(some) <= 30 < len(held)
        rows = [keys.index(key) for key in some_keys]
        assert_allclose(some, held[rows], atol=1e-6)
        np.testing.assert_array_equal(some_labels, labels[rows])


def test_fits_on_held_out_samples_keep_the_precision_of_the_kernels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engines: list[Any] = []
    build = fitted_views.build

    def built(engine: Exact, *rest: Any) -> Any:
        if LABELS not in rest[1]:  # labels have no kernel to store
            engines.append((engine.precision, rest[3]))
        return build(engine, *rest)

    monkeypatch.setattr(fitted_views, "build", built)
    model = KGHA(RBF(2.0), n_components=2, ridge=1.0)
    model.set_params(approximation=Exact("stored", "float32", 64, str(tmp_path))).fit(VIEWS["b"], Y)
    assert engines[0] == ("float32", "stored")
    assert set(engines[1:]) == {("float32", "memory")}


def test_tuning_without_options_makes_no_joint_kernel_of_views_that_lack_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuning, "_first_round", lambda problem: [{"ridge": [0.3]}])
    views, labels = with_gaps()
    found = tuning.search(MultiViewRidge("linear"), views, labels, metric="lrap", cv=2)
    assert found.best_estimator_.combine == "predictions"
    assert {row.get("combine", "predictions") for row in found.table} == {"predictions"}


def test_views_that_samples_lack_are_predicted_from_those_that_they_have() -> None:
    third = VIEWS["a"] @ RNG.normal(size=(5, 3)) + 0.1 * RNG.normal(size=(N, 3))
    b = VIEWS["b"][:, :4]
    views = {"a": VIEWS["a"].copy(), "b": csr_array(b), "c": third.copy()}
    views["a"][:20] = np.nan
    views["c"][15:30] = np.nan
    full = dmo.impute_views(views, estimator=MultiViewRidge("linear", ridge=0.3, prepare="none"))
    from_b = Ridge(0.3).fit(b[20:], VIEWS["a"][20:])
    from_c = Ridge(0.3).fit(third[30:], VIEWS["a"][30:])
    assert_allclose(full["a"][:15], (from_b.predict(b[:15]) + from_c.predict(third[:15])) / 2, atol=1e-8)
    assert_allclose(full["a"][15:20], from_b.predict(b[15:20]), atol=1e-8)  # these rows also miss view "c"
    np.testing.assert_array_equal(full["a"][20:], VIEWS["a"][20:])
    np.testing.assert_array_equal(full["b"], b)
    chosen = dmo.impute_views({"a": views["a"], "c": third})["a"][:20]
    error, spread = chosen - VIEWS["a"][:20], VIEWS["a"][:20] - np.nanmean(views["a"], axis=0)
    assert np.square(error).sum() < 0.6 * np.square(spread).sum()
    new = dmo.impute_views(
        views, {"b": csr_array(b[:3]), "a": None}, MultiViewRidge("linear", ridge=0.3, prepare="none")
    )
    assert_allclose(new["a"], from_b.predict(b[:3]), atol=1e-8)
    assert new["c"].shape == (3, 3)
    with pytest.raises(UserError, match="sample 15 has no view to predict others from"):
        dmo.impute_views({"a": views["a"], "c": views["c"]})
    with pytest.raises(UserError, match="X is one view, but views are predicted from other views"):
        dmo.impute_views(VIEWS["a"])


@pytest.mark.parametrize(
    "model", [MultiViewRidge("linear", decoder=Scores(label_sets=False)), MORP(RBF(2.0), ridge=0.2)]
)
def test_scores_count_known_labels_and_weights_as_repeated_samples(model: Any) -> None:
    X = VIEWS["a"]
    repeated = np.repeat(np.arange(N), WEIGHTS.astype(int))
    given = np.where(np.random.default_rng(5).random(Y.shape) < 0.2, np.nan, Y)
    model.fit(X, Y)
    for truth in (Y, given):
        assert model.score(X, truth, sample_weight=WEIGHTS) == pytest.approx(model.score(X[repeated], truth[repeated]))
    whole = label_ranking_average_precision_score(Y, model.decision_function(X), sample_weight=WEIGHTS)
    areas = roc_auc_score(Y, model.decision_function(X), average="macro", sample_weight=WEIGHTS)
    assert model.score(X, Y, sample_weight=WEIGHTS) == pytest.approx((whole + areas) / 2)
    model.fit(X, Y.argmax(axis=1))
    right = model.predict(X) == Y.argmax(axis=1)
    assert model.score(X, Y.argmax(axis=1), sample_weight=WEIGHTS) == pytest.approx(np.average(right, weights=WEIGHTS))


def test_masked_ridge_of_several_views_is_that_of_each_label_on_its_known_rows():
    rng = np.random.default_rng(0)
    views, Y = (
        {"a": rng.normal(size=(40, 3)), "b": rng.normal(size=(40, 2)), "c": rng.normal(size=(40, 4))},
        rng.random((40, 2)),
    )
    known, F = rng.random((40, 2)) < 0.7, np.hstack(list(views.values()))
    stacked = np.hstack([F, np.ones((40, 1))])
    moments = Moments.of(views | {LABELS: Y * known})
    found, offset = masked_ridge(
        moments,
        dict.fromkeys(views, 1.0),
        0.5,
        lambda B, which: stacked.T @ (~known[:, which] * (stacked @ B)),
        known.any(axis=0),
    )
    assert [part.shape for part in found.values()] == [(3, 2), (2, 2), (4, 2)]
    for label in range(2):
        wanted = Ridge(alpha=0.5).fit(F[known[:, label]], Y[known[:, label], label])
        np.testing.assert_allclose(np.concatenate([part[:, label] for part in found.values()]), wanted.coef_, atol=1e-8)
        np.testing.assert_allclose(offset[label], wanted.intercept_, atol=1e-8)


def test_rows_that_stand_last_in_a_factor_are_left_out_as_others_are() -> None:
    rng = np.random.default_rng(0)
    X, B, weights = {"a": rng.standard_normal((40, 3))}, rng.standard_normal((40, 2)), np.ones(40)
    weights[rng.permutation(40)[:15]] = 0.0
    weights[:5] = 2.0
    given = Exact("memory"), {"a": MultiKernel.of("a", RBF(2.0))}, {"a": 0.1}, Data.of(X, weights=weights), True, 0
    some = np.array([0, 3, 17, 30, 39])
    view, plain = Groups(*given, last=some)["a"], Groups(*given)["a"]
    found = view.left_out(B, view.coefficients(B), some)
    np.testing.assert_allclose(found, plain.left_out(B, plain.coefficients(B))[some], rtol=1e-9, atol=1e-12)
    assert (found[weights[some] == 0] == 0).all()
    assert found[weights[some] > 0].all()


def kernel_matrix(kernel: Any, X: np.ndarray) -> np.ndarray:
    return np.asarray(gram_matrix(kernel.fit(X, 0), X, np.float64)[0])


def imputed(labels: np.ndarray, kernel: Any) -> np.ndarray:
    """Impute each label by a kernel ridge regression whose ridge is the mean diagonal of the kernel."""
    gram = kernel_matrix(kernel, VIEWS["a"])
    full = labels.copy()
    ridge = np.trace(gram - gram.mean(axis=0)) / N
    for label, y in enumerate(labels.T):
        known = ~np.isnan(y)
        H = np.eye(known.sum()) - 1 / known.sum()
        alpha = H @ np.linalg.solve(
            H @ gram[np.ix_(known, known)] @ H + ridge * np.eye(known.sum()), y[known] - y[known].mean()
        )
        values = (gram[:, known] - gram[np.ix_(known, known)].mean(axis=0)) @ alpha + y[known].mean()
        full[:, label] = np.where(known, y, np.clip(values, 0, 1))
    return full


@pytest.mark.parametrize("kind", [LLTSVR, CoupledSVR])
def test_unknown_labels_of_svr_are_imputed(kind: Any) -> None:
    labels = Y.copy()
    labels[np.random.default_rng(1).random(Y.shape) < 0.3] = np.nan
    model = kind(RBF(3.0), C=0.1, tol=1e-7, target_scale="none", prepare="none", decoder=Scores(label_sets=False))
    found = clone(model).fit(VIEWS["a"], labels)
    wanted = clone(model).fit(VIEWS["a"], 2 * imputed(labels, RBF(3.0)) - 1)
    assert_allclose(found.decision_function(NEW["a"]), wanted.predict(NEW["a"]), atol=2e-4)
    signs = clone(model).fit(VIEWS["a"], 2 * labels - 1)
    assert_allclose(signs.decision_function(NEW["a"]), found.decision_function(NEW["a"]), atol=1e-12)
    T = VIEWS["b"][:, :3].copy()
    T[np.isnan(labels[:, :3])] = np.nan
    assert np.isfinite(clone(model).set_params(target_scale="standard").fit(VIEWS["a"], T).predict(NEW["a"])).all()
    with pytest.raises(UserError, match="contains NaN or infinity at row 0"):
        clone(model).fit(VIEWS["a"], np.where(np.arange(N) < 1, np.nan, T[:, 0]))
    decided = clone(model).set_params(decoder=None, tol=1e-2).fit(VIEWS["a"], labels)
    assert decided.predict(NEW["a"]).shape == (7, L)


def test_unknown_labels_of_fasttag_are_imputed() -> None:
    labels = Y.copy()
    labels[np.random.default_rng(1).random(Y.shape) < 0.3] = np.nan
    base = MultiViewRidge(RBF(3.0), ridge=0.3, prepare="none", approximation="exact")
    found = FastTag(base, strength=0.7).fit(VIEWS["a"], labels)
    full = imputed(labels, RBF(3.0))
    whole = clone(base).set_params(targets="real").fit(VIEWS["a"], full)
    centered = full - full.mean(axis=0)
    residual = centered.T @ (full - whole.predict(VIEWS["a"]))
    S = full.T @ full
    B = np.linalg.solve(residual + 0.7 * (S / 4 + np.diag(np.diag(S)) / 4), 0.7 * S / 2)
    wanted = (whole.predict(NEW["a"]) - full.mean(axis=0)) @ B
    assert_allclose(found._raw_scores({"x": NEW["a"]}), wanted, atol=1e-5)
    with pytest.raises(UserError, match="unknown labels need a base with center=True and one kernel per view"):
        FastTag(clone(base).set_params(center=False)).fit(VIEWS["a"], labels)


def test_weights_of_fasttag_are_repeated_samples(tmp_path: Path) -> None:
    again = np.repeat(np.arange(N), WEIGHTS.astype(int))
    model = FastTag(MultiViewRidge(RBF(3.0), ridge=0.3, prepare="none"), rounds=2)
    found = clone(model).fit(VIEWS, Y, sample_weight=WEIGHTS)
    wanted = clone(model).fit({view: X[again] for view, X in VIEWS.items()}, Y[again])
    assert_allclose(found.enrichment_, wanted.enrichment_, atol=1e-6)
    assert_allclose(found.decision_function(NEW), wanted.decision_function(NEW), atol=1e-6)
    found.save(str(tmp_path / "m.zarr"))
    assert_allclose(dmo.load(str(tmp_path / "m.zarr")).decision_function(NEW), found.decision_function(NEW), atol=1e-12)
