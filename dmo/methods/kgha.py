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
from dmo.kernels.multikernel import MultiKernel
from dmo.kernels.product import ProductKernel, is_product
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
"""Maximum number of Krylov blocks that candidates of a sweep share, and maximum residual of their eigenpairs."""


def _embedding(problem: Problem, coefficients: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the coefficients and the offset of the mean function of all views, for low-rank kernels."""
    views, share = cast(Mapping[str, FactorView], problem.views), 1 / len(problem.views)
    mean = {name: coefficients[name] * share for name in views}
    return mean, np.sum([view.offset(mean[name]) for name, view in views.items()], axis=0)


def _class_directions(Y: np.ndarray) -> int:
    """Return the rank of the centered labels Y (n x L) if each sample has exactly one label, otherwise 0."""
    single = ((Y == 0) | (Y == 1)).all() and (Y.sum(axis=1) == 1).all()
    return label_rank(Y) if single else 0


@parametrized
class KGHA(Incremental, SharedFits, HomogeneityEmbedding):
    r"""Kernel generalized homogeneity analysis for multi-view, multi-label data.

    KGHA learns one embedding that all views and the labels share. New samples are embedded by one kernel ridge
    regression per view, averaged over the views. A linear decoder maps the embedding to label scores.

    Parameters
    ----------
    kernel : str, Kernel, ProductKernel, mapping of view to kernel, or list, default="rbf"
        Kernel of all views, or one kernel per view; see `dmo.kernels.parse`. A `ProductKernel`, or "product", combines
        all views in one kernel exp(-gamma sum_v w_v d_v), where view v has the distance d_v and the weight w_v.
    balance : float, default=0.01
        Weight lambda of each view relative to the labels, above 0. The paper calls the limit lambda = 0 KGHA-r.
    ridge : float, mapping of view to float, or list, default=0.1
        Regularization strength c_j of each view, above 0. The labels use the same ridge unless `label_ridge` is given.
    n_components : int, or float in (0, 1], default=0.8
        Number of dimensions p of the embedding. A float is a fraction of the number of labels and yields at most the
        rank of the centered labels; the paper calls the fraction 1.0 KGHA-d. If each sample has exactly one label, the
        eigenvalues mostly reflect the class frequencies. In this case, KGHA selects the directions that the views
        predict best. Exact kernels compare leave-one-out predictions, and low-rank kernels compare fitted values.
    center : bool, default=True
        Whether to center kernels and labels by the training means. The equations of the paper do not center them.
    intercept : bool, default=False
        Whether to add the label means to the scores.
    decoder : Calibration, PlugIn, PooledCalibration, Scores, str or None, default=None
        Decoder that ranks labels. It is learned from out-of-fold scores of the training samples, which need four
        additional fits, or up to ten for at most 200 samples. With None, labels are ranked by score; see `Scores`. The
        option `label_sets` of `Scores` needs one additional fit on at most 2000 samples. For up to 1000 samples, it
        needs four to ten fits on different folds instead.
    %(approximation)s
    label_ridge : float or None, default=None
        Regularization strength c of the labels, above 0. With None, it is the smallest ridge of the views, so that the
        embedding follows the labels at least as closely as any view.
    solver : Solver or {"krylov", "als", "plain-als"}, default="krylov"
        Eigensolver: block Krylov iteration started from the labels ("krylov"), or accelerated ("als") or plain
        ("plain-als") alternating least squares. `Solver` also sets the tolerance (default 1e-6) and the maximum number
        of steps (default 200).
    %(random_state)s
    %(prepare)s
    %(targets)s
    class_weight : {"balanced"}, dict of class to float, or None, default=None
        Factor on the weight of the samples of each class. "balanced" uses factors inversely proportional to the class
        frequencies. With class weights, scores contain the label means, as with `intercept`. Kernel bandwidths, scales
        and decoders are learned without class weights.

    Attributes
    ----------
    embedding_ : ndarray of shape (n, p)
        Orthonormal coordinates of the training samples; only available after a fit with exact kernels. The sign of each
        column makes the largest label loading positive.
    eigenvalues_ : ndarray of shape (p,)
        Eigenvalues of the matrix M (see Notes) in descending order. If each sample has exactly one label, these are the
        values x'Mx of the selected directions x, in the order of selection.
    objective_ : float
        Objective that the method maximizes, the sum of the eigenvalues.
    objective_history_ : list of float
        Objective after each step of the eigensolver.
    n_iter_ : int
        Number of steps of the eigensolver.
    n_components_ : int
        Number of dimensions p of the embedding.
    decoder_ : ndarray of shape (p, L)
        Matrix that maps the coordinates of a sample to its raw label scores.
    expansions_ : dict of str to Expansion
        Function of each view that maps new samples to coordinates.
    view_weights_ : dict of str to float
        Weights w_v of the views in the kernel "product". They sum to 1.
    rule_ : ScoreRule
        Function that converts raw scores to the scores by which labels are selected.
    classes_ : ndarray of shape (L,)
        Classes or label names.

    Notes
    -----
    The embedding X (n x p) consists of the leading eigenvectors of a weighted sum of kernel smoothers,

    .. math::
        M = H \Big[ \lambda \sum_j K_j (K_j + c_j I)^{-1} + K_Y (K_Y + c I)^{-1} \Big] H,

    where K_j is the kernel of view j with ridge c_j, K_Y = Y Y' is the kernel of the labels with ridge c, lambda is
    `balance`, and H is the centering matrix. With the coefficients alpha_j = (K_j + c_j I)^-1 X, a new sample x has the
    coordinates and label scores

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
        """Learn the embedding and its decoder.

        A view in which a sample is missing does not affect the coordinates of the sample. Likewise, a sample without
        any known label is embedded by its views alone. If only some labels of a sample are unknown, they are imputed:
        for each label, a kernel ridge regression with the same kernels is fitted on the samples for which the label is
        known.

        Parameters
        ----------
        %(X_gaps)s
        y : array-like of shape (n, L) or (n,)
            Label matrix of 0 and 1, vector of n classes, n lists of labels, or regression targets (see `targets`). NaN,
            None and masked entries of a matrix are unknown labels. If a sparse matrix has more than 4096 labels, the
            embedding is learned from the 512 directions of largest variance (or twice the number of components), and no
            probabilities are learned.
        sample_weight : array-like of shape (n,), mapping of view to such, or None, default=None
            Sample weights. A mapping contains one array for each view and one for "labels"; the weight is 0 if the
            sample is missing from the view. Up to 1000 samples, integer weights yield the same probabilities as
            repeated rows.

        Returns
        -------
        KGHA
            This estimator, fitted.

        Raises
        ------
        UserError
            If parameters, views or labels are invalid or inconsistent.
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
        if V is not None:  # The decoder was learned for combinations of labels, because there are very many labels.
            self.decoder_: np.ndarray = self.decoder_ @ V.T
        maps = {v: part.feature_map for v, part in self.expansions_.items() if isinstance(part, FactorExpansion)}
        # The embedding depends on the labels of the training samples, so their scores are not leave-one-out scores.
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
        """Fit exact kernels; return statistics of the leave-one-out scores if these have a closed form."""
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
        """Build the eigenproblem for exact kernels of the views and the linear kernel of the labels."""
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
        """Fit low-rank kernels; return statistics of the out-of-fold scores if no data are missing or weighted."""
        n_folds = FOLDS if self._by_scores.standardize and data.complete else 1
        # The rank of labels in a store is computed from their moments below.
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
        """Fit all candidates of a sweep from the same moments; candidates with equal ridges can share a subspace."""
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
        """Fit on `data` and score the rows `new`; candidates that differ only in `balance` share a Krylov space."""
        problem, Y = self._problem(data), data.Y
        assert problem.labels is not None
        kernels, search = self._kernels(list(data.views)).items(), partial(SharedKrylov, Y)
        ridges = self._all_ridges(list(dict(kernels)))
        kept = memory()
        if kept is not None:  # The cached object holds large factors, so cache only the latest fold.
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
        """Learn the product kernel that `_kernels` returns."""
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
        """Return the ridge of the labels, which defaults to the smallest ridge of the views."""
        return min(ridges.values()) if self.label_ridge is None else self.label_ridge

    def _count_components(self, data: Data) -> int:
        """Return the number of components, computed from the samples with positive label weight."""
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
