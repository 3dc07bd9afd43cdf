"""Compare the thresholds of guarantees with brute force, and check the guaranteed level on new samples."""

import logging

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import norm

from dmo.decide.rules import PROMISES, HeldOut, SetRule
from dmo.decoders import FittedDecoder, PlugIn


def threshold_of(name, p, Y, counts=None):
    return SetRule.fit(name, p, Y, 500, counts).threshold


def losses(what, p, t, Y, counts):
    """Compute the losses and weights with loops over samples, or over positive labels for "recall-macro"."""
    given, known = p > t, counts > 0
    if what == "recall-macro":
        weights = counts[Y & known]
        return (~given[Y & known]).astype(float), weights, 1.0, weights.max(initial=0.0)
    some = known.any(axis=1)
    weights = counts.max(axis=1)
    cost = counts * (weights.sum() / np.maximum(counts.sum(axis=0), 1e-9)) / np.maximum(weights, 1e-9)[:, None]
    out = []
    for i in np.flatnonzero(some):
        if what == "recall":
            labels = np.flatnonzero(Y[i] & known[i])
            out.append(sum(cost[i, l] for l in labels if not given[i, l]) / max(len(labels), 1))
        else:
            sets = [p[i] >= value for value in p[i] if value > t]
            out.append(max([cost[i, one & ~Y[i]].sum() / one.sum() for one in sets], default=0.0))
    return np.array(out), weights[some], cost.max(), weights.max()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("what", ["recall", "recall-macro", "precision"])
def test_guarantee_takes_the_best_threshold_of_all(what, weighted):
    rng, tried = np.random.default_rng(0), 0
    for level in (0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.97):
        p = np.round(rng.random((14, 4)), 1)  # rounding creates ties
        Y = rng.random(p.shape) < p
        counts = rng.integers(0, 3, p.shape).astype(float) if weighted else np.ones(p.shape)
        found = threshold_of(f"{what}>={level}", p, Y, counts if weighted else None)
        for part in np.hsplit(np.arange(4), 4) if what == "recall-macro" else [slice(None)]:
            kept = []
            for t in np.append(np.arange(20) / 20 - 0.025, [-1.0, 1.0]):
                loss, often, most, largest = losses(what, p[:, part], t, Y[:, part], counts[:, part])
                if often @ loss + largest * most <= (1 - level) * (often.sum() + largest) + 1e-9 and len(loss):
                    kept.append(t)
            worst = 1.0 if what == "precision" else -1.0
            best = (min if what == "precision" else max)(kept, default=worst)
            assert ((p[:, part] > found[part][0]) == (p[:, part] > best)).all()
            tried += bool(kept) and best != worst
    assert tried


def micro_precision_tests(level, p, Y, counts):
    """Compute the statistic of every tested threshold, and the initial threshold, with loops."""
    often = counts.max(axis=1)
    cost = np.where(counts > 0, counts, 0) * often.sum() / np.maximum(counts.sum(axis=0), 1e-9)
    order = np.argsort(-p, axis=None)
    weight = np.repeat(often, p.shape[1])[order]
    tested, found, expected = [], [], []
    for fraction in 1.05 ** -np.arange(280.0)[::-1]:
        last = np.flatnonzero(np.cumsum(weight) >= fraction * weight.sum() * (1 - 1e-12))[0]
        t = -1.0 if fraction == 1 else p.ravel()[order][last] - 1e-6
        excess = [(cost[i] * (level - Y[i]))[p[i] > t].sum() for i in range(len(p))]
        wrong = level * (cost / often[:, None]).max() * often.max()
        found.append(sum(excess) + norm.ppf(0.9) * np.sqrt(np.square(excess).sum()) + wrong)
        above = p > t
        predicted = (often[:, None] * above * (level - p)).sum() + wrong
        spread = (often[:, None] ** 2 * above * p * (1 - p)).sum() + (
            cost / often[:, None]
        ).max() ** 2 * often.max() ** 2
        expected.append(predicted / np.sqrt(spread))
        tested.append(t)
    first = int(np.argmin(expected))
    return np.array(tested)[first:], np.array(found)[first:]


@pytest.mark.parametrize("weighted", [False, True])
def test_micro_precision_stops_before_the_first_failed_test(weighted):
    rng, ends = np.random.default_rng(3), set()
    for level in (0.3, 0.7, 0.9):
        p = np.round(expit(2 * rng.normal(size=(50, 3)) + 0.5), 2)
        Y = rng.random(p.shape) < p
        counts = rng.integers(0, 3, p.shape).astype(float) if weighted else np.ones(p.shape)
        counts[counts.max(axis=1) == 0, 0] = 1.0
        tested, test = micro_precision_tests(level, p, Y, counts)
        failed = np.flatnonzero(test > 0)
        end = failed[0] if len(failed) else None
        found = threshold_of(f"precision-micro>={level}", p, Y, counts if weighted else None)[0]
        if end is None or end == 0:
            assert found == (-1.0 if end is None else 1.0)
        else:
            assert tested[end - 1] - 1e-4 <= found <= tested[max(0, end - 2)] + 1e-4
        ends.add("all" if end is None else "none" if end == 0 else "some")
    assert ends >= {"all", "some"}


def world(n, L, rng):
    """Return logits and labels of n samples. About half of the samples have more labels than the others."""
    z = 1.6 * rng.normal(size=(n, L)) + np.linspace(-2.5, -0.3, L) + 1.5 * (rng.random((n, 1)) < 0.5)
    return z, rng.random(z.shape) < expit(z)


def mean_score(what, sets, Y):
    """Compute recall or precision averaged over samples, labels or assigned labels. Undefined values count as 1."""
    hits = sets & Y
    if what == "precision-micro":
        return hits.sum() / sets.sum() if sets.any() else 1.0
    if what == "recall-macro":
        return (hits.sum(axis=0)[Y.any(axis=0)] / Y.sum(axis=0)[Y.any(axis=0)]).mean()
    size = (Y if what == "recall" else sets).sum(axis=1)
    return np.where(size > 0, hits.sum(axis=1) / np.maximum(size, 1), 1.0).mean()


HIDDEN = {
    "known": lambda n, L, rng: np.ones((n, L)),
    "half unknown": lambda n, L, rng: rng.random((n, L)) < 0.5,
    "most unknown": lambda n, L, rng: rng.random((n, L)) < 0.2,
    "by label": lambda n, L, rng: rng.random((n, L)) < np.linspace(0.3, 0.9, L),
    "by sample": lambda n, L, rng: rng.random((n, L)) < np.where(rng.random((n, 1)) < 0.5, 1.0, 0.1),
    "whole samples": lambda n, L, rng: np.tile(rng.random((n, 1)) < 0.3, L),
    "weights of 1/n": lambda n, L, rng: np.full((n, L), 1 / n),
    "weights of 1000": lambda n, L, rng: np.full((n, L), 1000.0),
    "weights from 1 to 3": lambda n, L, rng: np.tile(rng.integers(1, 4, (n, 1)), L),
}


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("name", ["recall>=0.9", "recall-macro>=0.8", "precision>=0.8", "precision-micro>=0.8"])
def test_guarantee_holds_on_new_samples_over_draws(name, hidden):
    rng, found = np.random.default_rng(0), []
    what, level = name.split(">=")
    new, truth = world(4000, 5, rng)
    for n in np.tile([40, 160], 40):
        z, Y = world(n, 5, rng)
        counts = np.asarray(HIDDEN[hidden](n, 5, rng), float)
        found.append(mean_score(what, new > logits(threshold_of(name, expit(z), Y & (counts > 0), counts)), truth))
    mean, error = np.mean(found), np.std(found) / np.sqrt(len(found))
    assert mean > float(level) - 4 * error
    if hidden != "most unknown" and what not in ("precision", "precision-micro"):
        assert mean < (1 + float(level)) / 2 + 0.01  # the rule does not assign every label
    if what == "precision-micro":
        assert np.mean(np.array(found) < float(level)) < 0.1 + 4 * 0.034


def logits(p):
    return np.log(np.clip(p, 1e-12, None)) - np.log1p(-np.clip(p, None, 1 - 1e-12))


@pytest.mark.parametrize("name", ["recall>=0.9", "recall-macro>=0.8", "precision>=0.8", "precision-micro>=0.7"])
def test_guarantee_does_not_depend_on_the_scale_of_weights(name):
    z, Y = world(150, 5, np.random.default_rng(0))
    counts = np.random.default_rng(1).integers(0, 4, Y.shape).astype(float)
    found = threshold_of(name, expit(z), Y, counts)
    for scale in (1 / 150, 1000.0):
        np.testing.assert_allclose(threshold_of(name, expit(z), Y, scale * counts), found, rtol=1e-9)
    assert ((found > 0) & (found < 1)).any()


def test_single_label_ignores_samples_whose_label_is_unknown():
    z, Y = world(200, 1, np.random.default_rng(0))
    known = np.random.default_rng(1).random(Y.shape) < 0.4
    rows = known[:, 0]
    for name in ("recall>=0.9", "precision>=0.8", "precision-micro>=0.6"):
        found = threshold_of(name, expit(z), Y & known, known)
        np.testing.assert_allclose(found, threshold_of(name, expit(z[rows]), Y[rows]), rtol=1e-9)
        assert 0 < found[0] < 1


def test_guarantee_holds_with_probabilities_learned_from_the_same_samples():
    """Learn the threshold from out-of-fold probabilities, and apply it to new samples, as a fit does."""
    found = []
    for seed in range(25):
        z, Y = world(560, 5, np.random.default_rng(seed))
        sets = PlugIn("recall>=0.9").learn([z[:60]], Y[:60].astype(np.uint8)).sets([z[60:]]).astype(bool)
        found.append(mean_score("recall", sets, Y[60:]))
    assert 0.9 - 4 * np.std(found) / np.sqrt(len(found)) < np.mean(found) < 0.95


def test_guarantee_that_few_samples_cannot_keep_gives_all_labels_or_none():
    z, Y = world(8, 3, np.random.default_rng(0))
    Y[0] = True
    given = {name: expit(z) > threshold_of(name, expit(z), Y) for name in ("recall>=.95", "precision>=.95")}
    assert given["recall>=.95"].all()
    assert not given["precision>=.95"].any()
    assert not (expit(z) > threshold_of("precision-micro>=.95", expit(z), Y)).any()
    np.testing.assert_array_equal(threshold_of("fnr<=0.25", expit(z), Y), threshold_of("recall >= 0.75", expit(z), Y))


def test_recall_that_needs_no_label_gives_none():
    p, Y = np.random.default_rng(0).random((20, 3)), np.zeros((20, 3), bool)
    Y[:3, 0] = True
    assert not (p > threshold_of("recall>=0.5", p, Y)).any()
    assert (p[:3, 0] > threshold_of("recall>=0.97", p, Y)).all()


@pytest.mark.parametrize("name", ["recall>=0.9", "precision>=0.6", "precision-micro>=0.7"])
def test_equal_values_are_on_the_same_side_of_a_threshold(name):
    """Perturb ten distinct probabilities by floating-point errors that differ between samples."""
    rng = np.random.default_rng(0)
    p = np.round(rng.random((300, 4)), 1) * 0.9 + 0.05
    Y = rng.random(p.shape) < p
    given = p > threshold_of(name, p * (1 + 1e-9 * rng.normal(size=p.shape)), Y)
    np.testing.assert_array_equal(given, p > threshold_of(name, p, Y))
    assert 0 < given.mean() < 1


def test_tied_labels_of_a_sample_count_as_one_set_in_precision():
    """A wrong label costs 1 above the correct label, and 1/2 if both labels have the same probability."""
    p, Y = np.tile([0.7, 0.7, 0.2], (40, 1)), np.tile([False, True, False], (40, 1))
    for tied, wanted in (
        (p, [True, True, False]),
        (p + [1e-9, 0, 0], [True, True, False]),
        (p + [0.01, 0, 0], [False] * 3),
    ):
        assert (tied[0] > threshold_of("precision>=0.45", tied, Y)).tolist() == wanted


def test_rule_reports_right_labels_and_empty_sets():
    z, Y = world(300, 5, np.random.default_rng(0))
    counts = np.random.default_rng(1).integers(0, 4, Y.shape)
    for name, weights in (("precision>=0.8", None), ("recall>=0.8", None), ("precision-micro>=0.6", counts)):
        rule = SetRule.fit(name, expit(z), Y, 500, weights)
        given = expit(z) > rule.threshold
        c = np.ones(Y.shape) if weights is None else counts
        w = c.max(axis=1)
        cost = c / c.sum(axis=0)
        assert rule.right == pytest.approx((cost * (given & Y)).sum() / (cost * given).sum())
        assert rule.empty == pytest.approx(w @ ~given.any(axis=1) / w.sum())
    none = SetRule.fit("precision>=0.999", expit(z), Y, 500)
    assert (none.right, none.empty) == (None, 1.0)


def test_precision_over_samples_and_of_given_labels_differ_where_sets_are_empty():
    """Half of the samples have no labels, and an empty set counts as correct for these samples."""
    z, Y = world(600, 5, np.random.default_rng(0))
    z[::2], Y[::2] = -9.0, False
    samples, micro = (SetRule.fit(f"{name}>=0.8", expit(z), Y, 500) for name in ("precision", "precision-micro"))
    assert samples.right < 0.75
    assert micro.right > 0.8
    assert samples.empty > 0.5
    assert micro.threshold[0] > samples.threshold[0]


def test_guarantee_is_reported_when_it_is_learned_and_saved(caplog):
    z, Y = world(200, 5, np.random.default_rng(0))
    with caplog.at_level(logging.INFO, "dmo"):
        fitted = PlugIn("precision>=0.8").learn([z], Y.astype(np.uint8))
    assert f"precision>=0.8: on held-out samples, {fitted.rule.right:.2f} of the given labels are right" in caplog.text
    again = FittedDecoder.from_arrays(*fitted.to_arrays())
    assert (again.rule.right, again.rule.empty) == (fitted.rule.right, fitted.rule.empty)
    arrays, meta = fitted.to_arrays()
    old = FittedDecoder.from_arrays(arrays, meta | {"rule": {"metric": "precision>=0.8"}})
    assert old.rule.right is None
    np.testing.assert_array_equal(old.sets([z]), fitted.sets([z]))


def test_largest_loss_is_the_largest_inverse_rate_of_known_entries():
    counts = np.array([[1.0, 0, 2], [1, 2, 0], [0, 0, 0], [1, 0, 0]])
    held = HeldOut.of(np.full((4, 3), 0.5), np.ones((4, 3), bool), counts)
    np.testing.assert_allclose(held.often, [1, 1, 0.5])
    np.testing.assert_allclose(held.entries, np.array([[1, 0, 2], [1, 2, 0], [1, 0, 0]]) / 2 * [2.5 / 1.5, 2.5, 2.5])
    assert held.most == pytest.approx(2.5)
    assert len(PROMISES) == 4
