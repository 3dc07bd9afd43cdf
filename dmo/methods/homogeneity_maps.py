"""Eigensolvers of kernel generalized homogeneity analysis and its special cases [KGHA: Xiong, Szedmak, Piater 2014].

KGHA, multiple-set CCA and homogeneity analysis compute the leading eigenvectors X of the matrix

    M = H [sum_j w_j H_j] H / sum_j w_j,   H_j = K_j (K_j + c_j I)^-1,

where H is the centering matrix, K_j is the kernel matrix of view j, c_j is its ridge, and w_j is its weight
(equations 26, 27, 30 and 33). In KGHA, the labels are an additional view of weight 1, and all other views have the
weight `balance`. In multiple-set CCA, all views have weight 1. Homogeneity analysis is the case of indicator matrices
and ridges close to 0.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import scipy.linalg

from dmo.linalg.eigen import SHARE, Basis, Eigenpairs, Slack, block_krylov, fix_signs
from dmo.linalg.rows import Home, WorkerRows, beside, hstack, lengths, located
from dmo.linalg.smoothers import LinearSmoother, Smoother
from dmo.linalg.tall import LinearMap, orthonormalize
from dmo.linalg.tiles import home_of
from dmo.progress import stage
from dmo.threads import in_threads, product, single_blas

Placed: TypeAlias = Callable[[np.ndarray], Any]
"""Type of a function that stores a block of vectors in client memory or on Dask workers."""
_LOST = 1e-6
"""Relative squared length of a vector after orthogonalization, below which it is orthogonalized again.

If the length shrinks to a thousandth, a floating-point error of 1e-12 becomes an error of 1e-9 in the direction."""
_STRAIGHT = 1e-9
"""Tolerance for the orthonormality of a basis, a hundredth of the floating-point error of float32."""


@dataclass(frozen=True)
class LabelSubspace:
    """Block Krylov space that starts from the labels and is the same for all values of the parameter `balance`."""

    # M is a weighted sum of T = H [sum_j H_j] H for the views j, and of a label smoother whose range is the span of the
    # labels Y. Therefore, span{Y, MY, M^2 Y} = span{Y, TY, T^2 Y} for all weights.
    #
    # New blocks T V are orthogonalized against the basis, and orthonormalized with their Gram matrix. Directions
    # shorter than 3e-7 times the longest one are dropped, which limits the accuracy of the residuals. T maps all blocks
    # except the last one into the basis, so only the last block contributes to the residual of a Ritz pair.

    views: LinearMap  # function that multiplies vectors by T
    count: int  # number of views in T
    blocks: tuple[np.ndarray, ...]  # orthonormal basis, as blocks of shape (n, p)
    labels: np.ndarray  # projection of the label smoother on the first block, as a p x p matrix
    projected: np.ndarray  # projection of T on the basis, as an m x m matrix
    beyond: np.ndarray  # part of T times the last block that is orthogonal to the basis
    gap: np.ndarray  # Gram matrix of `beyond`

    @classmethod
    def of(cls, views: LinearMap, count: int, first: np.ndarray, labels: np.ndarray) -> LabelSubspace:
        """Create the space with a single block `first`, which contains the orthonormalized labels."""
        none = np.zeros((0, 0))
        return cls(views, count, (), labels, none, none, none)._with(first)

    def longer(self) -> LabelSubspace:
        """Return the space with one more block, which is T times the last block."""
        block, gap = self.beyond, self.gap
        projected = self.projected[:, -len(gap) :]
        most = max(np.einsum("ij,ij->j", projected, projected).max(), np.diagonal(gap).max())
        if np.linalg.eigvalsh(gap)[0] < _LOST * most:
            block = block - self.vectors(np.vstack([other.T @ block for other in self.blocks]))
            gap = block.T @ block
        return self._with(orthonormal(block, (gap + gap.T) / 2))

    def _with(self, block: np.ndarray) -> LabelSubspace:
        """Return the space with an additional block, which must be orthonormal."""
        found = replace(self, blocks=(*self.blocks, block))
        old, beyond = len(self.projected), self.views(block)
        column = np.vstack([own.T @ beyond for own in found.blocks])
        T = np.zeros((old + block.shape[1],) * 2)
        T[:old, :old], T[:, old:], T[old:] = self.projected, column, column.T
        beyond = beyond - found.vectors(column)
        gap = beyond.T @ beyond
        return replace(found, projected=(T + T.T) / 2, beyond=beyond, gap=(gap + gap.T) / 2)

    def vectors(self, coordinates: np.ndarray) -> np.ndarray:
        """Compute vectors from their coordinates in the basis, or in its first blocks."""
        found, start = np.zeros((len(self.blocks[0]), coordinates.shape[1])), 0
        for block in self.blocks:
            if start < len(coordinates):
                found += block @ coordinates[start : start + block.shape[1]]
            start += block.shape[1]
        return found

    @property
    def complete(self) -> bool:
        """Whether T maps the space into itself, so that all residuals are 0."""
        return not self.gap.size or bool(np.diagonal(self.gap).max() <= 0)

    def fit(self, balance: float, k: int) -> Eigenpairs:
        """Compute the k largest Ritz values, with their Ritz vectors and residuals, for a value of `balance`."""
        total, m = balance * self.count + 1.0, len(self.projected)
        M = balance / total * self.projected
        M[: len(self.labels), : len(self.labels)] += self.labels / total
        # `eigh` computes all eigenpairs by divide and conquer, in half the time of a solver for only the largest pairs.
        values, vectors = np.linalg.eigh(M)
        values, vectors = values[::-1][:k], vectors[:, ::-1][:, :k]
        last = vectors[m - len(self.gap) :]
        lengths = balance / total * np.sqrt(np.maximum(np.einsum("ij,ij->j", last, self.gap @ last), 0.0))
        residuals = lengths / max(abs(values[0]), np.finfo(float).tiny)
        return Eigenpairs(values, vectors, residuals, [float(values.sum())], True)

    def grown(self, balance: float, k: int, residual: float, most: int) -> tuple[LabelSubspace, Eigenpairs | None]:
        """Add blocks until all residuals are at most `residual`; return None if `most` basis vectors do not suffice."""
        space = self
        while True:
            pairs = space.fit(balance, k)
            if pairs.residuals.max(initial=0.0) <= residual:
                return space, pairs
            if space.complete or len(space.projected) >= most:
                return space, None
            space = space.longer()


def orthonormal(block: np.ndarray, gram: np.ndarray) -> np.ndarray:
    """Orthonormalize the columns of a block with the Gram matrix `gram`, and drop linearly dependent columns."""
    for _ in range(2):
        values, vectors = np.linalg.eigh(gram)
        keep = values > 1e-13 * max(values[-1], np.finfo(float).tiny)
        block = block @ (vectors[:, keep] / np.sqrt(values[keep]))
        gram = block.T @ block
        if abs(gram - np.eye(len(gram))).max(initial=0.0) < _STRAIGHT:
            break
    return block


_CUTOFF = 1e-8  # relative singular value below which label loadings are floating-point error
_ROUGHEST = 0.1  # maximum relative residual of inexact solves; larger residuals would not save products


class HomogeneityMap:
    """Weighted mean of centered smoothers, whose leading eigenvectors are the coordinates of the samples.

    Each smoother can have its own sample weights, which are 0 for samples that are missing from its view.
    """

    # The diagonal matrix D_j contains the sample weights of view j, and D = sum_j w_j D_j / sum_j w_j is their mean.
    # The coordinates X solve sum_j w_j D_j H_j X = sum_j w_j D X Lambda. With U = D^1/2 X, the matrix of this
    # eigenproblem is the symmetric D^-1/2 sum_j (w_j / sum_j w_j) D_j H_j D^-1/2. The map removes the trivial solution
    # D^1/2 1. A sample that is missing from a view is passive in the sense of Gifi 1990, chapter 2.

    def __init__(
        self,
        smoothers: Sequence[LinearMap],
        shares: Sequence[float],
        weights: Sequence[np.ndarray] | None = None,
    ):
        total = float(sum(shares))
        self._parts = [(smoother, share / total) for smoother, share in zip(smoothers, shares, strict=True)]
        self.direct = all(not getattr(part, "iterative", True) for part, _ in self._parts)
        """Whether all smoothers use matrix factors in client memory, so that they can run in parallel threads."""
        self._adaptive: list[Any] = [(part, share) for part, share in self._parts if getattr(part, "adaptive", False)]
        """Iterative smoothers that are faster if their solutions may be less accurate, with their weights."""
        self._weights: list[Any] = [share for _, share in self._parts]
        self._unit: np.ndarray | None = None
        self.roots: Any = 1.0
        self._inverse: Any = 1.0
        if weights is not None:
            self._weights = [share * D[:, None] for share, D in zip(self._weights, weights, strict=True)]
            mass = sum(self._weights)
            self.roots = np.sqrt(mass)
            self._inverse = np.divide(1.0, self.roots, out=np.zeros_like(self.roots), where=self.roots > 0)
            self._unit = self.roots / np.linalg.norm(self.roots)

    def _centered(self, U: np.ndarray) -> np.ndarray:
        if self._unit is None:
            return U - U.mean(axis=0)
        unit = beside(U, self._unit)
        return U - unit @ (unit.T @ U)

    def coordinates(self, U: np.ndarray) -> np.ndarray:
        """Convert eigenvectors to coordinates, which are 0 for samples without weight in any view."""
        return U if self._unit is None else U * beside(U, self._inverse)

    def __call__(self, B: np.ndarray) -> np.ndarray:
        """Multiply the columns of B by the mean of the smoothers."""
        B = self.coordinates(self._centered(B))
        if self.direct:
            found = iter(in_threads(lambda part: part[0](B), self._parts))
        else:  # Products with kernel tiles already use threads or workers, so run one smoother at a time.
            found = (self._smoothed(smoother, B) for smoother, _ in self._parts)
        image = reduce(operator.add, (part * beside(B, own) for part, own in zip(found, self._weights, strict=True)))
        return self._centered(self.coordinates(image))

    def _smoothed(self, smoother: LinearMap, B: Any) -> Any:
        if not isinstance(B, WorkerRows) or isinstance(smoother, LinearSmoother) or _on_workers(smoother):
            return smoother(B)
        # The smoother is not stored on workers, or covers only some samples, so multiply in the client process.
        return B.home.send(smoother(np.asarray(B)))

    def home(self, size: int) -> Home | None:
        """Return the workers that can store the blocks for all smoothers, or None to store them in the client."""
        own: list[Any] = [smoother for smoother, _ in self._parts if _on_workers(smoother)]
        homes: list[Any] = [home_of(smoother.solver.A, size) for smoother in own]
        if not homes or homes[0] is None or any(home.parts != homes[0].parts for home in homes):
            return None

        def lost() -> None:
            for smoother, home in zip(own, homes, strict=True):
                smoother.forget()
                home.lost()

        return Home(homes[0].client, homes[0].parts, homes[0].places, lost)

    def loosen(self, error: float) -> None:
        """Allow iterative smoothers to compute less accurate solutions."""
        # The errors of a smoother are multiplied by its fraction of the total weight, so a small fraction allows larger
        # errors.
        for smoother, _ in self._adaptive:
            smoother.loosen(min(_ROUGHEST, error / sum(share for _, share in self._adaptive)))


def _on_workers(smoother: LinearMap) -> bool:
    """Return whether the smoother uses a kernel matrix that is stored as tiles on workers."""
    solver: Any = smoother.solver if isinstance(smoother, Smoother) and smoother.iterative else None
    return solver is not None and home_of(solver.A) is not None


def krylov(
    apply: LinearMap,
    n: int,
    k: int,
    labels: np.ndarray | None = None,
    tol: float = 1e-7,
    max_steps: int = 30,
    random_state: int | None = None,
) -> Eigenpairs:
    """Compute the k leading eigenvectors by block Krylov iteration, which starts from the labels if there are labels.

    If the labels have fewer than k independent columns, random vectors are added.
    """
    # If the views have a small weight, the eigenvectors are close to the span of the labels, and two steps mostly
    # suffice. From a random start, convergence is slow, because many eigenvalues are just below 1.
    loosen = apply.loosen if isinstance(apply, HomogeneityMap) else None

    def search(placed: Placed) -> Eigenpairs:
        start = placed(np.zeros((n, 0)) if labels is None else labels - labels.mean(axis=0))
        start = orthonormalize(start) if labels is not None else start
        if start.shape[1] < k:
            # The last vectors of a random block converge slowly, so add ten extra vectors. Centered vectors of length n
            # span at most n - 1 dimensions.
            extra = min(k - start.shape[1] + 10, n - 1 - start.shape[1])
            noise = np.random.default_rng(random_state).standard_normal((n, max(extra, k - start.shape[1])))
            start = hstack([start, orthonormalize(placed(noise - noise.mean(axis=0)), against=start)])
        return block_krylov(apply, start, k, tol, max_steps, loosen=loosen)

    return _searched(apply, n * (k if labels is None else labels.shape[1]), search)


def _searched(apply: LinearMap, size: int, search: Callable[[Placed], Eigenpairs]) -> Eigenpairs:
    """Run an eigensolver in the client process, or on the workers that store the kernel matrices."""
    if not isinstance(apply, HomogeneityMap):
        return search(np.asarray)
    if apply.direct:
        with single_blas():
            return search(np.asarray)
    return located(lambda: apply.home(size), search)


_MARGIN = 4.0
"""Assumed maximum ratio between the Ritz vector coefficients for a new block and for the previous block."""


def alternating_least_squares(
    apply: LinearMap,
    n: int,
    k: int,
    tol: float = 1e-6,
    max_iter: int = 300,
    random_state: int | None = None,
    plain: bool = False,
) -> Eigenpairs:
    """Compute the k leading eigenvectors by alternating least squares, with acceleration unless `plain` is true."""
    # In the paper (Xiong, Szedmak, Piater 2014, section 3), each step replaces X with an orthonormal basis of M X. If
    # the eigenvalues are clustered, the objective tr(X'M X) stops changing long before X is an eigenspace, so
    # convergence is checked by the residual. An accelerated step uses the k best Ritz vectors in the span of X, its
    # residual and the previous X, as in LOBPCG [Knyazev 2001]. The span contains M X, so the objective never decreases.
    # Products of M with X and with the previous X are combinations of known products.
    noise = np.random.default_rng(random_state).standard_normal((n, k))
    # If workers are lost, the iteration resumes from X and the objectives of the last complete step.
    kept: tuple[np.ndarray, list[float]] = noise - noise.mean(axis=0), []
    loosen = apply.loosen if isinstance(apply, HomogeneityMap) else None

    def search(placed: Placed) -> Eigenpairs:
        nonlocal kept
        block, history = orthonormalize(placed(kept[0])), list(kept[1])
        basis, slack, worst = Basis.of(block), Slack(loosen, SHARE * tol), 1.0
        with stage("alternating least squares", max_iter) as advance:
            advance(len(history))
            while True:
                slack.before(block.shape[1], worst)
                basis = basis.mapped(block, apply, None)
                values, vectors = basis.ritz()
                values, turn = values[:k], vectors[:, :k]
                X = product(basis.V, turn)
                rest = product(basis.image, turn) - X * values
                residuals = lengths(rest) / abs(values[0])
                # An error of the next product enters the Ritz vectors with their coefficients for the new block. These
                # coefficients are not known yet, so estimate them by the coefficients for the current block and a
                # safety factor.
                worst = min(1.0, _MARGIN * np.linalg.norm(turn[-block.shape[1] :], axis=0).max(initial=0.0))
                history.append(float(values.sum()))
                advance(1)
                converged = bool((residuals <= tol).all())
                inexact = converged and slack.errors_of(turn).max(initial=0.0) > tol
                converged = converged and not inexact
                if converged or len(history) >= max_iter:
                    break
                kept = np.asarray(X), list(history)
                if plain or inexact:
                    # If the products were too inexact, restart from X with more accurate products. Otherwise, continue
                    # with M X as in the paper.
                    block = orthonormalize(X if inexact else product(basis.image, turn))
                    basis, slack = Basis.of(block), Slack(loosen, SHARE * tol, tight=inexact)
                    continue
                # The first k columns of the basis are the previous X.
                span = np.hstack([turn, np.eye(len(turn), k)])
                basis = basis.restarted(span)
                slack.restarted(np.linalg.qr(span)[0])
                block = orthonormalize(rest, against=basis.V)
                if not block.shape[1]:  # The basis is invariant, so the residual is floating-point error.
                    converged = True
                    break
                basis = basis.extended(block)
        return Eigenpairs(values, fix_signs(np.asarray(X)), residuals, history, converged)

    return _searched(apply, n * k, search)


def decoder(loadings: np.ndarray) -> np.ndarray:
    """Compute the pseudo-inverse of the label loadings, which converts coordinates to label scores [KGHA 31]."""
    # Singular values below 1e-8 times the largest are dropped. A well-conditioned matrix has no such values, so a QR
    # decomposition computes the pseudo-inverse in a third of the time.
    Q = np.asarray(loadings, np.float64)
    factors = _triangular(Q)
    if factors is not None:
        U, R = factors
        return np.ascontiguousarray(scipy.linalg.solve_triangular(R, U.T, check_finite=False))
    return np.ascontiguousarray(np.linalg.pinv(Q, rcond=_CUTOFF))


def nested_decoder(loadings: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Compute matrices T and U such that T[:k, :k] U[:, :k]' is the decoder of the first k components [KGHA 31]."""
    # In the QR decomposition Q = U R of the loadings, the first k columns of Q correspond to the leading k x k block of
    # R. Since R is triangular, the inverse of this block is the leading block of T = R^-1.
    factors = _triangular(np.asarray(loadings, np.float64))
    if factors is None:
        return None
    U, R = factors
    return scipy.linalg.solve_triangular(R, np.eye(len(R)), check_finite=False), U


def _triangular(Q: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the QR decomposition (U, R) of Q, or None if Q is ill-conditioned."""
    if Q.shape[0] < Q.shape[1]:
        return None
    U, R = scipy.linalg.qr(Q, mode="economic", check_finite=False)
    # For p columns, the reciprocal condition number from LAPACK is within a factor p of the ratio of the smallest to
    # the largest singular value.
    condition, _ = scipy.linalg.lapack.dtrcon(R)
    return (U, R) if condition > _CUTOFF * len(R) else None


_STEPS = 12
"""Maximum number of blocks in a Krylov space that hyperparameter candidates share."""


class SharedKrylov:
    """Eigensolver for many hyperparameter candidates, which share a Krylov space if they differ only in `balance`."""

    # A candidate is solved separately if the maximum number of blocks is not enough, or if the candidate has more
    # components than the rank of the labels.

    def __init__(self, Y: np.ndarray, steps: int = _STEPS):
        self.Y, self._start, self._steps = Y, orthonormalize(Y - Y.mean(axis=0)), steps
        self._last: tuple[Any, LabelSubspace] | None = None

    def coordinates(
        self, key: Any, views: Sequence[LinearMap], labels: LinearMap, balance: float, k: int, tol: float
    ) -> Eigenpairs | None:
        """Compute the k leading eigenpairs in the shared basis, or return None if the basis would become too large.

        The argument `key` identifies the ridges of a candidate.
        """
        rank = self._start.shape[1]
        if k > rank:
            return None
        space = self._last[1] if self._last is not None and self._last[0] == key else self._first(views, labels)
        space, pairs = space.grown(balance, k, tol, min(self._steps * rank, len(self.Y)))
        self._last = key, space
        return pairs

    @property
    def basis(self) -> np.ndarray:
        """Orthonormal basis of the last solution, as the columns of an array."""
        assert self._last is not None
        return np.hstack(self._last[1].blocks)

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
        """Compute the k leading eigenpairs of the mean of the smoothers."""
        pairs = self.coordinates(key, views, labels, balance, k, tol)
        if pairs is not None:
            assert self._last is not None
            return replace(pairs, vectors=self._last[1].vectors(pairs.vectors))
        apply = HomogeneityMap([*views, labels], [balance] * len(views) + [1.0])
        return krylov(apply, len(self.Y), k, self.Y, tol, max_steps, random_state)

    def _first(self, views: Sequence[LinearMap], labels: LinearMap) -> LabelSubspace:
        """Create the Krylov space whose first block contains the centered labels."""
        mean, start = HomogeneityMap(views, [1.0] * len(views)), self._start
        projected = start.T @ labels(start)
        return LabelSubspace.of(lambda B: len(views) * mean(B), len(views), start, projected)
