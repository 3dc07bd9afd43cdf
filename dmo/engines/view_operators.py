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
    """What a projection needs of a view that is known by products."""

    @property
    def operator(self) -> Operator:
        """The n x n kernel."""

    @property
    def dtype(self) -> np.dtype:
        """Precision of the operator's entries."""

    def function(self, coefficients: np.ndarray) -> tuple[Expansion, np.ndarray]:
        """Make the function of new rows.

        coefficients (n, k) -> values (n, k)
        """
        ...


@dataclass(frozen=True)
class KernelView:
    """A kernel over the rows of a view, its tiles wherever the exact engine put them.

    sources (n, d)
    """

    operator: Operator  # the kernel, centered where that is wanted
    dtype: np.dtype  # precision of its entries
    kernel: MultiKernel  # fitted
    sources: Mapping[str, Rows]  # (n, d): the training rows by view

    @classmethod
    def build(
        cls,
        approximation: Any,
        view: str,
        X: Rows,
        kernel: Any,
        ridge: float,
        center: bool,
        random_state: int | None,
        weights: np.ndarray | None = None,
    ) -> KernelView:
        """Fit the kernel and put its tiles in place.

        X (n, d); weights (n,)
        """
        engine, sources = exact_engine(approximation), {view: X}
        storage = choose_storage(engine, X.shape[0], 1)
        built = build(engine, MultiKernel.of(view, parse(kernel)), sources, ridge, storage, random_state, weights)
        operator = built.operator.centered() if center else built.operator
        if weights is not None:  # their own mean is taken off: that of all rows alike would not be blind to it
            operator = built.operator.weighted(weights, center)
        return cls(operator, np.dtype(built.dtype), built.kernel, sources)

    def function(self, coefficients: np.ndarray) -> tuple[Expansion, np.ndarray]:
        """Make the function of new rows.

        coefficients (n, k) -> values (n, k)
        """
        C, offset = self.operator.expansion(coefficients)
        # in the order that a store gives it back, so that a loaded model is the same to the bit
        expansion = KernelExpansion(self.kernel, self.sources, np.ascontiguousarray(C), offset, self.dtype)
        return expansion, self.operator @ coefficients


@dataclass(frozen=True)
class DualView:
    """A linear kernel through n x n products with the rows; the function of new rows is linear again."""

    view: str  # name of the view
    operator: RowGram  # X X' of (centered) rows

    @classmethod
    def build(cls, view: str, X: Rows, center: bool, weights: np.ndarray | None = None) -> DualView:
        """Read the rows into memory, sparse ones as they are.

        X (n, d); weights (n,)
        """
        return cls(view, RowGram.of(rows(X), center, weights))

    @property
    def dtype(self) -> np.dtype:
        """Of the products."""
        return self.operator.dtype

    def function(self, coefficients: np.ndarray) -> tuple[Expansion, np.ndarray]:
        """Make the function of new rows.

        coefficients (n, k) -> values (n, k)
        """
        factor = self.operator.factor
        # W first, and the values from W: they are then those of the function, and X X' is not formed
        W = factor.t_dot(coefficients)
        offset = np.zeros(W.shape[1]) if factor.mean is None else -(factor.mean @ W)
        return LinearExpansion(self.view, W, offset), factor.dot(W)
