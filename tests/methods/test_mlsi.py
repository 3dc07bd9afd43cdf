"""Compare MLSI on sparse rows with truncated SVD, principal covariates regression and two tables of the paper."""

import tracemalloc

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
from cases import checked_by_scikit_learn
from sklearn.base import clone
from sklearn.decomposition import TruncatedSVD
from sklearn.linear_model import LinearRegression

from dmo.fit.krylov import Krylov
from dmo.lowrank.approximations import Nystrom
from dmo.methods.morp import MLSI
from dmo.stores import ViewSpec, create_features, open_features

RNG = np.random.default_rng(0)
N, D, L = 90, 160, 5
X = scipy.sparse.random_array((N, D), density=0.2, format="csr", rng=RNG)
NEW = scipy.sparse.random_array((30, D), density=0.2, format="csr", rng=RNG)
Y = (X @ RNG.standard_normal((D, L)) + RNG.standard_normal((N, L)) > 1.0).astype(float)
FEW = X[:, :20]  # with fewer words than documents, the primal problem is smaller
EXACT = {"tol": 1e-11, "n_components": 4}


def angle(A, B):
    P, Q = np.linalg.qr(A)[0], np.linalg.qr(B)[0]
    return float(np.degrees(np.arcsin(min(1.0, np.linalg.norm(Q - P @ (P.T @ Q), 2)))))


@pytest.mark.slow
@checked_by_scikit_learn(
    [MLSI()],
    expected_failed_checks=lambda _: {"check_classifiers_regression_target": "real numbers are outputs to learn"},
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.mark.parametrize("form", ["direct", "simplified", "regularized"])
@pytest.mark.parametrize(("rows", "dual"), [(X, True), (X, False), (FEW, False), (FEW, True)])
def test_without_supervision_it_is_lsi(form, rows, dual):
    reference = TruncatedSVD(4, algorithm="arpack", tol=1e-14, random_state=0).fit(rows)
    model = MLSI(mixing=0.0, form=form, dual=dual, **EXACT).fit(rows, Y)
    new = NEW[:, : rows.shape[1]]
    for batch in (rows, new):
        np.testing.assert_allclose(np.abs(model.transform(batch)), np.abs(reference.transform(batch)), atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0.2, 0.7])
@pytest.mark.parametrize("ridge", [0.0, 0.3])
@pytest.mark.parametrize("form", ["direct", "simplified"])
def test_words_and_documents_give_the_same_directions(beta, ridge, form):
    for rows in (X, FEW):
        primal, dual = (
            MLSI(mixing=beta, ridge=ridge, form=form, dual=dual, **EXACT).fit(rows, Y) for dual in (False, True)
        )
        new = NEW[:, : rows.shape[1]]
        np.testing.assert_allclose(np.abs(dual.transform(new)), np.abs(primal.transform(new)), atol=1e-5)
        np.testing.assert_allclose(new @ dual.components_.T, dual.transform(new), atol=1e-8)


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
def test_the_direct_form_is_principal_covariates_regression(beta):
    PCovR = pytest.importorskip("skmatter.decomposition", reason="skmatter is not installed").PCovR

    dense, outputs = X.toarray(), Y - Y.mean(axis=0)
    dense = dense - dense.mean(axis=0)
    dense, outputs = dense / np.linalg.norm(dense), outputs / np.linalg.norm(outputs)
    few = dense[:, :20] / np.linalg.norm(dense[:, :20])
    regression = LinearRegression(fit_intercept=False)
    reference = PCovR(mixing=1 - beta, n_components=3, space="sample", regressor=regression).fit(few, outputs)
    for dual in (False, True):
        model = MLSI(mixing=beta, n_components=3, dual=dual, tol=1e-12)
        assert angle(model.fit_transform(few, outputs), reference.transform(few)) < 1e-4


@pytest.mark.parametrize("arguments", [{"dual": True}, {"dual": False}, {"approximation": Krylov(3, 100)}])
def test_coordinates_are_scaled_or_of_unit_constraint(arguments):
    """Check the constraint w'(X'X + ridge I)w = 1 of the paper, and the scaling by the roots of the eigenvalues."""
    model = MLSI(ridge=0.3, scaled=False, **EXACT | arguments).fit(X, Y)
    W = model.components_.T
    np.testing.assert_allclose(W.T @ (X.T @ (X @ W)) + 0.3 * W.T @ W, np.eye(4), atol=1e-6)
    scaled = MLSI(ridge=0.3, **EXACT | arguments).fit(X, Y)
    np.testing.assert_allclose(scaled.components_.T, W * np.sqrt(model.eigenvalues_), rtol=1e-6)
    np.testing.assert_allclose(scaled.decision_function(NEW), model.decision_function(NEW), atol=1e-8)


def test_the_papers_equation_12_on_documents():
    beta, ridge = 0.6, 0.4
    K, KY = (X @ X.T).toarray(), Y @ Y.T
    C = (1 - beta) * K + beta * np.trace(K) / np.trace(KY) * KY
    mu, a = scipy.linalg.eigh(K @ K, K @ np.linalg.solve(C, K) + ridge * K)
    model = MLSI(mixing=beta, ridge=ridge, form="regularized", dual=True, **EXACT).fit(X, Y)
    np.testing.assert_allclose(model.eigenvalues_, mu[::-1][:4], rtol=1e-8)
    assert angle(model.transform(X), K @ a[:, ::-1][:, :4]) < 1e-5


def test_the_regularized_form_is_refused_with_fewer_words_than_documents():
    for dual in (True, False):
        with pytest.raises(ValueError, match=r"MLSI: form 'regularized' needs .* full rank.*labels have no influence"):
            MLSI(form="regularized", dual=dual).fit(FEW, Y)


def test_all_landmarks_give_the_exact_answer():
    full = Nystrom(rank=N, landmarks="uniform", precision="float64")
    for ridge in (0.1, 0.5):
        exact = MLSI(ridge=ridge, **EXACT).fit(X, Y)
        small = MLSI(ridge=ridge, approximation=full, **EXACT).fit(X, Y)
        np.testing.assert_allclose(np.abs(small.transform(NEW)), np.abs(exact.transform(NEW)), atol=1e-6)


def test_rows_are_never_densified():
    """Dense rows of this data set with a million words would need 2.4 GB."""
    wide = scipy.sparse.random_array((300, 1_000_000), density=2e-5, format="csr", rng=RNG)
    labels = (RNG.random((300, 4)) < 0.4).astype(float)
    tracemalloc.start()
    model = MLSI(n_components=3, ridge=1.0).fit(wide, labels)
    model.transform(wide)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200e6, "components (24 MB) and n x n products, not rows"


def test_a_sparse_store_is_read_block_by_block(tmp_path):
    writer = create_features(tmp_path / "s.zarr", N, {"words": ViewSpec(D, "float64", kind="sparse")}, block=16)
    for _, block in writer.missing():
        writer.write("words", block, X[block * 16 : (block + 1) * 16])
    writer.finish()
    view = open_features(tmp_path / "s.zarr").views["words"]
    for parameters in ({"dual": True}, {"dual": False}, {"approximation": Nystrom(rank=60, landmarks="uniform")}):
        model = MLSI(ridge=0.1, **parameters, **EXACT)
        stored, held = clone(model).fit(view, Y).transform(view), clone(model).fit(X, Y).transform(X)
        np.testing.assert_allclose(stored, held, atol=1e-6)


def test_arrays_and_meta_are_the_model():
    model = MLSI(ridge=0.1, n_components=3).fit(X, Y)
    arrays, meta = model._arrays()
    back = clone(model)
    back.view_widths_, back.n_features_in_ = model.view_widths_, model.n_features_in_
    back._restore(arrays, meta)
    np.testing.assert_array_equal(back.transform(NEW), model.transform(NEW))


def test_equal_documents_do_no_harm():
    twice = scipy.sparse.csr_array(scipy.sparse.vstack([X[:50], X[:50]]))
    labels = np.vstack([Y[:50], Y[:50]])
    primal, dual = (MLSI(dual=dual, **EXACT).fit(twice, labels).transform(NEW) for dual in (False, True))
    np.testing.assert_allclose(np.abs(dual), np.abs(primal), atol=1e-5)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (MLSI(dual="maybe"), "dual = 'maybe'; known: True, False, 'auto'"),
        (MLSI(form="eq12"), "form = 'eq12'"),
        (MLSI(n_components=90), "n_components = 90, but there are 90 samples"),
    ],
)
def test_bad_arguments_get_a_sentence(model, sentence):
    with pytest.raises(ValueError, match=f"MLSI: {sentence}"):
        model.fit(X, Y)
