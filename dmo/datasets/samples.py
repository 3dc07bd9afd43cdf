"""Samples in memory: views with named columns, labels, ids and a split, from the files and tables that people have."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy.sparse

from dmo.blocks import SINGLE, rows
from dmo.datasets.text import Vocabulary
from dmo.datasets.writing import Source, gaps_of, note_gaps, write
from dmo.errors import UserError
from dmo.formats.arff import read_label_list
from dmo.formats.files import DataError, check_memory, dense, suffix
from dmo.formats.frames import (
    FRAMES,
    as_frame,
    class_like,
    is_ragged,
    numeric_columns,
    question,
    read_frame,
    read_ragged,
    vectors,
)
from dmo.formats.labels import checked_numbers, class_vector, label_matrix, unknown_rows
from dmo.formats.tables import cell_views, open_table, questions, shared_rows
from dmo.labels.stratification import stratified_folds
from dmo.stores import FeatureStore, Provenance

if TYPE_CHECKING:
    import pandas as pd

Given = str | os.PathLike[str] | Any
"""A file, a folder of documents, a DataFrame, or an array."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Views, labels and names of the same samples, as estimators take them and a feature store keeps them.

    Parameters
    ----------
    views : dict of str to ndarray or csr_array of shape (n, d)
        Rows by view, NaN where a cell is missing; a row of NaN is a sample that the view lacks.
    labels : ndarray of shape (n, L) or None, default=None
        0 and 1, or with `real` targets; NaN where one is not known.
    label_names : list of str or None, default=None
        L names.
    feature_names : dict of str to list of str, default={}
        d names by view.
    ids : list of str or None, default=None
        n names.
    split : ndarray of shape (n,), str, or None, default=None
        The part of each sample.
    real : bool, default=False
        Labels are real targets.
    vocabularies : dict of str to Vocabulary, default={}
        Words and weights of the views that were made from documents.
    notes : list of str, default=[]
        What was noticed while reading, in sentences.
    classes : bool, default=False
        Labels are classes: every sample has one.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo import MultiViewRidge
    >>> from dmo.datasets import Samples
    >>> samples = Samples({"x": np.eye(4)}, np.eye(4, 2), split=np.array(["train", "train", "train", "test"]))
    >>> MultiViewRidge().fit(samples.train.views, samples.train.labels).predict(samples.test.views).shape
    (1, 2)
    """

    views: dict[str, Any]
    labels: np.ndarray | None = None
    label_names: list[str] | None = None
    feature_names: dict[str, list[str]] = field(default_factory=dict)
    ids: list[str] | None = None
    split: np.ndarray | None = None
    real: bool = False
    vocabularies: dict[str, Vocabulary] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    classes: bool = False

    @property
    def y(self) -> np.ndarray | None:
        """What an estimator learns: the names of the classes (n) where every sample has one, else `labels`."""
        whole = self.classes and self.labels is not None and not np.isnan(self.labels).any()
        return class_vector(self.labels, self.label_names) if whole else self.labels

    @property
    def n(self) -> int:
        """Number of samples."""
        return int(next(iter(self.views.values())).shape[0])

    @property
    def train(self) -> Samples:
        """The samples of the part "train"; all where there is no split."""
        return self if self.split is None else self.select("train")

    @property
    def test(self) -> Samples:
        """The samples of the part "test"."""
        return self.select("test")

    def select(self, part: str) -> Samples:
        """Take the samples of one part.

        Parameters
        ----------
        part : str
            A name in `split`.

        Returns
        -------
        Samples
            These samples.

        Raises
        ------
        UserError
            Where there is no such part.
        """
        known = [] if self.split is None else sorted(set(self.split.tolist()))
        if part not in known:
            raise UserError(
                f"no samples are of part {part!r}; there are {', '.join(known) or 'no parts: pass test_share'}"
            )
        index = np.flatnonzero(self.split == part)
        return self.rows(index)

    def rows(self, index: np.ndarray) -> Samples:
        """Take some samples.

        Parameters
        ----------
        index : ndarray of int of shape (m,)
            Their numbers.

        Returns
        -------
        Samples
            These samples, in that order.
        """
        return replace(
            self,
            views={name: X[index] for name, X in self.views.items()},
            labels=None if self.labels is None else self.labels[index],
            ids=None if self.ids is None else [self.ids[i] for i in index],
            split=None if self.split is None else self.split[index],
        )

    def missing(self) -> dict[str, dict[str, int]]:
        """Count missing cells.

        Returns
        -------
        dict of str to dict of str to int
            View -> column -> samples that lack the cell but have others of the view, for columns with such.
        """
        found = {view: gaps_of(view, X) for view, X in self.views.items()}
        return {
            view: gaps.by_name(self.feature_names.get(view))
            for view, gaps in found.items()
            if gaps is not None and gaps.cells.any()
        }

    def write(
        self,
        store: str | os.PathLike[str],
        *,
        histograms: Collection[str] = (),
        dtypes: Mapping[str, str] | None = None,
        block: int | None = None,
        overwrite: bool = False,
        provenance: Provenance | None = None,
    ) -> FeatureStore:
        """Write the samples as a feature store.

        Parameters
        ----------
        store : path-like
            Where to write: a path or URL.
        histograms : collection of str, default=()
            The views of counts.
        dtypes : mapping of str to str, default=None
            View -> type to store; others keep theirs.
        block : int, default=None
            Rows in a block; None: 1024, of rows of few numbers 4096.
        overwrite : bool, default=False
            Replace a store that is there.
        provenance : Provenance, default=None
            Where the samples come from.

        Returns
        -------
        FeatureStore
            The finished store, opened.

        Raises
        ------
        StoreError
            Where `store` cannot be written.
        """
        source = Source(dict(self.views), self.labels, self.label_names, self.ids)
        source.feature_names = {name: names for name, names in self.feature_names.items() if name in self.views}
        source.real_labels, source.class_labels = self.real, self.classes
        note_gaps(source)
        source.parts = None if self.split is None else self.split.tolist()
        source.histograms = set(histograms)
        source.dtypes = {view: np.dtype(dtype) for view, dtype in (dtypes or {}).items()}
        if self.vocabularies:
            source.attributes["idf"] = {view: known.idf.tolist() for view, known in self.vocabularies.items()}
        source.provenance = provenance or Provenance()
        return write(source, store, block=block, overwrite=overwrite)


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
    reader = _Reader(id, split, how, (text,) if isinstance(text, str) else tuple(text), separator)
    given = dict(features) if isinstance(features, Mapping) and not _is_split(features) else {SINGLE: features}
    given = cell_views(given)
    columns = _label_columns(labels)
    for view, table in given.items():
        reader.add(view, table, columns)
    reader.add_labels(labels, columns)
    if labels is None:
        reader.notes += questions(given)
    samples = reader.samples()
    if test_share is None:
        return reader.with_texts(samples)
    if samples.split is not None:
        raise UserError("the samples have a split already; leave test_share out")
    if not 0 < test_share < 1:
        raise UserError(f"test_share = {test_share!r}; needs a number between 0 and 1")
    n = next(iter({**samples.views, **reader.texts}.values())).shape[0]  # of documents alone there is no view yet
    return reader.with_texts(replace(samples, split=share_out(samples.labels, n, test_share, random_state)))


def share_out(labels: np.ndarray | None, n: int, test_share: float, random_state: int | None = 0) -> np.ndarray:
    """Deal samples out to "train" and "test", every label with its share.

    labels (n, L) -> (n,)
    """
    Y = np.ones((n, 1)) if labels is None else np.nan_to_num(labels)
    return np.array(["train", "test"])[stratified_folds(Y, (1 - test_share, test_share), random_state)]


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
    text: tuple[str, ...]
    separator: str | None
    notes: list[str] = field(default_factory=list)
    tables: dict[str, Any] = field(default_factory=dict)
    labels: Any = None
    named: tuple[np.ndarray, list[str] | None, bool, bool] | None = None
    parts: Any = None
    names: dict[str, list[str]] = field(default_factory=dict)
    texts: dict[str, Any] = field(default_factory=dict)
    documents: list[str] | None = None
    folders: list[str] = field(default_factory=list)

    def add(self, view: str, given: Any, columns: list[str] | int | None) -> None:
        """Read the table of a view."""
        import pandas as pd

        if _is_split(given):
            read = {part: _frame(file, self.notes) for part, file in given.items()}
            frames = [frame for frame in read.values() if frame is not None]
            if len(frames) < len(read):
                self._arrays(view, given, columns)
                return
            table = pd.concat(frames, ignore_index=True)
            self._parts(np.repeat(list(read), [len(frame) for frame in frames]), view)
        else:
            table = _frame(given, self.notes)
            if table is None:
                self._arrays(view, {"all": given}, columns)
                return
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

    def _arrays(self, view: str, files: Mapping[str, Any], columns: list[str] | int | None) -> None:
        """A view of files that hold arrays, or of an array."""
        if not isinstance(next(iter(files.values())), str | os.PathLike):
            self.tables[view] = next(iter(files.values()))
            return
        arff = all(suffix(path) == ".arff" for path in files.values())
        table = open_table(view, {k: str(v) for k, v in files.items()}, columns if arff else None, with_labels=True)
        if not scipy.sparse.issparse(rows(table.X, slice(0, 0))):
            check_memory(f"view {view!r}", math.prod(table.X.shape) * np.dtype(table.X.dtype).itemsize)
        self.tables[view] = rows(table.X)
        if table.feature_names is not None:
            self.names[view] = table.feature_names
        if table.Y is not None:
            found, real = checked_numbers(view, table.Y, table.label_names)
            self.named = (found, table.label_names, real, table.classes)
        if list(table.counts) != ["all"]:
            self._parts(np.repeat(list(table.counts), list(table.counts.values())), view)

    def _parts(self, parts: Any, view: str) -> None:
        if self.parts is not None and not np.array_equal(np.asarray(self.parts), np.asarray(parts)):
            raise UserError(f"{view!r} has other splits than the tables before it; pass the same in every one")
        self.parts = parts

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
        if labels is None or (columns is not None and (self.labels is not None or self.named is not None)):
            return
        if isinstance(columns, list | int):
            raise DataError(f"labels {columns!r}: no view has these columns")
        if isinstance(labels, str) and not os.path.exists(labels.partition("::")[0]):
            for view, table in self.tables.items():
                if hasattr(table, "columns") and labels in table.columns:
                    self.labels, self.tables[view] = table[[labels]], table.drop(columns=labels)
                    return
        if isinstance(labels, str | os.PathLike) and suffix(labels) in (".csv", ".tsv", ".txt") and is_ragged(labels):
            sets = read_ragged(labels)
            if self.id is None:
                self.labels = sets
            else:
                import pandas as pd

                if sets and sets[0][:1] == [self.id]:
                    sets = sets[1:]
                index = pd.Index([row[0] for row in sets], dtype=object)
                self.labels = pd.Series([row[1:] for row in sets], index=index, dtype=object)
            return
        table = _frame(labels, self.notes)
        if table is not None:
            self.labels = self._indexed("labels", table)
        elif isinstance(labels, str | os.PathLike):
            self.labels = dense(rows(open_table("labels", {"all": str(labels)}, of_labels=True).X))
        else:
            self.labels = labels

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
                labeled = keyed[
                    "labels"
                ].index  # most often the same, and looking all up takes as long as a fifth of reading
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
                listed, table = vectors(view, table)
                if labels is None and self.named is None and (found := class_like(table)) is not None:
                    self.notes.append(question(found))
                if table.shape[1] == 0 and len(listed) == 1:
                    views[view] = listed.popitem()[1]
                for column, array in listed.items():
                    views[column if column not in self.tables else f"{view}.{column}"] = array
                if table.shape[1]:
                    views[view], names[view] = numeric_columns(view, table, self.notes)
            else:
                views[view] = table if scipy.sparse.issparse(table) else np.asarray(table)
        lost = [name for name in self.text if name not in self.texts]
        if lost:
            raise DataError(f"no table has the column {lost[0]!r} of documents")
        Y, label_names, real, classes = self.named or (None, None, False, False)
        if labels is not None:
            given = labels
            if isinstance(labels, pd.Series):  # of lists
                given = [row if isinstance(row, list) else [] for row in labels]
            Y, label_names, kind = label_matrix("labels", given, self.separator)
            Y, real, classes = unknown_rows(Y, unlabeled), kind == "targets", kind == "classes"
            self._tell_unknown(Y, label_names, ids)
        n = len(next(iter(self.texts.values()))) if not views else 0
        Y = self._upright(views, Y, n)
        parts = self.parts
        if isinstance(parts, pd.Series) and self.id is not None:
            parts = parts.reindex(ids)
        elif self.split is not None and parts is None:
            raise DataError(f"no table has the column {self.split!r} of the split")
        split = None if parts is None else np.asarray(parts).astype(str)
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
            vocabulary = known[column] = Vocabulary.learn(old)
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

    def _upright(self, views: dict[str, Any], Y: np.ndarray | None, n: int) -> np.ndarray | None:
        """Turns what has its samples in columns, told by the number of rows of all others."""
        shapes = ({} if Y is None else {"labels": Y.shape}) | {view: X.shape for view, X in views.items()}
        target = n or shared_rows(shapes, list(shapes)) or next(iter(shapes.values()))[0]
        if Y is not None and Y.shape[0] >= target and all(shape[0] != target for shape in shapes.values()):
            target = Y.shape[0]  # all would have to be turned, and there would be more labels than samples
        if Y is not None and Y.shape[0] != target == Y.shape[1]:
            self.notes.append(f"labels have {target} columns, as many as there are samples, so they are transposed")
            Y = np.ascontiguousarray(Y.T)
        for view, X in views.items():
            if X.shape[0] != target and X.shape[1] == target:
                self.notes.append(
                    f"view {view!r} has {target} columns, as many as there are samples, so it is transposed"
                )
                views[view] = scipy.sparse.csr_array(X.T) if scipy.sparse.issparse(X) else np.ascontiguousarray(X.T)
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
        table = as_frame(given)
        return None if table is None else table.set_axis([str(name) for name in table.columns], axis=1)
    if os.path.isdir(given) and suffix(given) != ".zarr":
        return documents(Path(given))
    return read_frame(given, notes) if suffix(given) in FRAMES else None


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
