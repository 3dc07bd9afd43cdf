"""Result stores, which hold one row of an embedding, of scores or of labels per sample."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dmo.blocks import ByRows
from dmo.errors import UserError
from dmo.stores import _writer
from dmo.stores._arrays import DenseArray, DenseView
from dmo.stores._folder import Folder
from dmo.stores._schema import Provenance, new_attributes, open_root

RESERVED = ("sample", "split", "column", "manifest", "journal", "zarr.json")


def create_results(
    path: str | os.PathLike[str],
    n: int,
    columns: int | Sequence[str],
    dtype: Any = "float32",
    kind: str = "embedding",
    attributes: Mapping[str, Any] | None = None,
    block: int = 1024,
    sample_ids: Sequence[str] | None = None,
    split: Sequence[str] | None = None,
    overwrite: bool = False,
    provenance: Provenance | None = None,
) -> ResultWriter:
    """Create a result store, or resume an unfinished store that was created with the same arguments.

    Parameters
    ----------
    path : str or path-like
        Local path or fsspec URL of the store.
    n : int
        Number of samples, each of which has one row.
    columns : int or sequence of str
        Number or names of the columns.
    dtype : dtype, default="float32"
        Boolean, integer or floating-point NumPy type with at most 8 bytes per value.
    kind : str, default="embedding"
        Content of the rows, such as "embedding", "scores" or "labels". The Zarr array has this name.
    attributes : mapping, optional
        JSON dictionary that is stored with the rows.
    block : int, default=1024
        Number of rows per block. Blocks are written and resumed as a whole.
    sample_ids : sequence of str, optional
        Names of the samples.
    split : sequence of str, optional
        Name of the split of every sample, such as "train" or "test".
    overwrite : bool, default=False
        Whether to replace an existing result store at `path`.
    provenance : Provenance, optional
        Origin of the rows.

    Returns
    -------
    ResultWriter
        Writer of the missing blocks.

    Raises
    ------
    StoreError
        If `path` holds something else or a store with another configuration, or if another process writes the store.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from dmo.stores import create_results, open_results
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     writer = create_results(f"{folder}/z.zarr", n=5, columns=["a", "b"], kind="scores", block=4)
    ...     for i in writer.missing():
    ...         writer.write(i, np.ones((5, 2))[writer.rows(i)])
    ...     writer.finish()
    ...     store = open_results(f"{folder}/z.zarr")
    ...     store.columns, store[3:5].shape
    (['a', 'b'], (2, 2))
    """
    n, block = _writer.check_count("n", n), _writer.check_count("block", block)
    if _writer.check_name(kind, "the kind of a result store") in RESERVED:
        raise UserError(f"the kind {kind!r} is reserved for the store; choose another name")
    folder = Folder.at(path)
    small: dict[str, _writer.Whole] = {}
    names = None if isinstance(columns, int | np.integer) else [str(column) for column in columns]
    if names is not None:
        small["column"] = _writer.strings(folder, "column", names, "column")
    small |= _writer.of_samples(folder, n, sample_ids, split)
    configuration = {
        "n": n,
        "columns": _writer.check_count("columns", columns if names is None else len(names)),
        "dtype": _writer.real_dtype(dtype).name,
        "kind": kind,
        "block": min(block, n),
        **{name: whole.to_dict() for name, whole in small.items()},
    }
    array = stored_array(folder, configuration)
    wanted = new_attributes(folder, "results", configuration, attributes, provenance)
    return ResultWriter(array, _writer.begun(folder, wanted, {array.name: array}, small, overwrite))


def stored_array(folder: Folder, configuration: dict[str, Any]) -> DenseArray:
    """Return the Zarr array of a result store with this configuration."""
    shape, kind = (configuration["n"], configuration["columns"]), configuration["kind"]
    dtype = _writer.real_dtype(configuration["dtype"])
    return DenseArray(folder, kind, f"'{kind}'", shape, (configuration["block"], shape[1]), dtype, ("sample", "column"))


@dataclass(frozen=True, eq=False)
class ResultWriter(_writer.RowWriter):
    """Writer of a result store.

    A pickled writer can write any block on any worker, also repeatedly.

    Attributes
    ----------
    array : DenseArray
        Zarr array that holds the rows.
    blocks : Blocks
        Record of finished blocks.

    Examples
    --------
    >>> import tempfile
    >>> from dmo.stores import create_results
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     writer = create_results(f"{folder}/z.zarr", n=5, columns=2, block=4)
    ...     writer.n_blocks, writer.rows(1), writer.missing()
    (2, slice(4, 5, None), [0, 1])
    """

    array: DenseArray
    blocks: _writer.Blocks

    def write(self, block_index: int, rows: Any) -> None:
        """Write all rows of one block, with the same errors as `FeatureWriter.write`.

        Parameters
        ----------
        block_index : int
            Index of the block, starting at 0.
        rows : array of shape (m, columns)
            All m rows of the block.
        """
        self._write(self.array.name, block_index, np.asarray(rows))

    def missing(self) -> list[int]:
        """List the blocks that are not written yet.

        Returns
        -------
        list of int
            Indices of the missing blocks in ascending order.
        """
        return [index[0] for _, index in self.blocks.missing()]


def open_results(path: str | os.PathLike[str]) -> ResultStore:
    """Open a complete result store for reading.

    Parameters
    ----------
    path : str or path-like
        Local path or fsspec URL of the store.

    Returns
    -------
    ResultStore
        Store whose rows are read by slicing.

    Raises
    ------
    FileNotFoundError
        If there is nothing at `path`.
    StoreError
        If the store is damaged, incomplete, of another kind, or of an unsupported version.

    Examples
    --------
    >>> from dmo.stores import open_results
    >>> open_results("/nowhere/z.zarr")
    Traceback (most recent call last):
    FileNotFoundError: no store at /nowhere/z.zarr; check the path, or create the store first
    """
    folder = Folder.at(path)
    attributes = open_root(folder, "results")
    array = stored_array(folder, attributes["configuration"])
    return ResultStore(folder, attributes, DenseView(array, _writer.ledger(array).load()))


@dataclass(frozen=True, repr=False, eq=False)
class ResultStore(_writer.Stored, ByRows):
    """Complete result store, opened for reading. Slicing the store reads the selected rows.

    Attributes
    ----------
    folder : Folder
        Folder of the store.
    root : dict
        Attributes of the Zarr group of the store.
    rows : DenseView
        Rows of the store as a sliceable array.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from dmo.stores import create_results, open_results
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     writer = create_results(f"{folder}/z.zarr", n=2, columns=3)
    ...     writer.write(0, np.zeros((2, 3)))
    ...     writer.finish()
    ...     open_results(f"{folder}/z.zarr").kind
    'embedding'
    """

    folder: Folder
    root: dict[str, Any]
    rows: DenseView

    def __repr__(self) -> str:
        return f"<result store {self.folder.url}, {self.kind}, {self.shape[0]} x {self.shape[1]} {self.dtype}>"

    def __getitem__(self, where: Any) -> np.ndarray:
        return self.rows[where]

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and columns."""
        return self.rows.shape

    @property
    def dtype(self) -> np.dtype:
        """Data type of the rows."""
        return self.rows.dtype

    @property
    def kind(self) -> str:
        """Content of the rows, such as "embedding", "scores" or "labels"."""
        return self.root["configuration"]["kind"]

    @cached_property
    def columns(self) -> list[str] | None:
        """Names of the columns, or None if the store has no column names."""
        return self._strings("column")
