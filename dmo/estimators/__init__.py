"""scikit-learn estimators: validate, call a method, keep the fitted arrays."""

from dmo.engines.exact import Exact
from dmo.engines.krylov import Krylov
from dmo.estimators.homogeneity import HomogeneityAnalysis
from dmo.estimators.kgha import KGHA
from dmo.estimators.llt import LLTSVR, CoupledSVR
from dmo.estimators.mesd import MESD
from dmo.estimators.mlsi import MLSI
from dmo.estimators.mope import MOPE
from dmo.estimators.morp import MORP
from dmo.estimators.multiset import MultiSetCCA
from dmo.estimators.propagation import LabelPropagation
from dmo.estimators.ridge import MultiViewRidge
from dmo.estimators.trace import TraceEmbedding
from dmo.lowrank.approximations import BestLowRank, Meka, Nystrom

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
    "MultiSetCCA",
    "MultiViewRidge",
    "Nystrom",
    "TraceEmbedding",
]
