"""Small products and orthonormal bases of tall blocks (n x k)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.linalg

from dmo.blocks import row_blocks

LinearMap = Callable[[np.ndarray], np.ndarray]
"""A linear map of tall blocks: n x k to n x k."""


def gram(F: np.ndarray, G: np.ndarray | None = None, size: int = 8192) -> np.ndarray:
    """F'G (k x l, float64) of tall blocks: products per row block in their own precision, sums in float64."""
    G = F if G is None else G
    total = np.zeros((F.shape[1], G.shape[1]))
    for where in row_blocks(F.shape[0], size):
        total += F[where].T @ G[where]
    return total


def orthonormalize(B: np.ndarray, against: np.ndarray | None = None, tol: float = 1e-10) -> np.ndarray:
    """An orthonormal basis (n x r, r <= k, float64) of the columns of B, less their part in `against`.

    Arguments: `B` n x k; `against` n x q with orthonormal columns; `tol`: directions whose length is below
    `tol` times the largest column of B are dropped, so r is B's numerical rank outside `against`.
    Projects twice ("twice is enough", Giraud et al. 2005) and takes a rank-revealing QR.
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
