"""Compare metrics with explicit definitions for each sample and with scikit-learn."""

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from dmo import metrics
from dmo.blocks import Subset
from dmo.metrics import checked_blocks


@pytest.fixture
def problem():
    """Generate labels and tied scores. Label 3 never occurs, label 5 always occurs, and row 7 has no other label."""
    rng = np.random.default_rng(0)
    Y = (rng.random((120, 9)) < np.linspace(0.05, 0.7, 9)).astype(np.uint8)
    Y[:, 3], Y[:, 5] = 0, 1
    S = np.round(rng.normal(size=Y.shape) + Y, 1)
    P = (S > 0.5).astype(np.uint8)
    Y[7], P[7] = 0, 0
    Y[7, 5] = 1
    return Y, S, P


def annotate(scores, top):
    """Return the `top` labels of a sample by sorting the scores with explicit tie breaking."""
    return set(sorted(range(len(scores)), key=lambda l: (-scores[l], l))[:top])


@pytest.mark.parametrize("top", [1, 3, 9])
def test_annotation_scores_follow_the_definition_sample_by_sample(problem, top):
    Y, S, _ = problem
    given_to = [annotate(s, top) for s in S]
    precisions, recalls = [], []
    for l in range(Y.shape[1]):
        truth = {i for i in range(len(Y)) if Y[i, l]}
        named = {i for i, labels in enumerate(given_to) if l in labels}
        if truth:
            recalls.append(len(truth & named) / len(truth))
            precisions.append(len(truth & named) / len(named) if named else 0.0)
    p, r = np.mean(precisions), np.mean(recalls)
    got = metrics.annotation_scores(Y, S, top=top)
    assert got.precision == pytest.approx(p, abs=1e-15)
    assert got.recall == pytest.approx(r, abs=1e-15)
    assert got.f1 == pytest.approx(2 * p * r / (p + r), abs=1e-15)
    assert got.n_plus == sum(value > 0 for value in recalls)
    assert got.n_labels == len(recalls) == 8
    assert np.isnan(got.per_label_recall[3])


def test_annotation_scores_agree_with_scikit_learn(problem):
    Y, S, _ = problem
    got = metrics.annotation_scores(Y, S, top=4)
    p, r, _, _ = sk.precision_recall_fscore_support(Y, metrics.top_label_sets(S, 4), zero_division=0)
    np.testing.assert_allclose(got.per_label_precision, p, rtol=1e-15)
    occurs = Y.any(axis=0)
    np.testing.assert_allclose(got.per_label_recall[occurs], r[occurs], rtol=1e-15)


def test_annotation_scores_of_a_worked_example():
    Y = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0]])
    S = np.array([[0.9, 0.5, 0.1, 0.0], [0.3, 0.2, 0.9, 0.8], [0.7, 0.7, 0.7, 0.7]])
    # The predicted sets are {0, 1}, {2, 3} and {0, 1}. Label 0 has precision 1/2 and recall 1/2; all others have 0.
    got = metrics.annotation_scores(Y, S, top=2)
    assert (got.precision, got.recall, got.n_plus, got.n_labels) == (0.5 / 3, 0.5 / 3, 1, 3)
    assert got.f1 == pytest.approx(0.5 / 3)
    np.testing.assert_array_equal(got.per_label_precision, [0.5, 0.0, 0.0, 0.0])


def test_annotation_scores_are_zero_when_nothing_is_right():
    got = metrics.annotation_scores(np.array([[1, 0]]), np.array([[0.0, 1.0]]), top=1)
    assert (got.precision, got.recall, got.f1, got.n_plus) == (0.0, 0.0, 0.0, 0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([-np.inf, -1.0, -0.0, 0.0, 2.0]), min_size=6, max_size=6), min_size=1), st.data()
)
def test_top_labels_gives_exactly_top_labels_and_ties_to_the_lower_index(scores, data):
    top = data.draw(st.integers(1, 6))
    got = metrics.top_label_sets(np.array(scores, dtype=np.float32), top)
    assert [set(np.flatnonzero(row)) for row in got] == [annotate(row, top) for row in scores]


def test_f1_agrees_with_scikit_learn(problem):
    Y, _, P = problem
    P = P.copy()
    P[:, 3] = 0
    got = metrics.f1_scores(Y, P)
    np.testing.assert_allclose(got.per_label, sk.f1_score(Y, P, average=None, zero_division=0), rtol=1e-15)
    assert metrics.f1_macro(Y, P) == got.macro == pytest.approx(sk.f1_score(Y, P, average="macro", zero_division=0))
    assert metrics.f1_micro(Y, P) == got.micro == pytest.approx(sk.f1_score(Y, P, average="micro"))
    assert metrics.f1_scores(np.zeros((3, 2)), np.zeros((3, 2))).micro == 0.0


def test_auc_agrees_with_scikit_learn_on_labels_with_both_classes(problem):
    Y, S, _ = problem
    both = np.array([0, 1, 2, 4, 6, 7, 8])
    got = metrics.auc_scores(Y, S)
    np.testing.assert_allclose(got.per_label[both], sk.roc_auc_score(Y[:, both], S[:, both], average=None), rtol=1e-14)
    assert metrics.auc_macro(Y, S) == got.macro == pytest.approx(sk.roc_auc_score(Y[:, both], S[:, both]), rel=1e-14)
    micro = sk.roc_auc_score(Y[:, both], S[:, both], average="micro")
    assert metrics.auc_micro(Y, S) == got.micro == pytest.approx(micro, rel=1e-14)
    assert got.left_out == 2
    assert np.isnan(got.per_label[[3, 5]]).all()


def test_auc_counts_pairs_and_half_of_the_ties(problem):
    Y, S, _ = problem
    positive, negative = S[Y[:, 2] == 1, 2], S[Y[:, 2] == 0, 2]
    difference = positive[:, None] - negative[None, :]
    assert metrics.auc_scores(Y, S).per_label[2] == pytest.approx((np.sign(difference).mean() + 1) / 2, rel=1e-14)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("top", [1, 7, 120])
def test_top_n_accuracy_follows_the_definition_label_by_label(problem, top, masked):
    Y, S, _ = problem
    may = np.random.default_rng(1).random(Y.shape) < 0.3 if masked else np.ones(Y.shape, dtype=bool)
    shares = {}
    for l in range(Y.shape[1]):
        ranked = sorted(np.flatnonzero(may[:, l]), key=lambda i: (-S[i, l], i))[:top]
        if any(Y[i, l] for i in np.flatnonzero(may[:, l])):
            shares[l] = sum(Y[i, l] for i in ranked) / len(ranked)
    got = metrics.top_n_accuracy(Y, S, top=top, candidates=may if masked else None)
    assert got.mean == pytest.approx(np.mean(list(shares.values())), abs=1e-15)
    assert got.left_out == Y.shape[1] - len(shares) >= 1
    np.testing.assert_array_equal(got.per_label[list(shares)], list(shares.values()))


def test_jaccard_accuracy_agrees_with_scikit_learn_and_two_empty_sets_agree(problem):
    Y, _, P = problem
    Y = Y.copy()
    Y[7] = 0
    assert Y[7].sum() == P[7].sum() == 0
    assert metrics.jaccard_accuracy(Y, P) == pytest.approx(
        sk.jaccard_score(Y, P, average="samples", zero_division=1.0), rel=1e-14
    )


def test_precision_recall_curves_agree_with_scikit_learn(problem):
    Y, S, _ = problem
    curves = metrics.precision_recall_curves(Y, S)
    assert [c.label for c in curves] == [0, 1, 2, 4, 5, 6, 7, 8]
    for c in curves:
        precision, recall, thresholds = sk.precision_recall_curve(Y[:, c.label], S[:, c.label])
        np.testing.assert_allclose(c.precision, precision[-2::-1])
        np.testing.assert_allclose(c.recall, recall[-2::-1])
        np.testing.assert_array_equal(c.thresholds, thresholds[::-1])
        expected = sk.average_precision_score(Y[:, c.label], S[:, c.label])
        assert c.average_precision == pytest.approx(expected, rel=1e-14)
    assert [c.label for c in metrics.precision_recall_curves(Y, S, labels=[6, 3, 0])] == [6, 0]


def everything(Y, S, P):
    """Compute all metrics, and return their values as a flat array."""
    results = [
        metrics.annotation_scores(Y, S, top=3),
        metrics.f1_scores(Y, P),
        metrics.auc_scores(Y, S),
        metrics.top_n_accuracy(Y, S, top=5, candidates=P),
        metrics.precision_recall_curves(Y, S, labels=[8])[0],
    ]
    numbers = [np.ravel(value) for result in results for value in vars(result).values()]
    return np.concatenate([*numbers, [metrics.jaccard_accuracy(Y, P)]])


@pytest.mark.parametrize("block", [1, 17, 120, 1000])
def test_results_do_not_depend_on_blocks(problem, block, monkeypatch):
    whole = everything(*problem)
    monkeypatch.setattr(checked_blocks, "block_rows", lambda n_labels: block)
    np.testing.assert_array_equal(everything(*problem), whole)


@pytest.mark.parametrize("kind", ["dask", "zarr", "csr", "bool", "float", "subset"])
def test_every_row_source_gives_the_same_numbers(problem, kind, monkeypatch):
    whole = everything(*problem)
    monkeypatch.setattr(checked_blocks, "block_rows", lambda n_labels: 50)
    make = {
        "dask": lambda a: da.from_array(a, chunks=(50, 4)),
        "zarr": lambda a: zarr.array(a, chunks=(32, 9)),
        "csr": scipy.sparse.csr_array,
        "bool": lambda a: a if a.dtype.kind == "f" else a.astype(bool),
        "float": lambda a: a.astype(np.float64),
        "subset": lambda a: Subset(a[::-1], np.arange(120)[::-1]),
    }[kind]
    np.testing.assert_array_equal(everything(*map(make, problem)), whole)


BAD = {
    "shapes": (lambda Y, S: metrics.annotation_scores(Y[:-1], S), ValueError, "labels are 119 x 9, scores are 120 x 9"),
    "minus one": (
        lambda Y, S: metrics.f1_scores(Y * 2.0 - 1, Y),
        ValueError,
        r"labels have the value -1.0 at row 0.*> 0",
    ),
    "predictions": (lambda Y, S: metrics.jaccard_accuracy(Y, S), ValueError, "predictions have the value .* at row 0"),
    "nan": (lambda Y, S: metrics.auc_scores(Y, with_nan(S)), ValueError, "scores are NaN at row 70, label 2"),
    "top": (
        lambda Y, S: metrics.annotation_scores(Y, S, top=10),
        ValueError,
        "top is 10, expected a number from 1 to 9",
    ),
    "top type": (
        lambda Y, S: metrics.annotation_scores(Y, S, top=2.5),
        TypeError,
        "top must be a whole number, got 2.5",
    ),
    "rows": (
        lambda Y, S: metrics.top_n_accuracy(Y, S, top=121),
        ValueError,
        "top is 121, expected a number from 1 to 120",
    ),
    "no label": (lambda Y, S: metrics.annotation_scores(Y * 0, S), ValueError, "no label occurs in Y"),
    "one class": (lambda Y, S: metrics.auc_scores(Y * 0 + 1, S), ValueError, "no label has both"),
    "no candidate": (
        lambda Y, S: metrics.top_n_accuracy(Y, S, candidates=Y * 0),
        ValueError,
        "no label has a positive",
    ),
    "1-d": (lambda Y, S: metrics.f1_scores(Y[:, 0], Y), ValueError, "labels have 1 dimensions, need 2"),
    "empty": (lambda Y, S: metrics.f1_scores(Y[:0], Y[:0]), ValueError, "labels are 0 x 9, need at least one sample"),
    "list": (lambda Y, S: metrics.auc_scores(Y, S.tolist()), TypeError, "scores have no shape, got list"),
    "text": (lambda Y, S: metrics.f1_scores(Y.astype(str), Y), TypeError, "labels have dtype <U3, need numbers"),
    "label": (
        lambda Y, S: metrics.precision_recall_curves(Y, S, [9]),
        ValueError,
        r"labels must be column indices in 0\.\.8",
    ),
}


def with_nan(S):
    S = S.copy()
    S[70, 2] = np.nan
    return S


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_in_one_sentence(problem, case):
    call, error, sentence = BAD[case]
    with pytest.raises(error, match=sentence) as caught:
        call(problem[0], problem[1])
    assert "\n" not in str(caught.value)


def test_corel5k_test_annotations(dmo_data):
    """If the labels of images are used as scores, recall at 5 is 1, because every image has at most 5 labels."""
    with np.load(dmo_data / "corel5k" / "features" / "corel5k_annotations.npz") as arrays:
        Y = arrays["test"]
    got = metrics.annotation_scores(Y, Y, top=5)
    assert (got.recall, got.n_plus, got.n_labels) == (1.0, 260, 260)
    expected = sk.precision_score(Y, metrics.top_label_sets(Y, 5), average="macro", zero_division=0)
    assert got.precision == pytest.approx(expected, rel=1e-13)


def test_unknown_labels_count_for_nothing():
    rng = np.random.default_rng(3)
    Y, S = (rng.random((60, 5)) < 0.4).astype(float), rng.random((60, 5))
    known = rng.random(Y.shape) < 0.7
    hidden = np.where(known, Y, np.nan)
    given = metrics.top_label_sets(S, 2).astype(bool)
    found, areas = metrics.annotation_scores(hidden, S, top=2), metrics.auc_scores(hidden, S)
    for label, some in enumerate(known.T):
        truth, chosen = Y[some, label], given[some, label]
        assert found.per_label_precision[label] == sk.precision_score(truth, chosen, zero_division=0)
        assert found.per_label_recall[label] == sk.recall_score(truth, chosen)
        np.testing.assert_allclose(areas.per_label[label], sk.roc_auc_score(truth, S[some, label]), rtol=1e-12)
    np.testing.assert_allclose(metrics.auc_micro(hidden, S), sk.roc_auc_score(Y[known], S[known]), rtol=1e-12)
    np.testing.assert_allclose(metrics.f1_micro(hidden, given), sk.f1_score(Y[known], given[known]), rtol=1e-12)
    sets = metrics.set_scores(hidden, given)
    np.testing.assert_allclose(sets.f1_micro, sk.f1_score(Y[known], given[known]), rtol=1e-12)
    np.testing.assert_allclose(sets.hamming, (given != Y)[known].mean(), rtol=1e-12)
    assert sets.subset == np.mean([np.array_equal(y[some], p[some]) for y, p, some in zip(Y, given, known)])


def test_samples_are_ranked_by_their_known_labels_and_targets_judged_by_their_known_values():
    rng = np.random.default_rng(4)
    Y, S = (rng.random((60, 6)) < 0.4).astype(float), rng.random((60, 6))
    known = rng.random(Y.shape) < 0.7
    known[:, :2] = True
    samples = [(Y[[i]][:, some], S[[i]][:, some]) for i, some in enumerate(known)]
    found, best = (
        metrics.ranking_scores(np.where(known, Y, np.nan), S),
        metrics.top_scores(np.where(known, Y, np.nan), S, 2),
    )
    for got, oracle in (
        (found.lrap, sk.label_ranking_average_precision_score),
        (found.coverage, sk.coverage_error),
        (found.ranking_loss, sk.label_ranking_loss),
        (best.ndcg, lambda y, s: sk.ndcg_score(y, s, k=2)),
        (best.precision, lambda y, s: y[0, np.argsort(-s[0])[:2]].mean()),
    ):
        np.testing.assert_allclose(got, np.mean([oracle(y, s) for y, s in samples]), rtol=1e-12)
    targets = metrics.regression_scores(np.where(known, S, np.nan), Y)
    for j, some in enumerate(known.T):
        truth, given = S[some, j], Y[some, j]
        oracle = [
            sk.root_mean_squared_error(truth, given),
            sk.mean_absolute_error(truth, given),
            sk.r2_score(truth, given),
        ]
        np.testing.assert_allclose(targets.per_target[:3, j], oracle, rtol=1e-12)


@pytest.mark.parametrize("unknown", [False, True])
def test_weights_are_repeated_samples_in_every_metric(problem, unknown, monkeypatch):
    monkeypatch.setattr(checked_blocks, "block_rows", lambda n_labels: 32)
    Y, S, P = problem
    rng = np.random.default_rng(1)
    Y = np.where(rng.random(Y.shape) < 0.2, np.nan, Y) if unknown else Y
    weights = rng.integers(0, 4, len(Y))
    weights[np.nansum(Y[:, [0]], axis=1) > 0] = 0  # all samples with label 0 have weight 0
    rows = np.repeat(np.arange(len(Y)), weights)
    pairs = [
        (
            metrics.annotation_scores(y, s, 3, w),
            metrics.top_scores(y, s, 2, sample_weight=w),
            metrics.auc_scores(y, s, w),
            metrics.f1_scores(y, p, w),
            metrics.set_scores(y, p, w),
            metrics.ranking_scores(y, s, w),
            metrics.regression_scores(y, s, None, w),
            metrics.jaccard_accuracy(y, p, w),
        )
        for y, s, p, w in ((Y, S, P, weights), (Y[rows], S[rows], P[rows], None))
    ]
    for weighted, repeated in zip(*pairs, strict=True):
        for key, wanted in getattr(repeated, "__dict__", {"mean": repeated}).items():
            found = getattr(weighted, key, weighted)
            np.testing.assert_allclose(found, wanted, rtol=1e-12, err_msg=f"{type(weighted).__name__}.{key}")
    curves = metrics.precision_recall_curves(Y, S, sample_weight=weights)
    for curve, wanted in zip(curves, metrics.precision_recall_curves(Y[rows], S[rows]), strict=True):
        assert curve.average_precision == pytest.approx(wanted.average_precision)
        np.testing.assert_array_equal(curve.thresholds, wanted.thresholds)
    for name in ("f1@3", "f1-macro@3", "f1-samples", "auc-micro", "lrap", "psp@2", "accuracy", "ranking", "rmse"):
        score = metrics.metric_of(name)
        assert score(Y, S, weights) == pytest.approx(score(Y[rows], S[rows])), name


def test_weighted_metrics_are_scikit_learns(problem):
    Y, S, P = problem
    w = np.random.default_rng(1).random(len(Y))
    mixed = [l for l in range(Y.shape[1]) if len(set(Y[:, l])) == 2]
    area = sk.roc_auc_score(Y[:, mixed], S[:, mixed], average=None, sample_weight=w)
    np.testing.assert_allclose(metrics.auc_scores(Y, S, w).per_label[mixed], area)
    assert metrics.auc_scores(Y, S, w).micro == pytest.approx(
        sk.roc_auc_score(Y[:, mixed], S[:, mixed], average="micro", sample_weight=w)
    )
    found = metrics.set_scores(Y, P, w)
    assert found.f1_samples == pytest.approx(sk.f1_score(Y, P, average="samples", sample_weight=w, zero_division=0))
    assert found.f1_micro == pytest.approx(sk.f1_score(Y, P, average="micro", sample_weight=w))
    assert found.hamming == pytest.approx(sk.hamming_loss(Y, P, sample_weight=w))
    assert metrics.regression_scores(Y, S, None, w).r2 == pytest.approx(
        np.mean([sk.r2_score(Y[:, l], S[:, l], sample_weight=w) for l in range(Y.shape[1])])
    )
    for weights in (w[:3], -w, np.full(len(Y), np.nan), 0 * w):
        with pytest.raises(ValueError, match="120 finite nonnegative numbers, at least one of them positive"):
            metrics.f1_scores(Y, P, weights)
