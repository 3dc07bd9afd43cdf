"""A linear kernel's own factor: the rows themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from dmo.blocks import Rows, double, rows
from dmo.kernels import Linear, normalize_rows, parse
from dmo.lowrank.feature_maps import BLOCK, FeatureMap


@dataclass(frozen=True, eq=False, repr=False)
class LinearMap(FeatureMap):
    """f(x) = x - s, x normalized as the kernel does: f(x)'f(y) = k(x, y) without error where the shift s is 0.

    A shift is for problems that center their rows, which never see it: sums of products of rows far from the origin would
    have lost their differences before the mean is taken off. Factor rows are dense and float64.
    """

    shift: np.ndarray

    kind = "linear"

    @classmethod
    def of(cls, kernel: Linear, X: Rows, center: bool) -> LinearMap:
        """`center`: whether the rows will be centered; the shift is then the mean of the first rows of X (n x d)."""
        exact = {"relative_error": 0.0, "residual_diagonal": 0.0}
        plain = cls(kernel, np.dtype(np.float64), np.zeros(X.shape[1]), error=exact)
        if not center:
            return plain
        return cls(kernel, plain.dtype, plain.raw(rows(X, slice(0, BLOCK))).mean(axis=0), error=exact)

    @property
    def rank(self) -> int:
        return len(self.shift)

    def raw(self, X: Rows) -> np.ndarray:
        block = double(self._block(X, self.rank))
        block = normalize_rows(block, getattr(self.kernel, "normalize", None))
        return (block.toarray() if scipy.sparse.issparse(block) else block) - self.shift

    def numbers(self, n: int) -> int:
        return n * self.rank

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"shift": self.shift}, {}

    @classmethod
    def _from_arrays(cls, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> LinearMap:
        return cls(parse(meta["kernel"]), np.dtype(meta["dtype"]), arrays["shift"], error=dict(meta["error"]))
