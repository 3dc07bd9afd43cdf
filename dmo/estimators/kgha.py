"""KGHA, and its relatives without labels: multiple-set CCA and homogeneity analysis."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from dmo.blocks import Rows
from dmo.eigen import Eigenpairs
from dmo.estimators.base import Annotator, Persistent, load_expansions, store_expansions, with_prefix, without_prefix
from dmo.estimators.exact import FittedView, choose_storage, exact_engine, fit_view
from dmo.estimators.folds import Held, SharedViews
from dmo.estimators.incremental import Incremental
from dmo.estimators.lowrank_engine import FOLDS, LowRankPass, choose_engine, decided, is_exact, low_rank_pass
from dmo.estimators.views import check_labels, check_views, count_components, per_view, positive
from dmo.expansions import Expansion, FactorExpansion
from dmo.kernels import Kernel, parse
from dmo.methods.decoding import ScoreRule, leave_one_out
from dmo.methods.homogeneity import LinearSmoother, Map, alternating_least_squares, decoder, homogeneity_map, krylov
from dmo.methods.homogeneity_moments import HomogeneityFit, RotatedMoments, SharedHomogeneity, homogeneity
from dmo.moments import LABELS, Moments, pooled
from dmo.multikernel import MultiKernel
from dmo.progress import stage
from dmo.solve import Method

KernelSpec = str | Kernel | Mapping[str, Any] | list[Any]


class _HomogeneityEmbedding(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Persistent, BaseEstimator):
    """Top eigenvectors of averaged smoothers over kernel views; new rows by the average of K_j(x) alpha_j (eq. 30)."""

    kernel: Any
    ridge: Any
    center: bool
    solver: str
    tolerance: float
    max_iter: int
    approximation: Any
    random_state: int | None
    expansions_: Mapping[str, Expansion]

    def _fit_views(self, views: Mapping[str, Rows]) -> dict[str, FittedView]:
        name, n = type(self).__name__, next(iter(views.values())).shape[0]
        kernels, ridges = self._kernels(views), self._ridges(list(views))
        engine = exact_engine(name, self._engine)
        storage = choose_storage(engine, n, len(views))
        method: Method = "cg" if self.solver == "als" else "auto"
        fitted = {}
        with stage("kernels and factors", len(views)) as advance:
            for view in views:
                kernel = MultiKernel.of(view, kernels[view])
                fitted[view] = fit_view(
                    name, engine, kernel, views, ridges[view], self.center, storage, method, self.random_state
                )
                advance(1)
        return fitted

    def _kernels(self, views: Mapping[str, Rows]) -> dict[str, Kernel]:
        given = per_view(type(self).__name__, "kernel", self.kernel, list(views))
        return {view: parse(spec) for view, spec in given.items()}

    def _ridges(self, views: list[str]) -> dict[str, float]:
        who = type(self).__name__
        given = per_view(who, "ridge", self.ridge, views)
        return {view: positive(who, f"ridge of view {view!r}", given[view]) for view in views}

    def _embed(self, apply: Map, n: int, k: int, labels: np.ndarray | None) -> Eigenpairs:
        if self.solver == "krylov":
            pairs = krylov(apply, n, k, labels, self.tolerance, self.max_iter, self.random_state)
        elif self.solver == "als":
            pairs = alternating_least_squares(apply, n, k, self.tolerance, self.max_iter, self.random_state)
        else:
            raise ValueError(f"{type(self).__name__}: solver = {self.solver!r}; known: 'krylov', 'als'")
        if not pairs.converged:
            warnings.warn(
                f"{type(self).__name__}: {self.solver} stopped after {pairs.steps} steps with a residual of "
                f"{pairs.residuals.max():.1e}; raise max_iter, or the tolerance above {self.tolerance:g}",
                ConvergenceWarning,
                stacklevel=3,
            )
        self._learn(pairs)
        self.embedding_ = pairs.vectors
        return pairs

    def _learn(self, pairs: Eigenpairs) -> None:
        self.eigenvalues_ = pairs.values
        self.objective_, self.objective_history_, self.n_iter_ = pairs.history[-1], pairs.history, pairs.steps
        self.n_components_ = self._n_features_out = len(pairs.values)

    @property
    def is_exact(self) -> bool:
        """Whether the exact engine fits this estimator, as its `approximation` says (for "auto": once it is fitted)."""
        return is_exact(type(self).__name__, decided(self))

    @property
    def _engine(self) -> Any:
        return getattr(self, "approximation_", self.approximation)

    def _low_rank(self, views: Mapping[str, Rows], Y: np.ndarray | None, n_folds: int) -> LowRankPass:
        who = type(self).__name__
        return low_rank_pass(who, self._engine, self.kernel, views, Y, n_folds, self.random_state)

    def _expand(self, done: LowRankPass, fit: HomogeneityFit) -> None:
        self.expansions_ = {
            view: FactorExpansion.of(view, feature_map, fit.coefficients[view], fit.offsets[view])
            for view, feature_map in done.maps.items()
        }

    def transform(self, X: Any) -> np.ndarray:
        """The learnt representation of samples X (views of m rows): m x n_components."""
        check_is_fitted(self)
        return self._project(check_views(self, X, reset=False))

    def _project(self, views: Mapping[str, Rows]) -> np.ndarray:
        total = sum(expansion(views) for expansion in self.expansions_.values())
        return np.asarray(total) / len(self.expansions_)

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

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class KGHA(Incremental, Annotator, _HomogeneityEmbedding):
    """Kernel generalised homogeneity analysis: one space for many views and many labels, and annotation from it.

    The embedding X (n x p) is the top of M = H [balance * sum_j K_j (K_j + c_j I)^-1 + K_Y (K_Y + c I)^-1] H; new samples
    come by X_hat = mean_j K_j(x) alpha_j, their label scores by X_hat pinv(Y'alpha_Y).

    Parameters
    ----------
    kernel : name, Kernel, mapping view -> kernel, or list
        See `dmo.kernels.parse`. One for all views, or one per view.
    balance : float > 0
        Weight lambda of every view against the labels' 1. KGHA-r is the limit 0.
    ridge : float > 0, mapping or list
        c_j of every view, and of the labels unless `label_ridge` is given.
    n_components : int, or float in (0, 1]
        p, or p as a share of the number of labels (1.0 is KGHA-d), at most the rank of the centred labels.
    center : bool
        Centre kernels and labels (new rows by the training means). The paper's literal form is False.
    intercept : bool
        Add the label means to the scores.
    prior_power, standardise : float in [0, 1]
        Divide the scores by label frequency to that power; subtract mean and divide by deviation of each label's
        leave-one-out training scores to that power (needs factorised kernels). See `dmo.methods.decoding.ScoreRule`.
    solver : "krylov" or "als"
        Block Krylov started from the labels, or the paper's alternating least squares with warm-started block CG.
    approximation : "auto", "exact", Exact(...), Nystrom(...), Meka(...) or BestLowRank(...)
        The exact engine (Exact says where and in which precision the kernels live), or a low-rank kernel per view and
        the moment engine: one pass over the rows, then small dense algebra. "auto": exact where it fits in memory.
    label_ridge : float > 0 or None
    tolerance : float
        krylov: residual of the eigenpairs relative to the largest eigenvalue; als: relative change of the objective.
    max_iter : int
        Block steps (krylov) or iterations (als); a ConvergenceWarning says when they ran out.
    random_state : int or None

    Attributes
    ----------
    embedding_ (n x p), eigenvalues_ (p), objective_, objective_history_, n_iter_, n_components_, decoder_ (p x L),
    expansions_, rule_, classes_.

    Source: Xiong, Szedmak, Piater 2014, eqs. 26, 27, 30, 31, 33.
    """

    def __init__(
        self,
        kernel: KernelSpec = "rbf",
        *,
        balance: float = 1e-2,
        ridge: Any = 1e-1,
        n_components: float = 0.8,
        center: bool = True,
        intercept: bool = False,
        prior_power: float = 0.0,
        standardise: float = 0.0,
        solver: Literal["krylov", "als"] = "krylov",
        approximation: Any = "auto",
        label_ridge: float | None = None,
        tolerance: float = 1e-6,
        max_iter: int = 200,
        random_state: int | None = 0,
    ):
        self.kernel = kernel
        self.balance = balance
        self.ridge = ridge
        self.n_components = n_components
        self.center = center
        self.intercept = intercept
        self.prior_power = prior_power
        self.standardise = standardise
        self.solver = solver
        self.approximation = approximation
        self.label_ridge = label_ridge
        self.tolerance = tolerance
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from samples X (views of n rows) and labels y (n x L of 0/1, or n classes)."""
        views = check_views(self, X, reset=True)
        n = next(iter(views.values())).shape[0]
        Y = check_labels(self, y, n, dtype=np.uint8)
        self._forget_pass()
        positive("KGHA", "balance", self.balance)
        self.approximation_ = choose_engine(self.approximation, n, len(views))
        if self.is_exact:
            self._fit_exact(views, Y.astype(np.float64), self.count_components(Y))
        else:
            self._fit_pass(self._low_rank(views, Y, FOLDS if self.standardise else 1))
        return self

    def _fit_exact(self, views: Mapping[str, Rows], Y: np.ndarray, k: int) -> None:
        n = len(Y)
        labels = LinearSmoother(Y - Y.mean(axis=0) if self.center else Y, self._label_ridge())
        fitted = self._fit_views(views)
        apply = homogeneity_map([view.smoother for view in fitted.values()] + [labels], self._weights(len(views)))
        pairs = self._embed(apply, n, k, Y)
        self.embedding_ = pairs.vectors
        self.decoder_ = decoder(labels.loadings(pairs.vectors))
        loo = np.zeros((n, k))
        expansions = {}
        with stage("dual coefficients", len(views)) as advance:
            for name, view in fitted.items():
                dual = view.smoother.dual(pairs.vectors)
                expansions[name] = view.expansion(dual)
                if self.standardise:
                    loo += leave_one_out(pairs.vectors, dual, view.smoother.inverse_diagonal()) / len(views)
                advance(1)
        self.expansions_ = expansions
        held = loo @ self.decoder_
        self.rule_ = ScoreRule.learn(Y.mean(axis=0), held, self.intercept, self.standardise, self.prior_power)

    def _fit_pass(self, done: LowRankPass) -> None:
        labels, frequency = done.total.centred_gram(LABELS), done.total.mean()[done.total.places()[LABELS]]
        k = self._components(len(labels), int(np.linalg.matrix_rank(labels, hermitian=True)), done.total.n)
        rotated = RotatedMoments.of(done.total, self.center)
        weights, ridges = self._weighting(rotated)
        fit = homogeneity(rotated, weights, ridges, k, self.tolerance, self.max_iter, self.random_state)
        self._learn(fit.pairs)
        self._expand(done, fit)
        self.decoder_ = decoder(fit.coefficients[LABELS])
        mean, deviation = np.zeros(len(labels)), np.ones(len(labels))
        if self.standardise:
            held = []
            for part in done.folds:
                coefficients, offset, loadings = self.fit_moments(
                    self.prepare_moments(done.total - part, self.center), k
                )
                D = decoder(loadings)
                held.append(part.of_scores({view: B @ D for view, B in coefficients.items()}, offset @ D))
            mean, deviation = pooled(held)
        self.rule_ = ScoreRule.of(frequency, mean, deviation, self.intercept, self.standardise, self.prior_power)

    def prepare_moments(self, moments: Moments, center: bool) -> SharedHomogeneity:
        """What every ridge and balance shares."""
        return SharedHomogeneity(RotatedMoments.of(moments, center))

    def fit_moments(self, prepared: SharedHomogeneity, k: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        """(coefficients per view, offset, loadings) of the embedding mean_v f_v(x) B_v + offset, and of its decoder."""
        weights, ridges = self._weighting(prepared.rotated)
        fit = prepared.fit(weights, ridges, k, self.tolerance, self.max_iter, self.random_state)
        views = [view for view in prepared.rotated.places if view != LABELS]
        coefficients = {view: fit.coefficients[view] / len(views) for view in views}
        offset = np.sum([fit.offsets[view] for view in views], axis=0) / len(views)
        return coefficients, offset, fit.coefficients[LABELS]

    def exact_runner(
        self,
        old: Mapping[str, Rows],
        new: Mapping[str, Rows],
        Y: np.ndarray,
        components: Mapping[float | None, int],
        needs_loo: bool,
    ) -> Callable[[KGHA], Held]:
        """A function that fits settings of this estimator on `old`, Y and embeds `new`, kernels and factors shared."""
        shared = SharedViews(
            "KGHA", self, {view: MultiKernel.of(view, kernel) for view, kernel in self._kernels(old).items()}, old, new
        )

        k, frequency = max(components.values()), Y.mean(axis=0)

        def run(model: KGHA) -> Held:
            labels = LinearSmoother(Y - frequency if model.center else Y, model._label_ridge())
            views = [shared.view(view, ridge, model.center) for view, ridge in model._ridges(list(old)).items()]
            apply = homogeneity_map([view.smoother for view in views] + [labels], model._weights(len(views)))
            pairs = krylov(apply, len(Y), k, Y, model.tolerance, model.max_iter, model.random_state)
            values, loo = np.zeros((shared.n_new, k)), np.zeros((len(Y), k))
            for view in views:
                dual = view.smoother.dual(pairs.vectors)
                values += view.predict(dual) / len(views)
                if needs_loo:
                    loo += leave_one_out(pairs.vectors, dual, view.inverse_diagonal()) / len(views)
            return Held(components, frequency, values, labels.loadings(pairs.vectors), loo if needs_loo else None)

        return run

    def _weighting(self, rotated: RotatedMoments) -> tuple[dict[str, float], dict[str, float]]:
        """Weights and ridges of all groups of the moments."""
        views = [name for name in rotated.places if name != LABELS]
        weights = dict(zip([*views, LABELS], self._weights(len(views)), strict=True))
        return weights, self._ridges(views) | {LABELS: self._label_ridge()}

    def _weights(self, n_views: int) -> list[float]:
        return [self.balance] * n_views + [1.0]

    def _label_ridge(self) -> float:
        if self.label_ridge is not None:
            return positive("KGHA", "label_ridge", self.label_ridge)
        if isinstance(self.ridge, (Mapping, list, tuple)):
            return min(self.ridge.values() if isinstance(self.ridge, Mapping) else self.ridge)
        return positive("KGHA", "ridge", self.ridge)

    def count_components(self, Y: np.ndarray) -> int:
        """Components for labels Y (n x L); warns where they are more than the labels span."""
        return self._components(Y.shape[1], int(np.linalg.matrix_rank(Y - Y.mean(axis=0))), len(Y))

    def _components(self, n_labels: int, rank: int, n: int) -> int:
        k = count_components("KGHA", self.n_components, n_labels, rank, n)
        if k > rank:
            warnings.warn(
                f"KGHA: n_components = {k} is above the rank {rank} of the centred labels; the rest of the space does "
                f"not come from the labels and takes many more iterations",
                UserWarning,
                stacklevel=4,
            )
        return k

    def _raw_scores(self, views: Mapping[str, Rows]) -> np.ndarray:
        return self._project(views) @ self.decoder_

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays, meta = _HomogeneityEmbedding._arrays(self)
        rule, rule_meta = self.rule_.to_arrays()
        kept, kept_meta = self._pass_arrays()
        arrays |= {"decoder": self.decoder_} | with_prefix("rule", rule) | kept
        return arrays, meta | {"rule": rule_meta, "multilabel": self.multilabel_} | kept_meta

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        _HomogeneityEmbedding._restore(self, arrays, meta)
        self.decoder_, self.multilabel_ = arrays["decoder"], meta["multilabel"]
        self.rule_ = ScoreRule.from_arrays(without_prefix("rule", arrays), meta["rule"])
        self._restore_pass(arrays, meta)


class MultiSetCCA(_HomogeneityEmbedding):
    """Multiple-set (kernel) canonical correlation analysis: the space on which all views agree best (MAXVAR).

    The embedding is the top of H [mean_j K_j (K_j + c_j I)^-1] H. With kernel="linear" it is the linear one, and as the
    ridge goes to 0 its eigenvalues are those of generalised CCA divided by the number of views.

    Parameters: `kernel`, `ridge`, `center`, `solver`, `approximation`, `tolerance`, `max_iter`, `random_state` as in
    `KGHA`; `n_components`: an integer. Attributes: embedding_, eigenvalues_, objective_, n_iter_, expansions_.

    Source: Carroll 1968; Kettenring 1971; [KGHA] section 3.
    """

    def __init__(
        self,
        kernel: KernelSpec = "rbf",
        *,
        ridge: Any = 1e-1,
        n_components: int = 2,
        center: bool = True,
        solver: Literal["krylov", "als"] = "krylov",
        approximation: Any = "auto",
        tolerance: float = 1e-6,
        max_iter: int = 200,
        random_state: int | None = 0,
    ):
        self.kernel = kernel
        self.ridge = ridge
        self.n_components = n_components
        self.center = center
        self.solver = solver
        self.approximation = approximation
        self.tolerance = tolerance
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from samples X (views of n rows); y is ignored."""
        views = check_views(self, X, reset=True)
        n = next(iter(views.values())).shape[0]
        k = count_components("MultiSetCCA", self.n_components, n, n - 1, n)
        self.approximation_ = choose_engine(self.approximation, n, len(views))
        if not self.is_exact:
            done = self._low_rank(views, None, 1)
            weights = dict.fromkeys(views, 1.0)
            rotated = RotatedMoments.of(done.total, self.center)
            ridges = self._ridges(list(views))
            fit = homogeneity(rotated, weights, ridges, k, self.tolerance, self.max_iter, self.random_state)
            self._learn(fit.pairs)
            self._expand(done, fit)
            return self
        fitted = self._fit_views(views)
        apply = homogeneity_map([view.smoother for view in fitted.values()], [1.0] * len(views))
        pairs = self._embed(apply, n, k, None)
        self.expansions_ = {name: v.expansion(v.smoother.dual(pairs.vectors)) for name, v in fitted.items()}
        return self
