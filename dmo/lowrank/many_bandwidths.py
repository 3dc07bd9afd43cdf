"""Nystrom map of one kernel for several bandwidths, with landmarks chosen once and rows read once.

Kernels exp(-f(distance) / width) with different widths are powers of each other. Given the exponents -log2 k(x, z) of
one kernel at the landmarks, each other kernel requires one exponential per value. Landmarks of one bandwidth also
approximate kernels of half and of twice its width well: errors differ by some percent from those of landmarks chosen
for that width, like the errors of two seeds.
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
    """Nystrom map that computes factor rows from the exponents of rows at the landmarks."""

    map: NystromMap  # map of the kernel with the new bandwidth
    keep: np.ndarray  # indices of the map's landmarks among all landmarks
    power: float  # power of the base kernel that equals the map's kernel

    mixing = None

    def raw(self, X: Any, /) -> np.ndarray:
        """Map exponents to factor rows.

        X (m, r) -> (m, rank)
        """
        out = np.empty((len(X), self.map.rank), self.map.dtype)
        projection = self.map.projection.astype(self.map.dtype)
        for where in row_blocks(len(X), max(1, PREPARED // max(1, X.shape[1]))):
            values = X[where] if len(self.keep) == X.shape[1] else X[where][:, self.keep]
            times_triangle(np.exp2(values * X.dtype.type(-self.power)), projection, out[where])
        return out

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Describe everything that determines the factor rows."""
        arrays, meta = self.map.to_arrays()
        return arrays | {"keep": self.keep}, meta | {"power": self.power}


@dataclass(frozen=True, eq=False)
class ManyBandwidths:
    """Landmarks of a Nystrom map for use with other bandwidths, and exponents of rows at them."""

    base: NystromMap  # map of a `BandwidthKernel`

    @cached_property
    def _wide(self) -> Any:
        return self.base.kernel.prepare(self.base.landmarks, np.float64)

    def scaled(self, factor: float) -> ExponentMap:
        """Create the map of the kernel with a scaled bandwidth."""
        assert isinstance(self.base.kernel, BandwidthKernel)
        kernel = replace(self.base.kernel, scale=factor * self.base.kernel.scale)
        landmarks = kernel.prepare(self.base.landmarks, self.base.dtype)  # raises an error if precision is too low
        power = kernel.power_of(self.base.kernel)
        square = np.exp2(-power * self.base.kernel.exponents(self._wide, self._wide))
        keep, projection = inverse_root(square, *cut_off(landmarks.dtype))
        return ExponentMap(NystromMap(kernel, self.base.dtype, self.base.landmarks[keep], projection), keep, power)

    def exponents(self, X: Rows) -> np.ndarray:
        """Compute -log2 k(x, z) of rows and landmarks.

        X (m, d) -> (m, r)
        """
        kernel = self.base.kernel
        assert isinstance(kernel, BandwidthKernel)
        return kernel.exponents(kernel.prepare(rows(X), self.base.dtype), self.base._ready[0])


def exponents_of(shared: Mapping[str, ManyBandwidths], views: Mapping[str, Rows], size: int) -> dict[str, np.ndarray]:
    """Compute the exponents of all rows of several views at their landmarks, reading each row once.

    views (n, d) -> (n, r)
    """
    n = next(iter(views.values())).shape[0]
    found = {view: np.empty((n, part.base.rank), part.base.dtype) for view, part in shared.items()}
    for where in row_blocks(n, size):
        read = [(view, rows(views[view], where)) for view in shared]  # in the calling thread, like `FeatureRows`

        def fill(part: tuple[str, Any], where: slice = where) -> None:
            view, block = part
            found[view][where] = shared[view].exponents(block)

        in_threads(fill, read)
    return found
