"""Seconds and memory by number of rows: ridge regression on Nystrom columns from a float16 store on disk.

    python pipelines/benchmarks/rows.py [--samples 100000 300000 1000000] [--rank 1000] [--labels 100] [--work WORK]

One generated feature store (512 features, 1 GB per million rows, 20 000 additional test rows) serves all numbers of
rows: each fit uses its first rows. Every fit runs in a separate process. The limit is the time of a pass's operations,
2 r d + (r + L)^2 + r^2 per row, at the speed of a float32 product in the same process. Peaks are peaks of resident
memory without the pages of files; labels occupy one byte each. Linux only.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _processes import alone, spent
from limits import a_product
from rich.console import Console
from rich.table import Table

from dmo import MultiViewRidge, Nystrom, stores
from dmo.blocks import Subset, dense
from dmo.decoders import Scores
from dmo.metrics import auc_macro
from dmo.progress import bars
from dmo.workflows.program import option_parser

NEW, HIDDEN = 20_000, 20


def draw(path: Path, n: int, d: int, labels: int) -> None:
    """Generate rows as d noisy features of 20 latent variables; labels mark the top 5 % of quadratic functions of
    them."""
    rng = np.random.default_rng(0)
    mix = rng.standard_normal((HIDDEN, d), np.float32) / 4
    forms = rng.standard_normal((labels, HIDDEN, HIDDEN), np.float32).reshape(labels, -1).T
    hidden = rng.standard_normal((n + NEW, HIDDEN), np.float32)

    def values(rows: np.ndarray) -> np.ndarray:
        return (rows[:, :, None] * rows[:, None, :]).reshape(len(rows), -1) @ forms

    cut = np.quantile(values(hidden[:NEW]), 0.95, axis=0)
    Y = np.empty((n + NEW, labels), np.uint8)
    for start in range(0, n + NEW, NEW):
        Y[start : start + NEW] = values(hidden[start : start + NEW]) > cut
    writer = stores.create_features(path, n + NEW, {"x": stores.ViewSpec(d, "float16")}, Y)
    for _, block in writer.missing():
        rows = hidden[writer.rows(block)]
        noise = np.random.default_rng([1, block]).standard_normal((len(rows), d), np.float32)
        writer.write("x", block, (np.tanh(rows @ mix) + noise / 2).astype(np.float16))
    writer.finish()


def run(path: str, n: int, rank: int) -> dict[str, Any]:
    """Measure a fit to the first n rows, and compute its limit."""
    product = a_product()
    store = stores.open_features(path)
    Y, X = store.labels, store.views["x"]
    assert Y is not None
    new = slice(store.n_samples - NEW, store.n_samples)
    old, targets, truth = {"x": Subset(X, np.arange(n))}, dense(Y[:n]).copy(), dense(Y[new]).copy()
    del Y
    model = MultiViewRidge("rbf", ridge=0.1, approximation=Nystrom(rank=rank), decoder=Scores(label_sets=False))
    model.fit({"x": X[:1500]}, targets[:1500])  # Load the compiled loops.
    held, begun = spent(), time.perf_counter()
    with bars(disable=True) as stages:
        model.fit(old, targets)
    seconds, used = time.perf_counter() - begun, spent()
    operations = 2 * rank * X.shape[1] + (rank + targets.shape[1]) ** 2 + rank**2
    return {
        "rows": n,
        "seconds": seconds,
        "cpu": used[0] - held[0],
        "pass": stages.get("pass over the rows", 0.0),
        "limit": product.scaled(n * operations / 1e9).cpu,
        "before": held[1],
        "peak": used[1],
        "labels": targets.nbytes / 2**20,
        "auc": 100 * auc_macro(truth, model.decision_function({"x": X[new]})),
        "stages": dict(stages),
    }


def main() -> None:
    parser = option_parser(__doc__, work=None, json=None)
    parser.add_argument("--samples", type=int, nargs="+", default=[100_000, 300_000, 1_000_000])
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--labels", type=int, default=100)
    parser.add_argument("--rank", type=int, default=1000)
    asked = parser.parse_args()
    table = Table("rows", "s", "CPU s", "per million", "fraction of the limit", "MiB", "labels", "AUC, %")
    table.title = f"{asked.features} features, float16, rank {asked.rank}, {asked.labels} labels"
    figures = []
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(asked.work or temporary) / f"rows-{max(asked.samples)}-{asked.features}-{asked.labels}.zarr"
        try:
            stores.open_features(path)
        except (FileNotFoundError, stores.StoreError):
            draw(path, max(asked.samples), asked.features, asked.labels)
        for n in asked.samples:
            found = alone(run, str(path), n, asked.rank)
            figures.append(found)
            cells = [found["seconds"], found["cpu"], 1e6 * found["cpu"] / n, 100 * found["limit"] / found["cpu"]]
            cells += [found["peak"], found["labels"], found["auc"]]
            table.add_row(f"{n:,}", *(f"{cell:.1f}" for cell in cells))
            print(found, flush=True)
    Console(width=110).print(table)
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
