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

    Arguments: `apply`: an n x m block to its image; `start`: n x s block, s >= k, that spans a good guess;
    `tolerance`: residual |M u - theta u| / |theta_1| at which a pair counts as converged; `max_steps`: blocks to apply
    the map to; `max_basis`: columns kept (default 5 s + k), above which the basis restarts from its best vectors.
    """
    basis = orthonormalise(start)
    if basis.shape[1] < k:
        raise ValueError(f"the start spans {basis.shape[1]} dimensions, {k} eigenpairs need at least {k}")
    limit = max_basis or 5 * start.shape[1] + k
    image = np.zeros((len(basis), 0))
    block, history = basis, []
    with stage("eigenpairs (block steps)") as advance:
        while True:
            image = np.hstack([image, apply(block)])
            advance(1)
            projected = basis.T @ image
            values, vectors = np.linalg.eigh((projected + projected.T) / 2)
            values, vectors = values[::-1], vectors[:, ::-1]
            ritz, mapped = basis @ vectors[:, :k], image @ vectors[:, :k]
            residuals = np.linalg.norm(mapped - ritz * values[:k], axis=0) / max(abs(values[0]), np.finfo(float).tiny)
            history.append(float(values[:k].sum()))
            converged = bool((residuals <= tolerance).all())
            if converged or len(history) >= max_steps:
                break
            new = image[:, -block.shape[1] :]
            if basis.shape[1] + new.shape[1] > limit:
                keep = min(basis.shape[1], 2 * k)
                basis, image = basis @ vectors[:, :keep], image @ vectors[:, :keep]
                new = mapped - ritz * values[:k]
            block = orthonormalise(new, against=basis)
            if not block.shape[1]:
                break
            basis = np.hstack([basis, block])
    return Eigenpairs(values[:k], fix_signs(ritz), residuals, history, converged)
