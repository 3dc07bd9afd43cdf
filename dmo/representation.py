"""HTML representations of objects in notebooks: tables of text, and charts as inline SVG, without scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

_WIDTH, _HEIGHT, _LEFT, _BELOW = 480.0, 150.0, 52.0, 16.0  # Size of a chart and of its margins in pixels.


def shown(value: Any) -> str:
    """Format a value on one line, floats with four significant digits."""
    text = f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else repr(value)
    return " ".join(text.split())


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> str:
    """Format rows of values as an HTML table, with numbers aligned to the right."""
    lines = [list(map(_cell, row)) for row in rows]
    first = lines[0] if lines else [("left", "")] * len(head)
    titles = [f'<th scope="col" style="text-align:{side}">{escape(name)}</th>' for (side, _), name in zip(first, head)]
    cells = [[f'<td style="text-align:{side}">{text}</td>' for side, text in line] for line in lines]
    body = "".join(f"<tr>{''.join(line)}</tr>" for line in cells)
    style = "text-align:left;font-weight:bold;white-space:nowrap"
    title = f'<caption style="{style}">{escape(caption)}</caption>' if caption else ""
    return f"<table>{title}<thead><tr>{''.join(titles)}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> tuple[str, str]:
    """Return the side on which a value is aligned, and its text."""
    return "right" if isinstance(value, int | float) and not isinstance(value, bool) else "left", escape(shown(value))


def score_chart(scores: Sequence[tuple[float, float]], name: str) -> str:
    """Draw means and standard deviations of scores as an SVG chart; the first score is the best."""
    low, high = min(mean - spread for mean, spread in scores), max(mean + spread for mean, spread in scores)
    scale = (_HEIGHT - 2 * _BELOW) / ((high - low) or 1.0)
    step = min(24.0, (_WIDTH - _LEFT - 20) / max(len(scores) - 1, 1))

    def y(value: float) -> float:
        return round(_HEIGHT - _BELOW - (value - low) * scale, 1)

    marks = [
        f'<g stroke="{color}" fill="{color}"><title>{escape(f"rank {i + 1}: {shown(mean)}, deviation {shown(spread)}")}'
        f'</title><path d="M{x:.1f} {y(mean - spread)}V{y(mean + spread)}"/>'
        f'<circle cx="{x:.1f}" cy="{y(mean)}" r="{4 if i == 0 else 2.5}" stroke="none"/></g>'
        for i, (mean, spread) in enumerate(scores)
        for x, color in [(_LEFT + 10 + i * step, "#D55E00" if i == 0 else "#2A8FD0")]
    ]
    ticks = "".join(
        f'<text x="{_LEFT - 4}" y="{y(value) + 4}" text-anchor="end">{escape(shown(value))}</text>'
        for value in dict.fromkeys((low, high))
    )
    label = escape(f"{name} of {len(scores)} candidates, best first; lines are standard deviations over folds")
    return (
        f'<svg role="img" aria-label="{label}" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" '
        f'style="width:100%;max-width:{_WIDTH:g}px;display:block;margin-top:8px" font-size="11" fill="currentColor">'
        f'<path d="M{_LEFT} 6V{_HEIGHT - 8}" stroke="currentColor"/>{ticks}{"".join(marks)}</svg>'
        f'<p style="margin:0 0 8px;font-size:smaller">{label}</p>'
    )
