"""What many fits have in common, built once: inside `remembering()` results are kept by all that they follow from.

Rows go into a name by their contents, so that nothing comes from rows that a fit has not been given.
"""

from __future__ import annotations

import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from threading import RLock
from typing import Any, TypeVar

import numpy as np
import psutil

from dmo.blocks import Rows, Subset
from dmo.hashing import digest, fingerprint

_SHARE = 4  # of the free memory that is kept, one part in so many
Made = TypeVar("Made")


def free_memory() -> float:
    """Bytes that are free, as they were at most .05 s ago: to ask four times took a quarter of a fit of 50 rows."""
    return _asked(psutil.virtual_memory, int(20 * time.monotonic()))


@lru_cache(maxsize=1)
def _asked(ask: Callable[[], Any], when: int) -> float:
    return float(ask().available)


@dataclass(eq=False)
class Memory:
    """Results by what they follow from; those that nobody has asked for longest make room."""

    room: float  # bytes
    _taken: float = 0.0
    _kept: OrderedDict[Hashable, tuple[float, Any]] = field(default_factory=OrderedDict)
    _last: dict[str, tuple[Hashable, Any]] = field(default_factory=dict)
    _names: dict[int, tuple[Any, str]] = field(default_factory=dict)
    _lock: Any = field(default_factory=RLock)

    def get(self, make: Callable[[], Made], nbytes: float, key: Hashable) -> Made:
        """What `make` makes, or made before; of what cannot be told apart always anew."""
        try:
            hash(key)
        except TypeError:
            return make()
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][1]  # type: ignore[no-any-return]
        made = make()
        with self._lock:
            if key not in self._kept:
                self._kept[key] = nbytes, made
                self._taken += nbytes
            while self._taken > self.room:
                self._taken -= self._kept.popitem(last=False)[1][0]
        return made

    def latest(self, make: Callable[[], Made], place: str, key: Hashable) -> Made:
        """The same of what is large and soon of no use: what was in its place makes room before it is made."""
        found = self._last.get(place)
        if found is None or found[0] != key:
            del found
            self._last.pop(place, None)
            found = self._last[place] = key, make()
        return found[1]  # type: ignore[no-any-return]

    def name(self, source: Rows) -> str:
        """What tells the contents of rows apart; asked again of the same object, they are not read again."""
        known = self._names.get(id(source))
        if known is None or known[0]() is not source:
            part = isinstance(source, Subset)
            found = digest(self.name(source.source), np.asarray(source.index)) if part else fingerprint(source)  # type: ignore[attr-defined]
            try:
                known = self._names[id(source)] = weakref.ref(source), found
            except TypeError:  # a container of others that takes no such references
                return found
        return known[1]


_memory: ContextVar[Memory | None] = ContextVar("dmo_memory", default=None)
_compared: ContextVar[float | None] = ContextVar("dmo_compared", default=None)


@contextmanager
def remembering(factorizations: float | None = None) -> Iterator[Memory]:
    """Keep what `remembered` makes until the outermost such block ends; `factorizations`: see `compared`."""
    own = _memory.get()
    if own is None:
        own = Memory(free_memory() / _SHARE)
    tokens = _memory.set(own), _compared.set(factorizations)
    try:
        yield own
    finally:
        _memory.reset(tokens[0])
        _compared.reset(tokens[1])


def compared() -> float | None:
    """Of fits whose scores are only compared, factorizations that a kernel will take; None of all others."""
    return _compared.get()


def memory() -> Memory | None:
    """The memory of this context; None outside of `remembering`."""
    return _memory.get()


def remembered(make: Callable[[], Made], nbytes: float, key: Callable[[Memory], Hashable]) -> Made:
    """What `make` makes, once inside `remembering`; what it follows from is asked for there alone."""
    own = _memory.get()
    return make() if own is None else own.get(make, nbytes, key(own))
