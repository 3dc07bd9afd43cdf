"""The one place that makes or finds a Dask client."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import psutil

_current: ContextVar[Any] = ContextVar("dmo_client", default=None)


@dataclass(frozen=True)
class Connection:
    """Where work runs. `client`: a distributed.Client, or None for this process; `where`: in words."""

    client: Any
    where: str

    @property
    def dashboard(self) -> str | None:
        """Link to the cluster's dashboard, if it has one."""
        return None if self.client is None else self.client.dashboard_link


@contextmanager
def connect(
    where: str | None = None, *, workers: int | None = None, memory_limit: str | float | None = None
) -> Iterator[Connection]:
    """Run what is inside this block on a cluster, or in this process.

    Arguments: `where`: None: the address in DASK_SCHEDULER_ADDRESS if it is set, else this process; "in-process";
    "local": a LocalCluster of single-threaded workers on loopback, one per core; "tcp://host:port" or "tls://...": a
    running scheduler; a path: its scheduler file. `workers`, `memory_limit` (bytes per worker or "4GiB"): of "local".
    Raises ValueError for an unknown place, OSError with the address where no scheduler answers.
    """
    where = where or os.environ.get("DASK_SCHEDULER_ADDRESS") or "in-process"
    if where == "in-process":
        token = _current.set(None)
        try:
            yield Connection(None, "in this process")
        finally:
            _current.reset(token)
        return
    from distributed import Client, LocalCluster

    cluster = None
    if where == "local":
        count = workers or psutil.cpu_count(logical=True) or 1
        cluster = LocalCluster(
            n_workers=count,
            threads_per_worker=1,
            memory_limit=memory_limit or "auto",
            dashboard_address="127.0.0.1:0",
            host="127.0.0.1",
        )
        client = Client(cluster)
    elif "://" in where:
        client = _client(Client, where, address=where)
    elif os.path.exists(where):
        client = _client(Client, where, scheduler_file=where)
    else:
        raise ValueError(
            f"no cluster {where!r}: pass 'in-process', 'local', an address such as tcp://host:8786, or a scheduler file"
        )
    token = _current.set(client)
    try:
        yield Connection(client, f"{where}, {len(client.scheduler_info()['workers'])} workers")
    finally:
        _current.reset(token)
        client.close()
        if cluster is not None:
            cluster.close()


def _client(make: Any, where: str, **how: Any) -> Any:
    try:
        return make(**how, timeout="10s")
    except OSError as error:
        raise OSError(f"no scheduler answers at {where}: start one with `dask scheduler`, or check it") from error


def current_client() -> Any:
    """The client of the innermost `connect`, or None: then work runs in this process."""
    return _current.get()
