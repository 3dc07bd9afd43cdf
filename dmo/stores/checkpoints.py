"""Checkpoints of long computations: states of long iterations, and results of finished ones.

Inside `checkpoints(folder)`, each pass, solve and sweep has a unique name, derived from a hash of all its inputs. A run
with the same input and parameters therefore resumes where an interrupted run stopped, and its results are equal bit for
bit. A run with different input or parameters starts from the beginning. A state is kept in two generations. Each save
overwrites the older one, so one complete state, protected by checksums, exists at every moment. Finished results are
kept until the block ends successfully, because a later part may fail. At that point, states of earlier runs with
different input or parameters are also removed. States of runs that are still active change during the block, and are
kept.
"""

from __future__ import annotations

import logging
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from dmo import stores
from dmo.stores._folder import Folder

SECONDS = 30.0
"""Minimum number of seconds between two saves of a state."""
SHARE = 50
"""Saving may use at most 1 / SHARE of the time."""
_STATE = re.compile(r"[a-z]+-[0-9a-f]{16}\.[01]")  # names that `Checkpoint` uses
_SPEED, _LEAST = 2e8, 0.02  # assumed bytes per second of a save, and seconds of a small save
Arrays: TypeAlias = dict[str, np.ndarray]
log = logging.getLogger("dmo")


@dataclass
class _Place:
    folder: str
    seconds: float
    touched: set[str] = field(default_factory=set)  # names of the stores to remove at the end

    @cached_property
    def found(self) -> set[str]:
        """Names in the folder at the first access."""
        return set(Folder.at(self.folder).names())

    def root(self, name: str) -> bytes | None:
        """Return the root document of a store; it changes with every save."""
        return Folder.at(f"{self.folder}/{name}").get("zarr.json")

    def states(self) -> dict[str, bytes | None]:
        """Return the states that existed at the first access, with their current root documents."""
        return {name: self.root(name) for name in self.found if _STATE.fullmatch(name)}

    @cached_property
    def room(self) -> float:
        """Bytes available for finished results: a quarter of the free space of a local disk."""
        place = Folder.at(self.folder)
        if not place.is_local:
            return np.inf
        path = Path(place.url)
        return shutil.disk_usage(next(part for part in (path, *path.parents) if part.exists())).free / 4

    def remove(self, name: str) -> None:
        """Remove a store, or log a warning if it cannot be removed."""
        try:
            Folder.at(self.folder).delete_tree(name)
        except OSError as error:
            log.warning("%s/%s is no longer needed and cannot be removed: %s", self.folder, name, error)


_place: ContextVar[_Place | None] = ContextVar("dmo_checkpoints", default=None)


@contextmanager
def checkpoints(folder: str | None, seconds: float | None = None) -> Iterator[None]:
    """Keep the states and results of long passes, solves and sweeps in this block until it ends successfully."""
    # Saving uses at most about 2 % of the time. The result of a solve needs n x k x 8 bytes; it is kept if the
    # solve took at least 50 times as long as saving it, or if a state was saved before. All results together use at
    # most a quarter of a local disk's free space.
    place = None if folder is None else _Place(folder.rstrip("/"), SECONDS if seconds is None else seconds)
    before = {} if place is None or _place.get() is not None else place.states()  # only for the outermost block
    token = _place.set(place)
    try:
        yield
    finally:
        _place.reset(token)
    if place is not None:
        left = {name for name, root in before.items() if place.root(name) == root} - place.touched
        if left:
            log.info("%s: removing states of other runs: %s", place.folder, ", ".join(sorted(left)))
        for name in sorted(place.touched | left):
            place.remove(name)


@contextmanager
def part_of_more(save: Callable[[], None]) -> Iterator[None]:
    """Treat this block as a part of a longer computation, whose own state replaces the states of the part."""
    place = _place.get()
    with checkpoints(None if place is None else place.folder, None if place is None else place.seconds):
        yield
        inside = _place.get()
        if inside is not None and inside.touched:
            save()


def keeps_states() -> bool:
    """Check if a `checkpoints` block is active."""
    return _place.get() is not None


class Checkpoint:
    """State of one iteration in the surrounding `checkpoints` block; without a block, nothing is saved.

    Loaded arrays keep their memory order (C or Fortran), because the last bits of products depend on it.
    """

    def __init__(self, kind: str, configuration: Callable[[], str] | None):
        self._place = None if configuration is None else _place.get()
        self._kind, self._describe = kind, configuration
        self._began = self._last = time.monotonic()
        self._wait = 0.0 if self._place is None else self._place.seconds
        self._serial = 0  # of the newest generation; its parity selects the slot 0 or 1

    @cached_property
    def _configuration(self) -> str:
        return "" if self._describe is None else self._describe()

    def _name(self, serial: int) -> str:
        return f"{self._kind}-{self._configuration[:16]}.{serial % 2}"

    def load(self) -> tuple[Arrays, dict[str, Any]] | None:
        """Load the newest complete generation of an earlier run."""
        place = self._place
        if place is None or not any(name.startswith(f"{self._kind}-") for name in place.found):
            return None
        whole = [found for slot in (0, 1) if (found := self._read(place, self._name(slot))) is not None]
        if not whole:
            return None
        arrays, meta = max(whole, key=lambda found: found[1]["serial"])
        if meta["configuration"] != self._configuration:
            raise stores.StoreError(
                f"{place.folder}/{self._name(meta['serial'])}: contains the state of another {self._kind} (other "
                "features, labels or parameters); delete it, or run with the original arguments"
            )
        self._serial = int(meta["serial"])
        log.info("%s: resuming from the state of an earlier run", self._kind)
        return {name: value.T if name in meta["fortran"] else value for name, value in arrays.items()}, meta["meta"]

    def _read(self, place: _Place, name: str) -> tuple[Arrays, dict[str, Any]] | None:
        if name not in place.found:
            return None
        place.touched.add(name)
        try:
            return stores.load_model(f"{place.folder}/{name}")
        except FileNotFoundError:  # an empty folder: the run was interrupted before it wrote anything
            return None
        except stores.StoreError as error:
            log.warning("%s: cannot use a saved state, trying an older one: %s", self._kind, error)
            return None

    def due(self) -> bool:
        """Check if it is time to call `save`."""
        return self._place is not None and time.monotonic() - self._last >= self._wait

    def save(self, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Write the next generation."""
        # If the disk or another run with the same state prevents saving, log a warning and continue without a saved
        # state.
        place = self._place
        if place is None:
            return
        began = time.monotonic()
        name = self._name(self._serial + 1)
        fortran = [key for key, value in arrays.items() if value.flags.f_contiguous and not value.flags.c_contiguous]
        stored = {key: value.T if key in fortran else value for key, value in arrays.items()}
        place.touched.add(name)
        place.remove(name)
        about = {"configuration": self._configuration, "serial": self._serial + 1, "fortran": fortran}
        try:
            # Save in an empty context, which shows no progress, because a long run saves often.
            Context().run(stores.save_model, f"{place.folder}/{name}", stored, about | {"meta": dict(meta)})
        except (OSError, stores.StoreError) as error:
            log.warning("%s: cannot save its state: %s", self._kind, error)
        else:
            self._serial += 1
        self._last = time.monotonic()
        self._wait = max(place.seconds, SHARE * (self._last - began)) if place.seconds else 0.0

    def finish(self, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Replace the state by the result for later parts of the block; skip results that are quick to recompute."""
        place = self._place
        if place is None:
            return
        size = sum(value.nbytes for value in arrays.values())
        slow = time.monotonic() - self._began >= SHARE * (_LEAST + size / _SPEED)
        if (self._serial or slow or not place.seconds) and size <= place.room:
            place.room -= size
            self.save(arrays, meta)
            if self._serial:
                place.remove(self._name(self._serial - 1))
        elif self._serial:
            for slot in (0, 1):
                place.remove(self._name(slot))
