"""Tall matrices (n x k): what solvers need of them, their small products, orthonormal bases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import scipy.linalg

from dmo.blocks import row_blocks

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

    Parameters
    ----------
    F : ndarray of shape (n, k)
        Left factor.
    G : ndarray of shape (n, l), optional
        Right factor; default F.
    size : int, default=8192
        Rows of a block.

    Returns
    -------
    ndarray of shape (k, l), float64
        F'G.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.linalg.tall import gram
    >>> gram(np.ones((5, 1)))
    array([[5.]])
    """
    G = F if G is None else G
    total = np.zeros((F.shape[1], G.shape[1]))
    for where in row_blocks(F.shape[0], size):
        total += F[where].T @ G[where]
    return total


def orthonormalize(B: np.ndarray, against: np.ndarray | None = None, tol: float = 1e-10) -> np.ndarray:
    """Find an orthonormal basis of the span of columns, less their part in another span.

    Projects twice ("twice is enough") and takes a rank-revealing QR.

    Parameters
    ----------
    B : ndarray of shape (n, k)
        Columns.
    against : ndarray of shape (n, q), optional
        Orthonormal columns.
    tol : float, default=1e-10
        Directions whose length is below `tol` times the largest column of B are dropped.

    Returns
    -------
    ndarray of shape (n, r), float64
        The basis; r <= k is B's numerical rank outside `against`.

    References
    ----------
    Giraud, Langou, Rozloznik, van den Eshof 2005.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.linalg.tall import orthonormalize
    >>> orthonormalize(np.array([[1.0, 2.0], [1.0, 2.0], [0.0, 0.0]])).shape
    (3, 1)
    """
    B = np.array(B, dtype=np.float64)
    scale = np.sqrt((B * B).sum(axis=0).max(initial=0.0))
    if scale == 0.0:
        return np.zeros((B.shape[0], 0))
    for _ in range(2):
        if against is not None and against.shape[1]:
            B -= against @ (against.T @ B)
    Q, R, _ = scipy.linalg.qr(B, mode="economic", pivoting=True, overwrite_a=True, check_finite=False)
    rank = int((np.abs(np.diag(R)) > tol * scale).sum())
    Q = Q[:, :rank]
    if against is not None and against.shape[1]:
        Q -= against @ (against.T @ Q)
        Q, _ = scipy.linalg.qr(Q, mode="economic", overwrite_a=True, check_finite=False)
    return Q
