"""scikit-learn estimators: validate, call a method, keep the fitted arrays."""

from dmo.estimators.approximations import BestLowRank, Meka, Nystrom
from dmo.estimators.exact import Exact
from dmo.estimators.homogeneity import HomogeneityAnalysis
from dmo.estimators.kgha import KGHA, MultiSetCCA
from dmo.estimators.llt import LLTSVR, CoupledSVR
from dmo.estimators.mlsi import MLSI
from dmo.estimators.morp import MORP
from dmo.estimators.ridge import MultiViewRidge
from dmo.estimators.trace import TraceEmbedding

__all__ = [
    "KGHA",
    "LLTSVR",
    "MLSI",
    "MORP",
    "BestLowRank",
    "CoupledSVR",
    "Exact",
    "HomogeneityAnalysis",
    "Meka",
    "MultiSetCCA",
    "MultiViewRidge",
    "Nystrom",
    "TraceEmbedding",
]
