"""Feature maps: fitted functions from rows to rows of a factor F with F F' ~ K; the rows themselves for a linear kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from typing import Any, ClassVar

import numpy as np
import scipy.sparse

from dmo.blocks import Rows, double, iterate, rows
from dmo.devices import foreign, moved, placed, to_numpy
from dmo.errors import UserError
from dmo.kernels import Kernel, Linear, normalize_rows, parse
from dmo.linalg.operators import LowRank, Operator
from dmo.linalg.tall import BlockRows
from dmo.persistence import without_prefix

BLOCK = 4096
"""Rows that a map works on at a time."""


def multiplied(values: Any, factors: Sequence[np.ndarray]) -> np.ndarray:
    """Multiply rows of any library, dense or block-sparse, by factors in float64, one after the other."""
    if (xp := foreign(values)) is not None:
        wide = xp.astype(values, xp.float64)
        return np.asarray(to_numpy(reduce(xp.matmul, [placed(factor, wide) for factor in factors], wide)))
    return np.asarray(reduce(lambda rows, factor: rows.dot(factor), factors, values))


@dataclass(frozen=True, eq=False, repr=False)
class FeatureMap:
    """A fitted map x -> factor row, so that k(x, y) ~ f(x)'f(y).

    The base class of `NystromMap`, `MekaMap` and `LinearMap`; called with a row source of m rows, it gives m x rank
    numbers,
    worked out block by block.

    Parameters
    ----------
    kernel : Kernel
        Fitted.
    dtype : dtype
        Of the factor rows.
    error : dict, default={}
        Its sampled errors, see `sampled_error`.

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
        """Columns of the factor."""
        raise NotImplementedError

    @property
    def mixing(self) -> np.ndarray | None:
        """T (r0 x rank, float64) with factor rows = unprojected features T; None where they are the factor rows."""
        return None

    def single(self, dtype: np.dtype) -> FeatureMap:
        """Return the same feature map with float32 output if input of this type keeps its precision, otherwise this map.

        Parameters
        ----------
        dtype : dtype
            Of the rows to be mapped.

        Returns
        -------
        FeatureMap
            A map with the same factor rows.
        """
        return self

    def raw(self, X: Rows) -> np.ndarray | BlockRows:
        """Map rows in memory to what is multiplied by `mixing`.

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
        """Multiply rows before mixing by coefficients, as functions of new rows do.

        Parameters
        ----------
        X : ndarray, csr_array, or array of another library, of shape (m, d)
            Rows.
        coefficients : ndarray of shape (r0, k), float64
            B.

        Returns
        -------
        ndarray of shape (m, k), float64
            raw(X) B, all that comes after the kernel values in float64: what multiplies them is large and of both signs,
            and sums in float32 lose ten times what the rounding of the values does.
        """
        return multiplied(self.raw(X), [coefficients])

    def __repr__(self) -> str:
        return f"{type(self).__name__}(kernel={self.kernel}, rank={self.rank}, error={self.error})"

    def numbers(self, n: int) -> int:
        """Count the numbers that the factor of n rows takes, at which approximations are compared.

        Parameters
        ----------
        n : int
            Rows.

        Returns
        -------
        int
            Numbers.
        """
        return n * self.rank

    def __call__(self, X: Rows) -> np.ndarray:
        """Factor rows (m x rank) of a row source of m rows, worked on block by block."""
        out = np.empty((X.shape[0], self.rank), self.dtype)
        mixing = None if self.mixing is None else self.mixing.astype(self.dtype)
        for where, block in iterate(X, BLOCK):
            part = to_numpy(self.raw(moved(block) if self.portable else block))
            if mixing is not None:
                part = part.dot(mixing)
            out[where] = part
        return out

    def operator(self, X: Rows) -> Operator:
        """Make the approximated kernel of some rows; the factor's n rows are held in memory.

        Parameters
        ----------
        X : row source of shape (n, d)
            Rows, in chunks of whole rows.

        Returns
        -------
        Operator
            F F', n x n.
        """
        return LowRank(self(X))

    def with_error(self, error: Mapping[str, float]) -> FeatureMap:
        """Copy the map with its errors.

        Parameters
        ----------
        error : mapping
            See `sampled_error`.

        Returns
        -------
        FeatureMap
            The same map.
        """
        return replace(self, error=dict(error))

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Describe the map for a model store.

        Returns
        -------
        arrays : dict of str to ndarray or csr_array
            Landmarks of sparse rows are CSR, all else is NumPy.
        meta : dict
            Its JSON.
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
        """Make the map that `to_arrays` described, whatever its kind.

        Parameters
        ----------
        arrays : mapping of str to ndarray or csr_array
            What was learned.
        meta : mapping
            Its JSON.

        Returns
        -------
        FeatureMap
            The map.

        Raises
        ------
        UserError
            For a kind that is unknown.
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
        """Names of what maps of this kind have beside what all have."""
        return [part.name for part in fields(cls) if part.name not in ("kernel", "dtype", "error")]

    def _block(self, X: Rows, width: int) -> np.ndarray | scipy.sparse.csr_array:
        """Rows in memory, of the width that the map was fitted on; kernels refuse those that are not finite."""
        block: Any = rows(X) if foreign(X) is None else X
        if block.ndim != 2 or block.shape[1] != width:
            raise UserError(f"{self.kind}: rows have shape {block.shape}, the map was fitted on {width} features")
        return block


@dataclass(frozen=True, eq=False, repr=False)
class LinearMap(FeatureMap):
    """The rows themselves as the factor of a linear kernel: f(x) = x - s, x normalized as the kernel does.

    f(x)'f(y) = k(x, y) without error where the shift s is 0. A shift is for problems that center their rows, which
    never see
    it: sums of products of rows far from the origin would have lost their differences before the mean is taken off. Factor
    rows are dense and float64, or float32 for products of many rows (`single`).

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
        found = cls(kernel, plain.dtype, np.median(plain.raw(rows(X, slice(0, BLOCK // 8))), axis=0), error=exact)
        if found.single(X.dtype) is found:
            return found
        return replace(found, shift=found.shift.astype(np.float32).astype(np.float64))  # the same shift in `single`

    @property
    def rank(self) -> int:
        """Columns of the factor: the features."""
        return len(self.shift)

    def single(self, dtype: np.dtype) -> LinearMap:
        """Return the map with float32 factor rows for rows that are float32 or narrower and not normalized.

        Parameters
        ----------
        dtype : dtype
            Of the rows to be mapped.

        Returns
        -------
        LinearMap
            A map with the same factor rows.
        """
        narrow = np.promote_types(dtype, np.float32) == np.float32 and getattr(self.kernel, "normalize", None) is None
        return replace(self, dtype=np.dtype(np.float32)) if narrow else self

    def raw(self, X: Rows) -> np.ndarray:
        """Map rows in memory to factor rows.

        Parameters
        ----------
        X : ndarray or csr_array of shape (m, d)
            Rows.

        Returns
        -------
        ndarray of shape (m, d)
            Factor rows, of the map's type.
        """
        block: Any = self._block(X, self.rank)
        how = getattr(self.kernel, "normalize", None)
        if self.dtype == np.float64 and (how is not None or not isinstance(block, np.ndarray)):
            block = double(block)  # the subtraction below converts arrays faster
        block = block if how is None else normalize_rows(block, how)  # which loads compiled loops
        dense = block.toarray() if scipy.sparse.issparse(block) else block
        return np.subtract(dense, self.shift, dtype=self.dtype)
