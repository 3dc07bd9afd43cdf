"""Check that locks allow one writer per store, and that stores can be completed after failures of writers and disks."""

import dataclasses
import errno
import gc
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import dask.config
import numpy as np
import pytest
from typer.testing import CliRunner

from dmo import stores
from dmo.cli.app import app
from dmo.stores import _lock, _schema
from dmo.stores._arrays import DenseArray
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
    """Provide a store that is locked by a writer in another process."""
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


def of_another(**changes: Any) -> bytes:
    """Return the contents of a lock file of this process, modified by `changes`."""
    return dataclasses.replace(_lock.Owner.this(), token="t", **changes).dump()


def locked(path: Path, **changes: Any) -> None:
    """Create an unfinished store that appears to be locked by another process."""
    begin(path)  # the lock is released soon after the writer is deleted
    wait_until_unlocked(path)
    (path / LOCK).write_bytes(of_another(**changes))


@pytest.mark.slow
def test_a_lock_that_cannot_be_given_up_keeps_no_other_from_it(tmp_path: Path, monkeypatch) -> None:
    """The thread that renews locks must survive a storage service that rejects requests."""
    refused, ask, url = threading.Event(), Folder.get, str(tmp_path / "refused.zarr")

    def get(folder: Folder, key: str) -> bytes | None:
        if folder.url == url and threading.current_thread().name == "dmo-locks":
            refused.set()
            raise stores.StoreError(f"{folder.url}: no usable credentials were found")
        return ask(folder, key)

    monkeypatch.setattr(Folder, "get", get)
    for path in (Path(url), tmp_path / "other.zarr"):
        writer = begin(path)
        del writer
        gc.collect()
    assert refused.wait(60)
    wait_until_unlocked(tmp_path / "other.zarr")


def test_a_lock_of_another_host_is_stale_when_it_was_not_renewed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(_lock, "RENEW", 0.2)
    path, now = tmp_path / "rows.zarr", time.time()
    locked(path, host="elsewhere", pid=1, boot="another", time=now)
    with pytest.raises(stores.StoreError, match=r"is being written by process 1 on elsewhere; .* remove .*lock"):
        begin(path)
    (path / LOCK).write_bytes(of_another(host="elsewhere", boot="another", time=now - _lock.STALE - 1))
    fill(begin(path))
    np.testing.assert_array_equal(stores.open_results(path)[:], ROWS)


@pytest.mark.parametrize("ahead", [-86_400.0, 86_400.0])
def test_the_lock_of_a_host_whose_clock_is_wrong_is_kept_while_it_is_renewed_and_taken_when_it_is_not(
    tmp_path: Path, monkeypatch, ahead: float
) -> None:
    """A lock is valid if it changes during one renewal period, independent of all time stamps."""
    monkeypatch.setattr(_lock, "RENEW", 0.2)
    path = tmp_path / "rows.zarr"
    locked(path, host="elsewhere", boot="another", time=time.time() + ahead)
    stop = threading.Event()

    def renew() -> None:
        while not stop.wait(0.05):
            there = time.time() + ahead
            Folder(str(path)).put(LOCK, of_another(host="elsewhere", boot="another", time=there))
            os.utime(path / LOCK, (there, there))

    renewing = threading.Thread(target=renew)
    renewing.start()
    try:
        with pytest.raises(stores.StoreError, match=r"is being written by process .* on elsewhere"):
            begin(path)
    finally:
        stop.set()
        renewing.join()
    os.utime(path / LOCK, (time.time() + ahead,) * 2)
    fill(begin(path))
    np.testing.assert_array_equal(stores.open_results(path)[:], ROWS)


def test_a_damaged_lock_and_a_recycled_process_number_are_stale(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(_lock, "TORN", 0.1)
    path = tmp_path / "rows.zarr"
    for damaged in (b"", b"{", b"[]", b'{"pid": 1}', of_another(pid=2**40)):
        begin(path)
        wait_until_unlocked(path)
        (path / LOCK).write_bytes(damaged)
        begin(path)
        wait_until_unlocked(path)
    locked(path, pid=os.getppid(), started="1")
    fill(begin(path))
    assert stores.verify(path) == []


def test_a_lock_holds_when_the_clock_is_set(holder, monkeypatch) -> None:
    """psutil derives the start time of a process from the boot time, which changes if the system clock is set."""
    path, process = holder
    real, clock = _lock.psutil.Process.create_time, time.time
    monkeypatch.setattr(_lock.psutil.Process, "create_time", lambda self: real(self) + 86_400)
    monkeypatch.setattr(_lock.time, "time", lambda: clock() + 86_400)
    with pytest.raises(stores.StoreError, match=f"is being written by process {process.pid} on"):
        begin(path)


STEPPING = """
import sys, time, numpy as np
from dmo import stores
from dmo.stores import _lock
_lock.RENEW, clock = 0.1, time.time
rows = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
writer = stores.create_results(sys.argv[1], 50, 4, block=10)
for block in writer.missing():
    if block == 2:
        time.time = lambda: clock() + float(sys.argv[2])
    print(block, flush=True)
    sys.stdin.readline()
    writer.write(block, rows[writer.rows(block)])
writer.finish()
"""


@pytest.mark.slow
@pytest.mark.parametrize("step", [-21_600, 21_600])
@pytest.mark.parametrize("host", ["same", "other"])
def test_a_writer_whose_clock_is_set_by_hours_keeps_its_lock_and_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch, host: str, step: int
) -> None:
    path = tmp_path / "rows.zarr"
    if host == "other":
        monkeypatch.setattr(_lock, "_boot", lambda: "another kernel")
    command = [sys.executable, "-c", STEPPING, str(path), str(step)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for block in process.stdout:
            with pytest.raises(stores.StoreError, match=f"is being written by process {process.pid} on"):
                begin(path)
            process.stdin.write(block)
            process.stdin.flush()
    assert process.returncode == 0
    fill(begin(tmp_path / "calm.zarr"))
    assert digest(path) == digest(tmp_path / "calm.zarr")


def in_namespace(*command: str) -> list[str]:
    """Build a command that runs in a new PID namespace, or skip the test if namespaces are not supported."""
    start = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*start, "true"], capture_output=True).returncode:
        pytest.skip("this system cannot create PID namespaces (unshare)")
    return [*start, *command]


def test_a_process_in_a_container_of_the_same_host_name_keeps_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "rows.zarr"
    command = in_namespace(sys.executable, "-c", HOLD, str(path))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(stores.StoreError, match="is being written by process 1 on "):
            begin(path)
        owner = _lock.holder(Folder(str(path)))
        process.communicate("", timeout=60)
    (path / LOCK).write_bytes(dataclasses.replace(owner, clock=time.monotonic() - _lock.STALE - 1).dump())
    assert begin(path).missing() == [1, 2, 3, 4]


def taken_over(path: Path, **changes: Any) -> stores.ResultWriter:
    """Remove the lock of a store, and restart the store with a new writer."""
    (path / LOCK).unlink()
    writer = stores.create_results(path, 50, 4, block=10, overwrite=True, **changes)
    (path / LOCK).write_bytes(of_another())
    return dataclasses.replace(writer, blocks=dataclasses.replace(writer.blocks, token="t"))


@pytest.mark.parametrize("finished", [False, True])
def test_a_writer_that_lost_its_lock_stops_and_leaves_the_others_store_alone(tmp_path: Path, finished: bool) -> None:
    path = tmp_path / "rows.zarr"
    loser = begin(path)
    loser.write(0, ROWS[:10])
    winner = taken_over(path, attributes={"by": "winner"})
    for block in range(5):
        winner.write(block, -ROWS[winner.rows(block)])
    if finished:
        winner.finish()
    before = digest(path)
    for ended in (lambda: loser.write(1, ROWS[10:20]), loser.finish):
        with pytest.raises(stores.StoreError, match=r"was taken over by .* and this writer stops"):
            ended()
    assert digest(path) == before


def test_a_writer_that_loses_its_lock_within_a_block_does_not_record_it(tmp_path: Path, monkeypatch) -> None:
    path, write = tmp_path / "rows.zarr", DenseArray.write
    loser = begin(path)

    def lost_meanwhile(self: DenseArray, index: Any, values: np.ndarray) -> Any:
        monkeypatch.undo()
        (path / LOCK).write_bytes(of_another())
        return write(self, index, values)

    monkeypatch.setattr(DenseArray, "write", lost_meanwhile)
    with pytest.raises(stores.StoreError, match="was taken over by process"):
        loser.write(0, ROWS[:10])
    assert not list((path / "journal").rglob("c.*"))


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK])
def test_stores_are_locked_where_there_are_no_hard_links(tmp_path: Path, monkeypatch, code: int) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "rows.zarr"
    writer = begin(path)
    assert _lock.holder(Folder(str(path))).token == _lock.own_token()
    fill(writer)
    locked(tmp_path / "other.zarr", pid=os.getppid(), started=_lock._started(os.getppid()))
    with pytest.raises(stores.StoreError, match=f"is being written by process {os.getppid()}"):
        begin(tmp_path / "other.zarr")
    assert not Folder(str(path)).put_new("zarr.json", b"")
    assert stores.verify(path) == []


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("same", [False, True])
def test_a_store_that_another_process_begins_between_the_look_and_the_lock_is_kept(
    tmp_path: Path, monkeypatch, finished: bool, same: bool
) -> None:
    path = tmp_path / "rows.zarr"

    def late(folder: Folder) -> None:
        monkeypatch.undo()
        winner = begin(path)
        winner.write(0, ROWS[:10])
        if finished:
            fill(winner)
        _lock.release(winner.url, all_writers=True)
        _lock.acquire(folder)

    monkeypatch.setattr(_schema, "acquire", late)
    if same:
        writer = begin(path)
        assert writer.missing() == ([] if finished else [1, 2, 3, 4])
        fill(writer)
        np.testing.assert_array_equal(stores.open_results(path)[:], ROWS)
    else:
        with pytest.raises(stores.StoreError, match=r"was (started|made) with columns = 4, now it is 3"):
            stores.create_results(path, 50, 3, block=10)
        fill(begin(path))
    assert not (path / LOCK).exists()
    assert stores.verify(path) == []


def test_a_store_whose_writer_died_between_its_completion_and_its_lock_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "r.zarr"
    fill(begin(path))
    whole = sorted(path.rglob("*"))
    for held in (False, True):
        locked(path, pid=2**22 + 1, started="0")
        (path / "journal").mkdir()
        (path / "embedding" / ".c.0.0.x.partial").write_bytes(b"of a killed writer")
        with stores.reserve(path) if held else nullcontext():
            again = begin(path)
            assert again.missing() == []
            again.finish()
        assert sorted(path.rglob("*")) == whole
        assert stores.verify(path) == []
    locked(path)  # simulate a running writer
    (path / "journal").mkdir()
    assert begin(path).missing() == []
    assert (path / "journal").exists()


def test_a_file_is_not_reserved(tmp_path: Path) -> None:
    (tmp_path / "file.txt").touch()
    with (
        pytest.raises(stores.StoreError, match="is a file, but a store is a folder"),
        stores.reserve(tmp_path / "file.txt"),
    ):
        pass


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
    """Under a file size limit of 6000 bytes, a process writes the small files but fails at the first large block."""
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
    assert "cannot write block 0 of 'embedding' (File too large); free disk space" in done.stderr
    writer = stores.create_results(path, 8, 1024, block=4)
    assert writer.missing() == [0, 1]
    for block in writer.missing():
        writer.write(block, np.ones((4, 1024), np.float32))
    writer.finish()
    assert stores.verify(path) == []
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 6000


def test_a_dropped_writer_gives_its_lock_up_without_waiting(tmp_path: Path) -> None:
    """A finalizer must not wait for a lock, because the garbage collector may run the finalizer in any thread."""
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


def test_bytes_are_on_the_disk_before_their_names_unless_storage_is_scratch(tmp_path: Path, monkeypatch) -> None:
    """Check that data are written before file names, and file names before the root that marks the store as complete.

    A power failure can occur between any two steps. If a journal entry is lost, its block is written again.
    """
    if not Path("/proc/self/fd").exists():
        pytest.skip("this system does not provide the names of open files")
    steps: list[tuple[str, str]] = []
    replace, fsync = os.replace, os.fsync

    def synced(handle: int) -> None:
        steps.append(("sync", os.readlink(f"/proc/self/fd/{handle}")))
        fsync(handle)

    def renamed(source: Path, target: Path) -> None:
        assert "/journal/" in str(target) or steps[-1] == ("sync", str(source))
        steps.append(("name", str(target)))
        replace(source, target)

    monkeypatch.setattr(os, "replace", renamed)
    monkeypatch.setattr(os, "fsync", synced)
    path = tmp_path / "rows.zarr"
    with dask.config.set({"dmo.stores.fsync": True}):
        fill(begin(path))
    assert ("sync", str(tmp_path)) in steps
    last = steps.index(("name", str(path / "embedding" / "c.4.0")))
    complete = max(i for i, step in enumerate(steps) if step == ("name", str(path / "zarr.json")))
    for folder in ("embedding", "manifest/embedding", "."):
        assert ("sync", str(path / folder)) in steps[last:complete]
    assert steps[complete + 1] == ("sync", str(path))
    monkeypatch.setattr(os, "replace", replace)
    steps.clear()
    with dask.config.set({"dmo.stores.fsync": False}):
        fill(begin(tmp_path / "scratch.zarr"))
    assert steps == []
    with dask.config.set({"dmo.stores.fsync": "no"}), pytest.raises(ValueError, match="expected true or false"):
        begin(tmp_path / "other.zarr")


HOLD_MODEL = """
import sys
from dmo import stores
with stores.reserve_model(sys.argv[1]):
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_two_fits_to_one_path_are_not_begun(tmp_path: Path) -> None:
    """A second fit to the same path is rejected before it starts, unless the first fit was killed."""
    features, path = tmp_path / "f.zarr", tmp_path / "model.zarr"
    specs = {"x": stores.ViewSpec(4)}
    writer = stores.create_features(features, 50, specs, labels=np.eye(50, 3, dtype=np.uint8), block=50)
    writer.write("x", 0, ROWS)
    writer.finish()
    command = [sys.executable, "-c", HOLD_MODEL, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for more in ([], ["--overwrite"]):
            refused = CliRunner().invoke(app, ["fit", "ridge", str(features), str(path), *more])
            assert refused.exit_code == 2
            assert f"is being written by process {process.pid}" in refused.stderr
        with pytest.raises(stores.StoreError, match="is being written by process"):
            stores.save_model(path, {"a": ROWS}, {})
        process.kill()
    assert CliRunner().invoke(app, ["fit", "ridge", str(features), str(path)]).exit_code == 0
    assert stores.verify(path) == []
    with stores.reserve_model(tmp_path / "unused.zarr"):
        pass
    assert not (tmp_path / "unused.zarr").exists()


def test_a_model_that_is_replaced_while_it_is_described_or_verified_is_whole(tmp_path, monkeypatch):
    path, walk, read = tmp_path / "model.zarr", os.walk, stores.models.read_array

    def replaced_once(result):
        monkeypatch.setattr(os, "walk", walk)
        monkeypatch.setattr(stores.models, "read_array", read)
        stores.save_model(path, {"a": ROWS}, {}, overwrite=True)
        return result

    stores.save_model(path, {"a": ROWS}, {})
    monkeypatch.setattr(os, "walk", lambda folder: replaced_once(list(walk(folder))))
    assert stores.describe(path)["arrays"] == {"a": {"format": "dense", "shape": [50, 4], "dtype": "float32"}}
    monkeypatch.setattr(stores.models, "read_array", lambda *known: read(*replaced_once(known)))
    assert stores.verify(path) == []


KILLED_SAVES = """
import os, sys
import numpy as np
from dmo import stores
path, replace = sys.argv[1], os.replace

def save(number):
    stores.save_model(path, {"a": np.full(9, number), "attached/b": np.full(3, number)}, {"number": number})

def killed_at(step):
    done = [0]
    def counted(source, target):
        done[0] += 1
        if done[0] == step:
            os._exit(9)
        replace(source, target)
    os.replace = counted
    save(step)
    os._exit(0)

def state():
    try:
        arrays, meta = stores.load_model(path)
    except FileNotFoundError:
        return None
    except stores.StoreError as error:
        assert "is incomplete" in str(error)
        return None
    assert {*arrays["a"], *arrays["attached/b"]} == {meta["number"]}
    return meta["number"]

last = None
for round in ("new", "replaced"):
    step, code = 0, 9
    while code == 9:
        step += 1
        child = os.fork() or killed_at(step)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert state() == (last if code == 9 else step), (round, step, state())
    assert step > 6
    last = step
    left = os.listdir(path)
    assert len(left) == 2, left
"""


@pytest.mark.slow
def test_a_save_that_is_killed_anywhere_leaves_the_old_model_and_is_swept_by_the_next(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED_SAVES, str(tmp_path / "model.zarr")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
