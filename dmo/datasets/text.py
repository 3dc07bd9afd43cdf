"""Documents as rows of word weights: tokens, a vocabulary with document frequencies, tf-idf rows block by block."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

from dmo.formats.files import DataError, SequentialRows

_WORD = re.compile(r"[a-z][a-z]+")


def tokens(text: str) -> list[str]:
    """Lower-case words of two ASCII letters or more, in order, English stop words left out."""
    return [word for word in _WORD.findall(text.lower()) if word not in ENGLISH_STOP_WORDS]


@dataclass(frozen=True)
class Vocabulary:
    """`words` (d, sorted), the number of training documents that have each (`frequency`, d), and their number."""

    words: list[str]
    frequency: np.ndarray
    n_documents: int

    @classmethod
    def learn(cls, texts: Iterable[str], min_documents: int = 1) -> Vocabulary:
        """Words that occur in at least `min_documents` of the texts; one pass, memory of the vocabulary alone.

        Raises DataError where no word is left.
        """
        seen: Counter[str] = Counter()
        n = 0
        for text in texts:
            seen.update(set(tokens(text)))
            n += 1
        words = sorted(word for word, count in seen.items() if count >= min_documents)
        if not words:
            raise DataError(f"{n} documents have no word in {min_documents} or more of them; lower min_documents")
        return cls(words, np.array([seen[word] for word in words], dtype=np.int64), n)

    @cached_property
    def columns(self) -> dict[str, int]:
        """Word -> column."""
        return {word: j for j, word in enumerate(self.words)}

    @cached_property
    def idf(self) -> np.ndarray:
        """ln((1 + n) / (1 + df)) + 1 (d)."""
        return np.log((1 + self.n_documents) / (1 + self.frequency)) + 1

    def rows(self, texts: Iterable[str]) -> scipy.sparse.csr_array:
        """tf-idf rows of unit length (m x d, float32): (1 + ln tf) idf; words outside the vocabulary are left out."""
        indices: list[int] = []
        counts: list[int] = []
        indptr = [0]
        for text in texts:
            found = Counter(column for word in tokens(text) if (column := self.columns.get(word)) is not None)
            for column in sorted(found):
                indices.append(column)
                counts.append(found[column])
            indptr.append(len(indices))
        weights = (1 + np.log(np.array(counts, dtype=np.float64))) * self.idf[indices] if indices else np.zeros(0)
        lengths = np.sqrt(np.add.reduceat(np.append(weights**2, 0.0), indptr[:-1])) if len(indptr) > 1 else np.ones(0)
        sizes = np.diff(indptr)
        weights /= np.repeat(np.where(sizes > 0, lengths, 1.0), sizes)
        shape = (len(indptr) - 1, len(self.words))
        return scipy.sparse.csr_array((weights.astype(np.float32), np.array(indices, np.int64), indptr), shape=shape)

    def source(self, n: int, texts: Callable[[], Iterator[str]], where: str, block: int = 1024) -> SequentialRows:
        """The tf-idf rows of n texts as a row source that holds one block; `texts` starts again from the first."""

        def start() -> Iterator[scipy.sparse.csr_array]:
            batch: list[str] = []
            for text in texts():
                batch.append(text)
                if len(batch) == block:
                    yield self.rows(batch)
                    batch = []
            if batch:
                yield self.rows(batch)

        return SequentialRows((n, len(self.words)), np.dtype(np.float32), start, where)
