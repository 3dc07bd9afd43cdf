"""Locks that allow one writer of a store at a time: a file next to the root of an unfinished store or of a model.

The process that creates a store holds its lock until the store is finished, its writer is garbage-collected, or the
process ends. Workers that write blocks need no lock: they carry the token of that process, which is compared before
every block and entry. A writer that lost its lock therefore stops instead of writing into the store of another process.

A lock is stale, and can be acquired, if its process no longer exists. A process is identified by the running kernel
(boot), the namespace of process IDs and the tick at which it started, none of which depends on clock changes. A process
in another namespace (a container) cannot be inspected: its lock is stale if it was not renewed for STALE seconds of the
kernel's own clock. Clocks of two hosts may differ, so the lock of another host is stale only if it is not renewed while
it is watched. It is watched if the two clocks together suggest that it was not renewed for STALE seconds, or if they
differ by that much. On object stores, a lock is created exclusively if the service and its file system support this
(S3: If-None-Match); the lock is read back in any case. Removing a stale lock takes two requests. If another process
removes the lock of a writer between the two requests, that writer stops at its next block.
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
TORN = 2.0  # seconds for which a lock may be partially written if hard links are not supported
_held: dict[str, int] = {}  # url -> number of writers in this process
_abandoned: SimpleQueue[str] = SimpleQueue()  # urls of writers that were garbage-collected
_guard = threading.Lock()
_savers: WeakValueDictionary[str, Any] = WeakValueDictionary()  # url -> lock between the threads of this process


@dataclass(frozen=True)
class Owner:
    """Owner of a lock; `boot`, `namespace` and `started` identify a process uniquely.

    `clock` (kernel) and `time` (wall clock) are the seconds at the last renewal.
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
        """Describe this process at the current time."""
        pid = os.getpid()
        started = _started("self" if Path("/proc/self").exists() else pid) or ""
        return cls(
            socket.gethostname(), pid, _boot(), _namespace(), started, own_token(), time.monotonic(), time.time()
        )

    @classmethod
    @lru_cache(maxsize=16)  # a writer reads the same lock twice per block
    def parse(cls, data: bytes) -> Owner | None:
        """Parse the owner of a lock; return None if the lock is damaged or partially written."""
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
"""Owner of a lock that cannot be read."""


def own_token() -> str:
    """Return the unique token of this process."""
    return _token(os.getpid())


def holder(folder: Folder) -> Owner | None:
    """Return the owner of the lock of a store, or None if there is no lock."""
    found = folder.get(LOCK)
    return None if found is None else Owner.parse(found) or UNKNOWN


def acquire(folder: Folder) -> None:
    """Acquire the lock of a store for this process; raise StoreError if another living process holds it."""
    folder.refuse_file()
    with suppress(Empty):
        while True:
            release(_abandoned.get_nowait())
    unchanged: bytes | None = None
    while True:
        with _guard, writing(folder.url, "the lock of the store"):
            if (_held.get(folder.url) and _mine(folder)) or _take(folder, unchanged):
                # Count writers of a lost lock too, because they will still release it.
                _held[folder.url] = _held.get(folder.url, 0) + 1
                break
        unchanged = _watch(folder)  # outside the guard, so that this process continues to renew its other locks
    _renewing(os.getpid())


@contextmanager
def reserve(path: str | os.PathLike[str]) -> Iterator[None]:
    """Prevent other processes from writing a store at `path` until the block ends, even before the store exists.

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
    """Hold the lock of a store, and also exclude the other threads of this process."""
    acquire(folder)
    try:
        with _guard:
            mine = _savers.setdefault(folder.url, threading.RLock())
        with mine:
            yield
    finally:
        release(folder.url)


def abandon(url: str) -> None:
    """Queue a lock for release by another thread.

    Finalizers run in any thread at any time, so they must not wait for a lock or access files.
    """
    _abandoned.put(url)


def release(url: str, all_writers: bool = False) -> None:
    """Release the lock when the last writer of this process is done, or immediately if `all_writers`."""
    with _guard:
        count = _held.get(url, 0)
        if not count:
            return
        if count > 1 and not all_writers:
            _held[url] = count - 1
            return
        del _held[url]
        folder = Folder(url)
        with suppress(OSError, StoreError):  # a lock that cannot be removed becomes stale
            if _mine(folder):
                folder.delete(LOCK)
                if folder.is_local:
                    os.rmdir(folder.url)  # succeeds only if nothing except the lock was written


def _take(folder: Folder, unchanged: bytes | None) -> bool:
    """Try to acquire the lock; return False if it must be watched first. `unchanged` is the lock that was watched."""
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
    """Return the content of a lock that did not change while its owner should have completed or renewed it, else None.

    Raises StoreError if the owner renews it.
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
    """Identify the running kernel and its clocks, or return the host name if the system does not provide this."""
    try:
        clocks = os.readlink("/proc/self/ns/time")
    except OSError:
        clocks = ""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() + clocks
    except OSError:
        return socket.gethostname()


def _namespace() -> str:
    """Identify the namespace of process IDs; every container has its own."""
    try:
        if os.readlink("/proc/self") != str(os.getpid()):  # /proc belongs to another namespace
            return own_token()
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _started(pid: int | str) -> str | None:
    """Return the start of a process as text that no other process with this ID shares, or None if there is no process.

    On Linux, these are ticks since boot, because psutil's seconds change when the clock is set.
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
    """Check if this process holds the lock."""
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
    """Start the thread that renews the locks of this process and releases those of abandoned writers."""
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
                with suppress(Exception):  # file systems raise many errors, and the next renewal may succeed
                    if _mine(folder):
                        folder.put(LOCK, Owner.this().dump())


@atexit.register
def _leave() -> None:
    for url in list(_held):
        release(url, all_writers=True)
