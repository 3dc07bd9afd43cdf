"""The state of clusters that tests share."""

import time
from contextlib import suppress
from typing import Any

PATIENCE = 300  # seconds


def await_workers(cluster: Any, count: int) -> None:
    """Wait until `count` workers of a LocalCluster of processes run; replace them if they do not start again."""
    # Tests kill workers. A nanny starts its worker again, but one of Dask's once did not.
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
    """Count the workers that run for the scheduler in a process that lives."""
    # The scheduler may learn later than the nanny that a process ended.
    known, found = cluster.scheduler.workers, 0
    for nanny in list(cluster.workers.values()):
        with suppress(AttributeError, KeyError):  # a process that its nanny's thread replaces at this moment
            found += nanny.process.process.is_alive() and known[nanny.worker_address].status.name == "running"
    return found
