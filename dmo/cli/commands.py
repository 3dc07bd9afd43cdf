"""Command groups that import the modules of commands on first use, and options that several commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import typer
from typer.core import TyperCommand

from dmo.cli.estimator_options import surfaces
from dmo.cli.help_pages import RUN, TABLES, HelpGroup, HelpPage
from dmo.cli.options import keyword
from dmo.errors import UserError, meant
from dmo.registry import REGISTRY
from dmo.workflows.program import FLAGS, HELP, SCHEDULER, RunOptions, names_in, running


@dataclass(frozen=True)
class Lazy:
    """Command that is imported when it is called, so that `dmo --help` is fast.

    `target` is the MODULE:NAME of a function, a group, or a factory that creates the command of an `estimator`.
    """

    target: str
    help: str = ""
    estimator: str | None = None

    @property
    def text(self) -> str:
        """Help text of the command, which is the docstring summary for commands of estimators."""
        return self.help if self.estimator is None else surfaces()[self.estimator].text

    def load(self) -> Any:
        """Import the function or the group of the command."""
        module, _, name = self.target.partition(":")
        found = getattr(import_module(module), name)
        return found if self.estimator is None else found(self.estimator)


PANELS = {
    "Data": ("ingest", "extract", "info", "verify"),
    "Learn": ("tune", "fit", "update", "methods"),
    "Use": ("annotate", "transform", "search", "serve"),
    "Look": ("evaluate", "report", "suggest", "demo"),
    "Work on a cluster": ("plan",),
}
"""Commands below each heading of `dmo --help`."""
START = "Start with: dmo tune ridge TABLE.csv MODEL.zarr --label-columns NAME"
"""Advice that is shown below the list of commands and below the list of methods."""
ALIASES = {"predict": "annotate"}
"""Names of commands by their alternative names."""


class CommandFirst(HelpGroup):
    """Command group whose error message shows a correct call (`example`) if a file is passed instead of a command."""

    example: ClassVar[str]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and Path(args[0]).suffix:
            ctx.fail(f"{args[0]!r} is a file, and a command comes first: {self.example.replace('FILE', args[0])}")
        if args and args[0] not in self.commands and ALIASES.get(args[0]) in self.commands:
            args = [ALIASES[args[0]], *args[1:]]
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            near = meant(args[0], self.commands)
            known = f"the commands are {', '.join(self.commands)}" if near is None else f"did you mean {near!r}?"
            ctx.fail(f"No such command {args[0]!r}; {known}")
        return super().resolve_command(ctx, args)


class LazyGroup(CommandFirst):
    """Command group that knows only the help texts of its commands until a command is called."""

    path: ClassVar[str]
    entries: ClassVar[Mapping[str, Lazy]]

    def __init__(self, **given: Any):
        super().__init__(**given)
        panels = {name: panel for panel, names in PANELS.items() for name in names}
        panels |= {entry.command: entry.panel for entry in REGISTRY.values()}
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
    """Create the command of an entry with the options that all commands share; `program` is its name in logs."""
    found, name = entry.load(), program.rpartition(" ")[2]
    if isinstance(found, typer.Typer):
        for command in found.registered_commands:  # A lazily loaded group has no registered commands.
            command.callback = offering(command.callback, f"{program} {command.name}")
            command.cls = HelpPage
        return typer.main.get_command(found)
    made = typer.Typer(add_completion=False)
    made.command(name, cls=HelpPage if entry.estimator is None else _help_page(entry.estimator))(
        offering(found, program)
    )
    return typer.main.get_command(made)


def _help_page(estimator: str) -> type[HelpPage]:
    """Create a help page class for the commands of an estimator."""
    found = surfaces()[estimator]
    return type(
        "EstimatorHelp", (HelpPage,), {"estimator": estimator, "options": found.options, "engines": found.engines}
    )


def lazy_group(path: str, text: str, entries: Mapping[str, Lazy]) -> typer.Typer:
    """Create a group of lazily imported commands; `path` is the name of the group, such as "dmo fit"."""
    example = f"{path} {next(iter(entries))} FILE"
    kind = type("Group", (LazyGroup,), {"path": path, "entries": entries, "example": example})
    made = typer.Typer(cls=kind, no_args_is_help=True, add_completion=False, help=text, epilog=START)
    made.callback()(lambda: None)  # Typer requires that a group has a callback.
    return made


_ANYWHERE = ("log", *FLAGS)
"""Run options of commands without a Dask scheduler."""


def offering(callback: Any, program: str) -> Callable[..., Any]:
    """Add the options of `RunOptions` to a command; commands without a `scheduler` parameter get no worker options."""
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
    """Set the signature of a command to the given parameters."""
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def _parameter(name: str) -> inspect.Parameter:
    """Create the typer parameter of a command for one field of `RunOptions`."""
    flag, kind = name in FLAGS, int if name in ("workers", "worker_threads") else str
    short = [f"-{name[0]}"] if name in FLAGS[1:] else []
    about = typer.Option(f"--{name.replace('_', '-')}", *short, help=HELP[name], rich_help_panel=RUN)
    annotation: Any = Annotated[bool, about] if flag else Annotated[kind | None, about]
    return keyword(name, annotation, default=False if flag else None)


_PANEL = {"rich_help_panel": TABLES}
LabelColumns = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Names or patterns of label columns, such as 'tag_*'. Separate several names by commas.",
        **_PANEL,
    ),
]
LabelCount = Annotated[
    int | None,
    typer.Option(
        help="Number of label columns of an ARFF file. A negative number selects the last columns, and 0 selects none.",
        **_PANEL,
    ),
]
Id = Annotated[
    str | None,
    typer.Option(
        help="Column with sample ids, by which tables are joined. Every table must have this column.", **_PANEL
    ),
]
TestShare = Annotated[
    float | None,
    typer.Option(help="Fraction of samples for the split 'test'. The split is stratified by labels.", **_PANEL),
]
Text = Annotated[list[str] | None, typer.Option(help="Column of documents, converted to a tf-idf view.", **_PANEL)]
Labels = Annotated[
    str | None,
    typer.Option(
        help="File of labels, or 'folders' for images. The file has 0/1 columns, classes, label lists or real targets.",
        **_PANEL,
    ),
]
Separator = Annotated[
    str | None,
    typer.Option(
        help="Separator of labels in a cell (default: detected). Detected separators are | ; , and space.", **_PANEL
    ),
]
Types = Annotated[
    list[str] | None,
    typer.Option(
        "--type",
        metavar="COLUMN=KIND",
        help="COLUMN=KIND: type of a column, such as code=category. Kinds: number, boolean, category, date, text, "
        "identifier, labels. By default, types are detected.",
        **_PANEL,
    ),
]
Missing = Annotated[
    list[str] | None,
    typer.Option(metavar="VALUE", help="Additional cell value that means missing, such as -999.", **_PANEL),
]
Decimal = Annotated[
    str | None,
    typer.Option(
        metavar=".|,", help="Decimal mark, . or , (default: detected). The other mark groups thousands.", **_PANEL
    ),
]
Delimiter = Annotated[
    str | None,
    typer.Option(help="Field separator, or 'tab' (default: detected). The option applies to text files.", **_PANEL),
]
Header = Annotated[
    bool | None,
    typer.Option("--header/--no-header", help="The first line has column names (default: detected).", **_PANEL),
]
RowNames = Annotated[
    bool | None,
    typer.Option(
        "--row-names", help="The first column of every table has the sample ids. Tables are joined by it.", **_PANEL
    ),
]
DropColumns = Annotated[
    list[str] | None,
    typer.Option(metavar="NAMES", help="Columns to ignore: names or patterns, comma-separated.", **_PANEL),
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
"""Options for reading tables, both for training and for prediction."""
OF_TABLE = {
    "labels": Labels,
    "label_columns": LabelColumns,
    "label_count": LabelCount,
    "id": Id,
    "test_share": TestShare,
    "text": Text,
    **OF_READING,
}
"""Options of commands that read training data from a table or a folder."""
OF_ROWS = ("labels", "label_columns", "label_count", "id", *OF_READING)
"""Options of commands that read labeled data files for a fitted model."""
FLAG_OF = {"types": "type"}
"""Flags that differ from their parameter names, by parameter name."""


def table_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Convert command-line options for tables to keyword arguments of `read_samples` and `ingest_files`."""
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
    """Replace the parameter **given of a command with the options for labeled data files."""
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "given"]
    known = [p.name for p in own]
    return signed(command, [*own, *(keyword(key, OF_TABLE[key]) for key in OF_ROWS if key not in known)])


def words_of(name: str, value: Any) -> list[str]:
    """Format an option as the words of a command line, or as no words if its value is None."""
    flag = FLAG_OF.get(name, name).replace("_", "-")
    if value is None or isinstance(value, bool):
        return [] if value is None else [f"--{flag}" if value else f"--no-{flag}"]
    return [word for one in (value if isinstance(value, list) else [value]) for word in (f"--{flag}", str(one))]


def _column_type(entry: str) -> tuple[str, str]:
    name, equals, kind = entry.rpartition("=")
    if not (name and equals and kind):
        raise UserError(f"--type {entry}: expected COLUMN=KIND, such as code=category")
    return name, kind


Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing output.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print sizes; write nothing.")]
Scheduler = Annotated[str | None, typer.Option(help=SCHEDULER)]
Split = Annotated[str | None, typer.Option(help="Split of the store to use, or 'all'.")]
Block = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Rows per block, the unit of writing and resuming. Default: 1024, or 4096 for many or narrow rows.",
    ),
]
Model = Annotated[str, typer.Argument(help="Model store written by dmo fit.")]
Features = Annotated[str, typer.Argument(help="Feature store written by dmo ingest, or data files.")]
Given = Annotated[
    str,
    typer.Argument(
        help="Feature store, or array files or shards, which are read in place. Tables, archives and folders are "
        "converted to a store next to them."
    ),
]
Unreadable = Annotated[
    Literal["skip", "refuse"],
    typer.Option(help="Skip or refuse unreadable images. Such files are damaged, too large or not images."),
]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads that describe images (default: one per core).")]
Top = Annotated[int | None, typer.Option(min=1, help="Labels per sample (default: the label sets of predict).")]
