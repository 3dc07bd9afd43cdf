"""All projections and embeddings by eigenvectors as one estimator."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.utils import Tags

from dmo.errors import UserError
from dmo.estimators.projection import Projection
from dmo.estimators.projector import MethodTask, ProjectionOptions, embed, options, project, refuse_unused
from dmo.graphs.rows import read
from dmo.labels.kernels import LabelKernel
from dmo.linalg.eigen import TracePairs
from dmo.methods.embeddings import catalogue
from dmo.methods.embeddings import graph_methods as neighborhood
from dmo.methods.embeddings.catalogue import NEIGHBORHOOD
from dmo.methods.embeddings.discriminant import duplicated
from dmo.methods.embeddings.global_methods import METHODS, Method, Settings
from dmo.methods.embeddings.graph_methods import Options
from dmo.methods.embeddings.quadratic_forms import Pencil
from dmo.methods.embeddings.semisupervised import SEMISUPERVISED, SUPERVISED, UNSUPERVISED, labeled, mixed
from dmo.validation import bounded, count_components, named, outputs_factor, partial_labels, whole

_DIRECT = {
    "usc": neighborhood.usc,
    "le": neighborhood.eigenmaps,
    "nsc": neighborhood.nsc,
    "mds": neighborhood.mds,
    "isomap": neighborhood.isomap,
    "lle": neighborhood.lle,
}
_GRAPH = (
    "n_neighbors",
    "n_repelled",
    "weight",
    "bandwidth",
    "adjacency",
    "metric",
    "regularization",
    "penalty",
    "smoothness",
    "n_landmarks",
    "variance",
    "supervised",
    "unsupervised",
)
_DEFAULTS = {"label_kernel": "linear", "ridge": 1e-3, "mixing": 0.5, "balance": 0.5}


class TraceEmbedding(Projection):
    """A projection or an embedding of the samples, chosen by name: max tr(W'AW) subject to W'BW = I.

    Parameters
    ----------
    method : name
        One of `TraceEmbedding.methods()`, which says what each solves, and where it was published.
    n_components : int
    kernel : kernel or its name
        "linear" projects the features themselves (any row source, sparse rows stay sparse); another kernel makes it
        the method's kernel form (kernel PCA, kernel CCA, ...); neighbors are sought among the features.
    label_kernel : "linear", a kernel or its name, SetKernel, SequenceKernel, "precomputed"; None: "linear"
        Similarity of the outputs, for methods that take one. See `dmo.labels`.
    ridge : float >= 0; None: 0.001
        c of X'X + c I (features in their own units), or of the regression of new rows.
    mixing : float in [0, 1]; None: 0.5
        beta: share of the labels.
    balance : float in [0, 1]; None: 0.5
        mu of MDDM's constraint mu X'X + (1 - mu) I; beta of "self", and the unsupervised share of "mix".
    n_neighbors : int; None: 15, or all other samples of the class (lfda, sonpp, donpp, onpp-r)
        Fewer in a class that has fewer samples.
    n_repelled : int; None: 15
        Neighbors of other classes (mfa: closest pairs per class).
    weight : "constant", "gaussian", "local", "inverse", "cosine", "pearson", ... (see `dmo.graphs.weigh`), or n x n
        Of the edges of the neighbor graph; a symmetric matrix is taken as it is. None: "constant".
    bandwidth : float or "mean"; of "gaussian" weights
    adjacency : "union", "mutual" or "sum"; how neighbor lists become symmetric; None: "union"
    metric : "euclidean" or "cosine", of the neighbors
    regularization : float >= 0; None: 0.001
        Ridge of the reconstruction weights, relative to the trace of the local Gram matrix.
    penalty : float >= 0; None: 1
        Weight of what is minimized or repelled: mu of mmc, b1 of ssmmc, lambda of dla, beta of olpp-r, donpp, onpp-r.
    smoothness : float >= 0; None: 0.1
        Weight of X'Lap(W)X in ssfda and ssmmc.
    n_landmarks : int or None
        Random samples to which similarities (by `kernel`) take the place of the features; None: all samples.
    variance : float in (0, 1] or None
        Share of the variance of the projected rows that is kept by a PCA step first, as [He, Niyogi 2003; Kokiopoulou,
        Saad 2007] do; methods that seek directions of little variance, such as "olpp", need it where features are
        redundant. None: no such step.
    supervised, unsupervised : names of the two methods of "mix"; None: "fda" and "lpp"
    approximation : "auto", "exact", Exact(...), Nystrom(...), Meka(...) or BestLowRank(...)
        "auto" is exact where that fits in memory.
    tol : float
        Residual of the eigenpairs relative to the largest eigenvalue, where they are found by iteration.
    max_iter : int
    random_state : int or None

    A parameter that the method does not use is refused. Methods on a neighbor graph hold the rows in memory. Those that
    learn from labels take n classes (-1 or NaN: none) or n x L of 0 and 1 (a row of zeros or NaN: none; several labels
    count as in `MESD`); samples without labels are left out of supervised terms and embedded all the same. Direct methods
    ("usc", "le", "nsc", "mds", "isomap", "lle") have fit_transform alone. Attributes: expansion_, eigenvalues_ (descending),
    n_components_, embedding_ (n x n_components, where the fit gives it), n_iter_.
    Source: Mu, Goulermas, Tsujii, Ananiadou 2012, eqs. 30, 31, 46, and the source of each method.
    """

    def __init__(
        self,
        method: str = "pca",
        *,
        n_components: int = 2,
        kernel: Any = "linear",
        label_kernel: LabelKernel | None = None,
        ridge: float | None = None,
        mixing: float | None = None,
        balance: float | None = None,
        n_neighbors: int | None = None,
        n_repelled: int | None = None,
        weight: Any = None,
        bandwidth: float | str | None = None,
        adjacency: str | None = None,
        metric: str | None = None,
        regularization: float | None = None,
        penalty: float | None = None,
        smoothness: float | None = None,
        n_landmarks: int | None = None,
        variance: float | None = None,
        supervised: str | None = None,
        unsupervised: str | None = None,
        approximation: Any = "exact",
        tol: float = 1e-7,
        max_iter: int = 300,
        random_state: int | None = 0,
    ):
        self.method = method
        self.n_components = n_components
        self.kernel = kernel
        self.label_kernel = label_kernel
        self.ridge = ridge
        self.mixing = mixing
        self.balance = balance
        self.n_neighbors = n_neighbors
        self.n_repelled = n_repelled
        self.weight = weight
        self.bandwidth = bandwidth
        self.adjacency = adjacency
        self.metric = metric
        self.regularization = regularization
        self.penalty = penalty
        self.smoothness = smoothness
        self.n_landmarks = n_landmarks
        self.variance = variance
        self.supervised = supervised
        self.unsupervised = unsupervised
        self.approximation = approximation
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state

    @staticmethod
    def methods() -> list[dict[str, Any]]:
        """One dict per method: name, title, family, problem (objective | constraint), parameters, labels, engines,
        out_of_sample, mesd (whether `MESD` has it), oracle of its test, paper."""
        return catalogue.methods()

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from samples X (n x d) and, where the method is supervised, outputs y (n x L, or as its kernel asks)."""
        if self.method in NEIGHBORHOOD:
            return self._fit_neighborhood(X, y)
        method, settings = self._method()
        view, source = self._source(X, reset=True)
        k = count_components("TraceEmbedding", self._whole(), 1, source.shape[0], source.shape[0])
        labels = None
        if method.supervised:
            kernel = "linear" if self.label_kernel is None else self.label_kernel
            labels = outputs_factor(f"TraceEmbedding({self.method!r})", y, source.shape[0], kernel)
        road = ProjectionOptions(self.kernel, self.approximation, self.tol, self.max_iter, self.random_state)
        try:
            learnt = project(
                "TraceEmbedding", MethodTask(method, settings, method.center), view, source, labels, k, road
            )
        except UserError as error:
            raise named(f"TraceEmbedding({self.method!r})", error) from error
        self._learn(learnt)
        return self

    def _fit_neighborhood(self, X: Any, y: Any) -> Self:
        """The methods on neighbor graphs and labels of samples."""
        entry, who = NEIGHBORHOOD[self.method], f"TraceEmbedding({self.method!r})"
        given = {name: getattr(self, name) for name in (*_DEFAULTS, *_GRAPH)}
        refuse_unused(who, given, entry.parameters)
        chosen = options(who, given)
        view, source = self._source(X, reset=True)
        n = source.shape[0]
        k = count_components("TraceEmbedding", self._whole(), 1, n, n)
        Y = partial_labels(who, y, n) if entry.supervised else None
        try:
            if entry.form == "direct":
                self._learn_direct(_DIRECT[self.method](read(source), chosen, k))
            else:
                road = (self.kernel, self.approximation, self.n_landmarks, self.random_state, self.variance)
                self._learn(embed(who, lambda rows: self._pencil(rows, Y, chosen), view, source, k, *road))
        except UserError as error:
            raise named(who, error) from error
        return self

    def _pencil(self, X: Any, Y: np.ndarray | None, chosen: Options) -> tuple[Pencil, np.ndarray | None]:
        """The problem, and the samples that it is about (None: all)."""
        if Y is None:
            return UNSUPERVISED[self.method](X, chosen), None
        if self.method in SEMISUPERVISED:
            return SEMISUPERVISED[self.method](X, Y, chosen), None
        if self.method == "mix":
            supervised = "fda" if self.supervised is None else self.supervised
            unsupervised = "lpp" if self.unsupervised is None else self.unsupervised
            for name, what, known in (
                ("supervised", supervised, list(SUPERVISED)),
                ("unsupervised", unsupervised, list(UNSUPERVISED)),
            ):
                if what not in known:
                    raise UserError(f"{name} = {what!r}; known: {', '.join(known)}")
            return mixed(supervised, unsupervised, X, Y, chosen), None
        known_samples, index = labeled(X, Y)
        return duplicated(self.method, known_samples, chosen), index

    def _learn_direct(self, found: TracePairs) -> None:
        self.__dict__.pop("expansion_", None)
        self.embedding_, self.eigenvalues_ = found.vectors, found.values
        self.n_components_ = self._n_features_out = len(found.values)
        self.n_iter_ = 1

    def transform(self, X: Any) -> np.ndarray:
        """Coordinates of samples X (m x d, any row source): m x n_components; refused for direct methods."""
        if hasattr(self, "eigenvalues_") and not hasattr(self, "expansion_"):
            near = {"usc": "olpp", "le": "lpp", "nsc": "lpp", "mds": "pca", "lle": "npp"}.get(self.method, "lpp")
            raise UserError(
                f"TraceEmbedding({self.method!r}): embeds the samples that it was fitted on, new ones have no "
                f"coordinates; use fit_transform, or the projection {near!r}"
            )
        return super().transform(X)

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        if not hasattr(self, "expansion_"):
            raise UserError(
                f"TraceEmbedding({self.method!r}): has no function of new rows to save; keep its embedding_"
            )
        return super()._arrays()

    def _whole(self) -> int:
        return whole("TraceEmbedding", "n_components", self.n_components)

    def _method(self) -> tuple[Method, Settings]:
        """The method and its settings, checked."""
        if self.method not in METHODS:
            known = ", ".join([*METHODS, *NEIGHBORHOOD])
            raise UserError(f"TraceEmbedding: method = {self.method!r}; known: {known}")
        method = METHODS[self.method]
        for name in (*_DEFAULTS, *_GRAPH):
            if getattr(self, name) is not None and name not in method.parameters:
                uses = ", ".join(method.parameters) or "none"
                raise UserError(
                    f"TraceEmbedding: method {self.method!r} does not use {name}; leave it out (it uses: {uses})"
                )
        chosen: dict[str, Any] = {
            name: _DEFAULTS[name] if getattr(self, name) is None else getattr(self, name) for name in _DEFAULTS
        }
        settings = {name: bounded("TraceEmbedding", name, chosen[name]) for name in ("ridge", "mixing", "balance")}
        return method, Settings(**settings)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        entry = METHODS.get(self.method) or NEIGHBORHOOD.get(self.method)
        tags.target_tags.required = entry is not None and entry.supervised
        return tags
