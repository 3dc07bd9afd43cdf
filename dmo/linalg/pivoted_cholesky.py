"""Randomly pivoted Cholesky: a partial factorization from few columns of a positive semidefinite matrix."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import scipy.linalg

Columns = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class PivotedCholesky:
    """A partial Cholesky factor: A ~ F F' with F (n x r), the pivots (r row numbers) and the residual diagonal (n)."""

    factor: np.ndarray
    pivots: np.ndarray
    residual: np.ndarray


def rpcholesky(
    diagonal: np.ndarray,
    columns: Columns,
    rank: int,
    random_state: int | np.random.Generator | None = None,
    block: int = 100,
    tol: float = 1e-6,
    submatrix: Columns | None = None,
) -> PivotedCholesky:
    """Randomly pivoted Cholesky of a positive semidefinite matrix by blocks, with rejection of redundant pivots.

    Arguments: `diagonal` (n); `columns(index)` -> the columns n x len(index); `rank`: pivots wanted, fewer come back
    when the residual diagonal falls below `tol` times the largest diagonal entry; `block`: proposals per round;
    `submatrix(index)` -> the entries among `index`, where these cost less than whole columns.
    Proposals are drawn in proportion to the residual diagonal and accepted as the sequential algorithm would accept
    them. Memory: the factor, n x rank in the columns' precision.
    Source: Chen, Epperly, Tropp, Webber 2025, algorithm 2.1; Epperly, Tropp, Webber 2024 (accelerated, rejection).
    """
    rng = np.random.default_rng(random_state)
    residual = np.array(
        diagonal, dtype=np.float64
    )  # it is what is left of subtractions: float32 would go negative early
    n, floor = len(residual), tol * float(np.max(diagonal, initial=0.0))
    rank = min(rank, n)
    pivots = np.zeros(rank, dtype=np.int64)
    factor: np.ndarray | None = None
    found = 0
    while found < rank and residual.max() > floor:
        # what is below the floor is rounding of the columns: a pivot there would divide by its root
        weights = np.where(residual > floor, residual, 0.0)
        size = min(block, rank - found, int((weights > 0).sum()))
        proposed = rng.choice(n, size=size, p=weights / weights.sum(), replace=False)
        whole = columns(proposed) if submatrix is None else None
        local = whole[proposed] if whole is not None else _entries(submatrix, proposed)
        if factor is None:
            # transposed, so that a round writes whole rows and every product below reads along them
            factor = np.zeros((rank, n), np.float32 if local.dtype == np.float32 else np.float64)
        F = factor[:found]
        among = F[:, proposed].astype(np.float64)  # the small block decides who is accepted: it is cheap in float64
        kept = _accept(local.astype(np.float64) - among.T @ among, residual[proposed], floor, rng)
        accepted = proposed[kept]
        new = (whole[:, kept] if whole is not None else columns(accepted)).T - F[:, accepted].T @ F
        stop = found + len(kept)
        factor[found:stop] = scipy.linalg.solve_triangular(_root(new[:, accepted]), new, lower=True, check_finite=False)
        residual -= np.einsum("ij,ij->j", factor[found:stop], factor[found:stop], dtype=np.float64)
        residual[accepted] = 0.0  # exactly, so that rounding proposes no pivot twice
        np.maximum(residual, 0.0, out=residual)
        pivots[found:stop] = accepted
        found = stop
    if factor is None:
        factor = np.zeros((0, n))
    return PivotedCholesky(factor[:found].T, pivots[:found], residual)


def _entries(submatrix: Columns | None, index: np.ndarray) -> np.ndarray:
    assert submatrix is not None
    return submatrix(index)


def _root(pivot_block: np.ndarray) -> np.ndarray:
    """Lower Cholesky factor of the residual at the accepted pivots, with a trace of jitter: as much as rounding asks for."""
    square = pivot_block.astype(np.float64)
    square = (square + square.T) / 2
    mean = float(np.trace(square)) / len(square)
    # from what float64 columns need to what float32 ones may: the least that works distorts the factor least
    for jitter in (1e-9, 1e-7, 1e-5, 1e-3):
        square.flat[:: len(square) + 1] += jitter * mean
        with suppress(np.linalg.LinAlgError):
            return np.linalg.cholesky(square)
    raise np.linalg.LinAlgError("the kernel is not positive semidefinite at the pivots; take a valid kernel or float64")


def _accept(local: np.ndarray, proposal: np.ndarray, floor: float, rng: np.random.Generator) -> np.ndarray:
    """Positions of the proposals that sequential sampling keeps: each with probability (residual now / when proposed)."""
    kept: list[int] = []
    chance = rng.random(len(proposal))
    for i in range(len(proposal)):
        pivot = local[
            i, i
        ]  # the residual after the proposals that were kept before, as one pivot at a time would see it
        if pivot > floor and chance[i] * proposal[i] < pivot:
            kept.append(i)
            column = local[:, i] / np.sqrt(pivot)
            local -= np.outer(column, column)
    # one at least, so that every round gains a pivot and the loop ends
    return np.array(kept or [int(np.argmax(proposal))], dtype=np.int64)
