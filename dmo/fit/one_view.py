"""The one view of a projection: its columns in moments, its relations to seed samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse

from dmo.blocks import Rows, row_blocks, rows, sampled
from dmo.cluster import current_client
from dmo.errors import TooFewSamples, UserError, amount
from dmo.fit.engine import exact_or_best, fit_maps, is_exact
from dmo.fit.functions import Expansion, FactorExpansion, KernelExpansion, LinearExpansion
from dmo.fit.krylov import RowMap, ShiftedRows, Subspace, SubspaceCoordinates
from dmo.fit.moments import ROWS, WEIGHTED, Moments
from dmo.fit.passes import FeatureRows, collect_moments
from dmo.kernels import Euclidean, Kernel, Linear, parse_relation
from dmo.kernels.multikernel import MultiKernel
from dmo.memory import free_memory

_SHARE = 0.5  # of the free memory that similarities may take: beside them stands a problem of p x p, and the rows
_BLOCK = 2048


@dataclass(frozen=True)
class RelationFeatures:
    """`values`: n x p, dense or CSR; `function`: coefficients (p x k) on them and their offset (k) as a function of new
    rows."""

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
    """Compute the features of rows in memory, or their similarities to the samples of positive weight.

    source (n, d); weights (n,)
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
        values = source if scipy.sparse.issparse(source) else source.astype(np.float64)
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
    """Compute similarities to some of the samples, or to all of them.

    source (n, d); weights (n,)
    """
    fitted = MultiKernel.of(view, similarity.fit(source, random_state, weights))
    chosen = np.arange(source.shape[0]) if weights is None else np.flatnonzero(weights)
    roots = np.ones(1)
    if n_landmarks is not None:
        chosen = chosen[_drawn(len(chosen), n_landmarks, random_state)]
    elif weights is not None:  # a column w times is one column times the root of w
        roots = np.sqrt(weights[chosen])
    landmarks = similarity.part(source, chosen)
    landmarks = landmarks if similarity.pairwise else rows(landmarks)

    def function(coefficients: np.ndarray, offset: np.ndarray) -> Expansion:
        return KernelExpansion(fitted, {view: landmarks}, roots[:, None] * coefficients, offset, np.float64)

    return RelationFeatures(_relations(fitted, view, source, landmarks) * roots, function)


def _drawn(n: int, wanted: int, random_state: int | None) -> np.ndarray:
    """Draw landmarks among n samples."""
    if wanted > n:
        raise TooFewSamples(f"n_landmarks = {wanted}, but there are {n} samples; lower n_landmarks to that")
    return np.sort(np.random.default_rng(random_state).choice(n, wanted, replace=False))


def _relations(kernel: MultiKernel, view: str, source: Rows, landmarks: Any) -> np.ndarray:
    """Similarities (n x p, float64) of all rows to the landmarks; UserError where they do not fit in memory."""
    n, p = source.shape[0], landmarks.shape[0]
    needed, free = relation_bytes(n, p), free_memory()
    if needed > _SHARE * free:
        raise UserError(
            f"similarities of {n} samples to {p} take {amount(needed)}, free are {amount(free)}; "
            f"pass n_landmarks (such as 2000), or approximation=Nystrom(...)"
        )
    # float64: small eigenvalues of what is made of them tell rank from rounding, as they do for features
    old = kernel.prepare({view: landmarks}, slice(0, p), np.float64)
    out = np.empty((n, p))
    for where in row_blocks(n, _BLOCK):
        out[where] = kernel.tile(kernel.prepare({view: source}, where, np.float64), old)
    return out


def relation_bytes(n: int, p: int) -> int:
    """Count the bytes of a problem of features, or of similarities to some samples."""
    return 8 * p * (n + 4 * p)


_SOME = 256  # rows whose mean stands near the others


@dataclass(frozen=True)
class ViewColumns:
    """What a projection needs of a view that a pass over the rows turns into columns."""

    row_map: RowMap  # what turns them into columns
    function: Callable[[np.ndarray, np.ndarray], Expansion]  # of coefficients (r, k) and their offset (k,): of new rows
    trace: float | None = None  # of the linear kernel of all directions, where the columns lack some


def feature_columns(view: str, X: Rows, center: bool) -> ViewColumns:
    """Take the features themselves, less a shift near their mean.

    X (n, d)
    """
    needed, free = 8 * 4.0 * X.shape[1] ** 2, free_memory()
    if needed > free / 2:
        raise UserError(
            f"{X.shape[1]} features need {amount(needed)} of moments, free are {amount(free)}; "
            f"take the dual problem, or approximation=Nystrom(...)"
        )
    shift = _amid(X) if center else None

    def function(coefficients: np.ndarray, offset: np.ndarray) -> Expansion:
        return LinearExpansion(view, coefficients, offset if shift is None else offset - shift @ coefficients)

    return ViewColumns(ShiftedRows(shift), function)


def subspace_columns(view: str, subspace: Subspace) -> ViewColumns:
    """Take coordinates of the rows in a subspace of linear functions, which passes over the rows have found."""

    def function(coefficients: np.ndarray, offset: np.ndarray) -> Expansion:
        W = subspace.basis @ coefficients
        return LinearExpansion(view, W, offset - subspace.mean @ W)

    return ViewColumns(SubspaceCoordinates(subspace), function, subspace.trace)


def factor_columns(
    approximation: Any, view: str, X: Rows, kernel: Any, center: bool, seed: int | None, weights: np.ndarray | None
) -> ViewColumns:
    """Take factor rows of a low-rank kernel.

    X (n, d); weights (n,)
    """
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
    """Collect moments of a view's columns and label columns in one pass over the rows.

    X (n, d); labels (n, q); diagonal, weights (n,)
    """
    twice = {} if diagonal is None else {WEIGHTED: (ROWS, diagonal)}
    passed = FeatureRows({ROWS: X}, {ROWS: columns.row_map}, weights=twice)
    moments = collect_moments(passed, labels, client=current_client(), weights=weights)[0]
    mixing = getattr(columns.row_map, "mixing", None)
    if mixing is None:
        return moments
    return moments.mixed({name: mixing for name in (ROWS, WEIGHTED) if name in moments.widths})


def _amid(X: Rows) -> np.ndarray | None:
    """The mean (d) of the first rows, which keeps the digits of features far from the origin; None for sparse rows."""
    some = sampled(X, np.arange(min(X.shape[0], _SOME)))
    return None if scipy.sparse.issparse(some) else some.mean(axis=0, dtype=np.float64)
