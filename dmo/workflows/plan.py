"""Estimates of the memory and the Dask tasks of a fit before it starts, for `dmo plan` and `dmo fit`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import psutil
from sklearn.base import clone, is_regressor

from dmo.blocks import Rows, chunk_rows, reads_sparse, rows, stored_values
from dmo.cluster import current_client
from dmo.decide.out_of_fold import HELD_OUT_ROWS
from dmo.errors import UserError, amount
from dmo.fit.engine import by_gradients, is_exact, reasoned_engine
from dmo.fit.exact import Exact, exact_bytes, reasoned_storage
from dmo.fit.one_view import relation_bytes
from dmo.fit.row_sums import BLOCK, segment_tasks, task_blocks
from dmo.fit.view_neighbors import QUERIES
from dmo.inputs import per_view
from dmo.inputs.views import is_lazy
from dmo.kernels import Linear, parse, parse_relation
from dmo.kernels.pairs import SAMPLE
from dmo.kernels.product import is_product
from dmo.linalg.cg import default_rank
from dmo.linalg.eigen import basis_columns
from dmo.linalg.tiles import product_bytes, product_tasks, tile_rows
from dmo.lowrank.approximations import Meka, Nystrom
from dmo.lowrank.sampling import learning_rows
from dmo.methods.catalog import METHODS
from dmo.methods.fasttag import FastTag
from dmo.methods.homogeneity import HomogeneityAnalysis, HomogeneityEmbedding
from dmo.methods.jec import DistanceAnnotator
from dmo.methods.landmark_ridge import kept_bytes, solved_by_rows
from dmo.methods.mesd import MESD
from dmo.methods.mope import MOPE
from dmo.methods.neighbor_votes import NeighborVotes
from dmo.methods.projection import Projection
from dmo.methods.propagation import LabelPropagation
from dmo.methods.ridge import MultiViewRidge
from dmo.methods.trace import TraceEmbedding
from dmo.persistence import load
from dmo.threads import thread_count

SCHEDULER = 340 << 20
"""Memory of an idle Dask scheduler in bytes."""
_TASK = 8 << 10
"""Memory of a task in the scheduler in bytes, including its history."""
_OTHERS = 4
"""Number of additional tasks per stage that send data to workers."""
DRIVER, WORKER = 420 << 20, 380 << 20
"""Memory in bytes of the client process and of a worker after their imports, including 160 MiB for compiled loops."""
_TASK_SECONDS, _PRODUCT_SECONDS = 1.2e-3, 4e-11
"""Time of a task in the scheduler and the client process, and time of one multiplication in a kernel product, both in
seconds."""
LARGEST = 4 << 30
"""Maximum memory of a recommended worker in bytes."""
MOST_WORKERS = 4096
_TALL, _MADE, _BASES = 6, 4, 3
"""Numbers of arrays in memory at the same time. The client process has six n x L blocks in addition to the kernels. The
workers have four copies of a preconditioner while they compute it, and three copies of the basis of an eigensolver."""


@dataclass(frozen=True)
class TaskGraph:
    """Estimated work of the scheduler: total tasks, maximum number of simultaneous tasks, and peak memory.

    The memory includes data that are sent through the scheduler.
    """

    tasks: int
    held: int
    scheduler_bytes: int

    def cells(self) -> list[str]:
        """Format the number of tasks, the number of simultaneous tasks and the memory of the scheduler."""
        return [str(self.tasks), str(self.held), amount(self.scheduler_bytes)]


def _graph(tasks: int, held: int, moved: int) -> TaskGraph:
    return TaskGraph(tasks, held, SCHEDULER + held * _TASK + moved)


def pass_graph(n: int, columns: int, labels: int, sent: int = 0) -> TaskGraph:
    """Estimate number and size of the tasks of a pass over n rows that sums moments by tree reduction."""
    # The pass sums a matrix of moments of size m x m in float64, where m = `columns` includes `labels` columns of
    # labels. The views in memory have a size of `sent` bytes. The scheduler receives these views, the labels of a
    # segment of rows, and the summed moments. The scheduler keeps all tasks that contributed to the current sum.
    size = BLOCK * task_blocks(n, columns)
    parts = -(-n // size)
    tasks = 2 * parts - 1
    return _graph(tasks, tasks + _OTHERS, max(sent, segment_tasks(parts) * size * labels, 8 * columns**2))


def tile_graph(
    n: int, block: int, threads: int, kernels: int, products: int, columns: int, resident: bool
) -> TaskGraph:
    """Estimate the task graph of a solver whose kernel tiles are distributed over threads in groups."""
    # Each of `kernels` matrices of size n x n is multiplied `products` times by right-hand sides of size n x `columns`
    # in float64. The right-hand sides are sent through the scheduler. If `resident` is true, the scheduler also keeps
    # one task for each group of tiles.
    groups, tasks = product_tasks(n, block, threads)
    kept = kernels * groups if resident else 0
    return _graph(kept + kernels * products * tasks, kept + tasks + _OTHERS, 8 * n * columns)


def useful_threads(n: int, block: int, columns: int, threads: int, stored: bool) -> int:
    """Estimate the number of worker threads above which the overhead of tasks makes products with tiles slower."""

    def seconds(count: int) -> float:
        tasks = product_tasks(n, block if stored else tile_rows(n, count, block), count)[1]
        return _TASK_SECONDS * tasks + _PRODUCT_SECONDS * n * n * columns / count

    counts = [1]
    while counts[-1] < threads and (len(counts) < 2 or seconds(counts[-1]) <= seconds(counts[-2])):
        counts.append(min(2 * counts[-1], threads))
    return min(counts, key=seconds)


def tall_bytes(n: int, columns: int) -> int:
    """Estimate the size in bytes of labels, right-hand sides and solutions with n rows in the client process."""
    return 8 * n * columns * _TALL


def memory_peak(n: int, columns: int, kernels: int, apart: bool = False, itemsize: int | None = None) -> int:
    """Estimate the peak memory of the client process in bytes for kernels in memory, including n x `columns` blocks."""
    # A float32 factor usually overwrites its kernel. Regressions (`apart`) finally factorize the kernel of held-out
    # rows, so they need memory for a separate factor. To compute and factorize a kernel, a temporary array of half the
    # size of a float32 kernel is needed.
    entries, factors = exact_bytes(n, kernels, itemsize)
    single = entries == 4 * kernels * n * n
    return entries + (4 * apart * n * n if single else factors) + 2 * n * n + tall_bytes(n, columns)


def copied_bytes(views: Mapping[str, Rows]) -> int:
    """Compute the size in bytes of the rows in memory, which a model with exact kernels copies at the end of a fit."""
    in_memory = (source for source in views.values() if not is_lazy(source))
    return sum(stored_values(source).nbytes for source in in_memory)


def tile_peak(n: int, columns: int, here: int, widest: int = 0) -> int:
    """Estimate the peak memory of the client process in bytes for kernels in tiles, including n x `columns` blocks."""
    # The peak memory is the maximum over two stages. First, bandwidths are estimated from a sample of rows of the
    # widest dense view, and from the distances between these rows. Then, the client process holds `here`
    # preconditioners and the kernel columns from which one preconditioner is computed.
    sampled = min(n, SAMPLE)
    return max(tall_bytes(n, columns) + basis_bytes(n) * (here + (here > 0)), 4 * sampled * (3 * widest + sampled))


def basis_bytes(n: int) -> int:
    """Compute the size of a preconditioner in bytes."""
    return 4 * n * default_rank(n)


def read_bytes(source: Rows, n: int, block: int) -> int:
    """Estimate the memory in which one thread of a worker reads and prepares the rows of a tile, in bytes."""
    # Rows are read and prepared for the tile, its other side, and the columns of a preconditioner. A store reads a
    # chunk and copies rows from it.
    d, size = source.shape[1], np.dtype(source.dtype).itemsize
    chunk = min(chunk_rows(source), n) if is_lazy(source) else 0
    return int(d * (min(block, n) * (size + 8) + default_rank(n) * (size + 4) + 2 * chunk * size))


def moment_bytes(n: int, views: int, rank: int, labels: int) -> tuple[int, int, int]:
    """Estimate the size of the moments, and the memory of the client process and of a worker for a pass, in bytes.

    Four sums are in memory at the same time. The client also keeps row indices, and a worker keeps one bit per row.
    """
    columns = views * rank + labels
    gram = 8 * columns**2
    return gram, 4 * gram + 2 * 8 * n, 4 * gram + 2 * 4 * BLOCK * columns + n // 8


def resource_table(views: int, labels: int, rank: int) -> list[list[str]]:
    """Compute the table of `dmo plan --resources`, which plans fits with 5 000 to 10 million samples."""
    lines = [["samples", "engine", "this process", "workers", "one worker", "disk", "tasks", "at once", "scheduler"]]
    for n in (5_000, 20_000, 100_000, 1_000_000, 10_000_000):
        if n <= 20_000:
            lines.append([str(n), "exact, in process", amount(DRIVER + memory_peak(n, labels, views)), *["-"] * 6])
        if n <= 100_000:
            lines.append(_tile_line(n, views, labels, stored=False))
        if n == 100_000:
            lines.append(_tile_line(n, views, labels, stored=True))
        _, driver, worker = moment_bytes(n, views, rank, labels)
        graph = pass_graph(n, views * rank + labels, labels, n)
        own = [f"nystrom, rank {rank}", amount(DRIVER + driver), "1 or more", amount(WORKER + worker), "-"]
        lines.append([str(n), *own, *graph.cells()])
    return lines


def _tile_line(n: int, views: int, labels: int, stored: bool) -> list[str]:
    """Estimate a fit with float32 tiles on disk, or in the memory of as few one-thread workers as possible."""
    for workers in range(1, MOST_WORKERS):
        block = Exact().block if stored else tile_rows(n, workers, Exact().block)
        one = product_bytes(n, block, labels, [1] * workers, False)
        kept = product_bytes(n, block, labels, [1] * workers, True) - one  # Size of the tiles of one view.
        worker = WORKER + one + (0 if stored else views * kept) + basis_bytes(n) * (views + _MADE) // workers
        if worker <= LARGEST or stored:
            break
    graph = tile_graph(n, block, workers, views, 1, labels, not stored)
    found = ["1 or more" if stored else str(workers), amount(worker)]
    found.append(amount(2 * n * (n + block) * views) if stored else "-")
    name = "exact, " + ("stored" if stored else "resident")
    return [str(n), name, amount(DRIVER + tile_peak(n, labels, 0)), *found, *graph.cells()]


def markdown(lines: list[list[str]]) -> str:
    """Format a table as Markdown."""
    texts = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([texts[0], "|" + "---|" * len(lines[0]), *texts[1:]]) + "\n"


_LOOKED_AT = 1024  # Number of rows in which categories are counted.


@dataclass(frozen=True)
class Plan:
    """Estimated resources of a fit. Sizes are in bytes, and a size without an estimate is 0."""

    engine: str  # Engine of the fit.
    storage: str  # Location of the kernels, or the data structure that replaces kernels.
    kernel_bytes: int  # Size of the kernels, or of the data structure that replaces kernels.
    factor_bytes: int  # Size of the matrix factors.
    model_bytes: int  # Size of the model on disk.
    peak_bytes: int  # Peak memory of the client process, including its memory before the fit.
    reason: str = ""  # Reason for the choice of the engine or the storage, empty if the user chose it.
    worker_bytes: int = 0  # Peak memory of a worker, or 0 if the fit runs in the client process.
    graph: TaskGraph | None = None  # Estimated task graph, or None if the fit runs in the client process.
    held_bytes: int = 0  # Memory of the client process before the fit.

    def to_dict(self) -> dict[str, Any]:
        """Convert the plan to a dictionary that can be saved as JSON."""
        return asdict(self)

    def cells(self) -> dict[str, str]:
        """Format the plan as the cells of a table row, by column title."""
        graph = ["-"] * 3 if self.graph is None else self.graph.cells()
        return {
            "engine": self.engine,
            "where": self.storage,
            "kernels": amount(self.kernel_bytes),
            "factors": amount(self.factor_bytes),
            "model": amount(self.model_bytes),
            "this process": amount(self.peak_bytes) if self.peak_bytes else "-",
            "a worker": amount(self.worker_bytes) if self.worker_bytes else "-",
            "tasks": graph[0],
            "scheduler": graph[2],
        }

    def rows(self) -> list[tuple[str, str]]:
        """Format the plan as table rows of a name and a value."""
        reason = [("reason", self.reason)] if self.reason else []
        return [*reason, *((name, value) for name, value in self.cells().items() if value != "-")]


def kernel_count(estimator: Any, views: int) -> int:
    """Return the number of n x n kernels that an estimator computes from `views` views."""
    joined = getattr(estimator, "combine", "predictions") != "predictions" or is_regressor(estimator)
    return 1 if joined or is_product(getattr(estimator, "kernel", None)) else views


def plan_fit(estimator: Any, views: Mapping[str, Rows], labels: int, n: int | None = None) -> Plan | None:
    """Estimate the resources of a fit to `n` samples of the views; return None if the costs cannot be estimated.

    The default of `n` is the number of rows of the views.
    """
    found = _planned(estimator, views, labels, n)
    if found is None:
        return None
    held = max(psutil.Process().memory_info().rss, DRIVER)
    peak, worker = found.peak_bytes and held + found.peak_bytes, found.worker_bytes and WORKER + found.worker_bytes
    return replace(found, held_bytes=held, peak_bytes=peak, worker_bytes=worker)


def _planned(estimator: Any, views: Mapping[str, Rows], labels: int, n: int | None) -> Plan | None:
    """Estimate the additional resources of a fit, without the memory that processes use before the fit."""
    source = next(iter(views.values()))
    n = source.shape[0] if n is None else n
    if isinstance(estimator, (FastTag, NeighborVotes)):
        return _planned(_base_of(estimator, n, len(views)), views, labels, n)
    if not hasattr(estimator, "approximation") or _on_features(estimator):
        return _without_engine(estimator, views, n, labels)
    if isinstance(estimator, Projection) and getattr(estimator, "kernel", "linear") == "linear":
        return _linear_plan(n, source.shape[1], estimator.n_components)
    kernels = kernel_count(estimator, len(views))
    engine, reason = reasoned_engine(estimator.approximation, n, kernels)
    if by_gradients(engine) and isinstance(estimator, MultiViewRidge):
        return _landmark_plan(engine, n, labels, views)
    if not is_exact(engine):
        return _moment_plan(engine, n, labels, views, reason)
    return _exact_plan(estimator, Exact() if isinstance(engine, str) else engine, n, labels, views, kernels, reason)


def _width(views: Mapping[str, Rows]) -> int:
    """Compute the size of one row of all views in bytes."""
    return sum(source.shape[1] * np.dtype(source.dtype).itemsize for source in views.values())


def _base_of(estimator: FastTag | NeighborVotes, n: int, views: int) -> Any:
    """Return the base model of an estimator that refines the scores of another model."""
    given = load(estimator.base) if isinstance(estimator.base, str) else estimator.base
    return estimator._default_base(n, views) if given is None else given


def _exact_plan(
    estimator: Any, engine: Exact, n: int, labels: int, views: Mapping[str, Rows], kernels: int, reason: str
) -> Plan:
    """Estimate a fit with exact kernels; embeddings keep all kernels in memory, and regressions keep one at a time."""
    spectral = isinstance(estimator, (HomogeneityEmbedding, Projection))
    count = estimator.n_components if spectral else labels
    wanted = round(count * labels) if isinstance(count, float) else count
    columns = max(labels, wanted)
    held, model = kernels if spectral else 1, n * _width(views) + 8 * n * columns * kernels
    given = getattr(estimator, "kernel", "linear")
    by_view = {} if is_product(given) else per_view("kernel", given, list(views))
    if by_view and all(isinstance(parse(kernel), Linear) for kernel in by_view.values()):
        d = sum(source.shape[1] for source in views.values())
        numbers, model = n * d, 8 * columns * (d + n * spectral)
        return Plan("exact", "rows", 8 * numbers, 8 * numbers, model, 16 * numbers + tall_bytes(n, columns), reason)
    storage, why = reasoned_storage(engine, n, kernels, 8 if is_regressor(estimator) else None)
    reason = reason or why
    if storage == "memory":
        entries, factors = exact_bytes(n, held)
        peak = memory_peak(n, columns, held, not spectral, 8 if engine.precision == "float64" else None)
        # At the end of the fit, the rows are copied after the kernels have been deleted.
        peak = max(peak, copied_bytes(views) + tall_bytes(n, columns))
        # To learn label sets, an embedding is also fitted on a part of the samples.
        if spectral and getattr(estimator, "_decides", False):
            peak = max(peak, memory_peak(min(n - n // 4, HELD_OUT_ROWS), columns, held))
        return Plan("exact", storage, entries, factors, model, peak, reason)
    client = current_client()
    threads = [thread_count()] if client is None else list(client.nthreads().values()) or [1]
    pairwise = {view for view, kernel in by_view.items() if parse(kernel).pairwise}
    dense = [source for view, source in views.items() if view not in pairwise and not reads_sparse(source)]
    resident = storage == "resident"
    peak = tile_peak(n, columns, held if client is None else 0, max((source.shape[1] for source in dense), default=0))
    block = engine.block if client is None or storage == "stored" else tile_rows(n, sum(threads), engine.block)
    one = product_bytes(n, block, columns, threads, False)
    kept = product_bytes(n, block, columns, threads, True) - one
    work = one + resident * held * kept
    tiles = 0 if storage == "recomputed" else 2 * n * (n + block) * kernels
    if client is None:
        return Plan("exact", storage, tiles, peak, model, peak + work, reason)
    graph = tile_graph(n, block, sum(threads), kernels, 1, columns, resident)
    useful = useful_threads(n, engine.block, columns, sum(threads), storage == "stored")
    reason = _with_useful(reason, useful, sum(threads))
    work += basis_bytes(n) * (held + _MADE) // len(threads)
    if storage != "stored":
        work += max(threads) * max((read_bytes(source, n, block) for source in dense), default=0)
    if spectral:
        als = isinstance(estimator, HomogeneityEmbedding) and estimator._solver.method != "krylov"
        widest = 3 * wanted if als else basis_columns(columns, wanted)
        work += 8 * n * _BASES * min(n, widest) // len(threads)
    return Plan("exact", storage, tiles, peak, model, peak, reason, work, graph)


def _with_useful(reason: str, useful: int, threads: int) -> str:
    """Append the useful number of worker threads to the reason of a plan if there are more threads."""
    return reason if threads <= useful else f"{reason}; " * bool(reason) + f"{useful} worker threads are of use"


def _moment_plan(engine: Any, n: int, labels: int, views: Mapping[str, Rows], reason: str) -> Plan:
    """Estimate the memory of a fit with low-rank kernels, including the rows that are read to choose landmarks."""
    clusters = getattr(engine, "clusters", 1) if isinstance(engine, Meka) else 1
    each = 1000 if engine.rank == "auto" else engine.rank
    rank, count = min(n, each * clusters), len(views)
    learned = min(n, learning_rows(engine.fit_rows, engine.rank, getattr(engine, "landmarks", "rpcholesky"), clusters))
    gram, peak, worker = moment_bytes(n, count, rank, labels)
    width = sum(source.shape[1] for source in views.values())
    model = 4 * rank * width + 8 * count * rank * (rank // clusters + labels)
    name = f"{type(engine).__name__}, " + (f"{clusters} x {each}" if clusters > 1 else f"rank {rank}")
    peak += 8 * learned * each
    client = current_client()
    if client is None:
        return Plan(name, "moments", gram, 2 * gram, model, peak, reason)
    columns = count * rank + labels
    graph, parts = pass_graph(n, columns, labels, n), -(-n // (BLOCK * task_blocks(n, columns)))
    reason = _with_useful(reason, parts, sum(client.nthreads().values()))
    return Plan(name, "moments", gram, 2 * gram, model, peak, reason, worker, graph)


def _landmark_plan(engine: Nystrom, n: int, labels: int, views: Mapping[str, Rows]) -> Plan:
    """Estimate a fit on kernel values at landmarks, which are recomputed if they exceed the memory limit."""
    rank = min(n, 1000 if engine.rank == "auto" else engine.rank)
    by_rows, held = solved_by_rows(rank, labels), 4 * n * rank
    model = 4 * rank * sum(source.shape[1] for source in views.values()) + 8 * len(views) * rank * labels
    factors = 8 * rank**2 * (2 if by_rows else 1)
    road = "normal equations" if by_rows else "conjugate gradients"
    kept = min(held, kept_bytes())
    peak = kept + factors + tall_bytes(n, labels)
    return Plan(f"Nystrom, rank {rank}", road, held, factors, model, peak)


def _linear_plan(n: int, d: int, components: int) -> Plan:
    """Estimate a linear projection from the d x d moments of features, or from the n x n Gram matrix if n < d."""
    side = min(n, d)
    storage = f"{side} x {side} {'moments' if d <= n else 'products of rows'}"
    return Plan("exact", storage, 8 * side**2, 8 * side**2, 8 * d * components, 0)


def _on_features(estimator: Any) -> bool:
    """Return whether an estimator solves its problem in memory on features or on similarities to landmarks."""
    if isinstance(estimator, TraceEmbedding):
        method = METHODS.get(estimator.method)  # An unknown method raises an error in the fit.
        if method is None or method.family == "global":
            return False
    own = isinstance(estimator, (MOPE, MESD, TraceEmbedding))
    return own and is_exact(getattr(estimator, "approximation", "exact"))


def _without_engine(estimator: Any, views: Mapping[str, Rows], n: int, labels: int) -> Plan | None:
    """Estimate the fit of an estimator that has no parameter `approximation`."""
    source, width = next(iter(views.values())), _width(views)
    if isinstance(estimator, LabelPropagation):
        edges = 2 * n * estimator._graph.n_neighbors  # A symmetric k-NN graph has about 2 k edges per sample.
        return Plan("graph", "memory", 12 * edges, 8 * n * labels * 4, n * (width + 8 * labels), 0)
    if isinstance(estimator, HomogeneityAnalysis):
        first = np.asarray(rows(source, slice(0, _LOOKED_AT)))
        categories = sum(len(np.unique(column)) for column in first.T)
        held = 16 * n * categories
        model = 8 * (n + categories) * estimator.n_components
        return Plan("table", f"{categories} categories", held, held, model, 0)
    if isinstance(estimator, DistanceAnnotator):
        block, near = 4 * QUERIES * n * (len(views) + 1), n * estimator.n_neighbors * (8 + 4 * len(views))
        return Plan("distances", "rows of all views", block, near, n * (width + labels), 0)
    return _feature_plan(estimator, n, source) if _on_features(estimator) else None


def _feature_plan(estimator: Any, n: int, source: Rows) -> Plan | None:
    """Estimate a fit on n x p features with p x p matrices; return None if the costs depend on the labels."""
    # The costs depend on the labels if neighbors are searched for within classes, or if samples are reconstructed from
    # other samples.
    entry = METHODS.get(getattr(estimator, "method", ""))
    if entry is not None and (
        entry.direct or entry.family != "supervised" or {"n_neighbors", "n_repelled"} & set(entry.parameters)
    ):
        return None
    d, similarity = source.shape[1], parse_relation(estimator.kernel)
    plain = estimator.n_landmarks is None and isinstance(similarity, Linear) and similarity.normalize is None
    p = d if plain else min(n, estimator.n_landmarks or n)
    held, model = 8 * n * p, 8 * p * estimator.n_components + (0 if plain else n * d * 4)
    storage = f"{n} x {p} {'features' if plain else 'similarities'}"
    whole = relation_bytes(n, p)
    return Plan("exact", storage, held, whole - held, model, whole)


def compare_engines(
    estimator: Any, views: Mapping[str, Rows], labels: int, n: int, rank: int, clusters: int
) -> tuple[dict[str, Plan], str]:
    """Estimate a fit with each engine of an estimator.

    Also return the name of the engine that the value "auto" of `approximation` selects, with the reason.
    """
    if isinstance(estimator, (FastTag, NeighborVotes)):
        estimator = _base_of(estimator, n, len(views))
    linear = isinstance(estimator, Projection) and getattr(estimator, "kernel", "linear") == "linear"
    if not hasattr(estimator, "approximation") or _on_features(estimator) or linear:
        found = plan_fit(estimator, views, labels, n)
        if found is None:
            raise UserError(
                f"the cost of {type(estimator).__name__} depends on the labels; fit it on fewer samples to measure it"
            )
        return {"exact": found}, "exact"
    engines: dict[str, Any] = {"exact": "exact"}
    if not is_product(getattr(estimator, "kernel", None)):  # Product kernels have no low-rank form.
        engines |= {"nystrom": Nystrom(rank=rank), "meka": Meka(clusters=clusters, rank=max(1, rank // clusters))}
    plans = {}
    for name, engine in engines.items():
        found = plan_fit(clone(estimator).set_params(approximation=engine), views, labels, n)
        assert found is not None
        plans[name] = found
    if len(plans) == 1:
        return plans, "exact"
    return plans, reasoned_engine("auto", n, kernel_count(estimator, len(views)))[1]
