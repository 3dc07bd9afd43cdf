"""Files of any format that dmo reads -> a feature store."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dmo.blocks import rows
from dmo.datasets.writing import ALL, Source, write
from dmo.errors import UserError
from dmo.formats.arff import read_label_list
from dmo.formats.delimited import read_names
from dmo.formats.files import DataError, dense, existing, sha256, suffix
from dmo.formats.tables import Table, open_table
from dmo.progress import stage
from dmo.stores import FeatureStore, Provenance

Files = str | Path | Mapping[str, str | Path]
"""One file ("PATH" or "PATH::ARRAY"), or a file for each split."""
LABELS = "labels"


def ingest_files(
    views: Mapping[str, Files],
    store: str | os.PathLike[str],
    *,
    labels: Files | int | None = None,
    label_names: str | Path | Sequence[str] | None = None,
    histograms: Collection[str] = (),
    dtypes: Mapping[str, str] | None = None,
    block: int = 1024,
    overwrite: bool = False,
) -> FeatureStore:
    """Write files of any format that dmo reads as a feature store.

    A file is "PATH", or "PATH::ARRAY" for an array of an .npz, .mat or .zarr, "PATH::ARRAY.T" for its transpose. Where there
    are splits, it is a mapping such as {"train": "a.fvec", "test": "b.fvec"}: rows in that order.

    Parameters
    ----------
    views : mapping of str to path-like or mapping
        View -> one file, or split -> file.
    store : path-like
        Where to write: a path or URL.
    labels : path-like, mapping or int, default=None
        n x L of 0 and 1 in such files with the same splits; or a Mulan .xml list or a number (see `read_arff`) that says
        which ARFF columns are labels; None: those that svmlight rows begin with, if any.
    label_names : path-like or sequence of str, default=None
        L names, or a text file with one a line.
    histograms : collection of str, default=()
        The views of counts.
    dtypes : mapping of str to str, default=None
        View -> type to store; others keep the files'.
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
    DataError, FileNotFoundError, StoreError
        As `ingest`.
    UserError
        Where rows or splits differ between views.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.datasets import ingest_files
    >>> np.savetxt("x.csv", np.eye(4), delimiter=",")
    >>> np.save("y.npy", np.eye(4, 2))
    >>> store = ingest_files({"gist": "x.csv"}, "set.zarr", labels="y.npy", label_names=["sky", "sea"])
    >>> store.views["gist"].shape, store.label_names
    ((4, 4), ['sky', 'sea'])
    """
    if not views:
        raise UserError("ingest_files: got no view, needs at least one; pass {name: file}")
    dtypes = dtypes or {}
    check_known("histograms", histograms, views)
    check_known("dtypes", dtypes, views)
    columns = _label_columns(labels)
    tables = {
        view: open_table(view, _by_split(files), columns if _is_arff(files) else None, with_labels=labels is None)
        for view, files in views.items()
    }
    if labels is not None and columns is None and not isinstance(labels, int):
        tables[LABELS] = open_table(LABELS, _by_split(labels))
    counts = _same_counts(tables)
    Y, names = _labels(tables, labels)
    source = Source({view: tables[view].X for view in views}, Y, names)
    if label_names is not None:
        source.label_names = read_names(label_names) if isinstance(label_names, str | Path) else list(label_names)
    source.counts = counts
    source.histograms = set(histograms)
    source.dtypes = {view: np.dtype(dtype) for view, dtype in dtypes.items()}
    everything = dict(views) if labels is None or isinstance(labels, int) else {**views, LABELS: labels}
    source.provenance = Provenance(parameters={"dataset": "files", "files": _fingerprints(everything)})
    return write(source, store, block=block, overwrite=overwrite)


def read_description(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the arguments of `ingest_files` from a JSON file.

    Parameters
    ----------
    path : path-like
        The file; names in it are taken relative to its folder.

    Returns
    -------
    dict of str to object
        "views", and perhaps "labels", "label_names", "histograms", "dtypes".

    Raises
    ------
    DataError
        With line and column where it is not JSON, for an unknown key, and where it names no views.

    Examples
    --------
    >>> from pathlib import Path
    >>> from dmo.datasets import read_description
    >>> _ = Path("set.json").write_text('{"views": {"gist": "x.npy"}}')
    >>> read_description("set.json")
    {'views': {'gist': 'x.npy'}}
    """
    path = existing(path)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: not JSON in line {error.lineno}, column {error.colno} ({error.msg})") from None
    except RecursionError:
        raise DataError(f"{path}: nests too deeply, expected a JSON description") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text at byte {error.start}, expected a JSON description") from None
    keys = {"views", "labels", "label_names", "histograms", "dtypes"}
    if not isinstance(found, dict) or not isinstance(found.get("views"), dict) or not set(found) <= keys:
        extra = sorted(set(found) - keys) if isinstance(found, dict) else []
        got = f"unknown key {extra[0]!r}" if extra else "no object 'views'"
        raise DataError(f"{path}: {got}, expected 'views' and perhaps {', '.join(sorted(keys - {'views'}))}")
    for key in ("views", "labels", "label_names"):
        if key in found and not (key == "label_names" and isinstance(found[key], list)):
            found[key] = _relative(found[key], path.parent)
    return found


def _relative(value: Any, folder: Path) -> Any:
    if isinstance(value, dict):
        return {key: _relative(item, folder) for key, item in value.items()}
    return str(folder / value) if isinstance(value, str) and "://" not in value else value


def _fingerprints(files: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Name and SHA-256 of each file, by view and split; of folders and URLs the name alone."""
    found = {}
    listed = [
        (f"{name}/{split}", str(spec)) for name, value in files.items() for split, spec in _by_split(value).items()
    ]
    with stage("check the files", len(listed)) as advance:
        for key, spec in listed:
            path = Path(spec.partition("::")[0])
            found[key] = {"name": spec.rpartition("/")[2]} | ({"sha256": sha256(path)} if path.is_file() else {})
            advance(1)
    return found


def _label_columns(labels: Files | int | None) -> list[str] | int | None:
    if isinstance(labels, str | Path) and suffix(labels) == ".xml":
        return read_label_list(labels)
    return labels if isinstance(labels, int) else None


def _labels(tables: Mapping[str, Table], labels: Files | int | None) -> tuple[np.ndarray | None, list[str] | None]:
    """The label matrix of whichever table has one, and the names of its columns."""
    if LABELS in tables:
        return dense(rows(tables[LABELS].X)), None
    found = [(view, table) for view, table in tables.items() if table.Y is not None]
    if not found:
        if labels is not None:
            raise DataError(f"labels {labels}: no view has these columns, expected an .arff view that declares them")
        return None, None
    first, table = found[0]
    for view, other in found[1:]:
        if other.label_names != table.label_names or np.any(other.Y != table.Y):
            raise DataError(f"views {first!r} and {view!r} have different labels in their files, expected the same")
    return table.Y, table.label_names


def _same_counts(tables: Mapping[str, Table]) -> dict[str, int]:
    first, counts = next((name, table.counts) for name, table in tables.items())
    for name, table in tables.items():
        if table.counts != counts or list(table.counts) != list(counts):
            said = [", ".join(f"{n} {split}" for split, n in c.items()) for c in (table.counts, counts)]
            raise UserError(
                f"ingest_files: {name!r} has rows {said[0]}, {first!r} has {said[1]}; pass the same samples "
                "and splits, in the same order, for every view and the labels"
            )
    return counts


def _by_split(files: Files) -> Mapping[str, str | Path]:
    return files if isinstance(files, Mapping) else {ALL: files}


def _is_arff(files: Files) -> bool:
    return all(suffix(path) == ".arff" for path in _by_split(files).values())


def check_known(what: str, names: Collection[str], views: Mapping[str, Any]) -> None:
    unknown = sorted(set(names) - set(views))
    if unknown:
        raise UserError(f"{what}: got view {unknown[0]!r}, expected some of {', '.join(views)}")
