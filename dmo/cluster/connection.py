"""`connect`: run a block of code on a cluster, or in this process."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any
from weakref import WeakSet

from dmo.blocks import in_task
from dmo.cluster import targets
from dmo.cluster.settings import Backend, default_backend, setting
from dmo.errors import UserError

log = logging.getLogger("dmo")
_LOST = ("KilledWorker", "CancelledError", "FutureCancelledError", "TimeoutError", "CommClosedError")
_current: ContextVar[Any] = ContextVar("dmo_client")
_admitted: WeakSet[Any] = WeakSet()  # clients of the program that work went to before


@dataclass(frozen=True)
class Connection:
    """Where the work of a `connect` block runs.

    Attributes
    ----------
    client : distributed.Client or None
        Client of the cluster; None: this process.
    where : str
        The same in words.

    Examples
    --------
    >>> from dmo.cluster import connect
    >>> with connect("in-process") as connection:
    ...     connection.where, connection.client, connection.dashboard
    ('in this process', None, None)
    """

    client: Any
    where: str

    @property
    def dashboard(self) -> str | None:
        """Link to the cluster's dashboard, if it has one."""
        return None if self.client is None else self.client.dashboard_link


MORE_MEMORY = (
    "raise --memory-limit, start fewer workers on a machine, or take smaller blocks, fewer views, "
    "or --storage recomputed or stored"
)


class WorkerMemoryError(UserError):
    """Work does not fit into the memory of the workers that it was given to; the message says what to change.

    Examples
    --------
    >>> from dmo.cluster import WorkerMemoryError
    >>> from dmo.errors import UserError
    >>> issubclass(WorkerMemoryError, UserError)
    True
    """


@contextmanager
def connect(
    where: Any = None,
    *,
    workers: int | None = None,
    threads: int | None = None,
    memory_limit: str | float | None = None,
    timeout: float | None = None,
) -> Iterator[Connection]:
    """Run what is inside this block on a cluster, or in this process.

    Parameters
    ----------
    where : str, distributed.Client or Cluster, optional
        A client, which stays open, or a cluster of Dask; "in-process"; "local": a LocalCluster on loopback, one worker a core;
        "tcp://host:port" or "tls://...": a running scheduler; a path: its scheduler file; "slurm", "pbs", "lsf", "kubernetes",
        "gateway", "ssh": workers started there. Default: the program's own client (see `current_client`), else the address in
        DASK_SCHEDULER_ADDRESS if it is set, else the setting dmo.scheduler, else this process.
    workers : int, optional
        Workers (jobs of a batch queue) to start, and to wait for; this and the next two default to the settings
        `dmo.<where>`, see dmo/cluster/dmo.yaml.
    threads : int, optional
        Threads of a worker that is started.
    memory_limit : str or float, optional
        Of one worker that is started: bytes, or text such as "4GiB".
    timeout : float, optional
        Seconds to wait for the scheduler, and for its workers.

    Yields
    ------
    Connection
        The client, and where it works.

    Raises
    ------
    UserError
        For an unknown backend or setting.
    OSError
        Where no scheduler answers or none of its workers comes.
    ImportError
        Where the backend needs an extra that is not installed.
    WorkerMemoryError
        Where work in the block failed because workers were stopped again and again at their memory limit.

    Examples
    --------
    >>> import dmo
    >>> from dmo.cluster import connect
    >>> with connect("in-process"):
    ...     estimator = dmo.KGHA()  # its fit would run there
    """
    where = where or current_client() or default_backend()
    with ExitStack() as stack:
        backend = Backend(
            where,
            setting("workers") if workers is None else workers,
            setting("worker-threads") if threads is None else threads,
            setting("memory-limit") if memory_limit is None else memory_limit,
            timeout,
        )
        client = None if backend.name == "in-process" else targets.open_client(backend, stack)
        if client is not None:
            log.info("dashboard: %s", client.dashboard_link)
            _report(client, stack)
        token = _current.set(client)
        stack.callback(_current.reset, token)
        with _explained(client):
            yield Connection(
                client, "in this process" if client is None else f"{backend.name}, {_count(client)} workers"
            )


@contextmanager
def _explained(client: Any) -> Iterator[None]:
    """Say it where work inside this block failed because workers were stopped at their memory limits."""
    begun, limit = time.time(), 0 if client is None else _limit(client)
    try:
        yield
    except Exception as error:
        if client is None or type(error).__name__ not in _LOST:
            raise
        stops = _memory_stops(client, begun)
        if not stops:
            raise
        raise WorkerMemoryError(
            f"workers were stopped {stops} times for taking more than their limit of {limit / 2**20:.0f} MiB, "
            f"{_task(error)}; {MORE_MEMORY}"
        ) from error


def _limit(client: Any) -> int:
    """The smallest memory limit (bytes) of the workers; 0 where there is none."""
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    return min((worker["memory_limit"] for worker in workers if worker["memory_limit"]), default=0)


def _memory_stops(client: Any, begun: float) -> int:
    """How often a worker was stopped for its memory since `begun`; 0 where nobody answers any more."""
    try:
        events = client.get_events("worker-restart-memory")
    except (OSError, RuntimeError, ValueError, CancelledError, AttributeError):
        return 0  # a client that closed itself has no scheduler
    return sum(when >= begun for when, _ in events)


def _task(error: Exception) -> str:
    from dask.utils import key_split

    found = getattr(error, "task", None)
    return "and their work was lost with them" if found is None else f"the last while it ran {key_split(found)!r}"


def _report(client: Any, stack: ExitStack) -> None:
    """Have Dask write its performance report of the block, where the setting dmo.performance-report asks for one."""
    path = setting("performance-report")
    if not path:
        return
    from distributed import performance_report

    if find_spec("bokeh") is None:
        raise ImportError("a performance report needs bokeh, which is not installed; install dmo-learn[dashboard]")
    if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise FileNotFoundError(f"no folder for the performance report {path}; make it, or choose another path")
    stack.enter_context(client.as_current())
    stack.enter_context(performance_report(filename=str(path)))


def _count(client: Any) -> int:
    return len(client.scheduler_info(n_workers=-1)["workers"])


def current_client() -> Any:
    """Find the Dask client that work goes to: of the innermost `connect` block, else the program's own.

    A program's own is its default `distributed.Client`, or that of `with client.as_current()`. A task that runs on a
    worker has its thread alone, and no client.

    Returns
    -------
    distributed.Client or None
        None: work runs in this process.

    Raises
    ------
    UserError
        Where workers of the program's client have no dmo, or another one.

    Examples
    --------
    >>> from dmo.cluster import current_client
    >>> current_client() is None
    True
    """
    try:
        return _current.get()
    except LookupError:
        return _own_client()


def _own_client() -> Any:
    """The program's current or default client that runs; what it means is told at its first use."""
    if "distributed" not in sys.modules:
        return None
    from distributed import Client

    if in_task():
        return None
    try:
        client = Client.current()
    except ValueError:
        return None
    if client.asynchronous or client.status != "running":
        return None
    if client not in _admitted:
        address = client.scheduler.address
        targets.admit(client, address)
        _admitted.add(client)
        log.info(
            "work goes to the default Dask client, %s with %d workers; dmo.cluster.connect('in-process') keeps it here",
            address,
            _count(client),
        )
    return client
