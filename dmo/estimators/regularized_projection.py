"""What MORP and MLSI share: the fit of a form of multi-output regularized projection, and its decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from sklearn.metrics import r2_score
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from dmo.blocks import Rows
from dmo.engines.krylov import Krylov
from dmo.errors import UserError
from dmo.estimators.annotator import best_labels
from dmo.estimators.filling import filled_labels
from dmo.estimators.lazy import row_by_row
from dmo.estimators.projection import Projection
from dmo.estimators.projector import ProjectionOptions, project
from dmo.estimators.ridge import MultiViewRidge
from dmo.labels.kernels import LabelKernel
from dmo.methods.decoding import unseen_last
from dmo.methods.embeddings.morp import FORMS, Form
from dmo.methods.embeddings.samples import Options
from dmo.methods.embeddings.tasks import FormTask
from dmo.metrics import annotation_scores
from dmo.validation import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    SEED,
    SHARE,
    Need,
    check_label_factor,
    check_labels,
    check_row_weights,
    count_components,
    one_of,
)


class RegularizedProjection(Projection):
    """A projection that keeps the inputs and predicts the outputs, which it can score."""

    _needs: ClassVar[dict[str, Need]] = {
        "mixing": SHARE,
        "ridge": NOT_NEGATIVE,
        "n_components": COUNT,
        "form": one_of(*FORMS),
        "tol": POSITIVE,
        "max_iter": COUNT,
        "random_state": SEED,
    }

    mixing: float
    ridge: float
    n_components: int
    form: Form
    label_kernel: LabelKernel
    classes_: np.ndarray

    def _fit_form(
        self,
        view: str,
        source: Rows,
        y: Any,
        sample_weight: Any,
        center: bool,
        options: ProjectionOptions,
        scaled: bool = True,
    ) -> None:
        """Solve the form for its mixing, ridge, n_components and label kernel."""
        n = source.shape[0]
        k = count_components(self.n_components, 1, n, n)
        weights = check_row_weights(sample_weight, n)
        labels, known = check_label_factor(self, y, n, self.label_kernel, weights)
        given = labels if known is None else np.where(known, labels, 0.0)
        self.label_means_ = np.average(labels, axis=0, weights=weights)
        self.has_labels_ = bool(((given == 0) | (given == 1)).all())
        self.flat_ = not self.has_labels_ and np.ndim(y) == 1
        if known is not None:
            engine: Any = "auto" if isinstance(options.approximation, Krylov) else options.approximation
            regression = MultiViewRidge(options.kernel, approximation=engine, random_state=options.random_state)
            labels = filled_labels(regression, {view: source}, labels, known, weights)
        task = FormTask(self.form, Options(mixing=float(self.mixing), ridge=float(self.ridge)), center, scaled)
        self._learn(project(task, view, source, labels, k, options, weights))

    def _row_shape(self, method: str, **options: Any) -> tuple[np.ndarray | None, np.dtype]:
        if method == "transform":
            return super()._row_shape(method)
        if method == "predict" and self.flat_:
            return None, np.dtype(np.float64)
        if method == "predict" and self.has_labels_:
            several = self.multilabel_ or options.get("top") is not None
            return (self.classes_, np.dtype(np.uint8)) if several else (None, self.classes_.dtype)
        return np.asarray(getattr(self, "classes_", range(self.decoder_.shape[1]))), np.dtype(np.float64)

    @row_by_row
    def decision_function(self, X: Any) -> np.ndarray:
        """Score the outputs of samples by least squares from their coordinates.

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
        if self.label_kernel != "linear":
            raise UserError("outputs with a label kernel have no columns to score; learn from the coordinates")
        scores = self.transform(X) @ self.decoder_ + self.decoder_offset_
        return unseen_last(scores, self._seen) if self.has_labels_ else scores

    @row_by_row
    def predict(self, X: Any, top: int | None = None, as_names: bool = False) -> Any:
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

    def score(self, X: Any, y: Any) -> float:
        """Rate what coordinates say of outputs: F1 of the five best labels, accuracy for classes, R2 of other outputs.

        Parameters
        ----------
        X : rows of shape (m, d)
            Samples, in chunks of whole rows.
        y : array-like of shape (m, L) or (m,)
            True outputs.

        Returns
        -------
        float
            The higher the better, at most 1.
        """
        scores = np.asarray(self.decision_function(X))
        if not self.has_labels_:
            return float(r2_score(y, scores))
        Y = check_labels(self, y, len(scores), reset=False)
        if not self.multilabel_:
            return float(Y[np.arange(len(Y)), scores.argmax(axis=1)].mean())
        return annotation_scores(Y.astype(np.uint8), scores, top=min(5, scores.shape[1])).f1

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays, meta = super()._arrays()
        meta |= {"has_labels": self.has_labels_, "flat": self.flat_, "multilabel": getattr(self, "multilabel_", True)}
        return arrays | {"label_means": self.label_means_}, meta

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        super()._restore(arrays, meta)
        self.label_means_, self.has_labels_ = arrays["label_means"], meta["has_labels"]
        self.flat_, self.multilabel_ = meta["flat"], meta["multilabel"]

    @property
    def _seen(self) -> np.ndarray:
        """Whether an output was ever other than 0 in training (L): the decoder of one that was not is exactly 0."""
        return np.asarray(self.decoder_.any(axis=0) | (self.decoder_offset_ != 0))

    @property
    def n_seen_labels_(self) -> int:
        """Number of outputs that are not 0 in every training sample."""
        return int(self._seen.sum())

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags
