"""Feature maps: fitted functions from rows to rows of a factor F, such that F F' approximates the kernel matrix."""

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
"""Number of rows that a map processes at a time."""


def multiplied(values: Any, factors: Sequence[np.ndarray]) -> np.ndarray:
    """Multiply rows of any library, dense or block-sparse, by several factors in float64."""
    if (xp := foreign(values)) is not None:
        wide = xp.astype(values, xp.float64)
        return np.asarray(to_numpy(reduce(xp.matmul, [placed(factor, wide) for factor in factors], wide)))
    return np.asarray(reduce(lambda rows, factor: rows.dot(factor), factors, values))


@dataclass(frozen=True, eq=False, repr=False)
class FeatureMap:
    """Base class of fitted maps f from rows to factor rows, with k(x, y) ~ f(x)'f(y).

    Subclasses are `NystromMap`, `MekaMap` and `LinearMap`. A call with a row source of m rows returns an m x rank
    array, computed block by block.

    Parameters
    ----------
    kernel : Kernel
        Fitted kernel.
    dtype : dtype
        Type of the factor rows.
    error : dict, default={}
        Estimated errors, see `sampled_error`.

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
        """T (r0 x rank, float64) with factor rows = `raw` rows times T; None if `raw` returns factor rows."""
        return None

    def single(self, dtype: np.dtype) -> FeatureMap:
        """Return the map with float32 output if this preserves the precision of input rows, otherwise this map.

        Parameters
        ----------
        dtype : dtype
            Type of the input rows.

        Returns
        -------
        FeatureMap
            Map with the same factor rows.
        """
        return self

    def raw(self, X: Rows) -> np.ndarray | BlockRows:
        """Compute the rows that `mixing` is multiplied with.

        Parameters
        ----------
        X : ndarray or csr_array of shape (m, d)
            Rows.

        Returns
        -------
        ndarray or BlockRows of shape (m, r0)
            Rows before mixing, dense or block-sparse.
        """
        raise NotImplementedError

    def times(self, X: Rows, coefficients: np.ndarray) -> np.ndarray:
        """Compute `raw` rows times coefficients, for predictions of new rows.

        Parameters
        ----------
        X : ndarray, csr_array, or array of another library, of shape (m, d)
            Rows.
        coefficients : ndarray of shape (r0, k), float64
            Coefficients B.

        Returns
        -------
        ndarray of shape (m, k), float64
            raw(X) B. All steps after the kernel values use float64. The coefficients are large and of both signs, so
            that float32 sums would lose ten times as much precision as the rounded kernel values.
        """
        return multiplied(self.raw(X), [coefficients])

    def __repr__(self) -> str:
        return f"{type(self).__name__}(kernel={self.kernel}, rank={self.rank}, error={self.error})"

    def numbers(self, n: int) -> int:
        """Return the number of entries of the factor of n rows, the memory at which approximations are compared.

        Parameters
        ----------
        n : int
            Number of rows.

        Returns
        -------
        int
            Number of entries.
        """
        return n * self.rank

    def __call__(self, X: Rows) -> np.ndarray:
        """Compute the factor rows (m x rank) of a row source of m rows, block by block."""
        out = np.empty((X.shape[0], self.rank), self.dtype)
        mixing = None if self.mixing is None else self.mixing.astype(self.dtype)
        for where, block in iterate(X, BLOCK):
            part = to_numpy(self.raw(moved(block) if self.portable else block))
            if mixing is not None:
                part = part.dot(mixing)
            out[where] = part
        return out

    def operator(self, X: Rows) -> Operator:
        """Return the approximated kernel of rows as an operator; its factor is held in memory.

        Parameters
        ----------
        X : row source of shape (n, d)
            Rows, in chunks of whole rows.

        Returns
        -------
        Operator
            Operator F F', n x n.
        """
        return LowRank(self(X))

    def with_error(self, error: Mapping[str, float]) -> FeatureMap:
        """Return a copy of the map with the given errors.

        Parameters
        ----------
        error : mapping
            Errors, see `sampled_error`.

        Returns
        -------
        FeatureMap
            Copy of the map.
        """
        return replace(self, error=dict(error))

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Describe the map for a model store.

        Returns
        -------
        arrays : dict of str to ndarray or csr_array
            Arrays: CSR for landmarks of sparse rows, otherwise NumPy.
        meta : dict
            JSON metadata.
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
        """Create a map of any kind from the output of `to_arrays`.

        Parameters
        ----------
        arrays : mapping of str to ndarray or csr_array
            Arrays of the map.
        meta : mapping
            JSON metadata.

        Returns
        -------
        FeatureMap
            The map.

        Raises
        ------
        UserError
            If the kind is unknown.
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
        """Return the names of the fields that only maps of this kind have."""
        return [part.name for part in fields(cls) if part.name not in ("kernel", "dtype", "error")]

    def _block(self, X: Rows, width: int) -> np.ndarray | scipy.sparse.csr_array:
        """Read rows and check their number of features; kernels reject non-finite values."""
        block: Any = rows(X) if foreign(X) is None else X
        if block.ndim != 2 or block.shape[1] != width:
            raise UserError(f"{self.kind}: rows have shape {block.shape}, the map was fitted on {width} features")
        return block


@dataclass(frozen=True, eq=False, repr=False)
class LinearMap(FeatureMap):
    """Exact factor of a linear kernel: f(x) = x - s, where x is normalized as in the kernel.

    If the shift s is 0, f(x)'f(y) = k(x, y) exactly. Use a shift only in problems that center the factor rows, so
    that it has no effect on the result. Without a shift, products of rows far from the origin lose their differences
    to floating-point error before the mean is subtracted. Factor rows are dense and float64, or float32 for products
    of many rows (`single`).

    Parameters
    ----------
    kernel : Linear
        Linear kernel.
    dtype : dtype
        Type of the factor rows, float64.
    shift : ndarray of shape (d,)
        Shift s.
    error : dict, default={}
        Estimated errors, which are 0.

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
        """Create the map for rows.

        Parameters
        ----------
        kernel : Linear
            Linear kernel.
        X : row source of shape (n, d)
            Rows, in chunks of whole rows.
        center : bool
            Whether the factor rows will be centered. If so, the shift is the median of the first 512 rows.

        Returns
        -------
        LinearMap
            Map of these rows.
        """
        exact = {"relative_error": 0.0, "residual_diagonal": 0.0}
        plain = cls(kernel, np.dtype(np.float64), np.zeros(X.shape[1]), error=exact)
        if not center:
            return plain
        # Medians are robust: a few extreme rows, which a fold may hold out, do not move the shift away from the others.
        found = cls(kernel, plain.dtype, np.median(plain.raw(rows(X, slice(0, BLOCK // 8))), axis=0), error=exact)
        if found.single(X.dtype) is found:
            return found
        # Round the shift to float32, so that `single` uses exactly the same shift.
        return replace(found, shift=found.shift.astype(np.float32).astype(np.float64))

    @property
    def rank(self) -> int:
        """Number of columns of the factor, which is the number of features."""
        return len(self.shift)

    def single(self, dtype: np.dtype) -> LinearMap:
        """Return the map with float32 output if rows are float32 or narrower and not normalized, otherwise this map.

        Parameters
        ----------
        dtype : dtype
            Type of the input rows.

        Returns
        -------
        LinearMap
            Map with the same factor rows.
        """
        narrow = np.promote_types(dtype, np.float32) == np.float32 and getattr(self.kernel, "normalize", None) is None
        return replace(self, dtype=np.dtype(np.float32)) if narrow else self

    def raw(self, X: Rows) -> np.ndarray:
        """Compute factor rows of rows in memory.

        Parameters
        ----------
        X : ndarray or csr_array of shape (m, d)
            Rows.

        Returns
        -------
        ndarray of shape (m, d)
            Factor rows, in the map's type.
        """
        block: Any = self._block(X, self.rank)
        how = getattr(self.kernel, "normalize", None)
        if self.dtype == np.float64 and (how is not None or not isinstance(block, np.ndarray)):
            block = double(block)  # dense arrays that are not normalized are converted faster by the subtraction below
        # Normalize only if needed, because normalize_rows loads compiled loops.
        block = block if how is None else normalize_rows(block, how)
        return np.subtract(dense(block), self.shift, dtype=self.dtype)
