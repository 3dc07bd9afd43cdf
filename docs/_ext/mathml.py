"""Typeset formulas as MathML, which browsers display without scripts."""

from typing import Any

from docutils.nodes import Element, SkipNode
from latex2mathml.converter import convert


def setup(app: Any) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True}


def _inline(writer: Any, node: Element) -> None:
    writer.body.append(convert(node.astext()))
    raise SkipNode


def _block(writer: Any, node: Element) -> None:
    writer.body.append(f'<div class="math">{convert(node.astext(), display="block")}</div>')
    raise SkipNode
