"""Preprocessing of views before a fit: imputation of missing values and scaling of columns.

Preprocessing is learned from the training rows, stored in the model, and applied to new rows as they are read. The
formulas are those of scikit-learn's SimpleImputer, StandardScaler, MaxAbsScaler and Normalizer. Preprocessing reads one
block of rows at a time, so that the data need not fit in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator
from sklearn.preprocessing import normalize

from dmo.blocks import (
    APART,
    Block,
    Rows,
    RowsOf,
    Subset,
    column_sums,
    dense,
    double,
    presence,
    reads_sparse,
    rounding,
    row_blocks,
    rows,
    sampled,
    spaced_rows,
    spread,
    stored_rows,
    stored_values,
    strips,
    weighted_median,
)
from dmo.cluster.workers import each
from dmo.errors import UserError
from dmo.inputs.containers import Columns
from dmo.inputs.needs import one_of, optional, per_view
from dmo.kernels import parse
from dmo.kernels.product import is_product
from dmo.parameters import ParameterObject, flat

Scales = (
    Literal["auto", "none", "standard", "maxabs", "l2"]
    | Mapping[str, Literal["auto", "none", "standard", "maxabs", "l2"]]
)
"""Type of `scale`: one scaling for all views, or a mapping from view to scaling."""
Gap = Literal["mean", "median", "zero", "mean+indicator", "median+indicator", "zero+indicator"]
Gaps = Gap | Mapping[str, Gap] | None
"""Type of `impute`: one imputation method for all views, or a mapping from view to method."""
_SCALE = one_of("auto", "none", "standard", "maxabs", "l2")
_GAP = optional(one_of(*(f"{fill}{mark}" for mark in ("", "+indicator") for fill in ("mean", "median", "zero"))))


@dataclass(eq=False, repr=False)
class Prepare(ParameterObject):
    """Preprocessing of X before a fit: splitting one array into views, imputation, and scaling.

    The parameter `prepare` of an estimator accepts a `Prepare` object or only the value of `scale`. Means and scales
    are learned from the weighted training rows, stored in the model, and applied to new rows.

    Parameters
    ----------
    scale : {"auto", "none", "standard", "maxabs", "l2"}, mapping of view to these, or None, default=None
        Scaling of the columns; "l2" scales each row to unit norm instead. "standard" does not center sparse data.
        "auto" scales a view if the sizes of its columns differ by a factor above 100 and its kernel allows scaling. It
        then uses "maxabs" if most values are zero, otherwise "standard". None means "auto", except in `MLSI`, where
        None means "none".
    impute : {"mean", "median", "zero"}, each with "+indicator" or not, mapping of view, or None, default=None
        Value that replaces NaN: the mean or median of the column in the training rows, or zero. "+indicator" appends an
        indicator column for each column with missing training values. If None, NaN values raise an error.
    views : mapping of view to slice, list of int or list of str, or None, default=None
        Columns that form each view if X is one array or DataFrame, for estimators that support several views.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from dmo import MultiViewRidge, Prepare
    >>> X, Y = make_multilabel_classification(n_samples=100, n_classes=5, random_state=0)
    >>> X[0, 0] = np.nan
    >>> model = MultiViewRidge(prepare=Prepare("standard", impute="mean", views={"a": slice(0, 10), "b": slice(10, 20)}))
    >>> sorted(model.fit(X, Y).expansions_)
    ['a', 'b']
    """

    scale: Scales | None = None
    impute: Gaps = None
    views: Mapping[str, Columns] | None = None

    _short: ClassVar[str] = "scale"


def preparing(estimator: Any) -> Prepare | None:
    """Return the `Prepare` object of an estimator, or None if it has none."""
    return getattr(estimator, "_prepare", None)


_BLOCK, _MEDIAN = (
    4096,
    65536,
)  # number of rows in a block of a pass over the data, and of rows from which medians are computed
_STRIP = 256  # number of rows that are preprocessed together
log = logging.getLogger("dmo")


@dataclass(frozen=True, eq=False)
class Preparation:
    """Learned preprocessing of one view with d columns, and with m indicator columns of missing values."""

    scale: str  # name of the scaling
    fill: np.ndarray | None = None
    marked: np.ndarray | None = None  # indices of the m columns with an indicator column of missing values
    center: np.ndarray | None = None  # numbers that are subtracted from the d + m columns; only for dense rows
    width: np.ndarray | None = None  # divisors of the d + m columns

    def dtype(self, given: np.dtype) -> np.dtype:
        """Return the data type of preprocessed rows."""
        return np.dtype(np.float64) if given.kind not in "iufb" else np.result_type(given, np.float32)

    def __call__(self, block: Any) -> Any:
        """Preprocess a block of rows, and append the m indicator columns of missing values."""
        parts = strips(block, _STRIP)
        if len(parts) <= 1:
            return self._strip(block)
        added = 0 if self.marked is None else len(self.marked)
        out = np.empty((len(block), block.shape[1] + added), self.dtype(block.dtype))
        for where in parts:  # The float64 copies of a small strip stay in the CPU cache.
            out[where] = self._strip(block[where])
        return out

    def _strip(self, block: Any) -> Any:
        dtype, found = self.dtype(block.dtype), double(block)
        if self.fill is not None:
            found = _filled(found, self.fill, self.marked)
        if self.scale == "l2":
            found = normalize(found)
        if scipy.sparse.issparse(found):
            if self.width is not None:
                found = scipy.sparse.csr_array(
                    (found.data / self.width[found.indices], found.indices, found.indptr), shape=found.shape
                )
            return found.astype(dtype, copy=False)
        own = None if np.shares_memory(found, block) else found  # A copy can be changed in place.
        if self.center is not None:
            found = own = np.subtract(found, self.center, out=own)
        if self.width is not None:
            found = np.divide(found, self.width, out=own)
        return found.astype(dtype, copy=False)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays that a model store needs to restore the preprocessing."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "scale"}
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], scale: str, width: int) -> Self:
        """Restore the preprocessing from the result of `to_arrays`."""
        made = cls(scale, **{f.name: arrays[f.name] for f in fields(cls) if f.name in arrays})
        marked = made.marked if made.marked is not None else np.empty(0, np.intp)
        right: Any = marked.dtype.kind in "iu" and ((marked >= 0) & (marked < width)).all()
        for part, length in ((made.fill, width), (made.center, width + len(marked)), (made.width, width + len(marked))):
            right = right and (part is None or (part.shape == (length,) and bool(np.isfinite(part).all())))
        if not right or (made.width is not None and not made.width.all()):
            raise UserError(f"the preparation expects views of {width} columns; pass the features it was made for")
        return made


@dataclass(frozen=True, eq=False)
class PreparedRows(RowsOf):
    """Row source that preprocesses rows as they are read, and rejects rows that are not finite afterwards."""

    preparation: Preparation
    check: Callable[[Block, int], None]

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and number of columns including the indicator columns of missing values."""
        marked = self.preparation.marked
        return self.source.shape[0], self.source.shape[1] + (0 if marked is None else len(marked))

    @property
    def dtype(self) -> np.dtype:
        """Data type of preprocessed rows."""
        return self.preparation.dtype(np.dtype(self.source.dtype))

    @property
    def block(self) -> int:
        """Number of rows that the source reads at a time."""
        return int(getattr(self.source, "block", 1024))

    def __getitem__(self, where: slice) -> Block:
        found = self.preparation(rows(self.source, where))
        self.check(found, range(self.shape[0])[where].start)
        return found

    def sample(self, index: np.ndarray) -> Block:
        """Read and preprocess rows by their indices."""
        return self.preparation(sampled(self.source, index))


def view_kernels(estimator: BaseEstimator, views: list[str]) -> dict[str, Any]:
    """Return the kernel of each view, or None for an invalid kernel, which the estimator reports later."""
    found: dict[str, Any] = {}
    for view, spec in per_view("kernel", getattr(estimator, "kernel", None), views).items():
        try:
            found[view] = parse(spec)
        except (UserError, TypeError):
            found[view] = None
    return found


def learn_preparations(
    estimator: BaseEstimator, views: Mapping[str, Rows], weights: Mapping[str, np.ndarray] | None = None
) -> dict[str, Preparation]:
    """Learn the preprocessing of each view, as set by the parameter `prepare`, from the weighted training rows."""
    asked = preparing(estimator)
    if asked is None or not hasattr(estimator, "prepare"):
        return {}
    scales = per_view("scale", asked.scale, list(views), _SCALE)
    gaps = per_view("impute", asked.impute, list(views), _GAP)
    takes, kernels = None, view_kernels(estimator, list(views))
    found = {}
    for view, source in views.items():
        if kernels[view] is not None and kernels[view].pairwise:
            if scales[view] not in ("auto", "none") or gaps[view] is not None:
                raise UserError(
                    f"view {view!r} is a precomputed kernel, whose columns are samples, got scale={scales[view]!r}, "
                    f"impute={gaps[view]!r}; pass prepare='none', and prepare the features before the kernel"
                )
            continue
        source, often = _counted(source, None if weights is None else weights[view])
        made = Preparation("none") if gaps[view] is None else _fill(source, gaps[view], often)
        filled = source if gaps[view] is None else PreparedRows(source, made, _unchecked)
        scale = scales[view]
        if scale == "auto":
            takes = scalable(estimator, list(views)) if takes is None else takes
            scale = _chosen(view, filled, often) if takes[view] else "none"
        if scale in ("standard", "maxabs"):
            made = _scaled(made, scale, filled, often)
        made = replace(made, scale=scale)
        if gaps[view] is not None or scale != "none":
            found[view] = made
    return found


def _counted(source: Rows, weights: np.ndarray | None) -> tuple[Rows, np.ndarray | None]:
    """Select the rows that are present in a view and have positive weight; return no selection if all weights are 1."""
    present = presence(source)
    if weights is not None:
        present = weights > 0 if present is None else present & (weights > 0)
    if present is not None and not present.all():
        index = np.flatnonzero(present)
        source, weights = Subset(source, index), None if weights is None else weights[index]
    return source, None if weights is None or (weights == 1).all() else weights


def _chosen(view: str, source: Rows, weights: np.ndarray | None) -> str:
    """Choose the scaling of a view for scale="auto"."""
    # Automatic scaling is based on leave-one-out scores of ridge regression (Gaussian and linear kernels) on nine data
    # sets from Mulan, eight image descriptors and four tables from scikit-learn. If the sizes of columns differed by a
    # factor below 20, scaling did not matter. For larger differences, "standard" increased the AUC of tables by up to
    # 0.24. For descriptors that are mostly zeros, "standard" reduced the AUC by as much as "maxabs" increased it.
    own = source
    while isinstance(own, Subset | PreparedRows):
        own = own.source
    if getattr(own, "histogram", False):  # The columns of a histogram have a common unit.
        return "none"
    ratio, zeros = spread(source, weights)
    if not ratio > APART:
        return "none"
    scale = "maxabs" if zeros else "standard"
    log.info(
        "view %r: the sizes of columns differ by a factor of %.2g, so they are scaled (%s); "
        "prepare='none' disables this",
        view,
        ratio,
        scale,
    )
    return scale


def scalable(estimator: BaseEstimator, views: list[str]) -> dict[str, bool]:
    """Return for each view whether its kernel or distance allows scaled columns."""
    kernel, parameters = getattr(estimator, "kernel", None), flat(estimator)
    if parameters.get("metric") == "cosine":
        return dict.fromkeys(views, False)
    if "distances" in parameters and (kernel is None or is_product(kernel)):
        given = parameters["distances"]
        by_view = given if isinstance(given, Mapping) else dict.fromkeys(views, given)
        return {view: by_view.get(view, "auto") in ("auto", "l2") for view in views}
    if kernel is None:
        return dict.fromkeys(views, True)
    return {view: own is not None and own.scalable for view, own in view_kernels(estimator, views).items()}


def _unchecked(block: Block, first_row: int) -> None:
    """Accept any block, because later readers check the values."""


def _fill(source: Rows, how: str, weights: np.ndarray | None) -> Preparation:
    """Learn the value that replaces missing values in each column; columns without known values get 0."""
    fill, plus, _ = how.partition("+")
    n, d = source.shape
    total, missing, count = np.zeros(d), np.zeros(d), 0.0
    if fill != "zero" or plus:
        for _, (own, gap, part) in each("look for gaps", _KnownCells(source, weights), _numbers(n)):
            count, missing, total = count + own, missing + gap, total + part
    marked = np.flatnonzero(missing > 0) if plus else None
    if fill == "median":
        index, often = spaced_rows(n, _MEDIAN, weights)
        values = _medians(sampled(source, index), often)
    else:
        known = count - missing
        values = np.zeros(d) if fill == "zero" else total / np.where(known > 0, known, 1.0)
    return Preparation("none", values, marked)


def _medians(block: Any, weights: np.ndarray | None) -> np.ndarray:
    """Compute the weighted median of the known values of each column."""
    block = double(dense(block))
    if weights is None:
        empty = np.isnan(block).all(axis=0)
        return np.nanmedian(np.where(empty, 0.0, block), axis=0)
    found = np.zeros(block.shape[1])
    for j, column in enumerate(block.T):
        if (known := ~np.isnan(column)).any():
            found[j] = weighted_median(column[known], weights[known])
    return found


def _numbers(n: int) -> range:
    return range(len(row_blocks(n, _BLOCK)))


@dataclass(frozen=True)
class _Statistics:
    """Base class of functions that compute column statistics of a block of weighted rows."""

    source: Rows
    weights: np.ndarray | None

    def read(self, number: int) -> tuple[Any, np.ndarray | None]:
        """Read a block of rows and their weights."""
        where = row_blocks(self.source.shape[0], _BLOCK)[number]
        return double(rows(self.source, where)), None if self.weights is None else self.weights[where]


@dataclass(frozen=True)
class _KnownCells(_Statistics):
    """Function that computes the weight of a block, and the missing weight and sum of known values of each column."""

    def __call__(self, number: int) -> tuple[float, np.ndarray, np.ndarray]:
        block, weights = self.read(number)
        count = float(block.shape[0] if weights is None else weights.sum())
        values, own = stored_values(block), None if weights is None else weights[stored_rows(block)]
        gap = np.isnan(values)
        known = np.where(gap, 0.0, values)
        return count, column_sums(block, _times(gap, own)), column_sums(block, _times(known, own))


@dataclass(frozen=True)
class _ColumnMoments(_Statistics):
    """Function that computes the weight of a block, and the mean, squared deviation and maximum size of each column."""

    def __call__(self, number: int) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
        block, weights = self.read(number)
        d = block.shape[1]
        if not scipy.sparse.issparse(block):
            has = ~np.isnan(block).any(axis=1)  # A row of NaN is a sample that is missing from the view.
            block, weights = block[has], None if weights is None else weights[has]
            n = float(len(block) if weights is None else weights.sum())
            mean = _times(block, weights).sum(axis=0) / n if n else np.zeros(d)
            about = _times((block - mean) ** 2, weights).sum(axis=0)
            return n, mean, about, np.abs(block).max(axis=0, initial=0.0)
        n = float(block.shape[0] if weights is None else weights.sum())
        own = None if weights is None else np.repeat(weights, np.diff(block.indptr))
        mean = np.bincount(block.indices, _times(block.data, own), d) / n
        squares = np.bincount(block.indices, _times((block.data - mean[block.indices]) ** 2, own), d)
        about = squares + (n - np.bincount(block.indices, own, d)) * mean**2
        return n, mean, about, abs(block).max(axis=0).toarray().ravel()


def _times(values: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Multiply rows by their weights; weights of None leave the rows unchanged."""
    return values if weights is None else values * weights.reshape(-1, *[1] * (values.ndim - 1))


def _scaled(made: Preparation, scale: str, source: Rows, weights: np.ndarray | None) -> Preparation:
    """Learn the center and width of columns; partial sums are added in row order, so that workers have no influence."""
    d = source.shape[1]
    n, mean, about, largest = 0.0, np.zeros(d), np.zeros(d), np.zeros(d)
    for _, (count, center, square, size) in each(
        "scale of the columns", _ColumnMoments(source, weights), _numbers(source.shape[0])
    ):
        if count == 0:
            continue
        gap, both = center - mean, n + count
        mean = mean + gap * (count / both)
        about = about + square + gap**2 * (n * count / both)  # stable update [Chan, Golub, LeVeque 1979]
        n, largest = both, np.maximum(largest, size)
    if scale == "maxabs":
        return replace(made, width=np.where(largest > 0, largest, 1.0))
    deviation = np.sqrt(about / (n or 1.0))
    width = np.where(deviation > rounding(n, mean, deviation), deviation, 1.0)
    return replace(made, center=None if reads_sparse(source) else mean, width=width)


def _filled(block: Any, fill: np.ndarray, marked: np.ndarray | None) -> Any:
    """Impute missing values and append indicator columns; rows that contain only NaN are not changed."""
    if scipy.sparse.issparse(block):
        gap = np.isnan(block.data)
        data = np.where(gap, fill[block.indices], block.data)
        found = scipy.sparse.csr_array((data, block.indices, block.indptr), shape=block.shape)
        if marked is None:
            return found
        where = scipy.sparse.csr_array((gap.astype(np.float64), block.indices, block.indptr), shape=block.shape)
        return scipy.sparse.csr_array(scipy.sparse.hstack([found, where[:, marked]], format="csr"))
    gap = np.isnan(block)
    gap[gap.all(axis=1)] = False
    found = np.where(gap, fill, block)
    return found if marked is None else np.hstack([found, gap[:, marked]])
