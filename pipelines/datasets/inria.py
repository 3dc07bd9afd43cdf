"""Image data sets of INRIA's LEAR group: 15 descriptors per image, keywords, two splits, and a common naming scheme.

    python pipelines/datasets/inria.py DIR STORE --name iaprtc12 [--views gist,rgb]

DIR contains NAME_train_Gist.fvec, NAME_train_annot.hvecs and so on; README.md in this folder describes these files.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from dmo.datasets.files import check_known, ingest_files
from dmo.errors import UserError
from dmo.formats.arrays import FORMATS, open_vecs
from dmo.formats.files import DataError
from dmo.stores import FeatureStore
from dmo.workflows.program import option_parser, run_pipeline

DESCRIPTORS = {
    "rgb": ("RgbV3H1", 5184),
    "lab": ("LabV3H1", 5184),
    "hsv": ("HsvV3H1", 5184),
    "gist": ("Gist", 512),
    "dense_sift": ("DenseSiftV3H1", 3000),
    "harris_sift": ("HarrisSiftV3H1", 3000),
    "dense_hue": ("DenseHueV3H1", 300),
    "harris_hue": ("HarrisHueV3H1", 300),
    "rgb_whole": ("Rgb", 4096),
    "lab_whole": ("Lab", 4096),
    "hsv_whole": ("Hsv", 4096),
    "dense_sift_whole": ("DenseSift", 1000),
    "harris_sift_whole": ("HarrisSift", 1000),
    "dense_hue_whole": ("DenseHue", 100),
    "harris_hue_whole": ("HarrisHue", 100),
}
"""File name and dimension by view. Descriptors cover three horizontal bands, concatenated, or the whole image."""
SHAPES = {"corel5k": (4500, 499, 260), "espgame": (18689, 2081, 268), "iaprtc12": (17665, 1962, 291)}
"""Numbers of training images, test images and keywords by data set."""


def ingest_inria(
    folder: str | os.PathLike[str],
    store: str | os.PathLike[str],
    name: str,
    *,
    views: Collection[str] | None = None,
    block: int = 1024,
    overwrite: bool = False,
) -> FeatureStore:
    """Write the files of a data set, NAME_train_Gist.fvec, NAME_test_annot.hvecs and so on, as a feature store.

    The names of the keywords are read from NAME_dictionary.txt if it exists. The descriptors are listed in
    `DESCRIPTORS`; all except "gist" are counts.

    `name` is the prefix of the file names; the sizes of "corel5k", "espgame" and "iaprtc12" are checked. If `views` is
    None, all descriptors are read whose files exist in both splits.
    """
    folder = Path(folder)
    check_known("views", views or (), DESCRIPTORS)
    labels = _splits(folder, name, "annot", required=True) or {}
    found = {
        view: files
        for view, (stem, _) in DESCRIPTORS.items()
        if (views is None or view in views) and (files := _splits(folder, name, stem, required=views is not None))
    }
    if not found:
        raise UserError(f"{folder}: no descriptor of {name!r}; pass the folder of files such as {name}_train_Gist.fvec")
    _check(name, labels, found, folder)
    words = folder / f"{name}_dictionary.txt"
    return ingest_files(
        found,
        store,
        labels=labels,
        label_names=words if words.is_file() else None,
        histograms=[view for view in found if view != "gist"],
        block=block,
        overwrite=overwrite,
    )


def _splits(folder: Path, name: str, stem: str, required: bool) -> dict[str, Path] | None:
    """Return the files of both splits, or None if one is missing."""
    found: dict[str, Path] = {}
    for split in ("train", "test"):
        paths = [path for ending in FORMATS if (path := folder / f"{name}_{split}_{stem}{ending}").is_file()]
        if paths:
            found[split] = paths[0]
        elif required:
            raise FileNotFoundError(f"{folder} lacks {name}_{split}_{stem} (.hvecs, .hvecs32 or .fvec)")
    return found if len(found) == 2 else None


def _check(name: str, labels: Mapping[str, Path], found: Mapping[str, Mapping[str, Path]], folder: Path) -> None:
    """Check the dimensions of the descriptors and the sizes of a known data set, from the headers of the files."""
    for view, files in found.items():
        stem, dimension = DESCRIPTORS[view]
        for path in files.values():
            if open_vecs(path).shape[1] != dimension:
                raise DataError(f"{path}: rows of {open_vecs(path).shape[1]} values, expected {dimension} of {stem}")
    if name in SHAPES:
        parts = [open_vecs(labels[split]).shape for split in ("train", "test")]
        got = (parts[0][0], parts[1][0], parts[0][1])
        if got != SHAPES[name]:
            raise DataError(
                f"{folder}: {name} has {got} training and test images and keywords, expected {SHAPES[name]}"
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Ingest a data set and return the exit code (see `dmo.workflows.program`)."""
    made = option_parser(__doc__, run=True, views=None)
    made.add_argument("folder", help="folder with the files of the data set")
    made.add_argument("store", help="feature store to write")
    made.add_argument("--name", required=True, help="prefix of the file names, such as iaprtc12 or espgame")
    made.add_argument("--block", type=int, default=1024, help="rows per block")
    made.add_argument("--overwrite", action="store_true", help="replace an existing store")
    options = made.parse_args(arguments)
    views = options.views
    given = {"views": views, "block": options.block, "overwrite": options.overwrite}
    return run_pipeline(
        __file__, options, lambda _: print(ingest_inria(options.folder, options.store, options.name, **given))
    )


if __name__ == "__main__":
    sys.exit(main())
