"""Options that every run has, of commands and of pipelines alike: where it runs, and what it leaves behind."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from dmo.workflows.program import FLAGS, HELP, RunOptions, running

_ANYWHERE = ("log", *FLAGS)
"""Options of commands that run in this process alone."""


def offer_run_options(app: typer.Typer, path: str) -> None:
    """Give every command of the group `path` the options of `RunOptions`."""
    for command in app.registered_commands:
        if command.callback is not None:
            name = command.name or command.callback.__name__
            command.callback = offering(command.callback, f"{path} {name}")


def offering(callback: Callable[..., Any], program: str) -> Callable[..., Any]:
    """`callback` with the parameters of `RunOptions` added to its own: those of workers where it says where it runs."""
    own = inspect.signature(callback, eval_str=True)
    added = [_parameter(name) for name in HELP if name in _ANYWHERE or "scheduler" in own.parameters]

    @functools.wraps(callback)
    def command(*args: Any, **given: Any) -> Any:
        options = RunOptions(**{p.name: given.pop(p.name) for p in added})
        with running(options, program):
            return callback(*args, **given)

    command.__signature__ = own.replace(parameters=[*own.parameters.values(), *added])  # type: ignore[attr-defined]
    command.__annotations__ = {name: p.annotation for name, p in own.parameters.items()}
    command.__annotations__ |= {p.name: p.annotation for p in added}
    del command.__wrapped__  # type: ignore[attr-defined]
    return command


def _parameter(name: str) -> inspect.Parameter:
    """An option of every run."""
    flag, kind = name in FLAGS, int if name in ("workers", "worker_threads") else str
    short = [f"-{name[0]}"] if name in FLAGS[1:] else []
    about = typer.Option(f"--{name.replace('_', '-')}", *short, help=HELP[name], rich_help_panel="Run")
    annotation: Any = Annotated[bool, about] if flag else Annotated[kind | None, about]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=False if flag else None, annotation=annotation
    )
