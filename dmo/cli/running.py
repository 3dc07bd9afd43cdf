"""Options that every run has, of commands and of pipelines alike: where it runs, and what it leaves behind."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from dmo.workflows.program import HELP, RunOptions, running


def offer_run_options(app: typer.Typer, path: str) -> None:
    """Give every command of the group `path` the options of `RunOptions`."""
    for command in app.registered_commands:
        if command.callback is not None:
            name = command.name or command.callback.__name__
            command.callback = offering(command.callback, f"{path} {name}")


def offering(callback: Callable[..., Any], program: str) -> Callable[..., Any]:
    """`callback` with the parameters of `RunOptions` added to its own."""
    types = {"workers": int, "worker_threads": int}
    verbose = typer.Option("--verbose", "-v", help=HELP["verbose"], rich_help_panel="Run")
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if name == "verbose" else None,
            annotation=Annotated[bool, verbose]
            if name == "verbose"
            else Annotated[types.get(name, str) | None, typer.Option(help=text, rich_help_panel="Run")],
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
