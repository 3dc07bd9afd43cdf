"""The commands put together, and what an error looks like to a user: one sentence, exit code 2."""

from __future__ import annotations

import sys
import traceback
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import dmo
from dmo.cli.apply import annotate, transform
from dmo.cli.demo import demo
from dmo.cli.evaluate import evaluate
from dmo.cli.extract import extract_command
from dmo.cli.fit import embedding, fit_app, mlsi, morp
from dmo.cli.info import info, methods_command, verify
from dmo.cli.ingest import ingest_app
from dmo.cli.plan import plan_command
from dmo.cli.report import report_command
from dmo.cli.running import offer_run_options
from dmo.cli.search import search
from dmo.cli.tune import tune_app, tune_mlsi, tune_morp
from dmo.workflows import exits
from dmo.workflows.exits import sentence


class Commands(TyperGroup):
    """All commands; turns what a user can cause into one sentence on standard error and its exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with exits.terminable():
                return super().invoke(ctx)
        except (Exception, KeyboardInterrupt) as error:
            code = exits.code(error)
            if code is None or isinstance(error, BrokenPipeError):
                raise
            if ctx.params.get("debug"):
                traceback.print_exc()
            print(f"dmo: {sentence(error)}", file=sys.stderr)
            raise typer.Exit(code) from error


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
app.command()(verify)
app.command("plan")(plan_command)
app.command("methods")(methods_command)
for projection in (morp, mlsi, embedding):
    fit_app.command()(projection)
app.add_typer(fit_app, name="fit")
tune_app.command("morp")(tune_morp)
tune_app.command("mlsi")(tune_mlsi)
app.add_typer(tune_app, name="tune")
app.command()(transform)
app.command()(annotate)
app.command()(evaluate)
app.command()(search)
app.command("report")(report_command)
offer_run_options(app)
