"""Validation of views and labels: every estimator's input."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_array, validate_data

from dmo.blocks import Rows, iterate, row_blocks, rows
from dmo.errors import UserError
from dmo.labels.kernels import LabelKernel, label_factor

_BLOCK = 8192
_LARGEST = 1e140  # beyond, sums of squares leave float64
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
            raise UserError(f"{name}: no views; pass at least one array of samples x features")
    n = {key: view.shape[0] for key, view in views.items()}
    first = next(iter(n))
    for key, view in views.items():
        if 0 in view.shape:
            raise UserError(f"{name}: view {key!r} is empty (shape {tuple(view.shape)}); leave it out or fill it")
        if n[key] != n[first]:
            raise UserError(
                f"{name}: view {key!r} has {n[key]} rows, view {first!r} has {n[first]}; "
                f"pass the same samples in every view"
            )
    widths = {key: int(view.shape[1]) for key, view in views.items()}
    if reset:
        if n[first] < 2:
            raise UserError(f"{name}: got n_samples = {n[first]} (1 sample), needs at least 2 to learn from")
        estimator.view_widths_ = widths
        return views
    return _compare(name, views, widths, estimator.view_widths_)


def _compare(name: str, views: dict[str, Rows], got: dict[str, int], needed: dict[str, int]) -> dict[str, Rows]:
    for key in needed:
        if key not in got:
            raise UserError(f"{name}: view {key!r} is missing; the model was fitted on {sorted(needed)}")
        if got[key] != needed[key]:
            raise UserError(
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
        try:
            X = validate_data(estimator, X, reset=reset, accept_sparse="csr", dtype="numeric", ensure_min_samples=1)
        except ValueError as error:
            raise UserError(str(error)) from error
        _refuse_non_finite(type(estimator).__name__, SINGLE, X, 0)
        return X
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
        raise UserError(f"{name}: view {key!r}: {error}") from error
    _refuse_non_finite(name, key, array, 0)
    return array


def _refuse_non_finite(name: str, key: str, block: Any, first_row: int) -> None:
    """Refuse NaN, infinities, and numbers so large that sums of their squares overflow, with row and column."""
    data = block.data if scipy.sparse.issparse(block) else block
    if data.dtype.kind != "f" or not data.size or (float(data.max()) <= _LARGEST and float(data.min()) >= -_LARGEST):
        return  # a NaN is the largest and the smallest, and compares as neither
    stored = block.toarray() if scipy.sparse.issparse(block) else block
    at = np.argwhere(~(np.abs(stored) <= _LARGEST))[0]
    value = block[at[0], at[1]]
    cure = "divide the features by a constant" if np.isfinite(value) else "fill missing values"
    cure += ", so that their squares are numbers" if np.isfinite(value) else ", or drop the sample from every view"
    raise UserError(f"{name}: view {key!r} has {value} at row {first_row + at[0]}, column {at[1]}; {cure}")


def check_labels(
    estimator: Any, Y: Any, n: int, learn_classes: bool = True, dtype: type[np.generic] = np.float64
) -> np.ndarray:
    """Y as 0/1 of shape n x L and that dtype; a vector of classes becomes one column per class (`classes_`).

    Raises ValueError for another number of rows, for values other than 0 and 1, for NaN (row and column named).
    """
    name = type(estimator).__name__
    if Y is None:
        raise UserError(f"{name}: requires y to be passed, but the target y is None; pass labels (n x L, 0/1)")
    if hasattr(Y, "compute"):
        Y = Y.compute()
    Y = rows(Y) if _is_lazy(Y) and not hasattr(Y, "iloc") else Y
    Y = Y.toarray() if scipy.sparse.issparse(Y) else np.asarray(Y)
    if Y.ndim == 2 and Y.shape[1] == 1 and not np.isin(Y, (0, 1)).all():
        Y = Y.ravel()
    if Y.shape[:1] != (n,):
        raise UserError(
            f"{name}: found input variables with inconsistent numbers of samples: labels have {Y.shape[0]} rows, the "
            f"views have {n}; pass one row of labels per sample"
        )
    if Y.ndim == 1:
        return _from_classes(estimator, name, Y, learn_classes).astype(dtype)
    if Y.ndim != 2:
        raise UserError(f"{name}: labels have shape {Y.shape}; needed is samples x labels")
    Y = Y if Y.dtype.kind in "bu" else Y.astype(np.float64)
    for where in row_blocks(n, _BLOCK):
        wrong = np.argwhere((Y[where] != 0) & (Y[where] != 1))
        if not len(wrong):
            continue
        i, j = wrong[0] + (where.start, 0)
        raise UserError(f"{name}: labels must be 0 or 1, got {Y[i, j]:g} at row {i}, column {j}; binarise them first")
    if learn_classes:
        if not Y.any():
            raise UserError(f"{name}: no sample has any label; pass labels with at least one 1")
        estimator.classes_, estimator.multilabel_ = np.arange(Y.shape[1]), True
    return Y.astype(dtype)


def _from_classes(estimator: Any, name: str, y: np.ndarray, learn: bool) -> np.ndarray:
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise UserError(f"{name}: input y contains NaN or infinity at row {np.flatnonzero(~np.isfinite(y))[0]}")
    check_classification_targets(y)
    if learn:
        estimator.classes_, estimator.multilabel_ = np.unique(y), False
    return np.asarray(y[:, None] == estimator.classes_[None, :])


def count_components(name: str, wanted: float, n_labels: int, label_rank: int, n: int) -> int:
    """Number of components: an integer, or a fraction (0, 1] of the labels, at most the rank of the centered labels."""
    if isinstance(wanted, (int, np.integer)) and not isinstance(wanted, bool):
        if not 1 <= wanted <= n - 1:
            raise UserError(
                f"{name}: n_components = {wanted} but there are {n} samples; needed is 1 <= n_components <= {n - 1}"
            )
        return int(wanted)
    if not 0 < wanted <= 1:
        raise UserError(f"{name}: n_components = {wanted}; pass an integer, or a fraction of the labels in (0, 1]")
    return max(1, min(round(wanted * n_labels), label_rank, n - 1))


def label_rank(Y: np.ndarray) -> int:
    """Rank of the centered labels Y (n x L)."""
    return int(np.linalg.matrix_rank(Y - Y.mean(axis=0)))


def positive(who: str, what: str, value: Any) -> float:
    """`value` as a float above 0, or a ValueError that names it."""
    if not isinstance(value, (int, float, np.number)) or not value > 0 or not np.isfinite(value):
        raise UserError(f"{who}: {what} must be a positive number, got {value!r}")
    return float(value)


def per_view(name: str, what: str, value: Any, views: Sequence[str]) -> dict[str, Any]:
    """`value` for every view: one for all, a mapping view -> value, or a list in the views' order."""
    if isinstance(value, Mapping) and not {"name", "kind", "type"} & set(value):
        missing = [view for view in views if view not in value]
        if missing:
            raise UserError(f"{name}: {what} has no entry for view {missing[0]!r}; give one per view: {list(views)}")
        return {view: value[view] for view in views}
    if isinstance(value, (list, tuple)):
        if len(value) != len(views):
            raise UserError(f"{name}: {what} has {len(value)} entries for {len(views)} views; give one per view")
        return dict(zip(views, value, strict=True))
    return dict.fromkeys(views, value)


def whole(who: str, name: str, value: Any) -> int:
    """`value` as a whole number of at least 1, or a ValueError that names it."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise UserError(f"{who}: {name} must be a whole number of at least 1, got {value!r}")
    return int(value)


def partial_labels(who: str, y: Any, n: int) -> np.ndarray:
    """Labels as n x c of 0 and 1; samples without labels are rows of zeros.

    Argument `y`: n classes, -1 (or NaN) for none; or n x c of 0 and 1, a row of zeros or of NaN for none.
    Raises ValueError for another number of rows, other values, and where no sample has a label.
    """
    if y is None:
        raise UserError(f"{who}: requires y to be passed, but the target y is None; pass classes or labels (n x c)")
    if hasattr(y, "compute"):
        y = y.compute()
    y = y.toarray() if scipy.sparse.issparse(y) else np.asarray(y)
    if y.shape[:1] != (n,):
        raise UserError(
            f"{who}: found input variables with inconsistent numbers of samples: y has {len(y)} rows, X has {n}; "
            f"pass one row of labels per sample"
        )
    if y.ndim == 2 and y.shape[1] == 1 and not np.isin(y, (0, 1)).all():
        y = y.ravel()
    Y = _partial_from_classes(y) if y.ndim == 1 else _partial_from_matrix(who, y)
    if not Y.any():
        raise UserError(f"{who}: no sample has a label; pass labels for some of them")
    return Y[:, Y.any(axis=0)]


def _partial_from_classes(y: np.ndarray) -> np.ndarray:
    known = np.ones(len(y), bool)
    if y.dtype.kind in "iuf":
        known = (y != -1) & np.isfinite(y)
    check_classification_targets(y[known])
    return ((y[:, None] == np.unique(y[known])[None, :]) & known[:, None]).astype(np.float64)


def _partial_from_matrix(who: str, y: np.ndarray) -> np.ndarray:
    Y = y.astype(np.float64)
    Y[np.isnan(Y).all(axis=1)] = 0.0
    wrong = np.argwhere((Y != 0) & (Y != 1))
    if len(wrong):
        i, j = wrong[0]
        raise UserError(
            f"{who}: labels must be 0 or 1, got {Y[i, j]:g} at row {i}, column {j}; binarise them, and leave the whole "
            f"row 0 or NaN where a sample's labels are not known"
        )
    return Y


def named(who: str, error: UserError) -> UserError:
    """The error with the estimator's name before its text."""
    text = str(error)
    return type(error)(text if text.startswith(who.partition("(")[0]) else f"{who}: {text}")


def check_outputs(who: str, y: Any, n: int) -> tuple[np.ndarray, bool]:
    """y as float64 n x L, and whether it was a vector. Raises ValueError for other rows, NaN, no numbers."""
    if y is None:
        raise UserError(f"{who}: requires y to be passed, but the target y is None; pass outputs (n x L)")
    if hasattr(y, "compute"):
        y = y.compute()
    Y = y.toarray() if scipy.sparse.issparse(y) else np.asarray(y)
    try:
        Y = Y.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{who}: outputs must be numbers, got {Y.dtype}; for classes pass one +1/-1 column each"
        ) from error
    if Y.shape[:1] != (n,) or Y.ndim > 2 or 0 in Y.shape:
        raise UserError(
            f"{who}: found input variables with inconsistent numbers of samples: outputs have shape {Y.shape}, X has "
            f"{n} rows; pass one row of outputs per sample"
        )
    if not np.isfinite(Y).all():
        at = np.argwhere(~np.isfinite(Y))[0]
        place = f"row {at[0]}" + (f", output {at[1]}" if Y.ndim == 2 else "")
        raise UserError(
            f"{who}: input y contains NaN or infinity at {place}; fill the missing values, or drop the sample"
        )
    return (Y[:, None], True) if Y.ndim == 1 else (Y, False)


def warn_of_outputs(who: str, Y: np.ndarray) -> None:
    if Y.shape[1] == 1:
        return
    constant = np.flatnonzero(np.ptp(Y, axis=0) == 0)
    if constant.size:
        warnings.warn(
            f"{who}: output {constant[0]} is constant ({Y[0, constant[0]]:g}) in all samples ({constant.size} of "
            f"{Y.shape[1]} outputs are); it teaches nothing, leave it out",
            UserWarning,
            stacklevel=4,
        )
    ordered = np.lexsort(Y)
    same = [pair for pair in itertools.pairwise(ordered) if np.array_equal(Y[:, pair[0]], Y[:, pair[1]])]
    twins = [sorted(map(int, pair)) for pair in same if not {*pair} & {*constant}]
    if twins:
        warnings.warn(
            f"{who}: outputs {twins[0][0]} and {twins[0][1]} are the same in all samples; their errors count twice, "
            f"leave one out",
            UserWarning,
            stacklevel=4,
        )


def outputs_factor(who: str, y: Any, n: int, kernel: LabelKernel, missing: bool = True) -> np.ndarray:
    """Outputs y as a factor of their kernel (n x q, float64).

    A vector of classes becomes one column per class, other vectors one column. With `missing`, NaN in a matrix of
    numbers (a rating that was not given) counts as 0. Raises ValueError for another number of rows and for infinity.
    """
    if y is None:
        raise UserError(f"{who}: requires y to be passed, but the target y is None; pass labels, ratings or outputs")
    if hasattr(y, "compute"):
        y = y.compute()
    if not isinstance(kernel, str) or not hasattr(y, "__array__") or np.asarray(y).dtype.kind == "O":
        given = y
    else:
        given = np.asarray(y)
    if scipy.sparse.issparse(given) or hasattr(given, "shape"):
        count = given.shape[0]
    else:
        count = len(given)
    if count != n:
        raise UserError(
            f"{who}: found input variables with inconsistent numbers of samples: y has {count} rows, X has {n}; "
            f"pass one output per sample"
        )
    if kernel == "linear" and not scipy.sparse.issparse(given):
        given = _numeric(who, np.asarray(given), missing)
    try:
        return label_factor(kernel, given)
    except UserError as error:
        raise UserError(f"{who}: {error}") from error


def _numeric(who: str, y: np.ndarray, missing: bool) -> np.ndarray:
    if y.ndim == 2 and y.shape[1] > 1:
        return np.nan_to_num(y.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf) if missing else y
    y = y.reshape(len(y))
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise UserError(f"{who}: input y contains NaN or infinity at row {np.flatnonzero(~np.isfinite(y))[0]}")
    if type_of_target(y) == "continuous":
        return y[:, None]
    check_classification_targets(y)
    return (y[:, None] == np.unique(y)[None, :]).astype(np.float64)


def bounded(who: str, name: str, value: Any) -> float:
    """`value` as a float: a ridge or gamma at least 0, a share (mixing, balance) in [0, 1]."""
    most = np.inf if name in ("ridge", "gamma") else 1.0
    if not isinstance(value, (int, float, np.number)) or isinstance(value, bool) or not 0 <= value <= most:
        needed = "a number that is not negative" if np.isinf(most) else "a number between 0 and 1"
        raise UserError(f"{who}: {name} must be {needed}, got {value!r}")
    if not np.isfinite(value):
        raise UserError(f"{who}: {name} must be finite, got {value!r}")
    return float(value)
