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
    """Solve (K + c I) a = y for the labels of each ridge of a group, with any representation of the samples.

    Yield the labels with their view, targets, means and coefficients.
    """
    for labels, view in views:
        own = targets[:, labels]
        own, mean = (own, None) if complete is None else complete(view.smoother, own)
        yield labels, view, own, mean, view.coefficients(own)


def joined(parts: Sequence[tuple[Labels, np.ndarray]], n_labels: int) -> np.ndarray:
    """Combine the results for groups of labels into one array, in the order of the labels."""
    if isinstance(parts[0][0], slice):
        return parts[0][1]  # Do not copy, because another memory layout changes the order of sums.
    out = np.empty((len(parts[0][1]), n_labels))
    for labels, columns in parts:
        out[:, labels] = columns
    return out


@dataclass(frozen=True)
class MomentSystem:
    """Normal equations of a ridge regression on the weighted sum of the low-rank kernels F_v F_v', from moments."""

    moments: Moments
    weights: Mapping[str, float]  # Kernel weight of each view.
    center: bool
    columns: np.ndarray  # Indices of the d columns of these views in the moments.
    scale: np.ndarray  # Square root of the kernel weight of each column.
    rows: np.ndarray  # Products of the d columns with all m columns of the moments.
    gram: np.ndarray  # Gram matrix F'F of the stacked factor rows F of all views, scaled by the weights.

    @classmethod
    def of(cls, moments: Moments, weights: Mapping[str, float], center: bool) -> Self:
        """Create the equations of the views that have weights, from centered products if `center`."""
        slices = moments.slices()
        columns = np.concatenate([np.r_[slices[view]] for view in weights])
        scale = np.concatenate([np.full(moments.widths[view], np.sqrt(weight)) for view, weight in weights.items()])
        rows = moments.gram[columns]  # Copy only these rows, because most products are of labels with labels.
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
        """Yield a view for each ridge and, if each label has its own view weights (L x V), for each set of weights."""
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
    """Columns of moments with a ridge, which need only the products of targets with the (centered) columns."""

    gram: np.ndarray
    scale: np.ndarray
    ridge: float
    used: Labels  # Columns with a positive weight.

    def coefficients(self, B: np.ndarray) -> np.ndarray:
        """Compute the ridge coefficients (d x k) from products B of the columns with targets, and overwrite B."""
        # By the push-through identity, kernel ridge regression has the same coefficients.
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

    If the moments do not contain the labels, `sparse` holds their sums and (overwritten) products with the columns.
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


# If the condition number of the ridge system exceeds this value, float32 products are repeated in float64. On 50 000
# random samples, float32 changed scores by 1.2e-5 of their standard deviation at a condition number of 5e4, and by 8e-5
# at 1.7e5.
_PRECISE = 1e5
# Eigenvectors use a lower limit. On 20 000 random samples, float32 changed the space of KGHA with balance 1 by 5e-6 at
# a condition number of 1e4 and by 7e-5 at 1e5.
SPACE = 1e4


def is_precise(
    moments: Moments, weights: Mapping[str, float], c: float | np.ndarray, center: bool, most: float = _PRECISE
) -> bool:
    """Return whether float32 moments suffice for a ridge regression, whose condition number may be at most `most`."""
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

    `some` (L) marks labels that are known in any row. Return coefficients (d_v x L) by view and the offset (L).
    """
    # Label l solves (F' D M_l F + c I) w_l = F' D M_l y_l, with an additional intercept if `center`. The diagonal
    # matrix D contains the sample weights. M_l contains the entry weights of the label, which are 0 for missing
    # entries. Conjugate gradients solve all labels together, preconditioned by the regression on all rows. Each
    # iteration needs one pass, which computes the contribution of missing or down-weighted entries to the product.
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


_LABELS = 4096  # Number of labels that are solved at a time.
_ENOUGH = 1e-11  # A label has converged at this relative residual.
_PRODUCTS = 2000


def filled(smoother: LinearMap, targets: np.ndarray, counts: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Complete targets so that regression of all rows on them equals regression with the weights `counts` of entries.

    Missing entries have weight 0.
    """
    # Entry (i, l) has weight w_i m_il, where m_il is 0 if the entry is missing. At the minimum, the fitted values are
    # f = H t for the smoother H and the completed targets t = m o y + (1 - m) o f, where o is the entrywise product. So
    # missing entries equal the predictions of the regression, and known entries are kept. With D = diag(w), the system
    # D (H^-1 - I + M) f = D M y is symmetric and positive definite for all m >= 0. Because H D^-1 is a good
    # preconditioner, one factorization of all rows serves all columns. Directions are stored as pairs (H q, q), so that
    # H^-1 f is never formed.
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
    # Converged columns are removed, because further iterations would divide rounding errors by each other. Columns with
    # an exact solution, whose direction has length 0, are removed too. At the end, a warning reports
    # how many columns exceed the tolerance, and their largest residual.
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
"""Maximum size in bytes of factor rows that the client process caches for the next pass."""


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
    """Ridge regression on low-rank kernels with sample weights, and with weights or missing values of single labels."""

    total: Moments
    maps: Mapping[str, FeatureMap]
    shares: Mapping[str, float]  # Kernel weight of each view.
    ridge: float | np.ndarray  # Ridge, with one value or one per label.
    center: bool
    coefficients: dict[str, np.ndarray]  # Coefficients (rank x L) of the factor rows of each view.
    offset: np.ndarray  # Offset (L) of the function, which includes the intercept.
    mean: np.ndarray  # Label means (L) of these rows, minus the label frequencies that scores exclude.

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
        """Fit from moments of rows with complete labels. Scores exclude the label frequencies `frequency` (L)."""
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
        """Fit from rows, labels (n x L, 0 if missing), and weights `counts` of label entries (None means all 1)."""
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
            # Keep `raw`, because it caches its blocks for later passes.
            read = raw if own is maps else replace(raw, maps=own)
            return collect_moments(read, targets, None, often, squares=False)[0].mixed(mixings)

        if whole:
            total = in_single(maps, views, collect, lambda found: is_precise(found, shares, c, center))
            return cls.of(total, *given, frequency)
        total = collect(maps)  # Use float64, like the passes of the following iteration.
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
        """Return the function times `share` as a sum over views. The coefficients are scaled in place."""
        parts: dict[str, Expansion] = {}
        for view, B in self.coefficients.items():
            B *= share
            parts[view] = FactorExpansion.of(view, self.maps[view], B, np.zeros_like(self.offset))
        return shifted(parts, share * self.offset)

    def left_out(self, views: Mapping[str, Rows], Y: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Compute leave-one-out scores (s_i - h_i y_i) / (1 - h_i) of complete labels in one pass over the rows.

        The score of a row omits the weight of this row in `weights` (n).
        """
        # The leverage is h_i = |f_i R^-1|^2, where R'R = F'F + c I for the weighted (centered) factor rows F.
        #
        # Rifkin, Lippert 2007, section 3.
        total = self.total
        system = MomentSystem.of(total, self.shares, self.center)
        # Compute the leverage by a triangular solve. R has only the square root of the condition number of F'F + c I,
        # and a sum of squares cannot cancel.
        groups = label_groups(self.ridge, Y.shape[1])
        roots = [(scipy.linalg.cholesky(system.shifted(value)), which) for value, which in groups]
        mean = system.mean if self.center else 0.0
        # The scores of the regression refer to centered labels.
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
