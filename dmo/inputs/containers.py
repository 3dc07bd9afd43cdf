"""Several views in one object that scikit-learn and dask-ml can index by rows."""

from __future__ import annotations

import logging
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, DTypeLike

from dmo.blocks import SINGLE, Rows, RowSource, Subset, rows
from dmo.devices import to_numpy
from dmo.errors import UserError
from dmo.formats.frames import as_frame, vectors
from dmo.inputs.needs import warn_caller

log = logging.getLogger("dmo")

Columns: TypeAlias = slice | Sequence[int] | Sequence[str]
"""Columns of a view in one array: a slice, their numbers, or of a DataFrame their names."""
RowKey: TypeAlias = slice | int | Sequence[int] | Sequence[bool] | np.ndarray
"""Which rows."""


class Views:
    """Views of the same samples with a number of rows, so that tools which split samples take them as one X.

    Rows are picked by slices, numbers or a mask, as scikit-learn does it; what is not in memory is not read for that. As a
    NumPy array (which some tools ask for) it is the views' columns side by side, which fitted estimators take as well.

    Parameters
    ----------
    data : mapping of view to rows, list of rows, FeatureStore, xarray Dataset, DataFrame, or one array
        Views of n samples each; of a Dataset the variables of two dimensions of which the first is that of the samples; a
        DataFrame whose columns have two levels (view, feature); or with `views` one array or DataFrame. Tables are ordered by
        the index of the first one.
    views : mapping of view to slice, list of int or list of str, or None, default=None
        Which columns of one array, or of a DataFrame by name, are the views.

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
    __iter__ = None  # neither over rows nor over names: `len` counts rows

    def __init__(self, data: Inputs, views: Mapping[str, Columns] | None = None):
        found = split_columns(data, views) if views is not None else as_views(data)
        if found is None:
            raise UserError(
                "Views: one array has no names of views; pass a mapping of names to arrays, or views={name: columns}"
            )
        if not found:
            raise UserError("Views: no views; pass at least one array of samples x features")
        self._views: dict[str, Any] = found
        counts = {name: int(view.shape[0]) for name, view in self._views.items()}
        if len(set(counts.values())) > 1:
            raise UserError(f"Views: the views have unequal rows {counts}; pass the same samples in every view")

    @property
    def shape(self) -> tuple[int, int]:
        """(samples, columns of all views)."""
        views = self._views.values()
        return int(next(iter(views)).shape[0]), sum(int(view.shape[1]) for view in views)

    def __len__(self) -> int:
        return self.shape[0]

    def keys(self) -> list[str]:
        """List the names of the views.

        Returns
        -------
        list of str
            Names.
        """
        return list(self._views)

    def items(self) -> list[tuple[str, Rows]]:
        """List the views with their names.

        Returns
        -------
        list of (str, rows)
            Names and rows.
        """
        return list(self._views.items())

    def __getitem__(self, key: Any) -> Any:
        """A view by its name; some rows of all views, as Views, by a slice, numbers or a mask."""
        if isinstance(key, str):
            if key not in self._views:
                raise KeyError(f"no view {key!r}; there are {list(self._views)}")
            return self._views[key]
        if isinstance(key, tuple):
            key, *rest = key
            if len(rest) == 1 and getattr(key, "ndim", 0) == 2:  # numpy.ix_: rows and columns of kernel matrices
                down, across = key.ravel(), rest[0].ravel()
                return Views({name: _square_part(view, down, across) for name, view in self._views.items()})
            if any(part is not Ellipsis and part != slice(None) for part in rest):
                raise UserError("Views: only rows can be picked; take a view by its name, then its columns")
        return Views({name: pick_rows(view, key) for name, view in self._views.items()})

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        parts: list[Any] = [
            rows(view) if not hasattr(view, "iloc") else view.to_numpy() for view in self._views.values()
        ]
        whole = np.hstack([part.toarray() if scipy.sparse.issparse(part) else np.asarray(part) for part in parts])
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def __dask_tokenize__(self) -> Any:
        from dask.base import normalize_token

        return "Views", normalize_token(list(self._views.items()))

    def __repr__(self) -> str:
        widths = ", ".join(f"{name}: {view.shape[1]}" for name, view in self._views.items())
        return f"<Views of {self.shape[0]} samples, {widths}>"


class ViewSource(Protocol):
    """Views of the same samples that belong to something: a feature store."""

    @property
    def views(self) -> Mapping[str, Any]:
        """Rows by name."""


Sparse: TypeAlias = scipy.sparse.sparray | scipy.sparse.spmatrix
"""A SciPy matrix of any format, which no type checker finds a shape in."""
Inputs: TypeAlias = (
    ArrayLike
    | RowSource
    | Sparse
    | Views
    | ViewSource
    | Mapping[Any, RowSource | Sparse | None]
    | Sequence[RowSource | Sparse]
)
"""X: one array or DataFrame, views by name (also an xarray Dataset, a feature store), or a list of views."""
Outputs: TypeAlias = ArrayLike | RowSource | Sparse | Sequence[Collection[Hashable]]
"""y: labels of 0 and 1, classes, numbers, or lists and sets of labels."""
RowWeights: TypeAlias = ArrayLike | Mapping[str, ArrayLike] | None
"""sample_weight: a number for every sample, or such by view."""
ClassWeight = Literal["balanced"] | dict[Any, float] | None
"""Weights of classes."""


def given_views(X: Any) -> dict[str, Any] | None:
    """Return several views as a mapping, as they were passed, or None if X is one view."""
    if isinstance(X, np.ndarray):
        return None
    if isinstance(X, Views):
        return dict(X.items())
    if hasattr(X, "data_vars"):  # an xarray Dataset
        return {str(name): array for name, array in X.data_vars.items() if is_rows(X, array)}
    if hasattr(X, "n_samples") and isinstance(getattr(X, "views", None), Mapping):  # a feature store
        return dict(X.views)
    if isinstance(X, Mapping) and not scipy.sparse.issparse(X):  # a DOK matrix is both
        return {str(key): view for key, view in X.items()}
    if isinstance(X, (list, tuple)) and any(getattr(view, "ndim", 0) == 2 for view in X):
        return {f"view{i}": view for i, view in enumerate(X)}
    if hasattr(X, "iloc") and getattr(getattr(X, "columns", None), "nlevels", 1) == 2:  # not a Series
        return {str(name): X[name] for name in dict.fromkeys(X.columns.get_level_values(0))}
    return None


def as_views(X: Inputs) -> dict[str, Any] | None:
    """Return several views as a mapping of unread rows in the order of the first table, or None if X is one view."""
    found = given_views(X)
    if found is not None:
        # before tables of libraries without an index become pandas' own, which have one
        labels = row_labels(X)
        return {name: plain(_ordered(view, f"view {name!r}", labels)) for name, view in found.items()}
    return None if (table := as_frame(X)) is None else _of_table(table)


@dataclass(frozen=True)
class RowLabels:
    """Labels of the rows of a table: its index."""

    index: Any  # a pandas Index
    owner: str  # for messages

    @property
    def counts(self) -> bool:
        """Whether the labels only count the rows, as those of a table without an index of its own."""
        step = getattr(self.index, "step", None)  # of a RangeIndex
        return step == 1 and self.index.start == 0


def row_labels(X: Any, owner: str = "X") -> RowLabels | None:
    """Return the labels of the rows of X, of several views those of the first table, or None if X is no table."""
    views = given_views(X)
    if views is not None:
        found = (row_labels(view, f"view {name!r}") for name, view in views.items())
        return next((labels for labels in found if labels is not None), None)
    if hasattr(X, "dims"):  # of xarray
        index = X.indexes.get(X.dims[0])
    else:  # the index of a dask DataFrame is not in memory, and that of a list is a method
        index = None if hasattr(X, "__dask_graph__") else getattr(X, "index", None)
    return RowLabels(index, owner) if hasattr(index, "is_unique") else None


def paired(X: Inputs, y: Any, sample_weight: Any = None) -> tuple[Any, Any]:
    """Order labels and weights as the rows of X: tables by their index, arrays by position.

    y (n, L); sample_weight (n,)
    """
    labels = row_labels(X)
    y = _ordered(y, "y", labels)
    labels = labels or row_labels(y, "y")
    if isinstance(sample_weight, Mapping):
        return y, {name: _ordered(own, f"sample_weight of {name!r}", labels) for name, own in sample_weight.items()}
    return y, _ordered(sample_weight, "sample_weight", labels)


def _ordered(part: Any, what: str, labels: RowLabels | None) -> Any:
    """Order the rows of a table by labels, if its own are a permutation of them; tables with other labels stay as they are."""
    own = row_labels(part, what) if labels is not None else None
    if labels is None or own is None or len(own.index) != len(labels.index) or own.index.equals(labels.index):
        return part
    alike = own.index.nlevels == labels.index.nlevels
    known = own.index.isin(labels.index) if alike else np.zeros(len(own.index), bool)
    if not known.any():
        return part  # labels of another kind
    if not (known.all() and own.index.is_unique and labels.index.is_unique):
        if own.counts or labels.counts:
            return part  # one of them has no index of its own
        repeated = known.all() and labels.index.isin(own.index).all()
        reason = "the same labels, repeated and in another order" if repeated else "only some labels in common"
        raise UserError(
            f"the indices of {labels.owner} and {what} have {reason}, so that rows cannot be paired by them; pass the same "
            "samples with unique labels, or reset_index(drop=True) of both to pair rows by position"
        )
    place = own.index.get_indexer(labels.index)
    if own.counts or labels.counts:
        warn_caller(
            f"rows of {what} are paired with {labels.owner} by their indices, one of which only counts rows; to pair rows by "
            "position, pass reset_index(drop=True) of both"
        )
    log.info("%s: its rows are ordered by the index of %s", what, labels.owner)
    return part.iloc[place] if hasattr(part, "iloc") else part[place]


def without_labels(X: Any) -> Any:
    """Remove the labels of rows, so that rows are paired by position.

    X (n, d)
    """
    if given_views(X) is not None:
        return {name: without_labels(view) for name, view in (as_views(X) or {}).items()}
    if row_labels(X) is None:
        return X
    return X.drop_indexes(X.dims[0]) if hasattr(X, "dims") else X.reset_index(drop=True)


def plain(X: Any) -> Any:
    """Rows of other libraries as those that are read everywhere: tables as pandas', arrays as NumPy's; others as they are."""
    if isinstance(X, np.ndarray) or scipy.sparse.issparse(X) or hasattr(X, "dims"):
        return X
    table = as_frame(X)
    return to_numpy(X) if table is None else table


def _of_table(table: Any) -> dict[str, Any] | None:
    """Columns of vectors as views by their names, what is left as one; None where there is no such column."""
    listed, left = vectors("X", table)
    if not listed:
        return None
    if not left.shape[1]:
        return listed if len(listed) > 1 else {SINGLE: next(iter(listed.values()))}
    return {SINGLE: left, **listed}


def is_rows(dataset: Any, array: Any) -> bool:
    """Tell whether a variable of an xarray Dataset is a view: numbers, samples x features, and no labels."""
    samples = "sample" if "sample" in dataset.dims else next(iter(dataset.dims))
    return array.ndim == 2 and array.dims[0] == samples and array.name != "labels" and array.dtype.kind in "biuf"


def split_columns(X: Inputs, views: Mapping[str, Columns]) -> dict[str, Any]:
    """Cut one array into views.

    X (n, d)
    """
    if as_views(X) is not None:
        raise UserError(f"X has views by itself, and views={views!r} name columns; pass one array, or views=None")
    if not isinstance(views, Mapping):
        raise UserError(f"views = {views!r}; pass a mapping of names to slices, numbers or names of columns")
    table = X if hasattr(X, "shape") and len(X.shape) == 2 else np.asarray(X)
    return {str(name): _columns(str(name), table, columns) for name, columns in views.items()}


def _columns(name: str, X: Any, columns: Columns) -> Any:
    named = not isinstance(columns, slice) and any(isinstance(column, str) for column in columns)
    if named and not hasattr(X, "columns"):
        raise UserError(f"view {name!r} names columns, but X is no DataFrame; pass a slice or numbers of columns")
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
        raise UserError(f"view {name!r}: X has no such columns ({error}); it has {X.shape[1]}") from error


def _square_part(view: Any, down: np.ndarray, across: np.ndarray) -> Rows:
    """Rows and columns of a kernel matrix, unread where it is not in memory."""
    if not isinstance(view, np.ndarray) and not scipy.sparse.issparse(view) and not hasattr(view, "compute"):
        import dask.array as da

        view = view.to_dask() if hasattr(view, "to_dask") else da.from_array(view)
    part: Rows = view[down][:, across]
    return part


def pick_rows(view: Rows, key: RowKey) -> Rows:
    """Pick rows of a view, as a row source; what is not in memory stays unread.

    view (n, d) -> (m, d)
    """
    # a square may be a kernel matrix, whose rows have to tell which of its columns are theirs, as a subset does
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
