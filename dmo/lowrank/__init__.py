"""Low-rank approximations of kernel matrices by Nystrom and MEKA feature maps."""

from dmo.linalg.factors import BlockFactor, BlockLowRank, DenseFactor, StackedFactor
from dmo.linalg.pivoted_cholesky import PivotedCholesky, rpcholesky
from dmo.linalg.tall import BlockRows, Factor
from dmo.lowrank.approximations import Choice, choose
from dmo.lowrank.feature_maps import FeatureMap, LinearMap
from dmo.lowrank.meka import MekaMap, meka
from dmo.lowrank.nystrom import LandmarkMap, NystromMap, from_landmarks, landmark_map, nystrom
from dmo.lowrank.sampling import sampled_error

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
