"""Nystrom maps of one kernel under many bandwidths: landmarks are looked for once, and rows read once.

Kernels exp(-f(distance) / width) of several widths are powers of each other: from the exponents of one of them at the
landmarks, -log2 k(x, z), every other's values cost one exponential each. Landmarks that one bandwidth finds approximate
kernels of half and of twice its width as well as those that they would find themselves (errors differ by some percent,
as those of two seeds do).
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
    """A Nystrom map whose rows are exponents at landmarks, in place of features."""

    map: NystromMap  # the map of the features
    keep: np.ndarray  # the map's landmarks among those of the exponents
    power: float  # of the exponents' kernel, that the map's kernel is

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
        """Describe what the factor rows depend on."""
        arrays, meta = self.map.to_arrays()
        return arrays | {"keep": self.keep}, meta | {"power": self.power}


@dataclass(frozen=True, eq=False)
class ManyBandwidths:
    """The landmarks of a Nystrom map for kernels of other bandwidths, and the rows' exponents at them."""

    base: NystromMap  # of a `BandwidthKernel`

    @cached_property
    def _wide(self) -> Any:
        return self.base.kernel.prepare(self.base.landmarks, np.float64)

    def scaled(self, factor: float) -> ExponentMap:
        """Make the map of the kernel with another bandwidth."""
        assert isinstance(self.base.kernel, BandwidthKernel)
        kernel = replace(self.base.kernel, scale=factor * self.base.kernel.scale)
        landmarks = kernel.prepare(self.base.landmarks, self.base.dtype)  # refuses what has too few digits for it
        power = kernel.power_of(self.base.kernel)
        square = np.exp2(-power * self.base.kernel.exponents(self._wide, self._wide))
        keep, projection = inverse_root(square, *cut_off(landmarks.dtype))
        return ExponentMap(NystromMap(kernel, self.base.dtype, self.base.landmarks[keep], projection), keep, power)

    def exponents(self, X: Rows) -> np.ndarray:
        """Work out -log2 k(x, z) of rows and landmarks.

        X (m, d) -> (m, r)
        """
        kernel = self.base.kernel
        assert isinstance(kernel, BandwidthKernel)
        return kernel.exponents(kernel.prepare(rows(X), self.base.dtype), self.base._ready[0])


def exponents_of(shared: Mapping[str, ManyBandwidths], views: Mapping[str, Rows], size: int) -> dict[str, np.ndarray]:
    """Work out the exponents of all rows of some views at their landmarks, in one reading.

    views (n, d) -> (n, r)
    """
    n = next(iter(views.values())).shape[0]
    found = {view: np.empty((n, part.base.rank), part.base.dtype) for view, part in shared.items()}
    for where in row_blocks(n, size):
        read = [(view, rows(views[view], where)) for view in shared]  # in this thread, as `FeatureRows` does

        def fill(part: tuple[str, Any], where: slice = where) -> None:
            view, block = part
            found[view][where] = shared[view].exponents(block)

        in_threads(fill, read)
    return found
