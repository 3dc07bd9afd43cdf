"""Settings of clusters, read from Dask's configuration, and the cores and memory that this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any

import dask.config
import psutil
import yaml

from dmo.errors import UserError

BATCH = ("slurm", "pbs", "lsf")
_COUNTS = ("few-samples", "workers", "worker-threads", "threads", "jobs", "cores", "processes", "port")
_NUMBERS = ("timeout", "queue-timeout", "memory-share")
_LISTS = ("prologue", "directives", "hosts")
_SIZES = ("memory-limit", "memory", "cpu")
BACKENDS = ("in-process", "local", *BATCH, "kubernetes", "gateway", "ssh")


@dataclass(frozen=True)
class Backend:
    """Cluster that was requested with `connect`. The defaults of its parameters are settings.

    Parameters
    ----------
    where : str, distributed.Client or Cluster
        Cluster to use, see `connect`.
    workers : int, optional
        Number of workers, or of jobs in a batch queue.
    threads : int, optional
        Number of threads per worker.
    memory_limit : str or float, optional
        Memory limit per worker in bytes, or as a string such as "4GiB".
    timeout : float, optional
        Number of seconds to wait for a scheduler and its workers.

    Examples
    --------
    >>> from dmo.cluster import Backend
    >>> backend = Backend("ssh:host1,host2", timeout=20.0)
    >>> backend.kind, backend.patience()
    ('ssh', 20.0)
    """

    where: Any
    workers: int | None = None
    threads: int | None = None
    memory_limit: str | float | None = None
    timeout: float | None = None

    @property
    def name(self) -> str:
        """Name of the cluster, or address of its scheduler if `where` is a client or cluster object."""
        scheduler = getattr(self.where, "scheduler", None)  # a client has an address only in its attribute `scheduler`
        return str(getattr(self.where, "scheduler_address", getattr(scheduler, "address", self.where)))

    @property
    def kind(self) -> str:
        """Kind of the cluster, such as "ssh" for "ssh:host1,host2", or the address of a running scheduler."""
        return self.name if "://" in self.name else self.name.partition(":")[0]

    def expected(self) -> int:
        """Return the number of workers to wait for.

        Returns
        -------
        int
            Requested number of workers, or 1 if no number was requested. For a batch queue, the number of jobs is
            multiplied by the number of processes per job.
        """
        if self.workers is None:
            return 1
        return int(self.workers) * (setting("batch.processes") if self.kind in BATCH else 1)

    def patience(self) -> float:
        """Return the time to wait for a scheduler and its workers.

        Returns
        -------
        float
            Number of seconds. The default is longer for clusters whose workers are started by another system.
        """
        if self.timeout is not None:
            return self.timeout
        waits = self.kind in (*BATCH, "kubernetes", "gateway", "ssh")
        return float(setting("queue-timeout" if waits else "timeout"))


@cache
def defaults() -> dict[str, Any]:
    return yaml.safe_load(files("dmo.cluster").joinpath("dmo.yaml").read_text(encoding="utf-8"))


def setting(name: str) -> Any:
    """Return the value of a setting.

    Parameters
    ----------
    name : str
        Name of the setting in dmo/cluster/dmo.yaml, such as "local.workers".

    Returns
    -------
    object
        Value in Dask's configuration, or the default in dmo/cluster/dmo.yaml.

    Raises
    ------
    UserError
        If dmo has no such setting, or if its value has the wrong type.

    Examples
    --------
    >>> from dmo.cluster import setting
    >>> setting("local.host")
    '127.0.0.1'
    """
    known: Any = defaults()["dmo"]
    for part in name.split("."):
        if not isinstance(known, dict) or part not in known:
            raise UserError(f"the setting dmo.{name} is unknown; see dmo/cluster/dmo.yaml for the known settings")
        known = known[part]
    value = dask.config.get(f"dmo.{name}", known)
    return value if isinstance(known, dict) or (value is None and known is None) else _checked(name, value)


def _checked(name: str, value: Any) -> Any:
    """Return the value of a setting; raise UserError if it has the wrong type or is out of range."""
    last = name.rpartition(".")[2]
    whole = isinstance(value, int) and not isinstance(value, bool)
    number = whole or isinstance(value, float)
    if last in _COUNTS:
        right, needed = whole and value > 0, "a whole number above 0"
    elif last in _NUMBERS:
        top = 1 if last == "memory-share" else 1e9
        right, needed = number and 0 < value <= top, f"a number above 0, at most {top:g}"
    elif last in _LISTS:
        right, needed = isinstance(value, list) and all(isinstance(part, str) for part in value), "a list of texts"
    elif last in _SIZES:
        right, needed = (
            isinstance(value, str) or (number and 0 < value < 1e18),
            "a number above 0, or text such as 4GiB",
        )
    else:
        right = isinstance(value, str | os.PathLike) or (whole and last != "walltime")
        value, needed = str(value) if whole else value, "text (in quotes if it looks like a number or a time)"
    if not right:
        raise UserError(f"the setting dmo.{name} is {str(value)[:60]!r}, expected {needed}; see dmo/cluster/dmo.yaml")
    return value


def default_backend() -> str:
    """Return the value of DASK_SCHEDULER_ADDRESS, the setting dmo.scheduler, or "in-process" if neither is set."""
    return os.environ.get("DASK_SCHEDULER_ADDRESS") or setting("scheduler") or "in-process"


def tls() -> Any:
    """Create the `Security` object of Dask from the certificates in the setting `dmo.tls`.

    Returns
    -------
    distributed.Security or None
        Security object that requires encrypted connections, or None if `dmo.tls` is not set.

    Raises
    ------
    UserError
        If only some of the three files in `dmo.tls` are set.
    FileNotFoundError
        If one of the files does not exist.

    Examples
    --------
    >>> from dmo.cluster import tls
    >>> tls() is None
    True
    """
    from distributed import Security

    named = {name: setting(f"tls.{name}") for name in ("ca-file", "cert", "key")}
    if not any(named.values()):
        return None
    for name, path in named.items():
        if not path:
            raise UserError(f"TLS needs three files, but dmo.tls.{name} is not set; set it, or unset the other two")
        if not os.path.isfile(path):
            raise FileNotFoundError(f"TLS: no file {path} (dmo.tls.{name}); create it as in cluster/tls/README.md")
    ca, cert, key = (str(path) for path in named.values())
    return Security(
        require_encryption=True,
        tls_ca_file=ca,
        tls_client_cert=cert,
        tls_client_key=key,
        tls_scheduler_cert=cert,
        tls_scheduler_key=key,
        tls_worker_cert=cert,
        tls_worker_key=key,
    )


dask.config.update_defaults(defaults())


_UNLIMITED = 1 << 60
"""Smallest number that means "no limit" in control groups of version 1."""


def usable_memory(root: str = "/") -> int:
    """Return the amount of memory that this process may use.

    This is the memory of the machine, or the lowest limit of the Linux control groups (versions 1 and 2) that contain
    the process. A batch system or a container sets such a limit.

    Parameters
    ----------
    root : str, default="/"
        Root folder of the file system, which tests replace.

    Returns
    -------
    int
        Amount of memory in bytes.

    Examples
    --------
    >>> from dmo.cluster import usable_memory
    >>> usable_memory() > 2**20
    True
    """
    found = [psutil.virtual_memory().total]
    for path in _limit_files(Path(root)):
        try:
            value = int(path.read_text(encoding="ascii"))
        except (OSError, ValueError):  # the file does not exist, or contains "max" instead of a number
            continue
        if 0 < value < _UNLIMITED:
            found.append(value)
    return min(found)


def usable_cores() -> int:
    """Return the number of cores that this process may use.

    Returns
    -------
    int
        Number of cores, limited by CPU affinity and control groups.

    Examples
    --------
    >>> from dmo.cluster import usable_cores
    >>> usable_cores() >= 1
    True
    """
    from dask.system import CPU_COUNT

    return int(CPU_COUNT)


def _limit_files(root: Path) -> Iterator[Path]:
    """Yield the files that contain the memory limits of the control groups of this process and of their parents."""
    groups = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in [*lines, "0::/", "0:memory:/"]:
        _, controllers, group = line.split(":", 2)
        own = PurePosixPath(group.lstrip("/"))
        for part in (own, *own.parents):
            if not controllers:
                yield groups / part / "memory.max"
                yield groups / part / "memory.high"
            elif "memory" in controllers.split(","):
                yield groups / "memory" / part / "memory.limit_in_bytes"
