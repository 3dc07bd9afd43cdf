"""`dmo evaluate`: a model and a feature store with labels in, figures out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dmo.blocks import row_blocks
from dmo.cli.options import Features, Json, Model, Scheduler, Split, Top
from dmo.cli.session import cost_rows, show
from dmo.cluster import connect
from dmo.cluster.workers import each
from dmo.metrics import AUCScores, annotation_scores, auc_scores
from dmo.workflows.apply import BLOCK, SCORES, known_labels, label_count, open_applied
from dmo.workflows.evaluation import figures
from dmo.workflows.program import Session, session


def evaluate(
    model: Model,
    features: Features,
    top: Top = None,
    split: Split = None,
    scheduler: Scheduler = None,
    json: Json = False,
) -> None:
    """Compare a model's annotation with the labels of samples (default: the test split, else all)."""
    with session(json) as run, connect(scheduler):
        applied = open_applied(model, features, split, "test", SCORES)
        Y = known_labels(applied, features)
        scores = np.empty(Y.shape)
        places = row_blocks(applied.n, 4 * BLOCK)

        def score(i: int) -> np.ndarray:
            return applied.scores(applied.batch(places[i]))

        for i, found in each("score samples", score, range(len(places))):
            scores[places[i]] = found
        annotated = annotation_scores(Y, scores, label_count(top, applied.model))
        area = _area(run, Y, scores)
    record: dict[str, Any] = {"model": model, "store": features, "split": applied.split, "n_samples": applied.n}
    record |= figures(annotated, area) | run.costs()
    rows = [("samples", f"{applied.n} of split {applied.split}" if applied.split else str(applied.n))]
    rows += figure_rows(record)
    show(record, [*rows, *cost_rows(record)], f"{model} on {features}", json)


def figure_rows(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The measures of `figures` as lines of a table, in percent."""
    shown = [("labels", f"{record['n_labels']}, of which {record['n_labels_present']} occur in these samples")]
    for key, title in (("precision", "precision"), ("recall", "recall"), ("f1", "F1")):
        shown.append((f"{title} at top {record['top']}", percent(record[key])))
    shown.append(("N+", f"{record['n_plus']} labels with a sample found"))
    return [*shown, ("AUC macro", percent(record["auc_macro"])), ("AUC micro", percent(record["auc_micro"]))]


def percent(share: float | None) -> str:
    """A fraction as "28.7 %", a dash for None."""
    return "-" if share is None else f"{100 * share:.1f} %"


def _area(run: Session, Y: np.ndarray, scores: np.ndarray) -> AUCScores | None:
    if not ((Y.any(axis=0)) & (~Y.astype(bool)).any(axis=0)).any():
        run.note("no label has both positive and negative samples here: no AUC")
        return None
    return auc_scores(Y, scores)
