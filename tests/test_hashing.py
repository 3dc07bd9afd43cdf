"""Check that different values, row sources and rows have different digests or hashes."""

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse

from dmo import hashing
from dmo.blocks import PartialRows, Subset
from dmo.hashing import digest, fingerprint, mixed, row_hashes
from dmo.inputs.views import FiniteRows, KeptRows
from dmo.stores import FeatureStore, ViewSpec, create_features, open_features

N = 12
A = np.arange(N * 2.0).reshape(N, 2)


@pytest.fixture
def store(tmp_path: Path) -> FeatureStore:
    writer = create_features(tmp_path / "f.zarr", N, {name: ViewSpec(2) for name in "ab"}, block=5)
    for name, block in writer.missing():
        writer.write(name, block, (A if name == "a" else -A)[writer.rows(block)])
    writer.finish()
    return open_features(tmp_path / "f.zarr")


def differ(name: Callable[[Any], str], contents: Iterable[Any]) -> bool:
    names = [name(one) for one in contents]
    return len(set(names)) == len(names)


PARTS = [
    np.arange(5),
    np.arange(1, 6),
    np.arange(5)[::-1],
    np.array([0, 0, 1, 2, 3]),
    np.array([0, 2, 4]),
    np.arange(N),
]


def test_fingerprint_distinguishes_parts_of_a_stored_view(store):
    views = [store.views["a"], store.views["b"]]
    parts = [Subset(view, index) for view in views for index in PARTS]
    nested = [Subset(Subset(views[0], np.arange(6, N)), index) for index in PARTS[:5]]
    assert differ(fingerprint, [*views, *parts, *nested])
    for part in parts:
        assert fingerprint(part) == fingerprint(Subset(part.source, part.index.astype(np.int32)))


def test_fingerprint_of_kept_rows_is_that_of_their_source(store):
    view = store.views["a"]
    kept = KeptRows.held({"a": view})["a"]
    assert kept.kept is not None
    assert fingerprint(kept) == fingerprint(view)
    for index in PARTS:
        assert fingerprint(Subset(kept, index)) == fingerprint(Subset(view, index))


def test_fingerprint_of_checked_rows_follows_their_values():
    checked = [FiniteRows(da.from_array(X), "a") for X in (A, -A)]
    assert differ(fingerprint, checked)
    assert fingerprint(checked[0]) == fingerprint(A)


@pytest.mark.parametrize("container", [np.asarray, scipy.sparse.csr_array], ids=["dense", "sparse"])
def test_fingerprint_of_rows_in_memory_follows_their_values(container):
    changed = A.copy()
    changed[-1, -1] = 0.0
    parts = [Subset(container(A), index) for index in PARTS]
    others = [container(A).astype(np.float32), container(changed), container(A[:, :1]), container(A[::-1])]
    assert differ(fingerprint, [*parts, *others])
    for part in parts:
        assert fingerprint(part) == fingerprint(container(A[np.asarray(part.index)]))


def test_fingerprint_reads_every_block(monkeypatch):
    monkeypatch.setattr("dmo.hashing._BLOCK", 5)
    sources = [A]
    for row in range(N):
        sources.append(A.copy())
        sources[-1][row] = -1.0
    assert differ(fingerprint, sources)


VALUES = [
    None,
    True,
    1,
    1.0,
    "1",
    "None",
    [1],
    [[1]],
    [1, 2],
    [[1], 2],
    {"a": 1},
    {"a": 2},
    {"b": 1},
    np.array([1, 2]),
    np.array([1, 2], np.int32),
    np.array([[1, 2]]),
    np.array([[1], [2]]),
    np.array([2, 1]),
    scipy.sparse.csr_array([[1, 0], [0, 2]]),
    scipy.sparse.csr_array([[1, 2]]),
    scipy.sparse.csr_array([[1, 2, 0]]),
]


def test_digest_distinguishes_values_types_and_nesting():
    assert differ(digest, VALUES)
    pairs = list(itertools.permutations(range(len(VALUES)), 2))
    assert len({digest(VALUES[i], VALUES[j]) for i, j in pairs}) == len(pairs)
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest(np.asfortranarray(A)) == digest(A)
    assert digest(np.int64(3)) == digest(3)
    unsorted = scipy.sparse.csr_array(([2.0, 1.0], [1, 0], [0, 2]), shape=(1, 2))
    assert digest(unsorted) == digest(scipy.sparse.csr_array([[1.0, 2.0]]))
    with pytest.raises(TypeError, match="cannot compute a digest of a object"):
        digest(object())


X = np.random.default_rng(0).integers(-3, 4, (300, 7)) / 4.0
X[:, 1] = np.arange(300)


def test_row_hashes_are_those_of_values_in_any_container(monkeypatch):
    plain = row_hashes(X)
    assert len(np.unique(plain)) == len(X)
    for other in (X.astype(np.float32), np.asfortranarray(X), scipy.sparse.csr_array(X), X.astype(">f8")):
        np.testing.assert_array_equal(row_hashes(other), plain)
    np.testing.assert_array_equal(row_hashes(np.where(X == 0, -0.0, X)), plain)
    np.testing.assert_array_equal(row_hashes(Subset(X, np.arange(300)[::-1])), plain[::-1])
    monkeypatch.setattr(hashing, "_STRIP", 10)
    monkeypatch.setattr(hashing, "_BLOCK", 7)
    np.testing.assert_array_equal(row_hashes(X), plain)


def test_row_hashes_tell_rows_with_one_changed_or_moved_value_apart():
    plain = row_hashes(X)
    for column in range(7):
        changed = X.copy()
        changed[:, column] = np.nextafter(changed[:, column].astype(np.float32), np.float32(np.inf))
        assert (row_hashes(changed) != plain).all()
    assert (row_hashes(X[:, ::-1]) != plain)[X[:, 0] != X[:, 6]].all()


def test_row_hashes_compare_as_float32_unless_exact():
    near = X + 1e-9
    moved = near.astype(np.float32) != X
    np.testing.assert_array_equal(row_hashes(near) == row_hashes(X), ~moved.any(axis=1))
    assert (row_hashes(near, exact=True) != row_hashes(X, exact=True)).all()
    counts = np.array([[2**53], [2**53 + 1]])  # both integers are equal in float64
    assert len(np.unique(row_hashes(counts, exact=True))) == 2


@pytest.mark.filterwarnings("error")
def test_row_hashes_take_missing_values_and_rows_and_large_numbers():
    gaps = X.copy()
    gaps[5, 2], gaps[6, 2] = np.nan, -np.nan
    gaps[7, 2] = 1e300
    found = row_hashes(gaps)
    np.testing.assert_array_equal(found == row_hashes(X), ~np.isin(np.arange(300), (5, 6, 7)))
    present = np.arange(300) % 3 > 0
    np.testing.assert_array_equal(row_hashes(PartialRows(X, present)), np.where(present, row_hashes(X), 0))


def test_mixed_is_a_bijection_that_keeps_zero():
    found = mixed(np.arange(100_000))
    assert found[0] == 0
    assert len(np.unique(found)) == 100_000
    assert len(np.unique(found % 5)) == 5
