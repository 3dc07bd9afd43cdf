"""Kernel multiple-set CCA: exact and Nystrom fits of dmo compared with cca-zoo's KGCCA on the same views.

    python pipelines/benchmarks/multiset.py [--samples 500 1000 2000] [--components 5] [--rank 300]

The views are gist, dense_hue and harris_hue of a generated store of ESP Game's shape, with Gaussian kernels at their
mean distances. The shrinkage s of KGCCA corresponds to the ridge s (n - 1) / (1 - s) of MultiSetCCA, so that both solve
the same problem. "Agreement" is the smallest cosine between the two spaces of the training samples. Seconds include the
whole fit.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
from _generated import generated
from cca_zoo.nonparametric import KGCCA
from rich.console import Console
from rich.table import Table

from dmo import MultiSetCCA, Nystrom, Solver
from dmo.kernels import RBF
from dmo.workflows.program import option_parser

VIEWS = ("gist", "dense_hue", "harris_hue")
SHRINKAGE = 0.01


def fit_kgcca(X: list[np.ndarray], widths: list[float], k: int) -> np.ndarray:
    """Compute the mean of the views' canonical variables (n x k)."""
    model = KGCCA(n_components=k, shrinkage=SHRINKAGE, kernel="rbf", gamma=[1 / (2 * w * w) for w in widths])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ignore warnings raised inside cca-zoo.
        return np.mean(model.fit(X).transform(X), axis=0)


def agreement(A: np.ndarray, B: np.ndarray) -> float:
    """Compute the smallest cosine of principal angles between two column spaces."""
    bases = [np.linalg.qr(part - part.mean(axis=0))[0] for part in (A, B)]
    return float(np.linalg.svd(bases[0].T @ bases[1], compute_uv=False).min())


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("--samples", type=int, nargs="+", default=[500, 1000, 2000])
    parser.add_argument("--components", type=int, default=5)
    parser.add_argument("--rank", type=int, default=300)
    asked = parser.parse_args()
    source = generated("espgame", max(asked.samples) / 18_000)
    table = Table("samples", "method", "seconds", "times KGCCA", "agreement", title=f"{len(VIEWS)} views")
    for n in asked.samples:
        X = [np.asarray(source.views[view][:n], np.float64) for view in VIEWS]
        widths = [RBF().fit(part, 0).width for part in X]
        kernels = [RBF(bandwidth=width) for width in widths]
        settings: dict[str, Any] = {
            "n_components": asked.components,
            "ridge": SHRINKAGE * (n - 1) / (1 - SHRINKAGE),
            "solver": Solver(tol=1e-8),
        }
        start = time.perf_counter()
        reference = fit_kgcca(X, widths, asked.components)
        base = time.perf_counter() - start
        table.add_row(str(n), "cca-zoo KGCCA", f"{base:.2f}", "1", "1")
        for name, engine in (("exact", "exact"), ("Nystrom", Nystrom(rank=asked.rank))):
            start = time.perf_counter()
            found = MultiSetCCA(kernels, approximation=engine, **settings).fit_transform(X)
            seconds = time.perf_counter() - start
            cells = [f"{seconds:.2f}", f"{base / seconds:.1f}", f"{agreement(reference, found):.4f}"]
            table.add_row(str(n), f"dmo {name}", *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
