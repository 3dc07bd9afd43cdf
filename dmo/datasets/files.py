"""Functions that read samples from files and tables to memory, or convert them to a feature store."""

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

from dmo.blocks import (
    SINGLE,
    Block,
    InOrder,
    Rows,
    Subset,
    alike,
    array_bytes,
    as_block,
    dense,
    filled,
    first_entry,
    nonzero_count,
    packed,
    row_blocks,
    rows,
    stored_values,
    transposed,
)
from dmo.datasets.cards import ALL, by_split
from dmo.datasets.samples import Samples, TextVocabulary
from dmo.errors import UserError, amount
from dmo.formats import delimited, frames
from dmo.formats.arff import read_label_list
from dmo.formats.files import DataError, Stacked, check_memory, existing, row_of_shard, sha256, suffix
from dmo.formats.labels import checked_numbers, label_matrix, unknown_rows
from dmo.formats.schema import Schema, TableOptions, chosen_columns, exact, learn_schema, text_cells, unknown_column
from dmo.formats.sources import Source, is_zarr, parse_source, split_name
from dmo.formats.tables import cell_views, ending_of, is_svmlight, open_table, questions, shared_rows
from dmo.formats.text import open_csv, read_names
from dmo.labels.stratification import describe_test_split, stratified_folds
from dmo.progress import stage
from dmo.stores import FeatureStore, Provenance

if TYPE_CHECKING:
    import pandas as pd

Given = str | os.PathLike[str] | Any
"""Type of the data of a view: a file, a folder of text documents, a DataFrame or an array."""
Files = str | Path | Mapping[str, str | Path]
"""Path of a file, optionally followed by "::" and the name of an array, or a mapping with one file for each split."""
LABELS = "labels"
"""Name of the table of labels in messages and dictionaries of tables."""
_BLOCK = 4096
"""Number of rows that are searched for missing values at once."""
_LARGE = 1 << 28
"""Maximum size in bytes of a numeric text table that is read to memory. Larger tables are read in blocks."""
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
    types: Mapping[str, str] | None = None,
    missing: str | Sequence[str] = (),
    decimal: str | None = None,
    delimiter: str | None = None,
    header: bool | None = None,
    row_names: bool = False,
    drop_columns: str | Sequence[str] = (),
) -> Samples:
    r"""Read samples from files, DataFrames or arrays.

    The type of every column is detected from its cells. Numbers, booleans and categories become features, and
    categories are one-hot encoded with the values that occur in the training samples. Columns of dates, free text and
    identifiers raise an error unless `types`, `text` or `drop_columns` contains them. The result reports all decisions
    in `notes`. If a table is ambiguous, the error names the option that resolves the ambiguity.

    Parameters
    ----------
    features : path-like, DataFrame, array, or mapping of view to these
        Features of one view, or of several views by name. A file is a table (.csv, .tsv, .txt, .parquet, .arrow,
        .jsonl), an array ("PATH" or "PATH::ARRAY"), or an .arff or .svm file. A folder contains the parts of a table,
        or text documents whose file names are the sample ids. A list of files is concatenated. A mapping with the names
        of splits, such as {"train": ..., "test": ...}, contains one file for each split.
    labels : path-like, DataFrame, array, list of labels, names of columns, or int, default=None
        Label indicators of 0 and 1, one column of classes, one column with several labels per cell, a text file with
        the labels of one sample per line, or regression targets. Names of columns, or patterns such as "tag_*", select
        the labels among the columns of `features`. For .arff files, see `ingest_files`.
    id : str, default=None
        Name of the column that contains the sample ids. The tables are joined by this column. By default, row i of
        every table belongs to sample i.
    split : str, default=None
        Name of the column that contains the split of each sample.
    test_share : float, default=None
        Fraction of the samples that form the split "test", stratified by labels. The other samples form "train".
    text : str or sequence of str, default=()
        Names of the columns that contain documents. Each column becomes a view of tf-idf features, whose vocabulary is
        learned from the training samples.
    separator : str, default=None
        Separator between the labels in a cell. By default, one of the separators "|", ";", "," and space is detected.
    how : {"inner", "outer"}, default=None
        Treatment of samples that are missing in some tables. "inner" ignores these samples. "outer" keeps them, with
        NaN as their missing features and labels. By default, they raise an error.
    random_state : int or None, default=0
        Seed of the random split.
    types : mapping of str to str, default=None
        Types of some columns by name, instead of detection: "number", "boolean", "category", "date" (converted to days
        since 1970), "text", "identifier" (ignored) or "labels". A label column of type "number" is a regression target,
        and a label column of type "category" contains classes.
    missing : str or sequence of str, default=()
        Additional cells that mark a missing value, such as "-999". Empty cells, "NA", "NaN", "null", "?" and some
        others always mark a missing value.
    decimal : {".", ","}, default=None
        Decimal separator. The other character is then the thousands separator. By default, the separators are detected.
    delimiter : str, default=None
        Delimiter between the fields of a row in text files. By default, the delimiter is detected.
    header : bool, default=None
        Whether the first line of text files contains column names. By default, column names are detected.
    row_names : bool, default=False
        Whether the first column of every text table contains the sample ids, by which the tables are joined.
    drop_columns : str or sequence of str, default=()
        Names of columns to ignore, or patterns such as "note_*".

    Returns
    -------
    Samples
        Views and labels of the samples, with their names, ids and splits.

    Raises
    ------
    DataError, UserError
        If the data or the arguments are invalid. The message contains the file, row or column.

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
    options = _options(types, missing, decimal, delimiter, header, row_names, drop_columns, separator)
    return _Reader(id, split, how, text, options).read(cell_views(given), labels, test_share, random_state)


def join_tables(
    tables: Mapping[str, Any],
    labels: Any,
    options: TableOptions,
    *,
    id: str | None = None,
    split: str | None = None,
    how: str | None = None,
) -> tuple[Samples, bool]:
    """Join the tables of all views and the labels; also return whether each label is a separate column."""
    reader = _Reader(id, split, how, (), options, in_memory=False)
    samples = reader.read(tables, labels, None)
    of_arff = reader.named is not None and reader.named[0] in reader.names and not samples.classes
    return samples, of_arff or len(getattr(reader.labels, "columns", ())) > 1


def _options(
    types: Mapping[str, str] | None,
    missing: str | Sequence[str],
    decimal: str | None,
    delimiter: str | None,
    header: bool | None,
    row_names: bool,
    drop_columns: str | Sequence[str],
    separator: str | None,
) -> TableOptions:
    marks = (missing,) if isinstance(missing, str) else tuple(missing)
    dropped = (drop_columns,) if isinstance(drop_columns, str) else tuple(drop_columns)
    return TableOptions(types or {}, marks, decimal, delimiter, header, row_names, dropped, separator)


def share_out(labels: Block | None, n: int, test_share: float, random_state: int | None = 0) -> np.ndarray:
    """Return a random split of n samples into "train" and "test", stratified by labels of shape (n, L)."""
    Y = np.ones((n, 1)) if labels is None else filled(labels)
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
    types: Mapping[str, str] | None = None,
    missing: str | Sequence[str] = (),
    decimal: str | None = None,
    delimiter: str | None = None,
    header: bool | None = None,
    row_names: bool = False,
    drop_columns: str | Sequence[str] = (),
    histograms: Collection[str] = (),
    dtypes: Mapping[str, str] | None = None,
    block: int | None = None,
    overwrite: bool = False,
    in_place: bool = False,
) -> FeatureStore:
    """Convert files of any supported format to a feature store.

    Arrays, .arff files, .svm files and large numeric tables are read block by block. Other tables and folders are read
    to memory. A file is named "PATH", "PATH::ARRAY" to select an array, or "PATH::ARRAY.T" to select and transpose an
    array.

    Parameters
    ----------
    views : mapping of str to path-like or mapping
        File of each view, or a mapping such as {"train": "a.fvec", "test": "b.fvec"} with one file for each split.
    store : path-like
        Path or URL of the new store.
    labels : path-like, mapping, sequence of str or int, default=None
        Labels in any form that `read_samples` supports. If the views have one file for each split, the labels must have
        the same splits. For ARFF files, the label columns are specified by a Mulan .xml file, by names, or by a number:
        6 selects the first six columns, -6 the last six, and 0 none. By default, the function uses the labels in .svm
        files, and the labels that an ARFF file declares as in MEKA ("-C 6").
    label_names : path-like or sequence of str, default=None
        Names of the labels, or path of a text file with one name per line.
    id, split, test_share, text, separator, how : object
        Parameters of `read_samples`.
    types, missing, decimal, delimiter, header, row_names, drop_columns : object
        Parameters of `read_samples`.
    histograms : collection of str, default=()
        Names of the views that are histograms (counts).
    dtypes : mapping of str to str, default=None
        Data types of some views in the store. By default, a view has the data type of its files.
    block : int, default=None
        Number of rows per block. One block of a view is in memory at a time. The default is 4096 if such a block needs
        at most 4 MiB in every view, otherwise 1024.
    overwrite : bool, default=False
        Whether to replace an existing store.
    in_place : bool, default=False
        Whether to read the views from their files instead of writing a store. Only dense arrays in .npy, Zarr, HDF5 or
        Parquet files and samples without splits are supported. For other data, the function writes a store and logs the
        reason.

    Returns
    -------
    FeatureStore
        New store, opened for reading.

    Raises
    ------
    DataError
        If a file is invalid.
    FileNotFoundError
        If a file does not exist.
    StoreError
        If the store cannot be written.
    UserError
        If the rows or splits differ between views.

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
        raise UserError("ingest_files: got no views, expected at least one; pass {name: file}")
    views, dtypes = cell_views(views), dtypes or {}
    check_known("histograms", histograms, views)
    check_known("dtypes", dtypes, views)
    names = read_names(label_names) if isinstance(label_names, str | Path) else label_names
    everything = dict(views) if labels is None or isinstance(labels, int | list | tuple) else {**views, LABELS: labels}
    options = _options(types, missing, decimal, delimiter, header, row_names, drop_columns, separator)
    joined = {"id": id, "split": split, "text": text, "how": how}
    asked = joined | {"labels": labels, "test_share": test_share} | vars(options)
    asked = {name: list(value) if isinstance(value, tuple) else value for name, value in asked.items() if value}
    asked |= {} if header is None else {"header": header}
    reader = _Reader(id, split, how, text, options, whole=any(joined.values()) or row_names, in_memory=False)
    samples = reader.read(views, labels, test_share)
    if labels is None and samples.labels is None:
        for files in (files for files in views.values() if _all_end(files, ".arff")):
            raise UserError(
                f"{next(iter(by_split(files).values()))}: the label attributes are not declared; pass a Mulan list "
                "(--labels FILE.xml), their names (--label-columns), or their number (--label-count 6: the first six, "
                "-6: the last six, 0: none)"
            )
    for note in samples.notes:
        log.warning("%s", note)
    samples = replace(samples, label_names=samples.label_names if names is None else list(names))
    parameters: dict[str, Any] = {"dataset": "files", "options": asked}
    if in_place:
        reason = "dtypes or histograms are given" if dtypes or histograms else samples.copy_reason()
        if reason is None:
            own = {view: {"name": source.text, "digest": source.digest()} for view, source in samples.sources.items()}
            specs = [str(spec) for files in views.values() for spec in by_split(files).values()]
            return samples.in_place(", ".join(specs), Provenance(parameters={**parameters, "files": own}))
        size = sum(X.shape[0] * X.shape[1] * np.dtype(X.dtype).itemsize for X in samples.views.values())
        log.warning("%s: writing a copy of at most %s, because %s", os.fspath(store), amount(size), reason)
    provenance = Provenance(parameters={**parameters, "files": fingerprints(everything)})
    return samples.write(
        store,
        histograms=histograms,
        dtypes=dtypes,
        block=block,
        overwrite=overwrite,
        provenance=provenance,
        complete=reader.complete,
    )


def read_description(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the arguments of `ingest_files` from a JSON file.

    Parameters
    ----------
    path : path-like
        Path of the JSON file. The paths in this file are relative to its folder.

    Returns
    -------
    dict of str to object
        Arguments of `ingest_files` by name.

    Raises
    ------
    DataError
        If the file is not valid JSON, contains an unknown key, or contains no views.

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
        raise DataError(f"{path}: not valid JSON in line {error.lineno}, column {error.colno} ({error.msg})") from None
    except RecursionError:
        raise DataError(f"{path}: nested too deeply, expected a JSON description") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text at byte {error.start}, expected a JSON description") from None
    options = {"id", "split", "test_share", "text", "how", *TableOptions.__dataclass_fields__}
    keys = {"views", "labels", "label_names", "histograms", "dtypes"} | options
    if not isinstance(found, dict) or not isinstance(found.get("views"), dict) or not set(found) <= keys:
        extra = sorted(set(found) - keys) if isinstance(found, dict) else []
        got = f"unknown key {extra[0]!r}" if extra else "no object 'views'"
        raise DataError(f"{path}: {got}, expected 'views' and optionally {', '.join(sorted(keys - {'views'}))}")
    for key in ("views", "labels", "label_names"):
        if key in found and not (key != "views" and isinstance(found[key], list)):
            found[key] = _relative(found[key], path.parent)
    return found


def _relative(value: Any, folder: Path) -> Any:
    if isinstance(value, dict):
        return {key: _relative(item, folder) for key, item in value.items()}
    if isinstance(value, list):
        return [_relative(item, folder) for item in value]
    if not isinstance(value, str) or "://" in value:
        return value
    return f"@{folder / value[1:]}" if value.startswith("@") else str(folder / value)


def fingerprints(files: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the name of each file by view and split, with the SHA-256 hash of local files."""
    found = {}
    sources = {
        f"{name}/{part}": parse_source(spec) for name, value in files.items() for part, spec in by_split(value).items()
    }
    listed = {
        f"{key}/{i}" if source.is_sharded else key: source.place(path)
        for key, source in sources.items()
        for i, path in enumerate(source.paths)
    }
    with stage("check the files", len(listed)) as advance:
        for key, spec in listed.items():
            path = split_name(spec)[0]
            found[key] = {"name": spec.rpartition("/")[2]} | ({"sha256": sha256(path)} if os.path.isfile(path) else {})
            advance(1)
    return found


def _all_end(files: Any, ending: str) -> bool:
    return all(ending_of(spec) == ending for spec in by_split(files).values())


def _is_file(spec: Any) -> bool:
    """Return whether the data of a view are a file, or a list of files to concatenate."""
    listed = isinstance(spec, list | tuple) and bool(spec) and all(isinstance(one, str | os.PathLike) for one in spec)
    return listed or isinstance(spec, str | os.PathLike)


def check_known(what: str, names: Collection[str], views: Mapping[str, Any]) -> None:
    unknown = sorted(set(names) - set(views))
    if unknown:
        raise UserError(f"{what}: got view {unknown[0]!r}, expected one of {', '.join(views)}")


def _is_split(features: Any) -> bool:
    return isinstance(features, Mapping) and set(features) <= {"train", "test", "validation", "valid", "dev"}


def label_columns(labels: Any) -> list[str] | int | None:
    """Return the names or the number of the label columns if `labels` specifies columns, otherwise None."""
    if isinstance(labels, int):
        return labels
    if isinstance(labels, str | Path) and suffix(labels) == ".xml":
        return read_label_list(labels)
    if isinstance(labels, list | tuple) and labels and all(isinstance(label, str) for label in labels):
        return list(labels)
    return None


@dataclass
class _Reader:
    """Reader that collects the tables of all views and of the labels, and joins their rows to samples."""

    id: str | None
    split: str | None
    how: str | None
    text: str | Sequence[str]
    options: TableOptions
    whole: bool = True  # Whether all text tables are read to memory. Otherwise, large tables are read in blocks.
    in_memory: bool = True  # Whether arrays and columns of vectors are read to memory.
    notes: list[str] = field(default_factory=list)
    tables: dict[str, Any] = field(default_factory=dict)
    labels: Any = None
    asked: Sequence[str] = ()  # Names of columns that may contain the labels.
    files: dict[str, Source] = field(default_factory=dict)  # Files of tables that contain columns of vectors.
    sources: dict[str, Source] = field(default_factory=dict)  # Files of the views that are not read to memory, by view.
    unread: dict[str, dict[str, Rows]] = field(default_factory=dict)  # Columns that are not read to memory, by view.
    numbers: dict[str, list[str]] = field(default_factory=dict)  # Names of numeric columns not read to memory, by view.
    shards: dict[str, list[tuple[str, int]]] = field(
        default_factory=dict
    )  # Names and row counts of the files of each table, by table.
    named: tuple[str, Block, list[str] | None, bool, bool] | None = None
    counted: tuple[str, dict[str, int]] | None = None
    parts: Any = None
    names: dict[str, list[str]] = field(default_factory=dict)
    schemas: dict[str, Schema] = field(default_factory=dict)
    texts: dict[str, Any] = field(default_factory=dict)
    documents: tuple[str, list[str]] | None = None  # Name of a table that is joined by position, and its sample ids.
    folders: list[str] = field(default_factory=list)
    complete: set[str] = field(default_factory=set)  # Names of views that have no missing values.
    turnable: set[str] = field(default_factory=set)  # Names of tables that may have one sample per column.
    dropped: set[str] = field(default_factory=set)  # Names and patterns in `drop_columns` that match a column.

    def __post_init__(self) -> None:
        self.text = (self.text,) if isinstance(self.text, str) else tuple(self.text)
        self.text += tuple(
            name for name, kind in self.options.types.items() if kind == "text" and name not in self.text
        )
        if self.options.row_names and self.id is not None:
            raise UserError(f"got both id={self.id!r} and row_names, expected only one; each provides the sample ids")

    def read(
        self, views: Mapping[str, Any], labels: Any, test_share: float | None, random_state: int | None = 0
    ) -> Samples:
        """Read all views and labels, and create a random split if `test_share` is not None."""
        columns = label_columns(labels)
        self.asked = columns if isinstance(columns, list) else [labels] if isinstance(labels, str) else ()
        for view, given in views.items():
            self.add(view, given, columns, labels is None)
        self.add_labels(labels, columns)
        if labels is None:
            self.notes += questions(views)
        lost = [name for name in self.options.drop_columns if name not in self.dropped]
        if lost:
            names = [str(name) for table in self.tables.values() for name in getattr(table, "columns", ())]
            raise unknown_column("drop_columns", lost[0], names)
        samples = self.samples()
        if test_share is not None:
            if samples.split is not None:
                raise UserError("the samples already have a split, but test_share was passed; leave it out")
            if not 0 < test_share < 1:
                raise UserError(f"test_share must be a number between 0 and 1, got {test_share!r}")
            # If all views are text documents, `samples.views` is still empty, because documents are converted to views
            # later.
            n = next(iter({**samples.views, **self.texts}.values())).shape[0]
            split = share_out(samples.labels, n, test_share, random_state)
            samples = replace(samples, split=split)
            if samples.labels is not None and not samples.real:
                self.notes.append(describe_test_split(samples.labels, split == "test", test_share))
        samples = self.with_texts(self._of_training(samples))
        if self.schemas or self.texts:
            samples.attributes["schema"] = self._schema(samples)
        return replace(samples, notes=list(dict.fromkeys(self.notes)))

    def add(self, view: str, given: Any, columns: list[str] | int | None, unlabeled: bool) -> None:
        """Read the table of a view, and the labels in its files if `unlabeled` is True."""
        import pandas as pd

        files = by_split(given) if _is_split(given) else {ALL: given}
        unread: dict[str, dict[str, Rows]] = {part: {} for part in files}
        alone = list(files) == [ALL]
        read = {part: self._frame(file, unread[part], view if alone else None) for part, file in files.items()}
        found = [frame for frame in read.values() if frame is not None]
        if len(found) < len(read):
            self._arrays(view, files, columns, unlabeled)
            return
        if list(files) != [ALL] or not self.whole:
            self._count({part: len(frame) for part, frame in zip(read, found)}, view)
        names = [{*frame.columns, *unread[part]} for part, frame in zip(read, found)]
        for part, known in zip(read, names):
            if known != names[0]:
                odd = sorted(known ^ names[0], key=str)
                raise DataError(
                    f"{view}: {part!r} and {next(iter(read))!r} have different columns ({odd[0]!r} is in only one of "
                    "them); use the same columns"
                )
        self.shards[view] = [shard for frame in found for shard in frame.attrs.get(frames.SHARDS, ())]
        vectors = {name: [own[name] for own in unread.values()] for name in next(iter(unread.values()))}
        if alone and vectors and not self.in_memory:
            self.files[view] = parse_source(files[ALL])
        self.unread[view] = {name: own[0] if len(own) == 1 else Stacked(own, view) for name, own in vectors.items()}
        table = found[0] if len(found) == 1 else pd.concat(found, ignore_index=True)
        if "text" in table.attrs:
            self.text = (*self.text, "text")
            if self.id is None:
                self.documents = view, table["document"].tolist()
                table = table.drop(columns="document")
            else:  # The file names of the documents are the sample ids.
                table = table.rename(columns={"document": self.id})
                self.folders.append(view)
        table = self._indexed(view, table)
        chosen, lost = chosen_columns(list(table.columns), columns) if isinstance(columns, list) else ([], [])
        if chosen and lost:
            raise unknown_column(view, lost[0], list(table.columns), "label column")
        if chosen:
            self.labels = table[chosen]
        self.tables[view] = table.drop(columns=chosen) if chosen else table

    def _frame(self, given: Any, unread: dict[str, Rows] | None = None, view: str | None = None) -> pd.DataFrame | None:
        """Read a table with column names; return None if the data are an array.

        Vector columns of Parquet files, and numeric columns if `view` is given, are not read but added to `unread`.
        """
        import pandas as pd

        if isinstance(given, pd.Series):
            given = given.to_frame()
        if not _is_file(given):
            table = frames.as_frame(given, exact=True)
            if table is None:
                return None
            table = table.set_axis([str(name) for name in table.columns], axis=1)
        elif (source := parse_source(given)).ending in frames.FRAMES and not is_svmlight(source.paths[0]):
            if not self.whole and all(_is_streamed(path) for path in source.paths):
                return None
            others = [name for name in (self.id, self.split, *self.text, *self.asked) if name is not None]
            numbers = [] if view is None else frames.table_numbers(source, others, self.options)
            if view is not None and numbers:
                self.numbers[view] = numbers
            with stage(f"read {os.path.basename(source.text)}"):
                table = frames.read_frame(given, self.notes, self.options, unread, others, numbers)
            table = table.set_axis([str(name) for name in table.columns], axis=1)
        elif os.path.isdir(source.paths[0]) and source.ending != ".zarr" and not is_zarr(source.paths[0]):
            table = documents(Path(source.paths[0]))
        else:
            return None
        chosen, _ = chosen_columns([*table.columns, *(unread or ())], self.options.drop_columns)
        self.dropped |= {name for name in self.options.drop_columns if chosen_columns(chosen, [name])[0]}
        for name in set(chosen) & set(unread or ()):
            del (unread or {})[name]
        return table.drop(columns=[name for name in chosen if name in table.columns]) if chosen else table

    def _arrays(self, view: str, files: Mapping[str, Any], columns: list[str] | int | None, unlabeled: bool) -> None:
        """Add a view whose data are an array or files of arrays."""
        if not _is_file(next(iter(files.values()))):
            self.tables[view] = next(iter(files.values()))
            return
        known = columns if _all_end(files, ".arff") else None
        table = open_table(view, files, known, with_labels=self.whole or unlabeled)
        if self.in_memory:
            check_memory(f"view {view!r}", array_bytes(table.X))
        self.notes += table.notes
        self.shards[view] = getattr(table.X, "shards", [])
        if list(files) == [ALL] and not self.in_memory:
            self.sources[view] = parse_source(files[ALL])
        self.tables[view] = rows(table.X) if self.in_memory else table.X
        self.complete |= {view} if table.gaps is False else set()
        if table.feature_names is not None:
            self.names[view] = table.feature_names
        if table.Y is not None:
            found, real = checked_numbers(view, table.Y, table.label_names, self.options)
            if self.named is not None and (self.named[2] != table.label_names or not _are_equal(self.named[1], found)):
                raise DataError(
                    f"the files of views {self.named[0]!r} and {view!r} have different labels, expected the same"
                )
            self.named = (view, found, table.label_names, real, table.classes)
        self._opened(view, files, table.counts)

    def _opened(self, name: str, files: Mapping[str, Any], counts: dict[str, int]) -> None:
        """Record the row counts of a table, and whether it may need to be transposed, as is common in MATLAB files."""
        self.turnable |= {name} if self.whole or (len(counts) == 1 and _all_end(files, ".mat")) else set()
        self._count(counts, name)

    def _count(self, counts: dict[str, int], name: str) -> None:
        """Derive the split of each sample from the row counts of the files, which must be equal for all tables."""
        if self.whole and list(counts) == [ALL]:
            return
        first, known = self.counted = self.counted or (name, counts)
        if list(known) == list(counts) == [ALL]:  # Compare the row counts later, because a table may be transposed.
            return
        if list(known.items()) != list(counts.items()):
            said = [", ".join(f"{n} {split}" for split, n in each.items()) for each in (counts, known)]
            raise UserError(
                f"{name!r} has the rows {said[0]}, but {first!r} has {said[1]}; pass the same samples and splits, in "
                "the same order, for every view and the labels"
            )
        self.parts = np.repeat(np.array(list(counts), dtype=object), list(counts.values()))

    def _indexed(self, where: str, table: Any) -> Any:
        """Move the sample ids of a table to its index, and its split column to `self.parts`."""
        import pandas as pd

        row_names = table.attrs.pop(frames.ROW_NAMES, None)
        name = row_names if self.options.row_names else self.id
        if name is not None and name not in table.columns and table.index.name == name:
            table = table.reset_index()
        if name is not None:
            if name not in table.columns:
                raise unknown_column(where, name, list(table.columns), "column of ids")
            ids = _exact_texts(table[name])
            if None in ids:
                raise DataError(f"{where}: the id in row {ids.index(None)} is missing; add an id")
            table = table.drop(columns=name).set_axis(pd.Index(ids, dtype=object))
            if not table.index.is_unique:
                doubled = table.index[table.index.duplicated()][0]
                places = np.flatnonzero(table.index == doubled)
                inside = [row_of_shard(self.shards.get(where, ()), place) for place in places[:2].tolist()]
                named = f" ({' and '.join(one for one in inside if one)})" if any(inside) else ""
                raise DataError(
                    f"{where}: the id {doubled!r} occurs in {len(places)} rows{named}, expected one row per sample; "
                    "write all labels of a sample into one cell, separated by |"
                )
        if row_names is not None and row_names in table.columns:
            if name is None:
                self._name_rows(where, [text or "" for text in _exact_texts(table[row_names])])
            table = table.drop(columns=row_names)
        if self.split is not None and self.split in table.columns:
            self.parts = pd.Series([text or "" for text in _exact_texts(table[self.split])], table.index, dtype=object)
            table = table.drop(columns=self.split)
        return table

    def _name_rows(self, where: str, names: list[str]) -> None:
        """Use row names as sample ids; raise DataError if the row names of another table differ."""
        first, known = self.documents = self.documents or (where, names)
        if known != names:
            i = next((i for i, (a, b) in enumerate(zip(known, names)) if a != b), min(len(known), len(names)))
            raise DataError(
                f"{where}: the row names differ from the row names of {first!r}, first in row {i}; pass --row-names to "
                "join the tables by row name"
            )

    def add_labels(self, labels: Any, columns: list[str] | int | None) -> None:
        """Read labels from a separate table, or from a column of a view."""
        is_known = self.labels is not None or self.named is not None
        if labels is None or columns == 0 or (columns is not None and is_known):
            return
        known = {view: [*map(str, table.columns)] for view, table in self.tables.items() if hasattr(table, "columns")}
        if isinstance(columns, list | int):
            if isinstance(columns, list) and known:
                view, names = next(iter(known.items()))
                raise unknown_column(view, columns[0], names, "label column")
            raise DataError(
                f"labels {columns!r}: no view contains these columns; pass the names of the label columns "
                "(--label-columns NAME); numbers of columns are supported only for ARFF files"
            )
        if isinstance(labels, str) and not os.path.exists(split_name(labels)[0]):
            for view, names in known.items():
                if labels in names:
                    table = self.tables[view]
                    self.labels, self.tables[view] = table[[labels]], table.drop(columns=labels)
                    return
        if isinstance(labels, str | os.PathLike) and self._lists_labels(labels):
            self.labels = self._named_sets(delimited.read_ragged(labels, self.options))
            return
        files = by_split(labels) if _is_split(labels) else {ALL: labels}
        read = {part: self._frame(file) for part, file in files.items()}
        if all(frame is not None for frame in read.values()):
            import pandas as pd

            if list(files) != [ALL]:
                self._count({part: len(frame) for part, frame in read.items() if frame is not None}, LABELS)
            found = [frame for frame in read.values() if frame is not None]
            table = found[0] if len(found) == 1 else pd.concat(found, ignore_index=True)
            self.turnable |= {LABELS}
            self.shards[LABELS] = table.attrs.get(frames.SHARDS, [])
            self.labels = self._indexed("labels", table)
        elif isinstance(labels, str | os.PathLike) or list(files) != [ALL]:
            self._label_arrays({part: str(spec) for part, spec in files.items()})
        else:
            self.labels = labels

    def _lists_labels(self, path: str | os.PathLike[str]) -> bool:
        """Return whether a text file contains one list of labels per line instead of a table."""
        if suffix(path) not in (".csv", ".tsv", ".txt") or not os.path.isfile(path) or is_svmlight(path):
            return False
        return delimited.is_ragged(path, self.options)

    def _named_sets(self, sets: list[list[str]]) -> Any:
        """Return lists of labels, indexed by the sample id in the first item of each list if `id` is given."""
        import pandas as pd

        if self.id is None:
            return sets
        named = sets[1:] if sets and sets[0][:1] == [self.id] else sets
        index = pd.Index([row[0] for row in named], dtype=object)
        return pd.Series([row[1:] for row in named], index=index, dtype=object)

    def _label_arrays(self, files: Mapping[str, str | Path]) -> None:
        import pandas as pd

        table = open_table(LABELS, files, of_labels=True)
        names = table.feature_names
        self.shards[LABELS] = getattr(table.X, "shards", [])
        self.labels = table.X if names is None else pd.DataFrame(dense(rows(table.X)), columns=names)
        self._opened(LABELS, files, table.counts)

    def samples(self) -> Samples:
        """Join all tables and return the samples."""
        import pandas as pd

        labels, unlabeled = self.labels, np.empty(0, np.intp)
        keyed = {name: table for name, table in self.tables.items() if isinstance(table, pd.DataFrame)}
        ids = None if self.documents is None else self.documents[1]
        places: dict[str, np.ndarray] = {}
        joined: list[str] = []
        if self.id is not None or self.options.row_names:
            if isinstance(labels, pd.DataFrame | pd.Series):
                keyed["labels"] = labels
            keyed = self._without_endings(keyed)
            order = self._joined({name: table.index for name, table in keyed.items()})
            joined = list(keyed)
            places = {view: keyed[view].index.get_indexer(order) for view, own in self.unread.items() if own}
            if "labels" in keyed:
                # Compare the ids first, because they are usually equal and `isin` would take a fifth of the reading time.
                labeled = keyed["labels"].index
                unlabeled = unlabeled if labeled.equals(order) else np.flatnonzero(~order.isin(labeled))
            keyed = {
                name: table if table.index.equals(order) else table.reindex(order) for name, table in keyed.items()
            }
            ids = order.to_numpy(object).tolist()
            labels = keyed.pop("labels", labels)
        self._check_aligned(joined[1:])
        views: dict[str, Any] = {}
        names = dict(self.names)
        for view, table in {**self.tables, **keyed}.items():
            if isinstance(table, pd.DataFrame):
                for column in [name for name in self.text if name in table.columns]:
                    self.texts[column] = table[column]
                    table = table.drop(columns=column)
                listed, table = frames.vectors(view, table)
                unread = {name: self._placed(X, places.get(view)) for name, X in self.unread.get(view, {}).items()}
                cells = unread.pop(frames.NUMBERS, None)
                listed |= unread
                if cells is not None and table.shape[1]:  # The remaining columns of the table are features, too.
                    known = pd.DataFrame(rows(cells), table.index, self.numbers[view])
                    table, cells = pd.concat([table, known], axis=1), None
                alone = cells is None and table.shape[1] == 0 and len(listed) == 1
                for column, array in listed.items():
                    name = view if alone else column if column not in self.tables else f"{view}.{column}"
                    views[name] = array
                    if view in self.files and array is self.unread[view].get(column):
                        self.sources[name] = replace(self.files[view], name=column)
                if cells is not None:
                    self.schemas[view], views[view] = Schema.of_numbers(self.numbers[view]), cells
                    names[view] = self.numbers[view]
                    if view in self.files and cells is self.unread[view][frames.NUMBERS]:
                        self.sources[view] = replace(self.files[view], columns=tuple(self.numbers[view]))
                elif table.shape[1]:
                    self.schemas[view], views[view] = learn_schema(view, table, self.options, self.notes)
                    names[view] = self.schemas[view].features
                    if labels is None and self.named is None:
                        asked = frames.class_like(self.schemas[view].columns, table)
                        self.notes += [] if asked is None else [frames.question(asked)]
            else:
                views[view] = as_block(table) if self.in_memory else table
        lost = [name for name in self.text if name not in self.texts]
        if lost:
            raise DataError(f"no table has the text column {lost[0]!r}; check the name")
        _, Y, label_names, real, classes = self.named or ("", None, None, False, False)
        if labels is not None:
            given = labels
            if isinstance(labels, pd.Series):  # Each item of the series is a list of labels.
                given = [row if isinstance(row, list) else [] for row in labels]
            Y, label_names, kind = label_matrix("labels", given, self.options, self.notes)
            Y, real, classes = unknown_rows(Y, unlabeled), kind == "targets", kind == "classes"
            self._tell_unknown(Y, label_names, ids)
        n = len(next(iter(self.texts.values()))) if not views else 0
        Y = self._upright(views, Y, n, names)
        parts = self.parts
        if isinstance(parts, pd.Series) and (self.id is not None or self.options.row_names):
            parts = parts.reindex(ids)
        elif self.split is not None and parts is None:
            raise DataError(f"no table has the split column {self.split!r}; check the name")
        split = parts if parts is None or isinstance(parts, np.ndarray) else np.asarray(parts).astype(str)
        samples = Samples(views, Y, label_names, names, ids, split, real, {}, self.notes, classes, sources=self.sources)
        return samples if self.texts or set(views) != set(self.schemas) else self._with_cells(samples)

    def _check_aligned(self, keyed: Sequence[str]) -> None:
        """Raise DataError if tables that are joined by position have files with different row counts."""
        known = {name: own for name, own in self.shards.items() if len(own) > 1 and name not in keyed}
        for name, own in known.items():
            first = next(other for other in known.values() if len(other) == len(own))
            for (shard, n), (other, m) in zip(own, first):
                if n != m:
                    raise DataError(
                        f"{name}: {shard} has {n} rows, but {other} has {m}; shards joined by position need the same "
                        "samples (use --id to join tables by id)"
                    )

    def _placed(self, source: Rows, index: np.ndarray | None) -> Any:
        """Select rows of a column of vectors by index. The index -1 results in a row of NaN."""
        if index is not None and not np.array_equal(index, np.arange(source.shape[0])):
            if (index < 0).any():
                shape = (len(index), source.shape[1])
                check_memory("columns of vectors with missing samples", math.prod(shape) * source.dtype.itemsize)
                found = np.full(shape, np.nan, np.result_type(source.dtype, np.float32))
                found[index >= 0] = rows(Subset(source, index[index >= 0]))
                return found
            source = Subset(source, index)
        if self.in_memory:
            check_memory("columns of Parquet", math.prod(source.shape) * np.dtype(source.dtype).itemsize)
        return rows(source) if self.in_memory else source

    def _with_cells(self, samples: Samples) -> Samples:
        """Remove samples for which all values of all views are missing."""
        bare = np.ones(samples.n, bool)
        for X in samples.views.values():
            ordered = InOrder(X)
            for where in row_blocks(samples.n, _BLOCK):
                if bare[where].any():
                    bare[where] &= np.isnan(ordered[where]).all(axis=1)
        if not np.any(bare) or np.all(bare):
            return samples
        views = {view: X if isinstance(X, np.ndarray) else rows(X) for view, X in samples.views.items()}
        samples = replace(samples, views=views, sources={})
        names = [str(i) if samples.ids is None else samples.ids[i] for i in np.flatnonzero(bare)]
        self.notes.append(f"{len(names)} samples without any feature values are left out ({_some(names)})")
        return samples.rows(np.flatnonzero(~bare))

    def _of_training(self, samples: Samples) -> Samples:
        """Remove categories that do not occur in the split "train", if there is such a split."""
        if samples.split is None or "train" not in samples.split:
            return samples
        views, names = dict(samples.views), dict(samples.feature_names)
        for view, schema in self.schemas.items():
            self.schemas[view], views[view] = schema.seen(views[view], samples.split == "train", view, self.notes)
            names[view] = self.schemas[view].features
        return replace(samples, views=views, feature_names=names)

    def _schema(self, samples: Samples) -> dict[str, Any]:
        """Describe the types of all columns in a JSON dictionary, which stores and models contain."""
        named = self.id or ("row names" if samples.ids is not None else None)
        others = [] if named is None else [(named, "identifier", "names of the samples")]
        others += [] if self.split is None else [(self.split, "category", "split")]
        others += [(name, "text", f"{samples.views[name].shape[1]} words") for name in self.texts]
        labels, shown = self.labels, ", ".join((samples.label_names or [])[:6])
        if samples.labels is not None:
            shown += ", ..." if samples.labels.shape[1] > 6 else ""
            kind = "number" if samples.real else "category" if samples.classes else "labels"
            said = "real target" if samples.real else "class" if samples.classes else "label"
            columns = [str(name) for name in getattr(labels, "columns", ["labels"])]
            count = samples.labels.shape[1]
            many = "" if count == 1 else "es" if said == "class" else "s"
            title = ", ".join(columns[:6]) + (", ..." if len(columns) > 6 else "")
            others.append((title, kind, f"{count} {said}{many}" + (f": {shown}" if shown and shown != title else "")))
        views = {view: schema.to_dict() for view, schema in self.schemas.items()}
        return {"views": views, "others": [list(row) for row in others]}

    def _without_endings(self, tables: dict[str, Any]) -> dict[str, Any]:
        """Remove the extension .txt from ids if a folder contains a document with the remaining name."""
        known = {one for view in self.folders for one in tables[view].index}

        def bare(one: str) -> str:
            stem = str(one).removesuffix(".txt")
            return stem if one not in known and stem in known else one

        return {name: table.rename(index=bare) if known else table for name, table in tables.items()}

    def with_texts(self, samples: Samples) -> Samples:
        """Add a view of tf-idf features for each text column, with the vocabulary of the training samples."""
        import pandas as pd

        views, names, known = dict(samples.views), dict(samples.feature_names), {}
        for column, given in self.texts.items():
            texts = ["" if pd.isna(text) else str(text) for text in given]
            old = texts if samples.split is None else [t for t, part in zip(texts, samples.split) if part == "train"]
            vocabulary = known[column] = TextVocabulary.learn(old)
            views[column], names[column] = vocabulary.rows(texts), list(vocabulary.words)
        return replace(samples, views=views, feature_names=names, vocabularies=known)

    def _tell_unknown(self, Y: Any, names: Sequence[str] | None, ids: Sequence[str] | None) -> None:
        """Add a note about missing labels."""
        if Y.dtype.kind == "f" and (gaps := np.isnan(stored_values(Y))).any():
            i, j, _ = first_entry(Y, gaps)
            row = f"row {i}" if ids is None else repr(ids[i])
            column = f"column {j}" if names is None else f"column {names[j]!r}"
            self.notes.append(
                f"labels: {gaps.sum()} cells are missing (first: {row}, {column}) and treated as unknown labels"
            )

    def _joined(self, ids: Mapping[str, pd.Index]) -> pd.Index:
        """Return the ids of all samples in the order of the first table."""
        if not ids:
            raise DataError(f"no table has the id column {self.id!r}; check the name, or leave it out")
        first, order = next(iter(ids.items()))
        if self.how == "outer":
            for name, own in ids.items():
                order = order if name == "labels" else order.append(own).unique()
            bare = ids.get("labels", order[:0]).difference(order, sort=False)
            if len(bare):
                self.notes.append(f"labels: {_some(bare)} have labels but no features and are left out")
            return order
        if self.how == "inner":
            for own in ids.values():
                order = order[order.isin(own)]
            if order.empty:
                raise DataError(f"the tables {', '.join(ids)} have no ids in common; expected the same sample ids")
            return order
        for name, own in ids.items():
            if own.equals(order):
                continue
            for lacks, has, by in ((name, order.difference(own), first), (first, own.difference(order), name)):
                if len(has):
                    raise DataError(
                        f"{lacks!r} has no rows for {_some(has)} of {by!r}; add the rows, or pass --how inner "
                        "(how='inner') to leave such samples out, or --how outer (how='outer') to keep them"
                    )
        return order

    def _upright(self, views: dict[str, Any], Y: Block | None, n: int, names: dict[str, list[str]]) -> Block | None:
        """Transpose tables whose columns are the samples, as inferred from the row counts of the other tables."""
        shapes = ({} if Y is None else {LABELS: Y.shape}) | {view: X.shape for view, X in views.items()}
        turnable = [name for name in shapes if self.whole or name in self.turnable]
        target = n or shared_rows(shapes, turnable) or next(iter(shapes.values()))[0]
        turned = all(shape[0] != target for shape in shapes.values())
        if self.whole and turned and Y is not None and Y.shape[0] >= target:
            target = Y.shape[0]  # Transposed labels would outnumber the samples.
        if Y is not None and Y.shape[0] != target == Y.shape[1] and LABELS in turnable:
            self.notes.append(f"labels have {target} columns, which is the number of samples, so they are transposed")
            Y = packed(scipy.sparse.csr_array(Y.T))
        for view, X in views.items():
            if X.shape[0] != target and X.shape[1] == target and view in turnable:
                self.notes.append(
                    f"view {view!r} has {target} columns, which is the number of samples, so it is transposed"
                )
                views[view] = transposed(rows(X))
                names.pop(view, None)
            elif X.shape[0] != target:
                other = "labels" if Y is not None else next(iter(views))
                raise UserError(
                    f"view {view!r} has {X.shape[0]} rows, but {other!r} has {target}; pass the same samples in each"
                )
        if Y is not None and Y.shape[0] != target:
            raise UserError(f"labels have {Y.shape[0]} rows, expected {target}; pass one row per sample")
        return Y


def _are_equal(left: Block, right: Block) -> bool:
    return left.shape == right.shape and not nonzero_count(left != alike(right, left))


def _is_streamed(path: str | os.PathLike[str]) -> bool:
    if suffix(path) not in (".csv", ".tsv") or not os.path.isfile(path) or os.path.getsize(path) <= _LARGE:
        return False
    try:
        # A first column without a name is the index of a DataFrame. The reader by blocks does not support an index
        # column.
        return "" not in (open_csv(path).names or ())[:1]
    except DataError:
        return False


def _exact_texts(column: pd.Series) -> list[str | None]:
    cells = text_cells(column)
    if cells is None:
        return [None if lost else exact(value) for value, lost in zip(column, column.isna())]
    return [text if text and text.strip() else None for text in cells.to_pylist()]


def documents(folder: Path) -> pd.DataFrame:
    """Read the text files in a folder as a table of relative paths and texts."""
    import pandas as pd

    files = sorted(path for path in folder.rglob("*.txt") if path.is_file())
    if not files:
        raise DataError(f"{folder}: has no .txt files, expected a folder of documents")
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in files]
    found = pd.DataFrame({"document": [str(path.relative_to(folder).with_suffix("")) for path in files], "text": texts})
    found.attrs["text"] = True
    return found


def _some(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
    return ", ".join(map(repr, ids[:3])) + more
