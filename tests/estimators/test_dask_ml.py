"""dask-ml at the border: its wrappers around dmo's estimators, on dask arrays."""

import warnings
from typing import Any

import dask.array as da
import numpy as np
import pytest

from dmo import KGHA, MultiViewRidge

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of dask-ml's own imports
    pytest.importorskip("dask_ml", reason="dask-ml is not installed")
    from dask_ml.model_selection import GridSearchCV
    from dask_ml.preprocessing import StandardScaler
    from dask_ml.wrappers import ParallelPostFit

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
    meta = np.zeros((0, 3), plain.predict(X).dtype)  # without it dask-ml takes one label, and fails
    wrapped = ParallelPostFit(MultiViewRidge("rbf"), predict_meta=meta).fit(X, Y)
    found = wrapped.predict(LAZY)
    np.testing.assert_array_equal(np.concatenate([block.compute() for block in found.blocks]), plain.predict(X))
    with pytest.raises(ValueError, match="could not broadcast"):
        np.asarray(found)  # dask-ml gives the blocks one dimension


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
