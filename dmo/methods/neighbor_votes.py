"""Label prediction by a model combined with votes of training samples that have similar predictions.

u_il = sum_j w_ij y_jl / sum_j w_ij,   w_ij = exp(omega e_i'e_j - nu S_ij),   e_i = sqrt(p_i) / |sqrt(p_i)|,

with the label probabilities p_i of sample i (out of fold for the voters j) and a distance S of the features. The inner
product e_i'e_j is the Bhattacharyya coefficient of two label distributions. Samples are neighbors if the model predicts
the same combination of labels for both. A separate regression for each label does not use such combinations.
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
_BLOCK = 256  # number of queries per block; a block needs weights of all voters in float64


def label_directions(probabilities: np.ndarray) -> np.ndarray:
    """Compute unit vectors from label probabilities, so that inner products are Bhattacharyya coefficients.

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
    """Compute the fraction of votes for each label, on the workers of the current cluster if there is one.

    voters, labels (n, L); queries (m, L) -> (m, L)
    """
    blocks = row_blocks(len(queries), _BLOCK)
    # Use float64: in float32, the sixth digit of weights depends on the number of samples in a query.
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
    weight -= weight.max(axis=1, keepdims=True)  # the nearest voter gets weight 1, so that sums do not underflow
    np.exp(weight, out=weight)
    return np.asarray((weight @ Y) / weight.sum(axis=1, keepdims=True))


def log_shares(shares: np.ndarray, frequency: np.ndarray) -> np.ndarray:
    """Convert fractions of votes to scores for calibration: log(u_il + f_l).

    shares (m, L); frequency (L,) -> (m, L)
    """
    # Fractions of votes behave like likelihoods, so that their logarithms can be added to other evidence. The fraction
    # of a label without votes is replaced by the frequency f_l of the label. On Corel5k, the cross-validated F1 of the
    # plug-in rule is 39.7 with the logarithm, 38.0 with u itself and 38.7 with its square root.
    return np.log(shares + np.maximum(frequency, 1e-9))


def _ranking(scores: Sequence[np.ndarray], Y: np.ndarray) -> float:
    """Evaluate the ranking by calibrated scores with two-fold cross-validation.

    scores, Y (n, L)
    """
    found = []
    for some, rest in ((slice(0, None, 2), slice(1, None, 2)), (slice(1, None, 2), slice(0, None, 2))):
        decide = PooledCalibration().learn([part[some] for part in scores], Y[some])
        found.append(metric_of("ranking")(Y[rest], decide([part[rest] for part in scores])))
    return float(np.mean(found))


@parametrized
class NeighborVotes(OnBase):
    """Scores of a model combined with votes of training samples that are close in predictions and in features.

    The model `base` predicts label probabilities p_i of each sample; for training samples, which are the voters, they
    are out of fold. Voters are weighted by exp(sharpness e_i'e_j - visual S_ij), where e_i is sqrt(p_i) scaled to
    length 1, and S is the distance of the kernels of the base. Scores and votes are calibrated jointly.

    Parameters
    ----------
    base : estimator with a `decoder` parameter, str or None, default=None
        Model, or the path of a saved one. A copy is fitted with its parameters. A loaded `NeighborVotes` contains the
        model and does not open the path. None: `MultiViewRidge("product", weights="tagprop", ridge=0.03)`, the best
        model in pipelines/annotation_benchmark.py. If its kernel does not fit in memory, it is `MultiViewRidge()`, and
        votes do not use the features.
    sharpness : float, default=30.0
        Weight of the similarity of predictions, at least 0. On Corel5k, results hardly change between 20 and 40.
    visual : float, default=10.0
        Weight of the distance of the features, at least 0. Use 0 for a base without exact kernels.
    decoder : PlugIn, PooledCalibration, str or None, default=None
        Decoder of scores and votes. None: `PlugIn()`, which selects five labels per sample as is usual in annotation.
        For a vector of classes, or if samples have fewer than 2.5 labels on average, None means `PooledCalibration()`,
        which ranks labels by probability.

    Attributes
    ----------
    base_ : estimator
        Fitted model.
    voters_ : ndarray of shape (n, L), float32
        Vectors e_i of the training samples.
    held_out_scores_, held_out_votes_ : ndarray of shape (n, L)
        Out-of-fold scores and logarithmic votes of the training samples, by fits of the base on three of four folds.
        The relative weight of votes is learned from them.
    rule_ : ScoreRule
        Function from raw scores to the scores that select labels.
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
        """Fit the model and the weight of the votes.

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
            If parameters, views or labels are invalid, or if the base has no parameter `decoder`.
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
        """Fit the base on each training fold and on all samples; return the voters of each fit."""
        # The weight of votes is learned from samples of a test fold, which influence neither the base nor the voters of
        # the training fold. Leave-one-out scores of a fit on all samples would depend on each other's labels.
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
        """Always true, because only a decoder can combine scores and votes to one ranking."""
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
        """Return the default base for n samples; with one view, there are no view weights to learn."""
        engine = choose_engine("auto", n, 1)
        if not is_exact(engine):
            return MultiViewRidge(approximation=engine)
        return MultiViewRidge("product", weights="tagprop" if views > 1 else None, ridge=0.03, approximation=engine)


@dataclass
class _Voters:
    """Training samples that vote, and the base fitted on them."""

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
        """Return raw scores (m x L) and logarithmic votes; `near` uses the distance of the features as well."""
        prepared = prepare_views(self.base, views, reset=False)
        raw = self.base._raw_scores(prepared)
        queries = label_directions(self.base.decoding_.probabilities([raw]))
        far = partial(self.distances, prepared) if near else None
        shares = votes(self.directions, self.labels, queries, far, sharpness, visual)
        return raw, log_shares(shares, self.labels.mean(axis=0))
