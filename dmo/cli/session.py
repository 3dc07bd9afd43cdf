"""One run of a command: bars and notes on standard error, the result on standard output as a table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from dmo.errors import amount, visible
from dmo.workflows.program import run_options

WIDTH = 110
"""Columns where the output is no terminal."""


def show(record: Any, rows: Sequence[tuple[str, str]] = (), title: str = "", line: str = "") -> None:
    """The result on standard output: `record` as JSON, or `line`, or where there is none `rows` (name, value) as a table."""
    if run_options().json:
        print(json.dumps(record, indent=1, allow_nan=False, default=repr))
    if run_options().json or (line and run_options().quiet) or not (line or rows):
        return
    if line:
        print(visible(line))
        return
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(visible(name), visible(value))
    _print(title, table)


def say(text: str, end: str = "\n") -> None:
    """Text on standard output that is for people alone."""
    if not run_options().json:
        print(text, end=end)


def grid(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: bool = True) -> None:
    """A table with a head on standard output, but with --json; with `numbers` columns after the first are set to the right."""
    if run_options().json:
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i and numbers else "left")
    for row in rows:
        table.add_row(*map(visible, row))
    _print(title, table)


def _print(title: str, table: Table) -> None:
    """To standard output, which is taken to be wide enough for a table where it is no terminal."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = WIDTH
    console.print(visible(title), style="bold italic", soft_wrap=True)
    console.print(table)


def in_a_line(costs: Mapping[str, Any], out: str, *parts: str) -> str:
    """What was made and what is in it, as one line; empty for those who want all."""
    said = "; ".join([*(part for part in parts if part), f"{costs['seconds']:.1f} s"])
    return "" if run_options().verbose else f"{out}: {said}"


def cost_rows(costs: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Time, in all and per stage, and memory, for those who want to know all."""
    if not run_options().verbose:
        return []
    stages = [(f"  {name}", f"{seconds:.2f} s") for name, seconds in costs["stages"].items()]
    total = [("time", f"{costs['seconds']:.2f} s"), *stages]
    return [*total, ("peak memory", f"{amount(costs['peak_memory_bytes'])} (this process)")]
