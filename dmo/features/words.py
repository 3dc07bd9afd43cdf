"""Visual words: a vocabulary of local descriptors, learned by mini-batch k-means, and the words of an image."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dmo.errors import UserError
from dmo.features.descriptors import band_histogram
from dmo.hashing import digest


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Visual words: the word of a local descriptor is the nearest center.

    Parameters
    ----------
    centers : ndarray of shape (words, d), float32
        The words.

    References
    ----------
    Sivic, Zisserman 2003.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.features import Vocabulary
    >>> vocabulary = Vocabulary(np.array([[0.0, 0.0], [1.0, 1.0]], np.float32))
    >>> vocabulary.words(np.array([[0.9, 1.2], [0.1, 0.0]], np.float32))
    array([1, 0])
    """

    centers: np.ndarray

    @classmethod
    def checked(cls, centers: np.ndarray) -> Vocabulary:
        """Make the vocabulary of centers that were read from a file.

        Parameters
        ----------
        centers : ndarray of shape (words, d), float32
            The words; anything else is refused.

        Returns
        -------
        Vocabulary
            The vocabulary.

        Raises
        ------
        ValueError
            For what is no matrix of finite numbers.
        """
        right = isinstance(centers, np.ndarray) and centers.ndim == 2 and 0 not in centers.shape
        if not right or centers.dtype.kind != "f" or not np.isfinite(centers).all():
            raise ValueError("its words are no matrix of numbers")
        return cls(centers)

    @cached_property
    def _half_squares(self) -> np.ndarray:
        return (self.centers**2).sum(axis=1) / 2

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the centers, in hexadecimal."""
        return digest(self.centers.astype("<f4"))

    def words(self, descriptors: np.ndarray) -> np.ndarray:
        """Find the word of every descriptor.

        Parameters
        ----------
        descriptors : ndarray of shape (m, d), float32
            Local descriptors.

        Returns
        -------
        ndarray of shape (m,), intp
            Numbers of words.
        """
        scores = descriptors @ self.centers.T
        scores -= self._half_squares
        return scores.argmax(axis=1)

    def histogram(self, words: np.ndarray, y: np.ndarray, height: int, bands: int = 1) -> np.ndarray:
        """Shares of the words in horizontal bands.

        Parameters
        ----------
        words : ndarray of int of shape (m,)
            The word of every point.
        y : ndarray of shape (m,)
            Rows of the points, 0..height.
        height : int
            Of the image, in pixels.
        bands : int, default=1
            Horizontal bands of equal height.

        Returns
        -------
        ndarray of shape (bands * words,), float32
            Shares that add up to 1, or zeros without any point.
        """
        rows = np.clip(y.astype(np.int64), 0, height - 1)
        return band_histogram(words, len(self.centers), rows, height, bands)


def learn_vocabulary(descriptors: np.ndarray, words: int, seed: int = 0) -> Vocabulary:
    """Learn a vocabulary from a sample of local descriptors, by mini-batch k-means.

    Parameters
    ----------
    descriptors : ndarray of shape (m, d), float32
        The sample.
    words : int
        Words, at most: where the sample has fewer different descriptors, each of them is a word.
    seed : int, default=0
        Of the starts.

    Returns
    -------
    Vocabulary
        The words.

    Raises
    ------
    UserError
        For an empty sample.

    References
    ----------
    Sculley 2010, by scikit-learn.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.features import learn_vocabulary
    >>> sample = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    >>> learn_vocabulary(sample, words=5).centers.shape
    (5, 4)
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
