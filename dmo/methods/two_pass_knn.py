"""Two-pass nearest neighbors: the neighborhood of a sample holds some of the nearest with every label.

First pass: of the training samples with label l, the k nearest to x; T is the union over l, in which rare labels are
present as frequent ones are. Second pass: the labels of T, weighted by distance,

    score_l(x) = sum_{i in T} w_i y_il / sum_{i in T} w_i,   w_i = exp(-omega d(x, i)).

Source: Verma, Jawahar 2012, section 3.
"""

from __future__ import annotations

import numpy as np


def two_pass_scores(distances: np.ndarray, Y: np.ndarray, k: int, sharpness: float) -> np.ndarray:
    """Label scores of samples.

    distances (m, n); Y (n, L) -> (m, L)
    """
    near = np.zeros(distances.shape, bool)
    for column in Y.T:
        members = np.flatnonzero(column)
        if len(members) > k:
            best = np.argpartition(distances[:, members], k - 1, axis=1)[:, :k]
            np.put_along_axis(near, members[best], True, axis=1)
        else:
            near[:, members] = True
    exponent = np.where(near & np.isfinite(distances), -sharpness * distances, -np.inf)
    most = exponent.max(axis=1, keepdims=True)
    weight = np.exp(exponent - np.where(np.isfinite(most), most, 0.0))  # the nearest has weight 1: no sum underflows
    total = weight.sum(axis=1, keepdims=True)
    return (weight @ Y.astype(weight.dtype)) / np.where(total > 0, total, 1.0)
