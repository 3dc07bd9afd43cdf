"""Creation and lookup of Dask clients for all supported clusters."""

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
