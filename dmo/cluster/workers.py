"""Functions that send data and tasks to the workers of a cluster, and restart tasks if workers were lost."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import numpy as np

from dmo.cluster.connection import MORE_MEMORY, WorkerMemoryError, current_client
from dmo.cluster.targets import await_worker
from dmo.errors import UserError, amount
from dmo.progress import stage, task_group
from dmo.threads import reuse_memory, single_blas

T = TypeVar("T")
_PATIENCE = 60.0  # number of seconds to wait for a new worker if all workers were lost
_SENDING = 120.0  # maximum number of seconds to send data to all workers
_seen: dict[str, float] = {}  # time at which a client last had a worker, by id of the client
_FRESH = 2.0  # number of seconds after which `send` checks again that the cluster has a worker
_stuck: set[str] = set()  # ids of clients with an unfinished broadcast to a dead worker
_LOOK, _PAUSED = 10.0, 120.0  # seconds between checks for paused workers, and seconds until they raise an error
_AHEAD = 8  # number of tasks per thread that are queued at the scheduler
_TRIES = 3  # maximum number of attempts of a computation without progress between them
log = logging.getLogger("dmo")


class RestartedError(UserError):
    """Exception for a call of `client.restart` during a computation."""


def retried(
    client: Any, work: Callable[[], T], forget: Callable[[], None], progress: Callable[[], int] = lambda: 0
) -> T:
    """Call `work`, and call it again if data that were sent to workers were lost with these workers."""
    # The scheduler recomputes the results of lost tasks, but it cannot recompute scattered data. A broadcast does not
    # prevent the loss, because the scheduler removes all copies of the data except one after some seconds.
    from distributed.comm import CommClosedError

    tries, before, generation = 1, progress(), client.generation
    while True:
        try:
            return work()
        except (CancelledError, CommClosedError, TimeoutError) as error:
            tries, before = (tries + 1 if progress() == before else 2), progress()
            if client.status != "running" or tries > _TRIES:
                raise
            log.warning("workers were lost (%s); trying again", type(error).__name__)
            forget()
            time.sleep(1.0)  # wait until the scheduler has detected that workers were lost
            if client.generation != generation:
                raise RestartedError(
                    f"the workers of {client.scheduler.address} were restarted during the computation; repeat it: with "
                    "--checkpoint or dmo.stores.checkpoints.checkpoints, it resumes from its last checkpoint"
                ) from error
            try:
                await_worker(client, _PATIENCE)
            except TimeoutError as late:
                raise client.sync(_standstill, client) or late from error


def worker_threads(client: Any) -> dict[str, int]:
    """Return the number of threads of each worker; wait for a worker if an adaptive cluster has stopped all of them."""
    await_worker(client, _PATIENCE)
    return dict(client.nthreads())


def send(client: Any, data: Any, places: list[str] | None = None) -> Any:
    """Send data to all workers, or each item of a list to the worker with the address in `places`.

    If sending data to all workers takes too long, for example because a worker is dead, send them to one worker.
    """
    from distributed.comm import CommClosedError

    async def scatter(data: Any, **where: Any) -> Any:
        return await client.scatter(data, hash=False, asynchronous=True, **where)

    async def sending(broadcast: bool) -> Any:
        if places is None:
            return await scatter(data, broadcast=broadcast)
        return await asyncio.gather(*(scatter(item, workers=[place]) for item, place in zip(data, places, strict=True)))

    if time.monotonic() - _seen.get(client.id, -np.inf) > _FRESH:
        await_worker(client, _PATIENCE)
        _seen[client.id] = time.monotonic()
    broadcast = places is None and client.id not in _stuck
    try:
        return client.sync(sending, broadcast, callback_timeout=_SENDING)
    except TimeoutError:
        if not broadcast:
            raise
        _stuck.add(client.id)
        log.warning("data did not reach all workers in %g s; sending them to one", _SENDING)
        return client.sync(sending, False, callback_timeout=_SENDING)
    except (OSError, KeyError) as error:  # the worker that receives the data has just died
        raise CommClosedError(str(error)) from error


class Broadcast:
    """Data that are sent to all workers of a cluster when they are first used."""

    def __init__(self, client: Any, data: Any):
        self.client, self.data = client, data
        self._future: Any = None

    def future(self) -> Any:
        """Return the future of the data, which are sent now if necessary."""
        if self._future is None:
            self._future = send(self.client, self.data)
        return self._future

    def forget(self) -> None:
        """Ensure that the data are sent again when they are next used."""
        self._future = None


def gathered(client: Any, futures: Sequence[Any]) -> list[Any]:
    """Return the results of futures; raise WorkerMemoryError if paused workers prevent all progress.

    Dask pauses a worker at its memory limit. The worker remains paused if its memory is not used by results of tasks.
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
    """Return an error if workers are paused and no worker is executing a task, otherwise None."""
    workers = (await client.scheduler.identity(n_workers=-1))["workers"] if client.status == "running" else {}
    paused = [worker for worker in workers.values() if worker["status"] == "paused"]
    if not paused or any(worker["metrics"]["task_counts"].get("executing") for worker in workers.values()):
        return None
    least = min(paused, key=lambda worker: worker["memory_limit"])
    taken, limit = (amount(n) for n in (least["metrics"]["memory"], least["memory_limit"]))
    return WorkerMemoryError(
        f"{len(paused)} of {len(workers)} workers wait for memory, and all work waits for them: {taken} of the limit of "
        f"{limit} are in use by data that cannot be moved to disk; {MORE_MEMORY}"
    )


def each(name: str, work: Callable[[int], T], numbers: Sequence[int]) -> Iterator[tuple[int, T]]:
    """Yield each number with the result of `work(number)`, computed in the client process or on the current cluster."""
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
                # Ignore a lost scheduler here: collecting the results below raises the error in any case.
                with suppress(OSError, RuntimeError, CancelledError):
                    threads = max(1, sum(client.nthreads().values()))
                asked = time.monotonic()

            def result(at: int = at, i: int = i, threads: int = threads) -> T:
                # Queue a few tasks per thread at the scheduler, so that no thread is idle.
                ahead = numbers[at : at + _AHEAD * threads]
                for number in ahead:
                    if number not in tasks:
                        given = shared.future(), [number]
                        tasks[number] = client.submit(run_task, *given, key=task_group(name), pure=False)
                return gathered(client, [tasks[i]])[0]

            found = retried(client, result, forget)
            del tasks[i]
            yield i, found
            advance(1)


def grouped(items: Sequence[T], count: int) -> list[list[T]]:
    """Split a sequence into contiguous parts of nearly equal length."""
    count = max(1, min(count, len(items)))
    edges = np.linspace(0, len(items), count + 1).round().astype(int)
    return [list(items[a:b]) for a, b in itertools.pairwise(edges)]


def merged(
    work: Callable[..., T], shared: Any, items: Sequence[Any], merge: Callable[[T, T], T], *arguments: Any
) -> T | None:
    """Compute `work(shared, part of items, *arguments)` for one part per worker thread, and merge the results.

    Results are merged by tree reduction on the workers. Returns None if there is no cluster.
    """
    client = current_client()
    if client is None:
        return None
    sent = Broadcast(client, shared)

    def run() -> T:
        groups = grouped(items, sum(client.nthreads().values()))
        parts = [submit(client, work, sent.future(), group, *arguments) for group in groups]
        result: T = tree_reduced(parts, partial(submit, client, merge)).result()
        return result

    return retried(client, run, sent.forget)


def tree_reduced(parts: Sequence[T], merge: Callable[[T, T], T]) -> T:
    """Merge neighboring items of a sequence, such as futures, until one item remains."""
    parts = list(parts)
    while len(parts) > 1:
        odd = [parts[-1]] if len(parts) % 2 else []
        parts = [merge(a, b) for a, b in zip(parts[0:-1:2], parts[1::2], strict=False)] + odd
    return parts[0]


def run_task(function: Callable[..., T], arguments: Sequence[Any]) -> T:
    """Call a function in a task on a worker. BLAS uses one thread, because the worker runs tasks in several threads."""
    reuse_memory()
    with single_blas(1):
        return function(*arguments)


def submit(client: Any, function: Any, *arguments: Any, name: str = "") -> Any:
    """Submit a function as a task, preferably to the worker that holds its arguments, and return its future."""
    return submit_each(client, function, [arguments], name)[0]


def submit_each(
    client: Any, function: Any, calls: Sequence[Sequence[Any]], name: str = "", places: Sequence[str] = ()
) -> list[Any]:
    """Submit a function as one task per list of arguments. `places` are the addresses of the preferred workers."""
    from dask import annotate

    # The tasks of each call form a group of their own. The scheduler ignores the location of data for the tasks of a
    # large group with few dependencies, so different calls must not share a group. One group per task would be slow,
    # because the scheduler checks all groups whenever a task ends.
    group = task_group(name or getattr(function, "func", function).__name__)
    keys = [(group, number) for number in range(len(calls))]
    wanted = {"workers": lambda key: places[key[1]], "allow_other_workers": True} if places else {}
    with annotate(**wanted):
        return list(client.map(run_task, [function] * len(calls), list(map(list, calls)), key=keys, pure=False))
