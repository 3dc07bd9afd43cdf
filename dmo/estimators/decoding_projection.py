"""Projections that say what coordinates tell of the outputs: scores, labels and values, decoded from the space."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dmo.blocks import Rows, iterate
from dmo.decoders import Scores
from dmo.engines.moments import LABELS, ROWS, Moments
from dmo.engines.row_sums import BLOCK
from dmo.estimators.annotator import Annotator
from dmo.estimators.arguments import Decoder
from dmo.estimators.projection import Projection
from dmo.estimators.real_outputs import RealOutputs
from dmo.methods.decoding import ScoreRule
from dmo.methods.embeddings.tasks import Learner, decode, discriminants
from dmo.parameters import Part


class DecodingProjection(Annotator, Projection):
    """A projection that scores the outputs which it was fitted on, from the coordinates of samples.

    The base class of `MORP`, `MLSI`, `MOPE`, `MESD` and `TraceEmbedding`.
    """

    _tells_classes = True  # by discriminants

    decoder: Decoder
    _by_scores = Part(Scores, "decoder", label_sets=True)

    def _learn_outputs(self, Y: np.ndarray, y: Any, weights: np.ndarray | None = None) -> None:
        """What the outputs are that will be decoded: Y (n x L), which were given as y."""
        labels = ((Y == 0) | (Y == 1)).all()
        self.outputs_ = None if labels else RealOutputs.plain(Y.shape[1], np.ndim(y) == 1)
        self._learn_rule(np.average(Y, axis=0, weights=weights), len(Y) if weights is None else weights.sum())

    def _learn_rule(self, frequency: np.ndarray, n: float) -> None:
        self.rule_, self.decoding_ = ScoreRule.learn(frequency, float(n), None, False), None

    @property
    def _learner(self) -> Learner:
        """How outputs are decoded: labels and numbers by least squares; classes by discriminants, since least squares of
        three classes in a row never give the one in the middle."""
        return decode if self.multilabel_ else discriminants

    def _fit_decoder(self, view: str, source: Rows, Y: np.ndarray, weights: np.ndarray | None = None) -> None:
        """Learn from the training samples, which count `weights` times, what their coordinates say of outputs.

        Coordinates that the fit did not leave take one more pass over the rows.
        """
        embedding = getattr(self, "embedding_", None)
        blocks: Iterable[tuple[slice, Any]] = [(slice(0, len(Y)), embedding)]
        if embedding is None:
            blocks = ((where, self.expansion_({view: block})) for where, block in iterate(source, BLOCK))
        moments = Moments.zeros({ROWS: self.n_components_, LABELS: Y.shape[1]})
        for where, Z in blocks:
            roots = np.ones(len(Z)) if weights is None else np.sqrt(weights[where])
            groups = {ROWS: np.asarray(Z, np.float64), LABELS: Y[where].astype(np.float64)}
            moments = moments.absorb({name: roots[:, None] * part for name, part in groups.items()}, roots)
        found = self._learner(moments)
        assert found is not None  # there are labels
        self.decoder_, self.decoder_offset_ = found

    def _raw_scores(self, views: Mapping[str, Rows]) -> np.ndarray:
        return np.asarray(self.expansion_(views) @ self.decoder_ + self.decoder_offset_)

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays, meta = super()._arrays()
        if not hasattr(self, "decoder_"):
            return arrays, meta
        decided, decided_meta = self._decision_arrays()
        return arrays | decided, meta | decided_meta

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        super()._restore(arrays, meta)
        if not hasattr(self, "decoder_"):
            return
        if "label_means" not in arrays:
            self._restore_decisions(arrays, meta)
        else:  # of a model saved before projections learned label sets
            self.multilabel_ = meta["multilabel"]
            self.outputs_ = (
                None if meta["has_labels"] else RealOutputs.plain(len(arrays["label_means"]), bool(meta["flat"]))
            )
            self._learn_rule(arrays["label_means"], meta["n_labeled"])
