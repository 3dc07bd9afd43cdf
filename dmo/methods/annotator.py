"""Base classes of estimators that predict label scores, label sets, classes or regression targets."""

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
"""Number of labels above which `predict` returns a sparse matrix."""
_COMPARED = 256
"""Number of samples above which comparing scores with thresholds is faster than computing probabilities."""
_ROWS = 4096
"""Number of samples per block for the prediction of label sets."""
_ENTRIES = 1 << 22
"""Number of scores per block for the selection of the top labels."""
log = logging.getLogger("dmo")


@dataclass(frozen=True, eq=False)
class LazyScores:
    """Array of label scores that are computed when rows are read."""

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
    """Predictions of a model for m samples: scores, label sets and probabilities."""

    # Array of shape (m, L) with the label scores, or with the predicted regression targets.
    scores: np.ndarray
    # Boolean array of shape (m, L) that marks the predicted labels, or None for regression.
    sets: np.ndarray | None = None
    model: Annotator | None = None
    # Score matrices from which the probabilities are computed.
    raw: list[np.ndarray] = field(default_factory=list)

    @cached_property
    def probabilities(self) -> np.ndarray | None:
        """Label probabilities, or None if the model has not learned probabilities."""
        return None if self.model is None else self.model._probabilities(self.raw)

    def numbers(self, width: int) -> np.ndarray:
        """Return the columns of the predicted labels by descending score; pad each row of the result with -1."""
        assert self.sets is not None
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
    """Base class of estimators that predict labels, classes or regression targets."""

    # Subclasses implement `_raw_scores`. The method `_learn` of a subclass can return out-of-fold scores.

    rule_: ScoreRule
    classes_: np.ndarray
    multilabel_: bool
    held_out_scores_: np.ndarray
    decoding_: FittedDecoder | None = None
    # Score thresholds, with the decoder from which they were computed.
    _thresholds: tuple[FittedDecoder, np.ndarray] | None = None
    # Whether raw scores lack the mean of the regression targets if the parameter `center` is True.
    _centers = False
    # Whether a vector of classes yields different scores than its indicator matrix.
    _tells_classes = False
    # Whether `class_weight` is also supported for a label matrix.
    _weighs_labels = False
    # Whether a fit reads a precomputed kernel as a whole matrix.
    _whole_kernel = False
    outputs_: RealOutputs | None = None
    # Options for ranking labels by score.
    _by_scores: Any = Scores()

    @property
    def _decoder(self) -> Decoder:
        """The parameter `decoder`, or None if labels are ranked by score."""
        given = getattr(self, "decoder", None)
        return None if isinstance(given, Scores) and isinstance(type(self)._by_scores, Part) else given

    @property
    def _decodes(self) -> bool:
        """Whether the model predicts labels or regression targets, which are the columns of a matrix."""
        return True

    @property
    def _scores_labels(self) -> bool:
        """Whether the model scores labels instead of predicting regression targets."""
        return self._decodes and self.outputs_ is None and getattr(self, "targets", "auto") != "real"

    @property
    def _skips_sets(self) -> bool:
        """Whether the fit learns neither label sets nor probabilities."""
        return self._only_scores or self.outputs_ is not None or not self._by_scores.label_sets

    @property
    def _decides(self) -> bool:
        """Whether the fit learns a decoder, which predicts label sets and probabilities."""
        return self._decoder is not None or not self._skips_sets

    @property
    def _splits_samples(self) -> bool:
        """Whether subsets of the samples can be fitted, unlike with a graph or kernel matrix of all samples."""
        weight = getattr(getattr(self, "_graph", None), "weight", None)
        is_given = not (weight is None or isinstance(weight, str))
        return not (is_given or (self._whole_kernel and is_pairwise(getattr(self, "kernel", None))))

    @property
    def _most_held_out(self) -> int:
        """Maximum number of training samples of the additional fit for label sets and probabilities."""
        return HELD_OUT_ROWS

    def _data(self, X: Any, y: Any, sample_weight: Any) -> Data:
        """Read the data of a fit, and multiply the sample weights by the class weights."""
        data = super()._data(X, y, sample_weight)
        given = getattr(self, "class_weight", None)
        if given is None or (self._weighs_labels and self.multilabel_):
            return data
        if not self._decodes or self.outputs_ is not None or self.multilabel_:
            raise UserError(
                "class_weight needs a vector of classes, because the method learns all labels of a sample together; "
                "pass sample_weight, or use MultiViewRidge"
            )
        return with_class_weights(data, given, self.classes_.tolist())

    def _read(self, views: Mapping[str, Rows], y: Any, weights: SampleWeights | None) -> Data:
        return read_complete(self, views, y)

    def _decide(self, data: Data, left: LeftOut | None) -> None:
        """Learn label sets and probabilities from out-of-fold scores of training samples."""
        self.decoding_ = None
        left = LeftOut() if left is None else left
        how, rows, scores, statistics = left.how, left.rows, left.scores, left.statistics
        unscaled = bool(self._by_scores.standardize) and statistics is None
        if how is None and (self._decides or unscaled) and not data.many:
            how = "part"
        if how == "part" and self._decoder is None and not (unscaled or self._splits_samples):
            log.info(
                "no label sets or probabilities are learned: a matrix of all samples cannot be split for fits on parts"
            )
            how = ""
        if how == "part" and (unscaled or self._decoder is not None):
            how = "folds"  # Standardization and decoders need cross-validated scores of all labeled samples.
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
        """Return the indices of some samples and their held-out scores, which are None if there are too few samples."""
        try:
            return held_out_part(self, data, data.labeled, self._most_held_out, maps) or (data.labeled, None)
        except TooFewSamples as error:
            log.info("no label sets or probabilities are learned: %s", error)
            return data.labeled, None

    def _learn_rule(self, frequency: np.ndarray, n_train: float, held_out: Statistics | None = None) -> None:
        """Set `rule_`, which converts raw scores to ranking scores of the labels."""
        mean, deviation = held_out or (np.zeros_like(frequency), np.ones_like(frequency))
        # Class weights must also change the offset of the scores, so add the weighted class frequencies to the scores.
        # Estimators without the parameter `intercept` fit an offset themselves.
        weighed = hasattr(self, "intercept") and getattr(self, "class_weight", None) is not None
        intercept = getattr(self, "intercept", False) or weighed
        by = self._by_scores
        powers = by.standardize if held_out else 0.0, by.prior_power, by.propensity
        self.rule_ = ScoreRule.of(frequency, n_train, mean, deviation, intercept, *powers)

    def _raw_scores(self, views: Mapping[str, Rows]) -> np.ndarray:
        raise NotImplementedError

    def _scores(self, views: Mapping[str, Rows]) -> list[np.ndarray]:
        """Compute the score matrices, each of shape (m, L), that the decoder combines."""
        return [self._raw_scores(views)]

    def _row_shape(self, method: str, **options: Any) -> tuple[np.ndarray | None, np.dtype]:
        """Return the column names and the data type of the result of a method."""
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
        """Compute the score of each label for each sample.

        The scores of one sample rank its labels: a label with a higher score is more probable.

        Parameters
        ----------
        %(X_new)s

        Returns
        -------
        ndarray of shape (m, L) or (m,)
            Label scores. For a model of two classes, the array has shape (m,) and contains the score of the second
            class minus the score of the first class. A positive difference predicts the second class.
        """
        scores = self._label_scores(X)
        return scores[:, 1] - scores[:, 0] if self._is_binary else scores

    @property
    def _predicts_sparse(self) -> bool:
        """Whether `predict` returns a CSR matrix because the model has more than 4096 labels."""
        return self.outputs_ is None and self.multilabel_ and len(self.rule_.frequency) > _MANY

    @property
    def _is_binary(self) -> bool:
        """Whether the model was fitted on a vector of two classes."""
        return not self.multilabel_ and len(self.classes_) == 2

    def _label_scores(self, X: Any) -> np.ndarray:
        """Compute the scores of all labels, with shape (m, L) also for two classes."""
        check_is_fitted(self)
        return self._ranked(self._scores(self._checked(X)))

    def _ranked(self, scores: list[np.ndarray]) -> np.ndarray:
        """Compute the ranking scores of the labels from the score matrices of a model."""
        if self.decoding_ is None or not self.decoding_.ranks:
            return self.rule_(scores[0])
        found = self.decoding_(scores)
        if self.decoding_.rule is None:
            found = self._shared(found)
        return unseen_last(found, self.rule_.seen)

    def _shared(self, p: np.ndarray) -> np.ndarray:
        """Normalize the probabilities of classes to sum to 1 for each sample."""
        return p if self.multilabel_ else p / p.sum(axis=1, keepdims=True)

    @available_if(_of_labels)
    @named
    @row_by_row
    def predict_proba(self, X: Inputs) -> np.ndarray:
        """Predict the probability of each label.

        For classes, the probabilities of a sample sum to 1. The fit learns the conversion of scores to probabilities
        from held-out scores of training samples. See `dmo.decide.probabilities`.

        Parameters
        ----------
        %(X_new)s

        Returns
        -------
        ndarray of shape (m, L)
            Probability of each label for each sample.

        Raises
        ------
        UserError
            If the fit learned no probabilities. Possible reasons are too few training samples, a sparse target with
            more than 4096 labels, a graph or kernel matrix of all samples, or `decoder=Scores(label_sets=False)`.
        """
        check_is_fitted(self)
        if self.decoding_ is None:
            if not self._by_scores.label_sets:
                raise UserError(
                    "probabilities are not learned with label_sets=False; fit with decoder=None, or use "
                    "decision_function"
                )
            n, L = self.rule_.n_train, len(self.rule_.frequency)
            if n >= LEAST and L > _MANY:
                raise UserError(
                    f"probabilities are not learned from a sparse matrix of {L} labels; use top_labels or "
                    "decision_function, or fit on y.toarray() if it fits into memory"
                )
            raise UserError(
                "the model has no probabilities, because it was fitted on too few samples or by an earlier version; "
                "fit on more samples, or use decision_function"
            )
        return self._probabilities(self._scores(self._checked(X)))  # type: ignore[return-value]

    @available_if(_of_labels)
    def predict_log_proba(self, X: Inputs) -> np.ndarray:
        """Predict the natural logarithm of the probability of each label.

        Parameters
        ----------
        %(X_new)s

        Returns
        -------
        ndarray of shape (m, L)
            Logarithm of each probability, which is -inf for a probability of 0.
        """
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def _calibrated(self, scores: list[np.ndarray]) -> list[np.ndarray]:
        """Return the scores on which the decoder was fitted."""
        return scores if self.decoding_ is None or self.decoding_.ranks else [self.rule_(scores[0])]

    def _learn_decoder(
        self,
        decoder: Decoder,
        scores: list[np.ndarray],
        Y: np.ndarray,
        counts: np.ndarray | None,
        keys: np.ndarray,
    ) -> None:
        """Learn label sets and probabilities from raw out-of-fold scores of n training samples."""
        # `counts`, of shape (n, L), contains the weight of each entry of Y, which is 0 if the label is unknown. `keys`,
        # of shape (n,), contains hashes of the samples, from which cross-validation folds are derived.
        learner = as_decoder(decoder)
        if learner is not None:
            self.decoding_, self.held_out_scores_ = learner.learn(scores, Y, counts, keys), scores[0]
        elif len(Y) > 1 and (Y if counts is None else Y * (counts > 0)).any():
            ranking = [self.rule_(scores[0])]
            self.decoding_ = Calibration().learn_aside(ranking, Y, self.rule_.seen, not self.multilabel_, counts, keys)

    def _shared_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
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
        """Return the label hierarchy as a dict from each child to its parents."""
        known: dict[str, list[str]] = self.__dict__.setdefault("hierarchy_", {})
        if not known:  # Earlier versions store only the ancestors of each label.
            names = [str(label) for label in self.classes_]
            for column, above in self.ancestors_.tolist():
                known.setdefault(names[column], []).append(names[above])
        return known

    @available_if(_has_outputs)
    @named
    @row_by_row
    def predict(self, X: Inputs, top: int | None = None, as_names: bool = False) -> Any:
        """Predict label sets, classes or regression targets.

        Parameters
        ----------
        %(X_new)s
        top : int or None, default=None
            Number of labels per sample. By default, an estimator fitted on a vector of classes predicts one class per
            sample, and other estimators predict the label sets of the decoder. Without a decoder, a label is predicted
            if its probability exceeds a threshold learned from held-out scores of training samples. If the fit learned
            no thresholds, every sample gets the mean number of labels per training sample.
        as_names : bool, default=False
            Whether to return label names instead of a 0/1 matrix. For a vector of classes and a decoder with a
            guarantee such as "recall>=0.9", the names are the prediction set of each sample.

        Returns
        -------
        ndarray of shape (m, L), csr_array of shape (m, L), ndarray of shape (m,), or list of tuple
            For labels, or if `top` is given, a 0/1 matrix with the data type of the training labels. Above 4096 labels,
            this matrix is a CSR array of uint8. Labels without training samples are never predicted. For a vector of
            classes, an array of m classes. For regression, an array of predicted targets. With `as_names`, a list of m
            tuples of label names.

        Raises
        ------
        UserError
            If `top` is not between 1 and the number of labels, or if `top` or `as_names` is given for regression.
        """
        check_is_fitted(self)
        if self.outputs_ is not None:
            if top is not None or as_names:
                raise UserError(
                    "top and as_names apply to labels, but the model learned regression targets; leave them out"
                )
            return self._real_values(X, self.outputs_)
        if top is not None and not 1 <= top <= len(self.classes_):
            raise UserError(f"top = {top}, expected a number from 1 to {len(self.classes_)}, the number of labels")
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
        """Find the labels with the highest scores for each sample.

        Computing the scores in blocks of samples limits the memory.

        Parameters
        ----------
        %(X_new)s
        top : int, default=5
            Number of labels per sample.

        Returns
        -------
        labels : ndarray of shape (m, top), int
            Column indices of the labels of each sample, by descending score.
        scores : ndarray of shape (m, top)
            Scores of the returned labels.

        Raises
        ------
        UserError
            If `top` is not between 1 and the number of labels.
        """
        scores = self.lazy_scores(X)
        if not 1 <= top <= scores.shape[1]:
            raise UserError(f"top = {top}, expected a number from 1 to {scores.shape[1]}, the number of labels")
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
        """Return an array of label scores that are computed when rows are read."""
        check_is_fitted(self)
        return LazyScores(self, self._checked(X))

    def decide(self, X: Inputs, top: int | None = None) -> Decision:
        """Predict scores, label sets and probabilities together."""
        check_is_fitted(self)
        if self.outputs_ is not None:
            return Decision(self._real_values(X, self.outputs_).reshape(-1, len(self.outputs_.scale)))
        found = self._scores(self._checked(X))
        return Decision(self._ranked(found), self._label_sets(found, top) > 0, self, found)

    def _probabilities(self, scores: list[np.ndarray]) -> np.ndarray | None:
        """Compute label probabilities, or return None if the model has not learned probabilities."""
        if self.decoding_ is None:
            return None
        return self._shared(self.decoding_.probabilities(self._calibrated(scores)))

    @property
    def _learned_sets(self) -> bool:
        """Whether `predict` uses the label sets of the fitted decoder."""
        return (self.multilabel_ or self._promises) and self.decoding_ is not None and not self._predicts_sparse

    @property
    def _promises(self) -> bool:
        """Whether the parameter `decoder` is a guarantee such as "recall>=0.9"."""
        return promised(getattr(as_decoder(self._decoder), "metric", None)) is not None

    def most_labels(self, top: int | None = None) -> int:
        """Return the maximum number of labels that `predict` assigns to a sample."""
        seen = self.n_seen_labels_
        if top is None and self._learned_sets:
            return seen
        mean = round(float(self.rule_.frequency.sum())) if self.multilabel_ else 1
        return min(max(1, mean) if top is None else top, seen)

    def _label_sets(self, scores: list[np.ndarray], top: int | None) -> np.ndarray:
        """Predict label sets as a 0/1 matrix from the score matrices of a model."""
        thresholds = self._score_thresholds(top, len(scores[0]))
        if thresholds is not None:
            sets = (scores[0] > thresholds).view(np.uint8)
        elif top is None and self._learned_sets:
            sets = self.decoding_.sets(self._calibrated(scores))  # type: ignore[union-attr]
        else:
            sets = top_label_sets(self._ranked(scores), self.most_labels(top))
        return self._closed(sets, top)

    def _closed(self, sets: np.ndarray, top: int | None) -> np.ndarray:
        """Add the ancestors of predicted labels, unless the number of labels is given."""
        pairs = getattr(self, "ancestors_", None)
        return sets if top is not None or pairs is None else with_ancestors(sets, pairs)

    def _sets_of(self, views: Mapping[str, Rows], top: int | None) -> np.ndarray:
        """Predict label sets as a 0/1 matrix, in blocks of rows to limit the memory."""
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
        """Return a score threshold for each label, or None if the decoder itself must be used or is faster."""
        decoder = self.decoding_
        if top is not None or decoder is None or not self._learned_sets or m <= _COMPARED or not decoder.is_by_label:
            return None
        if self._thresholds is None or self._thresholds[0] is not decoder:
            found = score_thresholds(lambda S: decoder.sets(self._calibrated([S])), len(self.rule_.frequency))
            self._thresholds = decoder, found
        return self._thresholds[1]

    def _above(self, views: Mapping[str, Rows], thresholds: np.ndarray) -> np.ndarray:
        return self._raw_scores(views) > thresholds

    def _real_values(self, X: Any, units: RealOutputs) -> np.ndarray:
        """Predict regression targets in the units of y."""
        check_is_fitted(self)
        raw = self._raw_scores(self._checked(X))
        # For regression, `frequency` contains the means of the scaled targets.
        taken_off = self.rule_.frequency if self._centers and self.center else 0.0
        return units.restored(raw + taken_off)

    @property
    def n_seen_labels_(self) -> int:
        """Number of labels with at least one training sample. Labels without training samples are never predicted."""
        return int(self.rule_.seen.sum())

    @available_if(_has_outputs)
    @named
    def score(self, X: Inputs, y: Outputs, sample_weight: ArrayLike | None = None) -> float:
        """Compute the default metric of `dmo.tune`.

        The metric is "ranking" (the mean of label ranking average precision and macro AUC) for several labels, the AUC
        for a single label, the accuracy for classes, and R2 for regression targets.

        Parameters
        ----------
        %(X_new)s
        y : array-like of shape (m, L) or (m,)
            True labels of 0 and 1, true classes, or true regression targets. In a label matrix, entries that are NaN,
            None or masked are unknown labels, which the metric ignores.
        sample_weight : array-like of shape (m,) or None, default=None
            Sample weights.

        Returns
        -------
        float
            Value of the metric, at most 1. Higher is better.
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
            tags.target_tags.multi_output = False  # Multiclass-multioutput targets are not supported.
        else:
            tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
            tags.target_tags.multi_output = tags.target_tags.single_output = True
        return tags

    def fit(self, X: Inputs, y: Outputs) -> Self:
        raise NotImplementedError


def _of_rows(scores: list[np.ndarray], rows: np.ndarray) -> list[np.ndarray]:
    return [part[rows] for part in scores]


class OnBase(Annotator):
    """Base class of predictors with a base estimator, which also prepares the rows."""

    base: Any
    base_: Any

    @property
    def _prepare(self) -> Prepare:  # type: ignore[override]
        """Row preparation of the base estimator."""
        return preparing(self.__dict__["base_"] if "base_" in self.__dict__ else self._given_base()) or Prepare("none")

    def _given_base(self) -> Any:
        """Return the parameter `base`, or load the estimator from disk if the parameter is a path."""
        if isinstance(self.base, SavedLocation):
            raise self.base.refused("base")
        return load(self.base) if isinstance(self.base, str) else self.base

    def _take_base(self, default: Estimator) -> Any:
        """Set `base_` to an unfitted copy of the base estimator, which must exist before rows are prepared."""
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
            self.base = clone(self.base_)  # A saved model contains its base estimator and does not need the path.

    def _prepared(self, views: Mapping[str, Rows]) -> dict[str, Rows]:
        return prepare_views(self.base_, views, reset=False)


def predicts(model: Any) -> bool:
    """Return whether an estimator of dmo predicts labels or regression targets."""
    return isinstance(model, Annotator) and model._decodes


def label_scores(model: Any, X: Any) -> np.ndarray:
    """Compute label scores or predicted targets with a fitted model from dmo or another library."""
    if isinstance(model, Annotator):
        if not model._decodes:
            raise UserError(f"{model._title} does not learn from labels, so its scores of labels cannot be compared")
        real = model.outputs_
        return model._label_scores(X) if real is None else model._real_values(X, real).reshape(-1, len(real.scale))
    if hasattr(model, "decision_function"):
        scores = np.asarray(model.decision_function(X))
        return np.column_stack([-scores, scores]) if scores.ndim == 1 else scores
    predicted = np.asarray(model.predict(X))
    return predicted[:, None] if predicted.ndim == 1 else predicted


def targets(model: Any, Y: Any) -> Any:
    """Convert labels 0 and 1 to -1 and +1 for regressors from other libraries; return other targets unchanged."""
    if Y is None or isinstance(model, Annotator) or not is_regressor(model):
        return Y
    return 2.0 * Y - 1.0 if ((Y == 0) | (Y == 1) | np.isnan(Y)).all() else Y
