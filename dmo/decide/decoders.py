"""Decoders and fitted decoders, which the module `dmo.decoders` exports."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np

from dmo.decide.probabilities import PooledProbabilities, SoftmaxProbabilities, learn_thresholds, some_samples
from dmo.decide.rules import (
    BY_PROBABILITY,
    METRICS,
    OF_SAMPLES,
    PROMISES,
    SET_METRICS,
    GainRule,
    PlugInRule,
    SetRule,
    promised,
)
from dmo.errors import UserError
from dmo.inputs import COUNT, FLAG, SHARE, Need
from dmo.memory import compared
from dmo.parameters import ParameterObject, SavedLocation

__all__ = ["Calibration", "FittedDecoder", "PlugIn", "PooledCalibration", "Scores", "as_decoder"]

_log = logging.getLogger("dmo")
_ENTRIES, _POOLED = 2**19, 2**17
"""Maximum numbers of sample-label pairs. The first limits the pairs from which an estimator without a decoder learns
its label sets, but up to 1000 samples are always used. The second limits the pairs of the pooled regression."""


_LARGEST = 1e100  # largest supported magnitude of scores, whose squares are finite


def score_thresholds(given: Callable[[np.ndarray], np.ndarray], n_labels: int) -> np.ndarray:
    """Find the largest score at which each label is not predicted, by bisection.

    `given` is a monotone decision function. The result is -inf if a label is always predicted, and inf if never.
    """
    most = np.array([_LARGEST]).view(np.int64)[0]

    def number(place: np.ndarray) -> np.ndarray:
        return np.where(place < 0, np.iinfo(np.int64).min - place, place).view(np.float64)

    low, high = np.full(n_labels, -most), np.full(n_labels, most)
    never = ~given(number(high)[None])[0].astype(bool)
    always = given(number(low)[None])[0].astype(bool)
    for _ in range(64):
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        above = given(number(middle)[None])[0].astype(bool)
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return np.where(never, np.inf, np.where(always, -np.inf, number(low)))


@dataclass(frozen=True)
class FittedDecoder:
    """Fitted decoder, which converts scores to label probabilities, label sets and ranking scores.

    Parameters
    ----------
    probabilities : PooledProbabilities or SoftmaxProbabilities
        Model that computes label probabilities from scores, for independent labels or for mutually exclusive classes.
    thresholds : ndarray of shape (L,)
        Probability of each label above which the label is predicted.
    rule : PlugInRule, GainRule, SetRule or None, default=None
        Rule that ranks the labels of a sample. A `SetRule` also predicts the label sets. If None, labels are ranked by
        probability.
    ranks : bool, default=True
        Whether labels are ranked by the decoder. If False, labels are ranked by the raw scores.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.decoders import PlugIn
    >>> Y = (np.random.default_rng(0).random((200, 6)) < 0.3).astype(np.uint8)
    >>> held_out = Y + np.random.default_rng(1).normal(size=Y.shape)
    >>> PlugIn("f1@2").learn([held_out], Y)([held_out]).shape
    (200, 6)
    """

    probabilities: PooledProbabilities | SoftmaxProbabilities
    thresholds: np.ndarray
    rule: PlugInRule | GainRule | SetRule | None = None
    ranks: bool = True

    def __call__(self, scores: Sequence[np.ndarray]) -> np.ndarray:
        """Compute ranking scores of shape (m, L) from score matrices of shape (m, L)."""
        p = self.probabilities(scores)
        return p if self.rule is None else self.rule(p)

    @property
    def is_by_label(self) -> bool:
        """Whether each label is predicted by its own threshold on a single score matrix."""
        p, of_samples = self.probabilities, isinstance(self.rule, SetRule) and self.rule.metric in OF_SAMPLES
        return isinstance(p, PooledProbabilities) and p.ordered and len(p.mean) == 1 and not of_samples

    def sets(self, scores: Sequence[np.ndarray]) -> np.ndarray:
        """Predict the label set of every sample.

        Parameters
        ----------
        scores : sequence of ndarray of shape (m, L)
            Score matrices of the samples.

        Returns
        -------
        ndarray of shape (m, L), uint8
            Matrix with 1 for predicted labels and 0 for other labels.
        """
        p = self.probabilities(scores)
        given = self.rule(p) > 0 if isinstance(self.rule, SetRule) else p > self.thresholds
        return np.asarray(given & self.probabilities.seen, np.uint8)

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Convert the decoder to arrays and JSON values that can be saved with a model.

        Returns
        -------
        arrays : dict of str to ndarray
            Learned arrays of the decoder.
        meta : dict
            Other parameters of the decoder, which can be saved as JSON.
        """
        arrays = self.probabilities.to_arrays() | {"thresholds": self.thresholds}
        meta: dict[str, Any] = {"rule": None, "ranks": self.ranks}
        if self.rule is not None:
            more, meta["rule"] = self.rule.to_arrays()
            arrays |= {f"rule/{key}": value for key, value in more.items()}
        return arrays, meta

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> Self:
        """Restore a decoder from the result of `to_arrays`.

        Parameters
        ----------
        arrays : mapping of str to ndarray
            Learned arrays of the decoder.
        meta : mapping
            Other parameters of the decoder.

        Returns
        -------
        FittedDecoder
            The restored decoder.
        """
        own = {key: value for key, value in arrays.items() if "/" not in key}
        thresholds, ranks = own.pop("thresholds"), meta["ranks"]
        if meta["rule"] is None:
            kind = SoftmaxProbabilities if "scale" in own else PooledProbabilities
            return cls(kind(**own), thresholds, None, ranks)
        more = {key.removeprefix("rule/"): value for key, value in arrays.items() if key.startswith("rule/")}
        rule = GainRule if "gain" in more else SetRule if "threshold" in more else PlugInRule
        return cls(PooledProbabilities(**own), thresholds, rule(**more, **meta["rule"]), ranks)


def aside_samples(Y: Any, counts: np.ndarray | None, keys: np.ndarray | None) -> np.ndarray | slice:
    """Choose the samples from which an estimator without a decoder learns its label sets."""
    return some_samples(Y, max(1000 * Y.shape[1], _ENTRIES), counts, keys)


@dataclass(eq=False, repr=False)
class Calibration(ParameterObject):
    """Decoder that learns label probabilities by Platt scaling, shrunk towards a regression shared by all labels.

    Labels with few positive samples are shrunk most, see `dmo.decide.probabilities`. The labels of a sample are ranked
    by probability.

    Parameters
    ----------
    hierarchy : str, dict of str to str or list of str, or None, default=None
        Hierarchy of the labels, in the format that the class `Scores` describes.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.decoders import Calibration
    >>> rng = np.random.default_rng(0)
    >>> Y = (rng.random((500, 8)) < np.linspace(0.05, 0.4, 8)).astype(np.uint8)
    >>> held_out = 3 * Y + rng.normal(size=Y.shape)
    >>> fitted = Calibration().learn([held_out], Y)
    >>> bool((fitted.sets([held_out]) == Y).mean() > 0.9)
    True
    """

    hierarchy: str | dict[str, Any] | SavedLocation | None = None

    def learn(
        self,
        scores: Sequence[np.ndarray],
        Y: np.ndarray,
        counts: np.ndarray | None = None,
        keys: np.ndarray | None = None,
    ) -> FittedDecoder:
        """Learn label probabilities and thresholds from out-of-fold or leave-one-out scores.

        Parameters
        ----------
        scores : sequence of ndarray of shape (n, L)
            Out-of-fold or leave-one-out score matrices of the samples.
        Y : ndarray of shape (n, L), 0/1
            Labels of the samples.
        counts : ndarray of shape (n, L), or None, default=None
            Weights of the entries of Y. Unknown entries have weight 0. By default, all weights are 1.
        keys : ndarray of shape (n,), uint64, or None, default=None
            Integer key of every sample, from which random subsets and folds are derived. Duplicate samples must have
            equal keys. By default, the key of a sample is its row index.

        Returns
        -------
        FittedDecoder
            Decoder that computes label probabilities and label sets from the scores of new samples.
        """
        pooled = PooledProbabilities.fit(scores, Y, counts, _POOLED, keys)
        return _fitted(pooled.refined(scores, Y, counts), scores, Y, counts, keys)

    def learn_aside(
        self,
        scores: Sequence[np.ndarray],
        Y: np.ndarray,
        seen: np.ndarray,
        classes: bool,
        counts: np.ndarray | None = None,
        keys: np.ndarray | None = None,
    ) -> FittedDecoder:
        """Learn probabilities and thresholds from a subset of the samples, for estimators that rank labels by score.

        Parameters
        ----------
        scores : sequence of ndarray of shape (n, L)
            Out-of-fold or leave-one-out score matrices of the samples.
        Y : ndarray of shape (n, L), 0/1
            Labels of the samples. If Y has more than 1000 rows and more than half a million entries, a random subset of
            the samples is used.
        seen : ndarray of shape (L,), bool
            Whether each label occurs in any training sample, including samples that are not in Y.
        classes : bool
            Whether every sample has exactly one class. Class probabilities have the same order as the scores.
        counts : ndarray of shape (n, L), or None, default=None
            Weights of the entries of Y, as in `learn`.
        keys : ndarray of shape (n,), uint64, or None, default=None
            Integer keys of the samples, as in `learn`.

        Returns
        -------
        FittedDecoder
            Decoder that predicts probabilities and label sets but ranks labels by their raw scores (`ranks=False`).
        """
        rows = aside_samples(Y, counts, keys)
        scores, Y = [part[rows] for part in scores], Y[rows]
        counts, keys = (None if part is None else part[rows] for part in (counts, keys))
        if classes:
            return FittedDecoder(
                replace(SoftmaxProbabilities.fit(scores, Y, counts), seen=seen), np.full(Y.shape[1], 0.5), ranks=False
            )
        found = self.learn(scores, Y, counts, keys)
        return replace(found, probabilities=replace(found.probabilities, seen=seen), ranks=False)


@dataclass(eq=False, repr=False)
class PooledCalibration(ParameterObject):
    """Decoder that learns label probabilities by one logistic regression and ranks labels by probability.

    All labels share the regression coefficients.

    Parameters
    ----------
    hierarchy : str, dict of str to str or list of str, or None, default=None
        Hierarchy of the labels, in the format that the class `Scores` describes.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.decoders import PooledCalibration
    >>> rng = np.random.default_rng(0)
    >>> Y = (rng.random((500, 8)) < np.linspace(0.05, 0.4, 8)).astype(np.uint8)
    >>> held_out = Y + rng.normal(size=Y.shape)
    >>> p = PooledCalibration().learn([held_out], Y).probabilities([held_out])
    >>> bool(abs(p.mean() - Y.mean()) < 1e-4)
    True
    """

    hierarchy: str | dict[str, Any] | SavedLocation | None = None

    def learn(
        self,
        scores: Sequence[np.ndarray],
        Y: np.ndarray,
        counts: np.ndarray | None = None,
        keys: np.ndarray | None = None,
    ) -> FittedDecoder:
        """Learn label probabilities and thresholds from out-of-fold or leave-one-out scores.

        Parameters
        ----------
        scores : sequence of ndarray of shape (n, L)
            Out-of-fold or leave-one-out score matrices of the samples.
        Y : ndarray of shape (n, L), 0/1
            Labels of the samples.
        counts : ndarray of shape (n, L), or None, default=None
            Weights of the entries of Y. Unknown entries have weight 0. By default, all weights are 1.
        keys : ndarray of shape (n,), uint64, or None, default=None
            Integer key of every sample, from which random subsets and folds are derived. Duplicate samples must have
            equal keys. By default, the key of a sample is its row index.

        Returns
        -------
        FittedDecoder
            Decoder that computes label probabilities and label sets from the scores of new samples.
        """
        return _fitted(PooledProbabilities.fit(scores, Y, counts, keys=keys), scores, Y, counts, keys)


@dataclass(eq=False, repr=False)
class PlugIn(ParameterObject):
    """Decoder that maximizes the expected value of a metric, or predicts label sets with a guarantee.

    Parameters
    ----------
    metric : str, default="f1@5"
        Name of a metric or guarantee.

        - Metrics of k labels per sample, for `predict(top=k)`: "f1@k" (F1 of label-averaged precision and recall),
          "f1-macro@k" (macro F1), "recall@k" (mean recall over labels), "n+@k" (number of labels predicted correctly at
          least once) and "psp@k" (propensity-scored precision). For "precision@k", "f1-micro@k", "f1-samples@k" and
          "jaccard@k", labels are ranked by probability.
        - Metrics of label sets of any size, for `predict()`: "f1-micro", "f1-macro", "f1-samples" and "jaccard".
        - Guarantees for the label sets of new samples (see Notes): "recall>=0.9", "recall-macro>=0.9", "precision>=0.8"
          and "precision-micro>=0.8", with any level between 0 and 1. "fnr<=0.1" is the same as "recall>=0.9".
    size : int, default=500
        Number of samples for which the expected metric is maximized. A small number favors frequent labels, because
        rare labels may not occur in so few samples.
    hierarchy : str, dict of str to str or list of str, or None, default=None
        Hierarchy of the labels, in the format that the class `Scores` describes. Guarantees of precision do not support
        a hierarchy, because the ancestors added to a label set can be wrong.

    Notes
    -----
    Each guarantee refers to one of these quantities:

    - "recall": the fraction of the true labels of a sample that are predicted, averaged over samples. The fraction is 1
      for samples without labels. For multiclass targets, "recall" is the coverage of the prediction sets.
    - "recall-macro": the recall of a label, which is the fraction of its samples for which it is predicted. The
      guarantee holds for each label.
    - "precision": the fraction of the predicted labels of a sample that are correct, averaged over samples. The
      fraction is 1 for empty label sets.
    - "precision-micro": the fraction of all predicted labels that are correct.

    Guarantees of recall and "precision" hold in expectation over training sets and new samples, by conformal risk
    control [Angelopoulos, Bates, Fisch, Lei, Schuster 2024]. For a single training set of n samples, the quantity
    deviates from its expectation by about 1 / sqrt(n). For "recall-macro", n is instead the number of training samples
    that have the label in question.
    The guarantee of "precision-micro" holds with a probability of 90 % over training sets, by fixed-sequence testing
    [Angelopoulos, Bates, Candes, Jordan, Lei 2025]. The p-values of the tests use the normal approximation.

    A guarantee holds on average for samples from the distribution of the training samples. It does not hold for every
    single sample, for subgroups, or for samples from another distribution. Guarantees are learned from out-of-fold
    scores. The model that scores new samples is fitted on all samples and is usually slightly better. If there are too
    few samples for a guarantee of recall, all labels are predicted. If there are too few samples for a guarantee of
    precision, no label is predicted. Labels without training samples are never predicted.

    Guarantees assume that label values are missing independently of the labels and features of the sample. The fraction
    of missing values may differ between labels. Multiplying all sample weights by a constant does not change a
    guarantee. `dmo.decide.rules` has the formulas.

    For each guarantee, the attribute `rule` of the fitted decoder contains the fraction of predicted labels that are
    correct (`right`) and the fraction of empty label sets (`empty`). Both fractions are estimated from the samples from
    which the decoder was learned, and both are logged.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.decoders import PlugIn
    >>> from dmo.metrics import annotation_scores
    >>> rng = np.random.default_rng(0)
    >>> Y = (rng.random((2000, 30)) < np.geomspace(0.01, 0.4, 30)).astype(np.uint8)
    >>> S = Y.mean(axis=0) + 0.3 * (Y + 0.5 * rng.normal(size=Y.shape))  # frequent labels score higher
    >>> decide = PlugIn("f1@3", size=1000).learn([S[:1000]], Y[:1000])
    >>> plain = annotation_scores(Y[1000:], S[1000:], top=3).f1
    >>> bool(annotation_scores(Y[1000:], decide([S[1000:]]), top=3).f1 > plain)
    True
    """

    metric: str = "f1@5"
    size: int = 500
    hierarchy: str | dict[str, Any] | SavedLocation | None = None

    def __post_init__(self) -> None:
        self._check()

    @property
    def makes_sets(self) -> bool:
        """Whether the metric or guarantee applies to label sets of any size."""
        return self.metric in SET_METRICS or promised(self.metric) is not None

    def _check(self) -> None:
        base, _, top = str(self.metric).partition("@")
        known = ("f1", *METRICS, *BY_PROBABILITY)
        is_named = isinstance(self.metric, str) and (
            self.makes_sets or (base in known and top.isdecimal() and int(top) > 0)
        )
        if not is_named:
            names = ", ".join([*(f"'{name}@k'" for name in known), *(f"'{name}'" for name in SET_METRICS)])
            names += ", " + ", ".join(f"'{name}>=0.9'" for name in PROMISES)
            raise UserError(f"PlugIn: metric = {self.metric!r}; known: {names}; k is a number, as in 'f1@5'")
        if self.hierarchy is not None and (promised(self.metric) or ("", 0.0))[0].startswith("precision"):
            raise UserError(
                f"PlugIn: metric = {self.metric!r} does not support a hierarchy, because added ancestors can be wrong; use a "
                "guarantee of recall such as 'recall>=0.9', or hierarchy=None"
            )
        if not COUNT.holds(self.size):
            raise UserError(f"PlugIn: size = {self.size!r}; expected a number of samples, such as 500")

    def learn(
        self,
        scores: Sequence[np.ndarray],
        Y: np.ndarray,
        counts: np.ndarray | None = None,
        keys: np.ndarray | None = None,
    ) -> FittedDecoder:
        """Learn label probabilities and the decision rule from out-of-fold or leave-one-out scores.

        Parameters
        ----------
        scores : sequence of ndarray of shape (n, L)
            Out-of-fold or leave-one-out score matrices of the samples.
        Y : ndarray of shape (n, L), 0/1
            Labels of the samples.
        counts : ndarray of shape (n, L), or None, default=None
            Weights of the entries of Y. Unknown entries have weight 0. By default, all weights are 1.
        keys : ndarray of shape (n,), uint64, or None, default=None
            Integer key of every sample, from which random subsets and folds are derived. Duplicate samples must have
            equal keys. By default, the key of a sample is its row index.

        Returns
        -------
        FittedDecoder
            Decoder that ranks labels and predicts label sets from the scores of new samples.
        """
        self._check()  # `set_params` may have changed the parameters.
        probabilities = PooledProbabilities.fit(scores, Y, counts, keys=keys)
        if self.makes_sets:
            probabilities = probabilities.refined(scores, Y, counts)
            p = probabilities(scores)
            if promised(self.metric) is not None:  # Guarantees need out-of-fold probabilities.
                p = probabilities.crossed(p, scores, Y, counts, keys)
            rule = SetRule.fit(self.metric, p, Y, self.size, counts, keys)
            if promised(self.metric) is not None and compared() is None:
                _log.info(_report(rule))
            return FittedDecoder(probabilities, np.full(Y.shape[1], 0.5), rule)
        base, _, top = self.metric.partition("@")
        if base in BY_PROBABILITY:
            return _fitted(probabilities, scores, Y, counts, keys)
        p, count = probabilities(scores), min(int(top), Y.shape[1])
        ranking: PlugInRule | GainRule
        if base == "f1":
            ranking = PlugInRule.fit(p, Y, count, self.size, counts, keys)
        else:
            ranking = GainRule.fit(base, p, Y, count, self.size, counts)
        return _fitted(probabilities, scores, Y, counts, keys, ranking)


def _report(rule: SetRule) -> str:
    """Format the log message about the held-out label sets of a guarantee."""
    right = "no labels are given" if rule.right is None else f"{rule.right:.2f} of the given labels are right"
    return f"{rule.metric}: on held-out samples, {right}, and {100 * (rule.empty or 0.0):.0f} % of the samples get no label"


def _fitted(
    probabilities: PooledProbabilities,
    scores: Sequence[np.ndarray],
    Y: np.ndarray,
    counts: np.ndarray | None,
    keys: np.ndarray | None,
    rule: PlugInRule | GainRule | None = None,
) -> FittedDecoder:
    if compared() is not None:  # A search compares candidates by their rankings, which need no thresholds.
        return FittedDecoder(probabilities, np.full(Y.shape[1], 0.5), rule)
    return FittedDecoder(probabilities, learn_thresholds(probabilities(scores), Y, counts, keys), rule)


Learner: TypeAlias = Calibration | PlugIn | PooledCalibration


@dataclass(eq=False, repr=False)
class Scores(ParameterObject):
    """Decoder that ranks labels by their scores, the default of all estimators (`decoder=None`).

    Labels are ranked by score / frequency^prior_power / propensity, where the scores can be standardized. The class
    `dmo.decide.score_rule.ScoreRule` has the complete formula. Estimators other than `KGHA` and `MultiViewRidge`
    support only `label_sets` and `hierarchy`.

    Parameters
    ----------
    prior_power : float in [0, 1], default=0.0
        Exponent of the label frequency by which scores are divided. Larger values favor rare labels.
    standardize : float in [0, 1], default=0.0
        Strength of standardization by the leave-one-out training scores of each label: 0 keeps the scores, and 1
        subtracts their mean and divides by their standard deviation. For other values, this fraction of the mean is
        subtracted, and the divisor is the standard deviation to this power. Standardization needs factorized kernels.
    propensity : bool, default=False
        Whether to divide the scores by label propensities, for propensity-scored precision. The division is equivalent
        to fitting labels divided by their propensities [Onishi, Hayashi 2025]. Combine it with `intercept=True`.
    label_sets : bool, default=True
        Whether to learn label sets for `predict` and probabilities for `predict_proba` from out-of-fold or
        leave-one-out scores. If False, `predict` assigns the same number of labels to every sample: the average number
        of labels per training sample.
    hierarchy : str, dict of str to str or list of str, or None, default=None
        Hierarchy of the labels, as the path of a CSV file with the columns parent,child, or as a mapping of each child
        to its parent or parents. The hierarchy contains label names, or column indices if the label matrix has no
        names. `fit` adds the ancestors of each label, and so does `predict` without `top`. If Y is a list of label
        lists, ancestors become additional labels. A saved model contains the hierarchy and does not need the file.

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from dmo import KGHA
    >>> from dmo.decoders import Scores
    >>> X, Y = make_multilabel_classification(n_samples=100, n_classes=5, random_state=0)
    >>> model = KGHA(decoder=Scores(prior_power=0.25, label_sets=False)).fit(X, Y)
    >>> model.set_params(decoder__prior_power=0.5).fit(X, Y).rule_.prior_power
    0.5
    >>> sets = KGHA(decoder=Scores(hierarchy={"1": "0", "2": "1"})).fit(X, Y).predict(X)
    >>> bool((sets[:, 2] <= sets[:, 1]).all() and (sets[:, 1] <= sets[:, 0]).all())
    True
    """

    prior_power: float = 0.0
    standardize: float = 0.0
    propensity: bool = False
    label_sets: bool = True
    hierarchy: str | dict[str, Any] | SavedLocation | None = None

    _needs: ClassVar[Mapping[str, Need]] = {
        "prior_power": SHARE,
        "standardize": SHARE,
        "propensity": FLAG,
        "label_sets": FLAG,
    }

    @classmethod
    def _takes(cls, value: Any) -> bool:
        """Return whether a value of the parameter `decoder` means that labels are ranked by score."""
        return value is None or isinstance(value, cls)

    @classmethod
    def _named(cls, value: Any) -> Any:
        """Return the decoder with a given name, or `Scores()` for None."""
        return cls() if value is None else as_decoder(value)


def as_decoder(given: str | Learner | None) -> Learner | None:
    """Create a decoder from its name.

    Parameters
    ----------
    given : str, Calibration, PlugIn, PooledCalibration or None
        Name of a decoder, or a decoder, which is returned unchanged. "calibrated" stands for `Calibration()` and
        "probabilities" for `PooledCalibration()`. A metric such as "f1@5" or "f1-macro", or a guarantee such as
        "recall>=0.9", stands for `PlugIn` with this metric.

    Returns
    -------
    Calibration, PlugIn, PooledCalibration or None
        The decoder, or None if `given` is None.

    Raises
    ------
    UserError
        If the name is unknown.

    Examples
    --------
    >>> from dmo.decoders import as_decoder
    >>> as_decoder("f1@5")
    PlugIn()
    """
    if given is None or isinstance(given, (Calibration, PlugIn, PooledCalibration)):
        return given
    if given == "calibrated":
        return Calibration()
    if given == "probabilities":
        return PooledCalibration()
    if isinstance(given, str) and ("@" in given or given in SET_METRICS or promised(given)):
        return PlugIn(given)
    raise UserError(
        f"decoder = {given!r}; known: 'calibrated', 'probabilities', a metric such as 'f1@5', a guarantee such as "
        f"'recall>=0.9' ({', '.join(PROMISES)}; between 0 and 1), and Calibration, PlugIn and PooledCalibration objects"
    )
