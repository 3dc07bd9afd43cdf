"""Checkpoints of long computations: the state of every long iteration, and the results of those that were finished.

Inside `checkpoints(folder)` each pass, solve and sweep has a name of its own, from a hash of all that it depends on, so
a run with the same input and parameters goes on where an interrupted one stopped, bit for bit, and one with others begins
anew. A state has two generations: the new one is written, with checksums, to the place of the older one, so that a whole
one is there at every moment. What is finished stays until the block ends well, since a later part may die. Then also the
states that earlier runs with other input or parameters left are removed, since nobody else would; those of a run that goes
on beside this one change meanwhile, and stay.
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
"""The least time between two saves of one state."""
SHARE = 50
"""Saving may take one part in so many of the time."""
_STATE = re.compile(r"[a-z]+-[0-9a-f]{16}\.[01]")  # names that `Checkpoint` gives
_SPEED, _LEAST = 2e8, 0.02  # bytes per second of a save, and the seconds of a small one, where none was timed yet
Arrays: TypeAlias = dict[str, np.ndarray]
log = logging.getLogger("dmo")


@dataclass
class _Place:
    folder: str
    seconds: float
    touched: set[str] = field(default_factory=set)  # names of stores to remove at the end

    @cached_property
    def found(self) -> set[str]:
        """Names in the folder, as they were when first asked for."""
        return set(Folder.at(self.folder).names())

    def root(self, name: str) -> bytes | None:
        """The root document of a store; every save changes it."""
        return Folder.at(f"{self.folder}/{name}").get("zarr.json")

    def states(self) -> dict[str, bytes | None]:
        """The states that were there when first asked for, with their root documents as they are."""
        return {name: self.root(name) for name in self.found if _STATE.fullmatch(name)}

    @cached_property
    def room(self) -> float:
        """Bytes that finished results may take: a quarter of what is free on a local disk."""
        place = Folder.at(self.folder)
        if not place.is_local:
            return np.inf
        path = Path(place.url)
        return shutil.disk_usage(next(part for part in (path, *path.parents) if part.exists())).free / 4

    def remove(self, name: str) -> None:
        """Remove a store; what cannot be removed stays, with a warning."""
        try:
            Folder.at(self.folder).delete_tree(name)
        except OSError as error:
            log.warning("%s/%s is no longer needed and cannot be removed: %s", self.folder, name, error)


_place: ContextVar[_Place | None] = ContextVar("dmo_checkpoints", default=None)


@contextmanager
def checkpoints(folder: str | None, seconds: float | None = None) -> Iterator[None]:
    """Keep what long passes, solves and sweeps in this block have done, until the block ends well."""
    # Saving takes at most about 2 % of the time. A finished solve takes n x k x 8 bytes, one that was quicker than 50
    # times its saving takes none, and all together at most a quarter of a local disk's free space.
    place = None if folder is None else _Place(folder.rstrip("/"), SECONDS if seconds is None else seconds)
    before = {} if place is None or _place.get() is not None else place.states()  # of the outermost block
    token = _place.set(place)
    try:
        yield
    finally:
        _place.reset(token)
    if place is not None:
        left = {name for name, root in before.items() if place.root(name) == root} - place.touched
        if left:
            log.info("%s: states of other runs are removed: %s", place.folder, ", ".join(sorted(left)))
        for name in sorted(place.touched | left):
            place.remove(name)


@contextmanager
def part_of_more(save: Callable[[], None]) -> Iterator[None]:
    """Treat this block as a part of a longer computation, whose own state replaces what the part kept."""
    place = _place.get()
    with checkpoints(None if place is None else place.folder, None if place is None else place.seconds):
        yield
        inside = _place.get()
        if inside is not None and inside.touched:
            save()


def keeps_states() -> bool:
    """Whether there is a `checkpoints` block around this."""
    return _place.get() is not None


class Checkpoint:
    """The state of one iteration in the `checkpoints` block around it; without one, nothing is kept at no cost.

    Arrays come back with the memory order that they had (C or Fortran), on which the last bits of products depend.
    """

    def __init__(self, kind: str, configuration: Callable[[], str] | None):
        self._place = None if configuration is None else _place.get()
        self._kind, self._describe = kind, configuration
        self._began = self._last = time.monotonic()
        self._wait = 0.0 if self._place is None else self._place.seconds
        self._serial = 0  # of the newest generation that is there; it lies in the place 0 or 1 of its parity

    @cached_property
    def _configuration(self) -> str:
        return "" if self._describe is None else self._describe()

    def _name(self, serial: int) -> str:
        return f"{self._kind}-{self._configuration[:16]}.{serial % 2}"

    def load(self) -> tuple[Arrays, dict[str, Any]] | None:
        """Load the newest whole generation that an earlier run left."""
        place = self._place
        if place is None or not any(name.startswith(f"{self._kind}-") for name in place.found):
            return None
        whole = [found for slot in (0, 1) if (found := self._read(place, self._name(slot))) is not None]
        if not whole:
            return None
        arrays, meta = max(whole, key=lambda found: found[1]["serial"])
        if meta["configuration"] != self._configuration:
            raise stores.StoreError(
                f"{place.folder}/{self._name(meta['serial'])}: holds the state of another {self._kind} (other features, "
                f"labels or parameters); delete it, or run with the arguments that it was begun with"
            )
        self._serial = int(meta["serial"])
        log.info("%s: going on from a state that an earlier run left", self._kind)
        return {name: value.T if name in meta["fortran"] else value for name, value in arrays.items()}, meta["meta"]

    def _read(self, place: _Place, name: str) -> tuple[Arrays, dict[str, Any]] | None:
        if name not in place.found:
            return None
        place.touched.add(name)
        try:
            return stores.load_model(f"{place.folder}/{name}")
        except FileNotFoundError:  # an empty folder: the run was interrupted as it began to write
            return None
        except stores.StoreError as error:
            log.warning(
                "%s: a saved state cannot be used, an older one is taken if there is one: %s", self._kind, error
            )
            return None

    def due(self) -> bool:
        """Find whether it is time to `save`."""
        return self._place is not None and time.monotonic() - self._last >= self._wait

    def save(self, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Write the next generation."""
        # Where the disk or another run with the same state is in the way, a warning says so, and the iteration goes
        # on unsaved.
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
            # in a context of its own, which shows no progress: a long run saves often
            Context().run(stores.save_model, f"{place.folder}/{name}", stored, about | {"meta": dict(meta)})
        except (OSError, stores.StoreError) as error:
            log.warning("%s: its state cannot be kept: %s", self._kind, error)
        else:
            self._serial += 1
        self._last = time.monotonic()
        self._wait = max(place.seconds, SHARE * (self._last - began)) if place.seconds else 0.0

    def finish(self, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Keep the result for what follows in the block, in place of the state; nothing where it was quick to find."""
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
