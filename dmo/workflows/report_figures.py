"""Figures of `dmo report`, each with a text alternative for readers who cannot see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse

from dmo import report
from dmo.blocks import Subset, cell_blocks, rows
from dmo.methods.annotator import Decision
from dmo.metrics import annotation_scores, regression_scores
from dmo.report import PageFigure, Samples, Table
from dmo.report.canvas import shown
from dmo.report.figures import pooled_measures, reliability, together
from dmo.stores.temporary import rows_on_disk
from dmo.workflows.apply import AppliedModel, columns_of, schema_of
from dmo.workflows.evaluation import EvaluatedModel, Evaluation, by_quality, store_labels

_CLASSES = 20
"""Maximum number of classes in a confusion matrix, which shows the most frequent classes."""


def samples(evidence: Evaluation) -> Samples:
    """Create the searchable samples of a report page."""
    scores, name = evidence.comparable
    given = {each.name: each.given(evidence.top) for each in evidence.models}
    width = max(1, max(int(labels.sum(axis=1).max()) for labels in given.values()))
    places = cell_blocks(evidence.Y.shape)
    ranked = {}
    for each in evidence.models:
        sets = given[each.name]
        blocks = ((where, [Decision(each.scores[where], sets[where] > 0).numbers(width)]) for where in places)
        (ranked[each.name],) = rows_on_disk(len(sets), blocks)
    has_images = any(evidence.image(i) is not None for i in range(min(3, len(evidence.Y))))
    return Samples(
        evidence.first.applied.ids,
        evidence.names,
        evidence.known,
        scores,
        ranked,
        by_quality(evidence.Y, evidence.first.scores, given[evidence.first.name]),
        evidence.planes,
        name,
        evidence.image if has_images else None,
        lambda rows: feature_values(evidence.first.applied, rows),
        f"Samples and their labels ({evidence.first.name})",
    )


def feature_values(applied: AppliedModel, numbers: np.ndarray) -> dict[str, list[float | str | None]]:
    """Return the cells of samples of a table: all columns, or the eight with the most distinct values."""
    kept, found = columns_of(applied.store, applied.model) if hasattr(applied.model, "view_widths_") else {}, []
    for view, about in kept.items():
        X = rows(Subset(applied.views[view].source, applied.views[view].index[numbers]))
        if scipy.sparse.issparse(X):
            continue
        first = 0
        for column in schema_of(about).columns:
            values = np.asarray(X[:, first : first + len(column.features)], np.float64)
            first += values.shape[1]
            distinct = int((values == 1).any(axis=0).sum()) if column.kind == "category" else len(np.unique(values))
            name = f"{view}: {column.name}" if len(kept) > 1 else column.name
            found.append((distinct, name, column, values))
    most = sorted(sorted(range(len(found)), key=lambda j: -found[j][0])[:8])
    return {name: column.cells(values) for _, name, column, values in (found[j] for j in most)}


def draw(evidence: Evaluation) -> list[PageFigure]:
    """Create all figures of a report on label predictions."""
    return [
        _precision_recall(evidence),
        *_calibration(evidence),
        *_thresholds(evidence),
        *_label_counts(evidence),
        *_differences(evidence),
        *_cooccurrence(evidence),
        *_space(evidence),
    ]


def _precision_recall(evidence: Evaluation) -> PageFigure:
    scores = {each.name: each.scores for each in evidence.models}
    figure = report.precision_recall_per_label(evidence.known, scores, evidence.names)
    average = evidence.average_precision
    ranked = np.argsort(-average, kind="stable")[: np.isfinite(average).sum()]
    best, worst = int(ranked[0]), int(ranked[-1])
    alt = (
        f"Average precision of {evidence.first.name} on {len(ranked)} labels: highest {average[best]:.2f} "
        f"({evidence.names[best]}), lowest {average[worst]:.2f} ({evidence.names[worst]}), "
        f"mean {np.nanmean(average):.2f}."
    )
    who = evidence.first.name if len(evidence.models) == 1 else "the models"
    caption = f"Precision and recall of the labels with most samples ({who}); AP: average precision; dashed: "
    return PageFigure("precision-recall", figure, caption + "chance.", alt)


def _calibration(evidence: Evaluation) -> list[PageFigure]:
    """Plot calibration curves of the models with probabilities in at least three bins of ten or more predictions."""
    found = {each.name: each.probabilities for each in evidence.models}
    curves = {name: reliability(evidence.known, p) for name, p in found.items() if p is not None}
    errors = {name: error for name, (_, _, counts, error) in curves.items() if (counts >= 10).sum() > 2}
    known = {name: p for name, p in found.items() if p is not None and name in errors}
    if not known:
        return []
    said = ", ".join(f"{name} {error:.3f}" for name, error in errors.items())
    caption = "Calibration: observed frequency of labels by predicted probability; dashed: perfect. The error is the "
    figure = report.calibration_curves(evidence.known, known)
    return [
        PageFigure("calibration", figure, caption + "mean distance from it.", f"Expected calibration error: {said}.")
    ]


def _thresholds(evidence: Evaluation) -> list[PageFigure]:
    """Plot metrics by threshold and by number of labels, but not for classes, of which one is predicted."""
    if "accuracy" in evidence.first.measures:
        return []
    scores = {each.name: each.probabilities for each in evidence.models if each.probabilities is not None}
    score = "probability"
    if len(scores) < len(evidence.models):
        scores, score = {each.name: each.scores for each in evidence.models}, "score"
    said = []
    for name, S in scores.items():
        thresholds, found = pooled_measures(evidence.known, S)
        at = int(np.argmax(found["F1"]))
        said.append(f"{name} {found['F1'][at]:.2f} at {thresholds[at]:.2g}")
    caption = (
        f"Left: labels above a threshold of the {score}, pooled over all labels. Right: a fixed number of labels for "
        f"every sample, averaged over samples; dashed: {evidence.top}, as in the tables."
    )
    figure = report.threshold_curves(evidence.known, scores, evidence.top, score)
    return [PageFigure("thresholds", figure, caption, f"Highest F1 over thresholds: {', '.join(said)}.")]


def _label_counts(evidence: Evaluation) -> list[PageFigure]:
    """Plot the numbers of labels per sample, unless every sample has exactly one label."""
    counts = {"true": evidence.Y.sum(axis=1).astype(int)}
    counts |= {each.name: each.sets.sum(axis=1).astype(int) for each in evidence.models if each.sets.shape[1]}
    if len(evidence.names) == 1 or all((values == 1).all() for values in counts.values()):
        return []
    said = ", ".join(f"{name} {values.mean():.1f}" for name, values in counts.items())
    caption = "Number of labels per sample: true labels, and labels assigned by predict."
    return [PageFigure("cardinality", report.label_counts(counts), caption, f"Mean number of labels: {said}.")]


def label_f1(evidence: Evaluation, model: EvaluatedModel) -> np.ndarray:
    """Compute the F1 score at k of each label in percent, or NaN for labels that do not occur."""
    found = annotation_scores(evidence.known, model.scores, evidence.top)
    p, r = found.per_label_precision, found.per_label_recall
    both = p + r
    return 100 * np.where(both > 0, 2 * p * r / np.where(both > 0, both, 1.0), np.where(np.isnan(r), np.nan, 0.0))


def _differences(evidence: Evaluation) -> list[PageFigure]:
    """Plot the differences in F1 per label between the first model and each of the other models."""
    found = []
    base = label_f1(evidence, evidence.first)
    for number, other in enumerate(evidence.models[1:], 1):
        values = label_f1(evidence, other) - base
        gains, losses = int((values > 0).sum()), int((values < 0).sum())
        best, worst = int(np.nanargmax(values)), int(np.nanargmin(values))
        alt = (
            f"{gains} labels improve, {losses} worsen; highest difference: {evidence.names[best]} {values[best]:+.1f}, "
            f"lowest: {evidence.names[worst]} {values[worst]:+.1f}."
        )
        figure = report.label_differences(values, evidence.names, "F1 %")
        caption = f"Labels that {other.name} annotates better (right) and worse (left) than {evidence.first.name}."
        found.append(PageFigure(f"difference-{number}", figure, caption, alt))
    return found


def confusion(evidence: Evaluation) -> list[PageFigure | Table]:
    """Plot the confusion matrix and list the most frequent errors if every sample has one true and one predicted class."""
    names, Y = evidence.names, evidence.Y
    if len(names) < 2 or not (Y.sum(axis=1) == 1).all():
        return []
    given = evidence.first.given(1)
    if not (given.sum(axis=1) == 1).all():
        return []
    counts = together(Y, given)
    shown_ = np.sort(np.argsort(-counts.sum(axis=1), kind="stable")[:_CLASSES])
    shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    drawn = np.where(shares > 0, shares, np.nan)[np.ix_(shown_, shown_)]
    picked = [names[j] for j in shown_]
    figure = report.heat_map(
        drawn, picked, picked, "true class", "predicted class", "% of the true class", False, (0, 100)
    )
    wrong = counts - np.diag(np.diag(counts))
    pairs = np.argsort(-wrong, axis=None, kind="stable")[: min(20, np.count_nonzero(wrong))]
    errors = [
        [names[a], names[b], int(wrong[a, b]), shares[a, b]] for a, b in zip(*np.unravel_index(pairs, wrong.shape))
    ]
    alt = "Most frequent error: {} as {}, {} samples.".format(*errors[0]) if errors else "No errors."
    caption = f"Confusion matrix of {evidence.first.name}; –: no sample."
    if len(names) > _CLASSES:
        caption += f" The {_CLASSES} most frequent of {len(names)} classes."
    columns = ["true class", "predicted class", "samples", "% of the true class"]
    said = f"{int(wrong.sum())} of {len(Y)} samples are wrong."
    listed = [Table("Most frequent errors", columns, errors, note=said)] if errors else []
    return [PageFigure("confusion", figure, caption, alt), *listed]


def _cooccurrence(evidence: Evaluation) -> list[PageFigure]:
    """Plot the co-occurrence of labels if any sample has several labels."""
    stored = store_labels(evidence.first.applied)
    Y = evidence.Y if stored is None else stored
    counts = together(Y, Y)
    np.fill_diagonal(counts, 0)
    if not counts.any():
        return []
    figure = report.label_cooccurrence(Y, evidence.names)
    a, b = np.unravel_index(int(np.argmax(counts)), counts.shape)
    caption = "Co-occurrence: the fraction of the samples with the row's label that also have the column's label."
    alt = f"Most frequent pair: {evidence.names[a]} and {evidence.names[b]}, in {int(counts[a, b])} samples."
    return [PageFigure("co-occurrence", figure, caption, alt)]


def _space(evidence: Evaluation) -> list[PageFigure]:
    if not evidence.planes:
        return []
    name, plane = next(iter(evidence.planes.items()))
    figure = report.embedding_per_label(plane, evidence.Y, evidence.names)
    caption = f"The first map ({name}), with one panel per label: its samples in blue."
    counts = np.sort(evidence.Y.sum(axis=0))[::-1]
    alt = f"{len(plane)} samples; panels of the most frequent labels, the first with {int(counts[0])} samples."
    return [PageFigure("labels-in-space", figure, caption, alt)]


def worst_errors(first: EvaluatedModel, Y: np.ndarray, names: Sequence[str]) -> Table:
    """List the predictions with the largest errors relative to the RMSE of their target, with feature values."""
    errors = Y - first.scores
    relative = np.abs(errors) / np.maximum(np.sqrt(np.nanmean(errors**2, axis=0)), 1e-300)
    order = np.argsort(-relative, axis=None, kind="stable")[:20]  # NaN is last.
    samples, targets = np.unravel_index(order[np.isfinite(relative.flat[order])], Y.shape)
    features = feature_values(first.applied, samples)
    found = zip(samples.tolist(), targets.tolist(), *features.values())
    rows: list[list[object]] = [
        [
            first.applied.ids[i],
            names[j],
            f"{Y[i, j]:.4g}",
            f"{first.scores[i, j]:.4g}",
            f"{errors[i, j]:+.4g}",
            float(relative[i, j]),
            *cells,
        ]
        for i, j, *cells in found
    ]
    columns = ["sample", "target", "true", "predicted", "true minus predicted", "error / RMSE", *features]
    return Table(
        "Largest errors",
        columns,
        rows,
        note=f"{first.name}. Errors are compared by their ratio to the RMSE of the target.",
    )


def draw_targets(models: Sequence[EvaluatedModel], Y: np.ndarray, names: Sequence[str]) -> list[PageFigure]:
    """Plot the predictions and the residuals of the first model for regression targets."""
    first = models[0]
    r2 = regression_scores(Y, first.scores).per_target[2]
    said = ", ".join(f"{names[j]} {r2[j]:.2f}" for j in np.argsort(-r2, kind="stable")[:15])
    return [
        PageFigure(
            "predicted-against-true",
            report.predicted_against_true(Y, first.scores, names),
            f"Predictions of {first.name} against true values; dashed: perfect predictions.",
            f"R2 by target: {said}.",
        ),
        PageFigure(
            "residuals",
            report.residuals(Y, first.scores, names),
            f"True minus predicted values against predictions ({first.name}); a good model leaves no trend.",
            f"Mean and standard deviation of the errors: {_errors(Y, first.scores, names)}.",
        ),
    ]


def _errors(Y: np.ndarray, P: np.ndarray, names: Sequence[str]) -> str:
    mean, deviation = np.nanmean(Y - P, axis=0), np.nanstd(Y - P, axis=0)
    return ", ".join(f"{name} {mean[j]:.2g} and {deviation[j]:.2g}" for j, name in enumerate(names[:15]))


def sweep_figures(table: Sequence[Mapping[str, Any]], metric: str, name: str = "sweep") -> list[PageFigure]:
    """Plot the scores of a hyperparameter search against the two parameters with the most values.

    The figure is a heat map, or a curve if only one parameter has several values.
    """
    values = varied(table)
    if not values:
        return []
    best = max(table, key=lambda row: row["mean"])
    rows, *more = list(values)[:2]
    if more and any(rows in row and more[0] in row for row in table):
        columns = more[0]
        grid = np.full((len(values[rows]), len(values[columns])), np.nan)
        for row in table:
            if rows in row and columns in row:
                at = values[rows].index(_plain(row[rows])), values[columns].index(_plain(row[columns]))
                grid[at] = np.fmax(grid[at], row["mean"])
        figure = report.heat_map(grid, values[rows], values[columns], rows, columns, metric)
        over = f"{rows} and {columns}"
    else:
        mean, std = np.full(len(values[rows]), np.nan), np.zeros(len(values[rows]))
        for row in (row for row in table if rows in row):
            at_ = values[rows].index(_plain(row[rows]))
            if not row["mean"] <= mean[at_]:
                mean[at_], std[at_] = row["mean"], row["std"]
        figure = report.score_curve(values[rows], mean, std, rows, metric)
        over = rows
    edge = " ".join(_edges(values, best))
    caption = f"{metric} over {over}, best over the other parameters."
    setting = ", ".join(f"{key} {shown(best[key])}" for key in values if key in best)
    alt = f"Best {metric}: {best['mean']:.4g} with {setting}."
    return [PageFigure(name, figure, f"{caption} {edge}".strip(), alt)]


def learning_figures(curve: Sequence[tuple[int, float, float]], metric: str) -> list[PageFigure]:
    """Plot a learning curve if it has at least two points."""
    if len(curve) < 2:
        return []
    counts, means, deviations = zip(*curve)
    figure = report.score_curve(counts, means, deviations, "training samples", metric, mark=False)
    gain = means[-1] - means[-2]
    caption = (
        f"Learning curve of the best candidate: {metric} by number of training samples; bars: standard deviation over "
        f"folds. From {counts[-2]:,} to {counts[-1]:,} samples it changes by {gain:+.3g}."
    )
    said = ", ".join(f"{count:,}: {mean:.4g}" for count, mean in zip(counts, means))
    return [PageFigure("learning-curve", figure, caption, f"{metric} by training samples: {said}.")]


def _plain(value: Any) -> Any:
    """Convert a parameter value to text unless it is a number or text."""
    return value if isinstance(value, (int, float, str)) and not isinstance(value, bool) else str(value)


def varied(table: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the candidate values of each parameter with several values; parameters with the most values come first."""
    keys = dict.fromkeys(key for row in table for key in row if key not in ("mean", "std", "folds"))
    found = {}
    for key in keys:
        values = list(dict.fromkeys(_plain(row[key]) for row in table if key in row))
        if len(values) > 1:
            found[key] = sorted(values) if all(isinstance(v, (int, float)) for v in values) else values
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def _edges(values: Mapping[str, Sequence[Any]], best: Mapping[str, Any]) -> list[str]:
    """Return sentences about parameters whose best value is the smallest or the largest candidate."""
    said = []
    for key, tried in values.items():
        numbers = all(isinstance(value, (int, float)) for value in tried)
        if numbers and key in best and best[key] in (tried[0], tried[-1]):
            # Values beyond the smallest or largest candidate may be invalid, so do not recommend trying them.
            which = "smallest" if best[key] == tried[0] else "largest"
            said.append(f"The best {key}, {shown(best[key])}, is the {which} tried.")
    return said
