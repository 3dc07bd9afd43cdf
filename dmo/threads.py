"""Shares rows out among threads; the compiled loops and NumPy's products release the interpreter's lock."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

from dmo.errors import UserError

Item = TypeVar("Item")
Found = TypeVar("Found")
_threads: ContextVar[int | None] = ContextVar("threads", default=None)
"""Threads of this context where BLAS has one; None: as many as BLAS."""
_STRIPS, _LEAST_WORK = 8, 1 << 26  # of a product, and the multiplications from which it is shared out


@lru_cache(maxsize=1)
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


def blas_limited(threads: int | None) -> AbstractContextManager[Any]:
    """A context in which BLAS has so many threads; None: as many as before."""
    return _blas().limit(limits=threads)  # looking for the libraries anew takes 5 to 10 ms


def thread_count(n_threads: int | None = None) -> int:
    """Count the threads to use."""
    if n_threads is not None:
        if n_threads < 1:
            raise UserError(f"n_threads must be at least 1, got {n_threads}")
        return int(n_threads)
    own = _threads.get()
    if own is not None:
        return own
    limits = _blas_threads()
    return min(limits) if limits else os.cpu_count() or 1


def _blas_threads() -> list[int]:
    return [library.num_threads for library in _blas().lib_controllers if library.num_threads]


def is_single_blas() -> bool:
    """Find whether BLAS has one thread now, whatever `in_threads` has."""
    return max(_blas_threads(), default=1) == 1


def over_rows(task: Callable[[int, int], None], n: int, least: int = 32) -> None:
    """Call `task(start, stop)` over 0..n in pieces, a few for each thread."""
    threads = 1 if n <= least else thread_count()  # to look for BLAS's takes longer than a row
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
    """
    if not items:
        return []
    if _threads.get() == 1:  # in a thread, or under `single_blas`, that has no other beside it
        return [task(item) for item in items]
    threads = min(thread_count(n_threads), len(items))

    def alone(item: Item) -> Found:
        _threads.set(1)  # in the copied context of this item: what it calls has this thread alone
        return task(item)

    # a context each: progress, checkpoints and names of estimators are known to the tasks, and no context runs twice
    runs = [copy_context() for _ in items]
    with blas_limited(1):
        if threads == 1:
            return [run.run(alone, item) for run, item in zip(runs, items, strict=True)]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(lambda run, item: run.run(alone, item), runs, items))


_KEPT, _TRIMMED = (-3, 1 << 25), (-1, 1 << 26)  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of glibc, and bytes


@lru_cache(maxsize=1)
def reuse_memory() -> None:
    """Let this process use memory again that it freed, as glibc does elsewhere, and Dask's nanny keeps workers from."""
    # The nanny sets MALLOC_TRIM_THRESHOLD_, which ends glibc's own rule: arrays of 128 KiB then go back to the system at
    # once, and every block of rows begins with page faults, which took twice the time of all its work.
    with suppress(OSError, AttributeError, TypeError):  # another system, or library
        for option in (_KEPT, _TRIMMED):
            ctypes.CDLL(None).mallopt(*option)


@contextmanager
def given(threads: int | None) -> Iterator[None]:
    """Give compiled loops so many threads; None: as many as they had."""
    token = _threads.set(_threads.get() if threads is None else thread_count(threads))
    try:
        yield
    finally:
        _threads.reset(token)


@contextmanager
def single_blas(threads: int | None = None) -> Iterator[None]:
    """Give BLAS one thread, and `in_threads`, `product` and compiled loops so many, or those that BLAS had."""
    # Small factorizations and products take longer with two BLAS threads than with one: they wait for each other by
    # spinning, and on a machine with other work for what the other work takes.
    token = _threads.set(thread_count(threads))
    try:
        with blas_limited(1):
            yield
    finally:
        _threads.reset(token)


def product(A: Any, B: Any) -> Any:
    """Multiply matrices, rows of A shared out among threads.

    A (m, d); B (d, k) -> (m, k)
    """
    # The strips do not depend on the number of threads, nor does the result.
    if not isinstance(A, np.ndarray):  # rows that live elsewhere, where their products are made
        return A @ B
    m, k = len(A), B.shape[1]
    if m * k * len(B) < _LEAST_WORK:
        return np.asarray(A @ B)
    out = np.empty((m, k), np.result_type(A, B))
    size = -(-m // _STRIPS)
    strips = [slice(start, min(start + size, m)) for start in range(0, m, size)]
    in_threads(lambda where: np.matmul(A[where], B, out=out[where]), strips)
    return out
