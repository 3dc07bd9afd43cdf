"""How two contents are told apart: by SHA-256 of values in memory, of a source of rows, and of the bytes of a file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, BinaryIO, cast

import numpy as np
import scipy

from dmo.blocks import Rows, Subset, iterate

_BLOCK = 8192  # rows that are read at a time


def file_digest(file: BinaryIO) -> str:
    """Work out the SHA-256 of an open file, from where it stands to its end."""
    return hashlib.file_digest(cast(Any, file), "sha256").hexdigest()


def fingerprint(source: Rows) -> str:
    """Work out what tells the contents of two row sources apart, whatever their container.

    source (n, d)
    """
    # A source with `contents` (a view of a store: a digest of its checksums, which is its own even where an array has
    # the same values) is not read, nor is a subset of one.
    known = _contents(source)
    if known is not None:
        return digest(known)[:16]
    found = hashlib.sha256()
    _feed(found, (tuple(source.shape), np.dtype(source.dtype).name))
    for _, block in iterate(source, _BLOCK):
        _feed(found, block if scipy.sparse.issparse(block) else np.asarray(block))
    return found.hexdigest()[:16]


def _contents(source: Rows) -> str | None:
    if getattr(source, "kept", None) is not None:  # rows of another source that were read
        return _contents(source.source)  # type: ignore[attr-defined]
    if not isinstance(source, Subset):
        return getattr(source, "contents", None)
    inner = _contents(source.source)
    return None if inner is None else digest(inner, np.asarray(source.index, np.int64))


def digest(*parts: Any) -> str:
    """Work out the SHA-256 of values in memory."""
    found = hashlib.sha256()
    _feed(found, parts)
    return found.hexdigest()


def _feed(found: Any, value: Any) -> None:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        found.update(f"{type(value).__name__} {value!r};".encode())
    elif isinstance(value, np.ndarray):
        found.update(f"array {value.shape} {value.dtype.str};".encode())
        found.update(np.ascontiguousarray(value).data)
    elif scipy.sparse.issparse(value):
        csr = scipy.sparse.csr_array(value).sorted_indices()
        _feed(found, ("csr", csr.shape, csr.indptr.astype(np.int64), csr.indices.astype(np.int64), csr.data))
    elif isinstance(value, Mapping):
        _feed(found, ("mapping", [(str(key), value[key]) for key in sorted(value, key=str)]))
    elif isinstance(value, (list, tuple)):
        found.update(f"sequence {len(value)};".encode())
        for item in value:
            _feed(found, item)
    elif is_dataclass(value) and not isinstance(value, type):
        _feed(found, (type(value).__name__, [(f.name, getattr(value, f.name)) for f in fields(value)]))
    else:
        raise TypeError(f"a digest of a {type(value).__name__} is not defined; pass arrays, numbers and strings")
