from .fasttag import FastTag
from .homogeneity import HomogeneityAnalysis
from .jec import JEC
from .kgha import KGHA
from .llt_svr import LLTSVR
from .mesd import MESD
from .mope import MOPE
from .morp import MLSI, MORP
from .multiset import MultiSetCCA
from .neighbor_votes import NeighborVotes
from .propagation import LabelPropagation
from .ridge import MultiViewRidge
from .svr import CoupledSVR
from .tagprop import TagProp
from .trace import TraceEmbedding
from .two_pass_knn import TwoPassKNN

__all__ = [
    "JEC",
    "KGHA",
    "LLTSVR",
    "MESD",
    "MLSI",
    "MOPE",
    "MORP",
    "CoupledSVR",
    "FastTag",
    "HomogeneityAnalysis",
    "LabelPropagation",
    "MultiSetCCA",
    "MultiViewRidge",
    "NeighborVotes",
    "TagProp",
    "TraceEmbedding",
    "TwoPassKNN",
]
