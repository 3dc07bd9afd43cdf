"""Texture descriptors: the spatial envelope (GIST) and the energies of a wavelet pyramid."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import scipy.fft

from dmo.features.colors import gray
from dmo.features.images import need_library

GIST_SIDE, GIST_PAD, GIST_BLOCKS = 128, 32, 4
ORIENTATIONS = (8, 8, 8, 8)
"""Orientations of the filters at every scale, finest first."""
_REDUCTIONS = (1, 1, 2, 4)
"""Coarse filters pass low frequencies alone (what is cut off is below 1e-3 of their peak): fewer pixels do for them."""


def gist(image: np.ndarray) -> np.ndarray:
    """Spatial envelope of an image; an image of one color gives zeros.

    The gray image, 128 x 128, contrast-normalized, is filtered by Gabor-like transfer functions of 4 scales and 8
    orientations; what counts is each response's mean magnitude in a 4 x 4 grid.

    Parameters
    ----------
    image : ndarray of shape (h, w, 3), uint8
        RGB.

    Returns
    -------
    ndarray of shape (512,), float32
        32 filters x 4 x 4 blocks, all blocks of one filter together.

    References
    ----------
    Oliva, Torralba 2001; parameters as in the authors' LMgist for 8 orientations at 4 scales.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.features import gist
    >>> gist(np.zeros((32, 32, 3), np.uint8)).shape
    (512,)
    """
    cv2 = need_library("cv2")
    small = cv2.resize(gray(image), (GIST_SIDE, GIST_SIDE), interpolation=cv2.INTER_AREA).astype(np.float32)
    low, high = float(small.min()), float(small.max())
    if low == high:
        return np.zeros(sum(ORIENTATIONS) * GIST_BLOCKS**2, np.float32)
    normalized = prefilter(255 * (small - low) / (high - low))
    spectrum = scipy.fft.fft2(np.pad(normalized, GIST_PAD, mode="symmetric"))
    blocks = [_responses(spectrum, scale, reduction) for scale, reduction in enumerate(_REDUCTIONS)]
    return np.concatenate(blocks).ravel().astype(np.float32)


def _responses(spectrum: np.ndarray, scale: int, reduction: int) -> np.ndarray:
    """Mean magnitudes of one scale's responses, orientations x 4 x 4, at the centers of `reduction` x `reduction` pixels."""
    size = len(spectrum)
    kept = low_frequencies(size, reduction)
    filters = gabor_filters(size)[scale * 8 : scale * 8 + ORIENTATIONS[scale]]
    to_center = np.exp(1j * np.pi * (reduction - 1) * scipy.fft.fftfreq(size)[kept]).astype(np.complex64)
    centered = spectrum[np.ix_(kept, kept)] * to_center[:, None] * to_center
    product = centered * filters[:, kept[:, None], kept]
    responses = np.abs(scipy.fft.ifft2(product, axes=(1, 2), overwrite_x=True)) / reduction**2
    pad, side = GIST_PAD // reduction, GIST_SIDE // reduction
    step = side // GIST_BLOCKS
    inner = responses[:, pad : pad + side, pad : pad + side]
    return inner.reshape(len(filters), GIST_BLOCKS, step, GIST_BLOCKS, step).mean(axis=(2, 4))


def low_frequencies(size: int, reduction: int) -> np.ndarray:
    """The places, in the order of the Fourier transform, of the frequencies that an image 1/`reduction` as wide has."""
    half = size // reduction // 2
    return np.r_[0:half, size - half : size]


def prefilter(image: np.ndarray, cycles: float = 4.0, pad: int = 8) -> np.ndarray:
    """Whitening and local contrast normalization of a gray image (n x n float32, 0..255), as in LMgist."""
    padded = np.pad(np.log1p(image), pad, mode="symmetric").astype(np.float32)
    size = len(padded)
    frequency = scipy.fft.fftfreq(size) * size
    half = np.arange(size // 2 + 1)
    smooth = np.exp(-(frequency[:, None] ** 2 + half**2) * np.log(2) / cycles**2).astype(np.float32)

    def lowpass(values: np.ndarray) -> np.ndarray:
        return scipy.fft.irfft2(scipy.fft.rfft2(values) * smooth, s=values.shape)

    rest = padded - lowpass(padded)
    contrast = np.sqrt(np.abs(lowpass(rest * rest)))
    return (rest / (0.2 + contrast))[pad:-pad, pad:-pad]


@lru_cache(maxsize=2)
def gabor_filters(size: int) -> np.ndarray:
    """Transfer functions of the filters: 32 x size x size float32, finest scale first."""
    frequency = scipy.fft.fftfreq(size)
    radius = np.hypot(frequency[:, None], frequency)
    angle = np.arctan2(frequency[:, None], frequency)
    filters = []
    for scale, count in enumerate(ORIENTATIONS):
        center, width = 0.3 / 1.85**scale, 16 * count**2 / 32**2
        for k in range(count):
            turned = angle + np.pi * k / count
            turned = (turned + np.pi) % (2 * np.pi) - np.pi
            filters.append(np.exp(-3.5 * (radius / center - 1) ** 2 - 2 * width * np.pi * turned**2))
    return np.array(filters, dtype=np.float32)


def wavelet_texture(image: np.ndarray) -> np.ndarray:
    """Energies of a wavelet pyramid of three levels.

    They are mean magnitudes of the gray image (0..1) under orthonormal Daubechies wavelets of two vanishing moments,
    periodic.

    Parameters
    ----------
    image : ndarray of shape (h, w, 3), uint8
        RGB.

    Returns
    -------
    ndarray of shape (10,), float32
        The coarse band, then the horizontal, vertical and diagonal details from the coarsest level to the finest.

    References
    ----------
    Mallat 1989; Manjunath, Ma 1996.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.features import wavelet_texture
    >>> wavelet_texture(np.full((32, 32, 3), 255, np.uint8)).round(2)[:2]
    array([8., 0.], dtype=float32)
    """
    pywt = need_library("pywt")
    pyramid = pywt.wavedec2(gray(image).astype(np.float64) / 255, "db2", mode="periodization", level=3)
    bands = [pyramid[0], *(band for level in pyramid[1:] for band in level)]
    return np.array([np.abs(band).mean() for band in bands], dtype=np.float32)
