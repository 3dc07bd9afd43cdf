"""Color descriptors: histograms in three color spaces, with and without horizontal bands; correlogram; moments."""

from __future__ import annotations

import numpy as np

from dmo.features.images import need_library

BINS = 12
BANDS = 3
DISTANCES = (1, 3, 5, 7)


def lab(image: np.ndarray) -> np.ndarray:
    """CIE L*a*b* (D65) of an sRGB image (h x w x 3, uint8): float32, L in 0..100, a and b about -127..127."""
    cv2 = need_library("cv2")
    return cv2.cvtColor(image.astype(np.float32) / 255, cv2.COLOR_RGB2LAB)


def hsv(image: np.ndarray) -> np.ndarray:
    """Hue in 0..360, saturation and value in 0..1 of an image (h x w x 3, uint8): float32."""
    cv2 = need_library("cv2")
    return cv2.cvtColor(image.astype(np.float32) / 255, cv2.COLOR_RGB2HSV)


def gray(image: np.ndarray) -> np.ndarray:
    """Luma (ITU-R BT.601) of an image (h x w x 3, uint8): h x w uint8."""
    cv2 = need_library("cv2")
    return cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)


def band_histogram(codes: np.ndarray, n_codes: int, rows: np.ndarray, height: int, bands: int = 1) -> np.ndarray:
    """Shares of every code in every horizontal band.

    -> (bands * n_codes,)
    """
    # Band b holds the rows with floor(row * bands / height) = b. The layout V3H1 of Guillaumin et al. 2009 has three.
    places = codes if bands == 1 else codes + n_codes * ((rows * bands) // height).astype(codes.dtype)
    counts = np.bincount(places.ravel(), minlength=bands * n_codes).astype(np.float32)
    return counts / max(1, codes.size)


def _codes(channels: np.ndarray, low: tuple[float, ...], high: tuple[float, ...], bins: int) -> np.ndarray:
    """One number per pixel for its cell in a grid of `bins` equal steps per channel from `low` to `high`."""
    scale = (bins / (np.array(high) - low)).astype(np.float32)
    steps = ((channels - np.array(low, np.float32)) * scale).astype(np.int32)
    np.clip(steps, 0, bins - 1, out=steps)
    return (steps[..., 0] * bins + steps[..., 1]) * bins + steps[..., 2]


def rgb_codes(image: np.ndarray, bins: int = BINS) -> np.ndarray:
    """The cell of every pixel among bins^3 equal cells of the RGB cube: h x w int32."""
    steps = (image.astype(np.int32) * bins) >> 8
    return (steps[..., 0] * bins + steps[..., 1]) * bins + steps[..., 2]


def lab_codes(channels: np.ndarray, bins: int = BINS) -> np.ndarray:
    """The cell of every pixel among bins^3 cells of L in 0..100, a and b in -128..128."""
    return _codes(channels, (0, -128, -128), (100, 128, 128), bins)


def hsv_codes(channels: np.ndarray, bins: int = BINS) -> np.ndarray:
    """The cell of every pixel among bins^3 cells of hue, saturation and value."""
    return _codes(channels, (0, 0, 0), (360, 1, 1), bins)


def _histogram(codes: np.ndarray, bins: int, bands: int) -> np.ndarray:
    height = codes.shape[0]
    return band_histogram(codes, bins**3, np.arange(height)[:, None], height, bands)


def rgb_histogram(image: np.ndarray, bins: int = BINS, bands: int = 1) -> np.ndarray:
    """RGB histogram of an image, with or without horizontal bands.

    Parameters
    ----------
    image : ndarray of shape (h, w, 3), uint8
        RGB.
    bins : int, default=12
        Cells a channel.
    bands : int, default=1
        Horizontal bands of equal height.

    Returns
    -------
    ndarray of shape (bands * bins^3,), float32
        Shares that add up to 1.

    References
    ----------
    Swain, Ballard 1991; bands: the layout V3H1 of Guillaumin, Mensink, Verbeek, Schmid 2009 (TagProp).

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.features import rgb_histogram
    >>> rgb_histogram(np.zeros((32, 32, 3), np.uint8), bins=2, bands=2)[:9]
    array([0.5, 0. , 0. , 0. , 0. , 0. , 0. , 0. , 0.5], dtype=float32)
    """
    return _histogram(rgb_codes(image, bins), bins, bands)


def lab_histogram(image: np.ndarray, bins: int = BINS, bands: int = 1) -> np.ndarray:
    """L*a*b* histogram of an image, with or without horizontal bands.

    Parameters
    ----------
    image : ndarray of shape (h, w, 3), uint8
        RGB.
    bins : int, default=12
        Cells a channel.
    bands : int, default=1
        Horizontal bands of equal height.

    Returns
    -------
    ndarray of shape (bands * bins^3,), float32
        Shares that add up to 1.

    References
    ----------
    As `rgb_histogram`.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.features import lab_histogram
    >>> lab_histogram(np.zeros((32, 32, 3), np.uint8)).shape
    (1728,)
    """
    return _histogram(lab_codes(lab(image), bins), bins, bands)


def hsv_histogram(image: np.ndarray, bins: int = BINS, bands: int = 1) -> np.ndarray:
    """HSV histogram of an image, with or without horizontal bands.

    Parameters
    ----------
    image : ndarray of shape (h, w, 3), uint8
        RGB.
    bins : int, default=12
        Cells a channel.
    bands : int, default=1
        Horizontal bands of equal height.

    Returns
    -------
    ndarray of shape (bands * bins^3,), float32
        Shares that add up to 1.

    References
    ----------
    As `rgb_histogram`.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.features import hsv_histogram
    >>> hsv_histogram(np.zeros((32, 32, 3), np.uint8), bands=3).shape
    (5184,)
    """
    return _histogram(hsv_codes(hsv(image), bins), bins, bands)


def color_histogram(image: np.ndarray) -> np.ndarray:
    """RGB histogram of 6 x 6 x 6 cells.

    Parameters
    ----------
    image : ndarray of shape (h, w, 3), uint8
        RGB.

    Returns
    -------
    ndarray of shape (216,), float32
        Shares that add up to 1.

    References
    ----------
    Swain, Ballard 1991.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.features import color_histogram
    >>> histogram = color_histogram(np.zeros((32, 32, 3), np.uint8))
    >>> histogram.shape, histogram[0]
    ((216,), np.float32(1.0))
    """
    return rgb_histogram(image, bins=6)


def color_moments(image: np.ndarray) -> np.ndarray:
    """Mean, standard deviation and cube root of the third central moment of L*, a* and b*.

    Parameters
    ----------
    image : ndarray of shape (h, w, 3), uint8
        RGB.

    Returns
    -------
    ndarray of shape (9,), float32
        Three means, three deviations, three roots.

    References
    ----------
    Stricker, Orengo 1995, in L*a*b*.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.features import color_moments
    >>> color_moments(np.full((32, 32, 3), 255, np.uint8))[0].round()
    np.float32(100.0)
    """
    pixels = lab(image).reshape(-1, 3).astype(np.float64)
    mean = pixels.mean(axis=0)
    rest = pixels - mean
    return np.concatenate([mean, np.sqrt((rest**2).mean(axis=0)), np.cbrt((rest**3).mean(axis=0))]).astype(np.float32)


def correlogram(image: np.ndarray, distances: tuple[int, ...] = DISTANCES) -> np.ndarray:
    """Color auto-correlogram: how often a color meets itself at a distance.

    Entry (d, c): of the pixels at distance d (the larger of the two coordinate differences) from a pixel of color c, within
    the image, the share that has color c too; 0 where there is none. Colors: 4 x 4 x 4 cells of RGB.

    Parameters
    ----------
    image : ndarray of shape (h, w, 3), uint8
        RGB.
    distances : tuple of int, default=(1, 3, 5, 7)
        Distances in pixels.

    Returns
    -------
    ndarray of shape (64 * len(distances),), float32
        Shares in 0..1, all colors of one distance together.

    References
    ----------
    Huang, Kumar, Mitra, Zhu, Zabih 1997.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.features import correlogram
    >>> correlogram(np.zeros((32, 32, 3), np.uint8))[[0, 64, 128, 192]]
    array([1., 1., 1., 1.], dtype=float32)
    """
    codes = rgb_codes(image, 4).astype(np.uint8)
    return np.concatenate([_same_color(codes, distance) for distance in distances]).astype(np.float32)


def _same_color(codes: np.ndarray, distance: int) -> np.ndarray:
    """Share of equal colors among the pairs at one distance: 64 float64."""
    height, width = codes.shape
    equal, pairs = np.zeros(64), np.zeros(64)
    ring = [(distance, shift) for shift in range(-distance, distance + 1)]
    ring += [(shift, distance) for shift in range(1 - distance, distance)]
    for down, across in ring:  # half of the ring: each unordered pair once
        y = slice(max(0, -down), max(0, height - max(0, down)))
        x = slice(max(0, -across), max(0, width - max(0, across)))
        first = codes[y, x]
        second = codes[max(0, down) : height + min(0, down), max(0, across) : width + min(0, across)]
        if first.size and first.shape == second.shape:
            equal += 2 * np.bincount(first[first == second], minlength=64)
            pairs += np.bincount(first.ravel(), minlength=64) + np.bincount(second.ravel(), minlength=64)
    return equal / np.maximum(pairs, 1)
