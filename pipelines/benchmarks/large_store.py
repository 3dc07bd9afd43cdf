"""CPU seconds and peak anonymous memory of the commands on a large store of features and labels, one process each. Linux.

    OPENBLAS_NUM_THREADS=1 python pipelines/benchmarks/large_store.py [--samples N] [--only PART] [--folder DIR]

Features (float32) and labels (uint8) are drawn block by block into `.npy` files of `--shards` parts. Anonymous memory is
RssAnon in /proc/PID/status, sampled every 5 ms: pages of files, such as memory-mapped `.npy` files, do not count. Each
command starts a process, so every figure includes about 2 CPU seconds and 130 MiB for Python and the libraries.
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
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.console import Console
from rich.table import Table

BLOCK = 10_000
"""Samples that are drawn at a time."""


def draw(folder: Path, samples: int, features: int, labels: int, shards: int) -> Path:
    """Write shards of features and labels, where each label is a noisy threshold of one direction; return the description."""
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(features, labels)).astype(np.float32) / np.sqrt(features)
    edges = np.linspace(0, samples, shards + 1).astype(int)
    for number, size in enumerate(np.diff(edges).tolist()):
        parts = {"x": (np.float32, features), "y": (np.uint8, labels)}
        files = {}
        for name, (dtype, width) in parts.items():
            path = folder / f"{name}.{number:02d}.npy"
            files[name] = np.lib.format.open_memmap(path, "w+", dtype, (size, width))
        for start in range(0, size, BLOCK):
            X = rng.standard_normal((min(BLOCK, size - start), features), np.float32)
            noise = rng.standard_normal((len(X), labels), np.float32)
            files["x"][start : start + BLOCK] = X
            files["y"][start : start + BLOCK] = X @ directions + noise > 2.5
    description = folder / "set.json"
    description.write_text(json.dumps({"views": {"x": "x.*.npy"}, "labels": "y.*.npy"}))
    return description


def anonymous(pid: int) -> int:
    """Read the anonymous memory of a process in KiB, 0 after its end."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")), 0)


def measured(arguments: list[str]) -> tuple[float, float, float]:
    """Run a `dmo` command; return CPU seconds, seconds and peak anonymous MiB."""
    before, start, peak = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter(), 0
    process = subprocess.Popen([sys.executable, "-m", "dmo", *arguments, "--quiet"], stdout=subprocess.DEVNULL)
    while process.poll() is None:
        peak = max(peak, anonymous(process.pid))
        time.sleep(0.005)
    if process.returncode:
        raise SystemExit(f"dmo {' '.join(arguments)} ended with {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, time.perf_counter() - start, peak / 1024


def commands(folder: Path, description: Path) -> dict[str, tuple[Path, list[str]]]:
    """Outputs and arguments of the measured commands by name; each reads what an earlier one wrote."""
    store, ridge, kgha = (str(folder / name) for name in ("f.zarr", "ridge.zarr", "kgha.zarr"))
    low_rank = ["--kernel", "linear", "--approximation", "nystrom"]
    found = {
        "ingest": ("f.zarr", ["ingest", "files", store, "--from", str(description)]),
        "fit ridge": ("ridge.zarr", ["fit", "ridge", store, ridge, *low_rank]),
        "fit kgha": ("kgha.zarr", ["fit", "kgha", store, kgha, *low_rank]),
        "transform": ("z.zarr", ["transform", kgha, store, str(folder / "z.zarr")]),
    }
    for options, ending in itertools.product(((), ("--proba",), ("--scores",)), ("zarr", "csv", "parquet")):
        if (options, ending) != (("--proba",), "zarr"):
            out = f"labels{''.join(options)}.{ending}"
            arguments = ["annotate", ridge, store, str(folder / out), "--split", "all", *options]
            found[" ".join(["annotate", *options, "to", ending])] = (out, arguments)
    found["evaluate"] = ("", ["evaluate", ridge, store, "--split", "all"])
    found["report"] = ("report.html", ["report", ridge, store, str(folder / "report.html"), "--split", "all"])
    return {name: (folder / out, arguments) for name, (out, arguments) in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--labels", type=int, default=100)
    parser.add_argument("--shards", type=int, default=1, help="files of features, and of labels (default: %(default)s)")
    parser.add_argument("--only", action="append", help="parts of names of commands to run (default: all)")
    parser.add_argument("--folder", type=Path, help="folder that keeps the files, which a later run reuses")
    options = parser.parse_args()
    shape = f"{options.samples} x {options.features}, {options.labels} labels"
    table = Table("command", "CPU s", "s", "peak anonymous MiB", title=shape)
    with TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        description = folder / "set.json"
        if not description.exists():
            draw(folder, options.samples, options.features, options.labels, options.shards)
        for name, (out, arguments) in commands(folder, description).items():
            if options.only and not any(part in name for part in options.only):
                continue
            if out != folder:
                shutil.rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)
            cpu, seconds, peak = measured(arguments)
            print(f"{name}: {cpu:.1f} CPU s, {seconds:.1f} s, {peak:.0f} MiB", file=sys.stderr, flush=True)
            table.add_row(name, f"{cpu:.1f}", f"{seconds:.1f}", f"{peak:.0f}")
    Console().print(table)


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    main()
