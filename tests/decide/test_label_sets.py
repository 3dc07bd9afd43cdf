"""Test label sets and probabilities that are learned from held-out scores of the training samples."""

import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from cases import folds
from scipy.optimize import minimize
from scipy.special import expit, logit
from scipy.stats import norm
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris
from sklearn.exceptions import DataConversionWarning
from sklearn.metrics import f1_score, log_loss, r2_score
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import dmo
from dmo import KGHA, Exact, MultiViewRidge, Nystrom
from dmo.decide import out_of_fold
from dmo.decide.probabilities import PooledProbabilities, folds_of_keys, learn_thresholds, mean_thresholds
from dmo.decoders import PlugIn, Scores
from dmo.errors import UserError
from dmo.inputs import Data
from dmo.kernels import RBF
from dmo.labels.label_kernels import SetKernel
from dmo.labels.stratification import stratified_folds
from dmo.linalg.tiles import Tiles
from dmo.methods import homogeneity
from dmo.metrics import set_scores, with_ancestors


@pytest.fixture(scope="module")
def problem():
    """Return 300 training and 300 test samples with 8 labels. Label 7 never occurs in the training samples."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 10))
    scores = X @ rng.normal(size=(10, 8)) + 1.5 * rng.normal(size=(600, 8))
    Y = (scores > scores.std(axis=0) * np.linspace(0, 1.9, 8)).astype(np.uint8)
    Y[:300, 7] = 0
    return X[:300], Y[:300], X[300:], Y[300:]


MODELS = {
    "ridge": MultiViewRidge("rbf", ridge=1.0),
    "linear": MultiViewRidge("linear", ridge=1.0),
    "low rank": MultiViewRidge("rbf", ridge=1.0, approximation=Nystrom(rank=100)),
    "KGHA": KGHA("rbf", ridge=1.0, n_components=1.0),
}


@pytest.mark.parametrize("name", MODELS)
def test_predicted_sets_are_better_than_the_same_number_of_labels_for_all(name, problem, tmp_path):
    X, Y, new, truth = problem
    model = MODELS[name].fit(X, Y)
    sets = model.predict(new)
    cardinality = max(1, round(Y.sum(axis=1).mean()))
    seen = slice(0, 7)
    best = max(
        set_scores(truth[:, seen], (model.decision_function(new)[:, seen] > t).astype(int)).f1_micro
        for t in np.linspace(-0.5, 0.5, 41)
    )
    ours = f1_score(truth[:, seen], sets[:, seen], average="micro")
    fixed = f1_score(truth[:, seen], model.predict(new, top=cardinality)[:, seen], average="micro")
    assert ours > max(fixed, best - 0.03)
    assert not sets[:, 7].any()
    assert not model.predict(new, top=8)[:, 7].any()
    p = model.predict_proba(new)
    assert not p[:, 7].any()
    constant = np.tile(Y.mean(axis=0), (300, 1))
    loss = lambda q: np.mean([log_loss(truth[:, l], q[:, l], labels=[0, 1]) for l in range(7)])  # noqa: E731
    assert loss(p) < loss(constant) - 0.02
    model.save(str(tmp_path / "m.zarr"))
    loaded = dmo.load(str(tmp_path / "m.zarr"))
    np.testing.assert_array_equal(loaded.predict(new), sets)
    np.testing.assert_array_equal(loaded.predict_proba(new), p)


@pytest.mark.parametrize(
    "model", [MultiViewRidge("linear"), KGHA("linear", n_components=3)], ids=lambda m: type(m).__name__
)
def test_a_fit_on_very_many_sparse_labels_says_why_it_learned_no_probabilities(model, tmp_path):
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(20, 4)), scipy.sparse.random_array((20, 4097), density=0.01, rng=rng, dtype=np.float64) > 0
    model.fit(X, Y).save(str(tmp_path / "m.zarr"))
    said = r"probabilities are not learned from a sparse matrix of 4097 labels; use top_labels .* y\.toarray"
    for fitted in (model, dmo.load(str(tmp_path / "m.zarr"))):
        with pytest.raises(UserError, match=said):
            fitted.predict_proba(X)
        assert fitted.top_labels(X, 3)[0].shape == (20, 3)
    assert model.fit(X, Y.toarray()).predict_proba(X).shape == (20, 4097)


def test_classes_keep_their_order_in_probabilities_that_sum_to_1():
    X, y = load_iris(return_X_y=True)
    model = MultiViewRidge("rbf", ridge=0.1).fit(X[::2], y[::2])
    p = model.predict_proba(X[1::2])
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X[1::2])), p)
    np.testing.assert_array_equal(model.classes_[p.argmax(axis=1)], model.predict(X[1::2]))
    oracle = CalibratedClassifierCV(make_pipeline(StandardScaler(), SVC()), cv=4).fit(X[::2], y[::2])
    assert log_loss(y[1::2], p) < log_loss(y[1::2], oracle.predict_proba(X[1::2]))


@pytest.mark.parametrize(
    "model", [MultiViewRidge("rbf", ridge=1.0), MultiViewRidge("rbf", approximation=Nystrom(rank=40))]
)
def test_prediction_sets_of_classes_cover_what_they_promise_and_classes_stay_one(model, tmp_path):
    rng, covered = np.random.default_rng(0), []
    means = 1.2 * rng.normal(size=(5, 3))
    for _ in range(20):
        y = rng.integers(0, 5, 400)
        X = means[y] + rng.normal(size=(400, 3))
        fitted = clone(model).set_params(decoder="recall>=0.9").fit(X[:100], y[:100])
        sets = fitted.predict(X[100:], as_names=True)
        covered.append(np.mean([one in found for one, found in zip(y[100:], sets, strict=True)]))
    assert 0.89 < np.mean(covered) < 0.95
    assert len({len(found) for found in sets}) > 1
    assert fitted.predict(X[100:]).shape == (300,)
    np.testing.assert_array_equal(fitted.decide(X[100:]).sets.sum(axis=1), [len(found) for found in sets])
    fitted.save(tmp_path / "m.zarr")
    assert dmo.load(tmp_path / "m.zarr").predict(X[100:], as_names=True) == sets


@pytest.mark.parametrize(
    "decoder", ["calibrated", "probabilities", "f1@2", "n+@2", "f1-macro", "jaccard", "precision>=0.5"]
)
def test_a_model_with_a_decoder_comes_back_from_its_store(decoder, problem, tmp_path):
    X, Y, new, _ = problem
    model = MultiViewRidge("rbf", decoder=decoder).fit(X, Y)
    model.save(tmp_path / "m.zarr")
    again = dmo.load(tmp_path / "m.zarr")
    np.testing.assert_array_equal(again.predict(new), model.predict(new))
    np.testing.assert_array_equal(again.decision_function(new), model.decision_function(new))


def test_sets_do_not_change_scores_nor_rankings(problem):
    X, Y, new, _ = problem
    alone = MultiViewRidge("rbf", ridge=1.0)
    alone._only_scores = True
    alone.fit(X, Y)
    assert alone.decoding_ is None
    scores = MultiViewRidge("rbf", ridge=1.0).fit(X, Y).decision_function(new)
    np.testing.assert_array_equal(scores, alone.decision_function(new))


@pytest.mark.parametrize("engine", ["exact", Nystrom(rank=300)])
def test_held_out_scores_of_some_rows_are_those_of_refits_without_them(problem, monkeypatch, engine):
    X, Y, *_ = problem
    monkeypatch.setattr(out_of_fold, "SOME_ROWS", 12)
    monkeypatch.setattr("dmo.methods.ridge.rows_in_runs", lambda n: np.arange(5, 17))
    found = {}
    monkeypatch.setattr(
        MultiViewRidge, "_learn_decoder", lambda self, d, held, Y, *_: found.update(scores=held[0], Y=Y)
    )
    model = MultiViewRidge(dmo.kernels.RBF(bandwidth=3.0), ridge=1.0, approximation=engine).fit(X, Y)
    keys = out_of_fold.row_keys(model, Data.of({"x": X}, Y), np.arange(300))
    rows = np.sort(np.argsort(keys)[:12]) if model.is_exact else np.arange(5, 17)
    np.testing.assert_array_equal(found["Y"], Y[rows])
    exact = MultiViewRidge(dmo.kernels.RBF(bandwidth=3.0), ridge=1.0, intercept=True)
    exact._only_scores = True
    for i, scores in zip(rows[:3], found["scores"]):
        others = np.arange(300) != i
        alone = exact.fit(X[others], Y[others]).decision_function(X[i : i + 1])[0]
        np.testing.assert_allclose((scores + Y.mean(axis=0))[:7], alone[:7], atol=1e-4)


@pytest.mark.parametrize("engine", ["exact", Exact("resident", "float64", block=40), Nystrom(rank=300)])
def test_leave_one_out_scores_omit_all_copies_of_a_sample(problem, engine):
    """Leave-one-out scores exclude copies of a sample, but not samples with equal features and different labels."""
    X, Y, *_ = problem
    X, Y = np.vstack([X[:60], X[:1]]), np.vstack([Y[:60, :5], 1 - Y[:1, :5]])
    counts = np.random.default_rng(0).integers(1, 4, 61)
    again = np.repeat(np.arange(61), counts)
    model = MultiViewRidge(dmo.kernels.RBF(bandwidth=3.0), ridge=0.1, approximation=engine, decoder="calibrated")
    repeated = model.fit(X[again], Y[again]).held_out_scores_
    weighted = clone(model).fit(X, Y, sample_weight=counts.astype(float)).held_out_scores_
    single = MultiViewRidge(dmo.kernels.RBF(bandwidth=3.0), ridge=0.1, decoder=Scores(label_sets=False))
    for i in (0, 7, 60):
        others = np.arange(61) != i
        alone = single.fit(X[others], Y[others], sample_weight=counts[others].astype(float))
        expected = (
            alone.decision_function(X[i : i + 1])[0] + alone.rule_.frequency - np.average(Y, axis=0, weights=counts)
        )
        np.testing.assert_allclose(weighted[i], expected, atol=2e-4)
        np.testing.assert_allclose(repeated[again == i], np.tile(expected, (counts[i], 1)), atol=2e-4)


def test_held_out_scores_of_tiles_are_solved_for_in_runs_that_a_worker_can_hold(problem, monkeypatch):
    X, Y, *_ = problem
    widths, held, apply = [], [], Tiles._apply
    monkeypatch.setattr(MultiViewRidge, "_learn_decoder", lambda self, d, found, Y, *_: held.append(found[0]))
    # The default solver uses a Cholesky factor.
    model = MultiViewRidge(dmo.kernels.RBF(bandwidth=3.0), ridge=1.0).fit(X, Y)
    monkeypatch.setattr(Tiles, "_apply", lambda A, B, dtype: (widths.append(B.shape[1]), apply(A, B, dtype))[1])
    # Simulate a factor that does not fit into memory.
    monkeypatch.setattr("dmo.linalg.solve._direct_method", lambda *_: None)
    model.set_params(approximation=Exact(storage="recomputed", block=100)).fit(X, Y)
    assert held[1].shape == (300, 8)
    assert 8 <= max(widths) <= 128
    np.testing.assert_allclose(held[1], held[0], atol=1e-6)


def mean_threshold(values, truth, counts=None):
    """Compute the mean threshold of unsorted values."""
    order = np.argsort(-values)
    counts = np.ones(len(values)) if counts is None else counts
    return mean_thresholds(values[order], truth[order], counts[order], np.zeros(1, np.intp))[0]


def grid_threshold(values, truth, counts=None):
    """Compute the mean threshold by numerical integration from 0 to the largest value with positive weight."""
    counts = np.ones(len(values)) if counts is None else counts
    t = (np.arange(200000) + 0.5) / 200000 * values[counts > 0].max()
    given = (values > t[:, None]) @ np.column_stack([counts * truth, counts])
    f1 = 2 * given[:, 0] / (given[:, 1] + counts @ truth)
    weight = np.exp((f1 - f1.max()) * np.sqrt(counts @ truth) / 0.05)
    return weight @ t / weight.sum()


def test_threshold_is_the_mean_weighted_by_f1():
    rng = np.random.default_rng(1)
    for decimals, counts in ((9, None), (1, None), (9, rng.integers(0, 3, 40)), (1, rng.integers(0, 3, 40))):
        p = rng.random(40).round(decimals)
        y = rng.random(40) < p**2
        assert mean_threshold(p, y, counts) == pytest.approx(grid_threshold(p, y, counts), abs=2e-5)
        if counts is None:
            found = f1_score(y, p > mean_threshold(p, y))
            assert found >= max(f1_score(y, p > t) for t in np.linspace(0, 0.95, 20)) - 0.03
    ranked = np.array([0.8, 0.6, 0.4])
    assert 0.45 < mean_threshold(ranked, np.array([True, True, False])) < 0.55
    assert 0.19 < mean_threshold(ranked, np.array([True, True, True])) < 0.25
    assert mean_threshold(ranked, np.zeros(3, bool)) == 1.0
    # The largest value has weight 0, so removing the value does not change the mean threshold.
    light, truth = np.array([0.0, 0.01, 0.01]), np.array([True, True, False])
    assert mean_threshold(ranked, truth, light) == pytest.approx(
        mean_threshold(ranked[1:], truth[1:], light[1:]), rel=1e-12
    )


def test_thresholds_of_runs_are_those_of_each_run():
    rng = np.random.default_rng(2)
    runs = [np.sort(rng.random(size).round(2))[::-1] for size in (7, 1, 30)]
    truth = [rng.random(len(run)) < run for run in runs]
    found = mean_thresholds(*map(np.concatenate, (runs, truth)), np.ones(38), np.array([0, 7, 8]))
    np.testing.assert_allclose(found, [mean_threshold(*one) for one in zip(runs, truth, strict=True)], rtol=1e-12)


@pytest.mark.parametrize(("p", "wanted"), [([1.0, 1 - 1e-9, 0.999999], 0.5), ([1e-6, 1e-9, 0.0], 1e-4)])
def test_thresholds_keep_away_from_0_and_1(p, wanted):
    """Differences of probabilities near 0 or 1 consist of floating-point errors."""
    assert learn_thresholds(np.array([p]).T, np.array([[1], [1], [0]])) == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize("power", [1.0, 3.0], ids=["true probabilities", "labels that need thresholds of their own"])
def test_one_threshold_or_one_per_label_is_what_gives_more_on_fresh_samples(power):
    """True probabilities need a common threshold. Label-dependent errors require one threshold per label."""
    rng = np.random.default_rng(0)
    chance = expit(rng.normal(size=(600, 20)) * 1.5 - 3)
    Y, fresh = (rng.random(chance.shape) < chance for _ in range(2))
    p = chance.copy()
    p[:, ::2] **= power
    found = learn_thresholds(p, Y)
    micro = lambda t: f1_score(fresh, p > t, average="micro", zero_division=0)  # noqa: E731
    common = mean_threshold(p.ravel(), Y.ravel())
    own = np.array([mean_threshold(p[:, l], Y[:, l]) for l in range(20)])
    count = Y.sum(axis=0)
    shrunk = (logit(own) - logit(common)) * count / (count + 20)
    share = (logit(found) - logit(common)) / shrunk
    np.testing.assert_allclose(share, share[0], rtol=1e-6)
    assert 0 < share[0] < 0.7 if power == 1 else 0.99 < share[0] <= 1
    assert micro(found) >= max(micro(common), micro(own)) - 0.005


def test_thresholds_of_labels_are_drawn_to_the_common_one_as_by_twenty_more_samples():
    """Shrinkage multiplies the distance between a label's threshold and the common threshold by n / (n + 20)."""
    rng = np.random.default_rng(1)
    Y = rng.random((2000, 3)) < [0.01, 0.05, 0.5]
    p = expit(3 * Y + rng.normal(size=Y.shape) + [-4.0, 0.0, -1.0])
    common = logit(mean_threshold(p.ravel(), Y.ravel()))
    own = logit([mean_threshold(p[:, l], Y[:, l]) for l in range(3)])
    count = Y.sum(axis=0)
    wanted = common + (own - common) * count / (count + 20)
    np.testing.assert_allclose(logit(learn_thresholds(p, Y)), wanted, atol=1e-6)


def test_kinds_of_thresholds_are_averaged_by_the_probability_that_each_is_better():
    """Compute the average from F1 on the other half of the samples and the standard error of the difference in F1."""
    rng = np.random.default_rng(4)
    p = rng.random((200, 3)) * [0.5, 0.8, 1.0]
    Y, counts, keys = rng.random(p.shape) < p**2, rng.integers(0, 3, (200, 3)), rng.integers(0, 2**63, 200)
    half, hits, total, parts = folds_of_keys(keys, 2) == 0, np.zeros(2), np.zeros(2), []

    def kinds(rows):
        common = logit(mean_threshold(p[rows].ravel(), Y[rows].ravel(), counts[rows].ravel()))
        own = logit([mean_threshold(p[rows, l], Y[rows, l], counts[rows, l]) for l in range(3)])
        n = (counts * Y)[rows].sum(axis=0)
        return np.full(3, common), common + (own - common) * n / (n + 20)

    for rows in (half, ~half):
        y, c = Y[~rows], counts[~rows]
        given = [expit((logit(p[~rows]) - t) / 0.05) for t in kinds(rows)]
        hits += [(c * g * y).sum() for g in given]
        total += [(c * g).sum() + (c * y).sum() for g in given]
        parts.append((y, c, given[1] - given[0]))
    f1 = 2 * hits / total
    error = np.sqrt(1 + sum((c * ((2 * y - f1.mean()) * d) ** 2).sum() for y, c, d in parts)) / total.mean()
    better, (common, own) = norm.cdf((f1[1] - f1[0]) / error), kinds(np.ones(200, bool))
    assert 0.02 < better < 0.98
    np.testing.assert_allclose(logit(learn_thresholds(p, Y, counts, keys)), common + better * (own - common), atol=1e-6)


def test_slopes_and_offsets_of_labels_are_the_largest_posterior(monkeypatch):
    """Four Newton steps suffice only with the correct Hessian. The slope of label 3 is at its lower bound."""
    rng = np.random.default_rng(0)
    Y = (rng.random((200, 4)) < [0.02, 0.2, 0.5, 0.2]).astype(float)
    scores = [Y * [0.5, 2.0, 1.0, -4.0] + rng.normal(size=Y.shape)]
    counts = rng.integers(0, 3, Y.shape).astype(float)
    for often in (None, counts):
        pooled = PooledProbabilities.fit(scores, Y, often)
        found = pooled.refined(scores, Y, often)
        x = logit(replace(pooled, ordered=True)(scores))
        rows, entries = (
            np.ones(200) if often is None else often.max(axis=1),
            np.ones(Y.shape) if often is None else often,
        )
        for l in range(4):
            center = rows @ x[:, l] / rows.sum()

            def loss(w, z=x[:, l], y=Y[:, l], c=entries[:, l], center=center):
                z = z + w[0] * (z - center) + w[1]
                return c @ (np.logaddexp(0, z) - y * z) + 2.5 * (w @ w)

            best = minimize(loss, np.zeros(2), tol=1e-12, bounds=[(-0.95, None), (None, None)], method="L-BFGS-B").x
            np.testing.assert_allclose(found.own[:, l], [best[0], best[1] - best[0] * center], atol=2e-3)
        assert found.own[0, 3] == pytest.approx(-0.95)
    pooled = PooledProbabilities.fit(scores, Y)
    found = pooled.refined(scores, Y)
    monkeypatch.setattr("dmo.decide.probabilities._STEPS", 4)
    np.testing.assert_allclose(pooled.refined(scores, Y).own, found.own, atol=3e-7)


def test_pooled_regression_converges_in_few_newton_steps(monkeypatch):
    rng = np.random.default_rng(0)
    Y = (rng.random((300, 5)) < np.geomspace(0.02, 0.4, 5)).astype(float)
    scores = [Y + 0.7 * rng.normal(size=Y.shape), 3 * Y + 4 * rng.normal(size=Y.shape)]
    wanted = PooledProbabilities.fit(scores, Y)(scores)
    monkeypatch.setattr("dmo.decide.probabilities._STEPS", 9)
    np.testing.assert_allclose(PooledProbabilities.fit(scores, Y)(scores), wanted, atol=1e-6)


@pytest.mark.parametrize("ordered", [False, True])
def test_logits_are_the_formula_where_the_parabola_rises(ordered):
    rng = np.random.default_rng(0)
    b, mean, deviation = rng.normal(size=9) * 0.1, rng.normal(size=(2, 3)), 1 + rng.random((2, 3))
    b[[0, 3]], phi, scores = [1.0, 0.8], np.array([-1.3, 0.2, 1.7]), rng.uniform(-1, 1, size=(2, 20, 3))
    model = PooledProbabilities(mean, deviation, phi, np.ones(3, bool), b, np.zeros((2, 3)), ordered)
    wanted = b[6] * phi + b[7] * phi**2 + b[8]
    for k in (0, 1):
        z = scores[k]
        wanted = wanted + b[3 * k] * z + b[3 * k + 1] * z**2 + b[3 * k + 2] * z * phi
    np.testing.assert_allclose(logit(model(list(mean[:, None] + deviation[:, None] * scores))), wanted, atol=1e-9)


def test_batches_learn_label_sets_of_what_they_bring(problem):
    X, Y, new, truth = problem
    model = MultiViewRidge("rbf", ridge=1.0, approximation=Nystrom(rank=100))
    model.partial_fit(X[:200], Y[:200]).partial_fit(X[200:], Y[200:])
    assert f1_score(truth[:, :7], model.predict(new)[:, :7], average="micro") > 0.6
    few = MultiViewRidge("rbf", approximation=Nystrom(rank=20)).partial_fit(X[:60], Y[:60])
    assert (few.predict(new).sum(axis=1) == max(1, round(Y[:60].sum(axis=1).mean()))).all()


def test_label_sets_of_low_rank_kernels_take_the_maps_of_the_fit(monkeypatch):
    """Feature maps do not depend on labels. Choosing landmarks again would double the time of the additional fit."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 4))
    Y = (X @ rng.normal(size=(4, 3)) > 0.5).astype(np.uint8)
    found, fit_maps = [], homogeneity.fit_maps

    def counted(*given):
        found.append(fit_maps(*given))
        return found[-1]

    monkeypatch.setattr(homogeneity, "fit_maps", counted)
    model = KGHA(approximation=Nystrom(rank=15), n_components=2).fit(X, Y)
    assert len(found) == 1
    assert model.decoding_ is not None
    assert model.predict(X).sum() > 0


def test_a_fit_that_learns_no_probabilities_says_so(problem):
    X, Y, new, _ = problem
    with pytest.raises(ValueError, match="probabilities are not learned with label_sets=False"):
        MultiViewRidge("linear", decoder=Scores(label_sets=False)).fit(X, Y).predict_proba(new)


def test_only_too_few_samples_keep_a_fit_from_learning_label_sets_and_other_errors_are_told(problem, monkeypatch):
    X, Y, *_ = problem
    few = KGHA("rbf", n_components=8).fit(X[:9], np.eye(9))  # folds of 8 samples have at most 7 components
    assert few.decoding_ is None

    def unreadable(*_):
        raise UserError("a chunk is damaged; restore it")

    monkeypatch.setattr(out_of_fold, "_scored", unreadable)
    with pytest.raises(UserError, match="a chunk is damaged"):
        MultiViewRidge("rbf", decoder=None, approximation=Nystrom(rank=5), prepare="standard").fit(X, Y).predict(X[:2])
    monkeypatch.setattr(out_of_fold, "_read", unreadable)
    with pytest.raises(UserError, match="a chunk is damaged"):
        KGHA("rbf").fit(X, Y)


def test_of_very_many_rows_some_are_dealt_out_to_learn_label_sets_from(problem, monkeypatch):
    X, Y, *_ = problem
    dealt = []
    for name, value in (("PASSED_ROWS", 8), ("_RUN", 1), ("FEW_ROWS", 10)):
        monkeypatch.setattr(out_of_fold, name, value)
    monkeypatch.setattr(
        out_of_fold, "stratified_folds", lambda Y, *given: dealt.append(len(Y)) or stratified_folds(Y, *given)
    )
    assert KGHA("rbf", ridge=1.0).fit(X, Y).decoding_ is not None
    assert dealt == [128]


def test_a_column_of_text_is_a_vector_of_classes():
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    with pytest.warns(DataConversionWarning, match="column-vector y"):
        model = MultiViewRidge().fit(X, names[:, None])
    np.testing.assert_array_equal(model.predict(X), MultiViewRidge().fit(X, names).predict(X))


@pytest.mark.parametrize("most", [46, 47, 48, 49, 1000])
def test_few_samples_are_all_scored_and_their_order_hardly_moves_probabilities(most, monkeypatch):
    """Scores of a random quarter of the samples would change probabilities by 0.7 if rows or labels are permuted."""
    held = []
    monkeypatch.setattr(out_of_fold, "FEW_ROWS", most)
    monkeypatch.setattr(
        KGHA, "_learn_decoder", lambda self, d, found, Y, *_: held.append((found[0], Y))
    ) if most < 1000 else None
    rng, moved = np.random.default_rng(0), []
    for _ in range(4):
        X, new = rng.normal(size=(48, 6)), rng.normal(size=(100, 6))
        Y = (X @ rng.normal(size=(6, 4)) + rng.normal(size=(48, 4)) > 0.5).astype(np.uint8)
        model = KGHA().fit(X, Y)
        if most < 1000:
            assert len(held[-1][0]) == (48 if most >= 48 else 12)
            continue
        rows, labels = rng.permutation(48), rng.permutation(4)
        said = model.predict_proba(new)
        moved += [
            np.abs(KGHA().fit(X[rows], Y[rows]).predict_proba(new) - said).max(),
            np.abs(KGHA().fit(X, Y[:, labels]).predict_proba(new) - said[:, labels]).max(),
        ]
    assert max(moved, default=0) < 0.2


def test_scores_of_few_samples_are_those_of_fits_without_their_fold(monkeypatch):
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(60, 4)), (rng.random((60, 3)) < 0.4).astype(np.uint8)
    held = []
    monkeypatch.setattr(KGHA, "_learn_decoder", lambda self, d, found, Y, *_: held.append(found[0]))
    KGHA(dmo.kernels.RBF(2.0)).fit(X, Y)
    fold = folds(X, Y)
    assert fold.max() == 9
    model = KGHA(dmo.kernels.RBF(2.0), decoder=Scores(label_sets=False))
    for number in range(10):
        said = model.fit(X[fold != number], Y[fold != number])._raw_scores({"x": X[fold == number]})
        np.testing.assert_allclose(held[0][fold == number], said, atol=1e-6)


PREDICTORS = {
    "KGHA": KGHA(n_components=2),
    "ridge": MultiViewRidge(),
    "MORP": dmo.MORP(n_components=3),
    "MLSI": dmo.MLSI(n_components=3),
    "MOPE": dmo.MOPE(n_components=3),
    "MESD": dmo.MESD(n_components=2),
    "CCA": dmo.TraceEmbedding("cca", n_components=1),
    "LLTSVR": dmo.LLTSVR(tol=1e-3),
    "CoupledSVR": dmo.CoupledSVR(tol=1e-3),
    "JEC": dmo.JEC(),
    "TagProp": dmo.TagProp(n_neighbors=20),
    "TwoPassKNN": dmo.TwoPassKNN(),
    "FastTag": dmo.FastTag(),
    "votes": dmo.NeighborVotes(),
    "propagation": dmo.LabelPropagation(graph=dmo.Graph(n_neighbors=8)),
}


@pytest.fixture(scope="module")
def signals():
    """Return 240 samples with 3 outputs. Tests train on the first half."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(240, 6))
    return X, X @ rng.normal(size=(6, 3)) + 0.5 * rng.normal(size=(240, 3))


@pytest.mark.parametrize("name", PREDICTORS)
def test_labels_are_predicted_as_learned_sets_by_every_estimator(name, signals, tmp_path):
    X, signal = signals
    Y = (signal > [0.0, 0.8, 1.6]).astype(np.int64)
    old, new = slice(0, 120), slice(120, None)
    model = clone(PREDICTORS[name]).fit(X[old], Y[old])
    sets, p = model.predict(X[new]), model.predict_proba(X[new])
    assert is_classifier(model)
    assert not is_regressor(model)
    assert (sets.dtype, sets.shape, set(np.unique(sets))) == (np.int64, (120, 3), {0, 1})
    assert len(np.unique(sets.sum(axis=1))) > 1
    fixed = model.predict(X[new], top=max(1, round(Y[old].sum() / 120)))
    assert f1_score(Y[new], sets, average="micro") > f1_score(Y[new], fixed, average="micro") - 0.02
    assert ((p >= 0) & (p <= 1)).all()
    constant = np.tile(Y[old].mean(axis=0), (120, 1))
    assert sum(log_loss(Y[new][:, l], p[:, l]) - log_loss(Y[new][:, l], constant[:, l]) for l in range(3)) < -0.1
    assert model.predict(X[new], top=2).sum(axis=1).tolist() == [2] * 120
    scores = model.decision_function(X[new])
    np.testing.assert_array_equal(model.top_labels(X[new], 1)[0][:, 0], scores.argmax(axis=1))
    model.save(str(tmp_path / "m.zarr"))
    loaded = dmo.load(str(tmp_path / "m.zarr"))
    np.testing.assert_array_equal(loaded.predict(X[new]), sets)
    np.testing.assert_array_equal(loaded.predict_proba(X[new]), p)


@pytest.mark.filterwarnings("ignore:.*n_components = 2")
@pytest.mark.parametrize("name", PREDICTORS)
def test_two_classes_have_one_score_and_are_predicted_as_classes_by_every_estimator(name, signals):
    X, signal = signals
    y = np.where(signal[:, 0] > 0, "wet", "dry")
    model = clone(PREDICTORS[name]).fit(X[:120], y[:120])
    scores, p = model.decision_function(X[120:]), model.predict_proba(X[120:])
    assert scores.shape == (120,)
    assert model.predict(X[120:]).tolist() == np.where(scores > 0, "wet", "dry").tolist()
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    assert (model.predict(X[120:]) == y[120:]).mean() == model.score(X[120:], y[120:]) > 0.75


@pytest.mark.filterwarnings("ignore:LLTSVR. every neighborhood")
@pytest.mark.parametrize("name", ["KGHA", "ridge", "MORP", "MLSI", "CCA", "LLTSVR", "CoupledSVR"])
def test_real_targets_are_predicted_as_numbers_by_every_estimator_that_takes_them(name, signals):
    X, signal = signals
    model = clone(PREDICTORS[name]).fit(X[:120], 100 + signal[:120])
    assert is_regressor(model)
    assert not is_classifier(model)
    assert not hasattr(model, "decision_function")
    assert not hasattr(model, "predict_proba")
    found = model.predict(X[120:])
    assert np.abs(found - 100).max() < 20
    assert model.score(X[120:], 100 + signal[120:]) == pytest.approx(r2_score(100 + signal[120:], found))
    assert r2_score(100 + signal[120:], found) > 0.1
    with pytest.raises(UserError, match="top and as_names apply to labels"):
        model.predict(X, top=1)
    with pytest.raises(UserError, match="decoder = 'f1@1' applies to labels, but y has regression targets"):
        clone(model).set_params(decoder="f1@1").fit(X, signal)
    assert is_classifier(model.fit(X, (signal > 0).astype(int)))


@pytest.mark.filterwarnings("ignore:LLTSVR. every neighborhood")
@pytest.mark.parametrize("name", PREDICTORS)
def test_probabilities_of_noise_are_chance_for_every_estimator(name):
    rng = np.random.default_rng(4)
    X, Y = rng.normal(size=(400, 4)), (rng.random((400, 3)) < [0.2, 0.4, 0.6]).astype(int)
    p = clone(PREDICTORS[name]).fit(X[:200], Y[:200]).predict_proba(X[200:])
    constant = np.tile(Y[:200].mean(axis=0), (200, 1))
    for l in range(3):
        assert log_loss(Y[200:, l], p[:, l]) < log_loss(Y[200:, l], constant[:, l]) + 0.05


@pytest.mark.parametrize("name", ["MORP", "MESD", "LLTSVR", "propagation"])
def test_a_decoder_ranks_labels_by_what_does_best(name, signals):
    X, signal = signals
    Y = (signal > [0.0, 0.8, 1.6]).astype(np.int64)
    model = clone(PREDICTORS[name]).set_params(decoder="f1-macro").fit(X[:120], Y[:120])
    assert model.decoding_.ranks
    assert model.held_out_scores_.shape == (120, 3)
    np.testing.assert_array_equal(model.predict(X[120:]), model.decision_function(X[120:]) > 0)


@pytest.mark.parametrize(
    ("name", "decoder"), [("KGHA", None), ("MORP", None), ("LLTSVR", None), ("KGHA", "f1-macro"), ("MORP", "jaccard")]
)
def test_label_sets_of_few_samples_do_not_depend_on_their_order_or_on_rows_being_repeated(name, decoder, signals):
    X, signal = signals
    Y, counts = (signal[:90] > 0.5).astype(int), np.random.default_rng(5).integers(1, 4, 90)
    model = clone(PREDICTORS[name]).set_params(kernel=dmo.kernels.RBF(bandwidth=2.0), decoder=decoder)
    model.set_params(**{"solver__tol": 1e-10} if name == "KGHA" else {"tol": 1e-7 if name == "LLTSVR" else 1e-10})
    order = np.random.default_rng(6).permutation(np.repeat(np.arange(90), counts))
    p = model.fit(X[:90], Y, sample_weight=counts.astype(float)).predict_proba(X[90:])
    np.testing.assert_allclose(clone(model).fit(X[order], Y[order]).predict_proba(X[90:]), p, atol=1e-3)


def test_label_propagation_learns_from_means_of_neighbors_whose_scores_have_not_seen_the_label(signals, monkeypatch):
    X, signal = signals
    Y, held = (signal[:100] > 0.5).astype(float), []
    Y[60:] = np.nan
    monkeypatch.setattr(dmo.LabelPropagation, "_learn_decoder", lambda self, d, found, Y, *_: held.append(found[0]))
    model = dmo.LabelPropagation(graph=dmo.Graph(n_neighbors=5, weight="constant")).fit(X[:100], Y)
    known = np.nan_to_num(Y).astype(np.uint8)
    keys = out_of_fold.row_keys(model, Data.of({"x": X[:100]}, known), np.arange(60))
    fold = out_of_fold.dealt(known[:60], keys, 4)
    near = NearestNeighbors(n_neighbors=6).fit(X[:100]).kneighbors(X[:60], return_distance=False)[:, 1:]
    for number in range(4):
        left = Y.copy()
        left[np.flatnonzero(fold == number)] = np.nan
        scores = model.fit(X[:100], left).scores_
        np.testing.assert_allclose(held[0][fold == number], scores[near[fold == number]].mean(axis=1), atol=1e-6)


def test_training_rows_are_prepared_once_for_all_predictions_and_not_pickled(problem, monkeypatch):
    X, Y, new, _ = problem
    model = MultiViewRidge("rbf", ridge=1.0).fit(X, Y)
    prepared, prepare = [], RBF.prepare
    monkeypatch.setattr(
        RBF, "prepare", lambda self, x, dtype: (prepared.append(x.shape[0]), prepare(self, x, dtype))[1]
    )
    first = [model.decision_function(new[i : i + 1]) for i in range(3)]
    assert prepared.count(300) == 1
    copied = pickle.loads(pickle.dumps(model))
    assert not any(part._prepared for part in copied.expansions_.values())
    np.testing.assert_array_equal(copied.decision_function(new[:1]), first[0])


TREE = {"b": "a", "c": "a", "d": ["b", "c"], "f": "e"}
PAIRS = np.array([(1, 0), (2, 0), (3, 0), (3, 1), (3, 2), (5, 4)])


def of_hierarchy(hierarchy):
    own = {"approximation": Nystrom(rank=50)}
    return {
        "ridge": MultiViewRidge("rbf", decoder=Scores(hierarchy=hierarchy)),
        "low rank": MultiViewRidge("rbf", decoder=Scores(hierarchy=hierarchy), **own),
        "KGHA": KGHA("rbf", decoder=PlugIn("f1-micro", hierarchy=hierarchy), **own),
        "MORP": dmo.MORP("rbf", n_components=5, decoder=Scores(hierarchy=hierarchy)),
        "LLTSVR": dmo.LLTSVR("linear", C=0.1, tol=1e-2, decoder=Scores(hierarchy=hierarchy)),
        "LabelPropagation": dmo.LabelPropagation(decoder=Scores(hierarchy=hierarchy)),
    }


@pytest.mark.parametrize("name", of_hierarchy(None))
def test_labels_in_a_hierarchy_are_learned_and_given_with_their_ancestors(name, problem, tmp_path):
    X, Y, new, _ = problem
    X, Y, new = X[:120], Y[:120, :7], new[:200]
    frame = pd.DataFrame(Y, columns=list("abcdefg"))
    model = of_hierarchy(TREE)[name].fit(X, frame)
    np.testing.assert_array_equal(np.sort(model.ancestors_, axis=0), np.sort(PAIRS, axis=0))
    plain = of_hierarchy(None)[name].fit(X, with_ancestors(Y, PAIRS))
    np.testing.assert_allclose(model.decision_function(new), plain.decision_function(new), atol=1e-9)
    sets = model.predict(new)
    np.testing.assert_array_equal(sets, with_ancestors(plain.predict(new), PAIRS))
    assert (sets[:, PAIRS[:, 0]] <= sets[:, PAIRS[:, 1]]).all()
    assert (sets[:, [1, 2]].sum(axis=1) > 0).any()
    assert (model.predict(new, top=2).sum(axis=1) == 2).all()
    np.testing.assert_array_equal(model.decide(new).sets, sets)
    model.save(str(tmp_path / "m.zarr"))
    np.testing.assert_array_equal(dmo.load(str(tmp_path / "m.zarr")).predict(new), sets)


def test_ancestors_of_listed_labels_become_labels_and_unknown_ones_are_known(problem):
    X, Y, _, _ = problem
    lists = [[name for name, there in zip("bcdefg", row, strict=True) if there] for row in Y[:, 1:7]]
    model = MultiViewRidge("rbf", decoder=Scores(hierarchy=TREE)).fit(X, lists)
    assert model.label_names_ == list("abcdefg")
    closed = with_ancestors(np.column_stack([np.zeros(len(Y), np.uint8), Y[:, 1:7]]), PAIRS)
    again = MultiViewRidge("rbf").fit(X, closed)
    np.testing.assert_allclose(model.decision_function(X), again.decision_function(X), atol=1e-9)
    unknown = np.column_stack([np.full(len(Y), np.nan), Y[:, 1:7]])
    filled = np.where(closed[:, :1] == 1, 1.0, np.nan)
    by_number = {str("abcdef".index(child)): [str("abcdef".index(p)) for p in above] for child, above in TREE.items()}
    for kind in (MultiViewRidge, dmo.MORP):
        model = kind("rbf", decoder=Scores(hierarchy=by_number)).fit(X, unknown)
        plain = kind("rbf").fit(X, np.column_stack([filled, closed[:, 1:]]))
        np.testing.assert_allclose(model.decision_function(X), plain.decision_function(X), atol=1e-9)


def test_a_set_kernel_compares_labels_and_ancestors(problem):
    X, Y, _, _ = problem
    lists = [{name for name, there in zip("bcdefg", row, strict=True) if there} for row in Y[:80, 1:7]]
    above = {"b": "a", "c": "a", "d": "abc", "f": "e"}
    whole = [own.union(*(above.get(name, "") for name in own)) for own in lists]
    kernel = SetKernel("dice")
    model = dmo.MORP("rbf", label_kernel=kernel, decoder=Scores(hierarchy=TREE)).fit(X[:80], lists)
    plain = dmo.MORP("rbf", label_kernel=kernel).fit(X[:80], whole)
    np.testing.assert_allclose(model.transform(X[:80]), plain.transform(X[:80]), atol=1e-9)


@pytest.mark.parametrize(
    ("decoder", "y", "says"),
    [
        (Scores(hierarchy=TREE), np.tile(list("abc"), 100), "pass a list of labels per sample"),
        (Scores(hierarchy=TREE), scipy.sparse.csr_array(np.ones((300, 5000))), "pass fewer labels, or leave it out"),
    ],
)
def test_a_hierarchy_is_of_label_sets_in_memory(decoder, y, says, problem):
    with pytest.raises(UserError, match=f"hierarchy .*; {says}$"):
        MultiViewRidge("linear", decoder=decoder).fit(problem[0], y)


def test_a_search_keeps_the_hierarchy(problem):
    X, Y, new, _ = problem
    frame = pd.DataFrame(Y[:100, :7], columns=list("abcdefg"))
    for metric in ("ranking", "f1-micro"):
        base = MultiViewRidge("linear", decoder=Scores(hierarchy=TREE))
        model = dmo.tune(base, X[:100], frame, metric=metric, grid={"ridge": [0.1, 1.0]})
        assert model.decoder.hierarchy == TREE
        sets = model.predict(new)
        assert (sets[:, PAIRS[:, 0]] <= sets[:, PAIRS[:, 1]]).all()


@pytest.mark.parametrize("metric", ["precision>=0.8", "precision-micro>=0.8"])
def test_guarantee_of_precision_rejects_a_hierarchy(metric):
    with pytest.raises(UserError, match=r"use a guarantee of recall such as 'recall>=0.9', or hierarchy=None$"):
        PlugIn(metric, hierarchy=TREE)
    assert PlugIn("recall>=0.8", hierarchy=TREE).makes_sets
