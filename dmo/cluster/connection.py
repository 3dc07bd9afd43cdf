"""Context manager that selects the cluster on which estimators in a block of code compute."""

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
from dmo.cluster.settings import Backend, default_backend, setting, usable_cores
from dmo.errors import UserError

log = logging.getLogger("dmo")
_LOST = ("KilledWorker", "CancelledError", "FutureCancelledError", "TimeoutError", "CommClosedError")
_current: ContextVar[Any] = ContextVar("dmo_client")
_admitted: WeakSet[Any] = WeakSet()  # clients that the user created and whose workers have been checked


@dataclass(frozen=True)
class Connection:
    """Cluster or process in which the code of a `connect` block computes.

    Attributes
    ----------
    client : distributed.Client or None
        Client of the cluster, or None if there is no cluster.
    where : str
        Description of the cluster, or "in this process".

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
        """URL of the dashboard of the cluster, or None if there is no cluster."""
        return None if self.client is None else self.client.dashboard_link


MORE_MEMORY = (
    "raise --memory-limit, start fewer workers per machine, use smaller blocks or fewer views, "
    "or pass --storage recomputed or stored"
)


class WorkerMemoryError(UserError):
    """Exception raised if a computation does not fit in the memory of the workers. The message suggests a fix.

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
    n_samples: int | None = None,
) -> Iterator[Connection]:
    """Run the computations within a `with` block on a cluster, or in the client process.

    Parameters
    ----------
    where : str, distributed.Client or Cluster, optional
        Cluster to use. "in-process" uses no cluster. "local" starts a LocalCluster with one worker per core. "slurm",
        "pbs", "lsf", "kubernetes", "gateway" and "ssh" start workers on these systems. "auto" uses a cluster only for
        many samples: the configured cluster, or "local". Other strings are the address of a running scheduler
        ("tcp://host:port") or the path of its scheduler file. A client or cluster object stays open after the block.
        The default is the client that the program has created (see `current_client`), or the address in the variable
        DASK_SCHEDULER_ADDRESS, or the setting `dmo.scheduler`, or no cluster.
    workers : int, optional
        Number of workers to start and to wait for. For a batch queue, this is the number of jobs. The defaults of this
        and the following parameters are settings, see dmo/cluster/dmo.yaml.
    threads : int, optional
        Number of threads per worker that is started.
    memory_limit : str or float, optional
        Memory limit per worker that is started, in bytes or as a string such as "4GiB".
    timeout : float, optional
        Number of seconds to wait for the scheduler and its workers.
    n_samples : int, optional
        Number of samples of the computation. It decides about "auto". If it is less than the setting `dmo.few-samples`,
        the use of another cluster is logged as a warning, because one process is faster.

    Yields
    ------
    Connection
        Client and description of the cluster.

    Raises
    ------
    UserError
        If the cluster or a setting is invalid.
    OSError
        If no scheduler responds, or if no worker connects to it.
    ImportError
        If the cluster needs an optional dependency that is not installed.
    WorkerMemoryError
        If a computation in the block failed because workers repeatedly exceeded their memory limit.

    Examples
    --------
    >>> import dmo
    >>> from dmo.cluster import connect
    >>> with connect("in-process"):
    ...     estimator = dmo.KGHA()  # its fit would run there
    """
    where = _chosen(where or current_client() or default_backend(), n_samples)
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


def _chosen(where: Any, n_samples: int | None) -> Any:
    """Return the cluster for "auto"; otherwise return `where`, with a warning if one process is faster."""
    few = setting("few-samples")
    if where == "auto":
        known = os.environ.get("DASK_SCHEDULER_ADDRESS") or setting("scheduler")
        cluster = known if known not in (None, "auto") else "local" if usable_cores() > 1 else "in-process"
        many = n_samples is not None and n_samples >= few
        size = "an unknown number of samples" if n_samples is None else f"{n_samples} samples"
        where = cluster if many else "in-process"
        log.info("scheduler: %s, chosen for %s; a cluster is chosen from %d samples on", where, size, few)
    elif where != "in-process" and n_samples is not None and n_samples < few:
        log.warning(
            "%d samples: one process is faster than a cluster below %d samples; pass --scheduler auto to decide by size",
            n_samples,
            few,
        )
    return where


@contextmanager
def _explained(client: Any) -> Iterator[None]:
    """Raise WorkerMemoryError if the block fails because workers were stopped at their memory limit."""
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
    """Return the smallest memory limit of the workers in bytes, or 0 if the workers have no limit."""
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    return min((worker["memory_limit"] for worker in workers if worker["memory_limit"]), default=0)


def _memory_stops(client: Any, begun: float) -> int:
    """Count how often workers were stopped at their memory limit since the time `begun`."""
    try:
        events = client.get_events("worker-restart-memory")
    except (OSError, RuntimeError, ValueError, CancelledError, AttributeError):
        return 0  # the client has lost its scheduler
    return sum(when >= begun for when, _ in events)


def _task(error: Exception) -> str:
    from dask.utils import key_split

    found = getattr(error, "task", None)
    return "and their work was lost with them" if found is None else f"the last while it ran {key_split(found)!r}"


def _report(client: Any, stack: ExitStack) -> None:
    """Write Dask's performance report of the block if the setting dmo.performance-report is set."""
    path = setting("performance-report")
    if not path:
        return
    from distributed import performance_report

    if find_spec("bokeh") is None:
        raise ImportError(
            "a performance report needs bokeh, which is not installed; run: pip install dmo-learn[dashboard]"
        )
    if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise FileNotFoundError(f"no folder for the performance report {path}; create it, or choose another path")
    stack.enter_context(client.as_current())
    stack.enter_context(performance_report(filename=str(path)))


def _count(client: Any) -> int:
    return len(client.scheduler_info(n_workers=-1)["workers"])


def current_client() -> Any:
    """Return the Dask client on whose cluster estimators compute.

    Inside a `connect` block, the function returns the client of the block. Otherwise, the function returns the current
    or default client of distributed, which the program has created. Tasks on a worker have no client.

    Returns
    -------
    distributed.Client or None
        Client of the cluster, or None if estimators compute in the client process.

    Raises
    ------
    UserError
        If a worker of the client does not have the same version of dmo.

    Examples
    --------
    >>> from dmo.cluster import current_client
    >>> current_client() is None
    True
    """
    try:
        return _current.get()  # `connect` sets this variable
    except LookupError:
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
