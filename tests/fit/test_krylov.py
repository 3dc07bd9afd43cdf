"""Compare linear projections in a Krylov subspace with exact projections."""

import warnings

import numpy as np
import pytest
import scipy.sparse
from scipy.linalg import subspace_angles
from sklearn.exceptions import ConvergenceWarning

from dmo import MLSI, MORP, Krylov, TraceEmbedding
from dmo.fit.krylov import subspaces


@pytest.fixture(scope="module")
def text():
    """Return sparse documents with 300 words, and 12 topics as labels."""
    rng = np.random.default_rng(0)
    Y = (rng.random((500, 12)) < 0.15).astype(float)
    counts = rng.poisson(0.02 + Y @ rng.gamma(0.1, 1.0, (12, 300)))
    X = counts / np.linalg.norm(counts, axis=1, keepdims=True).clip(1)
    return scipy.sparse.csr_array(X), Y


def angle(A, B):
    return float(np.degrees(subspace_angles(np.asarray(A), np.asarray(B)).max()))


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda how: MLSI(n_components=5, ridge=0.1, approximation=how),
        lambda how: MORP("linear", n_components=5, ridge=0.1, form="direct", approximation=how),
        lambda how: MORP("linear", n_components=5, ridge=0.1, approximation=how),
        lambda how: TraceEmbedding("cca", n_components=5, ridge=1.0, approximation=how),
        lambda how: TraceEmbedding("pca", n_components=5, approximation=how),
    ],
)
def test_enough_directions_give_the_exact_projection(make, sparse, text):
    X, Y = text
    X = X if sparse else X.toarray() + 3.0
    exact, ours = make("exact").fit(X, Y), make(Krylov(3, 300)).fit(X, Y)
    np.testing.assert_allclose(ours.eigenvalues_, exact.eigenvalues_, rtol=1e-6)
    Z, Z_exact = ours.transform(X[:50]), exact.transform(X[:50])
    np.testing.assert_allclose(np.abs(Z), np.abs(Z_exact), atol=1e-5 * np.abs(Z_exact).max())


def test_every_step_holds_the_powers_so_far_and_stays_orthonormal(text):
    """The subspace contains X'Y, (X'X)X'Y and (X'X)^2 X'Y of centered rows X. A duplicate label adds no dimension."""
    X, Y = text
    Z = X.toarray() - X.toarray().mean(axis=0)
    doubled = np.hstack([Y, Y[:, :1], np.ones((500, 1))])
    power, held = Z.T @ (Y - Y.mean(axis=0)), 0
    found = list(subspaces(Krylov(40, 0), X, doubled, True, 0))
    for step in found:
        B = step.basis
        np.testing.assert_allclose(B.T @ B, np.eye(B.shape[1]), atol=1e-12)
        unit = power / np.linalg.norm(power, axis=0)
        np.testing.assert_allclose(B @ (B.T @ unit), unit, atol=1e-9)
        assert B.shape[1] - held <= 12
        held, power = B.shape[1], Z.T @ (Z @ unit)
    assert found[-1].last
    assert held == np.linalg.matrix_rank(Z)


def test_few_directions_come_close_and_more_steps_closer(text):
    X, Y = text
    exact = MLSI(n_components=5, ridge=0.1, approximation="exact").fit(X, Y)
    angles = []
    for steps in (1, 2, 4):
        ours = MLSI(n_components=5, ridge=0.1, approximation=Krylov(steps, 0, tol=1e-15))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            ours.fit(X, Y)
        angles.append(angle(ours.transform(X), exact.transform(X)))
    assert angles[0] > angles[1] > angles[2]
    assert angles[2] < 3


@pytest.mark.parametrize(
    "make",
    [
        lambda how: MLSI(n_components=10, ridge=0.1, approximation=how),
        lambda how: TraceEmbedding("pca", n_components=10, approximation=how),
    ],
    ids=["MLSI", "PCA"],
)
def test_a_flat_spectrum_is_found_or_what_is_short_is_told(make):
    """The eigenvalues of random sparse rows are close together, and two steps underestimate them by several percent."""
    rng = np.random.default_rng(0)
    X = scipy.sparse.random_array((600, 900), density=0.01, rng=rng, format="csr")
    Y = (rng.random((600, 5)) < 0.3).astype(float)
    exact = make("exact").fit(X, Y).eigenvalues_
    with pytest.warns(ConvergenceWarning, match=r"after 2 block steps with a residual of .*steps, or tol"):
        short = make(Krylov(2)).fit(X, Y)
    assert np.all(short.eigenvalues_ < 0.97 * exact)
    ours = make(Krylov()).fit(X, Y)
    np.testing.assert_allclose(ours.eigenvalues_, exact, rtol=2e-3)
    assert 2 < ours.n_iter_ < 10


def test_the_scores_are_those_of_the_exact_decoder(text):
    X, Y = text
    exact, ours = (MLSI(n_components=8, ridge=0.1, approximation=how).fit(X, Y) for how in ("exact", Krylov(3, 300)))
    np.testing.assert_allclose(ours.decision_function(X), exact.decision_function(X), atol=1e-5)


def test_more_labels_than_it_takes_are_combined():
    rng = np.random.default_rng(0)
    X, W = rng.standard_normal((400, 350)), rng.standard_normal((350, 3))
    Y = X @ W @ rng.standard_normal((3, 300))
    (found,) = subspaces(Krylov(1, 0), X, Y, True, 0)
    assert found.basis.shape[1] <= 256
    wanted = (X - X.mean(axis=0)).T @ (Y - Y.mean(axis=0))
    np.testing.assert_allclose(found.basis @ (found.basis.T @ wanted), wanted, atol=1e-6 * np.abs(wanted).max())
    np.testing.assert_allclose(found.trace, ((X - X.mean(axis=0)) ** 2).sum())


def test_auto_is_exact_for_small_problems_and_a_subspace_for_large_ones(caplog):
    rng = np.random.default_rng(0)
    X = scipy.sparse.random_array((4200, 4500), density=0.002, random_state=rng, format="csr")
    X = X @ scipy.sparse.diags_array(0.99 ** np.arange(4500))
    Y = (rng.random((4200, 3)) < 0.5).astype(float)
    with caplog.at_level("INFO", "dmo"):
        MLSI(n_components=2, ridge=0.1).fit(X, Y)
        assert "Krylov subspace (the exact problem is of 4200 x 4200)" in caplog.text
        caplog.clear()
        MLSI(n_components=2, ridge=0.1).fit(X[:, :100], Y)
        assert "Krylov" not in caplog.text


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda X, Y: MORP("rbf", approximation=Krylov()).fit(X, Y), "Krylov needs kernel='linear'"),
        (lambda X, Y: MLSI(approximation=Krylov(0)).fit(X, Y), "steps >= 1"),
        (lambda X, Y: MLSI(approximation=Krylov(tol=0)).fit(X, Y), "expected a number above 0"),
        (lambda X, Y: MLSI(approximation=Krylov(1, 0)).fit(0 * X, Y), "no direction can be computed"),
        (lambda X, Y: MLSI(approximation=Krylov(), form="regularized").fit(X, Y), "use form='direct'"),
    ],
)
def test_what_it_refuses(make, sentence, text):
    with pytest.raises(ValueError, match=sentence):
        make(*text)
