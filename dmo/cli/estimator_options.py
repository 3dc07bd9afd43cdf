"""Options of commands from an estimator's `__init__`: its names, types, defaults and numpydoc text."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
from sklearn.base import BaseEstimator

import dmo
from dmo.errors import UserError
from dmo.inputs import needs_of
from dmo.kernels import Kernel, parse
from dmo.methods.base import ENGINES as ENGINES
from dmo.parameters import parts_of, places

"""Names of the objects that an `approximation` may be; the first that has all options given is meant by these."""
_WORDS: dict[Any, str] = {int: "whole number", float: "number", str: "name", Kernel: "kernel"}


@dataclass(frozen=True)
class Option:
    """A parameter as an option; `members` of its type that a shell can say: literal values, and int, float, str, Kernel."""

    name: str
    members: tuple[Any, ...]
    default: Any
    help: str
    by_view: bool = False
    place: str = ""  # where the value goes: the name, or that of a parameter of an object ("graph__tau")

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def values(self) -> list[str]:
        """The literal values, as they are written."""
        return [_written(member) for member in self.members if not isinstance(member, type)]

    @property
    def metavar(self) -> str:
        kinds = [_WORDS[member].split()[-1].upper() for member in self.members if isinstance(member, type)]
        known = "|".join(dict.fromkeys([*self.values, *kinds]))
        return f"[VIEW=]{known}" if self.by_view else known

    def parse(self, text: str) -> Any:
        """One value. Raises UserError that says what is needed."""
        for member in self.members:
            if not isinstance(member, type) and text == _written(member):
                return member
        for member in (int, float):  # a whole number where both are meant, and 5.0 is not one
            if member in self.members:
                try:
                    return member(text)
                except ValueError:
                    continue
        if Kernel in self.members and text != "auto":
            try:
                parse(text)
            except UserError as error:
                raise UserError(f"{self.flag} {text}: {error}") from error
        if str in self.members or Kernel in self.members:
            return text
        near = get_close_matches(text, self.values, 1)
        needed = " or ".join([*(f"a {_WORDS[m]}" for m in self.members if isinstance(m, type)), *self.values])
        raise UserError(f"{self.flag} {text}: {f'did you mean {near[0]}? ' if near else ''}needed is {needed}")

    def value(self, entries: Sequence[str], views: Sequence[str]) -> Any:
        """The argument from VALUE, or VIEW=VALUE for some views and the default for the others (a number: 1 for None)."""
        common, single = self.default, {}
        for entry in entries:
            view, equals, text = entry.partition("=")
            if not (equals and self.by_view):
                common = self.parse(entry)
            elif view not in views:
                known = ", ".join(views)
                raise UserError(f"{self.flag} {entry}: no view {view!r} is used; write VIEW=VALUE with one of {known}")
            else:
                single[view] = self.parse(text)
        if common is None and float in self.members:
            common = 1.0
        return dict.fromkeys(views, common) | single if single else common

    def parameter(self, several: bool, panel: str | None = None) -> inspect.Parameter:
        """For a command, under a heading of its help; with `several` values by comma a truth value is written out too."""
        text = self.help if self.default is None else f"{self.help} [default: {_written(self.default)}]"
        about: dict[str, Any] = {"help": text, "rich_help_panel": panel}
        if self.members == (True, False) and not several:
            kind: Any = Annotated[bool | None, typer.Option(f"{self.flag}/--no-{self.flag[2:]}", **about)]
        else:
            option = typer.Option(self.flag, metavar=self.metavar, **about)
            kind = Annotated[list[str] | None if self.by_view else str | None, option]
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def _written(value: Any) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


@cache
def options_of(kind: type) -> dict[str, Option]:
    """The parameters of a class, in order; those that no shell can write (a matrix) are left out."""
    found: dict[str, Option] = {}
    known = parts_of(kind) if issubclass(kind, BaseEstimator) else ()
    parts: dict[str, Any] = {part.parameter: part for part in known}
    of_kind = {place: known for known, place in places(kind).items()} if parts else {}
    own = _own_options(kind)
    for parameter in inspect.signature(kind).parameters:
        part: Any = parts.get(parameter)
        if parameter in own and not (part and part.kind._short):
            found[parameter] = own[parameter]
        for name, option in _own_options(part.kind).items() if part else ():
            place = f"{parameter}__{name}"
            if place in of_kind:
                need, default = needs_of(kind).get(place), part.own[name]
                refused = {m for m in option.members if not (isinstance(m, type) or need is None or need.holds(m))}
                refused |= {None} if default is not None else set()
                members = tuple(m for m in option.members if m not in refused)
                named = replace(option, name=of_kind[place], members=members, default=default, place=place)
                found[named.name] = named
    return found


@cache
def _own_options(kind: type) -> dict[str, Option]:
    """The parameters in the signature of a class."""
    hints, texts, found = get_type_hints(vars(kind)["__init__"]), parameter_texts(kind), {}
    for parameter in list(inspect.signature(kind).parameters.values()):
        parts = list(_parts(hints[parameter.name]))
        by_view = any(get_origin(part) is Mapping or part is Mapping or get_origin(part) in _MAPPINGS for part in parts)
        engines = [name for name, engine in ENGINES.items() if engine in parts]
        inner = [part for whole in parts if get_origin(whole) in _MAPPINGS for part in get_args(whole)[1:2]]
        members = dict.fromkeys(m for part in [*parts, *inner] for m in _members(part)) | dict.fromkeys(engines)
        if Kernel in members:
            members.pop(str, None)  # the kernel's name
        if set(members) <= {None}:
            continue
        default = "auto" if Kernel in members and parameter.default == "rbf" else parameter.default
        help_ = texts.get(parameter.name) or _mention(texts, parameter.name)
        if default == "auto" and Kernel in members:
            members = {"auto": None} | members
            help_ += " auto: hellinger-rbf for histograms, else rbf."
        found[parameter.name] = Option(parameter.name, tuple(members), default, help_, by_view, parameter.name)
    return found


def _mention(texts: Mapping[str, str], name: str) -> str:
    """The text of another parameter that says what this one does."""
    return next((text for text in texts.values() if re.search(rf"`{name}[`=]", text)), "")


_MAPPINGS = (Mapping, get_origin(Mapping[str, float]))


def _parts(hint: Any) -> list[Any]:
    """The members of a union."""
    return [p for part in get_args(hint) for p in _parts(part)] if get_origin(hint) in (Union, UnionType) else [hint]


def _members(part: Any) -> tuple[Any, ...]:
    """What a shell can say of one member of a union."""
    if get_origin(part) is Literal:
        return get_args(part)
    if part is bool:
        return (True, False)
    if part is NoneType:
        return (None,)
    return (part,) if part in _WORDS else ()


@cache
def engine_options(kind: type) -> dict[str, Option]:
    """The parameters of the engines that an estimator may have as `approximation`, but those that it has itself."""
    own = options_of(kind)
    named = own["approximation"].values if "approximation" in own else []
    found: dict[str, Option] = {}
    for name in named:
        for option in options_of(ENGINES[name]).values() if name in ENGINES else ():
            if option.name not in (*own, "kernel"):
                known = found.get(option.name, option)
                members = tuple(dict.fromkeys([*known.members, *option.members]))
                said = f"{known.help.removesuffix('.)')}, " if option.name in found else f"{option.help} (Of "
                found[option.name] = Option(option.name, members, None, f"{said}{name}.)")
    return found


def engine(kind: type, name: str | None, given: Mapping[str, str]) -> Any:
    """The `approximation` from its name and its own options; without a name, the first engine that has them all.

    Raises UserError for an option that the engine does not have.
    """
    own = options_of(kind)["approximation"]
    chosen = own.default if name is None else own.parse(name)
    if not given:
        return ENGINES[chosen]() if chosen in ENGINES and chosen != "exact" else chosen
    able = [key for key in own.values if key in ENGINES and set(given) <= set(options_of(ENGINES[key]))]
    if chosen not in able:
        if name not in (None, "auto") or not able:
            has = ", ".join(o.flag for o in options_of(ENGINES[chosen]).values()) if chosen in ENGINES else "no options"
            raise UserError(f"--approximation {chosen} does not take {_flags(given)}; it has {has}")
        chosen = able[0]
    known = options_of(ENGINES[chosen])
    return ENGINES[chosen](**{key: known[key].parse(text) for key, text in given.items()})


def _flags(names: Any) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


@cache
def parameter_texts(kind: type) -> dict[str, str]:
    """Parameter -> its text in the numpydoc section of a class; "as in `Other`" is looked up there."""
    section = re.search(r"Parameters\n-+\n(.*?)(\n\n|\Z)", inspect.getdoc(kind) or "", flags=re.DOTALL)
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", section[1]) if section else ():
        head, _, body = entry.partition("\n")
        names, _, sort = head.partition(" : ")
        other = re.search(r"as in `(\w+)`|see `(\w+)`$", sort)
        for name in names.split(", "):
            elsewhere = parameter_texts(getattr(dmo, other[1] or other[2])).get(name, "") if other else ""
            found[name] = " ".join(f"{elsewhere} {body}".split()) or f"{sort[:1].upper()}{sort[1:]}."
    return found
