"""Conversion of estimator parameters to command-line options."""

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
    """Create a keyword-only parameter of a command, which Typer converts to an option."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


class KernelName(str):
    """Type of options whose value is a kernel name that `dmo.kernels.parse` accepts."""


WORDS: dict[Any, str] = {int: "whole number", float: "number", str: "name", KernelName: "kernel"}


@dataclass(frozen=True)
class Option:
    """Command-line option for a parameter, which accepts the literal values and the types in `members`."""

    name: str
    members: tuple[Any, ...]
    default: Any
    help: str
    by_view: bool = False
    place: str = ""  # Name of the parameter for `set_params`, such as "graph__tau".

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def values(self) -> list[str]:
        """Literal values of the option, as written on the command line."""
        return [written(member) for member in self.members if not isinstance(member, type)]

    @property
    def metavar(self) -> str:
        kinds = [WORDS[member].split()[-1].upper() for member in self.members if isinstance(member, type)]
        known = "|".join(dict.fromkeys([*self.values, *kinds]))
        return f"[VIEW=]{known}" if self.by_view else known

    def parse(self, text: str) -> Any:
        """Parse a single value; the error for an invalid value lists the accepted values."""
        for member in self.members:
            if not isinstance(member, type) and text == written(member):
                return member
        for member in (int, float):  # Try int first, because float also accepts "5".
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
        raise UserError(f"{self.flag} {text}: expected {needed}{f'; did you mean {near[0]}?' if near else ''}")

    def value(self, entries: Sequence[str], views: Sequence[str]) -> Any:
        """Parse entries of the form VALUE, which apply to all views, or VIEW=VALUE.

        Views without an entry have the default value, or 1 if a numeric option has no default.
        """
        common, single = self.default, {}
        for entry in entries:
            view, equals, text = entry.partition("=")
            if not (equals and self.by_view):
                common = self.parse(entry)
            elif view not in views:
                known = ", ".join(views)
                raise UserError(f"{self.flag} {entry}: view {view!r} is not used; write VIEW=VALUE with one of {known}")
            else:
                single[view] = self.parse(text)
        if common is None and float in self.members:
            common = 1.0
        return dict.fromkeys(views, common) | single if single else common

    def parameter(self, several: bool, panel: str | None = None) -> inspect.Parameter:
        """Create the parameter of a command; if `several` is true, a boolean is a value instead of a flag.

        `panel` is the heading of the option in the help.
        """
        text = self.help if self.default is None else f"{self.help} [default: {written(self.default)}]"
        about: dict[str, Any] = {"help": text, "rich_help_panel": panel}
        if self.members == (True, False) and not several:
            kind: Any = Annotated[bool | None, typer.Option(f"{self.flag}/--no-{self.flag[2:]}", **about)]
        else:
            valued = typer.Option(self.flag, metavar=self.metavar, **about)
            kind = Annotated[list[str] | None if self.by_view else str | None, valued]
        return keyword(self.name, kind)


def written(value: Any) -> str:
    """Format a value as it is written on the command line."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Surface:
    """Command-line options and help text of an estimator or engine."""

    options: dict[str, Option]
    engines: dict[str, Option]  # Options of the engines that `approximation` can select.
    one_view: bool  # Whether the estimator supports only a single view.
    text: str  # First line of the docstring.
