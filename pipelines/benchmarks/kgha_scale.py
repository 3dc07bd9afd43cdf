"""KGHA from raw features to annotated test samples, with increasing numbers of rows: seconds and peak memory.

Every size runs in a separate process to measure its peak memory. `--like` and `--scales` select generated feature
stores. The alternative is scikit-learn's Nystroem + Ridge on the same rows, views, rank and labels; its landmarks are
uniform, like those of the method ridge-uniform. CPU seconds are more reliable than elapsed seconds if other work runs
on the machine.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from _espgame import kernels, make_store
from rich.console import Console
from rich.table import Table
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import Ridge

from dmo import KGHA, Meka, MultiViewRidge, Nystrom, stores
from dmo.blocks import dense
from dmo.decoders import Scores
from dmo.metrics import annotation_scores
from dmo.progress import bars
from dmo.report.canvas import LINES, clean
from dmo.workflows.program import option_parser

METHODS = ("kgha-nystrom", "kgha-meka", "ridge-nystrom", "ridge-uniform", "sklearn")


def scikit_learn(old: Any, Y: np.ndarray, new: Any, histograms: dict[str, bool], rank: int) -> np.ndarray:
    """Fit one Nystroem map per view and one ridge on the concatenated maps, in memory and in float64 as in
    scikit-learn."""
    parts_old, parts_new = [], []
    for view, X in old.items():
        A, B = X[:].astype(np.float64), new[view][:].astype(np.float64)
        if histograms[view]:
            A, B = (np.sqrt(part / np.maximum(part.sum(axis=1, keepdims=True), 1)) for part in (A, B))
        sample = A[np.random.default_rng(0).permutation(len(A))[:1000]]
        squares = np.maximum((sample**2).sum(1)[:, None] + (sample**2).sum(1) - 2 * sample @ sample.T, 0)
        sigma = np.sqrt(squares).sum() / (len(sample) * (len(sample) - 1))
        mapper = Nystroem(kernel="rbf", gamma=1 / (2 * sigma**2), n_components=rank, random_state=0).fit(A)
        parts_old.append(mapper.transform(A) / len(old) ** 0.5)
        parts_new.append(mapper.transform(B) / len(old) ** 0.5)
    return Ridge(alpha=1e-2).fit(np.hstack(parts_old), Y).predict(np.hstack(parts_new))


def run(path: Path, method: str, rank: int, clusters: int) -> dict[str, Any]:
    """Run one method on one store in this (fresh) process, and measure it."""
    store = stores.open_features(path)
    old, Y, _ = store.select("train")
    new, Y2, _ = store.select("test")
    Y, Y2 = dense(Y), dense(Y2)
    start, used = time.perf_counter(), time.process_time()
    with bars(disable=True) as stages:
        if method == "sklearn":
            histograms = {view: store.view_info(view).histogram for view in store.views}
            scores = scikit_learn(old, Y, new, histograms, rank)
        else:
            landmarks = "uniform" if method == "ridge-uniform" else "rpcholesky"
            low: Any = Nystrom(rank=rank, landmarks=landmarks)
            if method == "kgha-meka":
                low = Meka(clusters=clusters, rank=rank // clusters)
            if method.startswith("ridge"):
                model: Any = MultiViewRidge(
                    kernels(store),
                    ridge=1e-2,
                    combine="kernels",
                    intercept=True,
                    approximation=low,
                    decoder=Scores(label_sets=False),
                )
            else:
                model = KGHA(
                    kernels(store),
                    ridge=1e-1,
                    balance=1e-2,
                    n_components=0.8,
                    approximation=low,
                    decoder=Scores(label_sets=False),
                )
            scores = model.fit(old, Y).decision_function(new)
    seconds, used = time.perf_counter() - start, time.process_time() - used
    found = annotation_scores(Y2, scores, top=5)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    fit = stages.get("eigenpairs (block steps)", 0.0)
    return {"seconds": seconds, "cpu": used, "peak": peak, "f1": found.f1, "eigenpairs": fit, "stages": dict(stages)}


def plot(figures: list[dict[str, Any]], path: str) -> None:
    """Plot CPU seconds and peak memory against the number of rows, with one line per method."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axis, key, unit, label in ((axes[0], "cpu", 1, "CPU seconds"), (axes[1], "peak", 2**30, "peak memory, GiB")):
        clean(axis).set_prop_cycle(**LINES)
        for method in dict.fromkeys(row["method"] for row in figures):
            found = [row for row in figures if row["method"] == method]
            axis.plot([row["rows"] for row in found], [row[key] / unit for row in found], label=method)
        axis.set(xlabel="rows", ylabel=label, xlim=(0, None), ylim=(0, None))
    axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> None:
    parser = option_parser(__doc__, methods=list(METHODS), work=None, json=None)
    parser.add_argument("--like", default="espgame")
    parser.add_argument("--scales", default="0.05,0.2", help="factors on the rows of the set, comma-separated")
    parser.add_argument("--rank", type=int, default=500)
    parser.add_argument("--clusters", type=int, default=10)
    parser.add_argument("--plot", help="PNG file for a plot of the results")
    arguments = parser.parse_args()
    table = Table(
        "rows",
        "method",
        "seconds",
        "CPU s",
        "eigenpairs",
        "CPU us per row",
        "peak GiB",
        "F1 %",
        title="KGHA at scale",
    )
    figures = []
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(arguments.work or temporary)
        for scale in (float(part) for part in arguments.scales.split(",")):
            path = work / f"{arguments.like}-{scale:g}.zarr"
            start = time.perf_counter()
            n = make_store(path, scale, like=arguments.like).n_samples
            table.add_row(str(n), "draw or open the store", f"{time.perf_counter() - start:.1f}", "", "", "", "", "")
            for method in arguments.methods:
                with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
                    got = fresh.submit(run, path, method, arguments.rank, arguments.clusters).result()
                figures.append({"rows": n, "method": method, **got})
                cells = [f"{got['seconds']:.1f}", f"{got['cpu']:.1f}", f"{got['eigenpairs']:.1f}"]
                cells.append(f"{1e6 * got['cpu'] / n:.0f}")
                table.add_row(str(n), method, *cells, f"{got['peak'] / 2**30:.2f}", f"{100 * got['f1']:.1f}")
    Console(width=110).print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))
    if arguments.plot:
        plot(figures, arguments.plot)


if __name__ == "__main__":
    main()
