"""Weights of samples, by view and for the labels: how often each counts, 0 where it is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from dmo.blocks import Rows, presence
from dmo.errors import TooFewSamples, UserError
from dmo.inputs.containers import ClassWeight, RowWeights

LABEL_WEIGHTS = "labels"
"""Key of the labels' weights in a mapping of weights by view."""


@dataclass(frozen=True)
class SampleWeights:
    """How often every sample counts in every view and in the labels.

    views, labels (n,); entries (n, L)
    """

    views: dict[str, np.ndarray]  # (n,): at least 0; 0 where the view lacks the sample
    labels: np.ndarray  # (n,): at least 0
    entries: np.ndarray | None = None
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
        """Work out which share of every sample's weight a left-out score of it goes without.

        -> (n,)
        """
        # Whole numbers count repeated rows, of which one is left out at a time. A weight of any other kind says how
        # important a sample is: what is left of it would have told the score the sample's own labels.
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
        entries = None if self.entries is None else self.entries[index]
        before = None if self.before is None else self.before.rows(index)
        return SampleWeights(
            {view: own[index] for view, own in self.views.items()}, self.labels[index], entries, before
        )


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


def with_class_weights(
    given: SampleWeights | None, class_weight: ClassWeight, estimator: BaseEstimator, Y: np.ndarray
) -> SampleWeights | None:
    """Multiply the weights of samples by those of their classes; of label matrices see `with_label_weights`.

    Y (n, L)
    """
    if class_weight is None or estimator.multilabel_:
        return given
    n = len(Y)
    given = SampleWeights({view: np.ones(n) for view in estimator.view_widths_}, np.ones(n)) if given is None else given
    if isinstance(class_weight, Mapping):
        by_class = _named_weights(class_weight, estimator.classes_.tolist(), "classes")
    else:
        counts = given.labels @ Y
        by_class = np.divide(counts.sum(), (counts > 0).sum() * counts, out=np.zeros_like(counts), where=counts > 0)
    own = by_class[Y.argmax(axis=1)]
    return SampleWeights(
        {view: weights * own for view, weights in given.views.items()}, given.labels * own, given.entries, given
    )


def with_label_weights(
    given: SampleWeights | None,
    class_weight: ClassWeight,
    estimator: BaseEstimator,
    Y: np.ndarray,
    known: np.ndarray | None,
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
    entries, positive = np.ones(Y.shape) if given.entries is None else given.entries, Y > 0
    if isinstance(class_weight, Mapping):
        carried, lacked = _named_weights(class_weight, estimator.classes_.tolist(), "labels"), np.ones(L)
    else:
        counts = given.labels[:, None] * entries * (1.0 if known is None else known)
        sums = np.stack([(counts * positive).sum(axis=0), (counts * ~positive).sum(axis=0)])
        kinds = (sums > 0).sum(axis=0)
        carried, lacked = np.divide(sums.sum(axis=0), kinds * sums, out=np.zeros_like(sums), where=sums > 0)
    return SampleWeights(given.views, given.labels, entries * np.where(positive, carried, lacked), given)


def _named_weights(class_weight: Mapping[Any, float], names: list[Any], what: str) -> np.ndarray:
    unknown = [name for name in class_weight if name not in names]
    if unknown:
        raise UserError(f"class_weight names {unknown[0]!r}, the {what} are {names}")
    return np.array([class_weight.get(name, 1.0) for name in names], np.float64)


def check_row_weights(sample_weight: RowWeights | SampleWeights, n: int) -> np.ndarray | None:
    """Read the weights of samples that all views and the labels have in common.

    sample_weight (n,) -> (n,)
    """
    if sample_weight is None:
        return None
    if isinstance(sample_weight, SampleWeights):  # of a fit within another, which has read them
        return sample_weight.labels
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
