"""Probabilities of labels from held-out scores, and the thresholds above which labels are given.

Probabilities of labels from held-out scores: one small logistic regression that all labels share.

logit p_il = sum_k (b_k z_kil + b'_k z_kil^2 + b''_k z_kil phi_l) + eta phi_l + theta phi_l^2 + zeta over the score
matrices k at hand, z_k the scores standardized per label, phi_l the standardized log frequency of label l. A logistic
regression per label (Platt) has too few positives to learn from where labels are rare; this one has 3 K + 3 numbers.
What single labels have enough samples for is added to it: logit p_il <- (1 + a_l) logit p_il + c_l, the largest posterior
under a normal prior of a_l and c_l around 0 (`refined`). Then a label's probability grows with its score, as a parabola does
not: past its vertex it goes on with a small slope, and 1 + a_l is above 0. Leave-one-out scores of a label that cannot be
learned fall with the label, since the mean of the others does, which new samples do not repeat.

Measured on test samples with ridge scores, log loss of the pooled regression -> refined, and LRAP of raw scores -> ranked by
the refined probabilities: enron .1445 -> .1425, .662 -> .674; yeast .4403 -> .4316, .766 -> .769; scene .1986 -> .1974,
.880 -> .887. The precision of the prior, 1 to 20, moved neither by .002.

From label probabilities to label sets: the threshold that is expected to give the highest micro F1.

Held-out probabilities choose between one threshold for all labels and one per label, which is drawn towards the common
one the fewer positives a label has: logit t_l = w_l logit t*_l + (1 - w_l) logit t, w_l = n_l / (n_l + 20). With true
probabilities one threshold is the best there is [Lipton, Elkan, Narayanaswamy 2014]; thresholds per label that are not
drawn together took micro F1 on enron from .58 to .38.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import scipy.linalg
from scipy.optimize import brentq
from scipy.special import expit, logit, softmax

from dmo.blocks import row_blocks

_ENTRIES = 2**18  # sample-label pairs whose regressors are in memory at a time
_MOST = 2**21  # pairs that the 3 K + 3 numbers are learned from: more of them cost passes, and change no third digit
_FIRST = 2**17  # pairs whose regression the steps over all others begin at
_STEPS = 50
_SLOPE_PRIOR = 5.0  # precision of a label's own slope and offset; 20 samples with p = 1/2 weigh as much
_SLOPE = 0.05  # least slope of the logit of a label in its standardized score, and least of 1 + a
_CROSSED = 5  # parts of the samples whose probabilities the others learn
_SMALLEST = 1e-9  # a relative ridge: a score matrix that repeats another would make the Newton system singular


@dataclass(frozen=True)
class PooledProbabilities:
    """Label probabilities of score matrices, by one logistic regression that all labels share."""

    mean: np.ndarray  # (K, L): of the held-out scores that the fit saw
    deviation: np.ndarray  # (K, L): of the held-out scores that the fit saw
    rarity: np.ndarray  # (L,): phi
    seen: np.ndarray  # (L,): whether any training sample carries the label
    coefficients: np.ndarray  # (3 K + 3,): b, b', b'' of every score matrix, then eta, theta, zeta
    own: np.ndarray  # (2, L): a, c of every label
    ordered: bool = False  # whether a label's probability grows with its score everywhere

    @classmethod
    def fit(
        cls, scores: Sequence[np.ndarray], Y: np.ndarray, counts: np.ndarray | None = None, entries: int = _MOST
    ) -> Self:
        """Learn the regression by maximum likelihood.

        scores, Y, counts (n, L)
        """
        frequency = label_frequency(Y, counts)
        n = len(Y) if counts is None else np.maximum(counts.sum(axis=0), 1)
        log_frequency = np.log(np.maximum(frequency, 0.5 / n))
        spread = log_frequency.std()
        found = [mean_and_deviation(part, row_counts(counts)) for part in scores]
        deviation = np.array([deviation for _, deviation in found])
        model = cls(
            np.array([mean for mean, _ in found]),
            np.where(deviation > 0, deviation, 1.0),
            (log_frequency - log_frequency.mean()) / (spread if spread > 0 else 1.0),
            frequency > 0,
            np.zeros(3 * len(scores) + 3),
            np.zeros((2, Y.shape[1])),
        )
        for most in dict.fromkeys((min(_FIRST, entries, Y.size), min(entries, Y.size))):
            few = some_samples(Y, most)
            part = [matrix[few] for matrix in scores], Y[few], None if counts is None else counts[few]
            model = replace(model, coefficients=_newton(model, *part))
        return model

    def refined(self, scores: Sequence[np.ndarray], Y: np.ndarray, counts: np.ndarray | None = None) -> Self:
        """Add a slope and an offset of every label's own.

        scores, Y, counts (n, L)
        """
        ordered = replace(self, ordered=True)
        return replace(ordered, own=_own_lines(ordered._logits(scores), np.asarray(Y, np.float64), counts))

    def crossed(
        self, p: np.ndarray, scores: Sequence[np.ndarray], Y: np.ndarray, counts: np.ndarray | None = None
    ) -> np.ndarray:
        """The probabilities `p` of the samples as those learn them that belong to other folds.

        p, scores, Y, counts (n, L) -> (n, L)
        """
        fold, out = _folds(p, _CROSSED), p.copy()
        for number in np.unique(fold):
            old, new = fold != number, fold == number
            if old.any():
                given = [part[old] for part in scores], Y[old], None if counts is None else counts[old]
                out[new] = self.fit(*given).refined(*given)([part[new] for part in scores])
        return out

    def __call__(self, scores: Sequence[np.ndarray]) -> np.ndarray:
        """Probabilities (m x L, float64) of K score matrices (m x L); 0 for labels without a training sample."""
        out = expit((1 + self.own[0]) * self._logits(scores) + self.own[1])
        out[:, ~self.seen] = 0.0
        return out

    def _logits(self, scores: Sequence[np.ndarray]) -> np.ndarray:
        """Of the pooled regression (m x L)."""
        out = np.empty(scores[0].shape)
        for where in self._blocks(len(out)):
            if not self.ordered:
                out[where] = (self.coefficients @ self._regressors(scores, where)).reshape(-1, len(self.rarity))
                continue
            out[where] = self.coefficients[-3:] @ np.stack([self.rarity, self.rarity**2, np.ones_like(self.rarity)])
            for k, (part, mean, deviation) in enumerate(zip(scores, self.mean, self.deviation, strict=True)):
                out[where] += self._rising(k, (part[where] - mean) / deviation)
        return out

    def _rising(self, k: int, z: np.ndarray) -> np.ndarray:
        """What score matrix k adds to the logits: its parabola from the mean on, straight past the vertex."""
        linear, square, by_rarity = self.coefficients[3 * k : 3 * k + 3]
        slope = np.maximum(linear + by_rarity * self.rarity, _SLOPE)
        if square == 0:
            return np.asarray(slope * z)
        vertex = -slope / (2 * square)
        inside = np.maximum(z, vertex) if square > 0 else np.minimum(z, vertex)
        return np.asarray((slope + square * inside) * inside + _SLOPE * (z - inside))

    def _blocks(self, n: int) -> list[slice]:
        return row_blocks(n, max(1, _ENTRIES // len(self.rarity)))

    def _regressors(self, scores: Sequence[np.ndarray], where: slice) -> np.ndarray:
        shape = (where.stop - where.start, len(self.rarity))
        columns = []
        for part, mean, deviation in zip(scores, self.mean, self.deviation, strict=True):
            z = (part[where] - mean) / deviation
            columns += [z, z * z, z * self.rarity]
        columns += [np.broadcast_to(column, shape) for column in (self.rarity, self.rarity**2, 1.0)]
        return np.stack([column.ravel() for column in columns])

    def to_arrays(self) -> dict[str, Any]:
        """Describe it for a model store."""
        return {key: getattr(self, key) for key in ("mean", "deviation", "rarity", "seen", "coefficients", "own")} | {
            "ordered": np.array(self.ordered)
        }


@dataclass(frozen=True)
class SoftmaxProbabilities:
    """Probabilities of classes: softmax of `scale` times the scores, which keeps the order of the classes."""

    scale: np.ndarray  # (1,): above 0
    seen: np.ndarray  # (L,): whether any training sample is of the class

    @classmethod
    def fit(cls, scores: Sequence[np.ndarray], Y: np.ndarray, counts: np.ndarray | None = None) -> Self:
        """Learn the scale by maximum likelihood.

        scores, Y, counts (n, L)
        """
        often = np.ones(len(Y)) if counts is None else counts[:, 0].astype(np.float64)
        seen, S = often @ Y > 0, scores[0] - scores[0].max(axis=1, keepdims=True)
        S, Y, often = S[:, seen], Y[:, seen], often / often.sum()
        spread = float(np.sqrt(max(0.0, often @ (S**2).mean(axis=1) - (often @ S.mean(axis=1)) ** 2)))
        if not spread > 1e-12 * np.abs(S).max(initial=0.0):  # one class, or scores that tell nothing
            return cls(np.ones(1), seen)

        def slope(log_scale: float) -> float:
            """Of the mean loss, which is convex in the scale."""
            return float(often @ ((softmax(np.exp(log_scale) / spread * S, axis=1) - Y) * S).sum(axis=1)) / spread

        ends = -5.0, 5.0
        found = ends[0] if slope(ends[0]) >= 0 else ends[1] if slope(ends[1]) <= 0 else brentq(slope, *ends, xtol=1e-12)
        return cls(np.array([np.exp(found) / spread]), seen)

    def __call__(self, scores: Sequence[np.ndarray]) -> np.ndarray:
        """Probabilities (m x L, of sum 1) of a score matrix (m x L); 0 for classes without a training sample."""
        return np.asarray(softmax(np.where(self.seen, self.scale[0] * scores[0], -np.inf), axis=1))

    def to_arrays(self) -> dict[str, Any]:
        """Describe it for a model store."""
        return {"scale": self.scale, "seen": self.seen}


def label_frequency(Y: np.ndarray, counts: np.ndarray | None) -> np.ndarray:
    """Work out the share of the entries of every label that are 1.

    Y, counts (n, L) -> (L,)
    """
    if counts is None:
        return np.asarray(Y.sum(axis=0), np.float64) / len(Y)
    total = counts.sum(axis=0)
    return np.asarray(np.where(counts > 0, counts * Y, 0).sum(axis=0), np.float64) / np.where(total > 0, total, 1)


def row_counts(counts: np.ndarray | None) -> np.ndarray | None:
    """Work out how often samples count from how often their labels do: as often as the one that does most.

    counts (n, L) -> (n,)
    """
    return None if counts is None else np.asarray(counts.max(axis=1, initial=0), np.float64)


def mean_and_deviation(scores: np.ndarray, often: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Work out mean and standard deviation of every score, in float64.

    scores (n, L); often (n,) -> mean, deviation (L,)
    """
    if often is None:
        return scores.mean(axis=0, dtype=np.float64), scores.std(axis=0, dtype=np.float64)
    share = often / often.sum()
    mean = share @ scores
    return mean, np.sqrt(share @ (scores - mean) ** 2)


def some_samples(Y: np.ndarray, entries: int) -> np.ndarray | slice:
    """Pick samples at random, the same ones every time, with about so many labels in all.

    Y (n, L)
    """
    if Y.size <= entries:
        return slice(None)
    return np.sort(np.random.default_rng(0).choice(len(Y), max(1, entries // Y.shape[1]), replace=False))


def _newton(
    model: PooledProbabilities, scores: Sequence[np.ndarray], Y: np.ndarray, counts: np.ndarray | None
) -> np.ndarray:
    """Coefficients of the largest likelihood, by Newton steps from the model's that are halved until the likelihood
    grows.
    """
    # z^2 of rare labels reaches thousands, where a full step from zero overshoots; columns are scaled to deviation 1,
    # since the Hessian of the raw ones has a condition number of their squared scale. A trial's loss comes with its
    # gradient and its Hessian: nearly every trial is taken. Making the regressors is most of a pass, so that one block is
    # kept.

    def blocks() -> Iterator[tuple[np.ndarray, np.ndarray, Any]]:
        for where in model._blocks(len(Y)):
            picked: Any = slice(None) if counts is None else np.flatnonzero(counts[where])
            often = 1.0 if counts is None else counts[where].ravel()[picked].astype(np.float64)
            yield model._regressors(scores, where)[:, picked], np.asarray(Y[where], np.float64).ravel()[picked], often

    kept = list(blocks()) if len(model._blocks(len(Y))) == 1 else None
    size = Y.size if counts is None else float(counts.sum()) or 1.0
    scale = np.sqrt(sum(np.einsum("ij,ij->i", A, A * often) for A, _, often in kept or blocks()) / size)
    scale[scale == 0] = 1.0

    def evaluated(w: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Mean loss, and the gradient and the Hessian of the sum."""
        loss, gradient, hessian = 0.0, np.zeros(len(w)), np.zeros((len(w), len(w)))
        for A, y, often in kept or blocks():
            logit = (w / scale) @ A
            small = np.exp(-np.abs(logit))
            loss += float((often * (np.log1p(small) + np.maximum(logit, 0) - y * logit)).sum())
            p = np.where(logit < 0, small, 1.0) / (1 + small)
            gradient += A @ (often * (p - y))
            hessian += (A * (often * p * (1 - p))) @ A.T
        return loss / size, gradient / scale, hessian / np.outer(scale, scale)

    w = model.coefficients * scale
    best, gradient, hessian = evaluated(w)
    for _ in range(_STEPS):
        hessian.flat[:: len(w) + 1] += _SMALLEST * max(np.trace(hessian), 1.0)
        step = scipy.linalg.solve(hessian, gradient, assume_a="pos")
        trial = evaluated(w - step)
        while trial[0] > best and np.abs(step).max() > 1e-10:
            step = step / 2
            trial = evaluated(w - step)
        gained = best - trial[0]
        if gained < 0:  # a step of 1e-10 that rounding makes worse
            break
        w, (best, gradient, hessian) = w - step, trial
        if gained < 1e-12:
            break
    return w / scale


def _own_lines(logits: np.ndarray, Y: np.ndarray, counts: np.ndarray | None) -> np.ndarray:
    """a and c of every label (2 x L), all labels by Newton's steps side by side, which are cut at 1: no step overshoots."""
    center = mean_and_deviation(logits, row_counts(counts))[0]
    x = logits - center  # slope and offset are nearly independent then
    slope, offset = np.zeros((2, Y.shape[1]))
    for _ in range(_STEPS):
        p = expit(logits + slope * x + offset)
        weight, error = p * (1 - p), p - Y
        if counts is not None:
            weight, error = weight * counts, error * counts
        first = np.stack([(error * x).sum(axis=0) + _SLOPE_PRIOR * slope, error.sum(axis=0) + _SLOPE_PRIOR * offset])
        aa, ab, bb = (
            (weight * x * x).sum(axis=0) + _SLOPE_PRIOR,
            (weight * x).sum(axis=0),
            weight.sum(axis=0) + _SLOPE_PRIOR,
        )
        step = np.stack([bb * first[0] - ab * first[1], aa * first[1] - ab * first[0]]) / (aa * bb - ab**2)
        largest = np.abs(step).max(axis=0)
        step /= np.maximum(largest, 1.0)
        before, slope, offset = slope, np.maximum(slope - step[0], _SLOPE - 1), offset - step[1]
        if max(np.abs(slope - before).max(), np.abs(step[1]).max()) < 1e-8:
            break
    return np.stack([slope, offset - slope * center])


_THRESHOLD_PRIOR = 20.0
_SORTED = 2**21  # sample-label pairs that are sorted


def _folds(p: np.ndarray, count: int) -> np.ndarray:
    """Folds (n) by digits of the probabilities: neither the order of samples and labels nor copies of samples move one."""
    return np.asarray(np.floor(1e7 * np.asarray(p, np.float64).sum(axis=1)) % count)


def learn_thresholds(probabilities: np.ndarray, Y: np.ndarray, counts: np.ndarray | None = None) -> np.ndarray:
    """Learn the threshold of every label.

    probabilities, Y, counts (n, L) -> (L,)
    """
    # Which kind is decided by the micro F1 of each half of the samples under the thresholds of the other one.
    few = some_samples(Y, _SORTED)
    p, Y, often = probabilities[few], np.asarray(Y[few], dtype=bool), np.ones(1) if counts is None else counts[few]
    often = np.broadcast_to(often, Y.shape)
    half = _folds(p, 2) == 0
    halves = (half, ~half) if half.any() and not half.all() else ()
    order = np.argsort(-p.ravel())  # once: every part keeps it
    hits, all_of = np.zeros(2), np.zeros(2)  # of one threshold, of one per label; all: labels given plus positives
    for learned in halves:
        y, c = Y[~learned], often[~learned]
        for kind, threshold in enumerate(_both(p, Y, often, order[learned[order // Y.shape[1]]])):
            given = p[~learned] > threshold
            hits[kind] += c[given & y].sum()
            all_of[kind] += c[given].sum() + c[y].sum()
    common, single = _both(p, Y, often, order)
    # in whole hits where they are whole: F1 of the same predictions is the same
    return single if hits[1] * all_of[0] > hits[0] * all_of[1] else common


def _both(p: np.ndarray, Y: np.ndarray, often: np.ndarray, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One threshold, and one per label (L each), of the entries `order`, those of the largest p first."""
    L, values, counts = Y.shape[1], p.ravel()[order], often.ravel()[order]
    label, truth = order % L, Y.ravel()[order]
    common = _logit(_best(values, truth, counts, np.zeros(1, np.intp)))[0]
    by_label = np.argsort(label.astype(np.min_scalar_type(L)), kind="stable")
    size = np.bincount(label, minlength=L)
    some, own = size > 0, np.full(L, common)
    starts = (np.cumsum(size) - size)[some]
    own[some] = _logit(_best(values[by_label], truth[by_label], counts[by_label], starts))
    count = np.bincount(label, truth * counts, L)
    own[count == 0] = common
    return np.full(L, expit(common)), expit(common + (own - common) * count / (count + _THRESHOLD_PRIOR))


def _logit(p: np.ndarray) -> np.ndarray:
    return np.asarray(logit(np.clip(p, 1e-4, 1 - 1e-4)))


def _best(values: np.ndarray, truth: np.ndarray, counts: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The best threshold of every run of falling values; an entry that counts 0 times is as if it were not there.

    values, truth, counts (m,); starts (k,) -> (k,)
    """
    if not counts.all():
        kept = np.concatenate([[0], np.cumsum(counts > 0)])
        found, there = np.zeros(len(starts)), kept[np.append(starts[1:], len(values))] > kept[starts]
        if there.any():
            some = counts > 0
            found[there] = _best(values[some], truth[some], counts[some], kept[starts[there]])
        return found
    stops = np.append(starts[1:], len(values))
    of = np.repeat(np.arange(len(starts)), stops - starts)
    hits, given = np.cumsum(truth * counts, dtype=np.float64), np.cumsum(counts, dtype=np.float64)
    before = np.append(0.0, hits)[starts], np.append(0.0, given)[starts]
    positives = hits[stops - 1] - before[0]
    f1 = 2 * (hits - before[0][of]) / (given - before[1][of] + positives[of])
    following = np.append(values[1:], 0.0)
    following[stops - 1] = 0.0  # below the last there is no value
    tied = values == following
    tied[stops - 1] = False
    f1[tied] = -1.0  # a threshold does not part equal values
    top = np.flatnonzero(f1 == np.maximum.reduceat(f1, starts)[of])
    best = top[np.searchsorted(top, starts)]  # the first of every run
    return np.asarray((values[best] + following[best]) / 2)
