"""Compare LLT-SVR with conic programs, LIBSVM and brute force."""

import functools
import re
import tracemalloc
from types import SimpleNamespace

import clarabel
import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from cases import checked_by_scikit_learn
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVR

import dmo
from dmo.errors import UserError, amount
from dmo.fit.exact import Exact
from dmo.formats.arff import read_arff, read_label_list
from dmo.kernels import RBF
from dmo.linalg.operators import Dense, LowRank
from dmo.lowrank.approximations import Nystrom
from dmo.methods.llt_svr import frame_bytes, neighborhood_frames
from dmo.methods.svr_admm import (
    _ONE_THREAD,
    POWERS,
    EpsilonInsensitive,
    Factors,
    Power,
    Problem,
    State,
    _threads,
    admm,
    certificate,
    dual_feasible,
    dual_objective,
    objective,
)
from dmo.metrics import jaccard_accuracy

# The paper and the reference solutions do not scale the outputs.
LLTSVR = functools.partial(dmo.LLTSVR, C=1.0, target_scale="none")
CoupledSVR = functools.partial(dmo.CoupledSVR, C=1.0, target_scale="none")

LOSSES = [EpsilonInsensitive(0.1), *map(Power, POWERS.values())]


def samples(n, L, seed, d=2):
    """Return random inputs and noisy smooth outputs near a two-dimensional manifold."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, d))
    Y = np.stack([np.sin((j + 1) * X[:, 0] + j) + (j % 3 - 1) * X[:, 1] ** 2 for j in range(L)], axis=1)
    return X, Y + 0.1 * rng.standard_normal(Y.shape)


def rbf(X, Z=None, width=0.7):
    Z = X if Z is None else Z
    return np.exp(-((X[:, None] - Z[None]) ** 2).sum(axis=-1) / (2 * width**2))


def problem_of(n, L, seed, C=10.0, loss=LOSSES[0], local=True, coupling=None):
    X, Y = samples(n, L, seed)
    frames = neighborhood_frames(Y, 6).basis if local else None
    return Problem(Dense(rbf(X)), Y, loss, C, frames, coupling)


def conic_optimum(problem):
    """Solve the primal program of [LLT 4], with explicit slack variables, by an interior-point method."""
    n, L = problem.targets.shape
    kernel = problem.kernel.dense()
    S = np.eye(L) if problem.coupling is None else problem.coupling
    values, vectors = np.linalg.eigh(np.kron(kernel, S))
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    U = [np.eye(L)] * n if problem.frames is None else list(problem.frames)
    rotate = sp.block_diag([sp.csr_array(u.T) for u in U])
    fitted = rotate @ np.hstack([root, np.tile(np.eye(L), (n, 1))])  # the matrix maps (v, b) to rotated outputs
    goal = rotate @ problem.targets.ravel()
    m, k = n * L, fitted.shape[1]
    P = sp.block_diag([sp.eye(m), sp.csc_array((L + m, L + m))]).tocsc()
    q = np.concatenate([np.zeros(k), np.full(m, problem.C)])
    eye = sp.eye(m)
    if isinstance(problem.loss, EpsilonInsensitive) or problem.loss.power == 1.0:
        epsilon = getattr(problem.loss, "epsilon", 0.0)
        A = sp.vstack([sp.hstack([fitted, -eye]), sp.hstack([-fitted, -eye]), sp.hstack([sp.csc_matrix((m, k)), -eye])])
        b = np.concatenate([epsilon + goal, epsilon - goal, np.zeros(m)])
        cones = [clarabel.NonnegativeConeT(3 * m)]
    else:  # the power cone of (t, 1, r) expresses t >= |r|^p
        A, b = sp.lil_matrix((3 * m, k + m)), np.zeros(3 * m)
        A[::3, k:], A[2::3, :k] = -eye, -fitted
        b[1::3], b[2::3] = 1.0, -goal
        cones = [clarabel.PowerConeT(1 / problem.loss.power)] * m
    options = clarabel.DefaultSettings()
    options.verbose = False
    options.tol_gap_abs = options.tol_gap_rel = options.tol_feas = 1e-10 if len(cones) == 1 else 1e-8
    result = clarabel.DefaultSolver(P, q, A.tocsc(), b, cones, options).solve()
    assert str(result.status) == "Solved"
    return result.obj_val


# ---- losses


@pytest.mark.parametrize("loss", LOSSES, ids=str)
@settings(max_examples=40, deadline=None)
@given(r=st.floats(-50, 50), weight=st.floats(1e-3, 100))
def test_proximal_map_minimizes_its_definition(loss, r, weight):
    def value(t):
        return weight * loss.value(np.array([t]), 1.0) + (t - r) ** 2 / 2

    bracket = sorted((0.0, r)) if abs(r) > 1e-9 else (-1e-6, 1e-6)
    best = minimize_scalar(value, bounds=bracket, method="bounded", options={"xatol": 1e-10}).fun
    t = loss.prox(np.array([r]), weight)[0]
    assert value(t) <= min(best, value(0.0), value(r)) * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_conjugate_is_the_largest_difference_to_a_line(loss):
    grid, C = np.linspace(-200, 200, 2_000_001), 3.0
    values = np.array(
        [
            C
            * (
                np.maximum(np.abs(grid) - 0.1, 0)
                if isinstance(loss, EpsilonInsensitive)
                else np.abs(grid) ** loss.power
            )
        ]
    )
    for w in (-2.9, -0.4, 0.0, 1.0, 3.0):
        assert loss.conjugate(np.array([w]), C) == pytest.approx(float((w * grid - values).max()), abs=1e-6)


# ---- frames


def test_frames_are_orthonormal_and_start_with_the_directions_of_the_neighborhood():
    _, Y = samples(80, 5, 0)
    frames = neighborhood_frames(Y, 4)
    assert np.allclose(frames.basis.transpose(0, 2, 1) @ frames.basis, np.eye(5), atol=1e-12)
    assert (frames.ranks == 3).all()
    for i in (0, 17, 79):
        near = Y[np.argsort(((Y - Y[i]) ** 2).sum(axis=1))[:4]]
        left = np.linalg.svd((near - near.mean(axis=0)).T)[0][:, :3]
        assert np.allclose(np.abs(left.T @ frames.basis[i][:, :3]), np.eye(3), atol=1e-8)


def test_frames_of_tied_directions_do_not_depend_on_rounding():
    # Outputs at the corners of a square or cube have equal singular values, so their singular vectors are not unique.
    Y = np.array(np.meshgrid([0.0, 1.0], [0.0, 1.0], [0.0, 3.0], [0.0])).reshape(4, -1).T
    frames = neighborhood_frames(Y, 8)
    assert (frames.ranks == 3).all()
    assert np.allclose(frames.basis[0], np.eye(4)[:, [2, 0, 1, 3]], atol=1e-12)
    noise = np.random.default_rng(0).standard_normal((200, *Y.shape)) * 1e-14
    for moved in Y + noise:
        assert np.allclose(np.abs(neighborhood_frames(moved, 8).basis), np.abs(frames.basis), atol=1e-10)


@pytest.mark.parametrize("kappa", [2, 3, 6, 40])
def test_frames_stay_full_whatever_the_neighborhood(kappa):
    rng = np.random.default_rng(1)
    labels = 2.0 * (rng.random((60, 7)) < 0.2) - 1
    labels[:30] = labels[0]
    frames = neighborhood_frames(labels, kappa)
    assert np.allclose(frames.basis.transpose(0, 2, 1) @ frames.basis, np.eye(7), atol=1e-10)
    if kappa <= 30:
        assert (frames.ranks[:30] == 0).all()
        assert (frames.basis[:30] == np.eye(7)).all()


def test_distinct_neighbors_see_past_repeated_outputs():
    Y = np.repeat([[1.0, -1, -1], [-1, 1, -1], [1, 1, -1]], 20, axis=0)
    assert not neighborhood_frames(Y, 6).ranks.any()
    frames = neighborhood_frames(Y, 6, "distinct")
    assert (frames.ranks == 2).all()
    assert np.allclose(np.abs(frames.basis[:, 2, 2]), 1)  # the third output is constant, so that its axis is the normal


# ---- objective


@pytest.mark.parametrize(
    ("n", "L", "C", "epsilon"),
    [(40, 2, 10, 0.1), (60, 2, 1, 0.05), (50, 3, 10, 0.2), (40, 3, 100, 0.05), (30, 6, 5, 0.1)],
)
def test_objective_is_the_optimum_of_the_quadratic_program(n, L, C, epsilon):
    problem = problem_of(n, L, n + L, C, EpsilonInsensitive(epsilon))
    fit = admm(problem)
    assert fit.converged
    assert fit.certificate.gap < 1e-5
    assert fit.certificate.objective == pytest.approx(conic_optimum(problem), rel=1e-6)
    assert np.abs(fit.dual.sum(axis=0)).max() < 1e-8 * C


@pytest.mark.parametrize("loss", LOSSES[1:], ids=str)
def test_power_losses_reach_the_optimum_of_their_conic_program(loss):
    problem = problem_of(25, 3, 5, 2.0, loss)
    assert admm(problem).certificate.objective == pytest.approx(conic_optimum(problem), rel=1e-6)


def test_coupled_outputs_reach_the_optimum_with_the_matrix_kernel():
    root = np.random.default_rng(0).standard_normal((3, 2))
    for S in (root @ root.T, root @ root.T + 0.1 * np.eye(3)):  # test a singular and a regular S
        problem = problem_of(40, 3, 2, local=False, coupling=S)
        assert admm(problem).certificate.objective == pytest.approx(conic_optimum(problem), rel=1e-6)


def svr_objective(K, y, C, epsilon):
    """Compute the optimum with LIBSVM from the dual objective, which is more accurate than its primal solution."""
    model = SVR(kernel="precomputed", C=C, epsilon=epsilon, tol=1e-9).fit(K, y)
    beta = np.zeros(len(y))
    beta[model.support_] = model.dual_coef_[0]
    return beta @ y - epsilon * np.abs(beta).sum() - 0.5 * beta @ K @ beta, model


def test_identity_frames_are_one_svr_per_output():
    X, Y = samples(150, 3, 4)
    K, new = rbf(X), rbf(samples(20, 3, 9)[0], X)
    model = LLTSVR(kernel="precomputed", frame="identity", C=10.0, epsilon=0.1, tol=1e-8).fit(K, Y)
    oracle = [svr_objective(K, Y[:, j], 10.0, 0.1) for j in range(3)]
    assert model.objective_ == pytest.approx(sum(value for value, _ in oracle), rel=1e-6)
    assert np.allclose(model.predict(new), np.stack([svr.predict(new) for _, svr in oracle], axis=1), atol=2e-3)
    outside = np.unique(np.concatenate([svr.support_ for _, svr in oracle]))
    assert len(np.setxor1d(outside, model.support_)) <= 2


def test_one_output_is_svr_whatever_the_frame():
    X, Y = samples(150, 1, 4)
    value, svr = svr_objective(rbf(X), Y[:, 0], 3.0, 0.1)
    model = LLTSVR(kernel="precomputed", C=3.0).fit(rbf(X), Y[:, 0])
    assert model.objective_ == pytest.approx(value, rel=1e-6)
    assert model.predict(rbf(X)).shape == (150,)
    assert np.allclose(model.predict(rbf(X)), svr.predict(rbf(X)), atol=5e-3)


@pytest.mark.parametrize("loss", LOSSES, ids=str)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), size=st.floats(1e-3, 1e3), local=st.booleans())
def test_dual_values_at_feasible_points_stay_below_primal_values_anywhere(loss, seed, size, local):
    problem = problem_of(20, 3, seed, 2.0, loss, local)
    rng = np.random.default_rng(seed)
    A, other, bias = size * rng.standard_normal((20, 3)), size * rng.standard_normal((20, 3)), rng.standard_normal(3)
    feasible = dual_feasible(problem, other)
    assert np.abs(feasible.sum(axis=0)).max() <= 1e-10 * max(1.0, np.abs(feasible).max())
    if loss.bounded:
        assert np.abs(problem.rotate(feasible)).max() <= 2.0 * (1 + 1e-12)
    K = problem.kernel.matrix
    upper, lower = objective(problem, A, bias, K @ A), dual_objective(problem, feasible, K @ feasible)
    assert lower <= upper + 1e-9 * abs(upper)


def test_certificate_of_the_optimum_closes_and_elsewhere_does_not():
    problem = problem_of(60, 3, 8)
    fit = admm(problem, tol=1e-9)
    assert certificate(problem, fit.dual, fit.bias).gap < 1e-6
    assert certificate(problem, fit.dual, fit.bias + 0.2).gap > 1e-3


def test_objective_does_not_depend_on_the_penalty(monkeypatch):
    monkeypatch.setattr("dmo.methods.svr_admm._REBALANCE", ())
    problem = problem_of(60, 3, 8)
    begin = [State(problem.targets, np.zeros(problem.targets.shape), rho) for rho in (4.0, 64.0, 1024.0)]
    values = [admm(problem, start=start, max_iter=20000).certificate.objective for start in begin]
    assert np.ptp(values) <= 2e-6 * values[0]


def test_outputs_that_are_all_inside_the_tube_need_no_support():
    X, Y = samples(30, 2, 0)
    model = LLTSVR(epsilon=10.0).fit(X, Y)
    assert model.n_support_ == 0
    assert model.objective_ == pytest.approx(0, abs=1e-20)
    assert model.gap_ <= 1e-12


# ---- other kernels behind the same solver


def test_small_kernels_are_multiplied_by_one_thread():
    at = [_threads(SimpleNamespace(n=int(_ONE_THREAD**0.5) + step)) for step in (0, 1)]
    assert at == [1, None]
    assert _threads(LowRank(np.ones((3, 2)))) == 1


def test_low_rank_kernel_gives_the_objective_of_its_dense_matrix():
    problem = problem_of(80, 3, 3)
    factor = np.linalg.cholesky(rbf(samples(80, 3, 3)[0]) + 1e-10 * np.eye(80))[:, :20]
    low = Problem(LowRank(factor), problem.targets, problem.loss, problem.C, problem.frames)
    dense = Problem(Dense(factor @ factor.T), problem.targets, problem.loss, problem.C, problem.frames)
    assert Factors(low.kernel).at(0.1)[0].method == "woodbury"
    assert admm(low).certificate.objective == pytest.approx(admm(dense).certificate.objective, rel=2e-6)


def test_low_rank_estimator_with_all_landmarks_agrees_with_the_exact_one():
    X, Y = samples(120, 3, 3)
    exact, low = (
        LLTSVR(C=10.0).fit(X, Y),
        LLTSVR(C=10.0, approximation=Nystrom(rank=120, precision="float64")).fit(X, Y),
    )
    assert low.objective_ == pytest.approx(exact.objective_, rel=1e-5)
    assert np.allclose(low.predict(X[:9]), exact.predict(X[:9]), atol=1e-2)


def test_tiles_and_conjugate_gradients_give_the_same_model():
    X, Y = samples(120, 2, 3)
    exact = LLTSVR(C=2.0).fit(X, Y)
    tiled = LLTSVR(C=2.0, approximation=Exact("recomputed", "float64", block=50)).fit(X, Y)
    assert tiled.objective_ == pytest.approx(exact.objective_, rel=2e-6)
    assert np.allclose(tiled.predict(X), exact.predict(X), atol=1e-2)


def test_views_are_taken_with_the_mean_of_their_kernels():
    X, Y = samples(60, 2, 3, d=4)
    joint = LLTSVR().fit({"a": X[:, :2], "b": X[:, 2:]}, Y)
    kernels = [RBF().fit(part)(part, dtype=np.float64) for part in (X[:, :2], X[:, 2:])]
    assert joint.objective_ == pytest.approx(LLTSVR(kernel="precomputed").fit(sum(kernels) / 2, Y).objective_, rel=2e-6)


# ---- paths


def test_path_gives_the_models_of_separate_fits_with_fewer_factorizations():
    X, Y = samples(100, 3, 1)
    models = LLTSVR().path(X, Y, C=[0.5, 2, 8], epsilon=[0.2, 0.1])
    assert [(m.epsilon, m.C) for m in models] == [(e, c) for e in (0.2, 0.1) for c in (0.5, 2, 8)]
    alone = [LLTSVR(C=m.C, epsilon=m.epsilon).fit(X, Y) for m in models]
    assert np.allclose([m.objective_ for m in models], [a.objective_ for a in alone], rtol=2e-6)
    assert sum(m.n_factorizations_ for m in models) < sum(a.n_factorizations_ for a in alone)
    assert np.allclose(models[-1].predict(X), alone[-1].predict(X), atol=2e-2)


def test_starting_at_the_solution_ends_at_the_first_check():
    problem = problem_of(80, 3, 1)
    factors = Factors(problem.kernel)
    first = admm(problem, factors)
    again = admm(problem, factors, first.state)
    assert again.iterations == 25
    assert again.factorizations == 0


# ---- the estimator


def test_rotating_the_outputs_rotates_the_predictions():
    X, Y = samples(80, 3, 6)
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))[0]
    local = [LLTSVR(C=5.0, tol=1e-9).fit(X, targets).predict(X[:20]) for targets in (Y, Y @ Q)]
    naive = [LLTSVR(C=5.0, frame="identity", tol=1e-9).fit(X, targets).predict(X[:20]) for targets in (Y, Y @ Q)]
    assert np.allclose(local[0] @ Q, local[1], atol=1e-3)
    assert not np.allclose(naive[0] @ Q, naive[1], atol=1e-3)


def test_coupling_borrows_strength_from_a_correlated_output():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (60, 1))
    clean = np.sin(X)
    Y = np.hstack([clean + 0.5 * rng.standard_normal((60, 1)), clean, 2 * clean])
    alone, coupled = LLTSVR(C=3.0, frame="identity").fit(X, Y), CoupledSVR(C=3.0).fit(X, Y)
    errors = [np.abs(model.predict(X)[:, 0] - clean[:, 0]).mean() for model in (alone, coupled)]
    assert errors[1] < errors[0]
    independent = CoupledSVR(C=3.0, covariance=np.eye(3)).fit(X, Y)
    assert independent.objective_ == pytest.approx(alone.objective_, rel=2e-6)


def test_dual_coefficients_and_intercept_are_the_prediction():
    X, Y = samples(70, 2, 0)
    K = rbf(X)
    for model in (LLTSVR(kernel="precomputed"), CoupledSVR(kernel="precomputed")):
        model.fit(K, Y)
        assert np.allclose(K @ model.dual_coef_ + model.intercept_, model.predict(K))


def test_labels_are_learned_as_plus_and_minus_one_and_predicted_as_sets():
    X, Y = samples(60, 2, 0)
    model, same = LLTSVR(C=10.0, frame="identity"), LLTSVR(C=10.0, frame="identity")
    model.fit(X, np.where(Y > 0, 1, -1))
    assert ((model.decision_function(X) > 0) == (Y > 0)).mean() > 0.9
    assert (model.predict(X) == (Y > 0)).mean() > 0.9
    assert set(np.unique(model.predict(X))) == {0, 1}
    np.testing.assert_array_equal(same.fit(X, (Y > 0).astype(float)).decision_function(X), model.decision_function(X))
    # Perturb the labels, because outputs with more than two values are treated as regression targets.
    bare = LLTSVR(C=10.0, frame="identity")
    numbers = bare.fit(X, np.where(Y > 0, 1, -1) + 1e-9 * np.arange(60)[:, None]).predict(X)
    np.testing.assert_allclose(model.decision_function(X), numbers, atol=1e-4)


def test_two_classes_are_one_output_as_in_a_support_vector_regression():
    X, Y = samples(60, 2, 0)
    y = np.where(Y[:, 0] > 0, "yes", "no")
    K = rbf(X)
    model = LLTSVR(kernel="precomputed", C=10.0).fit(K, y)
    oracle = SVR(kernel="precomputed", C=10.0, tol=1e-9).fit(K, 2.0 * (y == "yes") - 1)
    np.testing.assert_allclose(model.decision_function(K), oracle.predict(K), atol=1e-3)
    assert model.predict(K).tolist() == np.where(oracle.predict(K) > 0, "yes", "no").tolist()
    assert model.predict_proba(K).shape == (60, 2)


def test_chunks_and_containers_do_not_matter():
    X, Y = samples(60, 2, 0)
    plain = LLTSVR().fit(X, Y).predict(X)
    assert np.allclose(
        LLTSVR().fit(da.from_array(X, chunks=(7, 2)), da.from_array(Y, chunks=(11, 1))).predict(X), plain
    )
    assert np.allclose(LLTSVR().fit(sp.csr_array(X), Y).predict(X), plain, atol=1e-4)


@pytest.mark.parametrize(
    "model",
    [
        LLTSVR(),
        LLTSVR(approximation=Nystrom(rank=120, precision="float64")),
        CoupledSVR(C=2.0),
        LLTSVR(kernel="precomputed"),
    ],
    ids=["exact", "low-rank", "coupled", "precomputed"],
)
def test_saved_models_predict_the_same(model, tmp_path):
    X, Y = samples(60, 3, 0)
    X = rbf(X) if model.kernel == "precomputed" else X
    model.fit(X, Y)
    model.save(str(tmp_path / "model"))
    back = dmo.load(str(tmp_path / "model"))
    assert np.array_equal(back.predict(X), model.predict(X))
    assert np.array_equal(back.dual_coef_, model.dual_coef_)
    assert back.gap_ == model.gap_
    assert repr(back) == repr(model)


def test_grid_search_splits_precomputed_kernels_on_both_sides():
    X, Y = samples(60, 2, 0)
    search = GridSearchCV(LLTSVR(kernel="precomputed", tol=1e-3), {"C": [0.1, 10.0]}, cv=3).fit(rbf(X), Y)
    assert search.best_params_["C"] == 10.0
    assert search.best_score_ > 0.5


def test_stopping_early_warns_and_reports_the_gap():
    X, Y = samples(60, 2, 0)
    with pytest.warns(ConvergenceWarning, match="duality gap of"):
        model = LLTSVR(C=10.0, max_iter=3).fit(X, Y)
    assert model.gap_ > 1e-6
    with pytest.warns(ConvergenceWarning, match="duality gap of"):
        assert model.set_params(max_iter=1).fit(X, Y).n_iter_ == 1


NAN = np.where(np.arange(40).reshape(20, 2) == 5, np.nan, 1.0)


@pytest.mark.parametrize(
    ("arguments", "change", "sentence"),
    [
        ({"n_neighbors": 21}, None, "n_neighbors = 21, but there are 20 samples; pass n_neighbors <= 20"),
        ({"n_neighbors": 1}, None, "n_neighbors = 1; needs a whole number of at least 2"),
        ({"epsilon": 0.0}, None, "epsilon must be a positive number, got 0.0; for epsilon 0 use loss='l1'"),
        ({"epsilon": -1}, None, "epsilon must be a positive number"),
        ({"C": 0}, None, "C = 0; needs a positive number"),
        ({"C": np.nan}, None, "C = nan; needs a positive number"),
        ({"loss": "l2"}, None, "loss = 'l2'; known: 'epsilon-insensitive', 'l1', 'l4/3', 'l3/2'"),
        ({"frame": "global"}, None, "frame = 'global'; known: 'local', 'identity'"),
        ({"neighbors": "all"}, None, "neighbors = 'all'; known: 'samples', 'distinct'"),
        ({"max_iter": 0}, None, "max_iter = 0; needs a whole number of at least 1"),
        ({"kernel": "precomputed"}, None, "the training kernel must be square, got"),
        ({}, lambda Y: np.where(np.isnan(NAN), np.inf, Y), "input y contains NaN or infinity at row 2, output 1"),
        ({}, lambda Y: np.where([True, False], np.nan, Y), "output 0 is unknown in all samples; leave it out"),
        ({}, lambda Y: Y[:-1], "y has 19 rows, X has 20"),
        ({}, lambda Y: None, "requires y to be passed"),
        ({}, lambda Y: np.array([["a", "b"]] * 20), "labels must be 0 or 1"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(arguments, change, sentence):
    X, Y = samples(20, 2, 0)
    with pytest.raises(ValueError, match=f"LLTSVR: .*{sentence}"):
        LLTSVR(**arguments).fit(X, Y if change is None else change(Y))


def test_asymmetric_and_indefinite_kernels_are_refused():
    X, Y = samples(20, 2, 0)
    with pytest.raises(ValueError, match="training kernel must be symmetric"):
        LLTSVR(kernel="precomputed").fit(np.triu(rbf(X)), Y)
    with pytest.raises(ValueError, match="not positive definite"):
        LLTSVR(kernel="precomputed").fit(-10 * rbf(X), Y)
    with pytest.raises(ValueError, match="CoupledSVR: covariance must be a symmetric positive semidefinite 2 x 2"):
        CoupledSVR(covariance=-np.eye(2)).fit(X, Y)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda Y: np.column_stack([Y, np.ones(20)]), "output 2 is constant .1. in all samples"),
        (lambda Y: np.column_stack([Y, Y[:, 0]]), "outputs 0 and 2 are the same in all samples"),
        (
            lambda Y: np.repeat([[1.0, -1], [-1, 1]], 10, axis=0),
            "every neighborhood of 6 samples holds one output only",
        ),
    ],
)
def test_outputs_that_teach_nothing_are_named(spoil, sentence):
    X, Y = samples(20, 2, 0)
    with pytest.warns(UserWarning, match=f"LLTSVR: {sentence}"):
        model = LLTSVR().fit(X, spoil(Y))
    assert np.isfinite(model.predict(X)).all()
    assert model.gap_ <= 1e-6


@pytest.mark.parametrize("loss", ["epsilon-insensitive", "l3/2"])
@pytest.mark.parametrize(
    "model",
    [
        dmo.LLTSVR(RBF(0.7), frame="identity"),
        dmo.LLTSVR(RBF(0.7), neighbors="distinct"),
        dmo.CoupledSVR(RBF(0.7)),
    ],
    ids=["naive", "local", "coupled"],
)
def test_weights_are_repeated_samples(model, loss):
    X, Y = samples(40, 3, 5)
    counts = np.random.default_rng(0).integers(0, 4, len(X))
    counts[:3] = 1, 2, 3
    rows = np.repeat(np.arange(len(X)), counts)
    model.set_params(C=2.0, loss=loss, tol=1e-9, prepare="none", max_iter=20_000)
    weighted = model.fit(X, Y, sample_weight=counts)
    objective, said = weighted.objective_, weighted.predict(X)
    repeated = model.fit(X[rows], Y[rows])
    assert objective == pytest.approx(repeated.objective_, rel=1e-7)
    np.testing.assert_allclose(said, repeated.predict(X), atol=2e-3)


def test_weighted_naive_regression_is_scikit_learns_svr():
    X, Y = samples(60, 2, 3)
    weights = np.random.default_rng(1).random(60) * 3
    weights[:10] = 0
    model = dmo.LLTSVR(
        RBF(0.7), C=2.0, frame="identity", target_scale="none", prepare="none", tol=1e-9, max_iter=20_000
    )
    found = model.fit(X, Y, sample_weight=weights).predict(X)
    for j, y in enumerate(Y.T):
        svr = SVR(C=2.0, epsilon=0.1, gamma=1 / (2 * 0.7**2), tol=1e-8).fit(X, y, sample_weight=weights)
        np.testing.assert_allclose(found[:, j], svr.predict(X), atol=1e-3)
    path = dmo.LLTSVR(RBF(0.7), frame="identity", target_scale="none", prepare="none", tol=1e-9, max_iter=20_000).path(
        X, Y, C=[0.5, 2.0], sample_weight=weights
    )
    np.testing.assert_allclose(path[1].predict(X), found, atol=1e-3)
    model.set_params(kernel="precomputed")
    K = RBF(0.7)(X, dtype=np.float64)
    np.testing.assert_allclose(model.fit(K, Y, sample_weight=weights).predict(K), found, atol=1e-6)


def test_frames_of_labels_do_not_depend_on_the_order_of_the_samples():
    """Average the reference over every choice of last neighbors, because outputs at equal distances are tied."""
    rng = np.random.default_rng(0)
    X, labels = rng.normal(size=(70, 4)), (rng.random((70, 4)) < 0.4) * 1.0
    order, new = rng.permutation(70), rng.normal(size=(30, 4))
    frames, moved = neighborhood_frames(labels, 6), neighborhood_frames(labels[order], 6)
    np.testing.assert_array_equal(moved.basis, frames.basis[order])
    model = dmo.LLTSVR(RBF(1.0), tol=1e-9, max_iter=50_000)
    said = model.fit(X, 2 * labels - 1).predict(new)
    np.testing.assert_allclose(model.fit(X[order], 2 * labels[order] - 1).predict(new), said, atol=1e-4)
    counts = rng.integers(1, 4, 70)
    whole = neighborhood_frames(np.repeat(labels, counts, axis=0), 6)
    weighted = neighborhood_frames(labels, 6, weights=counts)
    np.testing.assert_allclose(np.repeat(weighted.basis, counts, axis=0), whole.basis, atol=1e-9)
    few = np.array([[0.0, 0], [1, 0], [0, 1], [-1, 0], [0, -1.5]])  # after row 0, three tied rows share two places
    scatter = np.zeros((2, 2))
    for pair in ([1, 2], [1, 3], [2, 3]):
        scatter += few[[0, *pair]].T @ few[[0, *pair]] / 3
    mean = 2 * few[1:4].mean(axis=0) / 3
    wanted = np.linalg.eigh(scatter - 3 * np.outer(mean, mean))[1][:, ::-1]
    np.testing.assert_allclose(np.abs(wanted.T @ neighborhood_frames(few, 3).basis[0]), np.eye(2), atol=1e-9)


@pytest.mark.slow
@checked_by_scikit_learn([dmo.LLTSVR(tol=1e-10, max_iter=50_000), dmo.CoupledSVR(tol=1e-10, max_iter=50_000)])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


# ---- public data


def test_scene_labels_from_distinct_neighbors_beat_independent_regressions(dmo_data):
    """Use a smooth kernel and a small C, for which independent regressions assign no label to most samples."""
    folder = dmo_data / "mulan" / "scene"
    labels = read_label_list(folder / "scene.xml.xz")
    (X, Y), (new, truth) = (read_arff(folder / f"scene-{part}.arff.xz", labels) for part in ("train", "test"))
    models = [LLTSVR(frame="identity", tol=1e-3), LLTSVR(neighbors="distinct", n_neighbors=12, tol=1e-3)]
    scores = [jaccard_accuracy(truth, m.fit(X, Y).decision_function(new) > 0) for m in models]
    assert scores[1] > scores[0] + 0.1


def test_frames_that_do_not_fit_into_memory_are_refused_before_they_are_made(monkeypatch):
    rng = np.random.default_rng(0)
    X, needed = rng.normal(size=(30, 4)), frame_bytes(30, 30, 40, 6)
    free = SimpleNamespace(available=needed)
    monkeypatch.setattr("psutil.virtual_memory", lambda: free)
    tracemalloc.start()
    LLTSVR(max_iter=20, tol=1.0).fit(X, rng.normal(size=(30, 40)))
    _, most = tracemalloc.get_traced_memory()
    assert 0.5 * needed < most < 1.1 * needed
    Y = rng.normal(size=(30, 41))
    said = rf"30 samples, with a matrix of 41 x 41 outputs each, need .*, {re.escape(amount(needed))} are free; use"
    tracemalloc.reset_peak()
    with pytest.raises(UserError, match=said):
        LLTSVR(max_iter=20, tol=1.0).fit(X, Y)
    assert tracemalloc.get_traced_memory()[1] < 0.5 * needed
    tracemalloc.stop()
    assert LLTSVR(max_iter=20, tol=1.0, frame="identity").fit(X, Y).predict(X).shape == (30, 41)
