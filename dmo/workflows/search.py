"""Search in an embedding for the nearest neighbors of a sample, and for samples that match labels."""

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
    """Index of embedded samples that finds the nearest neighbors by cosine similarity of centered rows."""

    # First, the similarities of a query to all rows are computed in float32, with an error far below 1e-4. Rows whose
    # similarity is within 1e-4 of the best ones are then compared in float64.

    def __init__(self, Z: np.ndarray):
        self.rows, self.origin = Z, Z.mean(axis=0, dtype=np.float64)
        self.directions = np.empty(Z.shape, np.float32)
        for where in row_blocks(len(Z), 1024):
            self.directions[where] = self._seen(Z[where])

    def _seen(self, Z: np.ndarray) -> np.ndarray:
        """Center rows and normalize them to unit length in float64; rows equal to the mean become 0."""
        found = np.asarray(Z, np.float64) - self.origin
        lengths = np.sqrt(np.einsum("...i,...i->...", found, found))[..., None]
        found /= np.where(lengths > 0, lengths, 1.0)
        return found

    def nearest(self, query: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of the `count` rows nearest to a query, and their cosine similarities."""
        q, count = self._seen(query), min(count, len(self.rows))
        rough = self.directions @ q.astype(np.float32)
        near = np.flatnonzero(rough >= np.partition(rough, -count)[-count] - 1e-4)
        cosines = self._seen(self.rows[near]) @ q
        chosen = best(cosines, count)
        return near[chosen], cosines[chosen]


def answering(scores: np.ndarray, labels: Sequence[int]) -> np.ndarray:
    """Compute how well samples match several labels, as the mean of the standardized scores of these labels."""
    # If the scores are linear in the embedding, the mean of the standardized scores is an inner product with one
    # direction of the embedding: a weighted sum of the directions for the labels.
    asked = np.asarray(scores, dtype=np.float64)[:, list(labels)]
    spread = asked.std(axis=0)
    return ((asked - asked.mean(axis=0)) / np.where(spread > 0, spread, 1.0)).mean(axis=1)


def best(values: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the `count` largest values, largest first."""
    return np.argsort(-values, kind="stable")[:count]


def labels_in_common(
    known: np.ndarray, Y: np.ndarray, queries: np.ndarray, truth: np.ndarray, count: int = 10
) -> float:
    """Compute the mean Jaccard index between the labels `truth` of queries and the labels of their nearest samples.

    `known` and `queries` are embeddings, and `Y` contains the labels of the known samples.
    """
    found, places = [], Places(known)
    for query, labels in zip(queries, truth, strict=True):
        near = Y[places.nearest(query, count)[0]]
        found.append(float(((near & labels).sum(axis=1) / np.maximum((near | labels).sum(axis=1), 1)).mean()))
    return float(np.mean(found))


def of_sample(applied: AppliedModel, name: str) -> dict[str, Any]:
    """Return the row of a sample in each view, as arrays of shape (1, d)."""
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
    """Extract the features of an image file as in training, as arrays of shape (1, d)."""
    return {view: row[None, :] for view, row in Extractor.load(model).describe(path).items()}


def weighted(applied: AppliedModel, weights: Mapping[str, float]) -> AppliedModel:
    """Return a copy of a model in which the contribution of each view to the embedding is multiplied by a weight."""
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
"""Function that computes one row per sample from the rows of all views."""


def space(applied: AppliedModel) -> tuple[str, Compute]:
    """Return the name of the space to search, an embedding or label scores, and the function that computes its rows."""
    if hasattr(applied.model, "transform"):
        return "embedding", applied.model.transform
    return "scores", applied.scores


def all_rows(
    run: Session, applied: AppliedModel, kind: str, compute: Compute, index: str | None, parents: Sequence[str]
) -> np.ndarray:
    """Compute one row per sample, or read the rows from the result store `index` if it has the same inputs.

    If `index` is missing or has other inputs, it is written.
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
    """Describe the samples at the indices `rows` by their ids, search values and labels, for the JSON output."""
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
