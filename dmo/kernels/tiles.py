"""Tiles of a kernel matrix, computed from features when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import DTypeLike

from dmo.blocks import Rows, Subset, row_blocks
from dmo.errors import UserError
from dmo.kernels.multikernel import MultiKernel


@dataclass
class FeatureTiles:
    """Tiles of a kernel matrix, computed from features when they are asked for.

    sources (n, d)
    """

    kernel: MultiKernel  # fitted
    sources: Mapping[str, Rows]
    block: int  # rows per tile
    dtype: DTypeLike = np.float32  # of the entries

    def __post_init__(self) -> None:
        sizes = {name: source.shape[0] for name, source in self.sources.items()}
        if len(set(sizes.values())) != 1:
            raise UserError(f"tiles need views of the same samples, got rows {sizes}")
        self.n = next(iter(sizes.values()))
        self._held: tuple[int, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None}

    @property
    def nbytes(self) -> int:
        """Bytes of the features that lie in memory, and travel with a copy of this object."""
        return sum(_held_bytes(source) for source in self.sources.values())

    def _prepare(self, i: int) -> dict[str, Any]:
        return self.kernel.prepare(self.sources, slice(i * self.block, min((i + 1) * self.block, self.n)), self.dtype)

    def tile(self, i: int, j: int) -> np.ndarray:
        """Work out one tile.

        -> (block, block)
        """
        held = self._held  # tiles are asked for strip by strip: keep the row block that a strip shares
        if held is None or held[0] != i:
            held = self._held = (i, self._prepare(i))
        return self.kernel.tile(held[1], held[1] if i == j else self._prepare(j))

    def _blocks(self, blocks: Sequence[int] | None) -> Sequence[int]:
        return range(len(row_blocks(self.n, self.block))) if blocks is None else blocks

    def diagonal(self, blocks: Sequence[int] | None = None) -> np.ndarray:
        """Work out diagonal entries, without the tiles."""
        parts = [self.kernel.diagonal(self._prepare(i)) for i in self._blocks(blocks)]
        return np.concatenate(parts).astype(np.float64)

    def columns(self, index: np.ndarray, blocks: Sequence[int] | None = None) -> np.ndarray:
        """Work out some columns, without the matrix's other entries."""
        picked = {name: Subset(source, np.asarray(index)) for name, source in self.sources.items()}
        chosen = self.kernel.prepare(picked, slice(None), self.dtype)
        return np.concatenate([self.kernel.tile(self._prepare(i), chosen) for i in self._blocks(blocks)])


def _held_bytes(source: Rows) -> int:
    if isinstance(source, Subset):
        return _held_bytes(source.source) + source.index.nbytes
    if scipy.sparse.issparse(source):
        return sum(getattr(source, part).nbytes for part in ("data", "indices", "indptr"))
    return source.nbytes if isinstance(source, np.ndarray) else 0
