"""Joint equal contribution: annotation from the nearest training images, the baseline that the image papers report."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.spatial.distance import cdist

from dmo.blocks import Rows, row_blocks, rows
from dmo.progress import stage

NEIGHBORS = 5
_BLOCK = 256


def jec_scores(
    train: Mapping[str, Rows], Y: np.ndarray, new: Mapping[str, Rows], neighbors: int = NEIGHBORS
) -> np.ndarray:
    """Label scores of new samples from their nearest training samples: m x L float64.

    Arguments: `train`, `new`: views of n and m rows; `Y`, n x L of 0 and 1. The distance is the mean over views of L1
    (color histograms), chi-square (other histograms, named ..._sift... or ..._hue...) or Euclidean distances, each
    divided by its mean. The labels of the nearest sample come first, the frequent ones before the rare ones; then those
    of the next neighbors, by how many have them times how often they occur together with the nearest one's.
    Source: Makadia, Pavlovic, Kumar 2008.
    """
    n, m = len(Y), next(iter(new.values())).shape[0]
    total = np.zeros((m, n))
    with stage("distances", len(train)) as advance:
        for view, source in train.items():
            known = np.asarray(rows(source), dtype=np.float64)
            distances = np.concatenate(
                [
                    _distances(view, np.asarray(rows(new[view], where), dtype=np.float64), known)
                    for where in row_blocks(m, _BLOCK)
                ]
            )
            total += distances / max(distances.mean(), np.finfo(float).tiny)
            advance(1)
    frequency = Y.mean(axis=0)
    together = (Y.T.astype(np.float64) @ Y) / np.maximum(Y.sum(axis=0), 1)
    scores = np.empty((m, Y.shape[1]))
    for i, row in enumerate(np.argsort(total, axis=1, kind="stable")[:, :neighbors]):
        nearest, others = Y[row[0]].astype(np.float64), Y[row[1:]].mean(axis=0) if neighbors > 1 else 0 * frequency
        transfer = others * (together @ nearest) / max(1.0, nearest.sum())
        scores[i] = nearest * (2 + frequency) + (1 - nearest) * (transfer + 1e-3 * frequency)
    return scores


def _distances(view: str, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    if view.startswith(("rgb", "lab", "hsv", "histogram")):
        return cdist(X, Z, "cityblock")
    if "sift" in view or "hue" in view:
        return _chi_square(X, Z)
    return cdist(X, Z)


def _chi_square(X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """Half the sum of (x - z)^2 / (x + z); columns where both are zero count nothing."""
    found = np.zeros((len(X), len(Z)))
    for x, out in zip(X, found):
        used = np.flatnonzero(x)
        z = Z[:, used]
        # where x is zero, (x - z)^2 / (x + z) is z
        out += Z.sum(axis=1) - z.sum(axis=1) + ((x[used] - z) ** 2 / (x[used] + z)).sum(axis=1)
    return found / 2
