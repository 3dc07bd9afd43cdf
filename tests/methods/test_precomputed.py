"""Check that precomputed kernels are equivalent to named kernels in every container, engine and fold."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import scipy.linalg
import zarr
from sklearn.datasets import make_multilabel_classification
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV, cross_val_score

import dmo
from dmo import (
    KGHA,
    LLTSVR,
    MESD,
    MOPE,
    MORP,
    BestLowRank,
    CoupledSVR,
    Exact,
    Meka,
    MultiSetCCA,
    MultiViewRidge,
    NeighborVotes,
    Nystrom,
    Prepare,
    Solver,
    TraceEmbedding,
    Views,
)
from dmo.blocks import Subset
from dmo.decoders import Scores
from dmo.errors import UserError
from dmo.hashing import mixed
from dmo.kernels import RBF, Laplacian, gram_matrix
from dmo.linalg.solve import COEFFICIENTS
from dmo.selection import sweep
from dmo.stores import open_kernel, write_kernel

KERNEL, NEW = RBF(bandwidth=2.0), 20
CONTAINERS = {
    "numpy": lambda K, path: K,
    "dask": lambda K, path: da.from_array(K, chunks=(150, 70)),
    "zarr": lambda K, path: _zarr(K, path),
    "store": lambda K, path: _store(K, path),
}
ESTIMATORS = {
    "KGHA": KGHA(n_components=3, solver=Solver(tol=1e-9)),
    "MultiViewRidge": MultiViewRidge(),
    "MORP": MORP(n_components=3, tol=1e-9),
    "MultiSetCCA": MultiSetCCA(n_components=2, solver=Solver(tol=1e-9)),
    "LLTSVR": LLTSVR(tol=1e-6),
    "CoupledSVR": CoupledSVR(tol=1e-4),
    "NeighborVotes": NeighborVotes(MultiViewRidge()),
    "MESD": MESD("fda"),
    "TraceEmbedding": TraceEmbedding("mddm"),
}


@pytest.fixture(autouse=True)
def positions_as_keys(monkeypatch):
    """Assign feature rows to folds by position, as precomputed kernels are, so that both inputs share folds."""
    for module in ("decide.out_of_fold", "methods.annotator", "methods.neighbor_votes", "methods.ridge"):
        monkeypatch.setattr(f"dmo.{module}.row_keys", lambda estimator, data, index: mixed(index + 1))


def _zarr(K, path):
    made = zarr.create_array(str(path / "k.zarr"), shape=K.shape, chunks=(100, 90), dtype=K.dtype)
    made[:] = K
    return made


def _store(K, path):
    write_kernel(str(path / "store.zarr"), K, block=128, dtype=K.dtype)
    return open_kernel(str(path / "store.zarr"))


@cache
def samples(n):
    """Return the features, labels and kernel matrices of n training samples and 20 new samples."""
    X, Y = make_multilabel_classification(n_samples=n + NEW, n_classes=5, random_state=0)
    X = X / 5
    K = gram_matrix(KERNEL, X, np.float64)[0]
    return X, Y[:n], np.ascontiguousarray(K[:n, :n]), K[n:, :n]


def made(name, kernel, **parameters):
    model = dmo.select.sweeps.clone(ESTIMATORS[name])
    return model.set_params(**{"base__kernel" if name == "NeighborVotes" else "kernel": kernel}, **parameters)


def outputs(model, X):
    for method in ("decision_function", "transform", "predict"):
        if hasattr(model, method):
            return getattr(model, method)(X)
    raise AssertionError(model)


@cache
def by_name(name, n, weighted=False, **parameters):
    """Fit a model on features with a named kernel, and return the model with its outputs for new samples."""
    X, Y, *_ = samples(n)
    y = 2.0 * Y - 1 if name.endswith("SVR") else Y
    weights = {"sample_weight": np.arange(n) % 3 * 1.0} if weighted else {}
    model = made(name, KERNEL, **parameters).fit(X[:n], y, **weights)
    return model, outputs(model, X[n:])


def up_to_sign(found, wanted):
    """Align the signs of the columns, because the sign of an eigenvector is arbitrary."""
    return found * np.sign((found * wanted).sum(axis=0))


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("n", [511, 512, 513, 700])
def test_a_kernel_in_memory_gives_what_its_name_gives(n, container, tmp_path):
    X, Y, K, K_new = samples(n)
    for name in ("KGHA", "MultiViewRidge"):
        wanted, scores = by_name(name, n)
        found = made(name, "precomputed").fit(CONTAINERS[container](K, Path(tempfile.mkdtemp(dir=tmp_path))), Y)
        np.testing.assert_allclose(found.decision_function(K_new), scores, atol=1e-9)
        np.testing.assert_array_equal(found.predict(K_new, top=2), wanted.predict(X[n:], top=2))


@pytest.mark.slow
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name not in ("KGHA", "MultiViewRidge")])
def test_every_estimator_with_a_kernel_takes_its_matrix(name, container, tmp_path):
    n = 150
    _, Y, K, K_new = samples(n)
    y = 2.0 * Y - 1 if name.endswith("SVR") else Y
    wanted = by_name(name, n)[1]
    found = outputs(made(name, "precomputed").fit(CONTAINERS[container](K, tmp_path), y), K_new)
    np.testing.assert_allclose(up_to_sign(found, wanted), wanted, atol=1e-7 * np.abs(wanted).max())


@pytest.mark.slow
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("storage", ["recomputed", "resident", "stored"])
def test_tiles_are_read_from_the_kernel_as_it_lies(storage, container, tmp_path):
    n = 260
    _, Y, K, K_new = samples(n)
    engine = Exact(storage=storage, block=100, path=str(tmp_path / "tiles"))
    wanted = by_name("MultiViewRidge", n, approximation="exact")[1]
    model = made("MultiViewRidge", "precomputed", approximation=engine, decoder=Scores(label_sets=False))
    found = model.fit(CONTAINERS[container](K, tmp_path), Y)
    np.testing.assert_allclose(found.decision_function(K_new), wanted, atol=2e-6)
    copied = (tmp_path / "tiles").exists()
    assert copied == (storage == "stored" and container in ("numpy", "dask"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["KGHA", "MORP", "MultiSetCCA", "LLTSVR"])
def test_estimators_take_tiles_of_a_kernel_matrix(name, tmp_path):
    n = 150
    X, Y, K, K_new = samples(n)
    y = 2.0 * Y - 1 if name.endswith("SVR") else Y
    how = {"approximation": Exact(storage="recomputed", block=128)}  # equal blocks imply the same order of sums
    if name.endswith("SVR"):
        how |= {"C": 0.1, "tol": 1e-3, "decoder": Scores(label_sets=False)}
    if name == "MultiSetCCA":
        how["solver"] = Solver(tol=1e-6)
    wanted = outputs(made(name, KERNEL, **how).fit(X[:n], y), X[n:])
    found = outputs(made(name, "precomputed", **how).fit(_store(K, tmp_path), y), K_new)
    # The regression stops at a duality gap of 1e-3. The eigensolver stops at a residual of 1e-6 in float32, which
    # bounds the error of an eigenvector only after division by the gap between eigenvalues.
    tolerance = 1e-2 if name.endswith("SVR") else 1e-5 if name == "MultiSetCCA" else 1e-6
    np.testing.assert_allclose(up_to_sign(found, wanted), wanted, atol=tolerance * np.abs(wanted).max())


def test_a_stored_kernel_above_one_block_of_the_default_is_fitted_by_tiles(tmp_path):
    n = 2100
    _, Y, K, K_new = samples(n)
    write_kernel(str(tmp_path / "k.zarr"), K, block=512)  # the store uses float32
    engine = Exact(storage="recomputed")
    model = made("MultiViewRidge", "precomputed", ridge=1.0, approximation=engine, decoder=Scores(label_sets=False))
    found = model.fit(open_kernel(str(tmp_path / "k.zarr")), Y).decision_function(K_new)
    # Solve the centered system of the stored kernel with LAPACK.
    stored, new, targets = (
        K.astype(np.float32).astype(float),
        K_new.astype(np.float32).astype(float),
        Y - Y.mean(axis=0),
    )
    means = stored.mean(axis=0)
    centered, new = stored - means - means[:, None] + means.mean(), new - means
    new -= new.mean(axis=1, keepdims=True)
    both = scipy.linalg.solve(centered + np.eye(n), np.hstack([targets, new.T]), assume_a="pos")
    dual, back = both[:, : targets.shape[1]], both[:, targets.shape[1] :]
    # A residual r of the solve changes a score by k(x)'(K + I)^-1 r, and the norm of r is at most 1e-6 of the targets.
    bound = COEFFICIENTS * np.linalg.norm(back, axis=0)[:, None] * np.linalg.norm(targets, axis=0)
    assert (np.abs(found - new @ dual) <= bound).all()


class Watched:
    """Chunked kernel that records the largest number of entries read at once."""

    ndim, chunks, largest = 2, (50, 50), 0

    def __init__(self, K):
        self.K, self.shape, self.dtype = K, K.shape, K.dtype

    def __getitem__(self, where):
        part = self.K[where]
        self.largest = max(self.largest, part.size)
        return part


@pytest.mark.parametrize("storage", ["recomputed", "stored"])
def test_a_kernel_in_chunks_is_never_read_whole(storage, tmp_path):
    _, Y, K, K_new = samples(600)
    kernel = Watched(K)
    engine = Exact(storage=storage, block=100, path=str(tmp_path))
    model = made("MultiViewRidge", "precomputed", approximation=engine, decoder=Scores(label_sets=False)).fit(kernel, Y)
    assert 0 < kernel.largest <= 100 * 100
    model.save(str(tmp_path / "model"))
    assert sum(file.stat().st_size for file in (tmp_path / "model").rglob("*") if file.is_file()) < K.nbytes / 10
    np.testing.assert_array_equal(
        dmo.load(str(tmp_path / "model")).decision_function(K_new), model.decision_function(K_new)
    )


def grid_of(name):
    return {"visual": [0.0, 10.0]} if name == "NeighborVotes" else {"ridge": [0.03, 1.0]}


@cache
def swept_by_name(name, n):
    X, Y, *_ = samples(n)
    return sweep(made(name, KERNEL), X[:n], Y, grid_of(name), 2, random_state=0, refit=False).table


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("name", ["KGHA", "MultiViewRidge", "MORP", "NeighborVotes"])
def test_folds_of_a_sweep_take_rows_and_columns(name, container, tmp_path):
    n = 150
    _, Y, K, _ = samples(n)
    wanted = swept_by_name(name, n)
    given = CONTAINERS[container](K, tmp_path)
    found = sweep(made(name, "precomputed"), given, Y, grid_of(name), 2, random_state=0, refit=False).table
    for row, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(row["folds"], other["folds"], rtol=1e-6)


@pytest.mark.parametrize("container", CONTAINERS)
def test_scikit_learn_splits_rows_and_columns(container, tmp_path):
    n = 150
    X, Y, K, _ = samples(n)
    grid = {"ridge": [0.03, 1.0]}
    wanted = GridSearchCV(MultiViewRidge(KERNEL), grid, cv=2).fit(X[:n], Y).cv_results_["mean_test_score"]
    given = Views({"x": CONTAINERS[container](K, tmp_path)})
    found = GridSearchCV(MultiViewRidge("precomputed"), grid, cv=2, error_score="raise").fit(given, Y)
    np.testing.assert_allclose(found.cv_results_["mean_test_score"], wanted, rtol=1e-9)


SPECS = {"a": KERNEL, "b": Laplacian(bandwidth=5.0)}


def two_views(n, container, path):
    """Return two views, their labels and their kernel matrices in a container."""
    X, Y = make_multilabel_classification(n_samples=n, n_classes=5, random_state=0)
    views = {"a": X[:, :12] / 5, "b": X[:, 8:] / 5}
    kernels = {name: gram_matrix(SPECS[name], view, np.float64)[0] for name, view in views.items()}
    own = {name: path and Path(tempfile.mkdtemp(dir=path)) for name in kernels}
    return views, Y, {name: CONTAINERS[container](K, own[name]) for name, K in kernels.items()}


def of_two(name, precomputed, **parameters):
    return made(
        name, {view: "precomputed" if view in precomputed else kernel for view, kernel in SPECS.items()}, **parameters
    )


def grid_of_two(name):
    """Return the grid of an estimator for two views. KGHA uses a single ridge."""
    if name == "NeighborVotes":
        return grid_of(name)
    return (grid_of(name) if name == "MultiViewRidge" else {"ridge": [0.03]}) | {"decoder": [None, "calibrated"]}


@cache
def by_names_of_two(how, name):
    """Compute the cross-validation scores of two views with named kernels."""
    views, Y, _ = two_views(60, "numpy", None)
    model = of_two(name, "")
    if how == "sweep":
        return [row["folds"] for row in sweep(model, views, Y, grid_of_two(name), 2, refit=False).table]
    return cross_val_score(model, Views(views), Y, cv=2, error_score="raise")


@pytest.mark.slow
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("name", ["KGHA", "MultiViewRidge", "NeighborVotes"])
def test_folds_of_a_sweep_take_rows_and_columns_of_every_kernel_of_a_mapping(name, container, tmp_path):
    views, Y, kernels = two_views(60, container, tmp_path)
    for given, precomputed in ((kernels, "ab"), ({"a": kernels["a"], "b": views["b"]}, "a")):
        found = sweep(of_two(name, precomputed), given, Y, grid_of_two(name), 2, refit=False).table
        np.testing.assert_allclose([row["folds"] for row in found], by_names_of_two("sweep", name), rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("name", ["KGHA", "MultiViewRidge", "NeighborVotes"])
def test_scikit_learn_splits_a_mapping_of_kernels_and_features(name, container, tmp_path):
    views, Y, kernels = two_views(60, container, tmp_path)
    for given, precomputed in ((kernels, "ab"), ({"a": kernels["a"], "b": views["b"]}, "a")):
        found = cross_val_score(of_two(name, precomputed), Views(given), Y, cv=2, error_score="raise")
        np.testing.assert_allclose(found, by_names_of_two("scikit-learn", name), rtol=1e-9)


def test_searches_within_folds_split_kernels_again(tmp_path):
    views, Y, kernels = two_views(60, "numpy", tmp_path)
    scores = []
    for given, precomputed in ((views, ""), (kernels, "ab")):
        search = GridSearchCV(of_two("MultiViewRidge", precomputed), {"ridge": [0.03, 1.0]}, cv=2, error_score="raise")
        scores.append(cross_val_score(search, Views(given), Y, cv=2, error_score="raise"))
    np.testing.assert_allclose(scores[1], scores[0], rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["KGHA", "MultiViewRidge", "NeighborVotes", "LLTSVR", "CoupledSVR"])
def test_tuning_a_mapping_of_kernels_ends_with_a_model_of_them(name, tmp_path):
    _, Y, kernels = two_views(60, "numpy", tmp_path)
    y, loose = (2.0 * Y - 1, {"tol": 1e-2}) if name.endswith("SVR") else (Y, {})
    model = dmo.tune(of_two(name, "ab", **loose), kernels, y, cv=2)
    assert np.isfinite(outputs(model, kernels)).all()
    assert model.tuning_.best_score_ == max(row["mean"] for row in model.tuning_.table)


def test_a_square_of_features_is_split_by_rows_alone():
    X, Y, *_ = samples(20)
    square = np.ascontiguousarray(X[:20])
    wanted = cross_val_score(MultiViewRidge(KERNEL), square, Y, cv=3, error_score="raise")
    found = cross_val_score(MultiViewRidge(KERNEL), Views({"x": square}), Y, cv=3, error_score="raise")
    assert square.shape == (20, 20)
    np.testing.assert_array_equal(found, wanted)


def test_a_kernel_store_tells_scikit_learn_users_to_wrap_it(tmp_path):
    _, Y, K, _ = samples(60)
    with pytest.raises(TypeError, match=r"dmo\.Views\(\{'x': kernel\}\)"):
        GridSearchCV(MultiViewRidge("precomputed"), {"ridge": [0.1]}, error_score="raise").fit(_store(K, tmp_path), Y)


def test_tuning_a_kernel_matrix_chooses_what_its_name_chooses():
    n = 150
    X, Y, K, K_new = samples(n)
    found = dmo.tune(MultiViewRidge("precomputed"), K, Y)
    best = found.tuning_.best_params_
    given = {key: value for key, value in best.items() if key != "scale"}
    wanted = MultiViewRidge(KERNEL, prepare="none").set_params(**given).fit(X[:n], Y)
    np.testing.assert_allclose(found.decision_function(K_new), wanted.decision_function(X[n:]), atol=1e-9)


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("name", ["KGHA", "MultiViewRidge", "MORP", "MultiSetCCA"])
def test_samples_of_weight_0_are_left_out_of_rows_and_columns(name, container, tmp_path):
    n = 150
    _, Y, K, K_new = samples(n)
    wanted, weights = by_name(name, n, weighted=True)[1], np.arange(n) % 3 * 1.0
    model = made(name, "precomputed").fit(CONTAINERS[container](K, tmp_path), Y, sample_weight=weights)
    np.testing.assert_allclose(up_to_sign(outputs(model, K_new), wanted), wanted, atol=1e-9)


@pytest.mark.parametrize("order", [np.arange(149, -1, -1), np.arange(1, 150, 2), np.arange(150) % 100])
def test_a_subset_of_a_kernel_is_the_kernel_of_these_samples(order):
    X, Y, K, K_new = samples(150)
    wanted = MultiViewRidge(KERNEL).fit(X[order], Y[order]).decision_function(X[150:])
    found = MultiViewRidge("precomputed").fit(Subset(K, order), Y[order]).decision_function(K_new)
    np.testing.assert_allclose(found, wanted, atol=1e-8)


LOOSE = LLTSVR(C=0.3, tol=1e-4, decoder=Scores(label_sets=False))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["exact", Exact(storage="recomputed", block=64)], ids=["memory", "tiles"])
@pytest.mark.parametrize("model", [KGHA(), MultiViewRidge(), MultiViewRidge(combine="product"), LOOSE])
def test_a_kernel_matrix_stands_beside_features_and_in_stored_models(model, engine, tmp_path):
    n = 150
    X, Y, K, K_new = samples(n)
    y = 2.0 * Y - 1 if isinstance(model, LLTSVR) else Y
    model = dmo.select.sweeps.clone(model).set_params(approximation=engine)
    named = dmo.select.sweeps.clone(model).set_params(kernel={"own": KERNEL, "words": "rbf"}, approximation="exact")
    wanted = outputs(named.fit({"own": X[:n], "words": X[:n, :8]}, y), {"own": X[n:], "words": X[n:, :8]})
    model.set_params(kernel={"own": "precomputed", "words": "rbf"})
    new = {"own": K_new, "words": X[n:, :8]}
    found = outputs(model.fit({"own": _store(K, tmp_path), "words": X[:n, :8]}, y), new)
    # LLTSVR stops at a duality gap of 1e-4, which allows larger score errors.
    np.testing.assert_allclose(found, wanted, atol=1e-2 if isinstance(model, LLTSVR) else 1e-5)
    model.save(str(tmp_path / "model"))
    np.testing.assert_array_equal(outputs(dmo.load(str(tmp_path / "model")), new), found)


def test_a_scaled_kernel_matrix_is_the_kernel_times_a_number():
    _, Y, K, K_new = samples(150)
    found = MultiViewRidge(2.0 * dmo.kernels.Precomputed()).fit(K, Y).decision_function(K_new)
    np.testing.assert_allclose(
        found, MultiViewRidge("precomputed").fit(2 * K, Y).decision_function(2 * K_new), atol=1e-9
    )


SPOILT = np.where(np.eye(150, k=100) > 0, np.nan, 1.0)


@pytest.mark.parametrize(
    ("model", "change", "words"),
    [
        (MultiViewRidge("precomputed"), lambda K: K[:, :-1], "training kernel must be square, got 150 x 149"),
        (MultiViewRidge("precomputed"), np.triu, "training kernel must be symmetric"),
        (MultiViewRidge("precomputed", approximation=Exact(storage="recomputed")), np.triu, "must be symmetric"),
        (
            MultiViewRidge("precomputed"),
            lambda K: da.from_array(K * SPOILT),
            r"the kernel has NaN at row 0, column 100, likely because the features of a sample hold NaN or were divided",
        ),
        (
            MultiViewRidge("precomputed"),
            lambda K: K + np.triu(np.full_like(K, np.nan), 100),
            r"NaN from row 0, column 100 on and none below the diagonal, likely because it is one triangle of a kernel store",
        ),
        (MultiViewRidge("precomputed", prepare="standard"), None, "pass prepare='none'"),
        (MultiViewRidge("precomputed", prepare=Prepare(impute="mean")), None, "pass prepare='none'"),
        (KGHA("precomputed", approximation=Nystrom(rank=5)), None, "use approximation='exact'"),
        (KGHA("precomputed", approximation=Meka(rank=5)), None, "use approximation='exact'"),
        (MORP("precomputed", approximation=BestLowRank(rank=5)), None, "use approximation='exact'"),
        (MOPE(kernel="precomputed"), None, "pass the features and the name of a kernel, or use MORP"),
        (MESD("lfda", kernel="precomputed"), None, "pass the features and the name of a kernel"),
        (TraceEmbedding("lpp", kernel="precomputed"), None, "pass the features and the name of a kernel"),
    ],
)
def test_what_a_kernel_matrix_cannot_do_is_refused_in_a_sentence(model, change, words):
    _, Y, K, _ = samples(150)
    with pytest.raises(ValueError, match=words):
        model.fit(K if change is None else change(K), Y)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (
            np.nan,
            "NaN at row 3, column 7, likely because the features of a sample hold NaN or were divided by a norm of 0",
        ),
        (np.inf, "inf at row 3, column 7, likely because values overflow, in exp or in float64"),
    ],
)
def test_kernel_values_that_are_not_finite_name_the_cause(value, words):
    _, Y, K, K_new = samples(60)
    spoilt, new = K.copy(), K_new.copy()
    spoilt[3, 7] = spoilt[7, 3] = new[3, 7] = value
    alone, two = MultiViewRidge("precomputed").fit(K, Y), KGHA("precomputed", n_components=2)
    for fails in (
        lambda: alone.predict(new),
        lambda: MultiViewRidge("precomputed").fit(spoilt, Y),
        lambda: two.fit({"a": spoilt, "b": K}, Y),
    ):
        with pytest.raises(UserError, match=words) as refused:
            fails()
        assert "compute the kernel again" in str(refused.value)
        assert "impute" not in str(refused.value)


def test_a_kernel_matrix_and_features_are_no_kernel_of_the_same_rows():
    with pytest.raises(ValueError, match="pass the kernel and the features as two views"):
        dmo.kernels.Precomputed() + RBF()


def test_a_kernel_with_rounding_gives_what_its_transpose_gives():
    _, Y, K, new = samples(60)
    K = K * (1 + 1e-6 * np.random.default_rng(0).uniform(-1, 1, K.shape))
    one, other = (
        MultiViewRidge("precomputed", approximation=Exact(), decoder=Scores(label_sets=False))
        .fit(k, Y)
        .decision_function(new)
        for k in (K, K.T.copy())
    )
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("ridge", [0.1, 1.0])
def test_a_float32_factor_takes_no_room_in_a_matrix_that_was_given(ridge, monkeypatch):
    monkeypatch.setattr("dmo.linalg.solve._spared", lambda *_: 1.0)  # the default applies from 2000 samples
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(80, 5)), rng.random((80, 3)) < 0.4
    K = rbf_kernel(X, gamma=0.1).astype(np.float32)
    K = (K + K.T) / 2
    given = K.copy()
    settings = {"ridge": ridge, "n_components": 2, "approximation": Exact(precision="float32"), "random_state": 0}
    scores = KGHA("precomputed", **settings).fit(given, Y).decision_function(given)
    np.testing.assert_array_equal(given, K)
    own = KGHA(lambda x, y: rbf_kernel(x, y, gamma=0.1), **settings).fit(X, Y).decision_function(X)
    np.testing.assert_allclose(own, scores, atol=1e-4)
