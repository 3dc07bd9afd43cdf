"""Randomly pivoted Cholesky: partial factorization of a positive semidefinite matrix from few of its columns."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg

from dmo.kernels.loops import compiled
from dmo.linalg.rows import WorkerRows, hstack, mapped, picked, settle

Columns = Callable[[np.ndarray], np.ndarray]
# Maximum number of pivots that a round proposes. For 100 pivots, products are efficient and most proposals are
# accepted.
_PROPOSALS = 100
# Fraction of the largest diagonal entry, below which residuals are rounding errors of float32 columns.
_FLOOR = 1e-6


@dataclass(frozen=True)
class PivotedCholesky:
    """Partial Cholesky factorization of a matrix A by a factor F with A ~ F F'.

    Attributes
    ----------
    factor : ndarray of shape (n, r)
        Factor F, in the precision of the columns.
    pivots : ndarray of shape (r,), int
        Row indices of the pivots.
    residual : ndarray of shape (n,), float64
        Diagonal of the residual A - F F'.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.linalg.pivoted_cholesky import rpcholesky
    >>> A = np.diag([4.0, 1.0, 0.0])
    >>> rpcholesky(A.diagonal(), lambda index: A[:, index], rank=3, random_state=0).residual
    array([0., 0., 0.])
    """

    factor: np.ndarray
    pivots: np.ndarray
    residual: np.ndarray


def rpcholesky(
    diagonal: np.ndarray,
    columns: Columns,
    rank: int,
    random_state: int | np.random.Generator | None = None,
    submatrix: Columns | None = None,
) -> PivotedCholesky:
    """Factorize a positive semidefinite matrix by randomly pivoted Cholesky with block proposals.

    Each round proposes up to 100 pivots with probability proportional to the diagonal of the residual, and accepts the
    pivots that the sequential algorithm would accept. The factor needs n x rank numbers in the precision of the
    columns.

    Parameters
    ----------
    diagonal : ndarray of shape (n,)
        Diagonal of the matrix.
    columns : callable
        Function that returns the columns of the matrix for m column indices, as an array of shape (n, m).
    rank : int
        Maximum number of pivots. There are fewer if the diagonal of the residual falls to 1e-6 times the largest
        diagonal entry of the matrix.
    random_state : int or Generator, optional
        Seed or generator of the proposals.
    submatrix : callable, optional
        Function that returns the submatrix for m row and column indices, as an array of shape (m, m). Pass it if a
        submatrix costs less than whole columns.

    Returns
    -------
    PivotedCholesky
        Factor, pivots and diagonal of the residual.

    Raises
    ------
    LinAlgError
        If the matrix is not positive semidefinite at the pivots.

    References
    ----------
    Chen, Epperly, Tropp, Webber 2025, algorithm 2.1; Epperly, Tropp, Webber 2024 (accelerated, rejection).

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.linalg.pivoted_cholesky import rpcholesky
    >>> F = np.random.default_rng(0).normal(size=(20, 3))
    >>> A = F @ F.T
    >>> found = rpcholesky(A.diagonal(), lambda index: A[:, index], rank=10, random_state=0)
    >>> found.factor.shape, bool(np.allclose(found.factor @ found.factor.T, A, atol=1e-4))
    ((20, 3), True)
    """
    rng = np.random.default_rng(random_state)
    # In float32, rounding errors of repeated subtractions would soon make residuals negative, so use float64.
    residual = np.array(diagonal, dtype=np.float64)
    n, floor = len(residual), _FLOOR * float(np.max(diagonal, initial=0.0))
    rank = min(rank, n)
    pivots = np.zeros(rank, dtype=np.int64)
    factor: Any = None
    found = 0
    while found < rank and residual.max() > floor:
        # A residual below `floor` is a rounding error, and a pivot divides by its square root, so never propose such a
        # pivot.
        weights = np.where(residual > floor, residual, 0.0)
        size = min(_PROPOSALS, rank - found, int((weights > 0).sum()))
        proposed = rng.choice(n, size=size, p=weights / weights.sum(), replace=False)
        whole = columns(proposed) if submatrix is None else None
        if factor is None:
            factor = _RowsSoFar() if isinstance(whole, WorkerRows) else _SoFar(rank, n)
        local, among = factor.among(proposed, whole)
        local = local if submatrix is None else submatrix(proposed)
        # The small block that decides which proposals are accepted costs little, so use float64.
        wide = among.astype(np.float64)
        kept = _accept(local.astype(np.float64) - wide.T @ wide, residual[proposed], floor, rng)
        accepted = proposed[kept]
        residual -= factor.extend(
            whole[:, kept] if whole is not None else columns(accepted), accepted, among[:, kept], floor
        )
        # Set the residual of accepted pivots to exactly zero, so that rounding errors cannot propose a pivot twice.
        residual[accepted] = 0.0
        np.maximum(residual, 0.0, out=residual)
        pivots[found : found + len(kept)] = accepted
        found += len(kept)
    return PivotedCholesky(np.zeros((n, 0)) if factor is None else factor.factor, pivots[:found], residual)


class _SoFar:
    """Factor in client memory, transposed so that rounds and products access contiguous rows."""

    def __init__(self, rank: int, n: int):
        self._shape, self._found = (rank, n), 0
        self._all = np.zeros((0, n), np.float32)

    @property
    def factor(self) -> np.ndarray:
        return self._all[: self._found].T

    def among(self, index: np.ndarray, whole: np.ndarray | None) -> tuple[np.ndarray | None, np.ndarray]:
        """Return some rows of the proposed columns (n x m), and the same rows of the factor, transposed."""
        return None if whole is None else whole[index], self._all[: self._found, index]

    def extend(self, chosen: np.ndarray, accepted: np.ndarray, among: np.ndarray, floor: float) -> np.ndarray:
        """Extend the factor by accepted columns (n x m), and return the decrease of the residual diagonal."""
        if not self._found:
            self._all = np.zeros(self._shape, np.float32 if chosen.dtype == np.float32 else np.float64)
        new = chosen.T - among.T @ self._all[: self._found]
        self._found, start = self._found + len(accepted), self._found
        # A triangular solve would copy the rows to column-major order, so multiply by the inverse of the triangle.
        inverse = _inverse_root(new[:, accepted], floor).astype(self._all.dtype)
        added = np.matmul(inverse, new.astype(self._all.dtype, copy=False), out=self._all[start : self._found])
        # Each sum has at most 100 squares, so the precision of the columns suffices.
        return np.asarray(np.einsum("ij,ij->j", added, added))


class _RowsSoFar:
    """Factor as rows on workers, which send only some rows and sums to the client."""

    def __init__(self) -> None:
        self._blocks: list[Any] = []

    @property
    def factor(self) -> Any:
        return hstack(self._blocks)

    def among(self, index: np.ndarray, whole: Any) -> tuple[np.ndarray, np.ndarray]:
        found = picked(index, whole, *self._blocks)
        self._index, self._local = index, found[:, : len(index)]
        return self._local, found[:, len(index) :].T

    def extend(self, chosen: Any, accepted: np.ndarray, among: np.ndarray, floor: float) -> np.ndarray:
        kept = np.isin(self._index, accepted)
        inverse = _inverse_root(self._local[np.ix_(kept, kept)] - among.T @ among, floor).astype(chosen.dtype)
        added = mapped(_beyond, chosen, among, *self._blocks) @ inverse.T
        settle(added)
        self._blocks.append(added)
        return np.asarray(added.mapped(_squares, columns=1))[:, 0]


def _beyond(chosen: np.ndarray, among: np.ndarray, *blocks: np.ndarray) -> np.ndarray:
    edges = np.cumsum([block.shape[1] for block in blocks], dtype=int)
    return chosen - sum(block @ own for block, own in zip(blocks, np.split(among, edges), strict=False))


def _squares(rows: np.ndarray) -> np.ndarray:
    return np.einsum("ij,ij->i", rows, rows)[:, None]


def _inverse_root(pivot_block: np.ndarray, floor: float) -> np.ndarray:
    """Invert the lower Cholesky factor of the residual matrix at the accepted pivots.

    The jitter on the diagonal is increased until the factorization succeeds.
    """
    square = pivot_block.astype(np.float64)
    square = (square + square.T) / 2
    mean = float(np.trace(square)) / len(square)
    # The smallest jitter distorts the factor least, so try it first.
    for jitter in (1e-9 * mean, 1e-7 * mean, 1e-5 * mean, 1e-3 * mean, floor):
        square.flat[:: len(square) + 1] += jitter
        with suppress(np.linalg.LinAlgError):
            root = np.linalg.cholesky(square)
            return np.asarray(scipy.linalg.solve_triangular(root, np.eye(len(root)), lower=True, check_finite=False))
    raise np.linalg.LinAlgError("the kernel is not positive semidefinite at the pivots; use a valid kernel or float64")


def _accept(local: np.ndarray, proposal: np.ndarray, floor: float, rng: np.random.Generator) -> np.ndarray:
    """Return the positions of the proposals that sequential sampling keeps."""
    # A proposal is kept with a probability equal to its current residual divided by its residual when it was proposed.
    kept = np.flatnonzero(_sequentially(local, rng.random(len(proposal)) * proposal, floor))
    # Every round keeps at least one pivot, so that the loop ends.
    return kept if len(kept) else np.array([np.argmax(proposal)])


@compiled()
def _sequentially(local, least, floor):  # type: ignore[no-untyped-def]
    """Decide which pivots sequential sampling keeps. The matrix `local` is overwritten.

    A pivot is kept if its residual after the earlier pivots exceeds `floor` and its entry of `least`.
    """
    n = local.shape[0]
    kept = np.zeros(n, np.bool_)
    for i in range(n):
        pivot = local[i, i]
        if pivot > floor and least[i] < pivot:
            kept[i] = True
            for j in range(i + 1, n):  # The lower triangle is never read.
                share, target, column = local[i, j] / pivot, local[j, j:], local[i, j:]
                for k in range(n - j):
                    target[k] -= share * column[k]
    return kept
