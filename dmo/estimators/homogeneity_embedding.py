"""What KGHA and multiple-set CCA share: an embedding from averaged smoothers over kernel views."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from dmo.blocks import Rows, Subset
from dmo.cluster import current_client
from dmo.engines.exact import choose_storage, exact_engine
from dmo.engines.fitted_views import FittedView, fit_view
from dmo.engines.lowrank import LowRankPass, decided, fit_maps, folds_of, is_exact, pass_of
from dmo.engines.moments import LABELS, ScoreSums
from dmo.engines.passes import FeatureRows, passive_moments
from dmo.estimators.arguments import Inputs, Solver
from dmo.estimators.base import Estimator
from dmo.estimators.lazy import row_by_row
from dmo.functions import Expansion, FactorExpansion, added, load_expansions, store_expansions
from dmo.kernels import parse
from dmo.kernels.multikernel import MultiKernel, is_product
from dmo.kernels.threads import in_threads
from dmo.linalg.eigen import Eigenpairs
from dmo.linalg.solve import COEFFICIENTS, EXACT, SolveMethod
from dmo.lowrank import FeatureMap
from dmo.methods.homogeneity.moments import HomogeneityFit, Rotated, RotatedMoments, RotatedRows
from dmo.methods.homogeneity.operators import HomogeneityMap, alternating_least_squares, krylov
from dmo.parameters import Part
from dmo.progress import stage
from dmo.validation import FLAG, POSITIVE, SEED, Need, SampleWeights, check_views, per_view, sample_count

Fold: TypeAlias = tuple[Rotated, Callable[[Mapping[str, np.ndarray], np.ndarray], ScoreSums]]
"""All samples but a fold's, and coefficients, offset -> the sums of the fold's scores."""


@dataclass(frozen=True)
class FactorRows:
    """What a fit needs of factor rows and labels, those of all samples and of all but each fold's."""

    maps: Mapping[str, FeatureMap]
    rotated: Rotated
    folds: Iterable[Fold] = ()

    @classmethod
    def of_pass(cls, done: LowRankPass, center: bool) -> Self:
        """From the moments of a pass."""
        folds = ((RotatedMoments.of(done.total - part, center), part.of_scores) for part in done.folds)
        return cls(done.maps, RotatedMoments.of(done.total, center), folds if len(done.folds) > 1 else ())

    @classmethod
    def of_rows(
        cls, maps: Mapping[str, FeatureMap], groups: Mapping[str, np.ndarray], fold: np.ndarray, center: bool
    ) -> Self:
        """From the rows themselves (n x rank each, and labels), of fewer samples than columns; fold (n,)."""

        def of_fold(number: int) -> Fold:
            own = {view: groups[view][fold == number] for view in maps}

            def sums(coefficients: Mapping[str, np.ndarray], offset: np.ndarray) -> ScoreSums:
                scores = sum(own[view] @ B for view, B in coefficients.items()) + offset
                return ScoreSums(len(scores), scores.sum(axis=0), (scores**2).sum(axis=0))

            rest = {name: rows[fold != number] for name, rows in groups.items()}
            return RotatedRows.of(rest, center), sums

        numbers = range(int(fold.max()) + 1 if fold.any() else 0)
        return cls(maps, RotatedRows.of(groups, center), map(of_fold, numbers))


class HomogeneityEmbedding(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Estimator):
    """Top eigenvectors of averaged smoothers over kernel views; new rows by the average of K_j(x) alpha_j."""

    # The base class of `KGHA` and `MultiSetCCA`.
    #
    # Xiong, Szedmak, Piater 2014, equation 30.

    _solver = Part(Solver, method="krylov", tol=1e-6, max_iter=200)
    _needs: ClassVar[dict[str, Need]] = {
        "center": FLAG,
        "random_state": SEED,
    }

    kernel: Any
    ridge: Any
    center: bool
    approximation: Any
    random_state: int | None
    expansions_: Mapping[str, Expansion]
    _given_maps: Mapping[str, FeatureMap] | None = None  # low-rank kernels that another fit has found

    @property
    def _takes_partial_views(self) -> bool:
        return not is_product(self.kernel)

    def _fit_views(self, views: Mapping[str, Rows], weights: SampleWeights | None = None) -> dict[str, FittedView]:
        n = sample_count(views)
        kernels = self._kernels(list(views))
        ridges = self._ridges(list(kernels))
        engine = exact_engine(self._engine)
        storage = choose_storage(engine, n, len(kernels))
        method: SolveMethod = "cg" if self._solver.method == "als" else "auto"
        # the search asks for what its eigenpairs need; an iteration that does not has to have exact solutions
        tol = EXACT if self._solver.method == "als" else COEFFICIENTS
        with stage("kernels and factors", len(kernels)) as advance:

            def fit(name: str) -> FittedView:
                own = None if weights is None else weights.of_views(list(kernels[name].kernels))
                found = fit_view(
                    engine,
                    name,
                    kernels[name],
                    views,
                    ridges[name],
                    self.center,
                    storage,
                    method,
                    self.random_state,
                    weights=own,
                    tol=tol,
                )
                advance(1)
                return found

            # tiles have threads, or workers, of their own
            fitted = in_threads(fit, list(kernels)) if storage == "memory" else [fit(name) for name in kernels]
        return dict(zip(kernels, fitted, strict=True))

    def _kernels(self, views: list[str]) -> dict[str, MultiKernel]:
        """The kernels that smooth, by name: one of every view."""
        return {
            view: MultiKernel.of(view, parse(spec)) for view, spec in per_view("kernel", self.kernel, views).items()
        }

    def _ridges(self, views: list[str]) -> dict[str, float]:
        return per_view("ridge", self.ridge, views, POSITIVE)

    def _embed(
        self,
        groups: Sequence[FittedView],
        shares: Sequence[float],
        weights: Sequence[np.ndarray],
        k: int,
        start: np.ndarray | None,
    ) -> np.ndarray:
        """Coordinates (n x k) of the samples, zeros for those without any weight; groups may lack samples."""
        apply = HomogeneityMap([group.smoother for group in groups], shares, weights)
        n = groups[0].n
        if self._solver.method == "krylov":
            labels = None if start is None else apply.roots * start
            pairs = krylov(apply, n, k, labels, self._solver.tol, self._solver.max_iter, self.random_state)
        else:
            pairs = alternating_least_squares(apply, n, k, self._solver.tol, self._solver.max_iter, self.random_state)
        if not pairs.converged:
            self._warn(
                f"{self._solver.method} stopped after {pairs.steps} steps with a residual of {pairs.residuals.max():.1e}; "
                f"raise max_iter, or tol above {self._solver.tol:g}",
                ConvergenceWarning,
            )
        self._learn(pairs)
        self.embedding_ = apply.coordinates(pairs.vectors)
        return self.embedding_

    def _expand_views(self, fitted: Mapping[str, FittedView], X: np.ndarray, loo: bool = False) -> np.ndarray | None:
        """The functions of the views that give the coordinates X (n x k); with `loo` their mean at left-out samples."""
        with stage("coefficients of the views", len(fitted)) as advance:

            def expand(view: FittedView) -> tuple[dict[str, Expansion], np.ndarray | float]:
                coefficients = view.coefficients(X)
                left = view.leave_one_out(X, coefficients) if loo else 0.0
                advance(1)
                return view.expansions(coefficients), left

            views = list(fitted.values())
            # tiles have threads, or workers, of their own
            direct = HomogeneityMap([view.smoother for view in views], [1.0] * len(views)).direct
            found = in_threads(expand, views) if direct else [expand(view) for view in views]
        self.expansions_ = {name: part for expansions, _ in found for name, part in expansions.items()}
        return sum(left for _, left in found) / len(found) if loo else None  # type: ignore[return-value]

    def _read_rows(
        self,
        views: Mapping[str, Rows],
        Y: np.ndarray | None,
        weights: SampleWeights,
        shares: Sequence[float],
        n_folds: int = 1,
    ) -> FactorRows:
        """Low-rank kernels, and one pass over their rows and labels Y (n x L): of views that lack samples, or whose samples
        count more than once, as those that take no part; `shares` of the views, and of labels, in the space."""
        if not weights.ones:
            return self._read_passive(views, Y, weights, shares)
        maps, n = self._maps(views), sample_count(views)
        width = 0 if Y is None else Y.shape[1]
        if n >= width + sum(feature_map.rank for feature_map in maps.values()):
            return FactorRows.of_pass(pass_of(maps, views, Y, n_folds, self.random_state), self.center)
        # their moments would be larger than the rows
        rows = dict(zip(maps, in_threads(lambda view: maps[view](views[view]), list(maps)), strict=True))
        labels = {} if Y is None else {LABELS: Y.astype(np.float64)}
        return FactorRows.of_rows(maps, rows | labels, folds_of(n, n_folds, self.random_state), self.center)

    def _read_passive(
        self, views: Mapping[str, Rows], Y: np.ndarray | None, weights: SampleWeights, shares: Sequence[float]
    ) -> FactorRows:
        maps = self._partial_maps(views, weights)
        groups = weights.views | ({} if Y is None else {LABELS: weights.labels})
        mass = np.sum([share / sum(shares) * D for share, D in zip(shares, groups.values(), strict=True)], axis=0)
        joint, own = passive_moments(FeatureRows(views, maps), Y, groups, mass, current_client())
        mixings = {view: m.mixing for view, m in maps.items() if m.mixing is not None}
        own = {name: part.mixed(mixings) for name, part in own.items()}
        return FactorRows(maps, RotatedMoments.passive(joint.mixed(mixings), own, float(mass.sum()), self.center))

    def _partial_maps(self, views: Mapping[str, Rows], weights: SampleWeights) -> dict[str, FeatureMap]:
        """The low-rank kernels of the samples that every view has."""
        index = {view: np.flatnonzero(weights.views[view]) for view in views}
        some = {view: Subset(source, index[view]) for view, source in views.items()}
        counts = {view: weights.views[view][own] for view, own in index.items()}
        return fit_maps(self._engine, self.kernel, some, self.random_state, self.center, counts)

    def _learn(self, pairs: Eigenpairs) -> None:
        self.eigenvalues_ = pairs.values
        self.objective_, self.objective_history_, self.n_iter_ = pairs.history[-1], pairs.history, pairs.steps
        self.n_components_ = self._n_features_out = len(pairs.values)

    @property
    def is_exact(self) -> bool:
        """Whether the exact engine fits this estimator, as its `approximation` says (for "auto": once it is fitted)."""
        return is_exact(decided(self))

    @property
    def _engine(self) -> Any:
        return getattr(self, "approximation_", self.approximation)

    def _maps(self, views: Mapping[str, Rows]) -> dict[str, FeatureMap]:
        """The low-rank kernels of the views."""
        if self._given_maps is not None:
            return dict(self._given_maps)
        return fit_maps(self._engine, self.kernel, views, self.random_state, self.center)

    def _expand(self, maps: Mapping[str, FeatureMap], fit: HomogeneityFit) -> None:
        self.expansions_ = {
            view: FactorExpansion.of(view, feature_map, fit.coefficients[view], fit.offsets[view])
            for view, feature_map in maps.items()
        }

    @row_by_row
    def transform(self, X: Inputs) -> np.ndarray:
        """Give samples their coordinates in the learned space.

        Parameters
        ----------
        X : mapping of view to rows, list of rows, or rows
            The views of fit, of m samples: arrays of shape (m, d), in chunks of whole rows. A view may be left out, or
            have rows of NaN for samples that it lacks: the mean runs over the views that a sample has.

        Returns
        -------
        ndarray of shape (m, n_components_)
            Coordinates.
        """
        check_is_fitted(self)
        return self._project(check_views(self, X, reset=False, partial=self._takes_partial_views))

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
