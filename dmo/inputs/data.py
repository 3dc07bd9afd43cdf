"""Validated input of a fit: views, labels or regression targets, a mask of known entries, and sample weights.

Sample weights are always present, so that a method has a single code path for weighted and unweighted samples.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self, cast

import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator

from dmo.blocks import Rows, Subset, packed, presence, rows
from dmo.errors import TooFewSamples, UserError
from dmo.inputs.containers import ClassWeight, RowWeights, WeightDetail
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
    check_known_labels,
    check_labels,
    check_partial_labels,
    check_stored_labels,
    hierarchy_of,
    read_real,
    recognized,
)
from dmo.inputs.views import only_view, sample_count
from dmo.labels.label_kernels import label_directions

log = logging.getLogger("dmo")
LABEL_WEIGHTS = "labels"
"""Key of the label weights in a mapping from views to sample weights."""


@dataclass(frozen=True)
class SampleWeights:
    """Sample weights for each view and for the labels."""

    views: dict[str, np.ndarray]  # nonnegative sample weights of each view; 0 if a sample is missing from the view
    labels: np.ndarray  # nonnegative sample weights for the labels
    # additional factor on the weight of each label entry, of shape (n, L)
    entries: np.ndarray | EntryRows | None = None
    before: SampleWeights | None = None  # sample weights without class weights
    ones: bool = field(init=False)  # whether all weights are 1, for every view and every label

    def __post_init__(self) -> None:
        ones = self.entries is None and all((own == 1).all() for own in (self.labels, *self.views.values()))
        object.__setattr__(self, "ones", ones)

    @property
    def plain(self) -> SampleWeights:
        """Sample weights that are not multiplied by class weights."""
        return self if self.before is None else self.before

    def share_left_out(self, views: Sequence[str]) -> np.ndarray | None:
        """Compute the fraction of a sample's weight that KGHA leaves out for its leave-one-out scores; None means 1."""
        # A sample with an integer weight stands for repeated rows, and leaving out one of them removes 1 / weight of
        # the sample. The embedding itself is learned from all labels.
        counts = self.plain.of_views(views)
        if (counts <= 1).all() or (counts != np.rint(counts)).any():
            return None
        return 1.0 / np.maximum(counts, 1.0)

    def of_views(self, views: Sequence[str]) -> np.ndarray:
        """Return the sample weights of views that share one combined kernel; raise an error if they differ."""
        first = self.views[views[0]]
        for view in views[1:]:
            if not np.array_equal(self.views[view], first):
                raise UserError(
                    f"views {views[0]!r} and {view!r} have different samples or weights, which a combined kernel does "
                    f"not support; use combine='predictions'"
                )
        return first

    def rows(self, index: np.ndarray) -> SampleWeights:
        """Select the weights of the samples with the given indices."""
        entries = None if self.entries is None else picked(self.entries, index)
        before = None if self.before is None else self.before.rows(index)
        return SampleWeights(
            {view: own[index] for view, own in self.views.items()}, self.labels[index], entries, before
        )


@dataclass(frozen=True, eq=False)
class Data:
    """Views and labels or regression targets of a fit, with sample weights."""

    views: Mapping[str, Rows]
    weights: SampleWeights  # sample weights; label weights are 0 for samples without a known label
    Y: Any = None  # labels of 0 and 1 (CSR if there are very many), scaled regression targets, or None without targets
    known: Any = None  # mask of the known labels, or None if all labels of samples with positive weight are known
    complete: bool = field(init=False)  # whether all labels and samples are present and all weights are 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "complete", self.known is None and self.weights.ones)

    @classmethod
    def of(
        cls,
        views: Mapping[str, Rows],
        Y: Any = None,
        weights: SampleWeights | np.ndarray | None = None,
        known: Any = None,
        passive: bool = False,
    ) -> Self:
        """Combine views, labels and weights; unless `passive`, samples without a known label get weight 0 in all views.

        `Y` and `known` have shape (n, L).
        """
        n = sample_count(views)
        ones = np.broadcast_to(1.0, n)  # The broadcast array stores a single number.
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
                raise TooFewSamples(f"view {view!r} has no samples with a known label; leave the view out")
        some = None if known is None or picked(known, labels).all() else known
        return cls(views, SampleWeights(own, weights.labels * labels, entries, weights.before), Y, some)

    @property
    def n(self) -> int:
        """Number of samples."""
        return sample_count(self.views)

    @property
    def only(self) -> tuple[str, Rows]:
        """Name and rows of the only view."""
        return only_view(self.views)

    @property
    def many(self) -> bool:
        """Whether labels are sparse because matrices of shape labels x labels would be too large."""
        return scipy.sparse.issparse(self.Y)

    @property
    def often(self) -> np.ndarray | None:
        """Sample weights of the only view, or None if all weights are 1."""
        found = next(iter(self.weights.views.values()))
        return None if (found == 1).all() else found

    @property
    def any_weight(self) -> np.ndarray:
        """Mask of the samples that have a positive weight in at least one view."""
        return np.any([own > 0 for own in self.weights.views.values()], axis=0)

    @property
    def labeled(self) -> np.ndarray:
        """Indices of the samples that have a known label and at least one view."""
        return np.flatnonzero(self.any_weight & (self.weights.labels > 0))

    @property
    def n_labeled(self) -> float:
        """Total weight of the samples that have a known label."""
        return float(self.n if self.complete else self.weights.labels[self.any_weight].sum())

    @property
    def counts(self) -> Any:
        """Factors on the weights of single label entries, of shape (n, L), or None if all factors are 1."""
        if self.weights.entries is None:
            return self.known
        return self.weights.entries if self.known is None else ProductRows(self.weights.entries, self.known)

    @property
    def answers(self) -> Any:
        """Target in a form that `fit` accepts as `y`, in which unknown entries are NaN or masked."""
        if self.known is None:
            return self.Y
        if isinstance(self.Y, LabelRows) and isinstance(self.known, KnownRows):
            missing = self.known.missing.astype(np.float32)
            missing.data[:] = np.nan
            return scipy.sparse.csr_array(rows(self.Y.source)) + missing
        return np.ma.MaskedArray(np.asarray(self.Y), ~np.asarray(self.known))

    @cached_property
    def frequency(self) -> np.ndarray:
        """Weighted fraction of positive entries among the known entries of each label."""
        Y = self.Y
        if self.complete:  # A matrix product would create a float64 copy of Y.
            return np.asarray(Y.mean(axis=0), np.float64)
        weights, counts = self.weights.labels * self.any_weight, self.counts
        if counts is None:
            return np.asarray(weights @ Y / weights.sum())
        total, carried = weights @ counts, weights @ ProductRows(Y, counts)
        return np.divide(carried, total, out=np.zeros(Y.shape[1]), where=total > 0)

    def decided(self, rows: np.ndarray) -> np.ndarray | None:
        """Return the weights, without class weights, of the label entries from which decisions are learned.

        The result has shape (m, L) for m row indices, and is None if all weights are 1.
        """
        if self.complete:
            return None
        given = self.weights.plain.rows(rows)
        counts = np.broadcast_to(given.labels[:, None], (len(rows), self.Y.shape[1]))
        counts = counts if given.entries is None else counts * given.entries
        counts = counts if self.known is None else counts * self.known[rows]
        return None if (counts == 1).all() else counts

    def held(self) -> Data:
        """Convert row sources of labels to arrays, for methods that solve for all samples at once."""
        arrays: Any = {
            name: np.asarray(part) for name in ("Y", "known") if isinstance(part := getattr(self, name), EntryRows)
        }
        weights = self.weights
        if isinstance(weights.entries, EntryRows):
            weights = replace(weights, entries=np.asarray(weights.entries))
        return replace(self, weights=weights, **arrays) if arrays or weights is not self.weights else self

    def rows(self, index: np.ndarray) -> Data:
        """Select the samples with the given indices."""
        some = {view: Subset(source, index) for view, source in self.views.items()}
        known = None if self.known is None else picked(self.known, index)
        known = None if known is None or known.all() else known
        return Data(some, self.weights.rows(index), picked(self.Y, index), known)


def read_complete(estimator: Any, views: Mapping[str, Rows], y: Any) -> Data:
    """Read labels without missing values and without sample weights."""
    return Data.of(views, check_labels(estimator, y, sample_count(views), dtype=np.uint8))


def read_some(estimator: Any, views: Mapping[str, Rows], y: Any, weights: SampleWeights | None) -> Data:
    """Read the labels of the samples of one view; samples may be unlabeled."""
    n = sample_count(views)
    Y, known = check_known_labels(estimator, y, n)
    return Data.of(views, Y, weights, None if known.all() else known[:, None], passive=True)


def with_unknown(views: Mapping[str, Rows], Y: Any, known: Any, weights: SampleWeights | None) -> Data:
    """Combine views with labels or outputs, with 0 for unknown entries, which the caller imputes later."""
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
    """Read labels or regression targets whose entries may be unknown, and set the attributes of `check_labels`.

    `wanted` maps the names of features that need dense labels to whether they are used.
    """
    n = sample_count(views)
    estimator.outputs_ = None
    dense = any(wanted.values())
    Y: Any
    known: Any = None
    y, kind = recognized(y, estimator.targets)
    if kind == "stored" and not dense and hierarchy_of(estimator) is None:
        Y = check_stored_labels(estimator, y, n)
    elif kind == "real":
        Y, known = read_real(estimator, y, n, weights=None if given is None else given.labels)
    else:
        Y, known = check_partial_labels(estimator, y, n)
    if kind == "many":
        asked = {
            "a decoder": estimator._decoder is not None,
            "standardize": bool(estimator._by_scores.standardize),
            "class_weight": estimator.class_weight is not None,
            "a matrix of label weights": given is not None and given.entries is not None,
            "an unknown label": known is not None,
        } | dict(wanted)
        for what in (what for what, needed in asked.items() if needed):
            raise UserError(
                f"{what} needs dense labels, got a sparse matrix of {Y.shape[1]} labels; pass fewer labels, or leave "
                "it out"
            )
        return Data.of(views, note_many(Y), given, passive=passive)
    if dense:
        Y, known = densified(Y), densified(known)
    elif known is None and estimator.outputs_ is None and estimator.multilabel_ and isinstance(Y, np.ndarray):
        Y = packed(Y)
    Y = LabelRows.of(Y)
    if not passive:
        given = with_label_weights(given, estimator.class_weight, estimator, Y, known)
    return Data.of(views, Y, given, known, passive=passive)


def note_many(Y: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """Log how a fit treats labels that are too many for dense matrices, and return the labels unchanged."""
    log.info(
        "%d labels are kept as a sparse matrix: no probabilities are learned, and predict returns as many labels per "
        "sample as a training sample has on average",
        Y.shape[1],
    )
    return Y


def directions(Y: Any, components: int, random_state: int | None) -> tuple[Any, np.ndarray | None]:
    """Project very many sparse labels on right singular vectors V, of shape (L, q), and return both.

    Other labels are returned unchanged, with None instead of V.
    """
    if not scipy.sparse.issparse(Y):
        return Y, None
    V = label_directions(Y, components, random_state)
    return np.asarray(cast(Any, Y) @ V), V


def check_weights(
    sample_weight: RowWeights | SampleWeights, views: Mapping[str, Rows], detail: WeightDetail
) -> SampleWeights | None:
    """Validate sample weights. Weights per view are set to 0 for samples that the view does not contain."""
    if isinstance(sample_weight, SampleWeights):  # An outer fit has already validated the weights.
        return sample_weight
    n = sample_count(views)
    if detail == "sample":
        common = check_row_weights(sample_weight, n)
        return None if common is None else SampleWeights(dict.fromkeys(views, common), common)
    known = {view: presence(source) for view, source in views.items()}
    if sample_weight is None and all(present is None for present in known.values()):
        return None
    entries = None
    given: Mapping[str, Any] = dict.fromkeys([*views, LABEL_WEIGHTS], 1.0 if sample_weight is None else sample_weight)
    if isinstance(sample_weight, Mapping):
        unknown = [view for view in sample_weight if view not in given]
        if unknown:
            raise UserError(
                f"sample_weight has an entry for {unknown[0]!r}, expected 'labels' or one of the views {list(views)}; "
                "correct the name"
            )
        given = dict.fromkeys(given, 1.0) | dict(sample_weight)
        matrix = _numbers(given[LABEL_WEIGHTS])
        if matrix.ndim == 2:
            if detail != "entry":
                raise UserError(
                    "sample_weight of the labels is a matrix, which only MultiViewRidge with dense labels supports; "
                    "pass one weight per sample"
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
                f"{what}: the weights of all samples are zero; leave the view out, or set some of its weights above 0"
            )
    if all((own == 1).all() for own in weights.values()) and (entries is None or (entries == 1).all()):
        return None
    labels = weights.pop(LABEL_WEIGHTS)
    return SampleWeights(weights, labels, entries)


def with_class_weights(data: Data, class_weight: ClassWeight, classes: list[Any]) -> Data:
    """Multiply the sample weights by class weights, for a vector of classes."""
    given, Y = data.weights, data.Y
    if isinstance(class_weight, Mapping):
        by_class = _named_weights(class_weight, classes, "classes")
    else:
        counts = given.labels @ Y
        by_class = np.divide(counts.sum(), (counts > 0).sum() * counts, out=np.zeros_like(counts), where=counts > 0)
    own = by_class[Y.argmax(axis=1)]
    if data.known is not None:  # Samples without a class keep their weights.
        own = np.where(data.known.any(axis=1), own, 1.0)
    weights = SampleWeights(
        {view: weights * own for view, weights in given.views.items()}, given.labels * own, given.entries, given
    )
    if not weights.labels.any():
        raise TooFewSamples("class_weight is 0 for the classes of all samples; set at least one weight above 0")
    return replace(data, weights=weights)


def with_label_weights(
    given: SampleWeights | None,
    class_weight: ClassWeight,
    estimator: BaseEstimator,
    Y: Any,
    known: Any,
) -> SampleWeights | None:
    """Multiply the weights of the entries of a label matrix by class weights, for a matrix of labels."""
    if given is not None and given.entries is not None and given.entries.shape != Y.shape:
        raise UserError(
            f"sample_weight of the labels has shape {given.entries.shape}, the labels {Y.shape}; pass one weight per "
            f"entry"
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
        raise UserError(f"class_weight has an entry for {unknown[0]!r}, but the {what} are {names}; correct the name")
    return np.array([class_weight.get(name, 1.0) for name in names], np.float64)


def check_row_weights(sample_weight: RowWeights, n: int) -> np.ndarray | None:
    """Validate sample weights that apply to all views and to the labels; return None if all weights are 1."""
    if sample_weight is None:
        return None
    if isinstance(sample_weight, Mapping):
        raise UserError(
            "sample_weight is a mapping by view, which only KGHA, MultiViewRidge and MultiSetCCA support; pass one "
            "weight per sample"
        )
    weights = _weights(sample_weight, n)
    if not weights.any():
        raise TooFewSamples("the weights of all samples are zero; set some of them above 0")
    return None if (weights == 1).all() else weights


def _weights(given: Any, n: int) -> np.ndarray:
    weights = _numbers(given)
    return _checked(np.full(n, weights) if weights.ndim == 0 else weights, (n,))


def _numbers(given: Any) -> np.ndarray:
    try:
        return np.asarray(given, np.float64)
    except (TypeError, ValueError) as error:
        raise UserError("sample_weight contains non-numeric values; pass one number per sample") from error


def _checked(weights: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if weights.shape != shape:
        raise UserError(f"sample_weight has shape {weights.shape}, expected {shape}; pass one weight per sample")
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0])
        raise UserError(
            f"sample_weight is {weights[at]} at sample {at[0]}, expected finite numbers of at least 0; correct it"
        )
    return weights
