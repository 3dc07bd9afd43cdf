"""Check that sums, differences, mixtures and scores of moments equal the results computed from rows."""

import itertools

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.linear_model import Ridge

from dmo import KGHA, MLSI, MORP, MultiViewRidge, Nystrom
from dmo.decoders import Scores
from dmo.fit.moments import LABELS, Moments, pooled
from dmo.fit.ridge_solves import ridge

RNG = np.random.default_rng(0)
F = {"a": RNG.standard_normal((90, 4)) + 1, "b": RNG.standard_normal((90, 3)), LABELS: RNG.random((90, 2))}
S = np.hstack(list(F.values()))


def part(where):
    return {name: X[where] for name, X in F.items()}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 90), max_size=6))
def test_any_cut_into_blocks_gives_the_same_moments(cuts):
    edges = sorted({0, 90, *cuts})
    moments = Moments.collect(part(slice(a, b)) for a, b in itertools.pairwise(edges))
    assert moments.n == 90
    np.testing.assert_allclose(moments.gram, S.T @ S, rtol=1e-12)
    np.testing.assert_allclose(moments.sums, S.sum(axis=0), rtol=1e-12)


def test_sums_and_differences():
    whole, first = Moments.of(part(slice(None))), Moments.of(part(slice(0, 30)))
    rest = whole - first
    np.testing.assert_allclose(rest.gram, S[30:].T @ S[30:], rtol=1e-10)
    np.testing.assert_allclose((first + rest).gram, whole.gram, rtol=1e-12)
    with pytest.raises(ValueError, match="cannot be subtracted from"):
        first - whole


def test_centered_is_the_gram_of_centered_columns():
    C = S - S.mean(axis=0)
    np.testing.assert_allclose(Moments.of(part(slice(None))).centered().gram, C.T @ C, atol=1e-10)


def test_wide_groups_and_those_of_other_precisions_are_multiplied_by_panels_of_columns():
    """Multiply dense and sparse groups in panels of columns, in the higher precision of the two groups."""
    rng = np.random.default_rng(1)
    groups = {
        "wide": rng.standard_normal((60, 1100)).astype(np.float32),
        "few": rng.standard_normal((60, 2)).astype(np.float32),
        "sparse": scipy.sparse.csr_array((rng.random((60, 5)) < 0.3).astype(np.float32)),
        "bytes": (rng.random((60, 3)) < 0.5).astype(np.uint8),
        "double": rng.standard_normal((60, 4)),
        LABELS: rng.integers(0, 1 << 40, (60, 2)),
    }
    columns = np.hstack([X.toarray() if scipy.sparse.issparse(X) else X for X in groups.values()]).astype(np.float64)
    moments = Moments.of(groups).absorb(groups)
    tolerance = 1e-5 * np.outer(np.linalg.norm(columns, axis=0), np.linalg.norm(columns, axis=0))
    assert (np.abs(moments.gram - 2 * columns.T @ columns) <= tolerance).all()
    assert (moments.gram == moments.gram.T).all()
    np.testing.assert_allclose(moments.gram[-6:, -6:], 2 * columns[:, -6:].T @ columns[:, -6:], rtol=1e-12)
    np.testing.assert_allclose(moments.sums, 2 * columns.sum(axis=0), atol=1e-3, rtol=1e-6)


def test_sparse_groups_never_become_dense_and_give_the_same():
    sparse = {**part(slice(None)), "a": scipy.sparse.csr_array(F["a"]), "b": scipy.sparse.csr_array(F["b"])}
    np.testing.assert_allclose(Moments.of(sparse).gram, S.T @ S, rtol=1e-12)
    np.testing.assert_allclose(Moments.of(sparse).sums, S.sum(axis=0), rtol=1e-12)


def test_mixed_is_the_gram_after_mixing():
    T = RNG.standard_normal((4, 2))
    mixed = Moments.of(part(slice(None))).mixed({"a": T})
    stacked = np.hstack([F["a"] @ T, F["b"], F[LABELS]])
    np.testing.assert_allclose(mixed.gram, stacked.T @ stacked, rtol=1e-10)
    np.testing.assert_allclose(mixed.sums, stacked.sum(axis=0), rtol=1e-10)


def test_score_statistics_are_those_of_the_scores():
    W, offset = {"a": RNG.standard_normal((4, 5)), "b": RNG.standard_normal((3, 5))}, RNG.standard_normal(5)
    scores = F["a"] @ W["a"] + F["b"] @ W["b"] + offset
    halves = [Moments.of(part(slice(0, 40))), Moments.of(part(slice(40, 90)))]
    mean, deviation = pooled(half.of_scores(W, offset) for half in halves)
    np.testing.assert_allclose(mean, scores.mean(axis=0), rtol=1e-10)
    np.testing.assert_allclose(deviation, scores.std(axis=0), rtol=1e-9)


def test_blocks_of_float32_rows_are_summed_in_float64():
    X = np.full((4096, 1), 1.0001, np.float32)
    one, many = Moments.of(X), Moments.collect(X for _ in range(200))
    assert many.gram[0, 0] == pytest.approx(200 * one.gram[0, 0], rel=1e-13)  # float32 errors exceed 1e-6
    # BLAS sums the products of a block in float32, so the relative error is at most n times the unit roundoff.
    assert one.gram[0, 0] == pytest.approx(4096 * float(X[0, 0]) ** 2, rel=4096 * 2.0**-24)
    assert many.sums[0] == pytest.approx(200 * 4096 * float(X[0, 0]), rel=1e-13)


def test_ridge_is_scikit_learn_s():
    coefficients, offset = ridge(Moments.of(part(slice(None))), {"a": 1.0, "b": 1.0}, 0.7)
    X, Y = np.hstack([F["a"], F["b"]]), F[LABELS]
    oracle = Ridge(alpha=0.7).fit(X, Y)
    np.testing.assert_allclose(np.vstack(list(coefficients.values())), oracle.coef_.T, rtol=1e-8)
    np.testing.assert_allclose(offset + Y.mean(axis=0), oracle.intercept_, rtol=1e-8)


def test_moments_of_other_columns_do_not_add():
    with pytest.raises(ValueError, match="do not match"):
        Moments.of(part(slice(None))) + Moments.of({"a": F["a"]})


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        ({"a": np.zeros((3, 2)), "b": np.zeros((4, 2))}, "different numbers of rows"),
        ({"a": np.array([[np.nan, 1.0]])}, "group 'a' has values that are not finite"),
    ],
)
def test_bad_blocks(block, sentence):
    with pytest.raises(ValueError, match=sentence):
        Moments.of(block)


def test_no_blocks():
    with pytest.raises(ValueError, match="no blocks"):
        Moments.collect([])


@pytest.mark.parametrize("convert", [np.asarray, scipy.sparse.csr_array])
def test_absorb_skips_products_within_a_group(convert):
    groups = {name: convert(X) if name == LABELS else X for name, X in F.items()}
    wanted = S.T @ S
    wanted[-2:, -2:] = 0
    moments = Moments.zeros({name: X.shape[1] for name, X in F.items()}).absorb(groups, skip=LABELS)
    np.testing.assert_allclose(moments.gram, wanted, rtol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_float32_products_are_as_precise_as_the_ridge_needs(scale):
    """Nearly dependent columns need float64, which dmo selects by the condition number."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((5000, 20)).astype(np.float32)
    X[:, 10:] = X[:, :10] + scale * X[:, 10:]
    Y = (X[:, 8:12] + rng.standard_normal((5000, 4)) > 2).astype(np.uint8)
    fits = [
        MultiViewRidge("linear", approximation=Nystrom(rank=20), decoder=Scores(label_sets=False)).fit(kind(X), Y)
        for kind in (np.float32, np.float64)
    ]
    single, double = (fit.decision_function(X) for fit in fits)
    np.testing.assert_allclose(single, double, atol=1e-5 * double.std())


SPACES = [
    KGHA("linear", n_components=3, approximation=Nystrom(rank=20)),
    MORP("linear", n_components=3),
    MORP("linear", n_components=3, form="direct"),
    MLSI(n_components=3),
]


@pytest.mark.parametrize("weights", [None, np.arange(5000) % 3])
@pytest.mark.parametrize("model", [MultiViewRidge("linear", approximation=Nystrom(rank=20)), *SPACES], ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_float32_features_yield_the_scores_of_float64(model, scale, weights, monkeypatch):
    """Well-conditioned features are multiplied in float32, and nearly dependent features in float64."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((5000, 20)).astype(np.float32)
    X[:, 10:] = X[:, :10] + scale * X[:, 10:]
    Y = (X[:, 7:10] * [1, 2, 3] + rng.standard_normal((5000, 3)) > 2).astype(np.uint8)
    kinds, collect = [], Moments.absorb

    def seen(self, block, *given, **more):
        kinds.append({part.dtype for name, part in block.items() if name != LABELS and part.shape[1] == 20})
        return collect(self, block, *given, **more)

    monkeypatch.setattr(Moments, "absorb", seen)
    model = clone(model).set_params(decoder=Scores(label_sets=False))
    single = clone(model).fit(X, Y, sample_weight=weights).decision_function(X)
    assert {np.dtype(np.float32)} in kinds
    assert ({np.dtype(np.float64)} in kinds) == (scale < 1)
    double = model.fit(X.astype(np.float64), Y, sample_weight=weights).decision_function(X)
    np.testing.assert_allclose(single, double, atol=2e-5 * double.std())
