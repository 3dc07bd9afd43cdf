"""Joint equal contribution: annotation from the nearest training samples."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dmo.blocks import Rows
from dmo.estimators.arguments import Decoder
from dmo.estimators.distance_annotator import DistanceAnnotator
from dmo.methods.jec import transferred_labels
from dmo.validation import Columns, Gaps, Scales


class JEC(DistanceAnnotator):
    """Joint equal contribution: labels transferred from the nearest training samples, every view counting alike.

    The baseline that papers on image annotation report.

    Parameters
    ----------
    distances : {"auto", "l1", "l2", "chi2"}, or mapping of view to these, default="auto"
        "l1" and "chi2" compare histograms (rows scaled to sum 1), "l2" is the Euclidean distance; "auto": "chi2" for
        views that their feature store calls histograms, "l2" for all others. Each is divided by its mean over the
        training samples.
    n_neighbors : int, default=5
        Neighbors by the mean of the views' distances.
    decoder : PlugIn, PooledCalibration, str or None, default=None
        From scores to decisions, learned from the labels that a training sample gets from the others.
    random_state : int or None, default=0
        Seed of the samples from which the mean distances are taken.
    views : mapping of view to slice, list of int or list of str, or None, default=None
        Columns of the views, where X is one array, or a DataFrame whose columns have these names.
    scale : see `KGHA`
        Of the columns of the views.
    impute : see `KGHA`
        Of missing cells.

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
        views: Mapping[str, Columns] | None = None,
        scale: Scales = "auto",
        impute: Gaps = None,
    ):
        self.distances = distances
        self.n_neighbors = n_neighbors
        self.decoder = decoder
        self.random_state = random_state
        self.views = views
        self.scale = scale
        self.impute = impute

    def _neighbor_scores(self, views: Mapping[str, Rows], same: bool = False) -> np.ndarray:
        return transferred_labels(self._nearest(views, same)[0], self.labels_, same)
