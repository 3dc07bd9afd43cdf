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
    projected = rotated.gram @ (D * (pairs.vectors / lengths))  # F_j'X of every group, X orthonormal
    coefficients, offsets = {}, {}
    for name, where in rotated.places.items():
        beta = rotated.bases[name] @ (projected[where] / (rotated.spectra[name] + ridges[name])[:, None])
        coefficients[name] = beta
        offsets[name] = -(rotated.means[name] @ beta) if rotated.center else np.zeros(k)
    return HomogeneityFit(pairs, coefficients, offsets)
