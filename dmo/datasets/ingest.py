"""Conversion of public data sets to feature stores. A card describes the files and the contents of a data set."""

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

from dmo.blocks import Subset, dense, reads_sparse, rows, stored_values
from dmo.datasets.cards import ALL, Card, File, Files, ViewCard, by_split, read_card
from dmo.datasets.files import check_known, ingest_files, read_description
from dmo.datasets.samples import Samples
from dmo.errors import UserError
from dmo.formats.arff import read_label_list
from dmo.formats.arrays import open_npz
from dmo.formats.files import COMPRESSED, DataError, missing_array, sha256, suffix
from dmo.formats.sources import split_name
from dmo.formats.tables import Table, open_rows, open_table
from dmo.formats.text import read_names
from dmo.progress import stage
from dmo.stores import FeatureStore, Provenance

log = logging.getLogger("dmo")
_LARGEST = 1 << 30  # Maximum size of a download in bytes, about 30 times the size of the largest file of a card.
_LONGEST = 3600.0  # Maximum duration of a download in seconds.


def find(card: Card, folder: str | os.PathLike[str], files: list[File], download: bool = False) -> dict[str, Path]:
    """Return the paths of files in a folder by name; raise FileNotFoundError if a file is missing."""
    # A file may also be stored decompressed, or directly in the folder instead of the subfolder in its name. With
    # `download`, a missing file is downloaded if the card contains its URL.
    found = {file.name: path for file in files if (path := _place(folder, file)) is not None}
    missing, reason = [file for file in files if file.name not in found], ""
    while download and not reason and (fetchable := [file for file in missing if file.url is not None]):
        try:
            found[fetchable[0].name] = fetch(card, folder, fetchable[0])
        except OSError as error:
            reason = f" (the download failed: {str(error).splitlines()[0][:160]})"
        missing = [file for file in files if file.name not in found]
    if missing:
        cure = f"get the files from these sources and put them into {folder}"
        if not download and any(file.url is not None for file in missing):
            cure += ", or download them with --fetch (fetch=True)"
        listed = "; ".join(f"{file.name} ({file.url or file.source})" for file in missing)
        raise FileNotFoundError(f"{card.name}: {folder} does not contain {listed}{reason}; {cure}")
    return found


def _place(folder: str | os.PathLike[str], file: File) -> Path | None:
    name = Path(file.name)
    plain = name.with_suffix("") if name.suffix in COMPRESSED else name
    candidates = [Path(folder, part) for part in (name, plain, name.name, plain.name)]
    return next((path for path in candidates if path.is_file()), None)


def fetch(card: Card, folder: str | os.PathLike[str], file: File) -> Path:
    """Download a file of a card, and move it into a folder after its checksum was verified.

    Raise OSError if the download fails, and DataError if the checksum differs from the card.
    """
    try:
        import pooch  # pooch is an optional dependency
    except ImportError:
        raise UserError(
            "downloads need pooch, which is not installed; run: pip install dmo-learn[fetch], or download the files "
            "yourself"
        ) from None
    pooch.get_logger().setLevel("WARNING")
    name = Path(file.url or "").name
    log.warning("%s: downloading %s", card.name, file.url)
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
        # The timeout of a connection restarts with every received byte, so a slow server could block this function
        # forever. Therefore, download in a thread and limit the total time.
        with TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as place:
            Thread(target=retrieve, args=[place], name="dmo-fetch", daemon=True).start()
            os.replace(answer.result(_LONGEST), target)
        return target
    except OSError as error:
        if answer.done():
            raise
        counted.seen = _LARGEST  # The download now exceeds its maximum size, so the thread ends at the next byte.
        raise OSError(f"the download did not finish within {_LONGEST:g} s") from error
    except ValueError as error:  # pooch raises ValueError if the checksum is wrong.
        raise DataError(
            f"{card.name}: the SHA-256 of {file.url} differs from the card; the download was discarded"
        ) from error


class _Bounded:
    """Progress bar for pooch that raises OSError if a download exceeds the maximum size."""

    seen, total = 0, 0

    def update(self, count: int) -> None:
        self.seen += count
        if self.seen > _LARGEST:
            raise OSError(f"received more than {_LARGEST} bytes")

    def reset(self) -> None:
        self.seen = self.total = 0

    def close(self) -> None:
        pass


def read(card: Card, paths: Mapping[str, Path], views: Sequence[ViewCard]) -> Samples:
    """Read the views, the labels and the names of a data set from the files that its card describes."""

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
        if view.kind == "sparse" and not reads_sparse(X):
            X = scipy.sparse.csr_array(rows(X))
        sources[view.name] = X
    about = {"dataset": card.name, "title": card.title, "license": card.license, "citation": card.citation}
    return Samples(sources, Y, names, ids=ids, attributes=about)


def _placed(spec: str, paths: Mapping[str, Path]) -> str:
    """Replace the name of a file in a card, such as "NAME::ARRAY", with the path of the file."""
    name, array = split_name(spec)
    return f"{paths[name]}" if array is None else f"{paths[name]}::{array}"


def _array(spec: str) -> np.ndarray:
    path, name = split_name(spec)
    members = open_npz(path)
    if name is None or name not in members:
        raise missing_array(path, name, members)
    return rows(members[name])


def _texts(spec: str) -> list[str]:
    return [str(text) for text in _array(spec)] if "::" in spec else read_names(spec)


def _order(view: ViewCard, paths: Mapping[str, Path], labels: np.ndarray | None) -> np.ndarray:
    """Return the row index of each sample in the files of a view; raise DataError if the labels of the rows differ."""
    parts = [_array(_placed(spec, paths)) for spec in by_split(view.order or {}).values()]
    if view.match is None or labels is None:
        return np.concatenate(parts)
    where = _placed(view.match, paths)
    found, ends, order = rows(open_rows(where)), np.cumsum([len(part) for part in parts]), np.empty(0, np.intp)
    if ends[-1] == len(labels):
        order = np.concatenate([_match(found, *pair) for pair in zip(parts, np.split(labels, ends[:-1]))])
    if not np.array_equal(found[order], labels):
        raise DataError(f"{where}: its labels differ from the labels of the data set, expected the same in both")
    return order


def _match(found: np.ndarray, chosen: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Permute the row indices `chosen` such that the rows of `found` with these indices equal the rows of `wanted`."""
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
    """Convert a public data set to a feature store, and check its contents.

    If the conversion is interrupted, the same call resumes it and writes only the missing blocks.

    Parameters
    ----------
    name : str or path-like
        Name of a data set in `CARDS`, path of another card that ends in .toml, or "files".
    source : path-like
        Folder that contains the files of the data set. If `name` is "files", path of a JSON file with the arguments of
        `ingest_files`, see `read_description`.
    store : path-like
        Path or URL of the new store.
    views : sequence of str, default=None
        Names of the views to read. None selects all views that are not optional.
    checksums : bool, default=True
        Whether to compare the SHA-256 hashes of the files with the card. The shapes and sums of the views and labels
        are always compared.
    fetch : bool, default=False
        Whether to download missing files for which the card contains a URL. The checksums of downloads are always
        verified.
    block : int, default=None
        Number of rows per block. One block of a view is in memory at a time. The default is 4096 if such a block needs
        at most 4 MiB in every view, otherwise 1024.
    overwrite : bool, default=False
        Whether to replace an existing store.

    Returns
    -------
    FeatureStore
        New store, opened for reading.

    Raises
    ------
    FileNotFoundError
        If files are missing. The message lists all missing files with their sources.
    DataError
        If a file is damaged or differs from the card.
    UserError
        If the name of the data set or of a view is unknown.
    StoreError
        If the store cannot be written.

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
    """Add the splits in the card to samples; raise DataError if a shape or a sum of labels differs from the card."""
    n, labels = card.n_samples, samples.labels
    for view in card.choose(list(samples.views)):
        found = tuple(samples.views[view.name].shape)
        if found != (n, view.dimension):
            raise DataError(
                f"{card.name}: view {view.name!r} has shape {_by(found)}, expected {n} x {view.dimension} as in the "
                "card"
            )
    if labels is None or labels.shape != (n, card.labels.number):
        got = "missing" if labels is None else _by(labels.shape)
        raise DataError(f"{card.name}: the labels are {got}, expected {n} x {card.labels.number} as in the card")
    real = not np.isin(stored_values(labels), (0, 1)).all()
    what, first = "targets with the sum {:.10g}" if real else "{:.0f} positives", 0
    for split, count in card.rows.items():
        total, expected = float(labels[first : first + count].sum(dtype=np.float64)), card.labels.total[split]
        if not np.isclose(total, expected, rtol=1e-6, atol=1e-4):
            raise DataError(
                f"{card.name}: the {split} samples have {what.format(total)} ({total / count:.3f} per sample), "
                f"expected {expected:.10g} ({expected / count:.3f}) as in the card; the files are damaged or from "
                "another release"
            )
        first += count
    parts = None if list(card.rows) == [ALL] else np.repeat(np.array(list(card.rows), object), list(card.rows.values()))
    return replace(samples, real=real, split=parts)


def _digests(card: Card, paths: Mapping[str, Path], compare: bool) -> dict[str, str]:
    """Compute the SHA-256 hash of each file; if `compare` is True, raise DataError if a hash differs from the card."""
    expected = {file.name: file for file in card.files}
    digests = {}
    with stage("check the files", len(paths)) as advance:
        for name, path in paths.items():
            digests[name] = sha256(path)
            if compare and digests[name] != expected[name].sha256:
                raise DataError(
                    f"{card.name}: {path} has SHA-256 {digests[name][:12]}..., "
                    f"expected {expected[name].sha256[:12]}... as in the card; "
                    f"download it again ({expected[name].source}), or check only shapes and sums with checksums=False"
                )
            advance(1)
    return digests


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
