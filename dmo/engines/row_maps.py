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
    """A function of rows, such as a `FeatureMap`; `to_arrays` tells it from others."""

    def raw(self, X: Any, /) -> Any:
        """Map rows in memory to factor rows.

        X (m, d) -> (m, r)
        """
        ...

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Describe what the factor rows depend on."""
        ...


@dataclass(frozen=True)
class ShiftedRows:
    """Rows as their own factor rows, less a shift that keeps the digits of features far from the origin.

    shift (d,)
    """

    # Sparse rows stay as they are: they lie near the origin, and would not stay sparse.

    shift: np.ndarray | None  # (d,): the shift

    def raw(self, X: Any, /) -> Any:
        """Take rows less the shift.

        X (m, d) -> (m, d)
        """
        block = double(X)
        return block if self.shift is None or scipy.sparse.issparse(block) else block - self.shift

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Describe the shift."""
        return {} if self.shift is None else {"shift": self.shift}, {"kind": "shifted"}


@dataclass(frozen=True)
class SubspaceCoordinates:
    """Rows less their mean, in the coordinates of a subspace of linear functions."""

    subspace: Subspace  # basis and mean, see `dmo.engines.krylov.subspaces`

    def raw(self, X: Any, /) -> np.ndarray:
        """Work out coordinates, (X - 1 mean') Q, the mean taken after the product, which leaves sparse rows sparse.

        X (m, d) -> (m, r)
        """
        Q = self.subspace.basis
        return np.asarray(double(X) @ Q) - self.subspace.mean @ Q

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Describe the subspace."""
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
