"""The homogeneity family on moments: no iteration over samples [KGHA 26, 27, 30, 31, as one small matrix].

With K_j = F_j F_j', M = H [sum_j w_j H_j] H / sum_j w_j = S B S' for centered stacked columns S and block-diagonal
B = w_j (C_jj + c_j I)^-1 / sum_j w_j, C_jj = F_j'F_j. In the eigenvectors U_j of C_jj, B is diagonal for every ridge and
every balance: D = sqrt(B), and M's non-zero eigenvalues are those of D C D with C = S'S in the same coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from dmo.engines.moments import LABELS, Moments
from dmo.errors import UserError
from dmo.linalg.eigen import Eigenpairs, block_krylov

_STEPS = 4


@dataclass(frozen=True)
class RotatedMoments:
    """Moments in the eigenvectors of every group's own Gram matrix: made once, for all ridges and balances.

    `bases`: group -> U_j (d_j x r_j); `spectra`: group -> eigenvalues (r_j) of its (centered) Gram matrix; `gram`: centered
    Gram matrix of all groups in these coordinates; `means`: group -> column means (d_j); `places`: group -> columns.
    """

    bases: dict[str, np.ndarray]
    spectra: dict[str, np.ndarray]
    gram: np.ndarray
    means: dict[str, np.ndarray]
    places: dict[str, slice]
    center: bool

    @classmethod
    def of(cls, moments: Moments, center: bool = True, cutoff: float = 1e-12) -> RotatedMoments:
        """Directions whose eigenvalue is below `cutoff` times their group's largest are dropped."""
        centered = moments.centered()
        inner = centered if center else moments
        bases, spectra = {}, {}
        for name, where in moments.places().items():
            values, vectors = scipy.linalg.eigh(inner.gram[where, where], check_finite=False)
            keep = values > cutoff * max(values[-1], np.finfo(float).tiny)
            bases[name], spectra[name] = vectors[:, keep], values[keep]
        rotated = centered.mixed(bases)
        means = {name: moments.mean()[where] for name, where in moments.places().items()}
        return cls(bases, spectra, rotated.gram, means, rotated.places(), center)

    def product(self, B: np.ndarray) -> np.ndarray:
        """Gram matrix times B."""
        return self.gram @ B

    def label_columns(self) -> np.ndarray:
        """Its columns of the labels."""
        return self.gram[:, self.places[LABELS]]


@dataclass(frozen=True)
class RotatedRows:
    """What `RotatedMoments` says, from the rows themselves (`columns`, n x sum r_j): where they are fewer than the columns.

    No Gram matrix of columns is formed: a group's rotation comes from the singular values of its n x d_j rows, and a product
    with the Gram matrix goes through the rows. Other attributes as there.
    """

    bases: dict[str, np.ndarray]
    spectra: dict[str, np.ndarray]
    columns: np.ndarray
    means: dict[str, np.ndarray]
    places: dict[str, slice]
    center: bool

    @classmethod
    def of(cls, groups: Mapping[str, np.ndarray], center: bool = True, cutoff: float = 1e-12) -> RotatedRows:
        """From n x d_j rows by group; directions are dropped as by `RotatedMoments.of`."""
        bases, spectra, means, columns = {}, {}, {}, []
        places: dict[str, slice] = {}
        for name, rows in groups.items():
            means[name] = rows.mean(axis=0)
            inner = rows - means[name] if center else rows
            U, s, Vt = scipy.linalg.svd(inner, full_matrices=False, check_finite=False)
            keep = s * s > cutoff * max(s[0] ** 2, np.finfo(float).tiny)
            bases[name], spectra[name] = Vt[keep].T, s[keep] ** 2
            start = places[next(reversed(places))].stop if places else 0
            places[name] = slice(start, start + len(spectra[name]))
            columns.append(U[:, keep] * s[keep])
        stacked = np.hstack(columns)
        return cls(bases, spectra, stacked - stacked.mean(axis=0), means, places, center)

    def product(self, B: np.ndarray) -> np.ndarray:
        """Gram matrix times B."""
        return self.columns.T @ (self.columns @ B)

    def label_columns(self) -> np.ndarray:
        """Its columns of the labels."""
        return self.columns.T @ self.columns[:, self.places[LABELS]]


Rotated = RotatedMoments | RotatedRows


@dataclass(frozen=True)
class HomogeneityFit:
    """Eigenpairs in coefficient space; per group beta_j (d_j x p) and offset (p) of x_hat_j = f_j(x) beta_j + offset_j."""

    pairs: Eigenpairs
    coefficients: dict[str, np.ndarray]
    offsets: dict[str, np.ndarray]


def homogeneity(
    rotated: Rotated,
    weights: Mapping[str, float],
    ridges: Mapping[str, float],
    k: int,
    tol: float = 1e-7,
    max_steps: int = 200,
    random_state: int | None = 0,
) -> HomogeneityFit:
    """The top k of the homogeneity map; `weights`, `ridges`: per group of the moments (labels included, if any)."""
    total = sum(weights.values())
    D = np.concatenate(
        [np.sqrt(weights[name] / total / (rotated.spectra[name] + ridges[name])) for name in rotated.places]
    )[:, None]
    if k > len(D):
        raise UserError(f"{k} components from factors of {len(D)} columns in all; lower n_components or raise the rank")
    start = np.zeros((len(D), 0))
    if LABELS in rotated.places:
        start = D * rotated.label_columns()
    if start.shape[1] < k:
        rng = np.random.default_rng(random_state)
        start = np.hstack([start, rng.standard_normal((len(D), min(k + 10, len(D)) - start.shape[1]))])
    pairs = block_krylov(lambda B: D * rotated.product(D * B), start, k, tol, max_steps)
    lengths = np.sqrt(np.maximum(pairs.values, np.finfo(float).tiny))
    return _expanded(rotated, ridges, pairs, rotated.product(D * (pairs.vectors / lengths)))


def _expanded(
    rotated: Rotated, ridges: Mapping[str, float], pairs: Eigenpairs, projected: np.ndarray
) -> HomogeneityFit:
    """Coefficients and offsets from F_j'X of every group, X orthonormal (`projected`, sum r_j x k)."""
    coefficients, offsets = {}, {}
    for name, where in rotated.places.items():
        beta = rotated.bases[name] @ (projected[where] / (rotated.spectra[name] + ridges[name])[:, None])
        coefficients[name] = beta
        offsets[name] = -(rotated.means[name] @ beta) if rotated.center else np.zeros(projected.shape[1])
    return HomogeneityFit(pairs, coefficients, offsets)


@dataclass(frozen=True)
class LabelSubspace:
    """The block Krylov space of the labels under given ridges: it is the same for every balance.

    With M = (w T + H_Y) / total, T the views' part, span{Y, MY, M^2 Y} = span{Y, TY, T^2 Y}, and H_Y is zero but on the
    first block. `basis` (sum r_j x m): its orthonormal vectors as combinations of the stacked columns S; `image`: Gram
    matrix times basis; `labels`: H_Y projected on the first block; `views`: T projected on the basis (m x m); `beyond`,
    `beyond_image`: what T times the last block has outside of the basis, and Gram matrix times it; `gap`: Gram matrix of
    those columns.
    """

    rotated: RotatedMoments
    ridges: dict[str, float]
    basis: np.ndarray
    image: np.ndarray
    labels: np.ndarray
    views: np.ndarray
    beyond: np.ndarray
    beyond_image: np.ndarray
    gap: np.ndarray

    @classmethod
    def of(cls, rotated: RotatedMoments, ridges: Mapping[str, float]) -> LabelSubspace:
        """The first block: the labels themselves."""
        where = rotated.places[LABELS]
        basis = np.zeros((len(rotated.gram), where.stop - where.start))
        basis[where] = np.eye(where.stop - where.start)
        basis, image = _orthonormal(basis, rotated.gram[:, where], rotated.gram[where, where])
        inverse = 1 / (rotated.spectra[LABELS] + ridges[LABELS])
        labels = image[where].T @ (inverse[:, None] * image[where])
        return cls._with(rotated, dict(ridges), basis, image, labels, np.zeros((0, 0)))

    def longer(self) -> LabelSubspace:
        """With one block more: what T times the last one has outside of the basis."""
        block, image = _orthonormal(self.beyond, self.beyond_image, self.gap)
        basis, image = np.hstack([self.basis, block]), np.hstack([self.image, image])
        return self._with(self.rotated, self.ridges, basis, image, self.labels, self.views)

    @classmethod
    def _with(
        cls,
        rotated: RotatedMoments,
        ridges: dict[str, float],
        basis: np.ndarray,
        image: np.ndarray,
        labels: np.ndarray,
        views: np.ndarray,
    ) -> LabelSubspace:
        """The space of `basis`; `views`: T projected on its blocks before the last."""
        old = len(views)
        block = _inverses(rotated, ridges) * image[:, old:]
        projected = image.T @ block
        T = np.zeros((basis.shape[1],) * 2)
        T[:old, :old], T[:, old:], T[old:] = views, projected, projected.T
        block -= basis @ projected  # orthogonal to the basis in S'S, twice for the digits
        block -= basis @ (image.T @ block)
        beyond_image = rotated.gram @ block
        gap = block.T @ beyond_image
        return cls(rotated, ridges, basis, image, labels, (T + T.T) / 2, block, beyond_image, (gap + gap.T) / 2)

    @property
    def complete(self) -> bool:
        """Whether T leads nowhere else."""
        return not self.gap.size or bool(np.diagonal(self.gap).max() <= 0)

    def fit(self, balance: float, k: int) -> HomogeneityFit:
        """The Ritz pairs for this weight of every view against the labels' 1 (vectors in `basis`), with residuals."""
        total, m = balance * (len(self.rotated.places) - 1) + 1.0, len(self.views)
        M = balance * self.views
        M[: len(self.labels), : len(self.labels)] += self.labels
        values, vectors = scipy.linalg.eigh(M / total, check_finite=False)
        values, vectors = values[::-1][:k], vectors[:, ::-1][:, :k]
        last = vectors[m - len(self.gap) :]
        lengths = balance / total * np.sqrt(np.maximum(np.einsum("ij,ij->j", last, self.gap @ last), 0.0))
        residuals = lengths / max(abs(values[0]), np.finfo(float).tiny)
        pairs = Eigenpairs(values, vectors, residuals, [float(values.sum())], True)
        return _expanded(self.rotated, self.ridges, pairs, self.image @ vectors)


def _orthonormal(block: np.ndarray, image: np.ndarray, gram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Combinations of the columns (and of their images) whose Gram matrix is the identity instead of `gram`."""
    values, vectors = scipy.linalg.eigh(gram, check_finite=False)
    keep = values > 1e-13 * max(values[-1], np.finfo(float).tiny)
    turn = vectors[:, keep] / np.sqrt(values[keep])
    return block @ turn, image @ turn


def _inverses(rotated: RotatedMoments, ridges: Mapping[str, float]) -> np.ndarray:
    """1 / (eigenvalue + ridge) on the views' coordinates, 0 on the labels' (sum r_j x 1)."""
    parts = [
        np.zeros(len(spectrum)) if name == LABELS else 1 / (spectrum + ridges[name])
        for name, spectrum in rotated.spectra.items()
    ]
    return np.concatenate(parts)[:, None]


class SharedHomogeneity:
    """Fits of many settings on the same moments: settings that differ in balance alone share a subspace.

    It grows until the residual is at most `residual` (eigenvalues are then off by its square), up to `_STEPS` blocks. A
    setting for which that is not enough, or that has no such space (more components than label directions, no labels), is
    solved for itself.
    """

    def __init__(self, rotated: RotatedMoments, residual: float = 3e-3):
        self.rotated, self.residual = rotated, residual
        self._last: LabelSubspace | None = None

    def fit(
        self,
        weights: Mapping[str, float],
        ridges: Mapping[str, float],
        k: int,
        tol: float,
        max_steps: int,
        random_state: int | None,
    ) -> HomogeneityFit:
        """As `homogeneity`."""
        views = {weights[name] for name in self.rotated.places if name != LABELS}
        if LABELS in self.rotated.places and len(views) == 1 and k <= len(self.rotated.spectra[LABELS]):
            balance = views.pop() / weights[LABELS]
            if self._last is None or self._last.ridges != dict(ridges):
                self._last = LabelSubspace.of(self.rotated, ridges)
            while True:
                found = self._last.fit(balance, k)
                if found.pairs.residuals.max(initial=0.0) <= self.residual:
                    return found
                if self._last.complete or self._last.basis.shape[1] >= _STEPS * len(self.rotated.spectra[LABELS]):
                    break
                self._last = self._last.longer()
        return homogeneity(self.rotated, weights, ridges, k, tol, max_steps, random_state)
