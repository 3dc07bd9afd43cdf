"""Cluster settings from packaged defaults, ~/.config/dask/dmo.yaml, DASK_DMO__... variables and command options."""

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
_COUNTS = ("workers", "worker-threads", "threads", "jobs", "cores", "processes", "port")
_NUMBERS = ("timeout", "queue-timeout", "memory-share")
_LISTS = ("prologue", "directives", "hosts")
_SIZES = ("memory-limit", "memory", "cpu")
BACKENDS = ("in-process", "local", *BATCH, "kubernetes", "gateway", "ssh")


@dataclass(frozen=True)
class Backend:
    """Requested location of the work.

    Parameters
    ----------
    where : str, distributed.Client or Cluster
        See `connect`.
    workers : int, optional
        Number of workers; the defaults of this parameter and the next three are the settings of the backend.
    threads : int, optional
        Number of threads per worker.
    memory_limit : str or float, optional
        Memory limit per worker in bytes, or as text such as "4GiB".
    timeout : float, optional
        Seconds to wait for a scheduler and its workers.

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
        """`where` as text; the address of a client or cluster."""
        scheduler = getattr(self.where, "scheduler", None)  # if `where` is a client
        return str(getattr(self.where, "scheduler_address", getattr(scheduler, "address", self.where)))

    @property
    def kind(self) -> str:
        """`where` up to the first colon, for example "ssh" of "ssh:host1,host2"; addresses are unchanged."""
        return self.name if "://" in self.name else self.name.partition(":")[0]

    def expected(self) -> int:
        """Count the workers to wait for.

        Returns
        -------
        int
            The requested number, times the processes per job of a batch queue; 1 if no number was requested.
        """
        if self.workers is None:
            return 1
        return int(self.workers) * (setting("batch.processes") if self.kind in BATCH else 1)

    def patience(self) -> float:
        """Return the seconds to wait for a scheduler and its workers.

        Returns
        -------
        float
            Seconds; the default is longer for backends whose workers wait in a queue.
        """
        if self.timeout is not None:
            return self.timeout
        waits = self.kind in (*BATCH, "kubernetes", "gateway", "ssh")
        return float(setting("queue-timeout" if waits else "timeout"))


@cache
def defaults() -> dict[str, Any]:
    """Load the packaged defaults."""
    return yaml.safe_load(files("dmo.cluster").joinpath("dmo.yaml").read_text(encoding="utf-8"))


def setting(name: str) -> Any:
    """Return the value of a setting.

    Parameters
    ----------
    name : str
        Dotted name below `dmo`, such as "local.workers".

    Returns
    -------
    object
        The value in Dask's configuration, or else the packaged default.

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
    """Return `value` if it is valid for the setting `name`; it may come from a file or variable of a third party."""
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
    """Return DASK_SCHEDULER_ADDRESS, or else the setting dmo.scheduler, or else "in-process"."""
    return os.environ.get("DASK_SCHEDULER_ADDRESS") or setting("scheduler") or "in-process"


def tls() -> Any:
    """Create the security of connections from the setting dmo.tls.

    Returns
    -------
    distributed.Security or None
        Security that rejects unencrypted connections, or None if dmo.tls is not set.

    Raises
    ------
    UserError
        If only some of the three files are set.
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
"""Limits of control groups version 1 from this value on mean that there is no limit."""


def usable_memory(root: str = "/") -> int:
    """Return the memory that this process may use: that of the machine, or the lowest limit of its control groups.

    The limits include control groups (versions 1 and 2) of all parents, because a batch system or a container sets the
    limit on a parent.

    Parameters
    ----------
    root : str, default="/"
        Root folder of the system files, for tests.

    Returns
    -------
    int
        Memory in bytes.

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
        except (OSError, ValueError):  # no such file, or "max"
            continue
        if 0 < value < _UNLIMITED:
            found.append(value)
    return min(found)


def usable_cores() -> int:
    """Count the cores that this process may use, given CPU affinity and control groups.

    Returns
    -------
    int
        Number of cores, at least 1.

    Examples
    --------
    >>> from dmo.cluster import usable_cores
    >>> usable_cores() >= 1
    True
    """
    from dask.system import CPU_COUNT

    return int(CPU_COUNT)


def _limit_files(root: Path) -> Iterator[Path]:
    """Iterate over the limit files of the control groups of this process and of their parents."""
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
