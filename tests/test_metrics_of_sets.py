"""Compare metrics of rankings, label sets and regression targets with scikit-learn, for ties and any block size."""

import numpy as np
import pytest
import scipy.sparse
from sklearn import metrics as sk

from dmo import metrics
from dmo.metrics import checked_blocks


@pytest.fixture(params=["ties", "floats", "one label each"])
def problem(request):
    rng = np.random.default_rng(0)
    Y = (rng.random((150, 9)) < np.linspace(0.05, 0.7, 9)).astype(np.uint8)
    Y[:, 3] = 0
    if request.param == "one label each":
        Y = np.eye(9, dtype=np.uint8)[rng.integers(9, size=150)]
    S = rng.normal(size=Y.shape) + Y
    if request.param != "floats":
        S = np.round(S, 0)
    Y[7], Y[8] = 0, 1  # one sample has no labels, and another sample has all labels
    return Y, S


def in_blocks(monkeypatch, block):
    """Read blocks of `block` rows, or blocks of the default size if `block` is None."""
    if block is not None:
        monkeypatch.setattr(checked_blocks, "block_rows", lambda n_labels: block)


@pytest.mark.parametrize("block", [None, 17])
def test_rankings_are_scikit_learns(problem, block, monkeypatch):
    in_blocks(monkeypatch, block)
    Y, S = problem
    found = metrics.ranking_scores(Y, S)
    assert found.lrap == pytest.approx(sk.label_ranking_average_precision_score(Y, S), abs=1e-12)
    assert found.coverage == pytest.approx(sk.coverage_error(Y, S), abs=1e-12)
    assert found.ranking_loss == pytest.approx(sk.label_ranking_loss(Y, S), abs=1e-12)


@pytest.mark.parametrize("top", [1, 3, 9])
def test_figures_at_k_are_scikit_learns_and_their_definitions(problem, top):
    Y, S = problem
    found = metrics.top_scores(scipy.sparse.csr_array(Y), S, top)
    assert found.ndcg == pytest.approx(sk.ndcg_score(Y, S, k=top), abs=1e-12)
    given = metrics.top_label_sets(S, top)
    has = Y.any(axis=1)
    assert found.precision == pytest.approx(np.mean((Y & given).sum(axis=1) / top), abs=1e-12)
    assert found.recall == pytest.approx(sk.recall_score(Y[has], given[has], average="samples"), abs=1e-12)
    assert found.f1 == pytest.approx(sk.f1_score(Y[has], given[has], average="samples"), abs=1e-12)


def test_propensities_favor_hits_on_rare_labels():
    """Check the propensities 1 / p = 1 + (log N - 1) 2.5^0.55 (N_l + 1.5)^-0.55 of Jain, Prabhu and Varma (2016)."""
    Y, S = np.array([[1, 1, 0], [1, 0, 1]]), np.array([[0.9, 0.1, 0.2], [0.3, 0.1, 0.9]])
    count, n = np.array([900, 10, 40]), 1000
    weight = 1 + (np.log(n) - 1) * 2.5**0.55 * (count + 1.5) ** -0.55
    expected = (weight[0] + weight[2]) / (weight[1] + weight[2])
    assert metrics.top_scores(Y, S, 1, count / n, n).psp == pytest.approx(expected)
    assert metrics.top_scores(Y, Y + 0.0, 2).psp == 1.0


def test_f1_at_k_with_unknown_labels_is_the_harmonic_mean_of_a_sample_s_precision_and_recall():
    Y, S = np.array([[1, np.nan, np.nan]]), np.array([[0.9, 0.5, 0.4]])
    found = metrics.top_scores(Y, S, top=3)
    assert (found.precision, found.recall, found.f1) == (1.0, 1.0, 1.0)
    rng = np.random.default_rng(0)
    Y, S = (rng.random((30, 6)) < 0.4) * 1.0, rng.random((30, 6))
    Y[rng.random(Y.shape) < 0.5] = np.nan
    wanted = []
    for y, s in zip(Y, S, strict=True):
        known = ~np.isnan(y)
        if known.any() and np.nansum(y):
            one = metrics.top_scores(y[known][None], s[known][None], min(4, known.sum()))
            wanted.append(2 * one.precision * one.recall / max(one.precision + one.recall, 1e-300))
    assert metrics.top_scores(Y, S, top=4).f1 == pytest.approx(np.mean(wanted))


@pytest.mark.parametrize("block", [None, 17])
def test_label_sets_are_scikit_learns(problem, block, monkeypatch):
    in_blocks(monkeypatch, block)
    Y, S = problem
    P = (S > 0.5).astype(np.uint8)
    P[7] = 0
    found = metrics.set_scores(Y, P)
    for how in ("micro", "macro", "samples"):
        assert getattr(found, f"f1_{how}") == pytest.approx(sk.f1_score(Y, P, average=how, zero_division=0), abs=1e-12)
    for what, of in (("precision", sk.precision_score), ("recall", sk.recall_score)):
        expected = of(Y, P, average="samples", zero_division=1)
        assert getattr(found, f"{what}_samples") == pytest.approx(expected, abs=1e-12)
    assert found.hamming == pytest.approx(sk.hamming_loss(Y, P), abs=1e-12)
    assert found.subset == pytest.approx(sk.accuracy_score(Y, P), abs=1e-12)
    assert found.cardinality == pytest.approx(P.sum(axis=1).mean())


def test_samples_without_a_known_label_count_for_no_figure_of_sets(problem):
    Y, S = problem
    P, some = (S > 0.5).astype(np.uint8), np.arange(len(Y)) % 3 > 0
    for often in (np.ones(len(Y)), np.arange(len(Y)) % 4):
        found = metrics.set_scores(np.where(some[:, None], Y, np.nan), P, often)
        for name, value in vars(metrics.set_scores(Y[some], P[some], often[some])).items():
            assert getattr(found, name) == pytest.approx(value, rel=1e-12), name


def test_hierarchical_f1_counts_labels_and_ancestors_of_sets():
    rng = np.random.default_rng(0)
    parent = {1: 0, 2: 0, 3: 1, 4: 1, 5: 2, 7: 6}
    above = {j: {parent[j], parent.get(parent[j], parent[j])} for j in parent}
    pairs = np.array([(j, a) for j, own in above.items() for a in own])
    Y, P = (rng.random((2, 60, 9)) < 0.2).astype(np.uint8)

    def whole(row):
        return set(np.flatnonzero(row)).union(*(above.get(j, set()) for j in np.flatnonzero(row)))

    both = [(whole(y), whole(p)) for y, p in zip(Y, P, strict=True)]
    expected = 2 * sum(len(y & p) for y, p in both) / sum(len(y) + len(p) for y, p in both)
    assert metrics.f1_hierarchical(Y, P, pairs) == pytest.approx(expected, rel=1e-12)
    unknown = np.where(rng.random(Y.shape) < 0.3, np.nan, Y)
    found = metrics.with_ancestors(unknown, pairs)
    for row, told in zip(unknown, found, strict=True):
        there = whole(row == 1)
        assert all(told[j] == 1 if j in there else np.array_equal(told[j], row[j], equal_nan=True) for j in range(9))


def test_real_targets_are_scored_as_by_scikit_learn():
    rng = np.random.default_rng(0)
    Y = rng.normal(size=(70, 3)) * [1, 10, 100] + 5
    P = Y + rng.normal(size=Y.shape) * [0.5, 20, 30]
    found = metrics.regression_scores(Y, P)
    assert found.rmse == pytest.approx(sk.root_mean_squared_error(Y, P))
    assert found.mae == pytest.approx(sk.mean_absolute_error(Y, P))
    assert found.r2 == pytest.approx(sk.r2_score(Y, P))
    assert found.arrmse == pytest.approx(np.sqrt(1 - sk.r2_score(Y, P, multioutput="raw_values")).mean())
    elsewhere = metrics.regression_scores(Y, P, Y.mean(axis=0) + 5)
    assert elsewhere.arrmse < found.arrmse
    constant = metrics.regression_scores(np.ones((5, 2)), np.array([[1.0, 2.0]] * 5))
    assert constant.per_target[2:].tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_real_targets_in_blocks_of_rows(monkeypatch):
    monkeypatch.setattr(metrics.ranking, "_BLOCK", 11)
    rng = np.random.default_rng(1)
    Y, P = rng.normal(size=(2, 70, 3))
    assert metrics.regression_scores(Y, P).r2 == pytest.approx(sk.r2_score(Y, P))


def test_figures_at_k_take_the_k_that_suits():
    expected = {(1.07, 6): 1, (1.87, 6): 2, (3.4, 260): 5, (4.24, 14): 5, (19.0, 983): 19, (0.3, 3): 1, (3.4, 7): 3}
    assert {key: metrics.suitable_top(*key) for key in expected} == expected
