"""All projections and embeddings by eigenvectors as one estimator."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import numpy as np
from sklearn.utils import Tags

from dmo.blocks import Rows
from dmo.errors import UserError
from dmo.estimators import method_options
from dmo.estimators.arguments import AnyEngine, KernelSpec
from dmo.estimators.projection import Projection
from dmo.estimators.projector import MethodTask, ProjectionOptions, embed, project
from dmo.graphs.rows import read
from dmo.labels.kernels import LabelKernel
from dmo.linalg.eigen import TracePairs
from dmo.methods.embeddings import catalog
from dmo.methods.embeddings.catalog import METHODS, SUPERVISED, UNSUPERVISED, CatalogEntry
from dmo.methods.embeddings.direct import solve_direct
from dmo.methods.embeddings.quadratic_forms import TraceProblem
from dmo.methods.embeddings.samples import Options, Samples
from dmo.validation import (
    COUNT,
    POSITIVE,
    SEED,
    Need,
    check_known_labels,
    check_label_factor,
    check_one_view,
    check_parameters,
    count_components,
    one_of,
    optional,
    unused,
)

_OPTIONS = (
    "label_kernel",
    "ridge",
    "mixing",
    "shrinkage",
    "n_neighbors",
    "n_repelled",
    "weight",
    "bandwidth",
    "adjacency",
    "metric",
    "regularization",
    "penalty",
    "repulsion",
    "smoothness",
    "n_landmarks",
    "variance",
    "supervised",
    "unsupervised",
)


class TraceEmbedding(Projection):
    """A projection or an embedding of the samples, chosen by name: max tr(W'AW) subject to W'BW = I.

    Parameters
    ----------
    method : name
        One of `TraceEmbedding.methods()`, which says what each solves, and where it was published.
    n_components : int
        Dimensions of the space.
    kernel : kernel or its name
        "linear" projects the features themselves (any row source, sparse rows stay sparse); another kernel makes it
        the method's kernel form (kernel PCA, kernel CCA, ...); neighbors are sought among the features.
    label_kernel : "linear", a kernel or its name, SetKernel, SequenceKernel, "precomputed"; None: "linear"
        Similarity of the outputs, for methods that take one. See `dmo.labels`.
    ridge : float >= 0; None: 0.001
        c of X'X + c I (features in their own units), or of the regression of new rows.
    mixing : float in [0, 1]; None: 0.5
        Share of the labels: beta of SLVM, MORP and MLSI, 1 - beta of SELF, 1 - lambda of "mix".
    shrinkage : float in [0, 1]; None: 0.5
        s of MDDM's constraint (1 - s) X'X + s I.
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
        Weight of the within-class scatter: mu of mmc, b1 of ssmmc.
    repulsion : float >= 0; None: 1
        Weight of the neighbors of other classes: lambda of dla, beta of olpp-r, donpp, onpp-r.
    smoothness : float >= 0; None: 0.1
        Weight of X'Lap(W)X in ssfda and ssmmc.
    n_landmarks : int or None
        Random samples to which similarities (by `kernel`; "euclidean": distances) take the place of the features; None:
        all samples.
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
        Block steps of that iteration.
    random_state : int or None

    A parameter that the method does not use is refused. Methods on a neighbor graph hold the rows in memory. Those that
    learn from labels take n classes (-1 or NaN: none) or n x L of 0 and 1 (a row of zeros or NaN: none; several labels
    count as in `MESD`); samples without labels are left out of supervised terms and embedded all the same. Direct methods
    ("usc", "le", "nsc", "mds", "isomap", "lle") have fit_transform alone. Attributes: expansion_, eigenvalues_ (descending),
    n_components_, embedding_ (n x n_components, where the fit gives it), n_iter_.
    Source: Mu, Goulermas, Tsujii, Ananiadou 2012, eqs. 30, 31, 46, and the source of each method.
    """

    _needs: ClassVar[dict[str, Need]] = {
        "method": one_of(*METHODS),
        "n_components": COUNT,
        "supervised": optional(one_of(*SUPERVISED)),
        "unsupervised": optional(one_of(*UNSUPERVISED)),
        "tol": POSITIVE,
        "max_iter": COUNT,
        "random_state": SEED,
        **method_options.NEEDS,
    }

    def __init__(
        self,
        method: str = "pca",
        *,
        n_components: int = 2,
        kernel: KernelSpec = "linear",
        label_kernel: LabelKernel | None = None,
        ridge: float | None = None,
        mixing: float | None = None,
        shrinkage: float | None = None,
        n_neighbors: int | None = None,
        n_repelled: int | None = None,
        weight: str | np.ndarray | None = None,
        bandwidth: float | Literal["mean"] | None = None,
        adjacency: Literal["union", "mutual", "sum"] | None = None,
        metric: Literal["euclidean", "cosine"] | None = None,
        regularization: float | None = None,
        penalty: float | None = None,
        repulsion: float | None = None,
        smoothness: float | None = None,
        n_landmarks: int | None = None,
        variance: float | None = None,
        supervised: str | None = None,
        unsupervised: str | None = None,
        approximation: AnyEngine = "exact",
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
        self.shrinkage = shrinkage
        self.n_neighbors = n_neighbors
        self.n_repelled = n_repelled
        self.weight = weight
        self.bandwidth = bandwidth
        self.adjacency = adjacency
        self.metric = metric
        self.regularization = regularization
        self.penalty = penalty
        self.repulsion = repulsion
        self.smoothness = smoothness
        self.n_landmarks = n_landmarks
        self.variance = variance
        self.supervised = supervised
        self.unsupervised = unsupervised
        self.approximation = approximation
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state

    @property
    def out_of_sample(self) -> bool:
        """Whether the method gives coordinates to new rows, so that there is a model to save."""
        return self.method not in METHODS or not METHODS[self.method].direct

    @staticmethod
    def methods() -> list[dict[str, Any]]:
        """One dict per method: name, title, family, problem (objective | constraint), parameters, labels, engines,
        out_of_sample, mesd (whether `MESD` has it), oracle of its test, paper."""
        return catalog.methods()

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from samples X (n x d) and, where the method is supervised, outputs y (n x L, or as its kernel asks)."""
        check_parameters(self)
        entry = METHODS[self.method]
        unused(self, _OPTIONS, entry.parameters)
        chosen = method_options.options(self)
        view, source = check_one_view(self, X, reset=True)
        k = count_components(self.n_components, 1, source.shape[0], source.shape[0])
        fit = self._fit_global if entry.family == "global" else self._fit_rows
        fit(entry, chosen, view, source, y, k)
        return self

    def _fit_global(self, entry: CatalogEntry, chosen: Options, view: str, source: Rows, y: Any, k: int) -> None:
        """The methods that know the samples by their kernel and their labels alone."""
        kernel = "linear" if self.label_kernel is None else self.label_kernel
        labels = check_label_factor(self, y, source.shape[0], kernel) if entry.labels else None
        road = ProjectionOptions(self.kernel, self.approximation, self.tol, self.max_iter, self.random_state)
        self._learn(project(MethodTask(entry, chosen), view, source, labels, k, road))

    def _fit_rows(self, entry: CatalogEntry, chosen: Options, view: str, source: Rows, y: Any, k: int) -> None:
        """The methods that look at the rows: neighbor graphs, classes of samples."""
        Y = None
        if entry.labels:
            Y, _ = check_known_labels(self, y, source.shape[0])
            Y = Y[:, Y.any(axis=0)]

        def problem_of(rows: Any) -> tuple[TraceProblem, np.ndarray | None]:
            """The problem, and the samples that it is about (None: all)."""
            samples, index = Samples(rows.shape[0], rows, Y, center=entry.center), None
            if entry.family == "supervised":
                samples, index = samples.labeled()
            return entry.problem(samples, chosen), index

        if entry.direct:
            self._learn_direct(solve_direct(problem_of(read(source))[0], k))
        else:
            road = (self.kernel, self.approximation, self.n_landmarks, self.random_state, self.variance)
            self._learn(embed(problem_of, view, source, k, *road))

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
                f"embeds the samples that it was fitted on, new ones have no "
                f"coordinates; use fit_transform, or the projection {near!r}"
            )
        return super().transform(X)

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        if not hasattr(self, "expansion_"):
            raise UserError(
                f"TraceEmbedding({self.method!r}): has no function of new rows to save; keep its embedding_"
            )
        return super()._arrays()

    @property
    def _title(self) -> str:
        return f"TraceEmbedding({self.method!r})"

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        entry = METHODS.get(self.method)
        tags.target_tags.required = entry is not None and entry.labels
        return tags
