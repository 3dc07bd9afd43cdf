"""Documents as rows of word weights: scikit-learn's tf-idf, with a vocabulary that is learned from a stream.

scikit-learn finds the words, counts and weighs them. The pass that learns the vocabulary stands here because it keeps
one number per word, where `TfidfVectorizer.fit` keeps the counts of every document until it has seen the last one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal

import numpy as np
import scipy.sparse

from dmo.formats.files import DataError

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
class Vocabulary:
    """The words that become columns, and their weights.

    idf (d,)
    """

    words: list[str]  # the d words, sorted
    idf: np.ndarray
    stemmer: Stemmer | None = None  # what words are cut to their stems by before they count; None: they stay

    @classmethod
    def learn(cls, texts: Iterable[str], min_documents: int = 1, stemmer: Stemmer | None = None) -> Vocabulary:
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
