"""Homogeneity analysis, and the base class of KGHA and multiple-set CCA, which embed samples by averaged smoothers."""

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
from dmo.kernels.multikernel import MultiKernel, is_product
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
    """Views and labels under their ridges, as groups of samples or pseudo-samples.

    start (n, L); weights (n,), labels last; parts (n,): see `Groups.shares_left_out`
    """

    views: Mapping[str, View]
    labels: View | None = None
    start: np.ndarray | None = None  # centered labels, from which the search starts
    weights: Sequence[np.ndarray] | None = None  # weights of the samples by group; None: included in pseudo-samples
    classes: int = 0  # number of directions of labels that are classes; 0 for other labels
    parts: Mapping[str, np.ndarray | None] | None = None
    solves_rows: bool = False  # whether leave-one-out values take one solve per row, because there is no factor

    @property
    def groups(self) -> list[View]:
        """All groups, the labels last."""
        return [*self.views.values(), *([] if self.labels is None else [self.labels])]

    @property
    def n(self) -> int:
        return self.groups[0].n

    def left_out(self, X: np.ndarray, coefficients: Mapping[str, np.ndarray]) -> np.ndarray:
        """Average the leave-one-out values of the views; fitted values if rows are factor rows.

        X (n, k) -> (n, k)
        """
        parts = dict.fromkeys(self.views) if self.parts is None else self.parts
        values = self._side_by_side(lambda name: self.views[name].left_out(X, coefficients[name], None, parts[name]))
        return np.asarray(sum(values)) / len(self.views)

    def coefficients(self, X: np.ndarray) -> dict[str, np.ndarray]:
        """Fit the functions of the views to coordinates.

        X (n, k)
        """
        with stage("coefficients of the views", len(self.views)) as advance:

            def fit(name: str) -> np.ndarray:
                found = self.views[name].coefficients(X)
                advance(1)
                return found

            return dict(zip(self.views, self._side_by_side(fit), strict=True))

    def _side_by_side(self, work: Callable[[str], np.ndarray]) -> list[np.ndarray]:
        # Tiles have threads, or workers, of their own.
        direct = HomogeneityMap([view.smoother for view in self.views.values()], [1.0] * len(self.views)).direct
        return in_threads(work, list(self.views)) if direct else [work(name) for name in self.views]


@dataclass(frozen=True)
class Solution:
    """A space: its eigenpairs, coordinates of the samples, coefficients of the views, and loadings of the labels.

    X (n, k); coefficients (d, k); loadings (L, k)
    """

    pairs: Eigenpairs
    X: np.ndarray
    coefficients: Mapping[str, np.ndarray]
    loadings: np.ndarray | None

    @classmethod
    def of(cls, problem: Problem, pairs: Eigenpairs, X: np.ndarray) -> Self:
        """Fit the functions of all groups to coordinates, and choose the signs of the coordinates.

        X (n, k)
        """
        loadings = None if problem.labels is None else problem.labels.coefficients(X)
        coefficients = problem.coefficients(X)
        signs = _signs(next(iter(coefficients.values())) if loadings is None else loadings)
        turned = {name: beta * signs for name, beta in coefficients.items()}
        return cls(pairs, X * signs, turned, None if loadings is None else loadings * signs)


def _signs(coefficients: np.ndarray) -> np.ndarray:
    """Signs (k) under which the first entry among the largest of each column is positive."""
    # With two classes, the two largest loadings differ in sign, and their magnitudes differ by rounding errors only.
    sizes = np.abs(coefficients)
    first = (sizes >= (1 - _NEAR) * sizes.max(axis=0)).argmax(axis=0)
    return np.where(coefficients[first, np.arange(coefficients.shape[1])] < 0, -1.0, 1.0)


_NEAR = 1e-3
"""Relative difference of entries that count as equally large when signs are chosen."""


class HomogeneityEmbedding(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Estimator):
    """Leading eigenvectors of averaged smoothers of kernel views; new rows are mapped by the mean of K_j(x) alpha_j."""

    # The base class of `KGHA` and `MultiSetCCA`.
    #
    # Xiong, Szedmak, Piater 2014, equation 30.

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
    _given_maps: Mapping[str, FeatureMap] | None = None  # low-rank kernels of another fit
    _lacks_rows = True

    @property
    def _takes_partial_views(self) -> bool:
        return not is_product(self.kernel)

    def _groups(self, data: Data) -> Groups:
        """Return the groups of the exact engine."""
        kernels = self._kernels(list(data.views))
        ridges, engine = self._ridges(list(kernels)), exact_engine(self._engine)
        # The search for eigenpairs requests the accuracy that it needs.
        return Groups(engine, kernels, ridges, data, self.center, self.random_state, "auto", COEFFICIENTS)

    def _kernels(self, views: list[str]) -> dict[str, MultiKernel]:
        """Return the kernel of each group; by default there is one group per view."""
        return {
            view: MultiKernel.of(view, parse(spec)) for view, spec in per_view("kernel", self.kernel, views).items()
        }

    def _ridges(self, views: list[str]) -> dict[str, float]:
        return per_view("ridge", self.ridge, views, POSITIVE)

    def _weights(self, n_views: int) -> list[float]:
        """Weights of the views, and of the labels if they take part in the space."""
        return [1.0] * n_views

    def _problem(self, data: Data) -> Problem:
        """Build the views of the exact engine under their ridges."""
        groups = self._groups(data)
        parts = None if data.weights.ones else groups.shares_left_out()
        return Problem(groups.all(), weights=[groups.weights(name) for name in groups.kernels], parts=parts)

    def _factor_problem(self, groups: FactorGroups) -> Problem:
        """Build the views, and the labels if there are any, of the low-rank engine under their ridges."""
        names = [name for name in groups.groups if name != LABELS]
        views = groups.under(self._all_ridges(names))
        labels = views.pop(LABELS, None)
        return Problem(views, labels, groups.label_rows, classes=groups.class_directions)

    def _all_ridges(self, views: list[str]) -> dict[str, float]:
        """Ridges of all groups."""
        return self._ridges(views)

    def _solve(self, problem: Problem, k: int, leading: bool = False) -> Solution:
        """Find a space of k dimensions; with `leading`, the first dimensions are those of a smaller space."""
        smoothers = [group.smoother for group in problem.groups]
        apply = HomogeneityMap(smoothers, self._weights(len(problem.views)), problem.weights)
        most = max(k, problem.classes)
        solver, seed = self._solver, self.random_state
        with working_on(f"{type(self).__name__} {solver.method}"):
            if solver.method == "krylov":
                start = None if problem.start is None else apply.roots * problem.start
                if start is not None and problem.weights is None:
                    start = apply(start)  # With cheap maps, one step less of a wide basis saves more than it costs.
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
        """Choose the directions whose left-out values agree best with the coordinates, the best first.

        X (n, K) -> (K, k)
        """
        counts = np.ones(len(X)) if problem.weights is None else problem.weights[-1]
        agreement = X.T @ (counts[:, None] * problem.left_out(X, problem.coefficients(X)))
        return fix_signs(np.linalg.eigh(agreement + agreement.T)[1][:, : -k - 1 : -1])

    def _learn_space(self, problem: Problem, k: int) -> Solution:
        """Find a space and keep its functions of new rows."""
        found = self._solve(problem, k)
        self.eigenvalues_, self.n_iter_ = found.pairs.values, found.pairs.steps
        self.objective_, self.objective_history_ = found.pairs.history[-1], found.pairs.history
        self.n_components_ = self._n_features_out = k
        if problem.weights is not None:  # The rows are the samples.
            self.embedding_ = found.X
        self.expansions_ = self._functions(problem, found)
        return found

    def _functions(self, problem: Problem, found: Solution) -> dict[str, Expansion]:
        """Make the functions of new rows of all views."""
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
        """Fit the low-rank kernels and read the rows once; `shares`: weights of the views and labels in the space.

        Y (n, L)
        """
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
        # Their moments would be larger than the rows.
        rows = dict(zip(maps, in_threads(lambda view: maps[view](views[view]), list(maps)), strict=True))
        labels = {} if Y is None else {LABELS: np.asarray(Y, np.float64)}
        return FactorGroups.of_rows(maps, rows | labels, self.center, folds_of(n, n_folds, self.random_state))

    def _read_passive(
        self, views: Mapping[str, Rows], Y: Any, weights: SampleWeights, shares: Sequence[float]
    ) -> FactorGroups:
        """Read views that lack samples or whose samples have weights; missing samples are passive."""
        index = {view: np.flatnonzero(weights.views[view]) for view in views}
        some = {view: Subset(source, index[view]) for view, source in views.items()}  # the samples that a view has
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
        """Collect moments; in float32 for float32 features if there are labels and all smoothers are precise enough."""
        # Without labels, eigenvalues can be almost equal: on 20 000 samples of independent views, float32 changed the
        # space of MultiSetCCA by 3e-5 at a condition number of 100.
        ridges = self._ridges(list(maps))

        def precise(found: T) -> bool:
            own = moments_of(found)
            return all(is_precise(own[view], {view: 1.0}, ridges[view], self.center, SPACE) for view in maps)

        return collect(dict(maps)) if Y is None else in_single(maps, views, collect, precise)

    @property
    def is_exact(self) -> bool:
        """Whether the exact engine is used; with approximation="auto", this is known after `fit`."""
        return is_exact(decided(self))

    @property
    def _engine(self) -> Any:
        return getattr(self, "approximation_", self.approximation)

    def _maps(self, views: Mapping[str, Rows], weights: Mapping[str, np.ndarray] | None) -> dict[str, FeatureMap]:
        """Fit the low-rank kernels of the views, or return those that were given.

        views (n, d); weights (n,)
        """
        if self._given_maps is not None:
            return dict(self._given_maps)
        return fit_maps(self._engine, self.kernel, views, self.random_state, self.center, weights)

    @row_by_row
    def transform(self, X: Inputs) -> np.ndarray:
        """Compute the coordinates of samples in the learned space.

        Parameters
        ----------
        X : mapping of view to rows, list of rows, or rows
            Views of m samples with the names used in `fit`: arrays of shape (m, d), in chunks of whole rows. A view may be
            missing, or have rows of NaN for samples that it lacks; the mean is over the views that a sample has.

        Returns
        -------
        ndarray of shape (m, n_components_)
            Coordinates.
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
    r"""Homogeneity analysis: one space for the samples and the categories of J categorical columns.

    A category has the mean coordinates of its samples, and a new sample has the mean coordinates of its categories. The
    eigenvalues equal those of multiple correspondence analysis of the indicator matrix.

    Parameters
    ----------
    n_components : int, default=2
        Number of dimensions: at most the number of categories minus the number of columns, and less than the number of
        samples.
    ridge : float, default=1e-12
        Ridge relative to n, at least 0. It keeps the coordinates of rare categories finite; 1e-12 has no effect.
    tol : float, default=1e-9
        Residual of the eigenpairs, relative to the largest eigenvalue, at which the search stops.
    max_iter : int, default=200
        Maximum number of block steps of the eigenvalue search.
    %(random_state)s

    Attributes
    ----------
    embedding_ : ndarray of shape (n, n_components)
        Object scores, orthonormal.
    eigenvalues_ : ndarray of shape (n_components,)
        Eigenvalues in descending order.
    quantifications_ : list of ndarray of shape (categories of the column, n_components)
        Coordinates of the categories, one array per column.
    categories_ : list of ndarray
        Sorted categories of each column.
    n_components_ : int
        Number of dimensions.
    n_iter_ : int
        Number of steps.

    Notes
    -----
    The object scores are the leading eigenvectors of

    .. math:: H \Big[ \tfrac{1}{J} \sum_j G_j (G_j' G_j)^{-1} G_j' \Big] H,

    where G_j is the indicator matrix (samples x categories) of column j, and H is the centering matrix.

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
            Categories: numbers or strings. NaN and None are missing; a sample has no influence on columns in which its
            value is missing.
        %(y_unused)s
        sample_weight : array-like of shape (n,) or None, default=None
            Weights of the samples.

        Returns
        -------
        HomogeneityAnalysis
            This estimator, fitted.

        Raises
        ------
        UserError
            If there are more components than dimensions that the categories span.
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
                f"n_components = {self.n_components}, but {n} samples in "
                f"{sum(G.shape[1] for G in indicators)} categories of {len(indicators)} columns span {freedom} dimensions"
            )
        parts = [np.where(has, weights, 0.0)[used] for has in known.T]
        rows = [np.sqrt(part)[:, None] for part in parts]
        solvers = [LinearSmoother(R * G, self.ridge * weights.sum()) for R, G in zip(rows, indicators, strict=True)]
        # Values at a sample with a missing category are 0, because its row of indicators is 0.
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
        """Compute the object scores of samples.

        Parameters
        ----------
        X : array-like of shape (m, J), or a mapping with one view
            Categories that occurred in `fit`. NaN and None are missing values, which the mean excludes.

        Returns
        -------
        ndarray of shape (m, n_components)
            Object scores.

        Raises
        ------
        UserError
            For a category that is unknown, and for a sample without any.
        """
        check_is_fitted(self)
        X = self._table(X, reset=False)
        parts = [G @ Q for G, Q in zip(self._indicators(X), self.quantifications_, strict=True)]
        count = (~missing_entries(X)).sum(axis=1)
        if not count.all():
            raise UserError(f"sample {int(np.flatnonzero(count == 0)[0])} has no category in any column; leave it out")
        return np.asarray(sum(parts)) / count[:, None]

    def _table(self, X: Any, reset: bool) -> np.ndarray:
        """Return the columns of an array, or of the one view of a mapping, in memory."""
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
        if missing.any():  # any category stands in for them until their rows become zeros
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
        raise UserError(f"takes one view, got {list(X)}; pass the one whose columns are categories")
    view, source = next(iter(X.items()))
    return str(view), rows(source)
