"""Options that several commands share, and those that every run has: where it runs, and what it leaves behind."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from dmo.workflows.program import FLAGS, HELP, SCHEDULER, RunOptions, running


def label_names_in(text: str) -> int | list[str]:
    """The names, or the number, of columns of labels."""
    try:
        return int(text)
    except ValueError:
        return [name.strip() for name in text.split(",") if name.strip()]


_PANEL = {"rich_help_panel": "Of a table or a folder"}
LabelColumns = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES|NUMBER",
        help="Columns of the views that are labels: names, comma-separated; of ARFF also how many: 6 the first six, "
        "-6 the last six, 0 none.",
        **_PANEL,
    ),
]
Id = Annotated[
    str | None,
    typer.Option(help="Column that names the samples in every table; the tables are joined by it.", **_PANEL),
]
TestShare = Annotated[
    float | None,
    typer.Option(help="Share of the samples that become the split test, every label with its share.", **_PANEL),
]
Text = Annotated[list[str] | None, typer.Option(help="Column of documents: a view of tf-idf rows.", **_PANEL)]
Labels = Annotated[
    str | None,
    typer.Option(
        help="File of 0/1 columns, of classes, of lists or of real targets; of images also 'folders'.", **_PANEL
    ),
]
OF_TABLE = {"labels": Labels, "label_columns": LabelColumns, "id": Id, "test_share": TestShare, "text": Text}
"""Options of what reads a table or a folder."""
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is at the output path.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print sizes and estimated seconds; write nothing.")]
Scheduler = Annotated[str | None, typer.Option(help=SCHEDULER)]
Split = Annotated[str | None, typer.Option(help="Samples to take: a split of the store, or 'all'.")]
Block = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Rows of a block, what is written and resumed (default: 1024, of many rows or rows of few numbers 4096).",
    ),
]
Model = Annotated[str, typer.Argument(help="Model store that dmo fit wrote.")]
Features = Annotated[str, typer.Argument(help="Feature store that dmo ingest wrote.")]
Given = Annotated[
    str,
    typer.Argument(help="Feature store, or a table, an archive or a folder: its store is made beside it."),
]
Top = Annotated[int | None, typer.Option(min=1, help="Labels per sample (default: the sets that the model learned).")]


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
