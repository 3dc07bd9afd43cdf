"""2PKNN: label prediction from neighborhoods that contain the nearest samples of every label.

The first pass selects, for each label, the k training samples with this label that are nearest to the query x. In the
union T of these samples, rare labels are as well represented as frequent labels. The second pass averages the labels of
the samples in T, weighted by their distances d(x, i),

    score_l(x) = sum_{i in T} w_i y_il / sum_{i in T} w_i,   w_i = exp(-omega d(x, i)).

Source: Verma, Jawahar 2012, section 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import Any, ClassVar

import numpy as np

from dmo.blocks import Rows
from dmo.inputs import NOT_NEGATIVE, Need, Prepare, Scales
from dmo.methods.jec import DistanceAnnotator
from dmo.methods.options import Decoder, Weights
from dmo.methods.view_weights import view_weights
from dmo.parameters import parametrized


def two_pass_scores(distances: np.ndarray, Y: np.ndarray, k: int, sharpness: float) -> np.ndarray:
    """Compute label scores of m samples from their distances (m x n) to the training samples with labels Y."""
    near = np.zeros(distances.shape, bool)
    for column in Y.T:
        members = np.flatnonzero(column)
        if len(members) > k:
            best = np.argpartition(distances[:, members], k - 1, axis=1)[:, :k]
            np.put_along_axis(near, members[best], True, axis=1)
        else:
            near[:, members] = True
    exponent = np.where(near & np.isfinite(distances), -sharpness * distances, -np.inf)
    most = exponent.max(axis=1, keepdims=True)
    # The nearest sample has the weight 1, so that the weights do not all underflow to 0.
    weight = np.exp(exponent - np.where(np.isfinite(most), most, 0.0))
    total = weight.sum(axis=1, keepdims=True)
    return (weight @ Y.astype(weight.dtype)) / np.where(total > 0, total, 1.0)


@parametrized
class TwoPassKNN(DistanceAnnotator):
    """Two-pass nearest neighbors (2PKNN): label prediction from the nearest training samples of each label.

    Every label has the same number of neighbors, which increases the recall of rare labels.

    Parameters
    ----------
    %(distances)s
    n_neighbors : int, default=4
        Number of neighbors of a sample for each label.
    sharpness : float, default=40.0
        Parameter omega of the neighbor weights exp(-omega sum_v w_v d_v), at least 0. Larger values emphasize the
        nearest neighbors.
    weights : mapping of view to float, list, {"equal", "tagprop", "alignment"} or None, default=None
        Weight w_v of each view, scaled to sum 1. With None, all views have the same weight. "tagprop" and "alignment"
        learn the weights from the labels, as in `MultiViewRidge`.
    decoder : PlugIn, PooledCalibration, str or None, default=None
        Rule that turns scores into label predictions. It is learned from leave-one-out scores of the training samples.
    %(random_state)s
    %(prepare)s

    Attributes
    ----------
    view_weights_ : dict of str to float
        Weight w_v of each view.
    labels_ : ndarray of shape (n, L), uint8
        Labels of the training samples.
    rule_ : ScoreRule
        Rule that maps raw scores to the scores by which labels are ranked.
    classes_ : ndarray of shape (L,)
        Class labels or label names.

    References
    ----------
    Verma, Jawahar 2012, section 3.

    Examples
    --------
    >>> from dmo import TwoPassKNN
    >>> from dmo.demo.digits import digits
    >>> data = digits()
    >>> train, test = data.split == "train", data.split == "test"
    >>> old, new = ({name: X[part] for name, X in data.views.items()} for part in (train, test))
    >>> TwoPassKNN().fit(old, data.Y[train]).predict(new, top=3).shape
    (597, 14)
    """

    _needs: ClassVar[dict[str, Need]] = DistanceAnnotator._needs | {"sharpness": NOT_NEGATIVE}

    distances: str | Mapping[str, str] = "auto"
    _: KW_ONLY
    n_neighbors: int = 4
    sharpness: float = 40.0
    weights: Weights = None
    decoder: Decoder = None
    random_state: int | None = 0
    prepare: Prepare | Scales = "auto"

    def _learn_neighbors(self, views: Mapping[str, Rows]) -> np.ndarray | None:
        self.view_weights_ = view_weights(self.weights, self.distances_, self.labels_)
        return super()._learn_neighbors(views)

    def _neighbor_scores(self, views: Mapping[str, Rows], same: bool = False) -> np.ndarray:
        weights = np.array([self.view_weights_[view] for view in self.distances_.kernels], np.float32)
        m = next(iter(views.values())).shape[0]
        scores = np.empty((m, self.labels_.shape[1]))
        for where, d in self.distances_.blocks(views):
            total = np.tensordot(weights, d, 1)
            if same:
                total[np.arange(len(total)), np.arange(where.start, where.stop)] = np.inf
            scores[where] = two_pass_scores(total, self.labels_, self.n_neighbors, self.sharpness)
        return scores

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays, meta = super()._arrays()
        return arrays, meta | {"view_weights": self.view_weights_}

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        super()._restore(arrays, meta)
        self.view_weights_ = dict(meta["view_weights"])
