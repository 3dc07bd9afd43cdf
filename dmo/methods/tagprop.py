"""TagProp: labels from weighted neighbors, and the weights of the views' distances by maximum likelihood.

x_il = sum_j pi_ij y_jl,   pi_ij = exp(-sum_v w_v d_v(i, j)) / sum_j' exp(-sum_v w_v d_v(i, j')),

over the neighbors j of sample i; w >= 0 maximizes sum_il c_il log p(y_il), where p(y_il = 1) = (1 - 2 e) x_il + e and c
gives all positives together the same weight as all negatives. The sigma variant puts a logistic function per label on
it, p(y_il = 1) = 1 / (1 + exp(-(alpha_l x_il + beta_l))), which lifts labels that few neighbors carry. Weights by rank
are pi_ij = softmax(w)_r of the neighbor of rank r, with a w_r of any sign for every rank.

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

_EPSILON = 1e-4  # a label that no neighbor carries has this probability: its logarithm stays finite
_STEPS = 100
NEIGHBORS = 200
"""Neighbors that weights are learned from."""


@dataclass(frozen=True)
class Neighborhoods:
    """Neighbors of n samples among samples with labels, and what pairs them."""

    distances: np.ndarray  # (V, n, k): of every view
    labels: scipy.sparse.csr_array  # (n k, L): row i k + j: the labels of the j-th neighbor of sample i, 0/1
    by_rank: bool = False  # weights are of ranks, not of views

    @classmethod
    def of(cls, neighbors: np.ndarray, distances: np.ndarray, Y: np.ndarray, by_rank: bool = False) -> Neighborhoods:
        """Make them from numbers of neighbors.

        neighbors (n, k); distances (V, n, k); Y (N, L)
        """
        return cls(distances, scipy.sparse.csr_array(Y)[neighbors.ravel()], by_rank)

    @cached_property
    def _entries(self) -> tuple[np.ndarray, np.ndarray]:
        """Of every label of a neighbor: which pair of samples it belongs to, and its place among the n x L predictions."""
        (n, k), L = self.distances.shape[1:], self.labels.shape[1]
        pair = np.repeat(np.arange(n * k), np.diff(self.labels.indptr))
        return pair, pair // k * L + self.labels.indices

    @property
    def start(self) -> np.ndarray:
        """Weights to begin with: nearer ones count more by distance, all the same by rank."""
        V, _, k = self.distances.shape
        return np.zeros(k) if self.by_rank else np.full(V, 4.0 / V)

    def shares(self, weights: np.ndarray) -> np.ndarray:
        """Work out the weights of the neighbors.

        weights (V,) -> (n, k)
        """
        if self.by_rank:
            exponent = np.tile(weights, (self.distances.shape[1], 1))
        else:
            exponent = -np.tensordot(weights, self.distances, 1).astype(np.float64)
        exponent -= exponent.max(axis=1, keepdims=True)
        share = np.exp(exponent)
        return share / share.sum(axis=1, keepdims=True)

    def predictions(self, shares: np.ndarray) -> np.ndarray:
        """Sum up the labels of the neighbors.

        shares (n, k) -> (n, L)
        """
        n, L = len(shares), self.labels.shape[1]
        pair, place = self._entries
        return np.bincount(place, shares.ravel()[pair], n * L).reshape(n, L)

    def gradient(self, shares: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """Work out the derivative of a function of the predictions by the weights.

        shares (n, k); slope (n, L) -> (V,)
        """
        n, k = shares.shape
        pair, place = self._entries
        of_share = np.bincount(pair, slope.ravel()[place], n * k).reshape(n, k)
        of_exponent = shares * (of_share - (shares * of_share).sum(axis=1, keepdims=True))
        if self.by_rank:
            return of_exponent.sum(axis=0)
        return -np.tensordot(self.distances, of_exponent, ([1, 2], [0, 1])).astype(np.float64)


@dataclass(frozen=True)
class TagPropFit:
    """Weights of views or ranks, and what turns predictions into probabilities."""

    weights: np.ndarray  # (V,): w
    slope: np.ndarray | None  # (L,): alpha, beta of the sigma variant
    intercept: np.ndarray | None  # (L,): alpha, beta of the sigma variant
    loss: float  # negative log-likelihood

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Probabilities of labels (m x L) from predictions x of the neighbors."""
        if self.slope is None or self.intercept is None:
            return (1 - 2 * _EPSILON) * x + _EPSILON
        return expit(self.slope * x + self.intercept)


def fit_tagprop(around: Neighborhoods, Y: np.ndarray, sigma: bool = False) -> TagPropFit:
    """Find the weights of the views, and with `sigma` the logistic function of every label, of largest likelihood.

    Y (n, L)
    """
    # Guillaumin, Mensink, Verbeek, Schmid 2009, eqs. 1-7.
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

    # the mean of x is the label's frequency: a slope on the scale of its inverse begins where every label can be heard
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
    """Labels of a sample as the weighted mean of its neighbors' labels, weights of the views by maximum likelihood.

    Parameters
    ----------
    %(distances)s
    n_neighbors : int, default=200
        Neighbors by the mean of the views' distances.
    weighting : {"distance", "rank"}, default="distance"
        What a neighbor's weight depends on: exp(-sum_v w_v d_v), a w_v of every view; or its rank among the neighbors, a
        weight of every rank.
    sigma : bool, default=True
        Put a logistic function per label on the prediction of the neighbors, which raises the recall of rare labels.
    decoder : PlugIn, PooledCalibration, str or None, default=None
        From probabilities to decisions; None: the probabilities as they are.
    %(random_state)s
    %(prepare)s

    Attributes
    ----------
    weights_ : dict of str to float
        w_v of the views; empty with weighting "rank".
    fit_ : TagPropFit
        What was learned: weights (V), or logarithms of the weights of the ranks (k), and the logistic functions.
    rule_ : ScoreRule
        Which labels a training sample carries.
    classes_ : ndarray of shape (L,)
        The classes, or the label names.

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
        # no sample is its own neighbor: what its neighbors predict is held out
        return self._predictions(around)

    @property
    def weights_(self) -> dict[str, float]:
        """Weights of the views; of weighting "rank" none."""
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
