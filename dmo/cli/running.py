"""Options that every run has, of commands and of pipelines alike: where it runs, and what it leaves behind."""

from __future__ import annotations

import argparse
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import dask.config
import typer

from dmo.cli.exits import ending
from dmo.cli.jsonlog import json_log
from dmo.resuming import checkpoints

HELP = {
    "workers": "Workers to start (jobs of a batch queue); default: the setting of the place.",
    "worker_threads": "Threads of a worker that is started.",
    "memory_limit": "Memory of a worker that is started, such as 4GiB.",
    "performance_report": "HTML file for Dask's performance report of the run.",
    "checkpoint": "Folder that keeps the state of long passes, kernel solves and sweeps, and what they have finished, "
    "so that the same command goes on where a run died; emptied when it ends well.",
    "log": "File to append what happens to, one JSON object a line.",
}
SCHEDULER = (
    "in-process, local, tcp://HOST:PORT, tls://HOST:PORT, a scheduler file, slurm, pbs, lsf, kubernetes, gateway or ssh "
    "(default: DASK_SCHEDULER_ADDRESS, else the setting dmo.scheduler, else in-process)."
)


@dataclass(frozen=True)
class RunOptions:
    """See `HELP`; None: not given."""

    workers: int | None = None
    worker_threads: int | None = None
    memory_limit: str | None = None
    performance_report: str | None = None
    checkpoint: str | None = None
    log: str | None = None

    def settings(self) -> dict[str, Any]:
        """The settings that the given options stand for."""
        given: dict[str, Any] = {}
        if self.workers is not None:
            names = ("local.workers", "batch.jobs", "kubernetes.workers", "gateway.workers", "ssh.workers")
            given |= dict.fromkeys(names, self.workers)
        if self.worker_threads is not None:
            given |= dict.fromkeys(("local.threads", "ssh.threads"), self.worker_threads)
        if self.memory_limit is not None:
            given |= dict.fromkeys(("local.memory-limit", "batch.memory", "kubernetes.memory"), self.memory_limit)
        if self.performance_report is not None:
            given["performance-report"] = self.performance_report
        return {f"dmo.{name}": value for name, value in given.items()}


@contextmanager
def running(options: RunOptions, program: str) -> Iterator[None]:
    """Apply the options to what is inside this block."""
    with dask.config.set(options.settings()), json_log(options.log, program), checkpoints(options.checkpoint):
        yield


def offer_run_options(app: typer.Typer, path: str = "dmo") -> None:
    """Give every command of `app` the options of `RunOptions`."""
    for command in app.registered_commands:
        if command.callback is not None:
            name = command.name or command.callback.__name__
            command.callback = _offering(command.callback, f"{path} {name}")
    for group in app.registered_groups:
        if group.typer_instance is not None:
            offer_run_options(group.typer_instance, f"{path} {group.name}")


def _offering(callback: Callable[..., Any], program: str) -> Callable[..., Any]:
    """`callback` with the parameters of `RunOptions` added to its own."""
    types = {"workers": int, "worker_threads": int}
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[types.get(name, str) | None, typer.Option(help=text, rich_help_panel="Run")],
        )
        for name, text in HELP.items()
    ]

    @functools.wraps(callback)
    def command(*args: Any, **given: Any) -> Any:
        options = RunOptions(**{name: given.pop(name) for name in HELP})
        with running(options, program):
            return callback(*args, **given)

    own = inspect.signature(callback, eval_str=True)
    command.__signature__ = own.replace(parameters=[*own.parameters.values(), *added])  # type: ignore[attr-defined]
    command.__annotations__ = {name: p.annotation for name, p in own.parameters.items()}
    command.__annotations__ |= {p.name: p.annotation for p in added}
    del command.__wrapped__  # type: ignore[attr-defined]
    return command


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Give a pipeline `--scheduler` and the options of `RunOptions`."""
    group = parser.add_argument_group("run")
    group.add_argument("--scheduler", help=SCHEDULER)
    for name, text in HELP.items():
        kind = int if name in ("workers", "worker_threads") else str
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=name.upper(), help=text)


def run_pipeline(file: str, options: argparse.Namespace, work: Callable[[], None]) -> int:
    """Run a pipeline where its options say, with bars and notes on standard error.

    Arguments: `file`: the pipeline's `__file__`, for messages; `options`: parsed with `add_run_options`; `work`: all of
    it. Returns the exit code, see `dmo.cli.exits`; faults of the program are raised.
    """
    from dmo.cli.session import session
    from dmo.cluster import connect

    name = Path(file).name
    chosen = RunOptions(**{key: getattr(options, key) for key in HELP})

    def all_of_it() -> None:
        with running(chosen, name), session(as_json=False) as run, connect(options.scheduler) as place:
            run.note(f"running {place.where}")
            work()

    return ending(name, all_of_it)
