"""Draw labeled images of landscapes, coasts, towns and weather, similar to stock photographs.

The images are free of third-party rights, because every scene is generated from a seed and its number. Light, weather,
season, camera settings and contents vary, so that no label is determined by a single color. For example, grass can be
green, brown or gray.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scene_objects import Canvas, Color, rgb

from dmo.errors import UserError
from dmo.features.images import need_library
from dmo.progress import stage

LABEL_NAMES = (
    *(
        "beach",
        "bird",
        "boat",
        "building",
        "car",
        "city",
        "cloud",
        "desert",
        "field",
        "flower",
        "fog",
        "forest",
        "grass",
    ),
    *("house", "moon", "mountain", "night", "palm", "road", "sea", "sheep", "sky", "snow", "sun", "sunset", "tree"),
)
WIDTH, HEIGHT = 192, 128
KINDS = {"coast": 0.2, "meadow": 0.2, "mountains": 0.18, "town": 0.16, "city": 0.1, "forest": 0.08, "desert": 0.08}
LIGHTS = {"day": 0.5, "overcast": 0.17, "sunset": 0.19, "night": 0.14}
_LOOKING_DOWN = 0.15
"""Fraction of the images that show only a strip of the sky, in which the sky is not labeled."""
_SKIES: dict[str, tuple[Color, Color]] = {
    "day": ((70, 130, 210), (185, 215, 240)),
    "overcast": ((150, 158, 168), (205, 208, 212)),
    "sunset": ((70, 70, 130), (250, 150, 70)),
    "night": ((8, 10, 30), (30, 36, 70)),
}
_AMBIENT: dict[str, Color] = {
    "day": (255, 255, 250),
    "overcast": (205, 210, 218),
    "sunset": (215, 150, 120),
    "night": (70, 80, 120),
}


@dataclass
class Scene:
    """State of a drawing, such as the canvas, the light, the season, the row of the horizon and the current labels."""

    canvas: Canvas
    rng: np.random.Generator
    light: str
    winter: bool
    horizon: int
    labels: set[str] = field(default_factory=set)

    @property
    def looks_down(self) -> bool:
        """Whether only a strip of the sky is visible."""
        return self.horizon < 0.15 * self.canvas.height

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def lit(self, color: Color, spread: float = 18.0) -> Color:
        """Vary a color randomly, and apply the light of the scene."""
        ambient = np.array(_AMBIENT[self.light]) / 255
        return rgb((np.array(color) + self.rng.normal(0, spread, 3)) * ambient)


def draw_scene(number: int, seed: int = 0) -> tuple[np.ndarray, list[str]]:
    """Draw the scene of a number and a seed, and return its image (128 x 192 x 3, uint8) and its sorted labels."""
    rng = np.random.default_rng((seed, number))
    light = _pick(rng, LIGHTS)
    kind = _pick(rng, KINDS)
    canvas = Canvas(2 * WIDTH, 2 * HEIGHT, rng)
    winter = kind not in ("desert", "coast") and rng.random() < 0.22
    # Buildings and mountains rise above the horizon, so cities and mountains need a visible sky.
    down = rng.random() < _LOOKING_DOWN and kind not in ("city", "mountains")
    horizon = 0.06 if down else rng.uniform(0.28, 0.62)
    scene = Scene(canvas, rng, light, winter, int(canvas.height * horizon))
    _sky(scene)
    _GROUNDS[kind](scene)
    if scene.chance(0.12) and light != "night":
        canvas.fog(rng.uniform(0.35, 0.7), scene.lit((225, 228, 232), 5))
        scene.labels.add("fog")
    return _photograph(canvas, rng), sorted(scene.labels)


def draw_images(folder: str | os.PathLike[str], n: int = 600, seed: int = 0, test_share: float = 0.25) -> Path:
    """Write drawn scenes as JPEG files with a table of their labels into a folder.

    The table `labels.csv` has the columns "file", "labels" and "split". The last fraction `test_share` of the scenes
    belongs to the split "test". Existing files are kept. The function returns the path of the table.
    """
    Image = need_library("PIL.Image")
    if n < 8:
        raise UserError(f"draw_images: n = {n} scenes, needs at least 8")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    first_test = n - max(1, round(n * test_share))
    lines = ["file,labels,split"]
    with stage("draw images", n) as advance:
        for i in range(n):
            pixels, labels = draw_scene(i, seed)
            path = folder / f"scene-{i:05d}.jpg"
            if not path.exists():
                part = path.with_suffix(".part")
                Image.fromarray(pixels).save(part, format="JPEG", quality=90)
                os.replace(part, path)
            lines.append(f"{path.name},{';'.join(labels)},{'test' if i >= first_test else 'train'}")
            advance(1)
    table = folder / "labels.csv"
    table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return table


def _pick(rng: np.random.Generator, shares: dict[str, float]) -> str:
    weights = np.array(list(shares.values()))
    return list(shares)[rng.choice(len(weights), p=weights / weights.sum())]


def _photograph(canvas: Canvas, rng: np.random.Generator) -> np.ndarray:
    """Simulate a camera with random white balance, exposure, blur and noise. A few images are black and white."""
    pixels = canvas.reduced()
    pixels *= rng.normal(1, 0.06, 3) * rng.uniform(0.8, 1.18)
    pixels = (pixels - 110) * rng.uniform(0.75, 1.2) + 110
    if rng.random() < 0.06:
        pixels = np.repeat(pixels @ np.array([[0.299], [0.587], [0.114]]), 3, axis=2)
    pixels += rng.normal(0, rng.uniform(1, 9), pixels.shape)
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)


def _sky(scene: Scene) -> None:
    canvas, rng, light = scene.canvas, scene.rng, scene.light
    top, low = (rgb(np.array(color) + rng.normal(0, 14, 3)) for color in _SKIES[light])
    canvas.gradient(0, scene.horizon, top, low)
    if light == "night":
        scene.labels.add("night")
    if scene.looks_down:
        return
    if light == "night":
        canvas.stars(scene.horizon, int(rng.integers(0, 60)))
    else:
        scene.labels.add("sky")
    x, radius = rng.uniform(0.1, 0.9) * canvas.width, rng.uniform(9, 20)
    if light == "night" and scene.chance(0.55):
        canvas.disc(x, rng.uniform(0.2, 0.7) * scene.horizon, radius, (235, 235, 220))
        scene.labels.add("moon")
    elif light == "sunset":
        scene.labels.add("sunset")
        if scene.chance(0.6):
            canvas.glow(x, scene.horizon - radius * rng.uniform(0.2, 2), radius, (255, 205, 110))
            scene.labels.add("sun")
    elif light == "day" and scene.chance(0.35):
        canvas.glow(x, rng.uniform(0.15, 0.6) * scene.horizon, radius, (255, 250, 205))
        scene.labels.add("sun")
    cover = {"day": 0.5, "overcast": 1.0, "sunset": 0.6, "night": 0.15}[light]
    if scene.chance(cover):
        bright = {"day": (248, 248, 250), "overcast": (172, 176, 182), "sunset": (205, 105, 95), "night": (48, 52, 78)}
        canvas.clouds(scene.horizon, rgb(bright[light]), rng.uniform(0.35, 0.65))
        scene.labels.add("cloud")
    if light != "night" and scene.chance(0.13):
        for _ in range(rng.integers(1, 7)):
            at = rng.uniform(0.1, 0.9) * canvas.width, rng.uniform(0.1, 0.85) * scene.horizon
            canvas.bird(*at, rng.uniform(5, 15), scene.lit((45, 45, 50)))
        scene.labels.add("bird")


def _meadow_ground(scene: Scene, labels: bool = True) -> None:
    """Paint grass below the horizon, or snow in winter."""
    color = scene.lit((232, 237, 245), 6) if scene.winter else scene.lit((88, 135, 55))
    scene.canvas.rolling(scene.horizon, color, 5 if scene.winter else 17)
    if labels:
        scene.labels.add("snow" if scene.winter else "grass")


def _trees(scene: Scene, count: int, label: str = "tree") -> None:
    canvas, rng = scene.canvas, scene.rng
    conifer = rng.random() < 0.45
    autumn = not scene.winter and rng.random() < 0.2
    feet = np.sort(rng.uniform(0.0, 1, count)) ** 1.5
    for depth in feet:
        y = scene.horizon + depth * (canvas.height - scene.horizon) * 0.9
        size = (0.18 + 0.5 * depth) * canvas.height * rng.uniform(0.6, 1.1)
        leaf = (165, 100, 40) if autumn else (40, 78, 42) if conifer else (58, 105, 45)
        canvas.tree(
            rng.uniform(0, canvas.width), y, size, scene.lit(leaf), scene.lit((75, 55, 40)), conifer, scene.winter
        )
    if count:
        scene.labels.add(label)


def _mountain_range(scene: Scene) -> None:
    canvas, rng = scene.canvas, scene.rng
    snowy = scene.winter or rng.random() < 0.55
    for layer in range(rng.integers(1, 4)):
        height = canvas.height * rng.uniform(0.16, 0.4) * (1 - 0.2 * layer)
        rock = scene.lit((112 - 12 * layer, 108 - 8 * layer, 118 - 18 * layer), 10)
        canvas.ridge(scene.horizon, height, rock, scene.lit((240, 243, 250), 4) if snowy and layer < 2 else None)
    scene.labels |= {"mountain", "snow"} if snowy else {"mountain"}


def _coast(scene: Scene) -> None:
    canvas, rng = scene.canvas, scene.rng
    if scene.chance(0.25) and not scene.looks_down:
        _mountain_range(scene)
    water = scene.lit((35, 95, 130)) if scene.chance(0.75) else scene.lit((60, 140, 140))
    canvas.water(scene.horizon, water, canvas.row_color(scene.horizon - 3))
    scene.labels.add("sea")
    if scene.chance(0.3):
        for _ in range(rng.integers(1, 4)):
            depth = rng.uniform(0.04, 0.5)
            y = scene.horizon + depth * (canvas.height - scene.horizon)
            canvas.boat(
                rng.uniform(0.1, 0.9) * canvas.width,
                y,
                16 + 60 * depth,
                scene.lit((235, 235, 230)),
                scene.lit((120, 40, 35)),
            )
        scene.labels.add("boat")
    if scene.chance(0.6):
        shore = int(scene.horizon + (canvas.height - scene.horizon) * rng.uniform(0.35, 0.75))
        canvas.shore(shore, scene.lit((215, 190, 140)))
        scene.labels.add("beach")
        if scene.chance(0.45):
            for _ in range(rng.integers(1, 4)):
                size = canvas.height * rng.uniform(0.35, 0.8)
                at = rng.uniform(0, canvas.width), rng.uniform(0.85, 1.05) * canvas.height
                canvas.palm(*at, size, scene.lit((50, 110, 50)), scene.lit((110, 85, 60)))
            scene.labels.add("palm")


def _meadow(scene: Scene) -> None:
    canvas, rng = scene.canvas, scene.rng
    if scene.chance(0.2) and not scene.looks_down:
        _mountain_range(scene)
    if scene.chance(0.3) and not scene.winter:
        soil = scene.lit((190, 165, 70)) if scene.chance(0.6) else scene.lit((95, 70, 45))
        canvas.furrows(scene.horizon, soil, scene.lit((110, 140, 60)))
        scene.labels.add("field")
    else:
        _meadow_ground(scene)
        if scene.chance(0.3) and not scene.winter:
            canvas.flowers(
                scene.horizon, int(rng.integers(60, 400)), scene.lit(_PETALS[rng.integers(len(_PETALS))], 25)
            )
            scene.labels.add("flower")
    if scene.chance(0.3):
        _road(scene)
    if scene.chance(0.6):
        _trees(scene, int(rng.integers(1, 7)))
    if scene.chance(0.22):
        for _ in range(rng.integers(2, 10)):
            depth = rng.uniform(0.15, 0.9)
            y = scene.horizon + depth * (canvas.height - scene.horizon)
            canvas.sheep(rng.uniform(0, canvas.width), y, 8 + 20 * depth, scene.lit((225, 220, 208), 8))
        scene.labels.add("sheep")
    if scene.chance(0.15):
        _houses(scene, 1)


_PETALS: tuple[Color, ...] = ((225, 60, 70), (240, 215, 60), (175, 90, 195), (245, 240, 245))


def _mountains(scene: Scene) -> None:
    _mountain_range(scene)
    if scene.chance(0.3):
        scene.canvas.water(scene.horizon, scene.lit((60, 100, 120)), scene.canvas.row_color(scene.horizon - 8))
        if scene.chance(0.5):
            scene.canvas.boat(
                scene.rng.uniform(0.2, 0.8) * scene.canvas.width,
                scene.horizon + 30,
                30,
                *[scene.lit((225, 220, 210))] * 2,
            )
            scene.labels.add("boat")
        scene.labels.add("sea")
    else:
        _meadow_ground(scene)
    if scene.chance(0.5):
        _trees(scene, int(scene.rng.integers(2, 12)))


def _houses(scene: Scene, count: int) -> None:
    canvas, rng = scene.canvas, scene.rng
    for depth in np.sort(rng.uniform(0.0, 0.6, count)):
        y = scene.horizon + (0.05 + depth) * (canvas.height - scene.horizon)
        wall = ((225, 215, 195), (190, 110, 85), (200, 200, 205), (225, 190, 120))[rng.integers(4)]
        roof = (235, 240, 245) if scene.winter else ((150, 60, 45), (85, 80, 85))[rng.integers(2)]
        window = (245, 215, 120) if scene.light == "night" else scene.lit((70, 80, 95))
        canvas.house(
            rng.uniform(0.05, 0.95) * canvas.width,
            y,
            (0.2 + 0.3 * depth) * canvas.height,
            scene.lit(wall),
            scene.lit(roof),
            window,
        )
    scene.labels.add("house")


def _road(scene: Scene) -> None:
    canvas, rng = scene.canvas, scene.rng
    near = canvas.road(scene.horizon, scene.lit((98, 98, 102), 8), scene.lit((225, 225, 215), 6))
    scene.labels.add("road")
    if scene.chance(0.45):
        for _ in range(rng.integers(1, 4)):
            depth = rng.uniform(0.25, 0.9)
            y = scene.horizon + depth * (canvas.height - scene.horizon)
            paint = ((190, 40, 40), (40, 80, 160), (225, 225, 225), (50, 50, 55))[rng.integers(4)]
            at = near(depth) + rng.normal(0, 10 * depth)
            canvas.car(at, y, 14 + 60 * depth, scene.lit(paint), scene.light == "night")
        scene.labels.add("car")


def _town(scene: Scene) -> None:
    _meadow_ground(scene, labels=scene.winter or scene.chance(0.9))
    if scene.chance(0.55):
        _road(scene)
    if scene.chance(0.5):
        _trees(scene, int(scene.rng.integers(1, 6)))
    _houses(scene, int(scene.rng.integers(1, 6)))


def _city(scene: Scene) -> None:
    canvas = scene.canvas
    lights = scene.light in ("night", "sunset")
    canvas.skyline(scene.horizon, scene.lit((120, 122, 130)), (250, 220, 130) if lights else scene.lit((165, 185, 205)))
    scene.labels |= {"building", "city"}
    if scene.chance(0.4):
        canvas.water(scene.horizon, scene.lit((45, 75, 95)), canvas.row_color(scene.horizon - 6))
        scene.labels.add("sea")
        return
    canvas.rolling(scene.horizon, scene.lit((120, 118, 115), 8), 7)
    if scene.chance(0.8):
        _road(scene)
    if scene.chance(0.3):
        _trees(scene, int(scene.rng.integers(1, 5)))


def _forest(scene: Scene) -> None:
    _meadow_ground(scene)
    _trees(scene, int(scene.rng.integers(22, 45)), label="forest")
    scene.labels.add("tree")
    if scene.chance(0.2):
        _road(scene)


def _desert(scene: Scene) -> None:
    canvas, rng = scene.canvas, scene.rng
    for layer in range(rng.integers(1, 4)):
        color = scene.lit((214 - 14 * layer, 165 - 12 * layer, 105 - 8 * layer), 9)
        canvas.rolling(scene.horizon + 26 * layer, color, 6, swell=rng.uniform(8, 22))
    scene.labels.add("desert")
    if scene.chance(0.25):
        canvas.palm(
            rng.uniform(0, 1) * canvas.width,
            canvas.height * 0.9,
            canvas.height * 0.5,
            scene.lit((60, 105, 50)),
            scene.lit((115, 90, 60)),
        )
        scene.labels.add("palm")
    if scene.chance(0.3):
        _road(scene)


_GROUNDS: dict[str, Callable[[Scene], Any]] = {
    "coast": _coast,
    "meadow": _meadow,
    "mountains": _mountains,
    "town": _town,
    "city": _city,
    "forest": _forest,
    "desert": _desert,
}
