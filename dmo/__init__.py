"""Distributed multi-output learning: compact, label-aware representations from many views, and annotation."""

from importlib.metadata import version

from dmo.estimators import (
    KGHA,
    LLTSVR,
    MESD,
    MLSI,
    MOPE,
    MORP,
    BestLowRank,
    CoupledSVR,
    Exact,
    HomogeneityAnalysis,
    Krylov,
    LabelPropagation,
    Meka,
    MultiSetCCA,
    MultiViewRidge,
    Nystrom,
    TraceEmbedding,
)
from dmo.estimators.base import load
from dmo.moments import Moments

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
    "load",
]
