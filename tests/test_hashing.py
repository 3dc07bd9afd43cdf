"""Hashes of rows and fingerprints of row sources."""

import numpy as np
import pytest
import scipy.sparse

from dmo import hashing
from dmo.blocks import PartialRows, Subset
from dmo.hashing import mixed, row_hashes

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
    counts = np.array([[2**53], [2**53 + 1]])  # one number as float64
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
