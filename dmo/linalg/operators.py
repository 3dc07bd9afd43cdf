"""Symmetric n x n operators that compute products, columns and diagonals of a matrix wherever its entries are stored.

`Dense` holds the matrix in the client process. `Tiles` stores, recomputes or streams its lower tiles. `LowRank` is the
product F F' of a tall factor. `SumOperator`, `Scaled`, `Centered` and `Congruent` combine operators without forming a
matrix. A product accepts and returns n x k blocks, as NumPy arrays or as rows on workers. Creating an operator computes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from dmo.blocks import row_blocks
from dmo.errors import UserError
from dmo.linalg.rows import WorkerRows, beside, inner, mapped
from dmo.threads import in_threads

_STRIP = 1024
_REAL = np.float32, np.float64
# Number of float64 entries per strip, for which malloc reuses memory instead of requesting zeroed pages.
_STRIP_ENTRIES = 1 << 21


class Operator:
    """Symmetric n x n matrix given by its products."""

    # `A @ B` multiplies by an n x k block B in the precision `A.dtype` and returns the data type of B. Residuals need
    # `A.product(B)`, which multiplies and sums in float64.

    n: int
    dtype: np.dtype
    __array_ufunc__ = None  # Products such as np.float64(2) * A then use `__rmul__` of this class.

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (n, n) of the matrix."""
        return self.n, self.n

    @property
    def nbytes(self) -> int:
        """Memory in bytes of the dense matrix in the precision of the operator."""
        return self.n * self.n * self.dtype.itemsize

    def _apply(self, B: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """Compute A @ B for a block B of type `dtype` (float32 or float64), and return this type."""
        raise NotImplementedError

    def diagonal(self) -> np.ndarray:
        """Compute the diagonal of the matrix.

        Returns
        -------
        ndarray of shape (n,), float64
            Diagonal entries.
        """
        raise NotImplementedError

    def columns(self, index: np.ndarray) -> np.ndarray:
        """Compute some columns of the matrix.

        Parameters
        ----------
        index : ndarray of shape (m,), int
            Indices of the columns.

        Returns
        -------
        ndarray of shape (n, m)
            Columns in the precision of the operator.
        """
        raise NotImplementedError

    def dense(self, dtype: Any = np.float64) -> np.ndarray:
        """Compute the whole matrix, which the caller may overwrite.

        Parameters
        ----------
        dtype : dtype, default=float64
            Data type of the entries.

        Returns
        -------
        ndarray of shape (n, n)
            Matrix in a new array.
        """
        raise NotImplementedError

    def upper(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield the upper triangle of the matrix in strips of rows, for a factorization.

        Yields
        ------
        where : slice
            Row range of the strip.
        strip : ndarray of shape (m, n - where.start), float64
            Entries of these rows from column `where.start` on, in a new array.
        """
        matrix = self.dense(self.dtype)
        for where in _strips(self.n):
            yield where, matrix[where, where.start :].astype(np.float64)

    def expansion(self, coefficients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Convert coefficients of the training rows to a function of new rows.

        Parameters
        ----------
        coefficients : ndarray of shape (n, k)
            Coefficients of the columns of this operator.

        Returns
        -------
        C : ndarray of shape (n, k)
            Coefficients of the m x n kernel between new and training rows, before scaling, centering or addition.
        offset : ndarray of shape (k,)
            Offset of the function.

        Raises
        ------
        UserError
            If the terms of a sum need different coefficients C.
        """
        return coefficients, np.zeros(coefficients.shape[1:])

    def __matmul__(self, B: np.ndarray) -> np.ndarray:
        B = self._block(B)
        return self._apply(B.astype(self.dtype, copy=False), self.dtype).astype(B.dtype, copy=False)

    def product(self, B: np.ndarray) -> np.ndarray:
        """Multiply by a block, with float64 products and sums.

        Parameters
        ----------
        B : ndarray of shape (n, k)
            Block that is multiplied.

        Returns
        -------
        ndarray of shape (n, k), float64
            Product of the matrix and the block.
        """
        return self._apply(self._block(B).astype(np.float64, copy=False), np.dtype(np.float64))

    def _block(self, B: Any) -> Any:
        B = B if isinstance(B, WorkerRows) else np.asarray(B)
        if B.shape[:1] != (self.n,):
            raise UserError(f"operator is {self.n} x {self.n}, the block has shape {B.shape}; pass one row per sample")
        return B if np.issubdtype(B.dtype, np.floating) else B.astype(np.float64)

    def __add__(self, other: Operator) -> SumOperator:
        return SumOperator(self, other) if isinstance(other, Operator) else NotImplemented

    def __rmul__(self, factor: float) -> Scaled:
        return Scaled(self, factor) if isinstance(factor, (int, float, np.number)) else NotImplemented

    __mul__ = __rmul__

    @property
    def null(self) -> np.ndarray | None:
        """Vector (n) that the matrix maps to 0 by construction, such as the vector that centering removes, or None."""
        return None

    def centered(self, weights: np.ndarray | None = None) -> Operator:
        """Center the rows and columns of the matrix.

        Parameters
        ----------
        weights : ndarray of shape (n,) or None, default=None
            Weights of the mean, with sum 1. By default, all samples have the same weight.

        Returns
        -------
        Operator
            Operator H A H' with H = I - 1w', for weights w.
        """
        return Centered(self, weights)

    def weighted(self, weights: np.ndarray, center: bool) -> Operator:
        """Multiply rows and columns by the square roots of sample weights.

        Parameters
        ----------
        weights : ndarray of shape (n,)
            Sample weights, all positive.
        center : bool
            Whether to center the matrix with these weights first.

        Returns
        -------
        Operator
            Operator R A R, where R is the diagonal matrix of the square roots.
        """
        return Congruent(self.centered(weights / weights.sum()) if center else self, np.sqrt(weights))


def _strips(n: int) -> list[slice]:
    """Split the rows of an n x n matrix into strips that are small enough to convert to float64."""
    return row_blocks(n, max(32, _STRIP_ENTRIES // max(1, n)))


class Dense(Operator):
    """Matrix in client memory. With `lends`, a factorization may overwrite its upper triangle and diagonal."""

    def __init__(self, matrix: np.ndarray, lends: bool = False):
        matrix = np.asarray(matrix)
        matrix = matrix if matrix.dtype in _REAL else matrix.astype(np.float64)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise UserError(f"a symmetric operator needs a square matrix, got shape {matrix.shape}")
        self.matrix, self.n, self.dtype = matrix, matrix.shape[0], matrix.dtype
        self.lends = bool(lends and matrix.flags.c_contiguous and matrix.flags.writeable)
        self._diagonal: np.ndarray | None = None

    def lent(self, diagonal: np.ndarray) -> None:
        """Keep a copy of the diagonal (n), because only the part below the diagonal remains valid from now on."""
        self.lends, self._diagonal = False, diagonal

    def _rows(self, where: Any) -> np.ndarray:
        """Return the rows given by a slice or by indices. Callers must not modify them."""
        if self._diagonal is None:
            return self.matrix[where]
        index = np.arange(self.n)[where]
        out = np.where(np.arange(self.n) < index[:, None], self.matrix[where], self.matrix[:, where].T)
        out[np.arange(len(index)), index] = self._diagonal[index]
        return out

    def _apply(self, B: np.ndarray, dtype: np.dtype) -> np.ndarray:
        if self._diagonal is not None:
            return self._half_product(B, dtype, self._diagonal)
        if self.dtype == dtype:
            return self.matrix @ B
        out = np.empty(B.shape, dtype)

        def multiply(where: slice) -> None:
            np.matmul(self.matrix[where].astype(dtype), B, out=out[where])

        in_threads(multiply, _strips(self.n))
        return out

    def _half_product(self, B: np.ndarray, dtype: np.dtype, diagonal: np.ndarray) -> np.ndarray:
        """Multiply by the matrix of which only the entries below the diagonal are valid. Each entry is read once."""
        out = np.zeros(B.shape, dtype)
        for where in _strips(self.n):
            left = self.matrix[where, : where.start].astype(dtype, copy=False)
            corner = np.tril(self.matrix[where, where], -1).astype(dtype, copy=False)
            corner = corner + corner.T
            np.fill_diagonal(corner, diagonal[where])
            out[where] += left @ B[: where.start] + corner @ B[where]
            out[: where.start] += left.T @ B[where]
        return out

    def diagonal(self) -> np.ndarray:
        return (np.diagonal(self.matrix) if self._diagonal is None else self._diagonal).astype(np.float64)

    def upper(self) -> Iterator[tuple[slice, np.ndarray]]:
        for where in _strips(self.n):
            yield where, self._rows(where)[:, where.start :].astype(np.float64)

    def columns(self, index: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(self._rows(index).T)

    def dense(self, dtype: Any = np.float64) -> np.ndarray:
        return self._rows(slice(None)).astype(dtype, order="C")


class LowRank(Operator):
    """Low-rank operator F F' for a tall factor F (n x r)."""

    def __init__(self, factor: np.ndarray):
        factor = np.asarray(factor)
        factor = factor if factor.dtype in _REAL else factor.astype(np.float64)
        if factor.ndim != 2:
            raise UserError(f"a low-rank operator needs a factor of n rows and r columns, got shape {factor.shape}")
        self.factor, self.n, self.dtype = factor, factor.shape[0], factor.dtype

    @property
    def rank(self) -> int:
        """Number of columns of the factor."""
        return self.factor.shape[1]

    def _apply(self, B: np.ndarray, dtype: np.dtype) -> np.ndarray:
        blocks = row_blocks(self.n, _STRIP)
        small = np.zeros((self.rank, *B.shape[1:]))
        for where in blocks:
            small += self.factor[where].astype(dtype, copy=False).T @ B[where]
        small = small.astype(dtype)
        out = np.empty(B.shape, dtype)
        for where in blocks:
            np.matmul(self.factor[where].astype(dtype, copy=False), small, out=out[where])
        return out

    def diagonal(self) -> np.ndarray:
        return np.einsum("ij,ij->i", self.factor, self.factor, dtype=np.float64)

    def columns(self, index: np.ndarray) -> np.ndarray:
        return self.factor @ self.factor[index].T

    def dense(self, dtype: Any = np.float64) -> np.ndarray:
        F = self.factor.astype(dtype, copy=False)
        return F @ F.T


class SumOperator(Operator):
    """Sum A + B of two operators."""

    def __init__(self, left: Operator, right: Operator):
        if left.n != right.n:
            raise UserError(f"operators of {left.n} and {right.n} samples cannot be added; use the same samples")
        self.left, self.right, self.n = left, right, left.n
        self.dtype = np.promote_types(left.dtype, right.dtype)

    def _apply(self, B: np.ndarray, dtype: np.dtype) -> np.ndarray:
        return self.left._apply(B, dtype) + self.right._apply(B, dtype)

    def diagonal(self) -> np.ndarray:
        return self.left.diagonal() + self.right.diagonal()

    def columns(self, index: np.ndarray) -> np.ndarray:
        return self.left.columns(index) + self.right.columns(index)

    def dense(self, dtype: Any = np.float64) -> np.ndarray:
        total = self.left.dense(dtype)
        total += self.right.dense(dtype)
        return total

    def expansion(self, coefficients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        (C, offset), (D, other) = self.left.expansion(coefficients), self.right.expansion(coefficients)
        if not np.array_equal(C, D):
            raise UserError("a sum of differently weighted or centered operators has no single expansion; wrap the sum")
        return C, offset + other


class Scaled(Operator):
    """Operator multiplied by a number."""

    def __init__(self, inner: Operator, factor: float):
        self.inner, self.factor, self.n, self.dtype = inner, float(factor), inner.n, inner.dtype

    def _apply(self, B: np.ndarray, dtype: np.dtype) -> np.ndarray:
        return dtype.type(self.factor) * self.inner._apply(B, dtype)

    def diagonal(self) -> np.ndarray:
        return self.factor * self.inner.diagonal()

    def columns(self, index: np.ndarray) -> np.ndarray:
        return self.dtype.type(self.factor) * self.inner.columns(index)

    def dense(self, dtype: Any = np.float64) -> np.ndarray:
        matrix = self.inner.dense(dtype)
        matrix *= self.factor
        return matrix

    def expansion(self, coefficients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.inner.expansion(self.factor * coefficients)


class Centered(Operator):
    """Centered operator H A H' with H = I - 1w', which keeps the training means to center new rows in the same way."""

    # Schoelkopf, Smola, Mueller 1998, appendix A.

    def __init__(self, inner: Operator, weights: np.ndarray | None = None):
        self.inner, self.weights, self.n, self.dtype = inner, weights, inner.n, inner.dtype
        self._means: np.ndarray | None = None

    @property
    def null(self) -> np.ndarray:
        return np.ones(self.n) if self.weights is None else self.weights

    @property
    def means(self) -> np.ndarray:
        """Mean of each row of the original matrix (n, float64), computed with one product at first use."""
        if self._means is None:
            weights = np.full(self.n, 1.0 / self.n) if self.weights is None else self.weights
            self._means = self.inner.product(weights[:, None])[:, 0]
        return self._means

    def _mean(self, rows: np.ndarray) -> np.ndarray:
        """Compute the weighted mean of some rows."""
        if self.weights is None:
            return np.asarray(rows.mean(axis=0, dtype=np.float64))
        return np.asarray(self.weights @ rows)

    def _left(self, coefficients: np.ndarray) -> np.ndarray:
        """Compute H' times coefficients, which are the coefficients of the centered function."""
        if self.weights is None:
            return coefficients - coefficients.mean(axis=0, dtype=np.float64).astype(coefficients.dtype)
        return coefficients - np.multiply.outer(self.weights, coefficients.sum(axis=0)).astype(coefficients.dtype)

    def _apply(self, B: Any, dtype: np.dtype) -> Any:
        if not isinstance(B, WorkerRows):
            out = self.inner._apply(self._left(B), dtype)
            out -= self._mean(out).astype(dtype)
            return out
        # On workers, every sum over the rows costs a communication round. The product needs the sums 1'B, and the mean
        # of the result follows from (A w)'B, so compute both in one round.
        own = beside(B, self._columns)
        sums, along = inner(B, own)[0][:, :2].T
        shift = sums / self.n if self.weights is None else own[:, 2:] @ sums[None]
        image = self.inner._apply(B - shift.astype(dtype), dtype)
        return image - (along - self._mean(self.means) * sums).astype(dtype)

    @cached_property
    def _columns(self) -> np.ndarray:
        """Columns 1, A w and w (n x 3) in one array, which is sent to the workers once."""
        return np.column_stack([np.ones(self.n), self.means, self.null])

    def diagonal(self) -> np.ndarray:
        return self.inner.diagonal() - 2 * self.means + self._mean(self.means)

    def columns(self, index: np.ndarray) -> np.ndarray:
        shift = self.means[index] - self._mean(self.means)
        return mapped(_less, self.inner.columns(index), self.means[:, None], shift)

    def upper(self) -> Iterator[tuple[slice, np.ndarray]]:
        # The mean is several times larger than the centered entries, so subtract it from the entries in float64.
        middle = float(self._mean(self.means))
        for where, strip in self.inner.upper():
            strip -= self.means[where.start :]
            strip -= (self.means[where] - middle)[:, None]
            yield where, strip

    def dense(self, dtype: Any = np.float64) -> np.ndarray:
        matrix = self.inner.dense(dtype)
        means = self._mean(matrix)
        matrix -= means.astype(dtype)
        matrix -= (means - self._mean(means)).astype(dtype)[:, None]
        return matrix

    def expansion(self, coefficients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        centered = self._left(coefficients)
        inner, offset = self.inner.expansion(centered)
        return inner, offset - self.means @ centered


class Congruent(Operator):
    """Operator R A R for a diagonal matrix R: the kernel of samples with weights R^2."""

    def __init__(self, inner: Operator, roots: np.ndarray):
        self.inner, self.roots, self.n, self.dtype = inner, roots, inner.n, inner.dtype

    def _apply(self, B: np.ndarray, dtype: np.dtype) -> np.ndarray:
        roots = self.roots.astype(dtype).reshape(-1, *[1] * (B.ndim - 1))
        return roots * self.inner._apply(roots * B, dtype)

    @property
    def null(self) -> np.ndarray | None:
        return None if self.inner.null is None else self.inner.null / self.roots

    def diagonal(self) -> np.ndarray:
        return self.roots**2 * self.inner.diagonal()

    def columns(self, index: np.ndarray) -> np.ndarray:
        return (self.roots[:, None] * self.inner.columns(index) * self.roots[index]).astype(self.dtype)

    def upper(self) -> Iterator[tuple[slice, np.ndarray]]:
        for where, strip in self.inner.upper():
            strip *= self.roots[where.start :]
            strip *= self.roots[where, None]
            yield where, strip

    def dense(self, dtype: Any = np.float64) -> np.ndarray:
        matrix = self.inner.dense(dtype)
        matrix *= self.roots.astype(dtype)
        matrix *= self.roots.astype(dtype)[:, None]
        return matrix

    def expansion(self, coefficients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.inner.expansion(self.roots.reshape(-1, *[1] * (coefficients.ndim - 1)) * coefficients)


def _less(rows: np.ndarray, means: np.ndarray, shift: np.ndarray) -> np.ndarray:
    return np.subtract(rows, means + shift, dtype=np.float64).astype(rows.dtype, copy=False)
