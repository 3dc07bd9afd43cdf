"""Test the label balance of multilabel cross-validators and their use in scikit-learn's tools."""

import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, StratifiedKFold, cross_val_score

from dmo import MultiViewRidge, UserError
from dmo.model_selection import MultilabelStratifiedKFold, MultilabelStratifiedShuffleSplit

rng = np.random.default_rng(0)
Z = rng.standard_normal((600, 3))
Y = (Z @ rng.standard_normal((3, 12)) > np.linspace(1.0, 5.0, 12)).astype(np.uint8)
PAIRS = np.einsum("ia,ib->iab", Y, Y)[:, *np.triu_indices(12, 1)]


def unevenness(splitter, counted) -> float:
    parts = [counted[test].sum(axis=0) for _, test in splitter.split(Y, Y)]
    return float(np.std(parts, axis=0).mean())


def test_folds_part_the_samples_and_labels_evenly_and_pairs_where_they_are_asked_for() -> None:
    once, pairs = MultilabelStratifiedKFold(5), MultilabelStratifiedKFold(5, order=2)
    for splitter in (once, pairs):
        found = list(splitter.split(None, Y))
        np.testing.assert_array_equal(np.sort(np.concatenate([test for _, test in found])), np.arange(600))
        assert all(len(train) + len(test) == 600 and not set(train) & set(test) for train, test in found)
    by_chance = KFold(5, shuffle=True, random_state=0)
    assert unevenness(once, Y) < unevenness(by_chance, Y) / 4
    assert unevenness(pairs, PAIRS) < unevenness(once, PAIRS) / 2 < unevenness(by_chance, PAIRS) / 2


def test_divisions_have_the_sizes_asked_for_and_differ_from_each_other() -> None:
    splitter = MultilabelStratifiedShuffleSplit(3, test_size=60, train_size=0.5)
    found = list(splitter.split({"a": Z, "b": Z}, Y))
    for train, test in found:
        assert abs(len(test) - 60) <= 6
        assert abs(len(train) - 300) <= 20
        assert not set(train) & set(test)
        often = Y.sum(axis=0) >= 20
        np.testing.assert_allclose(Y[test].sum(axis=0)[often], 0.1 * Y.sum(axis=0)[often], atol=2.5)
    assert any(set(found[0][1]) != set(test) for _, test in found[1:])
    again = list(clone(splitter, safe=False).split(None, Y))
    assert all((a == b).all() for one, other in zip(found, again, strict=True) for a, b in zip(one, other, strict=True))


def test_labels_come_in_every_form_that_fit_takes() -> None:
    expected = [test for _, test in MultilabelStratifiedKFold(3).split(None, Y)]
    lists = [tuple(f"{label:02d}" for label in np.flatnonzero(row)) for row in Y]
    for given in (Y.tolist(), scipy.sparse.csr_matrix(Y), np.where(Y, 1.0, np.nan), lists):
        found = [test for _, test in MultilabelStratifiedKFold(3).split(None, given)]
        assert all((a == b).all() for a, b in zip(expected, found, strict=True))
    classes = np.array(["land", "sea", "sky"])[rng.choice(3, 200, p=[0.1, 0.3, 0.6])]
    ours = [
        np.unique(classes[test], return_counts=True)[1] for _, test in MultilabelStratifiedKFold(4).split(None, classes)
    ]
    theirs = [np.unique(classes[test], return_counts=True)[1] for _, test in StratifiedKFold(4).split(classes, classes)]
    np.testing.assert_array_equal(np.sort(ours, axis=0), np.sort(theirs, axis=0))


def test_scikit_learn_s_tools_take_them() -> None:
    assert len(cross_val_score(Ridge(), Z, Y, cv=MultilabelStratifiedKFold(3))) == 3
    search = GridSearchCV(MultiViewRidge("linear"), {"ridge": [0.1, 1.0]}, cv=MultilabelStratifiedShuffleSplit(2))
    assert search.fit(Z, Y).n_splits_ == 2


@pytest.mark.parametrize(
    ("splitter", "y", "message"),
    [
        (MultilabelStratifiedKFold(3), None, "pass y"),
        (MultilabelStratifiedKFold(3), Z, r"use sklearn\.model_selection\.KFold"),
        (MultilabelStratifiedKFold(3), Y[:9], "X has 600 samples, and y has 9"),
        (MultilabelStratifiedKFold(3, order=3), Y, "order = 3"),
        (MultilabelStratifiedKFold(601), Y, "folds = 601 for 600 samples"),
        (MultilabelStratifiedShuffleSplit(2, test_size=1.5), Y, "test_size = 1.5 of 600 samples"),
        (MultilabelStratifiedShuffleSplit(2, test_size=0.6, train_size=0.6), Y, "sum must be at most 1"),
    ],
)
def test_unsplittable_labels_raise(splitter, y, message) -> None:
    with pytest.raises(UserError, match=message):
        list(splitter.split(Z, y))


@pytest.mark.parametrize("splitter", [MultilabelStratifiedKFold(3), MultilabelStratifiedShuffleSplit(3)])
def test_splitters_reject_groups(splitter) -> None:
    groups, model = np.arange(600) // 2, MultiViewRidge("linear")
    with pytest.raises(UserError, match=r"Multilabel.* groups were passed; pass groups=None, or .*GroupKFold"):
        cross_val_score(model, Z, Y, groups=groups, cv=splitter, error_score="raise")
    for train, test in GroupKFold(3).split(Z, Y, groups):  # the error message recommends GroupKFold
        assert not set(groups[train]) & set(groups[test])
