"""Compare the solutions of (A + c I) X = B by every method with numpy.linalg.solve."""

import logging
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from cases import CASES, F, K, N, gaussian, low_rank, rows
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array

from dmo.linalg.cg import BlockCG, NystromPreconditioner, default_rank, solve_shifted
from dmo.linalg.factors import CenteredRows, DenseFactor, RowGram, low_rank_factor
from dmo.linalg.linear import FactorSystem, IllConditioned, InaccurateSolve, Solution, cholesky_in_place, positive_solve
from dmo.linalg.operators import Congruent, Dense, LowRank, Operator
from dmo.linalg.smoothers import LinearSmoother, Smoother
from dmo.linalg.solve import SolveMethod, SpectralSolver, Spectrum, _direct_method, _saved, _spared, factorize
from dmo.linalg.tall import orthonormalize

RNG = np.random.default_rng(11)
B = RNG.standard_normal((N, 5))
METHODS: list[SolveMethod] = ["cholesky", "cg"]
POSITIVE = [name for name in CASES if name != "scaled"]  # the case "scaled" is not positive semidefinite


class Counted(Dense):
    """Operator that counts its products by precision and records their numbers of columns."""

    def __init__(self, matrix: np.ndarray):
        super().__init__(matrix)
        self.widths: list[int] = []
        self.checks = 0

    def __matmul__(self, B: np.ndarray) -> np.ndarray:
        self.widths.append(B.shape[1])
        return super().__matmul__(B)

    def product(self, B: np.ndarray) -> np.ndarray:
        self.checks += 1
        return super().product(B)


def true_residuals(matrix: np.ndarray, ridge: float, X: np.ndarray, B: np.ndarray) -> np.ndarray:
    matrix = matrix.astype(np.float64)
    return np.linalg.norm(B - matrix @ X - ridge * X, axis=0) / np.linalg.norm(B, axis=0)


def conjugate(A: Operator, ridge: float, rank: int = 20, tol: float = 1e-8, products: int = 500) -> BlockCG:
    return BlockCG(A, ridge, NystromPreconditioner.of(A, rank, 0), tol, products)


@pytest.fixture(scope="module")
def large() -> np.ndarray:
    """Compute a float32 kernel matrix of 400 points. Its norm is about 10^5 times the smaller ridges in these tests."""
    return gaussian(rows(400, 6, seed=3)).astype(np.float32)


@pytest.mark.parametrize("method", ["auto", *METHODS])
@pytest.mark.parametrize("name", POSITIVE)
def test_every_operator_is_solved_as_numpy_solves_its_matrix(name: str, method: SolveMethod) -> None:
    case = CASES[name]()
    matrix = case.operator.dense()
    for ridge in (0.5, 0.02):
        solution = factorize(case.operator, ridge, method).solve(B)
        wanted = np.linalg.solve(matrix + ridge * np.eye(N), B)
        assert solution.converged
        assert solution.residuals is not None
        assert solution.residuals.max() <= 1e-8
        assert_allclose(solution.residuals, true_residuals(matrix, ridge, solution.value, B), rtol=0.01, atol=1e-12)
        assert_allclose(solution.value, wanted, atol=1e-7 * np.abs(wanted).max() / ridge)


@pytest.mark.parametrize("name", ["low-rank32", "low-rank64", "block-low-rank", "centered-sum"])
@pytest.mark.parametrize("ridge", [10.0, 1e-3, 1e-6])
def test_woodbury_is_numpys_solution(name: str, ridge: float) -> None:
    operator = (CASES["low-rank64"]().operator + 2 * low_rank(np.float64).operator).centered()
    if name != "centered-sum":
        operator = CASES[name]().operator
    solution = factorize(operator, ridge).solve(B)
    assert solution.method == "woodbury"
    matrix = operator.dense() + ridge * np.eye(N)
    assert true_residuals(matrix, 0.0, solution.value, B).max() < 1e-8 + 1e-13 / ridge
    digits = 1e-8 + np.finfo(float).eps * np.linalg.cond(matrix)  # numpy.linalg.solve has the same accuracy
    assert_allclose(solution.value, np.linalg.solve(matrix, B), atol=digits * np.abs(solution.value).max() + 1e-9)


@pytest.mark.parametrize("method", [*METHODS, "woodbury"])
def test_shapes_of_the_right_hand_side_come_back(method: SolveMethod) -> None:
    solver = factorize(LowRank(F), 0.1, method)
    block = solver.solve(B)
    assert_allclose(solver.solve(B[:, 0]).value, block.value[:, 0], atol=1e-6)
    assert solver.solve(np.zeros((N, 0))).value.shape == (N, 0)
    assert_allclose(solver.solve(np.asfortranarray(B)).value, block.value, atol=1e-10)
    assert_allclose(solver.solve(np.ones(N, int)).value, solver.solve(np.ones(N)).value)
    assert block.residuals is not None
    assert block.residuals.shape == (5,)


@pytest.mark.parametrize("method", [*METHODS, "woodbury"])
@pytest.mark.parametrize(
    ("right", "start", "sentence"),
    [
        (np.ones((N + 1, 2)), None, r"the right-hand side has shape \(84, 2\), the operator is 83 x 83"),
        (np.ones((N, 2, 2)), None, r"the right-hand side has shape \(83, 2, 2\)"),
        (np.where(np.arange(N) == 4, np.nan, 1.0), None, "the right-hand side contains NaN or inf in row 4"),
        (B, np.full((N, 5), np.inf), "the start contains NaN or inf in row 0"),
        (B, np.ones((N, 4)), r"the start has shape \(83, 4\), the right-hand side \(83, 5\)"),
    ],
)
def test_wrong_right_hand_sides_are_refused(method: SolveMethod, right: Any, start: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        factorize(LowRank(F), 0.1, method).solve(right, start)


@pytest.mark.parametrize("ridge", [0.0, -1.0, np.nan])
def test_a_ridge_that_is_not_positive_is_refused(ridge: float) -> None:
    with pytest.raises(ValueError, match=f"ridge must be positive, got {ridge}"):
        factorize(Dense(K), ridge)


def test_unknown_methods_and_woodbury_of_a_full_matrix_are_refused() -> None:
    with pytest.raises(
        ValueError, match="unknown method 'lu'; known: 'auto', 'direct', 'cholesky', 'mixed', 'cg', 'woodbury'"
    ):
        factorize(Dense(K), 0.1, "lu")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="woodbury needs a low-rank operator, got Dense; use 'cholesky' or 'cg'"):
        factorize(Dense(K), 0.1, "woodbury")


@pytest.mark.parametrize("method", METHODS)
def test_a_matrix_that_is_not_positive_definite_is_refused(method: SolveMethod) -> None:
    sentence = {
        "cholesky": r"kernel plus ridge 0.1 is not positive definite \(Cholesky stopped at row \d+ of 83\); raise the ridge",
        "cg": "direction of negative curvature: the kernel plus ridge 0.1 is not positive definite in float64; raise",
    }[method]
    with pytest.raises(IllConditioned, match=sentence):
        factorize(Dense(K - 2 * np.eye(N)), 0.1, method).solve(B)


def test_a_kernel_with_nan_is_refused_by_conjugate_gradients() -> None:
    broken = K.copy()
    broken[3, 70] = np.nan
    preconditioner = NystromPreconditioner.of(Dense(K), 20, 0)
    with pytest.raises(ValueError, match="a product with the operator is not finite; check the kernel for NaN and inf"):
        BlockCG(Dense(broken), 0.1, preconditioner, 1e-8, 100).solve(B)


@pytest.mark.parametrize("ridge", [0.1, 0.01, 0.001])
def test_float32_products_reach_a_true_float64_residual(large: np.ndarray, ridge: float) -> None:
    right = np.random.default_rng(0).standard_normal((400, 8))
    solution = conjugate(Dense(large), ridge, 80).solve(right)
    assert solution.converged
    assert true_residuals(large, ridge, solution.value, right).max() <= 1e-8


def test_true_residuals_are_checked_seldom(large: np.ndarray) -> None:
    A = Counted(large)
    solution = BlockCG(A, 0.01, NystromPreconditioner.of(Dense(large), 80, 0), 1e-8, 500).solve(B_large := large[:, :8])
    assert solution.iterations == len(A.widths)
    assert 1 <= A.checks <= 6 < len(A.widths)
    A = Counted(large.astype(np.float64))
    assert BlockCG(A, 0.01, NystromPreconditioner.of(A, 80, 0), 1e-8, 500).solve(B_large).converged
    assert A.checks <= 3


def test_a_start_at_the_solution_takes_no_iteration_and_one_check(large: np.ndarray) -> None:
    right = np.random.default_rng(0).standard_normal((400, 4))
    A = Counted(large)
    solver = conjugate(A, 0.1, 80)
    first = solver.solve(right)
    A.widths, A.checks = [], 0
    again = solver.solve(right, first.value)
    assert (again.iterations, len(A.widths), A.checks) == (0, 0, 1)
    assert again.converged
    assert_allclose(again.value, first.value, rtol=1e-14)
    near = solver.solve(right, first.value * (1 + 1e-4))
    assert near.converged
    assert 0 < near.iterations < first.iterations


def test_a_start_is_not_written_to() -> None:
    start = np.ones((N, 5))
    conjugate(Dense(K), 0.1).solve(B, start)
    assert_array_equal(start, 1.0)


def test_converged_columns_are_frozen(large: np.ndarray) -> None:
    right = np.random.default_rng(0).standard_normal((400, 6))
    A = Counted(large)
    solver = conjugate(A, 0.01, 100)
    exact = solver.solve(right).value
    start = exact.copy()
    start[:, 3] = 0
    A.widths = []
    solution = solver.solve(right, start)
    assert set(A.widths) == {1}
    assert_allclose(np.delete(solution.value, 3, 1), np.delete(exact, 3, 1), rtol=1e-14)
    assert solution.converged


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "right",
    [
        np.zeros((N, 3)),
        np.hstack([B, np.zeros((N, 2))]),
        np.hstack([B, B, B[:, :1] + B[:, 1:2]]),
        np.hstack([B, B + 1e-10 * B[:, ::-1]]),
        RNG.standard_normal((N, N + 20)),
        np.eye(N),
        B * 10.0 ** np.array([-150, -12, 0, 12, 150]),
    ],
    ids=["zero", "some zero", "duplicated", "nearly duplicated", "more columns than rows", "identity", "scales"],
)
def test_awkward_right_hand_sides_are_solved_column_by_column(right: np.ndarray, dtype: type) -> None:
    A = Dense(K.astype(dtype))
    for start in (None, np.ones(right.shape)):
        solution = conjugate(A, 0.05).solve(right, start)
        wanted = np.linalg.solve(A.dense() + 0.05 * np.eye(N), right)
        assert solution.converged
        assert np.isfinite(solution.value).all()
        scale = np.abs(wanted).max(axis=0)
        assert (np.abs(solution.value - wanted).max(axis=0) <= 2e-6 * scale).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(0, 30), st.integers(1, 40), st.floats(-6, 2), st.booleans(), st.integers(0, 999))
def test_conjugate_gradients_never_give_nan_and_report_the_truth(
    n: int, rank: int, k: int, digits: float, single: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    G = rng.standard_normal((n, rank))
    matrix = (G @ G.T).astype(np.float32 if single else np.float64)
    right, ridge = rng.standard_normal((n, k)), 10.0**digits
    try:
        solution = conjugate(Dense(matrix), ridge, max(1, n // 5), products=60).solve(right)
    except IllConditioned:
        assert np.linalg.eigvalsh(matrix.astype(np.float64)).min() + ridge < 1e-5 * (1 + np.linalg.norm(matrix, 2))
        return
    assert np.isfinite(solution.value).all()
    assert solution.residuals is not None
    true = true_residuals(matrix, ridge, solution.value, right)
    rounding = 1e-15 * np.linalg.norm(matrix) * np.linalg.norm(solution.value) / np.linalg.norm(right, axis=0).min()
    assert_allclose(solution.residuals, true, rtol=1e-2, atol=1e-12 + 10 * rounding)
    assert solution.converged == (solution.residuals.max() <= 1e-8)
    assert solution.iterations <= 60


def test_columns_whose_given_products_are_rounding_become_orthonormal() -> None:
    B = 1e-8 * np.random.default_rng(0).standard_normal((9, 4))
    found = orthonormalize(B, tol=1e-12, square=B.T @ B - 1e-15 * np.eye(4))
    assert_allclose(found.T @ found, np.eye(4), atol=1e-14)
    assert_allclose(found @ (found.T @ B), B, atol=1e-20)


def test_too_few_products_are_reported(large: np.ndarray) -> None:
    right = np.random.default_rng(0).standard_normal((400, 4))
    solution = conjugate(Dense(large), 1e-3, 50, products=3).solve(right)
    assert not solution.converged
    assert solution.iterations == 3
    assert solution.residuals is not None
    assert_allclose(solution.residuals, true_residuals(large, 1e-3, solution.value, right), rtol=1e-6)
    assert not conjugate(Dense(large), 1e-3, 50, products=0).solve(right).converged


def test_a_tolerance_that_rounding_forbids_ends_and_is_reported() -> None:
    for method in METHODS:
        solution = factorize(Dense(K), 0.1, method, tol=1e-30).solve(B)
        assert not solution.converged
        assert solution.residuals is not None
        assert solution.residuals.max() < 1e-12
        assert solution.iterations < 300


def test_the_tolerance_is_the_relative_residual_of_every_column(large: np.ndarray) -> None:
    right = np.random.default_rng(0).standard_normal((400, 4)) * [1.0, 1e3, 1e-3, 1.0]
    used = []
    for tol in (1e-2, 1e-5, 1e-8):
        solution = conjugate(Dense(large), 0.01, 100, tol).solve(right)
        assert true_residuals(large, 0.01, solution.value, right).max() <= tol
        used.append(solution.iterations)
    assert used == sorted(set(used))


def test_a_direct_method_may_be_spared_its_check() -> None:
    for method, A in (("cholesky", Dense(K)), ("woodbury", LowRank(F))):
        solver = factorize(A, 0.1, method)
        quick = solver.solve(B, check=False)
        assert quick.residuals is None
        assert_allclose(quick.value, solver.solve(B).value, atol=1e-9)


def test_the_preconditioner_saves_products(large: np.ndarray) -> None:
    right = np.random.default_rng(0).standard_normal((400, 4))
    used = [conjugate(Dense(large), 0.01, rank).solve(right).iterations for rank in (1, 40, 120)]
    assert used[0] > 1.5 * used[1] > 1.5 * used[2]


def test_one_preconditioner_serves_every_ridge(large: np.ndarray) -> None:
    preconditioner = NystromPreconditioner.of(Dense(large), 80, 0)
    right = np.random.default_rng(0).standard_normal((400, 4))
    for ridge in (1.0, 0.1, 0.01):
        assert factorize(Dense(large), ridge, "cg", preconditioner=preconditioner).solve(right).converged


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_preconditioner_is_the_inverse_of_its_approximation_plus_the_ridge(dtype: type) -> None:
    A = Dense(gaussian(rows(120, 3, seed=5)).astype(dtype))
    made = NystromPreconditioner.of(A, 30, 0)
    U, ridge = made.basis.astype(np.float64), 0.01
    tol = 1e-10 if dtype == np.float64 else 1e-5
    assert_allclose(U.T @ U, np.eye(U.shape[1]), atol=tol)
    approximation = (U * made.values) @ U.T
    assert np.linalg.norm(A.dense() - approximation, 2) < 0.2 * np.linalg.norm(A.dense(), 2)
    inverse = np.linalg.inv(approximation + ridge * np.eye(120)) * (made.values[0] + ridge)
    outside = (np.eye(120) - U @ U.T) * (1 - (made.values[0] + ridge) / ridge)
    R = np.random.default_rng(0).standard_normal((120, 3))
    assert_allclose(made.apply(R, made.measured(R)[1], ridge), (inverse + outside) @ R, atol=1e3 * tol)


def test_a_zero_matrix_is_solved_by_its_ridge() -> None:
    A = Dense(np.zeros((N, N)))
    for method in METHODS:
        assert_allclose(factorize(A, 0.5, method).solve(B).value, 2 * B)
    assert NystromPreconditioner.of(A, 10, 0).values.size == 0


def test_default_rank_is_a_fifth_up_to_a_thousand() -> None:
    assert [default_rank(n) for n in (1, 4, 5, 500, 5000, 10**6)] == [1, 1, 1, 100, 1000, 1000]


@pytest.mark.parametrize("method", ["cholesky", "mixed", "woodbury"])
def test_the_inverse_diagonal_gives_leave_one_out_predictions(method: SolveMethod) -> None:
    A, ridge = LowRank(F), 0.3
    solver = factorize(A, ridge, method)
    matrix = A.dense()
    assert_allclose(solver.inverse_diagonal(), np.diagonal(np.linalg.inv(matrix + ridge * np.eye(N))), atol=1e-10)
    shortcut = B - solver.solve(B).value / solver.inverse_diagonal()[:, None]
    for i in (0, 17, N - 1):
        rest = np.delete(np.arange(N), i)
        dual = np.linalg.solve(matrix[np.ix_(rest, rest)] + ridge * np.eye(N - 1), B[rest])
        assert_allclose(shortcut[i], matrix[i, rest] @ dual, atol=1e-8)


def test_the_inverse_diagonal_of_many_rows_is_made_by_strips() -> None:
    A = Dense(gaussian(rows(600, 4)))
    wanted = np.diagonal(np.linalg.inv(A.dense() + 0.1 * np.eye(600)))
    assert_allclose(factorize(A, 0.1, "cholesky").inverse_diagonal(), wanted, rtol=1e-8)


def test_eigenpairs_solve_for_every_ridge_and_give_the_inverse_diagonal() -> None:
    A = Dense(K).centered()
    matrix, spectrum = A.dense(), Spectrum(A)
    for ridge in (1e-3, 0.1, 10.0):
        solver, shifted = SpectralSolver(A, ridge, spectrum), matrix + ridge * np.eye(N)
        for right in (B, B[:, ::-1]):  # only the first block is cached
            assert_allclose(solver.solve(right).value, scipy.linalg.solve(shifted, right), rtol=1e-7, atol=1e-9)
        assert_allclose(solver.inverse_diagonal(), np.diagonal(np.linalg.inv(shifted)), rtol=1e-9)
    with pytest.raises(IllConditioned, match="least eigenvalue is -1"):
        SpectralSolver(Dense(-np.eye(3)), 0.5, Spectrum(Dense(-np.eye(3))))


def test_conjugate_gradients_have_no_inverse_diagonal() -> None:
    with pytest.raises(ValueError, match="leave-one-out scores need a factorized kernel"):
        factorize(Dense(K), 0.1, "cg").inverse_diagonal()


def chosen(A: Operator, ridge: float = 0.1, memory: float | None = None, **how: Any) -> str:
    """Return the solver that method="auto" selects if a factor may use `memory` bytes."""
    with pytest.MonkeyPatch.context() as patch:
        if memory is not None:
            patch.setattr("dmo.memory.psutil.virtual_memory", lambda: SimpleNamespace(available=2 * memory))
        return factorize(A, ridge, **how).method


def test_auto_takes_woodbury_for_what_is_truly_low_rank() -> None:
    assert chosen(LowRank(F)) == "woodbury"
    assert chosen(LowRank(RNG.standard_normal((N, N)))) == "cholesky"
    assert chosen(LowRank(RNG.standard_normal((N, 2 * N)))) == "cholesky"
    assert chosen(Dense(K) + LowRank(F)) == "cholesky"
    assert chosen(Dense(K).centered()) == "cholesky"


def test_auto_takes_cholesky_while_it_fits_and_conjugate_gradients_beyond() -> None:
    assert chosen(Dense(K)) == "cholesky"
    assert chosen(Dense(K), memory=8 * N * N) == "cholesky"
    assert chosen(Dense(K), memory=8 * N * N - 1) == "cg"


def test_auto_takes_the_cheaper_method_for_a_known_number_of_columns(caplog: Any) -> None:
    easy = Dense(gaussian(rows(3000, 2)).astype(np.float32))
    with caplog.at_level(logging.INFO, "dmo"):
        assert chosen(easy, 1.0, columns=20) == "cg"
    assert "solve: cg for 3000 x 3000, ridge 1, 20 right-hand sides" in caplog.text
    assert chosen(easy, 1.0, columns=2000) == "cholesky"
    assert chosen(easy, 1.0, columns=20, last=np.arange(1980)) == "mixed"  # CG would need a solve for each left-out row
    made = NystromPreconditioner.of(easy, 50, 0)
    poor = NystromPreconditioner(made.basis, made.values * 1e6)
    assert chosen(easy, 1.0, columns=20, preconditioner=poor) == "mixed"


def test_shifted_systems_return_the_largest_column_residual() -> None:
    A = csr_array(K + np.eye(N))
    columns = RNG.standard_normal((N, 3)) * [1.0, 1e-4, 1e4]
    shifts = np.array([0.1, 1.0, 10.0])
    V, steps, residual = solve_shifted(A, shifts, columns, max_steps=2)
    left = columns - A @ V - V * shifts
    assert steps == 2
    assert_allclose(residual, (np.linalg.norm(left, axis=0) / np.linalg.norm(columns, axis=0)).max(), rtol=1e-10)
    V, steps, residual = solve_shifted(A, shifts, columns)
    assert steps < 10 * N
    assert residual < 1e-7
    for column, shift, found in zip(columns.T, shifts, V.T, strict=True):
        assert_allclose(found, np.linalg.solve(A.toarray() + shift * np.eye(N), column), rtol=1e-5)


def test_small_columns_beside_large_ones_need_no_refinement() -> None:
    found = factorize(Dense(K), 0.1, "cholesky").solve(RNG.standard_normal((N, 2)) * [1.0, 1e12])
    assert found.iterations == 0
    assert found.residuals is not None
    assert found.residuals.max() < 1e-12


def test_the_price_of_a_factor_in_products_by_hand() -> None:
    """For n = 3840 and k = 64 columns, a factor costs as much as n / (6 k) = 10 products in the same precision."""
    rank = 256
    spared = 4.5 * rank**2 / (3840 * 64)
    cases: list[tuple[type, str, float]] = [
        (np.float64, "cholesky", 10.0),
        (np.float32, "cholesky", 20.0),  # float64 doubles the cost of a factor
        (np.float32, "mixed", 10.0 + 4.0),  # the refinement needs two float64 products
    ]
    for dtype, direct, products in cases:
        A: Any = SimpleNamespace(n=3840, dtype=np.dtype(dtype))
        assert _saved(A, 64, direct, rank) == pytest.approx(products - spared)
        assert _saved(A, 1, direct, rank) == _saved(A, 32, direct, rank)
        assert _saved(A, 32, direct, rank) == pytest.approx(2 * _saved(A, 64, direct, rank), rel=0.3)


def test_no_preconditioner_that_costs_a_factor_is_made_to_choose_between_them(monkeypatch: Any) -> None:
    made, real = [], NystromPreconditioner.of

    def counted(A: Operator, rank: int, random_state: int | None) -> NystromPreconditioner:
        made.append(rank)
        return real(A, rank, random_state)

    monkeypatch.setattr(NystromPreconditioner, "of", counted)
    hard = Dense(gaussian(rows(3000, 60)).astype(np.float32))
    assert chosen(hard, 0.05, columns=1) == "mixed"
    # The first preconditioner selects a method, and the second removes the leading part before the factorization.
    assert made == [default_rank(3000) // 8, 32]


def test_auto_takes_a_float32_factor_for_few_columns_a_wide_tolerance_or_little_memory() -> None:
    n = 6000
    sharp: Any = SimpleNamespace(n=n, dtype=np.dtype(np.float32), diagonal=lambda: np.ones(n))
    for columns, ridge, tol, method in (
        (459, 0.09, 1e-6, "mixed"),  # both methods cost the same at 460 columns
        (461, 0.09, 1e-6, "cholesky"),
        (None, 0.09, 1e-6, "cholesky"),  # None means many columns
        (None, 0.11, 1e-6, "mixed"),  # many columns need no refinement
        (9999, 0.01, 1e-4, "mixed"),
    ):
        assert _direct_method(sharp, ridge, columns, tol) == method
    assert _spared(n, 460, True) == pytest.approx(0)
    assert _spared(n, 1, False) == _spared(n, 32, False) == n / 6 - 80 - 64  # few columns are refined
    assert _spared(n, 200, False) == n / 6 - 320 + 200
    n = 400
    easy = Dense(gaussian(rows(n, 2)).astype(np.float32) + np.eye(n, dtype=np.float32))
    assert chosen(easy, method="direct") == chosen(easy) == "cholesky"
    assert chosen(easy, memory=8 * n * n - 1) == "mixed"
    assert chosen(easy, memory=4 * n * n - 1) == "cg"
    assert chosen(easy, 1e-7 * n, memory=8 * n * n - 1) == "cg"  # the ridge is too small for a float32 factor


@pytest.mark.parametrize("ridge", [1.0, 1e-2, 1e-4])
def test_a_float32_factor_is_refined_to_the_residual_of_a_float64_one(large: np.ndarray, ridge: float) -> None:
    A, B = Dense(large.astype(np.float32)), np.random.default_rng(0).standard_normal((400, 4)) * [1.0, 1e-30, 0.0, 1e30]
    found, wanted = (factorize(A, ridge, method).solve(B) for method in ("mixed", "cholesky"))
    assert found.converged
    assert found.residuals is not None
    assert found.residuals.max() <= 1e-8
    size = np.linalg.norm(wanted.value, axis=0).clip(min=1e-300)
    assert_allclose(found.value / size, wanted.value / size, atol=1e-4)


def test_a_probe_of_sums_sees_every_column_as_its_residual_is(large: np.ndarray) -> None:
    """Test residuals that are proportional to the norms of the solutions, and then an error in one of 60 columns."""
    A, rng = Dense(large.astype(np.float32)), np.random.default_rng(0)
    smooth = large @ (large @ rng.standard_normal((400, 30)))
    B = np.hstack([rng.standard_normal((400, 30)), smooth]) * np.geomspace(1e-9, 1e9, 60)
    B[:, 7] = 0.0
    solver: Any = factorize(A, 0.01, "mixed")
    X = solver._apply(B)
    scale = np.linalg.norm(B, axis=0).clip(min=1e-300)
    worst = (np.linalg.norm(B - A.product(X) - 0.01 * X, axis=0) / scale).max()
    assert 0.7 * worst < solver._probe(B, X) < 2 * worst
    X[:, 40] *= 1.1
    assert solver._probe(B, X) > 1e-3


def test_a_leading_part_taken_out_spares_a_float32_factor_its_refinement() -> None:
    """Plain float32 solutions for a nearly constant kernel have relative residuals of about eps * 0.9 n / c."""
    n = 800
    K = 0.9 + 0.1 * gaussian(rows(n, 3))
    B, ridge = np.random.default_rng(0).standard_normal((n, 8)), 0.1
    for A in (Dense(K.astype(np.float32)), Dense((3 + K).astype(np.float32)).centered()):
        single = A.dense(np.float32)
        single.flat[:: n + 1] += np.float32(ridge)
        plain = scipy.linalg.solve(single, B.astype(np.float32), assume_a="pos")
        lost = np.linalg.norm(B - A.product(plain) - ridge * plain, axis=0) / np.linalg.norm(B, axis=0)
        found = factorize(A, ridge, "mixed", 3e-6).solve(B, check=False)
        assert found.iterations == 0
        assert found.residuals is None
        left = np.linalg.norm(B - A.product(found.value) - ridge * found.value, axis=0) / np.linalg.norm(B, axis=0)
        assert left.max() < min(3e-6, 0.2 * lost.max())


def test_a_float32_factor_refines_as_far_as_a_solve_asks(large: np.ndarray) -> None:
    A, rng = Counted(large), np.random.default_rng(0)
    smoother = Smoother(factorize(A, 0.1, "mixed"), 0.1)
    exact = np.linalg.inv(large.astype(np.float64) + 0.1 * np.eye(400))
    smoother.loosen(1e-3)
    for products in (1, 0, 0):  # the first solve measures the loss of precision
        B, A.checks = np.linalg.qr(rng.standard_normal((400, 20)))[0], 0
        assert np.linalg.norm(smoother(B) - (B - 0.1 * exact @ B), axis=0).max() <= 1e-3
        assert A.checks == products
    B = rng.standard_normal((400, 20))
    assert_allclose(smoother.dual(B), exact @ B, atol=1e-7)  # dual coefficients stay accurate
    assert A.checks > 1


def test_a_float32_factor_gives_the_inverse_diagonal_to_its_tolerance(large: np.ndarray) -> None:
    A = Dense(large.astype(np.float32)).centered()
    wanted = np.diagonal(np.linalg.inv(A.dense(np.float64) + 0.1 * np.eye(400)))
    for tol, dtype in ((1e-5, np.float32), (1e-10, np.float64)):
        solver: Any = factorize(A, 0.1, "mixed", tol)
        assert_allclose(solver.inverse_diagonal(), wanted, rtol=100 * tol)
        assert solver._factor.dtype == dtype


@pytest.mark.parametrize("loose", [0.0, 1.0], ids=["replaced by float64", "kept"])
@pytest.mark.parametrize("method", ["cholesky", "mixed"])
def test_rows_put_last_keep_solutions_and_give_inverse_entries(
    large: np.ndarray, method: SolveMethod, loose: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The matrix is factorized in strips of 64 rows, and the last rows of the factor can be any rows of the matrix."""
    monkeypatch.setattr("dmo.linalg.operators._STRIP_ENTRIES", 64 * 400)
    monkeypatch.setattr("dmo.linalg.solve._LOOSE", loose)
    A, B = Dense(large.astype(np.float32)).centered(), np.random.default_rng(0).standard_normal((400, 3))
    inverse = np.linalg.inv(A.dense(np.float64) + 0.1 * np.eye(400))
    last = np.sort(np.random.default_rng(1).choice(400, 150, replace=False))
    solver: Any = factorize(A, 0.1, method, 1e-5, last=last)
    precise = solver._factor.dtype == np.float64 or not loose
    assert_allclose(solver.solve(B).value, inverse @ B, atol=1e-3)
    assert_allclose(solver.inverse_diagonal(), np.diagonal(inverse), rtol=1e-3)
    assert_allclose(solver.last_diagonal(), np.diagonal(inverse)[last], rtol=1e-5 if precise else 1e-3)


@pytest.mark.parametrize("ridge", [0.1, 1e-7], ids=["float32", "replaced by float64"])
def test_a_float32_factor_shares_the_array_of_a_lent_matrix(
    large: np.ndarray, ridge: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Factorize a matrix in strips of 64 rows. A second factor of the same matrix needs a separate array."""
    monkeypatch.setattr("dmo.linalg.operators._STRIP_ENTRIES", 64 * 400)
    B = np.random.default_rng(0).standard_normal((400, 3))
    alone, shared = (Dense(large.copy(), lends) for lends in (False, True))
    roots = np.random.default_rng(1).uniform(0.5, 2.0, 400)
    plain, first = (Congruent(A.centered(), roots) for A in (alone, shared))
    wanted, solver, second = (factorize(A, ridge, "mixed", 1e-6) for A in (plain, first, first))
    made: Any = [wanted, solver, second]
    own = made[1]._factor.dtype == np.float32
    assert [np.shares_memory(one._factor, shared.matrix) for one in made] == [False, own, False]
    assert_array_equal(shared.dense(np.float32), large)
    for one in (solver, second):
        assert_allclose(one.solve(B).value, wanted.solve(B).value, rtol=1e-4, atol=1e-5 / ridge)
        assert_allclose(one.inverse_diagonal(), wanted.inverse_diagonal(), rtol=1e-4)


def test_a_useless_float32_factor_is_replaced_by_float64() -> None:
    spread = np.linalg.qr(np.random.default_rng(0).standard_normal((60, 60)))[0]
    for smallest in (1e-9, 1e-12):  # the refinement stalls or the factorization fails
        A = Dense((spread * np.geomspace(smallest, 1, 60)) @ spread.T)
        solver, B = factorize(A, smallest, "mixed", 1e-5), np.random.default_rng(1).standard_normal((60, 2))
        assert solver.solve(B).converged
        assert_allclose(solver.inverse_diagonal(), np.diag(np.linalg.inv(A.dense() + smallest * np.eye(60))), rtol=1e-2)


def test_the_predicted_number_of_products_is_of_the_right_size(large: np.ndarray) -> None:
    right = np.random.default_rng(0).standard_normal((400, 4))
    preconditioner = NystromPreconditioner.of(Dense(large), 80, 0)
    for ridge in (1.0, 0.1, 0.01):
        used = BlockCG(Dense(large), ridge, preconditioner, 1e-8, 500).solve(right).iterations
        assert preconditioner.products(ridge, 1e-8) / 3 <= used <= 3 * preconditioner.products(ridge, 1e-8)


def test_low_rank_factors_follow_the_algebra() -> None:
    A, other = LowRank(F), LowRank(F[:, :2])
    for operator in (A, A.centered(), 3 * A, A + other, (2 * (A + other)).centered()):
        factor = low_rank_factor(operator)
        assert factor is not None
        whole = factor.rows(slice(0, N))
        assert_allclose(whole @ whole.T, operator.dense(), atol=1e-12)
    for operator in (-1 * A, A + Dense(K), Dense(K)):
        assert low_rank_factor(operator) is None


def test_a_solution_names_its_method() -> None:
    found: list[Solution] = [factorize(LowRank(F), 0.1, method).solve(B) for method in ("cholesky", "cg", "woodbury")]
    assert [solution.method for solution in found] == ["cholesky", "cg", "woodbury"]


def test_cholesky_in_place_is_numpy_s_whole_and_in_blocks(monkeypatch):
    rng = np.random.default_rng(0)
    F = rng.standard_normal((50, 60))
    A = np.asfortranarray(F @ F.T)
    expected = np.linalg.cholesky(A)
    monkeypatch.setattr("dmo.linalg.linear.is_single_blas", lambda: False)
    for whole, block in ((50, 7), (0, 7), (0, 25), (0, 50), (0, 64)):
        factor = A.copy(order="F")
        monkeypatch.setattr("dmo.linalg.linear._WHOLE", whole)
        monkeypatch.setattr("dmo.linalg.linear._BLOCK", block)
        assert cholesky_in_place(factor) == 0
        np.testing.assert_allclose(np.tril(factor), expected, rtol=1e-9, atol=1e-12)
    A[30, 30] = -1.0
    monkeypatch.setattr("dmo.linalg.linear._BLOCK", 8)
    for whole in (0, 50):
        monkeypatch.setattr("dmo.linalg.linear._WHOLE", whole)
        assert cholesky_in_place(A.copy(order="F")) == 31


def stacked_least_squares(F: np.ndarray, ridge: float, B: np.ndarray) -> np.ndarray:
    """Compute (F'F + c I)^-1 F'B by an SVD of the stacked matrix [F; sqrt(c) I]."""
    d = F.shape[1]
    right = np.vstack([B, np.zeros((d, B.shape[1]))])
    return np.linalg.lstsq(np.vstack([F, np.sqrt(ridge) * np.eye(d)]), right, rcond=None)[0]


@pytest.mark.parametrize("d", [1, 6, N - 1, N, N + 1, 300])
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("sparse", [True, False])
def test_a_factor_s_coefficients_and_leverages_are_those_of_least_squares(d: int, center: bool, sparse: bool) -> None:
    F = np.random.default_rng(d).poisson(0.4, (N, d)) + 1e6 * (not sparse)
    plain = F - F.mean(axis=0) if center else F
    for ridge in (1e-2, 10.0) if center else (1e8, 1e12):
        system = FactorSystem(CenteredRows.of(csr_array(F) if sparse else F, center), ridge)
        wanted = stacked_least_squares(plain, ridge, B)
        assert_allclose(plain @ system.loadings(B), plain @ wanted, atol=1e-8)
        assert_allclose(system.smooth(B), plain @ wanted, atol=1e-8)
        hat = plain @ stacked_least_squares(plain, ridge, np.eye(N))
        assert_allclose(1 - system.unfitted() - system.intercept, np.diagonal(hat), atol=1e-8)


def test_a_linear_solve_that_is_right_to_rounding_is_looked_at_by_few_columns_alone(monkeypatch: Any) -> None:
    widths = []
    times = CenteredRows.dot
    monkeypatch.setattr(CenteredRows, "dot", lambda F, S: (widths.append(S.shape[1]), times(F, S))[1])
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((300, 20)), rng.standard_normal((300, 40)) * np.logspace(-9, 9, 40)
    turn = np.linalg.qr(rng.standard_normal((20, 20)))[0]
    for scales, wanted in ((np.ones(20), [3]), (np.logspace(0, -3.7, 20), [3, 40])):
        mixed = (X * scales) @ turn
        widths.clear()
        W = FactorSystem(CenteredRows.of(mixed, False), 1e-9).loadings(Y)
        assert widths == wanted
        U, s = np.linalg.svd(mixed, full_matrices=False)[:2]
        fitted, scale = U @ ((s**2 / (s**2 + 1e-9))[:, None] * (U.T @ Y)), np.linalg.norm(Y, axis=0)
        assert (np.abs(mixed @ W - fitted) / scale).max() < 1e-11


def test_dependent_columns_of_all_magnitudes_are_solved_by_singular_values() -> None:
    G = np.random.default_rng(1).standard_normal((N, 5)) * [1e-8, 1e-4, 1.0, 1e4, 1e8]
    F = np.hstack([G, G @ np.ones((5, 1))])
    system = FactorSystem(DenseFactor(F), 0.1)
    assert_allclose(system.smooth(B), F @ stacked_least_squares(F, 0.1, B), atol=1e-6)
    Q = np.linalg.qr(F)[0][:, :5]
    assert (system.unfitted() >= -1e-12).all()
    assert_allclose(1 - system.unfitted(), np.diagonal(F @ stacked_least_squares(F, 0.1, np.eye(N))), atol=1e-6)
    assert np.linalg.norm(system.smooth(B) - Q @ (Q.T @ system.smooth(B))) < 1e-6


def test_sparse_columns_far_from_zero_keep_the_digits_of_their_gram_matrix() -> None:
    F = np.random.default_rng(2).poisson(1.0, (N, 4)) + np.array([0, 10**3, 10**7, 10**9])
    rows = CenteredRows.of(csr_array(F), center=True)
    plain = F - F.mean(axis=0)
    assert_allclose(rows.gram(), plain.T @ plain, atol=1e-5)
    assert_allclose(rows.lengths(), (plain**2).sum(axis=1), atol=1e-5)
    operator = RowGram(rows)
    assert_allclose(operator.dense(), plain @ plain.T, atol=1e-5)
    assert_allclose(operator.columns(np.array([3, 1])), (plain @ plain.T)[:, [3, 1]], atol=1e-5)


def test_small_systems_of_moments_are_refined_and_refused_where_rounding_hides_the_ridge() -> None:
    G = np.random.default_rng(3).standard_normal((40, 6)) * 10.0 ** np.arange(-6, 6, 2)
    right = G.T @ B[:40]
    wanted = stacked_least_squares(G, 1e-3, B[:40])
    assert_allclose(G @ positive_solve(G.T @ G, 1e-3, right), G @ wanted, atol=1e-6)
    twice = np.hstack([G, G])
    with pytest.raises(
        IllConditioned, match=r"ridge 1e-09 is below the rounding errors of moments .* raise it to \S+, scale"
    ):
        positive_solve(twice.T @ twice, 1e-9, twice.T @ B[:40])


def exact_solution(A: np.ndarray, ridge: float, b: np.ndarray) -> list[Fraction]:
    """Compute (A + c I)^-1 b exactly by Gaussian elimination with fractions."""
    rows = [[Fraction(v) for v in [*row, right]] for row, right in zip(A.tolist(), b.tolist(), strict=True)]
    for i, row in enumerate(rows):
        row[i] += Fraction(ridge)
    for i, row in enumerate(rows):  # positive definite matrices need no pivoting
        for other in rows[i + 1 :]:
            factor = other[i] / row[i]
            other[i:] = [v - factor * u for v, u in zip(other[i:], row[i:], strict=True)]
    for i in reversed(range(len(rows))):
        known = sum((rows[i][j] * rows[j][-1] for j in range(i + 1, len(rows))), Fraction(0))
        rows[i][-1] = (rows[i][-1] - known) / rows[i][i]
    return [row[-1] for row in rows]


@pytest.mark.parametrize("method", ["cholesky", "mixed"])
@pytest.mark.parametrize("ridge", [1e-3, 1e-8, 1e-10])
def test_the_residual_bounds_the_error_of_fitted_values_where_the_backward_error_does_not(
    method: SolveMethod, ridge: float
) -> None:
    """Solve with a Hilbert matrix of condition number 1e16, and with ridges close to its floating-point error."""
    A, b = scipy.linalg.hilbert(12), np.random.default_rng(0).standard_normal(12)
    exact = exact_solution(A, ridge, b)
    fitted = np.array([float(sum(Fraction(v) * x for v, x in zip(row, exact, strict=True))) for row in A.tolist()])
    found = factorize(Dense(A), ridge, method=method, tol=1e-15).solve(b, check=True)
    assert found.residuals is not None
    error = np.linalg.norm(A @ found.value - fitted) / np.linalg.norm(b)
    assert error <= 1.01 * found.residuals.max() + 1e-14
    np.testing.assert_allclose(found.value, [float(x) for x in exact], rtol=1e-14 / ridge)
    # A test of the backward error would accept a solution with only eight correct digits.
    wrong = found.value * (1 + 1e-8 * np.random.default_rng(1).standard_normal(12))
    r = b - A @ wrong - ridge * wrong
    backward = np.linalg.norm(r) / (np.linalg.norm(A, 2) * np.linalg.norm(wrong) + np.linalg.norm(b))
    assert backward < 1e-7
    if ridge == 1e-10:
        assert np.linalg.norm(A @ wrong - fitted) > 0.1 * np.linalg.norm(b)


def test_an_inaccurate_solve_is_reported() -> None:
    solver = factorize(Dense(K), 0.1, "cholesky")
    solver._factor[5, 5] *= 1.5  # type: ignore[attr-defined]
    solver._refinements = 0  # type: ignore[attr-defined]
    with pytest.warns(
        InaccurateSolve, match=r"a solve by cholesky with ridge 0.1 has a relative residual of .* raise it"
    ):
        solver.solve(B, check=False)


def test_a_smoother_solves_nothing_for_combinations_of_blocks_that_it_has_solved() -> None:
    rng = np.random.default_rng(0)
    F = rng.normal(size=(60, 50))
    A = Counted(F @ F.T)
    smoother = Smoother(factorize(A, 0.1, "cg", random_state=0), 0.1)
    Q = np.linalg.qr(rng.normal(size=(60, 12)))[0]
    blocks = Q[:, :6], Q[:, 6:]
    solved = np.hstack([smoother.dual(block) for block in blocks])
    mix, before = rng.normal(size=(12, 5)), len(A.widths)
    found = smoother.dual(Q @ mix)
    assert len(A.widths) == before > 2
    np.testing.assert_allclose(found, solved @ mix, rtol=1e-6, atol=1e-8)


def test_values_may_be_less_exact_than_coefficients_and_cost_less() -> None:
    rng = np.random.default_rng(0)
    F, Q = rng.normal(size=(300, 280)), np.linalg.qr(rng.normal(size=(300, 8)))[0]
    K, A = F @ F.T, Counted(F @ F.T)
    smoother = Smoother(BlockCG(A, 0.1, NystromPreconditioner.of(A, 200, 0), 1e-10, 500), 0.1)
    exact, counts = K @ np.linalg.solve(K + 0.1 * np.eye(300), Q), list[int]()
    for block, tol in ((Q[:, :4], 1e-3), (Q[:, 4:], 1e-10)):
        smoother.loosen(tol)
        A.widths, A.checks = [], 0
        error = smoother(block) - exact[:, :4] if tol == 1e-3 else smoother(block) - exact[:, 4:]
        counts.append(len(A.widths))
        assert np.linalg.norm(error, axis=0).max() <= tol
    assert counts[0] < counts[1]
    assert A.checks <= 3  # an orthogonal block does not use a warm start
    smoother.loosen(1e-3)
    dual = smoother.dual(Q[:, :4])
    np.testing.assert_allclose(dual, np.linalg.solve(K + 0.1 * np.eye(300), Q[:, :4]), atol=1e-8)


@pytest.mark.parametrize("weights", [None, "by row"])
@pytest.mark.parametrize("shape", [(40, 6), (12, 30)])
@pytest.mark.parametrize("ridge", [0.5, 1e-14])
def test_left_out_values_of_some_rows_are_those_among_all(
    ridge: float, shape: tuple[int, int], weights: str | None
) -> None:
    rng = np.random.default_rng(0)
    X, B, where = rng.normal(size=shape) + 3, rng.normal(size=(shape[0], 4)), np.array([1, 5, 11])
    given = None if weights is None else rng.uniform(0.5, 2, shape[0])
    smoother = LinearSmoother(CenteredRows.of(X, True, given), ridge)
    W = smoother.loadings(B)
    part = rng.uniform(0.5, 1, shape[0])
    some = smoother.left_out(B, W, part, where)
    np.testing.assert_allclose(some, smoother.left_out(B, W, part)[where], rtol=1e-9, atol=1e-12)
