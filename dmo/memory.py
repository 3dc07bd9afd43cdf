"""Cache of intermediate results that several fits share, which is active in the context `remembering()`.

The key of a cached result includes a hash of the rows from which it was computed. A fit therefore never uses results
that were computed from rows outside its training data.
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
from dmo.errors import UserError, amount
from dmo.hashing import digest, fingerprint

_SHARE = 4  # reciprocal of the maximum fraction of the free memory that the cache can use
FACTORS = 0.5
"""Fraction of the free memory for a factorization."""
Made = TypeVar("Made")


def free_memory() -> float:
    """Return the free memory in bytes, which is measured at most every 0.05 s because each measurement is slow."""
    return _asked(psutil.virtual_memory, int(20 * time.monotonic()))


def part_of_free(share: float) -> int:
    """Return a fraction of the free memory in bytes."""
    return int(share * free_memory())


def fits(nbytes: float, share: float = 1.0) -> bool:
    """Check if data of this size need at most a fraction of the free memory."""
    return nbytes <= share * free_memory()


def require(nbytes: float, share: float, what: str, fix: str) -> None:
    """Raise a UserError if data need more than a fraction of the free memory."""
    free = free_memory()
    if nbytes > share * free:
        raise UserError(f"{what} need {amount(nbytes)}, {amount(free)} are free; {fix}")


@lru_cache(maxsize=1)
def _asked(ask: Callable[[], Any], when: int) -> float:
    return float(ask().available)


@dataclass(eq=False)
class Memory:
    """Cache of results, which removes the least recently used results if it exceeds its maximum size."""

    room: float  # maximum size of the cache in bytes
    _taken: float = 0.0
    _kept: OrderedDict[Hashable, tuple[float, Any]] = field(default_factory=OrderedDict)
    _last: dict[str, tuple[Hashable, Any]] = field(default_factory=dict)
    _names: dict[int, tuple[Any, str]] = field(default_factory=dict)
    _lock: Any = field(default_factory=RLock)

    def get(self, make: Callable[[], Made], nbytes: float, key: Hashable) -> Made:
        """Return the cached result for a key, or compute it with `make`; unhashable keys are not cached."""
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
        """Return the large result of `make`, of which only the latest is cached for each `place`.

        The previous result is removed before `make` is called, because both may not fit in memory.
        """
        found = self._last.get(place)
        if found is None or found[0] != key:
            del found
            self._last.pop(place, None)
            found = self._last[place] = key, make()
        return found[1]  # type: ignore[no-any-return]

    def name(self, source: Rows) -> str:
        """Compute a hash of the contents of rows, which is cached so that the rows are read only once."""
        known = self._names.get(id(source))
        if known is None or known[0]() is not source:
            part = isinstance(source, Subset)
            found = digest(self.name(source.source), np.asarray(source.index)) if part else fingerprint(source)  # type: ignore[attr-defined]
            try:
                known = self._names[id(source)] = weakref.ref(source), found
            except TypeError:  # Objects that do not support weak references cannot be cached.
                return found
        return known[1]


_memory: ContextVar[Memory | None] = ContextVar("dmo_memory", default=None)
_compared: ContextVar[float | None] = ContextVar("dmo_compared", default=None)


@contextmanager
def remembering(factorizations: float | None = None) -> Iterator[Memory]:
    """Cache the results of `remembered` until the outermost context ends.

    `factorizations` is the result of `compared` inside the context.
    """
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
    """Return the number of factorizations per kernel in a search that only compares scores, otherwise None."""
    return _compared.get()


def memory() -> Memory | None:
    """Return the active cache, or None outside the context `remembering()`."""
    return _memory.get()


def remembered(make: Callable[[], Made], nbytes: float, key: Callable[[Memory], Hashable]) -> Made:
    """Return the result of `make`, from the active cache if there is one; `key` computes the key of the result."""
    own = _memory.get()
    return make() if own is None else own.get(make, nbytes, key(own))
