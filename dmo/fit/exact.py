"""Exact engine, which solves with n x n kernel matrices and chooses their storage and precision."""

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
_SMALL = 2048  # Number of samples up to which the extra cost of float64 is negligible.
_LOOK = 512  # Number of rows from which the bandwidth and the float32 rounding error are estimated.
Storage = Literal["auto", "memory", "resident", "recomputed", "stored"]
Precision = Literal["auto", "float32", "float64"]


@dataclass(frozen=True)
class Exact:
    """Engine that solves with the full kernel matrix, without a low-rank approximation.

    With a linear kernel, a fit uses the rows of the data in float64 instead of a kernel matrix. `storage`, `precision`
    and `block` then have no effect. If dense rows do not fit in the memory of the client process, the fit uses the
    kernel matrix.

    Parameters
    ----------
    storage : {"auto", "memory", "resident", "recomputed", "stored"}, default="auto"
        Where the n x n kernel matrices are kept.

        - "memory" keeps each matrix as one NumPy array in the client process.
        - "resident" divides each matrix into tiles and keeps the tiles in the memory of the workers.
        - "recomputed" computes the tiles from the features at every matrix product.
        - "stored" writes the tiles to a kernel store under `path` and reads them at every matrix product.
        - "auto" chooses "memory" without a cluster, "resident" on a cluster, or "recomputed" if memory is insufficient.
    precision : {"auto", "float32", "float64"}, default="auto"
        Precision of the kernel entries. "auto" uses float64 for at most 2048 samples. For more samples, it uses float32
        if the ridge is at least twice the rounding error of a float32 kernel.
    block : int, default=2048
        Maximum number of rows of a kernel tile. Tiles are smaller if there are many workers.
    path : str or None, default=None
        Folder or URL of the kernel stores for storage "stored". A loaded model does not reuse the path of its
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
    """Kernel with fitted parameters, and its n x n operator over the training rows."""

    kernel: MultiKernel
    operator: Operator
    dtype: np.dtype
    key: Any = None  # Cache key of the kernel and its inputs, or None if the kernel is not cached.

    def placed(self, center: bool, weights: np.ndarray | None = None) -> Operator:
        """Apply sample weights to the kernel operator, and center the operator if `center` is true."""
        # The unweighted mean depends on samples of weight 0, so center with the weighted mean.
        if weights is not None:
            return self.operator.weighted(weights, center)
        return self.operator.centered() if center else self.operator

    def expansion(
        self, sources: Mapping[str, Rows], operator: Operator, coefficients: np.ndarray, shift: np.ndarray | float = 0.0
    ) -> KernelExpansion:
        """Build the prediction function from coefficients (n x k) of the columns of `operator`."""
        dual, offset = operator.expansion(coefficients)
        # A loaded model must predict bit-identical values, so arrange the coefficients in row-major order as model
        # stores do.
        return KernelExpansion(self.kernel, dict(sources), np.ascontiguousarray(dual), offset + shift, self.dtype)


def rounding_floor(kernel: Kernel, source: Rows) -> float:
    """Estimate the spectral norm of the rounding errors in a float32 kernel matrix (n x n)."""
    # If the ridge is smaller than the norm of the rounding errors, solutions amplify these errors. Compute the rounding
    # errors for 512 rows as the difference of a float32 and a float64 kernel, and extrapolate their norm to n rows. The
    # norm of independent errors grows like sqrt(n), and the norm of systematic errors grows like n. The ratio of the
    # norms for all 512 rows and for a quarter of these rows reveals the growth rate.
    n = source.shape[0]
    index = np.unique(np.linspace(0, n - 1, min(n, _LOOK)).astype(int))
    picked = kernel.part(source, index)
    single, double = kernel.prepare(picked, np.float32), kernel.prepare(picked, np.float64)
    error = kernel.tile(single, single).astype(np.float64) - kernel.tile(double, double)
    # A fit computes the kernel of each pair of rows only once, so the rounding errors of the kernel matrix are
    # symmetric.
    error = (error + error.T) / 2
    m = len(index)
    # The ridge must exceed the largest eigenvalue of the error matrix, so use the spectral norm.
    whole, quarter = np.linalg.norm(error, 2), np.linalg.norm(error[: max(1, m // 4), : max(1, m // 4)], 2)
    if whole == 0.0 or quarter == 0.0:
        return float(whole * n / m)
    growth = np.clip(np.log(whole / quarter) / np.log(m / max(1, m // 4)), 0.5, 1.0) if m >= 4 else 1.0
    return float(whole * (n / m) ** growth)


def choose_dtype(
    engine: Exact, view: str, kernel: Kernel, source: Rows, ridge: float, random_state: int | None = None
) -> np.dtype:
    """Choose float32 for the kernel if it saves memory and the ridge is large enough, otherwise float64.

    Raise a UserError if float32 is requested, but the ridge is too small. Precomputed kernels keep their precision.
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
    """Return the size of all n x n kernels, and the size of their factorizations, in bytes."""
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
    """Build the n x n operator of a kernel over the training rows of its views."""
    own, used = memory(), {name: sources[name] for name in kernel.kernels}
    if own is None or storage != "memory":
        return _built(engine, kernel, used, ridge, storage, random_state, weights)
    n = next(iter(used.values())).shape[0]
    # In a hyperparameter search, the scores of candidates differ by more than float32 rounding errors, so one kernel
    # matrix serves all ridges.
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
    # The client process needs memory for the rows in float64 and for a working copy.
    size = 16.0 * sum(float(np.prod(source.shape)) for source in used.values())
    rows_fit = fits(size, 0.5) or all(map(reads_sparse, used.values()))
    wide = sum(source.shape[1] for source in used.values()) > next(iter(used.values())).shape[0]
    if kernel.linear and wide and compared() is not None and storage == "memory":
        # In a hyperparameter search, compute the kernel matrix once: otherwise, the fit for every ridge would read all
        # rows again.
        engine = replace(engine, precision="float64")
    elif kernel.linear and rows_fit:
        return FittedKernel(kernel, RowGram.of(linear_rows(kernel, used)), np.dtype(np.float64))
    # The rows are small compared with the n x n kernel, so read them into memory once.
    if storage == "memory":
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
    """Return the number of rows per chunk of a precomputed kernel in a store, or None for other kernels.

    Tiles of whole chunks are read without copying, and no chunk is read twice.
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
    # Fits in other threads can use a cached kernel, so a factorization must not overwrite its matrix.
    whole = memory() is not None
    return FittedKernel(replace(kernel, kernels=fitted), Dense(total, lends=not whole), dtype)


def _write_tiles(shared: tuple[Any, FeatureTiles], pairs: list[tuple[int, int]]) -> None:
    """Compute and store some tiles. A repeated task writes the same values."""
    writer, tiles = shared
    with blas_limited(1):
        for i, j in pairs:
            writer.write(i, j, tiles.tile(i, j))


def _stored(engine: Exact, tiles: FeatureTiles, sources: Mapping[str, Rows]) -> Any:
    """Open or complete the kernel store of `tiles` under `engine.path`, and return a reader of its tiles."""
    description = {
        "kernel": tiles.kernel.to_dict(),
        "rows": {name: fingerprint(source) for name, source in sources.items()},
    }
    # The name of a kernel store contains a hash of the kernel and the rows, so only fits with equal kernels and rows
    # share it.
    if isinstance(engine.path, SavedLocation):
        raise engine.path.refused("path")
    # Only the class `Tiles` reads the kernel store, and this class needs only the lower triangle.
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
                # A lost worker may have written some of its tiles, so check again which tiles are missing.
                rest = writer.missing()
                groups = grouped(rest, 4 * max(1, sum(client.nthreads().values())))
                futures = submit_each(client, _write_tiles, [(shared.future(), group) for group in groups])
                for done, group in zip(futures, groups, strict=True):
                    done.result()
                    advance(len(group))

            retried(client, work, shared.forget)
    writer.finish()
    return stores.open_kernel(path)


def linear_rows(kernel: MultiKernel, views: Mapping[str, Rows]) -> Any:
    """Concatenate the columns of all views.

    Rows are normalized and multiplied by the square root of the view weight.
    """
    parts = []
    for name, part in kernel.kernels.items():
        block = double(rows(views[name]))
        normalize = part.normalize if isinstance(part, Linear) else None
        block = block if normalize is None else normalize_rows(block, normalize)
        weight = kernel.weights[name]
        parts.append(block if weight == 1.0 else block * np.sqrt(weight))
    return parts[0] if len(parts) == 1 else joined_columns(parts)


def linear_expansions(
    kernel: MultiKernel, views: Mapping[str, Rows], factor: CenteredRows, W: np.ndarray, offset: np.ndarray
) -> dict[str, Expansion]:
    """Convert coefficients `W` of the columns from `linear_rows` to one linear function per view."""
    rest = offset if factor.mean is None else offset - factor.mean @ W
    found: dict[str, Expansion] = {}
    for name, part in kernel.kernels.items():
        mine, W = np.split(W, [views[name].shape[1]])
        scaled = np.ascontiguousarray(np.sqrt(kernel.weights[name]) * mine)
        normalize = part.normalize if isinstance(part, Linear) else None
        # The functions of all views are summed, so only the first function includes the offset.
        found[name] = LinearExpansion(name, scaled, rest if not found else np.zeros_like(rest), normalize)
    return found
