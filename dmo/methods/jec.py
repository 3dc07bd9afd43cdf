"""Annotation by nearest training samples: a common base class, and joint equal contribution (JEC)."""

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
    """Annotation from view distances to the training samples, which the model stores.

    Base class of `JEC`, `TagProp` and `TwoPassKNN`.
    """

    _needs: ClassVar[dict[str, Need]] = {"n_neighbors": COUNT}

    distances: str | Mapping[str, str]
    n_neighbors: int
    decoder: Decoder
    random_state: int | None

    def fit(self, X: Inputs, y: Outputs) -> Self:
        """Store the training samples and learn to predict labels from their distances.

        Parameters
        ----------
        %(X)s
        %(y)s

        Returns
        -------
        estimator
            The fitted estimator.

        Raises
        ------
        UserError
            If parameters, views and labels are inconsistent.
        """
        return self._fit(X, y)

    def _learn(self, data: Data) -> LeftOut:
        views, self.labels_ = data.views, data.Y
        self.distances_ = ViewDistances.fit(named_distances(self.distances, views), views, self.random_state)
        held_out = self._learn_neighbors(views)
        if held_out is None:
            return LeftOut()
        # Column scales were learned from all samples, so leaving a sample out of the distances is not enough.
        return LeftOut("folds") if learned_columns(self) else LeftOut("known", np.arange(data.n), [held_out])

    def _learn_neighbors(self, views: Mapping[str, Rows]) -> np.ndarray | None:
        """Fit additional parameters, and return leave-one-out scores of the training samples if they are needed."""
        return None if self.decoder is None else self._neighbor_scores(views, same=True)

    def _neighbor_scores(self, views: Mapping[str, Rows], same: bool = False) -> np.ndarray:
        """Compute label scores (m x L); with `same`, leave-one-out scores of the training samples."""
        raise NotImplementedError

    def _nearest(self, views: Mapping[str, Rows], same: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return neighbors (m x k) and their distances (V x m x k), with the same k for new rows and training rows."""
        return self.distances_.nearest(views, min(self.n_neighbors, self.distances_.n - 1), same)

    def _raw_scores(self, views: Mapping[str, Rows]) -> np.ndarray:
        return self._neighbor_scores(views)

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays, meta = self.distances_.to_arrays()
        return arrays | {"labels": self.labels_}, meta

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        self.labels_ = arrays["labels"]
        self.distances_ = ViewDistances.from_arrays(arrays, meta)


_QUERIES = 512  # rows whose label similarity to all training samples is in memory at a time


def transferred_labels(nearest: np.ndarray, Y: np.ndarray, same: bool = False) -> np.ndarray:
    """Transfer labels from nearest training samples to scores of samples.

    nearest (m, k); Y (n, L) -> (m, L)
    """
    # Labels of the nearest sample come first, frequent ones before rare ones. Labels of the other neighbors follow.
    # They are ranked by their frequency among these neighbors times their co-occurrence with labels of the nearest
    # sample.
    #
    # Makadia, Pavlovic, Kumar 2008, section 3.
    known, frequency = scipy.sparse.csr_array(Y, dtype=np.float64), Y.mean(axis=0)
    scores = np.empty((len(nearest), Y.shape[1]))
    for where in row_blocks(len(nearest), _QUERIES):
        first, rest = Y[nearest[where, 0]].astype(np.float64), nearest[where, 1:]
        others = np.zeros(first.shape)
        for column in rest.T:  # One at a time, because all of them would need m k L numbers.
            others += Y[column] / rest.shape[1]
        # Weight n_ab / n_b of label a with label b, as (first / n_b) Y' Y without the L x L matrix of n_ab
        own = Y[where].astype(np.float64) if same else np.zeros(first.shape)
        share = first / np.maximum(Y.sum(axis=0) - own, 1)
        together = (known.T @ (known @ share.T)).T - own * (share * own).sum(axis=1, keepdims=True)
        transfer = others * together / np.maximum(first.sum(axis=1), 1.0)[:, None]
        scores[where] = first * (2 + frequency) + (1 - first) * (transfer + 1e-3 * frequency)
    return scores


@parametrized
class JEC(DistanceAnnotator):
    """Joint equal contribution (JEC): label transfer from nearest training samples with equal weights of all views.

    JEC is a common baseline in papers on image annotation.

    Parameters
    ----------
    %(distances)s
    n_neighbors : int, default=5
        Number of neighbors by the mean distance over views.
    decoder : PlugIn, PooledCalibration, str or None, default=None
        Rule that turns scores into decisions, learned from leave-one-out scores of the training samples.
    %(random_state)s
    %(prepare)s

    Attributes
    ----------
    labels_ : ndarray of shape (n, L), uint8
        Labels of the training samples.
    rule_ : ScoreRule
        Rule that maps raw scores to the scores that rank labels.
    classes_ : ndarray of shape (L,)
        Class labels, or label names.

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
