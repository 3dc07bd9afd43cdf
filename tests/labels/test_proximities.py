"""Label proximities against double loops over the published formulas."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from scipy.spatial.distance import cdist, jaccard
from sklearn.metrics.pairwise import cosine_similarity

from dmo.graphs import adjacency, neighbors, weigh
from dmo.labels import proximities
from dmo.labels.proximities import NAMES, Proximity, class_similarities, combine, label_coordinates, strongest

N, L = 60, 5
rng = np.random.default_rng(0)
X = rng.standard_normal((N, 6))
Y = (rng.random((N, L)) < 0.35).astype(np.float64)
Y[~Y.any(axis=1), 0] = 1
Y[7] = 0
GRAPH = adjacency(neighbors(X, 6))
EDGE = GRAPH.toarray() > 0


def pairwise(rows: np.ndarray, measure: Callable[[np.ndarray, np.ndarray], float]) -> np.ndarray:
    """measure of every two rows, 0 where either is empty."""
    found = [[measure(a, b) if a.any() and b.any() else 0.0 for b in rows] for a in rows]
    return np.array(found)


def bits(name: str, rows: np.ndarray) -> np.ndarray:
    counts = np.maximum(rows.sum(axis=0), 1)
    measures: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
        "sorensen": lambda a, b: 2 * (a * b).sum() / (a.sum() + b.sum()),
        "scaled-sorensen": lambda a, b: 2 * (a * b / counts).sum() / ((a + b) / counts).sum(),
        "jaccard": lambda a, b: 1 - jaccard(a > 0, b > 0),
        "hamming-exponential": lambda a, b: np.exp(-(a != b).sum()),
        "hamming-linear": lambda a, b: (a == b).mean(),
    }
    return pairwise(rows, measures[name])


def coordinates() -> np.ndarray:
    P = np.linalg.svd(Y - Y.mean(axis=0), full_matrices=False)[2].T
    return Y @ P


def projected(name: str, Z: np.ndarray) -> np.ndarray:
    S = Z @ Z.T
    squares = np.diag(S)
    if name == "minkowski":
        return 1 / (1 + cdist(Z, Z))
    if name == "tanimoto":
        return S / np.maximum(squares[:, None] + squares - S, 1e-300)
    if name == "cosine":
        return cosine_similarity(Z)
    there = Z.any(axis=1)
    found = np.zeros(S.shape)
    found[np.ix_(there, there)] = np.corrcoef(Z[there])
    return found


@pytest.mark.parametrize("name", NAMES["bits"])
def test_scheme_1_is_its_formula(name: str) -> None:
    expected = bits(name, Y)
    proximity = Proximity("bits", name)
    found = proximity.on(GRAPH, scipy.sparse.csr_array(Y))
    np.testing.assert_allclose(found.toarray(), np.where(EDGE, expected, 0), atol=1e-13)
    T = proximity.factor(Y)
    np.testing.assert_allclose(T @ T.T, expected, atol=1e-9)


@pytest.mark.parametrize("name", ["minkowski", "tanimoto", "cosine", "pearson"])
def test_scheme_2_is_its_formula(name: str) -> None:
    Z, there = label_coordinates(Y), Y.any(axis=1)
    expected = np.where(np.outer(there, there), projected(name, Z), 0)
    proximity = Proximity("projection", name)
    np.testing.assert_allclose(proximity.on(GRAPH, Y).toarray(), np.where(EDGE, expected, 0), atol=1e-9)
    T = proximity.factor(Y)
    np.testing.assert_allclose(T @ T.T, expected, atol=1e-7)


@pytest.mark.parametrize("name", ["gaussian", "local", "inverse", "spearman", "kendall"])
def test_scheme_2_takes_every_feature_weight(name: str) -> None:
    Z = label_coordinates(Y, 3)
    assert Z.shape == (N, 3)
    kept = Proximity("projection", name, rank=3).on(GRAPH, Y)
    expected = weigh(GRAPH, Z, name).toarray()
    expected[7], expected[:, 7] = 0, 0
    np.testing.assert_allclose(kept.toarray(), expected, atol=1e-13)


def test_minkowski_takes_other_powers() -> None:
    Z = label_coordinates(Y)
    found = Proximity("projection", "minkowski", p=1.0).on(GRAPH, Y).toarray()
    expected = 1 / (1 + cdist(Z, Z, "cityblock"))
    expected[7], expected[:, 7] = 0, 0
    np.testing.assert_allclose(found, np.where(EDGE, expected, 0), atol=1e-13)


def test_coordinates_are_those_of_the_centered_labels() -> None:
    np.testing.assert_allclose(np.abs(label_coordinates(Y)), np.abs(coordinates()), atol=1e-9)
    with pytest.raises(ValueError, match="needed is 1 <= rank <= 5"):
        label_coordinates(Y, 6)


SIGMAS: dict[str, np.ndarray] = {
    "counts": Y.T @ Y,
    "cosine": cosine_similarity(Y.T),
    "tanimoto": projected("tanimoto", Y.T),
    **{name: bits(name, Y.T) for name in NAMES["bits"]},
}


@pytest.mark.parametrize("name", SIGMAS)
def test_scheme_3_averages_class_similarities(name: str) -> None:
    share = Y / np.maximum(Y.sum(axis=1, keepdims=True), 1)
    proximity = Proximity("classes", name)
    np.testing.assert_allclose(class_similarities(Y, proximity), SIGMAS[name], atol=1e-12)
    expected = share @ SIGMAS[name] @ share.T
    np.testing.assert_allclose(proximity.on(GRAPH, Y).toarray(), np.where(EDGE, expected, 0), atol=1e-12)
    T = proximity.factor(Y)
    assert T.shape[1] <= L
    np.testing.assert_allclose(T @ T.T, expected, atol=1e-7)


@pytest.mark.parametrize("rows", [X, scipy.sparse.csr_array(np.abs(X))])
def test_classes_are_compared_by_their_features(rows: Any) -> None:
    dense = rows.toarray() if scipy.sparse.issparse(rows) else rows
    means = Y.T @ dense / Y.sum(axis=0)[:, None]
    proximity = Proximity("classes", "cosine", class_features=True)
    np.testing.assert_allclose(class_similarities(Y, proximity, rows), cosine_similarity(means), atol=1e-12)
    with pytest.raises(ValueError, match="pass X"):
        proximity.on(GRAPH, Y)


def test_combinations_are_their_formulas() -> None:
    G, W = Proximity("bits", "jaccard").on(GRAPH, Y), weigh(GRAPH, X, "gaussian")
    g, w = G.toarray(), W.toarray()
    cases = {
        ("priority", 1.0): np.where(EDGE, g**0.7 / (1 + 2 * (1 - w**1.5)), 0),
        ("priority", 2.0): np.where(EDGE, g**0.7 / (1 + 2 * (1 - w**1.5)) ** 2, 0),
        ("hadamard", 1.0): g * w,
        ("labels", 1.0): g,
        ("features", 1.0): w,
    }
    for (name, c), expected in cases.items():
        found = combine(G, W, name, a=0.7, b=1.5, beta=2.0, c=c)  # type: ignore[arg-type]
        np.testing.assert_allclose(found.toarray(), expected, atol=1e-14)
    np.testing.assert_allclose(combine(G, W, "sum", beta=0.3).toarray(), 0.3 * g + 0.7 * w, atol=1e-14)


@pytest.mark.parametrize("most", [10**6, 7 * N])
def test_the_strongest_pairs_are_those_of_all(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proximities, "PAIRS", most)
    shapes = []

    def measure(graph: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
        shapes.append(graph.nnz)
        return combine(Proximity("bits", "jaccard").on(graph, Y), weigh(graph, X, "gaussian", 2.0), "priority")

    found = strongest(measure, N, 4)
    assert max(shapes) <= max(most, N)
    g = bits("jaccard", Y)
    psi = g / (1 + (1 - np.exp(-(cdist(X, X) ** 2) / 8)))
    np.fill_diagonal(psi, 0)
    for i in range(N):
        best = [j for j in np.argsort(-psi[i], kind="stable")[:4] if psi[i, j] > 0]
        assert found.indices[i].tolist() == best + [-1] * (4 - len(best))
        np.testing.assert_allclose(found.distances[i, : len(best)], -psi[i, best], rtol=1e-12)
    assert (found.indices[7] == -1).all()  # a sample without labels


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Proximity("bit", "jaccard"), "known: bits, projection, classes"),  # type: ignore[arg-type]
        (lambda: Proximity("bits", "cosine"), "has no similarity 'cosine'; it has sorensen"),
        (lambda: Proximity("projection", "minkowski", p=0.5), "p must be at least 1"),
        (lambda: Proximity("classes", "sorensen", class_features=True), "similarity of real coordinates"),
        (lambda: Proximity("bits", "jaccard").on(GRAPH, Y * 2), "labels must be a matrix of 0 and 1"),
        (lambda: Proximity("projection", "local").factor(Y), "evaluate it on a graph"),
        (lambda: combine(GRAPH, GRAPH * 3), "needs feature weights of at least 0 and at most 1"),
        (lambda: combine(GRAPH, GRAPH, "sum", beta=2.0), "share of the labels"),
        (lambda: strongest(lambda graph: graph, N, N), f"k = {N} of {N} samples"),
        (lambda: combine(GRAPH, GRAPH, "both"), "known: priority"),  # type: ignore[arg-type]
        (lambda: combine(GRAPH, scipy.sparse.csr_array(np.eye(N))), "different graphs"),
    ],
)
def test_bad_arguments_are_explained(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
