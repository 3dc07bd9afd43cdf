"""Distributed multi-output learning: compact, label-aware representations from many views, and annotation."""

from importlib.metadata import version

from dmo.estimators import KGHA, Exact, HomogeneityAnalysis, MultiSetCCA, MultiViewRidge
from dmo.estimators.base import load

__version__ = version("dmo")
__all__ = ["KGHA", "Exact", "HomogeneityAnalysis", "MultiSetCCA", "MultiViewRidge", "load"]
