"""Joint equal contribution: annotation from the nearest training samples."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dmo.blocks import Rows
from dmo.estimators.arguments import Decoder
from dmo.estimators.distance_annotator import DistanceAnnotator
from dmo.methods.jec import transferred_labels
from dmo.validation import Prepare, Scales


class JEC(DistanceAnnotator):
    """Joint equal contribution: labels transferred from the nearest training samples, every view counting alike.

    The baseline that papers on image annotation report.

    Parameters
    ----------
    %(distances)s
    n_neighbors : int, default=5
        Neighbors by the mean of the views' distances.
    decoder : PlugIn, PooledCalibration, str or None, default=None
        From scores to decisions, learned from the labels that a training sample gets from the others.
    %(random_state)s
    %(prepare)s

    Attributes
    ----------
    labels_ : ndarray of shape (n, L), uint8
        Labels of the training samples.
    rule_ : ScoreRule
        Which labels a training sample carries.
    classes_ : ndarray of shape (L,)
        The classes, or the label names.

    References
    ----------
    Makadia, Pavlovic, Kumar 2008.

    Examples
    --------
    >>> from dmo import JEC
    >>> from dmo.demo.digits import digits
    >>> data = digits()
    >>> train, test = data.split == "train", data.split == "test"
    >>> old, new = ({name: X[part] for name, X in data.views.items()} for part in (train, test))
    >>> model = JEC({"gradients": "chi2"}).fit(old, data.Y[train])
    >>> model.predict(new, top=3).shape
    (597, 14)
    """

    def __init__(
        self,
        distances: str | Mapping[str, str] = "auto",
        *,
        n_neighbors: int = 5,
        decoder: Decoder = None,
        random_state: int | None = 0,
        prepare: Prepare | Scales = "auto",
    ):
        self.distances = distances
        self.n_neighbors = n_neighbors
        self.decoder = decoder
        self.random_state = random_state
        self.prepare = prepare

    def _neighbor_scores(self, views: Mapping[str, Rows], same: bool = False) -> np.ndarray:
        return transferred_labels(self._nearest(views, same)[0], self.labels_, same)
