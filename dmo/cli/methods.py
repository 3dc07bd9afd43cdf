"""`dmo methods`: every embedding by name, with its paper."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from dmo.cli.options import Json
from dmo.cli.session import grid
from dmo.estimators import TraceEmbedding
from dmo.methods.catalogue import markdown


def methods_command(
    markdown_table: Annotated[bool, typer.Option("--markdown", help="Print the table in Markdown.")] = False,
    json_output: Json = False,
) -> None:
    """List the methods of TraceEmbedding and MESD: family, paper, engines, parameters, whether new rows get coordinates."""
    found = TraceEmbedding.methods()
    if json_output:
        print(json.dumps(found, indent=1, allow_nan=False))
    elif markdown_table:
        print(markdown(), end="")
    else:
        columns = ("method", "family", "paper", "engines", "parameters", "new rows")
        rows = [
            (
                row["name"] + (" (MESD)" if row["mesd"] else ""),
                row["family"],
                row["paper"],
                ", ".join(row["engines"]),
                ", ".join(row["parameters"]),
                "yes" if row["out_of_sample"] else "no",
            )
            for row in found
        ]
        grid(f"{len(found)} methods", columns, rows, numbers=False)
