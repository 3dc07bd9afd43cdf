"""Compare kernels with scikit-learn, SciPy and brute force, and test bandwidths, precision, tiles and errors."""

import json
import pickle
import re

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist, pdist
from sklearn.base import clone
from sklearn.metrics import pairwise
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.preprocessing import normalize
from threadpoolctl import threadpool_limits

from dmo import KGHA, Meka, MultiViewRidge, Nystrom, kernels, progress, threads
from dmo.errors import UserError
from dmo.kernels import (
    RBF,
    ChiSquare,
    Cosine,
    Exponential,
    Intersection,
    Laplacian,
    Linear,
    Polynomial,
    Precomputed,
    Product,
    Sum,
    gram_matrix,
    kernel_array,
    loops,
    normalize_rows,
    parse,
)
from dmo.kernels import pairs as bandwidths

N, D = 200, 45  # N exceeds the block width of the loops, and D is not divisible by 4


def histograms(n=N, d=D, seed=0, density=0.2):
    rng = np.random.default_rng(seed)
    X = rng.gamma(1.0, size=(n, d)) * (rng.random((n, d)) < density)
    X[3] = 0.0
    return X


def signed(n=N, d=D, seed=1):
    return np.random.default_rng(seed).standard_normal((n, d))


def sparse_signed(n=N, d=D, seed=2):
    return signed(n, d, seed) * (histograms(n, d, seed) > 0)


ROWS = {
    "histograms": histograms(),
    "full histograms": histograms(density=0.9),
    "signed": signed(),
    "csr": sp.csr_array(histograms()),
    "csr signed": sp.csr_array(sparse_signed()),
}


def dense(X):
    return X.toarray() if sp.issparse(X) else X


def oracle(kernel, X, Y):
    """Compute the kernel matrix of X and Y in float64 with SciPy or scikit-learn."""
    X, Y = dense(X).astype(np.float64), dense(Y).astype(np.float64)
    match kernel:
        case RBF():
            return pairwise.rbf_kernel(X, Y, gamma=0.5 / kernel.width**2)
        case Laplacian():
            return pairwise.laplacian_kernel(X, Y, gamma=1 / kernel.width)
        case Exponential():
            return np.exp(-cdist(X, Y) / kernel.width)
        case ChiSquare():
            return pairwise.chi2_kernel(X, Y, gamma=1 / kernel.width)
        case Intersection():
            return np.minimum(X[:, None], Y[None]).sum(axis=2)
        case Linear():
            return pairwise.linear_kernel(X, Y)
        case Polynomial():
            return pairwise.polynomial_kernel(X, Y, degree=kernel.degree, gamma=kernel.gamma, coef0=kernel.coef0)
        case Cosine():
            return pairwise.cosine_similarity(X, Y)
    raise AssertionError(kernel)


KERNELS = [
    RBF(5.0),
    Laplacian(20.0, scale=0.5),
    Exponential(4.0),
    ChiSquare(15.0),
    Intersection(),
    Linear(),
    Polynomial(degree=2, gamma=0.1, coef0=0.5),
    Cosine(),
]
CASES = [
    pytest.param(kernel, X, id=f"{kernel.name}-{name}")
    for kernel in KERNELS
    for name, X in ROWS.items()
    if "signed" not in name or not kernel.non_negative
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("kernel", "X"), CASES)
def test_tile_gram_and_diagonal_equal_an_independent_implementation(kernel, X, dtype):
    fitted = kernel.fit(X)
    x, y = fitted.prepare(X[:170], dtype), fitted.prepare(X[20:], dtype)
    expected = oracle(kernel, X, X)
    tol = np.abs(expected).max() * (3e-6 if dtype == np.float32 else 1e-13)
    tile = fitted.tile(x, y)
    assert tile.dtype == dtype
    np.testing.assert_allclose(tile, expected[:170, 20:], atol=tol)
    np.testing.assert_allclose(fitted.diagonal(x), np.diag(expected)[:170], atol=tol)
    K, again = gram_matrix(kernel, X, dtype)
    assert again == fitted
    assert K.dtype == dtype
    np.testing.assert_allclose(K, expected, atol=tol)
    np.testing.assert_array_equal(K, K.T)
    np.testing.assert_array_equal(np.diag(K), fitted.diagonal(fitted.prepare(X, dtype)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("X", [histograms(), signed(), sp.csr_array(histograms())], ids=["dense", "signed", "csr"])
@pytest.mark.parametrize("rule", bandwidths.RULES)
@pytest.mark.parametrize("kind", [RBF, Exponential, Laplacian, ChiSquare])
def test_bandwidth_rules_equal_brute_force(kind, rule, X, dtype):
    rows = dense(X)
    if kind is ChiSquare:
        rows = np.abs(rows)
        X = np.abs(X)
        distances = -pairwise.additive_chi2_kernel(rows)
    else:
        distances = cdist(rows, rows, "cityblock" if kind is Laplacian else "euclidean")
    pairs = distances[np.triu_indices(N, 1)]
    expected = {
        "mean": pairs.mean(),
        "median": np.median(pairs),
        "mean-fifth-neighbor": np.sort(distances, axis=1)[:, 5].mean(),
    }[rule]
    K, fitted = gram_matrix(kind(rule), X, dtype)
    assert fitted.bandwidth == pytest.approx(expected, rel=3e-6 if dtype == np.float32 else 1e-12)
    assert kind(rule).fit(X).bandwidth == pytest.approx(expected, rel=3e-6)
    np.testing.assert_allclose(K, oracle(kind(expected), rows, rows), atol=3e-6)


@pytest.mark.parametrize("rule", bandwidths.RULES)
@pytest.mark.parametrize("X", [signed(), sp.csr_array(histograms())], ids=["dense", "csr"])
def test_a_bandwidth_with_weights_is_that_of_repeated_rows(rule, X, monkeypatch):
    weights = np.random.default_rng(3).integers(0, 4, N).astype(float)
    repeated = dense(X)[np.repeat(np.arange(N), weights.astype(int))]
    distances = cdist(repeated, repeated)
    pairs = distances[np.triu_indices(len(repeated), 1)]
    expected = {
        "mean": pairs.mean(),
        "median": np.median(pairs),
        "mean-fifth-neighbor": np.sort(distances, axis=1)[:, 5].mean(),
    }[rule]
    assert RBF(rule).fit(X, 0, weights).bandwidth == pytest.approx(expected, rel=1e-5)
    both = (RBF(rule) + 0.5 * RBF(rule)).fit(X, 0, weights)
    assert [kernel.bandwidth for kernel in both.kernels] == pytest.approx([expected] * 2, rel=1e-5)
    if rule != "mean-fifth-neighbor":  # the scale of weights below 1 is arbitrary
        assert RBF(rule).fit(X, 0, weights / 4).bandwidth == pytest.approx(RBF(rule).fit(X, 0, weights / 900).bandwidth)
    monkeypatch.setattr(bandwidths, "SAMPLE", 120)
    assert RBF(rule).fit(X, 0, weights).bandwidth == pytest.approx(expected, rel=0.3)


def test_mean_bandwidth_is_the_mean_over_pairs_of_different_rows():
    X = np.array([[0.0], [1.0], [3.0]])
    assert RBF().fit(X).bandwidth == pytest.approx(2.0)
    assert RBF(scale=0.5).fit(X).width == pytest.approx(1.0)


def test_many_rows_take_a_seeded_sample_in_fit_and_gram_alike(monkeypatch):
    monkeypatch.setattr(bandwidths, "SAMPLE", 40)
    X = signed()
    for rule in bandwidths.RULES:
        for kernel in (RBF(rule), Laplacian(rule)):
            fitted = kernel.fit(X, random_state=0)
            _, again = gram_matrix(kernel, X, random_state=0)
            assert again.bandwidth == pytest.approx(fitted.bandwidth, rel=1e-6)
            assert fitted.bandwidth != kernel.fit(X, random_state=1).bandwidth
            assert fitted.bandwidth == pytest.approx(kernel.fit(X[::-1], random_state=2).bandwidth, rel=0.15)
    generators = [np.random.default_rng(7), np.random.default_rng(7)]
    one, two = (RBF().fit(X, random_state=generator) for generator in generators)
    assert one == two


@pytest.mark.parametrize("kernel", [RBF(), Exponential(), Laplacian()], ids=lambda k: k.name)
def test_float32_is_exact_far_from_the_origin(kernel):
    X = 1000.0 + np.random.default_rng(0).standard_normal((N, 300))
    metric = "cityblock" if kernel.name == "laplacian" else "euclidean"
    distances = cdist(X, X, metric)
    width = pdist(X, metric).mean()
    expected = np.exp(-(distances**2) / (2 * width**2)) if kernel.name == "rbf" else np.exp(-distances / width)
    K, fitted = gram_matrix(kernel, X)
    assert np.abs(K - expected).max() < 1e-5
    tile = fitted.tile(fitted.prepare(X[:50]), fitted.prepare(X[50:]))
    assert np.abs(tile - expected[:50, 50:]).max() < 1e-5
    restored = parse(json.loads(json.dumps(fitted.to_dict())))
    np.testing.assert_array_equal(restored.tile(restored.prepare(X[:50]), restored.prepare(X[50:])), tile)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array], ids=["dense", "csr"])
def test_distances_of_near_duplicates_keep_their_digits(form):
    rng = np.random.default_rng(0)
    X = np.repeat(histograms(20), 2, axis=0)
    X[1::2] += 1e-4 * rng.random((20, D)) * (X[1::2] > 0)
    kernel = Exponential(1e-3)
    K, fitted = gram_matrix(kernel, form(X))
    near = np.exp(-np.linalg.norm(X[::2] - X[1::2], axis=1) / 1e-3)
    np.testing.assert_allclose(np.diag(K, 1)[::2], near, atol=1e-3)
    p = fitted.prepare(form(X))
    np.testing.assert_array_equal(np.diag(fitted.tile(p, p)), 1.0)


@pytest.mark.parametrize(
    "kernel",
    [
        *(
            parse(prefix + name)
            for name in ("rbf", "laplacian", "exponential", "chi2")
            for prefix in ("", "hellinger-")
        ),
        *(parse(name) for name in ("intersection", "linear", "polynomial", "cosine", "l1-intersection")),
        RBF("mean-fifth-neighbor") + 2.0 * ChiSquare("median"),
        Laplacian() * Intersection(),
    ],
    ids=str,
)
def test_every_named_kernel_is_positive_semidefinite(kernel):
    K, _ = gram_matrix(kernel, histograms(120, density=0.4), np.float64)
    values = np.linalg.eigvalsh(K)
    assert values.min() > -1e-12 * values.max()


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_tile_of_slices_is_that_part_of_the_gram_matrix(data):
    name = data.draw(st.sampled_from(list(ROWS)))
    kernels_of = [k for k in KERNELS if "signed" not in name or not k.non_negative]
    kernel = data.draw(st.sampled_from(kernels_of))
    rows, columns = (
        slice(*sorted(data.draw(st.tuples(st.integers(0, N), st.integers(0, N))), key=int)) for _ in range(2)
    )
    X = ROWS[name]
    K, fitted = gram_matrix(kernel, X)
    p = fitted.prepare(X)
    tol = 3e-6 * np.abs(K).max()
    np.testing.assert_allclose(fitted.tile(p[rows], p[columns]), K[rows, columns], atol=tol)
    x, y = fitted.prepare(X[rows]), fitted.prepare(X[columns])
    np.testing.assert_allclose(fitted.tile(x, y), K[rows, columns], atol=tol)


def test_tile_writes_into_out_and_refuses_an_array_that_does_not_fit():
    fitted = RBF().fit(signed())
    p = fitted.prepare(signed())
    out = np.empty((30, 50), np.float32)
    assert fitted.tile(p[:30], p[:50], out) is out
    np.testing.assert_allclose(out, fitted.tile(p, p)[:30, :50], atol=1e-6)
    for wrong in (np.empty((50, 30), np.float32), np.empty((30, 50)), np.empty((30, 100), np.float32)[:, ::2]):
        with pytest.raises(ValueError, match="out must be a C-contiguous"):
            fitted.tile(p[:30], p[:50], wrong)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_wide_sparse_rows_are_never_made_dense(kernel):
    n, d, each = 60, 4_000_000, 5  # dense rows would need 960 MB in float32
    rng = np.random.default_rng(0)
    columns = rng.choice(200, (n, each)) * (d // 200)
    X = sp.csr_array((rng.random(n * each), columns.ravel(), np.arange(n + 1) * each), shape=(n, d))
    small = X[:, :: d // 200].toarray()
    K, fitted = gram_matrix(kernel, X)
    assert fitted.prepare(X).nbytes < 10_000
    np.testing.assert_allclose(K, oracle(kernel, small, small), atol=3e-6 * np.abs(K).max())


def test_dense_and_sparse_rows_meet_in_one_tile():
    X = histograms()
    for kernel in KERNELS:
        fitted = kernel.fit(X)
        mixed = fitted.tile(fitted.prepare(sp.csr_array(X[:50])), fitted.prepare(X[50:]))
        np.testing.assert_allclose(mixed, oracle(kernel, X[:50], X[50:]), atol=3e-6 * np.abs(mixed).max())
        fitted = kernel.fit(sp.csr_array(X))
        mixed = fitted.tile(fitted.prepare(X[:50] + 0.01), fitted.prepare(sp.csr_array(X[50:])))
        np.testing.assert_allclose(mixed, oracle(kernel, X[:50] + 0.01, X[50:]), atol=3e-6 * np.abs(mixed).max())


def test_explicit_zeros_duplicates_and_other_sparse_formats_do_not_matter():
    X = sp.coo_array((np.array([1.0, 0.0, 2.0, 3.0, 1.0]), (np.array([0, 0, 1, 1, 2]), np.array([0, 1, 2, 2, 0]))))
    for form in (sp.coo_array, sp.csc_array, sp.csr_matrix):
        for kernel in (ChiSquare(2.0), RBF(2.0), Exponential(3.0)):
            np.testing.assert_allclose(kernel(form(X)), oracle(kernel, X, X), atol=1e-6)


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int64, np.float16, np.bool_, ">f4"])
def test_rows_of_any_real_dtype_and_layout(kind):
    X = np.asfortranarray((histograms() * 5).astype(kind))
    X.flags.writeable = False
    for kernel in (RBF(9.0), ChiSquare(30.0), Laplacian(30.0)):
        np.testing.assert_allclose(kernel(X), oracle(kernel, X, X), atol=3e-6)


def test_rows_come_from_dask_zarr_and_lists():
    X = histograms().astype(np.float32)
    stored = zarr.array(X, chunks=(50, D))
    for kernel in (RBF(), ChiSquare()):
        expected = kernel(X)
        for source in (da.from_array(X, chunks=(64, D)), stored, X.tolist()):
            np.testing.assert_allclose(gram_matrix(kernel, source)[0], expected, atol=1e-6)
            assert kernel.fit(source).bandwidth == pytest.approx(kernel.fit(X).bandwidth, rel=1e-6)


def test_the_number_of_threads_is_the_callers_or_that_of_blas_and_changes_nothing():
    with threadpool_limits(1, user_api="blas"):
        assert threads.thread_count() == 1
    assert threads.thread_count(3) == 3
    X = histograms(700)
    for kernel in (ChiSquare(), Laplacian("median"), Intersection()):
        one, many = (gram_matrix(kernel, X, n_threads=k)[0] for k in (1, 4))
        np.testing.assert_array_equal(one, many)
    with pytest.raises(ValueError, match="n_threads must be at least 1, got 0"):
        gram_matrix("chi2", X, n_threads=0)


def test_powers_of_two_are_exact_to_a_rounding_and_vanish_below_the_normal_numbers():
    for dtype, lowest, tol in ((np.float32, -126, 2e-7), (np.float64, -1022, 1e-15)):
        y = np.linspace(lowest + 0.01, 0, 10_001, dtype=dtype)[None]
        K, zero = y.copy(), np.zeros(10_001, dtype)
        loops.map_tile(loops.GAUSSIAN, dtype(1), dtype(0), 1, K, 0, 1, zero[:1], zero)
        np.testing.assert_allclose(K, np.exp2(y), rtol=tol)
        K[:] = lowest - np.geomspace(0.1, 1e30, 10_001, dtype=dtype)
        loops.map_tile(loops.GAUSSIAN, dtype(1), dtype(0), 1, K, 0, 1, zero[:1], zero)
        assert not K.any()


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array], ids=["dense", "csr"])
def test_normalized_rows(form):
    X = histograms()
    for how in ("l1", "l2"):
        np.testing.assert_allclose(dense(normalize_rows(form(X), how)), normalize(X, how), rtol=1e-6)
    np.testing.assert_allclose(dense(normalize_rows(form(X), "hellinger")), np.sqrt(normalize(X, "l1")), rtol=1e-6)
    np.testing.assert_array_equal(dense(normalize_rows(form(X), None)), X)
    assert sp.issparse(normalize_rows(form(X), "l1")) == (form is sp.csr_array)
    assert normalize_rows(form(X.astype(np.float32)), "l1").dtype == np.float32
    assert normalize_rows(form(X), "l1").dtype == np.float64
    expected = normalize_rows(X, "hellinger")
    for kernel in (RBF(0.7, "hellinger"), ChiSquare(0.7, "hellinger"), Linear("hellinger")):
        plain = parse(kernel.to_dict() | {"normalize": None})
        np.testing.assert_allclose(kernel(form(X)), oracle(plain, expected, expected), atol=3e-6)


def test_sums_and_products_of_kernels_are_kernels():
    X, Y = histograms(), histograms(seed=5)
    a, b, c = RBF(5.0), ChiSquare(15.0), Linear()
    A, B, C = (oracle(k, X, Y) for k in (a, b, c))
    for kernel, expected in (
        (a + b + c, A + B + C),
        (2.0 * a + 0.5 * (b + c), 2 * A + 0.5 * (B + C)),
        (a * b * c, A * B * C),
        ((a + b) * c, (A + B) * C),
        (Sum((a, b), (0.25, 0.75)), 0.25 * A + 0.75 * B),
        (a * 3, 3 * A),
    ):
        np.testing.assert_allclose(kernel(X, Y), expected, rtol=1e-5, atol=1e-6 * expected.max())
        K, fitted = gram_matrix(kernel, X)
        p = fitted.prepare(X)
        np.testing.assert_allclose(np.diag(K), fitted.diagonal(p), rtol=1e-6)
        np.testing.assert_allclose(fitted.tile(p[:30], p[40:90]), K[:30, 40:90], rtol=1e-5, atol=1e-6 * K.max())
    K, fitted = gram_matrix(RBF() + Polynomial(), X)
    assert fitted == (RBF() + Polynomial()).fit(X)
    assert fitted.kernels[1].gamma == 1 / D
    assert a + b == Sum((a, b), (1.0, 1.0))
    assert a * b == Product((a, b))


def test_precomputed_kernels_pass_through():
    K = pairwise.rbf_kernel(signed())
    cross = pairwise.rbf_kernel(signed(30, seed=9), signed())
    kernel = Precomputed().fit(K)
    x, p = kernel.prepare(cross, np.float64), kernel.prepare(K, np.float64)
    np.testing.assert_array_equal(kernel.tile(x[5:20], p[30:60]), cross[5:20, 30:60])
    np.testing.assert_array_equal(kernel.tile(p[10:50][5:], p[30:60]), K[15:50, 30:60])
    np.testing.assert_array_equal(kernel.diagonal(p[10:50]), np.ones(40))
    np.testing.assert_allclose(gram_matrix("precomputed", K, np.float64)[0], K, rtol=1e-15)
    for call, message in (
        (lambda: kernel.fit(cross), "must be square, got 30 x 200"),
        (lambda: kernel.tile(p, x), "y must be rows of the square training kernel"),
        (lambda: kernel.diagonal(x[20:]), "diagonal of new rows is unknown"),
        (lambda: kernel.tile(kernel.prepare(cross[:, :50]), p), "x has 50 columns, the training kernel 200"),
        (lambda: gram_matrix(kernel, np.triu(K)), "must be symmetric"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_kernels_are_values_that_json_and_pickle_keep():
    X = histograms()
    for kernel in (*KERNELS, Precomputed(), RBF("median", "hellinger", 0.5), RBF() + 2.0 * Linear("l2") * ChiSquare()):
        assert parse(json.loads(json.dumps(kernel.to_dict()))) == kernel
        assert hash(parse(kernel.to_dict())) == hash(kernel)
        assert kernels.from_dict(kernel.to_dict()) == kernel
        assert pickle.loads(pickle.dumps(kernel)) == kernel
        assert type(kernel).__name__ in repr(kernel)
        if isinstance(kernel, Precomputed):
            continue
        fitted = kernel.fit(X)
        assert parse(json.loads(json.dumps(fitted.to_dict()))) == fitted
        for source in (X, sp.csr_array(X)):
            p = fitted.prepare(source)
            q = pickle.loads(pickle.dumps(p[20:90]))
            assert len(q) == 70
            assert q.nbytes < p.nbytes
            np.testing.assert_array_equal(fitted.tile(q, q), fitted.tile(p[20:90], p[20:90]))
    assert RBF(2) == RBF(2.0) != RBF(3.0)
    assert RBF(2.0).fit(X) != RBF(2.0).fit(X + 1)
    assert len(repr(RBF(2.0).fit(X))) < 80


def test_names_give_kernels():
    for name in ("rbf", "laplacian", "exponential", "chi2", "intersection", "linear", "polynomial", "cosine"):
        assert parse(name).name == name
        for prefix in ("hellinger", "l1", "l2"):
            assert parse(f"{prefix}-{name}") == parse({"kernel": name, "normalize": prefix})
    assert parse("precomputed") == Precomputed()


X = histograms()
ERRORS = [
    (lambda: parse("rbff"), "'rbff' is unknown; known: rbf, laplacian"),
    (lambda: parse("helinger-rbf"), "did you mean 'hellinger-rbf'?"),
    (lambda: parse("l1-precomputed"), "is unknown"),
    (lambda: parse({"kernel": "gauss"}), "kernel 'gauss' is unknown"),
    (lambda: parse({"kernel": "rbf", "bandwith": 2}), "parameter 'bandwith' is unknown"),
    (lambda: parse({"pixels": "rbf"}), "expected one kernel, got a mapping of 'pixels'"),
    (lambda: RBF("meen"), "rbf: bandwidth must be a number or one of 'mean', 'median'"),
    (lambda: Laplacian(0), "laplacian: bandwidth must be a positive number, got 0"),
    (lambda: RBF(scale=-1), "rbf: scale must be a positive number, got -1"),
    (lambda: RBF(normalize="L1"), "rbf: normalize must be one of None, 'l1', 'l2', 'hellinger', got 'L1'"),
    (lambda: Polynomial(degree=0), "degree must be a whole number >= 1"),
    (lambda: Polynomial(coef0=-1.0), "coef0 must be a number >= 0"),
    (lambda: Polynomial(gamma=0.0), "gamma must be a positive number or None"),
    (lambda: -1.0 * RBF(), "weights must be positive"),
    (lambda: Sum((RBF(),), (1.0, 2.0)), "got 1 kernels and 2 weights"),
    (lambda: Product(()), "needs at least one kernel"),
    (lambda: RBF().tile(RBF().prepare(X), RBF().prepare(X)), "bandwidth 'mean' is a rule; call fit first"),
    (lambda: Polynomial().tile(Linear().prepare(X), Linear().prepare(X)), "gamma is not set; call fit first"),
    (lambda: Linear().tile(Linear().prepare(X), Linear().prepare(X[:, 1:])), "x has 45 columns, y has 44"),
    (lambda: Linear().tile(Linear().prepare(X), Linear().prepare(X, np.float64)), "x is float32, y is float64"),
    (lambda: Linear().tile(Linear().prepare(X), Linear("l1").prepare(X)), "prepared by another kernel"),
    (lambda: RBF().fit(X).prepare(X[:, 1:]), "was fitted on 45 columns, got 44"),
    (lambda: gram_matrix("rbf", np.ones((10, 4))), "bandwidth 'mean' is 0 because rows are equal"),
    (lambda: gram_matrix("rbf", np.full((10, 4), 0.1)), "bandwidth 'mean' is 0 because rows are equal"),
    (lambda: gram_matrix("rbf", sp.csr_array(np.full((10, 4), 0.1))), "bandwidth 'mean' is 0 because"),
    (lambda: gram_matrix("chi2", np.repeat(X[:1], 9, axis=0)), "chi2: bandwidth 'mean' is 0 because rows are equal"),
    (lambda: Laplacian().fit(sp.csr_array(np.repeat(X[:1], 9, axis=0))), "laplacian: bandwidth 'mean' is 0"),
    (lambda: RBF().fit(X[:1]), "needs at least 2 rows, got 1"),
    (lambda: RBF("mean-fifth-neighbor").fit(X[:5]), "needs at least 6 rows, got 5"),
    (lambda: Linear().prepare(X[0]), "needs a matrix of n rows x d columns"),
    (lambda: RBF(1.0).prepare(X + 1e4), "so far from the origin that float32 loses the distances"),
    (lambda: gram_matrix("rbf", sp.csr_array(X + 1e4)), "so far from the origin|bandwidth 'mean' is 0"),
    (lambda: Linear().prepare(np.full((2, 2), 1e30)), "linear: rows are too large for float32, got 1e+30 at row 0"),
    (
        lambda: Linear().prepare(sp.csr_array(np.full((2, 2), 1e30))),
        "linear: rows are too large for float32, got 1e+30",
    ),
]


@pytest.mark.parametrize(("call", "message"), ERRORS, ids=[message[:40] for _, message in ERRORS])
def test_errors_name_the_mistake_and_the_fix(call, message):
    with pytest.raises(ValueError, match="|".join(re.escape(part) for part in message.split("|"))):
        call()


def test_wrong_types_are_type_errors():
    for call, message in (
        (lambda: parse(3), "kernel must be a name, a kernel or a dict, got int"),
        (lambda: Linear().prepare(X, np.float16), "tiles are float32 or float64, got dtype float16"),
        (lambda: Linear().prepare(X.astype(complex)), "needs rows of real numbers, got dtype complex128"),
        (lambda: Sum(("rbf",)), "needs kernels, got 'rbf'"),
        (lambda: RBF() + 1, "unsupported operand"),
        (lambda: RBF() * "a", "can't multiply|unsupported operand"),
    ):
        with pytest.raises(TypeError, match=message):
            call()


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array], ids=["dense", "csr"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -0.5])
def test_entries_without_a_value_are_named_by_row_and_column(value, form):
    bad = histograms().astype(np.float32)
    bad[103, 7] = value
    for kernel in (RBF(), Laplacian(), ChiSquare(), Intersection(), Cosine(), Linear("hellinger"), RBF(1.0, "l2")):
        if value == -0.5 and not kernel.non_negative and kernel.normalize != "hellinger":
            continue
        wanted = "non-negative" if value < 0 and np.isfinite(value) else "(non-negative|finite)"
        message = rf"{kernel.name}: needs {wanted} rows, got {value:.6g} at row 103, column 7; "
        for call in (gram_matrix, lambda k, X: k.prepare(X)):
            with pytest.raises(ValueError, match=message):
                call(kernel, form(bad))
    with pytest.raises(ValueError, match=f"normalize_rows: needs .* got {value:.6g} at row 103, column 7"):
        normalize_rows(form(bad), "hellinger")


def test_a_bad_row_outside_the_sample_or_inside_it_keeps_its_number(monkeypatch):
    monkeypatch.setattr(bandwidths, "SAMPLE", 40)
    bad = signed()
    inside = int(bandwidths.sample(N, 0)[17])
    bad[inside, 3] = np.nan
    for call in (gram_matrix, lambda k, X, random_state: k.fit(X, random_state)):
        with pytest.raises(ValueError, match=f"got nan at row {inside}, column 3"):
            call(RBF(), bad, random_state=0)


@pytest.mark.parametrize("view", ["RgbV3H1", "Gist", "HarrisSiftV3H1"])
def test_real_histograms(view, dmo_data):
    path = dmo_data / "corel5k" / "features" / f"corel5k_{view}.npz"
    if not path.exists():
        pytest.skip(f"no {path}")
    with np.load(path) as archive:
        X = archive["X"][:80]
    for kernel in (RBF(), Laplacian(), ChiSquare(), Intersection()):
        if kernel.non_negative and X.min() < 0:
            continue
        K, fitted = gram_matrix(kernel, X)
        expected = oracle(fitted, X, X)
        np.testing.assert_allclose(K, expected, atol=3e-6 * expected.max())


def test_products_do_not_depend_on_the_threads_and_are_numpys():
    rng = np.random.default_rng(0)
    A, B = rng.standard_normal((1003, 700)), rng.standard_normal((700, 150))
    with threadpool_limits(1, user_api="blas"):
        alone = threads.product(A, B)
    with threadpool_limits(2, user_api="blas"):
        shared = threads.product(A, B)
        assert np.array_equal(threads.product(B.T, A.T), threads.product(B.T, A.T))
    assert np.array_equal(alone, shared)
    np.testing.assert_allclose(alone, A @ B, rtol=1e-12, atol=1e-11)


def test_small_products_of_many_threads_have_blas_alone_and_give_its_threads_back():
    with threadpool_limits(2, user_api="blas"):
        before = threads.thread_count()
        with threads.single_blas():
            assert threads.thread_count() == before  # `single_blas` limits only BLAS
            assert all(library.num_threads == 1 for library in threads._blas().lib_controllers)
            inner = threads.in_threads(lambda _: threads.thread_count(), [0, 1, 2])
            assert inner == [1, 1, 1]  # each task uses a single thread
            assert threads.thread_count() == before
        assert threads.thread_count() == before
        assert max(library.num_threads for library in threads._blas().lib_controllers) == before


def test_tasks_in_threads_tell_their_progress_to_who_listens():
    told = []

    def work(name):
        with progress.stage(name):
            return name

    with threadpool_limits(2, user_api="blas"), progress.listen(told.append):
        assert threads.in_threads(work, ["a", "b", "c"]) == ["a", "b", "c"]
    assert sorted(event["stage"] for event in told if event["state"] == "done") == ["a", "b", "c"]


@pytest.mark.parametrize(
    "container", [np.asarray, sp.csr_array, lambda X: da.from_array(X, (40, -1)), lambda X: zarr.array(X)]
)
def test_a_lazy_kernel_is_the_kernel_matrix(container):
    X = np.random.default_rng(0).normal(size=(130, 4))
    kernel = RBF(2.0)
    K, new = gram_matrix(kernel, X, np.float64)[0], X[:30] + 0.1
    found = kernel_array(kernel, container(X), block=50, dtype=np.float64)
    assert found.chunks == ((50, 50, 30), (50, 50, 30))
    np.testing.assert_allclose(found.compute(), K, atol=1e-12)
    cross = kernel_array(kernel, container(new), container(X), block=50, dtype=np.float64)
    np.testing.assert_allclose(cross.compute(), kernel(new, X, dtype=np.float64), atol=1e-12)
    rule = kernel_array("rbf", container(X), block=50, dtype=np.float64)
    np.testing.assert_allclose(rule.compute(), gram_matrix("rbf", X, np.float64)[0], atol=1e-6)


def test_a_lazy_kernel_computes_blocks_on_both_sides_of_the_diagonal_once(monkeypatch):
    tiles, work = [], RBF.tile
    monkeypatch.setattr(RBF, "tile", lambda self, x, y, out=None: tiles.append(0) or work(self, x, y, out))
    found = kernel_array(RBF(1.0), np.random.default_rng(0).normal(size=(100, 3)), block=25)
    assert not tiles
    found.compute(scheduler="synchronous")
    assert len(tiles) == 4 * 5 / 2


def test_a_lazy_kernel_of_a_matrix_is_refused():
    with pytest.raises(UserError, match="a precomputed kernel is a matrix already; use it directly"):
        kernel_array("precomputed", np.eye(3))


def test_searches_set_parameters_of_a_kernel_in_copies_alone():
    X = signed(60, 4)
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    for model in (KGHA(n_components=1, kernel=RBF(bandwidth=1.0)), MultiViewRidge(RBF(bandwidth=1.0))):
        search = GridSearchCV(model, {"kernel__bandwidth": [0.01, 1.0, 100.0]}, cv=3).fit(X, y)
        alone = [cross_val_score(clone(model).set_params(kernel=RBF(b)), X, y, cv=3).mean() for b in (0.01, 1.0, 100.0)]
        np.testing.assert_allclose(search.cv_results_["mean_test_score"], alone)
        assert model.kernel == RBF(bandwidth=1.0)
        assert clone(model).kernel == model.kernel
        assert clone(model).kernel is not model.kernel
    assert clone(RBF() + Linear()) == RBF() + Linear()
    fitted = RBF("mean").fit(X)
    assert clone(fitted) == fitted
    before = fitted.tile(fitted.prepare(X), fitted.prepare(X))
    wider = fitted.set_params(scale=2.0, offset=tuple(np.ones(4)))
    np.testing.assert_allclose(wider.tile(wider.prepare(X), wider.prepare(X)), before**0.25, atol=1e-5)
    with pytest.raises(UserError, match="rbf: parameter 'bandwith' is unknown; known: bandwidth, normalize"):
        RBF().set_params(bandwith=1.0)
    with pytest.raises(UserError, match="rbf: scale must be a positive number"):
        RBF().set_params(scale=-1.0)


@pytest.mark.parametrize("rows", ["signed", "csr"])
@pytest.mark.parametrize("approximation", ["exact", Nystrom(rank=40, landmarks="uniform"), Meka(rank=20, clusters=2)])
def test_a_function_of_two_matrices_is_a_kernel_and_gives_what_the_kernel_of_its_formula_gives(rows, approximation):
    X = ROWS[rows][:130]
    Y = np.eye(3)[np.arange(130) % 3]

    def own(A, B):
        return pairwise.laplacian_kernel(dense(A), dense(B), gamma=0.2)

    options = {"n_components": 2, "approximation": approximation, "random_state": 0}
    found = KGHA(kernel=own, **options).fit(X, Y).decision_function(X)
    expected = KGHA(kernel=Laplacian(bandwidth=5.0), **options).fit(X, Y).decision_function(X)
    np.testing.assert_allclose(found, expected, atol=2e-3 * np.abs(expected).max())
    K, _ = gram_matrix(own, X, np.float64)
    np.testing.assert_allclose(K, own(X, X), atol=1e-12)
    np.testing.assert_array_equal(K, K.T)


def test_functions_that_are_not_kernels_are_rejected(tmp_path):
    X, y = signed(40, 3), np.arange(40) % 2
    wrong = {
        "is not symmetric, k of rows": lambda A, B: A[:, :1] + 2 * B[:, 0],
        "returned float64 of shape \\(16,\\) .*, expected numbers of shape \\(16, 16\\)": lambda A, B: A[:, 0],
        "expected numbers of shape \\(1, 16\\)": lambda A, B: np.ones((16, 16)),
        "non-finite values": lambda A, B: np.full((len(A), len(B)), np.nan),
    }
    for said, function in wrong.items():
        with pytest.raises(UserError, match=f"MultiViewRidge: kernel <lambda>: .*{said}"):
            MultiViewRidge(function).fit(X, y)
    model = MultiViewRidge(pairwise.laplacian_kernel).fit(X, y)
    with pytest.raises(
        UserError, match=r"laplacian_kernel: a Python function cannot be saved, .* kernel='precomputed'"
    ):
        model.save(tmp_path / "m.zarr")
    assert not (tmp_path / "m.zarr").exists()
