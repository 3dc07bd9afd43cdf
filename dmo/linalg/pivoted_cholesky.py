"""Randomly pivoted Cholesky: a partial factorization from few columns of a positive semidefinite matrix."""

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
_PROPOSALS = 100  # a round: enough for products of matrices, few enough that most are accepted
_FLOOR = 1e-6  # of the largest diagonal entry: what is left below is rounding of float32 columns


@dataclass(frozen=True)
class PivotedCholesky:
    """A partial Cholesky factorization A ~ F F'.

    Attributes
    ----------
    factor : ndarray of shape (n, r)
        F, in the columns' precision.
    pivots : ndarray of shape (r,), int
        Row numbers.
    residual : ndarray of shape (n,), float64
        Diagonal of A - F F'.

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
    """Factorize a positive semidefinite matrix by randomly pivoted Cholesky in blocks, with rejection of redundant pivots.

    Proposals are drawn in proportion to the residual diagonal, 100 a round, and accepted as the sequential algorithm would
    accept them. Memory: the factor, n x rank in the columns' precision.

    Parameters
    ----------
    diagonal : ndarray of shape (n,)
        Of the matrix.
    columns : callable
        Takes row numbers, returns these columns (n x m).
    rank : int
        Pivots wanted; fewer come back when the residual diagonal falls below 1e-6 times the largest diagonal entry.
    random_state : int or Generator, optional
        Of the proposals.
    submatrix : callable, optional
        Takes row numbers, returns the entries among them (m x m), where these cost less than whole columns.

    Returns
    -------
    PivotedCholesky
        Factor, pivots, residual diagonal.

    Raises
    ------
    LinAlgError
        Where the matrix is not positive semidefinite at the pivots.

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
    # it is what is left of subtractions: float32 would go negative early
    residual = np.array(diagonal, dtype=np.float64)
    n, floor = len(residual), _FLOOR * float(np.max(diagonal, initial=0.0))
    rank = min(rank, n)
    pivots = np.zeros(rank, dtype=np.int64)
    factor: Any = None
    found = 0
    while found < rank and residual.max() > floor:
        # what is below the floor is rounding of the columns: a pivot there would divide by its root
        weights = np.where(residual > floor, residual, 0.0)
        size = min(_PROPOSALS, rank - found, int((weights > 0).sum()))
        proposed = rng.choice(n, size=size, p=weights / weights.sum(), replace=False)
        whole = columns(proposed) if submatrix is None else None  # of others, columns are made for pivots alone
        if factor is None:
            factor = _RowsSoFar() if isinstance(whole, WorkerRows) else _SoFar(rank, n)
        local, among = factor.among(proposed, whole)
        local = local if submatrix is None else submatrix(proposed)
        wide = among.astype(np.float64)  # the small block decides who is accepted: it is cheap in float64
        kept = _accept(local.astype(np.float64) - wide.T @ wide, residual[proposed], floor, rng)
        accepted = proposed[kept]
        residual -= factor.extend(
            whole[:, kept] if whole is not None else columns(accepted), accepted, among[:, kept], floor
        )
        residual[accepted] = 0.0  # exactly, so that rounding proposes no pivot twice
        np.maximum(residual, 0.0, out=residual)
        pivots[found : found + len(kept)] = accepted
        found += len(kept)
    return PivotedCholesky(np.zeros((n, 0)) if factor is None else factor.factor, pivots[:found], residual)


class _SoFar:
    """F in this process: transposed, so that a round writes whole rows and every product reads along them."""

    def __init__(self, rank: int, n: int):
        self._shape, self._found = (rank, n), 0
        self._all = np.zeros((0, n), np.float32)

    @property
    def factor(self) -> np.ndarray:
        return self._all[: self._found].T

    def among(self, index: np.ndarray, whole: np.ndarray | None) -> tuple[np.ndarray | None, np.ndarray]:
        """Entries of columns (n x m) in some rows, and these rows of F, transposed."""
        return None if whole is None else whole[index], self._all[: self._found, index]

    def extend(self, chosen: np.ndarray, accepted: np.ndarray, among: np.ndarray, floor: float) -> np.ndarray:
        """Add what accepted columns of the matrix (n x m) have beyond F: by how much the diagonal that is left falls."""
        if not self._found:
            self._all = np.zeros(self._shape, np.float32 if chosen.dtype == np.float32 else np.float64)
        new = chosen.T - among.T @ self._all[: self._found]
        self._found, start = self._found + len(accepted), self._found
        # by the inverse of the small triangle: a product reads and writes rows, where a solve copies to columns and back
        inverse = _inverse_root(new[:, accepted], floor).astype(self._all.dtype)
        added = np.matmul(inverse, new.astype(self._all.dtype, copy=False), out=self._all[start : self._found])
        # a sum of at most 100 squares keeps the digits that the columns have
        return np.asarray(np.einsum("ij,ij->j", added, added))


class _RowsSoFar:
    """The same as rows on workers; some of them and of sums come to this process."""

    def __init__(self) -> None:
        self._blocks: list[Any] = []  # each round's, which are put side by side where they are multiplied

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
    """Inverse of the lower Cholesky factor of the residual at the accepted pivots, with a trace of jitter: as much as
    rounding asks for, `floor` at most, which is rounding of the columns."""
    square = pivot_block.astype(np.float64)
    square = (square + square.T) / 2
    mean = float(np.trace(square)) / len(square)
    # from what float64 columns need to what float32 ones may: the least that works distorts the factor least
    for jitter in (1e-9 * mean, 1e-7 * mean, 1e-5 * mean, 1e-3 * mean, floor):
        square.flat[:: len(square) + 1] += jitter
        with suppress(np.linalg.LinAlgError):
            root = np.linalg.cholesky(square)
            return np.asarray(scipy.linalg.solve_triangular(root, np.eye(len(root)), lower=True, check_finite=False))
    raise np.linalg.LinAlgError("the kernel is not positive semidefinite at the pivots; take a valid kernel or float64")


def _accept(local: np.ndarray, proposal: np.ndarray, floor: float, rng: np.random.Generator) -> np.ndarray:
    """Positions of the proposals that sequential sampling keeps: each with probability (residual now / when proposed)."""
    kept = np.flatnonzero(_sequentially(local, rng.random(len(proposal)) * proposal, floor))
    # one at least, so that every round gains a pivot and the loop ends
    return kept if len(kept) else np.array([np.argmax(proposal)])


@compiled()
def _sequentially(local, least, floor):  # type: ignore[no-untyped-def]
    """Whether each pivot of `local`, which is used up, is above the floor and `least`, in the residual of those kept before
    it, as one pivot at a time would see it."""
    n = local.shape[0]
    kept = np.zeros(n, np.bool_)
    for i in range(n):
        pivot = local[i, i]
        if pivot > floor and least[i] < pivot:
            kept[i] = True
            for j in range(i + 1, n):  # the triangle right of the diagonal
                share, target, column = local[i, j] / pivot, local[j, j:], local[i, j:]
                for k in range(n - j):
                    target[k] -= share * column[k]
    return kept
