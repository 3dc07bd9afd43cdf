"""Row sources over the arrays of a store: slices of rows are read, checked against the manifest, and returned."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from dmo.errors import UserError
from dmo.hashing import digest
from dmo.stores._arrays import DenseArray, SparseArray, entry_at, read_rows, sample_rows


def _split(where: Any, n: int) -> tuple[range, Any]:
    """Rows and columns of an index: a slice, or two slices; single rows and lists of rows are refused."""
    rows, columns = where if isinstance(where, tuple) and len(where) == 2 else (where, slice(None))
    if where is Ellipsis:
        rows = slice(None)
    if not isinstance(rows, slice) or not isinstance(columns, slice):
        raise TypeError("a view of a store is read by slices; for single rows or a list of rows use dmo.blocks.Subset")
    if rows.step is not None and operator.index(rows.step) < 1:
        raise UserError(f"a view of a store is read forwards, got step {rows.step}; reverse the rows afterwards")
    return range(*rows.indices(n)), columns


@dataclass(frozen=True, repr=False, eq=False)
class _StoredView:
    """What both kinds of views say of themselves."""

    array: Any
    entries: np.ndarray
    histogram: bool = False
    missing: bool = False
    present: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.array.shape[0], self.array.shape[1]

    @property
    def dtype(self) -> np.dtype:
        """Type of the values."""
        return self.array.dtype

    @property
    def ndim(self) -> int:
        """Always 2."""
        return 2

    @property
    def url(self) -> str:
        """Path or URL of the array, or of the group with the blocks, in Zarr's format."""
        return f"{self.array.folder.url}/{self.array.name}"

    @cached_property
    def contents(self) -> str:
        """SHA-256 of the shape, type and blocks' checksums: tells whether the view has changed, without reading it."""
        known = self.shape, self.dtype.str, self.block, self.entries
        return digest(*known) if self.present is None else digest(*known, self.present)

    @property
    def block(self) -> int:
        """Rows that are read together."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        kind = type(self).__name__.removesuffix("View").lower()
        return f"<{kind} view {self.url}, {self.shape[0]} x {self.shape[1]} {self.dtype}, {self.block} rows a block>"


@dataclass(frozen=True, repr=False, eq=False)
class DenseView(_StoredView):
    """A stored n x d array as a row source; `view[a:b]` reads the chunks it needs into a NumPy array.

    Reads that start and end at multiples of `block` rows are the fastest. `dask.array.from_array(view)` works, and so does
    `zarr.open_array(view.url)`. A read raises StoreError for a missing or damaged chunk.

    Attributes
    ----------
    array : DenseArray
        Where the chunks are.
    entries : ndarray of shape (blocks, 1, 2), int64
        Checksum and size of every chunk, from the manifest.
    histogram : bool, default=False
        Whether rows are counts or masses.
    missing : bool, default=False
        Whether cells may be NaN.
    present : ndarray of shape (n,), bool, or None, default=None
        Samples that the view has, whose rows are zeros where it has not (see `dmo.blocks.presence`); None: all.

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
        """Rows and columns of a chunk."""
        return self.array.chunk

    @property
    def block(self) -> int:
        """Rows of a chunk."""
        return self.array.chunk[0]

    def __getitem__(self, where: Any) -> np.ndarray:
        rows, columns = _split(where, self.shape[0])
        block = read_rows(self.array, self.entries, rows.start, max(rows.start, rows.stop))
        return block if rows.step == 1 and columns == slice(None) else block[:: rows.step, columns]

    def sample(self, index: np.ndarray) -> np.ndarray:
        """Read rows by themselves, unchecked: for samples of rows that are read whole later.

        Parameters
        ----------
        index : ndarray of shape (m,), int
            Row numbers, ascending.

        Returns
        -------
        ndarray of shape (m, d)
            The rows.
        """
        return sample_rows(self.array, self.entries, np.asarray(index))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise UserError("a stored view is read into memory, which is a copy; pass copy=None or True")
        return self[:].astype(self.dtype if dtype is None else dtype, copy=False)


@dataclass(frozen=True, repr=False, eq=False)
class SparseView(_StoredView):
    """A stored n x d sparse matrix as a row source; `view[a:b]` reads the row blocks it needs into a CSR array.

    A read raises StoreError for a missing or damaged block.

    Attributes
    ----------
    array : SparseArray
        Where the blocks are.
    entries : ndarray of shape (blocks, 2), int64
        Checksum and size of every block, from the manifest.
    histogram : bool, default=False
        Whether rows are counts or masses.
    missing : bool, default=False
        Whether cells may be NaN.
    present : ndarray of shape (n,), bool, or None, default=None
        Samples that the view has, whose rows are zeros where it has not (see `dmo.blocks.presence`); None: all.

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

    array: SparseArray

    @property
    def block(self) -> int:
        """Rows of a block."""
        return self.array.block

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
        found = parts[0] if len(parts) == 1 else scipy.sparse.vstack(parts, format="csr")
        return found if rows.step == 1 and columns == slice(None) else found[:: rows.step, columns]


View = DenseView | SparseView
