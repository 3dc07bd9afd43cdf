"""The homogeneity family on operators, and the block Krylov space of the labels.

Kernel generalized homogeneity analysis and its special cases, on operators [KGHA: Xiong, Szedmak, Piater 2014].

All are the top eigenvectors X (n x p) of one map, M = H [sum_j w_j H_j] H / sum_j w_j with smoothers
H_j = K_j (K_j + c_j I)^-1 (eqs. 26, 27, 30, 33): KGHA weights every view by the balance and the labels by 1, multiple-set
CCA weights all views by 1, homogeneity analysis takes indicator matrices and c -> 0.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import scipy.linalg

from dmo.linalg.eigen import Basis, Eigenpairs, block_krylov, fix_signs
from dmo.linalg.rows import Home, WorkerRows, beside, hstack, lengths, located
from dmo.linalg.smoothers import LinearSmoother, Smoother
from dmo.linalg.tall import LinearMap, orthonormalize
from dmo.linalg.tiles import home_of
from dmo.progress import stage
from dmo.threads import in_threads, product, single_blas

Placed: TypeAlias = Callable[[np.ndarray], Any]
"""What puts tall blocks where a search is done."""
_LOST = 1e-6
"""Squared length, beside that of what was projected out, below which a direction is projected once more: a thousandth of
the length, where rounding by 1e-12 of it leaves `_STRAIGHT`."""
_STRAIGHT = 1e-9
"""What may be missing from orthonormality, a hundredth of the rounding of float32 rows."""


@dataclass(frozen=True)
class LabelSubspace:
    """The block Krylov space of the labels under given ridges: it is the same for every balance."""

    # With M = (w T + H_Y) / total, T the views' part, span{Y, MY, M^2 Y} = span{Y, TY, T^2 Y}, and H_Y is zero but on
    # the first block. Vectors are S v in stacked columns S, or v themselves.
    #
    # On the numerics: blocks are made orthonormal through their Gram matrix, twice where the first time leaves
    # directions whose length is near rounding orthonormal to few digits, and what T makes of a block is projected on
    # the others twice where little of it is new; directions below 3e-7 of the longest are left out, which is the
    # least residual that is seen. The residual of a Ritz pair is what T times the last block has outside of the
    # basis: all before that lies in it.

    views: LinearMap  # image (S'S v, or v) -> the vectors of T
    inner: LinearMap | None  # v -> S'S v; None: vectors are v themselves
    count: int  # views in T
    support: slice  # rows in which the first block is not zero
    blocks: tuple[np.ndarray, ...]  # (r, q): the basis, orthonormal in S'S; of the first block the rows `support`
    images: tuple[np.ndarray, ...]  # (r, q): S'S times the blocks
    labels: np.ndarray  # (q, q): H_Y projected on the first block
    projected: np.ndarray  # (m, m): T projected on the basis
    beyond: np.ndarray  # (r, last): what T times the last block has outside of the basis, and S'S times it
    beyond_image: np.ndarray  # (r, last): what T times the last block has outside of the basis, and S'S times it
    gap: np.ndarray  # (last, last): gram matrix of those columns

    @classmethod
    def of(
        cls,
        views: LinearMap,
        inner: LinearMap | None,
        count: int,
        first: np.ndarray,
        image: np.ndarray,
        labels: np.ndarray,
        support: slice = slice(None),
    ) -> LabelSubspace:
        """Take the first block: the labels themselves.

        first, image (r, q)
        """
        none = np.zeros((0, 0))
        return cls(views, inner, count, support, (), (), labels, none, none, none, none)._with(first, image)

    def longer(self) -> LabelSubspace:
        """Take one block more: what T times the last one has outside of the basis."""
        block, image, gap = self.beyond, self.beyond_image, self.gap
        projected = self.projected[:, -len(gap) :]
        most = max(np.einsum("ij,ij->j", projected, projected).max(), np.diagonal(gap).max())
        if np.linalg.eigvalsh(gap)[0] < _LOST * most:
            left = np.vstack([other.T @ block for other in self.images])
            alias, block = image is block, self._less(block.copy(), left)
            image = block if alias else image - self.image(left)
            gap = block.T @ image
        return self._with(*orthonormal(block, image, (gap + gap.T) / 2))

    def _with(self, block: np.ndarray, image: np.ndarray) -> LabelSubspace:
        """The space with an orthonormal block more."""
        found = replace(self, blocks=(*self.blocks, block), images=(*self.images, image))
        old, beyond = len(self.projected), self.views(image)
        column = np.vstack([own.T @ beyond for own in found.images])
        T = np.zeros((old + image.shape[1],) * 2)
        T[:old, :old], T[:, old:], T[old:] = self.projected, column, column.T
        beyond = found._less(beyond, column)
        beyond_image = beyond if self.inner is None else self.inner(beyond)
        gap = beyond.T @ beyond_image
        return replace(found, projected=(T + T.T) / 2, beyond=beyond, beyond_image=beyond_image, gap=(gap + gap.T) / 2)

    def _less(self, vectors: np.ndarray, coordinates: np.ndarray) -> np.ndarray:
        """Take the vectors of the basis with these coordinates (m x k) off, in place."""
        for number, (block, part) in enumerate(_paired(self.blocks, coordinates)):
            vectors[slice(None) if number else self.support] -= block @ part
        return vectors

    def image(self, coordinates: np.ndarray) -> np.ndarray:
        """Work out S'S times vectors of the basis.

        coordinates (m, k) -> (r, k)
        """
        found = np.zeros((len(self.images[0]), coordinates.shape[1]))
        for image, part in _paired(self.images, coordinates):
            found += image @ part
        return found

    @property
    def complete(self) -> bool:
        """Whether T leads nowhere else."""
        return not self.gap.size or bool(np.diagonal(self.gap).max() <= 0)

    def fit(self, balance: float, k: int) -> Eigenpairs:
        """Find the Ritz pairs for a balance."""
        total, m = balance * self.count + 1.0, len(self.projected)
        M = balance / total * self.projected
        M[: len(self.labels), : len(self.labels)] += self.labels / total
        # all pairs by divide and conquer take half the time of the largest alone by LAPACK's other methods
        values, vectors = np.linalg.eigh(M)
        values, vectors = values[::-1][:k], vectors[:, ::-1][:, :k]
        last = vectors[m - len(self.gap) :]
        lengths = balance / total * np.sqrt(np.maximum(np.einsum("ij,ij->j", last, self.gap @ last), 0.0))
        residuals = lengths / max(abs(values[0]), np.finfo(float).tiny)
        return Eigenpairs(values, vectors, residuals, [float(values.sum())], True)

    def grown(self, balance: float, k: int, residual: float, most: int) -> tuple[LabelSubspace, Eigenpairs | None]:
        """Take as many blocks more as it needs for residuals that are small enough."""
        space = self
        while True:
            pairs = space.fit(balance, k)
            if pairs.residuals.max(initial=0.0) <= residual:
                return space, pairs
            if space.complete or len(space.projected) >= most:
                return space, None
            space = space.longer()


def _paired(blocks: Sequence[np.ndarray], coordinates: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(block, its rows of the coordinates), while there are rows."""
    start = 0
    for block in blocks:
        if start < len(coordinates):
            yield block, coordinates[start : start + block.shape[1]]
        start += block.shape[1]


def orthonormal(block: np.ndarray, image: np.ndarray, gram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Combine columns, and their images, so that their Gram matrix is the identity.

    block (r, q); image (s, q); gram (q, q) -> block (r, p); image (s, p)
    """
    for _ in range(2):
        values, vectors = np.linalg.eigh(gram)
        keep = values > 1e-13 * max(values[-1], np.finfo(float).tiny)
        turn = vectors[:, keep] / np.sqrt(values[keep])
        alias = image is block
        block = block @ turn
        image = block if alias else image @ turn
        gram = block.T @ image
        gram = (gram + gram.T) / 2
        if abs(gram - np.eye(len(gram))).max(initial=0.0) < _STRAIGHT:
            break
    return block, image


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
        """X = M^-1/2 U, zeros for samples without any weight."""
        return U if self._unit is None else U * beside(U, self._inverse)

    def __call__(self, B: np.ndarray) -> np.ndarray:
        """Map the columns of B (n x k)."""
        B = self.coordinates(self._centered(B))
        if self.direct:
            found = iter(in_threads(lambda part: part[0](B), self._parts))
        else:  # products with tiles have threads, or workers, of their own
            found = (self._smoothed(smoother, B) for smoother, _ in self._parts)
        image = reduce(operator.add, (part * beside(B, own) for part, own in zip(found, self._weights, strict=True)))
        return self._centered(self.coordinates(image))

    def _smoothed(self, smoother: LinearMap, B: Any) -> Any:
        if not isinstance(B, WorkerRows) or isinstance(smoother, LinearSmoother) or _on_workers(smoother):
            return smoother(B)
        return B.home.send(smoother(np.asarray(B)))  # by a factor in this process, or of some of the samples

    def home(self, size: int) -> Home | None:
        """Where rows live that all of these smoothers multiply, and forget if workers are lost; None: in this process."""
        own: list[Any] = [smoother for smoother, _ in self._parts if _on_workers(smoother)]
        homes: list[Any] = [home_of(smoother.solver.A, size) for smoother in own]
        if not homes or homes[0] is None or any(home.parts != homes[0].parts for home in homes):
            return None

        def lost() -> None:
            for smoother, home in zip(own, homes, strict=True):
                smoother.forget()
                home.lost()

        return Home(homes[0].client, homes[0].parts, homes[0].places, lost)

    @property
    def direct(self) -> bool:
        """Whether every smoother solves by factors in this process's memory, so that they may work side by side."""
        return all(not getattr(part, "iterative", True) for part, _ in self._parts)

    def loosen(self, error: float) -> None:
        """Let smoothers whose less exact solutions cost less be that from now on."""
        # A small balance pays twice: the labels' smoother, which is direct, makes the eigenvalues, and errors of the
        # views count by their share.
        adaptive: list[Any] = [(part, share) for part, share in self._parts if getattr(part, "adaptive", False)]
        for smoother, _ in adaptive:
            smoother.loosen(min(_ROUGHEST, error / sum(share for _, share in adaptive)))


def _on_workers(smoother: LinearMap) -> bool:
    """Whether it is that of a kernel whose tiles are on workers."""
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
    """Find X by block Krylov with Rayleigh-Ritz, started from the centered labels (random where there are none or too
    few).
    labels (n, L)
    """
    # with a small balance M is nearly the labels' smoother, so that X nearly lies in their span: two steps are mostly enough,
    # where a random start meets eigenvalues that crowd just below 1 and crawls
    loosen = apply.loosen if isinstance(apply, HomogeneityMap) else None

    def search(placed: Placed) -> Eigenpairs:
        start = placed(np.zeros((n, 0)) if labels is None else labels - labels.mean(axis=0))
        start = orthonormalize(start) if labels is not None else start
        if start.shape[1] < k:
            # ten more than asked for: of a random block the last directions converge last; n - 1, as the mean is no direction
            extra = min(k - start.shape[1] + 10, n - 1 - start.shape[1])
            noise = np.random.default_rng(random_state).standard_normal((n, max(extra, k - start.shape[1])))
            start = hstack([start, orthonormalize(placed(noise - noise.mean(axis=0)), against=start)])
        return block_krylov(apply, start, k, tol, max_steps, loosen=loosen)

    return _searched(apply, n * (k if labels is None else labels.shape[1]), search)


def _searched(apply: LinearMap, size: int, search: Callable[[Placed], Eigenpairs]) -> Eigenpairs:
    """Search where the map is applied to blocks of so many numbers."""
    if not isinstance(apply, HomogeneityMap):
        return search(np.asarray)
    with single_blas() if apply.direct else nullcontext():
        return located(lambda: apply.home(size), search)


def alternating_least_squares(
    apply: LinearMap, n: int, k: int, tol: float = 1e-6, max_iter: int = 300, random_state: int | None = None
) -> Eigenpairs:
    """Find X by the paper's iteration from a random start, until the residuals of the Ritz pairs are at most `tol`."""
    # The paper replaces X by an orthonormal basis of M X. This is orthogonal iteration: with a small balance the wanted
    # eigenvalues are crowded, and the objective tr(X'M X) hardly changes between steps long before X is an eigenspace.
    # Hence the iteration stops on the residual, and a step takes the k best Ritz vectors of the span of X, M X and the X
    # before, which contains the step of the paper. The objective never decreases. `history` of the result holds the
    # objective after each application of M. The images of X and of the X before are combinations of known ones.
    #
    # Xiong, Szedmak, Piater 2014, section 3 [KGHA 26-33]; the span: Knyazev 2001 (LOBPCG).
    noise = np.random.default_rng(random_state).standard_normal((n, k))
    # the X and the objectives of the last complete step, from which the search resumes if workers are lost
    kept: tuple[np.ndarray, list[float]] = noise - noise.mean(axis=0), []

    def search(placed: Placed) -> Eigenpairs:
        nonlocal kept
        block, history = orthonormalize(placed(kept[0])), list(kept[1])
        basis = Basis.of(block)
        with stage("alternating least squares", max_iter) as advance:
            advance(len(history))
            while True:
                basis = basis.mapped(block, apply, None)
                values, vectors = basis.ritz()
                values, turn = values[:k], vectors[:, :k]
                X = product(basis.V, turn)
                rest = product(basis.image, turn) - X * values
                residuals = lengths(rest) / abs(values[0])
                history.append(float(values.sum()))
                advance(1)
                converged = bool((residuals <= tol).all())
                if converged or len(history) >= max_iter:
                    break
                kept = np.asarray(X), list(history)
                # the first k columns of the basis are the X before
                basis = basis.restarted(np.hstack([turn, np.eye(len(turn), k)]))
                block = orthonormalize(rest, against=basis.V)
                if not block.shape[1]:  # the basis is invariant; the residual is floating-point error of the map
                    converged = True
                    break
                basis = basis.extended(block)
        return Eigenpairs(values, fix_signs(np.asarray(X)), residuals, history, converged)

    return _searched(apply, n * k, search)


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

    def __init__(self, Y: np.ndarray, steps: int = _STEPS):
        self.Y, self._start, self._steps = Y, orthonormalize(Y - Y.mean(axis=0)), steps
        self._last: tuple[Any, LabelSubspace] | None = None

    def coordinates(
        self, key: Any, views: Sequence[LinearMap], labels: LinearMap, balance: float, k: int, tol: float
    ) -> Eigenpairs | None:
        """Find the top k with vectors in the shared basis; None if the basis would become too large.

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
        """The basis of the last solution.

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
        """Find the top k of the homogeneity map."""
        pairs = self.coordinates(key, views, labels, balance, k, tol)
        if pairs is not None:
            assert self._last is not None
            return replace(pairs, vectors=fix_signs(self._last[1].image(pairs.vectors)))
        apply = HomogeneityMap([*views, labels], [balance] * len(views) + [1.0])
        return krylov(apply, len(self.Y), k, self.Y, tol, max_steps, random_state)

    def _first(self, views: Sequence[LinearMap], labels: LinearMap) -> LabelSubspace:
        """The centered labels; T = H [sum_j H_j] H, and H_Y is centered by what it is multiplied with on both sides."""
        mean, start = HomogeneityMap(views, [1.0] * len(views)), self._start
        projected = start.T @ labels(start)
        return LabelSubspace.of(lambda B: len(views) * mean(B), None, len(views), start, start, projected)
