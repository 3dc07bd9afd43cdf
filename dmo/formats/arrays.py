"""Readers of array files: .npy, .npz, HDF5, Zarr, and the .hvecs family of formats, which LEAR introduced."""

from __future__ import annotations

import asyncio
import io
import itertools
import math
import os
import tokenize
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import scipy.sparse
import zarr
from zarr.buffer import default_buffer_prototype

from dmo.blocks import ByRows, Rows
from dmo.errors import UserError
from dmo.formats.files import DataError, check_memory, existing, first_line, missing_array
from dmo.formats.matlab import ROWS_PER_BYTE

_LARGEST = 1 << 48  # maximum number of rows or columns
_CHUNK, _ROW = 1 << 31, 1 << 25  # maximum number of bytes per Zarr chunk and per row
_KEPT = 1 << 28  # maximum number of bytes of an array that is decompressed completely and cached
SPARSE_KEYS = {"indices", "indptr", "format", "shape", "data"}
_DAMAGED = (ValueError, EOFError, OSError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error)


def _header(stream: IO[bytes], where: str, size: int) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """Read the shape, the memory order, the dtype and the offset of the values from a .npy stream of `size` bytes."""
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(stream)
    except (
        *_DAMAGED,
        SyntaxError,
        tokenize.TokenError,
        TypeError,
        MemoryError,
    ) as error:  # parsing the header as a Python literal can raise any of these errors
        raise DataError(
            f"{where}: no .npy header at byte 0 ({first_line(error)}), expected a complete file; fetch it again, or "
            "write it with numpy.save"
        ) from None
    if any(length < 0 or length > _LARGEST for length in shape):
        raise DataError(
            f"{where}: declares shape {shape} at byte 0, expected non-negative lengths; the file is damaged"
        )
    if dtype.hasobject:
        raise DataError(
            f"{where}: contains Python objects at byte {stream.tell()}, expected numbers; save it with a numeric dtype"
        )
    first, needed = stream.tell(), math.prod(shape) * dtype.itemsize
    if first + needed > size:
        raise DataError(
            f"{where}: ends at byte {size}, expected {needed} bytes from byte {first} on "
            f"(shape {shape}, {dtype}); the file is truncated"
        )
    return shape, fortran, dtype, first


def open_npy(path: str | os.PathLike[str]) -> np.ndarray:
    """Open a .npy file as a read-only memory map without loading pickled objects.

    Parameters
    ----------
    path : path-like
        Path of the file.

    Returns
    -------
    ndarray
        Memory map of the array, which reads rows from the file when they are accessed.

    Raises
    ------
    DataError
        If the file is truncated, is not a .npy file, or contains Python objects.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.datasets import open_npy
    >>> np.save("x.npy", np.eye(3))
    >>> open_npy("x.npy")[1:]
    memmap([[0., 1., 0.],
            [0., 0., 1.]])
    """
    path = existing(path)
    with open(path, "rb") as file:
        shape, fortran, dtype, first = _header(file, str(path), path.stat().st_size)
    if math.prod(shape) == 0:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, mode="r", offset=first, shape=shape, order="F" if fortran else "C")


class RemoteNpy(ByRows):
    """Array-like for a .npy file at a URL. A slice downloads only the requested rows."""

    def __init__(self, url: str):
        import fsspec

        fs, self._path = fsspec.core.url_to_fs(url)
        self._fs, self._url = fs, url
        with fs.open(self._path, "rb") as file:
            self.shape, fortran, self.dtype, self._first = _header(file, url, int(fs.size(self._path)))
        self.largest = 0  # a slice needs no memory in addition to the requested rows
        if fortran:
            raise DataError(f"{url}: is stored in Fortran order, expected C order; copy the file to a local disk")

    def __getitem__(self, where: slice) -> np.ndarray:
        begin, stop, step = where.indices(self.shape[0])
        row = math.prod(self.shape[1:]) * self.dtype.itemsize
        first, last = self._first + begin * row, self._first + max(begin, stop) * row
        data = self._fs.cat_file(self._path, first, last) if last > first else b""
        if len(data) < last - first:
            raise DataError(
                f"{self._url}: ends at byte {first + len(data)}, expected {last}; the file has changed, open it again"
            )
        return np.frombuffer(data, self.dtype).reshape(-1, *self.shape[1:])[::step]


class HdfRows(ByRows):
    """Array-like for a dataset of an HDF5 file. A slice reads only the requested rows."""

    def __init__(self, path: Path, name: str):
        self._path, self._name = path, name
        with self._opened() as dataset:
            self.shape, self.dtype = dataset.shape, dataset.dtype.newbyteorder("=")
            rows = 1 if dataset.chunks is None else dataset.chunks[0]
            # HDF5 decompresses whole chunks, so compute the number of bytes of all rows that share a chunk.
            self.largest = rows * math.prod(self.shape[1:]) * self.dtype.itemsize

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        with opened_hdf5(self._path) as file:
            dataset = file[self._name]
            if dataset.external or dataset.is_virtual:
                raise DataError(
                    f"{self._path}::{self._name}: stores its values in another file, expected them in this file"
                )
            yield dataset

    def __getitem__(self, where: slice) -> np.ndarray:
        with self._opened() as dataset:
            return np.asarray(dataset[where], self.dtype)


@contextmanager
def opened_hdf5(path: Path) -> Iterator[Any]:
    """Open an HDF5 file in a `with` block, and convert errors of h5py to DataError."""
    try:
        import h5py
    except ImportError as error:
        raise ImportError(
            f"{path}: HDF5 files need h5py, which is not installed; run: pip install dmo-learn[matlab]"
        ) from error
    try:
        with h5py.File(path, "r") as file:
            yield file
    except UserError:
        raise
    except (*_DAMAGED, KeyError) as error:
        raise DataError(
            f"{path}: cannot be read as HDF5 ({first_line(error)}), expected a complete file; fetch it again"
        ) from None


def open_hdf5(path: str | os.PathLike[str], name: str | None = None) -> HdfRows:
    """Open a dataset of an HDF5 file by name, or its only two-dimensional dataset if `name` is None."""
    path, found = existing(path), dict[str, tuple[int, ...]]()
    with opened_hdf5(path) as file:
        import h5py

        file.visititems(lambda key, node: found.update({key: node.shape} if isinstance(node, h5py.Dataset) else {}))
    matrices = [key for key, shape in found.items() if len(shape) == 2]
    if name is None and len(matrices) == 1:
        name = matrices[0]
    if name is None:
        raise DataError(
            f"{path}: contains the matrices {', '.join(matrices) or 'none'}, expected one; write {path}::NAME"
        )
    if name not in found:  # links are not listed, because they may lead to other files
        raise missing_array(path, name, found)
    return HdfRows(path, name)


class NpzMember(ByRows):
    """Array-like for one array of an .npz archive, which is decompressed when it is sliced.

    Arrays of at most 256 MiB are cached. Slices of larger arrays in ascending order need one pass over the archive.
    The object does not support concurrent reads.

    Parameters
    ----------
    path : Path
        Path of the archive.
    member : str
        Name of the file in the archive that contains the array, such as "X.npy".

    Raises
    ------
    DataError
        If the archive or the array is damaged, or if a row has more than 32 MiB.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.datasets import open_npz
    >>> np.savez_compressed("x.npz", X=np.eye(3))
    >>> X = open_npz("x.npz")["X"]
    >>> X.shape, X[:1]
    ((3, 3), array([[1., 0., 0.]]))
    """

    def __init__(self, path: Path, member: str):
        self._path, self._member = path, member
        self._where = f"{path}::{member.removesuffix('.npy')}"
        self._stream: IO[bytes] | None = None
        self._whole: np.ndarray | None = None
        with zipfile.ZipFile(path) as archive, self._open(archive) as stream:
            size = archive.getinfo(member).file_size
            self.shape, self._fortran, self._stored, self._first = _header(stream, self._where, size)
        self.dtype = self._stored.newbyteorder("=")
        row = math.prod(self.shape[1:]) * self._stored.itemsize
        if len(self.shape) > 1 and row > _ROW:
            raise DataError(
                f"{self._where}: a row of shape {self.shape[1:]} has {row} bytes, expected at most {_ROW}; transpose "
                "the array so that rows are samples, or split its columns"
            )

    def _open(self, archive: zipfile.ZipFile) -> IO[bytes]:
        try:
            return archive.open(self._member)
        except _DAMAGED as error:
            raise DataError(f"{self._where}: the archive cannot be opened ({error}); fetch it again") from None

    def _opened(self) -> IO[bytes]:
        if self._stream is None:
            archive = zipfile.ZipFile(self._path)
            weakref.finalize(self, archive.close)
            self._stream = self._open(archive)
            weakref.finalize(self, self._stream.close)
        return self._stream

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stream": None, "_whole": None}

    def __getitem__(self, where: slice) -> np.ndarray:
        begin, stop, step = where.indices(self.shape[0])
        row = math.prod(self.shape[1:])
        # Decompress the whole array and cache it if it is small or if its rows are not contiguous.
        if self._fortran or step != 1 or row * self.shape[0] * self._stored.itemsize <= _KEPT:
            self._whole = self.read() if self._whole is None else self._whole
            return self._whole[where]
        return self._read(begin * row, max(stop - begin, 0) * row).reshape(-1, *self.shape[1:])

    def read(self) -> np.ndarray:
        """Read the whole array.

        Returns
        -------
        ndarray
            Whole array in native byte order.
        """
        return self._read(0, math.prod(self.shape)).reshape(self.shape, order="F" if self._fortran else "C")

    def _read(self, first: int, count: int) -> np.ndarray:
        size = self._stored.itemsize
        offset = self._first + first * size
        check_memory(self._where, count * size)
        try:
            stream = self._opened()
            stream.seek(offset)
            data = stream.read(count * size)
        except _DAMAGED as error:
            raise DataError(
                f"{self._where}: damaged after byte {offset} of the array ({error}); fetch it again"
            ) from None
        if len(data) < count * size:
            raise DataError(
                f"{self._where}: ends at byte {offset + len(data)}, expected {count * size} bytes from {offset} on"
            )
        return np.frombuffer(data, self._stored).astype(self.dtype, copy=False)


def open_npz(path: str | os.PathLike[str]) -> dict[str, Rows]:
    """Open the arrays of an .npz archive without loading pickled objects.

    Parameters
    ----------
    path : path-like
        Path of the archive.

    Returns
    -------
    dict of str to NpzMember or csr_array
        Array-like object of each array by name. A matrix written by `scipy.sparse.save_npz` is read as a CSR array with
        the name "X".

    Raises
    ------
    DataError
        If the archive is truncated, the file is not a zip archive of arrays, or an array contains Python objects.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.datasets import open_npz
    >>> np.savez("x.npz", X=np.eye(3), names=np.array(["a", "b", "c"]))
    >>> sorted(open_npz("x.npz"))
    ['X', 'names']
    """
    path = existing(path)
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.removesuffix(".npy"): name for name in archive.namelist() if name.endswith(".npy")}
    except _DAMAGED as error:
        size = path.stat().st_size
        raise DataError(
            f"{path}: {error}, expected a zip directory before byte {size}; fetch the file again, or write it with "
            "numpy.savez"
        ) from None
    if not names:
        raise DataError(f"{path}: a zip archive without arrays, expected members that end in .npy")
    if set(names) >= SPARSE_KEYS:
        members = {key: NpzMember(path, names[key]) for key in SPARSE_KEYS}
        check_memory(path, sum(math.prod(member.shape) * member.dtype.itemsize for member in members.values()))
        return {"X": _sparse(path, {key: member.read() for key, member in members.items()})}
    return {name: NpzMember(path, member) for name, member in names.items()}


def _sparse(path: Path, parts: dict[str, np.ndarray]) -> scipy.sparse.csr_array:
    """Create a CSR array from the arrays that `scipy.sparse.save_npz` writes; raise DataError if they are invalid."""
    makers = {b"csr": scipy.sparse.csr_array, b"csc": scipy.sparse.csc_array}
    kind = parts["format"].tobytes().replace(b"\0", b"")
    if kind not in makers:
        raise DataError(f"{path}: a sparse matrix of format {kind!r}, expected csr or csc; convert it before saving")
    try:
        shape = tuple(int(d) for d in parts["shape"])
        if len(shape) != 2 or min(shape) < 0 or max(shape) > _LARGEST:
            raise UserError(f"shape {shape}")
        if parts["data"].dtype.kind not in "buif":
            raise UserError(f"values of type {parts['data'].dtype}")
        if kind == b"csc" and shape[0] > ROWS_PER_BYTE * max(parts["data"].nbytes, 1):
            raise UserError(f"{shape[0]} rows for {len(parts['data'])} values")
        check_memory(path, 8 * max(shape))
        matrix = makers[kind]((parts["data"], parts["indices"], parts["indptr"]), shape=shape)
        # If the last index pointer is 0, `check_format` does not detect decreasing index pointers.
        if np.any(matrix.indptr[1:] < matrix.indptr[:-1]):
            raise UserError("decreasing index pointers")
        matrix.check_format(full_check=True)
        return scipy.sparse.csr_array(matrix)
    except DataError:
        raise
    except (ValueError, TypeError, IndexError) as error:
        raise DataError(f"{path}: the sparse matrix is damaged ({first_line(error)}); fetch it again") from None


class ZarrRows(ByRows):
    """Array-like for a Zarr array. A slice reads the chunks that contain the requested rows.

    Parameters
    ----------
    array : zarr.Array
        Array of shape (n, d) with chunks of any shape.
    where : str
        Name of the array in error messages.

    Raises
    ------
    DataError
        When the object is sliced, if a chunk is damaged.

    Examples
    --------
    >>> import numpy as np, zarr
    >>> from dmo.datasets import open_zarr
    >>> _ = zarr.save_array("x.zarr", np.eye(3))
    >>> open_zarr("x.zarr")[1:2]
    array([[0., 1., 0.]])
    """

    def __init__(self, array: zarr.Array, where: str):
        self._array, self._where = array, where
        self.shape, self.dtype = array.shape, array.dtype
        outer = array.chunks[0] if array.shards is None else array.shards[0]
        # Zarr decompresses whole chunks, so compute the number of bytes of all rows that share a chunk or shard.
        self.largest = outer * math.prod(array.shape[1:]) * array.dtype.itemsize

    def __getitem__(self, where: slice) -> np.ndarray:
        try:
            _check_chunks(self._array, *where.indices(self.shape[0])[:2])
            return np.asarray(self._array[where])
        except Exception as error:  # codecs raise many types of exceptions
            begin, stop, _ = where.indices(self.shape[0])
            raise DataError(
                f"{self._where}: a chunk with rows {begin} to {stop - 1} cannot be decoded ({first_line(error)}); "
                "fetch the store again"
            ) from None


def _check_chunks(array: zarr.Array, begin: int, stop: int) -> None:
    """Raise UserError if a chunk of the rows from `begin` to `stop` is larger than declared after decompression."""
    # A compressed chunk of a few kilobytes can expand to gigabytes. In addition, Blosc does not verify the size in the
    # header of a chunk, and a wrong size makes Blosc read beyond the end of the data.
    codecs = [_codec(codec) for codec in (*array.filters, *array.compressors)]
    if unknown := [name for name in codecs if name not in _CODECS]:
        raise UserError(
            f"codec {unknown[0]!r} is none of {', '.join(sorted(_CODECS))}; write the array with one of these"
        )
    packed = [name for name in codecs if name != "crc32c"]
    if not packed:
        return
    if len(packed) > 1:
        raise UserError("compressed more than once; write the array with one compressor")
    limit = math.prod(array.chunks) * array.dtype.itemsize + 64
    for name, stream, size in _touched(array, begin, stop):
        if packed == ["blosc"] and not _whole_blosc(stream.read(16), size):
            raise UserError(f"{name} is cut or damaged")
        stream.seek(0)
        if _CODECS[packed[0]](stream, limit) > limit:
            raise UserError(f"{name} expands to more than the {limit} bytes of a chunk")


def _touched(array: zarr.Array, begin: int, stop: int) -> Iterator[tuple[str, IO[bytes], int]]:
    """Yield the name, byte stream and size of each stored chunk that contains a row from `begin` to `stop`."""
    outer = array.chunks if array.shards is None else array.shards
    grid = [range(begin // outer[0], -(-stop // outer[0])) if stop > begin else range(0)]
    grid += [range(-(-length // width)) for length, width in zip(array.shape[1:], outer[1:])]
    for index in itertools.product(*grid):
        key = f"{array.path}/{array.metadata.encode_chunk_key(index)}".lstrip("/")
        with _stored(array.store, key) as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(0)
            if size and array.shards is None:
                yield key, stream, size
            elif size:
                first = index[0] * outer[0]
                for place, length in _in_shard(array, stream, size, key, begin - first, stop - first):
                    stream.seek(place)
                    yield f"{key} at byte {place}", io.BytesIO(stream.read(length)), length


def _in_shard(
    array: zarr.Array, stream: IO[bytes], size: int, key: str, begin: int, stop: int
) -> list[tuple[int, int]]:
    """Return the offset and size in bytes of each stored chunk of a shard with a row from `begin` to `stop`."""
    # The index of a shard contains the offset and the size of every chunk. If a chunk is missing, all bits of its
    # offset and its size are 1.
    codec: Any = array.metadata.codecs[0].to_dict()["configuration"]  # type: ignore[union-attr]
    kinds = [part["name"] for part in codec["index_codecs"]]
    endian = codec["index_codecs"][0].get("configuration", {}).get("endian")
    if kinds not in (["bytes"], ["bytes", "crc32c"]) or endian != "little":
        raise UserError(
            f"the shard index is encoded by {', '.join(kinds)}; write the array with zarr's default index codecs"
        )
    inner = [whole // part for whole, part in zip(array.shards or (), array.chunks)]
    count, extra = math.prod(inner), 4 * (len(kinds) - 1)
    if size < 16 * count + extra:
        raise UserError(f"{key} is cut or damaged")
    stream.seek(0 if codec["index_location"] == "start" else size - 16 * count - extra)
    entries = np.frombuffer(stream.read(16 * count), "<u8").reshape(inner[0], -1, 2)
    step = array.chunks[0]
    found = entries[max(begin, 0) // step : max(-(-stop // step), 0)].reshape(-1, 2)
    places = [(int(place), int(length)) for place, length in found if place != np.iinfo(np.uint64).max]
    if any(place + length > size for place, length in places):
        raise UserError(f"{key} is cut or damaged")
    return places


def _stored(store: Any, key: str) -> IO[bytes]:
    """Open the bytes under a key of a Zarr store as a stream, which is empty if the key does not exist."""
    folder = getattr(store, "root", None)
    if isinstance(folder, Path):
        file = folder / key
        return open(file, "rb") if file.is_file() else io.BytesIO()
    if isinstance(store, zarr.storage.FsspecStore):
        # The connections of `store.fs` belong to zarr's event loop, so use a synchronous file system with its own
        # connections.
        fs = store.fs
        fs = getattr(fs, "sync_fs", None) or type(fs)(*fs.storage_args, **{**fs.storage_options, "asynchronous": False})
        try:
            return io.BytesIO(fs.cat_file(f"{store.path}/{key}"))
        except FileNotFoundError:
            return io.BytesIO()
    with ThreadPoolExecutor(1) as other:  # The current thread may already run an event loop, as in a notebook.
        found = other.submit(asyncio.run, store.get(key, default_buffer_prototype())).result()
    return io.BytesIO(b"" if found is None else found.to_bytes())


def _codec(codec: Any) -> str:
    return str(getattr(codec, "codec_id", type(codec).__name__.removesuffix("Codec").lower()))


def _whole_blosc(head: bytes, size: int) -> bool:
    return len(head) == 16 and int.from_bytes(head[12:16], "little") == size


def _unfolded_deflate(stream: IO[bytes], limit: int) -> int:
    """Count the bytes of a gzip or zlib stream after decompression, but stop if their number exceeds `limit`."""
    total, unpack = 0, zlib.decompressobj(47)
    data = stream.read(1 << 16)
    while data and total <= limit:
        total += len(unpack.decompress(data, 1 << 20))
        if unpack.eof and unpack.unused_data:  # a gzip file may contain several compressed streams
            data, unpack = unpack.unused_data, zlib.decompressobj(47)
        else:
            data = unpack.unconsumed_tail or stream.read(1 << 16)
    return total


def _said_by_zstd(stream: IO[bytes], limit: int) -> int:
    """Read the decompressed size from the header of a Zstandard frame; return `limit + 1` if it is not declared."""
    head = stream.read(18)
    if len(head) < 6:
        return 0  # the header is truncated, which the decoder reports
    flags = head[4]
    single, width = flags >> 5 & 1, (0, 2, 4, 8)[flags >> 6]
    width = width or single
    at = 5 + (1 - single) + (0, 1, 2, 4)[flags & 3]
    size = int.from_bytes(head[at : at + width], "little") + (256 if width == 2 else 0)
    return size if width else limit + 1


_CODECS: dict[str, Callable[[IO[bytes], int], int]] = {
    "gzip": _unfolded_deflate,
    "zlib": _unfolded_deflate,
    "zstd": _said_by_zstd,
    "blosc": lambda stream, _: int.from_bytes(stream.read(8)[4:], "little"),
    "lz4": lambda stream, _: int.from_bytes(stream.read(4), "little"),
    "crc32c": lambda stream, _: 0,
}
"""Function for each codec that finds the decompressed size of a chunk without decompressing the chunk to memory."""


def open_zarr(path: str | os.PathLike[str], name: str | None = None) -> ZarrRows:
    """Open an array of a Zarr store for reading.

    Parameters
    ----------
    path : path-like
        Path of a Zarr store of version 2 or 3, which may be a folder, a zip archive or an fsspec URL.
    name : str, default=None
        Name of the array in a group. If None, `path` must contain a single array.

    Returns
    -------
    ZarrRows
        Array-like that reads the requested rows when it is sliced.

    Raises
    ------
    DataError
        If the array does not exist, if its metadata are damaged, or if the attribute "complete" of the store is false.
    FileNotFoundError
        If the store does not exist.

    Examples
    --------
    >>> import numpy as np, zarr
    >>> from dmo.datasets import open_zarr
    >>> group = zarr.open_group("x.zarr", mode="w")
    >>> _ = group.create_array("gist", data=np.eye(3), chunks=(2, 3))
    >>> open_zarr("x.zarr", "gist").shape
    (3, 3)
    """
    try:
        node = zarr.open(str(path) if "://" in str(path) else _store_at(path), mode="r")
        arrays = dict(node.arrays()) if isinstance(node, zarr.Group) else {}
        found = node.get(name) if name and isinstance(node, zarr.Group) else None
        complete = node.attrs.get("complete")
    except Exception as error:  # zarr and its codecs raise many types of exceptions for invalid metadata
        if isinstance(error, DataError) or type(error) is FileNotFoundError:
            raise
        raise DataError(
            f"{path}: no Zarr array or group ({first_line(error)}); the store is damaged or of another format"
        ) from None
    if complete is False:
        raise DataError(
            f"{path}: writing was interrupted (complete is false), expected a complete store; write it again"
        )
    if isinstance(node, zarr.Array):
        if name is not None:
            raise DataError(f"{path}: is one array, expected a group that contains {name!r}; omit the array name")
        return _rows_of(node, str(path))
    listed = ", ".join(sorted(arrays)) or "none"
    if name is None:
        if len(arrays) != 1:
            raise DataError(f"{path}: a group with the arrays {listed}, expected one; write {path}::NAME")
        name, found = next(iter(arrays.items()))
    if not isinstance(found, zarr.Array):
        raise missing_array(path, name, sorted(arrays))
    return _rows_of(found, f"{path}::{name}")


def _rows_of(array: zarr.Array, where: str) -> ZarrRows:
    """Return the array as `ZarrRows`; raise DataError if a row or a chunk is too large."""
    width = array.dtype.itemsize
    row, chunk = (math.prod(lengths) * width for lengths in (array.shape[1:], array.chunks))
    if max((*array.shape, *array.chunks)) > _LARGEST or row > _ROW or chunk > _CHUNK:
        raise DataError(
            f"{where}: has shape {array.shape} in chunks {array.chunks}, expected rows of at most {_ROW} bytes and "
            f"chunks of at most {_CHUNK}; write the array in smaller chunks, or restore it if the metadata are damaged"
        )
    return ZarrRows(array, where)


def _store_at(path: str | os.PathLike[str]) -> zarr.storage.ZipStore | _Files:
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such store")
    if path.is_file() and not zipfile.is_zipfile(path):
        raise DataError(f"{path}: a file without a zip directory, expected the folder or zip archive of a Zarr store")
    return zarr.storage.ZipStore(path, mode="r") if path.is_file() else _Files(path, read_only=True)


class _Files(zarr.storage.LocalStore):
    """Local Zarr store that rejects pipes and devices, because reading them may never end."""

    async def get(self, key: str, *arguments: Any, **options: Any) -> Any:
        path = self.root / key
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise UserError(f"{key} is a pipe or a device, expected a file")
        return await super().get(key, *arguments, **options)


# Each row of a .hvecs file starts with its dimension. The two dtypes belong to the dimension and to the values.
FORMATS = {
    ".hvec": ("<u2", "<u2"),
    ".hvec32": ("<u4", "<u4"),
    ".fvec": ("<u4", "<f4"),
    ".dvec": ("<u4", "<f8"),
}
FORMATS |= {f".{name}": FORMATS[short] for name, short in [("hvecs", ".hvec"), ("fvecs", ".fvec"), ("dvecs", ".dvec")]}
FORMATS[".hvecs32"] = FORMATS[".hvec32"]


@dataclass(frozen=True)
class Vecs(ByRows):
    """Array-like for a file of the .hvecs family. A slice reads only the requested rows.

    In the file, the values of each row are preceded by their number, the dimension d.

    Attributes
    ----------
    path : Path
        Path of the file.
    shape : tuple of int
        Number of rows n and dimension d.
    head : int
        Number of bytes that store the dimension before each row.
    dtype : numpy.dtype
        Data type of the values.

    Raises
    ------
    DataError
        When the object is sliced, if the dimension of a row is not d. The message contains the byte position.

    Examples
    --------
    >>> import struct
    >>> from pathlib import Path
    >>> from dmo.datasets import open_vecs
    >>> _ = Path("a.hvecs").write_bytes(struct.pack("<3H3H", 2, 5, 6, 2, 7, 8))
    >>> open_vecs("a.hvecs")[1:]
    array([[7, 8]], dtype=uint16)
    """

    path: Path
    shape: tuple[int, int]
    head: int
    dtype: np.dtype

    def __getitem__(self, where: slice) -> np.ndarray:
        n, d = self.shape
        row = np.dtype([("d", f"<u{self.head}"), ("values", self.dtype.newbyteorder("<"), (d,))])
        begin, stop, step = where.indices(n)
        block = np.memmap(self.path, row, mode="r", shape=(n,))[begin:stop:step]
        wrong = np.flatnonzero(block["d"] != d)
        if len(wrong):
            i = begin + step * int(wrong[0])
            raise DataError(
                f"{self.path}: row {i} at byte {i * row.itemsize} declares {block['d'][wrong[0]]} values, "
                f"expected {d} as in the first row; the file is damaged or of another format"
            )
        return np.array(block["values"], dtype=self.dtype)


def open_vecs(path: str | os.PathLike[str]) -> Vecs:
    """Open a file of the .hvecs family, which contains vectors of equal length.

    Parameters
    ----------
    path : path-like
        Path of the file. The extension determines the data type: uint16 for .hvec(s), uint32 for .hvec(s)32, float32
        for .fvec(s), and float64 for .dvec(s).

    Returns
    -------
    Vecs
        Array-like that reads the requested rows when it is sliced.

    Raises
    ------
    DataError
        If the extension is unknown, the file is empty, or its size is not a multiple of the size of a row.

    References
    ----------
    Guillaumin et al., TagProp (ICCV 2009). The authors distribute their features in this format.

    Examples
    --------
    >>> import struct
    >>> from pathlib import Path
    >>> from dmo.datasets import open_vecs
    >>> _ = Path("a.fvec").write_bytes(struct.pack("<IffIff", 2, 0.5, 1, 2, 2, 4))
    >>> open_vecs("a.fvec").shape
    (2, 2)
    """
    path = existing(path)
    if path.suffix.lower() not in FORMATS:
        raise DataError(f"{path}: expected a file name that ends in one of {', '.join(sorted(FORMATS))}")
    head, value = (np.dtype(code) for code in FORMATS[path.suffix.lower()])
    size = path.stat().st_size
    with open(path, "rb") as file:
        first = file.read(head.itemsize)
    if len(first) < head.itemsize:
        raise DataError(
            f"{path}: ends at byte {size}, expected {head.itemsize} bytes with the dimension of the first row"
        )
    d = int(np.frombuffer(first, head)[0])
    if d == 0:
        raise DataError(f"{path}: the dimension at byte 0 is 0, expected at least 1 value per row")
    row = head.itemsize + d * value.itemsize
    n, rest = divmod(size, row)
    if rest:
        raise DataError(
            f"{path}: row {n} breaks off at byte {size}, expected {row} bytes from byte {n * row} on "
            f"(dimension {d} at byte 0); the file is truncated or of another format"
        )
    return Vecs(path, (n, d), head.itemsize, value.newbyteorder("="))
