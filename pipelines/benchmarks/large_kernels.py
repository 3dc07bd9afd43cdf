"""Exact fits whose kernel is larger than a worker's or the machine's memory: seconds, CPU seconds, peaks and residual.

    python pipelines/benchmarks/large_kernels.py [--samples 50000] [--methods kgha] [--storages stored recomputed]
    python pipelines/benchmarks/large_kernels.py --like espgame --samples 18689 --storages stored [--scheduler slurm]

The data are a generated set (500 features, 100 labels, 4000 additional test samples), or a set with the shape of a
public one with all its views or `--views`, in a feature store on disk. Every fit runs in a separate process, without
label sets, on `--workers` single-threaded workers with `--memory-limit` each (0 workers: in process). Components are
computed by block Krylov steps (kgha, morp) or by at most `--steps` steps of alternating least squares with tol 1e-4
(als). "nystrom" is KGHA with a low-rank engine of `--rank` columns.

The table compares the peaks with the values that `dmo plan` predicts for this process and a worker. CPU seconds exclude
the CPU time of idle processes (0.03 of a core). "Residual" is the largest true residual of the last solve, in float64,
relative to the right-hand side. Peaks are those of whole processes (VmHWM), including 200 to 300 MiB for Python and its
libraries; a local scheduler runs in the driver process. One BLAS thread; Linux only.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from _espgame import kernels
from _espgame import make_store as make_like
from _generated import SHAPES
from _processes import alone, spent_everywhere
from rich.console import Console
from rich.table import Table

from dmo import KGHA, MORP, Exact, MultiViewRidge, Nystrom, Solver, stores
from dmo.blocks import dense
from dmo.cluster import connect
from dmo.datasets import Samples
from dmo.decoders import Scores
from dmo.errors import UserError
from dmo.linalg.cg import BlockCG
from dmo.metrics import annotation_scores
from dmo.progress import bars
from dmo.workflows.plan import plan_fit
from dmo.workflows.program import option_parser

TEST, HIDDEN, POSITIVE = 4000, 16, 5
OUT = Console(width=150)


def make_store(path: Path, n: int, d: int, labels: int) -> None:
    """Write samples with 16 latent variables, observed as d noisy features; labels are the 5 nearest prototypes."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(n + TEST, HIDDEN)).astype(np.float32)
    X = np.tanh(hidden @ rng.normal(size=(HIDDEN, d)).astype(np.float32) / 2)
    X += 0.3 * rng.normal(size=X.shape).astype(np.float32)
    prototypes = rng.normal(size=(labels, HIDDEN)).astype(np.float32)
    gaps = (prototypes**2).sum(axis=1) - 2 * hidden @ prototypes.T
    Y = np.zeros((n + TEST, labels), np.uint8)
    np.put_along_axis(Y, np.argpartition(gaps, POSITIVE, axis=1)[:, :POSITIVE], 1, axis=1)
    Samples({"x": X}, Y, split=np.repeat(["train", "test"], [n, TEST])).write(path)


def model_of(method: str, storage: str, store: stores.FeatureStore, folder: str, asked: argparse.Namespace) -> Any:
    engine: Any = Exact(storage=storage, path=folder) if storage == "stored" else Exact(storage=storage)  # type: ignore[arg-type]
    common = {"ridge": asked.ridge, "approximation": Nystrom(rank=asked.rank) if method == "nystrom" else engine}
    if method == "morp":
        return MORP(next(iter(kernels(store).values())), n_components=asked.components, **common)
    common["decoder"] = Scores(label_sets=False)
    if method == "ridge":
        return MultiViewRidge(kernels(store), **common)
    if asked.like:
        common["n_components"] = asked.components
    return KGHA(kernels(store), solver=Solver("als", 1e-4, asked.steps) if method == "als" else "krylov", **common)


class Watched:
    """Recorder of the solves: the number of CG products of each, and the largest residual of the last one."""

    def __enter__(self) -> Watched:
        self.products, self.residual, self._columns = list[int](), np.nan, BlockCG._columns

        def columns(solver: BlockCG, *arguments: Any) -> Any:
            found = self._columns(solver, *arguments)
            self.products.append(found[2])
            self.residual = float(found[1].max())
            return found

        BlockCG._columns = columns  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: Any) -> None:
        BlockCG._columns = self._columns  # type: ignore[method-assign]


def run(method: str, storage: str, path: str, folder: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Run and measure one fit."""
    store = stores.open_features(path)
    (views, Y, _), (new, truth, _) = (store.select(split) for split in ("train", "test"))
    Y, truth = dense(Y), dense(truth)
    model, found = model_of(method, storage, store, folder, asked), dict[str, Any]()
    limits = {"workers": asked.workers, "memory_limit": asked.memory_limit}
    with connect(asked.scheduler, **limits) if asked.workers else nullcontext() as place:
        client = None if place is None else place.client
        plan = plan_fit(model, views, Y.shape[1])
        idle, before = idle_shares(client), [cpu for cpu, _ in spent_everywhere(client)]
        start = time.perf_counter()
        try:
            with Watched() as watched, bars(disable=True) as stages:
                model.fit(views, Y)
        except UserError as error:
            return {"refused": str(error)}
        found["seconds"] = time.perf_counter() - start
        found["planned"] = [] if plan is None else [plan.peak_bytes >> 20, plan.worker_bytes >> 20]
        after = spent_everywhere(client)
        found["cpus"] = [
            round(cpu - first - share * found["seconds"], 1)
            for (cpu, _), first, share in zip(after, before, idle, strict=True)
        ]
        found["driver"], found["peaks"] = after[0][1], [peak for _, peak in after[1:]]
    found |= {
        "products": watched.products,
        "residual": watched.residual,
        "stages": {name: round(value, 1) for name, value in stages.items()},
    }
    if hasattr(model, "decision_function"):
        found["f1"] = 100 * annotation_scores(truth, model.decision_function(new), POSITIVE).f1
    return found


def idle_shares(client: Any, seconds: float = 5.0) -> list[float]:
    """Measure the fraction of a core that each process of an idle cluster uses."""
    before = spent_everywhere(client)
    time.sleep(seconds)
    return [(after - cpu) / seconds for (cpu, _), (after, _) in zip(before, spent_everywhere(client), strict=True)]


def row(method: str, storage: str, found: dict[str, Any]) -> list[str]:
    if "refused" in found:
        return [method, storage, "refused", *["-"] * 7]
    return [
        method,
        storage,
        f"{found['seconds']:.0f}",
        " ".join(f"{cpu:.0f}" for cpu in found["cpus"]),
        " ".join(map(str, found["planned"])) or "-",
        f"{found['driver']:.0f}",
        " ".join(f"{peak:.0f}" for peak in found["peaks"]) or "-",
        str(sum(found["products"])) if found["products"] else "-",
        "-" if np.isnan(found["residual"]) else f"{found['residual']:.1e}",
        f"{found['f1']:.1f}" if "f1" in found else "-",
    ]


def main() -> None:
    parser = option_parser(__doc__, run=True, views=None, methods=["kgha", "ridge", "morp", "nystrom"], work=None)
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--features", type=int, default=500)
    parser.add_argument("--labels", type=int, default=100)
    parser.add_argument("--like", choices=list(SHAPES), help="public set whose shape is used (default: one view)")
    parser.add_argument("--steps", type=int, help="maximum number of steps of als")
    parser.add_argument("--storages", nargs="*", default=["stored", "recomputed", "resident"])
    parser.add_argument("--ridge", type=float, default=0.1)
    parser.add_argument("--components", type=int, default=50, help="components of MORP, and of KGHA with --like")
    parser.add_argument("--rank", type=int, default=2000, help="rank of nystrom")
    parser.set_defaults(scheduler="local", workers=2, memory_limit="1GiB")
    asked = parser.parse_args()
    head = ("", "storage", "s", "CPU s", "planned MiB", "driver MiB", "workers MiB", "products")
    table = Table(*head, "residual", f"F1 of top {POSITIVE}")
    shape = "-".join([asked.like, *(asked.views or [])] if asked.like else [f"{asked.features}-{asked.labels}"])
    table.title = f"{asked.samples} samples, {shape}, ridge {asked.ridge:g}"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(asked.work or temporary)
        path = (
            folder
            / f"{asked.like or 'drawn'}-{asked.samples}-{asked.features}-{asked.labels}{''.join(asked.views or [])}.zarr"
        )
        if asked.like:
            make_like(path, asked.samples / SHAPES[asked.like].train, asked.views, asked.like)
        elif not path.exists():
            make_store(path, asked.samples, asked.features, asked.labels)
        for method in asked.methods:
            for storage in ["memory"] if method == "nystrom" else asked.storages:
                found = alone(run, method, storage, str(path), str(folder), asked)
                table.add_row(*row(method, storage, found))
                OUT.print(method, storage, found)
    OUT.print(table)


if __name__ == "__main__":
    main()
