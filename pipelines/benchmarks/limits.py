"""Tasks of dmo compared with the usual alternatives and with the limit of this machine, in one run.

    python pipelines/benchmarks/limits.py [--works pass fit ...] [--threads 1 2] [--scale 1] [--json FILE]
    python pipelines/benchmarks/limits.py --compare BASE.json NEW.json

Alternatives get rows and labels in float32, the precision that dmo uses. Solves are compared with both precisions, with
their largest residuals, at the default ridge (0.01) and at a ridge for which dmo uses a float32 factor (0.1).

The limit is the time of the operations that a task cannot avoid, at the speed of float32 matrix products measured in
the same process, or the time to read its files. The fraction of the limit is the limit divided by the measured time.
Every task runs in a separate process for every number of threads. Ratios with one thread are ratios of CPU seconds,
which other work on the machine disturbs least; with more threads, they are ratios of elapsed seconds. Packages that are
not installed are skipped with a note; `rivals.py` covers libraries that need a separate environment. A pass has 2 r sum
d_v + (V r + L)^2 operations per row; an exact solve has n^3 / 3 + 2 n^2 L operations.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import psutil
from rich.console import Console
from rich.table import Table
from sklearn.kernel_approximation import Nystroem
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.neighbors import NearestNeighbors

import dmo
from dmo import KGHA, MultiViewRidge, Nystrom, stores
from dmo.decoders import Scores
from dmo.fit.engine import fit_maps
from dmo.fit.passes import FeatureRows, collect_moments
from dmo.graphs import neighbors
from dmo.kernels import RBF, gram_matrix, parse
from dmo.kernels.multikernel import FeatureTiles, MultiKernel
from dmo.linalg.operators import Dense
from dmo.linalg.solve import factorize
from dmo.linalg.tiles import Tiles
from dmo.lowrank.nystrom import from_landmarks
from dmo.progress import bars
from dmo.selection import sweep
from dmo.workflows.program import option_parser

VIEWS = {  # views of ESP Game: number of features, fraction of non-zero entries (1: real numbers)
    "rgb": (5184, 0.07),
    "lab": (5184, 0.04),
    "hsv": (5184, 0.15),
    "gist": (512, 1.0),
    "dense_sift": (3000, 0.23),
    "harris_sift": (3000, 0.16),
    "dense_hue": (300, 0.24),
    "harris_hue": (300, 0.21),
}
LABELS, RANK = 268, 500


@dataclass(frozen=True)
class Timed:
    """CPU seconds of this process and elapsed seconds."""

    cpu: float
    wall: float

    def scaled(self, factor: float) -> Timed:
        return Timed(self.cpu * factor, self.wall * factor)


@dataclass(frozen=True)
class Figure:
    """A line of the table; `theirs` and `limit` are None if there is no comparison."""

    work: str
    ours: Timed
    rival: str = ""
    theirs: Timed | None = None
    limit: Timed | None = None
    note: str = ""


def timed(call: Callable[[], Any]) -> tuple[Any, Timed]:
    """Return the result of the call, and its time."""
    cpu, wall = time.process_time(), time.perf_counter()
    found = call()
    return found, Timed(time.process_time() - cpu, time.perf_counter() - wall)


def a_product() -> Timed:
    """Measure the time of 1e9 operations in a float32 product, the best of several runs."""
    A, B = (np.random.default_rng(0).random((2048, 1024), np.float32) for _ in range(2))
    runs = [timed(lambda: A @ B.T)[1] for _ in range(6)][1:]
    return Timed(min(run.cpu for run in runs), min(run.wall for run in runs)).scaled(1e9 / (2 * 2048 * 2048 * 1024))


def rows_of_views(n: int) -> tuple[dict[str, np.ndarray], dict[str, str], np.ndarray]:
    """Generate rows with the shapes and sparsity of ESP Game's views, their kernels, and labels."""
    rng = np.random.default_rng(0)
    views: dict[str, np.ndarray] = {}
    for view, (d, share) in VIEWS.items():
        X = rng.random((n, d), np.float32)
        views[view] = X if share == 1 else (X * 255).astype(np.uint16) * (rng.random((n, d), np.float32) < share)
    kernels = {view: "rbf" if share == 1 else "hellinger-rbf" for view, (_, share) in VIEWS.items()}
    return views, kernels, (rng.random((n, LABELS)) < 0.02).astype(np.uint8)


def hellinger(X: np.ndarray) -> np.ndarray:
    """Return float32 as in dmo, because scikit-learn keeps the precision of its input."""
    return np.sqrt(np.divide(X, np.maximum(X.sum(axis=1, keepdims=True), 1), dtype=np.float32))


def passes(scale: float, product: Timed) -> list[Figure]:
    """Measure one pass over the rows of all views: factor rows and their moments, with given maps."""
    n = round(4096 * scale)
    views, kernels, Y = rows_of_views(n)
    maps = {v: from_landmarks(parse(kernels[v]).fit(X[:300]), X[:RANK]) for v, X in views.items()}
    # Load the compiled loops before the measurement.
    collect_moments(FeatureRows({v: X[:64] for v, X in views.items()}, maps), Y[:64])
    _, ours = timed(lambda: collect_moments(FeatureRows(views, maps), Y))
    columns = sum(m.rank for m in maps.values()) + LABELS
    operations = n * (2 * sum(maps[v].rank * X.shape[1] for v, X in views.items()) + columns**2)
    mappers = {}
    for view, X in views.items():
        gamma = 0.5 / maps[view].kernel.width ** 2
        rows = X if kernels[view] == "rbf" else hellinger(X[:RANK])
        mappers[view] = Nystroem(gamma=gamma, n_components=RANK, random_state=0).fit(rows[:RANK])

    def scikit() -> np.ndarray:
        parts = [mappers[v].transform(X if kernels[v] == "rbf" else hellinger(X)) for v, X in views.items()]
        S = np.hstack([*parts, Y.astype(np.float32)])
        assert S.dtype == np.float32
        return S.T @ S

    theirs = timed(scikit)[1]
    note = f"{n} rows, 8 views, rank {RANK}"
    return [Figure("pass", ours, "Nystroem.transform, Gram", theirs, product.scaled(operations / 1e9), note)]


def fits(scale: float, product: Timed) -> list[Figure]:
    """Measure KGHA from raw rows, and its landmarks alone."""
    n = round(4096 * scale)
    views, kernels, Y = rows_of_views(n)
    model = KGHA(kernels, approximation=Nystrom(rank=RANK), decoder=Scores(label_sets=False), random_state=0)
    model.fit({v: X[:700] for v, X in views.items()}, Y[:700])  # Load the compiled loops.
    _, landmarks = timed(lambda: fit_maps(model.approximation, kernels, views, 0, True))
    _, ours = timed(lambda: model.fit(views, Y))
    operations = n * (2 * RANK * sum(d for d, _ in VIEWS.values()) + (len(VIEWS) * RANK + LABELS) ** 2)

    def scikit() -> None:
        parts = []
        for view, X in views.items():
            rows = X if kernels[view] == "rbf" else hellinger(X)
            gamma = 0.5 / model.expansions_[view].feature_map.kernel.width ** 2
            parts.append(Nystroem(gamma=gamma, n_components=RANK, random_state=0).fit_transform(rows))
        S = np.hstack(parts)
        assert S.dtype == np.float32
        Ridge(alpha=0.01).fit(S, Y.astype(np.float32))

    theirs = timed(scikit)[1]
    note = f"{n} rows, 8 views, rank {RANK}; bandwidths given to Nystroem"
    share = f"{100 * landmarks.cpu / ours.cpu:.0f} % of the fit"
    return [
        Figure("KGHA, Nystrom", ours, "Nystroem + Ridge", theirs, product.scaled(operations / 1e9), note),
        Figure("landmarks of 8 views", landmarks, note=share),
    ]


def kernel(scale: float, product: Timed) -> list[Figure]:
    """Measure a Gaussian kernel matrix."""
    n, d = round(4000 * scale**0.5), 512
    X = np.random.default_rng(0).standard_normal((n, d)).astype(np.float32)
    gram_matrix(RBF(bandwidth=20.0), X[:64])
    _, ours = timed(lambda: gram_matrix(RBF(bandwidth=20.0), X))
    _, theirs = timed(lambda: rbf_kernel(X, gamma=0.5 / 400))
    return [
        Figure("Gaussian kernel", ours, "rbf_kernel", theirs, product.scaled(n * n * d / 1e9), f"{n} x {n}, d = {d}")
    ]


def solves(scale: float, product: Timed) -> list[Figure]:
    """Measure kernel ridge regression: a first solve, another ridge and other labels, with a float64 and float32
    factor."""
    n = round(4000 * scale ** (1 / 3))
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((n, 64)).astype(np.float32), (rng.random((n, LABELS)) < 0.02).astype(np.float64)
    K = gram_matrix(RBF(), X, np.float32, 0)[0]
    operator, wide = Dense(K), K.astype(np.float64)
    for method in ("cholesky", "mixed"):
        factorize(Dense(K[:300, :300]), 0.1, method).solve(Y[:300])  # Load the compiled loops.
    once, again = n**3 / 3 + 2 * n * n * LABELS, 2 * n * n * LABELS

    def residual(A: np.ndarray, c: float) -> float:
        left = Y - wide @ A.astype(np.float64) - c * A
        return float((np.linalg.norm(left, axis=0) / np.linalg.norm(Y, axis=0)).max())

    found = []
    for c in (0.01, 0.1):
        kept, rivals = {}, {}

        def first(ridge: float, kept: dict[float, Any] = kept) -> np.ndarray:
            kept[ridge] = factorize(operator, ridge, tol=1e-6)
            return kept[ridge].solve(Y, None, check=False).value

        for dtype in (np.float64, np.float32):
            entries, labels = K.astype(dtype), Y.astype(dtype)
            rival = KernelRidge(alpha=c, kernel="precomputed")
            _, theirs = timed(lambda rival=rival, A=entries, B=labels: rival.fit(A, B))
            rivals[f"KernelRidge, {dtype.__name__}, residual {residual(rival.dual_coef_, c):.0e}"] = theirs
        A, one = timed(lambda c=c, first=first: first(c))
        _, another = timed(lambda c=c, first=first: first(3 * c))
        _, labels_again = timed(lambda c=c, kept=kept: kept[c].solve(Y[::-1], None, check=False))
        note = f"{n} samples, {LABELS} labels, ridge {c}: {kept[c].method}, residual {residual(A, c):.0e}"
        works = [("first solve", one, once), ("further ridge", another, once), ("further labels", labels_again, again)]
        for rival, theirs in rivals.items():
            found += [
                Figure(f"{work}, ridge {c}", ours, rival, theirs, product.scaled(limit / 1e9), note)
                for work, ours, limit in works
            ]
    return found


def sweeps(scale: float, product: Timed) -> list[Figure]:
    """Measure sweeps over many candidates from one pass and over several bandwidths, relative to one fit."""
    n = round(3000 * scale)
    views, kernels, Y = rows_of_views(n)
    chosen = {view: views[view] for view in ("gist", "dense_sift", "dense_hue")}
    model = KGHA(
        {v: kernels[v] for v in chosen},
        approximation=Nystrom(rank=200),
        decoder=Scores(label_sets=False),
        random_state=0,
    )
    model.fit(chosen, Y)
    _, one = timed(lambda: model.fit(chosen, Y))
    grid = {"ridge": [1e-3, 1e-2, 0.1, 0.3, 1.0], "balance": [1e-3, 1e-2, 0.03, 0.1, 0.3]}
    grid["n_components"] = [0.2, 0.4, 0.6, 0.8, 1.0]
    _, whole = timed(lambda: sweep(model, chosen, Y, grid, folds=4, refit=False))
    few = {"bandwidth": [0.5, 0.7, 1.0, 1.4, 2.0], "ridge": grid["ridge"]}
    _, wide = timed(lambda: sweep(model, chosen, Y, few, folds=4, refit=False))
    note = f"{n} rows, 3 views, rank 200, 4 folds"
    return [
        Figure("sweep, 500 fits", whole, "one fit", one, note=note),
        Figure("sweep, 5 bandwidths, 100 fits", wide, "one fit", one, note=note),
    ]


def stored(scale: float, product: Timed) -> list[Figure]:
    """Measure a product with a stored kernel in the page cache, relative to reading its files."""
    n, k = round(8192 * scale**0.5), 100
    X = np.random.default_rng(0).standard_normal((n, 64)).astype(np.float32)
    tiles = FeatureTiles(MultiKernel.of("x", RBF(bandwidth=10.0)), {"x": X}, 1024)
    B = np.random.default_rng(1).standard_normal((n, k)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        writer = stores.create_kernel(f"{folder}/k.zarr", n, 1024, np.dtype(np.float32), {})
        for i, j in writer.missing():
            writer.write(i, j, tiles.tile(i, j))
        writer.finish()
        operator = Tiles(stores.open_kernel(f"{folder}/k.zarr"), None, False, np.dtype(np.float32), tiles)
        operator @ B
        _, ours = timed(lambda: operator @ B)
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        _, reading = timed(lambda: [path.read_bytes() for path in files])
    made = Tiles(tiles, None, False, np.dtype(np.float32), tiles)
    _, again = timed(lambda: made @ B)
    multiplied = product.scaled(2 * n * n * k / 1e9)
    limit = reading if reading.wall > multiplied.wall else multiplied
    formed = product.scaled((n * n * 64 + 2 * n * n * k) / 1e9)
    note = f"{n} x {n} float32, {k} columns"
    return [
        Figure("product, stored tiles", ours, "reading the files", reading, limit, note),
        Figure("product, recomputed tiles", again, limit=formed, note=f"{note}, d = 64"),
    ]


def graph(scale: float, product: Timed) -> list[Figure]:
    """Measure graphs of 15 neighbors: exact search, scikit-learn, and the approximate search of umap-learn."""
    n, d = round(6000 * scale**0.5), 128
    X = np.random.default_rng(0).standard_normal((n, d)).astype(np.float32)
    X += 3 * np.random.default_rng(1).standard_normal((50, d)).astype(np.float32)[np.arange(n) % 50]
    neighbors(X[:200], 5)
    _, ours = timed(lambda: neighbors(X, 15))
    _, theirs = timed(lambda: NearestNeighbors(n_neighbors=15).fit(X).kneighbors())
    limit, note = product.scaled(2 * n * n * d / 1e9), f"{n} rows, d = {d}"
    found = [Figure("15 neighbors", ours, "NearestNeighbors", theirs, limit, note)]
    try:
        from pynndescent import NNDescent
    except ImportError:
        return [*found, Figure("15 neighbors", ours, "NN-descent", note="pynndescent is not installed")]
    # Compile the loops; with too few rows, some of them would not run.
    NNDescent(X[:5000], n_neighbors=15, random_state=0, n_jobs=1)
    descended, theirs = timed(lambda: NNDescent(X, n_neighbors=16, random_state=0, n_jobs=1).neighbor_graph[0])
    exact = neighbors(X, 15).indices
    hit = np.mean([len(np.intersect1d(a, b)) / 15 for a, b in zip(exact[:500], descended[:500], strict=True)])
    return [*found, Figure("15 neighbors", ours, f"NN-descent, recall {100 * hit:.0f} %", theirs, limit, note)]


def defaults(scale: float, product: Timed) -> list[Figure]:
    """Measure fits with default options, without label sets, and by an alternative in float64, and a first
    prediction."""
    rng, found = np.random.default_rng(0), []
    kinds = {
        "rbf": (
            lambda **given: MultiViewRidge("rbf", **given),
            lambda: KernelRidge(alpha=0.01, kernel="rbf", gamma=0.005),
        ),
        "linear": (lambda **given: MultiViewRidge("linear", **given), lambda: Ridge(alpha=0.01)),
        "KGHA": (KGHA, None),
    }
    for n, count in ((50, 10), (200, 10), (200, 100), (1000, 10), (1000, 100), (round(4000 * scale ** (1 / 3)), 100)):
        X = rng.standard_normal((n, 100))
        Y = (X @ rng.standard_normal((100, count)) + 5 * rng.standard_normal((n, count)) > 12).astype(np.uint8)
        Y[0] = 1
        note = f"{n} rows, 100 columns, {count} labels"
        for name, (make, rival) in kinds.items():
            found += by_default(f"default fit, {name}", make, rival, X, Y, note)
    return found


def by_default(
    work: str, make: Callable[..., Any], rival: Any, X: np.ndarray, Y: np.ndarray, note: str
) -> list[Figure]:
    """Measure alternating fits of an estimator and its alternative; return the fastest of each."""
    calls = [lambda: make(decoder=Scores(label_sets=False)).fit(X, Y), lambda: make().fit(X, Y)]
    calls += [lambda: rival().fit(X, Y.astype(np.float64))] if rival else []
    runs = [[timed(call) for call in calls] for _ in range(5 if len(X) < 1000 else 2)]
    bare, whole, *theirs = (min((run[i][1] for run in runs), key=lambda t: t.cpu) for i in range(len(calls)))
    _, sets = timed(lambda: runs[-1][1][0].predict_proba(X[:1]))
    found = [Figure(work, whole, "without label sets", bare, note=f"{note}; first probabilities {sets.cpu:.3f} s")]
    return found + [Figure(work, whole, type(rival()).__name__, took, note=note) for took in theirs]


def predictions(scale: float, product: Timed) -> list[Figure]:
    """Measure kernel ridge scores of single rows and batches, relative to the product that they need."""
    n, d = round(4000 * scale**0.5), 1000
    X = np.random.default_rng(0).standard_normal((n + 1000, d)).astype(np.float32)
    Y = (np.random.default_rng(1).random((n, 20)) < 0.05).astype(np.uint8)
    model = MultiViewRidge("rbf", ridge=1.0, decoder=Scores(label_sets=False)).fit(X[:n], Y)
    rival = KernelRidge(alpha=1.0, kernel="rbf", gamma=0.5 / d).fit(X[:n], Y.astype(np.float32))
    model.decision_function(X[n : n + 1])
    found = []
    for size, times in ((1, 50), (100, 5), (1000, 1)):
        new = X[n : n + size]
        ours, theirs, limit = (
            timed(lambda call=call, times=times: [call() for _ in range(times)])[1].scaled(1 / times)
            for call in (
                lambda new=new: model.decision_function(new),
                lambda new=new: rival.predict(new),
                lambda new=new: (new @ X[:n].T) @ Y,
            )
        )
        found.append(
            Figure(f"prediction, {size} at a time", ours, "KernelRidge", theirs, limit, f"{n} x {d}, 20 labels")
        )
    return found


def tables(scale: float, product: Timed) -> list[Figure]:
    """Measure the ingestion of a table of numbers, and of one with sample names, words and classes. pandas does the
    same work: digest of the file, unique names, words and classes as 0/1 columns, and files."""
    n, rng = round(20_000 * scale), np.random.default_rng(0)
    numbers = pd.DataFrame(rng.standard_normal((n, 100)).round(5)).add_prefix("f")
    mixed = numbers[[f"f{j}" for j in range(20)]].assign(id=[f"s{i}" for i in range(n)])
    mixed["color"], mixed["species"] = rng.choice(["red", "green", "blue"], n), rng.choice(["a", "b", "c"], n)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name, table, options in (
            ("100 numbers", numbers, {}),
            ("20 numbers, a word, classes, names", mixed, {"id": "id", "labels": ["species"]}),
        ):
            path, out = Path(folder, "x.csv"), Path(folder, "x.zarr")
            table.to_csv(path, index=False)

            def ours(path: Path = path, out: Path = out, options: dict[str, Any] = options) -> Any:
                return dmo.datasets.ingest_files({"x": path}, out, overwrite=True, **options)

            def theirs(path: Path = path, options: dict[str, Any] = options) -> None:
                hashlib.sha256(path.read_bytes()).hexdigest()
                frame = pd.read_csv(path)
                if options:
                    names, classes = frame.pop(options["id"]), frame[options["labels"]]
                    assert names.is_unique
                    frame = pd.get_dummies(frame.drop(columns=options["labels"]))
                    np.save(path.with_name("y.npy"), pd.get_dummies(classes).to_numpy(np.uint8))
                    np.save(path.with_name("names.npy"), names.to_numpy(str))
                np.save(path.with_name("x.npy"), frame.to_numpy(np.float64))

            ours()  # The first run loads the imports for both.
            times = timed(ours)[1], timed(theirs)[1]
            found.append(
                Figure(f"ingest, {name}", times[0], "pandas, the same work", times[1], note=f"{n} rows of CSV")
            )
    return found


Works: TypeAlias = dict[str, Callable[[float, Timed], list[Figure]]]
WORKS: Works = {
    "pass": passes,
    "fit": fits,
    "kernel": kernel,
    "solve": solves,
    "sweep": sweeps,
    "stored": stored,
    "graph": graph,
    "default": defaults,
    "predict": predictions,
    "table": tables,
}


def machine() -> dict[str, Any]:
    """Return the machine and the versions on which the results depend."""
    names = ("dmo-learn", "numpy", "scipy", "scikit-learn", "numba", "zarr")
    tree = Path(dmo.__file__).parent  # `make bench-compare` imports the library from another folder.
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=tree, capture_output=True, text=True, check=False
    )
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory": psutil.virtual_memory().total,
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in names},
        "commit": commit.stdout.strip(),
        "load": round(psutil.getloadavg()[0], 1),
        "date": time.strftime("%Y-%m-%d"),
    }


def run(script: str, work: str, threads: int, scale: float) -> list[dict[str, Any]]:
    """Run one task of a script in a fresh process with `threads` threads for BLAS and compiled loops."""
    environment = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), str(threads))
    command = [sys.executable, script, "--one", work, "--scale", str(scale)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    if done.returncode:
        failed = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
        return [{"work": work, "rival": "", "threads": threads, "failed": failed}]
    return [figure | {"threads": threads} for figure in json.loads(done.stdout.splitlines()[-1])]


def ratio(above: dict[str, float] | None, below: dict[str, float] | None, threads: int) -> float | None:
    """Divide CPU seconds with one thread, and elapsed seconds with more."""
    clock = "cpu" if threads == 1 else "wall"
    return above[clock] / below[clock] if above and below and below[clock] else None


def show(result: dict[str, Any]) -> None:
    """Print the table of a run."""
    table = Table("task", "threads", "s", "CPU s", "compared with", "times as fast", "fraction of the limit", "")
    for row in result["figures"]:
        if "failed" in row:
            table.add_row(row["work"], str(row["threads"]), "", "", "", "", "", row["failed"])
            continue
        faster, share = (ratio(row[key], row["ours"], row["threads"]) for key in ("theirs", "limit"))
        table.add_row(
            row["work"],
            str(row["threads"]),
            f"{row['ours']['wall']:.2f}",
            f"{row['ours']['cpu']:.2f}",
            row["rival"],
            "" if faster is None else f"{faster:.2g}",
            "" if share is None else f"{100 * share:.0f} %",
            row["note"],
        )
    Console(width=150).print(table)


def compare(base: Path, new: Path) -> None:
    """Compare the tasks of two runs, each relative to the float32 product measured in the same process."""
    runs = [json.loads(path.read_text()) for path in (base, new)]
    keyed = [{(r["work"], r["rival"].split(",")[0], r["threads"]): r for r in run["figures"]} for run in runs]
    table = Table("task", "threads", runs[0]["machine"]["commit"], runs[1]["machine"]["commit"], "times as fast")
    loads = [run["machine"].get("load", "not recorded") for run in runs]  # Earlier commits did not record it.
    table.title = f"system load at the start: {loads[0]}, {loads[1]}"
    beside_others = set()
    for key, row in keyed[1].items():
        if (key[0], key[2]) in beside_others:  # The same task of dmo, compared with another library.
            continue
        beside_others.add((key[0], key[2]))
        if key in keyed[0] and all("product" in found[key] for found in keyed):
            clock = "cpu" if row["threads"] == 1 else "wall"
            times = [r["ours"][clock] / r["product"][clock] for r in (keyed[0][key], row)]
            seconds = [f"{r['ours'][clock]:.2f} s" for r in (keyed[0][key], row)]
            table.add_row(row["work"], str(row["threads"]), *seconds, f"{times[0] / times[1]:.2f}")
    Console(width=120).print(table)


def main(works: Works = WORKS, script: str = __file__, about: str | None = __doc__) -> None:
    """Run the command line of a script with such tasks."""
    parser = option_parser(about, json=None)
    parser.add_argument("--works", nargs="*", default=list(works), choices=works)
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the sizes of the tasks")
    parser.add_argument("--compare", nargs=2, type=Path, help="two JSON files to compare")
    parser.add_argument("--one", choices=works, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.compare:
        compare(*asked.compare)
        return
    if asked.one:
        product = a_product()
        with bars(disable=True):
            figures = works[asked.one](asked.scale, product)
        print(json.dumps([asdict(figure) | {"product": asdict(product)} for figure in figures]))
        return
    result: dict[str, Any] = {"machine": machine(), "scale": asked.scale, "figures": []}
    for threads in asked.threads:
        for work in asked.works:
            result["figures"] += run(script, work, threads, asked.scale)
    show(result)
    if asked.json:
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        asked.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
