"""Sums over the rows of all samples, block by block: in this process or on a cluster, kept while they grow.

Whatever is learned in passes over the rows is such a sum: of moments, of products of the rows with a few vectors. The rows
are cut into blocks, runs of blocks are tasks, and runs of tasks are segments, all of sizes that depend on the numbers of
rows and columns alone: floating-point sums depend on their order, so the order must depend on neither the workers nor the
moment at which a run was interrupted. In this process the blocks are added one to the other. On a cluster the tasks of a
segment are added in a tree, so that no worker sends or adds more than a few sums, and the segments are added one to the
other there as well. The sum so far comes to this process when a state is to be kept, and now and then otherwise, in case
that workers are lost: a later run, or the other workers, go on from it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, Self, TypeAlias, TypeVar

import numpy as np

from dmo.blocks import byte_count, row_blocks
from dmo.cluster.workers import Broadcast, retried, run_task
from dmo.errors import UserError
from dmo.progress import stage
from dmo.stores.checkpoints import SECONDS, SHARE, Checkpoint

BLOCK = 4096
"""Rows of a block."""
TASK_BLOCKS = 2
"""Blocks per task, at most, where rows are not so many that tasks of this size are more than `_TASKS`."""
_SEGMENT, _PARTS = 16, 4  # tasks per segment at most; segments per pass at least, where there are so many tasks
_TASKS, _LIGHT = 256, 64  # per pass, about, of very many rows, and of few columns: a task costs 10 ms beside its work
_IN_TASK = 1 << 22  # bytes of arrays that go with their task; more go to a worker by themselves
log = logging.getLogger("dmo")

Beside: TypeAlias = tuple[Any, ...]
"""Arrays with one entry per row (CSR labels are allowed), of which each task gets the slice of its rows; None if absent."""


class RowSum(Protocol):
    """What is added up over rows."""

    def __add__(self, other: Self) -> Self: ...

    def to_arrays(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """(arrays, JSON meta) for a store."""
        ...


S = TypeVar("S", bound=RowSum)
AddBlock: TypeAlias = Callable[[S | None, slice, Beside], S]
"""(sum so far or None, rows of a block, what lies beside them) -> the sum with them; may use up the sum it was given."""


def task_blocks(n: int, columns: int | None = None) -> int:
    """Count the blocks per task of a pass: some sixteen tasks or more, and of very many rows as many as have work for .1 s."""
    # 10 ns a number, and .1 ns a product of two
    worth = _TASKS if columns is None else int(n * columns * (1 + columns / 100) * 1e-7)
    return max(1, min(TASK_BLOCKS, n // (16 * BLOCK)), n // (min(max(worth, _LIGHT), _TASKS) * BLOCK))


def segment_tasks(tasks: int) -> int:
    """Count the tasks per segment of a pass."""
    # Sums can be kept between two segments, so there are four or more; each sends one sum to this process, so they
    # are no smaller than that asks for.
    return max(1, min(_SEGMENT, tasks // _PARTS))


def add_up(
    name: str,
    n: int,
    add: AddBlock[S],
    beside: Beside,
    restore: Callable[[Mapping[str, np.ndarray], Mapping[str, Any]], S],
    configuration: Callable[[], str],
    client: Any,
    columns: int | None = None,
) -> S:
    """The sum over n rows, of so many numbers each where that is said."""
    # Arguments: `name` of the stage; `add`: adds a block, sent to the workers once; `beside`: arrays of n rows, or
    # None; `restore`: the sum that its `to_arrays` described; `configuration`: digest of all that the sum depends on,
    # asked for inside `stores.checkpoints.checkpoints` only, where the sum so far is kept, every 30 s at most, for a
    # run that dies; `client`: a distributed.Client, or None for this process. Memory: of this process, two sums; of a
    # worker's thread, a few sums and a block. Raises ValueError for no rows.
    if n == 0:
        raise UserError("no rows to pass over; pass at least one sample")
    kept = Checkpoint("pass", configuration)
    blocks, size = row_blocks(n, BLOCK), task_blocks(n, columns)
    tasks = [blocks[i : i + size] for i in range(0, len(blocks), size)]
    found = kept.load()
    if found is not None and found[1].get("rows") != size * BLOCK:  # kept by a version with tasks of another size
        found = None
    total, done = (None, 0) if found is None else (restore(found[0], found[1]["sum"]), int(found[1]["done"]))
    if total is not None and done == len(tasks):
        return total
    if total is not None:
        log.info("%s: %d of %d blocks are summed already", name, done * size, len(blocks))
    with stage(name, len(blocks)) as advance:
        advance(done * size)
        rest = tasks[done:]
        sums: Iterator[tuple[S | None, int]] = (
            _here(add, rest, beside, total)
            if client is None
            else _on_cluster(client, add, rest, beside, segment_tasks(len(tasks)), total, kept.due)
        )
        for total, count in sums:
            advance(sum(len(task) for task in tasks[done : done + count]))
            done += count
            if total is not None and done < len(tasks) and kept.due():
                _keep(kept.save, total, done, size * BLOCK)
    assert total is not None
    _keep(kept.finish, total, done, size * BLOCK)
    return total


def _keep(save: Callable[..., None], total: RowSum, done: int, rows: int) -> None:
    arrays, meta = total.to_arrays()
    save(arrays, {"sum": meta, "done": done, "rows": rows})


def _task(add: AddBlock[S], blocks: Sequence[slice], beside: Beside, before: S | None) -> S:
    """The sum `before` with some blocks that follow each other; `beside`: of their rows alone."""
    total = before
    for block in blocks:
        where = slice(block.start - blocks[0].start, block.stop - blocks[0].start)
        total = add(total, block, tuple(None if part is None else part[where] for part in beside))
    assert total is not None
    return total


def _of_rows(beside: Beside, blocks: Sequence[slice]) -> Beside:
    where = slice(blocks[0].start, blocks[-1].stop)
    return tuple(None if part is None else part[where] for part in beside)


def _here(
    add: AddBlock[S], tasks: Sequence[Sequence[slice]], beside: Beside, total: S | None
) -> Iterator[tuple[S | None, int]]:
    """(the sum with one task more, 1) for every task."""
    for blocks in tasks:
        total = _task(add, blocks, _of_rows(beside, blocks), total)
        yield total, 1


def _on_cluster(
    client: Any,
    add: AddBlock[S],
    rest: Sequence[Sequence[slice]],
    beside: Beside,
    size: int,
    total: S | None,
    due: Callable[[], bool],
) -> Iterator[tuple[S | None, int]]:
    """(the sum with one segment more where it is here, its tasks) for all segments of `rest`, of `size` tasks, in order.

    Later segments are under way while one is waited for: two tasks for every thread that there is by then.
    """
    shared = Broadcast(client, add)
    segments = [rest[i : i + size] for i in range(0, len(rest), size)]
    parts: dict[int, Any] = {}  # sums of segments, on the workers
    added: tuple[int, Any] = 0, None  # so many segments in one sum there
    here: tuple[int, S | None] = 0, total  # and in the last one that came to this process
    last, pause = time.monotonic(), SECONDS

    def work(i: int, whole: bool) -> S | None:
        nonlocal added
        while added[0] <= i:
            j, before = added
            ahead = max(2, -(-2 * sum(client.nthreads().values()) // size))
            for k in range(j, min(j + ahead, len(segments))):
                if k not in parts:
                    parts[k] = _tree(client, shared, segments[k], beside)
            if before is None and here[1] is not None:
                before = client.scatter([here[1]], hash=False)[0]
            part = parts.pop(j)
            added = j + 1, part if before is None else client.submit(_plus, before, part, pure=False)
        # an error, or what was lost, is raised as the result is asked for
        return added[1].result() if whole or added[1].exception() is not None else None

    def lose() -> None:
        nonlocal added
        shared.forget()
        parts.clear()
        added = here[0], None

    for i, segment in enumerate(segments):
        whole = i + 1 == len(segments) or due() or time.monotonic() - last >= pause
        began = time.monotonic()
        found = retried(client, partial(work, i, whole), lose)
        if whole:
            last = time.monotonic()
            here, added, pause = (i + 1, found), (i + 1, None), max(SECONDS, SHARE * (last - began))
        yield found, len(segment)


def _tree(client: Any, shared: Broadcast, segment: Sequence[Sequence[slice]], beside: Beside) -> Any:
    """A future of the sum of a segment."""
    futures = []
    for blocks in segment:
        own: Any = _of_rows(beside, blocks)
        if sum(byte_count(part) for part in own if part is not None) > _IN_TASK:
            own = client.scatter([own], hash=False)[0]
        futures.append(client.submit(_worker_task, shared.future(), blocks, own, pure=False))
    while len(futures) > 1:
        odd = [futures[-1]] if len(futures) % 2 else []
        pairs = zip(futures[0:-1:2], futures[1::2], strict=False)
        futures = [client.submit(_plus, a, b, pure=False) for a, b in pairs] + odd
    return futures[0]


def _worker_task(add: AddBlock[S], blocks: Sequence[slice], own: Beside) -> S:
    return run_task(_task, (add, blocks, own, None))


def _plus(left: S, right: S) -> S:
    return left + right
