"""What a pass multiplies: rows as they are, in a subspace, weighted, or tagged with where they stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from dmo.blocks import Rows, double, rows
from dmo.engines.krylov import Subspace
from dmo.linalg.operators import dense


@dataclass(frozen=True)
class _AsIs:
    """Rows as their own factor rows, less a shift that keeps the digits of features far from the origin."""

    shift: np.ndarray | None

    def raw(self, block: Any) -> Any:
        block = double(block)
        return block if self.shift is None or scipy.sparse.issparse(block) else block - self.shift


@dataclass(frozen=True)
class _InSubspace:
    """Rows less their mean in the coordinates of a subspace."""

    subspace: Subspace

    def raw(self, block: Any) -> Any:
        Q = self.subspace.basis
        return np.asarray(double(block) @ Q) - self.subspace.mean @ Q


@dataclass(frozen=True)
class _Tagged:
    """Rows with their weight as one more column."""

    source: Rows
    weights: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        return self.source.shape[0], self.source.shape[1] + 1

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.float64)

    def __getitem__(self, where: slice) -> Any:
        block, weight = rows(self.source, where), self.weights[where, None]
        if scipy.sparse.issparse(block):
            return scipy.sparse.csr_array(scipy.sparse.hstack([block, scipy.sparse.csr_array(weight)]))
        return np.hstack([block, weight])


@dataclass(frozen=True)
class _Weighted:
    """Factor rows multiplied by their weight, the last column."""

    feature_map: Any

    def raw(self, block: Any) -> Any:
        weight = dense(block[:, -1:])
        found = self.feature_map.raw(block[:, :-1])
        if scipy.sparse.issparse(found):
            return scipy.sparse.csr_array(found.multiply(weight))
        return (found.dense() if hasattr(found, "dense") else found) * weight
