"""`dmo verify`: whether a store is whole."""

from __future__ import annotations

from typing import Annotated

import typer

from dmo import stores
from dmo.cli.exits import DAMAGED
from dmo.cli.options import Json
from dmo.cli.session import grid, session, show


def verify(
    path: Annotated[str, typer.Argument(help="A store of any kind: features, kernel, rows, model.")],
    repair: Annotated[
        bool, typer.Option("--repair", help="Open a damaged store again: what made it then writes the bad blocks anew.")
    ] = False,
    json: Json = False,
) -> None:
    """Read a whole store, compare it with its manifest and checksums; exit code 4 where something is wrong."""
    with session(json):
        problems = stores.verify(path)
        reopened = stores.reopen(path) if repair and problems else None
    record = {"path": path, "whole": not problems, "problems": problems, "reopened_blocks": reopened}
    if json or not problems:
        show(record, [("state", "whole: every block is there and has its checksum")], path, json)
    else:
        grid(path, ["problem"], [[problem] for problem in problems], numbers=False)
        if reopened is not None:
            print(f"{reopened} blocks are marked as missing; run what made the store again, it writes only these")
    if problems:
        raise typer.Exit(DAMAGED)
