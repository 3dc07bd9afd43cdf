"""Which approximation suits a kernel: Nystrom and MEKA of equal memory, compared on rows that neither has seen."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from dmo.blocks import Rows, Subset
from dmo.errors import UserError
from dmo.kernels import Kernel
from dmo.lowrank.errors import sampled_error
from dmo.lowrank.feature_maps import FeatureMap
from dmo.lowrank.landmarks import Landmarks
from dmo.lowrank.meka_fit import meka
from dmo.lowrank.nystrom import fit_kernel, nystrom
from dmo.lowrank.sampling import check_rows, draw
from dmo.validation import COUNT, check_parameter

log = logging.getLogger("dmo")
_LANDMARKS: tuple[Landmarks, ...] = ("rpcholesky", "kmeans")
_HELD = 512


@dataclass(frozen=True)
class Choice:
    """The better of several feature maps, and the error of each.

    Attributes
    ----------
    feature_map : FeatureMap
        The best.
    errors : dict of str to dict
        Errors by name, see `sampled_error`.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.lowrank import choose
    >>> X = np.random.default_rng(0).normal(size=(300, 4))
    >>> sorted(choose("rbf", X, rank=20, clusters=3, random_state=0).errors)
    ['meka', 'nystrom-kmeans', 'nystrom-rpcholesky']
    """

    feature_map: FeatureMap
    errors: dict[str, dict[str, float]]


def choose(
    kernel: str | Kernel,
    X: Rows,
    rank: int | None = None,
    memory: float | None = None,
    clusters: int = 10,
    random_state: int | np.random.Generator | None = None,
    dtype: Any = np.float32,
    fit_rows: int | None = None,
) -> Choice:
    """Fit Nystrom and MEKA at equal memory and keep the one with the smallest error on kernel values of held-out rows.

    512 rows (at most a quarter) are held out of the fits; the errors are those of the kernel among them.

    Parameters
    ----------
    kernel : str or Kernel
        Fitted here where it is not.
    X : row source of shape (n, d)
        Rows, in chunks of whole rows.
    rank : int or None, default=None
        Of Nystrom, whose n x rank numbers are the memory of all (None: 1000).
    memory : float or None, default=None
        Bytes, in place of `rank`.
    clusters : int, default=10
        Of MEKA.
    random_state : int, Generator or None, default=None
        Seed.
    dtype : dtype, default=float32
        Of the factor rows.
    fit_rows : int or None, default=None
        As for `nystrom`.

    Returns
    -------
    Choice
        The best map; its errors have "nystrom-rpcholesky", "nystrom-kmeans" and "meka".

    Raises
    ------
    UserError
        For NaN, no rows, a precomputed kernel, and for both `rank` and `memory`.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.lowrank import choose
    >>> X = np.random.default_rng(0).normal(size=(300, 4))
    >>> choose("rbf", X, rank=20, clusters=3, random_state=0).feature_map(X).shape[0]
    300
    """
    check_rows(kernel, X)
    if rank is not None and memory is not None:
        raise UserError(f"rank = {rank} and memory = {memory} both set the size; pass one of them")
    n, itemsize = X.shape[0], np.dtype(dtype).itemsize
    rank = int(check_parameter("rank", 1000 if rank is None else rank, COUNT))
    numbers = min(rank, n) * float(n) if memory is None else memory / itemsize
    rng = np.random.default_rng(random_state)
    held = draw(n, min(_HELD, n // 4), rng)
    rest = Subset(X, np.setdiff1d(np.arange(n), held, assume_unique=True))
    fitted, seed = fit_kernel(kernel, X, int(rng.integers(2**31))), int(rng.integers(2**31))
    allowed, bytes_each = max(1, int(numbers // n)), max(numbers, n + clusters**2) * itemsize
    maps: dict[str, FeatureMap] = {
        f"nystrom-{kind}": nystrom(fitted, rest, allowed, kind, seed, dtype, fit_rows=fit_rows) for kind in _LANDMARKS
    }
    maps["meka"] = meka(
        fitted, rest, clusters, "auto", random_state=seed, dtype=dtype, memory=bytes_each, fit_rows=fit_rows
    )
    probes = held if len(held) else None
    errors = {name: sampled_error(m, X, seed, probes) for name, m in maps.items()}
    best = min(errors, key=lambda name: errors[name]["relative_error"])
    log.info(
        "approximation %s: relative errors %s", best, {k: round(e["relative_error"], 6) for k, e in errors.items()}
    )
    return Choice(maps[best].with_error(errors[best]), errors)
