"""Generated feature stores of any size, with the shapes, sparsity and label statistics of image annotation sets.

They replace data sets whose real features are not public. Labels have the frequencies of the set and co-occur by topic.
The rows of every view depend on the labels, so that annotation is possible, with enough noise that it is not trivial.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dmo.blocks import row_blocks
from dmo.datasets import Samples
from dmo.errors import UserError

_BLOCK = 1024  # Rows are generated in blocks of this size; changing it changes the data of a seed.
_TOPICS = 24


@dataclass(frozen=True)
class Shape:
    """Training and test samples, labels, mean number of labels per sample; views as in Table 2 of [KGHA]."""

    train: int
    test: int
    labels: int
    per_sample: float


SHAPES = {
    "espgame": Shape(18_689, 2_081, 268, 4.69),
    "iaprtc12": Shape(17_665, 1_962, 291, 5.72),
    "corel5k": Shape(4_500, 499, 260, 3.40),
}
_VIEWS = {  # dimension, fraction of non-zero entries (None: dense real numbers), mean row sum of the counts
    "rgb": (5184, 0.07, 24_576),
    "lab": (5184, 0.04, 24_576),
    "hsv": (5184, 0.15, 24_576),
    "gist": (512, None, 0),
    "dense_sift": (3000, 0.23, 1_284),
    "harris_sift": (3000, 0.16, 968),
    "dense_hue": (300, 0.24, 1_284),
    "harris_hue": (300, 0.21, 968),
}


HISTOGRAMS = {view for view, (_, density, _) in _VIEWS.items() if density is not None}
"""Views that contain counts."""


def generated(like: str = "espgame", scale: float = 1.0, seed: int = 0) -> Samples:
    """Create a lazy source of rows with the shape, sparsity and label statistics of a public data set.

    `scale` multiplies the number of rows. Row i does not depend on the block size or the scale.
    """
    if like not in SHAPES:
        raise UserError(f"generated data like {like!r}: unknown set; known: {', '.join(SHAPES)}")
    shape = SHAPES[like]
    counts = {"train": round(shape.train * scale), "test": max(1, round(shape.test * scale))}
    n = sum(counts.values())
    if counts["train"] < 1 or n < 2:
        raise UserError(f"generated data: scale {scale:g} leaves {n} samples; pass a larger scale")
    labels = LabelRows(n, shape.labels, shape.per_sample, seed)
    views: dict[str, Any] = {}
    for number, (view, (dimension, density, total)) in enumerate(_VIEWS.items()):
        key = (seed, number + 1)
        if density is None:
            views[view] = RealRows(labels, dimension, key)
        else:
            views[view] = CountRows(labels, dimension, density, total, key)
    return Samples(
        views,
        labels=labels[:],
        label_names=[f"label {j}" for j in range(shape.labels)],
        split=np.repeat(np.array(list(counts), object), list(counts.values())),
        attributes={"generated_like": like, "scale": scale, "seed": seed},
    )


@dataclass(frozen=True)
class _Drawn:
    """A row source that generates its rows in fixed blocks, each from its own seed."""

    @property
    def shape(self) -> tuple[int, int]:
        raise NotImplementedError

    def _draw(self, number: int, n: int) -> np.ndarray:
        raise NotImplementedError

    def __getitem__(self, where: slice) -> np.ndarray:
        start, stop, step = where.indices(self.shape[0])
        if step != 1:
            raise UserError(f"generated rows must be read in order, got a step of {step}; pass a slice with step 1")
        parts = [self._draw(0, 0)]
        for block in row_blocks(self.shape[0], _BLOCK)[start // _BLOCK : max(start, stop - 1) // _BLOCK + 1]:
            drawn = self._draw(block.start // _BLOCK, _BLOCK)
            parts.append(drawn[max(start - block.start, 0) : max(min(stop, block.stop) - block.start, 0)])
        return np.concatenate(parts)


@dataclass(frozen=True)
class LabelRows(_Drawn):
    """Labels (n x L uint8) with frequencies (rank + 2)^-0.75, as in ESP Game; a topic raises some labels together."""

    n: int
    n_labels: int
    per_sample: float
    seed: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.n, self.n_labels

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.uint8)

    def _draw(self, number: int, n: int) -> np.ndarray:
        rng = np.random.default_rng((self.seed, 0))
        lift = rng.gamma(0.5, 2.0, (_TOPICS, self.n_labels))
        frequency = (np.arange(self.n_labels) + 2.0) ** -0.75
        chance = frequency * lift / lift.mean(axis=0)
        chance *= (
            self.per_sample / np.minimum(chance * self.per_sample / chance.sum(axis=1).mean(), 0.9).sum(axis=1).mean()
        )
        chance = np.minimum(chance * self.per_sample / chance.sum(axis=1).mean(), 0.9)
        rng = np.random.default_rng((self.seed, 0, number))
        topic = rng.integers(0, _TOPICS, n)
        Y = rng.random((n, self.n_labels)) < chance[topic]
        bare = np.flatnonzero(~Y.any(axis=1))
        Y[bare, rng.choice(self.n_labels, len(bare), p=frequency / frequency.sum())] = True
        return Y.astype(np.uint8)


@dataclass(frozen=True)
class CountRows(_Drawn):
    """Counts (n x d uint16): every event picks a label of the sample (or the background) and a bin of its profile."""

    labels: LabelRows
    dimension: int
    density: float
    total: float
    key: tuple[int, int]

    @property
    def shape(self) -> tuple[int, int]:
        return self.labels.n, self.dimension

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.uint16)

    def _draw(self, number: int, n: int) -> np.ndarray:
        rng = np.random.default_rng(self.key)
        d, n_labels = self.dimension, self.labels.n_labels
        common = rng.permutation((np.arange(d) + 3.0) ** -0.7)
        # The profile of a label is the background with 4 % of the bins raised.
        raised = np.where(rng.random((n_labels + 1, d)) < 0.04, rng.gamma(0.5, 40.0, (n_labels + 1, d)), 0.3)
        raised[-1] = 1.0
        profiles = np.cumsum(common * raised, axis=1)
        rng = np.random.default_rng((*self.key, number))
        Y = self.labels._draw(number, n)
        counts = np.zeros((n, d), np.uint16)
        events = max(1, round(1.7 * self.density * d))
        weight = max(1, round(self.total / events))
        for i in range(n):
            own = np.append(np.flatnonzero(Y[i]), n_labels)
            share = rng.dirichlet(np.full(len(own), 2.0))
            for profile, size in zip(own, rng.multinomial(events, share), strict=True):
                bins = np.searchsorted(profiles[profile], rng.random(size) * profiles[profile, -1])
                np.add.at(counts[i], bins, rng.poisson(weight - 1, size).astype(np.uint16) + np.uint16(1))
        return counts


@dataclass(frozen=True)
class RealRows(_Drawn):
    """Positive dense features (n x d float32): mixtures of one pattern per label, and noise."""

    labels: LabelRows
    dimension: int
    key: tuple[int, int]

    @property
    def shape(self) -> tuple[int, int]:
        return self.labels.n, self.dimension

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.float32)

    def _draw(self, number: int, n: int) -> np.ndarray:
        rng = np.random.default_rng(self.key)
        # Patterns share 40 directions, similar to filter responses.
        basis = rng.standard_normal((40, self.dimension))
        patterns = rng.standard_normal((self.labels.n_labels, 40)) @ basis / 40**0.5
        rng = np.random.default_rng((*self.key, number))
        Y = self.labels._draw(number, n).astype(np.float64)
        mixed = (Y * rng.gamma(2.0, 0.5, Y.shape)) @ patterns / np.sqrt(np.maximum(Y.sum(axis=1, keepdims=True), 1.0))
        noise = rng.standard_normal((n, 40)) @ basis / 40**0.5 + 0.3 * rng.standard_normal((n, self.dimension))
        return (0.05 * np.exp(0.35 * (mixed + noise))).astype(np.float32)
