"""Compare the three forms and two engines of MORP with kernel PCA, principal covariates regression and the paper."""

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
from cases import checked_by_scikit_learn
from sklearn.base import clone
from sklearn.cross_decomposition import PLSSVD
from sklearn.decomposition import PCA, KernelPCA
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LinearRegression

from dmo import Solver
from dmo.fit.exact import Exact
from dmo.kernels import RBF, Polynomial
from dmo.labels.label_kernels import SequenceKernel, SetKernel
from dmo.lowrank.approximations import Meka, Nystrom
from dmo.methods.morp import MLSI, MORP
from dmo.methods.trace import TraceEmbedding
from dmo.metrics import auc_macro
from dmo.persistence import described, load, rebuilt
from dmo.selection import sweep

RNG = np.random.default_rng(0)
N, D, L = 150, 8, 6
X = RNG.standard_normal((N, D)) @ RNG.standard_normal((D, D)) + 2.0
NEW = RNG.standard_normal((40, D)) + 2.0
Y = ((X - X.mean(axis=0)) @ RNG.standard_normal((D, L)) + 3 * RNG.standard_normal((N, L)) > 1.0).astype(float)
XC, YC = X - X.mean(axis=0), Y - Y.mean(axis=0)
WIDTH = 2.0  # a narrow kernel has full rank
KERNEL = np.exp(-((X[:, None] - X[None]) ** 2).sum(axis=2) / (2 * WIDTH**2))
H = np.eye(N) - 1 / N
KC, KY = H @ KERNEL @ H, YC @ YC.T
FULL = Nystrom(rank=N, landmarks="uniform", precision="float64")


def angle(A, B):
    P, Q = np.linalg.qr(A)[0], np.linalg.qr(B)[0]
    return float(np.degrees(np.arcsin(min(1.0, np.linalg.norm(Q - P @ (P.T @ Q), 2)))))


def mixture(beta, K=KC, labels=KY):
    return (1 - beta) * K + beta * np.trace(K) / np.trace(labels) * labels


def morp(**parameters):
    return MORP(**({"kernel": RBF(bandwidth=WIDTH), "n_components": 4, "tol": 1e-12} | parameters))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:TraceEmbedding.*1 is used, pass at most")
@checked_by_scikit_learn(
    [MORP(RBF(2.0), tol=1e-12), TraceEmbedding()],
    expected_failed_checks=lambda _: {
        "check_classifiers_regression_target": "real numbers are outputs to learn",
        "check_class_weight_classifiers": "samples far from all others are assigned to a class of almost no weight",
    },
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.mark.parametrize("approximation", ["exact", FULL], ids=["exact", "moments"])
@pytest.mark.parametrize("form", ["simplified", "direct", "regularized"])
def test_without_mixing_it_is_kernel_pca(form, approximation):
    reference = KernelPCA(4, kernel="rbf", gamma=1 / (2 * WIDTH**2), eigen_solver="dense").fit(X)
    model = morp(form=form, mixing=0.0, ridge=0.0, approximation=approximation).fit(X, Y)
    for rows in (X, NEW):
        np.testing.assert_allclose(np.abs(model.transform(rows)), np.abs(reference.transform(rows)), atol=1e-8)


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
def test_the_direct_form_is_principal_covariates_regression(beta):
    PCovR = pytest.importorskip("skmatter.decomposition", reason="skmatter is not installed").PCovR

    def unit(A):
        return A / np.linalg.norm(A)

    regression = LinearRegression(fit_intercept=False)
    reference = PCovR(mixing=1 - beta, n_components=3, space="sample", regressor=regression).fit(unit(XC), unit(YC))
    model = MORP("linear", form="direct", mixing=beta, ridge=0.0, n_components=3).fit(X, Y)
    assert angle(model.transform(X), reference.transform(unit(XC))) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("approximation", ["exact", FULL], ids=["exact", "moments"])
@pytest.mark.parametrize("beta", [0.3, 0.8])
@pytest.mark.parametrize("ridge", [0.01, 0.5])
def test_every_form_solves_its_equation(beta, ridge, approximation):
    C, eye = mixture(beta), np.eye(N)
    settings = {"mixing": beta, "ridge": ridge, "approximation": approximation}
    values, vectors = np.linalg.eigh(C)
    v = vectors[:, ::-1][:, :4] * np.sqrt(values[::-1][:4])
    simplified = morp(form="simplified", **settings).fit(X, Y)
    wanted = KC @ np.linalg.solve(KC + ridge * eye, v)
    np.testing.assert_allclose(np.abs(simplified.transform(X)), np.abs(wanted), atol=1e-6)

    # The centered kernel is singular for the constant vector, so restrict the problem to its range.
    span = vectors_of_rank(KC)
    K, inner = span.T @ KC @ span, span.T @ C @ span
    w, a = scipy.linalg.eigh(K @ inner @ K, K @ K + ridge * K)
    direct = morp(form="direct", **settings).fit(X, Y)
    np.testing.assert_allclose(direct.eigenvalues_, w[::-1][:4], rtol=1e-6)
    assert angle(direct.transform(X), span @ K @ a[:, ::-1][:, :4]) < 1e-4

    mu, a = scipy.linalg.eigh(K @ K, K @ np.linalg.solve(inner, K) + ridge * K)
    regularized = morp(form="regularized", **settings).fit(X, Y)
    np.testing.assert_allclose(regularized.eigenvalues_, mu[::-1][:4], rtol=1e-6)
    assert angle(regularized.transform(X), span @ K @ a[:, ::-1][:, :4]) < 1e-4


def vectors_of_rank(K):
    values, vectors = np.linalg.eigh(K)
    return vectors[:, values > 1e-10 * values[-1]]


def test_all_forms_agree_at_full_rank_without_a_ridge():
    fits = [morp(form=form, ridge=0.0).fit_transform(X, Y) for form in ("simplified", "direct", "regularized")]
    np.testing.assert_allclose(np.abs(fits[1]), np.abs(fits[0]), atol=1e-7)
    np.testing.assert_allclose(np.abs(fits[2]), np.abs(fits[0]), atol=1e-7)


@pytest.mark.parametrize("beta", [0.2, 1.0])
def test_the_regularized_form_is_refused_where_the_kernel_is_rank_deficient(beta):
    for approximation in ("exact", Nystrom(rank=30)):
        with pytest.raises(
            ValueError, match=r"MORP: form 'regularized' needs .* full rank.*labels have no influence"
        ) as caught:
            MORP("linear", form="regularized", mixing=beta, approximation=approximation).fit(X, Y)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="needs a kernel of full rank"):
        MORP(RBF(bandwidth=500.0), form="regularized").fit(X, Y)


def test_engines_agree_at_full_rank_for_a_structured_output():
    sets = [{f"tag{j}" for j in np.flatnonzero(row)} for row in Y]
    for form in ("simplified", "direct", "regularized"):
        settings = {"form": form, "ridge": 0.05, "label_kernel": SetKernel("jaccard")}
        exact = morp(**settings).fit(X, sets)
        small = morp(**settings, approximation=FULL).fit(X, sets)
        np.testing.assert_allclose(np.abs(small.transform(NEW)), np.abs(exact.transform(NEW)), atol=1e-6)


@pytest.mark.parametrize("kernel", [SetKernel("jaccard"), "rbf"], ids=["sets", "rbf"])
def test_a_projection_of_a_label_kernel_is_saved_and_loaded(kernel, tmp_path):
    model = morp(label_kernel=kernel).fit(X, Y)
    model.save(str(tmp_path / "model.zarr"))
    back = load(str(tmp_path / "model.zarr"))
    np.testing.assert_array_equal(back.transform(NEW), model.transform(NEW))
    assert back.label_kernel == kernel


def test_a_label_kernel_is_its_matrix_whatever_its_name():
    words = ["".join("abc"[j % 3] for j in np.flatnonzero(row)) or "z" for row in Y]
    kernel = SequenceKernel(2)
    T = kernel.factor(words).toarray()
    a = morp(label_kernel=kernel).fit_transform(X, words)
    b = morp(label_kernel="precomputed").fit_transform(X, T @ T.T)
    c = morp().fit_transform(X, T)
    np.testing.assert_allclose(np.abs(a), np.abs(b), atol=1e-8)
    np.testing.assert_allclose(np.abs(a), np.abs(c), atol=1e-8)


@pytest.mark.parametrize("approximation", ["exact", FULL], ids=["exact", "moments"])
@pytest.mark.parametrize(
    "weights", [None, np.random.default_rng(4).integers(0, 3, N).astype(float)], ids=["", "weights"]
)
def test_unknown_outputs_take_what_kernel_ridge_says_of_their_column(approximation, weights):
    ratings = RNG.integers(-2, 3, (N, L)).astype(float)
    unknown = RNG.random((N, L)) < 0.3
    full, counts = ratings.copy(), np.ones(N) if weights is None else weights
    share = counts / counts.sum()
    ridge = share @ np.diagonal(KERNEL) - share @ KERNEL @ share
    for j in range(L):
        has = np.flatnonzero(~unknown[:, j] & (counts > 0))
        own = (share / share[has].sum())[has]
        K = KERNEL - own @ KERNEL[has]
        K = K - (KERNEL[:, has] @ own - own @ KERNEL[np.ix_(has, has)] @ own)[:, None]
        mean = own @ ratings[has, j]
        oracle = KernelRidge(alpha=ridge, kernel="precomputed")
        oracle.fit(K[np.ix_(has, has)], ratings[has, j] - mean, sample_weight=counts[has])
        said = np.clip(oracle.predict(K[:, has]) + mean, ratings[has, j].min(), ratings[has, j].max())
        full[unknown[:, j], j] = said[unknown[:, j]]
    given = np.where(unknown, np.nan, ratings)
    model = morp(approximation=approximation)
    wanted = model.fit(X, full, sample_weight=weights).transform(NEW)
    for form in (given, np.ma.masked_array(ratings, unknown), [[None if v != v else v for v in row] for row in given]):
        found = model.fit(X, form, sample_weight=weights).transform(NEW)
        np.testing.assert_allclose(np.abs(found), np.abs(wanted), atol=1e-6)
    assert model.outputs_ is not None
    with pytest.raises(ValueError, match="output 2 is unknown in all samples"):
        model.fit(X, np.where(np.arange(L) == 2, np.nan, given))


def test_linear_forms_by_features_by_products_and_by_kernel_are_one():
    for form in ("simplified", "direct"):
        settings = {"form": form, "ridge": 0.5, "n_components": 3, "tol": 1e-12}
        primal = MORP("linear", **settings).fit(X, Y)
        sparse = MORP("linear", **settings).fit(scipy.sparse.csr_array(X), Y)
        kernel = MORP(Polynomial(degree=1, gamma=1.0, coef0=0.0), **settings).fit(X, Y)
        wide = np.hstack([XC, np.zeros((N, 200))])
        dual = MORP("linear", **settings).fit(wide, Y)
        for other in (sparse.transform(X), kernel.transform(X), dual.transform(wide)):
            np.testing.assert_allclose(np.abs(other), np.abs(primal.transform(X)), atol=1e-7)


def test_a_low_rank_kernel_keeps_the_labels_in_the_direct_form():
    """The direct form with rank 60 of 150 retains the label information of the exact form."""
    rng = np.random.default_rng(5)
    hidden = rng.standard_normal((300, 3))
    rows = np.hstack([hidden, 3 * rng.standard_normal((300, 20))])
    labels = (hidden @ rng.standard_normal((3, 5)) > 0).astype(float)
    train, test = slice(0, 200), slice(200, 300)

    def quality(**parameters):
        model = MORP(n_components=5, ridge=1e-2, **parameters).fit(rows[train], labels[train])
        Z, Z_new = model.transform(rows[train]), model.transform(rows[test])
        W = np.linalg.lstsq(np.c_[Z, np.ones(200)], labels[train])[0]
        return auc_macro(labels[test].astype(np.uint8), np.c_[Z_new, np.ones(100)] @ W)

    blind = quality(mixing=0.0)
    assert quality(form="direct", mixing=0.5, approximation=Nystrom(rank=60)) > blind + 0.1
    assert quality(form="simplified", mixing=0.5) > blind + 0.1


def test_approximations_come_close_on_a_smooth_kernel():
    exact = MORP(ridge=0.1, n_components=3).fit(X, Y)
    for approximation in (Nystrom(rank=100), Meka(clusters=3, rank=35)):
        near = clone(exact).set_params(approximation=approximation).fit(X, Y)
        assert angle(near.transform(X), exact.transform(X)) < 3.0


@pytest.mark.parametrize("storage", ["memory", "recomputed"])
def test_where_the_kernel_lives_does_not_matter(storage):
    exact = Exact(storage=storage, precision="float64", block=37)
    np.testing.assert_allclose(
        np.abs(morp(approximation=exact).fit_transform(X, Y)), np.abs(morp().fit_transform(X, Y)), atol=1e-8
    )


@pytest.mark.parametrize(
    "model",
    [morp(), morp(approximation=Nystrom(rank=50)), MORP("linear"), TraceEmbedding("cca", kernel="rbf", ridge=0.1)],
    ids=["exact", "nystrom", "linear", "kernel CCA"],
)
def test_arrays_and_meta_are_the_model(model):
    """`save` and `load` use `described` and `rebuilt` to convert a model."""
    model = clone(model).fit(X, Y)
    back = rebuilt(*described(model))
    np.testing.assert_array_equal(back.transform(NEW), model.transform(NEW))
    if hasattr(model, "decision_function"):
        np.testing.assert_array_equal(back.decision_function(NEW), model.decision_function(NEW))


@pytest.mark.parametrize(
    "model",
    [morp(), morp(approximation=Nystrom(rank=60)), MORP("linear"), MLSI(ridge=0.1), MLSI(dual=True, ridge=0.1)],
    ids=["kernel", "nystrom", "linear", "mlsi words", "mlsi documents"],
)
def test_scores_are_least_squares_on_the_coordinates(model):
    model = clone(model).set_params(mixing=0.0).fit(X, Y)
    Z = model.transform(X)
    reference = LinearRegression().fit(Z, Y)
    np.testing.assert_allclose(model.decision_function(NEW), reference.predict(model.transform(NEW)), atol=1e-5)


def test_mixing_is_chosen_by_cross_validation():
    rng = np.random.default_rng(7)
    hidden = rng.standard_normal((160, 2))
    rows = np.hstack([hidden, 4 * rng.standard_normal((160, 6))])
    labels = (hidden @ rng.standard_normal((2, 4)) > 0).astype(np.uint8)
    found = sweep(MORP("linear"), rows, labels, {"mixing": [0.0, 0.9]}, folds=3, metric="auc-macro")
    assert found.best_params == {"mixing": 0.9}
    assert found.best_score > found.table[0]["mean"] + 0.1


def test_embedding_and_transform_are_the_same_function():
    model = morp(form="direct", ridge=0.1).fit(X, Y)
    np.testing.assert_allclose(model.embedding_, model.transform(X), atol=1e-8)


def test_trace_embedding_through_every_kind_of_rows():
    dense = TraceEmbedding("pls", n_components=3).fit_transform(X, Y)
    np.testing.assert_allclose(np.abs(dense), np.abs(PLSSVD(3, scale=False).fit_transform(X, Y)[0]), atol=1e-8)
    far = TraceEmbedding("pca", n_components=3).fit_transform(X + 1e6)
    np.testing.assert_allclose(np.abs(far), np.abs(PCA(3).fit_transform(X)), atol=1e-5)
    kernel = TraceEmbedding("pca", kernel=RBF(bandwidth=WIDTH), solver=Solver(tol=1e-12)).fit_transform(X)
    reference = KernelPCA(2, kernel="rbf", gamma=1 / (2 * WIDTH**2)).fit_transform(X)
    np.testing.assert_allclose(np.abs(kernel), np.abs(reference), atol=1e-8)


@pytest.mark.parametrize("name", ["hsic-1", "cca", "morp"])
def test_trace_embedding_engines_agree_at_full_rank(name):
    kernel = RBF(bandwidth=WIDTH)
    exact = TraceEmbedding(name, kernel=kernel, n_components=3, solver=Solver(tol=1e-10)).fit(X, Y)
    small = TraceEmbedding(name, kernel=kernel, n_components=3, approximation=FULL).fit(X, Y)
    np.testing.assert_allclose(np.abs(small.transform(NEW)), np.abs(exact.transform(NEW)), atol=1e-6)


def test_methods_are_listed():
    listed = {row["name"]: row for row in TraceEmbedding.methods()}
    assert {"pca", "lsi", "pls", "opls", "cca", "mddm", "hsic-0", "hsic-1", "hsl-1", "hsl-2", "hsl-3"} <= set(listed)
    assert listed["mddm"]["parameters"] == ["label_kernel", "shrinkage"]


BAD = {
    "an unknown method": (TraceEmbedding("ldaa"), Y, "method = 'ldaa'; known: 'pca', 'lsi'"),
    "a setting it has not": (TraceEmbedding("pca", ridge=1.0), None, "TraceEmbedding\\('pca'\\): does not use ridge"),
    "no outputs": (TraceEmbedding("cca"), None, "requires y to be passed"),
    "too many components": (TraceEmbedding("cca", n_components=7), Y, "has only 6 directions"),
    "other rows": (MORP(), Y[:50], "y has 50 rows, X has 150"),
    "an unknown form": (MORP(form="exact"), Y, "form = 'exact'; known: 'simplified'"),
    "a share above one": (MORP(mixing=1.5), Y, "mixing = 1.5; needs a number from 0 to 1"),
    "a negative ridge": (MORP(ridge=-1.0), Y, "ridge = -1.0; needs a number that is not negative"),
    "an unknown approximation": (MORP(approximation="magic"), Y, "approximation = 'magic'"),
    "an indefinite label kernel": (MORP(label_kernel="precomputed"), -np.eye(N), "not positive semidefinite"),
    "infinite outputs": (MORP(), np.where(Y > 0, np.inf, 0.0), "inf at row"),
}


@pytest.mark.parametrize("case", BAD, ids=list(BAD))
def test_bad_input_gets_a_sentence(case):
    model, outputs, sentence = BAD[case]
    with pytest.raises(ValueError, match=sentence) as caught:
        clone(model).fit(X, outputs)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(type(model).__name__)


def test_a_single_precision_kernel_does_not_spoil_the_direct_form():
    """The largest eigenvalue of the uncentered kernel is several hundred times larger than the relevant eigenvalues."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((900, 20)) * np.linspace(1, 0.1, 20)
    Y = (X @ rng.standard_normal((20, 30)) + rng.standard_normal((900, 30)) > 1).astype(float)
    model = MORP(
        RBF(scale=2.0),
        n_components=40,
        mixing=0.9,
        ridge=1.0,
        form="direct",
        approximation=Exact(precision="float32"),
    )
    assert model.fit(X, Y).n_iter_ < 10


def test_a_class_that_is_missing_is_named_as_such():
    classes = np.array([*"ab" * 5, None], dtype=object)
    with pytest.raises(ValueError, match="NaN or None at row 10; fill it"):
        MORP().fit(np.arange(22.0).reshape(11, 2), classes)
