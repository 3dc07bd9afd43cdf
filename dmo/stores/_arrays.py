"""Zarr v3 arrays and CSR row blocks, written and read in whole chunks.

The zarr package creates the metadata of an array, and this module reads and writes the bytes of numeric chunks. A chunk
file contains little-endian values in C order, followed by their CRC-32C (codecs "bytes" and "crc32c"). If a codec is
set, Blosc compresses the values before the checksum is appended. The manifest of a store contains the checksums of the
uncompressed values of all blocks.

dmo does not read chunks with the zarr package for three reasons. First, zarr has no manifest: it accepts a chunk that
was moved or that belongs to another run, because the checksum of the chunk is valid. Second, zarr before 3.2 reads a
missing chunk as fill values, and later releases raise an error only if `array.read_missing_chunks` is False. Third,
this module reads a file directly into the array of the caller, which is faster. For 240 MB in 15 blocks with checksums,
this module takes 0.10 CPU seconds, and zarr 3.4.2 takes 0.21.
"""

from __future__ import annotations

import itertools
import json
import math
import operator
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import scipy

from dmo.blocks import ByRows, stacked
from dmo.errors import UserError
from dmo.hashing import digest
from dmo.stores._folder import Folder, StoreError

Index = tuple[int, ...]
CRC_BYTES = 4
CODECS = {"lz4": 5, "zstd": 1}
"""Compression level for each supported Blosc compressor; pipelines/benchmarks/codecs.md compares the compressors."""
STEP = 1 << 22
SEPARATOR = {"name": "default", "separator": "."}


class ManifestEntry(NamedTuple):
    """CRC-32C checksum of the values in a block, and number of bytes of the stored block."""

    checksum: int
    size: int


def as_bytes(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1).view(np.uint8)


def checksum(*parts: np.ndarray) -> int:
    """Compute the CRC-32C of concatenated uint8 arrays.

    Each call of google_crc32c holds Python's global interpreter lock, so at most 4 MiB are passed per call.
    """
    crc = 0
    for part in parts:
        for start in range(0, part.size, STEP):
            crc = google_crc32c.extend(crc, part[start : start + STEP])
    return crc


def group_json(attributes: dict[str, Any]) -> bytes:
    return to_json({"zarr_format": 3, "node_type": "group", "attributes": attributes})


def to_json(document: dict[str, Any]) -> bytes:
    # Do not indent the output: for indented JSON, Python uses a slow encoder.
    return json.dumps(document, allow_nan=False).encode()


@lru_cache(maxsize=256)
def array_json(
    shape: Index, chunk: Index, dtype: str, dims: tuple[str, ...] | None, fill: float | str, codec: str | None
) -> bytes:
    import zarr  # imported here because readers do not need zarr
    from zarr.codecs import BloscCodec, Crc32cCodec
    from zarr.storage import MemoryStore

    memory: dict[str, Any] = {}
    packing: list[Any] = []
    if codec is not None:
        level, size = CODECS[codec], np.dtype(dtype).itemsize
        packing = [BloscCodec(cname=codec, clevel=level, shuffle="bitshuffle", typesize=size)]  # type: ignore[arg-type]
    zarr.create_array(
        MemoryStore(memory),
        shape=shape,
        chunks=chunk,
        dtype=dtype,
        compressors=[*packing, Crc32cCodec()],
        filters=None,
        fill_value=fill,
        dimension_names=dims,
        chunk_key_encoding=SEPARATOR,  # type: ignore[arg-type]
    )
    return memory["zarr.json"].to_bytes()


@dataclass(frozen=True)
class DenseArray:
    """Zarr array on disk with one file per chunk. The last chunk of each axis is padded with zeros."""

    # `name` is the path of the array in `folder`, and `title` is its name in error messages. `dims` are the dimension
    # names. `fill` is the value that other programs return for missing chunks. If `triangle` is set, the array is
    # symmetric, and only chunks (i, j) with i >= j are recorded as blocks. If `triangle` is "both", each block is also
    # stored transposed as chunk (j, i). `codec` names the compressor of the chunks.

    folder: Folder
    name: str
    title: str
    shape: Index
    chunk: Index
    dtype: np.dtype
    dims: tuple[str, ...] | None = None
    fill: float = 0
    triangle: str | None = None
    codec: str | None = None

    @property
    def block(self) -> int:
        return self.chunk[0]

    @property
    def grid(self) -> Index:
        return tuple(-(-length // step) for length, step in zip(self.shape, self.chunk, strict=True))

    def indices(self) -> Iterator[Index]:
        """Iterate over the indices of all blocks. If `triangle` is set, blocks above the diagonal are omitted."""
        for index in itertools.product(*map(range, self.grid)):
            if self.triangle is None or index[0] >= index[1]:
                yield index

    def metadata(self) -> bytes:
        return array_json(self.shape, self.chunk, self.dtype.str, self.dims, self.fill, self.codec)

    def key(self, index: Index) -> str:
        return f"{self.name}/" + ".".join(["c", *map(str, index)])

    def label(self, index: Index) -> str:
        return f"tile {index}" if self.triangle else f"block {index[0] if index else 0} of {self.title}"

    def extent(self, index: Index) -> Index:
        """Return the shape of a chunk without its padding."""
        return tuple(min(c, s - i * c) for i, c, s in zip(index, self.chunk, self.shape, strict=True))

    def encode(self, index: Index, values: np.ndarray) -> tuple[np.ndarray, ManifestEntry]:
        """Return the bytes of a chunk without the trailing checksum, and its manifest entry."""
        block = np.ascontiguousarray(values, dtype=self.dtype).reshape(values.shape)
        if block.shape != self.chunk:
            block = np.zeros(self.chunk, self.dtype)
            block[tuple(map(slice, values.shape))] = values
        raw = as_bytes(block)
        found = checksum(raw)
        if self.codec is not None:
            import numcodecs

            packer = numcodecs.Blosc(self.codec, CODECS[self.codec], numcodecs.Blosc.BITSHUFFLE)
            raw = np.frombuffer(packer.encode(block), np.uint8)
        return raw, ManifestEntry(found, raw.size + CRC_BYTES)

    def write(self, index: Index, values: np.ndarray, sync: bool = True) -> ManifestEntry:
        entry = self._put(index, values, sync)
        if self.triangle == "both" and index[0] != index[1]:
            self._put(index[::-1], values.T, sync)
        return entry

    def _put(self, index: Index, values: np.ndarray, sync: bool) -> ManifestEntry:
        raw, entry = self.encode(index, values)
        stored = entry.checksum if self.codec is None else checksum(raw)
        self.folder.put(self.key(index), raw, stored.to_bytes(CRC_BYTES, "little"), sync=sync)
        return entry

    def read(self, index: Index, entry: ManifestEntry | None = None, out: np.ndarray | None = None) -> np.ndarray:
        """Read a whole chunk with its padding, and verify its checksum and the manifest entry.

        `out` is an optional C-contiguous array that the chunk is read into. Raise StoreError if the chunk is damaged.
        """
        block = empty(self.chunk, self.dtype, f"{self.folder.url}: {self.label(index)}") if out is None else out
        if self.codec is not None:
            self._unpack(index, entry, block)
            return block
        trailer = np.empty(CRC_BYTES, np.uint8)
        size = self.folder.read_into(self.key(index), as_bytes(block), trailer)
        found = None if size is None else checksum(as_bytes(block))
        expected = block.nbytes + CRC_BYTES
        stored = int.from_bytes(trailer.tobytes(), "little")
        if size is None or size != expected or found != stored or (entry is not None and entry.checksum != found):
            raise _damage(self, index, self.key(index), size, expected)
        return block

    def check(self, index: Index, entry: ManifestEntry) -> None:
        """Read a block and its transposed copy, if it has one; raise StoreError if one of the two is damaged."""
        block = self.read(index, entry)
        if self.triangle == "both" and not np.array_equal(self.read(index[::-1]), block.T):
            raise _damage(self, index[::-1], self.key(index[::-1]), 0, 0)

    def _unpack(self, index: Index, entry: ManifestEntry | None, block: np.ndarray) -> None:
        """Decompress a chunk into `block`, and verify its size and checksums."""
        import numcodecs

        data = self.folder.get(self.key(index))
        size = None if data is None else len(data)
        if data is None or len(data) <= CRC_BYTES or (entry is not None and entry.size != size):
            raise _damage(self, index, self.key(index), size, CRC_BYTES + 1 if entry is None else entry.size)
        packed, trailer = np.frombuffer(data, np.uint8)[:-CRC_BYTES], data[-CRC_BYTES:]
        # Blosc does not verify the sizes in the header of compressed data, so compare them with the actual sizes.
        sizes = tuple(np.frombuffer(data, "<u4", 4)[1::2].tolist()) if packed.size >= 16 else None
        fits = sizes == (block.nbytes, packed.size) and checksum(packed) == int.from_bytes(trailer, "little")
        try:
            if fits:
                numcodecs.Blosc().decode(packed, out=block)
        except (RuntimeError, ValueError):
            fits = False
        if not fits or (entry is not None and checksum(as_bytes(block)) != entry.checksum):
            raise _damage(self, index, self.key(index), size, len(data))

    def sizes(self) -> dict[Index, int]:
        """Return the size in bytes of each stored chunk; the size is -1 if the mirrored chunk is missing or truncated."""
        found: dict[Index, int] = {}
        for key, size in self.folder.sizes(self.name).items():
            prefix, *index = key.split(".")
            if prefix == "c":
                found[tuple(map(int, index))] = size
        if self.triangle == "both":
            return {index: size if found.get(index[::-1]) == size else -1 for index, size in found.items()}
        return found


def empty(shape: Index, dtype: np.dtype, where: str) -> np.ndarray:
    """Call `numpy.empty`, and raise StoreError if a shape that was read from a damaged file does not fit in memory."""
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError) as error:
        raise StoreError(
            f"{where} has shape {shape}, which does not fit in memory; restore it or use smaller blocks"
        ) from error


def check_csr(indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, shape: Index, where: str) -> None:
    """Raise StoreError unless the arrays form a valid CSR matrix.

    SciPy does not check the indices, and a wrong index would access memory outside the arrays.
    """
    ends = (int(indptr[0]), int(indptr[-1])) if len(indptr) else (-1, -1)
    rising = len(indptr) == shape[0] + 1 and ends == (0, len(indices)) and not np.any(indptr[1:] < indptr[:-1])
    inside = len(indices) == 0 or (indices.min() >= 0 and indices.max() < shape[1])
    if not (rising and inside and len(data) == len(indices)):
        raise StoreError(
            f"{where} is not a CSR matrix of shape {shape}; restore it from a copy or make the store again"
        )


def csr_of(
    indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, shape: Index, where: str
) -> scipy.sparse.csr_array:
    check_csr(indptr, indices, data, shape, where)
    return scipy.sparse.csr_array((data, indices, indptr), shape=shape)


def _damage(array: DenseArray | SparseArray, index: Index, key: str, size: int | None, expected: int) -> StoreError:
    folder = array.folder
    if size is None and folder.get("zarr.json") is None:
        return unseen(folder)
    if size is None:
        reason = "is missing"
    elif size != expected:
        reason = f"has {size} bytes instead of {expected}"
    else:
        reason = "fails its checksum"
    cure = f"restore the file {key} from a copy or make the store again"
    return StoreError(f"{folder.url}: {array.label(index)} {reason}; {cure}")


def unseen(folder: Folder) -> StoreError:
    """Return the error for a store that this host cannot find, for example because its disk is not mounted."""
    return StoreError(
        f"there is no {folder.url} on {socket.gethostname()}: a worker there cannot see the store, or it was removed; mount "
        "its disk on every worker at the same path, or pass a URL such as s3://..."
    )


@dataclass(frozen=True)
class SparseArray:
    """Sparse matrix on disk. Each block of rows is a Zarr group with the arrays indptr, indices and data."""

    # Each block is stored with sorted columns and without duplicates or zeros, so equal rows produce equal bytes. The
    # Zarr group of a block has the same layout as a csr_matrix in an AnnData file.

    folder: Folder
    name: str
    title: str
    shape: tuple[int, int]
    block: int
    dtype: np.dtype
    codec: str | None = None

    @property
    def grid(self) -> Index:
        return (-(-self.shape[0] // self.block),)

    def indices(self) -> Iterator[Index]:
        return ((block,) for block in range(self.grid[0]))

    def metadata(self) -> bytes:
        return group_json({"encoding": "csr row blocks", "shape": list(self.shape), "block": self.block})

    def label(self, index: Index) -> str:
        return f"block {index[0]} of {self.title}"

    def extent(self, index: Index) -> Index:
        return min(self.block, self.shape[0] - index[0] * self.block), self.shape[1]

    def _parts(self, index: Index, nnz: int) -> list[DenseArray]:
        """Return the arrays indptr, indices and data of a block with `nnz` stored elements."""
        rows, name = self.extent(index)[0], f"{self.name}/{index[0]}"
        lengths = (("indptr", rows + 1, np.dtype("<i4")), ("indices", nnz, np.dtype("<i4")), ("data", nnz, self.dtype))
        return [
            DenseArray(self.folder, f"{name}/{part}", self.title, (length,), (max(length, 1),), dtype, codec=self.codec)
            for part, length, dtype in lengths
        ]

    def write(self, index: Index, values: scipy.sparse.csr_array) -> ManifestEntry:
        rows = scipy.sparse.csr_array(values, copy=True)
        rows.sum_duplicates()
        rows.eliminate_zeros()
        if rows.nnz > np.iinfo(np.int32).max:
            raise UserError(f"{self.label(index)} has {rows.nnz} entries, at most 2^31 - 1 fit; use a smaller block")
        name = f"{self.name}/{index[0]}"
        attributes = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": list(rows.shape)}
        self.folder.put(f"{name}/zarr.json", group_json(attributes))
        raws, size = [], 0
        for part, stored in zip(self._parts(index, rows.nnz), (rows.indptr, rows.indices, rows.data), strict=True):
            self.folder.put(f"{part.name}/zarr.json", part.metadata())
            if part.shape[0]:
                size += part.write((0,), stored).size
            else:
                self.folder.delete(part.key((0,)))
            raws.append(as_bytes(np.ascontiguousarray(stored, part.dtype)))
        return ManifestEntry(checksum(*raws), size)

    def read(self, index: Index, entry: ManifestEntry) -> scipy.sparse.csr_array:
        """Read one block of rows; raise StoreError if it is missing or differs from its manifest entry."""
        start, *_ = self._parts(index, 0)
        indptr = start.read((0,))
        _, *rest = self._parts(index, max(int(indptr[-1]), 0))
        indices, data = (part.read((0,)) if part.shape[0] else np.empty(0, part.dtype) for part in rest)
        if checksum(as_bytes(indptr), as_bytes(indices), as_bytes(data)) != entry.checksum:
            raise _damage(self, index, f"{self.name}/{index[0]}", 0, 0)
        return csr_of(indptr, indices, data, self.extent(index), f"{self.folder.url}: {self.label(index)}")

    def check(self, index: Index, entry: ManifestEntry) -> None:
        """Raise StoreError if a block is missing or damaged."""
        self.read(index, entry)

    def sizes(self) -> dict[Index, int]:
        """Return the number of bytes of each stored block."""
        found: dict[Index, int] = {}
        for key, size in self.folder.sizes(self.name).items():
            block, _, file = key.partition("/")
            if file.endswith("c.0"):
                found[(int(block),)] = found.get((int(block),), 0) + size
        return found


@dataclass(frozen=True)
class CsrArray:
    """Sparse matrix in three Zarr arrays (indptr, indices and data), read in blocks of rows."""

    folder: Folder
    name: str
    title: str
    shape: tuple[int, int]
    parts: tuple[tuple[DenseArray, np.ndarray], ...]

    @property
    def dtype(self) -> np.dtype:
        return self.parts[2][0].dtype

    @property
    def block(self) -> int:
        """Number of rows per block, chosen so that a block has about as many elements as a chunk of `indices`."""
        indices = self.parts[1][0]
        return max(1, min(self.shape[0], self.shape[0] * indices.chunk[0] // max(1, indices.shape[0])))

    def read(self, index: Index, entry: ManifestEntry | None = None) -> scipy.sparse.csr_array:
        """Read one block of rows; raise StoreError if a chunk is missing or damaged."""
        start = index[0] * self.block
        shape = min(self.block, self.shape[0] - start), self.shape[1]
        indptr = read_rows(*self.parts[0], start, start + shape[0] + 1)
        first, last = (int(edge) for edge in indptr[[0, -1]])
        where = f"{self.folder.url}: rows {start} to {start + shape[0] - 1} of {self.title}"
        if not 0 <= first <= last <= self.parts[1][0].shape[0]:
            check_csr(indptr, np.empty(0), np.empty(0), shape, where)
        indices, data = (read_rows(*part, first, last) for part in self.parts[1:])
        return csr_of(indptr - first, indices, data, shape, where)


@dataclass(frozen=True)
class Ledger:
    """Checksums and sizes of the finished blocks of an array. Unfinished blocks have the value -1."""

    # While a store is being written, the checksum and size of each block are in a separate file below `journal/<name>`.
    # Parallel processes therefore never write to the same file, and a killed process loses only its current block. When
    # all blocks are finished, `seal` writes the checksums and sizes to the array `manifest/<name>`, which has a single
    # chunk.

    folder: Folder
    name: str
    grid: Index

    def _array(self, place: str, chunk: Index) -> DenseArray:
        shape = (*self.grid, 2)
        return DenseArray(self.folder, f"{place}/{self.name}", place, shape, (*chunk, 2), np.dtype("<i8"), fill=-1)

    @property
    def journal(self) -> DenseArray:
        return self._array("journal", (1,) * len(self.grid))

    @property
    def manifest(self) -> DenseArray:
        return self._array("manifest", self.grid)

    def record(self, index: Index, entry: ManifestEntry) -> None:
        """Write the journal entry of a block without flushing it to disk.

        If a power failure loses or truncates the entry, a resumed program writes the block again.
        """
        values = np.array(entry, dtype=np.int64).reshape((1,) * len(index) + (2,))
        self.journal.write((*index, 0), values, sync=False)

    def forget(self, index: Index) -> None:
        self.folder.delete(self.journal.key((*index, 0)))

    def recorded(self, wanted: Iterator[Index]) -> np.ndarray:
        """Return the journal entries of all blocks. A block counts as unfinished if its entry is truncated."""
        entries = np.full((*self.grid, 2), -1, dtype=np.int64)
        keys = {self.journal.key((*index, 0)): index for index in wanted}
        for key, data in self.folder.get_many(keys).items():
            raw = np.frombuffer(data, np.uint8)
            if raw.size == 16 + CRC_BYTES and checksum(raw[:16]).to_bytes(CRC_BYTES, "little") == data[16:]:
                entries[keys[key]] = np.frombuffer(data, "<i8", 2)
        return entries

    def seal(self, entries: np.ndarray) -> None:
        self.folder.put(f"{self.manifest.name}/zarr.json", self.manifest.metadata())
        self.manifest.write((0,) * entries.ndim, entries)

    def load(self) -> np.ndarray:
        return self.manifest.read((0,) * (len(self.grid) + 1))


def entry_at(entries: np.ndarray, index: Index) -> ManifestEntry:
    return ManifestEntry(*map(int, entries[index]))


def sample_rows(array: DenseArray, entries: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Read the rows with the ascending indices `index` of an array that is chunked along its first axis."""
    # From an uncompressed local file, read only the selected rows. Single rows cannot be verified, because a checksum
    # covers a whole chunk. Chunks in an object store are read completely, because one request per row would be slower.
    size = array.chunk[0]
    out = empty((len(index), *array.shape[1:]), array.dtype, f"{array.folder.url}: {array.title}")
    for block in np.unique(index // size):
        mine = np.flatnonzero(index // size == block)
        key = (int(block), *(0,) * (len(array.shape) - 1))
        path = f"{array.folder.url}/{array.key(key)}"
        if array.codec is None and array.folder.is_local and len(mine) < array.extent(key)[0] and os.path.isfile(path):
            mapped = np.memmap(path, np.uint8, "r")
            if mapped.size == math.prod(array.chunk) * array.dtype.itemsize + CRC_BYTES:
                values = mapped[:-CRC_BYTES].view(array.dtype).reshape(array.chunk)
                out[mine] = values[index[mine] - int(block) * size]
                continue
        out[mine] = array.read(key, entry_at(entries, key))[index[mine] - int(block) * size]
    return out


def read_rows(array: DenseArray, entries: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Read the rows from `start` to `stop` of an array that is chunked along its first axis."""
    size, n = array.chunk[0], array.shape[0]
    out = empty((stop - start, *array.shape[1:]), array.dtype, f"{array.folder.url}: {array.title}")
    rest = (0,) * (len(array.shape) - 1)
    for block in range(start // size, -(-stop // size)) if stop > start else ():
        low, high = block * size, min((block + 1) * size, n)
        first, last = max(low, start), min(high, stop)
        entry = entry_at(entries, (block, *rest))
        if last - first == size:
            array.read((block, *rest), entry, out=out[first - start : last - start])
        else:
            out[first - start : last - start] = array.read((block, *rest), entry)[first - low : last - low]
    return out


def _split(where: Any, n: int) -> tuple[range, Any]:
    """Convert an index to a range of rows and a slice of columns; raise TypeError if it does not consist of slices."""
    rows, columns = where if isinstance(where, tuple) and len(where) == 2 else (where, slice(None))
    if where is Ellipsis:
        rows = slice(None)
    if not isinstance(rows, slice) or not isinstance(columns, slice):
        raise TypeError("a view of a store is read by slices; for single rows or a list of rows use dmo.blocks.Subset")
    if rows.step is not None and operator.index(rows.step) < 1:
        raise UserError(f"a view of a store needs a positive step, got {rows.step}; reverse the rows afterwards")
    return range(*rows.indices(n)), columns


@dataclass(frozen=True, repr=False, eq=False)
class _StoredView(ByRows):
    """Base class of dense and sparse stored views."""

    array: Any
    entries: np.ndarray
    histogram: bool = False
    missing: bool = False
    present: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and columns."""
        return self.array.shape[0], self.array.shape[1]

    @property
    def dtype(self) -> np.dtype:
        """Data type of the view."""
        return self.array.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions of the view, which is 2."""
        return 2

    @property
    def url(self) -> str:
        """Path or URL of the Zarr array of a dense view, or of the Zarr group of a sparse view."""
        return f"{self.array.folder.url}/{self.array.name}"

    @cached_property
    def contents(self) -> str:
        """SHA-256 hash of the shape, the dtype and the block checksums, which detects a change of the contents."""
        known = self.shape, self.dtype.str, self.block, self.entries
        return digest(*known) if self.present is None else digest(*known, self.present)

    @property
    def block(self) -> int:
        """Number of rows per block. Reading a row reads the whole block."""
        return self.array.block

    def __repr__(self) -> str:
        kind = type(self).__name__.removesuffix("View").lower()
        return f"<{kind} view {self.url}, {self.shape[0]} x {self.shape[1]} {self.dtype}, {self.block} rows a block>"


@dataclass(frozen=True, repr=False, eq=False)
class DenseView(_StoredView):
    """Dense view of a store, whose rows are read from disk when the view is sliced.

    `view[a:b]` returns a NumPy array. Slices that start and end at multiples of `block` rows are read fastest.
    `dask.array.from_array(view)` and `zarr.open_array(view.url)` also work. Reading raises StoreError if a chunk is
    missing or damaged.

    Attributes
    ----------
    array : DenseArray
        Zarr array that holds the chunks.
    entries : ndarray of shape (n_blocks, 1, 2), int64
        Checksum and size in bytes of every chunk.
    histogram : bool, default=False
        Whether the rows are histograms (counts or masses).
    missing : bool, default=False
        Whether the view may contain missing values (NaN).
    present : ndarray of shape (n,), bool, or None, default=None
        Mask of the samples that are available in this view, or None if all samples are available. The rows of other
        samples are ignored.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from dmo.stores import ViewSpec, create_features, open_features
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     writer = create_features(f"{folder}/f.zarr", 5, {"gist": ViewSpec(3)}, block=4)
    ...     for view, i in writer.missing():
    ...         writer.write(view, i, np.ones((5, 3))[writer.rows(i)])
    ...     writer.finish()
    ...     view = open_features(f"{folder}/f.zarr").views["gist"]
    ...     view.shape, view.chunks, view[3:5].sum()
    ((5, 3), (4, 3), np.float32(6.0))
    """

    array: DenseArray

    @property
    def chunks(self) -> tuple[int, ...]:
        """Number of rows and columns per chunk."""
        return self.array.chunk

    def __getitem__(self, where: Any) -> np.ndarray:
        rows, columns = _split(where, self.shape[0])
        block = read_rows(self.array, self.entries, rows.start, max(rows.start, rows.stop))
        return block if rows.step == 1 and columns == slice(None) else block[:: rows.step, columns]

    def sample(self, index: np.ndarray) -> np.ndarray:
        """Read single rows without verifying the checksums of their chunks.

        This is much faster than reading whole chunks, and suits random samples of a view that is read completely later.

        Parameters
        ----------
        index : ndarray of shape (m,), int
            Row indices in ascending order.

        Returns
        -------
        ndarray of shape (m, d)
            Selected rows.
        """
        return sample_rows(self.array, self.entries, np.asarray(index))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise UserError("reading a stored view into memory makes a copy, got copy=False; pass copy=None or True")
        return self[:].astype(self.dtype if dtype is None else dtype, copy=False)


@dataclass(frozen=True, repr=False, eq=False)
class SparseView(_StoredView):
    """Sparse view of a store, whose rows are read from disk when the view is sliced.

    `view[a:b]` returns a CSR array. Reading raises StoreError if a block is missing or damaged.

    Attributes
    ----------
    array : SparseArray or CsrArray
        Zarr arrays that hold the blocks.
    entries : ndarray of shape (n_blocks, 2), int64
        Checksum and size in bytes of every block.
    histogram : bool, default=False
        Whether the rows are histograms (counts or masses).
    missing : bool, default=False
        Whether the view may contain missing values (NaN).
    present : ndarray of shape (n,), bool, or None, default=None
        Mask of the samples that are available in this view, or None if all samples are available. The rows of other
        samples are ignored.

    Examples
    --------
    >>> import tempfile
    >>> import scipy.sparse
    >>> from dmo.stores import ViewSpec, create_features, open_features
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     writer = create_features(f"{folder}/f.zarr", 5, {"words": ViewSpec(100, kind="sparse")})
    ...     writer.write("words", 0, scipy.sparse.random_array((5, 100), density=0.1))
    ...     writer.finish()
    ...     open_features(f"{folder}/f.zarr").views["words"][1:3].shape
    (2, 100)
    """

    array: SparseArray | CsrArray

    def __getitem__(self, where: Any) -> scipy.sparse.csr_array:
        rows, columns = _split(where, self.shape[0])
        start, stop = rows.start, max(rows.start, rows.stop)
        parts = []
        for block in range(start // self.block, -(-stop // self.block)) if stop > start else ():
            low = block * self.block
            part = self.array.read((block,), entry_at(self.entries, (block,)))
            if low < start or low + part.shape[0] > stop:
                part = part[max(start - low, 0) : stop - low]
            parts.append(part)
        if not parts:
            return scipy.sparse.csr_array((0, self.shape[1]), dtype=self.dtype)[:, columns]
        found = stacked(parts)
        return found if rows.step == 1 and columns == slice(None) else found[:: rows.step, columns]


View = DenseView | SparseView
