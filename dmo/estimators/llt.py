"""Support vector regression of many outputs: on the output manifold (LLT-SVR), independent, or coupled."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from dmo.engines.kernel_operator import Fitted, prepare_kernel
from dmo.errors import UserError
from dmo.functions import load_function, store_function
from dmo.methods.svr.admm import AdmmFit, Factors, State, admm
from dmo.methods.svr.frames import Neighbors, neighborhood_frames
from dmo.methods.svr.losses import EPSILON_INSENSITIVE, loss_named
from dmo.methods.svr.problem import Problem
from dmo.persistence import Persistent
from dmo.validation import check_outputs, check_views, positive, warn_of_outputs


class _OutputSVR(RegressorMixin, Persistent, BaseEstimator):
    """Validation, the shared solver, prediction and persistence; subclasses say how the outputs hang together."""

    kernel: Any
    C: float
    epsilon: float
    loss: str
    tol: float
    max_iter: int
    approximation: Any
    random_state: int | None

    def _structure(self, Y: np.ndarray) -> tuple[np.ndarray | None, np.ndarray | None]:
        """(frames n x L x L or None, coupling L x L or None) of the outputs Y."""
        raise NotImplementedError

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from samples X (an array of n rows, or views of n rows) and outputs y (n x L, or n numbers)."""
        problem, factors, fitted = self._prepare(X, y)
        self._solve(problem, factors, fitted, None)
        return self

    def path(self, X: Any, y: Any, C: Sequence[float], epsilon: Sequence[float] | None = None) -> list[Self]:
        """A fitted copy of this estimator for every epsilon and C, in that order: epsilons outside, Cs inside.

        Kernel, frames and factorizations are shared, and every fit starts from its neighbor's solution. Ascending C is
        the fastest order.
        """
        problem, factors, fitted = self._prepare(X, y)
        models: list[Self] = []
        first: tuple[float, State] | None = None  # the start of the next epsilon's row
        for tube in [self.epsilon] if epsilon is None else epsilon:
            previous = first
            for position, cost in enumerate(C):
                model = clone(self).set_params(C=cost, epsilon=tube)
                model._adopt(self)
                start = None if previous is None else _scaled(*previous, positive(type(self).__name__, "C", cost))
                fit = model._solve(model._with_loss(problem), factors, fitted, start)
                previous = float(cost), fit.state
                first = previous if position == 0 else first
                models.append(model)
        return models

    def _adopt(self, other: Self) -> None:
        for name in ("view_widths_", "n_features_in_", "feature_names_in_", "flat_", "frame_ranks_", "coupling_"):
            if hasattr(other, name):
                setattr(self, name, getattr(other, name))

    def _with_loss(self, problem: Problem) -> Problem:
        who = type(self).__name__
        try:
            loss = loss_named(self.loss, self.epsilon)
        except UserError as error:
            raise UserError(f"{who}: {error}") from error
        return problem.with_loss(loss, positive(who, "C", self.C))

    def _prepare(self, X: Any, y: Any) -> tuple[Problem, Factors, Fitted]:
        who = type(self).__name__
        views = check_views(self, X, reset=True)
        n = next(iter(views.values())).shape[0]
        Y, self.flat_ = check_outputs(who, y, n)
        cost = positive(who, "C", self.C)
        positive(who, "tol", self.tol)
        warn_of_outputs(who, Y)
        frames, coupling = self._structure(Y)
        fitted = prepare_kernel(who, self.kernel, self.approximation, views, cost, self.random_state)
        problem = Problem(fitted.operator, Y, loss_named("l1", 0.0), cost, frames, coupling)
        factors = Factors(fitted.operator, fitted.method, random_state=self.random_state)
        return self._with_loss(problem), factors, fitted

    def _solve(self, problem: Problem, factors: Factors, fitted: Fitted, start: State | None) -> AdmmFit:
        who = type(self).__name__
        try:
            fit = admm(problem, factors, start, self.tol, self.max_iter)
        except UserError as error:
            raise UserError(f"{who}: {error}") from error
        if not fit.converged:
            warnings.warn(
                f"{who}: stopped after {fit.iterations} iterations with a relative duality gap of "
                f"{fit.certificate.gap:.1e}; raise max_iter, or tol above {self.tol:g}",
                ConvergenceWarning,
                stacklevel=3,
            )
        dual = fit.dual if problem.coupling is None else fit.dual @ problem.coupling
        self.function_ = fitted.function(dual, fit.bias)
        self.dual_coef_, self.intercept_, self.support_ = dual, fit.bias, fit.support
        self.n_support_ = len(fit.support)
        self.objective_, self.dual_objective_ = fit.certificate.objective, fit.certificate.dual_objective
        self.gap_, self.n_iter_, self.n_factorizations_ = fit.certificate.gap, fit.iterations, fit.factorizations
        return fit

    def predict(self, X: Any) -> np.ndarray:
        """Outputs f(x) of m samples: m x L, or m where the model was fitted on a vector."""
        check_is_fitted(self)
        outputs = self.function_(check_views(self, X, reset=False))
        return outputs[:, 0] if self.flat_ else outputs

    def predict_labels(self, X: Any) -> np.ndarray:
        """Labels of a model fitted on outputs +1 and -1: 1 where f_j(x) > 0, else 0 (uint8, m x L or m)."""
        return (self.predict(X) > 0).astype(np.uint8)

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays, meta = store_function(self.function_)
        for key in ("dual_coef_", "intercept_", "support_"):
            arrays[f"fit/{key}"] = getattr(self, key)
        for key in ("frame_ranks_", "coupling_"):
            if getattr(self, key, None) is not None:
                arrays[f"fit/{key}"] = getattr(self, key)
        numbers = ("flat_", "objective_", "dual_objective_", "gap_", "n_iter_", "n_factorizations_", "n_support_")
        return arrays, meta | {"numbers": {key: getattr(self, key) for key in numbers}}

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        self.function_ = load_function(arrays, meta)
        for key, value in arrays.items():
            if key.startswith("fit/"):
                setattr(self, key.removeprefix("fit/"), value)
        for key, value in meta["numbers"].items():
            setattr(self, key, value)

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.pairwise = self.kernel == "precomputed"
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags


class LLTSVR(_OutputSVR):
    """Support vector regression on the output manifold: the loss is taken in the local frame of every output.

    Minimizes 1/2 sum_j |f_j|^2 + C sum_i sum_j l(u_ij' (f(x_i) - y_i)), f_j in the kernel's space plus a bias, where
    u_i1 .. u_iL are the left singular vectors of the centered nearest outputs of y_i.

    Parameters
    ----------
    kernel : name, Kernel, mapping view -> kernel, or "precomputed"
        See `dmo.kernels.parse`; with several views the mean of their kernels. "precomputed": fit takes the n x n
        kernel, predict the m x n one.
    C : float > 0
        Weight of the loss.
    epsilon : float > 0
        Half-width of the tube without loss, in the units of the outputs.
    n_neighbors : int
        kappa: outputs in a neighborhood, the sample's own included.
    frame : "local" or "identity"
        "identity" is the naive regression: one independent SVR per output.
    neighbors : "samples" or "distinct"
        Nearest samples (the paper's), or nearest different outputs: for labels, where samples share their outputs.
    loss : "epsilon-insensitive", "l1", "l4/3" or "l3/2"
        The last three are |r|^p, without a tube.
    tol : float
        Duality gap at which the solver stops, relative to the objective; the objective is at most this far from the
        optimum.
    max_iter : int
        Iterations (one kernel solve each); a ConvergenceWarning says when they ran out.
    approximation : "exact", Exact(...), Nystrom(...) or Meka(...)
        Where the kernel lives, or its low-rank form. In memory it is float64 up to 8192 rows.
    random_state : int or None

    Attributes
    ----------
    dual_coef_ (n x L): f(x) = sum_i k(x, x_i) dual_coef_[i] + intercept_; intercept_ (L); support_: the samples with a
    residual outside the tube in at least one direction of their frame, n_support_; objective_, dual_objective_, gap_;
    n_iter_, n_factorizations_; frame_ranks_ (n): directions that each neighborhood spans.

    Source: Liu, Lin, Yu 2009, eqs. 3-5, Algorithm 1 (solved here by alternating directions, see `dmo.methods.llt_admm`).
    """

    def __init__(
        self,
        kernel: Any = "rbf",
        *,
        C: float = 1.0,
        epsilon: float = 0.1,
        n_neighbors: int = 6,
        frame: Literal["local", "identity"] = "local",
        neighbors: Neighbors = "samples",
        loss: str = EPSILON_INSENSITIVE,
        tol: float = 1e-6,
        max_iter: int = 5000,
        approximation: Any = "exact",
        random_state: int | None = 0,
    ):
        self.kernel = kernel
        self.C = C
        self.epsilon = epsilon
        self.n_neighbors = n_neighbors
        self.frame = frame
        self.neighbors = neighbors
        self.loss = loss
        self.tol = tol
        self.max_iter = max_iter
        self.approximation = approximation
        self.random_state = random_state

    def _structure(self, Y: np.ndarray) -> tuple[np.ndarray | None, np.ndarray | None]:
        if self.frame not in ("local", "identity"):
            raise UserError(f"LLTSVR: frame = {self.frame!r}; known: 'local', 'identity'")
        if self.neighbors not in ("samples", "distinct"):
            raise UserError(f"LLTSVR: neighbors = {self.neighbors!r}; known: 'samples', 'distinct'")
        n, L = Y.shape
        self.frame_ranks_ = None
        if self.frame == "identity" or L == 1:  # one output has one direction
            return None, None
        kappa = self.n_neighbors
        if not isinstance(kappa, (int, np.integer)) or isinstance(kappa, bool) or kappa < 2:
            raise UserError(f"LLTSVR: n_neighbors = {kappa!r}; pass an integer of at least 2, or frame='identity'")
        if kappa > n:
            raise UserError(
                f"LLTSVR: n_neighbors = {kappa}, but there are {n} samples; "
                f"pass n_neighbors <= {n}, or frame='identity'"
            )
        frames = neighborhood_frames(Y, int(kappa), self.neighbors)
        self.frame_ranks_ = frames.ranks
        if not frames.ranks.any():
            warnings.warn(
                f"LLTSVR: every neighborhood of {kappa} samples holds one output only, so all frames are the identity; "
                f"raise n_neighbors, or take neighbors='distinct'",
                UserWarning,
                stacklevel=4,
            )
        return frames.basis, None


class CoupledSVR(_OutputSVR):
    """Support vector regression with the matrix kernel k(x, x') S: the outputs share strength through S.

    Parameters: `covariance`: S (L x L, positive semidefinite), or None for the correlations of the training outputs;
    the others as in `LLTSVR`. Attributes as there, and coupling_ (S).

    Source: Vazquez, Walter 2003 (cokriging kernel); a separable one, as in Bonilla, Chai, Williams 2008.
    """

    def __init__(
        self,
        kernel: Any = "rbf",
        *,
        C: float = 1.0,
        epsilon: float = 0.1,
        covariance: Any = None,
        loss: str = EPSILON_INSENSITIVE,
        tol: float = 1e-6,
        max_iter: int = 5000,
        approximation: Any = "exact",
        random_state: int | None = 0,
    ):
        self.kernel = kernel
        self.C = C
        self.epsilon = epsilon
        self.covariance = covariance
        self.loss = loss
        self.tol = tol
        self.max_iter = max_iter
        self.approximation = approximation
        self.random_state = random_state

    def _structure(self, Y: np.ndarray) -> tuple[np.ndarray | None, np.ndarray | None]:
        L = Y.shape[1]
        if self.covariance is None:
            spread = Y.std(axis=0)
            scaled = (Y - Y.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
            S = scaled.T @ scaled / len(Y)
            np.fill_diagonal(S, 1.0)
        else:
            S = np.asarray(self.covariance, dtype=np.float64)
            if S.shape != (L, L) or not np.allclose(S, S.T) or not np.linalg.eigvalsh(S)[0] >= -1e-8 * np.trace(S):
                raise UserError(
                    f"CoupledSVR: covariance must be a symmetric positive semidefinite {L} x {L} matrix, "
                    f"got shape {S.shape}; pass the covariance of the outputs, or None"
                )
        self.coupling_ = S
        return None, S


def _scaled(old: float, state: State, new: float) -> State:
    """The state of a problem with weight `old` as the start of the one with weight `new`."""
    return State(state.split, state.dual * min(1.0, new / old), state.rho)
