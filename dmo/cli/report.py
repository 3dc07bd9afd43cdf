"""`dmo report`: data, models and their annotations on one HTML page, with the same figures as PNG."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dmo.cli.options import Features, Json, Model, Split, Top
from dmo.cli.session import cost_rows, in_a_line, show
from dmo.workflows.evaluation import trained_on
from dmo.workflows.program import session
from dmo.workflows.report_page import read_sweep, write_page


def report_command(
    model: Model,
    features: Features,
    out: Annotated[str, typer.Argument(help="HTML file to write; the figures come beside it as PNG.")] = "report.html",
    against: Annotated[list[str] | None, typer.Option(help="Another model to compare with; repeat.")] = None,
    sweep: Annotated[list[str] | None, typer.Option(help="A file with the output of dmo tune --json; repeat.")] = None,
    top: Top = None,
    split: Split = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    jec: Annotated[bool, typer.Option("--jec", help="Compare with nearest training samples (JEC) too.")] = False,
    json: Json = False,
) -> None:
    """Show data, models and annotations (default: of the test split, else of all samples) on one HTML page."""
    with session(json) as run:
        paths = [model, *(against or ())]
        sweeps = [read_sweep(path) for path in sweep or ()]
        record = write_page(run, paths, features, Path(out), top=top, split=split, title=title, sweeps=sweeps, jec=jec)
        record |= run.costs()
    rows = [
        (name + trained_on(m), f"F1 {100 * m['f1']:.1f} %" if "f1" in m else f"R2 {m['r2']:.4g}")
        for name, m in record["methods"].items()
    ]
    line = in_a_line(record, run.verbose, out, *(f"{name} {value}" for name, value in rows))
    rows += [("report", path) for path in record["report"]]
    show(record, [*rows, *cost_rows(record, run.verbose)], f"report on {features}", json, line)
