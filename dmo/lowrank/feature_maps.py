"""Feature maps, which map samples to rows of a factor F such that F F' approximates the kernel matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from typing import Any, ClassVar

import numpy as np
import scipy.sparse

from dmo.blocks import Rows, dense, double, iterate, rows
from dmo.devices import foreign, moved, placed, to_numpy
from dmo.errors import UserError
from dmo.kernels import Kernel, Linear, normalize_rows, parse
from dmo.linalg.operators import LowRank, Operator
from dmo.linalg.tall import BlockRows
from dmo.persistence import without_prefix

BLOCK = 4096
"""Number of samples per block when a feature map computes factor rows."""


def multiplied(values: Any, factors: Sequence[np.ndarray]) -> np.ndarray:
    """Multiply a dense or block-sparse array of any library by several matrices in float64."""
    if (xp := foreign(values)) is not None:
        wide = xp.astype(values, xp.float64)
        return np.asarray(to_numpy(reduce(xp.matmul, [placed(factor, wide) for factor in factors], wide)))
    return np.asarray(reduce(lambda rows, factor: rows.dot(factor), factors, values))


@dataclass(frozen=True, eq=False, repr=False)
class FeatureMap:
    """Base class of fitted feature maps f, whose inner products f(x)'f(y) approximate kernel values k(x, y).

    Calling the map with m samples returns an array of shape (m, rank), which is computed block by block.

    Parameters
    ----------
    kernel : Kernel
        Fitted kernel.
    dtype : dtype
        Data type of the factor rows.
    error : dict, default={}
        Estimated approximation errors from `sampled_error`.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.lowrank import nystrom
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> nystrom("rbf", X, rank=10, random_state=0)(X[:5]).shape
    (5, 10)
    """

    kernel: Kernel
    dtype: np.dtype
    error: dict[str, float] = field(kw_only=True, default_factory=dict)

    kind: ClassVar[str]
    portable: ClassVar[bool] = False
    _kinds: ClassVar[dict[str, type[FeatureMap]]] = {}

    def __init_subclass__(cls) -> None:
        FeatureMap._kinds[cls.kind] = cls

    @property
    def rank(self) -> int:
        """Number of columns of the factor."""
        raise NotImplementedError

    @property
    def mixing(self) -> np.ndarray | None:
        """Matrix (r0 x rank, float64) that maps the rows of `raw` to factor rows, or None if they are equal."""
        return None

    def single(self, dtype: np.dtype) -> FeatureMap:
        """Return a copy with float32 output if float32 represents the samples exactly, otherwise the same map.

        Parameters
        ----------
        dtype : dtype
            Data type of the samples.

        Returns
        -------
        FeatureMap
            Feature map with the same factor rows, up to rounding.
        """
        return self

    def raw(self, X: Rows) -> np.ndarray | BlockRows:
        """Compute the factor rows before their multiplication by the `mixing` matrix.

        Parameters
        ----------
        X : ndarray or csr_array of shape (m, d)
            Samples as rows.

        Returns
        -------
        ndarray or BlockRows of shape (m, r0)
            Dense or block-sparse rows, which are the factor rows if `mixing` is None.
        """
        raise NotImplementedError

    def times(self, X: Rows, coefficients: np.ndarray) -> np.ndarray:
        """Multiply the rows of `raw` by coefficients, to predict new samples.

        Parameters
        ----------
        X : ndarray, csr_array, or array of another library, of shape (m, d)
            Samples as rows.
        coefficients : ndarray of shape (r0, k), float64
            Coefficients B of a linear model on the rows of `raw`.

        Returns
        -------
        ndarray of shape (m, k), float64
            Product raw(X) B. Sums are computed in float64, because large coefficients of both signs cancel. Sums in
            float32 would be ten times less accurate than the kernel values.
        """
        return multiplied(self.raw(X), [coefficients])

    def __repr__(self) -> str:
        return f"{type(self).__name__}(kernel={self.kernel}, rank={self.rank}, error={self.error})"

    def numbers(self, n: int) -> int:
        """Return the number of entries of the factor of n samples.

        Parameters
        ----------
        n : int
            Number of samples.

        Returns
        -------
        int
            Number of entries of the factor.
        """
        return n * self.rank

    def __call__(self, X: Rows) -> np.ndarray:
        """Compute the factor rows (m x rank) of m samples, block by block."""
        out = np.empty((X.shape[0], self.rank), self.dtype)
        mixing = None if self.mixing is None else self.mixing.astype(self.dtype)
        for where, block in iterate(X, BLOCK):
            part = to_numpy(self.raw(moved(block) if self.portable else block))
            if mixing is not None:
                part = part.dot(mixing)
            out[where] = part
        return out

    def operator(self, X: Rows) -> Operator:
        """Return the approximate kernel matrix of samples as a linear operator.

        Parameters
        ----------
        X : row source of shape (n, d)
            Samples as rows. Chunks must contain whole rows.

        Returns
        -------
        Operator
            Operator F F' of shape (n, n), with the factor F in memory.
        """
        return LowRank(self(X))

    def with_error(self, error: Mapping[str, float]) -> FeatureMap:
        """Return a copy of the map with other error estimates.

        Parameters
        ----------
        error : mapping
            Approximation errors from `sampled_error`.

        Returns
        -------
        FeatureMap
            Copy of the map.
        """
        return replace(self, error=dict(error))

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Convert the map to arrays and JSON metadata for saving.

        Returns
        -------
        arrays : dict of str to ndarray or csr_array
            Arrays of the map. Landmarks are CSR arrays if the map was fitted on sparse data.
        meta : dict
            Metadata that can be written as JSON.
        """
        arrays: dict[str, Any] = {}
        meta = {"kind": self.kind, "kernel": self.kernel.to_dict(), "dtype": self.dtype.name, "error": self.error}
        for name in self._own():
            value = getattr(self, name)
            if isinstance(value, list):
                arrays |= {f"{name}/{number}": part for number, part in enumerate(value)}
            elif value is not None:
                (meta if isinstance(value, str) else arrays)[name] = value
        return arrays, meta

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> FeatureMap:
        """Create a feature map from the output of `to_arrays`.

        Parameters
        ----------
        arrays : mapping of str to ndarray or csr_array
            Arrays of the map.
        meta : mapping
            Metadata of the map.

        Returns
        -------
        FeatureMap
            Restored map.

        Raises
        ------
        UserError
            If this version of dmo does not know the kind of map.
        """
        known = FeatureMap._kinds
        if meta.get("kind") not in known:
            raise UserError(f"feature map of kind {meta.get('kind')!r}; this version knows {', '.join(sorted(known))}")
        kind, stored = known[meta["kind"]], {**meta, **arrays}
        own = {name: stored[name] for name in kind._own() if name in stored}
        for name in kind._own():
            if parts := without_prefix(name, arrays):
                own[name] = [parts[str(number)] for number in range(len(parts))]
        return kind(parse(meta["kernel"]), np.dtype(meta["dtype"]), **own, error=dict(meta["error"]))

    @classmethod
    def _own(cls) -> list[str]:
        """Return the names of the fields that the base class does not define."""
        return [part.name for part in fields(cls) if part.name not in ("kernel", "dtype", "error")]

    def _block(self, X: Rows, width: int) -> np.ndarray | scipy.sparse.csr_array:
        """Read samples into memory and check their number of features."""
        block: Any = rows(X) if foreign(X) is None else X
        if block.ndim != 2 or block.shape[1] != width:
            raise UserError(f"{self.kind}: rows have shape {block.shape}, the map was fitted on {width} features")
        return block


@dataclass(frozen=True, eq=False, repr=False)
class LinearMap(FeatureMap):
    """Exact feature map f(x) = x - s of a linear kernel, with a constant shift s.

    Samples x are first normalized if the kernel normalizes them. With s = 0, f(x)'f(y) equals k(x, y) exactly. A
    nonzero shift changes the inner products, so it is only valid for models that center the factor rows. For samples
    far from the origin, the shift prevents a loss of precision before the centering. Factor rows are dense.

    Parameters
    ----------
    kernel : Linear
        Linear kernel.
    dtype : dtype
        Data type of the factor rows, which is float64, or float32 in maps that `single` returns.
    shift : ndarray of shape (d,)
        Shift s, which is subtracted from every sample.
    error : dict, default={}
        Approximation errors. `LinearMap.of` sets them to 0.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import Linear
    >>> from dmo.lowrank.feature_maps import LinearMap
    >>> X = np.random.default_rng(0).normal(size=(6, 3))
    >>> F = LinearMap.of(Linear(), X, center=False)(X)
    >>> bool(np.allclose(F @ F.T, X @ X.T))
    True
    """

    shift: np.ndarray

    kind = "linear"

    @classmethod
    def of(cls, kernel: Linear, X: Rows, center: bool) -> LinearMap:
        """Create the map and choose its shift.

        Parameters
        ----------
        kernel : Linear
            Linear kernel.
        X : row source of shape (n, d)
            Samples as rows. Chunks must contain whole rows.
        center : bool
            Whether the model centers the factor rows. If True, the shift is the median of the first 512 rows, and
            otherwise 0.

        Returns
        -------
        LinearMap
            Map with float64 factor rows.
        """
        exact = {"relative_error": 0.0, "residual_diagonal": 0.0}
        plain = cls(kernel, np.dtype(np.float64), np.zeros(X.shape[1]), error=exact)
        if not center:
            return plain
        # A few extreme rows would move the mean far away from all other rows, so use the median as the shift.
        found = cls(kernel, plain.dtype, np.median(plain.raw(rows(X, slice(0, BLOCK // 8))), axis=0), error=exact)
        if found.single(X.dtype) is found:
            return found
        # The float32 copy of this map must subtract exactly the same shift, so round the shift to float32.
        return replace(found, shift=found.shift.astype(np.float32).astype(np.float64))

    @property
    def rank(self) -> int:
        """Number of columns of the factor, which is the number of features."""
        return len(self.shift)

    def single(self, dtype: np.dtype) -> LinearMap:
        """Return a copy with float32 output if float32 is exact for the samples, otherwise the same map.

        Parameters
        ----------
        dtype : dtype
            Data type of the samples. Float32 is exact for float32, float16 and integers of at most 16 bits, unless the
            kernel normalizes the samples.

        Returns
        -------
        LinearMap
            Feature map with the same factor rows, up to rounding.
        """
        narrow = np.promote_types(dtype, np.float32) == np.float32 and getattr(self.kernel, "normalize", None) is None
        return replace(self, dtype=np.dtype(np.float32)) if narrow else self

    def raw(self, X: Rows) -> np.ndarray:
        block: Any = self._block(X, self.rank)
        how = getattr(self.kernel, "normalize", None)
        if self.dtype == np.float64 and (how is not None or not isinstance(block, np.ndarray)):
            block = double(block)  # The subtraction below converts other dense rows.
        # The first call of `normalize_rows` loads compiled loops, so call it only if necessary.
        block = block if how is None else normalize_rows(block, how)
        return np.subtract(dense(block), self.shift, dtype=self.dtype)
