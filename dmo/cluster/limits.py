"""What this process may use of the machine: memory under its control groups, cores under its affinity."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil

_UNLIMITED = 1 << 60
"""From here on a limit of control groups, version 1, means none."""


def usable_memory(root: str = "/") -> int:
    """Find how much memory this process and its children may use: the machine's, or the tightest limit above the process.

    Looks at the control groups (version 1 and 2) of this process and all their parents, since a batch system or a container
    sets the limit on a parent.

    Parameters
    ----------
    root : str, default="/"
        Where the files of the system are, for tests.

    Returns
    -------
    int
        Bytes.

    Examples
    --------
    >>> from dmo.cluster import usable_memory
    >>> usable_memory() > 2**20
    True
    """
    found = [psutil.virtual_memory().total]
    for path in _limit_files(Path(root)):
        try:
            value = int(path.read_text(encoding="ascii"))
        except (OSError, ValueError):  # no such file, or "max"
            continue
        if 0 < value < _UNLIMITED:
            found.append(value)
    return min(found)


def usable_cores() -> int:
    """Count the cores that this process may use, under affinity and control groups.

    Returns
    -------
    int
        Cores, at least 1.

    Examples
    --------
    >>> from dmo.cluster import usable_cores
    >>> usable_cores() >= 1
    True
    """
    from dask.system import CPU_COUNT

    return int(CPU_COUNT)


def _limit_files(root: Path) -> Iterator[Path]:
    """The limit files of this process's control groups and their parents."""
    groups = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in [*lines, "0::/", "0:memory:/"]:
        _, controllers, group = line.split(":", 2)
        own = PurePosixPath(group.lstrip("/"))
        for part in (own, *own.parents):
            if not controllers:
                yield groups / part / "memory.max"
                yield groups / part / "memory.high"
            elif "memory" in controllers.split(","):
                yield groups / "memory" / part / "memory.limit_in_bytes"
