"""Maps from rows to what a pass multiplies: feature maps, rows less a shift, coordinates in a subspace, weighted rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import scipy.sparse

from dmo.blocks import double
from dmo.devices import foreign, placed
from dmo.engines.krylov import Subspace


class RowMap(Protocol):
    """A function of rows, such as a `FeatureMap`; `to_arrays` tells it from others.

    Parameters
    ----------
    *args : object
        A protocol: not made by itself.
    **kwargs : object
        A protocol: not made by itself.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.engines.row_maps import ShiftedRows
    >>> ShiftedRows(np.ones(2)).raw(np.ones((1, 2))).tolist()
    [[0.0, 0.0]]
    """

    def raw(self, X: Any, /) -> Any:
        """Map rows in memory to factor rows.

        Parameters
        ----------
        X : ndarray or csr_array of shape (m, d)
            Rows.

        Returns
        -------
        ndarray, csr_array or BlockRows of shape (m, r)
            Factor rows.
        """
        ...

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Describe what the factor rows depend on.

        Returns
        -------
        arrays : dict of str to ndarray
            Arrays.
        meta : dict
            JSON.
        """
        ...


@dataclass(frozen=True)
class ShiftedRows:
    """Rows as their own factor rows, less a shift that keeps the digits of features far from the origin.

    Sparse rows stay as they are: they lie near the origin, and would not stay sparse.

    Parameters
    ----------
    shift : ndarray of shape (d,) or None
        The shift.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.engines.row_maps import ShiftedRows
    >>> ShiftedRows(np.array([1.0, 2.0])).raw(np.array([[1.0, 5.0]])).tolist()
    [[0.0, 3.0]]
    """

    shift: np.ndarray | None

    def raw(self, X: Any, /) -> Any:
        """Take rows less the shift.

        Parameters
        ----------
        X : ndarray or csr_array of shape (m, d)
            Rows.

        Returns
        -------
        ndarray or csr_array of shape (m, d), float64
            X - shift.
        """
        block = double(X)
        return block if self.shift is None or scipy.sparse.issparse(block) else block - self.shift

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Describe the shift.

        Returns
        -------
        arrays : dict of str to ndarray
            The shift, if there is one.
        meta : dict
            JSON.
        """
        return {} if self.shift is None else {"shift": self.shift}, {"kind": "shifted"}


@dataclass(frozen=True)
class SubspaceCoordinates:
    """Rows less their mean, in the coordinates of a subspace of linear functions.

    Parameters
    ----------
    subspace : Subspace
        Basis and mean, see `dmo.engines.krylov.subspaces`.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.engines.krylov import Krylov, subspaces
    >>> from dmo.engines.row_maps import SubspaceCoordinates
    >>> X = np.random.default_rng(0).normal(size=(50, 8))
    >>> SubspaceCoordinates(next(subspaces(Krylov(steps=1, extra=3), X, None, True, 0))).raw(X).shape
    (50, 3)
    """

    subspace: Subspace

    def raw(self, X: Any, /) -> np.ndarray:
        """Work out coordinates, (X - 1 mean') Q, the mean taken after the product, which leaves sparse rows sparse.

        Parameters
        ----------
        X : ndarray or csr_array of shape (m, d)
            Rows.

        Returns
        -------
        ndarray of shape (m, r)
            Coordinates.
        """
        Q = self.subspace.basis
        return np.asarray(double(X) @ Q) - self.subspace.mean @ Q

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Describe the subspace.

        Returns
        -------
        arrays : dict of str to ndarray
            Basis and mean.
        meta : dict
            JSON.
        """
        return {"basis": self.subspace.basis, "mean": self.subspace.mean}, {"kind": "subspace"}


def weighted(factor_rows: Any, weights: np.ndarray) -> Any:
    """Factor rows (m x r) times their weights (m); sparse rows stay sparse, block-sparse ones become dense."""
    if foreign(factor_rows) is not None:
        return factor_rows * placed(weights, factor_rows)[:, None]
    if scipy.sparse.issparse(
        factor_rows
    ):  # csr_array: `multiply` gives COO, which the products after it would convert each
        return scipy.sparse.csr_array(factor_rows.multiply(weights[:, None]))
    return (factor_rows.dense() if hasattr(factor_rows, "dense") else factor_rows) * weights[:, None]
