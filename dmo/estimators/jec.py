"""Joint equal contribution: annotation from the nearest training samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from dmo.blocks import Rows
from dmo.engines.view_neighbors import ViewDistances, named_distances
from dmo.estimators.annotator import Annotator
from dmo.methods.decoding import ScoreRule
from dmo.methods.jec import transferred_labels
from dmo.persistence import with_prefix, without_prefix
from dmo.validation import COUNT, SEED, Columns, Need, check_labels, check_parameters, check_views, sample_count


class JEC(Annotator):
    """Joint equal contribution: labels transferred from the nearest training samples, every view counting alike.

    The baseline that papers on image annotation report.

    Parameters
    ----------
    distances : {"l1", "l2", "chi2"}, or mapping of view to these, default="l2"
        "l1" and "chi2" compare histograms (rows scaled to sum 1), "l2" is the Euclidean distance. Each is divided by its
        mean over the training samples.
    n_neighbors : int, default=5
        Neighbors by the mean of the views' distances.
    random_state : int or None, default=0
        Seed of the samples from which the mean distances are taken.
    views : mapping of view to slice, list of int or list of str, or None, default=None
        Columns of the views, where X is one array, or a DataFrame whose columns have these names.

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

    _needs: ClassVar[dict[str, Need]] = {"n_neighbors": COUNT, "random_state": SEED}

    def __init__(
        self,
        distances: str | Mapping[str, str] = "l2",
        *,
        n_neighbors: int = 5,
        random_state: int | None = 0,
        views: Mapping[str, Columns] | None = None,
    ):
        self.distances = distances
        self.n_neighbors = n_neighbors
        self.random_state = random_state
        self.views = views

    def fit(self, X: Any, y: Any) -> Self:
        """Keep the training samples, with the mean distance of every view.

        Parameters
        ----------
        X : mapping of view to rows, list of rows, or rows
            Views of n samples each: arrays of shape (n, d), in chunks of whole rows; or one view.
        y : array-like of shape (n, L) or (n,)
            Labels of 0 and 1, n classes, or n lists of labels.

        Returns
        -------
        JEC
            This estimator, fitted.

        Raises
        ------
        UserError
            For parameters, views or labels that do not fit together.
        """
        check_parameters(self)
        views = check_views(self, X, reset=True)
        self.labels_ = check_labels(self, y, sample_count(views), dtype=np.uint8)
        self.distances_ = ViewDistances.fit(named_distances(self.distances, list(views)), views, self.random_state)
        self.rule_ = ScoreRule.learn(self.labels_.mean(axis=0), None, False)
        return self

    def _raw_scores(self, views: Mapping[str, Rows]) -> np.ndarray:
        nearest, _ = self.distances_.nearest(views, min(self.n_neighbors, self.distances_.n))
        return transferred_labels(nearest, self.labels_)

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays, meta = self.distances_.to_arrays()
        rule, rule_meta = self.rule_.to_arrays()
        arrays |= {"labels": self.labels_} | with_prefix("rule", rule)
        return arrays, meta | {"rule": rule_meta, "multilabel": self.multilabel_}

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        self.labels_, self.multilabel_ = arrays["labels"], meta["multilabel"]
        self.distances_ = ViewDistances.from_arrays(arrays, meta)
        self.rule_ = ScoreRule.from_arrays(without_prefix("rule", arrays), meta["rule"])
