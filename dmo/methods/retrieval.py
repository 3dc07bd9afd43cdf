"""Search in a learnt space: the samples nearest to a sample, and those that labels ask for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def similar(Z: np.ndarray, query: np.ndarray, origin: np.ndarray | None = None) -> np.ndarray:
    """Cosine of the angle between every sample and a query, seen from `origin`: m float64 in -1..1.

    Arguments: `Z`, m x p; `query`, p; `origin`, p (default: the mean of Z). A sample at the origin has 0.
    """
    origin = Z.mean(axis=0) if origin is None else origin
    rows, q = np.asarray(Z, dtype=np.float64) - origin, np.asarray(query, dtype=np.float64) - origin
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(q)
    return np.divide(rows @ q, lengths, out=np.zeros(len(rows)), where=lengths > 0)


def answering(scores: np.ndarray, labels: Sequence[int]) -> np.ndarray:
    """How well samples answer to several labels: the mean of these labels' scores, each standardised: m float64.

    Arguments: `scores`, m x L label scores of the samples that are searched; `labels`, column numbers. For scores that
    are linear in the learnt space this ranks by the inner product with one direction, the sum of the labels' own.
    """
    asked = np.asarray(scores, dtype=np.float64)[:, list(labels)]
    spread = asked.std(axis=0)
    return ((asked - asked.mean(axis=0)) / np.where(spread > 0, spread, 1.0)).mean(axis=1)


def best(values: np.ndarray, count: int) -> np.ndarray:
    """The numbers of the `count` largest values, largest first; ties: the lower number first."""
    return np.argsort(-values, kind="stable")[:count]
