"""Shares rows out among threads; the compiled loops and NumPy's products release the interpreter's lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

from threadpoolctl import ThreadpoolController

from dmo.errors import UserError

Item = TypeVar("Item")
Found = TypeVar("Found")


@lru_cache(maxsize=1)
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


def thread_count(n_threads: int | None = None) -> int:
    """Count the threads to use.

    Parameters
    ----------
    n_threads : int or None, default=None
        The number; None: as many as BLAS may use now (what threadpoolctl or the environment has set), or the cores.

    Returns
    -------
    int
        At least 1.

    Examples
    --------
    >>> from dmo.kernels.threads import thread_count
    >>> thread_count(3)
    3
    """
    if n_threads is not None:
        if n_threads < 1:
            raise UserError(f"n_threads must be at least 1, got {n_threads}")
        return int(n_threads)
    limits = [library.num_threads for library in _blas().lib_controllers if library.num_threads]
    return min(limits) if limits else os.cpu_count() or 1


def over_rows(task: Callable[[int, int], None], n: int, n_threads: int | None = None, least: int = 32) -> None:
    """Call `task(start, stop)` over 0..n in pieces, a few for each thread.

    Parameters
    ----------
    task : callable
        (start, stop) -> None.
    n : int
        Rows.
    n_threads : int or None, default=None
        See `thread_count`.
    least : int, default=32
        Rows of a piece, at least (a multiple of 32).

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels.threads import over_rows
    >>> seen = np.zeros(100)
    >>> over_rows(lambda start, stop: seen[start:stop].fill(1.0), 100, n_threads=2)
    >>> float(seen.sum())
    100.0
    """
    threads = thread_count(n_threads)
    size = max(least, -(-n // (threads if threads == 1 else 4 * threads)))
    size += -size % 32
    pieces = [(start, min(start + size, n)) for start in range(0, n, size)]
    if threads == 1 or len(pieces) < 2:
        for piece in pieces:
            task(*piece)
        return
    with ThreadPoolExecutor(min(threads, len(pieces))) as pool:
        for done in [pool.submit(task, *piece) for piece in pieces]:
            done.result()


def in_threads(task: Callable[[Item], Found], items: Sequence[Item], n_threads: int | None = None) -> list[Found]:
    """Work out `[task(item) for item in items]` in threads, with one BLAS thread each.

    For small algebra, which more of those slow down.

    Parameters
    ----------
    task : callable
        Item -> result.
    items : sequence
        Items.
    n_threads : int or None, default=None
        See `thread_count`.

    Returns
    -------
    list
        Results, in the items' order.

    Examples
    --------
    >>> from dmo.kernels.threads import in_threads
    >>> in_threads(abs, [-1, 2], n_threads=2)
    [1, 2]
    """
    if not items:
        return []
    threads = min(thread_count(n_threads), len(items))
    with _blas().limit(limits=1):  # looking for the libraries anew takes 10 ms
        if threads == 1:
            return [task(item) for item in items]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(task, items))
