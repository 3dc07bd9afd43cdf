"""Homogeneity analysis, and the base class of the estimators KGHA and MultiSetCCA."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from dmo.blocks import Rows, Subset, rows
from dmo.errors import TooFewSamples, UserError
from dmo.fit.engine import decided, fit_maps, folds_of, in_single, is_exact, pass_of
from dmo.fit.exact import exact_engine
from dmo.fit.factor_groups import FactorGroups, FactorView
from dmo.fit.fitted_views import FittedView, Groups
from dmo.fit.functions import Expansion, added, load_expansions, store_expansions
from dmo.fit.moments import LABELS, Moments
from dmo.fit.passes import FeatureRows, passive_moments
from dmo.fit.ridge_solves import SPACE, is_precise
from dmo.inputs import (
    COUNT,
    FLAG,
    NOT_NEGATIVE,
    POSITIVE,
    SINGLE,
    Data,
    Inputs,
    Need,
    Outputs,
    RowWeights,
    SampleWeights,
    missing_entries,
    per_view,
    sample_count,
)
from dmo.kernels import parse
from dmo.kernels.multikernel import MultiKernel
from dmo.kernels.product import is_product
from dmo.linalg.eigen import Eigenpairs, fix_signs
from dmo.linalg.smoothers import LinearSmoother
from dmo.linalg.solve import COEFFICIENTS
from dmo.lowrank import FeatureMap
from dmo.methods.base import Estimator
from dmo.methods.homogeneity_maps import HomogeneityMap, alternating_least_squares, krylov
from dmo.methods.lazy_rows import row_by_row
from dmo.methods.options import Solver
from dmo.parameters import Part, parametrized
from dmo.progress import stage, working_on
from dmo.threads import in_threads

T = TypeVar("T")
View: TypeAlias = FittedView | FactorView


@dataclass(frozen=True)
class Problem:
    """Smoothers of the views and labels, which act on samples or on pseudo-samples with the same moments."""

    views: Mapping[str, View]
    labels: View | None = None
    # Centered labels of shape (n, L), from which the eigensolver starts.
    start: np.ndarray | None = None
    # Sample weights of each view and of the labels, or None for pseudo-samples, which include the weights.
    weights: Sequence[np.ndarray] | None = None
    # Rank of the centered indicator matrix if the labels are classes, and 0 for other labels.
    classes: int = 0
    # For each view, the fraction of the weight of a sample that is left out for its leave-one-out prediction.
    parts: Mapping[str, np.ndarray | None] | None = None
    # Whether leave-one-out values need one linear solve per sample, because no kernel matrix was factorized.
    solves_rows: bool = False

    @property
    def groups(self) -> list[View]:
        """Smoothers of all views, followed by the smoother of the labels."""
        return [*self.views.values(), *([] if self.labels is None else [self.labels])]

    @property
    def n(self) -> int:
        return self.groups[0].n

    def left_out(self, X: np.ndarray, coefficients: Mapping[str, np.ndarray]) -> np.ndarray:
        """Average leave-one-out predictions of X over the views; for pseudo-samples, average in-sample predictions."""
        parts = dict.fromkeys(self.views) if self.parts is None else self.parts
        values = self._side_by_side(lambda name: self.views[name].left_out(X, coefficients[name], None, parts[name]))
        return np.asarray(sum(values)) / len(self.views)

    def coefficients(self, X: np.ndarray) -> dict[str, np.ndarray]:
        """Fit ridge regressions of the coordinates X on each view."""
        with stage("coefficients of the views", len(self.views)) as advance:

            def fit(name: str) -> np.ndarray:
                found = self.views[name].coefficients(X)
                advance(1)
                return found

            return dict(zip(self.views, self._side_by_side(fit), strict=True))

    def _side_by_side(self, work: Callable[[str], np.ndarray]) -> list[np.ndarray]:
        # Products with kernel tiles already use threads or workers, so process one view at a time.
        direct = HomogeneityMap([view.smoother for view in self.views.values()], [1.0] * len(self.views)).direct
        return in_threads(work, list(self.views)) if direct else [work(name) for name in self.views]


@dataclass(frozen=True)
class Solution:
    """Embedding with coordinates X of shape (n, k), and the coefficients of the views and labels."""

    pairs: Eigenpairs
    X: np.ndarray
    coefficients: Mapping[str, np.ndarray]
    loadings: np.ndarray | None

    @classmethod
    def of(cls, problem: Problem, pairs: Eigenpairs, X: np.ndarray) -> Self:
        """Fit the coefficients of the views and labels to coordinates X, and choose the signs of X."""
        loadings = None if problem.labels is None else problem.labels.coefficients(X)
        coefficients = problem.coefficients(X)
        signs = _signs(next(iter(coefficients.values())) if loadings is None else loadings)
        turned = {name: beta * signs for name, beta in coefficients.items()}
        return cls(pairs, X * signs, turned, None if loadings is None else loadings * signs)


def _signs(coefficients: np.ndarray) -> np.ndarray:
    """Return the sign of each column that makes its entry with the largest magnitude positive."""
    # Entries with almost the largest magnitude count as equal, and the first one becomes positive. Otherwise,
    # floating-point error would decide the sign for two classes.
    sizes = np.abs(coefficients)
    first = (sizes >= (1 - _NEAR) * sizes.max(axis=0)).argmax(axis=0)
    return np.where(coefficients[first, np.arange(coefficients.shape[1])] < 0, -1.0, 1.0)


_NEAR = 1e-3
"""Relative difference up to which two entries are equally large for the choice of signs."""


class HomogeneityEmbedding(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Estimator):
    """Base class of `KGHA` and `MultiSetCCA`, which embed samples by the leading eigenvectors of averaged smoothers."""

    # The embedding is equation 30 of Xiong, Szedmak, Piater 2014.

    _solver = Part(Solver, method="krylov", tol=1e-6, max_iter=200)
    _needs: ClassVar[dict[str, Need]] = {
        "center": FLAG,
    }

    kernel: Any
    ridge: Any
    center: bool
    approximation: Any
    random_state: int | None
    expansions_: Mapping[str, Expansion]
    _given_maps: Mapping[str, FeatureMap] | None = None  # Feature maps that another fit has learned.
    _lacks_rows = True

    @property
    def _takes_partial_views(self) -> bool:
        return not is_product(self.kernel)

    def _groups(self, data: Data) -> Groups:
        """Create the kernels of all views for an exact fit."""
        kernels = self._kernels(list(data.views))
        ridges, engine = self._ridges(list(kernels)), exact_engine(self._engine)
        # The tolerance `COEFFICIENTS` applies to ridge coefficients. The eigensolver sets other tolerances for its
        # products.
        return Groups(engine, kernels, ridges, data, self.center, self.random_state, "auto", COEFFICIENTS)

    def _kernels(self, views: list[str]) -> dict[str, MultiKernel]:
        """Return the kernels by name, by default one for each view."""
        return {
            view: MultiKernel.of(view, parse(spec)) for view, spec in per_view("kernel", self.kernel, views).items()
        }

    def _ridges(self, views: list[str]) -> dict[str, float]:
        return per_view("ridge", self.ridge, views, POSITIVE)

    def _weights(self, n_views: int) -> list[float]:
        """Return the weights of the views and labels in the average of the smoothers."""
        return [1.0] * n_views

    def _problem(self, data: Data) -> Problem:
        """Create the smoothers of the views from exact kernels."""
        groups = self._groups(data)
        parts = None if data.weights.ones else groups.shares_left_out()
        return Problem(groups.all(), weights=[groups.weights(name) for name in groups.kernels], parts=parts)

    def _factor_problem(self, groups: FactorGroups) -> Problem:
        """Create the smoothers of the views and labels from low-rank kernels."""
        names = [name for name in groups.groups if name != LABELS]
        views = groups.under(self._all_ridges(names))
        labels = views.pop(LABELS, None)
        return Problem(views, labels, groups.label_rows, classes=groups.class_directions)

    def _all_ridges(self, views: list[str]) -> dict[str, float]:
        return self._ridges(views)

    def _solve(self, problem: Problem, k: int, leading: bool = False) -> Solution:
        """Compute k coordinates; with `leading`, an embedding with fewer coordinates has the same first coordinates."""
        smoothers = [group.smoother for group in problem.groups]
        apply = HomogeneityMap(smoothers, self._weights(len(problem.views)), problem.weights)
        most = max(k, problem.classes)
        solver, seed = self._solver, self.random_state
        with working_on(f"{type(self).__name__} {solver.method}"):
            if solver.method == "krylov":
                start = None if problem.start is None else apply.roots * problem.start
                if start is not None and problem.weights is None:
                    # A product with pseudo-samples is cheap and saves one step of the eigensolver.
                    start = apply(start)
                pairs = krylov(apply, problem.n, most, start, solver.tol, solver.max_iter, seed)
            else:
                plain = solver.method == "plain-als"
                pairs = alternating_least_squares(apply, problem.n, most, solver.tol, solver.max_iter, seed, plain)
        if not pairs.converged:
            self._warn(
                f"{solver.method} stopped after {pairs.steps} steps with a residual of {pairs.residuals.max():.1e}; "
                f"raise max_iter, or tol above {solver.tol:g}",
                ConvergenceWarning,
            )
        apply.loosen(1.0)
        X = apply.coordinates(pairs.vectors)
        if most > k or (leading and problem.classes == k):
            turn = self._turn(problem, X, k)
            X, values = X @ turn, pairs.values @ turn**2
            pairs = replace(pairs, values=values, history=[*pairs.history[:-1], float(values.sum())])
        return Solution.of(problem, pairs, X)

    def _turn(self, problem: Problem, X: np.ndarray, k: int) -> np.ndarray:
        """Find a rotation (K x k) to the k directions of X (n x K) with the best leave-one-out predictions."""
        counts = np.ones(len(X)) if problem.weights is None else problem.weights[-1]
        agreement = X.T @ (counts[:, None] * problem.left_out(X, problem.coefficients(X)))
        return fix_signs(np.linalg.eigh(agreement + agreement.T)[1][:, : -k - 1 : -1])

    def _learn_space(self, problem: Problem, k: int) -> Solution:
        """Compute the embedding and store the fitted functions of new samples."""
        found = self._solve(problem, k)
        self.eigenvalues_, self.n_iter_ = found.pairs.values, found.pairs.steps
        self.objective_, self.objective_history_ = found.pairs.history[-1], found.pairs.history
        self.n_components_ = self._n_features_out = k
        if problem.weights is not None:  # The rows of X are samples instead of pseudo-samples.
            self.embedding_ = found.X
        self.expansions_ = self._functions(problem, found)
        return found

    def _functions(self, problem: Problem, found: Solution) -> dict[str, Expansion]:
        parts = [view.expansions(found.coefficients[name]) for name, view in problem.views.items()]
        return {name: part for expansions in parts for name, part in expansions.items()}

    def _read_rows(
        self,
        views: Mapping[str, Rows],
        Y: Any,
        weights: SampleWeights,
        shares: Sequence[float],
        n_folds: int = 1,
    ) -> FactorGroups:
        """Fit the low-rank kernels, and collect the moments of views and labels in one pass over the data."""
        if not weights.ones:
            return self._read_passive(views, Y, weights, shares)
        maps, n = self._maps(views, None), sample_count(views)
        width = 0 if Y is None else Y.shape[1]
        if n >= width + sum(feature_map.rank for feature_map in maps.values()):
            done = self._collected(
                maps,
                views,
                Y,
                lambda own: pass_of(own, views, Y, n_folds, self.random_state),
                lambda found: dict.fromkeys(maps, found.total),
            )
            return FactorGroups.of_pass(replace(done, maps=maps), self.center)
        # The moments would be larger than the features of the low-rank kernels, so keep the features in memory.
        rows = dict(zip(maps, in_threads(lambda view: maps[view](views[view]), list(maps)), strict=True))
        labels = {} if Y is None else {LABELS: np.asarray(Y, np.float64)}
        return FactorGroups.of_rows(maps, rows | labels, self.center, folds_of(n, n_folds, self.random_state))

    def _read_passive(
        self, views: Mapping[str, Rows], Y: Any, weights: SampleWeights, shares: Sequence[float]
    ) -> FactorGroups:
        """Collect the moments of views with missing or weighted samples, like `_read_rows`."""
        index = {view: np.flatnonzero(weights.views[view]) for view in views}
        some = {view: Subset(source, index[view]) for view, source in views.items()}
        counts = {view: weights.plain.views[view][own] for view, own in index.items()}
        maps = self._maps(some, counts)
        groups = weights.views | ({} if Y is None else {LABELS: weights.labels})
        mass = np.sum([share / sum(shares) * D for share, D in zip(shares, groups.values(), strict=True)], axis=0)
        joint, own = self._collected(
            maps,
            views,
            Y,
            lambda found: passive_moments(FeatureRows(views, found), Y, groups, mass),
            lambda found: found[1],
        )
        mixings = {view: m.mixing for view, m in maps.items() if m.mixing is not None}
        own = {name: part.mixed(mixings) for name, part in own.items()}
        found = FactorGroups.of_passive(joint.mixed(mixings), own, float(mass.sum()), self.center)
        return replace(found, maps=maps)

    def _collected(
        self,
        maps: Mapping[str, FeatureMap],
        views: Mapping[str, Rows],
        Y: Any,
        collect: Callable[[dict[str, FeatureMap]], T],
        moments_of: Callable[[T], Mapping[str, Moments]],
    ) -> T:
        """Collect moments, in float32 for float32 features if there are labels and the result is precise enough."""
        # Without labels, eigenvalues can be almost equal, so moments must be in float64. For independent views of 20
        # 000 samples, float32 changed the space of MultiSetCCA by 3e-5 at a condition number of 100.
        ridges = self._ridges(list(maps))

        def precise(found: T) -> bool:
            own = moments_of(found)
            return all(is_precise(own[view], {view: 1.0}, ridges[view], self.center, SPACE) for view in maps)

        return collect(dict(maps)) if Y is None else in_single(maps, views, collect, precise)

    @property
    def is_exact(self) -> bool:
        """Whether the estimator uses exact kernels, which `fit` decides if approximation="auto"."""
        return is_exact(decided(self))

    @property
    def _engine(self) -> Any:
        return getattr(self, "approximation_", self.approximation)

    def _maps(self, views: Mapping[str, Rows], weights: Mapping[str, np.ndarray] | None) -> dict[str, FeatureMap]:
        """Fit the low-rank kernels of the views, unless another fit has learned them."""
        if self._given_maps is not None:
            return dict(self._given_maps)
        return fit_maps(self._engine, self.kernel, views, self.random_state, self.center, weights)

    @row_by_row
    def transform(self, X: Inputs) -> np.ndarray:
        """Compute the coordinates of samples in the learned space.

        Parameters
        ----------
        X : mapping of view to rows, list of rows, or rows
            The same views as in `fit`, for m samples. Each view is an array of shape (m, d) in chunks of whole rows. A
            view can be missing, and rows of NaN mark samples that are missing from a view. Each sample is embedded by
            the mean over its available views.

        Returns
        -------
        ndarray of shape (m, n_components_)
            Coordinates of the samples.
        """
        check_is_fitted(self)
        return self._project(self._checked(X))

    def _project(self, views: Mapping[str, Rows]) -> np.ndarray:
        return added(self.expansions_, views) / len(self.expansions_)

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays, meta = store_expansions(self.expansions_)
        arrays |= {"eigenvalues": self.eigenvalues_}
        if hasattr(self, "embedding_"):
            arrays["embedding"] = self.embedding_
        return arrays, meta | {"objective_history": self.objective_history_}

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        self.expansions_ = load_expansions(arrays, meta)
        history = list(meta["objective_history"])
        self.eigenvalues_, self.objective_history_ = arrays["eigenvalues"], history
        self.objective_, self.n_iter_ = history[-1], len(history)
        self.n_components_ = self._n_features_out = len(self.eigenvalues_)
        if "embedding" in arrays:
            self.embedding_ = arrays["embedding"]


@parametrized
class HomogeneityAnalysis(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Estimator):
    r"""Homogeneity analysis, an embedding of samples and categories for J categorical columns.

    Samples and categories are embedded in the same space. A category has the mean coordinates of its samples, and a new
    sample has the mean coordinates of its categories. The eigenvalues equal those of multiple correspondence analysis.

    Parameters
    ----------
    n_components : int, default=2
        Number of coordinates: at most the number of categories minus the number of columns, and less than the number of
        samples.
    ridge : float, default=1e-12
        Regularization strength relative to the number of samples, at least 0. Larger values shrink the coordinates of
        rare categories. The default has no visible effect.
    tol : float, default=1e-9
        Tolerance for the residuals of the eigenpairs, relative to the largest eigenvalue.
    max_iter : int, default=200
        Maximum number of block steps of the eigensolver.
    %(random_state)s

    Attributes
    ----------
    embedding_ : ndarray of shape (n, n_components)
        Coordinates of the training samples (object scores), in orthonormal columns.
    eigenvalues_ : ndarray of shape (n_components,)
        Eigenvalues in descending order.
    quantifications_ : list of ndarray of shape (categories of the column, n_components)
        Coordinates of the categories of each column.
    categories_ : list of ndarray
        Sorted categories of each column.
    n_components_ : int
        Number of coordinates.
    n_iter_ : int
        Number of block steps of the eigensolver.

    Notes
    -----
    The object scores are the leading eigenvectors of

    .. math:: H \Big[ \tfrac{1}{J} \sum_j G_j (G_j' G_j)^{-1} G_j' \Big] H,

    where J is the number of columns, G_j is the indicator matrix (samples x categories) of column j, and H is the
    centering matrix.

    References
    ----------
    Gifi 1990, chapter 3; Xiong, Szedmak, Piater 2014, section 2.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo import HomogeneityAnalysis
    >>> things = np.array([["red", "round"], ["red", "square"], ["blue", "round"], ["blue", "square"], ["red", "round"]])
    >>> model = HomogeneityAnalysis(n_components=2).fit(things)
    >>> model.eigenvalues_.round(2).tolist()
    [0.58, 0.42]
    >>> model.transform([["blue", "round"]]).shape
    (1, 2)
    """

    one_view = True
    _needs: ClassVar[dict[str, Need]] = {
        "n_components": COUNT,
        "ridge": NOT_NEGATIVE,
    }

    n_components: int = 2
    _: KW_ONLY
    ridge: float = 1e-12
    tol: float = 1e-9
    max_iter: int = 200
    random_state: int | None = 0

    def fit(self, X: Inputs, y: Outputs | None = None, sample_weight: RowWeights = None) -> Self:
        """Learn the coordinates of samples and categories.

        Parameters
        ----------
        X : array-like of shape (n, J), or a mapping with one view
            Categories of n samples in J columns, as numbers or strings. NaN and None are missing values, which do not
            influence the fit.
        %(y_unused)s
        sample_weight : array-like of shape (n,) or None, default=None
            Weight of each training sample.

        Returns
        -------
        HomogeneityAnalysis
            This estimator, fitted.

        Raises
        ------
        UserError
            If `n_components` exceeds the number of dimensions that the categories span, or if a column has no category.
        """
        return self._fit(X, y, sample_weight)

    def _raw(self, X: Any, reset: bool) -> Mapping[str, Rows]:
        return {SINGLE: self._table(X, reset)}

    def _learn(self, data: Data) -> None:
        X, weights = np.asarray(data.only[1]), data.weights.labels
        used = weights > 0
        n, known = int(used.sum()), ~missing_entries(X)
        self.categories_ = [np.unique(column[has & used]) for column, has in zip(X.T, known.T, strict=True)]
        if not all(len(categories) for categories in self.categories_):
            column = next(j for j, categories in enumerate(self.categories_) if not len(categories))
            raise UserError(f"column {column} has no category in any sample; leave it out")
        indicators = self._indicators(X[used])
        freedom = min(n - 1, sum(G.shape[1] - 1 for G in indicators))
        if not 1 <= self.n_components <= freedom:
            raise TooFewSamples(
                f"n_components = {self.n_components}, but {n} samples in {sum(G.shape[1] for G in indicators)} "
                f"categories of {len(indicators)} columns span {freedom} dimensions"
            )
        parts = [np.where(has, weights, 0.0)[used] for has in known.T]
        rows = [np.sqrt(part)[:, None] for part in parts]
        solvers = [LinearSmoother(R * G, self.ridge * weights.sum()) for R, G in zip(rows, indicators, strict=True)]
        # If the category of a sample is missing, its row of indicators is 0, and its smoothed value is also 0.
        smoothers = [
            lambda B, R=R, G=G, solver=solver: G @ solver.loadings(R * B)
            for R, G, solver in zip(rows, indicators, solvers, strict=True)
        ]
        apply = HomogeneityMap(smoothers, [1.0] * len(parts), parts)
        start = apply.roots * np.hstack(indicators)
        pairs = krylov(apply, n, self.n_components, start, self.tol, self.max_iter, self.random_state)
        coordinates = apply.coordinates(pairs.vectors)
        self.embedding_ = np.zeros((len(X), self.n_components))
        self.embedding_[used] = coordinates
        self.eigenvalues_, self.n_iter_ = pairs.values, pairs.steps
        self.quantifications_ = [solver.loadings(R * coordinates) for R, solver in zip(rows, solvers, strict=True)]
        self.n_components_ = self._n_features_out = self.n_components

    @row_by_row
    def transform(self, X: Inputs) -> np.ndarray:
        """Compute the coordinates of samples as the mean of the coordinates of their categories.

        Parameters
        ----------
        X : array-like of shape (m, J), or a mapping with one view
            Categories that occurred in `fit`. NaN and None are missing values, which the mean excludes.

        Returns
        -------
        ndarray of shape (m, n_components)
            Coordinates of the samples (object scores).

        Raises
        ------
        UserError
            If a category did not occur in `fit`, or if a sample has no category in any column.
        """
        check_is_fitted(self)
        X = self._table(X, reset=False)
        parts = [G @ Q for G, Q in zip(self._indicators(X), self.quantifications_, strict=True)]
        count = (~missing_entries(X)).sum(axis=1)
        if not count.all():
            raise UserError(f"sample {int(np.flatnonzero(count == 0)[0])} has no category in any column; leave it out")
        return np.asarray(sum(parts)) / count[:, None]

    def _table(self, X: Any, reset: bool) -> np.ndarray:
        view, columns = _one_view(X)
        try:
            columns = validate_data(
                self,
                columns,
                dtype=None,
                reset=reset,
                ensure_min_samples=2 if reset else 1,
                ensure_all_finite="allow-nan",
            )
        except ValueError as error:
            raise UserError(str(error)) from error
        if reset:
            self.view_widths_ = {view: columns.shape[1]}
        return columns

    def _indicators(self, X: np.ndarray) -> list[np.ndarray]:
        missing = missing_entries(X)
        if missing.any():  # Any category can replace missing values, because their indicators become 0 below.
            first = np.array([categories[0] for categories in self.categories_], X.dtype)
            X = np.where(missing, first, X)
        encoder = OneHotEncoder(categories=self.categories_, sparse_output=False, handle_unknown="error")
        try:
            joint = encoder.fit(X).transform(X)
        except ValueError as error:
            raise UserError(f"{error}; fit on every category that will occur") from error
        widths = np.cumsum([len(categories) for categories in self.categories_])[:-1]
        return [G * ~absent[:, None] for G, absent in zip(np.split(joint, widths, axis=1), missing.T, strict=True)]

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays = {"embedding": self.embedding_, "eigenvalues": self.eigenvalues_}
        for j, (categories, coordinates) in enumerate(zip(self.categories_, self.quantifications_, strict=True)):
            kept = categories.astype(str) if categories.dtype == object else categories
            arrays |= {f"categories/{j}": kept, f"quantifications/{j}": coordinates}
        return arrays, {"columns": len(self.categories_), "n_iter": self.n_iter_}

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        self.embedding_, self.eigenvalues_, self.n_iter_ = arrays["embedding"], arrays["eigenvalues"], meta["n_iter"]
        self.categories_ = [arrays[f"categories/{j}"] for j in range(meta["columns"])]
        self.quantifications_ = [arrays[f"quantifications/{j}"] for j in range(meta["columns"])]
        self.n_components_ = self._n_features_out = self.embedding_.shape[1]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        tags.input_tags.categorical = True
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        return tags


def _one_view(X: Any) -> tuple[str, Any]:
    if not isinstance(X, Mapping):
        return SINGLE, X
    if len(X) != 1:
        raise UserError(f"supports one view, got {list(X)}; pass the one whose columns are categories")
    view, source = next(iter(X.items()))
    return str(view), rows(source)
