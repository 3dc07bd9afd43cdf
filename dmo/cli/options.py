"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from dmo.workflows.program import SCHEDULER

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is at the output path.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print sizes and estimated seconds; write nothing.")]
Scheduler = Annotated[str | None, typer.Option(help=SCHEDULER)]
Split = Annotated[str | None, typer.Option(help="Samples to take: a split of the store, or 'all'.")]
Block = Annotated[int, typer.Option(min=1, help="Rows of a block, the unit that is written and resumed.")]
Piece = Annotated[
    int | None,
    typer.Option(
        "--block", min=1, help="Rows of a block, what is written and resumed (default: 1024, of many rows 4096)."
    ),
]
Model = Annotated[str, typer.Argument(help="Model store that dmo fit wrote.")]
Features = Annotated[str, typer.Argument(help="Feature store that dmo ingest wrote.")]
Top = Annotated[int | None, typer.Option(min=1, help="Labels per sample (default: the sets that the model learned).")]
