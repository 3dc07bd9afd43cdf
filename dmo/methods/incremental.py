"""`partial_fit` on the moment engine: more rows, and more labels, without the rows seen before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.metaestimators import available_if

from dmo.decide.decoders import Scores
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
    paired,
    prepare_views,
    sample_count,
)
from dmo.inputs.outputs import Targets, read_real
from dmo.parameters import Part
from dmo.persistence import with_prefix, without_prefix

_ENOUGH = 100
"""Rows of a further batch from which label sets are learned anew."""


def _of_low_rank(estimator: Any) -> bool:
    engine = estimator.approximation
    return engine != "auto" and not is_exact(engine)


class Incremental:
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
    _by_scores = Part(Scores, "decoder")

    def _fit_pass(self, done: LowRankPass) -> None:
        """Learn from the moments of all rows."""
        raise NotImplementedError

    @available_if(_of_low_rank)
    @named
    def partial_fit(self, X: Inputs, y: Outputs, classes: Any = None, sample_weight: RowWeights = None) -> Self:
        """Learn from further samples.

        The first call fits the kernels' feature maps, so its samples should stand for all; later ones pass once over
        their own rows and solve anew, as one fit of all rows with these maps would.

        Parameters
        ----------
        X : mapping of view to rows, list of rows, or rows
            Views of n further samples.
        y : array-like of shape (n, L) or (n,)
            Labels of 0 and 1, n classes, or n lists of labels; or real outputs, scaled as those of the first call. Labels may
            have more columns, or lists of more labels, than before: new labels, which no earlier sample carries.
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
        if self._decoder is not None:
            raise UserError(
                "a decoder learns from held-out scores of all samples, and partial_fit does not see them all; use fit"
            )
        if getattr(self, "class_weight", None) is not None:
            raise UserError(
                "how often classes occur is not known before all samples; give their weights as sample_weight"
            )
        first = not hasattr(self, "pass_")
        if first and hasattr(self, "expansions_"):
            raise UserError("fit kept no moments to add to; begin with partial_fit, or fit all rows again")
        y, sample_weight = paired(X, y, sample_weight)
        raw = check_raw_views(self, X, reset=first)
        vector = self.targets != "real" and not is_label_sets(y) and np.ndim(cast(ArrayLike, y)) == 1
        if first and classes is None and vector:
            raise UserError("the first partial_fit of a vector of classes needs all of them; pass classes")
        n = sample_count(raw)
        given = check_common_weights(sample_weight, raw)
        weights = None if given is None else given.labels
        views = prepare_views(self, raw, first, of_views(given))
        found = read_real(self, y, n, first, weights)
        if found is None:
            Y = check_labels(self, y, n, reset=first, grow=True, classes=classes if first else None, dtype=np.uint8)
        else:
            Y, known = found
            if known is not None:
                raise UserError("partial_fit needs all outputs of all samples; fill the missing values, or use fit")
        folds = FOLDS if self._by_scores.standardize else 1
        if first:
            self.approximation_ = self.approximation
            kernels = self.approximation, self.kernel
            done = low_rank_pass(*kernels, views, Y, folds, self.random_state, self.center, weights)
        else:
            done = self.pass_.extended(views, Y, self.random_state, weights)
        self._fit_pass(done)
        self.pass_ = done
        self._sample_keys = joined_keys(None if first else self._sample_keys, stored_keys(raw))
        if len(Y) >= _ENOUGH:
            self.decoding_ = None
            self._learn_from_pass(done, Data.of(views, Y, weights))
        elif self.decoding_ is None or len(self.decoding_.thresholds) != Y.shape[1]:
            self.decoding_ = None
        return self

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
            self.pass_ = LowRankPass({name: part.feature_map for name, part in self.expansions_.items()}, kept.folds)
