"""Symmetric operator whose lower tiles are stored on workers, recomputed, or streamed from a kernel store.

A product runs one task per group of tiles. The tall block is split by rows and scattered once. Every group receives and
returns the row parts that its tiles need, and the results are added part by part. Groups are compact, so that they need
few parts. If a worker is lost, only its tiles are computed again.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from dmo.blocks import row_blocks
from dmo.cluster.workers import Broadcast, gathered, grouped, retried, submit_each, worker_threads
from dmo.errors import UserError, amount
from dmo.kernels.multikernel import FeatureTiles
from dmo.linalg.operators import Operator
from dmo.linalg.rows import FAN_IN, Home, Waiting, WorkerRows, added
from dmo.stores import KernelStore
from dmo.threads import in_threads, trim_memory

Pair = tuple[int, int]
T = TypeVar("T")
_LEAST = 256  # Number of rows below which the overhead of a tile exceeds the cost of its product.
MOST_TASKS = 100_000
"""Maximum number of tasks per product that a scheduler can handle. The number of tiles has the same limit."""
# Number of entries of an n x k block from which an iterative search is faster on the workers than in the client
# process.
_WORTH = 1 << 20
_RUNS = 8  # Number of groups of tiles in the client process, and the maximum number of threads of a product.


class TileSource(Protocol):
    """Source of the lower tiles (i >= j) of a symmetric n x n matrix.

    It must be picklable, because workers receive it.
    """

    @property
    def n(self) -> int: ...

    @property
    def block(self) -> int: ...

    def tile(self, i: int, j: int) -> np.ndarray: ...


def lower_pairs(n: int, block: int) -> list[Pair]:
    """List the pairs of blocks in the lower triangle of a symmetric matrix, strip by strip."""
    return [(i, j) for i in range(len(row_blocks(n, block))) for j in range(i + 1)]


def tile_rows(n: int, threads: int, most: int) -> int:
    """Choose at most `most` rows per tile, such that each thread has about eight tiles."""
    count = max(-(-n // most), min(round(4 * threads**0.5), n // _LEAST))
    return -(-n // max(1, count))


def compact_groups(n: int, block: int, count: int) -> list[list[Pair]]:
    """Divide the tiles into `count` compact groups of nearly equal work (Morton order), each sorted by strips."""
    i, j = np.tril_indices(len(row_blocks(n, block)))
    code = sum(((i >> bit & 1) << 2 * bit + 1) | ((j >> bit & 1) << 2 * bit) for bit in range(16))
    order = np.argsort(code)
    count = min(count, len(i))
    done = np.cumsum(1 + (i != j)[order])  # An off-diagonal tile and its transpose are both multiplied.
    cuts = np.searchsorted(done, done[-1] * np.arange(1, count) / count - 0.5) + 1
    # Every group must contain at least one tile, even if there are few tiles.
    rise = np.arange(count + 1)
    edges = np.minimum(np.maximum.accumulate([0, *cuts, len(i)] - rise), len(i) - count) + rise
    return [sorted(zip(i[run].tolist(), j[run].tolist(), strict=True)) for run in np.split(order, edges[1:-1])]


def row_parts(n: int, block: int, count: int) -> list[slice]:
    """Split n rows into `count` parts of whole blocks, or fewer parts if there are fewer blocks."""
    runs = grouped(row_blocks(n, block), count)
    return [slice(run[0].start, run[-1].stop) for run in runs]


def touched_parts(group: list[Pair], block: int, parts: list[slice]) -> list[int]:
    """Return the indices of the row parts that a group of tiles multiplies."""
    rows = sorted({i * block for pair in group for i in pair})
    return np.unique(np.searchsorted([part.start for part in parts], rows, side="right") - 1).tolist()


def product_tasks(n: int, block: int, threads: int) -> tuple[int, int]:
    """Count the groups of tiles and the tasks of a product with resident tiles on `threads` worker threads."""
    strips = -(-n // block)
    tiles = strips * (strips + 1) // 2
    if tiles > MOST_TASKS:
        needed = -(-n // int((2 * MOST_TASKS) ** 0.5))
        raise UserError(
            f"a {n} x {n} kernel has {tiles} tiles of {block} rows, more than the limit of {MOST_TASKS}; use "
            f"Exact(block={1 << needed.bit_length()})"
        )
    groups, parts = compact_groups(n, block, threads), row_parts(n, block, threads)
    touched = np.bincount([part for group in groups for part in touched_parts(group, block, parts)])
    # For each row part of the result, one task sums the contributions of the groups. Every group except the one on the
    # same worker needs an additional task to extract its contribution.
    tasks = len(groups) + int(touched.sum())
    for level in touched.tolist():
        while level > FAN_IN:
            level = -(-level // FAN_IN)
            tasks += level
    if tasks > MOST_TASKS:
        raise UserError(
            f"a product with {n} x {n} tiles on {threads} worker threads takes {tasks} tasks, more than the limit of "
            f"{MOST_TASKS}; connect to fewer workers"
        )
    return len(groups), tasks


def product_bytes(
    n: int, block: int, columns: int, threads: list[int], resident: bool, itemsize: int = 8, entry: int = 4
) -> int:
    """Predict the additional memory in bytes that a product with tiles needs on the largest worker."""
    # Resident tiles are not split, so that a worker may hold one tile per thread more than its fraction of all tiles. A
    # product also needs memory for the block, for the arrays that a task adds up, for the rows of an iterative search,
    # and for two tiles with converted copies per thread.
    lower = n * (n + block) / 2
    kept = min(lower, max(threads) * (lower / sum(threads) + block**2)) * entry if resident else 0.0
    return int(kept + (FAN_IN + 4) * n * columns * itemsize + max(threads) * 3 * min(block, n) ** 2 * itemsize)


# A task receives its tiles as arrays in the order of `pairs`, or as a source that computes or reads them.
Tiled = list[np.ndarray] | TileSource


def compute_tiles(source: TileSource, pairs: list[Pair]) -> list[np.ndarray]:
    """Compute the tiles of `pairs` in order, as a task that creates resident tiles."""
    source = _for_task(source)
    found = [source.tile(i, j) for i, j in pairs]
    del source
    trim_memory()
    return found


def _for_task(source: TileSource) -> TileSource:
    """Copy features, so that the rows that they keep for the next tile are freed at the end of a task."""
    return copy(source) if isinstance(source, FeatureTiles) else source


def _iterate(tiles: Tiled, pairs: list[Pair], dtype: np.dtype | None = None) -> Iterator[tuple[int, int, np.ndarray]]:
    """Iterate over the tiles of `pairs`, converted to `dtype` if given. Tiles of a store are read ahead."""
    if not isinstance(tiles, KernelStore) or len(pairs) < 2:
        # A second thread speeds up reading, but computing tiles ahead would compete with the product for cores.
        tiles = tiles if isinstance(tiles, list) else _for_task(tiles)
        for number, (i, j) in enumerate(pairs):
            tile = tiles[number] if isinstance(tiles, list) else tiles.tile(i, j)
            yield i, j, tile if dtype is None else tile.astype(dtype, copy=False)
        return

    def fetch(i: int, j: int) -> np.ndarray:
        tile = tiles.tile(i, j)
        return tile if dtype is None else tile.astype(dtype, copy=False)

    # A product releases the GIL, so read, check and convert the next tile in a second thread.
    with ThreadPoolExecutor(1, thread_name_prefix="dmo-tiles") as pool:
        coming = pool.submit(fetch, *pairs[0])
        for at, (i, j) in enumerate(pairs):
            tile = coming.result()
            if at + 1 < len(pairs):
                coming = pool.submit(fetch, *pairs[at + 1])
            yield i, j, tile


def multiply_tiles(
    tiles: Tiled, pairs: list[Pair], slices: Sequence[slice] | Mapping[int, slice], B: np.ndarray
) -> np.ndarray:
    """Compute the contribution of the tiles `pairs` to A @ B, in the data type of B."""
    # Each tile is converted when it is multiplied, so that resident tiles stay in float32. The sums use the precision
    # of B.
    out = np.zeros(B.shape, B.dtype)
    for i, j, tile in _iterate(tiles, pairs, B.dtype):
        out[slices[i]] += tile @ B[slices[j]]
        # An off-diagonal tile also represents its mirror image in the upper triangle.
        if i != j:
            out[slices[j]] += tile.T @ B[slices[i]]
    return out


def multiply_parts(
    tiles: Tiled, pairs: list[Pair], slices: list[slice], touched: list[slice], *parts: np.ndarray
) -> list[np.ndarray]:
    """Compute the contribution of the tiles `pairs` to the rows `touched` of A @ B from the same rows of B."""
    edges = np.cumsum([0, *map(len, parts)])
    here = {
        i: slice(rows.start - part.start + edge, rows.stop - part.start + edge)
        for part, edge in zip(touched, edges[:-1], strict=True)
        for i, rows in enumerate(slices)
        if part.start <= rows.start < part.stop
    }
    return np.split(multiply_tiles(tiles, pairs, here, np.concatenate(parts)), edges[1:-1])


def look_up(features: Any, what: str, arguments: tuple[Any, ...], blocks: Sequence[int]) -> np.ndarray:
    """Compute kernel entries of some row blocks, such as columns, from the features instead of the tiles."""
    found = np.asarray(getattr(features, what)(*arguments, blocks))
    trim_memory()
    return found


def _some(tiles: Tiled, numbers: list[int]) -> Tiled:
    return [tiles[at] for at in numbers] if isinstance(tiles, list) else tiles


def _sum_of(shares: list[Waiting]) -> Waiting:
    return Waiting(added, tuple(shares)) if len(shares) > 1 else shares[0]


class Tiles(Operator):
    """Symmetric matrix given by the lower tiles of a `TileSource`."""

    # A product runs one task per worker thread and sums the results. Except in `dense`, the client process holds no
    # tiles, but only n x k blocks. If these blocks are stored as rows on workers, the client process does not hold them
    # either. A product raises a UserError if its predicted peak memory exceeds the memory limit of a worker.

    def __init__(
        self,
        source: TileSource,
        client: Any = None,
        resident: bool = False,
        dtype: Any = np.float32,
        features: FeatureTiles | None = None,
        name: str = "",
    ):
        self.source, self.client, self.resident, self.name = source, client, resident, name
        self.features: Any = source if features is None else features
        self.n, self.dtype = source.n, np.dtype(dtype)
        self._slices = row_blocks(self.n, source.block)
        self._threads = -1  # Number of worker threads at the last distribution of tiles, or -1 before the first one.
        self._kept: list[Any] | None = None
        self._home: Home | None = None
        self._shared = Broadcast(client, source)
        self._sent = self._shared if self.features is source else Broadcast(client, self.features)
        self._taken = _taken(client)
        self._deal()

    def _deal(self) -> None:
        """Distribute the tiles over the current worker threads, which may change between products."""
        # Redistributing resident tiles means computing them again, which takes longer than a product. Therefore,
        # redistribute tiles only if there are at least 25 % more threads. If workers leave, other workers compute the
        # lost tiles again.
        workers = {} if self.client is None else worker_threads(self.client)
        if self._home is not None and not set(self._home.places) <= set(workers):
            self._home = None
        threads = 0 if self.client is None else max(1, sum(workers.values()))
        more = threads > self._threads
        kept = self.resident and self._kept is not None
        if threads == self._threads or (kept and threads < 1.25 * self._threads):
            return
        if self.client is not None:
            # Raise an error if a product would need too many tasks.
            product_tasks(self.n, self.source.block, threads)
        self._threads = threads
        self.groups = compact_groups(self.n, self.source.block, max(1, threads))
        threads_of = [worker for worker, count in workers.items() for _ in range(count)]
        self._near = [threads_of[at % len(threads_of)] for at in range(len(self.groups))] if threads_of else []
        self._kept = self._home = None
        # Size in bytes of the largest block whose product fits in the memory of the workers, as far as known.
        self._allowed = -1
        if more:
            # Send the tile source again, so that new workers receive it before their tasks.
            self._shared.forget()

    def worker_bytes(self, columns: int, itemsize: int = 8) -> int:
        """Predict the peak memory of a worker in a product."""
        # The peak memory is the sum of the memory already in use (Python, libraries, tiles of other views), the memory
        # of a product, and a copy of features in memory.
        threads = [1] if self.client is None else list(self.client.nthreads().values()) or [1]
        own = product_bytes(self.n, self.source.block, columns, threads, self.resident, itemsize, self.dtype.itemsize)
        return self._taken + own + getattr(self.features, "nbytes", 0)

    def _check_memory(self, B: np.ndarray) -> None:
        if B.nbytes <= self._allowed:
            return
        # Other operators may have created tiles since this operator was created, so measure the memory in use again.
        if self._kept is None:
            self._taken = _taken(self.client)
        workers = self.client.scheduler_info(n_workers=-1)["workers"].values()
        limit = min((worker["memory_limit"] for worker in workers if worker["memory_limit"]), default=0)
        needed = self.worker_bytes(B.size // self.n, B.dtype.itemsize)
        if limit and needed > limit:
            raise UserError(
                f"a product with {self.n} x {self.n} tiles needs {amount(needed)} on a worker ({amount(self._taken)} "
                f"of it are already in use), its limit is {amount(limit)}; use more or larger workers, a smaller block "
                "size, or Exact(storage='recomputed')"
            )
        self._allowed = B.nbytes

    def _tiles(self) -> list[Any]:
        """Return the tiles of each group as arrays, or their source, as futures if there is a client."""
        self._deal()
        if self._kept is None:
            if self.client is None:
                self._kept = [
                    compute_tiles(self.source, group) if self.resident else self.source for group in self.groups
                ]
            elif self.resident:
                self._kept = self._computed()
            else:
                self._kept = [self._shared.future()] * len(self.groups)
        return self._kept

    def _computed(self) -> list[Any]:
        # Assign each task to a worker, because otherwise the scheduler runs all tasks on the worker that first receives
        # the source.
        calls = [(self._shared.future(), group) for group in self.groups]
        return submit_each(self.client, compute_tiles, calls, f"tiles {self.name}", self._near)

    def _retry(self, work: Callable[[], T]) -> T:
        return retried(self.client, work, self._forget)

    def _forget(self) -> None:
        self._kept = self._home = None
        self._shared.forget()
        self._sent.forget()

    def _multiplied(self, home: Home, sent: list[Any]) -> list[Waiting]:
        """Compute the row parts of A @ B from the row parts of B on the workers. The last level of sums is lazy."""
        kept, parts = self._tiles(), home.parts
        touched = [touched_parts(group, self.source.block, parts) for group in self.groups]
        calls = [
            (tiles, group, self._slices, [parts[at] for at in own], *(sent[at] for at in own))
            for tiles, group, own in zip(kept, self.groups, touched, strict=True)
        ]
        shares: list[list[Waiting]] = [[] for _ in parts]
        far: list[tuple[Waiting, str]] = []
        products = submit_each(self.client, multiply_parts, calls, f"product {self.name}")
        for found, own, place in zip(products, touched, self._near, strict=True):
            for number, at in enumerate(own):
                shares[at].append(Waiting(operator.getitem, (found, number)))
                # Extract a row part on the worker that computed it, because otherwise the whole result of the group is
                # transferred.
                if place != home.places[at] or not self.resident:
                    far.append((shares[at][-1], place))
        home.work_out(far)
        # A single task would hold all contributions in memory at once, so add the contributions in several levels of
        # tasks.
        while max(map(len, shares)) > FAN_IN:
            wide = [at for at, own in enumerate(shares) if len(own) > FAN_IN]
            for at in wide:
                shares[at] = [
                    _sum_of(shares[at][first : first + FAN_IN]) for first in range(0, len(shares[at]), FAN_IN)
                ]
            home.work_out((node, home.places[at]) for at in wide for node in shares[at])
        return [_sum_of(own) for own in shares]

    def _looked_up(self, what: str, *arguments: Any) -> WorkerRows:
        """Call a method of the features lazily for the rows of every part of `home`."""
        home, block = self.home(), self.source.block
        blocks = [range(part.start // block, -(-part.stop // block)) for part in home.parts]
        nodes = [Waiting(look_up, (self._sent.future(), what, arguments, own)) for own in blocks]
        return WorkerRows(home, nodes, len(arguments[0]) if arguments else 1, self.dtype)

    def _apply(self, B: Any, dtype: np.dtype) -> Any:
        if self.client is not None:
            self._deal()
            self._check_memory(B)
            if isinstance(B, WorkerRows):
                return WorkerRows(B.home, self._multiplied(B.home, B.futures()), B.shape[1], dtype)
            return self._retry(partial(self._multiplied_block, B))
        if not isinstance(self._tiles()[0], KernelStore):
            return self._apply_in_threads(B)
        return multiply_tiles(self._tiles()[0], self.groups[0], self._slices, B)

    def _multiplied_block(self, B: np.ndarray) -> np.ndarray:
        home = self.home()
        found = WorkerRows(home, self._multiplied(home, home.scattered(B)), B.shape[-1], B.dtype)
        return np.concatenate(gathered(self.client, found.futures()))

    def home(self) -> Home:
        """Return the workers and row parts on which this operator multiplies row blocks."""
        self._deal()
        if self._home is None:
            parts, own = row_parts(self.n, self.source.block, self._threads), weakref.ref(self)

            # A reference cycle would keep tiles on the workers after their last use, so use a weak reference.
            def lost() -> None:
                if (tiles := own()) is not None:
                    tiles._forget()

            self._home = Home(self.client, parts, self._places(parts), lost)
        return self._home

    def _places(self, parts: list[slice]) -> list[str]:
        """Choose the worker with the fewest parts for each row part, preferably one whose tiles need this part."""
        given = dict.fromkeys(worker_threads(self.client), 0)
        holders: list[set[str]] = [set() for _ in parts]
        for place, group in zip(self._near, self.groups, strict=False):
            for at in touched_parts(group, self.source.block, parts):
                holders[at].add(place)
        places = []
        for near in holders:
            places.append(min(given, key=lambda worker: (given[worker], worker not in near)))
            given[places[-1]] += 1
        return places

    def _apply_in_threads(self, B: np.ndarray) -> np.ndarray:
        """Compute A @ B in client threads, with a summation order that does not depend on the number of threads."""
        tiles, pairs = self._tiles()[0], self.groups[0]

        def share(run: list[int]) -> np.ndarray:
            return multiply_tiles(_some(tiles, run), [pairs[at] for at in run], self._slices, B)

        first, *others = in_threads(share, grouped(range(len(pairs)), _RUNS))
        return added(first, *others)

    def diagonal(self) -> np.ndarray:
        if self.client is None:
            return np.asarray(self.features.diagonal())
        return self._retry(lambda: np.asarray(self._looked_up("diagonal"), np.float64))

    def columns(self, index: np.ndarray) -> Any:
        if self.client is None:
            return self.features.columns(np.asarray(index))
        return self._looked_up("columns", np.asarray(index))

    def dense(self, dtype: Any = np.float64) -> np.ndarray:
        matrix = np.empty((self.n, self.n), dtype)

        def fill(tiles: Tiled, pairs: list[Pair]) -> None:
            for i, j, tile in _iterate(tiles, pairs):
                matrix[self._slices[i], self._slices[j]] = tile
                matrix[self._slices[j], self._slices[i]] = tile.T

        def work() -> np.ndarray:
            from distributed import as_completed

            futures = self._tiles() if self.resident else self._computed()
            group_of = {future.key: group for future, group in zip(futures, self.groups, strict=True)}
            for future in as_completed(futures, loop=self.client.loop):
                fill(future.result(), group_of[future.key])
                if not self.resident:
                    future.release()
            return matrix

        if self.client is None:
            fill(self._tiles()[0], self.groups[0])
        elif self.resident or isinstance(self.source, FeatureTiles):
            return self._retry(work)
        else:
            fill(self.source, lower_pairs(self.n, self.source.block))
        return matrix


def tiles_of(A: Operator) -> Tiles | None:
    """Return the tiles of an operator, or of the operator that it centers, scales or weights, or None."""
    while not isinstance(A, Tiles) and hasattr(A, "inner"):
        A = A.inner
    return A if isinstance(A, Tiles) else None


def home_of(A: Operator, size: float = np.inf) -> Home | None:
    """Return the workers on which an operator multiplies row blocks, or None if `size` entries are too few."""
    tiles = tiles_of(A)
    return None if tiles is None or tiles.client is None or size < _WORTH else tiles.home()


def _taken(client: Any) -> int:
    """Return the memory in use on the fullest worker in bytes, including data spilled to disk."""
    if client is None:
        return 0
    found = [worker["metrics"] for worker in client.scheduler_info(n_workers=-1)["workers"].values()]
    return max((metrics["memory"] + metrics["spilled_bytes"]["memory"] for metrics in found), default=0)
