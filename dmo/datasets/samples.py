"""Samples with views, column names, labels, ids and a split, in memory or as row sources; write them as feature stores.

Documents become tf-idf rows by means of scikit-learn. The vocabulary is learned here because this needs memory only for
one number per word, while `TfidfVectorizer.fit` keeps the word counts of all documents until the end.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, Literal
from uuid import uuid4

import numpy as np
import scipy.sparse

from dmo.blocks import SINGLE, ByRows, InOrder, Rows, dense, reads_sparse, row_blocks, rows, stored_values, zeroed_rows
from dmo.errors import UserError, amount
from dmo.formats.files import Block, DataError, Stacked, row_of_shard
from dmo.formats.labels import class_vector
from dmo.formats.sources import Source
from dmo.formats.tables import open_source
from dmo.progress import stage
from dmo.stores import FeatureStore, FeatureWriter, Provenance, ViewSpec, create_features, open_features
from dmo.stores.features import SourceStore

_NARROW, _LARGEST = 4096, 1 << 22  # Rows per block if a block of each view has at most `_LARGEST` bytes.
_BLOCK = 4096
_SLAB = 1 << 28
"""Maximum size in bytes of chunks or row groups whose rows are read in place."""
log = logging.getLogger("dmo")
Stemmer = Literal["porter"]


def _tfidf(**given: Any) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer  # Stores without text do not need scikit-learn.

    return TfidfVectorizer(**given)


@cache
def analyzer(stemmer: Stemmer | None = None) -> Callable[[str], list[str]]:
    """Return a function that splits text into lower-case words of at least two ASCII letters, in order.

    English stop words are removed. With `stemmer`, the function returns the stems of the words.
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
    """Words that become columns, and their inverse document frequencies.

    idf (d,)
    """

    words: list[str]  # The d words, sorted.
    idf: np.ndarray
    stemmer: Stemmer | None = None  # Stemmer applied before words are counted; None keeps the words.

    @classmethod
    def learn(cls, texts: Iterable[str], min_documents: int = 1, stemmer: Stemmer | None = None) -> TextVocabulary:
        """Learn the words that occur in at least `min_documents` documents in one pass, with only words in memory."""
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
        """Compute the tf-idf rows of documents; words outside the vocabulary are ignored.

        -> (m, d)
        """
        texts = list(texts)
        if not texts:  # scikit-learn rejects an empty list of documents.
            return scipy.sparse.csr_array((0, len(self.words)), dtype=np.float32)
        return scipy.sparse.csr_array(self._fitted.transform(texts), dtype=np.float32)


@dataclass(frozen=True, eq=False)
class Samples:
    """Views, labels and names of a set of samples, for estimators and feature stores.

    Parameters
    ----------
    views : dict of str to ndarray, csr_array or row source of shape (n, d)
        Rows by view. Missing values are NaN; a row of NaN is a sample that is missing in the view.
    labels : ndarray or csr_array of shape (n, L), or None, default=None
        Labels 0 and 1, or regression targets if `real`. Unknown labels are NaN. The readers of files return CSR if it
        needs less memory.
    label_names : list of str or None, default=None
        Names of the L labels.
    feature_names : dict of str to list of str, default={}
        Names of the d columns, by view.
    ids : list of str or None, default=None
        Ids of the n samples.
    split : ndarray of shape (n,), str, or None, default=None
        Split of each sample, such as "train" or "test".
    real : bool, default=False
        Whether the labels are regression targets.
    vocabularies : dict of str to TextVocabulary, default={}
        Words and their weights, for views computed from documents.
    notes : list of str, default=[]
        Messages about how the data were interpreted, in sentences.
    classes : bool, default=False
        Whether the labels are classes, one per sample.
    attributes : dict of str to object, default={}
        JSON values to save in the feature store.
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
        """Target for estimators: the class names (n,) if each sample has a known class, otherwise `labels`."""
        whole = self.classes and self.labels is not None and not np.isnan(self.labels.sum())
        return class_vector(self.labels, self.label_names) if whole else self.labels

    @property
    def n(self) -> int:
        """Number of samples."""
        return int(next(iter(self.views.values())).shape[0])

    @property
    def train(self) -> Samples:
        """Samples of the split "train", or all samples if there is no split."""
        return self if self.split is None else self.select("train")

    @property
    def test(self) -> Samples:
        """Samples of the split "test"."""
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
            Samples of the split.

        Raises
        ------
        UserError
            If no sample has this split.
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
            Row indices.

        Returns
        -------
        Samples
            Selected samples, in the order of `index`.
        """
        return replace(
            self,
            views={name: X[index] for name, X in self.views.items()},
            labels=None if self.labels is None else self.labels[index],
            ids=None if self.ids is None else [self.ids[i] for i in index],
            split=None if self.split is None else self.split[index],
        )

    def missing(self) -> dict[str, dict[str, int]]:
        """Count missing values.

        Returns
        -------
        dict of str to dict of str to int
            For each view, the number of missing values of each column with missing values. Samples for which all values
            of the view are missing are not counted.
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
        present: Mapping[str, np.ndarray] | None = None,
        complete: Collection[str] = (),
        totals: Mapping[str, float] | None = None,
    ) -> FeatureStore:
        """Write the samples as a feature store, block by block; skip blocks written by an earlier run.

        If the data are rejected, the new store is removed. Blocks of an earlier run are kept as an unfinished store,
        which readers do not open.

        Parameters
        ----------
        store : path-like
            Path or URL of the new store.
        histograms : collection of str, default=()
            Names of the views that are histograms (counts).
        dtypes : mapping of str to str, default=None
            Data type to store, by view. Other views keep their type.
        block : int, default=None
            Rows per block. By default 1024, or 4096 if a block of that size has at most 4 MiB in every view.
        overwrite : bool, default=False
            Whether to replace an existing store.
        provenance : Provenance, default=None
            Origin of the samples.
        present : mapping of str to ndarray of bool of shape (n,), default=None
            Mask of the samples that are present in a view, by view. Rows of NaN are missing in addition.
        complete : collection of str, default=()
            Names of views that are known to be complete. They are not searched for missing values.
        totals : mapping of str to float, default=None
            Expected sum of all values, by view. None skips the check.

        Returns
        -------
        FeatureStore
            New store, opened for reading.

        Raises
        ------
        DataError
            If all values of a view are missing, values are infinite, or the sum of a view differs from its total.
        StoreError
            If `store` cannot be written.
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
        _write_views(writer, self.views, specs, has, totals)
        writer.finish()
        return open_features(store)

    def _described(
        self,
        histograms: Collection[str] = (),
        dtypes: Mapping[str, str] | None = None,
        present: Mapping[str, np.ndarray] | None = None,
        complete: Collection[str] = (),
    ) -> tuple[dict[str, Any], dict[str, ViewSpec], dict[str, np.ndarray]]:
        """Find missing values; return attributes and view specifications of a store, and masks of present samples."""
        attributes, has, gaps = dict(self.attributes), dict(present or {}), dict[str, dict[str, int]]()
        for view, X in self.views.items():
            found = None if view in complete else gaps_of(view, X)
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
        """Return the reason why the views cannot be read in place.

        Returns
        -------
        str or None
            The reason, or None if all views are dense numeric arrays in files whose rows can be read in any order.
        """
        if self.split is not None:
            return "its split has to be stored"
        for view, X in self.views.items():
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
            Store with views in files, and labels and names in memory.

        Raises
        ------
        DataError
            If all values of a view are missing or a view has infinite values.
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
    """View that is read from its files, with zeros for missing samples; each worker opens the files itself."""

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
        """Digest of the names, sizes and modification times of the files."""
        return self.files.digest()

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and columns."""
        return self.source.shape[0], self.source.shape[1]

    @property
    def dtype(self) -> np.dtype:
        """Type of the values, in the byte order of the machine."""
        return np.dtype(self.source.dtype).newbyteorder("=")

    @property
    def ndim(self) -> int:
        """Always 2."""
        return 2

    def __getitem__(self, where: slice) -> Block:
        source = self.source if self.present is None else ZeroedRows(self.source, self.present)
        return rows(source, where).astype(self.dtype, copy=False)


@dataclass(frozen=True, eq=False)
class ZeroedRows:
    """Row source (n x d) that returns zeros for rows where the mask `present` (n) is False."""

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
    writer: FeatureWriter,
    views: Mapping[str, Rows],
    specs: Mapping[str, ViewSpec],
    present: Mapping[str, np.ndarray],
    totals: Mapping[str, float] | None,
) -> None:
    """Write the missing blocks of all views; if data are rejected, remove a store that this call started."""
    missing = set(writer.missing())
    fresh = len(missing) == len(views) * writer.n_blocks
    try:
        for view, X in views.items():
            given = ZeroedRows(X, present[view]) if view in present else X
            total = _write_view(writer, view, given, np.dtype(specs[view].dtype), missing, totals is not None)
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
    """Write the missing blocks of a view and return the sum of all values that were read.

    With `whole`, all blocks are read for the sum, also those that exist in the store.
    """
    total, blocks, ordered = 0.0, row_blocks(writer.n_samples, writer.block), InOrder(X)
    with stage(f"write {view}", len(blocks)) as advance:
        for i, where in enumerate(blocks):
            if whole or (view, i) in missing:
                values = ordered[where]
                total += float(values.sum(dtype=np.float64))
                if (view, i) in missing:
                    title = f"view {view!r}, rows {where.start} to {where.stop - 1}"
                    writer.write(view, i, _whole_numbers(values, dtype, title))
            advance(1)
    return total


def _whole_numbers(values: Block, dtype: np.dtype, where: str) -> Block:
    """Convert floats to an integer `dtype`; raise DataError if a value is not an integer of that type."""
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
    """Missing values of a view.

    cells (d,); present (n,)
    """

    cells: np.ndarray  # (d,): Number of present samples whose value is missing, by column.
    present: np.ndarray  # (n,): Mask of the samples with at least one value in the view.

    def by_name(self, names: Sequence[str] | None) -> dict[str, int]:
        """Return the number of missing values of each column that has some, by column name."""
        where = np.flatnonzero(self.cells).tolist()
        return {str(j) if names is None else names[j]: int(self.cells[j]) for j in where}


def gaps_of(view: str, source: Rows) -> Gaps | None:
    """Find the missing values (NaN) of a view; return None if it has none, and raise DataError if a value is infinite.

    source (n, d)
    """
    n, d = source.shape
    if np.dtype(source.dtype).kind != "f":
        return None
    cells, present, blocks = np.zeros(d, np.intp), np.ones(n, bool), row_blocks(n, _BLOCK)
    ordered = InOrder(source)
    shards, counted = getattr(source, "shards", []), dict[str, int]()
    with stage(f"find missing values in {view}", len(blocks)) as advance:
        for where in blocks:
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
                present[where], cells = has, cells + gap[has].sum(axis=0)
                for row in np.flatnonzero(gap.any(axis=1)).tolist() if shards else ():
                    shard = str(row_of_shard(shards, where.start + row)).rpartition(", row ")[0]
                    counted[shard] = counted.get(shard, 0) + 1
            advance(1)
    for shard, count in counted.items():
        log.warning("view %r: %s has NaN in %d rows, which are treated as missing values", view, shard, count)
    if not present.any():
        raise DataError(f"view {view!r}: all values are missing, expected numbers; leave the view out")
    return None if present.all() and not cells.any() else Gaps(cells, present)


def _is_finite(block: Block) -> bool:
    """Return whether the sum of all values is finite; the result is also False if the sum overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(stored_values(block).sum()))


def _missing(block: np.ndarray | scipy.sparse.csr_array) -> np.ndarray | None:
    """Return the mask of NaN in a block, or None if it has no NaN."""
    return None if _is_finite(block) or not np.isnan(stored_values(block)).any() else np.isnan(dense(block))
