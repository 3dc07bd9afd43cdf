"""What every estimator is: a scikit-learn estimator that says whose message it is, and that models on disk hold."""

from __future__ import annotations

from typing import ClassVar

from sklearn.base import BaseEstimator
from sklearn.utils import Tags

from dmo.persistence import Persistent
from dmo.validation import Named, Need


class Estimator(Named, Persistent, BaseEstimator):
    """Errors and warnings begin with the class's name, parameters are what `_needs` says, save and load keep the fit."""

    _needs: ClassVar[dict[str, Need]] = {}

    @property
    def _takes_partial_views(self) -> bool:
        """Whether new samples may lack some of the views."""
        return False

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
