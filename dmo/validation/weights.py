"""Weights of samples, by view and for the labels: how often each counts, 0 where it is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dmo.blocks import Rows, presence
from dmo.errors import UserError

LABEL_WEIGHTS = "labels"
"""Key of the labels' weights in a mapping of weights by view."""


@dataclass(frozen=True)
class SampleWeights:
    """How often every sample counts in every view and in the labels.

    Parameters
    ----------
    views : dict of str to ndarray of shape (n,), float64
        At least 0; 0 where the view lacks the sample.
    labels : ndarray of shape (n,), float64
        At least 0.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.validation.weights import SampleWeights
    >>> SampleWeights({"x": np.ones(2)}, np.ones(2)).of_views(["x"]).tolist()
    [1.0, 1.0]
    """

    views: dict[str, np.ndarray]
    labels: np.ndarray

    def of_views(self, views: Sequence[str]) -> np.ndarray:
        """Look up the weights of samples in views whose kernels are one.

        Parameters
        ----------
        views : sequence of str
            The views.

        Returns
        -------
        ndarray of shape (n,)
            Weights.

        Raises
        ------
        UserError
            Where the views have different ones.
        """
        first = self.views[views[0]]
        for view in views[1:]:
            if not np.array_equal(self.views[view], first):
                raise UserError(
                    f"views {views[0]!r} and {view!r} have different samples or weights, which one combined kernel "
                    f"cannot take; take combine='predictions'"
                )
        return first

    def by_name(self) -> dict[str, np.ndarray]:
        """Name all of them, as `check_weights` takes them.

        Returns
        -------
        dict of str to ndarray of shape (n,)
            By view, and of the labels.
        """
        return self.views | {LABEL_WEIGHTS: self.labels}

    def rows(self, index: np.ndarray) -> SampleWeights:
        """Take those of some samples.

        Parameters
        ----------
        index : ndarray of shape (m,), int
            Their numbers.

        Returns
        -------
        SampleWeights
            Of these samples.
        """
        return SampleWeights({view: own[index] for view, own in self.views.items()}, self.labels[index])


def check_weights(sample_weight: Any, views: Mapping[str, Rows]) -> SampleWeights | None:
    """Read the weights of samples, together with what the views lack.

    Parameters
    ----------
    sample_weight : array-like of shape (n,), number, mapping of view to such, or None
        Weights of all views and of the labels; or by view, 1 for those that are not named ("labels": of the labels).
    views : mapping of str to row source of shape (n, d)
        Views; their `presence` sets weights to 0.

    Returns
    -------
    SampleWeights or None
        None where all weights are 1.

    Raises
    ------
    UserError
        For weights that are negative, not finite, of another number of samples, or all 0, and for unknown views.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.validation import check_weights
    >>> check_weights([1, 2, 1], {"x": np.ones((3, 2))}).views["x"].tolist()
    [1.0, 2.0, 1.0]
    """
    n = next(iter(views.values())).shape[0]
    known = {view: presence(source) for view, source in views.items()}
    if sample_weight is None and all(present is None for present in known.values()):
        return None
    given: Mapping[str, Any] = dict.fromkeys([*views, LABEL_WEIGHTS], 1.0 if sample_weight is None else sample_weight)
    if isinstance(sample_weight, Mapping):
        unknown = [view for view in sample_weight if view not in given]
        if unknown:
            raise UserError(f"sample_weight names {unknown[0]!r}, the views are {list(views)}; name these, or 'labels'")
        given = dict.fromkeys(given, 1.0) | dict(sample_weight)
    weights = {view: _weights(own, n) for view, own in given.items()}
    for view, present in known.items():
        if present is not None:
            weights[view] = weights[view] * present
    for view, own in weights.items():
        if not own.any():
            what = "labels" if view == LABEL_WEIGHTS else f"view {view!r}"
            raise UserError(f"{what}: the weights of all samples are zero; leave the view out, or give it some samples")
    if all((own == 1).all() for own in weights.values()):
        return None
    labels = weights.pop(LABEL_WEIGHTS)
    return SampleWeights(weights, labels)


def with_class_weights(sample_weight: Any, class_weight: Any, estimator: Any, Y: np.ndarray) -> Any:
    """Multiply the weights of samples by those of their classes.

    Parameters
    ----------
    sample_weight : array-like of shape (n,), number, mapping of view to such, or None
        As for `check_weights`.
    class_weight : {"balanced"}, dict of class to float, or None
        "balanced": inversely to how often the class occurs, by the weights of its samples; 1 for classes that a dict lacks.
    estimator : object
        That has learned `classes_` and `multilabel_` from y.
    Y : ndarray of shape (n, L), 0/1
        Its labels.

    Returns
    -------
    object
        Weights as given, or times those of the classes.

    Raises
    ------
    UserError
        For labels of which a sample has several, and for what is no class.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo import MultiViewRidge
    >>> from dmo.validation import check_labels, with_class_weights
    >>> model = MultiViewRidge()
    >>> Y = check_labels(model, ["sea", "sky", "sea", "sea"], 4)
    >>> with_class_weights(None, "balanced", model, Y).round(2).tolist()
    [0.67, 2.0, 0.67, 0.67]
    """
    if class_weight is None:
        return sample_weight
    if estimator.multilabel_:
        raise UserError(
            "class_weight is for a vector of classes; where samples have several labels, sets are chosen by a threshold per "
            "label, and rare ones favored by prior_power or a decoder"
        )
    own = Y.argmax(axis=1)
    if isinstance(class_weight, Mapping):
        classes = estimator.classes_.tolist()
        unknown = [name for name in class_weight if name not in classes]
        if unknown:
            raise UserError(f"class_weight names {unknown[0]!r}, the classes are {classes}")
        by_class = np.array([class_weight.get(name, 1.0) for name in classes], np.float64)
    else:
        of_labels = sample_weight.get(LABEL_WEIGHTS, 1.0) if isinstance(sample_weight, Mapping) else sample_weight
        counts = _weights(1.0 if of_labels is None else of_labels, len(Y)) @ Y
        by_class = np.divide(counts.sum(), (counts > 0).sum() * counts, out=np.zeros_like(counts), where=counts > 0)
    if isinstance(sample_weight, Mapping):
        named = dict.fromkeys([*estimator.view_widths_, LABEL_WEIGHTS], 1.0) | dict(sample_weight)
        return {name: np.asarray(weights) * by_class[own] for name, weights in named.items()}
    return by_class[own] if sample_weight is None else _weights(sample_weight, len(Y)) * by_class[own]


def check_row_weights(sample_weight: Any, n: int) -> np.ndarray | None:
    """Read the weights of samples that all views and the labels have in common.

    Parameters
    ----------
    sample_weight : array-like of shape (n,), number, or None
        Weights.
    n : int
        Samples.

    Returns
    -------
    ndarray of shape (n,), float64, or None
        None where all weights are 1.

    Raises
    ------
    UserError
        For weights that are negative, not finite, of another number of samples, or all 0.

    Examples
    --------
    >>> from dmo.validation import check_row_weights
    >>> check_row_weights([1, 2, 1], 3).tolist(), check_row_weights([1, 1, 1], 3)
    ([1.0, 2.0, 1.0], None)
    """
    if sample_weight is None:
        return None
    weights = _weights(sample_weight, n)
    if not weights.any():
        raise UserError("the weights of all samples are zero; give some of them a weight above 0")
    return None if (weights == 1).all() else weights


def _weights(given: Any, n: int) -> np.ndarray:
    try:
        weights = np.asarray(given, np.float64)
    except (TypeError, ValueError) as error:
        raise UserError("sample_weight holds what is no number; pass one number a sample") from error
    weights = np.full(n, weights) if weights.ndim == 0 else weights
    if weights.shape != (n,):
        raise UserError(f"sample_weight has shape {weights.shape}, needs ({n},); pass one weight a sample")
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        at = int(np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))[0])
        raise UserError(f"sample_weight is {weights[at]} at sample {at}; weights are finite numbers of at least 0")
    return weights
