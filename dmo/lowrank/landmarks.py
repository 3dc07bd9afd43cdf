"""Choice of landmarks for low-rank kernels, and k-means clusters of similar sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse

from dmo.blocks import Block, alike, dense, dense_means, double, row_blocks, shifted
from dmo.errors import UserError
from dmo.kernels import Kernel, normalize_rows
from dmo.kernels.base import BandwidthKernel
from dmo.kernels.rows import Prepared, signed_sums
from dmo.linalg.pivoted_cholesky import rpcholesky
from dmo.lowrank.sampling import draw
from dmo.progress import stage
from dmo.threads import over_rows

Landmarks = Literal["rpcholesky", "kmeans", "uniform"]
KINDS = ("rpcholesky", "kmeans", "uniform")
Space = Literal["raw", "l1", "l2", "hellinger", "sqrt"]
_STRIP = 2048
_SKETCH_COLUMNS, _PREPARED = 256, 1 << 20
"""Number of features in a random sketch of the rows, and maximum number of array entries that are sketched at a time.

Sketches of 512 or 1024 features do not yield better landmarks."""
# Number of rows per center that k-means samples, and minimum size of this sample. A larger sample would yield almost
# the same centers.
_PER_CENTER, _LOOK = 20, 2048


def choose_landmarks(
    kernel: Kernel, X: Any, rank: int, kind: Landmarks, rng: np.random.Generator
) -> np.ndarray | scipy.sparse.csr_array:
    """Choose at most `rank` landmarks from the rows X (n x d, in memory)."""
    # The method "rpcholesky" holds n x rank numbers in memory, and stops early if the kernel matrix has a lower rank.
    # The method "kmeans" computes centers in a space in which Euclidean distances correspond to the kernel.
    n = X.shape[0]
    if kind == "kmeans":
        space = metric_space(kernel)
        return from_space(kmeans(to_space(X, space), rank, rng), space, X)
    if kind == "uniform":
        return X[np.sort(rng.choice(n, size=min(rank, n), replace=False))]
    if kind != "rpcholesky":
        raise UserError(f"landmarks = {kind!r}; known: {', '.join(map(repr, KINDS))}")
    if isinstance(kernel, BandwidthKernel) and kernel.pair in ("dot", "l2") and _is_wide(X.shape[1]):
        found = _pivots(kernel, _sketch(kernel, X, rng), rank, rng)
        if len(found) == min(rank, n):
            return X[found]
    return X[_pivots(kernel, kernel.prepare(X, np.float32), rank, rng)]


def _pivots(kernel: Kernel, prepared: Any, rank: int, rng: np.random.Generator) -> np.ndarray:
    def columns(index: np.ndarray) -> np.ndarray:
        # Pivoted Cholesky stores columns as contiguous rows, so compute kernel rows and transpose them.
        return kernel.tile(prepared[index], prepared).T

    def submatrix(index: np.ndarray) -> np.ndarray:
        return kernel.tile(prepared[index], prepared[index])

    return rpcholesky(kernel.diagonal(prepared), columns, rank, rng, submatrix=submatrix).pivots


def _sketch(kernel: BandwidthKernel, X: Any, rng: np.random.Generator) -> Prepared:
    """Replace the features of each row with 256 random sums of features, which approximately preserve distances."""
    # Landmarks chosen from the sketch are as good as landmarks chosen from the rows. Choosing landmarks from the sketch
    # is faster, because kernel values are computed from only 256 features.
    n, d = X.shape
    values, summed = np.empty((n, _SKETCH_COLUMNS), np.float32), _sums(d, rng)

    def add(start: int, stop: int) -> None:
        for strip in row_blocks(stop - start, max(1, _PREPARED // d)):  # Small blocks of rows fit in the CPU cache.
            where = slice(start + strip.start, start + strip.stop)
            values[where] = summed(kernel._prepare(X[where], np.float32, np.arange(where.start, where.stop)).values)

    over_rows(add, n, least=_STRIP // 8)
    origin = kernel._prepare(X[:1], np.float32, None).origin
    return Prepared(values, np.einsum("ij,ij->i", values, values, dtype=np.float64), origin)


def _sums(d: int, rng: np.random.Generator) -> Callable[[Any], np.ndarray]:
    """Return a function that maps float32 rows of d features to 256 sums and nearly preserves distances."""
    # Each feature is added with a random sign to one of the 256 sums [Charikar, Chen, Farach-Colton 2004]. Consecutive
    # features are added to consecutive sums, with a new random start after every 256 features.
    shift = rng.integers(_SKETCH_COLUMNS, size=-(-d // _SKETCH_COLUMNS))
    sign = rng.choice(np.array([-1.0, 1.0], np.float32), size=d)
    features = np.arange(d)
    column = (features + shift[features // _SKETCH_COLUMNS]) % _SKETCH_COLUMNS
    signs = scipy.sparse.csr_array((sign, (features, column)), shape=(d, _SKETCH_COLUMNS))

    return lambda rows: signed_sums(rows, signs, shift, sign)


def _is_wide(d: int) -> bool:
    return d >= 4 * _SKETCH_COLUMNS


def metric_space(kernel: Kernel) -> Space:
    """Return the space in which Euclidean distances rank pairs of rows nearly like the kernel."""
    normalize: Space = getattr(kernel, "normalize", None) or "raw"
    if type(kernel).__name__ == "ChiSquare":  # Chi-square is nearly proportional to the squared Hellinger distance.
        return {"raw": "sqrt", "l1": "hellinger"}.get(normalize, normalize)  # type: ignore[return-value]
    return "l2" if type(kernel).__name__ == "Cosine" else normalize


def to_space(X: Any, space: Space, dtype: Any = np.float32) -> np.ndarray | scipy.sparse.csr_array:
    """Map rows to the space that `metric_space` returns. Sparse rows remain sparse."""
    if space in ("raw", "sqrt"):
        return (np.sqrt(abs(X)) if space == "sqrt" else X).astype(dtype)
    return normalize_rows(X, space, dtype)


def from_space(centers: np.ndarray, space: Space, X: Block) -> Block:
    """Map cluster centers back to the input space, up to normalization, in the format of X."""
    return alike(centers * centers if space in ("hellinger", "sqrt") else centers, X)


def kmeans(E: Any, k: int, rng: np.random.Generator, iterations: int = 5) -> np.ndarray:
    """Compute at most k cluster centers (float32) of rows E (n x d) by k-means, on a sample if n is large.

    If there are 1024 features or more, distances are approximated from 256 random sums of features.
    """
    look = max(_PER_CENTER * k, _LOOK)
    if E.shape[0] > look:
        E = E[np.sort(rng.choice(E.shape[0], size=look, replace=False))]
    n, middle, lowest = E.shape[0], np.zeros(E.shape[1], np.float32), -np.inf
    if (mean := dense_means(E)) is not None:
        middle, lowest = mean.astype(np.float32), E.min(axis=0)
        E = E - middle
    seen = _sums(E.shape[1], rng)(E) if _is_wide(E.shape[1]) else E
    centers = dense(seen[np.sort(rng.choice(n, size=min(k, n), replace=False))])
    for _ in range(iterations):
        nearest = _nearest(seen, centers)
        moved = _means(seen, nearest, len(centers))
        done = moved.shape == centers.shape and abs(moved - centers).max() <= 1e-4 * abs(centers).max()
        centers = moved
        if done:
            break
    centers = centers if seen is E else _means(E, nearest, nearest.max(initial=0) + 1)
    # Floating-point errors could make histogram entries negative, so limit the centers to the range of the data.
    return np.maximum(centers + middle, lowest)


def _means(E: Any, nearest: np.ndarray, k: int) -> np.ndarray:
    """Compute the mean row of each cluster. Empty clusters are omitted."""
    counts = np.bincount(nearest, minlength=k)
    member = scipy.sparse.csr_array(
        (np.ones(len(nearest), np.float32), (nearest, np.arange(len(nearest)))), (k, len(nearest))
    )
    return np.asarray(dense(member @ E)[counts > 0] / counts[counts > 0, None].astype(np.float32))


def assign(E: Any, centers: np.ndarray) -> np.ndarray:
    """Return the index of the nearest center of each row.

    With float64, the index does not depend on the batch of the row.
    """
    centers = centers.astype(np.float64)
    middle = centers.mean(axis=0)
    E, rest = shifted(double(E), middle)
    return _nearest(E, centers - middle if rest is None else centers)


def _nearest(E: Any, centers: np.ndarray) -> np.ndarray:
    """Find the center c nearest to each row e, which minimizes |c|^2 / 2 - e'c, in the precision of E."""
    half = (np.einsum("ij,ij->i", centers, centers, dtype=np.float64) / 2).astype(E.dtype)
    columns = np.ascontiguousarray(centers.T)
    strips = [np.argmin(half - E[where] @ columns, axis=1) for where in row_blocks(E.shape[0], _STRIP)]
    return np.concatenate([np.zeros(0, dtype=np.int64), *strips])


_LARGEST = 2.0  # Maximum number of rows in a cluster, as a multiple of the average.
# Number of rows per cluster that are sampled to find the clusters, and minimum size of this sample.
_PER_CLUSTER, _LEAST = 200, 2048


def balanced_centers(E: Any, clusters: int, rng: np.random.Generator) -> np.ndarray:
    """Compute at most `clusters` centers of the rows E (n x d, in memory) by k-means, and split large clusters."""
    # While the largest cluster has more than twice the average size, the largest cluster is split by 2-means, and the
    # smallest cluster is dropped. A cluster of equal rows cannot be split, so there may be fewer clusters than
    # requested. Source: Si, Hsieh, Dhillon 2014, section 4.
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
    """Distribute a total rank to clusters in proportion to their sizes. Each rank is from 1 to the cluster size."""
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
    """Clusters of rows in memory.

    Rows of `X` are sorted by cluster. Cluster s has the rows from `edges[s]` to `edges[s + 1]`.
    """

    kernel: Kernel
    dtype: np.dtype
    space: Space
    centers: np.ndarray
    edges: np.ndarray
    X: Any
    prepared: Any

    @classmethod
    def of(cls, kernel: Kernel, X: Any, clusters: int, dtype: np.dtype, rng: np.random.Generator) -> Partition:
        """Split the rows X into at most `clusters` clusters of similar sizes."""
        space = metric_space(kernel)
        with stage("MEKA clusters"):
            look = X[draw(X.shape[0], max(_PER_CLUSTER * clusters, _LEAST), rng)]
            centers = balanced_centers(to_space(look, space), clusters, rng).astype(np.float64)
            nearest = nearest_center(X, space, centers)
            # Omit empty clusters, which only floating-point errors can cause.
            used = np.unique(nearest)
            centers, nearest = centers[used], np.searchsorted(used, nearest)
        edges = np.concatenate([[0], np.cumsum(np.bincount(nearest, minlength=len(centers)))])
        ordered = X[np.argsort(nearest, kind="stable")]
        return cls(kernel, dtype, space, centers, edges, ordered, kernel.prepare(ordered, dtype))

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.edges)

    def where(self, s: int) -> slice:
        """Return the row range of cluster s."""
        return slice(int(self.edges[s]), int(self.edges[s + 1]))

    def project(self, left: np.ndarray, where: slice, other: Any) -> np.ndarray:
        """Multiply left' by the kernel matrix of the rows `where` and the prepared rows `other`, block by block."""
        total = np.zeros((left.shape[1], len(other)))
        for strip in row_blocks(where.stop - where.start, _STRIP):
            rows = self.prepared[where.start + strip.start : where.start + strip.stop]
            total += left[strip].T @ self.kernel.tile(rows, other)
        return total


def nearest_center(X: Any, space: Space, centers: np.ndarray) -> np.ndarray:
    """Return the cluster of each row of X. With float64, the cluster does not depend on the batch of the row."""
    found = [assign(to_space(X[where], space, np.float64), centers) for where in row_blocks(X.shape[0], 512)]
    return np.concatenate([np.zeros(0, dtype=np.int64), *found])
