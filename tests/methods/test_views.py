"""Check that tools of scikit-learn and dask-ml split, search and score `Views` as explicit loops do."""

import warnings
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import zarr
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.inspection import permutation_importance
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    KFold,
    RandomizedSearchCV,
    cross_val_score,
    cross_validate,
    learning_curve,
    train_test_split,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import _safe_indexing

import dmo
from dmo import (
    JEC,
    KGHA,
    LLTSVR,
    CoupledSVR,
    FastTag,
    MultiSetCCA,
    MultiViewRidge,
    NeighborVotes,
    Prepare,
    TagProp,
    UserError,
    Views,
)
from dmo.decoders import Scores
from dmo.stores import ViewSpec, create_features, open_features

RNG = np.random.default_rng(0)
N = 60
A, B = RNG.standard_normal((N, 8)), RNG.random((N, 5))
Y = ((A @ RNG.standard_normal((8, 4)) + RNG.standard_normal((N, 4))) > 0).astype(np.uint8)
y = Y[:, 0].astype(int)
VIEWS = {"gist": A, "hue": B}
WHOLE = np.hstack([A, B])
FRAME = pd.DataFrame(
    WHOLE, columns=pd.MultiIndex.from_tuples([("gist", i) for i in range(8)] + [("hue", i) for i in "abcde"])
)
NAMED = pd.DataFrame(WHOLE, columns=[f"g{i}" for i in range(8)] + list("abcde"))
SLICES = {"gist": slice(0, 8), "hue": slice(8, None)}
NAMES = {"gist": [f"g{i}" for i in range(8)], "hue": list("abcde")}

GIVEN: dict[str, tuple[Any, Any]] = {  # pairs of X and the parameter `views`
    "Views": (Views(VIEWS), None),
    "DataFrame of two levels": (FRAME, None),
    "array and slices": (WHOLE, SLICES),
    "sparse array and slices": (scipy.sparse.csr_array(WHOLE), SLICES),
    "DataFrame and names": (NAMED, NAMES),
}


def _rows(views: dict[str, Any], index: np.ndarray) -> dict[str, Any]:
    return {name: view[index] for name, view in views.items()}


_KNOWN: dict[str, np.ndarray] = {}


def _by_hand(model: Any) -> np.ndarray:
    """Compute cross-validation scores with an explicit loop over a mapping of views."""
    if repr(model) not in _KNOWN:
        _KNOWN[repr(model)] = np.array(
            [
                clone(model).fit(_rows(VIEWS, old), Y[old]).score(_rows(VIEWS, new), Y[new])
                for old, new in KFold(3).split(A)
            ]
        )
    return _KNOWN[repr(model)]


@pytest.mark.slow
@pytest.mark.parametrize("case", GIVEN)
@pytest.mark.parametrize(
    "model", [KGHA(n_components=2), MultiViewRidge(), JEC(), TagProp()], ids=lambda m: type(m).__name__
)
def test_cross_validation_over_views_is_the_loop_over_a_mapping(model, case):
    X, columns = GIVEN[case]
    assert_allclose(
        cross_val_score(clone(model).set_params(prepare__views=columns), X, Y, cv=KFold(3)), _by_hand(model)
    )


@pytest.mark.slow
@pytest.mark.parametrize("case", GIVEN)
def test_searches_and_splits_over_views(case):
    X, columns = GIVEN[case]
    model, grid = MultiViewRidge(prepare=Prepare(views=columns)), {"ridge": [0.01, 1.0, 100.0]}
    expected = [_by_hand(MultiViewRidge(ridge=c)).mean() for c in grid["ridge"]]
    for search in (GridSearchCV(model, grid, cv=KFold(3)), RandomizedSearchCV(model, grid, n_iter=3, cv=KFold(3))):
        search.fit(X, Y)
        found = dict(zip(search.cv_results_["param_ridge"], search.cv_results_["mean_test_score"], strict=True))
        assert_allclose([found[c] for c in grid["ridge"]], expected)
        assert_array_equal(search.predict(X), clone(model).set_params(**search.best_params_).fit(X, Y).predict(X))
    halving = HalvingGridSearchCV(model, grid, cv=3, min_resources=24, random_state=0).fit(X, y)
    assert halving.n_resources_[0] == 24
    assert set(cross_validate(model, X, Y, cv=2)) == {"fit_time", "score_time", "test_score"}
    _, _, held = learning_curve(model, X, Y, cv=KFold(3), train_sizes=[0.5, 1.0])
    assert_allclose(held[-1], _by_hand(MultiViewRidge()))
    old, new, Y_old, Y_new = train_test_split(X, Y, test_size=0.25, random_state=0)
    index_old, index_new = train_test_split(np.arange(N), test_size=0.25, random_state=0)
    plain = MultiViewRidge().fit(_rows(VIEWS, index_old), Y_old)
    assert clone(model).fit(old, Y_old).score(new, Y_new) == plain.score(_rows(VIEWS, index_new), Y_new)


@pytest.mark.parametrize("case", [case for case in GIVEN if not case.startswith("sparse")])
def test_importance_of_the_columns_of_views(case):
    X, columns = GIVEN[case]
    model = MultiViewRidge("linear", prepare=Prepare(views=columns)).fit(X, y)
    found = permutation_importance(model, X, y, n_repeats=2, random_state=0).importances_mean
    plain = MultiViewRidge("linear", prepare=Prepare(views=SLICES)).fit(WHOLE, y)
    assert found.shape == (13,)
    assert_allclose(found, permutation_importance(plain, WHOLE, y, n_repeats=2, random_state=0).importances_mean)


def test_pipelines_and_column_transformers_go_before_views():
    scale = ColumnTransformer([("gist", StandardScaler(), NAMES["gist"]), ("hue", "passthrough", NAMES["hue"])])
    piped = make_pipeline(scale, KGHA(n_components=2, prepare=Prepare(views=SLICES))).fit(NAMED, Y)
    plain = KGHA(n_components=2).fit({"gist": (A - A.mean(axis=0)) / A.std(axis=0), "hue": B}, Y)
    assert_array_equal(piped.predict(NAMED), plain.predict({"gist": (A - A.mean(axis=0)) / A.std(axis=0), "hue": B}))
    named = make_pipeline(
        scale.set_output(transform="pandas"),
        KGHA(
            n_components=2,
            prepare=Prepare(views={"gist": [f"gist__g{i}" for i in range(8)], "hue": [f"hue__{c}" for c in "abcde"]}),
        ),
    ).fit(NAMED, Y)
    assert_array_equal(named.predict(NAMED), piped.predict(NAMED))
    space = make_pipeline(MultiSetCCA(n_components=3), StandardScaler()).fit(Views(VIEWS))
    assert space.transform(Views(VIEWS)).shape == (N, 3)


def test_dask_ml_searches_over_views():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # dask-ml warns when it is imported
        dask_ml = pytest.importorskip("dask_ml.model_selection", reason="dask-ml is not installed")
    grid = {"ridge": [0.01, 1.0, 100.0]}
    for X, columns in (GIVEN["Views"], GIVEN["array and slices"]):
        search = dask_ml.GridSearchCV(
            MultiViewRidge(prepare=Prepare(views=columns)), grid, cv=KFold(3), scheduler="sync"
        ).fit(X, Y)
        expected = [_by_hand(MultiViewRidge(ridge=c)).mean() for c in grid["ridge"]]
        assert_allclose(search.cv_results_["mean_test_score"], expected)


SOURCES = {
    "mapping": lambda folder: VIEWS,
    "sparse": lambda folder: {name: scipy.sparse.csc_array(view) for name, view in VIEWS.items()},
    "DataFrames": lambda folder: {name: pd.DataFrame(view) for name, view in VIEWS.items()},
    "dask": lambda folder: {name: da.from_array(view, chunks=(17, -1)) for name, view in VIEWS.items()},
    "Zarr": lambda folder: {name: zarr.array(view, chunks=(13, 4)) for name, view in VIEWS.items()},
    "store": lambda folder: _store(folder),
    "Dataset": lambda folder: _dataset(),
}


def _store(folder: Any) -> Any:
    writer = create_features(
        str(folder / "f.zarr"), N, {k: ViewSpec(v.shape[1], "float64") for k, v in VIEWS.items()}, block=16
    )
    for name, view in VIEWS.items():
        for block in range(writer.n_blocks):
            writer.write(name, block, view[writer.rows(block)])
    writer.finish()
    return open_features(str(folder / "f.zarr"))


def _dataset() -> Any:
    xr = pytest.importorskip("xarray")
    arrays: dict[str, Any] = {name: (("sample", f"{name}_feature"), view) for name, view in VIEWS.items()}
    return xr.Dataset(arrays | {"labels": (("sample", "label"), Y)})


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("key", [slice(3, 40, 2), [5, 2, 2, 59], RNG.random(N) < 0.5, np.array([7])], ids=repr)
def test_rows_of_views_are_those_of_each(source, key, tmp_path):
    views = Views(SOURCES[source](tmp_path))
    assert (views.keys(), len(views), views.shape) == (["gist", "hue"], N, (N, 13))
    assert_allclose(np.asarray(views), WHOLE)
    part = _safe_indexing(views, key)
    assert_allclose(np.asarray(part), WHOLE[key])
    assert_allclose(np.asarray(part[[0]]), WHOLE[key][[0]])
    assert_array_equal(
        MultiViewRidge().fit(views, Y).predict(part), MultiViewRidge().fit(VIEWS, Y).predict(_rows(VIEWS, key))
    )


def test_a_model_keeps_which_columns_are_its_views(tmp_path):
    for columns, X in ((SLICES, WHOLE), (NAMES, NAMED), ({"gist": range(8), "hue": [8, 9, 10, 11, 12]}, WHOLE)):
        model = MultiViewRidge({"gist": "rbf", "hue": "chi2"}, prepare=Prepare(views=columns)).fit(X, Y)
        model.save(str(tmp_path / "m.zarr"))
        assert_array_equal(dmo.load(str(tmp_path / "m.zarr")).decision_function(X), model.decision_function(X))
        assert_allclose(model.decision_function(VIEWS), model.decision_function(X))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Views(A), "Views: got one array without names of views; pass a mapping"),
        (lambda: Views({}), "Views: no views; pass at least one"),
        (lambda: Views({"a": A, "b": B[:50]}), "the views have unequal rows {'a': 60, 'b': 50}"),
        (lambda: Views(VIEWS)[:, 2], "only rows can be picked"),
        (lambda: Views(VIEWS, SLICES), "X already has views"),
        (lambda: Views(WHOLE, {"a": ["g0"]}), "view 'a' has column names, but X is not a DataFrame"),
        (lambda: Views(NAMED, {"a": ["nose"]}), "view 'a': X does not have these columns"),
        (lambda: Views(WHOLE, {"a": [40]}), "view 'a': X does not have these columns .* pass some of its 13"),
        (
            lambda: MultiViewRidge(prepare=Prepare(views="gist")).fit(WHOLE, Y),
            "MultiViewRidge: views = 'gist'; pass a mapping",
        ),
        (lambda: MultiViewRidge().fit(Views(VIEWS), Y).predict(WHOLE[:, :12]), "MultiViewRidge: .*gist.* is missing"),
    ],
)
def test_what_are_no_views_is_told(make, message):
    with pytest.raises(UserError, match=message):
        make()


WITHOUT_SETS = Scores(label_sets=False)
OF_COLUMNS: dict[str, Any] = {  # estimators that split the columns of one array into views
    "NeighborVotes": lambda columns: NeighborVotes(MultiViewRidge(prepare=Prepare(views=columns))),
    "FastTag": lambda columns: FastTag(MultiViewRidge(prepare=Prepare(views=columns))),
    "LLTSVR": lambda columns: LLTSVR(tol=1e-3, decoder=WITHOUT_SETS, prepare=Prepare(views=columns)),
    "CoupledSVR": lambda columns: CoupledSVR(tol=1e-3, decoder=WITHOUT_SETS, prepare=Prepare(views=columns)),
}


@pytest.mark.parametrize("name", OF_COLUMNS)
def test_estimators_on_a_base_and_regressions_cut_one_array_into_views(name, tmp_path):
    plain = OF_COLUMNS[name](None).fit(VIEWS, Y)
    for columns, X in ((SLICES, WHOLE), (NAMES, NAMED)):
        model = OF_COLUMNS[name](columns).fit(X, Y)
        model.save(str(tmp_path / "m.zarr"))
        assert_allclose(model.predict(X), plain.predict(VIEWS), atol=1e-6)
        assert_array_equal(dmo.load(str(tmp_path / "m.zarr")).predict(X), model.predict(X))


def test_what_a_base_says_of_its_rows_holds_from_the_first_fit_on(tmp_path):
    gappy = A.copy()
    gappy[0, 0] = np.nan
    model = NeighborVotes(MultiViewRidge()).fit(A, Y).set_params(base=MultiViewRidge(prepare=Prepare(impute="mean")))
    assert np.isfinite(model.fit(gappy, Y).decision_function(gappy)).all()
    MultiViewRidge(prepare=Prepare(impute="mean")).fit(gappy, Y).save(str(tmp_path / "base.zarr"))
    assert NeighborVotes(str(tmp_path / "base.zarr")).fit(gappy, Y)._prepare.impute == "mean"
