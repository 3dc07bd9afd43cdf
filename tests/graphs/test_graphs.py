"""Compare neighbor graphs with scikit-learn, SciPy and brute force."""

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import scipy.stats
from scipy.sparse.csgraph import shortest_path
from scipy.spatial.distance import cdist
from sklearn.manifold._locally_linear import barycenter_kneighbors_graph
from sklearn.neighbors import NearestNeighbors, kneighbors_graph
from threadpoolctl import threadpool_limits

import dmo.graphs.search
from dmo.cluster import connect
from dmo.graphs import (
    Neighbors,
    adjacency,
    edge_dots,
    geodesics,
    laplacian,
    local_scales,
    nearest,
    neighbors,
    recall,
    reconstruction_weights,
    root_mean_square,
    weigh,
)

rng = np.random.default_rng(0)


def dense_rows(n: int = 300, d: int = 12, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d))


def text_rows(n: int = 250, d: int = 80) -> scipy.sparse.csr_array:
    X = scipy.sparse.random_array((n, d), density=0.08, rng=np.random.default_rng(3), format="csr")
    X.data = np.round(X.data * 9) + 1
    return scipy.sparse.csr_array(X)


CASES = {
    "dense": dense_rows(),
    "float32": dense_rows(seed=1).astype(np.float32),
    "far from the origin": dense_rows(seed=2) * 1e-2 + 300.0,
    "tight and distant clusters": np.vstack([dense_rows(60, 5) * 1e-3 + 100 * c for c in range(4)]),
    "whole numbers": np.random.default_rng(4).integers(0, 9, (200, 30)),
    "sparse": text_rows(),
}


def assert_nearest(found: Any, D: np.ndarray, k: int) -> None:
    """Check the k nearest neighbors of every row with a distance matrix. Tied rows may be in any order."""
    D = D.copy()
    np.fill_diagonal(D, np.inf)
    np.testing.assert_allclose(found.distances, np.sort(D, axis=1)[:, :k], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(np.take_along_axis(D, found.indices, 1), found.distances, rtol=1e-9, atol=1e-12)
    assert all(len(set(row)) == k for row in found.indices.tolist())


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("name", CASES)
def test_exact_neighbors_are_scikit_learns(name: str, metric: Any) -> None:
    X, k = CASES[name], 7
    found = neighbors(X, k, metric, block=64)
    distances, indices = NearestNeighbors(n_neighbors=k, metric=metric, algorithm="brute").fit(X).kneighbors()
    dense = (X.toarray() if scipy.sparse.issparse(X) else X).astype(np.float64)
    D = cdist(dense, dense, "euclidean") if metric == "euclidean" else None
    if metric == "cosine":
        unit = dense / np.maximum(np.linalg.norm(dense, axis=1, keepdims=True), 1e-300)
        D = cdist(unit, unit, "sqeuclidean") / 2
        empty = ~dense.any(axis=1)
        D[empty], D[:, empty] = 1.0, 1.0
    assert D is not None
    assert_nearest(found, D, k)
    if name == "dense":
        np.testing.assert_array_equal(found.indices, indices)
        np.testing.assert_allclose(found.distances, distances, atol=1e-7)


def test_the_block_size_changes_nothing_with_equal_rows() -> None:
    X = np.random.default_rng(5).integers(0, 3, (150, 3)).astype(np.float64)
    first = neighbors(X, 6, block=150)
    for block in (7, 64):
        again = neighbors(X, 6, block=block)
        np.testing.assert_array_equal(again.indices, first.indices)
        np.testing.assert_array_equal(again.distances, first.distances)


@pytest.mark.parametrize("name", ["dense", "sparse", "whole numbers"])
def test_nearest_known_rows_of_new_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dmo.graphs.search._BLOCK", 32)
    X = CASES[name]
    new = X[:50] * 0.5 + 0.25 * X[50:100]
    distances, indices = NearestNeighbors(n_neighbors=4, algorithm="brute").fit(X).kneighbors(new)
    found = nearest(new, X, 4)
    np.testing.assert_allclose(found.distances, distances, rtol=1e-6, atol=1e-6)
    assert (found.indices == indices).mean() > 0.9
    assert (nearest(X, X, 1).distances == 0).all()


def test_the_number_of_threads_changes_nothing() -> None:
    for X in (CASES["dense"], CASES["sparse"]):
        with threadpool_limits(1, user_api="blas"):
            one = neighbors(X, 5, block=64)
        with threadpool_limits(3, user_api="blas"):
            three = neighbors(X, 5, block=64)
        np.testing.assert_array_equal(one.indices, three.indices)
        np.testing.assert_array_equal(one.distances, three.distances)


def test_the_workers_of_a_cluster_find_the_same(local_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dmo.graphs.search, "_PAIRS", 1)
    asked: list[Any] = []
    merged = dmo.graphs.search.merged

    def watched(*given: Any) -> Any:
        found = merged(*given)
        asked.append(found)
        return found

    monkeypatch.setattr(dmo.graphs.search, "merged", watched)
    for X in (CASES["dense"], CASES["sparse"]):
        here = neighbors(X, 5, block=64)
        assert asked.pop() is None
        with connect(local_cluster.scheduler_address):
            there = neighbors(X, 5, block=64)
        assert asked.pop() is not None
        np.testing.assert_array_equal(here.indices, there.indices)
        np.testing.assert_array_equal(here.distances, there.distances)


class _Imprecise:
    """Stub of pynndescent's index that misses every seventh neighbor. The actual index needs a minute to compile."""

    def __init__(self, X: np.ndarray, metric: str, n_neighbors: int, random_state: int | None, n_jobs: int):
        order = np.argsort(cdist(X, X, metric), axis=1)
        missed = np.arange(order[:, 1:n_neighbors].size).reshape(len(X), -1) % 7 == 0
        found = np.where(missed, order[:, n_neighbors : 2 * n_neighbors - 1], order[:, 1:n_neighbors])
        self.neighbor_graph = np.hstack([order[:, :1], found]).astype(np.int32), None


@pytest.mark.parametrize("index", [_Imprecise, pytest.param(None, marks=pytest.mark.slow)], ids=["stub", "pynndescent"])
def test_the_approximate_search_has_the_recall_that_it_states(
    index: type | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if index is None:
        pytest.importorskip("pynndescent")
    else:
        monkeypatch.setitem(sys.modules, "pynndescent", SimpleNamespace(NNDescent=index))
    X = dense_rows(600, 5)
    found = neighbors(X, 8, method="approximate")
    exact = neighbors(X, 8)
    overlap = np.mean([len(set(a) & set(b)) / 8 for a, b in zip(found.indices, exact.indices)])
    assert 0.8 < overlap < 1 if index else overlap > 0.9
    assert recall(found, X, sample=600) == pytest.approx(overlap, abs=1e-12)
    assert recall(exact, X) == 1.0
    D = cdist(X, X)
    np.testing.assert_allclose(np.take_along_axis(D, found.indices, 1), found.distances, rtol=1e-12)
    assert (np.diff(found.distances, axis=1) >= 0).all()


def test_adjacency_is_symmetrized_by_each_rule() -> None:
    X = CASES["dense"]
    found = neighbors(X, 6)
    A = kneighbors_graph(X, 6).toarray()
    np.testing.assert_array_equal(adjacency(found, "directed").toarray(), A)
    np.testing.assert_array_equal(adjacency(found, "union").toarray(), np.maximum(A, A.T))
    np.testing.assert_array_equal(adjacency(found, "mutual").toarray(), A * A.T)
    np.testing.assert_array_equal(adjacency(found, "sum").toarray(), A + A.T)
    with pytest.raises(ValueError, match="known: union"):
        adjacency(found, "both")  # type: ignore[arg-type]


def as_dense(X: Any) -> np.ndarray:
    return (X.toarray() if scipy.sparse.issparse(X) else X).astype(np.float64)


def test_inverse_weights_by_hand() -> None:
    """Check equation 9 of [MOPE] for points with squared norms 1, 4, 9 and squared distances 5, 4, 13."""
    graph = scipy.sparse.csr_array(np.ones((3, 3)) - np.eye(3))
    rows = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]])
    expected = np.array([[0, 1 / 1.5, 1 / 0.9], [1 / 1.5, 0, 1 / 1.5], [1 / 0.9, 1 / 1.5, 0]])
    np.testing.assert_allclose(weigh(graph, rows, "inverse", tau=0.5).toarray(), expected, rtol=1e-14)
    same = weigh(graph, np.zeros((3, 2)), "inverse")
    np.testing.assert_allclose(same.data, 1.0, err_msg="zero rows must be as similar as other equal rows")
    with pytest.raises(ValueError, match="tau must be above 0, got 0"):
        weigh(graph, rows, "inverse", tau=0.0)


@pytest.mark.parametrize("name", ["dense", "whole numbers", "sparse"])
@pytest.mark.parametrize("kind", ["constant", "distance", "gaussian", "local", "inverse"])
def test_weights_of_distances_are_the_formulas(kind: str, name: str) -> None:
    X = CASES[name]
    graph = adjacency(neighbors(X, 5))
    A, D = graph.toarray(), cdist(as_dense(X), as_dense(X))
    edge = A > 0
    n = len(D)
    s = np.sort(D + np.diag(np.full(n, -1.0)), axis=1)[:, 7]
    squares = (as_dense(X).astype(float) ** 2).sum(axis=1)
    both = squares[:, None] + squares
    relative = D**2 / np.where(both > 0, both, 1.0)
    expected = {
        "constant": A,
        "distance": D * A,
        "gaussian": np.exp(-(D**2) / (2 * D[edge].mean() ** 2)) * A,
        "local": np.exp(-(D**2) / np.outer(s, s)) * A,
        "inverse": 1 / (1 + relative) * A,
    }[kind]
    found = weigh(graph, X, kind)
    np.testing.assert_allclose(found.toarray(), expected, rtol=1e-9, atol=1e-12)
    assert (found.toarray() == found.toarray().T).all()
    if kind == "gaussian":
        np.testing.assert_allclose(
            weigh(graph, X, kind, bandwidth=0.7).toarray(), np.exp(-(D**2) / 0.98) * A, rtol=1e-9, atol=1e-300
        )
    if kind == "inverse":
        np.testing.assert_allclose(weigh(graph, X, kind, tau=0.3).toarray(), 1 / (0.3 + relative) * A, rtol=1e-9)
    if kind == "local":
        np.testing.assert_allclose(local_scales(X, 7), s, rtol=1e-9)


@pytest.mark.parametrize("name", ["dense", "whole numbers", "sparse", "sparse with signs"])
@pytest.mark.parametrize("kind", ["cosine", "pearson", "spearman", "kendall"])
def test_similarity_weights_are_scipys(kind: str, name: str) -> None:
    X = text_rows() if name == "sparse with signs" else CASES[name]
    if name == "sparse with signs":
        X.data -= 5
    X, full = X[:60], as_dense(X[:60])
    full = full[:, :40]
    X = X[:, :40]
    graph = adjacency(neighbors(X, 4))
    found = weigh(graph, X, kind).tocoo()
    statistic: Any = {
        "pearson": scipy.stats.pearsonr,
        "spearman": scipy.stats.spearmanr,
        "kendall": scipy.stats.kendalltau,
    }.get(kind)
    compared = 0
    for i, j, value in zip(*found.coords, found.data):
        if kind == "cosine":
            product = np.linalg.norm(full[i]) * np.linalg.norm(full[j])
            assert value == pytest.approx(full[i] @ full[j] / product if product else 0.0, abs=1e-12)
        elif np.ptp(full[i]) and np.ptp(full[j]):
            assert value == pytest.approx(statistic(full[i], full[j]).statistic, abs=1e-12)
            compared += 1
        else:
            assert value == 0
    assert compared > 100 or kind == "cosine"


@pytest.mark.parametrize("name", ["dense", "sparse"])
def test_edges_of_nearly_all_pairs_are_weighed_alike(name: str) -> None:
    """If nearly all pairs are edges, matrix products replace the computation of single edges."""
    X = CASES[name]
    n = X.shape[0]
    D = cdist(as_dense(X), as_dense(X))
    every = scipy.sparse.csr_array(np.ones((n, n)) - np.eye(n))
    expected = np.exp(-(D**2) / (2 * D[~np.eye(n, dtype=bool)].mean() ** 2)) - np.eye(n)
    np.testing.assert_allclose(weigh(every, X, "gaussian").toarray(), expected, atol=1e-12)
    pattern = np.zeros((n, n))
    pattern[5:9] = np.arange(n) != 3
    some = weigh(scipy.sparse.csr_array(pattern), X, "cosine").toarray()
    full = as_dense(X)
    lengths = np.linalg.norm(full, axis=1)
    cosines = full @ full.T / np.maximum(np.outer(lengths, lengths), 1e-300)
    np.testing.assert_allclose(some, cosines * pattern, atol=1e-12)
    Z = full[::-1] * 2
    left, right = np.nonzero(pattern)
    for picked in (slice(None), slice(None, None, 7)):
        expected = np.einsum("ij,ij->i", full[left[picked]], Z[right[picked]])
        np.testing.assert_allclose(edge_dots(full, left[picked], right[picked], Z), expected, atol=1e-9)
    other = D[~np.eye(n, dtype=bool)]
    assert root_mean_square(X) == pytest.approx(np.sqrt((other**2).mean()), rel=1e-12)


def test_a_users_matrix_is_checked() -> None:
    graph = adjacency(neighbors(CASES["dense"], 5))
    n = graph.shape[0]
    K = np.random.default_rng(0).random((n, n))
    given = weigh(graph, CASES["dense"], kind=K + K.T)
    np.testing.assert_array_equal(given.toarray(), (K + K.T) * graph.toarray())
    with pytest.raises(ValueError, match=r"not symmetric: .*pass \(W \+ W.T\) / 2"):
        weigh(graph, CASES["dense"], kind=K)
    with pytest.raises(ValueError, match="one row and one column per sample"):
        weigh(graph, CASES["dense"], kind=K[:5, :5])
    with pytest.raises(ValueError, match="known: constant"):
        weigh(graph, CASES["dense"], kind="gauss")


@pytest.mark.parametrize("k", [4, 15])
def test_reconstruction_weights_are_scikit_learns(k: int) -> None:
    X = dense_rows(120, 6)
    expected = barycenter_kneighbors_graph(X, k, reg=1e-3).toarray()
    found = neighbors(X, k)
    np.testing.assert_allclose(reconstruction_weights(X, found).toarray(), expected, rtol=1e-7, atol=1e-9)
    sparse = reconstruction_weights(scipy.sparse.csr_array(X), found)
    np.testing.assert_allclose(sparse.toarray(), expected, rtol=1e-6, atol=1e-8)


def test_reconstruction_from_fewer_neighbors_of_ones_class() -> None:
    X = dense_rows(12, 4)
    indices, distances = np.full((12, 6), -1), np.full((12, 6), np.inf)
    for own in (np.arange(7), np.arange(7, 11)):
        found = neighbors(X[own], len(own) - 1)
        indices[own, : found.k], distances[own, : found.k] = own[found.indices], found.distances
    S = reconstruction_weights(X, Neighbors(indices, distances)).toarray()
    np.testing.assert_allclose(S[:7, :7], barycenter_kneighbors_graph(X[:7], 6, reg=1e-3).toarray(), rtol=1e-7)
    np.testing.assert_allclose(S[7:11, 7:11], barycenter_kneighbors_graph(X[7:11], 3, reg=1e-3).toarray(), rtol=1e-7)
    assert not S[11].any()
    assert not S[:, 11].any()


def test_geodesics_are_scipys_also_between_equal_rows() -> None:
    X = dense_rows(100, 3)
    X[50:60] = X[:10]
    lengths = weigh(adjacency(neighbors(X, 8)), X, "distance")
    D = cdist(X, X)
    edge = adjacency(neighbors(X, 8)).toarray() > 0
    found = geodesics(lengths)
    assert (found[np.arange(10), np.arange(50, 60)] == 0).all()
    paths = np.where(edge | np.eye(len(D), dtype=bool), D, np.inf)
    for via in range(len(D)):
        paths = np.minimum(paths, paths[:, via, None] + paths[via])
    np.testing.assert_allclose(found, paths, atol=1e-12)
    other = weigh(adjacency(neighbors(X[:50], 8)), X[:50], "distance")
    np.testing.assert_allclose(geodesics(other), shortest_path(other.toarray(), method="FW"), atol=1e-12)


def test_a_disconnected_graph_names_its_components() -> None:
    X = np.vstack([dense_rows(20, 3), dense_rows(12, 3) + 100])
    lengths = weigh(adjacency(neighbors(X, 3)), X, "distance")
    with pytest.raises(ValueError, match="2 components of 20, 12 samples; raise the number of neighbors"):
        geodesics(lengths)


def test_laplacians_are_scipys() -> None:
    X = dense_rows(80, 4)
    W = weigh(adjacency(neighbors(X, 5)), X, "gaussian")
    for normalized in (False, True):
        expected = scipy.sparse.csgraph.laplacian(W.toarray(), normed=normalized)
        np.testing.assert_allclose(laplacian(W, normalized).toarray(), expected, atol=1e-14)
    with pytest.raises(ValueError, match="not negative"):
        laplacian(-W, normalized=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 30}, "k = 30 of 30 samples; expected a whole number from 1 to 29"),
        ({"k": 0}, "k = 0 of 30"),
        ({"k": 3, "metric": "manhattan"}, "known: euclidean, cosine"),
        ({"k": 3, "method": "fast"}, "known: exact, approximate"),
    ],
)
def test_bad_arguments_are_explained(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        neighbors(dense_rows(30, 3), **arguments)


def test_rows_that_are_not_finite_are_refused() -> None:
    X = dense_rows(30, 3)
    X[4, 1] = np.nan
    with pytest.raises(ValueError, match="NaN or infinity"):
        neighbors(X, 3)
