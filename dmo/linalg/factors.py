"""Tall factors F of operators A = F F', with the products that a Woodbury solve needs.

The rows of a linear kernel are also a factor, which is centered without forming an n x n matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dmo.blocks import dense, double, row_blocks, scaled_rows, shifted, squared_norms
from dmo.linalg.operators import Centered, LowRank, Operator, Scaled, SumOperator
from dmo.linalg.tall import BlockRows, Factor, gram

# Number of rows per block, and number of leading rows that are checked first for constant columns.
_STRIP, _FIRST = 512, 64
_CANCELS = 1e4
"""Ratio of squared mean to variance of a sparse column, above which centering X'X loses too many digits."""


@dataclass(frozen=True, eq=False)
class CenteredRows(Factor):
    """Rows of a linear kernel as a `Factor`, optionally centered by their column means and weighted."""

    # Dense rows are stored after centering and weighting. Sparse rows are only weighted, because centering would make
    # them dense. Every product with sparse rows then subtracts the contribution of the mean, with a rounding error that
    # is proportional to the mean.

    X: Any  # Rows of shape (n, d).
    mean: np.ndarray | None  # Column means (d), or None if the rows are not centered.
    roots: np.ndarray | None = None  # Square roots of the row weights (n), or None for unit weights.
    border: np.ndarray | None = None  # Means (d) whose contribution is subtracted from each product, or None.

    @classmethod
    def of(cls, X: Any, center: bool, weights: np.ndarray | None = None) -> CenteredRows:
        """Create the factor from rows in memory (n x d), optionally centered and weighted by `weights` (n)."""
        plain = cls(double(X), None)
        plain = plain.centered(weights) if center else plain
        if weights is None:
            return plain
        roots = np.sqrt(weights)
        return cls(scaled_rows(plain.X, roots), plain.mean, roots, plain.border)

    @property
    def shape(self) -> tuple[int, int]:
        return self.X.shape[0], self.X.shape[1]

    @property
    def ones(self) -> np.ndarray:
        """Vector (n) to which the columns of centered rows are orthogonal: the square roots of the weights."""
        return np.ones(self.shape[0]) if self.roots is None else self.roots

    def dot(self, S: np.ndarray) -> np.ndarray:
        out = self.X @ S
        if self.border is None:
            return out
        taken = self.border @ S
        return out - (taken if self.roots is None else np.multiply.outer(self.roots, taken))

    def t_dot(self, B: np.ndarray) -> np.ndarray:
        out = self.X.T @ B
        if self.border is None:
            return out
        return out - np.multiply.outer(self.border, B.sum(axis=0) if self.roots is None else self.roots @ B)

    def gram(self) -> np.ndarray:
        square = gram(self.X)
        if self.border is None:
            return square
        total = float(self.ones @ self.ones)
        n, shared = self.X.shape[0], total * self.border**2
        # Subtract the contribution of the mean from X'X, so that sparse rows stay sparse, unless the subtraction would
        # cancel most digits.
        if (shared <= _CANCELS * (square.diagonal() - shared)).all() or not shared.any():
            square -= total * np.outer(self.border, self.border)
            return square
        square[:] = 0.0
        for where in row_blocks(n, _STRIP):
            block = self.rows(where)
            square += block.T @ block
        return square

    def rows(self, where: slice) -> np.ndarray:
        block = dense(self.X[where])
        if self.border is None:
            return block
        return block - (self.border if self.roots is None else np.multiply.outer(self.roots[where], self.border))

    def centered(self, weights: np.ndarray | None = None) -> CenteredRows:
        """Subtract the (weighted) column means from rows that are not weighted yet."""
        if self.mean is not None:
            return self
        share = None if weights is None else weights / weights.sum()
        mean = np.asarray(self.X.mean(axis=0) if share is None else self.X.T @ share).ravel()
        centered, border = shifted(self.X, mean)
        if border is not None:
            return CenteredRows(self.X, mean, border=border)
        # For large entries, the computed mean has a rounding error, so subtract the mean of the centered entries too.
        rest = centered.mean(axis=0) if share is None else share @ centered
        centered -= rest
        # A small ridge would amplify the rounding errors of constant columns, so set these columns to zero.
        noise = 4 * np.finfo(float).eps * np.abs(mean)
        # Most columns vary within the first rows, so check all rows only for the remaining columns.
        constant = np.flatnonzero((np.abs(centered[:_FIRST]) <= noise).all(axis=0))
        centered[:, constant[np.abs(centered[:, constant]).max(axis=0, initial=0.0) <= noise[constant]]] = 0.0
        return CenteredRows(centered, mean + rest)

    def scaled(self, factor: float) -> CenteredRows:
        mean, border = (None if m is None else m * factor for m in (self.mean, self.border))
        return CenteredRows(self.X * factor, mean, self.roots, border)

    def lengths(self) -> np.ndarray:
        """Compute the squared Euclidean norm of each row."""
        out = squared_norms(self.X)
        if self.border is None:
            return out
        middle = float(self.border @ self.border) * self.ones**2
        limit = (out + middle) / _CANCELS
        out += middle - 2 * self.ones * np.asarray(self.X @ self.border)
        if (out > limit).all():
            return out
        for where in row_blocks(self.shape[0], _STRIP):
            block = self.rows(where)
            out[where] = np.einsum("ij,ij->i", block, block)
        return out


class RowGram(Operator):
    """Linear kernel F F' of rows F in memory. Sparse rows stay sparse until `dense` forms the n x n matrix.

    Centering subtracts the mean from the rows. For rows far from the origin, centering F F' would lose most digits.
    """

    def __init__(self, factor: CenteredRows):
        self.factor, self.n, self.dtype = factor, factor.shape[0], np.dtype(np.float64)

    @classmethod
    def of(cls, X: Any, center: bool = False, weights: np.ndarray | None = None) -> RowGram:
        """Create the operator from rows in memory (n x d), optionally centered and weighted by `weights` (n)."""
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
        picked = replace(self.factor, X=self.factor.X[index], roots=None if roots is None else roots[index])
        return self.factor.dot(picked.rows(slice(None)).T)

    def dense(self, dtype: Any = np.float64) -> np.ndarray:
        out = np.empty((self.n, self.n), dtype)
        plain = self.factor.border is None
        # A sparse product of all rows would store every entry twice, so multiply in blocks of rows.
        for where in row_blocks(self.n, _STRIP):
            X = self.factor.X
            out[where] = dense(X[where] @ X.T) if plain else self.factor.dot(self.factor.rows(where).T).T
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


@dataclass(frozen=True)
class DenseFactor(Factor):
    """Tall factor stored as one array.

    Parameters
    ----------
    F : ndarray of shape (n, r)
        Array that holds the factor.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.linalg.factors import DenseFactor
    >>> DenseFactor(np.ones((5, 2))).gram()
    array([[5., 5.],
           [5., 5.]])
    """

    F: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        return self.F.shape[0], self.F.shape[1]

    def dot(self, S: np.ndarray) -> np.ndarray:
        return self.F @ S

    def t_dot(self, B: np.ndarray) -> np.ndarray:
        return self.F.T @ B

    def gram(self) -> np.ndarray:
        return gram(self.F)

    def rows(self, where: slice) -> np.ndarray:
        return self.F[where]

    def centered(self) -> DenseFactor:
        return DenseFactor(self.F - self.F.mean(axis=0))

    def scaled(self, factor: float) -> DenseFactor:
        return DenseFactor(self.F * factor)


@dataclass(frozen=True)
class BlockFactor(Factor):
    """Factor F = (W - 1 m') M of a block-sparse matrix W with column means m.

    W'W is block-diagonal, which makes the Gram matrix F'F cheap. Centering subtracts a rank-one matrix from W'W.

    Parameters
    ----------
    W : BlockRows of shape (n, r0)
        Block-sparse matrix W, in which each row has values only in the columns of its cluster.
    mixing : ndarray of shape (r0, r)
        Matrix M by which the rows of W are multiplied.
    means : ndarray of shape (r0,), optional
        Column means m of W. By default, the factor is not centered.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.linalg.tall import BlockRows
    >>> from dmo.linalg.factors import BlockFactor
    >>> W = BlockRows((2, 2), [np.array([0]), np.array([1])], [slice(0, 1), slice(1, 2)], [np.ones((1, 1))] * 2)
    >>> BlockFactor(W, np.eye(2)).centered().dot(np.eye(2))
    array([[ 0.5, -0.5],
           [-0.5,  0.5]])
    """

    W: BlockRows
    mixing: np.ndarray
    means: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.W.shape[0], self.mixing.shape[1]

    def dot(self, S: np.ndarray) -> np.ndarray:
        mixed = self.mixing @ S
        out = self.W.dot(mixed)
        return out if self.means is None else out - self.means @ mixed

    def t_dot(self, B: np.ndarray) -> np.ndarray:
        along = self.W.t_dot(B)
        if self.means is not None:
            along -= np.multiply.outer(self.means, B.sum(axis=0))
        return self.mixing.T @ along

    def gram(self) -> np.ndarray:
        square = self.W.gram(self.W)
        if self.means is not None:
            square -= self.W.shape[0] * np.outer(self.means, self.means)
        return self.mixing.T @ square @ self.mixing

    def rows(self, where: slice) -> np.ndarray:
        out = self.W[np.arange(*where.indices(self.W.shape[0]))].dot(self.mixing)
        return out if self.means is None else out - self.means @ self.mixing

    def centered(self) -> BlockFactor:
        n = self.W.shape[0]
        return BlockFactor(self.W, self.mixing, self.W.t_dot(np.full((n, 1), 1.0 / n))[:, 0])

    def scaled(self, factor: float) -> BlockFactor:
        return BlockFactor(self.W, self.mixing * factor, self.means)


@dataclass(frozen=True)
class StackedFactor(Factor):
    """Factor [F_1 .. F_V] of a sum of low-rank operators.

    Parameters
    ----------
    parts : sequence of Factor
        Factor of each operator, with n rows each.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.linalg.factors import DenseFactor, StackedFactor
    >>> StackedFactor([DenseFactor(np.ones((5, 2))), DenseFactor(np.ones((5, 1)))]).shape
    (5, 3)
    """

    parts: Sequence[Factor]

    @property
    def shape(self) -> tuple[int, int]:
        return self.parts[0].shape[0], sum(part.shape[1] for part in self.parts)

    def _split(self, S: np.ndarray) -> list[np.ndarray]:
        return np.split(S, np.cumsum([part.shape[1] for part in self.parts])[:-1])

    def dot(self, S: np.ndarray) -> np.ndarray:
        products = [part.dot(piece) for part, piece in zip(self.parts, self._split(S))]
        return np.sum(products, axis=0)

    def t_dot(self, B: np.ndarray) -> np.ndarray:
        return np.concatenate([part.t_dot(B) for part in self.parts])

    def gram(self) -> np.ndarray:
        cells = [[np.zeros((0, 0))] * len(self.parts) for _ in self.parts]
        for i, left in enumerate(self.parts):
            cells[i][i] = left.gram()
            for j in range(i):
                cells[i][j] = _cross(left, self.parts[j])
                cells[j][i] = cells[i][j].T
        return np.block(cells)

    def rows(self, where: slice) -> np.ndarray:
        return np.hstack([part.rows(where) for part in self.parts])

    def centered(self) -> StackedFactor:
        return StackedFactor([part.centered() for part in self.parts])

    def scaled(self, factor: float) -> StackedFactor:
        return StackedFactor([part.scaled(factor) for part in self.parts])


def _cross(left: Factor, right: Factor) -> np.ndarray:
    """Compute F'G for two factors F and G. The computation is faster if both factors are block-sparse."""
    if isinstance(left, BlockFactor) and isinstance(right, BlockFactor):
        square = left.W.gram(right.W)
        if left.means is not None and right.means is not None:
            square -= left.W.shape[0] * np.outer(left.means, right.means)
        elif left.means is not None:
            square -= np.outer(left.means, right.W.t_dot(np.ones((left.W.shape[0], 1)))[:, 0])
        elif right.means is not None:
            square -= np.outer(left.W.t_dot(np.ones((left.W.shape[0], 1)))[:, 0], right.means)
        return left.mixing.T @ square @ right.mixing
    if isinstance(right, DenseFactor):
        return left.t_dot(right.F)
    if isinstance(left, DenseFactor):
        return right.t_dot(left.F).T
    total = np.zeros((left.shape[1], right.shape[1]))
    for start in range(0, left.shape[0], 4096):
        where = slice(start, min(start + 4096, left.shape[0]))
        total += left.rows(where).T @ right.rows(where)
    return total


class BlockLowRank(Operator):
    """Low-rank operator W T T' W' of a block-diagonal matrix W, with one block per cluster of samples.

    A product with k columns costs n k_s k + r0 r k operations, where k_s is the number of columns per cluster. The
    operator stores n k_s + r0 r numbers.

    Parameters
    ----------
    W : BlockRows of shape (n, r0)
        Block-diagonal matrix W, in which each row has values only in the columns of its cluster.
    mixing : ndarray of shape (r0, r)
        Matrix T that links the clusters.

    References
    ----------
    Si, Hsieh, Dhillon 2014, eq. 5.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.linalg.tall import BlockRows
    >>> from dmo.linalg.factors import BlockLowRank
    >>> W = BlockRows((2, 2), [np.array([0]), np.array([1])], [slice(0, 1), slice(1, 2)], [np.ones((1, 1))] * 2)
    >>> BlockLowRank(W, np.array([[1.0], [2.0]])).dense()
    array([[1., 2.],
           [2., 4.]])
    """

    def __init__(self, W: BlockRows, mixing: np.ndarray):
        self.W, self.mixing, self.n, self.dtype = W, mixing, W.shape[0], W.dtype

    @property
    def rank(self) -> int:
        """Number of columns of the factor."""
        return self.mixing.shape[1]

    def block_factor(self) -> BlockFactor:
        """Return the low-rank factor of the operator.

        Returns
        -------
        BlockFactor
            Factor F = W T in float64, so that the operator equals F F'.
        """
        return BlockFactor(self.W.astype(np.float64), self.mixing)

    def _apply(self, B: np.ndarray, dtype: np.dtype) -> np.ndarray:
        linked = self.mixing @ (self.mixing.T @ self.W.t_dot(B))
        return self.W.dot(linked.astype(dtype))

    def diagonal(self) -> np.ndarray:
        out = np.zeros(self.n)
        for index, columns, block in zip(self.W.rows, self.W.columns, self.W.blocks):
            part = block.astype(np.float64) @ self.mixing[columns]
            out[index] = np.einsum("ij,ij->i", part, part)
        return out

    def columns(self, index: np.ndarray) -> np.ndarray:
        linked = self.mixing @ self.W[index].dot(self.mixing).T
        return self.W.dot(linked.astype(self.dtype))

    def dense(self, dtype: Any = np.float64) -> np.ndarray:
        F = self.W.dot(self.mixing).astype(dtype)
        return F @ F.T


def low_rank_factor(A: Operator) -> Factor | None:
    """Return a float64 factor F (n x r) with A = F F' if A is low-rank by construction, otherwise None."""
    if isinstance(A, LowRank):
        return DenseFactor(A.factor.astype(np.float64, copy=False))
    if isinstance(A, BlockLowRank):
        return A.block_factor()
    if isinstance(A, RowGram):
        return A.factor
    if isinstance(A, Centered):
        F = low_rank_factor(A.inner)
        return None if F is None else F.centered()
    if isinstance(A, Scaled) and A.factor >= 0:
        F = low_rank_factor(A.inner)
        return None if F is None else F.scaled(float(np.sqrt(A.factor)))
    if isinstance(A, SumOperator):
        F, G = low_rank_factor(A.left), low_rank_factor(A.right)
        return None if F is None or G is None else StackedFactor([F, G])
    return None
