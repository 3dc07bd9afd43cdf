"""Base class of all estimators, and the result of a grid search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import Tags

from dmo.blocks import Rows
from dmo.decide.out_of_fold import LeftOut
from dmo.errors import UserError
from dmo.fit.training_rows import own_rows
from dmo.hashing import stored_keys
from dmo.inputs import (
    CLASS_WEIGHT,
    COUNT,
    POSITIVE,
    SEED,
    Data,
    Inputs,
    Named,
    Need,
    Outputs,
    Preparation,
    Prepare,
    RowWeights,
    SampleWeights,
    WeightDetail,
    check_parameters,
    check_raw_views,
    check_weights,
    only_view,
    paired,
    prepare_views,
)
from dmo.kernels import Kernel
from dmo.kernels.composite import is_pairwise
from dmo.memory import compared
from dmo.methods.options import NamedEngine, fill_docstrings
from dmo.metrics.named import ERRORS
from dmo.parameters import Parametrized, Part, parts_of, refuse_unknown
from dmo.persistence import Persistent, decoded, encode, with_prefix, without_prefix
from dmo.progress import shown
from dmo.representation import score_chart, table


class Estimator(Named, Persistent, Parametrized):
    """Base class of all estimators, which validates parameters and implements the steps of a fit."""

    # A subclass implements `_learn`, which fits the model, and can implement `_read`, which reads y.

    _needs: ClassVar[dict[str, Need]] = {}
    _common: ClassVar[dict[str, Need]] = {
        "random_state": SEED,
        "tol": POSITIVE,
        "max_iter": COUNT,
        "class_weight": CLASS_WEIGHT,
    }
    """Constraints on the values of parameters that several estimators have."""
    approximation: Any = NamedEngine()
    _prepare = Part(Prepare, scale="auto", impute=None, views=None)
    _lacks_rows = False  # Whether `fit` accepts samples that are missing from some views.
    _only_scores = False  # Whether an inner fit needs only label scores, for example in cross-validation.
    _weight_detail: ClassVar[WeightDetail] = "view"
    _search: ClassVar[Literal["grid", "kernels", "machines"]] = "grid"
    """Default search of `tune`.

    "grid" evaluates the default grid of the class. "kernels" selects kernels and ridges in rounds. "machines" selects
    the kernel of a support vector machine by ridge regression, and then the other parameters."""

    def _fit(self, X: Inputs, y: Outputs | None = None, sample_weight: RowWeights = None) -> Self:
        """Read the data, fit the model, and learn how scores are converted to label sets and probabilities."""
        check_parameters(self)
        self._begin()
        y, sample_weight = paired(X, y, sample_weight)
        with shown():
            data = self._data(X, y, sample_weight)
            left = self._learn(data)
            self._decide(data, left)
        if not self._only_scores and compared() is None:  # Inner fits are discarded, so they need no copy of the rows.
            own_rows(self, data.views)
        return self

    def _begin(self) -> None:
        """Reject invalid combinations of parameters before data are read."""

    def _data(self, X: Any, y: Any, sample_weight: Any) -> Data:
        """Read the views, outputs and weights of a fit, and fit the preprocessing of the rows."""
        raw = self._raw(X, reset=True)
        self._sample_keys = stored_keys(raw)
        weights = check_weights(sample_weight, raw, self._weight_detail)
        plain = None if weights is None else weights.plain.views
        return self._read(prepare_views(self, raw, True, plain), y, weights)

    def _checked(self, X: Any) -> Mapping[str, Rows]:
        """Validate and preprocess the views of new samples."""
        return prepare_views(self, self._raw(X, reset=False), False)

    def _raw(self, X: Any, reset: bool) -> Mapping[str, Rows]:
        """Validate views without preprocessing; `reset` stores their names and numbers of columns."""
        views = check_raw_views(self, X, reset, self._lacks_rows if reset else self._takes_partial_views)
        if self.one_view:
            only_view(views)
        return views

    def _read(self, views: Mapping[str, Rows], y: Any, weights: SampleWeights | None) -> Data:
        """Read the target of a fit. The default implementation ignores y."""
        return Data.of(views, weights=weights, passive=True)

    def _learn(self, data: Data) -> LeftOut | None:
        """Fit the model, and return held-out scores of training samples or None."""
        raise NotImplementedError

    def _decide(self, data: Data, left: LeftOut | None) -> None:
        """Learn label sets and probabilities from scores. The default implementation does nothing."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for base in cls.__mro__:  # Base classes that are not estimators also have docstrings with placeholders.
            if base.__module__.startswith("dmo.methods"):
                fill_docstrings(base)

    def set_params(self, **given: Any) -> Self:
        """Set the parameters of the estimator, including nested parameters such as "graph__n_neighbors".

        Parameters
        ----------
        **given : object
            New values of the parameters by name.

        Returns
        -------
        estimator
            This estimator.

        Raises
        ------
        UserError
            If a parameter does not exist.
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
        """Whether the estimator accepts new samples with missing views."""
        return False

    @property
    def _swept_together(self) -> tuple[str, ...]:
        """Names of parameters whose candidate values are evaluated together on each fold, because fits share work."""
        return ()

    def _row_shape(self, method: str, **options: Any) -> tuple[np.ndarray | None, np.dtype]:
        """Return the column names and the data type of the result of a method, by default those of coordinates."""
        return self.get_feature_names_out(), np.dtype(np.float64)  # type: ignore[attr-defined]

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        kernel = getattr(self, "kernel", getattr(getattr(self, "base", None), "kernel", None))
        # Cross-validation in scikit-learn can select rows and columns of one kernel matrix, but not of several kernel
        # matrices, so the tag `pairwise` is set only for a single matrix.
        tags.input_tags.pairwise = isinstance(kernel, str | Kernel) and is_pairwise(kernel)
        return tags

    def _shared_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays: dict[str, Any] = {}
        prepared: dict[str, Preparation] = getattr(self, "preparations_", {})
        for view, preparation in prepared.items():
            arrays |= with_prefix(f"preparations/{view}", preparation.to_arrays())
        meta: dict[str, Any] = {"scales": {view: found.scale for view, found in prepared.items()}} if prepared else {}
        tuning: SweepResult | None = getattr(self, "tuning_", None)
        return arrays, meta if tuning is None else meta | {"tuning": tuning.to_meta()}

    def _restore_shared(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        if "tuning" in meta:
            self.tuning_ = SweepResult.from_meta(meta["tuning"], self)
        if "scales" in meta:
            self.preparations_ = {
                view: Preparation.from_arrays(
                    without_prefix(f"preparations/{view}", arrays), scale, self.view_widths_[view]
                )
                for view, scale in meta["scales"].items()
            }


_CHARTED, _LISTED = 60, 10
"""Maximum numbers of candidates in the chart and in the table of a result."""


@dataclass(frozen=True)
class SweepResult:
    """Result of a grid search, with the scores of all candidates and the best estimator.

    Attributes
    ----------
    table : list of dict
        Parameters and scores of each candidate. The keys "mean", "std" and "folds" contain the mean, the standard
        deviation and the values of its scores over the folds.
    metric : str
        Name of the metric.
    best_params : dict
        Parameters of the best candidate.
    best_score : float
        Mean score of the best candidate.
    best_estimator : estimator
        Clone with the best parameters, which is fitted on all samples unless refit was False.
    tried : int
        Number of scored candidates. It includes candidates that `tune` dropped in earlier rounds on fewer samples.

    Examples
    --------
    >>> from dmo.methods.base import SweepResult
    >>> SweepResult([{"ridge": 1.0, "mean": 0.5}], "f1@5", {"ridge": 1.0}, 0.5, None).best_params
    {'ridge': 1.0}
    """

    table: list[dict[str, Any]]
    metric: str
    best_params: dict[str, Any]
    best_score: float
    best_estimator: Any
    tried: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "tried", self.tried or len(self.table))

    @property
    def best_params_(self) -> dict[str, Any]:
        """Alias of `best_params` for compatibility with scikit-learn."""
        return self.best_params

    @property
    def best_score_(self) -> float:
        """Alias of `best_score` for compatibility with scikit-learn."""
        return self.best_score

    @property
    def best_estimator_(self) -> Any:
        """Alias of `best_estimator` for compatibility with scikit-learn."""
        return self.best_estimator

    @property
    def cv_results_(self) -> dict[str, Any]:
        """Scores of all candidates in the format of scikit-learn's searches, which `pandas.DataFrame` accepts."""
        found: dict[str, Any] = {"params": [], "mean_test_score": [], "std_test_score": []}
        for row in self.table:
            found["params"].append({k: v for k, v in row.items() if k not in ("mean", "std", "folds")})
        keys = dict.fromkeys(key for params in found["params"] for key in params)
        found |= {f"param_{key}": [params.get(key) for params in found["params"]] for key in keys}
        means = np.array([row["mean"] for row in self.table])
        found |= {"mean_test_score": means, "std_test_score": np.array([row["std"] for row in self.table])}
        found["rank_test_score"] = 1 + (means[None, :] > means[:, None]).sum(axis=1)
        return found

    def _repr_html_(self) -> str:
        """Represent the result in notebooks by the best parameters, a chart and a table of the best scores."""
        sign = -1.0 if self.metric in ERRORS else 1.0  # A search maximizes errors as negative numbers.
        ranked = sorted(self.table, key=lambda row: -row["mean"])[:_CHARTED]
        scores = [(sign * row["mean"], row.get("std", 0.0)) for row in ranked]
        title = f"{self.metric} {sign * self.best_score:.4g}, best of {self.tried} candidates"
        found = table(["best parameter", "value"], self.best_params.items(), title)
        if not ranked:
            return found
        names = dict.fromkeys(name for row in ranked for name in row if name not in ("mean", "std", "folds"))
        varied = [name for name in names if len({str(row.get(name)) for row in ranked}) > 1]
        rows = [[*(row.get(name, "") for name in varied), *own] for row, own in zip(ranked[:_LISTED], scores)]
        head = [*varied, self.metric, "standard deviation"]
        return found + score_chart(scores, self.metric) + table(head, rows, f"the {len(rows)} best candidates")

    def to_meta(self) -> dict[str, Any]:
        """Convert the result, without the estimator, to values that a model store saves as JSON.

        Returns
        -------
        dict
            All attributes except the estimator. Parameter values that cannot be encoded are converted to text.
        """
        table = [{key: _plain(value) for key, value in row.items()} for row in self.table]
        best = {key: _plain(value) for key, value in self.best_params.items()}
        found = {"table": table, "metric": self.metric, "best_params": best, "best_score": self.best_score}
        return found | {"tried": self.tried}

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any], estimator: Any) -> Self:
        """Restore the result from the output of `to_meta`.

        Parameters
        ----------
        meta : mapping
            Output of `to_meta`.
        estimator : estimator
            The best estimator.

        Returns
        -------
        SweepResult
            The restored result.
        """
        table, best = [decoded(row) for row in meta["table"]], decoded(meta["best_params"])
        tried = int(meta.get("tried", 0))  # Models of earlier versions do not contain the number of candidates.
        return cls(table, str(meta["metric"]), best, float(meta["best_score"]), estimator, tried)


def _plain(value: Any) -> Any:
    try:
        return encode(value)
    except UserError:
        return str(value)
