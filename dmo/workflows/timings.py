"""Seconds of what fits are made of, timed on this machine: kernel values, bandwidths, matrix products."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from dmo.blocks import Rows, rows
from dmo.kernels import Kernel, parse
from dmo.kernels.bandwidths import SAMPLE

TIMED = 1024
"""Rows that are timed, at most."""


def kernel_seconds(sources: Mapping[str, Rows], kernels: Mapping[str, Any]) -> tuple[float, float]:
    """Seconds of one value of the kernels of all views, and of reading and preparing one row of them, timed on a tile
    between the first and the last rows."""
    per_value, per_row = 0.0, 0.0
    for name, source in sources.items():
        n, size = source.shape[0], min(TIMED, source.shape[0])
        first, last = rows(source, slice(0, size)), rows(source, slice(n - size, n))
        kernel = parse(kernels[name]).fit(first)
        left, right = kernel.prepare(first, np.float32), kernel.prepare(last, np.float32)
        per_value += best_seconds(partial(kernel.tile, left, right)) / size**2
        per_row += best_seconds(partial(_ready, kernel, source, size)) / size
    return per_value, per_row


def bandwidth_seconds(kernel: Kernel, source: Rows, n: int) -> float:
    """Seconds of a fit of the kernel to n rows, timed on the first: all pairs of a sample are compared."""
    first = rows(source, slice(0, TIMED))
    return best_seconds(partial(kernel.fit, first)) * (min(n, SAMPLE) / first.shape[0]) ** 2


def _ready(kernel: Kernel, source: Rows, size: int) -> Any:
    return kernel.prepare(rows(source, slice(0, size)), np.float32)


def multiply_rate(dtype: Any) -> float:
    """Floating-point operations per second of a matrix product in this process."""
    size = 1024
    A = np.full((size, size), 0.5, dtype)
    return 2.0 * size**3 / best_seconds(lambda: A @ A)


def best_seconds(work: Callable[[], Any]) -> float:
    """Seconds of the faster of two: the others started threads or waited for something else."""
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
