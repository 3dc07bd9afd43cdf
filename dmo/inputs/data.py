"""What a fit has read: rows, labels or outputs, which of them are known, and how often every sample counts.

Weights are always there, so that no method has one way for samples that count alike and another for those that do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, cast

import numpy as np
import scipy.sparse

from dmo.blocks import Rows, Subset
from dmo.errors import TooFewSamples, UserError
from dmo.inputs.outputs import (
    LabelRows,
    check_known_labels,
    check_labels,
    check_many_labels,
    check_partial_labels,
    check_stored_labels,
    hierarchy_of,
    read_real,
)
from dmo.inputs.views import only_view, sample_count
from dmo.inputs.weights import (
    SampleWeights,
    check_row_weights,
    check_weights,
    with_class_weights,
    with_label_weights,
)
from dmo.labels.label_kernels import label_directions


@dataclass(frozen=True, eq=False)
class Data:
    """Views, labels or outputs, and how often every sample counts in each of them.

    Y (n, L); known (n, L)
    """

    views: Mapping[str, Rows]
    weights: SampleWeights  # those of the labels are 0 where none of the sample is known
    Y: Any = None  # labels of 0 and 1, or outputs as they are learned; CSR of very many; None: nothing was read from y
    known: np.ndarray | None = None  # None: all labels of samples of positive weight are known

    @classmethod
    def of(
        cls,
        views: Mapping[str, Rows],
        Y: Any = None,
        weights: SampleWeights | np.ndarray | None = None,
        known: np.ndarray | None = None,
        passive: bool = False,
    ) -> Self:
        """Join what is known of labels and views; samples without a label count in views where they are `passive`.

        Y, known (n, L); weights (n,)
        """
        n = sample_count(views)
        ones = np.broadcast_to(1.0, n)  # one number in memory
        if weights is None and known is None:
            return cls(views, SampleWeights(dict.fromkeys(views, ones), ones), Y)
        if not isinstance(weights, SampleWeights):
            weights = ones if weights is None else weights
            weights = SampleWeights(dict.fromkeys(views, weights), weights)
        entries = weights.entries
        if entries is not None and not entries.all():
            known = (entries > 0) & (True if known is None else known)
        labels = (weights.labels > 0) if known is None else (weights.labels > 0) & known.any(axis=1)
        own = {view: weight if passive else weight * labels for view, weight in weights.views.items()}
        for view, weight in own.items():
            if not weight.any():
                raise TooFewSamples(f"view {view!r} has no sample with a known label; leave the view out")
        some = None if known is None or known[labels].all() else known
        return cls(views, SampleWeights(own, weights.labels * labels, entries, weights.before), Y, some)

    @property
    def n(self) -> int:
        """Count the samples."""
        return sample_count(self.views)

    @property
    def only(self) -> tuple[str, Rows]:
        """The one view's name, and its rows."""
        return only_view(self.views)

    @cached_property
    def complete(self) -> bool:
        """Whether all labels and views of all samples are known, each once."""
        return self.known is None and self.weights.ones

    @property
    def often(self) -> np.ndarray | None:
        """How often samples count in the one view (n); None: each once."""
        found = next(iter(self.weights.views.values()))
        return None if (found == 1).all() else found

    @property
    def any_weight(self) -> np.ndarray:
        """Whether some view has the sample with a positive weight (n)."""
        return np.any([own > 0 for own in self.weights.views.values()], axis=0)

    @property
    def labeled(self) -> np.ndarray:
        """Numbers of the samples with a known label and a view."""
        return np.flatnonzero(self.any_weight & (self.weights.labels > 0))

    @property
    def n_labeled(self) -> float:
        """How many samples have a known label, by their weights."""
        return float(self.n if self.complete else self.weights.labels[self.any_weight].sum())

    @property
    def counts(self) -> np.ndarray | None:
        """How often every label of a sample counts (n x L), beside the sample's weight; None: all once."""
        if self.weights.entries is None:
            return self.known
        return self.weights.entries if self.known is None else self.weights.entries * self.known

    @cached_property
    def frequency(self) -> np.ndarray:
        """How often labels are carried where they are known (L)."""
        Y = self.Y
        if self.complete:  # without the copy in float64 that a product takes
            return np.asarray(Y.mean(axis=0), np.float64)
        weights, counts = self.weights.labels * self.any_weight, self.counts
        if counts is None:
            return np.asarray(weights @ Y / weights.sum())
        total = weights @ counts
        return np.divide(
            weights @ np.where(counts > 0, counts * Y, 0.0), total, out=np.zeros(Y.shape[1]), where=total > 0
        )

    def decided(self, rows: np.ndarray) -> np.ndarray | None:
        """Look up how often the labels of some samples count in decisions, which are of classes as they are.

        rows (m,) -> (m, L)
        """
        if self.complete:
            return None
        given = self.weights.plain.rows(rows)
        counts = np.broadcast_to(given.labels[:, None], (len(rows), self.Y.shape[1]))
        counts = counts if given.entries is None else counts * given.entries
        counts = counts if self.known is None else counts * self.known[rows]
        return None if (counts == 1).all() else counts

    def rows(self, index: np.ndarray) -> Data:
        """Take some samples.

        index (m,)
        """
        some = {view: Subset(source, index) for view, source in self.views.items()}
        known = None if self.known is None or self.known[index].all() else self.known[index]
        return Data(some, self.weights.rows(index), self.Y[index], known)


def read_complete(estimator: Any, views: Mapping[str, Rows], y: Any) -> Data:
    """Read labels, all of which are known, of samples that count once."""
    return Data.of(views, check_labels(estimator, y, sample_count(views), dtype=np.uint8))


def read_some(estimator: Any, views: Mapping[str, Rows], y: Any, sample_weight: Any) -> Data:
    """Read labels of one view's samples, some of which have none."""
    n = sample_count(views)
    Y, known = check_known_labels(estimator, y, n)
    weights = check_row_weights(sample_weight, n)
    return Data.of(views, Y, weights, None if known.all() else known[:, None], passive=True)


def read_labels(
    estimator: Any,
    views: Mapping[str, Rows],
    y: Any,
    sample_weight: Any,
    dense: Mapping[str, bool],
    passive: bool = False,
) -> Data:
    """Read labels or real outputs, single ones of which may be unknown; very many sparse labels stay sparse.

    `dense`: what is asked for that needs dense ones. Learned as by `check_labels`.
    """
    n = sample_count(views)
    estimator.outputs_ = None
    many = check_many_labels(estimator, y, n)
    given = check_weights(sample_weight, views, by_entry=many is None and not passive)
    asked = {
        "a decoder": estimator._decoder is not None,
        "standardize": bool(estimator._by_scores.standardize),
        "class_weight": estimator.class_weight is not None,
        "a hierarchy": hierarchy_of(estimator) is not None,
    } | dict(dense)
    if isinstance(y, LabelRows) and given is None and estimator.targets != "real" and not any(asked.values()):
        return Data.of(views, check_stored_labels(estimator, y, n))
    if many is not None:
        for what in (what for what, wanted in asked.items() if wanted):
            raise UserError(f"{what} needs dense labels, and these are {many.shape[1]}; pass fewer, or go without it")
        return Data.of(views, many, given, passive=passive)
    often = None if given is None else given.labels
    Y, known = read_real(estimator, y, n, weights=often) or check_partial_labels(estimator, y, n)
    given = with_class_weights(given, estimator.class_weight, estimator, Y)
    if not passive:
        given = with_label_weights(given, estimator.class_weight, estimator, Y, known)
    return Data.of(views, Y, given, known, passive=passive)


def directions(Y: Any, components: int, random_state: int | None) -> tuple[Any, np.ndarray | None]:
    """Take labels as they are, or very many sparse ones in the directions V (L x q) in which they vary most.

    Y (n, L) -> (n, L) or (n, q); V
    """
    if not scipy.sparse.issparse(Y):
        return Y, None
    V = label_directions(Y, components, random_state)
    return np.asarray(cast(Any, Y) @ V), V
