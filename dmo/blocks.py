"""Row blocks of any array, and the algebra of tall (n x k) blocks.

A *row source* is anything with `shape`, `dtype` and row slicing: a NumPy array, a SciPy CSR matrix, a dask array, a
Zarr array, a view of a feature store, or a `Subset` of one of these. `rows` is the one place that reads from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse

Rows = Any
"""A row source: n x d, read by row slices."""


def row_blocks(n: int, size: int) -> list[slice]:
    """Slices of at most `size` rows that cover 0..n in order."""
    if size < 1:
        raise ValueError(f"block size must be at least 1, got {size}")
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


@dataclass(frozen=True)
class Subset:
    """Some rows of a row source, in the order of `index`, without reading the others.

    Arguments: `source`, a row source of n rows; `index`, an integer array of row numbers in 0..n-1.
    """

    source: Rows
    index: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.index), self.source.shape[1]

    @property
    def dtype(self) -> np.dtype:
        return self.source.dtype

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, where: slice) -> np.ndarray | scipy.sparse.csr_array:
        picked = self.index[where]
        if len(picked) == 0:
            return rows(self.source, slice(0, 0))
        low, high = int(picked.min()), int(picked.max()) + 1
        block = rows(self.source, slice(low, high))
        return block if high - low == len(picked) and np.all(np.diff(picked) == 1) else block[picked - low]


def rows(source: Rows, where: slice | None = None) -> np.ndarray | scipy.sparse.csr_array:
    """Read rows `where` (None: all) of a row source into memory: a NumPy array, or CSR where the source is sparse."""
    block = source[slice(None) if where is None else where]
    if hasattr(block, "compute"):
        block = block.compute(scheduler="threads")
    if scipy.sparse.issparse(block):
        return scipy.sparse.csr_array(block)
    return np.asarray(block)


def iterate(source: Rows, size: int) -> Iterator[tuple[slice, np.ndarray | scipy.sparse.csr_array]]:
    """Pairs (slice, rows) of blocks of at most `size` rows, in order."""
    for where in row_blocks(source.shape[0], size):
        yield where, rows(source, where)


def fingerprint(source: Rows, size: int = 8192) -> str:
    """SHA-256 (16 hex digits) of a row source's shape and values: tells two inputs apart, whatever their container."""
    digest = hashlib.sha256(repr(tuple(source.shape)).encode())
    for _, block in iterate(source, size):
        if scipy.sparse.issparse(block):
            block.sort_indices()
            for part in (block.indptr.astype(np.int64), block.indices.astype(np.int64), block.data):
                digest.update(np.ascontiguousarray(part).data)
        else:
            digest.update(np.ascontiguousarray(block).data)
    return digest.hexdigest()[:16]


def gram(F: np.ndarray, G: np.ndarray | None = None, size: int = 8192) -> np.ndarray:
    """F'G (k x l, float64) of tall blocks: products per row block in their own precision, sums in float64."""
    G = F if G is None else G
    total = np.zeros((F.shape[1], G.shape[1]))
    for where in row_blocks(F.shape[0], size):
        total += F[where].T @ G[where]
    return total


def orthonormalise(B: np.ndarray, against: np.ndarray | None = None, tolerance: float = 1e-10) -> np.ndarray:
    """An orthonormal basis (n x r, r <= k, float64) of the columns of B, less their part in `against`.

    Arguments: `B` n x k; `against` n x q with orthonormal columns; `tolerance`: directions whose length is below
    `tolerance` times the largest column of B are dropped, so r is B's numerical rank outside `against`.
    Projects twice ("twice is enough", Giraud et al. 2005) and takes a rank-revealing QR.
    """
    B = np.array(B, dtype=np.float64)
    scale = np.sqrt((B * B).sum(axis=0).max(initial=0.0))
    if scale == 0.0:
        return np.zeros((B.shape[0], 0))
    for _ in range(2):
        if against is not None and against.shape[1]:
            B -= against @ (against.T @ B)
    Q, R, _ = scipy.linalg.qr(B, mode="economic", pivoting=True, overwrite_a=True, check_finite=False)
    rank = int((np.abs(np.diag(R)) > tolerance * scale).sum())
    Q = Q[:, :rank]
    if against is not None and against.shape[1]:
        Q -= against @ (against.T @ Q)
        Q, _ = scipy.linalg.qr(Q, mode="economic", overwrite_a=True, check_finite=False)
    return Q
