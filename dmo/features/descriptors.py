"""Image descriptors: color histograms, correlogram, moments, GIST, wavelets, local points, SIFT and robust hue."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import scipy.fft

from dmo.features.images import need_library

BINS = 12
BANDS = 3
DISTANCES = (1, 3, 5, 7)


def lab(image: np.ndarray) -> np.ndarray:
    """Convert an sRGB image (h x w x 3, uint8) to CIE L*a*b* (D65): float32, L in 0..100, a and b about -127..127."""
    cv2 = need_library("cv2")
    return cv2.cvtColor(image.astype(np.float32) / 255, cv2.COLOR_RGB2LAB)


def hsv(image: np.ndarray) -> np.ndarray:
    """Convert an image (h x w x 3, uint8) to hue in 0..360, saturation and value in 0..1: float32."""
    cv2 = need_library("cv2")
    return cv2.cvtColor(image.astype(np.float32) / 255, cv2.COLOR_RGB2HSV)


def gray(image: np.ndarray) -> np.ndarray:
    """Compute the luma (ITU-R BT.601) of an image (h x w x 3, uint8): h x w uint8."""
    cv2 = need_library("cv2")
    return cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)


def band_histogram(codes: np.ndarray, n_codes: int, rows: np.ndarray, height: int, bands: int = 1) -> np.ndarray:
    """Compute the fraction of the pixels with each code in each horizontal band, as bands * n_codes values."""
    # Band b contains the rows with floor(row * bands / height) = b. The layout V3H1 of Guillaumin et al. 2009
    # has three bands.
    places = codes if bands == 1 else codes + n_codes * ((rows * bands) // height).astype(codes.dtype)
    counts = np.bincount(places.ravel(), minlength=bands * n_codes).astype(np.float32)
    return counts / max(1, codes.size)


def _codes(channels: np.ndarray, low: tuple[float, ...], high: tuple[float, ...], bins: int) -> np.ndarray:
    """Return the cell of each pixel in a grid of `bins` equal steps per channel from `low` to `high`."""
    scale = (bins / (np.array(high) - low)).astype(np.float32)
    steps = ((channels - np.array(low, np.float32)) * scale).astype(np.int32)
    np.clip(steps, 0, bins - 1, out=steps)
    return (steps[..., 0] * bins + steps[..., 1]) * bins + steps[..., 2]


def rgb_codes(image: np.ndarray, bins: int = BINS) -> np.ndarray:
    """Return the cell of each pixel among bins^3 equal cells of the RGB cube: h x w int32."""
    steps = (image.astype(np.int32) * bins) >> 8
    return (steps[..., 0] * bins + steps[..., 1]) * bins + steps[..., 2]


def _histogram(codes: np.ndarray, bins: int, bands: int) -> np.ndarray:
    height = codes.shape[0]
    return band_histogram(codes, bins**3, np.arange(height)[:, None], height, bands)


def rgb_histogram(image: np.ndarray, bins: int = BINS, bands: int = 1) -> np.ndarray:
    """Compute the RGB histogram of an image, optionally in horizontal bands.

    Parameters
    ----------
    image : ndarray of shape (h, w, 3), uint8
        RGB image.
    bins : int, default=12
        Number of bins per channel.
    bands : int, default=1
        Number of horizontal bands of equal height.

    Returns
    -------
    ndarray of shape (bands * bins^3,), float32
        Fractions with sum 1.

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
    """Compute the L*a*b* histogram of an image, optionally in horizontal bands.

    Parameters
    ----------
    image : ndarray of shape (h, w, 3), uint8
        RGB image.
    bins : int, default=12
        Number of bins per channel.
    bands : int, default=1
        Number of horizontal bands of equal height.

    Returns
    -------
    ndarray of shape (bands * bins^3,), float32
        Fractions with sum 1.

    References
    ----------
    See `rgb_histogram`.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.features import lab_histogram
    >>> lab_histogram(np.zeros((32, 32, 3), np.uint8)).shape
    (1728,)
    """
    return _histogram(_codes(lab(image), (0, -128, -128), (100, 128, 128), bins), bins, bands)


def hsv_histogram(image: np.ndarray, bins: int = BINS, bands: int = 1) -> np.ndarray:
    """Compute the HSV histogram of an image, optionally in horizontal bands.

    Parameters
    ----------
    image : ndarray of shape (h, w, 3), uint8
        RGB image.
    bins : int, default=12
        Number of bins per channel.
    bands : int, default=1
        Number of horizontal bands of equal height.

    Returns
    -------
    ndarray of shape (bands * bins^3,), float32
        Fractions with sum 1.

    References
    ----------
    See `rgb_histogram`.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.features import hsv_histogram
    >>> hsv_histogram(np.zeros((32, 32, 3), np.uint8), bands=3).shape
    (5184,)
    """
    return _histogram(_codes(hsv(image), (0, 0, 0), (360, 1, 1), bins), bins, bands)


def color_histogram(image: np.ndarray) -> np.ndarray:
    """Compute the RGB histogram of an image with 6 x 6 x 6 bins.

    Parameters
    ----------
    image : ndarray of shape (h, w, 3), uint8
        RGB image.

    Returns
    -------
    ndarray of shape (216,), float32
        Fractions with sum 1.

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
    """Compute mean, standard deviation and cube root of the third central moment of L*, a* and b*.

    Parameters
    ----------
    image : ndarray of shape (h, w, 3), uint8
        RGB image.

    Returns
    -------
    ndarray of shape (9,), float32
        Three means, three standard deviations and three cube roots.

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
    """Compute the color auto-correlogram: how often a color occurs at a distance from itself.

    Entry (d, c) refers to all pairs of a pixel with color c and a pixel at distance d within the image. It is the
    fraction of these pairs in which the second pixel has color c too, or 0 without pairs. The distance is the larger of
    the two coordinate differences. Colors are 4 x 4 x 4 cells of the RGB cube.

    Parameters
    ----------
    image : ndarray of shape (h, w, 3), uint8
        RGB image.
    distances : tuple of int, default=(1, 3, 5, 7)
        Distances in pixels.

    Returns
    -------
    ndarray of shape (64 * len(distances),), float32
        Fractions in 0..1, grouped by distance.

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
    """For each of 64 colors, compute how often a neighbor at one distance has the same color as a pixel (float64)."""
    height, width = codes.shape
    equal, pairs = np.zeros(64), np.zeros(64)
    ring = [(distance, shift) for shift in range(-distance, distance + 1)]
    ring += [(shift, distance) for shift in range(1 - distance, distance)]
    for down, across in ring:  # Half of the ring suffices, because it contains each unordered pair of pixels once.
        y = slice(max(0, -down), max(0, height - max(0, down)))
        x = slice(max(0, -across), max(0, width - max(0, across)))
        first = codes[y, x]
        second = codes[max(0, down) : height + min(0, down), max(0, across) : width + min(0, across)]
        if first.size and first.shape == second.shape:
            equal += 2 * np.bincount(first[first == second], minlength=64)
            pairs += np.bincount(first.ravel(), minlength=64) + np.bincount(second.ravel(), minlength=64)
    return equal / np.maximum(pairs, 1)


GIST_SIDE, GIST_PAD, GIST_BLOCKS = 128, 32, 4
ORIENTATIONS = (8, 8, 8, 8)
"""Number of filter orientations at each scale, finest scale first."""
_REDUCTIONS = (1, 1, 2, 4)
"""Factor by which the image is reduced at each scale. Coarse filters pass only low frequencies, so fewer pixels
suffice: at the removed frequencies, each filter is below 1e-3 of its peak."""


def gist(image: np.ndarray) -> np.ndarray:
    """Compute the GIST descriptor (spatial envelope) of an image.

    The gray image is resized to 128 x 128 pixels, contrast-normalized, and filtered by Gabor-like transfer functions of
    4 scales and 8 orientations. The descriptor contains the mean magnitude of each response in a 4 x 4 grid. It is zero
    for an image with a single gray value.

    Parameters
    ----------
    image : ndarray of shape (h, w, 3), uint8
        RGB image.

    Returns
    -------
    ndarray of shape (512,), float32
        32 filters x 4 x 4 blocks, grouped by filter.

    References
    ----------
    Oliva, Torralba 2001; parameters as in the authors' LMgist with 8 orientations at 4 scales.

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
    """Compute mean response magnitudes at one scale for each orientation and each of 4 x 4 image regions."""
    size = len(spectrum)
    half = size // reduction // 2
    kept = np.r_[0:half, size - half : size]  # frequencies of an image that is narrower by the factor `reduction`
    filters = gabor_filters(size)[scale * 8 : scale * 8 + ORIENTATIONS[scale]]
    to_center = np.exp(1j * np.pi * (reduction - 1) * scipy.fft.fftfreq(size)[kept]).astype(np.complex64)
    centered = spectrum[np.ix_(kept, kept)] * to_center[:, None] * to_center
    product = centered * filters[:, kept[:, None], kept]
    responses = np.abs(scipy.fft.ifft2(product, axes=(1, 2), overwrite_x=True)) / reduction**2
    pad, side = GIST_PAD // reduction, GIST_SIDE // reduction
    step = side // GIST_BLOCKS
    inner = responses[:, pad : pad + side, pad : pad + side]
    return inner.reshape(len(filters), GIST_BLOCKS, step, GIST_BLOCKS, step).mean(axis=(2, 4))


def prefilter(image: np.ndarray, cycles: float = 4.0, pad: int = 8) -> np.ndarray:
    """Whiten and contrast-normalize a gray image (n x n float32, 0..255), as LMgist does."""
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
    """Compute the transfer functions of the filters: 32 x size x size float32, finest scale first."""
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
    """Compute the energies of a wavelet pyramid with three levels.

    The energies are mean magnitudes of the coefficients of the gray image (0..1), for orthonormal Daubechies wavelets
    with two vanishing moments and periodic boundaries.

    Parameters
    ----------
    image : ndarray of shape (h, w, 3), uint8
        RGB image.

    Returns
    -------
    ndarray of shape (10,), float32
        Energy of the coarse band, then of horizontal, vertical and diagonal details from the coarsest to the finest
        level.

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


PATCHES = (12, 16, 24, 32)
"""Patch sizes of the dense grid in pixels. Neighboring patches overlap by half."""
SIGMAS = tuple(1.2 * 1.3**k for k in range(7))
"""Integration scales of the corner detector in pixels."""
PATCH_PER_SIGMA = 7.0
MAX_CORNERS = 1000
LEAST_CORNER = 0.5
"""Minimum cornerness of a corner, in (squared gray values per squared pixel)^2 for gray values in 0..255."""
HUES = 36


@lru_cache(maxsize=64)
def dense_points(height: int, width: int) -> np.ndarray:
    """Return the patches of a dense grid at four scales as an array of x, y and side length in pixels, shape (m, 3)."""
    found = [
        (x, y, patch)
        for patch in PATCHES
        for y in range(patch // 2, height - patch // 2 + 1, patch // 2)
        for x in range(patch // 2, width - patch // 2 + 1, patch // 2)
    ]
    return np.array(found, dtype=np.float32).reshape(-1, 3)


def harris_points(gray: np.ndarray, most: int = MAX_CORNERS) -> np.ndarray:
    """Detect Harris corners at the scale with the largest Laplacian.

    Parameters
    ----------
    gray : ndarray of shape (h, w), uint8
        Gray image. An image with a single gray value has no corners.
    most : int, default=1000
        Maximum number of corners; the strongest ones are kept.

    Returns
    -------
    ndarray of shape (m, 3), float32
        Columns x, y and patch side in pixels, strongest corner first.

    References
    ----------
    Harris, Stephens 1988; scale selection: Mikolajczyk, Schmid 2004 (the simplified Harris-Laplace detector).

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.features import harris_points
    >>> gray = np.zeros((64, 64), np.uint8)
    >>> gray[20:44, 20:44] = 255
    >>> np.abs(harris_points(gray)[:4, :2] - 31.5).min() > 8  # the corners of the square
    np.True_
    """
    cv2 = need_library("cv2")
    image = gray.astype(np.float32)
    corners = [_cornerness(image, sigma) for sigma in SIGMAS]
    laplacians = np.stack([sigma**2 * np.abs(cv2.Laplacian(_smooth(image, sigma), cv2.CV_32F)) for sigma in SIGMAS])
    larger = np.ones(laplacians.shape, dtype=bool)
    larger[1:] &= laplacians[1:] >= laplacians[:-1]
    larger[:-1] &= laplacians[:-1] >= laplacians[1:]
    found, strength = [], []
    for k, (corner, sigma) in enumerate(zip(corners, SIGMAS)):
        peaks = corner >= cv2.dilate(corner, np.ones((3, 3), np.uint8))  # local maxima of the cornerness
        y, x = np.nonzero(peaks & (corner > LEAST_CORNER) & larger[k])
        found.append(np.column_stack([x, y, np.full(len(x), PATCH_PER_SIGMA * sigma)]))
        strength.append(corner[y, x])
    points, weights = np.concatenate(found).astype(np.float32), np.concatenate(strength)
    order = np.lexsort((points[:, 0], points[:, 1], points[:, 2], -weights))
    return points[order[:most]]


def _smooth(image: np.ndarray, sigma: float) -> np.ndarray:
    # borderType=2 is BORDER_REFLECT, which mirrors the image at its edges and repeats the edge pixels.
    return need_library("cv2").GaussianBlur(image, (0, 0), sigma, borderType=2)


def _cornerness(image: np.ndarray, sigma: float) -> np.ndarray:
    """Compute det M - 0.05 trace(M)^2 of the scale-normalized second moments of the gradient."""
    cv2 = need_library("cv2")
    fine = 0.7 * sigma
    smooth = _smooth(image, fine)
    dx, dy = (cv2.Scharr(smooth, cv2.CV_32F, *d, scale=fine / 32) for d in ((1, 0), (0, 1)))
    xx, yy, xy = (_smooth(part, sigma) for part in (dx * dx, dy * dy, dx * dy))
    return xx * yy - xy * xy - 0.05 * (xx + yy) ** 2


def sift(gray: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Compute upright SIFT descriptors of patches.

    A patch has 4 x 4 cells with 8 orientations each. It is not rotated, since scenes have a natural orientation. The
    descriptor of a flat patch is zero.

    Parameters
    ----------
    gray : ndarray of shape (h, w), uint8
        Gray image.
    points : ndarray of shape (m, 3), float32
        Columns x, y and patch side in pixels.

    Returns
    -------
    ndarray of shape (m, 128), float32
        Descriptors in the order of the points.

    References
    ----------
    Lowe 2004; computed by OpenCV.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.features import dense_points, sift
    >>> sift(np.zeros((32, 32), np.uint8), dense_points(32, 32)).shape
    (27, 128)
    """
    cv2 = need_library("cv2")
    if not len(points):
        return np.zeros((0, 128), np.float32)
    # A SIFT cell in OpenCV has the side 3 * size / 2, and a patch has four cells per side. Therefore, size is patch /
    # 6.
    keypoints = [cv2.KeyPoint(x, y, patch / 6, 0.0) for x, y, patch in points.tolist()]
    kept, descriptors = cv2.SIFT_create().compute(gray, keypoints)
    if len(kept) != len(points):
        raise RuntimeError(f"OpenCV described {len(kept)} of {len(points)} points")
    return descriptors


def hue_histograms(image: np.ndarray, points: np.ndarray, sums: np.ndarray | None = None) -> np.ndarray:
    """Compute robust hue descriptors of patches.

    Each pixel of the square patch adds its saturation to the bin of its opponent-color hue, so that uncertain hues have
    a small weight.

    Parameters
    ----------
    image : ndarray of shape (h, w, 3), uint8
        RGB image.
    points : ndarray of shape (m, 3), float32
        Columns x, y and patch side in pixels.
    sums : ndarray of shape (h + 1, w + 1, 36), default=None
        Precomputed `hue_sums(image)`, or None.

    Returns
    -------
    ndarray of shape (m, 36), float32
        Fractions with sum 1, or zeros for a gray patch.

    References
    ----------
    van de Weijer, Schmid 2006, section 3.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.features import dense_points, hue_histograms
    >>> red = np.zeros((32, 32, 3), np.uint8)
    >>> red[..., 0] = 255
    >>> hue_histograms(red, dense_points(32, 32)).max(axis=1).min()
    np.float32(1.0)
    """
    sums = hue_sums(image) if sums is None else sums
    height, width = image.shape[:2]
    half = points[:, 2] / 2
    left, right = (np.clip(np.rint(points[:, 0] + s * half), 0, width).astype(int) for s in (-1, 1))
    top, bottom = (np.clip(np.rint(points[:, 1] + s * half), 0, height).astype(int) for s in (-1, 1))
    found = sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left]
    total = found.sum(axis=1, keepdims=True)
    colored = total > 1e-3
    return np.where(colored, np.maximum(found, 0) / np.where(colored, total, 1), 0).astype(np.float32)


def hue_sums(image: np.ndarray) -> np.ndarray:
    """Compute integral images of the saturation for 36 hue bins: (h + 1) x (w + 1) x 36 float64."""
    height, width = image.shape[:2]
    red, green, blue = np.moveaxis(image.astype(np.float32), 2, 0)
    across, down = np.sqrt(np.float32(3)) * (red - green), red + green - 2 * blue
    bins = np.minimum(((np.arctan2(across, down) / (2 * np.pi) + 0.5) * HUES).astype(np.intp), HUES - 1)
    saturation = np.sqrt((across**2 + down**2) / 6)
    sums = np.zeros((height + 1, width + 1, HUES))
    np.put_along_axis(sums[1:, 1:], bins[..., None], saturation[..., None], axis=2)
    np.cumsum(sums, axis=0, out=sums)
    return np.cumsum(sums, axis=1, out=sums)
