"""Ridge regression from moments, for complete labels, many sparse labels, and labels with weights or missing values."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeAlias

import numpy as np
import scipy.linalg
import scipy.sparse
from sklearn.exceptions import ConvergenceWarning

from dmo.blocks import Rows, row_blocks, rows
from dmo.fit.engine import in_single
from dmo.fit.functions import Expansion, FactorExpansion, shifted
from dmo.fit.moments import LABELS, Moments, label_groups
from dmo.fit.passes import FeatureRows, collect_moments, gap_products, label_products
from dmo.fit.row_sums import BLOCK
from dmo.inputs import Data, ProductRows, entry_blocks
from dmo.linalg.linear import Equilibrated, IllConditioned, positive_solve, warn_of_leverage
from dmo.linalg.tall import LinearMap
from dmo.lowrank import FeatureMap
from dmo.progress import stage

Labels: TypeAlias = slice | np.ndarray


def solutions(
    views: Iterable[tuple[Labels, Any]], targets: np.ndarray, complete: Callable[..., Any] | None = None
) -> Iterator[tuple[Labels, Any, np.ndarray, np.ndarray | None, np.ndarray]]:
    """Solve (K + c I) a = y separately for each group of labels that share a ridge c.

    Yield the labels of each group with its view, targets, target means and coefficients.
    """
    for labels, view in views:
        own = targets[:, labels]
        own, mean = (own, None) if complete is None else complete(view.smoother, own)
        yield labels, view, own, mean, view.coefficients(own)


def joined(parts: Sequence[tuple[Labels, np.ndarray]], n_labels: int) -> np.ndarray:
    """Combine the results for groups of labels into one array, in the order of the labels."""
    if isinstance(parts[0][0], slice):
        # Return the array itself: a copy with another memory layout would change the order of sums and thus the last
        # digits.
        return parts[0][1]
    out = np.empty((len(parts[0][1]), n_labels))
    for labels, columns in parts:
        out[:, labels] = columns
    return out


@dataclass(frozen=True)
class MomentSystem:
    """Normal equations of a ridge regression on the weighted sum of the low-rank kernels F_v F_v', from moments."""

    moments: Moments
    weights: Mapping[str, float]  # Weight of the kernel of each view.
    center: bool
    columns: np.ndarray  # Indices (d) of the columns of these views in the moments.
    scale: np.ndarray  # Square root of the view weight for each of the d columns.
    rows: np.ndarray  # Rows of the (centered) Gram matrix of the moments for these columns (d x m).
    gram: np.ndarray  # Gram matrix F'F (d x d) of the factor rows F, whose columns are multiplied by `scale`.

    @classmethod
    def of(cls, moments: Moments, weights: Mapping[str, float], center: bool) -> Self:
        """Create the equations of the views that have weights, from centered products if `center`."""
        slices = moments.slices()
        columns = np.concatenate([np.r_[slices[view]] for view in weights])
        scale = np.concatenate([np.full(moments.widths[view], np.sqrt(weight)) for view, weight in weights.items()])
        # Most entries of the Gram matrix are products of two labels, so copy only the rows of the features.
        rows = moments.gram[columns]
        if center:
            rows -= np.outer(moments.sums[columns], moments.sums / moments.n)
        return cls(moments, weights, center, columns, scale, rows, rows[:, columns] * scale[:, None] * scale)

    @property
    def mean(self) -> np.ndarray:
        """Means of the d columns."""
        return self.moments.mean()[self.columns]

    def shifted(self, c: float) -> np.ndarray:
        """Compute F'F + c I (d x d)."""
        shifted = self.gram.copy()
        shifted.flat[:: len(shifted) + 1] += c
        return shifted

    def by_view(self, beta: np.ndarray) -> dict[str, np.ndarray]:
        """Split the rows of coefficients (d x L) by view."""
        edges = np.cumsum([self.moments.widths[view] for view in self.weights])[:-1]
        return dict(zip(self.weights, np.split(beta, edges), strict=True))

    def views(
        self, c: float | np.ndarray, weights: np.ndarray | None, n_labels: int
    ) -> Iterator[tuple[Labels, MomentView]]:
        """Yield labels and their `MomentView` for each ridge.

        With `weights` (L x V), labels with equal weights share a view.
        """
        if weights is None:
            for value, labels in label_groups(c, n_labels):
                yield labels, MomentView(self.gram, self.scale, value, slice(None))
            return
        widths = [self.moments.widths[view] for view in self.weights]
        shares, which = np.unique(weights, axis=0, return_inverse=True)
        for i, share in enumerate(shares):
            scale = np.repeat(np.sqrt(share), widths)
            used, own = np.flatnonzero(scale), np.flatnonzero(which.ravel() == i)
            scale = scale[used]
            gram = self.gram[np.ix_(used, used)] * scale[:, None] * scale
            for value, labels in label_groups(np.asarray(c)[own], len(own)):
                yield own[labels], MomentView(gram, scale, value, used)


@dataclass(frozen=True)
class MomentView:
    """Ridge regression on columns of moments, solved from the products of targets with the (centered) columns."""

    gram: np.ndarray
    scale: np.ndarray
    ridge: float
    used: Labels  # Indices of the columns that belong to views with positive weight.

    def coefficients(self, B: np.ndarray) -> np.ndarray:
        """Compute the ridge coefficients (d x k) from products B of the columns with targets, and overwrite B."""
        # By the push-through identity, these coefficients of the columns define the same function as kernel ridge
        # regression.
        for some in row_blocks(B.shape[1], _LABELS):
            right = B[self.used, some]
            found = self.scale[:, None] * positive_solve(self.gram, self.ridge, self.scale[:, None] * right)
            B[:, some] = 0.0
            B[self.used, some] = found
        return B


def ridge(
    moments: Moments,
    weights: Mapping[str, Any],
    c: float | np.ndarray,
    center: bool = True,
    sparse: tuple[np.ndarray, np.ndarray] | None = None,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Compute the coefficients by view, and the offset, of ridge regression on a weighted sum of low-rank kernels.

    If the moments exclude the labels, `sparse` holds their products with the columns (overwritten) and the label sums.
    """
    by_label = any(isinstance(own, np.ndarray) for own in weights.values())
    system = MomentSystem.of(moments, dict.fromkeys(weights, 1.0) if by_label else weights, center)
    if sparse is None:
        products = system.rows[:, moments.slices()[LABELS]].copy()
    else:
        products = sparse[0].T
        for some in row_blocks(products.shape[1] if center else 0, _LABELS):
            products[:, some] -= np.outer(system.mean, sparse[1][some])
    n_labels = products.shape[1]
    views = system.views(c, np.column_stack(list(weights.values())) if by_label else None, n_labels)
    beta = joined([(own, found) for own, *_, found in solutions(views, products)], n_labels)
    return system.by_view(beta), -(system.mean @ beta) if center else np.zeros(n_labels)


# Condition number of the ridge system above which float32 products are repeated in float64. On 50 000 random samples,
# float32 changed scores by 1.2e-5 of their standard deviation at a condition number of 5e4, and by 8e-5 at 1.7e5.
_PRECISE = 1e5
# Float32 products change eigenvectors more than regressions, so eigenvectors use this lower limit of the condition
# number. For KGHA with balance=1 on 20 000 random samples, float32 changed the embedding space by 5e-6 at a condition
# number of 1e4, and by 7e-5 at 1e5.
SPACE = 1e4


def is_precise(
    moments: Moments, weights: Mapping[str, float], c: float | np.ndarray, center: bool, most: float = _PRECISE
) -> bool:
    """Return whether the condition number of a ridge system is at most `most`, so that float32 moments suffice."""
    try:
        return Equilibrated(MomentSystem.of(moments, weights, center).shifted(float(np.min(c)))).condition() <= most
    except IllConditioned:
        return False


def masked_ridge(
    moments: Moments,
    weights: Mapping[str, float],
    c: float,
    gaps: Callable[[np.ndarray, np.ndarray], np.ndarray],
    some: np.ndarray,
    center: bool = True,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Compute ridge regression of each label on the rows where it is known, from moments and passes over all rows.

    `some` (L) marks labels that are known in at least one row. Return coefficients (d_v x L) by view, and offsets (L).
    """
    # For factor rows F, the coefficients w_l of label l solve (F' D M_l F + c I) w_l = F' D M_l y_l, with an additional
    # intercept if `center` is true. The diagonal matrix D contains the sample weights. The diagonal matrix M_l contains
    # the entry weights of label l, which are 0 for missing entries. Conjugate gradients solve for all labels together,
    # preconditioned by the regression on all rows. Each iteration needs one pass over the data, which computes the
    # contribution of missing or down-weighted entries to the product.
    equations = MomentSystem.of(moments, weights, center)
    columns, scale = equations.columns, equations.scale
    plain = moments.gram[np.ix_(columns, columns)] * scale[:, None] * scale
    sums, n = scale * moments.sums[columns], moments.n
    labels = moments.slices()[LABELS]
    B = np.vstack([scale[:, None] * moments.gram[columns, labels], moments.sums[labels]]) * some
    system = Equilibrated(equations.shifted(c))

    def apply(X: np.ndarray, which: np.ndarray) -> np.ndarray:
        W, b = X[:-1], X[-1] if center else np.zeros(X.shape[1])
        taken = gaps(np.vstack([scale[:, None] * W, b]), which)
        top = plain @ W + np.outer(sums, b) + c * W - scale[:, None] * taken[:-1]
        return np.vstack([top, sums @ W + n * b - taken[-1] if center else b])

    def precondition(R: np.ndarray) -> np.ndarray:
        if not center:
            return np.vstack([system.solve(R[:-1]), np.zeros(R.shape[1])])
        W = system.solve(R[:-1] - np.outer(sums / n, R[-1]))
        return np.vstack([W, R[-1] / n - sums / n @ W])

    if not center:
        B[-1] = 0.0
    found = column_gradients(apply, B, precondition)
    return equations.by_view(scale[:, None] * found[:-1]), found[-1]


_LABELS = 4096  # Number of labels whose coefficients are computed at a time.
_ENOUGH = 1e-11  # Relative residual at which conjugate gradients have converged for a column.
_PRODUCTS = 2000


def filled(smoother: LinearMap, targets: np.ndarray, counts: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Impute targets so that a regression on the result equals a regression with the entry weights `counts`.

    Missing targets have weight 0.
    """
    # Target (i, l) has the weight w_i m_il, where w_i is a sample weight and m_il is an entry weight, which is 0 for a
    # missing target. The minimizer of the weighted squared error has the fitted values f = H t for the smoother H and
    # the imputed targets t = m o y + (1 - m) o f, where o is the entrywise product. Therefore, missing targets equal
    # the predictions of the regression, and targets with m = 1 are kept. With D = diag(w) and M = diag(m), the system D
    # (H^-1 - I + M) f = D M y is symmetric and positive definite for all m >= 0. The preconditioner H D^-1 is the same
    # for all columns, so that one factorization of all rows suffices. Search directions are stored as pairs (H q, q),
    # so that H^-1 f is never formed.
    out, n = np.where(counts > 0, targets, 0.0), len(targets)
    columns = np.flatnonzero((counts != 1).any(axis=0) & ((counts > 0) & (weights[:, None] > 0)).any(axis=0))
    if not columns.size:
        return out
    m, D = counts[:, columns].astype(np.float64), weights[:, None]
    inverse = np.divide(1.0, D, out=np.zeros_like(D), where=D > 0)

    def apply(pairs: np.ndarray, which: np.ndarray) -> np.ndarray:
        P, Q = pairs[:n], pairs[n:]
        return np.vstack([D * (Q - P + m[:, which] * P), np.zeros_like(Q)])

    def precondition(R: np.ndarray) -> np.ndarray:
        Q = inverse * R[:n]
        return np.vstack([smoother(Q), Q])

    right = D * m * out[:, columns]
    fitted = column_gradients(apply, np.vstack([right, np.zeros_like(right)]), precondition)[:n]
    out[:, columns] = np.where(D > 0, m * out[:, columns] + (1 - m) * fitted, out[:, columns])
    return out


def column_gradients(
    apply: Callable[[np.ndarray, np.ndarray], np.ndarray],
    B: np.ndarray,
    precondition: LinearMap,
    tol: float = _ENOUGH,
) -> np.ndarray:
    """Solve A_l x_l = b_l by conjugate gradients for each column of B (m x L), with joint products for all columns."""
    # Columns that have converged are no longer updated, because further steps would divide rounding errors by rounding
    # errors. Columns whose search direction is zero have an exact solution, so they are no longer updated either.
    X, active = np.zeros_like(B), np.arange(B.shape[1])
    R = B.copy()
    Z = precondition(R)
    P, rho = Z.copy(), np.einsum("ij,ij->j", R, Z)
    first = rho.copy()
    active = active[rho > 0]
    for _ in range(_PRODUCTS):
        if not active.size:
            return X
        D = P[:, active]
        image = apply(D, active)
        curve = np.einsum("ij,ij->j", D, image)
        step = np.divide(rho[active], curve, out=np.zeros_like(curve), where=curve > 0)
        X[:, active] += step * D
        R[:, active] -= step * image
        Z = precondition(R[:, active])
        new = np.einsum("ij,ij->j", R[:, active], Z)
        P[:, active] = Z + (new / rho[active]) * D
        rho[active] = new
        active = active[(new > tol**2 * first[active]) & (curve > 0)]
    worst = float(np.sqrt((rho[active] / first[active]).max(initial=0.0)))
    if active.size:
        warnings.warn(
            f"conjugate gradients: {active.size} of {B.shape[1]} labels stopped at a relative residual of {worst:.1e}; "
            f"raise the ridge",
            ConvergenceWarning,
            stacklevel=2,
        )
    return X


_KEPT = 2**30
"""Maximum size in bytes of the factor rows that the client process caches between passes over the data."""


def completed(
    data: Data, smoother: LinearMap, targets: np.ndarray, weights: np.ndarray, center: bool
) -> tuple[np.ndarray, np.ndarray | None]:
    """Impute missing or down-weighted targets with the predictions of the regression itself, and center the targets.

    Return the targets and their means, which are None if the targets are complete or not centered.
    """
    if data.complete:
        return targets, None
    share = (weights / weights.sum())[None, :]

    def fit(B: np.ndarray) -> np.ndarray:
        mean = share @ B if center else 0.0
        return np.asarray(smoother(B - mean) + mean)

    full = targets if data.counts is None else filled(fit, targets, np.asarray(data.counts), weights)
    if not center:
        return full, None
    mean = share @ full
    return full - mean, mean[0]


@dataclass(frozen=True)
class PartialRidge:
    """Ridge regression on low-rank kernels that supports sample weights, label weights and missing labels."""

    total: Moments
    maps: Mapping[str, FeatureMap]
    shares: Mapping[str, float]  # Weight of the kernel of each view.
    ridge: float | np.ndarray  # Ridge, with one value or one per label.
    center: bool
    coefficients: dict[str, np.ndarray]  # Coefficients (rank x L) of the factor rows of each view.
    offset: np.ndarray  # Constant (L) of the function, which includes the intercept.
    # Label means (L) of the training rows, minus the label frequencies that are subtracted from scores.
    mean: np.ndarray

    @classmethod
    def of(
        cls,
        total: Moments,
        maps: Mapping[str, FeatureMap],
        shares: Mapping[str, Any],
        c: float | np.ndarray,
        center: bool,
        frequency: np.ndarray,
    ) -> Self:
        """Fit to the moments of completely labeled rows.

        Scores are predictions minus the label frequencies `frequency` (L).
        """
        found, offset = ridge(total, shares, c, center)
        mean = total.mean()[total.slices()[LABELS]] - frequency if center else np.zeros_like(frequency)
        return cls(total, maps, shares, c, center, found, offset + mean, mean)

    @classmethod
    def fit(
        cls,
        maps: Mapping[str, FeatureMap],
        views: Mapping[str, Rows],
        Y: Any,
        counts: Any,
        weights: np.ndarray,
        shares: Mapping[str, float],
        c: float,
        center: bool,
        frequency: np.ndarray,
    ) -> Self:
        """Fit to rows and their labels (n x L, 0 if missing).

        `counts` contains the weights of label entries, or None if all are 1.
        """
        raw = FeatureRows(views, maps, 0 if counts is None else _KEPT)
        often = None if (weights == 1).all() else weights
        mixings = {view: m.mixing for view, m in maps.items() if m.mixing is not None}
        given = maps, shares, c, center
        if scipy.sparse.issparse(Y):
            total, products = label_products(raw, Y, often)
            if mixings:
                parts = [(products[:, columns], mixings.get(view)) for view, columns in total.slices().items()]
                products = np.hstack([part if T is None else part @ T for part, T in parts])
            total, carried = total.mixed(mixings), Y.T @ weights
            found, offset = ridge(total, shares, c, center, (products, carried))
            mean = carried / total.n - frequency if center else np.zeros_like(frequency)
            return cls(total, *given, found, offset + mean, mean)
        whole = counts is None or all((block == 1).all() for _, block in entry_blocks(counts))
        targets = Y if whole or counts.dtype == bool else ProductRows(Y, counts)

        def collect(own: Mapping[str, FeatureMap]) -> Moments:
            # The object `raw` caches factor rows for later passes, so use it if the feature maps are unchanged.
            read = raw if own is maps else replace(raw, maps=own)
            return collect_moments(read, targets, None, often, squares=False)[0].mixed(mixings)

        if whole:
            total = in_single(maps, views, collect, lambda found: is_precise(found, shares, c, center))
            return cls.of(total, *given, frequency)
        total = collect(maps)  # The conjugate gradients below need float64 moments.
        edges = np.cumsum([total.widths[view] for view in maps])[:-1]
        raw_edges = np.cumsum([m.rank if m.mixing is None else len(m.mixing) for m in maps.values()])[:-1]

        def mixed(parts: Sequence[np.ndarray], back: bool) -> np.ndarray:
            own = [mixings.get(view) for view in maps]
            return np.vstack([B if T is None else (T.T if back else T) @ B for T, B in zip(own, parts, strict=True)])

        def gaps(B: np.ndarray, which: np.ndarray) -> np.ndarray:
            coefficients = np.vstack([mixed(np.split(B[:-1], edges), False), B[-1:]])
            image = gap_products(raw, coefficients, counts, which, weights)
            return np.vstack([mixed(np.split(image[:-1], raw_edges), True), image[-1:]])

        some = np.any([(block > 0).any(axis=0) for _, block in entry_blocks(counts)], axis=0)
        found, offset = masked_ridge(total, shares, c, gaps, some, center)
        mean = np.zeros_like(frequency)
        return cls(total, *given, found, offset - frequency if center else offset, mean)

    def expansions(self, share: float) -> dict[str, Expansion]:
        """Return the function multiplied by `share`, as one function per view. The coefficients are scaled in place."""
        parts: dict[str, Expansion] = {}
        for view, B in self.coefficients.items():
            B *= share
            parts[view] = FactorExpansion.of(view, self.maps[view], B, np.zeros_like(self.offset))
        return shifted(parts, share * self.offset)

    def left_out(self, views: Mapping[str, Rows], Y: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Compute leave-one-out scores of complete labels in one pass over the rows.

        The score of a row comes from a fit without the weight of this row in `weights` (n).
        """
        # The leave-one-out score of sample i is (s_i - h_i y_i) / (1 - h_i), with its score s_i, label y_i and leverage
        # h_i. The leverage is h_i = |f_i R^-1|^2, where f_i is the (centered) factor row of sample i, and R'R = F'F + c
        # I for the weighted factor rows F.
        #
        # Rifkin, Lippert 2007, section 3.
        total = self.total
        system = MomentSystem.of(total, self.shares, self.center)
        # The triangular factor R has only the square root of the condition number of F'F + c I, so compute leverages by
        # a triangular solve with R. Leverages are then sums of squares, in which no cancellation occurs.
        groups = label_groups(self.ridge, Y.shape[1])
        roots = [(scipy.linalg.cholesky(system.shifted(value)), which) for value, which in groups]
        mean = system.mean if self.center else 0.0
        # The regression is fitted to centered labels, so center the labels here too.
        label_mean = total.mean()[total.slices()[LABELS]] if self.center else 0.0
        out = np.empty(Y.shape)
        blocks = row_blocks(len(Y), BLOCK)
        with stage("leave-one-out scores", len(blocks)) as advance:
            for where in blocks:
                factors = {view: self.maps[view](rows(views[view], where)) for view in self.shares}
                score = self.offset - self.mean + sum(factors[view] @ self.coefficients[view] for view in self.shares)
                F = (np.hstack([factors[view] for view in self.shares]) - mean) * system.scale
                targets = Y[where] - label_mean
                for whiten, which in roots:
                    half = scipy.linalg.solve_triangular(whiten, F.T, trans="T", check_finite=False)
                    h = np.einsum("ij,ij->j", half, half)[:, None] + (1 / total.n if self.center else 0.0)
                    h *= weights[where, None]
                    warn_of_leverage(1 - h[:, 0])
                    out[where, which] = (score[:, which] - h * targets[:, which]) / (1 - h)
                advance(1)
        return out + self.mean
