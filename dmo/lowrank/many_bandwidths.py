"""Nystrom feature maps of one kernel with several bandwidths, which share the landmarks and read the samples once.

Kernels exp(-f(distance) / w) with different bandwidths w are powers of each other. Therefore, the logarithms of kernel
values for one bandwidth determine the kernel values for all other bandwidths. Landmarks for one bandwidth are also
suitable for half and for twice this bandwidth. Landmarks that are chosen for each bandwidth change the approximation
error by only a few percent, like another random seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from dmo.blocks import Rows, row_blocks, rows
from dmo.kernels.base import BandwidthKernel
from dmo.lowrank.nystrom import PREPARED, NystromMap, cut_off, inverse_root, times_triangle
from dmo.threads import in_threads


@dataclass(frozen=True, eq=False)
class ExponentMap:
    """Nystrom map for a scaled bandwidth, which uses the logarithms of kernel values for the original bandwidth."""

    map: NystromMap  # Nystrom map of the kernel with the scaled bandwidth.
    keep: np.ndarray  # Indices of the landmarks that this map uses.
    power: float  # Exponent p such that the kernel of this map is the original kernel raised to the power p.

    mixing = None

    def raw(self, X: Any, /) -> np.ndarray:
        """Compute factor rows (m x rank) from the values -log2 k(x, z) for the original bandwidth (m x r)."""
        out = np.empty((len(X), self.map.rank), self.map.dtype)
        projection = self.map.projection.astype(self.map.dtype)
        for where in row_blocks(len(X), max(1, PREPARED // max(1, X.shape[1]))):
            values = X[where] if len(self.keep) == X.shape[1] else X[where][:, self.keep]
            times_triangle(np.exp2(values * X.dtype.type(-self.power)), projection, out[where])
        return out

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the arrays and metadata that determine the factor rows."""
        arrays, meta = self.map.to_arrays()
        return arrays | {"keep": self.keep}, meta | {"power": self.power}


@dataclass(frozen=True, eq=False)
class ManyBandwidths:
    """Factory of Nystrom maps that use the landmarks of an existing map with other bandwidths."""

    base: NystromMap

    @cached_property
    def _wide(self) -> Any:
        return self.base.kernel.prepare(self.base.landmarks, np.float64)

    def scaled(self, factor: float) -> ExponentMap:
        """Create the Nystrom map for `factor` times the bandwidth."""
        assert isinstance(self.base.kernel, BandwidthKernel)
        kernel = replace(self.base.kernel, scale=factor * self.base.kernel.scale)
        # Preparing the landmarks also checks whether the precision suffices for this bandwidth.
        landmarks = kernel.prepare(self.base.landmarks, self.base.dtype)
        power = kernel.power_of(self.base.kernel)
        square = np.exp2(-power * self.base.kernel.exponents(self._wide, self._wide))
        keep, projection = inverse_root(square, *cut_off(landmarks.dtype))
        return ExponentMap(NystromMap(kernel, self.base.dtype, self.base.landmarks[keep], projection), keep, power)

    def exponents(self, X: Rows) -> np.ndarray:
        """Compute -log2 k(x, z) for all rows x of X and all landmarks z, with the original bandwidth."""
        kernel = self.base.kernel
        assert isinstance(kernel, BandwidthKernel)
        return kernel.exponents(kernel.prepare(rows(X), self.base.dtype), self.base._ready[0])


def exponents_of(shared: Mapping[str, ManyBandwidths], views: Mapping[str, Rows], size: int) -> dict[str, np.ndarray]:
    """Compute -log2 k(x, z) for all samples x and landmarks z of several views, and read each sample once."""
    n = next(iter(views.values())).shape[0]
    found = {view: np.empty((n, part.base.rank), part.base.dtype) for view, part in shared.items()}
    for where in row_blocks(n, size):
        # Each thread has its own cache of chunks, so read all views in one thread.
        read = [(view, rows(views[view], where)) for view in shared]

        def fill(part: tuple[str, Any], where: slice = where) -> None:
            view, block = part
            found[view][where] = shared[view].exponents(block)

        in_threads(fill, read)
    return found
