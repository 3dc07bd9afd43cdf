"""Kill workers, drivers and schedulers, and damage files. A run must return the undisturbed result or raise an error.

If DMO_CHAOS_TABLE=FILE is set, the suite writes a table with the outcome of each fault at each stage.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import dask
import fsspec
import numpy as np
import psutil
import pytest
import scipy.sparse
from distributed import Client, LocalCluster
from object_store import object_store
from places import PATIENCE, await_workers
from scenes import draw_images
from shell import run
from sklearn.base import clone
from typer.testing import CliRunner

import dmo.cluster.workers
import dmo.fit.row_sums
import dmo.linalg.tiles
import dmo.progress
from dmo import KGHA, Exact, Nystrom, Solver, stores
from dmo.cli.app import app
from dmo.cluster import WorkerMemoryError, connect
from dmo.demo.digits import digits
from dmo.progress import listen
from dmo.workflows.program import FAILED, WRONG, code

pytestmark = pytest.mark.chaos
BIN = Path(sys.executable).parent
ENVIRONMENT = {
    **os.environ,
    "OPENBLAS_NUM_THREADS": "1",
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "5s",
    "PYTHONWARNINGS": "",
}
N = 500


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[list[tuple[str, str, str]]]:
    """Collect the rows of the outcome table as (fault, stage, outcome)."""
    rows: list[tuple[str, str, str]] = []
    yield rows
    if path := os.environ.get("DMO_CHAOS_TABLE"):
        lines = ["| fault | stage | outcome |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
        Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(autouse=True)
def _every_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dmo.progress, "_EVERY", 0.0)
    monkeypatch.setattr(dmo.cluster.workers, "_SENDING", 5.0)
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)


def until(true: Callable[[], Any]) -> Any:
    """Call `true` repeatedly until it returns a true value, and return this value."""
    for _ in range(10 * PATIENCE):
        if found := true():
            return found
        time.sleep(0.1)
    raise TimeoutError("timed out")


class Scheduler:
    """Scheduler and worker that are started from the command line as separate processes."""

    def __init__(self, folder: Path):
        self.file = folder / "scheduler.json"
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> "Scheduler":
        self.stop()
        self.file.unlink(missing_ok=True)
        common = ["--scheduler-file", str(self.file), "--no-dashboard"]
        self._run("scheduler", "--host", "127.0.0.1", "--port", "0", *common)
        until(self.file.is_file)
        self._run(
            "worker", "--nworkers", "1", "--nthreads", "1", "--host", "127.0.0.1", "--death-timeout", "60", *common
        )
        return self

    def _run(self, *arguments: str) -> None:
        quiet = subprocess.DEVNULL
        command = [str(BIN / "dask"), *arguments]
        self.processes.append(
            subprocess.Popen(command, stdout=quiet, stderr=quiet, env=ENVIRONMENT, start_new_session=True)
        )

    def kill_scheduler(self) -> None:
        self.processes[0].kill()
        self.processes[0].wait(PATIENCE)

    def stop(self) -> None:
        for process in reversed(self.processes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE)
        self.processes = []


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    """Provide a scheduler that the tests of this module may kill and restart."""
    running = Scheduler(tmp_path_factory.mktemp("scheduler"))
    yield running
    running.stop()


@pytest.fixture
def scheduler(begun: Scheduler) -> Scheduler:
    """Provide a running scheduler with a worker, and reuse processes of the previous test that are still alive."""
    alive = begun.processes and all(process.poll() is None for process in begun.processes)
    running = begun if alive else begun.start()
    with Client(scheduler_file=str(running.file), timeout=PATIENCE, set_as_default=False) as client:
        client.wait_for_workers(1, timeout=PATIENCE)  # the worker may be restarting
    return running


@contextmanager
def killing(client: Client, stage: str, steps: int, workers: int = 2) -> Iterator[list[int]]:
    """Send SIGKILL to a worker after `steps` steps of `stage`, and yield the list of killed process ids."""
    client.wait_for_workers(workers, timeout=PATIENCE)
    victim = min(client.run(os.getpid).values())
    killed: list[int] = []

    def watch(event: dict[str, Any]) -> None:
        if event["stage"] == stage and event["done"] >= steps and event["state"] != "failed" and not killed:
            os.kill(victim, signal.SIGKILL)
            killed.append(victim)

    with listen(watch):
        yield killed
    assert killed, f"the stage {stage!r} did not start"


@pytest.fixture(scope="module")
def samples() -> tuple[dict[str, np.ndarray], np.ndarray]:
    data = digits()
    return {"pixels": np.asarray(data.views["pixels"][:N])}, data.Y[:N]


def fit(samples: Any, approximation: Any) -> KGHA:
    views, Y = samples
    return KGHA("rbf", ridge=10.0, approximation=approximation, n_components=3, solver=Solver(tol=1e-3)).fit(views, Y)


STAGES = {
    "kernel building": (lambda folder: Exact("stored", "float64", 100, str(folder)), "kernel store pixels", 1),
    "a solve": (lambda folder: Exact("resident", "float64", 100), "eigenpairs (block steps)", 1),
    "a search on workers": (lambda folder: Exact("resident", "float64", 100), "eigenpairs (block steps)", 1),
    "a pass": (lambda folder: Nystrom(rank=40), "pass over the rows", 4),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STAGES)
def test_a_worker_killed_changes_nothing(
    name: str,
    samples: Any,
    tmp_path: Path,
    small_workers: LocalCluster,
    monkeypatch: pytest.MonkeyPatch,
    table: list[Any],
) -> None:
    monkeypatch.setattr(dmo.fit.row_sums, "BLOCK", 25)
    monkeypatch.setattr(dmo.fit.row_sums, "TASK_BLOCKS", 1)
    monkeypatch.setattr(dmo.fit.row_sums, "_SEGMENT", 4)
    if name == "a search on workers":
        monkeypatch.setattr(dmo.linalg.tiles, "_WORTH", 0)
    engine, stage, steps = STAGES[name]
    views = samples[0]
    with connect(small_workers.scheduler_address, timeout=PATIENCE) as place:
        expected = fit(samples, engine(tmp_path / "calm")).decision_function(views)
        with killing(place.client, stage, steps):
            found = fit(samples, engine(tmp_path / "killed")).decision_function(views)
    # After the loss of a worker, sums are split among fewer threads, so they differ by floating-point errors.
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-12)
    for calm in sorted((tmp_path / "calm").glob("*.zarr")):
        assert digest(calm) == digest(tmp_path / "killed" / calm.name)
    table.append(
        (
            "SIGKILL of a worker (LocalCluster)",
            name,
            "survived, the same values (up to floating-point error), kernel stores the same bits",
        )
    )


@pytest.fixture(scope="module")
def small_cluster() -> Iterator[LocalCluster]:
    settings = {"distributed.worker.memory.target": 0.01, "distributed.scheduler.allowed-failures": 1}
    with (
        dask.config.set(settings),
        LocalCluster(
            n_workers=2, threads_per_worker=1, memory_limit="600MiB", host="127.0.0.1", dashboard_address="127.0.0.1:0"
        ) as cluster,
    ):
        yield cluster


@pytest.fixture
def small_workers(small_cluster: LocalCluster) -> LocalCluster:
    """Wait for two workers that spill early. A worker is restarted once if a task exceeds its memory."""
    await_workers(small_cluster, 2)
    return small_cluster


@pytest.mark.slow
def test_tiles_beyond_the_memory_of_workers_are_spilled(small_workers: LocalCluster, table: list[Any]) -> None:
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((2500, 8)), (rng.random((2500, 5)) < 0.3).astype(float)
    most = [0]

    def on_disk(dask_worker: Any) -> int:
        return int(dask_worker.data.spilled_total.disk)

    def fitted() -> np.ndarray:
        engine = Exact("resident", "float64", 250)
        model = KGHA("rbf", ridge=10.0, approximation=engine, n_components=3, solver=Solver(tol=1e-3)).fit(X, Y)
        return model.decision_function(X[:100])

    with connect(small_workers.scheduler_address, timeout=PATIENCE) as place:
        restarts = len(place.client.get_events("worker-restart-memory"))

        def watch(event: dict[str, Any]) -> None:
            if event["stage"] == "eigenpairs (block steps)" and not most[0]:
                most[0] = sum(place.client.run(on_disk).values())

        with listen(watch):
            found = fitted()
        assert len(place.client.get_events("worker-restart-memory")) == restarts
    assert most[0] > 4 << 20
    np.testing.assert_allclose(found, fitted(), rtol=1e-6, atol=1e-10)
    what = f"survived, {most[0] >> 20} MiB of tiles on the workers' disks, the same values"
    table.append(("a worker that fills its memory", "a solve with resident tiles", what))


@pytest.mark.slow
def test_work_that_no_worker_can_hold_is_refused(small_workers: LocalCluster, table: list[Any]) -> None:
    """Work that exceeds the memory of workers fails at the memory estimate or after repeated restarts of workers."""
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((150_000, 4)).astype(np.float32), np.eye(3)[np.arange(150_000) % 3]
    tiled, passed = Exact("resident", "float64", 2048), Nystrom(rank=1800, fit_rows=2000)
    sentences = {}
    with pytest.MonkeyPatch.context() as change:
        change.setattr(dmo.fit.row_sums, "BLOCK", 150_000)
        for stage, engine in {"a product of tiles": tiled, "a pass": passed}.items():
            with (
                pytest.raises(ValueError, match="limit") as refused,
                connect(small_workers.scheduler_address, timeout=PATIENCE),
            ):
                KGHA("rbf", approximation=engine, n_components=2, random_state=0).fit(X, Y)
            sentences[stage] = str(refused.value)
            assert "\n" not in str(refused.value)
            assert code(refused.value) == WRONG
    assert "needs" in sentences["a product of tiles"]
    assert sentences["a product of tiles"].count("its limit is 600.0 MiB") == 1
    with (
        pytest.raises(WorkerMemoryError) as refused,
        connect(small_workers.scheduler_address, timeout=PATIENCE) as place,
    ):
        place.client.submit(np.ones, 10**8).result()
    sentences["one task"] = str(refused.value)
    assert "the last while it ran 'ones'" in sentences["one task"]
    for stage in ("a pass", "one task"):
        assert re.match(r"workers were stopped \d+ times for exceeding their limit of 600 MiB", sentences[stage])
        assert "raise --memory-limit" in sentences[stage]
    table.extend(("a worker that fills its memory", stage, f'rejected: "{said}"') for stage, said in sentences.items())


@pytest.mark.slow
def test_workers_paused_for_memory_raise_a_one_line_error(
    small_workers: LocalCluster, table: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both workers pause, because their memory is full of data that they cannot spill."""
    for name, seconds in {"_LOOK": 0.2, "_PAUSED": 2.0, "_PATIENCE": 2.0}.items():
        monkeypatch.setattr(f"dmo.cluster.workers.{name}", seconds)
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((600, 4)), np.eye(3)[np.arange(600) % 3]
    model = KGHA("rbf", approximation=Exact("resident", block=100), n_components=2)

    def fill(dask_worker: Any) -> None:
        dask_worker.held = np.ones(((525 << 20) - psutil.Process().memory_info().rss) // 8)

    def release(dask_worker: Any) -> None:
        dask_worker.held = None

    with connect(small_workers.scheduler_address, timeout=PATIENCE) as place:
        begun: list[Any] = []

        def filled(event: dict[str, Any]) -> None:
            if event["stage"] == "eigenpairs (block steps)" and not begun:
                begun.append(place.client.run(fill))

        said = r"2 of 2 workers wait for memory.*limit of 600\.0 MiB"
        try:
            with listen(filled), pytest.raises(WorkerMemoryError, match=said) as refused:
                model.fit(X, Y)
        finally:
            place.client.run(release)
        found = model.fit(X, Y).decision_function(X)
    np.testing.assert_allclose(
        found, clone(model).set_params(approximation=Exact()).fit(X, Y).decision_function(X), atol=1e-4
    )
    table.append(("workers filled with other data", "a solve with resident tiles", f'rejected: "{refused.value}"'))


def digest(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def dmo_run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def applied(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Create a feature store, a model, and the scores of an undisturbed run."""
    folder = tmp_path_factory.mktemp("applied")
    paths = {name: folder / f"{name}.zarr" for name in ("features", "model", "rows")}
    assert dmo_run("ingest", "digits", paths["features"]).exit_code == 0
    fitting = ("--views", "pixels", "--approximation", "nystrom", "--rank", 40)
    assert dmo_run("fit", "kgha", paths["features"], paths["model"], *fitting).exit_code == 0
    assert dmo_run("transform", paths["model"], paths["features"], paths["rows"], "--block", 50).exit_code == 0
    return paths


def same_rows(found: Path, expected: Path) -> None:
    assert stores.verify(found) == []
    np.testing.assert_allclose(stores.open_results(found)[:], stores.open_results(expected)[:], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_worker_killed_while_it_writes_costs_its_block(
    applied: dict[str, Path], scheduler: Scheduler, tmp_path: Path, table: list[Any]
) -> None:
    out = tmp_path / "rows.zarr"
    where = ("--block", 50, "--scheduler", scheduler.file)
    with (
        Client(scheduler_file=str(scheduler.file), timeout=PATIENCE, set_as_default=False) as client,
        killing(client, "blocks of samples", 4, workers=1),
    ):
        done = dmo_run("transform", applied["model"], applied["features"], out, *where)
    assert done.exit_code == 0, done.stderr
    same_rows(out, applied["rows"])
    table.append(("SIGKILL of a worker (scheduler process)", "a write (transform)", "survived, the same values"))


@pytest.mark.slow
def test_a_command_resumes_after_its_scheduler_was_killed(
    applied: dict[str, Path], scheduler: Scheduler, tmp_path: Path, table: list[Any]
) -> None:
    out, log = tmp_path / "rows.zarr", tmp_path / "log.jsonl"
    command = [BIN / "dmo", "transform", applied["model"], applied["features"], out, "--block", "4"]
    driver = subprocess.Popen(
        [*map(str, command), "--scheduler", str(scheduler.file), "--log", str(log)],
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: out.is_dir() and len(list((out / "embedding").glob("c.*"))) > 20)
    scheduler.kill_scheduler()
    _, errors = driver.communicate(timeout=PATIENCE)
    assert driver.returncode == FAILED, errors
    said = errors.splitlines()[-1]
    assert said.startswith("dmo: the cluster was lost (")
    assert said.endswith("finished parts are kept; repeat the command to resume or restart it")
    assert json.loads(log.read_text(encoding="utf-8").splitlines()[-1])["error"] == said.removeprefix("dmo: ")
    again = dmo_run(*command[1:])
    assert again.exit_code == 0
    assert "blocks are there already" in again.stderr
    same_rows(out, applied["rows"])
    table.append(("SIGKILL of the scheduler", "a write (transform)", f'exit code 3, resumed: "{said}"'))


@pytest.mark.slow
def test_an_exact_fit_resumes_after_its_scheduler_was_killed(
    applied: dict[str, Path], scheduler: Scheduler, tmp_path: Path, table: list[Any]
) -> None:
    out, kept = tmp_path / "model.zarr", tmp_path / "kept"
    command = ["fit", "kgha", applied["features"], out, "--views", "pixels", "--n-components", "5"]
    command += ["--approximation", "exact", "--storage", "resident", "--block", "100", "--ridge", "10"]

    def watch(event: dict[str, Any]) -> None:
        if event["stage"] == "eigenpairs (block steps)" and event["state"] != "failed":
            scheduler.kill_scheduler()

    with listen(watch):
        stopped = dmo_run(*command, "--scheduler", scheduler.file, "--checkpoint", kept)
    assert stopped.exit_code == FAILED, stopped.stderr
    said = stopped.stderr.splitlines()[-1]
    assert said.startswith("dmo: the cluster was lost (")
    assert said.endswith("finished parts are kept; repeat the command to resume or restart it")
    assert not out.exists() or not stores.describe(out)["complete"]
    assert dmo_run(*command, "--checkpoint", kept).exit_code == 0
    assert dmo_run(*command[:3], tmp_path / "calm.zarr", *command[4:]).exit_code == 0
    views = {"pixels": stores.open_features(applied["features"]).views["pixels"][:50]}
    found, expected = (dmo.load(str(path)).decision_function(views) for path in (out, tmp_path / "calm.zarr"))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
    assert list(kept.glob("*")) == []
    table.append(("SIGKILL of the scheduler", "an exact fit with resident tiles", f'exit code 3, resumed: "{said}"'))


DRIVERS = """
import json, os, random, signal, sys, traceback
from pathlib import Path
import numpy as np
import dmo.progress
from dmo import KGHA, Exact, Nystrom, stores
from dmo.blocks import Subset
from dmo.demo.digits import digits_samples
from dmo.stores.checkpoints import checkpoints
from dmo.fit import row_sums

dmo.progress._EVERY, row_sums.BLOCK, row_sums.TASK_BLOCKS, row_sums._SEGMENT = 0.0, 20, 1, 2

def work(folder):
    store = digits_samples().write(folder / "features.zarr", block=300)
    index = np.arange(200)
    views = {name: Subset(store.views[name], index) for name in ("pixels", "gradients")}
    engines = {"exact": Exact("stored", "float64", 100, str(folder / "kernels")), "nystrom": Nystrom(rank=30)}
    for name, engine in engines.items():
        with checkpoints(str(folder / "checkpoints"), 0):
            model = KGHA({view: "rbf" for view in views}, approximation=engine, n_components=6, random_state=0)
            scores = model.fit(views, store.labels[index]).decision_function(views).astype("float32")
        model.save(folder / f"{name}-model.zarr")
        writer = stores.create_results(folder / f"{name}-scores.zarr", 200, scores.shape[1], kind="scores", block=50)
        with dmo.progress.stage("scores", 8) as advance:
            for block in writer.missing():
                writer.write(block, scores[writer.rows(block)])
                advance(1)
        writer.finish()

def drive(folder, most=None):
    # the work in a process of its own, which waits after every event; killed at its event number `most`
    events_out, events_in = os.pipe()
    go_out, go_in = os.pipe()
    child = os.fork()
    if not child:
        os.close(events_out), os.close(go_in)
        def tell(event):
            os.write(events_in, b".")
            os.read(go_out, 1)
        try:
            with dmo.progress.listen(tell):
                work(Path(folder))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(events_in), os.close(go_out)
    events = 0
    while os.read(events_out, 1):
        events += 1
        if events == most:
            os.kill(child, signal.SIGKILL)
            break
        os.write(go_in, b".")
    os.close(events_out), os.close(go_in)
    return events, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

calm, killed = sys.argv[1:]
total, code = drive(calm)
chance = random.Random(0)
moments = [chance.randrange(total // 20, total) for _ in range(3)]
codes = [drive(killed, moment)[1] for moment in moments]
print(json.dumps([total, code, codes, drive(killed)[1]]))
"""


@pytest.mark.slow
def test_a_driver_killed_at_random_moments_leaves_the_same_bits(tmp_path: Path, table: list[Any]) -> None:
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    calm.mkdir()
    killed.mkdir()
    command = [sys.executable, "-c", DRIVERS, str(calm), str(killed)]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    total, first, codes, last = json.loads(done.stdout)
    assert total > 60
    assert (first, last) == (0, 0), done.stderr
    assert set(codes) <= {-signal.SIGKILL, 0}, done.stderr
    assert codes.count(-signal.SIGKILL) > 1  # a run that starts late may finish before it is killed
    names = sorted(path.name for path in calm.iterdir())
    assert sorted(path.name for path in killed.iterdir()) == names
    for name in names:
        if name.endswith("-model.zarr"):
            (arrays, meta), (expected, known) = stores.load_model(killed / name), stores.load_model(calm / name)
            assert json.dumps(meta).replace("/killed/", "/calm/") == json.dumps(known)
            for key, value in expected.items():
                np.testing.assert_array_equal(arrays[key], value)
        else:
            assert digest(killed / name) == digest(calm / name)
    stages = "ingest, kernel store, solve, pass, model, rows"
    table.append((f"SIGKILL of the driver, {len(codes)} random moments", stages, "resumed, the same bits"))


def make_features(path: Path) -> None:
    rng = np.random.default_rng(0)
    specs = {"dense": stores.ViewSpec(3, "float32"), "sparse": stores.ViewSpec(20, "float32", kind="sparse")}
    labels = (rng.random((20, 4)) < 0.5).astype(np.uint8)
    writer = stores.create_features(
        path,
        20,
        specs,
        labels=labels,
        label_names=list("abcd"),
        sample_ids=[f"s{i}" for i in range(20)],
        split=["train"] * 15 + ["test"] * 5,
        block=8,
    )
    for name, block in writer.missing():
        where = slice(8 * block, min(8 * block + 8, 20))
        values = rng.standard_normal((where.stop - where.start, 3 if name == "dense" else 20))
        writer.write(name, block, values if name == "dense" else scipy.sparse.csr_array(values * (values > 1)))
    writer.finish()


def make_kernel(path: Path) -> None:
    A = np.random.default_rng(0).standard_normal((20, 20))
    writer = stores.create_kernel(path, 20, 8, np.dtype("float64"), {})
    for i, j in writer.missing():
        writer.write(i, j, (A + A.T)[8 * i : 8 * i + 8, 8 * j : 8 * j + 8])
    writer.finish()


def make_rows(path: Path) -> None:
    writer = stores.create_results(path, 20, list("abc"), block=8, sample_ids=[str(i) for i in range(20)])
    for block in writer.missing():
        writer.write(block, np.random.default_rng(block).standard_normal((min(8, 20 - 8 * block), 3)))
    writer.finish()


def make_model(path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "a": rng.standard_normal((5, 3)),
        "b/c": scipy.sparse.csr_array(np.eye(4)),
        "names": np.array(["x", "yy"]),
    }
    stores.save_model(path, arrays, {"estimator": "none", "number": 1.5})


def read_features(path: Path) -> list[Any]:
    store = stores.open_features(path)
    sparse = store.views["sparse"][:].toarray()
    parts = [store.views["dense"][:], sparse, store.labels, store.label_names, store.sample_ids, store.split]
    return [np.asarray(part) for part in parts]


def read_rows(path: Path) -> list[Any]:
    store = stores.open_results(path)
    return [store[:], np.array(store.columns), np.array(store.sample_ids)]


COPIES = {f"kernel/c.{i}.{j}" for i in range(3) for j in range(i + 1, 3)}
"""Transposed tiles of `make_kernel`, which other readers need and which dmo reads only to verify the store."""


def read_kernel(path: Path) -> list[Any]:
    kernel = stores.open_kernel(path)
    return [kernel.tile(i, j) for i in range(3) for j in range(i + 1)]


def read_model(path: Path) -> list[Any]:
    arrays, meta = stores.load_model(path)
    return [arrays["a"], arrays["b/c"].toarray(), arrays["names"], np.array(json.dumps(meta))]


KINDS: dict[str, tuple[Callable[[Path], None], Callable[[Path], list[Any]]]] = {
    "feature store": (make_features, read_features),
    "kernel store": (make_kernel, read_kernel),
    "result store": (make_rows, read_rows),
    "model": (make_model, read_model),
}
DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "a corrupted byte": lambda data: (
        data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
    ),
    "a truncated file": lambda data: data[: len(data) // 2],
    "an empty file": lambda data: b"",
    "a missing file": lambda data: None,
}


@pytest.mark.parametrize("how", list(DAMAGE))
@pytest.mark.parametrize("kind", list(KINDS))
def test_damage_is_refused_and_never_read(kind: str, how: str, tmp_path: Path, table: list[Any]) -> None:
    make, read = KINDS[kind]
    whole, path = tmp_path / "whole", tmp_path / "damaged"
    make(whole)
    expected = read(whole)
    refused, sentences = 0, list[str]()
    files = sorted(str(file.relative_to(whole)) for file in whole.rglob("*") if file.is_file())
    for name in files:
        shutil.copytree(whole, path)
        data = DAMAGE[how]((path / name).read_bytes())
        (path / name).unlink()
        if data is not None:
            (path / name).write_bytes(data)
        try:
            found = read(path)
        except (stores.StoreError, FileNotFoundError) as error:
            refused += 1
            sentences.append(str(error))
            if name != "zarr.json":
                assert stores.verify(path)
        else:
            if name in COPIES:
                assert len(stores.verify(path)) == 1
            else:
                assert not name.rpartition("/")[2].startswith("c.") or "sparse" in name, f"{name} was read"
            for got, wanted in zip(found, expected, strict=True):
                np.testing.assert_array_equal(got, wanted, err_msg=name)
        shutil.rmtree(path)
    chunks = [name for name in files if name.rpartition("/")[2].startswith("c") and name not in COPIES]
    assert refused >= len(chunks)
    assert not any("\n" in sentence for sentence in sentences)
    table.append((how, f"{kind}, every file ({len(files)})", f"rejected ({refused}), or not needed and read unchanged"))


COMMANDS = {
    "extract": ("extract", "{here}/pics", "{s3}/f.zarr", "--set", "moments", "--labels", "{here}/pics/labels.csv"),
    "fit": ("fit", "kgha", "{s3}/f.zarr", "{s3}/m.zarr", "--n-components", "2", "--approximation", "exact"),
    "annotate": ("annotate", "{s3}/m.zarr", "{s3}/f.zarr", "{s3}/a.zarr"),
    "transform": ("transform", "{s3}/m.zarr", "{s3}/f.zarr", "{s3}/z.zarr", "--block", "8"),
    "evaluate": ("evaluate", "{s3}/m.zarr", "{s3}/f.zarr"),
    "verify": ("verify", "{s3}/a.zarr"),
}


SOME = {"failing": 0.05, "busy": 0.05, "lost": 0.02, "cut": 0.05, "reset": 0.05, "etag": 0.05, "crc": 0.05}


@pytest.mark.slow
def test_commands_outlast_an_object_store_that_fails_one_request_in_ten(tmp_path: Path, table: list[Any]) -> None:
    pytest.importorskip("moto.server", reason="moto is not installed")
    draw_images(tmp_path / "pics", 30)
    faults: list[int] = []
    with object_store("chaos", attempts=4) as service:
        for name, command in COMMANDS.items():
            with service.trouble(**SOME):
                found = run(*(part.format(s3="s3://chaos", here=tmp_path) for part in command))
            faults.append(service.faults)
            if name != "verify":
                calm = run(*(part.format(s3=tmp_path, here=tmp_path) for part in command))
                assert without_costs(found.stdout) == without_costs(calm.stdout)
            table.append(
                (
                    "S3: 12 % refused or lost, 20 % of the answers broken",
                    f"dmo {name}",
                    f"{service.faults} faults, same result",
                )
            )
        assert sum(faults) > 20
        for name in ("a", "z"):
            np.testing.assert_array_equal(
                stores.open_results(f"s3://chaos/{name}.zarr")[:], stores.open_results(tmp_path / f"{name}.zarr")[:]
            )


MIDWAY = {
    "ingest": ("ingest", "files", "{s3}/{kind}f.zarr", "--view", "x={here}/x.csv", "--label-columns", "y"),
    "fit": ("fit", "ridge", "{s3}/f.zarr", "{s3}/{kind}m.zarr"),
    "transform": ("transform", "{s3}/p.zarr", "{s3}/f.zarr", "{s3}/{kind}z.zarr", "--block", "8"),
    "verify": ("verify", "{s3}/f.zarr"),
}
MIDST = [
    ("denied", "ingest", {2}),
    ("denied", "transform", {2}),
    ("silent", "fit", {3}),
    ("reset", "transform", {3}),
    ("flipped", "fit", {2, 3, 4}),
    ("flipped", "verify", {3, 4}),
]


@pytest.mark.slow
def test_a_command_resumes_after_its_object_store_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: list[Any]
) -> None:
    pytest.importorskip("moto.server", reason="moto is not installed")
    rows = np.random.default_rng(0).standard_normal((40, 3)).round(3).tolist()
    lines = [f"{a},{b},{c},{'sun' if a > 0 else 'sea'}" for a, b, c in rows]
    (tmp_path / "x.csv").write_text("\n".join(["a,b,c,y", *lines]), encoding="utf-8")

    def command(name: str, kind: str) -> list[str]:
        return [part.format(s3="s3://midway", here=tmp_path, kind=kind) for part in MIDWAY[name]]

    with object_store("midway") as service:
        run(*command("ingest", ""))
        run("fit", "kgha", "s3://midway/f.zarr", "s3://midway/p.zarr")
        for kind, name, codes in MIDST:
            with monkeypatch.context() as patch, dask.config.set({"dmo.stores.tries": 2}):
                patch.setattr(fsspec.get_filesystem_class("s3"), "read_timeout", 1)
                fsspec.get_filesystem_class("s3").clear_instance_cache()
                with service.trouble(range(5, 1 << 60), **{kind: 1.0}):
                    found = CliRunner().invoke(app, command(name, kind))
            fsspec.get_filesystem_class("s3").clear_instance_cache()
            assert found.exit_code in codes, (kind, name, found.stderr, found.exception)
            assert service.faults
            if found.exit_code in (2, 3):
                assert re.match("dmo: s3://midway/.*[^\n]*\n$", found.stderr.splitlines(keepends=True)[-1])
            run(*command(name, kind))
            table.append(
                (
                    f"S3: {kind} from the middle of the run on",
                    f"dmo {name}",
                    f"exit code {found.exit_code}, then resumes",
                )
            )
        for store in ("f", "p", "deniedf", "deniedz", "silentm", "resetz", "flippedm"):
            assert stores.verify(f"s3://midway/{store}.zarr") == []


def without_costs(text: str) -> list[str]:
    """Remove lines with paths, times and byte counts, which differ between runs, from the output of a command."""
    return [line.strip() for line in text.splitlines() if not re.search(r"zarr|^time|^peak|^speed|^size", line)]
