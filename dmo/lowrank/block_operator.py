"""The n x n operator of a factor that is sparse by blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from dmo.lowrank.blockrows import BlockRows
from dmo.lowrank.factors import BlockFactor
from dmo.operators import Cross, Operator


class BlockLowRank(Operator):
    """W L W' with W = diag(W_1 .. W_S) by clusters (n x r0) and L = T T' (T: r0 x r).

    A product with k columns costs n k_s k + r0 r k, memory n k_s + r0 r. Source: Si, Hsieh, Dhillon 2014, eq. 5.
    """

    def __init__(self, W: BlockRows, mixing: np.ndarray, cross: Cross | None = None):
        self.W, self.mixing, self.n, self.dtype, self._cross = W, mixing, W.shape[0], W.dtype, cross

    @property
    def rank(self) -> int:
        return self.mixing.shape[1]

    def block_factor(self) -> BlockFactor:
        """F = W T with A = F F', in float64."""
        return BlockFactor(self.W.astype(np.float64), self.mixing)

    def _apply(self, B: np.ndarray, dtype: np.dtype) -> np.ndarray:
        linked = self.mixing @ (self.mixing.T @ self.W.t_dot(B))
        return self.W.dot(linked.astype(dtype))

    def diagonal(self) -> np.ndarray:
        out = np.zeros(self.n)
        for index, columns, block in zip(self.W.rows, self.W.columns, self.W.blocks):
            part = block.astype(np.float64) @ self.mixing[columns]
            out[index] = np.einsum("ij,ij->i", part, part)
        return out

    def columns(self, index: np.ndarray) -> np.ndarray:
        linked = self.mixing @ self.W[index].dot(self.mixing).T
        return self.W.dot(linked.astype(self.dtype))

    def dense(self, dtype: Any = np.float64) -> np.ndarray:
        F = self.W.dot(self.mixing).astype(dtype)
        return F @ F.T

    def cross(self, X: Any) -> np.ndarray:
        return super().cross(X) if self._cross is None else self._cross(X)
