"""Distributed multi-output learning: compact, label-aware representations from many views, and annotation."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dmo.engines.exact import Exact
    from dmo.engines.krylov import Krylov
    from dmo.engines.moments import Moments
    from dmo.errors import UserError
    from dmo.estimators import (
        KGHA,
        LLTSVR,
        MESD,
        MLSI,
        MOPE,
        MORP,
        CoupledSVR,
        HomogeneityAnalysis,
        LabelPropagation,
        MultiSetCCA,
        MultiViewRidge,
        TraceEmbedding,
    )
    from dmo.lowrank.approximations import BestLowRank, Meka, Nystrom
    from dmo.persistence import load

__version__ = version("dmo")
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
    "Moments",
    "MultiSetCCA",
    "MultiViewRidge",
    "Nystrom",
    "TraceEmbedding",
    "UserError",
    "load",
]

_ELSEWHERE = {
    "Moments": "dmo.engines.moments",
    "UserError": "dmo.errors",
    "load": "dmo.persistence",
}
_MODULES = ("cluster", "datasets", "estimators", "kernels", "metrics", "selection", "stores")


def __getattr__(name: str) -> Any:
    """A public name, loaded when it is asked for: schedulers and `dask` import this package and need no numerics."""
    if name in _MODULES:
        return import_module(f"dmo.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'dmo' has no attribute {name!r}")
    value = getattr(import_module(_ELSEWHERE.get(name, "dmo.estimators")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
