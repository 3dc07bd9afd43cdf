"""Types of the estimators' arguments; the command line makes its options from those of their parameters."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from numpy.typing import ArrayLike

from dmo.decoders import Calibration, PlugIn, PooledCalibration
from dmo.engines.exact import Exact
from dmo.engines.krylov import Krylov
from dmo.kernels import Kernel
from dmo.lowrank.approximations import BestLowRank, Meka, Nystrom
from dmo.validation import Views


class RowSource(Protocol):
    """Samples x columns that are read by rows: NumPy, SciPy sparse, pandas, dask, Zarr, xarray, a view of a store.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.estimators.arguments import RowSource
    >>> source: RowSource = np.zeros((3, 2))
    >>> source.shape
    (3, 2)
    """

    @property
    def shape(self) -> tuple[Any, ...]: ...

    def __getitem__(self, where: Any, /) -> Any: ...


class ViewSource(Protocol):
    """Views of the same samples that belong to something: a feature store.

    Examples
    --------
    >>> from dmo.demo.digits import digits
    >>> from dmo.estimators.arguments import ViewSource
    >>> source: ViewSource = digits()
    >>> len(source.views)
    4
    """

    @property
    def views(self) -> Mapping[str, Any]: ...


Inputs: TypeAlias = ArrayLike | RowSource | Views | ViewSource | Mapping[Any, RowSource | None] | Sequence[RowSource]
"""X: one array or DataFrame, views by name (also an xarray Dataset, a feature store), or a list of views."""
Outputs: TypeAlias = ArrayLike | RowSource | Sequence[Collection[Hashable]]
"""y: labels of 0 and 1, classes, numbers, or lists and sets of labels."""
RowWeights: TypeAlias = ArrayLike | Mapping[str, ArrayLike] | None
"""sample_weight: a number for every sample, or such by view."""
KernelSpec = str | Kernel
"""A kernel or its name."""
KernelSpecs = str | Kernel | Mapping[str, Any] | Sequence[Any]
"""One kernel for all views, or one per view."""
Ridges = float | Mapping[str, float] | Sequence[float]
"""One ridge for all views, or one per view."""
Weights = Mapping[str, float] | Sequence[float] | Literal["equal", "tagprop", "alignment"] | None
"""Weights of the views, or how they are learned."""
ClassWeight = Literal["balanced"] | dict[Any, float] | None
"""Weights of classes."""
Decoder = str | Calibration | PlugIn | PooledCalibration | None
"""From held-out scores to decisions: an object of dmo.decoders, "calibrated", "probabilities", or a metric as "f1@5"."""
Engine = Literal["auto", "exact"] | Exact | Nystrom | Meka | BestLowRank
"""The kernel as it is, or one of low rank; "auto" decides by size."""
GivenEngine = Literal["exact"] | Exact | Nystrom | Meka | BestLowRank
"""The same without "auto"."""
LinearEngine = Literal["auto", "exact"] | Exact | Krylov | Nystrom
"""Of a linear problem, which may be solved in a Krylov subspace too."""
AnyEngine = Literal["auto", "exact"] | Exact | Krylov | Nystrom | Meka | BestLowRank
