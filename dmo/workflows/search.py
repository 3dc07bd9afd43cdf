"""Search in a learnt space: the samples nearest to a sample, and those that labels ask for."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

from dmo.blocks import row_blocks
from dmo.errors import UserError
from dmo.progress import stage
from dmo.workflows.apply import BLOCK, AppliedModel
from dmo.workflows.images import model_extractor


def similar(Z: np.ndarray, query: np.ndarray, origin: np.ndarray | None = None) -> np.ndarray:
    """Cosine of the angle between every sample and a query, seen from `origin`: m float64 in -1..1.

    Arguments: `Z`, m x p; `query`, p; `origin`, p (default: the mean of Z). A sample at the origin has 0.
    """
    origin = Z.mean(axis=0) if origin is None else origin
    rows, q = np.asarray(Z, dtype=np.float64) - origin, np.asarray(query, dtype=np.float64) - origin
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(q)
    return np.divide(rows @ q, lengths, out=np.zeros(len(rows)), where=lengths > 0)


def answering(scores: np.ndarray, labels: Sequence[int]) -> np.ndarray:
    """How well samples answer to several labels: the mean of these labels' scores, each standardized: m float64.

    Arguments: `scores`, m x L label scores of the samples that are searched; `labels`, column numbers. For scores that
    are linear in the learnt space this ranks by the inner product with one direction, the sum of the labels' own.
    """
    asked = np.asarray(scores, dtype=np.float64)[:, list(labels)]
    spread = asked.std(axis=0)
    return ((asked - asked.mean(axis=0)) / np.where(spread > 0, spread, 1.0)).mean(axis=1)


def best(values: np.ndarray, count: int) -> np.ndarray:
    """The numbers of the `count` largest values, largest first; ties: the lower number first."""
    return np.argsort(-values, kind="stable")[:count]


def of_sample(applied: AppliedModel, name: str) -> dict[str, Any]:
    """The views of one sample of the store, by its id, or its row number where the store has no ids."""
    known = applied.store.sample_ids
    ids = [str(i) for i in range(applied.store.n_samples)] if known is None else known
    if name not in ids:
        near = get_close_matches(name, ids, 1, cutoff=0.0)
        raise UserError(f"--sample {name}: {applied.store.url} has no such sample; its ids look like {near[0]!r}")
    row = ids.index(name)
    return {view: applied.store.views[view][row : row + 1] for view in applied.views}


def of_image(model: str, path: str) -> dict[str, Any]:
    """The views of an image in a file, described as the model's training images were."""
    return {view: row[None, :] for view, row in model_extractor(model).describe(path).items()}


def label_scores(applied: AppliedModel) -> np.ndarray:
    scores = np.empty((applied.n, len(applied.label_names())))
    with stage("score samples", applied.n) as advance:
        for where in row_blocks(applied.n, BLOCK):
            scores[where] = applied.scores(applied.batch(where))
            advance(where.stop - where.start)
    return scores


def learnt_space(applied: AppliedModel, query: dict[str, Any] | None) -> np.ndarray:
    """Rows in the learnt space: of the query, or of all samples. A model without one has its label scores instead."""
    if not hasattr(applied.model, "transform"):
        return label_scores(applied) if query is None else applied.scores(query)
    if query is not None:
        return applied.model.transform(query)
    parts = []
    with stage("embed samples", applied.n) as advance:
        for where in row_blocks(applied.n, BLOCK):
            parts.append(applied.model.transform(applied.batch(where)))
            advance(where.stop - where.start)
    return np.concatenate(parts)


def found_rows(applied: AppliedModel, values: np.ndarray, rows: np.ndarray) -> list[dict[str, Any]]:
    """The samples found, best first: id, value, and their own labels where the store has them."""
    ids, names = applied.ids(), applied.store.label_names
    found = []
    for i in rows:
        entry: dict[str, Any] = {"sample": ids[i], "value": round(float(values[i]), 6)}
        if applied.Y is not None and names is not None:
            entry["labels"] = [names[j] for j in np.flatnonzero(applied.Y[i])]
        found.append(entry)
    return found
