"""Distributed multi-output learning: compact, label-aware representations from many views, and annotation."""

import lazy_loader

# schedulers and `dask` import this package and need no numerics: the names stand in __init__.pyi, loaded when asked for
_named, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
del lazy_loader


def __getattr__(name):  # type: ignore[no-untyped-def]
    if name != "__version__":
        return _named(name)
    from importlib.metadata import version  # most of the time that this package takes to import

    return version("dmo-learn")
