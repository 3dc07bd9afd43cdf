"""Support vector regression on the output manifold: LLT-SVR."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from dmo.errors import UserError
from dmo.estimators.arguments import Decoder, GivenEngine, KernelSpecs
from dmo.estimators.output_svr import OutputSVR
from dmo.methods.svr.frames import Neighbors, neighborhood_frames
from dmo.methods.svr.losses import EPSILON_INSENSITIVE, LossName
from dmo.validation import Need, Prepare, Scales, at_least, check_parameter, one_of


class LLTSVR(OutputSVR):
    """Support vector regression on the output manifold: the loss is taken in the local frame of every output.

    Minimizes 1/2 sum_j |f_j|^2 + C sum_i sum_j l(u_ij' (f(x_i) - y_i)), f_j in the kernel's space plus a bias, where
    u_i1 .. u_iL are the left singular vectors of the centered nearest outputs of y_i.

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
    n_neighbors : int, default=6
        kappa: outputs in a neighborhood, the sample's own included; at least 2.
    frame : {"local", "identity"}, default="local"
        "identity" is the naive regression: one independent SVR per output.
    neighbors : {"samples", "distinct"}, default="samples"
        Nearest samples (the paper's), or nearest different outputs: for labels, where samples share their outputs.
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
    dual_coef_ : ndarray of shape (n, L)
        f(x) = sum_i k(x, x_i) dual_coef_[i] + intercept_.
    intercept_ : ndarray of shape (L,)
        The bias of every output.
    support_ : ndarray of int
        Samples with a residual outside the tube in at least one direction of their frame.
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
    frame_ranks_ : ndarray of shape (n,) or None
        Directions that each neighborhood spans; None with frame="identity".

    References
    ----------
    Liu, Lin, Yu 2009, equations 3-5 and Algorithm 1 (solved here by alternating directions, see `dmo.methods.svr.admm`).

    Examples
    --------
    >>> from sklearn.datasets import make_regression
    >>> from dmo import LLTSVR
    >>> X, Y = make_regression(n_samples=60, n_features=5, n_targets=3, random_state=0)
    >>> model = LLTSVR("rbf", C=10.0, tol=1e-3).fit(X, Y / Y.std(axis=0))
    >>> model.predict(X).shape
    (60, 3)
    """

    _needs: ClassVar[dict[str, Need]] = OutputSVR._needs | {
        "frame": one_of("local", "identity"),
        "neighbors": one_of("samples", "distinct"),
    }

    def __init__(
        self,
        kernel: KernelSpecs = "rbf",
        *,
        C: float = 10.0,
        epsilon: float = 0.1,
        n_neighbors: int = 6,
        frame: Literal["local", "identity"] = "local",
        neighbors: Neighbors = "samples",
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
        self.n_neighbors = n_neighbors
        self.frame = frame
        self.neighbors = neighbors
        self.loss = loss
        self.tol = tol
        self.max_iter = max_iter
        self.approximation = approximation
        self.decoder = decoder
        self.random_state = random_state
        self.target_scale = target_scale
        self.prepare = prepare

    def _structure(self, Y: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray | None, np.ndarray | None]:
        n, L = Y.shape
        n = n if weights is None else max(n, int(weights.sum()))
        self.frame_ranks_ = None
        if self.frame == "identity" or L == 1:  # one output has one direction
            return None, None
        kappa = check_parameter("n_neighbors", self.n_neighbors, at_least(2))
        if kappa > n:
            raise UserError(
                f"n_neighbors = {kappa}, but there are {n} samples; pass n_neighbors <= {n}, or frame='identity'"
            )
        frames = neighborhood_frames(Y, int(kappa), self.neighbors, weights)
        self.frame_ranks_ = frames.ranks
        if not frames.ranks.any():
            self._warn(
                f"every neighborhood of {kappa} samples holds one output only, so all frames are the identity; "
                f"raise n_neighbors, or take neighbors='distinct'"
            )
        return frames.basis, None
