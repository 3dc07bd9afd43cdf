"""File locks, which ensure that one process at a time writes a store.

The process that creates a store holds its lock until the store is finished, the writer object is garbage-collected, or
the process ends. Workers do not acquire the lock. A worker receives the token of the process that holds the lock, and
compares the token with the lock file before writing a block. If the process has lost the lock, its workers stop.

A lock is stale, and another process may acquire it, if the process that holds it has ended. A process is identified by
the boot ID of the operating system, the namespace of process IDs, and its start time in clock ticks, which do not
depend on changes of the clock. The owner of a lock renews it every 15 seconds. A process in another namespace (a
container) cannot be inspected, so its lock is stale if it was not renewed for 10 minutes. The clocks of two hosts may
differ. A lock of another host is therefore watched if its last renewal appears to be 10 minutes away from the present
time, and it is stale if it is not renewed while it is watched.

An object store creates a lock exclusively if the service supports this (S3: If-None-Match), and the lock is read back
in any case. Removing a stale lock takes two requests. If a writer acquires the lock between these requests, it loses
the lock and stops at its next block.
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

RENEW, STALE = 15.0, 600.0  # seconds between renewals of a lock, and age in seconds at which a lock is stale
TORN = 2.0  # maximum number of seconds for writing a lock file if the file system does not support hard links
_held: dict[str, int] = {}  # number of active writers in this process, by URL of the locked store
_abandoned: SimpleQueue[str] = SimpleQueue()  # URLs of stores whose writers were garbage-collected
_guard = threading.Lock()
_savers: WeakValueDictionary[str, Any] = WeakValueDictionary()  # thread locks of this process, by URL of the store


@dataclass(frozen=True)
class Owner:
    """Process that holds a lock, identified by `boot`, `namespace`, `pid` and `started`.

    `clock` and `time` are the monotonic time and the wall-clock time of the last renewal.
    """

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
        """Describe this process, with the current time as the time of renewal."""
        pid = os.getpid()
        started = _started("self" if Path("/proc/self").exists() else pid) or ""
        return cls(
            socket.gethostname(), pid, _boot(), _namespace(), started, own_token(), time.monotonic(), time.time()
        )

    @classmethod
    @lru_cache(maxsize=16)  # cached, because a writer reads its lock file twice per block
    def parse(cls, data: bytes) -> Owner | None:
        """Parse the content of a lock file; return None if the file is damaged or incomplete."""
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
"""Owner of a lock file that cannot be parsed."""


def own_token() -> str:
    """Return a random token that identifies this process."""
    return _token(os.getpid())


def holder(folder: Folder) -> Owner | None:
    """Return the owner of the lock of a store, or None if there is no lock."""
    found = folder.get(LOCK)
    return None if found is None else Owner.parse(found) or UNKNOWN


def acquire(folder: Folder) -> None:
    """Acquire the lock of a store for this process; raise StoreError if another running process holds it."""
    folder.refuse_file()
    with suppress(Empty):
        while True:
            release(_abandoned.get_nowait())
    unchanged: bytes | None = None
    while True:
        with _guard, writing(folder.url, "the lock of the store"):
            if (_held.get(folder.url) and _mine(folder)) or _take(folder, unchanged):
                # Keep counting earlier writers that have lost the lock, because each of them still calls `release`.
                _held[folder.url] = _held.get(folder.url, 0) + 1
                break
        # The thread that renews locks needs `_guard`, so do not hold `_guard` while watching the lock file.
        unchanged = _watch(folder)
    _renewing(os.getpid())


@contextmanager
def reserve(path: str | os.PathLike[str]) -> Iterator[None]:
    """Prevent other processes from writing a store to `path` within a `with` block.

    Parameters
    ----------
    path : str or path-like
        Local path or fsspec URL of the store, which need not exist yet.

    Yields
    ------
    None
        Nothing.

    Raises
    ------
    StoreError
        If another process is writing the store.

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
    """Hold the lock of a store within a `with` block, and exclude the other threads of this process."""
    acquire(folder)
    try:
        with _guard:
            mine = _savers.setdefault(folder.url, threading.RLock())
        with mine:
            yield
    finally:
        release(folder.url)


def abandon(url: str) -> None:
    """Let another thread release the lock of a store.

    This function is called by finalizers. Python may call a finalizer at any time, so this function must not wait.
    """
    _abandoned.put(url)


def release(url: str, all_writers: bool = False) -> None:
    """Decrement the number of writers of a store; release the lock if no writer remains or if `all_writers` is True."""
    with _guard:
        count = _held.get(url, 0)
        if not count:
            return
        if count > 1 and not all_writers:
            _held[url] = count - 1
            return
        del _held[url]
        folder = Folder(url)
        with suppress(OSError, StoreError):  # a lock file that cannot be removed becomes stale later
            if _mine(folder):
                folder.delete(LOCK)
                if folder.is_local:
                    os.rmdir(folder.url)  # succeeds only if the folder is empty


def _take(folder: Folder, unchanged: bytes | None) -> bool:
    """Try to acquire the lock; return False if the existing lock must be watched first.

    `unchanged` is the content of a lock file that did not change while it was watched.
    """
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
    """Watch a lock file for longer than the renewal interval; return its content, or None if the file changed.

    Raise StoreError if the owner of the lock renewed it.
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
    """Return the boot ID and the time namespace of the operating system, or the host name if there is no boot ID."""
    try:
        clocks = os.readlink("/proc/self/ns/time")
    except OSError:
        clocks = ""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() + clocks
    except OSError:
        return socket.gethostname()


def _namespace() -> str:
    """Return the name of the namespace of process IDs, which differs between containers."""
    try:
        if os.readlink("/proc/self") != str(os.getpid()):  # /proc belongs to another namespace of process IDs
            return own_token()
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _started(pid: int | str) -> str | None:
    """Return the start time of a process as a string, or None if the process does not exist.

    On Linux, the start time is in clock ticks since boot. The time from psutil changes when the system clock is set.
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
    """Start the thread that renews the locks of this process and releases the locks of garbage-collected writers."""
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
                with suppress(Exception):  # file systems raise many types of errors, and the next renewal may succeed
                    if _mine(folder):
                        folder.put(LOCK, Owner.this().dump())


@atexit.register
def _leave() -> None:
    for url in list(_held):
        release(url, all_writers=True)
