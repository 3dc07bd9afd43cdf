"""One writer of a store at a time: a lock beside the root of a store that is not finished.

The process that begins a store holds its lock until the store is finished, its writer is no longer used, or the process
ends; the workers it gives blocks to need none. A lock is stale, and taken over, where its process is gone (on the same
host), or where it was not renewed for STALE seconds (on another one). Object stores have no exclusive creation: there
the lock is read back after it is written, which leaves a window of one request.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from functools import lru_cache
from queue import Empty, SimpleQueue
from typing import Any

import psutil

from dmo.stores._errors import StoreError, writing
from dmo.stores._folder import LOCK, Folder

RENEW, STALE = 30.0, 600.0  # seconds
_held: dict[str, int] = {}  # url -> writers in this process
_abandoned: SimpleQueue[str] = SimpleQueue()  # urls of writers that nobody holds any more
_guard = threading.Lock()


def acquire(folder: Folder) -> None:
    """Take the lock of a store for this process; StoreError where another living process has it."""
    with suppress(Empty):
        while True:
            release(_abandoned.get_nowait())
    with _guard, writing(folder.url, "the lock of the store"):
        if _held.get(folder.url) and folder.get(LOCK) == _mine(folder):
            _held[folder.url] += 1
            return
        _take(folder)
        _held[folder.url] = _held.get(folder.url, 0) + 1  # writers of a lock that was lost are still to release it
    _renewing()


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
        with suppress(OSError):
            if folder.get(LOCK) == _mine(folder):
                folder.delete(LOCK)


def _take(folder: Folder) -> None:
    data = json.dumps(_owner()).encode()
    for _ in range(3):
        if folder.put_new(LOCK, data):
            return
        found = folder.get(LOCK)
        if found is None:
            continue
        owner = _parse(found)
        if owner is not None and _alive(owner):
            raise StoreError(
                f"{folder.url} is being written by process {owner['pid']} on {owner['host']}; "
                f"wait for it, or stop it and run again"
            )
        folder.delete_if(LOCK, found)
    raise StoreError(f"{folder.url} is being written by another process; wait for it, or stop it and run again")


def _owner() -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid(), "token": _token(os.getpid()), "time": time.time()} | {
        "started": psutil.Process().create_time()
    }


@lru_cache(maxsize=1)
def _token(pid: int) -> str:
    return uuid.uuid4().hex


def _mine(folder: Folder) -> bytes | None:
    """The bytes of the lock if this process wrote them."""
    found = folder.get(LOCK)
    owner = None if found is None else _parse(found)
    return found if owner is not None and owner["token"] == _token(os.getpid()) else None


def _parse(data: bytes) -> dict[str, Any] | None:
    """The owner that a lock names; None where it is damaged."""
    try:
        owner = json.loads(data)
        return owner if {"host", "pid", "token", "time", "started"} <= set(owner) else None
    except (ValueError, TypeError):
        return None


def _alive(owner: dict[str, Any]) -> bool:
    if owner["token"] == _token(os.getpid()):
        return False
    if owner["host"] != socket.gethostname():
        return time.time() - float(owner["time"]) < STALE
    try:
        process = psutil.Process(int(owner["pid"]))
        return abs(process.create_time() - float(owner["started"])) < 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@lru_cache(maxsize=1)
def _renewing() -> threading.Thread:
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
                with suppress(OSError):
                    if _mine(folder) is not None:
                        folder.put(LOCK, json.dumps(_owner()).encode())


@atexit.register
def _leave() -> None:
    for url in list(_held):
        release(url, all_writers=True)
