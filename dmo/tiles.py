"""A symmetric operator whose lower tiles are resident on workers, recomputed, or streamed from a kernel store.

One product is one task per group of tiles: the tall block is scattered once, every group returns its n x k share, the
shares are summed in a tree. No task is pinned to a worker; a lost worker costs its tiles again and nothing else.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from threadpoolctl import threadpool_limits

from dmo.blocks import Rows, Subset, row_blocks
from dmo.multikernel import MultiKernel
from dmo.operators import Cross, Operator

Pair = tuple[int, int]


class TileSource(Protocol):
    """The lower tiles (i >= j) of a symmetric n x n matrix in square blocks; picklable: workers open it."""

    n: int
    block: int

    def tile(self, i: int, j: int) -> np.ndarray: ...


@dataclass
class FeatureTiles:
    """Tiles computed from features.

    Arguments: `kernel`: fitted; `sources`: view name -> row source (n x d_view), read block by block; `block`: rows per
    tile; `dtype` of the entries.
    """

    kernel: MultiKernel
    sources: Mapping[str, Rows]
    block: int
    dtype: Any = np.float32

    def __post_init__(self) -> None:
        self.n = next(iter(self.sources.values())).shape[0]
        self._held: tuple[int, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None}

    def _prepare(self, i: int) -> dict[str, Any]:
        return self.kernel.prepare(self.sources, slice(i * self.block, min((i + 1) * self.block, self.n)), self.dtype)

    def tile(self, i: int, j: int) -> np.ndarray:
        held = self._held  # tiles are asked for strip by strip: keep the row block that a strip shares
        if held is None or held[0] != i:
            held = self._held = (i, self._prepare(i))
        return self.kernel.tile(held[1], held[1] if i == j else self._prepare(j))

    def diagonal(self) -> np.ndarray:
        blocks = range(len(row_blocks(self.n, self.block)))
        return np.concatenate([self.kernel.diagonal(self._prepare(i)) for i in blocks]).astype(np.float64)

    def columns(self, index: np.ndarray) -> np.ndarray:
        """Columns `index` of the matrix (n x len(index)), without its other entries."""
        picked = {name: Subset(source, np.asarray(index)) for name, source in self.sources.items()}
        chosen = self.kernel.prepare(picked, slice(None), self.dtype)
        blocks = range(len(row_blocks(self.n, self.block)))
        return np.concatenate([self.kernel.tile(self._prepare(i), chosen) for i in blocks])


def lower_pairs(n: int, block: int) -> list[Pair]:
    """The pairs (i, j), i >= j, of blocks of a symmetric n x n matrix, strip by strip."""
    return [(i, j) for i in range(len(row_blocks(n, block))) for j in range(i + 1)]


def grouped(pairs: list[Pair], count: int) -> list[list[Pair]]:
    """`pairs` cut into at most `count` runs of nearly equal length, so that a run shares strips."""
    count = max(1, min(count, len(pairs)))
    edges = np.linspace(0, len(pairs), count + 1).round().astype(int)
    return [pairs[a:b] for a, b in itertools.pairwise(edges)]


def compute_tiles(source: TileSource, pairs: list[Pair]) -> list[np.ndarray]:
    """The tiles of `pairs`, in order: the task that makes tiles resident."""
    with threadpool_limits(1):
        return [source.tile(i, j) for i, j in pairs]


def multiply_tiles(
    tiles: list[np.ndarray] | TileSource, pairs: list[Pair], n: int, block: int, B: np.ndarray
) -> np.ndarray:
    """The share of the tiles `pairs` (given as arrays or as a source) in A @ B: n x k, B's dtype."""
    with threadpool_limits(1):
        return _multiply(tiles, pairs, n, block, B)


def _multiply(
    tiles: list[np.ndarray] | TileSource, pairs: list[Pair], n: int, block: int, B: np.ndarray
) -> np.ndarray:
    slices = row_blocks(n, block)
    out = np.zeros(B.shape, B.dtype)
    for (i, j), tile in zip(pairs, _iterate(tiles, pairs), strict=True):
        tile = tile.astype(B.dtype, copy=False)
        out[slices[i]] += tile @ B[slices[j]]
        if i != j:
            out[slices[j]] += tile.T @ B[slices[i]]
    return out


def _iterate(tiles: list[np.ndarray] | TileSource, pairs: list[Pair]) -> Iterator[np.ndarray]:
    if isinstance(tiles, list):
        yield from tiles
    else:
        for i, j in pairs:
            yield tiles.tile(i, j)


def _add(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return left + right


class Tiles(Operator):
    """A symmetric matrix as lower tiles of a `TileSource`.

    Arguments: `source`; `client`: a distributed.Client, or None to run in this process; `resident`: keep the tiles in
    the workers' memory (this process's without a client) from the first product on, instead of asking the source for
    them at every product; `groups`: tasks per product (default: four per worker thread); `cross`: see `Operator.cross`.
    """

    def __init__(
        self,
        source: TileSource,
        client: Any = None,
        resident: bool = False,
        dtype: Any = np.float32,
        cross: Cross | None = None,
        groups: int | None = None,
    ):
        self.source, self.client, self.resident, self._cross = source, client, resident, cross
        self.n, self.dtype = source.n, np.dtype(dtype)
        threads = 1 if client is None else max(1, sum(client.nthreads().values()))
        self.groups = grouped(lower_pairs(self.n, source.block), groups or (1 if client is None else 4 * threads))
        self._kept: list[Any] | None = None
        self._shared: Any = None

    def _tiles(self) -> list[Any]:
        """Per group what `multiply_tiles` takes: arrays, futures of arrays, or the source itself (a future of it)."""
        if self._kept is not None:
            return self._kept
        if self.client is None:
            kept = [
                [self.source.tile(i, j) for i, j in group] if self.resident else self.source for group in self.groups
            ]
        else:
            if self._shared is None:
                self._shared = self.client.scatter(self.source, broadcast=True, hash=False)
            kept = [self._shared] * len(self.groups)
            if self.resident:
                kept = [
                    self.client.submit(compute_tiles, self._shared, group, pure=False) for group in self.groups
                ]
        self._kept = kept
        return kept

    def _apply(self, B: np.ndarray, dtype: np.dtype) -> np.ndarray:
        if self.client is None:
            out = np.zeros(B.shape, dtype)
            for tiles, group in zip(self._tiles(), self.groups, strict=True):
                out += _multiply(tiles, group, self.n, self.source.block, B)
            return out
        shared = self.client.scatter(B, broadcast=True, hash=False)
        shares = [
            self.client.submit(multiply_tiles, tiles, group, self.n, self.source.block, shared, pure=False)
            for tiles, group in zip(self._tiles(), self.groups, strict=True)
        ]
        while len(shares) > 1:
            odd = [shares[-1]] if len(shares) % 2 else []
            pairs = zip(shares[0:-1:2], shares[1::2], strict=False)
            shares = [self.client.submit(_add, a, b, pure=False) for a, b in pairs] + odd
        return shares[0].result()

    def diagonal(self) -> np.ndarray:
        if isinstance(self.source, FeatureTiles):
            return self.source.diagonal()
        blocks = range(len(row_blocks(self.n, self.source.block)))
        return np.concatenate([np.diagonal(self.source.tile(i, i)) for i in blocks]).astype(np.float64)

    def columns(self, index: np.ndarray) -> np.ndarray:
        if isinstance(self.source, FeatureTiles):
            return self.source.columns(index)
        unit = np.zeros((self.n, len(index)), self.dtype)
        unit[index, np.arange(len(index))] = 1
        return self._apply(unit, self.dtype)

    def dense(self, dtype: Any = np.float64) -> np.ndarray:
        slices = row_blocks(self.n, self.source.block)
        matrix = np.empty((self.n, self.n), dtype)
        for i, j in lower_pairs(self.n, self.source.block):
            tile = self.source.tile(i, j)
            matrix[slices[i], slices[j]] = tile
            matrix[slices[j], slices[i]] = tile.T
        return matrix

    def cross(self, X: Rows) -> np.ndarray:
        return super().cross(X) if self._cross is None else self._cross(X)
