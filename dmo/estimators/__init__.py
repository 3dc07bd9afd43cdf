"""scikit-learn estimators: validate, call a method, keep the fitted arrays."""

from dmo.estimators.approximations import BestLowRank, Meka, Nystrom
from dmo.estimators.exact import Exact
from dmo.estimators.homogeneity import HomogeneityAnalysis
from dmo.estimators.kgha import KGHA, MultiSetCCA
from dmo.estimators.llt import LLTSVR, CoupledSVR
from dmo.estimators.ridge import MultiViewRidge

__all__ = [
    "KGHA",
    "LLTSVR",
    "BestLowRank",
    "CoupledSVR",
    "Exact",
    "HomogeneityAnalysis",
    "Meka",
    "MultiSetCCA",
    "MultiViewRidge",
    "Nystrom",
]
