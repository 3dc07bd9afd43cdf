"""Landmarks: the rows (or centres) that a low-rank kernel is spanned by."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import scipy.sparse

from dmo.blocks import row_blocks
from dmo.kernels import Kernel
from dmo.lowrank.pivoting import rpcholesky

Landmarks = Literal["rpcholesky", "kmeans", "uniform"]
KINDS = ("rpcholesky", "kmeans", "uniform")
Space = Literal["raw", "l1", "l2", "hellinger", "sqrt"]
_STRIP = 2048
_PER_CENTRE, _LOOK = 40, 8192  # rows that k-means looks at: more move the centres by less than their spacing


def choose_landmarks(
    kernel: Kernel, X: Any, rank: int, kind: Landmarks, rng: np.random.Generator
) -> np.ndarray | scipy.sparse.csr_array:
    """At most `rank` landmarks for the rows X (n x d, in memory).

    "uniform": rows drawn at random; "rpcholesky": rows by randomly pivoted Cholesky of the kernel matrix (n x rank
    numbers of memory), fewer where its residual vanishes; "kmeans": centres, in the space where the kernel measures.
    """
    n = X.shape[0]
    if kind == "kmeans":
        space = metric_space(kernel)
        return from_space(kmeans(to_space(X, space), rank, rng), space, scipy.sparse.issparse(X))
    if kind == "uniform":
        return X[np.sort(rng.choice(n, size=min(rank, n), replace=False))]
    if kind != "rpcholesky":
        raise ValueError(f"landmarks = {kind!r}; known: {', '.join(map(repr, KINDS))}")
    prepared = kernel.prepare(X, np.float32)

    def columns(index: np.ndarray) -> np.ndarray:
        chosen = kernel.prepare(X[index], np.float32)
        return np.concatenate([kernel.tile(prepared[where], chosen) for where in row_blocks(n, _STRIP)])

    def submatrix(index: np.ndarray) -> np.ndarray:
        chosen = kernel.prepare(X[index], np.float32)
        return kernel.tile(chosen, chosen)

    return X[rpcholesky(kernel.diagonal(prepared), columns, rank, rng, submatrix=submatrix).pivots]


def metric_space(kernel: Kernel) -> Space:
    """The map of rows after which Euclidean distance orders pairs (nearly) as the kernel does."""
    normalise: Space = getattr(kernel, "normalise", None) or "raw"
    if type(kernel).__name__ == "ChiSquare":  # chi-square distance is close to four times Hellinger's
        return {"raw": "sqrt", "l1": "hellinger"}.get(normalise, normalise)  # type: ignore[return-value]
    return "l2" if type(kernel).__name__ == "Cosine" else normalise


def to_space(X: Any, space: Space, dtype: Any = np.float32) -> np.ndarray | scipy.sparse.csr_array:
    """Rows in that space, sparse where X is."""
    X = X.astype(dtype)
    if space in ("l1", "hellinger", "l2"):
        size = X.multiply(X) if scipy.sparse.issparse(X) and space == "l2" else X * X if space == "l2" else abs(X)
        total = np.asarray(size.sum(axis=1)).ravel()
        total = np.sqrt(total) if space == "l2" else total
        scale = (1 / np.where(total > 0, total, 1)).astype(dtype)
        X = (
            scipy.sparse.csr_array(scipy.sparse.diags_array(scale) @ X)
            if scipy.sparse.issparse(X)
            else X * scale[:, None]
        )
    if space in ("hellinger", "sqrt"):
        X = np.sqrt(abs(X))
    return X


def from_space(centres: np.ndarray, space: Space, sparse: bool) -> np.ndarray | scipy.sparse.csr_array:
    """Raw rows whose image is (a multiple of) the centres: squares where the space took roots."""
    rows = centres * centres if space in ("hellinger", "sqrt") else centres
    return scipy.sparse.csr_array(rows) if sparse else rows


def kmeans(
    E: np.ndarray | scipy.sparse.csr_array, k: int, rng: np.random.Generator, iterations: int = 10, start: Any = None
) -> np.ndarray:
    """Centres (at most k x d, float32, all different) by Lloyd's iterations from random rows, on a sample if E is long."""
    look = max(_PER_CENTRE * k, _LOOK)
    if E.shape[0] > look:
        E = E[np.sort(rng.choice(E.shape[0], size=look, replace=False))]
    n = E.shape[0]
    centres = _dense(E[np.sort(rng.choice(n, size=min(k, n), replace=False))]) if start is None else start
    for _ in range(iterations):
        nearest = assign(E, centres)
        counts = np.bincount(nearest, minlength=len(centres))
        member = scipy.sparse.csr_array((np.ones(n, np.float32), (nearest, np.arange(n))), shape=(len(centres), n))
        sums = _dense(member @ E)
        moved = (sums / np.maximum(counts, 1)[:, None].astype(np.float32))[counts > 0]
        if moved.shape == centres.shape and np.allclose(moved, centres, rtol=1e-4, atol=1e-6 * abs(centres).max()):
            return moved
        centres = moved
    return centres


def assign(E: np.ndarray | scipy.sparse.csr_array, centres: np.ndarray, dtype: Any = np.float32) -> np.ndarray:
    """Number of the nearest centre of every row (the first of equals), from products in `dtype`."""
    middle = centres.mean(axis=0, dtype=np.float64)
    shifted = centres - middle
    half = np.einsum("ij,ij->i", shifted, shifted) / 2
    if scipy.sparse.issparse(E):  # |e - c|^2 / 2 = |s|^2 / 2 - (e - m)'s + const for c = m + s; e stays as it is
        half = half + shifted @ middle
    steps = np.ascontiguousarray(shifted.T, dtype=dtype)
    out = np.empty(E.shape[0], dtype=np.int64)
    for where in row_blocks(E.shape[0], _STRIP):
        part = E[where] if scipy.sparse.issparse(E) else E[where] - middle
        out[where] = np.argmin(half - part.astype(dtype) @ steps, axis=1)
    return out


def _dense(X: Any) -> np.ndarray:
    return X.toarray() if scipy.sparse.issparse(X) else np.asarray(X)
