"""Images of data, scores and fits, and a self-contained HTML report."""

from dmo.report.figures import (
    biplot,
    calibration_curves,
    embedding_per_label,
    heat_map,
    label_cooccurrence,
    label_counts,
    label_differences,
    loading_plot,
    precision_recall_per_label,
    predicted_against_true,
    residuals,
    score_curve,
    threshold_curves,
)
from dmo.report.page import PageFigure, Samples, Table, write_report

__all__ = [
    "PageFigure",
    "Samples",
    "Table",
    "biplot",
    "calibration_curves",
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
    "write_report",
]
