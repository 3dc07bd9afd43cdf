"""Validation of the target y, which contains labels, classes or regression targets.

`check_labels` reads labels of 0 and 1, classes or label sets. `check_known_labels` also accepts unlabeled samples, and
`check_partial_labels` accepts single unknown entries. `check_outputs` reads regression targets, and
`check_label_factor` reads the input of a label kernel.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias, cast

import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator
from sklearn.preprocessing import MultiLabelBinarizer
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import column_or_1d

from dmo.blocks import cell_blocks, dense, filled, nonzero_count, reads_sparse, rows
from dmo.errors import TooFewSamples, UserError
from dmo.formats.labels import is_label_sets
from dmo.inputs.containers import Outputs, as_views, plain
from dmo.inputs.label_rows import KnownRows, LabelRows
from dmo.inputs.needs import Named
from dmo.inputs.views import column_names, is_lazy
from dmo.labels.hierarchy import ancestor_pairs, ancestors_of, parents_of
from dmo.labels.label_kernels import LabelKernel, label_factor
from dmo.metrics import with_ancestors
from dmo.parameters import flat

Targets: TypeAlias = Literal["auto", "labels", "real"]
"""Values of the parameter `targets`: labels or regression targets. With "auto", `are_real` distinguishes them."""
_MANY = 4096
"""Number of labels above which sparse labels stay sparse, because matrices of labels x labels would be too large."""


def check_labels(
    estimator: BaseEstimator,
    y: Outputs,
    n: int,
    *,
    reset: bool = True,
    grow: bool = False,
    classes: Iterable[Any] | None = None,
    dtype: type[np.generic] = np.float64,
) -> np.ndarray:
    """Convert the labels of n samples to a matrix of 0 and 1, of shape (n, L)."""
    # With `reset`, the function sets attributes that describe the columns; otherwise, it compares y with them.
    # `classes_` contains the classes, the names of the labels, or 0..L-1. `multilabel_` is False for a vector of
    # classes. `label_names_` is a list if the labels have names, and `label_dtype_` names the data type of a matrix.
    values, names = _read(y, n, labels=True)
    if isinstance(values, list):
        return _from_sets(estimator, values, reset, grow, classes).astype(dtype)
    if values.ndim == 1:
        return _from_classes(estimator, values, reset, grow, classes).astype(dtype)
    return _from_matrix(estimator, values, names, reset, grow).astype(dtype)


def check_known_labels(estimator: BaseEstimator, y: Outputs | None, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Read the labels of n samples, which may be unlabeled, and set the attributes of `check_labels`.

    Returns labels of shape (n, L), and a mask of the n samples that are labeled.
    """
    # A sample is unlabeled if its class is -1, NaN or None, or if its row contains only these values.
    values, names = _read(y, n, labels=True)
    if isinstance(values, list):
        known = np.ones(n, bool)
    elif values.dtype.kind == "O":
        known = np.array([not all(v is None or v != v for v in np.atleast_1d(row)) for row in values])
    elif values.dtype.kind in "biuf":
        known = ~((values != values) | (values == -1)).reshape(n, -1).all(axis=1)
        if values.ndim == 1 and np.array_equal(np.unique(values), (-1, 1)):
            known[:] = True  # The values -1 and 1 are two classes.
    else:
        known = np.ones(n, bool)
    if not known.any():
        raise TooFewSamples("no sample has a label; pass labels for some of them")
    if isinstance(values, list):
        part = _from_sets(estimator, values, True, False, None)
    elif values.ndim == 1:
        if not known.all() and len(set(values[known].tolist())) == 1:
            alone = values[known].tolist()[0]
            raise TooFewSamples(
                f"y has only the class {alone!r}, and -1 or NaN for unlabeled samples; pass classes numbered from 0"
            )
        part = _from_classes(estimator, values[known], True, False, None)
    else:
        part = _from_matrix(estimator, values[known], names, True, False, np.flatnonzero(known))
    Y = np.zeros((n, part.shape[1]))
    Y[known] = part
    return Y, known


def check_partial_labels(estimator: BaseEstimator, y: Outputs, n: int, *, reset: bool = True) -> tuple[Any, Any]:
    """Read labels whose single entries may be unknown, and set the attributes of `check_labels`.

    Returns labels of shape (n, L), sparse if y is, and a mask of the known entries, or None if all are known.
    """
    y = rows(y.source) if isinstance(y, LabelRows) else y
    if scipy.sparse.issparse(y):
        if cast(Any, y).shape[1] > 1:
            return _sparse_labels(estimator, y, n, reset)
        labels, gaps = _without_gaps(y)
        y = labels.toarray() if gaps is None else np.ma.MaskedArray(labels.toarray(), gaps.toarray())
    values, names, mask = _read_masked(y, n, labels=True)
    if isinstance(values, list) or values.ndim == 1:
        if np.any(mask):
            raise UserError(
                "y is a masked vector of classes, expected a masked label matrix; drop the samples with unknown classes"
            )
        return check_labels(estimator, values, n, reset=reset, dtype=np.uint8), None
    # Each copy of a matrix of bytes needs a gigabyte for 10 million samples and 100 labels, so do not copy the matrix.
    none = values.dtype.kind in "biu" and mask is False
    unknown = None if none else missing_entries(values) | mask
    unknown = None if unknown is None or not unknown.any() else unknown
    labels = _from_matrix(estimator, values, names, reset, False, unknown=unknown)
    labels = labels.view(np.uint8) if labels.itemsize == 1 else labels.astype(np.uint8)
    if unknown is None:
        return labels, None
    known = np.logical_not(unknown, out=unknown)
    known |= labels > 0  # The ancestors of a positive label are known to be positive.
    return labels, known


def check_stored_labels(estimator: BaseEstimator, y: LabelRows, n: int) -> LabelRows:
    """Validate labels in a store like `check_labels`, without loading them."""
    if len(y) != n:
        raise _unequal(len(y), n)
    if not y.sum(0, bool).any():
        raise TooFewSamples("no sample has a label; pass labels for some of them")
    _learn(estimator, np.arange(y.shape[1]), True, None)
    estimator.label_dtype_ = _type_name(y.dtype)
    return y


def are_many(y: Any) -> bool:
    """Return whether labels are sparse and too many for matrices of shape labels x labels."""
    return scipy.sparse.issparse(y) and y.shape[1] > _MANY


TargetKind: TypeAlias = Literal["many", "stored", "real", "labels"]
"""Kind of a target: many sparse labels (see `are_many`), labels in a store, regression targets, or other labels."""


def recognized(y: Any, targets: Targets) -> tuple[Any, TargetKind]:
    """Return a target and its kind; many sparse labels in a store are loaded."""
    if isinstance(y, LabelRows):
        if y.shape[1] <= _MANY or not reads_sparse(y.source):
            return y, "real" if targets == "real" else "stored"
        y = rows(y.source)
    if scipy.sparse.issparse(y) and y.shape[1] > _MANY:
        return y, "many"
    return y, "real" if targets == "real" or (targets == "auto" and are_real(y)) else "labels"


def are_sparse_labels(y: Any) -> bool:
    """Return whether y is a sparse matrix of labels, which contains only 0 and 1 or very many columns."""
    given = getattr(y, "source", y)
    if not scipy.sparse.issparse(given) or given.shape[1] < 2:
        return False
    return are_many(given) or bool(np.isin(given.data, (0, 1)).all())


def missing_entries(values: np.ndarray) -> np.ndarray:
    """Return a mask of the entries that are NaN, None or pandas.NA."""
    if values.dtype.kind == "O":
        return np.array([[v is None or type(v).__name__ == "NAType" or v != v for v in row] for row in values], bool)
    return np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, bool)


def check_outputs(y: Outputs, n: int, unknown: bool = False) -> tuple[np.ndarray, bool, list[str] | None]:
    """Read regression targets as a matrix of shape (n, L).

    Also returns whether y is a vector, and the names of the columns or None.
    """
    values, names = _read(np.ma.filled(y.astype(np.float64), np.nan) if isinstance(y, np.ma.MaskedArray) else y, n)
    given = np.asarray(values, dtype=None if isinstance(values, np.ndarray) else object)
    if given.dtype.kind == "O" and unknown:
        given = np.where(missing_entries(np.atleast_2d(given)).reshape(given.shape), np.nan, given)
    try:
        Y = given.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"outputs must be numbers, got {given.dtype}; for classes, pass one column of +1 and -1 per class"
        ) from error
    if Y.ndim > 2 or 0 in Y.shape:
        raise UserError(f"outputs have shape {Y.shape}; pass samples x outputs")
    wrong = np.isinf(Y) if unknown else ~np.isfinite(Y)
    if wrong.any():
        at = np.argwhere(wrong)[0]
        place = f"row {at[0]}" + (f", output {at[1]}" if Y.ndim == 2 else "")
        raise UserError(f"input y contains NaN or infinity at {place}; fill the missing values, or drop the sample")
    return (Y[:, None], True, None) if Y.ndim == 1 else (Y, False, names)


def are_real(y: Outputs | None) -> bool:
    """Return whether y contains regression targets: a matrix of floats with a value other than 0, 1, -1 and NaN.

    A vector contains classes, and a matrix of integers contains labels.
    """
    if y is None or isinstance(y, LabelRows) or (type(y) is np.ndarray and y.dtype.kind != "f"):
        return False
    given: Any = plain(y.compute() if hasattr(y, "compute") else y)
    if scipy.sparse.issparse(given):
        values = given.data
    elif as_views(given) is not None or is_label_sets(given):
        return False
    else:
        try:
            values = np.ma.getdata(given) if isinstance(given, np.ma.MaskedArray) else np.asarray(given)
        except ValueError:
            return False
        if values.ndim != 2:
            return False
    return values.dtype.kind == "f" and not (np.isin(values, (-1, 0, 1)) | np.isnan(values)).all()


def check_label_factor(
    estimator: BaseEstimator, y: Outputs, n: int, kernel: LabelKernel, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Convert y to a factor F of its label kernel matrix, K_Y = F F', and return it with a mask of known entries."""
    # For the kernel "linear", the factor contains the numbers of y. The weighted mean of the column replaces entries of
    # a matrix that are NaN, None or masked. Classes and lists of labels become one column per class, and the attributes
    # of `check_labels` are set. Kernels other than "linear" receive y itself.
    if kernel == "linear":
        factor, known = _columns(estimator, *_read_masked(y, n))
        if known is not None:
            nowhere = np.flatnonzero(~known.any(axis=0))
            if nowhere.size:
                raise TooFewSamples(f"output {nowhere[0]} is unknown in all samples; leave it out")
            counts = known if weights is None else known * weights[:, None]
            factor = np.where(known, factor, (counts * factor).sum(axis=0) / np.maximum(counts.sum(axis=0), 1e-300))
        return label_factor(kernel, factor), known
    for name in ("classes_", "multilabel_", "label_names_"):
        estimator.__dict__.pop(name, None)
    _check_presence(y)
    given: Any = y.compute() if hasattr(y, "compute") else y
    if isinstance(kernel, str) and hasattr(given, "__array__") and not scipy.sparse.issparse(given):
        given = np.asarray(given)
    count = given.shape[0] if hasattr(given, "shape") else len(given)
    if count != n:
        raise _unequal(count, n)
    return label_factor(kernel, _widened(estimator, given) if is_label_sets(given) else given), None


def known_values(labels: Any, known: Any) -> np.ndarray:
    """Convert labels from `check_partial_labels` to floats, with NaN for unknown entries."""
    found = dense(labels).astype(np.float64)
    if known is not None:
        found[~np.asarray(known)] = np.nan
    return found


def warn_of_outputs(estimator: Named, Y: np.ndarray) -> None:
    """Warn if outputs are constant or equal to each other."""
    if Y.shape[1] == 1:
        return
    constant = np.flatnonzero(np.ptp(Y, axis=0) == 0)
    if constant.size:
        estimator._warn(
            f"output {constant[0]} is constant ({Y[0, constant[0]]:g}) in all samples ({constant.size} of "
            f"{Y.shape[1]} outputs are); it does not affect the fit, leave it out"
        )
    ordered = np.lexsort(Y)
    same = [pair for pair in itertools.pairwise(ordered) if np.array_equal(Y[:, pair[0]], Y[:, pair[1]])]
    twins = [sorted(map(int, pair)) for pair in same if not {*pair} & {*constant}]
    if twins:
        estimator._warn(
            f"outputs {twins[0][0]} and {twins[0][1]} are the same in all samples, so that their errors count twice; "
            f"leave one out"
        )


def _read(y: Any, n: int, labels: bool = False) -> tuple[np.ndarray | list[Collection[Any]], list[str] | None]:
    """Return y as an array of n rows or as a list of n label sets, and the column names of a DataFrame or None.

    With `labels`, a single column of classes becomes a vector.
    """
    values, names = (y, None) if type(y) is np.ndarray and y.dtype.kind != "O" else _converted(y)
    if not isinstance(values, list) and values.ndim == 0:
        raise UserError(f"y is a single value, {y!r}; pass one row per sample")
    if len(values) != n:
        raise _unequal(len(values), n)
    if isinstance(values, list):
        return values, None
    if values.dtype.kind == "c" or (values.dtype.kind == "O" and any(isinstance(v, complex) for v in values.flat)):
        raise UserError("y contains complex numbers; pass real and imaginary parts as separate outputs")
    if values.ndim > 2:
        raise UserError(f"y has shape {values.shape}, expected samples x labels; pass one row per sample")
    return _class_vector(values) if labels and values.shape[1:] == (1,) else values, names


def _converted(y: Any) -> tuple[np.ndarray | list[Collection[Any]], list[str] | None]:
    """Convert tables, lazy and sparse rows, and lists to an array or to label sets, and return the column names."""
    _check_presence(y)
    y = plain(y)
    names = column_names(y)
    if hasattr(y, "compute"):
        y = y.compute()
    if scipy.sparse.issparse(y):
        y = y.toarray()
    elif is_lazy(y):
        y = rows(y)
    if is_label_sets(y):
        return list(y), None
    try:
        return np.asarray(y), names
    except ValueError as error:
        raise UserError("y has rows of unequal lengths; pass n x L of 0 and 1, or lists of label names") from error


def _sparse_labels(
    estimator: BaseEstimator, y: Any, n: int, reset: bool
) -> tuple[scipy.sparse.csr_array, KnownRows | None]:
    """Read sparse labels as bytes, with a mask of known entries, as `check_partial_labels` returns them."""
    if y.shape[0] != n:
        raise _unequal(y.shape[0], n)
    if are_many(y) and hierarchy_of(estimator) is not None:
        raise UserError(
            f"a hierarchy needs dense labels, got a sparse matrix of {y.shape[1]} labels; pass fewer labels, or leave "
            "it out"
        )
    given, gaps = _without_gaps(y)
    labels: Any = _from_matrix(estimator, given, None, reset, False)
    if reset:
        estimator.label_dtype_ = _type_name(y.dtype)
    if gaps is not None:  # The ancestors of a positive label are known to be positive.
        gaps = scipy.sparse.csr_array(gaps > labels.astype(bool))
    return labels, None if gaps is None or not gaps.nnz else KnownRows(gaps)


def _without_gaps(y: Any) -> tuple[scipy.sparse.csr_array, scipy.sparse.csr_array | None]:
    """Return sparse labels with 0 for NaN, as bytes if all are 0 or 1, and a mask of the NaN entries or None."""
    Y = scipy.sparse.csr_array(y, copy=True)
    Y.sum_duplicates()
    missing: Any = np.isnan(Y.data) if Y.dtype.kind == "f" else np.zeros(0, bool)
    gaps = None
    if missing.any():
        gaps = scipy.sparse.csr_array((missing, Y.indices.copy(), Y.indptr.copy()), shape=Y.shape)
        gaps.eliminate_zeros()
        Y = filled(Y)
    if np.isin(Y.data, (0, 1)).all():  # Bytes need an eighth of the memory of float64.
        Y = Y.astype(np.uint8)
    Y.eliminate_zeros()
    return Y, gaps


def _read_masked(
    y: Any, n: int, labels: bool = False
) -> tuple[np.ndarray | list[Collection[Any]], list[str] | None, Any]:
    """Return the results of `_read`, and the mask of y, or False if y is not a masked array."""
    if not isinstance(y, np.ma.MaskedArray):
        return *_read(y, n, labels), False
    return *_read(np.ma.getdata(y), n, labels), np.ma.getmaskarray(y)


def _class_vector(values: np.ndarray) -> np.ndarray:
    """Convert a single column of classes to a vector, with a warning from scikit-learn; keep a column of labels."""
    if values.dtype.kind not in "USMm" and np.isin(np.where(missing_entries(values), 0, values), (0, 1)).all():
        return values
    return np.asarray(column_or_1d(values, warn=True))


def _check_presence(y: Any) -> None:
    if y is None:
        raise UserError("requires y to be passed, but the target y is None; pass labels or targets as second argument")
    if (views := as_views(y)) is not None:
        count = f"a list of {len(y)} arrays" if isinstance(y, (list, tuple)) else f"views {list(views)}"
        raise UserError(
            f"y is {count}, expected labels with one row per sample; pass the views first and the labels second"
        )


def _unequal(got: int, n: int) -> UserError:
    return UserError(
        f"found input variables with inconsistent numbers of samples: y has {got} rows, X has {n}; "
        f"pass one row of y per sample"
    )


def _from_sets(
    estimator: BaseEstimator, sets: Sequence[Collection[Any]], reset: bool, grow: bool, classes: Iterable[Any] | None
) -> np.ndarray:
    sets = _widened(estimator, sets)
    found = set(itertools.chain.from_iterable(sets))
    try:
        found_in_order = sorted(found)
    except TypeError as error:
        raise UserError("labels have several types and cannot be sorted; pass all labels as text") from error
    if reset:
        vocabulary = found_in_order if classes is None else list(classes)
        unknown = sorted(found.difference(vocabulary))
        if unknown:
            raise UserError(
                f"y has the label {unknown[0]!r}, expected labels of classes={vocabulary}; add it to classes"
            )
        if not found:
            raise TooFewSamples("no sample has a label; pass labels for some of them")
        _learn(estimator, vocabulary, True, [str(label) for label in vocabulary])
    else:
        if not hasattr(estimator, "label_names_"):
            raise UserError(
                "y has label names, but the fit had unnamed labels; pass a matrix of 0 and 1 with one column per label"
            )
        by_name = all(isinstance(label, str) for label in found)
        vocabulary = list(estimator.label_names_) if by_name else np.asarray(estimator.classes_).tolist()
        if grow:
            vocabulary += sorted(found.difference(vocabulary))
            _learn(estimator, vocabulary, True, [str(label) for label in vocabulary])
    # MultiLabelBinarizer warns about unknown labels and ignores them.
    return _closed(estimator, MultiLabelBinarizer(classes=vocabulary).fit_transform(sets))


def _from_classes(
    estimator: BaseEstimator, y: np.ndarray, reset: bool, grow: bool, classes: Iterable[Any] | None
) -> np.ndarray:
    try:
        _check_classes(y)
    except UserError as error:
        if hasattr(estimator, "targets") and "Unknown label type: continuous" in str(error):
            raise UserError("Unknown label type: continuous; pass targets='real' for regression") from error
        raise
    if reset:
        _learn(estimator, np.unique(y if classes is None else np.asarray(list(classes))), False, None)
    elif estimator.multilabel_:
        raise UserError(
            "y is a vector of classes, but the fit had a label matrix; pass a matrix of 0 and 1 with the same columns"
        )
    known = np.asarray(estimator.classes_)
    if grow or classes is not None:
        unknown = np.setdiff1d(y, known)
        if unknown.size:
            raise UserError(
                f"y has the class {unknown[0]!r}, expected one of {known.tolist()}; correct it, or fit again with all "
                "classes"
            )
    return np.asarray(y[:, None] == known[None, :])


def _from_matrix(
    estimator: BaseEstimator,
    Y: Any,
    names: list[str] | None,
    reset: bool,
    grow: bool,
    row_numbers: np.ndarray | None = None,
    unknown: np.ndarray | None = None,
) -> np.ndarray:
    given, Y = Y.dtype, _binary(estimator, Y, row_numbers, unknown)
    L = Y.shape[1]
    if reset:
        if not nonzero_count(Y):
            raise TooFewSamples("no sample has a label; pass labels for some of them")
        _learn(estimator, np.arange(L) if names is None else names, True, names)
        if given.kind in "biuf":
            estimator.label_dtype_ = _type_name(given)
        return _closed(estimator, Y)
    known = getattr(estimator, "label_names_", None)
    count = len(estimator.classes_)
    if count > L or (count < L and not grow):
        raise UserError(f"y has {L} labels, expected {count} as in earlier calls; pass all labels, in the same columns")
    if names is not None and known is not None:
        for j, (old, new) in enumerate(zip(known, names, strict=False)):
            if old != new:
                raise UserError(
                    f"column {j} of y is {new!r}, expected {old!r} as in the fit; pass the labels in the order of the "
                    "fit"
                )
    if grow and count < L:
        if known is None:
            _learn(estimator, np.arange(L), True, None)
        else:
            if names is None:
                raise UserError(
                    f"y has {L} labels without names, earlier calls had {count} with names; pass a DataFrame with names"
                )
            _learn(estimator, names, True, names)
    return _closed(estimator, Y)


def hierarchy_of(estimator: Any) -> Any:
    """Return the label hierarchy that the decoder of an estimator uses, or None."""
    return getattr(getattr(estimator, "decoder", None), "hierarchy", None)


def _widened(estimator: Any, sets: Sequence[Collection[Any]]) -> Sequence[Collection[Any]]:
    """Add the ancestors of its labels to each label set, including ancestors that do not occur in any sample."""
    tree = hierarchy_of(estimator)
    if tree is None or not all(isinstance(label, str) for labels in sets for label in labels):
        return sets
    above = ancestors_of(tree, set(itertools.chain.from_iterable(sets)))
    return [{*labels, *itertools.chain.from_iterable(above[label] for label in labels)} for labels in sets]


def _closed(estimator: Any, Y: np.ndarray) -> np.ndarray:
    """Set the ancestors of positive labels to 1 if the estimator has a label hierarchy."""
    pairs = getattr(estimator, "ancestors_", None)
    if pairs is None or not scipy.sparse.issparse(Y):
        return Y if pairs is None else with_ancestors(Y, pairs)
    own = np.arange(Y.shape[1])
    places = np.concatenate([own, pairs[:, 0]]), np.concatenate([own, pairs[:, 1]])
    above = scipy.sparse.csr_array((np.ones(len(places[0]), np.int64), places), (len(own), len(own)))
    return scipy.sparse.csr_array((Y @ above).astype(bool).astype(np.uint8))


def _type_name(dtype: np.dtype) -> str:
    return dtype.name if dtype.itemsize <= 8 else "float64"  # Saved models do not support wider types.


def _binary(
    estimator: BaseEstimator,
    Y: Any,
    row_numbers: np.ndarray | None = None,
    unknown: np.ndarray | None = None,
) -> Any:
    """Convert labels to bytes, with 0 for `unknown` entries; errors name the rows by `row_numbers`."""
    if scipy.sparse.issparse(Y):
        bad = np.flatnonzero((Y.data != 0) & (Y.data != 1))
        if bad.size:
            row = int(np.searchsorted(Y.indptr, bad[0], side="right")) - 1
            raise _not_binary(estimator, Y.data[bad[0]], row, Y.indices[bad[0]])
        return Y.astype(np.uint8)
    whole = unknown is None and Y.dtype.kind in "biu" and Y.dtype.itemsize == 1
    found = Y if whole else np.empty(Y.shape, np.uint8)
    for where in cell_blocks(Y.shape):
        try:
            block = Y[where] if unknown is None else np.where(unknown[where], 0, Y[where])
            block = block if Y.dtype.kind in "biu" else block.astype(np.float64, copy=False)
        except (TypeError, ValueError) as error:
            raise UserError(
                f"labels must be 0 or 1, got {Y.ravel()[0]!r} at row 0, column 0; pass a list of label names per sample"
            ) from error
        if whole and block.view(np.uint8).max(initial=0) <= 1:  # Bytes of 0 and 1 need no comparison arrays.
            continue
        wrong = (block != 0) & (block != 1)
        if wrong.any():
            i, j = np.argwhere(wrong)[0]
            row = i + where.start
            raise _not_binary(estimator, block[i, j], row if row_numbers is None else row_numbers[row], j)
        if not whole:
            found[where] = block
    return found


def _not_binary(estimator: BaseEstimator, value: Any, row: int, column: int) -> UserError:
    cure = "binarize them first" + (", or pass targets='real'" if hasattr(estimator, "targets") else "")
    if np.isnan(value):
        cure = "drop samples with unknown labels, or fit a KGHA, MultiViewRidge, MORP or MLSI, which support them"
    return UserError(f"labels must be 0 or 1, got {value:g} at row {row}, column {column}; {cure}")


def _columns(
    estimator: BaseEstimator, values: np.ndarray | list[Collection[Any]], names: list[str] | None, mask: Any
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return y as a matrix with 0 for unknown entries, and a mask of the known entries or None if all are known.

    A matrix of numbers is not changed, and classes or lists of labels become one column per class.
    """
    if isinstance(values, list):
        return np.asarray(_from_sets(estimator, values, True, False, None), np.float64), None
    if values.ndim == 1 or values.shape[1] == 1:
        y = values.reshape(len(values))
        _check_finite(y)
        _check_one_type(y)
        if type_of_target(y) == "continuous":
            _learn(estimator, np.arange(1) if names is None else names, True, names)
            return y[:, None], None
        values = _class_vector(values) if values.ndim == 2 else values
    if values.ndim == 1:
        return _from_classes(estimator, values, True, False, None).astype(np.float64), None
    _learn(estimator, np.arange(values.shape[1]) if names is None else names, True, names)
    if values.dtype.kind in "biuf":
        estimator.label_dtype_ = _type_name(values.dtype)
    unknown = missing_entries(values) | mask
    try:
        Y = _closed(estimator, np.where(unknown, 0, values).astype(np.float64))
        return Y, ~unknown | (Y != 0) if unknown.any() else None
    except (TypeError, ValueError) as error:
        raise UserError(f"outputs must be numbers, got {values.ravel()[0]!r}; pass classes as a vector") from error


def _check_one_type(y: np.ndarray) -> None:
    if y.dtype.kind != "O":
        return
    missing = [i for i, value in enumerate(y) if value is None or value != value]
    if missing:
        raise UserError(f"input y contains NaN or None at row {missing[0]}; fill it, or drop the sample")
    if len({isinstance(value, str) for value in y}) > 1:
        raise UserError("y mixes text and numbers; pass classes of one type")
    try:
        sorted(set(y))
    except TypeError as error:
        kinds = ", ".join(sorted({type(value).__name__ for value in y}))
        raise UserError(
            f"classes of mixed types ({kinds}) have no order; pass all as text, or all as numbers"
        ) from error


def _check_classes(y: np.ndarray) -> None:
    _check_finite(y)
    _check_one_type(y)
    try:
        check_classification_targets(y)
    except ValueError as error:
        raise UserError(str(error)) from error


def _check_finite(y: np.ndarray) -> None:
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        row = np.flatnonzero(~np.isfinite(y))[0]
        raise UserError(f"input y contains NaN or infinity at row {row}; fill it, or drop the sample")


def _learn(
    estimator: BaseEstimator, classes: Sequence[Any] | np.ndarray, multilabel: bool, names: list[str] | None
) -> None:
    estimator.classes_, estimator.multilabel_ = np.asarray(classes), multilabel
    for name in ("label_names_", "label_dtype_", "ancestors_", "hierarchy_"):
        estimator.__dict__.pop(name, None)
    if names is not None:
        estimator.label_names_ = names
    tree = hierarchy_of(estimator)
    if tree is not None:
        if not multilabel:
            raise UserError("a hierarchy needs label sets, y is a vector of classes; pass a list of labels per sample")
        # A refit of a saved model may need labels that no sample has, so store the whole hierarchy.
        estimator.hierarchy_ = parents_of(tree)
        estimator.ancestors_ = ancestor_pairs(estimator.hierarchy_, [str(label) for label in classes])


@dataclass(frozen=True)
class RealOutputs:
    """Means and standard deviations with which regression targets are standardized before a fit."""

    shift: np.ndarray
    scale: np.ndarray  # standard deviation of each output, or 1 for constant outputs
    flat: bool

    @classmethod
    def of(cls, Y: np.ndarray, flat: bool, weights: np.ndarray | None = None) -> Self:
        """Compute weighted means and standard deviations of targets of shape (n, L), without NaN entries."""
        unknown = np.isnan(Y)
        nowhere = unknown.all(axis=0)
        if nowhere.any():
            raise TooFewSamples(f"output {np.flatnonzero(nowhere)[0]} is NaN in all samples; leave it out")
        if weights is None and unknown.any():
            mean, deviation = np.nanmean(Y, axis=0), np.nanstd(Y, axis=0)
        elif weights is None:  # Without NaN and weights, avoid the copies in the other branches.
            mean, deviation = Y.mean(axis=0), Y.std(axis=0)
        else:
            share = weights[:, None] * ~unknown
            share = share / np.where(share.any(axis=0), share.sum(axis=0), 1.0)
            mean = (share * np.where(unknown, 0.0, Y)).sum(axis=0)
            deviation = np.sqrt((share * np.where(unknown, 0.0, Y - mean) ** 2).sum(axis=0))
        return cls(mean, np.where(deviation > 0, deviation, 1.0), flat)

    @classmethod
    def plain(cls, n_outputs: int, flat: bool) -> Self:
        """Return an object with mean 0 and scale 1, which does not change the outputs."""
        return cls(np.zeros(n_outputs), np.ones(n_outputs), flat)

    def scaled(self, Y: np.ndarray) -> np.ndarray:
        """Standardize outputs of shape (n, L)."""
        found = Y - self.shift
        found /= self.scale
        return found

    def restored(self, Y: np.ndarray) -> np.ndarray:
        """Convert standardized outputs back to their original units, as a vector if y was a vector."""
        found = Y * self.scale + self.shift
        return found[:, 0] if self.flat else found

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the arrays and metadata that a model store saves."""
        return {"shift": self.shift, "scale": self.scale}, {"flat": self.flat}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> Self:
        """Restore the object from the arrays and metadata that `to_arrays` returned."""
        return cls(arrays["shift"], arrays["scale"], bool(meta["flat"]))


def refuse_for_real(estimator: Any) -> None:
    """Raise an error if a parameter is set that applies only to labels."""
    found = flat(estimator) | {"decoder": estimator._decoder}
    for name in ("prior_power", "propensity", "standardize", "decoder", "class_weight"):
        if found.get(name):
            raise UserError(f"{name} = {found[name]!r} applies to labels, but y has regression targets; leave it out")


def read_real(
    estimator: Any, y: Any, n: int, reset: bool = True, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Read and standardize regression targets of shape (n, L), with 0 for unknown entries.

    Also returns a mask of the known entries, or None if all are known.
    """
    refuse_for_real(estimator)
    if getattr(getattr(estimator, "_product", None), "weights", None) == "tagprop":
        raise UserError(
            "weights = 'tagprop' needs labels, but y has regression targets; pass weights='alignment', or numbers"
        )
    Y, flat, names = check_outputs(y, n, unknown=True)
    if reset:
        for name in ("classes_", "label_names_", "label_dtype_"):
            estimator.__dict__.pop(name, None)
        if names is not None:
            estimator.label_names_ = names
        estimator.outputs_, estimator.multilabel_ = RealOutputs.of(Y, flat, weights), True
    units: RealOutputs = estimator.outputs_
    if Y.shape[1] != len(units.scale):
        raise UserError(
            f"y has {Y.shape[1]} targets, expected {len(units.scale)} as in the fit; pass all targets, in the same "
            "order"
        )
    scaled = units.scaled(Y)
    unknown = np.isnan(scaled)
    return (np.where(unknown, 0.0, scaled), ~unknown) if unknown.any() else (scaled, None)
