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
from dmo.errors import UserError, amount
from dmo.fit.engine import fit_maps
from dmo.fit.functions import Expansion, FactorExpansion, LinearExpansion
from dmo.fit.krylov import RowMap, ShiftedRows, Subspace, SubspaceCoordinates
from dmo.fit.moments import ROWS, WEIGHTED, Moments
from dmo.fit.passes import FeatureRows, collect_moments
from dmo.lowrank import FeatureMap

_SOME = 256  # rows whose mean stands near the others


class ViewColumns(Protocol):
    """What a projection needs of a view that a pass over the rows turns into columns."""

    @property
    def row_map(self) -> RowMap:
        """What the pass makes of the rows."""

    @property
    def trace(self) -> float | None:
        """Trace of the kernel, where the columns lack some of it; else None."""

    def function(self, coefficients: np.ndarray, offset: np.ndarray) -> Expansion:
        """Make the function of new rows.

        coefficients (r, k); offset (k,)
        """
        ...


@dataclass(frozen=True)
class FeatureColumns:
    """The features themselves, less a shift near their mean."""

    view: str  # name of the view
    row_map: ShiftedRows  # what takes the shift off
    trace: None = None  # the columns lack nothing

    @classmethod
    def of(cls, view: str, X: Rows, center: bool) -> FeatureColumns:
        """Take the features of some rows.

        X (n, d)
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

        coefficients (r, k); offset (k,)
        """
        shift = self.row_map.shift
        return LinearExpansion(self.view, coefficients, offset if shift is None else offset - shift @ coefficients)


@dataclass(frozen=True)
class SubspaceColumns:
    """Coordinates of the rows in a subspace of linear functions, which passes over the rows have found."""

    view: str  # name of the view
    subspace: Subspace  # basis, mean and trace

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

        coefficients (r, k); offset (k,)
        """
        W = self.subspace.basis @ coefficients
        return LinearExpansion(self.view, W, offset - self.subspace.mean @ W)


@dataclass(frozen=True)
class FactorColumns:
    """Factor rows of a low-rank kernel."""

    view: str  # name of the view
    row_map: FeatureMap  # fitted
    trace: None = None  # the columns lack nothing

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

        X (n, d); weights (n,)
        """
        counts = None if weights is None else {view: weights}
        return cls(view, fit_maps(approximation, kernel, {view: X}, random_state, center, counts)[view])

    def function(self, coefficients: np.ndarray, offset: np.ndarray) -> Expansion:
        """Make the function of new rows.

        coefficients (r, k); offset (k,)
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

    X (n, d); labels (n, q); diagonal, weights (n,)
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
