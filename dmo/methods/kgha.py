"""Kernel generalized homogeneity analysis."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, replace
from functools import partial
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np

from dmo.blocks import Rows
from dmo.decide.decoders import Scores
from dmo.decide.out_of_fold import LeftOut
from dmo.decide.probabilities import mean_and_deviation
from dmo.errors import TooFewSamples, UserError
from dmo.fit.engine import FOLDS, LowRankPass, choose_engine, decided, is_exact
from dmo.fit.exact import Exact
from dmo.fit.factor_groups import FactorGroups, FactorView, check_columns
from dmo.fit.fitted_views import SOLVED_ROWS, Groups
from dmo.fit.functions import FactorExpansion
from dmo.fit.moments import LABELS, Moments, pooled
from dmo.inputs import (
    FLAG,
    POSITIVE,
    ClassWeight,
    Data,
    Inputs,
    LabelRows,
    Need,
    Outputs,
    Prepare,
    RowWeights,
    SampleWeights,
    Scales,
    count_components,
    directions,
    label_rank,
    one_of,
    optional,
    read_labels,
)
from dmo.inputs.outputs import Targets
from dmo.kernels import Linear
from dmo.kernels.multikernel import MultiKernel, ProductKernel, is_product
from dmo.memory import memory
from dmo.methods.annotator import Statistics
from dmo.methods.filling import complete_labels
from dmo.methods.homogeneity import HomogeneityEmbedding, Problem, Solution
from dmo.methods.homogeneity_maps import SharedKrylov, decoder
from dmo.methods.incremental import Incremental
from dmo.methods.options import Decoder, Engine, KernelSpecs, Ridges, Solver
from dmo.methods.shared_fits import HeldOut, SharedFit, SharedFits
from dmo.methods.view_weights import learns, product_kernel, weighed_views
from dmo.parameters import Part, parametrized
from dmo.threads import single_blas

_SWEEP_STEPS, _SWEEP_RESIDUAL = 4, 3e-3
"""Blocks of the space that settings of a sweep from moments share, and the residual at which it is large enough."""


def _embedding(problem: Problem, coefficients: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Average the functions of all views of a low-rank fit; return their coefficients and offset."""
    views, share = cast(Mapping[str, FactorView], problem.views), 1 / len(problem.views)
    mean = {name: coefficients[name] * share for name in views}
    return mean, np.sum([view.offset(mean[name]) for name, view in views.items()], axis=0)


def _class_directions(Y: np.ndarray) -> int:
    """Count the directions of labels (n x L) that are classes, one a sample; 0 of others."""
    single = ((Y == 0) | (Y == 1)).all() and (Y.sum(axis=1) == 1).all()
    return label_rank(Y) if single else 0


@parametrized
class KGHA(Incremental, SharedFits, HomogeneityEmbedding):
    r"""Kernel generalized homogeneity analysis: one space for many views and many labels, and annotation from it.

    KGHA learns one embedding that all views and the labels share. New samples are embedded by one kernel ridge regression
    per view, averaged over the views. A linear decoder maps the embedding to label scores.

    Parameters
    ----------
    kernel : str, Kernel, ProductKernel, mapping of view to kernel, or list, default="rbf"
        Kernel of all views, or one kernel per view; see `dmo.kernels.parse`. A `ProductKernel`, or "product", combines all
        views in one kernel exp(-gamma sum_v w_v d_v) of their distances d_v.
    balance : float, default=0.01
        Weight lambda of each view, above 0. The labels have weight 1. The limit 0 is KGHA-r.
    ridge : float, mapping of view to float, or list, default=0.1
        Ridge c_j of each view, above 0. The labels use it too, unless `label_ridge` is given.
    n_components : int, or float in (0, 1], default=0.8
        Number of dimensions p, or p as a fraction of the number of labels (1.0 is KGHA-d); at most the rank of the centered
        labels. With classes (one label per sample), M orders the directions of the labels by class frequency. Therefore
        the directions on which the functions of the views agree best with the coordinates are selected, in this order:
        on leave-one-out values of exact kernels, and on fitted values of low-rank kernels.
    center : bool, default=True
        Center kernels and labels by the training means. The equations of the paper have no centering (False).
    intercept : bool, default=False
        Add the label means to the scores.
    decoder : Calibration, PlugIn, PooledCalibration, Scores, str or None, default=None
        Decoder that ranks labels; it is learned from out-of-fold scores of the training samples, which need four additional
        fits. With None, scores rank the labels, as described in `Scores`. Its `label_sets` need one additional fit on at
        most 2000 samples, which are read once more; up to 1000 samples, they need four to ten fits on different folds.
    %(approximation)s
    label_ridge : float or None, default=None
        Ridge c of the labels, above 0. With None, it is `ridge`, or the smallest ridge if views have different ridges, so
        that the space follows the labels at least as closely as any view.
    solver : Solver or {"krylov", "als", "plain-als"}, default="krylov"
        Block Krylov started from the labels, or accelerated or plain alternating least squares; see `Solver`. The
        defaults are tol=1e-6 and max_iter=200 steps.
    %(random_state)s
    %(prepare)s
    %(targets)s
    class_weight : {"balanced"}, dict of class to float, or None, default=None
        Factor on the weight of samples by class; "balanced" is inversely proportional to the class frequency. Scores then
        contain the label means, as with `intercept`. Bandwidths, scales and decoders are learned without class weights.

    Attributes
    ----------
    embedding_ : ndarray of shape (n, p)
        Orthonormal coordinates of the training samples, after an exact fit. In each column, the largest loading of the
        labels is positive.
    eigenvalues_ : ndarray of shape (p,)
        Eigenvalues of M in descending order; x'Mx for directions x selected by classes, in their order.
    objective_ : float
        Sum of the eigenvalues, which the method maximizes.
    objective_history_ : list of float
        Objective after each step.
    n_iter_ : int
        Number of steps.
    n_components_ : int
        Number of dimensions p.
    decoder_ : ndarray of shape (p, L)
        Matrix from coordinates to raw label scores.
    expansions_ : dict of str to Expansion
        Fitted function of each view.
    view_weights_ : dict of str to float
        Weights w_v of kernel "product", with sum 1.
    rule_ : ScoreRule
        Function from raw scores to the scores that select labels.
    classes_ : ndarray of shape (L,)
        Classes or label names.

    Notes
    -----
    The embedding X (n x p) consists of the leading eigenvectors of a weighted sum of kernel smoothers,

    .. math::
        M = H \Big[ \lambda \sum_j K_j (K_j + c_j I)^{-1} + K_Y (K_Y + c I)^{-1} \Big] H,

    where K_j is the kernel of view j with ridge c_j, K_Y = Y Y' is the kernel of the labels with ridge c, lambda is
    `balance`, and H centers. With the coefficients alpha_j = (K_j + c_j I)^-1 X, a new sample x has the coordinates and
    label scores

    .. math::
        \hat x = \tfrac{1}{V} \sum_j K_j(x)\, \alpha_j, \qquad \hat y = \hat x\, (Y' \alpha_Y)^{+}.

    References
    ----------
    Xiong, Szedmak, Piater 2014, equations 26, 27, 30, 31 and 33.

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from dmo import KGHA
    >>> X, Y = make_multilabel_classification(n_samples=200, n_classes=5, random_state=0)
    >>> views = {"words": X[:, :10], "shapes": X[:, 10:]}
    >>> model = KGHA(n_components=4, ridge=1.0).fit(views, Y)
    >>> model.transform(views).shape
    (200, 4)
    >>> model.predict(views, top=2).sum(axis=1)[:3].tolist()
    [2, 2, 2]
    """

    _centers = True
    _factored_by = "center", "ridge", "label_ridge"
    _solved_by = ("balance",)
    _decoded_by = "n_components", *SharedFits._decoded_by
    _decoder_uses_left_out = False
    _product = Part(ProductKernel, "kernel")
    _by_scores = Part(Scores, "decoder")
    _needs: ClassVar[dict[str, Need]] = HomogeneityEmbedding._needs | {
        "balance": POSITIVE,
        "intercept": FLAG,
        "kernel__gamma": POSITIVE,
        "label_ridge": optional(POSITIVE),
        "targets": one_of("auto", "labels", "real"),
    }

    kernel: KernelSpecs | ProductKernel | Literal["product"] = "rbf"
    _: KW_ONLY
    balance: float = 1e-2
    ridge: Ridges = 1e-1
    n_components: int | float = 0.8
    center: bool = True
    intercept: bool = False
    decoder: Decoder = None
    approximation: Engine = "auto"
    label_ridge: float | None = None
    solver: Solver | Literal["krylov", "als", "plain-als"] = "krylov"
    random_state: int | None = 0
    prepare: Prepare | Scales = "auto"
    targets: Targets = "auto"
    class_weight: ClassWeight = None

    def fit(self, X: Inputs, y: Outputs, sample_weight: RowWeights = None) -> Self:
        """Learn the space and its decoder.

        The coordinates of a sample do not depend on views that lack the sample, nor on the labels if none of them is known
        (missing data are passive). If some labels of a sample are unknown, they are imputed by a ridge regression of each
        label on the samples for which it is known, with the same kernels.

        Parameters
        ----------
        %(X_gaps)s
        y : array-like of shape (n, L) or (n,)
            Labels of 0 and 1, n classes, or n lists of labels; or regression targets, see `targets`. NaN, None and masked
            entries of a matrix are unknown. For a sparse matrix of more than 4096 labels, the space is learned from the
            512 directions (or twice the components) with the largest variance, and no probabilities are learned.
        sample_weight : array-like of shape (n,), mapping of view to such, or None, default=None
            Weights of the samples; or weights by view and for "labels", 0 where a view lacks the sample. Probabilities are
            learned on folds; for up to 1000 samples, weights yield the same probabilities as repeated rows.

        Returns
        -------
        KGHA
            This estimator, fitted.

        Raises
        ------
        UserError
            For parameters, views or labels that do not fit together.
        """
        return self._fit(X, y, sample_weight)

    def _read(self, views: Mapping[str, Rows], y: Any, weights: SampleWeights | None) -> Data:
        learned = is_product(self.kernel) and learns(self._product.weights)
        data = read_labels(self, views, y, weights, {"learning weights": learned}, passive=True)
        if learned and not (data.complete and self.class_weight is None):
            raise UserError(
                f"weights={self._product.weights!r} does not support missing labels, missing views, sample_weight and "
                "class_weight; pass weights as numbers"
            )
        return data

    def _learn(self, data: Data) -> LeftOut:
        views = data.views
        T, V = directions(data.Y, self.n_components if isinstance(self.n_components, int) else 0, self.random_state)
        self._learn_weights(views, T)
        self.approximation_ = choose_engine(self.approximation, data.n, len(self._kernels(list(views))), self.kernel)
        exact = is_exact(self.approximation_)
        data = data.held() if exact else data
        data = data if V is None else replace(data, Y=T)
        if data.known is not None:
            data = self._complete_labels(data)
        with nullcontext() if exact else single_blas():
            statistics = self._learn_exact(data) if exact else self._learn_low_rank(data)
        if V is not None:  # The space was learned from directions of very many labels.
            self.decoder_: np.ndarray = self.decoder_ @ V.T
        maps = {v: part.feature_map for v, part in self.expansions_.items() if isinstance(part, FactorExpansion)}
        # Scores of training samples depend on their labels through the embedding, so that they are not held out.
        return LeftOut(statistics=statistics, maps=maps)

    def _complete_labels(self, data: Data) -> Data:
        """Impute unknown labels by regressions on the views, which do not depend on the ridge or the balance."""
        product = is_product(self.kernel)
        return complete_labels(
            data,
            "product" if product else self.kernel,
            decided(self),
            self.random_state,
            distances=self._product.distances,
            gamma=self._product.gamma,
            weights=self.view_weights_ if product else None,
        )

    def _learn_exact(self, data: Data) -> Statistics | None:
        """Learn the space and its decoder; return statistics of leave-one-out scores if they have a closed form."""
        k, problem = self._count_components(data), self._problem(data)
        found = self._learn_space(problem, k)
        assert found.loadings is not None
        assert problem.weights is not None
        self.decoder_ = decoder(found.loadings)
        whole = data.known is None and all((weight == data.weights.labels).all() for weight in problem.weights)
        if not (self._by_scores.standardize and whole) or problem.solves_rows:
            return None
        often = None if data.weights.ones else data.weights.plain.labels
        return mean_and_deviation(problem.left_out(found.X, found.coefficients) @ self.decoder_, often)

    def _problem(self, data: Data) -> Problem:
        """Build the views and labels of the exact engine under their ridges."""
        problem = super()._problem(data)
        Y, counts = data.Y.astype(np.float64), data.weights.labels
        alone = Data.of({LABELS: Y}, weights=counts)
        linear = {LABELS: MultiKernel.of(LABELS, Linear())}
        ridge = {LABELS: self._label_ridge(self._ridges(list(self._kernels(list(data.views)))))}
        labels = Groups(Exact("memory"), linear, ridge, alone, self.center, self.random_state)[LABELS]
        start = np.where(counts[:, None] > 0, Y - counts @ Y / counts.sum(), 0.0)
        assert problem.weights is not None
        weights = [*problem.weights, counts]
        iterative = any(getattr(view.smoother, "iterative", False) for view in problem.views.values())
        solves_rows = iterative and problem.n > SOLVED_ROWS
        classes = 0 if solves_rows else _class_directions(Y[counts > 0])
        return replace(problem, labels=labels, start=start, weights=weights, classes=classes, solves_rows=solves_rows)

    def _learn_low_rank(self, data: Data) -> Statistics | None:
        """Learn from factor rows; return statistics of held-out scores if all samples count once."""
        n_folds = FOLDS if self._by_scores.standardize and data.complete else 1
        # The rank of labels in a store is that of their moments.
        stored = isinstance(data.Y, LabelRows) and self.center
        k = 0 if stored else self._count_components(data)
        groups = self._read_rows(data.views, data.Y, data.weights, self._weights(len(data.views)), n_folds)
        return self._learn_groups(groups, k or self._components(data.Y.shape[1], groups.label_rank, data.n))

    def _fit_pass(self, done: LowRankPass) -> None:
        groups = FactorGroups.of_pass(done, self.center)
        held_out = self._learn_groups(
            groups, self._components(done.total.widths[LABELS], groups.label_rank, int(done.total.n))
        )
        self._learn_rule(done.frequency, done.total.n, held_out)

    def _learn_groups(self, groups: FactorGroups, k: int) -> Statistics | None:
        check_columns(groups, k)
        found = self._learn_space(self._factor_problem(groups), k)
        assert found.loadings is not None
        self.decoder_ = decoder(found.loadings)
        held = []
        for rest, sums in groups.folds:
            problem = self._factor_problem(rest)
            fold = self._solve(problem, k)
            (coefficients, offset), D = _embedding(problem, fold.coefficients), decoder(cast(np.ndarray, fold.loadings))
            held.append(sums({view: B @ D for view, B in coefficients.items()}, offset @ D))
        return pooled(held) if held else None

    def _fit_together(self, moments: Moments, center: bool, models: Sequence[KGHA], k: int) -> Iterator[SharedFit]:
        """Fit settings of a sweep from moments; settings with equal ridges share a subspace if this is smaller."""
        groups = FactorGroups.of_moments(moments, center)
        names = [name for name in groups.groups if name != LABELS]
        search = SharedKrylov(cast(np.ndarray, groups.label_rows), _SWEEP_STEPS)
        alike = itertools.groupby(enumerate(models), key=lambda part: part[1]._all_ridges(names))
        for ridges, members in alike:
            settings = list(members)
            problem = settings[0][1]._factor_problem(groups)
            assert problem.labels is not None
            smoothers = [view.smoother for view in problem.views.values()], problem.labels.smoother
            shared: dict[int, np.ndarray] = {}
            if problem.classes < k:
                for j, model in settings:
                    pairs = search.coordinates(ridges, *smoothers, model.balance, k, _SWEEP_RESIDUAL)
                    if pairs is not None:
                        shared[j] = pairs.vectors
            columns = max(map(len, shared.values()), default=0)
            basis = search.basis[:, :columns] if shared else np.zeros((0, 0))
            if len(shared) > 1 and columns < k * len(shared):
                loadings = problem.labels.coefficients(basis)
                parts = [(j, turn, loadings[:, : len(turn)] @ turn) for j, turn in shared.items()]
                yield SharedFit(*_embedding(problem, problem.coefficients(basis)), parts)
                settings = [part for part in settings if part[0] not in shared]
            for j, model in settings:
                if j in shared:
                    X = basis[:, : len(shared[j])] @ shared[j]
                    coefficients, loadings = problem.coefficients(X), problem.labels.coefficients(X)
                else:
                    found = model._solve(problem, k, leading=True)
                    coefficients, loadings = dict(found.coefficients), cast(np.ndarray, found.loadings)
                yield SharedFit(*_embedding(problem, coefficients), [(j, None, loadings)])

    def _held_out_fit(
        self,
        data: Data,
        new: Mapping[str, Rows],
        components: Mapping[float | None, int],
        needs_loo: bool,
    ) -> HeldOut:
        """Fit on some rows and embed others; settings that differ in the balance share a block Krylov space.

        new (m, d)
        """
        problem, Y = self._problem(data), data.Y
        assert problem.labels is not None
        kernels, search = self._kernels(list(data.views)).items(), partial(SharedKrylov, Y)
        ridges = self._all_ridges(list(dict(kernels)))
        kept = memory()
        if kept is not None:  # Keep the search of one fold only, because it refers to the factors of its ridge.
            names = tuple(kept.name(rows) for rows in (Y, *data.views.values()))
            search = partial(kept.latest, search, "space", (names, tuple((name, k.key) for name, k in kernels)))
        k = max(components.values())
        pairs = search().fit(
            (ridges, self.center),
            [view.smoother for view in problem.views.values()],
            problem.labels.smoother,
            self.balance,
            max(k, problem.classes),
            self._solver.tol,
            self._solver.max_iter,
            self.random_state,
        )
        X = pairs.vectors
        if min(components.values()) < problem.classes:
            X = X @ self._turn(problem, X, k)
        found = Solution.of(problem, pairs, X)
        self.expansions_ = self._functions(problem, found)
        loo = problem.left_out(found.X, found.coefficients) if needs_loo else None
        return HeldOut(components, data.frequency, self._project(new), found.loadings, loo)

    def _learn_weights(self, views: Mapping[str, Rows], Y: np.ndarray) -> None:
        """Learn the product kernel of the views, for `_kernels`."""
        if is_product(self.kernel):
            distances, self.view_weights_ = weighed_views(self._product, views, Y, self.random_state)
            self._kernel_of_all = product_kernel(distances, self.view_weights_, self._product.gamma)

    def _kernels(self, views: list[str]) -> dict[str, MultiKernel]:
        return {"all": self._kernel_of_all} if is_product(self.kernel) else super()._kernels(views)

    def _weights(self, n_views: int) -> list[float]:
        return [self.balance] * n_views + [1.0]

    def _all_ridges(self, views: list[str]) -> dict[str, float]:
        ridges = self._ridges(views)
        return ridges | {LABELS: self._label_ridge(ridges)}

    def _label_ridge(self, ridges: Mapping[str, float]) -> float:
        """Return the ridge of the labels, or the smallest ridge of the views."""
        return min(ridges.values()) if self.label_ridge is None else self.label_ridge

    def _count_components(self, data: Data) -> int:
        """Return the number of components, from the labels of complete samples."""
        used = data.Y if data.complete else data.Y[:][data.weights.labels > 0]
        return self._components(data.Y.shape[1], label_rank(used), data.n)

    def _components(self, n_labels: int, rank: int, n: int) -> int:
        """Return the number of components; warn if it exceeds the rank of the labels."""
        k = count_components(self.n_components, n_labels, rank, n)
        if not rank and not self.center:
            raise TooFewSamples(
                "all samples have the same labels, from which nothing can be learned without centering; pass labels "
                "that differ, or center=True"
            )
        if k > rank:
            self._warn(
                f"n_components = {k} is above the rank {rank} of the centered labels; the rest of the space does "
                f"not come from the labels and takes many more iterations"
            )
        return k

    def _raw_scores(self, views: Mapping[str, Rows]) -> np.ndarray:
        return self._project(views) @ self.decoder_

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays, meta = super()._arrays()
        meta |= {"view_weights": self.view_weights_} if is_product(self.kernel) else {}
        return arrays | {"decoder": self.decoder_}, meta

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        super()._restore(arrays, meta)
        self.decoder_ = arrays["decoder"]
        if "view_weights" in meta:
            self.view_weights_ = dict(meta["view_weights"])
