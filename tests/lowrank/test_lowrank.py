"""Test landmarks, Nystrom, MEKA, block-sparse rows, and operators and solvers for low-rank kernels."""

import pickle
import tracemalloc
from dataclasses import replace

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
import zarr
from cases import checked_by_scikit_learn
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist
from sklearn.kernel_approximation import Nystroem
from sklearn.metrics.pairwise import chi2_kernel, laplacian_kernel, rbf_kernel

from dmo import KGHA, stores
from dmo.kernels import RBF, ChiSquare, Laplacian, Linear
from dmo.linalg import pivoted_cholesky
from dmo.linalg.factors import BlockLowRank
from dmo.linalg.operators import LowRank
from dmo.linalg.pivoted_cholesky import _inverse_root, rpcholesky
from dmo.linalg.solve import factorize
from dmo.linalg.tall import BlockRows
from dmo.lowrank import FeatureMap, choose, from_landmarks, meka, nystrom, sampled_error
from dmo.lowrank.approximations import BestLowRank, Meka, Nystrom
from dmo.lowrank.feature_maps import LinearMap
from dmo.lowrank.landmarks import _sketch, allocate, assign, balanced_centers, choose_landmarks, kmeans
from dmo.lowrank.many_bandwidths import ManyBandwidths
from dmo.lowrank.nystrom import cut_off, inverse_root
from dmo.lowrank.sampling import _drawn, error_rows, learning_rows


def clustered(n: int, d: int = 20, seed: int = 0) -> np.ndarray:
    """Generate nonnegative noisy rows near a curved surface with twenty clusters of unequal size."""
    fixed, rng = np.random.default_rng(7), np.random.default_rng(seed)
    centers, slopes = 2 * fixed.standard_normal((20, 4)), fixed.standard_normal((4, d)) / 2
    share = np.arange(1, 21) ** -1.5
    latent = centers[rng.choice(20, size=n, p=share / share.sum())] + 0.2 * rng.standard_normal((n, 4))
    return np.abs(np.tanh(latent @ slopes) + 0.02 * rng.standard_normal((n, d)))


X = clustered(500)
NEW = clustered(60, seed=1)
WIDE = RBF().fit(X)
NARROW = replace(WIDE, bandwidth=0.3 * WIDE.bandwidth)
K = {"wide": WIDE(X, dtype=np.float64), "narrow": NARROW(X, dtype=np.float64)}


def relative(exact: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(exact - other) / np.linalg.norm(exact))


def product(feature_map: FeatureMap, rows: np.ndarray = X) -> np.ndarray:
    F = feature_map(rows).astype(np.float64)
    return F @ F.T


def sequential(A: np.ndarray, rank: int, rng: np.random.Generator) -> np.ndarray:
    """Compute the factor of randomly pivoted Cholesky with one pivot at a time (Algorithm 2.1 of Chen et al., 2025)."""
    residual, F = np.diag(A).copy(), np.zeros((len(A), rank))
    for i in range(rank):
        pivot = rng.choice(len(A), p=residual / residual.sum())
        column = A[:, pivot] - F[:, :i] @ F[pivot, :i]
        F[:, i] = column / np.sqrt(column[pivot])
        residual = np.maximum(residual - F[:, i] ** 2, 0)
    return F


# --- randomly pivoted Cholesky


def test_blocked_pivoting_is_as_good_as_one_pivot_at_a_time(monkeypatch):
    monkeypatch.setattr(pivoted_cholesky, "_PROPOSALS", 30)
    A = K["narrow"]
    plain = [relative(A, F @ F.T) for s in range(7) for F in [sequential(A, 60, np.random.default_rng(s))]]
    blocked = [
        relative(A, found.factor @ found.factor.T)
        for s in range(7)
        for found in [rpcholesky(np.diag(A), lambda i: A[:, i], 60, s)]
    ]
    assert np.median(blocked) <= 1.05 * np.median(plain)


@pytest.mark.parametrize("with_submatrix", [False, True])
def test_pivoting_reports_its_residual_and_stops_at_the_rank(with_submatrix):
    G = np.random.default_rng(0).standard_normal((80, 12))
    A = G @ G.T
    entries = (lambda i: A[np.ix_(i, i)]) if with_submatrix else None
    part = rpcholesky(np.diag(A), lambda i: A[:, i], 7, 0, submatrix=entries)
    np.testing.assert_allclose(part.residual, np.diag(A - part.factor @ part.factor.T), atol=1e-5)
    whole = rpcholesky(np.diag(A), lambda i: A[:, i], 50, 0, submatrix=entries)
    assert 12 <= len(whole.pivots) <= 13
    assert len(set(whole.pivots)) == len(whole.pivots)
    assert relative(A, whole.factor @ whole.factor.T) < 1e-6


# --- landmarks and clusters


def test_kmeans_landmarks_beat_pivoted_cholesky_which_beats_uniform_on_clustered_rows():
    def error(kind):
        found = [nystrom(NARROW, X, 60, kind, seed) for seed in range(5)]
        return np.median([relative(K["narrow"], product(m)) for m in found])

    assert error("kmeans") < error("rpcholesky") < error("uniform")


@pytest.mark.parametrize("sparse", [False, True])
def test_pivots_among_rows_of_few_sums_find_small_groups_as_those_among_all_features_do(sparse, monkeypatch):
    rng = np.random.default_rng(0)
    groups = np.concatenate(
        [np.zeros(1400, int), np.repeat(np.arange(1, 16), 4)]
    )  # there are 15 groups of 4 rows and one large group
    wide = rng.standard_normal((16, 1500))[groups] + 0.02 * rng.standard_normal((len(groups), 1500))
    wide[:, 900:] = 0.0
    rows, kernel = (scipy.sparse.csr_array(wide) if sparse else wide), RBF(bandwidth=12.0).fit(wide)
    kernel = RBF(bandwidth=12.0) if sparse else kernel
    tiled = []
    tile = RBF.tile

    def spied(self, x, y, out=None):
        tiled.append(x.shape[1])
        return tile(self, x, y, out)

    monkeypatch.setattr(RBF, "tile", spied)
    found = [choose_landmarks(kernel, rows, 60, "rpcholesky", np.random.default_rng(seed)) for seed in range(3)]
    assert set(tiled) == {256}
    for Z in found:
        Z = Z.toarray() if sparse else Z
        assert len(Z) == 60
        nearest = ((Z[:, None, :900] - wide[None, 1400::4, :900]) ** 2).sum(axis=2).min(axis=0)
        assert (nearest < 500).all()  # squared distances are about 1 within groups and 1800 between groups
    alone = choose_landmarks(Linear(), rows, 60, "rpcholesky", np.random.default_rng(0))
    assert alone.shape == (60, 1500)  # landmarks are raw rows, not sums


def test_sums_of_features_are_the_same_of_dense_and_sparse_rows_and_keep_distances():
    rows = np.random.default_rng(0).standard_normal((40, 1100))
    dense, sparse = (
        _sketch(RBF(bandwidth=1.0), kind, np.random.default_rng(1)) for kind in (rows, scipy.sparse.csr_array(rows))
    )
    np.testing.assert_allclose(dense.values, sparse.values, atol=1e-4)
    np.testing.assert_allclose(pdist(dense.values), pdist(rows), rtol=0.3)
    one = _sketch(RBF(bandwidth=1.0), np.eye(1100, dtype=np.float32), np.random.default_rng(1)).values
    assert (np.abs(one).sum(axis=1) == 1).all()
    assert np.abs(one).sum(axis=0).max() <= 5  # 1100 features share 256 sums


@pytest.mark.parametrize("sparse", [False, True])
def test_centers_of_rows_of_very_many_features_are_means_of_these_rows(sparse):
    rng = np.random.default_rng(0)
    E = (rng.random((300, 1500)) * (rng.random((300, 1500)) < 0.3)).astype(np.float32)
    E[:100, :750] += 1
    found = kmeans(scipy.sparse.csr_array(E) if sparse else E, 2, rng)
    wanted = np.stack([E[100:].mean(axis=0), E[:100].mean(axis=0)])
    np.testing.assert_allclose(found[np.argsort(found.sum(axis=1))], wanted, atol=1e-6)


def test_bandwidths_of_groups_of_rows_are_that_of_all():
    rows = np.random.default_rng(0).standard_normal((3000, 3)) * np.random.default_rng(1).lognormal(0, 0.5, (3000, 1))
    fitted = nystrom("rbf", rows, 5, random_state=0).kernel
    assert fitted.bandwidth == pytest.approx(pdist(rows).mean(), rel=0.03)
    rows = rows[:1024]
    rows[::4] = 1.0  # a quarter of the rows is equal
    assert nystrom("rbf", rows, 5, random_state=0).kernel.bandwidth == pytest.approx(pdist(rows).mean(), rel=1e-5)


@pytest.mark.parametrize("rank", [12, 20])
def test_inverse_roots_skip_dependent_rows(rank):
    rng = np.random.default_rng(0)
    F = rng.standard_normal((20, rank))
    keep, P = inverse_root(F @ F.T, 1e-10, 1e-14)
    assert len(keep) == rank
    np.testing.assert_array_equal(P, np.triu(P))
    np.testing.assert_allclose(P @ P.T, np.linalg.inv((F @ F.T)[np.ix_(keep, keep)]), rtol=1e-5)


def test_pivots_that_sums_do_not_have_are_looked_for_among_the_rows():
    rows = scipy.sparse.csr_array(np.eye(700, 1500))  # the 1500 features share 256 sums
    found = choose_landmarks(RBF(bandwidth=1.0), rows, 700, "rpcholesky", np.random.default_rng(0))
    assert sorted(found.indices) == list(range(700))


def test_centers_of_a_hellinger_kernel_are_taken_between_square_roots():
    kernel = RBF(normalize="hellinger").fit(X)
    exact = kernel(X, dtype=np.float64)
    rng = np.random.default_rng(0)
    centers = choose_landmarks(kernel, X, 40, "kmeans", rng)
    assert relative(exact, product(from_landmarks(kernel, centers))) < relative(
        exact, product(nystrom(kernel, X, 40, "uniform", 0))
    )


def test_clusters_are_balanced_and_nearest():
    rng = np.random.default_rng(0)
    E = np.concatenate([rng.standard_normal((900, 5)), rng.standard_normal((100, 5)) + 20])
    centers = balanced_centers(E, 8, rng)
    nearest = assign(E, centers)
    assert np.bincount(nearest).max() <= 2 * 1000 / 8
    brute = ((E[:, None] - centers[None]) ** 2).sum(axis=2).argmin(axis=1)
    np.testing.assert_array_equal(nearest, brute)


def test_rows_that_are_alike_make_one_cluster():
    assert len(balanced_centers(np.ones((30, 3)), 4, np.random.default_rng(0))) == 1


@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(1, 300))
@settings(max_examples=60, deadline=None)
def test_ranks_follow_the_sizes(sizes, total):
    sizes = np.array(sizes)
    ranks = allocate(sizes, total)
    assert (ranks >= 1).all()
    assert (ranks <= sizes).all()
    assert ranks.sum() == min(max(total, len(sizes)), sizes.sum())


# --- Nystrom


@pytest.mark.parametrize("kernel", [WIDE, NARROW, Laplacian().fit(X), Linear()])
def test_nystrom_with_all_rows_is_the_kernel(kernel):
    exact = kernel(X, dtype=np.float64)
    for landmarks in ("rpcholesky", "uniform"):
        found = nystrom(kernel, X, len(X), landmarks, 0, np.float64)
        assert relative(exact, product(found)) < 1e-6


def test_nystrom_is_sklearns_with_the_same_landmarks():
    theirs = Nystroem("rbf", gamma=0.5 / WIDE.bandwidth**2, n_components=50, random_state=0).fit(X)
    mine = from_landmarks(WIDE, X[theirs.component_indices_], np.float64)
    F = theirs.transform(NEW)
    np.testing.assert_allclose(product(mine, NEW), F @ F.T, atol=1e-6)


def test_float32_factor_rows_are_accurate():
    for kernel in (WIDE, NARROW):
        single, double = (nystrom(kernel, X, 200, "rpcholesky", 0, dtype) for dtype in (np.float32, np.float64))
        assert single(X).dtype == np.float32
        assert relative(product(double), product(from_landmarks(kernel, single.landmarks))) < 1e-4


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows", [1, 37])
def test_new_rows_are_mapped_as_training_rows_in_any_batches(rows, dtype):
    # The order of BLAS sums depends on the number of rows, and a factor divides kernel values (at most 1) by square
    # roots
    # of pivots, which amplifies the rounding errors.
    digits = np.finfo(dtype).eps / np.sqrt(cut_off(np.dtype(dtype))[0])
    for found in (nystrom(WIDE, X, 60, random_state=0, dtype=dtype), meka(WIDE, X, 4, 20, random_state=0, dtype=dtype)):
        whole = found(X)
        pieces = np.concatenate([found(X[start : start + rows]) for start in range(0, len(X), rows)])
        np.testing.assert_allclose(pieces, whole, rtol=0, atol=digits)
        np.testing.assert_array_equal(found(X[:0]).shape, (0, found.rank))


@pytest.mark.parametrize(
    "fit",
    [
        lambda source: nystrom("rbf", source, 30, random_state=0),
        lambda source: meka("rbf", source, 3, 10, random_state=0),
    ],
)
def test_any_row_source_gives_the_same_map(fit):
    single = X.astype(np.float32)
    sources = [
        single,
        da.from_array(single, chunks=(77, 20)),
        zarr.array(single, chunks=(64, 20)),
        scipy.sparse.csr_array(single),
    ]
    for source in sources[1:]:
        tol = 5e-3 if scipy.sparse.issparse(source) else 1e-6
        assert relative(product(fit(single), single), product(fit(source), source)) < tol


def test_of_many_rows_a_sample_is_fitted():
    found = nystrom(WIDE, X, 40, random_state=0, fit_rows=120)
    assert found.rank == 40
    assert found.error["relative_error"] < 0.05
    wide = meka(WIDE, X, 3, 20, random_state=0, fit_rows=200)
    assert wide.error["relative_error"] < 0.05


class Counting:
    """Row source that supports slices and counts the rows that are read."""

    def __init__(self, X: np.ndarray):
        self.X, self.shape, self.dtype, self.given = X, X.shape, X.dtype, 0

    def __getitem__(self, where: slice) -> np.ndarray:
        block = self.X[where]
        self.given += len(block)
        return block


@pytest.mark.parametrize("fit", [lambda X: nystrom("rbf", X, 40, random_state=0), lambda X: meka("rbf", X, 3, 20)])
def test_a_map_is_learned_in_one_reading(fit):
    source = Counting(clustered(20_000, d=3))
    fit(source)
    assert 10_000 < source.given <= 20_000


@pytest.mark.parametrize(
    ("rank", "landmarks", "rows"),
    [
        (10, "kmeans", 4096),
        (1000, "kmeans", 16_000),
        (1000, "rpcholesky", 8000),
        (5000, "rpcholesky", 20_000),
        ("auto", "kmeans", 20_000),
    ],
)
def test_more_columns_are_learned_from_more_rows(rank, landmarks, rows):
    assert learning_rows(None, rank, landmarks) == rows
    assert learning_rows(300, rank, landmarks) == 300


def test_singular_landmark_kernels_survive():
    doubled = np.repeat(X[:60], 3, axis=0)
    exact = WIDE(doubled, dtype=np.float64)
    for landmarks in ("rpcholesky", "kmeans", "uniform"):
        found = nystrom(WIDE, doubled, 150, landmarks, 0)
        assert found.rank <= 60
        assert relative(exact, product(found, doubled)) < 1e-2
    assert relative(exact, product(meka(WIDE, doubled, 4, 30, random_state=0), doubled)) < 1e-2


def test_constant_features_have_rank_one():
    constant = np.ones((40, 3))
    kernel = RBF(bandwidth=1.0).fit(constant)
    for found in (nystrom(kernel, constant, 10, random_state=0), meka(kernel, constant, 4, 5, random_state=0)):
        assert found.rank == 1
        np.testing.assert_allclose(product(found, constant), 1.0, atol=1e-5)


@pytest.mark.parametrize("link", ["exact", "sampled"])
def test_features_of_zeros_have_rank_zero(link):
    zeros = np.zeros((30, 4))
    for found in (nystrom(Linear(), zeros, 5, random_state=0), meka(Linear(), zeros, 3, 5, link=link, random_state=0)):
        assert found(zeros).shape == (30, 0)
    mixed = np.vstack([zeros, np.eye(4)])
    found = meka(Linear(), mixed, 3, 5, link=link, random_state=0)
    np.testing.assert_allclose(product(found, mixed), mixed @ mixed.T, atol=1e-6)


def test_auto_rank_meets_the_tolerance_or_the_memory():
    for fit in (nystrom, lambda kernel, rows, **given: meka(kernel, rows, 3, **given)):
        met = fit(NARROW, X, rank="auto", tol=0.05, random_state=0)
        assert relative(K["narrow"], product(met)) < 0.06
        small = fit(NARROW, X, rank="auto", memory=4 * 30 * len(X), random_state=0)
        assert small.numbers(len(X)) <= 30 * len(X)
        assert small.error["relative_error"] > met.error["relative_error"]
    assert (
        nystrom(NARROW, X, rank="auto", tol=0.2, random_state=0).rank
        < nystrom(NARROW, X, rank="auto", tol=0.02, random_state=0).rank
    )


def test_sampled_error_is_the_error():
    found = nystrom(NARROW, X, 80, random_state=0)
    exact = relative(K["narrow"], product(found))
    assert found.error["relative_error"] == pytest.approx(exact, rel=0.25)
    everything = sampled_error(found, X, probes=np.arange(len(X)))
    assert everything["relative_error"] == pytest.approx(exact, rel=1e-3)
    assert everything["residual_diagonal"] == pytest.approx(1 - np.trace(product(found)) / len(X), rel=1e-3)


def test_rows_of_the_error_are_drawn_without_a_list_of_all_rows():
    tracemalloc.start()
    rows = error_rows(10_000_000, 0)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert len(np.unique(rows)) == len(rows)
    for n in (1, 100, 256):  # of few rows, every row is used once
        np.testing.assert_array_equal(error_rows(n, 0), np.arange(n))
    probes = np.random.default_rng(0).permutation(256)[:100]
    np.testing.assert_array_equal(
        np.sort(np.concatenate(_drawn(256, 0, probes))), np.arange(256)
    )  # the probes and the other rows cover all rows


# --- block-sparse rows


def some_rows(m: int, widths: list[int], seed: int) -> BlockRows:
    rng = np.random.default_rng(seed)
    owner = rng.integers(len(widths), size=m)
    edges = np.cumsum([0, *widths])
    parts = [s for s in range(len(widths)) if (owner == s).any()]
    rows = [rng.permutation(np.flatnonzero(owner == s)) for s in parts]
    blocks = [rng.standard_normal((len(index), widths[s])) for s, index in zip(parts, rows)]
    return BlockRows((m, int(edges[-1])), rows, [slice(int(edges[s]), int(edges[s + 1])) for s in parts], blocks)


@given(st.integers(0, 40), st.integers(0, 2**16))
@settings(max_examples=40, deadline=None)
def test_block_rows_multiply_as_their_dense_array(m, seed):
    A, B = some_rows(m, [3, 1, 4], seed), some_rows(m, [2, 5], seed + 1)
    dense = A.dense()
    rng = np.random.default_rng(seed)
    C, M = rng.standard_normal((m, 3)), rng.standard_normal((8, 2))
    np.testing.assert_allclose(A.gram(A), dense.T @ dense, atol=1e-12)
    np.testing.assert_allclose(A.gram(B), dense.T @ B.dense(), atol=1e-12)
    np.testing.assert_allclose(A.gram(C), dense.T @ C, atol=1e-12)
    np.testing.assert_allclose(A.t_dot(scipy.sparse.csr_array(C)), dense.T @ C, atol=1e-12)
    np.testing.assert_allclose(A.dot(M), dense @ M, atol=1e-12)
    index = rng.integers(max(m, 1), size=10)[: 10 * (m > 0)]
    np.testing.assert_array_equal(A[index].dense(), dense[index])
    np.testing.assert_array_equal(BlockRows.concatenate([A, some_rows(5, [3, 1, 4], 7), A]).dense()[m + 5 :], dense)


def test_block_gram_of_other_samples_is_refused():
    with pytest.raises(ValueError, match="pass the same samples in both"):
        some_rows(5, [2], 0).gram(some_rows(6, [2], 0))


# --- MEKA


@pytest.mark.parametrize("basis", ["block-row", "eigen"])
@pytest.mark.parametrize("width", ["wide", "narrow"])
def test_projected_links_are_semidefinite_and_the_best_for_their_basis(basis, width):
    kernel = {"wide": WIDE, "narrow": NARROW}[width]
    found = meka(kernel, X, 5, 20, basis, random_state=0, dtype=np.float64)
    W, L = found.raw(X).dense(), found.mixing @ found.mixing.T
    np.testing.assert_allclose(W.T @ W, np.eye(W.shape[1]), atol=1e-6)
    np.testing.assert_allclose(
        L, W.T @ K[width] @ W, atol=1e-6 * len(X)
    )  # this is the least squares solution, because W is orthonormal
    approximation = product(found)
    assert np.linalg.eigvalsh(approximation)[0] > -1e-10 * len(X)
    values = np.linalg.eigvalsh(K[width])
    same_memory = found.numbers(len(X)) // len(X)
    best = np.sqrt((values[:-same_memory] ** 2).sum()) / np.linalg.norm(K[width])
    if width == "narrow":
        assert relative(K[width], approximation) < best


def test_block_row_basis_is_near_the_best_of_its_kind():
    found = meka(NARROW, X, 5, 20, random_state=0, dtype=np.float64)
    rows = found.raw(X)
    captured = 0.0
    ideal = [np.linalg.svd(K["narrow"][index])[0][:, : block.shape[1]] for index, block in zip(rows.rows, rows.blocks)]
    for i, U in zip(rows.rows, ideal):
        for j, V in zip(rows.rows, ideal):
            captured += np.linalg.norm(U.T @ K["narrow"][np.ix_(i, j)] @ V) ** 2
    total = np.linalg.norm(K["narrow"])
    assert relative(K["narrow"], product(found)) < 1.1 * np.sqrt(total**2 - captured) / total


@pytest.mark.parametrize("width", ["wide", "narrow"])
def test_sampled_links_are_nearly_as_good_as_projected_ones(width):
    rows = clustered(1500)
    kernel = {"wide": WIDE, "narrow": NARROW}[width]
    exact = kernel(rows, dtype=np.float64)
    errors = {
        link: np.median(
            [relative(exact, product(meka(kernel, rows, 5, 20, link=link, random_state=s), rows)) for s in range(3)]
        )
        for link in ("exact", "sampled")
    }
    assert errors["sampled"] <= 1.1 * errors["exact"]


def test_meka_of_full_rank_is_the_kernel():
    found = meka(NARROW, X, 4, len(X), random_state=0, dtype=np.float64)
    assert relative(K["narrow"], product(found)) < 1e-6


def test_linear_rows_that_are_not_normalized_need_no_compiled_loop(monkeypatch):
    monkeypatch.setattr("dmo.kernels.loops.ready_rows", None)
    X = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    fitted = LinearMap.of(Linear(), X, center=True)
    np.testing.assert_array_equal(fitted.raw(X), X.astype(np.float64) - fitted.shift)


def test_far_links_can_be_left_out_and_the_rest_stays_semidefinite():
    found = meka(NARROW, X, 5, 20, eta=0.4, random_state=0, dtype=np.float64)
    assert np.linalg.eigvalsh(product(found))[0] > -1e-10 * len(X)
    full = meka(NARROW, X, 5, 20, random_state=0, dtype=np.float64)
    assert relative(K["narrow"], product(full)) < relative(K["narrow"], product(found)) < 0.5


def test_clusters_with_fewer_rows_than_their_rank_give_what_they_have():
    found = meka(WIDE, X[:30], 5, 100, random_state=0, dtype=np.float64)
    assert (found.ranks <= 30).all()
    assert relative(WIDE(X[:30], dtype=np.float64), product(found, X[:30])) < 1e-6


def test_bases_extend_to_rows_that_were_not_fitted():
    """A basis that is fitted only to the landmarks has squared norms of factor rows up to 30 at other rows."""
    for seed in range(3):
        F = meka(NARROW, X, 5, 30, random_state=seed, fit_rows=400)(NEW).astype(np.float64)
        assert relative(NARROW(NEW, dtype=np.float64), F @ F.T) < 0.3
        assert np.einsum("ij,ij->i", F, F).max() < 3  # the exact value k(x, x) is 1


def test_new_rows_of_meka_follow_the_kernel():
    found = meka(WIDE, X, 5, 20, random_state=0)
    F, G = found(NEW).astype(np.float64), found(X).astype(np.float64)
    assert relative(WIDE(NEW, X, dtype=np.float64), F @ G.T) < 3 * found.error["relative_error"]


# --- operators and solves


def operators() -> dict[str, tuple[FeatureMap, object]]:
    maps = {"LowRank": nystrom(WIDE, X, 60, random_state=0), "BlockLowRank": meka(WIDE, X, 4, 20, random_state=0)}
    return {name: (m, m.operator(X)) for name, m in maps.items()}


@pytest.mark.parametrize("name", ["LowRank", "BlockLowRank"])
def test_operators_of_maps(name):
    feature_map, A = operators()[name]
    assert isinstance(A, {"LowRank": LowRank, "BlockLowRank": BlockLowRank}[name])
    dense = product(feature_map)
    B = np.random.default_rng(0).standard_normal((len(X), 3))
    np.testing.assert_allclose(A @ B, dense @ B, atol=1e-3)
    np.testing.assert_allclose(A @ B[:, 0], dense @ B[:, 0], atol=1e-3)
    np.testing.assert_allclose(A.product(B), dense @ B, atol=1e-3)
    np.testing.assert_allclose(A.dense(), dense, atol=1e-5)
    np.testing.assert_allclose(A.diagonal(), np.diag(dense), atol=1e-5)
    np.testing.assert_allclose(A.columns(np.array([5, 2])), dense[:, [5, 2]], atol=1e-5)


@pytest.mark.parametrize("ridge", [1e-1, 1e-3])
def test_woodbury_solves_everything_made_of_low_rank_operators(ridge):
    low, block = (A for _, A in operators().values())
    other = meka(NARROW, X, 3, 15, random_state=1).operator(X)
    B = np.random.default_rng(0).standard_normal((len(X), 4))
    cases = [block, block.centered(), 0.3 * block.centered(), (0.3 * block).centered(), block + other, low + block]
    cases += [
        (low + block + other).centered(),
        block.centered() + other,
        block + other.centered(),
        low + block.centered(),
    ]
    cases += [(block + low) + (other + low)]
    for A in cases:
        solver = factorize(A, ridge)
        assert solver.method == "woodbury"
        found = solver.solve(B)
        dense = A.dense(np.float64) + ridge * np.eye(len(X))
        assert found.residuals.max() < 1e-6
        np.testing.assert_allclose(found.value, np.linalg.solve(dense, B), atol=1e-4 / ridge, rtol=1e-3)
        np.testing.assert_allclose(solver.inverse_diagonal(), np.diag(np.linalg.inv(dense)), rtol=1e-3)


def test_conjugate_gradients_work_on_block_low_rank_operators():
    block = operators()["BlockLowRank"][1]
    B = np.random.default_rng(0).standard_normal((len(X), 4))
    iterated = factorize(block.centered(), 0.1, "cg", random_state=0).solve(B)
    assert iterated.converged
    np.testing.assert_allclose(iterated.value, factorize(block.centered(), 0.1).solve(B).value, atol=1e-5)


# --- the choice between them


def test_choice_takes_the_smallest_error_of_new_rows():
    for kernel, rank in ((WIDE, 10), (NARROW, 60)):
        found = choose(kernel, X, rank=rank, clusters=4, random_state=0)
        fitted = {
            "nystrom-rpcholesky": nystrom(kernel, X, rank, random_state=5),
            "nystrom-kmeans": nystrom(kernel, X, rank, "kmeans", random_state=5),
            "meka": meka(kernel, X, 4, "auto", memory=4 * rank * len(X), random_state=5),
        }
        cross = kernel(NEW, X, dtype=np.float64)
        true = {name: relative(cross, m(NEW).astype(np.float64) @ m(X).T) for name, m in fitted.items()}
        assert set(found.errors) == set(true)
        assert found.feature_map.kind == min(true, key=true.get).split("-")[0]
        assert found.feature_map.error == min(found.errors.values(), key=lambda e: e["relative_error"])


def test_meka_is_tried_where_the_error_of_nystrom_is_above_a_hundredth():
    for kernel, tried in ((WIDE, False), (NARROW, True)):
        found = choose(kernel, X, rank=60, clusters=4, random_state=0)
        best = min(error["relative_error"] for name, error in found.errors.items() if name != "meka")
        assert (best > 0.01, "meka" in found.errors) == (tried, tried)


# --- keeping maps


@pytest.mark.parametrize("source", [X, scipy.sparse.csr_array(X)])
def test_maps_come_back_from_a_store_and_from_pickle(source, tmp_path):
    for found in (nystrom("rbf", source, 30, random_state=0), meka("rbf", source, 3, 10, random_state=0)):
        arrays, meta = found.to_arrays()
        stores.save_model(str(tmp_path / "map.zarr"), arrays, meta)
        loaded = FeatureMap.from_arrays(*stores.load_model(str(tmp_path / "map.zarr")))
        for again in (loaded, pickle.loads(pickle.dumps(found))):
            assert again.error == found.error
            np.testing.assert_array_equal(again(source), found(source))


def test_unknown_kinds_are_refused():
    with pytest.raises(
        ValueError, match="feature map of kind 'fourier'; this version knows landmarks, linear, meka, nystrom"
    ):
        FeatureMap.from_arrays({}, {"kind": "fourier"})


# --- bad input


def with_nan() -> np.ndarray:
    rows = X.copy()
    rows[17, 3] = np.nan
    return rows


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nystrom("rbf", with_nan(), 10), "row 17, column 3 is nan"),
        (lambda: meka("rbf", with_nan(), 2, 10), "row 17, column 3 is nan"),
        (lambda: nystrom("rbf", X, 0), "rank = 0; needs a whole number of at least 1"),
        (lambda: meka("rbf", X, 0, 5), "clusters = 0; needs a whole number of at least 1"),
        (lambda: meka("rbf", X, 2, 2.5), "rank = 2.5; needs a whole number of at least 1"),
        (lambda: meka("rbf", X, 2, 5, eta=1.0), "eta = 1.0"),
        (lambda: meka("rbf", X, 2, 5, "svd"), "basis = 'svd'"),
        (lambda: nystrom("rbf", X, 5, "corners"), "landmarks = 'corners'; known: 'rpcholesky'"),
        (lambda: nystrom("rbf", X, 5, tol=0.1), "pass rank='auto'"),
        (lambda: nystrom("rbf", X, "auto", tol=-1.0), "tol = -1.0; needs a positive number"),
        (lambda: nystrom("rbf", X, "auto", memory=10), "below one column of 500 rows"),
        (lambda: meka("rbf", X, 3, "auto", memory=10), "below one column"),
        (lambda: nystrom("rbf", X[:0], 5), "at least one of each"),
        (lambda: nystrom("precomputed", X, 5), "cannot choose landmarks from a precomputed kernel"),
        (lambda: choose("rbf", X, 5, memory=1e6), "pass one of them"),
        (lambda: nystrom(WIDE, X, 5)(X[:, :3]), "the map was fitted on 20 features"),
        (lambda: Nystrom(precision="half").fit(X), "precision = 'half'"),
        (lambda: Meka(clusters=2, rank=5).fit([X, X]), "fit one object per view"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_rank_above_n_is_n():
    assert nystrom(NARROW, X[:50], 1000, random_state=0).rank <= 50
    assert meka(NARROW, X[:50], 3, 1000, random_state=0).rank <= 50


# --- scikit-learn


@pytest.mark.slow
@checked_by_scikit_learn([Nystrom(rank=20), Meka(clusters=2, rank=10), BestLowRank(rank=20, clusters=2)])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def test_transformers_give_the_factor_rows_of_their_kernel():
    for model in (
        Nystrom(kernel=WIDE, rank=60, random_state=0),
        Meka(kernel=WIDE, clusters=4, rank=20, random_state=0),
    ):
        F = model.fit_transform(X)
        assert F.shape == (len(X), model.map_.rank)
        assert relative(K["wide"], F @ F.T) == pytest.approx(model.error_["relative_error"], rel=0.5)
        lazy = model.transform(da.from_array(NEW, chunks=(25, 20)))
        np.testing.assert_allclose(lazy, model.transform(NEW), atol=1e-6)


def test_a_pivot_block_that_rounding_made_indefinite_is_factored():
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((12, 12)))[0]
    spectrum = np.array([1.0] * 6 + [1e-4] * 5 + [-1e-6])
    block = (Q * spectrum) @ Q.T
    root = np.linalg.inv(_inverse_root(block.astype(np.float32), 1e-6))
    np.testing.assert_allclose(root @ root.T, block, atol=2e-5)
    with pytest.raises(np.linalg.LinAlgError, match="not positive semidefinite at the pivots"):
        _inverse_root((Q * np.array([1.0] * 11 + [-0.5])) @ Q.T, 1e-6)


def test_landmarks_beyond_single_precision_are_dropped():
    for seed in range(3):
        rows = np.random.default_rng(seed).standard_normal((2000, 4)).astype(np.float32)
        for rank in (300, 900):
            found = nystrom("rbf", rows, rank, random_state=seed)
            assert 200 < found.rank <= 300
            assert found.error["relative_error"] < 1e-5


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize(
    ("kernel", "theirs", "gamma"),
    [
        (RBF(), rbf_kernel, lambda width: 1 / (2 * width**2)),
        (Laplacian(), laplacian_kernel, lambda width: 1 / width),
        (ChiSquare(), chi2_kernel, lambda width: 1 / width),
    ],
    ids=["rbf", "laplacian", "chi2"],
)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_other_bandwidths_of_a_map_are_powers_of_its_kernel_values(kernel, theirs, gamma, precision, sparse):
    X = np.random.default_rng(0).random((60, 7)) * (np.random.default_rng(1).random((60, 7)) < 0.4)
    rows = scipy.sparse.csr_array(X) if sparse else X
    own = nystrom(kernel, rows, rank=60, random_state=0, dtype=precision)
    shared = ManyBandwidths(own)
    for factor in (0.4, 1.0, 3.0):
        found = shared.scaled(factor)
        F = found.raw(shared.exponents(rows)).astype(float)
        expected = theirs(X, gamma=gamma(factor * own.kernel.width))
        np.testing.assert_allclose(F @ F.T, expected, atol=2e-3 if precision == "float32" else 1e-6)


@pytest.mark.parametrize("kind", [Nystrom, Meka, BestLowRank])
def test_a_number_instead_of_a_kernel_raises(kind):
    with pytest.raises(ValueError, match=r"kernel = 30; needs a kernel.*a number of landmarks is rank="):
        KGHA(approximation=kind(30)).fit(X, np.arange(len(X)) % 2)
    assert KGHA(approximation=kind(rank=30)).fit(X, np.arange(len(X)) % 2)
