"""Compare descriptions of an embedding space with scikit-learn, SciPy and NumPy."""

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose
from sklearn.cross_decomposition import PLSSVD
from sklearn.datasets import load_digits, load_wine
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from dmo import KGHA, MultiSetCCA, MultiViewRidge, Prepare, TraceEmbedding, UserError
from dmo.space import describe_space, permuted_components, view_importances

X, y = load_wine(return_X_y=True)
X = StandardScaler().fit_transform(X)
A, B = X[:, :7], X[:, 7:]
VIEWS = {"a": A, "b": B}


def test_principal_components_explain_what_scikit_learn_says():
    rows = load_digits().data[:400] + 1e5  # shift the data far from the origin
    model = TraceEmbedding("pca", n_components=5, prepare="none").fit(rows)
    found = describe_space(model, rows)
    assert_allclose(found.explained_variance["x"], PCA(5).fit(rows).explained_variance_ratio_, rtol=1e-6)
    Z = model.transform(rows)
    expected = [[np.corrcoef(rows[:, j], Z[:, k])[0, 1] for k in range(5)] for j in range(20, 24)]
    assert_allclose(found.loadings["x"][20:24], expected, atol=1e-6)
    assert (found.loadings["x"][0] == 0).all()  # this column is constant
    assert_allclose((rows - rows.mean(axis=0)) @ model.components_.T, Z, atol=1e-5)
    assert not hasattr(TraceEmbedding("pca", kernel="rbf").fit(X), "components_")
    sparse = describe_space(TraceEmbedding("pca", prepare="none").fit(X), scipy.sparse.csr_array(X))
    assert_allclose(sparse.explained_variance["x"], PCA(2).fit(X).explained_variance_ratio_, rtol=1e-6)


def test_covariance_of_two_views_is_explained_by_the_components_that_span_it():
    model = MultiSetCCA("linear", n_components=13, ridge=1e-3).fit(VIEWS)
    found = describe_space(model, VIEWS)
    assert found.explained_covariance["a", "b"].sum() == pytest.approx(1.0, abs=1e-6)
    assert_allclose([share.sum() for share in found.explained_variance.values()], 1.0, rtol=1e-6)
    one = TraceEmbedding("pls", n_components=1, prepare="none").fit(A, y)
    svd = PLSSVD(n_components=1, scale=False).fit(A, np.eye(3)[y])
    t = svd.transform(A)[:, 0]
    C = A.T @ (np.eye(3)[y] - np.eye(3)[y].mean(axis=0))
    q = t / np.linalg.norm(t)
    expected = (A.T @ q) @ C @ (q @ np.eye(3)[y] - q.sum() * np.eye(3)[y].mean(axis=0)) / (C**2).sum()
    assert describe_space(one, A, y).explained_covariance["x", "labels"][0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("model", [MultiSetCCA("rbf", n_components=3), KGHA(n_components=2)], ids=["CCA", "KGHA"])
def test_correlations_of_views_are_those_of_their_functions(model):
    model = model.fit(VIEWS, np.eye(3, dtype=int)[y]) if isinstance(model, KGHA) else model.fit(VIEWS)
    found = describe_space(model, VIEWS).view_correlations
    assert found is not None
    parts = [part(VIEWS) for part in model.expansions_.values()]
    expected = [np.corrcoef(parts[0][:, k], parts[1][:, k]) for k in range(model.n_components_)]
    assert_allclose(found, expected, atol=1e-6)
    assert describe_space(TraceEmbedding("pca").fit(A), A).view_correlations is None


def test_related_views_have_components_above_chance():
    rng = np.random.default_rng(0)
    shared = rng.standard_normal((80, 1))
    views = {
        "a": np.hstack([shared + 0.3 * rng.standard_normal((80, 1)), rng.standard_normal((80, 3))]),
        "b": np.hstack([shared + 0.3 * rng.standard_normal((80, 1)), rng.standard_normal((80, 3))]),
    }
    found = permuted_components(MultiSetCCA("linear", n_components=2), views, n_permutations=39)
    assert found.p_values[0] == 1 / 40
    assert found.p_values[1] > 0.1
    assert found.permuted.shape == (39, 2)
    assert_allclose(found.eigenvalues, MultiSetCCA("linear", n_components=2).fit(views).eigenvalues_)
    labels = permuted_components(TraceEmbedding("fda"), X, y, n_permutations=19).p_values
    assert labels.tolist() == [0.05, 0.05]
    with pytest.raises(UserError, match="cannot be tested by permutation"):
        permuted_components(TraceEmbedding("pca"), X)
    with pytest.raises(UserError, match="MultiViewRidge has no eigenvalues"):
        permuted_components(MultiViewRidge(), X, y)


def test_a_view_of_noise_is_not_important():
    rng = np.random.default_rng(0)
    views = {"a": X, "noise": rng.standard_normal((len(X), 5))}
    model = MultiViewRidge(ridge=1.0).fit({name: view[::2] for name, view in views.items()}, y[::2])
    new = {name: view[1::2] for name, view in views.items()}
    found = view_importances(model, new, y[1::2], n_repeats=3)
    assert found["a"].mean() > 0.2 > 0.1 > found["noise"].mean()
    whole = MultiViewRidge(ridge=1.0, prepare=Prepare(views={"a": slice(0, 13), "noise": slice(13, None)}))
    joined = np.hstack(list(views.values()))
    again = view_importances(whole.fit(joined[::2], y[::2]), joined[1::2], y[1::2], n_repeats=3)
    assert_allclose(again["a"], found["a"])
    with pytest.raises(UserError, match="got one view, expected several"):
        view_importances(MultiViewRidge().fit(X, y), X, y)
