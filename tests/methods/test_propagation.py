"""Compare label propagation with scikit-learn and, for class similarities, with a Kronecker system."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from cases import made
from scipy.sparse.csgraph import laplacian
from sklearn import semi_supervised
from sklearn.datasets import make_moons
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.utils.estimator_checks import parametrize_with_checks

import dmo
from dmo import Graph, LabelPropagation
from dmo.graphs import adjacency, neighbors, weigh
from dmo.linalg.cg import solve_shifted
from dmo.methods.propagation import propagate

N, L, LAM1 = 80, 4, 1.7
METHODS = ["smse1", "smse2", "ml-grf", "ml-lgc"]
rng = np.random.default_rng(0)
X = rng.standard_normal((N, 5))
Y = (rng.random((N, L)) < 0.4).astype(np.float64)
Y[:, 3] = Y[:, 0] * (rng.random(N) < 0.8)
KNOWN = rng.random(N) < 0.4
W = weigh(adjacency(neighbors(X, 8)), X, "gaussian")
PARTLY = np.where(KNOWN[:, None], Y, np.nan)
SIGMA = cosine_similarity(Y[KNOWN].T)


@pytest.mark.slow
@parametrize_with_checks([LabelPropagation(graph=Graph(n_neighbors=2))])
def test_scikit_learn_contract(estimator: Any, check: Any) -> None:
    check(estimator)


def kronecker(method: str, lam2: float) -> np.ndarray:
    """Compute Z by setting the gradient to zero, as one dense linear system in the n L entries of vec(Z)."""
    w, fit = W.toarray(), np.diag(KNOWN.astype(float))
    L_w = laplacian(w, normed=method in ("smse2", "ml-lgc"))
    degree = SIGMA.sum(axis=1)
    scale = degree**-0.5 if method == "smse2" else np.ones(L)
    L_s = scale[:, None] * (np.diag(degree) - SIGMA) * scale
    unit = np.eye(L)
    A = np.kron(unit, LAM1 * L_w)
    R = (fit @ Y).T.ravel()
    if method in ("smse2", "ml-lgc"):
        A += np.eye(N * L)
    if method == "ml-grf":
        A += np.kron(unit, fit)
    A += lam2 * np.kron(L_s, np.eye(N)) if method.startswith("smse") else -lam2 * np.kron(SIGMA, np.eye(N))
    if method != "smse1":
        return np.linalg.solve(A, R).reshape(L, N).T
    free = np.tile(~KNOWN, L)
    Z = R.copy()
    Z[free] = np.linalg.solve(A[np.ix_(free, free)], -(A[np.ix_(free, ~free)] @ R[~free]))
    return Z.reshape(L, N).T


@pytest.mark.parametrize("lam2", [0.0, 0.01])
@pytest.mark.parametrize("method", METHODS)
def test_scores_solve_the_published_problem(method: Any, lam2: float) -> None:
    model = LabelPropagation(method, smoothness=LAM1, correlation=lam2, graph=Graph(n_neighbors=8), tol=1e-12)
    model.fit(X, PARTLY)
    np.testing.assert_allclose(model.scores_, kronecker(method, lam2), atol=1e-9)
    if method == "smse1":
        np.testing.assert_array_equal(model.scores_[KNOWN], Y[KNOWN])


def moons() -> tuple[np.ndarray, np.ndarray, np.ndarray, Any]:
    data, truth = make_moons(150, noise=0.08, random_state=0)
    labels = np.where(np.random.default_rng(0).random(150) < 0.1, truth, -1)
    graph = weigh(adjacency(neighbors(data, 10)), data, "gaussian").toarray()
    return data, truth, labels, lambda *_: graph.copy()


def test_smse1_without_class_similarities_is_scikit_learns_propagation() -> None:
    data, truth, labels, kernel = moons()
    reference = semi_supervised.LabelPropagation(kernel=kernel, max_iter=100_000, tol=1e-11).fit(data, labels)
    model = LabelPropagation("smse1", correlation=0.0, graph=Graph(n_neighbors=10)).fit(data, labels)
    np.testing.assert_allclose(model.scores_, reference.label_distributions_, atol=1e-6)
    assert (model.predict(data) == truth).mean() > 0.95
    assert model.score(data, truth) > 0.95


@pytest.mark.parametrize("method", ["smse2", "ml-lgc"])
def test_normalized_methods_without_class_similarities_are_scikit_learns_spreading(method: Any) -> None:
    data, _, labels, kernel = moons()
    reference = semi_supervised.LabelSpreading(kernel=kernel, alpha=0.8, max_iter=100_000, tol=1e-13).fit(data, labels)
    model = LabelPropagation(method, smoothness=4.0, correlation=0.0, graph=Graph(n_neighbors=10), tol=1e-12).fit(
        data, labels
    )
    shares = model.scores_ / model.scores_.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(shares, reference.label_distributions_, atol=1e-7)


@pytest.mark.parametrize("method", ["ml-grf", "ml-lgc"])
def test_the_bound_of_the_class_similarities_is_where_the_problem_ceases_to_be_convex(method: Any) -> None:
    L_w = laplacian(W.toarray(), normed=method == "ml-lgc")
    A = LAM1 * L_w + (np.eye(N) if method == "ml-lgc" else np.diag(KNOWN.astype(float)))
    bound = np.linalg.eigvalsh(A)[0] / np.linalg.eigvalsh(SIGMA)[-1]
    model = LabelPropagation(method, smoothness=LAM1, graph=Graph(n_neighbors=8)).fit(X, PARTLY)
    assert model.correlation_ == pytest.approx(bound / 2, rel=1e-6)
    model.set_params(correlation=0.999 * bound).fit(X, PARTLY)
    with pytest.raises(ValueError, match=r"unbounded; it must be below 0\.\d+, the smallest eigenvalue"):
        model.set_params(correlation=1.001 * bound).fit(X, PARTLY)


def test_at_the_bound_itself_the_problem_is_refused() -> None:
    """Classes without common samples have no similarity, for which the bound of ml-lgc is 1."""
    Y = np.where(np.arange(N)[:, None] < 8, np.eye(2)[np.arange(N) % 2], np.nan)
    model = LabelPropagation("ml-lgc", smoothness=LAM1, graph=Graph(n_neighbors=8), correlation=1.0)
    with pytest.raises(ValueError, match="unbounded; it must be below 1,"):
        model.fit(X, Y)


def test_the_bound_is_found_on_a_graph_of_many_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    known = LabelPropagation("ml-grf", graph=Graph(n_neighbors=8)).fit(X, PARTLY).correlation_
    monkeypatch.setattr("dmo.methods.propagation._DENSE", 10)
    assert LabelPropagation("ml-grf", graph=Graph(n_neighbors=8)).fit(X, PARTLY).correlation_ == pytest.approx(
        known, rel=1e-2
    )


def test_an_indefinite_system_is_noticed_by_the_solver() -> None:
    A = scipy.sparse.csr_array(np.array([[1.0, 2.0], [2.0, 1.0]]))
    with pytest.raises(ValueError, match="lower correlation"):
        solve_shifted(A, np.zeros(1), np.array([[1.0], [-1.0]]))


@pytest.mark.parametrize("unknown", [np.nan, -1])
def test_unknown_labels_are_rows_of_nan_or_of_minus_one(unknown: float) -> None:
    expected = LabelPropagation(graph=Graph(n_neighbors=8)).fit(X, PARTLY).scores_
    given = np.where(KNOWN[:, None], Y, unknown)
    np.testing.assert_array_equal(LabelPropagation(graph=Graph(n_neighbors=8)).fit(X, given).scores_, expected)


@pytest.mark.parametrize("weight", ["constant", "gaussian", "local", "inverse", "cosine"])
@pytest.mark.parametrize("sparse", [False, True])
def test_new_samples_take_the_weighted_mean_of_their_neighbors(weight: str, sparse: bool) -> None:
    data, new = np.abs(X), np.abs(rng.standard_normal((9, 5)))
    model = LabelPropagation("smse2", graph=Graph(n_neighbors=6, weight=weight))
    model.fit(scipy.sparse.csr_array(data) if sparse else data, PARTLY)
    D = np.linalg.norm(new[:, None] - data[None], axis=2)
    order = np.argsort(D, axis=1)
    own = np.sort(np.linalg.norm(data[:, None] - data[None], axis=2), axis=1)[:, 7]
    lengths = weigh(adjacency(neighbors(data, 6)), data, "distance").data
    w = {
        "constant": np.ones_like(D),
        "gaussian": np.exp(-(D**2) / (2 * lengths.mean() ** 2)),
        "local": np.exp(-(D**2) / np.outer(np.sort(D, axis=1)[:, 6], own)),
        "inverse": 1 / (1 + D**2 / ((new**2).sum(axis=1)[:, None] + (data**2).sum(axis=1))),
        "cosine": cosine_similarity(new, data),
    }[weight]
    expected = [np.average(model.scores_[o[:6]], axis=0, weights=row[o[:6]]) for row, o in zip(w, order)]
    found = model.decision_function(scipy.sparse.csr_array(new) if sparse else new)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert model.predict(new, top=2).sum() == 18


def test_a_new_sample_far_away_takes_the_plain_mean() -> None:
    model = LabelPropagation("smse2", graph=Graph(n_neighbors=6)).fit(X, PARTLY)
    far = np.full((1, 5), 1e4)
    picked = np.argsort(np.linalg.norm(X - far, axis=1))[:6]
    np.testing.assert_allclose(model.decision_function(far)[0], model.scores_[picked].mean(axis=0), rtol=1e-9)


def test_correlated_classes_share_their_scores() -> None:
    def of_a_pair(correlation: float) -> float:
        model = LabelPropagation("ml-lgc", correlation=correlation, graph=Graph(n_neighbors=8)).fit(X, PARTLY)
        return float(np.corrcoef(model.scores_[~KNOWN].T)[0, 3])

    assert of_a_pair(0.3) > of_a_pair(0.0)


def test_a_saved_model_scores_alike(tmp_path: Any) -> None:
    for weight in ("gaussian", "local"):
        model = LabelPropagation(graph=Graph(n_neighbors=6, weight=weight)).fit(X, PARTLY)
        model.save(str(tmp_path / weight))
        again = dmo.load(str(tmp_path / weight))
        np.testing.assert_array_equal(again.predict(X[:9]), model.predict(X[:9]))
        np.testing.assert_array_equal(again.decision_function(X), model.decision_function(X))


@pytest.mark.filterwarnings("ignore:.*the systems stopped")
def test_more_neighbors_than_samples_are_all_of_them_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="n_neighbors = 80, but these samples have 79; 79 is used"):
        model = LabelPropagation(graph=Graph(n_neighbors=80)).fit(X, PARTLY)
    wanted = LabelPropagation(graph=Graph(n_neighbors=79)).fit(X, PARTLY)
    np.testing.assert_array_equal(model.scores_, wanted.scores_)
    np.testing.assert_array_equal(model.decision_function(X[:9] + 0.1), wanted.decision_function(X[:9] + 0.1))


@pytest.mark.parametrize(
    ("arguments", "labels", "message"),
    [
        ({"method": "ml-gfr"}, PARTLY, "known: smse1, smse2, ml-grf, ml-lgc"),
        ({"smoothness": 0}, PARTLY, "smoothness = 0; needs a positive number"),
        ({"correlation": -1}, PARTLY, "correlation = -1; needs a number that is not negative"),
        ({"weight": rng.random((N, N))}, PARTLY, "not symmetric"),
        ({"weight": "pearson", "n_neighbors": 40}, PARTLY, "weights of at least 0"),
        ({"class_similarity": "dice"}, PARTLY, "has no similarity 'dice'"),
        ({}, np.full((N, L), np.nan), "no sample has a label"),
        ({}, np.where(np.arange(N)[:, None] == 3, np.nan, Y) * 2, "labels must be 0 or 1"),
    ],
)
def test_bad_arguments_are_explained(arguments: Any, labels: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(LabelPropagation, **({"n_neighbors": 8} | arguments)).fit(X, labels)


def test_a_part_of_the_graph_without_labels_is_refused_or_left_at_zero() -> None:
    data = np.vstack([X, X[:20] + 100])
    labels = np.vstack([PARTLY, np.full((20, L), np.nan)])
    for method in ("smse1", "ml-grf"):
        with pytest.raises(ValueError, match=r"1 of the graph's 2 components have no sample .*\(20 samples\)"):
            LabelPropagation(method, graph=Graph(n_neighbors=8)).fit(data, labels)  # type: ignore[arg-type]
    model = LabelPropagation("ml-lgc", graph=Graph(n_neighbors=8)).fit(data, labels)
    assert not model.scores_[N:].any()


def test_weights_given_as_a_matrix_score_the_training_samples_alone() -> None:
    model = LabelPropagation("smse1", graph=Graph(weight=W, n_neighbors=8)).fit(X, PARTLY)
    expected = propagate("smse1", W, Y, KNOWN, SIGMA, 1.0, 0.1)
    np.testing.assert_allclose(model.scores_, expected.scores, atol=1e-12)
    with pytest.raises(ValueError, match="does not contain new samples"):
        model.predict(X)
