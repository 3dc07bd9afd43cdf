"""Table of all commands, and the Typer application that runs them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

import dmo
from dmo.cli.commands import START, Lazy, LazyGroup, lazy_group
from dmo.registry import REGISTRY
from dmo.workflows.program import terminable, told

COMMANDS = {
    "ingest": Lazy("dmo.cli.ingest:ingest_app", "Read feature files into a feature store."),
    "extract": Lazy(
        "dmo.cli.extract:extract_command",
        "Extract features from a folder of images: color, texture, gist and visual words.",
    ),
    "info": Lazy(
        "dmo.cli.info:info",
        "Show the contents, provenance and missing blocks of a store, or how a source of data is interpreted.",
    ),
    "verify": Lazy(
        "dmo.cli.info:verify",
        "Compare all blocks of a store with its manifest and checksums; exit with code 4 if there are problems.",
    ),
    "tune": Lazy("dmo.cli.app:tune", "Choose parameters by cross-validation and fit the best model."),
    "fit": Lazy("dmo.cli.app:fit", "Fit a model to the samples of a feature store."),
    "update": Lazy(
        "dmo.cli.suggest:update_command",
        "Refit a model with the labels that people assigned to suggested samples, or continue its incremental fit.",
    ),
    "methods": Lazy(
        "dmo.cli.info:methods_command",
        "List the methods of TraceEmbedding and MESD with their papers, engines, parameters and out-of-sample support.",
    ),
    "annotate": Lazy(
        "dmo.cli.apply:annotate",
        "Write the predicted labels of samples (default: the test split, else all) to a table or a result store.",
    ),
    "transform": Lazy(
        "dmo.cli.apply:transform",
        "Write the embedding of samples (default: all) to a result store or a table.",
    ),
    "search": Lazy(
        "dmo.cli.apply:search",
        "Find the samples of a store (default: all) that are nearest to an image, a sample, or labels.",
    ),
    "serve": Lazy(
        "dmo.cli.serve:serve",
        "Try a model on a local web page: drop images or rows, see labels and neighbors, correct and download labels.",
    ),
    "evaluate": Lazy(
        "dmo.cli.evaluate:evaluate",
        "Evaluate the predictions of a model on labeled samples (default: the test split, else all).",
    ),
    "report": Lazy(
        "dmo.cli.evaluate:report_command",
        "Write an HTML page on data, models and predictions (default: for the test split, else for all samples).",
    ),
    "suggest": Lazy(
        "dmo.cli.suggest:suggest",
        "List samples to label or check (default: all but test samples): uncertain, wrong, or unlike labeled samples.",
    ),
    "demo": Lazy(
        "dmo.cli.demo:demo",
        "Learn to annotate handwritten digits: ingest, fit, annotate, search, report, and a fit on a local Dask cluster.",
    ),
    "plan": Lazy(
        "dmo.cli.app:plan",
        "Show the memory and tasks of a fit with each engine, and which engine is selected and why; fits nothing.",
    ),
}
ESTIMATORS = {entry.command: entry.name for entry in REGISTRY.values()}
"""Class names of the estimators, by their names on the command line."""
TUNED = [entry.command for entry in REGISTRY.values() if entry.grid]


def _of_estimators(target: str, names: Iterable[str]) -> dict[str, Lazy]:
    return {name: Lazy(target, estimator=ESTIMATORS[name]) for name in names}


fit = lazy_group("dmo fit", COMMANDS["fit"].help, _of_estimators("dmo.cli.learn:fit_command", ESTIMATORS))
plan = lazy_group("dmo plan", COMMANDS["plan"].help, _of_estimators("dmo.cli.learn:plan_command", ESTIMATORS))
tune = lazy_group("dmo tune", COMMANDS["tune"].help, _of_estimators("dmo.cli.learn:tune_command", TUNED))


class Commands(LazyGroup):
    """Group of all commands, which prints user errors to standard error and exits with their exit codes."""

    path, entries, example = "dmo", COMMANDS, "dmo info FILE"

    def make_context(self, *args: Any, **given: Any) -> Any:
        with told("dmo"):
            return super().make_context(*args, **given)

    def invoke(self, ctx: Any) -> Any:
        with told("dmo", bool(ctx.params.get("debug"))), terminable():
            return super().invoke(ctx)


app = typer.Typer(
    name="dmo",
    cls=Commands,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Learn a label-aware embedding from many views of the same samples, and annotate new samples.",
    epilog=f"{START}\n\ndmo predict is another name of dmo annotate.",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(dmo.__version__)
        raise typer.Exit()


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Print the Python traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
