"""The rows of one view as columns whose moments one pass collects, and the function of new rows that coefficients on these
columns stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import psutil
import scipy.sparse

from dmo.blocks import Rows, sampled
from dmo.cluster import current_client
from dmo.engines.krylov import Subspace
from dmo.engines.lowrank import fit_maps
from dmo.engines.moments import ROWS, WEIGHTED, Moments
from dmo.engines.passes import FeatureRows, collect_moments
from dmo.engines.row_maps import RowMap, ShiftedRows, SubspaceCoordinates
from dmo.errors import UserError, amount
from dmo.functions import Expansion, FactorExpansion, LinearExpansion
from dmo.lowrank import FeatureMap

_SOME = 256  # rows whose mean stands near the others


class ViewColumns(Protocol):
    """What a projection needs of a view that a pass over the rows turns into columns.

    Parameters
    ----------
    *args : object
        A protocol: not made by itself.
    **kwargs : object
        A protocol: not made by itself.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.engines.view_moments import FeatureColumns
    >>> FeatureColumns.of("x", np.ones((5, 2)), center=True).function(np.eye(2), np.zeros(2))({"x": np.ones((1, 2))}).tolist()
    [[0.0, 0.0]]
    """

    @property
    def row_map(self) -> RowMap:
        """What the pass makes of the rows."""

    @property
    def trace(self) -> float | None:
        """Trace of the kernel, where the columns lack some of it; else None."""

    def function(self, coefficients: np.ndarray, offset: np.ndarray) -> Expansion:
        """Make the function of new rows.

        Parameters
        ----------
        coefficients : ndarray of shape (r, k)
            On the columns.
        offset : ndarray of shape (k,)
            Added to all values.

        Returns
        -------
        Expansion
            The function.
        """
        ...


@dataclass(frozen=True)
class FeatureColumns:
    """The features themselves, less a shift near their mean.

    Parameters
    ----------
    view : str
        Name of the view.
    row_map : ShiftedRows
        What takes the shift off.
    trace : None, default=None
        The columns lack nothing.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.engines.view_moments import FeatureColumns, collect_view
    >>> X = np.ones((5, 2))
    >>> collect_view(FeatureColumns.of("x", X, center=False), X, None).sums.tolist()
    [5.0, 5.0]
    """

    view: str
    row_map: ShiftedRows
    trace: None = None

    @classmethod
    def of(cls, view: str, X: Rows, center: bool) -> FeatureColumns:
        """Take the features of some rows.

        Parameters
        ----------
        view : str
            Name of the view.
        X : row source of shape (n, d)
            Rows, in chunks of whole rows.
        center : bool
            Whether the rows will be centered: then they are taken less a row amid them.

        Returns
        -------
        FeatureColumns
            The columns.

        Raises
        ------
        UserError
            Where the moments of so many features do not fit in memory.
        """
        needed, free = 8 * 4.0 * X.shape[1] ** 2, psutil.virtual_memory().available
        if needed > free / 2:
            raise UserError(
                f"{X.shape[1]} features need {amount(needed)} of moments, free are {amount(free)}; "
                f"take the dual problem, or approximation=Nystrom(...)"
            )
        return cls(view, ShiftedRows(_amid(X) if center else None))

    def function(self, coefficients: np.ndarray, offset: np.ndarray) -> Expansion:
        """Make the function of new rows.

        Parameters
        ----------
        coefficients : ndarray of shape (r, k)
            On the columns.
        offset : ndarray of shape (k,)
            Added to all values.

        Returns
        -------
        Expansion
            The function.
        """
        shift = self.row_map.shift
        return LinearExpansion(self.view, coefficients, offset if shift is None else offset - shift @ coefficients)


@dataclass(frozen=True)
class SubspaceColumns:
    """Coordinates of the rows in a subspace of linear functions, which passes over the rows have found.

    Parameters
    ----------
    view : str
        Name of the view.
    subspace : Subspace
        Basis, mean and trace.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.engines.krylov import Krylov, subspaces
    >>> from dmo.engines.view_moments import SubspaceColumns, collect_view
    >>> X = np.random.default_rng(0).normal(size=(50, 8))
    >>> found = next(subspaces(Krylov(steps=1, extra=3), X, None, True, 0))
    >>> collect_view(SubspaceColumns("x", found), X, None).gram.shape
    (3, 3)
    """

    view: str
    subspace: Subspace

    @property
    def row_map(self) -> SubspaceCoordinates:
        """Of the pass."""
        return SubspaceCoordinates(self.subspace)

    @property
    def trace(self) -> float:
        """Of the linear kernel of all directions."""
        return self.subspace.trace

    def function(self, coefficients: np.ndarray, offset: np.ndarray) -> Expansion:
        """Make the function of new rows.

        Parameters
        ----------
        coefficients : ndarray of shape (r, k)
            On the columns.
        offset : ndarray of shape (k,)
            Added to all values.

        Returns
        -------
        Expansion
            The function.
        """
        W = self.subspace.basis @ coefficients
        return LinearExpansion(self.view, W, offset - self.subspace.mean @ W)


@dataclass(frozen=True)
class FactorColumns:
    """Factor rows of a low-rank kernel.

    Parameters
    ----------
    view : str
        Name of the view.
    row_map : FeatureMap
        Fitted.
    trace : None, default=None
        The columns lack nothing.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo import Nystrom
    >>> from dmo.engines.view_moments import FactorColumns
    >>> X = np.random.default_rng(0).normal(size=(50, 8))
    >>> FactorColumns.fit(Nystrom(rank=5), "x", X, "rbf", True, 0).row_map.rank
    5
    """

    view: str
    row_map: FeatureMap
    trace: None = None

    @classmethod
    def fit(
        cls,
        approximation: Any,
        view: str,
        X: Rows,
        kernel: Any,
        center: bool,
        random_state: int | None,
        weights: np.ndarray | None = None,
    ) -> FactorColumns:
        """Fit the feature map on the rows.

        Parameters
        ----------
        approximation : Nystrom, Meka or BestLowRank
            The low-rank kernel.
        view : str
            Name of the view.
        X : row source of shape (n, d)
            Rows, in chunks of whole rows.
        kernel : str or Kernel
            The kernel.
        center : bool
            Whether factor rows will be centered.
        random_state : int or None
            Seed.
        weights : ndarray of shape (n,) or None, default=None
            How often every row counts for a bandwidth; None: once.

        Returns
        -------
        FactorColumns
            The columns.
        """
        counts = None if weights is None else {view: weights}
        return cls(view, fit_maps(approximation, kernel, {view: X}, random_state, center, counts)[view])

    def function(self, coefficients: np.ndarray, offset: np.ndarray) -> Expansion:
        """Make the function of new rows.

        Parameters
        ----------
        coefficients : ndarray of shape (r, k)
            On the columns.
        offset : ndarray of shape (k,)
            Added to all values.

        Returns
        -------
        Expansion
            The function.
        """
        return FactorExpansion.of(self.view, self.row_map, coefficients, offset)


def collect_view(
    columns: ViewColumns,
    X: Rows,
    labels: np.ndarray | None,
    diagonal: np.ndarray | None = None,
    weights: np.ndarray | None = None,
) -> Moments:
    """Collect moments of a view's columns and label columns in one pass over the rows.

    Parameters
    ----------
    columns : ViewColumns
        What the pass makes of the rows.
    X : row source of shape (n, d)
        Rows, in chunks of whole rows.
    labels : ndarray of shape (n, q) or None
        Label columns.
    diagonal : ndarray of shape (n,) or None, default=None
        Factors by which the same columns are collected once more.
    weights : ndarray of shape (n,) or None, default=None
        How often every row counts; None: once each.

    Returns
    -------
    Moments
        With the groups ROWS, labels and, with a diagonal, WEIGHTED.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.engines.view_moments import FeatureColumns, collect_view
    >>> X = np.ones((5, 2))
    >>> collect_view(FeatureColumns.of("x", X, center=False), X, np.ones((5, 1))).gram.shape
    (3, 3)
    """
    twice = {} if diagonal is None else {WEIGHTED: (ROWS, diagonal)}
    passed = FeatureRows({ROWS: X}, {ROWS: columns.row_map}, weights=twice)
    moments = collect_moments(passed, labels, client=current_client(), weights=weights)[0]
    mixing = getattr(columns.row_map, "mixing", None)
    if mixing is None:
        return moments
    return moments.mixed({name: mixing for name in (ROWS, WEIGHTED) if name in moments.widths})


def _amid(X: Rows) -> np.ndarray | None:
    """The mean (d) of the first rows, which keeps the digits of features far from the origin; None for sparse rows."""
    some = sampled(X, np.arange(min(X.shape[0], _SOME)))
    return None if scipy.sparse.issparse(some) else some.mean(axis=0, dtype=np.float64)
