"""Sums over blocks of rows, in the client process or on a cluster, with checkpoints of partial sums.

Every result of a pass over the rows is a sum over blocks, such as moments, or products of the rows with a few vectors.
The rows are split into blocks, successive blocks form tasks, and successive tasks form segments. All sizes depend
only on the numbers of rows and columns. Because floating-point sums depend on their order, the order must not depend on
the workers or on interruptions. The client process adds one block after the other. On a cluster, the tasks of a segment
are added by tree reduction, so that no worker sends or adds more than a few sums. The workers then add one segment
after the other. The client fetches the partial sum for each checkpoint, and from time to time in case workers are lost.
A later run or the remaining workers resume from this sum.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, Self, TypeAlias, TypeVar

import numpy as np

from dmo.blocks import byte_count, row_blocks
from dmo.cluster import current_client
from dmo.cluster.workers import Broadcast, retried, run_task, tree_reduced
from dmo.errors import UserError
from dmo.progress import stage, task_group
from dmo.stores.checkpoints import SECONDS, SHARE, Checkpoint

BLOCK = 4096
"""Number of rows per block."""
TASK_BLOCKS = 2
"""Maximum number of blocks per task, unless a pass would then have more than 256 tasks."""
# Maximum number of tasks per segment, and minimum number of segments per pass if there are enough tasks.
_SEGMENT, _PARTS = 16, 4
# Maximum and minimum number of tasks in a pass over very many rows. A task has an overhead of 10 ms.
_TASKS, _LIGHT = 256, 64
# Maximum size in bytes of arrays that are sent within a task. Larger arrays are scattered separately.
_IN_TASK = 1 << 22
log = logging.getLogger("dmo")

Beside: TypeAlias = tuple[Any, ...]
"""Arrays with one entry per row, or None if absent. Each task receives the entries of its rows."""


class RowSum(Protocol):
    """Partial result that is summed over rows."""

    def __add__(self, other: Self) -> Self: ...

    def to_arrays(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the arrays and JSON metadata for a store."""
        ...


S = TypeVar("S", bound=RowSum)
AddBlock: TypeAlias = Callable[[S | None, slice, Beside], S]
"""Function that adds a block to a partial sum, and may overwrite the partial sum. Its arguments are the partial sum
(None at first), the slice of rows in the block, and the arrays of these rows."""


def task_blocks(n: int, columns: int | None = None) -> int:
    """Return the number of blocks per task: small enough for about 16 tasks or more, but larger for very many rows."""
    # For very many rows, a task takes about 0.1 s. The time of a task is estimated as 10 ns for each entry of a row,
    # plus 0.1 ns for each product of two entries.
    worth = _TASKS if columns is None else int(n * columns * (1 + columns / 100) * 1e-7)
    return max(1, min(TASK_BLOCKS, n // (16 * BLOCK)), n // (min(max(worth, _LIGHT), _TASKS) * BLOCK))


def segment_tasks(tasks: int) -> int:
    """Return the number of tasks per segment."""
    # Sums can be saved only between segments, so a pass has at least four segments if there are enough tasks.
    return max(1, min(_SEGMENT, tasks // _PARTS))


def add_up(
    name: str,
    n: int,
    add: AddBlock[S],
    beside: Beside,
    restore: Callable[[Mapping[str, np.ndarray], Mapping[str, Any]], S],
    configuration: Callable[[], str],
    columns: int | None = None,
) -> S:
    """Sum over n rows with the function `add`. Raise a UserError if there are no rows.

    `columns` is the number of entries per row, if known.
    """
    # The progress display shows `name`. The function `add` is sent to each worker once. The arrays in `beside` have n
    # rows. `restore` is the inverse of the method `to_arrays` of a sum. `configuration` computes a digest of all
    # inputs, which identifies a checkpoint. Inside the context `stores.checkpoints.checkpoints`, partial sums are saved
    # at most every 30 s, so that a killed run can resume. The client process needs memory for two sums, and each worker
    # thread needs memory for a few sums and one block of rows.
    if n == 0:
        raise UserError("no rows to pass over; pass at least one sample")
    kept = Checkpoint("pass", configuration)
    blocks, size = row_blocks(n, BLOCK), task_blocks(n, columns)
    tasks = [blocks[i : i + size] for i in range(0, len(blocks), size)]
    found = kept.load()
    # Ignore checkpoints from versions of dmo with another task size.
    if found is not None and found[1].get("rows") != size * BLOCK:
        found = None
    total, done = (None, 0) if found is None else (restore(found[0], found[1]["sum"]), int(found[1]["done"]))
    if total is not None and done == len(tasks):
        return total
    if total is not None:
        log.info("%s: resuming, %d of %d blocks are already summed", name, done * size, len(blocks))
    with stage(name, len(blocks)) as advance:
        advance(done * size)
        rest, client = tasks[done:], current_client()
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
    """Add consecutive blocks to the sum `before`. The arrays `beside` hold only the rows of these blocks."""
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
    """Yield the partial sum after each task, and the number of tasks that were added, which is 1."""
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
    """Yield the partial sum after each segment, in order, and the number of tasks in the segment.

    The partial sum is None if it was not fetched from the workers. About two tasks per thread are submitted ahead.
    """
    shared = Broadcast(client, add)
    segments = [rest[i : i + size] for i in range(0, len(rest), size)]
    parts: dict[int, Any] = {}  # Futures of the sums of single segments, by index of the segment.
    # Number of segments in the partial sum on the workers, and the future of this sum.
    added: tuple[int, Any] = 0, None
    # Number of segments in the partial sum that the client fetched last, and this sum.
    here: tuple[int, S | None] = 0, total
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
        # If a task failed or its result was lost, `result` raises the error, even if the client does not need the sum
        # yet.
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
    """Submit the tasks of a segment, and return a future of their sum."""
    futures = []
    for blocks in segment:
        own: Any = _of_rows(beside, blocks)
        if sum(byte_count(part) for part in own if part is not None) > _IN_TASK:
            own = client.scatter([own], hash=False)[0]
        key = task_group(name)
        futures.append(client.submit(_worker_task, shared.future(), blocks, own, key=key, pure=False))
    return tree_reduced(futures, partial(_plus_on, client, name))


def _worker_task(add: AddBlock[S], blocks: Sequence[slice], own: Beside) -> S:
    return run_task(_task, (add, blocks, own, None))


def _plus_on(client: Any, name: str, left: Any, right: Any) -> Any:
    return client.submit(_plus, left, right, key=task_group(f"sums of {name}"), pure=False)


def _plus(left: S, right: S) -> S:
    return left + right
