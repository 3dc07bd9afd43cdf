"""Validation of the views of an estimator, and their comparison with the views of the fit."""

from __future__ import annotations

import functools
import logging
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeGuard

import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_array, validate_data

from dmo.blocks import (
    Block,
    InOrder,
    PartialRows,
    Rows,
    RowsOf,
    Subset,
    dense,
    in_memory,
    numbered,
    presence,
    row_blocks,
    rows,
    stored_rows,
    stored_values,
    with_stored,
)
from dmo.cluster import current_client
from dmo.cluster.reading import readable
from dmo.errors import MissingValues, TooFewSamples, UserError, amount
from dmo.formats.frames import vectors
from dmo.formats.schema import Schema, learn_schema
from dmo.inputs.containers import SINGLE, Inputs, as_views, plain, split_columns
from dmo.inputs.needs import KEPT
from dmo.inputs.preparation import PreparedRows, learn_preparations, preparing, view_kernels
from dmo.kernels.composite import not_finite
from dmo.memory import fits
from dmo.stores import DenseView, SparseView

log = logging.getLogger("dmo")
ViewKind: TypeAlias = Literal["features", "fillable features", "kernel"]
"""Content of a view: features, features whose missing values the estimator can impute, or precomputed kernel values."""
_LARGEST = 1e140  # largest valid number; sums of squares of larger numbers can overflow float64
# Maximum fraction of the free memory or disk for rows that a fit caches, and number of bytes in a chunk of cached rows.
_SHARE, _CHUNK = 0.25, 1 << 24
_READINGS = 2  # number of passes over rows that do not fit in memory, before the rows are cached on disk


def check_views(estimator: BaseEstimator, X: Inputs, reset: bool, partial: bool = False) -> dict[str, Rows]:
    """Validate and preprocess X; unless `reset` is true, names and widths must be the same as in the fit."""
    # With `reset`, the function sets `view_widths_`, and `preparations_` if the estimator has the parameter `prepare`.
    # The names of DataFrame columns become `feature_names_in_` for one array, or `view_feature_names_` for several
    # views. One array also sets `n_features_in_`.
    return prepare_views(estimator, check_raw_views(estimator, X, reset, partial), reset)


class PreparedViews(dict[str, Rows]):
    """Preprocessed views and the raw views, from which a fit on a subset learns its own preprocessing."""

    def __init__(self, prepared: Mapping[str, Rows], raw: Mapping[str, Rows]):
        super().__init__(prepared)
        self.raw = raw
        arrays = [(view, raw[key]) for key, view in self.items() if isinstance(view, np.ndarray)]
        self.made: list[Rows] = [
            view for view, given in arrays if not (isinstance(given, np.ndarray) and np.may_share_memory(view, given))
        ]
        """Views with arrays from scaling or imputation, which do not share memory with arrays from the caller."""


def prepare_views(
    estimator: BaseEstimator,
    views: Mapping[str, Rows],
    reset: bool,
    weights: Mapping[str, np.ndarray] | None = None,
) -> PreparedViews:
    """Impute and scale validated views; `reset` learns the preprocessing from the weighted rows."""
    if reset and hasattr(estimator, "prepare"):
        estimator.preparations_ = learn_preparations(estimator, views, weights)
    found = dict(views)
    for key, preparation in getattr(estimator, "preparations_", {}).items():
        source, present = found[key], presence(found[key])
        if isinstance(source, PartialRows):
            source = source.source
        prepared = PreparedRows(source, preparation, functools.partial(_refuse_non_finite, key))
        read = prepared if is_lazy(source) else prepared[:]
        found[key] = read if present is None else PartialRows(read, present)
    return PreparedViews(found, views)


def check_raw_views(estimator: BaseEstimator, X: Inputs, reset: bool, partial: bool = False) -> dict[str, Rows]:
    """Validate X like `check_views`, without imputation and scaling."""
    if _is_plain(X) and X.size and (reset or estimator.view_widths_ == {SINGLE: X.shape[1]}):
        asked, named = preparing(estimator), not reset and hasattr(estimator, "feature_names_in_")
        if not named and (asked is None or asked.views is None):
            return _one_array(estimator, X, reset)
    X = _encoded(estimator, plain(X), reset)
    given = _several(estimator, X, reset)
    views = {SINGLE: _single(estimator, X, reset)} if given is None else _separate(estimator, given, reset, partial)
    _check_sizes(views, reset)
    if not reset:
        return _compare(estimator.view_widths_, views)
    estimator.view_widths_ = {key: int(view.shape[1]) for key, view in views.items()}
    return views


def _separate(estimator: BaseEstimator, given: dict[str, Any], reset: bool, partial: bool) -> dict[str, Rows]:
    """Check several views, and compare their names and columns with the fit."""
    if not given:
        raise UserError("no views; pass at least one array of samples x features")
    if partial and not reset:
        given = _with_missing(estimator, given)
    if not reset:
        _check_names(estimator.view_widths_, given)
    gaps, kind = _filled_views(estimator, list(given)), _view_kinds(estimator, list(given))
    partial = partial and len(given) > 1
    views = {key: _source(key, view, gaps[key], kind[key], partial, reset) for key, view in given.items()}
    names = {key: columns for key, view in given.items() if (columns := column_names(view)) is not None}
    if not reset:
        _check_columns(getattr(estimator, "view_feature_names_", {}), names)
        return views
    for name in ("n_features_in_", "feature_names_in_", "view_feature_names_"):  # attributes of an earlier fit
        estimator.__dict__.pop(name, None)
    if names:
        estimator.view_feature_names_ = names
    return views


def _one_array(estimator: BaseEstimator, X: np.ndarray, reset: bool) -> dict[str, Rows]:
    """Check a numeric array that is the only view, without the slow conversions in scikit-learn."""
    within = X.dtype.kind != "f" or (float(X.max()) <= _LARGEST and float(X.min()) >= -_LARGEST)
    if not within and not _filled_views(estimator, [SINGLE])[SINGLE]:
        raise _not_finite(SINGLE, X, 0, None, _view_kinds(estimator, [SINGLE])[SINGLE], whole=True)
    if reset:
        if len(X) < 2:
            raise _one_sample()
        for name in ("feature_names_in_", "view_feature_names_", "table_schemas_"):  # attributes of an earlier fit
            estimator.__dict__.pop(name, None)
        estimator.n_features_in_, estimator.view_widths_ = X.shape[1], {SINGLE: X.shape[1]}
    return {SINGLE: X}


def _encoded(estimator: BaseEstimator, X: Any, reset: bool) -> Any:
    """One-hot encode text columns of DataFrames by the schema of the fit; `reset` learns this schema."""
    tables = X if isinstance(X, Mapping) and not scipy.sparse.issparse(X) else {SINGLE: X}
    known: dict[str, Any] = {} if reset else getattr(estimator, "table_schemas_", {})
    made: dict[str, Any] = {}
    for view, table in tables.items():
        if not hasattr(table, "iloc") or getattr(table.columns, "nlevels", 1) > 1:
            continue
        if str(view) in known or (reset and any(_has_words(table[name]) for name in table.columns)):
            made[view] = _by_schema(str(view), table, known)
    if reset:
        estimator.__dict__.pop("table_schemas_", None)
        if known:
            estimator.table_schemas_ = known
    if not made:
        return X
    if isinstance(X, Mapping):
        return {**X, **made}
    return made[SINGLE]


def _by_schema(view: str, table: Any, known: dict[str, Any]) -> Any:
    """Encode a table by its schema, which is learned if it is not `known`; columns of vectors become separate views."""
    import pandas as pd

    listed, left = vectors(view, table)
    left, notes = left.set_axis([str(name) for name in left.columns], axis=1), list[str]()
    if view in known:
        schema = Schema.from_dict(known[view])
        if set(schema.features) <= {*left.columns} and not {column.name for column in schema.columns} <= {
            *left.columns
        }:
            return table  # The table is already encoded.
        values = schema.encode(f"view {view!r}", left, notes)
        for note in notes:
            log.warning("%s", note)
    else:
        schema, values = learn_schema(f"view {view!r}", left)
        known[view] = schema.to_dict()
    found = pd.DataFrame(values, table.index, schema.features)
    return {SINGLE: found, **listed} if listed else found


def _has_words(column: Any) -> bool:
    """Return whether a column of a DataFrame contains text."""
    kind = getattr(column.dtype, "kind", "O")
    if hasattr(column.dtype, "categories"):
        return bool(getattr(column.dtype.categories.dtype, "kind", "O") == "O")
    return kind in "OUS" and any(isinstance(cell, str) for cell in column)


def _several(estimator: BaseEstimator, X: Inputs, reset: bool) -> dict[str, Any] | None:
    """Return several views by name, or None for one view; an array is split as in `prepare.views` or as in the fit."""
    given = as_views(X)
    if given is not None:
        return given
    asked = preparing(estimator)
    columns = None if asked is None else asked.views
    if columns is not None:
        return split_columns(X, columns)
    if reset:
        return None
    widths, shape = estimator.view_widths_, tuple(getattr(X, "shape", ()))
    if SINGLE in widths or getattr(X, "ndim", 0) != 2 or shape[1] != sum(widths.values()):
        return None
    edges = np.cumsum([0, *widths.values()])  # A tool has concatenated the columns of the views; see `Views`.
    return split_columns(X, {name: slice(edges[i], edges[i + 1]) for i, name in enumerate(widths)})


def check_view_names(estimator: BaseEstimator, X: Inputs, partial: bool = False) -> dict[str, Rows]:
    """Compare the names and widths of views with the fit, without reading or counting rows."""
    given = _several(estimator, X := plain(X), reset=False)
    given = {SINGLE: X} if given is None else {name: view for name, view in given.items() if view is not None}
    widths = estimator.view_widths_
    if partial and given and set(given) <= set(widths):
        widths = {name: width for name, width in widths.items() if name in given}
    return _compare(widths, given)


def only_view(views: Mapping[str, Rows]) -> tuple[str, Rows]:
    """Return the name and the rows of the only view, or raise an error if there are several views."""
    if len(views) != 1:
        raise UserError(
            f"supports one view, got {list(views)}; pass one array, or use KGHA, which supports several views"
        )
    return next(iter(views.items()))


def sample_count(views: Mapping[str, Rows]) -> int:
    """Return the number of samples, which all views have in common."""
    return int(next(iter(views.values())).shape[0])


def column_names(table: Any) -> list[str] | None:
    """Return the column names of a DataFrame or DataArray, or None if some names are missing or not text."""
    names = list(getattr(table, "columns", ()))
    if not names and len(getattr(table, "dims", ())) == 2 and table.dims[1] in getattr(table, "coords", ()):
        names = table.coords[table.dims[1]].values.tolist()
    return names if names and all(isinstance(name, str) for name in names) else None


def is_lazy(X: object) -> bool:
    """Return whether X is a row source outside memory, such as a dask array, a Zarr array or a view of a store."""
    if in_memory(X) or hasattr(X, "iloc"):
        return False
    return all(hasattr(X, part) for part in ("shape", "dtype", "__getitem__")) and len(getattr(X, "shape", ())) == 2


def _filled_views(estimator: BaseEstimator, views: Sequence[str]) -> dict[str, bool]:
    """Return, for each view, whether the estimator imputes its missing values."""
    asked = preparing(estimator)
    impute = None if asked is None else asked.impute
    return {view: (impute.get(view) if isinstance(impute, Mapping) else impute) is not None for view in views}


def _view_kinds(estimator: BaseEstimator, views: list[str]) -> dict[str, ViewKind]:
    features: ViewKind = "features" if preparing(estimator) is None else "fillable features"
    kernels = view_kernels(estimator, views).items()
    return {view: "kernel" if own is not None and own.pairwise else features for view, own in kernels}


def _single(estimator: BaseEstimator, X: Inputs, reset: bool) -> Rows:
    if reset:
        estimator.__dict__.pop("view_feature_names_", None)
    if is_lazy(X) or hasattr(X, "to_dask_array"):  # Only dask DataFrames have `to_dask_array`.
        if reset:
            estimator.__dict__.pop("feature_names_in_", None)
            estimator.n_features_in_ = tuple(getattr(X, "shape", ()))[1]
            if (names := column_names(X)) is not None:
                estimator.feature_names_in_ = np.array(names, dtype=object)
        filled, kind = _filled_views(estimator, [SINGLE])[SINGLE], _view_kinds(estimator, [SINGLE])[SINGLE]
        return _source(SINGLE, X, filled, kind, keep=reset)
    with _of_numbers(SINGLE, X, "X"):
        array: Any = _as_numbers(
            validate_data(
                estimator,
                X,
                reset=reset,
                accept_sparse="csr",
                dtype="numeric",
                ensure_min_samples=1,
                ensure_all_finite=False,
            )
        )
    if not _filled_views(estimator, [SINGLE])[SINGLE]:
        kind = _view_kinds(estimator, [SINGLE])[SINGLE]
        _refuse_non_finite(SINGLE, array, 0, column_names(X), kind, whole=True)
    return array


def _is_plain(X: Any) -> TypeGuard[np.ndarray]:
    """Return whether X is a numeric array, so that slow checks in scikit-learn can be skipped."""
    return type(X) is np.ndarray and X.ndim == 2 and X.dtype.kind in "biuf"


def _with_missing(estimator: BaseEstimator, given: dict[str, Any]) -> dict[str, Any]:
    """Add the views of the fit that were not passed, as views in which all samples are missing."""
    known = {key: view for key, view in given.items() if view is not None}
    if not known or not set(known) <= set(estimator.view_widths_):
        return given
    n = next(iter(known.values())).shape[0]
    for key, width in estimator.view_widths_.items():
        if key not in known:
            known[key] = PartialRows(np.broadcast_to(0.0, (n, width)), np.zeros(n, bool))
    return known


def _counted(view: Any) -> Any:
    """Convert dask DataFrames, and dask arrays with an unknown number of rows, to dask arrays of known shape."""
    if hasattr(view, "to_dask_array"):
        return view.to_dask_array(lengths=True)
    if hasattr(view, "compute_chunk_sizes") and np.isnan(view.shape[0]):
        return view.copy().compute_chunk_sizes()
    return view


def _source(key: str, view: Any, filled: bool, kind: ViewKind, partial: bool = False, keep: bool = False) -> Rows:
    """Check one view; the values of lazy rows are checked later, when they are read."""
    # If `filled` is True, missing values are imputed later. If `partial` is True, rows of NaN are missing samples. If
    # `keep` is True, rows that dask computes are cached.
    view = _counted(view)
    if is_lazy(view):
        if np.dtype(view.dtype).kind not in "biuf":
            raise UserError(
                f"view {key!r} has dtype {view.dtype}, but features must be numbers; leave out columns of text and "
                "dates, and convert the others to float"
            )
        present = presence(view)
        if present is not None and not partial:
            i = int(np.flatnonzero(~present)[0])
            raise UserError(
                f"in view {key!r}, {(~present).sum()} of {len(present)} samples are missing, first row {i}; leave them "
                "out, or use KGHA, MultiViewRidge or MultiSetCCA with several views, which support missing samples"
            )
        if keep and hasattr(view, "compute"):
            view = KeptRows(view, key) if current_client() is None else readable(view, key, KEPT.get(None))
        source = view if filled or _written_finite(view) else FiniteRows(view, key, kind)
        return source if present is None or isinstance(source, PartialRows) else PartialRows(source, present)
    shape = getattr(view, "shape", (0, 0))
    if len(shape) != 2:
        cure = "one feature as n x 1" if len(shape) < 2 else "one row of numbers per sample"
        raise UserError(f"view {key!r} has shape {tuple(shape)}, expected samples x features; pass {cure}")
    if 0 in getattr(view, "shape", ()):
        return view
    if _is_plain(view):
        array = view
    else:
        with _of_numbers(key, view, f"view {key!r}"):
            array = _as_numbers(check_array(view, accept_sparse="csr", dtype="numeric", ensure_all_finite=False))
    if partial and array.dtype.kind == "f":
        return _partial_rows(key, array, filled, column_names(view), kind)
    if not filled:
        _refuse_non_finite(key, array, 0, column_names(view), kind, whole=True)
    return array


def _partial_rows(key: str, array: Any, filled: bool, names: Sequence[str] | None, kind: ViewKind) -> Rows:
    """Return the rows of an array, or a row source with missing samples if some rows contain only NaN."""
    if scipy.sparse.issparse(array):
        gaps = np.bincount(
            np.repeat(np.arange(array.shape[0]), np.diff(array.indptr))[np.isnan(array.data)], minlength=array.shape[0]
        )
        missing = gaps == array.shape[1]
    else:
        missing = np.isnan(array[:, 0])
        missing[missing] = np.isnan(array[missing]).all(axis=1)
    if missing.any():
        array = with_stored(array, np.where(missing[stored_rows(array)], 0.0, stored_values(array)))
    if not filled:
        _refuse_non_finite(key, array, 0, names, kind)
    return PartialRows(array, ~missing) if missing.any() else array


@dataclass(frozen=True, eq=False)
class FiniteRows(RowsOf):
    """Row source that rejects NaN and infinity in the rows that are read, without a separate pass over the data."""

    view: str  # name of the view for error messages
    kind: ViewKind = "features"  # content of the view for error messages

    def __getitem__(self, where: slice) -> Block:
        block = rows(self.source, where)
        first = range(self.shape[0])[where].start
        _refuse_non_finite(self.view, block, first, column_names(numbered(self.source)[0]), self.kind)
        return block


class KeptRows(RowsOf):
    """Row source that caches rows that dask computes in the client process during a fit.

    Rows are cached in memory if a quarter of the free memory suffices, otherwise in a temporary local store.
    """

    view: str
    kept: Any
    computed: int  # number of rows that have been computed
    lock: Any
    until: ExitStack | None  # context that is closed at the end of the fit

    def __init__(self, source: Rows, view: str):
        super().__init__(source)
        self.__dict__.update(view=view, kept=None, computed=0, lock=threading.Lock())
        self.__dict__.update(until=KEPT.get(None))
        if self.until is not None:
            self.until.callback(self.__dict__.update, kept=None, until=None)

    @classmethod
    def held(cls, views: Mapping[str, Rows]) -> dict[str, Rows]:
        """Load lazy views for a search that reads them often, if a quarter of the free memory suffices."""
        lazy = {key: view for key, view in views.items() if is_lazy(view) and presence(view) is None}
        size = sum(float(np.prod(view.shape)) * np.dtype(view.dtype).itemsize for view in lazy.values())
        if current_client() is not None or not fits(size, _SHARE):
            return dict(views)
        made = {key: cls(view, key) for key, view in lazy.items()}
        for view in made.values():
            view.__dict__.update(kept=rows(view.source), until=None)
        return {**views, **made}

    @property
    def histogram(self) -> bool:
        """Whether the source declares that its rows are histograms."""
        return bool(getattr(numbered(self.source)[0], "histogram", False))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "lock": None, "until": None}

    def __getitem__(self, where: slice) -> Block:
        if self.until is not None and self.kept is None:
            with self.lock:
                if self.kept is None:
                    count = self.computed + len(range(len(self))[where])
                    self.__dict__.update(kept=self._keep(self.until), computed=count)
        return rows(self.source if self.kept is None else self.kept, where)

    def _keep(self, until: ExitStack) -> Rows | None:
        """Return the cached rows, or None if the next read should still use the source."""
        import dask.config
        import zarr

        size = float(np.prod(self.shape)) * np.dtype(self.dtype).itemsize
        if fits(size, _SHARE):
            log.info("view %r: %s that dask computes are kept in memory during the fit", self.view, amount(size))
            return rows(self.source)
        # Reading the rows a few times costs no more than writing a store.
        if self.computed < _READINGS * len(self):
            return None
        folder = dask.config.get("temporary-directory", None) or tempfile.gettempdir()
        dense = isinstance(getattr(self.source, "_meta", None), np.ndarray)
        if not dense or size > _SHARE * shutil.disk_usage(folder).free:
            log.info("view %r: dask computes its %s again at each read; store them", self.view, amount(size))
            return self.source
        place = until.enter_context(tempfile.TemporaryDirectory(dir=folder))
        log.info("view %r: %s that dask computes are kept in %s during the fit", self.view, amount(size), place)
        chunk = max(1, min(len(self), int(_CHUNK // (size / len(self)))))
        kept = zarr.create_array(place, shape=self.shape, chunks=(chunk, self.shape[1]), dtype=self.dtype)
        ordered = InOrder(self.source)
        for block in row_blocks(len(self), chunk):
            kept[block] = ordered[block]
        return kept


def _written_finite(view: Rows) -> bool:
    """Return whether values are known to be finite, because a store or `PartialRows` has already checked them."""
    if isinstance(view, (Subset, KeptRows)):
        return _written_finite(view.source)
    if isinstance(view, (DenseView, SparseView)):
        return not view.missing
    return isinstance(view, PartialRows)


def _as_numbers(array: Any) -> Any:
    """Convert object arrays to float64, because scikit-learn returns some pandas columns as objects; reject dates."""
    if array.dtype.kind in "mM":
        raise TypeError(f"got {array.dtype}, expected numbers")
    return array.astype(np.float64) if array.dtype.kind == "O" else array


@contextmanager
def _of_numbers(key: str, given: Any, what: str) -> Iterator[None]:
    """Convert errors about non-numeric values to a UserError that names the column."""
    try:
        yield
    except (ValueError, TypeError) as error:
        if (place := _other_than_numbers(given)) is not None:
            raise UserError(
                f"view {key!r} has {place}, but features must be numbers; leave the column out, or encode it, for "
                "example with scikit-learn's OneHotEncoder"
            ) from error
        if isinstance(error, TypeError):
            raise
        raise UserError(_sentence(what, error)) from error


def _other_than_numbers(given: Any) -> str | None:
    """Describe the first cell that contains text or a date, or in a table the first cell that is not a number."""
    table = hasattr(given, "columns")
    if not table and (
        getattr(given, "ndim", 0) != 2 or scipy.sparse.issparse(given) or given.dtype.kind not in "OUSTmM"
    ):
        return None
    for column in range(given.shape[1]):
        values = (given.iloc if hasattr(given, "iloc") else given)[:, column]
        for row, value in enumerate(np.asarray(values)):
            if _is_other(value, table):
                name = f" ({given.columns[column]!r})" if table else ""
                return f"{str(value)!r} at row {row}, column {column}{name}"
    return None


def _is_other(value: Any, in_table: bool) -> bool:
    """Return whether a value is text or a date or, in a table, not a number; scikit-learn reports other objects."""
    if isinstance(value, (np.datetime64, np.timedelta64, np.str_, np.bytes_)):
        return True
    try:
        float(0 if value is None else value)
    except (ValueError, TypeError):
        return in_table or isinstance(value, (str, bytes))
    return False


def _sentence(what: str, error: ValueError) -> str:
    """Return the message of an error; add a fix if rows have unequal lengths."""
    # Messages from scikit-learn can list all complex features after the first line.
    text = str(error).partition("\n[")[0]
    if "inhomogeneous" in text:
        return f"{what} has rows of unequal lengths; pass samples x features first and labels second"
    return text if what == "X" else f"{what}: {text}"


def _refuse_non_finite(
    key: str,
    block: Any,
    first_row: int,
    names: Sequence[str] | None = None,
    kind: ViewKind = "features",
    whole: bool = False,
) -> None:
    """Raise an error that locates NaN, an infinity, or a number whose sum of squares could overflow.

    `names` are the names of the columns. If `whole` is True, the block contains all rows.
    """
    data = stored_values(block)
    # If the data contain NaN, the maximum and minimum are NaN, and all comparisons with them are false.
    if data.dtype.kind == "f" and data.size and not (float(data.max()) <= _LARGEST and float(data.min()) >= -_LARGEST):
        raise _not_finite(key, block, first_row, names, kind, whole)


def _not_finite(
    key: str, block: Any, first_row: int, names: Sequence[str] | None, kind: ViewKind, whole: bool
) -> UserError:
    """Return the error for a block with NaN, infinity, or numbers that are too large."""
    stored = dense(block)
    # In float32, the bound would be infinite and infinities would pass, so compare in float64.
    row, column = np.argwhere(~(np.abs(stored.astype(np.float64)) <= _LARGEST))[0]
    value, place = stored[row, column], f"row {first_row + row}, column {column}"
    if kind == "kernel" and not np.isfinite(value):
        rows = np.arange(first_row, first_row + stored.shape[0])
        return not_finite(f"view {key!r}: the precomputed kernel", stored, rows, np.arange(stored.shape[1]))
    if names is not None and column < len(names):
        place += f" ({names[column]!r})"
    if np.isnan(value):
        if whole:
            place += f" ({np.isnan(stored[:, column]).mean():.0%} of the rows are NaN there)"
        cure = (
            "pass prepare=Prepare(impute='mean'), 'median' or 'zero'"
            if kind == "fillable features"
            else "impute missing values"
        )
        return MissingValues(f"view {key!r} has NaN at {place}; {cure}, or drop the sample from every view")
    cure = "divide the features by a constant, so that their squares do not overflow"
    if np.isinf(value):
        cure = "replace it, or drop the sample from every view"
    return UserError(f"view {key!r} has {value} at {place}; {cure}")


def _check_sizes(views: Mapping[str, Rows], reset: bool) -> None:
    first, n = next(iter(views)), sample_count(views)
    for key, view in views.items():
        if 0 in view.shape:
            raise UserError(f"view {key!r} is empty (shape {tuple(view.shape)}); leave it out, or pass its data")
        if view.shape[0] != n:
            raise UserError(
                f"view {key!r} has {view.shape[0]} rows, expected {n} as in view {first!r}; pass the same samples in "
                "every view"
            )
    if reset and n < 2:
        raise _one_sample()


def _one_sample() -> TooFewSamples:
    return TooFewSamples("got n_samples = 1 (1 sample), needs at least 2; pass more samples")


def _compare(widths: Mapping[str, int], views: dict[str, Rows]) -> dict[str, Rows]:
    """Check the names and widths of views, and return the views in the order of the fit."""
    _check_names(widths, views)
    for key, width in widths.items():
        if views[key].shape[1] != width:
            raise UserError(
                f"view {key!r} has {views[key].shape[1]} features, expected {width} as in the fit; "
                "pass the same features"
            )
    return {key: views[key] for key in widths}


def _check_names(widths: Mapping[str, int], given: Mapping[str, Any]) -> None:
    needed = list(widths)
    cure = f"the model was fitted on {needed}, got {list(given)}; pass a mapping with the names of the fit"
    for key in needed:
        if key not in given:
            raise UserError(f"view {key!r} is missing; {cure}")
    for key in given:
        if key not in needed:
            raise UserError(f"view {key!r} is unknown; {cure}")


def _check_columns(needed: Mapping[str, Sequence[str]], given: Mapping[str, Sequence[str]]) -> None:
    """Compare the column names of views with the names in the fit, if both exist."""
    for key in [key for key in given if key in needed]:
        for j, (old, new) in enumerate(zip(needed[key], given[key], strict=False)):
            if old != new:
                raise UserError(
                    f"view {key!r} has the column {new!r} at place {j}, expected {old!r} as in the fit; "
                    "pass the columns in the order of the fit"
                )
