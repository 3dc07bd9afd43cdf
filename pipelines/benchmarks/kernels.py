"""Speed of kernel matrices compared with a matrix product of the same shape and with scikit-learn, in one process.

The rows are Corel5k's views from the folder in DMO_DATA, or random histograms and features of the same shapes if there
is no such folder. Times are the best of several interleaved runs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.metrics.pairwise import chi2_kernel, laplacian_kernel, rbf_kernel
from threadpoolctl import threadpool_limits

from dmo.kernels import RBF, ChiSquare, Intersection, Kernel, Laplacian, gram_matrix
from dmo.threads import thread_count
from dmo.workflows.program import option_parser

DATA = Path(os.environ.get("DMO_DATA", "."))

VIEWS = {"Gist": (512, 1.0), "RgbV3H1": (5184, 0.06), "HsvV3H1": (5184, 0.16)}
"""Number of features and fraction of non-zero entries by view."""


def view(name: str, rows: int) -> tuple[np.ndarray, str]:
    """Return `rows` rows of a view in float32 (histograms with sum 1), and their source."""
    path = DATA / "corel5k" / "features" / f"corel5k_{name}.npz"
    d, density = VIEWS[name]
    if path.exists():
        with np.load(path) as archive:
            X, origin = archive["X"][:rows].astype(np.float32), "Corel5k"
    else:
        rng = np.random.default_rng(0)
        X, origin = rng.random((rows, d), dtype=np.float32), "random"
        if density < 1:
            X *= rng.random((rows, d), dtype=np.float32) < density
    return (X if density == 1 else X / np.maximum(X.sum(axis=1, keepdims=True), 1)), origin


Clock = Callable[[], float]


def best(calls: dict[str, Callable[[], object]], repeats: int, clock: Clock) -> dict[str, float]:
    """Return the minimum seconds of each call over interleaved runs, after a warm-up run."""
    seconds = dict.fromkeys(calls, np.inf)
    for run in range(repeats + 1):
        for name, call in calls.items():
            start = clock()
            call()
            if run:
                seconds[name] = min(seconds[name], clock() - start)
    return seconds


def gaussian(name: str, rows: int, repeats: int, clock: Clock) -> Table:
    """Compare RBF kernels of one view with a matrix product and scikit-learn."""
    X, origin = view(name, rows)
    n, d = X.shape
    Y, fitted = X.copy(), RBF().fit(X)
    x, y = fitted.prepare(X), fitted.prepare(Y)
    number = RBF(fitted.bandwidth)
    seconds = best(
        {
            "matrix product": lambda: X @ Y.T,
            "tile of prepared rows": lambda: fitted.tile(x, y),
            "rows prepared and tile": lambda: fitted.tile(fitted.prepare(X), fitted.prepare(Y)),
            "gram_matrix, bandwidth given": lambda: gram_matrix(number, X),
            "gram_matrix, mean bandwidth": lambda: gram_matrix("rbf", X),
            "scikit-learn rbf_kernel": lambda: rbf_kernel(X, gamma=0.5 / fitted.width**2),
        },
        repeats,
        clock,
    )
    table = Table(title=f"rbf, {origin} {name}, {n} x {n} from {d} features, float32")
    for column in ("", "seconds", "of the product's speed", "scikit-learn's time over this"):
        table.add_column(column, justify="left" if not column else "right")
    for key, value in seconds.items():
        share, gain = seconds["matrix product"] / value, seconds["scikit-learn rbf_kernel"] / value
        table.add_row(key, f"{value:.3f}", f"{share:.2f}", f"{gain:.2f}")
    return table


def histogram(name: str, rows: int, repeats: int, clock: Clock) -> Table:
    """Compare chi-square, L1 and intersection kernels of one view with scikit-learn."""
    X, origin = view(name, rows)
    n, d = X.shape
    table = Table(title=f"{origin} {name}, {n} x {n} from {d} features, {(X != 0).mean():.0%} not zero, float32")
    for column in ("", "tile, s", "gram_matrix, s", "scikit-learn, s", "gain of tile", "gain of gram_matrix"):
        table.add_column(column, justify="left" if not column else "right")
    rivals: list[tuple[Kernel, Callable[..., np.ndarray] | None]] = [
        (ChiSquare(), chi2_kernel),
        (Laplacian(), laplacian_kernel),
        (Intersection(), None),
    ]
    for kernel, rival in rivals:
        fitted = kernel.fit(X)
        x = fitted.prepare(X)
        seconds = best(
            {"tile": lambda f=fitted, x=x: f.tile(x, x[:]), "gram": lambda k=kernel: gram_matrix(k, X)}, repeats, clock
        )
        cells = [f"{seconds['tile']:.3f}", f"{seconds['gram']:.3f}", "-", "-", "-"]
        if rival is not None:
            start = clock()
            rival(X, gamma=1.0)
            spent = clock() - start
            cells[2:] = [f"{spent:.2f}", f"{spent / seconds['tile']:.1f}", f"{spent / seconds['gram']:.1f}"]
        table.add_row(kernel.name, *cells)
    return table


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("--rows", type=int, default=4500, help="rows for the RBF kernel (default: 4500)")
    parser.add_argument("--histogram-rows", type=int, default=1500, help="rows for chi2 and L1 (default: 1500)")
    parser.add_argument("--repeats", type=int, default=5, help="measured runs of each call (default: 5)")
    parser.add_argument("--threads", type=int, default=None, help="number of threads (default: those of BLAS)")
    parser.add_argument("--cpu", action="store_true", help="measure CPU seconds, for a busy machine; use --threads 1")
    parser.add_argument("--quick", action="store_true", help="1500 rows, 300 for chi2 and L1, two runs")
    arguments = parser.parse_args()
    rows, few, repeats = arguments.rows, arguments.histogram_rows, arguments.repeats
    if arguments.quick:
        rows, few, repeats = min(rows, 1500), min(few, 300), 2
    clock = time.process_time if arguments.cpu else time.perf_counter
    console = Console(width=110)
    with threadpool_limits(arguments.threads):
        console.print(f"{thread_count()} thread(s); chi2 and L1 of scikit-learn use one")
        for name in VIEWS:
            console.print(gaussian(name, rows, repeats, clock))
        for name in [key for key, (_, density) in VIEWS.items() if density < 1]:
            console.print(histogram(name, few, repeats, clock))


if __name__ == "__main__":
    main()
