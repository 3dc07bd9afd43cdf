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

    Arguments: `shape` (m, r0); per cluster with rows in the batch: `rows` (their numbers in 0..m-1), `columns` (the
    cluster's columns in 0..r0-1), `blocks` (rows_s x k_s). Products are float64 sums of float64 products, n k_s^2 work
    per cluster and n k_s k_t / S per pair of clusters of two maps, never n r0^2.
    """

    shape: tuple[int, int]
    rows: Sequence[np.ndarray]
    columns: Sequence[slice]
    blocks: Sequence[np.ndarray]

    @classmethod
    def concatenate(cls, batches: Sequence[BlockRows]) -> BlockRows:
        """The rows of several batches below each other."""
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
        return self.blocks[0].dtype if self.blocks else np.dtype(np.float32)

    @property
    def nbytes(self) -> int:
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
        """The same rows in another precision."""
        return BlockRows(self.shape, self.rows, self.columns, [b.astype(dtype, copy=False) for b in self.blocks])

    def dense(self) -> np.ndarray:
        """The m x r0 array."""
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
        """W M (m x q) for M of r0 x q, in the precision of the wider of the two."""
        out = np.zeros((self.shape[0], *M.shape[1:]), np.result_type(self.dtype, M.dtype))
        for index, columns, block in zip(self.rows, self.columns, self.blocks):
            out[index] = block @ M[columns]
        return out

    def t_dot(self, B: np.ndarray) -> np.ndarray:
        """W'B (r0 x q, float64) for B of m x q, dense or sparse."""
        out = np.zeros((self.shape[1], *B.shape[1:]))
        for index, columns, block in zip(self.rows, self.columns, self.blocks):
            part = B[index]
            wide = block.T.astype(np.float64)
            out[columns] = (part.T @ wide.T).T if scipy.sparse.issparse(part) else wide @ part.astype(np.float64)
        return out

    def gram(self, other: BlockRows | np.ndarray) -> np.ndarray:
        """W'G (r0 x r0', float64) with other rows G of the same samples, block-sparse or dense."""
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
