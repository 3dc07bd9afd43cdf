"""Linear functions in a block Krylov subspace of the rows: for many rows with many features, dense or sparse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from dmo.blocks import Rows, double, iterate
from dmo.errors import UserError
from dmo.progress import stage

_BLOCK = 4096
_LABELS = 256


@dataclass(frozen=True)
class Krylov:
    """w in the span of X'B, X'X X'B, ..., (X'X)^(steps - 1) X'B for B the labels and `extra` random columns.

    As an `approximation` of a linear problem: `steps` passes over the rows find the subspace, one more solves in it;
    neither an n x n nor a d x d matrix is formed, memory is 8 d steps (L + extra) bytes. Of more than 256 label columns
    the 256 strongest combinations are taken. Raises ValueError for steps < 1 and extra < 0.
    Source: Halko, Martinsson, Tropp 2011, algorithm 4.3; Musco, Musco 2015.
    """

    steps: int = 2
    extra: int = 60

    def __post_init__(self) -> None:
        if self.steps < 1 or self.extra < 0:
            raise UserError(f"Krylov: steps = {self.steps}, extra = {self.extra}; needed are steps >= 1, extra >= 0")


@dataclass(frozen=True)
class Subspace:
    """An orthonormal `basis` (d x r) of linear functions, the rows' `mean` (d) and the `trace` of (centered) X X'."""

    basis: np.ndarray
    mean: np.ndarray
    trace: float


def find_subspace(
    method: Krylov, X: Rows, labels: np.ndarray | None, center: bool, random_state: int | None
) -> Subspace:
    """The subspace of rows X (n x d) and label columns (n x q, or None); `center`: of rows less their mean.

    Raises ValueError where no direction is left: rows and labels that are all zero (or constant).
    """
    n, d = X.shape
    labels = np.zeros((n, 0)) if labels is None else _strongest(labels - labels.mean(axis=0) if center else labels)
    rng = np.random.default_rng(random_state)
    q = labels.shape[1]
    image, sums, squares = np.zeros((d, q + method.extra)), np.zeros(d), 0.0
    with stage("subspace (passes over the rows)", method.steps) as advance:
        for where, block in iterate(X, _BLOCK):
            block = double(block)
            targets = np.hstack([labels[where], rng.standard_normal((block.shape[0], method.extra))])
            image += block.T @ targets
            sums += np.asarray(block.sum(axis=0)).ravel()
            squares += _squares(block)
        advance(1)
        mean = sums / n if center else np.zeros(d)
        parts = [image]
        for _ in range(method.steps - 1):
            image = _orthonormal(image)  # else the largest eigenvalue drowns the others
            following = np.zeros_like(image)
            for _, block in iterate(X, _BLOCK):
                block = double(block)
                following += block.T @ (block @ image)
            image = following - n * np.outer(mean, mean @ image)
            parts.append(image)
            advance(1)
    basis = _orthonormal(np.hstack(parts))
    if not basis.shape[1]:
        raise UserError("the rows, or their products with the labels, are all zero: there is no direction to find")
    return Subspace(basis, mean, squares - n * float(mean @ mean))


def _strongest(labels: np.ndarray) -> np.ndarray:
    """The label columns, or the combinations of largest variance where there are more than `_LABELS`."""
    if labels.shape[1] <= _LABELS:
        return labels
    _, vectors = np.linalg.eigh(labels.T @ labels)
    return labels @ vectors[:, -_LABELS:]


def _squares(block: Any) -> float:
    values = block.data if scipy.sparse.issparse(block) else block
    return float(np.vdot(values, values))


def _orthonormal(B: np.ndarray) -> np.ndarray:
    """An orthonormal basis of the columns' span (d x r)."""
    lengths = np.linalg.norm(B, axis=0)
    Q, R = np.linalg.qr(B / np.where(lengths > 0, lengths, 1.0))
    left, singular, _ = np.linalg.svd(R)
    return Q @ left[:, singular > 1e-10 * singular.max(initial=1e-300)]
