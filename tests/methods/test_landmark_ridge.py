"""Compare landmark ridge regression by conjugate gradients with dense normal equations and the direct solver."""

import tracemalloc

import numpy as np
import pytest
import scipy.sparse
from sklearn.exceptions import ConvergenceWarning

import dmo
from dmo import MultiViewRidge, Nystrom, load
from dmo.decoders import Scores
from dmo.errors import UserError
from dmo.kernels import RBF, gram_matrix
from dmo.linalg.linear import IllConditioned
from dmo.lowrank.nystrom import LandmarkMap
from dmo.methods import landmark_ridge as regression
from dmo.methods import ridge
from dmo.methods.landmark_ridge import _SINGLE, LandmarkFactors, RowFactors, landmark_regression, landmark_ridge
from dmo.selection import sweep
from dmo.workflows.plan import plan_fit

RNG = np.random.default_rng(0)
X = RNG.normal(size=(500, 6))
Y = (np.stack([np.sin(2 * X[:, 0]), X[:, 1] * X[:, 2], X[:, 3]], axis=1) > 0.3).astype(np.uint8)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("ridge", [1.0, 1e-3])
def test_coefficients_solve_the_normal_equations_of_the_span(center, ridge):
    Z = np.vstack([X[:40], X[:5]])  # five landmarks are duplicates
    values, B, offset = landmark_regression(LandmarkMap(RBF(2.0), np.dtype("float64"), Z), X, Y, ridge, center)
    assert len(values.landmarks) == 40
    C, W = (gram_matrix(RBF(2.0), np.vstack([A, X[:40]]), np.float64)[0][: len(A), len(A) :] for A in (X, X[:40]))
    ones = np.ones((500, 1)) if center else np.zeros((500, 0))
    stacked = np.hstack([C, ones])
    system = stacked.T @ stacked
    system[:40, :40] += ridge * W
    labels = Y - Y.mean(axis=0) if center else Y.astype(float)
    expected = stacked @ np.linalg.lstsq(system, stacked.T @ labels, rcond=1e-14)[0]
    np.testing.assert_allclose(values.raw(X) @ B + offset, expected, atol=1e-6)


@pytest.mark.parametrize("landmarks", ["uniform", "rpcholesky", "kmeans"])
def test_scores_are_those_of_the_direct_solve(landmarks, tmp_path):
    views, found = {"a": X[:, :3], "b": X[:, 3:]}, {}
    for solver in ("direct", "cg"):
        low = Nystrom(rank=60, landmarks=landmarks, precision="float64", solver=solver)
        model = MultiViewRidge(RBF(3.0), ridge=0.1, intercept=True, approximation=low).fit(views, Y)
        found[solver] = model.decision_function(views)
    np.testing.assert_allclose(found["cg"], found["direct"], atol=1e-6)
    model.save(tmp_path / "model.zarr")
    np.testing.assert_array_equal(load(tmp_path / "model.zarr").decision_function(views), found["cg"])
    assert set(np.unique(model.predict(views))) == {0, 1}


def test_single_precision_is_as_near_as_that_of_the_direct_solve():
    found = {}
    for solver, precision in (("direct", "float64"), ("direct", "float32"), ("cg", "float32")):
        low = Nystrom(rank=100, precision=precision, solver=solver)
        model = MultiViewRidge(RBF(4.0), ridge=1e-3, approximation=low, decoder=Scores(label_sets=False)).fit(X, Y)
        found[solver, precision] = model.decision_function(X)
    wide = found["direct", "float64"]
    off = {key: np.abs(scores - wide).max() for key, scores in found.items()}
    assert 0 < off["cg", "float32"] < max(2 * off["direct", "float32"], 1e-3)


@pytest.mark.parametrize("width", [0.8, 2.0])
@pytest.mark.parametrize("center", [True, False])
def test_rows_own_gram_matrix_is_solved_as_nearly_as_factor_rows(center, width):
    found = {}
    for solver, precision in (("direct", "float64"), ("direct", "float32"), ("cg", "float32")):
        low = Nystrom(rank=60, precision=precision, solver=solver)
        model = MultiViewRidge(
            RBF(width), ridge=0.1, center=center, approximation=low, decoder=Scores(label_sets=False)
        ).fit(X, Y)
        found[solver, precision] = model.decision_function(X)
    wide = found["direct", "float64"]
    off = {key: np.abs(scores - wide).max() for key, scores in found.items()}
    # Float32 sums cause a relative error of up to 1e-6 in C'C, which a pivot as small as `_SINGLE` amplifies.
    assert 0 < off["cg", "float32"] < max(2 * off["direct", "float32"], 1e-6 / _SINGLE)


def test_very_many_landmarks_of_one_label_are_solved_by_steps_in_single_precision():
    rows = RNG.normal(size=(1600, 8))
    values = np.sin(rows[:, :1] + rows[:, 1:2])
    found = {}
    for solver, precision in (("direct", "float64"), ("cg", "float32")):
        low = Nystrom(rank=1000, landmarks="uniform", precision=precision, solver=solver)
        model = MultiViewRidge(RBF(1.2), ridge=0.1, approximation=low, decoder=Scores(label_sets=False)).fit(
            rows, values
        )
        found[solver] = model.predict(rows)
    left = found["cg"] - found["direct"]
    assert 0 < np.linalg.norm(left) < 2e-3 * np.linalg.norm(found["direct"])


@pytest.mark.parametrize(("width", "kept", "same"), [(0.5, 2**30, "cg"), (8.0, 2**30, "direct"), (0.5, 1000, "direct")])
def test_landmarks_and_memory_say_whether_factor_rows_are_made(width, kept, same, monkeypatch):
    monkeypatch.setattr(regression, "kept_bytes", lambda: kept)
    found = {}
    for solver in ("auto", "cg", "direct"):
        low = Nystrom(rank=60, landmarks="uniform", solver=solver)
        model = MultiViewRidge(RBF(width), ridge=0.1, approximation=low, decoder=Scores(label_sets=False)).fit(X, Y)
        found[solver] = model.decision_function(X)
    assert [name for name in ("cg", "direct") if (found[name] == found["auto"]).all()] == [same]


@pytest.mark.parametrize(
    "change", [{"ridge": np.full(3, 0.1)}, {"combine": "kernels"}, {"decoder": Scores(label_sets=True)}]
)
def test_what_kernel_values_do_not_give_is_solved_directly_where_the_solver_is_free(change):
    views, found = {"a": X[:, :3], "b": X[:, 3:]}, []
    for solver in ("auto", "direct"):
        low = Nystrom(rank=20, solver=solver)
        model = (
            MultiViewRidge(RBF(0.5), approximation=low, decoder=Scores(label_sets=False))
            .set_params(**change)
            .fit(views, Y)
        )
        found.append(model.decision_function(views))
    np.testing.assert_array_equal(*found)


def test_sparse_rows_have_the_scores_of_the_direct_solve():
    rows = scipy.sparse.random_array((300, 400), density=0.05, format="csr", rng=np.random.default_rng(0))
    found = [
        MultiViewRidge("rbf", approximation=Nystrom(rank=50, solver=solver), decoder=Scores(label_sets=False)).fit(
            rows, Y[:300]
        )
        for solver in ("direct", "cg")
    ]
    np.testing.assert_allclose(found[1].decision_function(rows), found[0].decision_function(rows), atol=1e-3)


def test_single_precision_refuses_landmarks_that_are_near_each_other():
    with pytest.raises(IllConditioned, match="too close together"):
        LandmarkFactors(np.asfortranarray([[1.0, 0.9999], [0.9999, 1.0]], np.float32), 0.0, 0.1)


def test_a_gram_matrix_that_is_a_little_off_is_gone_on_from_and_one_that_is_rounding_is_refused():
    ones, W, _, products = spanned(0.0)
    C, right = ones[:, :-1], ones.T @ Y
    gram = (C - C.mean(axis=0)).T @ (C - C.mean(axis=0))
    near, far = (RowFactors(share * gram, C.sum(axis=0), W, 500, 0.1, True) for share in (1.001, 3.0))
    assert_solved(landmark_ridge(near, products, right, 500, 0.1, tol=1e-8), ones, W, right)
    with pytest.raises(IllConditioned, match="of the right-hand sides"):
        landmark_ridge(far, products, right, 500, 0.1, tol=1e-8)


def spanned(noise):
    """Return the factors of 30 landmarks, and a function whose fast products have relative errors of `noise`."""
    C, W = (gram_matrix(RBF(2.0), np.vstack([A, X[:30]]), np.float64)[0][: len(A), len(A) :] for A in (X, X[:30]))
    ones, rng = np.hstack([C, np.ones((500, 1))]), np.random.default_rng(0)
    factors = LandmarkFactors(W.copy(order="F"), 1e-12, 0.1 * 30 / 500)
    ones = ones[:, [*factors.keep, 30]]

    def products(B, wide):
        image = ones.T @ (ones @ B)
        return image if wide else image * (1 + noise * rng.standard_normal(image.shape))

    return ones, W[np.ix_(factors.keep, factors.keep)], factors, products


def assert_solved(found, ones, W, right):
    """Compare a solution with NumPy's solution of the normal equations."""
    system = ones.T @ ones
    system[:-1, :-1] += 0.1 * W
    np.testing.assert_allclose(ones @ np.vstack(found), ones @ np.linalg.solve(system, right), atol=1e-6)


@pytest.mark.parametrize("labels", [3, 12])  # for many labels, the solver checks linear combinations
def test_steps_by_inexact_products_end_at_a_residual_that_is_exact(labels):
    ones, W, factors, products = spanned(1e-5)
    right = ones.T @ (Y @ np.random.default_rng(0).normal(size=(3, labels)))
    assert_solved(landmark_ridge(factors, products, right, 500, 0.1, tol=1e-8), ones, W, right)


def test_products_that_are_too_inexact_are_told():
    ones, _, factors, products = spanned(1.0)
    with pytest.warns(ConvergenceWarning, match="labels stopped at a relative residual of .*raise the ridge"):
        landmark_ridge(factors, products, ones.T @ Y, 500, 0.1, tol=1e-8)


def test_held_out_scores_come_from_folds():
    low = Nystrom(rank=40, solver="cg")
    model = MultiViewRidge("rbf", approximation=low, decoder=Scores(standardize=0.5)).fit(X, Y)
    assert model.rule_.mean.shape == (Y.shape[1],)
    model = MultiViewRidge("rbf", approximation=low, decoder="f1@2").fit(X, Y)
    assert model.held_out_scores_.shape == Y.shape
    assert model.predict(X).shape == Y.shape


def test_nothing_of_the_landmarks_square_is_there_twice():
    r = 1500
    square = gram_matrix(RBF(3.0), RNG.normal(size=(r, 20)), np.float64)[0].T
    square[:, -3:], square[-3:, :] = square[:, :3].copy(), square[:3, :].copy()  # duplicate landmarks are dropped
    tracemalloc.start()
    factors = LandmarkFactors(square, 1e-9, 1e-3)
    factors.inverse(factors.root(np.ones((r - 3, 2))))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(factors.keep) == r - 3
    assert peak < 0.2 * 8 * r * r


@pytest.mark.parametrize(
    "change",
    [
        {"ridge": np.full(3, 0.1)},
        {"combine": "kernels"},
        {"approximation": {"a": Nystrom(), "b": Nystrom(solver="cg")}},
    ],
)
def test_what_gradients_do_not_take_is_named(change):
    model = MultiViewRidge("rbf", approximation=Nystrom(rank=20, solver="cg")).set_params(**change)
    with pytest.raises(UserError, match="solver='cg'"):
        model.fit({"a": X[:, :3], "b": X[:, 3:]}, Y)


def test_unknown_labels_are_for_the_direct_solve():
    partly = Y.astype(float)
    partly[0, 0] = np.nan
    with pytest.raises(UserError, match="use Nystrom\\(solver='direct'\\)"):
        MultiViewRidge("rbf", approximation=Nystrom(rank=20, solver="cg")).fit(X, partly)


@pytest.mark.parametrize("estimator", [dmo.KGHA(n_components=2), dmo.MORP(n_components=2)])
def test_fits_that_need_factor_rows_refuse_a_solver_that_makes_none(estimator):
    with pytest.raises(UserError, match="view 'x': solver='cg' makes no factor rows"):
        estimator.set_params(approximation=Nystrom(rank=20, solver="cg")).fit({"x": X}, Y)


def test_what_adds_up_moments_of_batches_refuses_too():
    with pytest.raises(UserError, match="use solver='direct'"):
        MultiViewRidge("rbf", approximation=Nystrom(rank=20, solver="cg")).partial_fit(X, Y)


def test_a_sweep_fits_every_setting_by_itself_to_the_scores_of_moments(monkeypatch):
    fits, regress = [], ridge.landmark_regression
    monkeypatch.setattr(ridge, "landmark_regression", lambda *given: (fits.append(given[3]), regress(*given))[1])
    tables = []
    for solver in ("direct", "cg"):
        low = Nystrom(rank=500, landmarks="uniform", precision="float64", solver=solver)  # use all rows of each fold
        model = MultiViewRidge(RBF(1.5), approximation=low, decoder=Scores(label_sets=False))
        found = sweep(model, X, Y, {"ridge": [0.1, 1.0]}, metric="lrap", folds=3, refit=False)
        tables.append([row["mean"] for row in found.table])
    assert sorted(fits) == [0.1] * 3 + [1.0] * 3
    np.testing.assert_allclose(tables[1], tables[0], atol=1e-6)


@pytest.mark.parametrize(("labels", "name"), [(3, "conjugate gradients"), (100, "normal equations")])
def test_the_plan_is_that_of_kernel_values(labels, name):
    views = {"x": RNG.normal(size=(3000, 5)).astype(np.float32)}
    found = plan_fit(MultiViewRidge("rbf", approximation=Nystrom(rank=2000, solver="cg")), views, labels)
    assert found.kernel_bytes == 4 * 3000 * 2000
    assert name in found.storage
