"""Common parts of the readers tested by `fuzz.py`: valid inputs, the definition of a rejection, and words to insert."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dmo.blocks import iterate
from dmo.errors import UserError

Files = dict[str, bytes]
"""Contents of the files of one input by name; for readers of single files, the name is ""."""
Pack = Callable[[Files], Files]


@dataclass(frozen=True)
class Seed:
    """A valid input: its `files`, and the `entry` passed to the reader, relative to their folder. `pack` repairs
    changed parts (compression, archives, checksums), so that damage passes the outer checks."""

    files: Files
    entry: str
    pack: Pack | None = None


@dataclass(frozen=True)
class Reader:
    """A reader: `seeds` creates the valid inputs, `read` reads one completely, `words` are terms of the format to
    insert anywhere, and `longest` is the maximum size of a changed file in bytes."""

    seeds: Callable[[], list[Seed]]
    read: Callable[[Path], Any]
    words: tuple[bytes, ...] = ()
    longest: int = 1 << 20


def single(name: str, content: bytes, pack: Pack | None = None) -> Seed:
    return Seed({name: content}, name, pack)


def compressed(name: str, content: bytes) -> list[Seed]:
    """Create a file without compression and with every compression."""
    ways: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}

    def packer(squeeze: Callable[[bytes], bytes]) -> Pack:
        return lambda files: {key: squeeze(data) for key, data in files.items()}

    return [
        single(name, content),
        *(single(name + end, content, packer(squeeze)) for end, squeeze in ways.items()),
    ]


def read_rows(source: Any) -> None:
    """Read all rows, or only the first and last one if a file declares very many or very long rows."""
    n = source.shape[0]
    if n > 10_000 or source.shape[1] > 100_000:
        for where in (slice(0, 1), slice(n - 1, n)):
            source[where].sum()
        return
    for _, block in iterate(source, 4):
        block.sum()


_RNG = np.random.default_rng(0)
X = np.round(_RNG.standard_normal((9, 4)), 3)
LABELS = (_RNG.random((9, 3)) < 0.4).astype(np.uint8)


def tree(folder: Path) -> Files:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


class Foreign(UserError):
    """Error for a file that another library rejects before dmo reads it."""


def ours(error: BaseException) -> bool:
    """Check if an error is a rejection: a one-line error raised by dmo or a reader in pipelines, or a missing file."""
    if isinstance(error, Foreign) or (type(error) is FileNotFoundError and error.filename):
        return True
    if not isinstance(error, UserError | FileNotFoundError) or "\n" in str(error) or not str(error):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and any(place in trace.tb_frame.f_code.co_filename for place in ("/dmo/", "/pipelines/"))


def roots(seed: Seed) -> Mapping[str, bytes]:
    """Return the files of a seed that describe the other files; they are changed more often than chunks."""
    return {name: data for name, data in seed.files.items() if name.endswith(("json", ".zarray", ".zgroup"))}


NUMBERS = (b"-1", b"0", b"1e999", b"nan", b"4294967296", b"99999999999999999999", b"0x10", b"1.5", b"''")
JSON = (
    b"null",
    b"true",
    b"{}",
    b"[]",
    b'""',
    b'"\\ud800"',
    b"[[[[",
    b'{"a":',
    b",",
    b":",
    b"NaN",
    b"Infinity",
    b"\\u0000",
)
ROOT = (
    *JSON,
    b'"shape"',
    b'"kind"',
    b'"version"',
    b'"complete"',
    b'"checksum"',
    b'"configuration"',
    b'"attributes"',
)
ROOT += (
    b'"dtype"',
    b'"float64"',
    b'"string"',
    b'"csr"',
    b'"strings"',
    b'"checksums"',
    b'"block"',
    b"[9, 4]",
    b"[-1]",
)
