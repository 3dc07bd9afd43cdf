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

    Parameters
    ----------
    smoothers : sequence of callable
        H_j: take an n x k block, return its image.
    weights : sequence of float
        w_j.

    References
    ----------
    [KGHA 26, 27, 30, 33].

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.methods.homogeneity.operators import HomogeneityMap
    >>> HomogeneityMap([lambda B: B, lambda B: 0 * B], [1.0, 3.0])(np.array([[1.0], [-1.0]])).ravel()
    array([ 0.25, -0.25])
    """

    def __init__(self, smoothers: Sequence[LinearMap], weights: Sequence[float]):
        total = float(sum(weights))
        self._parts = [(smoother, weight / total) for smoother, weight in zip(smoothers, weights, strict=True)]

    def __call__(self, B: np.ndarray) -> np.ndarray:
        """Map the columns of B (n x k)."""
        B = B - B.mean(axis=0)
        image = np.zeros_like(B)
        if self.direct:
            found = iter(in_threads(lambda part: part[0](B), self._parts))
        else:  # products with tiles have threads, or workers, of their own
            found = (smoother(B) for smoother, _ in self._parts)
        for part, (_, share) in zip(found, self._parts, strict=True):
            image += share * part
        return image - image.mean(axis=0)

    @property
    def direct(self) -> bool:
        """Whether every smoother solves by factors in this process's memory, so that they may work side by side."""
        return all(
            isinstance(part, LinearSmoother) or (isinstance(part, Smoother) and not part.iterative)
            for part, _ in self._parts
        )

    def loosen(self, error: float) -> None:
        """Let smoothers whose less exact solutions cost less be that from now on.

        A small balance pays twice: the labels' smoother, which is direct, makes the eigenvalues, and errors of the views count
        by their share.

        Parameters
        ----------
        error : float
            Of M B at most, relative to every column of B.
        """
        adaptive = [(part, share) for part, share in self._parts if isinstance(part, Smoother) and part.adaptive]
        for smoother, _ in adaptive:
            smoother.loosen(min(_ROUGHEST, error / sum(share for _, share in adaptive)))


def passive_map(
    smoothers: Sequence[LinearMap], shares: Sequence[float], weights: Sequence[np.ndarray]
) -> tuple[LinearMap, np.ndarray]:
    """Make the map of the homogeneity family where groups lack samples, or samples have weights (Gifi's passive missing).

    With D_j = diag(weights), M = sum_j w_j D_j / sum_j w_j and U = M^1/2 X, the eigenproblem
    sum_j w_j D_j H_j X = sum_j w_j M X Lambda is that of the symmetric map M^-1/2 sum_j (w_j / sum_j w_j) D_j H_j M^-1/2.

    Parameters
    ----------
    smoothers : sequence of callable
        H_j: fitted values of the regression with weights D_j on group j; they may be anything where it lacks a sample.
    shares : sequence of float
        w_j.
    weights : sequence of ndarray of shape (n,)
        The diagonals of D_j, 0 where group j lacks a sample.

    Returns
    -------
    apply : callable
        The map of U, with the direction M^1/2 1 projected out.
    roots : ndarray of shape (n,)
        The diagonal of M^1/2.

    References
    ----------
    Gifi 1990, chapter 2 (missing data passive).

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.methods.homogeneity.operators import passive_map
    >>> apply, roots = passive_map([lambda B: B, lambda B: 0 * B], [1.0, 3.0], [np.ones(2), np.array([1.0, 0.0])])
    >>> roots.tolist()
    [1.0, 0.5]
    """
    parts = [share / sum(shares) * D for share, D in zip(shares, weights, strict=True)]
    roots = np.sqrt(np.sum(parts, axis=0))
    inverse = np.divide(1.0, roots, out=np.zeros_like(roots), where=roots > 0)[:, None]
    unit = (roots / np.linalg.norm(roots))[:, None]

    def apply(U: np.ndarray) -> np.ndarray:
        X = inverse * (U - unit * (unit.T @ U))
        image = np.zeros_like(X)
        for smoother, part in zip(smoothers, parts, strict=True):
            image += part[:, None] * smoother(X)
        image *= inverse
        return np.asarray(image - unit * (unit.T @ image))

    return apply, roots


def krylov(
    apply: LinearMap,
    n: int,
    k: int,
    labels: np.ndarray | None = None,
    tol: float = 1e-7,
    max_steps: int = 30,
    random_state: int | None = None,
) -> Eigenpairs:
    """Find X by block Krylov with Rayleigh-Ritz, started from the centered labels (random where there are none or too few).

    Parameters
    ----------
    apply : callable
        B -> M B.
    n : int
        Samples.
    k : int
        Components.
    labels : ndarray of shape (n, L), optional
        Where the search starts.
    tol : float, default=1e-7
        Of the eigenpairs' residuals.
    max_steps : int, default=30
        Products with blocks at most.
    random_state : int, optional
        Of random columns.

    Returns
    -------
    Eigenpairs
        X and its eigenvalues.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.linalg.smoothers import LinearSmoother
    >>> from dmo.methods.homogeneity.operators import HomogeneityMap, krylov
    >>> rng = np.random.default_rng(0)
    >>> views = [LinearSmoother(F - F.mean(axis=0), 1.0) for F in rng.normal(size=(2, 40, 5))]
    >>> krylov(HomogeneityMap(views, [1.0, 1.0]), 40, 2, random_state=0).vectors.shape
    (40, 2)
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
    """Find X by the paper's iteration: X <- Gram-Schmidt(M X) from a random start, until tr(X'M X) stands still.

    Orthogonal iteration on M: the objective rises to the sum of the top k eigenvalues from below, slowly where the
    balance is small. `history` of the result holds the objective per iteration.

    Parameters
    ----------
    apply : callable
        B -> M B.
    n : int
        Samples.
    k : int
        Components.
    tol : float, default=1e-6
        Relative change of the objective at which it stops.
    max_iter : int, default=300
        Iterations at most.
    random_state : int, optional
        Of the start.

    Returns
    -------
    Eigenpairs
        X and its eigenvalues.

    References
    ----------
    Xiong, Szedmak, Piater 2014, section 3 [KGHA 26-33].

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.methods.homogeneity.operators import alternating_least_squares
    >>> M = np.diag([1.0, 0.5, 0.0, 0.0]) - 0.25  # of centered blocks
    >>> H = np.eye(4) - 0.25
    >>> alternating_least_squares(lambda B: H @ (M @ (H @ B)), 4, 1, random_state=0).converged
    True
    """
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

    Singular values below 1e-8 times the largest are dropped. Where the condition of Q says that there are none, R^-1 U' of
    Q = U R takes a third of the time.

    Parameters
    ----------
    loadings : ndarray of shape (L, p)
        Q.

    Returns
    -------
    ndarray of shape (p, L)
        pinv(Q).

    References
    ----------
    [KGHA 31].

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.methods.homogeneity.operators import decoder
    >>> decoder(np.array([[3.0], [4.0]]))
    array([[0.12, 0.16]])
    """
    Q = np.asarray(loadings, np.float64)
    factors = _triangular(Q)
    if factors is not None:
        U, R = factors
        return np.ascontiguousarray(scipy.linalg.solve_triangular(R, U.T, check_finite=False))
    return np.ascontiguousarray(np.linalg.pinv(Q, rcond=_CUTOFF))


def nested_decoder(loadings: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Work out the decoders of all leading components at once: those of k are T[:k, :k] U[:, :k]'.

    With Q = U R, the leading columns of Q have the leading block of R, whose inverse is the leading block of T = R^-1.

    Parameters
    ----------
    loadings : ndarray of shape (L, p)
        Q.

    Returns
    -------
    tuple of ndarray of shape (p, p) and (L, p), or None
        T and U; None where singular values have to be dropped (see `decoder`).

    References
    ----------
    [KGHA 31].

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.methods.homogeneity.operators import nested_decoder
    >>> T, U = nested_decoder(np.array([[3.0], [4.0]]))
    >>> (T @ U.T).round(2)
    array([[0.12, 0.16]])
    """
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

    A setting that the space has not solved with `_STEPS` blocks, or that asks for more components than the labels have
    dimensions, is solved for itself.

    Parameters
    ----------
    Y : ndarray of shape (n, L)
        Labels.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.methods.homogeneity.operators import SharedKrylov
    >>> T, Y = np.diag([3.0, 2.0, 1.0, 0.0]), np.array([[1.0], [0.0], [0.0], [1.0]])
    >>> shared = SharedKrylov(Y)
    >>> [shared.fit("c", [lambda B: T @ B], lambda B: 0 * B, w, 1, 1e-6, 30, 0).values.size for w in (0.1, 1.0)]
    [1, 1]
    """

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
        """Find the top k of the homogeneity map.

        Parameters
        ----------
        key : object
            What tells the maps `views` and `labels` of two settings apart.
        views, labels : sequence of callable, callable
            Smoothers.
        balance : float
            Weight of every view against the labels' 1.
        k : int
            Components.
        tol : float
            Of the eigenpairs' residuals.
        max_steps : int
            Products with blocks at most, where a setting is solved for itself.
        random_state : int or None
            Of columns beside the labels.

        Returns
        -------
        Eigenpairs
            As `krylov` finds them.
        """
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
