"""Use arrays of another library (array_api_strict) in tiles, factor rows, Gram matrices and fits."""

import array_api_strict as strict
import dask
import numpy as np
import pytest

from dmo import KGHA, Moments, MultiViewRidge, Nystrom
from dmo.decoders import Scores
from dmo.devices import moved, to_numpy
from dmo.errors import UserError
from dmo.kernels import RBF, ChiSquare
from dmo.kernels.functions import DISTANCES, KERNELS
from dmo.lowrank import nystrom

ROWS = np.random.default_rng(0).random((40, 6)) * (np.random.default_rng(1).random((40, 6)) < 0.8)


@pytest.fixture
def on_device():
    with dask.config.set({"dmo.device": "array_api_strict"}):
        yield


@pytest.mark.parametrize("normalize", [None, "l1", "l2", "hellinger"])
@pytest.mark.parametrize("name", [*KERNELS, *DISTANCES])
def test_tiles_of_another_library_are_those_of_numpy(name, normalize):
    kernel = (KERNELS | DISTANCES)[name](normalize=normalize).fit(ROWS)
    # Euclidean distances are computed from inner products, so that the error for equal rows is about the square root of
    # the float64 epsilon.
    for dtype, atol in (("float32", 2e-6), ("float64", 1e-8 if kernel.pair == "l2" else 1e-13)):
        p, q = kernel.prepare(ROWS, dtype), kernel.prepare(strict.asarray(ROWS), dtype)
        K = kernel.tile(q[5:20], q)
        assert type(K) is type(q.values)
        np.testing.assert_allclose(to_numpy(K), kernel.tile(p[5:20], p), atol=atol * max(1.0, ROWS.shape[1]))


def test_near_rows_keep_their_distance_in_single_precision():
    far = 10.0 + 1e-4 * ROWS
    kernel = DISTANCES["euclidean"]()
    q = kernel.prepare(strict.asarray(far), "float32")
    exact = np.linalg.norm(np.float64(np.float32(far))[:, None] - np.float64(np.float32(far)), axis=2)
    np.testing.assert_allclose(to_numpy(kernel.tile(q, q)), exact, atol=1e-6)


@pytest.mark.parametrize(
    ("kernel", "value", "what"),
    [
        (RBF(1.0), np.nan, "finite rows, got nan at row 2, column 1"),
        (ChiSquare(1.0), -1.0, "got -1 at row 2, column 1"),
    ],
)
def test_entries_without_a_kernel_value_are_named(kernel, value, what):
    bad = ROWS.copy()
    bad[2, 1] = value
    with pytest.raises(UserError, match=what):
        kernel.prepare(strict.asarray(bad))


def test_moments_of_another_library_and_bytes_beside_them_are_those_of_numpy():
    Y, roots = (ROWS[:, :3] > 0.5).astype(np.uint8), np.sqrt(np.arange(40.0))
    here, there = {"x": ROWS, "labels": Y}, {"x": strict.asarray(ROWS), "labels": Y}
    for weights in (None, roots):
        zeros = [Moments.zeros({"x": 6, "labels": 3}) for _ in range(2)]
        expected, found = zeros[0].absorb(here, weights), zeros[1].absorb(there, weights)
        np.testing.assert_allclose(found.gram, expected.gram, rtol=1e-6)
        np.testing.assert_allclose(found.sums, expected.sums, rtol=1e-6)
        assert found.n == expected.n
    with pytest.raises(UserError, match="group 'x' has values that are not finite"):
        Moments.of({"x": strict.asarray(np.full((2, 2), np.inf))})


def test_factor_rows_of_another_library_stay_there():
    found = nystrom("rbf", ROWS, rank=10, random_state=0)
    F = found.raw(strict.asarray(ROWS))
    assert type(F) is type(strict.asarray(ROWS))
    np.testing.assert_allclose(to_numpy(F), found.raw(ROWS), atol=2e-5)


@pytest.mark.parametrize("standardize", [0.0, 0.5])
def test_a_fit_on_a_device_is_that_of_numpy(standardize):
    X = {"real": ROWS, "counts": (9 * ROWS).astype(np.uint16)}
    Y = (ROWS[:, :3] > 0.6).astype(np.uint8)
    kernels, low = {"real": "rbf", "counts": "hellinger-rbf"}, Nystrom(rank=15, precision="float64")
    for model in (
        MultiViewRidge(kernels, ridge=0.1, approximation=low, decoder=Scores(standardize=standardize)),
        KGHA(kernels, ridge=0.1, approximation=low, decoder=Scores(standardize=standardize), n_components=2),
    ):
        expected = model.fit(X, Y).decision_function(X)
        with dask.config.set({"dmo.device": "array_api_strict"}):
            found = model.fit(X, Y).decision_function(X)
        np.testing.assert_allclose(found, expected, atol=1e-7)


@pytest.mark.usefixtures("on_device")
def test_sums_of_a_fit_are_made_on_the_device(monkeypatch):
    seen = []
    matmul = strict.matmul
    monkeypatch.setattr(strict, "matmul", lambda a, b: seen.append(a.shape) or matmul(a, b))
    MultiViewRidge("rbf", approximation=Nystrom(rank=7), decoder=Scores(label_sets=False)).fit(ROWS, ROWS[:, :2] > 0.5)
    assert (9, 40) in seen  # there are 40 rows with 7 factor columns and 2 labels


@pytest.mark.parametrize("wanted", ["no_such_library", "array_api_strict:cuda"])
def test_a_device_that_is_not_there_is_named(wanted):
    with dask.config.set({"dmo.device": wanted}), pytest.raises(UserError, match=f"dmo.device is '{wanted}'"):
        moved(ROWS)
