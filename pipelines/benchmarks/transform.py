"""Throughput of transform on new rows, as a fraction of the throughput of its matrix products alone."""

from __future__ import annotations

import time

import numpy as np
from _generated import HISTOGRAMS, generated
from rich.console import Console
from rich.table import Table

from dmo import KGHA, Meka, Nystrom
from dmo.workflows.program import option_parser


def product_speed(m: int, n: int, d: int) -> float:
    """Measure float32 operations per second of an m x d by d x n product, the best of three runs."""
    A, B = np.random.default_rng(0).random((m, d), np.float32), np.random.default_rng(1).random((d, n), np.float32)
    best = np.inf
    for _ in range(3):
        start = time.perf_counter()
        A @ B
        best = min(best, time.perf_counter() - start)
    return 2.0 * m * n * d / best


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("--scale", type=float, default=0.1, help="factor on the rows of ESP Game")
    parser.add_argument("--rank", type=int, default=500)
    parser.add_argument("--clusters", type=int, default=10)
    arguments = parser.parse_args()
    source = generated("espgame", arguments.scale)
    views = {view: rows[:] for view, rows in source.views.items()}
    kernels = {view: "hellinger-rbf" if view in HISTOGRAMS else "rbf" for view in views}
    n, d = len(source.labels), sum(X.shape[1] for X in views.values())
    peak = product_speed(2048, 2048, 2048)
    table = Table(
        "model", "rows/s", "operations per row", "fraction of the product's speed", title=f"transform of {n} rows"
    )
    rank, clusters = arguments.rank, arguments.clusters
    engines = {
        "Nystrom": Nystrom(rank=rank),
        "Meka": Meka(clusters=clusters, rank=rank // clusters),
        "exact": "exact",
    }
    for name, engine in engines.items():
        model = KGHA(kernels, approximation=engine).fit(views, source.labels)
        start = time.perf_counter()
        model.transform(views)
        seconds = time.perf_counter() - start
        p = model.n_components_
        per_row = {
            "exact": 2.0 * n * (d + len(views) * p),
            "Nystrom": 2.0 * (rank * d + len(views) * rank * (rank + p)),
            "Meka": 2.0 * (rank / clusters) * (d + len(views) * (rank / clusters + p)),  # with one landmark per column
        }[name]
        share = per_row * n / seconds / peak
        table.add_row(name, f"{n / seconds:.0f}", f"{per_row:.3g}", f"{100 * share:.0f} %")
    Console().print(table)


if __name__ == "__main__":
    main()
