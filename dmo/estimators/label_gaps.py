"""What estimators of labels do where samples have weights, views lack samples, or labels are unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import scipy.sparse

from dmo.blocks import Rows
from dmo.cluster import current_client
from dmo.engines.lowrank import left_out_scores
from dmo.engines.moments import LABELS, Moments
from dmo.engines.passes import FeatureRows, collect_moments, gap_products, label_products
from dmo.errors import UserError
from dmo.functions import Expansion, FactorExpansion, shifted
from dmo.linalg.tall import LinearMap
from dmo.lowrank import FeatureMap
from dmo.methods.ridge import filled, masked_ridge, ridge, sparse_label_ridge
from dmo.validation import SampleWeights

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
    ) -> Self | None:
        """Join what is known of labels and views.

        known (n, L)
        """
        if known is None and weights is None:
            return None
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

    def frequency(self, Y: np.ndarray) -> np.ndarray:
        """Work out how often labels are carried where they are known.

        Y (n, L) -> (L,)
        """
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
        share = (weights / weights.sum())[None, :]

        def fit(B: np.ndarray) -> np.ndarray:
            mean = share @ B if center else 0.0
            return np.asarray(smoother(B - mean) + mean)

        full = targets if self.counts is None else filled(fit, targets, self.counts, weights)
        if not center:
            return full, None
        mean = share @ full
        return full - mean, mean[0]


@dataclass(frozen=True)
class PartialRidge:
    """Ridge regression on low-rank kernels, from rows with weights whose single labels may have others, or be unknown.

    weights (n,); coefficients (rank, L); offset (L,)
    """

    total: Moments  # weighted, of factor rows and targets
    maps: Mapping[str, FeatureMap]  # fitted
    weights: np.ndarray  # (n,): of the rows
    shares: Mapping[str, float]  # weights of the views' kernels
    ridge: float  # c
    center: bool  # with an intercept
    coefficients: dict[str, np.ndarray]  # (rank, L): on the factor rows
    offset: np.ndarray  # (L,): the function's, intercept included

    @classmethod
    def fit(
        cls,
        maps: Mapping[str, FeatureMap],
        views: Mapping[str, Rows],
        targets: np.ndarray,
        counts: np.ndarray | None,
        weights: np.ndarray,
        shares: Mapping[str, float],
        c: float,
        center: bool,
    ) -> Self:
        """From n rows by view, targets (n x L), and how often each of them counts, bool or float (None: all once)."""
        raw, client = FeatureRows(views, maps, _KEPT), current_client()
        targets = targets if counts is None else np.where(counts > 0, counts * targets, 0.0)
        mixings = {view: m.mixing for view, m in maps.items() if m.mixing is not None}
        total = collect_moments(raw, targets, None, client, weights)[0].mixed(mixings)
        if counts is None or (counts == 1).all():
            found, offset = ridge(total, shares, c, center)
            offset = offset + total.mean()[total.slices()[LABELS]] if center else offset
            return cls(total, maps, weights, shares, c, center, found, offset)
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
        return cls(total, maps, weights, shares, c, center, found, offset)

    def expansions(self, share: float) -> dict[str, Expansion]:
        """The function times `share`, as a sum of expansions by view."""
        parts: dict[str, Expansion] = {
            view: FactorExpansion.of(view, self.maps[view], share * B, np.zeros_like(self.offset))
            for view, B in self.coefficients.items()
        }
        return shifted(parts, share * self.offset)

    def left_out(self, views: Mapping[str, Rows], targets: np.ndarray, part: np.ndarray | None = None) -> np.ndarray:
        """Scores of every row by the regression without `part` (n) of its weight (None: all), where all labels are known."""
        mean = self.total.mean()[self.total.slices()[LABELS]] if self.center else np.zeros_like(self.offset)
        scores = left_out_scores(
            self.total,
            self.maps,
            views,
            targets,
            self.shares,
            self.ridge,
            self.coefficients,
            self.offset - mean,
            self.center,
            self.weights if part is None else self.weights * part,
        )
        return scores + mean


def many_label_expansions(
    maps: Mapping[str, FeatureMap],
    views: Mapping[str, Rows],
    Y: scipy.sparse.csr_array,
    weights: np.ndarray | None,
    shares: Mapping[str, float],
    c: float,
    center: bool,
    share: float,
) -> dict[str, Expansion]:
    """Ridge regression of very many sparse labels (n x L) on low-rank kernels, times `share`, as expansions by view."""
    total, products = label_products(FeatureRows(views, maps), Y, weights)
    mixings = [m.mixing for m in maps.values()]
    if any(T is not None for T in mixings):
        edges = np.cumsum(list(total.widths.values()))[:-1]
        parts = np.split(products, edges, axis=1)
        products = np.hstack([part if T is None else part @ T for part, T in zip(parts, mixings, strict=True)])
        total = total.mixed({view: T for view, T in zip(maps, mixings, strict=True) if T is not None})
    counts = Y.T @ (np.ones(Y.shape[0]) if weights is None else weights)
    found, offset = sparse_label_ridge(total, products, counts, shares, c, center)
    parts_by_view: dict[str, Expansion] = {}
    for view, B in found.items():
        B *= share
        parts_by_view[view] = FactorExpansion.of(view, maps[view], B, np.zeros_like(offset))
    return shifted(parts_by_view, share * offset)
