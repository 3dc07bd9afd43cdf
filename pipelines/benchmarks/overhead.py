"""Overhead of the scheduler: its fraction of a fit's time at ESP Game's shape, and the tasks and memory that it holds.

    python pipelines/benchmarks/overhead.py [--scale 1] [--rank 300] [--rows 20000 100000] [--repeats 3]

The first table uses a LocalCluster of two single-threaded workers. It contains the time of the stage that runs on it
(the pass over the rows), the seconds that tasks computed on both workers together, and the remaining time of the stage
after subtracting half of these seconds: waiting, transfer, and a last task that runs alone. "scheduler" is the CPU time
of the scheduler thread. The second table uses a scheduler in a separate process. It contains the number of tasks
submitted and held at once, and the peak memory, next to the values that `dmo plan` predicts for the same rows.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from _espgame import VIEWS, fit, make_store
from distributed import Client, LocalCluster
from distributed.diagnostics.plugin import SchedulerPlugin
from rich.console import Console
from rich.table import Table

from dmo import KGHA, Nystrom
from dmo.cluster import connect
from dmo.progress import bars
from dmo.workflows.plan import pass_graph
from dmo.workflows.program import option_parser

PASS = "pass over the rows"


def _scheduler_seconds(dask_scheduler: Any) -> float:
    return time.thread_time()


def shares(scale: float, rank: int, repeats: int, work: Path) -> None:
    """Print the first table: `repeats` fits after a warm-up fit."""
    store = make_store(work / "espgame.zarr", scale, VIEWS)
    table = Table(
        "fit, s", "pass, s", "tasks", "tasks computed, s", "of it / 2", "rest of the pass", "rest / fit", "scheduler, s"
    )
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster,
        connect(cluster.scheduler_address) as backend,
    ):
        backend.client.wait_for_workers(2)
        backend.client.get_task_stream()  # The first call starts the recording.
        fit(store, rank)
        for _ in range(repeats):
            before = backend.client.run_on_scheduler(_scheduler_seconds)
            start, began = time.time(), time.perf_counter()
            with bars(disable=True) as stages:
                fit(store, rank)
            whole = time.perf_counter() - began
            used = backend.client.run_on_scheduler(_scheduler_seconds) - before
            stream = backend.client.get_task_stream(start=start)
            spans = [
                (s["stop"] - s["start"]) for task in stream for s in task["startstops"] if s["action"] == "compute"
            ]
            rest = stages[PASS] - sum(spans) / 2
            table.add_row(
                f"{whole:.2f}",
                f"{stages[PASS]:.2f}",
                str(len(stream)),
                f"{sum(spans):.2f}",
                f"{sum(spans) / 2:.2f}",
                f"{rest:.2f}",
                f"{100 * rest / whole:.1f} %",
                f"{used:.3f} ({100 * used / whole:.1f} %)",
            )
    Console(width=140).print(f"{store.n_samples} samples, {len(VIEWS)} views, rank {rank}", table)


class Counter(SchedulerPlugin):
    """Counter of the tasks submitted to a scheduler, and of the maximum number held at once."""

    def __init__(self) -> None:
        self.given = self.most = 0
        self.scheduler: Any = None

    async def start(self, scheduler: Any) -> None:
        self.scheduler = scheduler

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        self.given += start == "released" and finish in ("waiting", "no-worker", "queued", "processing")
        self.most = max(self.most, len(self.scheduler.tasks))


def _counts(dask_scheduler: Any) -> tuple[int, int]:
    counter = dask_scheduler.plugins["counter"]
    return counter.given, counter.most


def hold(rows: int, views: int, dimension: int, labels: int, rank: int, folder: Path) -> list[str]:
    """Measure a scheduler in a separate process during a fit; return a line of the second table with the plan."""
    rng = np.random.default_rng(0)
    X = {f"view {v}": rng.standard_normal((rows, dimension)).astype(np.float32) for v in range(views)}
    Y = (rng.random((rows, labels)) < 0.02).astype(np.uint8)
    Y[:, 0] = 1 - Y[:, 1]
    program, file = str(Path(sys.executable).parent / "dask"), folder / f"{rows}.json"
    common = ["--scheduler-file", str(file), "--dashboard-address", "127.0.0.1:0"]
    worker = [program, "worker", "--nworkers", "2", "--nthreads", "1", "--host", "127.0.0.1", *common]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([program, "scheduler", "--host", "127.0.0.1", "--port", "0", *common], **quiet) as scheduler:  # type: ignore[call-overload]
        while not file.is_file():
            time.sleep(0.1)
        with (
            subprocess.Popen(worker, **quiet) as workers,
            Client(scheduler_file=str(file), set_as_default=False) as client,
        ):  # type: ignore[call-overload]
            try:
                client.wait_for_workers(2)
                client.register_plugin(Counter(), name="counter")
                with connect(str(file)):
                    before = psutil.Process(scheduler.pid).memory_info().rss
                    engine = Nystrom(rank=rank, fit_rows=2000)
                    KGHA("rbf", approximation=engine, n_components=10, random_state=0).fit(X, Y)
                given, most = client.run_on_scheduler(_counts)
                peak = _peak(scheduler.pid)
            finally:
                workers.terminate()
                scheduler.terminate()
    sent = sum(part.nbytes for part in X.values())
    planned = pass_graph(rows, views * rank + labels, labels, sent)
    figures = [str(rows), str(given), str(planned.tasks), str(most), str(planned.held)]
    return [*figures, *(f"{size / 2**20:.0f}" for size in (before, peak, planned.scheduler_bytes))]


def _peak(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))


def main() -> None:
    parser = option_parser(__doc__, work=None)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the 20 770 rows of ESP Game; 0: skip")
    parser.add_argument("--rank", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, nargs="*", default=[20_000, 100_000], help="numbers of rows; none: skip")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(asked.work or temporary)
        work.mkdir(parents=True, exist_ok=True)
        if asked.scale:
            shares(asked.scale, asked.rank, asked.repeats, work)
        if asked.rows:
            table = Table(
                "rows", "tasks", "planned", "held at once", "planned", "MiB before", "peak MiB", "planned MiB"
            )
            for rows in asked.rows:
                table.add_row(*hold(rows, 4, 50, 268, asked.rank, Path(temporary)))
            Console(width=140).print(f"4 views of 50 columns, 268 labels, rank {asked.rank}", table)


if __name__ == "__main__":
    main()
