"""The homogeneity family on moments: no iteration over samples [KGHA 26, 27, 30, 31, as one small matrix].

With K_j = F_j F_j', M = H [sum_j w_j H_j] H / sum_j w_j = S B S' for centred stacked columns S and block-diagonal
B = w_j (C_jj + c_j I)^-1 / sum_j w_j, C_jj = F_j'F_j. In the eigenvectors U_j of C_jj, B is diagonal for every ridge and
every balance: D = sqrt(B), and M's non-zero eigenvalues are those of D C D with C = S'S in the same coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from dmo.eigen import Eigenpairs, block_krylov
from dmo.moments import LABELS, Moments

_STEPS = 4


@dataclass(frozen=True)
class RotatedMoments:
    """Moments in the eigenvectors of every group's own Gram matrix: made once, for all ridges and balances.

    `bases`: group -> U_j (d_j x r_j); `spectra`: group -> eigenvalues (r_j) of its (centred) Gram matrix; `gram`: centred
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
        centred = moments.centred()
        inner = centred if center else moments
        bases, spectra = {}, {}
        for name, where in moments.places().items():
            values, vectors = scipy.linalg.eigh(inner.gram[where, where], check_finite=False)
            keep = values > cutoff * max(values[-1], np.finfo(float).tiny)
            bases[name], spectra[name] = vectors[:, keep], values[keep]
        rotated = centred.mixed(bases)
        means = {name: moments.mean()[where] for name, where in moments.places().items()}
        return cls(bases, spectra, rotated.gram, means, rotated.places(), center)


@dataclass(frozen=True)
class HomogeneityFit:
    """Eigenpairs in coefficient space; per group beta_j (d_j x p) and offset (p) of x_hat_j = f_j(x) beta_j + offset_j."""

    pairs: Eigenpairs
    coefficients: dict[str, np.ndarray]
    offsets: dict[str, np.ndarray]


def homogeneity(
    rotated: RotatedMoments,
    weights: Mapping[str, float],
    ridges: Mapping[str, float],
    k: int,
    tolerance: float = 1e-7,
    max_steps: int = 200,
    random_state: int | None = 0,
) -> HomogeneityFit:
    """The top k of the homogeneity map; `weights`, `ridges`: per group of the moments (labels included, if any)."""
    total = sum(weights.values())
    D = np.concatenate(
        [np.sqrt(weights[name] / total / (rotated.spectra[name] + ridges[name])) for name in rotated.places]
    )[:, None]
    if k > len(D):
        raise ValueError(
            f"{k} components from factors of {len(D)} columns in all; lower n_components or raise the rank"
        )
    start = np.zeros((len(D), 0))
    if LABELS in rotated.places:
        start = D * rotated.gram[:, rotated.places[LABELS]]
    if start.shape[1] < k:
        rng = np.random.default_rng(random_state)
        start = np.hstack([start, rng.standard_normal((len(D), min(k + 10, len(D)) - start.shape[1]))])
    pairs = block_krylov(lambda B: D * (rotated.gram @ (D * B)), start, k, tolerance, max_steps)
    lengths = np.sqrt(np.maximum(pairs.values, np.finfo(float).tiny))
    return _expanded(rotated, ridges, pairs, rotated.gram @ (D * (pairs.vectors / lengths)))


def _expanded(
    rotated: RotatedMoments, ridges: Mapping[str, float], pairs: Eigenpairs, projected: np.ndarray
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

    With M = (w T + H_Y) / total, T the views' part, span{Y, MY, M^2 Y} = span{Y, TY, T^2 Y}. `basis` (sum r_j x m): its
    orthonormal vectors as combinations of the stacked columns S; `image`: Gram matrix times basis; `views`, `labels`: T
    and H_Y projected on it (m x m); `width`: columns of the last block.
    """

    rotated: RotatedMoments
    ridges: dict[str, float]
    basis: np.ndarray
    image: np.ndarray
    views: np.ndarray
    labels: np.ndarray
    width: int

    @classmethod
    def of(cls, rotated: RotatedMoments, ridges: Mapping[str, float]) -> LabelSubspace:
        """The first block: the labels themselves."""
        where = rotated.places[LABELS]
        block = np.zeros((len(rotated.gram), where.stop - where.start))
        block[where] = np.diag(1 / np.sqrt(rotated.spectra[LABELS]))
        return cls._projected(rotated, ridges, block, rotated.gram @ block, where.stop - where.start)

    def longer(self) -> LabelSubspace:
        """With one block more: T times the last one."""
        block = _inverses(self.rotated, self.ridges)[0] * self.image[:, -self.width :]
        for _ in range(2):  # orthogonal to the basis in S'S, twice for the digits
            block = block - self.basis @ (self.image.T @ block)
        image = self.rotated.gram @ block
        values, vectors = scipy.linalg.eigh(block.T @ image, check_finite=False)
        keep = values > 1e-13 * max(values[-1], np.finfo(float).tiny)
        turn = vectors[:, keep] / np.sqrt(values[keep])
        basis, images = np.hstack([self.basis, block @ turn]), np.hstack([self.image, image @ turn])
        return self._projected(self.rotated, self.ridges, basis, images, int(keep.sum()))

    @classmethod
    def _projected(
        cls, rotated: RotatedMoments, ridges: Mapping[str, float], basis: np.ndarray, image: np.ndarray, width: int
    ) -> LabelSubspace:
        T, H = (image.T @ (part * image) for part in _inverses(rotated, ridges))
        return cls(rotated, dict(ridges), basis, image, (T + T.T) / 2, (H + H.T) / 2, width)

    def fit(self, balance: float, k: int) -> HomogeneityFit:
        """The Ritz pairs for this weight of every view against the labels' 1, with their residuals."""
        names = [name for name in self.rotated.places if name != LABELS]
        total, m = balance * len(names) + 1.0, len(self.views)
        values, vectors = scipy.linalg.eigh(
            (balance * self.views + self.labels) / total, subset_by_index=[m - k, m - 1], check_finite=False
        )
        values, vectors = values[::-1], vectors[:, ::-1]
        projected = self.image @ vectors
        view_part, label_part = _inverses(self.rotated, self.ridges)
        rest = (balance * view_part + label_part) * projected / total - self.basis @ (vectors * values)
        lengths = np.sqrt(np.maximum(np.einsum("ij,ij->j", rest, self.rotated.gram @ rest), 0.0))
        residuals = lengths / max(abs(values[0]), np.finfo(float).tiny)
        pairs = Eigenpairs(values, self.basis @ vectors, residuals, [float(values.sum())], True)
        return _expanded(self.rotated, self.ridges, pairs, projected)


def _inverses(rotated: RotatedMoments, ridges: Mapping[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """1 / (eigenvalue + ridge) on the views' coordinates and on the labels', 0 elsewhere (sum r_j x 1 each)."""
    parts = [np.zeros((len(rotated.gram), 1)), np.zeros((len(rotated.gram), 1))]
    for name, where in rotated.places.items():
        parts[name == LABELS][where, 0] = 1 / (rotated.spectra[name] + ridges[name])
    return parts[0], parts[1]


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
        tolerance: float,
        max_steps: int,
        random_state: int | None,
    ) -> HomogeneityFit:
        """As `homogeneity`."""
        views = {weights[name] for name in self.rotated.places if name != LABELS}
        if LABELS in self.rotated.places and len(views) == 1 and k <= len(self.rotated.spectra[LABELS]):
            balance = views.pop() / weights[LABELS]
            if self._last is None or self._last.ridges != dict(ridges):
                self._last = LabelSubspace.of(self.rotated, ridges).longer().longer()
            while True:
                found = self._last.fit(balance, k)
                if found.pairs.residuals.max(initial=0.0) <= self.residual:
                    return found
                if not self._last.width or self._last.basis.shape[1] >= _STEPS * len(self.rotated.spectra[LABELS]):
                    break
                self._last = self._last.longer()
        return homogeneity(self.rotated, weights, ridges, k, tolerance, max_steps, random_state)
