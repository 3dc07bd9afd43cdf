"""Sweeps from shared moments compared with one fit: 5 ridges x 5 balances x 5 components x 4 folds, and 5 bandwidths x
5 ridges x 4 folds.

The script prints elapsed and CPU seconds of a low-rank fit with its pass and of the sweeps, their ratios, and the time
that separate fits would have taken. On a small data set, the choice of the sweep is compared with that of separate
fits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from _generated import HISTOGRAMS, generated
from rich.console import Console
from rich.table import Table
from sklearn.base import clone

from dmo import KGHA, Nystrom
from dmo.demo.digits import digits
from dmo.metrics import annotation_scores
from dmo.select.sweeps import settings, stratified_folds
from dmo.selection import sweep
from dmo.workflows.program import option_parser

GRID = {
    "ridge": [1e-3, 1e-2, 1e-1, 0.3, 1.0],
    "balance": [1e-3, 1e-2, 3e-2, 1e-1, 3e-1],
    "n_components": [0.2, 0.4, 0.6, 0.8, 1.0],
}
WIDE = {"bandwidth": [0.5, 0.7, 1.0, 1.4, 2.0], "ridge": GRID["ridge"]}


def timed(call: Callable[[], Any]) -> tuple[float, float]:
    """Return elapsed seconds and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def separate_winner(
    model: KGHA, views: dict[str, np.ndarray], Y: np.ndarray, folds: int
) -> tuple[dict[str, float], float]:
    """Find the best candidate by separate fits of every candidate and fold; return it with the elapsed seconds."""
    number, best, start = stratified_folds(Y, folds, 0), (-1.0, {}), time.perf_counter()
    for setting in settings(GRID):
        scores = []
        for fold in range(folds):
            train, test = number != fold, number == fold
            fitted = clone(model).set_params(**setting).fit({v: X[train] for v, X in views.items()}, Y[train])
            scored = fitted.decision_function({v: X[test] for v, X in views.items()})
            scores.append(annotation_scores(Y[test], scored, top=5).f1)
        if np.mean(scores) > best[0]:
            best = (float(np.mean(scores)), setting)
    return best[1], time.perf_counter() - start


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("--scale", type=float, default=0.1, help="factor on the rows of ESP Game")
    parser.add_argument("--rank", type=int, default=300)
    parser.add_argument("--folds", type=int, default=4)
    parser.add_argument("--small", type=int, default=600, help="samples of the comparison with separate fits (0: skip)")
    arguments = parser.parse_args()
    source = generated("espgame", arguments.scale)
    views = {view: rows[:] for view, rows in source.views.items()}
    kernels = {view: "hellinger-rbf" if view in HISTOGRAMS else "rbf" for view in views}
    model = KGHA(kernels, approximation=Nystrom(rank=arguments.rank))
    model.fit(views, source.labels)  # Load the compiled loops.
    one = timed(lambda: model.fit(views, source.labels))
    table = Table(
        "",
        "seconds",
        "CPU s",
        "in units of one fit",
        "of CPU",
        title=f"{len(source.labels)} rows, rank {arguments.rank}",
    )
    table.add_row("one fit with its pass", *(f"{seconds:.1f}" for seconds in one))
    for grid in (GRID, WIDE):
        found = timed(lambda grid=grid: sweep(model, views, source.labels, grid, folds=arguments.folds, refit=False))
        tried = len(list(settings(grid)))
        ratios = [f"{whole / single:.2f}" for whole, single in zip(found, one, strict=True)]
        what = f"sweep of {tried} settings x {arguments.folds} folds ({', '.join(grid)})"
        table.add_row(what, *(f"{seconds:.1f}" for seconds in found), *ratios)
    Console(width=150).print(table)
    fits = len(list(settings(GRID))) * arguments.folds
    if arguments.small:
        data = digits()
        picked = np.random.default_rng(0).permutation(len(data.Y))[: arguments.small]
        views, Y = {view: X[picked] for view, X in data.views.items()}, data.Y[picked]
        exact = KGHA()
        chosen = sweep(exact, views, Y, GRID, folds=arguments.folds, refit=False)
        expected, seconds = separate_winner(exact, views, Y, arguments.folds)
        print(f"digits, {len(Y)} samples: the sweep chose {chosen.best_params},")
        print(f"{fits} separate fits {expected} in {seconds:.0f} s")


if __name__ == "__main__":
    main()
