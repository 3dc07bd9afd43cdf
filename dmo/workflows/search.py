"""Search in an embedding space: nearest neighbors of a sample, and samples that match labels."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

import numpy as np

from dmo import stores
from dmo.blocks import row_blocks
from dmo.errors import UserError
from dmo.features import Extractor
from dmo.hashing import digest
from dmo.workflows.apply import AppliedModel, finished_rows, rows_of, write_rows
from dmo.workflows.program import Session


class Places:
    """Samples in an embedding space (m x p), searched by cosine similarity of the centered rows."""

    # A query is one float32 product with all directions. Its error is far below 1e-4, so rows within 1e-4 of the best
    # are compared again in float64.

    def __init__(self, Z: np.ndarray):
        self.rows, self.origin = Z, Z.mean(axis=0, dtype=np.float64)
        self.directions = np.empty(Z.shape, np.float32)
        for where in row_blocks(len(Z), 1024):
            self.directions[where] = self._seen(Z[where])

    def _seen(self, Z: np.ndarray) -> np.ndarray:
        """Normalize centered rows to unit length, in float64; rows equal to the mean become 0."""
        found = np.asarray(Z, np.float64) - self.origin
        lengths = np.sqrt(np.einsum("...i,...i->...", found, found))[..., None]
        found /= np.where(lengths > 0, lengths, 1.0)
        return found

    def nearest(self, query: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows nearest to a query (p) and their cosine similarities."""
        q, count = self._seen(query), min(count, len(self.rows))
        rough = self.directions @ q.astype(np.float32)
        near = np.flatnonzero(rough >= np.partition(rough, -count)[-count] - 1e-4)
        cosines = self._seen(self.rows[near]) @ q
        chosen = best(cosines, count)
        return near[chosen], cosines[chosen]


def answering(scores: np.ndarray, labels: Sequence[int]) -> np.ndarray:
    """Compute how well samples match several labels: the mean of the standardized scores of these labels.

    scores (m, L) -> (m,)
    """
    # If scores are linear in the embedding, this ranks samples by an inner product with one direction, the sum of the
    # directions of the labels.
    asked = np.asarray(scores, dtype=np.float64)[:, list(labels)]
    spread = asked.std(axis=0)
    return ((asked - asked.mean(axis=0)) / np.where(spread > 0, spread, 1.0)).mean(axis=1)


def best(values: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the largest values in descending order.

    values (m,)
    """
    return np.argsort(-values, kind="stable")[:count]


def labels_in_common(
    known: np.ndarray, Y: np.ndarray, queries: np.ndarray, truth: np.ndarray, count: int = 10
) -> float:
    """Compute the mean Jaccard similarity between the labels of queries and their nearest samples.

    known (n, p); Y (n, L); queries (m, p); truth (m, L)
    """
    found, places = [], Places(known)
    for query, labels in zip(queries, truth, strict=True):
        near = Y[places.nearest(query, count)[0]]
        found.append(float(((near & labels).sum(axis=1) / np.maximum((near | labels).sum(axis=1), 1)).mean()))
    return float(np.mean(found))


def of_sample(applied: AppliedModel, name: str) -> dict[str, Any]:
    """Return the views of one sample of the store.

    -> (1, d)
    """
    known = applied.store.sample_ids
    ids = [str(i) for i in range(applied.store.n_samples)] if known is None else known
    if name not in ids:
        near = get_close_matches(name, ids, 1, cutoff=0.0)
        raise UserError(
            f"--sample {name}: {applied.store.url} does not contain this sample; its ids look like {near[0]!r}"
        )
    row = ids.index(name)
    return {view: applied.store.views[view][row : row + 1] for view in applied.views}


def of_image(model: str, path: str) -> dict[str, Any]:
    """Extract the features of an image file as for the model's training images.

    -> (1, d)
    """
    return {view: row[None, :] for view, row in Extractor.load(model).describe(path).items()}


def weighted(applied: AppliedModel, weights: Mapping[str, float]) -> AppliedModel:
    """Multiply the coordinates of each view by a weight and return the modified model."""
    parts = getattr(applied.model, "expansions_", {})
    if not hasattr(applied.model, "transform") or set(parts) != set(applied.views) or len(parts) < 2:
        raise UserError(
            f"--view-weight: this {type(applied.model).__name__} has no coordinates of single views; leave it out, or "
            "search by a KGHA of several views"
        )
    for view, weight in weights.items():
        if view not in parts or not 0 <= weight < np.inf:
            raise UserError(f"--view-weight {view}={weight:g}: pass numbers of at least 0 for {', '.join(parts)}")
    if not any(weights.get(view, 1.0) for view in parts):
        raise UserError("--view-weight: all views have weight 0; pass a positive weight for at least one view")
    model, shares = copy.copy(applied.model), {view: weights.get(view, 1.0) for view in parts}
    model.expansions_ = {
        view: replace(part, coefficients=shares[view] * part.coefficients, offset=shares[view] * part.offset)
        for view, part in parts.items()
    }
    return replace(applied, model=model, contents=digest(applied.contents, shares))


Compute = Callable[[Mapping[str, Any]], np.ndarray]
"""Function from views of m rows to an m x p array."""


def space(applied: AppliedModel) -> tuple[str, Compute]:
    """Return the name and function of the search space; models without an embedding use label scores."""
    if hasattr(applied.model, "transform"):
        return "embedding", applied.model.transform
    return "scores", applied.scores


def all_rows(
    run: Session, applied: AppliedModel, kind: str, compute: Compute, index: str | None, parents: Sequence[str]
) -> np.ndarray:
    """Compute rows of all samples, or read them from the result store `index` of this model and these samples.

    -> (m, p)
    """
    if index is None:
        return rows_of(applied, compute, f"{kind} of samples")
    kept = finished_rows(index)
    if kept is not None and kept.kind != kind:
        raise UserError(f"--index {index} holds {kept.kind}, but {kind} are needed; choose another path")
    if kept is None or kept.root["provenance"]["parameters"].get("contents") != applied.sources:
        if kept is not None:
            run.note(f"{index} belongs to another model or other samples and is computed again")
        width = compute(applied.some(slice(0, 1))).shape[1]
        write_rows(run, applied, compute, index, width, kind, parents=parents, overwrite=kept is not None)
        kept = stores.open_results(index)
    return kept[:]


def found_rows(applied: AppliedModel, rows: np.ndarray, values: np.ndarray) -> list[dict[str, Any]]:
    """Return the search results with ids, values and labels.

    rows, values (k,)
    """
    ids, names = applied.ids, applied.store.label_names
    found = []
    for i, value in zip(rows, values, strict=True):
        entry: dict[str, Any] = {"sample": ids[i], "value": round(float(value), 6)}
        if applied.Y is not None and applied.store.real_labels:
            entry["values"] = dict(zip(applied.label_names(), applied.Y[i].tolist(), strict=True))
        elif applied.Y is not None and names is not None:
            entry["labels"] = [names[j] for j in np.flatnonzero(applied.Y[i] == 1)]
        found.append(entry)
    return found
