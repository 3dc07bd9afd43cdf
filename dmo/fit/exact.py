"""Storage and precision of the n x n kernels of the exact engine."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from dmo import stores
from dmo.blocks import Rows, double, joined_columns, numbered, reads_sparse, rows
from dmo.cluster import current_client
from dmo.cluster.workers import Broadcast, grouped, retried, submit_each
from dmo.errors import UserError, amount
from dmo.fit.functions import Expansion, KernelExpansion, LinearExpansion
from dmo.hashing import digest, fingerprint
from dmo.kernels import Kernel, Linear, gram_matrix, normalize_rows
from dmo.kernels.multikernel import FeatureTiles, MultiKernel
from dmo.linalg.factors import CenteredRows, RowGram
from dmo.linalg.operators import Dense, Operator
from dmo.linalg.tiles import Tiles, tile_rows
from dmo.memory import compared, fits, free_memory, memory
from dmo.parameters import SavedLocation
from dmo.progress import stage
from dmo.threads import blas_limited

log = logging.getLogger("dmo")
_SMALL = 2048  # Up to this sample count, the extra cost of float64 is negligible.
_LOOK = 512  # rows used to estimate the bandwidth and the float32 rounding error
Storage = Literal["auto", "memory", "resident", "recomputed", "stored"]
Precision = Literal["auto", "float32", "float64"]


@dataclass(frozen=True)
class Exact:
    """Engine that solves with the full kernel matrix, without a low-rank approximation.

    Linear kernels are solved from the rows themselves in float64 if the rows fit in the memory of the client process.
    `storage`, `precision` and `block` then have no effect.

    Parameters
    ----------
    storage : {"auto", "memory", "resident", "recomputed", "stored"}, default="auto"
        Where the n x n kernels are kept. "memory": one NumPy array in the client process. "resident": tiles in the
        memory of the workers. "recomputed": tiles are computed from the features at every product. "stored": tiles in a
        kernel store under `path`, read at every product. "auto" chooses "memory" without a cluster and "resident" on a
        cluster, or "recomputed" if the kernels do not fit.
    precision : {"auto", "float32", "float64"}, default="auto"
        Precision of the kernel entries. "auto" uses float32 if the ridge is larger than its rounding error.
    block : int, default=2048
        Maximum number of rows of a kernel tile. Tiles are smaller if there are many workers.
    path : str or None, default=None
        Folder or URL of the kernel stores for storage "stored". A loaded model does not use the folder from its
        original fit. Until you pass a path again, its fits choose the storage like "auto" and log a warning.

    Raises
    ------
    UserError
        If a value is invalid, or if storage is "stored" without a path.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dmo import Exact, MultiViewRidge
    >>> X, y = load_iris(return_X_y=True)
    >>> model = MultiViewRidge("rbf", approximation=Exact(storage="recomputed", block=64)).fit(X, y)
    >>> model.predict(X[:3]).tolist()
    [0, 0, 0]
    """

    storage: Storage = "auto"
    precision: Precision = "auto"
    block: int = 2048
    path: str | SavedLocation | None = None

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
            raise UserError(
                f"Exact: block = {self.block}, expected at least 1 row per tile; use the default, block=2048"
            )


def exact_engine(approximation: Any) -> Exact:
    """Convert the `approximation` argument of an estimator to an Exact object."""
    if isinstance(approximation, Exact):
        return approximation
    if approximation == "exact":
        return Exact()
    raise UserError(f"approximation = {approximation!r}; known: 'exact', or an Exact(...) object")


@dataclass(frozen=True)
class FittedKernel:
    """Fitted kernel and its operator over the training rows."""

    kernel: MultiKernel  # fitted, over one or several views
    operator: Operator  # n x n kernel
    dtype: np.dtype  # precision of its entries
    key: Any = None  # cache key that identifies the kernel and its inputs, or None if it is not cached

    def placed(self, center: bool, weights: np.ndarray | None = None) -> Operator:
        """Return the operator, centered if `center`, with sample weights `weights`."""
        if weights is not None:  # Center with the weighted mean; the plain mean would depend on samples of weight 0.
            return self.operator.weighted(weights, center)
        return self.operator.centered() if center else self.operator

    def expansion(
        self, sources: Mapping[str, Rows], operator: Operator, coefficients: np.ndarray, shift: np.ndarray | float = 0.0
    ) -> KernelExpansion:
        """Return the function of new rows with coefficients (n x k) on the columns of the placed operator."""
        dual, offset = operator.expansion(coefficients)
        # Use the memory order of a model store, so that a loaded model predicts bit-identical values.
        return KernelExpansion(self.kernel, dict(sources), np.ascontiguousarray(dual), offset + shift, self.dtype)


def rounding_floor(kernel: Kernel, source: Rows) -> float:
    """Return the spectral norm of the float32 rounding error of the n x n kernel; smaller ridges amplify noise."""
    # Compare float32 with float64 on 512 rows, then extrapolate the norm from the sample to n. The growth rate is
    # estimated from a quarter of the sample; it is between sqrt(n) for independent and n for systematic errors.
    n = source.shape[0]
    index = np.unique(np.linspace(0, n - 1, min(n, _LOOK)).astype(int))
    picked = kernel.part(source, index)
    single, double = kernel.prepare(picked, np.float32), kernel.prepare(picked, np.float64)
    error = kernel.tile(single, single).astype(np.float64) - kernel.tile(double, double)
    error = (error + error.T) / 2  # Each pair of rows is computed once, so the actual error is symmetric too.
    m = len(index)
    # The ridge must exceed the largest eigenvalue of the error, hence the spectral norm and not the largest entry.
    whole, quarter = np.linalg.norm(error, 2), np.linalg.norm(error[: max(1, m // 4), : max(1, m // 4)], 2)
    if whole == 0.0 or quarter == 0.0:
        return float(whole * n / m)
    growth = np.clip(np.log(whole / quarter) / np.log(m / max(1, m // 4)), 0.5, 1.0) if m >= 4 else 1.0
    return float(whole * (n / m) ** growth)


def choose_dtype(
    engine: Exact, view: str, kernel: Kernel, source: Rows, ridge: float, random_state: int | None = None
) -> np.dtype:
    """Choose float32 if it saves memory and the ridge exceeds its rounding error, otherwise float64.

    A precomputed kernel keeps its precision. Requesting float32 with too small a ridge is an error.
    """
    if engine.precision == "float64" or (engine.precision == "auto" and source.shape[0] <= _SMALL):
        return np.dtype(np.float64)
    if kernel.pairwise and engine.precision == "auto":
        return np.dtype(np.float32 if np.can_cast(source.dtype, np.float32) else np.float64)
    if ridge == np.inf:
        return np.dtype(np.float32)
    floor = rounding_floor(kernel.fit(kernel.part(source, slice(0, _LOOK)), random_state), source)
    if ridge >= 2 * floor:
        return np.dtype(np.float32)
    if engine.precision == "float32":
        raise UserError(
            f"ridge {ridge:g} is below the noise floor {2 * floor:.1g} of the float32 kernel of view {view!r}; "
            f"use a larger ridge, or precision='float64'"
        )
    log.info(
        "view %r: float64 kernel, because the float32 noise floor %.1g is too high for the ridge %g",
        view,
        2 * floor,
        ridge,
    )
    return np.dtype(np.float64)


def exact_bytes(n: int, kernels: int, itemsize: int | None = None) -> tuple[int, int]:
    """Return the bytes of kernels and of their factors in memory, from which storages and engines are chosen."""
    return (itemsize or (8 if n <= _SMALL else 4)) * kernels * n * n, 8 * kernels * n * n


def reasoned_storage(engine: Exact, n: int, views: int, itemsize: int | None = None) -> tuple[Storage, str]:
    """Choose the storage of n x n kernels, and return the reason for an automatic choice."""
    if engine.storage != "auto" and not (engine.storage == "stored" and isinstance(engine.path, SavedLocation)):
        return engine.storage, ""
    client = current_client()
    entries, factors = exact_bytes(n, views, itemsize)
    free = free_memory()
    if client is None:
        choice: Storage = "memory" if entries + factors <= 0.7 * free else "recomputed"
    else:
        limits = [w["memory_limit"] for w in client.scheduler_info(n_workers=-1)["workers"].values()]
        free = sum(limits) if all(limits) else free
        choice = "resident" if entries / 2 <= 0.5 * free else "recomputed"
    what = f"{views} kernel{'s'[: views > 1]} of {n} x {n}"
    return choice, f"{what} with factors need {amount(entries + factors)}, {amount(free)} are free"


def choose_storage(engine: Exact, n: int, views: int, itemsize: int | None = None) -> Storage:
    """Choose the storage of n x n kernels and log the reason."""
    choice, reason = reasoned_storage(engine, n, views, itemsize)
    if engine.storage == "stored" and isinstance(engine.path, SavedLocation):
        log.warning(
            "kernels are not stored in %r, the path saved in the loaded model; to store them, pass "
            "approximation=Exact(storage='stored', path=...) again",
            engine.path.text,
        )
    if reason:
        log.info("kernels %s: %s", choice, reason)
    return choice


def build(
    engine: Exact,
    kernel: MultiKernel,
    sources: Mapping[str, Rows],
    ridge: float,
    storage: Storage,
    random_state: int | None,
    weights: np.ndarray | None = None,
) -> FittedKernel:
    """Build the operator of a kernel over some rows.

    sources (n, d); weights (n,)
    """
    own, used = memory(), {name: sources[name] for name in kernel.kernels}
    if own is None or storage != "memory":
        return _built(engine, kernel, used, ridge, storage, random_state, weights)
    n = next(iter(used.values())).shape[0]
    # Scores that are only compared use one precision for all ridges: they differ by more than float32 rounding.
    if compared() is not None or (engine.precision == "auto" and n <= _SMALL):
        ridge = np.inf
    make = partial(_built, engine, kernel, used, ridge, storage, random_state, weights)
    counts = None if weights is None else weights.tobytes()
    names = tuple((view, own.name(source)) for view, source in used.items())
    key = "kernel", kernel.key, names, engine, str(random_state), counts, ridge
    return own.get(lambda: replace(make(), key=object()), 8.0 * n * n, key)


def _built(
    engine: Exact,
    kernel: MultiKernel,
    used: Mapping[str, Rows],
    ridge: float,
    storage: Storage,
    random_state: int | None,
    weights: np.ndarray | None,
) -> FittedKernel:
    # The rows must fit as float64, together with a working copy.
    size = 16.0 * sum(float(np.prod(source.shape)) for source in used.values())
    rows_fit = fits(size, 0.5) or all(map(reads_sparse, used.values()))
    wide = sum(source.shape[1] for source in used.values()) > next(iter(used.values())).shape[0]
    if kernel.linear and wide and compared() is not None and storage == "memory":
        engine = replace(engine, precision="float64")  # Form the kernel once; otherwise every ridge reads the rows.
    elif kernel.linear and rows_fit:
        return FittedKernel(kernel, RowGram.of(linear_rows(kernel, used)), np.dtype(np.float64))
    if storage == "memory":  # Read the rows once; they are small compared with the n x n kernel, or a factor of it.
        used = {name: kernel.kernels[name].part(source) for name, source in used.items()}
    if weights is not None and (weights != 1).any():
        own = {name: k.fit(used[name], random_state, weights) for name, k in kernel.kernels.items()}
        kernel = replace(kernel, kernels=own)
    kinds = [choose_dtype(engine, name, k, used[name], ridge, random_state) for name, k in kernel.kernels.items()]
    dtype = np.result_type(*kinds)
    if storage == "memory":
        return _in_memory(kernel, used, dtype, random_state)
    fitted = replace(kernel, kernels={name: k.fit(used[name], random_state) for name, k in kernel.kernels.items()})
    chunk = _stored_chunk(fitted, used)
    block = engine.block if chunk is None else max(1, engine.block // chunk) * chunk
    client = current_client()
    if client is not None and storage != "stored" and chunk is None:
        n = next(iter(used.values())).shape[0]
        block = tile_rows(n, sum(client.nthreads().values()), block)
    tiles = FeatureTiles(fitted, used, block, dtype)
    source = _stored(engine, tiles, used) if storage == "stored" and chunk is None else tiles
    name = f"view={'+'.join(used)}"
    return FittedKernel(fitted, Tiles(source, client, storage == "resident", dtype, tiles, name), dtype)


def _stored_chunk(kernel: MultiKernel, sources: Mapping[str, Rows]) -> int | None:
    """Return the rows per chunk if the kernel matrix is already stored, or None if entries must be computed.

    Tiles of whole chunks are read from the store without copying, and no chunk is read twice.
    """
    found = {name: numbered(source)[0] for name, source in sources.items()}
    lazy = [getattr(source, "chunks", None) for source in found.values() if not hasattr(source, "compute")]
    stored = [int(chunks[0]) for chunks in lazy if chunks]
    return max(stored) if len(kernel.pairwise) == len(found) == len(stored) else None


def _in_memory(
    kernel: MultiKernel, sources: Mapping[str, Rows], dtype: np.dtype, random_state: int | None
) -> FittedKernel:
    fitted: dict[str, Kernel] = {}

    def matrices() -> Iterator[tuple[str, np.ndarray]]:
        for name, part in kernel.kernels.items():
            matrix, fitted[name] = gram_matrix(part, sources[name], dtype, random_state)
            yield name, matrix

    total = kernel.combined(matrices())
    whole = memory() is not None  # Other fits in other threads reuse the kernel, so it must stay intact.
    return FittedKernel(replace(kernel, kernels=fitted), Dense(total, lends=not whole), dtype)


def _write_tiles(shared: tuple[Any, FeatureTiles], pairs: list[tuple[int, int]]) -> None:
    """Compute and store some tiles; the task is idempotent."""
    writer, tiles = shared
    with blas_limited(1):
        for i, j in pairs:
            writer.write(i, j, tiles.tile(i, j))


def _stored(engine: Exact, tiles: FeatureTiles, sources: Mapping[str, Rows]) -> Any:
    """Open or complete a kernel store of `tiles` under the path of the engine, and return its reader as tile source."""
    description = {
        "kernel": tiles.kernel.to_dict(),
        "rows": {name: fingerprint(source) for name, source in sources.items()},
    }
    # The name contains the kernel and the rows: other fits of the same views reuse it, and kernels cannot be confused.
    if isinstance(engine.path, SavedLocation):
        raise engine.path.refused("path")
    # One triangle suffices because only `Tiles` reads the store; stores of version 1 have other names.
    path = f"{engine.path}/{'-'.join(sources)}-{digest({**description, 'triangle': 'lower'})[:16]}.zarr"
    writer = stores.create_kernel(path, tiles.n, engine.block, np.dtype(tiles.dtype), description, "lower")
    missing, client = writer.missing(), current_client()
    with stage(f"kernel store {'+'.join(sources)}", len(missing)) as advance:
        if client is None:
            for i, j in missing:
                writer.write(i, j, tiles.tile(i, j))
                advance(1)
        elif missing:
            shared = Broadcast(client, (writer, tiles))

            def work() -> None:
                rest = writer.missing()  # Check again: tiles that a lost worker had already written are kept.
                groups = grouped(rest, 4 * max(1, sum(client.nthreads().values())))
                futures = submit_each(client, _write_tiles, [(shared.future(), group) for group in groups])
                for done, group in zip(futures, groups, strict=True):
                    done.result()
                    advance(len(group))

            retried(client, work, shared.forget)
    writer.finish()
    return stores.open_kernel(path)


def linear_rows(kernel: MultiKernel, views: Mapping[str, Rows]) -> Any:
    """Stack the columns of all views as their linear kernels use them: normalized, times the root of the weight."""
    parts = []
    for name, part in kernel.kernels.items():
        block = double(rows(views[name]))
        normalize = part.normalize if isinstance(part, Linear) else None
        block = block if normalize is None else normalize_rows(block, normalize)
        weight = kernel.weights[name]
        parts.append(block if weight == 1.0 else block * np.sqrt(weight))  # x'y then includes the weight.
    return parts[0] if len(parts) == 1 else joined_columns(parts)


def linear_expansions(
    kernel: MultiKernel, views: Mapping[str, Rows], factor: CenteredRows, W: np.ndarray, offset: np.ndarray
) -> dict[str, Expansion]:
    """Convert coefficients W of `linear_rows` to f(x) = sum_v x_v W_v + offset, minus means if rows are centered."""
    rest = offset if factor.mean is None else offset - factor.mean @ W
    found: dict[str, Expansion] = {}
    for name, part in kernel.kernels.items():
        mine, W = np.split(W, [views[name].shape[1]])
        scaled = np.ascontiguousarray(np.sqrt(kernel.weights[name]) * mine)
        normalize = part.normalize if isinstance(part, Linear) else None
        # The expansions are summed, so only the first one includes the offset.
        found[name] = LinearExpansion(name, scaled, rest if not found else np.zeros_like(rest), normalize)
    return found
