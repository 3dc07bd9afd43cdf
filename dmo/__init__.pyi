from . import cluster as cluster
from . import datasets as datasets
from . import decoders as decoders
from . import graphs as graphs
from . import kernels as kernels
from . import labels as labels
from . import lowrank as lowrank
from . import methods as methods
from . import metrics as metrics
from . import model_selection as model_selection
from . import selection as selection
from . import space as space
from . import stores as stores
from .errors import UserError
from .fit.exact import Exact
from .fit.krylov import Krylov
from .fit.moments import Moments
from .inputs.containers import Views
from .inputs.preparation import Prepare
from .kernels.product import ProductKernel
from .labels.proximities import Proximity
from .lowrank.approximations import BestLowRank, Meka, Nystrom
from .methods.fasttag import FastTag
from .methods.filling import impute_views
from .methods.homogeneity import HomogeneityAnalysis
from .methods.jec import JEC
from .methods.kgha import KGHA
from .methods.llt_svr import LLTSVR
from .methods.mesd import MESD
from .methods.mope import MOPE
from .methods.morp import MLSI, MORP
from .methods.multiset import MultiSetCCA
from .methods.neighbor_votes import NeighborVotes
from .methods.options import Combine, Graph, MethodOptions, Solver
from .methods.propagation import LabelPropagation
from .methods.ridge import MultiViewRidge
from .methods.svr import CoupledSVR
from .methods.tagprop import TagProp
from .methods.trace import TraceEmbedding
from .methods.two_pass_knn import TwoPassKNN
from .persistence import load
from .report.space import plot_space as plot_space
from .select.tuning import tune as tune

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
    "plot_space",
    "tune",
]
