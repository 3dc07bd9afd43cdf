"""What a scheduler and its workers have to hold for a fit: tasks and bytes, from sizes alone."""

from __future__ import annotations

from dataclasses import dataclass

from dmo.engines.exact import Exact
from dmo.engines.row_sums import BLOCK, segment_tasks, task_blocks
from dmo.errors import amount
from dmo.linalg.tiles import _FAN_IN as FAN_IN
from dmo.linalg.tiles import lower_pairs

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


@dataclass(frozen=True)
class Graph:
    """What a scheduler has to do with a fit: `tasks` in all, the most that it holds at the same time, and its memory
    (bytes) at most; what passes through it is there once."""

    tasks: int
    held: int
    scheduler_bytes: int

    def words(self) -> str:
        return f"{self.tasks} tasks, at most {self.held} at a time; scheduler {amount(self.scheduler_bytes)}"


def _graph(tasks: int, held: int, moved: int) -> Graph:
    return Graph(tasks, held, SCHEDULER + held * _TASK + moved)


def pass_graph(n: int, columns: int, labels: int, sent: int = 0, threads: int = 1) -> Graph:
    """The graph of one pass over n rows: tasks of fixed size, and the sums of their moments in a tree, the next
    segments under way while one is waited for: two tasks per thread.

    Arguments: `columns` of the moments (m, of all views and labels together); `labels` of them; `sent`: bytes of what
    lies in memory of the views; `threads` of all workers. What is sent, the labels of a segment and the last sum (m x m,
    float64) pass through the scheduler.
    """
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
    """The graph of a solve with tiles: four groups of tiles per thread, and the sums of their shares in a tree.

    Arguments: `products` with each of `kernels` matrices n x n, with n x `columns` right-hand sides (float64), which pass
    through the scheduler; `resident`: the groups stay in its list.
    """
    groups = min(len(lower_pairs(n, block)), 4 * threads)
    level, sums = groups, 0
    while level > 1:
        sums += level // FAN_IN + (level % FAN_IN > 1)
        level = -(-level // FAN_IN)
    kept = kernels * groups if resident else 0
    return _graph(kept + kernels * products * (groups + sums), kept + groups + sums + _OTHERS, 8 * n * columns)


@dataclass(frozen=True)
class Resources:
    """What a fit takes: bytes in the process that asks for it, workers of some size and bytes of the largest, bytes on
    disk, and the scheduler's part (None without workers)."""

    engine: str
    driver: int
    workers: int
    worker: int
    disk: int = 0
    graph: Graph | None = None


def exact_in_process(n: int, views: int) -> Resources:
    """Every kernel in float32 with its float64 factor."""
    return Resources("exact, in process", 12 * n * n * views, 0, 0)


def exact_tiles(n: int, views: int, labels: int, products: int, stored: bool) -> Resources:
    """float32 tiles in the workers' memory, or streamed from a disk; the fewest workers of one thread that hold them.

    The same sum as `Tiles.worker_bytes`, for all views, since each has its tiles.
    """
    block = Exact().block
    for workers in range(1, MOST_WORKERS):
        groups = min(len(lower_pairs(n, block)), 4 * workers)
        part = 0.0 if stored else views * min(1.0, 1 / workers + 1 / groups)
        worker = WORKER + int(part * n * (n + block) * 2) + (FAN_IN + 2) * 8 * n * labels + 3 * 8 * min(block, n) ** 2
        if worker <= LARGEST or stored:
            break
    graph = tile_graph(n, block, workers, views, products, labels, not stored)
    disk = 2 * n * (n + block) * views if stored else 0
    return Resources("exact, " + ("stored" if stored else "resident"), 8 * n * labels * 6, workers, worker, disk, graph)


def low_rank(n: int, views: int, labels: int, rank: int) -> Resources:
    """Moments of all views: a task holds four sums and some rows."""
    columns = views * rank + labels
    gram, rows = 8 * columns**2, 2 * 4 * BLOCK * columns
    graph = pass_graph(n, columns, labels, 8 * n * views)
    driver = 4 * gram + n * (2 * labels + 8 * views)  # labels of 0 and 1 as bytes, and one more while they are checked
    return Resources(f"nystrom, rank {rank}", driver, 1, WORKER + 4 * gram + rows + 8 * n * views, 0, graph)


def resource_table(views: int, labels: int, rank: int, products: int) -> list[list[str]]:
    """Work out what a fit takes for 5 000 to 10 million samples: what `dmo plan --resources` prints.

    Parameters
    ----------
    views : int
        Of the samples.
    labels : int
        Of the samples.
    rank : int
        Of the low-rank lines.
    products : int
        With every kernel, see `products_of`.

    Returns
    -------
    list of list of str
        Lines, under a head.

    Examples
    --------
    >>> from dmo.workflows.resources import resource_table
    >>> [line[1] for line in resource_table(views=8, labels=260, rank=1000, products=100)][:3]
    ['engine', 'exact, in process', 'exact, resident']
    """
    lines = [["samples", "engine", "this process", "workers", "one worker", "disk", "tasks", "at once", "scheduler"]]
    for n in (5_000, 20_000, 100_000, 1_000_000, 10_000_000):
        found = [exact_in_process(n, views)] if n <= 20_000 else []
        if n <= 100_000:
            found.append(exact_tiles(n, views, labels, products, stored=False))
        if n == 100_000:
            found.append(exact_tiles(n, views, labels, products, stored=True))
        lines.extend(_line(n, one) for one in [*found, low_rank(n, views, labels, rank)])
    return lines


def _line(n: int, found: Resources) -> list[str]:
    graph = found.graph
    held = ["-"] * 3 if graph is None else [str(graph.tasks), str(graph.held), amount(graph.scheduler_bytes)]
    workers = [str(found.workers), amount(found.worker)] if found.workers else ["-", "-"]
    more = "or more" if found.workers and "resident" not in found.engine else ""
    workers[0] = f"{workers[0]} {more}".strip()
    return [str(n), found.engine, amount(found.driver), *workers, amount(found.disk) if found.disk else "-", *held]


def markdown(lines: list[list[str]]) -> str:
    """Write a table in Markdown.

    Parameters
    ----------
    lines : list of list of str
        The first is its head.

    Returns
    -------
    str
        Markdown.

    Examples
    --------
    >>> from dmo.workflows.resources import markdown
    >>> print(markdown([["a", "b"], ["1", "2"]]), end="")
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    texts = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([texts[0], "|" + "---|" * len(lines[0]), *texts[1:]]) + "\n"
