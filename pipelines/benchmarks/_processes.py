"""CPU seconds and peak memory of a process and of the workers of a cluster, for cluster benchmarks (Linux)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cloudpickle
import psutil

# Pickle this module by value because workers on other hosts do not have this folder.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def spent() -> tuple[float, float]:
    """Return CPU seconds and peak memory in MiB of this process (ru_maxrss would include its parent's peak)."""
    times = psutil.Process().cpu_times()
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    return times.user + times.system, int(peak) / 1024


def spent_everywhere(client: Any) -> list[tuple[float, float]]:
    """Return CPU seconds and peak memory of this process and of the workers of a client, if any."""
    return [spent(), *([] if client is None else client.run(spent).values())]


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function in a separate process and return its result."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()
