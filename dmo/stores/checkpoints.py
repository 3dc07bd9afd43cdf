"""Checkpoints of long computations, from which an interrupted program resumes.

Within a `with checkpoints(folder)` block, each long iteration saves its state under a name that contains a hash of its
inputs. A run with the same data and parameters resumes where the interrupted run stopped, and its results are equal bit
for bit. A run with other data or parameters starts from the beginning.

Two generations of each state exist. A save overwrites the older generation, so a complete state with valid checksums
exists at every moment. The results of finished iterations are kept until the block ends successfully, because a later
iteration may fail. The end of the block also removes the states of earlier runs with other data or parameters, unless
they changed during the block, because then another run still uses them.
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
"""Minimum computing time between two saves, as a multiple of the duration of a save."""
_STATE = re.compile(r"[a-z]+-[0-9a-f]{16}\.[01]")  # names of stores with saved states
_SPEED, _LEAST = 2e8, 0.02  # assumed writing speed in bytes per second, and minimum duration of a save in seconds
Arrays: TypeAlias = dict[str, np.ndarray]
log = logging.getLogger("dmo")


@dataclass
class _Place:
    folder: str
    seconds: float
    touched: set[str] = field(default_factory=set)  # names of the stores to remove if the `checkpoints` block succeeds

    @cached_property
    def found(self) -> set[str]:
        """Names of the stores in the folder at the first access of this property."""
        return set(Folder.at(self.folder).names())

    def root(self, name: str) -> bytes | None:
        """Return the content of the root document of a store, which is different after every save."""
        return Folder.at(f"{self.folder}/{name}").get("zarr.json")

    def states(self) -> dict[str, bytes | None]:
        """Return the current root documents of the states that existed when the `checkpoints` block began, by name."""
        return {name: self.root(name) for name in self.found if _STATE.fullmatch(name)}

    @cached_property
    def room(self) -> float:
        """Number of bytes that can still be used for final results: initially a quarter of the free disk space."""
        place = Folder.at(self.folder)
        if not place.is_local:
            return np.inf
        path = Path(place.url)
        return shutil.disk_usage(next(part for part in (path, *path.parents) if part.exists())).free / 4

    def remove(self, name: str) -> None:
        try:
            Folder.at(self.folder).delete_tree(name)
        except OSError as error:
            log.warning("%s/%s is no longer needed and cannot be removed: %s", self.folder, name, error)


_place: ContextVar[_Place | None] = ContextVar("dmo_checkpoints", default=None)


@contextmanager
def checkpoints(folder: str | None, seconds: float | None = None) -> Iterator[None]:
    """Save the states and results of long iterations in `folder` until the `with` block ends successfully."""
    # Saving states takes at most about 2 % of the computing time. The result of an iteration is saved if a state of the
    # iteration was saved, or if the iteration took 50 times as long as saving is expected to take.
    place = None if folder is None else _Place(folder.rstrip("/"), SECONDS if seconds is None else seconds)
    # In nested `checkpoints` blocks, only the outermost block removes the states of earlier runs.
    before = {} if place is None or _place.get() is not None else place.states()
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
    """Treat this block as one step of a longer computation.

    If the block saved states, `save` is called to save the longer computation before these states are removed.
    """
    place = _place.get()
    with checkpoints(None if place is None else place.folder, None if place is None else place.seconds):
        yield
        inside = _place.get()
        if inside is not None and inside.touched:
            save()


def keeps_states() -> bool:
    return _place.get() is not None


class Checkpoint:
    """Saved state of one iteration. Outside a `checkpoints` block, nothing is saved.

    Loaded arrays have their original memory order (C or Fortran), because the last bits of products depend on it.
    """

    def __init__(self, kind: str, configuration: Callable[[], str] | None):
        self._place = None if configuration is None else _place.get()
        self._kind, self._describe = kind, configuration
        self._began = self._last = time.monotonic()
        self._wait = 0.0 if self._place is None else self._place.seconds
        self._serial = 0  # number of the last save; even and odd saves have different names

    @cached_property
    def _configuration(self) -> str:
        return "" if self._describe is None else self._describe()

    def _name(self, serial: int) -> str:
        return f"{self._kind}-{self._configuration[:16]}.{serial % 2}"

    def load(self) -> tuple[Arrays, dict[str, Any]] | None:
        """Load the arrays and the JSON dictionary of the newest complete generation, or return None."""
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
        except FileNotFoundError:  # the earlier run was interrupted while the folder was still empty
            return None
        except stores.StoreError as error:
            log.warning("%s: cannot use a saved state, trying an older one: %s", self._kind, error)
            return None

    def due(self) -> bool:
        return self._place is not None and time.monotonic() - self._last >= self._wait

    def save(self, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Save the arrays and the JSON dictionary as the next generation, or log a warning if this fails."""
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
            # `save_model` would show a progress bar at every save, so run it in an empty context, which has no progress
            # bar.
            Context().run(stores.save_model, f"{place.folder}/{name}", stored, about | {"meta": dict(meta)})
        except (OSError, stores.StoreError) as error:
            log.warning("%s: cannot save its state: %s", self._kind, error)
        else:
            self._serial += 1
        self._last = time.monotonic()
        self._wait = max(place.seconds, SHARE * (self._last - began)) if place.seconds else 0.0

    def finish(self, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Replace the state with the final result, or remove it if the result is quick to recompute or too large."""
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
