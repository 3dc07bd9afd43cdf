"""`partial_fit` on the moment engine: more rows, and more labels, without the rows seen before."""

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
    check_common_weights,
    check_labels,
    check_parameters,
    check_raw_views,
    is_label_sets,
    named,
    of_views,
    only_view,
    paired,
    prepare_views,
    sample_count,
)
from dmo.inputs.outputs import Targets, read_real
from dmo.methods.base import Estimator
from dmo.persistence import with_prefix, without_prefix

_ENOUGH = 100
"""Rows of a further batch from which label sets are learned anew."""


def _can_add(estimator: Any) -> bool:
    return bool(estimator._adds_rows)


class Incremental(Estimator):
    """partial_fit for an estimator whose low-rank fit needs nothing but a `LowRankPass`: see `_fit_pass`.

    The pass so far is kept (and saved with the model) from the first `partial_fit` on, and dropped by `fit`.
    """

    approximation: Any
    kernel: Any
    intercept: bool
    center: bool
    random_state: int | None
    targets: Targets
    expansions_: Mapping[str, Any]
    pass_: LowRankPass
    _sample_keys: np.ndarray | None
    decoding_: Any
    _decoder: Any

    @property
    def _adds_rows(self) -> bool:
        """Whether further rows can be added: under a low-rank engine, of which moments are kept."""
        engine = self.approximation
        return bool(engine != "auto" and not is_exact(engine))

    @property
    def _factors(self) -> tuple[Any, bool]:
        """The kernels of the factor rows, and whether these are centered."""
        return self.kernel, self.center

    @property
    def _functions_of_views(self) -> Mapping[str, Any]:
        """The fitted functions by view."""
        return self.expansions_

    def _data(self, X: Any, y: Any, sample_weight: Any) -> Data:
        self.__dict__.pop("pass_", None)  # `fit` keeps no moments
        return super()._data(X, y, sample_weight)

    def _fit_pass(self, done: LowRankPass) -> None:
        """Learn from the moments of all rows."""
        raise NotImplementedError

    @available_if(_can_add)
    @named
    def partial_fit(
        self, X: Inputs, y: Outputs | None = None, classes: Any = None, sample_weight: RowWeights = None
    ) -> Self:
        """Learn from further samples.

        The first call fits the kernels' feature maps, so its samples should stand for all; later ones pass once over
        their own rows and solve anew, as one fit of all rows with these maps would.

        Parameters
        ----------
        X : mapping of view to rows, list of rows, or rows
            Views of n further samples.
        y : array-like of shape (n, L) or (n,), default=None
            Labels of 0 and 1, n classes, or n lists of labels; or real outputs, scaled as those of the first call. Labels may
            have more columns, or lists of more labels, than before: new labels, which no earlier sample carries. Ignored by
            methods without labels.
        classes : array-like of shape (L,) or None, default=None
            All classes, needed at the first call where y is a vector.
        sample_weight : array-like of shape (n,) or None, default=None
            How often every sample counts. Landmarks are drawn from all samples of the first call alike.

        Returns
        -------
        estimator
            This estimator, fitted to all samples so far.

        Raises
        ------
        UserError
            For other views, fewer labels, unknown classes, and after a `fit`, which keeps no moments.
        """
        check_parameters(self)
        if getattr(self, "_decoder", None) is not None:
            raise UserError(
                "a decoder learns from held-out scores of all samples, and partial_fit does not see them all; use fit"
            )
        if getattr(self, "class_weight", None) is not None:
            raise UserError(
                "how often classes occur is not known before all samples; give their weights as sample_weight"
            )
        first = not hasattr(self, "pass_")
        if first and (hasattr(self, "expansions_") or hasattr(self, "expansion_")):
            raise UserError("fit kept no moments to add to; begin with partial_fit, or fit all rows again")
        y, sample_weight = paired(X, y, sample_weight)
        raw = check_raw_views(self, X, reset=first)
        if self.one_view:
            only_view(raw)
        given = check_common_weights(sample_weight, raw)
        weights = None if given is None else given.labels
        views = prepare_views(self, raw, first, of_views(given))
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
        """Read labels or outputs of n further samples; None of a method that does not learn from them.

        -> (n, L)
        """
        vector = self.targets != "real" and not is_label_sets(y) and np.ndim(cast(ArrayLike, y)) == 1
        if first and classes is None and vector:
            raise UserError("the first partial_fit of a vector of classes needs all of them; pass classes")
        found = read_real(self, y, n, first, weights)
        if found is None:
            return check_labels(self, y, n, reset=first, grow=True, classes=classes if first else None, dtype=np.uint8)
        Y, known = found
        if known is not None:
            raise UserError("partial_fit needs all outputs of all samples; fill the missing values, or use fit")
        return Y

    def _learn_from_pass(self, done: LowRankPass, data: Data) -> None:
        """Learn label sets from some rows that are in the pass, where the estimator can."""

    def _pass_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The folds' moments for a model store; empty where there are none."""
        if not hasattr(self, "pass_"):
            return {}, {}
        arrays, meta = FoldMoments(self.pass_.folds).to_arrays()
        return with_prefix("pass", arrays), {"pass": meta["folds"]}

    def _restore_pass(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        """What `_pass_arrays` described; the maps are those of the expansions."""
        if "pass" in meta:
            kept = FoldMoments.from_arrays(without_prefix("pass", arrays), {"folds": meta["pass"]})
            self.pass_ = LowRankPass({v: part.feature_map for v, part in self._functions_of_views.items()}, kept.folds)

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        (arrays, meta), (kept, kept_meta) = super()._arrays(), self._pass_arrays()
        return arrays | kept, meta | kept_meta

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        super()._restore(arrays, meta)
        self._restore_pass(arrays, meta)
