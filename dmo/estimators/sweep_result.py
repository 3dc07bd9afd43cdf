"""What a sweep found, in memory and with the model that it chose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dmo.errors import UserError
from dmo.persistence import decode, encode


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

    Examples
    --------
    >>> from dmo.estimators.sweep_result import SweepResult
    >>> SweepResult([{"ridge": 1.0, "mean": 0.5}], "f1@5", {"ridge": 1.0}, 0.5, None).best_params
    {'ridge': 1.0}
    """

    table: list[dict[str, Any]]
    metric: str
    best_params: dict[str, Any]
    best_score: float
    best_estimator: Any

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
        return {"table": table, "metric": self.metric, "best_params": best, "best_score": self.best_score}

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
        table = [{str(key): decode(value) for key, value in row.items()} for row in meta["table"]]
        best = {str(key): decode(value) for key, value in meta["best_params"].items()}
        return cls(table, str(meta["metric"]), best, float(meta["best_score"]), estimator)


def _plain(value: Any) -> Any:
    try:
        return encode(value)
    except UserError:
        return str(value)
