"""Which approximation suits a kernel: Nystrom and MEKA of equal memory, compared on rows that neither has seen."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from dmo.blocks import Rows, Subset
from dmo.kernels import Kernel
from dmo.lowrank.errors import sampled_error
from dmo.lowrank.landmarks import Landmarks
from dmo.lowrank.maps import FeatureMap
from dmo.lowrank.meka import meka_rank
from dmo.lowrank.meka_fit import meka
from dmo.lowrank.nystrom import FIT_ROWS, fit_kernel, nystrom
from dmo.lowrank.sampling import check_count, check_rows, draw

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
    landmarks: Landmarks = "rpcholesky",
    random_state: int | np.random.Generator | None = None,
    dtype: Any = np.float32,
    fit_rows: int = FIT_ROWS,
) -> Choice:
    """Fit Nystrom and MEKA at equal memory and keep the one with the smaller error on kernel values of held-out rows.

    Arguments: `kernel`, `X`, `landmarks`, `dtype`, `fit_rows` as for `nystrom`; `rank` of Nystrom, whose n x rank numbers
    are the memory of both (default 1000), or `memory` in bytes; `clusters` of MEKA. 512 rows (at most a quarter) are held
    out of both fits; the errors are those of the kernel between them and up to 4096 rows.
    """
    check_rows("choose", kernel, X)
    if rank is not None and memory is not None:
        raise ValueError(f"choose: rank = {rank} and memory = {memory} both set the size; pass one of them")
    n, itemsize = X.shape[0], np.dtype(dtype).itemsize
    rank = check_count("choose", "rank", 1000 if rank is None else rank)
    numbers = min(rank, n) * float(n) if memory is None else memory / itemsize
    rng = np.random.default_rng(random_state)
    held = draw(n, min(_HELD, n // 4), rng)
    rest = Subset(X, np.setdiff1d(np.arange(n), held, assume_unique=True))
    fitted = fit_kernel(kernel, X, rng)
    seed = int(rng.integers(2**31))
    allowed, average = max(1, int(numbers // n)), max(1, meka_rank(n, clusters, numbers))
    maps: dict[str, FeatureMap] = {
        "nystrom": nystrom(fitted, rest, allowed, landmarks, seed, dtype, fit_rows=fit_rows),
        "meka": meka(fitted, rest, clusters, average, random_state=seed, dtype=dtype, fit_rows=fit_rows),
    }
    probes = held if len(held) else None
    errors = {name: sampled_error(m, X, seed, probes) for name, m in maps.items()}
    best = min(errors, key=lambda name: errors[name]["relative_error"])
    log.info(
        "approximation %s: relative errors %s", best, {k: round(e["relative_error"], 6) for k, e in errors.items()}
    )
    return Choice(maps[best].with_error(errors[best]), errors)
