"""Validation of views and labels: every estimator's input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, validate_data

from dmo.blocks import Rows, iterate, row_blocks, rows

_BLOCK = 8192
SINGLE = "x"
"""Name of the view when X is one array."""


def check_views(estimator: Any, X: Any, reset: bool) -> dict[str, Rows]:
    """X as a mapping view name -> row source, checked; with `reset` its names and widths are learnt, else compared.

    Arguments: `X`: a mapping, a list of arrays, or one array (view "x"); an array is NumPy, SciPy sparse, dask, Zarr or
    any row source. In-memory arrays must be finite; others are checked block by block.
    Raises ValueError naming the view for unequal rows, an empty or missing view, another width, NaN or infinity.
    """
    name = type(estimator).__name__
    mapping = isinstance(X, Mapping) and not scipy.sparse.issparse(X)  # a DOK matrix is both
    if not mapping and not _is_list_of_views(X):
        views = {SINGLE: _single(estimator, X, reset)}
    else:
        items = X.items() if mapping else ((f"view{i}", view) for i, view in enumerate(X))
        views = {str(key): _as_source(name, str(key), view) for key, view in items}
        if not views:
            raise ValueError(f"{name}: no views; pass at least one array of samples x features")
    n = {key: view.shape[0] for key, view in views.items()}
    first = next(iter(n))
    for key, view in views.items():
        if 0 in view.shape:
            raise ValueError(f"{name}: view {key!r} is empty (shape {tuple(view.shape)}); leave it out or fill it")
        if n[key] != n[first]:
            raise ValueError(
                f"{name}: view {key!r} has {n[key]} rows, view {first!r} has {n[first]}; "
                f"pass the same samples in every view"
            )
    widths = {key: int(view.shape[1]) for key, view in views.items()}
    if reset:
        if n[first] < 2:
            raise ValueError(f"{name}: got n_samples = {n[first]} (1 sample), needs at least 2 to learn from")
        estimator.view_widths_ = widths
        return views
    return _compare(name, views, widths, estimator.view_widths_)


def _compare(name: str, views: dict[str, Rows], got: dict[str, int], needed: dict[str, int]) -> dict[str, Rows]:
    for key in needed:
        if key not in got:
            raise ValueError(f"{name}: view {key!r} is missing; the model was fitted on {sorted(needed)}")
        if got[key] != needed[key]:
            raise ValueError(
                f"{name}: view {key!r} has {got[key]} features, the model was fitted on {needed[key]}; "
                f"pass the features that it was fitted on"
            )
    return {key: views[key] for key in needed}


def _is_list_of_views(X: Any) -> bool:
    return isinstance(X, (list, tuple)) and len(X) > 0 and all(getattr(view, "ndim", 0) == 2 for view in X)


def _is_lazy(X: Any) -> bool:
    """A row source that is not in memory: dask, Zarr, a store's view."""
    if isinstance(X, np.ndarray) or scipy.sparse.issparse(X):
        return False
    return all(hasattr(X, part) for part in ("shape", "dtype", "__getitem__")) and len(X.shape) == 2


def _single(estimator: Any, X: Any, reset: bool) -> Rows:
    if not _is_lazy(X):
        return validate_data(estimator, X, reset=reset, accept_sparse="csr", dtype="numeric", ensure_min_samples=1)
    if reset:
        estimator.n_features_in_ = X.shape[1]
    return _as_source(type(estimator).__name__, SINGLE, X)


def _as_source(name: str, key: str, view: Any) -> Rows:
    if _is_lazy(view):
        for where, block in iterate(view, _BLOCK):
            _refuse_non_finite(name, key, block, where.start)
        return view
    if getattr(view, "ndim", 2) == 2 and 0 in getattr(view, "shape", ()):
        return view
    try:
        array = check_array(view, accept_sparse="csr", dtype="numeric", ensure_all_finite=False, estimator=name)
    except ValueError as error:
        raise ValueError(f"{name}: view {key!r}: {error}") from error
    _refuse_non_finite(name, key, array, 0)
    return array


def _refuse_non_finite(name: str, key: str, block: Any, first_row: int) -> None:
    data = block.data if scipy.sparse.issparse(block) else block
    if data.dtype.kind != "f" or np.isfinite(data).all():
        return
    at = np.argwhere(~np.isfinite(block.toarray() if scipy.sparse.issparse(block) else block))[0]
    value = block[at[0], at[1]]
    raise ValueError(
        f"{name}: view {key!r} has {value} at row {first_row + at[0]}, column {at[1]}; "
        f"fill missing values, or drop the sample from every view"
    )


def check_labels(
    estimator: Any, Y: Any, n: int, learn_classes: bool = True, dtype: type[np.generic] = np.float64
) -> np.ndarray:
    """Y as 0/1 of shape n x L and that dtype; a vector of classes becomes one column per class (`classes_`).

    Raises ValueError for another number of rows, for values other than 0 and 1, for NaN (row and column named).
    """
    name = type(estimator).__name__
    if Y is None:
        raise ValueError(f"{name}: requires y to be passed, but the target y is None; pass labels (n x L, 0/1)")
    if hasattr(Y, "compute"):
        Y = Y.compute()
    Y = rows(Y) if _is_lazy(Y) and not hasattr(Y, "iloc") else Y
    Y = Y.toarray() if scipy.sparse.issparse(Y) else np.asarray(Y)
    if Y.ndim == 2 and Y.shape[1] == 1 and not np.isin(Y, (0, 1)).all():
        Y = Y.ravel()
    if Y.shape[:1] != (n,):
        raise ValueError(
            f"{name}: found input variables with inconsistent numbers of samples: labels have {Y.shape[0]} rows, the "
            f"views have {n}; pass one row of labels per sample"
        )
    if Y.ndim == 1:
        return _from_classes(estimator, name, Y, learn_classes).astype(dtype)
    if Y.ndim != 2:
        raise ValueError(f"{name}: labels have shape {Y.shape}; needed is samples x labels")
    Y = Y if Y.dtype.kind in "bu" else Y.astype(np.float64)
    for where in row_blocks(n, _BLOCK):
        wrong = np.argwhere((Y[where] != 0) & (Y[where] != 1))
        if not len(wrong):
            continue
        i, j = wrong[0] + (where.start, 0)
        raise ValueError(f"{name}: labels must be 0 or 1, got {Y[i, j]:g} at row {i}, column {j}; binarise them first")
    if learn_classes:
        if not Y.any():
            raise ValueError(f"{name}: no sample has any label; pass labels with at least one 1")
        estimator.classes_, estimator.multilabel_ = np.arange(Y.shape[1]), True
    return Y.astype(dtype)


def _from_classes(estimator: Any, name: str, y: np.ndarray, learn: bool) -> np.ndarray:
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise ValueError(f"{name}: input y contains NaN or infinity at row {np.flatnonzero(~np.isfinite(y))[0]}")
    check_classification_targets(y)
    if learn:
        estimator.classes_, estimator.multilabel_ = np.unique(y), False
    return np.asarray(y[:, None] == estimator.classes_[None, :])


def count_components(name: str, wanted: float, n_labels: int, label_rank: int, n: int) -> int:
    """Number of components: an integer, or a fraction (0, 1] of the labels, at most the rank of the centred labels."""
    if isinstance(wanted, (int, np.integer)) and not isinstance(wanted, bool):
        if not 1 <= wanted <= n - 1:
            raise ValueError(
                f"{name}: n_components = {wanted} but there are {n} samples; needed is 1 <= n_components <= {n - 1}"
            )
        return int(wanted)
    if not 0 < wanted <= 1:
        raise ValueError(f"{name}: n_components = {wanted}; pass an integer, or a fraction of the labels in (0, 1]")
    return max(1, min(round(wanted * n_labels), label_rank, n - 1))


def label_rank(Y: np.ndarray) -> int:
    """Rank of the centred labels Y (n x L)."""
    return int(np.linalg.matrix_rank(Y - Y.mean(axis=0)))


def positive(who: str, what: str, value: Any) -> float:
    """`value` as a float above 0, or a ValueError that names it."""
    if not isinstance(value, (int, float, np.number)) or not value > 0 or not np.isfinite(value):
        raise ValueError(f"{who}: {what} must be a positive number, got {value!r}")
    return float(value)


def per_view(name: str, what: str, value: Any, views: Sequence[str]) -> dict[str, Any]:
    """`value` for every view: one for all, a mapping view -> value, or a list in the views' order."""
    if isinstance(value, Mapping) and not {"name", "kind", "type"} & set(value):
        missing = [view for view in views if view not in value]
        if missing:
            raise ValueError(f"{name}: {what} has no entry for view {missing[0]!r}; give one per view: {list(views)}")
        return {view: value[view] for view in views}
    if isinstance(value, (list, tuple)):
        if len(value) != len(views):
            raise ValueError(f"{name}: {what} has {len(value)} entries for {len(views)} views; give one per view")
        return dict(zip(views, value, strict=True))
    return dict.fromkeys(views, value)
