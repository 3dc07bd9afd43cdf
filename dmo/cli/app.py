"""The commands put together, and what an error looks like to a user: one sentence, exit code 2."""

from __future__ import annotations

import sys
import traceback
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import dmo
from dmo.cli.apply import annotate, evaluate, transform
from dmo.cli.compare import plan_command
from dmo.cli.demo import demo
from dmo.cli.extract import extract_command
from dmo.cli.fit import fit_app
from dmo.cli.info import info
from dmo.cli.ingest import ingest_app
from dmo.cli.project import embedding, mlsi, morp, tune_mlsi, tune_morp
from dmo.cli.tune import tune_app

INTERRUPTED = 130


class Commands(TyperGroup):
    """All commands; turns what a user can cause into one sentence on standard error and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            _say("stopped; what is finished is kept, the same command goes on or starts again")
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            raise
        except (ValueError, OSError, MemoryError, ImportError) as error:
            if ctx.params.get("debug"):
                traceback.print_exc()
            _say(sentence(error))
            raise typer.Exit(2) from error


def sentence(error: BaseException) -> str:
    """An error as one line for people."""
    if isinstance(error, MemoryError):
        return f"not enough memory ({error}); take fewer views or samples, or --storage recomputed or stored"
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


def _say(text: str) -> None:
    print(f"dmo: {text}", file=sys.stderr)


app = typer.Typer(
    name="dmo",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Learn a label-aware space from many views of the same samples, and annotate new samples.",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(dmo.__version__)
        raise typer.Exit()


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Print Python's traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command()(demo)
app.add_typer(ingest_app, name="ingest")
app.command("extract")(extract_command)
app.command()(info)
app.command("plan")(plan_command)
for projection in (morp, mlsi, embedding):
    fit_app.command()(projection)
app.add_typer(fit_app, name="fit")
tune_app.command("morp")(tune_morp)
tune_app.command("mlsi")(tune_mlsi)
app.add_typer(tune_app, name="tune")
app.command()(transform)
app.command()(annotate)
app.command()(evaluate)


def main() -> None:
    """Entry point of the `dmo` command."""
    app()
