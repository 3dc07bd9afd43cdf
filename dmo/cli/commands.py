"""Groups of commands whose modules are imported when a command is called (`dmo --help` imports none); their common options."""

from __future__ import annotations

import csv
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from dmo.cli.options import keyword
from dmo.errors import UserError, meant
from dmo.workflows.program import FLAGS, HELP, SCHEDULER, RunOptions, running


@dataclass(frozen=True)
class Lazy:
    """A command to be: `target` is MODULE:NAME of a function (or of a group), or with `estimator` of what makes one
    for this class; `help` is the first sentence of the function's docstring."""

    target: str
    help: str = ""
    estimator: str | None = None

    @property
    def text(self) -> str:
        """The help, which is found for estimators as their options are."""
        from dmo.cli.estimator_options import surfaces

        return self.help if self.estimator is None else surfaces()[self.estimator].text

    def load(self) -> Any:
        """The function, or the group."""
        module, _, name = self.target.partition(":")
        found = getattr(import_module(module), name)
        return found if self.estimator is None else found(self.estimator)


PANELS = {
    "Data": ("ingest", "extract", "info", "verify"),
    "Learn": ("tune", "fit", "update", "methods"),
    "Use": ("annotate", "transform", "search", "serve"),
    "Look": ("evaluate", "report", "suggest", "demo"),
    "Work on a cluster": ("plan",),
    "Start here": ("ridge",),
    "Labels by kernels": ("kgha", "lltsvr", "coupledsvr", "fasttag"),
    "Labels by neighbors": ("neighborvotes", "tagprop", "twopassknn", "jec", "labelpropagation"),
    "A space of the samples": ("multisetcca", "morp", "mlsi", "embedding", "mope", "mesd", "homogeneityanalysis"),
}
"""Headings of the help, and what stands below them."""
START = "Start with: dmo tune ridge TABLE.csv MODEL.zarr --label-columns NAME"
"""What whoever chooses among commands or models is told."""
ALIASES = {"predict": "annotate"}
"""Second names of commands."""


class CommandFirst(TyperGroup):
    """A group that says how it is called (`example`, FILE in it) where a file or another name stands for a command's."""

    example: ClassVar[str]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and Path(args[0]).suffix:
            ctx.fail(f"{args[0]!r} is a file, and a command comes first: {self.example.replace('FILE', args[0])}")
        if args and args[0] not in self.commands and ALIASES.get(args[0]) in self.commands:
            args = [ALIASES[args[0]], *args[1:]]
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            near = meant(args[0], self.commands)
            known = f"known are {', '.join(self.commands)}" if near is None else f"did you mean {near!r}?"
            ctx.fail(f"No such command {args[0]!r}; {known}")
        return super().resolve_command(ctx, args)


class LazyGroup(CommandFirst):
    """`entries` by name. The commands of the group are stand-ins with a help text, until one is resolved."""

    path: ClassVar[str]
    entries: ClassVar[Mapping[str, Lazy]]

    def __init__(self, **given: Any):
        super().__init__(**given)
        panels = {name: panel for panel, names in PANELS.items() for name in names}
        self.commands = {
            name: TyperCommand(name, help=entry.text, rich_help_panel=panels.get(name))
            for name, entry in self.entries.items()
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, stand_in, rest = super().resolve_command(ctx, args)
        if name is None or stand_in is None:
            return name, stand_in, rest
        return name, command_of(self.entries[name], f"{self.path} {name}"), rest


@functools.cache
def command_of(entry: Lazy, program: str) -> Any:
    """The command of an entry, with the options that every run has; `program`: what it is called in a log."""
    found, name = entry.load(), program.rpartition(" ")[2]
    if isinstance(found, typer.Typer):
        for command in found.registered_commands:  # a lazy group has none, its commands come here when they are loaded
            command.callback = offering(command.callback, f"{program} {command.name}")
        return typer.main.get_command(found)
    made = typer.Typer(add_completion=False)
    made.command(name)(offering(found, program))
    return typer.main.get_command(made)


def lazy_group(path: str, text: str, entries: Mapping[str, Lazy]) -> typer.Typer:
    """The group of commands `path NAME` of these entries."""
    example = f"{path} {next(iter(entries))} FILE"
    kind = type("Group", (LazyGroup,), {"path": path, "entries": entries, "example": example})
    made = typer.Typer(cls=kind, no_args_is_help=True, add_completion=False, help=text, epilog=START)
    made.callback()(lambda: None)  # a group does nothing by itself
    return made


_ANYWHERE = ("log", *FLAGS)
"""Options of commands that run in this process alone."""


def offering(callback: Any, program: str) -> Callable[..., Any]:
    """`callback` with the parameters of `RunOptions` added to its own: those of workers where it says where it runs."""
    own = inspect.signature(callback, eval_str=True).parameters
    added = [_parameter(name) for name in HELP if name in _ANYWHERE or "scheduler" in own]

    @functools.wraps(callback)
    def command(*args: Any, **given: Any) -> Any:
        options = RunOptions(**{p.name: given.pop(p.name) for p in added})
        with running(options, program):
            return callback(*args, **given)

    del command.__wrapped__  # type: ignore[attr-defined]
    return signed(command, [*own.values(), *added])


def signed(command: Callable[..., Any], parameters: Sequence[inspect.Parameter]) -> Callable[..., Any]:
    """`command` as a function of these parameters."""
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def _parameter(name: str) -> inspect.Parameter:
    """An option of every run."""
    flag, kind = name in FLAGS, int if name in ("workers", "worker_threads") else str
    short = [f"-{name[0]}"] if name in FLAGS[1:] else []
    about = typer.Option(f"--{name.replace('_', '-')}", *short, help=HELP[name], rich_help_panel="Run")
    annotation: Any = Annotated[bool, about] if flag else Annotated[kind | None, about]
    return keyword(name, annotation, default=False if flag else None)


_PANEL = {"rich_help_panel": "Of a table or a folder"}
LabelColumns = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Columns of the views that are labels: names or patterns such as 'tag_*', comma-separated.",
        **_PANEL,
    ),
]
LabelCount = Annotated[
    int | None,
    typer.Option(help="Labels of an ARFF file: 6 the first six columns, -6 the last six, 0 none.", **_PANEL),
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
Separator = Annotated[
    str | None,
    typer.Option(help="Mark between the labels of a sample (default: | ; , or a space, as recognized).", **_PANEL),
]
Types = Annotated[
    list[str] | None,
    typer.Option(
        "--type",
        metavar="COLUMN=KIND",
        help="Type of a column instead of the one found: number, boolean, category, date, text, identifier, labels.",
        **_PANEL,
    ),
]
Missing = Annotated[
    list[str] | None,
    typer.Option(metavar="VALUE", help="Cell that is missing, such as -999, besides the usual marks.", **_PANEL),
]
Decimal = Annotated[
    str | None,
    typer.Option(metavar=".|,", help="Decimal mark; the other one groups thousands (default: found).", **_PANEL),
]
Delimiter = Annotated[
    str | None, typer.Option(help="Character between fields of text, or 'tab' (default: found).", **_PANEL)
]
Header = Annotated[
    bool | None,
    typer.Option("--header/--no-header", help="The first line holds names, or a sample (default: found).", **_PANEL),
]
RowNames = Annotated[
    bool | None,
    typer.Option(
        "--row-names", help="The first column of every table names the samples and joins the tables.", **_PANEL
    ),
]
DropColumns = Annotated[
    list[str] | None,
    typer.Option(metavar="NAMES", help="Columns to leave out: names or patterns, comma-separated.", **_PANEL),
]
OF_READING = {
    "types": Types,
    "missing": Missing,
    "decimal": Decimal,
    "delimiter": Delimiter,
    "header": Header,
    "row_names": RowNames,
    "drop_columns": DropColumns,
    "separator": Separator,
}
"""Options that say how a table is read, in training or later."""
OF_TABLE = {
    "labels": Labels,
    "label_columns": LabelColumns,
    "label_count": LabelCount,
    "id": Id,
    "test_share": TestShare,
    "text": Text,
    **OF_READING,
}
"""Options of what reads a table or a folder."""
OF_ROWS = ("labels", "label_columns", "label_count", "id", *OF_READING)
"""Options of what reads files of rows with labels for a fitted model."""
FLAG_OF = {"types": "type"}
"""Options whose flag is not their name."""


def names_in(text: str) -> list[str]:
    """Split names at commas; a name with a comma is quoted as in CSV."""
    return [name.strip() for name in next(csv.reader([text], skipinitialspace=True), []) if name.strip()]


def table_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `read_samples` and `ingest_files` from the options of a table; those that were not passed are left out."""
    asked = {key: given[key] for key in OF_TABLE if given.get(key) is not None}
    columns, count = asked.pop("label_columns", None), asked.pop("label_count", None)
    if sum(value is not None for value in (columns, count, asked.get("labels"))) > 1:
        raise UserError("pass one of --labels, --label-columns and --label-count")
    if columns is not None or count is not None:
        asked["labels"] = count if columns is None else names_in(columns)
    if "types" in asked:
        asked["types"] = dict(_column_type(entry) for entry in asked["types"])
    if "drop_columns" in asked:
        asked["drop_columns"] = [name for entry in asked["drop_columns"] for name in names_in(entry)]
    if asked.get("delimiter") in ("tab", "\\t"):
        asked["delimiter"] = "\t"
    return asked


def with_reading(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of files of rows with labels, for its **given."""
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "given"]
    known = [p.name for p in own]
    return signed(command, [*own, *(keyword(key, OF_TABLE[key]) for key in OF_ROWS if key not in known)])


def words_of(name: str, value: Any) -> list[str]:
    """Write an option as it is passed on the command line; nothing if its value is None."""
    flag = FLAG_OF.get(name, name).replace("_", "-")
    if value is None or isinstance(value, bool):
        return [] if value is None else [f"--{flag}" if value else f"--no-{flag}"]
    return [word for one in (value if isinstance(value, list) else [value]) for word in (f"--{flag}", str(one))]


def _column_type(entry: str) -> tuple[str, str]:
    name, equals, kind = entry.rpartition("=")
    if not (name and equals and kind):
        raise UserError(f"--type {entry}: expected COLUMN=KIND, such as code=category")
    return name, kind


Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is at the output path.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print sizes; write nothing.")]
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
Features = Annotated[str, typer.Argument(help="Feature store that dmo ingest wrote, or files of rows.")]
Given = Annotated[
    str,
    typer.Argument(
        help="Feature store; or arrays in files or shards, which are read in place; or a table, an archive or a folder: its "
        "store is made beside it."
    ),
]
Unreadable = Annotated[
    Literal["skip", "refuse"], typer.Option(help="Files that are no images, damaged or too large: skip or refuse.")
]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads that describe images (default: one a core).")]
Top = Annotated[int | None, typer.Option(min=1, help="Labels per sample (default: the sets that the model learned).")]
