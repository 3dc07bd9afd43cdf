"""Computation in several threads, for compiled loops and NumPy products, which release the global interpreter lock."""

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
"""Number of threads in a context in which BLAS is limited to one thread, or None for the number of BLAS threads."""
_STRIPS, _LEAST_WORK = 8, 1 << 26  # Number of strips of a product, and minimum number of multiplications to split it.


@lru_cache(maxsize=1)
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


def blas_limited(threads: int | None) -> AbstractContextManager[Any]:
    """Limit BLAS to `threads` threads in a context; None keeps the current limit."""
    return _blas().limit(limits=threads)  # `_blas` caches the controller, which takes 5 to 10 ms to create.


def thread_count(n_threads: int | None = None) -> int:
    """Return `n_threads`, or by default the number of threads that the context or BLAS allows."""
    if n_threads is not None:
        if n_threads < 1:
            raise UserError(f"n_threads must be at least 1, got {n_threads}; pass a positive number")
        return int(n_threads)
    own = _threads.get()
    if own is not None:
        return own
    limits = _blas_threads()
    return min(limits) if limits else os.cpu_count() or 1


def _blas_threads() -> list[int]:
    return [library.num_threads for library in _blas().lib_controllers if library.num_threads]


def is_single_blas() -> bool:
    """Return whether BLAS is currently limited to one thread."""
    return max(_blas_threads(), default=1) == 1


def over_rows(task: Callable[[int, int], None], n: int, least: int = 32) -> None:
    """Split n rows into ranges and call `task(start, stop)` for each range in several threads."""
    threads = 1 if n <= least else thread_count()  # For few rows, the query of the thread count would take too long.
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
    """Compute `[task(item) for item in items]` in several threads, each with a single BLAS thread.

    Small matrices are processed faster by several independent threads than by several BLAS threads.
    """
    if not items:
        return []
    if _threads.get() == 1:  # This thread is already one of several threads and must not start more.
        return [task(item) for item in items]
    threads = min(thread_count(n_threads), len(items))

    def alone(item: Item) -> Found:
        _threads.set(1)  # Nested calls in the copied context use only this thread.
        return task(item)

    # Tasks need the progress display, checkpoints and estimator names of the caller, so copy the context for each item.
    runs = [copy_context() for _ in items]
    with blas_limited(1):
        if threads == 1:
            return [run.run(alone, item) for run, item in zip(runs, items, strict=True)]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(lambda run, item: run.run(alone, item), runs, items))


_KEPT, _TRIMMED = (-3, 1 << 25), (-1, 1 << 26)
"""Pairs of option number and value in bytes for the glibc options M_MMAP_THRESHOLD and M_TRIM_THRESHOLD."""


@lru_cache(maxsize=1)
def reuse_memory() -> None:
    """Let the process reuse freed memory, which is the default of glibc but is disabled on Dask workers."""
    # The nanny process of a Dask worker sets MALLOC_TRIM_THRESHOLD_, which disables the dynamic threshold of glibc.
    # Freed arrays of 128 KiB or more are then returned to the operating system immediately. Allocating such arrays
    # again for every block of rows causes page faults, which took twice as long as all other work on the block.
    with suppress(OSError, AttributeError, TypeError):  # Other operating systems and C libraries lack these options.
        for option in (_KEPT, _TRIMMED):
            ctypes.CDLL(None).mallopt(*option)


def trim_memory() -> None:
    """Return free memory between live arrays to the operating system."""
    # Small arrays that outlive a task split the memory that its rows have freed. The rows of the next task then do not
    # fit, so that the memory of a worker would grow with every view.
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def given(threads: int | None) -> Iterator[None]:
    """Run compiled loops with `threads` threads in a context; None keeps the current number."""
    token = _threads.set(_threads.get() if threads is None else thread_count(threads))
    try:
        yield
    finally:
        _threads.reset(token)


@contextmanager
def single_blas(threads: int | None = None) -> Iterator[None]:
    """Limit BLAS to one thread in a context, in which compiled loops and `in_threads` use `threads` threads.

    The default of `threads` is the previous number of BLAS threads.
    """
    # Small factorizations and products are slower with two BLAS threads than with one, because the threads wait for
    # each other in a busy loop. On a busy machine, threads also wait for threads that are not scheduled.
    with given(thread_count(threads)), blas_limited(1):
        yield


def product(A: Any, B: Any) -> Any:
    """Compute the matrix product of A and B in several threads, which share the rows of A."""
    # The strips of rows, and therefore the result, do not depend on the number of threads.
    if not isinstance(A, np.ndarray):  # Other array libraries parallelize the product themselves.
        return A @ B
    m, k = len(A), B.shape[1]
    if m * k * len(B) < _LEAST_WORK:
        return np.asarray(A @ B)
    out = np.empty((m, k), np.result_type(A, B))
    size = -(-m // _STRIPS)
    strips = [slice(start, min(start + size, m)) for start in range(0, m, size)]
    in_threads(lambda where: np.matmul(A[where], B, out=out[where]), strips)
    return out
