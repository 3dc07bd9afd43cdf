"""Compare every global projection with an independent implementation or with its explicit formula."""

import numpy as np
import pytest
import scipy.linalg
from cases import ArrayTiles
from sklearn.cross_decomposition import CCA, PLSSVD
from sklearn.decomposition import PCA, KernelPCA, TruncatedSVD
from sklearn.linear_model import Ridge

from dmo.fit.moments import LABELS, ROWS, WEIGHTED, Moments
from dmo.linalg.eigen import block_krylov, solve_trace
from dmo.linalg.operators import Dense, Operator
from dmo.linalg.tiles import Tiles
from dmo.methods import trace_solvers
from dmo.methods.catalog import METHODS as CATALOG
from dmo.methods.quadratic_forms import Options, QuadraticForm, TraceProblem, TraceSamples
from dmo.methods.trace_solvers import fit_moments, fit_operator

METHODS = {name: entry for name, entry in CATALOG.items() if entry.family == "global"}
RNG = np.random.default_rng(0)
N, D, L, K = 120, 9, 5, 3
X = RNG.standard_normal((N, D)) @ RNG.standard_normal((D, D)) + 3.0
Y = ((X - X.mean(axis=0)) @ RNG.standard_normal((D, L)) + 4 * RNG.standard_normal((N, L)) > 1.5).astype(float)
XC, YC = X - X.mean(axis=0), Y - Y.mean(axis=0)
H = np.eye(N) - 1 / N
KERNEL = np.exp(-((X[:, None] - X[None]) ** 2).sum(axis=2) / 40.0)


def moments_of(problem: TraceProblem, rows: np.ndarray) -> Moments:
    groups = {ROWS: rows}
    if problem.A.factor is not None:
        groups[LABELS] = problem.A.factor
    if problem.A.diagonal is not None:
        groups[WEIGHTED] = problem.A.diagonal[:, None] * rows
    return Moments.collect([{name: part[i : i + 50] for name, part in groups.items()} for i in range(0, N, 50)])


def both(name: str, k: int = K, labels: np.ndarray = Y, **settings: float):
    """Fit a method from moments and from kernel operators, and return both embeddings and both fits."""
    method = METHODS[name]
    centered = XC if method.center else X
    samples = TraceSamples(N, None, labels if method.labels else None, float((centered**2).sum()), method.center)
    problem = method.problem(samples, Options(**settings))
    small = fit_moments(problem, moments_of(problem, X), k)
    exact = fit_operator(problem, Dense(centered @ centered.T), k, tol=1e-13)
    return centered @ small.coefficients, centered @ (centered.T @ exact.coefficients), small, exact


def angle(A: np.ndarray, B: np.ndarray) -> float:
    """Compute the largest principal angle in degrees from its sine, which is accurate for small angles."""
    P, Q = np.linalg.qr(A)[0], np.linalg.qr(B)[0]
    return float(np.degrees(np.arcsin(min(1.0, np.linalg.norm(Q - P @ (P.T @ Q), 2)))))


def moments_only(name: str, k: int = K, **settings: float) -> np.ndarray:
    """Embed the samples from moments, for covariance constraints without a ridge, for which K is singular."""
    method = METHODS[name]
    problem = method.problem(TraceSamples(N, None, Y, float((XC**2).sum()), method.center), Options(**settings))
    return XC @ fit_moments(problem, moments_of(problem, X), k).coefficients


def same(name: str, wanted: np.ndarray, **settings: float) -> None:
    small, exact, a, b = both(name, wanted.shape[1], **settings)
    assert angle(small, wanted) < 1e-5
    assert angle(exact, wanted) < 1e-5
    np.testing.assert_allclose(a.values, b.values, rtol=1e-8)


def by_formula(A: np.ndarray, B: np.ndarray | None, k: int = K) -> np.ndarray:
    """Return the eigenvectors of the k largest eigenvalues, computed by SciPy."""
    values, vectors = scipy.linalg.eigh(A, B)
    return vectors[:, np.argsort(values)[::-1][:k]]


def test_pca_is_scikit_learns_to_the_scale():
    small, exact, a, _ = both("pca")
    reference = PCA(K).fit(X)
    for scores in (small, exact):
        np.testing.assert_allclose(np.abs(scores), np.abs(reference.transform(X)), atol=1e-8)
    np.testing.assert_allclose(a.values / (N - 1), reference.explained_variance_, rtol=1e-10)


def test_lsi_is_truncated_svd():
    reference = TruncatedSVD(K, algorithm="arpack", tol=1e-13, random_state=0).fit_transform(X)
    for scores in both("lsi")[:2]:
        np.testing.assert_allclose(np.abs(scores), np.abs(reference), atol=1e-8)


def test_pls_is_plssvd():
    same("pls", PLSSVD(K, scale=False).fit_transform(X, Y)[0])


def test_cca_is_scikit_learns_cca():
    reference = CCA(K, scale=False, max_iter=50000, tol=1e-14).fit(X, Y).transform(X)
    assert angle(moments_only("cca", ridge=0.0), reference) < 1e-5


@pytest.mark.parametrize("shrinkage", [0.01, 0.3, 0.9])
def test_regularized_cca_is_ridge_cca(shrinkage):
    RidgeCCA = pytest.importorskip("cca_zoo.linear", reason="cca-zoo is not installed").RidgeCCA

    reference = RidgeCCA(n_components=K, shrinkage=[shrinkage, 0.0]).fit([XC, YC])
    same("cca", XC @ reference.weights_[0], ridge=shrinkage / (1 - shrinkage) * (N - 1))


def test_opls_is_its_formula_and_for_one_label_ridge_regression():
    ridge = 2.0
    same("opls", XC @ by_formula(XC.T @ YC @ YC.T @ XC, XC.T @ XC + ridge * np.eye(D)), ridge=ridge)
    predicted = Ridge(alpha=ridge, fit_intercept=False).fit(XC, YC[:, :1]).predict(XC)
    assert angle(both("opls", 1, Y[:, :1], ridge=ridge)[0], predicted.reshape(-1, 1)) < 1e-5


@pytest.mark.parametrize("shrinkage", [0.0, 0.7, 1.0])
def test_mddm_in_both_constraints(shrinkage):
    A, B = XC.T @ Y @ Y.T @ XC, (1 - shrinkage) * XC.T @ XC + shrinkage * np.eye(D)
    wanted = XC @ by_formula(A, B)
    if shrinkage > 0:
        same("mddm", wanted, shrinkage=shrinkage)
    assert angle(moments_only("mddm", shrinkage=shrinkage), wanted) < 1e-5


@pytest.mark.parametrize("shrinkage", [0.3, 0.7])
def test_coordinates_of_kernel_mddm_keep_the_constraint(shrinkage):
    """Check that the coordinates satisfy the constraint of MDDM with shrinkage, which determines their scale."""
    operator, kernel = Dense(KERNEL).centered(), H @ KERNEL @ H
    problem = METHODS["mddm"].problem(TraceSamples(N, None, Y), Options(shrinkage=shrinkage))
    fit = fit_operator(problem, operator, K)
    a = fit.coefficients
    inner = (1 - shrinkage) * kernel @ kernel + shrinkage * kernel
    np.testing.assert_allclose(a.T @ inner @ a, np.eye(K), atol=1e-7)
    np.testing.assert_allclose(a.T @ kernel @ YC @ YC.T @ kernel @ a, np.diag(fit.values), atol=1e-7 * fit.values[0])


@pytest.mark.parametrize("ridge", [0.5, 2.0])
def test_a_share_of_the_covariance_in_the_constraint_keeps_its_scale(ridge):
    """Check that the coordinates satisfy a constraint with 0.4 times the covariance plus a ridge."""
    operator, kernel = Dense(KERNEL).centered(), H @ KERNEL @ H
    A, B = QuadraticForm(N, kernel=1.0, factor=YC), QuadraticForm(N, identity=0.4)
    fit = fit_operator(TraceProblem(A, B, ridge), operator, K)
    a = fit.coefficients
    np.testing.assert_allclose(a.T @ (0.4 * kernel @ kernel + ridge * kernel) @ a, np.eye(K), atol=1e-6)
    gain = a.T @ kernel @ (kernel + YC @ YC.T) @ kernel @ a
    np.testing.assert_allclose(gain, np.diag(fit.values), atol=1e-6 * fit.values[0])
    basis = scipy.linalg.eigh(kernel)[1][:, 1:]
    inner = basis.T @ (0.4 * kernel @ kernel + ridge * kernel) @ basis
    values = scipy.linalg.eigvalsh(basis.T @ kernel @ (kernel + YC @ YC.T) @ kernel @ basis, inner)
    np.testing.assert_allclose(fit.values, values[::-1][:K], rtol=1e-6)


def test_hsic_estimates_are_their_definitions():
    small, _, a, _ = both("hsic-0")
    KY = Y @ Y.T
    K1 = np.outer(small[:, 0], small[:, 0])
    assert a.values[0] == pytest.approx(np.trace(K1 @ H @ KY @ H) / (N - 1) ** 2)
    small, exact, a, _ = both("hsic-1")
    for j in range(K):  # apply equation 5 of Song et al. (2012) to the linear kernel of each coordinate
        own, other = np.outer(small[:, j], small[:, j]), KY.copy()
        np.fill_diagonal(own, 0.0)
        np.fill_diagonal(other, 0.0)
        unbiased = np.trace(own @ other) + own.sum() * other.sum() / ((N - 1) * (N - 2))
        unbiased = (unbiased - 2 / (N - 2) * (own @ other).sum()) / (N * (N - 3))
        assert a.values[j] == pytest.approx(unbiased)
    assert angle(small, exact) < 1e-5


def test_unbiased_hsic_takes_the_algebraically_largest_of_an_indefinite_matrix():
    # For unrelated labels, some eigenvalues are negative and large in magnitude.
    noise = np.random.default_rng(1).permutation(N)
    _, _, a, b = both("hsic-1", D, Y[noise])
    assert a.values[-1] < 0 < a.values[0]
    assert abs(a.values[-1]) > abs(a.values[D // 2])
    np.testing.assert_allclose(a.values, b.values, atol=1e-10 * a.values[0])
    assert (np.diff(a.values) <= 0).all()


@pytest.mark.parametrize("expansion", ["hsl-1", "hsl-2", "hsl-3"])
def test_hypergraphs_are_their_incidence_written_out(expansion):
    ridge, S = 0.5, np.zeros((N, N))
    members = [np.flatnonzero(Y[:, c]) for c in range(L)]
    degree = np.zeros(N)
    for edge in members:
        weight = {"hsl-1": 1.0, "hsl-2": 1 / len(edge) ** 2, "hsl-3": 1 / len(edge)}[expansion]
        for i in edge:
            degree[i] += 1.0 if expansion == "hsl-3" else weight * len(edge)
            S[i, edge] += weight
    share = np.array([1 / np.sqrt(d) if d else 0.0 for d in degree])
    assert (degree == 0).any(), "a sample without labels is part of the test"
    S *= share[:, None] * share
    same(expansion, XC @ by_formula(XC.T @ S @ XC, XC.T @ XC + ridge * np.eye(D)), ridge=ridge)


def test_slvm_and_kernel_dependency_estimation_regress_principal_components():
    beta, ridge = 0.4, 0.7
    joint = (1 - beta) * XC @ XC.T + beta * YC @ YC.T
    Z = KernelPCA(K, kernel="precomputed").fit_transform(joint)
    same("slvm", Ridge(alpha=ridge, fit_intercept=False).fit(XC, Z).predict(XC), mixing=beta, ridge=ridge)
    components = PCA(K).fit_transform(Y)
    predicted = Ridge(alpha=ridge, fit_intercept=False).fit(XC, components).predict(XC)
    small, exact, _, fit = both("kde", ridge=ridge)
    assert fit.converged
    np.testing.assert_allclose(np.abs(small), np.abs(predicted), atol=1e-8)
    np.testing.assert_allclose(np.abs(exact), np.abs(predicted), atol=1e-8)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "lsi"])
def test_engines_agree_on_a_kernel_of_full_rank(name):
    method = METHODS[name]
    kernel = H @ KERNEL @ H if method.center else KERNEL
    rows = np.linalg.cholesky(KERNEL + 1e-13 * np.eye(N))
    problem = method.problem(TraceSamples(N, None, Y, float(np.trace(kernel)), method.center), Options(ridge=0.1))
    small = fit_moments(problem, moments_of(problem, rows), K)
    operator: Operator = Dense(KERNEL).centered() if method.center else Dense(KERNEL)
    exact = fit_operator(problem, operator, K, tol=1e-13)
    centered = rows - rows.mean(axis=0) if method.center else rows
    assert angle(centered @ small.coefficients, kernel @ exact.coefficients) < 1e-5
    np.testing.assert_allclose(small.values, exact.values, rtol=1e-8)


def test_kernel_cca_predicts_its_own_correlations():
    """The eigenvalues are the squared correlations of kernel CCA with a ridge on the kernel."""
    ridge, kernel = 0.1, H @ KERNEL @ H
    inverse = np.linalg.inv(kernel + ridge * np.eye(N))
    labels = YC @ np.linalg.inv(YC.T @ YC) @ YC.T
    wanted = np.sort(np.linalg.eigvals(inverse @ kernel @ labels).real)[::-1][:K]
    problem = METHODS["cca"].problem(TraceSamples(N, None, Y), Options(ridge=ridge))
    fit = fit_operator(problem, Dense(KERNEL).centered(), K)
    np.testing.assert_allclose(fit.values, wanted, rtol=1e-8)


def test_trace_solver_is_definite_on_the_range_of_b_alone():
    rng = np.random.default_rng(2)
    half = rng.standard_normal((8, 5))
    A, B = rng.standard_normal((8, 8)), half @ half.T
    found = solve_trace(A + A.T, B, 5)
    np.testing.assert_allclose(found.vectors.T @ B @ found.vectors, np.eye(5), atol=1e-10)
    assert (np.diff(found.values) <= 0).all()
    assert found.values[-1] < 0
    assert (found.vectors[np.abs(found.vectors).argmax(axis=0), range(5)] > 0).all()
    with pytest.raises(ValueError, match="n_components = 6, but the problem has only 5 directions"):
        solve_trace(A + A.T, B, 6)


def test_pencil_restarts_and_still_converges():
    rng = np.random.default_rng(3)
    n = 400
    C = np.diag(np.linspace(1.0, 2.0, n))
    S = rng.standard_normal((n, n))
    S = S + S.T
    pairs = block_krylov(lambda B: S @ B, rng.standard_normal((n, 6)), 4, 1e-10, 300, inner=lambda B: C @ B)
    assert pairs.converged
    assert pairs.steps > 12, "the basis was restarted"
    root = np.sqrt(C)
    np.testing.assert_allclose(pairs.values, np.linalg.eigvalsh(root @ S @ root)[::-1][:4], rtol=1e-10)
    assert pairs.values[0] > 0


def test_a_ridge_of_zero_is_refused_where_the_kernel_has_no_inverse():
    problem = METHODS["cca"].problem(TraceSamples(N, None, Y), Options(ridge=0.0))
    with pytest.raises(ValueError, match="the kernel of 120 samples does not have full rank"):
        fit_operator(problem, Dense(XC @ XC.T), 2)
    with pytest.raises(ValueError, match="hsic-1 needs at least 4 samples"):
        METHODS["hsic-1"].problem(TraceSamples(3, None, Y[:3]), Options())
    with pytest.raises(ValueError, match="need labels of 0 and 1"):
        METHODS["hsl-1"].problem(TraceSamples(N, None, Y * 2), Options())


def test_the_table_names_paper_and_formula():
    for name, method in METHODS.items():
        assert "|" in method.formula, name
        assert any(character.isdigit() for character in method.source), name
        assert set(method.parameters) <= {"label_kernel", "ridge", "mixing", "shrinkage"}


class NeverWhole(Tiles):
    """Tiled kernel that fails if it is converted to a dense matrix."""

    def dense(self, dtype=np.float64):
        raise AssertionError("the whole kernel was asked for")


def test_many_coefficients_on_a_large_kernel_in_tiles_are_solved_without_the_whole_kernel(monkeypatch):
    monkeypatch.setattr(trace_solvers, "DIRECT_ROWS", N - 1)
    B = RNG.standard_normal((N, 40))
    found = trace_solvers.Inverse(NeverWhole(ArrayTiles(KERNEL, 32)).centered(), 0.3, 40)(B)
    expected = np.linalg.solve(H @ KERNEL @ H + 0.3 * np.eye(N), B)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
