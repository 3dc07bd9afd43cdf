"""One run of a command: bars and notes on standard error, the result on standard output as a table or as JSON."""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from dmo.progress import bars

WIDTH = 110
"""Columns where the output is no terminal."""


@dataclass
class Session:
    """What a running command may use: `note` for remarks, `finish` for the result. `seconds`: stage -> seconds so far."""

    as_json: bool
    errors: Console
    seconds: dict[str, float] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)

    def note(self, text: str) -> None:
        """A remark on standard error."""
        self.errors.print(text, highlight=False, markup=False, soft_wrap=True)

    def costs(self) -> dict[str, Any]:
        """Seconds per stage and in all, and the peak memory of this process in bytes."""
        return {
            "stages": {name: round(seconds, 4) for name, seconds in self.seconds.items()},
            "seconds": round(time.perf_counter() - self.started, 4),
            "peak_memory_bytes": peak_memory(),
        }


@contextmanager
def session(as_json: bool) -> Iterator[Session]:
    """Run a command's work: shows bars for its stages, and the library's log and warnings as notes."""
    run = Session(as_json, Console(stderr=True))
    handler = _Notes(run)
    log = logging.getLogger("dmo")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings(), bars(run.errors) as run.seconds:
            warnings.filterwarnings("always", category=UserWarning)
            warnings.showwarning = lambda message, *_: run.note(f"warning: {message}")  # type: ignore[assignment]
            yield run
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the library's log out of the notes."""
    log = logging.getLogger("dmo")
    level = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(level)


class _Notes(logging.Handler):
    """Log records as notes, each text once: what is said of every view is said of the first."""

    def __init__(self, run: Session):
        super().__init__()
        self.run = run
        self.said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text not in self.said:
            self.said.add(text)
            self.run.note(text)


def peak_memory() -> int:
    """Largest resident memory of this process so far, in bytes."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)


def show(record: Mapping[str, Any], rows: Sequence[tuple[str, str]], title: str, as_json: bool) -> None:
    """The result on standard output: `record` as JSON, or `rows` (name, value) as a table."""
    if as_json:
        print(json.dumps(record, indent=1, allow_nan=False))
        return
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    _print(title, table)


def grid(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: bool = True) -> None:
    """A table with a head on standard output; with `numbers` the columns after the first are set to the right."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i and numbers else "left")
    for row in rows:
        table.add_row(*row)
    _print(title, table)


def _print(title: str, table: Table) -> None:
    """To standard output, which is taken to be wide enough for a table where it is no terminal."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=WIDTH)
    console.print(title, style="bold italic", soft_wrap=True)
    console.print(table)


def cost_rows(costs: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The lines that every table ends with: time per stage, in all, and memory."""
    stages = [(f"  {name}", f"{seconds:.2f} s") for name, seconds in costs["stages"].items()]
    total = [("time", f"{costs['seconds']:.2f} s"), *stages]
    return [*total, ("peak memory", f"{amount(costs['peak_memory_bytes'])} (this process)")]


def amount(size: float) -> str:
    """Bytes in words: 1.2 GiB."""
    if size < 1024:
        return f"{size:.0f} bytes"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"
