"""Costs of products with tiles on workers, by samples and workers: CPU seconds, tasks, transfers, and their growth.

    python pipelines/benchmarks/law.py [--samples 4000 8000 16000] [--workers 2 4] [--fits ridge KGHA ALS MORP] [--check]

The kernel of generated samples (100 features) is resident on a LocalCluster of single-threaded workers. Measured are a
product with 268 columns held by this process, a step of conjugate gradients for 268 columns whose row blocks stay on
the workers, and whole fits with 268 labels (50 components; alternating least squares stop after three steps). "Driver"
is this process including the scheduler. "Moved" counts the float32 numbers sent between workers, in units of n x k. CPU
seconds exclude the time of idle processes.

The second table is the speedup over one worker predicted from these values. The model is a + b workers + c n for the
driver and d n + e n^2 for the workers (least squares), one after the other. `--check` exits with an error if a value
exceeds `BOUNDS`. One BLAS thread; Linux only.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from typing import Any

os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import numpy as np
import scipy.optimize
from _processes import spent_everywhere
from distributed import Client, LocalCluster
from distributed.diagnostics.plugin import SchedulerPlugin
from large_kernels import idle_shares
from rich.console import Console
from rich.table import Table
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from dmo import KGHA, MORP, Exact, MultiViewRidge, Solver
from dmo.decoders import Scores
from dmo.kernels import RBF
from dmo.kernels.multikernel import FeatureTiles, MultiKernel
from dmo.linalg.cg import BlockCG, NystromPreconditioner, default_rank
from dmo.linalg.tiles import Tiles, tile_rows
from dmo.workflows.program import option_parser

COLUMNS, REPEATS = 268, 5
RESIDENT, PLAIN = Exact("resident"), Scores(label_sets=False)
FITS = {
    "ridge": MultiViewRidge("rbf", ridge=0.1, approximation=RESIDENT, decoder=PLAIN),
    "KGHA": KGHA("rbf", n_components=50, approximation=RESIDENT, decoder=PLAIN),
    "ALS": KGHA("rbf", n_components=50, approximation=RESIDENT, decoder=PLAIN, solver=Solver("als", max_iter=3)),
    "MORP": MORP("rbf", ridge=0.1, n_components=50, approximation=RESIDENT),
}
MANY = [(n, workers) for n in (200_000, 1_000_000) for workers in (1, 16, 64, 256)]
BOUNDS = {
    "nk moved a product, by workers": {2: 2.2, 4: 3.2},
    "tasks a step, and a worker": 14.0,
    # If the driver held blocks of n x k, the exponent would be 1.
    "exponent of n in the driver's CPU seconds a step": 0.8,
    "driver's share of a step, of the workers' CPU seconds, at the most samples": 0.06,
    "driver's share of a fit, of the workers' CPU seconds, at the most samples": {
        "ridge": 0.08,
        "KGHA": 0.09,
        "ALS": 0.2,
        "MORP": 0.22,
    },
}


class Counted(SchedulerPlugin):
    """Counter of finished tasks."""

    tasks = 0

    def transition(self, key: Any, start: str, finish: str, *arguments: Any, **named: Any) -> None:
        self.tasks += start == "processing" and finish == "memory"


def received(dask_worker: Any) -> int:
    return sum(entry["total"] for entry in dask_worker.transfer_incoming_log)


class Meter:
    """Costs since the last reading: CPU seconds of this process and of all workers, tasks, bytes between workers."""

    def __init__(self, client: Any, counted: Counted):
        self.client, self.counted = client, counted
        self.idle = idle_shares(client)
        self.before = self.now()

    def now(self) -> np.ndarray:
        now = time.perf_counter()
        cpus = [cpu - now * idle for (cpu, _), idle in zip(spent_everywhere(self.client), self.idle, strict=True)]
        return np.array([cpus[0], sum(cpus[1:]), self.counted.tasks, sum(self.client.run(received).values())])

    def spent(self) -> np.ndarray:
        before, self.before = self.before, self.now()
        return self.before - before


def measured(n: int, workers: int, fits: list[str]) -> dict[str, np.ndarray]:
    """Measure a product, a step and fits: driver, workers, tasks, nk moved."""
    rng = np.random.default_rng(0)
    X = np.tanh(rng.normal(size=(n, 16)) @ rng.normal(size=(16, 100)) / 2) + 0.3 * rng.normal(size=(n, 100))
    B = rng.normal(size=(n, COLUMNS))
    place = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None, "memory_limit": "6GiB"}
    found = {}
    with LocalCluster(**place) as cluster, Client(cluster, direct_to_workers=True) as client:
        counted = Counted()
        cluster.scheduler.add_plugin(counted)
        block = tile_rows(n, workers, 2048)
        tiles = FeatureTiles(MultiKernel.of("x", RBF(8.0).fit(X)), {"x": X.astype(np.float32)}, block)
        A = Tiles(tiles, client, resident=True)
        A @ B.astype(np.float32)  # The first product computes the tiles.
        meter = Meter(client, counted)
        for _ in range(REPEATS):
            A @ B.astype(np.float32)
        found["product"] = meter.spent() / REPEATS
        solver = BlockCG(A, 0.1, NystromPreconditioner.of(A, default_rank(n), 0), 1e-6, 500)
        solver.solve(B, tol=0.5)  # The first solve sends the preconditioner.
        meter.spent()
        steps = solver.solve(B).iterations
        found["step"] = meter.spent() / steps
        del A, solver
        scores = X @ rng.normal(size=(100, COLUMNS))
        Y = (scores > np.quantile(scores, 0.98, axis=0)).astype(np.uint8)
        for name in fits:
            clone(FITS[name]).fit(X[:600], Y[:600])  # Load and compile everything before the measurement.
            meter.spent()
            clone(FITS[name]).fit(X, Y)
            found[name] = meter.spent()
    for spent in found.values():
        spent[3] /= 4 * B.size
    return found


def worth(found: dict[tuple[int, int], dict[str, np.ndarray]], what: str) -> list[float]:
    """Predict the speedups over one worker for the sizes in `MANY`."""
    sizes = np.array(list(found), float)
    spent = np.array([one[what] for one in found.values()])

    def terms(n: np.ndarray, workers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.column_stack([np.ones_like(n), workers, n]), np.column_stack([n, n**2])

    # Minimize relative errors.
    driver, work = (
        scipy.optimize.nnls(columns / values[:, None], np.ones(len(values)))[0]
        for columns, values in zip(terms(*sizes.T), spent.T[:2], strict=True)
    )
    many = np.array(MANY, float)
    of_driver, of_workers = terms(*many.T)
    whole = of_workers @ work
    return list(whole / (whole / many[:, 1] + of_driver @ driver))


def failures(found: dict[tuple[int, int], dict[str, np.ndarray]]) -> list[str]:
    """List the values that exceed their bounds."""
    moved, tasks, exponent, share, whole = BOUNDS.items()
    values: list[tuple[str, float, float]] = []
    for (n, workers), one in found.items():
        if workers in moved[1]:
            values.append((f"{moved[0]}, n {n}, {workers} workers", one["product"][3], moved[1][workers]))
        values.append((f"{tasks[0]}, n {n}, {workers} workers", one["step"][2] / workers, tasks[1]))
    least, most = min(n for n, _ in found), max(n for n, _ in found)
    for workers in {workers for _, workers in found}:
        first, last = found[least, workers]["step"], found[most, workers]["step"]
        if most > least:
            grown = float(np.log(last[0] / first[0]) / np.log(most / least))
            values.append((f"{exponent[0]}, {workers} workers", grown, exponent[1]))
        if workers == 2:
            values.append((f"{share[0]}, {workers} workers", last[0] / last[1], share[1]))
            for name, bound in whole[1].items():
                if name in found[most, workers]:
                    fit = found[most, workers][name]
                    values.append((f"{whole[0]}, {name}, {workers} workers", fit[0] / fit[1], bound))
    return [f"{what}: {value:.2f}, bound {bound:g}" for what, value, bound in values if not value <= bound]


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("--samples", type=int, nargs="*", default=[4000, 8000, 16_000])
    parser.add_argument("--workers", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--fits", nargs="*", choices=list(FITS), default=list(FITS))
    parser.add_argument("--check", action="store_true", help="exit with an error if a bound is exceeded")
    asked = parser.parse_args()
    table = Table("samples", "workers", "", "driver CPU s", "workers CPU s", "tasks", "nk moved")
    found = {}
    warnings.simplefilter("ignore", ConvergenceWarning)  # Three steps do not converge.
    for n in asked.samples:
        for workers in asked.workers:
            found[n, workers] = measured(n, workers, asked.fits)
            for what, (driver, work, tasks, moved) in found[n, workers].items():
                cells = f"{driver:.3f}", f"{work:.3f}", f"{tasks:.0f}", f"{moved:.2f}"
                table.add_row(str(n), str(workers), what, *cells)
                print(n, workers, what, *cells, flush=True)
    Console(width=120).print(table)
    if len(found) > 2:
        table = Table("speedup of", *(f"{workers}, n {n:.0e}" for n, workers in MANY))
        for what in next(iter(found.values())):
            table.add_row(what, *(f"{times:.1f}" for times in worth(found, what)))
        Console(width=120).print(table)
    passed = failures(found)
    print("\n".join(passed) or "all within their bounds")
    if asked.check and passed:
        sys.exit(1)


if __name__ == "__main__":
    main()
