"""Feature stores, which hold several views of the same samples with their labels, names and splits."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy

from dmo.blocks import (
    Block,
    Subset,
    as_block,
    canonical,
    cell_blocks,
    dense,
    first_entry,
    gathered,
    is_smaller_sparse,
    nullable,
    row_numbers,
    rows,
    stored_values,
    with_stored,
)
from dmo.errors import UserError
from dmo.stores import _writer
from dmo.stores._arrays import CODECS, DenseArray, DenseView, SparseArray, SparseView, View
from dmo.stores._folder import Folder, StoreError
from dmo.stores._schema import OF_VIEWS, Provenance, new_attributes, open_root

if TYPE_CHECKING:
    import dask.array as da

_LABEL_BYTES = 1 << 20  # approximate size of a chunk of dense labels
_UNKNOWN = -1
"""Stored value of an unknown label if the labels have type int8."""
_LABEL_ENTRIES = 1 << 18
"""Number of nonzero entries in a chunk of sparse labels."""
RESERVED = ("sample", "label", "labels", "split", "manifest", "journal", "zarr.json")


@dataclass(frozen=True)
class ViewSpec:
    """Description of a view, which `create_features` needs to allocate its arrays.

    Parameters
    ----------
    dimension : int
        Number of columns of the view.
    dtype : dtype, default="float32"
        Boolean, integer or floating-point NumPy type with at most 8 bytes per value.
    kind : {"dense", "sparse"}, default="dense"
        Storage format of the rows. Sparse rows are stored in CSR format.
    histogram : bool, default=False
        Whether the rows are histograms (counts or masses). Negative values are then rejected.
    missing : bool, default=False
        Whether the view may contain missing values (NaN).
    codec : {"lz4", "zstd"} or None, default=None
        Blosc compressor of the blocks. "lz4" reduces histograms to about 15 % and doubles the reading time. "zstd"
        reduces them to about 10 %, and reading takes three to four times as long. Embeddings hardly shrink. None uses
        the setting `dmo.stores.codec`, by default no compression.

    Examples
    --------
    >>> from dmo.stores import ViewSpec
    >>> ViewSpec(512, histogram=True).to_dict()
    {'dimension': 512, 'dtype': 'float32', 'kind': 'dense', 'histogram': True}
    """

    dimension: int
    dtype: Any = "float32"
    kind: Literal["dense", "sparse"] = "dense"
    histogram: bool = False
    missing: bool = False
    codec: Literal["lz4", "zstd"] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dimension", _writer.check_count("the dimension of a view", self.dimension))
        object.__setattr__(self, "dtype", _writer.real_dtype(self.dtype))
        if self.kind not in ("dense", "sparse"):
            raise UserError(f"the kind of a view must be 'dense' or 'sparse', got {self.kind!r}; pass one of these")
        if self.codec is not None and self.codec not in CODECS:
            raise UserError(
                f"the codec of a view must be {' or '.join(map(repr, CODECS))}, got {self.codec!r}; pass one, or None"
            )

    def to_dict(self) -> dict[str, Any]:
        """Convert the description to a JSON dictionary.

        Returns
        -------
        dict
            Parameters by name.
        """
        return {
            "dimension": self.dimension,
            "dtype": self.dtype.name,
            "kind": self.kind,
            "histogram": bool(self.histogram),
            **({"missing": True} if self.missing else {}),
            **({"codec": self.codec} if self.codec else {}),
        }


def create_features(
    path: str | os.PathLike[str],
    n_samples: int,
    views: Mapping[str, ViewSpec],
    labels: Any = None,
    label_names: Sequence[str] | None = None,
    sample_ids: Sequence[str] | None = None,
    split: Sequence[str] | None = None,
    attributes: Mapping[str, Any] | None = None,
    block: int = 1024,
    overwrite: bool = False,
    provenance: Provenance | None = None,
    feature_names: Mapping[str, Sequence[str]] | None = None,
    real_labels: bool = False,
    present: Mapping[str, Any] | None = None,
    class_labels: bool = False,
) -> FeatureWriter:
    """Create a feature store, or resume an unfinished store that was created with the same arguments.

    Parameters
    ----------
    path : str or path-like
        Local path or fsspec URL of the store.
    n_samples : int
        Number of rows of every view.
    views : mapping of str to ViewSpec
        Descriptions of the views by name.
    labels : array or sparse matrix of shape (n_samples, L), optional
        Label indicators of 0 and 1, or regression targets if `real_labels` is True. NaN marks unknown labels. Label
        indicators are stored in CSR format if this needs less space.
    label_names : sequence of str, optional
        Names of the L labels.
    sample_ids : sequence of str, optional
        Names of the samples.
    split : sequence of str, optional
        Name of the split of every sample, such as "train" or "test".
    attributes : mapping, optional
        JSON dictionary that is stored with the features.
    block : int, default=1024
        Number of rows per block. Blocks are written and resumed as a whole.
    overwrite : bool, default=False
        Whether to replace an existing feature store at `path`.
    provenance : Provenance, optional
        Origin of the features.
    feature_names : mapping of view to sequence of str, optional
        Column names of some or all views.
    real_labels : bool, default=False
        Whether the labels are regression targets, which are stored as float64.
    present : mapping of view to array of shape (n_samples,), bool, optional
        Masks of the available samples of some views. The rows of unavailable samples are ignored; fill them with zeros.
    class_labels : bool, default=False
        Whether the labels are a multiclass target. Every sample then has exactly one label, or a row of NaN.

    Returns
    -------
    FeatureWriter
        Writer of the missing blocks.

    Raises
    ------
    StoreError
        If `path` holds something else or a store with another configuration, or if another process writes the store.
    UserError
        If an argument has an invalid shape or value.

    Examples
    --------
    >>> import tempfile
    >>> from dmo.stores import ViewSpec, create_features
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     create_features(f"{folder}/f.zarr", 2500, {"gist": ViewSpec(512)}).missing()
    [('gist', 0), ('gist', 1), ('gist', 2)]
    """
    import dask.config  # imported here because the import takes 0.1 s and few commands need it

    n, block = _writer.check_count("n_samples", n_samples), _writer.check_count("block", block)
    _check_views(views)
    usual = dask.config.get("dmo.stores.codec", None)
    views = {name: replace(spec, codec=spec.codec or usual) for name, spec in views.items()}
    folder = Folder.at(path)
    known = None if labels is None else _check_labels(labels, n, real_labels)
    if class_labels:
        _check_one_class(known)
    small = _small_arrays(folder, n, known, label_names, sample_ids, split, block)
    for view, names in (feature_names or {}).items():
        array = f"{view}_feature"
        checked = _writer.check_strings(f"feature_names of view {view!r}", names, views[view].dimension)
        small[array] = _writer.strings(folder, array, checked, array)
    for view, has in (present or {}).items():
        name, marks = f"{view}_present", np.asarray(has, bool)
        if view not in views or marks.shape != (n,) or not marks.any():
            raise UserError(
                f"present: {view!r} must be a view with {n} booleans, at least one of them True; pass one per sample"
            )
        if not marks.all():
            small[name] = _writer.dense(folder, name, marks.astype(np.uint8), ("sample",))
    configuration = {
        "n_samples": n,
        "block": min(block, n),
        "views": {name: spec.to_dict() for name, spec in views.items()},
        **{name: whole.to_dict() for name, whole in small.items()},
        **({"class_labels": True} if class_labels else {}),
    }
    arrays = stored_arrays(folder, configuration)
    wanted = new_attributes(folder, "features", configuration, attributes, provenance)
    blocks = _writer.begun(folder, wanted, arrays, small, overwrite)
    return FeatureWriter(folder, blocks.attributes["configuration"], blocks)


def stored_arrays(folder: Folder, configuration: dict[str, Any]) -> dict[str, DenseArray | SparseArray]:
    """Return the Zarr array of each view, by the name of the view, as described by the configuration of a store."""
    n, block = configuration["n_samples"], configuration["block"]
    arrays: dict[str, DenseArray | SparseArray] = {}
    for name, view in configuration["views"].items():
        shape, dtype, title = (n, view["dimension"]), _writer.real_dtype(view["dtype"]), f"view '{name}'"
        if view["kind"] == "sparse":
            arrays[name] = SparseArray(folder, name, title, shape, block, dtype, view.get("codec"))
        else:
            dims = ("sample", f"{name}_feature")
            chunk = block, shape[1]
            arrays[name] = DenseArray(folder, name, title, shape, chunk, dtype, dims, codec=view.get("codec"))
    return arrays


@dataclass(frozen=True, eq=False)
class FeatureWriter(_writer.RowWriter):
    """Writer of a feature store.

    A pickled writer can write any block on any worker, also repeatedly.

    Attributes
    ----------
    folder : Folder
        Folder of the store.
    configuration : dict
        Sizes and descriptions of the views as JSON.
    blocks : Blocks
        Arrays of the store and the record of finished blocks.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from dmo.stores import ViewSpec, create_features
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     writer = create_features(f"{folder}/f.zarr", 2500, {"gist": ViewSpec(3)})
    ...     writer.write("gist", 2, np.ones((452, 3)))
    ...     writer.n_blocks, writer.rows(2), writer.missing()
    (3, slice(2048, 2500, None), [('gist', 0), ('gist', 1)])
    """

    folder: Folder
    configuration: dict[str, Any]
    blocks: _writer.Blocks

    @property
    def n_samples(self) -> int:
        """Number of rows of every view."""
        return self.configuration["n_samples"]

    def write(self, view: str, block_index: int, rows: Any) -> None:
        """Write all rows of one block of a view.

        Parameters
        ----------
        view : str
            Name of the view.
        block_index : int
            Index of the block, starting at 0.
        rows : array or sparse matrix of shape (m, dimension)
            All m rows of the block.

        Raises
        ------
        StoreError
            If the store does not contain the view, is already complete, or was taken over by another process.
        UserError
            If the index, the shape or a value is invalid, such as NaN in a view without missing values.
        TypeError
            If the dtype of `rows` cannot be converted to the dtype of the view.
        OSError
            If the block cannot be written, for example because the disk is full. The store can then be resumed.
        """
        if view not in self.configuration["views"]:
            names = ", ".join(sorted(self.configuration["views"]))
            raise StoreError(f"{self.url} has no view {view!r}; it has {names}")
        spec = self.configuration["views"][view]
        if spec["kind"] == "sparse":
            given = scipy.sparse.csr_array(rows)
        else:
            given = dense(rows)
        self._write(view, block_index, given, spec["histogram"], spec.get("missing", False))

    def missing(self) -> list[tuple[str, int]]:
        """List the blocks that are not written yet.

        Returns
        -------
        list of (str, int)
            Name of the view and index of the block, for each missing block.
        """
        return [(name, index[0]) for name, index in self.blocks.missing()]


def open_features(path: str | os.PathLike[str]) -> FeatureStore:
    """Open a complete feature store for reading.

    Parameters
    ----------
    path : str or path-like
        Local path or fsspec URL of the store.

    Returns
    -------
    FeatureStore
        Store with its views, labels, names and splits.

    Raises
    ------
    FileNotFoundError
        If there is nothing at `path`.
    StoreError
        If the store is damaged, incomplete, of another kind, or of an unsupported version.

    Examples
    --------
    >>> from dmo.stores import open_features
    >>> open_features("/nowhere/f.zarr")
    Traceback (most recent call last):
    FileNotFoundError: no store at /nowhere/f.zarr; check the path, or create the store first
    """
    folder = Folder.at(path)
    attributes = open_root(folder, "features")
    views: dict[str, View] = {}
    for name, array in stored_arrays(folder, attributes["configuration"]).items():
        entries, spec = _writer.ledger(array).load(), attributes["configuration"]["views"][name]
        known = attributes["configuration"].get(f"{name}_present")
        has = None if known is None else _writer.read_dense(folder, f"{name}_present", known).astype(bool)
        about = spec["histogram"], spec.get("missing", False), has
        if isinstance(array, SparseArray):
            views[name] = SparseView(array, entries, *about)
        else:
            views[name] = DenseView(array, entries, *about)
    return FeatureStore(folder, attributes, views)


@dataclass(frozen=True, repr=False, eq=False)
class FeatureStore(_writer.Stored):
    """Complete feature store, opened for reading.

    Attributes
    ----------
    folder : Folder
        Folder of the store.
    root : dict
        Attributes of the Zarr group of the store.
    views : dict of str to DenseView or SparseView
        Views by name. Slicing a view reads the selected rows.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from dmo.stores import ViewSpec, create_features, open_features
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     views, parts = {"gist": ViewSpec(2)}, ["train", "train", "test"]
    ...     writer = create_features(f"{folder}/f.zarr", 3, views, np.eye(3), split=parts)
    ...     writer.write("gist", 0, np.ones((3, 2)))
    ...     writer.finish()
    ...     store = open_features(f"{folder}/f.zarr")
    ...     views, labels, index = store.select("train")
    ...     store.n_samples, views["gist"].shape, labels.tolist()
    (3, (2, 2), [[1, 0, 0], [0, 1, 0]])
    """

    folder: Folder
    root: dict[str, Any]
    views: dict[str, View]

    def __repr__(self) -> str:
        return f"<feature store {self.url}, {self.n_samples} samples, views {', '.join(self.views)}>"

    @property
    def configuration(self) -> dict[str, Any]:
        """JSON dictionary that describes the size of the store, its views, and its arrays of labels and names."""
        return self.root["configuration"]

    @property
    def n_samples(self) -> int:
        """Number of rows of every view."""
        return self.configuration["n_samples"]

    @property
    def block(self) -> int:
        """Number of rows per block."""
        return self.configuration["block"]

    def view_info(self, name: str) -> ViewSpec:
        """Return the description of a view.

        Parameters
        ----------
        name : str
            Name of the view.

        Returns
        -------
        ViewSpec
            Description of the view, as passed to `create_features`.

        Raises
        ------
        StoreError
            If the store does not contain the view.
        """
        if name not in self.views:
            raise StoreError(f"{self.url} has no view {name!r}; it has {', '.join(sorted(self.views))}")
        return ViewSpec(**self.configuration["views"][name])

    @cached_property
    def labels(self) -> np.ndarray | scipy.sparse.csr_array | None:
        """Labels as an array of shape (n, L), or None if the store has no labels.

        The dtype is floating-point if the labels are regression targets or if some labels are unknown (NaN), otherwise
        uint8. The result is a CSR array if the store holds the labels in CSR format, otherwise a NumPy array.
        """
        known = self.configuration.get("labels")
        return None if known is None else _known(_writer.read_whole(self.folder, "labels", known))

    def labels_of(self, index: np.ndarray) -> np.ndarray | scipy.sparse.csr_array | None:
        """Read the labels of the selected samples.

        Parameters
        ----------
        index : ndarray of shape (m,)
            Row indices of the selected samples.

        Returns
        -------
        ndarray or csr_array of shape (m, L), or None
            Labels in the same format as the property `labels`, or None if the store has no labels.
        """
        found = self._label_rows
        return None if found is None else _known(rows(Subset(found, index)))

    @property
    def label_view(self) -> View | None:
        """Label indicators as a view that reads rows on demand, or None for other, missing or incomplete labels."""
        found = self._label_rows
        return None if found is None or found.dtype != np.uint8 or self.class_labels else found

    @property
    def _label_rows(self) -> View | None:
        known = self.configuration.get("labels")
        if known is None:
            return None
        if "format" in known:
            return SparseView(*_writer.csr_blocks(self.folder, "labels", known))
        return DenseView(*_writer.dense_chunks(self.folder, "labels", known))

    @property
    def real_labels(self) -> bool:
        """Whether the labels are regression targets."""
        found = self._label_rows
        return found is not None and found.dtype.kind == "f"

    @property
    def class_labels(self) -> bool:
        """Whether the labels are a multiclass target."""
        return self.configuration.get("class_labels", False)

    def feature_names(self, view: str) -> list[str] | None:
        """Read the column names of a view.

        Parameters
        ----------
        view : str
            Name of the view.

        Returns
        -------
        list of str or None
            Column names, or None if the store has no names for this view.
        """
        return self._strings(f"{view}_feature")

    @cached_property
    def label_names(self) -> list[str] | None:
        """Names of the labels, or None if the store has no label names."""
        return self._strings("label")

    @cached_property
    def split(self) -> np.ndarray | None:
        """Name of the split of every sample, such as "train" or "test", or None if the store has no splits."""
        names, codes = self._parts
        return np.array(names, dtype=str)[codes] if names else None

    def split_of(self, index: np.ndarray) -> list[str] | None:
        """Return the split of each selected sample.

        Parameters
        ----------
        index : ndarray of shape (m,)
            Row indices of the selected samples.

        Returns
        -------
        list of str or None
            Name of the split of each selected sample, or None if the store has no splits.
        """
        names, codes = self._parts
        return [names[code] for code in codes[index].tolist()] if names else None

    @property
    def splits(self) -> list[str]:
        """Distinct names of the splits in alphabetical order."""
        return sorted(set(self._parts[0]))

    @cached_property
    def _parts(self) -> tuple[Sequence[str], np.ndarray]:
        """Distinct split names, and an array with the index of the split name of every sample."""
        known = self.configuration.get("split")
        return ([], np.zeros(0, int)) if known is None else _writer.read_coded(self.folder, "split", known)

    def to_dask(self) -> dict[str, da.Array]:
        """Return the views as dask arrays with one chunk per block of rows.

        The chunks of a sparse view are CSR arrays.

        Returns
        -------
        dict of str to dask.array.Array of shape (n, d)
            Lazy array of each view. Computing a chunk reads one block and verifies its checksum.

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
        ...     views = open_features(f"{folder}/f.zarr").to_dask()
        ...     views["gist"].chunks, float(views["gist"].sum().compute())
        (((4, 1), (3,)), 15.0)
        """
        import dask.array as da  # imported here because the import takes 1 s

        found = {}
        for name, view in self.views.items():
            empty = np.empty((0, 0), view.dtype)
            meta = scipy.sparse.csr_array(empty) if isinstance(view, SparseView) else empty
            key, chunks = f"{name}-{view.contents[:32]}", (self.block, view.shape[1])
            found[name] = da.from_array(view, chunks=chunks, name=key, asarray=False, meta=meta)
        return found

    def to_xarray(self) -> Any:
        """Return the store as an xarray Dataset whose views are lazy dask arrays.

        The dataset omits sparse views because xarray does not support CSR chunks; use `to_dask` for sparse views.

        Returns
        -------
        xarray.Dataset
            Each view has the dimensions (sample, <view>_feature), and the variable `labels` has the dimensions (sample,
            label). The names of samples, labels and features, the splits, and the masks of available samples are
            coordinates.

        Examples
        --------
        >>> import tempfile
        >>> import numpy as np
        >>> from dmo.stores import ViewSpec, create_features, open_features
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     writer = create_features(f"{folder}/f.zarr", 3, {"gist": ViewSpec(2)}, split=["train", "train", "test"])
        ...     writer.write("gist", 0, np.ones((3, 2)))
        ...     writer.finish()
        ...     data = open_features(f"{folder}/f.zarr").to_xarray()
        ...     dict(data.sel(sample=data.split == "train").sizes)
        {'sample': 2, 'gist_feature': 2}
        """
        import xarray as xr  # xarray is an optional dependency

        arrays: dict[str, Any] = {
            name: (("sample", f"{name}_feature"), array)
            for name, array in self.to_dask().items()
            if not isinstance(self.views[name], SparseView)
        }
        if self.labels is not None:
            arrays["labels"] = (("sample", "label"), dense(self.labels))
        known = {"sample": self.sample_ids, "label": self.label_names}
        known |= {f"{name}_feature": self.feature_names(name) for name in arrays if name != "labels"}
        coordinates: dict[str, Any] = {name: np.array(texts) for name, texts in known.items() if texts is not None}
        if self.split is not None:
            coordinates["split"] = ("sample", self.split)
        for name in arrays:
            if name in self.views and self.views[name].present is not None:
                coordinates[f"{name}_present"] = ("sample", self.views[name].present)
        return xr.Dataset(arrays, coordinates, self.attributes)

    def select(
        self, split: str | None, with_labels: bool = True
    ) -> tuple[dict[str, Subset], np.ndarray | scipy.sparse.csr_array | None, np.ndarray]:
        """Select the samples of one split without reading the views.

        Parameters
        ----------
        split : str or None
            Name of the split, or None for all samples.
        with_labels : bool, default=True
            Whether to read the labels.

        Returns
        -------
        views : dict of str to Subset
            Selected rows of each view, which are read when they are needed.
        labels : ndarray or csr_array of shape (m, L), or None
            Labels of the m selected samples, or None if the store has no labels or `with_labels` is False.
        index : ndarray of shape (m,)
            Row indices of the selected samples in the store.

        Raises
        ------
        StoreError
            If the store does not contain the split.
        """
        index = self.split_rows(split)
        labels = self.labels_of(index) if with_labels else None
        some = row_numbers(index)
        return {name: Subset(view, some) for name, view in self.views.items()}, labels, index

    def split_rows(self, split: str | None) -> np.ndarray:
        """Return the row indices of the samples in a split.

        Parameters
        ----------
        split : str or None
            Name of the split, or None for all samples.

        Returns
        -------
        ndarray of shape (m,)
            Row indices in ascending order.

        Raises
        ------
        StoreError
            If the store does not contain the split.
        """
        if split is None:
            return np.arange(self.n_samples)
        if split not in self.splits:
            parts = ", ".join(map(repr, self.splits))
            has = f"it has {parts}" if parts else "it has no splits, pass split=None for all samples"
            raise StoreError(f"{self.url} has no split {split!r}; {has}")
        names, codes = self._parts
        return np.flatnonzero(np.array([name == split for name in names])[codes])


@dataclass(frozen=True, repr=False, eq=False)
class SourceStore(FeatureStore):
    """Samples that are read directly from data files, with labels and names in the memory of the client process."""

    place: str
    names: Mapping[str, list[str]]  # column names by view, for views whose columns have names

    @property
    def url(self) -> str:
        """Description of the data files, used instead of the URL of a store."""
        return self.place

    def feature_names(self, view: str) -> list[str] | None:
        """Return the column names of a view, or None if its columns have no names."""
        return self.names.get(view)

    @property
    def label_view(self) -> None:
        """None, because workers cannot read labels from the memory of the client process."""
        return None


def _known(labels: Any) -> Any:
    if labels.dtype != np.int8:
        return labels
    found = nullable(labels)
    return with_stored(found, np.where(stored_values(labels) == _UNKNOWN, np.nan, stored_values(found)))


def _small_arrays(
    folder: Folder,
    n: int,
    labels: Any,
    label_names: Sequence[str] | None,
    sample_ids: Sequence[str] | None,
    split: Sequence[str] | None,
    block: int,
) -> dict[str, _writer.Whole | _writer.WholeCsr]:
    """Prepare the arrays of labels, names and splits, which are written when the store is created."""
    small: dict[str, _writer.Whole | _writer.WholeCsr] = {}
    if labels is not None:
        # Workers read the labels of one block of rows at a time, so a chunk of labels covers a whole number of blocks.
        rows = block * max(1, _LABEL_BYTES // (block * max(1, labels.shape[1]) * labels.dtype.itemsize))
        small["labels"] = _writer.whole(folder, "labels", labels, ("sample", "label"), rows, _LABEL_ENTRIES)
    if label_names is not None:
        names = _writer.check_strings("label_names", label_names, None if labels is None else labels.shape[1])
        small["label"] = _writer.strings(folder, "label", names, "label")
    return small | _writer.of_samples(folder, n, sample_ids, split)


def _check_views(views: Mapping[str, ViewSpec]) -> None:
    if not views:
        raise UserError("a feature store needs at least one view, got none; pass views={name: ViewSpec(...)}")
    for name, spec in views.items():
        _writer.check_name(name, "the view")
        if not isinstance(spec, ViewSpec):
            raise TypeError(f"view {name!r} is described by {type(spec).__name__}; pass a ViewSpec")
        taken = {f"{view}_{part}" for view in views for part in OF_VIEWS}
        if name in RESERVED or name in taken:
            raise UserError(f"view name {name!r} is reserved for the store; choose another name")


def _check_one_class(labels: Block | None) -> None:
    if labels is None or not np.isin(labels.sum(axis=1, dtype=np.int64), (1, _UNKNOWN * labels.shape[1])).all():
        raise UserError(
            "class_labels needs labels in which every sample has exactly one; pass class_labels=False for label sets"
        )


def _check_labels(labels: Any, n: int, real: bool) -> Block:
    """Check labels of 0, 1 and NaN (returned as -1), or finite regression targets; return CSR if it is smaller."""
    values: Any = as_block(labels)
    if values.ndim != 2 or values.shape[0] != n or values.shape[1] == 0:
        raise UserError(f"labels have shape {values.shape}, need ({n}, L) with L >= 1; pass one row per sample")
    if real:
        values = values.astype(np.float64, copy=False)
    values = canonical(values)
    stored = unknown = 0
    for where in cell_blocks(values.shape):
        block = values[where]
        cells = stored_values(block)
        gaps = np.isnan(cells) if cells.dtype.kind == "f" else np.zeros(cells.shape, bool)
        bad = np.isinf(cells) if real else (cells != 0) & (cells != 1) & ~gaps
        if bad.any():
            row, column, value = first_entry(block, bad)
            needed = "targets must be finite numbers" if real else "labels are 0 or 1"
            raise UserError(
                f"labels, row {where.start + row}, column {column} is {value}; {needed}, or NaN if not known"
            )
        stored, unknown = stored + int(np.count_nonzero(cells)), unknown + int(np.count_nonzero(gaps))
    if unknown == math.prod(values.shape):
        raise UserError("all labels are NaN, expected at least one known label; omit the labels if none is known")
    if real:
        return dense(values)
    dtype = np.dtype(np.int8 if unknown else np.uint8)
    if values.dtype == dtype and not is_smaller_sparse(values.shape, stored, dtype):
        return dense(values)
    return gathered((_coded(values[where], dtype) for where in cell_blocks(values.shape)), values.shape, stored, dtype)


def _coded(block: Any, dtype: np.dtype) -> Any:
    """Convert labels to the dtype of the store, with -1 for unknown labels."""
    values = stored_values(block)
    values = np.where(np.isnan(values), _UNKNOWN, values) if values.dtype.kind == "f" else values
    return with_stored(block, values.astype(dtype))
