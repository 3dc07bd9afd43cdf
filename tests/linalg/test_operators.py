"""Compare every operator with a dense matrix and SciPy."""

from typing import Any

import numpy as np
import pytest
from cases import CASES, K_NEW, Case, F, K, N, centered, dense, low_rank
from numpy.testing import assert_allclose
from scipy.sparse import csr_array
from sklearn.preprocessing import KernelCenterer

from dmo.linalg.factors import BlockFactor, CenteredRows, DenseFactor, StackedFactor
from dmo.linalg.operators import Centered, Dense, LowRank, Operator, SumOperator
from dmo.linalg.tall import BlockRows

B = np.random.default_rng(7).standard_normal((N, 4))


@pytest.fixture(params=CASES)
def case(request: Any) -> Case:
    return CASES[request.param]()


def close(case: Case, got: np.ndarray, wanted: np.ndarray) -> None:
    assert_allclose(got, wanted, rtol=0, atol=case.tol * max(1.0, float(np.abs(wanted).max(initial=0.0))))


def test_shape_and_bytes(case: Case) -> None:
    assert case.operator.shape == (N, N)
    assert case.operator.nbytes == N * N * case.operator.dtype.itemsize


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_product_has_the_value_of_the_matrix_and_the_type_of_the_block(case: Case, dtype: type) -> None:
    block = B.astype(dtype)
    product = case.operator @ block
    assert product.dtype == dtype
    case.tol = max(case.tol, 2e-6 if dtype == np.float32 else 0.0)
    close(case, product, case.matrix @ B)


def test_a_product_takes_vectors_integers_and_any_memory_layout(case: Case) -> None:
    close(case, case.operator @ B[:, 0], case.matrix @ B[:, 0])
    close(case, case.operator.product(B[:, 0]), case.matrix @ B[:, 0])
    ones = np.arange(2 * N).reshape(N, 2) % 3
    close(case, case.operator @ ones, case.matrix @ ones)
    close(case, case.operator @ np.asfortranarray(B)[:, ::2], case.matrix @ B[:, ::2])
    assert (case.operator @ np.zeros((N, 0))).shape == (N, 0)


def test_a_product_leaves_the_block_alone(case: Case) -> None:
    block = B.copy()
    case.operator @ block
    case.operator.product(block)
    np.testing.assert_array_equal(block, B)


def test_a_float64_product_is_that_of_the_entries_to_float64s_precision(case: Case) -> None:
    entries = case.operator.dense(np.float64)
    close(case, entries, case.matrix)
    product = case.operator.product(B.astype(np.float32))
    assert product.dtype == np.float64
    assert_allclose(
        product, entries @ B.astype(np.float32).astype(np.float64), rtol=0, atol=1e-12 * np.abs(entries).sum()
    )


@pytest.mark.parametrize("block", [np.zeros((N + 1, 2)), np.zeros((2, N)), np.zeros(3), np.float64(1.0)])
def test_a_block_of_other_rows_is_refused(case: Case, block: np.ndarray) -> None:
    for multiply in (case.operator.__matmul__, case.operator.product):
        with pytest.raises(ValueError, match=f"operator is {N} x {N}, the block has shape .* one row per sample"):
            multiply(block)


def test_the_diagonal(case: Case) -> None:
    diagonal = case.operator.diagonal()
    assert diagonal.dtype == np.float64
    close(case, diagonal, np.diagonal(case.matrix))


@pytest.mark.parametrize("index", [[0], [82, 5, 5, 40, 19, 20], []])
def test_columns_in_the_order_asked_for(case: Case, index: list[int]) -> None:
    columns = case.operator.columns(np.array(index, dtype=int))
    assert columns.dtype == case.operator.dtype
    assert columns.shape == (N, len(index))
    close(case, columns, case.matrix[:, index])


def test_the_upper_triangle_comes_in_strips_that_are_the_callers(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dmo.linalg.operators._STRIP_ENTRIES", 1)
    found, starts = np.zeros((N, N)), []
    for where, strip in case.operator.upper():
        assert strip.dtype == np.float64
        found[where, where.start :] = strip
        strip[:] = np.nan
        starts.append(where.start)
    assert len(starts) > 1
    close(case, np.triu(found), np.triu(case.matrix))
    close(case, case.operator.dense(), case.matrix)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_dense_array_is_the_callers_to_overwrite(case: Case, dtype: type) -> None:
    matrix = case.operator.dense(dtype)
    assert matrix.dtype == dtype
    assert matrix.flags.c_contiguous
    matrix[:] = 0
    case.tol = max(case.tol, 2e-6)
    close(case, case.operator.dense(dtype), case.matrix)


def test_an_expansion_over_the_raw_kernel_is_scaled_and_centered_as_the_entries_are(case: Case) -> None:
    C, offset = case.operator.expansion(B)
    assert offset.shape == (4,)
    close(case, case.raw @ C + offset, case.cross @ B)


def test_sums_and_multiples_form_nothing(case: Case) -> None:
    A = case.operator
    combined = np.float64(2.0) * A + A * 3
    assert isinstance(combined, Operator)
    close(case, combined @ B, 5 * case.matrix @ B)
    close(case, combined.diagonal(), 5 * np.diagonal(case.matrix))
    close(case, combined.dense(), 5 * case.matrix)


def test_centering_twice_is_centering_once(case: Case) -> None:
    close(case, case.operator.centered().centered() @ B, case.operator.centered() @ B)


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_centering_is_scikit_learns(offset: float) -> None:
    oracle = KernelCenterer().fit(K + offset)
    A = Dense(K + offset).centered()
    assert_allclose(A.dense(), oracle.transform(K + offset), atol=1e-12 * (1 + offset))
    assert_allclose(A @ B, oracle.transform(K + offset) @ B, atol=1e-11 * (1 + offset))
    C, constant = A.expansion(B)
    assert_allclose((K_NEW + offset) @ C + constant, oracle.transform(K_NEW + offset) @ B, atol=1e-11 * (1 + offset))
    assert_allclose((A @ B).sum(axis=0), 0, atol=1e-12 * (1 + offset) * N)


def test_float32_products_differ_from_float64_products_by_rounding_only() -> None:
    A = dense(np.float32).operator
    single, double = A @ B, A.product(B)
    assert single.dtype == double.dtype == np.float64
    assert 1e-9 < np.abs(single - double).max() < 1e-5


def test_centering_costs_one_product_for_the_means_and_only_when_they_are_needed() -> None:
    class Counted(Dense):
        calls = 0

        def _apply(self, B: np.ndarray, dtype: np.dtype) -> np.ndarray:
            Counted.calls += 1
            return super()._apply(B, dtype)

    A = Centered(Counted(K))
    A @ B
    assert Counted.calls == 1
    A.diagonal()
    A.columns(np.array([1]))
    A.expansion(B)
    assert Counted.calls == 2


@pytest.mark.parametrize("matrix", [K.astype(int), K > 0.5, K.astype(np.float16)])
def test_other_number_types_are_taken_as_float64(matrix: np.ndarray) -> None:
    assert Dense(matrix).dtype == np.float64
    assert_allclose(Dense(matrix) @ B, matrix.astype(np.float64) @ B, atol=1e-12)
    assert LowRank(matrix).dtype == np.float64


def test_shapes_that_are_no_operator_are_refused() -> None:
    with pytest.raises(ValueError, match=r"needs a square matrix, got shape \(83, 6\)"):
        Dense(F)
    with pytest.raises(ValueError, match=r"needs a factor of n rows and r columns, got shape \(83,\)"):
        LowRank(F[:, 0])
    with pytest.raises(ValueError, match="operators of 83 and 3 samples cannot be added; use the same samples"):
        SumOperator(Dense(K), Dense(np.eye(3)))


def test_arithmetic_with_other_objects_raises_type_error() -> None:
    A: Any = Dense(K)
    for wrong in (lambda: A + 1, lambda: A + K, lambda: A * A, lambda: "x" * A, lambda: B.T @ A):
        with pytest.raises(TypeError):
            wrong()


def test_a_sum_with_terms_weighted_differently_has_no_expansion_over_one_raw_kernel() -> None:
    for operator in (2 * Dense(K) + LowRank(F), Dense(K).centered() + LowRank(F)):
        with pytest.raises(ValueError, match="has no single expansion; wrap the sum"):
            operator.expansion(B)


def test_the_oracle_itself_centers_a_sum_like_a_sum_of_centered() -> None:
    one, other = dense(np.float64), low_rank(np.float64)
    assert_allclose(
        centered(one).matrix + centered(other).matrix, KernelCenterer().fit_transform(K + F @ F.T), atol=1e-12
    )


@pytest.mark.parametrize("kinds", ["bb", "bB", "Bb", "BB", "bd", "Db", "dD", "bBd"])
def test_stacked_factors_multiply_as_their_arrays_do(kinds):
    """Compare stacked factors with arrays. Factors are block-sparse (b) or dense (d), and centered if uppercase."""
    rng = np.random.default_rng(0)
    parts, arrays = [], []
    for kind in kinds:
        cluster = rng.integers(0, 2, 11)
        index = [np.flatnonzero(cluster == c) for c in (0, 1)]
        W = BlockRows(
            (11, 5), index, [slice(0, 2), slice(2, 5)], [rng.random((len(i), k)) for i, k in zip(index, (2, 3))]
        )
        mixing = rng.standard_normal((5, 4))
        part = BlockFactor(W, mixing) if kind in "bB" else DenseFactor(W.dense() @ mixing)
        array = W.dense() @ mixing
        parts.append(part.centered() if kind.isupper() else part)
        arrays.append(array - array.mean(axis=0) if kind.isupper() else array)
    stacked, whole = StackedFactor(parts), np.hstack(arrays)
    S, B = rng.standard_normal((whole.shape[1], 3)), rng.standard_normal((11, 3))
    assert_allclose(stacked.gram(), whole.T @ whole, atol=1e-12)
    assert_allclose(stacked.dot(S), whole @ S, atol=1e-12)
    assert_allclose(stacked.t_dot(B), whole.T @ B, atol=1e-12)
    assert_allclose(stacked.rows(slice(2, 9, 3)), whole[2:9:3], atol=1e-12)


@pytest.mark.parametrize("center", [True, False])
def test_weights_scale_both_sides_of_a_kernel_that_is_less_its_weighted_means(center):
    """Compare a weighted operator with the product R (I - 1 w'/sum w) A (I - w 1'/sum w) R for R = diag(w)^1/2."""
    rng = np.random.default_rng(0)
    F, w = rng.standard_normal((9, 4)), rng.random(9) + 0.1
    less = np.eye(9) - np.outer(np.ones(9), w) / w.sum() if center else np.eye(9)
    R = np.diag(np.sqrt(w))
    found = Dense(F @ F.T).weighted(w, center)
    assert_allclose(found @ np.eye(9), R @ less @ F @ F.T @ less.T @ R, atol=1e-12)


def test_sparse_rows_with_weights_less_their_mean_keep_their_weights_when_they_are_scaled():
    rng = np.random.default_rng(0)
    X, w, S = rng.standard_normal((9, 4)) * (rng.random((9, 4)) < 0.5), rng.random(9) + 0.1, rng.standard_normal((4, 2))
    rows = np.sqrt(w)[:, None] * (X - w @ X / w.sum())
    found = CenteredRows.of(csr_array(X), True, w).scaled(3.0)
    assert_allclose(found.dot(S), 3 * rows @ S, atol=1e-12)
    assert_allclose(found.rows(slice(2, 5)), 3 * rows[2:5], atol=1e-12)
    assert_allclose(found.gram(), 9 * rows.T @ rows, atol=1e-12)


def test_columns_that_are_constant_but_for_rounding_are_zero_once_centered_and_no_others_are():
    X = np.random.default_rng(0).standard_normal((300, 4))
    X[:, 1:3] = 1000 / 7
    X[::2, 1] = np.nextafter(1000 / 7, 1000)
    X[-1, 2] += 1e-4  # the first rows alone would look constant
    found = CenteredRows.of(X, True).rows(slice(None))
    assert not found[:, 1].any()
    assert_allclose(np.delete(found, 1, axis=1), np.delete(X - X.mean(axis=0), 1, axis=1), atol=1e-9)
    assert found[-1, 2] > 9e-5
