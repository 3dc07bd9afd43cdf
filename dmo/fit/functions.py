"""Fitted functions of new rows, with which every kernel method predicts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial, reduce
from operator import add
from threading import Lock
from typing import Any, Protocol

import numpy as np

from dmo.blocks import Rows, Subset, double, presence, row_blocks, rows, strips
from dmo.devices import moved
from dmo.errors import UserError
from dmo.fit.training_rows import KeepsRows
from dmo.kernels import log_distance, normalize_rows
from dmo.kernels.composite import selection
from dmo.kernels.multikernel import MultiKernel
from dmo.lowrank import FeatureMap
from dmo.memory import Memory, remembered
from dmo.persistence import with_prefix, without_prefix

_BLOCK = 4096
_STRIP = 256  # Number of rows that are converted to float64 at a time.
_KEPT = 2**24  # Maximum number of entries of training rows that are cached in prepared form (64 MiB in float32).
_CACHING = Lock()
_SAMPLE = 512  # Number of training rows from whose pairs the mean distance is estimated.


class Expansion(Protocol):
    """Function that maps the rows of each view (m x d) to values (m x k) and can be saved in a model store."""

    def __call__(self, views: Mapping[str, Rows]) -> np.ndarray: ...

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the arrays and metadata of the function for a model store."""


@dataclass(frozen=True)
class KernelExpansion(KeepsRows):
    """Kernel expansion f(x) = sum_i k(x, x_i) c_i + offset over n training rows x_i."""

    # The values (m x k) are computed in float64 block by block, so that the m x n kernel matrix is never in memory.

    kernel: MultiKernel
    sources: Mapping[str, Rows]
    coefficients: np.ndarray  # Coefficients c_i (n x k).
    offset: np.ndarray
    dtype: Any = np.float32
    # Cached blocks of training rows, prepared for `kernel.tile`. The key is the index of the first row of a block.
    _prepared: dict[int, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_prepared": {}}

    def own(self, copies: dict[int, tuple[Rows, Rows]]) -> None:
        super().own(copies)
        # Prepared rows may share memory with arrays of the caller, so remove them from the cache.
        self._prepared.clear()

    def __post_init__(self) -> None:
        # For a precomputed kernel, new rows contain the kernel values, so store only the column indices of the training
        # rows.
        kept = {view: selection(self.sources[view]) for view in self.kernel.pairwise}
        object.__setattr__(self, "sources", {**self.sources, **kept})

    def __call__(self, views: Mapping[str, Rows]) -> np.ndarray:
        m, n = next(iter(views.values())).shape[0], self.coefficients.shape[0]
        out = np.empty((m, self.coefficients.shape[1]))
        for batch in row_blocks(m, _BLOCK):
            new, found = cache(partial(self.kernel.prepare, views, batch, self.dtype)), out[batch]
            found[:] = self.offset
            for where in row_blocks(n, _BLOCK):
                key = partial(self._key, views, batch, where)
                tile = remembered(partial(self._tile, new, where), 8.0 * len(found) * n, key)
                # Large coefficients of opposite signs amplify float32 rounding errors tenfold, so sum in float64.
                for strip in row_blocks(len(tile), _STRIP):
                    found[strip] += tile[strip] @ self.coefficients[where]
        return out

    def _tile(self, new: Callable[[], Mapping[str, Any]], where: slice) -> np.ndarray:
        return self.kernel.tile(new(), self._old(where))

    def _key(self, views: Mapping[str, Rows], batch: slice, where: slice, memory: Memory) -> Hashable:
        names = tuple((memory.name(views[view]), memory.name(self.sources[view])) for view in self.kernel.kernels)
        return "expansion", self.kernel.key, str(self.dtype), names, batch.start, where.start

    def _old(self, where: slice) -> dict[str, Any]:
        """Prepare a block of training rows for `tile`, and cache the result if there are few training rows."""
        old = self._prepared.get(where.start)
        if old is None:
            old = self.kernel.prepare(self.sources, where, self.dtype)
            if not self.kernel.pairwise and sum(X.shape[0] * X.shape[1] for X in self.sources.values()) <= _KEPT:
                with _CACHING:
                    old = self._prepared.setdefault(where.start, old)
        return old

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the arrays and metadata for a model store, without the training rows that several functions share."""
        arrays = {"coefficients": self.coefficients, "offset": self.offset}
        return arrays, {"kernel": self.kernel.to_dict(), "dtype": np.dtype(self.dtype).name}

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, Any], meta: Mapping[str, Any], sources: Mapping[str, Rows]
    ) -> KernelExpansion:
        """Restore the function from the output of `to_arrays`."""
        kernel = MultiKernel.from_dict(meta["kernel"])
        used = {name: sources[name] for name in kernel.kernels}
        return cls(kernel, used, arrays["coefficients"], arrays["offset"], np.dtype(meta["dtype"]))


def added(
    expansions: Mapping[str, Expansion], views: Mapping[str, Rows], weights: Mapping[str, float] | None = None
) -> np.ndarray:
    """Sum the functions of several views at m rows, and return an array of shape (m, k).

    If a sample is missing in some views, its sum over the other views is scaled up in proportion to the view weights.
    """
    present = {view: presence(source) for view, source in views.items()}
    if all(has is None for has in present.values()):
        return np.asarray(reduce(add, (expansion(views) for expansion in expansions.values())))
    shares = dict.fromkeys(expansions, 1.0) if weights is None else {view: weights[view] for view in expansions}
    total: np.ndarray | float = 0.0
    seen = np.zeros(next(iter(views.values())).shape[0])
    for view, expansion in expansions.items():
        own = present[view]
        index = np.arange(len(seen)) if own is None else np.flatnonzero(own)
        values = expansion({view: Subset(views[view], index)})
        total = np.zeros((len(seen), values.shape[1])) if isinstance(total, float) else total
        total[index] += values
        seen[index] += shares[view]
    if not seen.all():
        sample = int(np.flatnonzero(seen == 0)[0])
        raise UserError(
            f"sample {sample} has none of the views {list(expansions)}; remove it, or pass one of these views"
        )
    return np.asarray(total * (sum(shares.values()) / seen)[:, None])


def shifted(expansions: Mapping[str, Expansion], shift: np.ndarray | None) -> dict[str, Expansion]:
    """Add a constant (k) to a sum of functions, by adding it to the first function."""
    parts: dict[str, Any] = dict(expansions)
    if shift is not None:
        first = next(iter(parts))
        parts[first] = replace(parts[first], offset=parts[first].offset + shift)
    return parts


@dataclass(frozen=True)
class KernelDistances:
    """Distances of new rows to the training rows, computed as -log k(x, x_i) and divided by their mean."""

    # For a kernel exp(-d / b), the result is proportional to the distance d. For a product of such kernels, the result
    # is proportional to a weighted sum of the distances.

    expansions: list[KernelExpansion]  # Kernel expansions over the same training rows.
    scale: float  # Mean of the distances between training rows.

    @classmethod
    def of(
        cls,
        expansions: Mapping[str, Expansion],
        scale: float | None = None,
        views: Mapping[str, Rows] | None = None,
    ) -> KernelDistances:
        """Create the distances from the kernels of fitted functions, with an estimated scale if `scale` is None."""
        known = [part for part in expansions.values() if isinstance(part, KernelExpansion)]
        if len(known) < len(expansions):
            raise UserError("distances of features need exact kernels of a distance; use such a base, or visual=0")
        if scale is None:
            n = known[0].coefficients.shape[0]
            sample = np.unique(np.linspace(0, n - 1, min(n, _SAMPLE)).astype(int))
            held = {view: source for part in known for view, source in part.sources.items()} | dict(views or {})
            picked = {view: Subset(source, sample) for view, source in held.items()}
            found = cls(known, 1.0)(picked, slice(0, len(sample)))[:, sample]
            scale = float(found.sum(dtype=np.float64)) / max(1, len(sample) * (len(sample) - 1))
        return cls(known, scale if scale > 0 else 1.0)

    def __call__(self, views: Mapping[str, Rows], where: slice) -> np.ndarray:
        """Compute the float32 distances of the m rows `where` of the views to all n training rows."""
        out = np.zeros((where.stop - where.start, self.expansions[0].coefficients.shape[0]), np.float32)
        for part in self.expansions:
            new = part.kernel.prepare(views, where, part.dtype)
            for old in row_blocks(out.shape[1], _BLOCK):
                k = part.kernel.tile(new, part.kernel.prepare(part.sources, old, part.dtype))
                if k.size and not 0 <= k.min() <= k.max() <= 1 + 1e-4:
                    raise UserError(
                        "distances of features need kernels exp(-distance), such as rbf; use such a kernel, or visual=0"
                    )
                out[:, old] += log_distance(k)
        out /= self.scale
        return out


@dataclass(frozen=True)
class FactorExpansion:
    """Function f(x) = g(x) B + offset, where g(x) is the factor row of x from the feature map of a low-rank kernel."""

    view: str
    feature_map: FeatureMap
    coefficients: np.ndarray  # Coefficients B (r0 x k), already multiplied by the mixing matrix of the feature map.
    offset: np.ndarray

    @classmethod
    def of(cls, view: str, feature_map: FeatureMap, coefficients: np.ndarray, offset: np.ndarray) -> FactorExpansion:
        """Create the function from coefficients (rank x k) of factor rows to which the mixing matrix was applied."""
        mixing = feature_map.mixing
        return cls(view, feature_map, coefficients if mixing is None else mixing @ coefficients, offset)

    def __call__(self, views: Mapping[str, Rows]) -> np.ndarray:
        source = views[self.view]
        out = np.empty((source.shape[0], len(self.offset)))
        for batch in row_blocks(source.shape[0], _BLOCK):
            read = rows(source, batch)
            values = self.feature_map.times(moved(read) if self.feature_map.portable else read, self.coefficients)
            np.add(values, self.offset, out=out[batch])
        return out

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays, meta = self.feature_map.to_arrays()
        stored = {f"map/{key}": value for key, value in arrays.items()}
        stored |= {"coefficients": self.coefficients, "offset": self.offset}
        return stored, {"view": self.view, "map": meta}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> FactorExpansion:
        parts = {key.removeprefix("map/"): value for key, value in arrays.items() if key.startswith("map/")}
        feature_map = FeatureMap.from_arrays(parts, meta["map"])
        return cls(meta["view"], feature_map, arrays["coefficients"], arrays["offset"])


@dataclass(frozen=True)
class LinearExpansion:
    """Linear function f(x) = x W + offset of the dense or sparse rows of one view."""

    view: str
    coefficients: np.ndarray  # Matrix W of shape (d, k).
    offset: np.ndarray
    normalize: str | None = None  # Name of the norm by which each row is divided before the product, or None.

    def __call__(self, views: Mapping[str, Rows]) -> np.ndarray:
        source = views[self.view]
        out = np.empty((source.shape[0], len(self.offset)))
        for where in row_blocks(source.shape[0], _BLOCK):
            block, target = rows(source, where), out[where]
            # A strip of rows that is converted to float64 stays in the processor cache until it is multiplied, so work
            # in strips.
            for part in strips(block, _STRIP):
                strip = double(block[part])
                if self.normalize is not None:
                    strip = normalize_rows(strip, self.normalize)
                target[part] = strip @ self.coefficients
            target += self.offset
        return out

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        meta = {"view": self.view} | ({} if self.normalize is None else {"normalize": self.normalize})
        return {"coefficients": self.coefficients, "offset": self.offset}, meta

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> LinearExpansion:
        return cls(meta["view"], arrays["coefficients"], arrays["offset"], meta.get("normalize"))


def above(expansions: Mapping[str, Expansion], views: Mapping[str, Rows], thresholds: np.ndarray) -> np.ndarray | None:
    """Return whether the values of a low-rank function exceed `thresholds` (k), as a boolean array (m x k).

    Values close to a threshold in float32 are compared again in float64. Return None if float32 cannot be used.
    """
    function, *others = expansions.values()
    if others or not isinstance(function, FactorExpansion) or presence(views[function.view]) is not None:
        return None
    source, single = views[function.view], function.feature_map.single(views[function.view].dtype)
    if single is function.feature_map:
        return None
    limit = thresholds - function.offset
    B, t = function.coefficients.astype(np.float32), limit.astype(np.float32)
    # This bound on the float32 error of a sum of d products holds for any order of summation.
    bound = (len(B) + 8) * np.finfo(np.float32).eps / 2 * np.linalg.norm(function.coefficients, axis=0)
    rounding = np.finfo(np.float32).eps * np.abs(limit) + 1e-15 * (np.abs(thresholds) + np.abs(function.offset))
    rounding[~np.isfinite(limit)] = 0.0
    out = np.empty((source.shape[0], len(limit)), bool)
    for batch in row_blocks(source.shape[0], _BLOCK):
        F: Any = single.raw(rows(source, batch))
        values = F @ B
        values -= t
        np.greater(values, 0, out=out[batch])
        longest = float(np.sqrt(np.einsum("ij,ij->i", F, F, dtype=np.float64).max(initial=0.0)))
        far = np.abs(values, out=values) > (longest * bound + rounding).astype(np.float32)
        close = np.flatnonzero(~far.all(axis=1))  # NaN values are also compared again in float64.
        if close.size:
            index = close + batch.start
            out[index] = function({function.view: Subset(source, index)}) > thresholds
    return out


def store_expansions(expansions: Mapping[str, Expansion]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return arrays and metadata of several functions for a model store. Shared training rows are stored once."""
    sources: dict[str, Rows] = {}
    arrays: dict[str, Any] = {}
    metas = {}
    for name, expansion in expansions.items():
        sources |= expansion.sources if isinstance(expansion, KernelExpansion) else {}
        parts, metas[name] = expansion.to_arrays()
        arrays |= with_prefix(f"expansions/{name}", parts)
    return arrays | {f"rows/{name}": rows(source) for name, source in sources.items()}, {"expansions": metas}


def load_expansions(arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, Expansion]:
    """Restore the functions from the output of `store_expansions`."""
    sources = without_prefix("rows", arrays)
    loaded: dict[str, Expansion] = {}
    for name, parts in meta["expansions"].items():
        own = without_prefix(f"expansions/{name}", arrays)
        if "map" in parts:
            loaded[name] = FactorExpansion.from_arrays(own, parts)
        elif "kernel" in parts:
            loaded[name] = KernelExpansion.from_arrays(own, parts, sources)
        elif set(own) == {"coefficients", "offset"}:
            loaded[name] = LinearExpansion.from_arrays(own, parts)
        else:
            raise ValueError(f"the expansion {name!r} has arrays of a map that is not described")
    return loaded


@dataclass(frozen=True)
class KernelFunction:
    """Sum of functions, such as one kernel expansion over all views, or one low-rank function per view."""

    expansions: Mapping[str, Expansion]

    def __call__(self, views: Mapping[str, Rows]) -> np.ndarray:
        return np.asarray(reduce(add, (expansion(views) for expansion in self.expansions.values())))
