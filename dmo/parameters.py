"""Parameter objects, which group related parameters of estimators and can often be replaced by a single value."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cache, wraps
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

import numpy as np
from sklearn.base import BaseEstimator

from dmo.errors import SavedLocation as SavedLocation
from dmo.errors import UserError

Kind = TypeVar("Kind")
LOCATIONS = frozenset({"base", "hierarchy", "path"})
"""Names of parameters that can contain a path or URL."""


class Parametrized(BaseEstimator):
    """Base class of objects with parameters, which caches the parameter names because searches need them often."""

    @classmethod
    @cache
    def _get_param_names(cls) -> list[str]:
        return list(super()._get_param_names())


class ParameterObject(Parametrized):
    """Base class of dataclasses of parameters with `get_params` and `set_params` as in scikit-learn.

    For a parameter with the default None, the default of the estimator is used.
    """

    _needs: ClassVar[Mapping[str, Any]] = {}
    _short: ClassVar[str] = ""
    """Name of the parameter that is set if a single value replaces the object, or "" if there is no such parameter."""
    _flat: ClassVar[Mapping[str, str]] = {}
    """Names that parameters have on the command line and in models of earlier versions, if these names differ."""
    _none: ClassVar[Mapping[str, Any]] = {}
    """Values that replace None in models of earlier versions, in which the parameters had no default None."""

    @classmethod
    def _takes(cls, value: Any) -> bool:
        """Return whether a value is an object of this class or can replace it."""
        return True

    @classmethod
    def _of(cls, value: Any) -> Self:
        """Convert a value to an object of this class, or return an object with defaults if this is impossible."""
        if isinstance(value, cls):
            return value
        if cls._short and value is not None:
            return cls(**{cls._short: value})
        return cls()

    @classmethod
    def _named(cls, value: Any) -> Any:
        """Convert a value to a parameter object, possibly of a related class."""
        return cls._of(value)

    def set_params(self, **given: Any) -> Self:
        """Set parameters by name, as in scikit-learn; unknown names raise UserError."""
        known = vars(self)
        for name in given:
            if name not in known:
                raise UserError(f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(known) or 'none'}")
        return super().set_params(**given)

    def __eq__(self, other: object) -> bool:
        mine, its = vars(self), vars(other) if type(other) is type(self) else None
        return its is not None and all(
            value is its[key] or np.array_equal(value, its[key]) for key, value in mine.items()
        )


class Part:
    """Descriptor that converts a parameter of an estimator to a parameter object with the defaults of the estimator.

    For example, after `_graph = Part(Graph, n_neighbors=15)`, `self._graph` is the `Graph` object for `self.graph`.
    """

    def __init__(self, kind: type[ParameterObject], parameter: str = "", /, **own: Any):
        self.kind, self.parameter = kind, parameter
        self.defaults: dict[str, Any] = {field.name: field.default for field in fields(kind)}  # type: ignore[arg-type]
        self.own: dict[str, Any] = own or self.defaults

    def __set_name__(self, owner: type, name: str) -> None:
        self.parameter = self.parameter or name.removeprefix("_")

    def __get__(self, estimator: Any, owner: type) -> Any:
        if estimator is None:
            return self
        given, found = vars(self.kind._of(getattr(estimator, self.parameter))), dict(self.own)
        for name, value in given.items():
            default = self.defaults[name]
            if name in found:
                found[name] = found[name] if value is None and default is None else value
            elif value is not default and not np.array_equal(value, default):
                raise UserError(
                    f"does not use {name} of {self.parameter}={self.kind.__name__}(...); leave it out (it uses: "
                    f"{', '.join(found)})"
                )
        return self.kind(**found)

    def flat(self, name: str) -> str:
        """Return the name that a parameter of the object has on the command line."""
        return self.kind._flat.get(name, name)


@cache
def parts_of(kind: type) -> tuple[Part, ...]:
    """Return the `Part` descriptors for the parameters of an estimator class."""
    own = kind._get_param_names()  # type: ignore[attr-defined]
    found = {
        name: part for base in reversed(kind.__mro__) for name, part in vars(base).items() if isinstance(part, Part)
    }
    return tuple(part for part in found.values() if part.parameter in own)


def nested(estimator: Any) -> dict[str, Any]:
    """Return all parameters of an estimator, with nested names such as "graph__tau" for its parameter objects."""
    kind: Any = type(estimator)
    found = estimator.get_params(deep=True)
    for part in parts_of(kind):
        held = part.__get__(estimator, kind)
        found |= {f"{part.parameter}__{name}": getattr(held, name) for name in part.own}
    return found


def flat(estimator: Any) -> dict[str, Any]:
    """Return all parameters of an estimator, with command-line names for its parameter objects."""
    kind: Any = type(estimator)
    found = nested(estimator)
    return found | {name: found[place] for name, place in places(kind).items()}


@cache
def places(kind: type) -> dict[str, str]:
    """Map the command-line names of nested parameters, such as "scale", to names such as "prepare__scale"."""
    own = kind._get_param_names()  # type: ignore[attr-defined]
    found = {part.flat(name): f"{part.parameter}__{name}" for part in parts_of(kind) for name in part.own}
    return {name: place for name, place in found.items() if name not in own or place.startswith(f"{name}__")}


@dataclass_transform(eq_default=False)
def parametrized(kind: type[Kind]) -> type[Kind]:
    """Create the `__init__` of an estimator class, whose parameters are the annotated names of the class."""
    made = dataclass(eq=False, repr=False)(kind)
    known = {parameter.name for parameter in fields(made)}  # type: ignore[arg-type]
    for parameter in fields(made):  # type: ignore[arg-type]
        if parameter.name in vars(made):  # A default value on the class would hide a descriptor in a base class.
            delattr(made, parameter.name)
    # Hashing and saving would treat the fields of a dataclass as the whole model, so hide that the class is a
    # dataclass.
    del made.__dataclass_fields__, made.__dataclass_params__  # type: ignore[attr-defined]
    init = made.__init__  # type: ignore[misc]

    @wraps(init)
    def knowing(self: Any, *given: Any, **named: Any) -> None:
        if not named.keys() <= known:
            refuse_unknown(made, named)
        init(self, *given, **named)

    made.__init__ = knowing  # type: ignore[method-assign, misc]
    return made


def refuse_unknown(kind: type, given: Mapping[str, Any]) -> None:
    """Raise an error for an unknown parameter, and suggest its new name or a similar parameter."""
    own = kind._get_param_names()  # type: ignore[attr-defined]
    for name, value in given.items():
        if name.partition("__")[0] in own:
            continue
        parameter, _, inner = places(kind).get(name, "").partition("__")
        if inner:
            (what,) = (
                part.kind.__name__ for part in parts_of(kind) if part.parameter == parameter and inner in part.own
            )
            raise UserError(f"{kind.__name__}: {name} is now {parameter}={what}({inner}={value!r})")
        near = get_close_matches(name, [*own, *places(kind)], 1)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(own)}"
        raise UserError(f"{kind.__name__} has no parameter {name!r}; {hint}")


def placed(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert parameters from the command line or from models of earlier versions to the parameters of a class."""
    moved = places(kind)
    own = {name: value for name, value in values.items() if name not in moved}
    for part in parts_of(kind):
        inner = {name: values[part.flat(name)] for name in part.own if part.flat(name) in moved.keys() & values.keys()}
        if part.parameter in values and not inner.keys() - {part.kind._short}:
            own[part.parameter] = values[part.parameter]
        elif inner and part.kind._takes(own.get(part.parameter)):
            own[part.parameter] = part.kind(**{name: _unset(part, name, value) for name, value in inner.items()})
        elif inner:
            with suppress(UserError):  # Names without parameters are skipped, and `fit` rejects invalid names.
                held = part.kind._named(own[part.parameter])  # The value can be an object of a related class.
                if shared := {name: value for name, value in inner.items() if name in vars(held)}:
                    own[part.parameter] = held.set_params(**shared)
    return own


def _unset(part: Part, name: str, value: Any) -> Any:
    """Return a saved value; for models of earlier versions without the default None, replace None."""
    return part.kind._none.get(name) if value is None and part.own[name] is not None else value
