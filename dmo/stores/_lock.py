"""One writer of a store at a time: a lock beside the root of a store that is not finished, or of a model.

The process that begins a store holds its lock until the store is finished, its writer is no longer used, or the process
ends; the workers it gives blocks to need none, they carry its token, which is compared before every block and entry. So a
writer that lost its lock stops instead of writing into what another one has made.

A lock is stale, and taken over, where its process is gone. That is told by the running kernel (boot), the namespace of
process numbers and the tick at which the process started, which no change of the clock moves. The process of another
namespace (a container) cannot be looked at: its lock is stale when it was not renewed for STALE seconds of the kernel's
own clock. Clocks of two hosts may differ, so the lock of another host is stale only when it is not renewed while it is
watched; it is watched where both clocks together say that it was not renewed for STALE seconds, or are that far apart.
On object stores a lock is created exclusively where the service and its file system can (S3: If-None-Match); a lock is read
back in any case. Removing a stale one takes two requests: a writer whose lock another one removed between them stops at
its next block.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any
from weakref import WeakValueDictionary

import psutil

from dmo.stores._folder import LOCK, Folder, StoreError, writing

RENEW, STALE = 15.0, 600.0  # seconds
TORN = 2.0  # seconds that a lock may be half-written where there are no hard links
_held: dict[str, int] = {}  # url -> writers in this process
_abandoned: SimpleQueue[str] = SimpleQueue()  # urls of writers that nobody holds any more
_guard = threading.Lock()
_savers: WeakValueDictionary[str, Any] = WeakValueDictionary()  # url -> lock of the threads of this process


@dataclass(frozen=True)
class Owner:
    """Who has a lock: `boot`, `namespace` and `started` tell one process from every other; `clock` is the kernel's, in
    seconds, and `time` the wall's, both of the last renewal."""

    host: str
    pid: int
    boot: str
    namespace: str
    started: str
    token: str
    clock: float
    time: float

    @classmethod
    def this(cls) -> Owner:
        """This process, now."""
        pid = os.getpid()
        started = _started("self" if Path("/proc/self").exists() else pid) or ""
        return cls(
            socket.gethostname(), pid, _boot(), _namespace(), started, own_token(), time.monotonic(), time.time()
        )

    @classmethod
    @lru_cache(maxsize=16)  # a writer reads the same lock twice a block
    def parse(cls, data: bytes) -> Owner | None:
        """The owner that a lock names; None where it is damaged, or half-written."""
        try:
            owner = cls(**json.loads(data))
        except (ValueError, TypeError, RecursionError):
            return None
        numbers = all(type(value) in (int, float) for value in (owner.pid, owner.clock, owner.time))
        return owner if numbers and 0 < owner.pid < 1 << 31 else None

    def dump(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


UNKNOWN = Owner("an unknown host", 0, "", "", "", "", 0.0, 0.0)
"""The owner of a lock that cannot be read."""


def own_token() -> str:
    """What tells this process from every other that ever was."""
    return _token(os.getpid())


def holder(folder: Folder) -> Owner | None:
    """Who has the lock of a store; None where nobody has."""
    found = folder.get(LOCK)
    return None if found is None else Owner.parse(found) or UNKNOWN


def acquire(folder: Folder) -> None:
    """Take the lock of a store for this process; StoreError where another living process has it."""
    folder.refuse_file()
    with suppress(Empty):
        while True:
            release(_abandoned.get_nowait())
    unchanged: bytes | None = None
    while True:
        with _guard, writing(folder.url, "the lock of the store"):
            if (_held.get(folder.url) and _mine(folder)) or _take(folder, unchanged):
                # writers of a lock that was lost are still to release it
                _held[folder.url] = _held.get(folder.url, 0) + 1
                break
        unchanged = _watch(folder)  # without the guard: this process goes on renewing its other locks
    _renewing(os.getpid())


@contextmanager
def reserve(path: str | os.PathLike[str]) -> Iterator[None]:
    """Keep other processes from writing a store at `path` until the block ends, from before the work that it takes.

    Parameters
    ----------
    path : str or path-like
        Local path or URL.

    Yields
    ------
    None
        Nothing.

    Raises
    ------
    StoreError
        Where another process writes it.

    Examples
    --------
    >>> import tempfile
    >>> from dmo.stores import create_results, reserve
    >>> with tempfile.TemporaryDirectory() as folder, reserve(f"{folder}/rows.zarr"):
    ...     create_results(f"{folder}/rows.zarr", 2, 1).missing()  # after long preparations
    [0]
    """
    folder = Folder.at(path)
    acquire(folder)
    try:
        yield
    finally:
        release(folder.url)


@contextmanager
def alone(folder: Folder) -> Iterator[None]:
    """Hold the lock of a store, and keep the other threads of this process out as well."""
    acquire(folder)
    try:
        with _guard:
            mine = _savers.setdefault(folder.url, threading.RLock())
        with mine:
            yield
    finally:
        release(folder.url)


def abandon(url: str) -> None:
    """Have the lock given up soon, by another thread: for finalizers, which run in any thread at any moment and must
    neither wait for a lock nor read or write."""
    _abandoned.put(url)


def release(url: str, all_writers: bool = False) -> None:
    """Give up the lock, with the last writer of this process or at once."""
    with _guard:
        count = _held.get(url, 0)
        if not count:
            return
        if count > 1 and not all_writers:
            _held[url] = count - 1
            return
        del _held[url]
        folder = Folder(url)
        with suppress(OSError, StoreError):  # a lock that cannot be removed grows stale; the thread that renews goes on
            if _mine(folder):
                folder.delete(LOCK)
                if folder.is_local:
                    os.rmdir(folder.url)  # where nothing was written but the lock


def _take(folder: Folder, unchanged: bytes | None) -> bool:
    """Whether the lock was taken; False where it must be watched first. `unchanged`: the bytes of one that was."""
    for _ in range(3):
        if folder.put_new(LOCK, Owner.this().dump()):
            return True
        found = folder.get(LOCK)
        if found is None:
            continue
        owner = Owner.parse(found)
        if owner is not None and _alive(owner):
            raise _taken(folder, owner)
        if found != unchanged and (owner is None or owner.boot != _boot()):
            return False
        folder.delete_if(LOCK, found)
    raise StoreError(f"{folder.url} is being written by another process; wait for it, or stop it and run again")


def _taken(folder: Folder, owner: Owner) -> StoreError:
    return StoreError(
        f"{folder.url} is being written by {owner}; wait for it, or stop it and run again "
        f"(if it is gone for certain, remove {folder.url}/{LOCK})"
    )


def _watch(folder: Folder) -> bytes | None:
    """The bytes of a lock that did not change for as long as its owner would need to finish or renew it, else None.

    Raises StoreError where its owner renews it.
    """
    found = folder.get(LOCK)
    if found is None:
        return None
    owner = Owner.parse(found)
    end = time.monotonic() + (TORN if owner is None else 2.5 * RENEW)
    while time.monotonic() < end:
        time.sleep(min(0.2, RENEW))
        now = folder.get(LOCK)
        if now != found:
            renewed = None if now is None else Owner.parse(now)
            if owner is not None and renewed is not None and renewed.token == owner.token:
                raise _taken(folder, renewed)
            return None
    return found


@lru_cache(maxsize=1)
def _token(pid: int) -> str:
    return uuid.uuid4().hex


def _boot() -> str:
    """The running kernel and its clocks; the host's name where the system does not tell."""
    try:
        clocks = os.readlink("/proc/self/ns/time")
    except OSError:
        clocks = ""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() + clocks
    except OSError:
        return socket.gethostname()


def _namespace() -> str:
    """The namespace of process numbers that this process lives in; containers have one each."""
    try:
        if os.readlink("/proc/self") != str(os.getpid()):  # /proc is of another one and tells nothing of this one's
            return own_token()
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _started(pid: int | str) -> str | None:
    """When a process started, in words that no other process of that number shares; None where there is none.

    Linux: ticks since the boot, since psutil's seconds follow the clock when it is set.
    """
    try:
        state, *rest = (
            Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        )
        return None if state in "ZX" else rest[18]
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    try:
        process = psutil.Process(int(pid))
        return None if process.status() == psutil.STATUS_ZOMBIE else repr(process.create_time())
    except psutil.NoSuchProcess:
        return None


def _mine(folder: Folder) -> bool:
    """Whether this process has the lock."""
    owner = holder(folder)
    return owner is not None and owner.token == own_token()


def _alive(owner: Owner) -> bool:
    if owner.token == own_token():
        return False
    if owner.boot != _boot():
        return abs(time.time() - owner.time) < STALE
    if owner.namespace == _namespace():
        return _started(owner.pid) == owner.started
    return time.monotonic() - owner.clock < STALE


@lru_cache(maxsize=1)
def _renewing(pid: int) -> threading.Thread:
    """The thread that renews the locks of this process, and gives up those of abandoned writers."""
    thread = threading.Thread(target=_renew, name="dmo-locks", daemon=True)
    thread.start()
    return thread


def _renew() -> None:
    due = time.monotonic() + RENEW
    while True:
        try:
            release(_abandoned.get(timeout=max(0.0, due - time.monotonic())))
            continue
        except Empty:
            due = time.monotonic() + RENEW
        with _guard:
            for url in _held:
                folder = Folder(url)
                with suppress(Exception):  # whatever a file system raises, the next renewal may succeed
                    if _mine(folder):
                        folder.put(LOCK, Owner.this().dump())


@atexit.register
def _leave() -> None:
    for url in list(_held):
        release(url, all_writers=True)
