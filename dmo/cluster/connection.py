"""The context manager `connect`, which runs a block of code on a cluster or in the client process."""

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
_admitted: WeakSet[Any] = WeakSet()  # clients of the program that have already been used


@dataclass(frozen=True)
class Connection:
    """Location at which the work of a `connect` block runs.

    Attributes
    ----------
    client : distributed.Client or None
        Client of the cluster, or None if the work runs in the client process.
    where : str
        Description of the location.

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
        """Link to the dashboard of the cluster, or None if there is no cluster."""
        return None if self.client is None else self.client.dashboard_link


MORE_MEMORY = (
    "raise --memory-limit, start fewer workers per machine, use smaller blocks or fewer views, "
    "or pass --storage recomputed or stored"
)


class WorkerMemoryError(UserError):
    """Error for work that does not fit into the memory of the workers; the message describes what to change.

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
    """Run the code in this block on a cluster, or in the client process.

    Parameters
    ----------
    where : str, distributed.Client or Cluster, optional
        A client, which stays open, or a Dask cluster; "in-process"; "local", a LocalCluster on loopback with one worker
        per core; the address of a running scheduler ("tcp://host:port" or "tls://..."); the path of its scheduler file;
        or "slurm", "pbs", "lsf", "kubernetes", "gateway" or "ssh" to start workers there. The default is the first of
        these that is set: the program's own client (see `current_client`), the variable DASK_SCHEDULER_ADDRESS, the
        setting dmo.scheduler. If none is set, the work runs in the client process.
    workers : int, optional
        Number of workers (jobs of a batch queue) to start and to wait for. The defaults of this parameter and the next
        two are the settings `dmo.<where>`, see dmo/cluster/dmo.yaml.
    threads : int, optional
        Number of threads per started worker.
    memory_limit : str or float, optional
        Memory limit per started worker in bytes, or as text such as "4GiB".
    timeout : float, optional
        Seconds to wait for the scheduler and its workers.

    Yields
    ------
    Connection
        The client, and the location of the work.

    Raises
    ------
    UserError
        For an unknown backend or setting.
    OSError
        If no scheduler answers or none of its workers connects.
    ImportError
        If the backend needs an extra that is not installed.
    WorkerMemoryError
        If work in the block failed because workers were repeatedly stopped at their memory limit.

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
    """Raise WorkerMemoryError if work in this block fails because workers were stopped at their memory limits."""
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
            f"workers were stopped {stops} times for exceeding their limit of {limit / 2**20:.0f} MiB, "
            f"{_task(error)}; {MORE_MEMORY}"
        ) from error


def _limit(client: Any) -> int:
    """Return the smallest memory limit (bytes) of the workers, or 0 if they have none."""
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    return min((worker["memory_limit"] for worker in workers if worker["memory_limit"]), default=0)


def _memory_stops(client: Any, begun: float) -> int:
    """Count how often workers were stopped for their memory use since `begun`; return 0 if the scheduler is gone."""
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
    """Let Dask write its performance report of the block if the setting dmo.performance-report is set."""
    path = setting("performance-report")
    if not path:
        return
    from distributed import performance_report

    if find_spec("bokeh") is None:
        raise ImportError("a performance report needs bokeh, which is not installed; install dmo-learn[dashboard]")
    if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise FileNotFoundError(f"no folder for the performance report {path}; create it, or choose another path")
    stack.enter_context(client.as_current())
    stack.enter_context(performance_report(filename=str(path)))


def _count(client: Any) -> int:
    return len(client.scheduler_info(n_workers=-1)["workers"])


def current_client() -> Any:
    """Return the Dask client in use: that of the innermost `connect` block, or the program's own.

    The program's own client is its default `distributed.Client`, or the client of `with client.as_current()`. A task on
    a worker runs in a single thread and has no client.

    Returns
    -------
    distributed.Client or None
        The client, or None if work runs in the client process.

    Raises
    ------
    UserError
        If workers of the program's client have a different version of dmo, or none.

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
    """Return the program's current or default client if it is running; log its use once."""
    if "distributed" not in sys.modules:
        return None
    from distributed import Client

    if in_task():
        return None
    try:
        client = Client.current()
    except ValueError:
        return None
    if client.status != "running":
        return None
    if client not in _admitted:
        address = client.scheduler.address
        targets.reject_asynchronous(client)
        try:
            targets.await_worker(client, setting("queue-timeout"))
        except TimeoutError as error:
            raise OSError(
                f"the default Dask client, {address}, has no workers after {setting('queue-timeout'):g} s; start workers, "
                "raise dmo.queue-timeout, or work in the client process: dmo.cluster.connect('in-process')"
            ) from error
        targets.admit(client, address)
        _admitted.add(client)
        log.info(
            "using the default Dask client, %s with %d workers; dmo.cluster.connect('in-process') works without it",
            address,
            _count(client),
        )
    return client
