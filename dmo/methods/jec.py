"""Annotation by the nearest training samples: what its methods share, and joint equal contribution (JEC)."""

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
    """Annotation from the distances of views to the training samples, which are kept.

    The base class of `JEC`, `TagProp` and `TwoPassKNN`.
    """

    _needs: ClassVar[dict[str, Need]] = {"n_neighbors": COUNT}

    distances: str | Mapping[str, str]
    n_neighbors: int
    decoder: Decoder
    random_state: int | None

    def fit(self, X: Inputs, y: Outputs) -> Self:
        """Keep the training samples, and learn what their distances say of labels.

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
            For parameters, views or labels that do not fit together.
        """
        return self._fit(X, y)

    def _learn(self, data: Data) -> LeftOut:
        views, self.labels_ = data.views, data.Y
        self.distances_ = ViewDistances.fit(named_distances(self.distances, views), views, self.random_state)
        held_out = self._learn_neighbors(views)
        if held_out is None:
            return LeftOut()
        # scales of columns have seen the samples that distances leave out
        return LeftOut("folds") if learned_columns(self) else LeftOut("known", np.arange(data.n), [held_out])

    def _learn_neighbors(self, views: Mapping[str, Rows]) -> np.ndarray | None:
        """Learn whatever there is to; returns scores of the training samples by the others, where they are needed."""
        return None if self.decoder is None else self._neighbor_scores(views, same=True)

    def _neighbor_scores(self, views: Mapping[str, Rows], same: bool = False) -> np.ndarray:
        """Label scores (m x L); `same`: of the training samples, each without itself."""
        raise NotImplementedError

    def _nearest(self, views: Mapping[str, Rows], same: bool) -> tuple[np.ndarray, np.ndarray]:
        """Neighbors (m x k) and their distances (V x m x k); as many for new rows as for training rows."""
        return self.distances_.nearest(views, min(self.n_neighbors, self.distances_.n - 1), same)

    def _raw_scores(self, views: Mapping[str, Rows]) -> np.ndarray:
        return self._neighbor_scores(views)

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays, meta = self.distances_.to_arrays()
        return arrays | {"labels": self.labels_}, meta

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        self.labels_ = arrays["labels"]
        self.distances_ = ViewDistances.from_arrays(arrays, meta)


_QUERIES = 512  # rows whose similarity to all training samples in labels is held at a time


def transferred_labels(nearest: np.ndarray, Y: np.ndarray, same: bool = False) -> np.ndarray:
    """Label scores of samples from their nearest training samples.

    nearest (m, k); Y (n, L) -> (m, L)
    """
    # The labels of the nearest come first, the frequent ones before the rare ones; then those of the next neighbors,
    # by how many have them times how often they occur together with the nearest one's.
    #
    # Makadia, Pavlovic, Kumar 2008, section 3.
    known, frequency = scipy.sparse.csr_array(Y, dtype=np.float64), Y.mean(axis=0)
    scores = np.empty((len(nearest), Y.shape[1]))
    for where in row_blocks(len(nearest), _QUERIES):
        first, rest = Y[nearest[where, 0]].astype(np.float64), nearest[where, 1:]
        others = np.zeros(first.shape)
        for column in rest.T:  # one at a time: all of them are m k L numbers
            others += Y[column] / rest.shape[1]
        # label a with label b: n_ab / n_b, as (first / n_b) Y' Y without the L x L matrix of n_ab
        own = Y[where].astype(np.float64) if same else np.zeros(first.shape)
        share = first / np.maximum(Y.sum(axis=0) - own, 1)
        together = (known.T @ (known @ share.T)).T - own * (share * own).sum(axis=1, keepdims=True)
        transfer = others * together / np.maximum(first.sum(axis=1), 1.0)[:, None]
        scores[where] = first * (2 + frequency) + (1 - first) * (transfer + 1e-3 * frequency)
    return scores


@parametrized
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

    distances: str | Mapping[str, str] = "auto"
    _: KW_ONLY
    n_neighbors: int = 5
    decoder: Decoder = None
    random_state: int | None = 0
    prepare: Prepare | Scales = "auto"

    def _neighbor_scores(self, views: Mapping[str, Rows], same: bool = False) -> np.ndarray:
        return transferred_labels(self._nearest(views, same)[0], self.labels_, same)
