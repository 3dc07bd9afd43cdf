"""The block Krylov space of the labels, which fits of one ridge share whatever their balance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dmo.linalg.eigen import Eigenpairs
from dmo.linalg.tall import LinearMap

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
        return cls._with(views, inner, count, support, (first,), (image,), labels, np.zeros((0, 0)))

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
        block, image = orthonormal(block, image, (gap + gap.T) / 2)
        blocks, images = (*self.blocks, block), (*self.images, image)
        return self._with(self.views, self.inner, self.count, self.support, blocks, images, self.labels, self.projected)

    @classmethod
    def _with(
        cls,
        views: LinearMap,
        inner: LinearMap | None,
        count: int,
        support: slice,
        blocks: tuple[np.ndarray, ...],
        images: tuple[np.ndarray, ...],
        labels: np.ndarray,
        known: np.ndarray,
    ) -> LabelSubspace:
        """The space of `blocks`; `known`: T projected on those before the last."""
        old, width = len(known), images[-1].shape[1]
        block = views(images[-1])
        column = np.vstack([image.T @ block for image in images])
        T = np.zeros((old + width,) * 2)
        T[:old, :old], T[:, old:], T[old:] = known, column, column.T
        found = cls(views, inner, count, support, blocks, images, labels, (T + T.T) / 2, block, block, np.zeros((0, 0)))
        block = found._less(block, column)
        beyond_image = block if inner is None else inner(block)
        gap = block.T @ beyond_image
        return replace(found, beyond=block, beyond_image=beyond_image, gap=(gap + gap.T) / 2)

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
