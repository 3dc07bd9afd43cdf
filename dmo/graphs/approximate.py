"""Approximate nearest neighbors by nearest-neighbor descent (the extra `dmo[approximate]`)."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from dmo.graphs.rows import Ready, distances_to, prepare
from dmo.kernels.threads import thread_count


def descend(X: Any, k: int, metric: Any, random_state: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Indices and distances (n x k) of approximately the k nearest other rows; distances in float64.

    Raises ImportError where pynndescent is not installed.
    Source: Dong, Charikar, Li 2011.
    """
    try:
        from pynndescent import NNDescent
    except ImportError as error:
        raise ImportError(
            "neighbors: method='approximate' needs pynndescent; install dmo[approximate], or take method='exact'"
        ) from error
    n = X.shape[0]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Failed to correctly find n_neighbors.*")
        index = NNDescent(X, metric=metric, n_neighbors=min(k + 1, n), random_state=random_state, n_jobs=thread_count())
    found = index.neighbor_graph[0].astype(np.int64)
    found[found == np.arange(n)[:, None]] = -1
    ready: Ready = prepare(X, metric)
    squared = distances_to(ready, ready, found)
    order = np.argsort(squared, axis=1, kind="stable")[:, :k]
    indices = np.take_along_axis(found, order, 1)
    return indices, ready.as_distances(np.take_along_axis(squared, order, 1))
