"""Probabilities of labels from held-out scores: one small logistic regression that all labels share.

logit p_il = sum_k (b_k z_kil + b'_k z_kil^2 + b''_k z_kil phi_l) + eta phi_l + theta phi_l^2 + zeta over the score
matrices k at hand, z_k the scores standardized per label, phi_l the standardized log frequency of label l. A logistic
regression per label (Platt) has too few positives to learn from where labels are rare; this one has 3 K + 3 numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import scipy.linalg
from scipy.special import expit

from dmo.blocks import row_blocks

_ENTRIES = 2**18  # sample-label pairs whose regressors are in memory at a time
_STEPS = 50
_SMALLEST = 1e-9  # a relative ridge: a score matrix that repeats another would make the Newton system singular


@dataclass(frozen=True)
class PooledProbabilities:
    """Label probabilities of score matrices, by one logistic regression that all labels share.

    Attributes
    ----------
    mean, deviation : ndarray of shape (K, L)
        Of the held-out scores that the fit saw.
    rarity : ndarray of shape (L,)
        phi.
    seen : ndarray of shape (L,), bool
        Whether any training sample carries the label.
    coefficients : ndarray of shape (3 K + 3,)
        b, b', b'' of every score matrix, then eta, theta, zeta.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.methods.calibration import PooledProbabilities
    >>> rng = np.random.default_rng(0)
    >>> Y = (rng.random((200, 3)) < [0.5, 0.2, 0.1]).astype(float)
    >>> scores = Y + rng.normal(size=Y.shape)
    >>> p = PooledProbabilities.fit([scores], Y)([scores])
    >>> bool(p[Y == 1].mean() > p[Y == 0].mean()), bool(abs(p.mean() - Y.mean()) < 0.01)
    (True, True)
    """

    mean: np.ndarray
    deviation: np.ndarray
    rarity: np.ndarray
    seen: np.ndarray
    coefficients: np.ndarray

    @classmethod
    def fit(cls, scores: Sequence[np.ndarray], Y: np.ndarray, known: np.ndarray | None = None) -> Self:
        """Learn the regression by maximum likelihood.

        Parameters
        ----------
        scores : sequence of K ndarrays of shape (n, L)
            Held-out scores.
        Y : ndarray of shape (n, L)
            Labels, 0/1.
        known : ndarray of shape (n, L), bool, or None, default=None
            The entries of Y that are known; the others take no part. None: all.

        Returns
        -------
        PooledProbabilities
            The regression.
        """
        frequency = label_frequency(Y, known)
        n = len(Y) if known is None else np.maximum(known.sum(axis=0), 1)
        log_frequency = np.log(np.maximum(frequency, 0.5 / n))
        spread = log_frequency.std()
        deviation = np.array([part.std(axis=0, dtype=np.float64) for part in scores])
        model = cls(
            np.array([part.mean(axis=0, dtype=np.float64) for part in scores]),
            np.where(deviation > 0, deviation, 1.0),
            (log_frequency - log_frequency.mean()) / (spread if spread > 0 else 1.0),
            frequency > 0,
            np.zeros(3 * len(scores) + 3),
        )
        return cls(model.mean, model.deviation, model.rarity, model.seen, _newton(model, scores, Y, known))

    def __call__(self, scores: Sequence[np.ndarray]) -> np.ndarray:
        """Probabilities (m x L, float64) of K score matrices (m x L); 0 for labels without a training sample."""
        out = np.empty(scores[0].shape)
        for where in self._blocks(len(out)):
            out[where] = expit(self._regressors(scores, where) @ self.coefficients).reshape(-1, len(self.rarity))
        out[:, ~self.seen] = 0.0
        return out

    def _blocks(self, n: int) -> list[slice]:
        return row_blocks(n, max(1, _ENTRIES // len(self.rarity)))

    def _regressors(self, scores: Sequence[np.ndarray], where: slice) -> np.ndarray:
        shape = (where.stop - where.start, len(self.rarity))
        columns = []
        for part, mean, deviation in zip(scores, self.mean, self.deviation, strict=True):
            z = (part[where] - mean) / deviation
            columns += [z, z * z, z * self.rarity]
        columns += [np.broadcast_to(column, shape) for column in (self.rarity, self.rarity**2, 1.0)]
        return np.stack([column.ravel() for column in columns], axis=1)

    def to_arrays(self) -> dict[str, Any]:
        """Describe it for a model store.

        Returns
        -------
        dict of str to ndarray
            Its attributes.
        """
        return {key: getattr(self, key) for key in ("mean", "deviation", "rarity", "seen", "coefficients")}


def label_frequency(Y: np.ndarray, known: np.ndarray | None) -> np.ndarray:
    """Work out the share of the known entries of every label that are 1.

    Parameters
    ----------
    Y : ndarray of shape (n, L)
        Labels, 0/1.
    known : ndarray of shape (n, L), bool, or None
        The entries of Y that are known; None: all.

    Returns
    -------
    ndarray of shape (L,)
        Shares; 0 of a label that is known of no sample.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.methods.calibration import label_frequency
    >>> label_frequency(np.array([[1, 0], [0, 0]]), np.array([[True, True], [False, True]])).tolist()
    [1.0, 0.0]
    """
    if known is None:
        return np.asarray(Y.sum(axis=0), np.float64) / len(Y)
    return np.asarray(np.where(known, Y, 0).sum(axis=0), np.float64) / np.maximum(known.sum(axis=0), 1)


def _newton(
    model: PooledProbabilities, scores: Sequence[np.ndarray], Y: np.ndarray, known: np.ndarray | None
) -> np.ndarray:
    """Coefficients of the largest likelihood, by Newton steps that are halved until the likelihood grows.

    z^2 of rare labels reaches thousands, where a full step from zero overshoots; columns are scaled to deviation 1, since
    the Hessian of the raw ones has a condition number of their squared scale.
    """

    def blocks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for where in model._blocks(len(Y)):
            picked = slice(None) if known is None else np.flatnonzero(known[where])
            yield model._regressors(scores, where)[picked], np.asarray(Y[where], np.float64).ravel()[picked]

    size = Y.size if known is None else max(1, int(known.sum()))
    scale = np.sqrt(sum(np.einsum("ij,ij->j", A, A) for A, _ in blocks()) / size)
    scale[scale == 0] = 1.0

    def loss(w: np.ndarray) -> float:
        found = 0.0
        for A, y in blocks():
            logit = A @ (w / scale)
            found += float(np.logaddexp(0, logit).sum() - y @ logit)
        return found / size

    w = np.zeros(len(scale))
    best = loss(w)
    for _ in range(_STEPS):
        gradient, hessian = np.zeros(len(w)), np.zeros((len(w), len(w)))
        for A, y in blocks():
            A = A / scale
            p = expit(A @ w)
            gradient += A.T @ (p - y)
            hessian += (A * (p * (1 - p))[:, None]).T @ A
        hessian.flat[:: len(w) + 1] += _SMALLEST * max(np.trace(hessian), 1.0)
        step = scipy.linalg.solve(hessian, gradient, assume_a="pos")
        while (found := loss(w - step)) > best and np.abs(step).max() > 1e-10:
            step = step / 2
        w, gained, best = w - step, best - found, min(best, found)
        if gained < 1e-12:
            break
    return w / scale
