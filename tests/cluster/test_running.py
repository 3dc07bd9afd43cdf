"""Test JSON logs, exit codes, `dask dmo`, checkpoints of passes, and commands on workers."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import CancelledError
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import dmo.fit.row_sums
from dmo import stores
from dmo.cli.app import app
from dmo.errors import UserError
from dmo.fit.moments import LABELS
from dmo.fit.passes import FeatureRows, collect_moments
from dmo.kernels import parse
from dmo.lowrank import nystrom
from dmo.stores.checkpoints import checkpoints
from dmo.workflows.program import Terminated, code, ending

BIN = Path(sys.executable).parent
TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)


def run(*arguments: Any, code: int = 0) -> Any:
    found = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert found.exit_code == code, found.stderr
    return found


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("running")
    store, model, log = folder / "digits.zarr", folder / "model.zarr", folder / "log.jsonl"
    run("ingest", "digits", store, "--log", log)
    run("fit", "kgha", store, model, "--views", "pixels", "--approximation", "nystrom", "--rank", 50, "--log", log)
    return {"store": store, "model": model, "log": log}


def test_the_log_of_two_runs_lists_their_stages(fitted: dict[str, Path]) -> None:
    lines = [json.loads(line) for line in fitted["log"].read_text(encoding="utf-8").splitlines()]
    assert [line["program"] for line in lines if line["event"] == "start"] == ["dmo ingest digits", "dmo fit kgha"]
    assert [line["error"] for line in lines if line["event"] == "end"] == [None, None]
    passing = [line for line in lines if line.get("stage") == "pass over the rows"]
    assert [line["state"] for line in passing] == ["started", "done"] * 2  # label sets require a second pass
    assert all(line["time"].endswith("+00:00") for line in lines)


def test_the_log_keeps_the_sentence_of_a_failure(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    run("info", tmp_path / "absent", "--log", log, code=2)
    last = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])
    assert last["event"] == "end"
    assert last["error"].startswith(f"no store at {tmp_path / 'absent'}")


def test_every_command_offers_the_options_of_a_run() -> None:
    for command in (
        ["fit", "ridge"],
        ["tune", "kgha"],
        ["transform"],
        ["annotate"],
        ["evaluate"],
        ["ingest", "digits"],
        ["ingest", "files"],
    ):
        found = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"})
        assert all(name in found.stdout for name in ("--log", "--json", "--quiet"))
        for name in (
            "--scheduler",
            "--workers",
            "--checkpoint",
            "--performance-report",
        ):  # options of commands that use workers
            assert (name in found.stdout) == (command != ["ingest", "digits"]), (command, name)


def chained(error: BaseException, cause: BaseException) -> BaseException:
    """Return `error` with `cause` as its cause, as if raised by `raise error from cause`."""
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (UserError("x"), 2),
        (FileNotFoundError("x"), 2),
        (OSError(28, "No space left on device"), 3),
        (OSError(11, "sbatch accepted no job"), 3),
        (CancelledError("lost"), 3),
        (TimeoutError("late"), 3),
        (KeyboardInterrupt(), 130),
        (Terminated(), 143),
        (chained(RuntimeError("Error calling __set_name__"), KeyboardInterrupt()), 130),
        (KeyError("a fault"), None),
        (ValueError("raised inside a library: a fault"), None),
    ],
)
def test_an_exit_code_tells_what_to_do(
    error: BaseException, expected: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> None:
        raise error

    assert code(error) == expected
    if expected is None:
        with pytest.raises(type(error)):
            ending("program", work)
        return
    assert ending("program", work) == expected
    assert capsys.readouterr().err.startswith("program: ")


def test_a_terminated_program_says_so_and_ends_with_143(tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text(
        "import sys, time\n"
        "from dmo.workflows.program import ending\n"
        # A signal is handled only when the main thread runs, so sleep in short steps.
        "def work():\n    print('ready', flush=True)\n    for _ in range(3000):\n        time.sleep(0.1)\n"
        "sys.exit(ending('waits', work))\n",
        encoding="utf-8",
    )
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 143
    assert errors.startswith("waits: terminated; finished parts are kept")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Terminated])
def test_an_interrupt_that_python_drops_in_a_callback_comes_again(kind: type[BaseException]) -> None:
    class Dropped:
        def __del__(self) -> None:
            raise kind

    def work() -> None:
        Dropped()
        for _ in range(300):  # signals are handled only between sleeps
            time.sleep(0.1)

    assert ending("program", work) == code(kind())


def test_dask_runs_dmo(fitted: dict[str, Path]) -> None:
    command = [str(BIN / "dask"), "dmo", "info", str(fitted["store"]), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert json.loads(done.stdout)["kind"] == "features"


def test_a_scheduler_started_by_dask_loads_nothing_of_dmo_but_the_name_of_its_command() -> None:
    script = (
        "import sys\n"
        "from dask.cli import run_cli\n"
        "sys.argv = ['dask', 'scheduler', '--version']\n"
        "try:\n    run_cli()\nexcept SystemExit:\n    pass\n"
        "print(*(name for name in sys.modules if name.split('.')[0] in ('dmo', 'numba', 'scipy', 'sklearn', 'zarr')))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    assert set(done.stdout.splitlines()[-1].split()) == {"dmo", "dmo.cli", "dmo.cli.dask_command", "dmo.registry"}


def test_ingest_of_shards_on_workers_writes_the_same_store(local_cluster: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((900, 3)).astype(np.float32)
    X[5, 1], X[400] = np.nan, np.nan
    (tmp_path / "x").mkdir()
    for number, part in enumerate(np.array_split(X, 3)):
        np.save(tmp_path / "x" / f"{number}.npy", part)
    np.save(tmp_path / "y.npy", rng.random((900, 2)) < 0.5)
    found = []
    for where in ("in-process", local_cluster.scheduler_address):
        path = tmp_path / f"{len(found)}.zarr"
        given = ("--view", f"a={tmp_path / 'x'}", "--labels", tmp_path / "y.npy", "--block", 128)
        run("ingest", "files", path, *given, "--scheduler", where)
        assert stores.verify(path) == []
        store = stores.open_features(path)
        found.append((store.views["a"][:], store.attributes["missing"]))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1] == {"a": {"1": 1}}
    X[3, 2] = np.inf
    np.save(tmp_path / "x" / "0.npy", X[:300])
    said = run("ingest", "files", tmp_path / "bad.zarr", *given, "--scheduler", where, code=2).stderr
    assert "0.npy, row 3, column 2 is inf" in said


def test_workers_with_tiles_import_neither_sklearn_nor_pandas() -> None:
    code = "import sys, dmo.linalg.tiles; print({'sklearn', 'pandas', 'scipy.stats', 'numba'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "set()\n"


def test_workers_transform_annotate_and_evaluate_as_one_process_does(
    fitted: dict[str, Path], local_cluster: Any, tmp_path: Path
) -> None:
    where = ["--scheduler", local_cluster.scheduler_address]
    for command, extra in (("transform", ["--block", 100]), ("annotate", ["--block", 100, "--split", "all"])):
        here, there = tmp_path / f"{command}-here.zarr", tmp_path / f"{command}-there.zarr"
        run(command, fitted["model"], fitted["store"], here, *extra)
        said = run(command, fitted["model"], fitted["store"], there, *extra, *where)
        assert "dashboard: http://127.0.0.1" in said.stderr
        np.testing.assert_allclose(stores.open_results(there)[:], stores.open_results(here)[:], atol=1e-5)
        assert stores.verify(there) == []
    alone = json.loads(run("evaluate", fitted["model"], fitted["store"], "--json").stdout)
    together = json.loads(run("evaluate", fitted["model"], fitted["store"], "--json", *where).stdout)
    assert alone["f1"] == pytest.approx(together["f1"], abs=1e-6)


@pytest.mark.skipif(sys.platform != "linux", reason="needs glibc")
def test_a_task_uses_memory_again_that_was_freed() -> None:
    """Dask's nanny sets MALLOC_TRIM_THRESHOLD_, which causes page faults for every new large array."""
    code = """
import resource, numpy as np
from dmo.cluster.workers import run_task
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(100):
        np.ones(1 << 18)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults(), run_task(faults, []))
"""
    given = os.environ | {"MALLOC_TRIM_THRESHOLD_": "65536"}
    ran = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True)
    before, now = map(int, ran.stdout.split())
    pages = 100 * 8 * (1 << 18) / os.sysconf("SC_PAGESIZE")
    assert before > 0.9 * pages
    assert now < 0.1 * pages


def test_a_killed_pass_resumes_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((600, 5)), (rng.random((600, 3)) < 0.3).astype(np.float32)
    views = {"a": X, "b": X[:, :3]}
    maps = {view: nystrom(parse("rbf").fit(rows), rows, rank=8, random_state=0) for view, rows in views.items()}
    monkeypatch.setattr(dmo.fit.row_sums, "BLOCK", 16)
    monkeypatch.setattr(dmo.fit.row_sums, "TASK_BLOCKS", 1)

    def collect(labels: np.ndarray = Y, order: str = "ab") -> Any:
        with checkpoints(str(tmp_path), 0):
            return collect_moments(FeatureRows(views, {view: maps[view] for view in order}), labels)

    expected = collect()[0]
    assert list(tmp_path.iterdir()) == []
    task, calls = dmo.fit.row_sums._task, []

    def dies(job: Any, blocks: Any, *own: Any) -> Any:
        calls.append(blocks)
        if len(calls) == 23:
            raise KeyboardInterrupt
        return task(job, blocks, *own)

    monkeypatch.setattr(dmo.fit.row_sums, "_task", dies)
    with pytest.raises(KeyboardInterrupt):
        collect()
    kept = sorted(tmp_path.iterdir())  # the folder contains two generations of the state
    assert len(kept) == 2
    with checkpoints(str(tmp_path), 0):  # other checkpoints are deleted at the end
        collect(1 - Y)  # different labels require a separate checkpoint
        # A different order of the columns requires a separate checkpoint, too.
        assert list(collect(order="ba")[0].widths) == ["b", "a", LABELS]
        assert sorted(tmp_path.iterdir()) == kept
        calls.clear()
        calls.extend([None] * 100)
        found = collect()[0]
    assert len(calls) - 100 == 38 - 22
    np.testing.assert_array_equal(found.gram, expected.gram)
    np.testing.assert_array_equal(found.sums, expected.sums)
    assert list(tmp_path.iterdir()) == []


def test_restart_of_workers_ends_a_pass_that_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: Any
) -> None:
    X = np.random.default_rng(0).standard_normal((640, 5))
    views = {"a": X}
    maps = {"a": nystrom(parse("rbf").fit(X), X, rank=8, random_state=0)}
    monkeypatch.setattr(dmo.fit.row_sums, "BLOCK", 16)
    monkeypatch.setattr(dmo.fit.row_sums, "TASK_BLOCKS", 1)
    with dmo.cluster.connect(client):
        expected = collect_moments(FeatureRows(views, maps), None)[0]
    tree, calls = dmo.fit.row_sums._tree, []

    def restarts(*given: Any) -> Any:
        calls.append(given)
        found = tree(*given)
        if len(calls) == 4:
            client.restart()
        return found

    monkeypatch.setattr(dmo.fit.row_sums, "_tree", restarts)
    with (
        dmo.cluster.connect(client),
        pytest.raises(UserError, match=r"were restarted during the .*with --checkpoint"),
        checkpoints(str(tmp_path), 0),
    ):
        collect_moments(FeatureRows(views, maps), None)
    assert len(calls) == 4
    with dmo.cluster.connect(client), checkpoints(str(tmp_path), 0):
        found = collect_moments(FeatureRows(views, maps), None)[0]
    assert len(calls) < 2 * 4
    np.testing.assert_array_equal(found.gram, expected.gram)


@pytest.mark.parametrize("name", ["kgha_annotation", "llt_tables", "mlsi_text", "morp_images", "morp_preferences"])
def test_every_pipeline_takes_the_options_of_a_run(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(TESTS.parent / "pipelines"))
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        import_module(name).main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert all(
        option in said for option in ("--scheduler", "--log", "--performance-report", "--workers", "--checkpoint")
    )
