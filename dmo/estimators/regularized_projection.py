"""What MORP and MLSI share: the fit of a form of multi-output regularized projection, and its decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from sklearn.utils import Tags

from dmo.blocks import Rows
from dmo.engines.krylov import Krylov
from dmo.estimators.decoding_projection import DecodingProjection
from dmo.estimators.filling import filled_labels
from dmo.estimators.label_gaps import directions
from dmo.estimators.projector import ProjectionOptions, project
from dmo.estimators.ridge import MultiViewRidge
from dmo.labels.kernels import LabelKernel
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
    check_many_labels,
    check_row_weights,
    count_components,
    one_of,
    only_view,
)


class RegularizedProjection(DecodingProjection):
    """A projection that keeps the inputs and predicts the outputs, which it can score."""

    _needs: ClassVar[dict[str, Need]] = DecodingProjection._needs | {
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

    @property
    def _decodes(self) -> bool:
        return isinstance(self.label_kernel, str) and self.label_kernel == "linear"

    def _fit_form(
        self,
        views: Mapping[str, Rows],
        y: Any,
        sample_weight: Any,
        center: bool,
        options: ProjectionOptions,
        scaled: bool = True,
    ) -> None:
        """Solve the form for its mixing, ridge, n_components and label kernel."""
        view, source = only_view(views)
        n = source.shape[0]
        k = count_components(self.n_components, 1, n, n)
        weights = check_row_weights(sample_weight, n)
        many = check_many_labels(self, y, n) if self.label_kernel == "linear" else None
        V = known = None
        if many is not None:
            labels, V = directions(many, k, options.random_state)
            counts = np.ones(n) if weights is None else weights
            self.outputs_ = None
            self._learn_rule(many.T @ counts / counts.sum(), counts.sum())
        else:
            labels, known = check_label_factor(self, y, n, self.label_kernel, weights)
            given = labels if known is None else np.where(known, labels, 0.0)
            self._learn_outputs(given, y, weights)
            self._learn_rule(np.average(labels, axis=0, weights=weights), self.rule_.n_train)
        if known is not None:
            engine: Any = "auto" if isinstance(options.approximation, Krylov) else options.approximation
            regression = MultiViewRidge(options.kernel, approximation=engine, random_state=options.random_state)
            labels = filled_labels(regression, {view: source}, labels, known, weights)
        task = FormTask(self.form, Options(mixing=float(self.mixing), ridge=float(self.ridge)), center, scaled)
        classes = self._scores_labels and not self.multilabel_
        learn = self._learner if classes else None
        self._learn(project(task, view, source, labels, k, options, weights, learn))
        if classes and not hasattr(self, "decoder_"):
            self._fit_decoder(view, source, labels, weights)
        if V is not None:
            self.decoder_, self.decoder_offset_ = self.decoder_ @ V.T, self.decoder_offset_ @ V.T
        elif self._decodes:
            self._learn_row_decisions(views, given, weights, known)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags
