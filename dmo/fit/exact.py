"""The exact engine's choices: where the n x n kernel lives and in which precision."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import scipy.sparse

from dmo import stores
from dmo.blocks import Rows, double, numbered, rows
from dmo.cluster import current_client
from dmo.cluster.workers import Broadcast, grouped, retried
from dmo.errors import UserError, amount
from dmo.fit.functions import Expansion, KernelExpansion, LinearExpansion
from dmo.hashing import digest, fingerprint
from dmo.kernels import Kernel, Linear, gram_matrix, normalize_rows
from dmo.kernels.multikernel import FeatureTiles, MultiKernel
from dmo.linalg.factors import CenteredRows, RowGram
from dmo.linalg.operators import Dense, Operator
from dmo.linalg.tiles import Tiles, tile_rows
from dmo.memory import compared, free_memory, memory
from dmo.parameters import SavedLocation
from dmo.progress import stage
from dmo.threads import blas_limited

log = logging.getLogger("dmo")
_SMALL = 2048  # up to so many samples float64 costs nothing that one would notice
_LOOK = 512  # rows that a first look at the bandwidth takes, to judge the precision
Storage = Literal["auto", "memory", "resident", "recomputed", "stored"]
Precision = Literal["auto", "float32", "float64"]


@dataclass(frozen=True)
class Exact:
    """The exact engine: all entries of the kernel, no approximation.

    Linear kernels are solved from the rows themselves, in float64, wherever these fit in this process's memory: what is
    said below of entries and tiles is then without effect.

    Parameters
    ----------
    storage : {"auto", "memory", "resident", "recomputed", "stored"}, default="auto"
        Where the n x n kernels live: one NumPy array in this process, tiles in the workers' memory, tiles made from the
        features at every product, or tiles in a kernel store under `path`, streamed at every product; "auto" is memory
        in this process, resident on a cluster, recomputed where neither fits.
    precision : {"auto", "float32", "float64"}, default="auto"
        Of the kernel's entries; "auto" is float32 where the ridge is above its rounding.
    block : int, default=2048
        Rows of a kernel tile, at most: for workers it is less where they are many.
    path : str or None, default=None
        Folder or URL of kernel stores, for the storage "stored". A loaded model does not use the folder that it was fitted
        with: until you pass a path again, its fits choose the storage as "auto" does, and log this.

    Raises
    ------
    UserError
        For what is none of these, and for the storage "stored" without a path.

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
            raise UserError(f"Exact: block = {self.block}; a tile needs at least one row")


def exact_engine(approximation: Any) -> Exact:
    """Read the `approximation` argument of an estimator as an Exact object."""
    if isinstance(approximation, Exact):
        return approximation
    if approximation == "exact":
        return Exact()
    raise UserError(f"approximation = {approximation!r}; known: 'exact', or an Exact(...) object")


@dataclass(frozen=True)
class FittedKernel:
    """A fitted kernel, and its operator over the training rows."""

    kernel: MultiKernel  # fitted, over one or several views
    operator: Operator  # the n x n kernel
    dtype: np.dtype  # precision of its entries
    key: Any = None  # stands for all that it follows from, where it is remembered

    def placed(self, center: bool, weights: np.ndarray | None = None) -> Operator:
        """The operator, centered where that is wanted, of rows that count `weights` times."""
        if weights is not None:  # their own mean is taken off: that of all rows alike would not be blind to it
            return self.operator.weighted(weights, center)
        return self.operator.centered() if center else self.operator

    def expansion(
        self, sources: Mapping[str, Rows], operator: Operator, coefficients: np.ndarray, shift: np.ndarray | float = 0.0
    ) -> KernelExpansion:
        """The function of new rows that coefficients (n x k) on the columns of the placed operator stand for."""
        dual, offset = operator.expansion(coefficients)
        # in the order that a store gives it back, so that a loaded model is the same to the bit
        return KernelExpansion(self.kernel, dict(sources), np.ascontiguousarray(dual), offset + shift, self.dtype)


def rounding_floor(kernel: Kernel, source: Rows) -> float:
    """Spectral norm of the float32 rounding of the n x n kernel: ridges below it answer with noise."""
    # Compares 512 rows in float32 with float64 and extrapolates the norm from the sample to n by its own growth from
    # a quarter of the sample (between sqrt(n) for independent and n for systematic errors).
    n = source.shape[0]
    index = np.unique(np.linspace(0, n - 1, min(n, _LOOK)).astype(int))
    picked = kernel.part(source, index)
    single, double = kernel.prepare(picked, np.float32), kernel.prepare(picked, np.float64)
    error = kernel.tile(single, single).astype(np.float64) - kernel.tile(double, double)
    error = (error + error.T) / 2  # the kernel is made once per pair of rows: its error is symmetric too
    m = len(index)
    # a ridge must stand above the largest eigenvalue that rounding adds, hence the spectral norm, not the largest entry
    whole, quarter = np.linalg.norm(error, 2), np.linalg.norm(error[: max(1, m // 4), : max(1, m // 4)], 2)
    if whole == 0.0 or quarter == 0.0:
        return float(whole * n / m)
    growth = np.clip(np.log(whole / quarter) / np.log(m / max(1, m // 4)), 0.5, 1.0) if m >= 4 else 1.0
    return float(whole * (n / m) ** growth)


def choose_dtype(
    engine: Exact, view: str, kernel: Kernel, source: Rows, ridge: float, random_state: int | None = None
) -> np.dtype:
    """float32 where it pays and the ridge stands above its rounding, else float64 (an error if float32 was asked for);
    a kernel matrix keeps its precision."""
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
            f"raise the ridge above it, or take precision='float64'"
        )
    log.info("view %r: float64 kernel, its float32 noise floor is %.1g, the ridge %g", view, 2 * floor, ridge)
    return np.dtype(np.float64)


def exact_bytes(n: int, kernels: int, itemsize: int | None = None) -> tuple[int, int]:
    """Count the bytes of kernels in memory, by which storages and engines are chosen."""
    return (itemsize or (8 if n <= _SMALL else 4)) * kernels * n * n, 8 * kernels * n * n


def reasoned_storage(engine: Exact, n: int, views: int, itemsize: int | None = None) -> tuple[Storage, str]:
    """Choose the storage of kernels of n x n entries, and return the reason of an automatic choice."""
    if engine.storage != "auto" and _lost_path(engine) is None:
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
    return choice, f"{what} with factors take {amount(entries + factors)}, {amount(free)} are free"


def _lost_path(engine: Exact) -> SavedLocation | None:
    """Return the path of kernel stores that a loaded model names and that dmo therefore does not open, or None."""
    return engine.path if engine.storage == "stored" and isinstance(engine.path, SavedLocation) else None


def choose_storage(engine: Exact, n: int, views: int, itemsize: int | None = None) -> Storage:
    """Choose the storage of kernels of n x n entries and log the reason."""
    choice, reason = reasoned_storage(engine, n, views, itemsize)
    if (lost := _lost_path(engine)) is not None:
        log.warning(
            "kernels are not stored in %r, which the loaded model names; to store them, pass "
            "approximation=Exact(storage='stored', path=...) again",
            lost.text,
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
    # of scores that are only compared all ridges have one precision: what they differ by stands above float32's rounding
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
    rows_fit = all(scipy.sparse.issparse(source) for source in used.values()) or (  # as float64, with a copy to work on
        16.0 * sum(float(np.prod(source.shape)) for source in used.values()) <= free_memory() / 2
    )
    wide = sum(source.shape[1] for source in used.values()) > next(iter(used.values())).shape[0]
    if is_linear(kernel) and wide and compared() is not None and storage == "memory":
        engine = replace(engine, precision="float64")  # one matrix of products, where every ridge would read the rows
    elif is_linear(kernel) and rows_fit:
        return FittedKernel(kernel, RowGram.of(linear_rows(kernel, used)), np.dtype(np.float64))
    if storage == "memory":  # read once for all that follows; beside n x n numbers they are small, or a factor of them
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
    return FittedKernel(fitted, Tiles(source, client, storage == "resident", dtype, tiles), dtype)


def _stored_chunk(kernel: MultiKernel, sources: Mapping[str, Rows]) -> int | None:
    """Rows of a chunk of a kernel matrix that is stored already: tiles that hold whole chunks are read from it, no chunk twice
    and none copied. None: entries have to be computed."""
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
            matrix, fitted[name] = gram_matrix(part, part.part(sources[name]), dtype, random_state)
            yield name, matrix

    total = kernel.combined(matrices())
    whole = memory() is not None  # kept for other fits, in other threads
    return FittedKernel(replace(kernel, kernels=fitted), Dense(total, lends=not whole), dtype)


def _write_tiles(shared: tuple[Any, FeatureTiles], pairs: list[tuple[int, int]]) -> None:
    """The task that computes and stores some tiles; run twice, it writes the same."""
    writer, tiles = shared
    with blas_limited(1):
        for i, j in pairs:
            writer.write(i, j, tiles.tile(i, j))


def _stored(engine: Exact, tiles: FeatureTiles, sources: Mapping[str, Rows]) -> Any:
    """A kernel store of `tiles` under the engine's path, completed where it is not; its reader is a tile source."""
    description = {
        "kernel": tiles.kernel.to_dict(),
        "rows": {name: fingerprint(source) for name, source in sources.items()},
    }
    # named by kernel and rows: another fit of the same views finds it, and no other kernel is mistaken for it
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
                rest = writer.missing()  # asked anew: tiles that a lost worker had written need no second time
                groups = grouped(rest, 4 * max(1, sum(client.nthreads().values())))
                futures = [client.submit(_write_tiles, shared.future(), group, pure=False) for group in groups]
                for done, group in zip(futures, groups, strict=True):
                    done.result()
                    advance(len(group))

            retried(client, work, shared.forget)
    writer.finish()
    return stores.open_kernel(path)


def is_linear(kernel: MultiKernel) -> bool:
    """Whether the kernel is x'y of (normalized) rows, or a weighted sum of such over views."""
    return kernel.combine == "sum" and all(isinstance(part, Linear) for part in kernel.kernels.values())


def linear_rows(kernel: MultiKernel, views: Mapping[str, Rows]) -> Any:
    """The rows of all views side by side, as their linear kernels take them: normalized, times the root of the weight."""
    parts = []
    for name, part in kernel.kernels.items():
        block = double(rows(views[name]))
        normalize = part.normalize if isinstance(part, Linear) else None
        block = block if normalize is None else normalize_rows(block, normalize)
        weight = kernel.weights[name]
        parts.append(block if weight == 1.0 else block * np.sqrt(weight))  # so that x'y has the weight
    if len(parts) == 1:
        return parts[0]
    if all(scipy.sparse.issparse(part) for part in parts):
        return scipy.sparse.csr_array(scipy.sparse.hstack(parts, format="csr"))
    return np.hstack([part.toarray() if scipy.sparse.issparse(part) else part for part in parts])


def linear_expansions(
    kernel: MultiKernel, views: Mapping[str, Rows], factor: CenteredRows, W: np.ndarray, offset: np.ndarray
) -> dict[str, Expansion]:
    """f(x) = sum_v x_v W_v + offset from coefficients W of `linear_rows`, of rows less their mean where the factor's are."""
    rest = offset if factor.mean is None else offset - factor.mean @ W
    found: dict[str, Expansion] = {}
    for name, part in kernel.kernels.items():
        mine, W = np.split(W, [views[name].shape[1]])
        scaled = np.ascontiguousarray(np.sqrt(kernel.weights[name]) * mine)
        normalize = part.normalize if isinstance(part, Linear) else None
        # the expansions are added up: the offset goes with the first alone
        found[name] = LinearExpansion(name, scaled, rest if not found else np.zeros_like(rest), normalize)
    return found
