"""Kernel generalized homogeneity analysis."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, replace
from functools import partial
from typing import Any, ClassVar, Literal, Self

import numpy as np

from dmo.blocks import Rows
from dmo.decide.out_of_fold import LeftOut
from dmo.decide.probabilities import mean_and_deviation
from dmo.errors import TooFewSamples, UserError
from dmo.fit.engine import FOLDS, LowRankPass, choose_engine, decided
from dmo.fit.exact import Exact
from dmo.fit.fitted_views import SOLVED_ROWS, FittedView, Groups
from dmo.fit.functions import FactorExpansion
from dmo.fit.moments import LABELS, Moments, pooled
from dmo.inputs import (
    CLASS_WEIGHT,
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
from dmo.linalg.eigen import fix_signs
from dmo.linalg.smoothers import LinearSmoother
from dmo.memory import memory
from dmo.methods.annotator import Annotator, Statistics
from dmo.methods.filling import filled_labels
from dmo.methods.homogeneity import FactorRows, HomogeneityEmbedding
from dmo.methods.homogeneity_maps import SharedKrylov, decoder
from dmo.methods.homogeneity_moments import (
    HomogeneityFit,
    Rotated,
    RotatedMoments,
    SharedHomogeneity,
    class_directions,
    homogeneity,
    turned,
)
from dmo.methods.incremental import Incremental
from dmo.methods.options import Decoder, Engine, KernelSpecs, Ridges, Solver
from dmo.methods.ridge import MultiViewRidge
from dmo.methods.shared_fits import HeldOut, SharedFit
from dmo.methods.view_weights import learns, product_kernel, weighed_views
from dmo.parameters import Part, parametrized
from dmo.threads import single_blas


def _embedding(fit: HomogeneityFit) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Coefficients and offset of the embedding, the mean of what the views say, and the labels' loadings."""
    views = [view for view in fit.coefficients if view != LABELS]
    coefficients = {view: fit.coefficients[view] / len(views) for view in views}
    offset = np.sum([fit.offsets[view] for view in views], axis=0) / len(views)
    return coefficients, offset, fit.coefficients[LABELS]


def _shared(number: int, fit: HomogeneityFit) -> SharedFit:
    """The embedding of one setting by itself."""
    coefficients, offset, loadings = _embedding(fit)
    return SharedFit(coefficients, offset, [(number, None, loadings)])


def _class_directions(Y: np.ndarray) -> int:
    """Count the directions of labels (n x L) that are classes, one a sample; 0 of others."""
    single = ((Y == 0) | (Y == 1)).all() and (Y.sum(axis=1) == 1).all()
    return label_rank(Y) if single else 0


@parametrized
class KGHA(Incremental, Annotator, HomogeneityEmbedding):
    """Kernel generalized homogeneity analysis: one space for many views and many labels, and annotation from it.

    The embedding X (n x p) is the top of M = H [balance * sum_j K_j (K_j + c_j I)^-1 + K_Y (K_Y + c I)^-1] H; new samples
    come by X_hat = mean_j K_j(x) alpha_j, their label scores by X_hat pinv(Y'alpha_Y).

    Parameters
    ----------
    kernel : str, Kernel, ProductKernel, mapping of view to kernel, or list, default="rbf"
        Kernel of the views, see `dmo.kernels.parse`. One for all views, or one per view. `ProductKernel` or "product":
        exp(-gamma sum_v w_v d_v) of the views' distances d_v, as one view.
    balance : float, default=0.01
        Weight lambda of every view against the labels' 1, above 0. KGHA-r is the limit 0.
    ridge : float, mapping of view to float, or list, default=0.1
        c_j of every view, above 0, and of the labels unless `label_ridge` is given.
    n_components : int, or float in (0, 1], default=0.8
        p, or p as a share of the number of labels (1.0 is KGHA-d), at most the rank of the centered labels. Of classes
        (one label a sample) M tells the labels' directions by how often classes occur; taken are those that the views'
        functions say best, in that order: by exact kernels of left-out samples, by low-rank ones of the samples.
    center : bool, default=True
        Center kernels and labels (new rows by the training means). The paper's literal form is False.
    intercept : bool, default=False
        Add the label means to the scores.
    decoder : Calibration, PlugIn, PooledCalibration, Scores, str or None, default=None
        Learned from out-of-fold scores of the training samples (four further fits), what ranks the labels. None: the scores
        do, as `Scores` says; what its `label_sets` are learned from is one further fit on at most 2000 samples, which are
        read for it once more, of at most 1000 samples four to ten fits, each on other folds.
    %(approximation)s
    label_ridge : float or None, default=None
        c of the labels, above 0. None: `ridge`, or where views have ridges of their own the least of them: the labels are
        followed at least as closely as any view.
    solver : Solver or {"krylov", "als"}, default="krylov"
        Block Krylov started from the labels, or the paper's alternating least squares with warm-started block CG; to
        tol=1e-6, in max_iter=200 steps where none are given.
    %(random_state)s
    %(prepare)s
    %(targets)s
    class_weight : {"balanced"}, dict of class to float, or None, default=None
        Of a vector of classes: by what factor samples count; "balanced": inversely to how often their class occurs. Scores
        then have the label means, as by `intercept`. Bandwidths, scales and decoders are learned without class weights.

    Attributes
    ----------
    embedding_ : ndarray of shape (n, p)
        Orthonormal coordinates of the training samples; of an exact fit.
    eigenvalues_ : ndarray of shape (p,)
        Eigenvalues of M, descending; of the directions of classes x'Mx in their order.
    objective_ : float
        Their sum, which the method maximizes.
    objective_history_ : list of float
        The objective after every step.
    n_iter_ : int
        Steps taken.
    n_components_ : int
        p.
    decoder_ : ndarray of shape (p, L)
        What turns coordinates into raw label scores.
    expansions_ : dict of str to Expansion
        The fitted function of every view.
    view_weights_ : dict of str to float
        Of kernel "product": w_v, of sum 1.
    rule_ : ScoreRule
        What turns raw scores into the scores that labels are chosen by.
    classes_ : ndarray of shape (L,)
        The classes, or the label names.

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
    _product = Part(ProductKernel, "kernel")
    _needs: ClassVar[dict[str, Need]] = HomogeneityEmbedding._needs | {
        "balance": POSITIVE,
        "intercept": FLAG,
        "kernel__gamma": POSITIVE,
        "label_ridge": optional(POSITIVE),
        "targets": one_of("auto", "labels", "real"),
        "class_weight": CLASS_WEIGHT,
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
    solver: Solver | Literal["krylov", "als"] = "krylov"
    random_state: int | None = 0
    prepare: Prepare | Scales = "auto"
    targets: Targets = "auto"
    class_weight: ClassWeight = None

    def fit(self, X: Inputs, y: Outputs, sample_weight: RowWeights = None) -> Self:
        """Learn the space and its decoder.

        A view takes no part in the coordinates of samples that it lacks, nor do labels in those of samples without a known
        one (missing data passive). Single unknown labels of other samples take what a ridge regression of each label on its
        own known samples predicts, with the same kernels.

        Parameters
        ----------
        %(X_gaps)s
        y : array-like of shape (n, L) or (n,)
            Labels of 0 and 1, n classes, or n lists of labels; or real outputs, see `targets`. In a matrix NaN, None and
            masked entries are unknown. From a sparse matrix of more than 4096 labels the space is learned from the 512
            directions (or twice the components) in which they vary most, and no probabilities are learned.
        sample_weight : array-like of shape (n,), mapping of view to such, or None, default=None
            How often every sample counts; or by view and for "labels", 0 where one lacks the sample. Probabilities come from
            fits on folds of samples; of at most 1000 samples those of repeated rows are the same.

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
        if self.class_weight is not None and self.multilabel_:
            raise UserError(
                "class_weight of KGHA is for a vector of classes, since a space sees all labels of a sample at once; weigh "
                "samples, or take MultiViewRidge"
            )
        if learned and not data.complete:
            raise UserError(
                f"weights={self._product.weights!r} needs all labels and views of all samples, each once; give the weights"
            )
        self.__dict__.pop("pass_", None)
        return data

    def _learn(self, data: Data) -> LeftOut:
        views = data.views
        T, V = directions(data.Y, self.n_components if isinstance(self.n_components, int) else 0, self.random_state)
        self._learn_weights(views, T)
        self.approximation_ = choose_engine(self.approximation, data.n, len(self._kernels(list(views))), self.kernel)
        data = data.held() if self.is_exact else data
        known = self._complete_labels(data if V is None else replace(data, Y=T))
        statistics = self._learn_exact(known) if self.is_exact else self._learn_moments(known)
        if V is not None:  # of very many labels the space has seen the directions
            self.decoder_: np.ndarray = self.decoder_ @ V.T
        maps = {v: part.feature_map for v, part in self.expansions_.items() if isinstance(part, FactorExpansion)}
        # scores in the sample have seen its labels through the embedding
        return LeftOut(statistics=statistics, maps=maps)

    def _complete_labels(self, data: Data) -> Data:
        """Fill unknown labels by what regressions on the views say, which no ridge or balance changes."""
        if data.known is None:
            return data
        regression = MultiViewRidge(
            "product" if is_product(self.kernel) else self.kernel,
            approximation=decided(self),
            random_state=self.random_state,
            distances=self._product.distances,
            gamma=self._product.gamma,
            weights=self.view_weights_ if is_product(self.kernel) else None,
        )
        return replace(data, Y=filled_labels(regression, data.views, data.Y, data.known, data.weights))

    def _learn_exact(self, data: Data) -> Statistics | None:
        """Learn the space and its decoder; of the left-out scores what standardizes, where they have a closed form."""
        k = self._count_components(data)
        Y, counts, groups = data.Y.astype(np.float64), data.weights.labels, self._groups(data)
        fitted, own = groups.all(), [groups.weights(name) for name in groups.kernels]
        alone = Data.of({LABELS: Y}, weights=counts)
        linear, ridge = {LABELS: MultiKernel.of(LABELS, Linear())}, {LABELS: self._label_ridge(groups.ridges)}
        labels = Groups(Exact("memory"), linear, ridge, alone, self.center, self.random_state)[LABELS]
        start = np.where(counts[:, None] > 0, Y - counts @ Y / counts.sum(), 0.0)
        # without a factor a solve per row is dear
        solved = len(Y) > SOLVED_ROWS and any(getattr(view.smoother, "iterative", False) for view in fitted.values())
        most = k if solved else max(k, _class_directions(Y[counts > 0]))
        parts = None if data.weights.ones else groups.shares_left_out()
        choose = None if most == k else partial(self._turn, fitted, counts, k, parts=parts)
        X = self._embed([*fitted.values(), labels], self._weights(len(fitted)), [*own, counts], most, start, choose)
        self.decoder_ = decoder(labels.coefficients(X))
        whole = data.known is None and all((weight == counts).all() for weight in own)
        loo = self._expand_views(fitted, X, bool(self._by_scores.standardize) and whole and not solved, parts)
        often = None if data.weights.ones else data.weights.plain.labels
        return None if loo is None else mean_and_deviation(loo @ self.decoder_, often)

    def _turn(
        self,
        fitted: Mapping[str, FittedView],
        counts: np.ndarray,
        k: int,
        X: np.ndarray,
        parts: Mapping[str, np.ndarray | None] | None = None,
    ) -> np.ndarray:
        """Choose the directions whose leave-one-out values agree best with the coordinates, the best first.

        counts (n,); X (n, K); parts (n,): see `Groups.shares_left_out` -> (K, k)
        """
        agreement = X.T @ (counts[:, None] * np.asarray(self._expand_views(fitted, X, True, parts)))
        return fix_signs(np.linalg.eigh(agreement + agreement.T)[1][:, : -k - 1 : -1])

    def _learn_moments(self, data: Data) -> Statistics | None:
        """The same from factor rows; statistics of scores by moments less a fold's, where samples all count once."""
        n_folds = FOLDS if self._by_scores.standardize and data.complete else 1
        # of labels that a store holds the rank is that of their moments
        stored = isinstance(data.Y, LabelRows) and self.center
        k = 0 if stored else self._count_components(data)
        with single_blas():
            read = self._read_rows(data.views, data.Y, data.weights, self._weights(len(data.views)), n_folds)
            k = k or self._components(data.Y.shape[1], read.rotated.bases[LABELS].shape[1], data.n)
            return self._learn_rows(read, k)

    def _fit_pass(self, done: LowRankPass) -> None:
        labels = done.total.centered_gram(LABELS)
        k = self._components(len(labels), int(np.linalg.matrix_rank(labels, hermitian=True)), int(done.total.n))
        held_out = self._learn_rows(FactorRows.of_pass(done, self.center), k)
        self._learn_rule(done.frequency, done.total.n, held_out)

    def _learn_rows(self, read: FactorRows, k: int) -> Statistics | None:
        fit = self._solve(read.rotated, k)
        self._keep(fit.pairs)
        self._expand(read.maps, fit)
        self.decoder_ = decoder(fit.coefficients[LABELS])
        held = []
        for rest, sums in read.folds:
            coefficients, offset, loadings = _embedding(self._solve(rest, k))
            D = decoder(loadings)
            held.append(sums({view: B @ D for view, B in coefficients.items()}, offset @ D))
        return pooled(held) if held else None

    def _solve(self, rotated: Rotated, k: int, leading: bool = False) -> HomogeneityFit:
        """The space of k directions; with `leading` so that those of a smaller one come first."""
        weights, ridges = self._weighting(rotated)
        how, classes = (self._solver.tol, self._solver.max_iter, self.random_state), class_directions(rotated)
        fit = homogeneity(rotated, weights, ridges, max(k, classes), *how)
        return turned(rotated, fit, ridges, k) if classes > k or (leading and classes == k) else fit

    def _fit_together(self, moments: Moments, center: bool, models: Sequence[KGHA], k: int) -> Iterator[SharedFit]:
        """Fit settings from moments, for a sweep, those of the same ridges in their subspace where it is the smaller."""
        prepared = SharedHomogeneity(RotatedMoments.of(moments, center))
        if class_directions(prepared.rotated) >= k:
            for j, model in enumerate(models):
                yield _shared(j, model._solve(prepared.rotated, k, leading=True))
            return
        found = [(j, model, *model._weighting(prepared.rotated)) for j, model in enumerate(models)]
        for ridges, group in itertools.groupby(found, key=lambda part: part[3]):
            solved = [(j, model, weights, prepared.solve(weights, ridges, k)) for j, model, weights, _ in group]
            inside = [(j, pairs) for j, _, _, pairs in solved if pairs is not None]
            if len(inside) > 1 and prepared.columns < k * len(inside):
                coefficients, offset, loadings = _embedding(prepared.expand(inside[0][1], whole=True))
                turns = [(j, pairs.vectors) for j, pairs in inside]
                yield SharedFit(coefficients, offset, [(j, turn, loadings[:, : len(turn)] @ turn) for j, turn in turns])
                solved = [part for part in solved if part[3] is None]
            for j, model, weights, pairs in solved:
                how = model._solver.tol, model._solver.max_iter, model.random_state
                fit = prepared.expand(pairs) if pairs else homogeneity(prepared.rotated, weights, ridges, k, *how)
                yield _shared(j, fit)

    def _held_out_fit(
        self,
        data: Data,
        new: Mapping[str, Rows],
        components: Mapping[float | None, int],
        needs_loo: bool,
    ) -> HeldOut:
        """Fit on some rows and embed others, in a block Krylov space that settings share.

        new (m, d)
        """
        old, Y = data.views, data.Y
        groups = self._groups(data)
        views, ridges = groups.all(), groups.ridges
        own = self._label_ridge(ridges)
        labels = LinearSmoother(Y - Y.mean(axis=0) if self.center else Y, own)

        kernels = self._kernels(list(old)).items()
        search: Callable[[], SharedKrylov] = partial(SharedKrylov, Y)
        kept = memory()
        if kept is not None:  # that of one fold: it holds the factors of its ridge
            names = tuple(kept.name(rows) for rows in (Y, *old.values()))
            search = partial(kept.latest, search, "space", (names, tuple((name, k.key) for name, k in kernels)))
        how = self._solver.tol, self._solver.max_iter, self.random_state
        smoothers, k = [view.smoother for view in views.values()], max(components.values())
        classes = _class_directions(Y)
        most = max(k, classes)
        X = search().fit((ridges, own, self.center), smoothers, labels, self.balance, most, *how).vectors
        if min(components.values()) < classes:
            X = X @ self._turn(views, np.ones(len(Y)), k, X)
        loo = self._expand_views(views, X, needs_loo)
        loadings = labels.loadings(X)
        return HeldOut(components, data.frequency, self._project(new), loadings, loo)

    def _weighting(self, rotated: Rotated) -> tuple[dict[str, float], dict[str, float]]:
        """Weights and ridges of all groups of the moments."""
        views = [name for name in rotated.means if name != LABELS]
        weights = dict(zip([*views, LABELS], self._weights(len(views)), strict=True))
        ridges = self._ridges(views)
        return weights, ridges | {LABELS: self._label_ridge(ridges)}

    def _learn_weights(self, views: Mapping[str, Rows], Y: np.ndarray) -> None:
        """The product kernel of the views, for `_kernels`."""
        if is_product(self.kernel):
            distances, self.view_weights_ = weighed_views(self._product, views, Y, self.random_state)
            self._kernel_of_all = product_kernel(distances, self.view_weights_, self._product.gamma)

    def _kernels(self, views: list[str]) -> dict[str, MultiKernel]:
        return {"all": self._kernel_of_all} if is_product(self.kernel) else super()._kernels(views)

    def _weights(self, n_views: int) -> list[float]:
        return [self.balance] * n_views + [1.0]

    def _label_ridge(self, ridges: Mapping[str, float]) -> float:
        """The labels' own ridge, or the smallest of the views'."""
        return min(ridges.values()) if self.label_ridge is None else self.label_ridge

    def _count_components(self, data: Data) -> int:
        """Count the components for labels without unknown ones."""
        used = data.Y if data.complete else data.Y[:][data.weights.labels > 0]
        return self._components(data.Y.shape[1], label_rank(used), data.n)

    def _components(self, n_labels: int, rank: int, n: int) -> int:
        """Count the components for labels of a rank; warns where they are more than that."""
        k = count_components(self.n_components, n_labels, rank, n)
        if not rank and not self.center:
            raise TooFewSamples(
                "the labels are the same in all samples, and without centering their scores would be rounding divided by "
                "rounding; pass labels that differ, or center=True"
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
        kept, kept_meta = self._pass_arrays()
        meta |= {"view_weights": self.view_weights_} if is_product(self.kernel) else {}
        return arrays | {"decoder": self.decoder_} | kept, meta | kept_meta

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        super()._restore(arrays, meta)
        self.decoder_ = arrays["decoder"]
        if "view_weights" in meta:
            self.view_weights_ = dict(meta["view_weights"])
        self._restore_pass(arrays, meta)
