"""Multi-output proximity-based embedding (MOPE), which places similar samples close to each other.

The coordinates Z maximize tr(Z' S Z), where S is a sparse symmetric n x n matrix of proximities of the samples.
References such as [MOPE 44] are equations of Mu, Goulermas, Tsujii, Ananiadou 2012.
"""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar, Literal, Self

import numpy as np
import scipy.sparse
from scipy.sparse import csr_array

from dmo.blocks import rows
from dmo.errors import TooFewSamples, UserError
from dmo.fit.functions import KernelExpansion, LinearExpansion
from dmo.graphs import adjacency, ends, laplacian, local_scales, neighbors, root_mean_square, weigh
from dmo.inputs import (
    COUNT,
    FLAG,
    NOT_NEGATIVE,
    SHARE,
    Data,
    Inputs,
    Need,
    Outputs,
    Prepare,
    Scales,
    count_components,
    one_of,
    optional,
)
from dmo.kernels import Kernel, Linear, gram_matrix, parse
from dmo.kernels.multikernel import MultiKernel
from dmo.labels.proximities import Combination, Proximity, Scheme, all_pairs, combine, strongest
from dmo.linalg.eigen import CUTOFF, block_krylov, check_rank, fix_signs, solve_trace
from dmo.methods.catalog import METHODS, UNSUPERVISED
from dmo.methods.options import GAUSSIAN, PAIRS_TOO, Combine, Decoder, Graph, KernelSpec, MethodOptions, Solver
from dmo.methods.projection import DecodingProjection
from dmo.methods.projector import Projected, check_has_features, embed
from dmo.methods.quadratic_forms import Options, QuadraticForm, TraceProblem, TraceSamples, mix
from dmo.methods.trace_solvers import EmbeddingFit, solve_direct, solve_projected
from dmo.parameters import Part, parametrized

Constraint = Literal["projection", "embedding", "coefficients"]
CONSTRAINTS: dict[str, float] = {"projection": 0.5, "embedding": 0.0, "coefficients": 1.0}
"""Exponent of the eigenvalues of the kernel matrix K for each constraint on the coefficients Gamma.

The constraint "projection" is Gamma'K Gamma = I, "embedding" is Gamma'KK Gamma = I, and "coefficients" is
Gamma'Gamma = I.
"""


def semi_supervised(
    psi: csr_array,
    labeled: np.ndarray,
    constraint: Constraint,
    ridge: float,
    center: bool,
    W: csr_array | None,
    mixing: float,
    method: Literal["pca", "olpp"],
) -> TraceProblem:
    """Combine the proximities of labeled samples with an unsupervised term A for all samples [MOPE 44, 45].

    The objective is mixing * psi + (1 - mixing) * A.
    """
    # For "pca", A is the identity. For "olpp", A is minus the Laplacian of the graph with weights W. The constraint
    # "embedding" combines Z'Z of the labeled samples and Z'Z of all samples with the same weights.
    if method not in ("pca", "olpp"):
        raise UserError(f"unsupervised = {method!r}; known: pca, olpp")
    n, index = len(labeled), np.flatnonzero(labeled)

    def problem(A: QuadraticForm) -> TraceProblem:
        if constraint == "embedding":
            return TraceProblem(A, QuadraticForm(A.n, identity=1.0), ridge, center)
        return TraceProblem(A, center=center)

    own = problem(QuadraticForm(len(index), csr_array(psi[index][:, index])))
    if center and len(index) < n:
        own = own.each(QuadraticForm.centered)
    own = own.each(lambda form: form.spread(index, n))
    if W is None:
        return own
    other = QuadraticForm(n, identity=1.0) if method == "pca" else QuadraticForm(n, csr_array(-laplacian(W)))
    return mix(own, problem(other), mixing)


def project_labels(name: str, Y: np.ndarray, rank: int | None) -> np.ndarray | None:
    """Project the rows of a label matrix to `rank` coordinates by an unsupervised method [MOPE 39].

    Return None for "pca", whose coordinates `Proximity` computes itself.
    """
    if name == "pca":
        return None
    labeled, entry = np.flatnonzero(Y.any(axis=1)), METHODS[name]
    rows = Y[labeled].astype(np.float64)
    k = int(np.linalg.matrix_rank(rows - rows.mean(axis=0))) if rank is None else rank
    problem = entry.problem(TraceSamples(len(rows), rows, center=entry.center), Options())
    found = solve_direct(problem, k).vectors if entry.direct else rows @ solve_projected(problem, rows, k).coefficients
    Z = np.zeros((len(Y), found.shape[1]))
    Z[labeled] = found
    return Z


def project_long_rows(
    S: QuadraticForm, X: Any, k: int, mean: np.ndarray | None, tol: float, max_steps: int, random_state: int | None
) -> EmbeddingFit:
    """Compute the leading eigenvectors of X'SX by block Krylov iteration, without forming this d x d matrix."""

    def rows(B: np.ndarray) -> np.ndarray:
        Z = np.asarray(X @ B)
        return Z if mean is None else Z - mean @ B

    def apply(B: np.ndarray) -> np.ndarray:
        V = S @ rows(B)
        out = np.asarray(X.T @ V)
        return out if mean is None else out - np.outer(mean, V.sum(axis=0))

    width = min(k + 10, X.shape[1])
    start = np.random.default_rng(random_state).standard_normal((X.shape[0], width))
    found = block_krylov(apply, np.asarray(X.T @ start), k, tol, max_steps)
    return EmbeddingFit(found.values, found.vectors, found.steps, found.converged, float(found.residuals.max()))


def project_kernel(S: QuadraticForm, K: np.ndarray, k: int, constraint: Constraint, ridge: float = 0.0) -> EmbeddingFit:
    """Compute the coefficients Gamma of the coordinates Z = K Gamma for a kernel matrix K [MOPE 46]."""
    # With the eigendecomposition K = V diag(l) V', the solution is Gamma = V (s / l) q, where q contains the
    # eigenvectors of s V'SV s. The scale s is l^e, where e is the exponent of the constraint. With a ridge, the
    # constraint is Gamma'(KK + ridge K)Gamma = I, and s is (l / (l + ridge))^1/2.
    l, V = scipy.linalg.eigh(K, check_finite=False)
    keep = l > CUTOFF * max(l[-1], np.finfo(float).tiny)
    l, V = l[keep], V[:, keep]
    check_rank(len(l), k)
    scale = np.sqrt(l / (l + ridge)) if constraint == "embedding" else l ** CONSTRAINTS[constraint]
    weighted = V * scale
    found = solve_trace(weighted.T @ (S @ weighted), None, k)
    return EmbeddingFit(found.values, fix_signs(V @ ((scale / l)[:, None] * found.vectors)))


_SMALL = 6000
"""Maximum number of rows of dense square matrices in a linear projection."""
_ALL = 4000
"""Maximum number of samples for a graph of all pairs."""


@parametrized
class MOPE(DecodingProjection):
    r"""Multi-output proximity-based embedding of samples with one or several labels.

    Samples with similar labels and features get similar coordinates. The proximity of two samples combines the
    similarity of their labels with a weight computed from their features.

    A sample is unlabeled if its row of y contains only 0, only NaN or only -1, or if its class is -1 or NaN. Unlabeled
    samples affect only the unsupervised term (see `options`), and they are embedded like new samples. With center=True,
    the supervised term is centered at the mean of the labeled samples.

    Parameters
    ----------
    proximity : Proximity or {"classes", "bits", "projection"}, default="classes"
        Label proximity G of two samples. "classes" averages the similarities of their classes. "bits" compares their
        label sets. "projection" compares coordinates of the label sets in a smaller space.
    combination : Combine or {"priority", "hadamard", "sum", "labels", "features"}, default="priority"
        Rule that combines the label proximities G and the feature weights W into the proximities Psi.
    graph : Graph, str, ndarray of shape (n, n) or None, default=None
        Neighbor graph with the feature weights W. The proximity Psi is 0 for samples that are not connected. By
        default, the graph connects each sample to its 15 nearest neighbors (adjacency "union") with Gaussian weights.
        The default bandwidth is the mean length of the edges, or the root mean square distance of all pairs if Psi is
        computed for all pairs.
    n_components : int, default=2
        Number of coordinates.
    constraint : {"projection", "embedding", "coefficients"}, default="projection"
        Matrix that must be orthonormal: the projection P, the embedding Z = X P, or the kernel coefficients.
    ridge : float, default=0.0
        Regularization strength c in the constraint Z'Z + c P'P = I, at least 0, for "embedding" only. The value depends
        on the units of the features.
    center : bool, default=False
        Whether to center the features, or the feature space of the kernel. Sparse rows stay sparse.
    kernel : str or Kernel, default="linear"
        Kernel of the features. "linear" projects the features themselves. Other kernels need an n x n matrix in memory
        unless `n_landmarks` is given.
    n_landmarks : int or None, default=None
        Number of random training samples whose similarities replace the features. The similarities are values of
        `kernel`, or distances if `kernel` is "euclidean". None means that no landmarks are used.
    options : MethodOptions or None, default=None
        Unsupervised term A of the objective `mixing` Psi + (1 - `mixing`) A. With unsupervised="olpp", A is minus the
        Laplacian of a nearest-neighbor graph, with 15 neighbors if `n_neighbors` is "all". With unsupervised="pca", A
        is the identity. None means mixing=1.0 and "olpp".
    solver : Solver or None, default=None
        Iterative solver for data with more than 6000 samples and more than 6000 features. None means tol=1e-6 and
        max_iter=300.
    %(decoder)s
    %(random_state)s
    %(prepare)s

    Attributes
    ----------
    expansion_ : Expansion
        Fitted function that computes the coordinates of new samples.
    eigenvalues_ : ndarray of shape (n_components,)
        Eigenvalues in descending order.
    n_components_ : int
        Number of coordinates.
    embedding_ : ndarray of shape (n, n_components)
        Coordinates of the training samples, if `kernel` is not "linear" or `n_landmarks` is given.
    proximity_ : csr_array of shape (n, n)
        Proximity Psi of each pair of connected training samples.
    n_iter_ : int
        Number of iterations.

    Notes
    -----
    Without an unsupervised term, the coordinates Z of the training samples solve

    .. math:: \max_Z \; \mathrm{tr}(Z' \Psi Z),

    where the scale of Z is limited by `constraint`.

    References
    ----------
    Mu, Goulermas, Tsujii, Ananiadou 2012, equations 30, 31 and 34-46.

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from dmo import MOPE, Graph, Proximity
    >>> X, Y = make_multilabel_classification(n_samples=200, n_classes=5, random_state=0)
    >>> model = MOPE(Proximity("bits", "jaccard"), graph=Graph(n_neighbors=10), n_components=2).fit(X, Y)
    >>> model.transform(X).shape, model.proximity_.shape
    ((200, 2), (200, 200))
    """

    _takes_unknown_classes = True
    _proximity = Part(Proximity)
    _combination = Part(Combine)
    _options = Part(MethodOptions, mixing=1.0, unsupervised="olpp")
    _graph = Part(Graph, **GAUSSIAN, selection="features")
    _solver = Part(Solver, tol=1e-6, max_iter=300)
    _needs: ClassVar[dict[str, Need]] = DecodingProjection._needs | {
        "proximity__projection": one_of(*UNSUPERVISED),
        "graph__n_neighbors": PAIRS_TOO,
        "n_components": COUNT,
        "constraint": one_of(*CONSTRAINTS),
        "ridge": NOT_NEGATIVE,
        "center": FLAG,
        "n_landmarks": optional(COUNT),
        "options__mixing": SHARE,
        "options__unsupervised": one_of("pca", "olpp"),
    }

    proximity: Proximity | Scheme = "classes"
    combination: Combine | Combination = "priority"
    _: KW_ONLY
    graph: Graph | str | np.ndarray | None = None
    n_components: int = 2
    constraint: Constraint = "projection"
    ridge: float = 0.0
    center: bool = False
    kernel: KernelSpec = "linear"
    n_landmarks: int | None = None
    options: MethodOptions | None = None
    solver: Solver | None = None
    decoder: Decoder = None
    random_state: int | None = 0
    prepare: Prepare | Scales = "auto"

    def fit(self, X: Inputs, y: Outputs | None = None) -> Self:
        """Fit the embedding to samples and labels.

        Parameters
        ----------
        X : rows of shape (n, d)
            Training samples, which are read into memory.
        y : array-like of shape (n, L) or (n,)
            Label matrix of 0 and 1, or vector of n classes. Some samples may be unlabeled.

        Returns
        -------
        MOPE
            This estimator, fitted.

        Raises
        ------
        UserError
            If parameters, rows or labels are invalid.
        """
        return self._fit(X, y)

    def _begin(self) -> None:
        check_has_features(self.kernel, "MOPE")
        if self.ridge and self.constraint != "embedding":
            raise UserError(f"ridge = {self.ridge!r} needs constraint='embedding', got {self.constraint!r}")

    def _learn(self, data: Data) -> None:
        view, source = data.only
        k, X = count_components(self.n_components, 1, data.n, data.n), rows(source)
        problem = self._problem(X, data.Y)
        if self.n_landmarks is not None:
            found = self._relations(view, X, problem, k, self.n_landmarks)
        else:
            kernel = parse(self.kernel)
            plain = isinstance(kernel, Linear) and kernel.normalize is None
            found = self._linear(view, X, problem, k) if plain else self._kernel(view, X, problem, k, kernel)
        self._keep(found)
        self._fit_decoder(view, source, data.Y, data.weights.labels)

    def _problem(self, X: Any, Y: np.ndarray) -> TraceProblem:
        """Set `proximity_`, and return the eigenproblem of the embedding."""
        measure, given = self._measure(X, Y), self._graph
        wanted = given.n_neighbors
        k = self._fewer("n_neighbors", wanted, X.shape[0] - 1) if isinstance(wanted, int) else None
        near = k is not None and given.selection == "features"
        if k is None:
            if X.shape[0] > _ALL:
                raise UserError(
                    f"n_neighbors = 'all' supports at most {_ALL} samples, got {X.shape[0]}; pass a number such as 60, "
                    f"with selection='proximity' to choose among all pairs"
                )
            graph = all_pairs(X.shape[0])
        elif near:
            graph = self._nearest(X, k)
        else:
            graph = adjacency(strongest(measure, X.shape[0], k), given.adjacency)
        self.proximity_ = measure(graph)
        share, W = float(self._options.mixing), None
        if share < 1:
            if not near and self._options.unsupervised == "olpp":
                graph = self._nearest(X, k)
            W = weigh(graph, X, given.weight, given.bandwidth, given.local, tau=given.tau)
        return semi_supervised(
            self.proximity_,
            Y.sum(axis=1) > 0,
            self.constraint,
            self.ridge,
            self.center,
            W,
            share,
            self._options.unsupervised,
        )

    def _nearest(self, X: Any, k: int | None) -> Any:
        k, given = min(15, X.shape[0] - 1) if k is None else k, self._graph
        found = neighbors(X, k, given.metric, method=given.search, random_state=self.random_state)
        return adjacency(found, given.adjacency)

    def _measure(self, X: Any, Y: np.ndarray) -> Any:
        """Return a function that computes the proximities of connected samples for a given graph."""
        given, proximity, how = self._graph, self._proximity, self._combination
        bandwidth, scales = given.bandwidth, None
        if given.n_neighbors == "all" or given.selection == "proximity":
            bandwidth, scales = self._of_all_pairs(X, proximity)

        Z = project_labels(proximity.projection, Y, proximity.rank) if proximity.scheme == "projection" else None
        labeled = Y.sum(axis=1) > 0

        def measure(graph: Any) -> Any:
            W = weigh(graph, X, given.weight, bandwidth, given.local, scales, given.tau)
            G = proximity.on(graph, Y, X, Z)
            psi = combine(G, W, how.how, how.a, how.b, how.beta, how.label_share)
            left, right = ends(psi)
            psi.data[~(labeled[left] & labeled[right])] = 0.0
            return psi

        return measure

    def _of_all_pairs(self, X: Any, proximity: Proximity) -> tuple[float | Literal["mean"], np.ndarray | None]:
        """Return a bandwidth and local scales that do not depend on the edges of the graph."""
        given, similarity = self._graph, proximity.similarity
        weight = given.weight if isinstance(given.weight, str) else "given"
        scaled = proximity.scheme == "projection" and similarity in ("gaussian", "local")
        if scaled and given.n_neighbors != "all":
            raise UserError(
                f"selection='proximity' does not support the similarity {similarity!r}, whose scale depends on the "
                f"graph; use selection='features'"
            )
        if weight == "gaussian" and given.bandwidth == "mean":
            return root_mean_square(X), None
        return given.bandwidth, local_scales(X, given.local) if weight == "local" else None

    def _linear(self, view: str, X: Any, problem: TraceProblem, k: int) -> Projected:
        X = X.astype(np.float64)
        n, d = X.shape
        if self.constraint == "coefficients":
            raise UserError("constraint 'coefficients' needs the kernel form; choose a kernel, or 'projection'")
        if min(n, d) <= _SMALL:
            found = solve_projected(problem, X, k)
            return Projected(LinearExpansion(view, found.coefficients, found.offset), found, None)
        if self.constraint == "embedding":
            raise UserError(
                f"constraint 'embedding' needs a square matrix of {min(n, d)} rows, at most {_SMALL} are supported; "
                f"use 'projection', or relation features (n_landmarks=...)"
            )
        mean = np.asarray(X.mean(axis=0)).ravel() if self.center else None
        fit = project_long_rows(problem.A, X, k, mean, self._solver.tol, self._solver.max_iter, self.random_state)
        offset = np.zeros(k) if mean is None else -mean @ fit.coefficients
        return Projected(LinearExpansion(view, fit.coefficients, offset), fit, None)

    def _kernel(self, view: str, X: Any, problem: TraceProblem, k: int, kernel: Kernel) -> Projected:
        K, fitted = gram_matrix(kernel, X, np.float64, self.random_state)
        fit = project_kernel(problem.A, _centered(K) if self.center else K, k, self.constraint, self.ridge)
        alpha, offset = fit.coefficients, np.zeros(k)
        if self.center:
            alpha = alpha - alpha.mean(axis=0)
            offset = -K.mean(axis=0) @ alpha
        expansion = KernelExpansion(MultiKernel.of(view, fitted), {view: X}, alpha, offset, np.float64)
        return Projected(expansion, fit, K @ alpha + offset)

    def _relations(self, view: str, X: Any, problem: TraceProblem, k: int, n_landmarks: int) -> Projected:
        """Fit the projection on similarities to random samples, as in section 3.5 of [MOPE]."""
        if n_landmarks > X.shape[0]:
            raise TooFewSamples(
                f"n_landmarks = {n_landmarks!r} of {X.shape[0]} samples; needs a whole number from 1 to {X.shape[0]}"
            )
        if self.constraint == "coefficients":
            raise UserError(
                "constraint 'coefficients' needs the kernel form; leave n_landmarks out, or use 'projection'"
            )
        return embed(lambda rows: (problem, None), view, X, k, self.kernel, "exact", n_landmarks, self.random_state)


def _centered(K: np.ndarray) -> np.ndarray:
    means = K.mean(axis=0)
    return np.asarray(K - means - means[:, None] + means.mean())
