"""Paint skies, grounds and objects of drawn scenes with Pillow and NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dmo.features.images import need_library

Color = tuple[int, int, int]


def rgb(values: Any) -> Color:
    """Convert three numbers to a color with values from 0 to 255."""
    red, green, blue = np.clip(np.rint(values), 0, 255).astype(int)
    return int(red), int(green), int(blue)


class Canvas:
    """Image that is painted from far to near objects and finally reduced to half its size."""

    def __init__(self, width: int, height: int, rng: np.random.Generator):
        self.width, self.height, self.rng = width, height, rng
        self.image = need_library("PIL.Image").new("RGB", (width, height))
        self.pen = need_library("PIL.ImageDraw").Draw(self.image)

    def reduced(self) -> np.ndarray:
        """Return the image at half its size as float64 values from 0 to 255."""
        pixels = np.asarray(self.image, dtype=np.float64)
        return pixels.reshape(self.height // 2, 2, self.width // 2, 2, 3).mean(axis=(1, 3))

    def row_color(self, row: int) -> Color:
        line = self.image.crop((0, max(0, row), self.width, max(0, row) + 1))
        return rgb(np.asarray(line, dtype=np.float64).mean(axis=(0, 1)))

    def noise(self, rows: int, cells: tuple[int, int], octaves: int = 4) -> np.ndarray:
        """Generate smooth noise with values from 0 to 1 as a sum of enlarged random grids."""
        from PIL import Image

        total, weight = np.zeros((rows, self.width)), 0.0
        for k in range(octaves):
            grid = self.rng.random((cells[0] * 2**k + 1, cells[1] * 2**k + 1)).astype(np.float32)
            layer = Image.fromarray(grid).resize((self.width, rows), Image.Resampling.BICUBIC)
            total += np.asarray(layer) / 2**k
            weight += 0.5**k
        return np.clip(total / weight, 0, 1)

    def paint(self, top: int, pixels: np.ndarray, mask: np.ndarray | None = None) -> None:
        """Paint pixels from row `top` downwards. Values of `mask` between 0 and 1 blend the pixels with the image."""
        from PIL import Image

        layer = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
        alpha = None if mask is None else Image.fromarray(np.clip(255 * mask, 0, 255).astype(np.uint8))
        self.image.paste(layer, (0, top), alpha)

    def gradient(self, top: int, bottom: int, first: Color, last: Color) -> None:
        share = np.linspace(0, 1, bottom - top)[:, None, None]
        rows = (1 - share) * np.array(first) + share * np.array(last)
        self.paint(top, np.repeat(rows, self.width, axis=1))

    def textured(self, color: Color, rows: int, grain: float, cells: tuple[int, int] = (6, 10)) -> np.ndarray:
        """Generate pixels of a color with smooth variation and fine grain."""
        smooth = (self.noise(rows, cells) - 0.5) * 3 * grain
        fine = self.rng.normal(0, grain, (rows, self.width))
        return np.array(color, dtype=np.float64) + (smooth + fine)[..., None]

    def clouds(self, horizon: int, color: Color, cover: float) -> None:
        density = self.noise(horizon, (3, 5), 5)
        mask = np.clip((density - (1 - cover)) * 6, 0, 0.92)
        self.paint(0, np.broadcast_to(np.array(color, dtype=np.float64), (horizon, self.width, 3)), mask)

    def fog(self, strength: float, color: Color) -> None:
        fall = np.linspace(strength, strength * 0.7, self.height)[:, None]
        mask = fall * (0.75 + 0.5 * self.noise(self.height, (2, 3), 3))
        self.paint(0, np.broadcast_to(np.array(color, dtype=np.float64), (self.height, self.width, 3)), mask)

    def stars(self, horizon: int, count: int) -> None:
        for x, y in zip(self.rng.uniform(0, self.width, count), self.rng.uniform(0, horizon, count)):
            self.disc(x, y, 1.3, (230, 230, 240))

    def disc(self, x: float, y: float, radius: float, color: Color) -> None:
        self.pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=color)

    def glow(self, x: float, y: float, radius: float, color: Color) -> None:
        rows, columns = np.mgrid[0 : self.height, 0 : self.width]
        distance = np.hypot(columns - x, rows - y)
        mask = np.where(distance < radius, 1.0, 0.75 * np.exp(-(distance - radius) / (2.2 * radius)))
        self.paint(0, np.broadcast_to(np.array(color, dtype=np.float64), (self.height, self.width, 3)), mask)

    def bird(self, x: float, y: float, size: float, color: Color) -> None:
        lift = self.rng.uniform(0.2, 0.6) * size
        wings = [(x - size, y - lift), (x - size / 2, y - lift), (x, y), (x + size / 2, y - lift), (x + size, y - lift)]
        self.pen.line(wings, fill=color, width=max(2, round(size / 5)), joint="curve")

    def profile(self, cells: int, octaves: int = 5) -> np.ndarray:
        """Generate a rugged line across the image, with values from 0 to 1."""
        line = self.noise(1, (1, cells), octaves)[0]
        return (line - line.min()) / max(np.ptp(line), 1e-6)

    def ridge(self, base: int, height: float, rock: Color, snow: Color | None) -> None:
        """Paint mountains with their base on row `base`. If `snow` is a color, paint snow above a jagged line."""
        line = base - height * (0.15 + 0.85 * self.profile(int(self.rng.integers(2, 5)), 6))
        rows = np.arange(self.height)[:, None]
        inside = (rows >= line) & (rows <= base + 2)
        pixels = self.textured(rock, self.height, 8, (12, 12))
        if snow is not None:
            jagged = (
                base
                - height * self.rng.uniform(0.4, 0.75)
                + 0.15 * height * (self.noise(self.height, (4, 24), 3) - 0.5)
            )
            pixels = np.where((rows < jagged)[..., None], self.textured(snow, self.height, 5), pixels)
        self.paint(0, pixels, inside.astype(np.float64))

    def rolling(self, horizon: int, color: Color, grain: float, swell: float = 5.0) -> None:
        """Paint ground below a rolling horizon. The ground is darker near the viewer."""
        top = max(0, int(horizon - swell))
        rows = self.height - top
        line = swell * (1 - self.profile(2, 2))
        pixels = self.textured(color, rows, grain) * np.linspace(1.05, 0.82, rows)[:, None, None]
        self.paint(top, pixels, (np.arange(rows)[:, None] >= line).astype(np.float64))

    def water(self, horizon: int, color: Color, reflected: Color) -> None:
        """Paint water that reflects the sky far away, with ripples that grow towards the viewer."""
        rows = self.height - horizon
        depth = np.linspace(0, 1, rows)[:, None, None]
        base = (0.65 * (1 - depth)) * np.array(reflected) + (0.35 + 0.65 * depth) * np.array(color)
        ripple = np.sin(np.cumsum(1.6 / (0.6 + 3 * depth[:, :, 0]), axis=0) + 7 * self.noise(rows, (6, 3), 3))
        self.paint(
            horizon, base + 16 * (ripple * (0.4 + depth[:, :, 0]))[..., None] + self.rng.normal(0, 3, base.shape)
        )

    def shore(self, row: int, sand: Color) -> None:
        rows = self.height - row
        edge = 14 * self.profile(2, 3) + np.linspace(0, self.rng.uniform(-1, 1) * 18, self.width)
        edge -= edge.min()
        below = np.arange(rows)[:, None] - edge
        pixels = self.textured(sand, rows, 7)
        pixels[(below < 4) & (below >= 0)] = 0.6 * np.array(sand) + 0.4 * 250
        self.paint(row, pixels, (below >= 0).astype(np.float64))

    def furrows(self, horizon: int, soil: Color, crop: Color) -> None:
        """Paint the rows of a field, which converge at a point on the horizon."""
        rows = self.height - horizon
        depth = np.arange(1, rows + 1)[:, None]
        meet = self.rng.uniform(0.1, 0.9) * self.width
        stripe = np.sin((np.arange(self.width) - meet) / depth * self.rng.uniform(9, 20)) > self.rng.uniform(-0.4, 0.4)
        pixels = np.where(stripe[..., None], self.textured(soil, rows, 9), self.textured(crop, rows, 9))
        self.paint(horizon, pixels)

    def flowers(self, horizon: int, count: int, color: Color) -> None:
        for depth in np.sort(self.rng.uniform(0.05, 1, count)):
            x, y = self.rng.uniform(0, self.width), horizon + depth * (self.height - horizon)
            self.disc(x, y, 0.8 + 3.2 * depth, color)

    def tree(self, x: float, y: float, size: float, leaf: Color, trunk: Color, conifer: bool, snow: bool) -> None:
        """Paint a tree with its foot at (x, y). In winter, the tree is bare or covered with snow."""
        self.pen.rectangle((x - size / 28, y - size * 0.35, x + size / 28, y), fill=trunk)
        dark = rgb(np.array(leaf) * 0.78)
        if conifer:
            for k in range(4):
                top, half = y - size * (1 - 0.2 * k), size * (0.1 + 0.055 * k)
                self.pen.polygon(
                    [(x, top), (x - half, top + size * 0.32), (x + half, top + size * 0.32)], fill=(leaf, dark)[k % 2]
                )
            if snow:
                self.pen.polygon(
                    [(x, y - size), (x - size * 0.06, y - size * 0.82), (x + size * 0.06, y - size * 0.82)],
                    fill=(238, 242, 248),
                )
        elif snow:
            for angle in self.rng.uniform(-1.1, 1.1, 12):
                start = y - size * self.rng.uniform(0.3, 0.6)
                self.pen.line(
                    (x, start, x + size * 0.38 * np.sin(angle), start - size * 0.38 * np.cos(angle)),
                    fill=trunk,
                    width=2,
                )
        else:
            for k in range(11):
                angle, out = self.rng.uniform(0, 2 * np.pi), size * self.rng.uniform(0, 0.24)
                self.disc(
                    x + out * np.cos(angle),
                    y - size * 0.62 + out * np.sin(angle),
                    size * self.rng.uniform(0.1, 0.17),
                    (leaf, dark)[k % 3 == 0],
                )

    def palm(self, x: float, y: float, size: float, leaf: Color, trunk: Color) -> None:
        lean = self.rng.uniform(-0.3, 0.3) * size
        top = (x + lean, y - size)
        self.pen.line(
            [(x, y), (x + lean * 0.4, y - size * 0.5), top], fill=trunk, width=max(3, round(size / 22)), joint="curve"
        )
        for angle in np.linspace(-2.5, 2.5, 9) + self.rng.normal(0, 0.12, 9):
            out = size * 0.34 * np.array([np.sin(angle), -np.cos(angle)])
            tip = np.array(top) + out + (0, abs(out[0]) * 0.55)
            middle = np.array(top) + 0.55 * out
            self.pen.line([top, tuple(middle), tuple(tip)], fill=leaf, width=max(3, round(size / 20)), joint="curve")

    def house(self, x: float, y: float, size: float, wall: Color, roof: Color, window: Color) -> None:
        half, tall = size * self.rng.uniform(0.45, 0.75), size * self.rng.uniform(0.5, 0.7)
        self.pen.rectangle((x - half, y - tall, x + half, y), fill=wall)
        over = half * 1.12
        self.pen.polygon([(x - over, y - tall), (x, y - tall - size * 0.42), (x + over, y - tall)], fill=roof)
        for k in (-1, 1):
            self.pen.rectangle(
                (x + k * half * 0.55 - size * 0.1, y - tall * 0.75, x + k * half * 0.55 + size * 0.1, y - tall * 0.4),
                fill=window,
            )
        self.pen.rectangle((x - size * 0.07, y - tall * 0.5, x + size * 0.07, y), fill=rgb(np.array(wall) * 0.45))

    def skyline(self, base: int, wall: Color, window: Color) -> None:
        for layer in range(2):
            x = -10.0
            while x < self.width:
                wide = self.rng.uniform(22, 60)
                tall = base * self.rng.uniform(0.25, 0.9 - 0.25 * layer)
                color = rgb(np.array(wall) * (1.05 - 0.25 * layer) + self.rng.normal(0, 12, 3))
                self.pen.rectangle((x, base - tall, x + wide, base + 3), fill=color)
                for row in np.arange(base - tall + 6, base - 5, 11):
                    for column in np.arange(x + 5, x + wide - 6, 9):
                        if self.rng.random() < 0.55:
                            self.pen.rectangle((column, row, column + 4, row + 5), fill=window)
                x += wide + self.rng.uniform(-4, 14)

    def road(self, horizon: int, asphalt: Color, line: Color) -> Callable[[float], float]:
        """Paint a road that narrows towards the horizon.
        Return a function that maps a depth between 0 and 1 to the center column of the road.
        """
        far, near = self.rng.uniform(0.3, 0.7) * self.width, self.rng.uniform(0.25, 0.75) * self.width
        half, bottom = self.rng.uniform(0.14, 0.34) * self.width, self.height
        self.pen.polygon(
            [(far - 3, horizon), (far + 3, horizon), (near + half, bottom), (near - half, bottom)], fill=asphalt
        )
        for start in np.arange(0.15, 1, 0.2):
            ends = [start**1.5, (start + 0.1) ** 1.5]
            places = [(far + (near - far) * d, horizon + (bottom - horizon) * d) for d in ends]
            self.pen.line(places, fill=line, width=max(1, round(8 * ends[0])))
        return lambda depth: float(far + (near - far) * depth)

    def car(self, x: float, y: float, size: float, paint: Color, lamps: bool) -> None:
        body = (x - size / 2, y - size * 0.3, x + size / 2, y - size * 0.08)
        self.pen.rounded_rectangle(body, radius=size * 0.06, fill=paint)
        self.pen.polygon(
            [
                (x - size * 0.32, y - size * 0.29),
                (x - size * 0.2, y - size * 0.46),
                (x + size * 0.18, y - size * 0.46),
                (x + size * 0.34, y - size * 0.29),
            ],
            fill=rgb(np.array(paint) * 0.55),
        )
        for k in (-0.28, 0.28):
            self.disc(x + k * size, y - size * 0.07, size * 0.09, (25, 25, 28))
        if lamps:
            self.disc(x + size * 0.48, y - size * 0.2, size * 0.06, (255, 240, 170))

    def boat(self, x: float, y: float, size: float, sail: Color, hull: Color) -> None:
        self.pen.polygon(
            [
                (x - size / 2, y - size * 0.14),
                (x + size / 2, y - size * 0.14),
                (x + size * 0.34, y + size * 0.06),
                (x - size * 0.36, y + size * 0.06),
            ],
            fill=hull,
        )
        if self.rng.random() < 0.7:
            self.pen.polygon(
                [(x, y - size * 0.98), (x, y - size * 0.18), (x + size * 0.42, y - size * 0.18)], fill=sail
            )
            self.pen.polygon(
                [
                    (x - size * 0.05, y - size * 0.85),
                    (x - size * 0.05, y - size * 0.18),
                    (x - size * 0.35, y - size * 0.18),
                ],
                fill=sail,
            )
        else:
            self.pen.rectangle((x - size * 0.2, y - size * 0.34, x + size * 0.2, y - size * 0.14), fill=sail)

    def sheep(self, x: float, y: float, size: float, wool: Color) -> None:
        for k in (-0.28, 0.22):
            self.pen.line(
                (x + k * size, y, x + k * size, y - size * 0.4), fill=(50, 45, 45), width=max(1, round(size / 9))
            )
        self.pen.ellipse((x - size / 2, y - size * 0.75, x + size / 2, y - size * 0.2), fill=wool)
        self.pen.ellipse((x + size * 0.35, y - size * 0.8, x + size * 0.68, y - size * 0.5), fill=(45, 42, 42))
