"""Low-rank kernels: landmarks, Nystrom and MEKA feature maps, their errors and their operators."""

from dmo.lowrank.block_operator import BlockLowRank
from dmo.lowrank.blockrows import BlockRows
from dmo.lowrank.choice import Choice, choose
from dmo.lowrank.errors import sampled_error
from dmo.lowrank.factors import BlockFactor, DenseFactor, Factor, StackedFactor
from dmo.lowrank.maps import FeatureMap
from dmo.lowrank.meka import MekaMap
from dmo.lowrank.meka_fit import meka
from dmo.lowrank.nystrom import NystromMap, from_landmarks, nystrom
from dmo.lowrank.pivoting import PivotedCholesky, rpcholesky

__all__ = [
    "BlockFactor",
    "BlockLowRank",
    "BlockRows",
    "Choice",
    "DenseFactor",
    "Factor",
    "FeatureMap",
    "MekaMap",
    "NystromMap",
    "PivotedCholesky",
    "StackedFactor",
    "choose",
    "from_landmarks",
    "meka",
    "nystrom",
    "rpcholesky",
    "sampled_error",
]
