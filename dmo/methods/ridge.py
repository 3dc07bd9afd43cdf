"""Kernel ridge regression on many views: r-MLR and r-KMLR, the baselines of [KGHA]."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal, Self

import numpy as np

from dmo.blocks import Rows, Subset, row_blocks
from dmo.cluster import current_client
from dmo.decide.decoders import Scores, aside_samples
from dmo.decide.out_of_fold import (
    PASSED_ROWS,
    LeftOut,
    learned_columns,
    row_keys,
    rows_in_runs,
    some_rows,
    takes_folds,
    weight_of_copies,
)
from dmo.errors import UserError
from dmo.fit.engine import (
    FOLDS,
    LowRankPass,
    by_gradients,
    choose_engine,
    chooses_solver,
    decided,
    fit_maps,
    in_single,
    is_exact,
    pass_of,
)
from dmo.fit.exact import build, choose_storage, exact_engine, linear_expansions
from dmo.fit.fitted_views import EIGENPAIRS, Groups
from dmo.fit.functions import FactorExpansion, above, added, load_expansions, shifted, store_expansions
from dmo.fit.moments import LABELS, Moments, label_groups, pooled
from dmo.fit.ridge_solves import MomentSystem, PartialRidge, completed, is_precise, joined, ridge, solutions
from dmo.inputs import (
    FLAG,
    POSITIVE,
    POSITIVES,
    ClassWeight,
    Data,
    Inputs,
    Need,
    Outputs,
    Prepare,
    RowWeights,
    SampleWeights,
    Scales,
    check_parameter,
    one_of,
    per_view,
    picked,
    read_labels,
)
from dmo.inputs.outputs import Targets
from dmo.kernels import Linear, parse
from dmo.kernels.multikernel import MultiKernel
from dmo.kernels.product import ProductKernel, is_product
from dmo.linalg.factors import RowGram
from dmo.linalg.operators import Dense
from dmo.linalg.smoothers import leave_one_out
from dmo.linalg.solve import COEFFICIENTS, SCORES, CholeskySolver, SpectralSolver, Spectrum
from dmo.lowrank.approximations import Nystrom
from dmo.methods.annotator import Statistics
from dmo.methods.incremental import Incremental
from dmo.methods.landmark_ridge import landmark_regression
from dmo.methods.options import Decoder, Engine, KernelSpecs, LabelRidges, Weights
from dmo.methods.shared_fits import HeldOut, SharedFit, SharedFits
from dmo.methods.view_weights import (
    PER_TARGET,
    SEARCHED,
    KernelSearch,
    MomentSearch,
    given_weights,
    learns,
    product_kernel,
    target_weights,
    weighed_views,
)
from dmo.parameters import Part, parametrized
from dmo.progress import stage
from dmo.threads import single_blas

_TARGETS = "target_weights", "target_ridges", "target_importances"
_COLUMNS = 512  # number of features whose coefficients are computed at a time


@dataclass
class _Summed(LeftOut):
    """Leave-one-out scores of samples, averaged over the regressions of the views that contain a sample.

    `weight` is the total weight of the views of each sample, and `total` is the weighted sum of their scores.
    """

    weight: np.ndarray = field(default_factory=lambda: np.zeros(0))
    total: Any = 0.0

    def begin(self, rows: np.ndarray) -> None:
        """Set the weights and sums of the samples with the row indices `rows` to zero."""
        self.rows, self.weight, self.total = rows, np.zeros(len(rows)), 0.0

    def add(self, share: float, has: np.ndarray, scores: np.ndarray) -> None:
        """Add the scores of a regression with weight `share`; `has` marks the samples that its view contains."""
        self.weight[has] += share
        values = np.zeros((len(has), scores.shape[1]))
        values[has] = share * (scores if len(scores) == np.count_nonzero(has) else scores[has])
        self.total = self.total + values

    def end(self) -> Self:
        """Divide the sums by the weights, and drop the samples that no view contains."""
        if self.how == "known":
            some = self.weight > 0
            self.rows, self.scores = self.rows[some], [np.asarray(self.total[some] / self.weight[some, None])]
            self.total = 0.0
        return self


@parametrized
class MultiViewRidge(Incremental, SharedFits):
    r"""Kernel ridge regression of labels or regression targets on several views.

    The KGHA paper calls the method r-MLR with kernel="linear", and r-KMLR with other kernels. Either a single
    regression uses a kernel that combines the views, or one regression is fitted per view and the scores are averaged.

    Parameters
    ----------
    kernel : str, Kernel, ProductKernel, mapping of view to kernel, or list, default="rbf"
        Kernel of all views, or one kernel per view; see `dmo.kernels.parse`. A `ProductKernel` is
        exp(-gamma sum_v w_v d_v), where d_v is the distance in view v divided by its mean over the training samples.
        "product" is a product kernel with the parameters `distances`, `gamma` and `weights` of the estimator.
    ridge : float, mapping of view to float, or list, default=0.01
        Ridge c of each view, above 0. Larger values shrink the coefficients more. A combined kernel has a single ridge.
        Instead of a number, an array of shape (L,) sets one ridge per label, which requires all labels and views of all
        samples. Labels with the same ridge share a factorization.
    combine : {"predictions", "kernels", "product"}, default="predictions"
        Rule that combines the views. "predictions" averages the predictions of the views, as in the paper, "kernels"
        averages their kernels, and "product" uses the geometric mean of their kernels.
    weights : mapping of view to float, list, {"equal", "tagprop", "alignment", "per-target"} or None, default=None
        Weights of the views, which are scaled to sum 1. None uses equal weights. "tagprop" and "alignment" learn the
        weights from the distances of the samples (`distances`). "tagprop" maximizes the likelihood of the labels of
        each training sample given its neighbors [Guillaumin et al. 2009]. "alignment" maximizes the alignment of the
        sum of distances with the labels [Cortes et al. 2012]. "per-target" selects kernel weights and a ridge, which
        replaces `ridge`, for each label or target from 60 to 180 candidates, as in banded ridge regression [la Tour et
        al. 2022]. Exact kernels minimize the leave-one-out squared error of at most 1500 samples, and low-rank kernels
        use generalized cross-validation over all samples. Neither criterion leaves out runs of samples that are
        consecutive in time.
    center : bool, default=True
        Whether to center kernels and labels by their means over the training samples.
    intercept : bool, default=False
        Whether to add the mean of each label to its scores.
    %(distances)s
    gamma : float, default=2.0
        Factor gamma of kernel="product", above 0. A `ProductKernel` has its own gamma, distances and weights.
    decoder : Calibration, PlugIn, PooledCalibration, Scores, str or None, default=None
        Decoder that ranks labels. It is learned from leave-one-out scores of all training samples. Out-of-fold scores
        replace them if single labels are unknown or weighted, if columns are imputed or scaled, or if kernels of more
        than 2048 samples are stored in tiles. With None, labels are ranked by their scores, as described in `Scores`.
        Label sets of low-rank kernels are learned by reading up to 4096 rows again.
    %(approximation)s
    %(random_state)s
    %(prepare)s
    %(targets)s
    class_weight : {"balanced"}, dict of class or label to float, or None, default=None
        Factors on the weights of samples. For a vector of classes, a factor applies to all samples of a class, and
        "balanced" is inversely proportional to the class frequency. For a matrix of labels, a factor applies to samples
        with the label in the regression of this label, and "balanced" gives samples with the label the same total
        weight as samples without it. Scores then contain the label means, as with `intercept`. Bandwidths, scales and
        decoders are learned without class weights.

    Attributes
    ----------
    expansions_ : dict of str to Expansion
        Fitted functions of the views. The raw scores of a sample are the sum of their values.
    view_weights_ : dict of str to float
        Weights of the views, with sum 1. With weights="per-target", the weights are averaged over the targets.
    target_weights_ : ndarray of shape (L, V)
        Weights of the views for each label or target, with sum 1, if weights="per-target". The attribute
        `target_ridges_` contains the ridge of each target.
    target_importances_ : ndarray of shape (L, V)
        Fraction of the variance of each fitted function that each view contributes on the training samples, with sum 1.
        The fraction is negative for a view that compensates for other views.
    rule_ : ScoreRule
        Rule that converts raw scores to the scores by which labels are ranked.
    held_out_scores_ : ndarray of shape (n, L)
        Leave-one-out or out-of-fold scores of the training samples, if a decoder is learned.
    classes_ : ndarray of shape (L,)
        Class labels or label names.
    coef_ : ndarray of shape (L, d), (1, d) or (d,)
        Coefficients of the features for a single view with kernel="linear"; the intercept is `intercept_`.

    Notes
    -----
    The scores of a new sample x are

    .. math:: f(x) = K(x) (K + c I)^{-1} Y,

    where K is the kernel matrix of the training samples, K(x) is the row of kernel values between x and the training
    samples, c is the ridge, and Y is the label matrix.

    References
    ----------
    Xiong, Szedmak, Piater 2014, section 5 (r-MLR, r-KMLR).
    Guillaumin, Mensink, Verbeek, Schmid 2009 (weights "tagprop").
    Cortes, Mohri, Rostamizadeh 2012 (weights "alignment").
    la Tour, Eickenberg, Nunez-Elizalde, Gallant 2022, NeuroImage 264 (banded ridge; weights "per-target").

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from dmo import MultiViewRidge
    >>> X, Y = make_multilabel_classification(n_samples=200, n_classes=5, random_state=0)
    >>> views = {"words": X[:, :10], "shapes": X[:, 10:]}
    >>> model = MultiViewRidge("rbf", ridge=1.0, decoder="f1@2").fit(views, Y)
    >>> model.decision_function(views).shape
    (200, 5)
    >>> model.predict(views, top=2).sum(axis=1)[:3].tolist()
    [2, 2, 2]
    """

    _centers = True
    _weighs_labels = True
    _by_scores = Part(Scores, "decoder")
    _lacks_rows = True
    _given_by_target: ClassVar[tuple[np.ndarray, np.ndarray] | None] = None  # weights and ridges from another fit
    _weight_detail = "entry"
    _needs: ClassVar[dict[str, Need]] = {
        "combine": one_of("predictions", "kernels", "product"),
        "center": FLAG,
        "intercept": FLAG,
        "gamma": POSITIVE,
        "targets": one_of("auto", "labels", "real"),
    }

    kernel: KernelSpecs | ProductKernel | Literal["product"] = "rbf"
    _: KW_ONLY
    ridge: LabelRidges = 1e-2
    combine: Literal["predictions", "kernels", "product"] = "predictions"
    weights: Weights | Literal["per-target"] = None
    center: bool = True
    intercept: bool = False
    distances: str | Mapping[str, str] = "auto"
    gamma: float = 2.0
    decoder: Decoder = None
    approximation: Engine = "auto"
    random_state: int | None = 0
    prepare: Prepare | Scales = "auto"
    targets: Targets = "auto"
    class_weight: ClassWeight = None

    def fit(self, X: Inputs, y: Outputs, sample_weight: RowWeights = None) -> Self:
        """Fit the ridge regressions of all labels or targets.

        Each label is learned from the samples for which it is known, and each view from the samples that it contains.

        Parameters
        ----------
        %(X_gaps)s
        y : array-like of shape (n, L) or (n,)
            Labels of 0 and 1, n classes, n lists of labels, or regression targets; see `targets`. Entries of a matrix
            that are NaN, None or masked are unknown. For a sparse matrix of more than 4096 labels, the fit does not
            learn probabilities.
        sample_weight : array-like of shape (n,), mapping of view to such, or None, default=None
            Weights of the samples, or one array of weights per view, with 0 for samples that the view does not contain.
            The entry "labels" of a mapping may have the shape (n, L) and then contains an additional factor for each
            label of a sample, with 0 for unknown labels. Landmarks are drawn with equal probability from all samples of
            positive weight. A sample with an integer weight stands for repeated rows, of which leave-one-out scores
            omit one. A sample with another weight is omitted entirely. Scale weights that are not counts to at most 1.

        Returns
        -------
        MultiViewRidge
            This estimator, fitted.

        Raises
        ------
        UserError
            If parameters, views, labels or weights are invalid or inconsistent.
        """
        return self._fit(X, y, sample_weight)

    @property
    def _most_held_out(self) -> int:
        return PASSED_ROWS

    @property
    def _product(self) -> ProductKernel:
        """Product kernel with its distances, weights and gamma, from `kernel` or from the other parameters."""
        given = self.kernel
        return given if isinstance(given, ProductKernel) else ProductKernel(self.distances, self.gamma, self.weights)  # type: ignore[arg-type]

    def _begin(self) -> None:
        if isinstance(self.kernel, ProductKernel):
            check_parameter("gamma", self.kernel.gamma, POSITIVE)
            for name, default in (("distances", "auto"), ("gamma", 2.0), ("weights", None)):
                if (value := getattr(self, name)) is not default and value != default:
                    raise UserError(
                        f"{name} = {value!r} was passed with kernel=ProductKernel(...); pass ProductKernel({name}=...)"
                    )

    def _read(self, views: Mapping[str, Rows], y: Any, weights: SampleWeights | None) -> Data:
        learned = learns(self._product.weights) or self._by_target
        dense = {
            "learning weights": learned,
            "a ridge per label": self._ridge_by_label,
            "a product of kernels": is_product(self.kernel) or self.combine == "product",
        }
        data = read_labels(self, views, y, weights, dense)
        self._check_label_ridges(data)
        if learned and not (data.complete and self.class_weight is None):
            raise UserError(
                f"weights={self._product.weights!r} does not support missing labels, missing views, sample_weight and "
                "class_weight; pass weights as numbers"
            )
        return data

    def _learn(self, data: Data) -> LeftOut:
        self._learn_weights(data.views, data.Y)
        self.approximation_ = self._choose_engine(data)
        if self.is_exact:
            return self._learn_exact(data.held())
        return self._learn_gradients(data) if self._takes_gradients(data) else self._learn_moments(data)

    def _choose_engine(self, data: Data) -> Any:
        views, Y = data.views, data.Y
        names = list(views)
        if not data.many:
            return choose_engine(self.approximation, len(Y), len(self._kernels(names)), self.kernel)
        kernels = per_view("kernel", self.kernel, names).values()
        linear = all(isinstance(parse(kernel), Linear) for kernel in kernels)
        if linear and (self.approximation == "auto" or is_exact(self.approximation)):
            return Nystrom(rank=max(source.shape[1] for source in views.values()))  # This rank keeps all features.
        engine = choose_engine(self.approximation, Y.shape[0], len(names))
        if is_exact(engine):
            raise UserError(
                f"an exact kernel of {Y.shape[0]} samples with {Y.shape[1]} labels has too many coefficients; use "
                "approximation=Nystrom(...) or kernel='linear'"
            )
        return engine

    def _learn_moments(self, data: Data) -> LeftOut:
        """Fit all regressions from moments; weights and missing entries need one pass per regression."""
        views, Y = data.views, data.Y
        left = _Summed("" if data.many else self._held_out(data))
        with single_blas():
            if data.complete and not data.many:
                folds = FOLDS if self._by_scores.standardize and left.how == "known" else 1
                maps = fit_maps(self.approximation_, self.kernel, views, self.random_state, self.center)
                if self._by_target:
                    done = pass_of(maps, views, Y, folds, self.random_state)
                    self._learn_by_target(done.total)
                else:
                    how = folds, self.random_state
                    done = in_single(
                        maps,
                        views,
                        lambda own: pass_of(own, views, Y, *how, squares=False),
                        lambda found: self._is_precise(found.total),
                    )
                    done = replace(done, maps=maps)
                fitted, left.statistics = self._of_pass(done), self._statistics(done) if folds > 1 else None
            else:
                fitted = self._of_rows(data)
            if left.how == "known":
                whole = self._decoder is not None or (self._by_scores.standardize and left.statistics is None)
                left.begin(np.arange(data.n) if whole else self._deciding_rows(data))
            self._learn_functions(fitted, left, data)
        return left.end()

    def _deciding_rows(self, data: Data) -> np.ndarray:
        """Return indices of the rows whose leave-one-out scores determine label sets if there is no decoder."""
        some = rows_in_runs(data.n)
        rows = np.arange(data.n) if some is None else some
        return rows[aside_samples(data.Y[rows], data.decided(rows), row_keys(self, data, rows))]

    def _learn_functions(self, fitted: Iterable[tuple[PartialRidge, float]], left: _Summed, data: Data) -> None:
        """Store the functions of all regressions, and compute the leave-one-out scores that `left` requires."""
        self.expansions_ = {}
        views, Y = data.views, data.Y
        wanted = left.how == "known" and (left.statistics is None or self._decides)
        keys = row_keys(self, data, left.rows) if wanted else left.rows
        for regression, share in fitted:
            if wanted:
                names = list(regression.shares)
                weights = data.weights.of_views(names)[left.rows]
                has = weights > 0
                own, out = left.rows[has], weight_of_copies(keys[has], weights[has])
                sources, labels = views, Y
                if len(own) < Y.shape[0]:
                    sources, labels = {view: Subset(views[view], own) for view in names}, picked(Y, own)
                left.add(share, has, regression.left_out(sources, labels, out))
            self.expansions_ |= regression.expansions(share)

    def _is_precise(self, moments: Moments) -> bool:
        names = [view for view in moments.widths if view != LABELS]
        return all(is_precise(moments, shares, c, self.center) for shares, c, _ in self._regressions(names))

    def _of_pass(self, done: LowRankPass) -> Iterator[tuple[PartialRidge, float]]:
        """Yield each regression with its weight, from the moments of a pass over all views."""
        for shares, c, share in self._regressions(list(done.maps)):
            found = PartialRidge.of(done.total, done.maps, shares, c, self.center, done.frequency)
            if self._by_target:
                B = np.concatenate(list(found.coefficients.values()))
                gram = MomentSystem.of(done.total, dict.fromkeys(done.maps, 1.0), self.center).gram
                starts = [0, *np.cumsum([len(part) for part in found.coefficients.values()])[:-1]]
                products = np.add.reduceat(B * (gram @ B), starts)
                self._tell_by_target(list(done.maps), self.target_weights_, self.target_ridges_, products)
            yield found, share

    def _of_rows(self, data: Data) -> Iterator[tuple[PartialRidge, float]]:
        """Yield each regression with its weight, after a pass over the rows of its views."""
        views = data.views
        kernels, engines = (per_view(name, getattr(self, name), list(views)) for name in ("kernel", "approximation_"))
        for shares, c, share in self._regressions(list(views)):
            weights = data.weights.of_views(list(shares))
            index = np.flatnonzero(weights)
            sources = {view: Subset(views[view], index) for view in shares}
            own = {view: engines[view] for view in shares}, {view: kernels[view] for view in shares}
            often = dict.fromkeys(shares, data.weights.plain.of_views(list(shares))[index])
            maps = fit_maps(*own, sources, self.random_state, self.center, often)
            counts = None if data.counts is None else picked(data.counts, index)
            given = counts, weights[index], shares, c, self.center, data.frequency
            yield PartialRidge.fit(maps, sources, picked(data.Y, index), *given), share

    def _regressions(self, names: list[str]) -> list[tuple[Mapping[str, Any], Any, float]]:
        """Return the kernel weights, the ridge and the weight of each regression."""
        if self.combine == "product" or is_product(self.kernel):
            raise UserError(
                "a product of kernels has no low-rank form; use combine='kernels', or approximation='exact'"
            )
        if self._by_target:
            return [(dict(zip(names, self.target_weights_.T, strict=True)), self.target_ridges_, 1.0)]
        if not learns(self._product.weights):
            self.view_weights_ = given_weights(self._product.weights, names)
        elif not hasattr(self, "view_weights_"):  # Within a search, no fit has learned the view weights yet.
            raise UserError(
                f"weights = {self._product.weights!r} cannot be learned from moments; pass numbers, or use "
                "approximation='exact'"
            )
        ridges = self._ridges(names, list(self._kernels(names)))
        if self.combine == "kernels":
            return [(self.view_weights_, next(iter(ridges.values())), 1.0)]
        return [({view: 1.0}, ridges[view], self.view_weights_[view]) for view in names]

    def _by_gradients(self, names: list[str]) -> bool:
        """Whether the approximations request a solver that works on kernel values at landmarks, without factor rows."""
        asked = {by_gradients(own) for own in per_view("approximation", self.approximation_, names).values()}
        if len(asked) > 1:
            raise UserError(
                "some views have an approximation with solver='cg', others without; pass the same solver for all views"
            )
        return True in asked

    def _takes_gradients(self, data: Data) -> bool:
        """Whether to solve without factor rows, on request or because no parameter needs their moments."""
        names = list(data.views)
        engines = per_view("approximation", self.approximation_, names)
        kernels = per_view("kernel", self.kernel, names)
        return not data.many and (
            self._by_gradients(names)
            or (
                all(chooses_solver(own) for own in engines.values())
                and not self._by_target
                and not any(isinstance(parse(own), Linear) for own in kernels.values())
                and (self.combine == "predictions" or len(names) == 1)
                and data.complete
                and self._skips_sets
                and not (self._ridge_by_label or self._by_scores.standardize or self._decoder is not None)
                and current_client() is None
            )
        )

    def _learn_gradients(self, data: Data) -> LeftOut:
        """Fit one regression per view on kernel values at the landmarks of the view."""
        views, names = data.views, list(data.views)
        if self._by_target:
            raise UserError(
                "weights='per-target' needs factor rows, which solver='cg' does not compute; use "
                "Nystrom(solver='direct')"
            )
        if not data.complete or self._ridge_by_label or (self.combine != "predictions" and len(names) > 1):
            raise UserError(
                "solver='cg' does not support missing labels, missing views, sample_weight, a ridge per label and "
                "combine='kernels'; use Nystrom(solver='direct')"
            )
        kernels = per_view("kernel", self.kernel, names)
        engines = per_view("approximation", self.approximation_, names)
        self.expansions_ = {}
        for view, c in self._ridges(names, names).items():
            values = engines[view].landmark_map(kernels[view], views[view], self.random_state)
            choose = chooses_solver(engines[view])
            found, B, offset = landmark_regression(values, views[view], data.Y, c, self.center, choose)
            share = self.view_weights_[view]
            self.expansions_[view] = FactorExpansion.of(view, found, share * B, share * offset)
        return LeftOut(self._held_out(data))

    def _held_out(self, data: Data, takes_folds: bool = False) -> Literal["known", "folds", "part", ""]:
        """Return how out-of-fold or leave-one-out scores are computed, as described in `LeftOut`."""
        needed = self._by_scores.standardize or self._decoder is not None
        if not (needed or self._decides):
            return ""
        # Leave-one-out scores have a closed form if all labels of a sample are left out together, and if column scales
        # were not learned from the sample.
        if needed and takes_folds:
            return "folds"
        # Without kernels in memory, the leverages of each combination of weights and ridge need a factorization, and
        # there can be as many combinations as targets.
        dear = not self.is_exact and (self._by_target or self._by_gradients(list(self.view_weights_)))
        if data.counts is None and not dear and not learned_columns(self):
            return "known"
        return "folds" if needed else "part"

    def _learn_exact(self, data: Data, how: Literal["known", ""] | None = None) -> LeftOut:
        """Fit from exact kernels; `how` is described in `LeftOut`, and None computes the scores that decisions need."""
        if self._by_target:
            return self._learn_each_target(data, how)
        n, names = data.n, list(data.views)
        targets = data.Y - data.frequency if self.center else data.Y.astype(np.float64)
        kernels = self._kernels(names)
        ridges, engine = self._ridges(names, list(kernels)), exact_engine(self.approximation_)
        storage = choose_storage(engine, n, len(kernels))
        left = _Summed(self._held_out(data, takes_folds(n, storage, kernels.values())) if how is None else how)
        whole = how is not None or left.how != "known" or self._by_scores.standardize or self._decoder is not None
        keys = row_keys(self, data, np.arange(n)) if how is None and left.how == "known" else None
        some = None if whole or keys is None else some_rows(keys, storage == "memory")
        if left.how == "known":
            left.begin(np.arange(n) if some is None else some)
        counted = data.complete and not self._ridge_by_label and (some is not None or not left.how)
        columns = targets.shape[1] if counted else None
        own = {"tol": SCORES if self._only_scores else COEFFICIENTS, "columns": columns, "last": some}
        engine = replace(engine, storage=storage)  # Choose and log the storage only once.
        groups = Groups(engine, kernels, ridges, data, self.center, self.random_state, **own)  # type: ignore[arg-type]
        self.expansions_ = {}
        with stage("kernels and solves", len(kernels)) as advance:
            for name in kernels:
                self._learn_group(groups, name, targets, left, keys)
                advance(1)
        return left.end()

    def _learn_group(
        self, groups: Groups, name: str, targets: np.ndarray, left: _Summed, keys: np.ndarray | None
    ) -> None:
        """Fit the functions of one kernel for all its ridges, and add their leave-one-out scores to `left`.

        `keys` identify copies of a sample, which are left out together. Without keys, single rows are left out.
        """
        weights, share, wanted = groups.weights(name), self._share(name), left.how == "known"
        part = None
        if keys is not None:
            part = np.divide(weight_of_copies(keys, weights), weights, out=np.ones(len(weights)), where=weights > 0)
        n_labels, duals, scores = targets.shape[1], [], []
        complete = partial(completed, groups.data, weights=weights, center=self.center)
        for labels, view, full, mean, dual in solutions(groups.fitted(name, n_labels), targets, complete):
            duals.append((labels, dual))
            if wanted:
                values = view.left_out(full, dual, groups.last, part)
                scores.append((labels, values if mean is None else values + mean))
        # The form of the function depends on the kernel, but not on the ridge.
        found = view.expansions(share * joined(duals, n_labels))
        self.expansions_ = {**self.expansions_, **shifted(found, None if mean is None else share * mean)}
        if wanted:
            left.add(share, weights[left.rows] > 0, joined(scores, n_labels))

    def _learn_each_target(self, data: Data, how: Literal["known", ""] | None) -> LeftOut:
        """Fit each target with its own kernel weights and ridge."""
        self._check_by_target(data.complete)
        views, n, engine = data.views, data.n, replace(exact_engine(self.approximation_), precision="float64")
        if choose_storage(engine, n, len(views), 8) != "memory":
            raise UserError(
                f"weights='per-target' needs exact kernels of {n} rows in memory; use Exact(storage='memory') if they "
                "fit, or Nystrom()"
            )
        targets = data.Y - data.frequency if self.center else data.Y.astype(np.float64)
        kernels = {
            view: MultiKernel.of(view, parse(own)) for view, own in per_view("kernel", self.kernel, list(views)).items()
        }
        built = {view: build(engine, own, views, np.inf, "memory", self.random_state) for view, own in kernels.items()}
        placed = {view: own.placed(self.center) for view, own in built.items()}
        matrices = np.stack([operator.dense() for operator in placed.values()])
        weights, ridges = self._search_by_target(matrices, targets)
        left = LeftOut(self._held_out(data) if how is None else how)
        dual, loo = np.empty(targets.shape), np.empty(targets.shape)
        candidates, which = np.unique(weights, axis=0, return_inverse=True)
        for i, own_weights in enumerate(candidates):
            own = np.flatnonzero(which.ravel() == i)
            A, groups = Dense(np.tensordot(own_weights, matrices, 1)), label_groups(ridges[own], len(own))
            pairs = Spectrum(A) if len(groups) > EIGENPAIRS else None
            for c, part in groups:
                columns = own[part]
                solver = CholeskySolver(A, c) if pairs is None else SpectralSolver(A, c, pairs)
                dual[:, columns] = solver.solve(targets[:, columns], check=False).value
                if left.how == "known":
                    unfitted = c * solver.inverse_diagonal() - (1 / n if self.center else 0.0)
                    loo[:, columns] = leave_one_out(targets[:, columns], c * dual[:, columns], unfitted)
        self.expansions_, parts = {}, []
        for j, (view, operator) in enumerate(placed.items()):
            own_dual = weights[:, j] * dual
            parts.append(matrices[j] @ own_dual)
            if isinstance(operator, RowGram):
                loadings, offset = operator.factor.t_dot(own_dual), np.zeros(len(ridges))
                self.expansions_ |= linear_expansions(kernels[view], views, operator.factor, loadings, offset)
            else:
                self.expansions_[view] = built[view].expansion({view: views[view]}, operator, own_dual)
        whole = np.sum(parts, axis=0)
        self._tell_by_target(list(views), weights, ridges, np.array([(part * whole).sum(axis=0) for part in parts]))
        return LeftOut("known", np.arange(n), [loo]) if left.how == "known" else left

    def _search_by_target(self, matrices: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Select kernel weights, of shape (L, V), and a ridge for each target, from all samples or a random subset."""
        if self._given_by_target:
            return self._given_by_target
        n = len(targets)
        if n > SEARCHED:
            some = np.sort(np.random.default_rng(self.random_state).choice(n, SEARCHED, replace=False))
            matrices, targets = matrices[:, some[:, None], some], targets[some]
            if self.center:
                matrices = np.stack([Dense(K).centered().dense() for K in matrices])
                targets = targets - targets.mean(axis=0)
        return target_weights(KernelSearch.of(matrices, targets, self.center), self.random_state)

    def _learn_by_target(self, moments: Moments) -> None:
        """Select kernel weights and a ridge for each target from moments."""
        if self._by_target:
            self._check_by_target()
            found = self._given_by_target or target_weights(MomentSearch.of(moments, self.center), self.random_state)
            self.target_weights_, self.target_ridges_ = found

    def _check_by_target(self, complete: bool = True) -> None:
        if not complete or is_product(self.kernel) or self.combine == "product":
            raise UserError(
                "weights='per-target' does not support missing labels, missing views, sample_weight and products of "
                "kernels; pass weights as numbers, or combine='kernels'"
            )

    def _tell_by_target(self, views: list[str], weights: np.ndarray, ridges: np.ndarray, products: np.ndarray) -> None:
        """Store weights, ridges and importances of the views for each target.

        `products` are inner products of the part of each view with the whole function.
        """
        length = products.sum(axis=0)
        shares = np.divide(products, length, where=length > 0, out=weights.T.copy())
        self.target_weights_, self.target_ridges_, self.target_importances_ = weights, ridges, shares.T
        self.view_weights_ = dict(zip(views, weights.mean(axis=0).tolist(), strict=True))

    def _fit_pass(self, done: LowRankPass) -> None:
        self._learn_by_target(done.total)
        self._learn_rule(done.frequency, done.total.n, self._statistics(done) if self._by_scores.standardize else None)
        self.expansions_ = {}
        for regression, share in self._of_pass(done):
            self.expansions_ |= regression.expansions(share)

    def _statistics(self, done: LowRankPass) -> Statistics:
        """Compute the means and standard deviations of out-of-fold scores."""
        return pooled([part.of_scores(*self._solve(done.total - part)) for part in done.folds])

    def _learn_from_pass(self, done: LowRankPass, data: Data) -> None:
        if not self._decides:
            return
        if self._by_target:
            raise UserError(
                "label sets with weights='per-target' need fits on parts of all samples; use fit, or "
                "decoder=Scores(label_sets=False)"
            )
        rows = self._deciding_rows(data)
        left = _Summed("known")
        left.begin(rows[data.weights.labels[rows] > 0])
        self._learn_functions(self._of_pass(done), left, data)
        left.end()
        if left.scores is not None:
            keys = row_keys(self, data, left.rows)
            self._learn_decoder(None, left.scores, data.Y[left.rows], data.decided(left.rows), keys)

    def _solve(self, moments: Moments) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Compute the coefficients of each view and the offset, for the sum of all regressions, from moments."""
        coefficients: dict[str, np.ndarray] = {}
        total = np.zeros(moments.widths[LABELS])
        for shares, c, share in self._regressions([view for view in moments.widths if view != LABELS]):
            part, offset = ridge(moments, shares, c, self.center)
            coefficients |= {view: share * B for view, B in part.items()}
            total += share * offset
        return coefficients, total

    def _fit_together(
        self, moments: Moments, center: bool, models: Sequence[MultiViewRidge], k: int
    ) -> Iterator[SharedFit]:
        """Fit all candidates of a hyperparameter search from the same moments."""
        for j, model in enumerate(models):
            model._learn_by_target(moments)
            yield SharedFit(*model._solve(moments), [(j, None, None)])

    def _held_out_fit(
        self,
        data: Data,
        new: Mapping[str, Rows],
        components: Mapping[float | None, int],
        needs_loo: bool,
    ) -> HeldOut:
        """Fit the estimator on `data`, and score the rows `new`."""
        self._check_label_ridges(data)
        left = self._learn_exact(data, "known" if needs_loo else "")
        loo = left.scores[0] if left.scores else None  # The scores cover all rows, because no view has missing samples.
        return HeldOut(components, data.frequency, self._raw_scores(new), None, loo, data.Y)

    @property
    def coef_(self) -> np.ndarray:
        """Coefficients of a linear model of one view: (L, d), (1, d) for two classes, or (d,) for a single target."""
        return self._linear_part()[0]

    @property
    def intercept_(self) -> np.ndarray:
        """Scores or predictions of a sample whose features are all 0."""
        return self._linear_part()[1]

    def _linear_part(self) -> tuple[np.ndarray, np.ndarray]:
        # Feature selectors in scikit-learn test with hasattr whether a model has coefficients, so raise AttributeError.
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
        """Whether exact kernels are used. With approximation="auto", the choice is known only after `fit`."""
        return is_exact(decided(self))

    @property
    def _takes_partial_views(self) -> bool:
        return self.combine == "predictions" and not is_product(self.kernel) and not self._by_target

    @property
    def _by_target(self) -> bool:
        return isinstance(self.weights, str) and self.weights == PER_TARGET

    def _share(self, regression: str) -> float:
        return self.view_weights_[regression] if self.combine == "predictions" and not is_product(self.kernel) else 1.0

    def _learn_weights(self, views: Mapping[str, Rows], Y: np.ndarray) -> None:
        """Learn the distances and weights of the views."""
        given = replace(self._product, weights=None) if self._by_target else self._product
        self._distances, self.view_weights_ = weighed_views(given, views, Y, self.random_state)

    def _kernels(self, names: list[str]) -> dict[str, MultiKernel]:
        """Return one kernel per view, or a combined kernel of all views."""
        if is_product(self.kernel):
            return {"all": product_kernel(self._distances, self.view_weights_, self._product.gamma)}
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

    def _check_label_ridges(self, data: Data) -> None:
        if self._ridge_by_label and not (data.complete and self.class_weight is None):
            raise UserError(
                "a ridge per label does not support missing labels, missing views, sample_weight and class_weight; "
                "pass one number"
            )

    def _ridges(self, views: list[str], regressions: list[str]) -> dict[str, Any]:
        """Return the ridge of each regression: a number, or one ridge per label."""
        if regressions == views and not is_product(self.kernel):
            found = per_view("ridge", self.ridge, views, POSITIVES)
        elif isinstance(self.ridge, (Mapping, list, tuple)):
            raise UserError(f"one combined kernel needs a single ridge, got {self.ridge!r}; pass a number")
        else:
            found = dict.fromkeys(regressions, check_parameter("ridge", self.ridge, POSITIVES))
        return {name: np.asarray(c, np.float64) if np.ndim(c) else c for name, c in found.items()}

    def _raw_scores(self, views: Mapping[str, Rows]) -> np.ndarray:
        return added(self.expansions_, views, self.view_weights_ if len(self.expansions_) > 1 else None)

    def _above(self, views: Mapping[str, Rows], thresholds: np.ndarray) -> np.ndarray:
        found = above(self.expansions_, views, thresholds)
        return super()._above(views, thresholds) if found is None else found

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays, meta = store_expansions(self.expansions_)
        kept, kept_meta = self._pass_arrays()
        kept |= {name: getattr(self, f"{name}_") for name in _TARGETS if self._by_target}
        return arrays | kept, meta | {"view_weights": self.view_weights_} | kept_meta

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        self.expansions_ = load_expansions(arrays, meta)
        self.view_weights_ = dict(meta["view_weights"])
        for name in _TARGETS if self._by_target else ():
            setattr(self, f"{name}_", np.asarray(arrays[name]))
        self._restore_pass(arrays, meta)
