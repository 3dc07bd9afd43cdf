"""Data sets that have a card, checked against it -> a feature store."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dmo.datasets.cards import Card, ViewCard, read_card
from dmo.datasets.ingest_files import check_known, ingest_files, read_description
from dmo.datasets.sources import find, read
from dmo.datasets.writing import Source, write
from dmo.formats.files import DataError, sha256
from dmo.progress import stage
from dmo.stores import FeatureStore, Provenance


def ingest(
    name: str | os.PathLike[str],
    source: str | os.PathLike[str],
    store: str | os.PathLike[str],
    *,
    views: Sequence[str] | None = None,
    checksums: bool = True,
    fetch: bool = False,
    block: int = 1024,
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
    block : int, default=1024
        Rows in a block, which is what memory must hold of a view.
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
    found = read(card, paths, chosen_views)
    check(card, found, chosen_views)
    found.attributes = {"dataset": card.name, "title": card.title, "license": card.license, "citation": card.citation}
    found.provenance = Provenance(parameters={"dataset": card.name, "files": digests})
    found.histograms = {view.name for view in chosen_views if view.histogram}
    found.dtypes = {view.name: np.dtype(view.dtype) for view in chosen_views}
    totals = {view.name: view.total for view in chosen_views}
    return write(found, store, block=block, overwrite=overwrite, totals=totals)


def check(card: Card, source: Source, views: Sequence[ViewCard]) -> None:
    """Compare shapes and label counts with the card, and set the split; DataError for the first that differs."""
    n, labels = card.n_samples, source.labels
    for view in views:
        found = tuple(source.views[view.name].shape)
        if found != (n, view.dimension):
            raise DataError(f"{card.name}: view {view.name!r} is {_by(found)}, the card says {n} x {view.dimension}")
    if labels is None or labels.shape != (n, card.labels.number):
        got = "missing" if labels is None else _by(labels.shape)
        raise DataError(f"{card.name}: the labels are {got}, the card says {n} x {card.labels.number}")
    source.real_labels = not np.isin(labels, (0, 1)).all()
    what, first = "targets that add up to {:.10g}" if source.real_labels else "{:.0f} positives", 0
    for split, count in card.rows.items():
        total, expected = float(labels[first : first + count].sum(dtype=np.float64)), card.labels.total[split]
        if not np.isclose(total, expected, rtol=1e-6, atol=1e-4):
            raise DataError(
                f"{card.name}: the {split} samples have {what.format(total)} ({total / count:.3f} a sample), the card "
                f"says {expected:.10g} ({expected / count:.3f}); the files are damaged or of another release"
            )
        first += count
    source.counts = card.rows


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
