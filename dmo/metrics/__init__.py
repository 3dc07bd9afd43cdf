"""How good scores, label sets and real-valued predictions are, read block by block.

Labels Y are 0/1, scores S any numbers, predictions P 0/1, all n x L row sources. What is counted stays an integer, so that
no count depends on the blocks. Where scikit-learn has a figure of that name, this one equals it, ties included.
"""

from dmo.metrics.annotation import (
    AnnotationScores,
    AUCScores,
    F1Scores,
    PrecisionRecall,
    SetScores,
    TopNAccuracy,
    annotation_scores,
    auc_macro,
    auc_micro,
    auc_scores,
    f1_hierarchical,
    f1_macro,
    f1_micro,
    f1_scores,
    jaccard_accuracy,
    precision_recall_curves,
    set_scores,
    top_label_sets,
    top_n_accuracy,
    with_ancestors,
)
from dmo.metrics.named import Metric, metric_of, rated
from dmo.metrics.ranking import (
    RankingScores,
    RegressionScores,
    TopScores,
    inverse_propensities,
    ranking_scores,
    regression_scores,
    suitable_top,
    top_scores,
)

__all__ = [
    "AUCScores",
    "AnnotationScores",
    "F1Scores",
    "Metric",
    "PrecisionRecall",
    "RankingScores",
    "RegressionScores",
    "SetScores",
    "TopNAccuracy",
    "TopScores",
    "annotation_scores",
    "auc_macro",
    "auc_micro",
    "auc_scores",
    "f1_hierarchical",
    "f1_macro",
    "f1_micro",
    "f1_scores",
    "inverse_propensities",
    "jaccard_accuracy",
    "metric_of",
    "precision_recall_curves",
    "ranking_scores",
    "rated",
    "regression_scores",
    "set_scores",
    "suitable_top",
    "top_label_sets",
    "top_n_accuracy",
    "top_scores",
    "with_ancestors",
]
