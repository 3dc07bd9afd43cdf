"""Derivation of command-line options from the signature and the docstring of a class."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from sklearn.base import BaseEstimator

import dmo
from dmo.cli.options import KernelName, Option, Surface
from dmo.errors import ENGINES
from dmo.inputs import needs_of
from dmo.kernels import Kernel
from dmo.parameters import parts_of, places

_SAID = {int: int, float: float, str: str, Kernel: KernelName}
"""Parameter types that a command line can express, and the types of their options."""


def surface(kind: type) -> Surface:
    """Return the command-line options and the help text of a class."""
    text = (inspect.getdoc(kind) or "").partition("\n")[0]
    return Surface(options_of(kind), engine_options(kind), getattr(kind, "one_view", False), text)


@cache
def options_of(kind: type) -> dict[str, Option]:
    """Return the options of a class in the order of its parameters, omitting parameters such as matrices."""
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
    """Return the options for the parameters in the signature of a class."""
    hints, texts, found = get_type_hints(vars(kind)["__init__"]), parameter_texts(kind), {}
    for parameter in list(inspect.signature(kind).parameters.values()):
        parts = list(_parts(hints[parameter.name]))
        by_view = any(get_origin(part) is Mapping or part is Mapping or get_origin(part) in _MAPPINGS for part in parts)
        engines = [name for name, engine in ENGINES.items() if getattr(dmo, engine) in parts]
        inner = [part for whole in parts if get_origin(whole) in _MAPPINGS for part in get_args(whole)[1:2]]
        members = dict.fromkeys(m for part in [*parts, *inner] for m in _members(part)) | dict.fromkeys(engines)
        if KernelName in members:
            members.pop(str, None)  # parameters for kernels interpret strings as kernel names
        if set(members) <= {None}:
            continue
        default = "auto" if KernelName in members and parameter.default == "rbf" else parameter.default
        help_ = texts.get(parameter.name) or _mention(texts, parameter.name)
        if default == "auto" and KernelName in members:
            members = {"auto": None} | members
            help_ += " auto selects hellinger-rbf for histograms, otherwise rbf."
        found[parameter.name] = Option(parameter.name, tuple(members), default, help_, by_view, parameter.name)
    return found


def _mention(texts: Mapping[str, str], name: str) -> str:
    """Return the text of another parameter that mentions the parameter `name`."""
    return next((text for text in texts.values() if re.search(rf"`{name}[`=]", text)), "")


_MAPPINGS = (Mapping, get_origin(Mapping[str, float]))


def _parts(hint: Any) -> list[Any]:
    """Return the members of a union type, or the type itself if it is not a union."""
    return [p for part in get_args(hint) for p in _parts(part)] if get_origin(hint) in (Union, UnionType) else [hint]


def _members(part: Any) -> tuple[Any, ...]:
    """Return the literal values or the option type for a member of a union type."""
    if get_origin(part) is Literal:
        return get_args(part)
    if part is bool:
        return (True, False)
    if part is NoneType:
        return (None,)
    return (_SAID[part],) if part in _SAID else ()


def engine_options(kind: type) -> dict[str, Option]:
    """Return the options for all engines of an estimator, without the options of the estimator itself."""
    own = options_of(kind)
    named = own["approximation"].values if "approximation" in own else []
    found: dict[str, Option] = {}
    for name in named:
        for option in options_of(getattr(dmo, ENGINES[name])).values() if name in ENGINES else ():
            if option.name not in (*own, "kernel"):
                known = found.get(option.name, option)
                members = tuple(dict.fromkeys([*known.members, *option.members]))
                said = f"{known.help.removesuffix('.)')}, " if option.name in found else f"{option.help} (Engines: "
                default = option.default if known.default == option.default else None
                found[option.name] = Option(option.name, members, default, f"{said}{name}.)")
    return found


@cache
def parameter_texts(kind: type) -> dict[str, str]:
    """Map the parameters of a class to their texts in its docstring; resolve references such as "as in `Other`"."""
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
