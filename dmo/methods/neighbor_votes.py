"""Annotation by a model and by the votes of samples of which it says the same.

u_il = sum_j w_ij y_jl / sum_j w_ij,   w_ij = exp(omega e_i'e_j - nu S_ij),   e_i = sqrt(p_i) / |sqrt(p_i)|,

with p_i the label probabilities of sample i (those of voters j held out) and S a distance of features. The inner
product of square roots is the Bhattacharyya coefficient of the two label distributions: samples are neighbors where the
model expects the same labels together, which is what a regression of each label for itself cannot see.
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
_ANNOTATED = 5  # labels a sample that `PlugIn()` gives
_BLOCK = 256  # queries whose weights over all voters (float64) are in memory at a time


def label_directions(probabilities: np.ndarray) -> np.ndarray:
    """Turn label probabilities into directions, whose inner products are Bhattacharyya coefficients.

    probabilities (m, L) -> (m, L)
    """
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
    """Count the shares of votes that labels get, on the workers of the current cluster where there is one.

    voters, labels (n, L); queries (m, L) -> (m, L)
    """
    blocks = row_blocks(len(queries), _BLOCK)
    # in float32 a sample's weights would depend, in the sixth digit, on how many others are asked for with it
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
    weight -= weight.max(axis=1, keepdims=True)  # the nearest voter has weight 1: no sum underflows
    np.exp(weight, out=weight)
    return np.asarray((weight @ Y) / weight.sum(axis=1, keepdims=True))


def log_shares(shares: np.ndarray, frequency: np.ndarray) -> np.ndarray:
    """Turn shares of votes into what calibration takes: log(u_il + f_l).

    shares (m, L); frequency (L,) -> (m, L)
    """
    # Shares are products of likelihoods, so that their logarithm is what adds up with other evidence; a label without
    # a vote counts as if the frequency f_l of the label were its share. On Corel5k (cross-validated F1 of the plug-in
    # rule): 39.7, against 38.0 with u itself and 38.7 with its square root.
    return np.log(shares + np.maximum(frequency, 1e-9))


def _ranking(scores: Sequence[np.ndarray], Y: np.ndarray) -> float:
    """How well every second sample is ranked by probabilities that the others teach. scores (n, L); Y (n, L)"""
    found = []
    for some, rest in ((slice(0, None, 2), slice(1, None, 2)), (slice(1, None, 2), slice(0, None, 2))):
        decide = PooledCalibration().learn([part[some] for part in scores], Y[some])
        found.append(metric_of("ranking")(Y[rest], decide([part[rest] for part in scores])))
    return float(np.mean(found))


@parametrized
class NeighborVotes(OnBase):
    """Adds to the scores of a model the votes of training samples that are neighbors in its scores and in the features.

    The model `base` says p_i of every sample, of voters held out; neighbors are weighted by
    exp(sharpness e_i'e_j - visual S_ij), e the square roots of p scaled to length 1 and S the distance of the base's
    kernels. Scores and votes are calibrated together.

    Parameters
    ----------
    base : estimator with a `decoder` parameter, str or None, default=None
        The model, or the path of a saved one. A copy is fitted with its parameters. A loaded `NeighborVotes` has the model
        itself and does not open the path. None:
        `MultiViewRidge("product", weights="tagprop", ridge=0.03)`, the best by pipelines/annotation_benchmark.py; where
        its kernel would not fit in memory, `MultiViewRidge()` and votes by what it says alone.
    sharpness : float, default=30.0
        Weight of what the base says, at least 0 (flat between 20 and 40 on Corel5k).
    visual : float, default=10.0
        Weight of the distance of the features, at least 0; 0 for a base without exact kernels.
    decoder : PlugIn, PooledCalibration, str or None, default=None
        From scores and votes to decisions; None: `PlugIn()`, whose five labels a sample are those of annotation; of a
        vector of classes, and where samples have less than 2.5 labels on average, `PooledCalibration()`, which ranks by
        probability.

    Attributes
    ----------
    base_ : estimator
        The fitted model.
    voters_ : ndarray of shape (n, L), float32
        e of the training samples.
    held_out_scores_, held_out_votes_ : ndarray of shape (n, L)
        What fits of the base on three of four parts say of the training samples of the fourth, and logarithms of the votes
        of those parts: what votes are worth is learned from them.
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

    _needs: ClassVar[dict[str, Need]] = {"sharpness": NOT_NEGATIVE, "visual": NOT_NEGATIVE}

    base: str | BaseEstimator | SavedLocation | None = None
    _: KW_ONLY
    sharpness: float = 30.0
    visual: float = 10.0
    decoder: Decoder = None

    def fit(self, X: Inputs, y: Outputs) -> Self:
        """Learn the model, and what its votes are worth.

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
            For parameters, views or labels that do not fit together, and for a base that takes no decoder.
        """
        return self._fit(X, y)

    def _begin(self) -> None:
        self._take_base(MultiViewRidge())

    def _learn(self, data: Data) -> LeftOut:
        views, Y, base = data.views, data.Y, self.base_
        if self.base is None:
            base = self.base_ = self._default_base(len(Y), len(views))
        if "decoder" not in base.get_params():
            raise UserError(f"base = {base!r}; needs a model that scores labels and takes a decoder, as MultiViewRidge")
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
                    "votes of neighbors do not pay: held-out ranking %.3f, without %.3f; fit the base", voted, alone
                )
        return LeftOut("known", np.arange(len(Y)), [raw, found])

    def _voters(self, base: Any, data: Data) -> tuple[list[tuple[np.ndarray, Mapping[str, Rows], _Voters]], _Voters]:
        """Fits of the base on all samples but each fold's, whose votes are held out, and on all."""
        # a vote's weight compares scores, and held-out scores of the whole fit have seen each other's labels: what votes are
        # worth is learned from samples that neither the base nor the voters of their fold have seen
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
        return "sharpness", "visual", "decoder"  # fits of the base are cached

    @property
    def _decides(self) -> bool:
        """Always: votes and scores are one ranking by the decoder alone."""
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
        """The base for n samples where none is given; of one view there are no weights to learn."""
        engine = choose_engine("auto", n, 1)
        if not is_exact(engine):
            return MultiViewRidge(approximation=engine)
        return MultiViewRidge("product", weights="tagprop" if views > 1 else None, ridge=0.03, approximation=engine)


@dataclass
class _Voters:
    """Samples that vote, and the base that was fitted on them."""

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
        """Raw scores of samples (m x L), and logarithms of their votes; `near`: by the distance of the features too."""
        prepared = prepare_views(self.base, views, reset=False)
        raw = self.base._raw_scores(prepared)
        queries = label_directions(self.base.decoding_.probabilities([raw]))
        far = partial(self.distances, prepared) if near else None
        shares = votes(self.directions, self.labels, queries, far, sharpness, visual)
        return raw, log_shares(shares, self.labels.mean(axis=0))
