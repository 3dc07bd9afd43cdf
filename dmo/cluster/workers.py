"""Data on the workers of a cluster, and work that is begun anew where they were lost with them."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from dmo.cluster.connection import MORE_MEMORY, WorkerMemoryError, current_client
from dmo.errors import amount
from dmo.progress import stage
from dmo.threads import reuse_memory, single_blas

T = TypeVar("T")
_PATIENCE = 60.0  # seconds to wait for a first worker when all were lost
_SENDING = 120.0  # seconds that data may take to reach all workers
_stuck: set[str] = set()  # clients whose broadcasts wait for a dead worker
_LOOK, _PAUSED = 10.0, 120.0  # seconds between looks at workers, and that all may stand still before this ends the work
_AHEAD = 8  # pieces of numbered work per thread that wait with the scheduler
_TRIES = 3  # of work whose scattered data were lost, without progress between them
log = logging.getLogger("dmo")


def retried(
    client: Any, work: Callable[[], T], forget: Callable[[], None], progress: Callable[[], int] = lambda: 0
) -> T:
    """Do `work`, and begin it anew where scattered data were lost with the workers that held them."""
    # Tasks are recomputed by the scheduler, but what is scattered is not; a broadcast is no guard, since the
    # scheduler's memory manager drops its copies but one after some seconds.
    from distributed.comm import CommClosedError

    tries, before = 1, progress()
    while True:
        try:
            return work()
        except (CancelledError, CommClosedError, TimeoutError) as error:
            tries, before = (tries + 1 if progress() == before else 2), progress()
            if client.status != "running" or tries > _TRIES:  # the scheduler went as well
                raise
            log.warning("workers were lost (%s); trying again", type(error).__name__)
            forget()
            time.sleep(1.0)  # until the scheduler has noticed
            try:
                client.wait_for_workers(1, timeout=_PATIENCE)
            except TimeoutError as late:
                raise client.sync(_standstill, client) or late from error


def send(client: Any, data: Any, places: list[str] | None = None) -> Any:
    """Send data to all workers, or to one where the broadcast is not done in time; or the items of a list to a place each.

    A dead worker can keep a broadcast waiting forever.
    """
    from distributed.comm import CommClosedError

    async def scatter(data: Any, **where: Any) -> Any:
        return await client.scatter(data, hash=False, asynchronous=True, **where)

    async def sending(broadcast: bool) -> Any:
        if places is None:
            return await scatter(data, broadcast=broadcast)
        return await asyncio.gather(*(scatter(item, workers=[place]) for item, place in zip(data, places, strict=True)))

    broadcast = places is None and client.id not in _stuck
    try:
        return client.sync(sending, broadcast, callback_timeout=_SENDING)
    except TimeoutError:
        if not broadcast:
            raise
        _stuck.add(client.id)
        log.warning("data did not reach all workers in %g s; sending them to one", _SENDING)
        return client.sync(sending, False, callback_timeout=_SENDING)
    except (OSError, KeyError) as error:  # sent past the scheduler or through it, to a worker that has just died
        raise CommClosedError(str(error)) from error


class Broadcast:
    """Data on all workers of a cluster, sent when first asked for and again after `forget`."""

    def __init__(self, client: Any, data: Any):
        self.client, self.data = client, data
        self._future: Any = None

    def future(self) -> Any:
        """Send the data where they are not there yet."""
        if self._future is None:
            self._future = send(self.client, self.data)
        return self._future

    def forget(self) -> None:
        """Send anew at the next use."""
        self._future = None


def gathered(client: Any, futures: Sequence[Any]) -> list[Any]:
    """Results of futures; refused where workers that paused at their memory limits keep all from going on.

    Dask pauses a worker and waits for its memory, which what is no result never gives back.
    """

    async def found() -> Any:
        work, still = asyncio.ensure_future(client.gather(list(futures), asynchronous=True)), 0.0
        while not (await asyncio.wait({work}, timeout=_LOOK))[0]:
            refusal = await _standstill(client)
            still = still + _LOOK if refusal else 0.0
            if refusal and still >= _PAUSED:
                work.cancel()
                raise refusal
        return work.result()

    return list(client.sync(found))


async def _standstill(client: Any) -> WorkerMemoryError | None:
    """What is said where some workers are paused and none works."""
    workers = (await client.scheduler.identity(n_workers=-1))["workers"] if client.status == "running" else {}
    paused = [worker for worker in workers.values() if worker["status"] == "paused"]
    if not paused or any(worker["metrics"]["task_counts"].get("executing") for worker in workers.values()):
        return None
    least = min(paused, key=lambda worker: worker["memory_limit"])
    taken, limit = (amount(n) for n in (least["metrics"]["memory"], least["memory_limit"]))
    return WorkerMemoryError(
        f"{len(paused)} of {len(workers)} workers wait for memory, and all work for them: {taken} of the limit of {limit} "
        f"are taken, not by tiles or rows that could go to a disk; {MORE_MEMORY}"
    )


def each(name: str, work: Callable[[int], T], numbers: Sequence[int]) -> Iterator[tuple[int, T]]:
    """Do numbered pieces of work, in this process or on the workers of the current cluster, where `work` is sent once."""
    client = current_client()
    with stage(name, len(numbers)) as advance:
        if client is None or not numbers:
            for i in numbers:
                yield i, work(i)
                advance(1)
            return
        shared = Broadcast(client, work)
        tasks: dict[int, Any] = {}
        threads, asked = 1, -np.inf

        def forget() -> None:
            tasks.clear()
            shared.forget()

        for at, i in enumerate(numbers):
            if time.monotonic() - asked > 1.0:
                # where the scheduler does not answer, or the client is closed, the results say what that means
                with suppress(OSError, RuntimeError, CancelledError):
                    threads = max(1, sum(client.nthreads().values()))
                asked = time.monotonic()

            def result(at: int = at, i: int = i, threads: int = threads) -> T:
                # a few per thread wait with the scheduler: enough that none is idle, with the threads that there are now
                ahead = numbers[at : at + _AHEAD * threads]
                for number in ahead:
                    if number not in tasks:
                        key = f"{name}-{uuid.uuid4().hex}"
                        tasks[number] = client.submit(run_task, shared.future(), [number], key=key, pure=False)
                return gathered(client, [tasks[i]])[0]

            found = retried(client, result, forget)
            del tasks[i]
            yield i, found
            advance(1)


def grouped(items: Sequence[T], count: int) -> list[list[T]]:
    """Cut a sequence into runs of nearly equal length.

    Runs, since neighbors in a list of pairs of blocks share a strip of rows.
    """
    count = max(1, min(count, len(items)))
    edges = np.linspace(0, len(items), count + 1).round().astype(int)
    return [list(items[a:b]) for a, b in itertools.pairwise(edges)]


def run_task(function: Callable[..., T], arguments: Sequence[Any]) -> T:
    """Run a function as a task on a worker, with one BLAS thread, since the worker's threads share its cores already."""
    reuse_memory()
    with single_blas(1):
        return function(*arguments)


def submit(client: Any, function: Any, *arguments: Any, name: str = "") -> Any:
    """Run a function as a task that is named after it, where its arguments are: durations are learned by names."""
    return submit_each(client, function, [arguments], name)[0]


def submit_each(
    client: Any, function: Any, calls: Sequence[Sequence[Any]], name: str = "", places: Sequence[str] = ()
) -> list[Any]:
    """The same for several lists of arguments; `places` are workers to prefer, where they are there."""
    from dask import annotate

    name = name or getattr(function, "func", function).__name__
    # A group by itself: tasks of a large group that depend on few others go to any worker, whatever lies where. But not
    # one for each task: the scheduler looks at all groups whenever a task ends.
    group = f"{name.strip('_')}-{uuid.uuid4().hex}"
    keys = [(group, number) for number in range(len(calls))]
    wanted = {"workers": lambda key: places[key[1]], "allow_other_workers": True} if places else {}
    with annotate(**wanted):
        return list(client.map(run_task, [function] * len(calls), list(map(list, calls)), key=keys, pure=False))
