"""Incremental fits by `partial_fit`, which adds samples without reading earlier samples again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.metaestimators import available_if

from dmo.errors import UserError
from dmo.fit.engine import FOLDS, LowRankPass, is_exact, low_rank_pass
from dmo.fit.passes import FoldMoments
from dmo.hashing import joined_keys, stored_keys
from dmo.inputs import (
    Data,
    Inputs,
    Outputs,
    RowWeights,
    check_labels,
    check_parameters,
    check_raw_views,
    check_weights,
    is_label_sets,
    named,
    only_view,
    paired,
    prepare_views,
    sample_count,
)
from dmo.inputs.outputs import RealOutputs, Targets, read_real, recognized
from dmo.methods.base import Estimator
from dmo.persistence import with_prefix, without_prefix

_ENOUGH = 100
"""Minimum number of samples in a batch from which label sets and probabilities are learned."""


def _can_add(estimator: Any) -> bool:
    return bool(estimator._adds_rows)


class Incremental(Estimator):
    """Mixin that adds `partial_fit` to estimators with low-rank kernels, which need only moments of the samples."""

    # `partial_fit` keeps the moments of all samples, which are saved with the model. `fit` deletes the moments.

    approximation: Any
    kernel: Any
    intercept: bool
    center: bool
    random_state: int | None
    targets: Targets
    outputs_: RealOutputs | None
    expansions_: Mapping[str, Any]
    pass_: LowRankPass
    _sample_keys: np.ndarray | None
    decoding_: Any
    _decoder: Any

    @property
    def _adds_rows(self) -> bool:
        """Whether `partial_fit` is available, which requires low-rank kernels."""
        engine = self.approximation
        return bool(engine != "auto" and not is_exact(engine))

    @property
    def _factors(self) -> tuple[Any, bool]:
        """Low-rank kernels, and whether to center their feature maps."""
        return self.kernel, self.center

    @property
    def _functions_of_views(self) -> Mapping[str, Any]:
        """Fitted function of each view, which maps new rows to scores or coordinates."""
        return self.expansions_

    def _data(self, X: Any, y: Any, sample_weight: Any) -> Data:
        self.__dict__.pop("pass_", None)
        return super()._data(X, y, sample_weight)

    def _fit_pass(self, done: LowRankPass) -> None:
        """Fit the model from the moments of all samples, which are their number, sums and Gram matrix."""
        raise NotImplementedError

    @available_if(_can_add)
    @named
    def partial_fit(
        self, X: Inputs, y: Outputs | None = None, classes: Any = None, sample_weight: RowWeights = None
    ) -> Self:
        """Update the model with additional samples.

        The first call fits the feature maps of the kernels, so its samples should represent all data. Each later call
        reads only its own samples and then fits the model again. The model is the same as after a single fit of all
        samples with these feature maps.

        Parameters
        ----------
        X : mapping of view to rows, list of rows, or rows
            Views of n additional samples.
        y : array-like of shape (n, L) or (n,), default=None
            Label matrix of 0 and 1, vector of n classes, n lists of labels, or regression targets. Regression targets
            are scaled by the statistics of the first call. A call can add new labels, which are then 0 for all earlier
            samples. Estimators without labels ignore y.
        classes : array-like of shape (L,) or None, default=None
            All classes, which the first call requires if y is a vector of classes.
        sample_weight : array-like of shape (n,) or None, default=None
            Sample weights, which do not affect the choice of landmarks in the first call.

        Returns
        -------
        estimator
            This estimator, fitted on the samples of all calls.

        Raises
        ------
        UserError
            If the views differ from earlier calls, if labels are missing, if a class is unknown, if the estimator has a
            decoder or class weights, or if it was fitted by `fit`.
        """
        check_parameters(self)
        if getattr(self, "_decoder", None) is not None:
            raise UserError(
                "a decoder needs out-of-fold scores of all samples, which partial_fit does not have; use fit"
            )
        if getattr(self, "class_weight", None) is not None:
            raise UserError(
                "partial_fit does not support class_weight, because the class frequencies are unknown; pass "
                "sample_weight"
            )
        first = not hasattr(self, "pass_")
        if first and (hasattr(self, "expansions_") or hasattr(self, "expansion_")):
            raise UserError(
                "a model of fit cannot be continued by partial_fit; start with partial_fit, or fit all rows again"
            )
        y, sample_weight = paired(X, y, sample_weight)
        raw = check_raw_views(self, X, reset=first)
        if self.one_view:
            only_view(raw)
        given = check_weights(sample_weight, raw, "sample")
        weights = None if given is None else given.labels
        views = prepare_views(self, raw, first, None if given is None else given.plain.views)
        Y = self._read_batch(y, sample_count(raw), first, weights, classes)
        standardize = getattr(getattr(self, "_by_scores", None), "standardize", 0.0)
        folds = FOLDS if standardize else 1
        if first:
            self.approximation_ = self.approximation
            kernel, center = self._factors
            done = low_rank_pass(self.approximation, kernel, views, Y, folds, self.random_state, center, weights)
        else:
            done = self.pass_.extended(views, Y, self.random_state, weights)
        self._fit_pass(done)
        self.pass_ = done
        self._sample_keys = joined_keys(None if first else self._sample_keys, stored_keys(raw))
        if Y is None:
            return self
        if len(Y) >= _ENOUGH:
            self.decoding_ = None
            self._learn_from_pass(done, Data.of(views, Y, weights))
        elif self.decoding_ is None or len(self.decoding_.thresholds) != Y.shape[1]:
            self.decoding_ = None
        return self

    def _read_batch(self, y: Any, n: int, first: bool, weights: np.ndarray | None, classes: Any) -> np.ndarray | None:
        """Read the labels or regression targets of n additional samples, or return None if the method ignores y."""
        vector = self.targets != "real" and not is_label_sets(y) and np.ndim(cast(ArrayLike, y)) == 1
        if first and classes is None and vector:
            raise UserError(
                "the first call of partial_fit with a vector of classes needs the list of all classes; pass "
                "classes=[...]"
            )
        if first:
            self.outputs_ = None
        if self.outputs_ is None and not (first and recognized(y, self.targets)[1] == "real"):
            return check_labels(self, y, n, reset=first, grow=True, classes=classes if first else None, dtype=np.uint8)
        Y, known = read_real(self, y, n, first, weights)
        if known is not None:
            raise UserError("partial_fit does not support missing targets; fill the missing values, or use fit")
        return Y

    def _learn_from_pass(self, done: LowRankPass, data: Data) -> None:
        """Learn label sets from the samples of the last batch. The default implementation does nothing."""

    def _pass_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the moments for a saved model, or empty mappings if the model has none."""
        if not hasattr(self, "pass_"):
            return {}, {}
        arrays, meta = FoldMoments(self.pass_.folds).to_arrays()
        return with_prefix("pass", arrays), {"pass": meta["folds"]}

    def _restore_pass(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        """Restore the moments of a saved model, with the feature maps of the fitted functions."""
        if "pass" in meta:
            kept = FoldMoments.from_arrays(without_prefix("pass", arrays), {"folds": meta["pass"]})
            self.pass_ = LowRankPass({v: part.feature_map for v, part in self._functions_of_views.items()}, kept.folds)

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        (arrays, meta), (kept, kept_meta) = super()._arrays(), self._pass_arrays()
        return arrays | kept, meta | kept_meta

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        super()._restore(arrays, meta)
        self._restore_pass(arrays, meta)
