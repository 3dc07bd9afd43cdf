"""Dask clients: the only subpackage that creates or finds them, for every supported kind of cluster."""

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
