"""The figures of `dmo report`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dmo import report
from dmo.report import PageFigure
from dmo.workflows.evaluation import Evaluation, best_and_worst, store_labels, words_of
from dmo.workflows.program import Session

_MAPPED = 400
"""Samples whose images are read for the map."""


def draw(run: Session, evidence: Evaluation, sweeps: Sequence[Mapping[str, Any]]) -> list[PageFigure]:
    """All figures: annotations, curves, co-occurrence, the learned space, and the heat maps of sweeps."""
    first, Y, names = evidence.first, evidence.Y, evidence.names
    known = store_labels(evidence.first.applied)
    plane = _plane(first.scores)
    figures_ = {
        "precision-recall": (
            report.precision_recall_per_label(Y, first.scores, names),
            f"Precision and recall of the labels with most samples ({first.name}); dashed: chance.",
        ),
        "co-occurrence": (
            report.label_cooccurrence(Y if known is None else np.nan_to_num(known), names),
            "Labels that come together: the share of the samples of the row's label that carry the column's.",
        ),
    }
    panels = report.embedding_per_label(plane, Y, names)
    return [
        *_annotations(evidence),
        *(PageFigure(name, figure, caption) for name, (figure, caption) in figures_.items()),
        *_map(run, evidence, plane),
        PageFigure("labels-in-space", panels, "The same plane, one panel a label: its samples in blue."),
        *(_heat_map(found, number) for number, found in enumerate(sweeps, 1)),
    ]


def _plane(scores: np.ndarray) -> np.ndarray:
    """Samples on the plane of the learned space in which the label scores differ most: m x 2."""
    left, lengths, _ = np.linalg.svd(scores - scores.mean(axis=0), full_matrices=False)
    plane = left[:, :2] * lengths[:2]
    return plane if plane.shape[1] == 2 else np.pad(plane, ((0, 0), (0, 2 - plane.shape[1])))


def _annotations(evidence: Evaluation) -> list[PageFigure]:
    """Best and worst annotations with the samples' images; none for samples that have none."""
    found = []
    captions = {"best": "Samples with the best labels", "worst": "Samples with the worst labels"}
    for (kind, caption), rows in zip(captions.items(), best_and_worst(evidence)):
        found_images = {int(i): evidence.image(int(i)) for i in rows}
        images = {i: image for i, image in found_images.items() if image is not None}
        if images:
            true, given = zip(*(words_of(evidence, i) for i in images))
            figure = report.annotated_samples(list(images.values()), true, given)
            found.append(PageFigure(f"annotations-{kind}", figure, f"{caption} ({evidence.first.name})."))
    return found


def _map(run: Session, evidence: Evaluation, plane: np.ndarray) -> list[PageFigure]:
    """The plane with images of the samples; none for samples that have none."""
    if evidence.image(0) is None:
        run.note("the samples have no images to show (the store was not made from images, or their folder is gone)")
        return []
    shown = set(np.linspace(0, len(plane) - 1, min(_MAPPED, len(plane))).astype(int).tolist())
    images = [_small(evidence.image(i)) if i in shown else None for i in range(len(plane))]
    figure = report.thumbnail_map(plane, images, "first direction of the label scores", "second direction")
    caption = "Samples in the plane of the learned space in which the label scores differ most."
    return [PageFigure("space", figure, caption)]


def _small(image: np.ndarray | None) -> np.ndarray | None:
    return None if image is None else image[:: max(1, image.shape[0] // 64), :: max(1, image.shape[0] // 64)]


def _heat_map(found: Mapping[str, Any], number: int) -> PageFigure:
    """Best score of a sweep for every pair of values of its two longest axes."""
    axes = [key for key in found["table"][0] if key not in ("mean", "std", "folds")]
    table = [row for row in found["table"] if all(key in row for key in axes)]  # without an estimator's own settings
    values = {key: list(dict.fromkeys(row[key] for row in table)) for key in axes}
    rows, columns = sorted(values, key=lambda key: -len(values[key]))[:2]
    best = np.full((len(values[rows]), len(values[columns])), np.nan)
    for row in table:
        at = values[rows].index(row[rows]), values[columns].index(row[columns])
        best[at] = np.fmax(best[at], row["mean"])
    figure = report.heat_map(best, values[rows], values[columns], rows, columns, found["metric"])
    caption = (
        f"{found['metric']} over {rows} and {columns} ({Path(found['model']).stem}), best over the other parameters."
    )
    return PageFigure(f"sweep-{number}", figure, caption)
