"""Support vector regression of outputs that share strength."""

from __future__ import annotations

from typing import Literal

import numpy as np

from dmo.errors import UserError
from dmo.estimators.arguments import Decoder, GivenEngine, KernelSpecs
from dmo.estimators.output_svr import OutputSVR
from dmo.estimators.real_outputs import RealOutputs
from dmo.methods.svr.losses import EPSILON_INSENSITIVE, LossName
from dmo.validation import Prepare, Scales


class CoupledSVR(OutputSVR):
    """Support vector regression with the matrix kernel k(x, x') S: the outputs share strength through S.

    Parameters
    ----------
    kernel : str, Kernel, mapping of view to kernel, or list, default="rbf"
        Kernel of the inputs, see `dmo.kernels.parse`; with several views the mean of their kernels. "precomputed":
        fit takes
        the n x n kernel, predict the m x n one.
    C : float, default=10.0
        Weight of the loss, above 0.
    epsilon : float, default=0.1
        Half-width of the tube without loss, in the units of the outputs as `target_scale` leaves them.
    covariance : ndarray of shape (L, L) or None, default=None
        S, positive semidefinite; None: the correlations of the training outputs.
    loss : {"epsilon-insensitive", "l1", "l4/3", "l3/2"}, default="epsilon-insensitive"
        The last three are |r|^p, without a tube.
    tol : float, default=1e-6
        Duality gap at which the solver stops, relative to the objective; the objective is at most this far from the
        optimum.
    max_iter : int, default=5000
        Iterations (one kernel solve each); a ConvergenceWarning says when they ran out.
    approximation : "exact", Exact, Nystrom, Meka or BestLowRank, default="exact"
        Where the kernel lives, or its low-rank form. In memory it is float64 up to 8192 rows.
    %(decoder)s
    %(random_state)s
    target_scale : {"auto", "standard", "none"}, default="auto"
        Units of the problem, C, epsilon, objective: "standard" divides every output by its deviation, which predictions are
        multiplied by; "none" leaves outputs as they are, which is the paper's. "auto": standard, unless outputs have two
        values each, as labels have.
    %(prepare)s

    Attributes
    ----------
    coupling_ : ndarray of shape (L, L)
        S.
    dual_coef_ : ndarray of shape (n, L)
        f(x) = sum_i k(x, x_i) dual_coef_[i] + intercept_.
    intercept_ : ndarray of shape (L,)
        The bias of every output.
    support_ : ndarray of int
        Samples with a residual outside the tube in at least one output.
    n_support_ : int
        Their number.
    objective_ : float
        Value of the objective.
    dual_objective_ : float
        Value of the dual objective, a lower bound of the optimum.
    gap_ : float
        Difference of the two, relative to the objective.
    n_iter_ : int
        Iterations taken.
    n_factorizations_ : int
        Factorizations of the kernel matrix, one per penalty that was tried.

    References
    ----------
    Vazquez, Walter 2003 (cokriging kernel); a separable one, as in Bonilla, Chai, Williams 2008.

    Examples
    --------
    >>> from sklearn.datasets import make_regression
    >>> from dmo import CoupledSVR
    >>> X, Y = make_regression(n_samples=60, n_features=5, n_targets=3, random_state=0)
    >>> model = CoupledSVR("rbf", C=10.0, tol=1e-3).fit(X, Y / Y.std(axis=0))
    >>> model.predict(X).shape, model.coupling_.shape
    ((60, 3), (3, 3))
    """

    def __init__(
        self,
        kernel: KernelSpecs = "rbf",
        *,
        C: float = 10.0,
        epsilon: float = 0.1,
        covariance: np.ndarray | None = None,
        loss: LossName = EPSILON_INSENSITIVE,
        tol: float = 1e-6,
        max_iter: int = 5000,
        approximation: GivenEngine = "exact",
        decoder: Decoder = None,
        random_state: int | None = 0,
        target_scale: Literal["auto", "standard", "none"] = "auto",
        prepare: Prepare | Scales = "auto",
    ):
        self.kernel = kernel
        self.C = C
        self.epsilon = epsilon
        self.covariance = covariance
        self.loss = loss
        self.tol = tol
        self.max_iter = max_iter
        self.approximation = approximation
        self.decoder = decoder
        self.random_state = random_state
        self.target_scale = target_scale
        self.prepare = prepare

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
