"""SHA-256 hashes of values, row sources and files, and 64-bit hashes of rows and samples."""

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

_BLOCK = 8192  # number of rows that are read at the same time
_STRIP = 1 << 15  # number of 64-bit integers that are hashed at the same time and fit in the processor cache


def file_digest(file: BinaryIO) -> str:
    """Compute the SHA-256 hash of an open file from its current position to its end."""
    return hashlib.file_digest(cast(Any, file), "sha256").hexdigest()


def fingerprint(source: Rows) -> str:
    """Compute a hash of the contents of a row source, which is the same for an array and a file with equal rows."""
    # For a stored view, which has the attribute `contents`, and for a subset of a stored view, the hash is computed
    # from the checksums of the store, without reading rows. The hash of an array with equal rows is therefore
    # different.
    known = _contents(source)
    if known is not None:
        return digest(known)[:16]
    found = hashlib.sha256()
    _feed(found, (tuple(source.shape), np.dtype(source.dtype).name))
    for _, block in iterate(source, _BLOCK):
        _feed(found, block)
    return found.hexdigest()[:16]


def _contents(source: Rows) -> str | None:
    if getattr(source, "kept", None) is not None:  # The rows are a copy of another source in memory.
        return _contents(source.source)  # type: ignore[attr-defined]
    if not isinstance(source, Subset):
        return getattr(source, "contents", None)
    inner = _contents(source.source)
    index = source.index if isinstance(source.index, RowMask) else np.asarray(source.index, np.int64)
    return None if inner is None else digest(inner, index)


def row_hashes(source: Rows, exact: bool = False) -> np.ndarray:
    """Hash every row of a source to a 64-bit integer, after rounding to float32 unless `exact` is true.

    Missing rows have the hash 0. Sparse and dense rows with equal values have equal hashes.
    """
    present, found = presence(source), np.empty(source.shape[0], np.uint64)
    for where, block in iterate(source, _BLOCK):
        found[where] = _block_hashes(block, exact)
    return found if present is None else np.where(present, found, np.uint64(0))


def mixed(values: np.ndarray) -> np.ndarray:
    """Hash 64-bit integers by the finalizer of SplitMix64, a bijection that maps 0 to 0."""
    found = np.asarray(values).astype(np.uint64)
    found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(found ^ (found >> np.uint64(31)))


def _block_hashes(block: Any, exact: bool) -> np.ndarray:
    """Hash each row of a block: the sum of its hashed values, multiplied by an odd number per column, modulo 2^64."""
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
    """Hash numbers to 64-bit integers, because the floating-point formats of small integers differ in few bits."""
    found = _bits(values, exact).astype(np.uint64)
    found *= np.uint64(0x9E3779B97F4A7C15)
    found ^= found >> np.uint64(32)
    return found


def _bits(values: Any, exact: bool) -> np.ndarray:
    """Return numbers as the bits of float32, or of 64-bit types if `exact` is true; NaN and 0 have unique bits."""
    values = np.asarray(values)
    if exact and values.dtype.kind in "biu":
        return values.astype(np.int64).view(np.uint64)
    with np.errstate(over="ignore"):  # Large numbers become infinite in float32.
        floats = np.ascontiguousarray(values, np.float64 if exact else np.float32) + 0  # Convert -0 to 0.
    floats[np.isnan(floats)] = np.nan
    return floats.view(np.uint64 if exact else np.uint32)


def digest(*parts: Any) -> str:
    """Compute the SHA-256 hash of arrays, numbers, strings and nested sequences of them."""
    found = hashlib.sha256()
    _feed(found, parts)
    return found.hexdigest()


def id_keys(ids: Iterable[str]) -> np.ndarray:
    """Hash the names of samples to 64-bit integers."""
    found = bytearray()
    for name in ids:
        found += hashlib.blake2b(name.encode(), digest_size=8).digest()
    return np.frombuffer(found, "<u8").astype(np.uint64, copy=False)


def stored_keys(views: Mapping[str, Rows]) -> np.ndarray | None:
    """Compute 64-bit keys of the rows of stored views from a hash of the store and the row indices.

    Return None for views that are not stored.
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
    """Return a mask of the keys that are elements of the sorted array `ordered`."""
    if not len(ordered):
        return np.zeros(len(keys), bool)
    places = np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)
    return np.asarray(ordered[places] == keys)


def joined_keys(*parts: np.ndarray | None) -> np.ndarray | None:
    """Return the union of arrays of sample keys, or None if all arrays are None."""
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
