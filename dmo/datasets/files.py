"""The files and tables that people have -> samples in memory, or block by block a feature store."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy.sparse

from dmo.blocks import SINGLE, dense, rows
from dmo.datasets.cards import ALL, by_split
from dmo.datasets.samples import Samples, TextVocabulary
from dmo.errors import UserError
from dmo.formats import frames
from dmo.formats.arff import read_label_list
from dmo.formats.files import DataError, check_memory, existing, sha256, suffix
from dmo.formats.labels import checked_numbers, label_matrix, unknown_rows
from dmo.formats.tables import cell_views, open_table, questions, shared_rows
from dmo.formats.text import open_csv, read_names
from dmo.labels.stratification import describe_test_split, stratified_folds
from dmo.progress import stage
from dmo.stores import FeatureStore, Provenance

if TYPE_CHECKING:
    import pandas as pd

Given = str | os.PathLike[str] | Any
"""A file, a folder of documents, a DataFrame, or an array."""
Files = str | Path | Mapping[str, str | Path]
"""One file ("PATH" or "PATH::ARRAY"), or a file for each split."""
LABELS = "labels"
"""What labels are called among the tables."""
_LARGE = 1 << 28
"""Bytes of a table beyond which it is read block by block."""
_ROWS = 1 << 16  # of a block of a table that is read whole
log = logging.getLogger("dmo")


def read_samples(
    features: Given | Mapping[str, Given],
    labels: Given | Sequence[str] | int | None = None,
    *,
    id: str | None = None,
    split: str | None = None,
    test_share: float | None = None,
    text: str | Sequence[str] = (),
    separator: str | None = None,
    how: Literal["inner", "outer"] | None = None,
    random_state: int | None = 0,
) -> Samples:
    r"""Read samples from files or tables.

    Columns of words become one 0/1 column per word; columns of dates, free text and ids are refused by name. What was
    noticed stands in `notes`.

    Parameters
    ----------
    features : path-like, DataFrame, array, or mapping of view to these
        Tables (.csv, .tsv, .txt, .parquet), array files ("PATH" or "PATH::ARRAY"), .arff, .svm, or a folder of text files,
        whose names are ids. A mapping with the keys of a split, such as {"train": ..., "test": ...}, in the place of a file.
    labels : path-like, DataFrame, array, list of labels, names of columns, or int, default=None
        A table or array of 0 and 1, whose header names the labels; a column of classes; a column of labels with a separator
        between them; rows of labels of any length; real targets. Or names of columns of the features; or, for .arff, what
        `ingest_files` takes.
    id : str, default=None
        Column that names the samples in every table, by which they are joined; None: by their order.
    split : str, default=None
        Column that names the part of every sample.
    test_share : float, default=None
        Share of samples that become the part "test", every label with its share; the others are "train".
    text : str or sequence of str, default=()
        Columns of documents, each of which becomes a view of tf-idf rows; words are learned from the part "train".
    separator : str, default=None
        Between the labels of a sample; None: one of | ; , that occurs.
    how : {"inner", "outer"}, default=None
        What becomes of samples that not every table has: "inner" leaves them out, "outer" gives NaN rows to the views and
        labels that lack them; None: they are refused, with their ids.
    random_state : int or None, default=0
        Seed of the split.

    Returns
    -------
    Samples
        Views, labels, names, ids and split.

    Raises
    ------
    DataError, UserError
        With the file, row or column at fault.

    Examples
    --------
    >>> from pathlib import Path
    >>> from dmo.datasets import read_samples
    >>> _ = Path("x.csv").write_text("image,width,color\na,1,red\nb,2,blue\n")
    >>> _ = Path("y.csv").write_text("image,tags\nb,sun|sea\na,sea\n")
    >>> samples = read_samples("x.csv", labels="y.csv", id="image")
    >>> samples.views["x"].tolist(), samples.feature_names["x"]
    ([[1.0, 0.0, 1.0], [2.0, 1.0, 0.0]], ['width', 'color=blue', 'color=red'])
    >>> samples.labels.tolist(), samples.label_names, samples.ids
    ([[1, 0], [1, 1]], ['sea', 'sun'], ['a', 'b'])
    """
    given = dict(features) if isinstance(features, Mapping) and not _is_split(features) else {SINGLE: features}
    return _Reader(id, split, how, text, separator).read(cell_views(given), labels, test_share, random_state)


def share_out(labels: np.ndarray | None, n: int, test_share: float, random_state: int | None = 0) -> np.ndarray:
    """Deal samples out to "train" and "test", every label with its share.

    labels (n, L) -> (n,)
    """
    Y = np.ones((n, 1)) if labels is None else np.nan_to_num(labels)
    return np.array(["train", "test"])[stratified_folds(Y, (1 - test_share, test_share), random_state)]


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
    reader = _Reader(id, split, how, text, separator)
    reader.whole = any(options.values()) or _tables(everything, labels, reader.parsed)
    samples = reader.read(views, labels, test_share)
    if labels is None and samples.labels is None:
        for files in (files for files in views.values() if _all_end(files, ".arff")):
            raise UserError(
                f"{next(iter(by_split(files).values()))}: which attributes are labels is not said; pass a Mulan list "
                "(--labels FILE.xml), their names or number (--label-columns 6: the first six, -6: the last), or 0 for none"
            )
    for note in samples.notes:
        log.warning("%s", note)
    return replace(samples, label_names=samples.label_names if names is None else list(names)).write(
        store,
        histograms=histograms,
        dtypes=dtypes,
        block=block,
        overwrite=overwrite,
        provenance=provenance,
        complete=reader.complete,
    )


def _tables(files: Mapping[str, Any], labels: Any, read: dict[str, np.ndarray]) -> bool:
    """Whether something is a table of more than numbers, or a folder of documents: then all is read whole; `read` takes the
    tables of numbers that this read.
    """
    if isinstance(labels, list | tuple) and not all(_all_end(one, ".arff") for one in files.values()):
        return True
    for spec in (str(spec) for value in files.values() for spec in by_split(value).values()):
        ending = suffix(spec.partition("::")[0])
        if os.path.isdir(spec) and ending != ".zarr":
            return True
        if ending in frames.FRAMES and not (ending in (".csv", ".tsv") and os.path.isfile(spec) and _plain(spec, read)):
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
        (f"{name}/{split}", str(spec)) for name, value in files.items() for split, spec in by_split(value).items()
    ]
    with stage("check the files", len(listed)) as advance:
        for key, spec in listed:
            path = Path(spec.partition("::")[0])
            found[key] = {"name": spec.rpartition("/")[2]} | ({"sha256": sha256(path)} if path.is_file() else {})
            advance(1)
    return found


def _all_end(files: Any, ending: str) -> bool:
    """Whether all files of a view, PATH or PATH::ARRAY, are of the format with this ending."""
    return all(suffix(str(spec).partition("::")[0]) == ending for spec in by_split(files).values())


def check_known(what: str, names: Collection[str], views: Mapping[str, Any]) -> None:
    unknown = sorted(set(names) - set(views))
    if unknown:
        raise UserError(f"{what}: got view {unknown[0]!r}, expected some of {', '.join(views)}")


def _is_split(features: Any) -> bool:
    return isinstance(features, Mapping) and set(features) <= {"train", "test", "validation", "valid", "dev"}


def _label_columns(labels: Any) -> list[str] | int | None:
    """Which columns of an ARFF view, or of a table, are labels, where `labels` names them."""
    if isinstance(labels, int):
        return labels
    if isinstance(labels, str | Path) and suffix(labels) == ".xml":
        return read_label_list(labels)
    if isinstance(labels, list | tuple) and labels and all(isinstance(label, str) for label in labels):
        return list(labels)
    return None


@dataclass
class _Reader:
    """Tables as they are read, until all are there."""

    id: str | None
    split: str | None
    how: str | None
    text: str | Sequence[str]
    separator: str | None
    whole: bool = True  # tables are read into memory; else numbers stay in their files
    parsed: dict[str, np.ndarray] = field(default_factory=dict)  # files of numbers that were read, by path
    notes: list[str] = field(default_factory=list)
    tables: dict[str, Any] = field(default_factory=dict)
    labels: Any = None
    named: tuple[str, np.ndarray, list[str] | None, bool, bool] | None = None
    counted: tuple[str, dict[str, int]] | None = None
    parts: Any = None
    names: dict[str, list[str]] = field(default_factory=dict)
    texts: dict[str, Any] = field(default_factory=dict)
    documents: list[str] | None = None
    folders: list[str] = field(default_factory=list)
    complete: set[str] = field(default_factory=set)  # views that lack nothing
    turnable: set[str] = field(default_factory=set)  # tables that may have their samples in columns

    def __post_init__(self) -> None:
        self.text = (self.text,) if isinstance(self.text, str) else tuple(self.text)

    def read(
        self, views: Mapping[str, Any], labels: Any, test_share: float | None, random_state: int | None = 0
    ) -> Samples:
        """All views, their labels, and a split where one is asked for."""
        columns = _label_columns(labels)
        for view, given in views.items():
            self.add(view, given, columns, labels is None)
        self.add_labels(labels, columns)
        if labels is None:
            self.notes += questions(views)
        samples = self.samples()
        if test_share is not None:
            if samples.split is not None:
                raise UserError("the samples have a split already; leave test_share out")
            if not 0 < test_share < 1:
                raise UserError(f"test_share = {test_share!r}; needs a number between 0 and 1")
            n = next(iter({**samples.views, **self.texts}.values())).shape[0]  # of documents alone there is no view yet
            split = share_out(samples.labels, n, test_share, random_state)
            samples = replace(samples, split=split)
            if samples.labels is not None and not samples.real:
                self.notes.append(describe_test_split(samples.labels, split == "test", test_share))
        return self.with_texts(samples)

    def add(self, view: str, given: Any, columns: list[str] | int | None, unlabeled: bool) -> None:
        """Read the table of a view; where no labels are said (`unlabeled`) its files may have some."""
        import pandas as pd

        files = given if not self.whole or _is_split(given) else {ALL: given}
        read = {part: _frame(file, self.notes) for part, file in files.items()} if self.whole else {}
        found = [frame for frame in read.values() if frame is not None]
        if len(found) < len(by_split(files)):
            self._arrays(view, by_split(files), columns, unlabeled)
            return
        self._count({part: len(frame) for part, frame in zip(read, found)}, view)
        table = found[0] if len(found) == 1 else pd.concat(found, ignore_index=True)
        if "text" in table.attrs:
            self.text = (*self.text, "text")
            if self.id is None:
                self.documents = table["document"].tolist()
                table = table.drop(columns="document")
            else:  # joined by their names, whatever the other tables call that column
                table = table.rename(columns={"document": self.id})
                self.folders.append(view)
        table = self._indexed(view, table)
        chosen = [name for name in columns if name in table.columns] if isinstance(columns, list) else []
        if isinstance(columns, list) and chosen:
            lacking = sorted(set(columns) - set(chosen))
            if lacking:
                raise DataError(
                    f"{view}: has no column {lacking[0]!r}, expected the labels {', '.join(columns[:6])} in it"
                )
            self.labels = table[chosen]
        self.tables[view] = table.drop(columns=chosen)

    def _arrays(self, view: str, files: Mapping[str, Any], columns: list[str] | int | None, unlabeled: bool) -> None:
        """A view of files that hold arrays, or of an array."""
        if not isinstance(next(iter(files.values())), str | os.PathLike):
            self.tables[view] = next(iter(files.values()))
            return
        known = columns if _all_end(files, ".arff") else None
        table = open_table(view, files, known, with_labels=self.whole or unlabeled, read=self.parsed)
        if self.whole and not scipy.sparse.issparse(rows(table.X, slice(0, 0))):
            check_memory(f"view {view!r}", math.prod(table.X.shape) * np.dtype(table.X.dtype).itemsize)
        self.tables[view] = rows(table.X) if self.whole else table.X
        self.complete |= {view} if table.gaps is False else set()
        if table.feature_names is not None:
            self.names[view] = table.feature_names
        if table.Y is not None:
            found, real = checked_numbers(view, table.Y, table.label_names)
            if self.named is not None and (
                self.named[2] != table.label_names or not np.array_equal(self.named[1], found)
            ):
                raise DataError(
                    f"views {self.named[0]!r} and {view!r} have different labels in their files, expected the same"
                )
            self.named = (view, found, table.label_names, real, table.classes)
        elif unlabeled:
            asked = [name for name in table.feature_names or () if name.strip().lower() in frames.CLASS_NAMES]
            self.notes += [frames.question(name) for name in asked[:1]]
        self._opened(view, files, table.counts)

    def _opened(self, name: str, files: Mapping[str, Any], counts: dict[str, int]) -> None:
        """MATLAB's users keep samples in columns; of other files that are not read whole, a row too many is likelier."""
        self.turnable |= {name} if self.whole or (len(counts) == 1 and _all_end(files, ".mat")) else set()
        self._count(counts, name)

    def _count(self, counts: dict[str, int], name: str) -> None:
        """The split that the files of a table are, which is the same for all."""
        if self.whole and list(counts) == [ALL]:
            return
        first, known = self.counted = self.counted or (name, counts)
        if list(known) == list(counts) == [ALL]:  # some may be turned: their rows are compared later
            return
        if list(known.items()) != list(counts.items()):
            said = [", ".join(f"{n} {split}" for split, n in each.items()) for each in (counts, known)]
            raise UserError(
                f"{name!r} has rows {said[0]}, {first!r} has {said[1]}; pass the same samples and splits, in the same order, "
                "for every view and the labels"
            )
        self.parts = np.repeat(np.array(list(counts), dtype=object), list(counts.values()))

    def _indexed(self, where: str, table: Any) -> Any:
        """The table with the samples' names as its index, and without its column of parts."""
        import pandas as pd

        if self.id is not None:
            if self.id not in table.columns:
                raise DataError(
                    f"{where}: has no column {self.id!r} of ids; it has {', '.join(map(str, table.columns[:8]))}"
                )
            ids = table[self.id]
            if ids.isna().any():
                raise DataError(f"{where}: the id in row {int(np.flatnonzero(ids.isna())[0])} is missing; give it one")
            # as objects of Python: looking them up in Arrow's texts makes each of them anew
            table = table.drop(columns=self.id).set_axis(pd.Index(ids.astype(str), dtype=object))
            if not table.index.is_unique:
                doubled = table.index[table.index.duplicated()][0]
                raise DataError(
                    f"{where}: the id {doubled!r} stands in {int((table.index == doubled).sum())} rows, expected 1"
                )
        if self.split is not None and self.split in table.columns:
            self.parts = table[self.split].astype(str)
            table = table.drop(columns=self.split)
        return table

    def add_labels(self, labels: Any, columns: list[str] | int | None) -> None:
        """Read labels that have a table of their own."""
        found = self.labels is not None or self.named is not None
        if labels is None or columns == 0 or (columns is not None and found):
            return
        if isinstance(columns, list | int):
            raise DataError(f"labels {columns!r}: no view has these columns, expected an .arff view that declares them")
        if not self.whole:
            self._label_arrays(by_split(labels))
            return
        if isinstance(labels, str) and not os.path.exists(labels.partition("::")[0]):
            for view, table in self.tables.items():
                if hasattr(table, "columns") and labels in table.columns:
                    self.labels, self.tables[view] = table[[labels]], table.drop(columns=labels)
                    return
        if isinstance(labels, str | os.PathLike) and frames.is_ragged(labels):
            self.labels = self._named_sets(frames.read_ragged(labels))
            return
        table = _frame(labels, self.notes)
        if table is not None:
            self.labels = self._indexed("labels", table)
        elif isinstance(labels, str | os.PathLike):
            self._label_arrays({ALL: str(labels)})
        else:
            self.labels = labels

    def _named_sets(self, sets: list[list[str]]) -> Any:
        """Lists of labels, by the names of the samples where these stand first in each."""
        import pandas as pd

        if self.id is None:
            return sets
        named = sets[1:] if sets and sets[0][:1] == [self.id] else sets
        index = pd.Index([row[0] for row in named], dtype=object)
        return pd.Series([row[1:] for row in named], index=index, dtype=object)

    def _label_arrays(self, files: Mapping[str, str | Path]) -> None:
        """Labels of files that hold arrays."""
        import pandas as pd

        table = open_table(LABELS, files, of_labels=True, read=self.parsed)
        given, names = dense(rows(table.X)), table.feature_names
        self.labels = given if names is None else pd.DataFrame(given, columns=names)
        self._opened(LABELS, files, table.counts)

    def samples(self) -> Samples:
        """All tables, joined."""
        import pandas as pd

        labels, unlabeled = self.labels, np.empty(0, np.intp)
        keyed = {name: table for name, table in self.tables.items() if isinstance(table, pd.DataFrame)}
        ids = self.documents
        if self.id is not None:
            if isinstance(labels, pd.DataFrame | pd.Series):
                keyed["labels"] = labels
            keyed = self._without_endings(keyed)
            order = self._joined({name: table.index for name, table in keyed.items()})
            if "labels" in keyed:
                labeled = keyed["labels"].index  # often the same rows; a look at each takes a fifth of the reading
                unlabeled = unlabeled if labeled.equals(order) else np.flatnonzero(~order.isin(labeled))
            keyed = {
                name: table if table.index.equals(order) else table.reindex(order) for name, table in keyed.items()
            }
            ids = order.to_numpy(object).tolist()
            labels = keyed.pop("labels", labels)
        views: dict[str, Any] = {}
        names = dict(self.names)
        for view, table in {**self.tables, **keyed}.items():
            if isinstance(table, pd.DataFrame):
                for column in [name for name in self.text if name in table.columns]:
                    self.texts[column] = table[column]
                    table = table.drop(columns=column)
                listed, table = frames.vectors(view, table)
                if labels is None and self.named is None and (found := frames.class_like(table)) is not None:
                    self.notes.append(frames.question(found))
                if table.shape[1] == 0 and len(listed) == 1:
                    views[view] = listed.popitem()[1]
                for column, array in listed.items():
                    views[column if column not in self.tables else f"{view}.{column}"] = array
                if table.shape[1]:
                    views[view], names[view] = frames.numeric_columns(view, table, self.notes)
            else:
                views[view] = np.asarray(table) if self.whole and not scipy.sparse.issparse(table) else table
        lost = [name for name in self.text if name not in self.texts]
        if lost:
            raise DataError(f"no table has the column {lost[0]!r} of documents")
        _, Y, label_names, real, classes = self.named or ("", None, None, False, False)
        if labels is not None:
            given = labels
            if isinstance(labels, pd.Series):  # of lists
                given = [row if isinstance(row, list) else [] for row in labels]
            Y, label_names, kind = label_matrix("labels", given, self.separator)
            Y, real, classes = unknown_rows(Y, unlabeled), kind == "targets", kind == "classes"
            self._tell_unknown(Y, label_names, ids)
        n = len(next(iter(self.texts.values()))) if not views else 0
        Y = self._upright(views, Y, n, names)
        parts = self.parts
        if isinstance(parts, pd.Series) and self.id is not None:
            parts = parts.reindex(ids)
        elif self.split is not None and parts is None:
            raise DataError(f"no table has the column {self.split!r} of the split")
        split = parts if parts is None or isinstance(parts, np.ndarray) else np.asarray(parts).astype(str)
        return Samples(views, Y, label_names, names, ids, split, real, {}, self.notes, classes)

    def _without_endings(self, tables: dict[str, Any]) -> dict[str, Any]:
        """Names of documents as their folder has them: without the .txt that other tables may write."""
        known = {one for view in self.folders for one in tables[view].index}

        def bare(one: str) -> str:
            stem = str(one).removesuffix(".txt")
            return stem if one not in known and stem in known else one

        return {name: table.rename(index=bare) if known else table for name, table in tables.items()}

    def with_texts(self, samples: Samples) -> Samples:
        """The samples with a view per column of documents, whose words are those of the training samples."""
        import pandas as pd

        views, names, known = dict(samples.views), dict(samples.feature_names), {}
        for column, given in self.texts.items():
            texts = ["" if pd.isna(text) else str(text) for text in given]
            old = texts if samples.split is None else [t for t, part in zip(texts, samples.split) if part == "train"]
            vocabulary = known[column] = TextVocabulary.learn(old)
            views[column], names[column] = vocabulary.rows(texts), list(vocabulary.words)
        return replace(samples, views=views, feature_names=names, vocabularies=known)

    def _tell_unknown(self, Y: np.ndarray, names: Sequence[str] | None, ids: Sequence[str] | None) -> None:
        """Note cells of labels that are missing."""
        gaps = np.argwhere(np.isnan(Y))
        if len(gaps):
            i, j = gaps[0]
            row = f"row {i}" if ids is None else repr(ids[i])
            column = f"column {j}" if names is None else f"column {names[j]!r}"
            self.notes.append(f"labels: {len(gaps)} cells are missing ({row}, {column} first): taken as not known")

    def _joined(self, ids: Mapping[str, pd.Index]) -> pd.Index:
        """The ids of all samples, in the order of the first table."""
        first, order = next(iter(ids.items()))
        if self.how == "outer":
            for name, own in ids.items():
                order = order if name == "labels" else order.append(own).unique()
            bare = ids.get("labels", order[:0]).difference(order, sort=False)
            if len(bare):
                self.notes.append(f"labels: {_some(bare)} have labels and no features: left out")
            return order
        if self.how == "inner":
            for own in ids.values():
                order = order[order.isin(own)]
            if order.empty:
                raise DataError(f"the tables {', '.join(ids)} have no id in common; expected the same names of samples")
            return order
        for name, own in ids.items():
            if own.equals(order):
                continue
            for lacks, has, by in ((name, order.difference(own), first), (first, own.difference(order), name)):
                if len(has):
                    raise DataError(
                        f"{lacks!r} lacks {_some(has)}, which {by!r} has; add the rows, or pass how='inner' to leave "
                        "such samples out, or how='outer' to keep them without these views"
                    )
        return order

    def _upright(
        self, views: dict[str, Any], Y: np.ndarray | None, n: int, names: dict[str, list[str]]
    ) -> np.ndarray | None:
        """Turns what has its samples in columns, told by the number of rows of all others."""
        shapes = ({} if Y is None else {LABELS: Y.shape}) | {view: X.shape for view, X in views.items()}
        turnable = [name for name in shapes if self.whole or name in self.turnable]
        target = n or shared_rows(shapes, turnable) or next(iter(shapes.values()))[0]
        turned = all(shape[0] != target for shape in shapes.values())
        if self.whole and turned and Y is not None and Y.shape[0] >= target:
            target = Y.shape[0]  # there would be more labels than samples
        if Y is not None and Y.shape[0] != target == Y.shape[1] and LABELS in turnable:
            self.notes.append(f"labels have {target} columns, as many as there are samples, so they are transposed")
            Y = np.ascontiguousarray(Y.T)
        for view, X in views.items():
            if X.shape[0] != target and X.shape[1] == target and view in turnable:
                self.notes.append(
                    f"view {view!r} has {target} columns, as many as there are samples, so it is transposed"
                )
                X = rows(X)
                views[view] = scipy.sparse.csr_array(X.T) if scipy.sparse.issparse(X) else np.ascontiguousarray(X.T)
                names.pop(view, None)
            elif X.shape[0] != target:
                other = "labels" if Y is not None else next(iter(views))
                raise UserError(
                    f"view {view!r} has {X.shape[0]} rows, {other!r} has {target}; pass the same samples in each"
                )
        if Y is not None and Y.shape[0] != target:
            raise UserError(f"labels have {Y.shape[0]} rows, there are {target} samples; pass one row per sample")
        return Y


def _frame(given: Any, notes: list[str]) -> pd.DataFrame | None:
    """A table with names; None for an array or a file of one."""
    import pandas as pd

    if isinstance(given, pd.Series):
        return given.to_frame()
    if not isinstance(given, str | os.PathLike):
        table = frames.as_frame(given)
        return None if table is None else table.set_axis([str(name) for name in table.columns], axis=1)
    if os.path.isdir(given) and suffix(given) != ".zarr":
        return documents(Path(given))
    return frames.read_frame(given, notes) if suffix(given) in frames.FRAMES else None


def documents(folder: Path) -> pd.DataFrame:
    """The text files of a folder, named by their paths in it."""
    import pandas as pd

    files = sorted(path for path in folder.rglob("*.txt") if path.is_file())
    if not files:
        raise DataError(f"{folder}: holds no .txt file, expected a folder of documents")
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in files]
    found = pd.DataFrame({"document": [str(path.relative_to(folder).with_suffix("")) for path in files], "text": texts})
    found.attrs["text"] = True
    return found


def _some(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
    return ", ".join(map(repr, ids[:3])) + more
