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
    """R (X - 1 m') as a `Factor`: rows less their means m, or as they are, times the roots R of their weights.

    X (n, d); mean (d,); roots (n,)
    """

    # Dense rows have had the mean taken and the weights given (`X` holds the result). CSR rows hold R X and keep
    # their zeros: every product takes the mean's share off the result, which costs rounding in proportion to |m|
    # once, as the entries themselves do.

    X: Any  # (n, d): rows
    mean: np.ndarray | None  # (d,): m; None: not centered
    roots: np.ndarray | None = None  # (n,): square roots of the rows' weights; None: ones

    @classmethod
    def of(cls, X: Any, center: bool, weights: np.ndarray | None = None) -> CenteredRows:
        """Make them from rows in memory.

        X (n, d); weights (n,)
        """
        plain = cls(double(X), None)
        plain = plain.centered(weights) if center else plain
        if weights is None:
            return plain
        roots = np.sqrt(weights)
        if scipy.sparse.issparse(plain.X):
            return cls(scipy.sparse.csr_array(plain.X.multiply(roots[:, None])), plain.mean, roots)
        return cls(plain.X * roots[:, None], plain.mean, roots)

    @property
    def shape(self) -> tuple[int, int]:
        return self.X.shape[0], self.X.shape[1]

    @property
    def _border(self) -> np.ndarray | None:
        """The means that products have yet to take off."""
        return self.mean if scipy.sparse.issparse(self.X) else None

    @property
    def ones(self) -> np.ndarray:
        """R 1 (n), to which the columns of centered rows are orthogonal."""
        return np.ones(self.shape[0]) if self.roots is None else self.roots

    def dot(self, S: np.ndarray) -> np.ndarray:
        out = np.asarray(self.X @ S)
        if self._border is None:
            return out
        taken = self._border @ S
        return out - (taken if self.roots is None else np.multiply.outer(self.roots, taken))

    def t_dot(self, B: np.ndarray) -> np.ndarray:
        out = np.asarray(self.X.T @ B)
        if self._border is None:
            return out
        return out - np.multiply.outer(self._border, B.sum(axis=0) if self.roots is None else self.roots @ B)

    def gram(self) -> np.ndarray:
        if not scipy.sparse.issparse(self.X):
            return gram(self.X)
        square = np.asarray((self.X.T @ self.X).toarray(), np.float64)
        if self.mean is None:
            return square
        total = float(self.ones @ self.ones)
        n, shared = self.X.shape[0], total * self.mean**2
        # X'X - n m m' keeps the rows sparse, and subtracts numbers of the size n m^2 that must not drown the difference
        if (shared <= _CANCELS * (square.diagonal() - shared)).all() or not shared.any():
            square -= total * np.outer(self.mean, self.mean)
            return square
        square[:] = 0.0
        for where in row_blocks(n, _STRIP):
            block = self.rows(where)
            square += block.T @ block
        return square

    def rows(self, where: slice) -> np.ndarray:
        block = self.X[where]
        block = block.toarray() if scipy.sparse.issparse(block) else block
        if self._border is None:
            return block
        return block - (self._border if self.roots is None else np.multiply.outer(self.roots[where], self._border))

    def centered(self, weights: np.ndarray | None = None) -> CenteredRows:
        """Take the means off rows that have no weights yet.

        weights (n,)
        """
        if self.mean is not None:
            return self
        share = None if weights is None else weights / weights.sum()
        mean = np.asarray(self.X.mean(axis=0) if share is None else self.X.T @ share).ravel()
        if scipy.sparse.issparse(self.X):
            return CenteredRows(self.X, mean)
        centered = self.X - mean
        # The mean of n large numbers is rounded; that of the differences, which are small, says by how much.
        rest = centered.mean(axis=0) if share is None else share @ centered
        centered -= rest
        # What is left of a column that is constant but for rounding is noise, which a small ridge would amplify.
        centered[:, np.abs(centered).max(axis=0) <= 4 * np.finfo(float).eps * np.abs(mean)] = 0.0
        return CenteredRows(centered, mean + rest)

    def scaled(self, factor: float) -> CenteredRows:
        return CenteredRows(self.X * factor, None if self.mean is None else self.mean * factor, self.roots)

    def lengths(self) -> np.ndarray:
        """Work out the squared length of every row.

        -> (n,)
        """
        square = self.X.multiply(self.X) if scipy.sparse.issparse(self.X) else self.X * self.X
        out = np.asarray(square.sum(axis=1), np.float64).ravel()
        if self._border is None:
            return out
        middle = float(self._border @ self._border) * self.ones**2
        limit = (out + middle) / _CANCELS
        out += middle - 2 * self.ones * np.asarray(self.X @ self._border)
        if (out > limit).all():
            return out
        for where in row_blocks(self.shape[0], _STRIP):
            block = self.rows(where)
            out[where] = np.einsum("ij,ij->i", block, block)
        return out


class RowGram(Operator):
    """F F' of centered or plain rows F in memory; sparse rows stay sparse until `dense` forms the n x n matrix.

    `centered()` centers the rows, not the matrix: F F' of rows far from the origin has lost their differences.
    """

    def __init__(self, factor: CenteredRows):
        self.factor, self.n, self.dtype = factor, factor.shape[0], np.dtype(np.float64)

    @classmethod
    def of(cls, X: Any, center: bool = False, weights: np.ndarray | None = None) -> RowGram:
        """Make it from rows in memory.

        X (n, d); weights (n,)
        """
        return cls(CenteredRows.of(X, center, weights))

    @property
    def null(self) -> np.ndarray | None:
        return None if self.factor.mean is None else self.factor.ones

    def _apply(self, B: np.ndarray, dtype: np.dtype) -> np.ndarray:
        return np.asarray(self.factor.dot(self.factor.t_dot(B)), dtype)

    def diagonal(self) -> np.ndarray:
        return self.factor.lengths()

    def columns(self, index: np.ndarray) -> np.ndarray:
        roots = self.factor.roots
        picked = CenteredRows(self.factor.X[index], self.factor.mean, None if roots is None else roots[index])
        return self.factor.dot(picked.rows(slice(None)).T)

    def dense(self, dtype: Any = np.float64) -> np.ndarray:
        out = np.empty((self.n, self.n), dtype)
        sparse = scipy.sparse.issparse(self.factor.X) and self.factor.mean is None
        for where in row_blocks(self.n, _STRIP):  # a sparse product of all rows at once would hold every entry twice
            X = self.factor.X
            out[where] = (X[where] @ X.T).toarray() if sparse else self.factor.dot(self.factor.rows(where).T).T
        return out

    def centered(self, weights: np.ndarray | None = None) -> Operator:
        return RowGram(self.factor.centered(weights))

    def weighted(self, weights: np.ndarray, center: bool) -> Operator:
        return RowGram(CenteredRows.of(self.factor.X, center, weights))

    def expansion(self, coefficients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ones, roots = self.factor.ones, self.factor.roots
        plain = coefficients if roots is None else roots.reshape(-1, *[1] * (coefficients.ndim - 1)) * coefficients
        if self.factor.mean is None:
            return super().expansion(plain)
        share = ones**2 / (ones @ ones)
        return (
            plain - np.multiply.outer(share, plain.sum(axis=0)),
            -(self.factor.mean @ self.factor.t_dot(coefficients)),
        )
