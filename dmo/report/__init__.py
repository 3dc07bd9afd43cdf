"""Pictures of data, scores and fits, and a self-contained HTML report."""

from dmo.report.page import Picture, Table, write_report
from dmo.report.pictures import (
    annotated_samples,
    convergence_curve,
    embedding_2d,
    embedding_per_label,
    heat_map,
    precision_recall_per_label,
    score_bars,
)
from dmo.report.samples import label_cooccurrence, thumbnail_map

__all__ = [
    "Picture",
    "Table",
    "annotated_samples",
    "convergence_curve",
    "embedding_2d",
    "embedding_per_label",
    "heat_map",
    "label_cooccurrence",
    "precision_recall_per_label",
    "score_bars",
    "thumbnail_map",
    "write_report",
]
