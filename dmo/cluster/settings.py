"""Settings of clusters: packaged defaults, ~/.config/dask/dmo.yaml, DASK_DMO__... variables, options of a command."""

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
    """Where to run, as a user asked for it.

    Parameters
    ----------
    where : str, distributed.Client or Cluster
        See `connect`.
    workers : int, optional
        Workers; this and the next three default to the settings of the backend.
    threads : int, optional
        Threads of a worker.
    memory_limit : str or float, optional
        Of a worker: bytes, or text such as "4GiB".
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
        """`where` in words: of a client or a cluster its address."""
        scheduler = getattr(self.where, "scheduler", None)  # of a client
        return str(getattr(self.where, "scheduler_address", getattr(scheduler, "address", self.where)))

    @property
    def kind(self) -> str:
        """`where` without what follows a colon, as the hosts of "ssh:host1,host2"; an address as it is."""
        return self.name if "://" in self.name else self.name.partition(":")[0]

    def expected(self) -> int:
        """Count the workers to wait for.

        Returns
        -------
        int
            Those that were asked for, all processes of the jobs of a batch queue; 1 where nobody asked.
        """
        if self.workers is None:
            return 1
        return int(self.workers) * (setting("batch.processes") if self.kind in BATCH else 1)

    def patience(self) -> float:
        """Find how long to wait for a scheduler and its workers.

        Returns
        -------
        float
            Seconds; more where workers wait in a queue.
        """
        if self.timeout is not None:
            return self.timeout
        waits = self.kind in (*BATCH, "kubernetes", "gateway", "ssh")
        return float(setting("queue-timeout" if waits else "timeout"))


@cache
def defaults() -> dict[str, Any]:
    """The packaged defaults, which nobody changes."""
    return yaml.safe_load(files("dmo.cluster").joinpath("dmo.yaml").read_text(encoding="utf-8"))


def setting(name: str) -> Any:
    """Look up a setting.

    Parameters
    ----------
    name : str
        Its dotted name below `dmo`, such as "local.workers".

    Returns
    -------
    object
        Its value: from Dask's configuration, else the packaged default.

    Raises
    ------
    UserError
        For one that dmo does not have, and for a value of another kind than it needs.

    Examples
    --------
    >>> from dmo.cluster import setting
    >>> setting("local.host")
    '127.0.0.1'
    """
    known: Any = defaults()["dmo"]
    for part in name.split("."):
        if not isinstance(known, dict) or part not in known:
            raise UserError(f"no setting dmo.{name}; known ones are in dmo/cluster/dmo.yaml")
        known = known[part]
    value = dask.config.get(f"dmo.{name}", known)
    return value if isinstance(known, dict) or (value is None and known is None) else _checked(name, value)


def _checked(name: str, value: Any) -> Any:
    """`value` as the setting `name` needs it; it may come from a file or variable that anybody wrote."""
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
        value, needed = str(value) if whole else value, "text (in quotes, where it looks like a number or a time)"
    if not right:
        raise UserError(f"the setting dmo.{name} is {str(value)[:60]!r}, expected {needed}; see dmo/cluster/dmo.yaml")
    return value


def default_backend() -> str:
    """DASK_SCHEDULER_ADDRESS, else the setting dmo.scheduler, else this process."""
    return os.environ.get("DASK_SCHEDULER_ADDRESS") or setting("scheduler") or "in-process"


def tls() -> Any:
    """Make the security of connections from the setting dmo.tls.

    Returns
    -------
    distributed.Security or None
        It refuses plain connections; None where the setting is not made.

    Raises
    ------
    UserError
        Where one of the three files is not named.
    FileNotFoundError
        Where one is not there.

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
            raise UserError(f"TLS needs three files, dmo.tls.{name} is not set; set it, or none of the three")
        if not os.path.isfile(path):
            raise FileNotFoundError(f"TLS: no file {path} (dmo.tls.{name}); make it as cluster/tls/README.md says")
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
"""From here on a limit of control groups, version 1, means none."""


def usable_memory(root: str = "/") -> int:
    """Find how much memory this process and its children may use: the machine's, or the tightest limit above the process.

    Looks at the control groups (version 1 and 2) of this process and all their parents, since a batch system or a container
    sets the limit on a parent.

    Parameters
    ----------
    root : str, default="/"
        Where the files of the system are, for tests.

    Returns
    -------
    int
        Bytes.

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
    """Count the cores that this process may use, under affinity and control groups.

    Returns
    -------
    int
        Cores, at least 1.

    Examples
    --------
    >>> from dmo.cluster import usable_cores
    >>> usable_cores() >= 1
    True
    """
    from dask.system import CPU_COUNT

    return int(CPU_COUNT)


def _limit_files(root: Path) -> Iterator[Path]:
    """The limit files of this process's control groups and their parents."""
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
