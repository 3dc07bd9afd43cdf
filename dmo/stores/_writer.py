"""Shared code of the store writers and readers: checks of arguments, small arrays, and records of finished blocks."""

from __future__ import annotations

import math
import os
import re
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from dmo.blocks import Block, first_entry, stored_values
from dmo.errors import UserError
from dmo.progress import stage
from dmo.stores._arrays import (
    CRC_BYTES,
    STEP,
    CsrArray,
    DenseArray,
    Index,
    Ledger,
    ManifestEntry,
    SparseArray,
    array_json,
    as_bytes,
    checksum,
    csr_of,
    group_json,
    read_rows,
    unseen,
)
from dmo.stores._folder import LOCK, Folder, StoreError, writing
from dmo.stores._lock import abandon, holder, own_token, release
from dmo.stores._schema import begin, existing_root, first_difference, origin_of, read_root, set_complete, sweep
from dmo.strings import Strings

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def check_name(name: str, what: str) -> str:
    """Return `name`; raise UserError if it cannot be the name of a folder and of a Zarr array on every system."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise UserError(
            f"{what} name {name!r} is not usable; start with a letter or digit, then letters, digits, '_', '-', '.'"
        )
    return name


def check_strings(name: str, given: Sequence[str], length: int | None) -> Strings:
    if length is None:
        raise UserError(f"{name} were passed without labels; pass labels as well")
    if len(given) != length:
        raise UserError(f"{name} has {len(given)} entries, needs {length}; pass one for each")
    return Strings.of(given)


def real_dtype(dtype: Any) -> np.dtype:
    """Return the little-endian form of a real dtype; raise TypeError if stores do not support it."""
    found = np.dtype(dtype)
    if found.kind not in "iufb" or found.itemsize > 8:
        raise TypeError(
            f"a store holds booleans, integers and floats of at most 8 bytes, got {found}; convert the rows"
        )
    return found.newbyteorder("<")


def check_count(name: str, value: Any) -> int:
    """Return `value` as an int; raise TypeError or UserError if the argument `name` is not a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be a whole number, got {value!r}; pass an int")
    if value < 1:
        raise UserError(f"{name} must be at least 1, got {value}; pass a positive number")
    return int(value)


def cast(values: Any, dtype: np.dtype, where: str) -> Any:
    """Convert an array or CSR matrix to `dtype`.

    Raise TypeError if the cast is not a "same_kind" cast, and UserError if an integer overflows.
    """
    if values.dtype == dtype:
        return values
    if not np.can_cast(values.dtype, dtype, casting="same_kind"):
        raise TypeError(
            f"{where} has dtype {values.dtype}, the store holds {dtype}; convert the rows before writing them"
        )
    with np.errstate(over="ignore"):
        changed = values.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(stored_values(values), stored_values(changed)):
        raise UserError(f"{where} contains integers beyond {dtype}; choose a wider dtype for the store")
    return changed


def check_values(
    values: np.ndarray | scipy.sparse.csr_array,
    where: str,
    first_row: int,
    positive: bool = False,
    missing: bool = False,
) -> None:
    """Raise UserError if a value is infinite, is NaN unless `missing`, or is negative if `positive`.

    The message contains the column and the row of the value. The first row of `values` has the number `first_row`.
    """
    stored = np.asarray(stored_values(values))
    wrong = np.isinf if missing else lambda cells: ~np.isfinite(cells)
    if stored.dtype.kind in "fc" and not _all_finite(stored) and wrong(stored).any():
        row, column, value = first_entry(values, wrong(stored))
        raise UserError(
            f"{where}, row {first_row + row}, column {column} is {value}; replace or drop values that are not finite"
        )
    if positive and stored.dtype.kind in "if" and stored.size and stored.min() < 0:
        row, column, value = first_entry(values, stored < 0)
        raise UserError(
            f"{where} is a histogram, but row {first_row + row}, column {column} is {value}; "
            "histograms are never negative, declare it with histogram=False"
        )


def _all_finite(stored: np.ndarray) -> bool:
    # A finite sum proves that all values are finite. The sum of finite values may overflow, so check each value
    # otherwise.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(stored.sum()):
            return True
    return bool(np.isfinite(stored).all())


CHUNK_BYTES = 64 << 20


@dataclass(frozen=True, eq=False)
class Whole:
    """Numeric array or encoded strings in memory, to be written to a store without dividing the array into blocks."""

    name: str
    shape: Index
    dtype: str
    checksums: list[int]
    metadata: bytes
    source: tuple[DenseArray, np.ndarray] | np.ndarray
    rows: int | None = None  # number of rows per chunk, or None for chunks of at most 64 MiB

    def members(self) -> dict[str, bytes]:
        return {self.name: self.metadata}

    def to_dict(self) -> dict[str, Any]:
        found = {"shape": list(self.shape), "dtype": self.dtype, "checksums": self.checksums}
        return found if self.rows is None else found | {"rows": self.rows}

    def write(self, folder: Folder) -> None:
        with writing(folder.url, f"array '{self.name}'"):
            folder.put(f"{self.name}/zarr.json", self.metadata)
            if isinstance(self.source, np.ndarray):
                folder.put(f"{self.name}/c.0", self.source, self.checksums[0].to_bytes(CRC_BYTES, "little"))
                return
            array, values = self.source
            for index, chunk in _chunks(array, values):
                array.write(index, chunk)


def dense(
    folder: Folder, name: str, values: np.ndarray, dims: tuple[str, ...] | None = None, rows: int | None = None
) -> Whole:
    """Prepare a numeric array for writing. Its chunks have `rows` rows, or at most 64 MiB if `rows` is None."""
    values = np.ascontiguousarray(values).reshape(values.shape)
    rows = None if rows is None or rows >= len(values) else rows
    array = _layout(folder, name, values.shape, values.dtype, dims, rows)
    sums = [array.encode(index, chunk)[1].checksum for index, chunk in _chunks(array, values)]
    return Whole(name, values.shape, array.dtype.name, sums, array.metadata(), (array, values), rows)


def whole(
    folder: Folder,
    name: str,
    values: Block,
    dims: tuple[str, ...] | None = None,
    rows: int | None = None,
    entries: int | None = None,
) -> Whole | WholeCsr:
    """Prepare an array in chunks of `rows` rows, or a CSR matrix in chunks of `entries` entries; None means 64 MiB."""
    return (
        dense(folder, name, values, dims, rows)
        if isinstance(values, np.ndarray)
        else csr(folder, name, values, entries)
    )


PARTS = ("indptr", "indices", "data")
"""Names of the arrays of a CSR matrix."""


@dataclass(frozen=True, eq=False)
class WholeCsr:
    """Sparse matrix in memory, to be written to a store in the layout of a csr_matrix in an AnnData file."""

    name: str
    shape: tuple[int, int]
    dtype: str
    parts: dict[str, Whole]

    def members(self) -> dict[str, bytes]:
        attributes = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": list(self.shape)}
        return {self.name: group_json(attributes)} | {whole.name: whole.metadata for whole in self.parts.values()}

    def to_dict(self) -> dict[str, Any]:
        parts = {part: whole.to_dict() for part, whole in self.parts.items()}
        return {"format": "csr", "shape": list(self.shape), **parts}

    def write(self, folder: Folder) -> None:
        with writing(folder.url, f"array '{self.name}'"):
            folder.put(f"{self.name}/zarr.json", self.members()[self.name])
        for whole in self.parts.values():
            whole.write(folder)


def csr(folder: Folder, name: str, matrix: scipy.sparse.csr_array, rows: int | None = None) -> WholeCsr:
    """Prepare a CSR matrix for writing. Its chunks have `rows` elements, or at most 64 MiB if `rows` is None."""
    parts = {part: dense(folder, f"{name}/{part}", getattr(matrix, part), rows=rows) for part in PARTS}
    return WholeCsr(name, matrix.shape, matrix.dtype.name, parts)


def strings(folder: Folder, name: str, values: Sequence[str], dimension: str) -> Whole:
    n, texts = len(values), Strings.of(values).encoded()
    metadata = array_json((n,), (max(n, 1),), "string", (dimension,), "", None)
    return Whole(name, (n,), "string", [checksum(texts)], metadata, texts)


def of_samples(
    folder: Folder, n: int, sample_ids: Sequence[str] | None, split: Sequence[str] | None
) -> dict[str, Whole]:
    given = {"sample": ("sample_ids", sample_ids), "split": ("split", split)}
    return {
        array: strings(folder, array, check_strings(name, texts, n), "sample")
        for array, (name, texts) in given.items()
        if texts is not None
    }


def read_dense(folder: Folder, name: str, known: Mapping[str, Any]) -> np.ndarray:
    """Read a numeric array with the description `known`; raise StoreError if it is missing or damaged."""
    array, entries = dense_chunks(folder, name, known)
    if not array.shape:
        return array.read((), ManifestEntry(known["checksums"][0], 0))
    return read_rows(array, entries, 0, array.shape[0]) if 0 not in array.shape else np.empty(array.shape, array.dtype)


def dense_chunks(folder: Folder, name: str, known: Mapping[str, Any]) -> tuple[DenseArray, np.ndarray]:
    """Return an array object and its manifest entries for the description `known`, without reading the values."""
    array = _layout(folder, name, tuple(known["shape"]), np.dtype(known["dtype"]), rows=known.get("rows"))
    if len(known["checksums"]) != math.prod(array.grid):
        raise StoreError(f"{folder.url}: array '{name}' has {len(known['checksums'])} checksums; make the store again")
    entries = np.zeros((*array.grid, 2), dtype=np.int64)
    for index, crc in zip(array.indices(), known["checksums"], strict=True):
        entries[index] = ManifestEntry(crc, 0)
    return array, entries


def read_whole(folder: Folder, name: str, known: Mapping[str, Any]) -> Any:
    """Read an array, a CSR matrix or strings with the description `known`; raise StoreError if they are damaged."""
    if known.get("format") == "csr":
        indptr, indices, data = (read_dense(folder, f"{name}/{part}", known[part]) for part in PARTS)
        return csr_of(indptr, indices, data, tuple(known["shape"]), f"{folder.url}: array '{name}'")
    return (read_strings if known["dtype"] == "string" else read_dense)(folder, name, known)


def csr_blocks(folder: Folder, name: str, known: Mapping[str, Any]) -> tuple[CsrArray, np.ndarray]:
    """Return an object that reads a CSR matrix in blocks, and one value per block that changes with its contents."""
    parts = [dense_chunks(folder, f"{name}/{part}", known[part]) for part in PARTS]
    array = CsrArray(folder, name, f"array '{name}'", tuple(known["shape"]), tuple(parts))
    crc = checksum(*(as_bytes(entries) for _, entries in parts))
    return array, np.tile(np.array([crc, 0]), (-(-array.shape[0] // array.block), 1))


def read_strings(folder: Folder, name: str, known: Mapping[str, Any]) -> Strings:
    """Read strings with the description `known`; raise StoreError if they are missing or damaged."""
    return _parsed(folder, name, known, _string_bytes(folder, name, known))


def read_coded(folder: Folder, name: str, known: Mapping[str, Any]) -> tuple[Sequence[str], np.ndarray]:
    """Read strings with many repetitions. Return the distinct strings, and for each string its index in this list."""
    chunk = _string_bytes(folder, name, known)
    few = _decode_few(chunk.data)
    if few is not None and len(few[1]) == math.prod(known["shape"]):
        return few
    found = _parsed(folder, name, known, chunk)
    return found, np.arange(len(found))


def _string_bytes(folder: Folder, name: str, known: Mapping[str, Any]) -> np.ndarray:
    chunk = folder.get(f"{name}/c.0")
    if chunk is None:
        raise _lost(folder, name, "are missing")
    values = np.frombuffer(chunk, np.uint8)[:-CRC_BYTES]
    if checksum(values) != known["checksums"][0]:
        raise _lost(folder, name, "fail their checksum")
    return values


def _parsed(folder: Folder, name: str, known: Mapping[str, Any], chunk: np.ndarray) -> Strings:
    found = Strings.parse(chunk)
    if found is None or len(found) != math.prod(known["shape"]):
        raise _lost(folder, name, f"are not {math.prod(known['shape'])} texts")
    return found


def _lost(folder: Folder, name: str, reason: str) -> StoreError:
    cure = f"restore the files of {name} from a copy or make the store again"
    return StoreError(f"{folder.url}: the strings '{name}' {reason}; {cure}")


def _layout(
    folder: Folder,
    name: str,
    shape: Index,
    dtype: np.dtype,
    dims: tuple[str, ...] | None = None,
    rows: int | None = None,
) -> DenseArray:
    row_bytes = max(int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize, 1)
    size = rows or max(1, min(shape[0], CHUNK_BYTES // row_bytes)) if shape else 0
    chunk = (size, *(max(length, 1) for length in shape[1:])) if shape else ()
    return DenseArray(folder, name, f"array '{name}'", shape, chunk, dtype.newbyteorder("<"), dims)


def _chunks(array: DenseArray, values: np.ndarray) -> list[tuple[Index, np.ndarray]]:
    size = array.chunk[0] if array.chunk else 1
    return [(index, values[index[0] * size : (index[0] + 1) * size] if index else values) for index in array.indices()]


_CODES = bytes(range(0xF8, 0x100))  # byte values that never occur in UTF-8


def _decode_few(chunk: memoryview) -> tuple[list[str], np.ndarray] | None:
    """Decode at most eight distinct strings and an index for each string; return None for other strings."""
    # Replace every encoded string, including its length prefix, with one byte. The bytes of an encoded string occur
    # nowhere else: a length prefix ends in three zero bytes, and ASCII strings contain no zero bytes. The data are
    # decoded in pieces. A string that is cut at the end of a piece is completed by the next piece.
    known, found, rest = list[bytes](), list[bytes](), b""
    for start in range(4, len(chunk), STEP):
        marks = b"".join([rest, chunk[start : start + STEP]])
        for text, code in zip(known, _CODES):
            marks = marks.replace(text, bytes([code]))
        while rest := marks.lstrip(_CODES):
            size = int.from_bytes(rest[:4], "little")
            text = rest[: 4 + size]
            if len(known) == len(_CODES) or size > 255 or not text[4:].isascii() or 0 in text[4:]:
                return None
            if len(text) < 4 + size:
                break
            marks = marks.replace(text, _CODES[len(known) : len(known) + 1])
            known.append(text)
        found.append(marks[: len(marks) - len(rest)])
    codes = np.frombuffer(b"".join(found), np.uint8) - _CODES[0]
    right = not rest and len(codes) == int.from_bytes(chunk[:4], "little")
    return ([text[4:].decode() for text in known], codes) if right else None


class Stored:
    """Base class of `FeatureStore`, `KernelStore` and `ResultStore`."""

    folder: Folder
    root: dict[str, Any]

    def __getstate__(self) -> dict[str, Any]:
        # Cached names and labels are not pickled, because workers can read them from the store.
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    @property
    def url(self) -> str:
        """Path or URL of the store."""
        return self._place().url

    @property
    def attributes(self) -> dict[str, Any]:
        """JSON dictionary that was passed as `attributes` when the store was created."""
        return self.root["attributes"]

    @property
    def provenance(self) -> dict[str, Any]:
        """Origin of the store as a JSON dictionary, see `Provenance`."""
        return origin_of(self._place(), self.root)

    @cached_property
    def sample_ids(self) -> Strings | None:
        """Names of the samples as a sequence of str, or None if the samples have no names."""
        known = self.root["configuration"].get("sample")
        return None if known is None else read_strings(self._place(), "sample", known)

    def _place(self) -> Folder:
        return self.folder

    def _strings(self, name: str) -> list[str] | None:
        known = self.root["configuration"].get(name)
        return None if known is None else list(read_strings(self._place(), name, known))


Array = DenseArray | SparseArray


def ledger(array: Array) -> Ledger:
    return Ledger(array.folder, array.name, array.grid)


@dataclass(frozen=True)
class Blocks:
    """Blocks of an unfinished store, which several processes can write at once.

    `attributes` are the root attributes of the store, and `token` identifies the process that holds the lock.
    """

    folder: Folder
    arrays: Mapping[str, Array]
    attributes: Mapping[str, Any]
    token: str = field(default_factory=own_token)

    @property
    def complete(self) -> bool:
        return self.attributes["complete"]

    def prepare(self) -> None:
        """Write the metadata of every array and of its journal. The call can be repeated."""
        with writing(self.folder.url, "the metadata of the store"):
            for group in ("manifest", "journal"):
                self.folder.put(f"{group}/zarr.json", group_json({}))
            for array in self.arrays.values():
                journal = ledger(array).journal
                self.folder.put(f"{journal.name}/zarr.json", journal.metadata())
                self.folder.put(f"{array.name}/zarr.json", array.metadata())

    def write(self, name: str, index: Index, values: Any) -> None:
        """Write a block and then its journal entry, so that a block counts as missing if the writer is killed.

        Write nothing if another process has finished the store. Raise StoreError if the store was taken over.
        """
        array = self.arrays[name]
        if self.complete:
            raise StoreError(f"{self.folder.url} is complete; pass overwrite=True (--overwrite) to create it again")
        with writing(self.folder.url, array.label(index)):
            if not self._open():
                return
            ledger(array).forget(index)
            entry = array.write(index, values)
            if self._open():
                ledger(array).record(index, entry)

    def _open(self) -> bool:
        """Return whether blocks may be written, which is False if the store has been finished.

        Raise StoreError if another process holds the lock or has replaced the store.
        """
        owner = holder(self.folder)
        if owner is not None and owner.token == self.token:
            return True
        if owner is None:  # the store is finished, or the writer that held the lock was garbage-collected
            document = read_root(self.folder)
            if document is None:
                raise unseen(self.folder)
            if first_difference(document["attributes"], self.attributes) is None:
                return not document["attributes"]["complete"]
        raise StoreError(
            f"{self.folder.url} was taken over by {owner or 'another process'} and this writer stops; "
            "wait for that process to end and run again"
        )

    def recorded(self) -> dict[str, np.ndarray]:
        """Read the journal of every array. A block counts as unfinished if its size differs from the journal entry."""
        found = {}
        for name, array in self.arrays.items():
            entries, sizes = ledger(array).recorded(array.indices()), array.sizes()
            for index in array.indices():
                if entries[index][1] != sizes.get(index, -1):
                    entries[index] = -1
            found[name] = entries
        return found

    def missing(self) -> list[tuple[str, Index]]:
        """List the missing blocks as pairs of an array name and a block index."""
        return [] if self.complete else self._missing(self.recorded())

    def _missing(self, recorded: dict[str, np.ndarray]) -> list[tuple[str, Index]]:
        return [
            (name, index)
            for name, array in self.arrays.items()
            for index in array.indices()
            if recorded[name][index][1] < 0
        ]

    def discard(self) -> None:
        """Remove the unfinished store and its lock."""
        with writing(self.folder.url, "the removal of the store"):
            for name in self.folder.names():
                self.folder.delete_tree(name)
            self.folder.delete(LOCK)
        release(self.folder.url, all_writers=True)
        if self.folder.is_local:
            with suppress(OSError):
                os.rmdir(self.folder.url)

    def finish(self) -> None:
        """Write the manifests and mark the store complete; raise StoreError if blocks are missing."""
        if self.complete:
            return
        document = existing_root(self.folder)
        if not self._open():
            return
        recorded = self.recorded()
        missing = self._missing(recorded)
        if missing and existing_root(self.folder)["attributes"]["complete"]:
            return  # another process has finished the store and removed the journal
        if missing:
            name, index = missing[0]
            total = sum(1 for array in self.arrays.values() for _ in array.indices())
            raise StoreError(
                f"{self.folder.url}: {len(missing)} of {total} blocks are missing, the first is "
                f"{self.arrays[name].label(index)}; write them before finish()"
            )
        with stage("seal the store", len(self.arrays)) as advance, writing(self.folder.url, "the manifest"):
            for name, array in self.arrays.items():
                ledger(array).seal(recorded[name])
                advance(1)
        if not self._open():
            return
        set_complete(self.folder, document, True)
        sweep(self.folder)
        with suppress(OSError):
            self.folder.delete(LOCK)
        release(self.folder.url, all_writers=True)


def begun(
    folder: Folder,
    wanted: dict[str, Any],
    arrays: Mapping[str, Array],
    small: Mapping[str, Whole | WholeCsr],
    overwrite: bool,
) -> Blocks:
    """Create a store with the attributes `wanted`, or resume a store that has the same attributes."""
    visible = {name: array.metadata() for name, array in arrays.items() if isinstance(array, DenseArray)}
    for whole in small.values():
        visible |= whole.members()
    found = begin(folder, wanted, visible, overwrite)
    blocks = Blocks(folder, arrays, found)
    if not blocks.complete:
        weakref.finalize(blocks, abandon, folder.url)  # release the lock when the last writer is garbage-collected
        blocks.prepare()
        for whole in small.values():
            whole.write(folder)
    return blocks


class Writer:
    """Base class of `FeatureWriter`, `KernelWriter` and `ResultWriter`."""

    blocks: Blocks

    @property
    def url(self) -> str:
        """Path or URL of the store."""
        return self.blocks.folder.url

    def finish(self) -> None:
        """Mark the store as complete. One process must call this method after all blocks are written.

        Raises
        ------
        StoreError
            If blocks are missing.
        """
        self.blocks.finish()


class RowWriter(Writer):
    """Base class of `FeatureWriter` and `ResultWriter`, which write blocks of rows."""

    @property
    def block(self) -> int:
        """Number of rows per block."""
        return self.blocks.attributes["configuration"]["block"]

    @property
    def n_blocks(self) -> int:
        """Number of blocks of rows."""
        return self._first.grid[0]

    @property
    def _first(self) -> Array:
        """First array of the store. All arrays have the same number of rows."""
        return next(iter(self.blocks.arrays.values()))

    def rows(self, block_index: int) -> slice:
        """Return the range of rows that a block contains.

        Parameters
        ----------
        block_index : int
            Index of the block, starting at 0.

        Returns
        -------
        slice
            Slice of the row indices.
        """
        return slice(block_index * self.block, min((block_index + 1) * self.block, self._first.shape[0]))

    def _write(self, name: str, block: int, given: Any, positive: bool = False, missing: bool = False) -> None:
        array, where = self.blocks.arrays[name], self.rows(block)
        if not 0 <= block < self.n_blocks:
            raise UserError(
                f"{array.title} has blocks 0 to {self.n_blocks - 1}, got block {block}; pass one of missing()"
            )
        needed = (where.stop - where.start, array.shape[1])
        if given.shape != needed:
            raise UserError(
                f"{array.title}, block {block} has shape {given.shape}, needs {needed}; write whole blocks of rows"
            )
        given = cast(given, array.dtype, f"{array.title}, block {block}")
        check_values(given, array.title, where.start, positive, missing)
        self.blocks.write(name, (block, *(0 for _ in array.grid[1:])), given)
