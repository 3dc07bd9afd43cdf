"""Running a program on whichever cluster was asked for: its options, its log and its exit."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask.config
import psutil
from rich.console import Console

from dmo.errors import visible
from dmo.progress import bars
from dmo.stores.checkpoints import checkpoints
from dmo.workflows.exits import ending
from dmo.workflows.jsonlog import json_log

HELP = {
    "workers": "Workers to start (jobs of a batch queue), and to wait for; default: the setting of the backend.",
    "worker_threads": "Threads of a worker that is started.",
    "memory_limit": "Memory of one worker that is started, such as 4GiB.",
    "performance_report": "HTML file for Dask's performance report of the run.",
    "checkpoint": "Folder that keeps the state of long passes, kernel solves and sweeps, and what they have finished, "
    "so that the same command goes on where a run was interrupted; emptied when it ends well.",
    "log": "File to append what happens to, one JSON object a line.",
    "verbose": "Say all that is decided, and the time of every stage; show bars off a terminal too.",
}
_verbose: ContextVar[bool] = ContextVar("dmo_verbose", default=False)
SCHEDULER = (
    "in-process, local, tcp://HOST:PORT, tls://HOST:PORT, a scheduler file, slurm, pbs, lsf, kubernetes, gateway, ssh or "
    "ssh:HOST,HOST "
    "(default: DASK_SCHEDULER_ADDRESS, else the setting dmo.scheduler, else in-process)."
)


@dataclass(frozen=True)
class RunOptions:
    """Options of every run; see `HELP`.

    Parameters
    ----------
    workers : int, optional
        To start.
    worker_threads : int, optional
        Of a worker.
    memory_limit : str, optional
        Of a worker.
    performance_report : str, optional
        HTML file of Dask's.
    checkpoint : str, optional
        Folder for the state of long computations.
    log : str, optional
        File to append to.
    verbose : bool, default=False
        Say all.

    Examples
    --------
    >>> from dmo.workflows.program import RunOptions
    >>> RunOptions(memory_limit="4GiB").settings()
    {'dmo.memory-limit': '4GiB'}
    """

    workers: int | None = None
    worker_threads: int | None = None
    memory_limit: str | None = None
    performance_report: str | None = None
    checkpoint: str | None = None
    log: str | None = None
    verbose: bool = False

    def settings(self) -> dict[str, Any]:
        """Find the settings that the given options stand for.

        Returns
        -------
        dict of str to object
            By dotted name.
        """
        given: dict[str, Any] = {}
        for name in ("workers", "worker_threads", "memory_limit"):
            if getattr(self, name) is not None:
                given[name.replace("_", "-")] = getattr(self, name)
        if self.performance_report is not None:
            given["performance-report"] = self.performance_report
        return {f"dmo.{name}": value for name, value in given.items()}


@contextmanager
def running(options: RunOptions, program: str) -> Iterator[None]:
    """Apply the options of a run to what is inside this block.

    Parameters
    ----------
    options : RunOptions
        Given by the user.
    program : str
        What runs, for the log.

    Yields
    ------
    None
        Nothing.

    Examples
    --------
    >>> import dask.config
    >>> from dmo.workflows.program import RunOptions, running
    >>> with running(RunOptions(workers=3), "my experiment"):
    ...     dask.config.get("dmo.workers")
    3
    """
    token = _verbose.set(options.verbose)
    try:
        with dask.config.set(options.settings()), json_log(options.log, program), checkpoints(options.checkpoint):
            yield
    finally:
        _verbose.reset(token)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Give a pipeline `--scheduler` and the options of `RunOptions`.

    Parameters
    ----------
    parser : ArgumentParser
        Of the pipeline.

    Examples
    --------
    >>> import argparse
    >>> from dmo.workflows.program import add_run_options
    >>> parser = argparse.ArgumentParser()
    >>> add_run_options(parser)
    >>> parser.parse_args(["--scheduler", "local", "--workers", "2"]).workers
    2
    """
    group = parser.add_argument_group("run")
    group.add_argument("--scheduler", help=SCHEDULER)
    group.add_argument("-v", "--verbose", action="store_true", help=HELP["verbose"])
    for name, text in HELP.items():
        if name == "verbose":
            continue
        kind = int if name in ("workers", "worker_threads") else str
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=name.upper(), help=text)


def run_pipeline(file: str, options: argparse.Namespace, work: Callable[[Session], None]) -> int:
    """Run a pipeline where its options say, with bars and notes on standard error.

    Parameters
    ----------
    file : str
        The pipeline's `__file__`, for messages.
    options : Namespace
        Parsed with `add_run_options`.
    work : callable
        Takes the Session, does all of it.

    Returns
    -------
    int
        The exit code, see `dmo.workflows.exits`; faults of the program are raised.

    Examples
    --------
    >>> import argparse
    >>> from dmo.workflows.program import add_run_options, run_pipeline
    >>> parser = argparse.ArgumentParser()
    >>> add_run_options(parser)
    >>> run_pipeline("mine.py", parser.parse_args([]), lambda run: print("working"))
    working
    0
    """
    from dmo.cluster import connect  # here: a command that needs no cluster starts without its modules

    name = Path(file).name
    chosen = RunOptions(**{key: getattr(options, key) for key in HELP})

    def all_of_it() -> None:
        with running(chosen, name), session(as_json=False) as run, connect(options.scheduler) as backend:
            run.detail(f"running {backend.where}")
            work(run)

    return ending(name, all_of_it)


@dataclass
class Session:
    """What a running command may use.

    Parameters
    ----------
    as_json : bool
        Whether the result is printed as JSON.
    errors : rich.console.Console
        Standard error.
    verbose : bool, default=False
        Whether details are told.
    seconds : dict of str to float, optional
        Of every stage so far.
    started : float, optional
        When, by `time.perf_counter`.
    said : set of str, optional
        Warnings and records of the log that were told.

    Examples
    --------
    >>> from dmo.workflows.program import session
    >>> with session(as_json=True) as run:
    ...     run.detail("told with --verbose")
    >>> sorted(run.costs())
    ['peak_memory_bytes', 'seconds', 'stages']
    """

    as_json: bool
    errors: Console
    verbose: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)
    said: set[str] = field(default_factory=set)

    def note(self, text: str) -> None:
        """Remark on standard error.

        Parameters
        ----------
        text : str
            What.
        """
        self.errors.print(visible(text), highlight=False, markup=False, soft_wrap=True)

    def once(self, text: str) -> bool:
        """Tell whether a text is new, and take it as told.

        Parameters
        ----------
        text : str
            What.

        Returns
        -------
        bool
            Whether it was not told before.
        """
        new = text not in self.said
        self.said.add(text)
        return new

    def detail(self, text: str) -> None:
        """Remark for those who want to know all.

        Parameters
        ----------
        text : str
            What.
        """
        if self.verbose:
            self.note(text)

    def costs(self) -> dict[str, Any]:
        """Say what the run has taken so far.

        Returns
        -------
        dict
            Seconds per stage and in all, and the peak memory of this process in bytes.
        """
        return {
            "stages": {name: round(seconds, 4) for name, seconds in self.seconds.items()},
            "seconds": round(time.perf_counter() - self.started, 4),
            "peak_memory_bytes": peak_memory(),
        }


@contextmanager
def session(as_json: bool) -> Iterator[Session]:
    """Run a command's work: bars for its stages on a terminal, the library's log and warnings as notes.

    Parameters
    ----------
    as_json : bool
        Whether the result will be printed as JSON.

    Yields
    ------
    Session
        What the work may use.

    Examples
    --------
    >>> from dmo.progress import stage
    >>> from dmo.workflows.program import session
    >>> with session(as_json=True) as run:
    ...     with stage("count", 1) as advance:
    ...         advance(1)
    >>> list(run.costs()["stages"])
    ['count']
    """
    run = Session(as_json, Console(stderr=True), _verbose.get())
    silent = not (run.errors.is_terminal or run.verbose)
    handler = _Notes(run)
    log = logging.getLogger("dmo")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings(), bars(run.errors, disable=silent) as run.seconds:
            warnings.filterwarnings("always", category=UserWarning)
            warnings.showwarning = lambda message, *_: _warn(run, f"warning: {message}")  # type: ignore[assignment]
            yield run
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the library's log out of the notes.

    Yields
    ------
    None
        Nothing.

    Examples
    --------
    >>> import logging
    >>> from dmo.workflows.program import quiet
    >>> with quiet():
    ...     logging.getLogger("dmo").isEnabledFor(logging.INFO)
    False
    """
    log = logging.getLogger("dmo")
    level = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(level)


def _warn(run: Session, text: str) -> None:
    """Once: what is said of every fold of every setting is said of the first."""
    if run.once(text):
        run.note(text)


class _Notes(logging.Handler):
    """Log records as notes, each text once: what is said of every view is said of the first."""

    def __init__(self, run: Session):
        super().__init__()
        self.run = run

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if self.run.once(text):
            # what was chosen and why, and where to watch, is told to everyone; what follows from it to those who ask
            told = record.levelno > logging.INFO or text.startswith(("dashboard: ", "tune: "))
            told = told or (text.startswith("engine: ") and self.run.once("engine: "))
            (self.run.note if told else self.run.detail)(text)


def peak_memory() -> int:
    """Largest resident memory of this process so far, in bytes."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)


def say_unreadable(run: Session, failures: Mapping[str, str]) -> None:
    """Note every image that could not be read.

    Parameters
    ----------
    run : Session
        Takes the notes.
    failures : mapping of str to str
        Reasons by image.

    Examples
    --------
    >>> from dmo.workflows.program import say_unreadable, session
    >>> with session(as_json=True) as run:
    ...     say_unreadable(run, {})
    """
    for reason in failures.values():
        run.note(f"skipped: {reason}")
