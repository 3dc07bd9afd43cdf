"""CPU seconds and peak anonymous memory of commands on a large store, compared with plain loops (Linux only).

    OPENBLAS_NUM_THREADS=1 python pipelines/benchmarks/large_store.py [--samples N ...] [--labels L] [--shards K]
        [--parquet] [--workers W] [--rivals] [--only PART] [--work WORK]

Features (float32) and labels (uint8, or CSR from 2000 labels on) are generated block by block into shards. Anonymous
memory is RssAnon in /proc/PID/status, sampled every 5 ms; pages of files, such as memory-mapped `.npy` files, do not
count. Each command starts a process, so every value includes about 2 CPU seconds and 130 MiB for Python and the
libraries. With `--workers`, commands that use workers also run on a local cluster. With `--rivals`, scikit-learn's
`Ridge` in memory and NumPy loops over zarr arrays do the same work. Results for several numbers of samples are
extrapolated to 10^8.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import psutil
import scipy.sparse
from rich.console import Console
from rich.table import Table

from dmo.workflows.program import option_parser

BLOCK = 10_000
"""Samples that are generated at a time."""
MANY_LABELS = 2000
"""From this number of labels on, each sample has five random labels, stored as CSR."""
RATE = 2.5
"""Score above which a label is predicted."""


class Cost(NamedTuple):
    """Costs of a process and its children: CPU seconds, seconds, peak MiB of the process and of its largest child."""

    cpu: float
    seconds: float
    client: float
    worker: float


def drawn(samples: int, features: int, labels: int) -> Iterator[tuple[np.ndarray, Any]]:
    """Generate blocks of features and labels; a label is a noisy threshold of one direction, or random if there are
    many."""
    rng = np.random.default_rng(0)
    many = labels >= MANY_LABELS
    directions = rng.normal(size=(features, 1 if many else labels)).astype(np.float32) / np.sqrt(features)
    for start in range(0, samples, BLOCK):
        m = min(BLOCK, samples - start)
        X = rng.standard_normal((m, features), np.float32)
        if many:  # Cubes of uniform numbers make a few labels frequent and most of them rare.
            columns = (labels * rng.random(5 * m) ** 3).astype(int)
            Y = scipy.sparse.coo_array(
                (np.ones(5 * m, np.uint8), (np.arange(5 * m) // 5, columns)), (m, labels)
            ).tocsr()
            Y.data[:] = 1
        else:
            Y = (X @ directions + rng.standard_normal((m, labels), np.float32) > RATE).astype(np.uint8)
        yield X, Y


def draw(folder: Path, samples: int, features: int, labels: int, shards: int, parquet: bool) -> Path:
    """Write shards of features and labels; return the description that `dmo ingest files` reads."""
    size = BLOCK * -(-samples // (BLOCK * shards))
    blocks, kept = drawn(samples, features, labels), list[Any]()
    for number in range(-(-samples // size)):
        m = min(size, samples - number * size)
        if parquet:
            import pyarrow as pa
            from pyarrow.parquet import ParquetWriter

            schema = pa.schema([("x", pa.list_(pa.float32(), features))])
            with ParquetWriter(folder / f"x.{number:02d}.parquet", schema) as file:
                labeled = []
                for X, Y in itertools.islice(blocks, -(-m // BLOCK)):
                    file.write_table(pa.table([pa.FixedSizeListArray.from_arrays(X.ravel(), features)], schema=schema))
                    labeled.append(Y)
        else:
            array = np.lib.format.open_memmap(folder / f"x.{number:02d}.npy", "w+", np.float32, (m, features))
            labeled = []
            for place, (X, Y) in enumerate(itertools.islice(blocks, -(-m // BLOCK))):
                array[place * BLOCK : (place + 1) * BLOCK] = X
                labeled.append(Y)
        if labels >= MANY_LABELS:
            kept += labeled
        else:
            np.save(folder / f"y.{number:02d}.npy", np.concatenate(labeled))
    if kept:
        scipy.sparse.save_npz(folder / "y.npz", scipy.sparse.csr_matrix(scipy.sparse.vstack(kept)))
    views = {"x": "x.*.parquet::x" if parquet else "x.*.npy"}
    description = folder / "set.json"
    description.write_text(json.dumps({"views": views, "labels": "y.npz" if kept else "y.*.npy"}))
    return description


def anonymous(pid: int) -> float:
    """Read the anonymous memory of a process in MiB; return 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("RssAnon")), 0.0)


def measured(command: list[str], children: bool) -> Cost:
    """Run a Python command and wait for its end; with `children`, also measure the memory of its children."""
    before, start, client, worker = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter(), 0.0, 0.0
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL)
    known, rounds = list[int](), 0
    while process.poll() is None:
        client = max(client, anonymous(process.pid))
        if children and rounds % 50 == 0:
            try:
                known = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
            except psutil.NoSuchProcess:
                break
        worker = max([worker, *map(anonymous, known)])
        rounds += 1
        time.sleep(0.005)
    if process.wait():
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(cpu, time.perf_counter() - start, client, worker)


def commands(folder: Path, workers: int | None) -> Iterator[tuple[str, Path, list[str]]]:
    """Yield names, outputs and arguments of the commands, each of which reads the output of an earlier one."""
    store, ridge, kgha = (str(folder / name) for name in ("f.zarr", "ridge.zarr", "kgha.zarr"))
    linear = ["--kernel", "linear", "--approximation", "nystrom"]
    yield "ingest", folder / "f.zarr", ["ingest", "files", store, "--from", str(folder / "set.json")]
    cluster = [] if workers is None else ["--scheduler", "local", "--workers", str(workers)]
    for more in ([], cluster)[: 1 + bool(cluster)]:
        where = f" on {workers} workers" if more else ""
        yield f"fit ridge{where}", Path(ridge), ["fit", "ridge", store, ridge, *linear, *more]
        nystrom = ["--kernel", "rbf", "--approximation", "nystrom", "--rank", "300"]
        yield f"fit kgha{where}", Path(kgha), ["fit", "kgha", store, kgha, *nystrom, *more]
        yield f"transform{where}", folder / "z.zarr", ["transform", kgha, store, str(folder / "z.zarr"), *more]
        annotate = ["annotate", ridge, store, str(folder / "labels.zarr"), "--split", "all", *more]
        yield f"annotate to zarr{where}", folder / "labels.zarr", annotate
    for options in ((), ("--proba",), ("--scores",)):
        for ending in ("csv", "parquet") if options != ("--scores",) else ("zarr", "csv", "parquet"):
            out = folder / f"labels{''.join(options)}.{ending}"
            name = " ".join(["annotate", *options, "to", ending])
            yield name, out, ["annotate", ridge, store, str(out), "--split", "all", *options]
    yield "evaluate", folder, ["evaluate", ridge, store, "--split", "all"]
    yield "report", folder / "report.html", ["report", ridge, store, str(folder / "report.html"), "--split", "all"]


def ridge_in_memory(folder: Path) -> None:
    """Fit scikit-learn's ridge on all rows in memory, predict all rows and compare with a threshold."""
    from sklearn.linear_model import Ridge

    X = np.concatenate([np.load(path) for path in sorted(folder.glob("x.*.npy"))])
    Y = np.concatenate([np.load(path) for path in sorted(folder.glob("y.*.npy"))]).astype(np.float32)
    model = Ridge(alpha=1.0, solver="cholesky").fit(X, Y)
    np.save(folder / "rival.npy", model.predict(X) > 0.5)


def fit_loop(folder: Path) -> None:
    """Solve the normal equations of ridge regression, summed over blocks of a zarr array."""
    import zarr

    X, rest = zarr.open_array(folder / "f.zarr" / "x", mode="r"), sorted(folder.glob("y.*.npy"))
    Y = [np.load(path, mmap_mode="r") for path in rest]
    gram, right, first = np.zeros((X.shape[1], X.shape[1])), np.zeros((X.shape[1], Y[0].shape[1])), 0
    for labels in Y:
        for start in range(0, len(labels), 4096):
            y = labels[start : start + 4096].astype(np.float32)
            x = X[first + start : first + start + len(y)]
            gram += x.T @ x
            right += x.T @ y
        first += len(labels)
    np.save(folder / "weights.npy", np.linalg.solve(gram + np.eye(len(gram)), right).astype(np.float32))


def annotate_loop(folder: Path) -> None:
    """Annotate in a loop: read a block, multiply, compare and write."""
    import zarr

    X, W = zarr.open_array(folder / "f.zarr" / "x", mode="r"), np.load(folder / "weights.npy")
    shape, chunk = (X.shape[0], W.shape[1]), (4096, W.shape[1])
    out = zarr.create_array(folder / "loop.zarr", shape=shape, chunks=chunk, dtype="uint8", overwrite=True)
    for start in range(0, X.shape[0], 4096):
        out[start : start + 4096] = X[start : start + 4096] @ W > 0.5


RIVALS: dict[str, Callable[[Path], None]] = {
    "scikit-learn Ridge in memory: fit and predict": ridge_in_memory,
    "zarr and NumPy loop: fit ridge": fit_loop,
    "zarr and NumPy loop: annotate": annotate_loop,
}


def costs_of(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, Cost]]:
    """Run the commands and the alternatives on the files in a folder."""
    for name, out, arguments in commands(folder, options.workers):
        if options.only and not any(part in name for part in options.only):
            continue
        if out != folder:
            shutil.rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)
        yield name, measured(["-m", "dmo", *arguments, "--quiet"], "workers" in name)
    for name in RIVALS if options.rivals else ():
        yield name, measured([__file__, "--rival", name, "--work", str(folder)], children=False)


def extrapolated(sizes: list[int], found: list[dict[str, Cost]]) -> Table:
    """Compute the slope between the smallest and largest number of samples, and extrapolate to 10^8 samples."""
    titles = "command", "CPU s per 10^6", "bytes per sample", "10^8: CPU h", "10^8: GiB"
    table, (few, many) = Table(*titles, title=f"slope from {sizes[0]} to {sizes[-1]} samples"), (sizes[0], sizes[-1])
    for name in found[0]:
        first, last = found[0][name], found[-1][name]
        cpu, bytes_ = ((b - a) / (many - few) for a, b in ((first.cpu, last.cpu), (first.client, last.client)))
        whole = last.cpu + cpu * (1e8 - many), last.client + bytes_ * (1e8 - many)
        cells = cpu * 1e6, bytes_ * 2**20, whole[0] / 3600, whole[1] / 1024
        table.add_row(name, *(f"{cell:.1f}" for cell in cells))
    return table


def main() -> None:
    parser = option_parser(__doc__, work=None)
    parser.add_argument("--samples", type=int, nargs="+", default=[200_000])
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--labels", type=int, default=100)
    parser.add_argument("--shards", type=int, default=1, help="files of features, and of labels (default: %(default)s)")
    parser.add_argument("--parquet", action="store_true", help="write features as Parquet shards")
    parser.add_argument("--workers", type=int, help="also run on a local cluster with this many workers")
    parser.add_argument("--rivals", action="store_true", help="also run scikit-learn and loops with NumPy")
    parser.add_argument("--only", action="append", help="parts of names of commands to run (default: all)")
    parser.add_argument("--rival", choices=RIVALS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rival:
        RIVALS[options.rival](Path(options.work))
        return
    found = list[dict[str, Cost]]()
    for samples in options.samples:
        with TemporaryDirectory() as temporary:
            folder = Path(temporary) if options.work is None else Path(options.work) / str(samples)
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / "set.json").exists():
                draw(folder, samples, options.features, options.labels, options.shards, options.parquet)
            title = f"{samples} x {options.features}, {options.labels} labels"
            table = Table("command", "CPU s", "s", "peak anonymous MiB", "of the largest worker", title=title)
            found.append({})
            for name, cost in costs_of(folder, options):
                found[-1][name] = cost
                cells = f"{cost.cpu:.1f}", f"{cost.seconds:.1f}", f"{cost.client:.0f}", f"{cost.worker:.0f}"
                print(f"{name}: {cells[0]} CPU s, {cells[2]} MiB", file=sys.stderr, flush=True)
                table.add_row(name, *cells[:3], cells[3] if cost.worker else "")
            Console().print(table)
    if len(found) > 1:
        Console().print(extrapolated(options.samples, found))


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    main()
