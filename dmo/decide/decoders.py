"""Decoders as parameters of estimators, and what they learn, as `dmo.decoders` tells."""

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
"""Held-out scores that a fit without a decoder learns from, and that the pooled regression takes of them."""


_LARGEST = 1e100  # magnitude of scores up to which their squares are finite


def score_thresholds(given: Callable[[np.ndarray], np.ndarray], n_labels: int) -> np.ndarray:
    """Find the threshold of every label, the largest score at which it is not predicted, by bisection.

    given: a monotone decision, scores (1, L) -> (1, L); -> (L,), -inf or inf if the decision never changes
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
    """Label probabilities, label sets, and where a rule was learned the scores that rank labels by it.

    Parameters
    ----------
    probabilities : PooledProbabilities or SoftmaxProbabilities
        Of the score matrices that the decoder learned from: of labels each for itself, or of classes.
    thresholds : ndarray of shape (L,)
        Probabilities above which labels are given.
    rule : PlugInRule, GainRule, SetRule or None, default=None
        What ranks the labels of a sample, and with a SetRule gives those above 0; None: their probabilities do.
    ranks : bool, default=True
        Whether labels are ranked by this decoder at all, and not by the scores themselves.

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
        """Scores (m x L) that rank the labels of every sample, from the score matrices (m x L each)."""
        p = self.probabilities(scores)
        return p if self.rule is None else self.rule(p)

    @property
    def is_by_label(self) -> bool:
        """Whether a label is given if its score, in the only score matrix, is above a value of its own."""
        p, of_samples = self.probabilities, isinstance(self.rule, SetRule) and self.rule.metric in OF_SAMPLES
        return isinstance(p, PooledProbabilities) and p.ordered and len(p.mean) == 1 and not of_samples

    def sets(self, scores: Sequence[np.ndarray]) -> np.ndarray:
        """Choose labels by the rule for sets, or by their thresholds.

        Parameters
        ----------
        scores : sequence of ndarray of shape (m, L)
            The score matrices.

        Returns
        -------
        ndarray of shape (m, L), uint8
            1 where a label is given.
        """
        p = self.probabilities(scores)
        given = self.rule(p) > 0 if isinstance(self.rule, SetRule) else p > self.thresholds
        return np.asarray(given & self.probabilities.seen, np.uint8)

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Describe the decoder for a model store.

        Returns
        -------
        arrays : dict of str to ndarray
            What was learned.
        meta : dict
            Its JSON.
        """
        arrays = self.probabilities.to_arrays() | {"thresholds": self.thresholds}
        meta: dict[str, Any] = {"rule": None, "ranks": self.ranks}
        if self.rule is not None:
            more, meta["rule"] = self.rule.to_arrays()
            arrays |= {f"rule/{key}": value for key, value in more.items()}
        return arrays, meta

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> Self:
        """Make the decoder that `to_arrays` described.

        Parameters
        ----------
        arrays : mapping of str to ndarray
            What was learned.
        meta : mapping
            Its JSON.

        Returns
        -------
        FittedDecoder
            The decoder.
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
    """Choose the samples that a fit without a decoder learns label sets from.

    Y, counts (n, L); keys (n,)
    """
    return some_samples(Y, max(1000 * Y.shape[1], _ENTRIES), counts, keys)


@dataclass(eq=False, repr=False)
class Calibration(ParameterObject):
    """Probabilities by Platt's logistic regression per label, drawn towards one that all labels share.

    The fewer positives a label has, the more of its probability comes from the shared one, see
    `dmo.decide.probabilities`. Labels are ranked by their probabilities.

    Parameters
    ----------
    hierarchy : str, dict of str to str or list of str, or None, default=None
        As of `Scores`.

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
        """Learn probabilities and thresholds from held-out scores.

        Parameters
        ----------
        scores : sequence of ndarray of shape (n, L)
            Score matrices of samples that their models had not seen.
        Y : ndarray of shape (n, L), 0/1
            Labels of the samples.
        counts : ndarray of shape (n, L), or None, default=None
            Weights of the entries of Y, 0 for unknown entries. None weights all by 1.
        keys : ndarray of shape (n,), uint64, or None, default=None
            Key of every sample, equal for repeated samples. Subsets and folds of the samples depend on keys. None uses
            the position.

        Returns
        -------
        FittedDecoder
            Probabilities of labels, and label sets, from scores of new samples.
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
        """Learn probabilities and thresholds from a subset of the samples, for a fit whose scores rank labels.

        Parameters
        ----------
        scores : sequence of ndarray of shape (n, L)
            As for `learn`.
        Y : ndarray of shape (n, L), 0/1
            Labels of the samples. Above half a million entries, a random subset of the samples is used.
        seen : ndarray of shape (L,), bool
            Whether any training sample, of these or others, carries the label.
        classes : bool
            Whether every sample is of one class: probabilities then keep the order of the scores.
        counts : ndarray of shape (n, L), or None, default=None
            As for `learn`.
        keys : ndarray of shape (n,), uint64, or None, default=None
            As for `learn`.

        Returns
        -------
        FittedDecoder
            With `ranks` False.
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
    """Probabilities of labels by one logistic regression that all labels share; labels are ranked by them.

    Parameters
    ----------
    hierarchy : str, dict of str to str or list of str, or None, default=None
        As of `Scores`.

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
        """Learn probabilities from held-out scores.

        Parameters
        ----------
        scores : sequence of ndarray of shape (n, L)
            Score matrices of samples that their models had not seen.
        Y : ndarray of shape (n, L), 0/1
            Labels of the samples.
        counts : ndarray of shape (n, L), or None, default=None
            Weights of the entries of Y, 0 for unknown entries. None weights all by 1.
        keys : ndarray of shape (n,), uint64, or None, default=None
            Key of every sample, equal for repeated samples. Subsets and folds of the samples depend on keys. None uses
            the position.

        Returns
        -------
        FittedDecoder
            Probabilities of labels from scores of new samples.
        """
        return _fitted(PooledProbabilities.fit(scores, Y, counts, keys=keys), scores, Y, counts, keys)


@dataclass(eq=False, repr=False)
class PlugIn(ParameterObject):
    """The labels that are expected to do best in a metric; see `dmo.decide.rules`, `gain_rules` and `set_rules`.

    Parameters
    ----------
    metric : str, default="f1@5"
        What predictions are judged by. Of `predict(top=k)`, k labels a sample: means over labels, "f1@k" (F1 of mean
        precision and mean recall), "f1-macro@k" (mean F1), "recall@k" and "n+@k"; "psp@k", propensity-scored precision;
        or "precision@k", "f1-micro@k", "f1-samples@k" and "jaccard@k", for which probabilities rank labels. Of
        `predict()`, sets of any size, the labels whose scores are above 0: "f1-micro", "f1-macro", "f1-samples", "jaccard".
        Or a guarantee for these sets on new samples (Notes): "recall>=0.9", the mean over samples of the fraction of a
        sample's labels that are found, 1 for samples without labels ("fnr<=0.1" is the same; for classes this is the coverage
        of prediction sets); "recall-macro>=0.9", for each label the fraction of its samples that get it; "precision>=0.8",
        the mean over samples of the fraction of a sample's given labels that are right, 1 for empty sets;
        "precision-micro>=0.8", the fraction of all given labels that are right.
    size : int, default=500
        Samples that the metric is taken over: with few, rare labels are likely not to occur and count less.
    hierarchy : str, dict of str to str or list of str, or None, default=None
        As for `Scores`. Added ancestors never break a guarantee of recall; guarantees of precision are rejected.

    Notes
    -----
    Guarantees of recall and "precision" hold in expectation over training sets and new samples, by conformal risk control
    [Angelopoulos, Bates, Fisch, Lei, Schuster 2024]. For a single training set of n samples the quantity varies around its
    mean by about 1 / sqrt(n), with n the samples of the label for "recall-macro". "precision-micro" holds with a probability
    of 90 % over training sets, by fixed-sequence testing [Angelopoulos, Bates, Candes, Jordan, Lei 2025]; its p-values are
    those of the normal distribution. Guarantees hold for samples like the training samples, not for every single sample, for
    groups of samples, or for samples from elsewhere. They are learned from out-of-fold scores; the model that scores new
    samples is fitted on all samples and usually a little better. If there are too few samples for a guarantee, all labels
    are given for recall and none for precision. A label without a training sample is never given.

    Unknown entries: guarantees assume that whether an entry is known does not depend on the labels or inputs of its sample.
    Each label may have its own fraction of unknown entries. Sample weights: guarantees do not depend on their scale, and in
    the finite-sample term the new sample has the largest weight, so that this term differs between a sample of weight 2 and
    two equal samples. `dmo.decide.rules` states the formulas.

    The `rule` of the fitted decoder estimates for every guarantee the fraction of given labels that are `right` and the
    fraction of `empty` sets, from the same held-out samples. Both are logged.

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
        """Whether the metric or guarantee is for sets of any size."""
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
            raise UserError(f"PlugIn: metric = {self.metric!r}; known: {names}; k a number, such as 'f1@5'")
        if self.hierarchy is not None and (promised(self.metric) or ("", 0.0))[0].startswith("precision"):
            raise UserError(
                f"PlugIn: metric = {self.metric!r} does not support a hierarchy, because added ancestors can be wrong; use a "
                "guarantee of recall such as 'recall>=0.9', or hierarchy=None"
            )
        if not COUNT.holds(self.size):
            raise UserError(f"PlugIn: size = {self.size!r}; needed is a number of samples, such as 500")

    def learn(
        self,
        scores: Sequence[np.ndarray],
        Y: np.ndarray,
        counts: np.ndarray | None = None,
        keys: np.ndarray | None = None,
    ) -> FittedDecoder:
        """Learn probabilities and the rule from held-out scores.

        Parameters
        ----------
        scores : sequence of ndarray of shape (n, L)
            Score matrices of samples that their models had not seen.
        Y : ndarray of shape (n, L), 0/1
            Labels of the samples.
        counts : ndarray of shape (n, L), or None, default=None
            Weights of the entries of Y, 0 for unknown entries. None weights all by 1.
        keys : ndarray of shape (n,), uint64, or None, default=None
            Key of every sample, equal for repeated samples. Subsets and folds of the samples depend on keys. None uses
            the position.

        Returns
        -------
        FittedDecoder
            What ranks the labels of new samples from their scores.
        """
        self._check()  # `set_params` may have changed them
        probabilities = PooledProbabilities.fit(scores, Y, counts, keys=keys)
        if self.makes_sets:
            probabilities = probabilities.refined(scores, Y, counts)
            p = probabilities(scores)
            if promised(self.metric) is not None:  # guarantees need probabilities that are not fitted on the sample
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
    """Describe what a guarantee gives on held-out samples."""
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
    if compared() is not None:  # candidates are compared by rankings, which need no thresholds
        return FittedDecoder(probabilities, np.full(Y.shape[1], 0.5), rule)
    return FittedDecoder(probabilities, learn_thresholds(probabilities(scores), Y, counts, keys), rule)


Learner: TypeAlias = Calibration | PlugIn | PooledCalibration


@dataclass(eq=False, repr=False)
class Scores(ParameterObject):
    """The scores themselves: they rank labels where no decoder is learned, which is what None stands for.

    score / frequency^prior_power / propensity, of standardized scores, see `dmo.decide.score_rule.ScoreRule`. Of the
    estimators other than `KGHA` and `MultiViewRidge` all take `label_sets` and `hierarchy` alone.

    Parameters
    ----------
    prior_power : float in [0, 1], default=0.0
        Divide the scores by label frequency to that power, which favors rare labels.
    standardize : float in [0, 1], default=0.0
        Subtract the mean and divide by the deviation to that power, both of each label's leave-one-out training
        scores. Needs kernels that are factorized.
    propensity : bool, default=False
        Divide the scores by label propensities, which is to fit labels that are divided by them: for propensity-scored
        precision [Onishi, Hayashi 2025]. Takes `intercept`.
    label_sets : bool, default=True
        Learn which labels `predict` gives, and `predict_proba`, from held-out scores of training samples: the page of the
        estimator says from which. False: `predict` gives every sample as many labels as a training sample has on average.
    hierarchy : str, dict of str to str or list of str, or None, default=None
        CSV file of parent,child, or the parent or parents of every child, by the names of the labels. If a label matrix has
        no names, these are the numbers of its columns. A sample that has a label, in `fit` or by `predict` without `top`,
        also has its ancestors. If labels are given as lists, ancestors become labels. A loaded model has the relations of the
        file, and does not open the file again.

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
        """Whether a value stands for no decoder that is learned."""
        return value is None or isinstance(value, cls)

    @classmethod
    def _named(cls, value: Any) -> Any:
        """The decoder that a name stands for; of None the scores."""
        return cls() if value is None else as_decoder(value)


def as_decoder(given: str | Learner | None) -> Learner | None:
    """Make a decoder from its name.

    Parameters
    ----------
    given : str, Calibration, PlugIn, PooledCalibration or None
        "calibrated" stands for `Calibration()`, "probabilities" for `PooledCalibration()`, a metric such as "f1@5" or
        "f1-macro", or a guarantee such as "recall>=0.9", for `PlugIn` of it.

    Returns
    -------
    Calibration, PlugIn, PooledCalibration or None
        The decoder; None where none is given.

    Raises
    ------
    UserError
        For any other name.

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
        f"'recall>=0.9' (of {', '.join(PROMISES)}; between 0 and 1), and Calibration, PlugIn and PooledCalibration objects"
    )
