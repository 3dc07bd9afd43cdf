"""All projections and embeddings by eigenvectors as one estimator."""

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
"""Global methods with terms of single samples, such as numbers of labels, which moments do not contain."""


@parametrized
class TraceEmbedding(IncrementalProjection):
    """A projection or an embedding of the samples, chosen by name: max tr(W'AW) subject to W'BW = I.

    A parameter that the method does not use is refused. Methods on a neighbor graph hold the rows in memory. Those that
    learn from labels take n classes (-1 or NaN: none) or n x L of 0 and 1 (a row of zeros or NaN: none; several labels
    count as in `MESD`); samples without labels are left out of supervised terms and embedded all the same. Direct methods
    ("usc", "le", "nsc", "mds", "isomap", "lle") have fit_transform alone.

    Parameters
    ----------
    method : str, default="pca"
        One of `TraceEmbedding.methods()`, which says what each solves, and where it was published.
    n_components : int, default=2
        Dimensions of the space.
    kernel : str or Kernel, default="linear"
        "linear" projects the features themselves (any row source, sparse rows stay sparse); another kernel makes it
        the method's kernel form (kernel PCA, kernel CCA, ...); neighbors are sought among the features.
    label_kernel : str, Kernel, SetKernel, SequenceKernel or None, default=None
        Similarity of the outputs, for methods that take one, see `dmo.labels`; with "precomputed" y is the n x n matrix.
        None: "linear".
    ridge : float or None, default=None
        c of X'X + c I (features in their own units), or of the regression of new rows; at least 0. None: 0.001.
    graph : Graph, str, ndarray of shape (n, n) or None, default=None
        The neighbor graph: its `n_neighbors`, `weight`, `bandwidth`, `tau`, `adjacency` ("sum" too) and `metric`. None:
        constant weights of the union of 15 Euclidean neighbors each, or all other samples of the class (lfda, sonpp, donpp,
        onpp-r).
    options : MethodOptions or None, default=None
        What single methods take besides.
    n_landmarks : int or None, default=None
        Random samples to which similarities (by `kernel`; "euclidean": distances) take the place of the features; None:
        all samples.
    variance : float in (0, 1] or None, default=None
        Share of the variance of the projected rows that is kept by a PCA step first, as [He, Niyogi 2003; Kokiopoulou,
        Saad 2007] do; methods that seek directions of little variance, such as "olpp", need it where features are
        redundant. None: no such step.
    approximation : {"auto", "exact", "krylov", "nystrom", "meka", "best"}, or Exact, Krylov, ..., default="exact"
        The kernel as it is, or of low rank, or a Krylov subspace of linear functions; "auto" is exact where that fits in
        memory.
    solver : Solver or None, default=None
        Of the iteration by which eigenpairs are found where there are many samples and features. None: tol=1e-7,
        max_iter=300.
    %(decoder)s
    %(random_state)s
    %(prepare)s

    Attributes
    ----------
    expansion_ : Expansion
        The fitted function of new samples; direct methods have none.
    eigenvalues_ : ndarray of shape (n_components,)
        Descending.
    n_components_ : int
        Dimensions of the space.
    embedding_ : ndarray of shape (n, n_components)
        Coordinates of the training samples, where the fit gives them.
    n_iter_ : int
        Block steps taken.

    References
    ----------
    Mu, Goulermas, Tsujii, Ananiadou 2012, equations 30, 31 and 46, and the source of each method.

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
        """Whether the method gives coordinates to new rows, so that there is a model to save."""
        return self.method not in METHODS or not METHODS[self.method].direct

    @staticmethod
    def methods() -> list[dict[str, Any]]:
        """List the methods of the catalog.

        Returns
        -------
        list of dict
            One per method: name, title, family, problem (objective | constraint), parameters, labels, engines,
            out_of_sample,
            mesd (whether `MESD` has it), oracle of its test, paper.
        """
        return catalog.methods()

    def fit(self, X: Inputs, y: Outputs | None = None, sample_weight: RowWeights = None) -> Self:
        """Learn the projection, or embed the samples.

        Parameters
        ----------
        X : rows of shape (n, d)
            Samples: a NumPy, SciPy sparse, dask or Zarr array in chunks of whole rows.
        y : array-like of shape (n, L) or (n,), default=None
            Outputs, where the method is supervised: labels of 0 and 1, n classes, or what the label kernel asks for. Of global
            methods unknown entries of a matrix (NaN, None, masked) take the mean of their column, which says nothing.
        sample_weight : array-like of shape (n,) or None, default=None
            How often every sample counts, of global methods, "fda" and "mmc"; the others look at neighbors.

        Returns
        -------
        TraceEmbedding
            This estimator, fitted.

        Raises
        ------
        UserError
            For a parameter that the method does not use, and for rows and outputs that do not fit together.
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
            raise UserError(f"method {self.method!r} takes no sample_weight; repeat rows, or take one of {known}")
        return data

    def _learn(self, data: Data) -> None:
        entry, chosen = METHODS[self.method], Options.of(self)
        learn = self._learn_global if entry.family == "global" else self._learn_rows
        k = count_components(self.n_components, 1, data.n, data.n)
        self._learn_at_most(k, lambda k: learn(entry, chosen, data, k))

    def _learn_at_most(self, k: int, learn: Callable[[int], None]) -> None:
        """Learn k directions, or fewer if classes have fewer."""
        try:
            learn(k)
        except TooFewDirections as found:
            if getattr(self, "multilabel_", True):
                raise
            # classes have one direction less than there are classes, whatever else a method asks of them
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
        """The methods that know the samples by their kernel and their labels alone."""
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
        """The methods that look at the rows: neighbor graphs, classes of samples (which alone have weights)."""
        (view, source), Y, weights, carried = data.only, data.Y, data.often, None
        if entry.labels:
            carried = Y[:, Y.any(axis=0)] if weights is None else weights[:, None] * Y[:, Y.any(axis=0)]

        def problem_of(rows: Any) -> tuple[TraceProblem, np.ndarray | None]:
            """The problem, and the samples that it is about (None: all)."""
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
        """Methods that learn from outputs, and leave a function of new rows."""
        entry = METHODS.get(self.method)
        return entry is not None and entry.labels and not entry.direct and self.label_kernel in (None, "linear")

    def _learn_direct(self, found: TracePairs) -> None:
        self.__dict__.pop("expansion_", None)
        self.embedding_, self.eigenvalues_ = found.vectors, found.values
        self.n_components_ = self._n_features_out = len(found.values)
        self.n_iter_ = 1

    def transform(self, X: Inputs) -> np.ndarray:
        """Give samples their coordinates, worked out block by block.

        Parameters
        ----------
        X : rows of shape (m, d)
            Samples: a NumPy, SciPy sparse, dask or Zarr array in chunks of whole rows.

        Returns
        -------
        ndarray of shape (m, n_components_)
            Coordinates.

        Raises
        ------
        UserError
            For direct methods, which embed the samples of fit alone.
        """
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
