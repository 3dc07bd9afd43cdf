"""Linear kernels X X' of rows in memory: products with the rows, centered without forming anything n x n."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from dmo.blocks import double, row_blocks
from dmo.linalg.operators import Operator
from dmo.linalg.tall import Factor, gram

_STRIP = 512
_CANCELS = 1e4
"""Squared mean over variance of a sparse column above which X'X - n m m' would lose more digits than it may."""


@dataclass(frozen=True, eq=False)
class CenteredRows(Factor):
    """X - 1 m' as a `Factor`: rows less their means m, or as they are.

    Dense rows have had the mean taken (`X` holds the differences). CSR rows keep their zeros: every product takes the
    mean's share off the result, which costs rounding in proportion to |m| once, as the entries themselves do.

    Parameters
    ----------
    X : ndarray or csr_array of shape (n, d), float64
        Rows.
    mean : ndarray of shape (d,) or None
        m; None: not centered.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.linalg.row_gram import CenteredRows
    >>> CenteredRows.of(np.array([[1.0, 5.0], [3.0, 5.0]]), center=True).rows(slice(None))
    array([[-1.,  0.],
           [ 1.,  0.]])
    """

    X: Any
    mean: np.ndarray | None

    @classmethod
    def of(cls, X: Any, center: bool) -> CenteredRows:
        """Make them from rows in memory.

        Parameters
        ----------
        X : ndarray or sparse matrix of shape (n, d)
            Of any real type.
        center : bool
            Take the mean.

        Returns
        -------
        CenteredRows
            The rows, float64.
        """
        X = double(X)
        return cls(X, None).centered() if center else cls(X, None)

    @property
    def shape(self) -> tuple[int, int]:
        return self.X.shape[0], self.X.shape[1]

    @property
    def _border(self) -> np.ndarray | None:
        """The means that products have yet to take off."""
        return self.mean if scipy.sparse.issparse(self.X) else None

    def dot(self, S: np.ndarray) -> np.ndarray:
        out = np.asarray(self.X @ S)
        return out if self._border is None else out - self._border @ S

    def t_dot(self, B: np.ndarray) -> np.ndarray:
        out = np.asarray(self.X.T @ B)
        return out if self._border is None else out - np.multiply.outer(self._border, B.sum(axis=0))

    def gram(self) -> np.ndarray:
        if not scipy.sparse.issparse(self.X):
            return gram(self.X)
        square = np.asarray((self.X.T @ self.X).toarray(), np.float64)
        if self.mean is None:
            return square
        n, shared = self.X.shape[0], self.X.shape[0] * self.mean**2
        # X'X - n m m' keeps the rows sparse, and subtracts numbers of the size n m^2 that must not drown the difference
        if (shared <= _CANCELS * (square.diagonal() - shared)).all() or not shared.any():
            square -= n * np.outer(self.mean, self.mean)
            return square
        square[:] = 0.0
        for where in row_blocks(n, _STRIP):
            block = self.rows(where)
            square += block.T @ block
        return square

    def rows(self, where: slice) -> np.ndarray:
        block = self.X[where]
        block = block.toarray() if scipy.sparse.issparse(block) else block
        return block if self._border is None else block - self._border

    def centered(self) -> CenteredRows:
        if self.mean is not None:
            return self
        mean = np.asarray(self.X.mean(axis=0)).ravel()
        if scipy.sparse.issparse(self.X):
            return CenteredRows(self.X, mean)
        centered = self.X - mean
        # The mean of n large numbers is rounded; that of the differences, which are small, says by how much.
        rest = centered.mean(axis=0)
        centered -= rest
        # What is left of a column that is constant but for rounding is noise, which a small ridge would amplify.
        centered[:, np.abs(centered).max(axis=0) <= 4 * np.finfo(float).eps * np.abs(mean)] = 0.0
        return CenteredRows(centered, mean + rest)

    def scaled(self, factor: float) -> CenteredRows:
        return CenteredRows(self.X * factor, None if self.mean is None else self.mean * factor)

    def lengths(self) -> np.ndarray:
        """Work out the squared length of every row.

        Returns
        -------
        ndarray of shape (n,)
            |x_i - m|^2.
        """
        square = self.X.multiply(self.X) if scipy.sparse.issparse(self.X) else self.X * self.X
        out = np.asarray(square.sum(axis=1), np.float64).ravel()
        if self._border is None:
            return out
        middle = float(self._border @ self._border)
        limit = (out + middle) / _CANCELS
        out += middle - 2 * np.asarray(self.X @ self._border)
        if (out > limit).all():
            return out
        for where in row_blocks(self.shape[0], _STRIP):
            block = self.rows(where)
            out[where] = np.einsum("ij,ij->i", block, block)
        return out


class RowGram(Operator):
    """F F' of centered or plain rows F in memory; sparse rows stay sparse until `dense` forms the n x n matrix.

    `centered()` centers the rows, not the matrix: F F' of rows far from the origin has lost their differences.

    Parameters
    ----------
    factor : CenteredRows
        F.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.linalg.row_gram import RowGram
    >>> RowGram.of(np.array([[1.0], [3.0]]), center=True).dense()
    array([[ 1., -1.],
           [-1.,  1.]])
    """

    def __init__(self, factor: CenteredRows):
        self.factor, self.n, self.dtype = factor, factor.shape[0], np.dtype(np.float64)

    @classmethod
    def of(cls, X: Any, center: bool = False) -> RowGram:
        """Make it from rows in memory.

        Parameters
        ----------
        X : ndarray or sparse matrix of shape (n, d)
            Of any real type.
        center : bool, default=False
            Take the mean.

        Returns
        -------
        RowGram
            Their Gram matrix.
        """
        return cls(CenteredRows.of(X, center))

    @property
    def is_centered(self) -> bool:
        return self.factor.mean is not None

    def _apply(self, B: np.ndarray, dtype: np.dtype) -> np.ndarray:
        return np.asarray(self.factor.dot(self.factor.t_dot(B)), dtype)

    def diagonal(self) -> np.ndarray:
        return self.factor.lengths()

    def columns(self, index: np.ndarray) -> np.ndarray:
        picked = CenteredRows(self.factor.X[index], self.factor.mean)
        return self.factor.dot(picked.rows(slice(None)).T)

    def dense(self, dtype: Any = np.float64) -> np.ndarray:
        out = np.empty((self.n, self.n), dtype)
        sparse = scipy.sparse.issparse(self.factor.X) and self.factor.mean is None
        for where in row_blocks(self.n, _STRIP):  # a sparse product of all rows at once would hold every entry twice
            X = self.factor.X
            out[where] = (X[where] @ X.T).toarray() if sparse else self.factor.dot(self.factor.rows(where).T).T
        return out

    def centered(self) -> Operator:
        return RowGram(self.factor.centered())

    def expansion(self, coefficients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.factor.mean is None:
            return super().expansion(coefficients)
        centered = coefficients - coefficients.mean(axis=0)
        return centered, -(self.factor.mean @ self.factor.t_dot(centered))
