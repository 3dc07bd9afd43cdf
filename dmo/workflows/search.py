"""Search in a learned space: the samples nearest to a sample, and those that labels ask for."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

from dmo.errors import UserError
from dmo.workflows.apply import AppliedModel, rows_of
from dmo.workflows.images import model_extractor


def similar(Z: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Work out how near samples are to a query: cosines of angles, seen from the samples' mean.

    Z (m, p); query (p,) -> (m,)
    """
    origin = Z.mean(axis=0)
    rows, q = np.asarray(Z, dtype=np.float64) - origin, np.asarray(query, dtype=np.float64) - origin
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(q)
    return np.divide(rows @ q, lengths, out=np.zeros(len(rows)), where=lengths > 0)


def answering(scores: np.ndarray, labels: Sequence[int]) -> np.ndarray:
    """Work out how well samples answer to several labels: the mean of these labels' scores, each standardized.

    scores (m, L) -> (m,)
    """
    # For scores that are linear in the learned space this ranks by the inner product with one direction, the sum of
    # the labels' own.
    asked = np.asarray(scores, dtype=np.float64)[:, list(labels)]
    spread = asked.std(axis=0)
    return ((asked - asked.mean(axis=0)) / np.where(spread > 0, spread, 1.0)).mean(axis=1)


def best(values: np.ndarray, count: int) -> np.ndarray:
    """Find the largest values.

    values (m,)
    """
    return np.argsort(-values, kind="stable")[:count]


def labels_in_common(
    known: np.ndarray, Y: np.ndarray, queries: np.ndarray, truth: np.ndarray, count: int = 10
) -> float:
    """Judge a space by its labels: how much those of the nearest samples and of queries have in common.

    known (n, p); Y (n, L); queries (m, p); truth (m, L)
    """
    found = []
    for query, labels in zip(queries, truth, strict=True):
        near = Y[best(similar(known, query), count)]
        found.append(float(((near & labels).sum(axis=1) / np.maximum((near | labels).sum(axis=1), 1)).mean()))
    return float(np.mean(found))


def of_sample(applied: AppliedModel, name: str) -> dict[str, Any]:
    """Take the views of one sample of the store.

    -> (1, d)
    """
    known = applied.store.sample_ids
    ids = [str(i) for i in range(applied.store.n_samples)] if known is None else known
    if name not in ids:
        near = get_close_matches(name, ids, 1, cutoff=0.0)
        raise UserError(f"--sample {name}: {applied.store.url} has no such sample; its ids look like {near[0]!r}")
    row = ids.index(name)
    return {view: applied.store.views[view][row : row + 1] for view in applied.views}


def of_image(model: str, path: str) -> dict[str, Any]:
    """Describe an image in a file as the model's training images were.

    -> (1, d)
    """
    return {view: row[None, :] for view, row in model_extractor(model).describe(path).items()}


def learned_space(applied: AppliedModel, query: dict[str, Any] | None) -> np.ndarray:
    """Place samples in the learned space; a model without one has its label scores instead.

    query (1, d) -> (m, p)
    """
    if not hasattr(applied.model, "transform"):
        return rows_of(applied, applied.scores) if query is None else applied.scores(query)
    if query is not None:
        return applied.model.transform(query)
    return rows_of(applied, lambda views: applied.model.transform(views), "embed samples")


def found_rows(applied: AppliedModel, values: np.ndarray, rows: np.ndarray) -> list[dict[str, Any]]:
    """List the samples that were found.

    values (m,)
    """
    ids, names = applied.ids(), applied.store.label_names
    found = []
    for i in rows:
        entry: dict[str, Any] = {"sample": ids[i], "value": round(float(values[i]), 6)}
        if applied.Y is not None and applied.store.real_labels:
            entry["values"] = dict(zip(applied.label_names(), applied.Y[i].tolist(), strict=True))
        elif applied.Y is not None and names is not None:
            entry["labels"] = [names[j] for j in np.flatnonzero(applied.Y[i] == 1)]
        found.append(entry)
    return found
