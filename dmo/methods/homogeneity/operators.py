"""Kernel generalized homogeneity analysis and its special cases, on operators [KGHA: Xiong, Szedmak, Piater 2014].

All are the top eigenvectors X (n x p) of one map, M = H [sum_j w_j H_j] H / sum_j w_j with smoothers
H_j = K_j (K_j + c_j I)^-1 (eqs. 26, 27, 30, 33): KGHA weights every view by the balance and the labels by 1, multiple-set
CCA weights all views by 1, homogeneity analysis takes indicator matrices and c -> 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.linalg

from dmo.kernels.threads import in_threads, single_blas
from dmo.linalg.eigen import Eigenpairs, block_krylov, fix_signs
from dmo.linalg.smoothers import LinearSmoother, Smoother
from dmo.linalg.tall import LinearMap, orthonormalize
from dmo.methods.homogeneity.label_subspace import LabelSubspace
from dmo.progress import stage

_CUTOFF = 1e-8  # singular values of the loadings, beside the largest, that are noise
_ROUGHEST = 0.1  # relative residual of the least exact solves: beyond it they save no product


class HomogeneityMap:
    """The map whose top eigenvectors are the homogeneity family: M = H [sum_j w_j H_j] H / sum_j w_j.

    weights (n,), by smoother: how often every sample counts there, 0 where the view lacks it
    """

    # [KGHA 26, 27, 30, 33]. Samples that a group lacks are passive [Gifi 1990, chapter 2]: with D_j = diag(weights),
    # M = sum_j w_j D_j / sum_j w_j and U = M^1/2 X, the eigenproblem sum_j w_j D_j H_j X = sum_j w_j M X Lambda is that of
    # the symmetric map M^-1/2 sum_j (w_j / sum_j w_j) D_j H_j M^-1/2, which leaves out the direction M^1/2 1.

    def __init__(
        self,
        smoothers: Sequence[LinearMap],
        shares: Sequence[float],
        weights: Sequence[np.ndarray] | None = None,
    ):
        total = float(sum(shares))
        self._parts = [(smoother, share / total) for smoother, share in zip(smoothers, shares, strict=True)]
        self._counts: list[Any] = [1.0] * len(self._parts) if weights is None else [D[:, None] for D in weights]
        self._unit: np.ndarray | None = None
        self.roots: Any = 1.0
        self._inverse: Any = 1.0
        if weights is not None:
            mass = sum(share * D for (_, share), D in zip(self._parts, self._counts, strict=True))
            self.roots = np.sqrt(mass)
            self._inverse = np.divide(1.0, self.roots, out=np.zeros_like(self.roots), where=self.roots > 0)
            self._unit = self.roots / np.linalg.norm(self.roots)

    def _centered(self, U: np.ndarray) -> np.ndarray:
        return np.asarray(U - (U.mean(axis=0) if self._unit is None else self._unit @ (self._unit.T @ U)))

    def coordinates(self, U: np.ndarray) -> np.ndarray:
        """X = M^-1/2 U, zeros for samples without any weight."""
        return U if self._unit is None else self._inverse * U

    def __call__(self, B: np.ndarray) -> np.ndarray:
        """Map the columns of B (n x k)."""
        B = self.coordinates(self._centered(B))
        image = np.zeros_like(B)
        if self.direct:
            found = iter(in_threads(lambda part: part[0](B), self._parts))
        else:  # products with tiles have threads, or workers, of their own
            found = (smoother(B) for smoother, _ in self._parts)
        for part, (_, share), counts in zip(found, self._parts, self._counts, strict=True):
            image += share * counts * part
        return self._centered(self.coordinates(image))

    @property
    def direct(self) -> bool:
        """Whether every smoother solves by factors in this process's memory, so that they may work side by side."""
        return all(
            isinstance(part, LinearSmoother) or (isinstance(part, Smoother) and not part.iterative)
            for part, _ in self._parts
        )

    def loosen(self, error: float) -> None:
        """Let smoothers whose less exact solutions cost less be that from now on."""
        # A small balance pays twice: the labels' smoother, which is direct, makes the eigenvalues, and errors of the
        # views count by their share.
        adaptive = [(part, share) for part, share in self._parts if isinstance(part, Smoother) and part.adaptive]
        for smoother, _ in adaptive:
            smoother.loosen(min(_ROUGHEST, error / sum(share for _, share in adaptive)))


def krylov(
    apply: LinearMap,
    n: int,
    k: int,
    labels: np.ndarray | None = None,
    tol: float = 1e-7,
    max_steps: int = 30,
    random_state: int | None = None,
) -> Eigenpairs:
    """Find X by block Krylov with Rayleigh-Ritz, started from the centered labels (random where there are none or too
    few).
    labels (n, L)
    """
    rng = np.random.default_rng(random_state)
    # with a small balance M is nearly the labels' smoother, so that X nearly lies in their span: two steps are mostly enough,
    # where a random start meets eigenvalues that crowd just below 1 and crawls
    start = np.zeros((n, 0)) if labels is None else orthonormalize(labels - labels.mean(axis=0))
    if start.shape[1] < k:
        # ten more than asked for: of a random block the last directions converge last; n - 1, as the mean is no direction
        extra = min(k - start.shape[1] + 10, n - 1 - start.shape[1])
        noise = rng.standard_normal((n, max(extra, k - start.shape[1])))
        start = np.hstack([start, orthonormalize(noise - noise.mean(axis=0), against=start)])
    if not isinstance(apply, HomogeneityMap):
        return block_krylov(apply, start, k, tol, max_steps)
    with single_blas() if apply.direct else nullcontext():
        return block_krylov(apply, start, k, tol, max_steps, loosen=apply.loosen)


def alternating_least_squares(
    apply: LinearMap, n: int, k: int, tol: float = 1e-6, max_iter: int = 300, random_state: int | None = None
) -> Eigenpairs:
    """Find X by the paper's iteration: X <- Gram-Schmidt(M X) from a random start, until tr(X'M X) stands still."""
    # Orthogonal iteration on M: the objective rises to the sum of the top k eigenvalues from below, slowly where the
    # balance is small. `history` of the result holds the objective per iteration.
    #
    # Xiong, Szedmak, Piater 2014, section 3 [KGHA 26-33].
    X = np.random.default_rng(random_state).standard_normal((n, k))
    X = orthonormalize(X - X.mean(axis=0))
    history: list[float] = []
    converged = False
    with stage("alternating least squares", max_iter) as advance:
        for _ in range(max_iter):
            image = apply(X)
            projected = X.T @ image
            history.append(float(np.trace(projected)))
            advance(1)
            converged = len(history) > 1 and abs(history[-1] - history[-2]) <= tol * abs(history[-1])
            if converged:
                break
            X, _ = np.linalg.qr(
                image
            )  # Gram-Schmidt of the paper; Householder's keeps X orthonormal where columns align
    # the iteration finds the span; within it, the eigenvectors come from the k x k projection
    values, rotation = np.linalg.eigh((projected + projected.T) / 2)
    values, rotation = values[::-1], rotation[:, ::-1]
    vectors = fix_signs(X @ rotation)
    residuals = np.linalg.norm(apply(vectors) - vectors * values, axis=0) / abs(values[0])
    return Eigenpairs(values, vectors, residuals, history, converged)


def decoder(loadings: np.ndarray) -> np.ndarray:
    """Work out the decoder pinv(Q) of the labels' loadings: scores = X_hat pinv(Q).

    loadings (L, p) -> (p, L)
    """
    # Singular values below 1e-8 times the largest are dropped. Where the condition of Q says that there are none,
    # R^-1 U' of Q = U R takes a third of the time.
    #
    # [KGHA 31].
    Q = np.asarray(loadings, np.float64)
    factors = _triangular(Q)
    if factors is not None:
        U, R = factors
        return np.ascontiguousarray(scipy.linalg.solve_triangular(R, U.T, check_finite=False))
    return np.ascontiguousarray(np.linalg.pinv(Q, rcond=_CUTOFF))


def nested_decoder(loadings: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Work out the decoders of all leading components at once: those of k are T[:k, :k] U[:, :k]'.

    loadings (L, p) -> (p, p)
    """
    # With Q = U R, the leading columns of Q have the leading block of R, whose inverse is the leading block of T =
    # R^-1.
    #
    # [KGHA 31].
    factors = _triangular(np.asarray(loadings, np.float64))
    if factors is None:
        return None
    U, R = factors
    return scipy.linalg.solve_triangular(R, np.eye(len(R)), check_finite=False), U


def _triangular(Q: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """(U, R) of Q = U R where the condition of Q says that no singular value is noise."""
    if Q.shape[0] < Q.shape[1]:
        return None
    U, R = scipy.linalg.qr(Q, mode="economic", check_finite=False)
    condition, _ = scipy.linalg.lapack.dtrcon(R)  # the reciprocal one, within a factor p of the singular values'
    return (U, R) if condition > _CUTOFF * len(R) else None


_STEPS = 12
"""Blocks of the labels that settings share, at most; each is as large as the labels."""


class SharedKrylov:
    """Embeddings of many settings of the same samples: those that differ in balance alone share a block Krylov space.

    Y (n, L)
    """

    # A setting that the space has not solved with `_STEPS` blocks, or that asks for more components than the labels
    # have dimensions, is solved for itself.

    def __init__(self, Y: np.ndarray):
        self.Y, self._start = Y, orthonormalize(Y - Y.mean(axis=0))
        self._last: tuple[Any, LabelSubspace] | None = None

    def fit(
        self,
        key: Any,
        views: Sequence[LinearMap],
        labels: LinearMap,
        balance: float,
        k: int,
        tol: float,
        max_steps: int,
        random_state: int | None,
    ) -> Eigenpairs:
        """Find the top k of the homogeneity map."""
        rank = self._start.shape[1]
        if k <= rank:
            space = self._last[1] if self._last is not None and self._last[0] == key else self._first(views, labels)
            space, pairs = space.grown(balance, k, tol, min(_STEPS * rank, len(self.Y)))
            self._last = key, space
            if pairs is not None:
                return replace(pairs, vectors=fix_signs(space.image(pairs.vectors)))
        apply = HomogeneityMap([*views, labels], [balance] * len(views) + [1.0])
        return krylov(apply, len(self.Y), k, self.Y, tol, max_steps, random_state)

    def _first(self, views: Sequence[LinearMap], labels: LinearMap) -> LabelSubspace:
        """The centered labels; T = H [sum_j H_j] H, and H_Y is centered by what it is multiplied with on both sides."""
        mean, start = HomogeneityMap(views, [1.0] * len(views)), self._start
        projected = start.T @ labels(start)
        return LabelSubspace.of(lambda B: len(views) * mean(B), None, len(views), start, start, projected)
