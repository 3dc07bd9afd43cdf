"""Support vector regression with dependent outputs: base class, and regression with a matrix-valued kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from dmo.blocks import Rows, Subset
from dmo.decide.decoders import Scores
from dmo.errors import TooFewSamples, UserError
from dmo.fit.engine import fit_maps, is_exact
from dmo.fit.exact import build, choose_storage, exact_engine, linear_rows
from dmo.fit.factor_groups import FactorProducts
from dmo.fit.fitted_views import DualView, KernelProducts, ViewOperator
from dmo.fit.functions import KernelFunction, load_expansions, shifted, store_expansions
from dmo.inputs import (
    POSITIVE,
    ClassWeight,
    Data,
    Inputs,
    Need,
    Outputs,
    Prepare,
    SampleWeights,
    Scales,
    as_views,
    check_outputs,
    check_parameter,
    check_parameters,
    check_partial_labels,
    densified,
    is_label_sets,
    one_of,
    per_view,
    sample_count,
    warn_of_outputs,
    with_unknown,
)
from dmo.inputs.outputs import RealOutputs, refuse_for_real
from dmo.kernels import parse
from dmo.kernels.multikernel import MultiKernel
from dmo.linalg.factors import RowGram
from dmo.linalg.solve import SolveMethod
from dmo.linalg.tiles import Tiles
from dmo.methods.annotator import Annotator
from dmo.methods.filling import complete_labels
from dmo.methods.options import Decoder, GivenEngine, KernelSpecs
from dmo.methods.svr_admm import EPSILON_INSENSITIVE, AdmmFit, Factors, LossName, Problem, State, admm, loss_named
from dmo.parameters import Part, parametrized
from dmo.persistence import without_prefix

_DOUBLE = 8192  # largest number of rows for which a kernel in memory is always float64
_RIDGE = 1.0 / 64  # smallest ridge 1 / rho that the solver is expected to use, for C = 1


NUMBERS = ("objective_", "dual_objective_", "gap_", "n_iter_", "n_factorizations_", "n_support_")
"""Fitted attributes that are saved with a model as numbers."""


_OF_DATA = (
    *("view_widths_", "view_feature_names_", "table_schemas_", "n_features_in_", "feature_names_in_", "preparations_"),
    *("outputs_", "rule_", "classes_", "multilabel_", "label_names_", "label_dtype_", "frame_ranks_", "coupling_"),
)
"""Attributes that all models of a path share, because they depend only on the data."""


class OutputSVR(Annotator):
    """Base class of `LLTSVR` and `CoupledSVR`, which reads outputs, calls the solver and saves models.

    Subclasses implement `_structure`, which defines how the outputs depend on each other.
    """

    _needs: ClassVar[dict[str, Need]] = {
        "C": POSITIVE,
        "target_scale": one_of("auto", "standard", "none"),
    }

    kernel: Any
    C: float
    epsilon: float
    loss: str
    tol: float
    max_iter: int
    approximation: Any
    random_state: int | None
    target_scale: str
    decoder: Decoder
    _search = "machines"
    _weight_detail = "sample"
    _by_scores = Part(Scores, "decoder", label_sets=True, hierarchy=None)
    _units: RealOutputs
    _tells_classes = True  # Two classes are coded as a single output.

    @property
    def _scores_labels(self) -> bool:
        """Whether the estimator was fitted to labels; scikit-learn treats an unfitted estimator as a regressor."""
        return hasattr(self, "rule_") and self.outputs_ is None

    def _structure(self, Y: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Return the frames of the samples, of shape (n, L, L), and the coupling of the outputs, of shape (L, L)."""
        raise NotImplementedError

    def fit(self, X: Inputs, y: Outputs, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the regression functions of all outputs.

        Parameters
        ----------
        X : rows of shape (n, d), or mapping of view to rows
            Samples, in chunks of whole rows. With kernel="precomputed", X is the n x n kernel matrix.
        y : array-like of shape (n, L) or (n,)
            Regression targets; a matrix of labels 0 and 1, or -1 and +1; n lists of labels; or n classes, as strings or
            as two numbers (0 and 1, or -1 and +1). Labels and classes are learned as -1 and +1. Entries of a matrix
            that are NaN, None or masked are unknown. Before the fit, a ridge regression on the samples with known
            values imputes the unknown values of each output.
        sample_weight : array-like of shape (n,) or None, default=None
            Sample weights, which act as repetition counts. They affect kernel bandwidths and the statistics of the
            outputs. Landmarks are chosen from all samples of positive weight, regardless of the weights.

        Returns
        -------
        estimator
            This estimator, fitted.

        Raises
        ------
        UserError
            If parameters are invalid, or if X and y have different numbers of samples.
        """
        return self._fit(X, y, sample_weight)

    def path(
        self,
        X: Inputs,
        y: Outputs,
        C: Sequence[float],
        epsilon: Sequence[float] | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> list[Self]:
        """Fit a copy of this estimator for each combination of epsilon and C.

        All fits share the kernel and its factorizations. Each fit starts from the solution for a neighboring
        combination, so the fits are fastest if C is in ascending order. Only `fit`, not `path`, learns to predict label
        sets and probabilities.

        Parameters
        ----------
        X : rows of shape (n, d), or mapping of view to rows
            Training samples, as in `fit`.
        y : array-like of shape (n, L) or (n,)
            Outputs of the samples, as in `fit`.
        C : sequence of float
            Values of the parameter `C`, above 0.
        epsilon : sequence of float or None, default=None
            Values of the parameter `epsilon`. None uses the `epsilon` of this estimator.
        sample_weight : array-like of shape (n,) or None, default=None
            Sample weights, as in `fit`.

        Returns
        -------
        list of estimator
            Fitted copies of this estimator, ordered by epsilon and then by C.

        Examples
        --------
        >>> from sklearn.datasets import make_regression
        >>> from dmo import LLTSVR
        >>> X, Y = make_regression(n_samples=60, n_features=5, n_targets=3, random_state=0)
        >>> models = LLTSVR(tol=1e-3).path(X, Y / Y.std(axis=0), C=[0.1, 1.0])
        >>> [model.C for model in models]
        [0.1, 1.0]
        """
        check_parameters(self)
        data = self._data(X, y, sample_weight)
        self._learn_rule(data.frequency, data.n_labeled)
        problem, factors, view = self._pose(data)
        models: list[Self] = []
        first: tuple[float, State] | None = None  # solution from which fits with the next epsilon start
        for tube in [self.epsilon] if epsilon is None else epsilon:
            previous = first
            for position, cost in enumerate(C):
                model = clone(self).set_params(C=cost, epsilon=tube)
                model._adopt(self)
                start = None if previous is None else _scaled(*previous, check_parameter("C", cost, POSITIVE))
                fit = model._solve(model._with_loss(problem), factors, view, start)
                previous = float(cost), fit.state
                first = previous if position == 0 else first
                models.append(model)
        return models

    def _output_units(self, Y: np.ndarray, weights: np.ndarray | None) -> RealOutputs:
        """Return the offset and scale of each output, which convert the outputs to the units of the solver."""
        real = self.outputs_ is not None and not _two_valued(Y)
        scaled = self.target_scale == "standard" or (self.target_scale == "auto" and real)
        return RealOutputs.of(Y, False, weights) if scaled else RealOutputs.plain(Y.shape[1], False)

    def _adopt(self, other: Self) -> None:
        self._units = other._units
        for name in _OF_DATA:
            if hasattr(other, name):
                setattr(self, name, getattr(other, name))

    def _with_loss(self, problem: Problem) -> Problem:
        check_parameters(self)
        return replace(problem, loss=loss_named(self.loss, self.epsilon), C=float(self.C))

    def _read(self, views: Mapping[str, Rows], y: Any, weights: SampleWeights | None) -> Data:
        """Read labels or regression targets, whose single entries may be unknown."""
        n = sample_count(views)
        self.outputs_, labels = None, _labels_of(y)
        if labels is not None:
            return with_unknown(views, *check_partial_labels(self, labels, n), weights)
        for name in ("classes_", "label_names_", "label_dtype_"):
            self.__dict__.pop(name, None)
        dimensions = y.ndim if hasattr(y, "ndim") else np.asarray(y).ndim
        outputs, flat, names = check_outputs(y, n, unknown=dimensions == 2)
        self.outputs_, self.multilabel_ = RealOutputs.plain(outputs.shape[1], flat), True
        if names is not None:
            self.label_names_ = names
        refuse_for_real(self)
        known = ~np.isnan(outputs)
        nowhere = np.flatnonzero(~known.any(axis=0))
        if nowhere.size:
            raise TooFewSamples(f"output {nowhere[0]} is unknown in all samples; leave it out")
        return with_unknown(views, outputs, None if known.all() else known, weights)

    def _learn(self, data: Data) -> None:
        self._solve(*self._pose(data), None)

    def _pose(self, data: Data) -> tuple[Problem, Factors, ViewOperator | FactorProducts]:
        """Build the problem and its kernel; labels become -1 and +1, and two classes become a single output."""
        data = complete_labels(data, self.kernel, self.approximation, self.random_state)
        views, Y, weights = data.views, data.Y, data.often
        if self.outputs_ is None:
            Y = 2.0 * (Y[:, 1:] if self._is_binary else Y) - 1.0
        if weights is not None and not weights.all():
            rows = np.flatnonzero(weights)
            views, Y, weights = {view: Subset(source, rows) for view, source in views.items()}, Y[rows], weights[rows]
        warn_of_outputs(self, Y)
        self._units = self._output_units(Y, weights)
        Y = self._units.scaled(Y)
        frames, coupling = self._structure(Y, weights)
        view = self._view(views, weights)
        problem = Problem(view.operator, Y, loss_named("l1", 0.0), float(self.C), frames, coupling, weights)
        method: SolveMethod = "cg" if isinstance(view.operator, Tiles) else "auto"
        return self._with_loss(problem), Factors(view.operator, method, random_state=self.random_state), view

    def _view(self, views: Mapping[str, Rows], weights: np.ndarray | None) -> ViewOperator | FactorProducts:
        """Build the mean of the kernels of all views, for the n samples with positive weight."""
        kernels = {view: parse(spec) for view, spec in per_view("kernel", self.kernel, list(views)).items()}
        if not is_exact(self.approximation):
            counts = None if weights is None else dict.fromkeys(views, weights)
            return FactorProducts.of(
                fit_maps(self.approximation, kernels, views, self.random_state, True, counts), views
            )
        n, engine = sample_count(views), exact_engine(self.approximation)
        storage = choose_storage(engine, n, 1, 8)
        if storage == "memory" and engine.precision == "auto" and n <= _DOUBLE:
            engine = replace(engine, precision="float64")
        combined = MultiKernel(kernels, {view: 1.0 / len(kernels) for view in kernels})
        built = build(engine, combined, views, _RIDGE / float(self.C), storage, self.random_state, weights)
        if isinstance(built.operator, RowGram):
            # Because the dual coefficients sum to 0, centering the features changes only the bias. Without centering,
            # features that are far from the origin would lose precision.
            return DualView(built.kernel, views, RowGram.of(linear_rows(built.kernel, views), True))
        return KernelProducts("all", built, views, built.operator)

    def _solve(
        self, problem: Problem, factors: Factors, view: ViewOperator | FactorProducts, start: State | None
    ) -> AdmmFit:
        fit = admm(problem, factors, start, self.tol, self.max_iter)
        if not fit.converged:
            self._warn(
                f"stopped after {fit.iterations} iterations with a relative duality gap of "
                f"{fit.certificate.gap:.1e}; raise max_iter, or tol above {self.tol:g}",
                ConvergenceWarning,
            )
        dual = fit.dual if problem.coupling is None else fit.dual @ problem.coupling
        dual, bias = dual * self._units.scale, fit.bias * self._units.scale + self._units.shift
        self.function_ = KernelFunction(shifted(view.expansions(dual), bias))
        self.dual_coef_, self.intercept_, self.support_ = dual, bias, fit.support
        self.n_support_ = len(fit.support)
        self.objective_, self.dual_objective_ = fit.certificate.objective, fit.certificate.dual_objective
        self.gap_, self.n_iter_, self.n_factorizations_ = fit.certificate.gap, fit.iterations, fit.factorizations
        return fit

    def _raw_scores(self, views: Mapping[str, Rows]) -> np.ndarray:
        found: np.ndarray = self.function_(views)
        return np.hstack([-found / 2, found / 2]) if self.outputs_ is None and self._is_binary else found

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays, meta = store_expansions(self.function_.expansions)
        for key in ("dual_coef_", "intercept_", "support_"):
            arrays[f"fit/{key}"] = getattr(self, key)
        for key in ("frame_ranks_", "coupling_"):
            if getattr(self, key, None) is not None:
                arrays[f"fit/{key}"] = getattr(self, key)
        return arrays, meta | {"numbers": {key: getattr(self, key) for key in NUMBERS}}

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        self.function_ = KernelFunction(load_expansions(arrays, meta))
        for key in NUMBERS:
            setattr(self, key, meta["numbers"][key])
        for key, value in without_prefix("fit", arrays).items():
            setattr(self, key, value)


def _labels_of(y: Any) -> Any:
    """Return labels or classes, with 0 instead of -1 in a label matrix, or None for regression targets."""
    if y is None or as_views(y) is not None:
        return y  # Invalid outputs are rejected later, by the validation of labels.
    if is_label_sets(y):
        return y
    given: Any = y.compute() if hasattr(y, "compute") else y
    given = densified(given)
    try:
        values = np.ma.getdata(given) if isinstance(given, np.ma.MaskedArray) else np.asarray(given)
        numbers = values if values.dtype.kind in "biuf" else values.astype(np.float64)
    except (TypeError, ValueError):
        return given  # Strings are classes, not regression targets.
    if values.dtype.kind in "US":
        return given
    unknown = np.isnan(numbers) | np.ma.getmaskarray(given) if numbers.ndim == 2 else np.zeros(numbers.shape, bool)
    some = numbers[~unknown]
    if np.isin(some, (0, 1)).all() and (numbers.ndim == 1 or some.any()):
        return given
    if np.isin(some, (-1, 1)).all():
        if unknown.any():
            return np.ma.MaskedArray((numbers > 0).astype(np.float64), unknown)
        return given if numbers.ndim == 1 else (given > 0).astype(numbers.dtype)
    return None


def _two_valued(Y: np.ndarray) -> bool:
    """Return whether each output has at most two distinct values, like a label."""
    return bool(((Y.min(axis=0) == Y) | (Y.max(axis=0) == Y)).all())


def _scaled(old: float, state: State, new: float) -> State:
    """Convert the solver state for C = `old` into a starting point for C = `new`."""
    return State(state.split, state.dual * min(1.0, new / old), state.rho)


@parametrized
class CoupledSVR(OutputSVR):
    """Support vector regression with the matrix-valued kernel k(x, x') S, where the matrix S couples the outputs.

    Parameters
    ----------
    kernel : str, Kernel, mapping of view to kernel, or list, default="rbf"
        Kernel of the inputs; see `dmo.kernels.parse`. Kernels of several views are averaged. With "precomputed", X is
        the n x n kernel matrix in `fit`, and the m x n kernel matrix in `predict`.
    C : float, default=10.0
        Weight of the loss, above 0. Larger values fit the training outputs more closely.
    epsilon : float, default=0.1
        Half-width of the tube in which residuals have no loss, in units of the outputs after scaling (`target_scale`).
    covariance : ndarray of shape (L, L) or None, default=None
        Positive semidefinite matrix S. None uses the correlation matrix of the training outputs.
    loss : {"epsilon-insensitive", "l1", "l4/3", "l3/2"}, default="epsilon-insensitive"
        Loss of a residual r. "l1", "l4/3" and "l3/2" are powers of the absolute residual with the exponents 1, 4/3 and
        3/2; they do not use `epsilon`.
    tol : float, default=1e-6
        Relative duality gap at which the solver stops. The duality gap bounds the distance of the objective from its
        optimum.
    max_iter : int, default=5000
        Maximum number of iterations. If the solver does not converge, it issues a ConvergenceWarning.
    approximation : {"exact", "nystrom", "meka", "best"}, or Exact, Nystrom, Meka or BestLowRank, default="exact"
        Exact or low-rank kernel. `Exact` also sets the storage. Exact kernels in memory are float64 up to 8192 rows.
    %(decoder)s
    %(random_state)s
    target_scale : {"auto", "standard", "none"}, default="auto"
        Scaling of the outputs, which determines the units of `C`, `epsilon` and the objective. "standard" standardizes
        each output for the fit, and predictions are in the original units. "none" does not scale the outputs. "auto"
        uses "none" if each output has at most two values, as labels do, and otherwise "standard".
    %(prepare)s
    %(class_weight)s

    Attributes
    ----------
    coupling_ : ndarray of shape (L, L)
        Matrix S with which the model was fitted.
    dual_coef_ : ndarray of shape (n, L)
        Dual coefficients of the prediction f(x) = sum_i k(x, x_i) dual_coef_[i] + intercept_.
    intercept_ : ndarray of shape (L,)
        Bias of each output, in the units of the outputs.
    support_ : ndarray of int
        Indices of the samples with a residual outside the tube in at least one output.
    n_support_ : int
        Number of support vectors, which is the length of `support_`.
    objective_ : float
        Value of the objective at the solution.
    dual_objective_ : float
        Value of the dual objective, which is a lower bound of the optimum.
    gap_ : float
        Relative duality gap: `objective_` minus `dual_objective_`, divided by the larger absolute value of the two.
    n_iter_ : int
        Number of iterations of the solver.
    n_factorizations_ : int
        Number of factorizations of the kernel matrix: one per penalty of the solver and distinct eigenvalue of S.

    References
    ----------
    Vazquez, Walter 2003 (cokriging kernel), with a separable kernel as in Bonilla, Chai, Williams 2008.

    Examples
    --------
    >>> from sklearn.datasets import make_regression
    >>> from dmo import CoupledSVR
    >>> X, Y = make_regression(n_samples=60, n_features=5, n_targets=3, random_state=0)
    >>> model = CoupledSVR("rbf", C=10.0, tol=1e-3).fit(X, Y / Y.std(axis=0))
    >>> model.predict(X).shape, model.coupling_.shape
    ((60, 3), (3, 3))
    """

    kernel: KernelSpecs = "rbf"
    _: KW_ONLY
    C: float = 10.0
    epsilon: float = 0.1
    covariance: np.ndarray | None = None
    loss: LossName = EPSILON_INSENSITIVE
    tol: float = 1e-6
    max_iter: int = 5000
    approximation: GivenEngine = "exact"
    decoder: Decoder = None
    random_state: int | None = 0
    target_scale: Literal["auto", "standard", "none"] = "auto"
    prepare: Prepare | Scales = "auto"
    class_weight: ClassWeight = None

    def _structure(self, Y: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray | None, np.ndarray | None]:
        L = Y.shape[1]
        if self.covariance is None:
            units = RealOutputs.of(Y, False, weights)
            scaled = units.scaled(Y)
            S = scaled.T @ scaled / len(Y) if weights is None else (weights * scaled.T) @ scaled / weights.sum()
            np.fill_diagonal(S, 1.0)
        else:
            S = np.asarray(self.covariance, dtype=np.float64)
            if S.shape != (L, L) or not np.allclose(S, S.T) or not np.linalg.eigvalsh(S)[0] >= -1e-8 * np.trace(S):
                raise UserError(
                    f"covariance must be a symmetric positive semidefinite {L} x {L} matrix, "
                    f"got shape {S.shape}; pass the covariance of the outputs, or None"
                )
        self.coupling_ = S
        return None, S
