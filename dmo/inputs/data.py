"""What a fit has read: rows, labels or outputs, which of them are known, and how often every sample counts.

Weights are always there, so that no method has one way for samples that count alike and another for those that do not.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, cast

import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator

from dmo.blocks import Rows, Subset, packed, presence, rows
from dmo.errors import TooFewSamples, UserError
from dmo.inputs.containers import ClassWeight, RowWeights
from dmo.inputs.label_rows import (
    ClassCounts,
    EntryRows,
    KnownRows,
    LabelRows,
    ProductRows,
    densified,
    entry_blocks,
    picked,
)
from dmo.inputs.outputs import (
    are_many,
    check_known_labels,
    check_labels,
    check_partial_labels,
    check_stored_labels,
    hierarchy_of,
    loaded_if_many,
    read_real,
)
from dmo.inputs.views import only_view, sample_count
from dmo.labels.label_kernels import label_directions

log = logging.getLogger("dmo")
LABEL_WEIGHTS = "labels"
"""Key of the labels' weights in a mapping of weights by view."""


@dataclass(frozen=True)
class SampleWeights:
    """How often every sample counts in every view and in the labels.

    views, labels (n,); entries (n, L)
    """

    views: dict[str, np.ndarray]  # (n,): at least 0; 0 where the view lacks the sample
    labels: np.ndarray  # (n,): at least 0
    entries: np.ndarray | EntryRows | None = None
    before: SampleWeights | None = None

    @property
    def ones(self) -> bool:
        """Whether every sample counts once, in every view and for every label."""
        return self.entries is None and all((own == 1).all() for own in (self.labels, *self.views.values()))

    @property
    def plain(self) -> SampleWeights:
        """Without the weights of classes."""
        return self if self.before is None else self.before

    def share_left_out(self, views: Sequence[str]) -> np.ndarray | None:
        """Compute the fraction of the weight of every sample that a leave-one-out score in KGHA's space omits.

        -> (n,)
        """
        # The space has seen all labels anyway. Whole numbers count copies, of which one is left out as of repeated rows.
        counts = self.plain.of_views(views)
        if (counts <= 1).all() or (counts != np.rint(counts)).any():
            return None
        return 1.0 / np.maximum(counts, 1.0)

    def of_views(self, views: Sequence[str]) -> np.ndarray:
        """Look up the weights of samples in views whose kernels are one.

        -> (n,)
        """
        first = self.views[views[0]]
        for view in views[1:]:
            if not np.array_equal(self.views[view], first):
                raise UserError(
                    f"views {views[0]!r} and {view!r} have different samples or weights, which one combined kernel "
                    f"cannot take; take combine='predictions'"
                )
        return first

    def rows(self, index: np.ndarray) -> SampleWeights:
        """Take those of some samples.

        index (m,)
        """
        entries = None if self.entries is None else picked(self.entries, index)
        before = None if self.before is None else self.before.rows(index)
        return SampleWeights(
            {view: own[index] for view, own in self.views.items()}, self.labels[index], entries, before
        )


@dataclass(frozen=True, eq=False)
class Data:
    """Views, labels or outputs, and how often every sample counts in each of them.

    Y (n, L); known (n, L)
    """

    views: Mapping[str, Rows]
    weights: SampleWeights  # those of the labels are 0 where none of the sample is known
    Y: Any = None  # labels of 0 and 1, or outputs as they are learned; CSR of very many; None: nothing was read from y
    known: Any = None  # an array or `KnownRows`; None: all labels of samples of positive weight are known

    @classmethod
    def of(
        cls,
        views: Mapping[str, Rows],
        Y: Any = None,
        weights: SampleWeights | np.ndarray | None = None,
        known: Any = None,
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
        if entries is not None and not all(block.all() for _, block in entry_blocks(entries)):
            both = entries if known is None else ProductRows(entries, known)
            known = np.concatenate([block > 0 for _, block in entry_blocks(both)])
        labels = (weights.labels > 0) if known is None else (weights.labels > 0) & known.any(axis=1)
        own = {view: weight if passive else weight * labels for view, weight in weights.views.items()}
        for view, weight in own.items():
            if not weight.any():
                raise TooFewSamples(f"view {view!r} has no sample with a known label; leave the view out")
        some = None if known is None or picked(known, labels).all() else known
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
    def counts(self) -> Any:
        """How often every label of a sample counts (n x L), beside the sample's weight; None: all once."""
        if self.weights.entries is None:
            return self.known
        return self.weights.entries if self.known is None else ProductRows(self.weights.entries, self.known)

    @property
    def answers(self) -> Any:
        """y as another fit reads it: labels, NaN or masked where they are unknown (n x L)."""
        if self.known is None:
            return self.Y
        if isinstance(self.Y, LabelRows) and isinstance(self.known, KnownRows):
            missing = self.known.missing.astype(np.float32)
            missing.data[:] = np.nan
            return scipy.sparse.csr_array(rows(self.Y.source)) + missing
        return np.ma.MaskedArray(np.asarray(self.Y), ~np.asarray(self.known))

    @cached_property
    def frequency(self) -> np.ndarray:
        """How often labels are carried where they are known (L)."""
        Y = self.Y
        if self.complete:  # without the copy in float64 that a product takes
            return np.asarray(Y.mean(axis=0), np.float64)
        weights, counts = self.weights.labels * self.any_weight, self.counts
        if counts is None:
            return np.asarray(weights @ Y / weights.sum())
        total, carried = weights @ counts, weights @ ProductRows(Y, counts)
        return np.divide(carried, total, out=np.zeros(Y.shape[1]), where=total > 0)

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

    def held(self) -> Data:
        """The same with labels and weights of entries as arrays, for engines that solve for all samples at once."""
        arrays: Any = {
            name: np.asarray(part) for name in ("Y", "known") if isinstance(part := getattr(self, name), EntryRows)
        }
        weights = self.weights
        if isinstance(weights.entries, EntryRows):
            weights = replace(weights, entries=np.asarray(weights.entries))
        return replace(self, weights=weights, **arrays) if arrays or weights is not self.weights else self

    def rows(self, index: np.ndarray) -> Data:
        """Take some samples.

        index (m,)
        """
        some = {view: Subset(source, index) for view, source in self.views.items()}
        known = None if self.known is None else picked(self.known, index)
        known = None if known is None or known.all() else known
        return Data(some, self.weights.rows(index), picked(self.Y, index), known)


def read_complete(estimator: Any, views: Mapping[str, Rows], y: Any) -> Data:
    """Read labels, all of which are known, of samples that count once."""
    return Data.of(views, check_labels(estimator, y, sample_count(views), dtype=np.uint8))


def read_some(estimator: Any, views: Mapping[str, Rows], y: Any, weights: SampleWeights | None) -> Data:
    """Read labels of one view's samples, some of which have none."""
    n = sample_count(views)
    Y, known = check_known_labels(estimator, y, n)
    return Data.of(views, Y, weights, None if known.all() else known[:, None], passive=True)


def with_unknown(views: Mapping[str, Rows], Y: Any, known: Any, weights: SampleWeights | None) -> Data:
    """Labels or outputs, 0 where they are unknown; samples without any known one count as well, because they are imputed."""
    if known is None:
        return Data.of(views, densified(Y), weights)
    known = np.asarray(densified(known), bool)
    data = Data.of(views, np.where(known, densified(Y), 0), weights, known, passive=True)
    return replace(data, known=known)


def read_labels(
    estimator: Any,
    views: Mapping[str, Rows],
    y: Any,
    given: SampleWeights | None,
    wanted: Mapping[str, bool],
    passive: bool = False,
) -> Data:
    """Read labels or real outputs, single ones of which may be unknown; labels are sparse if that is smaller.

    `wanted`: what is asked for that needs dense labels. Learned as by `check_labels`.
    """
    n = sample_count(views)
    estimator.outputs_ = None
    dense = any(wanted.values())
    Y: Any
    known: Any = None
    y = loaded_if_many(y)
    if isinstance(y, LabelRows) and not dense and estimator.targets != "real" and hierarchy_of(estimator) is None:
        Y = check_stored_labels(estimator, y, n)
    else:
        often = None if given is None else given.labels
        real = None if are_many(y) else read_real(estimator, y, n, weights=often)
        Y, known = real or check_partial_labels(estimator, y, n)
    if are_many(Y):
        asked = {
            "a decoder": estimator._decoder is not None,
            "standardize": bool(estimator._by_scores.standardize),
            "class_weight": estimator.class_weight is not None,
            "a matrix of label weights": given is not None and given.entries is not None,
            "an unknown label": known is not None,
        } | dict(wanted)
        for what in (what for what, needed in asked.items() if needed):
            raise UserError(f"{what} needs dense labels, and these are {Y.shape[1]}; pass fewer, or go without it")
        return Data.of(views, note_many(Y), given, passive=passive)
    if dense:
        Y, known = densified(Y), densified(known)
    elif known is None and estimator.outputs_ is None and estimator.multilabel_ and isinstance(Y, np.ndarray):
        Y = packed(Y)
    Y = LabelRows(Y) if scipy.sparse.issparse(Y) else Y
    if not passive:
        given = with_label_weights(given, estimator.class_weight, estimator, Y, known)
    return Data.of(views, Y, given, known, passive=passive)


def note_many(Y: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """Log how a fit treats sparse labels for which `are_many` holds."""
    log.info(
        "%d labels are learned from their sparse matrix: no probabilities are learned, and predict gives every sample as "
        "many labels as a training sample has on average",
        Y.shape[1],
    )
    return Y


def directions(Y: Any, components: int, random_state: int | None) -> tuple[Any, np.ndarray | None]:
    """Take labels as they are, or very many sparse ones in the directions V (L x q) in which they vary most.

    Y (n, L) -> (n, L) or (n, q); V
    """
    if not scipy.sparse.issparse(Y):
        return Y, None
    V = label_directions(Y, components, random_state)
    return np.asarray(cast(Any, Y) @ V), V


def check_weights(
    sample_weight: RowWeights | SampleWeights, views: Mapping[str, Rows], by_entry: bool = False
) -> SampleWeights | None:
    """Read the weights of samples, together with what the views lack.

    sample_weight (n,); views (n, d)
    """
    if isinstance(sample_weight, SampleWeights):  # of a fit within another, which has read them
        return sample_weight
    n = next(iter(views.values())).shape[0]
    known = {view: presence(source) for view, source in views.items()}
    if sample_weight is None and all(present is None for present in known.values()):
        return None
    entries = None
    given: Mapping[str, Any] = dict.fromkeys([*views, LABEL_WEIGHTS], 1.0 if sample_weight is None else sample_weight)
    if isinstance(sample_weight, Mapping):
        unknown = [view for view in sample_weight if view not in given]
        if unknown:
            raise UserError(f"sample_weight names {unknown[0]!r}, the views are {list(views)}; name these, or 'labels'")
        given = dict.fromkeys(given, 1.0) | dict(sample_weight)
        matrix = _numbers(given[LABEL_WEIGHTS])
        if matrix.ndim == 2:
            if not by_entry:
                raise UserError(
                    "sample_weight of the labels is a matrix, which only MultiViewRidge of dense labels takes; pass one "
                    "weight a sample"
                )
            entries = _checked(matrix, (n, matrix.shape[1]))
            given |= {LABEL_WEIGHTS: entries.any(axis=1)}
    weights = {view: _weights(own, n) for view, own in given.items()}
    for view, present in known.items():
        if present is not None:
            weights[view] = weights[view] * present
    for view, own in weights.items():
        if not own.any():
            what = "labels" if view == LABEL_WEIGHTS else f"view {view!r}"
            raise TooFewSamples(
                f"{what}: the weights of all samples are zero; leave the view out, or give it some samples"
            )
    if all((own == 1).all() for own in weights.values()) and (entries is None or (entries == 1).all()):
        return None
    labels = weights.pop(LABEL_WEIGHTS)
    return SampleWeights(weights, labels, entries)


def with_class_weights(data: Data, class_weight: ClassWeight, classes: list[Any]) -> Data:
    """Multiply the sample weights by the weights of the classes; for label matrices see `with_label_weights`."""
    given, Y = data.weights, data.Y
    if isinstance(class_weight, Mapping):
        by_class = _named_weights(class_weight, classes, "classes")
    else:
        counts = given.labels @ Y
        by_class = np.divide(counts.sum(), (counts > 0).sum() * counts, out=np.zeros_like(counts), where=counts > 0)
    own = by_class[Y.argmax(axis=1)]
    if data.known is not None:  # samples without a class keep their weights
        own = np.where(data.known.any(axis=1), own, 1.0)
    weights = SampleWeights(
        {view: weights * own for view, weights in given.views.items()}, given.labels * own, given.entries, given
    )
    if not weights.labels.any():
        raise TooFewSamples("class_weight is 0 for all samples; give some of their classes a weight above 0")
    return replace(data, weights=weights)


def with_label_weights(
    given: SampleWeights | None,
    class_weight: ClassWeight,
    estimator: BaseEstimator,
    Y: Any,
    known: Any,
) -> SampleWeights | None:
    """Multiply the weights of the entries of a label matrix by those of carrying the label or not.

    Y, known (n, L)
    """
    if given is not None and given.entries is not None and given.entries.shape != Y.shape:
        raise UserError(
            f"sample_weight of the labels has shape {given.entries.shape}, the labels {Y.shape}; pass one weight an entry"
        )
    if class_weight is None or not estimator.multilabel_:
        return given
    n, L = Y.shape
    given = SampleWeights({view: np.ones(n) for view in estimator.view_widths_}, np.ones(n)) if given is None else given
    if isinstance(class_weight, Mapping):
        carried, lacked = _named_weights(class_weight, estimator.classes_.tolist(), "labels"), np.ones(L)
    else:
        sums = np.zeros((2, L))
        for where, block in entry_blocks(Y):
            counts = np.broadcast_to(given.labels[where, None], block.shape)
            for part in (given.entries, known):
                counts = counts if part is None else counts * part[where]
            sums += (counts * (block > 0)).sum(axis=0), (counts * (block <= 0)).sum(axis=0)
        kinds = (sums > 0).sum(axis=0)
        carried, lacked = np.divide(sums.sum(axis=0), kinds * sums, out=np.zeros_like(sums), where=sums > 0)
    counted: EntryRows = ClassCounts(Y, carried, lacked)
    return SampleWeights(
        given.views, given.labels, counted if given.entries is None else ProductRows(given.entries, counted), given
    )


def _named_weights(class_weight: Mapping[Any, float], names: list[Any], what: str) -> np.ndarray:
    unknown = [name for name in class_weight if name not in names]
    if unknown:
        raise UserError(f"class_weight names {unknown[0]!r}, the {what} are {names}")
    return np.array([class_weight.get(name, 1.0) for name in names], np.float64)


def check_common_weights(sample_weight: RowWeights | SampleWeights, views: Mapping[str, Rows]) -> SampleWeights | None:
    """Validate sample weights that are the same for all views and the labels.

    sample_weight (n,); views (n, d)
    """
    if isinstance(sample_weight, SampleWeights):  # of a fit within another, which has validated them
        return sample_weight
    weights = check_row_weights(sample_weight, sample_count(views))
    return None if weights is None else SampleWeights(dict.fromkeys(views, weights), weights)


def of_views(weights: SampleWeights | None) -> Mapping[str, np.ndarray] | None:
    """Look up the sample weights of every view, without class weights; None if every sample counts once."""
    return None if weights is None else weights.plain.views


def check_row_weights(sample_weight: RowWeights, n: int) -> np.ndarray | None:
    """Read the weights of samples that all views and the labels have in common.

    sample_weight (n,) -> (n,)
    """
    if sample_weight is None:
        return None
    if isinstance(sample_weight, Mapping):
        raise UserError(
            "sample_weight has a weight for every view, which KGHA, MultiViewRidge and MultiSetCCA take; pass one a sample"
        )
    weights = _weights(sample_weight, n)
    if not weights.any():
        raise TooFewSamples("the weights of all samples are zero; give some of them a weight above 0")
    return None if (weights == 1).all() else weights


def _weights(given: Any, n: int) -> np.ndarray:
    weights = _numbers(given)
    return _checked(np.full(n, weights) if weights.ndim == 0 else weights, (n,))


def _numbers(given: Any) -> np.ndarray:
    try:
        return np.asarray(given, np.float64)
    except (TypeError, ValueError) as error:
        raise UserError("sample_weight holds what is no number; pass one number a sample") from error


def _checked(weights: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if weights.shape != shape:
        raise UserError(f"sample_weight has shape {weights.shape}, needs {shape}; pass one weight a sample")
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0])
        raise UserError(f"sample_weight is {weights[at]} at sample {at[0]}; weights are finite numbers of at least 0")
    return weights
