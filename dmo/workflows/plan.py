"""What a fit will take, before it starts: its engine and the reason, bytes, and tasks, from what the engines say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import psutil
import scipy.sparse
from sklearn.base import clone, is_regressor

from dmo.blocks import Rows, rows
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
from dmo.kernels.multikernel import is_product
from dmo.kernels.pairs import SAMPLE
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
"""Bytes of a scheduler that holds nothing, in an environment with dmo."""
_TASK = 8 << 10
"""Bytes of a task in a scheduler, with its history."""
_OTHERS = 4
"""Tasks beside those of a stage: the data that are sent."""
DRIVER, WORKER = 420 << 20, 380 << 20
"""Bytes of this process, and of a worker, that hold nothing but what a fit loads, of which compiled loops are 160 MiB."""
_TASK_SECONDS, _PRODUCT_SECONDS = 1.2e-3, 4e-11
"""What a task costs the scheduler and this process, and a product a worker for an entry of the kernel and a column."""
LARGEST = 4 << 30
"""Bytes of the largest worker that is asked for."""
MOST_WORKERS = 4096
_TALL, _MADE, _BASES = 6, 4, 3
"""Blocks of one column a label that this process holds beside kernels; copies of a preconditioner while workers make one; and
of the basis of a search: it, its images, and one that a block is joined to."""


@dataclass(frozen=True)
class TaskGraph:
    """What a scheduler has to do with a pass or a product: `tasks` in all, the most that it holds at a time, and its memory
    (bytes) at most; what passes through it is there once."""

    tasks: int
    held: int
    scheduler_bytes: int

    def cells(self) -> list[str]:
        """Tasks, the most at a time, the scheduler's memory."""
        return [str(self.tasks), str(self.held), amount(self.scheduler_bytes)]


def _graph(tasks: int, held: int, moved: int) -> TaskGraph:
    return TaskGraph(tasks, held, SCHEDULER + held * _TASK + moved)


def pass_graph(n: int, columns: int, labels: int, sent: int = 0) -> TaskGraph:
    """The graph of one pass over n rows: tasks of fixed size, and the sums of their moments in trees, which are added one to
    the other.
    """
    # Arguments: `columns` of the moments (m, of all views and labels together); `labels` of them; `sent`: bytes of
    # what lies in memory of the views. What is sent, the labels of a segment and the last sum (m x m, float64) pass
    # through the scheduler, which holds all tasks that the sum so far was made from.
    size = BLOCK * task_blocks(n, columns)
    parts = -(-n // size)
    tasks = 2 * parts - 1
    return _graph(tasks, tasks + _OTHERS, max(sent, segment_tasks(parts) * size * labels, 8 * columns**2))


def tile_graph(
    n: int, block: int, threads: int, kernels: int, products: int, columns: int, resident: bool
) -> TaskGraph:
    """The graph of a solve with tiles: a group of tiles per thread, what it gives for the row parts that it touches, and the
    sums of these in trees."""
    # Arguments: `products` with each of `kernels` matrices n x n, with n x `columns` right-hand sides (float64),
    # which pass through the scheduler; `resident`: the groups stay in its list.
    groups, tasks = product_tasks(n, block, threads)
    kept = kernels * groups if resident else 0
    return _graph(kept + kernels * products * tasks, kept + tasks + _OTHERS, 8 * n * columns)


def useful_threads(n: int, block: int, columns: int, threads: int, stored: bool) -> int:
    """Count the worker threads from which on a product with tiles takes longer for its tasks than it gains."""

    def seconds(count: int) -> float:
        tasks = product_tasks(n, block if stored else tile_rows(n, count, block), count)[1]
        return _TASK_SECONDS * tasks + _PRODUCT_SECONDS * n * n * columns / count

    counts = [1]
    while counts[-1] < threads and (len(counts) < 2 or seconds(counts[-1]) <= seconds(counts[-2])):
        counts.append(min(2 * counts[-1], threads))
    return min(counts, key=seconds)


def tall_bytes(n: int, columns: int) -> int:
    """Bytes of the blocks of n x columns that this process holds beside kernels: labels, right-hand sides, solutions."""
    return 8 * n * columns * _TALL


def memory_peak(n: int, columns: int, kernels: int, apart: bool = False, itemsize: int | None = None) -> int:
    """Bytes of this process with so many kernels in memory, beside blocks of n x columns."""
    # A float32 factor lies in one array with its kernel; `apart`: not where held-out rows are factorized last, as in
    # regressions. Half of a float32 matrix more is what it is made and factorized with.
    entries, factors = exact_bytes(n, kernels, itemsize)
    single = entries == 4 * kernels * n * n
    return entries + (4 * apart * n * n if single else factors) + 2 * n * n + tall_bytes(n, columns)


def copied_bytes(views: Mapping[str, Rows]) -> int:
    """Bytes of the rows in memory that a model with exact kernels copies at the end of its fit."""
    in_memory = (source for source in views.values() if not is_lazy(source))
    return sum(source.data.nbytes if scipy.sparse.issparse(source) else source.nbytes for source in in_memory)  # type: ignore[attr-defined]


def tile_peak(n: int, columns: int, here: int, widest: int = 0) -> int:
    """Bytes of this process beside tiles: blocks of n x columns, `here` preconditioners and the columns one is made of; or
    what the bandwidth of the widest dense view takes before: a sample's rows, prepared, and distances."""
    sampled = min(n, SAMPLE)
    return max(tall_bytes(n, columns) + basis_bytes(n) * (here + (here > 0)), 4 * sampled * (3 * widest + sampled))


def basis_bytes(n: int) -> int:
    """Bytes of a preconditioner."""
    return 4 * n * default_rank(n)


def moment_bytes(n: int, views: int, rank: int, labels: int) -> tuple[int, int, int]:
    """Bytes of the moments of all views and labels together, of this process, and of a worker, beside what lies there.

    Four sums at a time; in this process numbers of the rows of a split, in a worker a bit for each, and some rows.
    """
    columns = views * rank + labels
    gram = 8 * columns**2
    return gram, 4 * gram + 2 * 8 * n, 4 * gram + 2 * 4 * BLOCK * columns + n // 8


def resource_table(views: int, labels: int, rank: int) -> list[list[str]]:
    """Work out what a fit takes for 5 000 to 10 million samples: what `dmo plan --resources` prints."""
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
    """float32 tiles streamed from a disk, or in the memory of the fewest workers of one thread that hold them."""
    for workers in range(1, MOST_WORKERS):
        block = Exact().block if stored else tile_rows(n, workers, Exact().block)
        one = product_bytes(n, block, labels, [1] * workers, False)
        kept = product_bytes(n, block, labels, [1] * workers, True) - one  # each view has its tiles
        worker = WORKER + one + (0 if stored else views * kept) + basis_bytes(n) * (views + _MADE) // workers
        if worker <= LARGEST or stored:
            break
    graph = tile_graph(n, block, workers, views, 1, labels, not stored)
    found = ["1 or more" if stored else str(workers), amount(worker)]
    found.append(amount(2 * n * (n + block) * views) if stored else "-")
    name = "exact, " + ("stored" if stored else "resident")
    return [str(n), name, amount(DRIVER + tile_peak(n, labels, 0)), *found, *graph.cells()]


def markdown(lines: list[list[str]]) -> str:
    """Write a table in Markdown."""
    texts = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([texts[0], "|" + "---|" * len(lines[0]), *texts[1:]]) + "\n"


_LOOKED_AT = 1024  # rows whose categories are counted


@dataclass(frozen=True)
class Plan:
    """What a fit takes, as far as its engine says so."""

    engine: str  # what the fit goes by
    storage: str  # where kernels are, or what takes their place
    kernel_bytes: int  # of kernels, or of what takes their place
    factor_bytes: int  # of what is solved with
    model_bytes: int  # on disk
    peak_bytes: int  # at most in this process, with what it holds before; 0: the engine does not say
    reason: str = ""  # why this engine or storage was chosen; empty: it was asked for
    worker_bytes: int = 0  # at most on a worker that held nothing; 0: it runs in this process
    graph: TaskGraph | None = None
    held_bytes: int = 0  # of this process without the fit

    def to_dict(self) -> dict[str, Any]:
        """Describe the plan as JSON."""
        return asdict(self)

    def cells(self) -> dict[str, str]:
        """Write the plan as words."""
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
        """Write the plan as lines of a table."""
        reason = [("reason", self.reason)] if self.reason else []
        return [*reason, *((name, value) for name, value in self.cells().items() if value != "-")]


def kernel_count(estimator: Any, views: int) -> int:
    """Count the n x n kernels that an estimator makes of so many views."""
    joined = getattr(estimator, "combine", "predictions") != "predictions" or is_regressor(estimator)
    return 1 if joined or is_product(getattr(estimator, "kernel", None)) else views


def plan_fit(estimator: Any, views: Mapping[str, Rows], labels: int, n: int | None = None) -> Plan | None:
    """Say what `estimator.fit` takes.

    views (n, d)
    """
    found = _planned(estimator, views, labels, n)
    if found is None:
        return None
    held = max(psutil.Process().memory_info().rss, DRIVER)
    peak, worker = found.peak_bytes and held + found.peak_bytes, found.worker_bytes and WORKER + found.worker_bytes
    return replace(found, held_bytes=held, peak_bytes=peak, worker_bytes=worker)


def _planned(estimator: Any, views: Mapping[str, Rows], labels: int, n: int | None) -> Plan | None:
    """What the fit takes beside what processes hold before."""
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
    """Bytes of a row of all views."""
    return sum(source.shape[1] * np.dtype(source.dtype).itemsize for source in views.values())


def _base_of(estimator: FastTag | NeighborVotes, n: int, views: int) -> Any:
    """The model that its labels, or votes, start from."""
    given = load(estimator.base) if isinstance(estimator.base, str) else estimator.base
    return estimator._default_base(n, views) if given is None else given


def _exact_plan(
    estimator: Any, engine: Exact, n: int, labels: int, views: Mapping[str, Rows], kernels: int, reason: str
) -> Plan:
    """Kernels of all samples: those of embeddings are held together, regressions take one after the other."""
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
        # Rows are copied when kernels are no longer held.
        peak = max(peak, copied_bytes(views) + tall_bytes(n, columns))
        if spectral and getattr(
            estimator, "_decides", False
        ):  # by a fit on a part of the samples, in float64 if it is small
            peak = max(peak, memory_peak(min(n - n // 4, HELD_OUT_ROWS), columns, held))
        return Plan("exact", storage, entries, factors, model, peak, reason)
    client = current_client()
    threads = [thread_count()] if client is None else list(client.nthreads().values()) or [1]
    dense = [source.shape[1] for source in views.values() if not scipy.sparse.issparse(rows(source, slice(0, 0)))]
    resident = storage == "resident"
    peak = tile_peak(n, columns, held if client is None else 0, max(dense, default=0))
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
    if spectral:
        als = isinstance(estimator, HomogeneityEmbedding) and estimator._solver.method == "als"
        widest = 3 * wanted if als else basis_columns(columns, wanted)
        work += 8 * n * _BASES * min(n, widest) // len(threads)
    return Plan("exact", storage, tiles, peak, model, peak, reason, work, graph)


def _with_useful(reason: str, useful: int, threads: int) -> str:
    """The reason, and how many worker threads are of use where there are more."""
    return reason if threads <= useful else f"{reason}; " * bool(reason) + f"{useful} worker threads are of use"


def _moment_plan(engine: Any, n: int, labels: int, views: Mapping[str, Rows], reason: str) -> Plan:
    """Moments of factor rows from one pass, beside the rows that feature maps are learned from."""
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
    """Kernel values at landmarks, of one view after the other; made again in every pass where they are too many."""
    rank = min(n, 1000 if engine.rank == "auto" else engine.rank)
    by_rows, held = solved_by_rows(rank, labels), 4 * n * rank
    model = 4 * rank * sum(source.shape[1] for source in views.values()) + 8 * len(views) * rank * labels
    factors = 8 * rank**2 * (2 if by_rows else 1)
    road = "normal equations" if by_rows else "conjugate gradients"
    kept = min(held, kept_bytes())
    peak = kept + factors + tall_bytes(n, labels)
    return Plan(f"Nystrom, rank {rank}", road, held, factors, model, peak)


def _linear_plan(n: int, d: int, components: int) -> Plan:
    """A linear projection: the d x d moments of the rows, or the n x n products of them where n is smaller."""
    side = min(n, d)
    storage = f"{side} x {side} {'moments' if d <= n else 'products of rows'}"
    return Plan("exact", storage, 8 * side**2, 8 * side**2, 8 * d * components, 0)


def _on_features(estimator: Any) -> bool:
    """Whether it solves a problem of the samples on their features in memory, or their similarities to some of them."""
    if isinstance(estimator, TraceEmbedding):
        method = METHODS.get(estimator.method)  # an unknown name is refused by the fit
        if method is None or method.family == "global":
            return False
    own = isinstance(estimator, (MOPE, MESD, TraceEmbedding))
    return own and is_exact(getattr(estimator, "approximation", "exact"))


def _without_engine(estimator: Any, views: Mapping[str, Rows], n: int, labels: int) -> Plan | None:
    """What an estimator takes that has no choice of engines."""
    source, width = next(iter(views.values())), _width(views)
    if isinstance(estimator, LabelPropagation):
        edges = 2 * n * estimator._graph.n_neighbors  # symmetric: about twice as many as neighbors
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
    """Features (n x p), forms of them (p x p). None where neighbors are sought class by class, or every sample is
    reconstructed from others: how many, the labels decide."""
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
    """Say what a fit takes with every engine that the estimator has.

    views (n, d)
    """
    if isinstance(estimator, (FastTag, NeighborVotes)):
        estimator = _base_of(estimator, n, len(views))
    linear = isinstance(estimator, Projection) and getattr(estimator, "kernel", "linear") == "linear"
    if not hasattr(estimator, "approximation") or _on_features(estimator) or linear:
        found = plan_fit(estimator, views, labels, n)
        if found is None:
            raise UserError(
                f"the labels decide what a fit of {type(estimator).__name__} takes; fit it on fewer samples"
            )
        return {"exact": found}, "exact"
    engines: dict[str, Any] = {"exact": "exact"}
    if not is_product(getattr(estimator, "kernel", None)):  # which has no low-rank form
        engines |= {"nystrom": Nystrom(rank=rank), "meka": Meka(clusters=clusters, rank=max(1, rank // clusters))}
    plans = {}
    for name, engine in engines.items():
        found = plan_fit(clone(estimator).set_params(approximation=engine), views, labels, n)
        assert found is not None
        plans[name] = found
    if len(plans) == 1:
        return plans, "exact"
    return plans, reasoned_engine("auto", n, kernel_count(estimator, len(views)))[1]
