"""Handwritten digits of scikit-learn as an example data set with four views and fourteen labels."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from dmo.datasets import Samples

LABEL_NAMES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    *("even", "below five", "has a loop", "straight strokes"),
)
_ATTRIBUTES = ((0, 2, 4, 6, 8), (0, 1, 2, 3, 4), (0, 6, 8, 9), (1, 4, 7))
"""Digits that have each of the last four labels. A digit with "straight strokes" is drawn without a curve."""
N_TRAIN = 1200
DIGITS = "digits"
"""Name of the data set in the attributes of its feature store."""


class Digits(NamedTuple):
    """Four views of handwritten digits, their labels, and the images of 8 x 8 pixels."""

    views: dict[str, np.ndarray]
    Y: np.ndarray
    label_names: list[str]
    split: np.ndarray
    images: np.ndarray


@cache
def _loaded() -> Any:
    from sklearn.datasets import load_digits  # imported here because the import takes half a second

    return load_digits()


def digit_image(name: str) -> np.ndarray:
    """Return the image of a sample by its id, as 8 x 8 pixels of type uint8 in which 0 is black."""
    return (255 * (1 - _loaded().images[int(name.rpartition(" ")[2])] / 16)).astype(np.uint8)


def digits() -> Digits:
    """Load the handwritten digits of scikit-learn, and compute four views of them."""
    # The view "pixels" contains 64 gray values. "gradients" contains 128 weights of 8 orientations in 4 x 4 cells of
    # 2 x 2 pixels. "fourier" contains 34 magnitudes of the two-dimensional Fourier transform, which are invariant to
    # cyclic shifts. "projections" contains 46 sums over rows, columns and diagonals in both directions.
    #
    # The first 1200 images are for training, and the last 597 images are for testing. The images are sorted by writer,
    # so this split is harder than a random split and more realistic for new writers: the nearest neighbor classifier on
    # pixels has an accuracy of 96.5 % instead of 98.7 %.
    #
    # Source: test set of Alpaydin, Kaynak 1998, Optical Recognition of Handwritten Digits (UCI).
    data = _loaded()
    ink = (data.images / 16.0).astype(np.float32)
    digit = data.target
    attributes = [np.isin(digit, members) for members in _ATTRIBUTES]
    Y = np.column_stack([digit[:, None] == np.arange(10), *attributes]).astype(np.uint8)
    views = {
        "pixels": ink.reshape(len(ink), -1),
        "gradients": oriented_gradients(ink),
        "fourier": fourier_magnitudes(ink),
        "projections": projections(ink),
    }
    split = np.where(np.arange(len(ink)) < N_TRAIN, "train", "test")
    return Digits(views, Y, list(LABEL_NAMES), split, 1 - ink)


def oriented_gradients(images: np.ndarray, orientations: int = 8, cell: int = 2) -> np.ndarray:
    """Compute histograms of gradient orientations for n images of shape (n, h, w).

    Each image is divided into cells (Dalal, Triggs 2005). Gradients are signed and weighted by their length.
    """
    n, height, width = images.shape
    down, across = np.gradient(images.astype(np.float64), axis=(1, 2))
    length, angle = np.hypot(down, across), np.arctan2(down, across)
    position = angle / (2 * np.pi) * orientations
    lower = np.floor(position)
    upper_share = position - lower
    bins = np.zeros((*images.shape, orientations))
    for offset, share in ((0, 1.0 - upper_share), (1, upper_share)):
        which = (lower.astype(np.intp) + offset) % orientations
        np.put_along_axis(bins, which[..., None], (length * share)[..., None], axis=3)
    cells = bins.reshape(n, height // cell, cell, width // cell, cell, orientations).sum(axis=(2, 4))
    return cells.reshape(n, -1).astype(np.float32)


def fourier_magnitudes(images: np.ndarray) -> np.ndarray:
    """Compute the magnitudes of the two-dimensional Fourier transform for n images of shape (n, h, w).

    The magnitudes are divided by the number of pixels. Only one of two conjugate coefficients is used.
    """
    height, width = images.shape[1:]
    spectrum = np.abs(np.fft.rfft2(images)) / (height * width)
    keep = np.ones(spectrum.shape[1:], dtype=bool)
    # The columns for frequency 0 and, if the width is even, for width / 2 contain both of two conjugate coefficients.
    keep[height // 2 + 1 :, 0] = False
    if width % 2 == 0:
        keep[height // 2 + 1 :, -1] = False
    return spectrum[:, keep].astype(np.float32)


def projections(images: np.ndarray) -> np.ndarray:
    """Compute the sums over the rows, columns, diagonals and anti-diagonals of n images of shape (n, h, w)."""
    n, height, width = images.shape
    row, column = np.indices((height, width)).reshape(2, -1)
    pixels = images.reshape(n, -1).astype(np.float64)
    sums = []
    for line in (row, column, column - row + height - 1, column + row):
        sums.append(pixels @ (line[:, None] == np.arange(line.max() + 1)))
    return np.hstack(sums).astype(np.float32)


def digits_samples(n_train: int = N_TRAIN) -> Samples:
    """Return the first `n_train` training digits and all test digits."""
    data = digits()
    rows = np.flatnonzero((np.arange(len(data.Y)) < n_train) | (data.split == "test"))
    attributes = {"dataset": DIGITS, "title": "Handwritten digits that ship inside scikit-learn"}
    views = {name: X[rows] for name, X in data.views.items()}
    ids = [f"digit {i}" for i in rows]
    return Samples(views, data.Y[rows], data.label_names, ids=ids, split=data.split[rows], attributes=attributes)
