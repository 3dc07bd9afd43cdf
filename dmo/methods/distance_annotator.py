"""What the annotators share that keep their training samples and look for neighbors among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from dmo.blocks import Rows
from dmo.decide.out_of_fold import learned_columns, out_of_fold_scores
from dmo.decide.score_rule import ScoreRule
from dmo.fit.view_neighbors import ViewDistances, named_distances
from dmo.inputs import COUNT, SEED, Need, check_labels, check_parameters, check_views, sample_count
from dmo.methods.annotator import Annotator
from dmo.methods.base import Decoder, Inputs, Outputs


class DistanceAnnotator(Annotator):
    """Annotation from the distances of views to the training samples, which are kept.

    The base class of `JEC`, `TagProp` and `TwoPassKNN`.
    """

    _needs: ClassVar[dict[str, Need]] = {"n_neighbors": COUNT, "random_state": SEED}

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
        check_parameters(self)
        views = check_views(self, X, reset=True)
        self.labels_ = check_labels(self, y, sample_count(views), dtype=np.uint8)
        self.distances_ = ViewDistances.fit(named_distances(self.distances, views), views, self.random_state)
        self.rule_ = ScoreRule.learn(self.labels_.mean(axis=0), len(self.labels_), None, False)
        self.decoding_ = None
        held_out = self._learn_neighbors(views)
        if held_out is not None and learned_columns(self):
            held_out = out_of_fold_scores(self, views, self.labels_)
        if held_out is not None:
            self._learn_decoder(self.decoder, lambda: [held_out], self.labels_)
        else:
            self._learn_decisions(views, self.labels_)
        return self

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
        decided, decided_meta = self._decision_arrays()
        return arrays | {"labels": self.labels_} | decided, meta | decided_meta

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        self.labels_ = arrays["labels"]
        self.distances_ = ViewDistances.from_arrays(arrays, meta)
        self._restore_decisions(arrays, meta)
