"""Settings of clusters: packaged defaults, ~/.config/dask/dmo.yaml, DASK_DMO__... variables, options of a command."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import dask.config
import yaml

BATCH = ("slurm", "pbs", "lsf")
PLACES = ("in-process", "local", *BATCH, "kubernetes", "gateway", "ssh")


@dataclass(frozen=True)
class Place:
    """Where to run, as asked: `where` (see `connect`); None of the others: the setting. `memory_limit` in bytes or "4GiB";
    `timeout` in seconds."""

    where: str
    workers: int | None = None
    threads: int | None = None
    memory_limit: str | float | None = None
    timeout: float | None = None

    def patience(self) -> float:
        """Seconds to wait for a scheduler and its first worker."""
        if self.timeout is not None:
            return self.timeout
        waits = self.where in (*BATCH, "kubernetes", "gateway", "ssh")
        return float(setting("queue-timeout" if waits else "timeout"))


def defaults() -> dict[str, Any]:
    """The packaged defaults."""
    return yaml.safe_load(files("dmo.cluster").joinpath("dmo.yaml").read_text(encoding="utf-8"))


def setting(name: str) -> Any:
    """A setting by its dotted name below `dmo`, such as "local.workers"; ValueError for one that dmo does not have."""
    known: Any = defaults()["dmo"]
    for part in name.split("."):
        if not isinstance(known, dict) or part not in known:
            raise ValueError(f"no setting dmo.{name}; known ones are in dmo/cluster/dmo.yaml")
        known = known[part]
    return dask.config.get(f"dmo.{name}", known)


def default_place() -> str:
    """DASK_SCHEDULER_ADDRESS, else the setting dmo.scheduler, else this process."""
    return os.environ.get("DASK_SCHEDULER_ADDRESS") or setting("scheduler") or "in-process"


def tls() -> Any:
    """`distributed.Security` from the setting dmo.tls, which refuses plain connections; None where it is not set.

    Raises ValueError where one of the three files is not named, FileNotFoundError where one is not there.
    """
    from distributed import Security

    named = {name: setting(f"tls.{name}") for name in ("ca-file", "cert", "key")}
    if not any(named.values()):
        return None
    for name, path in named.items():
        if not path:
            raise ValueError(f"TLS needs three files, dmo.tls.{name} is not set; set it, or none of the three")
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
