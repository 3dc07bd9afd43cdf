"""The one place that makes or finds a Dask client."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

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
    where: str | None = None,
    *,
    workers: int | None = None,
    memory_limit: str | float | None = None,
    timeout: float = 10.0,
) -> Iterator[Connection]:
    """Run what is inside this block on a cluster, or in this process.

    Arguments: `where`: None: the address in DASK_SCHEDULER_ADDRESS if it is set, else this process; "in-process";
    "local": a LocalCluster of single-threaded workers on loopback, one per core; "tcp://host:port" or "tls://...": a
    running scheduler; a path: its scheduler file. `workers`, `memory_limit` (bytes per worker or "4GiB"): of "local".
    `timeout`: seconds to wait for the scheduler, and for its first worker (a batch system may take longer).
    Raises ValueError for an unknown place, OSError where no scheduler answers or none of its workers comes.
    """
    where = where or os.environ.get("DASK_SCHEDULER_ADDRESS") or "in-process"
    with ExitStack() as stack:
        client = None if where == "in-process" else _open(where, stack, workers, memory_limit, timeout)
        token = _current.set(client)
        stack.callback(_current.reset, token)
        yield Connection(client, "in this process" if client is None else f"{where}, {_count(client)} workers")


def _open(where: str, stack: ExitStack, workers: int | None, memory_limit: str | float | None, timeout: float) -> Any:
    """A client of the cluster at `where`; what is opened is closed by `stack`."""
    from dask.system import CPU_COUNT
    from distributed import Client, LocalCluster

    if where == "local":
        cluster = LocalCluster(
            n_workers=workers or CPU_COUNT,
            threads_per_worker=1,
            memory_limit=memory_limit or "auto",
            dashboard_address="127.0.0.1:0",
            host="127.0.0.1",
        )
        return stack.enter_context(Client(stack.enter_context(cluster)))
    if "://" in where:
        address = where
    elif os.path.isfile(where):
        address = _scheduler_address(where)
    else:
        raise ValueError(
            f"no cluster {where!r}: pass 'in-process', 'local', an address such as tcp://host:8786, or a scheduler file"
        )
    try:
        client = stack.enter_context(Client(address, timeout=timeout))
    except OSError as error:
        raise OSError(f"no scheduler answers at {where}: start one with `dask scheduler`, or check it") from error
    try:
        client.wait_for_workers(1, timeout=timeout)
    except TimeoutError as error:
        raise OSError(
            f"the scheduler at {where} has no workers after {timeout:g} s: start them with `dask worker`"
        ) from error
    return client


def _scheduler_address(path: str) -> str:
    """The address that a scheduler wrote into its file."""
    with open(path, encoding="utf-8") as file:
        try:
            return str(json.load(file)["address"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is not a scheduler file: pass the one that `dask scheduler --scheduler-file` wrote"
            ) from error


def _count(client: Any) -> int:
    return len(client.scheduler_info(n_workers=-1)["workers"])


def current_client() -> Any:
    """The client of the innermost `connect`, or None: then work runs in this process."""
    return _current.get()
