"""Compare imputation and scaling of columns with scikit-learn's transformers."""

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, Normalizer, StandardScaler

import dmo
from dmo import KGHA, MORP, MultiViewRidge, NeighborVotes, Nystrom, Prepare, UserError
from dmo.inputs import check_raw_views, check_views, prepare_views
from dmo.selection import sweep

RNG = np.random.default_rng(0)
N, D = 300, 6
WILD = RNG.normal(size=(N, D)) * 10.0 ** np.arange(-3, 3) + 5
WILD[:, 3] = 7.0  # this column is constant
Y = (RNG.random((N, 4)) < 0.3) | (WILD[:, :4] > 5)
GAPS = np.where(RNG.random((N, D)) < 0.1, np.nan, WILD)
SCALERS = {"standard": StandardScaler(), "maxabs": MaxAbsScaler(), "l2": Normalizer(), "none": "passthrough"}


def prepared(X, X2, scale="none", impute=None):
    """Return the training rows and new rows after the preparation by an estimator."""
    model = KGHA(prepare=Prepare(scale=scale, impute=impute))
    return [np.asarray(check_views(model, part, reset)["x"][:]) for part, reset in ((X, True), (X2, False))]


@pytest.mark.parametrize("scale", SCALERS)
@pytest.mark.parametrize("lazy", [False, True])
def test_scales_are_those_of_scikit_learn(scale, lazy):
    given = [da.from_array(part, chunks=(70, -1)) if lazy else part for part in (WILD[:200], WILD[200:])]
    found = prepared(*given, scale)
    oracle = make_pipeline(SCALERS[scale]).fit(WILD[:200])
    for own, rows in zip(found, (WILD[:200], WILD[200:])):
        np.testing.assert_allclose(own, oracle.transform(rows), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scale", ["standard", "maxabs", "l2"])
def test_sparse_rows_stay_sparse_and_are_not_centered(scale):
    X = scipy.sparse.random_array((80, 9), density=0.3, rng=RNG, format="csr")
    model = KGHA(prepare=scale)
    found = check_views(model, X, True)["x"]
    oracle = {"standard": StandardScaler(with_mean=False), "maxabs": MaxAbsScaler(), "l2": Normalizer()}[scale]
    assert scipy.sparse.issparse(found)
    np.testing.assert_allclose(found.toarray(), oracle.fit_transform(X).toarray(), rtol=1e-9)


@pytest.mark.parametrize("fill", ["mean", "median", "zero"])
@pytest.mark.parametrize("indicator", [False, True])
@pytest.mark.parametrize("lazy", [False, True])
def test_gaps_are_filled_as_by_scikit_learn(fill, indicator, lazy):
    X = GAPS.copy()
    X[:200, 2] = WILD[:200, 2]  # no indicator is added if only new rows have missing values
    given = [da.from_array(part, chunks=(70, -1)) if lazy else part for part in (X[:200], X[200:])]
    found = prepared(*given, "none", fill + "+indicator" * indicator)
    how = {"strategy": "constant", "fill_value": 0.0} if fill == "zero" else {"strategy": fill}
    oracle = SimpleImputer(**how, add_indicator=indicator).fit(X[:200])
    for own, rows in zip(found, (X[:200], X[200:])):
        np.testing.assert_allclose(own, oracle.transform(rows), rtol=1e-12)


def test_a_view_is_standardized_by_itself_where_its_columns_are_far_apart():
    rare = np.where(RNG.random((N, D)) < 0.8, 0.0, WILD * np.array([1, 1, 1, 1, 1, 100]))
    views = {
        "wild": WILD,
        "tame": RNG.normal(size=(N, 3)),
        "sparse": scipy.sparse.csr_array(rare),
    }
    model = MultiViewRidge()
    check_views(model, views, True)
    assert {view: found.scale for view, found in model.preparations_.items()} == {
        "wild": "standard",
        "sparse": "maxabs",
    }
    for kernel in ("l2-rbf", "chi2", "hellinger-rbf", "precomputed", "cosine"):  # these kernels use unscaled rows
        model = MultiViewRidge(kernel)
        check_views(model, np.abs(WILD), True)
        assert not model.preparations_


def test_standardizing_is_the_same_as_a_scaler_before_the_estimator():
    new = WILD[:20] + 0.1
    scaled = StandardScaler().fit(WILD)
    for kind in (KGHA, MultiViewRidge):
        own = kind("linear", ridge=0.1).fit(WILD, Y).decision_function(new)
        before = kind("linear", ridge=0.1, prepare="none").fit(scaled.transform(WILD), Y)
        np.testing.assert_allclose(own, before.decision_function(scaled.transform(new)), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    "model",
    [
        KGHA(),
        MultiViewRidge(approximation=Nystrom(rank=20)),
        MORP(),
        NeighborVotes(MultiViewRidge(prepare=Prepare(impute="mean"))),
    ],
)
def test_scale_and_gaps_go_with_the_model_into_its_store(model, tmp_path):
    if "prepare" in model.get_params():
        model.set_params(prepare__impute="mean+indicator", prepare__scale="standard")
    model.fit(GAPS, Y)
    model.save(str(tmp_path / "m.zarr"))
    again = dmo.load(str(tmp_path / "m.zarr"))
    apply = "decision_function" if hasattr(model, "decision_function") else "transform"
    expected = getattr(model, apply)(GAPS[:30])
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(getattr(again, apply)(GAPS[:30]), expected, rtol=1e-10)


def test_missing_cells_are_refused_with_the_name_of_the_column_and_its_share():
    X = pd.DataFrame(WILD.copy(), columns=[f"c{j}" for j in range(D)])
    X.loc[::10, "c4"] = np.nan
    with pytest.raises(
        UserError,
        match=r"row 0, column 4 \('c4'\) \(10% of the rows are NaN there\); pass prepare=Prepare\(impute='mean'",
    ):
        MultiViewRidge().fit(X, Y)
    with pytest.raises(UserError, match=r"impute = 'mode'; known: .*, or None"):
        MultiViewRidge(prepare=Prepare(impute="mode")).fit(X, Y)
    with pytest.raises(UserError, match="has inf at row 1"):
        MultiViewRidge(prepare=Prepare(impute="mean")).fit(np.where(np.arange(N)[:, None] == 1, np.inf, WILD), Y)


def test_a_row_without_any_cell_is_not_made_up():
    X = GAPS.copy()
    X[5] = np.nan
    with pytest.raises(UserError, match="view 'x' has NaN at row 5"):
        MultiViewRidge(prepare=Prepare(impute="mean")).fit(X, Y)


def test_sweeps_choose_the_scale():
    X = WILD.copy()
    X[:, 5] *= 100
    labels = (StandardScaler().fit_transform(X)[:, :3] > 0).astype(int)
    found = sweep(
        MultiViewRidge(), X, labels, {"prepare__scale": ["none", "standard"], "ridge": [0.1, 1.0]}, metric="f1@1"
    )
    assert found.best_params["prepare__scale"] == "standard"


def test_samples_that_a_view_lacks_say_nothing_of_its_scale():
    lacking = np.arange(N) % 7 == 0
    a = np.where(lacking[:, None], np.nan, GAPS)
    model = KGHA("linear", ridge=1.0, prepare=Prepare(scale="standard", impute="mean")).fit(
        {"a": a, "b": WILD[:, :2]}, Y
    )
    known = KGHA(prepare=Prepare(scale="standard", impute="mean"))
    check_views(known, {"a": GAPS[~lacking], "b": WILD[~lacking, :2]}, True)
    for own, expected in zip(
        model.preparations_["a"].to_arrays().values(), known.preparations_["a"].to_arrays().values()
    ):
        np.testing.assert_allclose(own, expected)
    assert np.isfinite(model.decision_function({"b": WILD[:5, :2]})).all()


COUNTS = RNG.integers(0, 4, N)
HUGE = np.where((COUNTS == 0)[:, None], 1e3 * GAPS, GAPS)  # rows of weight 0 must not affect the statistics
FORMS = {
    "array": lambda X, path: X,
    "float32": lambda X, path: X.astype(np.float32),
    "sparse": lambda X, path: scipy.sparse.csr_array(X),
    "dask": lambda X, path: da.from_array(X, chunks=(70, -1)),
    "memory map": lambda X, path: np.lib.format.open_memmap(path / "x.npy", "r+", X.dtype, X.shape),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fill", ["mean", "median", "zero"])
@pytest.mark.parametrize("scale", ["standard", "maxabs"])
def test_preparation_of_weighted_rows_is_that_of_repeated_rows(scale, fill, form, tmp_path):
    X = np.where(HUGE > 0, HUGE, 0.0) if form == "sparse" else HUGE.copy()
    # No indicator, because only rows of weight 0 have missing values.
    X[:, 1] = np.where(COUNTS > 0, WILD[:, 1], np.nan)
    X = X.astype(np.float32).astype(np.float64)
    if form == "memory map":
        np.save(tmp_path / "x.npy", X)
    model = KGHA(prepare=Prepare(scale, impute=fill + "+indicator"))
    prepare_views(model, check_raw_views(model, FORMS[form](X, tmp_path), True), True, {"x": COUNTS.astype(float)})
    repeated = X[np.repeat(np.arange(N), COUNTS)]
    how = {"strategy": "constant", "fill_value": 0.0} if fill == "zero" else {"strategy": fill}
    by = StandardScaler(with_mean=form != "sparse") if scale == "standard" else MaxAbsScaler()
    oracle = make_pipeline(SimpleImputer(**how, add_indicator=True), by).fit(repeated)
    found = prepare_views(model, check_raw_views(model, WILD[:30], False), False)["x"][:]
    assert 1 not in model.preparations_["x"].marked
    digits = 1e-5 if form == "float32" else 1e-9  # imputed values of float32 rows are rounded to float32
    np.testing.assert_allclose(found, oracle.transform(WILD[:30]), rtol=digits, atol=digits)


def test_scale_of_fractional_weights_is_the_weighted_deviation():
    weights, model, X = RNG.random(N), KGHA(prepare="standard"), WILD[:, :3]
    prepare_views(model, check_raw_views(model, X, True), True, {"x": weights})
    mean = np.average(X, axis=0, weights=weights)
    deviation = np.sqrt(np.average((X - mean) ** 2, axis=0, weights=weights))
    np.testing.assert_allclose(model.preparations_["x"].center, mean, rtol=1e-9)
    np.testing.assert_allclose(model.preparations_["x"].width, deviation, rtol=1e-9)


@pytest.mark.parametrize("form", [np.asarray, scipy.sparse.csr_array])
def test_automatic_scale_ignores_rows_of_weight_zero(form):
    X = RNG.normal(size=(N, D))
    X[::7, 2] *= 1e6
    for often, scales in ((np.arange(N) % 7 > 0, {}), (np.ones(N), {"x": "standard"})):
        model = MultiViewRidge()
        prepare_views(model, check_raw_views(model, form(X), True), True, {"x": often.astype(float)})
        assert {view: found.scale for view, found in model.preparations_.items()} == scales


def test_automatic_scale_counts_rows_by_weight():
    first = np.arange(40) < 4
    X = np.column_stack([RNG.normal(size=40), *(np.where(first, RNG.normal(size=40) * 500, 0.0) for _ in range(3))])
    often = np.where(first, 40, 1)  # without weights, most entries are zeros
    scales = []
    for rows, weights in ((X, {"x": often.astype(float)}), (np.repeat(X, often, axis=0), None), (X, None)):
        model = MultiViewRidge()
        prepare_views(model, check_raw_views(model, rows, True), True, weights)
        scales.append(model.preparations_["x"].scale)
    assert scales == ["standard", "standard", "maxabs"]


def test_large_medians_read_the_rows_of_repeated_samples(monkeypatch):
    monkeypatch.setattr("dmo.inputs.preparation._MEDIAN", 50)
    medians = []
    for X, weights in ((GAPS, {"x": COUNTS.astype(float)}), (GAPS[np.repeat(np.arange(N), COUNTS)], None)):
        model = KGHA(prepare=Prepare("none", impute="median"))
        prepare_views(model, check_raw_views(model, X, True), True, weights)
        medians.append(model.preparations_["x"].fill)
    np.testing.assert_allclose(*medians, rtol=1e-12)
