"""TagProp: annotation from weighted neighbors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from dmo.blocks import Rows
from dmo.estimators.arguments import Decoder
from dmo.estimators.distance_annotator import DistanceAnnotator
from dmo.methods.tagprop import Neighborhoods, TagPropFit, fit_tagprop
from dmo.validation import FLAG, Need, Prepare, Scales, one_of


class TagProp(DistanceAnnotator):
    """Labels of a sample as the weighted mean of its neighbors' labels, weights of the views by maximum likelihood.

    Parameters
    ----------
    %(distances)s
    n_neighbors : int, default=200
        Neighbors by the mean of the views' distances.
    weighting : {"distance", "rank"}, default="distance"
        What a neighbor's weight depends on: exp(-sum_v w_v d_v), a w_v of every view; or its rank among the neighbors, a
        weight of every rank.
    sigma : bool, default=True
        Put a logistic function per label on the prediction of the neighbors, which raises the recall of rare labels.
    decoder : PlugIn, PooledCalibration, str or None, default=None
        From probabilities to decisions; None: the probabilities as they are.
    %(random_state)s
    %(prepare)s

    Attributes
    ----------
    weights_ : dict of str to float
        w_v of the views; empty with weighting "rank".
    fit_ : TagPropFit
        What was learned: weights (V), or logarithms of the weights of the ranks (k), and the logistic functions.
    rule_ : ScoreRule
        Which labels a training sample carries.
    classes_ : ndarray of shape (L,)
        The classes, or the label names.

    References
    ----------
    Guillaumin, Mensink, Verbeek, Schmid 2009, equations 1-7.

    Examples
    --------
    >>> from dmo import TagProp
    >>> from dmo.demo.digits import digits
    >>> data = digits()
    >>> train = data.split == "train"
    >>> model = TagProp(n_neighbors=20).fit({name: X[train] for name, X in data.views.items()}, data.Y[train])
    >>> sorted(model.weights_) == sorted(data.views)
    True
    """

    _needs: ClassVar[dict[str, Need]] = DistanceAnnotator._needs | {
        "sigma": FLAG,
        "weighting": one_of("distance", "rank"),
    }

    def __init__(
        self,
        distances: str | Mapping[str, str] = "auto",
        *,
        n_neighbors: int = 200,
        weighting: Literal["distance", "rank"] = "distance",
        sigma: bool = True,
        decoder: Decoder = None,
        random_state: int | None = 0,
        prepare: Prepare | Scales = "auto",
    ):
        self.distances = distances
        self.n_neighbors = n_neighbors
        self.weighting = weighting
        self.sigma = sigma
        self.decoder = decoder
        self.random_state = random_state
        self.prepare = prepare

    def _learn_neighbors(self, views: Mapping[str, Rows]) -> np.ndarray:
        around = self._around(views, same=True)
        self.fit_ = fit_tagprop(around, self.labels_, self.sigma)
        # no sample is its own neighbor: what its neighbors predict is held out
        return self._predictions(around)

    @property
    def weights_(self) -> dict[str, float]:
        """Weights of the views; of weighting "rank" none."""
        return (
            {}
            if self.weighting == "rank"
            else dict(zip(self.distances_.kernels, self.fit_.weights.tolist(), strict=True))
        )

    def _around(self, views: Mapping[str, Rows], same: bool = False) -> Neighborhoods:
        return Neighborhoods.of(*self._nearest(views, same), self.labels_, self.weighting == "rank")

    def _predictions(self, around: Neighborhoods) -> np.ndarray:
        return self.fit_(around.predictions(around.shares(self.fit_.weights)))

    def _neighbor_scores(self, views: Mapping[str, Rows], same: bool = False) -> np.ndarray:
        return self._predictions(self._around(views, same))

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays, meta = DistanceAnnotator._arrays(self)
        arrays["weights"] = self.fit_.weights
        if self.fit_.slope is not None:
            arrays |= {"slope": self.fit_.slope, "intercept": self.fit_.intercept}
        return arrays, meta | {"loss": self.fit_.loss}

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        DistanceAnnotator._restore(self, arrays, meta)
        self.fit_ = TagPropFit(arrays["weights"], arrays.get("slope"), arrays.get("intercept"), meta["loss"])
