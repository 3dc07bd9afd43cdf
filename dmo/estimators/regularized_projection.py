"""What MORP and MLSI share: the fit of a form of multi-output regularized projection, and its decoder."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from dmo.blocks import Rows
from dmo.errors import UserError
from dmo.estimators.lazy import row_by_row
from dmo.estimators.projection import Projection
from dmo.estimators.projector import ProjectionOptions, project
from dmo.labels.kernels import LabelKernel
from dmo.methods.decoding import unseen_last
from dmo.methods.embeddings.morp import FORMS, Form
from dmo.methods.embeddings.samples import Options
from dmo.methods.embeddings.tasks import FormTask
from dmo.validation import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    SEED,
    SHARE,
    Need,
    check_label_factor,
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

    def _fit_form(
        self, view: str, source: Rows, y: Any, center: bool, road: ProjectionOptions, scaled: bool = True
    ) -> None:
        """Solve the form for its mixing, ridge, n_components and label kernel."""
        n = source.shape[0]
        k = count_components(self.n_components, 1, n, n)
        labels = check_label_factor(self, y, n, self.label_kernel)
        task = FormTask(self.form, Options(mixing=float(self.mixing), ridge=float(self.ridge)), center, scaled)
        self._learn(project(task, view, source, labels, k, road))

    def _row_shape(self, method: str, **options: Any) -> tuple[np.ndarray | None, np.dtype]:
        if method == "transform":
            return super()._row_shape(method)
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
        return unseen_last(self.transform(X) @ self.decoder_ + self.decoder_offset_, self._seen)

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
