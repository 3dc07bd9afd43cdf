"""Rows of a factor that is sparse by blocks: every row has values in the columns of its own cluster only."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse

from dmo.errors import UserError


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
    >>> from dmo.linalg.block_rows import BlockRows
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
