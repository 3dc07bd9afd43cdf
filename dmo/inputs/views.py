"""Views, checked and compared with those of the fit."""

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

from dmo.blocks import Block, InOrder, PartialRows, Rows, RowsOf, Subset, numbered, presence, row_blocks, rows
from dmo.cluster import current_client
from dmo.errors import TooFewSamples, UserError, amount
from dmo.formats.frames import vectors
from dmo.formats.schema import Schema, learn_schema
from dmo.inputs.containers import SINGLE, Inputs, as_views, plain, split_columns
from dmo.inputs.needs import KEPT
from dmo.inputs.preparation import PreparedRows, learn_preparations, precomputed_views, preparing
from dmo.kernels.composite import not_finite
from dmo.memory import free_memory
from dmo.stores import DenseView, SparseView

log = logging.getLogger("dmo")
ViewKind: TypeAlias = Literal["features", "fillable features", "kernel"]
"""What a view holds: features whose missing values an option can fill or not, or precomputed kernel values."""
_LARGEST = 1e140  # beyond, sums of squares leave float64
_SHARE, _CHUNK = 0.25, 1 << 24  # of free memory, or disk, for rows that a fit keeps; bytes of a chunk of them
_READINGS = 2  # of rows that are too large for memory, before they are stored


def check_views(estimator: BaseEstimator, X: Inputs, reset: bool, partial: bool = False) -> dict[str, Rows]:
    """Read X as views, checked and prepared; with `reset` what the views are is learned, else compared."""
    # Learned are `view_widths_`, of DataFrames the columns' names (`feature_names_in_` of one array,
    # `view_feature_names_` of several), `n_features_in_` of one array, and `preparations_` where the estimator has
    # `prepare`.
    return prepare_views(estimator, check_raw_views(estimator, X, reset, partial), reset)


class PreparedViews(dict[str, Rows]):
    """Prepared views, with the same as they were: fits on a part of the samples learn fillings and scales themselves."""

    def __init__(self, prepared: Mapping[str, Rows], raw: Mapping[str, Rows]):
        super().__init__(prepared)
        self.raw = raw

    @property
    def made(self) -> list[Rows]:
        """Views whose arrays were created by scaling or imputation and share no memory with the caller."""
        arrays = [(view, self.raw[key]) for key, view in self.items() if isinstance(view, np.ndarray)]
        return [
            view for view, given in arrays if not (isinstance(given, np.ndarray) and np.may_share_memory(view, given))
        ]


def prepare_views(
    estimator: BaseEstimator,
    views: Mapping[str, Rows],
    reset: bool,
    weights: Mapping[str, np.ndarray] | None = None,
) -> PreparedViews:
    """Fill missing cells and scale the columns of validated views; with `reset`, learn both from the weighted rows.

    views (n, d); weights (n,)
    """
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
    """Do what `check_views` does, but for filling gaps and scaling."""
    X = _encoded(estimator, plain(X), reset)
    given = _several(estimator, X, reset)
    if given is None:
        views = {SINGLE: _single(estimator, X, reset)}
        _check_sizes(views, reset)
        return _learn(estimator, views) if reset else _compare(estimator.view_widths_, views)
    if not given:
        raise UserError("no views; pass at least one array of samples x features")
    if partial and not reset:
        given = _with_missing(estimator, given)
    if not reset:
        _check_names(estimator.view_widths_, given)
    gaps, kind = _filled_views(estimator, list(given)), _view_kinds(estimator, list(given))
    partial = partial and len(given) > 1
    views = {key: _source(key, view, gaps[key], kind[key], partial, reset) for key, view in given.items()}
    _check_sizes(views, reset)
    names = {key: columns for key, view in given.items() if (columns := column_names(view)) is not None}
    if not reset:
        _check_columns(getattr(estimator, "view_feature_names_", {}), names)
        return _compare(estimator.view_widths_, views)
    for name in ("n_features_in_", "feature_names_in_", "view_feature_names_"):  # of an earlier fit
        estimator.__dict__.pop(name, None)
    if names:
        estimator.view_feature_names_ = names
    return _learn(estimator, views)


def _encoded(estimator: BaseEstimator, X: Any, reset: bool) -> Any:
    """Encode the words of DataFrames as columns of 0 and 1 by the schema of the fit, which is learned with `reset`."""
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
    """A table with numbers alone, beside the vectors that its columns list; a schema that is not `known` is added."""
    import pandas as pd

    listed, left = vectors(view, table)
    left, notes = left.set_axis([str(name) for name in left.columns], axis=1), list[str]()
    if view in known:
        schema = Schema.from_dict(known[view])
        if set(schema.features) <= {*left.columns} and not {column.name for column in schema.columns} <= {
            *left.columns
        }:
            return table  # encoded before
        values = schema.encode(f"view {view!r}", left, notes)
        for note in notes:
            log.warning("%s", note)
    else:
        schema, values = learn_schema(f"view {view!r}", left)
        known[view] = schema.to_dict()
    found = pd.DataFrame(values, table.index, schema.features)
    return {SINGLE: found, **listed} if listed else found


def _has_words(column: Any) -> bool:
    """Whether cells of a column of a DataFrame are text."""
    kind = getattr(column.dtype, "kind", "O")
    if hasattr(column.dtype, "categories"):
        return bool(getattr(column.dtype.categories.dtype, "kind", "O") == "O")
    return kind in "OUS" and any(isinstance(cell, str) for cell in column)


def _several(estimator: BaseEstimator, X: Inputs, reset: bool) -> dict[str, Any] | None:
    """Several views by name, cut out of one array where the estimator says how, or its fit does; None for one view."""
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
    edges = np.cumsum([0, *widths.values()])  # views that a tool has put side by side, see `Views`
    return split_columns(X, {name: slice(edges[i], edges[i + 1]) for i, name in enumerate(widths)})


def check_view_names(estimator: BaseEstimator, X: Inputs, partial: bool = False) -> dict[str, Rows]:
    """Compare the names and widths of the views of X with those of the fit; rows are neither read nor counted."""
    given = _several(estimator, X := plain(X), reset=False)
    given = {SINGLE: X} if given is None else {name: view for name, view in given.items() if view is not None}
    widths = estimator.view_widths_
    if partial and given and set(given) <= set(widths):
        widths = {name: width for name, width in widths.items() if name in given}
    return _compare(widths, given)


def only_view(views: Mapping[str, Rows]) -> tuple[str, Rows]:
    """Give the only view of those that `check_views` read.

    -> view (n, d)
    """
    if len(views) != 1:
        raise UserError(f"takes one view, got {list(views)}; pass one array, or learn from all views with KGHA")
    return next(iter(views.items()))


def sample_count(views: Mapping[str, Rows]) -> int:
    """Count the samples, which are the same in all views."""
    return int(next(iter(views.values())).shape[0])


def column_names(table: Any) -> list[str] | None:
    """Names of the columns of a DataFrame or a DataArray, None where they are not all text, or there are none."""
    names = list(getattr(table, "columns", ()))
    if not names and len(getattr(table, "dims", ())) == 2 and table.dims[1] in getattr(table, "coords", ()):
        names = table.coords[table.dims[1]].values.tolist()
    return names if names and all(isinstance(name, str) for name in names) else None


def is_lazy(X: object) -> bool:
    """A row source that is not in memory: dask, Zarr, a store's view."""
    if isinstance(X, np.ndarray) or scipy.sparse.issparse(X) or hasattr(X, "iloc"):
        return False
    return all(hasattr(X, part) for part in ("shape", "dtype", "__getitem__")) and len(getattr(X, "shape", ())) == 2


def _filled_views(estimator: BaseEstimator, views: Sequence[str]) -> dict[str, bool]:
    """Whether the estimator fills the gaps of each view."""
    asked = preparing(estimator)
    impute = None if asked is None else asked.impute
    return {view: (impute.get(view) if isinstance(impute, Mapping) else impute) is not None for view in views}


def _view_kinds(estimator: BaseEstimator, views: list[str]) -> dict[str, ViewKind]:
    features: ViewKind = "features" if preparing(estimator) is None else "fillable features"
    return dict.fromkeys(views, features) | dict.fromkeys(precomputed_views(estimator, views), "kernel")


def _single(estimator: BaseEstimator, X: Inputs, reset: bool) -> Rows:
    if reset:
        estimator.__dict__.pop("view_feature_names_", None)
    if is_lazy(X) or hasattr(X, "to_dask_array"):  # of a dask DataFrame
        if reset:
            estimator.__dict__.pop("feature_names_in_", None)
            estimator.n_features_in_ = tuple(getattr(X, "shape", ()))[1]
            if (names := column_names(X)) is not None:
                estimator.feature_names_in_ = np.array(names, dtype=object)
        filled, kind = _filled_views(estimator, [SINGLE])[SINGLE], _view_kinds(estimator, [SINGLE])[SINGLE]
        return _source(SINGLE, X, filled, kind, keep=reset)
    known = None if reset or hasattr(estimator, "feature_names_in_") else getattr(estimator, "n_features_in_", None)
    if _is_plain(X) and len(X) and X.shape[1] == known:
        array: Any = X
    else:
        with _of_numbers(SINGLE, X, "X"):
            array = _as_numbers(
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
    """Rows that scikit-learn's checks leave as they are: of a single row they take longer than its product."""
    return type(X) is np.ndarray and X.ndim == 2 and X.dtype.kind in "biuf"


def _with_missing(estimator: BaseEstimator, given: dict[str, Any]) -> dict[str, Any]:
    """The views of the fit, those that are not given, or None, without any sample."""
    known = {key: view for key, view in given.items() if view is not None}
    if not known or not set(known) <= set(estimator.view_widths_):
        return given
    n = next(iter(known.values())).shape[0]
    for key, width in estimator.view_widths_.items():
        if key not in known:
            known[key] = PartialRows(np.broadcast_to(0.0, (n, width)), np.zeros(n, bool))
    return known


def _counted(view: Any) -> Any:
    """A dask array of known shape, of a dask DataFrame or of an array whose rows are not counted yet; others as they are."""
    if hasattr(view, "to_dask_array"):
        return view.to_dask_array(lengths=True)
    if hasattr(view, "compute_chunk_sizes") and np.isnan(view.shape[0]):
        return view.copy().compute_chunk_sizes()
    return view


def _source(key: str, view: Any, filled: bool, kind: ViewKind, partial: bool = False, keep: bool = False) -> Rows:
    """Check one view; lazy rows are checked when they are read."""
    # `filled`: missing values are accepted; `partial`: rows of NaN are missing samples; `keep`: keep rows that dask computes.
    view = _counted(view)
    if is_lazy(view):
        if np.dtype(view.dtype).kind not in "biuf":
            raise UserError(
                f"view {key!r} has dtype {view.dtype}, and features are numbers; leave columns of text and dates out, and "
                "convert the others to float"
            )
        present = presence(view)
        if present is not None and not partial:
            i = int(np.flatnonzero(~present)[0])
            raise UserError(
                f"view {key!r} lacks {(~present).sum()} of {len(present)} samples, row {i} the first; leave them out, or "
                "take KGHA, MultiViewRidge or MultiSetCCA on several views, which learn from those that a sample has"
            )
        if keep and hasattr(view, "compute"):
            view = KeptRows(view, key)
        source = view if filled or _written_finite(view) else FiniteRows(view, key, kind)
        return source if present is None or isinstance(source, PartialRows) else PartialRows(source, present)
    shape = getattr(view, "shape", (0, 0))
    if len(shape) != 2:
        raise UserError(f"view {key!r} has shape {tuple(shape)}; pass samples x features, one feature as n x 1")
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
    """The array, whose rows of NaN are samples that the view lacks."""
    if scipy.sparse.issparse(array):
        gaps = np.bincount(
            np.repeat(np.arange(array.shape[0]), np.diff(array.indptr))[np.isnan(array.data)], minlength=array.shape[0]
        )
        missing = gaps == array.shape[1]
    else:
        missing = np.isnan(array[:, 0])
        missing[missing] = np.isnan(array[missing]).all(axis=1)
    if missing.any():
        array = array.copy()
        if scipy.sparse.issparse(array):
            array.data[np.isnan(array.data) & np.repeat(missing, np.diff(array.indptr))] = 0.0
        else:
            array[missing] = 0.0
    if not filled:
        _refuse_non_finite(key, array, 0, names, kind)
    return PartialRows(array, ~missing) if missing.any() else array


@dataclass(frozen=True, eq=False)
class FiniteRows(RowsOf):
    """A row source that rejects NaN and infinity in the rows that are read, without a separate pass over the data.

    `view` and `kind` are named in the message.
    """

    view: str
    kind: ViewKind = "features"

    def __getitem__(self, where: slice) -> Block:
        block = rows(self.source, where)
        first = range(self.shape[0])[where].start
        _refuse_non_finite(self.view, block, first, column_names(numbered(self.source)[0]), self.kind)
        return block


class KeptRows(RowsOf):
    """Rows that dask computes once, or twice, and a fit keeps: in memory where a share of it holds them, else in a temporary
    store, which workers on this machine read as well. After the fit the model has the source."""

    view: str
    kept: Any
    computed: int  # rows so far
    lock: Any
    until: ExitStack | None  # which ends with the fit

    def __init__(self, source: Rows, view: str):
        super().__init__(source)
        self.__dict__.update(view=view, kept=None, computed=0, lock=threading.Lock(), until=KEPT.get(None))
        if self.until is not None:
            self.until.callback(self.__dict__.update, kept=None, until=None)
            if current_client() is not None:  # whose workers may be the first to read
                self.__dict__.update(kept=self._keep(self.until))

    @classmethod
    def held(cls, views: Mapping[str, Rows]) -> dict[str, Rows]:
        """Views that a search reads many times: those of a store in memory, where a share of it holds them."""
        lazy = {key: view for key, view in views.items() if is_lazy(view) and presence(view) is None}
        size = sum(float(np.prod(view.shape)) * np.dtype(view.dtype).itemsize for view in lazy.values())
        if current_client() is not None or size > _SHARE * free_memory():
            return dict(views)
        made = {key: cls(view, key) for key, view in lazy.items()}
        for view in made.values():
            view.__dict__.update(kept=rows(view.source), until=None)
        return {**views, **made}

    @property
    def histogram(self) -> bool:
        """Whether the source calls its rows histograms."""
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
        """What is read from now on; None: the source, which is computed once more."""
        import dask.config
        import zarr

        size, client = float(np.prod(self.shape)) * np.dtype(self.dtype).itemsize, current_client()
        if client is None and size <= _SHARE * free_memory():
            log.info("view %r: %s that dask computes are kept in memory during the fit", self.view, amount(size))
            return rows(self.source)
        if client is None and self.computed < _READINGS * len(self):  # which cost no more than a store
            return None
        folder = dask.config.get("temporary-directory", None) or tempfile.gettempdir()
        dense = isinstance(getattr(self.source, "_meta", None), np.ndarray)
        if not dense or size > _SHARE * shutil.disk_usage(folder).free or not _on_this_machine(client):
            what = "view %r: dask computes its %s anew at every reading; store them where all who read them can"
            log.info(what, self.view, amount(size))
            return self.source
        place = until.enter_context(tempfile.TemporaryDirectory(dir=folder))
        log.info("view %r: %s that dask computes are kept in %s during the fit", self.view, amount(size), place)
        chunk = max(1, min(len(self), int(_CHUNK // (size / len(self)))))
        kept = zarr.create_array(place, shape=self.shape, chunks=(chunk, self.shape[1]), dtype=self.dtype)
        ordered = InOrder(self.source)
        for block in row_blocks(len(self), chunk):
            kept[block] = ordered[block]
        return kept


def _on_this_machine(client: Any) -> bool:
    """Whether all workers of a client, or this process, read the files of this machine."""
    if client is None:
        return True
    from distributed.utils import get_ip

    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    return {worker["host"] for worker in workers} <= {"127.0.0.1", get_ip()}


def _written_finite(view: Rows) -> bool:
    """Whether NaN and infinity were refused before: when a store's rows were written, or where samples are missing."""
    if isinstance(view, (Subset, KeptRows)):
        return _written_finite(view.source)
    if isinstance(view, (DenseView, SparseView)):
        return not view.missing
    return isinstance(view, PartialRows)


def _as_numbers(array: Any) -> Any:
    """The rows, those of categories as float64: scikit-learn lets columns of pandas' own types through as objects."""
    if array.dtype.kind in "mM":
        raise TypeError(f"got {array.dtype}, needed are numbers")
    return array.astype(np.float64) if array.dtype.kind == "O" else array


@contextmanager
def _of_numbers(key: str, given: Any, what: str) -> Iterator[None]:
    """Say which column is the cause where text, categories or dates were to become numbers."""
    try:
        yield
    except (ValueError, TypeError) as error:
        if (place := _other_than_numbers(given)) is not None:
            raise UserError(
                f"view {key!r} holds {place}, and features are numbers; leave the column out, or encode it, with "
                "scikit-learn's OneHotEncoder for example"
            ) from error
        if isinstance(error, TypeError):
            raise
        raise UserError(_sentence(what, error)) from error


def _other_than_numbers(given: Any) -> str | None:
    """The first column with text or dates, of a table with anything that is no number; None where there is none."""
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
    """Text or a date; in a table anything that is no number (an array's odd objects are scikit-learn's to name)."""
    if isinstance(value, (np.datetime64, np.timedelta64, np.str_, np.bytes_)):
        return True
    try:
        float(0 if value is None else value)
    except (ValueError, TypeError):
        return in_table or isinstance(value, (str, bytes))
    return False


def _sentence(what: str, error: ValueError) -> str:
    """The text of an error of NumPy or scikit-learn, with the cure where theirs has none."""
    text = str(error).partition("\n[")[0]  # scikit-learn prints all complex features
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
    """Reject NaN, infinities, and numbers whose sums of squares overflow; report the row and the column.

    `names`: names of the columns, for the message; `whole`: the block holds all rows.
    """
    data = block.data if scipy.sparse.issparse(block) else block
    if data.dtype.kind != "f" or not data.size or (float(data.max()) <= _LARGEST and float(data.min()) >= -_LARGEST):
        return  # a NaN is the largest and the smallest, and compares as neither
    stored = block.toarray() if scipy.sparse.issparse(block) else block
    # in float64: as float32 the bound is infinite, and infinity would pass
    row, column = np.argwhere(~(np.abs(stored.astype(np.float64)) <= _LARGEST))[0]
    value, place = stored[row, column], f"row {first_row + row}, column {column}"
    if kind == "kernel" and not np.isfinite(value):
        rows = np.arange(first_row, first_row + stored.shape[0])
        raise not_finite(f"view {key!r}: the precomputed kernel", stored, rows, np.arange(stored.shape[1]))
    if names is not None and column < len(names):
        place += f" ({names[column]!r})"
    if np.isnan(value):
        if whole:
            place += f", as {np.isnan(stored[:, column]).mean():.0%} of the rows there"
        cure = (
            "pass prepare=Prepare(impute='mean'), 'median' or 'zero'"
            if kind == "fillable features"
            else "fill missing values"
        )
        raise UserError(f"view {key!r} has NaN at {place}; {cure}, or drop the sample from every view")
    cure = "divide the features by a constant, so that their squares are numbers"
    if np.isinf(value):
        cure = "replace it, or drop the sample from every view"
    raise UserError(f"view {key!r} has {value} at {place}; {cure}")


def _check_sizes(views: Mapping[str, Rows], reset: bool) -> None:
    first, n = next(iter(views)), sample_count(views)
    for key, view in views.items():
        if 0 in view.shape:
            raise UserError(f"view {key!r} is empty (shape {tuple(view.shape)}); leave it out or fill it")
        if view.shape[0] != n:
            raise UserError(
                f"view {key!r} has {view.shape[0]} rows, view {first!r} has {n}; pass the same samples in every view"
            )
    if reset and n < 2:
        raise TooFewSamples(f"got n_samples = {n} (1 sample), needs at least 2 to learn from")


def _learn(estimator: BaseEstimator, views: dict[str, Rows]) -> dict[str, Rows]:
    estimator.view_widths_ = {key: int(view.shape[1]) for key, view in views.items()}
    return views


def _compare(widths: Mapping[str, int], views: dict[str, Rows]) -> dict[str, Rows]:
    """The views in the order of the fit, whose widths these are."""
    _check_names(widths, views)
    for key, width in widths.items():
        if views[key].shape[1] != width:
            raise UserError(
                f"view {key!r} has {views[key].shape[1]} features, the model was fitted on {width}; "
                f"pass the features that it was fitted on"
            )
    return {key: views[key] for key in widths}


def _check_names(widths: Mapping[str, int], given: Mapping[str, Any]) -> None:
    needed = list(widths)
    cure = f"the model was fitted on {needed}; got {list(given)}, pass a mapping with the names of the fit"
    for key in needed:
        if key not in given:
            raise UserError(f"view {key!r} is missing; {cure}")
    for key in given:
        if key not in needed:
            raise UserError(f"view {key!r} is unknown; {cure}")


def _check_columns(needed: Mapping[str, Sequence[str]], given: Mapping[str, Sequence[str]]) -> None:
    """Names of columns, in views that had some in the fit and have some now."""
    for key in [key for key in given if key in needed]:
        for j, (old, new) in enumerate(zip(needed[key], given[key], strict=False)):
            if old != new:
                raise UserError(
                    f"view {key!r} has the column {new!r} at place {j}, in the fit it was {old!r}; "
                    f"pass the columns of the fit in their order"
                )
