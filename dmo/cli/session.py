"""Functions that print the results of commands to standard output, as text or as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from dmo.errors import amount, visible
from dmo.workflows.program import run_options

WIDTH = 110
"""Width of tables in characters if the output is not a terminal."""


def show(record: Any, rows: Sequence[tuple[str, str]] = (), title: str = "", line: str = "") -> None:
    """Print `record` as JSON with the option --json, otherwise `line`, or the table `rows` if `line` is empty."""
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
    """Print text, unless the option --json is set."""
    if not run_options().json:
        print(text, end=end)


def grid(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: bool = True) -> None:
    """Print a table with a header, unless the option --json is set.

    If `numbers` is true, all columns except the first are right-aligned.
    """
    if run_options().json:
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i and numbers else "left")
    for row in rows:
        table.add_row(*map(visible, row))
    _print(title, table)


def _print(title: str, table: Table) -> None:
    """Print a titled table to standard output, with a fixed width unless the output is a terminal."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = WIDTH
    console.print(visible(title), style="bold italic", soft_wrap=True)
    console.print(table)


def in_a_line(costs: Mapping[str, Any], out: str, *parts: str) -> str:
    """Summarize an output and the elapsed time in one line.

    The line is empty with the option --verbose, because commands then print a table instead.
    """
    said = "; ".join([*(part for part in parts if part), f"{costs['seconds']:.1f} s"])
    return "" if run_options().verbose else f"{out}: {said}"


def cost_rows(costs: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return table rows with the total time, the time of each stage and the peak memory, if --verbose is set."""
    if not run_options().verbose:
        return []
    stages = [(f"  {name}", f"{seconds:.2f} s") for name, seconds in costs["stages"].items()]
    total = [("time", f"{costs['seconds']:.2f} s"), *stages]
    return [*total, ("peak memory", f"{amount(costs['peak_memory_bytes'])} (this process)")]
