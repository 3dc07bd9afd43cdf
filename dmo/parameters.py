"""Groups of related parameters as objects that estimators share; a single value may replace such an object."""

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
"""Names of the parameters of estimators and their parameter objects that can hold a path or URL."""


class Parametrized(BaseEstimator):
    """The base class of objects with parameters; caches their names, which a search requests thousands of times."""

    @classmethod
    @cache
    def _get_param_names(cls) -> list[str]:
        return list(super()._get_param_names())


class ParameterObject(Parametrized):
    """A dataclass of parameters with the interface of scikit-learn; only `set_params` changes it.

    A default of None means the default of the estimator that uses the object.
    """

    _needs: ClassVar[Mapping[str, Any]] = {}
    _short: ClassVar[str] = ""
    """Parameter that a single value sets, or "" if only some values may replace the object, see `_takes`."""
    _flat: ClassVar[Mapping[str, str]] = {}
    """Parameter -> its different name as a command-line option and in models of earlier versions."""
    _none: ClassVar[Mapping[str, Any]] = {}
    """Parameter -> current form of a saved None, from versions in which None did not mean the default."""

    @classmethod
    def _takes(cls, value: Any) -> bool:
        """Check if a value is such an object, or may replace one."""
        return True

    @classmethod
    def _of(cls, value: Any) -> Self:
        """Return the object that a value is or replaces, or an object with the defaults for other values."""
        if isinstance(value, cls):
            return value
        if cls._short and value is not None:
            return cls(**{cls._short: value})
        return cls()

    @classmethod
    def _named(cls, value: Any) -> Any:
        """Return the object that a value is or replaces; its class may be a sibling of this class."""
        return cls._of(value)

    def set_params(self, **given: Any) -> Self:
        """Set parameters as in scikit-learn."""
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
    """Descriptor of an estimator class for a parameter that is an object with parameters, some of which the class uses.

    `_graph = Part(Graph, n_neighbors=15)` sets `self._graph` to the object for `self.graph`, with these defaults.
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
        """Return the name of one of the object's parameters as a parameter of the estimator."""
        return self.kind._flat.get(name, name)


@cache
def parts_of(kind: type) -> tuple[Part, ...]:
    """Return the `Part` descriptors of an estimator class for those parameters that the class has."""
    own = kind._get_param_names()  # type: ignore[attr-defined]
    found = {
        name: part for base in reversed(kind.__mro__) for name, part in vars(base).items() if isinstance(part, Part)
    }
    return tuple(part for part in found.values() if part.parameter in own)


def nested(estimator: Any) -> dict[str, Any]:
    """Return all parameters of an estimator; parameters of its objects have nested names such as "graph__tau"."""
    kind: Any = type(estimator)
    found = estimator.get_params(deep=True)
    for part in parts_of(kind):
        held = part.__get__(estimator, kind)
        found |= {f"{part.parameter}__{name}": getattr(held, name) for name in part.own}
    return found


def flat(estimator: Any) -> dict[str, Any]:
    """Return all parameters of an estimator; parameters of its objects have their flat names."""
    kind: Any = type(estimator)
    found = nested(estimator)
    return found | {name: found[place] for name, place in places(kind).items()}


@cache
def places(kind: type) -> dict[str, str]:
    """Map the flat names of the parameters of a class's parts to their nested names, such as "prepare__scale"."""
    own = kind._get_param_names()  # type: ignore[attr-defined]
    found = {part.flat(name): f"{part.parameter}__{name}" for part in parts_of(kind) for name in part.own}
    return {name: place for name, place in found.items() if name not in own or place.startswith(f"{name}__")}


@dataclass_transform(eq_default=False)
def parametrized(kind: type[Kind]) -> type[Kind]:
    """Make the annotated names of an estimator class its parameters; `__init__` stores them unchanged."""
    made = dataclass(eq=False, repr=False)(kind)
    known = {parameter.name for parameter in fields(made)}  # type: ignore[arg-type]
    for parameter in fields(made):  # type: ignore[arg-type]
        if parameter.name in vars(made):  # the default would hide a descriptor of a base class
            delattr(made, parameter.name)
    # Code that handles dataclasses (digests, dask's tokens, saving) would treat the parameters as the whole model.
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
    """Raise an error for unknown parameters that names their new place or a similar parameter."""
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
    """Convert flat parameters, from the command line or models of earlier versions, to the parameters of a class."""
    moved = places(kind)
    own = {name: value for name, value in values.items() if name not in moved}
    for part in parts_of(kind):
        inner = {name: values[part.flat(name)] for name in part.own if part.flat(name) in moved.keys() & values.keys()}
        if part.parameter in values and not inner.keys() - {part.kind._short}:
            own[part.parameter] = values[part.parameter]
        elif inner and part.kind._takes(own.get(part.parameter)):
            own[part.parameter] = part.kind(**{name: _unset(part, name, value) for name, value in inner.items()})
        elif inner:
            with suppress(UserError):  # a name without parameters, or one that `fit` rejects
                held = part.kind._named(own[part.parameter])  # a sibling class, which may have some of the parameters
                if shared := {name: value for name, value in inner.items() if name in vars(held)}:
                    own[part.parameter] = held.set_params(**shared)
    return own


def _unset(part: Part, name: str, value: Any) -> Any:
    """Convert a saved value; replace a None from a version in which it did not mean the default."""
    return part.kind._none.get(name) if value is None and part.own[name] is not None else value
