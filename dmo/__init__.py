"""Distributed multi-output learning: compact, label-aware representations from many views, and annotation."""

from importlib.metadata import version

from dmo.engines.exact import Exact
from dmo.engines.krylov import Krylov
from dmo.engines.moments import Moments
from dmo.errors import UserError
from dmo.estimators import (
    KGHA,
    LLTSVR,
    MESD,
    MLSI,
    MOPE,
    MORP,
    CoupledSVR,
    HomogeneityAnalysis,
    LabelPropagation,
    MultiSetCCA,
    MultiViewRidge,
    TraceEmbedding,
)
from dmo.lowrank.approximations import BestLowRank, Meka, Nystrom
from dmo.persistence import load

__version__ = version("dmo")
__all__ = [
    "KGHA",
    "LLTSVR",
    "MESD",
    "MLSI",
    "MOPE",
    "MORP",
    "BestLowRank",
    "CoupledSVR",
    "Exact",
    "HomogeneityAnalysis",
    "Krylov",
    "LabelPropagation",
    "Meka",
    "Moments",
    "MultiSetCCA",
    "MultiViewRidge",
    "Nystrom",
    "TraceEmbedding",
    "UserError",
    "load",
]
