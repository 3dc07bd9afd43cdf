"""`dmo evaluate`: a model and a feature store with labels in, figures out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dmo.cli.options import Features, Json, Model, Scheduler, Split, Top
from dmo.cli.session import cost_rows, show
from dmo.cluster import connect
from dmo.workflows.evaluation import judge
from dmo.workflows.program import session


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
        found = judge(model, features, split, top)
        if found.measures["auc_macro"] is None:
            run.note("no label has both positive and negative samples here: no AUC")
    applied = found.applied
    record: dict[str, Any] = {"model": model, "store": features, "split": applied.split, "n_samples": applied.n}
    record |= found.measures | run.costs()
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
