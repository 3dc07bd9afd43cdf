"""The HTML report: one page, no network, images inside the page and beside it as PNG.

Jinja2 fills the template and escapes every text. A page has a script only where a table is to be sorted and filtered;
the page's policy allows that one script, by its hash, and no other.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dmo.errors import UserError
from dmo.report.numbers import decimals_of, is_number, shown
from dmo.stores import replace_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Table:
    """A table of the report.

    Parameters
    ----------
    caption : str
        Stands above it.
    columns : sequence of str
        Heads of the columns.
    rows : sequence of sequence
        One cell per column: text or numbers; None is shown as a dash.
    best : sequence of str, default=()
        Columns whose largest number is set in bold.
    note : str, default=""
        Stands below it.
    interactive : bool, default=False
        It sorts by a column when its head is pressed, and shows the rows that hold the text typed above it.

    Examples
    --------
    >>> from dmo.report import Table
    >>> Table("Scores", ["method", "F1"], [["KGHA", 0.376], ["ridge", 0.331]], best=["F1"]).columns
    ['method', 'F1']
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    best: Sequence[str] = ()
    note: str = ""
    interactive: bool = False


@dataclass(frozen=True)
class PageFigure:
    """A figure of the report.

    Parameters
    ----------
    name : str
        Names its PNG: letters, digits, - and _.
    figure : matplotlib.figure.Figure
        The figure.
    caption : str
        Stands below it.
    alt : str, default=""
        Describes it to those who do not see it; "": the caption.

    Examples
    --------
    >>> from dmo.report import PageFigure, heat_map
    >>> PageFigure("scores", heat_map([[0.3, 0.4]], ["KGHA"], ["F1", "AUC"]), "Scores of a model.").name
    'scores'
    """

    name: str
    figure: Figure
    caption: str
    alt: str = ""


def write_report(
    path: str | Path,
    title: str,
    tables: Sequence[Table] = (),
    figures: Sequence[PageFigure] = (),
    facts: Mapping[str, object] | None = None,
    lead: str = "",
) -> list[Path]:
    """Write one HTML file that needs nothing else, and every figure as NAME.png in the same folder.

    All text is escaped. Files are replaced whole.

    Parameters
    ----------
    path : path-like
        The HTML file; its folder is made.
    title : str
        Heading of the page.
    tables : sequence of Table, default=()
        Tables, in order.
    figures : sequence of PageFigure, default=()
        Figures, below the tables.
    facts : mapping of str to object, default=None
        Name -> value, shown as a strip above the tables.
    lead : str, default=""
        A sentence below the title.

    Returns
    -------
    list of Path
        What was written, the HTML file first.

    Raises
    ------
    UserError
        For a row that does not fit its columns, a `best` column that does not exist, and figure names that repeat or are no
        file names.

    Examples
    --------
    >>> from dmo.report import Table, write_report
    >>> table = Table("Scores", ["method", "F1"], [["KGHA", 0.376], ["ridge", 0.331]], best=["F1"])
    >>> [path.name for path in write_report("report.html", "Corel5k", [table], facts={"samples": 4999})]
    ['report.html']
    """
    path = Path(path)
    _check_names([entry.name for entry in figures])
    images = {path.parent / f"{entry.name}.png": _png(entry.figure) for entry in figures}
    interactive = any(table.interactive for table in tables)
    script = Markup(_environment().get_template("tables.js").render() if interactive else "")
    page = (
        _environment()
        .get_template("page.html")
        .render(
            title=title,
            lead=lead,
            facts={name: shown(value) for name, value in (facts or {}).items()},
            tables=[_table(table) for table in tables],
            figures=[
                {"png": base64.b64encode(png).decode(), "alt": entry.alt or entry.caption, "caption": entry.caption}
                for entry, png in zip(figures, images.values())
            ],
            script=script,
            script_hash="sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
    )
    for target, content in {**images, path: page.encode("utf-8", "replace")}.items():
        replace_file(target, content)
    return [path, *images]


@cache
def _environment() -> Environment:
    loader = PackageLoader("dmo.report")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise UserError(f"figure name {name!r} is not a file name; use letters, digits, - and _")
        if names.count(name) > 1:
            raise UserError(f"two figures are called {name!r}; give each its own name")


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _table(table: Table) -> dict[str, object]:
    """The table as the template takes it: column by column, cells as text."""
    names = list(table.columns)
    for i, row in enumerate(table.rows):
        if len(row) != len(names):
            raise UserError(f"table {table.caption!r}: row {i} has {len(row)} cells, need {len(names)}, one a column")
    for name in table.best:
        if name not in names:
            raise UserError(f"table {table.caption!r}: no column {name!r} to mark the best of; it has {names}")
    columns = [_column(name, [row[c] for row in table.rows], name in table.best) for c, name in enumerate(names)]
    return {
        "caption": table.caption,
        "note": table.note,
        "interactive": table.interactive,
        "columns": columns,
        "rows": range(len(table.rows)),
    }


def _column(name: str, values: Sequence[object], mark: bool) -> dict[str, object]:
    """Numbers stand to the right, all of a column with the same decimals; `best` holds the rows to set in bold."""
    numbers = np.array([float(value) if is_number(value) else np.nan for value in values])
    finite = numbers[np.isfinite(numbers)]
    if not finite.size:
        return {"name": name, "numeric": False, "cells": [shown(value) for value in values], "best": ()}
    form = ".2e" if 0 < np.abs(finite).max() < 1e-3 else f",.{decimals_of(finite)}f"
    cells = [format(number, form) if np.isfinite(number) else shown(v) for v, number in zip(values, numbers)]
    best = np.flatnonzero(numbers == finite.max()).tolist() if mark else ()
    return {"name": name, "numeric": True, "cells": cells, "best": best}
