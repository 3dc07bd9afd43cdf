"""What every estimator is: a scikit-learn estimator that says whose message it is, and that models on disk hold."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import Tags

from dmo.estimators.arguments import fill_docstrings
from dmo.estimators.sweep_result import SweepResult
from dmo.kernels import Kernel
from dmo.kernels.parsing import is_pairwise
from dmo.parameters import Part, parts_of, refuse_unknown
from dmo.persistence import Persistent, with_prefix, without_prefix
from dmo.validation import Named, Need, Preparation, Prepare


class Estimator(Named, Persistent, BaseEstimator):
    """Errors and warnings begin with the class's name, parameters are what `_needs` says, save and load keep the fit."""

    _needs: ClassVar[dict[str, Need]] = {}
    _prepare = Part(Prepare, scale="auto", impute=None, views=None)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for base in cls.__mro__:  # parts that are no estimators by themselves have words too
            if base.__module__.startswith("dmo.estimators"):
                fill_docstrings(base)
        init = vars(cls).get("__init__")
        if init is not None:
            cls.__init__ = _knowing(cls, init)  # type: ignore[method-assign]

    def set_params(self, **given: Any) -> Self:
        """Set parameters, those of its objects too ("graph__n_neighbors"), where a name may stand for the object.

        Parameters
        ----------
        **given : object
            Values by parameter.

        Returns
        -------
        estimator
            This estimator.

        Raises
        ------
        UserError
            For a parameter that it has not, or has not any more.
        """
        kind: Any = type(self)
        refuse_unknown(kind, given)
        for name in dict.fromkeys(name.partition("__")[0] for name in given if "__" in name):
            value = given.get(name, getattr(self, name))
            if not isinstance(value, BaseEstimator):
                for part in parts_of(kind):
                    if part.parameter == name:
                        given = {name: part.kind._named(value)} | {
                            key: own for key, own in given.items() if key != name
                        }
        return super().set_params(**given)

    @property
    def _takes_partial_views(self) -> bool:
        """Whether new samples may lack some of the views."""
        return False

    def _row_shape(self, method: str, **options: Any) -> tuple[np.ndarray | None, np.dtype]:
        """See `row_by_row`: coordinates, unless a class gives something else."""
        return self.get_feature_names_out(), np.dtype(np.float64)  # type: ignore[attr-defined]

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        kernel = getattr(self, "kernel", getattr(getattr(self, "base", None), "kernel", None))
        # of one view: views side by side are no square, and what splits samples cannot tell which of them are kernels
        tags.input_tags.pairwise = isinstance(kernel, str | Kernel) and is_pairwise(kernel)
        return tags

    def _prepared_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays: dict[str, Any] = {}
        prepared: dict[str, Preparation] = getattr(self, "preparations_", {})
        for view, preparation in prepared.items():
            arrays |= with_prefix(f"preparations/{view}", preparation.to_arrays())
        meta: dict[str, Any] = {"scales": {view: found.scale for view, found in prepared.items()}} if prepared else {}
        tuning: SweepResult | None = getattr(self, "tuning_", None)
        return arrays, meta if tuning is None else meta | {"tuning": tuning.to_meta()}

    def _restore_prepared(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        if "tuning" in meta:
            self.tuning_ = SweepResult.from_meta(meta["tuning"], self)
        if "scales" in meta:
            self.preparations_ = {
                view: Preparation.from_arrays(
                    without_prefix(f"preparations/{view}", arrays), scale, self.view_widths_[view]
                )
                for view, scale in meta["scales"].items()
            }


def _knowing(kind: type, init: Callable[..., None]) -> Callable[..., None]:
    """The `__init__` of a class, which says of a parameter which it has not where that is now, or which one may be meant."""

    @functools.wraps(init)
    def wrapper(self: Estimator, *given: Any, **named: Any) -> None:
        refuse_unknown(kind, named)
        init(self, *given, **named)

    return wrapper
