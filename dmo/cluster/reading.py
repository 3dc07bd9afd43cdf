"""Row sources that the workers of a cluster read or compute themselves, so that rows do not pass through the client."""

from __future__ import annotations

import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dmo.blocks import Block, Rows, RowsOf, Subset, chunk_rows, in_task, numbered, rows, sampled, stacked
from dmo.cluster.connection import current_client
from dmo.cluster.workers import each
from dmo.errors import amount
from dmo.hashing import row_hashes

_FAST = 2e8  # bytes per second at which a copy on a worker's disk is read; faster sources are not copied
_SPARE = 0.25  # fraction of the free disk space of a worker that the copy of a block may use
_WORTH, _PARTS = 1 << 26, 64  # least bytes of stored rows that workers read for the client, and maximum number of tasks
log = logging.getLogger("dmo")


class ComputedRows(RowsOf):
    """Rows of a dask array that workers compute when they use them.

    A worker that computes a slow block again keeps a copy of the block on its disk until the fit ends.
    """

    name: str  # name of the copies, empty outside of a fit

    def __init__(self, source: Rows, view: str, until: ExitStack | None):
        super().__init__(source)
        self.__dict__["name"] = "" if until is None else f"dmo-{uuid.uuid4().hex}"
        log.info("view %r: the workers compute its %s with dask where they use them", view, amount(_bytes(source)))
        if until is not None:
            until.callback(current_client().run, _remove, self.name, on_error="ignore")

    def __getitem__(self, where: slice) -> Block:
        client = None if in_task() else current_client()
        if client is not None:
            return rows(client.compute(self.source[where]).result())
        return self._copied(where) if self.name and in_task() else rows(self.source, where)

    def _copied(self, where: slice) -> Block:
        """Read the copy of a block on this worker; without one, compute the block, and copy it the second time."""
        from distributed import get_worker

        folder = Path(get_worker().local_directory)
        place = folder / f"{self.name}-{where.start}-{where.stop}.npy"
        second = place.exists()
        if second and place.stat().st_size:
            return np.load(place, allow_pickle=False)  # type: ignore[no-any-return]
        began = time.monotonic()
        block: Any = rows(self.source, where)
        slow = isinstance(block, np.ndarray) and block.nbytes < _FAST * (time.monotonic() - began)
        if slow and not second:
            place.touch()
        elif slow and block.nbytes < _SPARE * shutil.disk_usage(folder).free:
            part = place.with_suffix(f".{uuid.uuid4().hex}")  # Another thread may copy the same block.
            with part.open("wb") as file:
                np.save(file, block)
            os.replace(part, place)
        return block  # type: ignore[no-any-return]


def _remove(name: str, dask_worker: Any) -> None:
    for place in Path(dask_worker.local_directory).glob(f"{name}-*"):
        place.unlink(missing_ok=True)


def readable(source: Any, view: str, until: ExitStack | None) -> Rows:
    """Convert a dask array to rows that workers read: to the Zarr array that it consists of, or to `ComputedRows`."""
    layers = getattr(source.dask, "layers", {})
    stored: Any = next(iter(layers.get(f"original-{source.name}", {}).values()), None)
    whole = len(layers) == 2 and type(stored).__module__.startswith("zarr.") and stored.shape == source.shape
    return stored if whole else ComputedRows(source, view, until)  # type: ignore[no-any-return]


def _bytes(source: Rows) -> float:
    return float(np.prod(source.shape)) * np.dtype(source.dtype).itemsize


def on_workers(name: str, read: Callable[[np.ndarray], Any], source: Rows, index: np.ndarray) -> Any:
    """Call `read` with row indices and stack its results, on the workers if the rows of a source are read in chunks."""
    base, own = numbered(source)
    lazy = hasattr(base, "compute")
    chunked = bool(getattr(base, "chunks", None)) or hasattr(base, "block")
    if not chunked or not len(index) or in_task() or current_client() is None or not (lazy or _bytes(base) >= _WORTH):
        return read(index)
    places = index if own is None else own[index]
    order = np.argsort(places, kind="stable")
    chunks = places[order] // chunk_rows(base)
    groups = chunks // max(1, -(-int(chunks[-1] - chunks[0] + 1) // _PARTS))
    runs = np.split(index[order], np.flatnonzero(np.diff(groups)) + 1)
    found = [part for _, part in each(name, partial(_read_run, read, runs), range(len(runs)))]
    return stacked(found)[np.argsort(order)]


def _read_run(read: Callable[[np.ndarray], Any], runs: Sequence[np.ndarray], number: int) -> Any:
    return read(runs[number])


def read_sample(source: Rows, index: np.ndarray) -> Block:
    """Read the rows at `index`, which workers select if the rows of the source are read in chunks."""
    return on_workers("sampled rows", partial(sampled, source), source, index)  # type: ignore[no-any-return]


def hashes(source: Rows, exact: bool = False) -> np.ndarray:
    """Hash every row of a source as `row_hashes` does, on the workers if the rows are read in chunks."""
    index = np.arange(source.shape[0])
    return on_workers("hashes of rows", partial(_hashed, source, exact), source, index)  # type: ignore[no-any-return]


def _hashed(source: Rows, exact: bool, index: np.ndarray) -> np.ndarray:
    return row_hashes(Subset(source, index), exact)
