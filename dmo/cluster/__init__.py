"""The one place that makes or finds a Dask client: this process, this machine, an address, a batch queue, a cloud."""

from dmo.cluster.connection import Connection, WorkerMemoryError, connect, current_client
from dmo.cluster.settings import BACKENDS, Backend, setting, tls, usable_cores, usable_memory

__all__ = [
    "BACKENDS",
    "Backend",
    "Connection",
    "WorkerMemoryError",
    "connect",
    "current_client",
    "setting",
    "tls",
    "usable_cores",
    "usable_memory",
]
