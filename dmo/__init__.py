"""Distributed multi-output learning: compact, label-aware representations from many views, and annotation."""

import lazy_loader

from dmo.registry import REGISTRY

# Schedulers and `dask` import this package and need no numerical code. Names are therefore loaded when they are used:
# estimators from the registry, all others from `__init__.pyi`.
_public, _, _declared = lazy_loader.attach_stub(__name__, __file__)
__all__ = sorted({*_declared, *REGISTRY})
del lazy_loader


def __dir__() -> list[str]:
    return __all__.copy()


def __getattr__(name: str) -> object:
    """Import a public name on use; suggest a similar name if it is unknown."""
    if name == "__version__":
        from importlib.metadata import version  # most of the time that this package takes to import

        return globals().setdefault(name, version("dmo-learn"))
    if name in REGISTRY:
        return globals().setdefault(name, getattr(_public("methods"), name))
    try:
        return _public(name)
    except AttributeError:
        if name.startswith("_"):
            raise
    from dmo.errors import meant  # schedulers, which import this package, need no other module of it

    near = meant(name, __all__)
    hint = "" if near is None else f"; did you mean dmo.{near}?"
    raise AttributeError(f"module 'dmo' has no attribute {name!r}{hint}", name=name)
