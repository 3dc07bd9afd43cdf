"""Wait for the workers of clusters that several tests share."""

import time
from contextlib import suppress
from typing import Any

PATIENCE = 300  # maximum waiting time in seconds


def await_workers(cluster: Any, count: int) -> None:
    """Wait until `count` worker processes of a LocalCluster run. If workers do not restart, start new workers."""
    # Dask's nanny normally restarts a worker that a test killed, but a restart has failed once.
    if not _within(PATIENCE / 5, cluster, count):
        cluster.scale(0)
        cluster.scale(count)
        if not _within(PATIENCE / 2, cluster, count):
            raise TimeoutError(f"{_running(cluster)} workers of the cluster run, expected {count}")


def _within(seconds: float, cluster: Any, count: int) -> bool:
    end = time.monotonic() + seconds
    while _running(cluster) != count:
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def _running(cluster: Any) -> int:
    """Count the workers that the scheduler lists as running and whose process is alive."""
    # The scheduler may notice the end of a process later than the nanny.
    known, found = cluster.scheduler.workers, 0
    for nanny in list(cluster.workers.values()):
        with suppress(AttributeError, KeyError):  # the nanny is replacing its process
            found += nanny.process.process.is_alive() and known[nanny.worker_address].status.name == "running"
    return found
