"""Support vector regression of outputs that share strength."""

from __future__ import annotations

import numpy as np

from dmo.errors import UserError
from dmo.estimators.arguments import GivenEngine, KernelSpecs
from dmo.estimators.output_svr import OutputSVR
from dmo.methods.svr.losses import EPSILON_INSENSITIVE, LossName


class CoupledSVR(OutputSVR):
    """Support vector regression with the matrix kernel k(x, x') S: the outputs share strength through S.

    Parameters
    ----------
    kernel, C, epsilon, loss, tol, max_iter, approximation, random_state : as in `LLTSVR`
    covariance : L x L, positive semidefinite, or None
        S; None: the correlations of the training outputs.

    Attributes as in `LLTSVR`, and coupling_ (S).

    Source: Vazquez, Walter 2003 (cokriging kernel); a separable one, as in Bonilla, Chai, Williams 2008.
    """

    def __init__(
        self,
        kernel: KernelSpecs = "rbf",
        *,
        C: float = 1.0,
        epsilon: float = 0.1,
        covariance: np.ndarray | None = None,
        loss: LossName = EPSILON_INSENSITIVE,
        tol: float = 1e-6,
        max_iter: int = 5000,
        approximation: GivenEngine = "exact",
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
                    f"covariance must be a symmetric positive semidefinite {L} x {L} matrix, "
                    f"got shape {S.shape}; pass the covariance of the outputs, or None"
                )
        self.coupling_ = S
        return None, S
