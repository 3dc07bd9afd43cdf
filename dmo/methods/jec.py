"""Joint equal contribution (JEC), and the base class of annotation by nearest training samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse

from dmo.blocks import Rows, row_blocks
from dmo.decide.out_of_fold import LeftOut, learned_columns
from dmo.fit.view_neighbors import ViewDistances, named_distances
from dmo.inputs import COUNT, Data, Inputs, Need, Outputs, Prepare, Scales
from dmo.methods.annotator import Annotator
from dmo.methods.options import Decoder
from dmo.parameters import parametrized


class DistanceAnnotator(Annotator):
    """Base class of `JEC`, `TagProp` and `TwoPassKNN`, which predict labels from distances to the training samples."""

    _needs: ClassVar[dict[str, Need]] = {"n_neighbors": COUNT}

    distances: str | Mapping[str, str]
    n_neighbors: int
    decoder: Decoder
    random_state: int | None

    def fit(self, X: Inputs, y: Outputs) -> Self:
        """Store the training samples, and fit the parameters of the method.

        Parameters
        ----------
        %(X)s
        %(y)s

        Returns
        -------
        estimator
            This estimator, fitted.

        Raises
        ------
        UserError
            If parameters, views or labels are invalid.
        """
        return self._fit(X, y)

    def _learn(self, data: Data) -> LeftOut:
        views, self.labels_ = data.views, data.Y
        self.distances_ = ViewDistances.fit(named_distances(self.distances, views), views, self.random_state)
        held_out = self._learn_neighbors(views)
        if held_out is None:
            return LeftOut()
        # Learned column scales depend on the omitted sample, so leave-one-out scores are replaced with
        # cross-validation.
        return LeftOut("folds") if learned_columns(self) else LeftOut("known", np.arange(data.n), [held_out])

    def _learn_neighbors(self, views: Mapping[str, Rows]) -> np.ndarray | None:
        """Fit the parameters of the method, and return leave-one-out scores if a decoder needs them."""
        return None if self.decoder is None else self._neighbor_scores(views, same=True)

    def _neighbor_scores(self, views: Mapping[str, Rows], same: bool = False) -> np.ndarray:
        """Compute label scores; if `same` is true, score the training samples without themselves as neighbors."""
        raise NotImplementedError

    def _nearest(self, views: Mapping[str, Rows], same: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of the k nearest training samples, and their distances in each view."""
        # A training sample has one possible neighbor fewer than a new sample, so limit k to n - 1 for both.
        return self.distances_.nearest(views, min(self.n_neighbors, self.distances_.n - 1), same)

    def _raw_scores(self, views: Mapping[str, Rows]) -> np.ndarray:
        return self._neighbor_scores(views)

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays, meta = self.distances_.to_arrays()
        return arrays | {"labels": self.labels_}, meta

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        self.labels_ = arrays["labels"]
        self.distances_ = ViewDistances.from_arrays(arrays, meta)


_QUERIES = 512  # number of samples per block, which limits the memory for label similarities


def transferred_labels(nearest: np.ndarray, Y: np.ndarray, same: bool = False) -> np.ndarray:
    """Compute label scores from the labels Y of training samples and the indices `nearest` of the nearest ones."""
    # The labels of the nearest sample have the highest scores, in the order of their frequency. The score of any other
    # label is its frequency among the other neighbors times its co-occurrence with labels of the nearest sample.
    # Source: Makadia, Pavlovic, Kumar 2008, section 3.
    known, frequency = scipy.sparse.csr_array(Y, dtype=np.float64), Y.mean(axis=0)
    scores = np.empty((len(nearest), Y.shape[1]))
    for where in row_blocks(len(nearest), _QUERIES):
        first, rest = Y[nearest[where, 0]].astype(np.float64), nearest[where, 1:]
        others = np.zeros(first.shape)
        for column in rest.T:  # Add one neighbor at a time to limit the memory.
            others += Y[column] / rest.shape[1]
        # The co-occurrence of labels a and b is the fraction of samples with b that have a. Products with Y' and then
        # with Y avoid the L x L matrix of co-occurrences.
        own = Y[where].astype(np.float64) if same else np.zeros(first.shape)
        share = first / np.maximum(Y.sum(axis=0) - own, 1)
        together = (known.T @ (known @ share.T)).T - own * (share * own).sum(axis=1, keepdims=True)
        transfer = others * together / np.maximum(first.sum(axis=1), 1.0)[:, None]
        scores[where] = first * (2 + frequency) + (1 - first) * (transfer + 1e-3 * frequency)
    return scores


@parametrized
class JEC(DistanceAnnotator):
    """Joint equal contribution (JEC), which transfers labels from the nearest training samples.

    JEC is a common baseline for image annotation. The distance of two samples is the mean of their distances in all
    views.

    Parameters
    ----------
    %(distances)s
    n_neighbors : int, default=5
        Number of nearest training samples.
    decoder : PlugIn, PooledCalibration, str or None, default=None
        Rule that turns scores into predicted labels, learned from held-out scores of the training samples.
    %(random_state)s
    %(prepare)s

    Attributes
    ----------
    labels_ : ndarray of shape (n, L), uint8
        Labels of the training samples.
    rule_ : ScoreRule
        Rule that converts raw scores to ranking scores.
    classes_ : ndarray of shape (L,)
        Classes or label names.

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

    distances: str | Mapping[str, str] = "auto"
    _: KW_ONLY
    n_neighbors: int = 5
    decoder: Decoder = None
    random_state: int | None = 0
    prepare: Prepare | Scales = "auto"

    def _neighbor_scores(self, views: Mapping[str, Rows], same: bool = False) -> np.ndarray:
        return transferred_labels(self._nearest(views, same)[0], self.labels_, same)
