"""Options and arguments that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from dmo.workflows.program import SCHEDULER


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
