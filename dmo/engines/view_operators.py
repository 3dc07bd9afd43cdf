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
    """What a projection needs of a view that is known by products.

    Parameters
    ----------
    *args : object
        A protocol: not made by itself.
    **kwargs : object
        A protocol: not made by itself.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.engines.view_operators import DualView
    >>> DualView.build("x", np.ones((5, 2)), center=False).operator.shape
    (5, 5)
    """

    @property
    def operator(self) -> Operator:
        """The n x n kernel."""

    @property
    def dtype(self) -> np.dtype:
        """Precision of the operator's entries."""

    def function(self, coefficients: np.ndarray) -> tuple[Expansion, np.ndarray]:
        """Make the function of new rows.

        Parameters
        ----------
        coefficients : ndarray of shape (n, k)
            On the operator's columns.

        Returns
        -------
        function : Expansion
            Of new rows.
        values : ndarray of shape (n, k)
            On the training rows.
        """
        ...


@dataclass(frozen=True)
class KernelView:
    """A kernel over the rows of a view, its tiles wherever the exact engine put them.

    Parameters
    ----------
    operator : Operator
        The kernel, centered where that is wanted.
    dtype : dtype
        Precision of its entries.
    kernel : MultiKernel
        Fitted.
    sources : mapping of str to row source of shape (n, d)
        The training rows by view.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.engines.view_operators import KernelView
    >>> X = np.random.default_rng(0).normal(size=(6, 2))
    >>> KernelView.build("exact", "x", X, "rbf", 0.1, True, 0).function(np.ones((6, 3)))[1].shape
    (6, 3)
    """

    operator: Operator
    dtype: np.dtype
    kernel: MultiKernel
    sources: Mapping[str, Rows]

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

        Parameters
        ----------
        approximation : Exact or "exact"
            Where the tiles live.
        view : str
            Name of the view.
        X : row source of shape (n, d)
            Rows, in chunks of whole rows.
        kernel : str or Kernel
            The kernel.
        ridge : float
            The smallest that is solved with, which decides the precision.
        center : bool
            Center the kernel.
        random_state : int or None
            Seed.
        weights : ndarray of shape (n,) or None, default=None
            Of the rows, above 0: the operator is that of their images times the roots. None: 1 each.

        Returns
        -------
        KernelView
            The view.
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

        Parameters
        ----------
        coefficients : ndarray of shape (n, k)
            On the operator's columns.

        Returns
        -------
        function : Expansion
            Of new rows.
        values : ndarray of shape (n, k)
            On the training rows; times the roots of their weights.
        """
        C, offset = self.operator.expansion(coefficients)
        # in the order that a store gives it back, so that a loaded model is the same to the bit
        expansion = KernelExpansion(self.kernel, self.sources, np.ascontiguousarray(C), offset, self.dtype)
        return expansion, self.operator @ coefficients


@dataclass(frozen=True)
class DualView:
    """A linear kernel through n x n products with the rows; the function of new rows is linear again.

    Parameters
    ----------
    view : str
        Name of the view.
    operator : RowGram
        X X' of (centered) rows.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.engines.view_operators import DualView
    >>> DualView.build("x", np.eye(3), center=False).function(np.ones((3, 1)))[1].ravel().tolist()
    [1.0, 1.0, 1.0]
    """

    view: str
    operator: RowGram

    @classmethod
    def build(cls, view: str, X: Rows, center: bool, weights: np.ndarray | None = None) -> DualView:
        """Read the rows into memory, sparse ones as they are.

        Parameters
        ----------
        view : str
            Name of the view.
        X : row source of shape (n, d)
            Rows, in chunks of whole rows.
        center : bool
            Take them less their mean.
        weights : ndarray of shape (n,) or None, default=None
            Of the rows, above 0: the operator is that of the rows times the roots. None: 1 each.

        Returns
        -------
        DualView
            The view.
        """
        return cls(view, RowGram.of(rows(X), center, weights))

    @property
    def dtype(self) -> np.dtype:
        """Of the products."""
        return self.operator.dtype

    def function(self, coefficients: np.ndarray) -> tuple[Expansion, np.ndarray]:
        """Make the function of new rows.

        Parameters
        ----------
        coefficients : ndarray of shape (n, k)
            On the operator's columns.

        Returns
        -------
        function : Expansion
            Of new rows.
        values : ndarray of shape (n, k)
            On the training rows; times the roots of their weights.
        """
        factor = self.operator.factor
        # W first, and the values from W: they are then those of the function, and X X' is not formed
        W = factor.t_dot(coefficients)
        offset = np.zeros(W.shape[1]) if factor.mean is None else -(factor.mean @ W)
        return LinearExpansion(self.view, W, offset), factor.dot(W)
