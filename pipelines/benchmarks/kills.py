"""KGHA at ESP Game's shape while workers and drivers are killed: unchanged results, and the time lost per death.

    python pipelines/benchmarks/kills.py [--worker-kills 200] [--driver-kills 100] [--command-kills 40] [--scale 1]

Workers: fits run on a LocalCluster of two single-threaded workers, of which a random one receives SIGKILL at random
times. First there are `--timed` fits with one death each, alternating with undisturbed fits to measure the lost time.
The other fits have `--deaths` deaths each, until the total is reached. Every fitted array is compared with an
undisturbed fit.

Drivers: `dmo fit` and `dmo transform` with a checkpoint folder receive SIGKILL at a random time after their start-up,
and run again until they finish. The stores are compared byte by byte.

Commands: `dmo tune`, `fit` on stored kernels, `search` and `serve` receive `--command-kills` each, at any time, on a
small store, and run again. Their output and files are compared. The exit code is 1 if anything differs. Linux only.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import dask
import numpy as np
from _espgame import VIEWS, arrays, fit, make_store
from distributed import LocalCluster
from rich.console import Console
from rich.table import Table

from dmo import stores
from dmo.cluster import connect
from dmo.workflows.program import option_parser

OUT = Console(width=120)
PATIENCE = 600  # Maximum seconds to wait for workers to come back.
# By default, a LocalCluster abandons a worker that is missing 15 s after an earlier death, even if it was back in
# between.
LASTING = {"distributed.deploy.lost-worker-timeout": "1 hour"}
COSTS = (
    "costs",
    "seconds",
    "stages",
    "plan",
    "peak_memory_bytes",
)  # Costs in the meta of a model, which are not part of the result.


@dataclass
class Deaths:
    """Thread that kills a random worker at given times (seconds from its start) while a block runs."""

    cluster: LocalCluster
    moments: Sequence[float]
    chance: random.Random
    killed: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Deaths:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        begun = time.perf_counter()
        for moment in sorted(self.moments):
            if self._over.wait(max(0.0, begun + moment - time.perf_counter())):
                return
            alive = [nanny.pid for nanny in self.cluster.workers.values() if nanny.pid]
            if alive:
                os.kill(self.chance.choice(alive), signal.SIGKILL)
                self.killed += 1


@dataclass
class Compared:
    """Differences between fits and the undisturbed fit: the number of fits with identical bits, and the largest
    difference of the others relative to the largest entry of the array."""

    same: int = 0
    other: int = 0
    largest: float = 0.0
    where: str = ""

    def add(self, found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
        differing = [name for name in expected if found[name].tobytes() != expected[name].tobytes()]
        self.same += not differing
        self.other += bool(differing)
        for name in differing:
            scale = np.abs(expected[name]).max() or 1.0
            gap = float(np.abs(found[name].astype(float) - expected[name].astype(float)).max() / scale)
            if gap >= self.largest:
                self.largest, self.where = gap, name


def timed_fit(store: stores.FeatureStore, rank: int) -> tuple[float, dict[str, np.ndarray]]:
    start = time.perf_counter()
    model = fit(store, rank)
    return time.perf_counter() - start, arrays(model)


def kill_workers(asked: argparse.Namespace, store: stores.FeatureStore) -> bool:
    """Run fits while workers are killed, print a table, and return whether all results are bitwise identical."""
    chance, compared, killed = random.Random(asked.seed), Compared(), 0
    calm, disturbed = list[float](), list[float]()
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster,
        connect(cluster.scheduler_address) as backend,
    ):
        backend.client.wait_for_workers(2, timeout=PATIENCE)
        _, expected = timed_fit(store, asked.rank)  # This fit also warms up the workers.
        usual = timed_fit(store, asked.rank)[0]
        while killed < asked.worker_kills:
            number = 1 if len(disturbed) < asked.timed else min(asked.deaths, asked.worker_kills - killed)
            if number == 1:
                backend.client.wait_for_workers(2, timeout=PATIENCE)
                seconds, found = timed_fit(store, asked.rank)
                calm.append(seconds)
                compared.add(found, expected)
            backend.client.wait_for_workers(2, timeout=PATIENCE)
            moments = [chance.uniform(0, usual * max(1, number / 2)) for _ in range(number)]
            with Deaths(cluster, moments, chance) as deaths:
                seconds, found = timed_fit(store, asked.rank)
            compared.add(found, expected)
            killed += deaths.killed
            if number == 1 and deaths.killed == 1:
                disturbed.append(seconds)
            OUT.log(
                f"{killed} workers killed, {compared.same} identical results, {compared.other} others, {seconds:.1f} s"
            )
    table = Table(
        "workers killed",
        "fits",
        "identical fits",
        "other fits",
        "largest difference",
        "array",
        title="deaths of workers",
    )
    table.add_row(
        str(killed),
        str(compared.same + compared.other),
        str(compared.same),
        str(compared.other),
        f"{compared.largest:.1e}",
        compared.where,
    )
    OUT.print(table)
    if disturbed:
        lost = np.median(disturbed) / np.median(calm) - 1
        OUT.print(
            f"one death per fit: median {np.median(disturbed):.2f} s over {len(disturbed)} fits, undisturbed "
            f"{np.median(calm):.2f} s over {len(calm)}: {100 * lost:.1f} % lost "
            f"(means {np.mean(disturbed):.2f} and {np.mean(calm):.2f})"
        )
    return compared.other == 0


def commands(store: Path, folder: Path, rank: int, scheduler: str) -> list[list[str]]:
    """Return the commands that fit a model and then transform all samples."""
    program = [str(Path(sys.executable).parent / "dmo")]
    model, run = (
        str(folder / "model.zarr"),
        ["--scheduler", scheduler, "--checkpoint", str(folder / "checkpoints")],
    )
    engine = ["--approximation", "nystrom", "--rank", str(rank), "--n-components", "20"]
    return [
        [*program, "fit", "kgha", str(store), model, "--overwrite", *engine, *run],
        [*program, "transform", model, str(store), str(folder / "rows.zarr"), "--block", "256", *run[:2]],
    ]


def drive(todo: Sequence[Sequence[str]], limit: float | None) -> tuple[int, float]:
    """Run the commands in order and kill the one that runs after `limit` seconds; return the number of finished
    commands and the elapsed seconds."""
    begun = time.perf_counter()
    for number, command in enumerate(todo):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            try:
                rest = None if limit is None else max(0.01, begun + limit - time.perf_counter())
                _, errors = process.communicate(timeout=rest)
            except subprocess.TimeoutExpired:
                process.kill()
                return number, time.perf_counter() - begun
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {errors[-2000:]}")
    return len(todo), time.perf_counter() - begun


def contents(folder: Path) -> dict[str, bytes]:
    """Return the output of the commands: all files outside the model, and the model's arrays and meta without costs."""
    model = folder / "model.zarr"
    held, meta = stores.load_model(model)
    assert not list(folder.glob("checkpoints/*")), "a checkpoint was left behind"
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_relative_to(model)]
    found = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(files)}
    found |= {f"model {name}": np.ascontiguousarray(_dense(value)).tobytes() for name, value in held.items()}
    return found | {"model": json.dumps(_without_costs(meta), sort_keys=True).encode()}


def _dense(value: Any) -> np.ndarray:
    return value.toarray() if hasattr(value, "toarray") else value


def _without_costs(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_costs(item) for key, item in value.items() if key not in COSTS}
    return value


def kill_drivers(asked: argparse.Namespace, store: Path, work: Path) -> bool:
    """Run commands while their drivers are killed, print a table, and return whether their output is bitwise
    identical."""
    chance, killed, runs, differing = random.Random(asked.seed + 1), 0, 0, dict[str, int]()
    folder = work / "driven"
    shutil.rmtree(folder, ignore_errors=True)
    with LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster:
        todo = commands(store, folder, asked.rank, cluster.scheduler_address)
        # A death during the imports has no effect, so measure their time.
        _, starting = drive([[todo[0][0], "--version"]], None)
        usual = [drive([command], None)[1] for command in todo]
        expected = contents(folder)
        while killed < asked.driver_kills:
            shutil.rmtree(folder)
            done = 0
            while done < len(todo):
                # Choose any time during the remaining commands, or after them (no kill).
                limit = chance.uniform(starting, 1.25 * sum(usual[done:])) if killed < asked.driver_kills else None
                done += drive(todo[done:], limit)[0]
                killed += done < len(todo)
            runs += 1
            found = contents(folder)
            for name in found.keys() | expected.keys():
                if found.get(name) != expected.get(name):
                    differing[name] = differing.get(name, 0) + 1
            OUT.log(f"{killed} drivers killed, {runs} finished runs, {len(differing)} files differ")
    table = Table("drivers killed", "finished runs", "files and arrays", "differing", title="deaths of drivers")
    table.add_row(str(killed), str(runs), str(len(expected)), ", ".join(sorted(differing)) or "none")
    OUT.print(table)
    return not differing


def quick_commands(store: Path, folder: Path) -> dict[str, list[str]]:
    """Return the commands that need no cluster: a sweep, a fit on stored kernels, a search and the page with its
    model."""
    program, model = str(Path(sys.executable).parent / "dmo"), str(folder / "model.zarr")
    fit = [
        "kgha",
        str(store),
        model,
        "--overwrite",
        "--n-components",
        "5",
        "--checkpoint",
        str(folder / "checkpoints"),
        "--json",
    ]
    stored = ["--approximation", "exact", "--storage", "stored", "--path", str(folder / "kernels")]
    return {
        "tune": [program, "tune", *fit, "--folds", "2", "--ridge", "0.1,1"],
        "stored kernels": [program, "fit", *fit, *stored],
        "search": [program, "search", model, str(store), "--sample", "0", "--json"],
        "serve": [program, "serve", model, str(store), "--no-browser"],
    }


def said(command: Sequence[str], limit: float | None, rows: bytes) -> Any:
    """Return the JSON output of a command, or the page's answers to a file of `rows`; None if it was killed before."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        timer = threading.Timer(limit or PATIENCE, process.kill)
        timer.start()
        try:
            if command[1] != "serve":
                text, errors = process.communicate()
                if process.returncode not in (0, -signal.SIGKILL):
                    raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {errors[-2000:]}")
                return None if process.returncode else _without_costs(json.loads(text or "{}"))
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.npy"\r\n\r\n'
            kind = {"Content-Type": "multipart/form-data; boundary=x"}
            with suppress(OSError, ValueError, HTTPException):
                asked = Request(f"{address}describe", head + rows + b"\r\n--x--\r\n", kind)
                return [json.load(urlopen(asked)) for _ in range(3)]
            return None
        finally:
            timer.cancel()
            process.kill()


def kill_commands(asked: argparse.Namespace, work: Path) -> bool:
    """Kill each of `quick_commands`, print a table, and return whether output and files are bitwise identical."""
    chance, folder, path = random.Random(asked.seed + 2), work / "quick", work / "quick.zarr"
    store, stream, same = make_store(path, 0.02, ["gist"]), io.BytesIO(), True
    np.save(stream, store.views["gist"][:3])
    table = Table("command", "killed", "finished runs", "differing", title="deaths of commands")
    shutil.rmtree(folder, ignore_errors=True)
    for name, command in quick_commands(path, folder).items():

        def outcome(text: Any) -> Any:
            whole = not stores.verify(path) and not stores.verify(folder / "model.zarr")
            return text, whole, contents(folder)

        begun = time.perf_counter()
        expected = outcome(said(command, None, stream.getvalue()))
        assert expected[0] is not None, f"{name} said nothing"
        usual, killed, runs, differing = time.perf_counter() - begun, 0, 0, 0
        while killed < asked.command_kills or not runs:
            if runs and name in ("tune", "stored kernels"):
                shutil.rmtree(folder)
            found = None
            while found is None:
                limit = chance.uniform(0, 1.25 * usual) if killed < asked.command_kills else None
                found = said(command, limit, stream.getvalue())
                killed += found is None
            runs += 1
            differing += outcome(found) != expected
        table.add_row(name, str(killed), str(runs), str(differing))
        OUT.log(f"{name}: {killed} killed, {runs} finished runs, {differing} differ")
        same &= not differing
    OUT.print(table)
    return same


def main() -> int:
    parser = option_parser(__doc__, views=list(VIEWS), seed=0, work=None)
    parser.add_argument("--worker-kills", type=int, default=200)
    parser.add_argument("--driver-kills", type=int, default=100)
    parser.add_argument(
        "--command-kills", type=int, default=40, help="kills of each of tune, fit on stored kernels, search and serve"
    )
    parser.add_argument("--timed", type=int, default=10, help="fits with exactly one death, to measure the time lost")
    parser.add_argument("--deaths", type=int, default=4, help="deaths in each of the other fits")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the 20 770 rows of ESP Game")
    parser.add_argument("--rank", type=int, default=300)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(asked.work or temporary)
        work.mkdir(parents=True, exist_ok=True)
        path = work / f"espgame-{asked.scale:g}-{'-'.join(asked.views)}.zarr"
        with dask.config.set(LASTING):
            drawn = asked.worker_kills or asked.driver_kills
            store = make_store(path, asked.scale, asked.views) if drawn else None
            same = [kill_workers(asked, store)] if asked.worker_kills else []
            same += [kill_drivers(asked, path, work)] if asked.driver_kills else []
            same += [kill_commands(asked, work)] if asked.command_kills else []
    return int(not all(same))


if __name__ == "__main__":
    raise SystemExit(main())
