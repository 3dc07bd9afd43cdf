"""Check that rows of tables are aligned by index and rows of arrays by position."""

import logging
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import xarray as xr
from numpy.testing import assert_allclose
from sklearn.base import clone

import dmo
from dmo import KGHA, MultiSetCCA, MultiViewRidge, Nystrom, UserError, Views, impute_views
from dmo.selection import sweep
from dmo.space import permuted_components, view_importances

RNG = np.random.default_rng(0)
N = 40
A, B = RNG.standard_normal((N, 3)), RNG.standard_normal((N, 2))
LABELS = (np.c_[A[:, 0] + B[:, 0], A[:, 1] - B[:, 1], B[:, 0]] > 0).astype(int)
WEIGHTS = RNG.integers(1, 4, N).astype(float)
NAMES = pd.Index([f"s{i}" for i in range(N)])
OTHER = RNG.permutation(N)


def tables(index: Any = NAMES) -> dict[str, Any]:
    return {
        "a": pd.DataFrame(A, index=index).add_prefix("a"),
        "b": pd.DataFrame(B, index=index).add_prefix("b"),
        "y": pd.DataFrame(LABELS, index=index, columns=list("pqr")),
        "weights": pd.Series(WEIGHTS, index=index),
    }


def scores(given: dict[str, Any]) -> np.ndarray:
    X = {"a": given["a"], "b": given["b"]}
    model = MultiViewRidge().fit(X, given["y"], sample_weight=given["weights"])
    return model.decision_function({"a": A, "b": B})


@pytest.mark.parametrize("moved", ["b", "y", "weights"])
def test_fit_pairs_tables_by_their_index(moved, caplog):
    expected, given = scores(tables()), tables()
    assert not caplog.records
    given[moved] = given[moved].iloc[OTHER]
    with caplog.at_level(logging.INFO, "dmo"):
        assert_allclose(scores(given), expected, atol=1e-12)
    what = {"b": "view 'b'", "y": "y", "weights": "sample_weight"}[moved]
    (said,) = [record.message for record in caplog.records if "ordered" in record.message]
    assert said == f"{what}: its rows are ordered by the index of view 'a'"


def test_fit_pairs_tables_by_an_index_of_two_levels():
    given = tables(pd.MultiIndex.from_product([range(N // 2), list("ab")]))
    assert_allclose(scores(given | {"b": given["b"].iloc[OTHER]}), scores(tables()), atol=1e-12)


def test_fit_pairs_one_table_lists_and_weights_by_view():
    given, X = tables(), np.hstack([A, B])
    arrays = {"a": A, "b": B}
    expected = MultiViewRidge().fit(arrays, LABELS, sample_weight={"b": WEIGHTS}).decision_function(arrays)
    model = MultiViewRidge().fit([given["a"], given["b"].iloc[OTHER]], given["y"].iloc[::-1])
    assert_allclose(model.decision_function([A, B]), MultiViewRidge().fit([A, B], LABELS).decision_function([A, B]))
    model = MultiViewRidge().fit(tables_of(given), given["y"], sample_weight={"b": given["weights"].iloc[OTHER]})
    assert_allclose(model.decision_function(arrays), expected)
    names = pd.Series([["p"] * row[0] + ["q"] * row[1] + ["r"] for row in LABELS], index=NAMES)
    one, other = (MultiViewRidge().fit(pd.DataFrame(X, index=NAMES), y) for y in (names, names.iloc[OTHER]))
    assert_allclose(one.decision_function(X), other.decision_function(X))


def tables_of(given: dict[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in "ab"}


@pytest.mark.parametrize("form", [dict, Views, lambda views: list(views.values())], ids=["mapping", "Views", "list"])
def test_predictions_follow_the_order_of_the_first_table(form):
    given = tables()
    model = KGHA(n_components=2).fit(form(tables_of(given)), LABELS).set_output(transform="pandas")
    arrays = form({"a": A, "b": B})
    expected = np.asarray(model.transform(arrays))
    found = model.transform(form({"a": given["a"], "b": given["b"].iloc[OTHER]}))
    assert_allclose(found, expected, atol=1e-12)
    assert list(found.index) == list(NAMES)
    found = model.transform(form({"a": given["a"].iloc[OTHER], "b": given["b"]}))
    assert_allclose(found, expected[OTHER], atol=1e-12)
    assert list(found.index) == list(NAMES[OTHER])
    assert model.score(form(tables_of(given)), given["y"].iloc[OTHER]) == model.score(arrays, LABELS)


def test_searches_increments_and_imputation_pair_tables():
    given, grid = tables(), {"ridge": [0.1, 1.0]}
    X = {"a": given["a"], "b": given["b"].iloc[OTHER]}
    y, arrays = given["y"].iloc[::-1], {"a": A, "b": B}
    for search in (
        lambda X, Y: dmo.tune("ridge", X, Y, grid=grid, cv=2).tuning_,
        lambda X, Y: sweep(MultiViewRidge(), X, Y, grid, folds=2),
    ):
        found, expected = search(X, y), search(arrays, LABELS)
        assert [row["folds"] for row in found.table] == [row["folds"] for row in expected.table]
        assert_allclose(found.best_estimator.decision_function(X), expected.best_estimator.decision_function(arrays))
    low = MultiViewRidge(approximation=Nystrom(rank=10, precision="float64"))
    pairs = (X, y), (arrays, LABELS)
    found, expected = (clone(low).partial_fit(*pair).decision_function(arrays) for pair in pairs)
    assert_allclose(found, expected, atol=1e-9)
    lacking = np.where(np.arange(N)[:, None] < 5, np.nan, A)
    found = impute_views({"a": pd.DataFrame(lacking, index=NAMES), "b": X["b"]})
    assert_allclose(found["a"], impute_views({"a": lacking, "b": B})["a"])


def test_tables_of_xarray_are_paired_by_their_coordinates():
    def labeled(values: np.ndarray, dims: list[str]) -> xr.DataArray:
        return xr.DataArray(values, dims=dims, coords={"sample": NAMES})

    X = {"a": labeled(A, ["sample", "x"]), "b": labeled(B, ["sample", "z"])[OTHER]}
    model = MultiViewRidge().fit(X, labeled(LABELS, ["sample", "label"])[::-1])
    expected = MultiViewRidge().fit({"a": A, "b": B}, LABELS)
    assert_allclose(model.decision_function({"a": A, "b": B}), expected.decision_function({"a": A, "b": B}))


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (NAMES[[0, *range(N - 1)]], "the same labels, repeated and in another order"),
        (pd.Index([f"s{i + 1}" for i in range(N)]), "only some labels in common"),
    ],
    ids=["repeated", "shifted"],
)
def test_indices_that_do_not_pair_rows_are_rejected(index, words):
    given, first = tables(), tables(index if words.startswith("the same") else NAMES)
    other = first["b"].iloc[::-1] if words.startswith("the same") else given["b"].set_axis(index)
    fix = rf"{words}, .*pass the same samples with unique labels, or reset_index\(drop=True\) of both"
    with pytest.raises(UserError, match=rf"the indices of view 'a' and view 'b' have {fix}"):
        MultiViewRidge().fit({"a": first["a"], "b": other}, LABELS)
    with pytest.raises(UserError, match=rf"the indices of X and y have {fix}"):
        MultiViewRidge().fit(first["a"], pd.DataFrame(LABELS, index=other.index))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (NAMES, pd.RangeIndex(N)),  # one table has a default index
        (OTHER + 3, pd.RangeIndex(N)),  # one table is a subset with its old index
        (NAMES, pd.Index([f"t{i}" for i in range(N)])),  # the tables have different identifiers
        # The indices have different numbers of levels.
        (pd.MultiIndex.from_product([range(N // 2), list("ab")]), NAMES),
        (NAMES, pd.MultiIndex.from_product([range(N // 2), list("ab")])),
        (pd.Index(["s"] * N), pd.Index(["s"] * N)),  # the indices are equal but not unique
    ],
    ids=["counted", "part", "disjoint", "levels", "other levels", "equal"],
)
def test_tables_with_other_labels_are_paired_by_position(first, second):
    given, other = tables(first), tables(second)
    mixed = {"a": given["a"], "b": other["b"], "y": other["y"], "weights": given["weights"]}
    assert_allclose(scores(mixed), scores(tables()), atol=1e-12)


def test_tables_without_an_index_are_paired_by_position():
    given = tables(pd.RangeIndex(N))
    mixed = given | {"a": given["a"].iloc[OTHER], "b": pl.DataFrame(B[OTHER]), "y": LABELS[OTHER]}
    mixed["weights"] = given["weights"].to_numpy()[OTHER]
    expected = MultiViewRidge().fit({"a": A[OTHER], "b": B[OTHER]}, LABELS[OTHER], sample_weight=WEIGHTS[OTHER])
    assert_allclose(scores(mixed), expected.decision_function({"a": A, "b": B}), atol=1e-9)


def test_an_index_that_only_counts_rows_pairs_them_with_a_warning():
    given = tables(pd.RangeIndex(N))
    moved = given | {"y": given["y"].iloc[OTHER]}
    with pytest.warns(UserWarning, match=r"rows of y are paired with view 'a' by their indices, .*reset_index") as said:
        found = scores(moved)
    assert [warning.filename for warning in said] == [__file__]
    assert_allclose(found, scores(tables()), atol=1e-12)
    by_position = given | {"y": moved["y"].reset_index(drop=True)}  # the warning suggests this fix
    assert not np.allclose(scores(by_position), found)


@pytest.mark.parametrize("index", [pd.RangeIndex(N), pd.Index(OTHER)], ids=["counts", "numbers"])
def test_permutation_tests_of_tables_permute_rows(index):
    given = tables(index)
    X, arrays = tables_of(given), {"a": A, "b": B}
    for pair in ((None, None), (given["y"], LABELS)):
        model = MultiSetCCA("linear") if pair[0] is None else KGHA("linear", n_components=2)
        found, expected = (
            permuted_components(model, views, y, n_permutations=3) for views, y in zip((X, arrays), pair, strict=True)
        )
        assert_allclose(found.permuted, expected.permuted)
    model = MultiViewRidge().fit(X, LABELS)
    found, expected = view_importances(model, X, given["y"]), view_importances(model, arrays, LABELS)
    assert_allclose([found[name] for name in "ab"], [expected[name] for name in "ab"])
