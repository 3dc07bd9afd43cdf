"""Projections that say what coordinates tell of the outputs: scores, labels and values, decoded from the space."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.metrics import r2_score
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dmo.blocks import Rows, iterate
from dmo.engines.moments import LABELS, ROWS, Moments
from dmo.engines.row_sums import BLOCK
from dmo.errors import UserError
from dmo.estimators.annotator import best_labels
from dmo.estimators.arguments import Inputs, Outputs
from dmo.estimators.lazy import row_by_row
from dmo.estimators.projection import Projection
from dmo.methods.decoding import unseen_last
from dmo.methods.embeddings.tasks import Learner, decode, discriminants
from dmo.metrics import rated
from dmo.validation import check_partial_labels, check_row_weights


def _has_outputs(estimator: Any) -> bool:
    return bool(estimator._decodes)


class DecodingProjection(Projection):
    """A projection that scores the outputs which it was fitted on, from the coordinates of samples.

    The base class of `MORP`, `MLSI`, `MOPE`, `MESD` and `TraceEmbedding`.
    """

    label_means_: np.ndarray
    n_labeled_: float
    """Training samples with outputs, by their weights."""
    has_labels_: bool
    multilabel_: bool
    flat_: bool
    classes_: np.ndarray

    @property
    def _decodes(self) -> bool:
        """Whether there are outputs with columns to score."""
        return True

    def _learn_outputs(self, Y: np.ndarray, y: Any, weights: np.ndarray | None = None) -> None:
        """What the outputs are that will be decoded: Y (n x L), which were given as y."""
        self.label_means_ = np.average(Y, axis=0, weights=weights)
        self.n_labeled_ = float(len(Y) if weights is None else weights.sum())
        self.has_labels_ = bool(((Y == 0) | (Y == 1)).all())
        self.flat_ = not self.has_labels_ and np.ndim(y) == 1

    @property
    def _learner(self) -> Learner:
        """How outputs are decoded: labels and numbers by least squares; classes by discriminants, since least squares of
        three classes in a row never give the one in the middle."""
        return decode if self.multilabel_ or not self.has_labels_ else discriminants

    def _learn_decoder(self, view: str, source: Rows, Y: np.ndarray, weights: np.ndarray | None = None) -> None:
        """Learn from the training samples, which count `weights` times, what their coordinates say of outputs.

        Coordinates that the fit did not leave take one more pass over the rows.
        """
        embedding = getattr(self, "embedding_", None)
        blocks: Iterable[tuple[slice, Any]] = [(slice(0, len(Y)), embedding)]
        if embedding is None:
            blocks = ((where, self.expansion_({view: block})) for where, block in iterate(source, BLOCK))
        moments = Moments.zeros({ROWS: self.n_components_, LABELS: Y.shape[1]})
        for where, Z in blocks:
            roots = np.ones(len(Z)) if weights is None else np.sqrt(weights[where])
            groups = {ROWS: np.asarray(Z, np.float64), LABELS: Y[where].astype(np.float64)}
            moments = moments.absorb({name: roots[:, None] * part for name, part in groups.items()}, roots)
        found = self._learner(moments)
        assert found is not None  # there are labels
        self.decoder_, self.decoder_offset_ = found

    def _row_shape(self, method: str, **options: Any) -> tuple[np.ndarray | None, np.dtype]:
        if method == "transform":
            return super()._row_shape(method)
        if method == "predict" and self.flat_:
            return None, np.dtype(np.float64)
        if method == "predict" and self.has_labels_:
            several = self.multilabel_ or options.get("top") is not None
            return (self.classes_, np.dtype(np.uint8)) if several else (None, self.classes_.dtype)
        return np.asarray(getattr(self, "classes_", range(self.decoder_.shape[1]))), np.dtype(np.float64)

    @available_if(_has_outputs)
    @row_by_row
    def decision_function(self, X: Inputs) -> np.ndarray:
        """Score the outputs of samples from their coordinates.

        An output that is 0 in every training sample, a label that none carries, ranks below all others of its row.

        Parameters
        ----------
        X : rows of shape (m, d)
            Samples, in chunks of whole rows.

        Returns
        -------
        ndarray of shape (m, L)
            Scores; of classes, one column each.

        Raises
        ------
        UserError
            Where a label kernel other than "linear" left no columns to score.
        """
        check_is_fitted(self)
        if getattr(self, "label_kernel", None) not in (None, "linear"):
            raise UserError("outputs with a label kernel have no columns to score; learn from the coordinates")
        scores = self.transform(X) @ self.decoder_ + self.decoder_offset_
        return unseen_last(scores, self._seen) if self.has_labels_ else scores

    @available_if(_has_outputs)
    @row_by_row
    def predict(self, X: Inputs, top: int | None = None, as_names: bool = False) -> Any:
        """Choose the classes or labels of samples, or give the values of their outputs, from their coordinates.

        Parameters
        ----------
        X : rows of shape (m, d)
            Samples, in chunks of whole rows.
        top : int or None, default=None
            Labels per sample. None: as many as a training sample has on average, at least 1; of classes one.
        as_names : bool, default=False
            Return names of labels in place of 0 and 1.

        Returns
        -------
        ndarray of shape (m, L) or (m,), or list of tuple
            Labels of 0 and 1, or with `as_names` their names; classes; of outputs other than 0 and 1 their values.

        Raises
        ------
        UserError
            Where a label kernel other than "linear" left no columns, and for `top` of outputs that are no labels.
        """
        scores = self.decision_function(X)
        if not self.has_labels_ and (top is not None or as_names):
            raise UserError("real outputs have no top labels and no names of them; leave top and as_names out")
        if not self.has_labels_:
            return scores[:, 0] if self.flat_ else scores
        if not self.multilabel_ and top is None:
            return self.classes_[scores.argmax(axis=1)]
        count = max(1, round(float(self.label_means_.sum()))) if top is None else top
        names = list(getattr(self, "label_names_", self.classes_)) if as_names else None
        return best_labels(scores, count, self.n_seen_labels_, names)

    @available_if(_has_outputs)
    def score(self, X: Inputs, y: Outputs, sample_weight: ArrayLike | None = None) -> float:
        """Rate what coordinates say of outputs: "ranking" of labels (mean of LRAP and macro AUC), accuracy of classes, R2.

        Parameters
        ----------
        X : rows of shape (m, d)
            Samples, in chunks of whole rows.
        y : array-like of shape (m, L) or (m,)
            True outputs; in a matrix of labels NaN, None and masked entries are unknown and count for nothing.
        sample_weight : array-like of shape (m,) or None, default=None
            How often every sample counts.

        Returns
        -------
        float
            The higher the better, at most 1.
        """
        scores = np.asarray(self.decision_function(X))
        if not self.has_labels_:
            return float(r2_score(y, scores, sample_weight=sample_weight))
        Y, known = check_partial_labels(self, y, len(scores), reset=False)
        truth = Y.astype(np.float64) if known is None else np.where(known, Y, np.nan)
        return rated(truth, scores, self.multilabel_, check_row_weights(sample_weight, len(scores)))

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays, meta = super()._arrays()
        if not hasattr(self, "decoder_"):
            return arrays, meta
        meta |= {"has_labels": self.has_labels_, "flat": self.flat_, "multilabel": getattr(self, "multilabel_", True)}
        return arrays | {"label_means": self.label_means_}, meta | {"n_labeled": self.n_labeled_}

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        super()._restore(arrays, meta)
        if "label_means" in arrays:
            self.label_means_, self.has_labels_ = arrays["label_means"], meta["has_labels"]
            self.flat_, self.multilabel_, self.n_labeled_ = meta["flat"], meta["multilabel"], meta["n_labeled"]

    @property
    def _seen(self) -> np.ndarray:
        """Whether an output was ever other than 0 in training (L): the decoder of one that was not is exactly 0."""
        return np.asarray(self.decoder_.any(axis=0) | (self.decoder_offset_ != 0))

    @property
    def n_seen_labels_(self) -> int:
        """Number of outputs that are not 0 in every training sample."""
        return int(self._seen.sum())
