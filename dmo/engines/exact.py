"""The exact engine's choices: where the n x n kernel lives and in which precision."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import psutil
from threadpoolctl import threadpool_limits

from dmo import stores
from dmo.blocks import Rows, Subset, rows
from dmo.cluster import current_client
from dmo.cluster.workers import Broadcast, grouped, retried
from dmo.errors import UserError
from dmo.functions import KernelExpansion
from dmo.hashing import fingerprint
from dmo.kernels import Kernel, Linear, Precomputed, gram_matrix, normalize_rows
from dmo.kernels.multikernel import MultiKernel
from dmo.kernels.tiles import FeatureTiles
from dmo.linalg.operators import Dense, LowRank, Operator
from dmo.linalg.smoothers import Smoother
from dmo.linalg.solve import SolveMethod, factorize
from dmo.linalg.tiles import Tiles
from dmo.progress import stage

log = logging.getLogger("dmo")
_SMALL = 2048  # up to so many samples float64 costs nothing that one would notice
_LOOK = 512  # rows that a first look at the bandwidth takes, to judge the precision
Storage = Literal["auto", "memory", "resident", "recomputed", "stored"]
Precision = Literal["auto", "float32", "float64"]


@dataclass(frozen=True)
class Exact:
    """The exact engine: all entries of the kernel, no approximation.

    Arguments: `storage`: "memory" (one NumPy array in this process), "resident" (tiles in the workers' memory),
    "recomputed" (tiles from features at every product), "stored" (tiles in a kernel store under `path`, streamed at
    every product), "auto" (memory in this process, resident on a cluster, recomputed where neither fits);
    `precision` of the entries: "float32", "float64", or "auto" (float32 where the ridge is above its rounding);
    `block`: rows per tile; `path`: folder or URL of kernel stores.
    """

    storage: Storage = "auto"
    precision: Precision = "auto"
    block: int = 2048
    path: str | None = None

    def __post_init__(self) -> None:
        for what, value, known in (
            ("storage", self.storage, ("auto", "memory", "resident", "recomputed", "stored")),
            ("precision", self.precision, ("auto", "float32", "float64")),
        ):
            if value not in known:
                raise UserError(f"Exact: {what} = {value!r}; known: {', '.join(known)}")
        if self.storage == "stored" and self.path is None:
            raise UserError("Exact: storage 'stored' needs a path for the kernel stores; pass path='kernels'")
        if self.block < 1:
            raise UserError(f"Exact: block = {self.block}; a tile needs at least one row")


def exact_engine(who: str, approximation: Any) -> Exact:
    """The `approximation` argument as an Exact object."""
    if isinstance(approximation, Exact):
        return approximation
    if approximation == "exact":
        return Exact()
    raise UserError(f"{who}: approximation = {approximation!r}; known: 'exact', or an Exact(...) object")


@dataclass(frozen=True)
class FittedKernel:
    """A fitted kernel over one or several views, its operator over the training rows, the precision of its entries."""

    kernel: MultiKernel
    operator: Operator
    dtype: np.dtype


def rounding_floor(kernel: Kernel, source: Rows, sample: int = 512) -> float:
    """Spectral norm of the float32 rounding of the n x n kernel: ridges below it answer with noise.

    Compares `sample` rows in float32 with float64 and extrapolates the norm from the sample to n by its own growth from
    a quarter of the sample (between sqrt(n) for independent and n for systematic errors).
    """
    n = source.shape[0]
    index = np.unique(np.linspace(0, n - 1, min(n, sample)).astype(int))
    picked = rows(Subset(source, index))
    single, double = kernel.prepare(picked, np.float32), kernel.prepare(picked, np.float64)
    error = kernel.tile(single, single).astype(np.float64) - kernel.tile(double, double)
    error = (error + error.T) / 2
    m = len(index)
    whole, quarter = np.linalg.norm(error, 2), np.linalg.norm(error[: max(1, m // 4), : max(1, m // 4)], 2)
    if whole == 0.0 or quarter == 0.0:
        return float(whole * n / m)
    growth = np.clip(np.log(whole / quarter) / np.log(m / max(1, m // 4)), 0.5, 1.0) if m >= 4 else 1.0
    return float(whole * (n / m) ** growth)


def choose_dtype(who: str, engine: Exact, view: str, kernel: Kernel, source: Rows, ridge: float) -> np.dtype:
    """float32 where it pays and the ridge stands above its rounding, else float64 (an error if float32 was asked for)."""
    if engine.precision == "float64" or isinstance(kernel, Precomputed):
        return np.dtype(np.float64)
    if engine.precision == "auto" and source.shape[0] <= _SMALL:
        return np.dtype(np.float64)
    floor = rounding_floor(kernel, source)
    if ridge >= 2 * floor:
        return np.dtype(np.float32)
    if engine.precision == "float32":
        raise UserError(
            f"{who}: ridge {ridge:g} is below the noise floor {2 * floor:.1g} of the float32 kernel of view {view!r}; "
            f"raise the ridge above it, or take precision='float64'"
        )
    log.info("%s: view %r: float64 kernel, its float32 noise floor is %.1g, the ridge %g", who, view, 2 * floor, ridge)
    return np.dtype(np.float64)


def choose_storage(engine: Exact, n: int, views: int, itemsize: int = 4) -> Storage:
    """Where `views` kernels of n x n entries go, with the reason logged."""
    if engine.storage != "auto":
        return engine.storage
    client = current_client()
    needed = views * n * n * (itemsize + 8.0)  # the entries and a float64 factor
    if client is None:
        available = psutil.virtual_memory().available
        choice: Storage = "memory" if needed <= 0.7 * available else "recomputed"
    else:
        limits = [w["memory_limit"] for w in client.scheduler_info(n_workers=-1)["workers"].values()]
        available = sum(limits) if all(limits) else psutil.virtual_memory().available
        choice = "resident" if views * n * n * itemsize / 2 <= 0.5 * available else "recomputed"
    gib = needed / 2**30, available / 2**30
    log.info("kernels %s: %d of %d x %d with factors take %.1f GiB, free are %.1f GiB", choice, views, n, n, *gib)
    return choice


def build(
    who: str,
    engine: Exact,
    kernel: MultiKernel,
    sources: Mapping[str, Rows],
    ridge: float,
    storage: Storage,
    random_state: int | None,
) -> FittedKernel:
    """The operator of `kernel` (not yet fitted) over the rows of `sources`; `ridge`: the smallest that will be used."""
    used = {name: sources[name] for name in kernel.kernels}
    first = {name: k.fit(rows(used[name], slice(0, _LOOK)), random_state) for name, k in kernel.kernels.items()}
    kinds = [choose_dtype(who, engine, name, first[name], used[name], ridge) for name in used]
    dtype = np.result_type(*kinds)
    if storage == "memory":
        return _in_memory(kernel, used, dtype, random_state)
    fitted = replace(kernel, kernels={name: k.fit(used[name], random_state) for name, k in kernel.kernels.items()})
    tiles = FeatureTiles(fitted, used, engine.block, dtype)
    source = _stored(engine, tiles, used) if storage == "stored" else tiles
    return FittedKernel(fitted, Tiles(source, current_client(), storage == "resident", dtype), dtype)


def _in_memory(
    kernel: MultiKernel, sources: Mapping[str, Rows], dtype: np.dtype, random_state: int | None
) -> FittedKernel:
    fitted: dict[str, Kernel] = {}
    if len(sources) == 1:
        ((name, part),) = kernel.kernels.items()
        n, d = sources[name].shape
        if isinstance(part, Linear) and 2 * d < n:  # a linear kernel is its own factor
            fitted[name] = part.fit(sources[name], random_state)
            factor = normalize_rows(rows(sources[name]), part.normalize).astype(np.float64)
            return FittedKernel(replace(kernel, kernels=fitted), LowRank(factor), np.dtype(np.float64))
    total: np.ndarray | None = None
    for name, part in kernel.kernels.items():
        matrix, fitted[name] = gram_matrix(part, rows(sources[name]), dtype, random_state)
        matrix = kernel.weighted(name, matrix)
        if total is None:
            total = matrix
        elif kernel.combine == "product":
            total *= matrix
        else:
            total += matrix
    if total is None:
        raise UserError("no kernel to build; pass at least one view")
    return FittedKernel(replace(kernel, kernels=fitted), Dense(total), dtype)


def _write_tiles(shared: tuple[Any, FeatureTiles], pairs: list[tuple[int, int]]) -> None:
    """The task that computes and stores some tiles; run twice, it writes the same."""
    writer, tiles = shared
    with threadpool_limits(1):
        for i, j in pairs:
            writer.write(i, j, tiles.tile(i, j))


def _stored(engine: Exact, tiles: FeatureTiles, sources: Mapping[str, Rows]) -> Any:
    """A kernel store of `tiles` under the engine's path, completed where it is not; its reader is a tile source."""
    description = {
        "kernel": tiles.kernel.to_dict(),
        "rows": {name: fingerprint(source) for name, source in sources.items()},
    }
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]
    path = f"{engine.path}/{'-'.join(sources)}-{digest}.zarr"
    writer = stores.create_kernel(path, tiles.n, engine.block, np.dtype(tiles.dtype), description)
    missing, client = writer.missing(), current_client()
    with stage(f"kernel store {'+'.join(sources)}", len(missing)) as advance:
        if client is None:
            for i, j in missing:
                writer.write(i, j, tiles.tile(i, j))
                advance(1)
        elif missing:
            shared = Broadcast(client, (writer, tiles))

            def work() -> None:
                rest = writer.missing()
                groups = grouped(rest, 4 * max(1, sum(client.nthreads().values())))
                futures = [client.submit(_write_tiles, shared.future(), group, pure=False) for group in groups]
                for done, group in zip(futures, groups, strict=True):
                    done.result()
                    advance(len(group))

            retried(client, work, shared.forget)
    writer.finish()
    return stores.open_kernel(path)


@dataclass
class FittedView:
    """One view of the exact engine: its kernel and operator (centered where asked) and the smoother of K + c I."""

    built: FittedKernel
    sources: Mapping[str, Rows]
    operator: Operator
    smoother: Smoother

    def expansion(self, dual: np.ndarray) -> KernelExpansion:
        """x -> K(x) alpha for dual coefficients alpha (n x k), with the operator's centering."""
        coefficients, offset = self.operator.expansion(dual)
        rows_first = np.ascontiguousarray(
            coefficients
        )  # as a store gives it back, so that a loaded model is bit-identical
        return KernelExpansion(self.built.kernel, self.sources, rows_first, offset, self.built.dtype)


def fit_view(
    who: str,
    engine: Exact,
    kernel: MultiKernel,
    views: Mapping[str, Rows],
    ridge: float,
    center: bool,
    storage: Storage,
    method: SolveMethod,
    random_state: int | None,
    columns: int | None = None,
) -> FittedView:
    """Build the kernel's operator over the rows of `views` and factorize it with the ridge, for `columns` right-hand
    sides in all (None: many)."""
    sources = {name: views[name] for name in kernel.kernels}
    built = build(who, engine, kernel, sources, ridge, storage, random_state)
    operator = built.operator.centered() if center else built.operator
    if method == "auto" and isinstance(built.operator, Tiles):
        method = "cg"
    try:
        solver = factorize(operator, ridge, method, random_state=random_state, columns=columns)
    except UserError as error:
        raise UserError(f"{who}: view {'+'.join(sources)!r}: {error}") from error
    return FittedView(built, sources, operator, Smoother(solver, ridge))
