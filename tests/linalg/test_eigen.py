"""Compare the block Krylov eigensolver with numpy.linalg.eigh and ARPACK."""

from collections.abc import Callable

import numpy as np
import pytest
import scipy.sparse.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from dmo.linalg.eigen import Eigenpairs, block_krylov, fix_signs

N = 80


def with_spectrum(values: np.ndarray, seed: int = 0) -> np.ndarray:
    """Generate a symmetric matrix with the given eigenvalues and random eigenvectors."""
    Q, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(values), len(values))))
    return (Q * values) @ Q.T


def start(columns: int, seed: int = 1, n: int = N) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, columns))


SPECTRA = {
    "decaying": np.geomspace(1, 1e-6, N),
    "crowded": 1 - 1e-3 * np.linspace(0, 1, N) ** 2,
    "indefinite": np.linspace(-3, 1, N),
    "negative": -np.linspace(0.5, 2, N),
    "top is zero": -np.linspace(0, 2, N),
    "repeated": np.repeat([5.0, 5.0, 1.0, 0.0], N // 4),
    "rank five": np.r_[np.arange(5, 0, -1.0), np.zeros(N - 5)],
    "huge": 1e12 * np.geomspace(1, 1e-3, N),
}


def check(matrix: np.ndarray, pairs: Eigenpairs, k: int) -> None:
    values = np.linalg.eigvalsh(matrix)[::-1][:k]
    scale = np.abs(np.linalg.eigvalsh(matrix)).max()
    assert pairs.converged
    assert_allclose(pairs.values, values, atol=1e-9 * scale)
    assert_allclose(pairs.vectors.T @ pairs.vectors, np.eye(k), atol=1e-12)
    true = np.linalg.norm(matrix @ pairs.vectors - pairs.vectors * pairs.values, axis=0) / scale
    assert true.max() <= 1.1e-7
    assert_allclose(pairs.residuals, true, rtol=0.3, atol=1e-12)


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("columns", [6, 11])
def test_the_algebraically_largest_pairs_are_those_of_eigh(name: str, columns: int) -> None:
    matrix = with_spectrum(SPECTRA[name])
    check(matrix, block_krylov(lambda B: matrix @ B, start(columns), 6, max_steps=100), 6)


class Inexact:
    """Operator whose products have random errors of the largest allowed size."""

    def __init__(self, matrix: np.ndarray):
        self.matrix, self.rng, self.allowed = matrix, np.random.default_rng(0), list[float]()

    def __call__(self, B: np.ndarray) -> np.ndarray:
        error = self.rng.standard_normal(B.shape)
        lengths = np.linalg.norm(B, axis=0) / np.linalg.norm(error, axis=0)
        return self.matrix @ B + self.allowed[-1] * lengths * error

    def residuals(self, pairs: Eigenpairs) -> np.ndarray:
        return np.linalg.norm(self.matrix @ pairs.vectors - pairs.vectors * pairs.values, axis=0)


def test_later_blocks_may_be_as_inexact_as_the_residuals_are_small() -> None:
    """Start near the solution, with eigenvalues that are well separated from all others."""
    matrix = with_spectrum(np.r_[np.linspace(1, 0.99, 6), np.linspace(0.01, 0, N - 6)])
    near = np.linalg.eigh(matrix)[1][:, -8:] + 1e-3 * start(8)
    maps = Inexact(matrix)
    pairs = block_krylov(maps, near, 6, tol=1e-6, loosen=maps.allowed.append)
    assert pairs.converged
    assert maps.residuals(pairs).max() <= 1e-6
    assert maps.allowed[0] < 1e-6 < 1e-5 < maps.allowed[-1]
    assert pairs.steps == block_krylov(lambda B: matrix @ B, near, 6, tol=1e-6).steps


def test_images_of_inexact_blocks_are_recomputed_if_they_matter() -> None:
    """If eigenvalues are close together, a new block can have large coefficients despite small residuals."""
    maps = Inexact(with_spectrum(SPECTRA["crowded"]))
    pairs = block_krylov(maps, start(6), 6, tol=1e-6, max_steps=100, loosen=maps.allowed.append)
    assert pairs.converged
    assert maps.residuals(pairs).max() <= 1e-6
    assert max(maps.allowed) > 1e-5  # the solver allows inexact products
    assert maps.allowed[-1] < 1e-6


def test_pairs_of_a_product_have_length_1_whatever_product_they_are_orthogonal_in() -> None:
    H, C = with_spectrum(np.linspace(-1, 2, N)), with_spectrum(np.geomspace(1, 9, N), seed=3)
    found = block_krylov(lambda B: H @ B, start(9), 3, 1e-9, 200, inner=lambda B: C @ B)
    values = np.sort(np.linalg.eigvals(H @ C).real)[::-1][:3]
    assert_allclose(found.values, values, rtol=1e-8)
    assert_allclose(np.linalg.norm(found.vectors, axis=0), 1, rtol=1e-12)
    assert_allclose(H @ (C @ found.vectors), found.vectors * found.values, atol=1e-7 * values[0])


def limit_basis(patch: pytest.MonkeyPatch, columns: int) -> None:
    """Limit the number of additional basis columns, above which the eigensolver restarts."""
    patch.setattr("dmo.linalg.eigen._BLOCKS", 0)
    patch.setattr("dmo.linalg.eigen._COLUMNS", columns)


@pytest.mark.parametrize("name", ["decaying", "indefinite", "crowded"])
@pytest.mark.parametrize("max_basis", [1, 12, 18])
def test_a_small_basis_restarts_and_still_converges(name: str, max_basis: int) -> None:
    matrix, widest = with_spectrum(SPECTRA[name]), 0

    def apply(B: np.ndarray) -> np.ndarray:
        nonlocal widest
        widest = max(widest, B.shape[1])
        return matrix @ B

    with pytest.MonkeyPatch.context() as patch:
        limit_basis(patch, max_basis - 6)
        pairs = block_krylov(apply, start(6), 6, max_steps=400)
    check(matrix, pairs, 6)
    assert widest <= 6
    assert pairs.steps > block_krylov(apply, start(6), 6, max_steps=400).steps


@pytest.mark.parametrize("max_basis", [None, 12])
def test_the_objective_never_falls_and_stays_below_its_optimum(
    max_basis: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if max_basis is not None:
        limit_basis(monkeypatch, max_basis - 5)
    matrix = with_spectrum(SPECTRA["crowded"])
    pairs = block_krylov(lambda B: matrix @ B, start(8), 5, tol=1e-9, max_steps=80)
    assert (np.diff(pairs.history) >= -1e-12).all()
    best = np.sort(SPECTRA["crowded"])[-5:].sum()
    assert pairs.history[-1] == pytest.approx(best, abs=1e-9 if max_basis is None else 1e-5)
    assert max(pairs.history) <= best + 1e-12
    assert pairs.steps == len(pairs.history)


def test_fewer_products_than_arpack() -> None:
    matrix = with_spectrum(SPECTRA["decaying"])
    counts = [0, 0]

    def count(which: int) -> Callable[[np.ndarray], np.ndarray]:
        def apply(B: np.ndarray) -> np.ndarray:
            counts[which] += 1
            return matrix @ B

        return apply

    pairs = block_krylov(count(0), start(10), 10, tol=1e-8)
    operator = scipy.sparse.linalg.LinearOperator((N, N), matvec=count(1), dtype=np.float64)
    values = scipy.sparse.linalg.eigsh(operator, 10, which="LA", tol=1e-8, v0=start(1)[:, 0], return_eigenvectors=False)
    assert_allclose(pairs.values, values[::-1], atol=1e-8)
    assert counts[0] == pairs.steps < counts[1]


def test_a_start_that_spans_the_answer_takes_one_step() -> None:
    matrix = with_spectrum(SPECTRA["indefinite"])
    _, vectors = np.linalg.eigh(matrix)
    mixed = vectors[:, -4:] @ np.random.default_rng(0).standard_normal((4, 4))
    pairs = block_krylov(lambda B: matrix @ B, mixed, 4)
    assert pairs.steps == 1
    check(matrix, pairs, 4)


def test_a_rank_deficient_start_is_enough_while_its_rank_reaches_k() -> None:
    matrix = with_spectrum(SPECTRA["decaying"])
    deficient = start(4) @ np.random.default_rng(2).standard_normal((4, 9))
    check(matrix, block_krylov(lambda B: matrix @ B, deficient, 4, max_steps=60), 4)
    with pytest.raises(ValueError, match="the start spans 4 dimensions, 5 eigenpairs need at least 5"):
        block_krylov(lambda B: matrix @ B, deficient, 5)


def test_an_invariant_subspace_ends_the_search() -> None:
    matrix = np.diag(np.r_[np.arange(10.0, 0, -1), np.zeros(N - 10)])
    inside = np.zeros((N, 4))
    inside[2:6] = np.random.default_rng(0).standard_normal((4, 4))
    pairs = block_krylov(lambda B: matrix @ B, inside, 2, tol=0.0)
    assert_allclose(pairs.values, [8, 7], atol=1e-12)
    assert pairs.residuals.max() < 1e-13
    assert pairs.steps <= 2


def test_the_whole_space_is_found_when_k_is_n() -> None:
    matrix = with_spectrum(np.linspace(-1, 1, 9))
    check(matrix, block_krylov(lambda B: matrix @ B, start(9, n=9), 9), 9)
    check(matrix, block_krylov(lambda B: matrix @ B, start(20, n=9), 9), 9)


def test_a_zero_map_has_zero_eigenvalues() -> None:
    pairs = block_krylov(lambda B: 0 * B, start(3), 3)
    assert pairs.converged
    assert_allclose(pairs.values, 0)


def test_running_out_of_steps_is_reported() -> None:
    matrix = with_spectrum(SPECTRA["crowded"])
    pairs = block_krylov(lambda B: matrix @ B, start(5), 5, max_steps=2)
    assert not pairs.converged
    assert pairs.steps == 2
    assert pairs.residuals.max() > 1e-7


def test_a_map_that_is_not_finite_and_a_k_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="the map returned values that are not finite; check its input for NaN"):
        block_krylov(lambda B: B * np.nan, start(3), 2)
    with pytest.raises(ValueError, match="k = 0 eigenpairs; request at least 1"):
        block_krylov(lambda B: B, start(3), 0)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 25), st.data())
def test_pairs_of_random_matrices(n: int, data: st.DataObject) -> None:
    seed, k = data.draw(st.integers(0, 999)), data.draw(st.integers(1, n))
    matrix = with_spectrum(np.random.default_rng(seed).standard_normal(n), seed)
    check(matrix, block_krylov(lambda B: matrix @ B, start(k, seed, n), k, max_steps=200), k)


@given(st.integers(0, 99))
def test_signs_do_not_depend_on_the_vectors_signs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((7, 4))
    fixed = fix_signs(vectors)
    np.testing.assert_array_equal(fixed, fix_signs(vectors * rng.choice([-1.0, 1.0], 4)))
    assert (np.abs(fixed) == np.abs(vectors)).all()
    assert (fixed.max(axis=0) == np.abs(fixed).max(axis=0)).all()
