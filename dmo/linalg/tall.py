"""Tall matrices (n x k): what solvers need of them, their small products, orthonormal bases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import scipy.linalg

from dmo.blocks import row_blocks
from dmo.kernels.threads import product

LinearMap = Callable[[np.ndarray], np.ndarray]
"""A linear map of tall blocks: n x k to n x k."""


class Factor(Protocol):
    """A tall matrix F (n x r) known by its products, which are float64.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.linalg.factors import DenseFactor
    >>> DenseFactor(np.ones((4, 2))).centered().rows(slice(0, 1))
    array([[0., 0.]])
    """

    @property
    def shape(self) -> tuple[int, int]:
        """n, r."""
        ...

    def dot(self, S: np.ndarray) -> np.ndarray:
        """Multiply from the left.

        Parameters
        ----------
        S : ndarray of shape (r, q)
            Right factor.

        Returns
        -------
        ndarray of shape (n, q)
            F S.
        """
        ...

    def t_dot(self, B: np.ndarray) -> np.ndarray:
        """Multiply the transpose from the left.

        Parameters
        ----------
        B : ndarray of shape (n, q)
            Right factor.

        Returns
        -------
        ndarray of shape (r, q)
            F'B.
        """
        ...

    def gram(self) -> np.ndarray:
        """Multiply F with itself.

        Returns
        -------
        ndarray of shape (r, r)
            F'F.
        """
        ...

    def rows(self, where: slice) -> np.ndarray:
        """Form some rows.

        Parameters
        ----------
        where : slice
            Which.

        Returns
        -------
        ndarray of shape (m, r)
            The rows, dense.
        """
        ...

    def centered(self) -> Factor:
        """Take the mean off all rows.

        Returns
        -------
        Factor
            (I - 11'/n) F.
        """
        ...

    def scaled(self, factor: float) -> Factor:
        """Multiply all entries.

        Parameters
        ----------
        factor : float
            By this.

        Returns
        -------
        Factor
            factor F.
        """
        ...


def gram(F: np.ndarray, G: np.ndarray | None = None, size: int = 8192) -> np.ndarray:
    """Multiply tall blocks: products per row block in their own precision, sums in float64.

    F (n, k); G (n, l) -> (k, l)
    """
    G = F if G is None else G
    total = np.zeros((F.shape[1], G.shape[1]))
    for where in row_blocks(F.shape[0], size):
        total += F[where].T @ G[where]
    return total


def orthonormalize(B: np.ndarray, against: np.ndarray | None = None, tol: float = 1e-10) -> np.ndarray:
    """Find an orthonormal basis of the span of columns, less their part in another span.

    B (n, k); against (n, q) -> (n, r)
    """
    # Projects twice ("twice is enough"), and orthonormalizes after each time through the Cholesky factor of the
    # columns' Gram matrix: all in products of matrices, where a rank-revealing QR, which follows where the columns
    # are nearly dependent, takes ten times as long.
    #
    # Giraud, Langou, Rozloznik, van den Eshof 2005; Cholesky QR, twice: Yamamoto, Nakatsukasa, Yanagisawa, Fukaya
    # 2015.
    B = np.array(B, dtype=np.float64)
    scale = np.sqrt((B * B).sum(axis=0).max(initial=0.0))
    if scale == 0.0:
        return np.zeros((B.shape[0], 0))
    against = np.zeros((len(B), 0)) if against is None else against
    B = _outside(B, against)
    first = _by_gram(B, _RELIABLE * tol * scale, _DEPENDENT)
    # what the first time left of dependence is at most rounding times its condition: the second removes it
    second = None if first is None else _by_gram(_outside(first, against), 0.5, 0.5)
    if second is not None:
        return second
    Q, R, _ = scipy.linalg.qr(
        _outside(B, against), mode="economic", pivoting=True, overwrite_a=True, check_finite=False
    )
    rank = int((np.abs(np.diag(R)) > tol * scale).sum())
    Q = Q[:, :rank]
    if against.shape[1]:
        Q, _ = scipy.linalg.qr(_outside(Q, against), mode="economic", overwrite_a=True, check_finite=False)
    return Q


_DEPENDENT = 1e-5
"""Length of a column outside of those before it, relative to its own, below which Cholesky QR leaves too few digits."""
_RELIABLE = 1e3
"""Times the length of directions that are dropped: columns that stay longer than that leave nothing to drop."""


def _outside(B: np.ndarray, against: np.ndarray) -> np.ndarray:
    """B less its part in the span of orthonormal columns."""
    return B - product(against, product(against.T, B)) if against.shape[1] else B


def _by_gram(B: np.ndarray, least: float, dependent: float) -> np.ndarray | None:
    """B R^-1 with R'R = B'B; None where a column, outside of those before it, is shorter than `least` or than `dependent`
    times its own length."""
    if B.shape[1] > B.shape[0]:
        return None
    square = B.T @ B
    lengths = np.sqrt(square.diagonal())
    if not lengths.min() > least:
        return None
    try:  # columns of length 1: their factor does not care how different their lengths are
        root = np.linalg.cholesky(square / lengths / lengths[:, None])
    except np.linalg.LinAlgError:
        return None
    left = root.diagonal()
    if left.min() < dependent or (left * lengths).min() <= least:
        return None
    inverse = scipy.linalg.solve_triangular(root, np.diag(1 / lengths), lower=True, check_finite=False)
    return product(B, inverse.T)
