"""How two contents are told apart: fingerprints of arrays and digests of nested values."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import scipy.sparse

from dmo.blocks import Rows, Subset, iterate


def fingerprint(source: Rows, size: int = 8192) -> str:
    """SHA-256 (16 hex digits) of a row source's shape and values: tells two inputs apart, whatever their container.

    A source with `contents` (a view of a store: a digest of its checksums, which is its own even where an array has the
    same values) is not read, nor is a subset of one.
    """
    known = _contents(source)
    if known is not None:
        return hashlib.sha256(known.encode()).hexdigest()[:16]
    digest = hashlib.sha256(repr((tuple(source.shape), np.dtype(source.dtype).name)).encode())
    for _, block in iterate(source, size):
        if scipy.sparse.issparse(block):
            csr = scipy.sparse.csr_array(block).sorted_indices()
            for part in (csr.indptr.astype(np.int64), csr.indices.astype(np.int64), csr.data):
                digest.update(np.ascontiguousarray(part).data)
        else:
            digest.update(np.ascontiguousarray(block).data)
    return digest.hexdigest()[:16]


def _contents(source: Rows) -> str | None:
    if not isinstance(source, Subset):
        return getattr(source, "contents", None)
    inner = _contents(source.source)
    picked = np.ascontiguousarray(source.index, np.int64).tobytes()
    return None if inner is None else hashlib.sha256(inner.encode() + picked).hexdigest()


def digest(*parts: Any) -> str:
    """SHA-256 of None, numbers, strings, arrays, CSR matrices, and sequences, mappings and dataclasses of these.

    Raises TypeError for anything else.
    """
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
