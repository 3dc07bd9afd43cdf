"""TagProp: annotation from weighted neighbors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from dmo.blocks import Rows
from dmo.engines.view_neighbors import ViewDistances, named_distances
from dmo.estimators.annotator import Annotator
from dmo.estimators.arguments import Decoder
from dmo.methods.decoding import ScoreRule
from dmo.methods.tagprop import Neighborhoods, TagPropFit, fit_tagprop
from dmo.persistence import with_prefix, without_prefix
from dmo.validation import FLAG, SEED, Columns, Need, check_labels, check_parameters, check_views, sample_count


class TagProp(Annotator):
    """Labels of a sample as the weighted mean of its neighbors' labels, weights of the views by maximum likelihood.

    Parameters
    ----------
    distances : {"l1", "l2", "chi2"}, or mapping of view to these, default="l2"
        "l1" and "chi2" compare histograms (rows scaled to sum 1), "l2" is the Euclidean distance. Each is divided by its
        mean over the training samples.
    n_neighbors : int, default=200
        Neighbors by the mean of the views' distances.
    sigma : bool, default=True
        Put a logistic function per label on the prediction of the neighbors, which raises the recall of rare labels.
    decoder : PlugIn, PooledCalibration, str or None, default=None
        From probabilities to decisions; None: the probabilities as they are.
    random_state : int or None, default=0
        Seed of the samples from which the mean distances are taken.
    views : mapping of view to slice, list of int or list of str, or None, default=None
        Columns of the views, where X is one array, or a DataFrame whose columns have these names.

    Attributes
    ----------
    weights_ : dict of str to float
        Weights of the views.
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

    _needs: ClassVar[dict[str, Need]] = {"sigma": FLAG, "random_state": SEED}

    def __init__(
        self,
        distances: str | Mapping[str, str] = "l2",
        *,
        n_neighbors: int = 200,
        sigma: bool = True,
        decoder: Decoder = None,
        random_state: int | None = 0,
        views: Mapping[str, Columns] | None = None,
    ):
        self.distances = distances
        self.n_neighbors = n_neighbors
        self.sigma = sigma
        self.decoder = decoder
        self.random_state = random_state
        self.views = views

    def fit(self, X: Any, y: Any) -> Self:
        """Learn the weights of the views.

        Parameters
        ----------
        X : mapping of view to rows, list of rows, or rows
            Views of n samples each: arrays of shape (n, d), in chunks of whole rows; or one view.
        y : array-like of shape (n, L) or (n,)
            Labels of 0 and 1, n classes, or n lists of labels.

        Returns
        -------
        TagProp
            This estimator, fitted.

        Raises
        ------
        UserError
            For parameters, views or labels that do not fit together.
        """
        check_parameters(self)
        views = check_views(self, X, reset=True)
        n = sample_count(views)
        Y = check_labels(self, y, n, dtype=np.uint8)
        self.labels_ = Y
        self.distances_ = ViewDistances.fit(named_distances(self.distances, list(views)), views, self.random_state)
        around = self._around(views, same=True)
        self.fit_ = fit_tagprop(around, Y, self.sigma)
        self.weights_ = dict(zip(views, map(float, self.fit_.weights), strict=True))
        self.rule_ = ScoreRule.learn(Y.mean(axis=0), None, False)
        # no sample is its own neighbor: what its neighbors predict is held out
        held_out = self.fit_(around.predictions(around.shares(self.fit_.weights)))
        self._learn_decoder(self.decoder, [held_out], Y)
        return self

    def _around(self, views: Mapping[str, Rows], same: bool = False) -> Neighborhoods:
        k = min(self.n_neighbors, len(self.labels_) - same)
        return Neighborhoods.of(*self.distances_.nearest(views, k, same), self.labels_)

    def _raw_scores(self, views: Mapping[str, Rows]) -> np.ndarray:
        around = self._around(views)
        return self.fit_(around.predictions(around.shares(self.fit_.weights)))

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        rule, rule_meta = self.rule_.to_arrays()
        arrays = {"labels": self.labels_, "weights": self.fit_.weights} | with_prefix("rule", rule)
        if self.fit_.slope is not None:
            arrays |= {"slope": self.fit_.slope, "intercept": self.fit_.intercept}
        near, meta = self.distances_.to_arrays()
        meta |= {"rule": rule_meta, "multilabel": self.multilabel_, "loss": self.fit_.loss}
        decoding, more = self._decoding_arrays()
        return arrays | near | decoding, meta | more

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        self.labels_, self.multilabel_ = arrays["labels"], meta["multilabel"]
        self.rule_ = ScoreRule.from_arrays(without_prefix("rule", arrays), meta["rule"])
        self.distances_ = ViewDistances.from_arrays(arrays, meta)
        self.fit_ = TagPropFit(arrays["weights"], arrays.get("slope"), arrays.get("intercept"), meta["loss"])
        self.weights_ = dict(zip(self.distances_.kernels, map(float, self.fit_.weights), strict=True))
        self._restore_decoding(arrays, meta)
