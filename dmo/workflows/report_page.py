"""Report pages on evaluated models and on hyperparameter searches."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from scipy.stats import bootstrap

import dmo
from dmo import report
from dmo.blocks import cell_blocks
from dmo.errors import UserError, amount
from dmo.formats.files import existing
from dmo.methods.base import SweepResult
from dmo.metrics import annotation_scores, regression_scores, top_label_sets
from dmo.progress import stage
from dmo.report import Table
from dmo.report.canvas import shown
from dmo.report.page import Part
from dmo.workflows.apply import known_labels
from dmo.workflows.evaluation import (
    EvaluatedModel,
    Evaluation,
    chosen_figures,
    figures,
    label_frequency,
    leading,
    nearest_scores,
    trained_on,
)
from dmo.workflows.program import Session
from dmo.workflows.report_figures import (
    confusion,
    draw,
    draw_targets,
    label_f1,
    learning_figures,
    samples,
    sweep_figures,
    varied,
    worst_errors,
)

_RESAMPLES = 2000
_ENTRIES = 2**21
"""Number of bootstrap resamples, and maximum number of sample counts in memory at the same time."""
Measures = Callable[[np.ndarray], np.ndarray]
"""Function that computes metrics from the number of times that each sample occurs in each bootstrap resample."""


def paired_differences(first: Measures, second: Measures, n: int) -> np.ndarray:
    """Compute the differences between the metrics of two models, with 95 % bootstrap confidence intervals.

    Each row of the result contains the difference of a metric, its lower bound and its upper bound.
    """
    # The bootstrap is paired: each resample contains the same samples for both models, so differences in sample
    # difficulty cancel. The intervals are percentile intervals (Efron and Tibshirani 1993, "An introduction to the
    # bootstrap", chapter 13).

    def difference(index: np.ndarray, axis: int = -1) -> np.ndarray:
        index = np.atleast_2d(index)
        shifted = index + n * np.arange(len(index))[:, None]
        taken = np.bincount(shifted.ravel(), minlength=n * len(index)).reshape(len(index), n).astype(np.float64)
        return np.moveaxis(second(taken) - first(taken), 0, -1)

    whole = np.ones((1, n))
    found = (second(whole) - first(whole))[0]
    if n < 2:
        return np.stack([found, np.full_like(found, np.nan), np.full_like(found, np.nan)], axis=1)
    interval = bootstrap(
        (np.arange(n),),
        difference,
        n_resamples=_RESAMPLES,
        batch=max(1, _ENTRIES // n),
        vectorized=True,
        axis=-1,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return np.stack([found, interval.low, interval.high], axis=1)


ANNOTATION = ("precision %", "recall %", "F1 %", "F1 of a sample %")
"""Names of the metrics of `annotation_measures`, in percent."""


def annotation_measures(Y: np.ndarray, scores: np.ndarray, top: int) -> Measures:
    """Return a function that computes precision, recall and F1 at k of bootstrap resamples."""
    parts: list[list[Any]] = [[], [], [], [], []]
    for where in cell_blocks(Y.shape):
        true = Y[where] == 1
        given = (top_label_sets(scores[where], top) == 1) & ~np.isnan(np.asarray(Y[where], np.float64))
        for kept, each in zip(parts, (given & true, given, true)):
            kept.append(scipy.sparse.csr_array(each.astype(np.float64)))
        counts = np.maximum(given.sum(axis=1) + true.sum(axis=1), 1)
        parts[3].append(true.any(axis=1))
        parts[4].append(np.where(true.any(axis=1), 2 * (given & true).sum(axis=1) / counts, 0))
    hits, gave, has = (scipy.sparse.vstack(kept, format="csc") for kept in parts[:3])
    labeled, of_sample = (np.concatenate(kept) for kept in parts[3:])

    def measures(taken: np.ndarray) -> np.ndarray:
        found, named, positives = (taken @ each for each in (hits, gave, has))
        occurs = positives > 0
        labels = np.maximum(occurs.sum(axis=1), 1)
        precision = np.where(occurs, found / np.maximum(named, 1), 0).sum(axis=1) / labels
        recall = np.where(occurs, found / np.maximum(positives, 1), 0).sum(axis=1) / labels
        f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-300)
        samples = taken @ of_sample / np.maximum(taken @ labeled, 1)
        return np.stack([precision, recall, f1, samples], axis=1)

    return measures


TARGETS = ("R2", "aRRMSE")
"""Names of the metrics of `target_measures`."""


def target_measures(Y: np.ndarray, P: np.ndarray) -> Measures:
    """Return a function that computes regression metrics of bootstrap resamples."""
    known = ~np.isnan(Y)
    center = np.nanmean(Y, axis=0)  # Centering avoids cancellation in the sums of squares.
    y = np.where(known, Y - center, 0.0)
    errors = np.where(known, Y - P, 0.0)

    def measures(taken: np.ndarray) -> np.ndarray:
        count = np.maximum(taken @ known, 1)
        squares, sums = taken @ errors**2, taken @ y
        spread = taken @ y**2 - sums**2 / count
        r2 = 1 - squares / np.where(spread > 0, spread, np.inf)  # All targets in a resample may be equal.
        return np.stack([r2.mean(axis=1), np.sqrt(1 - r2).mean(axis=1)], axis=1)

    return measures


def write_page(
    run: Session,
    judged: Sequence[EvaluatedModel],
    features: str,
    out: Path,
    title: str | None,
    *,
    sweeps: Sequence[Mapping[str, Any]] = (),
    jec: bool = False,
    command: str = "",
    lead: str = "",
    more: Sequence[Part] = (),
) -> dict[str, Any]:
    """Write the report page of evaluated models, with the text `lead` at its top and the parts `more` at its end."""
    first = judged[0].applied
    Y = known_labels(first, features)
    names = " and ".join(each.name for each in judged[:2]) + (f" and {len(judged) - 2} more" if len(judged) > 2 else "")
    heading = (title or f"{names} on {Path(features).name}") + trained_on(judged[0].measures)
    made = {"dmo": dmo.__version__, "date": date.today().isoformat()} | ({"command": command} if command else {})
    if first.store.real_labels:
        return _write_targets(judged, Y, out, heading, made)
    evidence = Evaluation(list(judged), first.label_names(), Y, judged[0].measures["top"])
    words = "class" if "accuracy" in judged[0].measures else "labels"
    baselines = {f"the most frequent {words} for all": np.broadcast_to(label_frequency(evidence), Y.shape)}
    if jec:
        baselines = {"JEC, nearest training samples": nearest_scores(evidence)} | baselines
    others = {name: _baseline(evidence, S) for name, S in baselines.items()}
    if evidence.image(0) is None:
        run.note("there are no images to show: the store was not made from images, or their folder no longer exists")
    with stage("draw the report", 1) as advance:
        compared = judged if len(judged) > 1 else ()
        measures = [annotation_measures(Y, each.scores, evidence.top) for each in compared]
        parts: list[Part] = [
            _scores(evidence, others),
            *_differences(judged, measures, ANNOTATION, 100, len(Y)),
            *confusion(evidence),
            samples(evidence),
            *draw(evidence),
            *(
                figure
                for number, found in enumerate(sweeps, 1)
                for figure in sweep_figures(found["table"], found["metric"], f"sweep-{number}")
            ),
            _per_label(evidence),
            *_parameters(evidence.models),
            _views(evidence),
            _costs(evidence),
            *more,
        ]
        kept = [part for part in parts if not isinstance(part, Table) or part.rows]
        files = report.write_report(out, heading, kept, _facts(evidence) | made, lead)
        advance(1)
    return _record(judged, others, files)


def _baseline(evidence: Evaluation, scores: np.ndarray) -> dict[str, Any]:
    """Compute the metrics of a baseline; its predicted classes are those with the highest scores."""
    found = figures(evidence.Y, scores, evidence.top, area=False)
    if "accuracy" not in evidence.first.measures:
        return found
    given = EvaluatedModel("", evidence.first.applied, scores, {}, {}, np.zeros((len(scores), 0))).given(1)
    chosen = chosen_figures(evidence.known, given)
    return found | chosen | {"accuracy": chosen["subset_accuracy"]}


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
    judged: Sequence[EvaluatedModel], Y: np.ndarray, out: Path, heading: str, made: Mapping[str, object]
) -> dict[str, Any]:
    """Write the report page of evaluated regression models."""
    first, names = judged[0], judged[0].applied.label_names()
    rows = [[each.name, each.measures["r2"], each.measures["arrmse"]] for each in judged]
    targets = [regression_scores(Y, each.scores).per_target for each in judged]
    per_target = [
        [
            name,
            *(f"{error:.4g}" for error in targets[0][:2, j]),
            *map(float, targets[0][2:, j]),
            *(float(other[2, j] - targets[0][2, j]) for other in targets[1:]),
        ]
        for j, name in enumerate(names)
    ]
    heads = ["target", "RMSE", "MAE", "R2", "relative RMSE", *(f"R2 of {each.name}, difference" for each in judged[1:])]
    note = f"{first.name}. RMSE and MAE have the unit of the target; relative RMSE: divided by the RMSE of its mean."
    scores = [target_measures(Y, each.scores) for each in judged]
    parts: list[Part] = [
        Table(
            "Predictions",
            ["model", *TARGETS],
            rows,
            best=["R2"],
            note=f"{len(Y)} samples; means over {len(names)} targets. aRRMSE: mean relative RMSE.",
        ),
        *_differences(judged, scores, TARGETS, 1, len(Y)),
        worst_errors(first, Y, names),
        *draw_targets(judged, Y, names),
        Table("Every target", heads, per_target, note=note, interactive=True),
        *_parameters(judged),
    ]
    lead = {title: f"{value:.4g}" for title, value in leading(first.measures).items()}
    facts = {**lead, "data": Path(first.applied.store.url).name, "samples": len(Y), "targets": len(names), **made}
    files = report.write_report(out, heading, parts, facts)
    return _record(judged, {}, files)


def _differences(
    judged: Sequence[EvaluatedModel], measures: Sequence[Measures], names: Sequence[str], factor: float, n: int
) -> list[Table]:
    """Create a table of the differences between the first model and the other models, with confidence intervals.

    The list is empty if there is only one model.
    """
    rows: list[list[object]] = []
    for each, own in zip(judged[1:], measures[1:]):
        found = factor * paired_differences(measures[0], own, n)
        for name, (difference, low, high) in zip(names, found):
            sure = "–" if not (low > 0 or high < 0) else "higher" if low > 0 else "lower"
            rows.append([each.name, name, *(f"{value:+.3g}" for value in (difference, low, high)), sure])
    if not rows:
        return []
    columns = ["model", "measure", "difference", "from", "to", f"than {judged[0].name}"]
    note = (
        "From - to: 95 % interval of the paired bootstrap, which draws the same samples for both models 2,000 times; "
        "–: the interval contains 0, so these samples do not show which model is better."
    )
    if names is ANNOTATION:
        note += " F1 of a sample: mean over samples of 2 hits / (assigned labels + true labels)."
    return [Table(f"Differences from {judged[0].name}", columns, rows, note=note)]


def _parameters(judged: Sequence[EvaluatedModel]) -> list[Table]:
    """Create a table of the parameters of every model. Saved results are omitted, because they have no parameters."""
    found = []
    for each in judged:
        if hasattr(each.applied.model, "get_params"):
            rows = [[name, _plainly(value)] for name, value in each.applied.model.get_params(deep=False).items()]
            found.append(Table(f"Parameters of {each.name}", ["parameter", "value"], rows, folded=True))
    return found


def _plainly(value: object) -> str:
    return "none" if value is None else value if isinstance(value, str) else repr(value)


def read_sweep(path: str) -> dict[str, Any]:
    """Read a JSON file with the output of `dmo tune --json`."""
    file = existing(path)
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        table, metric = found["table"], found["metric"]
        is_sweep = bool(table) and all("mean" in row and len(row) > 4 for row in table)
    except (ValueError, KeyError, TypeError, RecursionError):
        is_sweep = False
    if not is_sweep:
        raise UserError(f"{path} is not the output of dmo tune --json; create it with dmo tune ... --json > {path}")
    return {"table": table, "metric": metric, "model": str(found.get("model", path))}


def _facts(evidence: Evaluation) -> dict[str, object]:
    """Return facts about the data set for the top of the page, such as the number of samples and the license."""
    store, Y = evidence.store, evidence.Y
    facts: dict[str, object] = {
        title: f"{100 * value:.1f} %" for title, value in leading(evidence.first.measures).items()
    }
    facts["data"] = store.attributes.get("title") or Path(store.url).name
    facts["samples"] = store.n_samples
    if store.split is not None:
        facts |= {f"{name} samples": int((store.split == name).sum()) for name in dict.fromkeys(store.split.tolist())}
    facts["views"] = len(store.views)
    if store.class_labels:
        facts["classes"] = len(evidence.names)
    else:
        facts |= {"labels": len(evidence.names), "labels a sample": round(float(Y.sum(axis=1).mean()), 2)}
    parameters = store.provenance.get("parameters", {})
    facts |= {"images left out": len(parameters["unreadable"])} if parameters.get("unreadable") else {}
    facts |= {key: store.attributes[key] for key in ("license", "citation") if store.attributes.get(key)}
    return facts


def _scores(evidence: Evaluation, others: Mapping[str, Mapping[str, Any]]) -> Table:
    shared = {"precision %": "precision", "recall %": "recall"}
    areas = {"AUC macro %": "auc_macro", "AUC micro %": "auc_micro"}
    of_classes = "accuracy" in evidence.first.measures
    if of_classes:
        named = {"accuracy %": "accuracy", "macro F1 %": "f1_macro", **shared, **areas}
    else:
        named = {**shared, "F1 %": "f1", "N+": "n_plus", **areas, "micro F1 of sets %": "f1_micro"}
    columns, keys = ["model", *named], named.values()

    def cells(measures: Mapping[str, Any]) -> list[object]:
        values = [measures.get(key) for key in keys]
        return [v if v is None or key == "n_plus" else 100 * v for key, v in zip(keys, values)]

    rows = [[each.name, *cells(each.measures)] for each in evidence.models]
    rows += [[name, *cells(measures)] for name, measures in others.items()]
    split = evidence.first.applied.split
    labels = "1 label" if evidence.top == 1 else f"{evidence.top} labels"
    excluded = evidence.first.applied.excluded
    without = f" without {excluded} that a model was trained on" if excluded else ""
    note = f"{len(evidence.Y)} samples{f' of split {split}' if split else ''}{without}"
    if of_classes:
        note += "; precision and recall are means over the classes that occur."
    else:
        note += (
            f", {labels} each; precision and recall are means over the labels that occur; N+: labels found at least "
            "once; sets: the labels that the model assigns."
        )
    return Table("Classification" if of_classes else "Annotation", columns, rows, best=columns[1:], note=note)


def _views(evidence: Evaluation) -> Table:
    store = evidence.store
    rows = []
    for name in store.views:
        info = store.view_info(name)
        kind = ("sparse " if info.kind == "sparse" else "") + ("histogram" if info.histogram else "features")
        rows.append([name, info.dimension, info.dtype.name, kind])
    return Table("Views", ["view", "columns", "type", "kind"], rows, folded=True)


def _costs(evidence: Evaluation) -> Table:
    """Create a table of the planned and actual costs of fits, for models that were saved with a plan."""
    columns = ["model", "seconds taken", "kernels and factors planned", "peak memory", "model on disk"]
    rows: list[list[object]] = []
    for each in evidence.models:
        plan, size = each.costs.get("plan"), amount(each.costs["model_bytes"])
        if plan is not None:
            held = amount(plan["kernel_bytes"] + plan["factor_bytes"])
            peak = amount(each.costs["peak_memory_bytes"])
            rows.append([each.name, each.costs["seconds"], held, peak, size])
    note = "Peak memory includes the whole process with its libraries."
    return Table("Plan and fact", columns, rows, note=note, folded=True)


def _per_label(evidence: Evaluation) -> Table:
    first, Y = evidence.first, evidence.Y
    found = annotation_scores(evidence.known, first.scores, evidence.top)
    average = evidence.average_precision
    frequency, f1 = label_frequency(evidence), label_f1(evidence, first)
    others = [label_f1(evidence, each) - f1 for each in evidence.models[1:]]
    rows: list[list[object]] = []
    for j in np.argsort(-Y.sum(axis=0, dtype=np.int64), kind="stable").tolist():
        values = [100 * found.per_label_precision[j], 100 * found.per_label_recall[j], f1[j]]
        shares: Sequence[float | None] = [None] * (4 + len(others))
        if np.isfinite(average[j]):
            shares = [float(v) for v in (*values, 100 * average[j], *(other[j] for other in others))]
        rows.append([evidence.names[j], 100 * float(frequency[j]), int(Y[:, j].sum()), *shares])
    columns = ["label", "of training samples %", "samples", "precision %", "recall %", "F1 %", "average precision %"]
    columns += [f"F1 of {each.name}, difference" for each in evidence.models[1:]]
    labels = "1 label" if evidence.top == 1 else f"{evidence.top} labels"
    note = f"{first.name}, {labels} per sample. Click a column header to sort; type text to filter labels."
    return Table("Every label", columns, rows, note=note, interactive=True)


def write_sweep(
    result: SweepResult, title: str, path: str, curve: Sequence[tuple[int, float, float]] = ()
) -> list[str]:
    """Write the report page of a hyperparameter search, with a figure of the scores and a table of all candidates."""
    keys = [*varied(result.table), "mean", "std"]
    ranked = sorted(result.table, key=lambda row: -row["mean"])
    rows = [[row.get(key) for key in keys] for row in ranked]
    table = Table("All settings, best first", keys, rows, interactive=True)
    facts = {"metric": result.metric, "settings": result.tried, "best": f"{result.best_score:.4f}"}
    facts |= {"best setting": ", ".join(f"{key} {shown(value)}" for key, value in result.best_params.items())}
    facts |= {"dmo": dmo.__version__, "date": date.today().isoformat()}
    figures = [*sweep_figures(result.table, result.metric), *learning_figures(curve, result.metric)]
    return [str(written) for written in report.write_report(path, title, [*figures, table], facts)]
