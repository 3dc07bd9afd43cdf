"""Kernel generalized homogeneity analysis."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
import scipy.sparse

from dmo.blocks import Rows
from dmo.engines.exact import Exact
from dmo.engines.fitted_views import SOLVED_ROWS, fit_view
from dmo.engines.lowrank import FOLDS, LowRankPass, choose_engine, decided, folds_of, pass_of
from dmo.engines.moments import LABELS, Moments, ScoreSums, pooled
from dmo.engines.passes import FeatureRows
from dmo.engines.view_neighbors import ViewDistances, named_distances
from dmo.errors import UserError
from dmo.estimators.annotator import Annotator
from dmo.estimators.arguments import (
    ClassWeight,
    Decoder,
    Engine,
    Inputs,
    KernelSpecs,
    Outputs,
    Ridges,
    RowWeights,
    Solver,
    Weights,
)
from dmo.estimators.filling import filled_labels
from dmo.estimators.homogeneity_embedding import HomogeneityEmbedding, factor_rows
from dmo.estimators.incremental import Incremental
from dmo.estimators.label_gaps import LabelGaps
from dmo.estimators.out_of_fold import HELD_OUT_ROWS, held_out_part, out_of_fold_scores
from dmo.estimators.real_outputs import Targets, read_real
from dmo.estimators.ridge import MultiViewRidge
from dmo.estimators.shared_fits import HeldOut, SharedFit, SharedViews
from dmo.functions import FactorExpansion
from dmo.kernels import Linear
from dmo.kernels.multikernel import MultiKernel
from dmo.kernels.threads import single_blas
from dmo.labels.kernels import label_directions
from dmo.linalg.smoothers import LinearSmoother
from dmo.lowrank import FeatureMap
from dmo.methods.calibration import row_counts
from dmo.methods.decoding import ScoreRule
from dmo.methods.homogeneity.moments import (
    HomogeneityFit,
    Rotated,
    RotatedMoments,
    RotatedRows,
    SharedHomogeneity,
    homogeneity,
)
from dmo.methods.homogeneity.operators import SharedKrylov, decoder
from dmo.methods.view_weights import given_weights, learns, product_kernel, view_weights
from dmo.persistence import with_prefix, without_prefix
from dmo.validation import (
    CLASS_WEIGHT,
    FLAG,
    POSITIVE,
    SHARE,
    Need,
    Prepare,
    SampleWeights,
    Scales,
    check_many_labels,
    check_parameters,
    check_partial_labels,
    check_views,
    check_weights,
    count_components,
    label_rank,
    one_of,
    optional,
    sample_count,
    with_class_weights,
)

_KEPT = 2**30
"""Bytes of factor rows that are kept for the next pass of this process."""


def _embedding(fit: HomogeneityFit) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Coefficients and offset of the embedding, the mean of what the views say, and the labels' loadings."""
    views = [view for view in fit.coefficients if view != LABELS]
    coefficients = {view: fit.coefficients[view] / len(views) for view in views}
    offset = np.sum([fit.offsets[view] for view in views], axis=0) / len(views)
    return coefficients, offset, fit.coefficients[LABELS]


class KGHA(Incremental, Annotator, HomogeneityEmbedding):
    """Kernel generalized homogeneity analysis: one space for many views and many labels, and annotation from it.

    The embedding X (n x p) is the top of M = H [balance * sum_j K_j (K_j + c_j I)^-1 + K_Y (K_Y + c I)^-1] H; new samples
    come by X_hat = mean_j K_j(x) alpha_j, their label scores by X_hat pinv(Y'alpha_Y).

    Parameters
    ----------
    kernel : str, Kernel, mapping of view to kernel, or list, default="rbf"
        Kernel of the views, see `dmo.kernels.parse`. One for all views, or one per view. "product": exp(-gamma sum_v
        w_v d_v) of the views' `distances` d_v, each divided by its mean over the training samples, as one view.
    balance : float, default=0.01
        Weight lambda of every view against the labels' 1, above 0. KGHA-r is the limit 0.
    ridge : float, mapping of view to float, or list, default=0.1
        c_j of every view, above 0, and of the labels unless `label_ridge` is given.
    n_components : int, or float in (0, 1], default=0.8
        p, or p as a share of the number of labels (1.0 is KGHA-d), at most the rank of the centered labels.
    center : bool, default=True
        Center kernels and labels (new rows by the training means). The paper's literal form is False.
    intercept : bool, default=False
        Add the label means to the scores.
    prior_power : float in [0, 1], default=0.0
        Divide the scores by label frequency to that power, which favors rare labels. See `dmo.methods.decoding.ScoreRule`.
    propensity : bool, default=False
        Divide the scores by label propensities, which is to fit labels that are divided by them: for propensity-scored
        precision [Onishi, Hayashi 2025]. Takes `intercept`.
    standardize : float in [0, 1], default=0.0
        Subtract the mean and divide by the deviation to that power, both of each label's leave-one-out training
        scores. Needs
        kernels that are factorized.
    %(distances)s
    gamma : float, default=2.0
        Sharpness of kernel "product", above 0.
    weights : mapping of view to float, list, {"equal", "tagprop", "alignment"} or None, default=None
        w_v of kernel "product", as in `MultiViewRidge`.
    decoder : Calibration, PlugIn, PooledCalibration, str or None, default=None
        Learned from out-of-fold scores of the training samples (four further fits), what ranks the labels; None: their
        scores do.
    label_sets : bool, default=True
        Where there is no decoder: learn which labels `predict` gives, and `predict_proba`, from one further fit on at most
        2000 samples, which are read for it once more; of at most 1000 samples from four to ten fits, each on other folds.
        False: `predict` gives every sample as many labels as a training
        sample has on average.
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
        then have the label means, as by `intercept`; what a decoder learns is of classes as they are.

    Attributes
    ----------
    embedding_ : ndarray of shape (n, p)
        Orthonormal coordinates of the training samples; of an exact fit.
    eigenvalues_ : ndarray of shape (p,)
        Eigenvalues of M, descending.
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

    _learns_sets = True
    decoder_: np.ndarray
    _needs: ClassVar[dict[str, Need]] = HomogeneityEmbedding._needs | {
        "balance": POSITIVE,
        "intercept": FLAG,
        "label_sets": FLAG,
        "prior_power": SHARE,
        "propensity": FLAG,
        "standardize": SHARE,
        "gamma": POSITIVE,
        "label_ridge": optional(POSITIVE),
        "targets": one_of("auto", "labels", "real"),
        "class_weight": CLASS_WEIGHT,
    }

    def __init__(
        self,
        kernel: KernelSpecs | Literal["product"] = "rbf",
        *,
        balance: float = 1e-2,
        ridge: Ridges = 1e-1,
        n_components: int | float = 0.8,
        center: bool = True,
        intercept: bool = False,
        prior_power: float = 0.0,
        propensity: bool = False,
        standardize: float = 0.0,
        distances: str | Mapping[str, str] = "auto",
        gamma: float = 2.0,
        weights: Weights = None,
        decoder: Decoder = None,
        label_sets: bool = True,
        approximation: Engine = "auto",
        label_ridge: float | None = None,
        solver: Solver | Literal["krylov", "als"] = "krylov",
        random_state: int | None = 0,
        prepare: Prepare | Scales = "auto",
        targets: Targets = "auto",
        class_weight: ClassWeight = None,
    ):
        self.kernel = kernel
        self.balance = balance
        self.ridge = ridge
        self.n_components = n_components
        self.center = center
        self.intercept = intercept
        self.prior_power = prior_power
        self.propensity = propensity
        self.standardize = standardize
        self.distances = distances
        self.gamma = gamma
        self.weights = weights
        self.decoder = decoder
        self.label_sets = label_sets
        self.approximation = approximation
        self.label_ridge = label_ridge
        self.solver = solver
        self.random_state = random_state
        self.prepare = prepare
        self.targets = targets
        self.class_weight = class_weight

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
            masked entries are unknown. A sparse matrix of more than 4096 labels, or 5e7 entries, stays sparse: the space is
            learned from the 512 directions (or twice the components) in which they vary most.
        sample_weight : array-like of shape (n,), mapping of view to such, or None, default=None
            How often every sample counts; or by view and for "labels", 0 where one lacks the sample. Probabilities come from
            fits on folds of samples, each of them whole in one: those of repeated rows differ as those of other folds do.

        Returns
        -------
        KGHA
            This estimator, fitted.

        Raises
        ------
        UserError
            For parameters, views or labels that do not fit together.
        """
        check_parameters(self)
        views = check_views(self, X, reset=True, partial=True)
        n = sample_count(views)
        self.outputs_ = None
        many = check_many_labels(self, y, n)
        if many is not None:
            self._fit_many(views, many, check_weights(sample_weight, views))
            return self
        given = check_weights(sample_weight, views)
        often = None if given is None else given.labels
        Y, known = read_real(self, y, n, weights=often) or check_partial_labels(self, y, n)
        given = with_class_weights(given, self.class_weight, self, Y)
        if self.class_weight is not None and self.multilabel_:
            raise UserError(
                "class_weight of KGHA is for a vector of classes, since a space sees all labels of a sample at once; weigh "
                "samples, or take MultiViewRidge"
            )
        gaps = LabelGaps.of(known, given, list(views), n, passive=True)
        self._forget_pass()
        if gaps is not None and self.kernel == "product" and learns(self.weights):
            raise UserError(
                f"weights={self.weights!r} needs all labels and views of all samples, each once; give the weights"
            )
        self._learn_weights(views, Y)
        self.approximation_ = choose_engine(self.approximation, n, len(self._kernels(list(views))), self.kernel)
        if gaps is not None:
            self._fit_gaps(views, Y, gaps)
        elif self.is_exact:
            held = self._fit_exact(views, Y.astype(np.float64), self.count_components(Y.shape[1], label_rank(Y), n))
            rule = self.intercept, self.standardize, self.prior_power, self.propensity
            self.rule_ = ScoreRule.learn(Y.mean(axis=0), n, held, *rule)
        else:
            self._fit_low_rank(views, Y)
        self.decoding_ = None
        self._learn_held_out(views, Y, gaps)
        return self

    def _fit_many(self, views: Mapping[str, Rows], Y: scipy.sparse.csr_array, given: SampleWeights | None) -> None:
        """Very many sparse labels, in the directions in which they vary most: nothing of n x L or L x L is formed."""
        for what, asked in (
            ("a decoder", self.decoder is not None),
            ("standardize", bool(self.standardize)),
            ("class_weight", self.class_weight is not None),
            ("learning weights", self.kernel == "product" and learns(self.weights)),
        ):
            if asked:
                raise UserError(f"{what} needs dense labels, and these are {Y.shape[1]}; pass fewer, or go without it")
        self._forget_pass()
        components = self.n_components if isinstance(self.n_components, int) else 0
        V = label_directions(Y, components, self.random_state)
        T = np.asarray(Y @ V)
        self._learn_weights(views, T)
        self.approximation_ = choose_engine(self.approximation, len(T), len(self._kernels(list(views))))
        counts = np.ones(len(T)) if given is None else given.labels
        k = self.count_components(T.shape[1], label_rank(T[counts > 0]), len(T))
        if self.is_exact:
            self._fit_exact(views, T, k, given)
        elif given is not None:
            self._fit_moment_gaps(views, given, T, k)
        else:
            self._fit_low_rank(views, T)
        self.decoding_, self.decoder_ = None, self.decoder_ @ V.T
        total = counts.sum()
        self.rule_ = ScoreRule.learn(
            Y.T @ counts / total, total, None, self.intercept, 0.0, self.prior_power, self.propensity
        )

    def _learn_held_out(self, views: Mapping[str, Rows], Y: np.ndarray, gaps: LabelGaps | None) -> None:
        """Decisions, from other fits: scores in the sample have seen its labels through the embedding."""
        rows = np.arange(len(Y)) if gaps is None else np.flatnonzero(gaps.any_weight & (gaps.weights.labels > 0))
        if self.decoder is not None:
            held = out_of_fold_scores(self, views, Y, gaps=gaps)[rows]
        elif not self._skips_sets:
            found = held_out_part(
                self, views, Y, rows, HELD_OUT_ROWS, gaps, self._fitted_maps() if gaps is None else None
            )
            if found is None:
                return
            rows, held = found
        else:
            return
        counts = None if gaps is None else gaps.decided(rows, Y.shape[1])
        self._learn_decoder(self.decoder, [held], Y[rows], counts)

    def _fitted_maps(self) -> dict[str, FeatureMap]:
        """The low-rank kernels of the views; empty of exact kernels."""
        return {v: part.feature_map for v, part in self.expansions_.items() if isinstance(part, FactorExpansion)}

    def _fit_gaps(self, views: Mapping[str, Rows], Y: np.ndarray, gaps: LabelGaps) -> None:
        """Missing samples are passive; unknown labels of labeled samples are filled."""
        if self.kernel == "product" and not self.is_exact:
            raise UserError("kernel='product' has no low-rank form; take approximation='exact'")
        labels = Y.astype(np.float64)
        if gaps.known is not None:
            labels = self.swept_labels(views, labels, gaps)
        labeled = gaps.weights.labels > 0
        k = self.count_components(Y.shape[1], label_rank(labels[labeled]), len(Y))
        if self.is_exact:
            self._fit_exact(views, labels, k, gaps.weights)
        else:
            self._fit_moment_gaps(views, gaps.weights, labels, k)
        loo = counts = None
        if self.standardize:
            rows = np.flatnonzero(labeled & gaps.any_weight)
            loo, counts = out_of_fold_scores(self, views, Y, gaps=gaps)[rows], gaps.decided(rows, Y.shape[1])
        frequency = gaps.frequency(Y)
        # scores without label means would lose what weights of classes say
        intercept = self.intercept or self.class_weight is not None
        powers = self.standardize, self.prior_power, self.propensity
        self.rule_ = ScoreRule.learn(frequency, gaps.n_labeled, loo, intercept, *powers, row_counts(counts))

    def swept_labels(self, views: Mapping[str, Rows], Y: np.ndarray, gaps: LabelGaps) -> np.ndarray:
        """Fill unknown labels by what regressions on the views say, which no ridge or balance changes.

        views (n, d); Y (n, L) -> (n, L)
        """
        if not hasattr(self, "view_weights_"):  # in a sweep
            self._learn_weights(views, Y)
        regression = MultiViewRidge(
            self.kernel,
            approximation=decided(self),
            random_state=self.random_state,
            distances=self.distances,
            gamma=self.gamma,
            weights=self.view_weights_ if self.kernel == "product" else None,
        )
        known = np.ones(Y.shape, bool) if gaps.known is None else gaps.known
        return filled_labels(regression, views, Y, known, gaps.weights)

    def _fit_moment_gaps(self, views: Mapping[str, Rows], weights: SampleWeights, Y: np.ndarray, k: int) -> None:
        maps = self._partial_maps(views, weights)
        groups = weights.views | {LABELS: weights.labels}
        rotated = self._rotated(maps, FeatureRows(views, maps, _KEPT), Y, groups, self._weights(len(maps)))
        self._learn_low_rank(maps, self._solve(rotated, k))

    def _fit_low_rank(self, views: Mapping[str, Rows], Y: np.ndarray) -> None:
        if self.kernel == "product":
            raise UserError("kernel='product' has no low-rank form; take approximation='exact'")
        with single_blas():
            maps, n_folds = self._maps(views), FOLDS if self.standardize else 1
            rows = factor_rows(maps, views, Y.shape[1])
            if rows is None:
                self._fit_pass(pass_of(maps, views, Y, n_folds, self.random_state))
            else:
                self._fit_rows(maps, rows | {LABELS: Y.astype(np.float64)}, n_folds)

    def _fit_exact(
        self, views: Mapping[str, Rows], Y: np.ndarray, k: int, weights: SampleWeights | None = None
    ) -> np.ndarray | None:
        """Learn the space and its decoder; returns left-out scores (n x L) of samples that all count once, to standardize."""
        fitted = self._fit_views(views, weights)
        own, counts, mean = None, None, Y.mean(axis=0)
        if weights is not None:
            kernels, counts = self._kernels(list(views)).values(), weights.labels
            own = [*(weights.of_views(list(kernel.kernels)) for kernel in kernels), counts]
            mean = counts @ Y / counts.sum()
        ridge, linear = self._label_ridge(self._ridges(list(fitted))), MultiKernel.of(LABELS, Linear())
        seed = self.random_state
        labels = fit_view(
            Exact(), LABELS, linear, {LABELS: Y}, ridge, self.center, "memory", "auto", seed, weights=counts
        )
        start = Y - mean if counts is None else np.where(counts[:, None] > 0, Y - mean, 0.0)
        X = self._embed([*fitted.values(), labels], self._weights(len(fitted)), own, k, start)
        self.decoder_ = decoder(labels.coefficients(X))
        # without a factor a solve per row is dear
        solved = len(Y) > SOLVED_ROWS and any(getattr(view.smoother, "iterative", False) for view in fitted.values())
        standardize = bool(self.standardize) and weights is None
        loo = self._expand_views(fitted, X, standardize and not solved)
        if standardize and solved:
            return out_of_fold_scores(self, views, Y)
        return None if loo is None else loo @ self.decoder_

    def _fit_pass(self, done: LowRankPass) -> None:
        labels = done.total.centered_gram(LABELS)
        k = self.count_components(len(labels), int(np.linalg.matrix_rank(labels, hermitian=True)), int(done.total.n))
        self._learn_low_rank(done.maps, self._solve(RotatedMoments.of(done.total, self.center), k))
        mean, deviation = np.zeros(len(labels)), np.ones(len(labels))
        if self.standardize:
            held = []
            for part in done.folds:
                # to the tolerance of the fit itself: what sweeps share between settings is solved less closely
                rest = SharedHomogeneity(RotatedMoments.of(done.total - part, self.center), residual=self._solver.tol)
                coefficients, offset, loadings = self.fit_moments(rest, k)
                D = decoder(loadings)
                held.append(part.of_scores({view: B @ D for view, B in coefficients.items()}, offset @ D))
            mean, deviation = pooled(held)
        rule = self.intercept, self.standardize, self.prior_power, self.propensity
        self.rule_ = ScoreRule.of(done.frequency, done.total.n, mean, deviation, *rule)

    def _solve(self, rotated: Rotated, k: int) -> HomogeneityFit:
        weights, ridges = self._weighting(rotated)
        return homogeneity(rotated, weights, ridges, k, self._solver.tol, self._solver.max_iter, self.random_state)

    def _learn_low_rank(self, maps: Mapping[str, FeatureMap], fit: HomogeneityFit) -> None:
        self._learn(fit.pairs)
        self._expand(maps, fit)
        self.decoder_ = decoder(fit.coefficients[LABELS])

    def _fit_rows(self, maps: Mapping[str, FeatureMap], groups: dict[str, np.ndarray], n_folds: int) -> None:
        """What `_fit_pass` learns, from fewer rows than columns: of the views' factors, and of the labels."""
        n, n_labels = groups[LABELS].shape
        k = self.count_components(n_labels, label_rank(groups[LABELS]), n)
        self._learn_low_rank(maps, self._solve(RotatedRows.of(groups, self.center), k))
        mean, deviation = np.zeros(n_labels), np.ones(n_labels)
        if n_folds > 1:
            fold, held = folds_of(n, n_folds, self.random_state), []
            for number in range(n_folds):
                known = {name: rows[fold != number] for name, rows in groups.items()}
                fit = self._solve(RotatedRows.of(known, self.center), k)
                parts = [groups[view][fold == number] @ fit.coefficients[view] + fit.offsets[view] for view in maps]
                scores = sum(parts) / len(parts) @ decoder(fit.coefficients[LABELS])
                held.append(ScoreSums(len(scores), scores.sum(axis=0), (scores**2).sum(axis=0)))
            mean, deviation = pooled(held)
        frequency = groups[LABELS].mean(axis=0)
        rule = self.intercept, self.standardize, self.prior_power, self.propensity
        self.rule_ = ScoreRule.of(frequency, n, mean, deviation, *rule)

    def prepare_moments(self, moments: Moments, center: bool) -> SharedHomogeneity:
        """Prepare what the fits of all ridges and balances share."""
        return SharedHomogeneity(RotatedMoments.of(moments, center))

    def fit_moments(self, prepared: SharedHomogeneity, k: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        """Fit from prepared moments, for a sweep.

        -> coefficients (rank of the view, k); offset (k,); loadings (L, k)
        """
        weights, ridges = self._weighting(prepared.rotated)
        return _embedding(prepared.fit(weights, ridges, k, self._solver.tol, self._solver.max_iter, self.random_state))

    def fit_together(self, prepared: SharedHomogeneity, models: Sequence[KGHA], k: int) -> Iterator[SharedFit]:
        """Fit settings from prepared moments, those of the same ridges in their subspace where it is the smaller."""
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
                coefficients, offset, loadings = _embedding(fit)
                yield SharedFit(coefficients, offset, [(j, None, loadings)])

    def exact_runner(
        self,
        old: Mapping[str, Rows],
        new: Mapping[str, Rows],
        Y: np.ndarray,
        components: Mapping[float | None, int],
        needs_loo: bool,
        gaps: LabelGaps | None = None,
        factorizations: float = 1.0,
    ) -> Callable[[KGHA], HeldOut]:
        """Make a function that fits settings on some rows and embeds others, with kernels and factors shared.

        old (n, d); new (m, d); Y (n, L)
        """
        self._learn_weights(old, Y)
        kernels = self._kernels(list(old))
        shared, search = SharedViews(self, kernels, old, new, factorizations), SharedKrylov(Y)
        k, mean = max(components.values()), Y.mean(axis=0)
        frequency = mean if gaps is None else gaps.frequency(Y)

        def run(model: KGHA) -> HeldOut:
            ridges = model._ridges(list(kernels))
            own = model._label_ridge(ridges)
            labels = LinearSmoother(Y - mean if model.center else Y, own)
            views = [shared.view(view, ridge, model.center) for view, ridge in ridges.items()]
            smoothers, how = (
                [view.smoother for view in views],
                (model._solver.tol, model._solver.max_iter, model.random_state),
            )
            pairs = search.fit((ridges, own, model.center), smoothers, labels, model.balance, k, *how)
            values, loo = np.zeros((shared.n_new, k)), np.zeros((len(Y), k))
            for view in views:
                coefficients = view.coefficients(pairs.vectors)
                values += view.predict(coefficients) / len(views)
                if needs_loo:
                    loo += view.leave_one_out(pairs.vectors, coefficients) / len(views)
            return HeldOut(components, frequency, values, labels.loadings(pairs.vectors), loo if needs_loo else None)

        return run

    def _weighting(self, rotated: Rotated) -> tuple[dict[str, float], dict[str, float]]:
        """Weights and ridges of all groups of the moments."""
        views = [name for name in rotated.slices if name != LABELS]
        weights = dict(zip([*views, LABELS], self._weights(len(views)), strict=True))
        ridges = self._ridges(views)
        return weights, ridges | {LABELS: self._label_ridge(ridges)}

    def _learn_weights(self, views: Mapping[str, Rows], Y: np.ndarray) -> None:
        """The product kernel of the views, for `_kernels`."""
        if self.kernel != "product":
            if self.weights is not None:
                raise UserError(
                    f"weights = {self.weights!r} are those of kernel='product'; views have `balance` in common"
                )
            return
        chosen = named_distances(self.distances, views)
        if learns(self.weights):
            self.view_weights_ = view_weights(self.weights, ViewDistances.fit(chosen, views, self.random_state), Y)
        else:
            self.view_weights_ = given_weights(self.weights, list(views))
        self._product = product_kernel(chosen, self.view_weights_, self.gamma)

    def _kernels(self, views: list[str]) -> dict[str, MultiKernel]:
        return {"all": self._product} if self.kernel == "product" else HomogeneityEmbedding._kernels(self, views)

    def _weights(self, n_views: int) -> list[float]:
        return [self.balance] * n_views + [1.0]

    def _label_ridge(self, ridges: Mapping[str, float]) -> float:
        """The labels' own ridge, or the smallest of the views'."""
        return min(ridges.values()) if self.label_ridge is None else self.label_ridge

    def count_components(self, n_labels: int, rank: int, n: int) -> int:
        """Count the components for labels of a rank; warns where they are more than that."""
        k = count_components(self.n_components, n_labels, rank, n)
        if not rank and not self.center:
            raise UserError(
                "the labels are the same in all samples, and without centering their scores would be rounding divided by "
                "rounding; pass labels that differ, or center=True"
            )
        if k > rank:
            self._warn(
                f"n_components = {k} is above the rank {rank} of the centered labels; the rest of the space does "
                f"not come from the labels and takes many more iterations"
            )
        return k

    def _row_shape(self, method: str, **options: Any) -> tuple[np.ndarray | None, np.dtype]:
        kind = HomogeneityEmbedding if method == "transform" else Annotator
        return kind._row_shape(self, method, **options)

    def _raw_scores(self, views: Mapping[str, Rows]) -> np.ndarray:
        return self._project(views) @ self.decoder_

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays, meta = HomogeneityEmbedding._arrays(self)
        rule, rule_meta = self.rule_.to_arrays()
        kept, kept_meta = self._pass_arrays()
        units, units_meta = self._outputs_arrays()
        decoding, decoding_meta = self._decoding_arrays()
        arrays |= {"decoder": self.decoder_} | with_prefix("rule", rule) | kept | decoding | units
        meta |= {"view_weights": self.view_weights_} if self.kernel == "product" else {}
        return arrays, meta | {
            "rule": rule_meta,
            "multilabel": self.multilabel_,
        } | kept_meta | decoding_meta | units_meta

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        HomogeneityEmbedding._restore(self, arrays, meta)
        self.decoder_, self.multilabel_ = arrays["decoder"], meta["multilabel"]
        if "view_weights" in meta:
            self.view_weights_ = dict(meta["view_weights"])
        self.rule_ = ScoreRule.from_arrays(without_prefix("rule", arrays), meta["rule"])
        self._restore_pass(arrays, meta)
        self._restore_decoding(arrays, meta)
