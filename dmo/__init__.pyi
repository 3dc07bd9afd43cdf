from . import cluster as cluster
from . import datasets as datasets
from . import decoders as decoders
from . import estimators as estimators
from . import graphs as graphs
from . import kernels as kernels
from . import labels as labels
from . import lowrank as lowrank
from . import metrics as metrics
from . import model_selection as model_selection
from . import selection as selection
from . import space as space
from . import stores as stores
from .engines.exact import Exact
from .engines.krylov import Krylov
from .engines.moments import Moments
from .errors import UserError
from .estimators.arguments import Combine, Graph, MethodOptions, Solver
from .estimators.coupled_svr import CoupledSVR
from .estimators.fasttag import FastTag
from .estimators.homogeneity import HomogeneityAnalysis
from .estimators.jec import JEC
from .estimators.kgha import KGHA
from .estimators.llt_svr import LLTSVR
from .estimators.mesd import MESD
from .estimators.missing_views import impute_views
from .estimators.mlsi import MLSI
from .estimators.mope import MOPE
from .estimators.morp import MORP
from .estimators.multiset import MultiSetCCA
from .estimators.neighbor_votes import NeighborVotes
from .estimators.propagation import LabelPropagation
from .estimators.ridge import MultiViewRidge
from .estimators.tagprop import TagProp
from .estimators.trace import TraceEmbedding
from .estimators.two_pass_knn import TwoPassKNN
from .kernels.multikernel import ProductKernel
from .labels.proximities import Proximity
from .lowrank.approximations import BestLowRank, Meka, Nystrom
from .persistence import load
from .tuning import tune as tune
from .validation.containers import Views
from .validation.preparation import Prepare

__version__: str
__all__ = [
    "JEC",
    "KGHA",
    "LLTSVR",
    "MESD",
    "MLSI",
    "MOPE",
    "MORP",
    "BestLowRank",
    "Combine",
    "CoupledSVR",
    "Exact",
    "FastTag",
    "Graph",
    "HomogeneityAnalysis",
    "Krylov",
    "LabelPropagation",
    "Meka",
    "MethodOptions",
    "Moments",
    "MultiSetCCA",
    "MultiViewRidge",
    "NeighborVotes",
    "Nystrom",
    "Prepare",
    "ProductKernel",
    "Proximity",
    "Solver",
    "TagProp",
    "TraceEmbedding",
    "TwoPassKNN",
    "UserError",
    "Views",
    "impute_views",
    "load",
    "tune",
]
