"""Weights of views: given, equal, by alignment, learned from distances, or of every target; and the kernel of the product.

Weights of views by centered alignment: the sum of kernels that is nearest in direction to that of the labels.

With kernels A_v and the label kernel T = Y Y', both centered by H, w >= 0 maximizes the cosine <sum_v w_v HA_vH, HTH>;
up to its scale it is the minimum of w'M w - 2 w'a with M_uv = <HA_uH, HA_vH> and a_v = <HA_vH, HTH>, a problem of
nonnegative least squares. Here A_v = -d_v, the negative distances: sum_v w_v d_v is what a product kernel is made of.

Source: Cortes, Mohri, Rostamizadeh 2012, proposition 9 (alignf).

Weights of every target, sum_v w_lv K_v with a ridge c_l of its own: candidates w are drawn, and each is scored for all targets
at once by one eigendecomposition. Generalized cross-validation takes the ridge, and the squared left-out error, which has a
closed form, the candidate; moments of factor rows know no rows, so that generalized cross-validation takes both (la Tour,
Eickenberg, Nunez-Elizalde, Gallant 2022, NeuroImage 264, draw as many and score them by folds). The draws are few; the
candidates after them take the best weights of some target to where its likelihood as a
Gaussian process grows: with P = (K + c I)^-1 and a = P y, w_v is multiplied by a power of (a'K_v a / tr P K_v) / (a'a / tr P),
which is 1 where that is stationary (Zhou, Hu, Zhou, Lange 2019, equation 5, has the power 1/2).
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
from dmo.kernels.multikernel import MultiKernel, ProductKernel
from dmo.linalg.operators import Dense
from dmo.linalg.solve import Spectrum
from dmo.memory import Memory, remembered
from dmo.methods.tagprop import NEIGHBORS, Neighborhoods, fit_tagprop


def aligned_weights(blocks: Iterable[tuple[slice, np.ndarray]], Y: np.ndarray) -> np.ndarray:
    """Weights of views from their distances, in one pass.

    blocks (V, rows, n); Y (n, L) -> (V,)
    """
    n = len(Y)
    centered = (Y - Y.mean(axis=0)).astype(np.float32)
    products: np.ndarray = np.zeros(())
    with_labels: np.ndarray = np.zeros(())
    parts = []
    for where, d in blocks:
        a = 1.0 - np.asarray(d, np.float32)  # the mean is taken off before the squares: float32 keeps its digits
        flat = a.reshape(len(a), -1)
        products = products + (flat @ flat.T).astype(np.float64)
        with_labels = with_labels + np.array([np.vdot(centered[where], part @ centered) for part in a], np.float64)
        parts.append(a.sum(axis=2, dtype=np.float64))
    sums = np.concatenate(parts, axis=1)
    total = sums.sum(axis=1)
    M = products - 2 / n * sums @ sums.T + np.outer(total, total) / n**2
    scale = np.sqrt(np.maximum(np.diagonal(M), np.finfo(float).tiny))
    M, a = M / np.outer(scale, scale), with_labels / scale
    # a ridge for views that repeat each other
    root = scipy.linalg.cholesky(M + 1e-8 * np.eye(len(M)))
    found, _ = scipy.optimize.nnls(root, scipy.linalg.solve_triangular(root, a, trans="T"))
    weights = found / scale
    length = float(np.linalg.norm(weights))
    return weights / length if length > 0 else weights


PER_TARGET = "per-target"
"""Weights of every label or target by itself: of the kernels of a ridge regression."""
SEARCHED = 1500
"""Samples among which they are searched, at most; of moments columns."""
_DRAWN, _MOVED, _MOST = 20, 20, 160  # candidates that are drawn, and after them moved: so many a view, at most so many
_CONCENTRATIONS = (0.1, 1.0)  # of the Dirichlet draws in turn
_RATIOS = 10.0 ** np.arange(-4.0, 4.5, 0.5)  # ridges, by the mean diagonal entry of the kernel
_ROUNDING = 1e-5  # of moments, relative to the columns' lengths
_POWER, _JITTER, _REVIVED = 2.0, 0.2, 0.01  # of a move; how it is blurred; what a view of weight 0 starts again from


@dataclass
class _TargetSearch:
    """The best weights and ridge of every target so far, of kernels of mean diagonal 1. weights (L, V)"""

    weights: np.ndarray
    ridges: np.ndarray  # (L,)
    errors: np.ndarray  # (L,): squared, left out
    scale: np.ndarray  # (V,): what the kernels have been divided by

    @classmethod
    def _begun(cls, n_labels: int, scale: np.ndarray, *given: Any) -> Self:
        return cls(np.zeros((n_labels, len(scale))), np.zeros(n_labels), np.full(n_labels, np.inf), scale, *given)

    @property
    def moving(self) -> np.ndarray:
        """Numbers of the targets that are not 0."""
        raise NotImplementedError

    def score(self, w: np.ndarray) -> None:
        """Keep a candidate for the targets that it suits better than those before."""
        raise NotImplementedError

    def moved(self, target: int) -> np.ndarray:
        """Candidate near the weights of a target, where its likelihood is larger."""
        raise NotImplementedError

    def _keep(self, w: np.ndarray, ridges: np.ndarray, errors: np.ndarray) -> None:
        better = errors < self.errors
        self.weights[better], self.ridges[better], self.errors[better] = w, ridges[better], errors[better]


@dataclass
class KernelSearch(_TargetSearch):
    """From kernels (V, n, n), by leave-one-out; Y (n, L), centered like the kernels where `center`."""

    kernels: np.ndarray
    Y: np.ndarray
    center: bool  # whether a mean is learned beside

    @classmethod
    def of(cls, kernels: np.ndarray, Y: np.ndarray, center: bool) -> Self:
        """Scale kernels, and begin.

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
        left = c[:, None] / (values + c[:, None])  # (R, n): shares of the residuals in the eigenvectors' coordinates
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
    """From moments of factor rows F_v, by generalized cross-validation: no row is read again."""

    # With D^2 the columns' weights, K = F D^2 F' has the eigenvalues s of D F'F D = U s U' and zeros. With z = U'D F'y the
    # residual of y is y'y - sum z^2 (1 + c / (s + c)) / (s + c), and D F'P F D = I - c (D F'F D + c I)^-1.

    gram: np.ndarray  # (R, R): F'F of all views, scaled
    products: np.ndarray  # (R, L): F'Y
    squares: np.ndarray  # (L,): y'y
    view: np.ndarray  # (R,): of which view a column is
    n: float
    center: bool

    @classmethod
    def of(cls, moments: Moments, center: bool) -> Self:
        """Center and scale moments, and begin; of more than `SEARCHED` columns the directions of most variance serve."""
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
        # a residual below the rounding of float32 products says nothing, and would win where few degrees are free
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
    """Search the weights of the views' kernels, and the ridge, of every target.

    -> (L, V), of sum 1; (L,)
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
"""Weights that are learned, by name."""


def learns(given: Any) -> bool:
    """Tell whether weights are learned."""
    return isinstance(given, str) and given in LEARNERS


def given_weights(given: Mapping[str, float] | Sequence[float] | str | None, views: Sequence[str]) -> dict[str, float]:
    """Spread weights that are given over views."""
    if isinstance(given, str) and given != "equal":
        raise UserError(f"weights = {given!r}; known: a weight per view, {', '.join(map(repr, ('equal', *LEARNERS)))}")
    found = per_view("weights", 1.0 if given is None or isinstance(given, str) else given, views, NOT_NEGATIVE)
    total = sum(found.values())
    if not total > 0:
        raise UserError(f"weights {found} are all zero; give at least one view a positive weight")
    return {view: weight / total for view, weight in found.items()}


def view_weights(
    given: Mapping[str, float] | Sequence[float] | str | None, near: ViewDistances, Y: np.ndarray
) -> dict[str, float]:
    """Take the weights of views, or learn them.

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
    """Look up the distance of every view, and its weight, which labels may teach.

    views (n, d); Y (n, L)
    """
    distances = named_distances(given.distances, views)
    if not learns(given.weights):
        return distances, given_weights(given.weights, list(views))
    return distances, view_weights(given.weights, ViewDistances.fit(distances, views, random_state), Y)


def product_kernel(distances: Mapping[str, str], weights: Mapping[str, float], gamma: float) -> MultiKernel:
    """Make the kernel exp(-gamma sum_v w_v d_v), every d_v divided by its mean over the training samples."""
    used = {view: weight for view, weight in weights.items() if weight > 0}
    return MultiKernel({view: distance_kernel(distances[view], gamma) for view in used}, used, "product")
