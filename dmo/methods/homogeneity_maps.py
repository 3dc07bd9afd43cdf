"""Linear maps of kernel generalized homogeneity analysis and its special cases [KGHA: Xiong, Szedmak, Piater 2014].

All methods compute the top eigenvectors X (n x p) of one map, M = H [sum_j w_j H_j] H / sum_j w_j, with smoothers
H_j = K_j (K_j + c_j I)^-1 (eqs. 26, 27, 30, 33). KGHA uses the balance as the weight of each view and 1 for the labels.
Multiple-set CCA uses weight 1 for all views. Homogeneity analysis uses indicator matrices and c -> 0. The eigenvectors
are found in the block Krylov space of the labels.
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
"""Function that places n x k blocks on the client or on workers for a search."""
_LOST = 1e-6
"""Squared length, relative to the part that was projected out, below which a direction is projected again. It is the
square of a thousandth of the length; rounding of 1e-12 of the length then leaves an error of `_STRAIGHT`."""
_STRAIGHT = 1e-9
"""Tolerance of orthonormality, a hundredth of the rounding error of float32 rows."""


@dataclass(frozen=True)
class LabelSubspace:
    """Block Krylov space of the labels for given ridges, which is the same for every balance."""

    # With M = (w T + H_Y) / total, where T is the part of the views, span{Y, MY, M^2 Y} = span{Y, TY, T^2 Y}. H_Y is
    # zero except in the first block.
    #
    # Numerics: blocks are orthonormalized by their Gram matrix. This is repeated if the first result is inaccurate
    # because some directions are close to floating-point error. T times a block is projected on the other blocks, twice
    # if little of it is new. Directions below 3e-7 of the longest one are dropped, which limits the smallest residual
    # that can be measured. The residual of a Ritz pair is the part of T times the last block outside of the basis,
    # because T maps all earlier blocks into the basis.

    views: LinearMap  # v -> T v
    count: int  # number of views in T
    blocks: tuple[np.ndarray, ...]  # (n, q): the orthonormal basis
    labels: np.ndarray  # (q, q): H_Y projected on the first block
    projected: np.ndarray  # (m, m): T projected on the basis
    beyond: np.ndarray  # (n, last): part of T times the last block that is outside of the basis
    gap: np.ndarray  # (last, last): Gram matrix of `beyond`

    @classmethod
    def of(cls, views: LinearMap, count: int, first: np.ndarray, labels: np.ndarray) -> LabelSubspace:
        """Create the space with a single block, the orthonormalized labels.

        first (n, q); labels (q, q)
        """
        none = np.zeros((0, 0))
        return cls(views, count, (), labels, none, none, none)._with(first)

    def longer(self) -> LabelSubspace:
        """Add one block: the part of T times the last block that is outside of the basis."""
        block, gap = self.beyond, self.gap
        projected = self.projected[:, -len(gap) :]
        most = max(np.einsum("ij,ij->j", projected, projected).max(), np.diagonal(gap).max())
        if np.linalg.eigvalsh(gap)[0] < _LOST * most:
            block = block - self.vectors(np.vstack([other.T @ block for other in self.blocks]))
            gap = block.T @ block
        return self._with(orthonormal(block, (gap + gap.T) / 2))

    def _with(self, block: np.ndarray) -> LabelSubspace:
        """Return the space with an additional orthonormal block."""
        found = replace(self, blocks=(*self.blocks, block))
        old, beyond = len(self.projected), self.views(block)
        column = np.vstack([own.T @ beyond for own in found.blocks])
        T = np.zeros((old + block.shape[1],) * 2)
        T[:old, :old], T[:, old:], T[old:] = self.projected, column, column.T
        beyond = beyond - found.vectors(column)
        gap = beyond.T @ beyond
        return replace(found, projected=(T + T.T) / 2, beyond=beyond, gap=(gap + gap.T) / 2)

    def vectors(self, coordinates: np.ndarray) -> np.ndarray:
        """Compute the vectors with these coordinates in the basis, or in its first blocks.

        coordinates (m, k) -> (n, k)
        """
        found, start = np.zeros((len(self.blocks[0]), coordinates.shape[1])), 0
        for block in self.blocks:
            if start < len(coordinates):
                found += block @ coordinates[start : start + block.shape[1]]
            start += block.shape[1]
        return found

    @property
    def complete(self) -> bool:
        """Whether T maps the space into itself."""
        return not self.gap.size or bool(np.diagonal(self.gap).max() <= 0)

    def fit(self, balance: float, k: int) -> Eigenpairs:
        """Compute the k largest Ritz pairs for a balance."""
        total, m = balance * self.count + 1.0, len(self.projected)
        M = balance / total * self.projected
        M[: len(self.labels), : len(self.labels)] += self.labels / total
        # Computing all pairs by divide and conquer takes half the time of other LAPACK methods for the largest pairs.
        values, vectors = np.linalg.eigh(M)
        values, vectors = values[::-1][:k], vectors[:, ::-1][:, :k]
        last = vectors[m - len(self.gap) :]
        lengths = balance / total * np.sqrt(np.maximum(np.einsum("ij,ij->j", last, self.gap @ last), 0.0))
        residuals = lengths / max(abs(values[0]), np.finfo(float).tiny)
        return Eigenpairs(values, vectors, residuals, [float(values.sum())], True)

    def grown(self, balance: float, k: int, residual: float, most: int) -> tuple[LabelSubspace, Eigenpairs | None]:
        """Add blocks until all residuals are at most `residual`; return None if `most` directions do not suffice."""
        space = self
        while True:
            pairs = space.fit(balance, k)
            if pairs.residuals.max(initial=0.0) <= residual:
                return space, pairs
            if space.complete or len(space.projected) >= most:
                return space, None
            space = space.longer()


def orthonormal(block: np.ndarray, gram: np.ndarray) -> np.ndarray:
    """Combine columns so that their Gram matrix becomes the identity.

    block (n, q); gram (q, q) -> (n, p)
    """
    for _ in range(2):
        values, vectors = np.linalg.eigh(gram)
        keep = values > 1e-13 * max(values[-1], np.finfo(float).tiny)
        block = block @ (vectors[:, keep] / np.sqrt(values[keep]))
        gram = block.T @ block
        if abs(gram - np.eye(len(gram))).max(initial=0.0) < _STRAIGHT:
            break
    return block


_CUTOFF = 1e-8  # singular values of the loadings, relative to the largest, that are noise
_ROUGHEST = 0.1  # relative residual of the least accurate solves; larger ones would not save products


class HomogeneityMap:
    """Map M = H [sum_j w_j H_j] H / sum_j w_j, whose top eigenvectors are the embeddings of the homogeneity family.

    weights (n,) per smoother: sample weights, 0 for samples that are missing from the view
    """

    # [KGHA 26, 27, 30, 33]. Samples missing from a group are passive [Gifi 1990, chapter 2]: with D_j = diag(weights),
    # M = sum_j w_j D_j / sum_j w_j and U = M^1/2 X, the eigenproblem sum_j w_j D_j H_j X = sum_j w_j M X Lambda equals
    # that of the symmetric map M^-1/2 sum_j (w_j / sum_j w_j) D_j H_j M^-1/2, excluding the direction M^1/2 1.

    def __init__(
        self,
        smoothers: Sequence[LinearMap],
        shares: Sequence[float],
        weights: Sequence[np.ndarray] | None = None,
    ):
        total = float(sum(shares))
        self._parts = [(smoother, share / total) for smoother, share in zip(smoothers, shares, strict=True)]
        self.direct = all(not getattr(part, "iterative", True) for part, _ in self._parts)
        """Whether every smoother solves by factors in client memory, so that they can run in parallel threads."""
        self._adaptive: list[Any] = [(part, share) for part, share in self._parts if getattr(part, "adaptive", False)]
        """Smoothers that solve faster if solutions may be less accurate, with their weights."""
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
        """Compute X = M^-1/2 U, with zeros for samples that have no weight in any view."""
        return U if self._unit is None else U * beside(U, self._inverse)

    def __call__(self, B: np.ndarray) -> np.ndarray:
        """Map the columns of B (n x k)."""
        B = self.coordinates(self._centered(B))
        if self.direct:
            found = iter(in_threads(lambda part: part[0](B), self._parts))
        else:  # Products with tiles use their own threads or workers.
            found = (self._smoothed(smoother, B) for smoother, _ in self._parts)
        image = reduce(operator.add, (part * beside(B, own) for part, own in zip(found, self._weights, strict=True)))
        return self._centered(self.coordinates(image))

    def _smoothed(self, smoother: LinearMap, B: Any) -> Any:
        if not isinstance(B, WorkerRows) or isinstance(smoother, LinearSmoother) or _on_workers(smoother):
            return smoother(B)
        return B.home.send(smoother(np.asarray(B)))  # The factor is in the client process, or covers some samples only.

    def home(self, size: int) -> Home | None:
        """Return the workers whose rows all smoothers can multiply, or None for the client process."""
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
        """Allow less accurate solutions in smoothers that solve faster with them."""
        # A small balance reduces the cost twice: the direct smoother of the labels determines the eigenvalues, and
        # errors of the views are multiplied by their fraction of the weights.
        for smoother, _ in self._adaptive:
            smoother.loosen(min(_ROUGHEST, error / sum(share for _, share in self._adaptive)))


def _on_workers(smoother: LinearMap) -> bool:
    """Return whether the smoother uses a kernel whose tiles are on workers."""
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
    """Find X by block Krylov with Rayleigh-Ritz, starting from the centered labels and, if needed, random vectors.

    labels (n, L)
    """
    # With a small balance, M is close to the smoother of the labels, so X is close to their span and two steps are
    # mostly enough. A random start would converge slowly, because the eigenvalues are clustered just below 1.
    loosen = apply.loosen if isinstance(apply, HomogeneityMap) else None

    def search(placed: Placed) -> Eigenpairs:
        start = placed(np.zeros((n, 0)) if labels is None else labels - labels.mean(axis=0))
        start = orthonormalize(start) if labels is not None else start
        if start.shape[1] < k:
            # Ten extra directions, because the last ones of a random block converge last; at most n - 1, excluding the
            # mean.
            extra = min(k - start.shape[1] + 10, n - 1 - start.shape[1])
            noise = np.random.default_rng(random_state).standard_normal((n, max(extra, k - start.shape[1])))
            start = hstack([start, orthonormalize(placed(noise - noise.mean(axis=0)), against=start)])
        return block_krylov(apply, start, k, tol, max_steps, loosen=loosen)

    return _searched(apply, n * (k if labels is None else labels.shape[1]), search)


def _searched(apply: LinearMap, size: int, search: Callable[[Placed], Eigenpairs]) -> Eigenpairs:
    """Run a search where the blocks of `size` numbers are multiplied by the map: in the client or on workers."""
    if not isinstance(apply, HomogeneityMap):
        return search(np.asarray)
    if apply.direct:
        with single_blas():
            return search(np.asarray)
    return located(lambda: apply.home(size), search)


_MARGIN = 4.0
"""Factor by which coefficients of a block may exceed those of the block before it."""


def alternating_least_squares(
    apply: LinearMap,
    n: int,
    k: int,
    tol: float = 1e-6,
    max_iter: int = 300,
    random_state: int | None = None,
    plain: bool = False,
) -> Eigenpairs:
    """Find X by the iteration of the paper from a random start; with `plain`, without its acceleration."""
    # The paper replaces X by an orthonormal basis of M X, which is orthogonal iteration. With a small balance, the
    # wanted eigenvalues are clustered, and the objective tr(X'M X) stops changing long before X is an eigenspace.
    # Therefore the iteration stops based on the residual. Each accelerated step uses the k best Ritz vectors of the
    # span of X, its residual and the previous X, which contains the step of the paper. The objective never decreases.
    # `history` of the result contains the objective after each application of M. The images of X and of the previous X
    # are combinations of known images. The solves may be as inexact as the residual allows, as in `block_krylov`.
    # Xiong, Szedmak, Piater 2014, section 3 [KGHA 26-33]; the span: Knyazev 2001 (LOBPCG).
    noise = np.random.default_rng(random_state).standard_normal((n, k))
    # X and the objectives of the last complete step, from which the search resumes if workers are lost
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
                # Estimate the coefficients of the next block in the Ritz vectors, which multiply the errors of its image,
                # by those of this block. They mostly decrease, and the factor covers most exceptions.
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
                    # The step of the paper, or a restart from X whose images are exact enough.
                    block = orthonormalize(X if inexact else product(basis.image, turn))
                    basis, slack = Basis.of(block), Slack(loosen, SHARE * tol, tight=inexact)
                    continue
                # The first k columns of the basis are the previous X.
                span = np.hstack([turn, np.eye(len(turn), k)])
                basis = basis.restarted(span)
                slack.restarted(np.linalg.qr(span)[0])
                block = orthonormalize(rest, against=basis.V)
                if not block.shape[1]:  # The basis is invariant; the residual is floating-point error of the map.
                    converged = True
                    break
                basis = basis.extended(block)
        return Eigenpairs(values, fix_signs(np.asarray(X)), residuals, history, converged)

    return _searched(apply, n * k, search)


def decoder(loadings: np.ndarray) -> np.ndarray:
    """Compute the decoder pinv(Q) of the label loadings Q: scores = X_hat pinv(Q).

    loadings (L, p) -> (p, L)
    """
    # Singular values below 1e-8 times the largest are dropped. If the condition number of Q shows that there are none,
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
    """Compute the decoders of all numbers of leading components: the decoder of k components is T[:k, :k] U[:, :k]'.

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
    """Return (U, R) with Q = U R, or None if the condition number of Q indicates noisy singular values."""
    if Q.shape[0] < Q.shape[1]:
        return None
    U, R = scipy.linalg.qr(Q, mode="economic", check_finite=False)
    condition, _ = scipy.linalg.lapack.dtrcon(R)  # reciprocal; within a factor p of the ratio of singular values
    return (U, R) if condition > _CUTOFF * len(R) else None


_STEPS = 12
"""Maximum number of blocks that hyperparameter candidates share; each has as many columns as the labels."""


class SharedKrylov:
    """Embeddings for many hyperparameter candidates; candidates that differ only in balance share a Krylov space.

    Y (n, L)
    """

    # A candidate is solved separately if `_STEPS` blocks are not enough for it, or if it needs more components than the
    # rank of the labels.

    def __init__(self, Y: np.ndarray, steps: int = _STEPS):
        self.Y, self._start, self._steps = Y, orthonormalize(Y - Y.mean(axis=0)), steps
        self._last: tuple[Any, LabelSubspace] | None = None

    def coordinates(
        self, key: Any, views: Sequence[LinearMap], labels: LinearMap, balance: float, k: int, tol: float
    ) -> Eigenpairs | None:
        """Find the top k pairs with vectors in the shared basis; return None if the basis would become too large.

        `key` identifies the ridges.
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
        """Basis of the last solution.

        -> (n, m)
        """
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
        """Find the top k eigenpairs of the homogeneity map."""
        pairs = self.coordinates(key, views, labels, balance, k, tol)
        if pairs is not None:
            assert self._last is not None
            return replace(pairs, vectors=self._last[1].vectors(pairs.vectors))
        apply = HomogeneityMap([*views, labels], [balance] * len(views) + [1.0])
        return krylov(apply, len(self.Y), k, self.Y, tol, max_steps, random_state)

    def _first(self, views: Sequence[LinearMap], labels: LinearMap) -> LabelSubspace:
        """Create the space of the centered labels, with T = H [sum_j H_j] H; H_Y is applied to centered columns."""
        mean, start = HomogeneityMap(views, [1.0] * len(views)), self._start
        projected = start.T @ labels(start)
        return LabelSubspace.of(lambda B: len(views) * mean(B), len(views), start, projected)
