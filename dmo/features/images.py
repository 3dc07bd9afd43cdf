"""Images in files -> arrays of one kind: upright, RGB, eight bits, of a bounded size."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dmo.errors import UserError
from dmo.hashing import file_digest

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = frozenset([".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"])
"""Endings of the files that count as images, in lower case."""
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Formats that are decoded, whatever a file is called; for others Pillow may start programs, as for PostScript."""
SIDE = 256
"""Pixels to which the longer side of larger images is reduced."""
LEAST = 32
"""Pixels to which a shorter side is enlarged, so that every descriptor has something to stand on."""
MAX_PIXELS = 80_000_000
"""Pixels above which a file is not decoded: it may be a bomb."""
LONGEST, LARGEST = 65_535, 1 << 30
"""Pixels of a side, and bytes of a file, above which it is not read: no camera makes such, and JPEG ends there."""
CURE = "reading images needs Pillow, OpenCV and PyWavelets; run: pip install dmo-learn[images]"


class UnreadableImage(UserError):
    """A file that is no image, a damaged one, or one too large to decode; the message names it and says why.

    Examples
    --------
    >>> from pathlib import Path
    >>> from dmo.features import UnreadableImage, read_image
    >>> _ = Path("a.png").write_bytes(b"text")
    >>> try:
    ...     read_image("a.png")
    ... except UnreadableImage as error:
    ...     print(error)
    a.png: cannot be read as an image (cannot identify image file 'a.png')
    """


def find_images(folder: str | os.PathLike[str]) -> tuple[list[str], list[str]]:
    """Find the images below a folder, and all other files.

    Hidden files and folders count as other files; their contents are not listed.

    Parameters
    ----------
    folder : path-like
        Where to look.

    Returns
    -------
    images, others : list of str
        Sorted paths relative to the folder, with "/" between the parts.

    Raises
    ------
    FileNotFoundError
        Where there is no folder.
    UserError
        Where it holds no image.

    Examples
    --------
    >>> from pathlib import Path
    >>> from dmo.features import find_images
    >>> for name in ("b.png", "a.jpg", "notes.txt"):
    ...     Path(name).touch()
    >>> find_images(".")
    (['a.jpg', 'b.png'], ['notes.txt'])
    """
    root = Path(folder)
    if not root.is_dir():
        raise FileNotFoundError(f"{root} is no folder; pass a folder of images")
    images: list[str] = []
    others: list[str] = []
    for place, folders, files in os.walk(root):
        hidden = [name for name in folders if name.startswith(".")]
        folders[:] = sorted(set(folders) - set(hidden))
        for name in [*files, *hidden]:
            path = Path(place, name)
            is_image = path.suffix.lower() in SUFFIXES and not name.startswith(".")
            (images if is_image else others).append(path.relative_to(root).as_posix())
    if not images:
        raise UserError(f"{root} holds no image; pass a folder with files that end in {' '.join(sorted(SUFFIXES))}")
    return sorted(images), sorted(others)


def read_image(
    path: str | os.PathLike[str], side: int = SIDE, max_pixels: int = MAX_PIXELS, formats: Sequence[str] = FORMATS
) -> np.ndarray:
    """Read the image in a file as eight bits of RGB.

    It is turned upright as EXIF says; transparent pixels lie on white; gray, palette, CMYK and 16-bit images are converted;
    of several frames the first is taken. An image whose longer side exceeds `side` is reduced to it, one whose shorter side
    is below `LEAST` pixels is enlarged to that.

    Parameters
    ----------
    path : path-like
        The file.
    side : int, default=256
        Pixels of the longer side, at most.
    max_pixels : int, default=80_000_000
        A file of more pixels is refused by its header, undecoded.
    formats : sequence of str, default=("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
        Pillow's names of the formats that are decoded; the file's bytes say which it is, not its name. Name others for files
        that you trust alone: Pillow gives "EPS" to another program.

    Returns
    -------
    ndarray of shape (h, w, 3), uint8
        RGB.

    Raises
    ------
    UnreadableImage
        With the reason.
    ImportError
        Where Pillow is missing.

    Examples
    --------
    >>> from PIL import Image
    >>> from dmo.features import read_image
    >>> Image.new("L", (512, 256)).save("a.png")
    >>> read_image("a.png").shape
    (128, 256, 3)
    """
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise ImportError(CURE) from None
    if side < LEAST:
        raise UserError(f"read_image: side = {side} pixels, needs at least {LEAST}")
    check_file(path)
    try:
        with Image.open(path, formats=tuple(formats)) as image:
            pixels = image.width * image.height
            if pixels > max_pixels:
                raise UnreadableImage(f"{path}: {pixels} pixels, at most {max_pixels} are decoded; raise max_pixels")
            if max(image.size) > LONGEST:
                raise UnreadableImage(f"{path}: {image.width} x {image.height} pixels, a side has at most {LONGEST}")
            image.draft(None, (2 * side, 2 * side))  # a JPEG file is decoded at a fraction of its size
            upright = ImageOps.exif_transpose(image)
            return np.asarray(_resized(_rgb(upright), side))
    except (UnreadableImage, MemoryError):
        raise
    except Exception as error:  # what a damaged file makes a decoder raise is not bounded by its documentation
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UnreadableImage(f"{path}: cannot be read as an image ({reason})") from error


def check_file(path: str | os.PathLike[str]) -> None:
    """Refuse what is no file of a bounded size before it is opened: a pipe waits forever, a device may have no end."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise UnreadableImage(f"{path}: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        raise UnreadableImage(f"{path}: is no regular file")
    if found.st_size > LARGEST:
        raise UnreadableImage(f"{path}: {found.st_size} bytes, at most {LARGEST} are read")


def image_digest(path: str | os.PathLike[str]) -> str:
    """Tell the contents of two files apart."""
    check_file(path)
    try:
        with open(path, "rb") as file:
            return file_digest(file)[:32]
    except OSError as error:
        raise UnreadableImage(f"{path}: {error.strerror}") from error


def _rgb(image: Image) -> Image:
    """Any mode as RGB: wide integers and floats are scaled to 0..255, transparency is laid on white."""
    from PIL import Image as images

    if image.mode.startswith(("I", "F")):
        return images.fromarray(_eight_bits(np.asarray(image))).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        layer = image.convert("RGBA")
        return images.alpha_composite(images.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


def _eight_bits(values: np.ndarray) -> np.ndarray:
    """Gray values as uint8: floats up to 1 are shares, numbers up to 255 are eight bits, all others sixteen."""
    if values.dtype.kind == "f":
        values = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    top = float(values.max())
    if values.dtype.kind == "f" and top <= 1:
        scale = 255.0
    elif top <= 255 and values.dtype.itemsize != 2:
        scale = 1.0
    else:
        scale = 255.0 / 65535.0
    return np.clip(np.rint(values * scale), 0, 255).astype(np.uint8)


def _resized(image: Image, side: int) -> Image:
    from PIL import Image as images

    shrink = min(1.0, side / max(image.size))
    size = tuple(max(LEAST, round(length * shrink)) for length in image.size)
    if size == image.size:
        return image
    return image.resize((size[0], size[1]), images.Resampling.LANCZOS, reducing_gap=3.0)


def need_library(name: str) -> Any:
    """Import a library of the extra `images`."""
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        raise ImportError(CURE) from None
