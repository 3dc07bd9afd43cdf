"""What estimators of labels do where samples have weights, views lack samples, or labels are unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import scipy.sparse

from dmo.blocks import Rows
from dmo.cluster import current_client
from dmo.engines.lowrank import left_out_scores
from dmo.engines.moments import LABELS, Moments
from dmo.engines.passes import FeatureRows, collect_moments, gap_products, label_products
from dmo.errors import UserError
from dmo.estimators.real_outputs import read_real
from dmo.functions import Expansion, FactorExpansion, shifted
from dmo.labels.kernels import label_directions
from dmo.linalg.tall import LinearMap
from dmo.lowrank import FeatureMap
from dmo.methods.ridge import filled, masked_ridge, ridge, sparse_label_ridge
from dmo.validation import (
    SampleWeights,
    check_many_labels,
    check_partial_labels,
    check_weights,
    sample_count,
    with_class_weights,
    with_label_weights,
)

_KEPT = 2**30
"""Bytes of factor rows that are kept for the next pass of this process."""


@dataclass(frozen=True)
class LabelGaps:
    """Weights of the samples in every view, and which labels are known.

    known (n, L)
    """

    weights: SampleWeights  # those of the labels are 0 where none of the sample is known
    known: np.ndarray | None  # (n, L): none: all labels of samples of positive weight are known

    @classmethod
    def of(
        cls,
        known: np.ndarray | None,
        weights: SampleWeights | None,
        views: Sequence[str],
        n: int,
        passive: bool = False,
    ) -> Self:
        """Join what is known of labels and views.

        known (n, L)
        """
        given = SampleWeights({view: np.ones(n) for view in views}, np.ones(n)) if weights is None else weights
        entries = given.entries
        if entries is not None and not entries.all():
            known = (entries > 0) & (True if known is None else known)
        labels = (given.labels > 0) if known is None else (given.labels > 0) & known.any(axis=1)
        own = {view: weight if passive else weight * labels for view, weight in given.views.items()}
        for view, weight in own.items():
            if not weight.any():
                raise UserError(f"view {view!r} has no sample with a known label; leave the view out")
        some = None if known is None or known[labels].all() else known
        return cls(SampleWeights(own, given.labels * labels, entries, given.before), some)

    @cached_property
    def complete(self) -> bool:
        """Whether all labels and views of all samples are known, each once."""
        return self.known is None and self.weights.ones

    @property
    def labeled(self) -> np.ndarray:
        """Numbers of the samples with a known label and a view."""
        return np.flatnonzero(self.any_weight & (self.weights.labels > 0))

    @property
    def counts(self) -> np.ndarray | None:
        """How often every label of a sample counts (n x L), beside the sample's weight; None: all once."""
        if self.weights.entries is None:
            return self.known
        return self.weights.entries if self.known is None else self.weights.entries * self.known

    def decided(self, rows: np.ndarray, n_labels: int) -> np.ndarray | None:
        """Look up how often the labels of some samples count in decisions, which are of classes as they are.

        rows (m,) -> (m, L)
        """
        if self.complete:
            return None
        given = self.weights.plain.rows(rows)
        counts = np.broadcast_to(given.labels[:, None], (len(rows), n_labels))
        counts = counts if given.entries is None else counts * given.entries
        counts = counts if self.known is None else counts * self.known[rows]
        return None if (counts == 1).all() else counts

    @property
    def any_weight(self) -> np.ndarray:
        """Whether some view has the sample with a positive weight (n)."""
        return np.any([own > 0 for own in self.weights.views.values()], axis=0)

    @property
    def n_labeled(self) -> float:
        """How many samples have a known label, by their weights."""
        return float(self.weights.labels[self.any_weight].sum())

    def rows(self, index: np.ndarray) -> LabelGaps:
        """Take those of some samples.

        index (m,)
        """
        return LabelGaps(self.weights.rows(index), None if self.known is None else self.known[index])

    def frequency(self, Y: np.ndarray | scipy.sparse.csr_array) -> np.ndarray:
        """Work out how often labels are carried where they are known.

        Y (n, L) -> (L,)
        """
        if self.complete:  # without the copy in float64 that a product takes
            return np.asarray(Y.mean(axis=0), np.float64)
        weights, counts = self.weights.labels * self.any_weight, self.counts
        if counts is None:
            return np.asarray(weights @ Y / weights.sum())
        total = weights @ counts
        return np.divide(
            weights @ np.where(counts > 0, counts * Y, 0.0), total, out=np.zeros(Y.shape[1]), where=total > 0
        )

    def completed(
        self, smoother: LinearMap, targets: np.ndarray, weights: np.ndarray, center: bool
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Fill targets with the regression's own predictions where they are unknown or lighter, and take their means
        off.
        targets (n, L); weights (n,) -> targets (n, L); means (L,)
        """
        if self.complete:
            return targets, None
        share = (weights / weights.sum())[None, :]

        def fit(B: np.ndarray) -> np.ndarray:
            mean = share @ B if center else 0.0
            return np.asarray(smoother(B - mean) + mean)

        full = targets if self.counts is None else filled(fit, targets, self.counts, weights)
        if not center:
            return full, None
        mean = share @ full
        return full - mean, mean[0]


def read_labels(
    estimator: Any,
    views: Mapping[str, Rows],
    y: Any,
    sample_weight: Any,
    dense: Mapping[str, bool],
    passive: bool = False,
) -> tuple[np.ndarray | scipy.sparse.csr_array, LabelGaps]:
    """Read labels or real outputs (n x L), and how often they count; very many sparse labels stay sparse.

    `dense`: what is asked for that needs dense ones. Learned as by `check_labels`.
    """
    n, names = sample_count(views), list(views)
    estimator.outputs_ = None
    many = check_many_labels(estimator, y, n)
    given = check_weights(sample_weight, views, by_entry=many is None and not passive)
    if many is not None:
        asked = {
            "a decoder": estimator._decoder is not None,
            "standardize": bool(estimator._by_scores.standardize),
            "class_weight": estimator.class_weight is not None,
        }
        for what in (what for what, wanted in (asked | dict(dense)).items() if wanted):
            raise UserError(f"{what} needs dense labels, and these are {many.shape[1]}; pass fewer, or go without it")
        return many, LabelGaps.of(None, given, names, n, passive)
    often = None if given is None else given.labels
    Y, known = read_real(estimator, y, n, weights=often) or check_partial_labels(estimator, y, n)
    given = with_class_weights(given, estimator.class_weight, estimator, Y)
    if not passive:
        given = with_label_weights(given, estimator.class_weight, estimator, Y, known)
    return Y, LabelGaps.of(known, given, names, n, passive)


def directions(
    Y: np.ndarray | scipy.sparse.csr_array, components: int, random_state: int | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Take labels as they are, or very many sparse ones in the directions V (L x q) in which they vary most.

    Y (n, L) -> (n, L) or (n, q); V
    """
    if isinstance(Y, np.ndarray):
        return Y, None
    V = label_directions(Y, components, random_state)
    return np.asarray(Y @ V), V


@dataclass(frozen=True)
class PartialRidge:
    """Ridge regression on low-rank kernels, from rows with weights whose single labels may have others, or be unknown.

    coefficients (rank, L); offset, mean (L,)
    """

    total: Moments  # weighted, of factor rows and labels
    maps: Mapping[str, FeatureMap]  # fitted
    shares: Mapping[str, float]  # weights of the views' kernels
    ridge: float | np.ndarray  # c
    center: bool  # with an intercept
    coefficients: dict[str, np.ndarray]  # (rank, L): on the factor rows
    offset: np.ndarray  # (L,): the function's, intercept included
    mean: np.ndarray  # (L,): of these rows' labels, less the frequency that the scores go without

    @classmethod
    def of(
        cls,
        total: Moments,
        maps: Mapping[str, FeatureMap],
        shares: Mapping[str, float],
        c: float | np.ndarray,
        center: bool,
        frequency: np.ndarray,
    ) -> Self:
        """From moments of rows that know all labels, of these views among others; `frequency` (L) of all samples."""
        found, offset = ridge(total, shares, c, center)
        mean = total.mean()[total.slices()[LABELS]] - frequency if center else np.zeros_like(frequency)
        return cls(total, maps, shares, c, center, found, offset + mean, mean)

    @classmethod
    def fit(
        cls,
        maps: Mapping[str, FeatureMap],
        views: Mapping[str, Rows],
        Y: np.ndarray | scipy.sparse.csr_array,
        counts: np.ndarray | None,
        weights: np.ndarray,
        shares: Mapping[str, float],
        c: float,
        center: bool,
        frequency: np.ndarray,
    ) -> Self:
        """From n rows by view, labels (n x L), and how often each of them counts, bool or float (None: all once)."""
        raw, client = FeatureRows(views, maps, 0 if counts is None else _KEPT), current_client()
        often = None if (weights == 1).all() else weights
        mixings = {view: m.mixing for view, m in maps.items() if m.mixing is not None}
        given = maps, shares, c, center
        if not isinstance(Y, np.ndarray):
            total, products = label_products(raw, Y, often)
            if mixings:
                parts = [(products[:, columns], mixings.get(view)) for view, columns in total.slices().items()]
                products = np.hstack([part if T is None else part @ T for part, T in parts])
            total, carried = total.mixed(mixings), Y.T @ weights
            found, offset = sparse_label_ridge(total, products, carried, shares, c, center)
            mean = carried / total.n - frequency if center else np.zeros_like(frequency)
            return cls(total, *given, found, offset + mean, mean)
        targets = Y if counts is None else np.where(counts > 0, counts * Y, 0.0)
        total = collect_moments(raw, targets, None, client, often)[0].mixed(mixings)
        if counts is None or (counts == 1).all():
            return cls.of(total, *given, frequency)
        edges = np.cumsum([total.widths[view] for view in maps])[:-1]
        raw_edges = np.cumsum([m.rank if m.mixing is None else len(m.mixing) for m in maps.values()])[:-1]

        def mixed(parts: Sequence[np.ndarray], back: bool) -> np.ndarray:
            own = [mixings.get(view) for view in maps]
            return np.vstack([B if T is None else (T.T if back else T) @ B for T, B in zip(own, parts, strict=True)])

        def gaps(B: np.ndarray, which: np.ndarray) -> np.ndarray:
            coefficients = np.vstack([mixed(np.split(B[:-1], edges), False), B[-1:]])
            own = counts[:, which]
            image = gap_products(raw, coefficients, ~own if own.dtype == bool else 1.0 - own, weights, client)
            return np.vstack([mixed(np.split(image[:-1], raw_edges), True), image[-1:]])

        found, offset = masked_ridge(total, shares, c, gaps, np.asarray((counts > 0).any(axis=0)), center)
        mean = np.zeros_like(frequency)
        return cls(total, *given, found, offset - frequency if center else offset, mean)

    def expansions(self, share: float) -> dict[str, Expansion]:
        """The function times `share`, as a sum of expansions by view, into which the coefficients are used up."""
        parts: dict[str, Expansion] = {}
        for view, B in self.coefficients.items():
            B *= share
            parts[view] = FactorExpansion.of(view, self.maps[view], B, np.zeros_like(self.offset))
        return shifted(parts, share * self.offset)

    def left_out(self, views: Mapping[str, Rows], Y: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Scores of rows by the regression without `weights` (n) of each, where all labels are known."""
        given = self.total, self.maps, views, Y, self.shares, self.ridge, self.coefficients
        return left_out_scores(*given, self.offset - self.mean, self.center, weights) + self.mean
