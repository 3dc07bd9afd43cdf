"""Parameters that belong together, as one object that estimators share; a bare value stands for it with its defaults."""

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
"""Names of the parameters, of estimators and of their objects, that can hold a path or URL."""


class Parametrized(BaseEstimator):
    """What has parameters; a search asks for their names thousands of times, and scikit-learn reads a signature for each."""

    @classmethod
    @cache
    def _get_param_names(cls) -> list[str]:
        return list(super()._get_param_names())


class ParameterObject(Parametrized):
    """A dataclass of parameters with what scikit-learn asks of them; nothing changes them but `set_params`.

    None as the default of one stands for the default of the estimator that takes it.
    """

    _needs: ClassVar[Mapping[str, Any]] = {}
    _short: ClassVar[str] = ""
    """The parameter that a bare value is; "" where only some values stand for the object, see `_takes`."""
    _flat: ClassVar[Mapping[str, str]] = {}
    """Parameter -> its name as an option of the shell, and in models of earlier versions, where it has another."""
    _none: ClassVar[Mapping[str, Any]] = {}
    """Parameter -> what None was called where it did not stand for the default."""

    @classmethod
    def _takes(cls, value: Any) -> bool:
        """Whether a value is such an object, or stands for one."""
        return True

    @classmethod
    def _of(cls, value: Any) -> Self:
        """The object that a value is, or stands for; with the defaults where it is another thing."""
        if isinstance(value, cls):
            return value
        return cls() if value is None or not cls._takes(value) else cls(**{cls._short: value} if cls._short else {})

    @classmethod
    def _named(cls, value: Any) -> Any:
        """The object that a value is, or stands for, be it of this class or of a sibling."""
        return cls._of(value)

    def set_params(self, **given: Any) -> Self:
        """Set parameters, as scikit-learn does."""
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
    """Of an estimator's class: a parameter that is an object, and those of its parameters that the class takes.

    `_graph = Part(Graph, n_neighbors=15)` makes `self._graph` what `self.graph` is or stands for, with the class's defaults.
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
        """What one of the object's parameters is called beside the estimator's own."""
        return self.kind._flat.get(name, name)


@cache
def parts_of(kind: type) -> tuple[Part, ...]:
    """The parts among the parameters of an estimator's class."""
    own = kind._get_param_names()  # type: ignore[attr-defined]
    found = {
        name: part for base in reversed(kind.__mro__) for name, part in vars(base).items() if isinstance(part, Part)
    }
    return tuple(part for part in found.values() if part.parameter in own)


def nested(estimator: Any) -> dict[str, Any]:
    """All parameters of an estimator, those of its objects as "graph__tau", whether a bare value stands for these or not."""
    kind: Any = type(estimator)
    found = estimator.get_params(deep=True)
    for part in parts_of(kind):
        held = part.__get__(estimator, kind)
        found |= {f"{part.parameter}__{name}": getattr(held, name) for name in part.own}
    return found


def flat(estimator: Any) -> dict[str, Any]:
    """All parameters of an estimator, those of its objects by their flat names."""
    kind: Any = type(estimator)
    found = nested(estimator)
    return found | {name: found[place] for name, place in places(kind).items()}


@cache
def places(kind: type) -> dict[str, str]:
    """Flat name -> where it is now ("prepare__scale"), of the parts' parameters that the class takes."""
    own = kind._get_param_names()  # type: ignore[attr-defined]
    found = {part.flat(name): f"{part.parameter}__{name}" for part in parts_of(kind) for name in part.own}
    return {name: place for name, place in found.items() if name not in own or place.startswith(f"{name}__")}


@dataclass_transform(eq_default=False)
def parametrized(kind: type[Kind]) -> type[Kind]:
    """Make the annotated names of an estimator's class its parameters, which `__init__` keeps as they are given."""
    made = dataclass(eq=False, repr=False)(kind)
    for parameter in fields(made):  # type: ignore[arg-type]
        if parameter.name in vars(made):  # its default, which would hide a descriptor of a base class
            delattr(made, parameter.name)
    # what treats dataclasses apart (digests, dask's tokens, saving) would take the parameters for all that a model holds
    del made.__dataclass_fields__, made.__dataclass_params__  # type: ignore[attr-defined]
    init = made.__init__  # type: ignore[misc]

    @wraps(init)
    def knowing(self: Any, *given: Any, **named: Any) -> None:
        refuse_unknown(made, named)
        init(self, *given, **named)

    made.__init__ = knowing  # type: ignore[method-assign, misc]
    return made


def refuse_unknown(kind: type, given: Mapping[str, Any]) -> None:
    """Say where parameters that a class has not (any more) are now, or which one may be meant."""
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
    """Parameters as a class has them, from flat ones: those of the shell, and of models of earlier versions."""
    moved = places(kind)
    own = {name: value for name, value in values.items() if name not in moved}
    for part in parts_of(kind):
        inner = {name: values[part.flat(name)] for name in part.own if part.flat(name) in moved.keys() & values.keys()}
        if part.parameter in values and not inner.keys() - {part.kind._short}:
            own[part.parameter] = values[part.parameter]
        elif inner and part.kind._takes(own.get(part.parameter)):
            own[part.parameter] = part.kind(**{name: _unset(part, name, value) for name, value in inner.items()})
        elif inner:
            with suppress(UserError):  # of a name without parameters, or one that the fit refuses
                held = part.kind._named(own[part.parameter])  # a sibling, which may have some of them
                if shared := {name: value for name, value in inner.items() if name in vars(held)}:
                    own[part.parameter] = held.set_params(**shared)
    return own


def _unset(part: Part, name: str, value: Any) -> Any:
    """A value that was given where None did not stand for the default yet."""
    return part.kind._none.get(name) if value is None and part.own[name] is not None else value
