"""The spine: what a fit is, once for every estimator, with the parameters and the parts on disk that all of them have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

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
    check_parameters,
    check_raw_views,
    check_weights,
    of_views,
    only_view,
    paired,
    prepare_views,
)
from dmo.kernels import Kernel
from dmo.kernels.composite import is_pairwise
from dmo.memory import compared
from dmo.methods.options import NamedEngine, fill_docstrings
from dmo.parameters import Parametrized, Part, parts_of, refuse_unknown
from dmo.persistence import Persistent, decoded, encode, with_prefix, without_prefix


class Estimator(Named, Persistent, Parametrized):
    """What every estimator is: a fit of five steps, parameters as `_needs` says, errors that begin with its name."""

    # A method says what it reads (`_read`) and what it learns (`_learn`). What is asked of all methods is written once: in
    # `Data`, which a fit reads, in the groups that an engine makes of views, or in `Annotator._decide`.

    _needs: ClassVar[dict[str, Need]] = {}
    _common: ClassVar[dict[str, Need]] = {
        "random_state": SEED,
        "tol": POSITIVE,
        "max_iter": COUNT,
        "class_weight": CLASS_WEIGHT,
    }
    """What parameters of these names must be in every class that has them."""
    approximation: Any = NamedEngine()
    _prepare = Part(Prepare, scale="auto", impute=None, views=None)
    _lacks_rows = False  # whether views may lack samples of the fit
    _only_scores = False  # whether this is a fit within another one, of which nothing but scores is needed

    def _fit(self, X: Inputs, y: Outputs | None = None, sample_weight: RowWeights = None) -> Self:
        """The fit of every estimator."""
        check_parameters(self)
        self._begin()
        y, sample_weight = paired(X, y, sample_weight)
        # 1 read: rows as they are prepared, labels or outputs, weights, what is unknown
        data = self._data(X, y, sample_weight)
        # 2 groups, 3 solve, 4 functions: views under an engine, the method's equations, and functions of new rows
        left = self._learn(data)
        # 5 decide: from scores to rankings, label sets and probabilities
        self._decide(data, left)
        if not self._only_scores and compared() is None:  # a fit within another keeps nothing for later
            own_rows(self, data.views)
        return self

    def _begin(self) -> None:
        """Refuse parameters that do not go together, before anything is read."""

    def _data(self, X: Any, y: Any, sample_weight: Any) -> Data:
        """Read the views, outputs and weights of a fit, and learn the preparation of rows from the weighted samples."""
        raw = self._raw(X, reset=True)
        self._sample_keys = stored_keys(raw)
        weights = self._sample_weights(sample_weight, raw)
        return self._read(prepare_views(self, raw, True, of_views(weights)), y, weights)

    def _checked(self, X: Any) -> Mapping[str, Rows]:
        """Validate and prepare the views of new samples."""
        return prepare_views(self, self._raw(X, reset=False), False)

    def _raw(self, X: Any, reset: bool) -> Mapping[str, Rows]:
        """Validate views without preparing them; with `reset`, learn their names and widths."""
        views = check_raw_views(self, X, reset, self._lacks_rows if reset else self._takes_partial_views)
        if self.one_view:
            only_view(views)
        return views

    def _sample_weights(self, sample_weight: Any, views: Mapping[str, Rows]) -> SampleWeights | None:
        """Validate the sample weights of a fit."""
        return check_weights(sample_weight, views)

    def _read(self, views: Mapping[str, Rows], y: Any, weights: SampleWeights | None) -> Data:
        """Read the outputs of a fit; by default none."""
        return Data.of(views, weights=weights, passive=True)

    def _learn(self, data: Data) -> LeftOut | None:
        """Solve the method's equations and keep its functions; returns what the fit says of samples that it has not seen."""
        raise NotImplementedError

    def _decide(self, data: Data, left: LeftOut | None) -> None:
        """Learn what is said of new samples besides their coordinates."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for base in cls.__mro__:  # parts that are no estimators by themselves have words too
            if base.__module__.startswith("dmo.methods"):
                fill_docstrings(base)

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


@dataclass(frozen=True)
class SweepResult:
    """What a sweep found: the scores of all settings, and the best one refitted.

    Attributes
    ----------
    table : list of dict
        One per setting: its parameters, "mean", "std" and "folds" (the scores).
    metric : str
        Name of the score.
    best_params : dict
        The best setting.
    best_score : float
        Its mean score.
    best_estimator : estimator
        A clone with that setting, fitted on all samples unless refit was False.
    tried : int
        How many settings were scored, those that a search left behind on fewer samples among them.

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
        """As scikit-learn's searches name it."""
        return self.best_params

    @property
    def best_score_(self) -> float:
        """As scikit-learn's searches name it."""
        return self.best_score

    @property
    def best_estimator_(self) -> Any:
        """As scikit-learn's searches name it."""
        return self.best_estimator

    @property
    def cv_results_(self) -> dict[str, Any]:
        """The table in the form of scikit-learn's searches, for `pandas.DataFrame`."""
        found: dict[str, Any] = {"params": [], "mean_test_score": [], "std_test_score": []}
        for row in self.table:
            found["params"].append({k: v for k, v in row.items() if k not in ("mean", "std", "folds")})
        keys = dict.fromkeys(key for params in found["params"] for key in params)
        found |= {f"param_{key}": [params.get(key) for params in found["params"]] for key in keys}
        means = np.array([row["mean"] for row in self.table])
        found |= {"mean_test_score": means, "std_test_score": np.array([row["std"] for row in self.table])}
        found["rank_test_score"] = 1 + (means[None, :] > means[:, None]).sum(axis=1)
        return found

    def to_meta(self) -> dict[str, Any]:
        """Describe all but the estimator as JSON, for its model store.

        Returns
        -------
        dict
            The table, the metric and the best setting; what no model can hold as text.
        """
        table = [{key: _plain(value) for key, value in row.items()} for row in self.table]
        best = {key: _plain(value) for key, value in self.best_params.items()}
        found = {"table": table, "metric": self.metric, "best_params": best, "best_score": self.best_score}
        return found | {"tried": self.tried}

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any], estimator: Any) -> Self:
        """Make what `to_meta` described.

        Parameters
        ----------
        meta : mapping
            JSON.
        estimator : estimator
            That it chose.

        Returns
        -------
        SweepResult
            The result.
        """
        table, best = [decoded(row) for row in meta["table"]], decoded(meta["best_params"])
        tried = int(meta.get("tried", 0))  # which models of before do not say
        return cls(table, str(meta["metric"]), best, float(meta["best_score"]), estimator, tried)


def _plain(value: Any) -> Any:
    try:
        return encode(value)
    except UserError:
        return str(value)
