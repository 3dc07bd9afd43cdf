"""Weights of views: given, equal, learned by alignment or from distances, or per target; and the product kernel.

Centered alignment chooses view weights so that the weighted sum of kernels has the direction closest to the label
kernel. With kernels A_v and the label kernel T = Y Y', both centered by H, w >= 0 maximizes the cosine <sum_v w_v
HA_vH, HTH>. Up to its scale, w minimizes w'M w - 2 w'a with M_uv = <HA_uH, HA_vH> and a_v = <HA_vH, HTH>, a nonnegative
least squares problem. Here A_v = -d_v, the negative distances, because a product kernel depends on sum_v w_v d_v.

Source: Cortes, Mohri, Rostamizadeh 2012, proposition 9 (alignf).

Weights per target use kernels sum_v w_lv K_v with one ridge c_l per target. Candidates w are drawn at random, and one
eigendecomposition scores each of them for all targets. Generalized cross-validation selects the ridge, and the squared
leave-one-out error, which has a closed form, selects the candidate. Moments of factor rows contain no single rows, so
generalized cross-validation selects both. (la Tour, Eickenberg, Nunez-Elizalde, Gallant 2022, NeuroImage 264, draw
candidates in the same way and score them by cross-validation folds.) Only a few candidates are drawn. Later candidates
change the best weights of one target to increase its likelihood as a Gaussian process. With P = (K + c I)^-1 and a = P
y, w_v is multiplied by a power of (a'K_v a / tr P K_v) / (a'a / tr P). This factor is 1 at a stationary point (Zhou,
Hu, Zhou, Lange 2019, equation 5, uses the power 1/2).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import scipy.linalg
import scipy.optimize

from dmo.blocks import Rows
from dmo.errors import UserError
from dmo.fit.moments import LABELS, Moments
from dmo.fit.ridge_solves import MomentSystem
from dmo.fit.view_neighbors import ViewDistances, distance_kernel, named_distances
from dmo.inputs import NOT_NEGATIVE, per_view
from dmo.kernels.multikernel import MultiKernel
from dmo.kernels.product import ProductKernel
from dmo.linalg.operators import Dense
from dmo.linalg.solve import Spectrum
from dmo.memory import Memory, remembered
from dmo.methods.tagprop import NEIGHBORS, Neighborhoods, fit_tagprop


def aligned_weights(blocks: Iterable[tuple[slice, np.ndarray]], Y: np.ndarray) -> np.ndarray:
    """Compute the weights of views from blocks of their distances, in one pass.

    blocks (V, rows, n); Y (n, L) -> (V,)
    """
    n = len(Y)
    centered = (Y - Y.mean(axis=0)).astype(np.float32)
    products: np.ndarray = np.zeros(())
    with_labels: np.ndarray = np.zeros(())
    parts = []
    for where, d in blocks:
        a = 1.0 - np.asarray(d, np.float32)  # Subtract the mean before squaring to preserve float32 precision.
        flat = a.reshape(len(a), -1)
        products = products + (flat @ flat.T).astype(np.float64)
        with_labels = with_labels + np.array([np.vdot(centered[where], part @ centered) for part in a], np.float64)
        parts.append(a.sum(axis=2, dtype=np.float64))
    sums = np.concatenate(parts, axis=1)
    total = sums.sum(axis=1)
    M = products - 2 / n * sums @ sums.T + np.outer(total, total) / n**2
    scale = np.sqrt(np.maximum(np.diagonal(M), np.finfo(float).tiny))
    M, a = M / np.outer(scale, scale), with_labels / scale
    # Add a small ridge, because views may be duplicates of each other.
    root = scipy.linalg.cholesky(M + 1e-8 * np.eye(len(M)))
    found, _ = scipy.optimize.nnls(root, scipy.linalg.solve_triangular(root, a, trans="T"))
    weights = found / scale
    length = float(np.linalg.norm(weights))
    return weights / length if length > 0 else weights


PER_TARGET = "per-target"
"""Option for separate kernel weights of each label or target of a ridge regression."""
SEARCHED = 1500
"""Maximum number of samples for the search of these weights, or of columns of moments."""
_DRAWN, _MOVED, _MOST = 20, 20, 160  # drawn candidates; then moved candidates per view, and their maximum number
_CONCENTRATIONS = (0.1, 1.0)  # concentrations of the Dirichlet draws, used alternately
_RATIOS = 10.0 ** np.arange(-4.0, 4.5, 0.5)  # ridges relative to the mean diagonal entry of the kernel
_ROUNDING = 1e-5  # rounding error of moments relative to the column lengths
_POWER, _JITTER, _REVIVED = 2.0, 0.2, 0.01  # power of a move; its random noise; restart value of views of weight 0


@dataclass
class _TargetSearch:
    """Best weights and ridge of every target so far, for kernels with mean diagonal 1.

    weights (L, V)
    """

    weights: np.ndarray
    ridges: np.ndarray  # (L,)
    errors: np.ndarray  # (L,): squared leave-one-out errors
    scale: np.ndarray  # (V,): factors by which the kernels have been divided

    @classmethod
    def _begun(cls, n_labels: int, scale: np.ndarray, *given: Any) -> Self:
        return cls(np.zeros((n_labels, len(scale))), np.zeros(n_labels), np.full(n_labels, np.inf), scale, *given)

    @property
    def moving(self) -> np.ndarray:
        """Indices of the targets that are not all zero."""
        raise NotImplementedError

    def score(self, w: np.ndarray) -> None:
        """Evaluate a candidate, and keep it for the targets that it improves."""
        raise NotImplementedError

    def moved(self, target: int) -> np.ndarray:
        """Propose a candidate near the weights of a target with a larger likelihood."""
        raise NotImplementedError

    def _keep(self, w: np.ndarray, ridges: np.ndarray, errors: np.ndarray) -> None:
        better = errors < self.errors
        self.weights[better], self.ridges[better], self.errors[better] = w, ridges[better], errors[better]


@dataclass
class KernelSearch(_TargetSearch):
    """Search with kernels (V, n, n) by leave-one-out errors; Y (n, L) is centered like the kernels if `center`."""

    kernels: np.ndarray
    Y: np.ndarray
    center: bool  # whether the regression has an intercept

    @classmethod
    def of(cls, kernels: np.ndarray, Y: np.ndarray, center: bool) -> Self:
        """Scale the kernels and start a search.

        kernels (V, n, n); Y (n, L)
        """
        scale = _positive(np.array([np.trace(K) / len(Y) for K in kernels]))
        return cls._begun(Y.shape[1], scale, kernels / scale[:, None, None], Y, center)

    @property
    def moving(self) -> np.ndarray:
        return np.flatnonzero(self.Y.any(axis=0))

    def score(self, w: np.ndarray) -> None:
        n, mean = len(self.Y), 1.0 if self.center else 0.0
        spectrum = Spectrum(Dense(np.tensordot(w, self.kernels, 1)))
        values, vectors = spectrum.values.clip(min=0.0), spectrum.vectors
        c = max(float(values.mean()), np.finfo(float).tiny) * _RATIOS
        left = c[:, None] / (values + c[:, None])  # (R, n): residual fractions in the coordinates of the eigenvectors
        Z = vectors.T @ self.Y
        best = (left**2 @ Z**2 / (left.sum(axis=1) - mean)[:, None] ** 2).argmin(axis=0)
        rows = left @ np.square(vectors).T - mean / n
        residuals = vectors @ (Z * left[best].T)
        self._keep(w, c[best], ((residuals / rows[best].T) ** 2).sum(axis=0))

    def moved(self, target: int) -> np.ndarray:
        w, c = self.weights[target], self.ridges[target]
        P = np.linalg.inv(np.tensordot(w, self.kernels, 1) + c * np.eye(len(self.Y)))
        a = P @ self.Y[:, target]
        grows = [(a @ K @ a) * np.trace(P) / max(np.vdot(P, K) * (a @ a), np.finfo(float).tiny) for K in self.kernels]
        return (w + _REVIVED / len(w)) * np.clip(grows, 1e-3, 1e3) ** _POWER


@dataclass
class MomentSearch(_TargetSearch):
    """Search with moments of factor rows F_v by generalized cross-validation, without reading rows again."""

    # With column weights D^2, K = F D^2 F' has the eigenvalues s of D F'F D = U s U', and zeros. With z = U'D F'y, the
    # residual of y is y'y - sum z^2 (1 + c / (s + c)) / (s + c), and D F'P F D = I - c (D F'F D + c I)^-1.

    gram: np.ndarray  # (R, R): F'F of all views, scaled
    products: np.ndarray  # (R, L): F'Y
    squares: np.ndarray  # (L,): y'y
    view: np.ndarray  # (R,): index of the view of each column
    n: float
    center: bool

    @classmethod
    def of(cls, moments: Moments, center: bool) -> Self:
        """Center and scale moments, and start a search; above `SEARCHED` columns, use the largest principal axes."""
        views, labels = [name for name in moments.widths if name != LABELS], moments.slices()[LABELS]
        system = MomentSystem.of(moments, dict.fromkeys(views, 1.0), center)
        wide, gram = system.rows, system.gram
        mean = moments.mean()[labels] if center else 0.0
        squares = np.maximum(moments.gram.diagonal()[labels] - moments.n * np.square(mean), 0.0)
        view = np.repeat(np.arange(len(views)), [moments.widths[name] for name in views])
        scale = _positive(np.bincount(view, gram.diagonal()) / moments.n)
        root = np.sqrt(scale)[view][:, None]
        gram, products = gram / root / root.T, wide[:, labels] / root
        if len(view) > SEARCHED:
            own = [np.flatnonzero(view == j) for j in range(len(views))]
            found = [np.linalg.eigh(gram[np.ix_(columns, columns)]) for columns in own]
            least = np.sort(np.concatenate([values for values, _ in found]))[-SEARCHED]
            T = scipy.linalg.block_diag(*(vectors[:, values >= least] for values, vectors in found))
            view = np.repeat(np.arange(len(views)), [np.count_nonzero(values >= least) for values, _ in found])
            gram, products = T.T @ gram @ T, T.T @ products
        parts = gram, products, squares, view, moments.n, center
        return cls._begun(len(squares), scale, *parts)

    @property
    def moving(self) -> np.ndarray:
        return np.flatnonzero(self.squares > 0)

    def score(self, w: np.ndarray) -> None:
        d = np.sqrt(w)[self.view][:, None]
        used = np.flatnonzero(d)
        d, gram = d[used], self.gram[np.ix_(used, used)]
        values, vectors = np.linalg.eigh(gram * d * d.T)
        values = values.clip(min=0.0)
        c = max(float(values.sum() / self.n), np.finfo(float).tiny) * _RATIOS
        shifted = values + c[:, None]
        squares = (vectors.T @ (d * self.products[used])) ** 2
        # Residuals below the rounding error of float32 products are meaningless; they would win if few degrees are
        # free.
        residuals = self.squares - (1 + c[:, None] / shifted) / shifted @ squares
        residuals = np.maximum(residuals, _ROUNDING * self.squares)
        free = self.n - (values / shifted).sum(axis=1) - (1.0 if self.center else 0.0)
        errors = residuals * (self.n / free[:, None]) ** 2
        best = errors.argmin(axis=0)
        self._keep(w, c[best], errors[best, np.arange(errors.shape[1])])

    def moved(self, target: int) -> np.ndarray:
        w, c, y = self.weights[target] + _REVIVED / len(self.scale), self.ridges[target], self.products[:, target]
        d, count = np.sqrt(w)[self.view], len(w)
        inverse = np.linalg.inv(self.gram * d[:, None] * d + c * np.eye(len(d)))
        h = d * (inverse @ (d * y))
        image = self.gram @ h
        of_rows, of_views = self.n - len(d) + c * np.trace(inverse), 1 - c * inverse.diagonal()  # c tr P; w_v tr P K_v
        length = np.maximum(self.squares[target] - 2 * (y @ h) + h @ image, 0.0)  # c^2 a'a
        grows = np.bincount(self.view, (y - image) ** 2, count) * of_rows / c
        grows /= np.maximum(np.bincount(self.view, of_views, count) / w * length, np.finfo(float).tiny)
        return np.asarray(w * np.clip(grows, 1e-3, 1e3) ** _POWER)


def _positive(scale: np.ndarray) -> np.ndarray:
    return np.where(scale > 0, scale, 1.0)


def target_weights(found: KernelSearch | MomentSearch, random_state: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Search kernel weights of the views and a ridge for every target.

    -> weights (L, V) with sum 1; ridges (L,)
    """
    count, rng = len(found.scale), np.random.default_rng(random_state)
    for w in [np.full(count, 1 / count), *np.eye(count)] if count > 1 else np.ones((1, 1)):
        found.score(w)
    moving = found.moving if count > 1 else np.zeros(0, np.intp)
    if moving.size:
        for i in range(_DRAWN - count - 1):
            found.score(rng.dirichlet(np.full(count, _CONCENTRATIONS[i % 2])))
        order = np.concatenate([rng.permutation(moving) for _ in range(-(-_MOST // len(moving)))])
        for target in order[: min(_MOVED * count, _MOST)]:
            w = found.moved(target) * np.exp(_JITTER * rng.standard_normal(count))
            found.score(w / w.sum())
    weights = found.weights / found.scale
    total = weights.sum(axis=1)
    return weights / total[:, None], found.ridges / total


LEARNERS = ("tagprop", "alignment")
"""Names of methods that learn weights."""


def learns(given: Any) -> bool:
    """Return whether weights are learned."""
    return isinstance(given, str) and given in LEARNERS


def given_weights(given: Mapping[str, float] | Sequence[float] | str | None, views: Sequence[str]) -> dict[str, float]:
    """Convert given weights to one weight per view, with sum 1."""
    if isinstance(given, str) and given != "equal":
        raise UserError(f"weights = {given!r}; known: a weight per view, {', '.join(map(repr, ('equal', *LEARNERS)))}")
    found = per_view("weights", 1.0 if given is None or isinstance(given, str) else given, views, NOT_NEGATIVE)
    total = sum(found.values())
    if not total > 0:
        raise UserError(f"weights {found} are all zero; set a positive weight for at least one view")
    return {view: weight / total for view, weight in found.items()}


def view_weights(
    given: Mapping[str, float] | Sequence[float] | str | None, near: ViewDistances, Y: np.ndarray
) -> dict[str, float]:
    """Return the given weights of views, or learn them.

    Y (n, L)
    """
    views = list(near.kernels)
    if not learns(given):
        return given_weights(given, views)

    def learned() -> np.ndarray:
        if given == "alignment":
            return aligned_weights(near.blocks(near.sources), Y)
        k = min(NEIGHBORS, len(Y) - 1)
        return fit_tagprop(Neighborhoods.of(*near.nearest(near.sources, k, same=True), Y), Y).weights

    def key(memory: Memory) -> Hashable:
        rows = tuple((view, memory.name(source)) for view, source in near.sources.items())
        return "weights", given, tuple(near.kernels.items()), rows, memory.name(Y)

    found = remembered(learned, 8.0 * len(views), key)
    return given_weights(found.tolist() if found.any() else None, views)


def weighed_views(
    given: ProductKernel, views: Mapping[str, Rows], Y: np.ndarray, random_state: int | None
) -> tuple[dict[str, str], dict[str, float]]:
    """Return the distance and the weight of every view; weights may be learned from the labels.

    views (n, d); Y (n, L)
    """
    distances = named_distances(given.distances, views)
    if not learns(given.weights):
        return distances, given_weights(given.weights, list(views))
    return distances, view_weights(given.weights, ViewDistances.fit(distances, views, random_state), Y)


def product_kernel(distances: Mapping[str, str], weights: Mapping[str, float], gamma: float) -> MultiKernel:
    """Return the kernel exp(-gamma sum_v w_v d_v), where each d_v is divided by its mean over the training samples."""
    used = {view: weight for view, weight in weights.items() if weight > 0}
    return MultiKernel({view: distance_kernel(distances[view], gamma) for view in used}, used, "product")
