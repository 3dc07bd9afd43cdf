"""The data cards: what a public data set must hold, and the same facts as text.

`ingest` checks what it reads against these cards, and the files under data/ repeat them in a block that `markdown`
writes; `python -m dmo.datasets data` renews those blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

BEGIN, END = "<!-- facts: written by `python -m dmo.datasets data` -->", "<!-- end of facts -->"


@dataclass(frozen=True)
class File:
    """A file: its name in the set's folder, the SHA-256 of its (decompressed) bytes, and where it can be had."""

    name: str
    sha256: str
    source: str


@dataclass(frozen=True)
class View:
    """A view: n x dimension numbers of `dtype`, whose sum over all samples is `total`, read from `files`.

    `histogram`: the values are counts. `optional`: left out unless asked for.
    """

    name: str
    dimension: int
    dtype: str
    total: float
    files: tuple[str, ...]
    kind: str = "dense"
    histogram: bool = False
    optional: bool = False


@dataclass(frozen=True)
class Card:
    """A public data set.

    Attributes: `files`; `views`; `rows` and `positives` (label marks) by split ("all" where there is none); `labels`,
    how many; `annotations`, the files that hold labels, names and split; `regression`, of a set without views: file
    -> (samples, inputs, outputs).
    """

    name: str
    title: str
    files: tuple[File, ...]
    licence: str
    citation: str
    views: tuple[View, ...] = ()
    rows: dict[str, int] = field(default_factory=dict)
    labels: int = 0
    positives: dict[str, int] = field(default_factory=dict)
    annotations: tuple[str, ...] = ()
    regression: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    @property
    def n_samples(self) -> int:
        """The number of samples, over all splits."""
        return sum(self.rows.values())

    def choose(self, names: Sequence[str] | None) -> list[View]:
        """The views `names` in that order (None: all that are not optional). Raises ValueError for an unknown name."""
        known = {view.name: view for view in self.views}
        if names is None:
            return [view for view in self.views if not view.optional]
        unknown = [name for name in names if name not in known]
        if unknown or not names:
            got = repr(unknown[0]) if unknown else "none"
            raise ValueError(f"{self.name}: got view {got}, expected some of {', '.join(known)}")
        return [known[name] for name in dict.fromkeys(names)]

    def files_for(self, views: Sequence[View]) -> list[File]:
        """The files that hold these views and the annotations."""
        needed = {name for view in views for name in view.files} | set(self.annotations)
        return [file for file in self.files if file.name in needed]


def markdown(card: Card) -> str:
    """The facts of a card as Markdown, between two marks: shapes, label counts, files, licence, citation."""
    lines = [BEGIN, ""]
    if card.rows:
        lines += ["| split | samples | labels | label marks | labels per sample |", "|---|---|---|---|---|"]
        for split, n in card.rows.items():
            marks = card.positives[split]
            lines.append(f"| {split} | {n} | {card.labels} | {marks} | {marks / n:.3f} |")
        lines += [
            "",
            "| view | dimension | type | stored | counts | sum of all values | file |",
            "|---|---|---|---|---|---|---|",
        ]
        for view in card.views:
            name = view.name + (" (on request)" if view.optional else "")
            counts = "yes" if view.histogram else "no"
            files = ", ".join(f"`{file}`" for file in view.files)
            lines.append(
                f"| {name} | {view.dimension} | {view.dtype} | {view.kind} | {counts} | {view.total:.10g} | {files} |"
            )
        lines.append("")
    if card.regression:
        lines += ["| file | samples | inputs | outputs |", "|---|---|---|---|"]
        lines += [f"| `{name}` | {n} | {d} | {k} |" for name, (n, d, k) in card.regression.items()] + [""]
    lines += ["| file | SHA-256 of the decompressed content | where it can be had |", "|---|---|---|"]
    lines += [f"| `{file.name}` | `{file.sha256}` | {file.source} |" for file in card.files]
    lines += ["", f"Licence: {card.licence}.", "", f"Citation: {card.citation}", "", END]
    return "\n".join(lines)


def renew(path: Path, card: Card) -> None:
    """Write the facts into the card at `path`, in place of those between the marks (a new file: below a title)."""
    text = path.read_text(encoding="utf-8") if path.exists() else f"# {card.title}\n\n{BEGIN}{END}\n"
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    path.write_text(before + markdown(card) + after, encoding="utf-8")
