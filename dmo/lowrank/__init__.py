"""Low-rank kernels: landmarks, Nystrom and MEKA feature maps, their errors and their operators."""

from dmo.linalg.block_rows import BlockRows
from dmo.linalg.factors import BlockFactor, BlockLowRank, DenseFactor, StackedFactor
from dmo.linalg.pivoted_cholesky import PivotedCholesky, rpcholesky
from dmo.linalg.tall import Factor
from dmo.lowrank.choice import Choice, choose
from dmo.lowrank.errors import sampled_error
from dmo.lowrank.feature_maps import FeatureMap
from dmo.lowrank.linear_map import LinearMap
from dmo.lowrank.meka import MekaMap
from dmo.lowrank.meka_fit import meka
from dmo.lowrank.nystrom import LandmarkMap, NystromMap, from_landmarks, landmark_map, nystrom

__all__ = [
    "BlockFactor",
    "BlockLowRank",
    "BlockRows",
    "Choice",
    "DenseFactor",
    "Factor",
    "FeatureMap",
    "LandmarkMap",
    "LinearMap",
    "MekaMap",
    "NystromMap",
    "PivotedCholesky",
    "StackedFactor",
    "choose",
    "from_landmarks",
    "landmark_map",
    "meka",
    "nystrom",
    "rpcholesky",
    "sampled_error",
]
