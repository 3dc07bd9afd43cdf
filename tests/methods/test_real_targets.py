"""Check that real targets are predicted in their units, scored by R2 and supported by scikit-learn's tools."""

from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from cases import checked_by_scikit_learn
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.datasets import load_diabetes
from sklearn.ensemble import StackingRegressor
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, cross_val_score

import dmo
from dmo import KGHA, LLTSVR, MLSI, MORP, CoupledSVR, MultiViewRidge, Nystrom, Solver, UserError
from dmo.decoders import Scores
from dmo.kernels import RBF

RNG = np.random.default_rng(0)
N = 90
X = RNG.standard_normal((N, 5))
UNITS, OFFSETS = np.array([1.0, 1e3, 1e-3]), np.array([5.0, 1e6, 0.0])
Y = X @ RNG.standard_normal((5, 3)) * UNITS + OFFSETS + 0.2 * RNG.standard_normal((N, 3)) * UNITS
NEW = RNG.standard_normal((20, 5))


# Use a tight tolerance, because scikit-learn compares repeated rows to within 1e-7.
@checked_by_scikit_learn(
    [MultiViewRidge(targets="real"), KGHA(n_components=1.0, targets="real", solver=Solver(tol=1e-12))]
)
def test_scikit_learn_contract_of_regressors(estimator, check):
    check(estimator)


def test_ridge_is_scikit_learns():
    expected = Ridge(alpha=2.0).fit(X, Y).predict(NEW)
    for approximation in ("exact", Nystrom(rank=5)):
        model = MultiViewRidge("linear", ridge=2.0, approximation=approximation).fit(X, Y)
        assert_allclose((model.predict(NEW) - expected) / UNITS, 0, atol=1e-7)
        assert model.score(X, Y) == r2_score(Y, model.predict(X))
    mean, deviation = Y.mean(axis=0), Y.std(axis=0)
    kernel = MultiViewRidge(RBF(bandwidth=2.0), ridge=0.5, center=False).fit(X, Y)
    plain = KernelRidge(alpha=0.5, kernel="rbf", gamma=1 / 8).fit(X, (Y - mean) / deviation)
    assert_allclose(kernel.predict(NEW), plain.predict(NEW) * deviation + mean, rtol=1e-6)


def test_weights_and_unknown_entries():
    weights = RNG.integers(0, 4, N)
    model = MultiViewRidge("linear", ridge=2.0).fit(X, Y, sample_weight=weights)
    expected = Ridge(alpha=2.0).fit(X, Y, sample_weight=weights).predict(NEW)
    assert_allclose((model.predict(NEW) - expected) / UNITS, 0, atol=1e-6)
    gaps = np.where(RNG.random(Y.shape) < 0.3, np.nan, Y)
    model = MultiViewRidge("linear", ridge=2.0).fit(X, gaps)
    for j in range(3):
        known = ~np.isnan(gaps[:, j])
        alone = Ridge(alpha=2.0).fit(X[known], gaps[known, j]).predict(NEW)
        assert_allclose((model.predict(NEW)[:, j] - alone) / UNITS[j], 0, atol=1e-5)


@pytest.mark.parametrize("approximation", ["exact", Nystrom(rank=5)], ids=["exact", "moments"])
def test_the_space_of_all_directions_predicts_what_regression_does(approximation):
    settings = {"ridge": 1e-6, "balance": 1e-4, "n_components": 1.0}
    model = KGHA("linear", approximation=approximation, **settings).fit(X, Y)
    assert_allclose((model.predict(NEW) - LinearRegression().fit(X, Y).predict(NEW)) / UNITS, 0, atol=1e-3)
    assert model.transform(NEW).shape == (20, 3)
    in_other_units = clone(model).fit(X, Y * 50 - 3)
    assert_allclose(in_other_units.predict(NEW), model.predict(NEW) * 50 - 3, rtol=1e-6, atol=1e-3)


def test_further_rows_and_models_on_disk(tmp_path):
    for model in (
        MultiViewRidge("linear", approximation=Nystrom(rank=5)),
        KGHA("linear", approximation=Nystrom(rank=5)),
    ):
        whole = clone(model).partial_fit(X, Y)
        parts = clone(model).partial_fit(X[:50], Y[:50]).partial_fit(X[50:], Y[50:])
        if isinstance(model, MultiViewRidge):  # in KGHA, the scale of the targets changes the effective ridge
            assert_allclose((parts.predict(NEW) - whole.predict(NEW)) / UNITS, 0, atol=1e-6)
        parts.save(str(tmp_path / "m.zarr"))
        back = dmo.load(str(tmp_path / "m.zarr"))
        assert_array_equal(back.predict(NEW), parts.predict(NEW))
        assert_allclose(back.partial_fit(NEW, NEW[:, :3]).predict(NEW), parts.partial_fit(NEW, NEW[:, :3]).predict(NEW))


def test_what_is_real_is_told_from_labels():
    frame = pd.DataFrame(Y, columns=["red", "green", "blue"])
    counts = RNG.integers(0, 5, (N, 3))
    model = MultiViewRidge()
    assert (is_classifier(model), is_regressor(model)) == (True, False)
    model.fit(X, frame)
    assert (is_classifier(model), is_regressor(model), model.label_names_) == (False, True, ["red", "green", "blue"])
    assert not hasattr(model, "decision_function")
    assert not hasattr(model, "classes_")
    assert MultiViewRidge().fit(X, counts.astype(float)).predict(NEW).shape == (20, 3)
    assert MultiViewRidge(targets="real").fit(X, counts).predict(NEW).shape == (20, 3)
    assert MultiViewRidge(targets="real").fit(X, Y[:, 0]).predict(NEW).shape == (20,)
    assert is_classifier(model.fit(X, (Y > OFFSETS).astype(float)))
    assert model.predict(NEW).dtype == float
    for y, settings, message in (
        (counts, {}, "labels must be 0 or 1, got .*; binarize them first, or pass targets='real'"),
        (Y[:, 0], {}, "Unknown label type: continuous; pass targets='real' for regression"),
        (Y, {"targets": "labels"}, "labels must be 0 or 1"),
        (Y, {"decoder": Scores(prior_power=0.5)}, "prior_power = 0.5 applies to labels, but y has regression targets"),
        (Y, {"decoder": "f1@2"}, "decoder = 'f1@2' applies to labels"),
        (Y, {"targets": "all"}, "targets = 'all'; known"),
    ):
        with pytest.raises(UserError, match=f"MultiViewRidge: {message}"):
            MultiViewRidge(**settings).fit(X, y)
    with pytest.raises(UserError, match="top and as_names apply to labels"):
        MultiViewRidge().fit(X, Y).predict(X, top=2)
    with pytest.raises(UserError, match="y has 2 targets, expected 3 as in the fit"):
        MultiViewRidge(approximation=Nystrom(rank=5)).partial_fit(X, Y).partial_fit(X, Y[:, :2])


def test_a_space_of_outputs_of_which_some_are_unknown_predicts_nearly_as_that_of_all():
    partly = np.where(np.random.default_rng(3).random(Y.shape) < 0.2, np.nan, Y)
    some, whole = (KGHA("linear", n_components=1.0).fit(X, outputs).predict(NEW) for outputs in (partly, Y))
    means = np.broadcast_to(Y.mean(axis=0), whole.shape)
    assert r2_score(whole, some) > 0.9 > r2_score(whole, means)


REGRESSORS: list[Any] = [MultiViewRidge("linear", targets="real"), KGHA("linear", n_components=1.0, targets="real")]
REGRESSORS += [LLTSVR("linear", C=100.0, tol=1e-3), CoupledSVR("linear", C=100.0, tol=1e-3)]


@pytest.mark.parametrize("model", REGRESSORS, ids=lambda m: type(m).__name__)
def test_scikit_learn_s_tools_for_regressors_take_ours(model):
    A, y = load_diabetes(return_X_y=True)
    A, y = A[:150] / A[:150].std(axis=0), y[:150] / 100
    assert is_regressor(model)
    found = cross_val_score(model, A, y, scoring="r2", cv=3)
    assert_allclose(found, cross_val_score(model, A, y, cv=3))
    assert found.mean() > 0.25
    scaled = Y / UNITS - OFFSETS / UNITS
    assert (
        GridSearchCV(model, {"kernel": ["linear"]}, scoring="neg_mean_absolute_error", cv=3).fit(X, scaled).best_score_
        < 0
    )
    stacked = StackingRegressor([("one", clone(model)), ("two", Ridge())], cv=3).fit(A, y)
    assert stacked.score(A, y) > 0.3
    lazy = clone(model).fit(X, scaled).predict(da.from_array(NEW, chunks=(7, 5)))
    assert_allclose(lazy.compute(), clone(model).fit(X, scaled).predict(NEW))


@pytest.mark.parametrize(
    "model", [MORP("linear", n_components=4), MLSI(n_components=4)], ids=lambda m: type(m).__name__
)
def test_projections_predict_what_they_decode(model, tmp_path):
    scaled = Y / UNITS
    for y, shape, score in (
        (scaled, (20, 3), r2_score),
        (scaled[:, 0], (20,), r2_score),
        (
            np.array(["a", "b", "c"])[np.digitize(X[:, 0], [-0.5, 0.5])],
            (20,),
            lambda true, found: np.mean(true == found),
        ),
        ((Y > OFFSETS).astype(np.uint8), (20, 3), None),
    ):
        fitted = clone(model).fit(X, y)
        assert fitted.predict(NEW).shape == shape
        assert fitted.score(X, y) > 0.6
        if score is not None:
            assert_allclose(fitted.score(X, y), score(y, fitted.predict(X)))
        fitted.save(str(tmp_path / "m.zarr"))
        assert_array_equal(dmo.load(str(tmp_path / "m.zarr")).predict(NEW), fitted.predict(NEW))
        lazy = fitted.predict(da.from_array(NEW, chunks=(7, 5)))
        assert lazy.shape == shape
        same = assert_allclose if score is r2_score else assert_array_equal  # chunks change the last digits
        same(lazy.compute(), fitted.predict(NEW))
