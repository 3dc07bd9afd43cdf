"""What a problem is solved on in memory: the features of a view, their similarities to seed samples, or factor rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import psutil
import scipy.sparse

from dmo.blocks import Rows, row_blocks
from dmo.errors import UserError, amount
from dmo.fit.engine import exact_or_best, fit_maps, is_exact
from dmo.fit.functions import Expansion, FactorExpansion, KernelExpansion, LinearExpansion
from dmo.kernels import Euclidean, Kernel, Linear, parse_relation
from dmo.kernels.multikernel import MultiKernel

_SHARE = 0.5  # of the free memory that similarities may take: beside them stands a problem of p x p, and the rows
_BLOCK = 2048


@dataclass(frozen=True)
class RelationFeatures:
    """`values`: n x p, dense or CSR; `function`: coefficients (p x k) on them and their offset (k) as a function of new
    rows."""

    values: Any
    function: Callable[[np.ndarray, np.ndarray], Expansion]


def relation_features(
    view: str, source: Any, kernel: Any, approximation: Any, n_landmarks: int | None, random_state: int | None
) -> RelationFeatures:
    """Take the features of rows in memory, or their similarities to samples.

    source (n, d)
    """
    # Mu, Goulermas, Tsujii, Ananiadou 2012, equation 46 and section 3.5.
    similarity = parse_relation(kernel)
    plain = isinstance(similarity, Linear) and similarity.normalize is None and n_landmarks is None
    if isinstance(approximation, str) and approximation == "auto":
        free = plain or n_landmarks is not None or isinstance(similarity, Euclidean)
        approximation = "exact" if free else _relation_engine(source.shape[0])
    if not is_exact(approximation):
        feature_map = fit_maps(approximation, kernel, {view: source}, random_state, False)[view]
        return RelationFeatures(feature_map(source).astype(np.float64), partial(FactorExpansion.of, view, feature_map))
    if plain:
        values = source if scipy.sparse.issparse(source) else source.astype(np.float64)
        return RelationFeatures(values, partial(LinearExpansion, view))
    return _similarities(view, source, similarity, n_landmarks, random_state)


def _similarities(
    view: str, source: Rows, similarity: Kernel, n_landmarks: int | None, random_state: int | None
) -> RelationFeatures:
    """To some of the samples, or to all."""
    fitted = MultiKernel.of(view, similarity.fit(source, random_state))
    landmarks = similarity.part(source, _landmarks(source.shape[0], n_landmarks, random_state))

    def function(coefficients: np.ndarray, offset: np.ndarray) -> Expansion:
        return KernelExpansion(fitted, {view: landmarks}, coefficients, offset, np.float64)

    return RelationFeatures(_relations(fitted, view, source, landmarks), function)


def _relation_engine(n: int) -> Any:
    """The exact engine where similarities of n samples to all of them fit in memory, else a low rank."""
    return exact_or_best(f"similarities of {n} x {n}", relation_bytes(n, n), _SHARE)


def _landmarks(n: int, wanted: int | None, random_state: int | None) -> np.ndarray:
    if wanted is None:
        return np.arange(n)
    if wanted > n:
        raise UserError(f"n_landmarks = {wanted}, but there are {n} samples; lower n_landmarks to that")
    return np.sort(np.random.default_rng(random_state).choice(n, wanted, replace=False))


def _relations(kernel: MultiKernel, view: str, source: Rows, landmarks: Any) -> np.ndarray:
    """Similarities (n x p, float64) of all rows to the landmarks; UserError where they do not fit in memory."""
    n, p = source.shape[0], landmarks.shape[0]
    needed, free = relation_bytes(n, p), psutil.virtual_memory().available
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
