"""Projections of rows that are held in memory: a problem as one small dense problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse

from dmo.errors import UserError
from dmo.linalg.eigen import CUTOFF, TracePairs, check_rank, fix_signs, solve_trace
from dmo.methods.embeddings.quadratic_forms import QuadraticForm, TraceProblem


@dataclass(frozen=True)
class LinearFit:
    """f(x) = x W + offset of new rows."""

    values: np.ndarray  # (k,): eigenvalues, descending
    coefficients: np.ndarray  # (d, k): W
    offset: np.ndarray  # (k,): of all rows


def solve_projected(problem: TraceProblem, X: Any, k: int, variance: float | None = None) -> LinearFit:
    """Find the k algebraically largest solutions on rows in memory, in the span of the rows where d > n.

    X (n, d)
    """
    n, d = X.shape
    mean = np.asarray(X.mean(axis=0), np.float64).ravel() if problem.center or variance is not None else None
    back = None
    if mean is not None and not scipy.sparse.issparse(X):
        X = X - mean
    if variance is not None:
        X, back = _principal(X, mean if scipy.sparse.issparse(X) else None, variance)
    elif d > n:
        X, back = _row_space(X, mean if scipy.sparse.issparse(X) else None)
    shift = mean if scipy.sparse.issparse(X) and back is None else None
    A = problem.A.projected(X, shift)
    B = None
    if problem.B is not None:
        B = problem.B.projected(X, shift)
        B.flat[:: len(B) + 1] += problem.ridge
    check_rank(len(A) if not problem.A.is_factor else _factor_rank(problem.A, A, X), k)
    found = solve_trace(A, B, k)
    if problem.positive:
        found = _positive(found)
    scale = np.sqrt(problem.ridge) if B is None else 1.0
    W = found.vectors / scale if back is None else fix_signs(back @ (found.vectors / scale))
    values = found.values / scale**2
    return LinearFit(values, W, np.zeros(W.shape[1]) if mean is None else -mean @ W)


def _factor_rank(form: QuadraticForm, A: np.ndarray, X: Any) -> int:
    """Rank of A = X'T core T'X, whose terms may cancel: judged by their size, beside which what is left may be rounding."""
    inner = np.asarray(X.T @ form.factor)
    core = 1.0 if form.core is None else float(np.linalg.norm(form.core, 2))
    values = np.abs(scipy.linalg.eigvalsh(A, check_finite=False))
    return int((values > CUTOFF * core * float(np.linalg.norm(inner)) ** 2).sum())


def _positive(found: TracePairs) -> TracePairs:
    keep = found.values > 1e-10 * np.abs(found.values).max(initial=0.0)
    if not keep.any():
        raise UserError("no direction has a positive eigenvalue; change the neighborhoods, or take another method")
    return TracePairs(found.values[keep], found.vectors[:, keep])


def directions(spectrum: np.ndarray, variance: float) -> int:
    """The fewest of the variances `spectrum` (descending) that hold a share of their sum."""
    return min(len(spectrum), 1 + int(np.searchsorted(np.cumsum(spectrum), variance * spectrum.sum() * (1 - 1e-12))))


def _principal(X: Any, mean: np.ndarray | None, variance: float) -> tuple[np.ndarray, np.ndarray]:
    """(F, V): rows X (less `mean`) on their first principal axes V (d x r), F = X V."""
    n, d = X.shape
    if d > n:
        F, V = _row_space(X, mean)
        r = directions(np.square(F).sum(axis=0)[::-1], variance)
        return F[:, ::-1][:, :r], V[:, ::-1][:, :r]
    spectrum, V = scipy.linalg.eigh(QuadraticForm(n, identity=1.0).projected(X, mean), check_finite=False)
    V = V[:, ::-1][:, : directions(np.maximum(spectrum[::-1], 0.0), variance)]
    return np.asarray(X @ V) - (0.0 if mean is None else mean @ V), V


def _row_space(X: Any, mean: np.ndarray | None) -> tuple[np.ndarray, Any]:
    """(F, V): rows X (less `mean`) = F V', V (d x r) with orthonormal columns, from the n x n Gram matrix of the rows."""
    G = X @ X.T
    G = G.toarray() if scipy.sparse.issparse(G) else np.asarray(G)
    if mean is not None:
        G = G - G.mean(axis=0) - G.mean(axis=1)[:, None] + G.mean()
    values, U = scipy.linalg.eigh((G + G.T) / 2, check_finite=False)
    keep = values > 1e-12 * values[-1]
    U, root = U[:, keep], np.sqrt(values[keep])
    V = np.asarray(X.T @ (U / root))
    if mean is not None:
        V = V - np.outer(mean, (U / root).sum(axis=0))
    return U * root, V


def row_factor(X: Any, center: bool) -> np.ndarray:
    """F (n x r, r <= min(n, d)) with F F' = X X', of rows (n x d, dense or CSR) less their mean where they are centered."""
    mean = np.asarray(X.mean(axis=0), np.float64).ravel() if center else None
    if X.shape[1] > X.shape[0]:
        return _row_space(X, mean)[0]
    rows = X.toarray() if scipy.sparse.issparse(X) else np.asarray(X, np.float64)
    return rows if mean is None else rows - mean
