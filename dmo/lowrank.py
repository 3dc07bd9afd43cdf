"""Low-rank kernels: randomly pivoted Cholesky, and factors built from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.linalg


@dataclass(frozen=True)
class PivotedCholesky:
    """A partial Cholesky factor: A ~ F F' with F (n x r), the pivots (r row numbers) and the residual diagonal (n)."""

    factor: np.ndarray
    pivots: np.ndarray
    residual: np.ndarray


def rpcholesky(
    diagonal: np.ndarray,
    columns: Callable[[np.ndarray], np.ndarray],
    rank: int,
    random_state: int | None = None,
    block: int = 100,
    tolerance: float = 1e-6,
) -> PivotedCholesky:
    """Randomly pivoted Cholesky of a positive semidefinite matrix by blocks, with rejection of redundant pivots.

    Arguments: `diagonal` (n); `columns(index)` -> the columns n x len(index); `rank`: pivots wanted, fewer come back
    when the residual diagonal falls below `tolerance` times the largest diagonal entry; `block`: proposals per round.
    Proposals are drawn in proportion to the residual diagonal and accepted as the sequential algorithm would accept them.
    Source: Chen, Epperly, Tropp, Webber 2025, algorithm 2.1; Epperly, Tropp, Webber 2024 (accelerated, rejection).
    """
    rng = np.random.default_rng(random_state)
    residual = np.array(diagonal, dtype=np.float64)
    n, floor = len(residual), tolerance * float(np.max(diagonal, initial=0.0))
    rank = min(rank, n)
    factor = np.zeros((rank, n), np.float32 if columns(np.array([0])).dtype == np.float32 else np.float64)
    pivots = np.zeros(rank, dtype=np.int64)
    found = 0
    while found < rank and residual.max() > floor:
        weights = np.where(residual > floor, residual, 0.0)
        size = min(block, rank - found, int((weights > 0).sum()))
        proposed = rng.choice(n, size=size, p=weights / weights.sum())
        F = factor[:found]
        local = columns(proposed)[proposed].astype(np.float64) - F[:, proposed].T.astype(np.float64) @ F[:, proposed]
        accepted = proposed[_accept(local, residual[proposed], floor, rng)]
        new = columns(accepted).T - F[:, accepted].T @ F
        pivot_block = new[:, accepted].astype(np.float64)
        pivot_block = (pivot_block + pivot_block.T) / 2
        pivot_block.flat[:: len(accepted) + 1] += 1e-9 * np.trace(pivot_block) / len(accepted)
        triangle = np.linalg.cholesky(pivot_block)
        stop = found + len(accepted)
        factor[found:stop] = scipy.linalg.solve_triangular(triangle, new, lower=True, check_finite=False)
        residual -= np.einsum("ij,ij->j", factor[found:stop], factor[found:stop], dtype=np.float64)
        residual[accepted] = 0.0
        np.maximum(residual, 0.0, out=residual)
        pivots[found:stop] = accepted
        found = stop
    return PivotedCholesky(factor[:found].T, pivots[:found], residual)


def _accept(local: np.ndarray, proposal: np.ndarray, floor: float, rng: np.random.Generator) -> np.ndarray:
    """Positions of the proposals that sequential sampling keeps: each with probability (residual now / when proposed)."""
    local = local.copy()
    kept: list[int] = []
    chance = rng.random(len(proposal))
    for i in range(len(proposal)):
        pivot = local[i, i]
        if pivot > floor and chance[i] * proposal[i] < pivot:
            kept.append(i)
            column = local[:, i] / np.sqrt(pivot)
            local -= np.outer(column, column)
    return np.array(kept or [int(np.argmax(proposal))], dtype=np.int64)
