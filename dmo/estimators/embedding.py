"""What the embeddings on neighbour graphs share: their options, labels that may be missing, and the way to new rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import scipy.sparse
from sklearn.utils.multiclass import check_classification_targets

from dmo.blocks import Rows, Subset, row_blocks, rows
from dmo.estimators.linear import LinearExpansion
from dmo.estimators.lowrank_engine import exact_or_best, fit_maps, is_exact
from dmo.estimators.roads import Projected
from dmo.expansions import Expansion, FactorExpansion, KernelExpansion
from dmo.graphs.rows import read
from dmo.kernels import Linear, parse
from dmo.methods.forms import LinearFit, Pencil, solve_projected
from dmo.methods.neighbourhood import Options
from dmo.methods.trace_engines import Fit
from dmo.multikernel import MultiKernel

_WHOLE = ("n_neighbors", "n_repelled", "n_seeds")
_CHOICES = {"adjacency": ("union", "mutual", "sum"), "metric": ("euclidean", "cosine")}


def options(who: str, chosen: dict[str, Any]) -> Options:
    """Checked options of the neighbourhood methods; a value of None stands for the default."""
    given = {name: value for name, value in chosen.items() if value is not None}
    for name, value in given.items():
        if name in _WHOLE:
            whole(who, name, value)
        elif name in _CHOICES and value not in _CHOICES[name]:
            raise ValueError(f"{who}: {name} = {value!r}; known: {', '.join(_CHOICES[name])}")
        elif name in ("regularisation", "penalty", "smoothness", "ridge", "balance"):
            least = isinstance(value, (int, float, np.number)) and not isinstance(value, bool) and 0 <= value < np.inf
            if not least:
                raise ValueError(f"{who}: {name} must be a number that is not negative, got {value!r}")
    if given.get("balance", 0.0) > 1:
        raise ValueError(f"{who}: balance must be a number between 0 and 1, got {given['balance']!r}")
    return Options(**{name: value for name, value in given.items() if name in Options.__dataclass_fields__})


def whole(who: str, name: str, value: Any) -> int:
    """`value` as a whole number of at least 1, or a ValueError that names it."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{who}: {name} must be a whole number of at least 1, got {value!r}")
    return int(value)


def partial_labels(who: str, y: Any, n: int) -> np.ndarray:
    """Labels as n x c of 0 and 1; samples without labels are rows of zeros.

    Argument `y`: n classes, -1 (or NaN) for none; or n x c of 0 and 1, a row of zeros or of NaN for none.
    Raises ValueError for another number of rows, other values, and where no sample has a label.
    """
    if y is None:
        raise ValueError(f"{who}: requires y to be passed, but the target y is None; pass classes or labels (n x c)")
    if hasattr(y, "compute"):
        y = y.compute()
    y = y.toarray() if scipy.sparse.issparse(y) else np.asarray(y)
    if y.shape[:1] != (n,):
        raise ValueError(
            f"{who}: found input variables with inconsistent numbers of samples: y has {len(y)} rows, X has {n}; "
            f"pass one row of labels per sample"
        )
    if y.ndim == 2 and y.shape[1] == 1 and not np.isin(y, (0, 1)).all():
        y = y.ravel()
    Y = _partial_from_classes(y) if y.ndim == 1 else _partial_from_matrix(who, y)
    if not Y.any():
        raise ValueError(f"{who}: no sample has a label; pass labels for some of them")
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
        raise ValueError(
            f"{who}: labels must be 0 or 1, got {Y[i, j]:g} at row {i}, column {j}; binarise them, and leave the whole "
            f"row 0 or NaN where a sample's labels are not known"
        )
    return Y


def embed(
    who: str,
    pencil: Callable[[Any], tuple[Pencil, np.ndarray | None]],
    view: str,
    source: Rows,
    k: int,
    kernel: Any,
    approximation: Any,
    n_seeds: int | None,
    random_state: int | None,
    variance: float | None = None,
) -> Projected:
    """Solve a pencil on the features of a view, on their similarities to seed samples, or on low-rank factor rows.

    Arguments: `pencil`: rows in memory -> (the pencil, the samples that it is about; None: all); `kernel` "linear"
    without `n_seeds`: the features; else similarities to `n_seeds` random samples, None: to all (n x n, float64), which
    is the kernel form Z = K Gamma [MOPE 46, section 3.5]; `approximation` "auto": exact, but the better of Nystrom and MEKA
    where similarities to all samples do not fit in memory; `variance`: see `solve_projected`.
    """
    if variance is not None and not (isinstance(variance, (int, float, np.number)) and 0 < variance <= 1):
        raise ValueError(f"{who}: variance must be a share above 0 and at most 1, got {variance!r}")
    X = read(source)
    problem, index = pencil(X)
    similarity = parse(kernel)
    plain = isinstance(similarity, Linear) and similarity.normalise is None and n_seeds is None
    expansion: Expansion
    if isinstance(approximation, str) and approximation == "auto":
        n = source.shape[0]
        approximation = "exact"
        if not plain and n_seeds is None:
            approximation = exact_or_best(f"similarities of {n} x {n}", _relation_bytes(n, n), _RELATION_SHARE)
    if not is_exact(who, approximation):
        feature_map = fit_maps(who, approximation, kernel, {view: source}, random_state)[view]
        found = solve_projected(problem, _some(feature_map(source).astype(np.float64), index), k, variance)
        expansion = FactorExpansion.of(view, feature_map, found.coefficients, found.offset)
    elif plain:
        found = solve_projected(
            problem, _some(X if scipy.sparse.issparse(X) else X.astype(np.float64), index), k, variance
        )
        expansion = LinearExpansion(view, found.coefficients, found.offset)
    else:
        fitted = MultiKernel.of(view, similarity.fit(source, random_state))
        n = source.shape[0]
        seeds = rows(Subset(source, _seeds(who, n, n_seeds, random_state)))
        found = solve_projected(problem, _some(_relation(who, fitted, view, source, seeds), index), k, variance)
        expansion = KernelExpansion(fitted, {view: seeds}, found.coefficients, found.offset, np.float64)
    return Projected(expansion, _fit(found), None)


def _fit(found: LinearFit) -> Fit:
    return Fit(found.values, found.coefficients)


def _some(X: Any, index: np.ndarray | None) -> Any:
    return X if index is None or len(index) == X.shape[0] else X[index]


def _seeds(who: str, n: int, wanted: int | None, random_state: int | None) -> np.ndarray:
    if wanted is None:
        return np.arange(n)
    if wanted > n:
        raise ValueError(f"{who}: n_seeds = {wanted}, but there are {n} samples; lower n_seeds to that")
    return np.sort(np.random.default_rng(random_state).choice(n, wanted, replace=False))


_RELATION_SHARE = 0.5
"""Share of the free memory that similarities may take."""


def _relation_bytes(n: int, p: int) -> float:
    """Bytes of the similarities of n samples to p, and of their problem."""
    return 8.0 * p * (n + 4 * p)


def _relation(who: str, kernel: MultiKernel, view: str, source: Rows, seeds: Any) -> np.ndarray:
    n, p = source.shape[0], seeds.shape[0]
    needed, free = _relation_bytes(n, p), psutil.virtual_memory().available
    if needed > _RELATION_SHARE * free:
        raise ValueError(
            f"{who}: similarities of {n} samples to {p} take {needed / 2**30:.1f} GiB, free are {free / 2**30:.1f} GiB; "
            f"pass n_seeds (such as 2000), or approximation=Nystrom(...)"
        )
    old = kernel.prepare({view: seeds}, slice(0, p), np.float64)
    out = np.empty((n, p))
    for where in row_blocks(n, 2048):
        out[where] = kernel.tile(kernel.prepare({view: source}, where, np.float64), old)
    return out


def refuse_unused(who: str, given: dict[str, Any], uses: tuple[str, ...]) -> None:
    """Raise ValueError for a parameter that is set and that the method does not use."""
    for name, value in given.items():
        if value is not None and name not in uses:
            raise ValueError(f"{who}: does not use {name}; leave it out (it uses: {', '.join(uses) or 'none'})")


def named(who: str, error: ValueError) -> ValueError:
    """The error with the estimator's name before its text."""
    text = str(error)
    return type(error)(text if text.startswith(who.partition("(")[0]) else f"{who}: {text}")
