"""Ridge regression of the labels on many views: r-MLR and r-KMLR, the baselines of [KGHA]."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
import scipy.sparse

from dmo.blocks import Rows, Subset, row_blocks
from dmo.cluster import current_client
from dmo.engines.exact import Exact, Storage, build, choose_storage, exact_engine
from dmo.engines.fitted_views import fit_view, view_of
from dmo.engines.lowrank import (
    FOLDS,
    LowRankPass,
    by_gradients,
    choose_engine,
    chooses_solver,
    decided,
    fit_maps,
    is_exact,
    left_out_scores,
    low_rank_pass,
)
from dmo.engines.moments import LABELS, Moments, label_groups, pooled
from dmo.engines.view_neighbors import ViewDistances, named_distances
from dmo.errors import UserError
from dmo.estimators.annotator import Annotator
from dmo.estimators.arguments import (
    ClassWeight,
    Decoder,
    Engine,
    Inputs,
    KernelSpecs,
    LabelRidges,
    Outputs,
    RowWeights,
    Weights,
)
from dmo.estimators.incremental import Incremental
from dmo.estimators.label_gaps import LabelGaps, PartialRidge, many_label_expansions
from dmo.estimators.landmark_regression import landmark_regression
from dmo.estimators.out_of_fold import (
    PASSED_ROWS,
    held_out_part,
    learned_columns,
    out_of_fold_scores,
    rows_in_runs,
    some_rows,
    takes_folds,
)
from dmo.estimators.real_outputs import Targets, read_real
from dmo.estimators.shared_fits import HeldOut, SharedFit, SharedViews
from dmo.functions import Expansion, FactorExpansion, added, load_expansions, shifted, store_expansions
from dmo.kernels import Linear, parse
from dmo.kernels.multikernel import MultiKernel
from dmo.kernels.threads import single_blas
from dmo.linalg.solve import COEFFICIENTS, SCORES
from dmo.lowrank.approximations import Nystrom
from dmo.methods.calibration import row_counts
from dmo.methods.decoding import ScoreRule
from dmo.methods.ridge import ridge
from dmo.methods.view_weights import given_weights, learns, product_kernel, view_weights
from dmo.persistence import with_prefix, without_prefix
from dmo.progress import stage
from dmo.validation import (
    CLASS_WEIGHT,
    FLAG,
    POSITIVE,
    POSITIVES,
    SEED,
    SHARE,
    Need,
    Prepare,
    SampleWeights,
    Scales,
    check_many_labels,
    check_parameter,
    check_parameters,
    check_partial_labels,
    check_views,
    check_weights,
    one_of,
    per_view,
    sample_count,
    with_class_weights,
    with_label_weights,
)

_COLUMNS = 512  # whose coefficients are worked out at a time


class MultiViewRidge(Incremental, Annotator):
    """Kernel ridge regression of 0/1 labels on several views; r-KMLR, and r-MLR with kernel="linear".

    Scores are K(x) (K + c I)^-1 Y: of one kernel combined over the views, or averaged over one regression per view.

    Parameters
    ----------
    kernel : str, Kernel, mapping of view to kernel, or list, default="rbf"
        Kernel of the views, see `dmo.kernels.parse`. One for all views, or one per view. "product": exp(-gamma sum_v
        w_v d_v)
        of the views' `distances` d_v, each divided by its mean over the training samples.
    ridge : float, mapping of view to float, or list, default=0.01
        c of every view, above 0. With one combined kernel the ridge is one number. In place of a number an array of
        shape (L,): one per label, where all labels and views of all samples are known; labels of one ridge share its
        factorization, and all share kernels or moments.
    combine : {"predictions", "kernels", "product"}, default="predictions"
        Average the views' predictions (the paper's), their kernels, or take the kernels' geometric mean.
    weights : mapping of view to float, list, {"equal", "tagprop", "alignment"} or None, default=None
        Weights of the views, scaled to sum 1; None: equal ones. Learned by `distances`: "tagprop", those under which the
        neighbors of the training samples predict their labels best [Guillaumin et al. 2009]; "alignment", those under
        which the sum of the views' distances aligns best with the labels [Cortes et al. 2012].
    center : bool, default=True
        Center kernels and labels (new rows by the training means).
    intercept : bool, default=False
        Add the label means to the scores, which `center` took off.
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
    decoder : Calibration, PlugIn, PooledCalibration, str or None, default=None
        Learned from leave-one-out scores of all training samples, of columns that are filled or scaled, and of kernels in
        tiles of more than 2048 samples, from out-of-fold ones; what ranks the labels; None: their scores do.
    label_sets : bool, default=True
        Where there is no decoder: learn which labels `predict` gives, and `predict_proba`, from leave-one-out scores of
        training samples, for which low-rank kernels read up to 4096 rows once more. False: `predict` gives every sample
        as many labels as a training sample has on average.
    %(approximation)s
    %(random_state)s
    %(prepare)s
    %(targets)s
    class_weight : {"balanced"}, dict of class or label to float, or None, default=None
        Of a vector of classes: by what factor samples count; "balanced": inversely to how often their class occurs. Of a
        matrix of labels: by what factor samples count for a label that they carry; "balanced": those with it weigh as much
        as those without. Scores then have the label means, as by `intercept`; what a decoder learns is of labels as they
        are.

    Attributes
    ----------
    expansions_ : dict of str to Expansion
        The fitted functions, whose values add up to the raw scores.
    view_weights_ : dict of str to float
        Weights of the views, of sum 1.
    rule_ : ScoreRule
        What turns raw scores into the scores that labels are chosen by.
    held_out_scores_ : ndarray of shape (n, L)
        Leave-one-out or out-of-fold scores of the training samples, with a decoder.
    classes_ : ndarray of shape (L,)
        The classes, or the label names.
    coef_ : ndarray of shape (L, d), (1, d) or (d,)
        Of one view with kernel="linear"; with it `intercept_`.

    References
    ----------
    Xiong, Szedmak, Piater 2014, section 5 (r-MLR, r-KMLR).
    Guillaumin, Mensink, Verbeek, Schmid 2009 (weights "tagprop").
    Cortes, Mohri, Rostamizadeh 2012 (weights "alignment").

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from dmo import MultiViewRidge
    >>> X, Y = make_multilabel_classification(n_samples=200, n_classes=5, random_state=0)
    >>> views = {"words": X[:, :10], "shapes": X[:, 10:]}
    >>> model = MultiViewRidge("rbf", ridge=1.0, prior_power=0.25).fit(views, Y)
    >>> model.decision_function(views).shape
    (200, 5)
    >>> model.predict(views, top=2).sum(axis=1)[:3].tolist()
    [2, 2, 2]
    """

    _learns_sets = True
    _needs: ClassVar[dict[str, Need]] = {
        "combine": one_of("predictions", "kernels", "product"),
        "center": FLAG,
        "intercept": FLAG,
        "label_sets": FLAG,
        "prior_power": SHARE,
        "propensity": FLAG,
        "standardize": SHARE,
        "random_state": SEED,
        "gamma": POSITIVE,
        "targets": one_of("auto", "labels", "real"),
        "class_weight": CLASS_WEIGHT,
    }

    def __init__(
        self,
        kernel: KernelSpecs | Literal["product"] = "rbf",
        *,
        ridge: LabelRidges = 1e-2,
        combine: Literal["predictions", "kernels", "product"] = "predictions",
        weights: Weights = None,
        center: bool = True,
        intercept: bool = False,
        prior_power: float = 0.0,
        propensity: bool = False,
        standardize: float = 0.0,
        distances: str | Mapping[str, str] = "auto",
        gamma: float = 2.0,
        decoder: Decoder = None,
        label_sets: bool = True,
        approximation: Engine = "auto",
        random_state: int | None = 0,
        prepare: Prepare | Scales = "auto",
        targets: Targets = "auto",
        class_weight: ClassWeight = None,
    ):
        self.kernel = kernel
        self.ridge = ridge
        self.combine = combine
        self.weights = weights
        self.center = center
        self.intercept = intercept
        self.prior_power = prior_power
        self.propensity = propensity
        self.standardize = standardize
        self.distances = distances
        self.gamma = gamma
        self.decoder = decoder
        self.label_sets = label_sets
        self.approximation = approximation
        self.random_state = random_state
        self.prepare = prepare
        self.targets = targets
        self.class_weight = class_weight

    def fit(self, X: Inputs, y: Outputs, sample_weight: RowWeights = None) -> Self:
        """Learn the regressions.

        Every label is learned from the samples where it is known, every view from the samples that it has.

        Parameters
        ----------
        %(X_gaps)s
        y : array-like of shape (n, L) or (n,)
            Labels of 0 and 1, n classes, or n lists of labels; or real outputs, see `targets`. In a matrix NaN, None and
            masked entries are unknown.
        sample_weight : array-like of shape (n,), mapping of view to such, or None, default=None
            How often every sample counts; or by view, 0 where the view lacks the sample, and of "labels", of shape (n, L)
            how often every label of a sample counts besides, 0 where it is unknown. Landmarks are drawn from all
            samples of positive weight alike. Whole numbers count repeated rows, and a left-out score goes without one of
            them; a sample of any other weight is left out whole: scale weights that are no counts to 1 at most.

        Returns
        -------
        MultiViewRidge
            This estimator, fitted.

        Raises
        ------
        UserError
            For parameters, views, labels or weights that do not fit together.
        """
        check_parameters(self)
        views = check_views(self, X, reset=True, partial=True)
        n = sample_count(views)
        self.outputs_ = None
        many = check_many_labels(self, y, n)
        if many is not None:
            self._fit_many(views, many, check_weights(sample_weight, views))
            return self
        given = check_weights(sample_weight, views, by_entry=True)
        often = None if given is None else given.labels
        Y, known = read_real(self, y, n, weights=often) or check_partial_labels(self, y, n)
        given = with_class_weights(given, self.class_weight, self, Y)
        given = with_label_weights(given, self.class_weight, self, Y, known)
        gaps = LabelGaps.of(known, given, list(views), n)
        self._forget_pass()
        self._check_label_ridges(gaps)
        if gaps is not None and learns(self.weights):
            raise UserError(f"weights={self.weights!r} needs all labels and views of all samples, each once; give them")
        self._learn_weights(views, Y)
        self.approximation_ = choose_engine(self.approximation, n, len(self._kernels(list(views))), self.kernel)
        self.decoding_ = None
        if self.is_exact:
            self._fit_exact(views, Y, gaps)
        elif self.kernel == "product":
            raise UserError("kernel='product' has no low-rank form; take approximation='exact'")
        else:
            self._fit_low_rank(views, Y, gaps)
        return self

    def _fit_many(self, views: Mapping[str, Rows], Y: scipy.sparse.csr_array, given: SampleWeights | None) -> None:
        """Very many sparse labels, from products of the rows with them: nothing of n x L or L x L is formed."""
        names = list(views)
        for what, asked in (
            ("a decoder", self.decoder is not None),
            ("standardize", bool(self.standardize)),
            ("learning weights", learns(self.weights)),
            ("a ridge per label", self._ridge_by_label),
            ("class_weight", self.class_weight is not None),
            ("a product of kernels", self.kernel == "product" or self.combine == "product"),
        ):
            if asked:
                raise UserError(f"{what} needs dense labels, and these are {Y.shape[1]}; pass fewer, or go without it")
        kernels = {view: parse(spec) for view, spec in per_view("kernel", self.kernel, names).items()}
        linear = all(isinstance(kernel, Linear) for kernel in kernels.values())
        if linear and (self.approximation == "auto" or is_exact(self.approximation)):
            self.approximation_ = Nystrom(
                rank=max(source.shape[1] for source in views.values())
            )  # the features themselves
        else:
            self.approximation_ = choose_engine(self.approximation, Y.shape[0], len(names))
        if self.is_exact:
            raise UserError(
                f"an exact kernel has {Y.shape[0]} x {Y.shape[1]} coefficients; take approximation=Nystrom(...), or a linear "
                f"kernel, for so many labels"
            )
        self._forget_pass()
        self.decoding_, self.expansions_ = None, {}
        self.view_weights_ = given_weights(self.weights, names)
        joined = self.combine == "kernels"
        ridges = self._ridges(names, ["all"] if joined else names)
        engines = per_view("approximation", self.approximation_, names)
        labels = np.ones(Y.shape[0]) if given is None else given.labels
        for group in [names] if joined else [[view] for view in names]:
            weights = None if given is None else given.of_views(group)
            index = np.arange(Y.shape[0]) if weights is None else np.flatnonzero(weights)
            sources = {view: views[view] if weights is None else Subset(views[view], index) for view in group}
            own = ({view: engines[view] for view in group}, {view: kernels[view] for view in group})
            counts = None if weights is None else dict.fromkeys(group, weights[index])
            maps = fit_maps(*own, sources, self.random_state, self.center, counts)
            part = Y if weights is None else scipy.sparse.csr_array(Y[index])
            shares = {view: self.view_weights_[view] if joined else 1.0 for view in group}
            self.expansions_ |= many_label_expansions(
                maps,
                sources,
                part,
                None if weights is None else weights[index],
                shares,
                ridges["all" if joined else group[0]],
                self.center,
                1.0 if joined else self.view_weights_[group[0]],
            )
        total = labels.sum()
        self.rule_ = ScoreRule.learn(
            Y.T @ labels / total, total, None, self.intercept, 0.0, self.prior_power, self.propensity
        )

    def _fit_low_rank(self, views: Mapping[str, Rows], Y: np.ndarray, gaps: LabelGaps | None) -> None:
        if self._by_gradients(list(views)) or self._may_choose(list(views), gaps):
            self._fit_gradients(views, Y, gaps)
            return
        if gaps is not None:
            self._fit_gaps(views, Y, gaps)
            return
        n_folds = FOLDS if self.standardize else 1
        with single_blas():
            done = low_rank_pass(self.approximation_, self.kernel, views, Y, n_folds, self.random_state, self.center)
            self._fit_pass(done)
            if learned_columns(self):
                self._learn_rules(views, Y, done.frequency, np.zeros((0, Y.shape[1])), np.zeros((0, 1)), None)
            else:
                self._learn_from_pass(done, views, Y)

    def _fit_gaps(self, views: Mapping[str, Rows], Y: np.ndarray, gaps: LabelGaps) -> None:
        """From weighted moments of the rows that every view, or all views of one kernel, have."""
        names, joined = list(views), self.combine == "kernels"
        frequency = gaps.frequency(Y)
        targets = Y - frequency if self.center else Y.astype(np.float64)
        if self.combine == "product":
            raise UserError("a product of kernels has no low-rank form; take approximation='exact'")
        kernels = per_view("kernel", self.kernel, names)
        engines = per_view("approximation", self.approximation_, names)
        ridges = self._ridges(names, ["all"] if joined else names)
        held_out = self._held_out(gaps)
        loo, seen = np.zeros(Y.shape), np.zeros((len(Y), 1))
        self.expansions_ = {}
        for group in [names] if joined else [[view] for view in names]:
            weights, share = gaps.weights.of_views(group), 1.0 if joined else self.view_weights_[group[0]]
            index = np.flatnonzero(weights)
            sources = {view: Subset(views[view], index) for view in group}
            own = ({view: engines[view] for view in group}, {view: kernels[view] for view in group})
            often = dict.fromkeys(group, weights[index])
            maps = fit_maps(*own, sources, self.random_state, self.center, often)
            shares = {view: self.view_weights_[view] if joined else 1.0 for view in group}
            counts = None if gaps.counts is None else gaps.counts[index]
            c = ridges["all" if joined else group[0]]
            fitted = PartialRidge.fit(maps, sources, targets[index], counts, weights[index], shares, c, self.center)
            self.expansions_ |= fitted.expansions(share)
            if held_out == "left out":
                part = gaps.weights.rows(index).share_left_out(group)
                loo[index] += share * fitted.left_out(sources, targets[index], part)
                seen[index] += share
        self._learn_rules(views, Y, frequency, loo, seen, gaps)

    def _by_gradients(self, names: list[str]) -> bool:
        """Whether regressions on kernel values at landmarks are asked for."""
        asked = {by_gradients(own) for own in per_view("approximation", self.approximation_, names).values()}
        if len(asked) > 1:
            raise UserError("views have approximations with solver='cg' and without; give all of them the same")
        return True in asked

    def _may_choose(self, names: list[str], gaps: LabelGaps | None) -> bool:
        """Whether solver="auto" is asked for, and nothing else that moments of factor rows are for."""
        engines = per_view("approximation", self.approximation_, names)
        kernels = per_view("kernel", self.kernel, names)
        return (
            all(chooses_solver(own) for own in engines.values())
            and not any(isinstance(parse(own), Linear) for own in kernels.values())
            and (self.combine == "predictions" or len(names) == 1)
            and gaps is None
            and self._skips_sets
            and not (self._ridge_by_label or self.standardize or self.decoder is not None)
            and current_client() is None
        )

    def _fit_gradients(self, views: Mapping[str, Rows], Y: np.ndarray, gaps: LabelGaps | None) -> None:
        """A regression per view on kernel values at its landmarks."""
        names = list(views)
        if gaps is not None or self._ridge_by_label or (self.combine != "predictions" and len(names) > 1):
            raise UserError(
                "solver='cg' takes all labels and views of all samples, each once, one ridge for all labels, and "
                "combine='predictions'; take Nystrom(solver='direct') for others"
            )
        kernels = per_view("kernel", self.kernel, names)
        engines = per_view("approximation", self.approximation_, names)
        frequency = Y.mean(axis=0, dtype=np.float64)
        self.expansions_ = {}
        for view, c in self._ridges(names, names).items():
            values = engines[view].landmark_map(kernels[view], views[view], self.random_state)
            choose = chooses_solver(engines[view])
            found, B, offset = landmark_regression(values, views[view], Y, c, self.center, choose)
            share = self.view_weights_[view]
            self.expansions_[view] = FactorExpansion.of(view, found, share * B, share * offset)
        self._learn_rules(views, Y, frequency, np.zeros((0, Y.shape[1])), np.zeros((0, 1)), None)

    def _held_out(self, gaps: LabelGaps | None, takes_folds: bool = False) -> str:
        """How scores of samples that the fit has not seen are made: "left out", "folds", "part", or "" for none; all of them
        by folds where `takes_folds`."""
        needed = self.standardize or self.decoder is not None
        if not needed and self._skips_sets:
            return ""
        # what a left-out sample says has a closed form where all of its labels are left out together, and where no scale of
        # the columns has seen it
        if needed and takes_folds:
            return "folds"
        by_gradients = not self.is_exact and self._by_gradients(list(self.view_weights_))
        if (gaps is None or gaps.counts is None) and not by_gradients and not learned_columns(self):
            return "left out"
        return "folds" if needed else "part"

    def _learn_rules(
        self,
        views: Mapping[str, Rows],
        Y: np.ndarray,
        frequency: np.ndarray,
        loo: np.ndarray,
        seen: np.ndarray,
        gaps: LabelGaps | None,
        some: np.ndarray | None = None,
        takes_folds: bool = False,
    ) -> None:
        """Rule and decisions from left-out scores `loo` of all samples, or `some`: sums over the views that a sample has,
        of weights `seen` (n x 1)."""
        rows, held_out = np.arange(len(Y)) if some is None else some, self._held_out(gaps, takes_folds)
        if held_out == "part":
            labeled = np.flatnonzero(gaps.any_weight) if gaps is not None else rows
            found = held_out_part(self, views, Y, labeled, PASSED_ROWS, gaps)
            rows, loo = (rows[:0], loo[:0]) if found is None else found
        elif held_out == "folds" and gaps is None:
            loo = out_of_fold_scores(self, views, Y)
        elif held_out and gaps is not None:
            if held_out == "folds":
                loo, seen = out_of_fold_scores(self, views, Y, gaps=gaps), 1.0 * gaps.any_weight[:, None]
            has = seen[:, 0] > 0
            rows, loo = rows[has], loo[has] / seen[has]
        counts = None if gaps is None else gaps.decided(rows, Y.shape[1])
        # scores without label means would lose what weights of classes say
        intercept = self.intercept or self.class_weight is not None
        n_train = len(Y) if gaps is None else gaps.n_labeled
        powers = self.standardize, self.prior_power, self.propensity
        self.rule_ = ScoreRule.learn(frequency, n_train, loo, intercept, *powers, row_counts(counts))
        if self.decoder is not None or not self._skips_sets:
            self._learn_decoder(self.decoder, [loo], Y[rows], counts)

    def _fit_exact(self, views: Mapping[str, Rows], Y: np.ndarray, gaps: LabelGaps | None) -> None:
        n = len(Y)
        frequency = Y.mean(axis=0, dtype=np.float64) if gaps is None else gaps.frequency(Y)
        targets = Y - frequency if self.center else Y.astype(np.float64)
        engine = exact_engine(self.approximation_)
        kernels = self._kernels(list(views))
        ridges = self._ridges(list(views), list(kernels))
        storage = choose_storage(engine, n, len(kernels))
        by_folds = takes_folds(n, storage, kernels.values())
        held_out = self._held_out(gaps, by_folds)
        expansions: dict[str, Expansion] = {}
        whole = held_out != "left out" or self.standardize or self.decoder is not None
        some = None if whole else some_rows(n, storage == "memory")
        m = n if some is None else len(some)
        loo, seen = np.zeros((m, Y.shape[1])), np.zeros((m, 1))
        left_out = some if held_out == "left out" else np.arange(0)
        with stage("kernels and solves", len(kernels)) as advance:
            for name, kernel in kernels.items():
                weights = np.ones(n) if gaps is None else gaps.weights.of_views(list(kernel.kernels))
                if isinstance(ridges[name], np.ndarray):
                    part, left = self._fit_by_label(
                        engine, name, kernel, views, targets, ridges[name], storage, left_out
                    )
                    expansions |= part
                    if held_out == "left out":
                        loo += self._share(name) * left
                        seen += self._share(name)
                    advance(1)
                    continue
                view = fit_view(
                    engine,
                    name,
                    kernel,
                    views,
                    ridges[name],
                    self.center,
                    storage,
                    "auto",
                    self.random_state,
                    None if (held_out and some is None) or gaps is not None else targets.shape[1],
                    None if gaps is None else weights,
                    COEFFICIENTS,
                )
                own, mean = (
                    (targets, None) if gaps is None else gaps.completed(view.smoother, targets, weights, self.center)
                )
                found, share = view.coefficients(own), self._share(name)
                expansions |= shifted(view.expansions(share * found), None if mean is None else share * mean)
                if held_out == "left out":
                    out_of = None if gaps is None else gaps.weights.share_left_out(list(kernel.kernels))
                    left = view.leave_one_out(own, found, some, out_of) + (0.0 if mean is None else mean)
                    has = (weights > 0)[slice(None) if some is None else some, None]
                    loo += share * has * left
                    seen += share * has
                advance(1)
        self.expansions_: Mapping[str, Expansion] = expansions
        self._learn_rules(views, Y, frequency, loo, seen, gaps, some, by_folds)

    def _fit_by_label(
        self,
        engine: Exact,
        name: str,
        kernel: MultiKernel,
        views: Mapping[str, Rows],
        targets: np.ndarray,
        ridges: np.ndarray,
        storage: Storage,
        some: np.ndarray | None,
    ) -> tuple[dict[str, Expansion], np.ndarray]:
        """One kernel, factorized for every ridge in turn; the functions' shares, and left-out values of rows `some`."""
        groups = label_groups(ridges, targets.shape[1])
        sources = {view: views[view] for view in kernel.kernels}
        built = build(engine, kernel, sources, float(ridges.min()), storage, self.random_state)
        found, left = np.zeros((0, 0)), np.empty((len(targets) if some is None else len(some), targets.shape[1]))
        for c, columns in groups:
            view = view_of(name, built, sources, c, self.center, "auto", self.random_state, tol=COEFFICIENTS)
            own = targets[:, columns]
            part = view.coefficients(own)
            found = found if found.size else np.empty((len(part), targets.shape[1]))
            found[:, columns] = part
            if len(left):
                left[:, columns] = view.leave_one_out(own, part, some)
        # what a function is made of depends on the kernel alone, not on the ridge that gave its coefficients
        return view.expansions(self._share(name) * found), left

    def _fit_pass(self, done: LowRankPass) -> None:
        coefficients, offset, _ = self.fit_moments(done.total)
        first = next(iter(done.maps))
        self.expansions_ = {
            view: FactorExpansion.of(view, done.maps[view], B, offset if view == first else np.zeros_like(offset))
            for view, B in coefficients.items()
        }
        mean, deviation = np.zeros_like(offset), np.ones_like(offset)
        if self.standardize:
            held = [part.of_scores(*self.fit_moments(done.total - part)[:2]) for part in done.folds]
            mean, deviation = pooled(held)
        rule = self.intercept, self.standardize, self.prior_power, self.propensity
        self.rule_ = ScoreRule.of(done.frequency, done.total.n, mean, deviation, *rule)

    def _learn_from_pass(
        self, done: LowRankPass, views: Mapping[str, Rows], Y: np.ndarray, weights: np.ndarray | None = None
    ) -> None:
        if self._skips_sets and self.decoder is None:
            return
        some = rows_in_runs(len(Y)) if self.decoder is None else None
        counts, part = None, None
        if weights is not None:
            some = np.flatnonzero(weights) if some is None else some[weights[some] > 0]
            weights = weights[some]
            counts = np.broadcast_to(weights[:, None], (len(some), Y.shape[1]))
            part = SampleWeights({"all": weights}, weights).share_left_out(["all"])
        if some is not None:
            views, Y = {view: Subset(source, some) for view, source in views.items()}, Y[some]
        self._learn_decoder(self.decoder, [self._leave_one_out(done, views, Y, weights, part)], Y, counts)

    def _leave_one_out(
        self,
        done: LowRankPass,
        views: Mapping[str, Rows],
        Y: np.ndarray,
        counts: np.ndarray | None,
        part: np.ndarray | None,
    ) -> np.ndarray:
        """Scores of every training row by the regressions that have not seen it: one more pass over the rows.

        Rows count `counts` times (n; None: once), of which `part` is left out (n; None: all).
        """
        counts = counts if part is None or counts is None else counts * part
        total = done.total
        groups = [list(done.maps)] if self.combine == "kernels" else [[view] for view in done.maps]
        ridges = self._ridges(list(done.maps), ["all"] if self.combine == "kernels" else list(done.maps))
        scores = np.zeros(Y.shape)
        for group in groups:
            weights = {view: self.view_weights_[view] if self.combine == "kernels" else 1.0 for view in group}
            c = ridges["all" if self.combine == "kernels" else group[0]]
            B, offset = ridge(total, weights, c, self.center)
            share = 1.0 if self.combine == "kernels" else self.view_weights_[group[0]]
            scores += share * left_out_scores(total, done.maps, views, Y, weights, c, B, offset, self.center, counts)
        return scores

    def prepare_moments(self, moments: Moments, center: bool) -> Moments:
        """Prepare what the fits of all ridges share: the moments themselves."""
        return moments

    def fit_moments(self, moments: Moments, k: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray, None]:
        """Fit from moments, for a sweep.

        -> coefficients (rank of the view, L); offset (L,)
        """
        views = [view for view in moments.widths if view != LABELS]
        if self.combine == "product" or self.kernel == "product":
            raise UserError(
                "a product of kernels has no low-rank form; take combine='kernels', or approximation='exact'"
            )
        if not learns(self.weights):
            self.view_weights_ = given_weights(self.weights, views)
        elif not hasattr(self, "view_weights_"):  # in a sweep, where no fit has seen the samples
            raise UserError(f"weights = {self.weights!r} are not learned from moments; give numbers, or exact kernels")
        kernels = self._kernels(views)
        ridges = self._ridges(views, list(kernels))
        if self.combine == "kernels":
            coefficients, offset = ridge(moments, self.view_weights_, next(iter(ridges.values())), self.center)
            return coefficients, offset, None
        coefficients, total = {}, np.zeros(moments.widths[LABELS])
        for view in views:
            share = self.view_weights_[view]
            part, offset = ridge(moments, {view: 1.0}, ridges[view], self.center)
            coefficients[view], total = share * part[view], total + share * offset
        return coefficients, total, None

    def fit_together(self, moments: Moments, models: Sequence[MultiViewRidge], k: int) -> Iterator[SharedFit]:
        """Fit settings from moments, for a sweep."""
        for j, model in enumerate(models):
            coefficients, offset, _ = model.fit_moments(moments)
            yield SharedFit(coefficients, offset, [(j, None, None)])

    def swept_labels(self, views: Mapping[str, Rows], Y: np.ndarray, gaps: LabelGaps) -> np.ndarray:
        """Prepare labels of which some are unknown for the fits of all ridges: each solves for them itself.

        views (n, d); Y (n, L) -> (n, L)
        """
        return Y

    def exact_runner(
        self,
        old: Mapping[str, Rows],
        new: Mapping[str, Rows],
        Y: np.ndarray,
        components: Mapping[float | None, int],
        needs_loo: bool,
        gaps: LabelGaps | None = None,
        factorizations: float = 1.0,
    ) -> Callable[[MultiViewRidge], HeldOut]:
        """Make a function that fits settings on some rows and scores others, with kernels and factors shared.

        old (n, d); new (m, d); Y (n, L)
        """
        self._learn_weights(old, Y)
        kernels, weights = self._kernels(list(old)), np.ones(len(Y))
        shared = SharedViews(self, kernels, old, new, factorizations, SCORES)
        frequency = Y.mean(axis=0) if gaps is None else gaps.frequency(Y)

        def run(model: MultiViewRidge) -> HeldOut:
            targets = Y - frequency if model.center else Y
            model._distances, model.view_weights_ = self._distances, self.view_weights_
            values, loo = np.zeros((shared.n_new, Y.shape[1])), np.zeros(Y.shape)
            model._check_label_ridges(gaps)
            for name, ridges in model._ridges(list(old), list(kernels)).items():
                for c, columns in label_groups(ridges, Y.shape[1]):
                    view, share = shared.view(name, c, model.center), model._share(name)
                    own, mean = targets[:, columns], None
                    if gaps is not None:  # then one ridge serves all labels
                        own, mean = gaps.completed(view.smoother, targets, weights, model.center)
                    found = view.coefficients(own)
                    values[:, columns] += share * (view.predict(found) + (0.0 if mean is None else mean))
                    if needs_loo:
                        loo[:, columns] += share * view.leave_one_out(own, found)
            return HeldOut(components, frequency, values, None, loo if needs_loo else None, Y)

        return run

    @property
    def coef_(self) -> np.ndarray:
        """Of a linear model of one view, on its columns as given: L x d, 1 x d of two classes, (d) of a vector of numbers."""
        return self._linear_part()[0]

    @property
    def intercept_(self) -> np.ndarray:
        """What its scores are of a row of zeros."""
        return self._linear_part()[1]

    def _linear_part(self) -> tuple[np.ndarray, np.ndarray]:
        # hasattr has to say no, so that scikit-learn's selections of features look elsewhere
        widths: dict[str, int] = getattr(self, "view_widths_", {})
        kernels = [parse(spec) for spec in per_view("kernel", self.kernel, list(widths)).values()] if widths else []
        row_scaled = any(found.scale == "l2" for found in getattr(self, "preparations_", {}).values())
        if kernels != [Linear()] or row_scaled or not hasattr(self, "rule_"):
            raise AttributeError("only a fitted MultiViewRidge of one view with kernel='linear' has coefficients")
        (width,) = widths.values()
        values = self.decision_function if self.outputs_ is None else self.predict
        zero = np.asarray(values(np.zeros((1, width))))[0]
        steps = [
            np.asarray(values(np.eye(where.stop - where.start, width, where.start))) - zero
            for where in row_blocks(width, _COLUMNS)
        ]
        found = np.concatenate(steps).T
        return (np.atleast_2d(found), np.atleast_1d(zero)) if self.outputs_ is None else (found, zero)

    @property
    def is_exact(self) -> bool:
        """Whether the exact engine fits this estimator, as its `approximation` says (for "auto": once it is fitted)."""
        return is_exact(decided(self))

    @property
    def _takes_partial_views(self) -> bool:
        return self.combine == "predictions" and self.kernel != "product"

    def _share(self, regression: str) -> float:
        return self.view_weights_[regression] if self.combine == "predictions" and self.kernel != "product" else 1.0

    def _learn_weights(self, views: Mapping[str, Rows], Y: np.ndarray) -> None:
        """The distances and the weights of the views, for `_kernels`."""
        self._distances = named_distances(self.distances, views)
        if learns(self.weights):
            near = ViewDistances.fit(self._distances, views, self.random_state)
            self.view_weights_ = view_weights(self.weights, near, Y)
        else:
            self.view_weights_ = given_weights(self.weights, list(views))

    def _kernels(self, names: list[str]) -> dict[str, MultiKernel]:
        """One kernel per regression: a view's own, or one over all views."""
        if self.kernel == "product":
            return {"all": product_kernel(self._distances, self.view_weights_, self.gamma)}
        kernels = {view: parse(spec) for view, spec in per_view("kernel", self.kernel, names).items()}
        if self.combine == "predictions":
            return {view: MultiKernel.of(view, kernel) for view, kernel in kernels.items()}
        if len(names) == 1:
            return {names[0]: MultiKernel.of(names[0], kernels[names[0]])}
        how: Literal["sum", "product"] = "sum" if self.combine == "kernels" else "product"
        return {"all": MultiKernel(kernels, self.view_weights_, how)}

    @property
    def _ridge_by_label(self) -> bool:
        given = self.ridge
        own = (
            list(given.values())
            if isinstance(given, Mapping)
            else given
            if isinstance(given, (list, tuple))
            else [given]
        )
        return any(np.ndim(c) for c in own)

    def _check_label_ridges(self, gaps: LabelGaps | None) -> None:
        if gaps is not None and self._ridge_by_label:
            raise UserError("a ridge per label needs all labels and views of all samples, each once; give one for all")

    def _ridges(self, views: list[str], regressions: list[str]) -> dict[str, Any]:
        """Of every regression a number, or an array of one per label."""
        if regressions == views and self.kernel != "product":
            found = per_view("ridge", self.ridge, views, POSITIVES)
        elif isinstance(self.ridge, (Mapping, list, tuple)):
            raise UserError(f"one combined kernel takes one ridge, got {self.ridge!r}; pass a number")
        else:
            found = dict.fromkeys(regressions, check_parameter("ridge", self.ridge, POSITIVES))
        return {name: np.asarray(c, np.float64) if np.ndim(c) else c for name, c in found.items()}

    def _raw_scores(self, views: Mapping[str, Rows]) -> np.ndarray:
        return added(self.expansions_, views, self.view_weights_ if len(self.expansions_) > 1 else None)

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays, meta = store_expansions(self.expansions_)
        rule, rule_meta = self.rule_.to_arrays()
        meta |= {"rule": rule_meta, "multilabel": self.multilabel_, "view_weights": self.view_weights_}
        kept, kept_meta = self._pass_arrays()
        units, units_meta = self._outputs_arrays()
        decoding, decoding_meta = self._decoding_arrays()
        return arrays | with_prefix(
            "rule", rule
        ) | kept | decoding | units, meta | kept_meta | decoding_meta | units_meta

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        self.expansions_ = load_expansions(arrays, meta)
        self.multilabel_, self.view_weights_ = meta["multilabel"], dict(meta["view_weights"])
        self.rule_ = ScoreRule.from_arrays(without_prefix("rule", arrays), meta["rule"])
        self._restore_pass(arrays, meta)
        self._restore_decoding(arrays, meta)
