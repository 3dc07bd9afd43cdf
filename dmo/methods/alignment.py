"""Weights of views by centered alignment: the sum of kernels that is nearest in direction to that of the labels.

With kernels A_v and the label kernel T = Y Y', both centered by H, w >= 0 maximizes the cosine <sum_v w_v HA_vH, HTH>;
up to its scale it is the minimum of w'M w - 2 w'a with M_uv = <HA_uH, HA_vH> and a_v = <HA_vH, HTH>, a problem of
nonnegative least squares. Here A_v = -d_v, the negative distances: sum_v w_v d_v is what a product kernel is made of.

Source: Cortes, Mohri, Rostamizadeh 2012, proposition 9 (alignf).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import scipy.linalg
import scipy.optimize


def aligned_weights(blocks: Iterable[tuple[slice, np.ndarray]], Y: np.ndarray) -> np.ndarray:
    """Weights of views from their distances, in one pass.

    blocks (V, rows, n); Y (n, L) -> (V,)
    """
    n = len(Y)
    centered = (Y - Y.mean(axis=0)).astype(np.float32)
    products: np.ndarray = np.zeros(())
    with_labels: np.ndarray = np.zeros(())
    parts = []
    for where, d in blocks:
        a = 1.0 - np.asarray(d, np.float32)  # the mean is taken off before the squares: float32 keeps its digits
        flat = a.reshape(len(a), -1)
        products = products + (flat @ flat.T).astype(np.float64)
        with_labels = with_labels + np.array([np.vdot(centered[where], part @ centered) for part in a], np.float64)
        parts.append(a.sum(axis=2, dtype=np.float64))
    sums = np.concatenate(parts, axis=1)
    total = sums.sum(axis=1)
    M = products - 2 / n * sums @ sums.T + np.outer(total, total) / n**2
    scale = np.sqrt(np.maximum(np.diagonal(M), np.finfo(float).tiny))
    M, a = M / np.outer(scale, scale), with_labels / scale
    # a ridge for views that repeat each other
    root = scipy.linalg.cholesky(M + 1e-8 * np.eye(len(M)))
    found, _ = scipy.optimize.nnls(root, scipy.linalg.solve_triangular(root, a, trans="T"))
    weights = found / scale
    length = float(np.linalg.norm(weights))
    return weights / length if length > 0 else weights
