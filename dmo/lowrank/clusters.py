"""Clusters of about equal size, given by centers: a row belongs to the nearest one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dmo.blocks import row_blocks
from dmo.kernels import Kernel
from dmo.lowrank.landmarks import Space, assign, kmeans, metric_space, to_space
from dmo.lowrank.sampling import draw
from dmo.progress import stage

_LARGEST = 2.0  # times the average size
_STRIP = 2048
_PER_CLUSTER, _LEAST = 200, 2048  # rows that the clustering looks at


def balanced_centers(E: Any, clusters: int, rng: np.random.Generator) -> np.ndarray:
    """At most `clusters` centers (S x d) for rows E (n x d, in memory) by k-means, the large clusters split."""
    # A cluster with more than twice the average number of rows is split by 2-means and the smallest one is given up,
    # at most 2 S times. Rows that are all alike come in fewer clusters. Source: Si, Hsieh, Dhillon 2014, section 4.
    centers = kmeans(E, clusters, rng, iterations=20)
    for _ in range(2 * clusters):
        nearest = assign(E, centers)
        counts = np.bincount(nearest, minlength=len(centers))
        centers, counts, biggest = centers[counts > 0], counts[counts > 0], int(counts.argmax())
        if len(centers) == clusters and counts.max() <= _LARGEST * E.shape[0] / clusters:
            break
        halves = kmeans(E[nearest == biggest], 2, rng)
        if len(halves) < 2:
            break
        kept = np.arange(len(centers)) != counts.argmax()
        if len(centers) == clusters and clusters > 1:
            kept[counts.argmin()] = False
        centers = np.concatenate([centers[kept], halves])[:clusters]
    return centers[np.bincount(assign(E, centers), minlength=len(centers)) > 0]


def allocate(sizes: np.ndarray, total: int) -> np.ndarray:
    """Ranks k_s in proportion to the clusters' sizes, at least 1 and at most the size, `total` in all where that fits."""
    total = int(np.clip(total, len(sizes), sizes.sum()))
    wanted = total * sizes / sizes.sum()
    ranks = np.clip(np.floor(wanted).astype(int), 1, sizes)
    while ranks.sum() != total:
        step = 1 if ranks.sum() < total else -1
        able = np.flatnonzero(ranks < sizes if step > 0 else ranks > 1)
        ranks[able[np.argmax(step * (wanted - ranks)[able])]] += step
    return ranks


@dataclass(frozen=True)
class Partition:
    """Rows in memory, sorted by cluster: `X` (n x d), `prepared` for the kernel; cluster s is rows `where(s)`."""

    kernel: Kernel
    dtype: np.dtype
    space: Space
    centers: np.ndarray
    edges: np.ndarray
    X: Any
    prepared: Any

    @classmethod
    def of(cls, kernel: Kernel, X: Any, clusters: int, dtype: np.dtype, rng: np.random.Generator) -> Partition:
        """At most `clusters` balanced clusters of the rows X, in the space where the kernel measures."""
        space = metric_space(kernel)
        with stage("MEKA clusters"):
            look = X[draw(X.shape[0], max(_PER_CLUSTER * clusters, _LEAST), rng)]
            centers = balanced_centers(to_space(look, space), clusters, rng).astype(np.float64)
            nearest = nearest_center(X, space, centers)
            used = np.unique(nearest)  # a cluster of the rows looked at is not empty, save by a change of precision
            centers, nearest = centers[used], np.searchsorted(used, nearest)
        edges = np.concatenate([[0], np.cumsum(np.bincount(nearest, minlength=len(centers)))])
        ordered = X[np.argsort(nearest, kind="stable")]
        return cls(kernel, dtype, space, centers, edges, ordered, kernel.prepare(ordered, dtype))

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.edges)

    def where(self, s: int) -> slice:
        """Rows of cluster s."""
        return slice(int(self.edges[s]), int(self.edges[s + 1]))

    def project(self, left: np.ndarray, where: slice, other: Any) -> np.ndarray:
        """left' K(rows where, other) in float64 (left: rows x k; other: prepared rows), kernel values strip by strip."""
        total = np.zeros((left.shape[1], len(other)))
        for strip in row_blocks(where.stop - where.start, _STRIP):
            rows = self.prepared[where.start + strip.start : where.start + strip.stop]
            total += left[strip].T @ self.kernel.tile(rows, other)
        return total


def nearest_center(X: Any, space: Space, centers: np.ndarray) -> np.ndarray:
    """Cluster of every row of X (in memory); in float64, so that it does not depend on how rows are batched."""
    found = [assign(to_space(X[where], space, np.float64), centers) for where in row_blocks(X.shape[0], 512)]
    return np.concatenate([np.zeros(0, dtype=np.int64), *found])
