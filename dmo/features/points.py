"""Local descriptors: points on a grid and Harris-Laplace corners; SIFT and robust hue of the patches around them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dmo.features.images import need_library

PATCHES = (12, 16, 24, 32)
"""Pixels a side of the dense grid's patches; neighbors overlap by half."""
SIGMAS = tuple(1.2 * 1.3**k for k in range(7))
"""Integration scales at which corners are looked for, in pixels."""
PATCH_PER_SIGMA = 7.0
MAX_CORNERS = 1000
LEAST_CORNER = 0.5
"""Cornerness, in squared gray values (0..255) per squared pixel to the second power, below which there is no corner."""
HUES = 36


@lru_cache(maxsize=64)
def dense_points(height: int, width: int) -> np.ndarray:
    """A grid of patches at four scales, whole patches only, as (m, 3): columns x, y, side, in pixels."""
    found = [
        (x, y, patch)
        for patch in PATCHES
        for y in range(patch // 2, height - patch // 2 + 1, patch // 2)
        for x in range(patch // 2, width - patch // 2 + 1, patch // 2)
    ]
    return np.array(found, dtype=np.float32).reshape(-1, 3)


def harris_points(gray: np.ndarray, most: int = MAX_CORNERS) -> np.ndarray:
    """Harris corners at the scale where the Laplacian is largest; none in an image of one color.

    Parameters
    ----------
    gray : ndarray of shape (h, w), uint8
        The image.
    most : int, default=1000
        The strongest that are kept.

    Returns
    -------
    ndarray of shape (m, 3), float32
        Columns x, y, patch side in pixels, strongest first.

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
    image = gray.astype(np.float32)
    corners = [_cornerness(image, sigma) for sigma in SIGMAS]
    laplacians = np.stack([_laplacian(image, sigma) for sigma in SIGMAS])
    larger = np.ones(laplacians.shape, dtype=bool)
    larger[1:] &= laplacians[1:] >= laplacians[:-1]
    larger[:-1] &= laplacians[:-1] >= laplacians[1:]
    found, strength = [], []
    for k, (corner, sigma) in enumerate(zip(corners, SIGMAS)):
        y, x = np.nonzero(_peaks(corner) & (corner > LEAST_CORNER) & larger[k])
        found.append(np.column_stack([x, y, np.full(len(x), PATCH_PER_SIGMA * sigma)]))
        strength.append(corner[y, x])
    points, weights = np.concatenate(found).astype(np.float32), np.concatenate(strength)
    order = np.lexsort((points[:, 0], points[:, 1], points[:, 2], -weights))
    return points[order[:most]]


def _smooth(image: np.ndarray, sigma: float) -> np.ndarray:
    return need_library("cv2").GaussianBlur(image, (0, 0), sigma, borderType=2)  # 2: mirrored, the edge once


def _cornerness(image: np.ndarray, sigma: float) -> np.ndarray:
    """det M - 0.05 trace(M)^2 of the scale-normalized second moments of the gradient."""
    cv2 = need_library("cv2")
    fine = 0.7 * sigma
    smooth = _smooth(image, fine)
    dx, dy = (cv2.Scharr(smooth, cv2.CV_32F, *d, scale=fine / 32) for d in ((1, 0), (0, 1)))
    xx, yy, xy = (_smooth(part, sigma) for part in (dx * dx, dy * dy, dx * dy))
    return xx * yy - xy * xy - 0.05 * (xx + yy) ** 2


def _laplacian(image: np.ndarray, sigma: float) -> np.ndarray:
    cv2 = need_library("cv2")
    return sigma**2 * np.abs(cv2.Laplacian(_smooth(image, sigma), cv2.CV_32F))


def _peaks(values: np.ndarray) -> np.ndarray:
    """Whether a pixel is the largest of its 3 x 3 neighborhood."""
    return values >= need_library("cv2").dilate(values, np.ones((3, 3), np.uint8))


def sift(gray: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Upright SIFT descriptors of patches; a flat patch gives zeros.

    A patch is 4 x 4 cells of 8 orientations; it is not turned, since scenes have an up and a down.

    Parameters
    ----------
    gray : ndarray of shape (h, w), uint8
        The image.
    points : ndarray of shape (m, 3), float32
        Columns x, y, patch side in pixels.

    Returns
    -------
    ndarray of shape (m, 128), float32
        In the order of the points.

    References
    ----------
    Lowe 2004, by OpenCV.

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
    # OpenCV's cells are 3 * size / 2 wide, a patch has four of them
    keypoints = [cv2.KeyPoint(x, y, patch / 6, 0.0) for x, y, patch in points.tolist()]
    kept, descriptors = cv2.SIFT_create().compute(gray, keypoints)
    if len(kept) != len(points):
        raise RuntimeError(f"OpenCV described {len(kept)} of {len(points)} points")
    return descriptors


def hue_histograms(image: np.ndarray, points: np.ndarray, sums: np.ndarray | None = None) -> np.ndarray:
    """Robust hue descriptors of patches.

    Every pixel of the square patch adds its saturation to the bin of its opponent-color hue, so that unsure hues count
    little.

    Parameters
    ----------
    image : ndarray of shape (h, w, 3), uint8
        RGB.
    points : ndarray of shape (m, 3), float32
        Columns x, y, patch side in pixels.
    sums : ndarray of shape (h + 1, w + 1, 36), default=None
        `hue_sums(image)` where it is there already.

    Returns
    -------
    ndarray of shape (m, 36), float32
        Shares that add up to 1, or zeros for a gray patch.

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
    """Saturation by hue in every rectangle from the upper left corner: (h + 1) x (w + 1) x 36 float64."""
    height, width = image.shape[:2]
    red, green, blue = np.moveaxis(image.astype(np.float32), 2, 0)
    across, down = np.sqrt(np.float32(3)) * (red - green), red + green - 2 * blue
    bins = np.minimum(((np.arctan2(across, down) / (2 * np.pi) + 0.5) * HUES).astype(np.intp), HUES - 1)
    saturation = np.sqrt((across**2 + down**2) / 6)
    sums = np.zeros((height + 1, width + 1, HUES))
    np.put_along_axis(sums[1:, 1:], bins[..., None], saturation[..., None], axis=2)
    np.cumsum(sums, axis=0, out=sums)
    return np.cumsum(sums, axis=1, out=sums)
