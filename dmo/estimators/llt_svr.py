"""Support vector regression on the output manifold: LLT-SVR."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from dmo.errors import UserError
from dmo.estimators.arguments import GivenEngine, KernelSpecs
from dmo.estimators.output_svr import OutputSVR
from dmo.methods.svr.frames import Neighbors, neighborhood_frames
from dmo.methods.svr.losses import EPSILON_INSENSITIVE, LossName
from dmo.validation import Need, at_least, check_parameter, one_of


class LLTSVR(OutputSVR):
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

    Source: Liu, Lin, Yu 2009, eqs. 3-5, Algorithm 1 (solved here by alternating directions, see `dmo.methods.svr.admm`).
    """

    _needs: ClassVar[dict[str, Need]] = OutputSVR._needs | {
        "frame": one_of("local", "identity"),
        "neighbors": one_of("samples", "distinct"),
    }

    def __init__(
        self,
        kernel: KernelSpecs = "rbf",
        *,
        C: float = 1.0,
        epsilon: float = 0.1,
        n_neighbors: int = 6,
        frame: Literal["local", "identity"] = "local",
        neighbors: Neighbors = "samples",
        loss: LossName = EPSILON_INSENSITIVE,
        tol: float = 1e-6,
        max_iter: int = 5000,
        approximation: GivenEngine = "exact",
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
        n, L = Y.shape
        self.frame_ranks_ = None
        if self.frame == "identity" or L == 1:  # one output has one direction
            return None, None
        kappa = check_parameter("n_neighbors", self.n_neighbors, at_least(2))
        if kappa > n:
            raise UserError(
                f"n_neighbors = {kappa}, but there are {n} samples; pass n_neighbors <= {n}, or frame='identity'"
            )
        frames = neighborhood_frames(Y, int(kappa), self.neighbors)
        self.frame_ranks_ = frames.ranks
        if not frames.ranks.any():
            self._warn(
                f"every neighborhood of {kappa} samples holds one output only, so all frames are the identity; "
                f"raise n_neighbors, or take neighbors='distinct'"
            )
        return frames.basis, None
