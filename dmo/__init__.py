"""Distributed multi-output learning: compact, label-aware representations from many views, and annotation."""

from importlib.metadata import version

import lazy_loader

# schedulers and `dask` import this package and need no numerics: the names stand in __init__.pyi, loaded when asked for
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = version("dmo-learn")
del version, lazy_loader
