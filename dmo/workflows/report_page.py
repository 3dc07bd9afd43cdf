"""The report of a model: the figures and tables of one page."""

from __future__ import annotations

import json as json_
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

import dmo
from dmo import report
from dmo.errors import UserError, amount
from dmo.metrics import annotation_scores, precision_recall_curves, regression_scores
from dmo.progress import stage
from dmo.report import PageFigure, Table
from dmo.stores import check_output_file
from dmo.workflows.apply import known_labels
from dmo.workflows.evaluation import (
    EvaluatedModel,
    Evaluation,
    best_and_worst,
    figures,
    judge,
    label_frequency,
    nearest_scores,
    trained_on,
    words_of,
)
from dmo.workflows.program import Session
from dmo.workflows.report_figures import draw


def write_page(
    run: Session,
    models: Sequence[str],
    features: str,
    out: Path,
    *,
    top: int | None = None,
    split: str | None = None,
    title: str | None = None,
    sweeps: Sequence[Mapping[str, Any]] = (),
    lead: str = "",
    jec: bool = False,
) -> dict[str, Any]:
    """Judge models on the samples of a store and write the page.

    Parameters
    ----------
    run : Session
        Takes the notes.
    models : sequence of str
        Paths; the first is that of the figures.
    features : str
        Path of the feature store.
    out : Path
        HTML file.
    top : int, optional
        Labels that a sample is given.
    split : str, optional
        Samples; default: "test" where the store has it, else all.
    title : str, optional
        Of the page.
    sweeps : sequence of mapping, default=()
        What `read_sweep` found.
    lead : str, default=""
        A sentence below the title.
    jec : bool, default=False
        Compare with JEC.

    Returns
    -------
    dict
        Measures by model, and the files written.

    Examples
    --------
    >>> import numpy as np
    >>> import dmo
    >>> from dmo.datasets.writing import Source, write
    >>> X, Y = np.random.default_rng(0).normal(size=(30, 3)), np.eye(2)[np.arange(30) % 2]
    >>> store = write(Source({"x": X}, Y), "set.zarr")
    >>> dmo.KGHA("linear").fit({"x": X}, Y).save("model.zarr")
    >>> from pathlib import Path
    >>> from dmo.workflows.program import session
    >>> from dmo.workflows.report_page import write_page
    >>> with session(as_json=True) as run:
    ...     record = write_page(run, ["model.zarr"], "set.zarr", Path("page.html"), top=1)
    >>> record["n_samples"], Path("page.html").exists()
    (30, True)
    """
    check_output_file(out)
    judged = [judge(path, features, split, top) for path in dict.fromkeys(models)]
    first = judged[0].applied
    Y = known_labels(first, features)
    heading = (title or f"{judged[0].name} on {Path(features).name}") + trained_on(judged[0].measures)
    for each in judged:
        if where := trained_on(each.measures):
            run.note(f"{each.name}{where}: figures say nothing of new samples; take others, or dmo evaluate --cv 4")
    if first.store.real_labels:
        return _write_targets(judged, Y, out, heading, lead)
    evidence = Evaluation(judged, first.label_names(), np.nan_to_num(Y), judged[0].measures["top"])
    baselines = {"the most frequent labels for all": np.broadcast_to(label_frequency(evidence), Y.shape)}
    if jec:
        baselines = {"JEC, nearest training samples": nearest_scores(evidence)} | baselines
    others = {name: figures(Y, S, evidence.top, area=False) for name, S in baselines.items()}
    with stage("draw the report", 1) as advance:
        images = draw(run, evidence, sweeps)
        tables = [
            _scores(evidence, others),
            _views(evidence),
            _costs(evidence),
            _per_label(evidence),
            *_examples(evidence),
        ]
        files = report.write_report(out, heading, [t for t in tables if t.rows], images, _facts(evidence), lead)
        advance(1)
    return _record(judged, others, files)


def _record(
    judged: Sequence[EvaluatedModel], others: dict[str, dict[str, Any]], files: Sequence[Path]
) -> dict[str, Any]:
    first = judged[0].applied
    return {
        "store": first.store.url,
        "split": first.split,
        "n_samples": first.n,
        "methods": {each.name: each.measures for each in judged} | others,
        "report": [str(path) for path in files],
    }


def _write_targets(
    judged: Sequence[EvaluatedModel], Y: np.ndarray, out: Path, heading: str, lead: str
) -> dict[str, Any]:
    """The page of models of real targets: errors, and predicted against true values."""
    first, names = judged[0], judged[0].applied.label_names()
    columns = {"RMSE": "rmse", "MAE": "mae", "R2": "r2", "aRRMSE": "arrmse"}
    rows = [[each.name, *(each.measures[key] for key in columns.values())] for each in judged]
    targets = regression_scores(Y, first.scores).per_target
    per_target = [[name, *map(float, targets[:, j])] for j, name in enumerate(names)]
    note = "RMSE and MAE are in the units of a target; relative RMSE: over that of its mean."
    tables = [
        Table("Predictions", ["model", *columns], rows, note=f"{len(Y)} samples; means over {len(names)} targets."),
        Table("Every target", ["target", *list(columns)[:3], "relative RMSE"], per_target, note=note, interactive=True),
    ]
    figure = report.predicted_against_true(Y, first.scores, names)
    images = [PageFigure("predicted-against-true", figure, f"Predictions of {first.name}; dashed: perfect ones.")]
    facts = {"data": Path(first.applied.store.url).name, "samples": len(Y), "targets": len(names)}
    files = report.write_report(out, heading, tables, images, facts, lead)
    return _record(judged, {}, files)


def read_sweep(path: str) -> dict[str, Any]:
    """Read the record that `dmo tune --json` printed.

    Parameters
    ----------
    path : str
        JSON file.

    Returns
    -------
    dict
        Its table, metric and model.

    Raises
    ------
    UserError
        Where the file holds something else.

    Examples
    --------
    >>> from pathlib import Path
    >>> from dmo.workflows.report_page import read_sweep
    >>> row = '{"ridge": 0.1, "mean": 0.3, "std": 0.1, "fold 0": 0.2, "fold 1": 0.4}'
    >>> _ = Path("sweep.json").write_text('{"metric": "f1@5", "table": [' + row + "]}")
    >>> read_sweep("sweep.json")["metric"]
    'f1@5'
    """
    try:
        found = json_.loads(Path(path).read_text(encoding="utf-8"))
        table, metric = found["table"], found["metric"]
        is_sweep = bool(table) and all("mean" in row and len(row) > 4 for row in table)
    except (ValueError, KeyError, TypeError):
        is_sweep = False
    if not is_sweep:
        raise UserError(f"{path} is not the output of dmo tune --json; run that with > {path}")
    return {"table": table, "metric": metric, "model": str(found.get("model", path))}


def _facts(evidence: Evaluation) -> dict[str, object]:
    """The data set's card, the model's parameters, version and date, as a strip."""
    store, Y = evidence.store, evidence.Y
    facts: dict[str, object] = {"data": store.attributes.get("title") or Path(store.url).name}
    facts["samples"] = store.n_samples
    if store.split is not None:
        facts |= {f"{name} samples": int((store.split == name).sum()) for name in dict.fromkeys(store.split.tolist())}
    facts |= {
        "views": len(store.views),
        "labels": len(evidence.names),
        "labels a sample": round(float(Y.sum(axis=1).mean()), 2),
    }
    parameters = store.provenance.get("parameters", {})
    facts |= {"images left out": len(parameters["unreadable"])} if parameters.get("unreadable") else {}
    facts |= {key: store.attributes[key] for key in ("license", "citation") if store.attributes.get(key)}
    return facts | {
        "model": repr(evidence.first.applied.model),
        "dmo": dmo.__version__,
        "date": date.today().isoformat(),
    }


def _scores(evidence: Evaluation, others: Mapping[str, Mapping[str, Any]]) -> Table:
    columns = ["model", "precision %", "recall %", "F1 %", "N+", "AUC macro %", "AUC micro %"]
    keys = ("precision", "recall", "f1", "n_plus", "auc_macro", "auc_micro")

    def cells(measures: Mapping[str, Any]) -> list[object]:
        values = [measures[key] for key in keys]
        return [v if v is None or key == "n_plus" else 100 * v for key, v in zip(keys, values)]

    rows = [[each.name, *cells(each.measures)] for each in evidence.models]
    rows += [[name, *cells(measures)] for name, measures in others.items()]
    split = evidence.first.applied.split
    note = (
        f"{len(evidence.Y)} samples{f' of split {split}' if split else ''}, {evidence.top} labels each; precision and "
        "recall are means over the labels that occur; N+: labels found at least once."
    )
    return Table("Annotation", columns, rows, best=columns[1:], note=note)


def _views(evidence: Evaluation) -> Table:
    store = evidence.store
    rows = []
    for name in store.views:
        info = store.view_info(name)
        kind = ("sparse " if info.kind == "sparse" else "") + ("histogram" if info.histogram else "features")
        rows.append([name, info.dimension, info.dtype.name, kind])
    return Table("Views", ["view", "columns", "type", "kind"], rows)


def _costs(evidence: Evaluation) -> Table:
    """What was planned before the fit, and what it took; only for models that recorded it."""
    columns = [
        "model",
        "seconds planned",
        "seconds taken",
        "kernels and factors planned",
        "peak memory",
        "model on disk",
    ]
    rows: list[list[object]] = []
    for each in evidence.models:
        plan, size = each.costs.get("plan"), amount(each.costs["model_bytes"])
        if plan is not None:
            held = amount(plan["kernel_bytes"] + plan["factor_bytes"])
            peak = amount(each.costs["peak_memory_bytes"])
            rows.append([each.name, plan["seconds"], each.costs["seconds"], held, peak, size])
    return Table("Plan and fact", columns, rows, note="Peak memory is that of the whole process, with its libraries.")


def _per_label(evidence: Evaluation) -> Table:
    first, Y = evidence.first, evidence.Y
    found = annotation_scores(Y, first.scores, evidence.top)
    average = {curve.label: curve.average_precision for curve in precision_recall_curves(Y, first.scores)}
    frequency = label_frequency(evidence)
    rows: list[list[object]] = []
    for j in np.argsort(-Y.sum(axis=0), kind="stable"):
        p, r = float(found.per_label_precision[j]), float(found.per_label_recall[j])
        occurs = bool(Y[:, j].any())
        f1 = 2 * p * r / (p + r) if occurs and p + r > 0 else 0.0
        shares = [100 * v for v in (p, r, f1, average[int(j)])] if occurs else [None] * 4
        rows.append([evidence.names[j], 100 * float(frequency[j]), int(Y[:, j].sum()), *shares])
    columns = ["label", "of training samples %", "samples", "precision %", "recall %", "F1 %", "average precision %"]
    note = f"{first.name}, {evidence.top} labels a sample. Press a column's head to sort; type a part of a label to filter."
    return Table("Every label", columns, rows, note=note, interactive=True)


def _examples(evidence: Evaluation) -> list[Table]:
    """Best and worst annotations as tables, for samples without images."""
    if len(evidence.Y) == 0 or evidence.image(0) is not None:
        return []
    ids, tables = evidence.first.applied.ids(), []
    for caption, rows in zip(("Best annotations", "Worst annotations"), best_and_worst(evidence)):
        cells = [[ids[i], *(", ".join(words) for words in words_of(evidence, int(i)))] for i in rows]
        tables.append(Table(caption, ["sample", "its labels", "labels given, best first"], cells))
    return tables
