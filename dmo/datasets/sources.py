"""How each public data set's files become views, labels and split."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.sparse

from dmo.blocks import Rows, Subset, rows
from dmo.datasets.cards import Card, File, ViewCard
from dmo.datasets.writing import Source
from dmo.errors import UserError
from dmo.formats.arff import read_label_list
from dmo.formats.arrays import open_npz
from dmo.formats.files import COMPRESSED, DataError
from dmo.formats.matlab import read_matlab
from dmo.formats.tables import open_table

log = logging.getLogger("dmo")
_LARGEST = 1 << 30  # bytes of a file that is fetched; the largest of a card has a thirtieth of them


def find(card: Card, folder: str | os.PathLike[str], files: list[File], download: bool = False) -> dict[str, Path]:
    """Where the files of a card lie in a folder: file name -> path.

    A file may also lie without the sub-folder of its name, or decompressed. With `download`, those that are missing and have
    an address are fetched.
    Raises FileNotFoundError with every missing file and where it can be had.
    """
    found = {file.name: path for file in files if (path := _place(folder, file)) is not None}
    missing, reason = [file for file in files if file.name not in found], ""
    while download and not reason and (fetchable := [file for file in missing if file.url is not None]):
        try:
            found[fetchable[0].name] = fetch(card, folder, fetchable[0])
        except OSError as error:
            reason = f" (it could not be fetched: {str(error).splitlines()[0][:160]})"
        missing = [file for file in files if file.name not in found]
    if missing:
        cure = f"put what can be had there into {folder}"
        if not download and any(file.url is not None for file in missing):
            cure += ", or pass --fetch (fetch=True) where there is a network"
        listed = "; ".join(f"{file.name} ({file.url or file.source})" for file in missing)
        raise FileNotFoundError(f"{card.name}: {folder} lacks {listed}{reason}; {cure}")
    return found


def _place(folder: str | os.PathLike[str], file: File) -> Path | None:
    name = Path(file.name)
    plain = name.with_suffix("") if name.suffix in COMPRESSED else name
    candidates = [Path(folder, part) for part in (name, plain, name.name, plain.name)]
    return next((path for path in candidates if path.is_file()), None)


def fetch(card: Card, folder: str | os.PathLike[str], file: File) -> Path:
    """Download a file of a card into a folder, where it lies once its checksum is right.

    Raises OSError where it cannot be had, DataError where its bytes are others than the card says.
    """
    try:
        import pooch  # an optional package
    except ImportError:
        raise UserError("fetching files needs pooch; install dmo-learn[fetch], or download them yourself") from None
    pooch.get_logger().setLevel("WARNING")
    name = Path(file.url or "").name
    log.warning("%s: fetching %s", card.name, file.url)
    plain = pooch.HTTPDownloader(progressbar=_Bounded())
    try:
        return Path(pooch.retrieve(file.url, f"sha256:{file.sha256}", name, folder, downloader=plain))
    except OSError:
        raise
    except ValueError as error:  # what pooch says of a checksum
        raise DataError(f"{card.name}: {file.url} has other bytes than the card says, nothing is kept") from error


class _Bounded:
    """Counts what comes in the place of a display of progress: a server may send without end."""

    _seen, total = 0, 0

    def update(self, count: int) -> None:
        self._seen += count
        if self._seen > _LARGEST:
            raise OSError(f"more than {_LARGEST} bytes came")

    def reset(self) -> None:
        self._seen = self.total = 0

    def close(self) -> None:
        pass


def read_corel5k(card: Card, paths: dict[str, Path], views: list[ViewCard]) -> Source:
    """Corel5k in the order of its two lists, training first."""
    notes = _members(paths[card.annotations[0]], "train", "test", "words", "ids")
    source = Source({}, np.concatenate([rows(notes["train"]), rows(notes["test"])]), _texts(notes["words"]))
    source.sample_ids = _texts(notes["ids"])
    for view in views:
        file = paths[view.files[0]]
        if view.name == "lear_dense_hue":
            order = rows(_members(paths[view.files[1]], "perm")["perm"])
            source.views[view.name] = Subset(read_matlab(file, ["X_all"])["X_all"], order)
        else:
            source.views[view.name] = _members(file, "X")["X"]
    return source


def read_espgame(card: Card, paths: dict[str, Path], views: list[ViewCard]) -> Source:
    """The ESP game in the order of its official lists, training first.

    The descriptors come shuffled, with their labels: a row's place is known up to images with the same labels.
    Raises DataError when the labels beside the descriptors are not those of the lists.
    """
    mat, split = (paths[name] for name in card.views[0].files)
    notes = _members(paths[card.annotations[0]], "train", "test", "words", "train_ids", "test_ids")
    parts = _members(split, "train_rows", "test_rows")
    matrices = read_matlab(mat, ["X_all", "Y_all"])
    train, test = rows(notes["train"]), rows(notes["test"])
    found, rows_train, rows_test = matrices["Y_all"], rows(parts["train_rows"]), rows(parts["test_rows"])
    labels, order = np.concatenate([train, test]), np.empty(0, dtype=np.intp)
    if len(rows_train) == len(train):
        order = np.concatenate([_match(found, rows_train, train), rows_test])
    if not np.array_equal(found[order], labels):
        raise DataError(f"{mat}: Y_all has other labels than {paths[card.annotations[0]]}, expected the same in both")
    source = Source({view.name: Subset(matrices["X_all"], order) for view in views}, labels, _texts(notes["words"]))
    source.sample_ids = _texts(notes["train_ids"]) + _texts(notes["test_ids"])
    return source


def _match(found: np.ndarray, chosen: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The rows `chosen` of `found`, in an order in which they equal `wanted`; equal rows keep their order."""
    by_found = chosen[np.lexsort(found[chosen].T[::-1])]
    order = np.empty(len(wanted), dtype=np.intp)
    order[np.lexsort(wanted.T[::-1])] = by_found
    return order


def read_mulan(card: Card, paths: dict[str, Path], views: list[ViewCard]) -> Source:
    """A set of Mulan's as published: the training rows, then the test rows."""
    train, test, listing = (paths[name] for name in card.annotations)
    table = open_table(card.name, {"train": train, "test": test}, read_label_list(listing))
    return Source({views[0].name: table.X}, table.Y, table.label_names)


def read_rcv1(card: Card, paths: dict[str, Path], views: list[ViewCard]) -> Source:
    """RCV1's first subset: binary words as sparse rows; its categories have numbers, no names."""
    matrices = read_matlab(paths[card.files[0].name], ["data", "target"])
    labels = np.ascontiguousarray(matrices["target"].T)
    names = [f"category {j + 1}" for j in range(labels.shape[1])]
    return Source({views[0].name: scipy.sparse.csr_array(matrices["data"])}, labels, names)


READERS: dict[str, Callable[[Card, dict[str, Path], list[ViewCard]], Source]] = {
    "corel5k": read_corel5k,
    "espgame": read_espgame,
    **dict.fromkeys(("yeast", "scene", "emotions", "enron", "bibtex"), read_mulan),
    "rcv1subset": read_rcv1,
}


def _members(path: Path, *names: str) -> dict[str, Rows]:
    """The arrays of an .npz archive; DataError where one of `names` is missing."""
    members = open_npz(path)
    missing = [name for name in names if name not in members]
    if missing:
        raise DataError(f"{path}: no array {missing[0]!r}, expected {', '.join(names)}")
    return members


def _texts(array: Rows) -> list[str]:
    return [str(text) for text in rows(array)]
