"""`dmo suggest`: the samples whose labels are worth a look, for annotation tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dmo.cli.options import Features, Json, Model, Overwrite, Split
from dmo.cli.session import grid, show
from dmo.errors import UserError
from dmo.workflows.apply import ALL, SCORES, open_applied, write_csv
from dmo.workflows.program import session
from dmo.workflows.suggest import KINDS, as_csv, as_label_studio, suggestions


def suggest(
    model: Model,
    features: Features,
    out: Annotated[
        Path | None, typer.Argument(help="File to write: .json for Label Studio, .csv for FiftyOne.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Samples of each kind.")] = 10,
    kind: Annotated[str, typer.Option(help="What to look for, comma-separated.")] = ",".join(KINDS),
    prefix: Annotated[str, typer.Option(help="What comes before an id in the address of an image.")] = "",
    split: Split = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """List the samples (default: all) whose labels are worth a look: uncertain, probably wrong, unlike the labeled ones."""
    kinds = [part.strip() for part in kind.split(",") if part.strip()]
    unknown = [part for part in kinds if part not in KINDS]
    if unknown or not kinds:
        raise UserError(f"--kind {kind!r}: known are {', '.join(KINDS)}")
    if out is not None and out.suffix not in (".json", ".csv"):
        raise UserError(f"{out}: pass a name that ends with .json (Label Studio) or .csv (FiftyOne)")
    with session(json) as run:
        applied = open_applied(model, features, split, ALL, SCORES)
        found = suggestions(applied, count, kinds)
        if out is not None:
            text = as_csv(found, prefix) if out.suffix == ".csv" else as_label_studio(found, prefix, model)
            write_csv(out, text, overwrite)
        record: dict[str, Any] = {"model": model, "store": features, "split": applied.split, "n_samples": applied.n}
        record |= {"suggested": found} | ({} if out is None else {"out": str(out)}) | run.costs()
    if not json:
        cells = [
            [
                row["sample"],
                row["why"],
                f"{row['value']:.3f}",
                ", ".join(row["labels"]),
                ", ".join(row.get("doubts", [])),
            ]
            for row in found
        ]
        grid("worth a look", ["sample", "why", "value", "likeliest labels", "doubtful labels"], cells, numbers=False)
    if json:
        show(record, [], "", json)
