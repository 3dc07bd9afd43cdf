"""Annotation by a model and by the votes of samples of which it says the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator

from dmo.blocks import Rows
from dmo.decoders import PlugIn, PooledCalibration
from dmo.engines.lowrank import choose_engine, is_exact
from dmo.errors import UserError
from dmo.estimators.annotator import OnBase
from dmo.estimators.arguments import Decoder, Inputs, Outputs
from dmo.estimators.ridge import MultiViewRidge
from dmo.functions import KernelDistances
from dmo.methods.decoding import ScoreRule
from dmo.methods.neighbor_votes import label_directions, log_shares, votes
from dmo.persistence import described, rebuilt, with_prefix, without_prefix
from dmo.validation import (
    NOT_NEGATIVE,
    Need,
    check_labels,
    check_parameters,
    check_views,
    sample_count,
)


class NeighborVotes(OnBase):
    """Adds to the scores of a model the votes of training samples that are neighbors in its scores and in the features.

    The model `base` says p_i of every sample, of training samples held out; neighbors are weighted by
    exp(sharpness e_i'e_j - visual S_ij), e the square roots of p scaled to length 1 and S the distance of the base's
    kernels. Scores and votes are calibrated together.

    Parameters
    ----------
    base : estimator with a `decoder` parameter, str or None, default=None
        The model, or the path of one that was saved; a copy of it is fitted, of a saved one with its parameters. None:
        `MultiViewRidge("product", weights="tagprop", ridge=0.03)`, the best by pipelines/annotation_benchmark.py; where
        its kernel would not fit in memory, `MultiViewRidge()` and votes by what it says alone.
    sharpness : float, default=30.0
        Weight of what the base says, at least 0 (flat between 20 and 40 on Corel5k).
    visual : float, default=10.0
        Weight of the distance of the features, at least 0; 0 for a base without exact kernels.
    decoder : PlugIn, PooledCalibration, str or None, default=None
        From scores and votes to decisions; None: `PlugIn()`, of a vector of classes `PooledCalibration()`.

    Attributes
    ----------
    base_ : estimator
        The fitted model.
    voters_ : ndarray of shape (n, L), float32
        e of the training samples.
    held_out_scores_, held_out_votes_ : ndarray of shape (n, L)
        What the base says of the training samples without having seen them, and logarithms of the votes of the others.
    rule_ : ScoreRule
        Which labels a training sample carries.
    classes_ : ndarray of shape (L,)
        The classes, or the label names.

    Examples
    --------
    >>> from dmo import MultiViewRidge, NeighborVotes
    >>> from dmo.demo.digits import digits
    >>> data = digits()
    >>> train, test = data.split == "train", data.split == "test"
    >>> old, new = ({name: X[part] for name, X in data.views.items()} for part in (train, test))
    >>> model = NeighborVotes(MultiViewRidge(ridge=0.1)).fit(old, data.Y[train])
    >>> model.predict(new, top=3).shape
    (597, 14)
    """

    _learns_sets = True
    _needs: ClassVar[dict[str, Need]] = {"sharpness": NOT_NEGATIVE, "visual": NOT_NEGATIVE}

    def __init__(
        self,
        base: str | BaseEstimator | None = None,
        *,
        sharpness: float = 30.0,
        visual: float = 10.0,
        decoder: Decoder = None,
    ):
        self.base = base
        self.sharpness = sharpness
        self.visual = visual
        self.decoder = decoder

    def fit(self, X: Inputs, y: Outputs) -> Self:
        """Learn the model, and what its votes are worth.

        Parameters
        ----------
        X : mapping of view to rows, list of rows, or rows
            Views of n samples each: arrays of shape (n, d), in chunks of whole rows; or one view.
        y : array-like of shape (n, L) or (n,)
            Labels of 0 and 1, n classes, or n lists of labels.

        Returns
        -------
        NeighborVotes
            This estimator, fitted.

        Raises
        ------
        UserError
            For parameters, views or labels that do not fit together, and for a base that takes no decoder.
        """
        check_parameters(self)
        base = self._take_base(MultiViewRidge())
        views = check_views(self, X, reset=True)
        Y = check_labels(self, y, sample_count(views), dtype=np.uint8)
        if self.base is None:
            base = self.base_ = self._default_base(len(Y), len(views))
        if "decoder" not in base.get_params():
            raise UserError(f"base = {base!r}; needs a model that scores labels and takes a decoder, as MultiViewRidge")
        self.base_ = base.set_params(decoder=PooledCalibration()).fit(views, Y)
        views = self._prepared(views)  # what its scores and its distances are of
        self.rule_ = ScoreRule.learn(Y.mean(axis=0), None, False)
        self.labels_ = Y
        self.voters_ = label_directions(self.base_.decoding_.probabilities([self.base_.held_out_scores_]))
        self._learn_decoder(self._decides(), self._hold_votes(views), Y)
        return self

    def _decides(self) -> Decoder:
        return self.decoder or (PlugIn() if self.multilabel_ else PooledCalibration())

    def _hold_votes(self, views: Mapping[str, Rows]) -> list[np.ndarray]:
        """Held-out scores of the training samples and the votes of the others, under the parameters as they are."""
        visual = self.visual and (self.base is not None or self.base_.is_exact)
        self.distances_ = KernelDistances.of(self.base_.expansions_) if visual else None
        self.held_out_votes_ = self._votes(self.voters_, views, same=True)
        return [self.base_.held_out_scores_, self.held_out_votes_]

    def left_out_scores(
        self, X: Inputs, y: Outputs, settings: Sequence[Mapping[str, Any]]
    ) -> Iterator[tuple[list[np.ndarray], Decoder]]:
        """Score the training samples by the others under several settings, of one fit of the base.

        Parameters
        ----------
        X : mapping of view to rows, list of rows, or rows
            As `fit` takes it.
        y : array-like of shape (n, L) or (n,)
            As `fit` takes it.
        settings : sequence of mapping
            Values of `sharpness`, `visual` and `decoder`.

        Yields
        ------
        list of ndarray of shape (n, L)
            Held-out scores and votes.
        decoder
            What they are for.
        """
        self.fit(X, y)
        views = self._prepared(check_views(self, X, reset=False))
        for setting in settings:
            self.set_params(**setting)
            yield self._hold_votes(views), self._decides()

    def _scores(self, views: Mapping[str, Rows]) -> list[np.ndarray]:
        views = self._prepared(views)
        raw = self.base_._raw_scores(views)
        return [raw, self._votes(label_directions(self.base_.decoding_.probabilities([raw])), views)]

    def _votes(self, queries: np.ndarray, views: Mapping[str, Rows], same: bool = False) -> np.ndarray:
        near: Callable[[slice], np.ndarray] | None = None
        if self.distances_ is not None:
            distances = self.distances_
            near = lambda where: distances(views, where)  # noqa: E731
        shares = votes(self.voters_, self.labels_, queries, near, self.sharpness, self.visual, same)
        return log_shares(shares, self.rule_.frequency)

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        base, description = described(self.base_)
        rule, rule_meta = self.rule_.to_arrays()
        decoding, decoding_meta = self._decoding_arrays()
        arrays = {"voters": self.voters_, "labels": self.labels_}
        arrays |= with_prefix("base", base) | with_prefix("rule", rule) | decoding
        scale = None if self.distances_ is None else self.distances_.scale
        meta = {"base": description, "rule": rule_meta} | decoding_meta
        return arrays, meta | {"multilabel": self.multilabel_, "distance_scale": scale}

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        self.base_ = rebuilt(without_prefix("base", arrays), meta["base"])
        self.rule_ = ScoreRule.from_arrays(without_prefix("rule", arrays), meta["rule"])
        self._restore_decoding(arrays, meta)
        self.voters_, self.labels_, self.multilabel_ = arrays["voters"], arrays["labels"], meta["multilabel"]
        scale = meta["distance_scale"]
        self.distances_ = None if scale is None else KernelDistances.of(self.base_.expansions_, scale)

    def _default_base(self, n: int, views: int) -> MultiViewRidge:
        """The base for n samples where none is given; of one view there are no weights to learn."""
        engine = choose_engine("auto", n, 1)
        if not is_exact(engine):
            return MultiViewRidge(approximation=engine)
        return MultiViewRidge("product", weights="tagprop" if views > 1 else None, ridge=0.03, approximation=engine)
