"""Fitted functions of new rows: what every kernel method leaves behind for prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dmo.blocks import Rows, Subset, double, row_blocks, rows
from dmo.errors import UserError
from dmo.kernels import normalize_rows
from dmo.kernels.multikernel import MultiKernel
from dmo.lowrank import FeatureMap
from dmo.persistence import with_prefix, without_prefix

_BLOCK = 4096
_SAMPLE = 512  # training rows whose pairs give the mean of a distance


class Expansion(Protocol):
    """A function of views of m rows (view name -> row source) to m x k values, that a model store can keep."""

    def __call__(self, views: Mapping[str, Rows]) -> np.ndarray: ...

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]: ...


@dataclass(frozen=True)
class KernelExpansion:
    """f(x) = sum_i k(x, x_i) c_i + offset.

    Arguments: `kernel`; `sources`: view name -> the n training rows (row sources, n x d_view); `coefficients` n x k;
    `offset` k; `dtype` of the kernel values. A call takes views of m rows and returns m x k (float64), block by block:
    never m x n.
    """

    kernel: MultiKernel
    sources: Mapping[str, Rows]
    coefficients: np.ndarray
    offset: np.ndarray
    dtype: Any = np.float32

    def __call__(self, views: Mapping[str, Rows]) -> np.ndarray:
        m, n = next(iter(views.values())).shape[0], self.coefficients.shape[0]
        out = np.empty((m, self.coefficients.shape[1]))
        coefficients = self.coefficients.astype(self.dtype, copy=False)
        for batch in row_blocks(m, _BLOCK):
            new = self.kernel.prepare(views, batch, self.dtype)
            out[batch] = self.offset
            for where in row_blocks(n, _BLOCK):
                old = self.kernel.prepare(self.sources, where, self.dtype)
                out[batch] += self.kernel.tile(new, old) @ coefficients[where]
        return out

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(arrays, JSON meta) for a model store; the training rows are their owner's to store, once for all."""
        arrays = {"coefficients": self.coefficients, "offset": self.offset}
        return arrays, {"kernel": self.kernel.to_dict(), "dtype": np.dtype(self.dtype).name}

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, Any], meta: Mapping[str, Any], sources: Mapping[str, Rows]
    ) -> KernelExpansion:
        """The expansion that `to_arrays` described, over the training rows `sources`."""
        kernel = MultiKernel.from_dict(meta["kernel"])
        used = {name: sources[name] for name in kernel.kernels}
        return cls(kernel, used, arrays["coefficients"], arrays["offset"], np.dtype(meta["dtype"]))


@dataclass(frozen=True)
class KernelDistances:
    """Distances of new rows to the training rows of kernel expansions: the sum of their -log k(x, x_i), over its mean.

    Of kernels exp(-d / b) these are the distances d themselves, of their weighted product the weighted sum.

    Arguments: `expansions` over the same training rows; `scale`: the mean over pairs of training rows.
    """

    expansions: list[KernelExpansion]
    scale: float

    @classmethod
    def of(cls, expansions: Mapping[str, Expansion], scale: float | None = None) -> KernelDistances:
        """From an estimator's expansions; UserError where they hold no training rows, or are no kernels of distances."""
        known = [part for part in expansions.values() if isinstance(part, KernelExpansion)]
        if len(known) < len(expansions):
            raise UserError("distances of features need exact kernels of a distance; take such a base, or visual = 0")
        if scale is None:
            n = known[0].coefficients.shape[0]
            sample = np.unique(np.linspace(0, n - 1, min(n, _SAMPLE)).astype(int))
            picked = {view: Subset(source, sample) for part in known for view, source in part.sources.items()}
            found = cls(known, 1.0)(picked, slice(0, len(sample)))[:, sample]
            scale = float(found.sum(dtype=np.float64)) / max(1, len(sample) * (len(sample) - 1))
        return cls(known, scale if scale > 0 else 1.0)

    def __call__(self, views: Mapping[str, Rows], where: slice) -> np.ndarray:
        """len(where) x n (float32), for the rows `where` of `views`."""
        out = np.zeros((where.stop - where.start, self.expansions[0].coefficients.shape[0]), np.float32)
        for part in self.expansions:
            new = part.kernel.prepare(views, where, part.dtype)
            for old in row_blocks(out.shape[1], _BLOCK):
                k = part.kernel.tile(new, part.kernel.prepare(part.sources, old, part.dtype))
                if k.size and not 0 <= k.min() <= k.max() <= 1 + 1e-4:
                    raise UserError(
                        "distances of features need kernels exp(-distance), such as rbf; or take visual = 0"
                    )
                out[:, old] -= np.log(np.clip(k, np.finfo(np.float32).tiny, 1.0))
        out /= self.scale
        return out


@dataclass(frozen=True)
class FactorExpansion:
    """f(x) = g(x) B + offset, with g(x) the raw factor row of a low-rank kernel's feature map.

    Arguments: `view`: its name; `feature_map`; `coefficients` r0 x k on unprojected features (the map's mixing multiplied in);
    `offset` k. A call takes views of m rows and returns m x k (float64), block by block.
    """

    view: str
    feature_map: FeatureMap
    coefficients: np.ndarray
    offset: np.ndarray

    @classmethod
    def of(cls, view: str, feature_map: FeatureMap, coefficients: np.ndarray, offset: np.ndarray) -> FactorExpansion:
        """From coefficients (rank x k) on the factor rows g(x) T, T the map's mixing."""
        mixing = feature_map.mixing
        return cls(view, feature_map, coefficients if mixing is None else mixing @ coefficients, offset)

    def __call__(self, views: Mapping[str, Rows]) -> np.ndarray:
        source = views[self.view]
        out = np.empty((source.shape[0], len(self.offset)))
        for batch in row_blocks(source.shape[0], _BLOCK):
            raw = self.feature_map.raw(rows(source, batch))
            out[batch] = (raw.dot(self.coefficients) if hasattr(raw, "dot") else raw @ self.coefficients) + self.offset
        return out

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(arrays, JSON meta) for a model store."""
        arrays, meta = self.feature_map.to_arrays()
        stored = {f"map/{key}": value for key, value in arrays.items()}
        stored |= {"coefficients": self.coefficients, "offset": self.offset}
        return stored, {"view": self.view, "map": meta}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> FactorExpansion:
        """The expansion that `to_arrays` described."""
        parts = {key.removeprefix("map/"): value for key, value in arrays.items() if key.startswith("map/")}
        feature_map = FeatureMap.from_arrays(parts, meta["map"])
        return cls(meta["view"], feature_map, arrays["coefficients"], arrays["offset"])


@dataclass(frozen=True)
class LinearExpansion:
    """f(x) = x W + offset, on the rows of one view, dense or sparse, `normalize`d first where the kernel does so."""

    view: str
    coefficients: np.ndarray
    offset: np.ndarray
    normalize: str | None = None

    def __call__(self, views: Mapping[str, Rows]) -> np.ndarray:
        source = views[self.view]
        out = np.empty((source.shape[0], len(self.offset)))
        for where in row_blocks(source.shape[0], _BLOCK):
            block = double(rows(source, where))
            if self.normalize is not None:
                block = normalize_rows(block, self.normalize)
            out[where] = block @ self.coefficients + self.offset
        return out

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(arrays, JSON meta) for a model store."""
        meta = {"view": self.view} | ({} if self.normalize is None else {"normalize": self.normalize})
        return {"coefficients": self.coefficients, "offset": self.offset}, meta

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> LinearExpansion:
        """The expansion that `to_arrays` described."""
        return cls(meta["view"], arrays["coefficients"], arrays["offset"], meta.get("normalize"))


def store_expansions(expansions: Mapping[str, Expansion]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Expansions and, once, the training rows that they share, as (arrays, JSON meta)."""
    sources: dict[str, Rows] = {}
    arrays: dict[str, Any] = {}
    metas = {}
    for name, expansion in expansions.items():
        sources |= expansion.sources if isinstance(expansion, KernelExpansion) else {}
        parts, metas[name] = expansion.to_arrays()
        arrays |= with_prefix(f"expansions/{name}", parts)
    return arrays | {f"rows/{name}": rows(source) for name, source in sources.items()}, {"expansions": metas}


def load_expansions(arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, Expansion]:
    """The expansions that `store_expansions` described."""
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
    """The sum of expansions: of one kernel over all views, or of one low-rank kernel per view."""

    expansions: Mapping[str, Expansion]

    def __call__(self, views: Mapping[str, Rows]) -> np.ndarray:
        return np.asarray(sum(expansion(views) for expansion in self.expansions.values()))


@dataclass(frozen=True)
class PrecomputedFunction:
    """f = K coefficients + offset for rows of a kernel that someone else computed."""

    view: str
    coefficients: np.ndarray
    offset: np.ndarray

    def __call__(self, views: Mapping[str, Rows]) -> np.ndarray:
        return np.asarray(rows(views[self.view]) @ self.coefficients) + self.offset


Function = KernelFunction | PrecomputedFunction


def store_function(function: Function) -> tuple[dict[str, Any], dict[str, Any]]:
    """A function as (arrays, JSON meta) for a model store."""
    if isinstance(function, KernelFunction):
        return store_expansions(function.expansions)
    return {"coefficients": function.coefficients, "offset": function.offset}, {"precomputed": function.view}


def load_function(arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> Function:
    """The function that `store_function` described."""
    if "precomputed" in meta:
        return PrecomputedFunction(meta["precomputed"], arrays["coefficients"], arrays["offset"])
    return KernelFunction(load_expansions(arrays, meta))
