"""FastTag: a regression of the labels as they would be if none had been forgotten.

Labels are enriched by a matrix B (L x L) that restores them from what is left when each is dropped with probability p,

    min_{W, B}  |X W - Y B|^2 + c |W|^2 + gamma E |Y - Y~ B|^2,

where E runs over all ways to drop labels from Y, which leave Y~. With S = Y'Y the moments are P = E[Y~'Y] = (1 - p) S and
Q = E[Y~'Y~] = (1 - p)^2 S + p (1 - p) diag(S). W is a ridge regression of Y B, X W = H Y B with the smoother H of the
regression; the rest of its objective is tr B' Y'(I - H) Y B, so that both are found at once,

    B = gamma [Y'(I - H) Y + gamma Q]^-1 P,

where the paper alternates between W and B. What is restored can be enriched again: B_1 B_2 ... B_T (its tag
bootstrapping), each from the labels Y B_1 ... B_t-1.

Source: Chen, Zheng, Weinberger 2013, equations 1-7.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg


def enrichment(gram: np.ndarray, residual: np.ndarray, dropout: float, strength: float, rounds: int = 1) -> np.ndarray:
    """The matrix that enriches labels.

    gram, residual (L, L) -> (L, L)
    """
    used = np.diagonal(gram) > 0
    S, R = gram[np.ix_(used, used)].astype(np.float64), residual[np.ix_(used, used)].astype(np.float64)
    R = (R + R.T) / 2  # symmetric but for the rounding of the regression
    total = np.eye(len(S))
    for _ in range(rounds):
        Q = (1 - dropout) ** 2 * S
        Q.flat[:: len(S) + 1] += dropout * (1 - dropout) * np.diagonal(S)
        B = scipy.linalg.solve(R + strength * Q, strength * (1 - dropout) * S, assume_a="pos")
        total, S, R = total @ B, B.T @ S @ B, B.T @ R @ B
    out = np.zeros(gram.shape)
    out[np.ix_(used, used)] = total
    return out
