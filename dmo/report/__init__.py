"""Images of data, scores and fits, and a self-contained HTML report."""

from dmo.report.curves import (
    calibration_curves,
    label_counts,
    label_differences,
    predicted_against_true,
    residuals,
    threshold_curves,
)
from dmo.report.explorer import Samples
from dmo.report.figures import (
    annotated_samples,
    biplot,
    embedding_2d,
    embedding_per_label,
    heat_map,
    loading_plot,
    precision_recall_per_label,
    score_curve,
)
from dmo.report.page import PageFigure, Table, write_report
from dmo.report.samples import label_cooccurrence, thumbnail_map

__all__ = [
    "PageFigure",
    "Samples",
    "Table",
    "annotated_samples",
    "biplot",
    "calibration_curves",
    "embedding_2d",
    "embedding_per_label",
    "heat_map",
    "label_cooccurrence",
    "label_counts",
    "label_differences",
    "loading_plot",
    "precision_recall_per_label",
    "predicted_against_true",
    "residuals",
    "score_curve",
    "threshold_curves",
    "thumbnail_map",
    "write_report",
]
