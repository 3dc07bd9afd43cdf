"""Estimator for all projections and embeddings that are computed from eigenvectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils import Tags

from dmo.blocks import Rows
from dmo.errors import UserError
from dmo.graphs.distances import read
from dmo.inputs import (
    COUNT,
    Data,
    Inputs,
    Need,
    Outputs,
    Prepare,
    RowWeights,
    SampleWeights,
    Scales,
    count_components,
    one_of,
    unused,
)
from dmo.labels.label_kernels import LabelKernel
from dmo.linalg.eigen import TooFewDirections, TracePairs
from dmo.methods import catalog
from dmo.methods.catalog import METHODS, CatalogEntry
from dmo.methods.discriminant import SCATTERS
from dmo.methods.options import AnyEngine, Decoder, Graph, KernelSpec, MethodOptions, Solver
from dmo.methods.projection import IncrementalProjection
from dmo.methods.projector import MethodTask, Projected, ProjectionOptions, check_has_features, embed, project
from dmo.methods.quadratic_forms import NEEDS, Options, TraceProblem, TraceSamples
from dmo.methods.trace_solvers import solve_direct
from dmo.parameters import Part, parametrized

_OPTIONS = catalog.parameters()
_BY_SAMPLE = ("hsic-1", "hsl-1", "hsl-2", "hsl-3")
"""Global methods that need a value for each sample, such as its number of labels, which moments do not contain."""


@parametrized
class TraceEmbedding(IncrementalProjection):
    r"""Projection or embedding that solves an eigenproblem; the method is selected by name.

    The fit raises an error if a parameter is set that the method does not use. Methods based on a neighbor graph read
    all rows into memory. The direct methods "usc", "le", "nsc", "mds", "isomap" and "lle" cannot embed new samples, and
    therefore support `fit_transform` but not `transform`.

    Supervised methods accept n classes or an n x L matrix of 0 and 1. Except for methods of the family "global", a
    sample is unlabeled if its class is -1 or NaN, or if its row contains only zeros or NaN. Unlabeled samples are
    embedded, but the supervised terms of the objective ignore them. Samples with several labels are treated as in
    `MESD`.

    Parameters
    ----------
    method : str, default="pca"
        Name of the method. `TraceEmbedding.methods()` lists all methods with their objectives and papers.
    n_components : int, default=2
        Number of dimensions of the embedding.
    kernel : str or Kernel, default="linear"
        Kernel of the features. "linear" projects the features themselves, and sparse rows stay sparse. Other kernels
        select the kernel form of the method, such as kernel PCA. Neighbors are always searched in feature space.
    label_kernel : str, Kernel, SetKernel, SequenceKernel or None, default=None
        Similarity of the outputs, for methods that support it; see `dmo.labels`. With "precomputed", y is the n x n
        similarity matrix. None uses "linear".
    ridge : float or None, default=None
        Ridge c added to the matrix X'X, in squared units of the features, at least 0. A regression that embeds new
        samples uses the same ridge. None uses 0.001.
    graph : Graph, str, ndarray of shape (n, n) or None, default=None
        Neighbor graph, with the options `n_neighbors`, `weight`, `bandwidth`, `tau`, `adjacency` and `metric`. By
        default, each sample is connected to its 15 nearest neighbors in Euclidean distance, and all edges have the same
        weight. Instead of 15 neighbors, "lfda", "self", "sonpp", "donpp" and "onpp-r" use all other samples of the
        class.
    options : MethodOptions or None, default=None
        Additional parameters, which only some of the methods use.
    n_landmarks : int or None, default=None
        Number of landmarks, which are randomly chosen samples. The features of a sample are then replaced by its
        similarities to the landmarks, or by its distances with kernel="euclidean". None uses all samples.
    variance : float in (0, 1] or None, default=None
        Fraction of the variance that a preceding PCA keeps, as in [He, Niyogi 2003; Kokiopoulou, Saad 2007]. Methods
        that prefer directions of small variance, such as "olpp", need the PCA if features are redundant. With None,
        there is no PCA.
    approximation : {"auto", "exact", "krylov", "nystrom", "meka", "best"}, or Exact, Krylov, ..., default="exact"
        Exact kernel, low-rank kernel, or Krylov subspace of linear functions. "auto" uses the exact kernel if it fits
        in memory.
    solver : Solver or None, default=None
        Tolerance and maximum number of iterations of the iterative eigensolver, which is used for large problems. None
        uses tol=1e-7 and max_iter=300.
    %(decoder)s
    %(random_state)s
    %(prepare)s

    Attributes
    ----------
    expansion_ : Expansion
        Fitted function that computes the coordinates of new samples, which direct methods do not have.
    eigenvalues_ : ndarray of shape (n_components,)
        Eigenvalues in descending order.
    n_components_ : int
        Number of dimensions of the fitted embedding.
    embedding_ : ndarray of shape (n, n_components)
        Coordinates of the training samples, if the fit computes them.
    n_iter_ : int
        Number of block iterations of the eigensolver.

    Notes
    -----
    The projection W of the features X solves

    .. math:: \max_W \; \mathrm{tr}(W' A W) \quad \text{subject to} \quad W' B W = I,

    where the method determines the symmetric matrices A and B. The catalog of embeddings lists both matrices for each
    method.

    References
    ----------
    Mu, Goulermas, Tsujii, Ananiadou 2012, equations 30, 31 and 46, and the paper of each method.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dmo import TraceEmbedding
    >>> X, y = load_iris(return_X_y=True)
    >>> model = TraceEmbedding("lfda", n_components=2).fit(X, y)
    >>> model.transform(X).shape
    (150, 2)
    >>> [entry["name"] for entry in TraceEmbedding.methods()][:4]
    ['pca', 'lsi', 'pls', 'opls']
    """

    _graph = Part(Graph, n_neighbors=None, weight=None, bandwidth=None, tau=None, adjacency=None, metric=None)
    _options = Part(MethodOptions)
    _solver = Part(Solver, tol=1e-7, max_iter=300)
    _needs: ClassVar[dict[str, Need]] = IncrementalProjection._needs | {
        "method": one_of(*METHODS),
        "n_components": COUNT,
        "graph__adjacency": NEEDS["adjacency"],
        **{name: NEEDS[name] for name in ("ridge", "n_landmarks", "variance")},
    }

    method: str = "pca"
    _: KW_ONLY
    n_components: int = 2
    kernel: KernelSpec = "linear"
    label_kernel: LabelKernel | None = None
    ridge: float | None = None
    graph: Graph | str | np.ndarray | None = None
    options: MethodOptions | None = None
    n_landmarks: int | None = None
    variance: float | None = None
    approximation: AnyEngine = "exact"
    solver: Solver | None = None
    decoder: Decoder = None
    random_state: int | None = 0
    prepare: Prepare | Scales = "auto"

    @property
    def out_of_sample(self) -> bool:
        """Whether the method can embed new samples, which is required to save the model."""
        return self.method not in METHODS or not METHODS[self.method].direct

    @staticmethod
    def methods() -> list[dict[str, Any]]:
        """List the methods of the catalog.

        Returns
        -------
        list of dict
            One dictionary per method with the keys name, title, family, problem (objective | constraint), parameters,
            labels, engines, out_of_sample, mesd (whether `MESD` supports the method), oracle (the reference
            implementation of its test) and paper.
        """
        return catalog.methods()

    def fit(self, X: Inputs, y: Outputs | None = None, sample_weight: RowWeights = None) -> Self:
        """Fit the projection, or embed the samples.

        Parameters
        ----------
        X : rows of shape (n, d)
            Samples, as a NumPy, SciPy sparse, dask or Zarr array. Each chunk must contain whole rows.
        y : array-like of shape (n, L) or (n,), default=None
            Outputs for supervised methods: labels of 0 and 1, n classes, or the outputs that the label kernel requires.
            Global methods replace entries of a matrix that are NaN, None or masked by the mean of the column.
        sample_weight : array-like of shape (n,) or None, default=None
            Sample weights, which only global methods, "fda" and "mmc" support.

        Returns
        -------
        TraceEmbedding
            This estimator, fitted.

        Raises
        ------
        UserError
            If a parameter is set that the method does not use, or if X and y have different numbers of samples.
        """
        return self._fit(X, y, sample_weight)

    def _begin(self) -> None:
        entry = METHODS[self.method]
        unused(self, _OPTIONS, entry.parameters)
        if entry.family != "global" and self.method not in SCATTERS:
            check_has_features(self.kernel, f"method {self.method!r}")

    def _read(self, views: Mapping[str, Rows], y: Any, weights: SampleWeights | None) -> Data:
        entry = METHODS[self.method]
        if entry.labels and entry.family == "global":
            kernel = "linear" if self.label_kernel is None else self.label_kernel
            data = self._read_factor(views, y, weights, kernel)
        elif entry.labels:
            data = super()._read(views, y, weights)
        else:
            data = Data.of(views, weights=weights, passive=True)
        if data.often is not None and entry.family != "global" and self.method not in SCATTERS:
            known = ", ".join([*(name for name, other in METHODS.items() if other.family == "global"), *SCATTERS])
            raise UserError(
                f"method {self.method!r} does not support sample_weight; repeat rows, or use one of {known}"
            )
        return data

    def _learn(self, data: Data) -> None:
        entry, chosen = METHODS[self.method], Options.of(self)
        learn = self._learn_global if entry.family == "global" else self._learn_rows
        k = count_components(self.n_components, 1, data.n, data.n)
        self._learn_at_most(k, lambda k: learn(entry, chosen, data, k))

    def _learn_at_most(self, k: int, learn: Callable[[int], None]) -> None:
        """Fit k directions, or fewer if the number of classes limits the number of directions."""
        try:
            learn(k)
        except TooFewDirections as found:
            if getattr(self, "multilabel_", True):
                raise
            # C classes determine at most C - 1 directions.
            learn(self._fewer("n_components", k, found.rank))

    @property
    def _learns_outputs(self) -> bool:
        return METHODS[self.method].labels

    @property
    def _adds_rows(self) -> bool:
        entry = METHODS.get(self.method)
        return entry is not None and entry.family == "global" and self.method not in _BY_SAMPLE and super()._adds_rows

    @property
    def _factors(self) -> tuple[Any, bool]:
        return self.kernel, METHODS[self.method].center

    def _task(self) -> MethodTask:
        return MethodTask(METHODS[self.method], Options.of(self))

    def _project_pass(self, learn: Callable[[int], Projected], k: int) -> None:
        self._learn_at_most(k, lambda k: self._keep(learn(k)))

    def _learn_global(self, entry: CatalogEntry, chosen: Options, data: Data, k: int) -> None:
        """Fit a global method, which depends on the samples only through the kernel and the labels."""
        (view, source), labels, weights = data.only, data.Y, data.often
        if data.known is not None:
            labels = np.where(data.known, labels, data.frequency)
        options = ProjectionOptions(
            self.kernel, self.approximation, self._solver.tol, self._solver.max_iter, self.random_state
        )
        decodes = labels is not None and self._decodes
        learn = self._learner if decodes else None
        self._keep(project(self._task(), view, source, labels, k, options, weights, learn))
        if decodes and not hasattr(self, "decoder_"):
            self._fit_decoder(view, source, labels, weights)

    def _learn_rows(self, entry: CatalogEntry, chosen: Options, data: Data, k: int) -> None:
        """Fit a method that needs the rows for a neighbor graph or for the scatter of classes."""
        (view, source), Y, weights, carried = data.only, data.Y, data.often, None
        if entry.labels:
            carried = Y[:, Y.any(axis=0)] if weights is None else weights[:, None] * Y[:, Y.any(axis=0)]

        def problem_of(rows: Any) -> tuple[TraceProblem, np.ndarray | None]:
            """Return the eigenproblem and the indices of its samples, or None instead of indices for all samples."""
            samples, index = TraceSamples(rows.shape[0], rows, carried, center=entry.center), None
            if entry.family == "supervised":
                samples, index = samples.labeled()
            return entry.problem(samples, chosen), index

        if entry.direct:
            self._learn_direct(solve_direct(problem_of(read(source))[0], k))
        else:
            options = (self.kernel, self.approximation, self.n_landmarks, self.random_state, self.variance)
            self._keep(embed(problem_of, view, source, k, *options, weights=weights))
            if entry.labels:
                self._fit_decoder(view, source, Y, data.weights.labels)

    @property
    def _takes_unknown_classes(self) -> bool:
        return METHODS[self.method].family != "global"

    @property
    def _whole_kernel(self) -> bool:  # type: ignore[override]
        entry = METHODS.get(self.method)
        return entry is not None and entry.family != "global"

    @property
    def _decodes(self) -> bool:
        """Whether the method is supervised and can predict the outputs of new samples."""
        entry = METHODS.get(self.method)
        return entry is not None and entry.labels and not entry.direct and self.label_kernel in (None, "linear")

    def _learn_direct(self, found: TracePairs) -> None:
        self.__dict__.pop("expansion_", None)
        self.embedding_, self.eigenvalues_ = found.vectors, found.values
        self.n_components_ = self._n_features_out = len(found.values)
        self.n_iter_ = 1

    def transform(self, X: Inputs) -> np.ndarray:
        """Compute the coordinates of samples, one block of rows at a time.

        Parameters
        ----------
        X : rows of shape (m, d)
            Samples, as a NumPy, SciPy sparse, dask or Zarr array. Each chunk must contain whole rows.

        Returns
        -------
        ndarray of shape (m, n_components_)
            Coordinates of the samples.

        Raises
        ------
        UserError
            If the method is direct, because direct methods embed only the training samples.
        """
        if hasattr(self, "eigenvalues_") and not hasattr(self, "expansion_"):
            near = {"usc": "olpp", "le": "lpp", "nsc": "lpp", "mds": "pca", "lle": "npp"}.get(self.method, "lpp")
            raise UserError(
                "cannot embed new samples, only the samples that it was fitted on; use fit_transform, or the "
                f"projection {near!r}"
            )
        return super().transform(X)

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        if not hasattr(self, "expansion_"):
            raise UserError(
                f"TraceEmbedding({self.method!r}): cannot embed new samples, so there is no model to save; save its "
                "embedding_"
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
