"""Kernel stores, which hold symmetric matrices as square tiles on disk.

Each tile below the diagonal is computed once and represents both triangles.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dmo.errors import UserError
from dmo.hashing import digest
from dmo.stores._arrays import DenseArray, entry_at
from dmo.stores._folder import Folder
from dmo.stores._schema import new_attributes, open_root
from dmo.stores._writer import Blocks, Stored, Writer, begun, cast, check_count, check_values, ledger

if TYPE_CHECKING:
    import dask.array as da


def create_kernel(
    path: str | os.PathLike[str],
    n: int,
    block: int,
    dtype: Any = "float32",
    attributes: Mapping[str, Any] | None = None,
    triangle: Literal["both", "lower"] = "both",
) -> KernelWriter:
    """Create a kernel store, or resume an unfinished store that was created with the same arguments.

    Parameters
    ----------
    path : str or path-like
        Local path or fsspec URL of the store.
    n : int
        Number of rows and columns of the kernel.
    block : int
        Number of rows and columns of a tile.
    dtype : {"float32", "float64"}, default="float32"
        Data type of the kernel.
    attributes : mapping, optional
        JSON dictionary that describes the kernel.
    triangle : {"both", "lower"}, default="both"
        Stored triangles. With "both", every Zarr reader can read the whole matrix from the array `kernel`. With
        "lower", the store needs half the disk space, but other programs read NaN above the diagonal tiles of its array
        `lower`.

    Returns
    -------
    KernelWriter
        Writer of the missing tiles.

    Raises
    ------
    UserError
        If a size is below 1 or `triangle` is unknown.
    TypeError
        If the dtype is not supported.
    StoreError
        If `path` holds something else, a store with another configuration, or a kernel store of version 1, or if
        another process is writing the store.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from dmo.stores import create_kernel, open_kernel
    >>> K = np.ones((3, 3)) + np.eye(3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     writer = create_kernel(f"{folder}/k.zarr", 3, block=2)
    ...     for i, j in writer.missing():
    ...         writer.write(i, j, K[writer.rows(i), writer.rows(j)])
    ...     writer.finish()
    ...     open_kernel(f"{folder}/k.zarr").tile(0, 1)
    array([[1.],
           [1.]], dtype=float32)
    """
    n, block = check_count("n", n), check_count("block", block)
    if np.dtype(dtype) not in (np.float32, np.float64):
        raise TypeError(f"a kernel store holds float32 or float64, got {np.dtype(dtype)}; pass one of these")
    if triangle not in ("both", "lower"):
        raise UserError(f"triangle must be 'both' or 'lower', got {triangle!r}; pass one of these")
    configuration = {"n": n, "block": min(block, n), "dtype": np.dtype(dtype).name, "triangle": triangle}
    folder = Folder.at(path)
    array = stored_array(folder, configuration)
    wanted = new_attributes(folder, "kernel", configuration, attributes, None)
    return KernelWriter(array, begun(folder, wanted, {array.name: array}, {}, False))


def stored_array(folder: Folder, configuration: dict[str, Any]) -> DenseArray:
    """Return the Zarr array of a kernel store with this configuration.

    Stores of version 1 do not name a triangle: their array `kernel` contains the lower triangle only.
    """
    n, block, dtype = configuration["n"], configuration["block"], np.dtype(configuration["dtype"]).newbyteorder("<")
    name = "lower" if configuration.get("triangle") == "lower" else "kernel"
    triangle = configuration.get("triangle", "lower")
    return DenseArray(
        folder, name, "kernel", (n, n), (block, block), dtype, ("row", "column"), np.nan, triangle=triangle
    )


@dataclass(frozen=True, repr=False, eq=False)
class _Tiles:
    array: DenseArray

    @property
    def url(self) -> str:
        return self.array.folder.url

    @property
    def n(self) -> int:
        return self.array.shape[0]

    @property
    def block(self) -> int:
        """Number of rows and columns of a tile, except for smaller tiles in the last row and column."""
        return self.array.chunk[0]

    @property
    def n_blocks(self) -> int:
        """Number of tiles along one side."""
        return self.array.grid[0]

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    def rows(self, i: int) -> slice:
        """Return the range of matrix rows that the tiles of block row i cover."""
        return slice(i * self.block, min((i + 1) * self.block, self.n))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}, n = {self.n}, {self.dtype}, tiles of {self.block}>"

    def _check(self, i: int, j: int) -> None:
        if not (0 <= i < self.n_blocks and 0 <= j < self.n_blocks):
            raise UserError(
                f"{self.url} has tiles (0, 0) to {(self.n_blocks - 1,) * 2}, got {(i, j)}; pass one of these"
            )


@dataclass(frozen=True, repr=False, eq=False)
class KernelWriter(_Tiles, Writer):
    """Writer of a kernel store.

    A pickled writer can write any tile on any worker, also repeatedly.

    Attributes
    ----------
    array : DenseArray
        Zarr array that holds the tiles.
    blocks : Blocks
        Record of finished tiles.

    Examples
    --------
    >>> import tempfile
    >>> from dmo.stores import create_kernel
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     create_kernel(f"{folder}/k.zarr", 3, block=2).missing()
    [(0, 0), (1, 0), (1, 1)]
    """

    blocks: Blocks

    def write(self, i: int, j: int, tile: np.ndarray) -> None:
        """Write one tile of the lower triangle, with the same errors as `FeatureWriter.write`.

        Parameters
        ----------
        i : int
            Index of the block row.
        j : int
            Index of the block column, at most i.
        tile : ndarray
            Kernel matrix between the samples `rows(i)` and the samples `rows(j)`.
        """
        self._check(i, j)
        if i < j:
            raise UserError(f"{self.url} stores tiles with i >= j, got {(i, j)}; write its transpose as {(j, i)}")
        title, needed = f"tile {(i, j)}", self.array.extent((i, j))
        tile = np.asarray(tile)
        if tile.shape != needed:
            raise UserError(f"{title} has shape {tile.shape}, needs {needed}; write whole tiles")
        tile = cast(tile, self.dtype, title)
        check_values(tile, title, 0)
        self.blocks.write(self.array.name, (i, j), tile)

    def missing(self) -> list[tuple[int, int]]:
        """List the tiles that are not written yet.

        Returns
        -------
        list of (int, int)
            Block row i and block column j of each missing tile, with i >= j.
        """
        return [(index[0], index[1]) for _, index in self.blocks.missing()]


def open_kernel(path: str | os.PathLike[str]) -> KernelStore:
    """Open a complete kernel store for reading.

    Parameters
    ----------
    path : str or path-like
        Local path or fsspec URL of the store.

    Returns
    -------
    KernelStore
        Kernel whose entries are read by slicing.

    Raises
    ------
    FileNotFoundError
        If there is nothing at `path`.
    StoreError
        If the store is damaged, incomplete, of another kind, or of an unsupported version.

    Examples
    --------
    >>> from dmo.stores import open_kernel
    >>> open_kernel("/nowhere/k.zarr")
    Traceback (most recent call last):
    FileNotFoundError: no store at /nowhere/k.zarr; check the path, or create the store first
    """
    folder = Folder.at(path)
    attributes = open_root(folder, "kernel")
    array = stored_array(folder, attributes["configuration"])
    return KernelStore(array, ledger(array).load(), attributes)


@dataclass(frozen=True, repr=False, eq=False)
class KernelStore(_Tiles, Stored):
    """Complete kernel store, opened for reading.

    Attributes
    ----------
    array : DenseArray
        Zarr array that holds the tiles.
    entries : ndarray of shape (n_blocks, n_blocks, 2), int64
        Checksum and size in bytes of every stored tile.
    root : dict
        Attributes of the Zarr group of the store.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from dmo.stores import create_kernel, open_kernel
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     writer = create_kernel(f"{folder}/k.zarr", 2, block=2)
    ...     writer.write(0, 0, np.eye(2))
    ...     writer.finish()
    ...     store = open_kernel(f"{folder}/k.zarr")
    ...     store.n, store.n_blocks, store.dtype.name
    (2, 1, 'float32')
    """

    entries: np.ndarray
    root: dict[str, Any]

    def _place(self) -> Folder:
        return self.array.folder

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the kernel matrix, (n, n)."""
        return self.n, self.n

    @property
    def ndim(self) -> int:
        """Number of dimensions of the kernel matrix, which is 2."""
        return 2

    @property
    def chunks(self) -> tuple[int, int]:
        """Number of rows and columns of a tile."""
        return self.block, self.block

    @property
    def contents(self) -> str:
        """Hash of the tile checksums, which changes with the kernel and does not require reading the tiles."""
        return digest(self.shape, self.dtype.str, self.block, self.entries)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, where: Any) -> np.ndarray:
        """Return a slice of rows of the symmetric matrix, or the part given by slices of rows and columns."""
        rows, columns = where if isinstance(where, tuple) else (where, slice(None))
        if not isinstance(rows, slice) or not isinstance(columns, slice):
            raise TypeError(
                "a kernel store is read by slices; pass kernel[a:b, c:d], and dmo.Views({'x': kernel}) to tools that "
                "split it"
            )
        down, across = range(self.n)[rows], range(self.n)[columns]
        if down.step != 1 or across.step != 1:
            raise UserError(
                f"a kernel store is read in steps of 1, got {down.step} and {across.step}; slice the result"
            )
        out = np.empty((len(down), len(across)), self.dtype)
        for i in _tiles_of(down, self.block):
            for j in _tiles_of(across, self.block):
                to, source = zip(_overlap(down, self.rows(i)), _overlap(across, self.rows(j)), strict=True)
                out[to] = self.tile(i, j)[source]
        return out

    def to_dask(self) -> da.Array:
        """Return the symmetric matrix as a dask array with one chunk per tile.

        Returns
        -------
        dask.array.Array of shape (n, n)
            Lazy kernel matrix. Computing a chunk reads one tile of the lower triangle and verifies its checksum.

        Examples
        --------
        >>> import tempfile
        >>> import numpy as np
        >>> from dmo.stores import open_kernel, write_kernel
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_kernel(f"{folder}/k.zarr", np.eye(5), block=2)
        ...     K = open_kernel(f"{folder}/k.zarr").to_dask()
        ...     K.shape, K.chunks[0], float(K.sum().compute())
        ((5, 5), (2, 2, 1), 5.0)
        """
        name = f"kernel-{digest(self.url, self.shape, self.entries)[:32]}"
        import dask.array as da

        return da.from_array(self, chunks=self.block, name=name, asarray=False, meta=np.empty((0, 0), self.dtype))

    def tile(self, i: int, j: int, out: np.ndarray | None = None) -> np.ndarray:
        """Read one tile and verify its checksum.

        Parameters
        ----------
        i : int
            Index of the block row.
        j : int
            Index of the block column. If i < j, the method reads tile (j, i) and returns its transpose.
        out : ndarray of shape (block, block), optional
            C-contiguous array with the dtype of the store. If `out` is given, the tile is read into it and returned as
            a view of it, which avoids the allocation of a new array.

        Returns
        -------
        ndarray
            Kernel matrix between the samples `rows(i)` and the samples `rows(j)`.

        Raises
        ------
        StoreError
            If the tile is missing or damaged.
        """
        self._check(i, j)
        index = (i, j) if i >= j else (j, i)
        if out is not None and (out.shape != self.array.chunk or out.dtype != self.dtype or not out.flags.c_contiguous):
            raise UserError(
                f"out has shape {out.shape} and dtype {out.dtype}, needs {self.array.chunk} and {self.dtype}; "
                "make it with numpy.empty"
            )
        height, width = self.array.extent(index)
        found = self.array.read(index, entry_at(self.entries, index), out)[:height, :width]
        return found if i >= j else found.T


def _tiles_of(where: range, block: int) -> range:
    """Return the range of tile indices along one axis that contain the row numbers in `where`."""
    return range(where.start // block, -(-where.stop // block)) if len(where) else range(0)


def _overlap(wanted: range, tile: slice) -> tuple[slice, slice]:
    """Return the rows that a tile shares with the wanted rows, once as a slice of the result and once of the tile."""
    start, stop = max(wanted.start, tile.start), min(wanted.stop, tile.stop)
    return slice(start - wanted.start, stop - wanted.start), slice(start - tile.start, stop - tile.start)


def write_kernel(
    path: str | os.PathLike[str],
    K: Any,
    block: int = 1024,
    dtype: Any = "float32",
    attributes: Mapping[str, Any] | None = None,
    triangle: Literal["both", "lower"] = "both",
) -> None:
    """Write a symmetric matrix to a kernel store with one dask task per tile.

    If the store exists and is incomplete, only its missing tiles are written.

    Parameters
    ----------
    path : str or path-like
        Local path or fsspec URL of the store.
    K : dask array or ndarray of shape (n, n)
        Symmetric matrix. A dask array is computed by Dask's default scheduler. Only the tiles on and below the diagonal
        are read. Symmetry is checked in the diagonal tiles only.
    block : int, default=1024
        Number of rows and columns of a tile.
    dtype : dtype, default="float32"
        Data type of the stored kernel, "float32" or "float64".
    attributes : mapping, optional
        JSON dictionary that describes the kernel.
    triangle : {"both", "lower"}, default="both"
        Triangles that are stored, see `create_kernel`.

    Raises
    ------
    UserError
        If a diagonal tile is not symmetric, an entry is not finite, or `triangle` is unknown.
    StoreError
        If `create_kernel` would raise it for these arguments.

    Examples
    --------
    >>> import tempfile
    >>> import dask.array as da
    >>> from dmo.stores import open_kernel, write_kernel
    >>> import dask.array as da
    >>> X = da.random.default_rng(0).normal(size=(10, 3), chunks=(4, 3))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_kernel(f"{folder}/k.zarr", X @ X.T, block=4)
    ...     open_kernel(f"{folder}/k.zarr").tile(2, 0).shape
    (2, 4)
    """
    import dask
    import dask.array as da

    if len(K.shape) != 2 or K.shape[0] != K.shape[1]:
        raise UserError(
            f"a kernel is n x n, got shape {tuple(K.shape)}; pass the kernel of one set of samples with itself"
        )
    writer = create_kernel(path, K.shape[0], block, dtype, attributes, triangle)
    tiled = da.asarray(K).rechunk((writer.block, writer.block))
    parts = tiled.to_delayed()
    dask.compute(*(dask.delayed(_write)(writer, i, j, parts[i, j]) for i, j in writer.missing()))
    writer.finish()


def _write(writer: KernelWriter, i: int, j: int, tile: Any) -> None:
    tile = np.asarray(tile)
    if i == j and not np.allclose(tile, tile.T, rtol=1e-4, atol=1e-6 * float(np.abs(tile).max(initial=0.0))):
        raise UserError(
            f"the matrix is not symmetric in rows {writer.rows(i).start} to {writer.rows(i).stop - 1}; "
            "pass a symmetric matrix"
        )
    writer.write(i, j, tile)
