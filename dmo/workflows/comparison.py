"""Models judged on the same samples: how much they differ, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse
from scipy.stats import bootstrap

from dmo.metrics import top_label_sets

_RESAMPLES = 2000
_ENTRIES = 2**21
"""Resamples of an interval, and counts of samples that are held at a time."""
Measures = Callable[[np.ndarray], np.ndarray]


def paired_differences(first: Measures, second: Measures, n: int, random_state: int = 0) -> np.ndarray:
    """Difference of measures of two models, with 95 % intervals of the paired bootstrap over samples.

    -> (r, 3)
    """
    # Every resample takes the same samples for both models, so that what makes samples hard for both cancels;
    # intervals are percentiles.
    #
    # Efron and Tibshirani 1993, "An introduction to the bootstrap", chapter 13.

    def difference(index: np.ndarray, axis: int = -1) -> np.ndarray:
        index = np.atleast_2d(index)
        shifted = index + n * np.arange(len(index))[:, None]
        taken = np.bincount(shifted.ravel(), minlength=n * len(index)).reshape(len(index), n).astype(np.float64)
        return np.moveaxis(second(taken) - first(taken), 0, -1)

    whole = np.ones((1, n))
    found = (second(whole) - first(whole))[0]
    if n < 2:
        return np.stack([found, np.full_like(found, np.nan), np.full_like(found, np.nan)], axis=1)
    interval = bootstrap(
        (np.arange(n),),
        difference,
        n_resamples=_RESAMPLES,
        batch=max(1, _ENTRIES // n),
        vectorized=True,
        axis=-1,
        method="percentile",
        rng=np.random.default_rng(random_state),
    ).confidence_interval
    return np.stack([found, interval.low, interval.high], axis=1)


ANNOTATION = ("precision %", "recall %", "F1 %", "F1 of a sample %")
"""What `annotation_measures` gives, times 100."""


def annotation_measures(Y: np.ndarray, scores: np.ndarray, top: int) -> Measures:
    """Measures of an annotation, for resamples.

    Y, scores (n, L)
    """
    known = ~np.isnan(np.asarray(Y, np.float64))
    true = np.nan_to_num(Y) == 1
    given = (top_label_sets(scores, top) == 1) & known
    hits, gave, has = (scipy.sparse.csc_array((each).astype(np.float64)) for each in (given & true, given, true))
    labeled = true.any(axis=1)
    of_sample = np.where(
        labeled, 2 * (given & true).sum(axis=1) / np.maximum(given.sum(axis=1) + true.sum(axis=1), 1), 0
    )

    def measures(taken: np.ndarray) -> np.ndarray:
        found, named, positives = (taken @ each for each in (hits, gave, has))
        occurs = positives > 0
        labels = np.maximum(occurs.sum(axis=1), 1)
        precision = np.where(occurs, found / np.maximum(named, 1), 0).sum(axis=1) / labels
        recall = np.where(occurs, found / np.maximum(positives, 1), 0).sum(axis=1) / labels
        f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-300)
        samples = taken @ of_sample / np.maximum(taken @ labeled, 1)
        return np.stack([precision, recall, f1, samples], axis=1)

    return measures


TARGETS = ("RMSE", "MAE", "R2")
"""What `target_measures` gives."""


def target_measures(Y: np.ndarray, P: np.ndarray) -> Measures:
    """Measures of predictions of real targets, for resamples.

    Y, P (n, L)
    """
    known = ~np.isnan(Y)
    center = np.nanmean(Y, axis=0)  # sums of squares of centered targets lose no digits
    y = np.where(known, Y - center, 0.0)
    errors = np.where(known, Y - P, 0.0)

    def measures(taken: np.ndarray) -> np.ndarray:
        count = np.maximum(taken @ known, 1)
        squares, sums = taken @ errors**2, taken @ y
        spread = taken @ y**2 - sums**2 / count
        r2 = 1 - squares / np.where(spread > 0, spread, np.inf)  # a resample may hold one value only
        absolute = taken @ np.abs(errors) / count
        return np.stack([np.sqrt(squares / count).mean(axis=1), absolute.mean(axis=1), r2.mean(axis=1)], axis=1)

    return measures
