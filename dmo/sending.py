"""Data on the workers of a cluster, and work that is begun anew where they were lost with them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any, TypeVar

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


class Resent:
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
