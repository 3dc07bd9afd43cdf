"""The kernel of one view as an n x n operator, and the function of new rows that coefficients on its columns stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dmo.blocks import Rows, rows
from dmo.engines.exact import build, choose_storage, exact_engine
from dmo.functions import Expansion, KernelExpansion, LinearExpansion
from dmo.kernels import parse
from dmo.kernels.multikernel import MultiKernel
from dmo.linalg.operators import Operator
from dmo.linalg.row_gram import RowGram


class ViewOperator(Protocol):
    """What a projection needs of a view: `dtype`: of the operator's entries."""

    @property
    def operator(self) -> Operator: ...

    @property
    def dtype(self) -> np.dtype: ...

    def function(self, coefficients: np.ndarray) -> tuple[Expansion, np.ndarray]:
        """Coefficients (n x k) on the operator's columns as a function of new rows, and its values on the training rows."""
        ...


@dataclass(frozen=True)
class KernelView:
    """A kernel over the rows of a view, its tiles wherever the exact engine put them."""

    operator: Operator
    dtype: np.dtype
    kernel: MultiKernel
    sources: Mapping[str, Rows]

    @classmethod
    def build(
        cls, approximation: Any, view: str, X: Rows, kernel: Any, ridge: float, center: bool, random_state: int | None
    ) -> KernelView:
        """Fit the kernel, put its tiles in place. `ridge`: the smallest that is solved with, which decides the precision."""
        engine, sources = exact_engine(approximation), {view: X}
        storage = choose_storage(engine, X.shape[0], 1)
        built = build(engine, MultiKernel.of(view, parse(kernel)), sources, ridge, storage, random_state)
        operator = built.operator.centered() if center else built.operator
        return cls(operator, np.dtype(built.dtype), built.kernel, sources)

    def function(self, coefficients: np.ndarray) -> tuple[Expansion, np.ndarray]:
        """See `ViewOperator`."""
        C, offset = self.operator.expansion(coefficients)
        expansion = KernelExpansion(self.kernel, self.sources, np.ascontiguousarray(C), offset, self.dtype)
        return expansion, self.operator @ coefficients


@dataclass(frozen=True)
class DualView:
    """A linear kernel through n x n products with the rows; the function of new rows is linear again."""

    view: str
    operator: RowGram

    @classmethod
    def build(cls, view: str, X: Rows, center: bool) -> DualView:
        """Rows in memory, sparse ones as they are; `center`: less their mean."""
        return cls(view, RowGram.of(rows(X), center))

    @property
    def dtype(self) -> np.dtype:
        """Of the products."""
        return self.operator.dtype

    def function(self, coefficients: np.ndarray) -> tuple[Expansion, np.ndarray]:
        """See `ViewOperator`."""
        factor = self.operator.factor
        W = factor.t_dot(coefficients)
        offset = np.zeros(W.shape[1]) if factor.mean is None else -(factor.mean @ W)
        return LinearExpansion(self.view, W, offset), factor.dot(W)
