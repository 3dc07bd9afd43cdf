"""The HTML report: one page, no network, images inside the page and beside it as PNG.

A page has a script only where a table is to be sorted and filtered; the page's policy allows that one script, by its
hash, and no other.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dmo.errors import UserError
from dmo.report.numbers import decimals_of, is_number, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Table:
    """A table of the report: `rows` of one cell per column (text or numbers; None is shown as a dash).

    The largest number of each column named in `best` is set in bold; `note` stands below. An `interactive` table sorts
    by a column when its head is pressed, and shows the rows that hold the text typed above it.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    best: Sequence[str] = ()
    note: str = ""
    interactive: bool = False


@dataclass(frozen=True)
class PageFigure:
    """A figure of the report: `name` (letters, digits, - and _) names its PNG; `alt` describes it, or the caption."""

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

    Arguments: `path` of the HTML file, its folder is made; `title`; `tables`; `figures`; `facts` name -> value, shown
    as a strip above the tables; `lead`, a sentence below the title. All text is escaped. Files are replaced whole.
    Returns the paths written, the HTML file first. Raises ValueError for a row that does not fit its columns, a `best`
    column that does not exist, and figure names that repeat or are not file names.
    """
    path = Path(path)
    names = [entry.name for entry in figures]
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise UserError(f"figure name {name!r} is not a file name; use letters, digits, - and _")
        if names.count(name) > 1:
            raise UserError(f"two figures are called {name!r}; give each its own name")
    parts = [f"<h1>{_text(title)}</h1>", f"<p class=lead>{_text(lead)}</p>" if lead else ""]
    if facts:
        tiles = "".join(f"<div><dt>{_text(k)}</dt><dd>{_text(shown(v))}</dd></div>" for k, v in facts.items())
        parts.append(f"<dl>{tiles}</dl>")
    parts += [_table(table) for table in tables]
    images = {path.parent / f"{entry.name}.png": _png(entry.figure) for entry in figures}
    if figures:
        cards = (_card(entry, image) for entry, image in zip(figures, images.values()))
        parts.append(f"<div class=figures>{''.join(cards)}</div>")
    script = SCRIPT if any(table.interactive for table in tables) else ""
    body = "\n".join(filter(None, parts)) + (f"\n<script>{script}</script>" if script else "")
    page = _PAGE.replace("{policy}", _policy(script)).replace("{title}", _text(title)).replace("{body}", body)
    path.parent.mkdir(parents=True, exist_ok=True)
    for target, content in {path: page.encode("utf-8", "replace"), **images}.items():
        part = target.with_name(f".{target.name}.part")
        part.write_bytes(content)
        os.replace(part, target)
    return [path, *images]


def _policy(script: str) -> str:
    """What the page may load: nothing from anywhere, and of scripts this one."""
    if not script:
        return ""
    return f"; script-src 'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _text(value: object) -> str:
    return html.escape(str(value))


def _table(table: Table) -> str:
    columns = list(table.columns)
    for i, row in enumerate(table.rows):
        if len(row) != len(columns):
            raise UserError(f"table {table.caption!r}: row {i} has {len(row)} cells, need {len(columns)}, one a column")
    for name in table.best:
        if name not in columns:
            raise UserError(f"table {table.caption!r}: no column {name!r} to mark the best of; it has {columns}")
    cells = [_column([row[c] for row in table.rows], name in table.best) for c, name in enumerate(columns)]
    titles = [f"<button type=button>{_text(name)}</button>" if table.interactive else _text(name) for name in columns]
    head = "".join(f"<th scope=col{side}>{title}</th>" for title, (side, _) in zip(titles, cells))
    lines = ("".join(f"<td{side}>{column[r]}</td>" for side, column in cells) for r in range(len(table.rows)))
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    note = f"<p class=note>{_text(table.note)}</p>" if table.note else ""
    kind, search = (" class=sorts", _SEARCH) if table.interactive else ("", "")
    return (
        f"<section{kind}><h2>{_text(table.caption)}</h2>{search}<div class=scroll><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>{note}</section>"
    )


def _column(values: Sequence[object], mark: bool) -> tuple[str, list[str]]:
    """The class of a column (numbers stand to the right) and the inside of its cells, all with the same decimals."""
    numbers = np.array([float(value) if is_number(value) else np.nan for value in values])
    finite = numbers[np.isfinite(numbers)]
    if not finite.size:
        return "", [_text(shown(value)) for value in values]
    largest = np.abs(finite).max()
    form = ".2e" if 0 < largest < 1e-3 else f",.{decimals_of(finite)}f"
    cells = []
    for value, number in zip(values, numbers):
        cell = _text(format(number, form) if np.isfinite(number) else shown(value))
        cells.append(f"<b>{cell}</b>" if mark and number == finite.max() else cell)
    return " class=n", cells


def _card(entry: PageFigure, image: bytes) -> str:
    data = base64.b64encode(image).decode()
    alt, caption = _text(entry.alt or entry.caption), _text(entry.caption)
    return f'<figure><img src="data:image/png;base64,{data}" alt="{alt}"><figcaption>{caption}</figcaption></figure>'


_SEARCH = (
    "<p class=search><label>show rows with <input type=search autocomplete=off spellcheck=false></label> "
    "<output></output></p>"
)
SCRIPT = """
"use strict";
for (const section of document.querySelectorAll("section.sorts")) {
  const body = section.querySelector("tbody"), rows = [...body.rows];
  const heads = [...section.querySelectorAll("th")], input = section.querySelector("input");
  const count = section.querySelector("output");
  const value = (row, column) => {
    const text = row.cells[column].textContent.trim(), number = Number(text.replaceAll(",", ""));
    return text !== "" && Number.isFinite(number) ? number : text;
  };
  const compare = (a, b) => typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1;
  heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => {
    const numbers = rows.some(row => typeof value(row, column) === "number");
    const first = numbers ? "descending" : "ascending", other = numbers ? "ascending" : "descending";
    const order = head.getAttribute("aria-sort") === first ? other : first;
    heads.forEach(each => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    const sorted = rows.map((row, place) => [value(row, column), place, row]);
    sorted.sort((a, b) => typeof a[0] !== typeof b[0] ? compare(a[0], b[0]) : sign * compare(a[0], b[0]) || a[1] - b[1]);
    body.append(...sorted.map(entry => entry[2]));
  }));
  const filter = () => {
    const words = input.value.toLowerCase().split(/\\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every(word => text.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    count.textContent = shown + " of " + rows.length;
  };
  input.addEventListener("input", filter);
  filter();
}
"""
"""Sorting (numbers before text, largest first; a second press turns the order round) and filtering of tables."""
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'{policy}">
<title>{title}</title>
<style>
:root { color-scheme: light; --ink: #1f2937; --soft: #5b6472; --line: #e2e5ea; --paper: #f6f7f9; --blue: #00598c; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 32px 24px 48px; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 8px; }
h2 { font-size: 1.1rem; margin: 0 0 10px; }
.lead { color: var(--soft); margin: 0 0 20px; max-width: 70ch; }
dl { display: flex; flex-wrap: wrap; gap: 1px; margin: 20px 0;
  background: var(--line); border: 1px solid var(--line); border-radius: 8px; overflow: hidden; }
dl div { background: white; padding: 10px 14px; flex: 1 1 auto; min-width: 120px; max-width: 100%; }
dt { color: var(--soft); font-size: .8rem; }
dd { margin: 0; font-weight: 600; overflow-wrap: anywhere; }
section, figure { background: white; border: 1px solid var(--line); border-radius: 8px; padding: 16px;
  margin: 0 0 20px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 7px 12px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-size: .85rem; font-weight: 600; border-bottom: 2px solid var(--line); }
tbody tr:last-child td { border-bottom: 0; }
.n { text-align: right; }
td b { color: var(--blue); }
td:first-child, th:first-child { position: sticky; left: 0; background: white; padding-left: 0; }
.note, figcaption { color: var(--soft); font-size: .9rem; margin: 10px 0 0; }
.figures { columns: 2 440px; column-gap: 20px; }
.figures figure { break-inside: avoid; }
img { display: block; width: 100%; max-width: 540px; height: auto; margin: 0 auto; }
.sorts .scroll { max-height: 460px; overflow-y: auto; }
.sorts th { position: sticky; top: 0; background: white; z-index: 1; }
.sorts th:first-child { z-index: 2; }
th button { font: inherit; color: inherit; background: none; border: 0; padding: 4px 0; cursor: pointer; }
th button:hover, th button:focus-visible { color: var(--blue); text-decoration: underline; }
th button::after { content: ""; display: inline-block; width: 1.1em; text-align: center; }
th[aria-sort=descending] button::after { content: "▾"; }
th[aria-sort=ascending] button::after { content: "▴"; }
.search { margin: 0 0 10px; color: var(--soft); font-size: .9rem; }
.search output { white-space: nowrap; }
.search input { font: inherit; color: var(--ink); padding: 5px 8px; border: 1px solid var(--line); border-radius: 6px;
  max-width: 100%; }
@media (max-width: 600px) {
  main { padding: 20px 10px 32px; }
  section, figure { padding: 12px 8px; }
  th, td { padding: 6px 8px; }
}
</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""
