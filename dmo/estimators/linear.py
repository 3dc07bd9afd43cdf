"""Linear functions of rows as they are, dense or sparse, and the products of rows with rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from dmo.blocks import Rows, row_blocks, rows
from dmo.operators import Operator
from dmo.expansions import _BLOCK




@dataclass(frozen=True)
class LinearExpansion:
    """f(x) = x W + offset, on the rows of one view as they are, dense or sparse."""

    view: str
    coefficients: np.ndarray
    offset: np.ndarray

    def __call__(self, views: Mapping[str, Rows]) -> np.ndarray:
        source = views[self.view]
        out = np.empty((source.shape[0], len(self.offset)))
        for where in row_blocks(source.shape[0], _BLOCK):
            out[where] = rows(source, where) @ self.coefficients + self.offset
        return out

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(arrays, JSON meta) for a model store."""
        return {"coefficients": self.coefficients, "offset": self.offset}, {"view": self.view}


@dataclass(frozen=True)
class RowGram(Operator):
    """X X' of rows in memory, through products with X: sparse rows stay sparse until a factorisation asks for `dense`."""

    X: Any

    @property
    def n(self) -> int:  # type: ignore[override]
        return self.X.shape[0]

    @property
    def dtype(self) -> np.dtype:  # type: ignore[override]
        return self.X.dtype

    def _apply(self, B: np.ndarray, dtype: np.dtype) -> np.ndarray:
        return np.asarray(self.X @ (self.X.T @ B), dtype)

    def diagonal(self) -> np.ndarray:
        square = self.X.multiply(self.X) if scipy.sparse.issparse(self.X) else self.X * self.X
        return np.asarray(square.sum(axis=1), np.float64).ravel()

    def columns(self, index: np.ndarray) -> np.ndarray:
        return dense(self.X @ self.X[index].T)

    def dense(self, dtype: Any = np.float64) -> np.ndarray:
        out = np.empty((self.n, self.n), dtype)
        for where in row_blocks(self.n, 512):  # a sparse product of all rows at once would hold every entry twice
            out[where] = dense(self.X[where] @ self.X.T)
        return out


def dense(block: Any) -> np.ndarray:
    """A row block as a NumPy array."""
    return block.toarray() if scipy.sparse.issparse(block) else np.asarray(block)
