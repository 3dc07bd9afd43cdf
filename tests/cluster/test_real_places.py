"""Run tests on local SLURM, ssh and Dask Gateway services, if the services are installed.

The required Debian packages are slurm-wlm, munge and openssh-server. The required PyPI package is dask-gateway-server.

`make test-clusters` runs all tests, and `make test` runs only the fast tests. If DMO_PLACES_TABLE=FILE is set, the
suite writes a table with the outcome of each event on each backend.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmo import stores

CLUSTER = Path(__file__).resolve().parents[2] / "cluster"
BIN = Path(sys.executable).parent
PATIENCE = 300.0
FIT = ("--views", "pixels", "--approximation", "nystrom", "--rank", "40")
SLURM = """\
ClusterName=dmotest
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
SchedulerParameters=sched_interval=5,batch_sched_delay=1
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8 RealMemory=40000 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=8 RealMemory=40000 State=UNKNOWN
PartitionName=short Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def needs(*programs: str) -> None:
    """Skip the test if any of the given programs is missing."""
    for name in programs:
        if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None:
            pytest.skip(f"{name} is not installed")


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def until(true: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := true():
            return found
        time.sleep(0.2)
    raise TimeoutError(what)


def stop(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    until(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text(), f"{pid} stays")


def call(*command: Any, code: int = 0, patience: float = PATIENCE, **environment: str) -> str:
    """Run a program, and return its standard output and standard error."""
    # Different OpenBLAS kernels sum in different orders. Remove OPENBLAS_CORETYPE, because some workers do not inherit
    # it.
    own = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=patience,
        env={**own, "PATH": f"{BIN}:{os.environ['PATH']}:/usr/sbin", "PYTHONWARNINGS": "", **environment},
    )
    assert done.returncode == code, (command, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[list[tuple[str, str, str]]]:
    """Collect the rows of the outcome table as (backend, event, outcome)."""
    rows: list[tuple[str, str, str]] = []
    yield rows
    if path := os.environ.get("DMO_PLACES_TABLE"):
        title = "# Results of the tests on real clusters\n\nThis table is written by `make test-clusters`."
        head = [title, "", "| cluster | event | outcome |", "|---|---|---|"]
        lines = [*head, *(f"| {' | '.join(row)} |" for row in sorted(rows, key=lambda row: row[0]))]
        Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test in a temporary folder, because batch jobs write their output to the submission folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("features") / "digits.zarr"
    call(BIN / "dmo", "ingest", "digits", path)
    return path


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    """Start a local SLURM cluster with two nodes, and yield its environment variables."""
    needs("munged", "slurmctld", "slurmd", "sbatch")
    if os.geteuid():
        pytest.skip("slurmd can start jobs only as root")
    # Every user must be able to access the socket of munged, so use a folder in /tmp.
    folder = Path(tempfile.mkdtemp(prefix="dmo-slurm-"))
    folder.chmod(0o755)
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    host = socket.gethostname().partition(".")[0]
    conf = folder / "slurm.conf"
    conf.write_text(SLURM.format(host=host, folder=folder, ports=free_ports(3)), encoding="utf-8")
    variables = {"SLURM_CONF": str(conf), "DASK_DMO__BATCH__TLS_FOLDER": str(folder / "keys")}
    pids: list[Path] = []

    def start(pid: str, *command: Any) -> None:
        pids.append(folder / pid)
        call(*command, **variables)

    try:
        names = {
            "socket": "munge.socket",
            "pid-file": "munged.pid",
            "log-file": "munged.log",
            "seed-file": "munge.seed",
        }
        places = [f"--{option}={folder / name}" for option, name in names.items()]
        start("munged.pid", "munged", "--force", f"--key-file={key}", *places)
        start("slurmctld.pid", "slurmctld", "-f", conf)
        for node in ("n1", "n2"):
            start(f"slurmd.{node}.pid", "slurmd", "-f", conf, "-N", node)
        until(lambda: call("sinfo", "-h", "-o", "%T", **variables).split() == ["idle"], "nodes that are idle")
        yield variables
    finally:
        for path in reversed(pids):
            if path.exists():
                stop(int(path.read_text()))
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def expected(features: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Create a folder of images, and a folder with the results of a single process."""
    images, made = tmp_path_factory.mktemp("images"), tmp_path_factory.mktemp("expected")
    pixels = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for number in range(6):
        pixels.fromarray(rng.integers(0, 256, (40, 48, 3), dtype=np.uint8)).save(images / f"{number}.png")
    work(features, images, made)
    return images, made


def work(features: Path, images: Path, out: Path, *where: Any, **variables: str) -> str:
    """Run `dmo fit`, `dmo transform` and `dmo extract`, and return the output of the fit."""
    said = call(BIN / "dmo", "fit", "kgha", features, out / "m.zarr", *FIT, *where, "-v", **variables)
    call(BIN / "dmo", "transform", out / "m.zarr", features, out / "z.zarr", *where, **variables)
    call(BIN / "dmo", "extract", images, out / "x.zarr", "--words", 4, "--block", 2, *where, **variables)
    return said


def same_work(out: Path, made: Path) -> None:
    for name in ("m.zarr", "z.zarr", "x.zarr"):
        assert stores.verify(out / name) == []
    found, wanted = (stores.open_results(folder / "z.zarr")[:] for folder in (out, made))
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-9)
    described, known = (stores.open_features(folder / "x.zarr") for folder in (out, made))
    for view in known.views:
        np.testing.assert_array_equal(described.views[view][:], known.views[view][:])


def settings(**named: Any) -> dict[str, str]:
    return {f"DASK_DMO__{name.upper()}": str(value) for name, value in named.items()}


SMALL = settings(batch__processes=1, batch__cores=1, batch__memory="1GiB")


def jobs(slurm: dict[str, str], name: str) -> list[str]:
    return call("squeue", "-h", "-t", "R", "-n", name, "-o", "%i", **slurm).split()


HOLD = """
import sys, time
from dmo.cluster import connect
with connect("slurm", workers=1) as place:
    print(place.client.scheduler.address, flush=True)
    for line in sys.stdin:
        print(place.client.submit(pow, int(line), 2, pure=False).result(timeout=240), flush=True)
"""


Table = list[tuple[str, str, str]]


def test_a_job_that_is_cancelled_is_replaced(slurm: dict[str, str], table: Table) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **slurm, **SMALL, "DASK_DISTRIBUTED__DEPLOY__LOST_WORKER_TIMEOUT": "1s"},
    ) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        assert driver.stdout.readline().startswith("tls://")
        (first,) = jobs(slurm, "dask-worker")
        call("scancel", first, **slurm)
        (other,) = until(lambda: [job for job in jobs(slurm, "dask-worker") if job != first], "another job")
        driver.stdin.write("7\n")
        driver.stdin.flush()
        assert driver.stdout.readline() == "49\n"
        driver.stdin.close()
        assert driver.wait(PATIENCE) == 0
    until(lambda: not jobs(slurm, "dask-worker"), f"job {other} to be cancelled")
    table += [
        ("slurm", "start", "a job starts, encrypted with temporary certificates"),
        ("slurm", "worker lost, all lost", "another job is submitted, and the work continues there"),
    ]


LIVES = """
import os, time
import numpy as np
from dmo.cluster import connect
from dmo.linalg.tiles import Tiles

rng = np.random.default_rng(0)
K, B = rng.random((64, 64)), rng.random((64, 3))
K += K.T

class Slow:
    n, block = 64, 16
    def tile(self, i, j):
        time.sleep(0.5)
        return K[16 * i : 16 * i + 16, 16 * j : 16 * j + 16]

with connect("slurm", workers=1) as place:
    A, begun, seen = Tiles(Slow(), place.client, dtype=np.float64), time.monotonic(), set()
    while time.monotonic() - begun < 90:
        np.testing.assert_allclose(A @ B, K @ B)
        seen |= set(place.client.run(os.getpid).values())
print(len(seen))
"""


@pytest.mark.clusters
def test_work_three_times_as_long_as_a_workers_life_ends_well(slurm: dict[str, str], table: Table) -> None:
    short = settings(batch__lifetime="30s", batch__stagger="1s")
    said = call(sys.executable, "-c", LIVES, **slurm, **SMALL, **short)
    workers = int(next(line for line in said.splitlines() if line.isdigit()))
    assert workers >= 3
    table.append(
        (
            "slurm",
            "lifetime of a worker ends, three times",
            f"{workers} workers were used one after another; same products",
        )
    )


@pytest.mark.clusters  # SLURM delays requeued jobs by two minutes
def test_a_terminated_driver_is_requeued_and_resumes(
    slurm: dict[str, str], features: Path, tmp_path: Path, table: Table
) -> None:
    """The script `cluster/slurm/driver.sh` sends the same signal five minutes before its job ends."""
    said = tmp_path / "driver.out"
    command = ["fit", "kgha", features, tmp_path / "m.zarr", *FIT, "--checkpoint", tmp_path / "kept", "--workers", 1]
    submit = ["sbatch", "--parsable", "-n", 1, "--mem=4G", f"--output={said}", CLUSTER / "slurm" / "driver.sh"]
    job = call(*submit, *command, **slurm, **SMALL).strip()
    until(lambda: said.exists() and "dashboard" in said.read_text(), "the driver's cluster")
    call("scancel", "--signal=TERM", "--batch", job, **slurm)

    def ended() -> bool:
        state = call("scontrol", "show", "job", job, **slurm)
        return "JobState=COMPLETED" in state and "Restarts=1" in state

    until(ended, f"job {job} to end")
    text = said.read_text()
    assert "terminated; finished parts are kept" in text
    assert text.count("dashboard: ") == 2  # the file contains the output of both runs
    assert stores.verify(tmp_path / "m.zarr") == []
    table.append(
        (
            "slurm",
            "job of the command stopped by SIGTERM",
            "queued again, resumes from its checkpoint, and the fit succeeds",
        )
    )


LATE = """
import os, sys, time
from pathlib import Path
import numpy as np
from dmo.cluster import connect
from dmo.linalg.tiles import Tiles

folder, rng = sys.argv[1], np.random.default_rng(0)  # `folder` travels with `Counted`, sys.argv is each process's own
K, B = rng.random((96, 96)), rng.random((96, 3))
K += K.T

class Counted:
    n, block = 96, 4
    def tile(self, i, j):
        time.sleep(0.02)
        with open(f"{folder}/{os.getpid()}", "ab") as file:
            file.write(b".")
        return K[4 * i : 4 * i + 4, 4 * j : 4 * j + 4]

def counts():
    return {file.name: file.stat().st_size for file in Path(folder).iterdir()}

with connect("slurm", workers=2, timeout=40) as place:
    A = Tiles(Counted(), place.client, dtype=np.float64)
    np.testing.assert_allclose(A @ B, K @ B)
    print("alone", flush=True)
    place.client.wait_for_workers(2, timeout=240)
    A @ B  # in which the late one loads what a task needs
    before = counts()
    for _ in range(3):  # of one alone the last groups decide, which go to whoever is quicker by then
        np.testing.assert_allclose(A @ B, K @ B)
    print(*(size - before.get(name, 0) for name, size in counts().items()), flush=True)
    np.testing.assert_allclose(A @ B, K @ B)  # in which a worker is lost
    print("whole", flush=True)
"""


@pytest.mark.clusters
def test_a_worker_that_comes_late_gets_its_share_and_one_that_goes_is_replaced(
    slurm: dict[str, str], tmp_path: Path, table: Table
) -> None:
    call("sbatch", "-J", "others", "-N2", "--ntasks=15", "--mem=1G", "--wrap", "sleep 600", **slurm)
    until(lambda: jobs(slurm, "others"), "the job of others")  # one core remains free
    (tmp_path / "tiles").mkdir()
    try:
        with subprocess.Popen(
            [sys.executable, "-c", LATE, str(tmp_path / "tiles")],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **slurm, **SMALL, "DASK_DISTRIBUTED__DEPLOY__LOST_WORKER_TIMEOUT": "1s"},
        ) as driver:
            assert driver.stdout is not None
            assert driver.stdout.readline() == "alone\n"
            call("scancel", "-n", "others", **slurm)
            first, second = sorted(map(int, driver.stdout.readline().split()))
            assert first + second == 3 * 300  # every product computes every tile once
            assert second <= 1.5 * first
            call("scancel", jobs(slurm, "dask-worker")[0], **slurm)
            assert driver.stdout.readline() == "whole\n"
            assert driver.wait(PATIENCE) == 0
    finally:  # the next test needs all nodes
        call("scancel", "-n", "others", **slurm)
    until(lambda: not jobs(slurm, "dask-worker"), "the jobs to be cancelled")
    table += [
        (
            "slurm",
            "late workers",
            f"started with one worker; of the tiles of three later products, the two workers compute {first} and {second}",
        ),
        ("slurm", "worker lost in a pass", "its tiles are recomputed by the others; same product"),
    ]


@pytest.mark.clusters
def test_workers_of_a_queue_fit_transform_and_extract(
    slurm: dict[str, str], features: Path, expected: tuple[Path, Path], tmp_path: Path, table: Table
) -> None:
    images, made = expected
    work(features, images, tmp_path, "--scheduler", "slurm", "--workers", 1, **slurm, **SMALL)
    same_work(tmp_path, made)
    table.append(
        (
            "slurm",
            "fit, pass, transform, extract",
            "same results as in one process; stores of images are identical to the byte",
        )
    )


@pytest.mark.clusters
def test_a_driver_that_is_cancelled_goes_on_when_it_is_submitted_again(
    slurm: dict[str, str], features: Path, tmp_path: Path, table: Table
) -> None:
    said = tmp_path / "driver.out"
    fit = ["fit", "kgha", features, tmp_path / "m.zarr", *FIT, "--checkpoint", tmp_path / "kept", "--workers", 1]
    submit = ["sbatch", "--parsable", "--no-requeue", "-n", 1, "--mem=4G", f"--output={said}"]

    def submitted() -> str:
        return call(*submit, CLUSTER / "slurm" / "driver.sh", *fit, **slurm, **SMALL).strip()

    def state(job: str) -> str:
        shown = call("scontrol", "show", "job", job, **slurm)
        return next(part for part in shown.split() if part.startswith("JobState=")).removeprefix("JobState=")

    job = submitted()
    until(lambda: said.exists() and "dashboard" in said.read_text(), "the driver's cluster")
    call("scancel", job, **slurm)
    until(lambda: state(job) == "CANCELLED", f"job {job} to be cancelled")
    until(lambda: not jobs(slurm, "dask-worker"), "the jobs of its workers to end")
    job = submitted()
    until(lambda: state(job) in ("COMPLETED", "FAILED"), f"job {job} to end")
    assert state(job) == "COMPLETED", said.read_text()
    assert stores.verify(tmp_path / "m.zarr") == []
    table.append(
        (
            "slurm",
            "job of the command cancelled (scancel), submitted again",
            "the jobs of its workers end; the same command completes the fit",
        )
    )


@pytest.fixture(scope="module")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Start a local ssh server, and yield a home folder whose ssh config maps node0 and node1 to the server."""
    needs("sshd", "ssh-keygen")
    folder, home = tmp_path_factory.mktemp("sshd"), tmp_path_factory.mktemp("home")
    (home / ".ssh").mkdir(mode=0o700)
    for key in (folder / "host_key", home / ".ssh" / "id_ed25519"):
        call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
    (port,) = free_ports(1)
    lines = {
        "Port": port,
        "ListenAddress": "127.0.0.1",
        "HostKey": folder / "host_key",
        "PidFile": folder / "pid",
        "AuthorizedKeysFile": home / ".ssh" / "id_ed25519.pub",
        "StrictModes": "no",
        "UsePAM": "no",
        "PermitRootLogin": "yes",
    }
    (folder / "sshd_config").write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
    host = (folder / "host_key.pub").read_text().split()
    (home / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{port} {host[0]} {host[1]}\n")
    (home / ".ssh" / "config").write_text(f"Host node0 node1\n  HostName 127.0.0.1\n  Port {port}\n")
    Path("/run/sshd").mkdir(exist_ok=True)
    server = subprocess.Popen([str(shutil.which("sshd", path="/usr/sbin")), "-D", "-f", str(folder / "sshd_config")])
    try:
        until((folder / "pid").exists, "sshd")
        yield home
    finally:
        server.terminate()
        server.wait(PATIENCE)


@pytest.mark.parametrize("encrypted", [pytest.param(False, marks=pytest.mark.clusters), True], ids=["plain", "tls"])
def test_hosts_of_ssh_fit_at_the_address_and_port_that_are_set(
    ssh: Path, features: Path, expected: tuple[Path, Path], tmp_path: Path, encrypted: bool, table: Table
) -> None:
    scheduler, *workers = free_ports(3)
    chosen = settings(ssh__host="127.0.0.1", ssh__port=scheduler, ssh__worker_ports=f'"{min(workers)}:{max(workers)}"')
    if encrypted:
        call("bash", CLUSTER / "tls" / "make.sh", tmp_path / "tls", "127.0.0.1")
        names = {"ca_file": "ca.pem", "cert": "dmo.pem", "key": "dmo.key"}
        chosen |= settings(**{f"tls__{name}": tmp_path / "tls" / file for name, file in names.items()})
    where: Sequence[Any] = ("--scheduler", "ssh:node0,node1", "--workers", 1, "--memory-limit", "1GiB")
    listens = f"the scheduler listens at {'tls' if encrypted else 'tcp'}://127.0.0.1:{scheduler}, "
    if encrypted:
        said = call(
            BIN / "dmo", "fit", "kgha", features, tmp_path / "m.zarr", *FIT, *where, "-v", HOME=str(ssh), **chosen
        )
    else:
        said = work(features, expected[0], tmp_path, *where, HOME=str(ssh), **chosen)
        same_work(tmp_path, expected[1])
        table.append(
            (
                "ssh",
                "pass, transform, extract",
                "same results as in one process; stores of images are identical to the byte",
            )
        )
    assert listens in said
    assert stores.verify(tmp_path / "m.zarr") == []
    table.append(
        (
            f"ssh{', TLS' if encrypted else ''}",
            "start, fit",
            "workers are started by ssh at the configured address and port",
        )
    )


@pytest.mark.clusters
def test_a_scheduler_with_certificates_works_for_its_own_and_for_nobody_else(
    features: Path, expected: tuple[Path, Path], tmp_path: Path, table: Table
) -> None:
    """Start the scheduler as described in cluster/tls/README.md."""
    files, known = {"ca-file": "ca.pem", "cert": "dmo.pem", "key": "dmo.key"}, list[dict[str, str]]()
    for name in ("own", "strange"):
        call("bash", CLUSTER / "tls" / "make.sh", tmp_path / name, "127.0.0.1")
        paths = {part.replace("-", "_"): tmp_path / name / file for part, file in files.items()}
        known.append(settings(**{f"tls__{part}": path for part, path in paths.items()}))
    pem = [f"--tls-{part}={tmp_path / 'own' / file}" for part, file in files.items()]
    (port,) = free_ports(1)
    where = f"tls://127.0.0.1:{port}"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    scheduler = subprocess.Popen([BIN / "dask", "scheduler", *pem, "--host", where, "--no-dashboard"], **quiet)
    worker = subprocess.Popen([BIN / "dask", "worker", *pem, where, "--nworkers", "1", "--nthreads", "1"], **quiet)
    try:
        images, made = expected
        work(features, images, tmp_path, "--scheduler", where, **known[0], **settings(timeout=60))
        same_work(tmp_path, made)
        again = ["transform", tmp_path / "m.zarr", features, tmp_path / "no.zarr", "--scheduler", where]
        refused = call(BIN / "dmo", *again, code=2, **known[1])
        assert f"no scheduler answers at {where}" in refused
        assert "certificates of its own authority" in refused
        assert "Traceback" not in refused
    finally:
        for process in (worker, scheduler):
            process.terminate()
            process.wait(PATIENCE)
    table += [
        (
            "scheduler, TLS",
            "start, fit, pass, transform, extract",
            "same results as in one process; stores of images are identical to the byte",
        ),
        ("scheduler, TLS", "wrong certificate", "rejected with a one-line message, exit code 2"),
    ]


GATEWAY = """\
from dask_gateway_server.options import Float, Integer, Options

def sizes(options):
    return {{"worker_cores": options.worker_cores, "worker_memory": f"{{options.worker_memory}} G"}}

c.DaskGateway.backend_class = "dask_gateway_server.backends.local.UnsafeLocalBackend"
c.DaskGateway.address = "127.0.0.1:{ports[0]}"
c.Proxy.address = "127.0.0.1:{ports[1]}"
c.UnsafeLocalBackend.clusters_directory = "{folder}"
c.ClusterConfig.scheduler_cmd = ["{bin}/dask", "scheduler"]
c.ClusterConfig.worker_cmd = ["{bin}/dask", "worker"]
c.Backend.cluster_options = Options(Integer("worker_cores", 1), Float("worker_memory", 1), handler=sizes)
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Start a local Dask Gateway, and yield the setting with its address."""
    program = shutil.which("dask-gateway-server", path=f"{BIN}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("dask-gateway-server is not installed")
    folder, ports = tmp_path_factory.mktemp("gateway"), free_ports(2)
    (folder / "config.py").write_text(GATEWAY.format(ports=ports, folder=folder, bin=BIN), encoding="utf-8")
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen([program, "-f", str(folder / "config.py")], stdout=log, stderr=log, cwd=folder)
    try:
        until(lambda: "Dask-Gateway server started" in (folder / "log").read_text(), "the gateway")
        yield settings(gateway__address=f"http://127.0.0.1:{ports[1]}")
    finally:
        server.terminate()
        server.wait(PATIENCE)


@pytest.mark.clusters
def test_a_gateway_gives_workers_of_the_size_that_is_asked_for(
    gateway: dict[str, str], features: Path, expected: tuple[Path, Path], tmp_path: Path, table: Table
) -> None:
    where: Sequence[Any] = ("--scheduler", "gateway", "--workers", 1, "--memory-limit", "1GiB")
    said = work(features, expected[0], tmp_path, *where, **gateway)
    assert "the scheduler listens at" in said
    same_work(tmp_path, expected[1])
    refused = call(
        BIN / "dmo",
        "transform",
        tmp_path / "m.zarr",
        features,
        tmp_path / "t.zarr",
        *where[:2],
        code=2,
        **{name: value.replace("127.0.0.1", "127.0.0.2") for name, value in gateway.items()},
    )
    assert "provides no cluster" in refused
    table += [
        (
            "gateway",
            "start, fit, pass, transform, extract",
            "a new encrypted cluster, removed afterwards; same results as in one process",
        ),
        ("gateway", "no answer", "rejected with a one-line message, exit code 2"),
    ]


LOST = """
import os, signal, sys, threading, time
import numpy as np
from dmo.cluster import connect
from dmo.linalg.tiles import Tiles

rng = np.random.default_rng(0)
K, B = rng.random((96, 96)), rng.random((96, 3))
K += K.T

class Slow:
    n, block = 96, 4
    def tile(self, i, j):
        time.sleep(0.02)
        return K[4 * i : 4 * i + 4, 4 * j : 4 * j + 4]

with connect(sys.argv[1], workers=2) as place:
    A = Tiles(Slow(), place.client, dtype=np.float64)
    np.testing.assert_allclose(A @ B, K @ B)
    lost = min(place.client.run(os.getpid).values())
    threading.Timer(1.0, os.kill, (lost, signal.SIGKILL)).start()  # a product takes three seconds and more
    np.testing.assert_allclose(A @ B, K @ B)
    print("whole", flush=True)
    found, end = set(), time.monotonic() + 120
    while (len(found) < 2 or lost in found) and time.monotonic() < end:
        time.sleep(0.5)
        found = set(place.client.run(os.getpid, on_error="ignore").values())
    np.testing.assert_allclose(A @ B, K @ B)
    print(len(found - {lost}), flush=True)
"""


@pytest.mark.clusters
@pytest.mark.parametrize("place", ["ssh", "gateway"])
def test_a_worker_that_is_killed_in_a_pass_is_replaced(
    place: str, request: pytest.FixtureRequest, table: Table
) -> None:
    if place == "gateway":
        where, chosen = place, dict(request.getfixturevalue("gateway"))
    else:
        home, (port,) = request.getfixturevalue("ssh"), free_ports(1)
        where, chosen = "ssh:node0,node1", settings(ssh__host="127.0.0.1", ssh__port=port) | {"HOME": str(home)}
    said = call(sys.executable, "-c", LOST, where, **chosen, **settings(memory_limit="1GiB"))
    assert "whole" in said.split()
    assert "2" in said.split(), said
    table.append((place, "worker lost in a pass", "its tiles are recomputed; same product; a new worker replaces it"))


BASE = "python3,python3-pip,python3-venv,python-is-python3,ca-certificates"


@pytest.mark.clusters  # downloads a base system and all dependencies of dmo
def test_the_image_builds_and_fits_as_an_ordinary_user(features: Path, table: Table) -> None:
    needs("buildah", "debootstrap")
    if os.geteuid():
        pytest.skip("debootstrap and images without a daemon need root")
    folder = Path(tempfile.mkdtemp(prefix="dmo-image-"))

    def buildah(*arguments: Any) -> str:
        places = ["--root", folder / "images", "--runroot", folder / "run"]
        return call("buildah", *places, *arguments, patience=1500, BUILDAH_ISOLATION="chroot")

    try:
        call("debootstrap", "--variant=minbase", f"--include={BASE}", "bookworm", folder / "base", patience=900)
        shutil.rmtree(folder / "base/var/cache/apt")
        base = buildah("from", "scratch").split()[-1]
        buildah("copy", base, folder / "base", "/")
        buildah("commit", "--rm", base, "localhost/base")
        # The build needs the pip settings of this machine, such as the package index and trusted certificates.
        told = [f"--env={name}={value}" for name, value in os.environ.items() if name.startswith("PIP_")]
        seen = ["/etc/ssl/certs", *(path for path in ("/etc/pip.conf",) if Path(path).exists())]
        options = [*told, *(f"--volume={path}:{path}:ro" for path in seen), "--format=docker", "--layers=false"]
        recipe = ["-f", CLUSTER / "image/Dockerfile", "--build-arg", "BASE=localhost/base", "-t", "dmo:latest"]
        buildah("build", *options, *recipe, CLUSTER.parent)
        size = json.loads(buildah("inspect", "--type=image", "dmo:latest").strip())  # check the image format
        assert size["OCIv1"]["config"]["User"] == "1000"
        container = buildah("from", "dmo:latest").split()[-1]
        root = Path(buildah("mount", container).split()[-1])
        megabytes = int(call("du", "-sxm", root).split()[0])
        where = ["--scheduler", "local", "--workers", 1]
        # Mount the store, because only root can read its parent folder.
        data = f"--volume={features}:/data/digits.zarr:ro"
        said = buildah("run", data, container, "--", "dmo", "fit", "kgha", "/data/digits.zarr", "m.zarr", *FIT, *where)
        assert "m.zarr" in said
        found = buildah("run", container, "--", "dmo", "verify", "m.zarr")
        assert (root / "home/dmo/m.zarr").stat().st_uid == 1000, found
        assert megabytes < 1140
        table.append(
            ("image", "start, fit", f"built by buildah, {megabytes} MB; a fit on its own worker, as user 1000")
        )
    finally:
        if (folder / "images").exists():
            buildah("rm", "--all")
        shutil.rmtree(folder, ignore_errors=True)
