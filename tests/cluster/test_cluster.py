"""Test connections to the client process, a local cluster, an address and a scheduler file, and their errors."""

import asyncio
import gc
import json
import logging
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask
import numpy as np
import pytest
from cases import ArrayTiles, K, N
from distributed import Client, LocalCluster

from dmo import Exact, MultiViewRidge
from dmo.cluster import connect, current_client
from dmo.cluster.workers import send
from dmo.errors import UserError
from dmo.linalg.operators import Dense
from dmo.linalg.tiles import Tiles

B = np.random.default_rng(0).standard_normal((N, 2))


@pytest.fixture(autouse=True)
def _no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)


@pytest.fixture
def scheduler_file(local_cluster: Any, tmp_path: Path) -> str:
    path = tmp_path / "scheduler.json"
    written = {"type": "Scheduler", "id": local_cluster.scheduler.id, "address": local_cluster.scheduler_address}
    path.write_text(json.dumps(written), encoding="utf-8")
    return str(path)


def product() -> np.ndarray:
    return Tiles(ArrayTiles(K, 30), current_client(), dtype=np.float64) @ B


def worker_count(client: Any) -> int:
    return len(client.scheduler_info(n_workers=-1)["workers"])


@pytest.mark.parametrize("where", [None, "in-process"])
def test_work_runs_in_this_process_unless_said_otherwise(where: str | None) -> None:
    with connect(where) as place:
        assert current_client() is None
        assert (place.client, place.where, place.dashboard) == (None, "in this process", None)
        np.testing.assert_allclose(product(), Dense(K) @ B, atol=1e-12)


def test_an_address_connects_to_a_running_scheduler(local_cluster: Any) -> None:
    with connect(local_cluster.scheduler_address) as place:
        assert current_client() is place.client
        assert place.client.scheduler.address == local_cluster.scheduler_address
        assert place.where.startswith(f"{local_cluster.scheduler_address}, ")
        np.testing.assert_allclose(product(), Dense(K) @ B, atol=1e-12)
    assert current_client() is None
    assert place.client.status == "closed"


def test_the_number_of_workers_is_told(local_cluster: Any) -> None:
    with connect(local_cluster.scheduler_address) as place:
        assert place.where.endswith(", 2 workers")


def test_a_scheduler_file_connects(local_cluster: Any, scheduler_file: str) -> None:
    with connect(scheduler_file) as place:
        assert place.client.scheduler.address == local_cluster.scheduler_address
        assert place.client.submit(os.getpid).result() != os.getpid()


def test_the_environment_names_the_place(local_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", local_cluster.scheduler_address)
    with connect() as place:
        assert place.client.scheduler.address == local_cluster.scheduler_address
    with connect("in-process") as place:
        assert place.client is None


def test_a_local_cluster_is_made_and_taken_down() -> None:
    with connect("local", workers=1, memory_limit="1GiB") as place:
        workers = place.client.scheduler_info(n_workers=-1)["workers"]
        assert [worker["nthreads"] for worker in workers.values()] == [1]
        assert [worker["memory_limit"] for worker in workers.values()] == [2**30]
        assert all("127.0.0.1" in address for address in [*workers, place.client.scheduler.address])
        assert place.dashboard is None or "127.0.0.1" in place.dashboard
        pids = list(place.client.run(os.getpid).values())
        assert worker_count(place.client) == 1
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_block_that_raises_leaves_nothing_behind(local_cluster: Any) -> None:
    with pytest.raises(ZeroDivisionError), connect(local_cluster.scheduler_address) as place:
        raise ZeroDivisionError
    assert current_client() is None
    assert place.client.status == "closed"


def test_blocks_may_be_nested_and_the_inner_one_counts(local_cluster: Any) -> None:
    with connect(local_cluster.scheduler_address) as outer:
        with connect("in-process"):
            assert current_client() is None
        with connect(local_cluster.scheduler_address) as inner:
            assert current_client() is inner.client is not outer.client
        assert current_client() is outer.client
        assert outer.client.submit(abs, -2).result() == 2
        assert dask.delayed(os.getpid)().compute() != os.getpid()
    assert current_client() is None


@pytest.mark.parametrize("where", ["nowhere", "localhost:8786", "LOCAL", "."])
def test_an_unknown_place_is_refused(where: str) -> None:
    sentence = (
        f"cluster '{where}' is unknown; pass 'in-process', 'local', an address such as tcp://host:8786, or a "
        "scheduler file"
    )
    with pytest.raises(ValueError, match=sentence), connect(where):
        pass


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("http://127.0.0.1:1", "unknown address scheme 'http'"),
        ("tcp://127.0.0.1", "missing port number"),
        ("tls://127.0.0.1:1", r"encrypted; set dmo\.tls\.ca-file"),
    ],
)
def test_an_address_of_no_scheduler_is_refused_and_leaves_dask_alone(address: str, why: str) -> None:
    with pytest.raises(ValueError, match=why), connect(address):
        pass
    assert dask.config.get("scheduler", None) is None


@pytest.mark.parametrize("text", ["no json", "[1, 2]", "{}"])
def test_a_file_that_is_no_scheduler_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "model.json"
    path.write_text(text, encoding="utf-8")
    sentence = "model.json is not a scheduler file; pass the file that `dask scheduler --scheduler-file` wrote"
    with pytest.raises(ValueError, match=sentence), connect(str(path)):
        pass


def test_an_unreachable_scheduler_is_named_and_leaves_no_client(caplog: pytest.LogCaptureFixture) -> None:
    """No client may remain, because closing a client in the garbage collector can block the connection of another."""

    def clients() -> set[int]:
        return {id(one) for one in gc.get_objects() if type(one) is Client}

    gc.collect()
    known = clients()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(OSError, match=f"no scheduler answers at {address}: start one"),
            connect(address, timeout=0.5),
        ):
            pass
        assert clients() <= known


def test_a_scheduler_without_workers_is_named() -> None:
    with LocalCluster(
        n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0", silence_logs=logging.ERROR
    ) as empty:
        address = empty.scheduler_address
        with (
            pytest.raises(OSError, match=f"the scheduler at {address} has no workers after 0.3 s: start them"),
            connect(address, timeout=0.3),
        ):
            pass
    assert current_client() is None


X, Y = np.random.default_rng(1).standard_normal((90, 4)), np.arange(90) % 3
RIDGE = MultiViewRidge("rbf", approximation=Exact(storage="recomputed", block=32))


@pytest.mark.slow
def test_a_fit_uses_the_programs_own_client_and_says_so_once(
    local_cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(local_cluster) as own, caplog.at_level("INFO", logger="dmo"):
        assert current_client() is own
        RIDGE.fit(X, Y)
        RIDGE.fit(X, Y)
        assert caplog.text.count(f"using the default Dask client, {local_cluster.scheduler_address} with 2") == 1
        with connect() as place:
            assert place.client is own
        with connect("in-process"):
            assert current_client() is None
        assert own.status == "running"
    assert current_client() is None


def test_adaptive_cluster_starts_its_first_worker_and_a_worker_after_all_stopped() -> None:
    options = {"processes": False, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=0, threads_per_worker=1, **options) as cluster, Client(cluster) as own:
        cluster.adapt(minimum=0, maximum=1, interval="50 ms")
        tiles = Tiles(ArrayTiles(K, 30), current_client(), dtype=np.float64)
        np.testing.assert_allclose(tiles @ B, Dense(K) @ B, atol=1e-12)
        cluster.adapt(minimum=0, maximum=0, interval="50 ms")
        while own.nthreads():
            time.sleep(0.05)
        cluster.adapt(minimum=0, maximum=1, interval="50 ms")
        np.testing.assert_allclose(tiles @ B, Dense(K) @ B, atol=1e-12)


def test_fit_rejects_an_asynchronous_client() -> None:
    async def fit() -> None:
        async with Client(processes=False, asynchronous=True, dashboard_address="127.0.0.1:0"):
            RIDGE.fit(X, Y)

    with pytest.raises(
        UserError, match=r"the Dask client of inproc://.* is asynchronous, and dmo needs a synchronous one"
    ):
        asyncio.run(fit())


def test_a_client_that_is_not_the_default_one_is_used_within_its_own_block(client: Any) -> None:
    assert current_client() is None
    with client.as_current():
        assert current_client() is client
    with connect(client) as place:
        assert current_client() is place.client is client
        assert dask.delayed(os.getpid)().compute() != os.getpid()
    assert client.status == "running"
    assert current_client() is None


@pytest.mark.parametrize(
    "options", [{"security": True}, {"processes": False}], ids=["certificates in memory", "inproc"]
)
def test_clusters_that_have_no_address_for_others_are_taken_as_they_are(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address="127.0.0.1:0", **options) as cluster:
        for where in (cluster, Client(cluster, set_as_default=False)):
            with connect(where) as place, caplog.at_level("INFO", logger="dmo"):
                assert place.where == f"{cluster.scheduler_address}, 1 workers"
                np.testing.assert_allclose(product(), Dense(K) @ B, atol=1e-12)
        assert "NOT encrypted" not in caplog.text
        assert where.status == "running"
        where.close()
        if "security" in options:
            with (
                pytest.raises(ValueError, match=r"is encrypted; set dmo.tls.ca-file, .* or pass its client or cluster"),
                connect(cluster.scheduler_address),
            ):
                pass
        else:
            with connect(cluster.scheduler_address) as place:
                # A task occupies a worker thread, so a task that waits for other tasks on a
                # busy worker would never end.
                assert place.client.submit(current_client).result(timeout=60) is None
                there = place.client.submit(RIDGE.fit, X, Y).result(timeout=60)
            np.testing.assert_array_equal(there.predict(X), RIDGE.fit(X, Y).predict(X))


def test_blocks_do_not_pass_the_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[str] = []
    with LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster:
        for name in ("gather", "scatter"):
            handler = cluster.scheduler.handlers[name]

            async def counted(*given: Any, name: str = name, handler: Any = handler, **named: Any) -> Any:
                passed.append(name)
                return await handler(*given, **named)

            monkeypatch.setitem(cluster.scheduler.handlers, name, counted)
        with Client(cluster, direct_to_workers=False) as chosen, connect(chosen):
            product()
            assert set(passed) == {"gather", "scatter"}  # dmo keeps the settings of the caller's client
        passed.clear()
        with Client(cluster) as own:
            np.testing.assert_allclose(product(), Dense(K) @ B, atol=1e-12)
            assert own.direct_to_workers
        assert passed == []


def test_what_is_no_place_is_refused_by_its_type() -> None:
    with (
        pytest.raises(
            ValueError, match=r"cluster '3' of type int is not supported; pass a distributed\.Client, a cluster of Dask"
        ),
        connect(3),
    ):
        pass


@pytest.mark.parametrize(("n_samples", "where"), [(19_999, "in this process"), (20_000, "local, 1 workers")])
def test_auto_uses_a_cluster_for_many_samples(n_samples: int, where: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dmo")
    with (
        patch("dmo.cluster.connection.usable_cores", lambda: 2),
        connect("auto", workers=1, n_samples=n_samples) as place,
    ):
        assert place.where == where
    assert f"chosen for {n_samples} samples" in caplog.messages[0]


def test_explicit_scheduler_is_obeyed_with_a_warning(local_cluster: Any, caplog: pytest.LogCaptureFixture) -> None:
    for n_samples, warned in ((20_000, 0), (19_999, 1)):
        with connect(local_cluster.scheduler_address, n_samples=n_samples) as place:
            assert place.client is not None
        assert sum("one process is faster" in message for message in caplog.messages) == warned


def test_loss_of_sent_data_logs_no_error() -> None:
    records = list[logging.LogRecord]()
    handler = logging.Handler(logging.ERROR)
    handler.emit = records.append  # type: ignore[method-assign]
    logging.getLogger("distributed.scheduler").addHandler(handler)
    try:
        with connect("local", workers=1) as place:
            (pid,) = place.client.run(os.getpid).values()
            sent = send(place.client, np.ones(3))
            os.kill(pid, signal.SIGKILL)
            deadline = time.monotonic() + 60
            while sent.status != "lost" and sent.status != "cancelled":
                assert time.monotonic() < deadline, sent.status
                time.sleep(0.05)
            assert next(iter(place.client.run(os.getpid).values()), None) != pid
    finally:
        logging.getLogger("distributed.scheduler").removeHandler(handler)
    assert [record.getMessage() for record in records] == []
