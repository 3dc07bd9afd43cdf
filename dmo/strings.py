"""Immutable sequences of strings that are stored in a single buffer to save memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Any, overload

import numpy as np

_BATCH = 4096


class Strings(Sequence[str]):
    """Immutable sequence of strings, which needs 8 to 12 bytes per string in addition to the UTF-8 text.

    A list needs about 60 bytes. The sequence can be indexed by slices, without a copy if the step is 1, and by arrays.
    """

    # The buffer has the format of Zarr's codec vlen-utf8: the number of strings, then the length and text of each one.

    def __init__(self, chunk: np.ndarray, starts: np.ndarray):
        self.chunk, self._starts = chunk, starts

    @classmethod
    def of(cls, values: Iterable[Any]) -> Strings:
        """Create a sequence from the text of each value."""
        if isinstance(values, cls):
            return values
        rest, data, lengths = iter(values), bytearray(4), [np.zeros(0, np.int64)]
        while texts := [str(value).encode() for value in islice(rest, _BATCH)]:
            data += b"".join(part for text in texts for part in (len(text).to_bytes(4, "little"), text))
            lengths.append(np.fromiter(map(len, texts), np.int64, len(texts)))
        ends = np.cumsum(np.concatenate(lengths) + 4)
        data[:4] = len(ends).to_bytes(4, "little")
        return cls(np.frombuffer(data, np.uint8), np.append(8, ends + 8).astype(_offsets(len(data))))

    @classmethod
    def parse(cls, chunk: np.ndarray) -> Strings | None:
        """Create a sequence from a chunk of Zarr's codec vlen-utf8; return None if the chunk is invalid."""
        data: Any = chunk.data
        count, at = int.from_bytes(data[:4], "little"), 4
        if 4 + 4 * count > len(data):
            return None
        starts = np.empty(count + 1, _offsets(len(data)))
        step = 4 + int.from_bytes(data[4:8], "little")
        if count and len(data) == 4 + count * step and (chunk[4:].reshape(count, step)[:, :4] == chunk[4:8]).all():
            starts[:], at = np.arange(8, len(data) + 5, step), len(data)  # Strings of equal length need no loop.
        else:
            for i in range(count):
                starts[i] = at = at + 4
                at += int.from_bytes(data[at - 4 : at], "little")
                if at > len(data):
                    return None
            starts[count] = at + 4
        found = cls(chunk, starts)
        try:
            valid = at == len(data) and all(len(some) >= 0 for some in found._batches())
        except UnicodeDecodeError:
            return None
        return found if valid else None

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, where: int) -> str: ...
    @overload
    def __getitem__(self, where: slice | np.ndarray) -> Strings: ...
    def __getitem__(self, where: Any) -> Any:
        if isinstance(where, slice):
            start, stop, step = where.indices(len(self))
            if step == 1:
                return Strings(self.chunk, self._starts[start : max(start, stop) + 1])
            where = np.arange(start, stop, step)
        if isinstance(where, np.ndarray):
            return Strings.of(self._text(row) for row in where.tolist())
        return self._text(range(len(self))[where])

    def _text(self, row: int) -> str:
        return self.chunk[self._starts[row] : self._starts[row + 1] - 4].tobytes().decode()

    def _batches(self) -> Iterator[list[str]]:
        """Iterate over the strings in lists of fixed length, which is faster than single strings."""
        for first in range(0, len(self), _BATCH):
            ends = self._starts[first : first + _BATCH + 1].tolist()
            text = self.chunk[ends[0] : ends[-1]].tobytes()
            yield [text[a - ends[0] : b - 4 - ends[0]].decode() for a, b in pairwise(ends)]

    def __iter__(self) -> Iterator[str]:
        return (text for some in self._batches() for text in some)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:6]))
        return f"[{shown}{', ...' if len(self) > 6 else ''}]"

    def encoded(self) -> np.ndarray:
        """Encode the strings as a chunk of Zarr's codec vlen-utf8, an array of bytes."""
        if len(self._starts) > 1 and self._starts[0] == 8 and self._starts[-1] == len(self.chunk) + 4:
            return self.chunk
        head = np.frombuffer(len(self).to_bytes(4, "little"), np.uint8)
        return np.concatenate([head, self.chunk[self._starts[0] - 4 : self._starts[-1] - 4]])


def _offsets(size: int) -> type[np.signedinteger]:
    """Choose the integer type for positions in a buffer of `size` bytes."""
    return np.int32 if size < 2**31 - 8 else np.int64
