"""`partial_fit` on the moment engine: more rows, and more labels, without the rows seen before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from sklearn.utils.metaestimators import available_if

from dmo.engines.lowrank import FOLDS, LowRankPass, is_exact, low_rank_pass
from dmo.engines.moments import Moments
from dmo.errors import UserError
from dmo.persistence import with_prefix, without_prefix
from dmo.validation import check_labels, check_views


def _of_low_rank(estimator: Any) -> bool:
    engine = estimator.approximation
    return engine != "auto" and not is_exact(type(estimator).__name__, engine)


class Incremental:
    """partial_fit for an estimator whose low-rank fit needs nothing but a `LowRankPass`: see `_fit_pass`.

    The pass so far is kept (and saved with the model) from the first `partial_fit` on, and dropped by `fit`.
    """

    approximation: Any
    kernel: Any
    standardize: float
    random_state: int | None
    expansions_: Mapping[str, Any]
    pass_: LowRankPass

    def _fit_pass(self, done: LowRankPass) -> None:
        """Learn from the moments of all rows."""
        raise NotImplementedError

    @available_if(_of_low_rank)
    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn from further samples X (views of n rows) and labels y (n x L of 0/1, or n classes).

        The first call fits the kernels' feature maps, so its samples should stand for all; later ones pass once over
        their own rows and solve anew, as one fit of all rows with these maps would. `y` may have more columns than
        before: new labels, which no earlier sample carries. `classes`: all classes, for a vector y, at the first call.
        Raises ValueError for other views, fewer labels, unknown classes, and after a `fit`, which keeps no moments.
        """
        who = type(self).__name__
        first = not hasattr(self, "pass_")
        if first and hasattr(self, "expansions_"):
            raise UserError(f"{who}: fit kept no moments to add to; begin with partial_fit, or fit all rows again")
        views = check_views(self, X, reset=first)
        n = next(iter(views.values())).shape[0]
        Y = self._label_columns(y, n, classes, first)
        folds = FOLDS if self.standardize else 1
        if first:
            self.approximation_ = self.approximation
            done = low_rank_pass(who, self.approximation, self.kernel, views, Y, folds, self.random_state)
        else:
            done = self.pass_.extended(views, Y, self.random_state)
        self._fit_pass(done)
        self.pass_ = done
        return self

    def _forget_pass(self) -> None:
        """What a `fit` begins with."""
        self.__dict__.pop("pass_", None)

    def _label_columns(self, y: Any, n: int, classes: Any, first: bool) -> np.ndarray:
        who = type(self).__name__
        flat = np.ndim(y) == 1 if not hasattr(y, "shape") else len(y.shape) == 1
        if flat and first:
            if classes is None:
                raise UserError(f"{who}: the first partial_fit of a vector of classes needs all of them; pass classes")
            self.classes_, self.multilabel_ = np.unique(np.asarray(classes)), False
        if flat:
            unknown = np.setdiff1d(np.asarray(y), self.classes_)
            if unknown.size:
                raise UserError(f"{who}: y has class {unknown[0]!r}, which is none of classes={list(self.classes_)}")
        Y = check_labels(self, y, n, learn_classes=first and not flat, dtype=np.uint8)
        if not flat and Y.shape[1] < len(self.classes_):
            raise UserError(f"{who}: y has {Y.shape[1]} labels, earlier calls had {len(self.classes_)}; pass them all")
        if not flat:
            self.classes_ = np.arange(Y.shape[1])
        return Y

    def _pass_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The folds' moments for a model store; empty where there are none."""
        if not hasattr(self, "pass_"):
            return {}, {}
        arrays: dict[str, Any] = {}
        metas = []
        for number, part in enumerate(self.pass_.folds):
            found, meta = part.to_arrays()
            arrays |= with_prefix(f"pass/{number}", found)
            metas.append(meta)
        return arrays, {"pass": metas}

    def _restore_pass(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        """What `_pass_arrays` described; the maps are those of the expansions."""
        if "pass" in meta:
            folds = [
                Moments.from_arrays(without_prefix(f"pass/{number}", arrays), part)
                for number, part in enumerate(meta["pass"])
            ]
            self.pass_ = LowRankPass({name: part.feature_map for name, part in self.expansions_.items()}, folds)
