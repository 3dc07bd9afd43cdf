"""Label propagation on a neighbor graph.

The matrix W (n x n) contains the edge weights of the graph, and Sigma (L x L) the similarities of the classes. The
indices l and u select the labeled and the unlabeled samples. With the Laplacian Lap and the normalized Laplacian Ln,
the scores Z (n x L) minimize
  smse2    |Z_l - Y_l|^2 + |Z_u|^2 + lam1 tr(Z' Ln(W) Z) + lam2 tr(Z Ln(Sigma) Z')                [MOPE 24]
  ml-grf   |Z_l - Y_l|^2 + lam1 tr(Z' Lap(W) Z) - lam2 tr(Z Sigma Z')                             [MOPE 25]
  ml-lgc   |Z_l - Y_l|^2 + |Z_u|^2 + lam1 tr(Z' Ln(W) Z) - lam2 tr(Z Sigma Z')                    [MOPE 25]
The method smse1 [MOPE 23] fixes Z_l = Y_l and minimizes lam1 tr(Z' Lap(W) Z) + lam2 tr(Z Lap(Sigma) Z').
Each minimum solves A Z + Z C = R, where A is sparse and C = Q diag(s) Q'. Column j of V = Z Q solves the linear system
(A + s_j I) v_j = R q_j.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph
from scipy.sparse import csr_array
from scipy.sparse.linalg import ArpackNoConvergence, eigsh
from sklearn.exceptions import ConvergenceWarning

from dmo.blocks import Rows, alike, iterate, rows, stacked
from dmo.decide.decoders import Scores
from dmo.decide.out_of_fold import FEW_ROWS, LEAST, LeftOut, dealt, row_keys
from dmo.errors import TooFewSamples, UserError
from dmo.fit.engine import FOLDS
from dmo.fit.training_rows import owned
from dmo.graphs import adjacency, laplacian, local_scales, nearest, neighbors, weigh
from dmo.inputs import (
    NOT_NEGATIVE,
    POSITIVE,
    Data,
    Inputs,
    Need,
    Outputs,
    Prepare,
    SampleWeights,
    Scales,
    check_parameters,
    optional,
    read_some,
)
from dmo.labels.proximities import Proximity, class_similarities
from dmo.linalg.cg import solve_shifted
from dmo.methods.annotator import Annotator
from dmo.methods.options import GAUSSIAN, Decoder, Graph
from dmo.parameters import Part, parametrized

Propagation = Literal["smse1", "smse2", "ml-grf", "ml-lgc"]
METHODS = ("smse1", "smse2", "ml-grf", "ml-lgc")
_DENSE = 1500

log = logging.getLogger("dmo")


@dataclass(frozen=True)
class Propagated:
    """Label scores of all samples, with the weight of the class similarities and the residual of the solver."""

    scores: np.ndarray
    correlation: float
    steps: int
    residual: float


def propagate(
    method: Propagation,
    W: csr_array,
    Y: np.ndarray,
    known: np.ndarray,
    sigma: np.ndarray,
    smoothness: float,
    correlation: float | None,
    tol: float = 1e-8,
    max_steps: int = 10_000,
) -> Propagated:
    """Compute label scores of all samples from the labels Y of the samples that are marked in `known`.

    W contains the edge weights of the graph (n x n), and `sigma` the similarities of the classes (L x L).
    """
    if method not in METHODS:
        raise UserError(f"method = {method!r}; known: {', '.join(METHODS)}")
    if W.nnz and W.data.min() < 0:
        raise UserError(
            f"the graph has a weight of {W.data.min():.3g}, and propagation needs weights of at least 0; use 'gaussian'"
        )
    if method in ("smse1", "ml-grf"):
        _check_reached(W, known)
    Y = np.where(known[:, None], Y, 0.0)
    L = laplacian(W, normalized=method in ("smse2", "ml-lgc")) * smoothness
    unknown = np.flatnonzero(~known)
    if method == "smse1":
        A, R = csr_array(L[unknown][:, unknown]), -np.asarray(L[unknown] @ Y)
    else:
        fit = known.astype(np.float64) if method == "ml-grf" else np.ones(len(Y))
        A, R = csr_array(L + scipy.sparse.diags_array(fit)), Y
    if method.startswith("smse"):
        correlation = 0.1 if correlation is None else correlation
        C = laplacian(csr_array(sigma), normalized=method == "smse2").toarray()
        shifts, Q = scipy.linalg.eigh((C + C.T) / 2)
        if shifts[0] < -1e-9 * max(abs(shifts).max(), 1.0) and correlation:
            raise UserError("the Laplacian of the class similarities is indefinite; use similarities of at least 0")
        shifts = correlation * np.maximum(shifts, 0.0)
    else:
        values, Q = scipy.linalg.eigh((sigma + sigma.T) / 2)
        correlation = _bounded(method, A, values[-1], correlation)
        shifts = -correlation * values
    if not A.shape[0]:
        return Propagated(Y, correlation, 0, 0.0)
    V, steps, residual = solve_shifted(A, shifts, R @ Q, tol, max_steps)
    if method != "smse1":
        return Propagated(V @ Q.T, correlation, steps, residual)
    Z = Y.copy()
    Z[unknown] = V @ Q.T
    return Propagated(Z, correlation, steps, residual)


def _check_reached(W: csr_array, known: np.ndarray) -> None:
    """Raise an error if a connected component has no labeled sample, because the linear system is then singular."""
    count, member = scipy.sparse.csgraph.connected_components(scipy.sparse.csr_matrix(W), directed=False)
    reached = np.bincount(member, weights=known, minlength=count) > 0
    if not reached.all():
        sizes = np.bincount(member)[~reached]
        raise TooFewSamples(
            f"{len(sizes)} of the graph's {count} components have no sample with known labels ({sizes.sum()} samples); "
            f"raise n_neighbors, label one sample of each, or use method 'ml-lgc' or 'smse2'"
        )


def _bounded(method: str, A: csr_array, largest: float, correlation: float | None) -> float:
    """Return the weight lam2 of the class similarities, and check that the objective is bounded."""
    # The objective is bounded if lam2 is below the smallest eigenvalue of A divided by the largest eigenvalue of Sigma.
    if correlation == 0:
        return correlation
    # For "ml-lgc", the smallest eigenvalue of A = I + lam1 Ln is 1, because the smallest eigenvalue of Ln is 0.
    smallest = 1.0 if method == "ml-lgc" else _smallest(A)
    bound = smallest / largest
    if correlation is None:
        return bound / 2
    if correlation >= bound:
        raise TooFewSamples(  # The bound can be smaller in a cross-validation fold.
            f"correlation = {correlation:g} makes {method} unbounded; it must be below {bound:.4g}, the smallest "
            f"eigenvalue of the graph's matrix ({smallest:.3g}) over the largest of the class similarities "
            f"({largest:.3g})"
        )
    return correlation


def _smallest(A: csr_array) -> float:
    n = A.shape[0]
    if n <= _DENSE:
        return float(scipy.linalg.eigvalsh(A.toarray(), subset_by_index=[0, 0])[0])
    try:
        start = np.random.default_rng(0).standard_normal(n)
        found = eigsh(A, 1, which="SA", ncv=60, tol=1e-3, maxiter=500, v0=start, return_eigenvectors=False)
    except ArpackNoConvergence as error:
        raise UserError(
            "the smallest eigenvalue of the graph's matrix, which bounds correlation, was not found; use "
            "correlation=0, or method 'ml-lgc'"
        ) from error
    return float(found[0])


_BLOCK = 2048


@parametrized
class LabelPropagation(Annotator):
    """Label propagation on a neighbor graph and among similar classes.

    To mark a sample as unlabeled, fill its row of a label matrix with NaN or -1, or set its class to -1 or NaN. A row
    of zeros means that the sample has none of the labels. The scores of a new sample are the weighted mean of the
    scores of its nearest training samples.

    Parameters
    ----------
    method : {"smse1", "smse2", "ml-grf", "ml-lgc"}, default="ml-lgc"
        Objective to minimize, see `dmo.methods.propagation`. "smse1" and "ml-grf" need a labeled sample in every
        connected component of the graph.
    smoothness : float, default=1.0
        Weight of the graph Laplacian, above 0. Larger values make the scores of neighbors more similar.
    correlation : float or None, default=None
        Weight of the class similarities, at least 0. For "ml-grf" and "ml-lgc", the objective is bounded only for
        weights below a bound that the error message reports. By default, the weight is half of this bound for these two
        methods, and 0.1 for the other methods.
    class_similarity : str, default="cosine"
        Similarity of two columns of the known labels. See `dmo.labels.proximities.Proximity` (scheme "classes").
    graph : Graph, str, ndarray of shape (n, n) or None, default=None
        Neighbor graph with nonnegative weights. By default, the graph connects each sample to its 15 nearest neighbors
        (adjacency "union") with Gaussian weights.
    tol : float, default=1e-8
        Tolerance for the relative residuals of the sparse linear systems.
    max_iter : int, default=10_000
        Maximum number of steps of the iterative solver, after which a ConvergenceWarning is issued.
    decoder : Calibration, PlugIn, PooledCalibration, Scores, str or None, default=None
        Rule that ranks and selects labels. It is learned from scores of labeled samples whose labels were left out of
        the propagation. By default, labels are ranked by score, as with `Scores`. Learning its `label_sets` repeats the
        propagation four times, each time without a quarter of the known labels, or once above 1000 labeled samples. No
        label sets are learned if the graph is a matrix.
    %(random_state)s
    %(prepare)s

    Attributes
    ----------
    scores_ : ndarray of shape (n, L)
        Label scores of the training samples.
    correlation_ : float
        Weight of the class similarities in the fit.
    classes_ : ndarray of shape (L,)
        Classes or label names.
    n_iter_ : int
        Number of steps of the iterative solver.

    References
    ----------
    Mu, Goulermas, Tsujii, Ananiadou 2012, equations 23-25.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dmo import Graph, LabelPropagation
    >>> X, y = load_iris(return_X_y=True)
    >>> known = y.copy()
    >>> known[::2] = -1
    >>> model = LabelPropagation(graph=Graph(n_neighbors=10)).fit(X, known)
    >>> bool((model.predict(X) == y).mean() > 0.9)
    True
    """

    one_view = True
    _takes_unknown_classes = True
    _prepare = Part(Prepare, scale="auto", impute=None)
    _by_scores = Part(Scores, "decoder", label_sets=True, hierarchy=None)
    _graph = Part(Graph, **GAUSSIAN)
    _needs: ClassVar[dict[str, Need]] = {
        "smoothness": POSITIVE,
        "correlation": optional(NOT_NEGATIVE),
    }

    method: Propagation = "ml-lgc"
    _: KW_ONLY
    smoothness: float = 1.0
    correlation: float | None = None
    class_similarity: str = "cosine"
    graph: Graph | str | np.ndarray | None = None
    tol: float = 1e-8
    max_iter: int = 10_000
    decoder: Decoder = None
    random_state: int | None = 0
    prepare: Prepare | Scales = "auto"

    def fit(self, X: Inputs, y: Outputs | None = None) -> Self:
        """Propagate the known labels to all samples.

        Parameters
        ----------
        X : rows of shape (n, d)
            Samples, which are read into memory.
        y : array-like of shape (n, L) or (n,)
            Label matrix of 0 and 1, or vector of n classes. Some samples can be unlabeled.

        Returns
        -------
        LabelPropagation
            This estimator, fitted.

        Raises
        ------
        UserError
            If parameters, samples or labels are invalid.
        """
        return self._fit(X, y)

    def _read(self, views: Mapping[str, Rows], y: Any, weights: SampleWeights | None) -> Data:
        return read_some(self, views, y, weights)

    def _learn(self, data: Data) -> LeftOut:
        view, source = data.only
        Y, known = data.Y, data.weights.labels > 0
        self.rows_ = rows(source) if self._only_scores else rows(owned(source, view))
        W, near = self._weigh()
        found = self._propagated(W, Y, known)
        if found.residual > 10 * self.tol:
            self._warn(
                f"the systems stopped after {found.steps} steps with a residual of {found.residual:.1e}; raise "
                "max_iter, "
                f"or tol above {self.tol:g}",
                ConvergenceWarning,
            )
        self.view_, self.scores_, self.correlation_ = view, found.scores, found.correlation
        self.n_iter_ = max(1, found.steps)
        return LeftOut("") if near is None else self._held_out(W, near, data)

    def _propagated(self, W: csr_array, Y: np.ndarray, known: np.ndarray) -> Propagated:
        sigma = class_similarities(Y[known], Proximity("classes", self.class_similarity))
        return propagate(self.method, W, Y, known, sigma, self.smoothness, self.correlation, self.tol, self.max_iter)

    def _held_out(self, W: csr_array, near: csr_array, data: Data) -> LeftOut:
        """Score labeled samples in the same way as new samples, by propagations without the labels of these samples."""
        Y, rows = data.Y, data.labeled
        if not self._decides or len(rows) < LEAST:
            return LeftOut("")
        fold = dealt(Y[rows], row_keys(self, data, rows), FOLDS)
        parts = range(FOLDS if self._decoder is not None or len(rows) <= FEW_ROWS else 1)

        scores = np.zeros(Y.shape)
        try:
            for number in parts:
                test, known = rows[fold == number], np.zeros(len(Y), bool)
                known[rows[fold != number]] = True
                scores[test] = near[test] @ self._propagated(W, Y, known).scores
        except TooFewSamples as error:
            if self._decoder is not None:
                raise
            log.info("no label sets or probabilities are learned: %s", error)
            return LeftOut("")
        found = np.sort(rows[np.isin(fold, parts)])
        return LeftOut("known", found, [scores[found]])

    def _weigh(self) -> tuple[csr_array, csr_array | None]:
        """Return the edge weights of the graph, and the neighbor weights that score each sample like a new sample."""
        X, given = self.rows_, self._graph
        k = self._fewer("n_neighbors", given.n_neighbors, X.shape[0] - 1)
        found = neighbors(X, k, given.metric, method=given.search, random_state=self.random_state)
        graph = adjacency(found, given.adjacency)
        self.bandwidth_: float | str = given.bandwidth
        self.scales_: np.ndarray | None = None
        if isinstance(given.weight, str) and given.weight == "gaussian" and self.bandwidth_ == "mean":
            self.bandwidth_ = float(weigh(graph, X, "distance").data.mean())
        if isinstance(given.weight, str) and given.weight == "local":
            self.scales_ = local_scales(X, given.local)
        options = given.weight, self.bandwidth_, given.local, self.scales_, given.tau
        near = adjacency(found, "directed") if isinstance(given.weight, str) else None
        return weigh(graph, X, *options), None if near is None else _shares(weigh(near, X, *options), near)

    def _raw_scores(self, views: Mapping[str, Rows]) -> np.ndarray:
        if not isinstance(self._graph.weight, str):
            raise UserError("a weight matrix does not contain new samples; use scores_, or a weight such as 'gaussian'")
        source = next(iter(views.values()))
        out = np.empty((source.shape[0], self.scores_.shape[1]))
        for where, block in iterate(source, _BLOCK):
            out[where] = self._means(block)
        return out

    def _means(self, block: Any) -> np.ndarray:
        """Compute scores of new samples as weighted means of the scores of their nearest training samples."""
        X, m, given = self.rows_, block.shape[0], self._graph
        n = X.shape[0]
        k = min(given.n_neighbors, n - 1)  # The graph of the training samples has the same number of neighbors.
        found = nearest(block, X, min(max(k, given.local), n), given.metric)
        left, right = np.repeat(np.arange(m), k), m + found.indices[:, :k].ravel()
        edges = csr_array((np.ones(len(left)), (left, right)), shape=(m + n, m + n))
        both = stacked([alike(block, X), X])
        scales = None
        if self.scales_ is not None:
            reach = nearest(block, X, min(given.local, n)).distances[:, -1]
            smallest = self.scales_[self.scales_ > 0].min()
            scales = np.concatenate([np.where(reach > 0, reach, smallest), self.scales_])
        w = csr_array(weigh(edges, both, given.weight, self.bandwidth_, given.local, scales, given.tau)[:m, m:])
        return np.asarray(_shares(w, csr_array(edges[:m, m:])) @ self.scores_)

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays = {"rows": self.rows_, "scores": self.scores_}
        if self.scales_ is not None:
            arrays["scales"] = self.scales_
        meta = {"view": self.view_, "n_iter": self.n_iter_}
        return arrays, meta | {"bandwidth": self.bandwidth_, "correlation": self.correlation_}

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        check_parameters(self)  # The neighbor search of new samples uses the parameters.
        self.rows_, self.scores_, self.scales_ = arrays["rows"], arrays["scores"], arrays.get("scales")
        self.view_, self.n_iter_ = meta["view"], meta["n_iter"]
        self.bandwidth_, self.correlation_ = meta["bandwidth"], meta["correlation"]


def _shares(weights: csr_array, edges: csr_array) -> csr_array:
    """Scale the edge weights of each row to sum to 1, with equal weights if no weight of the row is positive."""
    weights.data = np.maximum(weights.data, 0.0)
    empty = np.asarray(weights.sum(axis=1)).ravel() <= 0
    w = csr_array(weights + scipy.sparse.diags_array(empty.astype(float)) @ edges)
    return csr_array(scipy.sparse.diags_array(1 / np.asarray(w.sum(axis=1)).ravel()) @ w)
