"""Solves with one kernel: Cholesky and conjugate gradients of dmo compared with scikit-learn's KernelRidge.

    python pipelines/benchmarks/solvers.py [--samples 18689] [--ridge 0.1] [--methods sklearn64,sklearn32,cholesky,mixed,cg]

The kernel is Gaussian at the mean distance, on the view gist of a generated store of ESP Game's shape. For dmo, its
entries are float32. It is computed before the measurement for all methods. "First solve" computes the coefficients of
all labels from the kernel, "further ridge" does the same for another ridge, and "further labels" solves other
right-hand sides with the same ridge. KernelRidge keeps nothing between fits. Times are CPU seconds; set
OPENBLAS_NUM_THREADS. As in fits, solutions have a tolerance of 1e-6, and residuals of all columns are not requested.

Residuals |B - (K + c I) X| / |B| are those of the worst column, in float64 arithmetic with the entries given to the
method. Each method runs in a separate process.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from _generated import generated
from projections import measure
from rich.console import Console
from rich.table import Table
from sklearn.kernel_ridge import KernelRidge

from dmo.blocks import dense, row_blocks
from dmo.kernels import RBF, gram_matrix
from dmo.linalg.cg import NystromPreconditioner, default_rank
from dmo.linalg.operators import Dense
from dmo.linalg.solve import factorize
from dmo.workflows.program import option_parser


def run(method: str, samples: int, ridge: float, seed: int = 0) -> dict[str, Any]:
    """Measure the CPU seconds of the three solves and the largest true residual of the first."""
    source = generated("espgame", max(0.1, samples / 20770))
    X, Y = source.views["gist"][:][:samples], dense(source.labels).astype(np.float64)[:samples]
    Y, Y2 = Y - Y.mean(axis=0), np.random.default_rng(seed).standard_normal(Y.shape)
    K, _ = gram_matrix(RBF(), X, np.float64 if method == "sklearn64" else np.float32, seed)
    if method.startswith("sklearn"):
        dtype = K.dtype
        solve = [
            lambda c=c, B=B: np.asarray(KernelRidge(alpha=c, kernel="precomputed").fit(K, B.astype(dtype)).dual_coef_)
            for c, B in ((ridge, Y), (3 * ridge, Y), (ridge, Y2))
        ]
    else:
        operator = Dense(K)
        kept: dict[str, Any] = {}
        factorize(Dense(K[:300, :300]), ridge, "mixed").solve(Y[:300])  # Load the compiled loops.

        def solver(c: float) -> Any:
            if method == "cg" and "start" not in kept:
                kept["start"] = NystromPreconditioner.of(operator, default_rank(samples), seed)
            return factorize(operator, c, method, 1e-6, preconditioner=kept.get("start"))  # type: ignore[arg-type]

        def first() -> np.ndarray:
            kept["solver"] = solver(ridge)
            return kept["solver"].solve(Y, None, check=False).value

        solve = [
            first,
            lambda: solver(3 * ridge).solve(Y, None, check=False).value,
            lambda: kept["solver"].solve(Y2, None, check=False).value,
        ]
    seconds, values = [], []
    for part in solve:
        start = time.process_time()
        values.append(part())
        seconds.append(time.process_time() - start)
    rest = np.empty(Y.shape)
    for rows in row_blocks(samples, 1024):
        rest[rows] = Y[rows] - K[rows].astype(np.float64) @ values[0] - ridge * values[0][rows]
    residual = np.linalg.norm(rest, axis=0) / np.linalg.norm(Y, axis=0).clip(min=1e-12)
    return {"seconds": seconds, "residual": float(residual.max())}


def main() -> None:
    parser = option_parser(__doc__, methods=["sklearn64", "sklearn32", "cholesky", "mixed", "cg"])
    parser.add_argument("--samples", type=int, default=18689)
    parser.add_argument("--ridge", type=float, default=0.1)
    asked = parser.parse_args()
    found = {method: measure(run, method, asked.samples, asked.ridge) for method in asked.methods}
    table = Table(
        "method",
        "first, s",
        "further ridge, s",
        "further labels, s",
        "relative to the first method",
        "largest true residual",
        "peak, GiB",
        title=f"{asked.samples} samples, 268 labels, ridge {asked.ridge:g}",
    )
    base = next(iter(found.values()))["seconds"]
    for name, row in found.items():
        times = " / ".join(f"{b / s:.1f}" for b, s in zip(base, row["seconds"], strict=True))
        cells = [f"{s:.1f}" for s in row["seconds"]]
        table.add_row(name, *cells, times, f"{row['residual']:.0e}", f"{row['peak']:.1f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
