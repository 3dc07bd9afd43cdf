"""Label prediction by a model combined with votes of training samples that have similar predictions.

The fraction of votes for label l of sample i is

u_il = sum_j w_ij y_jl / sum_j w_ij,   w_ij = exp(omega e_i'e_j - nu S_ij),   e_i = sqrt(p_i) / |sqrt(p_i)|,

where y_jl is label l of training sample j, p_i contains the predicted label probabilities of sample i, and S_ij is the
distance of the features. The inner product e_i'e_j is the Bhattacharyya coefficient of two predictions. Samples have a
large coefficient if the model predicts the same combination of labels. Separate regressions of the labels do not use
combinations of labels.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, clone

from dmo.blocks import Rows, Subset, row_blocks
from dmo.cluster.workers import each
from dmo.decide.decoders import PlugIn, PooledCalibration
from dmo.decide.out_of_fold import LeftOut, dealt, row_keys
from dmo.errors import UserError
from dmo.fit.engine import FOLDS, choose_engine, is_exact
from dmo.fit.functions import KernelDistances
from dmo.inputs import (
    NOT_NEGATIVE,
    Data,
    Inputs,
    Need,
    Outputs,
    prepare_views,
)
from dmo.memory import Memory, remembered
from dmo.methods.annotator import OnBase
from dmo.methods.options import Decoder
from dmo.methods.ridge import MultiViewRidge
from dmo.metrics import metric_of
from dmo.parameters import SavedLocation, parametrized
from dmo.persistence import encode
from dmo.progress import stage

log = logging.getLogger("dmo")
_ANNOTATED = 5  # number of labels per sample that `PlugIn()` predicts
_BLOCK = 256  # number of samples per block, which limits the memory for the weights of the training samples


def label_directions(probabilities: np.ndarray) -> np.ndarray:
    """Compute unit vectors from label probabilities, whose inner products are Bhattacharyya coefficients."""
    e = np.sqrt(probabilities, dtype=np.float32)
    length = np.linalg.norm(e, axis=1, keepdims=True)
    return e / np.where(length > 0, length, 1)


def votes(
    voters: np.ndarray,
    labels: np.ndarray,
    queries: np.ndarray,
    distances: Callable[[slice], np.ndarray] | None,
    sharpness: float,
    visual: float,
) -> np.ndarray:
    """Compute the fraction of votes for each of L labels and m new samples, on Dask workers if there are any.

    `voters` and `queries` contain the unit vectors of the training samples and of the new samples.
    """
    blocks = row_blocks(len(queries), _BLOCK)
    # In float32, the sixth digit of the weights would depend on the number of samples in the call, so use float64.
    data = voters.astype(np.float64), labels.astype(np.float64), queries.astype(np.float64), distances
    work = partial(_block_votes, blocks, *data, sharpness, visual)
    return np.concatenate([found for _, found in each("votes (blocks of samples)", work, range(len(blocks)))])


def _block_votes(
    blocks: Sequence[slice],
    voters: np.ndarray,
    Y: np.ndarray,
    queries: np.ndarray,
    distances: Callable[[slice], np.ndarray] | None,
    sharpness: float,
    visual: float,
    number: int,
) -> np.ndarray:
    where = blocks[number]
    weight = sharpness * (queries[where] @ voters.T)
    if distances is not None:
        weight -= visual * distances(where)
    weight -= weight.max(axis=1, keepdims=True)  # The largest weight becomes 1, so the sums do not underflow.
    np.exp(weight, out=weight)
    return np.asarray((weight @ Y) / weight.sum(axis=1, keepdims=True))


def log_shares(shares: np.ndarray, frequency: np.ndarray) -> np.ndarray:
    """Convert fractions of votes to scores, which are log(fraction + label frequency)."""
    # The label frequency avoids the logarithm of 0 for labels without votes. On Corel5k, the cross-validated F1 of the
    # plug-in rule is 39.7 with the logarithm, 38.7 with the square root and 38.0 with the fraction of votes itself.
    return np.log(shares + np.maximum(frequency, 1e-9))


def _ranking(scores: Sequence[np.ndarray], Y: np.ndarray) -> float:
    """Evaluate the ranking of labels by calibrated scores with two-fold cross-validation."""
    found = []
    for some, rest in ((slice(0, None, 2), slice(1, None, 2)), (slice(1, None, 2), slice(0, None, 2))):
        decide = PooledCalibration().learn([part[some] for part in scores], Y[some])
        found.append(metric_of("ranking")(Y[rest], decide([part[rest] for part in scores])))
    return float(np.mean(found))


@parametrized
class NeighborVotes(OnBase):
    """Model combined with votes of the training samples that have similar predictions and features.

    A base model predicts the label probabilities of all samples, which are out-of-fold predictions for the training
    samples. Training sample j then votes for its labels at sample i with the weight exp(sharpness e_i'e_j - visual
    S_ij). Here, e_i contains the square roots of the label probabilities, scaled to length 1, and S_ij is the distance
    of the features. A decoder combines the scores of the model with the votes.

    Parameters
    ----------
    base : estimator with a `decoder` parameter, str or None, default=None
        Base model or the path of a saved model. `fit` fits a copy with the same parameters. By default, the base model
        is `MultiViewRidge("product", weights="tagprop", ridge=0.03)`, without view weights if there is one view. If the
        kernel matrix does not fit in memory, the default is `MultiViewRidge()`, and votes ignore the features. A saved
        `NeighborVotes` contains its base model.
    sharpness : float, default=30.0
        Weight of the similarity of predictions, at least 0. On Corel5k, results hardly change between 20 and 40.
    visual : float, default=10.0
        Weight of the distance of the features, at least 0. Use 0 for a base model with low-rank kernels.
    decoder : PlugIn, PooledCalibration, str or None, default=None
        Decoder that combines scores and votes. None means `PlugIn()`, which predicts five labels per sample, as is
        usual in image annotation. For classes, or if the mean number of labels per sample is below 2.5, None means
        `PooledCalibration()`, which ranks labels by probability.

    Attributes
    ----------
    base_ : estimator
        Fitted base model.
    voters_ : ndarray of shape (n, L), float32
        Unit vectors e_j of the training samples.
    held_out_scores_, held_out_votes_ : ndarray of shape (n, L)
        Scores of the base model and logarithmic votes for the training samples, each by a fit on the other three of
        four folds. The decoder is learned from these arrays.
    rule_ : ScoreRule
        Rule that converts raw scores of the base model to ranking scores.
    classes_ : ndarray of shape (L,)
        Classes or label names.

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

    _needs: ClassVar[dict[str, Need]] = {"sharpness": NOT_NEGATIVE, "visual": NOT_NEGATIVE}

    base: str | BaseEstimator | SavedLocation | None = None
    _: KW_ONLY
    sharpness: float = 30.0
    visual: float = 10.0
    decoder: Decoder = None

    def fit(self, X: Inputs, y: Outputs) -> Self:
        """Fit the base model, and learn the decoder of scores and votes.

        Parameters
        ----------
        %(X)s
        %(y)s

        Returns
        -------
        NeighborVotes
            This estimator, fitted.

        Raises
        ------
        UserError
            If parameters, views or labels are invalid, or if the base model has no parameter `decoder`.
        """
        return self._fit(X, y)

    def _begin(self) -> None:
        self._take_base(MultiViewRidge())

    def _learn(self, data: Data) -> LeftOut:
        views, Y, base = data.views, data.Y, self.base_
        if self.base is None:
            base = self.base_ = self._default_base(len(Y), len(views))
        if "decoder" not in base.get_params():
            raise UserError(f"base = {base!r}; needs a model with the parameter decoder, such as MultiViewRidge")
        base.set_params(decoder=PooledCalibration())

        def key(memory: Memory) -> Hashable:
            rows = tuple((view, memory.name(source)) for view, source in getattr(views, "raw", views).items())
            return "voters", str(encode(base)), rows, memory.name(Y)

        parts, voters = remembered(lambda: self._voters(base, data), 32.0 * Y.size, key)
        self.base_, self.labels_, self.voters_ = voters.base, voters.labels, voters.directions
        visual = self.visual and (self.base is not None or self.base_.is_exact)
        self.distances_ = voters.distances if visual else None
        raw, found = np.zeros(Y.shape), np.zeros(Y.shape)
        for test, new, part in parts:
            raw[test], found[test] = part(new, self.sharpness, self.visual, bool(visual))
        self.held_out_votes_ = found
        if not self._only_scores:
            alone, voted = (_ranking(scores, Y) for scores in ([raw], [raw, found]))
            if voted <= alone:
                log.info(
                    "votes do not improve the ranking: %.3f with, %.3f without them; use the base alone",
                    voted,
                    alone,
                )
        return LeftOut("known", np.arange(len(Y)), [raw, found])

    def _voters(self, base: Any, data: Data) -> tuple[list[tuple[np.ndarray, Mapping[str, Rows], _Voters]], _Voters]:
        """Fit the base model on the training samples of each fold and on all samples, and return the voters."""
        # The decoder is learned from scores of test folds, whose labels are unknown to the base model and the voters.
        views, Y = data.views, data.Y
        fold = dealt(Y, row_keys(self, data, np.arange(len(Y))), min(FOLDS, len(Y)))
        parts: list[tuple[np.ndarray, Mapping[str, Rows], _Voters]] = []
        with stage("fits of the base", int(fold.max()) + 2) as advance:
            for number in range(int(fold.max()) + 1):
                train, test = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
                old, new = ({name: Subset(source, rows) for name, source in views.items()} for rows in (train, test))
                parts.append((test, new, _Voters.of(clone(base), old, Y[train])))
                advance(1)
            voters = _Voters.of(base, views, Y)
            advance(1)
        return parts, voters

    @property
    def _swept_together(self) -> tuple[str, ...]:
        return "sharpness", "visual", "decoder"  # Fits of the base model are cached, so these parameters need no fit.

    @property
    def _decides(self) -> bool:
        """Whether a decoder is learned. This is always true, because only a decoder can combine scores with votes."""
        return True

    def _learn_decoder(
        self,
        decoder: Decoder,
        scores: list[np.ndarray],
        Y: np.ndarray,
        counts: np.ndarray | None,
        keys: np.ndarray,
    ) -> None:
        few = not self.multilabel_ or 2 * self.rule_.frequency.sum() < _ANNOTATED
        super()._learn_decoder(decoder or (PooledCalibration() if few else PlugIn()), scores, Y, counts, keys)

    def _scores(self, views: Mapping[str, Rows]) -> list[np.ndarray]:
        voters = _Voters(self.base_, self.labels_, self.voters_, self.distances_)
        return list(voters(views, self.sharpness, self.visual, self.distances_ is not None))

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays, meta = super()._arrays()
        arrays |= {"voters": self.voters_, "labels": self.labels_}
        scale = None if self.distances_ is None else self.distances_.scale
        return arrays, meta | {"distance_scale": scale}

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        super()._restore(arrays, meta)
        self.voters_, self.labels_ = arrays["voters"], arrays["labels"]
        scale = meta["distance_scale"]
        self.distances_ = None if scale is None else KernelDistances.of(self.base_.expansions_, scale)

    def _default_base(self, n: int, views: int) -> MultiViewRidge:
        """Return the default base model for n samples."""
        engine = choose_engine("auto", n, 1)
        if not is_exact(engine):
            return MultiViewRidge(approximation=engine)
        return MultiViewRidge("product", weights="tagprop" if views > 1 else None, ridge=0.03, approximation=engine)


@dataclass
class _Voters:
    """Training samples whose labels count as votes for their neighbors, and the base model fitted on these samples."""

    base: Any
    labels: np.ndarray
    directions: np.ndarray
    _distances: KernelDistances | None = None
    _rows: Mapping[str, Rows] | None = None

    @classmethod
    def of(cls, base: Any, views: Mapping[str, Rows], Y: np.ndarray) -> Self:
        base.fit(views, Y)
        directions = label_directions(base.decoding_.probabilities([base.held_out_scores_]))
        return cls(base, Y, directions, None, prepare_views(base, views, reset=False))

    @property
    def distances(self) -> KernelDistances:
        if self._distances is None:
            self._distances = KernelDistances.of(self.base.expansions_, views=self._rows)
        return self._distances

    def __call__(
        self, views: Mapping[str, Rows], sharpness: float, visual: float, near: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return raw scores of the base model and logarithmic votes; votes use the features only if `near` is true."""
        prepared = prepare_views(self.base, views, reset=False)
        raw = self.base._raw_scores(prepared)
        queries = label_directions(self.base.decoding_.probabilities([raw]))
        far = partial(self.distances, prepared) if near else None
        shares = votes(self.directions, self.labels, queries, far, sharpness, visual)
        return raw, log_shares(shares, self.labels.mean(axis=0))
