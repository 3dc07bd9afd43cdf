"""Containers for several views that scikit-learn and dask-ml can index by rows."""

from __future__ import annotations

import logging
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, DTypeLike

from dmo.blocks import SINGLE, Rows, RowSource, Subset, dense, in_memory, rows
from dmo.devices import to_numpy
from dmo.errors import UserError
from dmo.formats.frames import as_frame, vectors
from dmo.inputs.needs import warn_caller
from dmo.representation import table

log = logging.getLogger("dmo")

Columns: TypeAlias = slice | Sequence[int] | Sequence[str]
"""Columns of one array that form a view: a slice, column indices, or column names of a DataFrame."""
RowKey: TypeAlias = slice | int | Sequence[int] | Sequence[bool] | np.ndarray
"""Selection of rows: a slice, row indices or a mask."""


class Views:
    """Container that passes several views as one X to tools such as `GridSearchCV`.

    Indexing with a slice, row indices or a mask selects the same samples in every view, without reading data outside
    memory. Conversion to a NumPy array concatenates the columns of the views. Fitted estimators also accept this array.

    Parameters
    ----------
    data : mapping of view to rows, list of rows, FeatureStore, xarray Dataset, DataFrame, or one array
        Views of the same n samples. In a Dataset, every numeric variable of shape (samples, features) is a view, except
        a variable named "labels". The columns of a DataFrame must have two levels (view, feature). If `views` is given,
        `data` must be one array or DataFrame. If tables have matching indices, rows follow the index of the first table.
    views : mapping of view to slice, list of int or list of str, or None, default=None
        Columns that form each view, if `data` is one array or DataFrame.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from sklearn.model_selection import GridSearchCV
    >>> from dmo import MultiViewRidge, Views
    >>> X, Y = make_multilabel_classification(n_samples=60, n_classes=4, random_state=0)
    >>> views = Views({"words": X[:, :10], "shapes": X[:, 10:]})
    >>> views.shape, views[np.arange(5)].shape, views["words"].shape
    ((60, 20), (5, 20), (60, 10))
    >>> search = GridSearchCV(MultiViewRidge(), {"ridge": [0.01, 1.0]}, cv=3).fit(views, Y)
    >>> list(search.best_params_)
    ['ridge']
    """

    ndim = 2
    __iter__ = None  # Iteration would be ambiguous, because `len` counts rows but the keys are view names.

    def __init__(self, data: Inputs, views: Mapping[str, Columns] | None = None):
        found = split_columns(data, views) if views is not None else as_views(data)
        if found is None:
            raise UserError(
                "Views: got one array without names of views; pass a mapping from name to array, or views={...}"
            )
        if not found:
            raise UserError("Views: no views; pass at least one array of samples x features")
        self._views: dict[str, Any] = found
        counts = {name: int(view.shape[0]) for name, view in self._views.items()}
        if len(set(counts.values())) > 1:
            raise UserError(f"Views: the views have unequal rows {counts}; pass the same samples in every view")

    @property
    def shape(self) -> tuple[int, int]:
        """Number of samples and total number of columns of all views."""
        views = self._views.values()
        return int(next(iter(views)).shape[0]), sum(int(view.shape[1]) for view in views)

    def __len__(self) -> int:
        return self.shape[0]

    def keys(self) -> list[str]:
        """List the names of the views.

        Returns
        -------
        list of str
            Names of the views.
        """
        return list(self._views)

    def items(self) -> list[tuple[str, Rows]]:
        """List the views with their names.

        Returns
        -------
        list of (str, rows)
            Name and rows of each view.
        """
        return list(self._views.items())

    def __getitem__(self, key: Any) -> Any:
        """Return the view with a given name, or a `Views` object with selected rows of all views."""
        if isinstance(key, str):
            if key not in self._views:
                raise KeyError(f"view {key!r} is unknown; the views are {list(self._views)}")
            return self._views[key]
        if isinstance(key, tuple):
            key, *rest = key
            if len(rest) == 1 and getattr(key, "ndim", 0) == 2:  # numpy.ix_ selects rows and columns of kernel matrices
                down, across = key.ravel(), rest[0].ravel()
                return Views({name: _square_part(view, down, across) for name, view in self._views.items()})
            if any(part is not Ellipsis and part != slice(None) for part in rest):
                raise UserError("Views: only rows can be picked; select a view by its name, then its columns")
        return Views({name: pick_rows(view, key) for name, view in self._views.items()})

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        parts: list[Any] = [
            rows(view) if not hasattr(view, "iloc") else view.to_numpy() for view in self._views.values()
        ]
        whole = np.hstack([dense(part) for part in parts])
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def __dask_tokenize__(self) -> Any:
        from dask.base import normalize_token

        return "Views", normalize_token(list(self._views.items()))

    def __repr__(self) -> str:
        widths = ", ".join(f"{name}: {view.shape[1]}" for name, view in self._views.items())
        return f"<Views of {self.shape[0]} samples, {widths}>"

    def _repr_html_(self) -> str:
        """Represent the views in notebooks by a table."""
        rows = [(name, int(view.shape[1]), _type_of(view), type(view).__name__) for name, view in self._views.items()]
        return table(["view", "columns", "data type", "container"], rows, f"Views of {self.shape[0]} samples")


def _type_of(view: Any) -> str:
    """Return the data types of the columns of a view."""
    return ", ".join(dict.fromkeys(map(str, view.dtypes if hasattr(view, "iloc") else [view.dtype])))


class ViewSource(Protocol):
    """Protocol of objects that hold views of the same samples, such as a feature store."""

    @property
    def views(self) -> Mapping[str, Any]:
        """Mapping from view name to rows."""


Sparse: TypeAlias = scipy.sparse.sparray | scipy.sparse.spmatrix
"""SciPy sparse matrix of any format, for which the type stubs of SciPy declare no shape."""
Inputs: TypeAlias = (
    ArrayLike
    | RowSource
    | Sparse
    | Views
    | ViewSource
    | Mapping[Any, RowSource | Sparse | None]
    | Sequence[RowSource | Sparse]
)
"""Type of X: one array or DataFrame, a mapping or list of views, an xarray Dataset, or a feature store."""
Outputs: TypeAlias = ArrayLike | RowSource | Sparse | Sequence[Collection[Hashable]]
"""Type of y: a label matrix of 0 and 1, classes, regression targets, or a list of label sets."""
RowWeights: TypeAlias = ArrayLike | Mapping[str, ArrayLike] | None
"""Type of sample_weight: one weight per sample, or a mapping from view name to one weight per sample."""
WeightDetail: TypeAlias = Literal["sample", "view", "entry"]
"""Most detailed sample weights of a method: one per sample, one per sample and view, or also one per label entry."""
ClassWeight = Literal["balanced"] | dict[Any, float] | None
"""Type of class_weight."""


def given_views(X: Any) -> dict[str, Any] | None:
    """Return the views of X by name without converting them, or None if X is a single view."""
    if isinstance(X, np.ndarray):
        return None
    if isinstance(X, Views):
        return dict(X.items())
    if hasattr(X, "data_vars"):  # Only an xarray Dataset has `data_vars`.
        return {str(name): array for name, array in X.data_vars.items() if is_rows(X, array)}
    # Feature stores have these attributes.
    if hasattr(X, "n_samples") and isinstance(getattr(X, "views", None), Mapping):
        return dict(X.views)
    if isinstance(X, Mapping) and not scipy.sparse.issparse(X):  # A SciPy DOK matrix is also a Mapping.
        return {str(key): view for key, view in X.items()}
    if isinstance(X, (list, tuple)) and any(getattr(view, "ndim", 0) == 2 for view in X):
        return {f"view{i}": view for i, view in enumerate(X)}
    if hasattr(X, "iloc") and getattr(getattr(X, "columns", None), "nlevels", 1) == 2:  # A Series has no columns.
        return {str(name): X[name] for name in dict.fromkeys(X.columns.get_level_values(0))}
    return None


def as_views(X: Inputs) -> dict[str, Any] | None:
    """Return the views of X by name, with rows in the order of the first table, or None if X is a single view."""
    found = given_views(X)
    if found is not None:
        # Conversion to pandas adds an index to tables without one, so look up the index first.
        labels = row_labels(X)
        return {name: plain(_ordered(view, f"view {name!r}", labels)) for name, view in found.items()}
    return None if (table := as_frame(X)) is None else _of_table(table)


@dataclass(frozen=True)
class RowLabels:
    """Index of a table, which contains one label per row."""

    index: Any  # index as a pandas object
    owner: str  # name of the table in messages

    @property
    def counts(self) -> bool:
        """Whether the index is the default one, which numbers the rows 0, 1, 2, ..."""
        step = getattr(self.index, "step", None)  # Only a RangeIndex has a step.
        return step == 1 and self.index.start == 0


def row_labels(X: Any, owner: str = "X") -> RowLabels | None:
    """Return the index of X, or of the first table among several views; return None if there is no table."""
    views = given_views(X)
    if views is not None:
        found = (row_labels(view, f"view {name!r}") for name, view in views.items())
        return next((labels for labels in found if labels is not None), None)
    if hasattr(X, "dims"):  # Only xarray objects have `dims`.
        index = X.indexes.get(X.dims[0])
    else:  # The index of a dask DataFrame is not in memory, and `index` is a method of lists.
        index = None if hasattr(X, "__dask_graph__") else getattr(X, "index", None)
    return RowLabels(index, owner) if hasattr(index, "is_unique") else None


def paired(X: Inputs, y: Any, sample_weight: Any = None) -> tuple[Any, Any]:
    """Reorder the rows of y and sample_weight to match X; rows of arrays keep their order."""
    if isinstance(X, np.ndarray) and isinstance(y, np.ndarray | None) and isinstance(sample_weight, np.ndarray | None):
        return y, sample_weight
    labels = row_labels(X)
    y = _ordered(y, "y", labels)
    labels = labels or row_labels(y, "y")
    if isinstance(sample_weight, Mapping):
        return y, {name: _ordered(own, f"sample_weight of {name!r}", labels) for name, own in sample_weight.items()}
    return y, _ordered(sample_weight, "sample_weight", labels)


def _ordered(part: Any, what: str, labels: RowLabels | None) -> Any:
    """Reorder the rows of a table to match the index `labels` if its own index is a permutation of that index."""
    own = row_labels(part, what) if labels is not None else None
    if labels is None or own is None or len(own.index) != len(labels.index) or own.index.equals(labels.index):
        return part
    alike = own.index.nlevels == labels.index.nlevels
    known = own.index.isin(labels.index) if alike else np.zeros(len(own.index), bool)
    if not known.any():
        return part  # The indices have no label in common.
    if not (known.all() and own.index.is_unique and labels.index.is_unique):
        if own.counts or labels.counts:
            return part  # The default index of one of the tables identifies no samples.
        repeated = known.all() and labels.index.isin(own.index).all()
        reason = "the same labels, repeated and in another order" if repeated else "only some labels in common"
        raise UserError(
            f"the indices of {labels.owner} and {what} have {reason}, so that rows cannot be paired by them; pass the "
            "same samples with unique labels, or reset_index(drop=True) of both to pair rows by position"
        )
    place = own.index.get_indexer(labels.index)
    if own.counts or labels.counts:
        warn_caller(
            f"rows of {what} are paired with {labels.owner} by their indices, one of which only numbers the rows; to "
            "pair rows by position, pass reset_index(drop=True) of both"
        )
    log.info("%s: its rows are ordered by the index of %s", what, labels.owner)
    return part.iloc[place] if hasattr(part, "iloc") else part[place]


def without_labels(X: Any) -> Any:
    """Remove the index of X, so that its rows are matched to other data by position."""
    if given_views(X) is not None:
        return {name: without_labels(view) for name, view in (as_views(X) or {}).items()}
    if row_labels(X) is None:
        return X
    return X.drop_indexes(X.dims[0]) if hasattr(X, "dims") else X.reset_index(drop=True)


def plain(X: Any) -> Any:
    """Convert tables from other libraries to pandas and arrays to NumPy; return other objects unchanged."""
    if in_memory(X) or hasattr(X, "dims"):
        return X
    table = as_frame(X)
    return to_numpy(X) if table is None else table


def _of_table(table: Any) -> dict[str, Any] | None:
    """Return each column of vectors as a view, and all other columns as one view; return None without such columns."""
    listed, left = vectors("X", table)
    if not listed:
        return None
    if not left.shape[1]:
        return listed if len(listed) > 1 else {SINGLE: next(iter(listed.values()))}
    return {SINGLE: left, **listed}


def is_rows(dataset: Any, array: Any) -> bool:
    """Return whether a variable of an xarray Dataset is numeric, of shape (samples, features), and not named "labels"."""
    samples = "sample" if "sample" in dataset.dims else next(iter(dataset.dims))
    return array.ndim == 2 and array.dims[0] == samples and array.name != "labels" and array.dtype.kind in "biuf"


def split_columns(X: Inputs, views: Mapping[str, Columns]) -> dict[str, Any]:
    """Split the columns of an array or table of shape (n, d) into named views."""
    if as_views(X) is not None:
        raise UserError(f"X already has views, but views={views!r} selects columns of one array; pass views=None")
    if not isinstance(views, Mapping):
        raise UserError(f"views = {views!r}; pass a mapping of names to slices, column indices or column names")
    table = X if hasattr(X, "shape") and len(X.shape) == 2 else np.asarray(X)
    return {str(name): _columns(str(name), table, columns) for name, columns in views.items()}


def _columns(name: str, X: Any, columns: Columns) -> Any:
    named = not isinstance(columns, slice) and any(isinstance(column, str) for column in columns)
    if named and not hasattr(X, "columns"):
        raise UserError(f"view {name!r} has column names, but X is not a DataFrame; pass a slice or column indices")
    try:
        if named:
            return X[list(columns)]  # type: ignore[arg-type]
        where = columns if isinstance(columns, slice) else [int(column) for column in columns]
        if hasattr(X, "iloc"):
            return X.iloc[:, where]
        return (
            X[:, where] if hasattr(X, "ndim") and not scipy.sparse.issparse(X) else scipy.sparse.csr_array(X)[:, where]
        )
    except (KeyError, IndexError) as error:
        raise UserError(
            f"view {name!r}: X does not have these columns ({error}); pass some of its {X.shape[1]} columns"
        ) from error


def _square_part(view: Any, down: np.ndarray, across: np.ndarray) -> Rows:
    """Select rows and columns of a kernel matrix, lazily if it is not in memory."""
    if not in_memory(view) and not hasattr(view, "compute"):
        import dask.array as da

        view = view.to_dask() if hasattr(view, "to_dask") else da.from_array(view)
    part: Rows = view[down][:, across]
    return part


def pick_rows(view: Rows, key: RowKey) -> Rows:
    """Select rows of a view of shape (n, d), without reading data outside memory."""
    # A square view may be a kernel matrix, whose columns are selected later by the row indices that a `Subset` keeps.
    square = view.shape[0] == view.shape[1]
    if not isinstance(key, slice):
        key = np.atleast_1d(np.asarray(key))
        key = np.flatnonzero(key) if key.dtype == bool else key.astype(np.intp)
    if hasattr(view, "iloc"):
        return view.iloc[key]
    if scipy.sparse.issparse(view):
        view = scipy.sparse.csr_array(view)
    in_parts = isinstance(view, np.ndarray) or hasattr(view, "compute") or hasattr(view, "dims")
    if (scipy.sparse.issparse(view) or in_parts) and not square:
        return view[key]
    n = view.shape[0]
    index = np.arange(n)[key]
    return Subset(view.source, view.index[index]) if isinstance(view, Subset) else Subset(view, index)
