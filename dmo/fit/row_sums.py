"""Sums over blocks of rows, in the client process or on a cluster, with checkpoints of partial sums.

Every result of a pass over the rows is such a sum: moments, or products of the rows with a few vectors. The rows are
split into blocks, successive blocks form tasks, and successive tasks form segments. Their sizes depend only on the
numbers of rows and columns. Floating-point sums depend on their order, so the order must depend neither on the workers
nor on the time of an interruption. In the client process, blocks are added one after the other. On a cluster, the tasks
of a segment are added by tree reduction, so that no worker sends or adds more than a few sums. The segments are then
added one after the other on the workers. The client fetches the partial sum for each checkpoint, and from time to time
in case workers are lost. A later run, or the remaining workers, resume from it.
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
from dmo.progress import stage, task_group
from dmo.stores.checkpoints import SECONDS, SHARE, Checkpoint

BLOCK = 4096
"""Rows per block."""
TASK_BLOCKS = 2
"""Maximum number of blocks per task, unless tasks of this size would exceed `_TASKS` in number."""
_SEGMENT, _PARTS = 16, 4  # maximum tasks per segment; minimum segments per pass, if there are enough tasks
_TASKS, _LIGHT = 256, 64  # tasks per pass for very many rows, and for few columns; each task has 10 ms of overhead
_IN_TASK = 1 << 22  # maximum bytes of arrays sent within a task; larger arrays are scattered separately
log = logging.getLogger("dmo")

Beside: TypeAlias = tuple[Any, ...]
"""Arrays with one entry per row (CSR labels are allowed); each task gets the slice of its rows. None if absent."""


class RowSum(Protocol):
    """Partial result that is summed over rows."""

    def __add__(self, other: Self) -> Self: ...

    def to_arrays(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return arrays and JSON metadata for a store."""
        ...


S = TypeVar("S", bound=RowSum)
AddBlock: TypeAlias = Callable[[S | None, slice, Beside], S]
"""Function (sum so far or None, rows of a block, their entries) -> new sum; it may overwrite the sum so far."""


def task_blocks(n: int, columns: int | None = None) -> int:
    """Return the blocks per task of a pass: at least about 16 tasks, and for very many rows tasks of 0.1 s of work."""
    # Estimated time: 10 ns per number, and 0.1 ns per product of two numbers.
    worth = _TASKS if columns is None else int(n * columns * (1 + columns / 100) * 1e-7)
    return max(1, min(TASK_BLOCKS, n // (16 * BLOCK)), n // (min(max(worth, _LIGHT), _TASKS) * BLOCK))


def segment_tasks(tasks: int) -> int:
    """Return the tasks per segment of a pass."""
    # Sums can be saved between segments, so there are at least four. Each segment sends one sum to the client, so
    # segments are as large as this allows.
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
    """Sum over n rows; `columns` is the number of entries per row, if known.

    Raises a UserError if there are no rows.
    """
    # Arguments: `name`: name of the stage; `add`: adds a block, and is sent to each worker once; `beside`: arrays of n
    # rows, or None; `restore`: restores a sum from its `to_arrays`; `configuration`: returns a digest of all inputs of
    # the sum; `client`: a distributed.Client, or None for the client process. The digest is only needed inside
    # `stores.checkpoints.checkpoints`, where partial sums are saved at most every 30 s, so that a killed run can
    # resume. Memory: two sums in the client process; a few sums and a block per worker thread.
    if n == 0:
        raise UserError("no rows to pass over; pass at least one sample")
    kept = Checkpoint("pass", configuration)
    blocks, size = row_blocks(n, BLOCK), task_blocks(n, columns)
    tasks = [blocks[i : i + size] for i in range(0, len(blocks), size)]
    found = kept.load()
    if found is not None and found[1].get("rows") != size * BLOCK:  # saved by a version with a different task size
        found = None
    total, done = (None, 0) if found is None else (restore(found[0], found[1]["sum"]), int(found[1]["done"]))
    if total is not None and done == len(tasks):
        return total
    if total is not None:
        log.info("%s: resuming, %d of %d blocks are already summed", name, done * size, len(blocks))
    with stage(name, len(blocks)) as advance:
        advance(done * size)
        rest = tasks[done:]
        sums: Iterator[tuple[S | None, int]] = (
            _here(add, rest, beside, total)
            if client is None
            else _on_cluster(client, name, add, rest, beside, segment_tasks(len(tasks)), total, kept.due)
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
    """Add consecutive blocks to the sum `before`; `beside` contains only the entries of their rows."""
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
    """Yield (sum including the next task, 1) for every task."""
    for blocks in tasks:
        total = _task(add, blocks, _of_rows(beside, blocks), total)
        yield total, 1


def _on_cluster(
    client: Any,
    name: str,
    add: AddBlock[S],
    rest: Sequence[Sequence[slice]],
    beside: Beside,
    size: int,
    total: S | None,
    due: Callable[[], bool],
) -> Iterator[tuple[S | None, int]]:
    """Yield (sum including the next segment, its number of tasks) for all segments of `size` tasks of `rest`, in order.

    The sum is None while it is only on the workers. Later segments run ahead: two tasks per available thread.
    """
    shared = Broadcast(client, add)
    segments = [rest[i : i + size] for i in range(0, len(rest), size)]
    parts: dict[int, Any] = {}  # sums of single segments, on the workers
    added: tuple[int, Any] = 0, None  # number of segments in the sum on the workers, and its future
    here: tuple[int, S | None] = 0, total  # number of segments in the last sum fetched by the client, and this sum
    last, pause = time.monotonic(), SECONDS

    def work(i: int, whole: bool) -> S | None:
        nonlocal added
        while added[0] <= i:
            j, before = added
            ahead = max(2, -(-2 * sum(client.nthreads().values()) // size))
            for k in range(j, min(j + ahead, len(segments))):
                if k not in parts:
                    parts[k] = _tree(client, name, shared, segments[k], beside)
            if before is None and here[1] is not None:
                before = client.scatter([here[1]], hash=False)[0]
            part = parts.pop(j)
            added = j + 1, part if before is None else _plus_on(client, name, before, part)
        # Errors of tasks and lost results are raised when the result is requested.
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


def _tree(client: Any, name: str, shared: Broadcast, segment: Sequence[Sequence[slice]], beside: Beside) -> Any:
    """Return a future of the sum of a segment."""
    futures = []
    for blocks in segment:
        own: Any = _of_rows(beside, blocks)
        if sum(byte_count(part) for part in own if part is not None) > _IN_TASK:
            own = client.scatter([own], hash=False)[0]
        key = task_group(name)
        futures.append(client.submit(_worker_task, shared.future(), blocks, own, key=key, pure=False))
    while len(futures) > 1:
        odd = [futures[-1]] if len(futures) % 2 else []
        pairs = zip(futures[0:-1:2], futures[1::2], strict=False)
        futures = [_plus_on(client, name, a, b) for a, b in pairs] + odd
    return futures[0]


def _worker_task(add: AddBlock[S], blocks: Sequence[slice], own: Beside) -> S:
    return run_task(_task, (add, blocks, own, None))


def _plus_on(client: Any, name: str, left: Any, right: Any) -> Any:
    return client.submit(_plus, left, right, key=task_group(f"sums of {name}"), pure=False)


def _plus(left: S, right: S) -> S:
    return left + right
