"""Leading eigenpairs of a symmetric map known by its products: block Krylov with Rayleigh-Ritz."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dmo.blocks import orthonormalise
from dmo.progress import stage


@dataclass(frozen=True)
class Eigenpairs:
    """`values` (k, descending), `vectors` (n x k, orthonormal), relative `residuals` (k), objective after each step."""

    values: np.ndarray
    vectors: np.ndarray
    residuals: np.ndarray
    history: list[float]
    converged: bool

    @property
    def steps(self) -> int:
        """Applications of the map to a block."""
        return len(self.history)


def fix_signs(vectors: np.ndarray) -> np.ndarray:
    """The columns with their sign chosen so that the entry of largest magnitude is positive."""
    largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(vectors.shape[1])]
    return vectors * np.where(largest < 0, -1.0, 1.0)


def block_krylov(
    apply: Callable[[np.ndarray], np.ndarray],
    start: np.ndarray,
    k: int,
    tolerance: float = 1e-7,
    max_steps: int = 30,
    max_basis: int | None = None,
) -> Eigenpairs:
    """The k algebraically largest eigenpairs of a symmetric map.

    Arguments: `apply`: an n x m block to its image; `start`: n x s block of rank k at least that spans a good guess;
    `tolerance`: residual |M u - theta u| relative to the largest |theta| found, at which a pair counts as converged;
    `max_steps`: blocks to apply the map to; `max_basis`: columns (default 5 s + k) above which the basis restarts from
    its 2 k best vectors. Two bases of that size are the memory, n x max_basis float64 each.
    Raises ValueError for a start of rank below k, or a map whose values are not finite.
    """
    basis = orthonormalise(start)
    if k < 1:
        raise ValueError(f"k = {k} eigenpairs; ask for at least 1")
    if basis.shape[1] < k:
        raise ValueError(f"the start spans {basis.shape[1]} dimensions, {k} eigenpairs need at least {k}")
    limit = max_basis or 5 * start.shape[1] + k
    image = np.zeros((len(basis), 0))
    block, history, scale = basis, [], np.finfo(float).tiny
    with stage("eigenpairs (block steps)") as advance:
        while True:
            new = apply(block)
            image = np.hstack([image, new])
            advance(1)
            values, vectors = _leading(basis.T @ image)
            ritz, mapped = basis @ vectors[:, :k], image @ vectors[:, :k]
            scale = max(scale, np.abs(values).max())
            residuals = np.linalg.norm(mapped - ritz * values[:k], axis=0) / scale
            history.append(float(values[:k].sum()))
            converged = bool((residuals <= tolerance).all())
            if converged or len(history) >= max_steps:
                break
            if basis.shape[1] + new.shape[1] > limit:
                keep = min(basis.shape[1], 2 * k)
                basis, image = basis @ vectors[:, :keep], image @ vectors[:, :keep]
                new = mapped - ritz * values[:k]
            block = orthonormalise(new, against=basis)
            if not block.shape[1]:
                break
            basis = np.hstack([basis, block])
    return Eigenpairs(values[:k], fix_signs(ritz), residuals, history, converged)


def _leading(projected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenpairs of the symmetric part of a small matrix, largest first."""
    if not np.isfinite(projected).all():
        raise ValueError("eigenpairs: the map returned values that are not finite; check its input for NaN and inf")
    values, vectors = np.linalg.eigh((projected + projected.T) / 2)
    return values[::-1], vectors[:, ::-1]
