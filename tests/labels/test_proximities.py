"""Compare label proximities with double loops over the published formulas."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import scipy.stats
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
    """Compute the measure for every pair of rows. Pairs with an empty row have the value 0."""
    found = [[measure(a, b) if a.any() and b.any() else 0.0 for b in rows] for a in rows]
    return np.array(found)


def bits(name: str, rows: np.ndarray) -> np.ndarray:
    counts = np.maximum(rows.sum(axis=0), 1)
    measures: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
        "sorensen": lambda a, b: 2 * (a * b).sum() / (a.sum() + b.sum()),
        "scaled-sorensen": lambda a, b: 2 * (a * b / counts).sum() / (a + b).sum(),
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
        return np.exp(-cdist(Z, Z, "sqeuclidean"))
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
    """Compare feature weights on the first three label coordinates with equations 7 to 9 of [MOPE] and SciPy."""
    Z = coordinates()[:, :3]
    D, squares = cdist(Z, Z), (Z**2).sum(axis=1)
    scales = np.sort(D, axis=1)[:, 7]
    scales = np.maximum(scales, scales[scales > 0].min())
    statistic = {"spearman": scipy.stats.spearmanr, "kendall": scipy.stats.kendalltau}.get(name)
    if statistic is None:
        expected = {
            "gaussian": lambda: np.exp(-(D**2) / (2 * D[EDGE].mean() ** 2)),
            "local": lambda: np.exp(-(D**2) / np.outer(scales, scales)),
            "inverse": lambda: 1 / (0.4 + D**2 / np.maximum(squares[:, None] + squares, 1e-300)),
        }[name]()
    else:  # align signs, because correlations depend on the signs of the axes
        Z, expected = Z * np.sign((label_coordinates(Y, 3) * Z).sum(axis=0)), np.zeros(D.shape)
        for i, j in zip(*np.nonzero(EDGE)):
            expected[i, j] = statistic(Z[i], Z[j]).statistic if Z[i].any() and Z[j].any() else 0
    expected[7], expected[:, 7] = 0, 0
    kept = Proximity("projection", name, rank=3, bandwidth=0.4).on(GRAPH, Y)
    np.testing.assert_allclose(kept.toarray(), np.where(EDGE, expected, 0), atol=1e-9)


def test_minkowski_takes_other_powers_and_bandwidths() -> None:
    Z = label_coordinates(Y)
    found = Proximity("projection", "minkowski", p=3.0, bandwidth=2.0).on(GRAPH, Y).toarray()
    expected = np.exp(-(cdist(Z, Z, "minkowski", p=3.0) ** 3) / 2)
    expected[7], expected[:, 7] = 0, 0
    np.testing.assert_allclose(found, np.where(EDGE, expected, 0), atol=1e-13)


def test_coordinates_are_those_of_the_centered_labels() -> None:
    np.testing.assert_allclose(np.abs(label_coordinates(Y)), np.abs(coordinates()), atol=1e-9)
    with pytest.raises(ValueError, match="expected 1 <= rank <= 5"):
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
    sums = Y.T @ dense
    proximity = Proximity("classes", "cosine", class_features="sums")
    np.testing.assert_allclose(class_similarities(Y, proximity, rows), cosine_similarity(sums), atol=1e-12)
    tanimoto = Proximity("classes", "tanimoto", class_features="sums")
    np.testing.assert_allclose(class_similarities(Y, tanimoto, rows), projected("tanimoto", sums), atol=1e-12)
    with pytest.raises(ValueError, match="pass X"):
        proximity.on(GRAPH, Y)


@pytest.mark.parametrize("make", [np.asarray, scipy.sparse.csr_array])
def test_classes_are_compared_by_the_words_that_occur_in_them(make: Callable[[np.ndarray], Any]) -> None:
    """The documents of the three classes contain the words {0, 1, 2}, {0, 2} and {3}."""
    words = make(np.array([[2.0, 0.0, 1.0, 0.0], [-2.0, 3.0, 0.0, 0.0], [0.0, 0.0, 0.0, 5.0]]))
    classes = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 1]])
    shared = {"cosine": 2 / np.sqrt(6), "tanimoto": 2 / 3, "jaccard": 2 / 3, "sorensen": 4 / 5}
    for name, alike in shared.items():
        proximity = Proximity("classes", name, class_features="indicators")
        expected = np.array([[1, alike, 0], [alike, 1, 0], [0, 0, 1]])
        np.testing.assert_allclose(class_similarities(classes, proximity, words), expected, atol=1e-14)


THREE = np.array([[1, 1, 0], [1, 0, 0], [0, 1, 1]])
"""Labels of three samples, whose classes contain 2, 2 and 1 samples."""
PAIRS = scipy.sparse.csr_array(np.ones((3, 3)) - np.eye(3))


def test_scaled_sorensen_by_hand() -> None:
    """Check equation 35 of [MOPE]: samples 0 and 1 share a class, samples 0 and 2 share another, 1 and 2 share none."""
    expected = np.array([[0, 2 / 2 / 3, 2 / 2 / 4], [1 / 3, 0, 0], [1 / 4, 0, 0]])
    found = Proximity("bits", "scaled-sorensen").on(PAIRS, THREE).toarray()
    np.testing.assert_allclose(found, expected, atol=1e-15)


def test_minkowski_by_hand() -> None:
    """Check equation 40 of [MOPE] for the coordinates (0, 1), (1, 1) and (0, 0) with tau = 2."""
    Z = np.array([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    e = np.exp
    expected = np.array([[0, e(-0.5), e(-0.5)], [e(-0.5), 0, e(-1.0)], [e(-0.5), e(-1.0), 0]])
    found = Proximity("projection", "minkowski", p=1.0, bandwidth=2.0).on(PAIRS, THREE, Z=Z).toarray()
    np.testing.assert_allclose(found, expected, rtol=1e-14)
    squared = Proximity("projection", "minkowski", p=2.0, bandwidth=4.0).on(PAIRS, THREE, Z=Z).toarray()
    np.testing.assert_allclose(squared[1, 2], e(-2 / 4), rtol=1e-14)


def test_the_priority_and_its_generalization_by_hand() -> None:
    """Check equation 43 of [MOPE] and its generalization, which yields 1/2 / (1 + 1) = 1/4 for the given values."""
    graph = scipy.sparse.csr_array(np.ones((3, 3)))
    G, W = graph * 0.25, graph * 0.5
    np.testing.assert_allclose(combine(G, W, a=0.5, b=1.0, beta=2.0).data, 0.25, rtol=1e-15)
    np.testing.assert_allclose(combine(G, W, a=0.5, b=1.0, beta=2.0, label_share=0.6).data, 0.6 * 0.25 + 0.4 * 0.5)
    np.testing.assert_allclose(combine(G, W, a=0.5, b=2.0, beta=1.0, label_share=0.6).data, 0.6 * 0.5 / 1.75 + 0.1)
    alone = combine(G, W, b=1.0, label_share=0.0)
    np.testing.assert_array_equal(alone.data, W.data, err_msg="W on its own: gamma = 0, b = 1")
    blend = combine(G, W, a=1.0, b=1.0, beta=0.0, label_share=0.3)
    np.testing.assert_allclose(blend.data, combine(G, W, "sum", beta=0.3).data, err_msg="beta = 0, a = b = 1")


def test_combinations_are_their_formulas() -> None:
    G, W = Proximity("bits", "jaccard").on(GRAPH, Y), weigh(GRAPH, X, "gaussian")
    g, w = G.toarray(), W.toarray()
    cases = {
        "priority": np.where(EDGE, g**0.7 / (1 + 2 * (1 - w**1.5)), 0),
        "hadamard": g * w,
        "labels": g,
        "features": w,
    }
    for name, expected in cases.items():
        found = combine(G, W, name, a=0.7, b=1.5, beta=2.0)  # type: ignore[arg-type]
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
    assert (found.indices[7] == -1).all()  # sample 7 has no labels


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Proximity("bit", "jaccard"), "known: bits, projection, classes"),  # type: ignore[arg-type]
        (lambda: Proximity("bits", "cosine"), "has no similarity 'cosine'; known: sorensen"),
        (lambda: Proximity("projection", "minkowski", p=0.5), "p must be at least 1"),
        (lambda: Proximity("classes", "sorensen", class_features="sums"), "a similarity of features: minkowski"),
        (lambda: Proximity("bits", "sorensen", class_features="indicators"), "needs scheme='classes'"),
        (lambda: Proximity("classes", "cosine", class_features="means"), "known: None, sums, indicators"),  # type: ignore[arg-type]
        (lambda: combine(GRAPH, GRAPH, label_share=1.5), "a label_share in"),
        (lambda: Proximity("bits", "jaccard").on(GRAPH, Y * 2), "labels must be a matrix of 0 and 1"),
        (lambda: Proximity("projection", "local").factor(Y), "evaluate it on a graph"),
        (lambda: combine(GRAPH, GRAPH * 3), "needs feature weights of at least 0 and at most 1"),
        (lambda: combine(GRAPH, GRAPH, "sum", beta=2.0), "weight of the labels"),
        (lambda: strongest(lambda graph: graph, N, N), f"k = {N} of {N} samples"),
        (lambda: combine(GRAPH, GRAPH, "both"), "known: priority"),  # type: ignore[arg-type]
        (lambda: combine(GRAPH, scipy.sparse.csr_array(np.eye(N))), "different graphs"),
    ],
)
def test_bad_arguments_are_explained(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
