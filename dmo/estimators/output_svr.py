"""What the support vector regressions of many outputs share: the solver, prediction, models on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from dmo.blocks import Subset
from dmo.engines.kernel_operator import Fitted, prepare_kernel
from dmo.errors import UserError
from dmo.estimators.arguments import Inputs, Outputs
from dmo.estimators.base import Estimator
from dmo.estimators.lazy import row_by_row
from dmo.estimators.real_outputs import RealOutputs
from dmo.functions import KernelFunction, load_expansions, store_expansions
from dmo.methods.svr.admm import AdmmFit, Factors, State, admm
from dmo.methods.svr.losses import loss_named
from dmo.methods.svr.problem import Problem
from dmo.validation import (
    COUNT,
    POSITIVE,
    SEED,
    Need,
    check_outputs,
    check_parameter,
    check_parameters,
    check_row_weights,
    check_views,
    one_of,
    sample_count,
    warn_of_outputs,
)

NUMBERS = ("flat_", "objective_", "dual_objective_", "gap_", "n_iter_", "n_factorizations_", "n_support_")
"""What a model keeps of a fit besides arrays."""


_OF_DATA = (
    *("view_widths_", "view_feature_names_", "n_features_in_", "feature_names_in_", "preparations_"),
    *("flat_", "cardinality_", "label_means_", "n_labeled_", "label_names_", "frame_ranks_", "coupling_"),
)
"""What the fits of a path have in common."""


class OutputSVR(RegressorMixin, Estimator):
    """Validation, the shared solver, prediction and persistence; subclasses say how the outputs depend on each other.

    The base class of `LLTSVR` and `CoupledSVR`.
    """

    _needs: ClassVar[dict[str, Need]] = {
        "C": POSITIVE,
        "target_scale": one_of("auto", "standard", "none"),
        "tol": POSITIVE,
        "max_iter": COUNT,
        "random_state": SEED,
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
    cardinality_: float | None
    """Labels of a training sample, on average; None of real outputs."""
    label_means_: np.ndarray
    n_labeled_: float
    """Training samples, by their weights."""
    _units: RealOutputs

    def _structure(self, Y: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray | None, np.ndarray | None]:
        """(frames n x L x L or None, coupling L x L or None) of the outputs Y and how often each counts."""
        raise NotImplementedError

    def fit(self, X: Inputs, y: Outputs, sample_weight: ArrayLike | None = None) -> Self:
        """Learn the functions of all outputs.

        Parameters
        ----------
        X : rows of shape (n, d), or mapping of view to rows
            Samples, in chunks of whole rows; an n x n kernel with kernel="precomputed".
        y : array-like of shape (n, L) or (n,)
            Outputs; of labels +1 and -1.
        sample_weight : array-like of shape (n,) or None, default=None
            How often every sample counts. Bandwidths, and neighborhoods of outputs, take all samples of positive weight
            alike.

        Returns
        -------
        estimator
            This estimator, fitted.

        Raises
        ------
        UserError
            For parameters, rows or outputs that do not fit together.
        """
        problem, factors, fitted = self._pose(X, y, sample_weight)
        self._solve(problem, factors, fitted, None)
        return self

    def path(
        self,
        X: Inputs,
        y: Outputs,
        C: Sequence[float],
        epsilon: Sequence[float] | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> list[Self]:
        """Fit a copy of this estimator for every epsilon and C.

        Kernel, frames and factorizations are shared, and every fit starts from its neighbor's solution. Ascending C is
        the fastest order.

        Parameters
        ----------
        X : rows of shape (n, d), or mapping of view to rows
            Samples, as in `fit`.
        y : array-like of shape (n, L) or (n,)
            Outputs.
        C : sequence of float
            Weights of the loss.
        epsilon : sequence of float or None, default=None
            Half-widths of the tube; None: that of this estimator.
        sample_weight : array-like of shape (n,) or None, default=None
            As in `fit`.

        Returns
        -------
        list of estimator
            Fitted copies, epsilons outside, Cs inside.

        Examples
        --------
        >>> from sklearn.datasets import make_regression
        >>> from dmo import LLTSVR
        >>> X, Y = make_regression(n_samples=60, n_features=5, n_targets=3, random_state=0)
        >>> models = LLTSVR(tol=1e-3).path(X, Y / Y.std(axis=0), C=[0.1, 1.0])
        >>> [model.C for model in models]
        [0.1, 1.0]
        """
        problem, factors, fitted = self._pose(X, y, sample_weight)
        models: list[Self] = []
        first: tuple[float, State] | None = None  # the start of the next epsilon's row
        for tube in [self.epsilon] if epsilon is None else epsilon:
            previous = first
            for position, cost in enumerate(C):
                model = clone(self).set_params(C=cost, epsilon=tube)
                model._adopt(self)
                start = None if previous is None else _scaled(*previous, check_parameter("C", cost, POSITIVE))
                fit = model._solve(model._with_loss(problem), factors, fitted, start)
                previous = float(cost), fit.state
                first = previous if position == 0 else first
                models.append(model)
        return models

    def _output_units(self, Y: np.ndarray, weights: np.ndarray | None) -> RealOutputs:
        """The units that the problem is solved in."""
        scaled = self.target_scale == "standard" or (self.target_scale == "auto" and not _two_valued(Y))
        plain = RealOutputs(np.zeros(Y.shape[1]), np.ones(Y.shape[1]), False)
        return RealOutputs.of(Y, False, weights) if scaled else plain

    def _adopt(self, other: Self) -> None:
        self._units = other._units
        for name in _OF_DATA:
            if hasattr(other, name):
                setattr(self, name, getattr(other, name))

    def _with_loss(self, problem: Problem) -> Problem:
        check_parameters(self)
        return problem.with_loss(loss_named(self.loss, self.epsilon), float(self.C))

    def _pose(self, X: Any, y: Any, sample_weight: Any) -> tuple[Problem, Factors, Fitted]:
        check_parameters(self)
        views = check_views(self, X, reset=True)
        Y, self.flat_, names = check_outputs(y, sample_count(views))
        weights = check_row_weights(sample_weight, len(Y))
        if weights is not None and not weights.all():
            rows = np.flatnonzero(weights)
            views, Y, weights = {view: Subset(source, rows) for view, source in views.items()}, Y[rows], weights[rows]
        self.__dict__.pop("label_names_", None)
        if names is not None:
            self.label_names_ = names
        cost = float(self.C)
        warn_of_outputs(self, Y)
        labels = np.isin(Y, (-1, 0, 1)).all()
        self.label_means_ = np.average(Y > 0, axis=0, weights=weights)
        self.n_labeled_ = float(len(Y) if weights is None else weights.sum())
        self.cardinality_ = float(self.label_means_.sum()) if labels else None
        self._units = self._output_units(Y, weights)
        Y = self._units.scaled(Y)
        frames, coupling = self._structure(Y, weights)
        fitted = prepare_kernel(self.kernel, self.approximation, views, cost, self.random_state, weights)
        problem = Problem(fitted.operator, Y, loss_named("l1", 0.0), cost, frames, coupling, weights)
        factors = Factors(fitted.operator, fitted.method, random_state=self.random_state)
        return self._with_loss(problem), factors, fitted

    def _solve(self, problem: Problem, factors: Factors, fitted: Fitted, start: State | None) -> AdmmFit:
        fit = admm(problem, factors, start, self.tol, self.max_iter)
        if not fit.converged:
            self._warn(
                f"stopped after {fit.iterations} iterations with a relative duality gap of "
                f"{fit.certificate.gap:.1e}; raise max_iter, or tol above {self.tol:g}",
                ConvergenceWarning,
            )
        dual = fit.dual if problem.coupling is None else fit.dual @ problem.coupling
        dual, bias = dual * self._units.scale, fit.bias * self._units.scale + self._units.shift
        self.function_ = fitted.function(dual, bias)
        self.dual_coef_, self.intercept_, self.support_ = dual, bias, fit.support
        self.n_support_ = len(fit.support)
        self.objective_, self.dual_objective_ = fit.certificate.objective, fit.certificate.dual_objective
        self.gap_, self.n_iter_, self.n_factorizations_ = fit.certificate.gap, fit.iterations, fit.factorizations
        return fit

    def _row_shape(self, method: str, **options: Any) -> tuple[np.ndarray | None, np.dtype]:
        """See `row_by_row`."""
        dtype = np.dtype(np.uint8 if method == "predict_labels" else np.float64)
        names = np.asarray(getattr(self, "label_names_", np.arange(len(self.intercept_))))
        return None if self.flat_ else names, dtype

    @row_by_row
    def predict(self, X: Inputs) -> np.ndarray:
        """Predict the outputs of samples.

        Parameters
        ----------
        X : rows of shape (m, d), or mapping of view to rows
            Samples, in chunks of whole rows; with kernel="precomputed" their m x n kernel with the training samples.

        Returns
        -------
        ndarray of shape (m, L) or (m,)
            Outputs f(x); a vector where the model was fitted on one.
        """
        check_is_fitted(self)
        outputs = self.function_(check_views(self, X, reset=False))
        return outputs[:, 0] if self.flat_ else outputs

    @row_by_row
    def predict_labels(self, X: Inputs) -> np.ndarray:
        """Predict labels by a model that was fitted on outputs +1 and -1.

        Parameters
        ----------
        X : rows of shape (m, d), or mapping of view to rows
            Samples, as in `predict`.

        Returns
        -------
        ndarray of shape (m, L) or (m,), uint8
            1 where f_j(x) > 0, else 0.

        Raises
        ------
        UserError
            Where the outputs of the fit were real.
        """
        if getattr(self, "cardinality_", 0.0) is None:
            raise UserError(f"{type(self).__name__} learned real outputs, which are no labels; take predict")
        return (self.predict(X) > 0).astype(np.uint8)

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays, meta = store_expansions(self.function_.expansions)
        for key in ("dual_coef_", "intercept_", "support_", "label_means_"):
            arrays[f"fit/{key}"] = getattr(self, key)
        for key in ("frame_ranks_", "coupling_"):
            if getattr(self, key, None) is not None:
                arrays[f"fit/{key}"] = getattr(self, key)
        meta |= {"cardinality": self.cardinality_, "n_labeled": self.n_labeled_}
        return arrays, meta | {"numbers": {key: getattr(self, key) for key in NUMBERS}}

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        self.function_ = KernelFunction(load_expansions(arrays, meta))
        for key, value in arrays.items():
            if key.startswith("fit/"):
                setattr(self, key.removeprefix("fit/"), value)
        for key in NUMBERS:
            setattr(self, key, meta["numbers"][key])
        self.cardinality_, self.n_labeled_ = meta["cardinality"], meta["n_labeled"]

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags


def _two_valued(Y: np.ndarray) -> bool:
    """Whether all outputs are labels: two values at most."""
    return bool(((Y.min(axis=0) == Y) | (Y.max(axis=0) == Y)).all())


def _scaled(old: float, state: State, new: float) -> State:
    """The state of a problem with weight `old` as the start of the one with weight `new`."""
    return State(state.split, state.dual * min(1.0, new / old), state.rho)
