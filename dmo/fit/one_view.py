"""Columns of the single view of a projection, and its similarities to landmark samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dmo.blocks import Rows, dense_means, double, row_blocks, rows, sampled
from dmo.errors import TooFewSamples
from dmo.fit.engine import exact_or_best, fit_maps, is_exact
from dmo.fit.functions import Expansion, FactorExpansion, KernelExpansion, LinearExpansion
from dmo.fit.krylov import RowMap, ShiftedRows, Subspace, SubspaceCoordinates
from dmo.fit.moments import ROWS, WEIGHTED, Moments
from dmo.fit.passes import FeatureRows, collect_moments
from dmo.kernels import Euclidean, Kernel, Linear, parse_relation
from dmo.kernels.multikernel import MultiKernel
from dmo.memory import require

_SHARE = 0.5  # Maximum fraction of the free memory for similarities or moments, because later steps need memory too.
_BLOCK = 2048


@dataclass(frozen=True)
class RelationFeatures:
    """Features of the samples (n x p, dense or CSR), and a `function` that builds a prediction function.

    The arguments of `function` are coefficients of the features (p x k) and an offset (k).
    """

    values: Any
    function: Callable[[np.ndarray, np.ndarray], Expansion]


def relation_features(
    view: str,
    source: Any,
    kernel: Any,
    approximation: Any,
    n_landmarks: int | None,
    random_state: int | None,
    weights: np.ndarray | None = None,
) -> RelationFeatures:
    """Return features of an array of rows: the rows themselves, low-rank factor rows, or similarities to samples.

    Similarities are computed only to samples with positive weight.
    """
    # Mu, Goulermas, Tsujii, Ananiadou 2012, equation 46 and section 3.5.
    similarity = parse_relation(kernel)
    plain = isinstance(similarity, Linear) and similarity.normalize is None and n_landmarks is None
    if isinstance(approximation, str) and approximation == "auto":
        free = plain or n_landmarks is not None or isinstance(similarity, Euclidean)
        n = source.shape[0]
        approximation = "exact" if free else exact_or_best(f"similarities of {n} x {n}", relation_bytes(n, n), _SHARE)
    if not is_exact(approximation):
        some, counts = source, None
        if weights is not None:
            some, counts = source[np.flatnonzero(weights)], {view: weights[weights > 0]}
        feature_map = fit_maps(approximation, kernel, {view: some}, random_state, False, counts)[view]
        return RelationFeatures(feature_map(source).astype(np.float64), partial(FactorExpansion.of, view, feature_map))
    if plain:
        values = double(source)
        return RelationFeatures(values, partial(LinearExpansion, view))
    return _similarities(view, source, similarity, n_landmarks, random_state, weights)


def _similarities(
    view: str,
    source: Rows,
    similarity: Kernel,
    n_landmarks: int | None,
    random_state: int | None,
    weights: np.ndarray | None,
) -> RelationFeatures:
    """Compute similarities to random landmarks, or to all samples with positive weight."""
    fitted = MultiKernel.of(view, similarity.fit(source, random_state, weights))
    chosen = np.arange(source.shape[0]) if weights is None else np.flatnonzero(weights)
    roots = np.ones(1)
    if n_landmarks is not None:
        chosen = chosen[_drawn(len(chosen), n_landmarks, random_state)]
    elif weights is not None:
        # Repeating a feature w times has the same effect as multiplying the feature by sqrt(w).
        roots = np.sqrt(weights[chosen])
    landmarks = similarity.part(source, chosen)
    landmarks = landmarks if similarity.pairwise else rows(landmarks)

    def function(coefficients: np.ndarray, offset: np.ndarray) -> Expansion:
        return KernelExpansion(fitted, {view: landmarks}, roots[:, None] * coefficients, offset, np.float64)

    return RelationFeatures(_relations(fitted, view, source, landmarks) * roots, function)


def _drawn(n: int, wanted: int, random_state: int | None) -> np.ndarray:
    """Draw the indices of `wanted` landmarks among n samples."""
    if wanted > n:
        raise TooFewSamples(f"n_landmarks = {wanted}, but there are {n} samples; use n_landmarks <= {n}")
    return np.sort(np.random.default_rng(random_state).choice(n, wanted, replace=False))


def _relations(kernel: MultiKernel, view: str, source: Rows, landmarks: Any) -> np.ndarray:
    """Compute float64 similarities of n rows to p landmarks. Raise a UserError if memory is insufficient."""
    n, p = source.shape[0], landmarks.shape[0]
    what, fix = f"similarities of {n} samples to {p}", "pass n_landmarks (such as 2000), or approximation=Nystrom(...)"
    require(relation_bytes(n, p), _SHARE, what, fix)
    # Use float64, because later steps must distinguish small eigenvalues from rounding errors.
    old = kernel.prepare({view: landmarks}, slice(0, p), np.float64)
    out = np.empty((n, p))
    for where in row_blocks(n, _BLOCK):
        out[where] = kernel.tile(kernel.prepare({view: source}, where, np.float64), old)
    return out


def relation_bytes(n: int, p: int) -> int:
    """Return the memory in bytes that n samples with p features or similarities need."""
    return 8 * p * (n + 4 * p)


_SOME = 256  # Number of leading rows whose mean approximates the mean of all rows.


@dataclass(frozen=True)
class ViewColumns:
    """Columns of a view that a projection computes in a pass over the data."""

    row_map: RowMap
    function: Callable[
        [np.ndarray, np.ndarray], Expansion
    ]  # Function that builds a prediction function from coefficients (r x k) and an offset (k).
    trace: float | None = None  # Trace of the linear kernel if the columns span only a subspace, otherwise None.


def feature_columns(view: str, X: Rows, center: bool) -> ViewColumns:
    """Use the features as columns, after subtracting a vector that is close to their mean."""
    what, fix = f"moments of {X.shape[1]} features", "use the dual problem, or approximation=Nystrom(...)"
    require(8 * 4.0 * X.shape[1] ** 2, _SHARE, what, fix)
    shift = _amid(X) if center else None

    def function(coefficients: np.ndarray, offset: np.ndarray) -> Expansion:
        return LinearExpansion(view, coefficients, offset if shift is None else offset - shift @ coefficients)

    return ViewColumns(ShiftedRows(shift), function)


def subspace_columns(view: str, subspace: Subspace) -> ViewColumns:
    """Use the coordinates of the rows in a subspace of linear functions as columns."""

    def function(coefficients: np.ndarray, offset: np.ndarray) -> Expansion:
        W = subspace.basis @ coefficients
        return LinearExpansion(view, W, offset - subspace.mean @ W)

    return ViewColumns(SubspaceCoordinates(subspace), function, subspace.trace)


def factor_columns(
    approximation: Any, view: str, X: Rows, kernel: Any, center: bool, seed: int | None, weights: np.ndarray | None
) -> ViewColumns:
    """Use the factor rows of a low-rank kernel as columns."""
    counts = None if weights is None else {view: weights}
    feature_map = fit_maps(approximation, kernel, {view: X}, seed, center, counts)[view]
    return ViewColumns(feature_map, partial(FactorExpansion.of, view, feature_map))


def collect_view(
    columns: ViewColumns,
    X: Rows,
    labels: np.ndarray | None,
    diagonal: np.ndarray | None = None,
    weights: np.ndarray | None = None,
) -> Moments:
    """Collect the moments of the columns of a view and of the label columns in one pass over the rows.

    With `diagonal` (n), also collect the moments of the columns after row i is multiplied by `diagonal[i]`.
    """
    twice = {} if diagonal is None else {WEIGHTED: (ROWS, diagonal)}
    passed = FeatureRows({ROWS: X}, {ROWS: columns.row_map}, weights=twice)
    moments = collect_moments(passed, labels, weights=weights)[0]
    mixing = getattr(columns.row_map, "mixing", None)
    if mixing is None:
        return moments
    return moments.mixed({name: mixing for name in (ROWS, WEIGHTED) if name in moments.widths})


def _amid(X: Rows) -> np.ndarray | None:
    """Return the mean of the first rows (d), which is close to the mean of all rows, or None for sparse rows."""
    some = sampled(X, np.arange(min(X.shape[0], _SOME)))
    return dense_means(some)
