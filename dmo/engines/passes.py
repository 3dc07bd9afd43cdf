"""One pass over the rows of all views: factor rows block by block, added up as moments, in this process or on a cluster."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from dmo import stores
from dmo.blocks import Rows, row_blocks, rows
from dmo.cluster.workers import Broadcast, retried
from dmo.engines.moments import LABELS, Moments
from dmo.errors import UserError
from dmo.hashing import fingerprint
from dmo.lowrank import FeatureMap
from dmo.progress import stage
from dmo.stores.checkpoints import current_folder, keep_to_the_end

BLOCK = 2048
TASK_BLOCKS = 4  # blocks per task, at most
_SEGMENT = 16  # tasks between two checkpoints
_IN_TASK = 1 << 22  # bytes of labels that go with their task; more go to a worker by themselves
log = logging.getLogger("dmo")


@dataclass
class FeatureRows:
    """Raw factor rows (see `FeatureMap.raw`) of the blocks of `row_blocks(n, BLOCK)`, by view.

    `views`: view name -> row source of n rows; `maps`: view name -> fitted feature map.
    Blocks are kept for the next pass of this process while they take at most `limit` bytes in all, `nbytes` at present.
    """

    views: Mapping[str, Rows]
    maps: Mapping[str, FeatureMap]
    limit: int = 0
    nbytes: int = field(default=0, init=False)
    _kept: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict, init=False, repr=False)

    def __getitem__(self, block: slice) -> dict[str, Any]:
        found = self._kept.get((block.start, block.stop))
        if found is None:
            found = {view: feature_map.raw(rows(self.views[view], block)) for view, feature_map in self.maps.items()}
            if self.limit:
                size = sum(part.nbytes for part in found.values())
                if self.nbytes + size <= self.limit:
                    self._kept[block.start, block.stop] = found
                    self.nbytes += size
        return found


def collect_moments(
    raw: FeatureRows, Y: np.ndarray | None, folds: np.ndarray | None = None, client: Any = None
) -> list[Moments]:
    """Moments of [raw factor rows of every view, labels], one per fold (one in all without folds).

    Arguments: `raw`: the rows (the maps' `mixing` is left out: see `Moments.mixed`); `Y` n x L or None; `folds` (n integers
    0..k-1); `client`: a distributed.Client, to whose workers `raw` is sent as it is, or None for this process.
    Inside `resuming.checkpoints` the sums so far are kept, for a pass that was interrupted. Labels of 0 and 1 travel as
    bytes, those of a task with it.
    Memory: one block of rows and one Gram matrix per fold and worker; nothing n x anything.
    """
    n = next(iter(raw.views.values())).shape[0]
    n_folds = 1 if folds is None else int(folds.max()) + 1
    folder, checkpoint, configuration = current_folder(), None, ""
    if folder is not None and all(isinstance(m, FeatureMap) for m in raw.maps.values()):
        configuration = _digest(raw, Y, folds)
        name = f"pass-{configuration[:16]}"
        checkpoint = f"{folder}/{name}"
        keep_to_the_end(name)
    blocks = row_blocks(n, BLOCK)
    size = task_blocks(n)
    tasks = [blocks[i : i + size] for i in range(0, len(blocks), size)]
    total, done = _resume(checkpoint, configuration, n_folds)
    if done:
        log.info("pass over the rows: %d of %d blocks are summed already", done * size, len(blocks))
    job = (raw, n_folds)
    shared = Broadcast(client, job)
    Y = _narrow(Y) if client is not None and Y is not None else Y
    with stage("pass over the rows", len(blocks)) as advance:
        advance(done * size)
        while done < len(tasks):
            segment = tasks[done : done + (_SEGMENT if checkpoint or client is not None else 1)]
            if client is None:
                for part in segment:
                    total = _task(job, part, *_of_rows(part, Y, folds), total)
            else:
                new = _on_cluster(client, shared, segment, Y, folds)
                total = new if total is None else add_folds(total, new)
            done += len(segment)
            advance(sum(len(part) for part in segment))
            if checkpoint and total is not None:
                _save(checkpoint, configuration, total, done)
    if total is None:
        raise UserError("no rows to pass over; pass at least one sample")
    return total


def task_blocks(n: int) -> int:
    """Blocks per task of a pass over n rows: some sixteen tasks or more, and the same whatever the number of workers, so
    that sums do not depend on it."""
    return max(1, min(TASK_BLOCKS, n // (16 * BLOCK)))


def _narrow(Y: np.ndarray) -> np.ndarray:
    """Labels of 0 and 1 as bytes, others as they are."""
    return Y if Y.itemsize == 1 or not ((Y == 0) | (Y == 1)).all() else Y.astype(np.uint8)


def _of_rows(
    blocks: Sequence[slice], Y: np.ndarray | None, folds: np.ndarray | None
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Labels and folds of the rows of these blocks, which follow each other."""
    where = slice(blocks[0].start, blocks[-1].stop)
    return None if Y is None else Y[where], None if folds is None else folds[where]


def _digest(raw: FeatureRows, Y: np.ndarray | None, folds: np.ndarray | None) -> str:
    """SHA-256 of all that the sums depend on, the order of their columns included."""
    found = hashlib.sha256()
    for name, feature_map in raw.maps.items():
        arrays, meta = feature_map.to_arrays()
        found.update(json.dumps([name, fingerprint(raw.views[name]), meta], sort_keys=True, default=str).encode())
        for key, value in sorted(arrays.items()):
            found.update(
                f"{key} {fingerprint(np.atleast_1d(value)) if isinstance(value, np.ndarray) else fingerprint(value)}".encode()
            )
    for part in (Y, folds):
        found.update(b"none" if part is None else fingerprint(np.asarray(part)).encode())
    return found.hexdigest()


def add_folds(left: Sequence[Moments], right: Sequence[Moments]) -> list[Moments]:
    """Fold by fold sums of two lists of moments."""
    return [a + b for a, b in zip(left, right, strict=True)]


def _task(
    job: tuple[FeatureRows, int],
    blocks: Sequence[slice],
    Y: np.ndarray | None,
    folds: np.ndarray | None,
    before: Sequence[Moments] | None = None,
) -> list[Moments]:
    """Moments per fold of some blocks; `Y`, `folds`: of their rows; `before`: moments to go on from, used up."""
    raw, n_folds = job
    totals: list[Moments | None] = [None] * n_folds if before is None else list(before)
    for block in blocks:
        found = raw[block]
        where = slice(block.start - blocks[0].start, block.stop - blocks[0].start)
        for fold in range(n_folds):
            picked = slice(None) if folds is None else np.flatnonzero(folds[where] == fold)
            part: dict[str, Any] = dict(found) if n_folds == 1 else {name: mine[picked] for name, mine in found.items()}
            if Y is not None:
                part[LABELS] = np.ascontiguousarray(Y[where][picked], dtype=np.float32)
            old = totals[fold]
            totals[fold] = Moments.of(part) if old is None else old.absorb(part)
    return [total for total in totals if total is not None]


def _worker_task(
    job: tuple[FeatureRows, int], blocks: Sequence[slice], own: tuple[np.ndarray | None, np.ndarray | None]
) -> list[Moments]:
    with threadpool_limits(1):
        return _task(job, blocks, *own)


def _on_cluster(
    client: Any,
    shared: Broadcast,
    segment: Sequence[Sequence[slice]],
    Y: np.ndarray | None,
    folds: np.ndarray | None,
) -> list[Moments]:
    def work() -> list[Moments]:
        futures = []
        for part in segment:
            own: Any = _of_rows(part, Y, folds)
            if own[0] is not None and own[0].nbytes > _IN_TASK:
                own = client.scatter(own, hash=False)
            futures.append(client.submit(_worker_task, shared.future(), part, own, pure=False))
        while len(futures) > 1:
            odd = [futures[-1]] if len(futures) % 2 else []
            pairs = zip(futures[0:-1:2], futures[1::2], strict=False)
            futures = [client.submit(add_folds, a, b, pure=False) for a, b in pairs] + odd
        return futures[0].result()

    return retried(client, work, shared.forget)


def _resume(checkpoint: str | None, configuration: str, n_folds: int) -> tuple[list[Moments] | None, int]:
    if checkpoint is None:
        return None, 0
    try:
        arrays, meta = stores.load_model(checkpoint)
    except FileNotFoundError:
        return None, 0
    except stores.StoreError as error:
        log.warning("the pass begins anew, its checkpoint cannot be used: %s", error)
        return None, 0
    if meta["configuration"] != configuration or len(meta["folds"]) != n_folds:
        raise stores.StoreError(
            f"{checkpoint}: holds the sums of another pass (other features, labels or parameters); "
            f"delete it, or run with the arguments that it was begun with"
        )
    folds = [
        Moments.from_arrays({key: arrays[f"{i}/{key}"] for key in ("sums", "gram")}, part)
        for i, part in enumerate(meta["folds"])
    ]
    return folds, int(meta["done"])


def _save(checkpoint: str, configuration: str, folds: Sequence[Moments], done: int) -> None:
    arrays: dict[str, np.ndarray] = {}
    metas = []
    for i, moments in enumerate(folds):
        parts, meta = moments.to_arrays()
        arrays |= {f"{i}/{key}": value for key, value in parts.items()}
        metas.append(meta)
    stores.save_model(checkpoint, arrays, {"configuration": configuration, "folds": metas, "done": done})
