"""Types of the estimators' arguments; the command line makes its options from those of their parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from dmo.decoders import Calibration, PlugIn, PooledCalibration
from dmo.engines.exact import Exact
from dmo.engines.krylov import Krylov
from dmo.kernels import Kernel
from dmo.lowrank.approximations import BestLowRank, Meka, Nystrom
from dmo.validation import ClassWeight as ClassWeight
from dmo.validation import Inputs as Inputs
from dmo.validation import Outputs as Outputs
from dmo.validation import RowWeights as RowWeights

KernelSpec = str | Kernel
"""A kernel or its name."""
KernelSpecs = str | Kernel | Mapping[str, Any] | Sequence[Any]
"""One kernel for all views, or one per view."""
Ridges = float | Mapping[str, float] | Sequence[float]
"""One ridge for all views, or one per view."""
LabelRidges = float | np.ndarray | Mapping[str, Any] | Sequence[Any]
"""The same, each a number for all labels or an array of one per label."""
Weights = Mapping[str, float] | Sequence[float] | Literal["equal", "tagprop", "alignment"] | None
"""Weights of the views, or how they are learned."""
Decoder = str | Calibration | PlugIn | PooledCalibration | None
"""From held-out scores to decisions: an object of dmo.decoders, "calibrated", "probabilities", or a metric as "f1@5"."""
Engine = Literal["auto", "exact"] | Exact | Nystrom | Meka | BestLowRank
"""The kernel as it is, or one of low rank; "auto" decides by size."""
GivenEngine = Literal["exact"] | Exact | Nystrom | Meka | BestLowRank
"""The same without "auto"."""
LinearEngine = Literal["auto", "exact"] | Exact | Krylov | Nystrom
"""Of a linear problem, which may be solved in a Krylov subspace too."""
AnyEngine = Literal["auto", "exact"] | Exact | Krylov | Nystrom | Meka | BestLowRank
