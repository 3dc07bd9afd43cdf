"""Ridge regression of the labels: from moments, and where their entries have weights or are unknown."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from dmo.blocks import row_blocks
from dmo.engines.moments import LABELS, Moments, label_groups
from dmo.linalg.linear import Equilibrated, positive_solve
from dmo.linalg.tall import LinearMap


def ridge(
    moments: Moments, weights: Mapping[str, float], c: float | np.ndarray, center: bool = True
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Ridge regression of the labels on the summed kernel sum_v w_v F_v F_v'.

    With stacked F = [sqrt(w_v) F_v], beta = sqrt(w) (F'F + c I)^-1 F'Y, by push-through equal to kernel ridge.

    Parameters
    ----------
    moments : Moments
        Of factor rows and labels.
    weights : mapping of view to float
        w_v >= 0 of the views to use.
    c : float or ndarray of shape (L,)
        The ridge, of all labels or of each: labels of one ridge share a factorization.
    center : bool, default=True
        Take rows and labels less their means.

    Returns
    -------
    coefficients : dict of str to ndarray of shape (d_v, L)
        beta_v of f(x) = sum_v f_v(x) beta_v + offset.
    offset : ndarray of shape (L,)
        Of f, which with `center` predicts labels less their means.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo import Moments
    >>> from dmo.methods.ridge import ridge
    >>> X = np.array([[0.0], [1.0], [2.0]])
    >>> coefficients, offset = ridge(Moments.of({"x": X, "labels": 2 * X + 1}), {"x": 1.0}, 1e-9)
    >>> coefficients["x"].round(6), offset.round(6)
    (array([[2.]]), array([-2.]))
    """
    columns, scale, gram, small = moments.weighted_system(weights, center)
    right = scale[:, None] * gram[:, moments.slices()[LABELS]]
    beta = np.empty_like(right)
    for value, which in label_groups(c, right.shape[1]):
        beta[:, which] = scale[:, None] * positive_solve(small, value, right[:, which])
    offset = -(moments.mean()[columns] @ beta) if center else np.zeros(beta.shape[1])
    edges = np.cumsum([moments.widths[view] for view in weights])[:-1]
    return dict(zip(weights, np.split(beta, edges), strict=True)), offset


def sparse_label_ridge(
    moments: Moments, products: np.ndarray, counts: np.ndarray, weights: Mapping[str, float], c: float, center: bool
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Ridge regression of very many sparse labels, from moments of the rows and their products with the labels.

    Parameters
    ----------
    moments : Moments
        Of factor rows alone.
    products : ndarray of shape (L, sum d_v)
        Y'F; it is overwritten with the coefficients.
    counts : ndarray of shape (L,)
        Sums of the labels.
    weights : mapping of view to float
        w_v >= 0 of the views to use, which are all groups of the moments.
    c : float
        The ridge.
    center : bool
        Take rows and labels less their means.

    Returns
    -------
    coefficients : dict of str to ndarray of shape (d_v, L)
        beta_v of f(x) = sum_v f_v(x) beta_v + offset.
    offset : ndarray of shape (L,)
        Of f.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.engines.moments import Moments
    >>> from dmo.methods.ridge import sparse_label_ridge
    >>> F = np.array([[1.0], [2.0], [4.0]])
    >>> beta, _ = sparse_label_ridge(Moments.of({"x": F}), np.array([[5.0]]), np.array([2.0]), {"x": 1.0}, 1.0, False)
    >>> round(float(beta["x"][0, 0]), 3)
    0.227
    """
    columns, scale, _, small = moments.weighted_system(weights, center)
    small.flat[:: len(small) + 1] += c
    system, mean = Equilibrated(small), moments.mean()[columns]
    for where in row_blocks(len(products), _LABELS):
        right = products[where] - np.outer(counts[where], mean) if center else products[where]
        products[where] = (scale[:, None] * system.solve((right * scale).T)).T
    offset = -(products @ mean) if center else np.zeros(len(products))
    edges = np.cumsum([moments.widths[view] for view in weights])[:-1]
    return dict(zip(weights, np.split(products.T, edges), strict=True)), offset


def masked_ridge(
    moments: Moments,
    weights: Mapping[str, float],
    c: float,
    gaps: Callable[[np.ndarray, np.ndarray], np.ndarray],
    some: np.ndarray,
    center: bool = True,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Ridge regression of every label on its own known rows, from moments of all rows and passes over them.

    Label l solves (F' D M_l F + c I) w_l = F' D M_l y_l, with an intercept beside w_l where `center`; D: weights of the
    samples, M_l: how often each counts for the label, 0 where it is unknown. Conjugate gradients for all labels at once,
    preconditioned by the regression on all rows; an iteration is one pass, for what unknown or lighter entries take from
    the product.

    Parameters
    ----------
    moments : Moments
        Weighted, of factor rows and of the labels times M.
    weights : mapping of view to float
        w_v >= 0 of the views to use.
    c : float
        The ridge.
    gaps : callable
        (coefficients B of shape (d + 1, k) of the views' columns and an intercept, numbers of their k labels) ->
        [F, 1]' D ((1 - M) o [F, 1] B).
    some : ndarray of shape (L,), bool
        Labels that are known of some samples.
    center : bool, default=True
        With an intercept, which is not penalized.

    Returns
    -------
    coefficients : dict of str to ndarray of shape (d_v, L)
        beta_v of f(x) = sum_v f_v(x) beta_v + offset.
    offset : ndarray of shape (L,)
        Of f, the intercept included.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.blocks import row_blocks
    >>> from dmo.engines.moments import LABELS, Moments
    >>> from dmo.methods.ridge import masked_ridge
    >>> F, Y = np.array([[1.0], [2.0], [4.0]]), np.array([[1.0], [2.0], [0.0]])
    >>> unknown, ones = np.array([[False], [False], [True]]), np.ones((3, 1))
    >>> stacked = np.hstack([F, ones])
    >>> gaps = lambda B, which: stacked.T @ (unknown * (stacked @ B))
    >>> beta, offset = masked_ridge(Moments.of({"x": F, LABELS: Y}), {"x": 1.0}, 1e-9, gaps, np.array([True]))
    >>> beta["x"].round(6).ravel().tolist(), abs(offset.round(6)).tolist()
    ([1.0], [0.0])
    """
    columns, scale, _, small = moments.weighted_system(weights, center)
    plain = moments.gram[np.ix_(columns, columns)] * scale[:, None] * scale
    sums, n = scale * moments.sums[columns], moments.n
    labels = moments.slices()[LABELS]
    B = np.vstack([scale[:, None] * moments.gram[columns, labels], moments.sums[labels]]) * some
    small.flat[:: len(small) + 1] += c
    system = Equilibrated(small)

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
    beta = scale[:, None] * found[:-1]
    edges = np.cumsum([moments.widths[view] for view in weights])[:-1]
    return dict(zip(weights, np.split(beta, edges), strict=True)), found[-1]


_LABELS = 4096  # labels that are solved at a time
_ENOUGH = 1e-11  # relative residual at which a label counts as solved
_PRODUCTS = 2000


def filled(smoother: LinearMap, targets: np.ndarray, counts: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Complete targets so that the ridge regression of all rows on them is that of every column on its own weights.

    Entry (i, l) weighs w_i m_il, m = 0 where it is unknown. At the minimum the fitted values f = H t are those of
    t = m o y + (1 - m) o f: unknown entries are what the regression says of them, and known ones stay. With D = diag(w),
    D (H^-1 - I + M) f = D M y is symmetric, positive definite for every m >= 0, and H D^-1 a good preconditioner of it (the
    inverse, where all m are 1): no column has a factorization of its own, and one of all rows serves them. H^-1 f is never
    formed: directions come as pairs (H q, q), which the iteration keeps one below the other.

    Parameters
    ----------
    smoother : callable
        B (n x k) -> H B, the fitted values of the weighted regression of all rows, its intercept included.
    targets : ndarray of shape (n, L)
        y; unknown entries are not looked at.
    counts : ndarray of shape (n, L)
        m: bool, whether an entry is known; or how often it counts, at least 0.
    weights : ndarray of shape (n,)
        w; rows of weight 0 stay unfilled.

    Returns
    -------
    ndarray of shape (n, L)
        t.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.methods.ridge import filled
    >>> mean = lambda B: np.tile(B.mean(axis=0), (len(B), 1))
    >>> known = np.array([[True], [True], [False]])
    >>> filled(mean, np.array([[1.0], [3.0], [0.0]]), known, np.ones(3)).ravel().round(9).tolist()
    [1.0, 3.0, 2.0]
    """
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
    """Solve A_l x_l = b_l for every column l by conjugate gradients of its own, whose products are made together.

    1. Columns that have converged are taken out: going on with them would divide rounding by rounding.
    2. A column whose direction has no length left (an exact solution) is taken out for the same reason.
    3. A warning names what is still above the tolerance in the end.

    Parameters
    ----------
    apply : callable
        (X of shape (m, q), the numbers of its columns) -> A_l x_l of each.
    B : ndarray of shape (m, L)
        Right-hand sides.
    precondition : callable
        R (m x q) -> an approximate inverse of all A_l times R, symmetric positive definite.
    tol : float, default=1e-11
        Relative residual at which a column has converged, in the norm of the approximate inverse.

    Returns
    -------
    ndarray of shape (m, L)
        Solutions.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.methods.ridge import column_gradients
    >>> scales = np.array([1.0, 4.0])
    >>> column_gradients(lambda X, which: X * scales[which], np.ones((3, 2)), lambda R: R)[0].tolist()
    [1.0, 0.25]
    """
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
            f"conjugate gradients: {active.size} of {B.shape[1]} labels stopped at a relative residual of {worst:.1e}; raise "
            f"the ridge",
            ConvergenceWarning,
            stacklevel=2,
        )
    return X
