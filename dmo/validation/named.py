"""Whose message it is: the estimator's name stands before every error of a user and every warning, put there here."""

from __future__ import annotations

import functools
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import sklearn
from sklearn.base import BaseEstimator

from dmo.errors import UserError

Method = TypeVar("Method", bound=Callable[..., Any])
_INSIDE = tuple(folder + os.sep for folder in (str(Path(__file__).parents[1]), os.path.dirname(sklearn.__file__)))


def named(method: Method) -> Method:
    """Make a method of a `Named` object begin its user's errors with that object's title."""
    # Code below it speaks of views, labels and parameters alone. A message that has its name already is left as it
    # is, so that a method may call another; other exceptions are faults and stay what they are.

    @functools.wraps(method)
    def wrapper(self: Named, *args: Any, **kwargs: Any) -> Any:
        with naming(self):
            return method(self, *args, **kwargs)

    return wrapper  # type: ignore[return-value]


@contextmanager
def naming(estimator: BaseEstimator) -> Iterator[None]:
    """Do what `named` does for a block of code that works on an estimator."""
    try:
        yield
    except UserError as error:
        text = str(error)
        if not text.startswith(type(estimator).__name__):
            error.args = (f"{getattr(estimator, '_title', type(estimator).__name__)}: {text}",)
        raise


class Named:
    """A class whose messages begin with its name: errors of a user in its public methods, and its warnings."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, method in list(vars(cls).items()):
            if isinstance(method, types.FunctionType) and not name.startswith("_"):
                setattr(cls, name, named(method))

    @property
    def _title(self) -> str:
        return type(self).__name__

    def _fewer(self, name: str, wanted: int, most: int) -> int:
        """A number as it was asked for, or with a warning as many as the data have."""
        if wanted > most:
            self._warn(f"{name} = {wanted}, but these samples have {most}; took {most}, pass at most that")
        return min(wanted, most)

    def _warn(self, text: str, category: type[Warning] = UserWarning) -> None:
        """Warn at the line that called the library, however deep the warning arose."""
        frame, level = sys._getframe(1), 2
        while frame.f_back is not None and frame.f_code.co_filename.startswith(_INSIDE):
            frame, level = frame.f_back, level + 1
        warnings.warn(f"{self._title}: {text}", category, stacklevel=level)
