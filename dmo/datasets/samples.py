"""Samples with their views, labels, names and splits, and conversion of samples to feature stores.

Documents are converted to tf-idf features with scikit-learn. This module learns the vocabulary without
`TfidfVectorizer.fit`, which keeps the word counts of all documents in memory. Here, only one number per word is kept.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, Literal, TypeVar
from uuid import uuid4

import numpy as np
import scipy.sparse

from dmo.blocks import SINGLE, ByRows, InOrder, Rows, dense, reads_sparse, row_blocks, rows, stored_values, zeroed_rows
from dmo.cluster import connect, current_client
from dmo.cluster.workers import each, grouped, worker_threads
from dmo.errors import UserError, amount
from dmo.formats.files import Block, DataError, Stacked, row_of_shard
from dmo.formats.labels import class_vector
from dmo.formats.sources import Source
from dmo.formats.tables import open_source
from dmo.stores import FeatureStore, FeatureWriter, Provenance, ViewSpec, create_features, open_features
from dmo.stores.features import SourceStore

_NARROW, _LARGEST = 4096, 1 << 22  # Rows per block for narrow views, and maximum bytes of such a block.
_BLOCK = 4096
_SLAB = 1 << 28
"""Maximum size in bytes of the chunks or row groups of a file that is read in place instead of copied to a store."""
log = logging.getLogger("dmo")
T = TypeVar("T")
Stemmer = Literal["porter"]


def _tfidf(**given: Any) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer  # only documents need scikit-learn

    return TfidfVectorizer(**given)


@cache
def analyzer(stemmer: Stemmer | None = None) -> Callable[[str], list[str]]:
    """Return a function that splits text into lower-case words of at least two ASCII letters.

    The function removes English stop words, and it returns the stems of the words if a stemmer is given.
    """
    words: Callable[[str], list[str]] = _tfidf(stop_words="english", token_pattern=r"[a-z][a-z]+").build_analyzer()
    if stemmer is None:
        return words
    try:
        import snowballstemmer
    except ImportError:
        raise ImportError(
            "stemming needs snowballstemmer, which is not installed; run: pip install dmo-learn[text]"
        ) from None
    stems = snowballstemmer.stemmer(stemmer).stemWords
    return lambda text: stems(words(text))


@dataclass(frozen=True)
class TextVocabulary:
    """Vocabulary of a tf-idf representation: its sorted words and their inverse document frequencies."""

    words: list[str]
    idf: np.ndarray
    stemmer: Stemmer | None = None  # Stemmer that is applied to the words of a document, or None.

    @classmethod
    def learn(cls, texts: Iterable[str], min_documents: int = 1, stemmer: Stemmer | None = None) -> TextVocabulary:
        """Learn the words that occur in at least `min_documents` documents, in one pass over the documents."""
        frequency: Counter[str] = Counter()
        n, analyze = 0, analyzer(stemmer)
        for text in texts:
            frequency.update(set(analyze(text)))
            n += 1
        words = sorted(word for word, count in frequency.items() if count >= min_documents)
        if not words:
            raise DataError(f"no word occurs in at least {min_documents} of {n} documents; lower min_documents")
        counts = np.array([frequency[word] for word in words], dtype=np.float64)
        return cls(words, np.log((1 + n) / (1 + counts)) + 1, stemmer)

    @cached_property
    def _fitted(self) -> Any:
        vectorizer = _tfidf(analyzer=analyzer(self.stemmer), sublinear_tf=True, vocabulary=self.words)
        vectorizer.idf_ = self.idf
        return vectorizer

    def rows(self, texts: Iterable[str]) -> scipy.sparse.csr_array:
        """Compute the tf-idf features of m documents as a matrix of shape (m, d)."""
        texts = list(texts)
        if not texts:  # scikit-learn raises an error for an empty list of documents.
            return scipy.sparse.csr_array((0, len(self.words)), dtype=np.float32)
        return scipy.sparse.csr_array(self._fitted.transform(texts), dtype=np.float32)


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples with the features of one or more views, labels, names and splits.

    Parameters
    ----------
    views : dict of str to array-like of shape (n, d)
        Feature matrix of each view, which may also be sparse or read from files. Missing values are NaN. A row of NaN
        means that the sample is missing in the view.
    labels : ndarray or csr_array of shape (n, L), or None, default=None
        Label indicators of 0 and 1, or regression targets if `real` is True. Unknown labels are NaN.
    label_names : list of str or None, default=None
        Names of the L labels.
    feature_names : dict of str to list of str, default={}
        Names of the features of each view.
    ids : list of str or None, default=None
        Ids of the n samples.
    split : ndarray of shape (n,), str, or None, default=None
        Split of each sample, such as "train" or "test".
    real : bool, default=False
        Whether the labels are regression targets.
    vocabularies : dict of str to TextVocabulary, default={}
        Vocabularies of the views that contain tf-idf features of documents.
    notes : list of str, default=[]
        Messages about decisions that were made when the data were read.
    classes : bool, default=False
        Whether the labels are a multiclass target with one class per sample.
    attributes : dict of str to object, default={}
        JSON dictionary that is saved in a feature store of the samples.
    sources : dict of str to Source, default={}
        Files of the views that are not in memory.

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
    labels: Block | None = None
    label_names: list[str] | None = None
    feature_names: dict[str, list[str]] = field(default_factory=dict)
    ids: list[str] | None = None
    split: np.ndarray | None = None
    real: bool = False
    vocabularies: dict[str, TextVocabulary] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    classes: bool = False
    attributes: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)

    @property
    def y(self) -> Block | None:
        """Target for estimators: an array of n class names if the class of each sample is known, otherwise `labels`."""
        whole = self.classes and self.labels is not None and not np.isnan(self.labels.sum())
        return class_vector(self.labels, self.label_names) if whole else self.labels

    @property
    def n(self) -> int:
        """Number of samples."""
        return int(next(iter(self.views.values())).shape[0])

    @property
    def train(self) -> Samples:
        """Training samples: the samples in the split "train", or all samples if there are no splits."""
        return self if self.split is None else self.select("train")

    @property
    def test(self) -> Samples:
        """Test samples: the samples in the split "test"."""
        return self.select("test")

    def select(self, part: str) -> Samples:
        """Select the samples of a split.

        Parameters
        ----------
        part : str
            Name of the split, such as "train".

        Returns
        -------
        Samples
            Selected samples.

        Raises
        ------
        UserError
            If no sample is in this split.
        """
        known = [] if self.split is None else sorted(set(self.split.tolist()))
        if part not in known:
            raise UserError(
                f"no samples have the split {part!r}; splits: {', '.join(known) or 'none, pass test_share'}"
            )
        index = np.flatnonzero(self.split == part)
        return self.rows(index)

    def rows(self, index: np.ndarray) -> Samples:
        """Select samples by row index.

        Parameters
        ----------
        index : ndarray of int of shape (m,)
            Row indices of the selected samples.

        Returns
        -------
        Samples
            Selected samples in the order of `index`.
        """
        return replace(
            self,
            views={name: X[index] for name, X in self.views.items()},
            labels=None if self.labels is None else self.labels[index],
            ids=None if self.ids is None else [self.ids[i] for i in index],
            split=None if self.split is None else self.split[index],
        )

    def missing(self) -> dict[str, dict[str, int]]:
        """Count the missing values of each feature.

        Returns
        -------
        dict of str to dict of str to int
            Number of missing values by view and name of the feature, for features with missing values. A sample for
            which all values of a view are missing does not count.
        """
        found = {view: gaps_of(view, self._rows(view)) for view in self.views}
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
        present: Mapping[str, np.ndarray] | None = None,
        complete: Collection[str] = (),
        totals: Mapping[str, float] | None = None,
    ) -> FeatureStore:
        """Write the samples to a feature store, except for blocks that an earlier run has already written.

        If the data are invalid, a new store is removed, and a store of an earlier run remains unfinished.

        Parameters
        ----------
        store : path-like
            Path or URL of the store.
        histograms : collection of str, default=()
            Names of the views that are histograms (counts).
        dtypes : mapping of str to str, default=None
            Data types of some views in the store. By default, a view keeps its data type.
        block : int, default=None
            Number of rows per block. The default is 4096 if such a block needs at most 4 MiB in every view, otherwise
            1024.
        overwrite : bool, default=False
            Whether to replace an existing store.
        provenance : Provenance, default=None
            Origin of the samples.
        present : mapping of str to ndarray of bool of shape (n,), default=None
            Masks of the available samples of some views. A sample whose row contains only NaN is also missing.
        complete : collection of str, default=()
            Names of views that are known to have no missing values. These views are not searched for NaN.
        totals : mapping of str to float, default=None
            Expected sum of all values of each view, or None if the sums are not checked.

        Returns
        -------
        FeatureStore
            New store, opened for reading.

        Raises
        ------
        DataError
            If all values of a view are missing, if a value is infinite, or if the sum of a view is wrong.
        StoreError
            If the store cannot be written.
        """
        attributes, specs, has = self._described(histograms, dtypes or {}, present or {}, complete)
        narrow = all(_NARROW * spec.dimension * np.dtype(spec.dtype).itemsize <= _LARGEST for spec in specs.values())
        writer = create_features(
            store,
            self.n,
            specs,
            labels=self.labels,
            label_names=self.label_names,
            sample_ids=self.ids,
            split=None if self.split is None else self.split.tolist(),
            attributes=attributes,
            block=block or (_NARROW if narrow else 1024),
            overwrite=overwrite,
            provenance=provenance or Provenance(),
            feature_names={name: names for name, names in self.feature_names.items() if name in self.views},
            real_labels=self.real,
            class_labels=self.classes,
            present=has,
        )
        _write_views(writer, {view: self._rows(view, has.get(view)) for view in self.views}, specs, totals)
        writer.finish()
        return open_features(store)

    def _described(
        self,
        histograms: Collection[str] = (),
        dtypes: Mapping[str, str] | None = None,
        present: Mapping[str, np.ndarray] | None = None,
        complete: Collection[str] = (),
    ) -> tuple[dict[str, Any], dict[str, ViewSpec], dict[str, np.ndarray]]:
        """Return the attributes and the view descriptions of a store, and the masks of the available samples."""
        attributes, has, gaps = dict(self.attributes), dict(present or {}), dict[str, dict[str, int]]()
        for view in self.views:
            found = None if view in complete else gaps_of(view, self._rows(view))
            if found is not None and not found.present.all():
                has[view] = found.present & has.get(view, True)
            if found is not None and found.cells.any():
                gaps[view] = found.by_name(self.feature_names.get(view))
        if gaps:
            attributes["missing"] = {**attributes.get("missing", {}), **gaps}
        if self.vocabularies:
            attributes["idf"] = {view: known.idf.tolist() for view, known in self.vocabularies.items()}
        specs = {
            view: ViewSpec(
                X.shape[1],
                np.dtype((dtypes or {}).get(view, X.dtype)),
                kind="sparse" if reads_sparse(X) else "dense",
                histogram=view in histograms,
                missing=view in gaps,
            )
            for view, X in self.views.items()
        }
        return attributes, specs, has

    def copy_reason(self) -> str | None:
        """Return the reason why the samples have to be copied to a store.

        Returns
        -------
        str or None
            Reason as a clause, or None if every view can be read from its files, in any order of the rows.
        """
        if self.split is not None:
            return "its split has to be stored"
        return next(filter(None, map(self._single_pass, self.views)), None)

    def _single_pass(self, view: str) -> str | None:
        """Return the reason why workers cannot read any rows of a view from its files, or None if they can."""
        X = self.views[view]
        if view not in self.sources:
            return f"view {view!r} is not an array in separate files"
        for part in X.parts if isinstance(X, Stacked) else [X]:
            by_rows = isinstance(part, np.memmap) and part.flags.c_contiguous
            largest = 0 if by_rows else getattr(part, "largest", None)
            if largest is None:
                return f"view {view!r} is in files whose rows cannot be read in any order"
            if largest > _SLAB:
                return f"view {view!r} has chunks of {amount(largest)}, more than {amount(_SLAB)}"
        return None

    def _rows(self, view: str, present: np.ndarray | None = None) -> Rows:
        """Return the rows of a view, with zeros for missing samples; workers open its files if they can."""
        X = self.views[view]
        if self._single_pass(view) is None:
            return SourceView(X, self.sources[view], present=present)
        return X if present is None else ZeroedRows(X, present)

    def in_place(self, url: str, provenance: Provenance | None = None) -> FeatureStore:
        """Open the samples as a feature store whose views are read from their files.

        Parameters
        ----------
        url : str
            Name of the store in messages and provenance.
        provenance : Provenance, default=None
            Origin of the samples.

        Returns
        -------
        FeatureStore
            Store that reads views from their files, and keeps labels and names in memory.

        Raises
        ------
        DataError
            If all values of a view are missing, or if a view contains infinite values.
        """
        attributes, specs, has = self._described()
        views = {
            view: SourceView(X, self.sources[view], specs[view].missing, has.get(view)) if view in self.sources else X
            for view, X in self.views.items()
        }
        bare = replace(self, views={SINGLE: np.zeros((self.n, 1), np.uint8)}, feature_names={}, attributes=attributes)
        made = bare.write(f"memory://{uuid4().hex}/{SINGLE}", provenance=provenance)
        described = {view: spec.to_dict() for view, spec in specs.items()}
        root = {**made.root, "configuration": {**made.configuration, "views": described}}
        return SourceStore(made.folder, root, views, url, self.feature_names)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class SourceView(ByRows):
    """View that reads its rows from files, with zeros for missing samples. Each worker opens the files."""

    source: Rows
    files: Source
    missing: bool = False
    present: np.ndarray | None = None
    histogram: bool = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "source": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, source=open_source(state["files"]))

    @cached_property
    def contents(self) -> str:
        """Hash of the names, sizes and modification times of the files."""
        return self.files.digest()

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and columns."""
        return self.source.shape[0], self.source.shape[1]

    @property
    def dtype(self) -> np.dtype:
        """Data type of the view in native byte order."""
        return np.dtype(self.source.dtype).newbyteorder("=")

    @property
    def shards(self) -> list[tuple[str, int]]:
        """Names and row counts of the files, or no items if there is only one file."""
        return getattr(self.source, "shards", [])

    @property
    def ndim(self) -> int:
        """Number of dimensions of the view, which is 2."""
        return 2

    def __getitem__(self, where: slice) -> Block:
        source = self.source if self.present is None else ZeroedRows(self.source, self.present)
        return rows(source, where).astype(self.dtype, copy=False)


@dataclass(frozen=True, eq=False)
class ZeroedRows:
    """Array-like that replaces the rows of missing samples with zeros."""

    source: Rows
    present: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        return self.source.shape[0], self.source.shape[1]

    @property
    def dtype(self) -> Any:
        return self.source.dtype

    def __getitem__(self, where: slice) -> Block:
        return zeroed_rows(rows(self.source, where), self.present[where])


def _write_views(
    writer: FeatureWriter, views: Mapping[str, Rows], specs: Mapping[str, ViewSpec], totals: Mapping[str, float] | None
) -> None:
    """Write the missing blocks of all views. If the data are invalid, remove a store that this call created."""
    missing = set(writer.missing())
    fresh = len(missing) == len(views) * writer.n_blocks
    try:
        for view, X in views.items():
            total = _write_view(writer, view, X, np.dtype(specs[view].dtype), missing, totals is not None)
            if totals is not None and not np.isclose(total, totals[view], rtol=1e-6, atol=1e-4):
                raise DataError(
                    f"view {view!r} has the sum {total:.10g}, expected {totals[view]:.10g} as in the card; "
                    "the files are damaged or from another release"
                )
    except (ValueError, TypeError):
        if fresh:
            writer.blocks.discard()
        raise


def _write_view(
    writer: FeatureWriter, view: str, X: Rows, dtype: np.dtype, missing: set[tuple[str, int]], whole: bool
) -> float:
    """Write the missing blocks of a view, and return the sum of its values, of all blocks if `whole` is True."""
    ordered = InOrder(X)

    def work(blocks: list[int]) -> float:
        total = 0.0
        for i in blocks:
            where = writer.rows(i)
            values = ordered[where]
            total += float(values.sum(dtype=np.float64))
            if (view, i) in missing:
                title = f"view {view!r}, rows {where.start} to {where.stop - 1}"
                writer.write(view, i, _whole_numbers(values, dtype, title))
        return total

    return sum(
        _each_part(f"write {view}", X, work, [i for i in range(writer.n_blocks) if whole or (view, i) in missing])
    )


def _each_part(name: str, X: Rows, work: Callable[[list[int]], T], blocks: list[int]) -> list[T]:
    """Call `work` with lists of consecutive blocks, on the workers of the current cluster if they can open the files."""
    client = current_client() if isinstance(X, SourceView) else None
    # Every worker thread processes a few lists of blocks, because reading a row group twice is expensive.
    parts = grouped(blocks, len(blocks) if client is None else 4 * sum(worker_threads(client).values()))
    with connect("in-process") if client is None else nullcontext():
        return [found for _, found in each(name, lambda part: work(parts[part]), range(len(parts)))]


def _whole_numbers(values: Block, dtype: np.dtype, where: str) -> Block:
    """Convert floats to an integer dtype; raise DataError if the conversion changes a value."""
    if dtype.kind not in "iu" or values.dtype.kind != "f":
        return values
    with np.errstate(invalid="ignore"):
        changed = values.astype(dtype)
    if (changed != values).sum():
        raise DataError(
            f"{where} have values that are not {dtype}, expected integers in its range; choose another type"
        )
    return changed


@dataclass(frozen=True, eq=False)
class Gaps:
    """Missing values of a view."""

    cells: np.ndarray  # Number of missing values in each of the d columns, without the missing samples.
    present: np.ndarray  # Mask of the n samples that is False for missing samples, for which all values are missing.

    def by_name(self, names: Sequence[str] | None) -> dict[str, int]:
        where = np.flatnonzero(self.cells).tolist()
        return {str(j) if names is None else names[j]: int(self.cells[j]) for j in where}


def gaps_of(view: str, source: Rows) -> Gaps | None:
    """Find the missing values (NaN) of a view; return None if no values are missing."""
    n, d = source.shape
    if np.dtype(source.dtype).kind != "f":
        return None
    cells, present, blocks = np.zeros(d, np.intp), np.ones(n, bool), row_blocks(n, _BLOCK)
    ordered = InOrder(source)
    shards, counted = getattr(source, "shards", []), Counter[str]()

    def work(part: list[int]) -> list[tuple[slice, Any, Any, Any]]:
        found = []
        for where in (blocks[i] for i in part):
            block = ordered[where]
            gap = _missing(block)
            if not _is_finite(block) and (infinite := np.isinf(dense(block))).any():
                i, j = np.argwhere(infinite)[0].tolist()
                place = row_of_shard(shards, where.start + i) or f"row {where.start + i}"
                value = dense(block)[i, j]
                raise DataError(
                    f"view {view!r}, {place}, column {j} is {value}; replace or drop values that are not finite"
                )
            if gap is not None:
                has = ~gap.all(axis=1)
                gaps = np.flatnonzero(gap.any(axis=1)).tolist() if shards else ()
                names = (str(row_of_shard(shards, where.start + row)).rpartition(", row ")[0] for row in gaps)
                found.append((where, has, gap[has].sum(axis=0), Counter(names)))
        return found

    for part in _each_part(f"find missing values in {view}", source, work, list(range(len(blocks)))):
        for where, has, missing, incomplete in part:
            present[where], cells = has, cells + missing
            counted.update(incomplete)
    for shard, count in counted.items():
        log.warning("view %r: %s has NaN in %d rows, which are treated as missing values", view, shard, count)
    if not present.any():
        raise DataError(f"view {view!r}: all values are missing, expected numbers; leave the view out")
    return None if present.all() and not cells.any() else Gaps(cells, present)


def _is_finite(block: Block) -> bool:
    """Return whether the sum of all values is finite, which proves that all values are finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(stored_values(block).sum()))


def _missing(block: np.ndarray | scipy.sparse.csr_array) -> np.ndarray | None:
    """Return the mask of NaN in a block, or None if it has no NaN."""
    return None if _is_finite(block) or not np.isnan(stored_values(block)).any() else np.isnan(dense(block))
