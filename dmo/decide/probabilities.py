"""Label probabilities and prediction thresholds, learned from held-out scores.

**Pooled regression.** All labels share one logistic regression,

    logit p_il = sum_k (b_k z_kil + b'_k z_kil^2 + b''_k z_kil phi_l) + eta phi_l + theta phi_l^2 + zeta,

with the score matrices k = 1 ... K, the scores z_k standardized for each label, and the standardized log frequency
phi_l of label l. Rare labels have too few positive samples for a logistic regression per label (Platt scaling). The
pooled regression has only 3 K + 3 coefficients.

**Refinement.** The regression is adapted to each label by logit p_il <- (1 + a_l) logit p_il + c_l. The slope a_l and
the offset c_l are maximum a posteriori estimates with a normal prior around 0. Labels with few samples therefore remain
close to the pooled regression. The refined probability of a label always increases with its score: beyond its vertex,
the parabola is replaced by a line with a small slope, and 1 + a_l is positive. Without these constraints, the
probability could decrease with the score for labels that cannot be learned. The leave-one-out scores of such labels are
lower for samples with the label, because the mean over the other samples is lower. New samples have no such bias.

The refinement was tested on test samples with ridge scores. The log loss decreased from 0.1445 to 0.1425 on enron, from
0.4403 to 0.4316 on yeast and from 0.1986 to 0.1974 on scene. Compared to raw scores, the LRAP of refined probabilities
increased from 0.662 to 0.674 on enron, from 0.766 to 0.769 on yeast and from 0.880 to 0.887 on scene. Prior precisions
from 1 to 20 change the log loss and the LRAP by less than 0.002.

**Thresholds for micro F1.** The learned threshold is a mean of all thresholds, weighted by exp(F1 sqrt(positives) /
0.05), with the F1 of each threshold on the training pairs. This mean changes continuously with the probabilities. The
threshold of the highest F1 is unstable, because F1 is flat around its maximum: a relative error of 4e-7 in the scores
changed up to 10 % of the predictions. On new samples, the mean threshold increases F1 by 0.001 to 0.003 for 60 to 200
training samples. For 1000 training samples, F1 is the same.

The threshold of a label is shrunk towards the common threshold t of all labels: logit t_l = w_l logit t*_l + (1 - w_l)
logit t with w_l = n_l / (n_l + 20) for n_l positives. For true probabilities, a common threshold is optimal [Lipton,
Elkan, Narayanaswamy 2014]. Thresholds per label without shrinkage decreased micro F1 on enron from 0.58 to 0.38. The
common threshold and the thresholds per label are learned on each half of the samples and compared by their F1 on the
other half. The result is the weighted mean of their logits, where the weight is the probability that the thresholds are
better, given the standard error of the difference.

**Keys.** Random subsets and folds depend on one 64-bit key per sample, not on the sample order or on the scores.
Duplicate samples have equal keys, so that they are chosen together and share a fold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import scipy.linalg
from scipy.optimize import brentq
from scipy.special import expit, logit, ndtr, softmax

from dmo.blocks import row_blocks

_ENTRIES = 2**18  # Maximum number of sample-label pairs whose regressors are in memory at the same time.
_MOST = 2**21  # Maximum number of sample-label pairs in the regression; more pairs do not change the third digit.
_FIRST = 2**17  # Number of sample-label pairs in a first regression, which provides a starting point.
_STEPS = 50
_SLOPE_PRIOR = 5.0  # Precision of the prior of slopes and offsets, equivalent to 20 samples with p = 1/2.
_SLOPE = 0.05  # minimum slope of the logit as a function of the standardized score, and minimum of the factor 1 + a_l
_CROSSED = 5  # Number of folds for out-of-fold probabilities.
_SMALLEST = 1e-9  # relative ridge on the Hessian, which would be singular for equal score matrices
PRECISION = 1e-4
"""Difference of logits up to which two probabilities are treated as equal.
Scores from kernels in memory and from tiled kernels can have a relative difference of 1e-6, which changes logits by
about 1e-5."""
_CONSTANT = 1e-6  # Ratio of standard deviation to mean up to which scores are treated as constant.


@dataclass(frozen=True)
class PooledProbabilities:
    """Model of label probabilities: a logistic regression on K score matrices, shared by all L labels."""

    mean: np.ndarray  # Mean of the held-out scores of each label, an array of shape (K, L).
    deviation: np.ndarray  # Standard deviation of the held-out scores of each label, of shape (K, L).
    rarity: np.ndarray  # Standardized log frequency phi of each label, of shape (L,).
    seen: np.ndarray  # Boolean mask of the labels that occur in training samples.
    coefficients: np.ndarray  # Coefficients b, b' and b'' of each score matrix, then eta, theta and zeta.
    own: np.ndarray  # Slope a and offset c of each label, of shape (2, L).
    ordered: bool = False  # Whether the probability of a label always increases with its score.

    @classmethod
    def fit(
        cls,
        scores: Sequence[np.ndarray],
        Y: np.ndarray,
        counts: np.ndarray | None = None,
        entries: int = _MOST,
        keys: np.ndarray | None = None,
    ) -> Self:
        """Fit the regression by maximum likelihood on at most `entries` sample-label pairs of random samples."""
        frequency = label_frequency(Y, counts)
        n = len(Y) if counts is None else np.maximum(counts.sum(axis=0), 1)
        log_frequency = np.log(np.maximum(frequency, 0.5 / n))
        spread = log_frequency.std()
        found = [mean_and_deviation(part, row_counts(counts)) for part in scores]
        model = cls(
            np.array([mean for mean, _ in found]),
            np.array([scale_of(*part) for part in found]),
            (log_frequency - log_frequency.mean()) / (spread if spread > _CONSTANT else 1.0),
            frequency > 0,
            np.zeros(3 * len(scores) + 3),
            np.zeros((2, Y.shape[1])),
        )
        for most in dict.fromkeys((min(_FIRST, entries, Y.size), min(entries, Y.size))):
            few = some_samples(Y, most, counts, keys)
            part = [matrix[few] for matrix in scores], Y[few], None if counts is None else counts[few]
            model = replace(model, coefficients=_newton(model, *part))
        return model

    def refined(self, scores: Sequence[np.ndarray], Y: np.ndarray, counts: np.ndarray | None = None) -> Self:
        """Adapt the regression to each label by a slope and an offset, from arrays of shape (n, L)."""
        ordered = replace(self, ordered=True)
        return replace(ordered, own=_own_lines(ordered._logits(scores), np.asarray(Y, np.float64), counts))

    def crossed(
        self,
        p: np.ndarray,
        scores: Sequence[np.ndarray],
        Y: np.ndarray,
        counts: np.ndarray | None = None,
        keys: np.ndarray | None = None,
    ) -> np.ndarray:
        """Compute out-of-fold probabilities by cross-validation of the regression.

        The probabilities `p` are returned if all samples belong to the same fold.
        """
        keys = np.arange(len(Y), dtype=np.uint64) if keys is None else keys
        fold, out = folds_of_keys(keys, _CROSSED), p.copy()
        for number in np.unique(fold):
            old, new = fold != number, fold == number
            if old.any():
                given = [part[old] for part in scores], Y[old], None if counts is None else counts[old]
                found = self.fit(*given, keys=keys[old]).refined(*given)
                out[new] = found([part[new] for part in scores])
        return out

    def __call__(self, scores: Sequence[np.ndarray]) -> np.ndarray:
        """Compute probabilities from score matrices of shape (m, L); 0 for labels without training samples."""
        out = expit((1 + self.own[0]) * self._logits(scores) + self.own[1])
        out[:, ~self.seen] = 0.0
        return out

    def _logits(self, scores: Sequence[np.ndarray]) -> np.ndarray:
        """Compute the logits of the pooled regression from score matrices of shape (m, L)."""
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
        """Compute the term of score matrix k in the logits: a parabola up to its vertex, then a line."""
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
        """Convert the model to arrays that can be saved."""
        return {key: getattr(self, key) for key in ("mean", "deviation", "rarity", "seen", "coefficients", "own")} | {
            "ordered": np.array(self.ordered)
        }


@dataclass(frozen=True)
class SoftmaxProbabilities:
    """Model of class probabilities: a softmax of scaled scores, which ranks classes like the scores."""

    scale: np.ndarray  # Positive factor on the scores, an array of shape (1,).
    seen: np.ndarray  # Boolean mask of the classes that occur in training samples.

    @classmethod
    def fit(cls, scores: Sequence[np.ndarray], Y: np.ndarray, counts: np.ndarray | None = None) -> Self:
        """Learn the scale by maximum likelihood from arrays of shape (n, L)."""
        often = np.ones(len(Y)) if counts is None else counts[:, 0].astype(np.float64)
        seen, S = often @ Y > 0, scores[0] - scores[0].max(axis=1, keepdims=True)
        S, Y, often = S[:, seen], Y[:, seen], often / often.sum()
        spread = float(np.sqrt(max(0.0, often @ (S**2).mean(axis=1) - (often @ S.mean(axis=1)) ** 2)))
        if not spread > _CONSTANT * np.abs(scores[0]).max(initial=0.0):
            # A single class and constant scores have no optimal scale.
            return cls(np.ones(1), seen)

        def slope(log_scale: float) -> float:
            """Compute the derivative of the mean log loss with respect to the scale."""
            return float(often @ ((softmax(np.exp(log_scale) / spread * S, axis=1) - Y) * S).sum(axis=1)) / spread

        ends = -5.0, 5.0
        found = ends[0] if slope(ends[0]) >= 0 else ends[1] if slope(ends[1]) <= 0 else brentq(slope, *ends, xtol=1e-12)
        return cls(np.array([np.exp(found) / spread]), seen)

    def __call__(self, scores: Sequence[np.ndarray]) -> np.ndarray:
        """Compute class probabilities from a score matrix of shape (m, L); 0 for classes without training samples."""
        return np.asarray(softmax(np.where(self.seen, self.scale[0] * scores[0], -np.inf), axis=1))

    def to_arrays(self) -> dict[str, Any]:
        """Convert the model to arrays that can be saved."""
        return {"scale": self.scale, "seen": self.seen}


def label_frequency(Y: np.ndarray, counts: np.ndarray | None) -> np.ndarray:
    """Compute the weighted fraction of positive samples of every label."""
    if counts is None:
        return np.asarray(Y.sum(axis=0), np.float64) / len(Y)
    total = counts.sum(axis=0)
    return np.asarray(np.where(counts > 0, counts * Y, 0).sum(axis=0), np.float64) / np.where(total > 0, total, 1)


def row_counts(counts: np.ndarray | None) -> np.ndarray | None:
    """Compute the weight of each sample: the largest weight of its label values in `counts` of shape (n, L)."""
    return None if counts is None else np.asarray(counts.max(axis=1, initial=0), np.float64)


def mean_and_deviation(scores: np.ndarray, often: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Compute the mean and the standard deviation of the scores of every label in float64.

    `often` contains the sample weights, or is None for equal weights.
    """
    if often is None:
        return scores.mean(axis=0, dtype=np.float64), scores.std(axis=0, dtype=np.float64)
    share = often / often.sum()
    mean = share @ scores
    return mean, np.sqrt(share @ (scores - mean) ** 2)


def scale_of(mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Return the standard deviation of each label, or 1 for scores that are constant up to floating-point error."""
    return np.where(deviation > _CONSTANT * np.abs(mean), deviation, 1.0)


def some_samples(
    Y: np.ndarray, entries: int, counts: np.ndarray | None = None, keys: np.ndarray | None = None
) -> np.ndarray | slice:
    """Choose a random subset of samples with at most `entries` sample-label pairs, in which duplicates count once.

    The default keys of the samples are their row indices.
    """
    # Select the samples with positive weight that have the smallest hashed keys.
    most = max(1, entries // Y.shape[1])
    n = Y.shape[0]
    if n <= most:
        return slice(None)
    hashed = hashed_keys(np.arange(n) if keys is None else keys)
    counted = np.ones(n, bool) if counts is None else counts.any(axis=1)
    distinct = np.unique(hashed[counted])
    if len(distinct) <= most:
        return slice(None)
    return np.flatnonzero(counted & (hashed <= distinct[most - 1]))


def hashed_keys(keys: np.ndarray) -> np.ndarray:
    """Hash 64-bit keys to uniformly distributed 64-bit integers, by the finalizer of SplitMix64."""
    x = keys.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def folds_of_keys(keys: np.ndarray, count: int) -> np.ndarray:
    """Assign samples to `count` random folds; samples with equal keys share a fold."""
    return np.asarray(hashed_keys(keys) % np.uint64(count))


def _newton(
    model: PooledProbabilities, scores: Sequence[np.ndarray], Y: np.ndarray, counts: np.ndarray | None
) -> np.ndarray:
    """Maximize the likelihood by Newton's method with step halving, starting at the coefficients of the model."""
    # For rare labels, squared standardized scores reach thousands, so full Newton steps overshoot. The condition number
    # of the Hessian grows with the square of the scale of the regressors, so the regressors are scaled to a root mean
    # square of 1. Nearly all trial steps are accepted, so each trial also computes the gradient and the Hessian.
    # Computing the regressors takes most of the time, so the regressors of a single block are kept in memory.

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
        """Compute the mean loss, and the gradient and the Hessian of the total loss."""
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
        if gained < 0:  # The improvement is smaller than the floating-point error, so stop.
            break
        w, (best, gradient, hessian) = w - step, trial
        if gained < 1e-12:
            break
    return w / scale


def _own_lines(logits: np.ndarray, Y: np.ndarray, counts: np.ndarray | None) -> np.ndarray:
    """Compute the maximum a posteriori slope and offset of every label, by Newton's method for all labels together."""
    center = mean_and_deviation(logits, row_counts(counts))[0]
    x = logits - center  # Centered logits make the estimates of slope and offset nearly independent.
    slope, offset = np.zeros((2, Y.shape[1]))
    p, error = np.empty_like(x), np.empty_like(x)
    for _ in range(_STEPS):
        np.multiply(slope, x, out=p)
        p += logits
        p += offset
        expit(p, out=p)
        np.subtract(p, Y, out=error)
        weight = np.multiply(p, np.subtract(1, p), out=p)
        if counts is not None:
            weight *= counts
            error *= counts
        by_offset = error.sum(axis=0) + _SLOPE_PRIOR * offset
        error *= x
        by_slope = error.sum(axis=0) + _SLOPE_PRIOR * slope
        bb = weight.sum(axis=0) + _SLOPE_PRIOR
        weight *= x
        ab = weight.sum(axis=0)
        weight *= x
        aa = weight.sum(axis=0) + _SLOPE_PRIOR
        # Newton steps are limited to 1 to avoid overshooting. The slope has a lower bound, so the step of the offset is
        # computed for the new slope and is optimal even at the bound.
        moved = np.clip((ab * by_offset - bb * by_slope) / (aa * bb - ab**2), -1.0, 1.0)
        moved = np.maximum(moved, _SLOPE - 1 - slope)
        shifted = np.clip(-(by_offset + ab * moved) / bb, -1.0, 1.0)
        slope, offset = slope + moved, offset + shifted
        if max(np.abs(moved).max(), np.abs(shifted).max()) < 1e-8:
            break
    return np.stack([slope, offset - slope * center])


_THRESHOLD_PRIOR = 20.0
_SORTED = 2**21  # Maximum number of sample-label pairs that are sorted to learn thresholds.
_SOFT = 0.05  # divisor of F1 sqrt(positives) in the weights of thresholds, a tenth of the standard error of F1
_SMEAR = 0.05  # scale of the logistic function that counts labels near the threshold partly as predicted


def learn_thresholds(
    probabilities: np.ndarray, Y: np.ndarray, counts: np.ndarray | None = None, keys: np.ndarray | None = None
) -> np.ndarray:
    """Learn the threshold of every label for micro F1."""
    few = some_samples(Y, _SORTED, counts, keys)
    p, half = probabilities[few], folds_of_keys(np.arange(len(Y)) if keys is None else keys, 2)[few] == 0
    Y, often = np.asarray(Y[few], dtype=bool), None if counts is None else counts[few]
    order = np.argsort(-p.ravel())  # Both halves of the samples keep this order, so one sort suffices.
    places = np.argsort(-p.T, axis=1)
    common, own = _both(p, Y, often, order, places)
    hits, total, entries = np.zeros(2), np.zeros(2), []
    for learned in (half, ~half) if half.any() and not half.all() else ():
        y, c, logits = Y[~learned], 1.0 if often is None else often[~learned], _logit(p[~learned])
        some = order[np.repeat(learned, Y.shape[1])[order]]
        kinds = _both(p, Y, often, some, places[learned[places]].reshape(Y.shape[1], -1))
        given = [expit((logits - thresholds) / _SMEAR) for thresholds in kinds]
        weighted = [c * kind for kind in given]
        hits += [part[y].sum() for part in weighted]
        total += [part.sum() + np.sum(c * y) for part in weighted]
        entries.append((c, y, given[1] - given[0]))
    if not total.all():
        return np.asarray(expit(common))
    f1 = 2 * hits / total
    # The variance is computed as if sample-label pairs were independent. The constant 1 stands for one additional pair.
    variance = 1.0 + sum(float((c * ((2.0 * y - f1.mean()) * differ) ** 2).sum()) for c, y, differ in entries)
    better = ndtr((f1[1] - f1[0]) * total.mean() / np.sqrt(variance))
    return np.asarray(expit(common + better * (own - common)))


def _both(
    p: np.ndarray, Y: np.ndarray, often: np.ndarray | None, order: np.ndarray, places: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the logits of a common threshold, repeated for every label, and of thresholds per label.

    `order` sorts all probabilities in descending order, and row l of `places` sorts the probabilities of label l.
    """
    L = Y.shape[1]
    by_label = (places * L + np.arange(L)[:, None]).ravel()

    def means(some: np.ndarray, starts: np.ndarray) -> np.ndarray:
        return mean_thresholds(p.ravel()[some], Y.ravel()[some], None if often is None else often.ravel()[some], starts)

    common = _logit(means(order, np.zeros(1, np.intp)))
    own = _logit(means(by_label, np.arange(L) * places.shape[1]))
    rows = places[0]
    count = Y[rows].sum(axis=0) if often is None else (Y * often)[rows].sum(axis=0)
    return np.repeat(common, L), common + (own - common) * count / (count + _THRESHOLD_PRIOR)


def _logit(p: np.ndarray) -> np.ndarray:
    return np.asarray(logit(np.clip(p, 1e-4, 1 - 1e-4)))


def mean_thresholds(values: np.ndarray, truth: np.ndarray, counts: np.ndarray | None, starts: np.ndarray) -> np.ndarray:
    """Compute the mean threshold, weighted by F1, of every run of descending values.

    The runs begin at the indices `starts`. The result is 1 for runs without positives.
    """
    # All thresholds between two successive values have the same F1, so the mean threshold is a sum over the gaps
    # between values. Equal values have no gap, and values with weight 0 do not change F1.
    stops = np.append(starts[1:], len(values))
    sizes = stops - starts
    # The function `spread` takes one item per run, and repeats each item for all values of its run.
    spread = (lambda x: x) if len(starts) == 1 else (lambda x: np.repeat(x, sizes))
    hits = np.cumsum(truth if counts is None else truth * counts, dtype=np.float64)
    given = np.arange(1.0, len(values) + 1) if counts is None else np.cumsum(counts, dtype=np.float64)
    before = np.append(0.0, hits)[starts], np.append(0.0, given)[starts]
    hits -= spread(before[0])
    given -= spread(before[1])
    positives = hits[stops - 1]
    following = np.append(values[1:], 0.0)
    following[stops - 1] = 0.0  # The gap below the last value of a run ends at 0.
    gaps = values - following
    gaps *= given > 0
    f1 = hits
    f1 *= 2
    given += spread(positives)
    f1 /= np.maximum(given, 1e-300, out=given)
    weight = f1
    weight -= spread(np.maximum.reduceat(f1, starts))
    weight *= spread(np.sqrt(positives))
    weight /= _SOFT
    np.exp(weight, out=weight)
    weight *= gaps
    total = np.add.reduceat(weight, starts)
    following += values
    following *= weight
    mean = np.add.reduceat(following, starts) / 2 / np.where(total > 0, total, 1.0)
    return np.where(positives > 0, mean, 1.0)


def just_below(p: np.ndarray) -> np.ndarray:
    """Return thresholds slightly below p, which p exceeds even with the floating-point error of the scores."""
    return np.where(p > 0, expit(logit(np.clip(p, 1e-300, 1 - 1e-6)) - PRECISION), -1.0)
