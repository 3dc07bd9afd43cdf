"""Distribution of rows over threads; compiled loops and NumPy's products release the global interpreter lock (GIL)."""

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
"""Threads of this context while BLAS is limited to one thread; None means the number of BLAS threads."""
_STRIPS, _LEAST_WORK = 8, 1 << 26  # strips of a product, and multiplications from which it is split


@lru_cache(maxsize=1)
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


def blas_limited(threads: int | None) -> AbstractContextManager[Any]:
    """Limit BLAS to `threads` threads in a context; None keeps the current limit."""
    return _blas().limit(limits=threads)  # the controller is cached, because finding the libraries takes 5 to 10 ms


def thread_count(n_threads: int | None = None) -> int:
    """Return the number of threads to use."""
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
    """Check if BLAS currently has one thread, regardless of the threads of `in_threads`."""
    return max(_blas_threads(), default=1) == 1


def over_rows(task: Callable[[int, int], None], n: int, least: int = 32) -> None:
    """Call `task(start, stop)` on pieces of 0..n, a few pieces per thread."""
    threads = 1 if n <= least else thread_count()  # finding the number of BLAS threads is slower than one row
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
    """Compute `[task(item) for item in items]` in threads with one BLAS thread each.

    Use it for small linear algebra, which several BLAS threads would slow down.
    """
    if not items:
        return []
    if _threads.get() == 1:  # in a thread of `in_threads` or under `single_blas(1)`, which must not start others
        return [task(item) for item in items]
    threads = min(thread_count(n_threads), len(items))

    def alone(item: Item) -> Found:
        _threads.set(1)  # in the copied context of this item: nested calls use only this thread
        return task(item)

    # Each item has its own copy of the context, so that progress, checkpoints and estimator names are available in
    # tasks.
    runs = [copy_context() for _ in items]
    with blas_limited(1):
        if threads == 1:
            return [run.run(alone, item) for run, item in zip(runs, items, strict=True)]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(lambda run, item: run.run(alone, item), runs, items))


_KEPT, _TRIMMED = (-3, 1 << 25), (-1, 1 << 26)  # (option, bytes) of glibc's M_MMAP_THRESHOLD and M_TRIM_THRESHOLD


@lru_cache(maxsize=1)
def reuse_memory() -> None:
    """Let this process reuse freed memory, which is glibc's default but is disabled by Dask's nanny on workers."""
    # The nanny sets MALLOC_TRIM_THRESHOLD_, which disables glibc's dynamic threshold. Freed arrays of 128 KiB or more
    # then return to the system immediately, and every block of rows starts with page faults. These faults took twice
    # as long as all other work on the block.
    with suppress(OSError, AttributeError, TypeError):  # another operating system or C library
        for option in (_KEPT, _TRIMMED):
            ctypes.CDLL(None).mallopt(*option)


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
    """Limit BLAS to one thread; `in_threads`, `product` and compiled loops use `threads` threads, by default BLAS's."""
    # Small factorizations and products are slower with two BLAS threads than with one: the threads wait for each other
    # in a busy loop. On a machine with other work, they also wait for threads that are not scheduled.
    with given(thread_count(threads)), blas_limited(1):
        yield


def product(A: Any, B: Any) -> Any:
    """Multiply matrices with the rows of A distributed over threads.

    A (m, d); B (d, k) -> (m, k)
    """
    # The strips, and therefore the result, do not depend on the number of threads.
    if not isinstance(A, np.ndarray):  # an array of another library, which computes the product itself
        return A @ B
    m, k = len(A), B.shape[1]
    if m * k * len(B) < _LEAST_WORK:
        return np.asarray(A @ B)
    out = np.empty((m, k), np.result_type(A, B))
    size = -(-m // _STRIPS)
    strips = [slice(start, min(start + size, m)) for start in range(0, m, size)]
    in_threads(lambda where: np.matmul(A[where], B, out=out[where]), strips)
    return out
