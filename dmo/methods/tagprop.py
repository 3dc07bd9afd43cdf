"""TagProp: label prediction from weighted neighbors, with view weights learned by maximum likelihood.

x_il = sum_j pi_ij y_jl,   pi_ij = exp(-sum_v w_v d_v(i, j)) / sum_j' exp(-sum_v w_v d_v(i, j')),

where j runs over the neighbors of sample i, and d_v is the distance in view v. The weights w >= 0 maximize the
weighted log-likelihood sum_il c_il log p(y_il) with p(y_il = 1) = (1 - 2 e) x_il + e. The constants c_il give all
positive labels together the same weight as all negative labels. The sigma variant applies a logistic function to the
prediction of each label, p(y_il = 1) = 1 / (1 + exp(-(alpha_l x_il + beta_l))). It raises the scores of labels that few
neighbors have. With weights by rank, pi_ij = softmax(w)_r for the neighbor of rank r, and the weights w_r can have any
sign.

Source: Guillaumin, Mensink, Verbeek, Schmid 2009, eqs. 1-7.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import scipy.optimize
import scipy.sparse
from scipy.special import expit

from dmo.blocks import Rows
from dmo.inputs import FLAG, Need, Prepare, Scales, one_of
from dmo.methods.jec import DistanceAnnotator
from dmo.methods.options import Decoder
from dmo.parameters import parametrized

_EPSILON = 1e-4  # smallest probability of a label, which keeps logarithms finite if no neighbor has the label
_STEPS = 100
NEIGHBORS = 200
"""Number of neighbors of each sample from which view weights are learned."""


@dataclass(frozen=True)
class Neighborhoods:
    """Distances and labels of the neighbors of n samples."""

    distances: np.ndarray  # distances to the k neighbors in each of V views, of shape (V, n, k)
    labels: scipy.sparse.csr_array  # labels of neighbor j of sample i in row i k + j, as a 0/1 matrix
    by_rank: bool = False  # whether weights depend on the rank of a neighbor instead of on distances

    @classmethod
    def of(cls, neighbors: np.ndarray, distances: np.ndarray, Y: np.ndarray, by_rank: bool = False) -> Neighborhoods:
        """Create neighborhoods from neighbors, of shape (n, k), and the labels Y of all training samples."""
        return cls(distances, scipy.sparse.csr_array(Y)[neighbors.ravel()], by_rank)

    @cached_property
    def _entries(self) -> tuple[np.ndarray, np.ndarray]:
        """Return flat indices into neighbor weights and predictions, for each positive label of a neighbor."""
        (n, k), L = self.distances.shape[1:], self.labels.shape[1]
        pair = np.repeat(np.arange(n * k), np.diff(self.labels.indptr))
        return pair, pair // k * L + self.labels.indices

    @property
    def start(self) -> np.ndarray:
        """Initial weights of the views or ranks, all equal."""
        V, _, k = self.distances.shape
        return np.zeros(k) if self.by_rank else np.full(V, 4.0 / V)

    def shares(self, weights: np.ndarray) -> np.ndarray:
        """Compute the weights of the neighbors of each sample, which sum to 1, from view or rank weights."""
        if self.by_rank:
            exponent = np.tile(weights, (self.distances.shape[1], 1))
        else:
            exponent = -np.tensordot(weights, self.distances, 1).astype(np.float64)
        exponent -= exponent.max(axis=1, keepdims=True)
        share = np.exp(exponent)
        return share / share.sum(axis=1, keepdims=True)

    def predictions(self, shares: np.ndarray) -> np.ndarray:
        """Average the labels of the neighbors with `shares`, of shape (n, k), as weights."""
        n, L = len(shares), self.labels.shape[1]
        pair, place = self._entries
        return np.bincount(place, shares.ravel()[pair], n * L).reshape(n, L)

    def gradient(self, shares: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """Compute the gradient of the loss with respect to the weights; `slope` is the gradient for the predictions."""
        n, k = shares.shape
        pair, place = self._entries
        of_share = np.bincount(pair, slope.ravel()[place], n * k).reshape(n, k)
        of_exponent = shares * (of_share - (shares * of_share).sum(axis=1, keepdims=True))
        if self.by_rank:
            return of_exponent.sum(axis=0)
        return -np.tensordot(self.distances, of_exponent, ([1, 2], [0, 1])).astype(np.float64)


@dataclass(frozen=True)
class TagPropFit:
    """Fitted weights of views or ranks, and logistic functions that map predictions to probabilities."""

    weights: np.ndarray
    slope: np.ndarray | None  # slope of the logistic function of each label
    intercept: np.ndarray | None  # intercept of the logistic function of each label
    loss: float  # weighted negative log-likelihood of the training labels

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Compute label probabilities of shape (m, L) from the averaged labels x of the neighbors."""
        if self.slope is None or self.intercept is None:
            return (1 - 2 * _EPSILON) * x + _EPSILON
        return expit(self.slope * x + self.intercept)


def fit_tagprop(around: Neighborhoods, Y: np.ndarray, sigma: bool = False) -> TagPropFit:
    """Find view or rank weights by maximum likelihood, and with `sigma` also a logistic function per label."""
    # Source: Guillaumin, Mensink, Verbeek, Schmid 2009, eqs. 1-7.
    Y = np.asarray(Y, np.float64)
    start, L = around.start, Y.shape[1]
    V, limits = len(start), [(None if around.by_rank else 0, None)] * len(start)
    positives = max(Y.sum(), 1.0)
    c = np.where(Y > 0, 1 / positives, 1 / max(Y.size - positives, 1.0))
    if not sigma:

        def plain(w: np.ndarray) -> tuple[float, np.ndarray]:
            shares = around.shares(w)
            p = (1 - 2 * _EPSILON) * around.predictions(shares) + _EPSILON
            loss = -float((c * np.where(Y > 0, np.log(p), np.log1p(-p))).sum())
            slope = -(1 - 2 * _EPSILON) * c * np.where(Y > 0, 1 / p, -1 / (1 - p))
            return loss, around.gradient(shares, slope)

        found = _minimize(plain, start, limits)
        return TagPropFit(found.x, None, None, float(found.fun))

    # The mean of the averaged labels x is the label frequency. With initial slopes of 1 / frequency, rare labels
    # contribute from the first step.
    frequency = np.clip(Y.mean(axis=0), 1 / len(Y), 0.5)

    def modulated(packed: np.ndarray) -> tuple[float, np.ndarray]:
        w, alpha, beta = packed[:V], packed[V : V + L] / frequency, packed[V + L :]
        shares = around.shares(w)
        x = around.predictions(shares)
        logit = alpha * x + beta
        loss = float((c * (np.logaddexp(0, logit) - Y * logit)).sum())
        slope = c * (expit(logit) - Y)
        of_alpha = (slope * x).sum(axis=0) / frequency
        return loss, np.concatenate([around.gradient(shares, slope * alpha), of_alpha, slope.sum(axis=0)])

    begin = np.concatenate([start, np.ones(L), np.full(L, -2.0)])
    found = _minimize(modulated, begin, [*limits, *[(0, None)] * L, *[(None, None)] * L])
    return TagPropFit(found.x[:V], found.x[V : V + L] / frequency, found.x[V + L :], float(found.fun))


def _minimize(
    function: Callable[[np.ndarray], tuple[float, np.ndarray]],
    start: np.ndarray,
    bounds: Sequence[tuple[float | None, float | None]],
) -> scipy.optimize.OptimizeResult:
    return scipy.optimize.minimize(
        function, start, jac=True, bounds=bounds, method="L-BFGS-B", options={"maxiter": _STEPS, "ftol": 1e-10}
    )


@parametrized
class TagProp(DistanceAnnotator):
    """TagProp: weighted average of the labels of neighbors, with view weights learned by maximum likelihood.

    Parameters
    ----------
    %(distances)s
    n_neighbors : int, default=200
        Number of neighbors of each sample. Neighbors are the training samples with the smallest mean distance over
        views.
    weighting : {"distance", "rank"}, default="distance"
        Weights of the neighbors. "distance" uses exp(-sum_v w_v d_v), where w_v is the weight of view v and d_v is the
        distance in view v. "rank" learns one weight for each rank of a neighbor, regardless of distances.
    sigma : bool, default=True
        Apply a logistic function to the prediction of each label, which increases the recall of rare labels.
    decoder : PlugIn, PooledCalibration, str or None, default=None
        Rule that turns probabilities into label predictions. With None, labels are ranked by their probabilities.
    %(random_state)s
    %(prepare)s

    Attributes
    ----------
    weights_ : dict of str to float
        Weight w_v of each view, or an empty dictionary with weighting="rank".
    fit_ : TagPropFit
        Fitted weights of the views or ranks, and the logistic function of each label.
    rule_ : ScoreRule
        Rule that maps probabilities to the scores by which labels are ranked.
    classes_ : ndarray of shape (L,)
        Class labels or label names.

    References
    ----------
    Guillaumin, Mensink, Verbeek, Schmid 2009, equations 1-7.

    Examples
    --------
    >>> from dmo import TagProp
    >>> from dmo.demo.digits import digits
    >>> data = digits()
    >>> train = data.split == "train"
    >>> model = TagProp(n_neighbors=20).fit({name: X[train] for name, X in data.views.items()}, data.Y[train])
    >>> sorted(model.weights_) == sorted(data.views)
    True
    """

    _needs: ClassVar[dict[str, Need]] = DistanceAnnotator._needs | {
        "sigma": FLAG,
        "weighting": one_of("distance", "rank"),
    }

    distances: str | Mapping[str, str] = "auto"
    _: KW_ONLY
    n_neighbors: int = 200
    weighting: Literal["distance", "rank"] = "distance"
    sigma: bool = True
    decoder: Decoder = None
    random_state: int | None = 0
    prepare: Prepare | Scales = "auto"

    def _learn_neighbors(self, views: Mapping[str, Rows]) -> np.ndarray:
        around = self._around(views, same=True)
        self.fit_ = fit_tagprop(around, self.labels_, self.sigma)
        # No sample is its own neighbor, so these predictions are leave-one-out predictions.
        return self._predictions(around)

    @property
    def weights_(self) -> dict[str, float]:
        """Weight of each view, or an empty dictionary with weighting "rank"."""
        return (
            {}
            if self.weighting == "rank"
            else dict(zip(self.distances_.kernels, self.fit_.weights.tolist(), strict=True))
        )

    def _around(self, views: Mapping[str, Rows], same: bool = False) -> Neighborhoods:
        return Neighborhoods.of(*self._nearest(views, same), self.labels_, self.weighting == "rank")

    def _predictions(self, around: Neighborhoods) -> np.ndarray:
        return self.fit_(around.predictions(around.shares(self.fit_.weights)))

    def _neighbor_scores(self, views: Mapping[str, Rows], same: bool = False) -> np.ndarray:
        return self._predictions(self._around(views, same))

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays, meta = super()._arrays()
        arrays["weights"] = self.fit_.weights
        if self.fit_.slope is not None:
            arrays |= {"slope": self.fit_.slope, "intercept": self.fit_.intercept}
        return arrays, meta | {"loss": self.fit_.loss}

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        super()._restore(arrays, meta)
        self.fit_ = TagPropFit(arrays["weights"], arrays.get("slope"), arrays.get("intercept"), meta["loss"])
