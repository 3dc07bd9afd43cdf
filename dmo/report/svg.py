"""Figures as SVG that stands within a page: its fonts, its colors, light or dark, and words for those who do not see it."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from dmo.errors import visible
from dmo.report.canvas import BLUE, GRAY, PALE, VERMILION

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SVG, _LINK = "http://www.w3.org/2000/svg", "{http://www.w3.org/1999/xlink}href"
_THEME = {
    BLUE.lower(): "--blue-mark",
    VERMILION.lower(): "--vermilion",
    GRAY.lower(): "--soft",
    PALE.lower(): "--line",
    "#000000": "--ink",
    "#222222": "--ink",
    "#ffffff": "--card",
}
"""What the page's color scheme decides; other colors stand out on light and dark paper alike."""


def inline_svg(figure: Figure, name: str, title: str, words: str) -> str:
    """A figure as an element of a page."""
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(
            buffer,
            format="svg",
            facecolor="none",
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
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
    """Remove elements: a style would be that of the whole page."""
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in tags:
                parent.remove(child)


def _attributes(given: dict[str, str], name: str) -> dict[str, str]:
    """Attributes with ids of this figure, the page's font and its colors."""
    found = {}
    for key, value in given.items():
        if key == "id":
            value = f"{name}-{value}"
        elif key == _LINK:
            key, value = "href", f"#{name}-{value[1:]}" if value.startswith("#") else value
        elif key == "style":
            value = re.sub(r"(font: [^;']*?px) [^;]*", r"\1 system-ui, sans-serif", value)
            value = re.sub(r"#[0-9a-f]{6}", lambda color: _themed(color.group()), value)
        found[key] = value.replace("url(#", f"url(#{name}-") if key in ("clip-path", "style") else value
    return found


def _themed(color: str) -> str:
    return f"var({_THEME[color]})" if color in _THEME else color
