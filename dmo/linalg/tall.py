"""Tall matrices (n x k), with the products that solvers need, and orthonormal bases of their columns.

In a block-sparse matrix, each row has values only in the columns of its own cluster.
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

from dmo.blocks import dense, strips
from dmo.errors import UserError
from dmo.linalg.rows import WorkerRows, inner, lengths, pivoted_qr, settle
from dmo.threads import product

LinearMap = Callable[[np.ndarray], np.ndarray]
"""Linear map from n x k blocks to n x k blocks."""


class Factor(Protocol):
    """Tall matrix F (n x r) given by its float64 products.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.linalg.factors import DenseFactor
    >>> DenseFactor(np.ones((4, 2))).centered().rows(slice(0, 1))
    array([[0., 0.]])
    """

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (n, r) of the matrix."""
        ...

    def dot(self, S: np.ndarray) -> np.ndarray:
        """Compute the product F S with a matrix S.

        Parameters
        ----------
        S : ndarray of shape (r, q)
            Matrix by which F is multiplied.

        Returns
        -------
        ndarray of shape (n, q)
            Product F S.
        """
        ...

    def t_dot(self, B: np.ndarray) -> np.ndarray:
        """Compute the product F'B with a block B.

        Parameters
        ----------
        B : ndarray of shape (n, q)
            Block by which the transpose is multiplied.

        Returns
        -------
        ndarray of shape (r, q)
            Product F'B.
        """
        ...

    def gram(self) -> np.ndarray:
        """Compute the Gram matrix F'F.

        Returns
        -------
        ndarray of shape (r, r)
            Gram matrix F'F.
        """
        ...

    def rows(self, where: slice) -> np.ndarray:
        """Return some rows of the matrix as a dense array.

        Parameters
        ----------
        where : slice
            Range of the rows that are returned.

        Returns
        -------
        ndarray of shape (m, r)
            Dense rows.
        """
        ...

    def centered(self) -> Factor:
        """Subtract the column means from the matrix.

        Returns
        -------
        Factor
            Matrix with centered columns.
        """
        ...

    def scaled(self, factor: float) -> Factor:
        """Multiply the matrix by a number.

        Parameters
        ----------
        factor : float
            Number by which all entries are multiplied.

        Returns
        -------
        Factor
            Scaled matrix.
        """
        ...


def gram(F: Any, G: Any = None, size: int = 8192) -> np.ndarray:
    """Compute F'G of two tall blocks, with products in their own precision and sums in float64.

    By default, `G` is `F`.
    """
    G = F if G is None else G
    if isinstance(F, WorkerRows):
        return inner(F, G)[0]
    total = np.zeros((F.shape[1], G.shape[1]))
    for where in strips(F, size):
        total += dense(F[where].T @ G[where])
    return total


def orthonormalize(B: Any, against: Any = None, tol: float = 1e-10, square: np.ndarray | None = None) -> Any:
    """Compute an orthonormal basis of the span of the columns of B (n x k), orthogonal to the columns of `against`.

    `square` is the Gram matrix B'B, with the rounding errors of columns of unit length.
    """
    # Subtract the projection on the columns of `against` twice ("twice is enough"). After each subtraction,
    # orthonormalize by the Cholesky factor of the Gram matrix. If the columns are nearly dependent, use a
    # rank-revealing QR factorization, which takes ten times as long.
    #
    # Giraud, Langou, Rozloznik, van den Eshof 2005; Cholesky QR, twice: Yamamoto, Nakatsukasa, Yanagisawa, Fukaya 2015.
    B = B.astype(np.float64)
    if square is not None and not square.diagonal().min(initial=np.inf) > _ROUNDING:
        square = None  # For very short columns, a given Gram matrix may have no correct digits.
    if square is None and against is None and B.shape[1] <= B.shape[0]:
        square = B.T @ B
    largest = lengths(B).max(initial=0.0) ** 2 if square is None else square.diagonal().max(initial=0.0)
    scale = np.sqrt(largest)
    if scale == 0.0:
        return B[:, :0]
    B = _outside(B, against)
    found, error = _by_gram(B, _RELIABLE * tol * scale, _DEPENDENT, square)
    if found is not None and (against is not None or error > _ROUNDING):
        # The error of the first pass grows with the condition number, and a second pass removes this error.
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
"""Minimum length of a column outside the span of the earlier columns, relative to its length, for Cholesky QR."""
_ROUNDING = 1e-12
"""Tolerated deviation from orthonormal columns, at which conjugate gradients lose no significant digits."""
_RELIABLE = 1e3
"""Minimum ratio of the lengths of all columns to the length below which directions are dropped, for Cholesky QR."""


def _outside(B: Any, against: Any) -> Any:
    """Subtract the projection of B on the span of the orthonormal columns of `against`."""
    return B if against is None or not against.shape[1] else B - product(against, product(against.T, B))


def _by_gram(B: Any, least: float, dependent: float, square: np.ndarray | None = None) -> tuple[Any, float]:
    """Orthonormalize B by the Cholesky factor of its Gram matrix `square`, and return the remaining deviation.

    The basis is None if the part of a column outside the span of the earlier columns is too short.
    """
    if B.shape[1] > B.shape[0]:
        return None, np.inf
    square = B.T @ B if square is None else square
    lengths = np.sqrt(square.diagonal())
    if not lengths.min() > least:
        return None, np.inf
    try:  # Normalize the columns, so that the result does not depend on their lengths.
        root = np.linalg.cholesky(square / lengths / lengths[:, None])
    except np.linalg.LinAlgError:
        return None, np.inf
    left = root.diagonal()
    if left.min() < dependent or (left * lengths).min() <= least:
        return None, np.inf
    inverse = scipy.linalg.solve_triangular(root, np.eye(len(root)), lower=True, check_finite=False)
    # A given matrix `square` has the rounding errors of columns of unit length.
    error = np.finfo(float).eps * float(np.square(inverse).sum() * (max(1.0, lengths.max()) / lengths.min()) ** 2)
    return product(B, (inverse / lengths).T), error


@dataclass(frozen=True, eq=False)
class BlockRows:
    """Rows of a block-diagonal matrix W = diag(W_1 .. W_S), in the order of the samples, for a batch of m samples.

    Each row has values only in the columns of its cluster. Transposed products and Gram matrices are computed in
    float64. For k columns per cluster, a Gram matrix costs m k^2 operations.

    Parameters
    ----------
    shape : (int, int)
        Shape (m, r0) of the rows.
    rows : sequence of ndarray of int
        Row indices of each cluster that has rows in the batch.
    columns : sequence of slice
        Column range of each of these clusters.
    blocks : sequence of ndarray of shape (m_s, k_s)
        Values of each of these clusters, with one row per row index.

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
        """Concatenate the rows of several batches.

        Parameters
        ----------
        batches : sequence of BlockRows
            Batches with the same columns.

        Returns
        -------
        BlockRows
            Rows of all batches.
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
        """Data type of the values."""
        return self.blocks[0].dtype if self.blocks else np.dtype(np.float32)

    @property
    def nbytes(self) -> int:
        """Memory in bytes of the values and row indices."""
        return sum(block.nbytes for block in self.blocks) + sum(index.nbytes for index in self.rows)

    def __len__(self) -> int:
        return self.shape[0]

    @cached_property
    def _place(self) -> tuple[np.ndarray, np.ndarray]:
        """Cluster of each row (-1 if it has none), and the position of the row in this cluster."""
        owner, position = np.full(self.shape[0], -1), np.zeros(self.shape[0], dtype=np.int64)
        for part, index in enumerate(self.rows):
            owner[index], position[index] = part, np.arange(len(index))
        return owner, position

    def astype(self, dtype: Any) -> BlockRows:
        """Convert the values to another precision.

        Parameters
        ----------
        dtype : dtype
            New data type of the values.

        Returns
        -------
        BlockRows
            The same rows in the new precision.
        """
        return BlockRows(self.shape, self.rows, self.columns, [b.astype(dtype, copy=False) for b in self.blocks])

    def dense(self) -> np.ndarray:
        """Return the rows as a dense array.

        Returns
        -------
        ndarray of shape (m, r0)
            Rows with their zeros.
        """
        out = np.zeros(self.shape, self.dtype)
        for index, columns, block in zip(self.rows, self.columns, self.blocks):
            out[index, columns] = block
        return out

    def __getitem__(self, index: np.ndarray) -> BlockRows:
        """Select the rows `index` in the given order."""
        owner, position = (part[index] for part in self._place)
        kept, columns, blocks = [], [], []
        for part in np.unique(owner[owner >= 0]):
            picked = np.flatnonzero(owner == part)
            kept.append(picked)
            columns.append(self.columns[part])
            blocks.append(self.blocks[part][position[picked]])
        return BlockRows((len(index), self.shape[1]), kept, columns, blocks)

    def dot(self, M: np.ndarray) -> np.ndarray:
        """Compute the product W M with a dense matrix M.

        Parameters
        ----------
        M : ndarray of shape (r0, q)
            Matrix by which the rows are multiplied.

        Returns
        -------
        ndarray of shape (m, q)
            Product W M, in the wider precision of the two matrices.
        """
        out = np.zeros((self.shape[0], *M.shape[1:]), np.result_type(self.dtype, M.dtype))
        for index, columns, block in zip(self.rows, self.columns, self.blocks):
            out[index] = block @ M[columns]
        return out

    def t_dot(self, B: np.ndarray) -> np.ndarray:
        """Compute the product W'B with a block B.

        Parameters
        ----------
        B : ndarray or sparse matrix of shape (m, q)
            Block by which the transpose is multiplied.

        Returns
        -------
        ndarray of shape (r0, q), float64
            Product W'B.
        """
        out = np.zeros((self.shape[1], *B.shape[1:]))
        for index, columns, block in zip(self.rows, self.columns, self.blocks):
            part = B[index]
            wide = block.T.astype(np.float64)
            out[columns] = (part.T @ wide.T).T
        return out

    def gram(self, other: BlockRows | np.ndarray) -> np.ndarray:
        """Compute the product W'G with other rows G.

        Parameters
        ----------
        other : BlockRows or ndarray of shape (m, r1)
            Rows G of the same samples.

        Returns
        -------
        ndarray of shape (r0, r1), float64
            Product W'G.

        Raises
        ------
        UserError
            If the numbers of rows differ.
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
