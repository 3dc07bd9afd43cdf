"""Test decoders that are learned from held-out scores, such as probabilities and the plug-in rule."""

import re

import numpy as np
import pytest
from scipy.optimize import approx_fprime, minimize
from scipy.special import expit, softmax
from sklearn.linear_model import LogisticRegression

from dmo import MultiViewRidge, Nystrom
from dmo.decide.decoders import score_thresholds
from dmo.decide.probabilities import PooledProbabilities, SoftmaxProbabilities, some_samples
from dmo.decide.rules import BY_PROBABILITY, PROMISES, SET_METRICS, GainRule, PlugInRule, SetRule
from dmo.decoders import Calibration, FittedDecoder, PlugIn, PooledCalibration
from dmo.errors import UserError
from dmo.fit.view_neighbors import ViewDistances
from dmo.methods.neighbor_votes import label_directions, votes
from dmo.methods.tagprop import Neighborhoods, fit_tagprop
from dmo.methods.view_weights import aligned_weights, given_weights, view_weights
from dmo.metrics import annotation_scores, metric_of, top_label_sets, top_scores


def drawn(n=600, L=12, seed=0):
    """Return labels with frequencies from 0.02 to 0.4, and two matrices of noisy scores of these labels."""
    rng = np.random.default_rng(seed)
    Y = (rng.random((n, L)) < np.geomspace(0.02, 0.4, L)).astype(np.uint8)
    return Y, [Y + 0.7 * rng.normal(size=Y.shape), 3 * Y + 4 * rng.normal(size=Y.shape)]


def test_probabilities_are_scikit_learns_logistic_regression_on_the_pooled_regressors():
    Y, scores = drawn()
    z = [(s - s.mean(axis=0)) / s.std(axis=0) for s in scores]
    log_frequency = np.log(Y.mean(axis=0))
    phi = np.broadcast_to((log_frequency - log_frequency.mean()) / log_frequency.std(), Y.shape)
    A = np.stack(
        [part.ravel() for k in (0, 1) for part in (z[k], z[k] ** 2, z[k] * phi)] + [phi.ravel(), phi.ravel() ** 2]
    )
    oracle = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-10).fit(A.T, Y.ravel())
    found = PooledProbabilities.fit(scores, Y)
    np.testing.assert_allclose(found.coefficients[:-1], oracle.coef_[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found(scores).ravel(), oracle.predict_proba(A.T)[:, 1], atol=1e-7)


def test_unknown_labels_take_no_part_in_the_regression():
    """Fit scikit-learn's regression to the known entries. A label without positive entries counts as half a sample."""
    Y, (s, _) = drawn(L=6)
    Y[:, 2] = 0
    known = np.random.default_rng(3).random(Y.shape) < 0.5
    some = known.any(axis=1)  # ignore samples without known labels
    z, count = (s - s[some].mean(axis=0)) / s[some].std(axis=0), known.sum(axis=0)
    log_frequency = np.log(np.maximum((Y * known).sum(axis=0), 0.5) / count)
    phi = np.broadcast_to((log_frequency - log_frequency.mean()) / log_frequency.std(), Y.shape)
    A = np.stack([part[known] for part in (z, z**2, z * phi, phi, phi**2)])
    oracle = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-10).fit(A.T, Y[known])
    found = PooledProbabilities.fit([s], Y, known)
    np.testing.assert_allclose(found.coefficients, [*oracle.coef_[0], *oracle.intercept_], rtol=1e-5, atol=1e-6)


def learned_pair(decoder, Y, scores, counts):
    """Learn a decoder from weighted rows, and from repeated rows in random order with the same keys."""
    n, keys = len(Y), np.random.default_rng(7).integers(0, 2**63, len(Y))
    index = np.random.default_rng(6).permutation(np.repeat(np.arange(n), counts))
    weighted = decoder.learn(scores, Y, np.broadcast_to(counts[:, None], Y.shape), keys)
    return weighted, decoder.learn([part[index] for part in scores], Y[index], keys=keys[index])


@pytest.mark.parametrize("most", [2**21, 2**11], ids=["all", "subsets"])
@pytest.mark.parametrize(
    "decoder",
    [
        Calibration(),
        PooledCalibration(),
        *(PlugIn(metric, 100) for metric in ("f1@3", "f1-macro@3", "recall@3", "n+@3", "psp@3", *SET_METRICS)),
    ],
    ids=str,
)
def test_weights_equal_repeated_rows_in_every_decision(decoder, most, monkeypatch):
    for name in ("probabilities._MOST", "probabilities._FIRST", "probabilities._SORTED", "rules._MOST"):
        monkeypatch.setattr(f"dmo.decide.{name}", most)
    Y, scores = drawn()
    weighted, repeated = learned_pair(decoder, Y, scores, np.random.default_rng(5).integers(0, 5, len(Y)))
    plain = decoder.learn(scores, Y)
    np.testing.assert_allclose(weighted.probabilities(scores), repeated.probabilities(scores), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(weighted.thresholds, repeated.thresholds, rtol=1e-6)
    np.testing.assert_allclose(weighted(scores), repeated(scores), rtol=1e-5, atol=1e-8)
    np.testing.assert_array_equal(weighted.sets(scores), repeated.sets(scores))
    assert np.abs(weighted.probabilities(scores) - plain.probabilities(scores)).max() > 0.005


def test_gain_and_cost_of_macro_f1_are_the_change_of_its_sum_by_one_more_prediction():
    """Compare the gain and the cost of a prediction with finite differences of the sum of F1 over all labels."""
    rng = np.random.default_rng(0)
    p = rng.beta(0.6, 2.0, size=(4000, 5)) * np.linspace(0.3, 1.0, 5)
    Y = (rng.random(p.shape) < p).astype(np.uint8)
    rule = GainRule.fit("f1-macro", p, Y, 2, 4000)
    given = top_label_sets(rule(p), 2)
    m, h, positives = given.sum(axis=0), (given * p).sum(axis=0), Y.sum(axis=0)
    for certainty in (0.2, 0.7):
        more = 2 * (h + certainty) / (m + 1 + positives) - 2 * h / (m + positives)
        np.testing.assert_allclose(rule(np.full((1, 5), certainty))[0], more, atol=0.03 * rule.gain.max())
    np.testing.assert_allclose(rule.cost, 2 * h / (m + positives) ** 2, rtol=0.1)


def test_what_is_learned_of_some_of_many_samples_leaves_out_their_unknown_labels(monkeypatch):
    monkeypatch.setattr("dmo.decide.decoders._ENTRIES", 2**10)
    for n in (999, 1000, 1001, 1500):
        Y, (s, _) = drawn(n=n, L=6)
        known, seen = np.random.default_rng(3).random(Y.shape) < 0.5, np.ones(6, bool)
        said = [
            Calibration().learn_aside([s], np.where(known, Y, other), seen, False, known).probabilities([s])
            for other in (0, 1)
        ]
        np.testing.assert_array_equal(*said)


def test_weights_equal_repeated_rows_in_probabilities_of_classes():
    rng = np.random.default_rng(0)
    Y = np.eye(3)[rng.integers(0, 3, 200)]
    scores, counts = Y + rng.normal(size=Y.shape), rng.integers(0, 5, len(Y))
    weighted = SoftmaxProbabilities.fit([scores], Y, np.broadcast_to(counts[:, None], Y.shape))
    repeated = SoftmaxProbabilities.fit([np.repeat(scores, counts, axis=0)], np.repeat(Y, counts, axis=0))
    np.testing.assert_allclose(weighted([scores]), repeated([scores]), rtol=1e-9)
    grid = np.geomspace(0.5, 2, 41) * weighted.scale[0]
    losses = [-(counts @ (np.log(softmax(c * scores, axis=1)) * Y).sum(axis=1)) for c in grid]
    assert np.argmin(losses) == 20


def test_some_samples_follow_keys_and_keep_repeated_rows_together():
    Y, keys = np.zeros((100, 4)), np.random.default_rng(0).integers(0, 2**63, 100)
    found = some_samples(Y, 80, keys=keys)
    assert list(found) == sorted(set(found))
    assert len(found) == len(some_samples(Y, 83)) == 20
    assert found[-1] - found[0] > 50
    order = np.random.default_rng(1).permutation(100)
    assert set(order[some_samples(Y, 80, keys=keys[order])]) == set(found)
    twice = np.repeat(np.arange(100), 2)
    assert list(some_samples(Y[twice], 80, keys=keys[twice])) == list(np.flatnonzero(np.isin(twice, found)))
    assert some_samples(Y[twice], 400, keys=keys[twice]) == slice(None)
    weights = np.ones(Y.shape)
    weights[found[:5]] = 0
    assert set(found[5:]) < set(some_samples(Y, 80, weights, keys))
    assert len(some_samples(Y, 80, weights, keys)) == 20


def test_scale_and_offset_of_scores_do_not_change_probabilities_nor_does_a_matrix_that_repeats_another():
    Y, (s, _) = drawn()
    plain = PooledProbabilities.fit([s], Y)([s])
    moved = s * np.geomspace(1e-2, 1e6, Y.shape[1]) + 100
    np.testing.assert_allclose(PooledProbabilities.fit([moved], Y)([moved]), plain, atol=1e-6)
    np.testing.assert_allclose(PooledProbabilities.fit([s, s], Y)([s, s]), plain, atol=1e-6)


def test_a_label_without_a_training_sample_has_probability_0_and_a_constant_score_no_influence():
    Y, (s, _) = drawn()
    Y[:, 3] = 0
    s[:, 5] = 2.0
    p = PooledProbabilities.fit([s], Y)([s])
    assert (p[:, 3] == 0).all()
    assert np.isfinite(p).all()
    assert np.ptp(p[:, 5]) < 1e-12


@pytest.mark.parametrize("square", [-1.0, 1.0])
def test_calibrated_probabilities_rank_the_samples_of_a_label_as_its_scores_do(square):
    """Probabilities stay monotonic if the fitted parabola has its vertex among the scores or if scores are reversed."""
    Y, (s, _) = drawn()
    z = s + 0.4 * square * (s - s.mean()) ** 2 * (s > 0)
    z[:, 0] -= 3 * Y[:, 0]
    fitted = Calibration().learn([z], Y).probabilities
    assert fitted.coefficients[1] != 0
    new = np.sort(np.random.default_rng(1).normal(size=(400, Y.shape[1])) * 6 * z.std(axis=0) + z.mean(axis=0), axis=0)
    assert (np.diff(fitted._logits([new]) * (1 + fitted.own[0]), axis=0) > 0).all()
    again = FittedDecoder.from_arrays(*FittedDecoder(fitted, np.full(12, 0.5)).to_arrays())
    np.testing.assert_array_equal(again([new]), fitted([new]))


def expected_f1(predictions, hits, frequency, size):
    """Compute F1 of label-averaged precision and recall if the counts of each label have a Poisson distribution."""
    g = lambda x: (1 - np.exp(-x)) / x  # noqa: E731
    P = (hits * g(predictions)).mean()
    R = (hits * g(size * frequency)).mean()
    return 2 * P * R / (P + R), P, R


def test_the_rule_scores_a_label_by_the_derivative_of_the_expected_f1():
    rng = np.random.default_rng(0)
    L, size = 7, 300
    # Every label occurs almost surely.
    frequency, m, r = rng.uniform(0.1, 0.5, L), rng.uniform(3, 90, L), rng.uniform(0.1, 0.9, L)
    _, P, R = expected_f1(m, m * r, frequency, size)
    rule = PlugInRule(size, frequency, m, r, P, R)
    p = rng.uniform(0.05, 0.95, L)
    gain = [
        approx_fprime(0.0, lambda t, e=e: expected_f1(m + t * e, m * r + t * e * p, frequency, size)[0], 1e-6)[0]
        for e in np.eye(L)
    ]
    np.testing.assert_allclose(rule(p[None])[0] / L, gain, rtol=1e-4)


def test_the_precision_of_a_label_that_is_given_once_is_its_probability():
    """Each sample has a single label and is assigned this label, so the precision equals the probability."""
    rule = PlugInRule.fit(0.1 + 0.7 * np.eye(3), np.eye(3), 1, 3000)
    np.testing.assert_allclose(rule.precision, 0.8, rtol=1e-4)
    np.testing.assert_allclose(rule.predictions, 1000, rtol=1e-4)


def test_with_true_probabilities_the_rule_beats_ranking_by_probability_and_by_lift():
    rng = np.random.default_rng(1)
    p = expit(rng.normal(size=(4000, 40)) * 1.5 + np.linspace(-5, 0, 40))
    Y = (rng.random(p.shape) < p).astype(np.uint8)
    rule = PlugInRule.fit(p[:2000], Y[:2000], 5, 2000)
    score = {
        name: annotation_scores(Y[2000:], S, top=5).f1
        for name, S in {"rule": rule(p[2000:]), "p": p[2000:], "lift": p[2000:] / Y[:2000].mean(axis=0)}.items()
    }
    assert score["rule"] > max(score["p"], score["lift"]) + 0.005
    assert rule.mean_precision == pytest.approx(annotation_scores(Y[2000:], rule(p[2000:]), top=5).precision, abs=0.03)
    assert rule.mean_recall == pytest.approx(annotation_scores(Y[2000:], rule(p[2000:]), top=5).recall, abs=0.03)


def ratio(a, b):
    return a / np.maximum(b, 1e-300)


MEASURES = {  # metrics of label and prediction arrays with shape (..., n, L)
    "precision": lambda Y, P: ratio((Y & P).sum(axis=(-1, -2)), P.sum(axis=(-1, -2))),
    "f1-micro": lambda Y, P: ratio(2 * (Y & P).sum(axis=(-1, -2)), Y.sum(axis=(-1, -2)) + P.sum(axis=(-1, -2))),
    "f1-samples": lambda Y, P: ratio(2 * (Y & P).sum(axis=-1), Y.sum(axis=-1) + P.sum(axis=-1)).mean(axis=-1),
    "jaccard": lambda Y, P: ratio((Y & P).sum(axis=-1), (Y | P).sum(axis=-1)).mean(axis=-1),
    "f1-macro": lambda Y, P: ratio(2 * (Y & P).sum(axis=-2), Y.sum(axis=-2) + P.sum(axis=-2)).mean(axis=-1),
    "recall": lambda Y, P: ratio((Y & P).sum(axis=-2), Y.sum(axis=-2)).mean(axis=-1),
    "n+": lambda Y, P: (Y & P).any(axis=-2).sum(axis=-1),
}
# Metrics of a single sample for label and prediction arrays of shape (..., L). The Jaccard index of empty sets is 1.
SET_MEASURES = {
    "f1-samples": lambda Y, P: ratio(2 * (Y & P).sum(axis=-1), Y.sum(axis=-1) + P.sum(axis=-1)),
    "jaccard": lambda Y, P: np.where((Y | P).any(axis=-1), ratio((Y & P).sum(axis=-1), (Y | P).sum(axis=-1)), 1.0),
}


@pytest.mark.parametrize("metric", MEASURES)
def test_rules_come_near_the_best_of_all_ways_to_give_two_labels_a_sample(metric):
    rng = np.random.default_rng(0)
    sets = np.array([[1, 1, 0], [1, 0, 1], [0, 1, 1]])
    ways = sets[list(np.ndindex(3, 3, 3))]
    outcomes = np.array(list(np.ndindex(*(2,) * 9))).reshape(-1, 3, 3)
    table = MEASURES[metric](outcomes[:, None], ways)
    lost, lost_by_p = [], []
    for _ in range(20):
        p = expit(1.5 * rng.normal(size=(3, 3)) + [1.0, 0.0, -1.5])
        chance = np.where(outcomes, p, 1 - p).prod(axis=(1, 2))
        expected = chance @ table

        def of(scores, expected=expected):
            return expected[(ways == top_label_sets(scores, 2)).all(axis=(1, 2))][0]

        rule = None
        if metric not in BY_PROBABILITY:
            # Construct labels whose frequencies equal the mean probabilities, because the rule estimates frequencies
            # from labels.
            Y = (np.arange(2000)[:, None] < 2000 * p.mean(axis=0)).astype(np.uint8)
            rule = GainRule.fit(metric, np.repeat(p, 667, axis=0)[:2000], Y, 2, 3)
        lost.append(expected.max() - of(p if rule is None else rule(p)))
        lost_by_p.append(expected.max() - of(p))
    if metric in BY_PROBABILITY:
        assert max(lost) < 1e-12
    else:
        assert np.mean(lost) < 0.5 * np.mean(lost_by_p)
        assert np.mean(lost) < 0.02 * expected.max()


@pytest.mark.parametrize("metric", ["f1-samples", "jaccard"])
@pytest.mark.parametrize("shift", [-4.0, -1.0, 2.0])
def test_sets_of_a_sample_are_the_best_of_all_sets(metric, shift):
    p = expit(2.0 * np.random.default_rng(0).normal(size=(30, 5)) + shift)
    p[0] = 0.3  # all labels have equal probabilities
    every = np.array(list(np.ndindex(*(2,) * 5)))
    table = SET_MEASURES[metric](every[:, None], every)
    given = SetRule(metric, np.empty(0))(p) > 0
    for one, found in zip(p, given, strict=True):
        expected = np.where(every, one, 1 - one).prod(axis=1) @ table
        assert expected[(every == found).all(axis=1)][0] == pytest.approx(expected.max(), abs=1e-9)


def test_unknown_labels_say_nothing_of_the_thresholds_of_macro_f1():
    rng = np.random.default_rng(2)
    p = rng.random((200, 3))
    Y = (rng.random(p.shape) < p).astype(np.uint8)
    known = rng.random(p.shape) < 0.5
    whole = SetRule.fit("f1-macro", p, Y, 200).threshold
    np.testing.assert_array_equal(SetRule.fit("f1-macro", p, Y, 200, np.ones(p.shape, bool)).threshold, whole)
    blind = SetRule.fit("f1-macro", np.where(known, p, 1.0), Y, 200, known).threshold
    np.testing.assert_array_equal(SetRule.fit("f1-macro", np.where(known, p, 0.5), Y, 200, known).threshold, blind)
    np.testing.assert_allclose(blind, whole, atol=0.1)  # a random half of the labels is known


@pytest.mark.parametrize("metric", SET_METRICS)
def test_sets_of_any_size_do_better_in_their_own_metric_than_those_of_another(metric):
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(2400, 20)) * 1.5 + np.linspace(-5, -0.5, 20)
    Y = (rng.random(logits.shape) < expit(logits)).astype(np.uint8)
    found = {other: PlugIn(other, 1200).learn([logits[:1200]], Y[:1200])([logits[1200:]]) for other in SET_METRICS} | {
        "probability 1/2": logits[1200:]
    }
    score = {other: metric_of(metric)(Y[1200:], margins) for other, margins in found.items()}
    assert score[metric] > max(score.values()) - 0.003
    assert score[metric] > score["probability 1/2"] + 0.01


@pytest.mark.parametrize(("metric", "gain"), [("f1-macro", 1.02), ("recall", 1.02), ("n+", 1.02), ("psp", 1.005)])
def test_with_true_probabilities_a_rule_beats_ranking_by_probability_in_its_own_metric(metric, gain):
    rng = np.random.default_rng(1)
    p = expit(rng.normal(size=(4000, 40)) * 1.5 + np.linspace(-5, 0, 40))
    Y = (rng.random(p.shape) < p).astype(np.uint8)
    rule = GainRule.fit(metric, p[:2000], Y[:2000], 5, 50)
    frequency = Y[:2000].mean(axis=0)

    def score(scores):
        if metric == "psp":
            return top_scores(Y[2000:], scores, 5, frequency, 2000).psp
        return MEASURES[metric](
            *(A.astype(np.uint8).reshape(40, 50, 40) for A in (Y[2000:], top_label_sets(scores, 5)))
        ).mean()

    assert score(rule(p[2000:])) > gain * score(p[2000:])


@pytest.mark.parametrize("metric", ["f1@3", "f1-macro@3", "recall@3", "n+@3", "psp@3", "jaccard@3", *SET_METRICS])
def test_no_decoder_gains_from_a_label_that_is_drawn_by_lot(metric):
    Y, (s, _) = drawn(4000)
    rng = np.random.default_rng(2)
    Y[:, 0] = rng.random(len(Y)) < 0.3
    s[:, 0] = rng.normal(size=len(Y))
    decide = PlugIn(metric).learn([s[:2000]], Y[:2000])
    rank = decide([s[2000:]])[:, 0].argsort().argsort()
    assert abs(np.corrcoef(rank, Y[2000:, 0])[0, 1]) < 0.06


def test_scores_of_a_random_label_teach_nothing():
    Y, (s, _) = drawn(4000)
    rng = np.random.default_rng(2)
    Y[:, 0] = rng.random(len(Y)) < 0.3
    s[:, 0] = rng.normal(size=len(Y))
    decide = PlugIn("f1@3").learn([s[:2000]], Y[:2000])
    p = decide.probabilities([s[2000:]])
    rank = p[:, 0].argsort().argsort()
    assert abs(np.corrcoef(rank, Y[2000:, 0])[0, 1]) < 0.06


@pytest.mark.parametrize(
    "decoder",
    [PooledCalibration(), PlugIn("f1@3", 100), PlugIn("precision@2"), PlugIn("f1-macro@3"), *map(PlugIn, SET_METRICS)]
    + [PlugIn(f"{promise}>=0.8") for promise in PROMISES],
)
def test_a_decoder_comes_back_from_its_arrays(decoder):
    Y, scores = drawn()
    fitted = decoder.learn(scores, Y)
    arrays, meta = fitted.to_arrays()
    again = FittedDecoder.from_arrays(arrays, meta)
    np.testing.assert_array_equal(again(scores), fitted(scores))
    np.testing.assert_array_equal(again.sets(scores), fitted.sets(scores))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [(("f2@5",), "known: 'f1@k'"), (("f1",), "'f1@5'"), (("f1@5", 0), "size"), (("recall>=1.5",), "'recall>=0.9'")],
)
def test_unknown_metrics_are_refused(arguments, sentence):
    with pytest.raises(UserError, match=sentence):
        PlugIn(*arguments)


@pytest.mark.parametrize("featured", [True, False])
def test_votes_are_their_definition(featured):
    rng = np.random.default_rng(0)
    Y, S = (rng.random((40, 6)) < 0.3).astype(np.uint8), rng.random((40, 40))
    e = label_directions(rng.random((40, 6)))
    found = votes(e, Y, e, (lambda where: S[where].astype(np.float32)) if featured else None, 8.0, 3.0)
    for i in range(40):
        w = np.array([np.exp(8 * e[i] @ e[j] - featured * 3 * S[i, j]) for j in range(40)])
        np.testing.assert_allclose(found[i], w @ Y / w.sum(), rtol=1e-5)


def neighborhoods(by_rank, seed=0):
    rng = np.random.default_rng(seed)
    Y = (rng.random((30, 5)) < 0.4).astype(np.uint8)
    neighbors = np.array([rng.choice(np.delete(np.arange(30), i), 6, replace=False) for i in range(30)])
    different = (Y[:, None] != Y[neighbors]).mean(axis=2)
    distances = np.stack([different + rng.random((30, 6)), rng.random((30, 6)), different + 3 * rng.random((30, 6))])
    return Neighborhoods.of(neighbors, distances, Y, by_rank), neighbors, distances, Y


@pytest.mark.parametrize("by_rank", [False, True])
@pytest.mark.parametrize("sigma", [False, True])
def test_tagprop_is_at_a_stationary_point_of_the_likelihood_written_by_loops(sigma, by_rank):
    around, neighbors, distances, Y = neighborhoods(by_rank)
    fit = fit_tagprop(around, Y, sigma)

    def loss(w, alpha=fit.slope, beta=fit.intercept):
        total = 0.0
        for i in range(30):
            e = np.exp(w if by_rank else -np.einsum("v,vj->j", w, distances[:, i]))
            x = (e / e.sum()) @ Y[neighbors[i]]
            p = expit(alpha * x + beta) if sigma else (1 - 2e-4) * x + 1e-4
            total -= (np.log(p) * Y[i] / Y.sum() + np.log(1 - p) * (1 - Y[i]) / (Y.size - Y.sum())).sum()
        return total

    assert loss(fit.weights) == pytest.approx(fit.loss, rel=1e-9)
    slopes = approx_fprime(fit.weights, loss, 1e-6)
    free = np.full(len(slopes), True) if by_rank else fit.weights > 0
    assert (np.abs(slopes[free]) < 1e-3).all()
    assert (slopes[~free] > -1e-3).all()
    if sigma:
        of_alpha = approx_fprime(fit.slope, lambda alpha: loss(fit.weights, alpha), 1e-6)
        assert (np.abs(of_alpha[fit.slope > 0]) < 1e-3).all()


def test_aligned_weights_have_the_largest_cosine_with_the_labels():
    rng = np.random.default_rng(0)
    Y = (rng.random((30, 4)) < 0.4).astype(np.uint8)
    features = [Y[:, :2] + 0.3 * rng.normal(size=(30, 2)), Y[:, 2:] + rng.random((30, 2)), rng.normal(size=(30, 3))]
    features.append(features[1].copy())
    d = np.stack([np.linalg.norm(X[:, None] - X[None], axis=2) for X in features])
    d /= d.mean(axis=(1, 2), keepdims=True)
    H = np.eye(30) - 1 / 30
    centered, labels = -np.einsum("ij,vjk,kl->vil", H, d, H), H @ Y @ Y.T @ H

    def cosine(w):
        mixed = np.tensordot(w, centered, 1)
        return (mixed * labels).sum() / np.linalg.norm(mixed) / np.linalg.norm(labels)

    found = aligned_weights([(slice(0, 17), d[:, :17]), (slice(17, 30), d[:, 17:])], Y)
    limits = [(0, None)] * 4
    best = max(-minimize(lambda w: -cosine(w), start, bounds=limits, tol=1e-12).fun for start in np.eye(4) + 0.1)
    assert cosine(found) == pytest.approx(best, abs=1e-5)
    assert (found >= 0).all()


def test_weights_of_few_samples_are_learned_from_all_others():
    near = ViewDistances.fit({"a": "l2", "b": "l2"}, {"a": np.array([[0.0], [1]]), "b": np.array([[1.0], [0]])}, 0)
    assert view_weights("tagprop", near, np.array([[1], [1]])) == {
        "a": 0.5,
        "b": 0.5,
    }  # the only neighbor is the same for all weights


def test_tagprop_finds_the_view_that_knows_the_labels():
    rng = np.random.default_rng(0)
    Y = np.eye(4, dtype=np.uint8)[rng.integers(4, size=200)]
    neighbors = np.array([rng.choice(np.delete(np.arange(200), i), 20, replace=False) for i in range(200)])
    good = 1.0 - (Y[:, None] * Y[neighbors]).sum(axis=2) + 0.1 * rng.random((200, 20))
    fit = fit_tagprop(Neighborhoods.of(neighbors, np.stack([rng.random((200, 20)), good]), Y), Y)
    assert fit.weights[1] > 10 * fit.weights[0]


def test_equal_weights_of_views_have_a_name_and_unknown_ones_are_told_which_there_are():
    assert given_weights("equal", ["hue", "gist"]) == {"hue": 0.5, "gist": 0.5}
    with pytest.raises(UserError, match="weights = 'equals'; known: a weight per view, 'equal', 'tagprop'"):
        given_weights("equals", ["hue", "gist"])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"metric": 5}, "metric = 5"),
        ({"metric": "f1@²"}, "metric = 'f1@²'"),
        ({"size": "many"}, "size = 'many'"),
        ({"metric": "f1-micro", "size": 0}, "size = 0"),
    ],
)
def test_a_decoder_of_values_that_mean_nothing_is_refused(given, words):
    with pytest.raises(UserError, match=re.escape(f"PlugIn: {words}; ")):
        PlugIn(**given)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_predict_by_score_thresholds_equals_probabilities(kind):
    """Compare scores with thresholds for many samples, and probabilities for few samples."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5000, 8)).astype(kind)
    Y = (X[:, :6] + rng.normal(size=(5000, 6)) > [0, 0.5, 1, 1.5, 2, 9]).astype(np.uint8)
    model = MultiViewRidge("linear", approximation=Nystrom(rank=8)).fit(X[:1000], Y[:1000])
    scores = model.decision_function(X)
    wanted = model.decoding_.probabilities([scores]) > model.decoding_.thresholds
    assert np.array_equal(model.predict(X), wanted)
    # Test scores that equal the thresholds.
    decide = lambda S: model.decoding_.sets([S])  # noqa: E731
    edge = score_thresholds(decide, 6)
    assert not decide(edge[None])[0, :5].any()
    assert decide(np.nextafter(edge, np.inf)[None])[0, :5].all()
