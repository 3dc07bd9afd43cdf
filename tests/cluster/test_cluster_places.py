"""Test the cluster backends of dmo with their limits, settings, batch scripts, TLS and error messages."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import numpy as np
import pytest
import yaml
from distributed import Client, LocalCluster, Security
from distributed.comm import connect as dial
from typer.testing import CliRunner

from dmo.cli.app import app
from dmo.cluster import Backend, connect, current_client, setting, targets, tls, usable_memory
from dmo.cluster.settings import defaults
from dmo.cluster.targets import STARTERS, batch_cluster, local_sizes, open_client
from dmo.demo.digits import digits_samples
from dmo.errors import UserError
from dmo.kernels import parse
from dmo.kernels.multikernel import FeatureTiles, MultiKernel
from dmo.linalg.tiles import Tiles
from dmo.stores import StoreError, ViewSpec, create_features, create_results, open_results
from dmo.workflows.plan import markdown, pass_graph, resource_table, tile_graph
from dmo.workflows.program import RunOptions, running

CLUSTER = Path(__file__).resolve().parents[2] / "cluster"


@pytest.fixture(autouse=True)
def _no_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # batch clusters write to the home directory


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Create TLS certificates with the script that cluster/tls/README.md describes."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(["bash", str(CLUSTER / "tls" / "make.sh"), str(folder), "127.0.0.1"], check=True, timeout=120)
    return {
        "dmo.tls.ca-file": f"{folder}/ca.pem",
        "dmo.tls.cert": f"{folder}/dmo.pem",
        "dmo.tls.key": f"{folder}/dmo.key",
    }


def test_an_option_goes_before_the_environment_before_a_file_before_the_default(tmp_path: Path) -> None:
    (tmp_path / "dmo.yaml").write_text("dmo: {local: {workers: 3, threads: 5}, timeout: 7}", encoding="utf-8")
    code = (
        "import dask; from dmo.cluster import setting, Backend; from dmo.cluster.targets import local_sizes;"
        "print(setting('local.workers'), setting('local.threads'), setting('timeout'), setting('local.host'),"
        "local_sizes(Backend('local', workers=2))['n_workers'])"
    )
    environment = {**os.environ, "DASK_CONFIG": str(tmp_path), "DASK_DMO__LOCAL__WORKERS": "4"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, timeout=120, capture_output=True, text=True
    )
    assert done.stdout.split() == ["4", "5", "7", "127.0.0.1", "2"]


def test_a_setting_that_dmo_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the setting dmo.local.wokers is unknown; see dmo/cluster/dmo.yaml"):
        setting("local.wokers")


@pytest.mark.parametrize(
    ("name", "value", "needed"),
    [
        ("local.workers", "three", "a whole number above 0"),
        ("local.threads", 0, "a whole number above 0"),
        ("local.threads", None, "a whole number above 0"),
        ("batch.jobs", True, "a whole number above 0"),
        ("timeout", [], "a number above 0, at most 1e+09"),
        ("local.memory-share", 1.5, "a number above 0, at most 1"),
        ("local.memory-limit", {}, "text such as 4GiB"),
        ("ssh.hosts", "a b", "a list of texts"),
        ("batch.prologue", [1], "a list of texts"),
        ("batch.walltime", 14400, "text (in quotes"),  # YAML parses 04:00:00 as 14400 seconds
        ("scheduler", {"a": 1}, "text (in quotes"),
        ("tls.cert", 1.5, "text (in quotes"),
    ],
)
def test_a_setting_of_another_kind_is_refused(name: str, value: Any, needed: str) -> None:
    with dask.config.set({f"dmo.{name}": value}), pytest.raises(ValueError, match=re.escape(needed)) as refused:
        setting(name)
    assert str(refused.value).startswith(f"the setting dmo.{name} is ")
    assert "\n" not in str(refused.value)


def test_numbers_serve_as_text() -> None:
    """Dask parses a variable such as DASK_DMO__BATCH__ACCOUNT=1234 as a number."""
    with dask.config.set({"dmo.batch.account": 1234, "dmo.kubernetes.cpu": 2}):
        assert setting("batch.account") == "1234"
        assert setting("kubernetes.cpu") == 2


def test_a_memory_limit_that_says_no_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="a memory limit of 'lots' is invalid; pass bytes, or text such as 4GiB"):
        local_sizes(Backend("local", memory_limit="lots"))


def test_the_setting_of_the_scheduler_is_the_default_place() -> None:
    with (
        dask.config.set({"dmo.scheduler": "nowhere"}),
        pytest.raises(ValueError, match="cluster 'nowhere' is unknown"),
        connect(),
    ):
        pass


@pytest.mark.parametrize(
    ("group", "file", "value", "expected"),
    [
        # In cgroup version 2, a parent group can set the limit.
        ("0::/user/job\n", "sys/fs/cgroup/user/memory.max", "1000000", 1_000_000),
        ("0::/\n", "sys/fs/cgroup/memory.max", "2000000", 2_000_000),
        ("4:memory:/slurm/step\n", "sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", "3000000", 3_000_000),
        # The cpu controller does not limit memory.
        ("4:cpu:/slurm\n", "sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", "3000000", None),
        ("0::/\n", "sys/fs/cgroup/memory.max", "max\n", None),
        ("0::/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes", str(2**63 - 4096), None),
    ],
)
def test_the_tightest_limit_of_the_control_groups_counts(
    tmp_path: Path, group: str, file: str, value: str, expected: int | None
) -> None:
    for name, text in (("proc/self/cgroup", group), (file, value)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="ascii")
    import psutil

    assert usable_memory(str(tmp_path)) == (expected or psutil.virtual_memory().total)


def test_workers_of_this_machine_share_its_memory_and_cores() -> None:
    sizes = local_sizes(Backend("local", workers=4))
    assert 4 * sizes["memory_limit"] <= 0.9 * usable_memory()
    assert local_sizes(Backend("local", threads=10**6))["n_workers"] == 1
    with dask.config.set({"dmo.local.memory-limit": "1GiB"}):
        assert local_sizes(Backend("local"))["memory_limit"] == "1GiB"
        assert local_sizes(Backend("local", memory_limit="2GiB"))["memory_limit"] == "2GiB"


HEADERS = {
    "slurm": (
        "#SBATCH -p short",
        "#SBATCH -A lab",
        "#SBATCH -t 02:00:00",
        "#SBATCH --mem=8G",
        "#SBATCH --cpus-per-task=2",
    ),
    "pbs": ("#PBS -q short", "#PBS -A lab", "#PBS -l walltime=02:00:00", "#PBS -l select=1:ncpus=2:mem=8192MB"),
    "lsf": ("#BSUB -q short", '#BSUB -P "lab"', "#BSUB -W 02:00", "#BSUB -n 2"),
}


@pytest.mark.parametrize("where", list(HEADERS))
def test_the_script_of_a_batch_job_holds_the_settings(where: str, tmp_path: Path) -> None:
    batch = {
        "cores": 2,
        "processes": 2,
        "memory": "8GiB",
        "walltime": "02:00:00",
        "queue": "short",
        "account": "lab",
        "lifetime": "110m",
        "prologue": ["source /opt/dmo/bin/activate"],
        "directives": ["--exclusive"],
    }
    settings = {f"dmo.batch.{name}": value for name, value in batch.items()}
    with dask.config.set(settings), batch_cluster(Backend(where)) as cluster:
        script = cluster.job_script()
        listening = cluster.scheduler.http_server._sockets.values()
        assert {place.getsockname()[0] for place in listening} == {"127.0.0.1"}
    lines = script.splitlines()
    assert set(HEADERS[where]) <= set(lines)
    assert any(line.endswith(" --exclusive") for line in lines)
    assert lines.index("source /opt/dmo/bin/activate") < len(lines) - 1
    command = next(line for line in lines if "dask_worker" in line)
    for option in ("--nworkers 2", "--memory-limit 4.00GiB", "--lifetime 110m", "--lifetime-stagger 2m", "--nanny"):
        assert option in command
    path = tmp_path / "job.sh"
    path.write_text(script, encoding="utf-8")
    subprocess.run(["bash", "-n", str(path)], check=True, timeout=60)


@pytest.mark.parametrize(
    ("where", "module", "package", "extra"),
    [
        ("slurm", "dask_jobqueue", "dask-jobqueue", "jobqueue"),
        ("kubernetes", "dask_kubernetes.operator", "dask-kubernetes", "kubernetes"),
        ("gateway", "dask_gateway", "dask-gateway", "gateway"),
        ("ssh", "asyncssh", "asyncssh", "ssh"),
    ],
)
def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, where: str, module: str, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    sentence = f"--scheduler {where} needs {package}, which is not installed; run: pip install dmo-learn\\[{extra}\\]"
    with pytest.raises(ImportError, match=sentence), connect(where):
        pass


def test_a_batch_queue_without_its_command_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(OSError, match="--scheduler slurm: the command sbatch was not found"), connect("slurm"):
        pass


def test_ctrl_c_on_a_batch_queue_is_an_interrupt_and_not_a_good_end(tmp_path: Path) -> None:
    script = tmp_path / "interrupted.py"
    script.write_text(
        "import os, signal, sys\n"
        "from dmo.cluster.settings import Backend\n"
        "from dmo.cluster.targets import batch_cluster\n"
        "from dmo.workflows.program import ending\n"
        "def work():\n"
        "    with batch_cluster(Backend('slurm')):\n        os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.exit(ending('program', work))\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1][:17]) == (130, "program: stopped;")


def put_queue(folder: Path, monkeypatch: pytest.MonkeyPatch, before: str = "") -> None:
    """Install a fake batch queue that starts every job immediately. The job number is the process group of the job."""
    counted = f"echo asked >>{folder}/asked; {before}"
    job = f"setsid bash {folder}/job.sh"
    start = f'{counted}cp "$1" {folder}/job.sh; shift; {job} "$@" >>{folder}/job.log 2>&1 & echo $!'
    for name, line in {"sbatch": start, "scancel": 'kill -- "-$1"'}.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.slow
def test_jobs_of_a_queue_that_end_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, certificates: dict[str, str]
) -> None:
    put_queue(tmp_path, monkeypatch)
    settings = {
        "dmo.batch.processes": 1,
        **certificates,
        "distributed.deploy.lost-worker-timeout": "1s",
    }
    with dask.config.set(settings), connect("slurm", workers=1, threads=1, memory_limit="1GiB", timeout=60) as place:
        assert place.client.scheduler.address.startswith("tls://")
        (job,) = place.client.run(os.getpgid, 0).values()
        os.killpg(job, signal.SIGKILL)
        deadline = time.monotonic() + 120
        while job in place.client.run(os.getpgid, 0, on_error="return").values() or not place.client.nthreads():
            assert time.monotonic() < deadline, "no other job started"
            time.sleep(0.2)
        (other,) = place.client.run(os.getpgid, 0).values()
        assert place.client.submit(abs, -3).result(timeout=60) == 3
        limits = [w["memory_limit"] for w in place.client.scheduler_info(n_workers=-1)["workers"].values()]
        assert limits == [2**30]
    while Path(f"/proc/{other}").exists():
        assert time.monotonic() < deadline, "the job was not cancelled"
        time.sleep(0.1)


@pytest.mark.slow
def test_a_submission_that_does_not_get_through_is_tried_again_with_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lost = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    put_queue(tmp_path, monkeypatch, f'[ $(wc -l <{tmp_path}/asked) -gt 2 ] || {{ echo "{lost}" >&2; exit 1; }}; ')
    monkeypatch.setattr(targets, "_PAUSE", 0.1)
    logs = {"dmo.batch.log-directory": str(tmp_path / "logs")}
    # Use the SLURM template of the documentation without changes.
    printed = yaml.safe_load((CLUSTER / "slurm" / "dmo.yaml").read_text(encoding="utf-8"))
    with dask.config.set(printed), dask.config.set(logs), connect("slurm", workers=1, timeout=60) as place:
        assert place.client.submit(abs, -3).result(timeout=60) == 3
    script = (tmp_path / "job.sh").read_text(encoding="utf-8")
    assert f"#SBATCH -o {tmp_path}/logs/dask-worker-%J.out\n" in script
    assert (tmp_path / "logs").is_dir()
    assert list((tmp_path / "home" / ".dmo" / "tls").iterdir()) == []
    said = [record.getMessage() for record in caplog.records if record.name == "dmo" and "again in" in record.msg]
    assert said == [f"sbatch: {lost}; trying again in {pause} s" for pause in ("0.1", "0.2")]
    put_queue(tmp_path, monkeypatch, f'echo "{lost}" >&2; exit 1; ')
    with (
        pytest.raises(OSError, match=f"sbatch accepted no job within 0.5 s: {lost}"),
        connect("slurm", timeout=0.5),
    ):
        pass


def test_own_job_script_replaces_dask_jobqueue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_queue(tmp_path, monkeypatch)
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{Path(sys.executable).parent}")
    monkeypatch.setitem(sys.modules, "dask_jobqueue", None)
    file = tmp_path / "scheduler.json"
    with LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0") as scheduler:
        file.write_text(json.dumps({"address": scheduler.scheduler_address}), encoding="utf-8")
        submit = ["sbatch", str(CLUSTER / "slurm" / "worker.sh"), str(file)]
        job = subprocess.run(submit, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
        try:
            with connect(str(file), timeout=120) as place:
                assert set(place.client.run(os.getpgid, 0).values()) == {int(job)}
        finally:
            subprocess.run(["scancel", job], timeout=60, check=True)


def test_only_targets_imports_dask_jobqueue() -> None:
    package = Path(targets.__file__).parents[1]
    users = [path.name for path in package.rglob("*.py") if "dask_jobqueue" in path.read_text(encoding="utf-8")]
    assert users == ["targets.py"]


@pytest.mark.parametrize(
    "said",
    [
        "Batch job submission failed: Invalid partition name specified",
        "Batch job submission failed: Memory specification can not be satisfied",
        "Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)",
    ],
)
def test_what_a_queue_refuses_ends_the_run_at_once_in_its_words(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_queue(tmp_path, monkeypatch, f'echo "sbatch: error: {said}" >&2; exit 1; ')
    sentence = f"sbatch rejects the job: sbatch: error: {said}; change dmo.batch.queue, account"
    with pytest.raises(UserError, match=re.escape(sentence)), connect("slurm", workers=1):
        pass
    assert (tmp_path / "asked").read_text(encoding="ascii") == "asked\n"
    assert current_client() is None


@pytest.mark.parametrize(
    ("said", "code", "sentence"),
    [
        ("Socket timed out on send/recv operation", 3, "dmo: sbatch accepted no job within 0.5 s: {}; run the same"),
        ("Invalid partition name specified", 2, "dmo: sbatch rejects the job: {}; change dmo.batch.queue"),
    ],
)
def test_failed_submission_ends_with_code_and_cause(
    said: str, code: int, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_queue(tmp_path, monkeypatch, f'echo "sbatch: error: {said}" >&2; exit 1; ')
    store = digits_samples().write(tmp_path / "digits.zarr").url
    with dask.config.set({"dmo.queue-timeout": 0.5}):
        command = ["fit", "ridge", store, str(tmp_path / "m.zarr"), "--scheduler", "slurm"]
        done = CliRunner().invoke(app, command)
    assert done.exit_code == code
    assert done.stderr.splitlines()[-1].startswith(sentence.format(f"sbatch: error: {said}"))
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "fit ridge none.zarr m.zarr",
        "tune ridge none.zarr m.zarr",
        "plan ridge none.zarr",
        "evaluate none.zarr none.zarr",
        "transform none.zarr none.zarr out.zarr",
        "annotate none.zarr none.zarr out.zarr",
        "extract none out.zarr",
        "ingest files out.zarr --view a=none.npy",
    ],
)
def test_no_job_is_queued_for_inputs_that_are_not_there(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_queue(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, [*command.split(), "--scheduler", "slurm"])
    assert "none" in str(done.exception) + done.output
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("given", "program", "code"),
    [("fit ridge s m", "dmo", 3), ("fit ridge s m", "dmo", 143), ("a/pipeline.py --work w", "python", 3)],
)
def test_the_driver_runs_commands_and_pipelines_and_queues_itself_again(
    given: str, program: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, line in {"dmo": f"exit {code}", "python": f"exit {code}", "scontrol": ""}.items():
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@" >>{tmp_path}/said\n{line}\n', encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    done = subprocess.run(["bash", str(CLUSTER / "slurm" / "driver.sh"), *given.split()], timeout=60, check=False)
    assert done.returncode == code
    said = (tmp_path / "said").read_text(encoding="utf-8").splitlines()
    assert said == [f"{program} {given} --scheduler slurm", "scontrol requeue 7"]


def test_the_memory_and_threads_of_a_worker_are_those_of_one_worker_everywhere(tmp_path: Path) -> None:
    given = Backend("slurm", workers=3, threads=2, memory_limit="3GiB")
    with dask.config.set({"dmo.batch.processes": 4, "dmo.batch.cores": 4}), batch_cluster(given) as cluster:
        script = cluster.job_script()
        assert given.expected() == 12
    assert "tls://" in script
    for option in ("--nworkers 4", "--nthreads 2", "--memory-limit 3.00GiB"):
        assert option in script
    assert {"#SBATCH --cpus-per-task=8", "#SBATCH --mem=12G"} <= set(script.splitlines())
    assert local_sizes(Backend("local", 2, 3, "1GiB")) == {
        "n_workers": 2,
        "threads_per_worker": 3,
        "memory_limit": "1GiB",
    }


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ({"workers": 3}, ("workers", 3)),
        ({"worker_threads": 2}, ("worker-threads", 2)),
        ({"memory_limit": "4GiB"}, ("memory-limit", "4GiB")),
    ],
)
def test_options_of_workers_reach_every_place(option: dict[str, Any], expected: tuple[str, Any]) -> None:
    asked: list[Backend] = []

    def start(backend: Backend, security: Any) -> Any:
        asked.append(backend)
        raise OSError("started")

    with pytest.MonkeyPatch.context() as patch, running(RunOptions(**option), "program"):
        for kind in STARTERS:
            patch.setitem(STARTERS, kind, start)
        for kind in STARTERS:
            with pytest.raises(OSError, match="started"), connect(kind):
                pass
    names = {"workers": "workers", "worker-threads": "threads", "memory-limit": "memory_limit"}
    assert [getattr(backend, names[expected[0]]) for backend in asked] == [expected[1]] * len(STARTERS)


def test_a_network_interface_that_is_not_there_is_named() -> None:
    with (
        dask.config.set({"dmo.batch.interface": "ib9"}),
        pytest.raises(
            ValueError, match=r"dmo\.batch\.interface is 'ib9', which this machine does not have; it has .*lo"
        ),
        connect("slurm"),
    ):
        pass


def test_a_gateway_that_does_not_answer_is_named() -> None:
    with (
        dask.config.set({"dmo.gateway.address": "http://127.0.0.1:9"}),
        pytest.raises(
            OSError, match=r"the gateway at http://127\.0\.0\.1:9 provides no cluster \(.*\); check dmo.gateway"
        ),
        connect("gateway", timeout=5),
    ):
        pass


def test_a_gateway_is_asked_for_workers_of_that_size_or_says_that_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    import dask_gateway

    from dmo.cluster.targets import _gateway

    adapted: list[dict[str, int]] = []
    new = Spy(SimpleNamespace(adapt=lambda **limits: adapted.append(limits)))
    options: dict[str, Any] = {"worker_memory": 1.0, "worker_cores": 1}
    gateway = SimpleNamespace(new_cluster=new, cluster_options=lambda: options)
    monkeypatch.setattr(dask_gateway, "Gateway", lambda address: gateway)
    with dask.config.set({"dmo.gateway.address": "http://gateway"}):
        _gateway(Backend("gateway", workers=3, threads=2, memory_limit="4GiB"), None)
        assert new.calls == [(({"worker_memory": 4.0, "worker_cores": 2},), {"shutdown_on_close": True})]
        assert adapted == [{"minimum": 3, "maximum": 3}]
        del options["worker_memory"]
        with pytest.raises(ValueError, match="has no option 'worker_memory', it has worker_cores; leave out --memory"):
            _gateway(Backend("gateway", memory_limit="4GiB"), None)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (
            "sys.path.insert(0, {})",
            r"have dmo 9\.9, as tcp://\S+ does, but the client has dmo \S+; install dmo \S+ in the Python",
        ),
        ("versions.version = only_others", r"have no dmo, as tcp://\S+ does, .* install dmo \S+ in"),
    ],
    ids=["another", "none"],
)
def test_connect_rejects_workers_without_matching_dmo(environment: str, said: str, tmp_path: Path) -> None:
    told = tmp_path / "dmo_learn-9.9.dist-info" / "METADATA"
    told.parent.mkdir()
    told.write_text("Metadata-Version: 2.1\nName: dmo-learn\nVersion: 9.9\n")
    preload = tmp_path / "preload.py"
    preload.write_text(
        "import sys\n"
        "from distributed import versions\n"
        "from importlib.metadata import version as told\n"
        "def only_others(name):\n"
        "    return told(name if name != 'dmo-learn' else 'no such distribution')\n"
        f"{environment.format(repr(str(tmp_path)))}\n"
    )
    options: dict[str, Any] = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(processes=True, preload=[str(preload)], **options) as cluster:
        address = cluster.scheduler_address
        with pytest.raises(UserError, match=f"workers at {address} {said}"), connect(address, workers=1):
            pass
        # A client that was created by the caller must raise the same error.
        with pytest.raises(UserError, match=f"workers at {address} {said}"), Client(cluster):
            current_client()


def test_workers_that_were_asked_for_are_waited_for_and_counted(
    local_cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", logger="dmo"), connect(local_cluster.scheduler_address, workers=2):
        assert "workers started within" not in caplog.text
    with caplog.at_level("WARNING", logger="dmo"), connect(local_cluster.scheduler_address, workers=3, timeout=0.3):
        pass
    assert "2 of 3 workers started within 0.3 s: starting the work, later ones will join" in caplog.text


def test_a_worker_without_access_to_a_store_raises(local_cluster: Any, tmp_path: Path) -> None:
    """A worker on another host receives the reader or writer of the client but has no access to the folder."""
    path = tmp_path / "rows.zarr"
    writer = create_results(path, 4, 2, block=2)
    for block in range(2):
        writer.write(block, np.ones((2, 2), np.float32))
    writer.finish()
    reader, other = open_results(path), create_results(tmp_path / "other.zarr", 4, 2, block=2)
    path.rename(tmp_path / "moved.zarr")
    (tmp_path / "other.zarr").rename(tmp_path / "gone.zarr")
    with connect(local_cluster.scheduler_address) as place:
        host = place.client.submit(socket.gethostname).result()
        said = f"on {host}: a worker there cannot see the store, or it was removed; mount its disk on every worker"
        with pytest.raises(StoreError, match=f"there is no {path} {said}"):
            place.client.submit(reader.__getitem__, slice(0, 4)).result()
        with pytest.raises(StoreError, match=f"there is no {tmp_path / 'other.zarr'} {said}"):
            place.client.submit(other.write, 0, np.ones((2, 2), np.float32)).result()


@pytest.mark.parametrize("own", [False, True], ids=["opened by dmo", "opened by the caller"])
def test_logged_messages_do_not_keep_arrays(own: bool, local_cluster: Any) -> None:
    """Dask keeps the last 1000 messages of a connection, which would require gigabytes if messages contained arrays."""
    with ExitStack() as stack:
        where = stack.enter_context(Client(local_cluster)) if own else local_cluster.scheduler_address
        client = stack.enter_context(connect(where)).client
        for number in range(40):
            client.submit(np.sum, np.full(1000, number)).result()
        assert (
            sum(len(bytes(str(message), "utf-8")) > 1000 for message in client.scheduler_comm.recent_message_log) <= 16
        )


def test_places_without_their_settings_are_refused() -> None:
    with pytest.raises(ValueError, match=r"ssh: 0 hosts in dmo.ssh.hosts, at least 2 are needed"), connect("ssh"):
        pass
    with (
        pytest.raises(ValueError, match=r"gateway: the address is missing; set dmo.gateway.address"),
        connect("gateway"),
    ):
        pass


class Spy:
    """Stub of a cluster manager that records its arguments and returns a running scheduler."""

    def __init__(self, cluster: Any):
        self.cluster, self.calls = cluster, []

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.calls.append((arguments, named))
        self.config = dask.config.get("distributed.comm")
        self.security = Security()
        return self.cluster


def test_ssh_gives_hosts_workers_and_certificates_on(
    monkeypatch: pytest.MonkeyPatch, certificates: dict[str, str]
) -> None:
    import distributed

    from dmo.cluster.targets import _ssh

    spy = Spy(None)
    monkeypatch.setattr(distributed, "SSHCluster", spy)
    ports = {"dmo.ssh.host": "10.0.0.1", "dmo.ssh.port": 8786, "dmo.ssh.worker-ports": "9000:9099"}
    with dask.config.set({"dmo.ssh.hosts": ["a", "b", "c"], "dmo.ssh.workers": 3, **ports, **certificates}):
        _ssh(Backend("ssh", threads=2, memory_limit="4GiB"), tls())
    ((hosts,), named) = spy.calls[0]
    assert hosts == ["a", "b", "c"]
    worker = named["worker_options"]
    assert (worker["n_workers"], worker["nthreads"], worker["memory_limit"]) == (3, 2, 4 << 30)
    assert named["scheduler_options"] == {"protocol": "tls://", "host": "10.0.0.1", "port": 8786}
    assert worker["worker_port"] == "9000:9099"
    json.dumps([worker, named["scheduler_options"]])  # the arguments must be valid JSON
    paths = {str(path) for path in certificates.values()}
    assert set(spy.security.get_tls_config_for_role("worker").values()) - {None} <= paths
    assert spy.security.require_encryption
    assert spy.security.get_listen_args("scheduler")["ssl_context"] is not None


def test_hosts_of_ssh_may_stand_in_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    import distributed

    from dmo.cluster.targets import STARTERS, _ssh

    spy = Spy(None)
    monkeypatch.setattr(distributed, "SSHCluster", spy)
    backend = Backend("ssh:node0, node1,node2")
    assert STARTERS[backend.kind] is _ssh
    assert backend.patience() == Backend("ssh").patience()
    _ssh(backend, None)
    assert spy.calls[0][0] == (["node0", "node1", "node2"],)
    with pytest.raises(ValueError, match="ssh: 1 hosts in ssh:node0, at least 2 are needed"), connect("ssh:node0"):
        pass


@pytest.mark.parametrize("where", ["slurm", "pbs", "lsf"])
def test_a_batch_cluster_is_encrypted_with_certificates_of_its_run(where: str, tmp_path: Path) -> None:
    from dmo.cluster.targets import temporary_tls

    with dask.config.set({"dmo.batch.tls-folder": str(tmp_path / "keys")}):
        cluster = batch_cluster(Backend(where), temporary_tls(where))
        try:
            script, address = cluster.job_script(), cluster.scheduler_address
            named = re.findall(r"--tls-\S+ (\S+)", script)
            modes = {Path(path).stat().st_mode & 0o777 for path in named}
            assert address.startswith("tls://")
            assert len(named) == 3
            assert {Path(path).parent for path in named} == {tmp_path / "keys"}
            assert modes == {0o600}
            assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700
        finally:
            cluster.close()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("tls://10.0.0.1:8786", "10.0.0.1:8786, encrypted"),
        ("tcp://127.0.0.1:8786", "127.0.0.1:8786, not encrypted, for this machine only"),
        ("tcp://10.0.0.1:8786", "10.0.0.1:8786, NOT encrypted: anyone who reaches it can run code"),
    ],
)
def test_what_listens_is_told(address: str, said: str) -> None:
    from dmo.cluster.targets import listening

    assert said in listening(address)


def test_a_run_says_what_listens(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="dmo"), connect("local", workers=1, threads=1, memory_limit="1GiB"):
        pass
    assert re.search(r"the scheduler listens at tcp://127\.0\.0\.1:\d+, not encrypted, for this machine", caplog.text)


def test_kubernetes_uses_a_cluster_of_that_name_or_makes_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import dask_kubernetes.operator as operator

    from dmo.cluster.targets import _kubernetes

    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with pytest.raises(OSError, match=r"none of .*config exists; write a kubeconfig, or set KUBECONFIG"):
        _kubernetes(Backend("kubernetes"), None)
    (tmp_path / "config").touch()
    made = Spy("made")
    made.from_name = Spy("found")  # type: ignore[attr-defined]
    monkeypatch.setattr(operator, "KubeCluster", made)
    assert _kubernetes(Backend("kubernetes"), None) == "found"

    def none(*arguments: Any, **named: Any) -> Any:
        raise ValueError("no such cluster")

    made.from_name = none  # type: ignore[attr-defined]
    assert _kubernetes(Backend("kubernetes", workers=5), None) == "made"
    named = made.calls[0][1]
    assert (named["n_workers"], named["image"], named["resources"]["limits"]["memory"]) == (5, "dmo:latest", "4Gi")


def test_the_manifest_of_a_kubernetes_job_keeps_to_the_operators_schema() -> None:
    import dask_kubernetes.operator

    Draft7Validator = pytest.importorskip("jsonschema").Draft7Validator

    charts = Path(dask_kubernetes.operator.__file__).parent / "deployment" / "helm" / "dask-kubernetes-operator"
    text = (charts / "crds" / "daskjob.yaml").read_text(encoding="utf-8")
    definition = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # PyYAML's pure Python loader is slow
    schema = _strict(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    schema["properties"] |= {"apiVersion": {}, "kind": {}, "metadata": {}}
    manifest = yaml.safe_load((CLUSTER / "kubernetes" / "daskjob.yaml").read_text(encoding="utf-8"))
    checker = Draft7Validator(schema)
    assert list(checker.iter_errors(manifest)) == []
    broken = {**manifest, "spec": {**manifest["spec"], "cluster": {"spec": {"worker": {"replicas": "two"}}}}}
    assert list(checker.iter_errors(broken))
    misspelt = {**manifest, "spec": {**manifest["spec"], "clustre": {}}}
    assert list(checker.iter_errors(misspelt))
    assert _containers_drop_root(manifest)
    # The operator deletes the workers only after the pod has succeeded or failed, so the pod must not be restarted.
    assert manifest["spec"]["job"]["spec"]["restartPolicy"] == "Never"
    from dask_kubernetes.operator.controller.controller import build_job_pod_spec

    labels = build_job_pod_spec("j", "c", "n", {"containers": []}, {}, {})["metadata"]["labels"]
    guide = (CLUSTER / "kubernetes" / "README.md").read_text(encoding="utf-8")
    assert f"kubectl logs -f -l dask.org/component={labels['dask.org/component']}\n" in guide


def _strict(schema: Any) -> Any:
    """Copy a schema, and reject unknown fields in the copy, because Kubernetes would drop unknown fields silently."""
    if isinstance(schema, list):
        return [_strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: _strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        strict.setdefault("additionalProperties", bool(schema.get("x-kubernetes-preserve-unknown-fields", False)))
    return strict


def _containers_drop_root(manifest: dict[str, Any]) -> bool:
    spec = manifest["spec"]
    cluster = spec["cluster"]["spec"]
    pods = (spec["job"]["spec"], cluster["worker"]["spec"], cluster["scheduler"]["spec"])
    return all(pod["securityContext"]["runAsNonRoot"] is True for pod in pods)


def test_the_image_runs_as_a_user_and_takes_the_pinned_versions() -> None:
    lines = (CLUSTER / "image" / "Dockerfile").read_text(encoding="utf-8").splitlines()
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users
    assert users[-1] not in ("root", "0")
    assert any("--constraint constraints.txt" in line for line in lines)
    # The dependencies form a separate layer that is built before the source of dmo is copied. A digest fixes the base
    # image.
    needed = next(at for at, line in enumerate(lines) if "--constraint constraints.txt" in line)
    assert needed < lines.index("COPY dmo dmo")
    assert re.fullmatch(
        r"ARG BASE=python:3\.11-slim@sha256:[0-9a-f]{64}", next(li for li in lines if li.startswith("ARG"))
    )


@pytest.mark.slow
def test_a_cluster_with_certificates_refuses_a_plain_client_and_a_strangers_certificate(
    certificates: dict[str, str], tmp_path: Path
) -> None:
    subprocess.run(["bash", str(CLUSTER / "tls" / "make.sh"), str(tmp_path), "127.0.0.1"], check=True, timeout=120)
    stranger = {name: str(tmp_path / Path(path).name) for name, path in certificates.items()}
    with dask.config.set(certificates), connect("local", workers=1, memory_limit="1GiB") as place:
        address = place.client.scheduler.address
        assert address.startswith("tls://127.0.0.1")
        assert place.client.submit(sum, [1, 2]).result() == 3
        with dask.config.set(dict.fromkeys(certificates)):
            for plain in (address.replace("tls://", "tcp://"), address):
                with pytest.raises((OSError, TypeError, RuntimeError)):
                    asyncio.run(dial(plain, timeout=2))
        other = Client(address, security=tls(), set_as_default=False, timeout=30)
        assert other.submit(sum, [2, 2]).result() == 4
        other.close()
        with (
            dask.config.set(stranger),
            pytest.raises(OSError, match=r"no scheduler answers at tls://.* certificates of its own authority"),
            connect(address, timeout=2),
        ):
            pass


def test_certificates_and_a_plain_address_are_refused(certificates: dict[str, str], local_cluster: Any) -> None:
    address = local_cluster.scheduler_address
    with (
        dask.config.set(certificates),
        pytest.raises(ValueError, match=r"is not encrypted and dmo.tls is set; pass its tls:// address"),
        connect(address),
    ):
        pass


def test_certificates_that_lack_a_file_are_named(certificates: dict[str, str], tmp_path: Path) -> None:
    with (
        dask.config.set({"dmo.tls.cert": certificates["dmo.tls.cert"]}),
        pytest.raises(ValueError, match=r"TLS needs three files, but dmo.tls.ca-file is not set"),
    ):
        tls()
    with (
        dask.config.set({**certificates, "dmo.tls.key": str(tmp_path / "no.key")}),
        pytest.raises(FileNotFoundError, match=r"TLS: no file .*no.key \(dmo.tls.key\)"),
    ):
        tls()


def test_the_performance_report_of_a_block_is_written(tmp_path: Path, local_cluster: Any) -> None:
    path, address = tmp_path / "report.html", local_cluster.scheduler_address
    with dask.config.set({"dmo.performance-report": str(path)}), connect(address) as place:
        np.testing.assert_equal(place.client.submit(np.arange, 3).result(), [0, 1, 2])
    assert "<html" in path.read_text(encoding="utf-8")
    with (
        dask.config.set({"dmo.performance-report": str(tmp_path / "absent" / "report.html")}),
        pytest.raises(FileNotFoundError, match="no folder for the performance report"),
        connect(address),
    ):
        pass


def test_every_setting_is_read_somewhere() -> None:
    patterns = ("cluster/*.py", "stores/*.py", "features/*.py", "devices.py", "progress.py")
    places = [CLUSTER.parent / "dmo" / pattern for pattern in patterns]
    sources = "".join(path.read_text(encoding="utf-8") for place in places for path in place.parent.glob(place.name))

    def names(tree: dict[str, Any], prefix: str = "") -> list[str]:
        found = []
        for key, value in tree.items():
            found += names(value, f"{prefix}{key}.") if isinstance(value, dict) else [prefix + key]
        return found

    unread = [
        name
        for name in names(defaults()["dmo"])
        if not any(f'"{words}"' in sources for words in (name, f"dmo.{name}", name.rpartition(".")[2]))
    ]
    assert unread == []


def test_an_open_cluster_is_closed_when_its_workers_do_not_come() -> None:
    with (
        LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0") as empty,
        ExitStack() as stack,
        pytest.raises(OSError, match=r"has no workers after 0.2 s"),
    ):
        open_client(Backend(empty.scheduler_address, timeout=0.2), stack)


def test_the_table_of_resources_matches_the_plan(tmp_path: Path) -> None:
    """Check the table of resources for the ESP Game data set with 8 views and 268 labels."""
    assert markdown(resource_table(8, 268, 1000)) in (CLUSTER / "README.md").read_text(encoding="utf-8")
    store = tmp_path / "s.zarr"
    Y = (np.random.default_rng(0).random((20, 3)) < 0.5).astype(np.uint8)
    writer = create_features(store, 20, {"a": ViewSpec(2, "float32"), "b": ViewSpec(3, "float32")}, labels=Y)
    for view, block in writer.missing():
        writer.write(view, block, np.ones((20, 2 if view == "a" else 3), np.float32))
    writer.finish()
    printed = CliRunner().invoke(app, ["plan", "kgha", str(store), "--resources", "--rank", "50"])
    assert printed.exit_code == 0, printed.stderr
    assert printed.stdout == markdown(resource_table(2, 3, 50))


def test_the_plan_of_a_pass_counts_its_tasks() -> None:
    for n, size in ((1, 1), (8192, 1), (8193, 1), (131_071, 1), (131_072, 2), (200_000, 2), (10**7, 12)):
        parts, tasks = -(-n // (size * 4096)), 0
        segment = min(16, max(1, parts // 4))
        while parts:
            now = min(segment, parts)
            futures = made = now
            while futures > 1:  # sum the results pairwise
                made += futures // 2
                futures = futures // 2 + futures % 2
            made += tasks > 0  # update the sum of all segments
            tasks, parts = tasks + made, parts - now
        found = pass_graph(n, 100, 5)
        assert found.tasks == tasks
        assert tasks <= found.held <= tasks + 6  # the scheduler keeps the inputs of the running sum
    assert pass_graph(10**7, 100, 5).scheduler_bytes < 1 << 30


@pytest.mark.parametrize(("n", "block", "threads"), [(100, 10, 1), (100, 10, 3), (30, 10, 64), (5, 10, 2)])
def test_the_plan_of_a_product_counts_its_tasks(n: int, block: int, threads: int) -> None:
    submitted: list[Any] = []

    class Counted(Tiles):
        def _submit(self, function: Any, calls: Any, places: Any = ()) -> Any:
            submitted.extend(function for _ in calls)
            return [Answer() for _ in calls]

    class Answer:
        key = "answer"

    class Cluster:
        id, status, generation = "none", "running", 0

        def nthreads(self) -> dict[str, int]:
            return dict.fromkeys(map(str, range(threads)), 1)

        def sync(self, function: Any, *arguments: Any, **named: Any) -> list[Any]:
            if function.__qualname__.startswith("gathered"):
                return [np.zeros((n, 2))]
            return [None] * min(threads, -(-n // block))

        def map(self, function: Any, calls: Any, *arguments: Any, **named: Any) -> Any:
            submitted.extend(calls)
            return [Answer() for _ in calls]

        def scheduler_info(self, n_workers: int) -> dict[str, Any]:
            return {"workers": {}}

    rows = {"x": np.ones((n, 2))}
    tiles = Counted(
        FeatureTiles(MultiKernel.of("x", parse("linear").fit(rows["x"])), rows, block), Cluster(), resident=True
    )
    for _ in range(3):
        tiles @ np.ones((n, 2))
    assert tile_graph(n, block, threads, 1, 3, 2, True).tasks == len(submitted)
