"""Which approximation suits a kernel: Nystrom and MEKA of equal memory, compared on rows that neither has seen."""

from __future__ import annotations

import logging
from collections.abc import Sequence
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
_HELD = 512


@dataclass(frozen=True)
class Choice:
    """The better of several feature maps, and the error of each: name -> error dict (see `sampled_error`)."""

    feature_map: FeatureMap
    errors: dict[str, dict[str, float]]


def choose(
    kernel: str | Kernel,
    X: Rows,
    rank: int | None = None,
    memory: float | None = None,
    clusters: int = 10,
    landmarks: Sequence[Landmarks] = ("rpcholesky", "kmeans"),
    random_state: int | np.random.Generator | None = None,
    dtype: Any = np.float32,
    fit_rows: int | None = None,
) -> Choice:
    """Fit Nystrom and MEKA at equal memory and keep the one with the smallest error on kernel values of held-out rows.

    Arguments: `kernel`, `X`, `dtype`, `fit_rows` as for `nystrom`; `rank` of Nystrom, whose n x rank numbers are the
    memory of all (default 1000), or `memory` in bytes; `clusters` of MEKA; `landmarks` of Nystrom to try. 512 rows (at
    most a quarter) are held out of the fits; the errors are those of the kernel between them and up to 2048 rows.
    The result's `errors` has "nystrom-<landmarks>" and "meka".
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
        f"nystrom-{kind}": nystrom(fitted, rest, allowed, kind, seed, dtype, fit_rows=fit_rows) for kind in landmarks
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
