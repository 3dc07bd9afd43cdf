"""View weights that are given, equal, or learned from the labels for all targets or for each target.

Centered alignment chooses view weights w >= 0 for which the weighted sum of kernels is most similar to the label kernel
T = Y Y'. With the kernel A_v of view v and the centering matrix H, w maximizes the cosine <sum_v w_v HA_vH, HTH>. Up to
its scale, w solves the nonnegative least squares problem min w'M w - 2 w'a with M_uv = <HA_uH, HA_vH> and a_v =
<HA_vH, HTH>. Here A_v = -d_v contains negative distances, because a product kernel depends on sum_v w_v d_v.

Source: Cortes, Mohri, Rostamizadeh 2012, proposition 9 (alignf).

Weights per target use a kernel sum_v w_lv K_v and a ridge c_l for each target l. Candidate weights are drawn at random,
and one eigendecomposition per candidate evaluates it for all targets. Generalized cross-validation selects the ridge,
and the squared leave-one-out error, which has a closed form, selects the candidate. Moments of factor rows do not
contain single rows, so generalized cross-validation then selects both. (la Tour, Eickenberg, Nunez-Elizalde, Gallant
2022, NeuroImage 264, evaluate such candidates by cross-validation.) After a few random candidates, others change the
best weights of one target to increase its likelihood as a Gaussian process. With P = (K + c I)^-1 and a = P y, w_v is
multiplied by a power of (a'K_v a / tr P K_v) / (a'a / tr P). This factor is 1 at a stationary point (Zhou, Hu, Zhou,
Lange 2019, equation 5, uses the power 1/2).
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
    """Learn view weights by centered alignment, in one pass over blocks of distances (V x rows x n)."""
    n = len(Y)
    centered = (Y - Y.mean(axis=0)).astype(np.float32)
    products: np.ndarray = np.zeros(())
    with_labels: np.ndarray = np.zeros(())
    parts = []
    for where, d in blocks:
        # The distances have mean 1. In float32, subtracting 1 now is more precise than centering larger values later.
        a = 1.0 - np.asarray(d, np.float32)
        flat = a.reshape(len(a), -1)
        products = products + (flat @ flat.T).astype(np.float64)
        with_labels = with_labels + np.array([np.vdot(centered[where], part @ centered) for part in a], np.float64)
        parts.append(a.sum(axis=2, dtype=np.float64))
    sums = np.concatenate(parts, axis=1)
    total = sums.sum(axis=1)
    M = products - 2 / n * sums @ sums.T + np.outer(total, total) / n**2
    scale = np.sqrt(np.maximum(np.diagonal(M), np.finfo(float).tiny))
    M, a = M / np.outer(scale, scale), with_labels / scale
    # If two views are identical, M is singular, so add a small ridge.
    root = scipy.linalg.cholesky(M + 1e-8 * np.eye(len(M)))
    found, _ = scipy.optimize.nnls(root, scipy.linalg.solve_triangular(root, a, trans="T"))
    weights = found / scale
    length = float(np.linalg.norm(weights))
    return weights / length if length > 0 else weights


PER_TARGET = "per-target"
"""Option of ridge regression that learns separate kernel weights for each label or target."""
SEARCHED = 1500
"""Maximum number of samples, or of columns of moments, from which weights per target are learned."""
# Number of random candidates, number of changed candidates per view, and maximum number of changed candidates.
_DRAWN, _MOVED, _MOST = 20, 20, 160
_CONCENTRATIONS = (0.1, 1.0)  # concentrations of the two Dirichlet distributions from which candidate weights are drawn
_RATIOS = 10.0 ** np.arange(-4.0, 4.5, 0.5)  # candidate ridges, relative to the mean diagonal entry of the kernel
_ROUNDING = 1e-5  # relative floating-point error of squared norms that are computed from float32 moments
# Exponent of the multiplicative update of the best weights, standard deviation of the log-normal noise on the update,
# and constant that is added to the weights so that weights of 0 can grow.
_POWER, _JITTER, _REVIVED = 2.0, 0.2, 0.01


@dataclass
class _TargetSearch:
    """Best weights and ridge found so far for each target, with kernels scaled to mean diagonal 1."""

    weights: np.ndarray
    ridges: np.ndarray  # best ridge of each target
    errors: np.ndarray  # squared leave-one-out error of each target
    scale: np.ndarray  # factor by which the kernel of each view has been divided

    @classmethod
    def _begun(cls, n_labels: int, scale: np.ndarray, *given: Any) -> Self:
        return cls(np.zeros((n_labels, len(scale))), np.zeros(n_labels), np.full(n_labels, np.inf), scale, *given)

    @property
    def moving(self) -> np.ndarray:
        """Indices of the targets that are not all zero and therefore need a search."""
        raise NotImplementedError

    def score(self, w: np.ndarray) -> None:
        """Evaluate candidate weights, and store them for all targets for which they reduce the error."""
        raise NotImplementedError

    def moved(self, target: int) -> np.ndarray:
        """Propose weights that are close to the best weights of a target and increase its likelihood."""
        raise NotImplementedError

    def _keep(self, w: np.ndarray, ridges: np.ndarray, errors: np.ndarray) -> None:
        better = errors < self.errors
        self.weights[better], self.ridges[better], self.errors[better] = w, ridges[better], errors[better]


@dataclass
class KernelSearch(_TargetSearch):
    """Search by leave-one-out errors, with kernel matrices of shape (V, n, n) and targets Y of shape (n, L)."""

    kernels: np.ndarray
    Y: np.ndarray
    center: bool  # whether the kernels and targets are centered, as in a regression with an intercept

    @classmethod
    def of(cls, kernels: np.ndarray, Y: np.ndarray, center: bool) -> Self:
        """Scale the kernels to mean diagonal 1 and start a search."""
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
        # For each candidate ridge, `left` contains the ratios of residuals to targets along the eigenvectors.
        left = c[:, None] / (values + c[:, None])
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
    """Search with moments of factor rows F_v by generalized cross-validation, without another pass over the rows."""

    # D contains the square roots of the column weights on its diagonal. The nonzero eigenvalues of K = F D^2 F' are the
    # nonzero eigenvalues of D F'F D = U s U'. With z = U'D F'y, the squared residual of a target y is y'y - sum z^2 (1
    # + c / (s + c)) / (s + c). The trace of P K_v follows from D F'P F D = I - c (D F'F D + c I)^-1.

    gram: np.ndarray  # product F'F of the scaled factor rows of all views
    products: np.ndarray  # product F'Y of factor rows and targets
    squares: np.ndarray  # squared norm y'y of each target
    view: np.ndarray  # index of the view of each of the R columns
    n: float
    center: bool

    @classmethod
    def of(cls, moments: Moments, center: bool) -> Self:
        """Center and scale moments, and start a search with the largest principal axes if there are many columns."""
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
        # Residuals below the floating-point error of float32 products are meaningless. Without a lower bound, such
        # residuals would select candidates with few degrees of freedom.
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
        # In the notation of the module docstring, the next variables are c tr P, w_v tr P K_v and c^2 a'a.
        of_rows, of_views = self.n - len(d) + c * np.trace(inverse), 1 - c * inverse.diagonal()
        length = np.maximum(self.squares[target] - 2 * (y @ h) + h @ image, 0.0)
        grows = np.bincount(self.view, (y - image) ** 2, count) * of_rows / c
        grows /= np.maximum(np.bincount(self.view, of_views, count) / w * length, np.finfo(float).tiny)
        return np.asarray(w * np.clip(grows, 1e-3, 1e3) ** _POWER)


def _positive(scale: np.ndarray) -> np.ndarray:
    return np.where(scale > 0, scale, 1.0)


def target_weights(found: KernelSearch | MomentSearch, random_state: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Search for view weights with sum 1 (L x V) and a ridge for each of L targets."""
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
"""Names of the methods that learn view weights from the labels."""


def learns(given: Any) -> bool:
    """Return whether an option is the name of a method that learns weights."""
    return isinstance(given, str) and given in LEARNERS


def given_weights(given: Mapping[str, float] | Sequence[float] | str | None, views: Sequence[str]) -> dict[str, float]:
    """Convert weights that the user passed to one weight per view, with sum 1."""
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
    """Return view weights that the user passed, or learn them from labels."""
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
    """Return the distance and the weight of each view; the labels Y are used if weights are learned."""
    distances = named_distances(given.distances, views)
    if not learns(given.weights):
        return distances, given_weights(given.weights, list(views))
    return distances, view_weights(given.weights, ViewDistances.fit(distances, views, random_state), Y)


def product_kernel(distances: Mapping[str, str], weights: Mapping[str, float], gamma: float) -> MultiKernel:
    """Return the kernel exp(-gamma sum_v w_v d_v) for distances d_v divided by their mean over the training samples."""
    used = {view: weight for view, weight in weights.items() if weight > 0}
    return MultiKernel({view: distance_kernel(distances[view], gamma) for view in used}, used, "product")
