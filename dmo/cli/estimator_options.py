"""Options of commands for the parameters of estimators, kept beside the bytecode: making them takes every class."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from functools import cache
from hashlib import sha256
from importlib.util import cache_from_source
from pathlib import Path
from typing import Annotated, Any

import typer

import dmo
from dmo.cli.commands import keyword
from dmo.errors import ENGINES, UserError


class KernelName(str):
    """The name of a kernel, which `dmo.kernels.parse` reads."""


_WORDS: dict[Any, str] = {int: "whole number", float: "number", str: "name", KernelName: "kernel"}
_KINDS = {kind.__name__: kind for kind in _WORDS}


@dataclass(frozen=True)
class Option:
    """A parameter as an option; `members`, what a shell can say: values, and int, float, str, KernelName."""

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
        if KernelName in self.members and text != "auto":
            try:
                dmo.kernels.parse(text)
            except UserError as error:
                raise UserError(f"{self.flag} {text}: {error}") from error
        if str in self.members or KernelName in self.members:
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
            valued = typer.Option(self.flag, metavar=self.metavar, **about)
            kind = Annotated[list[str] | None if self.by_view else str | None, valued]
        return keyword(self.name, kind)


def _written(value: Any) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Surface:
    """What the shell says of a class."""

    options: dict[str, Option]
    engines: dict[str, Option]  # of the objects that it may have as `approximation`
    one_view: bool
    text: str  # the first line of its docstring


@cache
def surfaces() -> dict[str, Surface]:
    """Class -> what the shell says of it: as it was found last, where no source of this package has changed since."""
    place, key = Path(cache_from_source(__file__)).with_suffix(".json"), _sources()
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # none, broken, or another program's
        kept = json.loads(place.read_text("utf-8"))
        if kept["key"] == key:
            return {name: _read(found) for name, found in kept["surfaces"].items()}
    from dmo.cli.signatures import surface  # imports all methods

    made = {name: surface(getattr(dmo, name)) for name in (*dmo.methods.__all__, *ENGINES.values())}
    with suppress(OSError):  # others' folder: found anew by the next command
        place.parent.mkdir(exist_ok=True)
        beside = place.with_suffix(f".{os.getpid()}")
        kept = {"key": key, "surfaces": {name: asdict(found) for name, found in made.items()}}
        beside.write_text(json.dumps(kept, default=lambda kind: {"kind": kind.__name__}), "utf-8")
        os.replace(beside, place)
    return made


def _sources() -> str:
    """A digest of names, sizes and times of this package's sources."""
    package = Path(dmo.__file__).parent
    found = [(str(file.relative_to(package)), file.stat()) for file in sorted(package.rglob("*.py"))]
    return sha256(repr([(name, stat.st_size, stat.st_mtime_ns) for name, stat in found]).encode()).hexdigest()


def _read(kept: dict[str, Any]) -> Surface:
    def options(found: Mapping[str, Any]) -> dict[str, Option]:
        return {name: Option(**{**one, "members": tuple(map(_member, one["members"]))}) for name, one in found.items()}

    return Surface(options(kept["options"]), options(kept["engines"]), kept["one_view"], kept["text"])


def _member(kept: Any) -> Any:
    return _KINDS[kept["kind"]] if isinstance(kept, dict) else kept


def options_of(name: str) -> dict[str, Option]:
    """The parameters of a class, in order; those that no shell can write (a matrix) are left out."""
    return surfaces()[name].options


def engine_options(name: str) -> dict[str, Option]:
    """The parameters of the engines that an estimator may have as `approximation`, but those that it has itself."""
    return surfaces()[name].engines


def engine(kind: str, name: str | None, given: Mapping[str, str]) -> Any:
    """The `approximation` from its name and its own options; without a name, the first engine that has them all.

    Raises UserError for an option that the engine does not have.
    """
    own = options_of(kind)["approximation"]
    chosen = own.default if name is None else own.parse(name)
    if not given:
        return getattr(dmo, ENGINES[chosen])() if chosen in ENGINES and chosen != "exact" else chosen
    able = [key for key in own.values if key in ENGINES and set(given) <= set(options_of(ENGINES[key]))]
    if chosen not in able:
        if name not in (None, "auto") or not able:
            has = ", ".join(o.flag for o in options_of(ENGINES[chosen]).values()) if chosen in ENGINES else "no options"
            lacks = ", ".join(f"--{key.replace('_', '-')}" for key in given)
            raise UserError(f"--approximation {chosen} does not take {lacks}; it has {has}")
        chosen = able[0]
    known = options_of(ENGINES[chosen])
    return getattr(dmo, ENGINES[chosen])(**{key: known[key].parse(text) for key, text in given.items()})
