"""Samples: views with named columns, labels, ids and a split; in memory or as row sources, and their way into a store.

Documents become rows of word weights by scikit-learn, which finds the words, counts and weighs them. The pass that learns the
vocabulary stands here because it keeps one number per word, where `TfidfVectorizer.fit` keeps the counts of every document
until it has seen the last one.
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

from dmo.blocks import SINGLE, ByRows, InOrder, Rows, dense, row_blocks, rows
from dmo.errors import UserError, amount
from dmo.formats.files import Block, DataError, Stacked, row_of_shard
from dmo.formats.labels import class_vector
from dmo.formats.sources import Source
from dmo.formats.tables import open_source
from dmo.progress import stage
from dmo.stores import FeatureStore, FeatureWriter, Provenance, ViewSpec, create_features, open_features
from dmo.stores.features import SourceStore

_NARROW, _LARGEST = 4096, 1 << 22  # rows of a block, where those of each view take no more than these bytes
_BLOCK = 4096
_SLAB = 1 << 28
"""Bytes of a chunk or row group up to which rows are read in place."""
log = logging.getLogger("dmo")
Stemmer = Literal["porter"]


def _tfidf(**given: Any) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer  # here: stores without text need no scikit-learn

    return TfidfVectorizer(**given)


@cache
def analyzer(stemmer: Stemmer | None = None) -> Callable[[str], list[str]]:
    """What finds the lower-case words of two ASCII letters or more, in order, without English stop words, or their stems."""
    words: Callable[[str], list[str]] = _tfidf(stop_words="english", token_pattern=r"[a-z][a-z]+").build_analyzer()
    if stemmer is None:
        return words
    try:
        import snowballstemmer
    except ImportError:
        raise ImportError(
            "stems need snowballstemmer, which is not installed; run: pip install dmo-learn[text]"
        ) from None
    stems = snowballstemmer.stemmer(stemmer).stemWords
    return lambda text: stems(words(text))


@dataclass(frozen=True)
class TextVocabulary:
    """The words that become columns, and their weights.

    idf (d,)
    """

    words: list[str]  # the d words, sorted
    idf: np.ndarray
    stemmer: Stemmer | None = None  # what words are cut to their stems by before they count; None: they stay

    @classmethod
    def learn(cls, texts: Iterable[str], min_documents: int = 1, stemmer: Stemmer | None = None) -> TextVocabulary:
        """Take the words that occur in enough documents; one pass, in the memory of the vocabulary alone."""
        frequency: Counter[str] = Counter()
        n, analyze = 0, analyzer(stemmer)
        for text in texts:
            frequency.update(set(analyze(text)))
            n += 1
        words = sorted(word for word, count in frequency.items() if count >= min_documents)
        if not words:
            raise DataError(f"{n} documents have no word in {min_documents} or more of them; lower min_documents")
        counts = np.array([frequency[word] for word in words], dtype=np.float64)
        return cls(words, np.log((1 + n) / (1 + counts)) + 1, stemmer)

    @cached_property
    def _fitted(self) -> Any:
        vectorizer = _tfidf(analyzer=analyzer(self.stemmer), sublinear_tf=True, vocabulary=self.words)
        vectorizer.idf_ = self.idf
        return vectorizer

    def rows(self, texts: Iterable[str]) -> scipy.sparse.csr_array:
        """Weigh the words of some documents; words outside the vocabulary are left out.

        -> (m, d)
        """
        texts = list(texts)
        if not texts:  # scikit-learn refuses to transform no document
            return scipy.sparse.csr_array((0, len(self.words)), dtype=np.float32)
        return scipy.sparse.csr_array(self._fitted.transform(texts), dtype=np.float32)


@dataclass(frozen=True, eq=False)
class Samples:
    """Views, labels and names of the same samples, as estimators take them and a feature store keeps them.

    Parameters
    ----------
    views : dict of str to ndarray, csr_array or row source of shape (n, d)
        Rows by view, NaN where a cell is missing; a row of NaN is a sample that the view lacks.
    labels : ndarray or csr_array of shape (n, L), or None, default=None
        0 and 1, or with `real` targets; NaN where one is not known. The readers of files return CSR if that is smaller.
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
    vocabularies : dict of str to TextVocabulary, default={}
        Words and weights of the views that were made from documents.
    notes : list of str, default=[]
        What was noticed while reading, in sentences.
    classes : bool, default=False
        Labels are classes: every sample has one.
    attributes : dict of str to object, default={}
        JSON values that a feature store keeps with them.
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
        """What an estimator learns: the names of the classes (n) where every sample has one, else `labels`."""
        whole = self.classes and self.labels is not None and not np.isnan(self.labels.sum())
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
        present: Mapping[str, np.ndarray] | None = None,
        complete: Collection[str] = (),
        totals: Mapping[str, float] | None = None,
    ) -> FeatureStore:
        """Write the samples block by block as a feature store, skipping the blocks that an earlier run wrote.

        Data that are refused leave no store behind, unless an earlier run had written some of its blocks: then those stay,
        unfinished, and no reader opens them.

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
        present : mapping of str to ndarray of bool of shape (n,), default=None
            View -> the samples that it has, as far as that is known beside rows of NaN.
        complete : collection of str, default=()
            The views that lack nothing and are not searched for gaps.
        totals : mapping of str to float, default=None
            View -> what its numbers must add up to; None: anything.

        Returns
        -------
        FeatureStore
            The finished store, opened.

        Raises
        ------
        DataError
            For a view without any cell, and for one that does not add up to its total.
        StoreError
            Where `store` cannot be written.
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
        """Look for gaps; return the attributes of a store, its views, and which samples a view has."""
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
                kind="sparse" if scipy.sparse.issparse(rows(X, slice(0, 0))) else "dense",
                histogram=view in histograms,
                missing=view in gaps,
            )
            for view, X in self.views.items()
        }
        return attributes, specs, has

    def copy_reason(self) -> str | None:
        """Say why the views cannot be read in place.

        Returns
        -------
        str or None
            The reason; None if all views are dense numeric arrays in files whose rows can be read in any order.
        """
        if self.split is not None:
            return "its split has to be stored"
        for view, X in self.views.items():
            if view not in self.sources:
                return f"view {view!r} is not an array in files of its own"
            for part in X.parts if isinstance(X, Stacked) else [X]:
                by_rows = isinstance(part, np.memmap) and part.flags.c_contiguous
                largest = 0 if by_rows else getattr(part, "largest", None)
                if largest is None:
                    return f"view {view!r} is in files that are not read by rows"
                if largest > _SLAB:
                    return f"view {view!r} is in chunks of rows of {amount(largest)}, more than {amount(_SLAB)}"
        return None

    def in_place(self, url: str, provenance: Provenance | None = None) -> FeatureStore:
        """Open the samples as a feature store whose views are read where they are.

        Parameters
        ----------
        url : str
            Name of the store in messages and provenance.
        provenance : Provenance, default=None
            Where the samples come from.

        Returns
        -------
        FeatureStore
            The views, with labels and names in memory.

        Raises
        ------
        DataError
            For a view without any cell, and for one with infinite values.
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
    """A view that is read where it is, with zeros for the samples that it lacks; workers open its files themselves."""

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
        """Digest of the names, sizes and times of the files."""
        return self.files.digest()

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.source.shape[0], self.source.shape[1]

    @property
    def dtype(self) -> np.dtype:
        """Type of the values, in this machine's byte order."""
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
    """A row source (n x d) with zeros in the place of the rows that it lacks: those that are not `present` (n)."""

    source: Rows
    present: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        return self.source.shape[0], self.source.shape[1]

    @property
    def dtype(self) -> Any:
        return self.source.dtype

    def __getitem__(self, where: slice) -> Block:
        block = rows(self.source, where)
        if scipy.sparse.issparse(block):
            return scipy.sparse.csr_array(scipy.sparse.diags_array(self.present[where].astype(block.dtype)) @ block)
        return np.where(self.present[where, None], block, block.dtype.type(0))


def _write_views(
    writer: FeatureWriter,
    views: Mapping[str, Rows],
    specs: Mapping[str, ViewSpec],
    present: Mapping[str, np.ndarray],
    totals: Mapping[str, float] | None,
) -> None:
    """Write the missing blocks of all views; those of a store that is begun here go where data are refused."""
    missing = set(writer.missing())
    fresh = len(missing) == len(views) * writer.n_blocks
    try:
        for view, X in views.items():
            given = ZeroedRows(X, present[view]) if view in present else X
            total = _write_view(writer, view, given, np.dtype(specs[view].dtype), missing, totals is not None)
            if totals is not None and not np.isclose(total, totals[view], rtol=1e-6, atol=1e-4):
                raise DataError(
                    f"view {view!r} adds up to {total:.10g}, the card says {totals[view]:.10g}; "
                    "the files are damaged or of another release"
                )
    except (ValueError, TypeError):
        if fresh:
            writer.blocks.discard()
        raise


def _write_view(
    writer: FeatureWriter, view: str, X: Rows, dtype: np.dtype, missing: set[tuple[str, int]], whole: bool
) -> float:
    """Write the missing blocks of one view; returns the sum of what was read (`whole`: of every block)."""
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
    """Floats that are to be stored as integers, as these; DataError where one is no such integer. Others unchanged."""
    if dtype.kind not in "iu" or values.dtype.kind != "f":
        return values
    with np.errstate(invalid="ignore"):
        changed = values.astype(dtype)
    if (changed != values).sum():
        raise DataError(
            f"{where} hold numbers that are no {dtype}, expected whole numbers in its range; choose another type"
        )
    return changed


@dataclass(frozen=True, eq=False)
class Gaps:
    """What a view lacks.

    cells (d,); present (n,)
    """

    cells: np.ndarray  # (d,): by column, the samples that lack its cell and have others
    present: np.ndarray  # (n,): the samples that have any cell: the view lacks the others

    def by_name(self, names: Sequence[str] | None) -> dict[str, int]:
        """Name the columns that have gaps."""
        where = np.flatnonzero(self.cells).tolist()
        return {str(j) if names is None else names[j]: int(self.cells[j]) for j in where}


def gaps_of(view: str, source: Rows) -> Gaps | None:
    """Look for NaN.

    source (n, d)
    """
    n, d = source.shape
    if np.dtype(source.dtype).kind != "f":
        return None
    cells, present, blocks = np.zeros(d, np.intp), np.ones(n, bool), row_blocks(n, _BLOCK)
    ordered = InOrder(source)
    shards, counted = getattr(source, "shards", []), dict[str, int]()
    with stage(f"look for gaps in {view}", len(blocks)) as advance:
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
        log.warning("view %r: %s holds NaN in %d rows, which count as missing", view, shard, count)
    if not present.any():
        raise DataError(f"view {view!r}: no sample has any cell, expected numbers; leave the view out")
    return None if present.all() and not cells.any() else Gaps(cells, present)


def _is_finite(block: Block) -> bool:
    """Whether all values are finite, unless their sum overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite((block.data if scipy.sparse.issparse(block) else block).sum()))


def _missing(block: np.ndarray | scipy.sparse.csr_array) -> np.ndarray | None:
    """Where a block is NaN; None where it is nowhere."""
    if _is_finite(block) or (scipy.sparse.issparse(block) and not np.isnan(block.data).any()):
        return None
    gap = np.isnan(dense(block))
    return gap if gap.any() else None
