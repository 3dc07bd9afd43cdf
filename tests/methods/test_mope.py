"""Compare MOPE with explicit n x n matrices, compare its forms with each other, and run scikit-learn's checks."""

from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
from cases import made
from sklearn.base import clone
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.utils.estimator_checks import parametrize_with_checks

import dmo
from dmo import MOPE, Graph, Proximity, Solver
from dmo.graphs import adjacency, neighbors
from dmo.kernels import RBF
from dmo.methods import mope as module
from dmo.methods.mope import project_kernel, project_labels
from dmo.methods.quadratic_forms import QuadraticForm

N, D, L, K = 90, 8, 4, 3
rng = np.random.default_rng(0)
Y = (rng.random((N, L)) < 0.4).astype(np.float64)
Y[~Y.any(axis=1), 0] = 1
X = Y @ rng.standard_normal((L, D)) + 0.7 * rng.standard_normal((N, D))
NEW = rng.standard_normal((11, D))
CALL: dict[str, Any] = {"n_neighbors": 7, "n_components": K, "a": 0.8, "b": 1.3, "beta": 2.0}
TEXT = scipy.sparse.random_array((N, 200), density=0.05, rng=np.random.default_rng(1), format="csr") * 3


def brute_psi(rows: np.ndarray = X, labels: np.ndarray = Y, selection: str = "features") -> np.ndarray:
    """Compute the proximity matrix Psi of equation 43 with loops over all pairs (scheme 3, Sorensen similarity)."""
    n = len(rows)
    distance = np.linalg.norm(rows[:, None] - rows[None], axis=2)
    if selection != "features":
        square = (distance**2).sum() / (n * (n - 1))
        psi = _psi(labels, np.exp(-(distance**2) / (2 * square)))
        np.fill_diagonal(psi, 0)
        if selection == "all":
            return psi
        return np.where(_edges(np.argsort(-psi, axis=1), psi > 0), psi, 0)
    edge = _edges(np.argsort(distance + np.diag(np.full(n, np.inf)), axis=1), np.ones((n, n), bool))
    return np.where(edge, _psi(labels, np.exp(-(distance**2) / (2 * distance[edge].mean() ** 2))), 0)


def _edges(order: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    edge = np.zeros(allowed.shape, bool)
    for i, near in enumerate(order[:, : CALL["n_neighbors"]]):
        for j in near:
            edge[i, j] = edge[j, i] = edge[i, j] or allowed[i, j]
    return edge


def _psi(labels: np.ndarray, w: np.ndarray) -> np.ndarray:
    overlap = labels.T @ labels
    sizes = np.diag(overlap)
    share = labels / np.maximum(labels.sum(axis=1, keepdims=True), 1)
    g = share @ (2 * overlap / (sizes[:, None] + sizes)) @ share.T
    return np.asarray(g ** CALL["a"] / (1 + CALL["beta"] * (1 - w ** CALL["b"])))


def degrees(A: np.ndarray, B: np.ndarray) -> float:
    return float(np.degrees(scipy.linalg.subspace_angles(A, B).max()))


@pytest.mark.slow
@parametrize_with_checks([MOPE(graph=Graph(n_neighbors=2))])
def test_scikit_learn_contract(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("constraint", ["projection", "embedding"])
def test_the_projection_is_that_of_explicit_matrices(constraint: Any, center: bool) -> None:
    psi, Z = brute_psi(), X - X.mean(axis=0) * center
    values, P = scipy.linalg.eigh(Z.T @ psi @ Z, Z.T @ Z if constraint == "embedding" else None)
    model = made(MOPE, **CALL, constraint=constraint, center=center).fit(X, Y)
    np.testing.assert_allclose(model.proximity_.toarray(), psi, atol=1e-12)
    np.testing.assert_allclose(model.eigenvalues_, values[::-1][:K], rtol=1e-9)
    expected = (NEW - X.mean(axis=0) * center) @ P[:, ::-1][:, :K]
    np.testing.assert_allclose(np.abs(model.transform(NEW)), np.abs(expected), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("selection", ["proximity", "all"])
def test_neighbors_may_be_those_of_the_largest_proximity(selection: str) -> None:
    labels = np.where(np.arange(N)[:, None] == 5, 0, Y)
    psi = brute_psi(labels=labels, selection=selection)
    more: dict[str, Any] = {"selection": "proximity"} if selection == "proximity" else {"n_neighbors": None}
    found = made(MOPE, **CALL | more).fit(X, labels)
    np.testing.assert_allclose(found.proximity_.toarray(), psi, atol=1e-12)
    assert not np.allclose(psi, brute_psi(labels=labels))
    np.testing.assert_allclose(found.eigenvalues_, scipy.linalg.eigvalsh(X.T @ psi @ X)[::-1][:K], rtol=1e-9)
    distance = np.linalg.norm(X[:, None] - X[None], axis=2)
    scale = np.sort(distance, axis=1)[:, 7]
    psi = _psi(labels, np.exp(-(distance**2) / np.outer(scale, scale))) * (1 - np.eye(N))
    edge = psi > 0 if selection == "all" else _edges(np.argsort(-psi, axis=1), psi > 0)
    local = made(MOPE, **CALL | more | {"weight": "local"}).fit(X, labels)
    np.testing.assert_allclose(local.proximity_.toarray(), np.where(edge, psi, 0), atol=1e-12)


def test_a_ridge_stands_in_the_constraint() -> None:
    psi, Z = brute_psi(), X - X.mean(axis=0)
    arguments: dict[str, Any] = {"constraint": "embedding", "center": True, "ridge": 5.0}
    values, P = scipy.linalg.eigh(Z.T @ psi @ Z, Z.T @ Z + 5 * np.eye(D))
    model = made(MOPE, **CALL, **arguments).fit(X, Y)
    np.testing.assert_allclose(model.eigenvalues_, values[::-1][:K], rtol=1e-9)
    assert degrees(model.expansion_.coefficients, P[:, ::-1][:, :K]) < 1e-5  # type: ignore[attr-defined]
    H = np.eye(N) - 1 / N
    G = H @ rbf_kernel(X, gamma=1 / 18) @ H
    V = scipy.linalg.eigh(G)[1][:, 1:]
    values = scipy.linalg.eigvalsh(V.T @ G @ psi @ G @ V, V.T @ (G @ G + 5 * G) @ V)
    kernel = made(MOPE, **CALL, **arguments, kernel=RBF(bandwidth=3.0)).fit(X, Y)
    np.testing.assert_allclose(kernel.eigenvalues_, values[::-1][:K], rtol=1e-6)


def test_eigenvalues_are_the_algebraically_largest_of_an_indefinite_matrix() -> None:
    W = -3 * adjacency(neighbors(X, 7)).toarray()
    W[0, :] = W[:, 0] = np.abs(W[0])
    model = MOPE(combination="features", graph=Graph(weight=W, n_neighbors=7), n_components=2).fit(X, Y)
    values = scipy.linalg.eigvalsh(X.T @ W @ X)
    assert abs(values[0]) > abs(values[-1])
    np.testing.assert_allclose(model.eigenvalues_, values[::-1][:2], rtol=1e-9)


@pytest.mark.parametrize("constraint", ["projection", "embedding", "coefficients"])
@pytest.mark.parametrize("center", [False, True])
def test_the_kernel_form_is_that_of_explicit_matrices(constraint: Any, center: bool) -> None:
    psi, H = brute_psi(), np.eye(N) - center / N
    gram = rbf_kernel(X, gamma=1 / (2 * 3.0**2))
    G = H @ gram @ H
    V = scipy.linalg.eigh(G)[1][:, center:]  # exclude the constant direction, which makes a centered G singular
    A = V.T @ G @ psi @ G @ V
    B = {"projection": V.T @ G @ V, "embedding": V.T @ G @ G @ V, "coefficients": None}[constraint]
    values, gamma = scipy.linalg.eigh(A, B)
    model = made(MOPE, **CALL, kernel=RBF(bandwidth=3.0), constraint=constraint, center=center).fit(X, Y)
    np.testing.assert_allclose(model.eigenvalues_, values[::-1][:K], rtol=1e-5)
    if constraint != "embedding":  # "embedding" does not determine directions with tiny eigenvalues
        Z = G @ V @ gamma[:, ::-1][:, :K]
        np.testing.assert_allclose(np.abs(model.embedding_), np.abs(Z), atol=1e-5 * np.abs(Z).max())
    np.testing.assert_allclose(model.transform(X), model.embedding_, atol=1e-6 * np.abs(model.embedding_).max())


def test_directions_of_rounding_have_no_coefficients() -> None:
    plane = X[:, :2] @ X[:, :2].T
    form = QuadraticForm(N, identity=1.0)
    np.testing.assert_allclose(project_kernel(form, plane, 2, "embedding").values, 1.0)
    with pytest.raises(ValueError, match="n_components = 3, but the problem has only 2 directions"):
        project_kernel(form, plane, 3, "embedding")


@pytest.mark.parametrize("center", [False, True])
def test_more_features_than_samples_and_the_iterated_form(center: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = CALL | {"metric": "cosine", "center": center, "weight": "cosine"}
    full = TEXT.toarray()
    dense, sparse = made(MOPE, **arguments).fit(full, Y), made(MOPE, **arguments).fit(TEXT, Y)
    Z = full - full.mean(axis=0) * center
    values = scipy.linalg.eigvalsh(Z.T @ dense.proximity_.toarray() @ Z)
    np.testing.assert_allclose(dense.eigenvalues_, values[::-1][:K], rtol=1e-9)
    monkeypatch.setattr(module, "_SMALL", 10)
    iterated = made(MOPE, **arguments, solver=Solver(tol=1e-11)).fit(TEXT, Y)
    assert iterated.n_iter_ > 1
    for other in (sparse, iterated):
        np.testing.assert_allclose(other.eigenvalues_, dense.eigenvalues_, rtol=1e-9)
        np.testing.assert_allclose(other.transform(TEXT), dense.transform(full), atol=1e-7)


def test_relation_features_take_the_place_of_the_features() -> None:
    model = made(MOPE, **CALL, kernel=RBF(bandwidth=3.0), n_landmarks=12).fit(X, Y)
    known = model.expansion_.sources["x"]  # type: ignore[attr-defined]
    assert known.shape == (12, D)
    R = rbf_kernel(X, known, gamma=1 / 18)
    values, P = scipy.linalg.eigh(R.T @ brute_psi() @ R)
    np.testing.assert_allclose(model.eigenvalues_, values[::-1][:K], rtol=1e-8)
    expected = rbf_kernel(NEW, known, gamma=1 / 18) @ P[:, ::-1][:, :K]
    np.testing.assert_allclose(np.abs(model.transform(NEW)), np.abs(expected), atol=1e-7)


def test_distances_to_samples_take_the_place_of_the_features() -> None:
    model = made(MOPE, **CALL, kernel="euclidean", n_landmarks=12).fit(X, Y)
    known = model.expansion_.sources["x"]  # type: ignore[attr-defined]
    R = np.linalg.norm(X[:, None] - known[None], axis=2)
    values, P = scipy.linalg.eigh(R.T @ brute_psi() @ R)
    np.testing.assert_allclose(model.eigenvalues_, values[::-1][:K], rtol=1e-8)
    expected = np.linalg.norm(NEW[:, None] - known[None], axis=2) @ P[:, ::-1][:, :K]
    np.testing.assert_allclose(np.abs(model.transform(NEW)), np.abs(expected), atol=1e-7)
    with pytest.raises(ValueError, match="is a distance, not a positive semidefinite kernel"):
        made(MOPE, **CALL, kernel="euclidean").fit(X, Y)


@pytest.mark.parametrize(
    ("unsupervised", "selection"), [("pca", "features"), ("olpp", "features"), ("olpp", "proximity")]
)
def test_semi_supervised_is_the_mix_of_two_matrices(unsupervised: Any, selection: Any) -> None:
    labels, arguments = Y.copy(), CALL | {"selection": selection}
    labels[::3] = np.nan
    known = np.where(np.isnan(labels), 0, labels)
    psi = made(MOPE, **arguments).fit(X, labels).proximity_.toarray()
    np.testing.assert_allclose(psi, brute_psi(labels=known, selection=selection), atol=1e-12)
    assert not psi[::3].any()
    distance = np.linalg.norm(X[:, None] - X[None], axis=2)
    graph = adjacency(neighbors(X, 7)).toarray() > 0
    W = np.where(graph, np.exp(-(distance**2) / (2 * distance[graph].mean() ** 2)), 0)
    A = np.eye(N) if unsupervised == "pca" else W - np.diag(W.sum(axis=1))
    values = scipy.linalg.eigvalsh(X.T @ (0.3 * psi + 0.7 * A) @ X)
    model = made(MOPE, **arguments, mixing=0.3, unsupervised=unsupervised).fit(X, labels)
    np.testing.assert_allclose(model.eigenvalues_, values[::-1][:K], rtol=1e-8)
    assert np.isfinite(model.transform(X)).all()


def test_samples_without_labels_have_proximity_0_whatever_is_combined() -> None:
    labels = np.where(np.arange(N)[:, None] % 3 == 0, 0, Y)
    for arguments in ({"combination": "features"}, {"combination": "sum", "beta": 0.4}, {"label_share": 0.5}):
        psi = made(MOPE, **CALL | arguments).fit(X, labels).proximity_.toarray()
        assert not psi[::3].any()
        assert not psi[:, ::3].any()
        assert psi[1::3].any()


@pytest.mark.parametrize("name", ["lsi", "lpp", "mds", "usc"])
def test_labels_are_projected_by_any_unsupervised_method(name: str) -> None:
    """Check equation 40 of [MOPE] with labels projected by LSI, LPP, classical scaling and spectral clustering."""
    S = np.linalg.svd(Y, full_matrices=False)
    centered = Y - Y.mean(axis=0)
    W = adjacency(neighbors(Y, 15)).toarray()
    W = (W > 0).astype(float)
    lap = np.diag(W.sum(axis=1)) - W
    B = Y.T @ np.diag(W.sum(axis=1)) @ Y + 1e-3 * np.eye(L)
    Z = {
        "lsi": Y @ S[2].T[:, :2],
        "lpp": Y @ scipy.linalg.eigh(-Y.T @ lap @ Y, B)[1][:, ::-1][:, :2],
        "mds": centered @ np.linalg.svd(centered, full_matrices=False)[2].T[:, :2],
        "usc": scipy.linalg.eigh(lap)[1][:, 1:3],
    }[name]
    near = np.exp(-((Z[:, None] - Z[None]) ** 2).sum(axis=2) / 0.5)
    model = MOPE(
        Proximity("projection", "minkowski", 2, bandwidth=0.5, projection=name),
        "labels",
        graph=Graph(n_neighbors=7),
    ).fit(X, Y)
    psi = model.proximity_.toarray()
    np.testing.assert_allclose(psi, np.where(psi > 0, near, 0), atol=1e-7)
    assert (psi > 0).sum() == adjacency(neighbors(X, 7)).nnz
    if name == "mds":
        one = np.array([[1.0, 1], [1, 0], [1, 1]])  # these labels have rank 2, or rank 1 after centering
        assert project_labels(name, one, None).shape == (3, 1)  # type: ignore[union-attr]


@pytest.mark.parametrize("unsupervised", ["pca", "olpp"])
def test_the_supervised_part_is_about_the_mean_of_the_labeled(unsupervised: Any) -> None:
    labels = Y.copy()
    labels[::3] = 0
    known = labels.any(axis=1)
    psi, own = brute_psi(labels=labels), X - X[known].mean(axis=0)
    distance = np.linalg.norm(X[:, None] - X[None], axis=2)
    graph = adjacency(neighbors(X, 7)).toarray() > 0
    W = np.where(graph, np.exp(-(distance**2) / (2 * distance[graph].mean() ** 2)), 0)
    other = np.eye(N) if unsupervised == "pca" else W - np.diag(W.sum(axis=1))
    Z = X - X.mean(axis=0)
    A = 0.8 * own.T @ psi @ own + 0.2 * Z.T @ other @ Z
    B = 0.8 * own[known].T @ own[known] + 0.2 * Z.T @ Z + 3.0 * np.eye(D)
    arguments: dict[str, Any] = {"constraint": "embedding", "center": True, "ridge": 3.0}
    model = made(MOPE, **CALL, **arguments, mixing=0.8, unsupervised=unsupervised).fit(X, labels)
    np.testing.assert_allclose(model.eigenvalues_, scipy.linalg.eigvalsh(A, B)[::-1][:K], rtol=1e-8)
    alone = made(MOPE, **CALL | {"n_neighbors": None, "weight": "cosine", "combination": "labels"}, **arguments)
    np.testing.assert_allclose(
        alone.fit(X, labels).eigenvalues_, clone(alone).fit(X[known], labels[known]).eigenvalues_, rtol=1e-8
    )


def test_an_equal_list_of_one_label_each_is_a_vector_of_classes() -> None:
    y = Y.argmax(axis=1)
    first = made(MOPE, **CALL).fit(X, y)
    second = made(MOPE, **CALL).fit(X, np.eye(L)[y])
    np.testing.assert_allclose(first.transform(NEW), second.transform(NEW), atol=1e-12)


@pytest.mark.parametrize("scheme", ["bits", "projection", "classes"])
def test_labels_draw_samples_of_one_class_together(scheme: str) -> None:
    similarity = {"bits": "jaccard", "projection": "minkowski", "classes": "counts"}[scheme]
    y = np.repeat([0, 1, 2], 40)
    data = np.random.default_rng(3).standard_normal((120, 10))
    data[:, :2] += 4 * np.array([[0, 0], [1, 0], [0, 1]])[y]
    data[:, 5] *= 6  # the direction of largest variance contains no class information
    arguments: dict[str, Any] = {"n_neighbors": 10, "n_components": 2, "center": True}
    shares = []
    for combination in ("priority", "features"):
        model = made(MOPE, Proximity(scheme, similarity), combination, **arguments, constraint="embedding").fit(data, y)
        P = np.linalg.qr(model.expansion_.coefficients)[0]  # type: ignore[attr-defined]
        shares.append(np.linalg.norm(P[:2]) ** 2 / 2)
    assert shares[0] > shares[1] + 0.05


def test_a_saved_model_maps_new_rows_alike(tmp_path: Any) -> None:
    variants: list[dict[str, Any]] = [{}, {"kernel": "rbf", "center": True}, {"kernel": "rbf", "n_landmarks": 9}]
    for arguments in variants:
        model = made(MOPE, **CALL, **arguments).fit(X, Y)
        model.save(str(tmp_path / "model"))
        np.testing.assert_array_equal(dmo.load(str(tmp_path / "model")).transform(NEW), model.transform(NEW))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scheme": "bit"}, "known: bits, projection, classes"),
        ({"similarity": "dice"}, "has no similarity 'dice'"),
        ({"combination": "or"}, "known: priority"),
        ({"weight": rng.random((N, N))}, "not symmetric"),
        ({"weight": "distance"}, "needs feature weights of at least 0 and at most 1"),
        ({"constraint": "none"}, "known: 'projection', 'embedding'"),
        ({"constraint": "coefficients"}, "needs the kernel form"),
        ({"adjacency": "directed"}, "known: 'union', 'mutual'"),
        ({"selection": "labels"}, "known: 'features', 'proximity'"),
        ({"selection": "proximity", "scheme": "projection", "similarity": "local"}, "use selection='features'"),
        ({"label_projection": "fda"}, "known: 'pca', 'lsi', 'usc'"),
        ({"label_share": 1.5}, "label_share = 1.5; needs a number from 0 to 1"),
        ({"ridge": 1.0}, "needs constraint='embedding'"),
        ({"ridge": -1.0}, "ridge = -1.0; needs a number that is not negative"),
        ({"n_components": 20}, "n_components = 20, but"),
        ({"n_components": 0.5}, "whole number"),
        ({"mixing": 2}, "mixing = 2; needs a number from 0 to 1"),
        ({"mixing": 0.5, "unsupervised": "lpp"}, "known: 'pca', 'olpp'"),
        ({"n_landmarks": 0}, "n_landmarks = 0; needs a whole number of at least 1"),
    ],
)
def test_bad_arguments_are_explained(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(MOPE, **{"n_neighbors": 7} | arguments).fit(X, Y)


@pytest.mark.parametrize("selection", ["features", "proximity"])
def test_more_neighbors_than_samples_are_all_of_them_with_a_warning(selection: Any) -> None:
    with pytest.warns(UserWarning, match="n_neighbors = 90, but these samples have 89; 89 is used"):
        found = MOPE(graph=Graph(n_neighbors=90, selection=selection)).fit(X, Y).transform(NEW)
    np.testing.assert_array_equal(
        found, MOPE(graph=Graph(n_neighbors=89, selection=selection)).fit(X, Y).transform(NEW)
    )


def test_all_pairs_of_many_samples_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ALL", 89)
    with pytest.raises(ValueError, match="supports at most 89 samples, got 90; pass a number"):
        MOPE(graph=Graph("all")).fit(X, Y)


def test_labels_are_needed() -> None:
    with pytest.raises(ValueError, match="no sample has a label"):
        MOPE(graph=Graph(n_neighbors=7)).fit(X, np.full((N, L), np.nan))


def test_sparse_rows_less_their_mean_are_constrained_as_dense_ones() -> None:
    few = TEXT[:, :30]
    arguments = CALL | {"constraint": "embedding", "ridge": 0.1, "center": True}
    Z, W = (made(MOPE, **arguments).fit(rows, Y).transform(few) for rows in (few, few.toarray()))
    np.testing.assert_allclose(Z, W, atol=1e-9)
