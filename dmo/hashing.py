"""Digests of values in memory, of row sources and of files (SHA-256), and 64-bit hashes of rows and samples."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, BinaryIO, cast

import numpy as np

from dmo.blocks import (
    RowMask,
    Rows,
    Subset,
    csr_parts,
    iterate,
    numbered,
    presence,
    row_blocks,
    stored_columns,
    stored_values,
    strips,
    with_stored,
)

_BLOCK = 8192  # rows per read
_STRIP = 1 << 15  # entries per hashing step, as 64-bit integers that fit in the cache


def file_digest(file: BinaryIO) -> str:
    """Compute the SHA-256 of an open file from its current position to its end."""
    return hashlib.file_digest(cast(Any, file), "sha256").hexdigest()


def fingerprint(source: Rows) -> str:
    """Compute a fingerprint of the contents of a row source that does not depend on its container.

    source (n, d)
    """
    # A source with `contents` is not read, nor is a subset of it. `contents` of a stored view is a digest of its
    # checksums, so its fingerprint differs from that of an array with equal values.
    known = _contents(source)
    if known is not None:
        return digest(known)[:16]
    found = hashlib.sha256()
    _feed(found, (tuple(source.shape), np.dtype(source.dtype).name))
    for _, block in iterate(source, _BLOCK):
        _feed(found, block)
    return found.hexdigest()[:16]


def _contents(source: Rows) -> str | None:
    if getattr(source, "kept", None) is not None:  # rows of another source, already read into memory
        return _contents(source.source)  # type: ignore[attr-defined]
    if not isinstance(source, Subset):
        return getattr(source, "contents", None)
    inner = _contents(source.source)
    index = source.index if isinstance(source.index, RowMask) else np.asarray(source.index, np.int64)
    return None if inner is None else digest(inner, index)


def row_hashes(source: Rows, exact: bool = False) -> np.ndarray:
    """Hash every row of a source as float32, or with all bits if `exact`.

    source (n, d) -> (n,), uint64; 0 for missing rows
    """
    # Sparse and dense rows of equal values have equal hashes.
    present, found = presence(source), np.empty(source.shape[0], np.uint64)
    for where, block in iterate(source, _BLOCK):
        found[where] = _block_hashes(block, exact)
    return found if present is None else np.where(present, found, np.uint64(0))


def mixed(values: np.ndarray) -> np.ndarray:
    """Scramble 64-bit integers by the finalizer of splitmix64, a bijection that maps 0 to 0.

    values (n,) -> (n,), uint64
    """
    found = np.asarray(values).astype(np.uint64)
    found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(found ^ (found >> np.uint64(31)))


def _block_hashes(block: Any, exact: bool) -> np.ndarray:
    """Sum the mixed bits of each row's values, multiplied by an odd number per column, modulo 2^64."""
    n, d = block.shape
    factors = mixed(np.arange(1, d + 1)) | np.uint64(1)
    found = np.zeros(n, np.uint64)
    for where in strips(block, max(1, _STRIP // max(1, d))):
        strip = block[where]
        values = _spread(stored_values(strip), exact)
        values *= factors[stored_columns(strip)]
        found[where] = with_stored(strip, values).sum(axis=1)
    return found


def _spread(values: Any, exact: bool) -> np.ndarray:
    """Mix the bits of numbers into 64-bit integers, because small integers differ in few bits as floats."""
    found = _bits(values, exact).astype(np.uint64)
    found *= np.uint64(0x9E3779B97F4A7C15)
    found ^= found >> np.uint64(32)
    return found


def _bits(values: Any, exact: bool) -> np.ndarray:
    """Return the bits of float32, or if `exact` of float64 or 64-bit integers; NaN and zero have one pattern each."""
    values = np.asarray(values)
    if exact and values.dtype.kind in "biu":
        return values.astype(np.int64).view(np.uint64)
    with np.errstate(over="ignore"):  # as float32, large numbers are infinite
        floats = np.ascontiguousarray(values, np.float64 if exact else np.float32) + 0  # -0 becomes 0
    floats[np.isnan(floats)] = np.nan
    return floats.view(np.uint64 if exact else np.uint32)


def digest(*parts: Any) -> str:
    """Compute the SHA-256 of values in memory."""
    found = hashlib.sha256()
    _feed(found, parts)
    return found.hexdigest()


def id_keys(ids: Iterable[str]) -> np.ndarray:
    """Hash the names of samples.

    -> (n,), uint64
    """
    found = bytearray()
    for name in ids:
        found += hashlib.blake2b(name.encode(), digest_size=8).digest()
    return np.frombuffer(found, "<u8").astype(np.uint64, copy=False)


def stored_keys(views: Mapping[str, Rows]) -> np.ndarray | None:
    """Identify the rows of stored views by a digest of the store plus the row index; return None for other views.

    views (n, d) -> (n,), uint64
    """
    found = [numbered(source) for source in views.values()]
    contents = [known for source, _ in found if isinstance(known := getattr(source, "contents", None), str)]
    (source, index), *others = found
    same = all(own is index or np.array_equal(own, index) for _, own in others)  # type: ignore[arg-type]
    if not same or len(contents) < len(found):
        return None
    start = int(digest(*sorted(contents))[:16], 16)
    return np.uint64(start) + (np.arange(source.shape[0]) if index is None else index).astype(np.uint64)


def marked_keys(keys: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    """Mark the keys that are elements of the sorted array `ordered`.

    keys (m,); ordered (n,) -> (m,), bool
    """
    if not len(ordered):
        return np.zeros(len(keys), bool)
    places = np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)
    return np.asarray(ordered[places] == keys)


def joined_keys(*parts: np.ndarray | None) -> np.ndarray | None:
    """Return the union of keys of samples, or None if all are None.

    parts (n,) -> (m,)
    """
    known = [part for part in parts if part is not None]
    return np.unique(np.concatenate(known)) if known else None


def _feed(found: Any, value: Any) -> None:
    if isinstance(value, np.generic):
        value = value.item()
    value = csr_parts(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        found.update(f"{type(value).__name__} {value!r};".encode())
    elif isinstance(value, RowMask):
        found.update(f"array {value.shape} {np.dtype(np.int64).str};".encode())
        for where in row_blocks(len(value), _BLOCK):
            found.update(np.ascontiguousarray(value[where], np.int64).data)
    elif isinstance(value, np.ndarray):
        found.update(f"array {value.shape} {value.dtype.str};".encode())
        found.update(np.ascontiguousarray(value).data)
    elif isinstance(value, Mapping):
        _feed(found, ("mapping", [(str(key), value[key]) for key in sorted(value, key=str)]))
    elif isinstance(value, (list, tuple)):
        found.update(f"sequence {len(value)};".encode())
        for item in value:
            _feed(found, item)
    elif is_dataclass(value) and not isinstance(value, type):
        _feed(found, (type(value).__name__, [(f.name, getattr(value, f.name)) for f in fields(value)]))
    else:
        raise TypeError(f"cannot compute a digest of a {type(value).__name__}; pass arrays, numbers and strings")
