"""Image files: search, labels and splits, and conversion to upright 8-bit RGB arrays of bounded size."""

from __future__ import annotations

import csv
import hashlib
import json
import logging
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dmo.errors import UserError
from dmo.formats.files import csv_rows, existing
from dmo.formats.labels import Kind, label_matrix
from dmo.formats.schema import TableOptions
from dmo.hashing import file_digest
from dmo.labels.stratification import describe_test_split

if TYPE_CHECKING:
    from PIL.Image import Image

log = logging.getLogger("dmo")
SUFFIXES = frozenset([".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"])
"""File suffixes of images in lower case."""
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Formats that are decoded, whatever the suffix. For other formats, such as PostScript, Pillow may start programs."""
SIDE = 256
"""Size in pixels to which the longer side of larger images is reduced."""
LEAST = 32
"""Size in pixels to which a shorter side is enlarged, because descriptors need a minimum size."""
MAX_PIXELS = 80_000_000
"""Maximum number of pixels of a file that is decoded. A larger file may be a decompression bomb."""
LONGEST, LARGEST = 65_535, 1 << 30
"""Maximum side in pixels and file size in bytes. JPEG files have the same limit per side, and cameras do not exceed
it."""
CURE = "reading images needs Pillow, OpenCV and PyWavelets; run: pip install dmo-learn[images]"
NAMES = ("file", "image", "picture", "path", "sample")
"""Accepted names of the first column in a label file."""
FOLDERS = "folders"
log = logging.getLogger("dmo")


class UnreadableImage(UserError):
    """Error for a file that is not an image, is damaged, or is too large to decode; contains file name and reason.

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
    """Find the images and all other files below a folder.

    Hidden files and folders are listed as other files, without the contents of the folders.

    Parameters
    ----------
    folder : path-like
        Folder to search.

    Returns
    -------
    images, others : list of str
        Sorted paths relative to the folder, separated by "/".

    Raises
    ------
    FileNotFoundError
        If the folder does not exist.
    UserError
        If the folder contains no images.

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
        raise FileNotFoundError(f"{root} is not a folder; pass a folder of images")
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
        raise UserError(f"{root} contains no images; pass a folder with files that end in {' '.join(sorted(SUFFIXES))}")
    return sorted(images), sorted(others)


def read_image(
    path: str | os.PathLike[str], side: int = SIDE, max_pixels: int = MAX_PIXELS, formats: Sequence[str] = FORMATS
) -> np.ndarray:
    """Read an image file as 8-bit RGB.

    The image is rotated upright according to EXIF, and transparent pixels become white. Gray, palette, CMYK and 16-bit
    images are converted. Only the first frame is read. An image whose longer side exceeds `side` is reduced to this
    size, and sides below `LEAST` pixels are enlarged to it.

    Parameters
    ----------
    path : path-like
        Path of the file.
    side : int, default=256
        Maximum length of the longer side in pixels.
    max_pixels : int, default=80_000_000
        Maximum number of pixels. A larger image is rejected after reading its header.
    formats : sequence of str, default=("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
        Pillow's names of the formats to decode. The format is detected from the content of the file, not from its name.
        Add other formats only for trusted files: Pillow passes "EPS" to another program.

    Returns
    -------
    ndarray of shape (h, w, 3), uint8
        RGB image.

    Raises
    ------
    UnreadableImage
        If the file cannot be read; contains the reason.
    ImportError
        If Pillow is not installed.

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
        raise UserError(f"read_image: side = {side} pixels, expected at least {LEAST}")
    check_file(path)
    try:
        with Image.open(path, formats=tuple(formats)) as image:
            pixels = image.width * image.height
            if pixels > max_pixels:
                raise UnreadableImage(f"{path}: {pixels} pixels, at most {max_pixels} are decoded; raise max_pixels")
            if max(image.size) > LONGEST:
                raise UnreadableImage(f"{path}: {image.width} x {image.height} pixels, the maximum side is {LONGEST}")
            image.draft(None, (2 * side, 2 * side))  # Decode a JPEG file at a fraction of its size.
            upright = ImageOps.exif_transpose(image)
            return np.asarray(_resized(_rgb(upright), side))
    except (UnreadableImage, MemoryError):
        raise
    except Exception as error:  # Catch all errors because decoders raise undocumented ones for damaged files.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UnreadableImage(f"{path}: cannot be read as an image ({reason})") from error


def check_file(path: str | os.PathLike[str]) -> None:
    """Reject all but regular files of bounded size before opening: a pipe never returns and a device may be endless."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise UnreadableImage(f"{path}: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        raise UnreadableImage(f"{path}: is not a regular file; pass an image file")
    if found.st_size > LARGEST:
        raise UnreadableImage(f"{path}: {found.st_size} bytes, expected at most {LARGEST}")


def image_digest(path: str | os.PathLike[str]) -> str:
    """Compute a hash of a file's content."""
    check_file(path)
    try:
        with open(path, "rb") as file:
            return file_digest(file)[:32]
    except OSError as error:
        raise UnreadableImage(f"{path}: {error.strerror}") from error


def _rgb(image: Image) -> Image:
    """Convert an image of any mode to RGB: scale wide integers and floats to 0..255, blend transparency with white."""
    from PIL import Image as images

    if image.mode.startswith(("I", "F")):
        return images.fromarray(_eight_bits(np.asarray(image))).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        layer = image.convert("RGBA")
        return images.alpha_composite(images.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


def _eight_bits(values: np.ndarray) -> np.ndarray:
    """Convert gray values to uint8. Floats up to 1 are fractions, other values are 8-bit or 16-bit numbers."""
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


@dataclass(frozen=True, eq=False)
class Listing:
    """Images of a folder, with their labels and splits.

    Parameters
    ----------
    folder : Path
        Folder of the images.
    ids : list of str
        Paths of the n images relative to the folder.
    labels : ndarray of shape (n, L), default=None
        0 and 1, or regression targets. NaN marks unknown values.
    label_names : list of str, default=None
        The L label names.
    split : list of str, default=None
        The n splits.
    unlisted : tuple of str, default=()
        Images that are missing in the label file, and are therefore excluded.
    absent : tuple of str, default=()
        Names in the label file for which there is no image.
    others : tuple of str, default=()
        Files that are not images.
    kind : {"labels", "classes", "targets"}, default="labels"
        Type of the labels: 0 and 1, one class per image, or real numbers.

    Examples
    --------
    >>> from pathlib import Path
    >>> from dmo.features import Listing
    >>> listing = Listing(Path("photos"), [f"{i}.jpg" for i in range(6)])
    >>> listing.with_test_share(0.3).split
    ['test', 'test', 'train', 'train', 'train', 'test']
    """

    folder: Path
    ids: list[str]
    labels: np.ndarray | None = None
    label_names: list[str] | None = None
    split: list[str] | None = None
    unlisted: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    kind: Kind = "labels"

    def path(self, i: int) -> Path:
        """Return the path of an image.

        Parameters
        ----------
        i : int
            Index of the image.

        Returns
        -------
        Path
            Path of its file.
        """
        return self.folder / self.ids[i]

    def keep(self, rows: Sequence[int]) -> Listing:
        """Return a listing with a subset of the images.

        Parameters
        ----------
        rows : sequence of int
            Indices of the images.

        Returns
        -------
        Listing
            Listing of these images.
        """
        return replace(
            self,
            ids=[self.ids[i] for i in rows],
            labels=None if self.labels is None else self.labels[list(rows)],
            split=None if self.split is None else [self.split[i] for i in rows],
        )

    def with_test_share(self, share: float) -> Listing:
        """Split the images into "train" and "test", depending only on their names.

        Parameters
        ----------
        share : float
            Fraction of test images, in (0, 1).

        Returns
        -------
        Listing
            Listing with this split.

        Raises
        ------
        UserError
            If the fraction is not between 0 and 1, or one of both splits would be empty.
        """
        if not 0 < share < 1:
            raise UserError(f"the test share is {share:g}; pass a number between 0 and 1, such as 0.1")
        places = [int(hashlib.sha256(name.encode()).hexdigest()[:12], 16) / 16**12 for name in self.ids]
        split = ["test" if place < share else "train" for place in places]
        if len(set(split)) < 2:
            raise UserError(f"a test share of {share:g} of {len(self.ids)} images leaves one split empty; change it")
        if self.labels is not None and self.kind != "targets":
            log.warning("%s", describe_test_split(self.labels, np.array(split) == "test", share))
        return replace(self, split=split)


def list_images(
    folder: str | os.PathLike[str], labels: str | os.PathLike[str] | None = None, separator: str | None = None
) -> Listing:
    r"""List the images below a folder, optionally with labels.

    A CSV file has a header and a first column of file names relative to the folder. The labels follow in any form that
    `dmo.datasets.read_samples` reads: a column of names separated by | ; or , or a column of classes, or columns of 0
    and 1 or of regression targets. A column "split" is optional. A JSON file contains {"file": ["label", ...]}, or a
    list of {"file": ..., "labels": [...], "split": ...}.

    Parameters
    ----------
    folder : path-like
        Folder of the images.
    labels : path-like, default=None
        A .csv or .json file, or "folders" for the names of an image's folders. With "folders", a first folder named
        train, test, val or validation is the split, and labels are classes if every image is in exactly one other
        folder. None reads no labels.
    separator : str, default=None
        Separator between the labels of an image, as for `dmo.datasets.read_samples`.

    Returns
    -------
    Listing
        The images, sorted by name.

    Raises
    ------
    UserError
        If the file has another form (with the line number), if no image or no label remains, and as `find_images`.

    Examples
    --------
    >>> from pathlib import Path
    >>> from dmo.features import list_images
    >>> for name in ("a.jpg", "b.jpg"):
    ...     Path(name).touch()
    >>> _ = Path("labels.csv").write_text("file,labels\na.jpg,sky;sea\nb.jpg,sky\n")
    >>> listing = list_images(".", "labels.csv")
    >>> listing.label_names, listing.labels.tolist()
    (['sea', 'sky'], [[1, 1], [0, 1]])
    """
    found, others = find_images(folder)
    plain = Listing(Path(folder), found, others=tuple(others))
    if labels is None:
        return plain
    if str(labels) == FOLDERS:
        entries = {name: _by_folders(name) for name in found}
    else:
        path = Path(labels)
        if path.suffix.lower() not in (".csv", ".json"):
            raise UserError(f"labels {path} cannot be read; pass 'folders', or a file that ends in .csv or .json")
        entries = _once_each((_of_csv if path.suffix.lower() == ".csv" else _of_json)(existing(path)))
    listed = [name for name in found if name in entries]
    if not listed:
        raise UserError(
            f"{labels} does not list any image of {folder}; write paths relative to this folder in the first column"
        )
    Y, names, kind = _labels(str(labels), [entries[name][0] for name in listed], separator)
    if not names:
        raise UserError(f"{labels} does not contain labels of images in {folder}; add labels")
    known = set(found)
    return replace(
        plain,
        ids=listed,
        labels=Y,
        label_names=names,
        kind=kind,
        split=_splits(str(labels), [entries[name][1] for name in listed]),
        unlisted=tuple(name for name in found if name not in entries),
        absent=tuple(sorted(name for name in entries if name not in known)),
    )


ListedImage = tuple[list[str] | dict[str, str | None], str | None]
"""Labels of an image, or its cells by column, and its split."""


def _labels(where: str, given: Sequence[Any], separator: str | None) -> tuple[np.ndarray, list[str], Kind]:
    """Return label matrix, label names and kind of labels; there are no names if no image has a label."""
    import pandas as pd

    if not any(any(cells.values() if isinstance(cells, dict) else cells) for cells in given):
        return np.zeros((len(given), 0)), [], "labels"
    of_cells = isinstance(given[0], dict)
    table: Any = pd.DataFrame.from_records(given) if of_cells else [set(row) for row in given]
    notes: list[str] = []
    Y, found, kind = label_matrix(where, table, TableOptions(separator=separator), notes)
    for note in notes:
        log.warning("%s", note)
    names = found or [str(j) for j in range(Y.shape[1])]
    if kind != "labels":
        return Y, names, kind
    carried = [j for j in sorted(range(len(names)), key=names.__getitem__) if Y[:, j].any()]
    one_each = where == FOLDERS and len(carried) > 1 and all(len(folders) == 1 for folders in given)
    return Y[:, carried], [names[j] for j in carried], "classes" if one_each else kind


def _splits(where: str, given: Sequence[str | None]) -> list[str] | None:
    if all(split is None for split in given):
        return None
    if None in given:
        raise UserError(f"{where}: {given.count(None)} of {len(given)} images have no split; add it to all or none")
    return [str(split) for split in given]


def _by_folders(name: str) -> ListedImage:
    parts = name.split("/")[:-1]
    split = parts[0] if parts and parts[0].lower() in ("train", "test", "val", "validation") else None
    return list(dict.fromkeys(parts if split is None else parts[1:])), split


def _of_csv(path: Path) -> Iterator[tuple[str, str, ListedImage]]:
    """Yield the place, name and entry (labels and split) of each image in a CSV file."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        lines = csv_rows(file)
        try:
            header = [field.strip() for field in next(lines, [])]
            if len(header) < 2 or header[0].lower() not in NAMES:
                raise UserError(
                    f"{path}: line 1 begins with {','.join(header)[:60]!r}, expected a header with a first column "
                    "'file', followed by the labels"
                )
            for fields in filter(None, lines):
                where = f"{path}: line {lines.line_num}"
                if len(fields) != len(header):
                    raise UserError(f"{where} has {len(fields)} fields, the header has {len(header)}")
                cells = dict(zip(header[1:], (field if field.strip() else None for field in fields[1:])))
                split = next((name for name in cells if name.lower() == "split"), None)
                yield where, fields[0].strip(), (cells, None if split is None else cells.pop(split))
        except (UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"{path}: line {lines.line_num + 1} is not valid CSV text in UTF-8 ({error})") from error


def _of_json(path: Path) -> Iterator[tuple[str, str, ListedImage]]:
    """Yield the place, name and entry (labels and split) of each image in a JSON file."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: is not valid JSON ({error})") from error
    if isinstance(document, Mapping):
        document = [{"file": name, "labels": labels} for name, labels in document.items()]
    if not isinstance(document, list):
        raise UserError(f"{path}: contains {type(document).__name__}, expected a dictionary or a list of images")
    for number, entry in enumerate(document):
        where, item = f"{path}: entry {number}", entry if isinstance(entry, Mapping) else {}
        name, labels, split = item.get("file"), item.get("labels", []), item.get("split")
        strings = isinstance(labels, list) and all(isinstance(label, str) for label in labels)
        if not isinstance(name, str) or not strings or not isinstance(split, str | None):
            raise UserError(f'{where} is not of the form {{"file": "a.jpg", "labels": ["sky"], "split": "train"}}')
        yield where, name, (labels, split)


def _once_each(listed: Iterable[tuple[str, str, ListedImage]]) -> dict[str, ListedImage]:
    """Map each image name to its entry; raise an error for repeated names."""
    entries: dict[str, ListedImage] = {}
    for where, given, entry in listed:
        name = Path(given).as_posix()
        if name in entries:
            raise UserError(f"{where} names {name!r} a second time; list each image once")
        entries[name] = entry
    return entries
