"""Files that appear under their name only when they are complete, and temporary arrays on disk."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedWriter, FileIO
from math import prod
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import IO, Any

import numpy as np

from dmo.stores._folder import beside, writing

_ZEROS = 1 << 20  # number of zero bytes that are written at once


class _Part(FileIO):
    """File with a temporary name whose error messages contain its final path."""

    def __init__(self, part: str, path: str):
        super().__init__(part, "xb")
        self._path = path

    def write(self, data: Any) -> int:
        with writing(self._path, "the file"):
            return super().write(data)


@contextmanager
def new_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a binary file for writing that replaces `path` at the end of the `with` block.

    If the block raises an exception, the new file is removed.
    """
    target, part = Path(path), beside(path)
    with writing(str(path), "the file"):
        target.parent.mkdir(parents=True, exist_ok=True)
        raw = _Part(part, str(path))
    try:
        with BufferedWriter(raw) as file:
            yield file
        with writing(str(path), "the file"):
            os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise


def disk_array(shape: tuple[int, ...], dtype: Any, folder: str | os.PathLike[str] | None = None) -> np.ndarray:
    """Create a memory-mapped array of zeros in an unnamed file; raise OSError if the disk is too small."""
    place, dtype = os.fspath(folder or gettempdir()), np.dtype(dtype)
    size = prod(shape) * dtype.itemsize
    if not size:
        return np.zeros(shape, dtype)
    with writing(place, f"{size:,} bytes of temporary rows"), TemporaryFile(dir=place) as file:
        # Reserve the disk space now: on a full disk, writing to a memory-mapped array would kill the process with a
        # signal.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            for start in range(0, size, _ZEROS):
                file.write(bytes(min(_ZEROS, size - start)))
            file.flush()
        return np.frombuffer(mmap.mmap(file.fileno(), size), dtype).reshape(shape)


def rows_on_disk(
    n: int, blocks: Iterable[tuple[slice, Sequence[np.ndarray]]], folder: str | os.PathLike[str] | None = None
) -> list[np.ndarray]:
    """Write blocks of rows, each of which is a slice and the rows of several arrays, to temporary arrays on disk."""
    found: list[np.ndarray] = []
    for where, parts in blocks:
        found = found or [disk_array((n, *part.shape[1:]), part.dtype, folder) for part in parts]
        for array, part in zip(found, parts, strict=True):
            array[where] = part
    return found
