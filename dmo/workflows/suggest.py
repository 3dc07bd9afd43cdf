"""Samples whose labels are worth a look, for annotation tools; `dmo.workflows.answers` takes in what these give back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dmo.errors import UserError, visible
from dmo.formats.labels import SEPARATORS
from dmo.workflows.answers import labeled_rows, names_of, with_answers
from dmo.workflows.apply import ALL, SCORES, AppliedModel, csv_text, guarded, open_applied, rows_of

KINDS = ("uncertain", "wrong", "different")
_DOUBTS = 0.5
HELD_OUT = ("test", "val", "valid", "validation", "dev")
"""Splits whose samples models are judged by: nobody is asked for their labels, which `dmo update` would learn."""


def open_suggested(model: str, features: str, split: str | None) -> AppliedModel:
    """A model and the samples of a split that may be suggested; of none those that no split holds out."""
    applied = open_applied(model, features, split, ALL, SCORES)
    if split is not None or applied.store.split is None:
        return applied
    rows = np.flatnonzero(~np.isin(applied.store.split, HELD_OUT))
    if not len(rows):
        raise UserError(
            f"{features} has samples of {', '.join(applied.store.splits)} alone; pass --split with one of them"
        )
    return applied.keep(rows)


def suggestions(
    applied: AppliedModel,
    count: int,
    kinds: Sequence[str] = KINDS,
    answers: Mapping[str, Sequence[str]] | None = None,
) -> list[dict[str, Any]]:
    """List samples worth a look, those of each kind by their value, highest first."""
    # "uncertain": samples without labels of which most decisions are expected to be wrong, sum_l min(p_l, 1 - p_l).
    # "wrong": labeled samples with a label that probabilities from other folds contradict most, max_l |y_l - p_l|.
    # "different": samples without labels that are farthest, in the learned space or that of the scores, from the
    # labeled samples and from those that were suggested before them. Samples that people have answered for are
    # labeled as they said, and not listed again.
    from dmo.decide.out_of_fold import out_of_fold_scores  # these here: `dmo suggest --help` needs no estimators
    from dmo.inputs import Data

    model, ids, names = applied.model, applied.ids, names_of(applied)
    if getattr(model, "decoding_", None) is None:
        raise UserError(
            f"a {type(model).__name__} without probabilities cannot say what is doubtful; pass decoder= to its fit"
        )
    Y = np.zeros((applied.n, len(names)), np.uint8) if applied.Y is None else applied.Y
    labeled, looked_at = labeled_rows(Y), np.zeros(len(Y), bool)
    place = {sample: row for row, sample in enumerate(ids)}
    by_row = {place[sample]: labels for sample, labels in (answers or {}).items() if sample in place}
    if by_row:
        Y = with_answers(Y, by_row, names)
        labeled[list(by_row)] = looked_at[list(by_row)] = True
    unknown, Y = np.isnan(Y), np.nan_to_num(Y).astype(np.uint8)
    p = rows_of(applied, lambda views: np.asarray(model.predict_proba(views)))
    likeliest = rows_of(applied, lambda views: model.decide(views).numbers(model.most_labels()))
    found: list[dict[str, Any]] = []

    def add(why: str, rows: np.ndarray, values: np.ndarray, doubts: list[list[str]] | None = None) -> None:
        for place, (row, value) in enumerate(zip(rows, values, strict=True)):
            entry = {"sample": ids[row], "why": why, "value": float(value)}
            entry |= {"labels": [names[label] for label in likeliest[row] if label >= 0]}
            found.append(entry if doubts is None else entry | {"doubts": doubts[place]})

    for why in kinds:
        rest = np.flatnonzero(~labeled)
        if why == "uncertain" and len(rest):
            value = np.minimum(p, 1 - p)[rest].sum(axis=1)
            best = np.argsort(-value, kind="stable")[:count]
            add(why, rest[best], value[best])
        elif why == "wrong" and labeled.sum() > 1:
            rows = np.flatnonzero(labeled)
            own = model._checked(applied.some(rows))
            known = ~unknown[rows] if unknown[rows].any() else None
            scores = model._calibrated(out_of_fold_scores(model, Data.of(own, Y[rows], known=known)))
            held = model._shared(model.decoding_.probabilities(scores))
            off = np.where(unknown[rows], 0.0, np.abs(Y[rows] - held))
            rows, off = rows[~looked_at[rows]], off[~looked_at[rows]]
            best = np.argsort(-off.max(axis=1), kind="stable")[:count]
            doubts = [[names[label] for label in np.argsort(-off[i]) if off[i, label] > _DOUBTS] for i in best]
            add(why, rows[best], off[best].max(axis=1), doubts)
        elif why == "different" and len(rest):
            Z = rows_of(applied, model.transform) if hasattr(model, "transform") else p
            chosen, far = _farthest(Z[rest], Z[labeled], count)
            add(why, rest[chosen], far)
    return found


def _farthest(new: np.ndarray, known: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows, distances): one after the other the row farthest from `known` rows and from those before it."""
    if len(known):
        from sklearn.metrics import pairwise_distances_argmin_min

        distance = np.asarray(pairwise_distances_argmin_min(new, known)[1])
    else:
        distance = np.linalg.norm(new - new.mean(axis=0), axis=1)
    rows, values = [], []
    for _ in range(min(count, len(new))):
        row = int(distance.argmax())
        rows.append(row)
        values.append(float(distance[row]))
        distance = np.minimum(distance, np.linalg.norm(new - new[row], axis=1))
        distance[row] = -1.0
    return np.array(rows, int), np.array(values)


def as_label_studio(found: Sequence[dict[str, Any]], prefix: str, version: str) -> str:
    """Write suggestions as tasks of Label Studio, with the likeliest labels as predictions of a `Choices` named
    "labels".
    """
    tasks = []
    for entry in found:
        choice = {"from_name": "labels", "to_name": "image", "type": "choices", "value": {"choices": entry["labels"]}}
        predictions = [{"model_version": version, "score": entry["value"], "result": [choice]}]
        data = {"image": prefix + entry["sample"]} | {k: v for k, v in entry.items() if k != "labels"}
        tasks.append({"data": data, "predictions": predictions})
    return json.dumps(tasks, ensure_ascii=False)


def as_csv(found: Sequence[dict[str, Any]], prefix: str) -> str:
    """Write suggestions as a table with a column `filepath`, as FiftyOne's CSVDataset reads it."""
    # The column `suggested` repeats the labels: `dmo update` takes the table when someone has changed some of the
    # labels. Labels with a mark in them that stands between labels are written as {"choices": labels}.
    #
    # Cells that a spreadsheet would run as a formula are guarded as in `dmo.workflows.apply.as_csv`; a path must stay
    # one, and gets "./" before it instead.
    lines = [["filepath", "sample", "why", "value", "labels", "doubts", "suggested"]]
    for entry in found:
        path = prefix + entry["sample"]
        lists = (_cell(entry.get(key, [])) for key in ("labels", "doubts", "labels"))
        path = visible(path) if guarded(path) == visible(path) else f"./{visible(path)}"
        lines.append([path, guarded(entry["sample"]), entry["why"], entry["value"], *lists])
    return csv_text(lines)


def _cell(labels: Sequence[str]) -> str:
    """Labels in a cell, from which `dmo.workflows.answers` reads them."""
    plain = not any(set(SEPARATORS) & set(label) or label.startswith(("{", "[{")) for label in labels)
    return guarded(";".join(labels)) if plain else json.dumps({"choices": list(labels)})
