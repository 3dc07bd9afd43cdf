"""Label kernels, which measure the similarity of outputs such as vectors, sets or sequences.

A label kernel matrix K_Y is represented by a factor T (n x q) with K_Y = T T'. Estimators process T like a label matrix
with q columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse
from sklearn.utils.extmath import randomized_svd

from dmo.blocks import dense, in_memory
from dmo.errors import UserError
from dmo.kernels import Kernel, parse

__all__ = ["SequenceKernel", "SetKernel"]
TOLERANCE = 1e-12
"""Residual diagonal at which the factorization of a kernel matrix stops, relative to the largest entry."""
_DIRECTIONS = 512


@dataclass(frozen=True)
class SetKernel:
    """Positive semidefinite kernel on sets, for example sets of labels or tags.

    Parameters
    ----------
    measure : {"intersection", "cosine", "jaccard", "dice"}, default="jaccard"
        Similarity of two sets A and B. "intersection" is |A & B|, "cosine" is |A & B| / sqrt(|A||B|), "jaccard" is
        |A & B| / |A | B|, and "dice" is 2 |A & B| / (|A| + |B|). Two empty sets have similarity 1 for "jaccard" and
        "dice", and otherwise 0.

    Raises
    ------
    UserError
        If the measure is unknown.

    References
    ----------
    Gower, Legendre 1986, table 1 (Jaccard, Dice).

    Examples
    --------
    >>> from dmo.labels.label_kernels import SetKernel
    >>> SetKernel("dice").matrix([{"sky", "sea"}, {"sky"}]).round(2)
    array([[1.  , 0.67],
           [0.67, 1.  ]])
    """

    measure: Literal["intersection", "cosine", "jaccard", "dice"] = "jaccard"

    def __post_init__(self) -> None:
        if self.measure not in _SET_MEASURES:
            raise UserError(f"SetKernel: measure = {self.measure!r}; known: {', '.join(_SET_MEASURES)}")

    def matrix(self, outputs: Sequence[Iterable[Hashable]]) -> np.ndarray:
        """Compute the kernel matrix of sets.

        Parameters
        ----------
        outputs : sequence of iterable
            Set of each of the n samples.

        Returns
        -------
        ndarray of shape (n, n), float64
            Similarities of all pairs of sets.
        """
        members = _counts([Counter(set(output)) for output in outputs])
        common = np.asarray((members @ members.T).toarray(), np.float64)
        return _SET_MEASURES[self.measure](common, common.diagonal())


@dataclass(frozen=True)
class SequenceKernel:
    """Blended spectrum kernel on sequences, which compares the counts of their contiguous subsequences.

    Parameters
    ----------
    length : int, default=3
        Maximum length of the subsequences, in symbols. Shorter subsequences are also counted.
    normalize : bool, default=True
        Whether to divide count vectors by their norms. If True, nonempty sequences have similarity 1 with themselves.

    Raises
    ------
    UserError
        If the length is below 1.

    References
    ----------
    Leslie, Eskin, Noble 2002; Shawe-Taylor, Cristianini 2004, section 11.2.

    Examples
    --------
    >>> from dmo.labels.label_kernels import SequenceKernel
    >>> T = SequenceKernel(length=2).factor(["abab", "abba"])
    >>> (T @ T.T).toarray().round(2)
    array([[1.  , 0.92],
           [0.92, 1.  ]])
    """

    length: int = 3
    normalize: bool = True

    def __post_init__(self) -> None:
        if self.length < 1:
            raise UserError(f"SequenceKernel: length = {self.length}; pass a length of at least 1")

    def factor(self, outputs: Sequence[Sequence[Hashable]]) -> scipy.sparse.csr_array:
        """Compute a factor T of the kernel matrix T T' of sequences.

        Parameters
        ----------
        outputs : sequence of sequence
            String, or list of hashable symbols, of each of the n samples.

        Returns
        -------
        csr_array of shape (n, subsequences), float64
            Factor T, which contains the counts of subsequences. Rows are normalized if `normalize` is True.
        """
        counts = _counts([Counter(_grams(output, self.length)) for output in outputs])
        if not self.normalize:
            return counts
        lengths = np.sqrt(np.asarray(counts.multiply(counts).sum(axis=1)).ravel())
        return scipy.sparse.csr_array(scipy.sparse.diags_array(1 / np.where(lengths > 0, lengths, 1.0)) @ counts)


LabelKernel = str | Kernel | SetKernel | SequenceKernel
"""Kernel on outputs, such as "linear". With "precomputed", the outputs are the rows of the kernel matrix."""


def label_factor(kernel: LabelKernel, outputs: Any) -> np.ndarray:
    """Compute a factor T of the label kernel matrix T T'. A linear kernel returns the outputs as the factor."""
    if isinstance(kernel, SetKernel):
        return factorize_kernel(kernel.matrix(_as_sets(outputs)), "the set kernel")
    if isinstance(kernel, SequenceKernel):
        return _thin(kernel.factor(_as_list(outputs)))
    if isinstance(kernel, str) and kernel == "precomputed":
        return factorize_kernel(_numbers(outputs), "the precomputed label kernel")
    Y = _numbers(outputs)
    if isinstance(kernel, str) and kernel == "linear":
        return Y
    fitted = parse(kernel).fit(Y, 0)
    ready = fitted.prepare(Y, np.float64)
    return factorize_kernel(fitted.tile(ready, ready), f"the label kernel {getattr(fitted, 'name', kernel)!r}")


def factorize_kernel(K: np.ndarray, what: str = "the label kernel") -> np.ndarray:
    """Compute a factor T (n x rank) of a positive semidefinite matrix K = T T' by pivoted Cholesky."""
    if K.ndim != 2 or K.shape[0] != K.shape[1]:
        raise UserError(f"{what} has shape {K.shape}; expected samples x samples")
    scale = float(np.abs(K).max(initial=0.0))
    if not np.allclose(K, K.T, rtol=0.0, atol=1e-8 * scale):
        raise UserError(f"{what} is not symmetric; pass (K + K.T) / 2, or a symmetric similarity")
    C, pivots, rank, _ = scipy.linalg.lapack.dpstrf((K + K.T) / 2, tol=TOLERANCE * scale, lower=1)
    T = np.zeros((len(K), rank))
    T[pivots - 1] = np.tril(C)[:, :rank]
    if np.abs(np.einsum("ij,ij->i", T, T) - K.diagonal()).max(initial=0.0) > 1e-6 * scale or _off(T, K, scale):
        raise UserError(f"{what} is not positive semidefinite; clip its negative eigenvalues, or choose another kernel")
    return T


def _off(T: np.ndarray, K: np.ndarray, scale: float) -> bool:
    """Return whether T T' and K have different products with random vectors, which means that K is indefinite."""
    probe = np.random.default_rng(0).standard_normal((len(K), 4))
    return bool(np.abs(T @ (T.T @ probe) - K @ probe).max(initial=0.0) > 1e-6 * scale * len(K))


def _jaccard(common: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    return _share(common, sizes[:, None] + sizes - common, 1.0)


def _dice(common: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    return _share(2 * common, sizes[:, None] + sizes, 1.0)


def _cosine(common: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    return _share(common, np.sqrt(sizes[:, None] * sizes), 0.0)


def _share(part: np.ndarray, whole: np.ndarray, otherwise: float) -> np.ndarray:
    return np.divide(part, whole, out=np.full(part.shape, otherwise), where=whole > 0)


_SET_MEASURES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "intersection": lambda common, sizes: common,
    "cosine": _cosine,
    "jaccard": _jaccard,
    "dice": _dice,
}


def _grams(sequence: Sequence[Hashable], length: int) -> list[tuple[Hashable, ...]]:
    symbols = tuple(sequence)
    return [symbols[i : i + p] for p in range(1, length + 1) for i in range(len(symbols) - p + 1)]


def _counts(rows: Sequence[Counter[Any]]) -> scipy.sparse.csr_array:
    """Convert counters to a sparse matrix with one row per counter and one column per distinct key."""
    columns: dict[Any, int] = {}
    indices, data, indptr = [], [], [0]
    for row in rows:
        for key, count in row.items():
            indices.append(columns.setdefault(key, len(columns)))
            data.append(float(count))
        indptr.append(len(indices))
    return scipy.sparse.csr_array((data, indices, indptr), shape=(len(rows), max(1, len(columns))))


def _thin(T: scipy.sparse.csr_array) -> np.ndarray:
    """Convert a sparse factor T (n x q) to a dense factor of T T' with at most n columns."""
    n, q = T.shape
    return T.toarray() if q <= n else factorize_kernel((T @ T.T).toarray())


def _as_sets(outputs: Any) -> list[Any]:
    """Convert each row of a label matrix to the set of its nonzero columns. Other outputs are returned as a list."""
    if in_memory(outputs) and outputs.ndim == 2:
        rows = scipy.sparse.csr_array(outputs)
        return [rows.indices[a:b][rows.data[a:b] != 0].tolist() for a, b in zip(rows.indptr[:-1], rows.indptr[1:])]
    return _as_list(outputs)


def _as_list(outputs: Any) -> list[Any]:
    found = list(outputs)
    for i, output in enumerate(found):
        if not hasattr(output, "__iter__"):
            raise TypeError(f"output {i} is {output!r}; pass one set or sequence per sample")
    return found


def _numbers(outputs: Any) -> np.ndarray:
    Y = dense(outputs)
    if Y.dtype.kind not in "biuf":
        raise UserError(f"outputs have dtype {Y.dtype}; pass numbers, or a SetKernel or SequenceKernel for objects")
    Y = Y.astype(np.float64).reshape(len(Y), -1)
    bad = np.argwhere(~np.isfinite(Y))
    if len(bad):
        raise UserError(f"outputs have {Y[tuple(bad[0])]} at row {bad[0][0]}, column {bad[0][1]}; impute or remove it")
    return Y


def label_directions(Y: scipy.sparse.csr_array, components: int, random_state: int | None) -> np.ndarray:
    """Compute the leading right singular vectors V of a sparse label matrix Y, so that Y V V' Y' approximates Y Y'.

    Source: Halko, Martinsson, Tropp 2011.
    """
    some = np.flatnonzero(Y.sum(axis=0))
    values = scipy.sparse.csr_array(Y[:, some], dtype=np.float64)
    _, singular, right = randomized_svd(
        values, min(max(_DIRECTIONS, 2 * components), *values.shape), random_state=random_state
    )
    right = right[singular > 1e-9 * singular[0]]
    V = np.zeros((Y.shape[1], len(right)))
    V[some] = right.T
    return V
