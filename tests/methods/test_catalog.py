"""Compare each embedding method with scikit-learn or with its formula on explicit n x n matrices."""

import json

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
import sklearn.manifold
from cases import checked_by_scikit_learn, made
from scipy.spatial.distance import cdist
from sklearn.datasets import make_swiss_roll
from sklearn.decomposition import PCA
from sklearn.manifold import Isomap, LocallyLinearEmbedding, SpectralEmbedding
from sklearn.neighbors import kneighbors_graph
from typer.testing import CliRunner

import dmo
from dmo import Graph, MethodOptions, TraceEmbedding
from dmo.cli.app import app
from dmo.kernels import Euclidean
from dmo.methods import trace_solvers as solvers
from dmo.methods.catalog import METHODS, SUPERVISED, UNSUPERVISED, markdown
from dmo.methods.quadratic_forms import QuadraticForm, TraceProblem, mix
from dmo.methods.trace_solvers import solve_projected
from dmo.parameters import flat

RNG = np.random.default_rng(0)
N, D, K, P = 90, 6, 8, 3
y = np.repeat([0, 1, 2], 30)
X = RNG.standard_normal((N, D)) @ RNG.standard_normal((D, D)) + np.array([0.0, 3.0, 5.0])[y][:, None]
NEW = RNG.standard_normal((11, D))
H = np.eye(N) - 1 / N
DISTANCE = cdist(X, X)


def angle(A, B):
    Q, R = np.linalg.qr(A)[0], np.linalg.qr(B)[0]
    return float(np.degrees(np.arcsin(min(1.0, np.linalg.norm(R - Q @ (Q.T @ R), 2)))))


def lap(W):
    return np.diag(W.sum(axis=1)) - W


def graph(k=K, mode="union"):
    A = kneighbors_graph(X, k).toarray()
    return {"union": np.maximum(A, A.T), "mutual": A * A.T, "sum": A + A.T}[mode]


def gaussian(mode="union"):
    A = graph(mode=mode) > 0
    return A * np.exp(-(DISTANCE**2) / (2 * DISTANCE[A].mean() ** 2))


def reconstruction(k=K):
    S = np.zeros((N, N))
    for i in range(N):
        own = np.argsort(DISTANCE[i])[1 : k + 1]
        Z = X[own] - X[i]
        w = np.linalg.solve(Z @ Z.T + 1e-3 * np.trace(Z @ Z.T) * np.eye(k), np.ones(k))
        S[i, own] = w / w.sum()
    return (np.eye(N) - S).T @ (np.eye(N) - S)


def top(A, B=None, k=P, skip=0):
    """Return the `k` largest eigenpairs of the pencil (A, B) after skipping the first `skip` pairs."""
    values, vectors = scipy.linalg.eigh(A, B)
    return vectors[:, ::-1][:, skip : skip + k], values[::-1][skip : skip + k]


def same(model, wanted, values):
    """Compare a fitted projection with the eigenvectors of a d x d problem."""
    np.testing.assert_allclose(model.eigenvalues_, values, rtol=1e-7, atol=1e-12)
    assert angle(model.expansion_.coefficients, wanted) < 1e-5


def fitted(name, k=P, target=None, **parameters):
    return made(TraceEmbedding, name, n_components=k, **parameters).fit(X, target)


def test_laplacian_eigenmaps_are_scikit_learns_spectral_embedding():
    for weights, W in (("constant", graph()), ("gaussian", gaussian())):
        reference = SpectralEmbedding(P, affinity="precomputed", random_state=0, eigen_tol=1e-13).fit_transform(W)
        for found in (fitted("le", n_neighbors=K, weight=weights), fitted("le", weight=W)):
            assert angle(found.embedding_, reference) < 1e-5


@pytest.mark.parametrize("mode", ["union", "mutual", "sum"])
def test_spectral_clusterings_are_their_matrices_eigenvectors(mode):
    W = graph(25, mode)
    Z, values = top(-lap(W), skip=1)
    given = {"weight": W} if mode == "sum" else {"n_neighbors": 25, "adjacency": mode}  # edges have weight 1
    found = fitted("usc", **given)
    assert angle(found.embedding_, Z) < 1e-5
    np.testing.assert_allclose(found.eigenvalues_, values, rtol=1e-8)
    half = np.diag(W.sum(axis=1) ** -0.5)
    Z = top(half @ W @ half)[0]
    Z /= np.linalg.norm(Z, axis=1, keepdims=True)
    found = fitted("nsc", **given).embedding_
    # Z Z' does not depend on a rotation of the embedding Z.
    np.testing.assert_allclose(found @ found.T, Z @ Z.T, atol=1e-8)


def test_multidimensional_scaling_is_scikit_learns():
    found = fitted("mds")
    np.testing.assert_allclose(np.abs(found.embedding_), np.abs(PCA(P).fit_transform(X)), atol=1e-8)
    if hasattr(sklearn.manifold, "ClassicalMDS"):
        reference = sklearn.manifold.ClassicalMDS(P).fit_transform(X)
        np.testing.assert_allclose(np.abs(found.embedding_), np.abs(reference), atol=1e-8)


def test_the_seed_decides_every_digit_of_a_kernel_method():
    given = {"kernel": "rbf", "n_components": 2, "random_state": 3}
    first, again = (made(TraceEmbedding, "pca", **given).fit_transform(X) for _ in range(2))
    np.testing.assert_array_equal(first, again)


def test_dimensions_of_rounding_have_no_coordinates():
    plane = 1e5 * X[:, :2] @ np.random.default_rng(5).standard_normal((2, 6))
    assert TraceEmbedding("mds", n_components=2).fit(plane).embedding_.shape == (N, 2)
    with pytest.raises(ValueError, match="n_components = 3, but the problem has only 2 directions"):
        TraceEmbedding("mds", n_components=3).fit(plane)


def test_isomap_is_scikit_learns():
    roll = make_swiss_roll(200, random_state=0)[0]
    reference = Isomap(n_neighbors=9, n_components=2, eigen_solver="dense").fit_transform(roll)
    found = TraceEmbedding("isomap", graph=Graph(n_neighbors=9), n_components=2).fit_transform(roll)
    np.testing.assert_allclose(np.abs(found), np.abs(reference), atol=1e-7)


def test_locally_linear_embedding_is_scikit_learns():
    reference = LocallyLinearEmbedding(n_neighbors=K, n_components=P, eigen_solver="dense").fit_transform(X)
    assert angle(fitted("lle", n_neighbors=K).embedding_, reference) < 1e-5


def test_sparse_solvers_find_what_the_dense_one_finds(monkeypatch):
    names = [("usc", {}), ("le", {}), ("lle", {"n_neighbors": 12}), ("nsc", {}), ("mds", {}), ("isomap", {})]
    roll = make_swiss_roll(400, random_state=0)[0]
    dense = [made(TraceEmbedding, name, n_components=2, **more).fit(roll) for name, more in names]
    monkeypatch.setattr(solvers, "DENSE", 10)
    for restarts, most in ((1000, 10), (1, 10**9), (1, 10)):  # these limits select Lanczos, shift-invert and LOBPCG
        monkeypatch.setattr(solvers, "RESTARTS", restarts)
        monkeypatch.setattr(solvers, "FACTORED", most)
        last = restarts == 1 and most == 10
        for (name, more), reference in zip(names, dense):
            if name == "lle" and restarts == 1000:
                continue  # Lanczos cannot resolve the smallest eigenvalues of LLE
            found = made(TraceEmbedding, name, n_components=2, **more).fit(roll)
            np.testing.assert_allclose(found.eigenvalues_, reference.eigenvalues_, rtol=1e-3, atol=1e-9)
            assert angle(found.embedding_, reference.embedding_) < (0.1 if last else 1e-4), name


@pytest.mark.parametrize("weights", ["constant", "gaussian"])
def test_locality_preserving_projections_are_their_formula(weights):
    W = graph() if weights == "constant" else gaussian()
    more = {"n_neighbors": K, "weight": weights}
    B = X.T @ np.diag(W.sum(axis=1)) @ X + 0.2 * np.eye(D)
    same(fitted("lpp", ridge=0.2, **more), *top(-X.T @ lap(W) @ X, B))
    same(fitted("olpp", **more), *top(-X.T @ lap(W) @ X))


def test_tau_is_that_of_inverse_weights():
    squares = (X**2).sum(axis=1)
    W = graph() / (0.3 + DISTANCE**2 / (squares[:, None] + squares))
    same(fitted("olpp", n_neighbors=K, weight="inverse", tau=0.3), *top(-X.T @ lap(W) @ X))


@pytest.mark.parametrize(
    "rows", [X, X @ RNG.standard_normal((D, 150)) + 2.0], ids=["features", "more features than samples"]
)
@pytest.mark.parametrize("make", [np.asarray, scipy.sparse.csr_array])
@pytest.mark.parametrize("share", [0.9, 1.0])
def test_a_share_of_the_variance_is_kept_by_pca_first(rows, make, share):
    """Reduce the rows with scikit-learn's PCA, then apply the formula of each method to the PCA coordinates."""
    pca = PCA(n_components=share if share < 1 else D, svd_solver="full").fit(rows)
    F = pca.transform(rows)
    assert F.shape[1] == (D if share == 1 else np.searchsorted(np.cumsum(pca.explained_variance_ratio_), share) + 1)
    found = kneighbors_graph(rows, K).toarray()
    W = np.maximum(found, found.T)
    for name, B, more in (("olpp", None, {}), ("lpp", F.T @ np.diag(W.sum(axis=1)) @ F, {"ridge": 0.0})):
        vectors, values = top(-F.T @ lap(W) @ F, B, k=2)
        model = made(TraceEmbedding, name, n_components=2, graph=Graph(n_neighbors=K), variance=share, **more).fit(
            make(rows)
        )
        np.testing.assert_allclose(model.eigenvalues_, values, rtol=1e-6)
        np.testing.assert_allclose(np.abs(model.transform(make(rows))), np.abs(F @ vectors), rtol=1e-5, atol=1e-6)


def test_neighborhood_preserving_projections_are_their_formula():
    M = reconstruction()
    same(fitted("npp", ridge=0.2, n_neighbors=K), *top(-X.T @ M @ X, X.T @ X + 0.2 * np.eye(D)))
    same(fitted("onpp", n_neighbors=K), *top(-X.T @ M @ X))


ONE_HOT = (y[:, None] == np.arange(3)).astype(float)
PI = ONE_HOT @ np.diag(1 / ONE_HOT.sum(axis=0)) @ ONE_HOT.T
SW, SB = X.T @ (np.eye(N) - PI) @ X, X.T @ (PI - 1 / N) @ X


def test_indefinite_methods_take_the_algebraically_largest_eigenvalues():
    A = SB - 3.0 * SW
    values = np.linalg.eigvalsh(A)
    assert np.abs(values).argmax() == 0, "the largest magnitude is the most negative value: a solver may be misled"
    same(fitted("mmc", 2, y, penalty=3.0), *top(A, k=2))
    R = graph() * (y[:, None] != y)
    A = -X.T @ ((np.eye(N) - PI) - 0.05 * lap(R)) @ X
    assert np.abs(np.linalg.eigvalsh(A)).argmax() == 0
    same(fitted("olpp-r", 2, y, repulsion=0.05, n_repelled=K), *top(A, k=2))


def test_discriminant_neighborhood_embedding_keeps_positive_eigenvalues():
    F = graph() * np.where(y[:, None] == y, 1.0, -1.0)
    vectors, values = top(-X.T @ lap(F) @ X, k=D)
    count = int((values > 0).sum())
    assert 0 < count < D
    same(fitted("dne", D, y, n_neighbors=K), vectors[:, :count], values[:count])
    mixed = top(-0.5 * X.T @ lap(F) @ X - 0.5 * X.T @ lap(graph()) @ X, k=D)  # a mix keeps all eigenvalues
    parts = {"supervised": "dne", "unsupervised": "olpp", "weight": "constant"}
    found = fitted("mix", D, y, n_neighbors=K, mixing=0.5, **parts)
    same(found, *mixed)


PART = y.copy()
PART[::3] = -1
KNOWN = PART >= 0
EYE = np.eye(D)


def scatters_of_known():
    """Compute the scatter matrices of LFDA and FDA with loops over pairs of labeled samples."""
    Xl, yl = X[KNOWN], y[KNOWN]
    n, Dl = len(yl), cdist(Xl, Xl)
    scale = np.array([np.sort(Dl[i][yl == yl[i]])[7] for i in range(n)])
    A = np.exp(-(Dl**2) / np.outer(scale, scale))
    size = np.array([(yl == c).sum() for c in yl])
    same_class = yl[:, None] == yl
    Ww, Wb = same_class * A / size, np.where(same_class, A * (1 / n - 1 / size), 1 / n)
    Pl = same_class / size
    local = (Xl.T @ lap(Wb) @ Xl, Xl.T @ lap(Ww) @ Xl)
    return local, (Xl.T @ (Pl - 1 / n) @ Xl, Xl.T @ (np.eye(n) - Pl) @ Xl)


def test_semi_supervised_methods_are_their_formulas():
    (b, w), (sb, sw) = scatters_of_known()
    L = X.T @ lap(graph()) @ X
    same(fitted("self", 2, PART, mixing=0.7), *top(0.7 * b + 0.3 * X.T @ H @ X, 0.7 * w + 0.3 * EYE, 2))
    more = {"n_neighbors": K, "smoothness": 0.2}
    same(fitted("ssfda", 2, PART, ridge=0.5, **more), *top(sb, sw + 0.2 * L + 0.5 * EYE, 2))
    same(fitted("ssmmc", 2, PART, penalty=0.4, **more), *top(sb - 0.4 * sw - 0.2 * L, None, 2))


def test_any_pair_of_methods_mixes():
    (b, w), (sb, sw) = scatters_of_known()
    W, M = graph(), reconstruction()
    B = 0.4 * (X.T @ np.diag(W.sum(axis=1)) @ X + 0.1 * EYE) + 0.6 * (sw + 0.1 * EYE)
    found = fitted("mix", 2, PART, mixing=0.6, ridge=0.1, n_neighbors=K)
    same(found, *top(0.6 * sb - 0.4 * X.T @ lap(W) @ X, B, 2))
    found = fitted("mix", 2, PART, supervised="lfda", unsupervised="pca", mixing=0.7, ridge=0.1)
    same(found, *top(0.7 * b + 0.3 * X.T @ H @ X, 0.7 * (w + 0.1 * EYE) + 0.3 * EYE, 2))
    found = fitted("mix", 2, PART, supervised="mmc", unsupervised="onpp", mixing=0.7, n_neighbors=K)
    same(found, *top(0.7 * (sb - sw) - 0.3 * X.T @ M @ X, None, 2))


@pytest.mark.parametrize(("constraint", "values"), [("mixed", [2, 4 / 3, 2 / 3]), ("first", [1.5, 1, 0.5])])
def test_constraints_mix_by_hand(constraint, values):
    """Check equations 44 and 45 of [MOPE] on three samples with X = I and lambda = 1/2.

    The objective matrix is A = (diag(4, 2, 0) + 2 I) / 2 = diag(3, 2, 1). The constraint matrix is 3/2 I for "mixed" and
    2 I for "first".
    """
    first = TraceProblem(QuadraticForm(3, diagonal=np.array([4.0, 2, 0])), QuadraticForm(3, identity=1.0), center=False)
    second = TraceProblem(QuadraticForm(3, identity=2.0), center=False)
    found = solve_projected(mix(first, second, 0.5, constraint), np.eye(3), 3)
    np.testing.assert_allclose(found.values, values, rtol=1e-14)
    plain = solve_projected(mix(first, second, 0.5, "projection"), np.eye(3), 3)
    np.testing.assert_allclose(plain.values, [3, 2, 1], rtol=1e-14)


def test_the_constraint_of_a_mix_is_chosen():
    sw, sb = scatters_of_known()[1][::-1]
    A = 0.6 * sb + 0.4 * X.T @ H @ X
    found = fitted("mix", 2, PART, unsupervised="pca", mixing=0.6, ridge=0.1, constraint="supervised")
    same(found, *top(A, sw + 0.1 * EYE, 2))
    plain = fitted("mix", 2, PART, unsupervised="pca", mixing=0.6, constraint="projection")
    same(plain, *top(A, None, 2))
    for model in (found, plain, fitted("mix", 2, PART, unsupervised="pca", ridge=0.1)):
        np.testing.assert_allclose(model.transform(X).mean(axis=0), 0, atol=1e-9, err_msg="both parts are centered")


def supervised_pairs(ridge, share, shrinkage):
    """Return the matrices (A, B) of each global supervised method on the labeled samples.
    B is None if the constraint is P'P = I, and `share` is the weight of the labels.
    """
    n = int(KNOWN.sum())
    Yl, Xl, Hl = ONE_HOT[KNOWN], X[KNOWN], np.eye(n) - 1 / n
    T, K = Hl @ Yl, Hl @ Xl @ Xl.T @ Hl
    KY, trace = T @ T.T, np.trace
    S = Yl @ Yl.T / 20  # every label has 20 samples, so the three hypergraph expansions agree
    off = Yl @ Yl.T - np.diag(np.diag(Yl @ Yl.T))
    sums = off.sum(axis=1)
    Q = off + sums.sum() / ((n - 1) * (n - 2)) * (np.ones((n, n)) - np.eye(n))
    Q = (Q - (sums[:, None] + sums - 2 * np.diag(sums)) / (n - 2)) / (n * (n - 3))
    joint = (1 - share) * K + share * trace(K) / trace(KY) * KY
    plain, plain_y = Xl @ Xl.T, Yl @ Yl.T
    return {
        "pls": (KY, None, 1.0),
        "opls": (KY, Hl, ridge),
        "cca": (T @ np.linalg.pinv(T.T @ T) @ T.T, Hl, ridge),
        "mddm": (KY, (1 - shrinkage) * Hl, shrinkage),
        "hsic-0": (KY / (n - 1) ** 2, None, 1.0),
        "hsic-1": (Q, None, 1.0),
        **dict.fromkeys(("hsl-1", "hsl-2", "hsl-3"), (Hl @ S @ Hl, Hl, ridge)),
        "slvm": ((1 - share) * K + share * KY, Hl, ridge),
        "kde": (KY, Hl, ridge),
        **dict.fromkeys(("morp", "morp-simplified"), (joint, Hl, ridge)),
        "mlsi": ((1 - share) * plain + share * trace(plain) / trace(plain_y) * plain_y, np.eye(n), ridge),
    }


@pytest.mark.parametrize("name", supervised_pairs(1.0, 0.5, 0.5))
@pytest.mark.parametrize("make", [np.asarray, scipy.sparse.csr_array])
def test_every_global_supervised_method_mixes(name, make):
    """Check equations 44 and 45 of [MOPE]: 0.4 times PCA on all samples plus 0.6 times a method on labeled samples."""
    A, B, c = supervised_pairs(0.5, 0.6, 0.3)[name]
    Xl = X[KNOWN]
    wanted = 0.6 * Xl.T @ A @ Xl + 0.4 * X.T @ H @ X
    constraint = None if B is None else 0.6 * (Xl.T @ B @ Xl + c * EYE) + 0.4 * EYE
    found = TraceEmbedding(
        "mix",
        n_components=2,
        options=MethodOptions(supervised=name, unsupervised="pca", mixing=0.6, shrinkage=0.3),
        ridge=0.5,
    )
    same(found.fit(make(X), PART), *top(wanted, constraint, 2))


def test_every_unsupervised_method_mixes():
    sb, sw = scatters_of_known()[1]
    W, M = graph(), reconstruction()
    degrees = np.diag(W.sum(axis=1))
    half = np.diag(W.sum(axis=1) ** -0.5)
    geodesic = scipy.sparse.csgraph.shortest_path(graph() * DISTANCE, directed=False)
    pairs = {
        "pca": (H, None),
        "lsi": (np.eye(N), None),
        "usc": (-lap(W), np.eye(N)),
        "le": (-lap(W), degrees),
        "nsc": (half @ W @ half, np.eye(N)),
        "mds": (H @ X @ X.T @ H, np.eye(N)),
        "isomap": (-H @ geodesic**2 @ H / 2, np.eye(N)),
        "lle": (-M, np.eye(N)),
        "lpp": (-lap(W), degrees),
        "olpp": (-lap(W), None),
        "npp": (-M, np.eye(N)),
        "onpp": (-M, None),
    }
    assert set(pairs) == set(UNSUPERVISED)
    for name, (A, B) in pairs.items():
        constraint = EYE if B is None else X.T @ B @ X + 0.5 * EYE
        found = fitted("mix", 2, PART, unsupervised=name, mixing=0.7, ridge=0.5, n_neighbors=K)
        vectors, values = top(0.7 * sb + 0.3 * X.T @ A @ X, 0.7 * (sw + 0.5 * EYE) + 0.3 * constraint, 2)
        np.testing.assert_allclose(found.eigenvalues_, values, rtol=1e-7, err_msg=name)
        assert angle(found.expansion_.coefficients, vectors) < 1e-5, name


@pytest.mark.slow
def test_any_supervised_method_is_offered_with_any_unsupervised_one():
    for i, supervised in enumerate(SUPERVISED):
        for j in (i, i + 5):
            unsupervised = [*UNSUPERVISED][j % len(UNSUPERVISED)]
            found = fitted("mix", 1, PART, supervised=supervised, unsupervised=unsupervised, n_neighbors=K)
            assert np.isfinite(found.transform(NEW)).all()


def test_rows_without_labels_are_written_in_four_ways():
    matrix = np.where(KNOWN[:, None], ONE_HOT, np.nan)
    reference = fitted("lfda", 2, PART).transform(X)
    for target in (matrix, np.nan_to_num(matrix), np.where(KNOWN, y, np.nan)):
        np.testing.assert_array_equal(fitted("lfda", 2, target).transform(X), reference)
    plain = TraceEmbedding("lfda", n_components=2).fit(X[KNOWN], y[KNOWN])
    np.testing.assert_allclose(plain.transform(X), reference, atol=1e-10)


@pytest.mark.parametrize("name", ["mmc", "lpp", "lfda", "self"])
@pytest.mark.parametrize("seeds", [None, 25])
def test_similarities_to_samples_take_the_place_of_features(name, seeds):
    target = None if name == "lpp" else PART
    more = {"ridge": 0.1} if name in ("lpp", "lfda") else {}
    model = fitted(name, 2, target, kernel="rbf", n_landmarks=seeds, **more)
    points = X if seeds is None else model.expansion_.sources["x"]
    width = next(iter(model.expansion_.kernel.kernels.values())).bandwidth
    R = np.exp(-cdist(X, points, "sqeuclidean") / (2 * width**2))
    assert R.shape == (N, N if seeds is None else 25)
    if name == "mmc":  # solve the MMC problem on these columns
        Pl = PI[np.ix_(KNOWN, KNOWN)] * 30 / 20
        Rl = R[KNOWN]
        same(model, *top(Rl.T @ (2 * Pl - 1 / len(Rl) - np.eye(len(Rl))) @ Rl, k=2))
    new = np.exp(-cdist(NEW, points, "sqeuclidean") / (2 * width**2))
    expected = new @ model.expansion_.coefficients + model.expansion_.offset
    np.testing.assert_allclose(model.transform(NEW), expected, atol=1e-9)


def test_plain_distances_are_relation_features(tmp_path):
    for seeds in (25, None):
        model = fitted("mmc", 2, y, kernel="euclidean", n_landmarks=seeds)
        points = X if seeds is None else model.expansion_.sources["x"]
        R = cdist(X, points)
        same(model, *top(R.T @ (2 * PI - 1 / N - np.eye(N)) @ R, k=2))
        wanted = (cdist(NEW, points) - R.mean(axis=0)) @ model.expansion_.coefficients
        np.testing.assert_allclose(model.transform(NEW), wanted, atol=1e-9)
    model.save(str(tmp_path / "model.zarr"))
    np.testing.assert_array_equal(dmo.load(str(tmp_path / "model.zarr")).transform(NEW), model.transform(NEW))
    for refused in ("euclidean", "l2-euclidean", Euclidean()):
        with pytest.raises(ValueError, match="is a distance, not a positive semidefinite kernel"):
            dmo.KGHA(kernel=refused).fit(X, ONE_HOT)


def test_the_ridge_of_cca_stands_on_the_features_alone_by_hand():
    """Check the CCA eigenvalue 3/2 (1/(2 + 2) + 1/(6 + 2)) = 9/16 for X'X = diag(2, 6), X'Y = (1, 1) and ridge 2."""
    rows, labels = np.array([[1.0, 1.0], [-1.0, 1.0], [0.0, -2.0]]), np.array([[1.0], [0.0], [0.0]])
    model = TraceEmbedding("cca", n_components=1, ridge=2.0).fit(rows, labels)
    np.testing.assert_allclose(model.eigenvalues_, [9 / 16], rtol=1e-12)


def test_distances_of_three_points_by_hand():
    """Check MMC on the distances R = [[0, 1, 2], [1, 0, 1], [2, 1, 0]] of the points 0, 1 and 2 ([MOPE 3.5, Table 1]).
    The matrix A = [[1, 1, -1], [1, -1/3, -1], [-1, -1, 1]] has its largest eigenvalue 8/3 at (3, 2, -3) / sqrt(22).
    """
    model = TraceEmbedding("mmc", n_components=1, kernel="euclidean").fit(np.arange(3.0)[:, None], [0, 0, 1])
    np.testing.assert_allclose(model.eigenvalues_, [8 / 3], rtol=1e-12)
    found = model.transform([[0.0], [2.0]]) * np.sqrt(22)
    # Fix the sign of the coordinates, because the sign of an eigenvector is arbitrary.
    np.testing.assert_allclose(found * -np.sign(found[0]), [[-16 / 3], [20 / 3]], rtol=1e-12)


PROJECTED = [name for name, entry in METHODS.items() if not entry.direct and entry.family != "global"]


@pytest.mark.parametrize("name", PROJECTED)
def test_sparse_rows_rechunked_rows_and_saved_models_change_nothing(name, tmp_path):
    import dask.array as da

    target = PART if METHODS[name].labels else None
    reference = fitted(name, 1, target)
    coordinates = reference.transform(NEW)
    assert coordinates.shape == (11, 1)
    for rows in (da.from_array(X, chunks=(13, 2)), scipy.sparse.csr_array(X)):
        again = TraceEmbedding(name, n_components=1).fit(rows, target).transform(NEW)
        np.testing.assert_allclose(again, coordinates, atol=1e-7 * np.abs(coordinates).max())
    reference.save(str(tmp_path / "model.zarr"))
    np.testing.assert_array_equal(dmo.load(str(tmp_path / "model.zarr")).transform(NEW), coordinates)


def test_direct_methods_have_no_coordinates_for_new_rows(tmp_path):
    for name, entry in METHODS.items():
        if entry.direct:
            model = TraceEmbedding(name, n_components=2)
            assert model.fit_transform(X).shape == (N, 2)
            with pytest.raises(
                ValueError,
                match="cannot embed new samples, only the samples that it was fitted on; use fit_transform, or the projection",
            ):
                model.transform(NEW)
            with pytest.raises(ValueError, match="cannot embed new samples, so there is no model to save"):
                model.save(str(tmp_path / "model.zarr"))


def test_bad_input_is_named():
    def refused(message, name, target=None, rows=X, **parameters):
        with pytest.raises(ValueError, match=message):
            made(TraceEmbedding, name, **parameters).fit(rows, target)

    refused(f"n_neighbors = {N} of {N} samples", "lpp", n_neighbors=N)
    refused("n_neighbors = 0; needs a whole number of at least 1", "lpp", n_neighbors=0)
    far = np.vstack([X[:30], X[:30] + 1e4])
    refused("neighbor graph has 2 components of 30, 30 samples", "isomap", rows=far, n_neighbors=4)
    crooked = graph()
    crooked[0, 1] += 1.0
    refused("not symmetric", "le", weight=crooked)
    refused(r"shape \(3, 3\), the samples are 90", "lpp", weight=np.eye(3))
    refused("weights of sample 4 sum to 0", "lpp", weight=np.diag(np.arange(N) != 4.0) * (np.arange(N) != 4.0))
    refused("requires y to be passed", "lfda")
    refused("does not use smoothness", "lfda", y, smoothness=1.0)
    refused("does not use n_neighbors", "pca", n_neighbors=3)
    refused("supervised = 'pca'; known: 'pls'", "mix", PART, supervised="pca")
    refused("mixing = 1.5; needs a number from 0 to 1", "self", PART, mixing=1.5)
    refused("n_landmarks = 91, but there are 90 samples", "lpp", n_landmarks=91)
    refused("variance = 0; needs a number above 0 and at most 1", "olpp", variance=0)
    refused("variance = 1.5; needs a number above 0 and at most 1", "fda", y, variance=1.5)
    refused("only 1 directions", "olpp", variance=0.01)
    refused("does not use variance", "le", variance=0.5)
    refused("no sample has a label", "fda", np.full(N, -1))
    refused("known: 'pca', 'lsi'", "umap")
    refused("only 6 directions", "onpp", n_components=7)


def test_parts_of_a_disconnected_graph_are_told_apart():
    far = np.vstack([X[:30], X[:30] + 1e4])
    Z = TraceEmbedding("le", n_components=1, graph=Graph(n_neighbors=4)).fit_transform(far)[:, 0]
    assert Z[:30].std() < 1e-8
    assert Z[30:].std() < 1e-8
    assert abs(Z[0] - Z[-1]) > 1e-3


def test_the_table_is_whole():
    found = TraceEmbedding.methods()
    assert [row["name"] for row in found] == [*METHODS]
    known = set(flat(TraceEmbedding()))
    for row in found:
        assert "|" in row["problem"], row["name"]
        assert set(row["parameters"]) <= known
        assert row["oracle"]
        assert any(character.isdigit() for character in row["paper"]), row["name"]
    lines = markdown().splitlines()
    assert len(lines) == len(found) + 2
    assert len({line.count("|") for line in lines}) == 1
    assert lines[1] == "|---" * 8 + "|"
    for row, line in zip(found, lines[2:], strict=True):
        assert line.split(" | ")[4] == ("yes" if row["out_of_sample"] else "no"), row["name"]


def test_the_command_prints_the_table():
    run = CliRunner()
    assert run.invoke(app, ["methods", "--markdown"]).output == markdown()
    assert json.loads(run.invoke(app, ["methods", "--json"]).output) == {"methods": TraceEmbedding.methods()}
    text = run.invoke(app, ["methods"]).output
    assert f"{len(TraceEmbedding.methods())} methods" in text
    for name in ("lfda (MESD)", "onpp-r (MESD)", "isomap"):
        assert name in text


# `fit` accepts `sample_weight`, because the global methods use it. Methods on neighbors reject the parameter.
UNWEIGHTED = dict.fromkeys(
    (
        "check_sample_weights_list",
        "check_sample_weights_not_overwritten",
        "check_sample_weight_equivalence_on_dense_data",
        "check_sample_weight_equivalence_on_sparse_data",
        "check_classifiers_one_label_sample_weights",
    ),
    "methods on neighbors do not support sample_weight",
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:TraceEmbedding.*1 is used, pass at most")
@checked_by_scikit_learn(
    [TraceEmbedding("lpp"), TraceEmbedding("lfda"), TraceEmbedding("ssmmc"), TraceEmbedding("fda")],
    expected_failed_checks=lambda model: {} if model.method == "fda" else UNWEIGHTED,
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)
