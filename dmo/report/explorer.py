"""Samples that a reader of a page searches by labels, sees on a map, and opens with all that a model says of them."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dmo.errors import UserError, amount

MOST_SAMPLES, MOST_SCORES, MOST_LABELS = 20_000, 2**21, 1000
"""Samples, scores and labels of a page at most: 4 MiB of scores, and a map that a phone draws in a tenth of a second."""
IMAGE_BYTES, IMAGE_SIDE = 6 * 2**20, 256
"""Bytes that the images of a page take at most, and the longer side of one in pixels."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples of a page, with the labels they have and those that models give them.

    Of more than 20 000 samples or 2 million scores some are shown, evenly chosen; of more than 1000 labels those with most
    positives can be searched for; images are taken in, in the order of `order` from both ends, up to 6 MiB. The page says so.

    Parameters
    ----------
    ids : sequence of str
        n names.
    names : sequence of str
        L names of labels.
    Y : ndarray of shape (n, L)
        Labels, 0/1; NaN is one that is not known.
    scores : ndarray of shape (n, L)
        What samples are ranked by; of a label comparable among samples.
    given : mapping of str to ndarray of int of shape (n, k)
        The labels that a model gives, best first, by the name of the model; -1 after the last.
    order : ndarray of int of shape (n,)
        All samples, those that the first model annotates best first.
    plane : ndarray of shape (n, 2) or None, default=None
        Places on the map; None: no map.
    axes : tuple of str, default=("component 1", "component 2")
        What the places are.
    score : str, default="score"
        What a score is called.
    image : callable or None, default=None
        Takes the number of a sample, returns its image (h x w, dark is small, or h x w x 3) or None.
    caption : str, default="Samples"
        Stands above it.

    Raises
    ------
    UserError
        Where shapes do not fit, no model gives labels, and for scores that are no numbers.

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
    plane: np.ndarray | None = None
    axes: tuple[str, str] = ("component 1", "component 2")
    score: str = "score"
    image: Callable[[int], np.ndarray | None] | None = None
    caption: str = "Samples"

    def __post_init__(self) -> None:
        n, L = self.Y.shape
        shapes = {"ids": (len(self.ids),), "scores": self.scores.shape, "order": self.order.shape}
        shapes |= {f"the labels given by {name}": rows.shape[:1] for name, rows in self.given.items()}
        shapes |= {} if self.plane is None else {"plane": self.plane.shape}
        wanted = {"scores": (n, L), "plane": (n, 2)}
        for name, shape in shapes.items():
            if shape != wanted.get(name, (n,)):
                raise UserError(f"Samples: {name} has shape {shape}, need {wanted.get(name, (n,))} like the labels")
        if not self.given:
            raise UserError("Samples: no model gives labels; pass those of one at least")
        if len(self.names) != L or not np.isfinite(self.scores).all():
            raise UserError(f"Samples: {len(self.names)} names for {L} labels, or scores that are not finite")

    def payload(self) -> dict[str, Any]:
        """Make what the template and the script of the page take.

        Returns
        -------
        dict
            "caption", "notes" (what was left out, in words) and "data", which is JSON.
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
        return {
            "caption": self.caption,
            "notes": [*self._cuts(shown, searched), *named],
            "data": {
                "ids": [self.ids[i] for i in shown],
                "names": [self.names[j] for j in kept],
                "searched": len(searched),
                "scores": base64.b64encode(steps.tobytes()).decode(),
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
                "plane": None if self.plane is None else np.round(self._scaled(shown), 4).tolist(),
                "axes": list(self.axes),
                "images": {str(place): data for place, data in images.items()},
            },
        }

    def _shown(self) -> np.ndarray:
        n, width = len(self.ids), min(len(self.names), MOST_LABELS)
        most = min(n, MOST_SAMPLES, max(1, MOST_SCORES // width))
        return np.linspace(0, n - 1, most).astype(int)

    def _searched(self) -> np.ndarray:
        """The labels with scores, in the order of the store."""
        counts = np.nansum(self.Y, axis=0).astype(np.int64)
        return np.sort(np.argsort(-counts, kind="stable")[:MOST_LABELS])

    def _scaled(self, shown: np.ndarray) -> np.ndarray:
        """Places within -1..1 in both directions, by one factor: distances stay as they are."""
        assert self.plane is not None
        places = self.plane[shown] - (self.plane[shown].max(axis=0) + self.plane[shown].min(axis=0)) / 2
        return places / (np.abs(places).max() or 1.0)

    def _images(self, shown: np.ndarray) -> tuple[dict[int, str], list[str]]:
        """Images of the samples shown as data URIs, best and worst annotated first, and what is said of them."""
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
        if found and len(found) < len(shown):
            return found, [
                f"{len(found):,} of {len(shown):,} samples with their images ({amount(IMAGE_BYTES)} at most)."
            ]
        return found, []

    def _cuts(self, shown: np.ndarray, searched: np.ndarray) -> list[str]:
        """What was left out, in words."""
        said = []
        if len(shown) < len(self.ids):
            said.append(f"{len(shown):,} of {len(self.ids):,} samples, evenly chosen.")
        if len(searched) < len(self.names):
            said.append(
                f"{len(searched):,} of {len(self.names):,} labels can be searched for, those with most samples."
            )
        return said


def _from_both_ends(order: np.ndarray) -> np.ndarray:
    """First, last, second, last but one ..."""
    half = -(-len(order) // 2)
    mixed = np.empty(len(order), order.dtype)
    mixed[::2], mixed[1::2] = order[:half], order[half:][::-1]
    return mixed


def _data_uri(image: np.ndarray) -> str:
    """An image as the page holds it: WebP, and PNG where it is so small that every pixel counts."""
    from PIL import Image

    pixels = np.asarray(image)
    if pixels.dtype != np.uint8:
        low, high = float(pixels.min()), float(pixels.max())
        pixels = ((pixels - low) / ((high - low) or 1.0) * 255).astype(np.uint8)
    picture, buffer = Image.fromarray(pixels), io.BytesIO()
    small = max(picture.size) <= 64
    picture.thumbnail((IMAGE_SIDE, IMAGE_SIDE))
    picture.save(buffer, "PNG" if small else "WEBP", quality=75)
    return f"data:image/{'png' if small else 'webp'};base64,{base64.b64encode(buffer.getvalue()).decode()}"
