"""Use dmo estimators inside the wrappers of dask-ml, with dask arrays as input."""

import warnings
from typing import Any

import dask.array as da
import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import make_pipeline

from dmo import KGHA, MORP, MultiViewRidge, Nystrom, Views

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # dask-ml warns when it is imported
    pytest.importorskip("dask_ml", reason="dask-ml is not installed")
    from dask_ml.decomposition import PCA, TruncatedSVD
    from dask_ml.model_selection import GridSearchCV, HyperbandSearchCV, RandomizedSearchCV, train_test_split
    from dask_ml.preprocessing import MinMaxScaler, QuantileTransformer, RobustScaler, StandardScaler
    from dask_ml.wrappers import Incremental, ParallelPostFit

RNG = np.random.default_rng(0)
X = RNG.standard_normal((120, 6))
Y = (X @ RNG.standard_normal((6, 3)) > 0).astype(np.uint8)
LAZY = da.from_array(X, chunks=(30, 6))


def test_parallel_post_fit_transforms_and_scores_block_by_block() -> None:
    plain = KGHA("rbf", n_components=2).fit(X, Y)
    wrapped = ParallelPostFit(KGHA("rbf", n_components=2)).fit(X, Y)
    found = wrapped.transform(LAZY)
    assert isinstance(found, da.Array)
    assert found.chunks[0] == (30, 30, 30, 30)
    np.testing.assert_allclose(found.compute(), plain.transform(X), atol=1e-10)


def test_scores_of_several_labels_come_by_blocks() -> None:
    plain = MultiViewRidge("rbf").fit(X, Y)
    meta = np.zeros((0, 3), plain.predict(X).dtype)  # without `predict_meta`, dask-ml assumes a single label and fails
    wrapped = ParallelPostFit(MultiViewRidge("rbf"), predict_meta=meta).fit(X, Y)
    found = wrapped.predict(LAZY)
    np.testing.assert_array_equal(np.concatenate([block.compute() for block in found.blocks]), plain.predict(X))
    with pytest.raises(ValueError, match="could not broadcast"):
        np.asarray(found)  # dask-ml declares one-dimensional blocks


def test_a_dask_scaler_goes_before_an_estimator() -> None:
    scaled = StandardScaler().fit_transform(LAZY * 7 + 3)
    plain = (X - X.mean(axis=0)) / X.std(axis=0)
    found = MultiViewRidge("rbf").fit(scaled, Y).decision_function(scaled)
    np.testing.assert_allclose(found, MultiViewRidge("rbf").fit(plain, Y).decision_function(plain), atol=1e-8)


def test_a_grid_search_finds_what_scikit_learns_finds() -> None:
    from sklearn.model_selection import GridSearchCV as Plain

    grid: dict[str, Any] = {"ridge": [1e-2, 1.0, 100.0]}
    found = GridSearchCV(MultiViewRidge("rbf"), grid, cv=3, scheduler="sync").fit(X, Y)
    expected = Plain(MultiViewRidge("rbf"), grid, cv=3).fit(X, Y)
    assert found.best_params_ == expected.best_params_
    np.testing.assert_allclose(found.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"])
    assert len(set(expected.cv_results_["mean_test_score"])) == 3  # three labels cannot change F1@5


@pytest.mark.parametrize("before", [MinMaxScaler(), RobustScaler(), QuantileTransformer(n_quantiles=50)], ids=repr)
def test_dask_ml_s_preprocessing_goes_before_ours(before: Any) -> None:
    rows = before.fit_transform(LAZY)
    lazy, plain = MultiViewRidge("rbf").fit(rows, Y), MultiViewRidge("rbf").fit(rows.compute(), Y)
    found = lazy.decision_function(rows)
    assert isinstance(found, da.Array)
    np.testing.assert_allclose(found.compute(), plain.decision_function(rows.compute()), atol=1e-8)


@pytest.mark.parametrize("before", [PCA(n_components=4), TruncatedSVD(n_components=4)], ids=repr)
def test_dask_ml_s_decompositions_go_before_ours_in_a_pipeline(before: Any) -> None:
    piped = make_pipeline(before, KGHA("rbf", n_components=2)).fit(LAZY, Y)
    found = piped.transform(LAZY)
    assert isinstance(found, da.Array)
    rows = before.transform(LAZY).compute()
    np.testing.assert_allclose(found.compute(), KGHA("rbf", n_components=2).fit(rows, Y).transform(rows), atol=1e-6)


def test_blocks_that_dask_ml_splits_are_learned() -> None:
    targets = da.from_array(Y, chunks=(30, 3))
    old, new, Y_old, Y_new = train_test_split(LAZY, targets, test_size=0.25, random_state=0, shuffle=True)
    model = MultiViewRidge("linear").fit(old, Y_old)
    assert isinstance(model.predict(new), da.Array)
    plain = MultiViewRidge("linear").fit(old.compute(), Y_old.compute())
    assert model.score(new, Y_new) == plain.score(new.compute(), Y_new.compute())


def test_a_randomized_search_over_views_finds_what_scikit_learn_s_finds() -> None:
    from sklearn.model_selection import RandomizedSearchCV as Plain

    views, grid = Views({"a": X[:, :3], "b": X[:, 3:]}), {"ridge": [1e-2, 1.0, 100.0]}
    found = RandomizedSearchCV(MultiViewRidge(), grid, n_iter=3, cv=3, scheduler="sync", random_state=0).fit(views, Y)
    expected = Plain(MultiViewRidge(), grid, n_iter=3, cv=3, random_state=0).fit(views, Y)
    scores = [dict(zip(s.cv_results_["param_ridge"], s.cv_results_["mean_test_score"])) for s in (found, expected)]
    assert scores[0] == pytest.approx(scores[1])


@pytest.mark.parametrize("model", [MORP(), KGHA("rbf", n_components=2)], ids=["MORP", "KGHA"])
def test_what_a_wrapper_does_ours_do_by_themselves(model: Any) -> None:
    fitted = model.fit(X, Y)
    wrapped = ParallelPostFit(fitted).transform(LAZY)
    assert fitted.transform(LAZY).chunks[0] == wrapped.chunks[0]
    assert fitted.transform(LAZY).shape == (120, 2)
    assert wrapped.shape == (120, 6)  # dask-ml wrongly declares as many result columns as X has
    np.testing.assert_allclose(fitted.transform(LAZY).compute(), wrapped.compute())


BROKEN = "its search computes by a synchronous call on an asynchronous client, which distributed refuses"
COUNTERPART = MultiViewRidge("linear", approximation=Nystrom(rank=6))


@pytest.mark.parametrize("model", [SGDClassifier(random_state=0), COUNTERPART], ids=["SGDClassifier", "ours"])
@pytest.mark.xfail(reason=BROKEN, strict=True, raises=RuntimeError)
def test_hyperband_searches(model: Any, client: Any) -> None:
    y = Y[:, 0].astype(int)
    grid = {"alpha": [1e-4, 1e-3, 1e-2, 0.1]} if isinstance(model, SGDClassifier) else {"ridge": [1e-2, 0.1, 1.0, 10.0]}
    with client.as_current():
        HyperbandSearchCV(model, grid, max_iter=3, random_state=0).fit(
            LAZY, da.from_array(y, chunks=30), classes=[0, 1]
        )


@pytest.mark.xfail(reason="dask-ml's Incremental passes blocks of y without their columns", strict=True)
def test_incremental_learns_labels() -> None:
    targets = da.from_array(Y, chunks=(30, 3))
    found = Incremental(COUNTERPART).fit(LAZY, targets)
    assert found.predict(X).shape == Y.shape


def test_in_place_of_incremental_blocks_go_to_partial_fit() -> None:
    model = MultiViewRidge("linear", approximation=Nystrom(rank=6))
    for rows, labels in zip(LAZY.blocks, da.from_array(Y, chunks=(30, 3)).blocks):
        model.partial_fit(rows, labels)
    whole = MultiViewRidge("linear", approximation=Nystrom(rank=6)).fit(X, Y)
    np.testing.assert_allclose(model.decision_function(X), whole.decision_function(X), atol=1e-6)
