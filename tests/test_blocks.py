"""Test row sources of every container, subsets, fingerprints, and the linear algebra of n x k blocks."""

import pickle
from dataclasses import dataclass, field
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import dmo.blocks
from dmo.blocks import (
    InOrder,
    RowMask,
    Subset,
    alike,
    canonical,
    centered_rows,
    column_sums,
    compressed,
    first_entry,
    iterate,
    joined_columns,
    nonzero_count,
    reads_sparse,
    row_blocks,
    row_numbers,
    row_ranks,
    rows,
    scaled_rows,
    scatter,
    shifted,
    spaced_rows,
    squared_norms,
    stored_columns,
    stored_rows,
    stored_values,
    strips,
    transposed,
    unknown_rows,
    weighted_median,
    with_stored,
    zeroed_rows,
)
from dmo.hashing import fingerprint
from dmo.linalg.tall import gram, orthonormalize

RNG = np.random.default_rng(0)
A = (RNG.random((50, 4)) * (RNG.random((50, 4)) < 0.5)).astype(np.float32)


def as_zarr(array: np.ndarray) -> zarr.Array:
    store = zarr.create_array(zarr.storage.MemoryStore(), shape=array.shape, chunks=(8, 3), dtype=array.dtype)
    store[:] = array
    return store


CONTAINERS = {
    "numpy": lambda: A,
    "fortran": lambda: np.asfortranarray(A),
    "csr-array": lambda: scipy.sparse.csr_array(A),
    "csr-matrix": lambda: scipy.sparse.csr_matrix(A),
    "dask": lambda: da.from_array(A, chunks=(7, 2)),
    "dask-of-csr": lambda: da.from_array(A, chunks=(7, 4)).map_blocks(scipy.sparse.csr_array),
    "zarr": lambda: as_zarr(A),
    "subset": lambda: Subset(as_zarr(np.vstack([A[::-1], A])), np.arange(50, 100)),
    "subset-reversed": lambda: Subset(as_zarr(A[::-1]), np.arange(50)[::-1]),
}


def dense(block: Any) -> np.ndarray:
    return block.toarray() if scipy.sparse.issparse(block) else block


@dataclass
class Slices:
    """Row source that supports only slices and records the requested slices."""

    array: np.ndarray
    read: list[slice] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    def __getitem__(self, where: slice) -> np.ndarray:
        assert isinstance(where, slice)
        self.read.append(where)
        return self.array[where]


@pytest.mark.parametrize("name", CONTAINERS)
@pytest.mark.parametrize("where", [None, slice(0, 50), slice(3, 20), slice(45, 99), slice(5, 5)])
def test_rows_are_the_same_from_every_container(name: str, where: slice | None) -> None:
    block = rows(CONTAINERS[name](), where)
    assert isinstance(block, np.ndarray | scipy.sparse.csr_array)
    assert scipy.sparse.issparse(block) == ("csr" in name)
    assert block.dtype == np.float32
    np.testing.assert_array_equal(dense(block), A if where is None else A[where])


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_subset_of_every_container_gives_its_rows_in_the_order_asked_for(name: str) -> None:
    index = np.array([40, 3, 3, 49, 0, 17, 18, 19, 2])
    subset = Subset(CONTAINERS[name](), index)
    assert subset.shape == (9, 4)
    assert len(subset) == 9
    for where in (slice(None), slice(1, 6), slice(5, 8), slice(3, 3)):
        np.testing.assert_array_equal(dense(rows(subset, where)), A[index[where]])
    np.testing.assert_array_equal(dense(rows(Subset(subset, np.array([8, 0])))), A[[2, 40]])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 4999), min_size=1, max_size=60))
def test_a_subset_reads_each_chunk_it_touches_once_and_no_other(index: list[int]) -> None:
    source = Slices(np.arange(10000).reshape(5000, 2))
    picked = np.array(index)
    np.testing.assert_array_equal(rows(Subset(source, picked)), source.array[picked])
    assert len(source.read) <= len(np.unique(picked // 1024))
    assert sum(part.stop - part.start for part in source.read) <= min(1024 * len(source.read), np.ptp(picked) + 1)


def test_a_dask_array_persisted_on_a_cluster_is_read(client: Any) -> None:
    with client.as_current():
        held = client.persist(da.from_array(A, chunks=(7, 4)))
        np.testing.assert_array_equal(rows(held, slice(3, 30)), A[3:30])


@pytest.mark.parametrize(
    ("index", "sentence"),
    [
        ([0, 50], "row indices 0 to 50; they must be in 0 to 49"),
        ([-1, 3], "row indices -1 to 3; they must be in 0 to 49"),
        (np.ones(50, bool), "needs a list of row indices, got bool"),
        ([[1, 2]], r"got int64 of shape \(1, 2\)"),
        ([0.5], "got float64"),
    ],
)
def test_a_subset_rejects_invalid_row_indices(index: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Subset(A, index)


def test_an_empty_subset_has_no_rows() -> None:
    assert rows(Subset(as_zarr(A), [])).shape == (0, 4)


@given(st.integers(0, 300), st.integers(1, 100))
def test_row_blocks_cover_every_row_once_in_order(n: int, size: int) -> None:
    blocks = row_blocks(n, size)
    assert [i for where in blocks for i in range(n)[where]] == list(range(n))
    assert all(where.stop - where.start <= size for where in blocks)


def test_row_blocks_refuse_a_size_below_one() -> None:
    with pytest.raises(ValueError, match="block size must be at least 1, got 0"):
        row_blocks(5, 0)


def test_iterate_gives_all_rows_with_their_slices() -> None:
    parts = list(iterate(CONTAINERS["zarr"](), 9))
    assert [where for where, _ in parts] == row_blocks(50, 9)
    np.testing.assert_array_equal(np.concatenate([block for _, block in parts]), A)


def test_a_fingerprint_knows_values_shape_and_type_but_not_the_container() -> None:
    same = {fingerprint(CONTAINERS[name]()) for name in ("numpy", "fortran", "dask", "zarr", "subset")}
    sparse = {fingerprint(CONTAINERS[name]()) for name in ("csr-array", "csr-matrix", "dask-of-csr")}
    changed = A.copy()
    changed[49, 3] += 1e-6
    others = {fingerprint(array) for array in (changed, A[:49], A.reshape(100, 2), A.astype(np.float64), A[::-1])}
    assert len(same) == len(sparse) == 1
    assert len(others) == 5
    assert not others & same


def test_a_fingerprint_ignores_the_order_in_which_sparse_entries_are_kept_and_leaves_it_alone() -> None:
    shuffled = scipy.sparse.csr_array((np.array([2.0, 1.0]), np.array([3, 0]), np.array([0, 2])), (1, 4))
    assert fingerprint(shuffled) == fingerprint(scipy.sparse.csr_array(np.array([[1.0, 0, 0, 2]])))
    np.testing.assert_array_equal(shuffled.indices, [3, 0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gram_sums_in_float64_whatever_the_blocks(dtype: type) -> None:
    F, G = RNG.standard_normal((200, 5)).astype(dtype), RNG.standard_normal((200, 3)).astype(dtype)
    exact = F.astype(np.float64).T @ G.astype(np.float64)
    for size in (1, 7, 8192):
        assert gram(F, G, size).dtype == np.float64
        np.testing.assert_allclose(gram(F, G, size), exact, atol=1e-12 if dtype == np.float64 else 2e-5)
    np.testing.assert_array_equal(gram(F), gram(F, F))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(0, 12), st.integers(0, 6), st.integers(0, 5), st.integers(0, 99))
def test_orthonormalize_spans_the_columns_outside_the_basis(n: int, k: int, rank: int, q: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    B = rng.standard_normal((n, min(n, rank))) @ rng.standard_normal((min(n, rank), k)) * 10.0 ** rng.integers(-8, 8)
    there = np.linalg.qr(rng.standard_normal((n, min(n, q))))[0]
    Q = orthonormalize(B, there)
    whole = np.hstack([there, Q])
    np.testing.assert_allclose(whole.T @ whole, np.eye(whole.shape[1]), atol=1e-12)
    assert np.linalg.norm(B - whole @ (whole.T @ B)) <= 1e-9 * max(np.linalg.norm(B), 1e-300)
    assert Q.shape[1] <= np.linalg.matrix_rank(B) if B.size else Q.shape[1] == 0


@pytest.mark.parametrize("apart", [1.0, 1e-2, 1e-4, 1e-5, 1e-7])
def test_orthonormalize_has_all_digits_however_near_the_columns_are(apart: float) -> None:
    rng = np.random.default_rng(0)
    there, B = np.linalg.qr(rng.normal(size=(300, 5)))[0], rng.normal(size=(300, 8))
    B = np.hstack([B, B @ rng.normal(size=(8, 8)) + apart * rng.normal(size=(300, 8))]) * np.logspace(1, -1, 16)
    Q = orthonormalize(B, there)
    assert Q.shape[1] == 16
    np.testing.assert_allclose(np.hstack([there, Q]).T @ np.hstack([there, Q]), np.eye(21), atol=1e-13)
    outside = B - there @ (there.T @ B)
    np.testing.assert_allclose(Q @ (Q.T @ outside), outside, atol=1e-12 * np.abs(B).max())


def test_orthonormalize_drops_what_is_short_beside_the_longest_column() -> None:
    """A column of 400 ones has norm 20, and the other column has norm 1 before scaling."""
    other = np.tile([1.0, -1.0], 200) / 20
    for length, rank in ((10e-9, 1), (30e-9, 2)):
        assert orthonormalize(np.column_stack([np.ones(400), length * other]), tol=1e-9).shape[1] == rank


def test_orthonormalize_keeps_a_direction_nearly_in_the_basis() -> None:
    there, _ = np.linalg.qr(RNG.standard_normal((100, 3)))
    new = scipy.linalg.null_space(there.T)[:, :1]
    Q = orthonormalize(there @ np.ones((3, 1)) + 1e-7 * new, there)
    assert abs(float(Q[:, 0] @ new[:, 0])) == pytest.approx(1, abs=1e-8)
    assert np.abs(there.T @ Q).max() < 1e-14


@pytest.mark.parametrize("share", [1.0, 0.4, 0.001])
def test_many_rising_row_numbers_read_as_an_array_and_take_a_bit_of_memory_each(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dmo.blocks, "_MANY", 10)
    rng = np.random.default_rng(0)
    index = np.flatnonzero(rng.random(30_000) < share)
    held: Any = row_numbers(index)
    assert isinstance(held, RowMask)
    assert len(pickle.dumps(held)) < 30_000 / 8 + 30_000 / 64 + 1000
    assert_array_equal(np.asarray(held), index)
    for _ in range(20):
        start, stop = np.sort(rng.integers(0, len(index) + 1, 2))
        assert_array_equal(held[start:stop], index[start:stop])
        some = rng.integers(0, len(index), 7)
        assert_array_equal(held[some], index[some])
    for where in (slice(0, 0), slice(10**9, None), slice(None, None, 3), slice(None, None, -1), np.zeros(0, np.intp)):
        assert_array_equal(held[where], index[where])
    assert not isinstance(row_numbers(index[::-1]), RowMask)


def test_a_subset_read_in_order_looks_at_its_row_numbers_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dmo.blocks, "_MANY", 10)
    index, looked = np.flatnonzero(np.arange(40_000) % 10), []
    read = RowMask.__getitem__

    def counted(self: RowMask, where: Any) -> np.ndarray:
        found = read(self, where)
        looked.append(len(found))
        return found

    monkeypatch.setattr(RowMask, "__getitem__", counted)
    X = np.arange(40_000.0)[:, None]
    source = InOrder(Subset(zarr.array(X, chunks=(100, 1)), index))
    found = [source[where] for where in row_blocks(len(index), 64)]
    assert_array_equal(np.concatenate(found), X[index])
    assert sum(looked) < 10 * len(index)  # scanning all later indices for every chunk would need more than this number


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 4)), min_size=1, max_size=12))
def test_weighted_median_is_that_of_repeated_values(pairs: list[tuple[int, int]]) -> None:
    values, weights = (np.array(part, float) for part in zip(*pairs, strict=True))
    if weights.any():
        expected = np.median(np.repeat(values, weights.astype(int)))
        assert weighted_median(values, weights) == expected
        assert weighted_median(values, weights / 8) == expected


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.integers(1, 30))
def test_spaced_rows_are_those_of_repeated_rows(weights: list[int], most: int) -> None:
    repeated = np.repeat(np.arange(len(weights)), weights)
    if len(repeated):
        index, often = spaced_rows(len(weights), most, np.array(weights, float))
        plain, once = spaced_rows(len(repeated), most)
        assert once is None
        assert len(plain) == min(most, len(repeated))
        assert_array_equal(np.repeat(index, often), repeated[plain])


def test_spaced_rows_keep_fractional_weights() -> None:
    index, often = spaced_rows(9, 3, np.linspace(0.5, 0.9, 9))
    assert_array_equal(index, [0, 4, 8])
    np.testing.assert_allclose(often, [0.5, 0.7, 0.9])


@pytest.mark.parametrize("kind", [bool, np.uint8, np.int8, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (1, 1), (50, 7)])
def test_arrays_are_compressed_as_scipy_does(kind: type, shape: tuple[int, int]) -> None:
    values = np.random.default_rng(0).integers(-1, 2, shape).astype(kind)
    if kind in (np.float32, np.float64):
        values[::3] = np.nan
    for form in (values, np.asfortranarray(values), values[::-1]):
        found, expected = compressed(form), scipy.sparse.csr_array(form)
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        np.testing.assert_array_equal(found.indptr, expected.indptr)
        np.testing.assert_array_equal(found.indices, expected.indices)
        np.testing.assert_array_equal(found.data, expected.data)


FACTORS = np.linspace(-1, 1, len(A))
OPERATIONS = {
    "alike": lambda X: alike(A, X),
    "canonical": canonical,
    "columns": lambda X: with_stored(X, stored_values(X) * np.arange(4.0)[stored_columns(X)]),
    "column sums": lambda X: column_sums(X, stored_values(X).astype(float)),
    "first entry": lambda X: np.array(first_entry(X, stored_values(X) > 0.9)),
    "joined": lambda X: joined_columns([X, X]),
    "nonzero": nonzero_count,
    "norms": squared_norms,
    "rows": lambda X: with_stored(X, stored_values(X) * FACTORS[stored_rows(X)]),
    "scaled": lambda X: scaled_rows(X, FACTORS),
    "scatter": scatter,
    "strips": lambda X: np.concatenate([dense(X[where]) for where in strips(X, 7)]),
    "transposed": transposed,
    "unknown": lambda X: unknown_rows(X, np.array([3, 8])),
    "zeroed": lambda X: zeroed_rows(X, FACTORS > 0),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_agrees_for_dense_and_sparse_rows(name):
    array, csr = OPERATIONS[name](A), OPERATIONS[name](scipy.sparse.csr_array(A))
    if np.ndim(array) == 2:
        assert scipy.sparse.issparse(csr) or name == "strips"
    np.testing.assert_allclose(dense(csr), array, rtol=1e-6, atol=1e-6)


def test_shifted_returns_what_csr_products_must_subtract():
    mean = A.mean(axis=0)
    (array, nothing), (csr, rest) = shifted(A, mean), shifted(scipy.sparse.csr_array(A), mean)
    assert nothing is None
    np.testing.assert_allclose(csr @ np.eye(4) - rest, array, atol=1e-6)


def test_centered_ranks_agree_up_to_the_rank_of_zeros():
    signed = A - 0.5 * (A > 0.5)
    array, _ = centered_rows(row_ranks(signed))
    csr, means = centered_rows(row_ranks(scipy.sparse.csr_array(signed)))
    np.testing.assert_allclose(csr.toarray() - means[:, None], array, atol=1e-12)


@pytest.mark.parametrize("name", CONTAINERS)
def test_reads_sparse_recognizes_containers(name):
    assert reads_sparse(CONTAINERS[name]()) == ("csr" in name)
