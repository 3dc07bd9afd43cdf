"""What a scheduler and its workers have to hold for a fit: tasks and bytes, from sizes alone."""

from __future__ import annotations

from dataclasses import dataclass

from dmo.errors import amount
from dmo.fit.exact import Exact, exact_bytes
from dmo.fit.row_sums import BLOCK, segment_tasks, task_blocks
from dmo.linalg.cg import default_rank
from dmo.linalg.tiles import _FAN_IN as FAN_IN
from dmo.linalg.tiles import lower_pairs, product_bytes

SCHEDULER = 340 << 20
"""Bytes of a scheduler that holds nothing, in an environment with dmo."""
_TASK = 8 << 10
"""Bytes of a task in a scheduler, with its history."""
_OTHERS = 4
"""Tasks beside those of a stage: the data that are sent."""
WORKER = 250 << 20
"""Bytes of a worker that holds nothing, with dmo imported."""
LARGEST = 4 << 30
"""Bytes of the largest worker that is asked for."""
MOST_WORKERS = 4096
_TALL = 6
"""Blocks of one column a label that this process holds beside kernels."""


@dataclass(frozen=True)
class Graph:
    """What a scheduler has to do with a pass or a product: `tasks` in all, the most that it holds at a time, and its memory
    (bytes) at most; what passes through it is there once."""

    tasks: int
    held: int
    scheduler_bytes: int

    def cells(self) -> list[str]:
        """Tasks, the most at a time, the scheduler's memory."""
        return [str(self.tasks), str(self.held), amount(self.scheduler_bytes)]


def _graph(tasks: int, held: int, moved: int) -> Graph:
    return Graph(tasks, held, SCHEDULER + held * _TASK + moved)


def pass_graph(n: int, columns: int, labels: int, sent: int = 0, threads: int = 1) -> Graph:
    """The graph of one pass over n rows: tasks of fixed size, and the sums of their moments in a tree, the next
    segments under way while one is waited for: two tasks per thread.
    """
    # Arguments: `columns` of the moments (m, of all views and labels together); `labels` of them; `sent`: bytes of
    # what lies in memory of the views; `threads` of all workers. What is sent, the labels of a segment and the last
    # sum (m x m, float64) pass through the scheduler.
    size = BLOCK * task_blocks(n)
    parts = -(-n // size)
    segment = segment_tasks(parts)
    segments = [min(segment, parts - first) for first in range(0, parts, segment)]
    ahead = max(2, -(-2 * threads // segment))
    held = 2 * sum(segments[:ahead]) + _OTHERS  # those of one segment are forgotten while the next one comes
    return _graph(
        sum(2 * part - 1 for part in segments), held, max(sent, max(segments) * size * labels, 8 * columns**2)
    )


def tile_graph(n: int, block: int, threads: int, kernels: int, products: int, columns: int, resident: bool) -> Graph:
    """The graph of a solve with tiles: four groups of tiles per thread, and the sums of their shares in a tree."""
    # Arguments: `products` with each of `kernels` matrices n x n, with n x `columns` right-hand sides (float64),
    # which pass through the scheduler; `resident`: the groups stay in its list.
    groups = min(len(lower_pairs(n, block)), 4 * threads)
    level, sums = groups, 0
    while level > 1:
        sums += level // FAN_IN + (level % FAN_IN > 1)
        level = -(-level // FAN_IN)
    kept = kernels * groups if resident else 0
    return _graph(kept + kernels * products * (groups + sums), kept + groups + sums + _OTHERS, 8 * n * columns)


def tall_bytes(n: int, columns: int) -> int:
    """Bytes of the blocks of n x columns that this process holds beside kernels: labels, right-hand sides, solutions."""
    return 8 * n * columns * _TALL


def memory_peak(n: int, columns: int, kernels: int) -> int:
    """Bytes of this process with so many kernels in memory, beside blocks of n x columns; one alone is copied."""
    return max(sum(exact_bytes(n, kernels)), sum(exact_bytes(n, 1)) + 8 * n * n) + tall_bytes(n, columns)


def tile_peak(n: int, columns: int, kernels: int) -> int:
    """Bytes of this process beside tiles: blocks of n x columns, and the preconditioner of every kernel."""
    return tall_bytes(n, columns) + 8 * n * default_rank(n) * kernels


def moment_bytes(n: int, views: int, rank: int, labels: int) -> tuple[int, int, int]:
    """Bytes of the moments of all views and labels together, of this process, and of a worker, beside what lies there.

    Four sums at a time; in this process labels as bytes, and one more while they are checked; in a worker some rows.
    """
    columns = views * rank + labels
    gram = 8 * columns**2
    return gram, 4 * gram + n * (2 * labels + 8 * views), 4 * gram + 2 * 4 * BLOCK * columns + 8 * n * views


def resource_table(views: int, labels: int, rank: int) -> list[list[str]]:
    """Work out what a fit takes for 5 000 to 10 million samples: what `dmo plan --resources` prints."""
    lines = [["samples", "engine", "this process", "workers", "one worker", "disk", "tasks", "at once", "scheduler"]]
    for n in (5_000, 20_000, 100_000, 1_000_000, 10_000_000):
        if n <= 20_000:
            lines.append([str(n), "exact, in process", amount(memory_peak(n, labels, views)), *["-"] * 6])
        if n <= 100_000:
            lines.append(_tile_line(n, views, labels, stored=False))
        if n == 100_000:
            lines.append(_tile_line(n, views, labels, stored=True))
        _, driver, worker = moment_bytes(n, views, rank, labels)
        graph = pass_graph(n, views * rank + labels, labels, 8 * n * views)
        own = [f"nystrom, rank {rank}", amount(driver), "1 or more", amount(WORKER + worker), "-"]
        lines.append([str(n), *own, *graph.cells()])
    return lines


def _tile_line(n: int, views: int, labels: int, stored: bool) -> list[str]:
    """float32 tiles streamed from a disk, or in the memory of the fewest workers of one thread that hold them."""
    block = Exact().block
    for workers in range(1, MOST_WORKERS):
        one = product_bytes(n, block, labels, [1] * workers, False)
        kept = product_bytes(n, block, labels, [1] * workers, True) - one  # each view has its tiles
        worker = WORKER + one + (0 if stored else views * kept)
        if worker <= LARGEST or stored:
            break
    graph = tile_graph(n, block, workers, views, 1, labels, not stored)
    found = ["1 or more" if stored else str(workers), amount(worker)]
    found.append(amount(2 * n * (n + block) * views) if stored else "-")
    name = "exact, " + ("stored" if stored else "resident")
    return [str(n), name, amount(tile_peak(n, labels, views)), *found, *graph.cells()]


def markdown(lines: list[list[str]]) -> str:
    """Write a table in Markdown."""
    texts = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([texts[0], "|" + "---|" * len(lines[0]), *texts[1:]]) + "\n"
