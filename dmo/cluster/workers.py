"""Data on the workers of a cluster, and work that is begun anew where they were lost with them."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from dmo.cluster import current_client
from dmo.progress import stage

T = TypeVar("T")
_PATIENCE = 60.0  # seconds to wait for a first worker when all were lost
_SENDING = 120.0  # seconds that data may take to reach all workers
_stuck: set[str] = set()  # clients whose broadcasts wait for a worker that died
_TRIES = 3  # of work whose scattered data were lost
log = logging.getLogger("dmo")


def retried(client: Any, work: Callable[[], T], forget: Callable[[], None]) -> T:
    """The result of `work`, begun anew (after `forget`) where scattered data were lost with the workers that held them.

    Tasks are recomputed by the scheduler, but what is scattered is not; a broadcast is no guard, since the scheduler's
    memory manager drops its copies but one after some seconds.
    """
    from distributed.comm import CommClosedError

    for _ in range(_TRIES - 1):
        try:
            return work()
        except (CancelledError, CommClosedError, TimeoutError) as error:
            if client.status != "running":  # the scheduler went as well
                raise
            log.warning("workers were lost (%s); trying again", type(error).__name__)
            forget()
            time.sleep(1.0)  # until the scheduler has noticed
            client.wait_for_workers(1, timeout=_PATIENCE)
    return work()


def send(client: Any, data: Any) -> Any:
    """A future of `data` on all workers; on one of them where the broadcast is not done in time, which a worker that died
    can keep waiting for ever. Raises TimeoutError where that does not succeed either."""

    async def sending(broadcast: bool) -> Any:
        return await client.scatter(data, broadcast=broadcast, hash=False, asynchronous=True)

    if client.id in _stuck:
        return client.sync(sending, False, callback_timeout=_SENDING)
    try:
        return client.sync(sending, True, callback_timeout=_SENDING)
    except TimeoutError:
        _stuck.add(client.id)
        log.warning("data did not reach all workers in %g s; sending them to one", _SENDING)
        return client.sync(sending, False, callback_timeout=_SENDING)


class Broadcast:
    """Data on all workers of `client`, sent when first asked for and again after `forget`."""

    def __init__(self, client: Any, data: Any):
        self.client, self.data = client, data
        self._future: Any = None

    def future(self) -> Any:
        """A future of the data."""
        if self._future is None:
            self._future = send(self.client, self.data)
        return self._future

    def forget(self) -> None:
        """Send anew at the next use."""
        self._future = None


def each(name: str, work: Callable[[int], T], numbers: Sequence[int]) -> Iterator[tuple[int, T]]:
    """(i, work(i)) of all numbers, in order: here, or on the workers, where `work` is sent once."""
    client = current_client()
    with stage(name, len(numbers)) as advance:
        if client is None or not numbers:
            for i in numbers:
                yield i, work(i)
                advance(1)
            return
        shared = Broadcast(client, work)
        for group in grouped(numbers, -(-len(numbers) // (8 * max(1, sum(client.nthreads().values()))))):

            def on_workers(part: Sequence[int] = group) -> list[T]:
                return client.gather([client.submit(_on_worker, shared.future(), i, pure=False) for i in part])

            for i, found in zip(group, retried(client, on_workers, shared.forget), strict=True):
                yield i, found
                advance(1)


def _on_worker(work: Callable[[int], T], i: int) -> T:
    with threadpool_limits(1):
        return work(i)


def grouped(items: Sequence[T], count: int) -> list[list[T]]:
    """`items` cut into at most `count` runs of nearly equal length, so that a run of pairs shares strips."""
    count = max(1, min(count, len(items)))
    edges = np.linspace(0, len(items), count + 1).round().astype(int)
    return [list(items[a:b]) for a, b in itertools.pairwise(edges)]


def run_task(function: Callable[..., T], *arguments: Any) -> T:
    """A task on a worker: one BLAS thread, since the worker's threads share its cores already."""
    with threadpool_limits(1):
        return function(*arguments)
