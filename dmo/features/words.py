"""Visual words: a vocabulary of local descriptors, learnt by mini-batch k-means, and the words of a image."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dmo.errors import UserError
from dmo.features.colors import band_histogram


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """`centers`, words x d float32: a local descriptor's word is the nearest center. Source: Sivic, Zisserman 2003."""

    centers: np.ndarray

    @cached_property
    def _half_squares(self) -> np.ndarray:
        return (self.centers**2).sum(axis=1) / 2

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the centers, in hexadecimal."""
        data = np.ascontiguousarray(self.centers, dtype="<f4")
        return hashlib.sha256(repr(data.shape).encode() + data.tobytes()).hexdigest()

    def words(self, descriptors: np.ndarray) -> np.ndarray:
        """The word of every descriptor (m x d): m integers."""
        scores = descriptors @ self.centers.T
        scores -= self._half_squares
        return scores.argmax(axis=1)

    def histogram(self, words: np.ndarray, y: np.ndarray, height: int, bands: int = 1) -> np.ndarray:
        """Shares of the words in horizontal bands: bands * words float32 that add up to 1, or zeros without any.

        Arguments: `words` (m); `y`, the rows of their points (m), 0..height.
        """
        rows = np.clip(y.astype(np.int64), 0, height - 1)
        return band_histogram(words, len(self.centers), rows, height, bands)


def learn_vocabulary(descriptors: np.ndarray, words: int, seed: int = 0) -> Vocabulary:
    """A vocabulary of at most `words` words from a sample of local descriptors (m x d).

    Where the sample has fewer different descriptors, each of them is a word. Raises ValueError for an empty sample.
    Source: mini-batch k-means, Sculley 2010, by scikit-learn.
    """
    from sklearn.cluster import MiniBatchKMeans

    if not len(descriptors):
        raise UserError("learn_vocabulary: no local descriptors; the training images have no points, pass others")
    distinct = np.unique(descriptors, axis=0) if len(descriptors) <= 4 * words else descriptors
    if len(distinct) <= words:
        return Vocabulary(distinct.astype(np.float32))
    means = MiniBatchKMeans(
        words, batch_size=8192, n_init=3, max_iter=8, random_state=seed, init_size=max(1000, 3 * words)
    )
    means.fit(distinct)
    return Vocabulary(means.cluster_centers_.astype(np.float32))
