"""Lazy predictions for dask arrays, and labeled predictions for xarray objects.

Predictions for dask arrays are lazy, and they have the same chunks of rows as the input. The fitted model is a single
node of the task graph instead of a part of every task.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import scipy.sparse
from dask.base import tokenize
from dask.delayed import delayed
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.validation import check_is_fitted

from dmo.blocks import as_block
from dmo.errors import UserError
from dmo.inputs import as_views, check_view_names, given_views, row_labels

if TYPE_CHECKING:
    import dask.array as da
_ROW, _COLUMN = 0, 1
"""Dimensions of the result, as indices for `dask.array.blockwise`."""
Method = TypeVar("Method", bound=Callable[..., Any])


def row_by_row(method: Method) -> Method:
    """Extend a method of an estimator, such as `predict`, to dask and xarray inputs."""
    # The method `_row_shape(name)` of the estimator returns the column names of the result, or None for a vector, and
    # the data type.
    name = method.__name__

    @functools.wraps(method)
    def wrapper(self: Any, X: Any, *args: Any, **kwargs: Any) -> Any:
        labeled = _labeled_rows(X)
        if labeled is not None:
            check_is_fitted(self)
            return _labeled(self, name, wrapper(self, _unlabeled(X), *args, **kwargs), *labeled)
        if not _is_dask(X):
            return _indexed(self, name, X, method(self, X, *args, **kwargs))
        check_is_fitted(self)
        if kwargs.get("as_names") or len(args) > 1:
            raise UserError(
                "as_names is not supported for dask arrays; leave it out, and look up the columns in classes_"
            )
        if args:
            kwargs |= {"top": args[0]}
        partial = self._takes_partial_views
        return _blocks(self, name, check_view_names(self, _arrays(X), partial), kwargs)

    return wrapper  # type: ignore[return-value]


def _indexed(model: Any, method: str, X: Any, found: Any) -> Any:
    """Keep the index of the input if the output is a DataFrame and the input consists of several tables."""
    # For a single table, scikit-learn keeps the index.
    if method != "transform" or given_views(X) is None or _get_output_config(method, model)["dense"] != "pandas":
        return found
    import pandas as pd

    labels = row_labels(X)
    return found if labels is None else pd.DataFrame(found, index=labels.index)


def _is_dask(X: Any) -> bool:
    """Return whether X, or one of its views, is a dask array or a dask DataFrame."""
    views = given_views(X)
    return any(hasattr(part, "__dask_graph__") for part in ([X] if views is None else views.values()))


def _arrays(X: Any) -> Any:
    """Convert dask DataFrames to dask arrays, without computing the number of rows."""
    views = as_views(X)
    if views is None:
        return X.to_dask_array() if hasattr(X, "to_dask_array") else X
    return {name: _arrays(view) if as_views(view) is None else view for name, view in views.items()}


def _blocks(model: Any, method: str, views: Mapping[str, Any], kwargs: dict[str, Any]) -> da.Array:
    """Apply the method to each chunk of rows. Views in memory are divided into the same chunks as dask arrays."""
    import dask.array as da

    chunks = next(view.chunks[0] for view in views.values() if hasattr(view, "__dask_graph__"))
    parts = []
    for number, (name, view) in enumerate(views.items()):
        if np.isnan(chunks).any() and not hasattr(view, "__dask_graph__"):
            raise UserError(
                f"view {name!r} is in memory, but another view has chunks with unknown numbers of rows; call "
                "compute_chunk_sizes() on the dask array of that view"
            )
        parts += [_aligned(view, chunks), (_ROW, _COLUMN + 1 + number)]
    columns, dtype = model._row_shape(method, **kwargs)
    frozen = copy.copy(model)  # A later fit must not change this result, so copy the model.
    token = tokenize(model, method, sorted(kwargs.items()), *views.values())
    node = delayed(frozen, name=f"{type(model).__name__}-{token}", traverse=False)
    sparse = method == "predict" and getattr(model, "_predicts_sparse", False)
    out, width = ((_ROW,), ()) if columns is None else ((_ROW, _COLUMN), (len(columns),))
    empty = scipy.sparse.csr_array((0, *width), dtype=dtype) if sparse else np.empty((0, *width), dtype)
    return da.blockwise(
        _apply,
        out,
        node,
        None,
        *parts,
        method=method,
        names=list(views),
        options=kwargs,
        empty=empty,
        name=f"{method}-{token}",
        new_axes=dict.fromkeys(out[1:], *width),
        dtype=dtype,
        meta=empty[:, :0] if width else empty,
        concatenate=False,
    )


def _aligned(view: Any, chunks: tuple[float, ...]) -> da.Array:
    """Return a view with the given chunks of whole rows. Chunks with an unknown number of rows are not changed."""
    import dask.array as da

    if not hasattr(view, "__dask_graph__"):
        return da.from_array(view, chunks=(chunks, -1))
    wanted: dict[int, Any] = {} if view.chunks[0] == chunks or np.isnan(chunks).any() else {0: chunks}
    wanted |= {1: -1} if view.numblocks[1] > 1 else {}
    return view.rechunk(wanted) if wanted else view


def _apply(
    model: Any, *blocks: Any, method: str, names: list[str], options: dict[str, Any], empty: Any
) -> np.ndarray | scipy.sparse.csr_array:
    """Apply the method to one chunk of rows, or return `empty` if the chunk has no rows."""
    # dask may pass a block as a list of column chunks. Here, the list has one element.
    views = {name: block[0] if isinstance(block, list) else block for name, block in zip(names, blocks, strict=True)}
    if not max(view.shape[0] for view in views.values()):
        return empty
    found = getattr(model, method)(views, **options)
    return as_block(found)


def _labeled_rows(X: Any) -> tuple[str, dict[str, Any]] | None:
    """Return the name of the sample dimension and its coordinates, or None if X is not an xarray object."""
    views = given_views(X)
    first: Any = X if views is None else next((view for view in views.values() if view is not None), None)
    if not (hasattr(first, "dims") and hasattr(first, "coords")):
        return None
    samples = first.dims[0]
    return samples, {name: part for name, part in first.coords.items() if part.dims == (samples,)}


def _unlabeled(X: Any) -> Any:
    views = given_views(X)
    return X.data if views is None else {name: getattr(view, "data", view) for name, view in views.items()}


def _labeled(model: Any, name: str, values: Any, samples: str, coordinates: dict[str, Any]) -> Any:
    import xarray as xr  # The input is an xarray object, so xarray is installed.

    if not hasattr(values, "shape"):
        return values
    known = dict(coordinates)
    dims = [samples]
    if values.ndim == 2:
        dims.append("component" if name == "transform" else "label")
        known[dims[1]] = np.asarray(model._row_shape(name)[0])
    return xr.DataArray(values, dims=dims, coords=known, name=name)
