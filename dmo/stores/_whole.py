"""Arrays that are written in one go: labels, names, models; their checksums stand in the configuration of the store."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec
from zarr.storage import MemoryStore

from dmo.stores._arrays import CRC_BYTES, SEPARATOR, DenseArray, Index, ManifestEntry, checksum, read_rows
from dmo.stores._errors import StoreError, writing
from dmo.stores._folder import Folder

CHUNK_BYTES = 64 << 20


@dataclass(frozen=True, eq=False)
class Whole:
    """An array in memory, ready to be written: its metadata, its checksums, and its values or encoded strings."""

    name: str
    shape: Index
    dtype: str
    checksums: list[int]
    metadata: bytes
    source: tuple[DenseArray, np.ndarray] | bytes

    def to_dict(self) -> dict[str, Any]:
        return {"shape": list(self.shape), "dtype": self.dtype, "checksums": self.checksums}

    def write(self, folder: Folder) -> None:
        with writing(folder.url, f"array '{self.name}'"):
            folder.put(f"{self.name}/zarr.json", self.metadata)
            if isinstance(self.source, bytes):
                folder.put(f"{self.name}/c.0", self.source)
                return
            array, values = self.source
            for index, chunk in _chunks(array, values):
                array.write(index, chunk)


def dense(folder: Folder, name: str, values: np.ndarray, dims: tuple[str, ...] | None = None) -> Whole:
    """A numeric array of any shape, in chunks of at most 64 MiB along its first axis."""
    values = np.ascontiguousarray(values).reshape(values.shape)
    array = _layout(folder, name, values.shape, values.dtype, dims)
    sums = [array.encode(index, chunk)[1].checksum for index, chunk in _chunks(array, values)]
    return Whole(name, values.shape, array.dtype.name, sums, array.metadata(), (array, values))


def strings(folder: Folder, name: str, values: Sequence[str], dimension: str) -> Whole:
    """A list of strings."""
    metadata, chunk = _encode_strings(values, dimension)
    return Whole(
        name, (len(values),), "string", [checksum(np.frombuffer(chunk, np.uint8)[:-CRC_BYTES])], metadata, chunk
    )


def read_dense(folder: Folder, name: str, known: Mapping[str, Any]) -> np.ndarray:
    """The array that `known` (from `Whole.to_dict`) describes; StoreError if it is missing or damaged."""
    array = _layout(folder, name, tuple(known["shape"]), np.dtype(known["dtype"]))
    if len(known["checksums"]) != math.prod(array.grid):
        raise StoreError(f"{folder.url}: array '{name}' has {len(known['checksums'])} checksums; make the store again")
    entries = np.zeros((*array.grid, 2), dtype=np.int64)
    for index, crc in zip(array.indices(), known["checksums"], strict=True):
        entries[index] = ManifestEntry(crc, 0)
    if not array.shape:
        return array.read((), ManifestEntry(known["checksums"][0], 0))
    return read_rows(array, entries, 0, array.shape[0]) if 0 not in array.shape else np.empty(array.shape, array.dtype)


def read_strings(folder: Folder, name: str, known: Mapping[str, Any]) -> list[str]:
    """The strings that `known` describes; StoreError if they are missing or damaged."""
    chunk = folder.get(f"{name}/c.0")
    if chunk is None:
        raise _lost(folder, name, "are missing")
    if checksum(np.frombuffer(chunk, np.uint8)[:-CRC_BYTES]) != known["checksums"][0]:
        raise _lost(folder, name, "fail their checksum")
    found = _decode_strings(chunk[:-CRC_BYTES])
    if found is None or len(found) != math.prod(known["shape"]):
        raise _lost(folder, name, f"are not {math.prod(known['shape'])} texts")
    return found


def _lost(folder: Folder, name: str, reason: str) -> StoreError:
    cure = f"restore the files of {name} from a copy or make the store again"
    return StoreError(f"{folder.url}: the strings '{name}' {reason}; {cure}")


def _layout(
    folder: Folder, name: str, shape: Index, dtype: np.dtype, dims: tuple[str, ...] | None = None
) -> DenseArray:
    row_bytes = max(int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize, 1)
    rows = max(1, min(shape[0], CHUNK_BYTES // row_bytes)) if shape else 0
    chunk = (rows, *(max(length, 1) for length in shape[1:])) if shape else ()
    return DenseArray(folder, name, f"array '{name}'", shape, chunk, dtype.newbyteorder("<"), dims)


def _chunks(array: DenseArray, values: np.ndarray) -> list[tuple[Index, np.ndarray]]:
    size = array.chunk[0] if array.chunk else 1
    return [(index, values[index[0] * size : (index[0] + 1) * size] if index else values) for index in array.indices()]


def _encode_strings(values: Sequence[str], dimension: str) -> tuple[bytes, bytes]:
    """zarr.json and the only chunk of a 1-d Zarr array of strings."""
    memory: dict[str, Any] = {}
    array = zarr.create_array(
        MemoryStore(memory),
        shape=(len(values),),
        chunks=(max(len(values), 1),),
        dtype="string",
        compressors=[Crc32cCodec()],
        dimension_names=(dimension,),
        chunk_key_encoding=SEPARATOR,  # type: ignore[arg-type]
        config={"write_empty_chunks": True},
    )
    array[:] = np.array(values, dtype=object)
    return memory["zarr.json"].to_bytes(), memory["c.0"].to_bytes()


def _decode_strings(chunk: bytes) -> list[str] | None:
    """The strings of a chunk of `_encode_strings`: their number, then the length and UTF-8 bytes of each; None where it
    is something else."""
    count, at, found = int.from_bytes(chunk[:4], "little"), 4, []
    for _ in range(count):
        length = int.from_bytes(chunk[at : at + 4], "little")
        if at + 4 + length > len(chunk):
            return None
        try:
            found.append(chunk[at + 4 : at + 4 + length].decode())
        except UnicodeDecodeError:
            return None
        at += 4 + length
    return found if at == len(chunk) else None
