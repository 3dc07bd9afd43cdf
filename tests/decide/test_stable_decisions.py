"""Check that decisions depend neither on the last digits of scores nor on the order of samples."""

import numpy as np
import pytest
from scipy.special import expit

from dmo.decide.probabilities import PRECISION, folds_of_keys, learn_thresholds
from dmo.decide.rules import PROMISES, SET_METRICS, SetRule
from dmo.decide.score_rule import ScoreRule
from dmo.decoders import Calibration, PlugIn, PooledCalibration

DECODERS = [
    Calibration(),
    PooledCalibration(),
    *map(PlugIn, SET_METRICS),
    *(PlugIn(f"{name}>=0.8") for name in PROMISES),
]


def drawn(n, L, seed=0, step=None):
    """Return scores and labels of n samples, and scores of 300 new samples. If `step` is given, round the scores."""
    rng = np.random.default_rng(seed)
    Y = (rng.random((n + 300, L)) < np.geomspace(0.1, 0.4, L)).astype(np.uint8)
    scores = Y + 0.8 * rng.normal(size=Y.shape) - 0.2
    scores = scores if step is None else np.round(scores / step) * step
    return scores[:n], Y[:n], scores[n:]


@pytest.mark.parametrize("decoder", DECODERS, ids=str)
@pytest.mark.parametrize(
    ("n", "L", "step"), [(60, 6, None), (400, 5, None), (150, 5, 0.5)], ids=["few", "many", "votes"]
)
def test_decision_ignores_relative_errors_of_1e6(decoder, n, L, step):
    """At most 0.1 % of the predicted entries change, and thresholds change by at most 1e-4."""
    rng = np.random.default_rng(1)
    for seed in range(3):
        scores, Y, new = drawn(n, L, seed, step)
        known = rng.random(Y.shape) < 0.8 if seed == 2 else None
        fitted = decoder.learn([scores], Y, known)
        for size in (1e-15, 1e-9, 1e-6):
            other = decoder.learn([scores * (1 + size * rng.normal(size=scores.shape))], Y, known)
            changed = fitted.sets([new]) != other.sets([new])
            assert changed.mean() <= 0.001
            if fitted.rule is not None:
                np.testing.assert_allclose(other.rule.threshold, fitted.rule.threshold, atol=1e-4)
            np.testing.assert_allclose(other.thresholds, fitted.thresholds, atol=1e-4)


@pytest.mark.parametrize("most", [2**21, 2**10], ids=["all", "subsets"])
@pytest.mark.parametrize("decoder", DECODERS, ids=str)
def test_decision_ignores_the_order_of_samples(decoder, most, monkeypatch):
    for name in ("probabilities._MOST", "probabilities._FIRST", "probabilities._SORTED", "rules._MOST"):
        monkeypatch.setattr(f"dmo.decide.{name}", most)
    scores, Y, new = drawn(400, 5)
    keys, order = np.random.default_rng(2).integers(0, 2**63, 400), np.random.default_rng(3).permutation(400)
    fitted = decoder.learn([scores], Y, keys=keys)
    other = decoder.learn([scores[order]], Y[order], keys=keys[order])
    np.testing.assert_allclose(other([new]), fitted([new]), atol=1e-6)
    np.testing.assert_array_equal(other.sets([new]), fitted.sets([new]))


def test_subset_of_a_default_fit_ignores_the_order_of_samples(monkeypatch):
    monkeypatch.setattr("dmo.decide.decoders._ENTRIES", 2**10)
    scores, Y, new = drawn(1200, 3)
    keys, order = np.random.default_rng(2).integers(0, 2**63, 1200), np.random.default_rng(3).permutation(1200)
    for classes in (False, True):
        labels = np.eye(3, dtype=np.uint8)[scores.argmax(axis=1)] if classes else Y
        given = np.ones(3, bool), classes, None
        fitted = Calibration().learn_aside([scores], labels, *given, keys)
        other = Calibration().learn_aside([scores[order]], labels[order], *given, keys[order])
        np.testing.assert_allclose(other.probabilities([new]), fitted.probabilities([new]), atol=1e-6)
        np.testing.assert_array_equal(other.sets([new]), fitted.sets([new]))


def test_folds_of_keys_are_random_and_equal_for_equal_keys():
    keys = np.arange(10000)
    for count in (2, 5):
        fold = folds_of_keys(keys, count)
        np.testing.assert_allclose(np.bincount(fold), 10000 / count, rtol=0.1)
        assert abs(np.corrcoef(fold, keys)[0, 1]) < 0.05
        assert abs(np.corrcoef(fold[1:], fold[:-1])[0, 1]) < 0.05
        np.testing.assert_array_equal(folds_of_keys(np.tile(keys, 2), count), np.tile(fold, 2))


def test_constant_scores_stay_constant_despite_floating_point_error():
    scores, Y, new = drawn(200, 4)
    scores[:, 1], new[:, 1] = 0.1, 0.1
    wanted = Calibration().learn([scores], Y)
    noise = 1 + 1e-9 * np.random.default_rng(0).normal(size=200)
    scores[:, 1] *= noise
    found = Calibration().learn([scores], Y)
    np.testing.assert_allclose(found.probabilities([new]), wanted.probabilities([new]), atol=1e-6)
    rules = [ScoreRule.learn(Y.mean(axis=0), 200, s, False, standardize=1.0) for s in (scores, np.full((200, 4), 0.1))]
    assert rules[0].deviation[1] == rules[1].deviation[1] == 1.0
    assert rules[0].deviation[0] == pytest.approx(scores[:, 0].std())


@pytest.mark.parametrize("metric", ["f1-samples", "jaccard"])
def test_labels_of_equal_probability_are_all_given_or_none(metric):
    p = np.array([[0.6, 0.6, 0.6, 0.1], [0.9, 0.3, 0.3, 0.3], [0.5, 0.5, 0.02, 0.02], [0.2, 0.2, 0.2, 0.2]])
    rule, rng = SetRule(metric, np.empty(0)), np.random.default_rng(0)
    given = rule(p) > 0
    for row, sets in zip(p, given, strict=True):
        assert all(len(set(sets[row == value])) == 1 for value in row)
    assert 0 < given.sum() < given.size
    for _ in range(20):
        noise = 1 + 0.1 * PRECISION * rng.uniform(-1, 1, p.shape)
        np.testing.assert_array_equal(rule(p * noise) > 0, given)


def test_fewest_labels_are_given_among_equally_good_numbers():
    """Assigning a label of probability 1/2 or not assigning it yields the same expected Jaccard index."""
    rule = SetRule("jaccard", np.empty(0))
    for p in (0.5, 0.5 + 1e-7, 0.5 - 1e-7):
        assert not (rule(np.array([[p]])) > 0).any()
    assert (rule(np.array([[0.501]])) > 0).all()


def test_thresholds_move_continuously_with_probabilities():
    """Test also with 80 000 entries, for which all gaps between probabilities are below the precision."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(20000, 4)) * 1.5 - 1
    Y = rng.random(logits.shape) < expit(logits)
    found = learn_thresholds(expit(logits), Y)
    for size in (1e-9, 1e-5):
        moved = learn_thresholds(expit(logits + size * rng.normal(size=logits.shape)), Y)
        np.testing.assert_allclose(moved, found, atol=10 * size)
