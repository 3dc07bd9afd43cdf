"""Functions that all figures share: creating figures and panels, colors, and formatting of text and numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from dmo.errors import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 5.0
"""Width of every figure in inches."""
BLUE, VERMILION, GRAY, PALE = "#0072B2", "#D55E00", "#6B7280", "#D1D5DB"
COLORS = (BLUE, VERMILION, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#222222")
MARKERS = "osD^vPX<>*"
LINES = {"color": COLORS * len(MARKERS), "marker": tuple(MARKERS * len(COLORS))}
"""Arguments of `Axes.set_prop_cycle`. The lines differ in color and marker, so that color is not essential."""
DASHES = ("-", (0, (5, 2)), (0, (1, 1)), (0, (5, 1, 1, 1)))
HALO = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0}


def new_figure(height: float) -> Figure:
    """Create an empty figure with a given height in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), dpi=200, layout="constrained", facecolor="white")


def new_plot(height: float) -> tuple[Figure, Axes]:
    """Create a figure with a single plot and a given height in inches."""
    figure = new_figure(height)
    return figure, clean(figure.add_subplot())


def styles(names: Sequence[str]) -> Iterator[tuple[str, str, Any]]:
    """Pair each model name with a color and a dash pattern for its lines."""
    return zip(names, itertools.cycle(COLORS), itertools.cycle(DASHES))


def clean(ax: Axes) -> Axes:
    """Hide the upper and right lines of the frame, and use small tick labels."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=9.5, color=GRAY)
    return ax


def panel_grid(titles: Sequence[str], xlabel: str, ylabel: str, share: bool = True) -> tuple[Figure, list[Axes]]:
    """Create a grid of titled panels, at most three per row, which share their axes if `share` is true."""
    across = {1: 1, 2: 2, 4: 2}.get(len(titles), 3)
    down = -(-len(titles) // across)
    figure = new_figure(1.42 * down + 0.35)
    grid = figure.subplots(down, across, squeeze=False, sharex=share, sharey=share)
    for ax, title in zip(grid.flat, titles):
        clean(ax).set_title(shorten(figure, title, 4.2 / across, 10), size=10, loc="left", pad=3)
    for i, ax in enumerate(grid.flat[len(titles) :], len(titles)):
        ax.axis("off")
        if i >= across:
            grid.flat[i - across].tick_params(labelbottom=True)
    figure.supxlabel(xlabel, size=10.5)
    figure.supylabel(ylabel, size=10.5)
    return figure, list(grid.flat[: len(titles)])


def limits(values: np.ndarray) -> tuple[float, float]:
    """Compute axis limits: the range of the values, extended by 4 % on both sides."""
    low, high = float(values.min()), float(values.max())
    margin = 0.04 * (high - low) or 1.0
    return low - margin, high + margin


def name_at(ax: Axes, places: Sequence[np.ndarray], names: Sequence[str]) -> None:
    """Write names at given positions, but move a name that would overlap an earlier name to the nearest free spot."""
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    steps = np.array([(x, y) for x in np.arange(-12, 13) * 0.03 for y in np.arange(-16, 17) * 0.02])
    steps = steps[np.argsort((steps**2).sum(axis=1), kind="stable")]
    taken: list[tuple[np.ndarray, np.ndarray]] = []
    for place, name in zip(places, names):
        half = np.array([0.04 * len(name) + 0.05, 0.11]) / (4.3, 4.0)
        spots = np.clip((place - (left, bottom)) / (right - left, top - bottom) + steps, half, 1 - half)
        free = np.ones(len(spots), dtype=bool)
        for other, size in taken:
            free &= (np.abs(spots - other) >= half + size).any(axis=1)
        x, y = spot = spots[np.argmax(free)]
        taken.append((spot, half))
        ax.text(x, y, name, transform=ax.transAxes, ha="center", va="center", size=10, weight="bold", bbox=HALO)


def plain(text: object) -> str:
    """Convert an object to a single line of text that matplotlib shows literally, including dollar signs."""
    return " ".join(visible(str(text)).split()).replace("$", r"\$")


def shorten(figure: Figure, text: object, inches: float, size: float) -> str:
    """Shorten a text to a width in inches; a shortened text ends with "…"."""
    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.font_manager import FontProperties

    renderer, font = RendererAgg(1, 1, figure.dpi), FontProperties(size=size)
    line = " ".join(visible(str(text)).split())
    for length in range(min(len(line), 100), 0, -1):
        candidate = line if length == len(line) else line[:length].rstrip() + "…"
        width, _, _ = renderer.get_text_width_height_descent(candidate, font, False)
        if width <= inches * figure.dpi:
            return plain(candidate)
    return ""


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number, which excludes booleans."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def shown(value: object) -> str:
    """Format floats with four significant digits, integers with thousands separators, and None as a dash."""
    if value is None:
        return "–"
    if isinstance(value, float | np.floating):
        return f"{value:.4g}"
    return f"{value:,}" if is_number(value) else str(value)


def decimals_of(values: np.ndarray) -> int:
    """Choose the number of decimals: three significant digits of the largest value, or none for integers."""
    values = values[np.isfinite(values)]
    if not values.size or (values == np.round(values)).all():
        return 0
    return int(np.clip(2 - math.floor(math.log10(np.abs(values).max())), 0, 6))
