"""What the estimators that score labels share: annotation from the scores."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, clone, is_regressor
from sklearn.metrics import r2_score
from sklearn.preprocessing import MultiLabelBinarizer
from sklearn.utils import ClassifierTags, RegressorTags, Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dmo.blocks import Rows, Subset, row_blocks
from dmo.decide.decoders import Calibration, FittedDecoder, Scores, as_decoder, score_thresholds
from dmo.decide.out_of_fold import (
    HELD_OUT_ROWS,
    LEAST,
    LeftOut,
    Statistics,
    held_out_part,
    out_of_fold_scores,
    row_keys,
)
from dmo.decide.probabilities import mean_and_deviation, row_counts
from dmo.decide.rules import promised
from dmo.decide.score_rule import ScoreRule, unseen_last
from dmo.errors import TooFewSamples, UserError
from dmo.inputs import (
    Data,
    Inputs,
    Outputs,
    Prepare,
    SampleWeights,
    check_partial_labels,
    check_row_weights,
    densified,
    known_values,
    named,
    paired,
    prepare_views,
    preparing,
    read_complete,
    with_class_weights,
)
from dmo.inputs.outputs import RealOutputs, hierarchy_of
from dmo.kernels.composite import is_pairwise
from dmo.methods.base import Estimator
from dmo.methods.lazy_rows import row_by_row
from dmo.methods.options import Decoder
from dmo.metrics import rated, top_label_sets, with_ancestors
from dmo.parameters import Part, SavedLocation
from dmo.persistence import described, load, rebuilt, with_prefix, without_prefix

_MANY = 4096
"""Labels above which predictions are sparse."""
_COMPARED = 256
"""Samples above which comparing scores is faster than computing probabilities: finding the scores takes 66 rows."""
_ROWS = 4096
"""Samples whose scores are in memory at a time when label sets are predicted."""
_ENTRIES = 1 << 22
"""Scores that are in memory at a time."""
log = logging.getLogger("dmo")


@dataclass(frozen=True, eq=False)
class LazyScores:
    """Label scores (m x L) of samples by an annotator, worked out when rows are read: see `Annotator.lazy_scores`."""

    model: Annotator
    views: Mapping[str, Rows]

    @property
    def shape(self) -> tuple[int, int]:
        return next(iter(self.views.values())).shape[0], len(self.model.rule_.frequency)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.float64)

    @property
    def ndim(self) -> int:
        return 2

    def __getitem__(self, where: slice) -> np.ndarray:
        index = np.arange(self.shape[0])[where]
        return self.model._label_scores({view: Subset(source, index) for view, source in self.views.items()})


@dataclass(frozen=True, eq=False)
class Decision:
    """What a model says of m samples."""

    scores: np.ndarray  # (m, L): what ranks the labels; of real outputs their values
    sets: np.ndarray | None = None  # (m, L), bool: the labels given, of classes one; None of real outputs
    model: Annotator | None = None
    raw: list[np.ndarray] = field(default_factory=list)  # (m, L) each: score matrices that probabilities depend on

    @cached_property
    def probabilities(self) -> np.ndarray | None:
        """Probabilities of the labels (m x L); None if the fit learned none."""
        return None if self.model is None else self.model._probabilities(self.raw)

    def numbers(self, width: int) -> np.ndarray:
        """Numbers of the labels given, best first, and -1 after the last.

        -> (m, width)
        """
        assert self.sets is not None  # of labels
        sample, label = np.nonzero(self.sets)
        counts = np.bincount(sample, minlength=len(self.sets))
        place = np.arange(len(sample)) - np.repeat(np.cumsum(counts) - counts, counts)
        shape = len(self.sets), max(int(counts.max(initial=0)), width)
        found, keys = np.full(shape, -1, np.int32), np.full(shape, np.inf)
        found[sample, place], keys[sample, place] = label, -self.scores[sample, label]
        return np.take_along_axis(found, np.argsort(keys, axis=1, kind="stable")[:, :width], axis=1)


def _of_labels(estimator: Any) -> bool:
    return _has_outputs(estimator) and bool(estimator._scores_labels)


def _has_outputs(estimator: Any) -> bool:
    if not estimator._decodes:
        raise AttributeError("there are no outputs with columns to score; learn from the coordinates")
    return True


class Annotator(Estimator):
    """What an estimator that predicts says of samples: scores, label sets, probabilities, classes, numbers."""

    # Subclasses say `_raw_scores`; their `_learn` says what it knows of scores of samples that the fit has not seen. A
    # classifier to scikit-learn, of a vector of classes or of many labels, or a regressor.

    rule_: ScoreRule
    classes_: np.ndarray
    multilabel_: bool
    held_out_scores_: np.ndarray
    decoding_: FittedDecoder | None = None
    _thresholds: tuple[FittedDecoder, np.ndarray] | None = None  # of raw scores, for this decoder
    _centers = False  # whether raw scores of real outputs lack their mean where `center` is true
    _tells_classes = False  # whether scores of a vector of classes are others than those of one label per class
    _weighs_labels = False  # whether `class_weight` is for the labels of a matrix as well
    _whole_kernel = False  # whether a precomputed kernel is read as a whole
    outputs_: RealOutputs | None = None
    _by_scores: Any = Scores()  # how scores rank and decide where no decoder does; a Part of those that take such

    @property
    def _decoder(self) -> Decoder:
        """What is learned to rank and decide; None where scores do."""
        given = getattr(self, "decoder", None)
        return None if isinstance(given, Scores) and isinstance(type(self)._by_scores, Part) else given

    @property
    def _decodes(self) -> bool:
        """Whether there are outputs with columns to say something of."""
        return True

    @property
    def _scores_labels(self) -> bool:
        """Whether there are scores of labels: of real outputs there are values."""
        return self._decodes and self.outputs_ is None and getattr(self, "targets", "auto") != "real"

    @property
    def _skips_sets(self) -> bool:
        """Whether label sets and probabilities are not to be learned: within another fit, and of real outputs."""
        return self._only_scores or self.outputs_ is not None or not self._by_scores.label_sets

    @property
    def _decides(self) -> bool:
        """Whether label sets, probabilities or what a decoder says are learned."""
        return self._decoder is not None or not self._skips_sets

    @property
    def _splits_samples(self) -> bool:
        """Whether the method can be fitted on a subset of the samples; False for weight or kernel matrices of all samples."""
        weight = getattr(getattr(self, "_graph", None), "weight", None)
        is_given = not (weight is None or isinstance(weight, str))
        return not (is_given or (self._whole_kernel and is_pairwise(getattr(self, "kernel", None))))

    @property
    def _most_held_out(self) -> int:
        """Samples that a further fit on a part of them learns from, at most."""
        return HELD_OUT_ROWS

    def _data(self, X: Any, y: Any, sample_weight: Any) -> Data:
        """Read the data of a fit; class weights multiply the sample weights after rows are prepared."""
        data = super()._data(X, y, sample_weight)
        given = getattr(self, "class_weight", None)
        if given is None or (self._weighs_labels and self.multilabel_):
            return data
        if not self._decodes or self.outputs_ is not None or self.multilabel_:
            raise UserError(
                "class_weight is for a vector of classes, since the method learns from all labels of a sample at once; weigh "
                "samples, or take MultiViewRidge"
            )
        return with_class_weights(data, given, self.classes_.tolist())

    def _read(self, views: Mapping[str, Rows], y: Any, weights: SampleWeights | None) -> Data:
        return read_complete(self, views, y)

    def _decide(self, data: Data, left: LeftOut | None) -> None:
        """Fit the score rule, thresholds and probability calibration on out-of-fold scores of training samples."""
        self.decoding_ = None
        left = LeftOut() if left is None else left
        how, rows, scores, statistics = left.how, left.rows, left.scores, left.statistics
        unscaled = bool(self._by_scores.standardize) and statistics is None
        if how is None and (self._decides or unscaled) and not scipy.sparse.issparse(data.Y):
            how = "part"
        if how == "part" and self._decoder is None and not (unscaled or self._splits_samples):
            log.info(
                "no label sets or probabilities are learned: a matrix of all samples cannot be split for fits on parts"
            )
            how = ""
        if how == "part" and (unscaled or self._decoder is not None):
            how = "folds"  # which standardization and decoders share
        if how == "folds" and (self._decides or unscaled):
            rows = data.labeled
            scores = _of_rows(out_of_fold_scores(self, data, rows), rows)
        elif how == "part" and self._decides:
            rows, scores = self._scores_of_part(data, left.maps)
        if unscaled and scores is not None:
            statistics = mean_and_deviation(scores[0], row_counts(data.decided(rows)))
        self._learn_rule(data.frequency, data.n_labeled, statistics)
        if scores is not None and self._decides:
            self._learn_decoder(self._decoder, scores, data.Y[rows], data.decided(rows), row_keys(self, data, rows))

    def _scores_of_part(self, data: Data, maps: Mapping[str, Any] | None) -> tuple[np.ndarray, list[np.ndarray] | None]:
        """Return row indices and out-of-fold scores of some samples; the scores are None if there are too few samples."""
        try:
            return held_out_part(self, data, data.labeled, self._most_held_out, maps) or (data.labeled, None)
        except TooFewSamples as error:
            log.info("no label sets or probabilities are learned: %s", error)
            return data.labeled, None

    def _learn_rule(self, frequency: np.ndarray, n_train: float, held_out: Statistics | None = None) -> None:
        """What turns raw scores into those that rank, from the labels' frequency (L) and what `standardize` needs."""
        mean, deviation = held_out or (np.zeros_like(frequency), np.ones_like(frequency))
        # scores without label means would lose what weights of classes say; other methods have an offset of their own
        weighed = hasattr(self, "intercept") and getattr(self, "class_weight", None) is not None
        intercept = getattr(self, "intercept", False) or weighed
        by = self._by_scores
        powers = by.standardize if held_out else 0.0, by.prior_power, by.propensity
        self.rule_ = ScoreRule.of(frequency, n_train, mean, deviation, intercept, *powers)

    def _raw_scores(self, views: Mapping[str, Rows]) -> np.ndarray:
        raise NotImplementedError

    def _scores(self, views: Mapping[str, Rows]) -> list[np.ndarray]:
        """The score matrices (m x L each) that a decoder takes."""
        return [self._raw_scores(views)]

    def _row_shape(self, method: str, **options: Any) -> tuple[np.ndarray | None, np.dtype]:
        """See `row_by_row`."""
        if method == "transform":
            return super()._row_shape(method)
        if self.outputs_ is not None:
            names = np.asarray(getattr(self, "label_names_", np.arange(len(self.outputs_.scale))))
            return None if self.outputs_.flat else names, np.dtype(np.float64)
        if method == "predict" and not self.multilabel_ and options.get("top") is None:
            return None, self.classes_.dtype
        if method == "predict":
            return self.classes_, np.dtype(getattr(self, "label_dtype_", np.uint8))
        binary = method == "decision_function" and self._is_binary
        return None if binary else self.classes_, np.dtype(np.float64)

    @available_if(_of_labels)
    @named
    @row_by_row
    def decision_function(self, X: Inputs) -> np.ndarray:
        """Score all labels of some samples; higher is likelier, and scores are comparable within a row.

        Parameters
        ----------
        %(X_new)s

        Returns
        -------
        ndarray of shape (m, L) or (m,)
            Label scores; of two classes the score of the second less that of the first, above 0 where it is predicted.
        """
        scores = self._label_scores(X)
        return scores[:, 1] - scores[:, 0] if self._is_binary else scores

    @property
    def _predicts_sparse(self) -> bool:
        """Whether there are so many labels that predictions are CSR."""
        return self.outputs_ is None and self.multilabel_ and len(self.rule_.frequency) > _MANY

    @property
    def _is_binary(self) -> bool:
        """Whether the fit was of a vector of two classes."""
        return not self.multilabel_ and len(self.classes_) == 2

    def _label_scores(self, X: Any) -> np.ndarray:
        """Scores of all labels (m x L), of two classes too."""
        check_is_fitted(self)
        return self._ranked(self._scores(self._checked(X)))

    def _ranked(self, scores: list[np.ndarray]) -> np.ndarray:
        """What ranks the labels, from the score matrices (m x L each)."""
        if self.decoding_ is None or not self.decoding_.ranks:
            return self.rule_(scores[0])
        found = self.decoding_(scores)
        if self.decoding_.rule is None:
            found = self._shared(found)
        return unseen_last(found, self.rule_.seen)

    def _shared(self, p: np.ndarray) -> np.ndarray:
        """Probabilities of labels as they are, of classes scaled to sum 1 (m x L)."""
        return p if self.multilabel_ else p / p.sum(axis=1, keepdims=True)

    @available_if(_of_labels)
    @named
    @row_by_row
    def predict_proba(self, X: Inputs) -> np.ndarray:
        """Give the probabilities of all labels, each for itself; of classes they sum to 1.

        They are learned from held-out scores of the training samples: see `dmo.decide.probabilities`.

        Parameters
        ----------
        %(X_new)s

        Returns
        -------
        ndarray of shape (m, L)
            Probabilities.

        Raises
        ------
        UserError
            Where the fit had too few samples to learn them from, or so many labels that it took them as a sparse matrix, or
            was told by `decoder=Scores(label_sets=False)` not to.
        """
        check_is_fitted(self)
        if self.decoding_ is None:
            if not self._by_scores.label_sets:
                raise UserError(
                    "a fit with label_sets=False learns no probabilities; fit with decoder=None, or take decision_function"
                )
            n, L = self.rule_.n_train, len(self.rule_.frequency)
            if n >= LEAST and L > _MANY:
                raise UserError(
                    f"no probabilities are learned from {L} labels that a fit took as a sparse matrix; take top_labels or "
                    "decision_function, or fit on y.toarray() where it fits into memory, or on fewer labels"
                )
            raise UserError(
                "too few samples to learn probabilities from, or a fit of an earlier version; fit on more of them, or take "
                "decision_function"
            )
        return self._probabilities(self._scores(self._checked(X)))  # type: ignore[return-value]

    @available_if(_of_labels)
    def predict_log_proba(self, X: Inputs) -> np.ndarray:
        """Give the natural logarithms of `predict_proba`; that of 0 is -inf.

        Parameters
        ----------
        %(X_new)s

        Returns
        -------
        ndarray of shape (m, L)
            Log probabilities.
        """
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def _calibrated(self, scores: list[np.ndarray]) -> list[np.ndarray]:
        """The score matrices that `decoding_` learned from: raw ones where it ranks, else those that rank."""
        return scores if self.decoding_ is None or self.decoding_.ranks else [self.rule_(scores[0])]

    def _learn_decoder(
        self,
        decoder: Decoder,
        scores: list[np.ndarray],
        Y: np.ndarray,
        counts: np.ndarray | None,
        keys: np.ndarray,
    ) -> None:
        """Learn label sets and probabilities from raw out-of-fold scores of training samples.

        scores (n, L) each; Y (n, L); counts (n, L), the weight of every entry of Y, 0 if unknown; keys (n,)
        """
        learner = as_decoder(decoder)
        if learner is not None:
            self.decoding_, self.held_out_scores_ = learner.learn(scores, Y, counts, keys), scores[0]
        elif len(Y) > 1 and (Y if counts is None else Y * (counts > 0)).any():
            ranking = [self.rule_(scores[0])]
            self.decoding_ = Calibration().learn_aside(ranking, Y, self.rule_.seen, not self.multilabel_, counts, keys)

    def _shared_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Rule, decisions and units of real outputs, beside what is done to rows."""
        arrays, meta = super()._shared_arrays()
        if not self._decodes or not hasattr(self, "rule_"):
            return arrays, meta
        meta["multilabel"] = self.multilabel_
        for name, part in (("rule", self.rule_), ("decoding", self.decoding_), ("outputs", self.outputs_)):
            if part is not None:
                found, meta[name] = part.to_arrays()
                arrays |= with_prefix(name, found)
        return arrays, meta

    def _restore_shared(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        super()._restore_shared(arrays, meta)
        if not {"multilabel", "rule"} & set(meta):
            return
        if isinstance(hierarchy_of(self), SavedLocation) and hasattr(self, "ancestors_"):
            self.set_params(decoder__hierarchy=self._stored_hierarchy())
        self.multilabel_ = meta["multilabel"]
        self.rule_ = ScoreRule.from_arrays(without_prefix("rule", arrays), meta["rule"])
        if "outputs" in meta:
            self.outputs_ = RealOutputs.from_arrays(without_prefix("outputs", arrays), meta["outputs"])
        if "decoding" in meta:
            self.decoding_ = FittedDecoder.from_arrays(without_prefix("decoding", arrays), meta["decoding"])

    def _stored_hierarchy(self) -> dict[str, list[str]]:
        """Return the parents by child that a saved model holds; a model of an earlier version holds its labels' alone."""
        known: dict[str, list[str]] = self.__dict__.setdefault("hierarchy_", {})
        if not known:
            names = [str(label) for label in self.classes_]
            for column, above in self.ancestors_.tolist():
                known.setdefault(names[column], []).append(names[above])
        return known

    @available_if(_has_outputs)
    @named
    @row_by_row
    def predict(self, X: Inputs, top: int | None = None, as_names: bool = False) -> Any:
        """Choose the labels of some samples.

        Parameters
        ----------
        %(X_new)s
        top : int or None, default=None
            Labels per sample. None: the labels whose probability is above a threshold that held-out scores of the
            training samples gave (where there are none, as many labels as a training sample has on average); an
            estimator that was fitted on a vector of classes then returns classes.
        as_names : bool, default=False
            Return names of labels in place of 0 and 1; of classes with a decoder such as "recall>=0.9" those of the
            prediction set.

        Returns
        -------
        ndarray of shape (m, L), ndarray of shape (m,), or list of tuple
            0/1 with `top` ones per row, or as many as there are labels with a training sample where these are fewer, of
            the type of the labels of fit, sparse (CSR) above 4096 labels; or m classes;
            or with `as_names` m tuples of labels, as scikit-learn's MultiLabelBinarizer gives them.

        Raises
        ------
        UserError
            Where `top` is not from 1 to the number of labels.
        """
        check_is_fitted(self)
        if self.outputs_ is not None:
            if top is not None or as_names:
                raise UserError("real outputs have no top labels and no names of them; leave top and as_names out")
            return self._real_values(X, self.outputs_)
        if top is not None and not 1 <= top <= len(self.classes_):
            raise UserError(f"top = {top}, but there are {len(self.classes_)} labels")
        if not as_names and self._predicts_sparse:
            best, _ = self.top_labels(X, self.most_labels(top))
            places = np.repeat(np.arange(len(best)), best.shape[1]), best.ravel()
            shape = (len(best), len(self.rule_.frequency))
            return scipy.sparse.csr_array((np.ones(best.size, np.uint8), places), shape=shape)
        one = top is None and not self.multilabel_ and not (as_names and self._promises)
        labels = self._sets_of(self._checked(X), 1 if one else top)
        if one:
            return self.classes_[labels.argmax(axis=1)]
        if not as_names:
            return labels.astype(getattr(self, "label_dtype_", labels.dtype), copy=False)
        names = getattr(self, "label_names_", self.classes_)
        return MultiLabelBinarizer(classes=list(names)).fit([]).inverse_transform(labels)

    def top_labels(self, X: Inputs, top: int = 5) -> tuple[np.ndarray, np.ndarray]:
        """Give the labels of highest score, block by block: never the scores of all samples and labels at once.

        Parameters
        ----------
        %(X_new)s
        top : int, default=5
            Labels per sample.

        Returns
        -------
        labels : ndarray of shape (m, top), int
            Their numbers, best first.
        scores : ndarray of shape (m, top)
            Their scores.

        Raises
        ------
        UserError
            Where `top` is not from 1 to the number of labels.
        """
        scores = self.lazy_scores(X)
        if not 1 <= top <= scores.shape[1]:
            raise UserError(f"top = {top}, but there are {scores.shape[1]} labels")
        labels, values = np.empty((scores.shape[0], top), np.intp), np.empty((scores.shape[0], top))
        for where in row_blocks(scores.shape[0], max(1, _ENTRIES // scores.shape[1])):
            block = scores[where]
            some = np.sort(np.argpartition(-block, top - 1, axis=1)[:, :top], axis=1)
            found = np.take_along_axis(block, some, axis=1)
            order = np.argsort(-found, axis=1, kind="stable")
            labels[where] = np.take_along_axis(some, order, axis=1)
            values[where] = np.take_along_axis(found, order, axis=1)
        return labels, values

    def lazy_scores(self, X: Inputs) -> LazyScores:
        """Make a row source of the label scores of samples, for the metrics: a block is worked out when it is read."""
        check_is_fitted(self)
        return LazyScores(self, self._checked(X))

    def decide(self, X: Inputs, top: int | None = None) -> Decision:
        """Say all that there is to say of samples: what every command shows and writes of them.

        views (m, d)
        """
        check_is_fitted(self)
        if self.outputs_ is not None:
            return Decision(self._real_values(X, self.outputs_).reshape(-1, len(self.outputs_.scale)))
        found = self._scores(self._checked(X))
        return Decision(self._ranked(found), self._label_sets(found, top) > 0, self, found)

    def _probabilities(self, scores: list[np.ndarray]) -> np.ndarray | None:
        """Probabilities of labels (m x L); None where the fit learned none."""
        if self.decoding_ is None:
            return None
        return self._shared(self.decoding_.probabilities(self._calibrated(scores)))

    @property
    def _learned_sets(self) -> bool:
        """Whether label sets are those that the fit learned."""
        return (self.multilabel_ or self._promises) and self.decoding_ is not None and not self._predicts_sparse

    @property
    def _promises(self) -> bool:
        """Whether the decoder promises something of sets, those of classes too."""
        return promised(getattr(as_decoder(self._decoder), "metric", None)) is not None

    def most_labels(self, top: int | None = None) -> int:
        """Count the labels that a sample is given, at most."""
        seen = self.n_seen_labels_
        if top is None and self._learned_sets:
            return seen
        mean = round(float(self.rule_.frequency.sum())) if self.multilabel_ else 1
        return min(max(1, mean) if top is None else top, seen)

    def _label_sets(self, scores: list[np.ndarray], top: int | None) -> np.ndarray:
        """Labels given (m x L), 0/1: of classes one."""
        thresholds = self._score_thresholds(top, len(scores[0]))
        if thresholds is not None:
            sets = (scores[0] > thresholds).view(np.uint8)
        elif top is None and self._learned_sets:
            sets = self.decoding_.sets(self._calibrated(scores))  # type: ignore[union-attr]
        else:
            sets = top_label_sets(self._ranked(scores), self.most_labels(top))
        return self._closed(sets, top)

    def _closed(self, sets: np.ndarray, top: int | None) -> np.ndarray:
        """Label sets with the ancestors of their labels."""
        pairs = getattr(self, "ancestors_", None)
        return sets if top is not None or pairs is None else with_ancestors(sets, pairs)

    def _sets_of(self, views: Mapping[str, Rows], top: int | None) -> np.ndarray:
        """Labels given (m x L), 0/1, by blocks of rows, whose scores need not be in memory at once."""
        m = next(iter(views.values())).shape[0]
        if m <= _ROWS:
            return self._label_sets(self._scores(views), top)
        thresholds = self._score_thresholds(top, m)
        out = np.empty((m, len(self.rule_.frequency)), np.uint8)
        for where in row_blocks(m, _ROWS):
            index = np.arange(where.start, where.stop)
            part = {view: Subset(source, index) for view, source in views.items()}
            if thresholds is None:
                out[where] = self._label_sets(self._scores(part), top)
            else:
                out[where] = self._closed(self._above(part, thresholds).view(np.uint8), top)
        return out

    def _score_thresholds(self, top: int | None, m: int) -> np.ndarray | None:
        """Find the raw scores (L) above which labels are given, if that is faster for m samples than probabilities are."""
        decoder = self.decoding_
        if top is not None or decoder is None or not self._learned_sets or m <= _COMPARED or not decoder.is_by_label:
            return None
        if self._thresholds is None or self._thresholds[0] is not decoder:
            found = score_thresholds(lambda S: decoder.sets(self._calibrated([S])), len(self.rule_.frequency))
            self._thresholds = decoder, found
        return self._thresholds[1]

    def _above(self, views: Mapping[str, Rows], thresholds: np.ndarray) -> np.ndarray:
        """Compare raw scores with thresholds (L): bool (m x L)."""
        return self._raw_scores(views) > thresholds

    def _real_values(self, X: Any, units: RealOutputs) -> np.ndarray:
        """Outputs of m samples (m x L, or m) in the units of the fit."""
        check_is_fitted(self)
        raw = self._raw_scores(self._checked(X))
        taken_off = self.rule_.frequency if self._centers and self.center else 0.0  # the mean of the scaled outputs
        return units.restored(raw + taken_off)

    @property
    def n_seen_labels_(self) -> int:
        """Number of labels that a training sample carries: no other is ever predicted."""
        return int(self.rule_.seen.sum())

    @available_if(_has_outputs)
    @named
    def score(self, X: Inputs, y: Outputs, sample_weight: ArrayLike | None = None) -> float:
        """Rate by what `dmo.tune` chooses by: "ranking" of labels (mean of LRAP and macro AUC), accuracy, R2 of outputs.

        Parameters
        ----------
        %(X_new)s
        y : array-like of shape (m, L) or (m,)
            True labels of 0 and 1 (in a matrix NaN, None and masked entries are unknown and count for nothing), or classes.
        sample_weight : array-like of shape (m,) or None, default=None
            How often every sample counts.

        Returns
        -------
        float
            From 0 to 1, the higher the better.
        """
        y, sample_weight = paired(X, y, sample_weight)
        if self.outputs_ is not None:
            return float(r2_score(y, self._real_values(X, self.outputs_), sample_weight=sample_weight))
        scores = self._label_scores(X)
        Y, known = check_partial_labels(self, y, len(scores), reset=False)
        truth = densified(Y) if known is None else known_values(Y, known)
        return rated(truth, scores, self.multilabel_, check_row_weights(sample_weight, len(scores)))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        if not self._decodes:
            tags.target_tags.required = False
        elif self._scores_labels:
            tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags(multi_label=True)
            tags.target_tags.multi_output = False  # of several vectors of classes
        else:
            tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
            tags.target_tags.multi_output = tags.target_tags.single_output = True
        return tags

    def fit(self, X: Inputs, y: Outputs) -> Self:
        raise NotImplementedError


def _of_rows(scores: list[np.ndarray], rows: np.ndarray) -> list[np.ndarray]:
    return [part[rows] for part in scores]


class OnBase(Annotator):
    """An annotator on top of another, `base`, which prepares the rows of its views."""

    base: Any
    base_: Any

    @property
    def _prepare(self) -> Prepare:  # type: ignore[override]
        """What is done to rows: the base does it."""
        return preparing(self.__dict__["base_"] if "base_" in self.__dict__ else self._given_base()) or Prepare("none")

    def _given_base(self) -> Any:
        """Return the parameter `base`, loaded if it is a path."""
        if isinstance(self.base, SavedLocation):
            raise self.base.refused("base")
        return load(self.base) if isinstance(self.base, str) else self.base

    def _take_base(self, default: Estimator) -> Any:
        """A copy of `base` to be fitted, loaded where it is a path; before X is read, which is done as it says."""
        given = self._given_base()
        self.base_ = clone(default if given is None else given)
        return self.base_

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        base, description = described(self.base_)
        return with_prefix("base", base), {"base": description}

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        self.base_ = rebuilt(without_prefix("base", arrays), meta["base"])
        held = self.base.get_params().values() if isinstance(self.base, BaseEstimator) else [self.base]
        if any(isinstance(value, SavedLocation) for value in held):
            self.base = clone(self.base_)  # fitted with the same parameters, and stored with this model

    def _prepared(self, views: Mapping[str, Rows]) -> dict[str, Rows]:
        """Rows as the fitted base takes them."""
        return prepare_views(self.base_, views, reset=False)


def predicts(model: Any) -> bool:
    """Tell whether a fitted model of dmo says something of labels or outputs."""
    return isinstance(model, Annotator) and model._decodes


def label_scores(model: Any, X: Any) -> np.ndarray:
    """Score all labels by any fitted model, one of another library by its decision function; or give the outputs predicted.

    -> (m, L)
    """
    if isinstance(model, Annotator):
        if not model._decodes:
            raise UserError(f"{model._title} learns nothing from labels, so that nothing can be compared by them")
        real = model.outputs_
        return model._label_scores(X) if real is None else model._real_values(X, real).reshape(-1, len(real.scale))
    if hasattr(model, "decision_function"):
        scores = np.asarray(model.decision_function(X))
        return np.column_stack([-scores, scores]) if scores.ndim == 1 else scores
    predicted = np.asarray(model.predict(X))
    return predicted[:, None] if predicted.ndim == 1 else predicted


def targets(model: Any, Y: Any) -> Any:
    """Turn labels of 0 and 1 into what a regression of another library learns, +1 and -1; all else as it is.

    Y (n, L) -> (n, L)
    """
    if Y is None or isinstance(model, Annotator) or not is_regressor(model):
        return Y
    return 2.0 * Y - 1.0 if ((Y == 0) | (Y == 1) | np.isnan(Y)).all() else Y
