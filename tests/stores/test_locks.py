"""One writer of a store at a time; damaged stores opened again and completed; disks that refuse."""

import gc
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dmo import stores
from dmo.cli.app import app
from dmo.stores import _lock
from dmo.stores._folder import LOCK, Folder

ROWS = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
HOLD = """
import sys, numpy as np
from dmo import stores
writer = stores.create_results(sys.argv[1], 50, 4, block=10)
writer.write(0, np.zeros((10, 4), np.float32))
print("ready", flush=True)
sys.stdin.read()
"""


def begin(path: Path) -> stores.ResultWriter:
    return stores.create_results(path, 50, 4, block=10)


def fill(writer: stores.ResultWriter) -> None:
    for block in writer.missing():
        writer.write(block, ROWS[writer.rows(block)])
    writer.finish()


def wait_until_unlocked(path: Path) -> None:
    deadline = time.monotonic() + 60
    while (path / LOCK).exists():
        assert time.monotonic() < deadline, "the lock is still there"
        time.sleep(0.01)


def digest(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[tuple[Path, "subprocess.Popen[str]"]]:
    """A store that another process is writing."""
    path = tmp_path / "rows.zarr"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield path, process
    process.kill()
    process.communicate()


def test_a_store_that_another_process_writes_is_refused_until_it_is_killed(holder) -> None:
    path, process = holder
    for overwrite in (False, True):
        with pytest.raises(stores.StoreError, match=f"is being written by process {process.pid} on .*; wait for it"):
            stores.create_results(path, 50, 4, block=10, overwrite=overwrite)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    writer = begin(path)
    assert writer.missing() == [1, 2, 3, 4]
    writer.finish() if not writer.missing() else fill(writer)
    assert not (path / LOCK).exists()


def test_a_process_that_ends_gives_up_its_lock(holder) -> None:
    path, process = holder
    process.communicate("", timeout=60)
    assert not (path / LOCK).exists()
    assert begin(path).missing() == [1, 2, 3, 4]


def test_a_lock_of_another_host_is_stale_when_it_was_not_renewed(tmp_path: Path) -> None:
    path = tmp_path / "rows.zarr"
    begin(path)  # dropped at once, and its lock soon after
    wait_until_unlocked(path)
    owner = {"host": "elsewhere", "pid": 1, "token": "t", "started": 0.0, "time": _lock.time.time()}
    (path / LOCK).write_text(json.dumps(owner))
    with pytest.raises(stores.StoreError, match="is being written by process 1 on elsewhere"):
        begin(path)
    (path / LOCK).write_text(json.dumps(owner | {"time": owner["time"] - _lock.STALE - 1}))
    fill(begin(path))
    np.testing.assert_array_equal(stores.open_results(path)[:], ROWS)


def test_a_damaged_lock_and_a_recycled_process_number_are_stale(tmp_path: Path) -> None:
    path = tmp_path / "rows.zarr"
    begin(path)
    (path / LOCK).write_text("{")
    begin(path)
    owner = {"host": _lock.socket.gethostname(), "pid": os.getppid(), "token": "t", "started": 1.0, "time": 0.0}
    (path / LOCK).write_text(json.dumps(owner))
    fill(begin(path))
    assert stores.verify(path) == []


def test_writers_of_one_process_share_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "rows.zarr"
    first, second = begin(path), begin(path)
    first.write(0, ROWS[:10])
    del first
    assert (path / LOCK).exists()
    fill(second)
    assert not (path / LOCK).exists()


def test_object_stores_are_locked_as_well() -> None:
    url = "memory://locked/rows.zarr"
    writer = stores.create_results(url, 50, 4, block=10)
    assert Folder(url).get(LOCK) is not None
    fill(writer)
    assert Folder(url).get(LOCK) is None


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "byte":
        data[len(data) // 2] ^= 1
    path.write_bytes(data[: len(data) // 2] if how == "truncated" else data)
    if how == "removed":
        path.unlink()


@pytest.mark.parametrize("how", ["byte", "truncated", "removed"])
@pytest.mark.parametrize("what", ["embedding/c.2.0", "manifest/embedding/c.0.0.0", "embedding/zarr.json"])
def test_a_damaged_store_is_found_opened_again_and_completed(tmp_path: Path, how: str, what: str) -> None:
    path = tmp_path / "rows.zarr"
    fill(begin(path))
    whole = digest(path)
    damage(path / what, how)
    runner = CliRunner()
    assert runner.invoke(app, ["verify", str(path)]).exit_code == 4
    found = runner.invoke(app, ["verify", str(path), "--repair", "--json"])
    assert found.exit_code == 4
    record = json.loads(found.stdout)
    assert len(record["problems"]) == 1
    assert record["reopened_blocks"] == {"e": 5 if "manifest" in what else 1 if "c.2" in what else 0}["e"]
    with pytest.raises(stores.StoreError, match="incomplete"):
        stores.open_results(path)
    fill(begin(path))
    assert digest(path) == whole
    assert runner.invoke(app, ["verify", str(path)]).exit_code == 0


def test_a_model_is_not_reopened(tmp_path: Path) -> None:
    stores.save_model(tmp_path / "model.zarr", {"a": ROWS}, {})
    with pytest.raises(stores.StoreError, match="is a model, which is written in one piece; fit and save it again"):
        stores.reopen(tmp_path / "model.zarr")


def test_a_quota_leaves_a_store_that_can_be_resumed(tmp_path: Path) -> None:
    """A process that may not write files above 4 KiB: the small files are written, the first large block is refused."""
    code = (
        "import sys, resource, signal, numpy as np; from dmo import stores;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "writer = stores.create_results(sys.argv[1], 8, 1024, block=1 if len(sys.argv) > 2 else 4);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000));"
        "writer.write(0, np.ones((4, 1024), np.float32))"
    )
    path = tmp_path / "rows.zarr"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "cannot write block 0 of 'embedding' (File too large); make room" in done.stderr
    writer = stores.create_results(path, 8, 1024, block=4)
    assert writer.missing() == [0, 1]
    for block in writer.missing():
        writer.write(block, np.ones((4, 1024), np.float32))
    writer.finish()
    assert stores.verify(path) == []
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 6000


def test_a_dropped_writer_gives_its_lock_up_without_waiting(tmp_path: Path) -> None:
    """Finalizers run wherever the garbage collector does, also in a thread that the lock's holder waits for."""
    path = tmp_path / "rows.zarr"
    held = {"writer": begin(path)}

    def drop() -> None:
        held.clear()
        gc.collect()

    with _lock._guard:
        dropping = threading.Thread(target=drop, daemon=True)
        dropping.start()
        dropping.join(timeout=60)
        assert not dropping.is_alive()
        assert (path / LOCK).exists()
    wait_until_unlocked(path)
