"""Images of data, scores and fits, and a self-contained HTML report."""

from dmo.report.figures import (
    annotated_samples,
    biplot,
    embedding_2d,
    embedding_per_label,
    heat_map,
    loading_plot,
    precision_recall_per_label,
)
from dmo.report.page import PageFigure, Table, write_report
from dmo.report.samples import label_cooccurrence, thumbnail_map
from dmo.report.targets import predicted_against_true

__all__ = [
    "PageFigure",
    "Table",
    "annotated_samples",
    "biplot",
    "embedding_2d",
    "embedding_per_label",
    "heat_map",
    "label_cooccurrence",
    "loading_plot",
    "precision_recall_per_label",
    "predicted_against_true",
    "thumbnail_map",
    "write_report",
]
