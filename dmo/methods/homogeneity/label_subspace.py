"""The block Krylov space of the labels, which fits of one ridge share whatever their balance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dmo.linalg.eigen import Eigenpairs
from dmo.linalg.tall import LinearMap


@dataclass(frozen=True)
class LabelSubspace:
    """The block Krylov space of the labels under given ridges: it is the same for every balance.

    With M = (w T + H_Y) / total, T the views' part, span{Y, MY, M^2 Y} = span{Y, TY, T^2 Y}, and H_Y is zero but on the
    first block. Vectors are S v in stacked columns S, or v themselves.

    On the numerics: blocks are made orthonormal through their Gram matrix, twice, since the first time leaves the directions
    whose length is near rounding orthonormal to three digits; directions below 3e-7 of the longest are left out, which is
    the least residual that is seen. The residual of a Ritz pair is what T times the last block has outside of the basis:
    all before that lies in it.

    Attributes
    ----------
    views : callable
        Image (S'S v, or v) -> the vectors of T.
    inner : callable or None
        v -> S'S v; None: vectors are v themselves.
    count : int
        Views in T.
    basis : ndarray of shape (r, m)
        Orthonormal in S'S.
    image : ndarray of shape (r, m)
        S'S times basis.
    labels : ndarray of shape (q, q)
        H_Y projected on the first block.
    projected : ndarray of shape (m, m)
        T projected on the basis.
    beyond, beyond_image : ndarray of shape (r, last)
        What T times the last block has outside of the basis, and S'S times it.
    gap : ndarray of shape (last, last)
        Gram matrix of those columns.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.methods.homogeneity.label_subspace import LabelSubspace
    >>> T, Y = np.diag([3.0, 2.0, 1.0]), np.array([[1.0], [1.0], [1.0]])
    >>> space = LabelSubspace.of(lambda B: T @ B, None, 1, Y, lambda V: np.zeros((1, 1)))
    >>> space, pairs = space.grown(balance=1.0, k=1, residual=1e-6, most=3)
    >>> space.basis.shape, (2 * pairs.values).round(6)
    ((3, 3), array([3.]))
    """

    views: LinearMap
    inner: LinearMap | None
    count: int
    basis: np.ndarray
    image: np.ndarray
    labels: np.ndarray
    projected: np.ndarray
    beyond: np.ndarray
    beyond_image: np.ndarray
    gap: np.ndarray

    @classmethod
    def of(
        cls,
        views: LinearMap,
        inner: LinearMap | None,
        count: int,
        start: np.ndarray,
        smoothed: Callable[[np.ndarray], np.ndarray],
    ) -> LabelSubspace:
        """Take the first block: the labels themselves.

        Parameters
        ----------
        views, inner, count : object
            As the attributes.
        start : ndarray of shape (r, q)
            The labels' columns.
        smoothed : callable
            Image of the first block (r x q) -> H_Y projected on it (q x q).

        Returns
        -------
        LabelSubspace
            Of one block.
        """
        image = start if inner is None else inner(start)
        basis, image = _orthonormal(start, image, start.T @ image)
        return cls._with(views, inner, count, basis, image, smoothed(image), np.zeros((0, 0)))

    def longer(self) -> LabelSubspace:
        """Take one block more: what T times the last one has outside of the basis.

        Returns
        -------
        LabelSubspace
            Of one block more.
        """
        block, block_image = _orthonormal(self.beyond, self.beyond_image, self.gap)
        basis = np.hstack([self.basis, block])
        image = basis if self.inner is None else np.hstack([self.image, block_image])
        return self._with(self.views, self.inner, self.count, basis, image, self.labels, self.projected)

    @classmethod
    def _with(
        cls,
        views: LinearMap,
        inner: LinearMap | None,
        count: int,
        basis: np.ndarray,
        image: np.ndarray,
        labels: np.ndarray,
        known: np.ndarray,
    ) -> LabelSubspace:
        """The space of `basis`; `known`: T projected on its blocks before the last."""
        old = len(known)
        block = views(image[:, old:])
        column = image.T @ block
        T = np.zeros((basis.shape[1],) * 2)
        T[:old, :old], T[:, old:], T[old:] = known, column, column.T
        block = block - basis @ column  # orthogonal to the basis in S'S, twice for the digits
        block -= basis @ (image.T @ block)
        beyond_image = block if inner is None else inner(block)
        gap = block.T @ beyond_image
        return cls(views, inner, count, basis, image, labels, (T + T.T) / 2, block, beyond_image, (gap + gap.T) / 2)

    @property
    def complete(self) -> bool:
        """Whether T leads nowhere else."""
        return not self.gap.size or bool(np.diagonal(self.gap).max() <= 0)

    def fit(self, balance: float, k: int) -> Eigenpairs:
        """Find the Ritz pairs for a balance.

        Parameters
        ----------
        balance : float
            Weight of every view against the labels' 1.
        k : int
            Pairs, at most as many as the basis has columns.

        Returns
        -------
        Eigenpairs
            With residuals; vectors in `basis`.
        """
        total, m = balance * self.count + 1.0, len(self.projected)
        M = balance * self.projected
        M[: len(self.labels), : len(self.labels)] += self.labels
        # all pairs by divide and conquer take half the time of the largest alone by LAPACK's other methods
        values, vectors = np.linalg.eigh(M / total)
        values, vectors = values[::-1][:k], vectors[:, ::-1][:, :k]
        last = vectors[m - len(self.gap) :]
        lengths = balance / total * np.sqrt(np.maximum(np.einsum("ij,ij->j", last, self.gap @ last), 0.0))
        residuals = lengths / max(abs(values[0]), np.finfo(float).tiny)
        return Eigenpairs(values, vectors, residuals, [float(values.sum())], True)

    def grown(self, balance: float, k: int, residual: float, most: int) -> tuple[LabelSubspace, Eigenpairs | None]:
        """Take as many blocks more as it needs for residuals that are small enough.

        Parameters
        ----------
        balance : float
            As in `fit`.
        k : int
            Pairs.
        residual : float
            Relative to the largest eigenvalue.
        most : int
            Columns of the basis, above which no block is added.

        Returns
        -------
        space : LabelSubspace
            With the blocks that were added.
        pairs : Eigenpairs or None
            None: it took more.
        """
        space = self
        while True:
            pairs = space.fit(balance, k)
            if pairs.residuals.max(initial=0.0) <= residual:
                return space, pairs
            if space.complete or space.basis.shape[1] >= most:
                return space, None
            space = space.longer()


def _orthonormal(block: np.ndarray, image: np.ndarray, gram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Combinations of the columns (and of their images) whose Gram matrix is the identity instead of `gram`."""
    for _ in range(2):
        values, vectors = np.linalg.eigh(gram)
        keep = values > 1e-13 * max(values[-1], np.finfo(float).tiny)
        turn = vectors[:, keep] / np.sqrt(values[keep])
        alias = image is block
        block = block @ turn
        image = block if alias else image @ turn
        gram = block.T @ image
        gram = (gram + gram.T) / 2
    return block, image
