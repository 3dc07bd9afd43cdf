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
    """The rows themselves as the factor of a linear kernel: f(x) = x - s, x normalized as the kernel does.

    f(x)'f(y) = k(x, y) without error where the shift s is 0. A shift is for problems that center their rows, which
    never see
    it: sums of products of rows far from the origin would have lost their differences before the mean is taken off. Factor
    rows are dense and float64.

    Parameters
    ----------
    kernel : Linear
        The kernel.
    dtype : dtype
        Of the factor rows, float64.
    shift : ndarray of shape (d,)
        s.
    error : dict, default={}
        Its sampled errors, which are 0.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import Linear
    >>> from dmo.lowrank.linear_map import LinearMap
    >>> X = np.random.default_rng(0).normal(size=(6, 3))
    >>> F = LinearMap.of(Linear(), X, center=False)(X)
    >>> bool(np.allclose(F @ F.T, X @ X.T))
    True
    """

    shift: np.ndarray

    kind = "linear"

    @classmethod
    def of(cls, kernel: Linear, X: Rows, center: bool) -> LinearMap:
        """Make the map for some rows.

        Parameters
        ----------
        kernel : Linear
            The kernel.
        X : row source of shape (n, d)
            Rows, in chunks of whole rows.
        center : bool
            Whether the rows will be centered; the shift is then the median of the first rows.

        Returns
        -------
        LinearMap
            The map.
        """
        exact = {"relative_error": 0.0, "residual_diagonal": 0.0}
        plain = cls(kernel, np.dtype(np.float64), np.zeros(X.shape[1]), error=exact)
        if not center:
            return plain
        # medians: a few absurd rows, which a fold may hold out, do not move the origin away from the others
        return cls(kernel, plain.dtype, np.median(plain.raw(rows(X, slice(0, BLOCK))), axis=0), error=exact)

    @property
    def rank(self) -> int:
        """Columns of the factor: the features."""
        return len(self.shift)

    def raw(self, X: Rows) -> np.ndarray:
        """Map rows in memory to factor rows.

        Parameters
        ----------
        X : ndarray or csr_array of shape (m, d)
            Rows.

        Returns
        -------
        ndarray of shape (m, d), float64
            Factor rows.
        """
        block = double(self._block(X, self.rank))
        block = normalize_rows(block, getattr(self.kernel, "normalize", None))
        return (block.toarray() if scipy.sparse.issparse(block) else block) - self.shift

    def numbers(self, n: int) -> int:
        """Count the numbers that the factor of n rows takes.

        Parameters
        ----------
        n : int
            Rows.

        Returns
        -------
        int
            n d.
        """
        return n * self.rank

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"shift": self.shift}, {}

    @classmethod
    def _from_arrays(cls, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> LinearMap:
        return cls(parse(meta["kernel"]), np.dtype(meta["dtype"]), arrays["shift"], error=dict(meta["error"]))
