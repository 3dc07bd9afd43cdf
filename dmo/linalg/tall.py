"""Tall matrices (n x k): what solvers need of them, dense or sparse by blocks.

Rows of a factor that is sparse by blocks: every row has values in the columns of its own cluster only.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import scipy.linalg
import scipy.sparse

from dmo.blocks import row_blocks
from dmo.errors import UserError
from dmo.linalg.rows import WorkerRows, inner, lengths, pivoted_qr, settle
from dmo.threads import product

LinearMap = Callable[[np.ndarray], np.ndarray]
"""A linear map of tall blocks: n x k to n x k."""


class Factor(Protocol):
    """A tall matrix F (n x r) known by its products, which are float64.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.linalg.factors import DenseFactor
    >>> DenseFactor(np.ones((4, 2))).centered().rows(slice(0, 1))
    array([[0., 0.]])
    """

    @property
    def shape(self) -> tuple[int, int]:
        """n, r."""
        ...

    def dot(self, S: np.ndarray) -> np.ndarray:
        """Multiply from the left.

        Parameters
        ----------
        S : ndarray of shape (r, q)
            Right factor.

        Returns
        -------
        ndarray of shape (n, q)
            F S.
        """
        ...

    def t_dot(self, B: np.ndarray) -> np.ndarray:
        """Multiply the transpose from the left.

        Parameters
        ----------
        B : ndarray of shape (n, q)
            Right factor.

        Returns
        -------
        ndarray of shape (r, q)
            F'B.
        """
        ...

    def gram(self) -> np.ndarray:
        """Multiply F with itself.

        Returns
        -------
        ndarray of shape (r, r)
            F'F.
        """
        ...

    def rows(self, where: slice) -> np.ndarray:
        """Form some rows.

        Parameters
        ----------
        where : slice
            Which.

        Returns
        -------
        ndarray of shape (m, r)
            The rows, dense.
        """
        ...

    def centered(self) -> Factor:
        """Take the mean off all rows.

        Returns
        -------
        Factor
            (I - 11'/n) F.
        """
        ...

    def scaled(self, factor: float) -> Factor:
        """Multiply all entries.

        Parameters
        ----------
        factor : float
            By this.

        Returns
        -------
        Factor
            factor F.
        """
        ...


def gram(F: Any, G: Any = None, size: int = 8192) -> np.ndarray:
    """Multiply tall blocks: products per row block in their own precision, sums in float64.

    F (n, k); G (n, l) -> (k, l)
    """
    G = F if G is None else G
    if isinstance(F, WorkerRows):
        return inner(F, G)[0]
    total = np.zeros((F.shape[1], G.shape[1]))
    for where in row_blocks(F.shape[0], size):
        total += F[where].T @ G[where]
    return total


def orthonormalize(B: Any, against: Any = None, tol: float = 1e-10, square: np.ndarray | None = None) -> Any:
    """Find an orthonormal basis of the span of columns, less their part in another span.

    B (n, k); against (n, q); square (k, k): B'B up to rounding of columns of length 1 -> (n, r)
    """
    # Projects twice ("twice is enough"), and orthonormalizes after each time through the Cholesky factor of the
    # columns' Gram matrix: all in products of matrices, where a rank-revealing QR, which follows where the columns
    # are nearly dependent, takes ten times as long.
    #
    # Giraud, Langou, Rozloznik, van den Eshof 2005; Cholesky QR, twice: Yamamoto, Nakatsukasa, Yanagisawa, Fukaya
    # 2015.
    B = B.astype(np.float64)
    if square is not None and not square.diagonal().min(initial=np.inf) > _ROUNDING:
        square = None  # columns so short may have no digit left there
    if square is None and against is None and B.shape[1] <= B.shape[0]:
        square = B.T @ B
    largest = lengths(B).max(initial=0.0) ** 2 if square is None else square.diagonal().max(initial=0.0)
    scale = np.sqrt(largest)
    if scale == 0.0:
        return B[:, :0]
    B = _outside(B, against)
    found, error = _by_gram(B, _RELIABLE * tol * scale, _DEPENDENT, square)
    if found is not None and (against is not None or error > _ROUNDING):
        # what the first time left of dependence is at most rounding times its condition: the second removes it
        found, _ = _by_gram(_outside(found, against), 0.5, 0.5)
    if found is not None:
        settle(found)
        return found
    Q, diagonal = pivoted_qr(_outside(B, against))
    Q = Q[:, : int((np.abs(diagonal) > tol * scale).sum())]
    if against is not None and against.shape[1]:
        Q = _outside(Q, against)
        if isinstance(Q, WorkerRows):
            return pivoted_qr(Q)[0]
        Q, _ = scipy.linalg.qr(Q, mode="economic", overwrite_a=True, check_finite=False)
    return Q


_DEPENDENT = 1e-5
"""Length of a column outside of those before it, relative to its own, below which Cholesky QR leaves too few digits."""
_ROUNDING = 1e-12
"""How far from orthonormal columns may be: what is divided by them in conjugate gradients loses no digit that counts."""
_RELIABLE = 1e3
"""Times the length of directions that are dropped: columns that stay longer than that leave nothing to drop."""


def _outside(B: Any, against: Any) -> Any:
    """B less its part in the span of orthonormal columns."""
    return B if against is None or not against.shape[1] else B - product(against, product(against.T, B))


def _by_gram(B: Any, least: float, dependent: float, square: np.ndarray | None = None) -> tuple[Any, float]:
    """B R^-1 with R'R = B'B, the square, and how far its columns may be from orthonormal; None where a column, outside of
    those before it, is shorter than `least` or than `dependent` times its own length."""
    if B.shape[1] > B.shape[0]:
        return None, np.inf
    square = B.T @ B if square is None else square
    lengths = np.sqrt(square.diagonal())
    if not lengths.min() > least:
        return None, np.inf
    try:  # columns of length 1: their factor does not care how different their lengths are
        root = np.linalg.cholesky(square / lengths / lengths[:, None])
    except np.linalg.LinAlgError:
        return None, np.inf
    left = root.diagonal()
    if left.min() < dependent or (left * lengths).min() <= least:
        return None, np.inf
    inverse = scipy.linalg.solve_triangular(root, np.eye(len(root)), lower=True, check_finite=False)
    # the rounding of a given square is that of columns of length 1
    error = np.finfo(float).eps * float(np.square(inverse).sum() * (max(1.0, lengths.max()) / lengths.min()) ** 2)
    return product(B, (inverse / lengths).T), error


@dataclass(frozen=True, eq=False)
class BlockRows:
    """m rows of W = diag(W_1 .. W_S) in the order of the samples: row i has k_s values where i is in cluster s.

    Products are float64 sums of float64 products, n k_s^2 work per cluster and n k_s k_t / S per pair of clusters of two maps,
    never n r0^2.

    Parameters
    ----------
    shape : (int, int)
        m, r0.
    rows : sequence of ndarray of int
        Per cluster with rows in the batch: their numbers in 0..m-1.
    columns : sequence of slice
        The cluster's columns in 0..r0-1.
    blocks : sequence of ndarray of shape (m_s, k_s)
        Its values.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.linalg.tall import BlockRows
    >>> blocks = [np.ones((2, 2)), np.ones((1, 1))]
    >>> W = BlockRows((3, 3), [np.array([0, 2]), np.array([1])], [slice(0, 2), slice(2, 3)], blocks)
    >>> W.dense()
    array([[1., 1., 0.],
           [0., 0., 1.],
           [1., 1., 0.]])
    """

    shape: tuple[int, int]
    rows: Sequence[np.ndarray]
    columns: Sequence[slice]
    blocks: Sequence[np.ndarray]

    @classmethod
    def concatenate(cls, batches: Sequence[BlockRows]) -> BlockRows:
        """Put the rows of several batches below each other.

        Parameters
        ----------
        batches : sequence of BlockRows
            Of the same columns.

        Returns
        -------
        BlockRows
            All rows.
        """
        starts = np.cumsum([0, *(len(batch) for batch in batches)])
        found: dict[tuple[int, int], tuple[slice, list[np.ndarray], list[np.ndarray]]] = {}
        for start, batch in zip(starts, batches):
            for index, columns, block in zip(batch.rows, batch.columns, batch.blocks):
                _, rows, blocks = found.setdefault((columns.start, columns.stop), (columns, [], []))
                rows.append(index + start)
                blocks.append(block)
        parts = [found[key] for key in sorted(found)]
        shape = (int(starts[-1]), batches[0].shape[1])
        rows, blocks = [np.concatenate(part[1]) for part in parts], [np.concatenate(part[2]) for part in parts]
        return cls(shape, rows, [part[0] for part in parts], blocks)

    @property
    def dtype(self) -> np.dtype:
        """Type of the values."""
        return self.blocks[0].dtype if self.blocks else np.dtype(np.float32)

    @property
    def nbytes(self) -> int:
        """Bytes of values and row numbers."""
        return sum(block.nbytes for block in self.blocks) + sum(index.nbytes for index in self.rows)

    def __len__(self) -> int:
        return self.shape[0]

    @cached_property
    def _place(self) -> tuple[np.ndarray, np.ndarray]:
        """For every row: the number of its part (-1: none) and its position in it."""
        owner, position = np.full(self.shape[0], -1), np.zeros(self.shape[0], dtype=np.int64)
        for part, index in enumerate(self.rows):
            owner[index], position[index] = part, np.arange(len(index))
        return owner, position

    def astype(self, dtype: Any) -> BlockRows:
        """Convert the values.

        Parameters
        ----------
        dtype : dtype
            Their new precision.

        Returns
        -------
        BlockRows
            The same rows.
        """
        return BlockRows(self.shape, self.rows, self.columns, [b.astype(dtype, copy=False) for b in self.blocks])

    def dense(self) -> np.ndarray:
        """Form the whole array.

        Returns
        -------
        ndarray of shape (m, r0)
            W with its zeros.
        """
        out = np.zeros(self.shape, self.dtype)
        for index, columns, block in zip(self.rows, self.columns, self.blocks):
            out[index, columns] = block
        return out

    def __getitem__(self, index: np.ndarray) -> BlockRows:
        """Rows `index`, in that order."""
        owner, position = (part[index] for part in self._place)
        kept, columns, blocks = [], [], []
        for part in np.unique(owner[owner >= 0]):
            picked = np.flatnonzero(owner == part)
            kept.append(picked)
            columns.append(self.columns[part])
            blocks.append(self.blocks[part][position[picked]])
        return BlockRows((len(index), self.shape[1]), kept, columns, blocks)

    def dot(self, M: np.ndarray) -> np.ndarray:
        """Multiply from the left.

        Parameters
        ----------
        M : ndarray of shape (r0, q)
            Right factor.

        Returns
        -------
        ndarray of shape (m, q)
            W M, in the precision of the wider of the two.
        """
        out = np.zeros((self.shape[0], *M.shape[1:]), np.result_type(self.dtype, M.dtype))
        for index, columns, block in zip(self.rows, self.columns, self.blocks):
            out[index] = block @ M[columns]
        return out

    def t_dot(self, B: np.ndarray) -> np.ndarray:
        """Multiply the transpose from the left.

        Parameters
        ----------
        B : ndarray or sparse matrix of shape (m, q)
            Right factor.

        Returns
        -------
        ndarray of shape (r0, q), float64
            W'B.
        """
        out = np.zeros((self.shape[1], *B.shape[1:]))
        for index, columns, block in zip(self.rows, self.columns, self.blocks):
            part = B[index]
            wide = block.T.astype(np.float64)
            out[columns] = (part.T @ wide.T).T if scipy.sparse.issparse(part) else wide @ part.astype(np.float64)
        return out

    def gram(self, other: BlockRows | np.ndarray) -> np.ndarray:
        """Multiply with other rows of the same samples.

        Parameters
        ----------
        other : BlockRows or ndarray of shape (m, r1)
            Rows G.

        Returns
        -------
        ndarray of shape (r0, r1), float64
            W'G.

        Raises
        ------
        UserError
            For rows of another number of samples.
        """
        if other.shape[0] != self.shape[0]:
            raise UserError(f"Gram matrix of {self.shape[0]} and {other.shape[0]} rows; pass the same samples in both")
        if not isinstance(other, BlockRows):
            return self.t_dot(other)
        out = np.zeros((self.shape[1], other.shape[1]))
        wide = [block.astype(np.float64) for block in other.blocks]
        owner, position = other._place
        for index, columns, block in zip(self.rows, self.columns, self.blocks):
            order = np.argsort(owner[index], kind="stable")
            theirs = owner[index][order]
            mine = block[order].astype(np.float64)
            edges = np.flatnonzero(np.diff(theirs, prepend=-2, append=len(wide)))
            for start, stop in itertools.pairwise(edges):
                part = theirs[start]
                if part >= 0:
                    picked = position[index[order[start:stop]]]
                    out[columns, other.columns[part]] = mine[start:stop].T @ wide[part][picked]
        return out
