"""Data sets that have a card, checked against it -> a feature store."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import numpy as np
import scipy.sparse

from dmo.blocks import Subset, dense, rows
from dmo.datasets.cards import ALL, Card, File, Files, ViewCard, by_split, read_card
from dmo.datasets.files import check_known, ingest_files, read_description
from dmo.datasets.samples import Samples
from dmo.errors import UserError
from dmo.formats.arff import read_label_list
from dmo.formats.arrays import open_npz
from dmo.formats.files import COMPRESSED, DataError, sha256, suffix
from dmo.formats.sources import split_name
from dmo.formats.tables import Table, open_rows, open_table
from dmo.formats.text import read_names
from dmo.progress import stage
from dmo.stores import FeatureStore, Provenance

log = logging.getLogger("dmo")
_LARGEST = 1 << 30  # bytes of a file that is fetched; the largest of a card has a thirtieth of them
_LONGEST = 3600.0  # seconds that a file may take in all


def find(card: Card, folder: str | os.PathLike[str], files: list[File], download: bool = False) -> dict[str, Path]:
    """Where the files of a card lie in a folder: file name -> path."""
    # A file may also lie without the sub-folder of its name, or decompressed. With `download`, those that are missing
    # and have an address are fetched. Raises FileNotFoundError with every missing file and where it can be had.
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
    counted, answer, target, opened = _Bounded(), Future[str](), Path(folder, name), list[Any]()
    noted = {"response": lambda response, **_: opened.append(response)}
    plain = pooch.HTTPDownloader(progressbar=counted, hooks=noted)

    def retrieve(place: str) -> None:
        try:
            answer.set_result(pooch.retrieve(file.url, f"sha256:{file.sha256}", name, place, downloader=plain))
        except BaseException as error:
            answer.set_exception(error.with_traceback(None))
        for response in opened:
            response.close()

    os.makedirs(folder, exist_ok=True)
    try:
        # in a thread, since every byte renews the time limit of a connection, and one of a header reaches nobody here
        with TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as place:
            Thread(target=retrieve, args=[place], name="dmo-fetch", daemon=True).start()
            os.replace(answer.result(_LONGEST), target)
        return target
    except OSError as error:
        if answer.done():
            raise
        counted.seen = _LARGEST  # ends the thread with the next bytes
        raise OSError(f"it was not there after {_LONGEST:g} s") from error
    except ValueError as error:  # what pooch says of a checksum
        raise DataError(f"{card.name}: {file.url} has other bytes than the card says, nothing is kept") from error


class _Bounded:
    """Counts what comes in the place of a display of progress: a server may send without end."""

    seen, total = 0, 0

    def update(self, count: int) -> None:
        self.seen += count
        if self.seen > _LARGEST:
            raise OSError(f"more than {_LARGEST} bytes came")

    def reset(self) -> None:
        self.seen = self.total = 0

    def close(self) -> None:
        pass


def read(card: Card, paths: Mapping[str, Path], views: Sequence[ViewCard]) -> Samples:
    """The views, labels and names of a set, read from its files as the card says; not yet checked."""

    def open_files(name: str, files: Files, columns: Sequence[str] | int | None = None) -> Table:
        return open_table(name, {split: _placed(spec, paths) for split, spec in by_split(files).items()}, columns)

    labels = card.labels
    listing = labels.files if isinstance(labels.files, str) and suffix(labels.files) == ".xml" else None
    declared = labels.columns if listing is None else read_label_list(paths[listing])
    tables = {view.name: open_files(view.name, view.files, declared) for view in views}
    Y, names = next(((t.Y, t.label_names) for t in tables.values() if t.Y is not None), (None, None))
    if labels.files is not None and listing is None:
        Y, names = dense(rows(open_files("labels", labels.files).X)), None
    if labels.names is not None and "{}" in labels.names:
        names = [labels.names.format(j + 1) for j in range(labels.number)]
    elif labels.names is not None:
        names = _texts(_placed(labels.names, paths))
    ids = None
    if card.ids is not None:
        ids = [text for spec in by_split(card.ids).values() for text in _texts(_placed(spec, paths))]
    sources = dict[str, Any]()
    for view in views:
        X = tables[view.name].X
        if view.order is not None:
            X = Subset(rows(X), _order(view, paths, None if Y is None else dense(Y)))
        if view.kind == "sparse" and not scipy.sparse.issparse(rows(X, slice(0, 0))):
            X = scipy.sparse.csr_array(rows(X))
        sources[view.name] = X
    about = {"dataset": card.name, "title": card.title, "license": card.license, "citation": card.citation}
    return Samples(sources, Y, names, ids=ids, attributes=about)


def _placed(spec: str, paths: Mapping[str, Path]) -> str:
    """ "PATH::ARRAY" of a card with the place of the file."""
    name, array = split_name(spec)
    return f"{paths[name]}" if array is None else f"{paths[name]}::{array}"


def _array(spec: str) -> np.ndarray:
    """An array of one axis of an .npz archive."""
    path, name = split_name(spec)
    members = open_npz(path)
    if name is None or name not in members:
        raise DataError(f"{path}: no array {name!r}, expected one of {', '.join(members) or 'none'}")
    return rows(members[name])


def _texts(spec: str) -> list[str]:
    return [str(text) for text in _array(spec)] if "::" in spec else read_names(spec)


def _order(view: ViewCard, paths: Mapping[str, Path], labels: np.ndarray | None) -> np.ndarray:
    """The rows of a view's files in the order of the set; DataError where `match` has other labels than the set."""
    parts = [_array(_placed(spec, paths)) for spec in by_split(view.order or {}).values()]
    if view.match is None or labels is None:
        return np.concatenate(parts)
    where = _placed(view.match, paths)
    found, ends, order = rows(open_rows(where)), np.cumsum([len(part) for part in parts]), np.empty(0, np.intp)
    if ends[-1] == len(labels):
        order = np.concatenate([_match(found, *pair) for pair in zip(parts, np.split(labels, ends[:-1]))])
    if not np.array_equal(found[order], labels):
        raise DataError(f"{where}: has other labels than the set, expected the same in both")
    return order


def _match(found: np.ndarray, chosen: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The rows `chosen` of `found`, in an order in which they equal `wanted`; equal rows keep their order."""
    by_found = chosen[np.lexsort(found[chosen].T[::-1])]
    order = np.empty(len(wanted), dtype=np.intp)
    order[np.lexsort(wanted.T[::-1])] = by_found
    return order


def ingest(
    name: str | os.PathLike[str],
    source: str | os.PathLike[str],
    store: str | os.PathLike[str],
    *,
    views: Sequence[str] | None = None,
    checksums: bool = True,
    fetch: bool = False,
    block: int | None = None,
    overwrite: bool = False,
) -> FeatureStore:
    """Read a data set that has a card, check it against the card, and write it as a feature store.

    Called again in the same way, an interrupted run goes on with the blocks that are missing.

    Parameters
    ----------
    name : str or path-like
        One of `CARDS`, a card of your own (a path that ends in .toml), or "files".
    source : path-like
        The set's folder; of "files", a JSON file that holds the arguments of `ingest_files` (paths relative to it).
    store : path-like
        Where to write: a path or URL.
    views : sequence of str, default=None
        Some of the set's views; None: all that are not optional.
    checksums : bool, default=True
        The files must have the card's SHA-256. Shapes, label counts and sums are checked in any case.
    fetch : bool, default=False
        Download files that the folder lacks, where the card knows their addresses; always with the card's SHA-256.
    block : int, default=None
        Rows in a block, which is what memory must hold of a view; None: 1024, of rows of few numbers 4096.
    overwrite : bool, default=False
        Replace a store that is there.

    Returns
    -------
    FeatureStore
        The finished store, opened.

    Raises
    ------
    FileNotFoundError
        With every missing file, and where it can be had.
    DataError
        Where a file is damaged or differs from the card; nothing readable is left.
    UserError
        For an unknown name or view.
    StoreError
        Where `store` cannot be written.

    Examples
    --------
    >>> import json
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from dmo.datasets import ingest
    >>> np.save("x.npy", np.eye(4))
    >>> np.save("y.npy", np.eye(4, 2))
    >>> _ = Path("set.json").write_text(json.dumps({"views": {"gist": "x.npy"}, "labels": "y.npy"}))
    >>> ingest("files", "set.json", "set.zarr").n_samples
    4
    """
    if name == "files":
        description = read_description(source)
        if views is not None:
            check_known("views", views, description["views"])
            description["views"] = {view: description["views"][view] for view in dict.fromkeys(views)}
            description["histograms"] = [view for view in description.get("histograms", ()) if view in views]
            description["dtypes"] = {view: t for view, t in description.get("dtypes", {}).items() if view in views}
        return ingest_files(store=store, block=block, overwrite=overwrite, **description)
    card = read_card(name)
    chosen_views = card.choose(views)
    paths = find(card, source, card.files_for(chosen_views), fetch)
    digests = _digests(card, paths, checksums)
    return checked(card, read(card, paths, chosen_views)).write(
        store,
        histograms={view.name for view in chosen_views if view.histogram},
        dtypes={view.name: view.dtype for view in chosen_views},
        block=block,
        overwrite=overwrite,
        provenance=Provenance(parameters={"dataset": card.name, "files": digests}),
        complete=[view.name for view in chosen_views],
        totals={view.name: view.total for view in chosen_views},
    )


def checked(card: Card, samples: Samples) -> Samples:
    """The samples with the card's split; DataError for the first shape or count of labels that differs from the card."""
    n, labels = card.n_samples, samples.labels
    for view in card.choose(list(samples.views)):
        found = tuple(samples.views[view.name].shape)
        if found != (n, view.dimension):
            raise DataError(f"{card.name}: view {view.name!r} is {_by(found)}, the card says {n} x {view.dimension}")
    if labels is None or labels.shape != (n, card.labels.number):
        got = "missing" if labels is None else _by(labels.shape)
        raise DataError(f"{card.name}: the labels are {got}, the card says {n} x {card.labels.number}")
    real = not np.isin(labels.data if scipy.sparse.issparse(labels) else labels, (0, 1)).all()
    what, first = "targets that add up to {:.10g}" if real else "{:.0f} positives", 0
    for split, count in card.rows.items():
        total, expected = float(labels[first : first + count].sum(dtype=np.float64)), card.labels.total[split]
        if not np.isclose(total, expected, rtol=1e-6, atol=1e-4):
            raise DataError(
                f"{card.name}: the {split} samples have {what.format(total)} ({total / count:.3f} a sample), the card "
                f"says {expected:.10g} ({expected / count:.3f}); the files are damaged or of another release"
            )
        first += count
    parts = None if list(card.rows) == [ALL] else np.repeat(np.array(list(card.rows), object), list(card.rows.values()))
    return replace(samples, real=real, split=parts)


def _digests(card: Card, paths: Mapping[str, Path], compare: bool) -> dict[str, str]:
    """SHA-256 of the files; DataError for the first that differs from the card."""
    expected = {file.name: file for file in card.files}
    digests = {}
    with stage("check the files", len(paths)) as advance:
        for name, path in paths.items():
            digests[name] = sha256(path)
            if compare and digests[name] != expected[name].sha256:
                raise DataError(
                    f"{card.name}: {path} has SHA-256 {digests[name][:12]}..., "
                    f"the card says {expected[name].sha256[:12]}...; "
                    f"fetch it again ({expected[name].source}), or rely on shapes and sums alone with checksums=False"
                )
            advance(1)
    return digests


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
