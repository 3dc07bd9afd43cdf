"""Functions that find and read image files, and read their labels and splits."""

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
"""File extensions of images in lower case."""
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Image formats that are decoded. To decode other formats, such as PostScript, Pillow may start other programs."""
SIDE = 256
"""Maximum length in pixels of the longer side of an image. Larger images are reduced."""
LEAST = 32
"""Minimum length in pixels of a side of an image. Descriptors need this size, so shorter sides are enlarged."""
MAX_PIXELS = 80_000_000
"""Maximum number of pixels of an image file. A larger file may be a decompression bomb."""
LONGEST, LARGEST = 65_535, 1 << 30
"""Maximum length of a side in pixels, which is also the limit of JPEG files, and maximum file size in bytes."""
CURE = (
    "reading images needs Pillow, OpenCV and PyWavelets, which are not all installed; run: "
    "pip install dmo-learn[images]"
)
NAMES = ("file", "image", "picture", "path", "sample")
"""Valid names of the first column of a label file, which contains the file names of the images."""
FOLDERS = "folders"
log = logging.getLogger("dmo")


class UnreadableImage(UserError):
    """Exception raised if a file is not an image, is damaged, or is too large to decode.

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

    Hidden files and hidden folders are other files. Hidden folders are not searched.

    Parameters
    ----------
    folder : path-like
        Folder to search.

    Returns
    -------
    images, others : list of str
        Sorted paths of the images and of the other files, relative to the folder.

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
    """Read an image file as an 8-bit RGB image of limited size.

    The image is rotated upright according to its EXIF data, transparent pixels become white, and gray, palette, CMYK
    and 16-bit images are converted to RGB. An image whose longer side exceeds `side` is reduced to this size. Sides of
    fewer than 32 pixels are enlarged to 32 pixels. Only the first frame of an animation is read.

    Parameters
    ----------
    path : path-like
        Path of the image file.
    side : int, default=256
        Maximum length of the longer side in pixels.
    max_pixels : int, default=80_000_000
        Maximum number of pixels. If the header of a file declares more pixels, the file is not decoded.
    formats : sequence of str, default=("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
        Formats that Pillow may decode. The format of a file is detected from its content. Add other formats only for
        trusted files, because Pillow passes some formats, such as "EPS", to other programs.

    Returns
    -------
    ndarray of shape (h, w, 3), uint8
        RGB image.

    Raises
    ------
    UnreadableImage
        If the file cannot be read. The message contains the reason.
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
            image.draft(None, (2 * side, 2 * side))  # decode a large JPEG file at reduced size, which is faster
            upright = ImageOps.exif_transpose(image)
            return np.asarray(_resized(_rgb(upright), side))
    except (UnreadableImage, MemoryError):
        raise
    except Exception as error:  # decoders raise undocumented types of exceptions for damaged files
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UnreadableImage(f"{path}: cannot be read as an image ({reason})") from error


def check_file(path: str | os.PathLike[str]) -> None:
    """Raise UnreadableImage unless the path is a regular file of limited size, which cannot block a reader."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise UnreadableImage(f"{path}: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        raise UnreadableImage(f"{path}: is not a regular file; pass an image file")
    if found.st_size > LARGEST:
        raise UnreadableImage(f"{path}: {found.st_size} bytes, expected at most {LARGEST}")


def image_digest(path: str | os.PathLike[str]) -> str:
    check_file(path)
    try:
        with open(path, "rb") as file:
            return file_digest(file)[:32]
    except OSError as error:
        raise UnreadableImage(f"{path}: {error.strerror}") from error


def _rgb(image: Image) -> Image:
    """Convert an image of any mode to RGB, with white instead of transparent pixels."""
    from PIL import Image as images

    if image.mode.startswith(("I", "F")):
        return images.fromarray(_eight_bits(np.asarray(image))).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        layer = image.convert("RGBA")
        return images.alpha_composite(images.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


def _eight_bits(values: np.ndarray) -> np.ndarray:
    """Convert gray values to uint8. Floats of at most 1 are interpreted as fractions of white."""
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
    """Import an optional library; raise ImportError with the command that installs it if it is missing."""
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        raise ImportError(CURE) from None


@dataclass(frozen=True, eq=False)
class Listing:
    """List of images in a folder, with their labels and splits.

    Parameters
    ----------
    folder : Path
        Folder that contains the images.
    ids : list of str
        Paths of the n images relative to the folder.
    labels : ndarray of shape (n, L), default=None
        Label indicators of 0 and 1, or regression targets. Unknown labels are NaN.
    label_names : list of str, default=None
        Names of the L labels.
    split : list of str, default=None
        Name of the split of each image.
    unlisted : tuple of str, default=()
        Images that are excluded because the label file does not contain them.
    absent : tuple of str, default=()
        Names in the label file for which there is no image.
    others : tuple of str, default=()
        Files in the folder that are not images.
    kind : {"labels", "classes", "targets"}, default="labels"
        Kind of the labels: label indicators, one class per image, or regression targets.

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
            Path of the image file.
        """
        return self.folder / self.ids[i]

    def keep(self, rows: Sequence[int]) -> Listing:
        """Select images by index.

        Parameters
        ----------
        rows : sequence of int
            Indices of the selected images.

        Returns
        -------
        Listing
            List of the selected images.
        """
        return replace(
            self,
            ids=[self.ids[i] for i in rows],
            labels=None if self.labels is None else self.labels[list(rows)],
            split=None if self.split is None else [self.split[i] for i in rows],
        )

    def with_test_share(self, share: float) -> Listing:
        """Split the images into "train" and "test" by a hash of their names.

        Parameters
        ----------
        share : float
            Expected fraction of test images, between 0 and 1.

        Returns
        -------
        Listing
            List of the images with the new split.

        Raises
        ------
        UserError
            If the fraction is not between 0 and 1, or if one of the splits would be empty.
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
    r"""List the images below a folder, and read their labels.

    The first column of a CSV file must have the name "file", "image", "picture", "path" or "sample", and contains file
    names relative to the folder. The other columns contain labels in any form that `dmo.datasets.read_samples`
    supports, and an optional column "split". A JSON file contains a dictionary such as {"a.jpg": ["sky"]}, or a list of
    dictionaries such as {"file": "a.jpg", "labels": ["sky"], "split": "train"}.

    Parameters
    ----------
    folder : path-like
        Folder that contains the images.
    labels : path-like, default=None
        A .csv or .json file, or "folders" to use the names of the folders of an image as its labels. A top folder named
        train, test, val or validation is then the split, and the labels are classes if every image is in exactly one
        other folder. By default, no labels are read.
    separator : str, default=None
        Separator between the labels of an image, see `dmo.datasets.read_samples`.

    Returns
    -------
    Listing
        List of the images, sorted by name.

    Raises
    ------
    FileNotFoundError
        If the folder does not exist.
    UserError
        If the label file is invalid, or if there are no images or no labels.

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
        entries = _by_folders(found)
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
"""Entry of a label file: the labels of an image, or the cells of its row by column name, and its split."""


def _labels(where: str, given: Sequence[Any], separator: str | None) -> tuple[np.ndarray, list[str], Kind]:
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


def _by_folders(names: Sequence[str]) -> dict[str, ListedImage]:
    """Return the labels and the split of each image; leave out images next to the class folders, and log a warning."""
    entries = {name: _of_folder(name) for name in names}
    outside = [name for name, (folders, _) in entries.items() if not folders]
    if outside and all(len(folders) <= 1 for folders, _ in entries.values()):
        log.warning(
            "leaving out %d of %d images, which are not in a class folder, such as %s; move them to the folder of their "
            "class, or pass a table of labels",
            len(outside),
            len(names),
            outside[0],
        )
        return {name: entry for name, entry in entries.items() if entry[0]}
    return entries


def _of_folder(name: str) -> ListedImage:
    parts = name.split("/")[:-1]
    split = parts[0] if parts and parts[0].lower() in ("train", "test", "val", "validation") else None
    return list(dict.fromkeys(parts if split is None else parts[1:])), split


def _of_csv(path: Path) -> Iterator[tuple[str, str, ListedImage]]:
    """Yield the line, the image name and the entry for each row of a CSV file of labels."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        lines = csv_rows(file)
        try:
            header = [field.strip() for field in next(lines, [])]
            if len(header) < 2 or header[0].lower() not in NAMES:
                raise UserError(
                    f"{path}: line 1 begins with {','.join(header)[:60]!r}, expected a header with a first column "
                    "'file', followed by the labels; write the line file,labels above it"
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
    """Yield the position, the image name and the entry for each image in a JSON file of labels."""
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
    entries: dict[str, ListedImage] = {}
    for where, given, entry in listed:
        name = Path(given).as_posix()
        if name in entries:
            raise UserError(f"{where} names {name!r} a second time; list each image once")
        entries[name] = entry
    return entries
