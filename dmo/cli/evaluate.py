"""`dmo evaluate`: a model and a feature store with labels in, figures out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from dmo import stores
from dmo.cli.options import Features, Model, Scheduler, Split, Top
from dmo.cli.session import cost_rows, show
from dmo.cluster import connect
from dmo.workflows.program import session


def evaluate(
    model: Model,
    features: Features,
    top: Top = None,
    split: Split = None,
    cv: Annotated[
        int | None,
        typer.Option(min=2, help="Judge fits of its estimator on all but one of so many folds, each on that fold."),
    ] = None,
    scheduler: Scheduler = None,
) -> None:
    """Compare a model's annotation with the labels of samples (default: the test split, else all)."""
    for path in (model, features):
        stores.describe(path)  # before workers are asked for
    from dmo.workflows.evaluation import judge, trained_on  # after what is refused, which needs no estimators

    with session() as run, connect(scheduler):
        found = judge(model, features, split, top, cv)
        seen = found.measures["training_samples"]
        if seen is not None:
            which = "these are" if seen == "all" else "among these are"
            run.note(f"{which} samples that the model was trained on: take others, or --cv 4 for fits without them")
        if found.measures.get("auc_macro", 0) is None:
            run.note("no label has both positive and negative samples here: no AUC")
    applied = found.applied
    record: dict[str, Any] = {"model": model, "store": features, "split": applied.split, "n_samples": applied.n}
    record |= found.measures | run.costs()
    rows = [("samples", f"{applied.n} of split {applied.split}" if applied.split else str(applied.n))]
    rows += figure_rows(record)
    title = f"{model} on {features}{trained_on(found.measures)}" + (f", {cv}-fold cross-validation" if cv else "")
    show(record, [*rows, *cost_rows(record)], title)


_RANKINGS = {"p_at_k": "P@{k}, mean over samples", "r_at_k": "R@{k}", "f1_at_k": "F1@{k}", "ndcg": "nDCG@{k}"}
_RANKINGS |= {"psp": "PSP@{k}", "lrap": "LRAP", "ranking_loss": "ranking loss"}
_SETS = {"f1_micro": "micro F1 of the sets predicted", "f1_macro": "macro F1", "f1_samples": "sample F1"}
_SETS |= {"precision_samples": "precision of the sets, mean over samples", "recall_samples": "recall of the sets"}
_SETS |= {"hamming": "Hamming loss", "subset_accuracy": "subset accuracy"}


def figure_rows(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The measures of `figures` as lines of a table, in percent; those of real targets in their units."""
    if "rmse" in record:
        means = [("RMSE", "rmse"), ("MAE", "mae"), ("R2", "r2"), ("aRRMSE", "arrmse")]
        return [("targets", str(record["n_targets"])), *((title, f"{record[key]:.4g}") for title, key in means)]
    shown = [("labels", f"{record['n_labels']}, of which {record['n_labels_present']} occur in these samples")]
    for key, title in (("precision", "precision"), ("recall", "recall"), ("f1", "F1")):
        shown.append((f"{title} at top {record['top']}", percent(record[key])))
    shown.append(("N+", f"{record['n_plus']} labels with a sample found"))
    for key, text in _RANKINGS.items():
        if key in record:
            shown.append((text.format(k=record["top"]), percent(record[key])))
    if "coverage" in record:
        shown.append(("coverage", f"{record['coverage']:.2f} labels"))
    if "accuracy" in record:
        shown.append(("accuracy", percent(record["accuracy"])))
    elif "set_size" in record:
        shown += [(text, percent(record[key])) for key, text in _SETS.items()]
        shown.append(("labels given", f"{record['set_size']:.2f} a sample"))
    return [*shown, ("AUC macro", percent(record["auc_macro"])), ("AUC micro", percent(record["auc_micro"]))]


def percent(share: float | None) -> str:
    """A fraction as "28.7 %", a dash for None."""
    return "-" if share is None else f"{100 * share:.1f} %"
