"""Commands that evaluate models on labeled samples: `dmo evaluate` and `dmo report`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from dmo import stores, workflows
from dmo.cli.commands import Features, Model, Scheduler, Split, Top, table_arguments, with_reading, words_of
from dmo.cli.session import cost_rows, grid, in_a_line, show
from dmo.cluster import connect
from dmo.errors import UserError
from dmo.formats.sources import is_rows
from dmo.workflows.apply import named_store
from dmo.workflows.program import Session, run_options, session


@with_reading
def evaluate(
    model: Model,
    features: Features,
    top: Top = None,
    split: Split = None,
    cv: Annotated[
        int | None,
        typer.Option(min=2, help="Evaluate by cross-validation with this number of folds."),
    ] = None,
    by_label: Annotated[bool, typer.Option("--by-label", help="Also print metrics of every label or target.")] = False,
    scheduler: Scheduler = None,
    **given: Any,
) -> None:
    """Evaluate the predictions of a model on labeled samples (default: the test split, else all).

    The training samples of the model are excluded by default. With `--split`, all samples of the split are evaluated.
    """
    reading = table_arguments(given)
    for path in (model, *([] if is_rows(features) else [features])):
        stores.describe(path)  # Raise errors about invalid paths before requesting Dask workers.
    evaluation = workflows.evaluation  # Estimators are slow to import, so check the paths first.
    with session() as run, connect(scheduler):
        found = evaluation.judge(model, features, split, top, cv, reading)
        if found.measures.get("auc_macro", 0) is None:
            run.note("AUC is undefined: no label has both positive and negative samples here")
        each = found.by_label(features) if by_label or run_options().json or "r2" in found.measures else []
    applied = found.applied
    record: dict[str, Any] = {"model": model, "store": features, "split": applied.split, "n_samples": applied.n}
    record |= found.measures | {"by_label": each} | run.costs()
    rows = [
        *leading_rows(record),
        ("samples", f"{applied.n} of split {applied.split}" if applied.split else str(applied.n)),
    ]
    rows += figure_rows(record)
    title = f"{model} on {features}{evaluation.trained_on(found.measures)}" + (
        f", {cv}-fold cross-validation" if cv else ""
    )
    show(record, [*rows, *cost_rows(record)], title)
    if by_label:
        grid("", [_COLUMNS.get(key, key) for key in each[0]], [_cells(row) for row in each])


_RANKINGS = {"p_at_k": "P@{k}, mean over samples", "r_at_k": "R@{k}", "f1_at_k": "F1@{k}", "ndcg": "nDCG@{k}"}
_RANKINGS |= {"psp": "PSP@{k}", "lrap": "LRAP", "ranking_loss": "ranking loss"}
_SETS = {
    "f1_samples": "sample F1",
    "precision_samples": "precision of the label sets, mean over samples",
    "recall_samples": "recall of the label sets",
}
_SETS |= {"hamming": "Hamming loss", "subset_accuracy": "subset accuracy"}


_COLUMNS = {"f1": "F1", "auc": "AUC", "rmse": "RMSE", "mae": "MAE", "r2": "R2", "relative_rmse": "relative RMSE"}


def leading_rows(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Format the metrics that fit the task: accuracy of classes, RMSE of every target, or F1 of label sets."""
    if "r2" in record:
        targets = record["by_label"]
        rows = [(f"RMSE of {each['label']}", f"{each['rmse']:.4g}") for each in targets[:12]]
        left = len(targets) - len(rows)
        return [*rows, ("RMSE of others", f"{left} targets; --by-label shows all")] if left else rows
    return [(title, percent(value)) for title, value in workflows.evaluation.leading(record).items()]


def _cells(row: Mapping[str, Any]) -> list[str]:
    """Format the metrics of a label as percentages, and the metrics of a target as numbers in its unit."""
    name, *values, support = row.values()
    return [name, *(f"{value:.4g}" if "rmse" in row else percent(value) for value in values), str(support)]


def figure_rows(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Format metrics as table rows of title and value: percentages for labels, numbers for regression targets."""
    if "r2" in record:
        means = [(f"{title}, mean over targets", f"{record[title.lower()]:.4g}") for title in ("R2", "aRRMSE")]
        return [("targets", str(record["n_targets"])), *means]
    shown = [("labels", f"{record['n_labels']}, of which {record['n_labels_present']} occur in these samples")]
    for key, title in (("precision", "precision"), ("recall", "recall"), ("f1", "F1")):
        shown.append((f"{title} at top {record['top']}", percent(record[key])))
    shown.append(("N+", f"{record['n_plus']} labels predicted correctly for at least one sample"))
    for key, text in _RANKINGS.items():
        if key in record:
            shown.append((text.format(k=record["top"]), percent(record[key])))
    if "coverage" in record:
        shown.append(("coverage", f"{record['coverage']:.2f} labels"))
    if "accuracy" not in record and "set_size" in record:
        shown += [(text, percent(record[key])) for key, text in _SETS.items()]
        shown.append(("labels predicted", f"{record['set_size']:.2f} per sample"))
    return [*shown, ("AUC macro", percent(record["auc_macro"])), ("AUC micro", percent(record["auc_micro"]))]


def _agreement(measures: Mapping[str, Any]) -> str:
    """Format the accuracy of classes or the F1 at k of labels."""
    title, key = ("accuracy", "accuracy") if "accuracy" in measures else ("F1", "f1")
    return f"{title} {percent(measures[key])}"


def percent(share: float | None) -> str:
    """Format a fraction as a percentage such as "28.7 %", and None as a dash."""
    return "-" if share is None else f"{100 * share:.1f} %"


_PATHS = (
    "A model, labeled samples and the HTML file to write. The samples are in a feature store or in files. The "
    "default file is report.html. The charts are also written as PNG files next to it. With --compare, pass two or "
    "more models, or results written by dmo annotate."
)


@with_reading
def report_command(
    paths: Annotated[list[str], typer.Argument(metavar="MODEL [FEATURES] [OUT.html]", help=_PATHS)],
    compare: Annotated[
        bool, typer.Option("--compare", help="Compare models: MODEL MODEL [MODEL ...] [FEATURES] [OUT.html].")
    ] = False,
    sweep: Annotated[
        list[str] | None, typer.Option(help="File with the output of dmo tune --json; repeatable.")
    ] = None,
    top: Top = None,
    split: Split = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    jec: Annotated[bool, typer.Option("--jec", help="Also compare with the nearest training samples (JEC).")] = False,
    **given: Any,
) -> None:
    """Write an HTML page on data, models and predictions (default: for the test split, else for all samples).

    Training samples are excluded unless `--split` is passed. By default, FEATURES is the store of the first model.
    """
    with session() as run:
        models, features, out = _places(run, paths, compare)
        evaluation, page = workflows.evaluation, workflows.report_page  # Import estimators after checking the paths.
        sweeps = [page.read_sweep(path) for path in sweep or ()]
        asked = {"top": top, "split": split, "title": title, **given}
        words = ["dmo", "report", *(["--compare"] if compare else []), *paths]
        words += [word for name, value in asked.items() for word in words_of(name, value)]
        words += [word for path in sweep or () for word in ("--sweep", path)] + (["--jec"] if jec else [])
        stores.check_output_file(out)
        judged = evaluation.judge_together(tuple(dict.fromkeys(models)), features, split, top, table_arguments(given))
        command = shlex.join(words)
        record = page.write_page(run, judged, features, Path(out), title, sweeps=sweeps, jec=jec, command=command)
        record |= run.costs()
    rows = [
        (name + evaluation.trained_on(m), f"R2 {m['r2']:.4g}" if "r2" in m else _agreement(m))
        for name, m in record["methods"].items()
    ]
    line = in_a_line(record, out, *(f"{name} {value}" for name, value in rows))
    rows += [("report", path) for path in record["report"]]
    show(record, [*rows, *cost_rows(record)], f"report on {features}", line)


def _places(run: Session, paths: list[str], compare: bool) -> tuple[list[str], str, str]:
    """Split the paths of `dmo report` into the models, the labeled samples and the HTML page.

    The last path is the page if it ends in .html or .htm, or if it is the third path and `compare` is false.
    """
    *rest, last = paths
    named = (not compare and len(rest) == 2) or Path(last).suffix.lower() in (".html", ".htm")
    rest, out = (rest, last) if named else ([*rest, last], "report.html")
    kinds = ["features" if is_rows(path) else stores.describe(path)["kind"] for path in rest]
    given = [path for path, kind in zip(rest, kinds) if kind == "features"]
    models = [path for path, kind in zip(rest, kinds) if kind != "features"]
    if len(given) > 1 or not models or (len(models) > 1) != compare:
        needed = "at least two models" if compare else "one model (several with --compare)"
        raise UserError(
            f"report: got {len(models)} models or results and {len(given)} feature stores or files; pass {needed}, "
            "labeled samples in a feature store or in files, and a page that ends in .html"
        )
    return models, given[0] if given else _fitted_on(run, models[0]), out


def _fitted_on(run: Session, model: str) -> str:
    """Return the feature store from which a model or a result store was created; raise an error if it is missing."""
    if (named := named_store(model, run.note)) is not None:
        return named
    raise UserError(
        f"report: the feature store from which {model} was made is not available; pass a feature store with labels"
    )
