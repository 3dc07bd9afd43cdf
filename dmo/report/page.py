"""Self-contained HTML reports, whose figures are embedded as SVG and also saved as PNG files.

A Jinja2 template escapes all text. A page contains scripts only if it has sortable tables or samples. Its content
security policy allows only these scripts, identified by their hashes.
"""

from __future__ import annotations

import io
import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from xml.etree import ElementTree

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dmo.errors import UserError, amount, visible
from dmo.report.canvas import BLUE, GRAY, PALE, VERMILION, decimals_of, is_number, shown
from dmo.stores import check_output_file, replace_files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SVG, _LINK = "http://www.w3.org/2000/svg", "{http://www.w3.org/1999/xlink}href"
_THEME = {
    BLUE.lower(): "var(--blue-mark)",
    VERMILION.lower(): "var(--vermilion)",
    GRAY.lower(): "var(--soft)",
    PALE.lower(): "var(--line)",
    "#000000": "var(--ink)",
    "#222222": "var(--ink)",
    "#ffffff": "var(--card)",
}
"""Colors that the page replaces with colors of its theme. Other colors are visible on light and dark backgrounds."""


def inline_svg(figure: Figure, name: str, title: str, words: str) -> str:
    """Convert a figure to an SVG element that can be embedded in a page."""
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        unsaid = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", facecolor="none", metadata=unsaid)
    root = ElementTree.fromstring(buffer.getvalue())
    _drop(root, {f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"})
    for element in root.iter():
        element.tag = element.tag.removeprefix(f"{{{_SVG}}}")
        element.attrib = _attributes(element.attrib, name)
    _, _, width, height = root.get("viewBox", "0 0 0 0").split()
    root.attrib = {"viewBox": f"0 0 {width} {height}", "role": "img", "aria-labelledby": f"{name}-t {name}-d"}
    for place, (tag, text, suffix) in enumerate((("title", title, "t"), ("desc", words, "d"))):
        spoken = ElementTree.Element(tag, {"id": f"{name}-{suffix}"})
        spoken.text = visible(text)
        root.insert(place, spoken)
    return ElementTree.tostring(root, encoding="unicode")


def _drop(root: ElementTree.Element, tags: set[str]) -> None:
    """Remove elements with given tags, such as style elements, which would apply to the whole page."""
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in tags:
                parent.remove(child)


def _attributes(given: dict[str, str], name: str) -> dict[str, str]:
    """Make the ids of SVG attributes unique on the page, and use the fonts and colors of the page."""
    found = {}
    for key, value in given.items():
        if key == "id":
            value = f"{name}-{value}"
        elif key == _LINK:
            key, value = "href", f"#{name}-{value[1:]}" if value.startswith("#") else value
        elif key == "style":
            value = re.sub(r"(font: [^;']*?px) [^;]*", r"\1 system-ui, sans-serif", value)
            value = re.sub(r"#[0-9a-f]{6}", lambda color: _THEME.get(color.group(), color.group()), value)
        found[key] = value.replace("url(#", f"url(#{name}-") if key in ("clip-path", "style") else value
    return found


MOST_SAMPLES, MOST_SCORES, MOST_LABELS = 20_000, 2**21, 1000
"""Maximum numbers of samples, scores (4 MiB) and searchable labels on a page, so that a phone draws the map quickly."""
IMAGE_BYTES, IMAGE_SIDE = 6 * 2**20, 256
"""Maximum total size of the images on a page in bytes, and maximum side length of an image in pixels."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Searchable samples on a report page, with their true labels and the labels predicted by models.

    A page shows at most 20 000 samples and 2 million scores. From larger data sets, evenly spaced samples are shown.
    Only the 1000 labels with the most positive samples can be searched. Images of up to 6 MiB in total are included,
    of the best and worst annotated samples first. Notes on the page mention the omitted samples, labels and images.

    Parameters
    ----------
    ids : sequence of str
        Names of the n samples.
    names : sequence of str
        Names of the L labels.
    Y : ndarray of shape (n, L)
        True labels, 0 or 1, or NaN for missing labels.
    scores : ndarray of shape (n, L)
        Label scores, by which a search ranks the samples of a label.
    given : mapping of str to ndarray of int of shape (n, k)
        Predicted labels of each model, by model name. Each row contains label indices, best first, padded with -1.
    order : ndarray of int of shape (n,)
        Indices of all samples. The samples that the first model annotates best come first.
    planes : mapping of str to ndarray of shape (n, 2), default={}
        Positions of the samples on maps, by the name of the map. The first map is shown initially. If the mapping is
        empty, the page has no map.
    score : str, default="score"
        Name of the scores on the page.
    image : callable or None, default=None
        Function that maps a sample index to its image, or to None if the sample has no image. An image is an array of
        shape (h, w), in which small values are dark, or (h, w, 3).
    features : callable or None, default=None
        Function that maps an array of sample indices to the feature values of these samples, as a mapping of column
        names to cells. The values are shown with the samples.
    caption : str, default="Samples"
        Heading of the samples.

    Raises
    ------
    UserError
        If the arrays do not match in shape, `given` is empty, or scores are not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.report import Samples, write_report
    >>> Y, scores = np.array([[1, 0], [0, 1]]), np.array([[0.9, 0.2], [0.6, 0.3]])
    >>> samples = Samples(["a", "b"], ["sea", "sky"], Y, scores, {"ridge": scores.argmax(1)[:, None]}, np.array([0, 1]))
    >>> [path.name for path in write_report("samples.html", "Two samples", [samples])]
    ['samples.html']
    """

    ids: Sequence[str]
    names: Sequence[str]
    Y: np.ndarray
    scores: np.ndarray
    given: Mapping[str, np.ndarray]
    order: np.ndarray
    planes: Mapping[str, np.ndarray] = field(default_factory=dict)
    score: str = "score"
    image: Callable[[int], np.ndarray | None] | None = None
    features: Callable[[np.ndarray], Mapping[str, Sequence[object]]] | None = None
    caption: str = "Samples"

    def __post_init__(self) -> None:
        n, L = self.Y.shape
        shapes = {"ids": (len(self.ids),), "scores": self.scores.shape, "order": self.order.shape}
        shapes |= {f"the labels given by {name}": rows.shape[:1] for name, rows in self.given.items()}
        shapes |= {f"the map {name!r}": plane.shape for name, plane in self.planes.items()}
        wanted = {"scores": (n, L)} | {f"the map {name!r}": (n, 2) for name in self.planes}
        for name, shape in shapes.items():
            if shape != wanted.get(name, (n,)):
                raise UserError(
                    f"Samples: {name} has shape {shape}, expected {wanted.get(name, (n,))} as in the labels"
                )
        if not self.given:
            raise UserError("Samples: `given` is empty; pass the predicted labels of at least one model")
        if len(self.names) != L or not np.isfinite([self.scores.min(), self.scores.max()]).all():
            raise UserError(
                f"Samples: {len(self.names)} names for {L} labels, or scores that are not finite; pass one name per "
                f"label and finite scores"
            )

    def payload(self) -> dict[str, Any]:
        """Prepare the values for the template and the script of the page.

        Returns
        -------
        dict
            Values by name: "caption", "notes" (sentences about omitted parts), and "data", which can be saved as JSON.
        """
        shown, searched = self._shown(), self._searched()
        images, named = self._images(shown)
        given = {name: rows[shown] for name, rows in self.given.items()}
        Y = self.Y[shown]
        used = np.zeros(len(self.names), dtype=bool)
        numbers = np.concatenate([rows.ravel() for rows in given.values()])
        used[numbers[numbers >= 0]] = True
        used |= (Y == 1).any(axis=0)
        used[searched] = False
        kept = np.concatenate([searched, np.flatnonzero(used)])
        place = np.full(len(self.names), -1)
        place[kept] = np.arange(len(kept))
        scores = self.scores[np.ix_(shown, searched)]
        low, high = float(scores.min()), float(scores.max())
        steps = np.round((scores - low) / ((high - low) or 1.0) * 65535).astype("<u2")
        rank = np.empty(len(self.ids), np.int64)
        rank[self.order] = np.arange(len(self.order))
        features = {} if self.features is None else self.features(shown)
        return {
            "caption": self.caption,
            "notes": [*self._cuts(shown, searched), *named],
            "data": {
                "ids": [self.ids[i] for i in shown],
                "names": [self.names[j] for j in kept],
                "searched": len(searched),
                "scores": b64encode(steps.tobytes()).decode(),
                "low": low,
                "high": high,
                "score": self.score,
                "has": [place[np.flatnonzero(row == 1)].tolist() for row in Y],
                "unknown": [place[j[place[j] >= 0]].tolist() for j in map(np.flatnonzero, np.isnan(Y))],
                "given": [
                    {"name": name, "rows": [place[row[row >= 0]].tolist() for row in rows]}
                    for name, rows in given.items()
                ],
                "rank": rank[shown].tolist(),
                "planes": [
                    {"name": name, "at": np.round(_scaled(plane[shown]), 4).tolist()}
                    for name, plane in self.planes.items()
                ],
                "features": [[name, list(map(_cell, cells))] for name, cells in features.items()],
                "images": {str(place): data for place, data in images.items()},
            },
        }

    def _shown(self) -> np.ndarray:
        n, width = len(self.ids), min(len(self.names), MOST_LABELS)
        most = min(n, MOST_SAMPLES, max(1, MOST_SCORES // width))
        return np.linspace(0, n - 1, most).astype(int)

    def _searched(self) -> np.ndarray:
        """Return the ascending column indices of the labels that can be searched."""
        counts = np.nansum(self.Y, axis=0).astype(np.int64)
        return np.sort(np.argsort(-counts, kind="stable")[:MOST_LABELS])

    def _images(self, shown: np.ndarray) -> tuple[dict[int, str], list[str]]:
        """Return the images of the shown samples as data URIs, and a note about omitted images.

        Images of the best and worst annotated samples are included first.
        """
        if self.image is None:
            return {}, []
        where = {int(i): place for place, i in enumerate(shown)}
        found: dict[int, str] = {}
        size = 0
        for i in _from_both_ends(self.order):
            image = self.image(int(i)) if int(i) in where else None
            if image is None:
                continue
            uri = _data_uri(image)
            size += len(uri)
            if size > IMAGE_BYTES:
                break
            found[where[int(i)]] = uri
        if not found or len(found) == len(shown):
            return found, []
        said = f"{len(found):,} of {len(shown):,} samples are shown with their images (at most {amount(IMAGE_BYTES)})."
        return found, [said]

    def _cuts(self, shown: np.ndarray, searched: np.ndarray) -> list[str]:
        """Describe the omitted samples and labels in sentences."""
        said = []
        if len(shown) < len(self.ids):
            said.append(f"{len(shown):,} of {len(self.ids):,} samples, evenly chosen.")
        if len(searched) < len(self.names):
            said.append(
                f"{len(searched):,} of {len(self.names):,} labels can be searched for, those with the most samples."
            )
        return said


def _scaled(plane: np.ndarray) -> np.ndarray:
    """Scale positions to -1..1 by the same factor in both directions, which preserves ratios of distances."""
    places = plane - (plane.max(axis=0) + plane.min(axis=0)) / 2
    return places / (np.abs(places).max() or 1.0)


def _cell(value: object) -> str:
    return shown(int(value) if isinstance(value, float) and value.is_integer() else value)


def _from_both_ends(order: np.ndarray) -> np.ndarray:
    """Reorder an array to alternate between both ends: first, last, second, second to last, ..."""
    half = -(-len(order) // 2)
    mixed = np.empty(len(order), order.dtype)
    mixed[::2], mixed[1::2] = order[:half], order[half:][::-1]
    return mixed


def _data_uri(image: np.ndarray) -> str:
    """Encode an image as a data URI: small images losslessly as PNG, other images as WebP."""
    from PIL import Image

    pixels = np.asarray(image)
    if pixels.dtype != np.uint8:
        low, high = float(pixels.min()), float(pixels.max())
        pixels = ((pixels - low) / ((high - low) or 1.0) * 255).astype(np.uint8)
    picture, buffer = Image.fromarray(pixels), io.BytesIO()
    small = max(picture.size) <= 64
    picture.thumbnail((IMAGE_SIDE, IMAGE_SIDE))
    picture.save(buffer, "PNG" if small else "WEBP", quality=75)
    return f"data:image/{'png' if small else 'webp'};base64,{b64encode(buffer.getvalue()).decode()}"


@dataclass(frozen=True)
class Table:
    """Table on a report page.

    Parameters
    ----------
    caption : str
        Heading of the table.
    columns : sequence of str
        Titles of the columns.
    rows : sequence of sequence
        Rows with one cell per column. A cell is text, a number, or None, which is shown as a dash.
    best : sequence of str, default=()
        Titles of the columns in which the largest number is printed in bold.
    note : str, default=""
        Text below the table.
    interactive : bool, default=False
        Whether readers can sort the table by a click on a column title and filter its rows by text.
    folded : bool, default=False
        Whether only the caption is visible until it is clicked.

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
    folded: bool = False


@dataclass(frozen=True)
class PageFigure:
    """Figure on a report page.

    Parameters
    ----------
    name : str
        Name of the PNG file without its extension. The characters must be letters, digits, - or _.
    figure : matplotlib.figure.Figure
        Figure to show, such as the result of a function in `dmo.report`.
    caption : str
        Text below the figure.
    alt : str, default=""
        Description for readers who cannot see the figure. By default, the caption is used.

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


Part: TypeAlias = Table | PageFigure | Samples
"""Part of a report page: a table, a figure or samples."""


def write_report(
    path: str | Path,
    title: str,
    parts: Sequence[Part] = (),
    facts: Mapping[str, object] | None = None,
    lead: str = "",
) -> list[Path]:
    """Write a self-contained HTML page, and every figure as a PNG file in the same folder.

    All text is escaped. Existing files are replaced atomically.

    Parameters
    ----------
    path : path-like
        Path of the HTML file, whose folder is created if needed.
    title : str
        Heading of the page.
    parts : sequence of Table, PageFigure and Samples, default=()
        Parts of the page in their order. Consecutive figures are placed side by side if there is space. At most one
        part can be `Samples`.
    facts : mapping of str to object, default=None
        Values by name, which are shown above the parts.
    lead : str, default=""
        Introductory sentence below the title.

    Returns
    -------
    list of Path
        Paths of the written files, with the HTML file first.

    Raises
    ------
    UserError
        If a table row does not match the columns, a column in `best` does not exist, or a figure name is repeated or is
        not a valid file name.
    StoreError
        If `path` is a URL, or cannot be written.

    Examples
    --------
    >>> from dmo.report import Table, write_report
    >>> table = Table("Scores", ["method", "F1"], [["KGHA", 0.376], ["ridge", 0.331]], best=["F1"])
    >>> [path.name for path in write_report("report.html", "Corel5k", [table], facts={"samples": 4999})]
    ['report.html']
    """
    check_output_file(path)
    path = Path(path)
    figures = [part for part in parts if isinstance(part, PageFigure)]
    _check_names([entry.name for entry in figures])
    scripts = _scripts(parts)
    template = _environment().get_template("page.html")
    page = template.render(
        title=title,
        lead=lead,
        facts={name: shown(value) for name, value in (facts or {}).items()},
        groups=[{"kind": kind, "parts": [_KINDS[kind](part) for part in some]} for kind, some in groupby(parts, _kind)],
        explored=any(isinstance(part, Samples) for part in parts),
        scripts=scripts,
        policy=" ".join(f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts),
    )
    images = {path.parent / f"{entry.name}.png": _png(entry.figure) for entry in figures}
    replace_files({**images, path: page.encode("utf-8", "replace")})
    return [path, *images]


def _scripts(parts: Sequence[Part]) -> list[Markup]:
    """Return the scripts that the parts need; only samples need the library D3."""
    names = ["tables.js"] if any(isinstance(part, Table) and part.interactive for part in parts) else []
    if any(isinstance(part, Samples) for part in parts):
        names += ["d3.min.js", "explorer.js"]
    loader = _environment().loader
    assert loader is not None
    return [Markup(loader.get_source(_environment(), name)[0]) for name in names]


def _kind(part: Part) -> str:
    return "table" if isinstance(part, Table) else "figures" if isinstance(part, PageFigure) else "samples"


@cache
def _environment() -> Environment:
    loader = PackageLoader("dmo.report")
    return Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise UserError(f"figure name {name!r} is not a file name; use letters, digits, - and _")
        if names.count(name) > 1:
            raise UserError(f"two figures are called {name!r}; pass unique names")


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _figure(entry: PageFigure) -> dict[str, object]:
    words = entry.alt or entry.caption
    return {"svg": Markup(inline_svg(entry.figure, entry.name, entry.caption, words)), "caption": entry.caption}


def _table(table: Table) -> dict[str, object]:
    """Convert a table to the values that the template needs, with cells formatted as text."""
    names = list(table.columns)
    for i, row in enumerate(table.rows):
        if len(row) != len(names):
            raise UserError(
                f"table {table.caption!r}: row {i} has {len(row)} cells, expected {len(names)}, one per column"
            )
    for name in table.best:
        if name not in names:
            raise UserError(f"table {table.caption!r}: column {name!r} of `best` does not exist; choose from {names}")
    columns = [_column(name, [row[c] for row in table.rows], name in table.best) for c, name in enumerate(names)]
    return {
        "caption": table.caption,
        "note": table.note,
        "interactive": table.interactive,
        "folded": table.folded,
        "columns": columns,
        "rows": range(len(table.rows)),
    }


def _wide(numbers: np.ndarray) -> bool:
    """Return whether numbers differ by more than a factor of 1000 and are not all integers."""
    sizes = np.abs(numbers[numbers != 0])
    return bool(sizes.size) and sizes.min() < sizes.max() / 1000 and (numbers != np.round(numbers)).any()


def _column(name: str, values: Sequence[object], mark: bool) -> dict[str, object]:
    """Format the cells of a column; the result "best" contains the rows to print in bold.

    Numbers have the same number of decimals, unless small numbers would be rounded to 0.
    """
    numbers = np.array([float(value) if is_number(value) else np.nan for value in values])
    finite = numbers[np.isfinite(numbers)]
    if not finite.size:
        return {"name": name, "numeric": False, "cells": [shown(value) for value in values], "best": ()}
    form = ".2e" if 0 < np.abs(finite).max() < 1e-3 else f",.{decimals_of(finite)}f"
    wide = _wide(finite)  # For example, a column can contain errors of targets with different units.
    cells = [
        shown(v) if not np.isfinite(number) else format(number, f",.{decimals_of(numbers[[i]])}f" if wide else form)
        for i, (v, number) in enumerate(zip(values, numbers))
    ]
    # Numbers that are equal after rounding are equally good.
    best = (
        [i for i, cell in enumerate(cells) if cell == cells[np.flatnonzero(numbers == finite.max())[0]]] if mark else ()
    )
    return {"name": name, "numeric": True, "cells": cells, "best": best}


_KINDS: Mapping[str, Any] = {"table": _table, "figures": _figure, "samples": Samples.payload}
