"""Files of any format that dmo reads -> a feature store."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.sparse

from dmo.blocks import rows
from dmo.datasets.samples import read_samples, share_out
from dmo.datasets.writing import ALL, Source, note_gaps, write
from dmo.errors import UserError
from dmo.formats.arff import read_label_list
from dmo.formats.delimited import open_csv, read_names
from dmo.formats.files import DataError, dense, existing, sha256, suffix
from dmo.formats.frames import CLASS_NAMES, FRAMES, question
from dmo.formats.labels import Kind, checked_numbers, label_matrix
from dmo.formats.tables import Table, cell_views, open_table, questions, shared_rows
from dmo.progress import stage
from dmo.stores import FeatureStore, Provenance

Files = str | Path | Mapping[str, str | Path]
"""One file ("PATH" or "PATH::ARRAY"), or a file for each split."""
LABELS = "labels"
_LARGE = 1 << 28
"""Bytes of a table beyond which it is read block by block."""
_ROWS = 1 << 16  # of a block of a table that is read whole
log = logging.getLogger("dmo")


def ingest_files(
    views: Mapping[str, Files],
    store: str | os.PathLike[str],
    *,
    labels: Files | Sequence[str] | int | None = None,
    label_names: str | Path | Sequence[str] | None = None,
    id: str | None = None,
    split: str | None = None,
    test_share: float | None = None,
    text: str | Sequence[str] = (),
    separator: str | None = None,
    how: Literal["inner", "outer"] | None = None,
    histograms: Collection[str] = (),
    dtypes: Mapping[str, str] | None = None,
    block: int | None = None,
    overwrite: bool = False,
) -> FeatureStore:
    """Write files of any format that dmo reads as a feature store.

    Arrays, .arff, .svm and tables of numbers alone are read block by block. Other tables (with ids, words, gaps; Parquet) and
    folders of documents are read whole, see `read_samples`. A file is "PATH", or "PATH::ARRAY" for an array of an .npz,
    .mat or .zarr, "PATH::ARRAY.T" for its transpose. Where there are splits, it is a mapping such as
    {"train": "a.fvec", "test": "b.fvec"}: rows in that order.

    Parameters
    ----------
    views : mapping of str to path-like or mapping
        View -> one file, or split -> file.
    store : path-like
        Where to write: a path or URL.
    labels : path-like, mapping, sequence of str or int, default=None
        Labels in any form that `read_samples` takes, in such files with the same splits; or a Mulan .xml list, names, or a
        number that says which ARFF columns are labels: the first ones, or, negative, the last ones, 0 for none; None: those
        that svmlight rows begin with, or that an ARFF file names as MEKA does ("-C 6"), if any.
    label_names : path-like or sequence of str, default=None
        L names, or a text file with one a line.
    id, split, test_share, text, separator, how : object
        As for `read_samples`.
    histograms : collection of str, default=()
        The views of counts.
    dtypes : mapping of str to str, default=None
        View -> type to store; others keep the files'.
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
    views, dtypes = cell_views(views), dtypes or {}
    check_known("histograms", histograms, views)
    check_known("dtypes", dtypes, views)
    names = read_names(label_names) if isinstance(label_names, str | Path) else label_names
    everything = dict(views) if labels is None or isinstance(labels, int | list | tuple) else {**views, LABELS: labels}
    options = {"id": id, "split": split, "text": text, "separator": separator, "how": how}
    asked = options | {"labels": labels, "test_share": test_share}
    asked = {name: list(given) if isinstance(given, tuple) else given for name, given in asked.items() if given}
    provenance = Provenance(parameters={"dataset": "files", "files": fingerprints(everything), "options": asked})
    read: dict[str, np.ndarray] = {}
    if any(options.values()) or _tables(everything, labels, read):
        samples = read_samples(views, labels, test_share=test_share, **options)  # type: ignore[arg-type]
        for note in samples.notes:
            log.warning("%s", note)
        samples = samples if names is None else replace(samples, label_names=list(names))
        about: dict[str, Any] = {"histograms": histograms, "dtypes": dtypes, "provenance": provenance}
        return samples.write(store, block=block, overwrite=overwrite, **about)
    columns = _label_columns(labels)
    tables = {
        view: open_table(
            view, _by_split(files), columns if _all_end(files, ".arff") else None, labels is None, read=read
        )
        for view, files in views.items()
    }
    if labels is not None and columns is None:
        tables[LABELS] = open_table(LABELS, _by_split(labels), of_labels=True, read=read)  # type: ignore[arg-type]
    if labels is None and not any(table.Y is not None for table in tables.values()):
        for files in (files for files in views.values() if _all_end(files, ".arff")):
            raise UserError(
                f"{next(iter(_by_split(files).values()))}: which attributes are labels is not said; pass a Mulan list "
                "(--labels FILE.xml), their names or number (--label-columns 6: the first six, -6: the last), or 0 for none"
            )
    if labels is None:
        headers = [name for table in tables.values() for name in table.feature_names or ()]
        named = [question(name) for name in headers if name.strip().lower() in CLASS_NAMES]
        for note in [*named[:1], *questions(views)]:
            log.warning("%s", note)
    matlab = [name for name in tables if _all_end(everything[name], ".mat")]
    vector = [LABELS] if LABELS in tables and 1 in tables[LABELS].X.shape else []
    _turn(tables, {*matlab, *vector})
    counts = _same_counts(tables)
    Y, found, kind = _labels(tables, labels)
    source = Source({view: tables[view].X for view in views}, Y, found if names is None else list(names))
    source.real_labels, source.class_labels = kind == "targets", kind == "classes"
    source.counts = counts
    if test_share is not None:
        if source.split is not None:
            raise UserError("the files have a split already; leave test_share out")
        source.parts = share_out(Y, sum(counts.values()), test_share).tolist()
    source.feature_names = {view: table.feature_names for view in views if (table := tables[view]).feature_names}
    note_gaps(source, [view for view in views if tables[view].gaps is not False])
    source.histograms = set(histograms)
    source.dtypes = {view: np.dtype(dtype) for view, dtype in dtypes.items()}
    source.provenance = provenance
    return write(source, store, block=block, overwrite=overwrite)


def _tables(files: Mapping[str, Any], labels: Any, read: dict[str, np.ndarray]) -> bool:
    """Whether something is a table of more than numbers, or a folder of documents: then all is read whole; `read` takes the
    tables of numbers that this read.
    """
    if isinstance(labels, list | tuple) and not all(_all_end(one, ".arff") for one in files.values()):
        return True
    for spec in (str(spec) for value in files.values() for spec in _by_split(value).values()):
        ending = suffix(spec.partition("::")[0])
        if os.path.isdir(spec) and ending != ".zarr":
            return True
        if ending in FRAMES and not (ending in (".csv", ".tsv") and os.path.isfile(spec) and _plain(spec, read)):
            return True
    return False


def _plain(path: str, read: dict[str, np.ndarray]) -> bool:
    """Whether a table holds finite numbers alone, or is so large that it is read as if it did."""
    try:
        file = open_csv(path)
        names = file.names or ()
        if len(set(names)) < len(names) or "" in names[:1]:  # without a name: pandas' index
            return False
        if os.path.getsize(path) > _LARGE:
            return True
        counted = [float(j) for j in range(file.columns)]
        found: list[np.ndarray] = []
        with stage(f"read {os.path.basename(path)}") as advance:
            for block in file.blocks(_ROWS):
                if not np.isfinite(block).all() or (not found and file.columns > 1 and block[0].tolist() == counted):
                    return False
                found.append(block)
                advance(len(block))
    except DataError:
        return False
    if found:
        read[path] = np.concatenate(found)
    return True


def _turn(tables: dict[str, Table], may: Collection[str]) -> None:
    """Transposes the arrays of the files `may` that have their samples in columns, told by what all others have.

    MATLAB's users keep samples in columns; of other files, a row too many is likelier.
    """
    shapes = {name: tables[name].X.shape for name in sorted(tables, key=LABELS.__ne__)}
    n = shared_rows(shapes, [name for name in shapes if name in may and len(tables[name].counts) == 1])
    for name, table in tables.items():
        if n is None or table.X.shape[0] == n:
            continue
        if min(table.X.shape) > 1:
            log.warning("%s: has %d columns, as many as there are samples: it is transposed", name, n)
        whole = rows(table.X)
        turned = scipy.sparse.csr_array(whole.T) if scipy.sparse.issparse(whole) else np.ascontiguousarray(whole.T)
        tables[name] = replace(table, X=turned, counts=dict.fromkeys(table.counts, n), feature_names=None)


def read_description(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the arguments of `ingest_files` from a JSON file.

    Parameters
    ----------
    path : path-like
        The file; names in it are taken relative to its folder.

    Returns
    -------
    dict of str to object
        "views", and perhaps other arguments of `ingest_files`.

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
    options = {"id", "split", "test_share", "text", "separator", "how"}
    keys = {"views", "labels", "label_names", "histograms", "dtypes"} | options
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


def fingerprints(files: Mapping[str, Any]) -> dict[str, dict[str, str]]:
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


def _label_columns(labels: Any) -> list[str] | int | None:
    if isinstance(labels, str | Path) and suffix(labels) == ".xml":
        return read_label_list(labels)
    return list(labels) if isinstance(labels, list | tuple) else labels if isinstance(labels, int) else None


def _labels(tables: Mapping[str, Table], labels: Any) -> tuple[np.ndarray | None, list[str] | None, Kind]:
    """The label matrix of whichever table has one, the names of its columns, and what they are."""
    if LABELS in tables:
        header, given = tables[LABELS].feature_names, dense(rows(tables[LABELS].X))
        if header is not None and len(header) == 1:
            import pandas as pd

            return label_matrix(LABELS, pd.DataFrame(given, columns=header))
        Y, names, kind = label_matrix(LABELS, given)
        return Y, header if header is not None and Y.shape[1] == len(header) else names, kind
    found = [(view, table) for view, table in tables.items() if table.Y is not None]
    if not found:
        if labels:
            raise DataError(f"labels {labels}: no view has these columns, expected an .arff view that declares them")
        return None, None, "labels"
    first, table = found[0]
    for view, other in found[1:]:
        if other.label_names != table.label_names or np.any(other.Y != table.Y):
            raise DataError(f"views {first!r} and {view!r} have different labels in their files, expected the same")
    assert table.Y is not None
    Y, real = checked_numbers(first, table.Y, table.label_names)
    return Y, table.label_names, "targets" if real else "classes" if table.classes else "labels"


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


def _all_end(files: Any, ending: str) -> bool:
    """Whether all files of a view, PATH or PATH::ARRAY, are of the format with this ending."""
    return all(suffix(str(spec).partition("::")[0]) == ending for spec in _by_split(files).values())


def check_known(what: str, names: Collection[str], views: Mapping[str, Any]) -> None:
    unknown = sorted(set(names) - set(views))
    if unknown:
        raise UserError(f"{what}: got view {unknown[0]!r}, expected some of {', '.join(views)}")
