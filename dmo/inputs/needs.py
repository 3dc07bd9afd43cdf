"""Validation of estimator parameters, and error messages that start with the name of the estimator."""

from __future__ import annotations

import functools
import inspect
import math
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import sklearn
from sklearn.base import BaseEstimator

from dmo.blocks import row_blocks
from dmo.errors import TooFewSamples, UserError
from dmo.parameters import flat, parts_of, places
from dmo.progress import working_on

Method = TypeVar("Method", bound=Callable[..., Any])
_INSIDE = tuple(folder + os.sep for folder in (str(Path(__file__).parents[1]), os.path.dirname(sklearn.__file__)))

KEPT: ContextVar[ExitStack] = ContextVar("kept")
"""Resources that are released when the current public method of an estimator returns."""


def named(method: Method) -> Method:
    """Wrap a method of a `Named` object so that the messages of its UserErrors start with the name of the object."""
    # Inner functions raise errors without the name of the estimator, so the wrapper adds the name. Messages that
    # already start with the class name are not changed, so methods can call each other. Other exceptions are bugs and
    # pass unchanged.

    @functools.wraps(method)
    def wrapper(self: Named, *args: Any, **kwargs: Any) -> Any:
        with naming(self):
            if kwargs:
                _refuse_arguments(method, kwargs)
            return method(self, *args, **kwargs)

    return wrapper  # type: ignore[return-value]


def _refuse_arguments(method: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raise an error if an argument is unknown, and suggest a similar name."""
    known = inspect.signature(method).parameters
    if any(name not in known for name in given) and not any(
        found.kind is found.VAR_KEYWORD for found in known.values()
    ):
        name, own = next(name for name in given if name not in known), [*known][1:]
        near = get_close_matches(name, own, 1)
        hint = f"did you mean {near[0]}?" if near else f"its parameters are {', '.join(own) or 'not named'}"
        raise UserError(f"{method.__name__} does not support {name}; {hint}")


@contextmanager
def naming(estimator: BaseEstimator) -> Iterator[None]:
    """Prefix UserErrors of a code block with the name of an estimator, and release resources in `KEPT` at its end."""
    with ExitStack() as kept:
        token, title = KEPT.set(kept), getattr(estimator, "_title", type(estimator).__name__)
        kept.callback(KEPT.reset, token)
        kept.enter_context(working_on(title))
        try:
            yield
        except UserError as error:
            text = str(error)
            if not text.startswith(type(estimator).__name__):
                error.args = (f"{title}: {text}",)
            raise


class Named:
    """Base class of objects whose warnings and UserErrors start with the name of the object."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, method in list(vars(cls).items()):
            if isinstance(method, types.FunctionType) and not name.startswith("_"):
                setattr(cls, name, named(method))

    @property
    def _title(self) -> str:
        return type(self).__name__

    def _fewer(self, name: str, wanted: int, most: int) -> int:
        """Limit a number to the maximum that the data allow, and warn if this reduces the number."""
        if wanted > most:
            self._warn(f"{name} = {wanted}, but these samples have {most}; {most} is used, pass at most {most}")
        return min(wanted, most)

    def _warn(self, text: str, category: type[Warning] = UserWarning) -> None:
        warn_caller(f"{self._title}: {text}", category)


def warn_caller(text: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning that points to the line of user code, outside dmo and scikit-learn."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INSIDE):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


_ROWS = 65536  # maximum number of rows of labels in one matrix product


@dataclass(frozen=True)
class Need:
    """Constraint on the value of a parameter, with its error message."""

    words: str  # end of the error message, such as "needs a positive number"
    holds: Callable[[Any], bool]  # function that returns whether a value satisfies the constraint
    names: tuple[str, ...] = ()
    """Allowed strings, from which the error message for a misspelled value suggests the most similar one."""

    def error(self, name: str, value: object) -> UserError:
        """Return the error for a parameter with a value that violates the constraint."""
        near = get_close_matches(value, self.names, 1) if isinstance(value, str) else []
        return UserError(f"{name} = {value!r}; {self.words}" + (f"; did you mean {near[0]!r}?" if near else ""))


def _is_number(value: Any) -> bool:
    return not isinstance(value, (bool, np.bool_)) and isinstance(value, Real) and math.isfinite(value)


def _is_whole(value: Any) -> bool:
    return not isinstance(value, (bool, np.bool_)) and isinstance(value, Integral)


def at_least(least: int) -> Need:
    """Return the constraint that a value is an integer of at least `least`."""
    return Need(f"needs a whole number of at least {least}", lambda value: _is_whole(value) and value >= least)


def one_of(*known: object) -> Need:
    """Return the constraint that a value is one of the given values."""
    return Need(
        f"known: {', '.join(map(repr, known))}",
        lambda value: any(isinstance(value, type(option)) and value == option for option in known),
        tuple(option for option in known if isinstance(option, str)),
    )


def optional(need: Need) -> Need:
    """Return a constraint that allows None in addition to the values that another constraint allows."""
    return Need(f"{need.words}, or None", lambda value: value is None or need.holds(value), need.names)


POSITIVE = Need("needs a positive number", lambda value: _is_number(value) and value > 0)
POSITIVES = Need(
    "needs a positive number, or one per label",
    lambda value: (
        POSITIVE.holds(value)
        or (isinstance(value, (list, tuple, np.ndarray)) and len(value) > 0 and all(map(POSITIVE.holds, value)))
    ),
)
NOT_NEGATIVE = Need("needs a number that is not negative", lambda value: _is_number(value) and value >= 0)
SHARE = Need("needs a number from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1)
PART = Need("needs a number above 0 and at most 1", lambda value: _is_number(value) and 0 < value <= 1)
COUNT = at_least(1)
FLAG = Need("needs True or False", lambda value: isinstance(value, (bool, np.bool_)))
CLASS_WEIGHT = Need(
    "needs 'balanced', a dict of class or label to a number of at least 0, or None",
    lambda value: (
        value is None
        or value == "balanced"
        or (isinstance(value, dict) and all(_is_number(weight) and weight >= 0 for weight in value.values()))
    ),
    ("balanced",),
)
SEED = optional(at_least(0))


def check_parameter(name: str, value: object, need: Need) -> Any:
    """Validate the value of one parameter, and return it."""
    if not need.holds(value):
        raise need.error(name, value)
    return value


def needs_of(kind: Any) -> dict[str, Need]:
    """Return the constraints of all parameters of a class; constraints of the class have priority over common ones."""
    own, common = kind._get_param_names(), getattr(kind, "_common", {})
    found: dict[str, Need] = {name: common[name] for name in own if name in common}
    for part in parts_of(kind):
        needs = part.kind._needs
        found |= {f"{part.parameter}__{name}": needs[name] for name in part.own if name in needs}
    return found | kind._needs


def check_parameters(estimator: BaseEstimator) -> None:
    """Validate the parameters of an estimator by the constraints of its class and of its parameter objects.

    The function `per_view` validates values per view later, when the names of the views are known.
    """
    kind: Any = type(estimator)
    flat_name, values = {place: name for name, place in places(kind).items()}, flat(estimator)
    for place, need in needs_of(kind).items():
        name = flat_name.get(place, place)
        if not need.holds(values[name]):
            raise need.error(name, values[name])


def per_view(name: str, value: object, views: Sequence[str], need: Need | None = None) -> dict[str, Any]:
    """Convert the value of a parameter to a mapping from each view to its value."""
    if isinstance(value, Mapping) and not {"name", "kind", "type"} & set(value):
        for view in views:
            if view not in value:
                raise UserError(f"{name} has no entry for view {view!r}; pass one per view: {list(views)}")
        for view in value:
            if view not in views:
                raise UserError(
                    f"{name} has an entry for {view!r}, which is not a view; pass one per view: {list(views)}"
                )
        given = {view: value[view] for view in views}
    elif isinstance(value, (list, tuple)):
        if len(value) != len(views):
            raise UserError(f"{name} has {len(value)} entries for {len(views)} views; pass one per view")
        given = dict(zip(views, value, strict=True))
    else:
        if need is not None and not need.holds(value):
            raise need.error(name, value)
        return dict.fromkeys(views, value)
    if need is not None:
        for view, own in given.items():
            check_parameter(f"{name} of view {view!r}", own, need)
    return given


def unused(estimator: BaseEstimator, names: Sequence[str], uses: Sequence[str]) -> None:
    """Raise an error if a parameter is set that the selected method does not use."""
    for name in names:
        if flat(estimator)[name] is not None and name not in uses:
            raise UserError(f"does not use {name}; leave it out (it uses: {', '.join(uses) or 'none'})")


def count_components(wanted: float, n_labels: int, label_rank: int, n: int) -> int:
    """Return the number of components; `wanted` is this number or a fraction of the number of labels.

    A fraction yields at most `label_rank` components, the rank of the centered labels.
    """
    if _is_whole(wanted):
        if not 1 <= wanted <= n - 1:
            raise TooFewSamples(
                f"n_components = {wanted}, but there are {n} samples; needs a whole number from 1 to {n - 1}"
            )
        return int(wanted)
    if not (_is_number(wanted) and 0 < wanted <= 1):
        raise UserError(f"n_components = {wanted!r}; needs a whole number, or a fraction of the labels in (0, 1]")
    return max(1, min(round(wanted * n_labels), label_rank, n - 1))


def label_rank(Y: np.ndarray) -> int:
    """Compute the rank of the centered label matrix."""
    blocks = row_blocks(len(Y), _ROWS)
    if len(Y) > Y.shape[1] and all(((Y[where] == 0) | (Y[where] == 1)).all() for where in blocks):
        # The Gram matrix of labels of 0 and 1 is exact, and has the same numerical rank although its singular values
        # are squared. The Gram matrix takes a tenth of the time of a singular value decomposition.
        gram, sums = np.zeros((Y.shape[1], Y.shape[1])), Y.sum(axis=0, dtype=np.float64)
        for where in blocks:
            part = Y[where].astype(np.float64)
            gram += part.T @ part
        return int(np.linalg.matrix_rank(gram - np.outer(sums, sums / len(Y)), hermitian=True))
    return int(np.linalg.matrix_rank(Y - Y.mean(axis=0)))
