"""How far a low-rank kernel is from the kernel itself, on a random sample of entries."""

from __future__ import annotations

import numpy as np

from dmo.blocks import Rows
from dmo.lowrank.feature_maps import FeatureMap
from dmo.lowrank.sampling import draw, gather

_ROWS = 256  # 256 more beside them make the estimate steadier by less than a third, for more than twice the time


def sampled_error(
    feature_map: FeatureMap,
    X: Rows,
    random_state: int | np.random.Generator | None = None,
    probes: np.ndarray | None = None,
) -> dict[str, float]:
    """Estimate the errors of a feature map on random entries of the kernel.

    Parameters
    ----------
    feature_map : FeatureMap
        The map.
    X : row source of shape (n, d)
        Rows, in chunks of whole rows.
    random_state : int, Generator or None, default=None
        Seed of the sample.
    probes : ndarray of int or None, default=None
        Row numbers whose kernel values are compared, with each other and, of fewer than 256, with as many random rows
        more; None: 256 random rows.

    Returns
    -------
    dict
        "relative_error": |K - F F'|_F / |K|_F, estimated in float64, diagonal and other entries weighted by their numbers;
        "residual_diagonal": mean of k(x, x) - |f(x)|^2 over the probes, relative to the mean of k(x, x); "probes", "rows":
        the sizes of the sample.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.lowrank import nystrom, sampled_error
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> found = nystrom("rbf", X, rank=200, random_state=0, dtype=np.float64)
    >>> sampled_error(found, X, random_state=0)["relative_error"] < 1e-4
    True
    """
    n, kernel = X.shape[0], feature_map.kernel
    first, others = _drawn(n, random_state, probes)
    index = np.concatenate([first, others])
    order = np.argsort(index)
    sample = gather(X, index[order])
    front = np.empty(len(index), dtype=np.int64)
    front[order] = np.arange(len(index))
    b = sample[front]
    prepared, probed = kernel.prepare(b, np.float64), slice(0, len(first))
    exact = kernel.tile(prepared[probed], prepared)
    rows = feature_map(b).astype(np.float64)
    difference = exact - rows[: len(first)] @ rows.T
    diagonal = np.asarray(kernel.diagonal(prepared[probed]), np.float64)
    residual = diagonal - np.einsum("ij,ij->i", rows[: len(first)], rows[: len(first)])
    mine = np.arange(len(first))
    difference[mine, mine] = exact[mine, mine] = 0.0  # the diagonal counts apart: n of the n^2 entries
    pairs = max(len(first) * (len(index) - 1), 1)
    off = n * (n - 1) / pairs
    error = off * (difference**2).sum() + n * (residual**2).mean()
    total = off * (exact**2).sum() + n * (diagonal**2).mean()
    return {
        "relative_error": float(np.sqrt(error / total)) if total > 0 else 0.0,
        "residual_diagonal": float(residual.mean() / diagonal.mean()) if diagonal.mean() > 0 else 0.0,
        "probes": len(first),
        "rows": len(index),
    }


def error_rows(n: int, random_state: int) -> np.ndarray:
    """Ascending numbers of the rows that `sampled_error` reads of n."""
    return np.sort(np.concatenate(_drawn(n, random_state, None)))


def _drawn(
    n: int, random_state: int | np.random.Generator | None, probes: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers of the probes and of the other rows, each ascending."""
    rng = np.random.default_rng(random_state)
    first = draw(n, min(_ROWS, n), rng) if probes is None else np.sort(probes)
    # counted among the rows that are no probes, without a list of them all
    others = draw(n - len(first), max(_ROWS - len(first), 0), rng)
    return first, others + np.searchsorted(first - np.arange(len(first)), others, side="right")
