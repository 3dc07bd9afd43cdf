"""Memory-efficient kernel approximation (MEKA): a basis per cluster of rows, and a matrix that links the clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse

from dmo.blocks import Rows, iterate
from dmo.kernels import Kernel, parse
from dmo.linalg.block_rows import BlockRows
from dmo.linalg.factors import BlockLowRank
from dmo.lowrank.clusters import nearest_center
from dmo.lowrank.feature_maps import BLOCK, FeatureMap
from dmo.lowrank.landmarks import Space


@dataclass(frozen=True, eq=False, repr=False)
class MekaMap(FeatureMap):
    """A MEKA map: f(x) = T' w(x), w(x) = M_s' [k(Z_s, x); k(Z_0, x)] in the columns of the cluster s whose center is nearest.

    Parameters
    ----------
    kernel : Kernel
        Fitted.
    dtype : dtype
        Of the factor rows.
    space : str
        In which rows are compared with the `centers`.
    centers : ndarray of shape (S, d)
        Centers of the clusters.
    shared : ndarray or csr_array of shape (m0, d)
        Landmarks Z_0 of all clusters.
    landmarks : sequence of ndarray or csr_array
        Z_s per cluster.
    projections : sequence of ndarray of shape (|Z_s| + |Z_0|, k_s)
        M_s per cluster, such that the training rows of W_s = w(X_s) are orthonormal columns.
    links : ndarray of shape (r0, r)
        T, with T T' = L.
    shares : ndarray of shape (S,)
        The clusters' shares of the rows.
    error : dict, default={}
        Its sampled errors, see `sampled_error`.

    References
    ----------
    Si, Hsieh, Dhillon 2014.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.lowrank import meka
    >>> X = np.random.default_rng(0).normal(size=(300, 4))
    >>> found = meka("rbf", X, clusters=3, rank=8, random_state=0)
    >>> found(X[:5]).shape == (5, found.rank)
    True
    """

    space: Space
    centers: np.ndarray
    shared: np.ndarray | scipy.sparse.csr_array
    landmarks: Sequence[np.ndarray | scipy.sparse.csr_array]
    projections: Sequence[np.ndarray]
    links: np.ndarray
    shares: np.ndarray

    kind = "meka"

    @property
    def rank(self) -> int:
        """Columns r of the factor."""
        return self.links.shape[1]

    @property
    def mixing(self) -> np.ndarray:
        """T (r0 x r), which links the clusters."""
        return self.links

    @property
    def ranks(self) -> np.ndarray:
        """k_s per cluster."""
        return np.array([M.shape[1] for M in self.projections])

    @cached_property
    def _ready(self) -> tuple[Any, list[Any], list[np.ndarray]]:
        prepare = self.kernel.prepare
        local = [prepare(Z, self.dtype) for Z in self.landmarks]
        return prepare(self.shared, self.dtype), local, [M.astype(self.dtype) for M in self.projections]

    def raw(self, X: Rows) -> BlockRows:
        """Map rows in memory to W, in which every row has the columns of its own cluster alone.

        Parameters
        ----------
        X : ndarray or csr_array of shape (m, d)
            Rows.

        Returns
        -------
        BlockRows of shape (m, r0)
            Rows before mixing.
        """
        return self._rows(X, self._ready[2])

    def times(self, X: Rows, coefficients: np.ndarray) -> np.ndarray:
        """Multiply rows of W by coefficients.

        Parameters
        ----------
        X : ndarray or csr_array of shape (m, d)
            Rows.
        coefficients : ndarray of shape (r0, k), float64
            B.

        Returns
        -------
        ndarray of shape (m, k), float64
            raw(X) B, see `FeatureMap.times`.
        """
        return self._rows(X, self.projections).dot(coefficients)

    def _rows(self, X: Rows, projections: Sequence[np.ndarray]) -> BlockRows:
        block = self._block(X, self.centers.shape[1])
        nearest = nearest_center(block, self.space, self.centers)
        order = np.argsort(nearest, kind="stable")
        rows = block[order]
        edges = np.searchsorted(nearest[order], np.arange(len(self.centers) + 1))
        offsets = np.concatenate([[0], np.cumsum(self.ranks)])
        prepared = self.kernel.prepare(rows, self.dtype)
        shared, local, _ = self._ready
        index, columns, blocks = [], [], []
        for s in range(len(self.centers)):
            if edges[s + 1] > edges[s]:
                mine = prepared[edges[s] : edges[s + 1]]
                index.append(order[edges[s] : edges[s + 1]])
                columns.append(slice(int(offsets[s]), int(offsets[s + 1])))
                blocks.append(_project(self.kernel, mine, local[s], shared, projections[s]))
        return BlockRows((block.shape[0], int(offsets[-1])), index, columns, blocks)

    def numbers(self, n: int) -> int:
        """Count the numbers that bases and links of n rows take.

        Parameters
        ----------
        n : int
            Rows.

        Returns
        -------
        int
            About n k + (S k)^2.
        """
        return round(n * float(self.shares @ self.ranks)) + int(self.ranks.sum()) ** 2

    def operator(self, X: Rows) -> BlockLowRank:
        """Make W L W' over some rows; W's n k_s numbers are held in memory.

        Parameters
        ----------
        X : row source of shape (n, d)
            Rows, in chunks of whole rows.

        Returns
        -------
        BlockLowRank
            The approximated kernel, n x n.
        """
        return BlockLowRank(BlockRows.concatenate([self.raw(block) for _, block in iterate(X, BLOCK)]), self.links)

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays = {"centers": self.centers, "shared": self.shared, "links": self.links, "shares": self.shares}
        for s, (Z, M) in enumerate(zip(self.landmarks, self.projections)):
            arrays |= {f"landmarks/{s}": Z, f"projections/{s}": M}
        return arrays, {"space": self.space}

    @classmethod
    def _from_arrays(cls, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> MekaMap:
        clusters = range(len(arrays["centers"]))
        return cls(
            parse(meta["kernel"]),
            np.dtype(meta["dtype"]),
            meta["space"],
            arrays["centers"],
            arrays["shared"],
            [arrays[f"landmarks/{s}"] for s in clusters],
            [arrays[f"projections/{s}"] for s in clusters],
            arrays["links"],
            arrays["shares"],
            error=dict(meta["error"]),
        )


def _project(kernel: Kernel, rows: Any, local: Any, shared: Any, projection: np.ndarray) -> np.ndarray:
    m = len(local)
    out = kernel.tile(rows, local) @ projection[:m]
    if len(shared):
        out += kernel.tile(rows, shared) @ projection[m:]
    return out
