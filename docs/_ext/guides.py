"""Pages that stand beside what they are about, in `cluster/` and `data/`, as pages of this site; one for each card."""

import re
import shutil
from pathlib import Path
from typing import Any

from dmo.datasets import CARDS, Card, read_card

FOLDERS = {"cluster": "how-to/clusters", "data": "how-to/data"}


def setup(app: Any) -> dict[str, bool]:
    for source, target in FOLDERS.items():
        here, there = Path(app.srcdir).parent / source, Path(app.srcdir, target)
        shutil.rmtree(there, ignore_errors=True)
        shutil.copytree(here, there)
        for page in there.rglob("*.md"):
            text = page.read_text(encoding="utf-8")
            # what lies outside of the folder is named, not linked to
            page.write_text(re.sub(r"\[([^\]]*)\]\((\.\./)+(?:dmo|pipelines)/[^)]*\)", r"\1", text), encoding="utf-8")
    cards = Path(app.srcdir, FOLDERS["data"])
    for name in CARDS:
        (cards / f"{name}.md").write_text(page_of(read_card(name)), encoding="utf-8")
    listed = "\n".join(CARDS)
    index = (cards / "README.md").rename(cards / "index.md")
    with index.open("a", encoding="utf-8") as file:
        file.write(f"\n```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n")
    return {"parallel_read_safe": True}


def page_of(card: Card) -> str:
    """A card as Markdown: its prose, then shapes, sums, files, license and citation."""
    lines = [f"# {card.title}", "", card.about.strip(), "", "## Facts", ""]
    lines += ["| split | samples | labels | sum of the labels | a sample |", "|---|---|---|---|---|"]
    for split, n in card.rows.items():
        total = card.labels.total[split]
        lines.append(f"| {split} | {n} | {card.labels.number} | {total:.10g} | {total / n:.3f} |")
    lines += ["", "| view | dimension | type | stored | counts | sum of all values |", "|---|---|---|---|---|---|"]
    for view in card.views:
        name, counts = view.name + (" (on request)" if view.optional else ""), "yes" if view.histogram else "no"
        lines.append(f"| {name} | {view.dimension} | {view.dtype} | {view.kind} | {counts} | {view.total:.10g} |")
    lines += ["", "| file | SHA-256 of the decompressed content | where it can be had |", "|---|---|---|"]
    lines += [f"| `{file.name}` | `{file.sha256}` | {file.url or file.source} |" for file in card.files]
    return "\n".join([*lines, "", f"License: {card.license}.", "", f"Citation: {card.citation}", ""])
