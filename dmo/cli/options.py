"""Parameters of estimators as options of commands."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any

import typer

import dmo
from dmo.errors import UserError


def keyword(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    """Make the parameter of a command that is an option."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


class KernelName(str):
    """The name of a kernel, which `dmo.kernels.parse` reads."""


WORDS: dict[Any, str] = {int: "whole number", float: "number", str: "name", KernelName: "kernel"}


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
        kinds = [WORDS[member].split()[-1].upper() for member in self.members if isinstance(member, type)]
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
        needed = " or ".join([*(f"a {WORDS[m]}" for m in self.members if isinstance(m, type)), *self.values])
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
