"""`dmo report`: data, models and their annotations on one HTML page, with the same figures as PNG."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from dmo import stores
from dmo.cli.options import Split, Top
from dmo.cli.session import cost_rows, in_a_line, show
from dmo.errors import UserError
from dmo.workflows.program import session

_PATHS = (
    "A model, a feature store with labels, and the HTML file to write (default: report.html); its charts come beside "
)
_PATHS += (
    "it as PNG. With --compare two or more models, or scores and labels that dmo annotate wrote, in the place of one."
)


def report_command(
    paths: Annotated[list[str], typer.Argument(metavar="MODEL [FEATURES] [OUT.html]", help=_PATHS)],
    compare: Annotated[
        bool, typer.Option("--compare", help="Say how models differ: MODEL MODEL [MODEL ...] [FEATURES] [OUT.html].")
    ] = False,
    sweep: Annotated[list[str] | None, typer.Option(help="A file with the output of dmo tune --json; repeat.")] = None,
    top: Top = None,
    split: Split = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    jec: Annotated[bool, typer.Option("--jec", help="Compare with nearest training samples (JEC) too.")] = False,
) -> None:
    """Show data, models and annotations (default: of the test split, else of all samples) on one HTML page.

    Without a feature store the one that the model was fitted on is taken.
    """
    with session() as run:
        models, features, out = _places(paths, compare)
        from dmo.workflows.evaluation import trained_on  # after what is refused, which needs no estimators
        from dmo.workflows.report_page import read_sweep, write_page

        sweeps = [read_sweep(path) for path in sweep or ()]
        given = {"--top": top, "--split": split, "--title": title}
        words = ["dmo", "report", *(["--compare"] if compare else []), *paths]
        words += [word for name, value in given.items() if value is not None for word in (name, str(value))]
        words += [word for path in sweep or () for word in ("--sweep", path)] + (["--jec"] if jec else [])
        record = write_page(
            run, models, features, Path(out), top=top, split=split, title=title, sweeps=sweeps, jec=jec,
            command=shlex.join(words),
        )  # fmt: skip
        record |= run.costs()
    rows = [
        (name + trained_on(m), f"F1 {100 * m['f1']:.1f} %" if "f1" in m else f"R2 {m['r2']:.4g}")
        for name, m in record["methods"].items()
    ]
    line = in_a_line(record, out, *(f"{name} {value}" for name, value in rows))
    rows += [("report", path) for path in record["report"]]
    show(record, [*rows, *cost_rows(record)], f"report on {features}", line)


def _places(paths: list[str], compare: bool) -> tuple[list[str], str, str]:
    """Models, feature store and page, told apart by what they are; the page by its ending or as the third of three."""
    *rest, last = paths
    named = (not compare and len(rest) == 2) or Path(last).suffix.lower() in (".html", ".htm")
    rest, out = (rest, last) if named else ([*rest, last], "report.html")
    kinds = [stores.describe(path)["kind"] for path in rest]
    given = [path for path, kind in zip(rest, kinds) if kind == "features"]
    models = [path for path, kind in zip(rest, kinds) if kind != "features"]
    if len(given) > 1 or not models or (len(models) > 1) != compare:
        needed = "two models or more" if compare else "one model (several with --compare)"
        raise UserError(
            f"report: got {len(models)} models or results and {len(given)} feature stores; pass {needed}, a feature store, "
            "and a page that ends in .html"
        )
    return models, given[0] if given else _fitted_on(models[0]), out


def _fitted_on(model: str) -> str:
    """The feature store that a model was fitted on, or scores were made from, as it says itself."""
    parents = stores.describe(model)["provenance"]["parents"]
    for path in reversed(parents):
        try:
            if stores.describe(path)["kind"] == "features":
                return path
        except (FileNotFoundError, stores.StoreError):
            continue
    raise UserError(f"report: the feature store that {model} was made from is not there any more; pass one with labels")
